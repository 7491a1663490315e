"""Stores spikes as bits between the forward and the backward pass."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from spikeforge._numbers import FLOATS

FIRST_CHECKED = 1024  # elements of the first check; packing a smaller tensor costs more than it saves
LAG = 2  # tensors on a GPU whose check is pending
WIDTHS = (1, 4)  # bits per element
RECHECK = 64  # calls after which a place that had no spikes is checked again
pack_spikes = torch.ops.spikeforge.pack_spikes.default


class packed_activations(saved_tensors_hooks):
    """Context in which tensors saved for the backward pass are stored as bits if they are spikes.

    A tensor of zeros and ones is stored with one bit per element, a tensor of whole numbers up to 15, such as a
    residual sum of spikes, with four. Other tensors are saved unchanged. Gradients are the same (-0.0 becomes 0.0).

    >>> with spikeforge.packed_activations():
    ...     loss = criterion(net(x), target)
    >>> loss.backward()

    Every saved tensor is checked, unless the last call saved no spikes at the same place. On a GPU the check is
    asynchronous, and both the tensor and its bits are kept until it completes, for at most two tensors. During the
    capture of a CUDA graph, tensors are saved unchanged; ``torch.ops.spikeforge.linear`` and ``convolution`` assume
    that their inputs are spikes, and can be captured."""

    def __init__(self) -> None:
        self._places = 0
        self._undecided: deque[_Undecided] = deque()
        super().__init__(self._pack, _unpack)

    def __exit__(self, *args: Any) -> None:
        self._undecided.clear()  # the graph holds them
        super().__exit__(*args)

    def _pack(self, t: Tensor) -> _Whole | _Packed | _Undecided:
        whole = _Whole(t.detach(), t._version)
        if not _may_be_spikes(t):
            return whole
        dense = whole.tensor
        if torch.empty_like(dense, device="meta").stride() != dense.stride():  # holes, or an expanded dimension
            dense = dense.contiguous()
        if not _is_checked_later(dense):
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
    """A tensor without its autograd history, and its version."""

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
    if not pack_spikes(dense.as_strided((FIRST_CHECKED,), (1,)), 4)[1]:
        return whole
    for bits in WIDTHS:
        packed, valid = pack_spikes(dense, bits)
        if valid:
            return _Packed(packed, valid, dense.shape, dense.stride(), dense.dtype, bits)
    return whole


class _Place:
    """The n-th tensor of a shape and type in a context, and the widths that fitted it the last time."""

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
        """Returns the widths to try."""
        self.calls += 1
        return WIDTHS if not self.last and self.calls % RECHECK == 0 else self.last


class _Undecided:
    """A tensor and its bits, until the check of whether the bits are exact completes."""

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
            # A width that was not tried may fit the next time.
            self.place.last = (legal[0].bits,) if legal else () if len(tried) == len(WIDTHS) else WIDTHS
        return self.kept


def _is_checked_later(t: Tensor) -> bool:
    return t.is_cuda


def _may_be_spikes(t: Tensor) -> bool:
    if type(t) is not Tensor or t.is_meta or t.dtype not in FLOATS or t.layout != torch.strided:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.compiler.is_compiling():
        return False
    # Expanded and small tensors need no more memory than bits.
    return (
        t.numel() >= FIRST_CHECKED
        and 2 * t.untyped_storage().nbytes() > t.numel()
        and not (t.is_leaf and t.requires_grad)
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
