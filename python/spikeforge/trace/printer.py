"""Prints a recorded trace as neuron text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from . import graph
from .graph import Node, Recording

LONGEST_EXPRESSION = 72
_PREFIX, _PRIMARY = 90, 100
_INFIX = {
    "logical_or": ("or", 1),
    "logical_and": ("and", 2),
    "add": ("+", 4),
    "subtract": ("-", 4),
    "multiply": ("*", 5),
    "divide": ("/", 5),
}
_INFIX |= {op: (symbol, 3) for op, symbol in graph.COMPARISONS.items()}
_PREFIXES = {"neg": "-", "logical_not": "not "}


def number_text(x: float) -> str:
    """Returns the shortest text of a number."""
    if math.isnan(x):
        return "nan"
    text = repr(float(x))
    return text.removesuffix(".0")


def expression(node: Node, names: Mapping[Node, str], depth: int = 8) -> str:
    """Formats a node with the names of its operands, for messages; deep operands become "..."."""
    if node in names:
        return names[node]
    if depth == 0:
        return "..."
    return _write(node, lambda operand: (expression(operand, names, depth - 1), _binds(operand, names)))[0]


def _binds(node: Node, names: Mapping[Node, str]) -> int:
    if node in names:
        return _PRIMARY
    if node.op in _PREFIXES:
        return _PREFIX
    return _INFIX[node.op][1] if node.op in _INFIX else _PRIMARY


def _write(node: Node, text_of: Callable[[Node], tuple[str, int]]) -> tuple[str, int]:
    """Returns the text of a node, from the texts of its operands, and its precedence."""

    def within(operand: Node, at_least: int) -> str:
        text, binds = text_of(operand)
        return text if binds >= at_least else f"({text})"

    if node.op == graph.ARGUMENT:
        return node.name, _PRIMARY
    if node.op == graph.CONSTANT:
        text = number_text(node.number)
        return text, _PREFIX if text.startswith("-") else _PRIMARY
    if node.op == graph.TRUTH:
        return "true" if node.number else "false", _PRIMARY
    if node.op in _PREFIXES:
        return _PREFIXES[node.op] + within(node.operands[0], _PREFIX), _PREFIX
    if node.op in _INFIX:
        symbol, binds = _INFIX[node.op]
        chains = node.op not in graph.COMPARISONS
        left = within(node.operands[0], binds if chains else binds + 1)
        return f"{left} {symbol} {within(node.operands[1], binds + 1)}", binds
    operands = [text_of(operand)[0] for operand in node.operands]
    call = f"{node.op}({', '.join(operands + [node.surrogate] * bool(node.surrogate))})"
    return f"draw_once({call})" if node.once else call, _PRIMARY


class _Body:
    """The statements that results need, and each result as an expression."""

    def __init__(self, recording: Recording, results: Sequence[Node]):
        self._names = recording.names
        self._taken = set(recording.names.values())
        self._texts: dict[Node, tuple[str, int]] = {}
        self._uses = self._count_uses(recording, results)
        self.lines: list[str] = []
        for node in recording.nodes:
            if self._uses[node] or node.op == graph.ARGUMENT:
                self._add(node)

    @staticmethod
    def _count_uses(recording: Recording, results: Sequence[Node]) -> Counter[Node]:
        uses = Counter(results)
        for node in reversed(recording.nodes):
            if uses[node]:
                uses.update(node.operands)
        return uses

    def _add(self, node: Node) -> None:
        text, binds = _write(node, self._texts.__getitem__)
        named = node in self._names
        if node.is_leaf or (not named and self._uses[node] == 1 and len(text) <= LONGEST_EXPRESSION):
            self._texts[node] = text, binds
            return
        name = self._names[node] if named else self._new_name()
        self.lines.append(f"{name} = {text}")
        self._texts[node] = name, _PRIMARY

    def _new_name(self) -> str:
        count = 1
        while f"t{count}" in self._taken:
            count += 1
        self._taken.add(f"t{count}")
        return f"t{count}"

    def __getitem__(self, node: Node) -> str:
        return self._texts[node][0]


def print_neuron(
    recording: Recording,
    inputs: Sequence[str],
    states: Mapping[str, float],
    params: Sequence[str],
    outputs: Sequence[Node],
    next_states: Mapping[str, Node],
) -> str:
    """Returns the text of a neuron, whose arguments are those of the recording."""
    body = _Body(recording, [*outputs, *next_states.values()])
    declared = [name if initial == 0 else f"{name} = {number_text(initial)}" for name, initial in states.items()]
    header = ", ".join(inputs)
    if declared or params:
        header += "; " + ", ".join(declared)
    if params:
        header += "; " + ", ".join(params)
    lines = [*body.lines, "return " + ", ".join(body[node] for node in outputs)]
    lines += [f"{name}' = {body[node]}" for name, node in next_states.items()]
    return f"neuron {recording.neuron}({header}) {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def print_block(event: str, recording: Recording, next_values: Mapping[str, Node]) -> str:
    """Returns the text of an event of a synapse; the value `send` is sent by the spike."""
    body = _Body(recording, list(next_values.values()))
    lines = body.lines + [
        f"{'send' if name == 'send' else name + chr(39) + ' ='} {body[node]}" for name, node in next_values.items()
    ]
    return f"  {event} {{\n" + "".join(f"    {line}\n" for line in lines) + "  }\n"
