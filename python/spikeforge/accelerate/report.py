"""The report of `accelerate`: one entry for each neuron."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

WIDTH = 120


@dataclass(frozen=True)
class Entry:
    """One neuron module of the network.

    Attributes:
        name: its name in the network, as in `named_modules()`; "" for the network itself.
        kind: the name of its class.
        library: the library that defines it, with its version.
        status: "replaced" by this call, "already" replaced by an earlier one, or "left" as it is.
        what: the operator or neuron text that runs it, or why it was left.
        notes: differences in the last bits, and when they occur.
    """

    name: str
    kind: str
    library: str
    status: Literal["replaced", "already", "left"]
    what: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The report of `accelerate`: print it, or read `replaced`, `already` and `left`."""

    entries: tuple[Entry, ...] = ()

    @property
    def replaced(self) -> list[Entry]:
        """The neurons that this call replaced."""
        return [entry for entry in self.entries if entry.status == "replaced"]

    @property
    def already(self) -> list[Entry]:
        """The neurons that an earlier call had replaced."""
        return [entry for entry in self.entries if entry.status == "already"]

    @property
    def left(self) -> list[Entry]:
        """The neurons that were not replaced; `what` is the reason."""
        return [entry for entry in self.entries if entry.status == "left"]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        if not self.entries:
            return "no neuron of SpikingJelly, snnTorch, Norse or Sinabs in this network"
        lines = [self._summary()]
        lines += _table("runs as", self.replaced + self.already)
        if self.left:
            lines += ["left as they are", *_table("why", self.left)]
        notes = dict.fromkeys(note for entry in self.entries for note in entry.notes)
        return "\n".join(lines + [f"note: {note}" for note in notes])

    __repr__ = __str__

    def _summary(self) -> str:
        fused, libraries = (
            len(self.entries) - len(self.left),
            " and ".join(dict.fromkeys(e.library for e in self.entries)),
        )
        before = f" ({len(self.already)} of them before this call)" if self.already else ""
        return f"{fused} of {len(self.entries)} neurons of {libraries} run as fused operators{before}"


def _table(head: str, entries: list[Entry]) -> list[str]:
    """Formats one row for all neurons of one class with the same result."""
    alike: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        alike.setdefault((entry.kind, entry.what), []).append(entry.name or "(the network itself)")
    if not alike:
        return []
    rows = [("", "class", head, "modules")]
    rows += [(f"{len(names)} x", kind, what, names) for (kind, what), names in alike.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    start = "  " + "  ".join(" " * width for width in widths) + "  "
    lines = []
    for count, kind, what, names in rows:
        cells = f"  {count:>{widths[0]}}  {kind:<{widths[1]}}  {what:<{widths[2]}}  "
        lines.append(cells + (names if isinstance(names, str) else _shortened(names, WIDTH - len(start))))
    return lines


def _shortened(names: list[str], width: int) -> str:
    """Returns the names that fit into the width, at least two, and the number of the others."""
    text = ", ".join(names)
    shown = len(names)
    while len(text) > width and shown > 2:
        shown -= 1
        text = f"{', '.join(names[:shown])} and {len(names) - shown} more"
    return text
