"""Rewrites a network so that normalisations, poolings and residuals run in the pass of the neurons next to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikeforge.accelerate import products, residual
from spikeforge.accelerate.rewrites import Rewrite, find_rewrites, occurrences
from spikeforge.nn.containers import Sequential, TimeDistributed
from spikeforge.nn.layers import RESIDUALS, BatchNormNeuron
from spikeforge.nn.neurons import PredefinedNeuron
from spikeforge.nn.own import Neuron
from spikeforge.nn.pooling import goes_before_norm
from spikeforge.nn.stateful import StatefulModule, _join, has_hooks

Places = Mapping[nn.Module, tuple[nn.Module, str]]  # the parent of each module, and its name there


def fuse(net: nn.Module, *inputs: Any, recompute: bool = False) -> list[str]:
    """Fuses each batch normalisation into the neuron that follows it, in place.

    Without `inputs`, it searches each ``torch.nn.Sequential`` and :class:`~spikeforge.nn.Sequential` for a neuron of
    this package after a :class:`~spikeforge.nn.TimeDistributed` that is a batch normalisation, or ends in one, or in
    one and a max pooling of images. A :class:`BatchNormNeuron` replaces the neuron; the TimeDistributed keeps the
    layers before the normalisation. Modules with hooks, with a custom `forward` on the instance, and modules that are
    registered more than once do not change. Do not fuse a network whose forward calls the parts of such a Sequential
    one by one.

    With `inputs`, it runs the network once on them, in evaluation mode and without gradients, and finds each
    normalisation whose result one neuron reads and nothing else, for any Python code between the two. An Identity
    replaces the normalisation. A max pooling of images may be between the two if that code does not read the sizes of
    the maxima; the network runs once more for each pooling, to check that no sizes are hard-coded there. If the
    forward of a module joins the neuron's spikes s with a residual r, as s + r, s * r or (1 - s) * r, the neuron's
    pass does that too.

    Parameters keep their identity, so optimisers stay valid; their names change (``"1.norm.weight"``), and so do the
    names of states: load a checkpoint first.

    Args:
        net: the network to change.
        inputs: the arguments of `net`; a small batch is enough.
        recompute: linear layers and convolutions before those normalisations keep their input, spikes as bits, instead
            of their result, which is recomputed in the backward pass. Results are the largest tensors. Needs `inputs`.

    Returns:
        The names of the neurons that were fused.
    """
    if not isinstance(recompute, bool):
        raise TypeError(f"fuse: recompute must be True or False, but is {recompute!r}")
    if recompute and not inputs:
        raise ValueError(
            "fuse: recompute=True needs inputs, to find the products of spikes: fuse(net, x, recompute=True)"
        )
    places = {child: (parent, name) for parent in net.modules() for name, child in parent.named_children()}
    free = {module for module, times in occurrences(net).items() if times == 1 and not has_hooks(module)}
    return _fuse_called(net, inputs, recompute, free, places) if inputs else _fuse_sequentials(net, free, places)


def _fuse_sequentials(net: nn.Module, free: Collection[nn.Module], places: Places) -> list[str]:
    names = []
    for name, layer, rewrite in list(_in_sequentials(net, free)):
        if _apply(rewrite, places) is not None:
            layer.module = _without_last(layer.module, 1 if rewrite.pool is None else 2)
            names.append(name)
    return names


def _in_sequentials(net: nn.Module, free: Collection[nn.Module]) -> Iterator[tuple[str, TimeDistributed, Rewrite]]:
    """Yields the name of a neuron in a Sequential, the layer before it, and their rewrite."""
    for path, container in net.named_modules():
        if type(container) not in (nn.Sequential, Sequential):
            continue
        parts = list(container._modules.items())
        for (_, layer), (name, neuron) in zip(parts, parts[1:]):
            norm, pool = _last_norm(layer)
            if norm is not None and free.issuperset({neuron, layer, layer.module, norm, pool} - {None}):
                yield _join(path, name), layer, Rewrite(norm, pool, neuron)


def _fuse_called(
    net: nn.Module, inputs: tuple[Any, ...], recompute: bool, free: Collection[nn.Module], places: Places
) -> list[str]:
    free = [module for module in places if module in free and _lets_replace(places[module][0])]
    norms = {module for module in free if isinstance(module, _BatchNorm)}
    neurons = {module for module in free if isinstance(module, (PredefinedNeuron, Neuron))}
    pools = {module for module in free if goes_before_norm(module)}
    rewrites, watch = find_rewrites(net, inputs, norms, neurons, pools, recompute, _fires)
    rewrites = [rewrite for rewrite in rewrites if not rewrite.shortcut]
    fused = {rewrite: layer for rewrite in rewrites if (layer := _apply(rewrite, places)) is not None}
    for rewrite, layer in fused.items():
        if rewrite.product is not None:
            products.recompute(rewrite.product, rewrite.bits)
            layer.recompute = True
        for module in (rewrite.norm, rewrite.pool):
            if module is not None:
                _put(*places[module], nn.Identity())
    layers = set(fused.values())
    for module in list(net.modules()):
        if not isinstance(module, StatefulModule):
            modes = lambda m: RESIDUALS if m in layers and m._pool() is None else ()
            for layer, mode in residual.join(module, modes, as_input=True):
                layer.residual, layer._joins_any = mode, True
    if watch is not None:
        bits = watch.packing(fused, {rewrite.neuron for rewrite, layer in fused.items() if layer.residual is not None})
        for rewrite, layer in fused.items():
            layer.bits = bits.get(rewrite.neuron, layer.bits)
    return [name for name, module in net.named_modules() if module in layers]


def _apply(rewrite: Rewrite, places: Places) -> BatchNormNeuron | None:
    """Puts a BatchNormNeuron in the place of the neuron; returns None if the modules do not form one."""
    try:
        layer = BatchNormNeuron(rewrite.norm, rewrite.neuron, pool=rewrite.pool)
    except (TypeError, ValueError):
        return None
    layer.training = rewrite.neuron.training
    _put(*places[rewrite.neuron], layer)
    return layer


def _put(container: nn.Module, name: str, module: nn.Module) -> None:
    container._modules[name] = module
    if isinstance(container, Sequential):
        container._name_parts([name])


def _fires(neuron: nn.Module) -> bool:
    """Returns True if the neuron's output contains only 0 and 1; that of a custom neuron may contain any value."""
    return isinstance(neuron, PredefinedNeuron) and neuron.spiking and neuron._is_binary


def _lets_replace(parent: nn.Module) -> bool:
    """Returns True if the parent reads its parts by name at each call; other containers of this package keep them
    elsewhere."""
    return isinstance(parent, (Sequential, TimeDistributed)) or not isinstance(parent, StatefulModule)


def _last_norm(layer: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
    """Returns the normalisation that a TimeDistributed ends in, and the pooling after it."""
    if type(layer) is not TimeDistributed:
        return None, None
    parts = list(layer.module) if type(layer.module) is nn.Sequential else [layer.module]
    pool = parts.pop() if len(parts) > 1 and goes_before_norm(parts[-1]) else None
    norm = parts[-1] if parts else None
    return (norm, pool) if isinstance(norm, _BatchNorm) else (None, None)


def _without_last(inner: nn.Module, count: int) -> nn.Module:
    if type(inner) is not nn.Sequential:
        return nn.Identity()
    rest = list(inner)[:-count]
    return rest[0] if len(rest) == 1 else nn.Sequential(*rest).train(inner.training)
