"""The order in which the parts of a network run, and which of them are stepped together."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

Neighbours = Callable[[str], Iterable[str]]


@dataclass(frozen=True)
class Port:
    """Output or input number `index` of a part; of the network itself if `part` is None."""

    part: str | None
    index: int


@dataclass
class Connection:
    """A connection from an output to an input, with a delay in steps."""

    source: Port
    target: Port
    names: tuple[str, str]  # of the ports, as passed to connect()
    delay: int = 0
    shape: tuple[int, ...] | None = None
    from_rest: bool = False
    state: str = ""  # its name, if there is a delay


@dataclass(frozen=True)
class Stage:
    """One part, or the parts of a loop in the order of a step."""

    parts: tuple[str, ...]
    is_loop: bool
    edges: tuple[int, ...] = ()  # of a loop: the numbers of all edges from and to its parts


def path_without_delay(start: str, end: str, targets: Neighbours, sources: Neighbours) -> list[str]:
    """The parts on some path from `start` to `end`, both included; [] if there is none.

    The search goes on from both ends in turns, and stops where one of them is exhausted: building a network whose parts
    are connected one after the other takes time in proportion to its size.

    Args:
        targets, sources: the parts that a part leads to without a delay, and those that lead to it.
    """
    ahead: dict[str, str | None] = {start: None}  # from each part, the one before it on the path from `start`
    back: dict[str, str | None] = {end: None}
    sides = [(ahead, back, [start], targets), (back, ahead, [end], sources)]
    meeting = start if start == end else None
    while meeting is None and all(open_ends for *_, open_ends, _ in sides):
        for found, others, open_ends, neighbours in sides:
            if meeting is not None or not open_ends:
                continue
            part = open_ends.pop()
            for following in neighbours(part):
                if following not in found:
                    found[following] = part
                    open_ends.append(following)
                    if following in others:
                        meeting = following
                        break
    if meeting is None:
        return []
    path = [meeting]
    while (before := ahead[path[0]]) is not None:
        path.insert(0, before)
    while (after := back[path[-1]]) is not None:
        path.append(after)
    return path


@torch.compiler.assume_constant_result
def make_plan(parts: Sequence[str], edges: Sequence[tuple[str | None, str | None, int]]) -> list[Stage]:
    """Stages one after the other, for connections (source, target, delay), of which an end may be outside: None.

    Two parts are on one loop if each reaches the other. If several parts can come next, the one that was added first
    does.
    """
    targets: dict[str, list[str]] = {}
    for source, target, _ in edges:
        if source is not None and target is not None:
            targets.setdefault(source, []).append(target)
    order = _in_order(parts, targets)
    if len(order) == len(parts):  # there is no loop
        return [Stage((part,), False) for part in order]
    stage_of = _components(parts, targets)
    members: dict[int, list[str]] = {}
    for part in parts:  # in the order of adding, the stages too
        members.setdefault(stage_of[part], []).append(part)
    between: dict[int, list[int]] = {}
    instant: dict[int, dict[str, list[str]]] = {}  # of each loop: the connections without a delay between its parts
    ends = [(stage_of.get(source), stage_of.get(target)) for source, target, _ in edges]
    for (start, end), (source, target, delay) in zip(ends, edges):
        if start is None or end is None:
            continue
        if start != end:
            between.setdefault(start, []).append(end)
            continue
        within = instant.setdefault(start, {})
        if not delay:
            within.setdefault(source, []).append(target)
    touching: dict[int, list[int]] = {stage: [] for stage in instant}
    if instant:
        for number, pair in enumerate(ends):
            for stage in instant.keys() & pair:
                touching[stage].append(number)
    stages = []
    for stage in _in_order(list(members), between):
        if stage in instant:
            stages.append(Stage(tuple(_in_order(members[stage], instant[stage])), True, tuple(touching[stage])))
        else:
            stages.append(Stage(tuple(members[stage]), False))
    return stages


def _components(parts: Sequence[str], targets: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The number of the strongly connected component of each part (Tarjan 1972), without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    component: dict[str, int] = {}
    stack: list[str] = []
    for start in parts:
        if start in index:
            continue
        visits = []
        entered: str | None = start
        while entered is not None or visits:
            if entered is not None:
                index[entered] = low[entered] = len(index)
                stack.append(entered)
                visits.append((entered, iter(targets.get(entered, ()))))
                entered = None
            part, following = visits[-1]
            for target in following:
                if target not in index:
                    entered = target
                    break
                if target not in component:
                    low[part] = min(low[part], index[target])
            if entered is not None:
                continue
            visits.pop()
            if visits:
                low[visits[-1][0]] = min(low[visits[-1][0]], low[part])
            if low[part] == index[part]:
                member = None
                while member != part:
                    member = stack.pop()
                    component[member] = index[part]
    return component


def _in_order(nodes: Sequence, targets: Mapping) -> list:
    """Each node after those that lead to it; if several can come next, the one that is first in `nodes` (Kahn 1962)."""
    place = {node: i for i, node in enumerate(nodes)}
    waiting = dict.fromkeys(nodes, 0)
    for node in nodes:
        for target in targets.get(node, ()):
            waiting[target] += 1
    ready = [place[node] for node in nodes if not waiting[node]]
    order = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for target in targets.get(node, ()):
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, place[target])
    return order
