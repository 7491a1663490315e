"""SpikingJelly 2.0.0 as a second oracle: the same neurons, written by others.

Its primitives are not compared: s2nn's adds 1e-5 under the logarithm, and super_spike and fake_numerical_gradient have none.
The gradients of all sixteen agree with ours; others' surrogates are in test_surrogates.py.
"""

from itertools import product

import pytest
import torch

jelly = pytest.importorskip("spikingjelly", reason="spikingjelly is not installed")
from spikingjelly.activation_based import neuron as nodes  # noqa: E402
from spikingjelly.activation_based import surrogate as surrogates  # noqa: E402

STEPS, SHAPE = 16, (4, 50)

NODES = {
    "integrate_and_fire": (nodes.IFNode, {}),
    "lif": (nodes.LIFNode, dict(tau=2.5)),
    "plif": (nodes.ParametricLIFNode, dict(init_tau=2.5)),
    "qif": (nodes.QIFNode, dict(tau=2.5, v_c=0.7, a0=0.5, v_rest=-0.1)),
    "eif": (nodes.EIFNode, dict(tau=2.5, delta_T=1.2, theta_rh=0.7, v_rest=-0.1)),
    "izhikevich": (nodes.IzhikevichNode, dict(tau=2.5, v_c=0.7, a0=0.5, v_rest=-0.05, w_rest=0.1, tau_w=3.0, a=0.2, b=0.3)),
}

SURROGATES = {
    "sigmoid": surrogates.Sigmoid(4.0),
    "atan": surrogates.ATan(2.0),
    "piecewise_quadratic": surrogates.PiecewiseQuadratic(1.0),
    "piecewise_exp": surrogates.PiecewiseExp(1.0),
    "soft_sign": surrogates.SoftSign(2.0),
    "super_spike": surrogates.SuperSpike(1.0),
    "erf": surrogates.Erf(2.0),
    "piecewise_leaky_relu": surrogates.PiecewiseLeakyReLU(1.0, 0.01),
    "s2nn": surrogates.S2NN(4.0, 1.0),
    "q_pseudo_spike": surrogates.QPseudoSpike(2.0),
    "leaky_k_relu": surrogates.LeakyKReLU(0.0, 1.0),
    "fake_numerical_gradient": surrogates.FakeNumericalGradient(0.3),
    "log_tailed_relu": surrogates.LogTailedReLU(0.0),
    "nonzero_sign_log_abs": surrogates.NonzeroSignLogAbs(1.0),
    "squarewave_fourier": surrogates.SquarewaveFourierSeries(2, 8.0),
    "rect": surrogates.Rect(1.0),
}


def options_for_both(neuron, v_reset, detach_reset, decay_input):
    options = dict(v_threshold=0.9, v_reset=v_reset, detach_reset=detach_reset)
    if neuron in ("lif", "plif"):
        options["decay_input"] = decay_input
    return options


def our_call(neuron, x, numbers, options, surrogate, node):
    numbers = {{"delta_T": "delta_t"}.get(name, name): value for name, value in numbers.items() if name != "init_tau"}
    weight = [node.w.detach().clone().requires_grad_()] if neuron == "plif" else []
    overload = getattr(torch.ops.spikeforge, neuron).default
    return overload(x, *weight, **numbers, **options, surrogate=surrogate, store_v=True), weight


@pytest.mark.long
@pytest.mark.parametrize("v_reset", [-0.15, None], ids=["hard", "soft"])
@pytest.mark.parametrize("neuron", NODES)
def test_spikes_voltages_and_gradients_are_those_of_spikingjelly(neuron, v_reset, device):
    node_type, numbers = NODES[neuron]
    fired = 0
    decays = (True, False) if neuron in ("lif", "plif") else (True,)
    for (name, surrogate), detach_reset, decay_input in product(SURROGATES.items(), (False, True), decays):
        case = f"{neuron} v_reset={v_reset} {name} detach_reset={detach_reset} decay_input={decay_input}"
        options = options_for_both(neuron, v_reset, detach_reset, decay_input)
        node = node_type(**numbers, **options, surrogate_function=surrogate, step_mode="m", store_v_seq=True)
        node = node.to(device).double()
        x = (0.4 + 0.9 * torch.randn(STEPS, *SHAPE, dtype=torch.float64)).to(device).requires_grad_()

        theirs = node(x)
        (ours, v, *recovery), weight = our_call(neuron, x, numbers, options, name, node)
        assert torch.equal(ours, theirs), f"{case}: {int((ours != theirs).sum())} spikes differ"
        torch.testing.assert_close(v, node.v_seq, rtol=1e-10, atol=1e-10, msg=lambda m: f"{case}, v: {m}")
        if recovery:
            torch.testing.assert_close(recovery[0][-1], node.w, rtol=1e-10, atol=1e-10, msg=lambda m: f"{case}, w: {m}")

        grad_spikes, grad_v = torch.randn_like(ours), torch.randn_like(v)
        their_leaves = [x, node.w] if neuron == "plif" else [x]
        wanted = torch.autograd.grad((theirs, node.v_seq), their_leaves, (grad_spikes, grad_v))
        got = torch.autograd.grad((ours, v), [x, *weight], (grad_spikes, grad_v))
        for leaf, a, e in zip(("x", "w"), got, wanted):
            bound = 1e-10 * e.abs().max().item()
            torch.testing.assert_close(a, e, rtol=0, atol=bound, msg=lambda m: f"{case}, the gradient of {leaf}: {m}")
        fired += int(ours.sum())
    assert fired > 0, f"{neuron}: nothing fired, nothing was compared"
