"""Finds the layers of a network that run in a neuron's pass, for :func:`spikeforge.nn.fuse` and
:func:`accelerate.layers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch import nn

from spikeforge.accelerate.products import is_product
from spikeforge.accelerate.watch import Watch, watched
from spikeforge.nn.stateful import has_hooks


@dataclass(frozen=True)
class Rewrite:
    """A normalisation that can run in the pass of the neuron after it.

    Attributes:
        norm, neuron: the two modules.
        pool: the max pooling between them, if there is one.
        shortcut: the neuron reads the sum of the result of `norm` and another tensor.
        product: the linear layer or convolution before `norm`, to be recomputed in the backward pass; None: it is kept.
        bits: the bits per element in which the input of `product` is kept; 0: it is kept unchanged.
    """

    norm: nn.Module
    pool: nn.Module | None
    neuron: nn.Module
    product: nn.Module | None = None
    bits: int = 0
    shortcut: bool = False


def occurrences(net: nn.Module) -> Counter[nn.Module]:
    """Counts the names under which each module is registered in `net`."""
    return Counter(module for _, module in net.named_modules(remove_duplicate=False))


def find_rewrites(
    net: nn.Module, inputs: tuple[Any, ...], norms: Collection[nn.Module], neurons: Collection[nn.Module],
    pools: Collection[nn.Module], recompute: bool, fires: Callable[[nn.Module], bool] = lambda neuron: True,
) -> tuple[list[Rewrite], Watch | None]:  # fmt: skip
    """Runs `net` once on `inputs`, and finds each normalisation whose result one neuron reads and nothing else, or
    whose result is added to a tensor before a neuron reads the sum.

    Args:
        norms, neurons, pools: the modules that may be rewritten.
        recompute: find the product before each normalisation too.
        fires: returns whether a neuron's output contains only 0 and 1.

    Returns:
        The rewrites, and the record of the call; None if there is nothing to find.
    """
    if not norms or not neurons:
        return [], None
    products = {module for module in net.modules() if recompute and is_product(module) and not has_hooks(module)}
    watch = watched(net, inputs, norms, neurons, products, fires, pools)
    product = lambda norm: watch.product_before(norm) or (None, 0)
    found = [Rewrite(*chain, *product(chain[0])) for chain in watch.chains(net, inputs)]
    sums = [Rewrite(norm, None, neuron, *product(norm), shortcut=True) for norm, neuron in watch.shortcuts()]
    return found + sums, watch
