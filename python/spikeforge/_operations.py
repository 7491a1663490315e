"""The operations of layers and products: additions for spikes, multiplications with addition for other values."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from spikeforge.nn.delayed_conv import _DelayedConv
from spikeforge.nn.delayed_linear import DelayedLinear
from spikeforge.nn.lava import LavaConnection, LavaDelayDense, LavaDense
from spikeforge.nn.loihi import LoihiConnection, LoihiDelayDense, LoihiDense, LoihiSparse

MOST = 15  # whole numbers up to this one count as spikes
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

OPERATIONS = ("accumulates", "multiply_accumulates", "events", "values")  # fields of LayerCount
Operations = dict[str, Tensor]  # these fields, on the device of the input
Synapses = Callable[[nn.Module, Tensor], Tensor]


def are_spikes(x: Tensor) -> Tensor:
    """Returns True if all values are whole numbers from -15 to 15, as a tensor on their device."""
    if x.dtype == torch.bool or x.is_complex():
        return torch.full((), not x.is_complex(), device=x.device)
    return ((x == x.round()) & (x.abs() <= MOST)).all()


def spikes_of(x: Tensor) -> Tensor:
    """Returns the number of spikes that each value stands for if all are_spikes(): its magnitude, int8."""
    return x.to(torch.int8).abs()


def layer_operations(module: nn.Module, synapses: Synapses, x: Tensor) -> Operations:
    """Returns the operations of a layer for the input x."""
    fan_out = synapses(module, x)
    leading = x.shape[: x.dim() - fan_out.dim()]
    is_message = isinstance(module, (LoihiConnection, LavaConnection))  # it has a value, and zeros are not sent
    sent = x != 0 if is_message else spikes_of(x)
    spiking = ((x == 0) | (x.abs() == 1)).all() if is_message else are_spikes(x)
    additions = ((sent.sum(tuple(range(len(leading)))) if leading else sent) * fan_out).sum()
    events = sent.sum()
    products, values = (additions, events) if is_message else (fan_out.sum() * math.prod(leading), x.numel())
    return {
        "accumulates": additions * spiking, "multiply_accumulates": products * ~spiking,
        "events": events * spiking, "values": values * ~spiking,
    }  # fmt: skip


# --- products of two tensors. An axis has a label; axes of both tensors with the same label are paired

Labels = Sequence[Hashable]

# Names of functions of torch and this library that compute products, but have no rule below.
OTHERS = frozenset(
    """
    bilinear chain_matmul convolution kron multi_dot multi_head_attention_forward sparse_mm vecdot csrmm csrmv ellmm
    ellmv event_csrmm event_csrmv event_ellmm event_ellmv event_linear jit_csrmm jit_csrmv recurrent_run
    sparse_recurrent_run
    """.split()
)


def product_operations(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Operations] | None:
    """Returns the operations of each product that a function computes, or None if they are not known."""
    try:
        return PRODUCTS[name](*args, **kwargs)
    except (KeyError, TypeError, ValueError):  # no rule for the function, or for this form of its arguments
        return None


def _check(*tensors: Tensor) -> None:
    for t in tensors:
        is_wrapped = type(t) not in (Tensor, nn.Parameter) or torch._C._functorch.is_functorch_wrapped_tensor(t)
        if is_wrapped or t.is_nested or t.layout != torch.strided or t.is_complex() or t.is_quantized:
            raise ValueError("not a dense tensor of real numbers")


def _paired(a: Tensor, a_labels: Labels, b: Tensor, b_labels: Labels) -> Operations:
    """Returns the operations of a product that multiplies all pairs of values whose common labels agree.

    Spikes: an addition for each spike of one tensor and each value of the other that it selects; if both are spikes,
    for each pair of spikes that coincide (Zhou et al., Spikformer, ICLR 2023). A parameter is a weight, not spikes.
    """
    _check(a, b)
    numbers = {label: i for i, label in enumerate(dict.fromkeys((*a_labels, *b_labels)))}
    axes = [[numbers[label] for label in labels] for labels in (a_labels, b_labels)]
    common = sorted({*axes[0]} & {*axes[1]})
    total, spiking, events, values = torch.ones((), dtype=torch.int64, device=a.device), [], [], []
    for t, labels in zip((a, b), axes):
        is_weight = isinstance(t, nn.Parameter)
        spiking.append(are_spikes(t) & (not is_weight))
        additions = torch.where(spiking[-1], spikes_of(t), 1).long()  # of each value, if the other tensor's are ones
        total = total * torch.einsum(additions, labels, common)
        events.append(additions.sum() * spiking[-1])
        values.append(0 * events[-1] if is_weight else t.numel() * ~spiking[-1])
    is_spiking, total = spiking[0] | spiking[1], total.sum()
    return {
        "accumulates": total * is_spiking, "multiply_accumulates": total * ~is_spiking,
        "events": sum(events), "values": sum(values),
    }  # fmt: skip


def _leading(t: Tensor, own: int) -> list[Hashable]:
    """Returns labels of the leading axes, which are paired from the last one on as in broadcasting."""
    return [f"batch {i}" for i in range(t.dim() - own, 0, -1)]


def _matmul(input: Tensor, other: Tensor, *, out: Any = None) -> list[Operations]:
    rows, columns = ["row"] * (input.dim() > 1), ["column"] * (other.dim() > 1)
    a = [*_leading(input, 2), *rows, "inner"] if rows else ["inner"]
    b = [*_leading(other, 2), "inner", *columns] if columns else ["inner"]
    return [_paired(input, a, other, b)]


def _linear(input: Tensor, weight: Tensor, *_: Any, **__: Any) -> list[Operations]:
    columns = ["column"] * (weight.dim() - 1)
    return [_paired(input, [*_leading(input, 1), "inner"], weight, [*columns, "inner"])]


def _einsum(equation: str, *operands: Any) -> list[Operations]:
    tensors = operands[0] if isinstance(operands[0], (list, tuple)) else operands
    if len(tensors) == 1:
        return []  # a sum
    a, b = tensors
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    return [_paired(a, _labels(terms[0], a), b, _labels(terms[1], b))]


def _labels(term: str, t: Tensor) -> list[Hashable]:
    before, dots, after = term.partition("...")
    return [*before, *(_leading(t, len(before + after)) if dots else ()), *after]


def _tensordot(a: Tensor, b: Tensor, dims: Any = 2, out: Any = None) -> list[Operations]:
    if isinstance(dims, int):
        dims = range(a.dim() - dims, a.dim()), range(dims)
    inner = {int(j) % b.dim(): int(i) % a.dim() for i, j in zip(*dims)}
    return [_paired(a, range(a.dim()), b, [inner.get(j, f"b{j}") for j in range(b.dim())])]


def _inner(input: Tensor, other: Tensor, *, out: Any = None) -> list[Operations]:
    return _tensordot(input, other, ([-1], [-1])) if input.dim() and other.dim() else []


def _attention(
    query: Tensor, key: Tensor, value: Tensor, *_: Any, enable_gqa: bool = False, **__: Any
) -> list[Operations]:
    """The two products, for all pairs of a query and a key, also those that a mask excludes."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    scores = query.new_full((), 0.5).expand(*batch, query.shape[-2], key.shape[-2])  # the softmax is no spikes
    return _matmul(query, key.mT) + _matmul(scores, value)


def _convolution(kind: type[nn.Module]) -> Callable[..., list[Operations]]:
    is_transposed = kind in TRANSPOSED
    last = ("output_padding", "groups", "dilation") if is_transposed else ("dilation", "groups")
    names = ("bias", "stride", "padding", *last)

    def rule(input: Tensor, weight: Tensor, *rest: Any, **named: Any) -> list[Operations]:
        _check(input, weight)
        options = {**dict(zip(names, rest)), **named, "bias": False}
        groups = options.get("groups", 1)
        channels = [weight.shape[0], weight.shape[1] * groups]
        layer = kind(*(channels if is_transposed else channels[::-1]), weight.shape[2:], **options, device="meta")
        return [layer_operations(layer, _OfConvolution(), input)]

    return rule


# The rules, by the names of functions and methods. The biases of addmm and others are not counted.
PRODUCTS: dict[str, Callable[..., list[Operations]]] = {
    "matmul": _matmul, **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), lambda a, b, **_: _matmul(a, b)),
    **dict.fromkeys(("addmm", "addmv", "addbmm", "baddbmm"), lambda _, a, b, **__: _matmul(a, b)),
    **dict.fromkeys(("outer", "ger"), lambda a, b, **_: [_paired(a, "a", b, "b")]),
    **dict.fromkeys(("linear", "delayed_linear"), _linear),
    "rmatmul": lambda a, b: _matmul(b, a),
    "einsum": _einsum, "tensordot": _tensordot, "inner": _inner, "scaled_dot_product_attention": _attention,
    **{kind.__name__.lower(): _convolution(kind) for kind in CONVOLUTIONS},
    **{f"conv_transpose{i + 1}d": _convolution(kind) for i, kind in enumerate(TRANSPOSED)},
}  # fmt: skip


# --- the number of synapses that an input value reaches: an int64 tensor that broadcasts against the input


def find_synapses(module: nn.Module) -> Synapses | None:
    """Returns the fan-out of this kind of layer, or None if it is not known."""
    if isinstance(module, (nn.Linear, DelayedLinear)):
        return lambda module, x: torch.tensor(module.out_features, device=x.device)
    if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)):
        return _OfConvolution()
    if isinstance(module, _DelayedConv):
        return _OfConvolution(CONVOLUTIONS[module.dims - 1](
            module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding, module.dilation,
            module.groups, device="meta",
        ))  # fmt: skip
    if isinstance(module, LoihiSparse):
        return lambda module, x: torch.bincount(module.col_indices, minlength=x.shape[-1])
    if isinstance(module, (LoihiDense, LoihiDelayDense, LavaDense, LavaDelayDense)):
        return lambda module, x: torch.tensor(module.weight.shape[0], device=x.device)
    return None


class _OfConvolution:
    """The fan-out of each pixel for a convolution, or for the `layer` of the same shape, cached for sizes of images."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        self.layer = layer
        self.known: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        module = self.layer or module
        size = x.shape[-len(module.kernel_size) :]
        key = (*size, x.device)
        if key not in self.known:
            fan_out = torch.tensor(module.out_channels // module.groups, device="cpu")
            for axis, n in enumerate(size):
                fan_out = fan_out.unsqueeze(-1) * _taps(module, axis, n)
            self.known[key] = fan_out.to(x.device)
        return self.known[key]


def _taps(module: nn.Module, axis: int, n: int) -> Tensor:
    """Returns how often a convolution reads each of n pixels along an axis, or adds it to an output if transposed."""
    kernel, stride, dilation = module.kernel_size[axis], module.stride[axis], module.dilation[axis]
    offsets = dilation * torch.arange(kernel, device="cpu")
    if module.transposed:
        padding = module.padding[axis]
        outputs = (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + module.output_padding[axis] + 1
        at = stride * torch.arange(n, device="cpu")[:, None] - padding + offsets
        return ((at >= 0) & (at < outputs)).sum(1)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    pixels = torch.arange(1.0, n + 1, dtype=torch.float64, device="cpu")[None]  # 0 is padding
    pixels = functional.pad(pixels, module._reversed_padding_repeated_twice[-2 * axis - 2 :][:2], mode)[0].long()
    windows = pixels.unfold(0, int(offsets[-1]) + 1, stride)[:, offsets]
    return windows.flatten().bincount(minlength=n + 1)[1:]
