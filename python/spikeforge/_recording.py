"""Recordings of a simulated network: the spikes and states of a call of simulate."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spikeforge._numbers import check_number, check_text, check_whole
from spikeforge._populations import Neurons, Part, within

if TYPE_CHECKING:
    import neo

Network = Any  # spikeforge.simulation.Network; that module imports this one
Requested = tuple[bool, list[int], list[str], list[Tensor]]  # spikes; population, state and neurons of each probe

SCANS_BEFORE_SORTING = 8  # scans of all spikes take about as long as sorting them once


@dataclasses.dataclass(frozen=True)
class Recording:
    """The spikes and states that a call of :func:`simulate` recorded.

    Attributes:
        steps, neurons: int64 [spikes], the step and the neuron of each spike, ordered by step and copy. If the network
            has a group, the spikes of this process's neurons; :meth:`Network.gather` returns all.
        states: a tensor [recorded steps, chosen neurons] for each requested (population, state, neurons), or
            [recorded steps, copies, chosen neurons] if the network has copies; the same on all processes. Row i is the
            state after step ``state_steps[i]``.
        span: the steps of the call.
        every: the distance of the steps after which states were recorded.
        files: the files that contain the spikes and states if the call has an ``output_dir``; the other attributes are
            then empty, and methods raise ValueError.
        copies: int64 [spikes], the copy of each spike, or None if the network has one copy.
        copy_count: the number of copies.
    """

    steps: Tensor
    neurons: Tensor
    states: list[Tensor]
    span: range = range(0)
    every: int = 1
    files: tuple[Path, ...] = ()
    copies: Tensor | None = None
    copy_count: int = 1

    @property
    def state_steps(self) -> range:
        """The steps after which states were recorded: steps ``every``, ``2 * every``, ... of the call."""
        return self.span[self.every - 1 :: self.every]

    def of(self, population: Neurons, copy: int | None = None) -> tuple[Tensor, Tensor]:
        """Returns steps and neurons of the spikes of a population or a part, int64 [spikes]; its first neuron is 0.

        Args:
            copy: the copy of the network; by default all.
        """
        if self.files:
            raise ValueError(f"Recording: spikes and states of this call are in {', '.join(map(str, self.files))}")
        if copy is not None:
            return self._of_copy(copy).of(population)
        if isinstance(population, Part):
            steps, neurons = self.of(population.population)
            places = population.spread(torch.arange(1, len(population) + 1, device=neurons.device))[neurons]
            return steps[places > 0], places[places > 0] - 1
        scans = self.__dict__["_scans"] = self.__dict__.get("_scans", 0) + 1
        if scans <= SCANS_BEFORE_SORTING:
            here = (self.neurons >= population.start) & (self.neurons < population.stop)
        else:
            neurons, places = self._by_neuron
            first, last = torch.searchsorted(
                neurons, torch.tensor([population.start, population.stop], device=neurons.device)
            ).tolist()
            here = places[first:last].sort().values
        return self.steps[here], self.neurons[here] - population.start

    def _of_copy(self, copy: int) -> Recording:
        """Returns the spikes of a copy."""
        if not 0 <= check_whole("Recording: copy", copy) < self.copy_count:
            raise ValueError(f"Recording: copy must be from 0 to {self.copy_count - 1}, but is {copy}")
        if self.copies is None:
            return self
        here = self.copies == copy
        return Recording(self.steps[here], self.neurons[here], [], self.span)

    def spike_trains(self, population: Neurons, dt: Any, copy: int | None = None) -> list[neo.SpikeTrain]:
        """Returns the spikes of each neuron of a population or a part as ``neo.SpikeTrain``, for neo and Elephant.

        A spike of step t is at time ``t * dt``. Trains begin at the first step of the call and end after the last.

        Args:
            dt: the duration of a step, a ``quantities`` time, or a number of milliseconds.
            copy: the copy of the network; needed if there are several.

        Raises:
            ImportError: if neo is not installed.
            ValueError: if dt is not a positive time, or there are several copies and ``copy`` is None.
        """
        if copy is None and self.copy_count > 1:
            raise ValueError(f"Recording.spike_trains: copy must be given, because there are {self.copy_count} copies")
        try:
            import neo
            import quantities
        except ImportError as error:
            raise ImportError(f"Recording.spike_trains needs neo: pip install neo ({error})") from None
        time = milliseconds("Recording.spike_trains", dt) * quantities.ms
        given = dt if isinstance(dt, quantities.Quantity) else time
        unit, step = given.units, float(given)
        steps, neurons = (t.cpu() for t in self.of(population, copy))
        of_each = steps[neurons.argsort(stable=True)].split(neurons.bincount(minlength=len(population)).tolist())
        span = {"t_start": self.span.start * step, "t_stop": self.span.stop * step}
        return [
            neo.SpikeTrain(times.numpy() * step, units=unit, name=f"{population.name}[{i}]", **span)
            for i, times in enumerate(of_each)
        ]

    @functools.cached_property
    def _by_neuron(self) -> tuple[Tensor, Tensor]:
        """Returns the neurons in ascending order, and their positions in the recording."""
        return self.neurons.sort(stable=True)


def milliseconds(caller: str, dt: Any) -> float:
    """Converts a ``quantities`` time, or a number of milliseconds, to milliseconds. Raises ValueError for others."""
    what = f"{caller}: dt, a time or a number of milliseconds,"
    try:
        time = float(dt.rescale("ms")) if hasattr(dt, "rescale") else check_number(what, dt)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be a scalar time, but is {dt!r:.60}") from None
    if not 0 < time < math.inf:
        raise ValueError(f"{what} must be positive and finite, but is {dt!r:.60}")
    return time


def requested(network: Network, spikes: bool, probes: Any) -> Requested:
    populations, states, neurons = [], [], []
    for probe in probes:
        if not isinstance(probe, Sequence) or len(probe) != 3:
            raise TypeError(
                f"simulate: states must be a list of (population, name of a state, neurons), but one is {probe!r:.80}"
            )
        population, state, chosen = probe
        populations.append(network._number(population))
        states.append(check_text(f"simulate: the state of {population.name} to record", state))
        neurons.append(within(f"simulate: neurons of {population.name}", population, chosen).cpu())
    return bool(spikes), populations, states, neurons
