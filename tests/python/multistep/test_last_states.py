"""Layers whose last states are unused have the same outputs and gradients, without states. The oracle is the call with states."""

import functools

import pytest
import torch
from torch import nn
from torch.library import opcheck

import spikeforge.nn as snn

ops = torch.ops.spikeforge
LIF = "neuron lif(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"
TWO = """neuron two(x; v, a) {
  s = spike(v + x - 1 - a, atan(2))
  return s
  v' = select(s, 0, 0.5 * v + x)
  a' = 0.9 * a + s
}"""
SHAPES = [(4, 2, 5, 7, 7), (4, 32, 64, 14, 14), (3, 4, 16, 40, 40), (9, 6, 33), (2, 3, 1, 1, 1)]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def arguments(neuron, shape, dtype, device, layout="contiguous"):
    x = torch.randn(shape, device=device).to(dtype)
    x = x.movedim(2, -1).contiguous().movedim(-1, 2) if layout == "channels_last" else x
    tau = [torch.full((), 2.0, device=device, requires_grad=True)] if neuron is LIF else []
    weight, bias = (torch.rand(shape[2], device=device).add(0.5).requires_grad_() for _ in range(2))
    return x.requires_grad_(), tau, weight, bias


def results(call, x, given, upstream):
    outputs, states, *_ = call()
    return outputs, states, torch.autograd.grad(outputs, [x, *given], upstream)


@pytest.mark.parametrize("neuron", [LIF, TWO])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients_have_the_same_bits(shape, dtype, layout, neuron, device):
    if layout == "channels_last" and len(shape) < 4:
        pytest.skip("its channels are last anyway")
    x, tau, weight, bias = arguments(neuron, shape, dtype, device, layout)
    upstream = [torch.randn(shape, device=device).to(dtype)]
    call = functools.partial(ops.batch_norm_run, neuron, [x], [], tau, weight, bias)
    wanted_outputs, wanted_states, wanted = results(call, x, [*tau, weight, bias], upstream)
    outputs, states, found = results(functools.partial(call, last_states=False), x, [*tau, weight, bias], upstream)
    assert states == [] and len(wanted_states) == (1 if neuron is LIF else 2)
    assert torch.equal(outputs[0], wanted_outputs[0]) and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("residual", [None, "add", "iand"])
def test_with_a_residual_given_statistics_and_states(residual, device):
    x, tau, weight, bias = arguments(LIF, (4, 8, 16, 9, 9), torch.float32, device)
    r, v = torch.rand_like(x) if residual else None, torch.rand(x.shape[1:], device=device)
    for statistics in ((None, None), (torch.zeros(16, device=device), torch.ones(16, device=device))):
        call = functools.partial(ops.batch_norm_run, LIF, [x], [v], tau, weight, bias, *statistics, r, residual_mode=residual or "add")
        upstream = [torch.randn_like(x)]
        (wanted,), _, gradients = results(call, x, [*tau, weight, bias], upstream)
        (found,), states, mine = results(functools.partial(call, last_states=False), x, [*tau, weight, bias], upstream)
        assert states == [] and torch.equal(found, wanted) and all(map(torch.equal, mine, gradients))
        with torch.no_grad():
            (found,), states, *_ = call(last_states=False)
        assert states == [] and torch.equal(found, wanted)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_move_as_ever(momentum, device):
    x, tau, weight, bias = arguments(LIF, (4, 16, 32, 14, 14), torch.float16, device)
    moved = []
    for last in (True, False):
        running = torch.zeros(32, device=device), torch.ones(32, device=device), torch.tensor(3, device=device)
        (s,), states = ops.batch_norm_run_tracked(LIF, [x], [], tau, *running, weight, bias, momentum=momentum, last_states=last)
        assert len(states) == int(last)
        moved.append((s, *running))
    assert all(map(torch.equal, *moved)) and moved[0][3] == 4


def test_with_bits_and_for_a_neuron_without_states(device):
    x, tau, weight, bias = arguments(LIF, (4, 8, 16, 8, 8), torch.float32, device)
    (wanted,), *_ = ops.batch_norm_run(LIF, [x], [], tau, weight, bias, bits=1)
    (found,), states, *_ = ops.batch_norm_run(LIF, [x], [], tau, weight, bias, bits=1, last_states=False)
    product = torch.randn(5, 8, device=device, requires_grad=True)
    gradients = [torch.autograd.grad(ops.linear(s, product).sum(), [product, x]) for s in (wanted, found)]
    assert states == [] and torch.equal(found, wanted) and all(map(torch.equal, *gradients))
    for last in (True, False):
        (y,), states, *_ = ops.batch_norm_run("neuron relu_of(x) { return relu(x) }", [x], [], [], last_states=last)
        assert states == [] and torch.autograd.grad(y.square().sum(), x)[0].any()


def test_derivatives_and_transforms(device):
    smooth = "neuron smooth(x; v; tau) { h = v + (x - v) / tau; s = sigmoid(4 * (h - 1)); return s; v' = (1 - s) * h }"
    x, weight = (torch.randn(*shape, dtype=torch.float64, device=device).requires_grad_() for shape in ((3, 2, 2, 2), (2,)))
    tau = torch.tensor(1.7, dtype=torch.float64, device=device, requires_grad=True)

    def run(x, weight, tau):
        (s,), states, mean, var = ops.batch_norm_run(smooth, [x], [], [tau], weight, last_states=False)
        assert states == []
        return s, mean, var

    assert torch.autograd.gradcheck(run, (x, weight, tau), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, (x, weight, tau))
    xs = torch.randn(5, 3, 2, 2, 2, dtype=torch.float64, device=device)
    each = torch.stack([run(one, weight, tau)[0] for one in xs])
    torch.testing.assert_close(torch.vmap(lambda one: run(one, weight, tau)[0])(xs), each)
    opcheck(ops.batch_norm_run.default, (smooth, [x], [], [tau], weight), dict(last_states=False))
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight, tau), run(x, weight, tau))


def test_sequences_of_states_are_no_last_ones():
    x, tau, _, _ = arguments(LIF, (2, 3, 4), torch.float32, "cpu")
    running = torch.zeros(4), torch.ones(4), torch.tensor(0)
    with pytest.raises(ValueError, match="batch_norm_run_tracked: store_states=True returns"):
        ops.batch_norm_run_tracked(LIF, [x], [], tau, *running, store_states=True, last_states=False)
    assert running[2] == 0
    with pytest.raises(ValueError, match="batch_norm_run: store_states=True returns the states after every step, which excludes last_states=False"):
        ops.batch_norm_run(LIF, [x], [], tau, store_states=True, last_states=False)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(16), nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4))])
@pytest.mark.parametrize("pool", [None, nn.MaxPool2d(2)])
def test_modules_give_the_same_with_states_and_without(norm, pool, device):
    layer = snn.BatchNormNeuron(norm, snn.Neuron(TWO), pool=pool).to(device)
    x = torch.randn(4, 3, 16, 8, 8, device=device)
    alone, (spikes, state) = layer(x), layer(x, None)
    assert torch.equal(alone, spikes) and set(state) == {"neuron.v", "neuron.a"} and alone.any()


def test_modules_have_states_where_they_are_asked_for(device):
    layer = snn.BatchNormNeuron(nn.BatchNorm2d(16), snn.LIF(surrogate="atan")).to(device)
    x = torch.randn(4, 8, 16, 12, 12, device=device)
    alone = layer(x)
    spikes, state = layer(x, None)
    assert torch.equal(alone, spikes) and state["neuron.v"].shape == x.shape[1:] and state["neuron.v"].any()
    sequence_spikes, sequence = layer(x, store_states=True)
    assert torch.equal(sequence_spikes, spikes) and torch.equal(sequence["neuron.v"][-1], state["neuron.v"])
    handed_on = layer(x, state)
    with snn.keep_state(layer):
        layer(x)
        assert torch.equal(layer(x), handed_on[0])
        assert torch.equal(snn.get_states(layer)["neuron.v"], handed_on[1]["neuron.v"])


def test_a_step_of_training_needs_less_memory(cuda):
    layer = snn.BatchNormNeuron(nn.BatchNorm2d(64), snn.LIF(surrogate="atan")).to(cuda)
    x = torch.randn(4, 32, 64, 56, 56, device=cuda, dtype=torch.float16, requires_grad=True)

    def peak(call):
        torch.autograd.grad(call().sum(), x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        kept = call()
        assert kept.requires_grad
        return torch.cuda.max_memory_allocated() - before

    states = 4 * x[0].numel()
    assert peak(lambda: layer(x, None)[0]) - peak(lambda: layer(x)) >= 0.9 * states
