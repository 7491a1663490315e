"""Writes the spikes and states of a simulation to files in the SONATA format, while it runs.

Source: https://github.com/AllenInstitute/sonata/blob/master/docs/SONATA_DEVELOPER_GUIDE.md, simulation output.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spikeforge._populations import Population
from spikeforge._recording import Requested

Network = Any  # spikeforge.simulation.Network; that module imports this one

SPIKES_OF_A_CHUNK = 8192
SORTING = {"none": 0, "by_id": 1, "by_time": 2}


class SonataWriter:
    """The files of one call of simulate: ``spikes.h5``, and ``<state>_report.h5`` for each name of a recorded state.

    Args:
        dt: the duration of a step, in ms.
    """

    def __init__(self, folder: Any, dt: float, network: Network, requested: Requested):
        try:
            import h5py
        except ImportError as error:
            raise ImportError(f"simulate: output_dir needs h5py: pip install h5py ({error})") from None
        self._h5py, self._folder, self._dt = h5py, Path(os.fspath(folder)), dt
        self._populations: list[Population] = network.populations
        self._records_spikes, self._probes = requested[0], list(zip(*requested[1:]))
        self._files: dict[str, Any] = {}  # by name
        self._spikes: list[Any] = []  # a group of HDF5 for each population
        self._reports: list[Any] = []  # and for each probe

    @property
    def paths(self) -> tuple[Path, ...]:
        names = ["spikes.h5"] if self._records_spikes else []
        names += [f"{state}_report.h5" for state in dict.fromkeys(state for _, state, _ in self._probes)]
        return tuple(self._folder / name for name in names)

    @contextlib.contextmanager
    def open(self, first: int, every: int) -> Iterator[None]:
        """Creates the files of a call that begins at step ``first``, and replaces those of an earlier call."""
        self._check()
        self._folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            files = self._files = {path.name: stack.enter_context(self._create(path)) for path in self.paths}
            if self._records_spikes:
                self._spikes = [self._add_spikes(files["spikes.h5"], p.name) for p in self._populations]
            for number, state, neurons in self._probes:
                name, times = self._populations[number].name, ((first + every - 1) * self._dt, every * self._dt)
                self._reports.append(self._add_report(files[f"{state}_report.h5"], name, neurons, *times))
            self._flush()
            yield

    def write(self, steps: Tensor, neurons: Tensor, states: Sequence[Tensor]) -> None:
        """Appends the spikes and states of a piece, all or nothing."""
        growing = [group[name] for group in self._spikes for name in ("timestamps", "node_ids")]
        growing += [report["data"] for report in self._reports]
        lengths = [len(dataset) for dataset in growing]
        try:
            self._append_spikes(steps.cpu(), neurons.cpu())
            for report, rows in zip(self._reports, states):
                _append(report["data"], rows)
        except BaseException:  # also an interrupt by the user
            for dataset, length in zip(growing, lengths):
                dataset.resize(length, axis=0)
            raise
        finally:
            self._flush()

    def _check(self) -> None:
        names = [p.name for p in self._populations]
        for name in names:
            if name in ("", ".") or "/" in name or names.count(name) > 1:
                raise ValueError(
                    "simulate: output_dir needs populations with different names without '/', because they become "
                    f"names of HDF5 groups, but one is {name!r}"
                )
        entries = [(number, state) for number, state, _ in self._probes]
        for number, state, neurons in self._probes:
            if entries.count((number, state)) > 1 or len(neurons.unique()) < neurons.numel():
                raise ValueError(
                    f"simulate: output_dir needs one entry of states, with each neuron once, for {state} of "
                    f"{names[number]}: a file has one report for each population"
                )

    def _create(self, path: Path) -> Any:
        try:
            return self._h5py.File(path, "w")
        except OSError as error:
            raise OSError(f"simulate: cannot create {path}: {error}") from None

    def _add_spikes(self, file: Any, name: str) -> Any:
        group = file.create_group(f"spikes/{name}")
        group.attrs.create("sorting", SORTING["by_time"], dtype=self._h5py.enum_dtype(SORTING, basetype="u1"))
        options = {"shape": (0,), "maxshape": (None,), "chunks": (SPIKES_OF_A_CHUNK,)}
        group.create_dataset("timestamps", dtype="f8", **options).attrs["units"] = "ms"
        group.create_dataset("node_ids", dtype="u8", **options)
        return group

    def _add_report(self, file: Any, name: str, neurons: Tensor, start: float, step: float) -> Any:
        """Adds a report of one value for each neuron; neurons have no compartments, so each has the element 0."""
        group, count = file.create_group(f"report/{name}"), len(neurons)
        mapping = group.create_group("mapping")
        mapping.create_dataset("node_ids", data=neurons.numpy(), dtype="u8")
        mapping["node_ids"].attrs.create("sorted", bool((neurons.diff() > 0).all()), dtype="u1")
        mapping.create_dataset("index_pointers", data=range(count + 1), dtype="u8")
        mapping["index_pointer"] = mapping["index_pointers"]  # a link; BMTK reads this name
        mapping.create_dataset("element_ids", shape=(count,), dtype="u4")
        mapping.create_dataset("element_pos", shape=(count,), dtype="f4")
        mapping.create_dataset("time", data=(start, start, step), dtype="f8").attrs["units"] = "ms"
        data = group.create_dataset("data", shape=(0, count), maxshape=(None, count), dtype="f4", chunks=True)
        data.attrs["units"] = ""
        return group

    def _append_spikes(self, steps: Tensor, neurons: Tensor) -> None:
        if not self._spikes:
            return
        stops = torch.tensor([p.stop for p in self._populations], device="cpu")
        numbers = torch.searchsorted(stops, neurons, right=True)
        order, counts = numbers.argsort(stable=True), numbers.bincount(minlength=len(stops)).tolist()
        for population, group, places in zip(self._populations, self._spikes, order.split(counts)):
            _append(group["timestamps"], steps[places].double() * self._dt)
            _append(group["node_ids"], neurons[places] - population.start)

    def _flush(self) -> None:
        """Makes the files readable if the process ends."""
        for report in self._reports:
            start, _, step = report["mapping/time"]
            report["mapping/time"][1] = start + len(report["data"]) * step
        for file in self._files.values():
            file.flush()


def _append(dataset: Any, rows: Tensor) -> None:
    before = len(dataset)
    dataset.resize(before + len(rows), axis=0)
    dataset[before:] = rows.cpu().numpy()
