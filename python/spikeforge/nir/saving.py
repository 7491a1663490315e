"""Saves a network as a graph: describes its modules to C++."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spikeforge import nn as spiking
from spikeforge import surrogate as surrogates
from spikeforge.nir import operators
from spikeforge.nir.graph import NIRGraph, graph_of
from spikeforge.nir.loading import FLAGS, NEURONS
from spikeforge.nir.modules import NodeNeuron, Silence, StackedLinear, WindowPool
from spikeforge.nir.wiring import PASSING, Wire, chain, traced
from spikeforge.nn.constant import ConstantsModule
from spikeforge.nn.stateful import has_states

Row = dict[str, Any]
KINDS = {kind: name for name, kind in NEURONS.items()}


def save(
    net: nn.Module, example: Tensor, path: str | os.PathLike[str], *, dt: float | None = None, compression: int = 0
) -> None:
    """Writes a network as a NIR file. An existing file is replaced when the new one is complete.

    Args:
        net: a network of modules of torch.nn and spikeforge.nn: a :class:`~spikeforge.nn.Composite`, a Sequential, a
            neuron, or a custom module whose forward calls them one after the other and adds their outputs.
        example: one step of one sample, ``[*shape]``, without time and batch.
        dt: seconds of a step; optional for a network from :func:`load`.
        compression: the level of deflate, 1 to 9; 0: none.

    Properties that NIR cannot express (soft reset, firing at the threshold itself, surrogates, learned constants) are
    in the metadata, from which :func:`load` restores the same modules. A warning lists what other programs interpret
    differently.

    Raises:
        ValueError: if NIR cannot express a module; the message names it.
    """
    rows, shape, seconds = _described("save", net, example, dt)
    warned = operators.in_one_line(operators.save_file, os.fspath(path), compression, rows, shape, seconds)
    operators.warn_of(warned, stacklevel=2)


def to_graph(net: nn.Module, example: Tensor, *, dt: float | None = None) -> NIRGraph:
    """Returns the graph of :func:`save` as a ``nir.NIRGraph``, which `nir.write` writes and which prints as a table."""
    rows, shape, seconds = _described("to_graph", net, example, dt)
    values, warned = operators.in_one_line(operators.save_values, rows, shape, seconds)
    operators.warn_of(warned, stacklevel=2)
    return graph_of(values)


def _described(what: str, net: nn.Module, example: Tensor, dt: float | None) -> tuple[list[Row], list[int], float]:
    if not isinstance(net, nn.Module):
        raise TypeError(f"{what}: net must be a module of torch, but is {type(net).__name__}")
    if not isinstance(example, Tensor):
        kind = type(example).__name__
        raise TypeError(f"{what}: example must be a tensor [*shape], one step of one sample, but is {kind}")
    seconds = getattr(net, "dt", None) if dt is None else dt
    if not isinstance(seconds, (int, float)):
        raise ValueError(f"{what}: dt is missing: pass the seconds of a step, the unit of graphs")
    rows = Describer(net, example).rows(net, "", on_sequences=True)
    return [_without_empty(row) for row in rows], list(example.shape), float(seconds)


def _without_empty(row: Row) -> Row:
    """Removes empty lists, which have no type in C++, and None outside of labels, where it means an empty group."""
    return {
        name: value
        for name, value in row.items()
        if not (isinstance(value, list) and not value) and (value is not None or name.startswith("labels/"))
    }


class Describer:
    """Describes each module by rows for C++: csrc/nir/network/description.h."""

    def __init__(self, net: nn.Module, example: Tensor):
        self.net, self.example = net, example
        self._dims: dict[nn.Module, int] | None = None

    def rows(self, module: nn.Module, path: str, *, on_sequences: bool) -> Iterator[Row]:
        """
        Args:
            on_sequences: the module is called on ``[T, B, ...]``, like the parts of a torch.nn.Sequential, and not once
                per step.
        """
        row: Row = {"path": path, "kind": type(module).__name__}
        if isinstance(module, spiking.TimeDistributed):
            yield from self.rows(module.module, path, on_sequences=False)
        elif isinstance(module, spiking.Composite):
            wires = [Wire(*c.names, c.delay, c.from_rest) for c in module._connections]
            parts = [(name, part, has_states(part)) for name, part in module.parts()]
            yield from self._network(path, wires, parts, getattr(module, "_labels", None))
        elif isinstance(module, spiking.Sequential):
            parts = list(module.named_children())
            yield from self._network(path, chain(parts), [(*part, has_states(part[1])) for part in parts])
        elif _is_padded_convolution(module):
            yield row | {"kind": "Sequential"}
            kind = "ConstantPad1d" if isinstance(module[0], nn.ConstantPad1d) else "ConstantPad2d"
            yield {"path": _below(path, "0"), "kind": kind, "padding": list(module[0].padding)}
            yield _convolution(module[1], {"path": _below(path, "1")})
        elif isinstance(module, PASSING):
            yield row | {"kind": "Identity"}
        elif isinstance(module, ConstantsModule):
            yield self._neuron(module, row)
        else:
            layer = _layer(module, row, on_sequences)
            if layer is not None:
                yield layer
            else:
                yield from self._traced(module, path, on_sequences)

    def _network(
        self, path: str, wires: Sequence[Wire], parts: Sequence[tuple[str, nn.Module, bool]], labels: Row | None = None
    ) -> Iterator[Row]:
        """
        Args:
            labels: names and metadata of the nodes of the graph from which the network was loaded.
        """
        yield {
            "path": path, "kind": "Composite", "sources": [wire.source for wire in wires],
            "targets": [wire.target for wire in wires], "delays": [wire.delay for wire in wires],
            "from_rest": [int(wire.from_rest) for wire in wires], **(labels or {}),
        }  # fmt: skip
        for name, part, on_sequences in parts:
            yield from self.rows(part, _below(path, name), on_sequences=on_sequences)

    def _traced(self, module: nn.Module, path: str, on_sequences: bool) -> Iterator[Row]:
        """Describes a custom module."""
        if not any(True for _ in module.children()):
            raise ValueError(f"{path or '/'}: NIR has no node for {type(module).__name__}")
        wires, parts = traced(module, path)
        yield from self._network(path, wires, [(name, part, on_sequences) for name, part in parts])

    # --- neurons

    def _neuron(self, module: ConstantsModule, row: Row) -> Row:
        constants = {name: self._constant(module, name) for name in module._constant_names}
        learned = [name for name in constants if isinstance(getattr(module, name), nn.Parameter)]
        if isinstance(module, NodeNeuron):
            fields = {f"params/{name}": value for name, value in constants.items()}
            notes = {f"notes/{name}": _noted(value) for name, value in module.notes.items()}
            return row | {"kind": "Node", "type": module.type, "dt": module.dt} | fields | notes
        if type(module) not in KINDS:
            raise ValueError(f"{row['path'] or '/'}: NIR has no node for {type(module).__name__}")
        if not getattr(module, "spiking", True):
            raise ValueError(f"{row['path'] or '/'}: a neuron with spiking=False has no node in NIR")
        row["kind"] = KINDS[type(module)]
        notes = {"module": row["kind"], "learned": learned, **constants}
        for name in learned:
            place = module._placements[name]
            notes |= {
                f"{name}_{end}": bound for end, bound in (("min", place.min), ("max", place.max)) if bound is not None
            }
        notes |= {name: getattr(module, name) for name in FLAGS if hasattr(module, name)}
        if hasattr(module, "surrogate"):
            if isinstance(module.surrogate, surrogates.Custom):
                raise ValueError(f"{row['path'] or '/'}: a Custom surrogate cannot be written; use a predefined one")
            notes |= {"surrogate": module.surrogate.name, "surrogate_args": list(module.surrogate.args)}
        return row | {f"notes/{name}": _noted(value) for name, value in notes.items()}

    def _constant(self, module: ConstantsModule, name: str) -> Any:
        """Returns a constant within its bounds, with a shape that broadcasts to a step ``[*shape]``."""
        value = getattr(module, name)
        if not isinstance(value, Tensor):
            return None if value is None else float(value)
        place = module._placements[name]
        by_channel = value.dim() == 1 and value.numel() > 1 and place.dim not in (None, -1)
        return place.take(value, self._dims_at(module) if by_channel else 0).detach().cpu()

    def _dims_at(self, module: nn.Module) -> int:
        """Returns the number of dimensions of a neuron's input, ``[T, B, *shape]``."""
        if self._dims is None:
            self._dims = self._dims_of_all()
        if module not in self._dims:
            raise ValueError(f"{type(module).__name__}: it is not called, so the place of its channels is not known")
        return self._dims[module]

    def _dims_of_all(self) -> dict[nn.Module, int]:
        dims: dict[nn.Module, int] = {}
        neurons = [module for module in self.net.modules() if isinstance(module, ConstantsModule)]
        hooks = [
            module.register_forward_pre_hook(lambda module, inputs: dims.__setitem__(module, inputs[0].dim()))
            for module in neurons
        ]
        before = spiking.get_states(self.net)
        try:
            tensors = itertools.chain(self.net.parameters(), self.net.buffers())
            like = next((tensor for tensor in tensors if tensor.is_floating_point()), self.example)
            with torch.no_grad():
                self.net(self.example.to(like)[None, None])
        finally:
            for hook in hooks:
                hook.remove()
            spiking.set_states_(self.net, before)
        return dims


def _noted(value: Any) -> Any:
    numbers = isinstance(value, list) and value and not isinstance(value[0], str)
    return torch.tensor(value, dtype=torch.float64) if numbers else value


# --- layers


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _pair(value: int | Sequence[int], dims: int = 2) -> list[int]:
    return [value] * dims if isinstance(value, int) else list(value)


def _layer(module: nn.Module, row: Row, on_sequences: bool) -> Row | None:
    """Describes a layer; returns None if the module is not a layer."""
    if isinstance(module, nn.Linear):
        return row | {"kind": "Linear", "weight": module.weight, "bias": module.bias}
    if isinstance(module, StackedLinear):
        return row | {"weight": module.weight, "bias": module.bias}
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return _convolution(module, row)
    if isinstance(module, nn.AvgPool2d):
        return row | {
            "kind": "AvgPool2d", "kernel_size": _pair(module.kernel_size), "stride": _pair(module.stride),
            "padding": _pair(module.padding), "ceil_mode": module.ceil_mode,
            "count_include_pad": module.count_include_pad, "divisor_override": module.divisor_override,
        }  # fmt: skip
    if isinstance(module, WindowPool):
        windows = {name: list(getattr(module, name)) for name in ("kernel_size", "stride", "padding")}
        return row | windows | {"sums": module.sums}
    if isinstance(module, nn.Flatten):
        # Dimension 2 of [T, B, *shape] is the first of a step; C++ counts only the batch.
        counted = [d - 1 if on_sequences and d > 0 else d for d in (module.start_dim, module.end_dim)]
        return row | {"kind": "Flatten", "start_dim": counted[0], "end_dim": counted[1]}
    if isinstance(module, spiking.Delay):
        return row | {"steps": module.steps}
    if isinstance(module, Silence):
        return row | {"input_rank": module.input_rank, "shape": list(module.shape)}
    return None


def _convolution(module: nn.Conv1d | nn.Conv2d, row: Row) -> Row:
    dims = len(module.kernel_size)
    if module.padding_mode != "zeros":
        raise ValueError(f"{row['path'] or '/'}: NIR pads convolutions with zeros only")
    padding = module.padding if isinstance(module.padding, str) else _pair(module.padding, dims)
    return row | {
        "kind": f"Conv{dims}d", "weight": module.weight, "bias": module.bias, "stride": _pair(module.stride, dims),
        "dilation": _pair(module.dilation, dims), "groups": module.groups, "padding": padding,
    }  # fmt: skip


def _is_padded_convolution(module: nn.Module) -> bool:
    """Returns True for zero padding and a convolution: padding "same" of a graph, which torch supports only without
    strides."""
    if not isinstance(module, nn.Sequential) or len(module) != 2:
        return False
    pad, convolution = module
    return (
        isinstance(pad, (nn.ConstantPad1d, nn.ConstantPad2d))
        and pad.value == 0
        and isinstance(convolution, (nn.Conv1d, nn.Conv2d))
    )
