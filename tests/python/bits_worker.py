"""Runs every neuron on fixed inputs and saves all results, so that two processes can be compared bit for bit.

    python bits_worker.py DEVICE FILE

The schedule and the instruction set of a process are read from the environment once, hence the processes.
"""

import sys
from itertools import product

import torch
from cases import DTYPES, Inputs, Options, numbers, prepare_call, random_parameters, random_states, random_x, state_dtype
from reference import NEURONS

STEPS, SHAPE = 45, (2, 3, 47)  # odd, so that vectors and segments are incomplete

# Charges with + - * / only, which have the same bits everywhere. plif's rate is a sigmoid, computed before the loop; sigmoid(0) is 0.5.
EXACT = [neuron for neuron in NEURONS if neuron != "eif"]


def variants(neuron, device):
    """Yields fewer on a GPU, where each needs a compiled kernel. The names are a subset of those for the CPU."""
    decays = (True, False) if NEURONS[neuron].has_decay_input else (True,)
    if device == "cpu":
        yield from product(DTYPES, ("numbers", "0-d", "per channel", "per neuron"), (False, True), decays)
    else:
        yield from product((torch.float32, torch.float16), ("numbers", "per channel"), (False, True), decays)
        yield from product((torch.float64, torch.bfloat16), ("numbers",), (False,), decays)


def inputs_of(neuron, dtype, kind, soft, steps=STEPS):
    if kind == "numbers":
        params = numbers(neuron, (), dtype)
    else:
        params = random_parameters(neuron, SHAPE, kind, state_dtype(dtype), "cpu")
        if soft:
            del params["v_reset"]
    if neuron == "plif":
        params["w"] = torch.zeros_like(params["w"])
    return Inputs(random_x(neuron, steps, SHAPE, dtype, "cpu"), *random_states(neuron, SHAPE, state_dtype(dtype), "cpu"), params)


def results_on(device):
    """Returns a dict of name -> spikes, state sequences, then the gradients of all tensors."""
    results = {}
    for neuron in NEURONS:
        for dtype, kind, soft, decay_input in variants(neuron, device):
            torch.manual_seed(7)
            inputs = inputs_of(neuron, dtype, kind, soft).map(lambda name, t: t.to(device).requires_grad_())
            overload, args, kwargs = prepare_call(neuron, inputs, Options(soft=soft, decay_input=decay_input, surrogate="atan"), True)
            outputs = overload(*args, **kwargs)
            gradients = torch.autograd.grad(sum(o.float().sum() for o in outputs), list(inputs.tensors().values()))
            name = f"{neuron} {str(dtype).removeprefix('torch.')} {kind} {'soft' if soft else 'hard'} decay_input={decay_input}"
            results[name] = [t.detach().cpu() for t in outputs], [t.cpu() for t in gradients]
    return results


if __name__ == "__main__":
    from conftest import library_path

    torch.ops.load_library(str(library_path()))
    torch.save(results_on(sys.argv[1]), sys.argv[2])
