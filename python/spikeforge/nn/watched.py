"""fuse() of networks of any forward: one call of them is watched."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikeforge.accelerate import products, residual
from spikeforge.accelerate.watch import has_hooks, watched
from spikeforge.nn.containers import Sequential, TimeDistributed
from spikeforge.nn.layers import BatchNormNeuron, _fused, _is_free, _occurrences, _put
from spikeforge.nn.neurons import PredefinedNeuron
from spikeforge.nn.own import Neuron
from spikeforge.nn.pooling import goes_before_norm
from spikeforge.nn.stateful import StatefulModule


def fuse_watched(net: nn.Module, inputs: tuple[Any, ...], recompute: bool) -> list[str]:
    times = _occurrences(net)
    parents = {child: (parent, name) for parent in net.modules() for name, child in parent.named_children()}
    free = [module for module in parents if _is_free(module, times) and _lets_replace(parents[module][0])]
    norms = {module for module in free if isinstance(module, _BatchNorm)}
    neurons = {module for module in free if isinstance(module, (PredefinedNeuron, Neuron))}
    if not norms or not neurons:
        return []
    candidates = {
        module for module in net.modules() if recompute and products.is_product(module) and not has_hooks(module)
    }
    pools = {module for module in free if goes_before_norm(module)}
    watch = watched(net, inputs, norms, neurons, candidates, _fires, pools)
    fused: dict[nn.Module, BatchNormNeuron] = {}
    recomputed: list[tuple[nn.Module, int]] = []
    for norm, pool, neuron in watch.chains(net, inputs):
        layer = _fused(norm, neuron, pool)
        if layer is None:
            continue
        found = watch.product_before(norm)
        if found is not None:
            products.recompute(*found)
            recomputed.append(found)
            layer.recompute = True
        fused[neuron] = layer
        for module in (norm, pool):
            if module is not None:
                _put(*parents[module], nn.Identity())
        _put(*parents[neuron], layer)
    layers = set(fused.values())
    for module in list(net.modules()):
        if not isinstance(module, StatefulModule):
            for layer, mode in residual.join(module, lambda m: m in layers and m._pool() is None, as_input=True):
                layer.residual, layer._joins_any = mode, True
    joining = {neuron for neuron, layer in fused.items() if layer.residual is not None}
    for neuron, bits in watch.packing(recomputed, joining).items():
        if neuron in fused:
            fused[neuron].bits = bits
    return [name for name, module in net.named_modules() if module in layers]


def _fires(neuron: nn.Module) -> bool:
    """A neuron of one's own may give any number."""
    return isinstance(neuron, PredefinedNeuron) and neuron.spiking


def _lets_replace(parent: nn.Module) -> bool:
    """A composite refers to its parts by object, not by name."""
    return isinstance(parent, (Sequential, TimeDistributed)) or not isinstance(parent, StatefulModule)
