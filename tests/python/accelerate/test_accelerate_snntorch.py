"""accelerate on snnTorch 1.0: networks with the delayed reset have the same bits as the original networks."""

import copy

import pytest
import torch
from loops import refused
from accelerated import assert_accelerated_trains_alike, assert_left_alone, assert_restored_as_it_was, close
from torch import nn

snn = pytest.importorskip("snntorch", reason="snntorch is not installed")
from snntorch import surrogate, utils  # noqa: E402

import spikeforge  # noqa: E402

N = 24
LEARNED = dict(learn_beta=True, learn_threshold=True)
NEURONS = {
    "leaky": lambda **k: snn.Leaky(beta=0.9, **LEARNED, **k),
    "leaky, reset at once": lambda **k: snn.Leaky(beta=0.9, reset_delay=False, **LEARNED, **k),
    "leaky, graded": lambda **k: snn.Leaky(beta=0.9, graded_spikes_factor=0.7, learn_graded_spikes_factor=True, **LEARNED, **k),
    "leaky, per neuron": lambda **k: snn.Leaky(beta=torch.rand(N), threshold=0.5 + torch.rand(N), **LEARNED, **k),
    "leaky, beta beyond 1": lambda **k: snn.Leaky(beta=1.2, **LEARNED, **k),
    "synaptic": lambda **k: snn.Synaptic(alpha=0.8, beta=0.9, learn_alpha=True, **LEARNED, **k),
    "synaptic, reset at once": lambda **k: snn.Synaptic(alpha=0.8, beta=0.9, reset_delay=False, **LEARNED, **k),
    "lapicque": lambda **k: snn.Lapicque(beta=0.5, learn_threshold=True, **k),
    "lapicque, R and C": lambda **k: snn.Lapicque(R=5.1, C=5e-4, time_step=1e-3, learn_threshold=True, **k),
    "alpha": lambda **k: snn.Alpha(alpha=0.9, beta=0.8, learn_threshold=True, **k),
    "rleaky": lambda **k: snn.RLeaky(beta=0.9, linear_features=N, **LEARNED, **k),
    "rleaky, one to one": lambda **k: snn.RLeaky(beta=0.9, all_to_all=False, V=0.5, reset_delay=False, **LEARNED, **k),
    "rsynaptic": lambda **k: snn.RSynaptic(alpha=0.8, beta=0.9, linear_features=N, **LEARNED, **k),
}
SURROGATES = {
    "atan": lambda: None,
    "fast_sigmoid": lambda: surrogate.fast_sigmoid(slope=20),
    "sigmoid": lambda: surrogate.sigmoid(slope=5),
    "straight_through": surrogate.straight_through_estimator,
    "triangular": lambda: surrogate.triangular(threshold=0.7),
    "spike_rate_escape": lambda: surrogate.spike_rate_escape(beta=2, slope=1),
    "heaviside": surrogate.heaviside,
    "SFS": lambda: surrogate.SFS(slope=25, B=-0.5),
}


def both(make, device, **options):
    neuron = make(**options).to(device)
    fused = copy.deepcopy(neuron)
    report = spikeforge.accelerate(fused)
    assert len(report.replaced) == 1 and not report.left, report
    return neuron, fused


def run(neuron, xs):
    """Returns the outputs of all steps, and the gradients of a random sum of them with respect to xs and parameters."""
    leaves = [x.clone().requires_grad_() for x in xs]
    states = neuron.reset_mem()
    states = states if isinstance(states, tuple) else (states,)
    outputs = []
    for x in leaves:
        step = neuron(x, *states)
        states = step if len(step) == len(states) else step[1:]
        outputs.append(torch.stack(step))
    outputs = torch.stack(outputs)
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1)).to(outputs)
    parameters = dict(neuron.named_parameters())
    gradients = torch.autograd.grad((outputs * weights).sum(), [*leaves, *parameters.values()], allow_unused=True)
    return outputs, dict(zip([*range(len(xs)), *parameters], gradients))


def assert_gradients_alike(got, expected, steps):
    for leaf, wanted in expected.items():
        assert (wanted is None) == (got[leaf] is None), leaf
        if wanted is not None:
            summed = sum(expected[step].abs().sum().item() for step in range(steps)) if isinstance(leaf, str) else 0
            close(got[leaf], wanted, f"gradient of {leaf}", summed)


@pytest.mark.parametrize("reset", ["subtract", "zero", "none"])
@pytest.mark.parametrize("name", NEURONS)
def test_every_step_has_the_bits_of_snntorch(name, reset, device):
    neuron, fused = both(NEURONS[name], device, reset_mechanism=reset, spike_grad=surrogate.fast_sigmoid(5))
    xs = [1.2 * torch.randn(6, N, device=device) for _ in range(8)]
    (outputs, gradients), (fused_outputs, fused_gradients) = run(neuron, xs), run(fused, xs)
    assert 0.02 < outputs[:, 0].count_nonzero() / outputs[:, 0].numel() < 0.9
    if device.type == "cpu":
        assert torch.equal(fused_outputs, outputs)
    else:
        torch.testing.assert_close(fused_outputs, outputs, rtol=1e-5, atol=1e-5)
    assert fused_outputs.dtype == outputs.dtype
    assert_gradients_alike(fused_gradients, gradients, len(xs))


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("neuron", ["leaky", "synaptic"])
def test_every_surrogate_has_the_gradient_of_snntorch(neuron, name):
    module, fused = both(NEURONS[neuron], torch.device("cpu"), spike_grad=SURROGATES[name]())
    xs = [0.7 * torch.randn(6, N) for _ in range(6)]
    (outputs, gradients), (fused_outputs, fused_gradients) = run(module, xs), run(fused, xs)
    assert torch.equal(fused_outputs, outputs) and gradients[0].any()
    assert_gradients_alike(fused_gradients, gradients, len(xs))


def test_a_disabled_surrogate_has_no_gradient():
    neuron, fused = both(NEURONS["leaky"], torch.device("cpu"), surrogate_disable=True)
    x = torch.randn(4, N).mul(2).requires_grad_()
    wanted, _ = neuron(x)
    got, _ = fused(x)
    assert torch.equal(got, wanted) and not wanted.requires_grad
    assert not torch.autograd.grad(got.sum(), x, allow_unused=True)[0].any()


# --- networks of the tutorials ---------------------------------------------------------------------------------------

class Dense(nn.Module):
    """Linear layers and LIF neurons, whose states the caller passes from step to step."""

    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(30, 50), snn.Leaky(beta=0.95)
        self.fc2, self.lif2 = nn.Linear(50, 10), snn.Leaky(beta=0.95, learn_beta=True, reset_mechanism="zero")

    def forward(self, x, steps=12):
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spikes, potentials = [], []
        for _ in range(steps):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spikes.append(spk2)
            potentials.append(mem2)
        return torch.stack(spikes), torch.stack(potentials)


def convolutional():
    """Layers in a Sequential, whose neurons keep their states between steps."""
    hidden = dict(beta=0.5, threshold=0.3, spike_grad=surrogate.fast_sigmoid(slope=25), init_hidden=True)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), snn.Leaky(**hidden), nn.Conv2d(6, 12, 5), nn.MaxPool2d(2),
        snn.Synaptic(alpha=0.7, **hidden), nn.Flatten(), nn.Linear(192, 10), snn.Leaky(output=True, **hidden),
    )


def through_time(net, x, steps=6):
    utils.reset(net)
    outputs = [net(x) for _ in range(steps)]
    return torch.stack([spikes for spikes, _ in outputs]), torch.stack([potential for _, potential in outputs])


class Recurrent(nn.Module):
    """A recurrent layer, and a read-out without reset."""

    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(30, 40), snn.RLeaky(beta=0.9, linear_features=40)
        self.fc2, self.lif2 = nn.Linear(40, 3), snn.Leaky(beta=0.8, reset_mechanism="none")

    def forward(self, x, steps=10):
        (spk1, mem1), mem2 = self.lif1.init_rleaky(), self.lif2.init_leaky()
        spikes, potentials = [], []
        for _ in range(steps):
            spk1, mem1 = self.lif1(self.fc1(x), spk1, mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spikes.append(spk1)
            potentials.append(mem2)
        return torch.stack(spikes), torch.stack(potentials)


TUTORIALS = {
    "dense": (Dense, lambda net, x: net(x), (5, 30), 2),
    "convolutional": (convolutional, through_time, (3, 1, 28, 28), 3),
    "recurrent": (Recurrent, lambda net, x: net(x), (5, 30), 2),
}


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorials_network_trains_to_the_same_weights(name):
    make, call, shape, neurons = TUTORIALS[name]
    snn.SpikingNeuron.init()  # utils.reset resets all existing neurons
    net = make()
    fused = copy.deepcopy(net)
    snn.SpikingNeuron.instances += [module for module in fused.modules() if isinstance(module, snn.SpikingNeuron)]
    loss = lambda spikes, potentials: spikes.mean() + (potentials - 0.5).square().mean()
    assert_accelerated_trains_alike(net, fused, neurons, call, loss, lambda: 2 * torch.randn(shape))


# --- restore, unsupported calls and modules --------------------------------------------------------------------------

@pytest.mark.parametrize("name", NEURONS)
def test_hidden_states_are_reset_and_detached_by_snntorch(name):
    snn.SpikingNeuron.init()
    neuron, fused = both(NEURONS[name], torch.device("cpu"), init_hidden=True)
    snn.SpikingNeuron.instances.append(fused)
    states = [name for name in ("spk", "syn", "syn_exc", "syn_inh", "mem") if isinstance(getattr(fused, name, None), torch.Tensor)]
    x = torch.randn(4, N).requires_grad_()
    for _ in range(2):
        assert torch.equal(fused(x), neuron(x)) and fused.mem.requires_grad
        assert all(torch.equal(getattr(fused, name), getattr(neuron, name)) for name in states)
        type(neuron).detach_hidden()
        assert not fused.mem.requires_grad
        assert all(getattr(fused, name).requires_grad == getattr(neuron, name).requires_grad for name in states)
    type(neuron).reset_hidden()
    assert not fused.mem.any()
    if name == "leaky":
        refused(TypeError, "init_hidden", lambda: fused(x, fused.mem))


def test_a_state_of_another_shape_restarts_as_in_snntorch():
    neuron, fused = both(NEURONS["synaptic"], torch.device("cpu"))
    syn = mem = torch.rand(4, N)
    for batch in (4, 2):
        x = torch.randn(batch, N)
        assert all(map(torch.equal, fused(x, syn, mem), neuron(x, syn, mem)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_spikes_of_other_types_are_float32_as_in_snntorch(dtype):
    neuron, fused = both(NEURONS["leaky"], torch.device("cpu"), spike_grad=surrogate.fast_sigmoid(5))
    x = 2 * torch.randn(4, N).to(dtype)
    wanted, _ = neuron(x, torch.zeros_like(x))
    got, mem = fused(x, torch.zeros_like(x))
    assert got.dtype == wanted.dtype == torch.float32 and torch.equal(got, wanted)
    assert mem.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_restore_and_a_second_call():
    assert_restored_as_it_was(Dense(), ["lif1", "lif2"])


def test_a_neuron_changed_after_acceleration_runs_as_in_snntorch():
    neuron, fused = both(NEURONS["leaky"], torch.device("cpu"))
    x, mem = 2 * torch.randn(4, N), torch.rand(4, N)
    own = surrogate.custom_surrogate(lambda u, gradient, spikes: gradient)
    for name, value in dict(threshold=torch.tensor(0.4), state_quant=lambda v: v.round(), spike_grad=own).items():
        for n in (neuron, fused):
            setattr(n, name, nn.Parameter(value) if name == "threshold" else value)
        assert all(map(torch.equal, fused(x, mem), neuron(x, mem))), name


class OwnFire(snn.Leaky):
    def fire(self, mem):
        return torch.sigmoid(mem)


LEFT = {
    "defines its own fire": lambda: OwnFire(beta=0.9),
    "inhibition": lambda: snn.Leaky(beta=0.9, inhibition=True),
    "quantised": lambda: snn.Leaky(beta=0.9, state_quant=lambda v: v.round()),
    "surrogate": lambda: snn.Leaky(beta=0.9, spike_grad=surrogate.custom_surrogate(lambda u, gradient, spikes: gradient)),
    "raises an error": lambda: snn.RSynaptic(alpha=0.9, beta=0.8, linear_features=3, reset_delay=False),
    "no fused form": lambda: snn.SLSTM(3, 4),
}


@pytest.mark.filterwarnings("ignore:Inhibition")
@pytest.mark.parametrize("why", LEFT)
def test_a_neuron_that_is_not_known_for_sure_is_left_alone(why):
    assert_left_alone(LEFT[why](), why)


def test_torch_compile_has_no_graph_break():
    torch.compiler.reset()
    net = Dense()
    spikeforge.accelerate(net)
    compiled = torch.compile(copy.deepcopy(net), fullgraph=True, backend="aot_eager")
    x = 2 * torch.randn(4, 30)
    assert all(map(torch.equal, compiled(x, 3), net(x, 3)))
