"""Traces a function: calls it once with values, and returns the neuron text of its operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch

from . import autograd_functions, graph
from .graph import Node, Recording
from .make import operand
from .printer import print_neuron
from .signature import Signature
from .value import Value, node_of

Step = Callable[..., tuple[Any, Mapping[str, Any]]]


_WITHOUT_DERIVATIVE = (
    graph.BOOLEAN | graph.DRAWS | {"ceil", "detach", "floor", "round", "sign", "surrogate_gradient", "trunc"}
)
_DIFFERENTIABLE = {"where": slice(1, None), "add_gradient": slice(2)}  # the operands that a gradient reaches


class Recorded(NamedTuple):
    text: str
    outputs: tuple[str, ...]  # their variables' names, or out, out0, out1, ...
    passes_gradient: bool  # from an output to an input, or no output depends on an input


def record(signature: Signature, step: Step, function: Callable, initial: Mapping[str, float]) -> Recorded:
    """Traces step(inputs..., states..., **params), which returns outputs and next states.

    The code of `function` has the variable names.
    """
    recording = Recording(signature.name, _code(function))
    arguments = (*signature.inputs, *signature.states, *signature.params)
    values = {name: Value(recording.argument(name), recording) for name in arguments}
    graph.traces.stack.append(recording)
    try:
        with torch.enable_grad(), autograd_functions.traced():
            returned = step(
                *(values[name] for name in (*signature.inputs, *signature.states)),
                **{name: values[name] for name in signature.params},
                **signature.constants,
            )
        recording.name_last_variables(node_of)
        outputs, states = _results(signature, returned)
        text = print_neuron(recording, signature.inputs, initial, signature.params, outputs, states)
        inputs = {values[input]._node for input in signature.inputs}
        steps = {values[state]._node: node for state, node in states.items()}
        depends, passes = (
            not inputs.isdisjoint(_sources(outputs, steps, differentiable)) for differentiable in (False, True)
        )
        return Recorded(text, _output_names(recording, outputs), passes or not depends)
    finally:
        graph.traces.stack.pop()


def _sources(outputs: Sequence[Node], steps: Mapping[Node, Node], differentiable: bool) -> set[Node]:
    """Returns the nodes that the outputs depend on, over any number of steps.

    Args:
        steps: the next value of each state's argument.
        differentiable: return only the nodes that the gradient reaches.
    """
    found, pending = set(), list(outputs)
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        if node in steps:
            pending.append(steps[node])
        if not differentiable:
            pending += node.operands
        elif node.op not in _WITHOUT_DERIVATIVE and node.surrogate != "none":
            pending += node.operands[_DIFFERENTIABLE.get(node.op, slice(None))]
    return found


def _code(function: Any) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, torch.nn.Module):
        function = function.forward
    elif not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def _results(signature: Signature, returned: Any) -> tuple[list[Node], dict[str, Node]]:
    name = signature.name
    outputs, states = split_returned(signature, returned)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    nodes = [_result(name, f"output {i}", x) for i, x in enumerate(outputs)]
    if not nodes:
        raise TypeError(f"{name}: returns no output: return s, {{...}}")
    return nodes, {state: _result(name, f"state {state}", states[state]) for state in signature.states}


def split_returned(signature: Signature, returned: Any) -> tuple[Any, Mapping[str, Any]]:
    """Splits a result into outputs, and next states by name."""
    name = signature.name
    form = f"return outputs, {{{', '.join(f'{state!r}: ...' for state in signature.states)}}}"
    has_form = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)
    if not signature.states and not has_form:
        return returned, {}
    if not has_form:
        raise TypeError(
            f"{name}: the function must return its outputs and a dict of next states ({form}), but returns "
            f"{_shape(returned)}"
        )
    outputs, states = returned
    for state in signature.states:
        if state not in states:
            raise ValueError(f"{name}: the next value of state {state} is not returned: {form}")
    for state in states:
        if state not in signature.states:
            known = ", ".join(signature.states) or "none"
            raise ValueError(f"{name}: returns a next value of {state!r}, which is not a state; states are {known}")
    return outputs, states


def _shape(returned: Any) -> str:
    if isinstance(returned, tuple):
        return f"a tuple of {len(returned)}: {', '.join(type(x).__name__ for x in returned)}"
    return type(returned).__name__


def _result(name: str, what: str, x: Any) -> Node:
    if isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: {what} is a tensor that is not computed from the arguments: make it a parameter")
    if not isinstance(x, (Value, int, float)) or isinstance(x, bool):
        raise TypeError(f"{name}: {what} must be a value or a number, not {type(x).__name__}")
    node = operand(what, x)
    if node.is_boolean:
        raise TypeError(
            f"{name}: {what} is a boolean: write spikeforge.spike(h - threshold), which has a gradient, or "
            "where(condition, 1, 0), which has none"
        )
    return node


def _output_names(recording: Recording, outputs: Sequence[Node]) -> tuple[str, ...]:
    names: list[str] = []
    for i, node in enumerate(outputs):
        name = recording.names.get(node, "out" if len(outputs) == 1 else f"out{i}")
        names.append(name if name not in names else f"out{i}")
    return tuple(names)
