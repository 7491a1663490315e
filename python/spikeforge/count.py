"""Counts spikes and synaptic operations of each layer while a network runs."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from spikeforge._hooks import Hooks, Watcher, check_call, networks_around, watched
from spikeforge.accelerate.replacing import Replaced
from spikeforge.nn.composite import Composite
from spikeforge.nn.containers import Container, TimeDistributed
from spikeforge.nn.delay import Delay
from spikeforge.nn.delayed_linear import DelayedLayer
from spikeforge.nn.encoders import Encoder
from spikeforge.nn.lava import LavaConnection, LavaDelayDense, LavaDense
from spikeforge.nn.layers import BatchNormNeuron
from spikeforge.nn.loihi import LoihiConnection, LoihiDelayDense, LoihiDense, LoihiSparse
from spikeforge.nn.stateful import StatefulModule, as_tuple

MOST = 15  # whole numbers up to this one are treated as sums of spikes
# Names of functions of torch and this library that compute products.
PRODUCTS = frozenset(
    """
    addbmm addmm addmv baddbmm bilinear bmm chain_matmul conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d convolution dot einsum inner linear matmul mm multi_dot multi_head_attention_forward mv
    rmatmul scaled_dot_product_attention sparse_mm tensordot vdot csrmm csrmv delayed_linear ellmm ellmv
    event_csrmm event_csrmv event_ellmm event_ellmv event_linear jit_csrmm jit_csrmv recurrent_run
    """.split()
)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class LayerCount:
    """The counts of one layer.

    Attributes:
        name: the name in ``named_modules`` of the network.
        kind: the name of the class.
        spikes: the number of nonzero output values; None for a layer that is not a neuron, and for a neuron whose
            outputs are not spikes (all 0, 1 or -1).
        outputs: the number of output values: steps times batch times neurons.
        accumulates: synaptic operations, one addition per input spike and reached synapse. None for a neuron.
        multiply_accumulates: synaptic operations for inputs that are not spikes: all values count, including zeros.
            Both are None if no call was counted.
    """

    name: str
    kind: str
    spikes: int | None = None
    outputs: int | None = None
    accumulates: int | None = None
    multiply_accumulates: int | None = None

    @property
    def rate(self) -> float | None:
        """Spikes per neuron and step."""
        return None if self.spikes is None else self.spikes / max(self.outputs or 0, 1)


def count(net: nn.Module, *, neurons: Sequence[type[nn.Module]] = ()) -> Count:
    """Counts the spikes and synaptic operations of each layer of a network.

    >>> with spikeforge.count(net) as counted:
    ...     net(x)  # any number of calls
    >>> print(counted.table())

    Spikes are counted for neurons and encoders of ``spikeforge.nn``, and for accelerated neurons; synaptic operations
    for Linear, Conv1d to Conv3d, ConvTranspose1d to 3d, and Loihi's connections. An input whose values are all 0, 1 or
    -1 counts as spikes: each one costs an addition for each synapse that it reaches (fewer at the border of a
    convolution). Any other input costs a multiplication and addition for each of its values and synapses, also for
    zeros, except for Loihi's connections, which send no zeros. Each call is classified separately. Biases,
    normalisation and pooling are not counted. A weight of zero counts as a synapse.

    :attr:`Count.not_counted` lists operations that are not counted: layers with weights of other kinds, such as
    ``DelayedLinear``; calls of a layer with whole numbers up to 15 that are not spikes, such as sums of spikes; and
    products that the forward of a custom module computes by functions, such as ``q @ k``.

    Counts are summed over the batch on the device, without synchronisation. Results of the network do not change.

    Args:
        net: any module.
        neurons: other classes of neurons, such as ``snntorch.Leaky``; the first of several outputs is the spikes.
    """
    return Count(net, neurons)


class Count:
    """Counts from its construction until :meth:`close` or the end of its ``with`` block; :func:`count` makes it."""

    def __init__(self, net: nn.Module, neurons: Sequence[type[nn.Module]] = ()):
        net = watched("count", net)
        self._hooks = Hooks(self)
        self._counters: list[Counter] = []
        self._unknown: list[Unknown] = []
        self._products = Products()
        sees_products = any(map(_may_compute_products, net.modules()))
        for name, module in net.named_modules():
            counts = self._watch(name, module, networks_around(net, name), tuple(neurons))
            if sees_products and (counts or _may_compute_products(module)):
                self._hooks.attach(
                    module, Within(self._products, None if counts else f"{name or '(net)'} ({type(module).__name__})")
                )

    def _watch(self, name: str, module: nn.Module, networks: list[Composite], neurons: tuple[type, ...]) -> bool:
        """Returns True if the operations of the module are counted, or listed as not counted."""
        watcher: Watcher | None = None
        if isinstance(module, neurons) or _is_neuron(module):
            watcher = Spikes(networks, name, module)
        elif find_synapses(module):
            watcher = Operations(networks, name, module, find_synapses(module))
        elif isinstance(module, LoihiConnection) or any(p.dim() > 1 for p in module.parameters(recurse=False)):
            watcher = Unknown(networks, name, module)
        if isinstance(watcher, Unknown):
            self._unknown.append(watcher)
        elif isinstance(watcher, Counter):
            self._counters.append(watcher)
        if watcher is not None:
            self._hooks.attach(module, watcher)
        return isinstance(watcher, (Operations, Unknown))

    @property
    def layers(self) -> list[LayerCount]:
        """Counts of the layers that were called, in the order of ``net.named_modules()``."""
        return [counter.counted() for counter in self._counters if counter.calls]

    @property
    def not_counted(self) -> list[str]:
        """Operations that are not counted, with the reason: see :func:`count`."""
        layers = [f"{layer.title} ({layer.kind})" for layer in self._unknown if layer.calls]
        unclassified = [
            (counter, counter.unclassified()) for counter in self._counters if isinstance(counter, Operations)
        ]
        sums = [
            f"{counter.title} ({counter.kind}): {calls} of {counter.calls} calls, with whole numbers that are not "
            "spikes"
            for counter, calls in unclassified
            if calls
        ]
        return layers + sums + [f"{title}: {', '.join(names)}" for title, names in self._products.found.items()]

    @property
    def spikes(self) -> int:
        """Spikes of all layers."""
        return sum(layer.spikes or 0 for layer in self.layers)

    @property
    def accumulates(self) -> int:
        """Additions of all layers."""
        return sum(layer.accumulates or 0 for layer in self.layers)

    @property
    def multiply_accumulates(self) -> int:
        """Multiplications with addition of all layers."""
        return sum(layer.multiply_accumulates or 0 for layer in self.layers)

    def __getitem__(self, name: str) -> LayerCount:
        """Returns the counts of the layer with this name.

        Raises:
            ValueError: if no layer of this name was called.
        """
        layers = {layer.name: layer for layer in self.layers}
        if name not in layers:
            raise ValueError(f"count: layer '{name}' was not counted; counted are {', '.join(layers) or 'none'}")
        return layers[name]

    def __iter__(self) -> Iterator[LayerCount]:
        return iter(self.layers)

    def table(self) -> str:
        """Formats a table with one line per layer: spikes, rate, and operations."""
        layers = self.layers
        rows = [("layer", "kind", "spikes", "rate", "accumulates", "multiply-accumulates")]
        rows += [_row(layer) for layer in layers]
        rows.append(("all", "", f"{self.spikes:,}", "", f"{self.accumulates:,}", f"{self.multiply_accumulates:,}"))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
        lines += [f"not counted: {what}" for what in self.not_counted]
        return "\n".join(lines)

    __str__ = table

    def reset(self) -> None:
        """Sets all counts to 0."""
        for watcher in (*self._counters, *self._unknown):
            watcher.reset()
        self._products.found.clear()

    def close(self) -> None:
        """Stops counting; the counts are kept."""
        self._hooks.remove()
        self._products.close()

    def __enter__(self) -> Count:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _row(layer: LayerCount) -> tuple[str, ...]:
    numbers = (layer.spikes, layer.rate, layer.accumulates, layer.multiply_accumulates)
    return layer.name or "(net)", layer.kind, *map(_number, numbers)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2%}" if isinstance(value, float) else f"{value:,}"


def _aligned(row: Iterable[str], widths: Sequence[int]) -> Iterator[str]:
    for i, (word, width) in enumerate(zip(row, widths)):
        yield word.ljust(width) if i < 2 else word.rjust(width)


# --- observed modules


def _is_neuron(module: nn.Module) -> bool:
    others = (Container, TimeDistributed, Delay, DelayedLayer, LoihiConnection, LavaConnection)
    return isinstance(module, (Encoder, Replaced, BatchNormNeuron)) or (
        isinstance(module, StatefulModule) and bool(module.state_names) and not isinstance(module, others)
    )


def _may_compute_products(module: nn.Module) -> bool:
    """Returns True if the module's forward is defined neither by torch nor by this library."""
    return isinstance(module, fx.GraphModule) or not type(module).__module__.startswith(("torch.", "spikeforge."))


class Products(TorchFunctionMode):
    """Records the matrix products that forward methods compute by functions rather than by modules."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[str, None]] = {}  # sets in order
        self.local = threading.local()

    def enter(self, title: str | None) -> None:
        around = self.local.__dict__.setdefault("around", [])
        if not around:
            self.__enter__()
        around.append(title)

    def leave(self) -> None:
        around = self.local.__dict__.get("around")
        if around:  # empty if an earlier hook raised
            around.pop()
            if not around:
                self.__exit__(None, None, None)

    def close(self) -> None:
        """Leaves the mode after a KeyboardInterrupt, after which torch runs no hook."""
        if self.local.__dict__.pop("around", None):
            self.__exit__(None, None, None)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        title = self.local.around[-1]
        if title is not None:
            name = getattr(func, "__name__", "").partition(".")[0].strip("_").removeprefix("linalg_")
            if name in PRODUCTS:
                self.found.setdefault(title, {}).setdefault(name)
        return func(*args, **(kwargs or {}))


class Within(Watcher):
    """Marks the module whose forward is running, or None if its products are counted elsewhere."""

    sees_errors = True

    def __init__(self, products: Products, title: str | None):
        super().__init__([])
        self.products, self.title = products, title

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.products.enter(self.title)

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.products.leave()


def are_sums(x: Tensor) -> Tensor:
    """Returns True if all values are whole numbers from -15 to 15, as sums of spikes are."""
    return ((x == x.round()) & (x.abs() <= MOST)).all()


def are_spikes(x: Tensor) -> Tensor:
    """Returns True if all values are 0, 1 or -1, as a tensor on their device."""
    return ((x == 0) | (x == 1) | (x == -1)).all()


class Counter(Watcher):
    """Sums counts of one module on its device."""

    def __init__(self, networks: list[Composite], name: str, module: nn.Module):
        super().__init__(networks)
        self.name, self.kind, self.title = name, type(module).__name__, name or "(net)"
        self.reset()

    def reset(self) -> None:
        self.calls = 0
        self.sums: dict[str, Tensor] = {}

    def add(self, name: str, number: Tensor) -> None:
        self.sums[name] = self.sums[name] + number if name in self.sums else number

    def sum(self, name: str) -> int:
        return int(self.sums[name])

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self.is_repeated():
            return
        with torch.no_grad():
            self.see(module, args, kwargs, result)
        self.calls += 1

    def see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        raise NotImplementedError

    def counted(self) -> LayerCount:
        raise NotImplementedError


class Unknown(Counter):
    """Counts the calls of a layer with weights whose operations are not known."""

    def see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        pass


class Spikes(Counter):
    """Counts the spikes of a neuron."""

    def reset(self) -> None:
        super().reset()
        self.outputs = 0

    def see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        outputs, _ = self.parts(result)
        values = as_tuple(outputs) if isinstance(module, StatefulModule) else as_tuple(outputs)[:1]
        for y in values:
            check_call("count", module, y)
            self.outputs += y.numel()
            self.add("spikes", (y != 0).sum())
            self.add("others", ~are_spikes(y))

    def counted(self) -> LayerCount:
        fires = self.sum("others") == 0
        return LayerCount(self.name, self.kind, self.sum("spikes") if fires else None, self.outputs)


class Operations(Counter):
    """Counts the operations of a layer of synapses."""

    def __init__(self, networks: list[Composite], name: str, module: nn.Module, synapses: Synapses):
        super().__init__(networks, name, module)
        self.synapses = synapses

    def see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        x = args[0] if args else kwargs.get("input", kwargs.get("x"))
        check_call("count", module, x)
        fan_out, spiking = self.synapses(module, x), are_spikes(x)
        sends = isinstance(module, (LoihiConnection, LavaConnection))
        unclassified = torch.zeros_like(spiking) if sends else ~spiking & are_sums(x)
        leading = x.shape[: x.dim() - fan_out.dim()]
        active = (x != 0).sum(tuple(range(len(leading))), dtype=torch.int64) if leading else x != 0
        events = (active * fan_out).sum()
        others = events if sends else fan_out.sum() * math.prod(leading)
        self.add("accumulates", events * spiking)
        self.add("multiply_accumulates", others * ~(spiking | unclassified))
        self.add("unclassified", unclassified.long())

    def unclassified(self) -> int:
        """Returns the number of calls whose operations are not counted."""
        return self.sum("unclassified") if self.calls else 0

    def counted(self) -> LayerCount:
        if self.unclassified() == self.calls:
            return LayerCount(self.name, self.kind)
        numbers = {name: self.sum(name) for name in ("accumulates", "multiply_accumulates")}
        return LayerCount(self.name, self.kind, **numbers)


# --- the number of synapses that an input value reaches: an int64 tensor that broadcasts against the input

Synapses = Callable[[nn.Module, Tensor], Tensor]


def find_synapses(module: nn.Module) -> Synapses | None:
    """Returns the fan-out of this kind of layer, or None if it is not known."""
    if isinstance(module, nn.Linear):
        return _of_linear
    if isinstance(module, CONVOLUTIONS):
        return _OfConvolution()
    if isinstance(module, LoihiSparse):
        return _of_sparse
    return _of_dense if isinstance(module, (LoihiDense, LoihiDelayDense, LavaDense, LavaDelayDense)) else None


def _of_linear(module: nn.Module, x: Tensor) -> Tensor:
    return torch.tensor(module.out_features, device=x.device)


def _of_dense(module: nn.Module, x: Tensor) -> Tensor:
    return torch.tensor(module.weight.shape[0], device=x.device)


def _of_sparse(module: nn.Module, x: Tensor) -> Tensor:
    return torch.bincount(module.col_indices, minlength=x.shape[-1])


class _OfConvolution:
    """The fan-out of a convolution, cached for each size of images."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        size = tuple(x.shape[-len(module.kernel_size) :])
        key = (*size, x.device)
        if key not in self.known:
            self.known[key] = _fan_out_map(module, size).to(x.device)
        return self.known[key]


def _fan_out_map(module: nn.Module, size: tuple[int, ...]) -> Tensor:
    """Returns the number of synapses of each pixel, ``[*size]``, the same in each channel."""
    taps = _taps_of_transposed if module.transposed else _taps
    fan_out = torch.tensor(module.out_channels // module.groups)
    for axis, n in enumerate(size):
        fan_out = fan_out.unsqueeze(-1) * torch.tensor(taps(module, axis, n))
    return fan_out


def _taps(module: nn.Module, axis: int, n: int) -> list[int]:
    """Returns how often a convolution reads each of n pixels along an axis."""
    kernel, stride, dilation = module.kernel_size[axis], module.stride[axis], module.dilation[axis]
    before, after = module._reversed_padding_repeated_twice[-2 * axis - 2 :][:2]
    outputs = (n + before + after - dilation * (kernel - 1) - 1) // stride + 1
    read = [0] * n
    for output in range(outputs):
        for tap in range(kernel):
            i = output * stride + tap * dilation - before
            if module.padding_mode == "circular":
                i %= n
            elif module.padding_mode == "reflect":
                i = n - 1 - abs(n - 1 - abs(i))
            elif module.padding_mode == "replicate":
                i = min(max(i, 0), n - 1)
            if 0 <= i < n:
                read[i] += 1
    return read


def _taps_of_transposed(module: nn.Module, axis: int, n: int) -> list[int]:
    """Returns the number of outputs along an axis to which a transposed convolution adds each of n pixels."""
    kernel, stride, dilation = module.kernel_size[axis], module.stride[axis], module.dilation[axis]
    outputs = (n - 1) * stride - 2 * module.padding[axis] + dilation * (kernel - 1) + module.output_padding[axis] + 1
    first = [i * stride - module.padding[axis] for i in range(n)]
    return [sum(0 <= at + tap * dilation < outputs for tap in range(kernel)) for at in first]
