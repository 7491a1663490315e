"""Runs the steps of a call of simulate in pieces, between which Python handles signals and shows progress."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from spikeforge._inputs import GivenInputs
from spikeforge._recording import Requested

Network = Any  # spikeforge.simulation.Network; that module imports this one

_CPP = torch.ops.spikeforge_simulation
STEPS_OF_PROGRESS = 100  # steps between two updates of the progress bar
STEPS_UNINTERRUPTED = 1000  # most steps in one operator call, during which Python handles no signal
STEPS_UNINTERRUPTED_ON_GPU = 10000
SECONDS_UNINTERRUPTED = 0.5


# A piece of a simulation: its number of steps, the first step of the call, the steps, neurons and copies of its spikes,
# and the states of all steps of the call, which are allocated before the first one.
Piece = tuple[int, int, tuple[Tensor, Tensor, Tensor], list[Tensor]]


def by_pieces(
    network: Network, steps: int, requested: Requested, inputs: GivenInputs, progress: bool
) -> Iterator[Piece]:
    """Runs pieces of about half a second, after a first, short one."""
    if network.group is not None:  # its processes must run the same pieces
        yield from _by_equal_pieces(network, steps, requested, inputs)
        return
    is_shown = progress and sys.stderr.isatty() and network.device.type == "cpu"
    is_on_gpu = network.device.type == "cuda"
    most = STEPS_OF_PROGRESS if is_shown else STEPS_UNINTERRUPTED_ON_GPU if is_on_gpu else STEPS_UNINTERRUPTED
    at_once, done = most if is_on_gpu else min(most, STEPS_OF_PROGRESS), 0
    first, kept = _CPP.begin(network._held, steps, *requested)
    while done < max(steps, 1):
        count = min(at_once, steps - done)
        begun = time.perf_counter()
        when, neurons, _, _, copies = _CPP.simulate(
            network._held, count, *requested, *inputs.of(done, count), _rows(kept, done, count)
        )
        yield count, first, (when, neurons, copies), kept
        done += max(count, 1)
        spent = time.perf_counter() - begun
        at_once = max(1, min(most, round(at_once * SECONDS_UNINTERRUPTED / max(spent, 1e-6))))


def _by_equal_pieces(network: Network, steps: int, requested: Requested, inputs: GivenInputs) -> Iterator[Piece]:
    if steps <= STEPS_UNINTERRUPTED:  # one call: processes compare their calls once
        when, neurons, kept, first, copies = _CPP.simulate(network._held, steps, *requested, *inputs.of(0, steps))
        yield steps, first, (when, neurons, copies), kept
        return
    first, kept = _CPP.begin(network._held, steps, *requested)
    for done in range(0, steps, STEPS_UNINTERRUPTED):
        count = min(STEPS_UNINTERRUPTED, steps - done)
        when, neurons, _, _, copies = _CPP.simulate(
            network._held, count, *requested, *inputs.of(done, count), _rows(kept, done, count)
        )
        yield count, first, (when, neurons, copies), kept


def _rows(states: list[Tensor], done: int, count: int) -> list[Tensor]:
    return [t[done : done + count] for t in states]


def show_progress(done: int, steps: int, seconds: float) -> None:
    if not sys.stderr.isatty():
        return
    filled = 40 * done // steps
    left = math.ceil(seconds / done * (steps - done))
    end = "\n" if done == steps else ""
    bar = f"\r[{'#' * filled}{'.' * (40 - filled)}] {done}/{steps} steps, {left} s left "
    print(bar, end=end, file=sys.stderr, flush=True)
