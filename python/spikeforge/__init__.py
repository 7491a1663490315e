"""Spiking neurons as fused, differentiable PyTorch operators: the time loop of a neuron is one call.

    spikeforge.nn           neurons and networks as torch modules
    spikeforge.surrogate    derivatives of the spike
    spikeforge.neuron       makes a neuron of a Python function that computes one step
    spikeforge.accelerate   replaces the neurons of a network of SpikingJelly, snnTorch or Norse
    spikeforge.Monitor      records outputs and states while a network runs
    spikeforge.packed_activations   keeps spikes as bits for the backward pass
    spikeforge.checkpointed runs sequences longer than memory
    spikeforge.distributed  shards operators and deals matrices to the ranks of torch.distributed
    spikeforge.Online       trains a network while its sequence runs
    spikeforge.count        counts spikes and synaptic operations
    spikeforge.plot         draws spikes and states
    spikeforge.nir          loads and saves NIR graphs
    spikeforge.connect      draws networks by the rules of spikeforge.rules
    spikeforge.simulate     steps a spikeforge.Network of populations and projections
    spikeforge.synapse      reads a rule by which connections learn; spikeforge.plasticity has some
    spikeforge.custom_op    makes an operator of torch of functions and CUDA source
    spikeforge.ops          the operators

`python -m spikeforge.demo` trains a network to read handwritten digits.

`import spikeforge` loads the library that belongs to the torch imported; everything else is imported when it is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

from spikeforge._imports import after_import
from spikeforge._version import __version__

if TYPE_CHECKING:
    from spikeforge import demo, distributed, nir, nn, ops, plasticity, plot, rules, surrogate
    from spikeforge.accelerate import accelerate
    from spikeforge.checkpointing import checkpointed
    from spikeforge.connecting import Connectivity, Projection, connect
    from spikeforge.count import count
    from spikeforge.custom_op import CudaKernel, CustomOp, custom_op
    from spikeforge.monitor import Monitor
    from spikeforge.online import Online
    from spikeforge.packed import packed_activations
    from spikeforge.plasticity import Plastic, Synapse, synapse
    from spikeforge.simulation import Learned, Network, Recording, Share, simulate
    from spikeforge.trace.core import from_core
    from spikeforge.trace.neuron import TracedNeuron, neuron
    from spikeforge.trace.primitives import (
        add_gradient,
        bernoulli,
        custom_gradient,
        detach,
        draw_once,
        normal,
        poisson,
        select,
        spike,
        spike_strict,
        surrogate_gradient,
        uniform,
        where,
    )


def _load() -> None:
    """Loads the operators; `python -m spikeforge info` says itself what is wrong where they do not load."""
    try:
        from spikeforge import _library

        _library.load()
    except ImportError:
        of_module = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if sys.argv[:1] == ["-m"] else []
        if of_module[:1] != ["spikeforge"]:
            raise


_load()


def _register_sharding() -> None:
    try:
        importlib.import_module("spikeforge.distributed.sharding")
    except ImportError as error:  # of what another torch has elsewhere; what has imported torch's own goes on
        import warnings

        warnings.warn(f"spikeforge: DTensors cannot be used with this torch: {error}", stacklevel=2)


# How operators run on DTensors, once there may be some.
after_import("torch.distributed.tensor", _register_sharding)

# Functions and classes, and the module that each is in.
_FROM = {
    "Connectivity": "connecting",
    "CudaKernel": "custom_op",
    "CustomOp": "custom_op",
    "Learned": "simulation",
    "Monitor": "monitor",
    "Network": "simulation",
    "Online": "online",
    "Plastic": "plasticity",
    "Projection": "connecting",
    "Recording": "simulation",
    "Share": "simulation",
    "Synapse": "plasticity",
    "TracedNeuron": "trace",
    "accelerate": "accelerate",
    "add_gradient": "trace",
    "bernoulli": "trace",
    "checkpointed": "checkpointing",
    "connect": "connecting",
    "count": "count",
    "custom_gradient": "trace",
    "custom_op": "custom_op",
    "detach": "trace",
    "draw_once": "trace",
    "from_core": "trace",
    "neuron": "trace",
    "normal": "trace",
    "packed_activations": "packed",
    "poisson": "trace",
    "select": "trace",
    "simulate": "simulation",
    "spike": "trace",
    "spike_strict": "trace",
    "surrogate_gradient": "trace",
    "synapse": "plasticity",
    "uniform": "trace",
    "where": "trace",
}

__all__ = [
    "Connectivity",
    "CudaKernel",
    "CustomOp",
    "Learned",
    "Monitor",
    "Network",
    "Online",
    "Plastic",
    "Projection",
    "Recording",
    "Share",
    "Synapse",
    "TracedNeuron",
    "__version__",
    "accelerate",
    "add_gradient",
    "bernoulli",
    "checkpointed",
    "connect",
    "count",
    "custom_gradient",
    "custom_op",
    "demo",
    "detach",
    "distributed",
    "draw_once",
    "from_core",
    "neuron",
    "nir",
    "nn",
    "normal",
    "ops",
    "packed_activations",
    "plasticity",
    "plot",
    "poisson",
    "rules",
    "select",
    "simulate",
    "spike",
    "spike_strict",
    "surrogate",
    "surrogate_gradient",
    "synapse",
    "uniform",
    "where",
]


if not TYPE_CHECKING:  # a type checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _FROM:
            value = getattr(importlib.import_module(f"spikeforge.{_FROM[name]}"), name)
        elif not name.startswith("_") and importlib.util.find_spec(f"spikeforge.{name}"):
            value = importlib.import_module(f"spikeforge.{name}")
        else:
            raise AttributeError(f"module spikeforge has no attribute {name}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return list(__all__)


class _Package(types.ModuleType):
    """spikeforge.accelerate is the function, also once `spikeforge.accelerate` has been imported as a module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _FROM and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
