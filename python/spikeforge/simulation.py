"""Simulated networks: populations of any neuron, projections with delays, drive, recordings.

The network itself is C++ (``<spikeforge/simulation/network.h>``); this module calls it through operators.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spikeforge._drawing import Ends, seed_of
from spikeforge._inputs import Inputs, read_inputs
from spikeforge._numbers import check_dtype, check_seed, check_text, check_whole, tensor_of
from spikeforge._populations import Neurons, Part, Population, Values, spread, within
from spikeforge._recording import Recording, milliseconds, requested
from spikeforge._running import Run, Spikes, show_progress
from spikeforge._sonata import SonataWriter
from spikeforge._warnings import warn_caller
from spikeforge.connecting import Connectivity, Drawn
from spikeforge.nn.own import Traced
from spikeforge.nn.text import read_header
from spikeforge.plasticity import Synapse
from spikeforge.rules import Law, Rule

_CPP = torch.ops.spikeforge_simulation
STEPS_UNCHECKED = 1000  # fewest steps between two searches for states that are not finite


class Drive:
    """Poisson input that :meth:`Network.drive` added."""

    def __init__(self, network: Network, number: int, targets: Neurons):
        self._held, self._number, self._targets = network._held, number, targets

    def set_rate(self, rate: float | Tensor) -> None:
        """Sets the rate of the following steps, spikes per step: a scalar or [size]."""
        what = f"Network: the rate that drives {self._targets.name}"
        _CPP.set_drive(self._held, self._number, spread(what, self._targets, rate))


class Current:
    """Constant input that :meth:`Network.inject` added."""

    def __init__(self, network: Network, number: int, targets: Neurons):
        self._held, self._number, self._targets = network._held, number, targets

    def set_current(self, current: float | Tensor) -> None:
        """Sets the input of the following steps: a scalar or [size]."""
        what = f"Network: the current of {self._targets.name}"
        _CPP.set_current(self._held, self._number, spread(what, self._targets, current))


@dataclasses.dataclass(frozen=True)
class Learned:
    """The learning connections of a projection, as a CSR matrix: rows are sources, columns are targets, both from 0.

    Attributes:
        indices, indptr: int32 [connections] and int64 [sources + 1].
        delays: in steps, [connections], or [1] if all are the same.
        states: name to tensor [connections] after the last step; the first are the weights. They share memory with the
            network.
        traces: name to tensor [sources] or [targets] after the last step; traces of sources are older by the shortest
            delay.
    """

    indices: Tensor
    indptr: Tensor
    delays: Tensor
    states: dict[str, Tensor]
    traces: dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Share:
    """The share that one process has of a network, and the spikes that it has sent to other processes.

    Attributes:
        neurons, connections: the number of its neurons, and of the connections onto them.
        block: steps between two exchanges of spikes: the shortest delay of a connection between processes or areas, at
            most 1024; 0 if there is no such connection.
        exchanges, bytes, seconds: the number of exchanges, the bytes that were sent, and the time that both took,
            including the wait for other processes (on the CPU).
    """

    neurons: int
    connections: int
    block: int
    exchanges: int
    bytes: int
    seconds: float


class Network:
    """Populations, the projections between them and their input, for :func:`simulate`.

    A step delivers the spikes that arrive, adds the drive, steps all neurons, and sends their spikes: a spike of step t
    over a connection of delay d is input of step t + d. Tensor arguments are copied. One thread at a time can use it.

    Args:
        seed: the seed of connections, and by default that of drive and of neurons that draw random numbers.
        dtype: the type of states, weights and pending input; by default torch's default dtype.
        weight_dtype: the type of the weights, e.g. float16 to halve their memory; by default ``dtype``.
        device: a CPU or a GPU.
        deterministic: on a GPU, compute the same bits at every run.
        copies: the number of copies of the network that run together, such as trials or values of a parameter. Copies
            have the same connections, except for connections that learn. Wherever a tensor [size] is allowed,
            [copies, 1] and [copies, size] are allowed too, for values that differ between copies. Networks with a
            ``group`` or with areas have one copy.
        noise_seeds: the seeds of drive, and of neurons that draw random numbers, one for each copy; by default
            ``seed``, ``seed + 1``, ... A copy has the results of a network of one copy with its noise seed, on the CPU
            bit for bit.
        group: processes of ``torch.distributed`` that share the network, such as ``torch.distributed.group.WORLD``
            (docs/scaling.md). All describe the same network, and make the same calls of :meth:`build`,
            :func:`simulate`, :meth:`gather`, :meth:`state_dict` and :meth:`load_state_dict`; each has a share of the
            neurons.
    """

    def __init__(
        self, *, seed: int = 0, dtype: torch.dtype | None = None, weight_dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu", deterministic: bool = False, group: Any = None, copies: int = 1,
        noise_seeds: Sequence[int] | None = None,
    ):  # fmt: skip
        self.seed = check_seed("Network: seed", seed)
        self.dtype = check_dtype("Network: dtype", dtype) or torch.get_default_dtype()
        self.weight_dtype = check_dtype("Network: weight_dtype", weight_dtype) or self.dtype
        self.device = torch.device(device)
        self.deterministic = deterministic
        self.populations: list[Population] = []
        self.group = group
        self.copies = check_whole("Network: copies", copies)
        seeds = [check_seed("Network: a noise seed", seed) for seed in noise_seeds or ()]
        self._held = _CPP.network(
            self.seed, self.dtype, self.weight_dtype, self.device, bool(deterministic), _name_of(group),
            self.copies, seeds,
        )  # fmt: skip
        self._step = self._held.step  # looking it up takes longer than a small step
        self.noise_seeds = seeds or [check_seed("", (self.seed + copy) % 2**64) for copy in range(self.copies)]
        self._projections: list[str] = []  # descriptions, which state_dict() compares
        self._rules: list[Synapse] = []  # of the projections that learn
        self._signals: dict[str, Tensor] = {}  # the last values of the signals of these rules
        self._numbers: dict[tuple[str, int, int, str], int] = {}  # indices of populations
        self._in_use = threading.RLock()
        self._checked_until = 0  # the step up to which states were searched for values that are not finite
        self._warned_of: set[tuple[int, str]] = set()  # states that were not finite

    @property
    def size(self) -> int:
        """The number of neurons of a copy."""
        return self.populations[-1].stop if self.populations else 0

    def populate(
        self, name: str, size: int, neuron: str | Traced, /, *, states: Mapping[str, float | Tensor] | None = None,
        area: str = "", **params: float | Tensor,
    ) -> Population:  # fmt: skip
        """Adds a population of ``size`` neurons.

        Args:
            neuron: neuron text (``docs/neuron_text.md``) or a function decorated by ``@spikeforge.neuron``. It fires
                when its first output is above 0; projections and drive go ``into`` one of its inputs.
            states: initial values of states, scalars or tensors [size]; by default those of the neuron's header.
            params: the neuron's parameters, scalars or tensors [size], by any name but ``states`` and ``area``.
            area: all populations of one area are on one process, if a ``group`` shares the network. Without an area,
                every process has an equal part of the population. Tensors hold the values of all neurons in any case.

        Raises:
            ValueError, TypeError: if a name, a size or a value is not legal, or the first output is known to be graded,
                such as a membrane potential (``docs/networks.md``). The network does not change.
        """
        check_text("Network: the name of a population", name)
        check_text(f"Network: the area of {name}", area)
        size = check_whole(f"Network: the size of {name}", size)
        text = neuron if isinstance(neuron, str) else getattr(neuron, "text", None)
        if not isinstance(text, str):
            raise TypeError(
                f"Network: the neuron of {name} must be neuron text (docs/neuron_text.md) or a traced function, but "
                f"is a {type(neuron).__name__}"
            )
        if states is not None and not isinstance(states, Mapping):
            raise TypeError(
                f"Network: states of {name} must be a dict of names and numbers, but are {states!r:.60}; a parameter "
                "cannot be called states here"
            )
        params = {**getattr(neuron, "defaults", {}), **params}
        states = dict(states or {})
        for key in states:
            check_text(f"Network: a state of {name}", key)
        given = [
            [tensor_of(f"Network: {key} of {name}", value) for key, value in numbers.items()]
            for numbers in (params, states)
        ]
        header = read_header(text)
        with self._alone():
            _CPP.populate(self._held, name, size, text, list(params), given[0], list(states), given[1], area)
            ordered = {key: params[key] for key in header.params}
            made = Population(
                name, self.size, self.size + size, text, header.inputs,
                Values(self, "state", {**header.states, **states}), Values(self, "parameter", ordered), area,
            )  # fmt: skip
            self._numbers.setdefault(_key(made), len(self.populations))
            self.populations.append(made)
        return made

    def project(
        self, sources: Neurons, targets: Neurons, rule: Rule, *,
        weight: float | Law | Tensor | Sequence[float] = 1.0, delay: float | Law | Tensor | Sequence[float] = 1,
        into: str | None = None, plasticity: Synapse | None = None,
    ) -> int | None:  # fmt: skip
        """Connects two populations or parts of populations; see :class:`spikeforge.Projection`.

        A rule on a part draws from the part alone: a fixed in-degree is the number of sources in the part. Such
        connections are drawn at once and stored as with the rule ``arrays``.

        Args:
            delay: in steps, rounded to whole numbers, at least 1: bound a law that may return less by ``low``.
            into: the input of the targets' neuron that receives the spikes; by default its first.
            plasticity: a rule by which the connections learn (``docs/plasticity.md``). The weight is the initial value
                of the rule's first state, and must be within the bounds to which the rule clamps it.

        Returns:
            The index of the projection for :meth:`weights` and :meth:`learned` if it learns, else None.

        Raises:
            ValueError, TypeError: if the projection cannot be drawn. The network does not change.
        """
        if plasticity is not None and not isinstance(plasticity, Synapse):
            raise TypeError(
                "Network: plasticity must be a rule of spikeforge.synapse or spikeforge.plasticity, but is "
                f"{plasticity!r}"
            )
        ends = self._number(sources), self._number(targets)
        where, number, parts = f"Network: {sources.name} to {targets.name}", len(self._projections), (sources, targets)

        def drawn_ends() -> Ends:
            source, target = (p if isinstance(p, Part) else p[:] for p in parts)
            seed, places = seed_of(self.seed, number), (source.indices, target.indices)
            return Ends(where, source.neurons, target.neurons, seed, self.device, places)

        are_parts = any(isinstance(p, Part) for p in parts)
        drawn = Drawn.of(where, rule, weight, delay, self.device, drawn_ends, are_parts)
        learning = (
            (plasticity.text, list(plasticity.params), list(plasticity.params.values())) if plasticity else ("", [], [])
        )
        into = check_text("Network: into", into or "")
        described = (
            f"{sources.name} to {targets.name}, {into or 'first input'}: {rule.rule} {drawn.amount:g}, "
            f"autapses {rule.autapses}, multapses {rule.multapses}, weight {drawn.weight}, delay {drawn.delay}"
            + (f", {plasticity.text}, {dict(plasticity.params)}" if plasticity else "")
            + _digest(drawn.arrays)
        )
        with self._alone():
            described_by = drawn.amount, drawn.choices, drawn.laws, drawn.numbers, drawn.arrays
            learns = _CPP.project(self._held, *ends, drawn.rule.rule, *described_by, into, *learning)
            self._projections.append(described)
            if plasticity is None:
                return None
            self._rules.append(plasticity)
            self._signals.update({name: torch.tensor(0.0, device="cpu") for name in plasticity.signals})
            return learns

    def drive(
        self, targets: Neurons, rate: float | Tensor, *, weight: float | Tensor = 1.0, into: str | None = None
    ) -> Drive:
        """Adds Poisson input: in each step a neuron receives ``weight`` times a Poisson number of mean ``rate``.

        The same seed draws the same numbers on every device and for any number of threads. Drives can be added between
        steps, and :meth:`Drive.set_rate` of the result changes the rate.

        Args:
            rate: spikes per step, a scalar or [size]; ``rate_hz * dt_ms / 1000`` for steps of ``dt_ms``.
            weight: the input per spike, a scalar or [size]. A neuron whose weight in a tensor is 0 is not driven.
            into: the input of the targets' neuron; by default its first.
        """
        number, into = self._number(targets), check_text("Network: into", into or "")
        weights = spread(f"Network: the weight of what drives {targets.name}", targets, weight)
        rates = spread(f"Network: the rate that drives {targets.name}", targets, rate)
        return Drive(self, _CPP.drive(self._held, number, rates, weights, into), targets)

    def inject(self, targets: Neurons, current: float | Tensor, *, into: str | None = None) -> Current:
        """Adds a constant to an input in each step: a scalar or [size].

        Currents can be added between steps, and :meth:`Current.set_current` of the result changes the value."""
        number, into = self._number(targets), check_text("Network: into", into or "")
        currents = spread(f"Network: the current of {targets.name}", targets, current)
        return Current(self, _CPP.inject(self._held, number, currents, into), targets)

    def silence(
        self, population: Neurons, neurons: Tensor | Sequence[int] | None = None, *, silent: bool = True,
        copy: int | None = None,
    ) -> None:  # fmt: skip
        """Suppresses the spikes of neurons from the next step on: they are neither sent nor recorded.

        Their states change as before. Builds the network.

        Args:
            neurons: whole numbers, counted within the population or part; by default all its neurons.
            silent: False ends the suppression.
            copy: the copy of the network; by default all.
        """
        number = self._number(population)
        chosen = range(len(population)) if neurons is None else neurons
        what = f"Network: the neurons of {population.name} to silence"
        numbers = within(what, population, chosen)
        copy = None if copy is None else check_whole("Network: copy", copy)
        _CPP.silence(self._held, number, numbers, bool(silent), copy)

    def step(self, steps: int = 1, inputs: Inputs | None = None) -> Tensor:
        """Runs some steps, and returns their spikes; for closed loops.

        It continues where the last call ended, with the results of :func:`simulate`, and takes less time than
        :func:`simulate` if there are few steps. It does not synchronise with a GPU, unless inputs are events or
        several parts of populations.

        Args:
            steps: the number of steps.
            inputs: see :func:`simulate`.

        Returns:
            bool [steps, neurons of the network], or [steps, copies, neurons] if there are copies, on the network's
            device. ``spikes[..., population.neurons]`` are those of a population.

        Raises:
            NotImplementedError: if a process group shares the network.
        """
        steps = check_whole("step: steps", steps)
        return self._step(steps, *read_inputs(self, inputs, steps).of(0, steps))

    def build(self) -> Connectivity:
        """Draws the connections; the first :func:`simulate` does so otherwise. Nothing can be added afterwards.

        Column k * size + j is input k of neuron j. On the CPU the columns of a row ascend. ``weights`` share memory
        with the network: a value written in place is used from the next step on. ``indices``, ``indptr`` and ``delays``
        are copies. If the network has a group or areas, all are copies; with a group, the connections onto this
        process's neurons."""
        is_plain = self.group is None and not any(p.area for p in self.populations)
        indices, indptr, weights, delays = (_CPP.build if is_plain else _CPP.connectivity)(self._held)
        inputs = max((len(p.inputs) for p in self.populations), default=1)
        return Connectivity(indices, indptr, weights, delays, rows=self.size, cols=self.size * inputs)

    def learned(self, projection: int, copy: int = 0) -> Learned:
        """Returns the connections of the learning projection with this index of :meth:`project`, in a copy of the
        network; builds the network."""
        if isinstance(projection, bool) or not isinstance(projection, int) or not 0 <= projection < len(self._rules):
            raise ValueError(
                f"Network: projection must be an index that project() returned, below {len(self._rules)}, but is "
                f"{projection!r}"
            )
        rule = self._rules[projection]
        indices, indptr, delays, states, traces = _CPP.learned(
            self._held, projection, check_whole("Network: copy", copy)
        )
        return Learned(indices, indptr, delays, dict(zip(rule.states, states)), dict(zip(rule.traces, traces)))

    def weights(self, projection: int, copy: int = 0) -> Tensor:
        """Returns the weights [connections] of a learning projection in a copy; they share memory with the network."""
        return next(iter(self.learned(projection, copy).states.values()))

    def modulate(self, /, **signals: float | Tensor) -> None:
        """Sets signals of the rules of projections, from the next step on; builds the network.

        Args:
            signals: scalars, or tensors with one value for each target (with copies, also [copies, 1] or
                [copies, targets]). A signal whose values are all 0 is not sent.
        """
        numbers = {name: tensor_of(f"Network: the signal {name}", value) for name, value in signals.items()}
        with self._alone():
            _CPP.modulate(self._held, list(numbers), list(numbers.values()))
            self._signals.update({name: number.clone() for name, number in numbers.items()})

    def share(self) -> Share:
        """Returns the share of this process; builds the network."""
        return Share(*_CPP.share(self._held))

    def gather(self, recording: Recording) -> Recording:
        """Returns the recordings of all processes of the group from the same call of :func:`simulate`.

        Raises:
            ValueError: if the processes pass recordings of different calls, or one that was gathered before.
        """
        if not isinstance(recording, Recording):
            raise TypeError(f"Network: gather takes a Recording of simulate(), but this is {recording!r:.60}")
        span = recording.span
        steps, neurons = _CPP.gather(self._held, recording.steps, recording.neurons, span.start, len(span))
        return dataclasses.replace(recording, steps=steps, neurons=neurons)

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that changes in a step, and a description of the network for :meth:`load_state_dict`.

        Builds the network. The state includes the signals of :meth:`modulate`, and excludes weights that do not learn,
        even if they were written. For a process group, it covers the whole network on all processes; a group of any
        size can load it."""
        return {
            "tensors": _CPP.state(self._held),
            "signals": {name: t.clone() for name, t in self._signals.items()},
            "network": self._fingerprint(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a :meth:`state_dict` of a network with the same populations, projections and seed.

        A state without ``"signals"`` leaves the signals unchanged.

        Raises:
            ValueError: if the state is not a state or that of another network, or processes of a group load different
                states.
        """
        wrong = self._why_not(state, self._fingerprint())
        before = dict(self._signals)
        try:
            self.modulate(**(before if wrong else state.get("signals", before)))
            _CPP.load_state(
                self._held, [] if wrong else list(state["tensors"])
            )  # also notifies other processes of a failure
        except Exception as error:
            self.modulate(**before)
            if wrong and isinstance(error, ValueError):
                raise ValueError(wrong) from None
            raise

    def _why_not(self, state: Any, own: Mapping[str, Any]) -> str:
        """Returns the reason why a state does not fit this network, or an empty string."""
        for key in ("tensors", "network"):
            if not isinstance(state, Mapping) or key not in state:
                return f"Network: a state must be a result of state_dict(), but this one has no {key!r}"
        tensors, given = state["tensors"], state["network"]
        if (
            not isinstance(tensors, Sequence)
            or not all(isinstance(t, Tensor) for t in tensors)
            or not isinstance(given, Mapping)
        ):
            return (
                "Network: a state must be a result of state_dict(), a list of tensors and a dict, but this one has "
                f"{tensors!r:.60} and {given!r:.60}"
            )
        given = {"copies": 1, "noise_seeds": [self.seed], **given}  # not in states of version 0.2
        for key, value in own.items():
            if key not in given or given[key] != value:
                difference = _first_difference(key, given.get(key), value)
                return f"Network: this is the state of another network: its {difference}"
        signals = state.get("signals", self._signals)
        if not isinstance(signals, Mapping) or signals.keys() != self._signals.keys():
            names = ", ".join(self._signals) or "none"
            return f"Network: the signals of a state must be a dict of {names}, but are {signals!r:.60}"
        return ""

    def _fingerprint(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "copies": self.copies,
            "noise_seeds": self.noise_seeds,
            "populations": [
                f"{p.name}, neurons {p.start}:{p.stop}, {p.text}" + (f", area {p.area}" if p.area else "")
                for p in self.populations
            ],
            "projections": list(self._projections),
            "connections": _CPP.connections(self._held),
        }

    def __reduce__(self):
        raise TypeError(
            "Network: a network can be neither copied nor pickled; construct it again, and load_state_dict() the "
            "state_dict() of this one"
        )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Guards calls that change the network's description in Python; operators raise for a second thread."""
        if not self._in_use.acquire(blocking=False):
            raise RuntimeError("Network: another thread is using this network: only one thread at a time may use it")
        try:
            yield
        finally:
            self._in_use.release()

    def _warn_of_states(self, span: range) -> None:
        """Warns of states that became infinite or NaN, once of each, after at least ``STEPS_UNCHECKED`` steps."""
        first = self._checked_until = min(self._checked_until, span.start)
        if span.stop - first < STEPS_UNCHECKED:
            return
        self._checked_until = span.stop
        names = [(i, name) for i, p in enumerate(self.populations) for name in p.states]
        names = [each for each in names if each not in self._warned_of]
        finite = [self.populations[i].states[name].isfinite().all() for i, name in names]
        for (i, name), is_finite in zip(names, torch.stack(finite).tolist() if finite else ()):
            p = self.populations[i]
            if is_finite or not tensor_of("", p.states.initial[name]).isfinite().all():
                continue
            self._warned_of.add((i, name))
            warn_caller(
                f"simulate: the state {name} of {p.name} is not finite after steps {first} to {span.stop - 1}: a "
                "neuron diverges, or has infinite input",
                RuntimeWarning,
            )

    def _number(self, neurons: Neurons) -> int:
        """Returns the index of a population, or of a copy of it, or of the population of a part."""
        population = neurons.population if isinstance(neurons, Part) else neurons
        if not isinstance(population, Population):
            raise TypeError(f"Network: a population must be a result of populate(), but is {population!r}")
        if (number := self._numbers.get(_key(population))) is None:
            raise ValueError(f"Network: {population.name} is not a population of this network")
        return number


def _key(population: Population) -> tuple[str, int, int, str]:
    return population.name, population.start, population.stop, population.text


def _name_of(group: Any) -> str:
    """Returns the name of a group in torch.distributed."""
    if group is None:
        return ""
    if not torch.distributed.is_available() or not isinstance(group, torch.distributed.ProcessGroup):
        raise TypeError(f"Network: a group must be one of torch.distributed that this process is in, but is {group!r}")
    return group.group_name


def _digest(arrays: Sequence[Tensor]) -> str:
    """Returns a hash of the connections that are passed as arrays."""
    if not arrays:
        return ""
    digest = hashlib.sha256()
    for t in arrays:
        t = t.cpu().to_dense().resolve_neg().contiguous()
        bytes_of = t if t.numel() > 1 else t.clone(memory_format=torch.contiguous_format)
        digest.update(bytes_of.view(torch.uint8).numpy().data)
    return f", arrays {digest.hexdigest()[:16]}"


def _first_difference(key: str, given: Any, own: Any) -> str:
    if isinstance(given, list) and isinstance(own, list):
        if len(given) != len(own):
            return f"{key} are {len(given)}, but this one's are {len(own)}"
        given, own = next((a, b) for a, b in zip(given, own) if a != b)
        return f"{key} have '{given}', but this one's have '{own}'"
    return (
        f"{key} is {given}, but this one's is {own}"
        if key == "seed"
        else f"{key} are {given}, but this one's are {own}"
    )


def _of_copy(copy: int, spikes: Spikes, rows: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    steps, neurons, copies = spikes
    here = copies == copy
    return steps[here], neurons[here], [t[:, copy] for t in rows]


def simulate(
    network: Network,
    steps: int,
    *,
    spikes: bool = True,
    states: Sequence[tuple[Neurons, str, Tensor | Sequence[int]]] = (),
    every: int = 1,
    inputs: Inputs | None = None,
    progress: bool = False,
    output_dir: str | os.PathLike[str] | None = None,
    dt: Any = None,
) -> Recording:
    """Runs a network for some steps, and continues where the last call ended.

    On a GPU, one kernel runs many steps. If the network is deterministic or learns (or has more kinds of neuron than
    the GPU has multiprocessors, or more than four drives of one input), steps without inputs are replays of a CUDA
    graph.
    Interrupts are handled between pieces of half a second, 1000 steps or, on a GPU, 10000 steps: the network is then
    after the last complete piece, on all processes of a group.

    After 1000 steps or more, a RuntimeWarning names each state that has become infinite or NaN, once.

    Memory for recorded states is allocated before the first step; each recorded spike takes 16 bytes. If spikes do not
    fit into memory, a network on the CPU without a group is after the last complete block of steps, and the recording
    is lost. After any other failure in the middle of a step, call :meth:`Network.load_state_dict`.

    Args:
        steps: the number of steps.
        spikes: record spikes.
        states: (population, name of a state, neurons) triples to record; neurons are whole numbers, counted within the
            population or part.
        every: record states after steps ``every``, ``2 * every``, ... of the call, at least 1;
            ``Recording.state_steps`` are their indices. Steps are run in pieces of at most 64 MB of states.
        inputs: input in addition to drives and currents: a dict from a population or part, or (population, name of an
            input), to a tensor [steps, size] in the units of that input, or [steps, copies, size]; or to events, a
            tuple of steps (from 0, the first step of the call), neurons (from 0), weights and copies, each [events].
            The weights may be a scalar, and are 1 by default. Events without copies are input of all copies. Events of
            the same neuron and step are added.
        progress: show a progress bar on a terminal.
        output_dir: a folder, to which spikes and states are written while the network runs, instead of into memory:
            ``spikes.h5``, and ``<state>_report.h5`` for each name of a state (``docs/networks.md``), in a folder
            ``copy_<number>`` for each copy if there are several. Existing files are replaced.
        dt: with ``output_dir``, the duration of a step: a ``quantities`` time, or a number of milliseconds.

    Raises:
        ValueError: if a state or a neuron does not exist, an input has another shape, steps is negative, every is
            below 1, dt is not a positive time, or names or entries of states do not fit into files.
        TypeError: if neurons are not whole numbers, such as a mask.
        RuntimeError: if another thread is using the network, processes of a group make different calls or one of them
            failed, recorded states do not fit into memory, or an earlier call failed in the middle of a step.
        MemoryError: if recorded spikes do not fit into memory.
        ImportError: if ``output_dir`` is given, but h5py is not installed.
        OSError: if a file cannot be written; the network is after the last complete piece.
        NotImplementedError: if ``output_dir`` is given, and a process group shares the network.
    """
    steps = check_whole("simulate: steps", steps)
    if steps < 0:
        raise ValueError(f"simulate: steps must not be negative, but is {steps}")
    every = check_whole("simulate: every", every)
    if every < 1:
        raise ValueError(f"simulate: every must be at least 1, but is {every}")
    probes = requested(network, spikes, states)
    given = read_inputs(network, inputs, steps)
    is_shown = progress and sys.stderr.isatty()
    if (output_dir is None) != (dt is None):
        raise ValueError("simulate: output_dir needs dt, the duration of a step, and dt needs output_dir")
    writers = []
    if output_dir is not None:
        if network.group is not None:
            raise NotImplementedError("simulate: output_dir is not supported for a network with a process group")
        folders = (
            [output_dir] if network.copies == 1 else [Path(output_dir, f"copy_{c}") for c in range(network.copies)]
        )
        writers = [SonataWriter(folder, milliseconds("simulate", dt), network, probes) for folder in folders]
    run = Run(network, steps, probes, given, every, not writers, is_shown)
    with network._alone():
        begun, recorded = time.perf_counter(), []
        run.begin()
        with contextlib.ExitStack() as files:
            for writer in writers:
                files.enter_context(writer.open(run.first, every))
            for done, piece, rows in run.pieces():
                for copy, writer in enumerate(writers):
                    writer.write(*(_of_copy(copy, piece, rows) if len(writers) > 1 else (*piece[:2], rows)))
                if not writers:
                    recorded.append(piece)
                if is_shown and done:
                    show_progress(done, steps, time.perf_counter() - begun)
        if writers:
            recorded.append((torch.empty(0, dtype=torch.long, device=network.device),) * 3)
        when, neurons, copies = (torch.cat(each) for each in zip(*recorded))
        span = range(run.first, run.first + steps)
        network._warn_of_states(span)
        paths = tuple(path for writer in writers for path in writer.paths)
        of_spikes = copies if network.copies > 1 else None
        return Recording(when, neurons, run.states, span, every, paths, of_spikes, network.copies)
