"""Networks drawn by rule: one sparse matrix of all projections between populations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from spikeforge.rules import Law, Rule, constant


@dataclasses.dataclass(frozen=True)
class Projection:
    """Connections from the neurons ``sources``, rows of the matrix, to the neurons ``targets``, its columns.

    Args:
        sources, targets: slices of rows and columns, with both ends and step 1.
        rule: see :mod:`spikeforge.rules`.
        weight, delay: a number, or a law of :mod:`spikeforge.rules`; with the rule ``arrays`` also tensors. Delays are in
            steps, rounded to whole ones.
    """

    sources: slice
    targets: slice
    rule: Rule
    weight: float | Law | Tensor = 1.0
    delay: float | Law | Tensor = 1.0


@dataclasses.dataclass(frozen=True)
class Connectivity:
    """A sparse matrix [rows, cols] as event products take it, with a weight and a delay for each connection.

    Attributes:
        indices: int32 [connections], the columns; within a row in the order of projections.
        indptr: int64 [rows + 1], where rows begin in ``indices``.
        weights: [connections], or [1] where all have the same.
        delays: in steps; the same shapes; uint8, or int32 where one may be above 255.
    """

    indices: Tensor
    indptr: Tensor
    weights: Tensor
    delays: Tensor
    rows: int
    cols: int


def connect(
    rows: int,
    cols: int,
    projections: Sequence[Projection],
    *,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Connectivity:
    """Draws a network: all projections as one matrix.

    The same seed gives the same network for any number of threads and on every device, and a projection that is added
    behind the others leaves those as they are. A law's numbers are drawn in float32.

    Args:
        rows, cols: of the matrix. Column j belongs to neuron j % rows, so that a neuron may have several kinds of synapse.
        projections: see :class:`Projection`.
        dtype: of the weights, float16, bfloat16, float32 or float64; by default torch's.

    Raises:
        ValueError: for what cannot be drawn, e.g. an out-degree above the number of targets without multapses.
    """
    lists: dict[str, list] = {name: [] for name in ("rules", "ranges", "amounts", "choices", "laws", "numbers", "arrays")}
    for i, p in enumerate(projections):
        rule = _rule(f"connect: projection {i}", p.rule)
        lists["rules"].append(rule.rule)
        lists["ranges"] += [*_ends(i, "sources", p.sources), *_ends(i, "targets", p.targets)]
        lists["amounts"].append(float(rule.amount))
        laws = [_law(i, "weight", p.weight), _law(i, "delay", p.delay)]
        lists["choices"] += [rule.autapses, rule.multapses, laws[0].redraw, laws[1].redraw]
        for law in laws:
            lists["laws"].append(law.law)
            lists["numbers"] += [float(law.first), float(law.second), float(law.low), float(law.high)]
        if rule.rule == "arrays":
            given = [value for value, law in zip((p.weight, p.delay), laws) if law.law == "array"]
            lists["arrays"] += [torch.as_tensor(t).to(device or "cpu") for t in (rule.sources, rule.targets, *given)]
    drawn = torch.ops.spikeforge.connect(rows, cols, **lists, seed=seed, dtype=dtype, device=device)
    return Connectivity(*drawn, rows=rows, cols=cols)


def _ends(i: int, name: str, neurons: slice) -> tuple[int, int]:
    if not isinstance(neurons, slice) or neurons.start is None or neurons.stop is None or neurons.step not in (None, 1):
        raise ValueError(f"connect: projection {i}: {name} must be a slice begin:end, but is {neurons!r}")
    return neurons.start, neurons.stop


def _rule(where: str, rule: Rule) -> Rule:
    if isinstance(rule, Rule):
        return rule
    raise TypeError(f"{where}: rule must be one of spikeforge.rules, such as rules.all_to_all(), but is {rule!r}")


def _law(i: int, name: str, value: float | Law | Tensor) -> Law:
    if isinstance(value, Law):
        return value
    if isinstance(value, Tensor) and value.dim() > 0:
        return Law("array", 0.0)
    try:
        return constant(float(value))
    except TypeError:
        raise TypeError(f"connect: projection {i}: {name} must be a number, a law of spikeforge.rules or a tensor, but is {value!r}") from None
