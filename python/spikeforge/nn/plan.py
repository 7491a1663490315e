"""In which order the parts of a network run, and which of them are stepped together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One part, or the parts of a loop in the order of a step."""

    parts: tuple[str, ...]
    is_loop: bool


def path_without_delay(start: str, end: str, edges: Iterable[tuple[str, str]]) -> list[str]:
    """The parts on some way from `start` to `end`, both included; [] where there is none."""
    edges = list(edges)
    came_from: dict[str, str | None] = {start: None}
    open_ends = [start]
    while open_ends and end not in came_from:
        part = open_ends.pop()
        for source, target in edges:
            if source == part and target not in came_from:
                came_from[target] = part
                open_ends.append(target)
    if end not in came_from:
        return []
    path: list[str] = []
    part: str | None = end
    while part is not None:
        path.insert(0, part)
        part = came_from[part]
    return path


def make_plan(parts: Sequence[str], edges: Sequence[tuple[str, str, int]]) -> list[Stage]:
    """Stages one after the other, for connections (source, target, delay).

    Two parts are on one loop if each reaches the other. Of several that could come next, the one that was added first
    does.
    """
    reached = {part: _reached_from(part, edges) for part in parts}

    def together(a: str, b: str) -> bool:
        return a == b or (b in reached[a] and a in reached[b])

    firsts: list[str] = []
    for part in parts:
        if not any(together(first, part) for first in firsts):
            firsts.append(part)
    instant = {(source, target) for source, target, delay in edges if delay == 0}
    stages = []
    for first in _in_order(firsts, lambda a, b: a != b and b in reached[a]):
        members = [part for part in parts if together(first, part)]
        ordered = _in_order(members, lambda a, b: (a, b) in instant)
        stages.append(Stage(tuple(ordered), is_loop=first in reached[first]))
    return stages


def _reached_from(start: str, edges: Sequence[tuple[str, str, int]]) -> set[str]:
    reached: set[str] = set()
    open_ends = [start]
    while open_ends:
        part = open_ends.pop()
        for source, target, _ in edges:
            if source == part and target not in reached:
                reached.add(target)
                open_ends.append(target)
    return reached


def _in_order(parts: Sequence[str], before: Callable[[str, str], bool]) -> list[str]:
    left, order = list(parts), []
    while left:
        following = next(part for part in left if not any(before(other, part) for other in left))
        order.append(following)
        left.remove(following)
    return order
