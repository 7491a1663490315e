"""How projections are drawn: rules of who is connected with whom, and laws of weights and delays.

rules.all_to_all()  rules.one_to_one()  rules.fixed_probability(p)  rules.fixed_out_degree(k)
rules.fixed_in_degree(k)  rules.fixed_total(k)  rules.arrays(sources, targets)
rules.constant(x)  rules.uniform(low, high)  rules.normal(mean, deviation)  rules.lognormal(mean, deviation)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from spikeforge._numbers import tensor_of


@dataclasses.dataclass(frozen=True)
class Law:
    """What numbers are drawn from; those out of [low, high] are low or high, or drawn again where ``redraw``."""

    law: str
    first: float
    second: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    redraw: bool = False


def constant(value: float) -> Law:
    """The same number for all."""
    return Law("constant", value)


def uniform(low: float, high: float) -> Law:
    """Any number from low to high, each as likely."""
    return Law("uniform", low, high)


def normal(
    mean: float, deviation: float, *, low: float = -math.inf, high: float = math.inf, redraw: bool = False
) -> Law:
    """Normal, of this mean and standard deviation (before bounds apply)."""
    return Law("normal", mean, deviation, low, high, redraw)


def lognormal(
    mean: float, deviation: float, *, low: float = -math.inf, high: float = math.inf, redraw: bool = False
) -> Law:
    """Numbers whose natural logarithm is normal, of this mean and standard deviation."""
    return Law("lognormal", mean, deviation, low, high, redraw)


@dataclasses.dataclass(frozen=True)
class Rule:
    """Who is connected with whom."""

    rule: str
    amount: float = 0.0
    autapses: bool = True
    multapses: bool = True
    sources: Tensor | None = None
    targets: Tensor | None = None


def all_to_all(*, autapses: bool = True) -> Rule:
    """Every source with every target; with itself where ``autapses``."""
    return Rule("all_to_all", autapses=autapses)


def one_to_one() -> Rule:
    """The first source with the first target, and so on; there are as many of both."""
    return Rule("one_to_one")


def fixed_probability(probability: float, *, autapses: bool = True) -> Rule:
    """Every source with every target with this probability, whatever the others are."""
    return Rule("fixed_probability", probability, autapses)


def fixed_out_degree(degree: int, *, autapses: bool = True, multapses: bool = True) -> Rule:
    """Every source with so many targets, different ones unless ``multapses``."""
    return Rule("fixed_out_degree", degree, autapses, multapses)


def fixed_in_degree(degree: int, *, autapses: bool = True, multapses: bool = True) -> Rule:
    """Every target with so many sources, different ones unless ``multapses``."""
    return Rule("fixed_in_degree", degree, autapses, multapses)


def fixed_total(connections: int, *, autapses: bool = True) -> Rule:
    """So many connections, each from any source to any target, whatever the others are."""
    return Rule("fixed_total", connections, autapses)


def arrays(sources: Tensor | Sequence[int], targets: Tensor | Sequence[int]) -> Rule:
    """From ``sources[k]`` to ``targets[k]``, counted within their populations: tensors, arrays or lists of int32 or int64.

    With this rule weight and delay may be tensors, arrays or lists, one number a connection.
    """
    return Rule("arrays", sources=_indices("sources", sources), targets=_indices("targets", targets))


def _indices(name: str, given: Any) -> Tensor:
    """Indices as a tensor. The operator checks the type; an empty list becomes int64."""
    numbers = tensor_of(f"rules.arrays: {name}", given, dtype=None)
    return numbers if numbers.numel() else numbers.long()
