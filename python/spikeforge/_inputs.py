"""External inputs of a call of simulate or step: dense tensors and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spikeforge._numbers import check_indices, check_text, tensor_of
from spikeforge._populations import Neurons, Part

Network = Any  # spikeforge.simulation.Network; that module imports this one
Inputs = Mapping[Any, Any]  # see simulate


class GivenInputs:
    """The inputs of a call, in the form of the operators' arguments."""

    def __init__(self) -> None:
        self.populations: list[Neurons] = []
        self.numbers: list[int] = []
        self.names: list[str] = []
        self.index_counts: list[int] = []  # of each input, the number of its tensors after the values
        # Values; or values, steps, neurons and copies, sorted by steps. Copies without elements are all copies.
        self.tensors: list[tuple[Tensor, ...]] = []

    def of(self, first: int, count: int) -> tuple[list[int], list[str], list[int], list[Tensor]]:
        """Returns the input of steps ``first`` to ``first + count - 1``."""
        tensors: list[Tensor] = []
        for population, (values, *events) in zip(self.populations, self.tensors):
            if not events:
                tensors.append(values[first : first + count])
                if isinstance(population, Part):
                    tensors.append(population.indices)
                continue
            steps, neurons, copies = events
            neurons = population.indices[neurons] if isinstance(population, Part) else neurons
            if first == 0 and (not steps.numel() or bool(steps[-1] < count)):
                tensors += values, steps, neurons, copies
                continue
            begin, end = torch.searchsorted(steps, torch.tensor([first, first + count])).tolist()
            tensors += values[begin:end] if values.dim() else values, steps[begin:end] - first, neurons[begin:end]
            tensors.append(copies[begin:end])
        return self.numbers, self.names, self.index_counts, tensors


def read_inputs(network: Network, inputs: Inputs | None, steps: int) -> GivenInputs:
    """Reads the inputs of a call of this many steps.

    Checks shapes and ranges of the whole call, because an operator receives one piece of it. Operators check the rest.
    """
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
        given.index_counts.append(3 if isinstance(value, tuple) else int(isinstance(population, Part)))
        if isinstance(value, tuple):
            sizes = {"steps": steps, "neurons": len(population), "copies": network.copies}
            given.tensors.append(_read_events(what, value, sizes))
            continue
        values, shape = _dense(what, value), [steps, len(population)]
        of_copies = [steps, network.copies, len(population)]
        if list(values.shape) != shape and (network.copies == 1 or list(values.shape) != of_copies):
            also = f" or {of_copies}, steps, copies and neurons," if network.copies > 1 else ""
            raise ValueError(f"{what} must have shape {shape}, steps and neurons,{also} but has {list(values.shape)}")
        given.tensors.append((values,))
    return given


def _dense(what: str, value: Any) -> Tensor:
    values = tensor_of(what, value)
    if values.layout != torch.strided or values.is_meta:
        raise TypeError(f"{what} must be a dense tensor with values, but has layout {values.layout}, {values.device}")
    return values


def _read_events(what: str, value: tuple[Any, ...], sizes: Mapping[str, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns weights, steps, neurons and copies of events, in the order of steps."""
    if len(value) not in (2, 3, 4):
        raise TypeError(f"{what} must be a tensor or (steps, neurons, weights, copies), but is {value!r:.60}")
    indices = [
        check_indices(f"{what}: {name}", tensor_of(f"{what}: {name}", numbers, dtype=None).cpu(), size)
        for numbers, (name, size) in zip((*value[:2], *value[3:]), sizes.items())
    ]
    steps, neurons, *copies = indices
    weights = _dense(f"{what}: weights", value[2]) if len(value) > 2 else torch.ones((), device="cpu")
    if any(len(each) != len(steps) for each in indices) or weights.shape not in (torch.Size(), steps.shape):
        raise ValueError(
            f"{what} must have as many steps as neurons, weights and copies, but has shapes "
            f"{', '.join(str(list(each.shape)) for each in (steps, neurons, weights, *copies))}"
        )
    order = steps.argsort(stable=True)
    weights = weights[order.to(weights.device)] if weights.dim() else weights
    return weights, steps[order], neurons[order], copies[0][order] if copies else steps.new_empty(0)
