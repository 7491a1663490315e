"""Makes networks of SpikingJelly, snnTorch, Norse and Sinabs faster in place.

`spikeforge.accelerate(net)` replaces the dynamics of a network's neurons by the library's operators. The modules stay
the same objects, with the same parameters, state_dict, states, hooks and repr, so that code that trains the network
needs no change. `spikeforge.accelerate.restore(net)` undoes it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

import spikeforge.nn  # noqa: F401  first: spikeforge.nn.fusing imports modules of this package
from spikeforge import _library
from spikeforge.accelerate import replacing
from spikeforge.accelerate.layers import Layers, layers
from spikeforge.accelerate.report import Entry, Report

__all__ = ["Entry", "Layers", "Report", "accelerate", "layers", "restore"]

LIBRARIES = {"spikingjelly": "SpikingJelly", "snntorch": "snnTorch", "norse": "Norse", "sinabs": "Sinabs"}


def accelerate(net: torch.nn.Module) -> Report:
    """Replaces the dynamics of the network's spiking neurons by fused operators, in place.

    Neurons of SpikingJelly 2.0, snnTorch 1.0, Norse 1.1 and Sinabs 3.1 keep their constants, learned parameters (the
    same objects, so that optimisers stay valid), surrogate, reset, step mode, states, hooks and names in state_dict.
    Each call reads the attributes: a changed threshold or surrogate applies from the next call on, and neurons without a
    fused form run as before. A second call changes nothing.

    Args:
        net: a network, or a neuron. It is changed; `restore` undoes that.

    Returns:
        A report of replaced modules, and of skipped ones with the reason. Print it.

    Raises:
        TypeError: `net` is not a torch.nn.Module.
    """
    if not isinstance(net, torch.nn.Module):
        raise TypeError(f"accelerate: net must be a torch.nn.Module, but is {type(net).__name__}")
    _library.load()
    libraries = _imported()
    entries = [entry for name, module in net.named_modules() for entry in _treat(name, module, libraries)]
    return Report(tuple(entries))


def restore(net: torch.nn.Module) -> list[str]:
    """Undoes `accelerate` and `accelerate.layers` in place; states and parameters do not change.

    Args:
        net: a network, or a neuron.

    Returns:
        The names of the modules that were changed.
    """
    return [name for name, module in net.named_modules() if replacing.put_back(module)]


def _imported() -> dict[str, ModuleType]:
    """Returns this package's modules for those libraries that the process has imported."""
    return {name: importlib.import_module(f"spikeforge.accelerate.{name}") for name in LIBRARIES if name in sys.modules}


def _treat(name: str, module: torch.nn.Module, libraries: dict[str, ModuleType]) -> list[Entry]:
    """Returns the entry of a module; an empty list if it is not a neuron."""
    already = isinstance(module, replacing.Replaced)
    for library, ours in libraries.items():
        verdict = ours.examine(module)
        if verdict is None:
            continue
        if verdict.mixin and not already:
            replacing.replace(module, verdict.mixin)
        status = "left" if verdict.mixin is None else "already" if already else "replaced"
        kind, title = type(module).__name__, f"{LIBRARIES[library]} {_version(library)}"
        notes = () if verdict.mixin is None else (*ours.NOTES, *verdict.notes)
        return [Entry(name, kind, title, status, verdict.what, notes)]
    return []


def _version(library: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(library)
    except PackageNotFoundError:
        return "of unknown version"


# `spikeforge.accelerate` is the function, so the other names are its attributes.
accelerate.restore = restore  # type: ignore[attr-defined]
accelerate.layers = layers  # type: ignore[attr-defined]
accelerate.Report = Report  # type: ignore[attr-defined]
