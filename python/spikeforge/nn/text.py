"""Runs neurons in neuron text, and writes the predefined neurons as neuron text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from spikeforge._numbers import operand, state_type
from spikeforge.nn.constant import Taken, taken_by
from spikeforge.surrogate import Custom
from spikeforge.trace.neuron import warn_of_gradient

if TYPE_CHECKING:
    from spikeforge.nn.constant import ConstantsModule

OPERATOR = torch.ops.spikeforge.run.default
BUILTIN = OPERATOR._op  # saves a call of Python, but cannot be traced
is_compiling = torch.compiler.is_compiling

# A function of text, inputs, states and parameters that returns outputs and states.
Layer = Callable[[str, Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], tuple[list[Tensor], list[Tensor]]]


@dataclass(frozen=True)
class Header:
    """The first line of a neuron's text: its names, and the initial values of its states."""

    name: str
    inputs: tuple[str, ...]
    states: dict[str, float]
    params: tuple[str, ...]


HEADER = re.compile(r"\s*neuron\s+([A-Za-z_]\w*)\s*\(([^)]*)\)")


def read_header(text: str) -> Header:
    """Parses the header of neuron text. Raises ValueError if the text does not start with one."""
    found = HEADER.match(re.sub(r"#[^\n]*", "", text))
    if not found:
        start = " ".join(text.split())[:40]
        raise ValueError(
            f'Neuron: the text must begin with "neuron name(inputs; states; parameters) {{", but begins with "{start}"'
        )
    lists = [[entry.strip() for entry in part.split(",") if entry.strip()] for part in found[2].split(";")]
    inputs, states, params = (*lists, [], [], [])[:3]
    pairs = [state.partition("=") for state in states]
    try:
        initial = {name.strip(): float("".join(value.split()) or 0) for name, _, value in pairs}
    except ValueError as error:
        raise ValueError(f"Neuron: a state of {found[1]} must start at a number: {error}") from None
    return Header(found[1], tuple(inputs), initial, tuple(params))


class TextCell:
    """A neuron's text with the module's constants as its parameters.

    Args:
        params: the constants that the text has as parameters.
        initial: the initial value of each state: a number, or the name of a constant.
        rule: returns the initial states from inputs and parameters instead, or [] if the text defines them.
        scan: whether steps may be computed in parallel.
        passes_gradient: False warns when an input requires a gradient.
    """

    __slots__ = (
        "initial", "inputs", "made", "numbers", "params", "passes_gradient", "rule", "scan", "starts_by_itself",
        "taken", "text",
    )  # fmt: skip

    def __init__(
        self, text: str, inputs: int, params: Sequence[str], initial: Mapping[str, float | str],
        rule: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]] | None = None, scan: bool = False,
        passes_gradient: bool = True,
    ):  # fmt: skip
        # torch.compile copies the text into a comment of the generated code.
        self.text = torch.ops.spikeforge.text_on_a_line(text)
        self.inputs, self.params, self.initial, self.rule = inputs, tuple(params), dict(initial), rule
        self.scan, self.passes_gradient = scan, passes_gradient
        self.starts_by_itself = rule is None and not any(isinstance(value, str) for value in self.initial.values())
        self.renew({}, ())

    def renew(self, numbers: Mapping[str, float | None], taken: Sequence[Taken]) -> None:
        """Sets the constants that are scalars, and the form in which the operator accepts those that are tensors."""
        self.numbers = {name: numbers[name] for name in self.params if name in numbers}
        self.taken = tuple(one for one in taken if one[1].parts(one[0])[0] in self.params)
        self.made: dict[torch.dtype, dict[str, Tensor]] = {}  # the scalars as tensors, for each type

    def __reduce__(self) -> tuple[Any, ...]:
        made_of = self.text, self.inputs, self.params, self.initial, self.rule
        return _restored, (*made_of, self.numbers, self.taken, self.scan, self.passes_gradient)

    def check(self) -> int:
        """Returns the number of outputs. Raises ValueError if the text is not legal."""
        nothing, one = torch.empty(0, device="cpu"), torch.ones((), device="cpu")
        outputs, _ = OPERATOR(self.text, [nothing] * self.inputs, [], [one] * len(self.params), scan=self.scan)
        return len(outputs)

    def call(
        self,
        module: ConstantsModule,
        inputs: Sequence[Tensor],
        state: Mapping[str, Tensor],
        store: bool,
        layer: Layer | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns outputs and states: the last ones, or with `store` their sequences.

        Args:
            layer: a function that runs the neuron with the operations around it, instead of the operator.
        """
        x = inputs[0]
        if not self.passes_gradient:
            warn_of_gradient(module.name, inputs)
        if is_compiling() or type(x) is not Tensor and type(x) is not Parameter:  # a fake tensor of a tracer
            numbers, run = self._numbers_of(x.dtype, x.device), OPERATOR
        else:
            numbers, run = self.made.get(x.dtype), BUILTIN
            if numbers is None:
                with torch.inference_mode(False), _not_traced():
                    numbers = self.made[x.dtype] = self._numbers_of(x.dtype, torch.device("cpu"))
        if self.taken:
            tensors = taken_by(module, self.taken, x.dim())
            if module._positive:
                _check_taken(module._positive, tensors)
            params = [tensors[name] if name in tensors else numbers[name] for name in self.params]
        else:
            params = list(numbers.values())
        states = self._states(module, inputs, state, params) if state or not self.starts_by_itself else []
        if layer is not None:
            return layer(self.text, inputs, states, params)
        if module._memory.samples:
            return run(self.text, inputs, states, params, store_states=store, **self.samples_of(module))
        if self.scan:
            return run(self.text, inputs, states, params, store_states=store, scan=True)
        return (
            run(self.text, inputs, states, params, store_states=True)
            if store
            else run(self.text, inputs, states, params)
        )

    def samples_of(self, module: ConstantsModule) -> Mapping[str, Tensor]:
        """The lengths and starts that a call passed to a module."""
        samples = module._memory.samples or {}
        if "start" in samples and not self.starts_by_itself:
            raise ValueError("start: the initial values of states must be scalars, but one is a tensor")
        return samples

    def _numbers_of(self, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        return {
            name: torch.full((), number, dtype=state_type(dtype), device=device)
            for name, number in self.numbers.items()
        }

    def _states(
        self, module: ConstantsModule, inputs: Sequence[Tensor], state: Mapping[str, Tensor], params: Sequence[Tensor]
    ) -> list[Tensor]:
        if len(state) == len(self.initial):
            return [state[name] for name in self.initial]
        if self.rule is None:
            return [state[name] if name in state else self._start(module, name, inputs[0]) for name in self.initial]
        starts = self.rule(inputs, params)
        if not starts and state:
            starts = [self._start(module, name, inputs[0]) for name in self.initial]
        return [state.get(name, start) for name, start in zip(self.initial, starts)]

    def _start(self, module: ConstantsModule, name: str, x: Tensor) -> Tensor:
        start, dtype = self.initial[name], state_type(x.dtype)
        if isinstance(start, str):
            return module.constant(start, x.dim()).to(dtype).expand(x.shape[1:])
        return torch.full(x.shape[1:], start, dtype=dtype, device=x.device)


def _restored(
    text: str, inputs: int, params: tuple, initial: dict, rule: Any, numbers: dict, taken: tuple, scan: bool = False,
    passes_gradient: bool = True,
) -> TextCell:  # fmt: skip
    cell = TextCell(text, inputs, params, initial, rule, scan, passes_gradient)
    cell.numbers, cell.taken = numbers, taken
    return cell


# --- the predefined neurons


def predefined_cell(module: Any) -> TextCell:
    """Writes a predefined neuron as text: in the operations of its operator, so that it has the operator's bits, or if
    it has none, by its `_body`. Scalars are then numbers in the text, instead of its parameters."""
    numbers = {name: float(number) for name, number in module._numbers.items() if number is not None}
    soft = "v_reset" in module._numbers and "v_reset" not in numbers
    used = [name for name in module._constant_names if name not in module._outside and not (name == "v_reset" and soft)]
    params = [name for name in used if name in module._placements or not module._as_text]
    starts = {"v": "v_reset", "w": "w_rest"}
    found = {state: starts.get(state) for state in module.state_names}
    initial: dict[str, float | str] = {
        state: name if name in module._placements else numbers.get(name, 0.0) for state, name in found.items()
    }
    if module._body is not None:
        params = [part for name in params for part in module._placements[name].parts(name)]
        text = written(type(module).__name__, _body(module, numbers), initial, params)
    else:
        text = torch.ops.spikeforge.neuron_text(
            module._op_name, _spike(module, "u"), params, list(numbers), list(numbers.values()),
            name=type(module).__name__, decay_input=module.decay_input, detach_reset=module.detach_reset,
        )  # fmt: skip
    cell = TextCell(text, 1, params, initial)
    cell.renew(module._numbers, module._taken)
    return cell


def written(name: str, body: str, states: Mapping[str, float | str], params: Sequence[str] = ()) -> str:
    """Returns neuron text of one input x.

    Args:
        body: the statements.
        states: the initial value of each state; one that is not a number is 0 in the text.
    """
    heads = [
        f"{state} = {start!r}" if start and not isinstance(start, str) else state for state, start in states.items()
    ]
    return f"neuron {name}(x; {', '.join(heads)}; {', '.join(params)}) {{\n{body}\n}}\n"


def _body(module: Any, numbers: Mapping[str, float]) -> str:
    """Returns the statements of a neuron that writes them from its constants as operands, and its options."""
    operands: dict[str, Any] = {name: getattr(module, name) for name in module._option_kinds if name != "surrogate"}
    operands["fire"] = lambda u: _spike(module, u)
    for name in module._constant_names:
        if name in module._placements:
            parts = module._placements[name].parts(name)
            operands[name] = parts if module._placements[name].count else parts[0]
        else:
            operands[name] = operand(numbers[name]) if name in numbers else None
    operands |= {name: form.format(**operands) for name, form in module._derived.items()}
    return module._body(SimpleNamespace(**operands))


def _spike(module: Any, u: str) -> str:
    if isinstance(module.surrogate, Custom):
        return module.surrogate.spike(u, strict=module.strict)
    return f"{'spike_strict' if module.strict else 'spike'}({u}, {module.surrogate.text})"


@contextmanager
def _not_traced() -> Iterator[None]:
    """Disables torch.jit.trace, so that tensors created in the context are constants of its graph."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


def _check_taken(positive: Sequence[str], taken: Mapping[str, Tensor]) -> None:
    """Checks the time constants on the CPU of a predefined neuron that runs as text, as its operator does."""
    if is_compiling() or torch._C._get_tracing_state():
        return
    if torch._C._functorch.peek_interpreter_stack() is not None:  # under vmap, elements cannot be read
        return
    for name in positive:
        value = taken.get(name)
        if type(value) in (Tensor, Parameter) and value.device.type == "cpu":
            wrong = value[~((value > 0) & value.isfinite())]
            if wrong.numel():
                raise ValueError(f"{name} must be finite and above 0, but is {wrong[0].item():g}")
