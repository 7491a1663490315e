"""Batches of events, and their frames."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate


@dataclass(frozen=True, eq=False)
class Events:
    """A batch of samples with any number of events each. Sample b has the events ``offsets[b]`` to ``offsets[b + 1]``.

    Attributes:
        t: times in ticks of any clock, of an integer type, [events].
        x: columns on the sensor, or units of a spike train, of an integer type, [events].
        offsets: int64 [B + 1].
        y: rows on the sensor, of an integer type, [events]; None: 0.
        p: polarities, 0 or -1 for off and 1 for on, bool or of an integer type, [events]; None: 0.
        keep: False for events that are skipped, bool [events]; None: all are kept.
        start: the time of the first step of each sample, int64 [B]; None: the time of its first event.
    """

    t: Tensor
    x: Tensor
    offsets: Tensor
    y: Tensor | None = None
    p: Tensor | None = None
    keep: Tensor | None = None
    start: Tensor | None = None

    @classmethod
    def of(cls, samples: Iterable[Any]) -> Events:
        """Concatenates samples: structured numpy arrays (those of tonic, for example) or mappings with the fields t, x
        and, if present, y and p.

        Raises:
            ValueError: if a field is missing, or has another number of events than t.
            TypeError: if a sample is none of these, or a field is not of an integer type.
        """
        columns = [{name: _column(sample, name, i) for name in "txyp"} for i, sample in enumerate(samples)]
        t, x, y, p = (_join(name, columns) for name in "txyp")
        lengths = [0 if sample["t"] is None else len(sample["t"]) for sample in columns]
        none = torch.zeros(0, dtype=torch.int64)
        t, x = none if t is None else t, none if x is None else x
        return cls(t, x, torch.tensor([0, *lengths], device=t.device).cumsum(0), y, p)

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self.offsets) - 1

    def _map(self, function: Any) -> Events:
        columns = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(self, **{name: function(column) for name, column in columns if column is not None})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Events:
        """Copies all columns to a device."""
        return self._map(lambda column: column.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Events:
        """Copies all columns to pinned memory, as ``DataLoader(..., pin_memory=True)`` does."""
        return self._map(Tensor.pin_memory)

    def sorted(self) -> Events:
        """Sorts the events of each sample by time; events at equal times keep their order."""
        by_time = self.t.argsort(stable=True)
        order = by_time[self.sample[by_time].argsort(stable=True)]
        per_event = {name: getattr(self, name) for name in ("t", "x", "y", "p", "keep")}
        return replace(self, **{name: column[order] for name, column in per_event.items() if column is not None})

    @property
    def sample(self) -> Tensor:
        """The sample of each event, int64 [events]."""
        return torch.repeat_interleave(self.offsets.diff(), output_size=len(self.t))

    @property
    def _starts(self) -> Tensor:
        """The time of the first step of each sample, int64 [B]; any time for samples without events."""
        if self.start is not None:
            return self.start
        if not len(self.t):
            return torch.zeros_like(self.offsets[1:])
        return self.t[self.offsets[:-1].clamp(max=len(self.t) - 1)].long()

    def steps(self, window: int) -> Tensor:
        """Returns the number of steps of ``window`` ticks from the start to the latest event of each sample, skipped
        events included, int64 [B]: the ``lengths`` of a network's call. It is 0 for a sample without events.

        Raises:
            ValueError: if ``window`` is not an integer of at least 1.
        """
        if not (isinstance(window, numbers.Integral) and window >= 1):
            raise ValueError(f"Events.steps: window must be an integer of at least 1 tick, but is {window}")
        elapsed = (self.t.long() - self._starts[self.sample]).double()  # segment_reduce has no integers
        latest = torch.segment_reduce(elapsed, "max", offsets=self.offsets, initial=-1.0)
        return latest.long().div(window, rounding_mode="floor") + 1

    def drop(self, p: float, generator: torch.Generator | None = None) -> Events:
        """Skips each event with probability ``p``."""
        if not 0 <= p <= 1:
            raise ValueError(f"Events.drop: p must be in [0, 1], but is {p}")
        kept = torch.rand(self.t.shape, device=self.t.device, generator=generator) >= p
        return replace(self, keep=kept if self.keep is None else kept & self.keep)

    def jitter(self, std: float, generator: torch.Generator | None = None) -> Events:
        """Adds normal noise of ``std`` ticks, rounded, to each time. The first step begins at the same time as without
        noise; events that move before it are skipped. Frames of the result need ``window``."""
        if not 0 <= std < math.inf:
            raise ValueError(f"Events.jitter: std must be a finite number of ticks, at least 0, but is {std}")
        noise = torch.randn(self.t.shape, device=self.t.device, generator=generator).mul(std).round().long()
        return replace(self, t=self.t.long() + noise, start=self._starts)


def _column(sample: Any, name: str, i: int) -> Tensor | None:
    names = sample.dtype.names if isinstance(sample, np.ndarray) else getattr(sample, "keys", lambda: None)()
    if names is None:
        raise TypeError(
            f"Events.of: expected a list of samples, structured arrays or mappings with the fields t and x, but sample "
            f"{i} is of type {type(sample).__name__}"
        )
    if name not in names:
        if name in "yp":
            return None
        raise ValueError(f"Events.of: sample {i} has no field {name}, only {', '.join(map(str, names)) or 'none'}")
    values = sample[name]
    if not isinstance(values, Tensor):
        values = np.asarray(values)
        if values.shape == (0,) and values.dtype.kind == "f":  # an empty list
            values = values.astype(np.int64)
        if values.dtype.kind in "iub":
            values = torch.from_numpy(np.array(values, values.dtype.newbyteorder("=")))  # a field is not contiguous
    if values.ndim != 1 or not isinstance(values, Tensor) or values.is_floating_point() or values.is_complex():
        raise TypeError(
            f"Events.of: {name} of sample {i} must be integers [events], but is "
            f"{str(values.dtype).removeprefix('torch.')} of shape {list(values.shape)}"
        )
    return values.long() if values.dtype == torch.uint64 else values


def _join(name: str, samples: Sequence[Mapping[str, Tensor | None]]) -> Tensor | None:
    for i, sample in enumerate(samples):
        t, column, first = sample["t"], sample[name], samples[0][name]
        if (column is None) != (first is None):
            raise ValueError(f"Events.of: {name} must be a field of all samples or of none, but differs for sample {i}")
        if column is not None and t is not None and len(column) != len(t):
            raise ValueError(f"Events.of: {name} of sample {i} has {len(column)} events, but t has {len(t)}")
    given = [column for sample in samples if (column := sample[name]) is not None]
    if len({column.dtype for column in given}) > 1:  # torch promotes no unsigned types
        given = [column.long() for column in given]
    return torch.cat(given) if given else None


def collate(samples: Sequence[Any]) -> tuple[Any, ...] | Events:
    """Collates samples ``(events, target, ...)`` of a dataset for a ``DataLoader``: the events become one
    :class:`Events`, and the other values are collated by torch's ``default_collate``. Events alone are accepted too.
    """
    if not isinstance(samples[0], (tuple, list)):
        return Events.of(samples)
    events, *others = zip(*samples, strict=True)
    return Events.of(events), *(default_collate(list(values)) for values in others)


def frames(events: Events, size: tuple[int, int, int], *, steps: int, **options: Any) -> Tensor:
    """Accumulates events into frames, [steps, B, channels, height, width]: ``torch.ops.spikeforge.event_frames``.

    Args:
        events: on a CPU or a GPU.
        size: channels (2: off and on events apart; 1: together), height and width of the sensor.
        steps: the number of steps.
        options: the keyword arguments of :func:`spikeforge.ops.event_frames`: ``window`` (ticks of a step; by default,
            the time from the first to the last event in equal shares), ``bins="count"``, ``values`` ("count", "binary",
            "normalised", "bits", "voxel" or "surface"), ``tau``, ``crop``, ``origin``, ``flip``, ``downsample``,
            ``ignored`` and ``dtype``. Its ``start`` and ``keep`` are those of the events.

    Raises:
        TypeError: if ``events`` are not :class:`Events`.
        ValueError: if an event is not on the sensor, or before the first one of its sample. On a GPU, which is not
            synchronised, a later call raises it.
    """
    if not isinstance(events, Events):
        raise TypeError(f"frames: events must be Events, such as Events.of(samples), but is {type(events).__name__}")
    return torch.ops.spikeforge.event_frames(
        events.t, events.x, events.y, events.p, events.offsets, size=size, steps=steps, start=events.start,
        keep=events.keep, **options
    )  # fmt: skip


def spike_trains(events: Events, units: int, *, steps: int, values: str = "binary", **options: Any) -> Tensor:
    """Bins spike trains, [steps, B, units]: ``x`` is the unit of a spike. Arguments are those of :func:`frames`.

    With ``crop=(1, units)``, ``origin`` [B, 2] of random integers ``(0, -shift)`` shifts all units of a sample.
    ``downsample=n`` merges n neighbouring units, [steps, B, ceil(units / n)].
    """
    return frames(events, (1, 1, units), steps=steps, values=values, **options).flatten(2)
