"""The graph of a traced function: its operations in order."""

from __future__ import annotations

import math
import re
import threading
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

COMPARISONS = {"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!="}
JUNCTIONS = ("logical_and", "logical_or", "logical_not")
BOOLEAN = frozenset((*COMPARISONS, *JUNCTIONS, "truth"))
DRAWS = frozenset(("bernoulli", "normal", "poisson", "uniform"))
ARGUMENT, CONSTANT, TRUTH = "argument", "constant", "truth"
RESERVED = frozenset(("and", "false", "inf", "nan", "neuron", "not", "or", "return", "true"))
LONGEST_NAME = 64


@dataclass(frozen=True, eq=False)
class Node:
    """An operation of neuron text, an argument or a constant."""

    op: str
    operands: tuple[Node, ...] = ()
    number: float = 0.0  # the value of a constant; a truth is 1 or 0
    surrogate: str = ""  # the surrogate of a spike, as neuron text
    name: str = ""  # the name of an argument
    once: bool = False  # a draw that is the same in all steps

    @property
    def is_boolean(self) -> bool:
        return self.op in BOOLEAN

    @property
    def is_leaf(self) -> bool:
        return self.op in (ARGUMENT, CONSTANT, TRUTH)


def draws(text: str) -> bool:
    """Returns True if a neuron's text draws random numbers."""
    return re.search(rf"\b({'|'.join(sorted(DRAWS))})\(", text) is not None


def is_name(text: str) -> bool:
    """Returns True if a string is a legal name in neuron text."""
    return text.isascii() and text.isidentifier() and text not in RESERVED and len(text) <= LONGEST_NAME


def check_name(owner: str, what: str, name: Any, text: str) -> None:
    """Raises ValueError if a name is not legal in neuron text or synapse text."""
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(
            f"{owner}: {what} cannot be called {name!r} in {text}: a name has ASCII letters, digits and _, at most "
            f"{LONGEST_NAME}, and is none of {', '.join(sorted(RESERVED))}"
        )


def _is_descriptive(variable: str) -> bool:
    return is_name(variable) and bool(variable.strip("_"))


class Recording:
    """Collects the nodes of one trace. Equal operations on equal operands share a node, except for draws.

    `parameter` describes a parameter of the traced function, for error messages.
    """

    def __init__(self, neuron: str, code: CodeType | None, parameter: str = "a parameter (after the star)"):
        self.neuron, self.parameter = neuron, parameter
        self.nodes: list[Node] = []
        self.names: dict[Node, str] = {}
        self._code = code  # the code of the traced function
        self._nodes: dict[Any, Node] = {}
        self._owners: dict[str, Node] = {}
        self._frames: dict[int, FrameType] = {}

    def argument(self, name: str) -> Node:
        node = Node(ARGUMENT, name=name)
        self.nodes.append(node)
        self.names[node] = name
        self._owners[name] = node
        return node

    def constant(self, number: float) -> Node:
        key = "nan" if math.isnan(number) else (number, math.copysign(1.0, number))
        return self._node((CONSTANT, key), Node(CONSTANT, number=number))

    def truth(self, value: bool) -> Node:
        return self._node((TRUTH, value), Node(TRUTH, number=float(value)))

    def operation(self, op: str, operands: tuple[Node, ...], surrogate: str = "") -> Node:
        return self._node((op, *map(id, operands), surrogate), Node(op, operands, surrogate=surrogate))

    def draw(self, law: str, operands: tuple[Node, ...], once: bool = False) -> Node:
        node = Node(law, operands, once=once)
        self.nodes.append(node)
        return node

    def _node(self, key: Any, node: Node) -> Node:
        known = self._nodes.setdefault(key, node)
        if known is node:
            self.nodes.append(node)
        return known

    # --- names, taken from the variables that hold the values ---

    def name_variables(self, frame: FrameType | None, node_of: Any) -> None:
        """Names the nodes in the local variables of a running frame; node_of returns a variable's node, or None."""
        if self._code is None or frame is None or frame.f_code.co_filename != self._code.co_filename:
            return
        self._frames[id(frame)] = frame
        self._take_names(frame, node_of)

    def name_last_variables(self, node_of: Any) -> None:
        """Names the last assigned nodes, and releases the frames."""
        for frame in self._frames.values():
            self._take_names(frame, node_of)
        self._frames.clear()

    def _take_names(self, frame: FrameType, node_of: Any) -> None:
        is_the_function = frame.f_code is self._code
        taken = () if is_the_function else frame.f_code.co_varnames[: frame.f_code.co_argcount]
        for variable, value in frame.f_locals.items():
            node = node_of(value)
            if node is None or node.is_leaf or node in self.names or variable in taken or not _is_descriptive(variable):
                continue
            name = self._free_name(variable)
            self.names[node] = name
            self._owners[name] = node

    def _free_name(self, variable: str) -> str:
        name, count = variable, 1
        while name in self._owners:
            count += 1
            name = f"{variable[: LONGEST_NAME - 8]}_{count}"
        return name


class _Traces(threading.local):
    """The traces in progress on this thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[Recording] = []


traces = _Traces()


def current() -> Recording | None:
    return traces.stack[-1] if traces.stack else None
