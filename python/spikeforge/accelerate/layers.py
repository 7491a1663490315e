"""Rewrites the layers around the neurons of a network of SpikingJelly: normalisation, pooling and residuals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from spikeforge import _library
from spikeforge.accelerate import in_pieces, products, replacing, residual
from spikeforge.accelerate.replacing import Replaced, ReplacedLayer
from spikeforge.accelerate.rewrites import Rewrite, find_rewrites
from spikeforge.accelerate.watch import Watch
from spikeforge.nn.layers import RESIDUALS
from spikeforge.nn.pooling import has_byte_places, max_pooled
from spikeforge.nn.stateful import has_hooks

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYERS = "spikingjelly.activation_based.layer"
NEURONS = "spikingjelly.activation_based.neuron"


@dataclass(frozen=True)
class Layers:
    """The report of `layers`: print it.

    Attributes:
        normalised: pairs of names, of a batch normalisation and of the neuron in whose pass it runs.
        pooled: the names of poolings that keep a byte for each maximum.
        pooled_before: pairs of names, of one of these poolings and of the neuron that computes its maxima before the
            normalisation that precedes the pooling.
        recomputed: the names of products that the backward pass recomputes, and the bits that are kept of each
            element of their input; 0: the input is kept as it is.
        joined: triples of names, of a module in whose forward a residual is joined with a neuron's spikes, and of that
            neuron; and how: "add", "and", "iand". "membrane": the residual is added to the normalised input of the
            neuron.
        in_pieces: the names of convolutions that are computed in pieces, with the layers after them.
        stateless: the names of neurons that keep no states after a sequence.
        keeping: the names of SpikingJelly's neurons that keep theirs, because `accelerate` did not replace them.
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
            nothing = "this network has no layer of SpikingJelly that could be fused into its neurons"
            return "\n".join([nothing, *states])
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
                "products that are recomputed in the backward pass, with the saved bits per element: "
                f"{len(self.recomputed)}"
            ]
            lines += [f"  {name}  {bits or 'all'}" for name, bits in self.recomputed]
        if self.in_pieces:
            lines += [f"of them in pieces of the batch, with their neurons: {len(self.in_pieces)}"]
            lines += [f"  {name}" for name in self.in_pieces]
        return "\n".join(lines + states)


def layers(
    net: nn.Module, *inputs: Any, recompute: bool = False, pieces: int = 1, keep_states: bool | None = None,
    shortcuts: bool = False,
) -> Layers:  # fmt: skip
    """Fuses each batch normalisation into the SpikingJelly neuron that follows it, in place, and replaces max poolings
    by this library's operators. Call `accelerate(net)` first: only neurons that it has replaced are considered.

    The network runs once on `inputs`, in evaluation mode and without gradients, to find each normalisation whose output
    only one neuron reads. The normalisation then returns its input, and the neuron, in step mode "m", normalises it in
    its own pass. A max pooling of images may be between the two if no other code than SpikingJelly's containers reads
    the sizes of its result; the network runs once more for each pooling to check this. If a module's forward joins the
    spikes s with a residual r, as s + r, s * r or (1 - s) * r, the neuron computes that too. Modules, parameters,
    buffers and state_dict do not change; spikes agree within rounding. Modules with hooks are not fused.
    `accelerate.restore` undoes the fusion; call it before one of these modules is removed from the network or replaced,
    as convert_sync_batchnorm does.

    Args:
        net: a network to which `accelerate` was applied.
        inputs: the arguments of a call; a small batch is enough.
        recompute: linear layers and convolutions before those normalisations keep their input, spikes as bits, and are
            recomputed in the backward pass: their results, which are the largest tensors, are not saved. On a CPU too
            spikes are then the same within rounding only.
        pieces: with `recompute`, the number of pieces of the batch in which chains of layers in a
            ``torch.nn.Sequential`` are computed: a convolution, its normalisation, the neuron and, if present, a max
            pooling. It applies to convolutions whose result has at least half as many elements as the largest one.
            Tensors between the layers of a chain are never allocated as a whole. In training such a convolution is
            computed four times per step instead of twice; results are the same within rounding.
        keep_states: False: in step mode "m" a call does not change the neurons' states, so that every sequence starts
            from the same states, as with `reset_net` between sequences, in less memory and time. States of each step
            (`store_v_seq`), and those that functional forwards return, are available as before. True: calls change the
            states, as in SpikingJelly; this is the initial setting. None: the setting of an earlier call.
        shortcuts: also fuse membrane shortcuts: if a module's forward adds a residual to the result of a normalisation,
            and a neuron reads the sum, as in MS-ResNet, the three run in one pass, at the time of the addition. The
            neuron's call returns the spikes if it receives this sum and nothing has changed since (its states,
            constants and modes, gradient mode); otherwise the neuron runs again. Do not use it with non-reentrant
            checkpoints (``torch.utils.checkpoint``) of parts of the network, nor with ``DataParallel``.

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
        raise ValueError(f"accelerate.layers: pieces must be a whole number of 1 or more, but is {pieces!r}")
    if pieces > 1 and not recompute:
        raise ValueError("accelerate.layers: pieces needs recompute=True")
    if not isinstance(shortcuts, bool):
        raise TypeError(f"accelerate.layers: shortcuts must be True or False, but is {shortcuts!r}")
    _library.load()
    names = {module: name for name, module in net.named_modules()}
    found, watch = _found(net, inputs, recompute)
    if keep_states is not None:
        for neuron in _neurons(net):
            neuron.__dict__["_spikeforge_keeps_states"] = keep_states
    stateless = tuple(names[neuron] for neuron in _neurons(net) if not neuron._keeps_states())
    keeping = tuple(name for module, name in names.items() if stateless and _keeps_its_own(module))
    sums = {rewrite.norm: rewrite for rewrite in found if rewrite.shortcut and shortcuts}
    found = [rewrite for rewrite in found if not rewrite.shortcut]
    for rewrite in found:
        _apply(rewrite)
    modes = lambda part: ("add",) if part in sums else RESIDUALS if norm_of(part) is not None else ()
    joined: list[tuple[nn.Module, nn.Module, str]] = []
    for module in list(names):
        for part, mode in residual.join(module, modes, ranks=watch.ranks.get(module, ()) if watch else ()):
            if part not in sums:
                joined.append((module, part, mode))
                continue
            rewrite = sums[part]
            _apply(rewrite)
            found.append(rewrite)
            joined.append((module, rewrite.neuron, "membrane"))
            sums = {norm: other for norm, other in sums.items() if other.neuron is not rewrite.neuron}
    recomputed = [rewrite for rewrite in found if rewrite.product is not None]
    if watch is not None:
        joining = {neuron for _, neuron, mode in joined if mode != "membrane"}
        for neuron, bits in watch.packing(recomputed, joining).items():
            neuron.__dict__["_spikeforge_packs"] = bits
    pools = [module for module in names if _is_known_pool(module)]
    for pool in pools:
        replacing.replace(pool, BytePool)
    chains = _put_in_pieces(net, pieces, recomputed, watch.given) if pieces > 1 and watch else []
    return Layers(
        tuple((names[rewrite.norm], names[rewrite.neuron]) for rewrite in found),
        tuple(names[pool] for pool in pools),
        tuple((names[rewrite.product], rewrite.bits) for rewrite in recomputed),
        tuple((names[module], names[neuron], mode) for module, neuron, mode in joined),
        tuple(names[chain[0]] for chain in chains),
        tuple((names[rewrite.pool], names[rewrite.neuron]) for rewrite in found if rewrite.pool is not None),
        stateless,
        keeping,
    )


def _apply(rewrite: Rewrite) -> None:
    """Moves the work of a normalisation, and of a pooling, into the neuron's pass."""
    replacing.replace(rewrite.norm, RunningAhead if rewrite.shortcut else HandingOn)
    before = (rewrite.norm,) if rewrite.pool is None else (rewrite.norm, rewrite.pool)
    for module in before:
        module.__dict__["_spikeforge_neuron"] = (rewrite.neuron,)  # in a tuple, so that it is not a submodule
    rewrite.neuron.__dict__["_spikeforge_shortcut" if rewrite.shortcut else "_spikeforge_norm"] = before
    if rewrite.product is not None:
        products.recompute(rewrite.product, rewrite.bits)
        rewrite.norm.__dict__["_spikeforge_recompute"] = True


def _put_in_pieces(
    net: nn.Module, pieces: int, recomputed: list[Rewrite], given: dict[nn.Module, int]
) -> list[tuple[nn.Module, ...]]:
    """Returns the layers that begin with the convolutions of the largest results, which now run in pieces."""
    after = {
        rewrite.product: (rewrite.norm, rewrite.neuron)
        for rewrite in recomputed
        if rewrite.pool is None and not isinstance(rewrite.product, nn.Linear)
    }
    chains = in_pieces.chains(net, after, lambda modules: any(isinstance(m, BytePool) for m in modules))
    most = max((given[rewrite.product] for rewrite in recomputed), default=0)
    chains = [chain for chain in chains if 2 * given[chain[0]] >= most]
    for product, *others in chains:
        product.__dict__["_spikeforge_chain"] = tuple(others), pieces
    return chains


# --- batch normalisation ---------------------------------------------------------------------------------------------


class HandingOn(ReplacedLayer):
    """A batch normalisation that returns its input, which the neuron normalises."""

    def forward(self, x: Tensor) -> Tensor:
        return x if norm_of(_neuron_of(self)) is self else super().forward(x)


class RunningAhead(ReplacedLayer):
    """A batch normalisation whose result is added to a residual, after which a neuron reads the sum. All three run in
    one pass, before the neuron is called."""

    def forward(self, x: Tensor, residual: tuple[str, Tensor] | None = None) -> Tensor:
        if residual is None:
            return super().forward(x)
        neuron = _neuron_of(self)
        is_pair = isinstance(neuron, Replaced) and neuron.__dict__.get("_spikeforge_shortcut") == (self,)
        total = neuron.run_ahead(self, x, residual[1]) if is_pair else None
        return super().forward(x) + residual[1] if total is None else total


def norm_of(neuron: Any) -> Any:
    """Returns the batch normalisation that runs in a neuron's pass, or None. Each refers to the other."""
    return _before(neuron)[0]


def pool_of(neuron: Any) -> Any:
    """Returns the pooling after that normalisation, which runs in the neuron's pass too, or None."""
    return _before(neuron)[1]


def _before(neuron: Any) -> tuple[Any, Any]:
    """Returns the normalisation and the pooling that run in a neuron's pass, if none of the modules has been
    restored."""
    before = getattr(neuron, "__dict__", {}).get("_spikeforge_norm")
    if before is None or not all(isinstance(module, Replaced) for module in (neuron, *before)):
        return None, None
    if any(_neuron_of(module) is not neuron for module in before):
        return None, None
    return before if len(before) == 2 else (*before, None)


def _neuron_of(module: nn.Module) -> Any:
    """Returns the neuron in whose pass a normalisation or a pooling runs, or None."""
    return module.__dict__.get("_spikeforge_neuron", (None,))[0]


def normalised(neuron: nn.Module, x: Tensor) -> Tensor:
    """Applies the normalisation and the pooling before a neuron, if it has them, to x `[T, B, C, ...]` by torch's
    code."""
    norm, pool = _before(neuron)
    if norm is None:
        return x
    plain = next(kind for kind in NORMS if isinstance(norm, kind))
    y = plain.forward(norm, x.flatten(0, 1)).unflatten(0, x.shape[:2])
    return y if pool is None else nn.MaxPool2d.forward(pool, y.flatten(0, 1)).unflatten(0, x.shape[:2])


def is_recomputed(norm: nn.Module) -> bool:
    """Returns True if the backward pass recomputes the input of the normalisation."""
    return norm.__dict__.get("_spikeforge_recompute", False)


def _found(net: nn.Module, inputs: tuple[Any, ...], recompute: bool) -> tuple[list[Rewrite], Watch | None]:
    """Returns the rewrites of neurons that have none yet, and the record of the call; None if there are none."""
    norms = {module for module in net.modules() if _is_of(module, NORMS) and not has_hooks(module)}
    neurons = {module for module in _neurons(net) if module.takes_norm and not has_hooks(module)}
    free = {module for module in neurons if norm_of(module) is None}
    pools = {module for module in net.modules() if _is_known_pool(module) and not has_hooks(module)}
    fires = lambda neuron: neuron.is_binary
    rewrites, watch = find_rewrites(net, inputs, norms, neurons if free else (), pools, recompute, fires)
    return [rewrite for rewrite in rewrites if rewrite.neuron in free], watch


def _neurons(net: nn.Module) -> list[nn.Module]:
    """Returns the neurons of SpikingJelly that `accelerate` has replaced."""
    return [module for module in net.modules() if hasattr(type(module), "takes_norm")]


def _keeps_its_own(module: nn.Module) -> bool:
    """Returns True for a neuron of SpikingJelly with states that has not been replaced."""
    is_theirs = replacing.ancestor(module, NEURONS) is not None and not isinstance(module, Replaced)
    return is_theirs and bool(getattr(module, "_memories", None))


def _is_of(module: nn.Module, kinds: tuple[type, ...]) -> bool:
    """Returns True if the module's class is torch's, or SpikingJelly's of the same name, and it is not replaced."""
    own = replacing.own_class(module)
    is_known = own in kinds or (own.__module__.startswith(LAYERS) and own.__mro__[1] in kinds)
    return is_known and not isinstance(module, Replaced)


# --- pooling ---------------------------------------------------------------------------------------------------------


class BytePool(ReplacedLayer):
    """A max pooling of images that keeps a byte for each maximum; its results are torch's."""

    def forward(self, x: Tensor) -> Tensor:
        dims = {"s": (3, 4), "m": (5,)}.get(getattr(self, "step_mode", "s"), ())
        if in_pieces.is_result_of_chain(self, x) or pool_of(_neuron_of(self)) is self:
            return x
        if x.dim() not in dims or not x.is_floating_point() or self.return_indices:
            return super().forward(x)
        return max_pooled(self, x)


def _is_known_pool(module: nn.Module) -> bool:
    return _is_of(module, (nn.MaxPool2d,)) and "forward" not in module.__dict__ and has_byte_places(module)
