"""Loops that run as one operator over time: a neuron whose output feeds back to it through a Linear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spikeforge.nn import samples
from spikeforge.nn.errors import ERRORS, explained
from spikeforge.nn.neurons import PredefinedNeuron
from spikeforge.nn.own import Neuron
from spikeforge.nn.plan import Connection
from spikeforge.nn.stateful import has_hooks
from spikeforge.nn.text import TextCell, predefined_cell

OPERATOR = torch.ops.spikeforge.recurrent_run.default


@dataclass(frozen=True)
class Loop:
    """A neuron, the Linear that its first output goes through, and the two connections between them."""

    neuron: str
    linear: str
    there: Connection  # from the neuron to the Linear
    back: Connection

    @property
    def delay(self) -> int:
        return self.there.delay + self.back.delay


def find_loop(network: Any, parts: Sequence[str], connections: Sequence[Connection]) -> Loop | str:
    """Returns the loop that these parts form, or the reason why they are stepped."""
    if len(parts) != 2:
        return f"of {len(parts)} parts"
    linears = [name for name in parts if isinstance(network._modules[name], nn.Linear)]
    if len(linears) != 1:
        return "without a Linear" if not linears else "without a neuron"
    linear = linears[0]
    neuron = next(name for name in parts if name != linear)
    reason = _why_not_linear(network._modules[linear]) or why_not_neuron(network._modules[neuron])
    if reason:
        return reason
    there = [c for c in connections if c.target.part == linear]
    back = [c for c in connections if c.source.part == linear]
    if len(there) != 1 or there[0].source.part != neuron or there[0].source.index != 0:
        return f"{linear} does not read only the first output of {neuron}"
    if len(back) != 1 or back[0].target.part != neuron:
        return f"{linear} has other targets than {neuron}"
    if any(c.source.part == c.target.part for c in connections):
        return f"{neuron} has another connection to itself"
    if there[0].delay and back[0].delay:
        return "delayed before and after the Linear"
    return Loop(neuron, linear, there[0], back[0])


def is_plain_linear(module: Any) -> bool:
    """Returns True for an nn.Linear without hooks or another forward: its call is x W^T + b."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward and not has_hooks(module)


def _why_not_linear(module: nn.Module) -> str:
    if not is_plain_linear(module):
        return "the Linear has a custom forward or hooks"
    return "" if module.in_features == module.out_features else "the Linear is not square"


def why_not_neuron(module: nn.Module) -> str:
    """Returns the reason why a neuron cannot run in a loop's operator; "" if it can."""
    kinds = (PredefinedNeuron, Neuron)
    methods = ("forward", "_advance")
    if not any(
        isinstance(module, k) and all(getattr(type(module), m) is getattr(k, m) for m in methods) for k in kinds
    ):
        return f"{type(module).__name__} is not a neuron of spikeforge.nn with an unchanged forward"
    if isinstance(module, PredefinedNeuron) and not module.spiking:
        return "spiking=False"
    if module._draws:
        return "it draws random numbers"
    return ""


def text_of(neuron: nn.Module) -> TextCell:
    """Returns a neuron's text; writes that of a predefined one again if its constants have changed."""
    if isinstance(neuron, Neuron):
        return neuron._quick.cell
    kept = neuron.__dict__.get("_text_in_loop")
    if kept is None or kept[0] is not neuron._quick:
        kept = neuron._quick, neuron._cell or predefined_cell(neuron)
        neuron.__dict__["_text_in_loop"] = kept
    return kept[1]


def prepare_loop(network: Any, new: Connection) -> None:
    """Writes the text of a neuron whose loop a connection may close, because a graph's tracer cannot."""
    if new.source.part is None or new.target.part is None:
        return
    modules = [network._modules[name] for name in (new.source.part, new.target.part)]
    neurons = [module for module in modules if isinstance(module, PredefinedNeuron) and not why_not_neuron(module)]
    if not neurons or not any(isinstance(module, nn.Linear) for module in modules):
        return
    if any(c.target.part == new.source.part for c in network._leaving.get(new.target.part, ())):
        text_of(neurons[0])


def takes(loop: Loop, neuron: nn.Module, linear: nn.Linear, x: Tensor, weight: Tensor) -> bool:
    """Returns True if the operator accepts this input. Other inputs are stepped, where errors name the part."""
    return (
        not has_hooks(neuron)
        and not has_hooks(linear)
        and x.dim() >= 2
        and x.shape[-1] == linear.in_features
        and x.device == weight.device
        and (x.dtype == weight.dtype or torch.is_autocast_enabled(x.device.type))
    )


def run_loop(
    loop: Loop, neuron: nn.Module, weight: Tensor, bias: Tensor | None, inputs: Sequence[Tensor],
    state: dict[str, Tensor], line: Tensor | None,
) -> tuple[tuple[Tensor, ...], dict[str, Tensor], Tensor]:  # fmt: skip
    """Returns outputs, states, and the values in flight at the end.

    Args:
        weight, bias: those of the Linear.
        inputs: of all steps, without the feedback.
        line: the values in flight at the start, ``[delay, *shape]``: outputs of the neuron, or of the Linear if the
            delay is after it; None: zeros.
    """
    into, delay = loop.back.target.index, loop.delay
    inputs = list(inputs)
    x = inputs[into]
    weight, bias = (None if t is None else t.to(x.dtype) for t in (weight, bias))
    sends_products = loop.back.delay > 0
    bounds = neuron._memory.samples or {}
    if "start" in bounds:
        samples.check_start(neuron._title(), bounds["start"], x)
    if not sends_products:
        inputs[into] = x if bias is None else x + bias
    elif line is not None or bias is not None:
        inputs[into] = _with_products_of_before(x, bias, line, delay, bounds.get("start"))
    spikes = None if sends_products else line

    def layer(text: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor]):
        of_samples = text_of(neuron).samples_of(neuron)
        return OPERATOR(text, inputs, weight.t(), states, params, spikes, into=into, delay=delay, **of_samples)

    try:
        outputs, after = text_of(neuron).call(neuron, inputs, state, False, layer)
    except ERRORS as error:
        raise explained(neuron, error, inputs, state)
    if bounds:
        through = (lambda y: nn.functional.linear(y, weight, bias)) if sends_products else None
        leaving = samples.leaving(outputs[0], delay, line, **bounds, through=through)
        return tuple(outputs), dict(zip(neuron.state_names, after)), leaving
    recent = outputs[0][-delay:]
    leaving = nn.functional.linear(recent, weight, bias) if sends_products else recent
    return tuple(outputs), dict(zip(neuron.state_names, after)), in_flight(leaving, delay, line)


def in_flight(recent: Tensor, delay: int, before: Tensor | None) -> Tensor:
    """Returns the last `delay` values sent, from the `recent` ones of a call and those in flight `before` it, or zeros;
    not a view."""
    if recent.shape[0] < delay:
        before = recent.new_zeros((delay, *recent.shape[1:])) if before is None else before
        recent = torch.cat((before[recent.shape[0] :], recent))
    return recent.clone()


def _with_products_of_before(
    x: Tensor, bias: Tensor | None, line: Tensor | None, delay: int, start: Tensor | None
) -> Tensor:
    """Adds to x the output of a Linear before the delay, without the products of this call's spikes: the values in
    flight in the first steps, then the bias. Nothing is added across the start of a sample."""
    first = torch.zeros_like(x[:delay]) if line is None else line[: x.shape[0]]
    later = x.new_zeros(()) if bias is None else bias
    if start is None:
        return torch.cat((x[:delay] + first, x[delay:] + later))
    arriving = torch.cat((first, later.expand_as(x[delay:])))
    return x + arriving.masked_fill(samples.beside(samples.restarted(start, delay), arriving), 0)
