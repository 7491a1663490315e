"""A sparse matrix dealt to ranks: each has the connections onto its own neurons, and hears the spikes of all.

Gradients go back the same ways, by torch's DTensor: what was gathered is summed over the ranks and dealt again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from spikeforge.distributed.sharding import own_range

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from spikeforge.connecting import Connectivity


def share(count: int, mesh: DeviceMesh) -> slice:
    """Which of `count` neurons are this rank's, of a mesh of one dimension: those that ``Shard`` deals it.

    The first ranks have ``ceil(count / ranks)`` each, the last ones what is left, which may be none.
    """
    _check_mesh("share", mesh)
    return slice(*own_range(count, mesh.size(), mesh.get_local_rank()))


def deal(matrix: Connectivity, mesh: DeviceMesh, *, kinds: int = 1) -> Connectivity:
    """The connections of a matrix onto this rank's neurons, in the order that they have.

    Rows remain those of all sources. Columns are this rank's :func:`share`; with `kinds` of synapse for each neuron, one kind
    behind the other, its share of each. Weights and delays of a single element stay as they are.

    Raises:
        ValueError: for columns that `kinds` does not divide.
    """
    if kinds < 1 or matrix.cols % kinds != 0:
        raise ValueError(f"deal: kinds must divide the {matrix.cols} columns, but is {kinds}")
    own = share(matrix.cols // kinds, mesh)
    count = own.stop - own.start
    kind, neuron = matrix.indices // (matrix.cols // kinds), matrix.indices % (matrix.cols // kinds)
    kept = (own.start <= neuron) & (neuron < own.stop)
    before = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
    return dataclasses.replace(
        matrix,
        indices=(kind * count + neuron - own.start)[kept],
        indptr=before[matrix.indptr.long()].to(matrix.indptr.dtype),
        weights=_kept(matrix.weights, kept),
        delays=_kept(matrix.delays, kept),
        cols=kinds * count,
    )


def gather(t: Tensor, size: int, mesh: DeviceMesh, *, dim: int = -1) -> Tensor:
    """What all ranks have of a dimension of `size` numbers, side by side, on each of them.

    The gradient of this rank's part is the sum of those of all ranks.

    Args:
        t: this rank's :func:`share` along `dim`; all other dimensions are alike on all ranks.
    """
    _check_mesh("gather", mesh)
    own = share(size, mesh)
    if t.dim() == 0 or not -t.dim() <= dim < t.dim():
        raise ValueError(f"gather: dim must be one of the {t.dim()} dimensions of t, but is {dim}")
    if t.shape[dim] != own.stop - own.start:
        raise ValueError(
            f"gather: t must have {own.stop - own.start} of the {size} numbers in dimension {dim} on rank {mesh.get_local_rank()}, "
            f"but has shape {list(t.shape)}"
        )
    dim %= t.dim()
    shape = (*t.shape[:dim], size, *t.shape[dim + 1 :])
    stride = torch.empty(shape, device="meta").stride()
    shards = DTensor.from_local(t.contiguous(), mesh, [Shard(dim)], run_check=False, shape=torch.Size(shape), stride=stride)
    return shards.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def replicated(t: Tensor, mesh: DeviceMesh) -> Tensor:
    """A parameter that is the same on all ranks: its gradient is the sum of those of all."""
    _check_mesh("replicated", mesh)
    return DTensor.from_local(t, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])


def event_product(
    matrix: Connectivity, events: Tensor, mesh: DeviceMesh, *, graded: bool = False, deterministic: bool = False
) -> Tensor:
    """What arrives at this rank's neurons: e A of the events of all ranks, and of the part of the matrix that :func:`deal` gave.

    Gradients reach the weights, of which a single one is that of all ranks, and, straight through, the events of every
    rank. Within rounding they are those of the whole product on one rank.

    Args:
        events: ``[..., rows]`` of this rank's share of the sources, as ``event_csrmv`` takes them.

    Returns:
        ``[..., cols]`` of this rank's columns.
    """
    heard = gather(events, matrix.rows, mesh)
    weights = replicated(matrix.weights, mesh) if matrix.weights.numel() == 1 else matrix.weights
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


def _check_mesh(function: str, mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise ValueError(f"{function}: mesh must have one dimension, but has {mesh.ndim}; take one of them, mesh['name']")
