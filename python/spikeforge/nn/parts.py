"""How containers run what they contain: modules that know time, and layers of torch that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from spikeforge.nn.stateful import NO_STATE, State, StatefulModule, as_tuple, call, has_states

FOREIGN = ("spikingjelly.activation_based.neuron", "snntorch._neurons", "norse.torch.module")
ALIGNMENT = 64  # bytes, of new tensors on a CPU


def run_part(
    part: nn.Module, inputs: Sequence[Tensor], state: Mapping[str, Tensor] | None, *, store: bool = False
) -> tuple[tuple[Tensor, ...], State]:
    """Outputs over all steps, and the states after.

    Args:
        state: None leaves it to the part, which starts anew or goes on from what it keeps; there are no states then.
        store: the states after each step.
    """
    if isinstance(part, StatefulModule):
        if state is None and not store:
            return as_tuple(part(*inputs)), {}
        outputs, after = (
            part(*inputs, state=state or None, store_states=True) if store else part(*inputs, state=state or None)
        )
        return as_tuple(outputs), after
    if not has_states(part):
        return (each_step(part, inputs[0]),), {}
    if store:
        raise ValueError(
            f"store_states: {type(part).__name__} has neurons, but is no module of spikeforge that returns their states"
        )
    if state is None:
        return as_tuple(part(*inputs)), {}
    outputs, after = call(part, inputs[0], state)
    return as_tuple(outputs), after


def foreign_neurons(layer: nn.Module) -> list[nn.Module]:
    """Neurons of other libraries, which keep states that this package does not know."""
    return [m for m in layer.modules() if any(base.__module__.startswith(FOREIGN) for base in type(m).__mro__)]


def check_called_once_a_step(title: str, part: nn.Module) -> None:
    """Refuses a part without neurons of this package whose neurons of another would take the batch for time."""
    if has_states(part):
        return
    for neuron in foreign_neurons(part):
        if getattr(neuron, "step_mode", None) == "m":
            raise ValueError(
                f"{title}: {type(neuron).__name__} in step mode 'm' takes sequences, but is called once a step here; "
                "put it in a torch.nn.Sequential, or call set_step_mode(net, 's')"
            )


def each_step(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer of torch, called once a step ``[*shape]``, so that steps, pieces and whole sequences give the same bits.

    In its last bits a layer's result for one row may depend on how many rows there are, and on where they lie in
    memory: BLAS and convolutions take other paths. :class:`TimeDistributed` calls it once for all steps.
    """
    if x.shape[0] == 0:
        raise ValueError(f"{type(layer).__name__}: a layer without states needs at least one step to know its output")
    return torch.stack([layer(_aligned(row)) for row in x.unbind(0)])


def _aligned(row: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or row.device.type != "cpu":
        return row
    return row if row.storage_offset() * row.element_size() % ALIGNMENT == 0 else row.clone()


def part_at_rest(part: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a part gives before the first step."""
    return part.at_rest(inputs) if isinstance(part, StatefulModule) else run_part(part, inputs, NO_STATE)[0]
