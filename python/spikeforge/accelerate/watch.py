"""Records one call of a network: the readers of each normalisation, the product before it, and which tensors are
spikes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

RANDOM = ("Dropout", "DropPath", "StochasticDepth")  # in the names of modules that scale values 0 or 1 in training
aten = torch.ops.aten


def watched(
    net: nn.Module, inputs: Iterable[Any], norms: Collection[nn.Module], neurons: Collection[nn.Module],
    products: Collection[nn.Module] = (), fires: Callable[[nn.Module], bool] = lambda neuron: True,
    pools: Collection[nn.Module] = (),
) -> Watch:  # fmt: skip
    """Runs `net` once, in evaluation mode and without gradients, and restores its mode and states.

    Args:
        norms, neurons, products: the modules to record.
        fires: whether a neuron returns 0 and 1.
        pools: max poolings that may be between a normalisation and a neuron.
    """
    watch = Watch(fires)
    hooks = watch.hooks(net, norms, pools, neurons, products)
    with _as_it_was(net), hooks, torch.no_grad(), watch, _Functions(watch):
        net.eval()
        watch.results = net(*inputs)
    return watch


@contextmanager
def _as_it_was(net: nn.Module) -> Iterator[None]:
    """Restores modes and states of a network after the context."""
    modes = {module: module.training for module in net.modules()}
    states = [(module._memories, dict(module._memories)) for module in net.modules() if hasattr(module, "_memories")]
    kept = [(module._memory, module._memory.states) for module in net.modules() if hasattr(module, "_memory")]
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for memories, before in states:
            memories.update(before)
        for memory, before in kept:
            memory.states = before


class Watch(TorchDispatchMode):
    """Follows tensors by their storage, so that a view is the tensor that it views."""

    def __init__(self, fires: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.fires = fires
        self.results: Any = None  # of the network
        self.producer_of: dict[int, nn.Module] = {}  # normalisations and poolings, by the storage of their result
        self.product_of: dict[int, nn.Module] = {}
        self.most: dict[int, int] = {}  # by storage: all elements are whole numbers from 0 to this
        self.random: set[int] = set()  # storages that training scales
        self.alive: list[Tensor] = []  # so that storages are not reused
        self.normalised: dict[nn.Module, None] = {}  # a set in order
        self.pools: set[nn.Module] = set()
        self.measured: set[int] = set()  # poolings whose sizes the network's own code has read
        self.outputs: dict[nn.Module, list[Tensor]] = {}
        self.readers: dict[nn.Module, set[nn.Module | None]] = {}
        self.inputs: dict[nn.Module, list[Tensor]] = {}
        self.read: dict[nn.Module, list[int | None]] = {}  # by product: the largest element of each input
        self.given: dict[nn.Module, int] = {}  # by product: the number of elements of its results
        self.spikes_of: dict[int, nn.Module] = {}
        self.joined_of: dict[int, set[nn.Module]] = {}  # the neurons whose spikes were joined with another tensor
        self.fed_by: dict[
            nn.Module, tuple[nn.Module | None, set[nn.Module]]
        ] = {}  # by product: the neurons of its input
        self.made_of: dict[nn.Module, nn.Module] = {}  # by normalisation: the product before it
        # By storage: the sum of a normalisation's result and a tensor, its version, and the normalisations.
        self.sums: dict[int, tuple[Tensor, int, list[nn.Module]]] = {}
        self.summed_for: dict[nn.Module, nn.Module] = {}  # by normalisation: the neuron that first reads that sum
        self.ranks: dict[nn.Module, list[int | None]] = {}  # by module: the dimensions of its inputs
        self.inside: list[nn.Module] = []

    # --- results

    def chains(self, net: nn.Module, inputs: Iterable[Any]) -> list[tuple[nn.Module, nn.Module | None, nn.Module]]:
        """Returns each normalisation that only one neuron reads, as a sequence, with the pooling between them (or
        None). `net` and `inputs` are those of the recorded call; the network runs once more for each pooling."""
        found = []
        for norm in self.normalised:
            reader = self._reader(norm)
            pool = reader if reader in self.pools else None
            neuron = reader if pool is None else self._unmeasured_reader(pool)
            if neuron is None or neuron in self.pools or getattr(neuron, "step_mode", "m") != "m":
                continue
            if pool is None or self._takes_images(net, inputs, norm, pool, neuron):
                found.append((norm, pool, neuron))
        return found

    def shortcuts(self) -> list[tuple[nn.Module, nn.Module]]:
        """Returns each normalisation whose result is added to a tensor, with the neuron that reads the sum."""
        return [
            (norm, neuron)
            for norm, neuron in self.summed_for.items()
            if neuron not in self.pools
            and len(self.outputs[norm]) == 1
            and len(self.inputs[neuron]) == 1
            and getattr(neuron, "step_mode", "m") == "m"
        ]

    def _reader(self, producer: nn.Module) -> nn.Module | None:
        """Returns the one module that reads the one output of `producer`, unchanged."""
        outputs, readers = self.outputs[producer], self.readers[producer]
        reader = next(iter(readers)) if len(readers) == 1 else None
        if reader is None or len(outputs) != 1 or len(self.inputs[reader]) != 1:
            return None
        return reader if _is_sequence_of(self.inputs[reader][0], outputs[0]) else None

    def _unmeasured_reader(self, pool: nn.Module) -> nn.Module | None:
        reader = self._reader(pool)
        return None if reader is None or _storage(self.outputs[pool][0]) in self.measured else reader

    def _takes_images(
        self, net: nn.Module, inputs: Iterable[Any], norm: nn.Module, pool: nn.Module, neuron: nn.Module
    ) -> bool:
        """Returns True if the neuron receives the whole images `[T, B, C, H, W]` when normalisation and pooling return
        their input, and the sizes of the network's results stay: code between may hard-code those of the maxima."""
        passed: list[Tensor] = []
        right: list[bool] = []

        def pass_input(module: nn.Module, given: Any, output: Tensor) -> Tensor:
            passed.append(given[0])
            return given[0]

        def as_before(module: nn.Module, given: Any) -> Any:
            x = given[0]
            right.append(x.dim() == 5 and len(passed) == 2 and _is_sequence_of(x, passed[0]))
            return self.inputs[neuron][0], *given[1:]

        buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
        with _as_it_was(net), ExitStack() as stack, torch.no_grad():
            for module in (norm, pool):
                stack.enter_context(_removed(module.register_forward_hook(pass_input)))
            stack.enter_context(_removed(neuron.register_forward_pre_hook(as_before)))
            net.eval()
            try:
                sizes = _sizes(net(*inputs))
            except Exception:  # a user's code may raise any error for unexpected sizes
                return False
            finally:
                for buffer, before in buffers:
                    buffer.copy_(before)
        return right == [True] and sizes == _sizes(self.results)

    def product_before(self, norm: nn.Module) -> tuple[nn.Module, int] | None:
        """Returns the product whose unchanged result a normalisation reads, and the bits per element of the product's
        input; 0 if elements may have any value."""
        product = self.made_of.get(norm)
        if product is None or len(self.read[product]) != 1:
            return None
        most = self.read[product][0]
        return product, 0 if most is None or most > 15 else 1 if most <= 1 else 4

    def packing(self, rewrites: Iterable[Any], joining: Collection[nn.Module]) -> dict[nn.Module, int]:
        """Returns by neuron the bits of each element of its packed output, which the products of these rewrites read.
        The output of `joining` neurons is their spikes joined with a residual."""
        found = {}
        for rewrite in rewrites:
            neuron, joined = self.fed_by.get(rewrite.product, (None, set()))
            givers = {neuron} - {None} or joined & set(joining)
            found.update(dict.fromkeys(givers, rewrite.bits) if rewrite.bits else {})
        return found

    # --- recording

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        read = {_storage(t) for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)}
        is_view = self._is_view(func, result, read)
        if not is_view:
            for storage in read & self.producer_of.keys():
                self.readers[self.producer_of[storage]].add(self.inside[-1] if self.inside else None)
            self._follow_numbers(func, args, kwargs, result)
        if func in SUMS and not self.inside and not kwargs and isinstance(result, Tensor):
            # Autograd counts a change in place after this call.
            self._follow_sum(args[:2], result, version_of(result) + func._schema.is_mutable)
        return result

    def _follow_sum(self, summands: tuple[Any, ...], total: Tensor, version: int) -> None:
        tensors = [t for t in summands if isinstance(t, Tensor) and t.shape == total.shape]
        norms = [norm for t in tensors if (norm := self.producer_of.get(_storage(t))) in self.normalised]
        if norms:
            self.sums[_storage(total)] = total, version, norms

    @staticmethod
    def _is_view(func: Any, result: Any, read: set[int]) -> bool:
        results = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)]
        return bool(results) and not func._schema.is_mutable and all(_storage(t) in read for t in results)

    def _follow_numbers(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        most = _most_of(func, args, kwargs, self._most)
        for argument, given in zip(func._schema.arguments, args):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for t in tree_flatten(given)[0]:
                    self.most.pop(_storage(t), None) if isinstance(t, Tensor) else None
        first = result[0] if isinstance(result, tuple) and result else result
        if most is not None and isinstance(first, Tensor):
            self._are_whole(first, most)
        if func in SUMS | PRODUCTS and isinstance(first, Tensor):
            storages = {_storage(t) for t in args[:2] if isinstance(t, Tensor)}
            self.joined_of[_storage(first)] = {self.spikes_of[s] for s in storages & self.spikes_of.keys()}
            self.alive.append(first)

    def _are_whole(self, t: Tensor, most: int) -> None:
        self.most[_storage(t)] = most
        self.alive.append(t)

    def _most(self, t: Any) -> int | None:
        return None if not isinstance(t, Tensor) or _storage(t) in self.random else self.most.get(_storage(t))

    def is_random(self, t: Any) -> None:
        if isinstance(t, Tensor):
            self.random.add(_storage(t))
            self.alive.append(t)

    @contextmanager
    def hooks(
        self,
        net: nn.Module,
        norms: Iterable[nn.Module],
        pools: Iterable[nn.Module],
        neurons: Iterable[nn.Module],
        products: Iterable[nn.Module],
    ) -> Iterator[None]:
        with ExitStack() as stack:
            for norm in norms:
                stack.enter_context(_removed(norm.register_forward_pre_hook(self._before_norm)))
                stack.enter_context(_removed(norm.register_forward_hook(self._after_norm)))
            for pool in pools:
                stack.enter_context(_removed(pool.register_forward_pre_hook(self._before_reader)))
                stack.enter_context(_removed(pool.register_forward_hook(self._after_pool, always_call=True)))
            for neuron in neurons:
                stack.enter_context(_removed(neuron.register_forward_pre_hook(self._before_reader)))
                stack.enter_context(_removed(neuron.register_forward_hook(self._after_neuron, always_call=True)))
            for product in products:
                stack.enter_context(_removed(product.register_forward_pre_hook(self._before_product)))
                stack.enter_context(_removed(product.register_forward_hook(self._after_product)))
            for module in net.modules():
                stack.enter_context(_removed(module.register_forward_pre_hook(self._of_ranks)))
                if any(name in type(module).__name__ for name in RANDOM):
                    stack.enter_context(_removed(module.register_forward_hook(lambda _, __, y: self.is_random(y))))
            yield

    def _of_ranks(self, module: nn.Module, inputs: Any) -> None:
        self.ranks[module] = [x.dim() if isinstance(x, Tensor) else None for x in inputs]

    def _before_norm(self, norm: nn.Module, inputs: Any) -> None:
        product = self.product_of.get(_storage(inputs[0])) if inputs else None
        if product is not None:
            self.made_of[norm] = product

    def _after_norm(self, norm: nn.Module, inputs: Any, output: Tensor) -> None:
        self.normalised.setdefault(norm)
        self._produces(norm, output)

    def _after_pool(self, pool: nn.Module, inputs: Any, output: Any) -> None:
        self.inside.pop()
        if isinstance(output, Tensor):
            self.pools.add(pool)
            self._produces(pool, output)

    def _produces(self, producer: nn.Module, output: Tensor) -> None:
        self.producer_of[_storage(output)] = producer
        self.outputs.setdefault(producer, []).append(output)
        self.readers.setdefault(producer, set())

    def _before_reader(self, reader: nn.Module, inputs: Any) -> None:
        self.inside.append(reader)
        self.inputs.setdefault(reader, []).extend(inputs[:1])
        if inputs and isinstance(inputs[0], Tensor) and _storage(inputs[0]) in self.sums:
            total, version, norms = self.sums[_storage(inputs[0])]
            if inputs[0] is total and version_of(total) in (version, -1):
                for norm in norms:
                    self.summed_for.setdefault(norm, reader)

    def _after_neuron(self, neuron: nn.Module, inputs: Any, output: Any) -> None:
        self.inside.pop()
        spikes = output[0] if isinstance(output, tuple) and output else output
        if isinstance(spikes, Tensor) and self.fires(neuron):
            self._are_whole(spikes, 1)
            self.spikes_of[_storage(spikes)] = neuron

    def _before_product(self, product: nn.Module, inputs: Any) -> None:
        self.read.setdefault(product, []).append(self._most(inputs[0]) if inputs else None)
        if inputs:
            storage = _storage(inputs[0])
            self.fed_by[product] = self.spikes_of.get(storage), self.joined_of.get(storage, set())

    def _after_product(self, product: nn.Module, inputs: Any, output: Tensor) -> None:
        self.product_of[_storage(output)] = product
        self.given[product] = output.numel()
        self.alive.append(output)


class _Functions(TorchFunctionMode):
    """Records calls that are not operators: a dropout in evaluation, which returns its input, and reads of sizes."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "dropout" in getattr(func, "__name__", ""):
            self.watch.is_random(result)
        if func in OF_SIZES and not sys._getframe(1).f_globals.get("__name__", "").startswith(CONTAINERS):
            self.watch.measured.add(_storage(args[0]))
        return result


@contextmanager
def _removed(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


OF_SIZES = {getattr(torch.Tensor, name) for name in ("size", "numel", "nelement", "stride", "__len__")}
OF_SIZES |= {getattr(torch.Tensor, name).__get__ for name in ("shape", "nbytes")}
# Modules whose code reads sizes only to restore the dimensions of a sequence.
CONTAINERS = (
    "torch.",
    "spikeforge.",
    *(f"spikingjelly.activation_based.{name}" for name in ("base", "functional", "layer")),
)
SAME = {
    aten.clone.default,
    aten.repeat.default,
    aten._to_copy.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
    torch.ops.spikeforge.max_pool2d.default,
}
JOINED = {aten.cat.default, aten.stack.default}
SUMS = {aten.add.Tensor, aten.add_.Tensor}
PRODUCTS = {aten.mul.Tensor, aten.mul_.Tensor}


def _most_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], most: Any) -> int | None:
    """Returns the upper bound of a result of integers from 0; None if there is none."""
    if func in SAME:
        return most(args[0])
    if func in JOINED:
        all_of_them = [most(t) for t in args[0]]
        return None if None in all_of_them else max(all_of_them, default=None)
    if func is aten.rsub.Scalar and len(args) == 2 and not kwargs:
        return 1 if args[1] == 1 and most(args[0]) in (0, 1) else None
    if func not in SUMS | PRODUCTS or len(args) != 2 or kwargs:
        return None
    a, b = most(args[0]), most(args[1])
    if a is None or b is None:
        return None
    return a + b if func in SUMS else a * b


def _sizes(results: Any) -> list[Any]:
    """Returns the sizes of tensors, the values of scalars and strings, and the class of anything else."""
    parts = tree_flatten(results)[0]
    known = (bool, int, float, complex, str, type(None))
    return [p.shape if isinstance(p, Tensor) else repr(p) if isinstance(p, known) else type(p) for p in parts]


def version_of(t: Tensor) -> int:
    """Returns the number of changes of a tensor; -1 if it is not counted, as in inference mode."""
    return -1 if t.is_inference() else t._version


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _is_sequence_of(x: Tensor, y: Tensor) -> bool:
    """Returns True if x is y, or x [T, B, C, ...] is a view of y [T * B, C, ...] with the same elements."""
    if x.dim() < 3 or x.numel() != y.numel():
        return False
    if x.dim() != y.dim():
        x = x.flatten(0, 1)  # a copy, if no view is possible
    return x.data_ptr() == y.data_ptr() and x.shape == y.shape and _strides(x) == _strides(y)


def _strides(x: Tensor) -> list[int]:
    return [stride for stride, size in zip(x.stride(), x.shape) if size != 1]
