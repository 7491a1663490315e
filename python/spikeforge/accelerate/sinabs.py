"""The neurons of Sinabs 3.1 as operators: all steps of a sequence [B, T, ...] in one call.

Sinabs's `forward` prepares constants and states, and passes them to a function of `sinabs.layers.functional` that loops
over time. A replaced neuron runs the same `forward` with the functions of :class:`functional` below.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from sinabs import activation, layers
from sinabs.layers import functional as theirs
from sinabs.layers.alif import ALIFSqueeze
from sinabs.layers.reshape import SqueezeMixin
from sinabs.layers.stateful_layer import StatefulLayer
from torch import Tensor

from spikeforge._numbers import is_number, operand
from spikeforge.accelerate.replacing import Replaced, Verdict, ancestor, left, overridden, parameter, reaches, readable
from spikeforge.nn.stateful import first_step_
from spikeforge.nn.text import BUILTIN, OPERATOR, is_compiling

PACKAGE = "sinabs.layers"
NOTES = ("in float16 and bfloat16 a normalised current stays in float32, where Sinabs rounds it to the input's type",)
RECORDS_NOTE = "with record_states=True, ALIF and recurrent neurons of Sinabs run their original code"
NEURONS = (
    layers.LIF, layers.LIFSqueeze, layers.LIFRecurrent, layers.IAF, layers.IAFSqueeze, layers.IAFRecurrent,
    layers.ALIF, ALIFSqueeze, layers.ALIFRecurrent, layers.ExpLeak, layers.ExpLeakSqueeze,
)  # fmt: skip
# A subclass may override whatever `forward` reads, but not `forward` itself.
HARMLESS = {name for neuron in NEURONS for name in dir(neuron)} - {"forward", "squeeze_forward"}
DYNAMICS = ("forward", "squeeze_forward")
Rules = dict[type, Callable[[Any], str]]


# --- the equations ----------------------------------------------------------------------------------------------------


def _gaussian(mu: float, sigma: float) -> str:
    exponent = f"-square(u - threshold - {operand(mu)}) / {operand(2 * sigma**2)}"
    return f"exp({exponent}) / {operand(sigma * math.sqrt(2 * math.pi))}"


def _multi_gaussian(g: Any) -> str:
    sides = (f"{operand(g.h)} * {_gaussian(mu, g.s * g.sigma)}" for mu in (g.sigma, -g.sigma))
    middle = f"{operand(1 + g.h)} * {_gaussian(g.mu, g.sigma)}"
    return f"({middle} - {' - '.join(sides)}) * {operand(g.grad_scale)}"


def _single_exponential(g: Any) -> str:
    width = f"(threshold * {operand(g.grad_width)})"
    return f"{operand(g.grad_scale)} / {width} * exp(-abs(u - threshold) / {width})"


def _periodic_exponential(g: Any) -> str:
    phase = "u / threshold - 0.5"
    above = f"threshold * (2 * ({phase} - floor({phase})) - 1)"
    distance = f"abs(where(u >= threshold, {above}, u - threshold))"
    return f"{operand(g.grad_scale)} * exp(-{distance} / {operand(g.grad_width)})"


# The derivative of a spike at the potential u, and the potential after s spikes at h.
SURROGATES: Rules = {
    activation.Heaviside: lambda g: f"where(u >= threshold - {operand(g.window)}, 1, 0) / threshold",
    activation.Gaussian: lambda g: f"{_gaussian(g.mu, g.sigma)} * {operand(g.grad_scale)}",
    activation.MultiGaussian: _multi_gaussian,
    activation.SingleExponential: _single_exponential,
    activation.PeriodicExponential: _periodic_exponential,
}
RESETS: Rules = {
    activation.MembraneReset: lambda r: f"h * where(s == 0, 1, 0) + {operand(r.reset_value)}",
    activation.MembraneSubtract: lambda r: f"h - s * {operand(r.subtract_value)}",
}
COUNT = "trunc(relu(h) / threshold)"


def _spikes(function: Any) -> str | None:
    """Returns the number of spikes at h; None for a custom function."""
    if function is activation.SingleSpike:
        return "spike(h - threshold, none)"
    if function is activation.MultiSpike:
        return COUNT
    if type(function) is not activation.MaxSpike:
        return None
    most = function.max_num_spikes_per_bin
    return COUNT if most is None else f"minimum({COUNT}, {operand(most)})" if is_number(most) else None


def _by(rules: Rules, function: Any) -> str | None:
    """Returns the text of a surrogate or reset whose constants are scalars; None for a custom one."""
    rule = rules.get(type(function))
    return rule(function) if rule and all(map(is_number, vars(function).values())) else None


def _derivative(function: Any) -> str | None:
    return _by(SURROGATES, function)


def _reset(function: Any) -> str | None:
    if type(function) is activation.MembraneSubtract and function.subtract_value is None:
        return "h - s * threshold"
    return _by(RESETS, function)


PARTS = {"spike_fn": _spikes, "surrogate_grad_fn": _derivative, "reset_fn": _reset}


def _text(given: dict[str, Any], states: Collection[str], constants: Collection[str]) -> str | None:
    """Returns neuron text of one step; None if one of its parts is custom. The names are those of Sinabs."""
    adaptive, name = "b" in states, "exp_leak"
    lines = [
        f"i = {'alpha_syn * (i_syn + x)' if 'i_syn' in states else 'x'}",
        f"j = {'rest * i' if 'rest' in constants else 'i'}",
        "h = alpha_mem * v_mem + j",
    ]
    if given["spike_fn"] is None:
        lines += ["return h", "r = h"]
    else:
        name = "alif" if adaptive else "lif"
        spikes, derivative, reset = (text(given[part]) for part, text in PARTS.items())
        if spikes is None or derivative is None or reset is None:
            return None
        lines += [
            f"threshold = {'b0 + adapt_scale * b' if adaptive else 'spike_threshold'}",
            "u = detach(h)",  # Sinabs does not differentiate a surrogate by the potential
            f"s = custom_gradient({spikes}, h, {derivative})",
            "return s",
            f"r = {reset}",
        ]
    lines += [f"v_mem' = {'relu(r - min_v_mem) + min_v_mem' if 'min_v_mem' in constants else 'r'}"]
    lines += [f"i_syn' = {'j' if adaptive else 'i'}"] if "i_syn" in states else []
    lines += ["b' = alpha_adapt * b + rest_adapt * s"] if adaptive else []
    return f"neuron {name}(x; {', '.join(states)}; {', '.join(constants)}) {{\n  " + "\n  ".join(lines) + "\n}\n"


# --- the operator -----------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """A call of one of Sinabs's functions as calls of the operator."""

    text: str
    states: dict[str, Tensor]
    parameters: list[Tensor]

    def run(self, x: Tensor, states: Iterable[Tensor], store: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Returns the outputs of x [T, B, ...], and the states after the last step, or with `store` after each."""
        run = OPERATOR if is_compiling() else BUILTIN
        (outputs,), after = run(self.text, [x.float()], list(states), self.parameters, store_states=store)
        return outputs, after


def _plan(given: dict[str, Any]) -> Plan | None:
    """Returns the plan of a call; None if the results would not have Sinabs's values, shapes and types."""
    x, adaptive, states = given["input_data"], "b0" in given, dict(given["state"])
    if x.layout != torch.strided or not x.shape[1]:
        return None
    if given["record_states"] and (adaptive or "rec_connect" in given):
        return None  # Sinabs records potentials of the next step before its reset
    own = ("alpha_adapt", "b0", "adapt_scale") if adaptive else ("spike_threshold",)
    names = ("alpha_mem", "alpha_syn", "min_v_mem", *own)
    constants = {name: given[name] for name in names if given[name] is not None}
    if given["norm_input"]:
        constants["rest"] = 1 - given["alpha_mem"]
    if adaptive:
        constants["rest_adapt"] = 1 - given["alpha_adapt"]
        del states["spike_threshold"]
        if "i_syn" in states:
            states["i_syn"] = states["i_syn"].clone()  # ALIF keeps this current, not the last, and resets it in place
    used = {"v_mem": True, "i_syn": "alpha_syn" in constants, "b": adaptive}
    if states.keys() != {name for name, is_used in used.items() if is_used}:
        return None
    tensors = [*states.values(), *(value for value in constants.values() if isinstance(value, Tensor) and value.ndim)]
    if functools.reduce(torch.promote_types, [value.dtype for value in tensors], x.dtype) != torch.float32:
        return None
    parameters = [parameter(value, torch.float32, x.device) for value in constants.values()]
    text = _text(given, states, constants)
    if text is None or not all(reaches(value, x.shape[:1] + x.shape[2:]) for value in parameters):
        return None
    return Plan(text, {name: value.float() for name, value in states.items()}, parameters)


def _sequence(plan: Plan, given: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Returns the outputs [B, T, ...], the last states, and the states of all steps if they are recorded."""
    record = given["record_states"]
    outputs, after = plan.run(given["input_data"].transpose(0, 1), plan.states.values(), record)
    recordings = dict(zip(plan.states, map(_batch_first, after))) if record else {}
    last = [value[-1].clone() for value in after] if record else after
    return _batch_first(outputs), dict(zip(plan.states, last)), recordings


def _loop(plan: Plan, given: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Runs one step after the other, with the spikes of each mapped by torch's modules to inputs of the next."""
    sequence = given["input_data"].transpose(0, 1)
    outputs, states = [], list(plan.states.values())
    arriving = torch.zeros(sequence.shape[1:], device=sequence.device)
    for x in sequence:
        spikes, states = plan.run((x + arriving).unsqueeze(0), states)
        outputs.append(first_step_(spikes))
        arriving = given["rec_connect"](outputs[-1]).reshape(x.shape)
    return torch.stack(outputs, 1), dict(zip(plan.states, states)), {}


def _batch_first(y: Tensor) -> Tensor:
    return y.transpose(0, 1).contiguous()


def _instead_of(original: Callable[..., Any], run: Callable[[Plan, dict[str, Any]], Any]) -> Any:
    """Returns a function that runs the operator, or `original` for a call that the operator does not compute."""

    def function(**given):
        plan = _plan(given)
        if plan is None:
            return original(**given)
        outputs, states, recordings = run(plan, given)
        if "b0" in given:
            states["spike_threshold"] = given["b0"] + given["adapt_scale"] * states["b"]
        return outputs, states, recordings

    return staticmethod(function)


class functional:
    """The functions that a neuron's forward calls, with the arguments and results of Sinabs's."""

    lif_forward = _instead_of(theirs.lif_forward, _sequence)
    lif_recurrent = _instead_of(theirs.lif_recurrent, _loop)
    alif_forward = _instead_of(theirs.alif_forward, _sequence)
    alif_recurrent = _instead_of(theirs.alif_recurrent, _loop)


def _mixin(base: type) -> type[Replaced]:
    """Returns the mixin of a class of Sinabs: its forward, which looks `functional` up in this module."""
    plain = next(cls for cls in base.__mro__ if "forward" in vars(cls) and not issubclass(cls, SqueezeMixin))
    inner = FunctionType(plain.forward.__code__, globals())

    def squeezed(self, input_data):
        return self.squeeze_forward(input_data, functools.partial(inner, self))

    forward = squeezed if issubclass(base, SqueezeMixin) else inner
    return type(f"Fused{base.__name__}", (Replaced,), {"__module__": __name__, "forward": forward})


_MIXINS = {base: _mixin(base) for base in NEURONS}
globals().update({mixin.__name__: mixin for mixin in _MIXINS.values()})  # where pickle finds them


# --- which modules are replaced ---------------------------------------------------------------------------------------


def examine(module: torch.nn.Module) -> Verdict | None:
    """Returns the verdict on a module; None if it is not a neuron of Sinabs."""
    if not isinstance(module, StatefulLayer):
        return None
    base = ancestor(module, PACKAGE)
    if base not in _MIXINS:
        return left("it has no fused form here")
    changed = overridden(module, base, HARMLESS, DYNAMICS)
    if changed is not None:
        return left(f"it defines its own {changed}")
    if module.spike_fn is None:
        return Verdict(_MIXINS[base], "neuron text exp_leak")
    for part, text in PARTS.items():
        if text(getattr(module, part)) is None:
            return left(f"its {part} has no fused form here")
    name = "alif" if issubclass(base, layers.ALIF) else "lif"
    spike_fn, reset_fn = (getattr(part, "__name__", type(part).__name__) for part in (module.spike_fn, module.reset_fn))
    surrogate = readable(type(module.surrogate_grad_fn).__name__, vars(module.surrogate_grad_fn).values())
    notes = (RECORDS_NOTE,) if name == "alif" or hasattr(module, "rec_connect") else ()
    return Verdict(_MIXINS[base], f"neuron text {name}, {spike_fn}, {reset_fn}, {surrogate}", notes)
