"""Runs a product, a normalisation, a neuron and a pooling on a part of the batch at a time.

The tensors between them exist for one part only, forward and backward. For large images they are larger than everything
else that a network keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHANNELS = 2  # of [T, B, C, ...]
batch_norm_run = torch.ops.spikeforge.batch_norm_run.default
channel_statistics = torch.ops.spikeforge.channel_statistics.default
pack_spikes = torch.ops.spikeforge.pack_spikes.default
unpack_spikes = torch.ops.spikeforge.unpack_spikes.default


class Layer(NamedTuple):
    """The computation of each part.

    Attributes:
        product: of x [N, ...], a weight and a bias.
        neuron: neuron text.
        eps: that of the normalisation.
        after: a function of spikes [T, B, C, ...] that treats each sample separately.
        pieces: the number of parts of the batch.
        bits: the bits that are kept of each element of x; 0: x itself is kept.
        last_states: return the states after a sequence.
    """

    product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    neuron: str
    eps: float
    after: Callable[[Tensor], Tensor]
    pieces: int
    bits: int
    last_states: bool = True

    def parts(self, x: Tensor) -> list[slice]:
        batch = x.shape[1]
        size = -(-batch // self.pieces)
        return [slice(first, min(first + size, batch)) for first in range(0, batch, size)]

    def made(self, rows: Tensor, steps: int, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the product [T, b, C, ...] of the rows of a part of the batch."""
        return self.product(rows, weight, bias).unflatten(0, (steps, -1))

    def run(self, y: Tensor, of_channels: Sequence[Tensor | None], params: Sequence[Tensor]) -> list[Tensor]:
        """Returns results and last states."""
        options = {"eps": self.eps, "last_states": self.last_states}
        (spikes,), states, *_ = batch_norm_run(self.neuron, [y], [], list(params), *of_channels, **options)
        return [self.after(spikes), *states]


class Tensors(NamedTuple):
    """The tensors of a layer that may have a gradient, except its x.

    Attributes:
        weight, bias: of the product.
        scale, shift: of the normalisation.
        params: of the neuron; each is the same for all samples.
    """

    weight: Tensor
    bias: Tensor | None
    scale: Tensor | None
    shift: Tensor | None
    params: tuple[Tensor, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None]) -> Tensors:
        return cls(*tensors[:4], tuple(tensors[4:]))


def run_in_pieces(layer: Layer, x: Tensor, tensors: Tensors) -> tuple[Tensor, list[Tensor], Tensor, Tensor, int]:
    """Runs the layer on x [T, B, ...], with the statistics of the whole batch. Returns its results, the neuron's last
    states, mean, variance, and the number of elements of a channel.

    Gradients are those of the whole within rounding. The product is computed four times in a step of training: for the
    statistics, for the results, and in the backward pass for the sums over channels, and for the gradients that need
    them. The backward pass keeps x, or its bits, and a few scalars for each channel.
    """
    dtype = type_of_product(x)
    if dtype is not x.dtype:  # autocast
        x, weight, bias = (None if t is None else t.to(dtype) for t in (x, *tensors[:2]))
        tensors = tensors._replace(weight=weight, bias=bias)
    results, *states, mean, var, count = _InPieces.apply(layer, x, *tensors[:4], *tensors.params)
    return results, states, mean, var, count


def type_of_product(x: Tensor) -> torch.dtype:
    """Returns the dtype to which autocast converts x for a product."""
    kind = x.device.type
    known = torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind)  # the latter cannot be traced
    casts = known and torch.is_autocast_enabled(kind) and x.dtype is not torch.float64
    return torch.get_autocast_dtype(kind) if casts else x.dtype


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: Layer, x: Tensor, *given: Tensor | None) -> tuple[Tensor | int, ...]:
        x = _dense(x) if layer.bits else x
        tensors, parts = Tensors.of(given), layer.parts(x)
        with _no_autocast(x):
            made = lambda part: layer.made(rows_of(x, part), len(x), *tensors[:2])
            found = [channel_statistics(made(part), CHANNELS) for part in parts]
            means, variances = (torch.stack(of_parts) for of_parts in zip(*found))
            mean, var = joined(means, variances, parts)
            whole, count = _Whole(x.shape[1]), 0
            for part in parts:
                y = made(part)
                count += y.numel() // y.shape[CHANNELS]
                whole.take(part, layer.run(y, (*tensors[2:4], mean, var), tensors.params))
                del y
        ctx.layer, ctx.form = layer, (x.shape, x.stride(), x.dtype)
        ctx.save_for_backward(*_kept(layer, x), means, variances, *given)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(mean, var)
        return (*whole.results, mean, var, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError("the backward pass of a layer in pieces cannot be differentiated: pass pieces=1")
        layer, size = ctx.layer, 2 if ctx.layer.bits else 1
        saved = ctx.saved_tensors
        kept, (means, variances), given = saved[:size], saved[size : size + 2], saved[size + 2 :]
        grads = grads[:-3]  # not those of the statistics and the count
        if all(grad is None for grad in grads):
            return (None,) * (2 + len(given))
        wants_x, *wanted = ctx.needs_input_grad[1:]
        shape, stride, dtype = ctx.form
        x = unpack_spikes(*kept, shape, stride, dtype, layer.bits) if layer.bits else kept[0]
        with _no_autocast(x):
            back = _Backward(layer, x, Tensors.of(given), means, variances, grads)
            sums = back.sums([0, 0, *wanted[2:]])
            gradients = back.gradients(wants_x, wanted[:2])
        of_x, *of_product = gradients
        return (None, of_x, *of_product, *sums[2:])


class _Backward:
    """The two passes of a backward pass over all parts."""

    def __init__(
        self, layer: Layer, x: Tensor, tensors: Tensors, means: Tensor, variances: Tensor,
        grads: Sequence[Tensor | None],
    ) -> None:  # fmt: skip
        self.layer, self.x, self.tensors, self.parts = layer, x, tensors, layer.parts(x)
        self.means, self.variances, self.grads = means, variances, grads
        self.statistics = joined(means, variances, self.parts)

    def sums(self, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Returns the gradients of tensors after the product that are the same for all samples, and stores those of
        each part's statistics for gradients()."""
        leaves = [_leaf(t) if wants else t for t, wants in zip((*self.tensors[:4], *self.tensors.params), wanted)]
        statistics = [_leaf(t) for t in self.statistics]
        targets = [*statistics, *(t for t, wants in zip(leaves, wanted) if wants)]
        found = _Sums(targets)
        for part in self.parts:
            y = self.layer.made(rows_of(self.x, part), len(self.x), *self.tensors[:2])
            with torch.enable_grad():
                results = self.layer.run(y, (*leaves[2:4], *statistics), leaves[4:])
            found.add(_gradients(results, targets, self._of(part)))
        self.of_statistics = self._shares(found.sums[:2])
        sums = iter(found.as_arguments()[2:])
        return [next(sums) if wants else None for wants in wanted]

    def gradients(self, wants_x: bool, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Returns the gradients of x, and of the product's weight and bias."""
        leaves = [_leaf(t) if wants else t for t, wants in zip(self.tensors[:2], wanted)]
        found, whole = _Sums([t for t, wants in zip(leaves, wanted) if wants]), _Whole(self.x.shape[1])
        for number, part in enumerate(self.parts):
            rows = rows_of(self.x, part)
            with torch.enable_grad():
                rows = _leaf(rows) if wants_x else rows
                y = self.layer.made(rows, len(self.x), *leaves)
                results = self.layer.run(y, (*self.tensors[2:4], *self.statistics), self.tensors.params)
                results += channel_statistics(y, CHANNELS)
            grads = [*self._of(part), *(of_parts[number] for of_parts in self.of_statistics)]
            of_rows, *others = _gradients(results, [rows if wants_x else None, *found.of], grads)
            del y, results
            if wants_x:
                whole.take(part, [of_rows.unflatten(0, (len(self.x), -1))])
            found.add(others)
        sums = iter(found.as_arguments())
        return [whole.results[0] if wants_x else None, *(next(sums) if wants else None for wants in wanted)]

    def _of(self, part: slice) -> list[Tensor | None]:
        """Returns the upstream gradients of a part: of results over time, and of last states."""
        results, *states = self.grads
        return [None if results is None else results[:, part], *(None if g is None else g[part] for g in states)]

    def _shares(self, of_joined: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the gradients of the statistics of each part, from those of the whole batch."""
        leaves = [_leaf(self.means), _leaf(self.variances)]
        with torch.enable_grad():
            statistics = joined(*leaves, self.parts)
        return torch.autograd.grad(statistics, leaves, of_joined)


class _Sums:
    """Sums tensors over parts, half types in float32."""

    def __init__(self, of: Sequence[Tensor]) -> None:
        self.of = of
        self.sums = [torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32)) for t in of]

    def add(self, gradients: Iterable[Tensor | None]) -> None:
        for total, gradient in zip(self.sums, gradients):
            if gradient is not None:
                total += gradient

    def as_arguments(self) -> list[Tensor]:
        return [total.to(t.dtype) for total, t in zip(self.sums, self.of)]


class _Whole:
    """Tensors of the whole batch, assembled from those of parts, with their memory format. The first is [T, B, ...],
    the others [B, ...]."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.results: list[Tensor] = []

    def take(self, part: slice, pieces: Sequence[Tensor]) -> None:
        if not self.results:
            self.results = [self._empty(piece, dim=int(i == 0)) for i, piece in enumerate(pieces)]
        for i, (whole, piece) in enumerate(zip(self.results, pieces)):
            whole[(slice(None),) * int(i == 0) + (part,)].copy_(piece)

    def _empty(self, piece: Tensor, dim: int) -> Tensor:
        size = [*piece.shape[:dim], self.batch, *piece.shape[dim + 1 :]]
        inner = sorted(range(dim + 1, piece.dim()), key=lambda d: -piece.stride(d))
        order = [*range(dim + 1), *inner]
        lies = torch.empty([size[d] for d in order], dtype=piece.dtype, device=piece.device)
        return lies.permute([order.index(d) for d in range(piece.dim())])


def rows_of(x: Tensor, part: slice) -> Tensor:
    """Returns x [T, B, ...] of a part of the batch as [T * b, ...], in the memory format of its samples."""
    return torch.cat([step[part] for step in x])


def joined(means: Tensor, variances: Tensor, parts: Sequence[slice]) -> tuple[Tensor, Tensor]:
    """Returns the mean and variance [C] of all parts together, from those of each part, [parts, C]."""
    shares = [(part.stop - part.start) / parts[-1].stop for part in parts]
    mean = sum(of_part * share for of_part, share in zip(means, shares))
    return mean, sum(of_part * share for of_part, share in zip(variances + (means - mean) ** 2, shares))


def _kept(layer: Layer, x: Tensor) -> list[Tensor]:
    if not layer.bits:
        return [x]
    packed, valid = pack_spikes(x, layer.bits)
    if x.device.type == "cpu" and not valid:
        raise ValueError(f"x must be {'0 or 1' if layer.bits == 1 else 'a whole number from 0 to 15'} everywhere")
    return [packed, valid]


def _dense(x: Tensor) -> Tensor:
    """Returns x, or a copy of it if its memory has gaps."""
    return x if torch.empty_like(x, device="meta").stride() == x.stride() else x.contiguous()


def _leaf(t: Tensor) -> Tensor:
    return t.detach().requires_grad_()


def _gradients(
    results: Sequence[Tensor], by: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Returns the gradients with respect to `by`; None for None."""
    came = [(result, grad) for result, grad in zip(results, grads) if grad is not None and result.requires_grad]
    targets = [t for t in by if t is not None]
    if not came or not targets:
        return [None] * len(by)
    outputs, upstream = zip(*came)
    found = iter(torch.autograd.grad(outputs, targets, upstream, allow_unused=True))
    return [None if t is None else next(found) for t in by]


def _no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
