"""Rules of plasticity from classes with a function for each event."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from . import autograd_functions, graph
from .graph import Node, Recording
from .make import operand
from .printer import expression, number_text, print_block
from .signature import is_number
from .value import Value, node_of

_SENT = "send"
_DEEPEST = 200  # the depth of expressions in text


def text_of(rule: type, params: Sequence[str]) -> str:
    """Returns the synapse text of a class; docs/plasticity.md defines its form."""
    return _Traced(rule, params).text()


class _Traced:
    def __init__(self, rule: type, params: Sequence[str]):
        self.name = rule.__name__
        members = {
            key: value
            for part in reversed(rule.__mro__[:-1])
            for key, value in vars(part).items()
            if not key.startswith("_")
        }
        self._check_name("a rule", self.name)
        self.states, self.traces = (_numbers(self.name, key, members.pop(key, ())) for key in ("states", "traces"))
        self.signals = tuple(_numbers(self.name, "signals", members.pop("signals", ())))
        self.params = tuple(params)
        self.decays = members.pop("decay", {})
        if not isinstance(self.decays, Mapping):
            raise TypeError(f"{self.name}: decay must be a dict of names and time constants, but is {self.decays!r}")
        self.names = [*self.states, *self.traces, *self.params, *self.signals]
        for name in self.names:
            self._check_name("a state, trace, parameter or signal", name)
            if name == _SENT:
                raise ValueError(
                    f"{self.name}: a state, trace, parameter or signal cannot be called send, which is the value that "
                    "a spike sends"
                )
        events = {
            "on_pre": "on pre",
            "on_post": "on post",
            **{f"on_{s}": f"on {s}" for s in self.signals},
            "each_step": "each step",
        }
        for key in members:
            if key not in events:
                raise ValueError(
                    f"{self.name}: {key} is not an event; a rule has states, traces, signals, decay, "
                    f"{', '.join(events)}"
                )
        self.events = {
            event: _plain(members[key], f"{self.name}: {key}") for key, event in events.items() if key in members
        }

    def text(self) -> str:
        lists = [_declared(self.states), _declared(self.traces), self.params, self.signals]
        header = "; ".join(", ".join(names) for names in lists).rstrip("; ")
        blocks = [self._block(event, function) for event, function in self.events.items()]
        decays = [f"  decay {name} by {self._decay(name, by)}\n" for name, by in self.decays.items()]
        return f"synapse {self.name}({header}) {{\n{''.join(blocks)}{''.join(decays)}}}\n"

    def _block(self, event: str, function: Callable) -> str:
        what = f"{self.name}: {event.replace(' ', '_')}"
        recording, returned = self._called(what, function, self.names)
        if not isinstance(returned, Mapping):
            raise TypeError(
                f"{what} must return a dict of next values, such as {{{next(iter(self.states), 'w')!r}: ...}}, but "
                f"returns {type(returned).__name__}"
            )
        changed = [*self.states, *self.traces, *([_SENT] if event == "on pre" else [])]
        for name in returned:
            if name not in changed:
                raise ValueError(f"{what} returns a value of {name!r}; it can return those of {', '.join(changed)}")
        return print_block(
            event,
            recording,
            {name: self._node(recording, what, name, returned[name]) for name in changed if name in returned},
        )

    def _decay(self, name: str, by: Any) -> str:
        by, to = by if isinstance(by, tuple) and len(by) == 2 else (by, 0)
        target = self._of_params(name, to)
        return self._of_params(name, by) + ("" if target == "0" else f" to {target}")

    def _of_params(self, name: str, value: Any) -> str:
        what = f"{self.name}: decay of {name}"
        if is_number(value):
            return number_text(value)
        if isinstance(value, str):
            if value not in self.params:
                raise ValueError(f"{what}: {value} is not a parameter; there are {', '.join(self.params) or 'none'}")
            return value
        if not callable(value):
            raise TypeError(
                f"{what} must be a number, a parameter's name or a function of parameters, or a tuple (by, to) of "
                f"these, but is {value!r}"
            )
        recording, returned = self._called(what, value, self.params)
        return expression(self._node(recording, what, "it", returned), {}, _DEEPEST)

    def _called(self, what: str, function: Callable, known: Sequence[str]) -> tuple[Recording, Any]:
        """Calls a function once, with values for its arguments, which are names of the rule."""
        arguments = list(inspect.signature(function).parameters.values())
        for p in arguments:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or p.name not in known:
                raise TypeError(
                    f"{what} has an argument {p}, which the rule does not define; it has "
                    f"{', '.join(known) or 'no names'}"
                )
        recording = Recording(what, getattr(function, "__code__", None), "a parameter (an argument of synapse())")
        values = {name: Value(recording.argument(name), recording) for name in known}
        graph.traces.stack.append(recording)
        try:
            with torch.enable_grad(), autograd_functions.traced():
                given = [values[p.name] for p in arguments if p.kind is not p.KEYWORD_ONLY]
                returned = function(*given, **{p.name: values[p.name] for p in arguments if p.kind is p.KEYWORD_ONLY})
            recording.name_last_variables(node_of)
            return recording, returned
        finally:
            graph.traces.stack.pop()

    def _node(self, recording: Recording, what: str, name: str, x: Any) -> Node:
        if not isinstance(x, Value) and not is_number(x):
            raise TypeError(f"{what}: {name} must be a value or a number, but is {type(x).__name__}")
        graph.traces.stack.append(recording)
        try:
            return operand(f"{what}: {name}", x)
        finally:
            graph.traces.stack.pop()

    def _check_name(self, what: str, name: Any) -> None:
        graph.check_name(self.name, what, name, "synapse text")


def _numbers(rule: str, key: str, given: Any) -> dict[Any, float]:
    """Returns the initial value of each name."""
    if isinstance(given, str):
        given = given.replace(",", " ").split()
    if isinstance(given, Mapping):
        for name, number in given.items():
            if not is_number(number):
                raise TypeError(f"{rule}: {key}: the initial value of {name} must be a number, but is {number!r}")
        return dict(given)
    if not isinstance(given, Iterable):
        raise TypeError(f"{rule}: {key} must be names, or a dict of names and initial values, but is {given!r}")
    return dict.fromkeys(given, 0.0)


def _declared(names: Mapping[str, float]) -> list[str]:
    return [name if initial == 0 else f"{name} = {number_text(initial)}" for name, initial in names.items()]


def _plain(function: Any, what: str) -> Callable:
    function = getattr(function, "__func__", function)  # of a staticmethod
    if not inspect.isfunction(function):
        raise TypeError(f"{what} must be a function of the rule's names, but is {function!r}")
    return function
