"""A traced neuron's function in torch's operations, step by step under autograd: the reference for the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from spikeforge._numbers import state_type

from .record import split_returned
from .signature import Signature


class _NumbersOfType(TorchFunctionMode):
    """Uses the loop's dtype, not torch's, for scalars in torch.where(c, 0.1, 0.2) and c * 0.1, for booleans c."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        tensors = [x for x in args if isinstance(x, Tensor)]
        if tensors and all(x.dtype is torch.bool for x in tensors) and any(type(x) is float for x in args):
            if func is torch.where:
                device = tensors[0].device
                args = tuple(
                    x if isinstance(x, Tensor) else torch.tensor(x, dtype=self._dtype, device=device) for x in args
                )
            else:
                args = tuple(x.to(self._dtype) if isinstance(x, Tensor) else x for x in args)
        return func(*args, **(kwargs or {}))


def run_steps(
    signature: Signature, step: Callable, inputs: Sequence[Tensor], states: Sequence[Tensor],
    params: Mapping[str, Tensor], output_count: int, store_states: bool,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """Returns outputs [T, *shape], and the last states [*shape] or those of all steps, with the operator's dtypes."""
    x = inputs[0]
    dtype = state_type(x.dtype)
    states = [state.to(dtype) for state in states]
    outputs: list[list[Tensor]] = [[] for _ in range(output_count)]
    kept: list[list[Tensor]] = [[] for _ in states]
    with _NumbersOfType(dtype):
        for t in range(len(x)):
            # Copies with one element per neuron, which the function may change in place.
            arguments = [y[t].to(dtype, copy=True) for y in inputs] + [state.clone() for state in states]
            own = {name: param.to(x.device, dtype).expand(x.shape[1:]).clone() for name, param in params.items()}
            returned, following = split_returned(signature, step(*arguments, **own, **signature.constants))
            returned = returned if isinstance(returned, (tuple, list)) else (returned,)
            states = [_result(following[name], x, dtype) for name in signature.states]
            for rows, row in zip(outputs, returned):
                rows.append(_result(row, x, dtype).to(x.dtype))
            for rows, row in zip(kept, states):
                rows.append(row)
    empty = x.new_zeros(x.shape)
    sequences = [torch.stack(rows) if rows else empty.to(dtype) for rows in kept]
    return [torch.stack(rows) if rows else empty for rows in outputs], sequences if store_states else list(states)


def _result(value: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
    value = torch.as_tensor(value, dtype=dtype, device=x.device)
    return value if value.shape == x.shape[1:] else value.expand(x.shape[1:]).clone()
