"""Rules that draw the connections of projections, and laws that draw their weights and delays.

rules.all_to_all()  rules.one_to_one()  rules.fixed_probability(p)  rules.fixed_out_degree(k)
rules.fixed_in_degree(k)  rules.fixed_total(k)  rules.arrays(sources, targets)
rules.matrix(weights)  rules.pairwise_poisson(mean)  rules.symmetric(p)  rules.distance(kernel, sources, targets)
rules.constant(x)  rules.uniform(low, high)  rules.normal(mean, deviation)  rules.lognormal(mean, deviation)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spikeforge import _drawing
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
    draw: _drawing.Draw | None = None  # draws the connections in Python


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


def fixed_in_degree(degree: int | Tensor | Sequence[int], *, autapses: bool = True, multapses: bool = True) -> Rule:
    """Connects every target with ``degree`` random sources, distinct unless ``multapses``.

    Args:
        degree: a whole number, or one for each target, [targets].
    """
    if isinstance(degree, Sequence) or getattr(degree, "ndim", 0) > 0:
        degrees = tensor_of("rules.fixed_in_degree: degrees", degree, dtype=None).cpu()
        return Rule("fixed_in_degree", 0, autapses, multapses, draw=_drawing.in_degrees(degrees))
    return Rule("fixed_in_degree", degree, autapses, multapses)  # type: ignore[arg-type]


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


def matrix(
    weights: Tensor | Sequence[Sequence[float]], delays: Tensor | Sequence[Sequence[float]] | None = None
) -> Rule:
    """Connects source i with target j where ``weights[i, j]`` is not 0.

    Args:
        weights: [sources, targets], a dense or sparse tensor, an array or a list; entries of a sparse tensor at the
            same place are added. A bool matrix has no weights: they are those of the projection.
        delays: [sources, targets], in steps, dense or sparse; by default those of the projection.
    """
    steps = None if delays is None else tensor_of("rules.matrix: delays", delays)
    return Rule("matrix", draw=_drawing.matrix(tensor_of("rules.matrix: weights", weights), steps))


def pairwise_poisson(mean: float, *, autapses: bool = True) -> Rule:
    """Connects every pair of source and target by a Poisson number of connections with this mean."""
    return Rule("pairwise_poisson", mean, autapses, draw=_drawing.pairwise_poisson)


def symmetric(probability: float) -> Rule:
    """Connects every pair of different neurons of one population in both directions, or not at all.

    Each pair is connected independently with this probability. Weights and delays of both directions are drawn
    separately.
    """
    return Rule("symmetric", probability, draw=_drawing.symmetric)


def distance(
    kernel: Callable[[Tensor], Tensor], sources: Tensor, targets: Tensor, *,
    period: float | Sequence[float] | Tensor | None = None, autapses: bool = True,
) -> Rule:  # fmt: skip
    """Connects every pair of source and target independently, with a probability that depends on their distance.

    Args:
        kernel: returns the probability, from 0 to 1, for each element of a tensor of distances, float64 of any shape
            [sources of a block, targets]; it is called several times.
        sources, targets: positions [sources, dimensions] and [targets, dimensions], in the unit of the distance.
        period: the size of a space with periodic boundaries, a scalar or [dimensions]: distances are then those of the
            nearest images. By default space has no boundaries.

    The time is proportional to the number of pairs.

    Raises:
        ValueError: if positions are not matrices with equal numbers of dimensions, or the period is not positive.
    """
    at = [
        tensor_of(f"rules.distance: {name}", t).cpu().double()
        for name, t in (("sources", sources), ("targets", targets))
    ]
    if at[0].dim() != 2 or at[1].dim() != 2 or at[0].shape[1] != at[1].shape[1]:
        raise ValueError(
            "rules.distance: sources and targets must have shapes [sources, dimensions] and [targets, dimensions], but "
            f"have {list(at[0].shape)} and {list(at[1].shape)}"
        )
    size = None if period is None else tensor_of("rules.distance: period", period).cpu().double()
    if size is not None and (size.shape not in (torch.Size(), at[0].shape[1:]) or not (size > 0).all()):
        raise ValueError(
            f"rules.distance: period must be positive, a number or one for each dimension, but is {period!r:.60}"
        )
    return Rule("distance", autapses=autapses, draw=_drawing.distance(kernel, at[0], at[1], size))


def _indices(name: str, given: Any) -> Tensor:
    """Converts indices to a tensor. The operator checks the type; an empty list becomes int64."""
    numbers = tensor_of(f"rules.arrays: {name}", given, dtype=None)
    return numbers if numbers.numel() else numbers.long()
