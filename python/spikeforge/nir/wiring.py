"""Finds the connections between modules: of modules one after the other, and of a forward that calls them."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from spikeforge.nn.composite import _in_ports, _out_ports
from spikeforge.nn.stateful import StatefulModule

PASSING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)  # in evaluation
ADDITIONS = (operator.add, operator.iadd, torch.add)


class Wire(NamedTuple):
    source: str  # "part.out", or an input of the network
    target: str
    delay: int = 0
    from_rest: bool = False


def chain(parts: Iterable[tuple[str, nn.Module]]) -> list[Wire]:
    wires, source = [], "in"
    for name, part in parts:
        wires.append(Wire(source, f"{name}.{_in_ports(part)[0]}"))
        source = f"{name}.{_out_ports(part)[0]}"
    return [*wires, Wire(source, "out")]


class _Tracer(fx.Tracer):
    """Traces through custom modules and torch's containers, but not into other modules of torch or this package."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, StatefulModule) or super().is_leaf_module(m, module_qualified_name)


def traced(module: nn.Module, path: str) -> tuple[list[Wire], list[tuple[str, nn.Module]]]:
    """Returns wires and parts of a module whose forward calls others one after the other, and adds their outputs.

    Raises ValueError if it does anything else.
    """
    tracer = _Tracer()
    try:
        graph = tracer.trace(module, _defaults(module))
    except Exception as error:
        raise _refusal(path, module, f"its forward cannot be followed: {str(error).splitlines()[0]}") from None
    return _Wiring(module, path).of(graph)


def _defaults(module: nn.Module) -> dict[str, Any]:
    """Returns the default values of all arguments but the first."""
    arguments = list(inspect.signature(module.forward).parameters.values())[1:]
    return {argument.name: argument.default for argument in arguments if argument.default is not argument.empty}


def _refusal(path: str, module: nn.Module, what: str) -> ValueError:
    return ValueError(f"{path or '/'}: {type(module).__name__}: {what}")


class _Wiring:
    def __init__(self, module: nn.Module, path: str):
        self.module, self.path = module, path
        self.wires: list[Wire] = []
        self.parts: list[tuple[str, nn.Module]] = []
        self.sources: dict[fx.Node, list[str]] = {}  # the terms of the sum in each value

    def of(self, graph: fx.Graph) -> tuple[list[Wire], list[tuple[str, nn.Module]]]:
        for node in graph.nodes:
            if node.op == "placeholder":
                self._input(node)
            elif node.op == "call_module":
                self._module(node)
            elif node.op == "output":
                self._join(self._value(node, node.args[0]), "out")
            elif node.op == "call_function" and node.target in ADDITIONS and not node.kwargs:
                self.sources[node] = [source for term in node.args for source in self._value(node, term)]
            elif node.target in ("flatten", torch.flatten):
                self._flatten(node)
            else:
                raise self._refuse(f"NIR has no node for {_spelled(node)}")
        return self.wires, self.parts

    def _refuse(self, what: str) -> ValueError:
        return _refusal(self.path, self.module, what)

    def _input(self, node: fx.Node) -> None:
        if self.sources and node.users:
            raise self._refuse(f"it has several inputs, of which NIR takes one: {node.target}")
        self.sources[node] = ["in"]

    def _value(self, node: fx.Node, value: Any) -> list[str]:
        if not isinstance(value, fx.Node):
            raise self._refuse(f"{_spelled(node)} takes a value that is not the output of a module: {str(value)[:40]}")
        return self.sources[value]

    def _join(self, sources: list[str], target: str) -> None:
        self.wires += [Wire(source, target) for source in sources]

    def _module(self, node: fx.Node) -> None:
        part = self.module.get_submodule(node.target)
        if len(node.args) != 1 or node.kwargs:
            raise self._refuse(f"it calls {node.target} with other than one argument")
        value = self._value(node, node.args[0])
        if isinstance(part, PASSING):
            self.sources[node] = value
            return
        if any(part is other for _, other in self.parts):
            raise self._refuse(f"it calls {node.target} twice, but a node runs once per step")
        self._add(node, node.target, part, value)

    def _flatten(self, node: fx.Node) -> None:
        x, *dims = node.args
        self._add(node, "flatten", nn.Flatten(*([*dims, 0][:1]), *dims[1:], **node.kwargs), self._value(node, x))

    def _add(self, node: fx.Node, target: str, part: nn.Module, value: list[str]) -> None:
        stem = target.replace(".", "_")
        taken = {name for name, _ in self.parts}
        name = next(name for n in range(1, len(taken) + 2) if (name := stem if n == 1 else f"{stem}_{n}") not in taken)
        self.parts.append((name, part))
        self._join(value, f"{name}.{_in_ports(part)[0]}")
        self.sources[node] = [f"{name}.{_out_ports(part)[0]}"]


def _spelled(node: fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target))
