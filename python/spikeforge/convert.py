"""Converts trained networks of ReLU to networks of integrate-and-fire neurons."""

from __future__ import annotations

import copy
import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import batchnorm, conv, dropout, padding, pooling
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from spikeforge import nn as snn
from spikeforge._numbers import state_type, whole
from spikeforge.accelerate.report import Entry, Report
from spikeforge.nn.stateful import _unwrapped, has_hooks


class QCFS(nn.Module):
    """The quantization clip-floor-shift activation: ``threshold / L * clip(floor(x L / threshold + 1 / 2), 0, L)``.

    L is `levels`, and the threshold is learned; the derivative of floor is 1. In L steps of constant input, a neuron of
    the same threshold has this mean output (Bu et al., "Optimal ANN-SNN conversion for high-accuracy and
    ultra-low-latency spiking neural networks", ICLR 2022). :func:`qcfs` puts it into a network.
    """

    def __init__(self, threshold: Tensor, levels: int):
        super().__init__()
        self.threshold, self.levels = nn.Parameter(threshold.detach().clone()), levels

    def forward(self, x: Tensor) -> Tensor:
        level = (x / self.threshold).clamp(0, 1) * self.levels
        level = level + ((level + 0.5).floor() - level).detach()
        return level * (self.threshold / self.levels)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold.item():.4g}, levels={self.levels}"


class Spikes(nn.Module):
    """The integrate-and-fire neuron of a ReLU, with soft reset, which starts at half its threshold."""

    def __init__(self, threshold: Tensor):
        super().__init__()
        self.neuron = snn.IF(v_threshold=threshold.clone(), v_reset=None)

    def forward(self, x: Tensor, steps: int, distinct: int) -> Tensor:
        """Returns the spikes ``[steps * B, ...]`` of x ``[distinct * B, ...]``; distinct is 1 if x is constant."""
        x = _by_step(x, distinct).expand(steps, *[-1] * x.dim())
        half = (self.neuron.v_threshold / 2).to(state_type(x.dtype)).expand(x.shape[1:])
        return self.neuron(x, {"v": half})[0].flatten(0, 1)


def _by_step(x: Tensor, steps: int) -> Tensor:
    return x.unflatten(0, (steps, x.shape[0] // steps))


def _repeated(x: Tensor, steps: int, distinct: int) -> Tensor:
    return torch.cat([x] * (steps // distinct))


def _summed(x: Tensor, steps: int) -> Tensor:
    """Returns the sums up to each step."""
    return _by_step(x, steps).cumsum(0).flatten(0, 1)


def _increments(x: Tensor, steps: int) -> Tensor:
    """Returns the values of which `_summed` returns the sums."""
    x = _by_step(x, steps)
    return torch.cat([x[:1], x.diff(dim=0)]).flatten(0, 1)


# Classes of modules, and names of functions and methods.
Kinds = frozenset[type | str]


def _pools(kind: str) -> set[str]:
    return {f"{adaptive}{kind}_pool{n}d" for adaptive in ("", "adaptive_") for n in (1, 2, 3)}


RELUS: Kinds = frozenset({nn.ReLU, nn.ReLU6, QCFS, "relu", "relu_", "relu6"})
PRODUCTS: Kinds = frozenset({nn.Linear, conv._ConvNd})
NORMS: Kinds = frozenset({batchnorm._BatchNorm})
MAX_POOLS: Kinds = frozenset({pooling._MaxPoolNd, pooling._AdaptiveMaxPoolNd, *_pools("max")})
SIZES: Kinds = frozenset({"size", "getattr"})
# A positive factor of their input is a factor of their result.
SCALING = MAX_POOLS | {
    pooling._AvgPoolNd, pooling._AdaptiveAvgPoolNd, dropout._DropoutNd, nn.Flatten, nn.Unflatten, nn.Identity,
    *_pools("avg"), "_summed", "_increments", "contiguous", "dropout", "dropout1d", "dropout2d", "dropout3d", "flatten",
    "mean", "permute", "reshape", "squeeze", "sum", "transpose", "unflatten", "unsqueeze", "view",
}  # fmt: skip
# Their result for the mean of their inputs over steps is the mean of their results; max pooling: by `_summed`.
AFFINE = PRODUCTS | NORMS | SCALING | SIZES | {
    nn.Upsample, nn.PixelShuffle, padding._ConstantPadNd, padding._ReflectionPadNd, padding._ReplicationPadNd, "add",
    "add_", "cat", "chunk", "getitem", "iadd", "interpolate", "isub", "pad", "split", "stack", "sub", "sub_",
}  # fmt: skip
# The same, if only one of their inputs depends on x.
AFFINE_IN_ONE: Kinds = frozenset({"conv1d", "conv2d", "conv3d", "linear", "mul", "neg", "truediv"})


class Converted(nn.Module):
    """A network of integrate-and-fire neurons, which :func:`convert` returns.

    Attributes:
        network: the graph, which stays in evaluation mode. ``network.neurons`` has a neuron for each call of a ReLU.
        report: what was converted and what was left; print it.
    """

    def __init__(self, network: fx.GraphModule, report: Report):
        super().__init__()
        self.network, self.report = network, report

    def train(self, mode: bool = True) -> Converted:
        super().train(mode)
        self.network.eval()  # its normalisations keep their statistics
        return self

    def forward(self, x: Tensor, steps: int | None = None, *, every: bool = False) -> Tensor:
        """Runs all steps in one call of each layer.

        Args:
            x: with `steps`, a constant input ``[B, ...]``: layers before the first neurons are computed once. Without,
                an input for each step, ``[T, B, ...]``.
            steps: the number of steps T.
            every: also return the means over the first steps, so that one call shows the accuracy for all T.

        Returns:
            The mean of the network's output over the steps, ``[B, ...]``, or with `every` the means over the first 1 to
            T steps, ``[T, B, ...]``. It approaches the output of the original network as 1 / T.

        Raises:
            TypeError: if x is not such a tensor.
            ValueError: if the number of steps is not a whole number above 0.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 1 + (steps is None):
            what = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            form = "[T, B, ...] without steps, or [B, ...] with steps"
            raise TypeError(f"Converted: x must be a floating-point tensor {form}, but is {what}")
        given = x.shape[0] if steps is None else steps
        count = whole(given) or 0
        if count < 1:
            raise ValueError(f"Converted: steps must be a whole number above 0, but is {given!r}")
        y = self.network(x.flatten(0, 1), count, count) if steps is None else self.network(x, count, 1)
        y = _by_step(y, count)
        if not every:
            return y.mean(0)
        sums = y.cumsum(0, dtype=state_type(y.dtype))
        each = torch.arange(1, count + 1, device=y.device, dtype=sums.dtype)
        return (sums / each.view(-1, *[1] * (y.dim() - 1))).to(y.dtype)


class Conversion(Report):
    """The report of :func:`convert`."""

    def _summary(self) -> str:
        return f"{sum(entry.what.startswith('neuron') for entry in self)} ReLU run as integrate-and-fire neurons"


def convert(model: nn.Module, data: Tensor | Iterable[Any], method: str | float = 99.9) -> Converted:
    """Converts a trained network of ReLU to a spiking network, whose mean output approaches that of the network.

    An integrate-and-fire neuron with soft reset replaces each call of a ReLU. It starts at half its threshold, and its
    spikes are as large as the threshold: for a constant input, its mean output over T steps is that of the ReLU,
    clipped at the threshold, within threshold / (2 T) (Cao et al. 2015; Diehl et al. 2015; Rueckauer et al. 2017; Han
    et al. 2020; Bu et al. 2022). Batch normalisations are folded into the layers before them. The factor threshold is
    folded into the weights of the layers after the neurons, where it is exact: these layers receive spikes of 0 and 1.
    A max pooling passes the increments of the largest sum in its window, whose mean is the maximum of the means.

    Args:
        model: a network of one tensor ``[B, ...]`` that ``torch.fx`` can trace; other inputs have their defaults. It
            is not changed. Layers after the first ReLU must be affine (products, sums, batch normalisations, average
            pooling, changes of shape) or max pooling. Dropout has no effect.
        data: inputs for the thresholds: a tensor ``[N, ...]``, or an iterable of such tensors or of tuples that begin
            with one, such as a ``DataLoader``. All batches are held in memory.
        method: the threshold is this percentile of the activations of its ReLU, a number or a string such as "99.9%",
            which is robust to a few large activations (Rueckauer et al. 2017); or "max". The activations of
            :func:`qcfs` keep their learned thresholds.

    Returns:
        A :class:`Converted`: ``net(images, steps=16)`` is its output.

    Raises:
        TypeError: if an argument has another type, or torch.fx cannot trace the model.
        ValueError: if the model fails for `data`, has no ReLU, other layers after one, one without activations above 0
            on `data`, or an operation in place on a view of a value that is read later; the message names it.
    """
    graph = _Graph("convert", model, data, method)
    graph.fold_norms()
    graph.find_varying()
    graph.add_steps()
    for node, threshold in graph.thresholds.items():
        graph.put_neuron(node, threshold)
    return Converted(graph.finish(), Conversion(tuple(graph.entries))).train(model.training)


def qcfs(
    model: nn.Module, data: Tensor | Iterable[Any], method: str | float = 99.9, *, levels: int = 8
) -> fx.GraphModule:
    """Returns a copy of a network with :class:`QCFS` activations instead of ReLU, to fine-tune before :func:`convert`.

    Args:
        model, data, method: as in :func:`convert`: they define the initial thresholds. All layers are legal.
        levels: the number of levels above 0: about the number of steps in which the converted network will run.

    Returns:
        The network, in the mode of `model`. It has no dropout by functions, only by modules.

    Raises:
        TypeError, ValueError: as :func:`convert`.
    """
    if (whole(levels) or 0) < 1:
        raise ValueError(f"qcfs: levels must be a whole number above 0, but is {levels!r}")
    graph = _Graph("qcfs", model, data, method)
    for node, threshold in graph.thresholds.items():
        graph.put(node, QCFS(threshold, levels), (_source(node),))
    return graph.finish().train(model.training)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, name: str) -> bool:
        return isinstance(m, (QCFS, snn.StatefulModule)) or super().is_leaf_module(m, name)

    def create_args_for_root(self, root_fn: Any, *_: Any, **__: Any) -> tuple[Any, list[Any]]:
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]  # other inputs have their defaults


class _Graph:
    """A copy of a network in evaluation mode as a graph, with the thresholds of its ReLU on data."""

    def __init__(self, caller: str, model: nn.Module, data: Tensor | Iterable[Any], method: str | float):
        self.caller = caller
        if not isinstance(model, nn.Module):
            raise TypeError(f"{caller}: model must be a torch.nn.Module, but is {type(model).__name__}")
        try:
            model = copy.deepcopy(_unwrapped(model)).eval()
            graph = _Tracer().trace(model)
            graph._tracer_cls = None  # unpickling traces the code of the graph, which has other inputs
            self.network = fx.GraphModule(model, graph, type(model).__name__)
        except Exception as error:
            reason = str(error).split("\n")[0]
            raise TypeError(f"{caller}: torch.fx cannot trace a copy of {type(model).__name__}: {reason}") from error
        self.graph = self.network.graph
        self.modules = dict(self.network.named_modules())
        self.uses = Counter(  # calls of modules, and of their parameters by functions
            node.target.rpartition(".")[0] if node.op == "get_attr" else node.target for node in self.graph.nodes
        )
        self.entries: list[Entry] = []
        self.x = next(iter(self.graph.nodes))
        self.inplace = list(filter(self.is_inplace, self.graph.nodes))
        for node in self.inplace:
            _source(node).replace_all_uses_with(node, delete_user_cb=lambda user, node=node: user > node)
        self.fixed: set[fx.Node] = set()  # values that do not depend on x
        for node in self.graph.nodes:
            if node is not self.x and self.fixed.issuperset(node.all_input_nodes):
                self.fixed.add(node)
        self.thresholds = self.calibrate(*self.checked(data, method))

    def module(self, node: fx.Node) -> nn.Module | None:
        return self.modules.get(node.target) if node.op == "call_module" else None

    def calls(self, node: fx.Node, kinds: Kinds) -> bool:
        return _function(node) in kinds or not kinds.isdisjoint(type(self.module(node)).__mro__)

    def is_inplace(self, node: fx.Node) -> bool:
        name = _function(node) or ""
        by_name = name.endswith("_") or name in ("iadd", "isub", "imul", "itruediv")
        return by_name or bool(getattr(self.module(node), "inplace", node.kwargs.get("inplace")))

    def names(self, node: fx.Node) -> tuple[str, str]:
        """Returns the name and the kind of the module or function that a node calls."""
        module = self.module(node)
        return (node.name, str(_function(node))) if module is None else (str(node.target), type(module).__name__)

    def title(self, node: fx.Node) -> str:
        return "{} ({})".format(*self.names(node))

    def report(self, node: fx.Node, status: Literal["replaced", "left"], what: str) -> None:
        self.entries.append(Entry(*self.names(node), "torch", status, what))

    def checked(self, data: Any, method: Any) -> tuple[list[Tensor], float]:
        """Returns the batches of data, and the percentile."""
        batches = [data] if isinstance(data, Tensor) or not isinstance(data, Iterable) else list(data)
        batches = [batch[0] if isinstance(batch, (tuple, list)) else batch for batch in batches]
        wrong = [type(batch).__name__ for batch in batches if not isinstance(batch, Tensor) or batch.dim() < 1]
        if wrong or not any(map(len, batches)):
            what = f"contains {wrong[0]}" if wrong else "is empty"
            form = "a tensor [N, ...], or an iterable of such tensors or of tuples that begin with one"
            raise TypeError(f"{self.caller}: data must be {form}, but {what}")
        try:
            percent = 100.0 if method == "max" else float(str(method).removesuffix("%"))
        except ValueError:
            percent = math.nan
        if not 0 < percent <= 100:
            form = '"max", or a percentile above 0 and up to 100 such as 99.9'
            raise ValueError(f"{self.caller}: method must be {form}, but is {method!r}")
        return [batch for batch in batches if len(batch)], percent

    def calibrate(self, batches: list[Tensor], percent: float) -> dict[fx.Node, Tensor]:
        """Returns the threshold of each ReLU, and adds the shapes of values to the nodes."""
        relus = [node for node in self.graph.nodes if self.calls(node, RELUS) and node not in self.fixed]
        run = _Calibration(self.network, relus, self.inplace)
        samples = sum(map(len, batches))
        for batch in batches:
            run.share = (1 - percent / 100) * samples / len(batch)
            try:
                with torch.no_grad():
                    run.run(batch.to(next(self.network.parameters(), batch).device, copy=True))
            except Exception as error:
                reason = str(error).split("\n")[0]
                given = f"{batch.dtype} {list(batch.shape)}"
                raise ValueError(f"{self.caller}: the model fails for data of {given}: {reason}") from error
        for node in relus:
            module = self.module(node)
            learned = isinstance(module, QCFS)
            run.found[node] = threshold = module.threshold.detach() if learned else run.found[node].min()
            if not (threshold.isfinite() and threshold > 0):
                what = "threshold" if learned else f"percentile {percent:g} of the activations"
                raise ValueError(
                    f"{self.caller}: the {what} of {self.title(node)} must be finite and above 0, but is "
                    f"{threshold:g}; pass other data, or a higher percentile"
                )
        if not relus:
            raise ValueError(f"{self.caller}: model must call a ReLU, but {self.network._get_name()} calls none")
        return run.found

    def fold_norms(self) -> None:
        """Folds each batch normalisation into the layer before it, where nothing else reads that layer."""
        for node in self.graph.nodes:
            if not self.calls(node, NORMS) or self.uses[node.target] > 1:
                continue
            before, norm = _source(node), self.module(node)
            layer: Any = self.module(before)
            if norm.running_mean is None or len(before.users) > 1 or not self.takes_factor(before):
                continue
            if isinstance(layer, nn.Linear):
                if len(before.meta["shape"]) != 2:
                    continue  # its channels are not the features
                folded = fuse_linear_bn_eval(layer, norm)
            elif layer.transposed and layer.groups > 1:
                continue  # torch multiplies the weights of all groups by the factors of the first one
            else:
                folded = fuse_conv_bn_eval(layer, norm, layer.transposed)
            self.modules[before.target] = folded
            self.network.set_submodule(before.target, folded)
            self.report(node, "replaced", "folded into the layer before")
            node.replace_all_uses_with(before)
            self.graph.erase_node(node)

    def takes_factor(self, node: fx.Node) -> bool:
        """Returns True for the only use of a layer whose weight is a plain parameter."""
        layer = self.module(node)
        is_plain = type(layer).__module__.startswith("torch.nn.modules") and not has_hooks(layer)
        return is_plain and self.calls(node, PRODUCTS) and self.uses[node.target] == 1

    def find_varying(self) -> None:
        """Finds the values that differ between steps, and checks that they are affine functions of spikes."""
        nodes, fixed = list(self.graph.nodes), self.fixed
        varying, before = {*self.thresholds, nodes[-1]}, 0
        while len(varying) > before:  # until it includes the sizes that are read for varying values
            before = len(varying)
            varying.update(n for n in nodes if varying.intersection(n.all_input_nodes))
            varying.update(n for n in nodes if "shape" not in n.meta and n not in fixed and varying & n.users.keys())
        self.varying, self.constant = varying, {*nodes} - varying - fixed
        for node in nodes:
            if node not in varying:
                continue
            shape, sources = node.meta.get("shape"), [n for n in node.all_input_nodes if n not in fixed]
            is_legal = self.calls(node, AFFINE | RELUS) or node.op == "output" or node.meta["is_size"]
            if self.calls(node, AFFINE_IN_ONE):
                is_legal = sources == [node.args[0]] or (len(sources) == 1 and _function(node) == "mul")
            if self.calls(node, NORMS):
                is_legal = self.module(node).running_mean is not None
            if not is_legal or (shape is None and self.calls(node, MAX_POOLS)):
                raise ValueError(
                    f"convert: {self.title(node)} must be affine or a max pooling, because it is after a ReLU, but its "
                    "output for mean inputs is not its mean output; replace it, or apply it to the result"
                )
            if shape[:1] != self.x.meta["shape"][:1] if shape is not None else node.op == "output":
                raise ValueError(f"convert: {self.title(node)} must return a tensor whose dimension 0 is the batch")

    def add_steps(self) -> None:
        """Adds the number of steps, repeats constant values for it, and pools sums over steps."""
        with self.graph.inserting_after(self.x):
            self.distinct = self.graph.placeholder("distinct")
            self.steps = self.graph.placeholder("steps")
        repeated: dict[fx.Node, fx.Node] = {}
        for node in [n for n in self.graph.nodes if n in self.varying and n not in self.thresholds]:
            for source in self.constant.intersection(node.all_input_nodes):
                if source not in repeated:
                    repeated[source] = self.insert(source, _repeated, (source, self.steps, self.distinct))
                node.replace_input_with(source, repeated[source])
            if self.calls(node, MAX_POOLS):
                source = _source(node)
                node.replace_input_with(source, self.insert(source, _summed, (source, self.steps)))
                after = self.insert(node, _increments, (node, self.steps))
                node.replace_all_uses_with(after, delete_user_cb=lambda user, after=after: user is not after)
                self.report(node, "replaced", "max pooling of sums over steps")
            elif node.op == "call_module":
                self.report(node, "left", "affine")

    def put_neuron(self, node: fx.Node, threshold: Tensor) -> None:
        """Replaces a ReLU by a neuron, and multiplies its spikes by the threshold, in weights where it can."""
        distinct = self.distinct if _source(node) in self.constant else self.steps
        spikes = self.put(node, Spikes(threshold), (_source(node), self.steps, distinct))
        others = []
        for user in spikes.users:
            readers = list(self.readers(user))
            if not readers or not all(map(self.takes_factor, readers)):
                others.append(user)
                continue
            for layer in map(self.module, readers):
                layer.weight = nn.Parameter(layer.weight.detach() * threshold, layer.weight.requires_grad)
        if others:
            with self.graph.inserting_after(spikes):
                factor = self.graph.get_attr(f"{spikes.target}.neuron.v_threshold")
            scaled = self.insert(factor, operator.mul, (spikes, factor))
            for user in others:
                user.replace_input_with(spikes, scaled)
        self.report(node, "replaced", f"neuron, threshold {threshold.item():.4g}")

    def readers(self, node: fx.Node) -> Iterator[fx.Node]:
        """Yields the node, or those that read its result if it keeps the scale of its input."""
        if self.calls(node, SCALING):
            for user in node.users:
                yield from self.readers(user)
        elif "shape" in node.meta or not self.calls(node, SIZES):
            yield node

    def insert(self, node: fx.Node, function: Any, args: tuple[Any, ...]) -> fx.Node:
        """Inserts a call of a function after a node."""
        with self.graph.inserting_after(self.distinct if node is self.x else node):
            return self.graph.call_function(function, args)

    def put(self, node: fx.Node, module: nn.Module, args: tuple[Any, ...]) -> fx.Node:
        """Replaces a node by a call of a module, which it returns."""
        self.network.add_submodule(f"neurons.{node.name}", module)
        with self.graph.inserting_after(node):
            call = self.graph.call_module(f"neurons.{node.name}", args)
        node.replace_all_uses_with(call)
        self.graph.erase_node(node)
        return call

    def finish(self) -> fx.GraphModule:
        self.graph.lint()
        self.network.delete_all_unused_submodules()
        self.network.recompile()
        return self.network


class _Calibration(fx.Interpreter):
    """Runs a network, and finds the activations of each ReLU at and above a percentile of those of all samples."""

    share: float  # the part of the values of all samples above the percentile, by the values of this batch

    def __init__(self, network: fx.GraphModule, relus: Iterable[fx.Node], inplace: Collection[fx.Node]):
        super().__init__(network)
        self.found: dict[fx.Node, Tensor] = {node: torch.empty(0) for node in relus}
        self.inplace = inplace

    def run_node(self, n: fx.Node) -> Any:
        others = [v for node, v in self.env.items() if n in self.inplace and node not in n.args and torch.is_tensor(v)]
        before = [v.clone() for v in others]
        value = super().run_node(n)
        if not all(map(torch.equal, others, before)):
            raise ValueError(f"{n.name} changes a view of another value in place; pass inplace=False")
        if isinstance(value, Tensor):
            n.meta["shape"] = value.shape
        n.meta["is_size"] = isinstance(value, int)
        if n in self.found:
            values = torch.cat([self.found[n].to(value), value.flatten()])
            self.found[n] = values.topk(min(int(value.numel() * self.share) + 1, values.numel())).values
        return value


def _function(node: fx.Node) -> str | None:
    """Returns the name of the function or method that a node calls."""
    if node.op == "call_function":
        return getattr(node.target, "__name__", str(node.target))
    return str(node.target) if node.op == "call_method" else None


def _source(node: fx.Node) -> fx.Node:
    """Returns the first node that a node reads."""
    return node.all_input_nodes[0]
