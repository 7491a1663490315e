"""A sparse matrix partitioned over ranks: each rank has the connections onto its neurons, and receives all spikes.

The backward pass uses torch's DTensor too: the gradient of a gathered tensor is reduced over the ranks and scattered.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from spikeforge.connecting import Connectivity
from spikeforge.distributed.sharding import own_range

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclasses.dataclass(frozen=True)
class DealtConnectivity(Connectivity):
    """The part of a matrix that :func:`deal` returned on a rank.

    Attributes:
        one_weight: True if all connections of all ranks share one weight. A rank with a single connection has one
            weight in both cases.
    """

    one_weight: bool


def share(count: int, mesh: DeviceMesh) -> slice:
    """Returns this rank's part of `count` neurons on a mesh of one dimension, as ``Shard`` splits them.

    The first ranks have ``ceil(count / ranks)`` neurons each, the last ones the rest, possibly none.
    """
    return _share("share", "count", count, mesh)


def deal(matrix: Connectivity, mesh: DeviceMesh, *, kinds: int = 1) -> DealtConnectivity:
    """Returns the connections of a matrix onto this rank's neurons, in the same order.

    Rows are those of all sources. Columns are this rank's :func:`share`; with several `kinds` of synapse, whose columns
    are concatenated, its share of each kind. Weights and delays with a single element do not change.

    Raises:
        TypeError: if the matrix is a partition already.
        ValueError: if `kinds` does not divide the columns.
    """
    if isinstance(matrix, DealtConnectivity):
        raise TypeError("deal: matrix must be a whole one, but is a partition of deal")
    if kinds < 1 or matrix.cols % kinds != 0:
        raise ValueError(f"deal: kinds must divide the {matrix.cols} columns, but is {kinds}")
    own = _share("deal", "cols", matrix.cols // kinds, mesh)
    count = own.stop - own.start
    kind, neuron = matrix.indices // (matrix.cols // kinds), matrix.indices % (matrix.cols // kinds)
    kept = (own.start <= neuron) & (neuron < own.stop)
    before = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
    return DealtConnectivity(
        indices=(kind * count + neuron - own.start)[kept],
        indptr=before[matrix.indptr.long()].to(matrix.indptr.dtype), weights=_kept(matrix.weights, kept),
        delays=_kept(matrix.delays, kept), rows=matrix.rows, cols=kinds * count,
        one_weight=matrix.weights.numel() == 1,
    )  # fmt: skip


def gather(t: Tensor, size: int, mesh: DeviceMesh, *, dim: int = -1) -> Tensor:
    """Concatenates the parts of all ranks along a dimension, whose total size is `size`, on each rank.

    The gradient of this rank's part is the sum of the gradients of all ranks.

    Args:
        t: this rank's :func:`share` along `dim`; the other dimensions are the same on all ranks.
    """
    own = _share("gather", "size", size, mesh)
    if t.dim() == 0 or not -t.dim() <= dim < t.dim():
        raise ValueError(f"gather: dim must be one of the {t.dim()} dimensions of t, but is {dim}")
    if t.shape[dim] != own.stop - own.start:
        raise ValueError(
            f"gather: t must have {own.stop - own.start} of the {size} elements in dimension {dim} on rank "
            f"{mesh.get_local_rank()}, but has shape {list(t.shape)}"
        )
    dim %= t.dim()
    shape = (*t.shape[:dim], size, *t.shape[dim + 1 :])
    return _Exchange.apply(t, mesh, torch.Size(shape), Shard(dim), Replicate())


def replicated(t: Tensor, mesh: DeviceMesh) -> Tensor:
    """Returns t, a parameter that is the same on all ranks; its gradient is summed over the ranks."""
    _check_mesh("replicated", mesh)
    return _Exchange.apply(t, mesh, t.shape, Replicate(), Replicate())


class _Exchange(Function):
    """Redistributes the local part of a tensor of `shape` from the placement `of` to the placement `into`.

    The loss is the sum of the losses of all ranks, so the gradient of a replicated tensor is `Partial`. The backward
    pass is another exchange with its own derivative, unlike that of DTensor's ``to_local``."""

    @staticmethod
    def forward(t: Tensor, mesh: DeviceMesh, shape: torch.Size, of: Placement, into: Placement) -> Tensor:
        stride = torch.empty(shape, device="meta").stride()
        parts = DTensor.from_local(t.detach().contiguous(), mesh, [of], run_check=False, shape=shape, stride=stride)
        return parts.redistribute(placements=[into]).to_local()

    @staticmethod
    def setup_context(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        _, ctx.mesh, ctx.shape, ctx.of, ctx.into = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of = Partial() if ctx.into.is_replicate() else ctx.into
        into = Replicate() if ctx.of.is_partial() else ctx.of
        return _Exchange.apply(grad, ctx.mesh, ctx.shape, of, into), None, None, None, None


def event_product(
    matrix: DealtConnectivity, events: Tensor, mesh: DeviceMesh, *, graded: bool = False, deterministic: bool = False
) -> Tensor:
    """Computes the input of this rank's neurons: e A with the events of all ranks and this rank's part of the matrix.

    Gradients reach the weights (a single one is shared by all ranks) and, straight through, the events of every rank.
    They are those of the whole product on one rank, within rounding.

    Args:
        matrix: the result of :func:`deal`.
        events: ``[..., rows]`` of this rank's share of the sources, as in ``event_csrmv``.

    Returns:
        ``[..., cols]`` of this rank's columns.
    """
    if not isinstance(matrix, DealtConnectivity):
        raise TypeError(f"event_product: matrix must be returned by deal, but is {type(matrix).__name__}")
    gathered = gather(events, matrix.rows, mesh)
    weights = replicated(matrix.weights, mesh) if matrix.one_weight else matrix.weights
    options = dict(rows=matrix.rows, cols=matrix.cols, transpose=True, graded=graded, deterministic=deterministic)
    return torch.ops.spikeforge.event_csrmv(weights, matrix.indices, matrix.indptr, gathered, **options)


def _kept(numbers: Tensor, kept: Tensor) -> Tensor:
    return numbers if numbers.numel() == 1 else numbers[kept]


def _share(function: str, name: str, count: int, mesh: DeviceMesh) -> slice:
    try:
        count = operator.index(count)
    except TypeError:
        raise TypeError(f"{function}: {name} must be a whole number, but is {count!r}") from None
    if count < 0:
        raise ValueError(f"{function}: {name} must not be below 0, but is {count}")
    _check_mesh(function, mesh)
    return slice(*own_range(count, mesh.size(), mesh.get_local_rank()))


def _check_mesh(function: str, mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise ValueError(
            f"{function}: mesh must have one dimension, but has {mesh.ndim}; take one of them, mesh['name']"
        )
