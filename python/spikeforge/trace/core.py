"""Neurons from functions written for SpikingJelly's FlexSN."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import signature
from .initial import Initial, read_rule
from .neuron import TracedNeuron
from .signature import Signature


def from_core(
    core: Callable, num_states: int, num_inputs: int | None = None, num_outputs: int | None = None, *,
    static_inputs: Sequence[Tensor] = (), init_states: Sequence[Any] | None = None, name: str | None = None,
) -> TracedNeuron:  # fmt: skip
    """Traces an unchanged function of SpikingJelly's FlexSN.

    `core(x1, ..., v1, ..., p1, ...) -> (s1, ..., v1', ...)` takes the inputs, states and static inputs of one step, and
    returns outputs and then next states; it uses torch's operations and SpikingJelly's surrogates.

    Args:
        core: the function. It is called once.
        num_states: the number of states among its arguments (after the inputs) and its results (the last ones).
        num_inputs: the number of inputs; by default all arguments that are neither states nor static inputs.
        num_outputs: the expected number of outputs, checked if given.
        static_inputs: tensors for its last arguments, which become parameters with these defaults.
        init_states: the initial value of each state: a number, a parameter's name or a function of parameters. By
            default 0.
        name: the name of the neuron in its text; by default the function's.

    Raises:
        TypeError, ValueError: as in `neuron`.
    """
    own_name = signature.name_of(core, name)
    names = _argument_names(core, own_name, num_states, num_inputs, len(static_inputs))
    count = len(names) - num_states - len(static_inputs)
    params = tuple(names[count + num_states :])
    states = tuple(names[count : count + num_states])
    read = Signature(own_name, tuple(names[:count]), states, params, dict(zip(params, static_inputs)))
    for argument in names:
        signature.check_name(own_name, "an argument", argument)
    rules = _rules(read, init_states)

    def step(*args: Any, **static: Any) -> tuple[Any, dict[str, Any]]:
        returned = core(*args, *(static[name] for name in params))
        results = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
        outputs = len(results) - num_states
        if outputs < 1 or num_outputs not in (None, outputs):
            wanted = "at least one output" if num_outputs is None else f"{num_outputs} outputs"
            raise ValueError(
                f"{own_name}: must return {wanted} and {num_states} next states, but returns {len(results)} values"
            )
        return results[:outputs], dict(zip(read.states, results[outputs:]))

    return TracedNeuron(read, step, core, rules)


def _rules(read: Signature, init_states: Sequence[Any] | None) -> dict[str, Initial]:
    if init_states is None:
        return {state: Initial() for state in read.states}
    if callable(init_states) or len(init_states) != len(read.states):
        raise TypeError(
            f"{read.name}: init_states must have a number, a parameter's name or a function of parameters "
            f"for each of {len(read.states)} states"
        )
    rules = zip(read.states, init_states)
    return {state: read_rule(f"{read.name}: state {state}", rule, read.params) for state, rule in rules}


def _argument_names(core: Callable, name: str, num_states: int, num_inputs: int | None, num_static: int) -> list[str]:
    """Returns the names of the arguments that are passed: by default all except trailing ones with defaults."""
    target = core.forward if isinstance(core, torch.nn.Module) else core
    arguments = list(inspect.signature(target).parameters.values())
    if num_states < 0:
        raise ValueError(f"{name}: num_states must be 0 or more, but is {num_states}")
    if any(p.kind is p.VAR_POSITIONAL for p in arguments):
        if num_inputs is None:
            raise TypeError(f"{name}: takes any number of arguments: pass num_inputs")
        counts = ("x", num_inputs), ("v", num_states), ("p", num_static)
        return [f"{letter}{i}" for letter, n in counts for i in range(n)]
    for p in arguments:
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty:
            raise TypeError(f"{name}: argument {p.name} after a star has no value: FlexSN passes all by position")
    positional = [p for p in arguments if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if num_inputs is None:
        taken = len(positional if num_static else required)
        num_inputs = taken - num_states - num_static
    wanted = num_inputs + num_states + num_static
    if num_inputs < 1 or wanted > len(positional) or wanted < len(required):
        raise ValueError(
            f"{name}: takes {len(positional)} arguments, which cannot be {num_inputs} inputs, "
            f"{num_states} states and {num_static} static inputs; there is at least one input"
        )
    return [p.name for p in positional[:wanted]]
