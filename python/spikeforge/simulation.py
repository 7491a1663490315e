"""Simulated networks: populations of any neuron, projections with delays, drive, recordings."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spikeforge.connecting import Connectivity, Projection, connect
from spikeforge.nn.own import Traced
from spikeforge.nn.text import read_header
from spikeforge.rules import Law, Rule

LARGEST_TABLED = 20.0  # rate: above it a table has many entries, and its smallest are below a float's precision
STEPS_AT_ONCE = 20  # on a GPU in one CUDA graph; what is recorded is listed as often


@dataclasses.dataclass(frozen=True)
class Population:
    """Neurons ``start`` to ``stop - 1`` of a network, which are alike but for their numbers."""

    name: str
    start: int
    stop: int
    text: str
    inputs: tuple[str, ...]
    states: dict[str, Any]
    params: dict[str, Any]

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def neurons(self) -> slice:
        return slice(self.start, self.stop)


@dataclasses.dataclass(frozen=True)
class Recording:
    """What a call of :func:`simulate` recorded.

    Attributes:
        steps, neurons: int64 [spikes], in the order of steps: when each spike was, and whose.
        states: a tensor [steps of the call, neurons chosen] for each (population, state, neurons) asked for.
    """

    steps: Tensor
    neurons: Tensor
    states: list[Tensor]

    def of(self, population: Population) -> tuple[Tensor, Tensor]:
        """Steps and neurons of a population, whose first neuron is 0 then."""
        here = (self.neurons >= population.start) & (self.neurons < population.stop)
        return self.steps[here], self.neurons[here] - population.start


class Network:
    """Populations, projections between them and what drives them, for :func:`simulate`.

    A step takes what arrives now, adds drive, steps all neurons, and sends their spikes on their way: a spike of step t
    over a connection of delay d is input of step t + d.

    Args:
        seed: of connections and drive.
        dtype: of states, weights and what is on its way; by default torch's.
        weight_dtype: of the weights alone, e.g. float16 to halve their memory.
        deterministic: on a GPU the same bits at every run.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        weight_dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        deterministic: bool = False,
    ):
        self.seed = seed
        self.dtype = dtype or torch.get_default_dtype()
        self.weight_dtype = weight_dtype or self.dtype
        if self.dtype not in (torch.float32, torch.float64) or (self.weight_dtype == torch.float64) != (self.dtype == torch.float64):
            raise TypeError(
                f"Network: states are float32 or, with float64 weights, float64, but are {self.dtype} beside weights in {self.weight_dtype}"
            )
        self.device = torch.device(device)
        self.deterministic = deterministic
        self.populations: list[Population] = []
        self._projections: list[tuple[Population, Population, Rule, Any, Any, int]] = []
        self._drives: list[Drive] = []
        self._currents: list[tuple[Population, Any, int]] = []
        self._running: Running | None = None

    @property
    def size(self) -> int:
        """The number of neurons."""
        return self.populations[-1].stop if self.populations else 0

    def populate(
        self,
        name: str,
        size: int,
        neuron: str | Traced,
        *,
        states: Mapping[str, float | Tensor] | None = None,
        **params: float | Tensor,
    ) -> Population:
        """Adds ``size`` neurons.

        Args:
            neuron: text (``docs/neuron_text.md``) or what ``@spikeforge.neuron`` made of a function, without a gradient
                of its spike. Its first output is the spike; its inputs are what projections and drive go ``into``.
            states: where states start, numbers or tensors [size]; else as the neuron's header says.
            params: the neuron's parameters, numbers or tensors [size].
        """
        self._must_be_open("populate")
        text = neuron if isinstance(neuron, str) else neuron.text
        header = read_header(text)
        params = {**getattr(neuron, "defaults", {}), **params}
        states = {**header.states, **(states or {})}
        if size < 0:
            raise ValueError(f"Network: the size of {name} must not be negative, but is {size}")
        for kind, given, known in (("state", states, header.states), ("parameter", params, header.params)):
            for key, value in given.items():
                if key not in known:
                    raise ValueError(f"Network: the neuron of {name} has no {kind} {key}; it has {', '.join(known) or 'none'}")
                if isinstance(value, Tensor) and value.dim() > 0 and value.shape != (size,):
                    raise ValueError(f"Network: {key} of {name} must be a number or have shape [{size}], but has {list(value.shape)}")
        for key in header.params:
            if key not in params:
                raise ValueError(f"Network: the parameter {key} of {name} is not given")
        ordered = {key: params[key] for key in header.params}
        self.populations.append(Population(name, self.size, self.size + size, text, header.inputs, states, ordered))
        return self.populations[-1]

    def project(
        self,
        sources: Population,
        targets: Population,
        rule: Rule,
        *,
        weight: float | Law | Tensor = 1.0,
        delay: float | Law | Tensor = 1,
        into: str | None = None,
    ) -> None:
        """Connects two populations; see :class:`spikeforge.Projection`.

        Args:
            delay: in steps, at least 1.
            into: the input of the targets' neuron that spikes arrive at; by default its first.
        """
        self._must_be_open("project")
        self._projections.append((sources, targets, rule, weight, delay, _input_of(targets, into)))

    def drive(self, targets: Population, rate: float | Tensor, *, weight: float = 1.0, into: str | None = None) -> None:
        """Poisson input: in each step a neuron gets ``weight`` times a Poisson number of mean ``rate``, a number or [size]."""
        self._must_be_open("drive")
        rates = _spread(targets, "rate", rate, torch.float64)
        if not bool(((rates >= 0) & rates.isfinite()).all()):
            raise ValueError(f"Network: the rate that drives {targets.name} must be finite and not negative, but is {rate}")
        first = _input_of(targets, into)
        self._drives.append(Drive(first, targets.start, targets.stop, rates, float(weight)))

    def inject(self, targets: Population, current: float | Tensor, *, into: str | None = None) -> None:
        """Adds a constant to an input in each step: a number or [size]."""
        self._must_be_open("inject")
        self._currents.append((targets, current, _input_of(targets, into)))

    def build(self) -> Connectivity:
        """Draws the connections, which the first :func:`simulate` does else; nothing can be added then."""
        if self._running is None:
            self._running = Running(self)
        return self._running.matrix

    @property
    def running(self) -> Running:
        self.build()
        assert self._running is not None
        return self._running

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes in a step: with it the network goes on as this one does."""
        return self.running.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the network of :meth:`state_dict` was, which has the same populations, projections and seed."""
        self.running.load_state_dict(state)

    def _must_be_open(self, what: str) -> None:
        if self._running is not None:
            raise RuntimeError(f"Network: {what} must come before the network is built or simulated")


@dataclasses.dataclass
class Drive:
    """Poisson input of neurons ``start`` to ``stop - 1``, at their input number ``into``."""

    into: int
    start: int
    stop: int
    rates: Tensor
    weight: float

    def table(self) -> Tensor | None:
        """Of one rate for all, that is not large: P(count <= k) for k = 0, 1, ..., as far as float32 tells them from 1."""
        rate = float(self.rates[0]) if len(self.rates) else 0.0
        if rate > LARGEST_TABLED or not bool((self.rates == rate).all()):
            return None
        below, term, count = [], math.exp(-rate), 0
        while not below or below[-1] < 1 - 2**-24 and count < 100:
            below.append((below[-1] if below else 0.0) + term)
            count += 1
            term *= rate / count
        return torch.tensor(below, dtype=torch.float32)


def _input_of(targets: Population, name: str | None) -> int:
    if name is None:
        return 0
    if name not in targets.inputs:
        raise ValueError(f"Network: the neuron of {targets.name} has no input {name}; its inputs: {', '.join(targets.inputs)}")
    return targets.inputs.index(name)


def _spread(population: Population, name: str, value: Any, dtype: torch.dtype) -> Tensor:
    """[size]"""
    t = torch.as_tensor(value, dtype=dtype)
    if t.dim() > 0 and t.shape != (len(population),):
        raise ValueError(f"Network: {name} of {population.name} must be a number or have shape [{len(population)}], but has {list(t.shape)}")
    return t.expand(len(population))


class Group:
    """Neighbouring populations of one neuron, which are stepped by one call."""

    def __init__(self, populations: Sequence[Population], dtype: torch.dtype, device: torch.device):
        first = populations[0]
        self.start, self.stop, self.text = first.start, populations[-1].stop, first.text
        self.inputs = len(first.inputs)
        gather = lambda key, of: torch.cat([_spread(p, key, getattr(p, of)[key], dtype) for p in populations]).to(device)
        self.state_names = tuple(read_header(first.text).states)
        self.states = [gather(key, "states").clone() for key in self.state_names]
        self.params = []
        for key in first.params:
            values = [p.params[key] for p in populations]
            one = all(not isinstance(v, Tensor) and v == values[0] for v in values)
            self.params.append(torch.tensor(values[0], dtype=dtype, device=device) if one else gather(key, "params"))

    @staticmethod
    def all_of(network: Network) -> list[Group]:
        runs: list[list[Population]] = []
        for population in network.populations:
            if runs and runs[-1][0].text == population.text:
                runs[-1].append(population)
            else:
                runs.append([population])
        return [Group(populations, network.dtype, network.device) for populations in runs]


class Running:
    """The tensors of a network under way."""

    def __init__(self, network: Network):
        device, dtype = network.device, network.dtype
        self.size = network.size
        self.groups = Group.all_of(network)
        self.columns = self.size * max((group.inputs for group in self.groups), default=1)
        shifted = lambda p, into: slice(into * self.size + p.start, into * self.size + p.stop)
        self.matrix = connect(
            self.size,
            self.columns,
            [Projection(a.neurons, shifted(b, into), rule, weight, delay) for a, b, rule, weight, delay, into in network._projections],
            seed=network.seed,
            dtype=network.weight_dtype,
            device=device,
        )
        delays = self.matrix.delays
        if network._projections and len(self.matrix.indices) and int(delays.min()) < 1:
            raise ValueError("Network: a delay must be at least 1 step, but one is 0")
        self.slots = int(delays.max()) + 1 if delays.numel() else 2
        self.buffer = torch.zeros(self.slots, self.columns, dtype=dtype, device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.spikes = torch.zeros(self.size, dtype=dtype, device=device)
        self.current = None
        for population, current, into in network._currents:
            if self.current is None:
                self.current = torch.zeros(self.columns, dtype=dtype, device=device)
            self.current[shifted(population, into)] += _spread(population, "current", current, dtype).to(device)
        # Poisson numbers of one rate are uniform ones, looked up: a third of torch.poisson's time.
        self.drives = [dataclasses.replace(drive, rates=drive.rates.to(device, dtype)) for drive in network._drives]
        tables = [drive.table() for drive in network._drives]
        self.tables = [table if table is None else table.to(device) for table in tables]
        lengths = [0 if table is None else drive.stop - drive.start for drive, table in zip(self.drives, tables)]
        self.uniform = torch.zeros(sum(lengths), dtype=torch.float32, device=device)
        self.uniforms = self.uniform.split(lengths) if lengths else ()
        self.generator = torch.Generator(device).manual_seed(network.seed)
        self.deterministic = network.deterministic

    def advance(self) -> Tensor:
        """One step; the spikes of it, valid until the next."""
        ops, matrix = torch.ops.spikeforge, self.matrix
        arriving = ops.take_arrivals_(self.buffer, self.step)
        if self.current is not None:
            arriving += self.current
        if len(self.uniform):
            self.uniform.uniform_(generator=self.generator)
        for drive, table, uniform in zip(self.drives, self.tables, self.uniforms):
            if table is None:
                counts = torch.poisson(drive.rates, self.generator)
            else:
                counts = torch.bucketize(uniform, table, out_int32=True, right=True)
            first = drive.into * self.size
            arriving[first + drive.start : first + drive.stop].add_(counts, alpha=drive.weight)
        inputs = arriving.view(-1, 1, self.size)
        for group in self.groups:
            mine = inputs[..., group.start : group.stop].unbind()[: group.inputs]
            outputs, states = ops.run(group.text, mine, group.states, group.params)
            self.spikes[group.start : group.stop] = outputs[0][0]
            if self.buffer.is_cuda:  # a graph begins with the tensors that it ends with
                for to, of in zip(group.states, states):
                    to.copy_(of)
            else:
                group.states = states
        ops.event_csrmv_delayed_(
            matrix.weights, matrix.indices, matrix.indptr, self.spikes, matrix.delays, self.buffer, self.step,
            rows=self.size, cols=self.columns, transpose=True, deterministic=self.deterministic,
        )
        self.step += 1
        return self.spikes

    def changing(self) -> list[Tensor]:
        return [self.buffer, self.step, self.spikes, *(state for group in self.groups for state in group.states)]

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": [t.clone() for t in self.changing()], "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tensors = self.changing()
        if [t.shape for t in tensors] != [t.shape for t in state["tensors"]]:
            raise ValueError("Network: this is the state of another network: its sizes are others")
        for to, of in zip(tensors, state["tensors"]):
            to.copy_(of)
        self.generator.set_state(state["generator"].cpu())


class Recorder:
    """Keeps what ``steps`` steps did, in tensors of which a CUDA graph knows the address."""

    def __init__(self, running: Running, steps: int, chosen: Sequence[tuple[Group, int, Tensor]], spikes: bool):
        self.running, self.steps, self.chosen = running, steps, chosen
        self.fired = torch.zeros(steps if spikes else 0, running.size, dtype=torch.bool, device=running.buffer.device)
        self.states = [torch.zeros(steps, len(neurons), dtype=running.buffer.dtype, device=running.buffer.device) for _, _, neurons in chosen]
        self.graph = self._captured() if running.buffer.is_cuda else None

    def _run(self, steps: int) -> None:
        for i in range(steps):
            spikes = self.running.advance()
            if len(self.fired):
                torch.gt(spikes, 0, out=self.fired[i])
            for to, (group, state, neurons) in zip(self.states, self.chosen):
                torch.index_select(group.states[state], 0, neurons, out=to[i])

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The kernels are compiled by a step that is not to count."""
        running = self.running
        before = running.state_dict()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._run(1)
        torch.cuda.current_stream().wait_stream(side)
        running.load_state_dict(before)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(running.generator)
        with torch.cuda.graph(graph):
            self._run(self.steps)
        return graph

    def run(self, steps: int) -> None:
        if self.graph is not None and steps == self.steps:
            self.graph.replay()
        else:
            self._run(steps)


def simulate(
    network: Network,
    steps: int,
    *,
    spikes: bool = True,
    states: Sequence[tuple[Population, str, Tensor | Sequence[int]]] = (),
    progress: bool = False,
) -> Recording:
    """Steps a network on, from where the last call left it.

    Args:
        spikes: whether they are recorded.
        states: of which neurons (counted within the population) which state is recorded after each step.
        progress: shows a bar, where there is a terminal.

    Raises:
        ValueError: for a state or a neuron that is not there, and negative steps.
    """
    if steps < 0:
        raise ValueError(f"simulate: steps must not be negative, but is {steps}")
    running = network.running
    chosen = [_chosen(running, *each) for each in states]
    with torch.no_grad():
        recorder = Recorder(running, min(steps, STEPS_AT_ONCE), chosen, spikes)
        begun, done, listed, kept = time.perf_counter(), 0, [], []
        first = int(running.step)
        while done < steps:
            count = min(recorder.steps, steps - done)
            recorder.run(count)
            if spikes:
                step, neuron = recorder.fired[:count].nonzero().unbind(1)
                listed.append((step + (first + done), neuron))
            kept.append([t[:count].clone() for t in recorder.states])
            done += count
            if progress:
                _show(done, steps, time.perf_counter() - begun)
    empty = torch.zeros(0, dtype=torch.int64, device=network.device)
    when, who = (torch.cat([empty, *(pair[i] for pair in listed)]) for i in (0, 1))
    return Recording(when, who, [torch.cat(pieces) for pieces in zip(*kept)] if kept else recorder.states)


def _chosen(running: Running, population: Population, state: str, neurons: Tensor | Sequence[int]) -> tuple[Group, int, Tensor]:
    group = next(g for g in running.groups if g.start <= population.start and population.stop <= g.stop)
    if state not in group.state_names:
        raise ValueError(f"simulate: the neuron of {population.name} has no state {state}; it has {', '.join(group.state_names)}")
    numbers = torch.as_tensor(neurons, dtype=torch.int64, device=running.buffer.device)
    if numbers.dim() != 1 or bool(((numbers < 0) | (numbers >= len(population))).any()):
        raise ValueError(f"simulate: neurons of {population.name} must be numbers from 0 to {len(population) - 1}")
    return group, group.state_names.index(state), numbers + (population.start - group.start)


def _show(done: int, steps: int, seconds: float) -> None:
    if not sys.stderr.isatty():
        return
    filled = 40 * done // steps
    left = math.ceil(seconds / done * (steps - done))
    end = "\n" if done == steps else ""
    print(f"\r[{'#' * filled}{'.' * (40 - filled)}] {done}/{steps} steps, {left} s left ", end=end, file=sys.stderr, flush=True)
