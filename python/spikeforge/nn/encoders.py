"""Encodes values between 0 and 1 as spikes: ``[T, *shape]`` to ``[T, *shape]``, each step independently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType

import torch
from torch import Tensor

from spikeforge._numbers import state_type
from spikeforge.nn.stateful import State, StatefulModule, States


class Encoder(StatefulModule):
    """Base class of encoders."""

    def encode(self, x: Tensor, steps: int) -> Tensor:
        """Encodes the values ``[*shape]`` in each of `steps` steps; returns spikes ``[steps, *shape]``."""
        _check_steps(self._title(), steps, fewest=0)
        return self(x.unsqueeze(0).expand(steps, *x.shape))

    def forward(self, x: Tensor, state: States | EllipsisType = ..., *, store_states: bool = False):
        """Maps ``[T, *shape]`` to ``[T, *shape]``."""
        return self._forward((x,), state, store_states)

    def _values(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return x
        raise TypeError(
            f"{self._title()}: x must be floating-point values between 0 and 1, but is {x.dtype}; pass x.float(), or "
            "x / 255 for bytes"
        )


class Poisson(Encoder):
    """Draws a spike with the probability of the value, independently in each step.

    Args:
        generator: the random generator; by default torch's generator of the device.
    """

    def __init__(self, generator: torch.Generator | None = None):
        super().__init__()
        self.generator = generator

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        x = self._values(inputs[0])
        # Drawn step by step, so that a sequence in pieces draws the same numbers. Half types have too few values.
        dtype = state_type(x.dtype)
        drawn = [
            torch.rand(x.shape[1:], dtype=dtype, device=x.device, generator=self.generator) for _ in range(x.shape[0])
        ]
        return (torch.stack(drawn) < x).to(x.dtype) if drawn else x.clone(), {}


class Latency(Encoder):
    """Emits one spike per value, earlier for a larger value: in step round((steps - 1) (1 - value)), counted from 0.
    State: t, int64.

    Args:
        steps: spikes are in the first `steps` steps.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.
    """

    state_names = ("t",)

    def __init__(self, steps: int, *, stateful: bool = False, persistent_state: bool = False):
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        _check_steps("Latency", steps, fewest=1)
        self.steps = steps

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        x = self._values(inputs[0])
        first = state.get("t")
        if first is None:
            first = torch.zeros((), dtype=torch.int64, device=x.device)
        now = first + torch.arange(x.shape[0], device=x.device)
        spikes = torch.round((1 - x.to(state_type(x.dtype))) * (self.steps - 1)).to(torch.int64) == now.view(
            -1, *(1,) * (x.dim() - 1)
        )
        return spikes.to(x.dtype), {"t": now + 1 if store else first + x.shape[0]}

    def extra_repr(self) -> str:
        return f"steps={self.steps}"


class Repeat(Encoder):
    """Returns the values unchanged: a constant current."""

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        return inputs[0], {}


def _check_steps(title: str, steps: int, *, fewest: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, (int, torch.SymInt)):
        raise TypeError(f"{title}: steps must be a whole number, but is {steps!r}")
    if steps < fewest:
        raise ValueError(f"{title}: steps must be at least {fewest}, but is {steps}")
