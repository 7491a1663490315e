"""Initial values of states that a call does not pass."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikeforge._numbers import state_type


@dataclass(frozen=True)
class Initial:
    """The initial value of a state: a number, a parameter, or a function of parameters."""

    number: float = 0.0  # the initial value in the neuron's text
    params: tuple[str, ...] = ()
    function: Callable | None = None

    @property
    def is_number(self) -> bool:
        return not self.params and self.function is None

    def tensor(self, label: str, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Returns the initial value, [*shape], for an input x [T, *shape]."""
        dtype = state_type(x.dtype)
        if self.is_number:
            return torch.full(x.shape[1:], self.number, dtype=dtype, device=x.device)
        given = {name: params[name] for name in self.params}
        value = self.function(**given) if self.function else given[self.params[0]]
        if isinstance(value, (int, float)):
            return torch.full(x.shape[1:], value, dtype=dtype, device=x.device)
        if not isinstance(value, Tensor):
            raise TypeError(f"{label}: its rule must return a tensor or a number, not {type(value).__name__}")
        return value.to(device=x.device, dtype=dtype).expand(x.shape[1:])


class Lost:
    """Replaces a function that could not be pickled."""

    def __init__(self, label: str):
        self.label = label

    def __call__(self, **_: Tensor) -> Tensor:
        raise ValueError(
            f"{self.label}: the function of its initial value was not pickled: import the neuron's module, or pass the "
            "state"
        )


def read_rule(label: str, rule: Any, params: Sequence[str]) -> Initial:
    """Reads the initial value of a state from states={...}."""
    if isinstance(rule, numbers.Real) and not isinstance(rule, bool):
        return Initial(number=float(rule))
    if isinstance(rule, str):
        initial = Initial(params=(rule,))
    elif callable(rule):
        initial = Initial(params=tuple(inspect.signature(rule).parameters), function=rule)
    else:
        raise TypeError(
            f"{label}: the initial value must be a number, a parameter's name or a function of parameters, not a "
            f"{type(rule).__name__}"
        )
    for name in initial.params:
        if name not in params:
            known = ", ".join(params) or "none"
            raise ValueError(f"{label}: the initial value is {name}, which is not a parameter; parameters are {known}")
    return initial
