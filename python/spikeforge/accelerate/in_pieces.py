"""The layers of a network with the largest tensors, for one part of the batch at a time: a convolution, its batch
normalisation, a neuron and a max pooling that follow each other in a Sequential.

The convolution computes all of it. The other layers return their argument if it is that result."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spikeforge._numbers import FLOATS, state_type
from spikeforge.accelerate.watch import has_hooks

_results: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Tensor]] = weakref.WeakKeyDictionary()


def handed_on(module: nn.Module, x: Tensor) -> bool:
    """True if x is the result of the whole layer, so that the module has nothing to compute."""
    result = _results.get(module)
    return result is not None and result() is x


def chains(
    net: nn.Module, layers: Mapping[nn.Module, tuple[nn.Module, nn.Module]], is_pool: Any
) -> list[tuple[nn.Module, ...]]:
    """Convolutions, normalisations, neurons and optional poolings that follow each other.

    Args:
        layers: by convolution, the normalisation and the neuron after it.
        is_pool: returns True for a pooling that can be included.
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


def run(convolution: nn.Module, x: Tensor) -> Tensor | None:
    """The result of the whole chain that begins with this convolution; None if its parts have to run one by one: in
    evaluation, or with hooks on one of them."""
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
    from spikeforge.nn.pieces import type_of_product  # it takes the library's operators

    what = neuron._from_rest(x, state_type(type_of_product(x)))
    return None if what is None else _run(parts, x, *what, pieces)


def _run(parts: tuple[nn.Module, ...], x: Tensor, text: str, params: list[Tensor], pieces: int) -> Tensor:
    from spikeforge.nn.layers import parameter, update_running  # they take the library's operators
    from spikeforge.nn.pieces import Layer, Tensors, run_in_pieces
    from spikeforge.nn.pooling import max_pooled

    convolution, norm, neuron, *pool = parts
    behind = (lambda spikes: max_pooled(pool[0], spikes)) if pool else (lambda spikes: spikes)
    layer = Layer(
        convolution._product, text, norm.eps, behind, min(pieces, x.shape[1]), convolution._bits, neuron._keeps_states()
    )
    of_norm = parameter(norm, "weight"), parameter(norm, "bias")
    tensors = Tensors(convolution.weight, convolution.bias, *of_norm, tuple(params))
    result, states, mean, var, count = run_in_pieces(layer, x, tensors)
    neuron._take(states)
    update_running(norm, mean, var, count)
    for part in (neuron, *pool):
        _results[part] = weakref.ref(result)
    return result
