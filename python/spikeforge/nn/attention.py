"""Attention between spikes: products and sums of zeros and ones, without softmax.

The functions take ``[T, ..., D, N]``: D channels of a head by N tokens, tokens last. The modules take images
``[T, B, C, H, W]``, with N = H W tokens of C = heads · D channels. In this layout a convolution of size 1, a batch
normalisation and a neuron write what the products read: heads, queries, keys and values are views of it. For memory in
the channels-last format, the products of :class:`SpikingSelfAttention` copy their arguments.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from spikeforge._numbers import is_number
from spikeforge.nn.containers import TimeDistributed
from spikeforge.nn.neurons import LIF
from spikeforge.nn.pieces import type_of_product

EXACT = {torch.float16: 2048, torch.bfloat16: 256}  # the largest n for which 0, 1, ..., n have no rounding
COST_OF_EXACTNESS = 4  # a limit, also of the memory of the product of q and k
MODES = ("token", "channel")
SAME = "[T, ..., D, N], all of one shape"
paper_neuron = partial(LIF, tau=2.0, surrogate="atan", detach_reset=True)


def spiking_self_attention(q: Tensor, k: Tensor, v: Tensor, scale: float = 0.125) -> Tensor:
    """Attention without softmax: V K^T Q times `scale`, with tokens as columns; ``[..., E, N]``.

    Args:
        q: queries, spikes ``[..., D, N]``.
        k: keys, spikes ``[..., D, M]``.
        v: values, spikes ``[..., E, M]``.
        scale: multiplies the first product, the smaller tensor; a power of two keeps it exact.

    The first product is V K^T or K^T Q, whichever order needs fewer multiplications: for D = E and N = M the first if
    D <= N. Its elements are whole numbers up to M or D. In half types (also those of autocast, which applies as to
    ``torch.matmul``) they are exact up to 2048 in float16 and 256 in bfloat16: if one order exceeds this limit and the
    other does not, the other one is computed, unless it needs more than four times as many multiplications. Sums of
    both products are in float32 for half types, and the result is rounded once.

    Source: Zhou et al., Spikformer, ICLR 2023 ("spiking self attention mechanism").
    """
    _check("spiking_self_attention", q, k, v)
    if q.shape[:-1] != k.shape[:-1] or v.shape[:-2] != k.shape[:-2] or v.shape[-1] != k.shape[-1]:
        raise _wrong_shapes("spiking_self_attention", "[..., D, N], [..., D, M] and [..., E, M]", q, k, v)
    if not is_number(scale) or not -math.inf < scale < math.inf:
        raise ValueError(f"spiking_self_attention: scale must be a finite number, but is {scale!r}")
    return v @ k.mT * scale @ q if _values_first(q, k, v) else v @ (k.mT @ q * scale)


def _values_first(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Returns True for (V K^T) Q, False for V (K^T Q)."""
    (inner, queries), (outer, tokens) = q.shape[-2:], v.shape[-2:]
    values = inner * outer * (tokens + queries), tokens  # multiplications, and the largest sum of the first product
    keys = tokens * queries * (inner + outer), inner
    values_first = values[0] <= keys[0]
    (cost, largest), (other_cost, other_largest) = (values, keys) if values_first else (keys, values)
    limit = EXACT.get(type_of_product(q), math.inf)
    if largest > limit >= other_largest and other_cost <= COST_OF_EXACTNESS * cost:
        return not values_first
    return values_first


def qk_attention(q: Tensor, k: Tensor, neuron: Callable[[Tensor], Tensor], mode: str = "token") -> Tensor:
    """Keys where a neuron fires for the sums of the queries, zeros elsewhere; ``[..., D, N]``, in the type of k.

    Args:
        q, k: queries and keys, spikes ``[T, ..., D, N]``.
        neuron: maps the sums ``[T, ..., 1, N]`` or ``[T, ..., D, 1]`` to spikes.
        mode: "token" sums over channels, and so selects tokens; "channel" sums over tokens, and selects channels.

    Its cost is linear in N and D. Sums are computed, and under autocast returned to the neuron, as by ``torch.sum``.
    Source: Zhou et al., QKFormer, NeurIPS 2024 ("Q-K token attention", "Q-K channel attention").
    """
    _check("qk_attention", q, k)
    if q.shape != k.shape:
        raise _wrong_shapes("qk_attention", SAME, q, k)
    if mode not in MODES:
        raise ValueError(f"qk_attention: mode must be 'token' or 'channel', but is {mode!r}")
    selected = neuron(q.sum(-2 if mode == "token" else -1, keepdim=True))
    return k * selected.to(k.dtype)  # the first factor determines the layout


def spike_driven_self_attention(q: Tensor, k: Tensor, v: Tensor, neuron: Callable[[Tensor], Tensor]) -> Tensor:
    """Queries of the channels in which a neuron fires for the number of tokens where key and value coincide, zeros
    elsewhere: q times neuron(sum over tokens of k v); ``[..., D, N]``, in the type of q.

    Args:
        q, k, v: queries, keys and values, spikes ``[T, ..., D, N]``.
        neuron: maps the sums ``[T, ..., D, 1]`` to spikes.

    Its cost is linear in N and D. Channels do not interact, so there are no heads.
    Source: Yao et al., Spike-driven Transformer, NeurIPS 2023 ("spike-driven self-attention").
    """
    _check("spike_driven_self_attention", q, k, v)
    if q.shape != k.shape or q.shape != v.shape:
        raise _wrong_shapes("spike_driven_self_attention", SAME, q, k, v)
    return q * neuron((k * v).sum(-1, keepdim=True)).to(q.dtype)


def _check(name: str, *tensors: Tensor) -> None:
    for argument, t in zip("qkv", tensors):
        if not isinstance(t, Tensor) or not t.is_floating_point() or t.dim() < 2:
            raise TypeError(
                f"{name}: {argument} must be a floating-point tensor [..., channels, tokens], but is {_described(t)}"
            )


def check_images(owner: str, x: Tensor, channels: int | None = None, hint: str = "") -> None:
    """Raises ValueError unless x is a floating-point tensor ``[T, B, channels, H, W]``; None is any number."""
    if isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 5 and channels in (None, x.shape[2]):
        return
    expected = f"[T, B, {'channels' if channels is None else channels}, H, W]"
    raise ValueError(f"{owner}: x must be a floating-point tensor {expected}, but is {_described(x)}{hint}")


def _described(x: object) -> str:
    return f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def _wrong_shapes(name: str, expected: str, *tensors: Tensor) -> ValueError:
    shapes = ", ".join(str(list(t.shape)) for t in tensors)
    return ValueError(f"{name}: q, k{' and v' * (len(tensors) > 2)} must be {expected}, but have shapes {shapes}")


def check_neuron(owner: str, neuron: Callable[..., nn.Module], **options: float) -> None:
    """Raises TypeError unless `neuron` is a function, or a class, that accepts these options."""
    try:
        if isinstance(neuron, nn.Module):
            raise TypeError("it is a module")
        inspect.signature(neuron).bind(**options)
    except TypeError as error:
        accepts = "".join(f" and accepts {name}" for name in options)
        raise TypeError(
            f"{owner}: neuron must be a function that creates a neuron{accepts}, such as functools.partial(snn.LIF, "
            f"tau=2.0), but is {neuron!r:.80}: {error}"
        ) from None


class Attention(nn.Module):
    """The projections and neurons around the products.

    x is ``[T, B, C, H, W]``, spikes or sums of spikes; tokens without two dimensions are ``[T, B, C, N, 1]``. The
    result is the normalised projection ``[T, B, C, H, W]``, the input of the next neuron: ``neuron(attention(x))`` are
    spikes, as in Spikformer, and ``x + attention(neuron(x))`` is a membrane shortcut, as in the Spike-driven
    Transformer. :func:`fuse` fuses the first normalisation into its neuron.

    Args:
        dim: the channels C.
        heads: the number of groups of channels, a divisor of C.
        neuron: creates a neuron; called without arguments for queries and keys, and with ``v_threshold=0.5`` for the
            sums of the attention. By default a LIF with tau = 2, the derivative of an arctangent, and a detached reset.
        bias: the projections have a bias, which has no effect before a batch normalisation.
        norm: creates the normalisation for a number of channels, after each projection; None: there is none.
    """

    PARTS = 3

    def __init__(
        self, dim: int, heads: int = 1, *, neuron: Callable[..., nn.Module] = paper_neuron, bias: bool = False,
        norm: Callable[[int], nn.Module] | None = nn.BatchNorm2d,
    ):  # fmt: skip
        super().__init__()
        if dim < 1 or heads < 1 or dim % heads:
            raise ValueError(f"{type(self).__name__}: heads must divide dim, but dim is {dim} and heads is {heads}")
        check_neuron(type(self).__name__, neuron, v_threshold=0.5)
        self.dim, self.heads = dim, heads

        def projection(outputs: int) -> TimeDistributed:
            layers = [nn.Conv2d(dim, outputs, 1, bias=bias), *([] if norm is None else [norm(outputs)])]
            return TimeDistributed(*layers)

        # Queries, keys and values of a head are next to each other, so that batch and heads are one dimension in memory.
        self.heads_projection, self.heads_neuron = projection(self.PARTS * dim), neuron()
        self.attention_neuron = neuron(v_threshold=0.5)
        self.projection = projection(dim)

    def forward(self, x: Tensor) -> Tensor:
        check_images(type(self).__name__, x, self.dim)
        spikes = self.heads_neuron(self.heads_projection(x)).flatten(3)
        heads = (self.heads, self.PARTS, self.dim // self.heads)
        if spikes.stride(2) == 1:  # channels last: unbind's gradient has the layout of this view
            parts = [part.permute(0, 1, 3, 4, 2) for part in spikes.mT.unflatten(3, heads).unbind(4)]
        else:
            parts = spikes.unflatten(2, heads).unbind(3)
        return self.projection(self._attend(*parts).reshape(x.shape))

    def _attend(self, *parts: Tensor) -> Tensor:
        """Maps queries, keys (and values), spikes ``[T, B, heads, D, N]``, to spikes of this shape."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}"


class SpikingSelfAttention(Attention):
    """Spiking self-attention of Spikformer (:func:`spiking_self_attention`); `scale` multiplies the products."""

    def __init__(self, dim: int, heads: int = 8, *, scale: float = 0.125, **options):
        super().__init__(dim, heads, **options)
        self.scale = scale

    def _attend(self, *parts: Tensor) -> Tensor:
        return self.attention_neuron(spiking_self_attention(*parts, scale=self.scale))


class QKAttention(Attention):
    """Attention of queries and keys of QKFormer (:func:`qk_attention`); `mode` is "token" or "channel"."""

    PARTS = 2

    def __init__(self, dim: int, heads: int = 8, *, mode: str = "token", **options):
        super().__init__(dim, heads, **options)
        if mode not in MODES:
            raise ValueError(f"QKAttention: mode must be 'token' or 'channel', but is {mode!r}")
        self.mode = mode

    def _attend(self, *parts: Tensor) -> Tensor:
        return qk_attention(*parts, self.attention_neuron, self.mode)


class SpikeDrivenSelfAttention(Attention):
    """Spike-driven self-attention (:func:`spike_driven_self_attention`). Its channels do not interact: no heads."""

    def __init__(self, dim: int, **options):
        super().__init__(dim, **options)

    def _attend(self, *parts: Tensor) -> Tensor:
        return spike_driven_self_attention(*parts, self.attention_neuron)


for _kind in (SpikingSelfAttention, QKAttention, SpikeDrivenSelfAttention):
    if _kind.__doc__ and Attention.__doc__:  # there are none under python -OO
        _kind.__doc__ += "\n" + Attention.__doc__.split("\n", 1)[1]
