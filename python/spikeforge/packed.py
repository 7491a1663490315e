"""Spikes as bits between the forward and the backward pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from spikeforge._numbers import FLOATS

LOOKED_AT = 1024  # numbers, at first; a smaller tensor is not worth a call
pack_spikes = torch.ops.spikeforge.pack_spikes.default


class packed_activations(saved_tensors_hooks):  # noqa: N801, it is used as a function
    """Within ``with packed_activations():`` what layers keep for their backward pass is kept as bits where it is spikes:
    one bit for each number where all are 0 or 1, four where they are whole and at most 15, as after a residual sum.
    The rest is kept as it is. Gradients are the same as without (-0.0 comes back as 0.0).

    >>> with spikeforge.packed_activations():
    ...     loss = criterion(net(x), target)
    >>> loss.backward()

    Every tensor that is kept is looked at: some of its first numbers, and all of it where those are spikes, for which it
    waits for a GPU. ``torch.ops.spikeforge.linear`` and ``convolution`` take it for granted that they get spikes, and
    wait for nothing.
    """

    def __init__(self) -> None:
        super().__init__(_pack, _unpack)


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


def _pack(t: Tensor) -> _Whole | _Packed:
    whole = _Whole(t.detach(), t._version)
    if not _may_be_spikes(t):
        return whole
    dense = whole.tensor
    if torch.empty_like(dense, device="meta").stride() != dense.stride():  # holes, or an expanded dimension
        dense = dense.contiguous()
    if not pack_spikes(dense.as_strided((LOOKED_AT,), (1,)), 4)[1]:
        return whole
    for bits in (1, 4):
        packed, valid = pack_spikes(dense, bits)
        if valid:
            return _Packed(packed, valid, dense.shape, dense.stride(), dense.dtype, bits)
    return whole


def _may_be_spikes(t: Tensor) -> bool:
    if type(t) is not Tensor or t.is_meta or t.dtype not in FLOATS or t.layout != torch.strided:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.compiler.is_compiling():
        return False
    # What is expanded, and what is small, takes no more memory than bits.
    return t.numel() >= LOOKED_AT and 2 * t.untyped_storage().nbytes() > t.numel() and not (t.is_leaf and t.requires_grad)


def _unpack(kept: _Whole | _Packed) -> Tensor:
    if isinstance(kept, _Packed):
        return torch.ops.spikeforge.unpack_spikes(*kept)
    if kept.tensor._version != kept.version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
            f"shape {list(kept.tensor.shape)} is at version {kept.tensor._version}, and was kept at {kept.version}"
        )
    return kept.tensor
