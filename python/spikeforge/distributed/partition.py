"""A sparse matrix dealt to ranks: each has the connections onto its own neurons, and hears the spikes of all.

Gradients go back the same ways, by torch's DTensor: what was gathered is summed over the ranks and dealt again.
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
    """The part of a matrix that :func:`deal` gave a rank.

    Attributes:
        one_weight: whether all connections of all ranks share one weight. The number of weights does not tell: a rank may
            have a single connection.
    """

    one_weight: bool


def share(count: int, mesh: DeviceMesh) -> slice:
    """Which of `count` neurons are this rank's, of a mesh of one dimension: those that ``Shard`` deals it.

    The first ranks have ``ceil(count / ranks)`` each, the last ones what is left, which may be none.
    """
    return _share("share", "count", count, mesh)


def deal(matrix: Connectivity, mesh: DeviceMesh, *, kinds: int = 1) -> DealtConnectivity:
    """The connections of a matrix onto this rank's neurons, in the order that they have.

    Rows remain those of all sources. Columns are this rank's :func:`share`; with `kinds` of synapse for each neuron, one kind
    behind the other, its share of each. Weights and delays of a single element stay as they are.

    Raises:
        TypeError: for a matrix that was dealt before.
        ValueError: for columns that `kinds` does not divide.
    """
    if isinstance(matrix, DealtConnectivity):
        raise TypeError("deal: matrix must be a whole one, but was dealt to ranks before")
    if kinds < 1 or matrix.cols % kinds != 0:
        raise ValueError(f"deal: kinds must divide the {matrix.cols} columns, but is {kinds}")
    own = _share("deal", "cols", matrix.cols // kinds, mesh)
    count = own.stop - own.start
    kind, neuron = matrix.indices // (matrix.cols // kinds), matrix.indices % (matrix.cols // kinds)
    kept = (own.start <= neuron) & (neuron < own.stop)
    before = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
    return DealtConnectivity(
        indices=(kind * count + neuron - own.start)[kept],
        indptr=before[matrix.indptr.long()].to(matrix.indptr.dtype),
        weights=_kept(matrix.weights, kept),
        delays=_kept(matrix.delays, kept),
        rows=matrix.rows,
        cols=kinds * count,
        one_weight=matrix.weights.numel() == 1,
    )


def gather(t: Tensor, size: int, mesh: DeviceMesh, *, dim: int = -1) -> Tensor:
    """What all ranks have of a dimension of `size` numbers, side by side, on each of them.

    The gradient of this rank's part is the sum of those of all ranks.

    Args:
        t: this rank's :func:`share` along `dim`; all other dimensions are alike on all ranks.
    """
    own = _share("gather", "size", size, mesh)
    if t.dim() == 0 or not -t.dim() <= dim < t.dim():
        raise ValueError(f"gather: dim must be one of the {t.dim()} dimensions of t, but is {dim}")
    if t.shape[dim] != own.stop - own.start:
        raise ValueError(
            f"gather: t must have {own.stop - own.start} of the {size} numbers in dimension {dim} on rank {mesh.get_local_rank()}, "
            f"but has shape {list(t.shape)}"
        )
    dim %= t.dim()
    shape = (*t.shape[:dim], size, *t.shape[dim + 1 :])
    return _Exchange.apply(t, mesh, torch.Size(shape), Shard(dim), Replicate())


def replicated(t: Tensor, mesh: DeviceMesh) -> Tensor:
    """A parameter that is the same on all ranks: its gradient is the sum of those of all."""
    _check_mesh("replicated", mesh)
    return _Exchange.apply(t, mesh, t.shape, Replicate(), Replicate())


class _Exchange(Function):
    """What a rank has of a tensor of `shape` that is placed `into`, from what it has where it is placed `of`.

    Losses of ranks add up: the gradient of what all have is the sum of theirs (`Partial`). So the backward pass is an exchange
    again, and has its own derivative, which that of DTensor's ``to_local`` has not.
    """

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
    """What arrives at this rank's neurons: e A of the events of all ranks, and of the part of the matrix that :func:`deal` gave.

    Gradients reach the weights, of which a single one is that of all ranks, and, straight through, the events of every
    rank. Within rounding they are those of the whole product on one rank.

    Args:
        matrix: what :func:`deal` returned.
        events: ``[..., rows]`` of this rank's share of the sources, as ``event_csrmv`` takes them.

    Returns:
        ``[..., cols]`` of this rank's columns.
    """
    if not isinstance(matrix, DealtConnectivity):
        raise TypeError(f"event_product: matrix must be what deal returned, but is {type(matrix).__name__}")
    heard = gather(events, matrix.rows, mesh)
    weights = replicated(matrix.weights, mesh) if matrix.one_weight else matrix.weights
    return torch.ops.spikeforge.event_csrmv(
        weights,
        matrix.indices,
        matrix.indptr,
        heard,
        rows=matrix.rows,
        cols=matrix.cols,
        transpose=True,
        graded=graded,
        deterministic=deterministic,
    )


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
