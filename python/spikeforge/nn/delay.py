"""A delay line: y[t] = x[t - d]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType

import torch
from torch import Tensor

from spikeforge._numbers import whole
from spikeforge.nn import samples
from spikeforge.nn.errors import broadcasts
from spikeforge.nn.stateful import State, StatefulModule, States, shape_of


class Delay(StatefulModule):
    """Delays x by a number of steps, one for all neurons or one for each. State: x, the last inputs, initially zeros.

    Args:
        steps: whole numbers, 0 or more: an int, or an integer tensor that broadcasts to ``[*shape]``.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.

    With `lengths` ``[B]`` and `start` (``net(x, lengths=lengths)``), outputs after a sample's end are zeros, and so are
    outputs whose input was before the sample's last start.

    The state x is ``[longest delay, *shape]``, the oldest first. :func:`~spikeforge.nn.detach_` cuts its history: put
    the delay before a layer, not after it, if the layer's weights learn from pieces of a sequence.
    """

    steps: Tensor
    takes_samples = True

    def __init__(self, steps: int | Tensor, *, stateful: bool = False, persistent_state: bool = False):
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        if not isinstance(steps, Tensor) and whole(steps) is None:
            raise TypeError(f"Delay: steps must be a whole number or an integer tensor, but is {type(steps).__name__}")
        steps = torch.as_tensor(steps, device=None if isinstance(steps, Tensor) else "cpu")
        if steps.is_floating_point() or steps.is_complex() or steps.dtype == torch.bool:
            raise TypeError(
                f"Delay: steps must be whole numbers, but are {str(steps.dtype).removeprefix('torch.')}; pass "
                "steps.long()"
            )
        self.register_buffer("steps", steps.detach().to(torch.int64).clone(), persistent=False)
        self.longest = int(steps.max()) if steps.numel() else 0
        shortest = int(steps.min()) if steps.numel() else 0
        if shortest < 0:
            raise ValueError(f"Delay: steps must be 0 or more, but one is {shortest}")
        self.uniform = shortest == self.longest
        self.state_names = ("x",) if self.longest else ()

    def forward(self, x: Tensor, state: States | EllipsisType = ..., *, store_states: bool = False):
        """Maps ``[T, *shape]`` to ``[T, *shape]``."""
        return self._forward((x,), state, store_states)

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        x = inputs[0]
        if x.dim() - 1 < self.steps.dim():
            raise ValueError(
                f"{self._title()}: steps have shape {shape_of(self.steps)}, but a step of x {shape_of(x)} "
                "has fewer dimensions; x is [T, *shape], time first"
            )
        if not broadcasts(self.steps.shape, x.shape[1:]):
            raise ValueError(
                f"{self._title()}: steps have shape {shape_of(self.steps)}, which does not broadcast against "
                f"{shape_of(x[0])}, a step of x {shape_of(x)}"
            )
        given = self._memory.samples
        if not self.longest:
            return self._within_samples(x, x, **given) if given else x, {}
        past = state.get("x")
        if past is None:
            past = x.new_zeros((self.longest, *x.shape[1:]))
        self._check_past(past, x)
        past = past.to(x.dtype)
        samples.refuse(self, given and store, "store_states is set, and the module is a delay")
        if self.uniform and not store:
            y, rest = samples.later(past, x)
        else:
            both, steps = torch.cat((past, x)), x.shape[0]
            rest = (both.unfold(0, self.longest, 1)[1:].movedim(-1, 1) if store else both[steps:]).clone()
            if self.uniform:
                y = both[:steps].clone()
            else:
                now = torch.arange(self.longest, both.shape[0], device=x.device).view(-1, *(1,) * (x.dim() - 1))
                y = both.gather(0, (now - self.steps).expand(x.shape))
        if given:
            y, rest = self._within_samples(x, y, **given), samples.leaving(x, self.longest, past, **given)
        return y, {"x": rest}

    def _within_samples(
        self, x: Tensor, y: Tensor, lengths: Tensor | None = None, start: Tensor | None = None
    ) -> Tensor:
        """Sets outputs y to zero after the end of a sample, and where their input was before its last start."""
        if lengths is not None:
            y = y.masked_fill(samples.ended(self._title(), lengths, x), 0)
        if start is not None:
            samples.check_start(self._title(), start, x)
            y = y.masked_fill(samples.restarted(samples.beside(start, x), self.steps), 0)
        return y

    def _check_past(self, past: Tensor, x: Tensor) -> None:
        expected = (self.longest, *x.shape[1:])
        if past.shape != expected or past.device != x.device:
            kept = self._memory.keeping and past is (self._memory.states or {}).get("x")
            mend = "call spikeforge.nn.reset_(net) to restart" if kept else "pass None to restart"
            raise ValueError(
                f"{self._title()}: the {'kept ' * kept}state x has shape {shape_of(past)} on {past.device}, but this "
                f"x needs {list(expected)} on {x.device}; {mend}"
            )

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (torch.where(self.steps == 0, inputs[0], 0),)

    def extra_repr(self) -> str:
        return f"steps={self.longest}" if self.uniform else f"steps={shape_of(self.steps)}, up to {self.longest}"
