"""Modules that only NIR graphs need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikeforge.nn import Neuron
from spikeforge.nn.stateful import State, StatefulModule


class NodeNeuron(Neuron):
    """A node that works element by element (LIF, Scale, Threshold, ...): its fields are the parameters of a neuron's
    text.

    Args:
        type: the node's type in NIR.
        text: the neuron text of a step.
        dt: seconds of a step.
        notes: options that differ from the defaults, such as ``{"reset": "zero"}``.
        fields: the node's fields by name.
    """

    def __init__(self, type: str, text: str, dt: float, notes: Mapping[str, Any], fields: Mapping[str, Any]):
        super().__init__(text, **fields)
        self.type, self.dt, self.notes = type, dt, dict(notes)

    def extra_repr(self) -> str:
        options = [f"{name}={value}" for name, value in self.notes.items()]
        return ", ".join([*self._described_constants(), f"dt={self.dt:g}", *options])


class Silence(StatefulModule):
    """Zeros ``[T, batch..., *shape]`` for an input ``[T, batch..., *input_shape]``: a node without predecessors.

    Args:
        input_rank: the number of dimensions of input_shape.
        shape: the shape of the output in a step.
    """

    def __init__(self, input_rank: int, shape: Sequence[int]):
        super().__init__()
        self.input_rank, self.shape = input_rank, tuple(shape)

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        x = inputs[0]
        return x.new_zeros((*x.shape[: x.dim() - self.input_rank], *self.shape)), {}

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (self(*inputs),)

    def extra_repr(self) -> str:
        return f"shape={list(self.shape)}"


class StackedLinear(nn.Module):
    """y = W x + b over the last dimension, for a weight ``[..., out, in]`` of more than two dimensions.

    x is ``[batch..., ..., in]``.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.matmul(self.weight, x.unsqueeze(-1)).squeeze(-1)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"weight={list(self.weight.shape)}"


class WindowPool(nn.Module):
    """Computes sums or means over windows of the last two dimensions, where torch's pooling raises an error: for images
    that do not have three dimensions, and for padding beyond half a window.
    """

    def __init__(self, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], sums: bool):
        super().__init__()
        self.kernel_size, self.stride, self.padding, self.sums = tuple(kernel_size), tuple(stride), tuple(padding), sums

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.padding
        padded = F.pad(x, (columns, columns, rows, rows))
        images = padded.reshape(-1, 1, *padded.shape[-2:])
        y = F.avg_pool2d(images, self.kernel_size, self.stride, divisor_override=1 if self.sums else None)
        return y.reshape(*x.shape[:-2], *y.shape[-2:])

    def extra_repr(self) -> str:
        what = "sums" if self.sums else "means"
        return f"{what}, kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
