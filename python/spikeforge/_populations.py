"""Populations of a simulated network, parts of them, and their states and parameters."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spikeforge._numbers import check_indices, tensor_of

Network = Any  # spikeforge.simulation.Network; that module imports this one

_CPP = torch.ops.spikeforge_simulation
NEURONS_IN_A_NAME = 4  # of a part of a population


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Population:
    """Neurons ``start`` to ``stop - 1`` of a network: one neuron model, with parameters for each neuron.

    ``population[index]`` is a :class:`Part`: the index is a slice, a neuron, a list or a tensor of neurons, or a mask,
    bool [size]. Negative indices count from the end.
    """

    name: str
    start: int
    stop: int
    text: str
    inputs: tuple[str, ...]
    states: Values
    params: Values
    area: str = ""

    def __len__(self) -> int:
        return self.stop - self.start

    def __repr__(self) -> str:
        return f"Population({self.name!r}, neurons {self.start}:{self.stop})"

    @property
    def neurons(self) -> slice:
        return slice(self.start, self.stop)

    def __getitem__(self, index: slice | int | Sequence[int] | Tensor) -> Part:
        size, what = len(self), f"Network: the index of {self.name}"
        if isinstance(index, slice):
            chosen = range(*index.indices(size))
            name = f"{chosen.start}:{chosen.stop}" + (f":{chosen.step}" if chosen.step != 1 else "")
            end = chosen.start + len(chosen) * chosen.step
            indices = torch.arange(chosen.start, end, chosen.step, device="cpu")
            return Part(f"{self.name}[{name}]", self, indices)
        numbers = tensor_of(what, index, dtype=None).cpu()
        if numbers.dtype == torch.bool:
            if numbers.shape != (size,):
                raise IndexError(f"{what} is a mask, which must have shape [{size}], but has {list(numbers.shape)}")
            numbers = numbers.nonzero().flatten()
        try:
            listed = numbers.reshape(-1) if numbers.dim() == 0 else numbers
            numbers = check_indices(what, listed, size, least=-size) % max(size, 1)
        except ValueError as error:
            raise IndexError(str(error)) from None
        if len(numbers.unique()) != len(numbers):
            raise ValueError(f"{what} must have each neuron once, but one is repeated")
        first = ", ".join(map(str, numbers[:NEURONS_IN_A_NAME].tolist()))
        return Part(f"{self.name}[{first}{', ...' if len(numbers) > NEURONS_IN_A_NAME else ''}]", self, numbers)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Part:
    """Some neurons of a population, ``population[index]``, in the order of the index.

    Attributes:
        indices: int64 [neurons], on the CPU: the neurons, counted within the population.
    """

    name: str
    population: Population
    indices: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Part({self.name!r}, {len(self)} neurons)"

    @property
    def neurons(self) -> Tensor:
        """The neurons, counted within the network: int64 [neurons]."""
        return self.indices + self.population.start

    def spread(self, values: Tensor) -> Tensor:
        """Returns values [..., neurons of the part] as [..., neurons of the population], with zeros elsewhere."""
        at = self.indices.to(values.device)
        return values.new_zeros(*values.shape[:-1], len(self.population)).index_copy_(-1, at, values)


Neurons = Population | Part


def within(what: str, neurons: Neurons, chosen: Any) -> Tensor:
    """Converts neurons, counted within a part, to neurons of the population. Those of a population are not checked."""
    numbers = tensor_of(what, chosen, dtype=None)
    numbers = numbers if numbers.numel() else numbers.long()
    return neurons.indices[check_indices(what, numbers.cpu(), len(neurons))] if isinstance(neurons, Part) else numbers


def spread(what: str, neurons: Neurons, value: Any) -> Tensor:
    """Converts a scalar, or one value for each neuron, to the same of the population, with zeros outside a part."""
    numbers = tensor_of(what, value)
    if isinstance(neurons, Population):
        return numbers
    size, has_copies = len(neurons), numbers.dim() == 2  # the number of copies is checked later
    if numbers.dim() and numbers.shape[-1] != size and not (has_copies and numbers.shape[1] == 1) or numbers.dim() > 2:
        raise ValueError(f"{what} must be a number or have shape [{size}], but has {list(numbers.shape)}")
    return neurons.spread(numbers.to_dense().expand(*numbers.shape[:-1], size))


class Values(MutableMapping[str, Any]):
    """The states or parameters of a population, by name.

    Before the network is built, the values that :meth:`Network.populate` received. Afterwards, tensors [size], or
    [copies, size] if the network has copies: a state shares memory with the network, and a parameter is not shared. An
    assigned scalar or tensor ([size], [copies, 1] or [copies, size]) is used from the next step on. If a process group
    shares the network, states are those of this process's neurons.

    Raises:
        KeyError: if there is no state or parameter of this name.
        RuntimeError: if a value is assigned before the network is built.
    """

    def __init__(self, network: Network, kind: str, initial: dict[str, Any]):
        self._network = weakref.ref(network)
        self._kind, self.initial = kind, initial
        self._number = len(network.populations)

    def _held(self, name: str) -> Any:
        """Returns the C++ network if it is built, else None."""
        if name not in self.initial:
            raise KeyError(f"the population has no {self._kind} {name}; it has {', '.join(self.initial) or 'none'}")
        network = self._network()
        return network._held if network is not None and _CPP.is_built(network._held) else None

    def __getitem__(self, name: str) -> Any:
        held = self._held(name)
        if held is None:
            return self.initial[name]
        return (_CPP.state_of if self._kind == "state" else _CPP.param_of)(held, self._number, name)

    def __setitem__(self, name: str, value: float | Tensor) -> None:
        held = self._held(name)
        if held is None:
            raise RuntimeError(f"Network: the {self._kind} {name} can be assigned after build() or the first step")
        given = tensor_of(f"Network: the {self._kind} {name}", value)
        if self._kind == "parameter":
            _CPP.set_param(held, self._number, name, given)
            return
        state = _CPP.state_of(held, self._number, name)
        shapes = [torch.Size(), state.shape]
        if state.dim() == 2:  # of copies
            shapes += [state.shape[1:], torch.Size([len(state), 1])]
        if given.shape not in shapes:
            raise ValueError(
                f"Network: the state {name} must be a scalar or have shape {list(state.shape)}, but has "
                f"{list(given.shape)}"
            )
        state.copy_(given)

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"Network: a {self._kind} cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self.initial)

    def __len__(self) -> int:
        return len(self.initial)

    def __repr__(self) -> str:
        return repr(dict(self))
