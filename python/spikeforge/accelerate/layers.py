"""What stands around the neurons of a network of SpikingJelly: batch normalisation in the neuron's own pass, and pooling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from spikeforge import _library
from spikeforge.accelerate import replacing
from spikeforge.accelerate.replacing import Replaced

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
MOST_PLACES = 256  # of a window of max_pool2d
LAYERS = "spikingjelly.activation_based.layer"


@dataclass(frozen=True)
class Layers:
    """What `layers` did: print it.

    Attributes:
        normalised: pairs of names, of a batch normalisation and of the neuron in whose pass it runs now.
        pooled: the names of poolings that keep a byte for each maximum now.
    """

    normalised: tuple[tuple[str, str], ...]
    pooled: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.normalised)} batch normalisations run in the pass of a neuron"]
        lines += [f"  {norm}  in  {neuron}" for norm, neuron in self.normalised]
        lines += [f"{len(self.pooled)} max poolings keep a byte for each maximum"]
        return "\n".join(lines + [f"  {name}" for name in self.pooled])


def layers(net: nn.Module, *inputs: Any) -> Layers:
    """Has the batch normalisations before the neurons of SpikingJelly run in the neurons' passes, in place, and its max
    poolings by this library's operators. Call `accelerate(net)` first: those neurons are meant that it has replaced.

    The network is run once, with `inputs`, in evaluation mode and without gradients, to see which normalisation feeds
    one neuron and nothing else, whatever Python code lies between them. From then on the normalisation hands its input
    on, and the neuron, in step mode "m", normalises it in its own pass. Modules, parameters, buffers and state_dict
    stay what they are; spikes are the same within rounding. Left alone are modules with hooks. `accelerate.restore`
    undoes it; do that before one of the two is taken out of the network or replaced, as convert_sync_batchnorm does.

    Args:
        net: a network that `accelerate` has seen.
        inputs: what it is called with: a small batch is enough.

    Returns:
        The names of what was changed.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"accelerate.layers: net must be a torch.nn.Module, but is {type(net).__name__}")
    _library.load()
    names = {module: name for name, module in net.named_modules()}
    pairs = _pairs(net, inputs)
    for norm, neuron in pairs:
        replacing.replace(norm, HandingOn)
        norm.__dict__["_spikeforge_neuron"] = (neuron,)  # in a tuple: it is no part of the module
        neuron.__dict__["_spikeforge_norm"] = (norm,)
    pools = [module for module in names if _is_known_pool(module)]
    for pool in pools:
        replacing.replace(pool, BytePool)
    return Layers(tuple((names[norm], names[neuron]) for norm, neuron in pairs), tuple(names[pool] for pool in pools))


# --- batch normalisation ---------------------------------------------------------------------------------------------


class HandingOn(Replaced):
    """A batch normalisation whose input goes on to the neuron that normalises it."""

    def forward(self, x: Tensor) -> Tensor:
        neuron = self.__dict__.get("_spikeforge_neuron", (None,))[0]
        return x if norm_of(neuron) is self else super().forward(x)


def norm_of(neuron: Any) -> Any:
    """The batch normalisation that a neuron runs: both know of each other; None mostly."""
    norm = getattr(neuron, "__dict__", {}).get("_spikeforge_norm", (None,))[0]
    if norm is None or not isinstance(norm, HandingOn) or not isinstance(neuron, Replaced):
        return None
    return norm if norm.__dict__.get("_spikeforge_neuron", (None,))[0] is neuron else None


def normalised(norm: nn.Module, x: Tensor) -> Tensor:
    """x `[T, B, C, ...]` by torch's own normalisation over all but the channels."""
    plain = next(kind for kind in NORMS if isinstance(norm, kind))
    return plain.forward(norm, x.flatten(0, 1)).unflatten(0, x.shape[:2])


def _pairs(net: nn.Module, inputs: tuple[Any, ...]) -> list[tuple[nn.Module, nn.Module]]:
    """Of normalisations and neurons that may run together."""
    norms = {module for module in net.modules() if _is_known_norm(module)}
    neurons = {module for module in net.modules() if hasattr(type(module), "takes_norm") and not has_hooks(module)}
    neurons = {module for module in neurons if norm_of(module) is None}
    if not norms or not neurons:
        return []
    watch = _Watch()
    with _as_it_was(net), watch.hooks(norms, neurons), torch.no_grad(), watch:
        net.eval()
        net(*inputs)
    return watch.pairs()


def _is_known_norm(module: nn.Module) -> bool:
    return _is_of(module, NORMS) and not has_hooks(module)


def _is_of(module: nn.Module, kinds: tuple[type, ...]) -> bool:
    """Whether it is one of torch's modules, or SpikingJelly's of that name, and not replaced."""
    own = replacing.own_class(module)
    is_known = own in kinds or (own.__module__.startswith(LAYERS) and own.__mro__[1] in kinds)
    return is_known and not isinstance(module, Replaced)


# --- pooling ---------------------------------------------------------------------------------------------------------


class BytePool(Replaced):
    """A maximum pooling of images, in torch's results."""

    def forward(self, x: Tensor) -> Tensor:
        dims = {"s": (3, 4), "m": (5,)}.get(getattr(self, "step_mode", "s"), ())
        if x.dim() not in dims or not x.is_floating_point() or self.return_indices:
            return super().forward(x)
        from spikeforge.nn.pooling import max_pooled  # it takes the library's operators

        return max_pooled(self, x)


def _is_known_pool(module: nn.Module) -> bool:
    if not _is_of(module, (nn.MaxPool2d,)) or "forward" in module.__dict__ or module.return_indices:
        return False
    size = module.kernel_size
    return (size * size if isinstance(size, int) else size[0] * size[1]) <= MOST_PLACES
