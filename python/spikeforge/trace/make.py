"""Records operations of values and Python scalars, with torch's rules for booleans."""

from __future__ import annotations

import numbers
from typing import Any

import torch

from . import graph, place
from .place import fail
from .value import Value, node_of

_KINDS = {"where": "bnn", "logical_and": "bb", "logical_or": "bb", "logical_not": "b"}


def recording_for(what: str) -> graph.Recording:
    recording = graph.current()
    if recording is None:
        raise TypeError(
            f"{what}: a value of a traced neuron has no meaning after its function has returned ({place.here()})"
        )
    return recording


def operand(what: str, x: Any) -> graph.Node:
    """Returns the node of a value or a Python number."""
    recording = recording_for(what)
    if isinstance(x, Value):
        if x._recording is not recording:
            fail(f"{what}: a value of another trace cannot be used here: pass it as an input, a state or a parameter")
        return x._node
    if isinstance(x, bool):
        return recording.truth(x)
    if isinstance(x, numbers.Real):
        return recording.constant(float(x))
    if isinstance(x, torch.Tensor):
        fail(
            f"{what}: a tensor of shape {list(x.shape)} is used that is not an argument of the function: make it "
            f"{recording.parameter}, or write tensor.item() for one constant"
        )
    fail(f"{what}: accepts values and numbers, not {type(x).__name__}")


def number(what: str, x: Any) -> graph.Node:
    """Returns the node of a number; a boolean is 1 or 0, as in torch."""
    node = operand(what, x)
    if not node.is_boolean:
        return node
    recording = recording_for(what)
    if node.op == graph.TRUTH:
        return recording.constant(node.number)
    return recording.operation("where", (node, recording.constant(1.0), recording.constant(0.0)))


def boolean(what: str, x: Any) -> graph.Node:
    node = operand(what, x)
    if not node.is_boolean:
        fail(f"{what}: expected a boolean, got a number: write a comparison, such as x > 0")
    return node


def is_boolean(x: Any) -> bool:
    return isinstance(x, bool) or (isinstance(x, Value) and x._node.is_boolean)


def op(name: str, *operands: Any, surrogate: str = "", what: str = "") -> Any:
    """Records an operation of neuron text; returns its Value, whose operators `calls.py` adds."""
    what = what or name
    kinds = _KINDS.get(name, "n" * len(operands))
    nodes = tuple((boolean if kind == "b" else number)(what, x) for kind, x in zip(kinds, operands))
    recording = recording_for(what)
    recording.name_variables(place.user_frame(), node_of)
    node = recording.operation(name, nodes, surrogate)
    if not torch.is_grad_enabled() and not node.is_boolean:
        node = recording.operation("detach", (node,))
    return Value(node, recording)


def draw(law: str, *operands: Any, what: str = "") -> Value:
    """Records a draw of the law for each neuron and step."""
    what = what or law
    if graph.current() is None:
        raise TypeError(
            f"{what}: draws only in the function of a traced neuron; for tensors, use torch's functions "
            f"({place.here()})"
        )
    nodes = tuple(number(what, x) for x in operands)
    recording = recording_for(what)
    recording.name_variables(place.user_frame(), node_of)
    return Value(recording.draw(law, nodes), recording)


def once(x: Any) -> Value:
    """Records the draw x once for all steps."""
    node = operand("draw_once", x)
    if node.op not in graph.DRAWS:
        fail("draw_once: x must be a draw, such as bernoulli(0.5)")
    recording = recording_for("draw_once")
    return Value(recording.draw(node.op, node.operands, once=True), recording)


def constant(x: float) -> Value:
    recording = recording_for("a constant")
    return Value(recording.constant(float(x)), recording)
