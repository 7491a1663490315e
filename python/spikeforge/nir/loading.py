"""Loads a graph as a network: creates the modules that C++ describes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spikeforge import nn as spiking
from spikeforge import surrogate as surrogates
from spikeforge._numbers import state_type
from spikeforge.nir import operators
from spikeforge.nir.graph import values_of
from spikeforge.nir.modules import NodeNeuron, Silence, StackedLinear, WindowPool

if TYPE_CHECKING:
    import nir

NEURONS = {
    "IF": spiking.IF, "LIF": spiking.LIF, "PLIF": spiking.PLIF, "CubaLIF": spiking.CubaLIF, "LI": spiking.LI,
}  # fmt: skip
FLAGS = ("decay_input", "detach_reset", "strict")
NETWORK = spiking.Composite()
Row = dict[str, Any]


def load(
    source: str | os.PathLike[str] | nir.NIRGraph, *, dt: float, device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32, reset: str | None = None, if_scaling: str | None = None,
    comparison: str | None = None, cuba_current: str | None = None, recurrent_start: str | None = None,
    delays: str = "exact", shapes: str = "strict", surrogate: str | surrogates.Surrogate | None = None,
    learn_neurons: bool = False, fold_time: bool = False, max_bytes: int = 2 << 30,
) -> spiking.Composite:  # fmt: skip
    """Loads a graph as a network with the bits of ``spikeforge-nir run`` under the same options.

    Its parts have the nodes' names, with ``_`` for dots and after names that modules have (``train_``); :func:`save`
    writes the original names. Weights, biases and scales are parameters, constants of neurons buffers.

    Args:
        source: a file of any version, or a graph of the package `nir`.
        dt: seconds of a time step, which graphs do not contain.
        device, dtype: of parameters and of x.
        reset: the reset of a neuron that fired: "file" (to v_reset), "zero", "subtract", "subtract-delayed" or
            "subtract-twice". None: the value that this package stored in the file, else "file".
        if_scaling: the term that IF adds in a step: "ode" (dt r x) or "per-step" (r x).
        comparison: neurons fire if v is "gt" (above) or "ge" (at or above) the threshold.
        cuba_current: the current that charges a membrane: "new", with this step's input, or "old".
        recurrent_start: the input from cycles in the first step: "zero", or "apply" (layers applied to zeros). None:
            the value that this package stored in the file, else "zero".
        delays: delays that are not a whole number of steps raise an error ("exact") or are rounded ("nearest").
        shapes: "strict", or "tolerant": parameters broadcast, and the shapes in a file may be wrong or missing.
        surrogate: the surrogate of neurons and thresholds, for training.
        learn_neurons: make the constants of neurons parameters too.
        fold_time: call layers once for all steps instead of once per step: faster, and the same within rounding.
        max_bytes: limit for all arrays and strings of a file; a larger file raises an error.

    Raises:
        ValueError: if the graph cannot be read or represented; the message names file, node and field.
    """
    if not isinstance(dt, (int, float)) or isinstance(dt, bool):
        raise TypeError(f"load: dt must be a number of seconds, but is {type(dt).__name__}")
    options = {
        "dt": float(dt), "device": str(torch.device(device)), "dtype": dtype, "reset": reset, "if_scaling": if_scaling,
        "comparison": comparison, "cuba_current": cuba_current, "recurrent_start": recurrent_start, "delays": delays,
        "shapes": shapes, "learn_neurons": learn_neurons, "fold_time": fold_time, "max_bytes": max_bytes,
        # The attributes of a loaded network. torch.compile adds some to torch.nn.Module.
        "reserved_names": sorted({*dir(NETWORK), "dt", "_labels"}),
    }  # fmt: skip
    if surrogate is not None:
        chosen = surrogates.of(surrogate)
        options |= {"surrogate": chosen.name, "surrogate_args": list(chosen.args) or None}
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(source, (str, os.PathLike)):
        rows, warned = operators.in_one_line(operators.load_file, os.fspath(source), given)
    else:
        rows, warned = operators.in_one_line(operators.load_values, values_of(source), given)
    operators.warn_of(warned, stacklevel=2)
    net = made_of(rows, torch.device(device), state_type(dtype))
    net.dt = float(dt)
    return net


def made_of(rows: list[Row], device: torch.device, state: torch.dtype) -> Any:
    """Returns the module of a description: a row for each module, a network before its parts.

    Args:
        device, state: the device and dtype of the constants of neurons that were exported from this package.
    """
    made: dict[str, Any] = {}
    for row in rows:
        module = _neuron(row, device, state) if row["kind"] in NEURONS else _module(row)
        if not made:
            made[""] = module
            continue
        parent, _, name = row["path"].rpartition(".")
        owner = made[parent]
        made[row["path"]] = module
        if isinstance(owner, spiking.Composite):
            owner.add(name, module)
        elif isinstance(owner, spiking.TimeDistributed):
            owner.module = module
        else:
            owner.add_module(name, module)
    for row in reversed(rows):
        if row["kind"] == "Composite":
            _connect(made[row["path"]], row)
    return made[""]


def _connect(net: spiking.Composite, row: Row) -> None:
    columns = (row[name] for name in ("sources", "targets", "delays", "from_rest", "shapes"))
    for source, target, delay, from_rest, shape in zip(*columns):
        net.connect(source, target, delay=delay, shape=shape or None, repeated=True, from_rest=bool(from_rest))


def _module(row: Row) -> nn.Module:
    kind = row["kind"]
    if kind == "Composite":
        net = spiking.Composite()
        net._labels = {name: value for name, value in row.items() if name.startswith("labels/")}
        return net
    if kind == "TimeDistributed":
        return spiking.TimeDistributed(nn.Identity())  # until its layer is set
    if kind == "Sequential":
        return nn.Sequential()
    if kind == "Node":
        return _node(row)
    if kind == "Linear":
        return _linear(row)
    if kind in ("Conv1d", "Conv2d"):
        return _convolution(row)
    if kind in ("ConstantPad1d", "ConstantPad2d"):
        return getattr(nn, kind)(tuple(row["padding"]), 0)
    if kind == "AvgPool2d":
        windows = (tuple(row[name]) for name in ("kernel_size", "stride", "padding"))
        return nn.AvgPool2d(*windows, divisor_override=row.get("divisor_override"))
    if kind == "WindowPool":
        return WindowPool(row["kernel_size"], row["stride"], row["padding"], row["sums"])
    if kind == "StackedLinear":
        bias = row.get("bias")
        return StackedLinear(row["weight"].detach(), None if bias is None else bias.detach())
    if kind == "Flatten":
        return nn.Flatten(row["start_dim"], row["end_dim"])
    if kind == "Delay":
        return spiking.Delay(row["steps"])
    if kind == "Silence":
        return Silence(row["input_rank"], row["shape"])
    raise ValueError(f"there is no module for {kind}")


def _take(layer: nn.Module, row: Row) -> nn.Module:
    """Sets the weight and bias of a layer on the meta device to those of the description."""
    for name in ("weight", "bias"):
        if row.get(name) is not None:
            setattr(layer, name, nn.Parameter(row[name].detach()))
    return layer


def _linear(row: Row) -> nn.Module:
    outputs, inputs = row["weight"].shape
    return _take(nn.Linear(inputs, outputs, bias="bias" in row, device="meta"), row)


def _convolution(row: Row) -> nn.Module:
    outputs, inputs, *kernel = row["weight"].shape
    stride, padding, dilation = (tuple(row.get(name, (0,) * len(kernel))) for name in ("stride", "padding", "dilation"))
    groups = row["groups"]
    make = nn.Conv1d if len(kernel) == 1 else nn.Conv2d
    sizes = (inputs * groups, outputs, tuple(kernel), stride, padding, dilation, groups)
    return _take(make(*sizes, bias="bias" in row, device="meta"), row)


# --- neurons


def _under(row: Row, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def _node(row: Row) -> nn.Module:
    if "type" not in row:
        return nn.Identity()  # for an output that is not connected
    learned = row.get("learned", ())
    # Fields broadcast from the right, as NIR's have the shape of a step.
    fields = {
        name: spiking.Constant(nn.Parameter(value.detach()) if name in learned else value, dim=-1)
        for name, value in _under(row, "params/").items()
    }
    notes = {name: _plain(value) for name, value in _under(row, "notes/").items()}
    return NodeNeuron(row["type"], row["text"], row["dt"], notes, fields)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _neuron(row: Row, device: torch.device, state: torch.dtype) -> nn.Module:
    """Returns a neuron of this package, as it was exported."""
    notes = _under(row, "notes/")
    learned = notes.get("learned", ())
    options: dict[str, Any] = {name: bool(notes[name]) for name in FLAGS if name in notes}
    if "surrogate" in notes:
        options["surrogate"] = surrogate_of(notes)
    bounds = {f"{name}_{end}" for name in learned for end in ("min", "max")}
    known = {"module", "learned", "surrogate", "surrogate_args", *FLAGS, *bounds}
    for name, value in notes.items():
        if name in known:
            continue
        if name in learned:
            low, high = (
                None if end is None else float(end) for end in (notes.get(f"{name}_min"), notes.get(f"{name}_max"))
            )
            options[name] = spiking.Learnable(value.to(device, state), min=low, max=high, dim=-1)
        else:
            options[name] = value.item() if value.dim() == 0 else spiking.Constant(value.to(device, state), dim=-1)
    if row["kind"] in ("IF", "LIF", "PLIF", "CubaLIF"):
        options.setdefault("v_reset", None)
    return NEURONS[row["kind"]](**options)


def surrogate_of(notes: Mapping[str, Any]) -> surrogates.Surrogate:
    args = _plain(notes.get("surrogate_args", []))
    return surrogates.SURROGATES[notes["surrogate"]](*args)
