"""Batch normalisation before a neuron and a residual after it, fused into the neuron's pass over memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, distributed, nn

from spikeforge._numbers import is_number, state_type
from spikeforge.nn import samples
from spikeforge.nn.containers import Container
from spikeforge.nn.errors import ERRORS, explained
from spikeforge.nn.neurons import PredefinedNeuron
from spikeforge.nn.own import Neuron
from spikeforge.nn.pooling import goes_before_norm, max_pooled, max_pooled_with_statistics
from spikeforge.nn.stateful import State, States, _join, _under
from spikeforge.nn.text import TextCell, predefined_cell

OPERATOR = torch.ops.spikeforge.batch_norm_run.default
BUILTIN = OPERATOR._op
TRACKED = torch.ops.spikeforge.batch_norm_run_tracked.default._op
records_kernels = torch.ops.spikeforge.records_kernels.default
is_compiling = torch.compiler.is_compiling
# The least and the largest number of dimensions of x, with time, for each kind of normalisation.
DIMS = {nn.BatchNorm1d: (3, 4), nn.BatchNorm2d: (5, 5), nn.BatchNorm3d: (6, 6), nn.SyncBatchNorm: (3, 64)}
CHANNELS = 2  # of [T, B, C, ...]
RESIDUALS = ("add", "and", "iand")  # which join spikes with a residual
Residual = tuple[str, Tensor] | None  # one of them or "membrane", and the residual


class BatchNormNeuron(Container):
    """A neuron with the batch normalisation before it: ``BatchNormNeuron(nn.BatchNorm2d(64), LIF())`` computes what
    ``LIF()(TimeDistributed(nn.BatchNorm2d(64))(x))`` computes, within rounding.

    The normalised tensor is never written, and is not saved for the backward pass, which saves only x. Predefined
    neurons on the CPU are an exception: they run after torch's normalisation, because their compiled loop is faster
    than the fused one. x is ``[T, B, C, ...]``. In training the statistics are those over T, B and all dimensions after
    C, and the running ones are updated as in torch; in evaluation, the running ones are used. ``nn.SyncBatchNorm`` uses
    the statistics of all processes.

    Args:
        norm: a BatchNorm1d, 2d, 3d or SyncBatchNorm, whose parameters and buffers stay where they are; or an
            ``nn.ModuleList`` of them, one for each step: batch normalisation through time (BNTT, Kim and Panda 2021),
            with statistics, scale and shift of each step. A sequence then begins at the first of them, and has at most
            one step for each.
        neuron: a predefined neuron, or a :class:`~spikeforge.nn.Neuron`, with one input.
        residual: for a second input r of x's shape, the output for spikes s: "add" s + r, "and" s r, "iand"
            (1 - s) r (SEW-ResNet's ADD, AND and IAND). "membrane": the neuron reads the sum of the normalised x and r,
            and the outputs are the spikes and this sum: the shortcut of MS-ResNet (Hu et al. 2024), whose sum is the
            residual of the next layer.
        scale: multiplies the normalised input before `norm.bias` is added: alpha times the threshold is
            threshold-dependent batch normalisation (tdBN, Zheng et al. 2021).
        bits: 1 for spikes, 4 for their sums up to 15: the neuron also writes its output with this number of bits per
            value, which ``torch.ops.spikeforge.linear`` and ``convolution`` save for the backward pass. (:func:`fuse`
            sets it.) 0: it does not.
        pool: a max pooling (``torch.nn.MaxPool2d``) of ``[T, B, C, H, W]`` between the two: the input of the neuron is
            ``pool(norm(x))``. The maxima (the minima where `norm.weight` is below 0) are selected before they are
            normalised, so that only the statistics are computed over the whole x. Not with `residual`.
        recompute: x is the result of ``torch.ops.spikeforge.linear`` or ``convolution`` with ``recompute=True``, which
            recompute it in the backward pass: it is not saved. (:func:`fuse` sets both.) The CPU then runs
            the fused operator too.

    States are the neuron's: ``{"neuron.v": ...}``. Hooks on `norm`, `pool` and `neuron` themselves do not run.
    """

    def __init__(
        self, norm: nn.Module, neuron: nn.Module, *, residual: str | None = None, scale: float = 1.0, bits: int = 0,
        pool: nn.MaxPool2d | None = None, recompute: bool = False,
    ):  # fmt: skip
        super().__init__()
        norms = list(norm) if isinstance(norm, nn.ModuleList) else [norm]
        if not norms:
            raise ValueError(
                "BatchNormNeuron: norm must have a normalisation for each step, but is an empty ModuleList"
            )
        for one in norms:
            if not _is_made_of(one, tuple(DIMS), ("forward",)):
                raise TypeError(
                    "BatchNormNeuron: norm must be a BatchNorm1d, 2d, 3d or SyncBatchNorm, with their forward, but is "
                    f"{type(one).__name__}"
                )
        if len({(type(one), one.num_features) for one in norms}) != 1:
            raise ValueError("BatchNormNeuron: the norms of all steps must have the same class and number of channels")
        if not _is_made_of(neuron, (PredefinedNeuron, Neuron), ("forward", "_advance")):
            raise TypeError(
                "BatchNormNeuron: neuron must be a neuron of spikeforge.nn, with its forward, but is "
                f"{type(neuron).__name__}"
            )
        if neuron.n_inputs != 1 or len(neuron.out_ports) != 1:
            raise TypeError(
                f"BatchNormNeuron: neuron must have one input and one output, but {type(neuron).__name__} has "
                f"{neuron.n_inputs} and {len(neuron.out_ports)}"
            )
        if neuron._draws:
            raise TypeError(
                f"BatchNormNeuron: neuron must not draw random numbers, but {neuron._kind()} does: put norm before it"
            )
        if residual is not None and residual not in (*RESIDUALS, "membrane"):
            raise ValueError(
                f"BatchNormNeuron: residual must be None, 'add', 'and', 'iand' or 'membrane', but is {residual!r}"
            )
        if not is_number(scale) or not math.isfinite(scale):
            raise ValueError(f"BatchNormNeuron: scale must be a finite number, but is {scale!r}")
        if bits not in (0, 1, 4) or isinstance(bits, bool):
            raise ValueError(f"BatchNormNeuron: bits must be 0, 1 or 4, but is {bits!r}")
        self._check_flag("recompute", recompute)
        if pool is not None:
            self._check_pool(pool, norms[0], residual)
        self.norm, self.neuron = norm, neuron
        if pool is not None:
            self.pool = pool
        self.residual, self.scale, self.bits, self.recompute = residual, float(scale), bits, recompute
        self._joins_any = False
        self._text: tuple[Any, TextCell] | None = None
        self._text_cell()
        self._name_parts(["neuron"])

    @staticmethod
    def _check_pool(pool: Any, norm: nn.Module, residual: str | None) -> None:
        if not goes_before_norm(pool):
            raise TypeError(
                "BatchNormNeuron: pool must be a MaxPool2d with torch's forward, without return_indices, of at most 256 "
                f"places, but is {pool!r}"
            )
        if not isinstance(norm, (nn.BatchNorm2d, nn.SyncBatchNorm)):
            raise TypeError(f"BatchNormNeuron: pool needs a normalisation of images, but norm is {type(norm).__name__}")
        if residual is not None:
            raise ValueError("BatchNormNeuron: pool and residual cannot be used together: put the pooling before norm")

    def _pool(self) -> nn.Module | None:
        return self._modules.get("pool")

    @property
    def n_inputs(self) -> int:
        return 1 if self.residual is None else 2

    @property
    def in_ports(self) -> tuple[str, ...]:
        return ("in",) if self.residual is None else ("in", "residual")

    @property
    def out_ports(self) -> tuple[str, ...]:
        return ("out", "sum") if self.residual == "membrane" else ("out",)

    def _forward(self, inputs: Sequence[Tensor], state: States | EllipsisType, store: bool, advance: Any = None) -> Any:
        if state is not ...:
            return self._advance(inputs, self._checked_state(state), store)
        neuron = self._modules["neuron"]
        wants_states = store or neuron._memory.keeping
        result = neuron._forward(inputs, ..., store, self._run if wants_states else self._run_for_outputs)
        if not store:
            return result
        outputs, states = result
        return outputs, {_join("neuron", name): value for name, value in states.items()}

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        outputs, after = self._run(inputs, _under("neuron", state), store)
        return outputs, {_join("neuron", name): value for name, value in after.items()}

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        pool = self._pool()
        x = inputs[0] if pool is None else max_pooled(pool, inputs[0])
        if self.residual == "membrane":
            return torch.zeros_like(x), inputs[1]
        return (joined(torch.zeros_like(x), (self.residual, inputs[1]) if self.residual else None),)

    def _text_cell(self) -> TextCell:
        """Returns the neuron as text; writes it again if its constants have changed."""
        neuron = self._modules["neuron"]
        if isinstance(neuron, Neuron):
            return neuron._quick.cell
        if not neuron.spiking:
            raise ValueError(f"{self._title()}: spiking=False needs the neuron's own operator; put norm before it")
        if self._text is None or self._text[0] is not neuron._quick:
            self._text = neuron._quick, neuron._cell or predefined_cell(neuron)
        return self._text[1]

    def _run_for_outputs(
        self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool
    ) -> tuple[Tensor, State]:
        """Runs the neuron without writing states."""
        return self._run(inputs, state, store, last_states=False)

    def _run(
        self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool, last_states: bool = True
    ) -> tuple[Tensor, State]:
        """Returns outputs, and states by the neuron's names: of all steps with `store`, else the last ones with
        `last_states`."""
        samples.refuse(self, self._memory.samples, "statistics would include values after the ends of sequences")
        modules = self._modules  # several times faster than attributes of a module
        neuron, norm, x = modules["neuron"], modules["norm"], inputs[0]
        residual = None
        try:
            if self.residual is not None:
                residual = self.residual, inputs[1]
                if self._joins_any and not fits(inputs[1], x):
                    spikes, after = self._normalised_run(norm, x, None, state, store, last_states)
                    return joined(spikes, residual), after
            self._check(x, residual)
            if isinstance(norm, nn.ModuleList):
                return self._each_step(x, residual, state, store)
            return self._normalised_run(norm, x, residual, state, store, last_states)
        except ERRORS as error:
            raise explained(neuron, error, (x,), state)

    def _normalised_run(
        self, norm: nn.Module, x: Tensor, residual: Residual, state: Mapping[str, Tensor], store: bool,
        last_states: bool,
    ) -> tuple[Tensor, State]:  # fmt: skip
        neuron, pool = self._modules["neuron"], self._pool()
        if self._is_better_apart(norm, x):
            with _restored_after_errors([norm]):
                return _run_apart(neuron, _normalised(norm, x, pool), residual, state, store)
        weight = self._weight(norm, x)
        x, *statistics = what_is_normalised(norm, pool, weight, x)

        def layer(*call):
            options = {"bits": self.bits, "store_states": store, "last_states": last_states}
            return normalised_run(call, norm, weight, *statistics, residual, **options)

        outputs, after = self._text_cell().call(neuron, (x,), state, store, layer)
        return outputs[0] if len(outputs) == 1 else tuple(outputs), dict(zip(neuron.state_names, after))

    def _each_step(
        self, x: Tensor, residual: Residual, state: Mapping[str, Tensor], store: bool
    ) -> tuple[Tensor, State]:
        """One normalisation for each step."""
        neuron, norms, steps = self.neuron, self.norm, x.shape[0]
        if steps > len(norms):
            raise ValueError(f"x has {steps} steps, but norm has {len(norms)}, one for each")
        if state:
            raise ValueError(
                "norm has statistics of each step from the first on: pass all steps in one call, without a state"
            )
        # One split, because the gradient of each slice would be as large as x.
        rows = x.split(1)
        if all(self._is_better_apart(norm, x) for norm in norms):
            with _restored_after_errors(norms):
                y = torch.cat([_normalised(norm, row, self._pool()) for norm, row in zip(norms, rows)])
                return _run_apart(neuron, y, residual, state, store)
        others = [None] * steps if residual is None else [(residual[0], row) for row in residual[1].split(1)]
        spikes, sequences, last = [], [], state
        for norm, row, other in zip(norms, rows, others):
            fired, last = self._normalised_run(norm, row, other, last, store=False, last_states=True)
            spikes.append(fired)
            sequences.append(last)
        outputs = tuple(map(torch.cat, zip(*spikes))) if self.residual == "membrane" else torch.cat(spikes)
        if not store:
            return outputs, last
        return outputs, {name: torch.stack([after[name] for after in sequences]) for name in last}

    def _is_better_apart(self, norm: nn.Module, x: Tensor) -> bool:
        if self.recompute or not is_better_apart(x) or self.scale != 1 or isinstance(norm, nn.SyncBatchNorm):
            return False
        if is_sharded(x):
            return False
        neuron = self._modules["neuron"]
        return isinstance(neuron, PredefinedNeuron) and neuron._cell is None

    def _check(self, x: Tensor, residual: Residual) -> None:
        norm = self._modules["norm"]
        norm = norm[0] if isinstance(norm, nn.ModuleList) else norm
        features, (fewest, most) = norm.num_features, dims_of(type(norm))
        if not fewest <= x.dim() <= most or x.shape[CHANNELS] != features:
            kind = type(norm).__name__
            raise ValueError(
                f"x must be [T, B, {features}, ...], with the {features} channels of {kind} in dimension {CHANNELS}"
                f"{f' and {fewest} dimensions' if fewest == most else ''}, but has shape {list(x.shape)}"
            )
        if self._pool() is not None and x.dim() != 5:
            raise ValueError(f"x must be [T, B, {features}, H, W] for the pooling, but has shape {list(x.shape)}")
        if residual is None:
            return
        other = residual[1]
        if not isinstance(other, Tensor):
            raise TypeError(f"residual must be a tensor of the shape of x, but is {type(other).__name__}")
        if other.shape != x.shape:
            raise ValueError(f"residual must have shape {list(x.shape)}, that of x, but has {list(other.shape)}")
        if other.dtype != x.dtype:
            raise TypeError(f"residual must be {x.dtype}, the type of x, but is {other.dtype}")

    def _weight(self, norm: nn.Module, x: Tensor) -> Tensor | None:
        weight = parameter(norm, "weight")
        if self.scale == 1:
            return weight
        if weight is None:
            return torch.full((norm.num_features,), self.scale, dtype=state_type(x.dtype), device=x.device)
        return weight * self.scale

    def extra_repr(self) -> str:
        parts = [f"residual={self.residual!r}"] if self.residual is not None else []
        parts += [f"scale={self.scale}"] if self.scale != 1 else []
        parts += [f"bits={self.bits}"] if self.bits else []
        return ", ".join(parts + (["recompute=True"] if self.recompute else []))


def _run_apart(
    neuron: Any, y: Tensor, residual: Residual, state: Mapping[str, Tensor], store: bool
) -> tuple[Any, State]:
    """Runs the neuron on the normalised y, and uses the residual by torch's operators."""
    if residual is None or residual[0] != "membrane":
        spikes, after = neuron._advance((y,), state, store)
        return joined(spikes, residual), after
    y = y + residual[1]
    spikes, after = neuron._advance((y,), state, store)
    return (spikes, y), after


def joined(spikes: Tensor, residual: Residual) -> Tensor:
    """Joins spikes with a residual by torch's operators."""
    if residual is None:
        return spikes
    mode, other = residual
    if mode == "add":
        return spikes + other
    return (spikes if mode == "and" else 1 - spikes) * other


def fits(residual: Any, x: Tensor) -> bool:
    """Returns True if the operator accepts this residual with x."""
    return isinstance(residual, Tensor) and residual.shape == x.shape and residual.dtype == x.dtype


def _normalised(norm: nn.Module, x: Tensor, pool: nn.Module | None) -> Tensor:
    y = norm(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    return y if pool is None else max_pooled(pool, y)


def what_is_normalised(
    norm: nn.Module, pool: nn.Module | None, weight: Tensor | None, x: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None, int | Tensor]:
    """Returns the tensor that the neuron normalises, and the statistics of the whole x as :func:`statistics_of` does.

    Without `pool` the tensor is x ``[T, B, C, ...]``; with it, the elements of x ``[T, B, C, H, W]`` that are the
    maxima after normalisation by `weight`, and mean and variance are never None unless x is empty.
    """
    mean, var, count = statistics_of(norm, x)
    if pool is None:
        return x, mean, var, count
    if mean is None and x.numel() > 0:
        return *max_pooled_with_statistics(pool, x, weight), count
    return max_pooled(pool, x, weight), mean, var, count


def normalised_run(
    call: Sequence[Any], norm: nn.Module, weight: Tensor | None, mean: Tensor | None, var: Tensor | None,
    count: int | Tensor, residual: Residual, **options: Any,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """Returns outputs and states of a neuron that normalises its input, and updates the running statistics.

    Args:
        call: the neuron's text, inputs, states and parameters.
        mean, var, count: the result of :func:`statistics_of`.
        options: further options of the operator.
    """
    x = call[1][0]
    mode, other = residual or ("add", None)
    bias = parameter(norm, "bias")
    tracked = running_of(norm, x) if mean is None and _is_called_alone(x) else None
    if tracked:
        options["momentum"] = norm.momentum
        return TRACKED(*call, *tracked, weight, bias, other, residual_mode=mode, eps=norm.eps, **options)
    outputs, states, *used = operator_for(x)(
        *call, weight, bias, mean, var, other, residual_mode=mode, eps=norm.eps, **options
    )
    update_running(norm, *used, count)
    return outputs, states


class _restored_after_errors:
    """Context that restores the running statistics after an error: a normalisation updates them before the neuron
    checks its arguments."""

    def __init__(self, norms: Iterable[nn.Module]):
        moved = [] if is_compiling() else [norm for norm in norms if norm.training and norm.track_running_stats]
        self.buffers = [b for norm in moved for b in norm._buffers.values() if b is not None]
        self.before = [buffer.clone() for buffer in self.buffers]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            for buffer, before in zip(self.buffers, self.before):
                buffer.copy_(before)


def is_eager(x: Tensor) -> bool:
    return (type(x) is Tensor or type(x) is nn.Parameter) and not is_compiling()


def _is_called_alone(x: Tensor) -> bool:
    """Returns True if no tracer or transform is active, which would have to record changes of buffers."""
    return is_eager(x) and not torch._C._are_functorch_transforms_active() and torch._C._get_tracing_state() is None


def operator_for(x: Tensor) -> Any:
    """Returns the operator for tracers, else its implementation, which saves a Python call."""
    return BUILTIN if is_eager(x) else OPERATOR


def is_better_apart(x: Tensor) -> bool:
    """Returns True if torch's normalisation and the predefined neuron are faster than the fused text. On the CPU the
    neuron is compiled, and text may be interpreted; but calls recorded on the CPU run on a GPU."""
    return x.device.type == "cpu" and (
        is_compiling() or torch._C._get_tracing_state() is not None or not records_kernels()
    )


def statistics_of(norm: nn.Module, x: Tensor) -> tuple[Tensor | None, Tensor | None, int | Tensor]:
    """Returns the mean and variance ``[C]`` by which `norm` normalises x ``[T, B, C, ...]``, and the number of elements
    that they cover. None: the operator computes them from x."""
    count = x.numel() // max(x.shape[CHANNELS], 1)
    if not norm.training and norm._buffers["running_mean"] is not None:
        # Copies: a step of training may change them before the backward pass.
        return norm.running_mean.clone(), norm.running_var.clone(), count
    if is_sharded(x):
        return *statistics_of_shards(x), count
    if _joins_processes(norm):
        return joined_statistics(x, norm.process_group)
    return None, None, count


def _joins_processes(norm: nn.Module) -> bool:
    if not (isinstance(norm, nn.SyncBatchNorm) and norm.training and distributed.is_initialized()):
        return False
    return distributed.get_world_size(norm.process_group) > 1


def parameter(norm: nn.Module, name: str) -> Tensor | None:
    """Reads a parameter without the cost of Module.__getattr__, except for a parametrized one."""
    own = norm._parameters
    return own[name] if name in own else getattr(norm, name)


def dims_of(kind: type) -> tuple[int, int]:
    """Returns the least and the largest number of dimensions of x, with time, for a norm of this class."""
    return DIMS.get(kind) or next(dims for base, dims in DIMS.items() if issubclass(kind, base))


def running_of(norm: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Returns the running statistics that the operator updates when it computes those of x; None if it cannot, or there
    are none."""
    if not norm.training or not norm.track_running_stats:
        return None
    buffers = norm._buffers
    if buffers["running_mean"].dtype not in (x.dtype, state_type(x.dtype)):
        return None
    return buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"]


def update_running(norm: nn.Module, mean: Tensor, var: Tensor, count: int | Tensor) -> None:
    """Updates the running statistics of a `norm` in training as torch does: with the unbiased variance."""
    if not norm.training or not norm.track_running_stats:
        return
    buffers = norm._buffers
    running, batches = [buffers["running_mean"], buffers["running_var"]], buffers["num_batches_tracked"]
    batches.add_(1)
    if isinstance(count, int) and count == 0:
        return
    factor = norm.momentum if norm.momentum is not None else 1.0 / batches
    found = [mean.detach(), var.detach() * (count / (count - 1))]
    if mean.dtype != running[0].dtype:
        found = [now.to(before.dtype) for now, before in zip(found, running)]
    if isinstance(factor, Tensor):
        for before, now in zip(running, found):
            before.lerp_(now, factor)
    else:
        torch._foreach_lerp_(running, found, factor)


def _is_made_of(module: nn.Module, kinds: tuple[type, ...], methods: Sequence[str]) -> bool:
    """Returns True if the module is of one of these kinds and overrides none of these methods."""
    return any(
        isinstance(module, kind) and all(getattr(type(module), name) is getattr(kind, name) for name in methods)
        for kind in kinds
    )


def _sum_of_processes(t: Tensor, group: Any) -> Tensor:
    from torch.distributed.nn.functional import all_reduce  # it has a gradient

    return all_reduce(t, group=group)


def is_sharded(x: Tensor) -> bool:
    """Returns True for a DTensor, the only tensor with placements."""
    return getattr(x, "placements", None) is not None


def statistics_of_shards(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns mean and biased variance ``[C]`` of a DTensor, differentiable; torch sums over its ranks."""
    y = x.to(state_type(x.dtype))
    others = [dim for dim in range(x.dim()) if dim != CHANNELS]
    count = max(x.numel() // max(x.shape[CHANNELS], 1), 1)
    mean = y.sum(others, keepdim=True) / count
    return mean.flatten(), ((y - mean) ** 2).sum(others) / count


def joined_statistics(x: Tensor, group: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns mean and biased variance ``[C]`` of x ``[T, B, C, ...]`` over all processes, differentiable, and the
    number of elements of a channel."""
    if x.numel() > 0:
        mean, var = torch.ops.spikeforge.channel_statistics(x, CHANNELS)
    else:  # an empty sum: its backward pass takes part in the gradient sums of the other processes
        mean = var = x.to(state_type(x.dtype)).sum([dim for dim in range(x.dim()) if dim != CHANNELS])
    count = mean.new_tensor([x.numel() // x.shape[CHANNELS]])
    sums = _sum_of_processes(torch.cat([mean * count, count]), group)
    total = sums[-1:].detach()
    joined = sums[:-1] / total
    return joined, _sum_of_processes(count * (var + (mean - joined) ** 2), group) / total, total
