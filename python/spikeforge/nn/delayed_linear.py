"""Layers whose delays are learned, and the linear one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from spikeforge._numbers import is_number, whole
from spikeforge.nn import samples
from spikeforge.nn.containers import Sequential, TimeDistributed
from spikeforge.nn.delay import Delay
from spikeforge.nn.errors import ERRORS, first_line
from spikeforge.nn.stateful import State, StatefulModule, States, shape_of

if TYPE_CHECKING:
    from typing import Self

OPERATOR = torch.ops.spikeforge.delayed_linear.default
LONGEST = 4096  # the operator's limit
FORMS = ("linear", "triangle", "gauss")
# The smallest width of a Gaussian: it is within one step, and squares of much smaller widths underflow in float32.
NARROWEST = 1e-9


class DelayedLayer(StatefulModule):
    """Base class of layers with learned delays. State: x, the last ``max_delay`` inputs."""

    state_names = ("x",)
    takes_samples, takes_start = True, False
    weight: nn.Parameter
    delay: nn.Parameter

    def __init__(self, max_delay: int, interpolation: str, width: float, stateful: bool, persistent_state: bool):
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        self.max_delay = self._whole("max_delay", max_delay, 0, LONGEST)
        self._check("interpolation", interpolation, FORMS)
        if not is_number(width) or not 0 < width < math.inf:
            raise ValueError(f"{self._kind()}: width must be above 0, but is {width!r}")
        self.interpolation, self.width = interpolation, width

    def _kind(self) -> str:
        return type(self).__name__

    def _check(self, name: str, value: str, legal: tuple[str, ...]) -> None:
        if value not in legal:
            raise ValueError(f"{self._kind()}: {name} must be {' or '.join(map(repr, legal))}, but is {value!r}")

    def _whole(self, name: str, value: int, least: int, most: int | None = None) -> int:
        number = whole(value)
        if number is None or number < least or (most is not None and number > most):
            bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
            raise ValueError(f"{self._kind()}: {name} must be a whole number {bounds}, but is {value!r}")
        return number

    def _narrowed(self) -> float:
        """Returns the current width, which training may change."""
        if not 0 < self.width < math.inf:
            raise ValueError(f"width must be above 0, but is {self.width!r}")
        return max(self.width, NARROWEST)

    def _first_delays(self, shape: tuple[int, ...], delay: float | Tensor | None) -> nn.Parameter:
        if delay is None:
            delay = self.max_delay * torch.rand(shape)
        elif not is_number(delay) and not isinstance(delay, Tensor):
            raise TypeError(f"{self._kind()}: delay must be a number or a tensor, but is {type(delay).__name__}")
        elif not (math.isfinite(delay) if is_number(delay) else delay.is_meta or torch.isfinite(delay).all()):
            raise ValueError(f"{self._kind()}: delay must be finite, but is nan or infinite")
        elif isinstance(delay, Tensor) and (delay.is_complex() or delay.shape not in (shape, ())):
            raise ValueError(
                f"{self._kind()}: delay must be real and have shape {list(shape)}, but is {delay.dtype} of {shape_of(delay)}"
            )
        return nn.Parameter(torch.zeros(shape) + torch.as_tensor(delay).detach())

    def forward(self, x: Tensor, state: States | EllipsisType = ..., *, store_states: bool = False):
        """Maps x of all steps, time first, to y."""
        return self._forward((x,), state, store_states)

    def _computed(self, x: Tensor, past: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        x, past, given = inputs[0], state.get("x"), self._memory.samples
        if given:
            samples.refuse(self, store, "store_states is set, and the layer has delays")
            ended = samples.ended(self._title(), given["lengths"], x, least_dims=3)
            x = x.masked_fill(ended, 0)  # these values reach no step of their sample, and may be NaN
        try:
            y = self._computed(x, past)
        except ERRORS as error:
            raise type(error)(f"{self._title()}: {first_line(error)}") from None
        if given:
            y = y.masked_fill(ended.view(*ended.shape[:2], *[1] * (y.dim() - 2)), 0)
            return y, {"x": samples.leaving(x, self.max_delay, past, **given)}
        steps = x.shape[0]  # len(x) would be a constant of the trace
        if not self.max_delay:
            return y, {"x": x.new_zeros((steps, 0, *x.shape[1:]) if store else (0, *x.shape[1:]))}
        if not store and not torch.compiler.is_compiling() and steps >= self.max_delay:
            return y, {"x": x[steps - self.max_delay :].clone()}
        both = torch.cat((x.new_zeros(self.max_delay, *x.shape[1:]) if past is None else past, x))
        if store:
            return y, {"x": both.unfold(0, self.max_delay, 1)[1:].movedim(-1, 1).clone()}
        return y, {"x": both[steps:].clone()}

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (self._computed(inputs[0], None),)

    @torch.no_grad()
    def clamp_(self) -> Self:
        """Clamps the delays to 0 to max_delay, which an optimiser's step may have left."""
        self.delay.clamp_(0, self.max_delay)
        return self

    def get_extra_state(self) -> Tensor:
        """``[max_delay, place of interpolation in FORMS, width]``: averages of state_dicts accept only tensors."""
        return torch.tensor(
            [self.max_delay, FORMS.index(self.interpolation), self.width], dtype=torch.float64, device="cpu"
        )

    def set_extra_state(self, state: Tensor | Mapping[str, object]) -> None:
        """Restores the interpolation and the width, also from the dict of older checkpoints."""
        if isinstance(state, Tensor) and state.shape == (3,) and state.isfinite().all():
            max_delay, form, width = state.tolist()
            state = {
                "max_delay": round(max_delay),
                "interpolation": dict(enumerate(FORMS)).get(round(form)),
                "width": width,
            }
        if (
            not isinstance(state, Mapping)
            or state.get("interpolation") not in FORMS
            or not is_number(state.get("width"))
            or not 0 < state["width"] < math.inf
        ):
            raise ValueError(
                f"{self._kind()}: the loaded state is not that of a layer with delays: its form is {state!r}"
            )
        if state.get("max_delay", self.max_delay) != self.max_delay:
            raise ValueError(
                f"{self._kind()}: the loaded state has max_delay={state['max_delay']}, but the layer has "
                f"{self.max_delay}"
            )
        self.interpolation, self.width = str(state["interpolation"]), float(state["width"])

    @torch.no_grad()
    def round_(self) -> Self:
        """Rounds the delays to whole steps, as in deployment, and sets the interpolation to "linear"."""
        self.delay.copy_(self.delay.clamp(0, self.max_delay).round())
        self.interpolation = "linear"
        return self

    def _form(self) -> str:
        return self.interpolation if self.interpolation == "linear" else f"{self.interpolation}, width={self.width}"


class DelayedLinear(DelayedLayer):
    """A linear layer with a learned delay for each synapse or each input:
    ``y[t] = Σ_i weight[o, i] x[t - delay[o, i], i] + bias[o]``. State: x, the last inputs.

    Args:
        in_features, out_features: sizes of x ``[T, *batch, in]`` and y ``[T, *batch, out]``.
        max_delay: the longest delay, in steps.
        per: "synapse" for delays ``[out, in]``; or "input" for ``[in]``, which needs only one product.
        delay: the initial delays, a number or a tensor of that shape; by default uniform from 0 to max_delay.
        interpolation: how a fractional delay is spread over steps: "linear" over the two nearest steps, "triangle" and
            "gauss" over ``width`` steps around it. A wide form has gradients from distant steps; reduce
            ``layer.width`` during training.
        width: of triangle and gauss, in steps; values below 1e-9 have the effect of 1e-9.
        bias: add a learned bias.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.

    Delays outside of 0 to max_delay have the effect of the nearer bound, and no gradient: call :meth:`clamp_` after the
    optimiser's step. The weights are initialised as in ``nn.Linear``. A ``state_dict`` includes ``max_delay``,
    ``interpolation`` and ``width``; loading one with another ``max_delay`` raises ValueError.
    Source: Hammouamri, Khalfaoui-Hassani and Masquelier, ICLR 2024.
    """

    def __init__(
        self, in_features: int, out_features: int, max_delay: int, *, per: str = "synapse", delay: float | Tensor | None = None,
        interpolation: str = "linear", width: float = 0.5, bias: bool = True, stateful: bool = False,
        persistent_state: bool = False,
    ):  # fmt: skip
        super().__init__(max_delay, interpolation, width, stateful, persistent_state)
        self._check("per", per, ("synapse", "input"))
        self.in_features, self.out_features = (
            self._whole("in_features", in_features, 0),
            self._whole("out_features", out_features, 0),
        )
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        draw = lambda *shape: nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.weight = draw(self.out_features, self.in_features)
        self.bias = draw(self.out_features) if bias else None
        shape = (self.in_features,) if per == "input" else (self.out_features, self.in_features)
        self.delay = self._first_delays(shape, delay)

    def _computed(self, x: Tensor, past: Tensor | None) -> Tensor:
        return OPERATOR(x, self.weight, self.delay, self.bias, max_delay=self.max_delay, interpolation=self.interpolation,
                        width=self._narrowed(), past=past)  # fmt: skip

    @torch.no_grad()
    def deployed(self) -> Sequential:
        """Returns a :class:`Delay` and an ``nn.Linear`` that compute the same with rounded delays, for NIR and
        TorchScript.

        Raises:
            ValueError: if the layer has a delay for each synapse, not one for each input.
        """
        if self.delay.dim() != 1:
            raise ValueError(
                "DelayedLinear: a delay for each synapse cannot become a Delay before a Linear; use per='input'"
            )
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None).to(self.weight)
        linear.weight.copy_(self.weight)
        if self.bias is not None:
            linear.bias.copy_(self.bias)
        steps = self.delay.clamp(0, self.max_delay).round().long()
        return Sequential(Delay(steps), TimeDistributed(linear))

    def extra_repr(self) -> str:
        per = "input" if self.delay.dim() == 1 else "synapse"
        return f"{self.in_features}, {self.out_features}, max_delay={self.max_delay}, per={per}, interpolation={self._form()}"
