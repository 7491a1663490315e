"""Rules that draw the connections of projections, and laws that draw their weights and delays.

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
    """A distribution. Values outside [low, high] are clipped, or drawn again if ``redraw``."""

    law: str
    first: float
    second: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    redraw: bool = False


def constant(value: float) -> Law:
    """Returns the law with one value for all connections."""
    return Law("constant", value)


def uniform(low: float, high: float) -> Law:
    """Returns the uniform distribution from low to high."""
    return Law("uniform", low, high)


def normal(
    mean: float, deviation: float, *, low: float = -math.inf, high: float = math.inf, redraw: bool = False
) -> Law:
    """Returns the normal distribution of this mean and standard deviation (before bounds apply)."""
    return Law("normal", mean, deviation, low, high, redraw)


def lognormal(
    mean: float, deviation: float, *, low: float = -math.inf, high: float = math.inf, redraw: bool = False
) -> Law:
    """Returns the distribution whose natural logarithm is normal, with this mean and standard deviation."""
    return Law("lognormal", mean, deviation, low, high, redraw)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule that chooses sources and targets of connections."""

    rule: str
    amount: float = 0.0
    autapses: bool = True
    multapses: bool = True
    sources: Tensor | None = None
    targets: Tensor | None = None


def all_to_all(*, autapses: bool = True) -> Rule:
    """Connects every source with every target; a neuron with itself only if ``autapses``."""
    return Rule("all_to_all", autapses=autapses)


def one_to_one() -> Rule:
    """Connects source k with target k; both populations have the same size."""
    return Rule("one_to_one")


def fixed_probability(probability: float, *, autapses: bool = True) -> Rule:
    """Connects every pair of source and target independently with this probability."""
    return Rule("fixed_probability", probability, autapses)


def fixed_out_degree(degree: int, *, autapses: bool = True, multapses: bool = True) -> Rule:
    """Connects every source with ``degree`` random targets, distinct unless ``multapses``."""
    return Rule("fixed_out_degree", degree, autapses, multapses)


def fixed_in_degree(degree: int, *, autapses: bool = True, multapses: bool = True) -> Rule:
    """Connects every target with ``degree`` random sources, distinct unless ``multapses``."""
    return Rule("fixed_in_degree", degree, autapses, multapses)


def fixed_total(connections: int, *, autapses: bool = True) -> Rule:
    """Draws this number of connections, each with an independent random source and target."""
    return Rule("fixed_total", connections, autapses)


def arrays(sources: Tensor | Sequence[int], targets: Tensor | Sequence[int]) -> Rule:
    """Connects ``sources[k]`` with ``targets[k]``.

    Args:
        sources, targets: int32 or int64 indices within the populations, as tensors, arrays or lists of one length.

    With this rule, weight and delay may be tensors, arrays or lists with one value for each connection.
    """
    return Rule("arrays", sources=_indices("sources", sources), targets=_indices("targets", targets))


def _indices(name: str, given: Any) -> Tensor:
    """Converts indices to a tensor. The operator checks the type; an empty list becomes int64."""
    numbers = tensor_of(f"rules.arrays: {name}", given, dtype=None)
    return numbers if numbers.numel() else numbers.long()
