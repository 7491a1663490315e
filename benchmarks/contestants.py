"""The measured contestants: this library, and each peer that is installed.

A contestant's factory takes a case and a device, and returns a Neuron; or None if it does not support the case, or is
not installed.
"""

import importlib
import pathlib
from typing import Callable, NamedTuple

import torch


class Neuron(NamedTuple):
    outputs: Callable  # of the inputs; a tuple of tensors
    parameters: tuple = ()  # tensors with gradients, besides the inputs


NUMBERS = {  # the same for all contestants; others have the default of this library's operators
    "lif": dict(tau=2.0),
    "plif": {},
    "qif": dict(tau=2.0, v_c=0.8, a0=1.0, v_rest=0.0, v_reset=-0.1),
    "eif": dict(tau=2.0, delta_t=1.0, theta_rh=0.8, v_rest=0.0, v_reset=-0.1),
    "izhikevich": dict(tau=2.0, v_c=0.8, a0=1.0, v_rest=-0.1, v_reset=0.0, tau_w=2.0, a=0.1, b=0.1),
}


def weight(device):
    """Returns PLIF's learned parameter: 1/tau = sigmoid(0)."""
    return torch.zeros((), device=device, requires_grad=True)


def folder_of_neurons():
    return pathlib.Path(__file__).resolve().parents[1] / "examples" / "neurons"


TRACED = {
    "traced lif": """neuron lif(x; v) { h = v + (x - v) * 0.5; s = spike(h - 1, sigmoid(4)); return s; v' = select(s, 0, h) }""",
    "complicated lif": (folder_of_neurons() / "complicated_lif.neuron").read_text().replace("; beta", "").replace(
        "beta", "0.5"),
    "noisy lif": "neuron lif(x; v) { h = v + (x + 0.1 * normal() - v) * 0.5; s = spike(h - 1, sigmoid(4)); return s; v' = select(s, 0, h) }",
}


def spikeforge(case, device):
    if case.neuron in TRACED:
        text = TRACED[case.neuron]
        seed = torch.tensor(0) if case.draws else None
        return Neuron(lambda *inputs: torch.ops.spikeforge.run(text, inputs, [], [], seed=seed)[0])
    operator = getattr(torch.ops.spikeforge, case.neuron)  # as in README: torch selects the overload
    numbers = NUMBERS[case.neuron]
    if case.neuron == "plif":
        w = weight(device)
        return Neuron(lambda x: operator(x, w)[:1], (w,))
    if case.learns:
        v_reset = torch.tensor(0.0)
        shape = {"one": [], "per channel": [64, 1], "per neuron": [64, case.neurons // 64]}[case.learns]
        tau = torch.full(shape, 2.0, device=device, requires_grad=True)
        if case.learns == "one":
            return Neuron(lambda x: operator(x, tau=tau, v_reset=v_reset)[:1], (tau,))
        return Neuron(lambda x: (operator(x.unflatten(1, (64, -1)), tau=tau, v_reset=v_reset)[0].flatten(1),), (tau,))
    return Neuron(lambda x: operator(x, **numbers)[:1])


def spikingjelly(case, device):
    """Uses its functional operators with a float32 state: a module in half precision falls back to a loop in Python,
    and so do all of them in float64."""
    if case.dtype == torch.float64 or case.learns or case.draws:
        return None
    try:
        functional = importlib.import_module("spikingjelly.activation_based.functional")
        surrogate = importlib.import_module("spikingjelly.activation_based.surrogate")
    except ImportError:
        return None
    if case.neuron in TRACED:
        return flexsn(case, device, surrogate) if case.steps <= 256 and device == "cuda" else None
    operator = getattr(functional, f"{case.neuron}_multi_step")
    v_reset = NUMBERS[case.neuron].get("v_reset", 0.0)
    v = torch.full([case.neurons], v_reset, device=device, dtype=torch.promote_types(case.dtype, torch.float32))
    parameters = (weight(device),) if case.neuron == "plif" else ()
    recovery = (torch.zeros_like(v),) if case.neuron == "izhikevich" else ()
    numbers = dict(NUMBERS[case.neuron], surrogate_function=surrogate.Sigmoid(4.0))
    return Neuron(lambda x: operator(x, v, *parameters, *recovery, **numbers)[:1], parameters)


def flexsn(case, device, surrogate):
    """Uses its neuron from a function of one step, with states of x's type, the only one that it accepts. At T = 1024
    it takes too long to compile."""
    package = importlib.import_module("spikingjelly.activation_based.neuron.flexsn")
    sigmoid, atan = surrogate.Sigmoid(4.0).forward, surrogate.ATan(2.0).forward

    def lif(x, v):
        h = v + (x - v) * 0.5
        s = sigmoid(h - 1.0)
        return s, h * (1.0 - s)

    def complicated(x, y, v, rho):
        h = 0.5 * v + x
        adapted, plain = atan(h - (rho + 1.0)), atan(h - 1.0)
        gate = torch.sigmoid(y)
        return adapted, plain, h - adapted * (rho + 1.0), gate * rho + (1.0 - gate) * adapted

    neuron = package.FlexSN(core=lif if case.states == 1 else complicated, num_states=case.states, step_mode="m")
    initial = tuple(torch.zeros(case.neurons, device=device, dtype=case.dtype) for _ in range(case.states))
    return Neuron(lambda *inputs: neuron.multi_step_functional_forward(inputs, initial, static_inputs=())[0])


class Fire(torch.autograd.Function):
    @staticmethod
    def forward(ctx, above):
        ctx.save_for_backward(above)
        return (above >= 0).to(above.dtype)

    @staticmethod
    def backward(ctx, grad):
        (above,) = ctx.saved_tensors
        s = torch.sigmoid(4 * above)
        return grad * 4 * s * (1 - s)


def loop(x):
    v = torch.zeros(x.shape[1:], device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
    spikes = []
    for current in x:
        h = v + (current - v) / 2
        s = Fire.apply(h - 1)
        v = (1 - s) * h
        spikes.append(s.to(x.dtype))
    return (torch.stack(spikes),)


def plain_loop(case, device):
    return Neuron(loop) if case.neuron == "lif" and case.steps <= 256 and not case.learns else None


def compiled_loop(case, device):
    """torch.compile unrolls the loop: it takes a minute at T = 32, and too long at T = 1024."""
    if case.neuron != "lif" or case.steps > 32 or case.learns:
        return None
    torch._dynamo.reset()
    return Neuron(torch.compile(loop, dynamic=False, fullgraph=True))


def snntorch(case, device):
    """Leaky with a reset to zero. It resets one step later than this library; the work is about the same."""
    if case.neuron != "lif" or device != "cpu" or case.steps > 256:
        return None
    try:
        package = importlib.import_module("snntorch")
    except ImportError:
        return None
    node = package.Leaky(beta=0.5, reset_mechanism="zero", spike_grad=package.surrogate.sigmoid(slope=4))

    def walk(x):
        v = torch.zeros_like(x[0])
        spikes = []
        for current in x:
            s, v = node(current, v)
            spikes.append(s)
        return (torch.stack(spikes),)

    return Neuron(walk)
