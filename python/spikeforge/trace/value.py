"""A number or boolean of a neuron's equations while its function is traced."""

from __future__ import annotations

from typing import Any, Callable, NoReturn

import torch

from . import graph


class Value:
    """Stands for one element of a tensor: operators and torch's functions record what is to be computed.

    It behaves as a tensor does, element by element. It has no number yet: Python's `if`, `while`, `and`, `or`, `not`,
    `float()` and `item()` raise a TypeError that shows the line and says what to write instead.
    """

    __slots__ = ("_node", "_recording")
    __hash__ = object.__hash__

    def __init__(self, node: graph.Node, recording: graph.Recording):
        self._node = node
        self._recording = recording

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        from . import calls

        return calls.call_torch(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        from . import calls

        return calls.attribute(self, name)

    def __repr__(self) -> str:
        from .printer import expression

        return f"<{'boolean' if self._node.is_boolean else 'value'} {expression(self._node, self._recording.names)}>"

    def __bool__(self) -> NoReturn:
        _fail("the truth of a value is not known while its function is traced, so that Python's if, while, and, or, "
              "not, min, max and a < b < c cannot ask for it: write spikeforge.where(condition, a, b), torch.minimum, "
              "& | ~")

    def __float__(self) -> NoReturn:
        _fail("a value is no Python number while its function is traced: use torch's functions on it (torch.exp, not "
              "math.exp)")

    def __int__(self) -> NoReturn:
        _fail("a value is no Python number while its function is traced: use torch.trunc or torch.floor")

    def __index__(self) -> NoReturn:
        _fail("a value is no Python integer while its function is traced: a number that counts or indexes is a "
              "constant of the trace, neuron(constants={...})")

    def __complex__(self) -> NoReturn:
        _fail("a neuron's values are real: write real and imaginary parts as two values")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _fail("a value is no array while its function is traced: use torch's functions on it, not NumPy's")

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **_: Any) -> Value:
        """Operators, which a number of NumPy on their left hands on to here; no other function of NumPy."""
        from . import calls

        name = _OF_NUMPY.get(function.__name__)
        if name is None or method != "__call__":
            _fail(f"numpy.{function.__name__} knows no values of a trace: use torch's functions on them")
        return calls.call(name, inputs, {})

    def __getitem__(self, _: Any) -> NoReturn:
        _fail("a neuron sees one element of each argument: pass what is indexed as an input of its own, and write "
              "spikeforge.where(condition, a, b) in place of a[condition]")

    def __setitem__(self, condition: Any, value: Any) -> None:
        """x[condition] = value, as of a tensor."""
        from . import calls

        if not isinstance(condition, Value):
            _fail("a neuron sees one element of each argument: write x[condition] = value, or where(condition, value, "
                  "x)")
        self._node = calls.call("where", (condition, value, self), {})._node

    def __len__(self) -> NoReturn:
        _fail("a value is one element, and has no length")

    def __iter__(self) -> NoReturn:
        _fail("a value is one element, and cannot be iterated over")

    def __matmul__(self, _: Any) -> NoReturn:
        _fail("a neuron computes element by element: compute the product outside, and pass it as an input")

    __rmatmul__ = __matmul__


def _fail(message: str) -> NoReturn:
    from .make import fail

    fail(message)


def node_of(x: Any) -> graph.Node | None:
    return x._node if isinstance(x, Value) else None


def _operator(name: str) -> Callable:
    def method(self: Value, *others: Any) -> Value:
        from . import calls

        return calls.call(name, (self, *others), {})

    return method


def _reflected(name: str) -> Callable:
    def method(self: Value, other: Any) -> Value:
        from . import calls

        return calls.call(name, (other, self), {})

    return method


def _in_place(name: str) -> Callable:
    def method(self: Value, other: Any) -> Value:
        from . import calls

        self._node = calls.call(name, (self, other), {})._node
        return self

    return method


_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}
_OTHERS = {
    "neg": "neg", "pos": "positive", "abs": "abs", "invert": "bitwise_not", "round": "round", "floor": "floor",
    "ceil": "ceil", "trunc": "trunc", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne",
}
_OF_NUMPY = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "floor_divide": "floor_divide",
    "remainder": "remainder", "power": "pow", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "equal": "eq", "not_equal": "ne",
}
for _python, _torch in _BINARY.items():
    setattr(Value, f"__{_python}__", _operator(_torch))
    setattr(Value, f"__r{_python}__", _reflected(_torch))
    setattr(Value, f"__i{_python}__", _in_place(_torch))
for _python, _torch in _OTHERS.items():
    setattr(Value, f"__{_python}__", _operator(_torch))
Value.__hash__ = object.__hash__  # type: ignore[method-assign]

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
