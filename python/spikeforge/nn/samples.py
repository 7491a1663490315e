"""Batches of sequences of different lengths, or with several samples in a row.

``net(x, lengths=lengths, start=start)`` sets both for all neurons at and below `net`; a ``PackedSequence`` and a nested
(jagged) tensor contain their lengths, and the result is of the same kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

NAMES = ("lengths", "start")
LONG = 2**40  # steps, more than any delay


def has_samples(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Returns True if the arguments of a call include lengths or starts of samples."""
    return "lengths" in kwargs or "start" in kwargs or len(args) > 0 and is_ragged(args[0])


def is_ragged(x: Any) -> bool:
    return isinstance(x, PackedSequence) or isinstance(x, Tensor) and x.is_nested


def reach(net: nn.Module, x: Any, kwargs: Mapping[str, Any]) -> bool:
    """Returns True if lengths and starts in the arguments of a call are for submodules, because the module's `forward`
    neither names them nor has ``**kwargs``."""
    if not any(name in kwargs for name in NAMES):
        return False
    parameters = inspect.signature(net.forward).parameters
    if any(name in NAMES or kind.kind is kind.VAR_KEYWORD for name, kind in parameters.items()):
        return False
    if is_ragged(x):
        refuse(net, True, f"the {_kind_of(x)} already has lengths; pass a padded tensor")
    return True


def call_with_samples(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``module(*args, **kwargs)``, during which the modules at and below it have `lengths` and `start`."""
    given = {name: kwargs.pop(name) for name in NAMES if kwargs.get(name, ...) is not ...}
    given = {name: value for name, value in given.items() if value is not None}
    if args and is_ragged(args[0]):
        return _call_ragged(module, args, kwargs, given)
    if not given:
        return module(*args, **kwargs)
    device = next((x.device for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
    given = {name: _tensor(module, name, value, device) for name, value in given.items()}
    modules = _modules_with_samples(module, given)
    before = [one._memory.samples for one in modules]
    try:
        for one in modules:
            one._memory.samples = given
        return module(*args, **kwargs)
    finally:
        for one, samples in zip(modules, before):
            one._memory.samples = samples


def _title(module: nn.Module) -> str:
    title = getattr(module, "_title", None)
    return type(module).__name__ if title is None else title()


def _tensor(module: nn.Module, name: str, value: Any, device: torch.device | None) -> Tensor:
    """Converts lengths or starts, a tensor or a list, to a tensor."""
    if isinstance(value, Tensor):
        return value
    kind, dtype, what = (int, torch.int64, "ints") if name == "lengths" else (bool, torch.bool, "rows of bools")
    rows = [value] if name == "lengths" else value
    if isinstance(value, (list, tuple)) and all(
        isinstance(row, (list, tuple)) and all(type(n) is kind for n in row) for row in rows
    ):
        try:
            return torch.tensor(value, dtype=dtype, device=device)
        except (ValueError, RuntimeError):  # rows that differ in length, or a number beyond int64
            pass
    raise TypeError(f"{_title(module)}: {name} must be a tensor, or a list of {what}, but is {value!r:.60}")


def _modules_with_samples(module: nn.Module, given: Mapping[str, Tensor]) -> list[Any]:
    # StatefulModules; stateful.py imports this file.
    modules: list[Any] = [one for one in module.modules() if hasattr(type(one), "takes_samples")]
    for one in modules:
        if one.state_names and not one.takes_samples:
            raise ValueError(f"{one._title()}: accepts neither lengths nor start")
        if "start" in given and not one.takes_start:
            raise ValueError(
                f"{one._title()}: accepts lengths, but not start, because earlier inputs would arrive after it; pass "
                "each part as a separate sample"
            )
    for one in module.modules():
        if isinstance(one, _BatchNorm) and (one.training or one.running_mean is None):
            refuse(module, True, "statistics of a batch norm would include values after the ends of sequences")
    return modules


def refuse(module: nn.Module, given: Any, why: str) -> None:
    if given:
        raise ValueError(f"{_title(module)}: accepts neither lengths nor start: {why}")


# --- sequences that contain their lengths


def _call_ragged(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: dict[str, Tensor]) -> Any:
    if "lengths" in given:
        raise ValueError(f"{module._title()}: the {_kind_of(args[0])} already has lengths; do not pass lengths")
    first = args[0]
    padded, lengths, back = _padded(module, first)
    inputs = [padded] + [_padded(module, x)[0] if is_ragged(x) else x for x in args[1:]]
    if kwargs.get("store_states"):
        raise ValueError(f"{module._title()}: store_states needs a padded sequence; pass one, and lengths=")
    result = module(*inputs, **kwargs, **given, lengths=lengths)
    hands_on = "state" in kwargs or len(args) > module.n_inputs
    outputs, after = result if hands_on else (result, None)
    outputs = tuple(back(y) for y in outputs) if isinstance(outputs, tuple) else back(outputs)
    return (outputs, after) if hands_on else outputs


def _kind_of(x: PackedSequence | Tensor) -> str:
    return "PackedSequence" if isinstance(x, PackedSequence) else "nested tensor"


def _padded(module: Any, x: PackedSequence | Tensor) -> tuple[Tensor, Tensor, Callable[[Tensor], Any]]:
    """Returns ``[T, B, ...]``, the lengths, and a function that converts a sequence back to the type of x."""
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x)
        order = x.sorted_indices

        def pack(y: Tensor) -> PackedSequence:
            y = y if order is None else y.index_select(1, order)
            by_length = lengths if order is None else lengths[order.cpu()]
            packed = pack_padded_sequence(y, by_length)
            return PackedSequence(packed.data, packed.batch_sizes, order, x.unsorted_indices)

        return padded, lengths.to(padded.device), pack
    if x.layout != torch.jagged or x._ragged_idx != 1:
        raise ValueError(
            f"{module._title()}: a nested tensor must be jagged, [B, T of each, ...]: torch.nested.nested_tensor(list, "
            "layout=torch.jagged)"
        )
    values, offsets = x.values(), x.offsets()
    lengths = offsets.diff()
    sample = torch.repeat_interleave(lengths)
    step = torch.arange(values.shape[0], device=values.device) - offsets[sample]
    padded = values.new_zeros((x._get_max_seqlen(), lengths.shape[0], *values.shape[1:])).index_put(
        (step, sample), values
    )

    def nest(y: Tensor) -> Tensor:
        return torch.nested.nested_tensor_from_jagged(y[step, sample], offsets)

    return padded, lengths, nest


# --- values in flight through a delay


def check_start(title: str, start: Tensor, x: Tensor) -> None:
    """Checks `start` for a delay of x ``[T, B, ...]`` in the same way as neurons do."""
    if start.dtype is not torch.bool:
        raise TypeError(f"{title}: start must be bool, but is {str(start.dtype).removeprefix('torch.')}")
    sizes = list(start.shape)
    if x.dim() < 2 or len(sizes) != 2 or sizes[0] != x.shape[0] or sizes[1] not in (1, x.shape[1]):
        raise ValueError(
            f"{title}: start must have shape {list(x.shape[:2])}, one for each step and sample, but has {sizes}"
        )


def restarted(start: Tensor, delay: int | Tensor) -> Tensor:
    """Marks steps at which a sample has restarted within the last `delay` steps, so that nothing arrives: ``[T, B]``,
    or for delays that broadcast against it."""
    steps = torch.arange(start.shape[0], device=start.device).view(-1, *[1] * (start.dim() - 1))
    latest = steps.where(start, -LONG).cummax(0).values
    return steps - latest < delay


def ended(title: str, lengths: Tensor, x: Tensor, *, least_dims: int = 2) -> Tensor:
    """Marks the steps of x ``[T, B, ...]`` that are after the last one of their sample: ``[T, B, 1, ...]``. The
    operators of neurons check `lengths` themselves."""
    if lengths.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{title}: lengths must be int32 or int64, but is {str(lengths.dtype).removeprefix('torch.')}")
    if x.dim() < least_dims or lengths.shape != x.shape[1:2]:
        raise ValueError(
            f"{title}: lengths must have shape {list(x.shape[1:2])}, one for each sample of x "
            f"[T, B{', *shape' * (least_dims > 2)}], but has {list(lengths.shape)}, for x of shape {list(x.shape)}"
        )
    wrong = ((lengths < 0) | (lengths > x.shape[0])).nonzero() if is_readable(lengths) else ()
    if len(wrong):
        sample = int(wrong[0])
        raise ValueError(
            f"{title}: lengths must be in [0, {x.shape[0]}], the steps of x, but one is {int(lengths[sample])}, of sample "
            f"{sample}"
        )
    return beside(torch.arange(x.shape[0], device=x.device).view(-1, 1) >= lengths.to(x.device), x)


def is_readable(t: Tensor) -> bool:
    """Returns True if values can be checked without synchronization, outside of torch.compile and torch.func."""
    is_transformed = torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None
    return t.device.type == "cpu" and not is_transformed


def later(line: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenates `line` and x ``[T, ...]``; returns the first T steps and the remaining ones, neither as a view."""
    steps = x.shape[0]
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():  # for any number of steps
        both = torch.cat((line, x))
        return both[:steps], both[steps:].clone()
    arrived = max(steps - line.shape[0], 0)
    return torch.cat((line[:steps], x[:arrived])), torch.cat((line[steps:], x[arrived:]))


def leaving(
    sent: Tensor,
    delay: int,
    before: Tensor | None,
    lengths: Tensor | None = None,
    start: Tensor | None = None,
    through: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns the values in flight after the last step of each sample: `through` applied to the last `delay` steps of
    `sent` ``[T, B, ...]``, or to those in flight `before`; zeros for values sent before the sample's last start."""
    steps, device = sent.shape[0], sent.device
    ends = torch.full((sent.shape[1],), steps, device=device) if lengths is None else lengths.long().clamp(0, steps)
    places = ends + torch.arange(-delay, 0, device=device).unsqueeze(1)  # steps, [delay, B]
    recent = torch.cat((sent, sent.new_zeros((1, *sent.shape[1:])))).take_along_dim(
        beside(places.where(places >= 0, steps), sent), 0
    )
    recent = recent if through is None else through(recent)
    before = torch.zeros_like(recent) if before is None else before
    earlier = before.take_along_dim(beside((places + delay).clamp(max=delay - 1), before), 0)
    recent = recent.where(beside(places >= 0, recent), earlier)
    if start is None or not steps:
        return recent
    present = start & (torch.arange(steps, device=device).unsqueeze(1) < ends)
    from_step = present.flip(0).cumsum(0).flip(0)  # starts from each step on
    from_step = torch.cat((from_step, torch.zeros_like(from_step[:1])))
    return recent.masked_fill(beside(from_step.gather(0, (places + 1).clamp(min=0)) > 0, recent), 0)


def beside(of_samples: Tensor, x: Tensor) -> Tensor:
    """Reshapes ``[n, B]`` to the number of dimensions of x."""
    return of_samples.reshape(*of_samples.shape, *[1] * (x.dim() - of_samples.dim()))
