"""Enough neurons for a thread of a GPU to process several of them in a loop: results equal those of the CPU."""

import pytest
import torch
from cases import BOUND, Inputs, Options, call, random_parameters, random_states, random_x, state_dtype

SHAPE = (2048, 16, 5, 5)  # the number of neurons is not a multiple of those processed at once
IN_LAYOUT = {"plain": lambda x: x, "channels last": lambda x: x.movedim(-3, -1).contiguous().movedim(-1, -3)}


@pytest.mark.parametrize("layout", IN_LAYOUT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("steps", [3, 4, 20])  # shorter than a segment, one segment, and several
@pytest.mark.parametrize("neuron, kind", [("lif", "per channel"), ("lif", "0-d"), ("izhikevich", "per channel")])
def test_turns_change_nothing(neuron, kind, steps, dtype, layout, cuda):
    parameters = random_parameters(neuron, SHAPE, kind, state_dtype(dtype), "cpu")
    states = random_states(neuron, SHAPE, state_dtype(dtype), "cpu")
    inputs = Inputs(random_x(neuron, steps, SHAPE, dtype, "cpu"), *states, parameters)
    inputs = inputs.map(lambda name, t: IN_LAYOUT[layout](t) if t.dim() >= len(SHAPE) else t)
    results = {}
    for device in ("cpu", "cuda"):
        there = inputs.map(lambda name, t: t.to(device).detach().requires_grad_())
        outputs = call(neuron, there, Options(surrogate="atan"), False)
        weights = [torch.linspace(0.5, 1, o.numel()).view(o.shape).to(o) for o in outputs]
        gradients = torch.autograd.grad(outputs, list(there.tensors().values()), weights)
        results[device] = [o.detach().cpu() for o in outputs], [g.cpu() for g in gradients]
    for ours, reference in zip(results["cuda"][0], results["cpu"][0]):
        assert torch.equal(ours, reference)
    for name, ours, reference in zip(there.tensors(), results["cuda"][1], results["cpu"][1]):
        error = (ours.double() - reference.double()).abs().max()
        # The sum over all neurons of a parameter has a different order.
        bound = BOUND[dtype] * (10 if reference.numel() < SHAPE[0] else 1)
        assert error <= bound * reference.double().abs().max(), name
