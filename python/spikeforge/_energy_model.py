"""The energy of counted operations on a digital chip: the model of ``Count.energy``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spikeforge._numbers import check_number

# Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014, figure 1.1.9: 45 nm, 0.9 V.
NUMBERS = {"float32": (0.9e-12, 3.7e-12, 4), "float16": (0.4e-12, 1.1e-12, 2), "int8": (0.03e-12, 0.2e-12, 1)}
MEMORIES = {"8KB": 10e-12, "32KB": 20e-12, "1MB": 100e-12, "DRAM": 1300e-12}  # joules for 8 bytes
ADDRESS = 4  # bytes of an event


@dataclass(frozen=True)
class LayerEnergy:
    """The estimated energy of one layer, in joules: of its arithmetic and of its accesses to memory."""

    name: str
    kind: str
    role: str
    compute: float
    memory: float

    @property
    def total(self) -> float:
        return self.compute + self.memory


@dataclass(frozen=True)
class Energy:
    """The estimated energy of a network, in joules; see :meth:`Count.energy`."""

    layers: list[LayerEnergy]

    @property
    def compute(self) -> float:
        """The energy of the arithmetic of all layers."""
        return sum(layer.compute for layer in self.layers)

    @property
    def memory(self) -> float:
        """The energy of the accesses to memory of all layers."""
        return sum(layer.memory for layer in self.layers)

    @property
    def total(self) -> float:
        return self.compute + self.memory

    def table(self) -> str:
        """Formats a table with one line per layer."""
        rows: list[tuple[str, ...]] = [("layer", "kind", "role", "compute", "memory", "total")]
        rows += [(layer.name or "(net)", layer.kind, layer.role, *_joules(layer)) for layer in self.layers]
        return aligned([*rows, ("all", "", "", *_joules(self))], left=3)

    __str__ = table


def estimate(
    layers: Iterable[Any], numbers: str, memory: str, add: float | None, multiply: float | None, access: float | None,
    reuse: float,
) -> Energy:  # fmt: skip
    """Returns the energy of layers with the fields of LayerCount; the model is that of ``Count.energy``."""
    for name, value, table in (("numbers", numbers, NUMBERS), ("memory", memory, MEMORIES)):
        if value not in table:
            raise ValueError(f"energy: {name} must be one of {', '.join(table)}, but is {value!r}")
    default_add, default_multiply, width = NUMBERS[numbers]
    add = _checked("add", add, default_add)
    multiply = _checked("multiply", multiply, default_multiply)
    access = _checked("access", access, MEMORIES[memory] / 8)
    reuse = _checked("reuse", reuse, least=1)
    found = []
    for layer in layers:
        additions, products, events, values, states = (
            getattr(layer, name) or 0 for name in ("accumulates", "multiply_accumulates", "events", "values", "states")
        )
        compute = additions * add + (products + states) * (add + multiply)
        accesses = width * (additions + products / reuse) + 2 * (ADDRESS * events + width * values) + 2 * width * states
        found.append(LayerEnergy(layer.name, layer.kind, layer.role, compute, accesses * access))
    return Energy(found)


def _checked(name: str, value: float | None, default: float = 0.0, least: float = 0.0) -> float:
    number = default if value is None else check_number(f"energy: {name}", value)
    if not least <= number < math.inf:
        raise ValueError(f"energy: {name} must be finite and at least {least:g}, but is {number}")
    return number


def _joules(of: LayerEnergy | Energy) -> tuple[str, ...]:
    return tuple(in_joules(value) for value in (of.compute, of.memory, of.total))


def in_joules(value: float) -> str:
    """Formats an energy with three digits and a unit from pJ to J."""
    scale = max((s for s in (12, 9, 6, 3, 0) if abs(value) * 10**s < 1000), default=0)
    return f"{value * 10**scale:.3g} {dict(zip((12, 9, 6, 3, 0), ('pJ', 'nJ', 'uJ', 'mJ', 'J')))[scale]}"


def aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Formats rows as a table, whose first columns are aligned to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    words = [[w.ljust(n) if i < left else w.rjust(n) for i, (w, n) in enumerate(zip(row, widths))] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in words)
