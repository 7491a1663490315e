"""Custom neurons as modules, and two that are defined this way: the current-based LIF and the leaky integrator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from spikeforge.nn.constant import ConstantsModule
from spikeforge.nn.errors import ERRORS, explained, first_line
from spikeforge.nn.neurons import Firing, Number, check_positive
from spikeforge.nn.stateful import NO_STATE, Memory, State, States
from spikeforge.nn.text import TextCell, read_header
from spikeforge.trace.graph import draws


@runtime_checkable
class Traced(Protocol):
    """A traced function: its text and the names in it; see :func:`spikeforge.neuron`."""

    text: str
    inputs: tuple[str, ...]
    states: dict[str, float]
    params: tuple[str, ...]


class QuickText:
    """The attributes that a call of a custom neuron reads, in slots."""

    __slots__ = ("cell", "inputs", "memory")

    def __init__(self, memory: Memory, cell: TextCell):
        self.memory, self.cell, self.inputs = memory, cell, cell.inputs

    def __reduce__(self) -> tuple[Any, ...]:
        return QuickText, (self.memory, self.cell)


class Neuron(ConstantsModule):
    """A custom neuron, from neuron text or a traced function: ``Neuron(alif, tau=Learnable(2.0), beta=0.2)``.

    Args:
        neuron: text (``docs/neuron_text.md``), or the result of ``@spikeforge.neuron``.
        scan: for a neuron whose next states are affine in its states, run steps in parallel, with another rounding
            (``docs/custom_neurons.md``). Within a layer with batch norm, a residual or a recurrence the neuron runs
            step by step.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.
        params: the neuron's parameters by name, each a number, a tensor, an ``nn.Parameter`` or
            :class:`~spikeforge.nn.Learnable`.

    A call takes one ``[T, *shape]`` for each input of the neuron, all of one shape and type, and returns a tensor, or a
    tuple if it has several outputs. States that are not passed start at the values of the neuron's header.

    Raises:
        ValueError: if the text is not legal, a parameter is missing or not one of the neuron, or with ``scan`` the next
            states are not affine in the states.
    """

    takes_samples = fresh_outputs = True

    def __init__(
        self, /, neuron: str | Traced, *, scan: bool = False, stateful: bool = False, persistent_state: bool = False,
        **params: Number,
    ):  # fmt: skip
        text = neuron if isinstance(neuron, str) else getattr(neuron, "text", None)
        if not isinstance(text, str):
            hint = "; decorate it with @spikeforge.neuron(states={...})" if callable(neuron) else ""
            raise TypeError(
                f"Neuron: neuron must be neuron text or a traced function, but is {type(neuron).__name__}{hint}"
            )
        header = read_header(text)
        for name in ("scan", "stateful", "persistent_state"):
            if name in header.params:
                raise ValueError(
                    f"Neuron: {header.name} has a parameter {name}, which is an argument of the module: rename it"
                )
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        self._check_flag("scan", scan)
        self.text = text
        self.name = header.name
        self.input_names = header.inputs
        self.n_inputs = len(header.inputs)
        self.state_names = tuple(header.states)
        self.in_ports = ("in",) if self.n_inputs == 1 else header.inputs
        params = dict(getattr(neuron, "defaults", {}), **params)
        self._check_given(header.params, params)
        cell = TextCell(
            text, self.n_inputs, header.params, header.states, getattr(neuron, "initial_states", None), scan=scan,
            passes_gradient=getattr(neuron, "passes_gradient", True),
        )  # fmt: skip
        self._quick = QuickText(self._memory, cell)
        try:
            self.n_outputs = cell.check()
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self._title()}: {first_line(error)}") from None
        self.out_ports = ("out",) if self.n_outputs == 1 else tuple(f"out{i}" for i in range(self.n_outputs))
        self._set_constants({name: params[name] for name in header.params})

    @property
    def _draws(self) -> bool:
        return draws(self._quick.cell.text)

    def _prepare(self) -> None:
        self._quick.cell.renew(self._numbers, self._taken)

    def _check_given(self, wanted: tuple[str, ...], given: Mapping[str, Any]) -> None:
        listed = ", ".join(wanted) or "none"
        for name in given:
            if name not in wanted:
                raise ValueError(f"{self._title()}: it has no parameter {name}; its parameters: {listed}")
        for name in wanted:
            if name not in given:
                raise ValueError(
                    f"{self._title()}: the parameter {name} is missing; pass {self._kind()}(..., {name}=value)"
                )

    def _kind(self) -> str:
        name = self.__dict__.get("name")
        kind = type(self).__name__
        return f"{kind} {name}" if name and name != kind else kind

    def forward(self, x: Any, *inputs: Any, state: States | EllipsisType = ..., store_states: bool = False):
        """``y = neuron(x1, ...)`` or ``y, state = neuron(x1, ..., state)``.

        See :class:`~spikeforge.nn.StatefulModule`.
        """
        quick, inputs = self._quick, (x, *inputs)
        if (
            len(inputs) != quick.inputs
            or state is not ...
            or store_states
            or quick.memory.keeping
            or quick.memory.samples
        ):
            return super().forward(*inputs, state=state, store_states=store_states)
        try:
            outputs, _ = quick.cell.call(self, inputs, NO_STATE, False)
        except ERRORS as error:
            raise explained(self, error, inputs, NO_STATE)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Any, State]:
        try:
            outputs, after = self._quick.cell.call(self, inputs, state, store)
        except ERRORS as error:
            raise explained(self, error, inputs, state)
        return outputs[0] if len(outputs) == 1 else tuple(outputs), dict(zip(self.state_names, after))

    def extra_repr(self) -> str:
        return "; ".join(
            part
            for part in (
                ", ".join(self.input_names),
                ", ".join(self.state_names),
                ", ".join(self._described_constants()),
            )
            if part
        )


class LI(Neuron):
    """Leaky integrator that never fires, to read a network out: V = V + (X - (V - v_rest)) / tau is its output and its
    state v.

    Args:
        tau: time constant in steps, above 0.
        v_rest: the value to which V decays.
        decay_input: False for V = V - (V - v_rest) / tau + X.
        scan, stateful, persistent_state: see :class:`~spikeforge.nn.Neuron`.
    """

    _positive = ("tau",)

    def __init__(
        self, *, tau: Number = 2.0, v_rest: Number = 0.0, decay_input: bool = True, scan: bool = False,
        stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        self._check_flag("decay_input", decay_input)
        step = "v + 1 / tau * (x - (v - v_rest))" if decay_input else "v - 1 / tau * (v - v_rest) + x"
        text = f"neuron LI(x; v; tau, v_rest) {{\n  next = {step}\n  return next\n  v' = next\n}}\n"
        super().__init__(text, scan=scan, tau=tau, v_rest=v_rest, stateful=stateful, persistent_state=persistent_state)
        self.decay_input = decay_input

    def _prepare(self) -> None:
        super()._prepare()
        check_positive(self)


class CubaLIF(Firing):
    """Current-based LIF: I' = I - I / tau_synapse + X, and this current charges V as a LIF of tau_membrane. States: v,
    i.

    It runs as neuron text, in which scalars are constants.
    """

    _op_name = "cuba_lif"
    _as_text = True
    _positive = ("tau_synapse", "tau_membrane")
    state_names = ("v", "i")

    tau_synapse: Number = 2.0
    tau_membrane: Number = 2.0
    decay_input: bool = True
    v_threshold: Number = 1.0
    v_reset: Number | None = 0.0
