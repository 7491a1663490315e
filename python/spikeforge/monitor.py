"""Records outputs and states of a network by name while it runs."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from spikeforge._hooks import Hooks, Watcher, check_call, modules_along, networks_around, watched
from spikeforge.nn.composite import Composite
from spikeforge.nn.containers import Container
from spikeforge.nn.lava import LavaConnection
from spikeforge.nn.layers import BatchNormNeuron
from spikeforge.nn.loihi import LoihiConnection
from spikeforge.nn.parts import unfolded
from spikeforge.nn.stateful import StatefulModule, _join, as_tuple, shape_of

LISTED = 12  # names in an error


class Monitor:
    """Records chosen outputs and states of a network from its construction to :meth:`close`.

    >>> with Monitor(net, ["hidden.out", "hidden.v"]) as monitor:
    ...     spikes = net(x)  # x [T, B, ...]; any number of calls, whole sequences or steps
    >>> monitor["hidden.v"]  # [T, B, ...], after each step's reset

    "hidden.out" is the output of the module "hidden", "hidden.v" its state v; "out" and "v" are those of `net` itself.
    If a module has several outputs, their names are its ports (``out0``, ``out1``). Aliases of a
    :class:`~spikeforge.nn.Composite` are names too, and ``"*.v"`` matches all names of this pattern. :meth:`available`
    lists all names.

    It works for any tree of modules. States are those of modules of ``spikeforge.nn``. Outputs of other modules are
    recorded as ``[T, ...]``; within TimeDistributed they are unfolded, and outputs of layers that a network calls once
    per step are concatenated. A module that is called twice in one call of the network is recorded twice, one after the
    other. Results, gradients and kept states of the network do not change.

    A compiled network cannot be monitored, because torch.compile calls no hooks.

    Memory: a copy of each output and state on its device, ``T * neurons * batch`` values each. :attr:`nbytes` and
    ``print(monitor)`` report the size. Reading concatenates the pieces, which briefly needs twice the memory.

    Args:
        net: any module.
        names: one or several names.
        detach: pass False to keep the gradients of recordings, for a loss on them; then call :meth:`reset` in each
            training step to free their graphs.
        device: the device of the recordings; None for that of the network. "cpu" saves memory of a GPU, but
            synchronises.

    Raises:
        ValueError: if a name is neither an output nor a state.
    """

    def __init__(
        self,
        net: nn.Module,
        names: str | Iterable[str],
        *,
        detach: bool = True,
        device: torch.device | str | None = None,
    ):
        net = watched("Monitor", net)
        wanted = _chosen(net, [names] if isinstance(names, str) else list(names))
        self._recordings = {name: Recording(name, detach, device) for name in wanted}
        self._hooks = Hooks(self)
        probes: dict[str, Probe] = {}
        for name, recording in self._recordings.items():
            path, what = _resolved(net, name) or ("", name)
            module = net.get_submodule(path)
            if path not in probes:
                probes[path] = Probe(networks_around(net, path))
                self._hooks.attach(module, probes[path])
            probes[path].record(module, what, recording)

    @staticmethod
    def available(net: nn.Module) -> list[str]:
        """Returns all names that can be recorded."""
        return _available(watched("Monitor", net))

    @property
    def names(self) -> tuple[str, ...]:
        """The recorded names."""
        return tuple(self._recordings)

    def __getitem__(self, name: str) -> Tensor:
        """Returns the recording of a name, ``[steps so far, *shape]``.

        Raises:
            ValueError: if the name is not recorded, nothing has been recorded, or the shape of steps changed.
        """
        if name not in self._recordings:
            raise ValueError(f"Monitor: '{name}' is not recorded; recorded are {', '.join(self.names) or 'none'}")
        return self._recordings[name].rows()

    def keys(self) -> tuple[str, ...]:
        return self.names

    def items(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self[name]) for name in self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._recordings

    @property
    def nbytes(self) -> int:
        """The memory of all recordings, in bytes."""
        return sum(recording.nbytes for recording in self._recordings.values())

    def reset(self) -> None:
        """Clears all recordings, and continues to record."""
        for recording in self._recordings.values():
            recording.pieces.clear()

    def close(self) -> None:
        """Stops recording; the recordings are kept."""
        self._hooks.remove()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def write_npy(self, folder: str | Path) -> None:
        """Writes one file per name, ``<folder>/<name>.npy``, and creates the folder."""
        import numpy

        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, rows in self.items():
            numpy.save(Path(folder) / f"{name}.npy", _for_numpy(rows).numpy())

    def write_csv(self, file: str | Path) -> None:
        """Writes one table with a row per step: the step, then a column for each value, such as ``lif.v[3]``.

        Raises:
            ValueError: if names have different numbers of steps.
        """
        tables = {name: rows.flatten(1) if rows.dim() > 1 else rows[:, None] for name, rows in self.items()}
        lengths = {name: len(table) for name, table in tables.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} {n}" for name, n in lengths.items())
            raise ValueError(
                f"Monitor: a table needs the same steps of each name, but there are {counts}; use write_npy"
            )
        titles = [f"{name}[{i}]" for name, table in tables.items() for i in range(table.shape[1])]
        columns = [_written(table) for table in tables.values()]
        with open(file, "w", encoding="utf-8") as out:
            out.write(",".join(["step", *titles]) + "\n")
            for step, rows in enumerate(zip(*columns)):
                out.write(",".join([str(step), *(number for row in rows for number in row)]) + "\n")

    def __repr__(self) -> str:
        lines = [f"  {recording.described()}" for recording in self._recordings.values()]
        return "\n".join([f"Monitor, {self.nbytes / 2**20:.1f} MiB", *lines])


class Recording:
    """The recorded pieces of one output or state."""

    def __init__(self, name: str, detach: bool, device: torch.device | str | None):
        self.name, self.detach, self.device = name, detach, device
        self.pieces: list[Tensor] = []  # [n, *shape] each

    def add(self, rows: Tensor, *, copy: bool) -> None:
        """Appends steps ``[n, *shape]``.

        Args:
            copy: copy the tensor, because the network may write to it.
        """
        rows = rows.detach() if self.detach else rows
        moved = rows if self.device is None else rows.to(self.device)
        self.pieces.append(moved.clone() if copy and moved is rows else moved)

    def rows(self) -> Tensor:
        if not self.pieces:
            raise ValueError(
                f"Monitor: '{self.name}' has no recorded steps: its module has not been called, or was compiled before "
                "the monitor was made"
            )
        for piece in self.pieces:
            if piece.shape[1:] != self.pieces[0].shape[1:]:
                raise ValueError(
                    f"Monitor: steps of '{self.name}' have shape {_step(self.pieces[0])} first and then {_step(piece)}"
                    "; call reset() before another batch"
                )
        if len(self.pieces) > 1:
            self.pieces[:] = [torch.cat(self.pieces)]
        return self.pieces[0]

    @property
    def nbytes(self) -> int:
        return sum(piece.numel() * piece.element_size() for piece in self.pieces)

    def described(self) -> str:
        if not self.pieces:
            return f"{self.name}: nothing yet"
        first = self.pieces[0]
        steps = sum(piece.shape[0] for piece in self.pieces)
        kind = str(first.dtype).removeprefix("torch.")
        return f"{self.name}: {steps} steps of {_step(first)}, {kind}, {first.device}"


class Probe(Watcher):
    """Records one module."""

    def __init__(self, networks: list[Composite]):
        super().__init__(networks)
        self.outputs: list[tuple[int, Recording]] = []
        self.states: list[tuple[str, Recording]] = []
        self.added_states = False  # this probe added store_states to the call

    def record(self, module: nn.Module, what: str, recording: Recording) -> None:
        if what in _out_ports(module):
            self.outputs.append((_out_ports(module).index(what), recording))
        else:
            self.states.append((what, recording))

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs.get("x")
        has_steps = isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] > 0
        self.added_states = len(self.states) > 0 and has_steps and not self.stored and not self.is_repeated()
        return (args, {**kwargs, "store_states": True}) if self.added_states else None

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        outputs, states = result if self.added_states else self.parts(result)
        if not self.is_repeated():
            check_call("Monitor", module, as_tuple(outputs)[0])
            for index, recording in self.outputs:
                value = _output(module, outputs, index, recording.name)
                recording.add(unfolded(value), copy=True)
            for name, recording in self.states if self.added_states or self.stored else ():
                recording.add(states[name], copy=not self.added_states)
        if not self.added_states:
            return None
        return (outputs, {name: value[-1].clone() for name, value in states.items()}) if self.passes_states else outputs


def _output(module: nn.Module, outputs: Any, index: int, name: str) -> Tensor:
    values = as_tuple(outputs)
    value = values[index] if isinstance(module, StatefulModule) or len(values) == 1 else outputs
    if not isinstance(value, Tensor) or value.dim() == 0:
        kind = "a number" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TypeError(
            f"Monitor: {name} must be a tensor [T, *shape], but {type(module).__name__} returns {kind}; record a "
            "module within or around it"
        )
    return value


# --- names


def _chosen(net: nn.Module, names: list[str]) -> list[str]:
    """Returns the names, with patterns replaced by the names that they match."""
    chosen: list[str] = []
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"Monitor: a name must be a string, such as 'lif.out', but is {type(name).__name__}")
        matched = fnmatch.filter(_available(net), name) if "*" in name else [name]
        if not matched or _resolved(net, matched[0]) is None:
            raise ValueError(f"Monitor: {_unknown(net, name)}")
        chosen += [one for one in matched if one not in chosen]
    return chosen


def _resolved(net: nn.Module, name: str) -> tuple[str, str] | None:
    """Returns the path of the module and its port or state, or None if there is no such name."""
    path, _, what = name.rpartition(".")
    try:
        module = net.get_submodule(path)
    except AttributeError:
        return None
    if isinstance(module, Composite) and what in module._aliases:
        found = _resolved(module, module._aliases[what][0])
        return found and (_join(path, found[0]), found[1])
    for around, layer in modules_along(net, path)[:-1]:
        if isinstance(layer, BatchNormNeuron):  # it does not call its parts
            within = _join(path[len(around) :].lstrip("."), what)
            return (around, within) if within in layer._all_state_names() else None
    return (path, what) if what in (*_out_ports(module), *_states(module)) else None


def _out_ports(module: nn.Module) -> tuple[str, ...]:
    if isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)):
        return ()  # torch does not call them
    return module.out_ports if isinstance(module, StatefulModule) else ("out",)


def _states(module: nn.Module) -> tuple[str, ...]:
    """Returns the states that a module can write as sequences."""
    has_sequences = isinstance(module, StatefulModule) and not isinstance(
        module, (Container, LoihiConnection, LavaConnection)
    )
    return tuple(module.state_names) if has_sequences else ()  # type: ignore[arg-type]


def _available(net: nn.Module) -> list[str]:
    found = []
    for path, module in net.named_modules(remove_duplicate=False):
        aliases = module._aliases if isinstance(module, Composite) else ()
        names = [*_out_ports(module), *_states(module), *aliases]
        found += [name for name in (_join(path, name) for name in names) if _resolved(net, name)]
    return found


def _unknown(net: nn.Module, name: str) -> str:
    available = _available(net)
    path, _, what = name.rpartition(".")
    module = dict(net.named_modules(remove_duplicate=False)).get(path)
    if isinstance(module, StatefulModule) and what in module.state_names:
        return f"'{name}' is pending in a delay, which is not recorded; record the output that enters the delay"
    near = difflib.get_close_matches(name, available, 1)
    meant = f" Do you mean '{near[0]}'?" if near else ""
    listed = ", ".join(available[:LISTED])
    more = f" and {len(available) - LISTED} more, which Monitor.available(net) lists" * (len(available) > LISTED)
    return f"there is no output or state '{name}' in {type(net).__name__}.{meant} There are {listed}{more}"


def _step(rows: Tensor) -> str:
    return shape_of(rows[0]) if len(rows) else str(list(rows.shape[1:]))


def _for_numpy(rows: Tensor) -> Tensor:
    rows = rows.detach().cpu()
    return rows.float() if rows.dtype == torch.bfloat16 else rows


def _written(table: Tensor) -> list[list[str]]:
    digits = 17 if table.dtype == torch.float64 else 9  # enough digits to read the same number
    return [[f"{value:.{digits}g}" for value in row] for row in _for_numpy(table).tolist()]
