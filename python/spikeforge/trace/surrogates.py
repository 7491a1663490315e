"""Surrogates of spikes: objects of spikeforge.surrogate, their names, derivatives, and SpikingJelly's surrogates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spikeforge import surrogate as surrogates
from spikeforge._names import SPIKINGJELLY

from . import text_expression
from .printer import number_text

# Autograd functions of SpikingJelly whose names differ from those here.
_SPIKINGJELLY_FUNCTIONS = {"squarewave_fourier_series": "squarewave_fourier", "deterministic_pass": "straight_through"}


@dataclass(frozen=True)
class Rule:
    """The derivative of a spike."""

    gradient: Callable[[Tensor], Any]  # the derivative of tensors
    text: str | None = None  # the name in neuron text, if any
    of_values: Callable[[Any], Any] = lambda u: u  # the derivative of values, if it has no name


def named(name: str, args: tuple[float, ...] = ()) -> Rule:
    """Returns the rule of a surrogate of docs/surrogates.md; without arguments, with its defaults."""
    if name == "none":
        return Rule(lambda x: x.detach() * 0, "none")
    if name not in surrogates.SURROGATES:
        raise surrogates.unknown(name, ("none",))
    made = surrogates.SURROGATES[name](*args)
    return Rule(made.gradient, f"{name}({', '.join(map(number_text, made.args))})" if made.args else name)


def _text(name: str, args: tuple[float, ...]) -> str:
    return named(name, args).text or name


def resolve(surrogate: Any) -> Rule:
    """Returns the rule of a surrogate argument. Raises TypeError or ValueError for other arguments."""
    if isinstance(surrogate, Rule):
        return surrogate
    if isinstance(surrogate, str):
        return named(surrogate)
    if isinstance(surrogate, surrogates.Surrogate):
        return named(surrogate.name, surrogate.args)
    if isinstance(surrogate, surrogates.Custom):
        names, text = dict(surrogate.numbers), surrogate.expression
        return Rule(surrogate.gradient, None, lambda u: text_expression.evaluate(text, {**names, "u": u}, _text))
    if isinstance(surrogate, type):
        raise TypeError(f"surrogate: {surrogate.__name__} is a class: write {surrogate.__name__}()")
    library = type(surrogate).__module__.partition(".")[0]
    if library == "spikingjelly":
        return _of_spikingjelly(surrogate)
    if (getattr(surrogate, "__module__", None) or "").partition(".")[0] in ("snntorch", "norse"):
        raise TypeError("surrogate: surrogates of snnTorch and Norse compute the spike: write s = surrogate(u)")
    if callable(surrogate):
        return Rule(surrogate, None, surrogate)
    raise TypeError(
        'surrogate: must be an object of spikeforge.surrogate, a name such as "atan", or a function that '
        f"returns the derivative at u, not {type(surrogate).__name__}"
    )


def _of_spikingjelly(surrogate: Any) -> Rule:
    kind = type(surrogate).__name__
    if kind not in SPIKINGJELLY:
        raise ValueError(f"surrogate: {kind} of SpikingJelly is not supported: call it on the value instead")
    if not surrogate.spiking:
        raise ValueError(f"surrogate: {kind}(spiking=False) returns no spikes: call it on the value instead")
    return named(SPIKINGJELLY[kind][0], tuple(float(x) for x in surrogate._sg_params.values()))


def of_spikingjelly_function(function: type, args: tuple) -> Rule | None:
    """Returns the rule of SpikingJelly's autograd function, if it is that of a known surrogate and args are numbers."""
    name = _SPIKINGJELLY_FUNCTIONS.get(function.__name__, function.__name__)
    is_one = function.__module__ == "spikingjelly.activation_based.surrogate" and name in surrogates.SURROGATES
    return named(name, tuple(map(float, args))) if is_one and all(isinstance(x, (int, float)) for x in args) else None
