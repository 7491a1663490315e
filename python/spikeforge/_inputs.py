"""External inputs of a call of simulate or step: dense tensors and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spikeforge._numbers import check_text, tensor_of
from spikeforge._populations import Neurons, Part

Network = Any  # spikeforge.simulation.Network; that module imports this one
Inputs = Mapping[Any, Any]  # see simulate


class GivenInputs:
    """The inputs of a call, in the form of the operators' arguments."""

    def __init__(self) -> None:
        self.populations: list[Neurons] = []
        self.numbers: list[int] = []
        self.names: list[str] = []
        self.are_events: list[bool] = []
        self.tensors: list[tuple[Tensor, ...]] = []  # values, or values, steps and neurons sorted by steps

    def of(self, first: int, count: int) -> tuple[list[int], list[str], list[bool], list[Tensor]]:
        """Returns the input of steps ``first`` to ``first + count - 1``."""
        tensors: list[Tensor] = []
        for population, (values, *events) in zip(self.populations, self.tensors):
            if not events:
                part = values[first : first + count] if values.dim() else values
                tensors.append(population.spread(part) if isinstance(population, Part) else part)
                continue
            steps, neurons = events
            neurons = population.indices[neurons] if isinstance(population, Part) else neurons
            if first == 0 and (not steps.numel() or bool(steps[-1] < count)):
                tensors += values, steps, neurons
                continue
            begin, end = torch.searchsorted(steps, torch.tensor([first, first + count])).tolist()
            tensors += values[begin:end] if values.dim() else values, steps[begin:end] - first, neurons[begin:end]
        return self.numbers, self.names, self.are_events, tensors

    def check(self, steps: int) -> None:
        """Raises ValueError for inputs that would be refused after the first piece of steps."""
        for population, (values, *events) in zip(self.populations, self.tensors):
            if not events and list(values.shape) != (shape := [steps, len(population)]):
                raise ValueError(
                    f"simulate: the input of {population.name} must have shape {shape}, steps and neurons, but has "
                    f"{list(values.shape)}"
                )
            for what, numbers, end in zip(("steps", "neurons"), events, (steps, len(population))):
                if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < end:
                    wrong = int(numbers.min()) if int(numbers.min()) < 0 else int(numbers.max())
                    raise ValueError(
                        f"simulate: the input of {population.name} must have {what} from 0 to {end - 1}, but one is "
                        f"{wrong}"
                    )


def read_inputs(network: Network, inputs: Inputs | None) -> GivenInputs:
    given = GivenInputs()
    if inputs is None:
        return given
    if not isinstance(inputs, Mapping):
        raise TypeError(f"simulate: inputs must be a dict of populations and values, but are {inputs!r:.60}")
    for key, value in inputs.items():
        population, name = key if isinstance(key, tuple) and len(key) == 2 else (key, "")
        given.numbers.append(network._number(population))
        given.populations.append(population)
        what = f"simulate: the input of {population.name}"
        given.names.append(check_text(what, name))
        given.are_events.append(isinstance(value, tuple))
        if not isinstance(value, tuple):
            given.tensors.append((tensor_of(what, value),))
            continue
        if len(value) not in (2, 3):
            raise TypeError(f"{what} must be a tensor or (steps, neurons, weights), but is {value!r:.60}")
        steps, neurons = (tensor_of(f"{what}: events", each, dtype=None).cpu() for each in value[:2])
        weights = tensor_of(f"{what}: weights", value[2]) if len(value) == 3 else torch.ones((), device="cpu")
        for each in (steps, neurons):
            if each.dim() != 1 or each.numel() != steps.numel() or weights.numel() not in (1, steps.numel()):
                raise ValueError(
                    f"{what} must have as many steps as neurons and weights, but has shapes {list(steps.shape)}, "
                    f"{list(neurons.shape)} and {list(weights.shape)}"
                )
            if each.numel() and (each.is_floating_point() or each.is_complex() or each.dtype == torch.bool):
                raise TypeError(f"{what}: steps and neurons must be whole numbers, but are {each.dtype}")
        order = steps.argsort(stable=True)
        weights = weights[order.to(weights.device)] if weights.dim() else weights
        given.tensors.append((weights, steps.long()[order], neurons.long()[order]))
    return given
