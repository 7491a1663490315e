"""Runs the steps of a call of simulate in pieces, between which Python handles signals and shows progress."""

from __future__ import annotations

import dataclasses
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
BYTES_OF_STATES = 2**26  # of the states of a piece, if not all states of the call stay in memory


Spikes = tuple[Tensor, Tensor, Tensor]  # the steps, neurons and copies of spikes; without copies, the last is empty


@dataclasses.dataclass
class Run:
    """The steps of a call of simulate. Call :meth:`begin`, then iterate over :meth:`pieces`.

    Attributes:
        every: the states after steps every, 2 * every, ... of the call are recorded.
        keeps_states: ``states`` receives all recorded states; otherwise only the pieces have them.
        first: the network's step at which the call begins.
        states: [recorded steps, neurons] for each requested state.
    """

    network: Network
    steps: int
    requested: Requested
    inputs: GivenInputs
    every: int = 1
    keeps_states: bool = True
    is_shown: bool = False
    first: int = 0
    states: list[Tensor] = dataclasses.field(default_factory=list)

    def begin(self) -> None:
        """Builds the network, checks the request, and allocates the states that are kept."""
        if self._is_one_call:
            return
        held = self.network._held
        if self.network.group is not None and self.every > 1:  # compares the steps of all processes
            _CPP.begin(held, self.steps, False, [], [], [])
        recorded = self.steps // self.every if self.keeps_states else 0
        self.first, self.states = _CPP.begin(held, recorded, *self.requested)

    def pieces(self) -> Iterator[tuple[int, Spikes, list[Tensor]]]:
        """Yields the steps so far, and the spikes and the recorded states of each piece.

        Pieces take about half a second, after a first, short one. Processes of a group run pieces of equal length.
        """
        is_shared, is_on_gpu = self.network.group is not None, self.network.device.type == "cuda"
        if self._is_one_call:
            spikes, self.states, self.first = self._call(0, self.steps, None)
            yield self.steps, spikes, self.states
            return
        most = STEPS_UNINTERRUPTED_ON_GPU if is_on_gpu and not is_shared else STEPS_UNINTERRUPTED
        if self.is_shown and not is_shared and not is_on_gpu:
            most = STEPS_OF_PROGRESS
        if not self._is_in_place:
            bytes_of_step = sum(t.shape[1:].numel() * t.element_size() for t in self.states)
            most = max(1, min(most, BYTES_OF_STATES // max(bytes_of_step, 1)))
        at_once, done = most if is_on_gpu or is_shared else min(most, STEPS_OF_PROGRESS), 0
        while done < max(self.steps, 1):
            count = min(at_once, self.steps - done)
            begun = time.perf_counter()
            spikes, states = self._run(done, count)
            done += max(count, 1)
            yield min(done, self.steps), spikes, states
            spent = time.perf_counter() - begun
            if not is_shared:
                at_once = max(1, min(most, round(at_once * SECONDS_UNINTERRUPTED / max(spent, 1e-6))))

    @property
    def _is_one_call(self) -> bool:
        """True if one operator call runs all steps: processes of a group then compare their calls once."""
        return self.network.group is not None and self.every == 1 and self.steps <= STEPS_UNINTERRUPTED

    @property
    def _is_in_place(self) -> bool:
        """True if operators write into ``states``: they record each step."""
        return self.keeps_states and self.every == 1

    def _run(self, done: int, count: int) -> tuple[Spikes, list[Tensor]]:
        """Runs ``count`` steps after the first ``done`` ones. Returns spikes and the recorded states."""
        if self._is_in_place:
            into = [t[done : done + count] for t in self.states]
            return self._call(done, count, into)[0], into
        spikes, states, _ = self._call(done, count, None)
        states = [t[-(done + 1) % self.every :: self.every] for t in states]
        for whole, part in zip(self.states, states):
            if self.keeps_states:
                whole[done // self.every :][: len(part)] = part
        return spikes, states

    def _call(self, done: int, count: int, into: list[Tensor] | None) -> tuple[Spikes, list[Tensor], int]:
        inputs = self.inputs.of(done, count)
        *spikes, states, first, copies = _CPP.simulate(self.network._held, count, *self.requested, *inputs, into)
        return (*spikes, copies), states, first


def show_progress(done: int, steps: int, seconds: float) -> None:
    filled = 40 * done // steps
    left = math.ceil(seconds / done * (steps - done))
    end = "\n" if done == steps else ""
    bar = f"\r[{'#' * filled}{'.' * (40 - filled)}] {done}/{steps} steps, {left} s left "
    print(bar, end=end, file=sys.stderr, flush=True)
