"""What :class:`~spikeforge.Monitor` and :func:`~spikeforge.count` share: hooks that see each call of a module once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spikeforge.nn.network import Network
from spikeforge.nn.stateful import StatefulModule, _unwrapped

COMPILED = "a network is watched as it is: call the module itself, not what torch.compile made of it"


class Watcher:
    """The hooks of one module. Copies of the module, and files it is saved in, get a watcher that does nothing."""

    sees_errors = False  # whether `after` is called, with None, where forward raises

    def __init__(self, networks: list[Network]):
        self.networks = networks  # that it is in
        self.handed_on = self.stored = False

    def notice(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """How the module is called. Hooks that come later may ask it for more, and take that away again."""
        self.handed_on = self.stored = False
        if isinstance(module, StatefulModule):
            self.handed_on = kwargs.get("state", ...) is not ... or len(args) > module.n_inputs
            self.stored = bool(kwargs.get("store_states"))

    def parts(self, result: Any) -> tuple[Any, Any]:
        """Outputs, and states or None, of what the module returns to this hook."""
        return result if self.handed_on or self.stored else (result, None)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What forward is called with instead, or None."""

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """What the call returns instead, or None."""

    def is_repeated(self) -> bool:
        """Whether the call computes once more what has been seen (checkpointing), or what precedes the first step."""
        if any(network.__dict__.get("resting") for network in self.networks):
            return True
        return torch._C._current_graph_task_id() != -1

    def __reduce__(self) -> tuple[Any, ...]:
        return Watcher, ([],)


class Hooks:
    """Attached watchers, until :meth:`remove`, or until `owner` is gone."""

    def __init__(self, owner: Any):
        self._handles: list[Any] = []
        self.remove: Callable[[], Any] = weakref.finalize(owner, _remove, self._handles)
        self.remove.atexit = False

    def attach(self, module: nn.Module, watcher: Watcher) -> None:
        # Other hooks see the call as it is without this one.
        self._handles += [
            module.register_forward_pre_hook(partial(_before, watcher), with_kwargs=True),
            module.register_forward_hook(
                partial(_after, watcher), with_kwargs=True, prepend=True, always_call=watcher.sees_errors
            ),
        ]


# Of a copied method only its object would become another one; of a copied partial all does.
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
    """The network to watch.

    Raises:
        TypeError, ValueError: for what is no module, and a compiled one.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"{what}: net must be a module of torch, but is {type(net).__name__}")
    if hasattr(net, "_orig_mod") or any(module._compiled_call_impl is not None for module in net.modules()):
        raise ValueError(f"{what}: net is compiled; {COMPILED}")
    return _unwrapped(net)


def networks_around(net: nn.Module, path: str) -> list[Network]:
    """The networks that a module lies in, itself included."""
    return [module for _, module in modules_along(net, path) if isinstance(module, Network)]


def modules_along(net: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """The modules from `net` down to the one at `path`, with their names."""
    found, module = [("", net)], net
    names = path.split(".") if path else []
    for i, name in enumerate(names):
        module = module.get_submodule(name)
        found.append((".".join(names[: i + 1]), module))
    return found


def check_call(what: str, module: nn.Module, value: Any) -> None:
    """Refuses what cannot be kept: replicas of DataParallel, and values within a transform of torch.func."""
    if torch.compiler.is_compiling():
        return
    if module.__dict__.get("_is_replica"):
        raise RuntimeError(f"{what}: DataParallel's replicas run side by side; use the network itself on one device")
    if isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
        raise RuntimeError(f"{what}: a value within torch.func (vmap, grad) cannot leave it; call the network outside")
