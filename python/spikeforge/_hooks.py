"""Hooks that run once for each call of a module, for :class:`~spikeforge.Monitor` and :func:`~spikeforge.count`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spikeforge.nn.composite import Composite
from spikeforge.nn.stateful import StatefulModule, _unwrapped

COMPILED = "torch.compile calls no hooks: call the module itself, not its compiled form"


class Watcher:
    """Defines the hooks of one module. A copy of the module, or a pickled one, has a watcher that does nothing."""

    sees_errors = False  # call `after` with None if forward raises

    def __init__(self, networks: list[Composite]):
        self.networks = networks  # the networks that contain the module
        self.passes_states = self.stored = False

    def notice(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records how the module is called, before other hooks change the call."""
        self.passes_states = self.stored = False
        if isinstance(module, StatefulModule):
            self.passes_states = kwargs.get("state", ...) is not ... or len(args) > module.n_inputs
            self.stored = bool(kwargs.get("store_states"))

    def parts(self, result: Any) -> tuple[Any, Any]:
        """Splits a result into outputs, and states or None."""
        return result if self.passes_states or self.stored else (result, None)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns new arguments of forward, or None."""

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Returns a new result of the call, or None."""

    def is_repeated(self) -> bool:
        """Returns True if the call recomputes a seen one (checkpointing), or computes values before the first step."""
        if any(network.__dict__.get("resting") for network in self.networks):
            return True
        return torch._C._current_graph_task_id() != -1

    def __reduce__(self) -> tuple[Any, ...]:
        return Watcher, ([],)


class Hooks:
    """Attaches watchers, until :meth:`remove` is called or `owner` is freed."""

    def __init__(self, owner: Any):
        self._handles: list[Any] = []
        self.remove: Callable[[], Any] = weakref.finalize(owner, _remove, self._handles)
        self.remove.atexit = False

    def attach(self, module: nn.Module, watcher: Watcher) -> None:
        # First and last, so that other hooks receive an unchanged call.
        self._handles += [
            module.register_forward_pre_hook(partial(_before, watcher), with_kwargs=True),
            module.register_forward_hook(
                partial(_after, watcher), with_kwargs=True, prepend=True, always_call=watcher.sees_errors
            ),
        ]


# Partials, because a copied partial has a copied watcher, which does nothing.
def _before(watcher: Watcher, *call: Any) -> Any:
    if torch.compiler.is_compiling():
        raise RuntimeError(COMPILED)
    watcher.notice(*call)
    return watcher.before(*call)


def _after(watcher: Watcher, *call: Any) -> Any:
    return watcher.after(*call)


def _remove(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()


def watched(what: str, net: Any) -> nn.Module:
    """Returns the network to watch.

    Raises:
        TypeError, ValueError: if `net` is not a module, or is compiled.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"{what}: net must be a module of torch, but is {type(net).__name__}")
    if hasattr(net, "_orig_mod") or any(module._compiled_call_impl is not None for module in net.modules()):
        raise ValueError(f"{what}: net is compiled; {COMPILED}")
    return _unwrapped(net)


def networks_around(net: nn.Module, path: str) -> list[Composite]:
    """Returns the networks that contain a module, including itself."""
    return [module for _, module in modules_along(net, path) if isinstance(module, Composite)]


def modules_along(net: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """Returns the modules from `net` down to the one at `path`, with their names."""
    found, module = [("", net)], net
    names = path.split(".") if path else []
    for i, name in enumerate(names):
        module = module.get_submodule(name)
        found.append((".".join(names[: i + 1]), module))
    return found


def check_call(what: str, module: nn.Module, value: Any) -> None:
    """Raises RuntimeError for replicas of DataParallel, and values within a transform of torch.func."""
    if torch.compiler.is_compiling():
        return
    if module.__dict__.get("_is_replica"):
        raise RuntimeError(f"{what}: DataParallel's replicas run concurrently; use the network itself on one device")
    if isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
        raise RuntimeError(f"{what}: a value within torch.func (vmap, grad) cannot leave it; call the network outside")
