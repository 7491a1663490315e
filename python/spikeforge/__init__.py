"""Spiking neurons as fused, differentiable PyTorch operators: the time loop of a neuron is one call.

    spikeforge.nn           neurons and networks as torch modules
    spikeforge.models       published networks: transformers of spikes and residual networks
    spikeforge.surrogate    derivatives of the spike
    spikeforge.losses       read-outs of a sequence, losses of them, and penalties of firing rates
    spikeforge.neuron       traces a Python function of one step as a neuron, whose spikes spikeforge.spike computes
    spikeforge.trace        other functions for such a function: resets, gradients, random numbers
    spikeforge.accelerate   replaces the neurons of a network of SpikingJelly, snnTorch, Norse or Sinabs
    spikeforge.convert      converts a trained network of ReLU; spikeforge.qcfs prepares it by fine-tuning
    spikeforge.Monitor      records outputs and states while a network runs
    spikeforge.packed_activations   keeps spikes as bits for the backward pass
    spikeforge.checkpointed runs sequences longer than memory
    spikeforge.distributed  shards operators and partitions matrices over the ranks of torch.distributed
    spikeforge.Online       trains a network while its sequence runs
    spikeforge.count        counts spikes and synaptic operations, and estimates their energy
    spikeforge.energy       measures the energy of a call
    spikeforge.plot         draws spikes and states
    spikeforge.nir          loads and saves NIR graphs
    spikeforge.connect      draws networks by the rules of spikeforge.rules
    spikeforge.simulate     steps a spikeforge.Network of populations and projections
    spikeforge.synapse      reads a rule by which connections learn; spikeforge.plasticity defines some
    spikeforge.custom_op    registers functions and CUDA source as a torch operator
    spikeforge.ops          the operators

`python -m spikeforge.demo` trains a network to read handwritten digits.

`import spikeforge` loads the library that was built for the installed torch; everything else is imported on first use.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

from spikeforge._imports import after_import
from spikeforge._version import __version__

if TYPE_CHECKING:
    from spikeforge import demo, distributed, losses, models, nir, nn, ops, plasticity, plot, rules, surrogate, trace
    from spikeforge.accelerate import accelerate
    from spikeforge.checkpointing import checkpointed
    from spikeforge.connecting import Connectivity, Projection, connect
    from spikeforge.convert import convert, qcfs
    from spikeforge.count import count
    from spikeforge.custom_op import CudaKernel, CustomOp, custom_op
    from spikeforge.energy import energy
    from spikeforge.monitor import Monitor
    from spikeforge.online import Online
    from spikeforge.packed import packed_activations
    from spikeforge.plasticity import Plastic, Synapse, synapse
    from spikeforge.simulation import Learned, Network, Recording, Share, simulate
    from spikeforge.trace.neuron import TracedNeuron, neuron
    from spikeforge.trace.primitives import spike


def _load() -> None:
    """Loads the operators. `python -m spikeforge info` prints the reason itself if they do not load."""
    try:
        from spikeforge import _library

        _library.load()
    except ImportError:
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if sys.argv[:1] == ["-m"] else []
        if module[:1] != ["spikeforge"]:
            raise


_load()


def _register_sharding() -> None:
    try:
        importlib.import_module("spikeforge.distributed.sharding")
    except ImportError as error:  # another version of torch may lack a name; the import of torch's module continues
        warnings.warn(f"spikeforge: DTensors cannot be used with this torch: {error}", stacklevel=2)


# The rules by which operators run on DTensors, registered with the first import of DTensor.
after_import("torch.distributed.tensor", _register_sharding)

# Functions and classes, and the module that defines each.
_FROM = {
    "Connectivity": "connecting", "CudaKernel": "custom_op", "CustomOp": "custom_op", "Learned": "simulation",
    "Monitor": "monitor", "Network": "simulation", "Online": "online", "Plastic": "plasticity",
    "Projection": "connecting", "Recording": "simulation", "Share": "simulation", "Synapse": "plasticity",
    "TracedNeuron": "trace", "accelerate": "accelerate", "checkpointed": "checkpointing", "connect": "connecting",
    "convert": "convert", "count": "count", "custom_op": "custom_op", "energy": "energy", "neuron": "trace",
    "packed_activations": "packed", "qcfs": "convert", "simulate": "simulation", "spike": "trace",
    "synapse": "plasticity",
}  # fmt: skip

# Names of this module in version 0.1. They raise a DeprecationWarning, and are removed in version 0.3.
_AT_TRACE = (
    "add_gradient bernoulli custom_gradient detach draw_once from_core normal poisson select spike_strict "
    "surrogate_gradient uniform where"
).split()

__all__ = [
    "Connectivity", "CudaKernel", "CustomOp", "Learned", "Monitor", "Network", "Online", "Plastic", "Projection",
    "Recording", "Share", "Synapse", "TracedNeuron", "__version__", "accelerate", "checkpointed", "connect", "convert",
    "count", "custom_op", "data", "demo", "distributed", "energy", "losses", "models", "neuron", "nir", "nn", "ops",
    "packed_activations", "plasticity", "plot", "qcfs", "rules", "simulate", "spike", "surrogate", "synapse", "trace",
]  # fmt: skip


if not TYPE_CHECKING:  # with __getattr__, a type checker accepts any name

    def __getattr__(name: str) -> Any:
        if name in _AT_TRACE:
            warnings.warn(
                f"spikeforge.{name} is deprecated and will be removed in version 0.3: use spikeforge.trace.{name}",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(importlib.import_module("spikeforge.trace"), name)
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
    """Keeps functions such as `spikeforge.accelerate` when the module of the same name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _FROM and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
