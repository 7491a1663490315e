"""The layers around the neurons of a SpikingJelly network: batch normalisation in the neuron's own pass, and pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from spikeforge import _library
from spikeforge.accelerate import in_pieces, products, replacing, residual
from spikeforge.accelerate.replacing import Replaced
from spikeforge.accelerate.watch import Watch, has_hooks, watched

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
Chain = tuple[nn.Module, "nn.Module | None", nn.Module]  # a normalisation, a pooling, if there is one, and a neuron
LAYERS = "spikingjelly.activation_based.layer"
NEURONS = "spikingjelly.activation_based.neuron"


@dataclass(frozen=True)
class Layers:
    """The report of `layers`: print it.

    Attributes:
        normalised: pairs of names: a batch normalisation, and the neuron whose pass includes it.
        pooled: the names of poolings that save one byte per maximum.
        pooled_before: pairs of names: one of these poolings, and the neuron that takes the maxima before its
            normalisation, which the pooling follows.
        recomputed: the names of products that are recomputed in the backward pass, and the saved bits per number of
            their input; 0 if it is saved unchanged.
        joined: triples: the names of a module whose forward combines a residual with a neuron's spikes, and of that
            neuron; and the operation: "add", "and", "iand".
        in_pieces: the names of convolutions that are computed in pieces, with the layers after them.
        stateless: the names of neurons that keep no states after a sequence.
        keeping: the names of SpikingJelly's neurons that keep their states, since `accelerate` skipped them.
    """

    normalised: tuple[tuple[str, str], ...]
    pooled: tuple[str, ...]
    recomputed: tuple[tuple[str, int], ...] = ()
    joined: tuple[tuple[str, str, str], ...] = ()
    in_pieces: tuple[str, ...] = ()
    pooled_before: tuple[tuple[str, str], ...] = ()
    stateless: tuple[str, ...] = ()
    keeping: tuple[str, ...] = ()

    def __str__(self) -> str:
        states = [f"neurons that keep no states after a sequence: {len(self.stateless)}"] if self.stateless else []
        states += [f"  but {name} keeps its own: it was not replaced" for name in self.keeping]
        if not (self.normalised or self.joined or self.pooled):
            return "\n".join(["no layer of SpikingJelly's in this network that its neurons could take along", *states])
        lines = [f"batch normalisations that run in the pass of a neuron: {len(self.normalised)}"]
        lines += [f"  {norm}  in  {neuron}" for norm, neuron in self.normalised]
        if self.joined:
            lines += [f"residuals that are joined there: {len(self.joined)}"]
            lines += [f"  {mode} in {module}  in  {neuron}" for module, neuron, mode in self.joined]
        lines += [f"max poolings that keep a byte for each maximum: {len(self.pooled)}"]
        where = {pool: f"  before the normalisation, in  {neuron}" for pool, neuron in self.pooled_before}
        lines += [f"  {name}{where.get(name, '')}" for name in self.pooled]
        if self.recomputed:
            lines += [
                f"products that are recomputed in the backward pass, with the saved bits per number: {len(self.recomputed)}"
            ]
            lines += [f"  {name}  {bits or 'all'}" for name, bits in self.recomputed]
        if self.in_pieces:
            lines += [f"of them in pieces of the batch, with their neurons: {len(self.in_pieces)}"]
            lines += [f"  {name}" for name in self.in_pieces]
        return "\n".join(lines + states)


def layers(
    net: nn.Module, *inputs: Any, recompute: bool = False, pieces: int = 1, keep_states: bool | None = None
) -> Layers:
    """Fuses each batch normalisation into the SpikingJelly neuron that follows it, in place, and replaces max poolings
    by this library's operators. Call `accelerate(net)` first: only neurons that it has replaced are considered.

    The network is run once, with `inputs`, in evaluation mode and without gradients, to find normalisations whose only
    consumer is one neuron, with any Python code between them. Afterwards the normalisation returns its input, and the
    neuron, in step mode "m", normalises it in its own pass. A max pooling of images may be between them: it returns its
    input too, and the neuron takes the maxima before it normalises them. Code between them, except that of
    SpikingJelly's containers, must not read the maxima's sizes; the network is run once more for each, to check that it
    does not store them. If a module's forward combines the neuron's spikes s with a residual r, as s + r, s * r or
    (1 - s) * r, that is fused as well. Modules, parameters, buffers and state_dict do not change; spikes are the same
    within rounding. Modules with hooks are skipped. `accelerate.restore` undoes the changes; call it before one of the
    modules is removed from the network or replaced, as convert_sync_batchnorm does.

    Args:
        net: a network on which `accelerate` was called.
        inputs: the arguments of a call: a small batch is enough.
        recompute: linear layers and convolutions before those normalisations save their input, spikes as bits, and are
            recomputed in the backward pass: their results, which are the largest tensors, are not saved. Spikes are then
            the same within rounding on a CPU too.
        pieces: with `recompute`, convolutions of a ``torch.nn.Sequential`` that are followed by a normalisation, a neuron
            and optionally a max pooling are computed in this many pieces of the batch, with the layers after them: those
            with the largest outputs, down to half of the largest. The tensors between these layers never exist as a
            whole. Training computes such a convolution four times per step rather than twice; results are the same
            within rounding.
        keep_states: False: in step mode "m" a call does not change the neurons' states, so that every sequence begins
            with the same ones: as with `reset_net` between sequences, in less memory and time. States of each step
            (`store_v_seq`), and those that functional forwards return, are not affected. True: neurons keep their
            states, as SpikingJelly's do; this is the initial setting. None: the setting of an earlier call.

    Returns:
        The names of changed modules.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"accelerate.layers: net must be a torch.nn.Module, but is {type(net).__name__}")
    if not isinstance(recompute, bool):
        raise TypeError(f"accelerate.layers: recompute must be True or False, but is {recompute!r}")
    if keep_states is not None and not isinstance(keep_states, bool):
        raise TypeError(f"accelerate.layers: keep_states must be True, False or None, but is {keep_states!r}")
    if not isinstance(pieces, int) or isinstance(pieces, bool) or pieces < 1:
        raise ValueError(f"accelerate.layers: pieces must be a whole number from 1 on, but is {pieces!r}")
    if pieces > 1 and not recompute:
        raise ValueError("accelerate.layers: pieces needs recompute=True")
    _library.load()
    names = {module: name for name, module in net.named_modules()}
    found, recomputed, watch = _found(net, inputs, recompute)
    if keep_states is not None:
        for neuron in _neurons(net):
            neuron.__dict__["_spikeforge_keeps_states"] = keep_states
    stateless = tuple(names[neuron] for neuron in _neurons(net) if not neuron._keeps_states())
    keeping = tuple(name for module, name in names.items() if stateless and _keeps_its_own(module))
    for norm, pool, neuron in found:
        replacing.replace(norm, HandingOn)
        before = (norm,) if pool is None else (norm, pool)
        for module in before:
            module.__dict__["_spikeforge_neuron"] = (neuron,)  # in a tuple: it is no part of the module
        neuron.__dict__["_spikeforge_norm"] = before
    for norm, product, bits in recomputed:
        products.recompute(product, bits)
        norm.__dict__["_spikeforge_recompute"] = True
    joined = [
        (names[module], names[neuron], mode)
        for module in list(names)
        for neuron, mode in residual.join(module, lambda neuron: norm_of(neuron) is not None)
    ]
    if watch is not None:
        joining = {net.get_submodule(name) for _, name, _ in joined}
        for neuron, bits in watch.packing([(product, bits) for _, product, bits in recomputed], joining).items():
            neuron.__dict__["_spikeforge_packs"] = bits
    pools = [module for module in names if _is_known_pool(module)]
    for pool in pools:
        replacing.replace(pool, BytePool)
    pairs = {norm: neuron for norm, pool, neuron in found if pool is None}
    chains = _put_in_pieces(net, pieces, pairs, recomputed, watch.given) if pieces > 1 and watch else []
    return Layers(
        tuple((names[norm], names[neuron]) for norm, _, neuron in found),
        tuple(names[pool] for pool in pools),
        tuple((names[product], bits) for _, product, bits in recomputed),
        tuple(joined),
        tuple(names[chain[0]] for chain in chains),
        tuple((names[pool], names[neuron]) for _, pool, neuron in found if pool is not None),
        stateless,
        keeping,
    )


def _put_in_pieces(
    net: nn.Module, pieces: int, neurons: dict[nn.Module, nn.Module], recomputed: Any, given: dict[nn.Module, int]
) -> list[tuple[nn.Module, ...]]:
    """The layers of which the convolutions with the largest results are the first."""
    behind = {
        product: (norm, neurons[norm])
        for norm, product, _ in recomputed
        if norm in neurons and not isinstance(product, nn.Linear)
    }
    chains = in_pieces.chains(net, behind, lambda modules: any(isinstance(m, BytePool) for m in modules))
    most = max((given[product] for _, product, _ in recomputed), default=0)
    chains = [chain for chain in chains if 2 * given[chain[0]] >= most]
    for product, *others in chains:
        product.__dict__["_spikeforge_chain"] = tuple(others), pieces
    return chains


# --- batch normalisation ---------------------------------------------------------------------------------------------


class HandingOn(Replaced):
    """A batch normalisation whose input goes on to the neuron that normalises it."""

    def forward(self, x: Tensor) -> Tensor:
        return x if norm_of(_neuron_of(self)) is self else super().forward(x)


def norm_of(neuron: Any) -> Any:
    """The batch normalisation that a neuron runs: the two refer to each other; None for most neurons."""
    return _before(neuron)[0]


def pool_of(neuron: Any) -> Any:
    """The pooling after that normalisation, whose maxima the neuron takes; None for most neurons."""
    return _before(neuron)[1]


def _before(neuron: Any) -> tuple[Any, Any]:
    """The normalisation and the pooling that a neuron runs. All refer to each other, and none has been restored."""
    before = getattr(neuron, "__dict__", {}).get("_spikeforge_norm")
    if before is None or not all(isinstance(module, Replaced) for module in (neuron, *before)):
        return None, None
    if any(_neuron_of(module) is not neuron for module in before):
        return None, None
    return before if len(before) == 2 else (*before, None)


def _neuron_of(module: nn.Module) -> Any:
    """The neuron that a normalisation or a pooling hands its input on to; None mostly."""
    return module.__dict__.get("_spikeforge_neuron", (None,))[0]


def normalised(neuron: nn.Module, x: Tensor) -> Tensor:
    """The neuron's input: x `[T, B, C, ...]` after the normalisation and the pooling before it, if present, as torch
    computes them."""
    norm, pool = _before(neuron)
    if norm is None:
        return x
    plain = next(kind for kind in NORMS if isinstance(norm, kind))
    y = plain.forward(norm, x.flatten(0, 1)).unflatten(0, x.shape[:2])
    return y if pool is None else nn.MaxPool2d.forward(pool, y.flatten(0, 1)).unflatten(0, x.shape[:2])


def is_recomputed(norm: nn.Module) -> bool:
    """True if its input is recomputed in the backward pass."""
    return norm.__dict__.get("_spikeforge_recompute", False)


def _found(
    net: nn.Module, inputs: tuple[Any, ...], recompute: bool
) -> tuple[list[Chain], list[tuple[nn.Module, nn.Module, int]], Watch | None]:
    """Normalisations, poolings and neurons that may run together; normalisations, the products before them, and bits; and
    what was watched."""
    norms = {module for module in net.modules() if _is_known_norm(module)}
    neurons = {module for module in _neurons(net) if not has_hooks(module)}
    free = {module for module in neurons if norm_of(module) is None}
    if not norms or not free:
        return [], [], None
    candidates = {m for m in net.modules() if recompute and products.is_product(m) and not has_hooks(m)}
    pools = {module for module in net.modules() if _is_known_pool(module) and not has_hooks(module)}
    watch = watched(net, inputs, norms, neurons, candidates, pools=pools)
    chains = [chain for chain in watch.chains(net, inputs) if chain[-1] in free]
    before = {chain[0]: watch.product_before(chain[0]) for chain in chains}
    return chains, [(norm, *found) for norm, found in before.items() if found is not None], watch


def _neurons(net: nn.Module) -> list[nn.Module]:
    """Those of SpikingJelly that `accelerate` has replaced."""
    return [module for module in net.modules() if hasattr(type(module), "takes_norm")]


def _keeps_its_own(module: nn.Module) -> bool:
    """True for a SpikingJelly neuron with states that was not replaced."""
    is_theirs = replacing.ancestor(module, NEURONS) is not None and not isinstance(module, Replaced)
    return is_theirs and bool(getattr(module, "_memories", None))


def _is_known_norm(module: nn.Module) -> bool:
    return _is_of(module, NORMS) and not has_hooks(module)


def _is_of(module: nn.Module, kinds: tuple[type, ...]) -> bool:
    """True for one of torch's modules, or SpikingJelly's of that name, that was not replaced."""
    own = replacing.own_class(module)
    is_known = own in kinds or (own.__module__.startswith(LAYERS) and own.__mro__[1] in kinds)
    return is_known and not isinstance(module, Replaced)


# --- pooling ---------------------------------------------------------------------------------------------------------


class BytePool(Replaced):
    """A maximum pooling of images, in torch's results."""

    def forward(self, x: Tensor) -> Tensor:
        dims = {"s": (3, 4), "m": (5,)}.get(getattr(self, "step_mode", "s"), ())
        if in_pieces.handed_on(self, x) or pool_of(_neuron_of(self)) is self:
            return x
        if x.dim() not in dims or not x.is_floating_point() or self.return_indices:
            return super().forward(x)
        from spikeforge.nn.pooling import max_pooled  # it takes the library's operators

        return max_pooled(self, x)


def _is_known_pool(module: nn.Module) -> bool:
    from spikeforge.nn.pooling import has_byte_places  # it takes the library's operators

    return _is_of(module, (nn.MaxPool2d,)) and "forward" not in module.__dict__ and has_byte_places(module)
