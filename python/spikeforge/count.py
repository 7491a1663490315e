"""Counts spikes and synaptic operations of each layer while a network runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from spikeforge._energy_model import Energy, aligned, estimate
from spikeforge._hooks import Hooks, Watcher, check_call, networks_around, watched
from spikeforge._operations import (
    OPERATIONS,
    OTHERS,
    PRODUCTS,
    Operations,
    Synapses,
    are_spikes,
    find_synapses,
    layer_operations,
    product_operations,
    spikes_of,
)
from spikeforge.accelerate.replacing import Replaced, ReplacedLayer
from spikeforge.nn.attention import Attention
from spikeforge.nn.composite import Composite
from spikeforge.nn.containers import Container, TimeDistributed
from spikeforge.nn.delay import Delay
from spikeforge.nn.delayed_linear import DelayedLayer
from spikeforge.nn.encoders import Encoder
from spikeforge.nn.lava import LavaConnection
from spikeforge.nn.layers import BatchNormNeuron
from spikeforge.nn.loihi import LoihiConnection
from spikeforge.nn.population import Population
from spikeforge.nn.stateful import StatefulModule, as_tuple


@dataclass(frozen=True)
class LayerCount:
    """The counts of one layer. Numbers that the layer does not have are None.

    Attributes:
        name: the name in ``named_modules`` of the network.
        kind: the name of the class; for products that a module computes by functions, the names of the functions.
        role: "neuron"; "read-out", a neuron whose outputs are not spikes; "synapses"; "product"; or "encoder", a module
            of :class:`~spikeforge.nn.Encoder`, or synapses that read values before the first spikes of the network.
        spikes: the number of spikes that a neuron emitted; an output of k counts as ``|k|`` spikes.
        outputs: the number of output values: steps times batch times neurons.
        accumulates: synaptic operations, one addition per input spike and reached synapse.
        multiply_accumulates: synaptic operations for inputs that are not spikes: all values count, including zeros.
        events, values: the number of spikes, and of values of other inputs, that synapses or products read.
        states: the number of state values that a neuron updated: steps times batch times values of its states.
    """

    name: str
    kind: str
    role: str
    spikes: int | None = None
    outputs: int | None = None
    accumulates: int | None = None
    multiply_accumulates: int | None = None
    events: int | None = None
    values: int | None = None
    states: int | None = None

    @property
    def rate(self) -> float | None:
        """Spikes per neuron and step."""
        return None if self.spikes is None else self.spikes / max(self.outputs or 0, 1)


def count(net: nn.Module, *, neurons: Sequence[type[nn.Module]] = ()) -> Count:
    """Counts the spikes and synaptic operations of each layer of a network.

    >>> with spikeforge.count(net) as counted:
    ...     net(x)  # any number of calls
    >>> print(counted.table())

    Counted are the spikes of neurons and encoders of ``spikeforge.nn`` and of accelerated neurons, and the synaptic
    operations of

    - ``nn.Linear``, ``Conv1d`` to ``Conv3d``, ``ConvTranspose1d`` to ``3d``, ``DelayedLinear``, ``DelayedConv1d`` and
      ``2d``, the module of a ``Recurrent``, and Loihi's connections;
    - products that the forward of a custom module computes by functions: ``a @ b``, ``matmul``, ``bmm``, ``einsum`` of
      two tensors, ``scaled_dot_product_attention``, ``linear``, ``conv2d`` and others, under the name of the module.

    Each call is classified separately. An input whose values are all whole numbers from -15 to 15 counts as spikes:
    each value k costs ``|k|`` additions for each synapse that it reaches (fewer at the border of a convolution), as k
    spikes one after the other would (Luo et al., ECCV 2024). Any other input costs a multiplication and addition for
    each of its values and synapses, also for zeros. In a product of two tensors of spikes, each pair of spikes that
    coincide costs an addition. Loihi's connections send no zeros, and multiply by messages other than 1 and -1.

    Not counted are biases, normalisation, pooling, products of elements, and the neurons themselves. A weight of zero
    counts as a synapse. :attr:`Count.not_counted` lists what else was not counted: layers with weights of other kinds,
    such as ``nn.LSTM``, and products by functions that have no rule.

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
        if not isinstance(neurons, (list, tuple)) or not all(isinstance(kind, type) for kind in neurons):
            raise TypeError(f"count: neurons must be a list of classes of modules, but is {neurons!r:.60}")
        self._hooks = Hooks(self)
        self._counters: list[Counter] = []
        self._called: dict[Counter, None] = {}  # in the order of their first calls
        self._products = Products()
        sees_products = any(map(_may_compute_products, net.modules()))
        for name, module in net.named_modules():
            networks = networks_around(net, name)
            counter = _counter(networks, name, module, tuple(neurons))
            if counter is not None:
                self._watch(module, counter, counter)
            if not sees_products:
                continue
            if counter and not isinstance(counter, OfNeuron):  # it counts what its functions compute
                self._hooks.attach(module, Within(networks, self._products, None))
            elif _may_compute_products(module):
                by_functions = OfProducts(networks, name, module)
                self._watch(module, by_functions, Within(networks, self._products, by_functions))

    def _watch(self, module: nn.Module, counter: Counter, watcher: Watcher) -> None:
        counter.called = self._called
        self._counters.append(counter)
        self._hooks.attach(module, watcher)

    @property
    def layers(self) -> list[LayerCount]:
        """Counts of the layers that were called, in the order of ``net.named_modules()``."""
        rows = {counter: counter.counted() for counter in self._called}
        fires = [layer is not None and layer.role == "neuron" for layer in rows.values()]
        for counter in list(rows)[: fires.index(True) if any(fires) else 0]:  # called before the first neuron
            layer = rows[counter]
            if layer and layer.role == "synapses" and layer.multiply_accumulates:
                rows[counter] = replace(layer, role="encoder")
        return [layer for layer in map(rows.get, self._counters) if layer]

    @property
    def not_counted(self) -> list[str]:
        """Operations that are not counted, with the reason: see :func:`count`."""
        return [what for counter in self._counters if counter in self._called and (what := counter.missing())]

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
        layers = {layer.name: layer for layer in reversed(self.layers)}  # a module's own counts before its products'
        if name not in layers:
            counted = ", ".join(reversed(layers)) or "none"
            raise ValueError(f"count: layer '{name}' was not counted; counted are {counted}")
        return layers[name]

    def __iter__(self) -> Iterator[LayerCount]:
        return iter(self.layers)

    def table(self) -> str:
        """Formats a table with one line per layer: spikes, rate, and operations."""
        rows = [("layer", "kind", "role", "spikes", "rate", "accumulates", "multiply-accumulates")]
        for layer in self.layers:
            numbers = (layer.spikes, layer.rate, layer.accumulates, layer.multiply_accumulates)
            rows.append((layer.name or "(net)", layer.kind, layer.role, *map(_number, numbers)))
        rows.append(("all", "", "", f"{self.spikes:,}", "", f"{self.accumulates:,}", f"{self.multiply_accumulates:,}"))
        return "\n".join([aligned(rows, left=3), *(f"not counted: {what}" for what in self.not_counted)])

    __str__ = table

    def to_dict(self) -> dict[str, Any]:
        """Returns the counts as dicts and lists of numbers and strings: "layers", with the attributes of
        :class:`LayerCount` and its rate, the three sums, and "not_counted"."""
        sums = {name: getattr(self, name) for name in ("spikes", "accumulates", "multiply_accumulates")}
        layers = [{**asdict(layer), "rate": layer.rate} for layer in self.layers]
        return {"layers": layers, **sums, "not_counted": self.not_counted}

    def to_json(self, indent: int | None = None) -> str:
        """Returns :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def energy(
        self, numbers: str = "float32", memory: str = "1MB", *, add: float | None = None, multiply: float | None = None,
        access: float | None = None, reuse: float = 1.0,
    ) -> Energy:  # fmt: skip
        """Estimates the energy of the counted calls on a digital chip, in joules: arithmetic and memory separately.

        Arithmetic of a layer, from the energies ``add`` and ``multiply`` of an operation:

        - synapses and products: ``accumulates * add + multiply_accumulates * (add + multiply)``
        - neurons: ``states * (add + multiply)``, a decay and an addition for each state and step

        Memory of a layer, from the energy ``access`` of reading or writing a byte, for numbers of w bytes:

        - weights: ``w * (accumulates + multiply_accumulates / reuse) * access``
        - inputs of layers: ``2 * (4 * events + w * values) * access``, written once by the layer before and read once;
          a spike is an event with an address of 4 bytes
        - states of neurons: ``2 * w * states * access``, read and written at each step

        The energies are those of Horowitz, "Computing's energy problem", ISSCC 2014, for 45 nm and 0.9 V. Not included
        are sums of a layer's inputs (they stay in registers until the neuron reads them), biases, normalisation,
        pooling, elementwise functions such as ReLU, the values in delays, control, transport of events between cores,
        leakage, and everything in :attr:`not_counted`.

        Args:
            numbers: "float32" (0.9 pJ for an addition, 3.7 pJ for a multiplication), "float16" (0.4, 1.1) or "int8"
                (0.03, 0.2).
            memory: the memory of weights, states and inputs: SRAM of "8KB" (10 pJ for 8 bytes), "32KB" (20) or "1MB"
                (100), or "DRAM" (1300, the lower end of the paper's range).
            add, multiply: other energies, in joules for an operation.
            access: another energy, in joules for a byte.
            reuse: the number of multiplications for each read of a weight, at least 1. Accelerators for dense layers
                use a weight for many pixels or samples; for spikes each event reads its weights.

        Raises:
            ValueError: for other names, or numbers that are not finite and at least 0.
        """
        return estimate(self.layers, numbers, memory, add, multiply, access, reuse)

    def reset(self) -> None:
        """Sets all counts to 0."""
        for counter in self._counters:
            counter.reset()
        self._called.clear()

    def close(self) -> None:
        """Stops counting; the counts are kept."""
        self._hooks.remove()
        self._products.close()

    def __enter__(self) -> Count:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2%}" if isinstance(value, float) else f"{value:,}"


# --- observed modules


def _is_neuron(module: nn.Module) -> bool:
    others = (Container, TimeDistributed, Delay, DelayedLayer, LoihiConnection, LavaConnection)
    if isinstance(module, (Encoder, Replaced, BatchNormNeuron)):
        return not isinstance(module, ReplacedLayer)
    return isinstance(module, StatefulModule) and bool(module.state_names) and not isinstance(module, others)


def _may_compute_products(module: nn.Module) -> bool:
    """Returns True if the module's forward is defined neither by torch nor by this library, or is that of attention."""
    is_known = type(module).__module__.startswith(("torch.", "spikeforge."))
    return not is_known or isinstance(module, (fx.GraphModule, Attention))


def _counter(networks: list[Composite], name: str, module: nn.Module, neurons: tuple[type, ...]) -> Counter | None:
    if isinstance(module, neurons) or _is_neuron(module):
        return OfNeuron(networks, name, module)
    synapses = find_synapses(module)
    if synapses is not None:
        return OfSynapses(networks, name, module, synapses)
    return Counter(networks, name, module) if _has_weights(module) and not _may_compute_products(module) else None


def _has_weights(module: nn.Module) -> bool:
    has_matrices = any(p.dim() > 1 for p in module.parameters(recurse=False))
    return has_matrices or isinstance(module, (LoihiConnection, Population))


class Counter(Watcher):
    """Sums counts of one module on its device. The base class sees calls of layers whose operations are unknown."""

    called: dict[Counter, None]  # the counters whose modules were called

    def __init__(self, networks: list[Composite], name: str, module: nn.Module):
        super().__init__(networks)
        self.name, self.kind = name, type(module).__name__
        self.title = f"{name or '(net)'} ({self.kind})"
        self.reset()

    def reset(self) -> None:
        self.sums: dict[str, Tensor | int] = {}

    def add(self, numbers: Mapping[str, Tensor | int]) -> None:
        for name, number in numbers.items():
            self.sums[name] = self.sums.get(name, 0) + number

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self.is_repeated():
            return
        with torch.no_grad():
            self.see(module, args, kwargs, result)
        self.called[self] = None

    def see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Adds the counts of a call."""

    def counted(self) -> LayerCount | None:
        return None

    def missing(self) -> str:
        """Returns what was not counted, or an empty string."""
        return "" if self.counted() else self.title

    def row(self, role: str, *names: str) -> LayerCount:
        return LayerCount(self.name, self.kind, role, **{name: int(self.sums.get(name, 0)) for name in names})


class OfNeuron(Counter):
    """Counts the spikes of a neuron or encoder."""

    def __init__(self, networks: list[Composite], name: str, module: nn.Module):
        super().__init__(networks, name, module)
        self.role = "encoder" if isinstance(module, Encoder) else "neuron"
        neuron = module.neuron if isinstance(module, BatchNormNeuron) else module
        self.states = len(neuron.state_names) if isinstance(neuron, StatefulModule) else 1

    def see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        outputs, _ = self.parts(result)
        values = as_tuple(outputs) if isinstance(module, StatefulModule) else as_tuple(outputs)[:1]
        mode, r = _residual(module, args, kwargs) or ("", None)
        if mode:  # spikes, and not their sum with r; after the other joins, spikes cannot be separated from r
            values = (values[0] - r if mode == "add" else values[0],)
        self.add({"states": values[0].numel() * self.states})
        for y in values:
            check_call("count", module, y)
            self.add({"outputs": y.numel(), "spikes": spikes_of(y).sum(), "others": ~are_spikes(y)})

    def counted(self) -> LayerCount:
        if self.sums["others"] == 0:
            return self.row(self.role, "spikes", "outputs", "states")
        return self.row("read-out" if self.role == "neuron" else self.role, "outputs", "states")


def _residual(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the mode and the tensor r with which a neuron joins its spikes, or None."""
    if isinstance(module, BatchNormNeuron):
        return None if module.residual is None else (module.residual, args[1])
    return kwargs.get("residual") if isinstance(module, Replaced) else None


class OfSynapses(Counter):
    """Counts the operations of a layer of synapses."""

    def __init__(self, networks: list[Composite], name: str, module: nn.Module, synapses: Synapses):
        super().__init__(networks, name, module)
        self.synapses = synapses

    def see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        x = args[0] if args else kwargs.get("input", kwargs.get("x"))
        check_call("count", module, x)
        self.add(layer_operations(module, self.synapses, x))

    def counted(self) -> LayerCount:
        return self.row("synapses", *OPERATIONS)


class OfProducts(Counter):
    """Counts the products that the forward of a custom module computes by functions."""

    def __init__(self, networks: list[Composite], name: str, module: nn.Module):
        super().__init__(networks, name, module)
        self.has_weights = _has_weights(module)

    def reset(self) -> None:
        super().reset()
        self.found: dict[str, None] = {}  # names of functions, sets in order
        self.unknown: dict[str, None] = {}

    def record(self, name: str, operations: list[Operations] | None) -> None:
        (self.unknown if operations is None else self.found).update({name: None} if operations != [] else {})
        for each in operations or ():
            self.add(each)

    def counted(self) -> LayerCount | None:
        return replace(self.row("product", *OPERATIONS), kind=", ".join(self.found)) if self.found else None

    def missing(self) -> str:
        if self.unknown:
            return f"{self.title}: {', '.join(self.unknown)}"
        return self.title if self.has_weights and not self.found else ""


class Products(TorchFunctionMode):
    """Passes the products of functions to the counter of the module whose forward calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.local = threading.local()

    def enter(self, counter: OfProducts | None) -> None:
        around = self.local.__dict__.setdefault("around", [])
        if not around:
            self.__enter__()
        around.append(counter)

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
        result = func(*args, **(kwargs or {}))
        counter = self.local.around[-1]
        name = getattr(func, "__name__", "").partition(".")[0].strip("_").removeprefix("linalg_")
        if counter is not None and (name in PRODUCTS or name in OTHERS):
            with torch.no_grad():
                counter.record(name, product_operations(name, args, kwargs or {}))
        return result


class Within(Watcher):
    """Marks the module whose forward is running, with the counter of its products, or None if they are not counted."""

    sees_errors = True

    def __init__(self, networks: list[Composite], products: Products, counter: OfProducts | None):
        super().__init__(networks)
        self.products, self.counter = products, counter

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        counter = None if self.is_repeated() else self.counter
        self.products.enter(counter)
        if counter is not None:
            counter.called[counter] = None

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.products.leave()
