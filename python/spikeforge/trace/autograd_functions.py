"""Traces torch.autograd.Function.apply: `forward` for the value, and `backward` for the gradient."""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch

from . import graph
from .functions import TABLE
from .graph import Node, Recording
from .make import op, operand, recording_for
from .place import fail
from .primitives import custom_gradient, spike
from .surrogates import of_spikingjelly_function
from .value import Value

_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_under_way = 0
_apply_of_torch: Any = None


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Context in which Function.apply also accepts values. Calls with tensors, in any thread, run torch's apply."""
    global _under_way, _apply_of_torch
    with _lock:
        if _under_way == 0:
            _apply_of_torch = torch.autograd.Function.__dict__["apply"]
            torch.autograd.Function.apply = classmethod(_apply)  # type: ignore[assignment]
        _under_way += 1
    try:
        yield
    finally:
        with _lock:
            _under_way -= 1
            if _under_way == 0:
                setattr(torch.autograd.Function, "apply", _apply_of_torch)  # noqa: B010 (a method to mypy)


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(x, Value) for x in (*args, *kwargs.values())):
        return _trace(cls, args, kwargs)
    return _apply_of_torch.__get__(None, cls)(*args, **kwargs)


class _Context:
    """The argument ctx of forward and backward."""

    def __init__(self, args: tuple):
        self.saved_tensors: tuple = ()
        self.needs_input_grad = tuple(isinstance(x, Value) for x in args)

    def save_for_backward(self, *values: Any) -> None:
        self.saved_tensors = tuple(TABLE["clone"](x) if isinstance(x, Value) else x for x in values)

    def _ignore(self, *_: Any) -> None: ...

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = _ignore


def _trace(cls: Any, args: tuple, kwargs: dict) -> Value:
    known = None if kwargs else of_spikingjelly_function(cls, args[1:])
    if known is not None:
        return spike(args[0], known)
    name = cls.__name__
    sets_up = cls.setup_context is not torch.autograd.Function.setup_context
    if sets_up or kwargs:
        bound = inspect.signature(cls.forward).bind(*(() if sets_up else (None,)), *args, **kwargs)
        bound.apply_defaults()
        args = bound.args if sets_up else bound.args[1:]
    context = _Context(args)
    result = cls.forward(*args) if sets_up else cls.forward(context, *args)
    if sets_up:
        cls.setup_context(context, args, result)
    if not isinstance(result, Value):
        fail(f"{name}.apply: forward must return one value, but returns {type(result).__name__}")
    return _with_gradient(cls, context, args, result)


def _with_gradient(cls: Any, context: _Context, args: tuple, result: Value) -> Value:
    recording = recording_for(cls.__name__)
    upstream = Value(Node(graph.ARGUMENT, name="grad_output"), recording)
    before = len(recording.nodes)
    gradients = cls.backward(context, upstream)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    pairs: list[Any] = []
    for arg, gradient in zip(args, gradients):
        if not isinstance(arg, Value) or gradient is None:
            continue
        factor = _factor(recording, operand(cls.__name__, gradient), upstream._node, set(recording.nodes[before:]))
        if factor is None:
            fail(
                f"{cls.__name__}.backward: returns a gradient that is not a multiple of its grad_output: write "
                "spikeforge.trace.custom_gradient(f, x, d)"
            )
        pairs += [arg, Value(factor, recording)]
    if not pairs:
        return op("detach", result)
    return custom_gradient(result, *pairs)


def _factor(recording: Recording, node: Node, upstream: Node, younger: set[Node]) -> Node | None:
    """Returns c if the node is c * upstream, else None. Only younger nodes depend on upstream."""
    known: dict[Node, bool] = {}
    zero, one = recording.constant(0.0), recording.constant(1.0)

    def depends(n: Node) -> bool:
        if n not in known:
            known[n] = n is upstream or (n in younger and any(depends(x) for x in n.operands))
        return known[n]

    def times(a: Node, b: Node) -> Node:
        return b if a is one else a if b is one else recording.operation("multiply", (a, b))

    def factor(n: Node) -> Node | None:
        if n is upstream:
            return one
        if not depends(n):
            return zero if n.op == graph.CONSTANT and n.number == 0 else None
        if n.op == "neg":
            inner = factor(n.operands[0])
            return inner and recording.operation("neg", (inner,))
        if n.op == "multiply":
            a, b = n.operands
            if depends(a) and depends(b):
                return None
            inner = factor(a if depends(a) else b)
            return inner and (times(inner, b) if depends(a) else times(a, inner))
        if n.op == "divide" and not depends(n.operands[1]):
            inner = factor(n.operands[0])
            return inner and recording.operation("divide", (inner, n.operands[1]))
        if n.op in ("add", "subtract"):
            return both(n, n.operands)
        if n.op in ("where", "select") and not depends(n.operands[0]):
            return both(n, n.operands[1:], n.operands[:1])
        return None

    def both(n: Node, operands: tuple[Node, ...], condition: tuple[Node, ...] = ()) -> Node | None:
        left, right = map(factor, operands)
        return recording.operation(n.op, (*condition, left, right)) if left and right else None

    return factor(node)
