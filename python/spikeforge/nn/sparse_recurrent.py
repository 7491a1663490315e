"""Neurons with sparse connections among them, with a delay for each connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spikeforge.connecting import Connectivity
from spikeforge.nn import samples
from spikeforge.nn.errors import ERRORS, explained
from spikeforge.nn.loops import in_flight, text_of
from spikeforge.nn.population import Population
from spikeforge.nn.stateful import State, _join, _under

OPERATOR = torch.ops.spikeforge.sparse_recurrent_run.default
VALUES = ("event", "graded", "number")


class SparseRecurrent(Population):
    """A population of neurons with sparse recurrent connections and delays, trained through time.

    At step t, neuron j receives the input x[t, ..., j] plus, from each connection i -> j with weight w and delay d,
    w s[t - d, ..., i], where s are the outputs. One operator computes all steps: the forward pass delivers the spikes
    of the neurons that fire, and the backward pass computes one product with the connections per step for the whole
    batch. No tensor has the size of the connections times T. x is ``[T, *batch, neurons]``. Hooks on `neuron` do not
    run.

    >>> rules = spikeforge.rules
    >>> drawn = spikeforge.connect(1000, 1000, [spikeforge.Projection(
    ...     slice(0, 1000), slice(0, 1000), rules.fixed_probability(0.1), weight=rules.normal(0.0, 0.1),
    ...     delay=rules.uniform(1, 10))])
    >>> layer = SparseRecurrent(LIF(surrogate="atan"), drawn)

    Args:
        neuron: a predefined neuron, or a :class:`~spikeforge.nn.Neuron`, whose first input receives the connections.
        connections: a square matrix with delays of 1 step or more, the result of :func:`spikeforge.connect`; its rule
            ``spikeforge.rules.arrays`` makes one from given connections. The weights become the parameter `weights`,
            ``[connections]`` or ``[1]``; indices and delays become buffers, which must not be changed.
        values: "event" for neurons whose output is 0 or 1: each output above 0 counts 1. "graded" for outputs of other
            sizes: those above 0 count their value. "number" for outputs of both signs: all neurons are read in each
            step, also those whose output is 0.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.

    ``torch.nn.utils.parametrize`` constrains the weights by a mask, a sign for each neuron (Dale's law), or one scale
    for each projection. States: those of the neuron (``"neuron.v"``), and ``spikes``, the last
    ``max_delay`` outputs.

    Raises:
        TypeError: if an argument has another type.
        ValueError: if the matrix is not square, or a delay is below 1.
    """

    state_names = ("spikes",)

    def __init__(
        self, neuron: nn.Module, connections: Connectivity, *, values: str = "event", stateful: bool = False,
        persistent_state: bool = False,
    ):  # fmt: skip
        super().__init__(neuron, stateful=stateful, persistent_state=persistent_state)
        if not isinstance(connections, Connectivity):
            raise TypeError(
                f"SparseRecurrent: connections must be a result of spikeforge.connect, but is {type(connections).__name__}"
            )
        if connections.rows != connections.cols:
            raise ValueError(
                f"SparseRecurrent: connections must be square, but have {connections.rows} rows and {connections.cols} "
                "columns"
            )
        if values not in VALUES:
            raise ValueError(f"SparseRecurrent: values must be {', '.join(map(repr, VALUES))}, but is {values!r}")
        delays = connections.delays
        first, last = (int(delays.min()), int(delays.max())) if delays.numel() else (1, 1)
        if first < 1:
            raise ValueError(f"SparseRecurrent: delays must be 1 step or more, but the least is {first}")
        self.values, self.max_delay, self.neurons = values, last, connections.rows
        self.weights = nn.Parameter(connections.weights.detach().clone())
        for name in ("indices", "indptr", "delays"):
            self.register_buffer(name, getattr(connections, name).clone())

    def connectivity(self) -> Connectivity:
        """Returns the connections with the trained weights."""
        return Connectivity(
            self.indices, self.indptr, self.weights.detach(), self.delays, rows=self.neurons, cols=self.neurons
        )

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Any, State]:
        neuron, before, x = self.neuron, state.get("spikes"), inputs[0]
        if isinstance(x, Tensor) and (x.dim() < 2 or x.shape[-1] != self.neurons):
            raise ValueError(f"{self._title()}: x must be [T, *batch, {self.neurons}], but has shape {list(x.shape)}")
        given = neuron._memory.samples or {}
        cell = text_of(neuron)

        def layer(text: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor]):
            return OPERATOR(
                text, inputs, self.weights, self.indices, self.indptr, self.delays, states, params, before,
                max_delay=self.max_delay, values=self.values, **cell.samples_of(neuron),
            )  # fmt: skip

        if "start" in given:
            samples.check_start(self._title(), given["start"], x)
        try:
            outputs, after = cell.call(neuron, inputs, _under("neuron", state), False, layer)
        except ERRORS as error:
            raise explained(neuron, error, inputs, _under("neuron", state))
        sent = outputs[0]
        states = {_join("neuron", name): value for name, value in zip(neuron.state_names, after)}
        if given:
            states["spikes"] = samples.leaving(sent, self.max_delay, before, **given)
        else:
            states["spikes"] = in_flight(sent[-self.max_delay :], self.max_delay, before)
        return sent if len(outputs) == 1 else tuple(outputs), states

    def extra_repr(self) -> str:
        return f"{self.neurons} neurons, {self.indices.numel()} connections, delays up to {self.max_delay}"
