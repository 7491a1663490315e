"""Sharding rules of the operators for torch's DTensor.

Samples and neurons are independent, so x ``[T, B, C, ...]`` stays sharded over any dimension but time; other shardings
are redistributed first, as DTensor does for torch's operators. There is one rule, which reads the schema of the
operator: the name and the shape of a tensor give its alignment with the dimensions of the leading input."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._redistribute import redistribute_local_tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

# Multiples of this odd number are added to the seeds of shards, so that they differ in all bits.
GOLDEN = 0x9E3779B97F4A7C15


@dataclasses.dataclass(frozen=True)
class Family:
    """Operators with the same alignment of tensors.

    `shardable` returns the dimensions of the leading tensor that may be sharded, from its rank and the arguments;
    `roles` name the arguments and results that are not aligned with the last dimensions of the leading tensor;
    `differentiated` are the arguments that needs_grad has an entry for, in order, by default all up to `params`;
    `channel_dim` returns the dimension of channels."""

    shardable: Callable[[int, dict[str, Any]], Iterable[int]]
    leaders: tuple[str, ...] = ("inputs", "x", "arguments")
    roles: dict[str, str] = dataclasses.field(default_factory=dict)
    differentiated: tuple[str, ...] = ()
    channel_dim: Callable[[int, dict[str, Any]], int] | None = None  # by default _channel_dim


# Roles. A tensor of at most the rank of the leading one is aligned with its last dimensions, unless its role is
#   samples  [B], and steps [T, B]: aligned with the first dimensions of the leading one;
#   channels [C, ...]: aligned with the dimension of channels;
#   whole    replicated, such as a matrix;
#   seed     a number that differs between shards;
#   saved    saved by a recurrent layer: the inputs of its neurons, and checkpoints;
#   local    passed between two operators on the same rank, of any shape.
NEURON_ROLES = {"checkpoints": "local", "lengths": "samples", "start": "steps", "seed": "seed", "offset": "whole"}
OF_CHANNELS = dict.fromkeys(
    ("weight", "bias", "mean", "var", "rstd", "grad_mean", "grad_var", "numbers", "offset", "slope"), "channels"
)


def _all_but_time(rank: int, given: dict[str, Any]) -> range:
    return range(1, rank)


def _samples(rank: int, given: dict[str, Any]) -> range:
    return range(1, rank - 1)


def _all_but_images(rank: int, given: dict[str, Any]) -> range:
    return range(rank - 2)


def _channels(rank: int, given: dict[str, Any]) -> range:
    return range(_channel_dim(rank, given), _channel_dim(rank, given) + 1)


def _channel_dim(rank: int, given: dict[str, Any]) -> int:
    return given.get("channel_dim", 2) % max(rank, 1)


def _channels_of_images(rank: int, given: dict[str, Any]) -> range:
    return range(_channel_dim_of_images(rank, given), rank - 2)


def _channel_dim_of_images(rank: int, given: dict[str, Any]) -> int:
    return max(rank - 3, 0)


NEURON = Family(_all_but_time, roles=NEURON_ROLES)
RECURRENT = Family(_samples, roles=NEURON_ROLES | {"w": "whole", "saved": "saved"}, differentiated=("arguments",))
# Modules compute statistics over the samples of all ranks with torch's operators, and pass them in.
NORMALISED = Family(_channels, roles=NEURON_ROLES | OF_CHANNELS, differentiated=("inputs", "states", "params"))
POOLING = Family(_all_but_images, ("x", "grad"), OF_CHANNELS, channel_dim=_channel_dim_of_images)
# Statistics need whole channels.
POOLED_STATISTICS = dataclasses.replace(POOLING, shardable=_channels_of_images)
DELAYED = Family(
    _samples, ("x",), dict.fromkeys(("weight", "delay", "bias"), "whole"), ("x", "weight", "delay", "past")
)
STATISTICS = Family(_channels, roles=OF_CHANNELS)

FAMILIES = {
    "recurrent_run": RECURRENT, "batch_norm_run": NORMALISED, "channel_statistics": STATISTICS, "max_pool2d": POOLING,
    "max_pool2d_with_places": POOLING, "max_pool2d_statistics": POOLED_STATISTICS, "avg_pool2d": POOLING,
    "delayed_linear": DELAYED,
}  # fmt: skip


class Call:
    """A call of an operator with its tensors as shards of one mesh."""

    def __init__(self, family: Family, op: Any, args: Sequence[Any], kwargs: dict[str, Any]):
        self.family, self.op, self.args, self.kwargs = family, op, args, kwargs
        self.name = op._schema.name.rpartition("::")[2]
        self.given = dict(zip((a.name for a in op._schema.arguments), args)) | kwargs
        leader = self._leader()
        self.shape, self.rank, self.mesh = leader.shape, leader.dim(), leader.device_mesh
        self.order = _order_of(leader.shape, leader.stride())
        self.channel_dim = (family.channel_dim or _channel_dim)(self.rank, self.given)
        self.placements = self._common_placements(leader)

    def _leader(self) -> DTensor:
        tensors = [t for name in self.family.leaders for t in _listed(self.given.get(name))]
        if tensors and isinstance(tensors[0], DTensor):
            return tensors[0]
        raise self._mixed(next((name for name in self.family.leaders if name in self.given), "x"))

    def _mixed(self, name: str) -> TypeError:
        return TypeError(
            f"{self.name}: {name} is a plain tensor, but another argument is a DTensor; convert it by "
            "distribute_tensor or DTensor.from_local"
        )

    def _common_placements(self, leader: DTensor) -> list[Placement]:
        """Returns the placements of the leading tensor.

        On each dimension of the mesh, they follow the first argument with a legal sharding. Gradients are ignored:
        saved tensors have the placements of the forward pass."""
        allowed = set(self.family.shardable(self.rank, self.given))
        found: list[Placement] = [Replicate()] * self.mesh.ndim
        others = [(n, t) for n, value in self.given.items() if not n.startswith("grad") for t in _listed(value)]
        for name, t in [("", leader), *others]:
            if not isinstance(t, DTensor):
                continue
            if t.device_mesh != self.mesh:
                raise ValueError(f"{self.name}: {name} is on {t.device_mesh}, but x is on {self.mesh}")
            for i, placement in enumerate(t.placements):
                if not found[i].is_replicate() or not _is_plain_shard(placement):
                    continue
                dim = getattr(placement, "dim", None)
                sharded = [d for d in allowed if self._dim_of(name, t, d) == dim]
                found[i] = Shard(sharded[0]) if sharded else found[i]
        return found

    def _dim_of(self, name: str, t: Tensor, d: int) -> int | None:
        """Returns the dimension of t that is aligned with dimension d of the leading tensor, or None."""
        role = self.family.roles.get(name, "along")
        if role == "channels":
            return 0 if d == self.channel_dim else None
        if role == "samples" and t.dim() == 1:
            return 0 if d == 1 else None
        if role == "steps" and t.dim() == 2:
            return d if d < 2 else None
        if role in ("whole", "seed", "local"):
            return None
        dim = d - (self.rank - t.dim())
        return dim if dim >= 0 and t.shape[dim] == self.shape[d] else None

    def _placed(self, name: str, t: Tensor) -> list[Placement]:
        dims = [self._dim_of(name, t, p.dim) if isinstance(p, Shard) else None for p in self.placements]
        return [Replicate() if dim is None else Shard(dim) for dim in dims]

    # --- into shards

    def local(self, name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self.local(name, one) for one in value]
        if not isinstance(value, Tensor):
            return value
        role = self.family.roles.get(name)
        if isinstance(value, DTensor):
            value = _redistributed(value, self._placed(name, value))
        elif value.dim() > 0 and role != "local":
            raise self._mixed(name)
        return value + _int64(GOLDEN * self._shard_number()) if role == "seed" else value

    def _shard_number(self) -> int:
        """Returns the index of this rank's shard of the leading tensor."""
        number = 0
        for i, placement in enumerate(self.placements):
            if isinstance(placement, Shard):
                number = number * self.mesh.size(i) + self.mesh.get_local_rank(i)
        return number

    def check_shapes(self) -> None:
        """Checks the global shapes by a call on meta tensors, so that all ranks raise for the same calls."""
        if any(name.startswith("grad") for name in self.given):
            return  # checked in the forward pass
        with disable_proxy_modes_tracing():
            self.op(
                *map(_without_memory, self.args),
                **{name: _without_memory(value) for name, value in self.kwargs.items()},
            )

    def run(self) -> Any:
        self.check_shapes()
        names = [argument.name for argument in self.op._schema.arguments]
        args = [self.local(name, value) for name, value in zip(names, self.args)]
        results = self.op(*args, **{name: self.local(name, value) for name, value in self.kwargs.items()})
        if "needs_grad" in self.given:
            return [self._gradient(*of, local) for of, local in zip(self._with_gradients(), results)]
        returns = [result.name for result in self.op._schema.returns]
        if len(returns) == 1:
            return self.whole(returns[0], results)
        return tuple(self.whole(name, local) for name, local in zip(returns, results))

    # --- and back

    def whole(self, name: str, local: Any) -> Any:
        role = self.family.roles.get(name)
        if isinstance(local, (list, tuple)):
            if role == "saved":
                return [self.whole("", one) if i == 0 else one for i, one in enumerate(local)]
            return [self.whole(name, one) for one in local]
        if role == "local":
            return local
        shape = list(local.shape)
        placements: list[Placement] = [Replicate()] * self.mesh.ndim
        for i, placement in enumerate(self.placements):
            if not isinstance(placement, Shard):
                continue
            dim = self._dim_of_result(name, local, placement.dim)
            if dim is not None:
                placements[i], shape[dim] = Shard(dim), self.shape[placement.dim]
        hidden = self.rank - local.dim()
        order = [d - hidden for d in self.order if d >= hidden] if hidden >= 0 and role is None else None
        return _wrapped(local, self.mesh, placements, shape, order)

    def _dim_of_result(self, name: str, local: Tensor, d: int) -> int | None:
        if self.family.roles.get(name) == "channels":
            return 0 if d == self.channel_dim else None
        dim = d - (self.rank - local.dim())
        return dim if dim >= 0 else None

    def _with_gradients(self) -> list[tuple[str, Tensor]]:
        """Returns the arguments whose gradients the call returns."""
        names = self.family.differentiated or self._before_params()
        every = [(name, t) for name in names for t in _listed(self.given.get(name), keep_none=True)]
        return [of for of, wanted in zip(every, self.given["needs_grad"]) if wanted]

    def _before_params(self) -> list[str]:
        names = [argument.name for argument in self.op._schema.arguments if not argument.name.startswith("grad")]
        given = {name: self.given.get(name) for name in names if name not in self.family.roles and name != "params"}
        tensors = ("x", "inputs", "states")
        return [n for n, v in given.items() if n in tensors or v is None or isinstance(v, Tensor)] + ["params"]

    def _gradient(self, name: str, of: Tensor, local: Tensor) -> DTensor:
        """Wraps a gradient; for an argument that is replicated over shards, each shard has a partial sum."""
        placements, shape = self._placed(name, of), of.shape
        if local.dim() != of.dim():  # weight and bias of a normalisation, among its scalars
            shape = of.shape[:1]
        for i, placement in enumerate(self.placements):
            if isinstance(placement, Shard) and placements[i].is_replicate():
                placements[i] = Partial()
        order = _order_of(of.shape, of.stride()) if len(shape) == of.dim() else None
        return _wrapped(local, self.mesh, placements, shape, order)


def _int64(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _listed(value: Any, keep_none: bool = False) -> list[Any]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [t for t in values if isinstance(t, Tensor) or keep_none]


def _without_memory(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_without_memory(one) for one in value]
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _is_plain_shard(placement: Placement) -> bool:
    return type(placement) is Shard


# DTensor's methods are autograd functions; these rules run below autograd.
def _redistributed(t: DTensor, placements: Sequence[Placement]) -> Tensor:
    if tuple(placements) == t.placements:
        return t._local_tensor
    target = DTensorSpec(t.device_mesh, tuple(placements), tensor_meta=t._spec.tensor_meta)
    return redistribute_local_tensor(t._local_tensor, t._spec, target)


def _of_shards(
    local: Tensor, mesh: Any, placements: Sequence[Placement], shape: Sequence[int], stride: Sequence[int]
) -> DTensor:
    meta = TensorMeta(torch.Size(shape), tuple(stride), local.dtype)
    return DTensor(local, DTensorSpec(mesh, tuple(placements), tensor_meta=meta), requires_grad=False)


def _wrapped(
    local: Tensor, mesh: Any, placements: Sequence[Placement], shape: Sequence[int], order: Sequence[int] | None = None
) -> DTensor:
    """Wraps a shard. `order` lists dimensions from slowest to fastest; an empty shard's strides do not define it."""
    strides = _dense(shape, range(len(shape)) if order is None else order)
    return _of_shards(local, mesh, placements, shape, strides)


def _dense(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    strides, stride = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim], stride = stride, stride * max(shape[dim], 1)
    return strides


def _order_of(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Returns the dimensions from slowest to fastest; their natural order if memory is not dense."""
    order = sorted(range(len(shape)), key=lambda d: -strides[d])
    is_dense = all(own == given or shape[d] == 1 for d, (own, given) in enumerate(zip(_dense(shape, order), strides)))
    return order if is_dense else list(range(len(shape)))


# --- spikes as bits, packed per shard


def _pack(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[DTensor, Tensor]:
    x, mesh = args[0], args[0].device_mesh
    placements = [p if _is_plain_shard(p) else Replicate() for p in x.placements]
    packed, valid = op(_redistributed(x, placements), *args[1:], **kwargs)
    sharded = next((p.dim for p in placements if isinstance(p, Shard)), 0)
    bits = packed.view([packed.numel() if d == sharded else 1 for d in range(max(x.dim(), 1))])
    return _of_shards(bits, mesh, placements, bits.shape, bits.stride()), valid


def _unpack(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> DTensor:
    packed, valid, shape, strides, *rest = args
    mesh, placements = packed.device_mesh, packed.placements
    size = list(shape)
    for i, placement in enumerate(placements):
        if isinstance(placement, Shard):
            first, last = own_range(size[placement.dim], mesh.size(i), mesh.get_local_rank(i))
            size[placement.dim] = last - first
    own = _dense(size, _order_of(shape, strides))
    local = op(packed._local_tensor.flatten(), valid, size, own, *rest, **kwargs)
    return _of_shards(local, mesh, placements, shape, strides)


def own_range(count: int, ranks: int, rank: int) -> tuple[int, int]:
    """Returns begin and end of a rank's part of `count`, as torch.chunk splits it."""
    each = -(-count // ranks)
    return min(count, rank * each), min(count, (rank + 1) * each)


def _rows_product(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> DTensor:
    """Multiplies a^T b. If rows are sharded, each rank computes a part of the sum; if columns are, columns."""
    a, b = args
    mesh = a.device_mesh
    into_a: list[Placement] = []
    into_b: list[Placement] = []
    result: list[Placement] = []
    placed: tuple[Placement, Placement, Placement]
    for of_a, of_b in zip(a.placements, b.placements):
        rows = [p for p in (of_a, of_b) if _is_plain_shard(p) and p.dim < a.dim() - 1]
        if rows:
            placed = rows[0], rows[0], Partial()
        elif _is_plain_shard(of_a):
            placed = of_a, Replicate(), Shard(0)
        elif _is_plain_shard(of_b):
            placed = Replicate(), of_b, Shard(1)
        else:
            placed = Replicate(), Replicate(), Replicate()
        for placements, placement in zip((into_a, into_b, result), placed):
            placements.append(placement)
    local = op(_redistributed(a, into_a), _redistributed(b, into_b))
    return _wrapped(local, mesh, result, (a.shape[-1], b.shape[-1]))


# --- registration


def _rule(run: Callable[[Any, Any, Any], Any], cls: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():  # rules run below autograd
        return run(op, args, kwargs or {})


def _run(family: Family, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return Call(family, op, args, kwargs).run()


def _register() -> None:
    """Registers the rules with torch; the operators of neurons are found by their schemas."""
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("spikeforge::")]
    saving = [s.name for s in schemas if any(result.name == "checkpoints" for result in s.returns)]
    neurons = {n.removeprefix("spikeforge::").removesuffix("_forward") for n in saving if n.endswith("_forward")}
    families = dict.fromkeys(neurons, NEURON) | FAMILIES
    rules: dict[str, Callable[[Any, Any, Any], Any]] = {
        f"{name}{part}": partial(_run, f) for name, f in families.items() for part in ("", "_forward", "_backward")
    }
    rules |= {"pack_spikes": _pack, "unpack_spikes": _unpack, "rows_product": _rows_product}
    for schema in schemas:
        run = rules.get(schema.name.removeprefix("spikeforge::"))
        if run is not None:
            name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
            torch.library.register_torch_dispatch(name, DTensor, partial(_rule, run))


_register()
