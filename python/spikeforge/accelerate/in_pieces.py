"""Runs the layers with the largest tensors on a part of the batch at a time: a convolution, its batch normalisation, a
neuron and a max pooling that follow each other in a Sequential.

The convolution computes the whole chain. The other modules return its result, which they compare by identity."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spikeforge._numbers import FLOATS, state_type
from spikeforge.nn.layers import parameter, update_running
from spikeforge.nn.pieces import Layer, Tensors, run_in_pieces, type_of_product
from spikeforge.nn.pooling import max_pooled
from spikeforge.nn.stateful import has_hooks

_results: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Tensor]] = weakref.WeakKeyDictionary()


def is_result_of_chain(module: nn.Module, x: Tensor) -> bool:
    """Returns True if x is already the result of the chain that contains the module."""
    result = _results.get(module)
    return result is not None and result() is x


def chains(
    net: nn.Module, layers: Mapping[nn.Module, tuple[nn.Module, nn.Module]], is_pool: Any
) -> list[tuple[nn.Module, ...]]:
    """Returns the chains of a convolution, a normalisation, a neuron and, optionally, a pooling.

    Args:
        layers: by convolution, the normalisation and the neuron after it.
        is_pool: returns True if the modules contain a pooling that can be part of the chain.
    """
    times: dict[nn.Module, int] = {}
    for _, module in net.named_modules(remove_duplicate=False):
        times[module] = times.get(module, 0) + 1
    found = []
    for container in net.modules():
        if not isinstance(container, nn.Sequential) or type(container).forward is not nn.Sequential.forward:
            continue
        parts = list(container)
        for i, module in enumerate(parts):
            if tuple(parts[i + 1 : i + 3]) != layers.get(module):
                continue
            chain = parts[i : i + 4] if is_pool(parts[i + 3 : i + 4]) else parts[i : i + 3]
            if all(times[part] == 1 for part in chain):
                found.append(tuple(chain))
    return found


def run_pieces(convolution: nn.Module, x: Tensor) -> Tensor | None:
    """Runs the whole chain that begins with this convolution. Returns None if its parts must run one by one: in
    evaluation, or if one of them has hooks."""
    (norm, neuron, *pool), pieces = convolution.__dict__["_spikeforge_chain"]
    parts = (convolution, norm, neuron, *pool)
    if (
        not (torch.is_grad_enabled() and norm.training and neuron.training)
        or type(x) is not Tensor
        or x.dim() != convolution.weight.dim() + 1
        or x.shape[1] < 2
        or x.numel() == 0
        or x.dtype not in FLOATS
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or any(getattr(part, "step_mode", "m") != "m" or has_hooks(part) for part in parts)
    ):
        return None
    what = neuron._from_rest(x, state_type(type_of_product(x)))
    return None if what is None else _run(parts, x, *what, pieces)


def _run(parts: tuple[nn.Module, ...], x: Tensor, text: str, params: list[Tensor], pieces: int) -> Tensor:
    convolution, norm, neuron, *pool = parts
    after = (lambda spikes: max_pooled(pool[0], spikes)) if pool else (lambda spikes: spikes)
    layer = Layer(
        convolution._product, text, norm.eps, after, min(pieces, x.shape[1]), convolution._bits, neuron._keeps_states()
    )
    of_norm = parameter(norm, "weight"), parameter(norm, "bias")
    tensors = Tensors(convolution.weight, convolution.bias, *of_norm, tuple(params))
    result, states, mean, var, count = run_in_pieces(layer, x, tensors)
    neuron._take(states)
    update_running(norm, mean, var, count)
    for part in (neuron, *pool):
        _results[part] = weakref.ref(result)
    return result
