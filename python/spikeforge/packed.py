"""Spikes as bits between the forward and the backward pass."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from spikeforge._numbers import FLOATS

LOOKED_AT = 1024  # numbers, at first; a smaller tensor is not worth a call
LAG = 2  # tensors of which a GPU has not said yet what they hold
WIDTHS = (1, 4)  # bits of a number
AGAIN = 64  # calls after which a place that held no spikes is looked at again
pack_spikes = torch.ops.spikeforge.pack_spikes.default


class packed_activations(saved_tensors_hooks):
    """Within ``with packed_activations():`` what layers keep for their backward pass is kept as bits where it is spikes:
    one bit for each number where all are 0 or 1, four where they are whole and at most 15, as after a residual sum.
    The rest is kept as it is. Gradients are the same as without (-0.0 comes back as 0.0).

    >>> with spikeforge.packed_activations():
    ...     loss = criterion(net(x), target)
    >>> loss.backward()

    Every tensor that is kept is looked at, unless the last call kept something at the same place that was no spikes. A
    GPU says later what it has found, and until then the tensor itself is kept too: of two tensors at most, before the
    next is waited for. While a CUDA graph is captured, all is kept as it is; ``torch.ops.spikeforge.linear`` and
    ``convolution`` take it for granted that they get spikes, and can be captured.
    """

    def __init__(self) -> None:
        self._places = 0
        self._undecided: deque[_Undecided] = deque()
        super().__init__(self._pack, _unpack)

    def __exit__(self, *args: Any) -> None:
        self._undecided.clear()  # the graph has them
        super().__exit__(*args)

    def _pack(self, t: Tensor) -> _Whole | _Packed | _Undecided:
        whole = _Whole(t.detach(), t._version)
        if not _may_be_spikes(t):
            return whole
        dense = whole.tensor
        if torch.empty_like(dense, device="meta").stride() != dense.stride():  # holes, or an expanded dimension
            dense = dense.contiguous()
        if not _answers_later(dense):
            return _packed_now(whole, dense)
        if dense.is_cuda and torch.cuda.is_current_stream_capturing():
            return whole
        place = _Place.of(self._places, dense)
        self._places += 1
        widths = place.widths()
        if not widths:
            return whole
        undecided = _Undecided(whole, dense, place, widths)
        self._undecided.append(undecided)
        while len(self._undecided) > LAG:
            self._undecided.popleft().decide()
        return undecided


class _Whole(NamedTuple):
    """A tensor without its history, of which it may be a part, and how often it had been changed."""

    tensor: Tensor
    version: int


class _Packed(NamedTuple):
    packed: Tensor
    valid: Tensor
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    bits: int


def _packed_now(whole: _Whole, dense: Tensor) -> _Whole | _Packed:
    if not pack_spikes(dense.as_strided((LOOKED_AT,), (1,)), 4)[1]:
        return whole
    for bits in WIDTHS:
        packed, valid = pack_spikes(dense, bits)
        if valid:
            return _Packed(packed, valid, dense.shape, dense.stride(), dense.dtype, bits)
    return whole


class _Place:
    """The n-th tensor of a shape and type that a context has been given, and what it held the last time."""

    known: ClassVar[dict[tuple[Any, ...], _Place]] = {}
    most: ClassVar[int] = 4096

    def __init__(self) -> None:
        self.last: tuple[int, ...] = WIDTHS
        self.calls = 0

    @classmethod
    def of(cls, n: int, t: Tensor) -> _Place:
        key = n, t.shape, t.dtype
        if len(cls.known) >= cls.most and key not in cls.known:
            cls.known.clear()
        return cls.known.setdefault(key, cls())

    def widths(self) -> tuple[int, ...]:
        """Those to try."""
        self.calls += 1
        return WIDTHS if not self.last and self.calls % AGAIN == 0 else self.last


class _Undecided:
    """A tensor and its bits, until it is known whether all of it can be bits."""

    def __init__(self, whole: _Whole, dense: Tensor, place: _Place, widths: tuple[int, ...]):
        form = dense.shape, dense.stride(), dense.dtype
        self.kept: _Whole | _Packed = whole
        self.place = place
        pairs = [(bits, *pack_spikes(dense, bits)) for bits in widths]
        self.tried = [_Packed(packed, valid, *form, bits) for bits, packed, valid in pairs]
        first, *more = (tried.valid for tried in self.tried)
        answers = torch.stack([first, *more]) if more else first.unsqueeze(0)
        self.answers, self.event = answers, None
        if dense.is_cuda:
            self.answers = torch.empty(answers.shape, dtype=torch.bool, pin_memory=True).copy_(
                answers, non_blocking=True
            )
            self.event = torch.cuda.Event()
            self.event.record()

    def decide(self) -> _Whole | _Packed:
        tried, self.tried = self.tried, []
        if tried:
            if self.event is not None:
                self.event.synchronize()
            legal = [packed for packed, answer in zip(tried, self.answers.tolist()) if answer]
            self.kept = legal[0] if legal else self.kept
            # What was not tried may hold the next time.
            self.place.last = (legal[0].bits,) if legal else () if len(tried) == len(WIDTHS) else WIDTHS
        return self.kept


def _answers_later(t: Tensor) -> bool:
    return t.is_cuda


def _may_be_spikes(t: Tensor) -> bool:
    if type(t) is not Tensor or t.is_meta or t.dtype not in FLOATS or t.layout != torch.strided:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.compiler.is_compiling():
        return False
    # What is expanded, and what is small, takes no more memory than bits.
    return (
        t.numel() >= LOOKED_AT and 2 * t.untyped_storage().nbytes() > t.numel() and not (t.is_leaf and t.requires_grad)
    )


def _unpack(kept: _Whole | _Packed | _Undecided) -> Tensor:
    if isinstance(kept, _Undecided):
        kept = kept.decide()
    if isinstance(kept, _Packed):
        return torch.ops.spikeforge.unpack_spikes(*kept)
    if kept.tensor._version != kept.version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor "
            "of "
            f"shape {list(kept.tensor.shape)} is at version {kept.tensor._version}, and was kept at {kept.version}"
        )
    return kept.tensor
