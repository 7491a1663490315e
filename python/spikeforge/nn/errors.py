"""Converts an operator's errors to errors of the module that name the remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spikeforge._numbers import FLOATS, state_type
from spikeforge.nn.stateful import shape_of

if TYPE_CHECKING:
    from spikeforge.nn.constant import ConstantsModule

ERRORS = (TypeError, ValueError, RuntimeError, AttributeError)  # also those of arguments that are not tensors


def explained(
    module: ConstantsModule, error: Exception, inputs: Sequence[Tensor], state: Mapping[str, Tensor]
) -> Exception:
    """Returns the error to raise instead of the operator's: one line that names module, argument and remedy."""
    if isinstance(error, torch.OutOfMemoryError):
        return error
    found = _of_inputs(inputs) or _of_state(module, inputs[0], state) or _of_constants(module, inputs[0])
    if isinstance(error, NotImplementedError) and all(isinstance(x, Tensor) for x in inputs):
        return error
    if found:
        kind, message = found
    elif isinstance(error, (TypeError, ValueError)):
        kind, message = type(error), first_line(error)
    else:
        return error
    raised = kind(f"{module._title()}: {message}")
    raised.__cause__ = error
    return raised


def first_line(error: Exception) -> str:
    """Returns an operator's message without the operator's name."""
    return re.sub(r"^\w+(\(\w+\))?: ", "", str(error).split("\n")[0])


def _of_inputs(inputs: Sequence[Tensor]) -> tuple[type[Exception], str] | None:
    for x in inputs:
        if not isinstance(x, Tensor):
            return TypeError, f"x must be a tensor [T, *shape], time first, but is {type(x).__name__}"
        if x.dtype not in FLOATS:
            return TypeError, f"x must be float16, bfloat16, float32 or float64, but is {_type(x)}; pass x.float()"
        if x.dim() == 0:
            return (
                ValueError,
                "x must be [T, *shape], time first, but is 0-dimensional; step(x) takes a single step [*shape]",
            )
        if x.shape != inputs[0].shape:
            return (
                ValueError,
                f"all inputs must have the same shape, but they are {' and '.join(shape_of(x) for x in inputs)}",
            )
    return None


def _of_state(module: ConstantsModule, x: Tensor, state: Mapping[str, Tensor]) -> tuple[type[Exception], str] | None:
    kept = module._memory.keeping and state is module._memory.states
    mend = "call spikeforge.nn.reset_(net) to restart" if kept else "pass None to restart"
    of = "the kept state" if kept else "the state"
    for name, value in state.items():
        if value.device != x.device:
            move = "net.to(x.device) moves kept states, " if kept else f"pass {name}.to(x.device), "
            return ValueError, f"{of} {name} is on {value.device}, but x is on {x.device}; {move}or {mend}"
        if value.shape != x.shape[1:]:
            return ValueError, (
                f"{of} {name} has shape {shape_of(value)}, but a step of x {shape_of(x)} has {_step(x)}; "
                f"{mend}, or check that x is [T, *shape], time first"
            )
        if value.dtype != state_type(x.dtype):
            return TypeError, (
                f"{of} {name} is {_type(value)}, but for x of {_type(x)} states are {_type(state_type(x.dtype))}; "
                f"{mend}"
            )
    return None


def _of_constants(module: ConstantsModule, x: Tensor) -> tuple[type[Exception], str] | None:
    for name, placement in module._placements.items():
        value = getattr(module, name)
        taken = placement.take(value, x.dim())
        if value.device != x.device and value.dim() > 0:
            return ValueError, f"{name} is on {value.device}, but x is on {x.device}; move the module: net.to(x.device)"
        if value.dtype not in FLOATS:
            return TypeError, f"{name} must be floating point, but is {_type(value)}; pass {name}.float()"
        if torch.finfo(value.dtype).bits > torch.finfo(state_type(x.dtype)).bits:
            return TypeError, (
                f"{name} is {_type(value)}, but x is {_type(x)}; use one type for both: net.to(torch.{_type(x)}), or "
                f"x.to(torch.{_type(value)})"
            )
        if not broadcasts(taken.shape, x.shape[1:]):
            return ValueError, f"{name} {_misfit(value, taken, placement.dim, x)}"
    return None


def _misfit(value: Tensor, taken: Tensor, dim: int | None, x: Tensor) -> str:
    if value.dim() != 1 or dim is None:
        return (
            f"has shape {shape_of(value)}, which does not broadcast against {_step(x)}, a step of x {shape_of(x)}"
            f"{_time_last(value.shape[-1], x)}"
        )
    n = value.numel()
    channels = dim if 0 < dim < x.dim() else x.dim() - 1
    others = [i for i in range(1, x.dim()) if i != channels and x.shape[i] == n]
    mend = f"; if they belong to dimension {others[0]}, pass Constant(..., dim={others[0]})" if others else ""
    return (
        f"has {n} values, one per channel, but x {shape_of(x)} has {x.shape[channels]} channels (dimension {channels}, "
        f"where x is [T, B, C, ...]){mend}{_time_last(n, x)}"
    )


def _time_last(n: int, x: Tensor) -> str:
    if x.shape[0] == n or (x.dim() > 2 and x.shape[1] == n):
        return "; x is time first: if its last dimension is time, pass x.movedim(-1, 0)"
    return ""


def broadcasts(shape: Sequence[int], against: Sequence[int]) -> bool:
    pairs = zip(reversed(shape), reversed(against))
    return len(shape) <= len(against) and all(n == m or n == 1 for n, m in pairs)


def _step(x: Tensor) -> str:
    return "[" + ", ".join(str(int(n)) for n in x.shape[1:]) + "]"


def _type(value: Tensor | torch.dtype) -> str:
    return str(value.dtype if isinstance(value, Tensor) else value).removeprefix("torch.")
