"""Replaces the forward pass of a module in place.

The object keeps its parameters, buffers, hooks and states; its class becomes a subclass of its class that overrides the
dynamics. isinstance, state_dict, optimisers, repr and the library's own functions (reset, detach) work unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

# The attributes that replacing adds to a module.
OWN = (
    "_spikeforge", "_spikeforge_bits", "_spikeforge_chain", "_spikeforge_charged", "_spikeforge_forward",
    "_spikeforge_joined", "_spikeforge_keeps_states", "_spikeforge_neuron", "_spikeforge_norm", "_spikeforge_packs",
    "_spikeforge_recompute", "_spikeforge_shortcut", "_spikeforge_text",
)  # fmt: skip


class Replaced:
    """Mixed into the class of a module whose dynamics run as an operator."""

    original: ClassVar[type]
    mixin: ClassVar[type]

    def _prepare(self) -> None:
        """Prepares what the first call would prepare, so that torch.compile does not trace it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self).mixin, type(self).original), self.__dict__


class ReplacedLayer(Replaced):
    """Mixed into the class of a layer or a block that is not a neuron."""


@dataclass(frozen=True)
class Verdict:
    """The decision about a neuron: the mixin and what it runs, or no mixin and the reason."""

    mixin: type[Replaced] | None
    what: str
    notes: tuple[str, ...] = ()


def left(reason: str) -> Verdict:
    """Returns the verdict on a neuron that is not replaced."""
    return Verdict(None, reason)


@functools.cache
def fused_class(mixin: type[Replaced], original: type) -> type:
    """Returns the subclass of `original` with the dynamics of `mixin` and the name of `original`."""
    names = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(original.__name__, (mixin, original), {**names, "original": original, "mixin": mixin})


def replace(module: torch.nn.Module, mixin: type[Replaced]) -> None:
    """Replaces the dynamics of the module by those of the mixin."""
    module.__class__ = fused_class(mixin, type(module))
    module._prepare()


def put_back(module: torch.nn.Module) -> bool:
    """Restores the module's own dynamics; returns False if it was not replaced."""
    if not isinstance(module, Replaced):
        return False
    for name in OWN:
        module.__dict__.pop(name, None)
    module.__class__ = type(module).original
    return True


def _blank(mixin: type[Replaced], original: type) -> torch.nn.Module:
    """Creates the empty module that unpickling and deepcopy fill with attributes."""
    cls = fused_class(mixin, original)
    return cls.__new__(cls)


def own_class(module: torch.nn.Module) -> type:
    """Returns the class of the module, or its class before it was replaced."""
    return type(module).original if isinstance(module, Replaced) else type(module)


def overridden(module: torch.nn.Module, base: type, harmless: Collection[str], dynamics: Collection[str]) -> str | None:
    """Returns the name of an attribute that a subclass of `base`, or the object, overrides and that may change the
    dynamics."""
    for cls in own_class(module).__mro__:
        if cls is base:
            break
        for name, value in vars(cls).items():
            changes = callable(value) or isinstance(value, (staticmethod, classmethod, property))
            if changes and not name.startswith("__") and name not in harmless or name == "__call__":
                return name
    return next((name for name in dynamics if name in vars(module)), None)


def ancestor(module: torch.nn.Module, package: str) -> type | None:
    """Returns the first base class of the module that is defined in the package."""
    for cls in own_class(module).__mro__:
        if cls.__module__ == package or cls.__module__.startswith(package + "."):
            return cls
    return None


def named(surrogate: str, numbers: Collection[float]) -> str:
    """Formats a surrogate as neuron text."""
    return f"{surrogate}({', '.join(repr(float(number)) for number in numbers)})" if numbers else surrogate


def readable(surrogate: str, numbers: Collection[float]) -> str:
    """Formats a surrogate for the report."""
    return f"{surrogate}({', '.join(format(number, 'g') for number in numbers)})" if numbers else surrogate


def parameter(value: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a parameter as a tensor of the states' type; a tensor with one element may be on the CPU."""
    if isinstance(value, torch.Tensor):
        return value if value.dtype == dtype else value.to(dtype)
    return torch.full((), value, dtype=dtype, device=device)


def reaches(value: torch.Tensor, shape: torch.Size) -> bool:
    """Returns True if a parameter broadcasts against the shape without enlarging it."""
    return value.ndim == 0 or torch.broadcast_shapes(value.shape, shape) == shape
