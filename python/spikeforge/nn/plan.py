"""The order in which the parts of a network run, and which of them are stepped together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

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
    edges: tuple[int, ...] = ()  # of a loop: the indices of all edges from and to its parts


def path_without_delay(start: str, end: str, targets: Neighbours, sources: Neighbours) -> list[str]:
    """Returns the parts on some path from `start` to `end`, both included; [] if there is none.

    The search alternates between both ends, one neighbour at a time, and stops when one of them is exhausted: a
    network whose parts are connected one after the other, or all to one hub, is built in linear time.

    Args:
        targets, sources: the parts that a part leads to without a delay, and those that lead to it.
    """
    if start == end:
        return [start]
    ahead: dict[str, str] = {}  # from each part, the one before it on the path from `start`
    back: dict[str, str] = {}  # the one after it on the path to `end`
    sides = [
        (ahead, start, [(start, iter(targets(start)))], targets),
        (back, end, [(end, iter(sources(end)))], sources),
    ]
    while all(open_ends for *_, open_ends, _ in sides):
        for (found, origin, open_ends, neighbours), (others, other_origin, *_) in (sides, sides[::-1]):
            if not open_ends:
                continue
            part, following = open_ends[-1]
            neighbour = next(following, None)
            if neighbour is None:
                open_ends.pop()
            elif neighbour != origin and neighbour not in found:
                found[neighbour] = part
                open_ends.append((neighbour, iter(neighbours(neighbour))))
                if neighbour == other_origin or neighbour in others:
                    path = [neighbour]
                    while path[0] != start:
                        path.insert(0, ahead[path[0]])
                    while path[-1] != end:
                        path.append(back[path[-1]])
                    return path
    return []


@torch.compiler.assume_constant_result
def make_plan(parts: Sequence[str], edges: Sequence[tuple[str | None, str | None, int]]) -> list[Stage]:
    """Returns the stages in the order in which they run, for connections (source, target, delay).

    An end of a connection outside the network is None. Two parts are in one loop if each reaches the other. If several
    parts can be next, the first is the one that was added first.
    """
    numbers: dict[str | None, int] = {None: -1} | {part: number for number, part in enumerate(parts)}
    flat = [value for source, target, delay in edges for value in (numbers[source], numbers[target], delay)]
    plan = iter(torch.ops.spikeforge_nn.network_plan(len(parts), flat))
    stages = []
    for is_loop in plan:
        members = tuple(parts[number] for number in islice(plan, next(plan)))
        stages.append(Stage(members, bool(is_loop), tuple(sorted(islice(plan, next(plan)))) if is_loop else ()))
    return stages
