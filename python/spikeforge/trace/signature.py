"""Classifies the arguments of a Python function: inputs, states, parameters and constants of a neuron."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import graph


@dataclass
class Signature:
    name: str
    inputs: tuple[str, ...]
    states: tuple[str, ...]
    params: tuple[str, ...]
    defaults: dict[str, float | torch.Tensor] = field(default_factory=dict)  # of parameters
    constants: dict[str, Any] = field(default_factory=dict)  # Python values, the same in every call


def is_number(x: Any) -> bool:
    return isinstance(x, numbers.Real) and not isinstance(x, bool)


def name_of(function: Callable, given: str | None) -> str:
    if given is not None:
        check_name(given, "the name of a neuron", given)
        return given
    plain = getattr(function, "func", function)  # of a functools.partial
    name = getattr(plain, "__name__", type(plain).__name__)
    return name if graph.is_name(name) else "lambda_neuron"


def check_name(neuron: str, what: str, name: str) -> None:
    graph.check_name(neuron, what, name, "neuron text")
    if name == "store_states":
        raise ValueError(f"{neuron}: {what} cannot be called store_states, which is an argument of every call")


def read(function: Callable, states: Sequence[str], constants: Mapping[str, Any], name: str) -> Signature:
    """Reads the signature of f(inputs..., states..., *, params...)."""
    positional: list[str] = []
    result = Signature(name, (), (), (), constants=dict(constants))
    params: list[str] = []
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise TypeError(f"{name}: the arguments of a neuron must be named one by one, but one is {p}")
        if p.kind is not p.KEYWORD_ONLY:
            if p.default is not p.empty:
                raise TypeError(
                    f"{name}: {p.name} has a default, so it is neither an input nor a state: put it after the star, "
                    f"*, {p}"
                )
            positional.append(p.name)
        elif p.name in constants:
            continue
        elif p.default is p.empty or is_number(p.default) or isinstance(p.default, torch.Tensor):
            params.append(p.name)
            if p.default is not p.empty:
                result.defaults[p.name] = p.default
        else:
            result.constants[p.name] = p.default
    result.params = tuple(params)
    result.inputs = _inputs(name, positional, states)
    result.states = tuple(positional[len(result.inputs) :])
    unknown = [key for key in constants if key not in inspect.signature(function).parameters]
    if unknown:
        raise TypeError(f"{name}: constants has {unknown[0]}, which is not an argument of the function")
    _check(result)
    return result


def _inputs(name: str, positional: Sequence[str], states: Sequence[str]) -> tuple[str, ...]:
    count = len(positional) - len(states)
    for state in states:
        if state not in positional:
            raise TypeError(
                f"{name}: states has {state!r}, but the function has no positional argument of this name; "
                f"it has {', '.join(positional) or 'none'}"
            )
    misplaced = [argument for argument in positional[count:] if argument not in states]
    if misplaced:
        raise TypeError(
            f"{name}: {misplaced[0]} comes after a state, and is not named in states: inputs come first, "
            "then states, parameters after a star"
        )
    return tuple(positional[:count])


def _check(signature: Signature) -> None:
    if not signature.inputs:
        raise TypeError(f"{signature.name}: a neuron has at least one input: the number of steps is that of its inputs")
    kinds = ("an input", signature.inputs), ("a state", signature.states), ("a parameter", signature.params)
    for what, names in kinds:
        for argument in names:
            check_name(signature.name, what, argument)
