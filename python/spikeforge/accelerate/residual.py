"""Residual connections in the forward of a custom module, combined with spikes in the neuron's pass.

The forward is traced by torch.fx, and rewritten if it combines the result s of a neuron, or of a normalisation, with a
tensor: s + r, s * r or (1 - s) * r. The module remains the same object."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from spikeforge.accelerate import replacing
from spikeforge.accelerate.replacing import Replaced, ReplacedLayer
from spikeforge.nn.stateful import has_hooks

SUMS = (operator.add, operator.iadd, torch.add)
PRODUCTS = (operator.mul, operator.imul, torch.mul)
DIFFERENCES = (operator.sub, torch.sub)
IN_PLACE = (operator.iadd, operator.imul)
Ranks = Sequence[int | None]  # of each positional input; None: it is not a tensor
COMMON = dict(
    fx.Graph().python_code("self").globals, _operator=operator, getattr=getattr
)  # the names that a text may use


class Joining(ReplacedLayer):
    """A module whose forward passes residuals to its neurons and normalisations. If those have hooks, which must
    receive their results, or if inputs have another number of dimensions than the forward was traced for, the module's
    own forward runs."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__["_spikeforge_forward"]
        if not own.fits(args) or any(
            has_hooks(self.get_submodule(name)) for name in self.__dict__["_spikeforge_joined"]
        ):
            return super().forward(*args, **kwargs)
        return own.run(self, *args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_spikeforge_source" in state:  # pickles of earlier versions
            state = dict(state)
            state["_spikeforge_forward"] = Forward(state.pop("_spikeforge_source"))
        super().__setstate__(state)


class Forward:
    """A function `forward` from source text of torch.fx. Copies and pickles contain the text.

    Args:
        ranks: the numbers of dimensions of the inputs for which the text is valid; () for any.
    """

    def __init__(self, source: str, ranks: Ranks = ()):
        names = dict(COMMON)
        exec(compile(source, "<forward with residuals>", "exec"), names)
        self.source, self.ranks, self.run = source, tuple(ranks), names["forward"]

    def __reduce__(self) -> tuple[Any, ...]:
        return Forward, (self.source, self.ranks)

    def fits(self, args: tuple[Any, ...]) -> bool:
        return not self.ranks or self.ranks == tuple(getattr(argument, "ndim", None) for argument in args)


def join(
    module: nn.Module, modes: Callable[[nn.Module], Collection[str]], *, as_input: bool = False, ranks: Ranks = ()
) -> list[tuple[nn.Module, str]]:
    """Moves the residuals that a module's forward joins with the results of parts into the passes of these parts.
    Returns those parts, and the modes.

    A module does not change if it has hooks, if torch.fx cannot trace its forward, or if the forward differs in
    evaluation.

    Args:
        modes: returns the modes that a part accepts: "add", "and", "iand".
        as_input: pass the residual as the part's second input, otherwise as ``residual=(mode, r)``.
        ranks: the numbers of dimensions of the module's inputs, which its forward may read.
    """
    is_custom = not re.match(r"torch\.|spikeforge\.(?!models\.)", type(module).__module__)
    if isinstance(module, Replaced) or has_hooks(module) or not is_custom:
        return []
    if not any(modes(child) for child in module.modules() if child is not module):
        return []
    traced = _traced(module, ranks)
    if traced is None:
        return []
    graph, reads_ranks = traced
    found = list(_rewritten(module, graph, modes, as_input))
    if not found:
        return []
    source = graph.python_code("self")
    if not source.globals.keys() <= COMMON.keys():  # it calls a function that exists in this trace only
        return []
    replacing.replace(module, Joining)
    module.__dict__["_spikeforge_forward"] = Forward(source.src, ranks if reads_ranks else ())
    parts = [part for part, _ in found]
    names = [name for name, child in module.named_modules() if not as_input and child in parts]
    module.__dict__["_spikeforge_joined"] = names
    return found


class _Tracer(fx.Tracer):
    """Records all submodules as calls. The number of dimensions of an input is a constant."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks, self.placeholders, self.reads_ranks = ranks, 0, False

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        proxy = _Proxy(node, self)
        if node.op == "placeholder":
            proxy.rank = self.ranks[self.placeholders] if self.placeholders < len(self.ranks) else None
            self.placeholders += 1
        return proxy


class _Proxy(fx.Proxy):
    """Records in-place operators: torch.fx would record x += y as x = x + y."""

    rank: int | None = None  # of an input

    @property
    def ndim(self) -> Any:
        if self.rank is None:
            return fx.Proxy.__getattr__(self, "ndim")
        self.tracer.reads_ranks = True
        return self.rank

    def dim(self) -> Any:
        return self.tracer.create_proxy("call_method", "dim", (self,), {}) if self.rank is None else self.ndim

    @staticmethod
    def in_place(function: Any) -> Callable[[fx.Proxy, Any], fx.Proxy]:
        return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})

    __iadd__ = in_place(operator.iadd)
    __isub__ = in_place(operator.isub)
    __imul__ = in_place(operator.imul)
    __itruediv__ = in_place(operator.itruediv)
    __iand__ = in_place(operator.iand)
    __ior__ = in_place(operator.ior)


def _traced(module: nn.Module, ranks: Ranks) -> tuple[fx.Graph, bool] | None:
    """Returns the forward as a graph, and whether it reads the ranks of inputs; None for one that changes attributes of
    the module, which the graph would not do."""
    graphs, training, before = [], module.training, dict(module.__dict__)
    try:
        for mode in (True, False):
            module.training = mode
            tracer = _Tracer(ranks)
            graphs.append(tracer.trace(module))
    except Exception:  # a forward may contain any code
        return None
    finally:
        module.training = training
        own = module.__dict__
        changed = own.keys() != before.keys() or any(own[name] is not value for name, value in before.items())
        own.clear()
        own.update(before)
    for graph in graphs:
        for node in graph.nodes:
            node.type = None  # an annotation is a name that the text would need
    codes = {graph.python_code("self").src for graph in graphs}
    return (graphs[0], tracer.reads_ranks) if len(codes) == 1 and not changed else None


def _rewritten(
    module: nn.Module, graph: fx.Graph, modes: Callable[[nn.Module], Collection[str]], as_input: bool
) -> Iterator[tuple[nn.Module, str]]:
    called = [node.target for node in graph.nodes if node.op == "call_module"]
    for node in list(graph.nodes):
        if node.op != "call_module" or called.count(node.target) != 1 or node.kwargs or len(node.args) != 1:
            continue
        part = module.get_submodule(node.target)
        site = None if has_hooks(part) else _site(node)
        if site is None:
            continue
        join, mode, other = site
        if mode not in modes(part) or _reads(other, node):
            continue
        with graph.inserting_before(join):  # where the residual has been computed
            arguments = ((*node.args, other), {}) if as_input else (node.args, {"residual": (mode, other)})
            call = graph.call_module(node.target, *arguments)
        join.replace_all_uses_with(call)
        for old in (join, *node.users, node):
            if not old.users and old in graph.nodes:
                graph.erase_node(old)
        yield part, mode


def _site(spikes: fx.Node) -> tuple[fx.Node, str, fx.Node] | None:
    """Returns the node that joins a part's result with a residual, the mode and the residual; None if another node
    reads the result too."""
    user = _only_user(spikes)
    if user is None:
        return None
    if _is_call(user, DIFFERENCES) and user.args[0] == 1 and user.args[1] is spikes:  # 1 - s
        product = _only_user(user)
        other = _other(product, user) if product is not None and _is_call(product, PRODUCTS) else None
        return None if other is None else (product, "iand", other)
    for functions, mode in ((SUMS, "add"), (PRODUCTS, "and")):
        other = _other(user, spikes) if _is_call(user, functions) else None
        if other is not None and not (user.target in IN_PLACE and user.args[1] is spikes):  # r += s changes r
            return user, mode, other
    return None


def _is_call(node: fx.Node, functions: tuple[Any, ...]) -> bool:
    return node.op == "call_function" and node.target in functions and len(node.args) == 2 and not node.kwargs


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _other(node: fx.Node, one: fx.Node) -> fx.Node | None:
    others = [argument for argument in node.args if argument is not one]
    return others[0] if len(others) == 1 and isinstance(others[0], fx.Node) else None


def _reads(node: fx.Node, other: fx.Node) -> bool:
    """Returns True if `node` is `other` or is computed from it."""
    seen, todo = set(), [node]
    while todo:
        node = todo.pop()
        if node is other:
            return True
        if node not in seen:
            seen.add(node)
            todo.extend(node.all_input_nodes)
    return False
