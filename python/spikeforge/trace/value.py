"""The value that a traced function computes with."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from . import graph, printer
from .place import fail

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NO_NUMBER = "a value is not a Python number while its function is traced: "
_ONE_ELEMENT = "a neuron computes on one element of each argument: "


class Value:
    """Represents one element of a tensor: operators and torch's functions record the operation.

    It behaves as a tensor does, element by element; `calls.py` adds the operators and torch's functions. It has no
    numerical value: Python's `if`, `while`, `and`, `or`, `not`, `float()` and `item()` raise a TypeError that shows the
    line and the replacement.
    """

    __slots__ = ("_node", "_recording")

    def __init__(self, node: graph.Node, recording: graph.Recording):
        self._node = node
        self._recording = recording

    def __repr__(self) -> str:
        text = printer.expression(self._node, self._recording.names)
        return f"<{'boolean' if self._node.is_boolean else 'value'} {text}>"

    def __bool__(self) -> NoReturn:
        fail(
            "the truth of a value is not known while its function is traced, so Python's if, while, and, or, not, min, "
            "max and a < b < c cannot use it: write spikeforge.trace.where(condition, a, b), torch.minimum, & | ~"
        )

    def __float__(self) -> NoReturn:
        fail(f"{_NO_NUMBER}use torch's functions on it (torch.exp, not math.exp)")

    def __int__(self) -> NoReturn:
        fail(f"{_NO_NUMBER}use torch.trunc or torch.floor")

    def __index__(self) -> NoReturn:
        fail(
            "a value is not a Python integer while its function is traced: pass a number that counts or indexes as a "
            "constant of the trace, neuron(constants={...})"
        )

    def __complex__(self) -> NoReturn:
        fail("a neuron's values are real: write real and imaginary parts as two values")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        fail("a value is not an array while its function is traced: use torch's functions on it, not NumPy's")

    def __getitem__(self, _: Any) -> NoReturn:
        fail(
            f"{_ONE_ELEMENT}pass the indexed value as a separate input, and replace a[condition] by "
            "spikeforge.trace.where(condition, a, b)"
        )

    def __len__(self) -> NoReturn:
        fail("a value is one element, and has no length")

    def __iter__(self) -> NoReturn:
        fail("a value is one element, and cannot be iterated over")

    def __matmul__(self, _: Any) -> NoReturn:
        fail("a neuron computes element by element: compute the product outside, and pass it as an input")

    __rmatmul__ = __matmul__


def node_of(x: Any) -> graph.Node | None:
    return x._node if isinstance(x, Value) else None
