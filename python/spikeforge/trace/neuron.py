"""Neurons from Python functions that compute one step."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spikeforge._numbers import state_type
from spikeforge._warnings import warn_caller

from . import graph, loop, signature
from .initial import Initial, Lost, read_rule
from .record import Step, record
from .signature import Signature

_run = torch.ops.spikeforge.run
_MOST_NUMBERS = 256  # scalars that a neuron caches as tensors


def neuron(
    function: Callable | None = None,
    *,
    states: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Any:
    """Makes a neuron from a Python function that computes one step::

        @spikeforge.neuron(states={"v": 0.0})
        def lif(x, v, *, tau=2.0):
            h = v + (x - v) / tau
            s = spikeforge.spike(h - 1, "atan")
            return s, {"v": spikeforge.trace.select(s, 0.0, h)}

    The function is called once, with values that record operations: arithmetic, comparisons, and torch's elementwise
    functions. Positional arguments are the inputs, then the states named in `states`. Arguments after the star are
    parameters, numbers or tensors of each call, with a number or a tensor as default; an argument with another default
    (True, a string, a surrogate) is a constant. The function returns its output, or a tuple of outputs, and a dict of
    next states.

    Args:
        function: the function of one step.
        states: the states, with the initial value of each for calls that do not pass it: a number, the name of a
            parameter, or a function whose arguments are named after parameters.
        constants: arguments after the star that are Python values, fixed for all calls.
        name: the name of the neuron in its text; by default the function's.

    Raises:
        TypeError, ValueError: if the function does something that a neuron cannot compute (with its line).
    """
    if function is None:
        return lambda f: neuron(f, states=states, constants=constants, name=name)
    function = function.step if isinstance(function, TracedNeuron) else function
    if function is None:
        raise ValueError("neuron: the function of this traced neuron was not pickled, so it cannot be traced again")
    own_name = signature.name_of(function, name)
    if not isinstance(states or {}, Mapping):
        kind = type(states).__name__
        raise TypeError(f"{own_name}: states must be a dict from each state to its initial value, not a {kind}")
    read = signature.read(function, tuple(states or {}), constants or {}, own_name)
    given = states or {}
    rules = {state: read_rule(f"{own_name}: state {state}", given[state], read.params) for state in read.states}
    return TracedNeuron(read, function, function, rules)


class TracedNeuron:
    """A neuron traced from a Python function. A call runs a whole sequence as one differentiable operator.

    Attributes:
        name: the neuron's name.
        text: its equations as neuron text, the argument of the operator.
        inputs, params, outputs: names.
        states: the initial value of each state (0 if `initial_states` computes it).
        defaults: the values of parameters that a call may omit.
        constants: the Python values that the function was traced with.
        step: the function, which takes tensors or another neuron's values.
        draws: True if it draws random numbers; a call then takes a seed.
        passes_gradient: False if the outputs depend on an input, but have no gradient with respect to any.
    """

    name: str
    text: str
    inputs: tuple[str, ...]
    states: dict[str, float]
    params: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: dict[str, float | Tensor]
    constants: dict[str, Any]
    passes_gradient = True

    def __init__(self, read: Signature, step: Step, function: Callable, rules: Mapping[str, Initial]):
        self.name, self.inputs, self.params = read.name, read.inputs, read.params
        self.defaults, self.constants = read.defaults, read.constants
        self.states = {state: rule.number for state, rule in rules.items()}
        self.step: Step | None = step
        self._function = function
        self._rules = dict(rules)
        self._starts_at_numbers = all(rule.is_number for rule in rules.values())
        self._signature = read
        self._slots = tuple((param, read.defaults.get(param)) for param in read.params)
        self._number_tensors: dict[tuple[float, torch.dtype], Tensor] = {}
        self.text, self.outputs, self.passes_gradient = record(read, step, function, self.states)
        self.__doc__, self.__name__ = function.__doc__, self.name
        self.__module__ = getattr(function, "__module__", __name__)
        self.__qualname__ = getattr(function, "__qualname__", self.name)
        self.draws = graph.draws(self.text)
        self._check_text()

    def _check_text(self) -> None:
        none, one = (torch.ones(shape, dtype=torch.float32, device="cpu") for shape in ((0, 1), ()))
        try:
            _run(
                self.text,
                [none] * len(self.inputs),
                [],
                [one] * len(self.params),
                **(self._draw_arguments(0, None, {}) if self.draws else {}),
            )
        except ValueError as error:
            first = str(error).splitlines()[0]
            raise ValueError(f"{self.name}: the function's equations are not legal neuron text: {first}") from None

    # --- description ---

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<spikeforge neuron {self.text.partition('neuron ')[2].partition(' {')[0]}>"

    def cuda_source(self, dtype: torch.dtype = torch.float32) -> str:
        """Returns the CUDA source of the forward and backward kernels for inputs of this dtype. Needs no GPU."""
        return torch.ops.spikeforge.print_cuda(self.text, dtype)

    def fixed(self, /, **constants: Any) -> TracedNeuron:
        """Returns the neuron traced with some parameters or constants as Python values, for use in branches."""
        if self.step is None:
            raise ValueError(f"{self.name}: its function is not available, so it cannot be traced again")
        names = [*self.params, *self.constants]
        for name in constants:
            if name not in names:
                known = ", ".join(names) or "none"
                raise TypeError(f"{self.name}: {name} is not a parameter or constant; there are {known}")
        old = self._signature
        read = Signature(
            old.name,
            old.inputs,
            old.states,
            tuple(p for p in old.params if p not in constants),
            {p: x for p, x in old.defaults.items() if p not in constants},
            {**old.constants, **constants},
        )
        for state, rule in self._rules.items():
            if any(p in constants for p in rule.params):
                needed = ", ".join(rule.params)
                raise ValueError(
                    f"{self.name}: the initial value of state {state} depends on {needed}, which must stay parameters"
                )
        return TracedNeuron(read, self.step, self._function, self._rules)

    # --- calls ---

    def __call__(
        self, /, *args: Any, store_states: bool = False, seed: Any = None, offset: Any = None, **named: Any
    ) -> tuple[Any, dict[str, Tensor]]:
        """Runs all steps.

        Args:
            args: the inputs, each [T, *shape], then optionally the states [*shape]; None for the initial value.
            store_states: return the states of all steps, [T, *shape], instead of the last ones.
            seed: for neurons that draw random numbers: a whole number, or an int64 tensor with one element, which a
                captured CUDA graph reads at each replay. Equal seeds draw equal numbers; by default torch's generator
                draws one.
            offset: the index of the first step, as `seed`; by default 0. To continue a sequence, pass its states, its
                seed and the number of earlier steps.
            named: parameters, numbers or tensors that broadcast against shape; also states by name.

        Returns:
            The output [T, *shape], or a tuple of outputs, and a dict of states for the next call, `**states`.
        """
        if not self.passes_gradient:
            warn_of_gradient(self.name, args)
        draws = {} if seed is None and offset is None else self._draw_arguments(seed, offset, named)
        if len(args) == len(self.inputs) and self._starts_at_numbers and not draws:  # a plain call
            params = self._params_alone(args[0], named)
            if params is not None:
                return self._returned(
                    *(
                        _run(self.text, args, [], params, store_states=True)
                        if store_states
                        else _run(self.text, args, [], params)
                    )
                )
        inputs, states, params = self._arguments(args, named)
        given = self._initial(inputs, states, params)
        outputs, last = _run(self.text, inputs, given, params, store_states=store_states, **draws)
        return self._returned(outputs, last)

    def _draw_arguments(self, seed: Any, offset: Any, named: dict[str, Any]) -> dict[str, Tensor]:
        """Returns seed and offset for `run`, unless the neuron has arguments of these names."""
        given = {name: x for name, x in (("seed", seed), ("offset", offset)) if x is not None}
        for name in (*self.inputs, *self.states, *self.params):
            if name in given:
                named[name] = given.pop(name)
        return {
            name: x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.int64, device="cpu")
            for name, x in given.items()
        }

    def _params_alone(self, x: Any, named: dict[str, Any]) -> list[Tensor] | None:
        """Returns the parameters of a call without other named arguments, else None."""
        if not isinstance(x, Tensor):
            return None
        params, taken = [], 0
        for name, default in self._slots:
            value = named.get(name)
            if value is None:
                value = default
            else:
                taken += 1
            params.append(value if isinstance(value, Tensor) else self._number(name, value, state_type(x.dtype)))
        return params if taken == len(named) else None

    def loop(self, /, *args: Any, store_states: bool = False, **named: Any) -> tuple[Any, dict[str, Tensor]]:
        """Runs the Python function step by step under autograd: a slow reference with the interface of a call.

        Draws of torch's functions (`torch.randn_like(x)`) come from torch's generator.
        """
        if self.step is None:
            raise ValueError(
                f"{self.name}: its function is not available: a neuron that was unpickled without its module has only "
                "its text"
            )
        inputs, states, params = self._arguments(args, named)
        by_name = dict(zip(self.params, params))
        first = [
            self._rules[name].tensor(f"{self.name}: state {name}", by_name, inputs[0]) if state is None else state
            for name, state in zip(self.states, states)
        ]
        outputs, last = loop.run_steps(
            self._signature, self.step, inputs, first, by_name, len(self.outputs), store_states
        )
        return self._returned(outputs, last)

    def initial_states(self, inputs: Sequence[Tensor], params: Sequence[Tensor]) -> list[Tensor]:
        """Returns the initial states for `torch.ops.spikeforge.run`; [] if the text has all of them."""
        return self._initial(list(inputs), [None] * len(self.states), list(params))

    def _initial(self, inputs: list[Tensor], states: list[Tensor | None], params: list[Tensor]) -> list[Tensor]:
        if self._starts_at_numbers and all(state is None for state in states):
            return []
        by_name = dict(zip(self.params, params))
        return [
            self._rules[name].tensor(f"{self.name}: state {name}", by_name, inputs[0]) if state is None else state
            for name, state in zip(self.states, states)
        ]

    def _arguments(self, args: tuple, named: dict[str, Any]) -> tuple[list[Tensor], list[Tensor | None], list[Tensor]]:
        count = len(self.inputs)
        if len(args) > count + len(self.states):
            raise TypeError(f"{self.name}: takes {self._takes()}, but {len(args)} positional arguments are given")
        positional = list(args) + [named.pop(name, None) for name in (*self.inputs, *self.states)[len(args) :]]
        for name, x in zip(self.inputs, positional):
            if not isinstance(x, Tensor):
                raise TypeError(f"{self.name}: input {name} must be a tensor [T, *shape], but is {_kind(x)}")
        for name, state in zip(self.states, positional[count:]):
            if state is not None and not isinstance(state, Tensor):
                raise TypeError(
                    f"{self.name}: state {name} must be a tensor [*shape] or None, but is {_kind(state)}; "
                    "pass a dict of states as **states"
                )
        dtype = state_type(positional[0].dtype)
        given = [named.pop(name, None) for name in self.params]
        params = [
            self._param(name, default if value is None else value, dtype)
            for (name, default), value in zip(self._slots, given)
        ]
        if named:
            raise TypeError(f"{self.name}: {next(iter(named))} is not an argument; it takes {self._takes()}")
        return positional[:count], positional[count:], params

    def _param(self, name: str, value: Any, dtype: torch.dtype) -> Tensor:
        return value if isinstance(value, Tensor) else self._number(name, value, dtype)

    def _number(self, name: str, value: Any, dtype: torch.dtype) -> Tensor:
        """Returns a number as a parameter on the CPU, cached unless a graph is compiled."""
        if value is None:
            raise TypeError(f"{self.name}: parameter {name} is missing: {self.name}(..., {name}=...)")
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise TypeError(f"{self.name}: parameter {name} must be a number or a tensor, but is {_kind(value)}")
        if torch.compiler.is_compiling() or value == 0:  # 0 and -0 are one key
            return torch.full((), value, dtype=dtype, device="cpu")
        made = self._number_tensors.get((value, dtype))
        if made is None:
            if len(self._number_tensors) > _MOST_NUMBERS:
                self._number_tensors.clear()
            with torch.inference_mode(False):
                made = self._number_tensors[value, dtype] = torch.full((), value, dtype=dtype, device="cpu")
        return made

    def _returned(self, outputs: list[Tensor], states: list[Tensor]) -> tuple[Any, dict[str, Tensor]]:
        return outputs[0] if len(outputs) == 1 else tuple(outputs), dict(zip(self.states, states))

    def _takes(self) -> str:
        lists = (", ".join(names) or "-" for names in (self.inputs, self.states, self.params))
        return "; ".join(lists) + " (inputs; states; parameters)"

    # --- copies ---

    def __deepcopy__(self, memo: Any) -> TracedNeuron:
        return self  # immutable

    def __reduce__(self) -> Any:
        data = dict(self.__dict__, _number_tensors={})
        if not _can_be_pickled(self.step):
            data.update(step=None, _function=None)
        data["_rules"] = {name: self._picklable(name, rule) for name, rule in self._rules.items()}
        return _restored, (self.__module__, self.__qualname__, self.text, data)

    def _picklable(self, state: str, rule: Initial) -> Initial:
        lost = rule.function is not None and not _can_be_pickled(rule.function)
        return replace(rule, function=Lost(f"{self.name}: state {state}")) if lost else rule


def warn_of_gradient(name: str, inputs: Sequence[Any]) -> None:
    """Warns if an input requires a gradient that the neuron does not pass."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return
    if any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        warn_caller(
            f"{name}: an input requires a gradient, but no output passes one to an input: comparisons and rounding "
            'have none. Write a spike as spikeforge.spike(h - threshold, "atan")'
        )


def _kind(x: Any) -> str:
    return f"{x!r} ({type(x).__name__})" if isinstance(x, (int, float, str, type(None))) else f"a {type(x).__name__}"


def _named(module: str, qualname: str) -> Any:
    try:
        found = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError):
        return None


def _can_be_pickled(function: Any) -> bool:
    if function is None:
        return False
    return _named(getattr(function, "__module__", ""), getattr(function, "__qualname__", "")) is function


def _restored(module: str, qualname: str, text: str, data: dict[str, Any]) -> TracedNeuron:
    """Returns the neuron with this qualified name if it has the same text, else the pickled one."""
    found = _named(module, qualname)
    if isinstance(found, TracedNeuron) and found.text == text:
        return found
    result = TracedNeuron.__new__(TracedNeuron)
    result.__dict__.update(data)
    return result
