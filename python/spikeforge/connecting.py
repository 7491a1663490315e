"""Draws the projections between populations as one sparse matrix."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spikeforge._drawing import Ends, as_arrays, seed_of
from spikeforge._numbers import check_dtype, check_number, check_seed, check_whole, is_number, tensor_of
from spikeforge.rules import Law, Rule, constant


@dataclasses.dataclass(frozen=True)
class Projection:
    """Connections from the neurons ``sources`` (rows of the matrix) to the neurons ``targets`` (columns).

    Args:
        sources, targets: slices of rows and columns, with both ends and step 1.
        rule: a rule of :mod:`spikeforge.rules`.
        weight, delay: a scalar or a law of :mod:`spikeforge.rules`; with the rule ``arrays`` also a tensor, array or
            list with one value for each connection. Delays are in steps, rounded to whole numbers.
    """

    sources: slice
    targets: slice
    rule: Rule
    weight: float | Law | Tensor | Sequence[float] = 1.0
    delay: float | Law | Tensor | Sequence[float] = 1.0


@dataclasses.dataclass(frozen=True)
class Connectivity:
    """A sparse matrix [rows, cols] for event products, with a weight and a delay for each connection.

    Attributes:
        indices: int32 [connections], the columns; within a row in the order of projections.
        indptr: int64 [rows + 1], the offsets of rows in ``indices``.
        weights: [connections], or [1] if all are the same.
        delays: in steps, of the same shapes; uint8, or int32 if one may be above 255.
    """

    indices: Tensor
    indptr: Tensor
    weights: Tensor
    delays: Tensor
    rows: int
    cols: int


def connect(
    rows: int, cols: int, projections: Sequence[Projection], *, seed: int = 0, dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Connectivity:  # fmt: skip
    """Draws a network: all projections as one matrix.

    The same seed draws the same network for any number of threads and on every device, and a projection appended to the
    list does not change the others. Values of laws are drawn in float32.

    Args:
        rows, cols: the shape of the matrix. Column j belongs to neuron j % rows, so that a neuron may have several
            kinds of synapse.
        projections: the projections.
        dtype: the type of the weights, float16, bfloat16, float32 or float64; by default torch's default dtype.

    Raises:
        ValueError: if a projection cannot be drawn, e.g. an out-degree above the number of targets without multapses.
    """
    lists: dict[str, list] = {
        name: [] for name in ("rules", "ranges", "amounts", "choices", "laws", "numbers", "arrays")
    }
    rows, cols = check_whole("connect: rows", rows), check_whole("connect: cols", cols)
    seed, dtype = check_seed("connect: seed", seed), check_dtype("connect: dtype", dtype)
    for i, p in enumerate(projections):
        if not isinstance(p, Projection):
            raise TypeError(f"connect: projection {i} must be a spikeforge.Projection, but is {p!r:.60}")
        where, ranges = f"connect: projection {i}", (*_ends(i, "sources", p.sources), *_ends(i, "targets", p.targets))

        def ends(where=where, ranges=ranges, i=i) -> Ends:
            sources, targets = (torch.arange(*each, device="cpu") for each in (ranges[:2], ranges[2:]))
            return Ends(where, sources, targets % max(rows, 1), seed_of(seed, i), device or "cpu")

        drawn = Drawn.of(where, p.rule, p.weight, p.delay, device or "cpu", ends)
        lists["rules"].append(drawn.rule.rule)
        lists["ranges"] += ranges
        lists["amounts"].append(drawn.amount)
        for name in ("choices", "laws", "numbers", "arrays"):
            lists[name] += getattr(drawn, name)
    indices, indptr, weights, delays = torch.ops.spikeforge.connect(
        rows, cols, **lists, seed=seed, dtype=dtype, device=device
    )
    return Connectivity(indices, indptr, weights, delays, rows, cols)


def _ends(i: int, name: str, neurons: slice) -> tuple[int, int]:
    if not isinstance(neurons, slice) or neurons.start is None or neurons.stop is None or neurons.step not in (None, 1):
        raise ValueError(f"connect: projection {i}: {name} must be a slice begin:end, but is {neurons!r}")
    where = f"connect: projection {i}: the ends of {name}"
    return check_whole(where, neurons.start), check_whole(where, neurons.stop)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A projection as arguments of the operators: scalars, and tensors with one value for each connection."""

    rule: Rule
    amount: float
    choices: list[bool]
    weight: Law
    delay: Law
    numbers: list[float]
    arrays: list[Tensor]

    @classmethod
    def of(
        cls, where: str, rule: Any, weight: Any, delay: Any, device: torch.device | str, ends: Callable[[], Ends],
        are_parts: bool = False,
    ) -> Drawn:  # fmt: skip
        """Checks the arguments of a projection, and draws rules that the operators do not have, or of parts.

        Raises ValueError and TypeError with a message that begins with ``where``."""
        if not isinstance(rule, Rule):
            raise TypeError(
                f"{where}: rule must be one of spikeforge.rules, such as rules.all_to_all(), but is {rule!r}"
            )
        if are_parts or rule.draw is not None:
            rule, weight, delay = as_arrays(rule, weight, delay, ends())
        arrays = [t for t in (rule.sources, rule.targets) if t is not None]
        laws = [
            value if isinstance(value, Law) else _law(f"{where}: {name}", value, arrays)
            for name, value in (("weight", weight), ("delay", delay))
        ]
        numbers = [
            check_number(f"{where}: the numbers of {name}'s law", number)
            for name, law in zip(("weight", "delay"), laws)
            for number in (law.first, law.second, law.low, law.high)
        ]
        amount = check_number(f"{where}: the number of {rule.rule}", rule.amount)
        choices = [bool(choice) for choice in (rule.autapses, rule.multapses, laws[0].redraw, laws[1].redraw)]
        return cls(
            rule, amount, choices, laws[0], laws[1], numbers,
            [t.to(device) for t in arrays] if rule.rule == "arrays" else [],
        )  # fmt: skip

    @property
    def laws(self) -> list[str]:
        return [self.weight.law, self.delay.law]


def _law(what: str, value: Any, arrays: list[Tensor]) -> Law:
    """Converts a scalar or a law to a law; appends values of each connection to the arrays."""
    numbers = value if is_number(value) else tensor_of(what, value)
    if is_number(numbers) or numbers.dim() == 0:
        return constant(check_number(what, numbers))
    arrays.append(numbers)
    return Law("array", 0.0)
