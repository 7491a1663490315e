"""Runs the parts of a container: modules with a time dimension, and layers of torch without one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import type_before_parametrizations as type_of

from spikeforge.nn.stateful import NO_STATE, State, StatefulModule, as_tuple, call, has_states

FOREIGN = ("spikingjelly.activation_based.neuron", "snntorch._neurons", "norse.torch.module")
ALIGNMENT = 64  # bytes, of new tensors on a CPU


def run_part(
    part: nn.Module,
    inputs: Sequence[Tensor],
    state: Mapping[str, Tensor] | None,
    *,
    store: bool = False,
    at_once: bool = False,
) -> tuple[tuple[Tensor, ...], State]:
    """Runs a part; returns its outputs over all steps, and its states.

    Args:
        state: None for the part's default: the initial states or those that it keeps; no states are returned then.
        store: return the states after each step.
        at_once: allow one call for all steps of a torch layer that treats each step alike.
    """
    if isinstance(part, StatefulModule):
        if state is None and not store:
            return as_tuple(part(*inputs)), {}
        outputs, after = (
            part(*inputs, state=state or None, store_states=True) if store else part(*inputs, state=state or None)
        )
        return as_tuple(outputs), after
    if not has_states(part):
        y = all_steps(part, inputs[0]) if at_once else None
        return (each_step(part, inputs[0]) if y is None else y,), {}
    if store:
        raise ValueError(
            f"store_states: {type(part).__name__} has neurons, but is not a module of spikeforge that returns their "
            "states"
        )
    if state is None:
        return as_tuple(part(*inputs)), {}
    outputs, after = call(part, inputs[0], state)
    return as_tuple(outputs), after


def foreign_neurons(layer: nn.Module) -> list[nn.Module]:
    """Returns the neurons of other libraries, whose states this package cannot read."""
    return [m for m in layer.modules() if any(base.__module__.startswith(FOREIGN) for base in type(m).__mro__)]


def check_called_once_a_step(title: str, part: nn.Module) -> None:
    """Raises an error if the neurons of another library in a part would treat the batch as time."""
    if has_states(part):
        return
    for neuron in foreign_neurons(part):
        if getattr(neuron, "step_mode", None) == "m":
            raise ValueError(
                f"{title}: {type(neuron).__name__} in step mode 'm' takes sequences, but is called once a step here; "
                "put it in a torch.nn.Sequential, or call set_step_mode(net, 's')"
            )


# Layers of torch that treat each step alike, and the dimensions of their images. 0: any number of dimensions; None: the
# layer accepts more dimensions before the batch.
ALIKE: dict[type[nn.Module], int | None] = {
    **dict.fromkeys(
        (nn.Linear, nn.Identity, nn.Dropout, nn.LayerNorm, nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid,
         nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid,
         nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold)
    ),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Flatten, nn.GroupNorm, nn.PReLU), 0),
    **{
        getattr(nn, f"{kind}{n}d"): n
        for kind in ("AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "Conv", "ConvTranspose", "MaxPool")
        for n in (1, 2, 3)
    },
}  # fmt: skip


def all_steps(layer: nn.Module, x: Tensor) -> Tensor | None:
    """Calls a torch layer that treats each step alike once for all steps of x; returns None for any other layer."""
    folds, dims = False, x.dim() - 1  # of a step
    free = dims  # dimensions over which no norm averages, including the batch
    for leaf in layer.modules() if type(layer) is nn.Sequential else (layer,):
        if type(leaf) is nn.Sequential:
            continue
        if dims < 1 or not _is_alike(leaf):
            return None
        images = ALIKE[type_of(leaf)]
        if images is not None:
            folds = True
            if dims != images + 2 if images else dims < 2:  # [B, C, ...]
                return None
        if isinstance(leaf, nn.LayerNorm):
            free = min(free, dims - len(leaf.normalized_shape))
        elif isinstance(leaf, nn.Flatten):
            dims -= max((leaf.end_dim if leaf.end_dim >= 0 else dims + leaf.end_dim) - leaf.start_dim, 0)
    if free < folds:  # a norm over the batch, or over time
        return None
    return folded(layer, x) if folds else layer(x)


def folded(layer: nn.Module, x: Tensor) -> Tensor:
    """Calls a layer of torch once with time folded into the batch."""
    return seen_as(tuple(x.shape[:2]), lambda: layer(x.flatten(0, 1)).unflatten(0, x.shape[:2]))


class _Seen(threading.local):
    time: tuple[int, ...] | None = None  # None: whole sequences; (): one step a call; (T, B): folded into the batch


SEEN = _Seen()  # the dimensions of time in the call of a layer in progress, for its hooks


def seen_as(time: tuple[int, ...], call: Callable[[], Tensor]) -> Tensor:
    if torch.compiler.is_compiling():
        return call()
    outer, SEEN.time = SEEN.time, time
    try:
        return call()
    finally:
        SEEN.time = outer


def unfolded(y: Tensor) -> Tensor:
    """Returns the output of the layer that is being called as a sequence ``[T, ...]``, with T = 1 if it is called once
    per step."""
    if SEEN.time is None:
        return y
    return y.unflatten(0, SEEN.time) if SEEN.time else y.unsqueeze(0)


def _is_alike(layer: nn.Module) -> bool:
    if type_of(layer) not in ALIKE or "forward" in layer.__dict__ or getattr(layer, "return_indices", False):
        return False
    if isinstance(layer, _BatchNorm):
        return not layer.training and layer.running_mean is not None
    return not isinstance(layer, nn.Flatten) or layer.start_dim > 0


def each_step(layer: nn.Module, x: Tensor) -> Tensor:
    """Calls a layer of torch once per step ``[*shape]``, so that steps, pieces and whole sequences have the same bits.

    The last bits of a layer's result for one row may depend on the number of rows, and on their address: BLAS and
    convolutions choose other code paths. :class:`TimeDistributed` calls it once for all steps.
    """
    if x.shape[0] == 0:
        raise ValueError(
            f"{type(layer).__name__}: a layer without states needs at least one step to determine the shape of its output"
        )
    return seen_as((), lambda: torch.stack([layer(_aligned(row)) for row in x.unbind(0)]))


def _aligned(row: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or row.device.type != "cpu":
        return row
    return row if row.storage_offset() * row.element_size() % ALIGNMENT == 0 else row.clone()


def part_at_rest(part: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns a part's outputs before the first step."""
    return part.at_rest(inputs) if isinstance(part, StatefulModule) else run_part(part, inputs, NO_STATE)[0]


def output_like(part: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns tensors with the shapes and types of a part's outputs for inputs ``[1, ...]``. Running statistics and
    random generators do not change. The forward hooks of the part run."""
    training = [module for module in part.modules() if module.training]
    devices = {tensor.device for tensor in (*inputs, *part.parameters(), *part.buffers()) if tensor.is_cuda}
    compiling = torch.compiler.is_compiling()
    try:
        for module in training:
            module.training = False
        with torch.no_grad(), nullcontext() if compiling else torch.random.fork_rng(sorted(devices, key=str)):
            return part_at_rest(part, inputs)
    finally:
        for module in training:
            module.training = True
