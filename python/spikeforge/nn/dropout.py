"""Dropout with one mask for all steps of a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType

import torch
from torch import Tensor

from spikeforge._numbers import is_number
from spikeforge.nn import samples
from spikeforge.nn.stateful import State, StatefulModule, States, shape_of


class Dropout(StatefulModule):
    """Dropout that drops the same neurons in all steps: x ``[T, B, ...]`` times a mask ``[B, ...]``, divided by 1 - p.

    A neuron integrates its input over steps, so masks that differ from step to step (``nn.Dropout``) average out.
    State: mask, bool, drawn when a sequence begins; steps and pieces with a passed or kept state use the same one. In
    evaluation the result is x, and states do not change.

    Args:
        p: the probability that a neuron is dropped, from 0 to 1.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.

    With `lengths`, outputs after a sample's end are zeros; `start` draws no other mask. Under ``torch.vmap``, pass
    ``randomness="different"`` or ``"same"``.
    Source: Gal and Ghahramani, NeurIPS 2016 (recurrent networks); Lee et al., Front. Neurosci. 14, 2020 (spikes).
    """

    state_names = ("mask",)
    takes_samples = True

    def __init__(self, p: float = 0.5, *, stateful: bool = False, persistent_state: bool = False):
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        if not is_number(p) or not 0 <= p <= 1:
            raise ValueError(f"Dropout: p must be a number from 0 to 1, but is {p!r}")
        self.p = p

    def forward(self, x: Tensor, state: States | EllipsisType = ..., *, store_states: bool = False):
        """Maps ``[T, B, ...]`` to ``[T, B, ...]``."""
        return self._forward((x,), state, store_states)

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        x, mask, given = inputs[0], state.get("mask"), self._memory.samples or {}
        if not x.is_floating_point() or x.dim() < 1:
            raise TypeError(f"{self._title()}: x must be floating point, [T, B, ...], but is {x.dtype} {shape_of(x)}")
        if "lengths" in given:
            x = x.masked_fill(samples.ended(self._title(), given["lengths"], x), 0)
        if not self.training:
            return x, dict(state)
        if mask is None:
            mask = torch.rand(x.shape[1:], device=x.device) >= self.p
        elif mask.shape != x.shape[1:]:
            raise ValueError(
                f"{self._title()}: mask must have shape {shape_of(x[0])}, a step of x, but has {shape_of(mask)}; pass "
                "None, or call spikeforge.nn.reset_(net), to draw another"
            )
        y = x * (mask / (1 - self.p) if self.p < 1 else mask).to(x.dtype)
        return y, {"mask": mask.expand(x.shape) if store else mask}

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (inputs[0],)

    def extra_repr(self) -> str:
        return f"p={self.p}"
