"""Draws connections in Python: rules on parts of populations, and rules that the operator ``connect`` does not have."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spikeforge._numbers import check_indices, check_number, is_number, tensor_of

Rule = Any  # spikeforge.rules.Rule; that module imports this one

PAIRS_AT_ONCE = 2**20  # pairs of neurons whose distances are in memory at the same time

# Indices of sources and targets among those of the projection, int64 [connections], and weights and delays
# [connections] or None.
Connections = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def seed_of(seed: int, *numbers: int) -> int:
    """Returns a seed that differs for other numbers."""
    words = " ".join(map(str, (seed, *numbers)))
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "little", signed=True)


@dataclasses.dataclass(frozen=True)
class Ends:
    """The neurons that a projection connects: distinct indices of neurons of the network, int64 [n] and [m]."""

    where: str  # the beginning of messages
    sources: Tensor
    targets: Tensor
    seed: int
    device: torch.device | str
    places: tuple[Tensor, Tensor] | None = None  # the indices of both within their populations; by default from 0

    def generator(self) -> torch.Generator:
        return torch.Generator("cpu").manual_seed(self.seed)

    def check_shape(self, what: str, t: Tensor, shape: list[int]) -> None:
        if list(t.shape) != shape:
            raise ValueError(f"{self.where}: {what} must have shape {shape}, but have {list(t.shape)}")

    def without_autapses(self, rule: Rule, sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if rule.autapses:
            return sources, targets
        differ = self.sources[sources] != self.targets[targets]
        return sources[differ], targets[differ]


def as_arrays(rule: Rule, weight: Any, delay: Any, ends: Ends) -> tuple[Rule, Any, Any]:
    """Draws a rule. Returns the connections as the rule ``arrays``, with the weights and delays of the rule, if any."""
    by_default = given if rule.rule == "arrays" else by_operator
    sources, targets, weights, delays = (rule.draw or by_default)(rule, ends)
    for name, own, other in (("weight", weights, weight), ("delay", delays, delay)):
        if own is not None and not (is_number(other) and other == 1):
            raise ValueError(f"{ends.where}: the rule {rule.rule} has {name}s, so that {name} must not be given")
    if ends.places is not None:
        sources, targets = (at.to(t.device)[t] for at, t in zip(ends.places, (sources, targets)))
    drawn = dataclasses.replace(rule, rule="arrays", sources=sources, targets=targets, draw=None)
    return drawn, weight if weights is None else weights, delay if delays is None else delays


def given(rule: Rule, ends: Ends) -> Connections:
    """Returns the connections of the rule ``arrays``."""
    assert rule.sources is not None and rule.targets is not None
    sources = check_indices(f"{ends.where}: sources", rule.sources, len(ends.sources))
    return sources, check_indices(f"{ends.where}: targets", rule.targets, len(ends.targets)), None, None


def by_operator(rule: Rule, ends: Ends) -> Connections:
    """Draws a rule of the operator ``connect``.

    Rows and columns are renumbered to ranges. Without autapses, a source that is also a target has the same number as
    this target: such sources are the last ones, such targets the first ones.
    """
    common = ends.sources[:0] if rule.autapses else ends.sources[torch.isin(ends.sources, ends.targets)]
    is_target, is_source = torch.isin(ends.sources, common), torch.isin(ends.targets, common)
    sources = torch.where(is_target, ends.sources, -1).argsort(stable=True)
    targets = torch.where(is_source, ends.targets, 2**62).argsort(stable=True)
    first = len(sources) - len(common)
    rows = first + len(targets)
    try:
        indices, indptr, *_ = torch.ops.spikeforge.connect(
            rows, rows, [rule.rule], [0, len(sources), first, rows],
            [check_number(f"{ends.where}: the number of {rule.rule}", rule.amount)],
            [bool(rule.autapses), bool(rule.multapses), False, False], ["constant"] * 2,
            [1.0, 0.0, -math.inf, math.inf] * 2, [], seed=ends.seed, device=torch.device(ends.device),
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(str(error).replace("connect: projection 0", ends.where)) from None
    row = torch.repeat_interleave(indptr.diff())
    return sources.to(row.device)[row], targets.to(row.device)[indices.long() - first], None, None


Draw = Callable[[Rule, Ends], Connections]  # the sources, targets, weights and delays that a rule draws


def in_degrees(degrees: Tensor) -> Draw:
    """Draws the targets of each degree as a part."""

    def draw(rule: Rule, ends: Ends) -> Connections:
        ends.check_shape("in-degrees", degrees, [len(ends.targets)])
        drawn = []
        for degree in degrees.unique().tolist():
            targets = (degrees == degree).nonzero().flatten()
            part = dataclasses.replace(ends, targets=ends.targets[targets], seed=seed_of(ends.seed, int(degree)))
            sources, of_part, *_ = by_operator(dataclasses.replace(rule, amount=degree), part)
            drawn.append((sources, targets.to(of_part.device)[of_part]))
        sources, targets = (torch.cat(each) for each in zip(*drawn)) if drawn else (degrees.long(), degrees.long())
        return sources, targets, None, None

    return draw


def matrix(weights: Tensor, delays: Tensor | None) -> Draw:
    """Returns the entries of a matrix; those of ``delays`` at the same places."""

    def entries(t: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the places [entries], row * columns + column in ascending order, and values that are not 0."""
        if t.layout == torch.strided:
            places = t.flatten().nonzero().flatten()
            return places, t.flatten()[places]
        t = t.to_sparse_coo().coalesce()
        kept = t.values() != 0
        return (t.indices()[0] * t.shape[1] + t.indices()[1])[kept], t.values()[kept]

    def draw(rule: Rule, ends: Ends) -> Connections:
        shape = [len(ends.sources), len(ends.targets)]
        for name, t in (("weights", weights), ("delays", delays)):
            if t is not None:
                ends.check_shape(f"{name} of a matrix", t, shape)
        places, values = entries(weights)
        sources, targets = places // max(shape[1], 1), places % max(shape[1], 1)
        own = None if values.dtype == torch.bool else values
        if delays is None:
            return sources, targets, own, None
        if delays.layout == torch.strided:
            return sources, targets, own, delays.to(places.device).flatten()[places]
        at, steps = (t.to(places.device) for t in entries(delays))
        found = torch.searchsorted(at, places).clamp(max=max(len(at) - 1, 0))
        missing = (at[found] != places) if len(at) else torch.ones_like(places, dtype=torch.bool)
        if missing.any():
            where = [sources[missing][0].item(), targets[missing][0].item()]
            raise ValueError(f"{ends.where}: delays of a matrix must have an entry for each weight, but not at {where}")
        return sources, targets, own, steps[found]

    return draw


def pairwise_poisson(rule: Rule, ends: Ends) -> Connections:
    """Draws the number of all connections, and then a pair for each: the numbers of pairs are independent."""
    n, m, generator = len(ends.sources), len(ends.targets), ends.generator()
    mean = check_number(f"{ends.where}: the mean of pairwise_poisson", rule.amount)
    if not 0 <= mean * n * m < 2**53:
        raise ValueError(f"{ends.where}: the mean of pairwise_poisson must be finite and not negative, but is {mean}")
    count = int(torch.poisson(torch.tensor(mean * n * m, dtype=torch.float64, device="cpu"), generator=generator))
    pairs = torch.randint(max(n * m, 1), (count,), generator=generator, device="cpu")
    return *ends.without_autapses(rule, pairs // max(m, 1), pairs % max(m, 1)), None, None


def symmetric(rule: Rule, ends: Ends) -> Connections:
    """Draws the pairs of n neurons: neuron i and neuron i + 1 + k modulo n, for each k below n / 2."""
    n = len(ends.sources)
    if not torch.equal(ends.sources, ends.targets):
        raise ValueError(f"{ends.where}: symmetric needs the same neurons as sources and targets")
    offsets = dataclasses.replace(ends, targets=torch.arange(n // 2, device="cpu"))
    first, offset, *_ = by_operator(dataclasses.replace(rule, rule="fixed_probability"), offsets)
    is_pair = (2 * (offset + 1) < n) | (first < n // 2)  # of an even n, two neurons opposite one another are one pair
    first, offset = first[is_pair], offset[is_pair]
    second = (first + 1 + offset) % max(n, 1)
    return torch.cat([first, second]), torch.cat([second, first]), None, None


def distance(kernel: Callable[[Tensor], Any], sources: Tensor, targets: Tensor, period: Tensor | None) -> Draw:
    """Draws pairs in blocks of sources."""

    def draw(rule: Rule, ends: Ends) -> Connections:
        ends.check_shape("positions of sources", sources, [len(ends.sources), sources.shape[1]])
        ends.check_shape("positions of targets", targets, [len(ends.targets), targets.shape[1]])
        generator, block = ends.generator(), max(1, PAIRS_AT_ONCE // max(len(targets), 1))
        drawn = [torch.zeros(2, 0, dtype=torch.long, device="cpu")]
        for first in range(0, len(sources), block):
            apart = sources[first : first + block, None] - targets
            if period is not None:
                apart -= period * (apart / period).round()
            far = apart.square_().sum(-1).sqrt_()
            probability = tensor_of(f"{ends.where}: the kernel's probabilities", kernel(far))
            if (
                probability.shape not in (far.shape, torch.Size())
                or not ((probability >= 0) & (probability <= 1)).all()
            ):
                raise ValueError(
                    f"{ends.where}: the kernel of distance must return probabilities from 0 to 1 of the shape of its "
                    f"argument, {list(far.shape)}, but returned {probability!r:.100}"
                )
            uniform = torch.rand(far.shape, generator=generator, dtype=torch.float64, device="cpu")
            pairs = (uniform < probability.cpu()).nonzero().t()
            drawn.append(torch.stack([pairs[0] + first, pairs[1]]))
        return *ends.without_autapses(rule, *torch.cat(drawn, 1)), None, None

    return draw
