"""The base of layers that run a neuron and its connections as one operation over time."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any

from torch import Tensor, nn

from spikeforge.nn.containers import Container
from spikeforge.nn.loops import why_not_neuron
from spikeforge.nn.stateful import States, _join, _under


class Population(Container):
    """A container of the part "neuron", whose states it passes to `_advance` with its own.

    Raises:
        TypeError: if the neuron cannot run as part of an operator.
    """

    takes_samples = True

    def __init__(self, neuron: nn.Module, *, stateful: bool, persistent_state: bool):
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        reason = why_not_neuron(neuron) if isinstance(neuron, nn.Module) else f"{neuron!r} is not a module"
        if reason:
            raise TypeError(f"{self._title()}: neuron cannot run as one operator: {reason}")
        self.neuron = neuron
        if stateful:
            neuron._memory.keeping, neuron.persistent_state = True, persistent_state
        self._name_parts(["neuron"])

    @property
    def n_inputs(self) -> int:
        return self.neuron.n_inputs

    @property
    def in_ports(self) -> tuple[str, ...]:
        return self.neuron.in_ports

    @property
    def out_ports(self) -> tuple[str, ...]:
        return self.neuron.out_ports

    def _forward(self, inputs: Sequence[Tensor], state: States | EllipsisType, store: bool, advance: Any = None) -> Any:
        if store:
            raise ValueError(f"{self._title()}: store_states is not supported; call the layer step by step")
        if state is not ... or not self._memory.keeping:
            start = {} if state is ... else self._checked_state(state)
            outputs, after = self._advance(inputs, start, store)
            return outputs if state is ... else (outputs, after)
        self._check_keeping()
        memories = {"": self._memory, "neuron": self.neuron._memory}
        start = {
            _join(part, name): value for part, memory in memories.items() for name, value in memory.start().items()
        }
        outputs, after = self._advance(inputs, start, store)
        self._memory.keep({name: after[name] for name in self.state_names})
        self.neuron._memory.keep(_under("neuron", after))
        return outputs
