"""Spikes as bits between the forward and the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LEAST = 1024  # numbers, from which on bits are worth a call


class packed_activations(saved_tensors_hooks):  # noqa: N801, it is used as a function
    """Within ``with packed_activations():`` what layers keep for their backward pass is kept as bits where it is spikes:
    one bit for each number where all are 0 or 1, four where they are whole and at most 15, as after a residual sum.
    The rest is kept as it is. Gradients have the same bits as without.

    >>> with spikeforge.packed_activations():
    ...     loss = criterion(net(x), target)
    >>> loss.backward()

    Every tensor that is kept is looked at, which takes a pass over it, and on a GPU waits for its end: for where memory
    is short. ``torch.ops.spikeforge.linear`` and ``convolution`` take it for granted that they get spikes, and wait for
    nothing.
    """

    def __init__(self) -> None:
        super().__init__(_pack, _unpack)


def _pack(t: Tensor) -> Any:
    if t.dtype not in FLOATS or t.layout != torch.strided or t.numel() < LEAST or (t.requires_grad and t.is_leaf):
        return t
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.compiler.is_compiling():
        return t
    dense = t.detach()
    if torch.empty_like(dense, device="meta").stride() != dense.stride():  # holes, or an expanded dimension
        dense = dense.contiguous()
    for bits in (1, 4):
        packed, valid = torch.ops.spikeforge.pack_spikes(dense, bits)
        if valid:
            return packed, valid, dense.shape, dense.stride(), dense.dtype, bits
    return t


def _unpack(kept: Any) -> Tensor:
    return kept if isinstance(kept, Tensor) else torch.ops.spikeforge.unpack_spikes(*kept)
