"""The base of all modules with a state over time, and the functions that pass states or keep them.

A state is a dict from names to tensors: ``{"v": v}`` for a neuron, ``{"hidden.lif.v": v, ...}`` for a network, with
names as in ``state_dict``. It is a pytree, so torch.compile, torch.export and torch.func accept it like any other
argument. A missing name starts from its initial value; with ``None`` and ``{}`` all do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import EllipsisType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    Module,
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)
from torch.optim.swa_utils import AveragedModel

from spikeforge._numbers import HALF_TYPES
from spikeforge.nn import samples

State = dict[str, Tensor]
States = Mapping[str, Tensor] | None
NO_STATE: State = {}
PASS_STATES = "pass the states: y, state = net(x, state), or spikeforge.nn.call(net, x, state)"
Advance = Callable[[Sequence[Tensor], Mapping[str, Tensor], bool], tuple[Any, State]]
get_tracing_state, is_dynamo_compiling = torch._C._get_tracing_state, torch.compiler.is_dynamo_compiling
current_graph_task_id, is_inference_mode_enabled = torch._C._current_graph_task_id, torch.is_inference_mode_enabled
MODULE_CALL = Module.__call__  # tools that inspect networks replace it


class Replaced(threading.local):
    """The states that modules kept before the call of the outermost container in which they were replaced."""

    states: list[tuple[Memory, State | None]] | None = None


REPLACED = Replaced()


def all_or_nothing(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls ``call(*args, **kwargs)``. If it raises, all modules keep the states that they kept before."""
    if is_dynamo_compiling() or REPLACED.states is not None:
        return call(*args, **kwargs)
    replaced = REPLACED.states = []
    try:
        return call(*args, **kwargs)
    except BaseException:
        for memory, states in reversed(replaced):
            memory.states = states
        raise
    finally:
        REPLACED.states = None


class Memory:
    """The states that a module keeps between calls: none, unless ``keeping``."""

    __slots__ = ("keeping", "passed", "samples", "states")

    def __init__(self, keeping: bool = False, states: State | None = None):
        self.keeping = keeping
        self.states = states
        self.passed = False  # keeping is on only during a call() that received the states
        self.samples: State | None = None  # lengths and starts, within the call that gave them

    def start(self) -> State:
        """Returns the states that a call starts from. States created in inference mode are copied outside it: autograd
        cannot save them."""
        states = self.states
        if not states:
            return {}
        if not is_dynamo_compiling():  # a graph has no such modes
            for value in states.values():
                if value.is_inference() and not is_inference_mode_enabled():
                    copies = {name: value.clone() if value.is_inference() else value for name, value in states.items()}
                    self.states = copies
                    return copies
        return states

    def keep(self, states: State) -> None:
        if not is_dynamo_compiling() and REPLACED.states is not None:
            REPLACED.states.append((self, self.states))
        self.states = states

    def detached(self) -> State | None:
        return {name: value.detach() for name, value in self.start().items()} or None

    # Tensors with a history can be neither deep-copied nor pickled.
    def __reduce__(self):
        return Memory, (self.keeping, self.detached())


class StatefulModule(nn.Module):
    """A module that maps sequences ``[T, *shape]`` to sequences, time first, and has states.

    Three ways to call it:

    - ``y = module(x)`` starts from the initial states at each call, and keeps none.
    - ``y, state = module(x, state)`` continues from an earlier state, or from the initial one with ``None``, and returns
      the state after the last step.
    - with ``stateful=True``, or within ``keep_state(net)``, ``y = module(x)`` continues from the end of the last call,
      until :func:`reset_`.

    Samples of a batch ``[T, B, ...]`` that differ in length: ``y = module(x, lengths=lengths)``, int ``[B]``, with
    zeros as outputs after their ends, where x is not read, gradients as for each sample alone, and the states after its
    last step. ``start=start``, bool ``[T, B]``, resets a sample's states before those steps. A
    ``PackedSequence`` or a nested (jagged) tensor gives a result of the same type.

    T steps at once, one after the other by :meth:`step`, or in pieces have the same bits; they agree within rounding if
    a layer of torch is called once for all steps (:class:`Sequential`, :class:`TimeDistributed`).

    Args:
        stateful: keep the states between calls.
        persistent_state: kept states are part of ``state_dict()``.
    """

    state_names: tuple[str, ...] = ()
    takes_samples = False  # modules with states: whether `lengths` and `start` are accepted
    takes_start = True  # modules with takes_samples: whether `start` is accepted
    fresh_outputs = False  # whether only the caller references the result of `forward`, not even autograd

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls) or "_advance" in vars(cls):  # a subclass with another forward declares it
            cls.fresh_outputs = vars(cls).get("fresh_outputs", False)

    def __init__(self, *, stateful: bool = False, persistent_state: bool = False):
        super().__init__()
        self._check_flag("stateful", stateful)
        self._check_flag("persistent_state", persistent_state)
        self.persistent_state = persistent_state
        self._memory = Memory(stateful)
        self._path = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `forward` directly if there are no hooks; nn.Module.__call__ costs a quarter of a small neuron's
        time."""
        if kwargs or (args and (type(args[0]) is not Tensor or args[0].is_nested)):
            if samples.has_samples(args, kwargs):
                return samples.call_with_samples(self, args, kwargs)
        own = self.__dict__
        if (  # not is_called_plainly(self), but a call of it would cost a thirtieth of a small neuron's
            own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
            or _global_forward_hooks
            or _global_forward_pre_hooks
            or _global_backward_hooks
            or _global_backward_pre_hooks
            or "_compiled_call_impl" in own
            or Module.__call__ is not MODULE_CALL
        ):
            return super().__call__(*args, **kwargs)
        if get_tracing_state() or is_dynamo_compiling():
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)

    @property
    def stateful(self) -> bool:
        """True if the module keeps its states between calls."""
        return self._memory.keeping

    def step(self, *inputs: Any, state: States | EllipsisType = ...):
        """Runs one step: inputs ``[*shape]`` to outputs ``[*shape]``, with the bits of a sequence of one step.

        ``y = module.step(x)``, or ``y, state = module.step(x, state)``.
        """
        *inputs, state = self._split(inputs, state)
        for x in inputs:
            if not isinstance(x, Tensor):
                raise TypeError(f"{self._title()}: step takes tensors [*shape], but got {_kind_of(x)}")
        rows = [x.unsqueeze(0) for x in inputs]
        first = first_step_ if self.fresh_outputs and is_called_plainly(self) else _first_step
        if state is ...:
            y = self(*rows)
            return tuple(map(first, y)) if type(y) is tuple else first(y)
        y, after = self(*rows, state=state)
        return tuple(map(first, y)) if type(y) is tuple else first(y), after

    def forward(self, x: Any, *inputs: Any, state: States | EllipsisType = ..., store_states: bool = False):
        """Returns ``y``, or ``(y, state)`` if a state (or None) is passed.

        With ``store_states=True`` the result is ``(y, states)``, where states are the sequences ``[T, *shape]`` of the
        states after each step. They are returned, and not kept.
        """
        *inputs, state = self._split((x, *inputs), state)
        return self._forward(inputs, state, store_states)

    def _forward(
        self, inputs: Sequence[Any], state: States | EllipsisType, store: bool, advance: Advance | None = None
    ) -> Any:
        """Runs `advance`, by default `_advance`, from `state` or from the states that the module keeps."""
        memory, advance = self._memory, self._advance if advance is None else advance
        if state is not ...:
            return advance(inputs, self._checked_state(state), store)
        if not memory.keeping:
            outputs, after = advance(inputs, {}, store)
            return (outputs, after) if store else outputs
        if not is_dynamo_compiling() and (current_graph_task_id() != -1 or "_is_replica" in self.__dict__):
            self._check_keeping()
        outputs, after = advance(inputs, memory.start(), store)
        if not store:
            memory.keep(after)
            return outputs
        if all(value.shape[0] > 0 for value in after.values()):
            # Copied, or each last state would keep its whole sequence.
            memory.keep({name: value[-1].clone() for name, value in after.items()})
        return outputs, after

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Any, State]:
        """Returns the outputs over all steps, and the states after the last step, or with `store` after each."""
        raise NotImplementedError(f"{type(self).__name__} must define _advance or forward")

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Returns the outputs before the first step for these inputs ``[1, ...]``: zeros if the module has states."""
        if has_own_or_inner_states(self):
            return tuple(torch.zeros_like(inputs[0]) for _ in self.out_ports)
        return as_tuple(self(*inputs))

    # --- arguments of a call

    n_inputs = 1
    in_ports: tuple[str, ...] = ("in",)  # names of inputs and outputs in a Composite
    out_ports: tuple[str, ...] = ("out",)

    def _split(self, inputs: tuple[Any, ...], state: Any) -> tuple[Any, ...]:
        """Splits inputs and state: the state may be the last positional argument, as in nn.LSTM."""
        n = self.n_inputs
        if len(inputs) == n + 1 and state is ...:
            return inputs
        if len(inputs) != n:
            raise TypeError(
                f"{self._title()}: takes {n} input{'s'[: n != 1]}, then optionally a state, but got {len(inputs)} arguments"
            )
        return *inputs, state

    def _checked_state(self, state: Any) -> Mapping[str, Tensor]:
        if state is None:
            return {}
        names = self._all_state_names()
        if not isinstance(state, (dict, Mapping)):
            example = "{" + ", ".join(f'"{name}": ...' for name in names) + "}"
            raise TypeError(
                f"{self._title()}: state must be None or a dict {example}, as a call returned it, but is "
                f"{_kind_of(state)}"
            )
        for name, value in state.items():
            if name not in names:
                raise ValueError(f"{self._title()}: there is no state '{name}'; it has {', '.join(names) or 'none'}")
            if not isinstance(value, Tensor):
                raise TypeError(f"{self._title()}: the state {name} must be a tensor, but is {_kind_of(value)}")
        return state

    def _all_state_names(self) -> tuple[str, ...]:
        """Returns the names of its states, and of those of submodules."""
        return self.state_names

    def _check_keeping(self) -> None:
        if is_dynamo_compiling():
            return
        if self.__dict__.get("_is_replica"):
            raise RuntimeError(
                f"{self._title()}: keeps its states, which DataParallel's replicas would lose; use "
                f"DistributedDataParallel, or {PASS_STATES}"
            )
        if current_graph_task_id() != -1 and not self._memory.passed:
            raise RuntimeError(
                f"{self._title()}: keeps its states, but is recomputed in a backward pass (torch.utils.checkpoint), "
                f"which would continue from states of later steps; {PASS_STATES}"
            )

    # --- its name in messages

    def _title(self) -> str:
        path = self.__dict__.get("_path")
        return f"{self._kind()} '{path}'" if path else self._kind()

    def _kind(self) -> str:
        return type(self).__name__

    def _check_flag(self, name: str, value: Any) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"{self._title()}: {name} must be True or False, but is {value!r}")

    # --- moving, saving

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True):
        super()._apply(fn, recurse)
        if self._memory.states:
            self._memory.states = {name: _moved(value, fn) for name, value in self._memory.states.items()}
        return self

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.persistent_state and self._memory.states:
            for name, value in self._memory.states.items():
                destination[prefix + name] = value if keep_vars else value.detach()

    def _load_from_state_dict(self, state_dict, prefix, *args):
        if self.persistent_state:
            found = {name: state_dict.pop(prefix + name, None) for name in self.state_names}
            self._memory.states = {
                name: value.detach().clone() for name, value in found.items() if value is not None
            } or None
        super()._load_from_state_dict(state_dict, prefix, *args)


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def first_step_(y: Tensor) -> Tensor:
    """Returns the only step of y ``[1, *shape]``, which an operator has just returned. It changes y in place, because a
    view could not be detached in place. (A compiled graph returns no view here; a change in place would make its result
    a view.)"""
    return y.squeeze(0) if type(y) is not Tensor or is_dynamo_compiling() else y.squeeze_(0)


def _first_step(y: Tensor) -> Tensor:
    """Returns the only step of a y that others may reference."""
    return y.squeeze(0) if is_dynamo_compiling() else y.squeeze(0).clone()


def has_hooks(module: nn.Module) -> bool:
    """Returns True if a call of the module runs anything but the `forward` of its class: its own hooks, or another
    forward."""
    own = module.__dict__
    return bool(
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
        or "_compiled_call_impl" in own
    )


def is_called_plainly(module: nn.Module) -> bool:
    """Returns True if a call of the module only calls its class's `forward`: no hooks exist, global ones included."""
    return not (
        has_hooks(module)
        or _global_forward_hooks
        or _global_forward_pre_hooks
        or _global_backward_hooks
        or _global_backward_pre_hooks
        or Module.__call__ is not MODULE_CALL
    )


def _kind_of(value: Any) -> str:
    return type(value).__name__


def _moved(value: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    moved = fn(value)
    if moved.dtype in HALF_TYPES and value.is_floating_point():
        return value.to(device=moved.device, dtype=torch.float32)
    return moved


def shape_of(tensor: Tensor) -> str:
    return "[" + ", ".join(str(int(n)) for n in tensor.shape) + "]"


# --- all modules of a network


def _unwrapped(net: nn.Module) -> nn.Module:
    """Returns the module that torch.compile and the parallel and averaging wrappers contain, so that names do not
    include them."""
    while True:
        inner = getattr(net, "_orig_mod", None)
        if inner is None and isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)):
            inner = net.module
        if inner is None:
            return net
        net = inner


def stateful_modules(net: nn.Module) -> Iterator[tuple[str, StatefulModule]]:
    """Yields the modules at and below `net` that have states themselves, with their names from there."""
    for name, module in _unwrapped(net).named_modules():
        if isinstance(module, StatefulModule) and module.state_names:
            yield name, module


def has_states(net: nn.Module) -> bool:
    """Returns True if `net` is, or contains, a StatefulModule."""
    return any(isinstance(module, StatefulModule) for module in net.modules())


def has_own_or_inner_states(net: nn.Module) -> bool:
    return next(stateful_modules(net), None) is not None


def _named(net: nn.Module) -> list[tuple[str, StatefulModule]]:
    found = list(stateful_modules(net))
    for name, module in found:
        if name and not module._path:
            module._path = name
    return found


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _under(prefix: str, state: Mapping[str, Tensor]) -> State:
    """Returns the part of a state that belongs to the submodule at `prefix`."""
    if not prefix:
        return dict(state)
    start = prefix + "."
    return {name[len(start) :]: value for name, value in state.items() if name.startswith(start)}


def own_state(module: StatefulModule, prefix: str, state: Mapping[str, Tensor]) -> State:
    """Returns the states of the module itself, without those of the modules below it."""
    return {name: state[_join(prefix, name)] for name in module.state_names if _join(prefix, name) in state}


def _title_below(net: nn.Module, path: str) -> None:
    """Sets the names in errors of the modules at and below `net` to those under `path`."""
    for name, module in net.named_modules():
        if isinstance(module, StatefulModule):
            module._path = _join(path, name) if name else path


def get_states(net: nn.Module) -> State:
    """Returns the states that are kept at and below `net`, by name: ``{"hidden.lif.v": ...}``, without copies."""
    return {
        _join(prefix, name): value
        for prefix, module in stateful_modules(net)
        for name, value in module._memory.start().items()
    }


def set_states_(net: nn.Module, states: Mapping[str, Tensor]) -> None:
    """Sets the states from which the next call continues, as :func:`get_states` or a call returned them. States that
    are missing are reset.

    Raises:
        ValueError: if no module has a name, or its module does not keep its states.
    """
    modules = _named(net)
    _check_names(net, modules, states)
    given = [(module, own_state(module, prefix, states)) for prefix, module in modules]
    for module, own in given:
        if own and not module._memory.keeping:
            raise ValueError(
                f"{module._title()}: does not keep its states; use stateful=True or keep_state(net), or net(x, state)"
            )
    for module, own in given:
        module._memory.states = own or None


def _check_names(net: nn.Module, modules: list[tuple[str, StatefulModule]], states: Mapping[str, Tensor]) -> None:
    known = {_join(prefix, name) for prefix, module in modules for name in module.state_names}
    for name in states:
        if name not in known:
            raise ValueError(
                f"{type(net).__name__}: there is no state '{name}'; it has {', '.join(sorted(known)) or 'none'}"
            )


def reset_(net: nn.Module) -> None:
    """Drops all states that are kept at and below `net`: the next call starts from the initial states."""
    for _, module in _named(net):
        module._memory.states = None


def detach_(net: nn.Module) -> None:
    """Cuts the history of all states that are kept at and below `net`: the next backward pass ends there."""
    for _, module in _named(net):
        module._memory.states = module._memory.detached()


def clamp_(net: nn.Module) -> None:
    """Clamps the learned constants and delays at and below `net` to their bounds, which an optimiser's step may have
    left. ``optimizer.register_step_post_hook(lambda *_: clamp_(net))`` calls it after each step of any training loop.

    Beyond a bound the gradient is 0, so a parameter would stay there; at the bound it is not.
    """
    for module in net.modules():
        if isinstance(module, StatefulModule) and hasattr(module, "clamp_"):
            module.clamp_()


class keep_state:
    """Within ``with keep_state(net):`` all modules at and below `net` keep their states from call to call.

    They start from the initial states at the begin of the outermost such block, and their states are dropped at its
    end; modules with ``stateful=True`` are not affected. Blocks may be nested: inner ones change nothing.

    >>> with keep_state(net):
    ...     for chunk in chunks:  # [steps, batch, ...]
    ...         spikes = net(chunk)
    ...     reset_(net)  # another sequence
    """

    def __init__(self, net: nn.Module):
        self.net = net
        self._entered: list[list[StatefulModule]] = []

    def __enter__(self) -> nn.Module:
        modules = [module for _, module in _named(self.net) if not module._memory.keeping]
        for module in modules:
            module._memory.keeping, module._memory.states = True, None
        self._entered.append(modules)
        return self.net

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for module in self._entered.pop():
            module._memory.keeping, module._memory.states = False, None


def call(net: nn.Module, x: Any, state: States = None, *args: Any, **kwargs: Any) -> tuple[Any, State]:
    """Calls any module with neurons below it from a state: ``y, state = call(net, x, state)``.

    Args:
        net: a custom module whose ``forward`` has no arguments for states, nor for `lengths` and `start`, which the
            neurons below it take; a ``forward`` that has these arguments, or takes any keyword, receives them.
        state: None for the initial states, or the states that an earlier call returned: ``{"block.lif.v": ...}``, with
            names as in ``state_dict()``.

    Returns:
        The result of net, and the states of all its neurons after the last step. The states that modules keep are
        neither read nor changed.

    A checkpoint (:func:`spikeforge.checkpointed`, ``torch.utils.checkpoint``) goes around `call`: the states are among
    its arguments. A checkpoint within `net` does not save them: its backward pass raises an error or returns
    wrong gradients.
    """
    modules = _named(net)
    state = {} if state is None else state
    _check_names(net, modules, state)
    memories = [module._memory for _, module in modules]
    before = [(memory.keeping, memory.states, memory.passed) for memory in memories]
    try:
        for (prefix, module), memory in zip(modules, memories):
            memory.keeping, memory.states, memory.passed = True, own_state(module, prefix, state), True
        if isinstance(net, StatefulModule) or not samples.reach(_unwrapped(net), x, kwargs):
            y = net(x, *args, **kwargs)
        else:
            y = samples.call_with_samples(net, (x, *args), kwargs)
        after = {
            _join(prefix, name): value
            for prefix, module in modules
            for name, value in (module._memory.states or {}).items()
        }
    finally:
        for memory, kept in zip(memories, before):
            memory.keeping, memory.states, memory.passed = kept
    return y, after
