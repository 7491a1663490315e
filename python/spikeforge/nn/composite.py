"""Networks of named modules, with connections, delays and loops between their ports."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from spikeforge.nn import samples
from spikeforge.nn.containers import Container
from spikeforge.nn.loops import Loop, find_loop, prepare_loop, run_loop, takes
from spikeforge.nn.parts import check_called_once_a_step, output_like, part_at_rest, run_part
from spikeforge.nn.plan import Connection, Port, Stage, make_plan, path_without_delay
from spikeforge.nn.stateful import (
    State,
    StatefulModule,
    States,
    _join,
    get_states,
    own_state,
    shape_of,
    stateful_modules,
)

OUTSIDE = None


@dataclass
class Run:
    """The intermediate results of one call."""

    inputs: Sequence[Tensor]
    steps: int
    state: Mapping[str, State] | None  # the state of each part; None: the states that the parts keep
    lines: State = field(default_factory=dict)  # values in flight before the call, by state name
    store: bool = False
    outputs: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    after: State = field(default_factory=dict)


class Composite(Container):
    """Modules by name, connections between their ports, delays and loops.

    >>> net = Composite()
    >>> net.add("dense", nn.Linear(16, 8))
    >>> net.add("lif", LIF())
    >>> net.connect("in", "dense.in")
    >>> net.connect("dense.out", "lif.in", delay=1)
    >>> net.connect("lif.out", "out")
    >>> net.alias("v", "lif.v")

    "dense.in" is a port of a part; a name without a dot is a port of the network itself. Several connections into one
    port are summed in the order in which they were made. A connection delays by 0 or more steps; the values in flight
    are a state of the network, ``[delay, *shape]``, the oldest first, and zero at the start. A loop needs a delay of 1
    or more. :func:`detach_` cuts the history of the values in flight: put a delay before a layer, not after it, if the
    layer's weights learn from pieces of a sequence.

    Parts outside loops run over all steps at once, one after the other; the parts of a loop are stepped together,
    bit for bit as if the whole were stepped. But a neuron whose output feeds back to it only through an ``nn.Linear``
    is one operator over time, ``recurrent_run``, whose sums agree with those of steps within rounding; ``repr`` shows
    which loops are stepped, and why. A network can be a part of another network. A
    layer of torch is called once per step unless it is wrapped in :class:`~spikeforge.nn.TimeDistributed`.

    A call takes the network's inputs and returns its outputs, a tensor or a tuple, in the order in which connections
    name them.
    """

    takes_samples = True

    def __init__(self, *, stateful: bool = False, persistent_state: bool = False):
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        self._connections: list[Connection] = []
        self._index_connections()
        self._aliases: dict[str, tuple[str, tuple[int, ...] | None]] = {}
        self._plan: list[Stage] | None = None
        self._inputs: dict[str, int] = {}  # the indices of the network's own ports
        self._outputs: dict[str, int] = {}

    @property
    def in_ports(self) -> tuple[str, ...]:
        return tuple(self._inputs)

    @property
    def out_ports(self) -> tuple[str, ...]:
        return tuple(self._outputs)

    def _index_connections(self) -> None:
        self._into: dict[Port, list[Connection]] = {}
        self._leaving: dict[str | None, list[Connection]] = {}
        self._entering: dict[str | None, list[Connection]] = {}
        self._ends: set[tuple[Port, Port, int]] = set()
        self._delayed: dict[str, Connection] = {}  # by the names of their states
        for connection in self._connections:
            self._index_connection(connection)

    def _index_connection(self, connection: Connection) -> None:
        self._into.setdefault(connection.target, []).append(connection)
        self._leaving.setdefault(connection.source.part, []).append(connection)
        self._entering.setdefault(connection.target.part, []).append(connection)
        self._ends.add((connection.source, connection.target, connection.delay))
        if connection.delay:
            self._delayed[connection.state] = connection

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.pop("state_names", None)  # an attribute in files of earlier versions
        for ports, numbers in (("in_ports", "_inputs"), ("out_ports", "_outputs")):
            if ports in self.__dict__:  # in files of earlier versions
                self.__dict__[numbers] = {name: i for i, name in enumerate(self.__dict__.pop(ports))}
        self._index_connections()
        self._plan = None

    @property
    def state_names(self) -> tuple[str, ...]:
        """The states of delayed connections, in the order of connecting."""
        return tuple(self._delayed)

    # --- parts, ports and names

    def add(self, name: str, part: nn.Module) -> None:
        """Adds a part: a module with states, or one of torch that maps a tensor to a tensor."""
        if not isinstance(name, str):
            raise TypeError(
                f"{self._title()}: name of a part must be a str, but is {type(name).__name__}: {name!r:.60}"
            )
        if not isinstance(part, nn.Module):
            raise TypeError(f"{self._title()}: part '{name}' must be a module of torch, but is {type(part).__name__}")
        self._check_new_name(name, "part")
        check_called_once_a_step(self._title(), part)
        self.add_module(name, part)
        self._name_parts([name])
        self._plan = None

    def connect(
        self, source: str, target: str, *, delay: int = 0, shape: Sequence[int] | None = None, repeated: bool = False,
        from_rest: bool = False,
    ) -> None:  # fmt: skip
        """Connects an output to an input.

        Args:
            source: "part.out", or an input of the network; a new name adds an input.
            target: "part.in", or an output of the network.
            delay: the delay in steps.
            shape: the shape of one step; needed only in a loop that no input of the network leads to.
            repeated: allow a connection that exists already: its values are then added once more.
            from_rest: start with the values in flight that the source sends in the resting state, without inputs and
                spikes (for example a layer's bias), instead of zeros.

        Raises:
            ValueError: if a port does not exist, the connection exists already, or a loop has no delay; the message
                lists the parts of the loop.
        """
        if isinstance(delay, bool) or not isinstance(delay, int):
            raise TypeError(
                f"{self._title()}: the delay from '{source}' to '{target}' must be a whole number of steps, but is "
                f"{delay!r}"
            )
        if delay < 0:
            raise ValueError(
                f"{self._title()}: the delay from '{source}' to '{target}' must be 0 or more steps, but is {delay}"
            )
        counts = len(self._inputs), len(self._outputs)
        try:
            connection = Connection(
                self._port(source, is_source=True), self._port(target, is_source=False), (source, target), delay,
                None if shape is None else tuple(shape), from_rest,
            )  # fmt: skip
            self._check_connection(connection, repeated)
            if delay:
                connection.state = self._new_state_name(connection, repeated)
        except ValueError:
            for ports, count in zip((self._inputs, self._outputs), counts):
                if len(ports) > count:
                    ports.popitem()
            raise
        self._connections.append(connection)
        self._index_connection(connection)
        prepare_loop(self, connection)
        self._plan = None

    def alias(self, name: str, variable: str, shape: Sequence[int] | None = None) -> None:
        """Adds another name for a state, parameter or buffer of a submodule ("lif.v", "layer.dense.weight").

        Args:
            shape: the shape that the variable must have; by default any.
        """
        self._check_new_name(name, "alias")
        value, owner = self._variable(variable)
        if "." not in variable or (value is None and owner is None):
            raise ValueError(
                f"{self._title()}: the alias '{name}' must name a state, parameter or buffer of a submodule, which "
                f"'{variable}' is not"
            )
        if shape is not None and value is not None and tuple(value.shape) != tuple(shape):
            raise ValueError(
                f"{self._title()}: the alias '{name}' must have shape {list(shape)}, but '{variable}' has shape "
                f"{shape_of(value)}"
            )
        self._aliases[name] = variable, None if shape is None else tuple(shape)

    def _check_new_name(self, name: str, what: str) -> None:
        if not name or "." in name:
            raise ValueError(f"{self._title()}: {what} '{name}' must be a name without dots")
        if name in self._delayed:
            source, target = self._delayed[name].names
            raise ValueError(
                f"{self._title()}: {what} '{name}': the connection from '{source}' to '{target}' has a state of this name; "
                f"choose another name for the {what}"
            )
        taken = self._modules, self._aliases, self._inputs, self._outputs
        if any(name in names for names in taken) or hasattr(self, name):
            raise ValueError(f"{self._title()}: {what} '{name}': the name is taken")

    def _port(self, name: str, *, is_source: bool) -> Port:
        part, dot, port = name.partition(".")
        if not dot:
            own = self._inputs if is_source else self._outputs
            if name in self._modules:
                ports = _out_ports(self._modules[name]) if is_source else _in_ports(self._modules[name])
                ports_of_part = " or ".join(f"'{name}.{port}'" for port in ports)
                raise ValueError(f"{self._title()}: '{name}' is a part, not a port of the network; use {ports_of_part}")
            if name not in own:
                self._check_new_name(name, "port")
                own[name] = len(own)
            return Port(OUTSIDE, own[name])
        if part not in self._modules:
            raise ValueError(f"{self._title()}: there is no part '{part}' for the port '{name}'")
        module = self._modules[part]
        if isinstance(module, Composite) and port in (numbers := module._outputs if is_source else module._inputs):
            return Port(part, numbers[port])  # without a search
        ports = _out_ports(module) if is_source else _in_ports(module)
        if port not in ports:
            kind = "output" if is_source else "input"
            raise ValueError(f"{self._title()}: '{part}' has no {kind} '{port}'; it has {', '.join(ports) or 'none'}")
        return Port(part, ports.index(port))

    def _check_connection(self, new: Connection, repeated: bool) -> None:
        source, target = new.names
        if not repeated and (new.source, new.target, new.delay) in self._ends:
            raise ValueError(f"{self._title()}: '{source}' is connected to '{target}' already")
        if new.delay or OUTSIDE in (new.source.part, new.target.part):
            return
        path = path_without_delay(new.target.part, new.source.part, self._instant_targets, self._instant_sources)
        if path:
            raise ValueError(
                f"{self._title()}: connecting '{source}' to '{target}' closes the loop "
                f"{' -> '.join([*path, new.target.part])} without a delay; give one of its connections delay=1 or more"
            )

    def _instant_targets(self, part: str) -> Iterator[str]:
        return (c.target.part for c in self._leaving.get(part, ()) if not c.delay and c.target.part is not OUTSIDE)

    def _instant_sources(self, part: str) -> Iterator[str]:
        return (c.source.part for c in self._entering.get(part, ()) if not c.delay and c.source.part is not OUTSIDE)

    def _new_state_name(self, new: Connection, repeated: bool) -> str:
        stem = "_to_".join(new.names).replace(".", "_")
        name = stem if stem not in self._delayed else f"{stem}_{new.delay}"
        numbers = itertools.count(2)
        while repeated and name in self._delayed:
            name = f"{stem}_{new.delay}_{next(numbers)}"
        self._check_new_name(
            name,
            "connection from '{}' to '{}': rename the part or alias that has the name of its state".format(*new.names),
        )
        return name

    # --- variables

    def get(self, name: str) -> Tensor | None:
        """Returns a kept state, parameter, buffer or alias by its name: the tensor itself, not a copy.

        The result is None for a state that is not kept.
        """
        value, owner = self._variable(name)
        if value is None and owner is None:
            raise ValueError(f"{self._title()}: there is no state, parameter, buffer or alias '{name}'")
        return value

    def set(self, name: str, value: Tensor) -> None:
        """Copies a value into a parameter or buffer, or sets a kept state, from which the next call continues."""
        now, owner = self._variable(name)
        if now is None and owner is None:
            raise ValueError(f"{self._title()}: there is no state, parameter, buffer or alias '{name}'")
        shape = now.shape if now is not None else self._aliases.get(name, (None, None))[1]
        if shape is not None and tuple(value.shape) != tuple(shape):
            raise ValueError(
                f"{self._title()}: '{name}' has shape {list(shape)}, but the new value has {shape_of(value)}"
            )
        if owner is None:
            with torch.no_grad():
                now.copy_(value)
            return
        module, state = owner
        if not module._memory.keeping:
            raise ValueError(
                f"{module._title()}: does not keep its states; use stateful=True or keep_state(net), or net(x, state)"
            )
        module._memory.states = {**(module._memory.states or {}), state: value}

    def _variable(self, name: str) -> tuple[Tensor | None, tuple[StatefulModule, str] | None]:
        """Returns the tensor, if it exists, and for a state its module and name."""
        root: nn.Module = self
        *path, last = name.split(".")
        if not path and name in self._aliases:
            return self._variable(self._aliases[name][0])
        for i, step in enumerate(path):
            root = root._modules.get(step)
            if root is None:
                return None, None
            if isinstance(root, Composite):
                return root._variable(".".join([*path[i + 1 :], last]))
        if isinstance(root, StatefulModule) and last in root.state_names:
            return (root._memory.states or {}).get(last), (root, last)
        value = root._parameters.get(last)
        return (root._buffers.get(last) if value is None else value), None

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Yields the parts with their names, in the order in which they were added."""
        return iter(self._modules.items())

    def connections(self) -> Iterator[tuple[str, str, int]]:
        """Yields source, target and delay of each connection, in the order in which they were made."""
        return ((*c.names, c.delay) for c in self._connections)

    # --- running

    @property
    def n_inputs(self) -> int:
        return len(self._inputs)

    def forward(
        self,
        x: Tensor | EllipsisType = ...,
        *inputs: Tensor,
        state: States | EllipsisType = ...,
        store_states: bool = False,
    ):
        """Runs all steps: ``y = net(x)``, or ``y, state = net(x, state)``.

        The state contains the states of parts, ``{"lif.v": ...}``, and of delays.
        """
        *inputs, state = self._split(() if x is ... else (x, *inputs), state)
        if state is not ... or store_states:
            start = {} if state is ... else self._checked_state(state)
            return self._advance(inputs, start, store_states)
        keeping = self._memory.keeping
        if keeping:
            self._check_keeping()
        lines = self._memory.start() if keeping else {}
        run = self._run(inputs, None, lines)
        if keeping:
            self._memory.keep(run.after)
        return self._result(run)

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Any, State]:
        of_parts: dict[str, State] = {}
        for name, value in state.items():
            part, dot, rest = name.partition(".")
            if dot:
                of_parts.setdefault(part, {})[rest] = value
        run = self._run(inputs, of_parts, own_state(self, "", state), store)
        return self._result(run), run.after

    def _run(
        self, inputs: Sequence[Tensor], state: Mapping[str, State] | None, lines: State, store: bool = False
    ) -> Run:
        self._check_sequences(inputs)
        if self._plan is None:
            self._plan = self._make_plan()
        if store and any(stage.is_loop for stage in self._plan):
            raise ValueError(
                f"{self._title()}: store_states is not supported for networks with loops; call the network step by step"
            )
        run = Run(inputs, inputs[0].shape[0] if inputs else 0, state, lines, store)
        if run.steps:
            self._start_from_rest(run)
        for stage in self._plan:
            if stage.is_loop:
                self._run_loop(run, stage)
            else:
                self._run_stage(run, stage.parts[0])
        return run

    def _check_sequences(self, inputs: Sequence[Tensor]) -> None:
        if not self._inputs:
            raise ValueError(
                f"{self._title()}: no connection starts at an input of the network, so the number of steps is unknown"
            )
        for name, x in zip(self._inputs, inputs):
            if not isinstance(x, Tensor) or x.dim() < 1:
                kind = "0-dimensional" if isinstance(x, Tensor) else type(x).__name__
                raise TypeError(
                    f"{self._title()}: input '{name}' must be a tensor [T, *shape], time first, but is {kind}"
                )
            if x.shape[0] != inputs[0].shape[0]:
                raise ValueError(
                    f"{self._title()}: inputs must have the same number of steps, but the first has "
                    f"{inputs[0].shape[0]} and '{name}' has {x.shape[0]}"
                )

    def _make_plan(self) -> list[Stage]:
        for name, part in self._modules.items():
            for i, port in enumerate(_in_ports(part)):
                if Port(name, i) not in self._into:
                    raise ValueError(f"{self._title()}: nothing is connected to '{name}.{port}'")
        return make_plan(list(self._modules), [(c.source.part, c.target.part, c.delay) for c in self._connections])

    def _result(self, run: Run) -> Any:
        outputs = tuple(self._sum(run, Port(OUTSIDE, i)) for i in range(len(self._outputs)))
        return outputs[0] if len(outputs) == 1 else outputs

    def _sum(self, run: Run, target: Port) -> Tensor:
        """Returns the sum of the sequences that all connections deliver to a port, in the order of connecting."""
        return self._sum_of(run, self._into[target])

    def _sum_of(self, run: Run, connections: Sequence[Connection]) -> Tensor:
        total = None
        for connection in connections:
            total = self._added(total, self._arriving(run, connection), connection)
        return total

    def _added(self, total: Tensor | None, term: Tensor, connection: Connection) -> Tensor:
        if total is None:
            return term
        if any(n != m and 1 not in (n, m) for n, m in zip(reversed(term.shape), reversed(total.shape))):
            self._refuse_sum(connection, term, total)
        return total + term

    def _refuse_sum(self, connection: Connection, term: Tensor, total: Tensor) -> None:
        source, target = connection.names
        raise ValueError(
            f"{self._title()}: '{source}' has an output of shape {shape_of(term[0])} ({_kind(term)}), but '{target}' "
            f"takes {list(total.shape[1:])} ({_kind(total)}) from other parts; they must match"
        )

    def _sent(self, run: Run, connection: Connection) -> Tensor:
        source = connection.source
        return run.inputs[source.index] if source.part is OUTSIDE else run.outputs[source.part][source.index]

    def _arriving(self, run: Run, connection: Connection) -> Tensor:
        sequence = self._sent(run, connection)
        return self._shift(run, connection, sequence) if connection.delay else sequence

    def _shift(self, run: Run, connection: Connection, sequence: Tensor) -> Tensor:
        """Returns the sequence delayed by the connection's delay."""
        bounds = self._memory.samples or {}
        line = run.lines.get(connection.state)
        if line is None:
            line = sequence.new_zeros((connection.delay, *sequence.shape[1:]))
        self._check_line(run, connection, line, sequence)
        if bounds:
            samples.refuse(self, run.store, "store_states is set, and the network has delays")
            if "start" in bounds:
                samples.check_start(self._title(), bounds["start"], sequence)
            run.after[connection.state] = samples.leaving(sequence, connection.delay, line, **bounds)
            shifted, _ = samples.later(line, sequence)
            if "start" not in bounds:
                return shifted
            nothing = samples.restarted(bounds["start"], connection.delay)
            return shifted.masked_fill(samples.beside(nothing, shifted), 0)
        shifted, rest = samples.later(line, sequence)
        if run.store:
            rest = torch.cat((line, sequence)).unfold(0, connection.delay, 1)[1:].movedim(-1, 1).clone()
        run.after[connection.state] = rest
        return shifted

    def _check_line(self, run: Run, connection: Connection, line: Tensor, coming: Tensor) -> None:
        if line.dim() < 1 or line.shape[0] != connection.delay:
            raise ValueError(
                f"{self._title()}: the state {connection.state} must be [{connection.delay}, *shape], but has shape "
                f"{shape_of(line)}"
            )
        if line.shape[1:] == coming.shape[1:] and line.dtype == coming.dtype and line.device == coming.device:
            return
        if connection.state not in run.lines:  # not passed by the caller: the source sent it in an earlier step
            self._refuse_sum(connection, line, coming)
        self._refuse_line(connection, line, coming)

    def _refuse_line(self, connection: Connection, line: Tensor, coming: Tensor) -> None:
        mend = "call spikeforge.nn.reset_(net) to restart" if self._memory.keeping else "pass None to restart"
        raise ValueError(
            f"{self._title()}: the state {connection.state} holds values of shape {shape_of(line[0])} "
            f"({_kind(line)}), but the new values have shape {list(coming.shape[1:])} ({_kind(coming)}); {mend}"
        )

    def _run_stage(self, run: Run, name: str) -> None:
        part = self._modules[name]
        inputs = [self._sum(run, Port(name, i)) for i in range(len(_in_ports(part)))]
        state = None if run.state is None else run.state.get(name, {})
        run.outputs[name], after = run_part(part, inputs, state, store=run.store and isinstance(part, StatefulModule))
        run.after |= {_join(name, key): value for key, value in after.items()} if run.state is not None else {}

    # --- loops

    def _run_loop(self, run: Run, stage: Stage) -> None:
        if run.steps == 0:
            raise ValueError(f"{self._title()}: a loop of connections needs at least one step")
        if (run.steps > 1 or self._memory.samples) and self._run_at_once(run, stage):
            return
        samples.refuse(self, self._memory.samples, f"{', '.join(stage.parts)} are stepped ({self._why_stepped(stage)})")
        members = set(stage.parts)
        touching = self._touching(stage)
        within = [c for c in touching if c.source.part in members and c.target.part in members]
        rows_into = {id(c): self._arriving(run, c).split(1) for c in touching if c.source.part not in members}
        pending = {id(c): list(run.lines[c.state].split(1)) if c.state in run.lines else [] for c in within if c.delay}
        states = {name: self._loop_state(run, name) for name in stage.parts}
        rows: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in stage.parts}

        def take(steps: range) -> None:
            for t in steps:
                for name in stage.parts:
                    inputs = [
                        self._loop_input(run, stage, Port(name, i), t, rows_into, pending, rows)
                        for i in range(len(_in_ports(self._modules[name])))
                    ]
                    outputs, states[name] = run_part(self._modules[name], inputs, states[name])
                    rows[name].append(outputs)
                for c in within:
                    if c.delay:
                        self._send(run, c, rows[c.source.part][-1][c.source.index], pending[id(c)])

        if torch.compiler.is_compiling():
            take(range(run.steps))
        else:
            try:
                take(range(1))
            except RuntimeError:
                with suppress(RuntimeError):  # parts may fail for another reason
                    self._check_lines_given(run, stage, within, rows_into)
                raise
            if run.steps > 1:
                # The first step may read weights without gradients to determine shapes: these are not cached.
                with parametrize.cached() if self._are_parametrized(stage) else nullcontext():
                    take(range(1, run.steps))

        for name in stage.parts:
            run.outputs[name] = tuple(torch.cat(column) for column in zip(*rows[name]))
            self._keep_loop_state(run, name, states[name])
        run.after |= {c.state: torch.cat(pending[id(c)]) for c in within if c.delay}

    def _are_parametrized(self, stage: Stage) -> bool:
        return any("parametrizations" in m._modules for name in stage.parts for m in self._modules[name].modules())

    def _check_lines_given(self, run: Run, stage: Stage, within: Sequence[Connection], rows_into: dict) -> None:
        """Raises ValueError if a passed state differs in shape or type from what the parts of a loop send."""

        def row(c: Connection) -> Tensor | None:
            return rows_into[id(c)][0] if id(c) in rows_into else None

        for c in within:
            if c.state in run.lines and (like := self._step_of(c, stage.parts, row)) is not None:
                self._check_line(run, c, run.lines[c.state], like)

    def _loop(self, stage: Stage) -> Loop | str:
        """Returns the loop that runs as one operator over time, or the reason why the parts are stepped."""
        return find_loop(self, stage.parts, self._touching(stage))

    def _touching(self, stage: Stage) -> list[Connection]:
        """Returns the connections from and to the parts of a loop, in the order of connecting."""
        return [self._connections[number] for number in stage.edges]

    def _why_stepped(self, stage: Stage) -> str:
        loop = self._loop(stage)
        return loop if isinstance(loop, str) else "the operator does not support its input"

    def _run_at_once(self, run: Run, stage: Stage) -> bool:
        loop = self._loop(stage)
        if isinstance(loop, str):
            return False
        neuron, linear = self._modules[loop.neuron], self._modules[loop.linear]
        ports = [Port(loop.neuron, i) for i in range(len(_in_ports(neuron)))]
        others = [[c for c in self._into[port] if c is not loop.back] for port in ports]
        if not all(others):
            return False
        inputs = [self._sum_of(run, connections) for connections in others]
        connection = loop.back if loop.back.delay else loop.there
        line = run.lines.get(connection.state)
        x = inputs[loop.back.target.index]
        weight = linear.weight  # read once: a parametrization recomputes it at each access
        if not takes(loop, neuron, linear, x, weight):
            return False
        if line is not None:
            self._check_line(run, connection, line, x)
        run.outputs[loop.neuron], after, leaving = run_loop(
            loop, neuron, weight, linear.bias, inputs, self._loop_state(run, loop.neuron), line
        )
        self._keep_loop_state(run, loop.neuron, after)
        run.after[connection.state] = leaving
        return True

    def _loop_state(self, run: Run, name: str) -> State:
        return get_states(self._modules[name]) if run.state is None else run.state.get(name, {})

    def _keep_loop_state(self, run: Run, name: str, state: State) -> None:
        if run.state is not None:
            run.after |= {_join(name, key): value for key, value in state.items()}
            return
        for prefix, module in stateful_modules(self._modules[name]):
            if module._memory.keeping:
                module._check_keeping()
                module._memory.keep(own_state(module, prefix, state))

    def _loop_input(
        self, run: Run, stage: Stage, port: Port, t: int, rows_into: dict, pending: dict, rows: dict
    ) -> Tensor:
        def row(c: Connection) -> Tensor | None:
            """Returns the value that a connection delivers; if none is in flight yet, the value that its source has
            sent in this step."""
            if id(c) in rows_into:
                return rows_into[id(c)][t]
            if c.delay and pending[id(c)]:
                return pending[id(c)][0]
            sent = rows[c.source.part]
            return sent[t][c.source.index] if len(sent) > t else None

        total = None
        for c in self._into[port]:
            if c.delay and id(c) in pending:
                if not pending[id(c)]:
                    continue  # zeros, of the shape that the other connections have
                if total is not None:
                    self._check_line(run, c, torch.cat(pending[id(c)]), total)
            term = row(c)
            if total is not None and _differ_in_batch(term, total):  # a batch of 1 would broadcast
                given = next((d for d in self._touching(stage) if d.state in run.lines), None)
                if given is not None:
                    self._refuse_line(given, run.lines[given.state], total)
                self._refuse_sum(c, term, total)
            total = self._added(total, term, c)
        return self._zeros_into(run, stage.parts, port, row) if total is None else total

    def _send(self, run: Run, connection: Connection, leaving: Tensor, line: list[Tensor]) -> None:
        if not line:
            line += [torch.zeros_like(leaving)] * connection.delay
        self._check_line(run, connection, torch.cat(line), leaving)
        line.pop(0)
        line.append(leaving)

    def _zeros_into(
        self, run: Run, parts: Sequence[str], port: Port, row: Callable[[Connection], Tensor | None]
    ) -> Tensor:
        """Returns zeros of the shape of a step, for an input whose values are all still in flight.

        Args:
            row: returns a step that a connection delivers, or that its source has sent; None if there is neither yet.
        """
        for c in self._into[port]:
            sent = self._step_of(c, parts, row)
            if sent is not None:
                return torch.zeros_like(sent)
            if c.shape is not None:
                return run.inputs[0].new_zeros((1, *c.shape))
        raise ValueError(
            f"{self._title()}: every input of '{port.part}.{_in_ports(self._modules[port.part])[port.index]}' is still "
            "in flight at the first step, and no input of the network leads there, so its shape is not known; give one of "
            "the connections its shape=..."
        )

    def _step_of(
        self, wanted: Connection, parts: Sequence[str], row: Callable[[Connection], Tensor | None]
    ) -> Tensor | None:
        """Returns a step of the shape and type that a connection's source sends, computed from the steps that reach the
        parts before it; None if there are none."""
        found: dict[str, tuple[Tensor, ...]] = {}

        def step(c: Connection) -> Tensor | None:
            known = row(c)
            if known is None and c.source.part in found:
                return found[c.source.part][c.source.index]
            return known

        progress = True
        while step(wanted) is None and progress:
            progress = False
            for name in parts:
                if name in found or step(wanted) is not None:
                    continue
                ports = [Port(name, i) for i in range(len(_in_ports(self._modules[name])))]
                known = [[like for like in map(step, self._into[port]) if like is not None] for port in ports]
                if all(known):
                    found[name] = self._unrecorded(output_like, name, [likes[0] for likes in known])
                    progress = True
        return step(wanted)

    # --- before the first step

    def _start_from_rest(self, run: Run) -> None:
        starting = [c for c in self._connections if c.from_rest and c.delay and c.state not in run.lines]
        if not starting:
            return
        silence = [torch.zeros_like(x[:1]) for x in run.inputs]
        rest = self._outputs_at_rest(silence)
        for c in starting:
            value = silence[c.source.index] if c.source.part is OUTSIDE else rest[c.source.part][c.source.index]
            run.lines[c.state] = value.expand(c.delay, *value.shape[1:])

    def _outputs_at_rest(self, inputs: Sequence[Tensor]) -> dict[str, tuple[Tensor, ...]]:
        """Returns each part's outputs before the first step, without the values in flight."""
        if self._plan is None:
            self._plan = self._make_plan()
        run = Run(inputs, 1, {})
        for stage in self._plan:
            for name in stage.parts:
                part = self._modules[name]
                ports = [Port(name, i) for i in range(len(_in_ports(part)))]
                into = [self._input_at_rest(run, stage, port) for port in ports]
                run.outputs[name] = self._unrecorded(part_at_rest, name, into)
        return run.outputs

    def _input_at_rest(self, run: Run, stage: Stage, port: Port) -> Tensor:
        def row(c: Connection) -> Tensor | None:
            return self._sent(run, c) if c.source.part is OUTSIDE or c.source.part in run.outputs else None

        terms = [self._arriving(run, c) for c in self._into[port] if not c.delay]
        return sum(terms[1:], terms[0]) if terms else self._zeros_into(run, stage.parts, port, row)

    def _unrecorded(self, call: Callable, name: str, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Calls a part without recording by a Monitor, and without changes to running statistics of batch norms."""
        norms = [
            m
            for m in self._modules[name].modules()
            if isinstance(m, _BatchNorm) and m.training and m.track_running_stats
        ]
        before, self.resting = self.__dict__.get("resting", False), True
        try:
            for norm in norms:
                norm.track_running_stats = False
            return call(self._modules[name], inputs)
        finally:
            self.resting = before
            for norm in norms:
                norm.track_running_stats = True

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        run = Run(inputs, 1, {}, outputs=self._outputs_at_rest(inputs))
        return tuple(self._output_at_rest(run, self._into[Port(OUTSIDE, i)]) for i in range(len(self._outputs)))

    def _output_at_rest(self, run: Run, connections: Sequence[Connection]) -> Tensor:
        undelayed = [c for c in connections if not c.delay]
        if not undelayed:
            return torch.zeros_like(self._sent(run, connections[0]))
        return self._sum_of(run, undelayed)

    def extra_repr(self) -> str:
        lines = [
            f"{source} -> {target}" + (f", delay={delay}" if delay else "")
            for source, target, delay in self.connections()
        ]
        return "\n".join(lines + [self._described_loop(stage) for stage in self._stages_of_loops()])

    def _stages_of_loops(self) -> list[Stage]:
        try:
            return [stage for stage in self._plan or self._make_plan() if stage.is_loop]
        except ValueError:  # something is not connected yet
            return []

    def _described_loop(self, stage: Stage) -> str:
        loop = self._loop(stage)
        how = "one operator over time" if isinstance(loop, Loop) else f"stepped ({loop})"
        return f"loop of {', '.join(stage.parts)}: {how}"


class Recurrent(Composite):
    """A cell whose output feeds back through a module: y[t] = cell(x[t] + module(y[t - 1])), where y[-1] is zero.

    Args:
        cell: a neuron, or a module that contains neurons.
        module: a layer of torch, or any other module: ``Recurrent(LIF(), nn.Linear(8, 8))``.

    The parts are called "cell" and "module". The state "cell_out_to_module_in" is the last output, so that the next
    piece of a sequence differentiates through the module, also after :func:`detach_`. With an ``nn.Linear`` and a
    neuron all steps are one operator; see :class:`Composite`.
    """

    def __init__(self, cell: nn.Module, module: nn.Module, *, stateful: bool = False, persistent_state: bool = False):
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        self.add("cell", cell)
        self.add("module", module)
        into, out = f"cell.{_in_ports(cell)[0]}", f"cell.{_out_ports(cell)[0]}"
        self.connect("in", into)
        self.connect(out, f"module.{_in_ports(module)[0]}", delay=1)
        self.connect(f"module.{_out_ports(module)[0]}", into)
        self.connect(out, "out")


def _differ_in_batch(a: Tensor, b: Tensor) -> bool:
    """Returns True if steps ``[1, B, ...]`` have other batches; ``[1, *shape]`` of up to two dimensions has none."""
    return a.shape[:2] != b.shape[:2] and max(a.dim(), b.dim()) > 2


def _in_ports(part: nn.Module) -> tuple[str, ...]:
    return part.in_ports if isinstance(part, StatefulModule) else ("in",)


def _out_ports(part: nn.Module) -> tuple[str, ...]:
    return part.out_ports if isinstance(part, StatefulModule) else ("out",)


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}, {value.device}"
