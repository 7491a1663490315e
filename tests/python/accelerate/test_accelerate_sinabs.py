"""accelerate on Sinabs 3.1: neurons over [B, T, ...] agree with the original networks."""

import copy
import io
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from accelerated import assert_accelerated_trains_alike, assert_left_alone, assert_restored_as_it_was, close
from torch import nn

sl = pytest.importorskip("sinabs.layers", reason="sinabs is not installed")
from sinabs.activation import (  # noqa: E402
    Gaussian,
    Heaviside,
    MaxSpike,
    MembraneReset,
    MembraneSubtract,
    MultiGaussian,
    MultiSpike,
    PeriodicExponential,
    SingleExponential,
    SingleSpike,
)
from sinabs.layers.alif import ALIFSqueeze  # noqa: E402

import spikeforge  # noqa: E402

B, T, N = 4, 20, 12
TAUS = torch.linspace(2.0, 30.0, N)


def fixed(value):
    return nn.Parameter(value, requires_grad=False)


def linear():
    torch.manual_seed(3)
    return nn.Linear(N, N)


NEURONS = {
    "LIF": lambda: sl.LIF(4.0),
    "LIF, everything": lambda: sl.LIF(
        TAUS, TAUS / 3, torch.tensor(0.7), min_v_mem=-0.4, norm_input=False, spike_fn=MaxSpike(2),
        reset_fn=MembraneSubtract(0.5)),
    "LIF, alphas": lambda: sl.LIF(8.0, 5.0, train_alphas=True, min_v_mem=-0.4, reset_fn=MembraneReset(-0.1)),
    "LIF, single": lambda: sl.LIF(5.0, 4.0, spike_fn=SingleSpike, spike_threshold=0.5 + torch.rand(N)),
    "LIF, most unlimited": lambda: sl.LIF(5.0, spike_fn=MaxSpike()),
    "LIFSqueeze": lambda: sl.LIFSqueeze(tau_mem=5.0, tau_syn=3.0, batch_size=B),
    "LIFRecurrent": lambda: sl.LIFRecurrent(5.0, linear(), 5.0, min_v_mem=-0.5),
    "IAF": lambda: sl.IAF(min_v_mem=-0.5),
    "IAF, synapse": lambda: sl.IAF(tau_syn=4.0, spike_threshold=1.3, spike_fn=SingleSpike),
    "IAFSqueeze": lambda: sl.IAFSqueeze(num_timesteps=T, min_v_mem=-1.0),
    "IAFRecurrent": lambda: sl.IAFRecurrent(linear()),
    "ExpLeak": lambda: sl.ExpLeak(TAUS, min_v_mem=-0.2),
    "ExpLeakSqueeze": lambda: sl.ExpLeakSqueeze(tau_mem=10.0, norm_input=True, train_alphas=True, batch_size=B),
    "ALIF": lambda: sl.ALIF(4.0, 10.0),
    "ALIF, everything": lambda: sl.ALIF(
        TAUS, 3 * TAUS, 4.0, adapt_scale=torch.tensor(0.6), spike_threshold=torch.tensor(0.8), min_v_mem=-0.2,
        spike_fn=MultiSpike, norm_input=False, reset_fn=MembraneReset(0.1)),
    "ALIF, alphas": lambda: sl.ALIF(torch.tensor(5.0), torch.tensor(9.0), torch.tensor(4.0), train_alphas=True),
    "ALIFSqueeze": lambda: ALIFSqueeze(tau_mem=5.0, tau_adapt=10.0, batch_size=B),
    "ALIFRecurrent": lambda: sl.ALIFRecurrent(5.0, 9.0, linear(), 5.0),
}
SURROGATES = [
    SingleExponential(0.7, 1.5), Gaussian(np.float64(0.1), 0.4, 2), MultiGaussian(-0.1, 0.4, 0.2, 5, 1.5), Heaviside(0.8),
    PeriodicExponential(0.6, 1.2),
]  # fmt: skip


def both(make, device="cpu"):
    """Returns two equal neurons, the second one accelerated."""
    torch.manual_seed(1)
    neuron = make().to(device)
    torch.manual_seed(1)
    fused = make().to(device)
    report = spikeforge.accelerate(fused)
    assert len(report.replaced) == 1 and not report.left, report
    return neuron, fused


def drive(neuron, device="cpu"):
    x = 2 * torch.randn(B, T, N, device=device) + 0.5
    return x.flatten(0, 1) if "Squeeze" in type(neuron).__name__ else x


def states(neuron):
    return dict(neuron.named_buffers())


def compare(neurons, calls, exact=True):
    """Compares outputs, states, recordings and gradients of two neurons over successive calls."""
    results = []
    for neuron in neurons:
        leaves = [x.clone().requires_grad_() for x in calls]
        outputs = [neuron(x) for x in leaves]
        weights = torch.linspace(-1, 2, outputs[0].numel(), device=outputs[0].device)
        total = sum((y.flatten() * weights).sum() + neuron.firing_rate for y in outputs)
        total = total + sum(value.square().sum() for value in states(neuron).values())
        total = total + sum(value.sum() for value in neuron.recordings.values())
        learned = [parameter for parameter in neuron.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(total, [*leaves, *learned])
        results.append((outputs, states(neuron), neuron.recordings, gradients))
    (wanted, wanted_states, wanted_records, wanted_gradients), (got, after, records, gradients) = results
    assert list(after) == list(wanted_states) and list(records) == list(wanted_records)
    pairs = [*zip(got, wanted), *((after[name], wanted_states[name]) for name in after)]
    for value, original in pairs + [(records[name], wanted_records[name]) for name in records]:
        assert value.dtype == original.dtype and value.stride() == original.stride()
        torch.testing.assert_close(value, original, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)
    assert not any(value._is_view() for value in after.values()), "detach_() would fail"
    summed = max(gradient.abs().sum().item() for gradient in wanted_gradients[: len(calls)])
    for number, (value, original) in enumerate(zip(gradients, wanted_gradients)):
        close(value, original, f"gradient {number}", summed if number >= len(calls) else 0)
    return wanted


@pytest.mark.parametrize("name", NEURONS)
def test_a_neuron_has_the_outputs_states_and_gradients_of_sinabs(name, device):
    neurons = both(NEURONS[name], device)
    outputs = compare(neurons, [drive(neurons[0], device) for _ in range(2)], exact=device.type == "cpu")
    assert all(20 < output.count_nonzero() for output in outputs)


@pytest.mark.parametrize("spike_fn", [SingleSpike, MultiSpike])
@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda surrogate: type(surrogate).__name__)
def test_every_surrogate_has_the_gradient_of_sinabs(surrogate, spike_fn):
    threshold = 0.5 + torch.rand(N)
    for make in (
        lambda: sl.LIF(5.0, spike_threshold=threshold, spike_fn=spike_fn, surrogate_grad_fn=surrogate),
        lambda: sl.ALIF(5.0, 8.0, spike_fn=spike_fn, surrogate_grad_fn=surrogate),
    ):
        neurons = both(make)
        compare(neurons, [drive(neurons[0])])


@pytest.mark.parametrize("name", ["LIF, everything", "LIFSqueeze", "IAF", "ExpLeak", "ALIF", "LIFRecurrent"])
def test_recorded_states_are_those_of_sinabs(name):
    neurons = both(NEURONS[name])
    for neuron in neurons:
        neuron.record_states = True
    compare(neurons, [drive(neurons[0])])
    assert "v_mem" in neurons[1].recordings


@pytest.mark.parametrize("name", ["LIF", "LIF, everything", "IAF", "ALIF, everything", "LIFRecurrent"])
def test_states_are_reset_detached_and_resized_as_in_sinabs(name):
    """zero_grad and reset_states change the states in place."""
    results = []
    for neuron in both(NEURONS[name]):
        torch.manual_seed(2)
        outputs = []
        for shape, change in [
            ((3, 7, N), lambda: neuron.zero_grad()),
            ((5, 7, N), lambda: neuron.reset_states(randomize=True)),
            ((2, 4, N), lambda: neuron.reset_states()),
            ((2, 4, 3, N), lambda: neuron.reset_states()),
        ]:
            y = neuron((3 * torch.rand(shape)).requires_grad_())
            y.sum().backward()
            outputs += [y, *(value.clone() for value in states(neuron).values())]
            change()
            assert not any(value.requires_grad for value in states(neuron).values())
        results.append(outputs)
    assert all(map(torch.equal, *results)) and results[0][0].any()


def test_second_derivatives_are_those_of_sinabs():
    for name in ("LIF, single", "ALIF"):
        neurons = both(NEURONS[name])
        x, gradients = drive(neurons[0]).requires_grad_(), []
        for neuron in neurons:
            (first,) = torch.autograd.grad(neuron(x).square().sum(), x, create_graph=True)
            gradients += torch.autograd.grad(first.square().sum(), x)
        close(gradients[1], gradients[0], "the second derivative")


def test_states_may_be_reset_before_the_backward_pass():
    for make in (NEURONS["LIF"], NEURONS["ALIF"], lambda: sl.ALIF(4.0, 10.0, 5.0)):
        neurons = both(make)
        x = drive(neurons[0]).requires_grad_()
        gradients = []
        for neuron in neurons:
            y = neuron(x)
            neuron.reset_states()
            gradients += torch.autograd.grad(y.sum(), x)
        close(gradients[1], gradients[0], "the gradient of x")


# Sinabs computes a normalised current in a half type, but no other part.
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("name", ["LIF, everything", "IAF", "ExpLeak", "ALIF, everything", "LIFRecurrent"])
def test_inputs_of_other_types_have_the_results_of_sinabs(name, dtype):
    neuron, fused = both(NEURONS[name])
    x = drive(neuron).to(dtype)
    for _ in range(2):
        wanted, got = neuron(x), fused(x)
        assert got.dtype == wanted.dtype and torch.equal(got, wanted) and wanted.any()
        assert fused.v_mem.dtype == neuron.v_mem.dtype and torch.equal(fused.v_mem, neuron.v_mem)


def test_nan_and_infinity_have_the_results_of_sinabs():
    """Except for minus infinity, for which MultiSpike returns NaN."""
    for name in ("LIF, single", "IAF", "ALIF", "ExpLeak", "LIF, alphas"):
        neuron, fused = both(NEURONS[name])
        x = drive(neuron)
        x[0, 3, 0], x[1, 3, 1] = torch.nan, torch.inf
        for got, wanted in ((fused(x), neuron(x)), (fused.v_mem, neuron.v_mem)):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


# --- networks ---------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """A convolution and linear layers over squeezed sequences, and a read-out, as in Sinabs's tutorials."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3), sl.IAFSqueeze(batch_size=B, min_v_mem=-1.0), sl.SumPool2d(2), nn.Flatten(),
            nn.Linear(4 * 5 * 5, N), sl.LIFSqueeze(tau_mem=5.0, batch_size=B, spike_fn=SingleSpike),
        )  # fmt: skip
        self.hidden = sl.ALIF(8.0, 10.0, norm_input=False)
        self.readout = sl.ExpLeak(10.0)

    def forward(self, x):
        for neuron in (self.features[1], self.features[5], self.hidden, self.readout):
            neuron.reset_states()
        return self.readout(self.hidden(self.features(x).unflatten(0, (B, -1))))


def test_a_network_trains_to_the_same_weights():
    torch.manual_seed(4)
    net = Network()
    fused = pickle.loads(pickle.dumps(net))  # Sinabs's deepcopy needs arguments that not every module has
    loss = lambda output: (output - 0.5).square().mean()
    draw = lambda: 4 * torch.rand(B * T, 1, 12, 12)
    assert_accelerated_trains_alike(net, fused, 4, lambda net, x: (net(x),), loss, draw)


def test_copies_and_saved_neurons_stay_accelerated():
    for name in ("LIF, everything", "IAFSqueeze", "ExpLeak"):
        neuron, fused = both(NEURONS[name])
        x = drive(neuron)
        neuron(x), fused(x)
        saved = io.BytesIO()
        torch.save(fused, saved)
        saved.seek(0)
        wanted = neuron(x)
        for copied in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused)), torch.load(saved, weights_only=False)):
            assert type(copied) is type(fused) and repr(copied) == repr(neuron)
            assert torch.equal(copied(x), wanted) and list(copied.state_dict()) == list(neuron.state_dict())


# --- restore, unsupported calls and modules --------------------------------------------------------------------------


def test_restore_and_a_second_call():
    assert_restored_as_it_was(Network(), ["features.1", "features.5", "hidden", "readout"])


@dataclass
class OwnReset(MembraneSubtract):
    def __call__(self, spikes, state, threshold):
        return {**state, "v_mem": state["v_mem"] - spikes * threshold / 2}


class OwnSurrogate(Heaviside):
    def __call__(self, v_mem, spike_threshold):
        return super().__call__(v_mem, spike_threshold) / 2


class OwnSpike(SingleSpike):
    pass


CUSTOM = {"spike_fn": OwnSpike, "reset_fn": OwnReset(0.5), "surrogate_grad_fn": OwnSurrogate()}


def test_a_call_without_a_fused_form_runs_as_in_sinabs():
    for name, value in (*CUSTOM.items(), ("min_v_mem", fixed(torch.full((N,), -0.2, dtype=torch.float64)))):
        neurons = both(NEURONS["LIF, everything"])
        for neuron in neurons:
            setattr(neuron, name, value)
        compare(neurons, [drive(neurons[0])])
    neuron, fused = both(NEURONS["LIF"])
    with pytest.raises(RuntimeError, match="non-empty TensorList"):
        fused(torch.rand(B, 0, N))
    assert fused(torch.rand(0, 3, N)).shape == neuron(torch.rand(0, 3, N)).shape


def test_changed_attributes_apply_at_the_next_call():
    neurons = both(NEURONS["LIF"])
    for name, value in {
        "spike_fn": SingleSpike, "reset_fn": MembraneReset(0.2), "surrogate_grad_fn": Gaussian(), "norm_input": False,
        "min_v_mem": fixed(torch.tensor(-0.3)),
    }.items():  # fmt: skip
        for neuron in neurons:
            setattr(neuron, name, value)
            neuron.reset_states()
        compare(neurons, [drive(neurons[0])])
    for neuron in neurons:
        neuron.surrogate_grad_fn.sigma = 0.2
        neuron.reset_states()
    compare(neurons, [drive(neurons[0])])


class OwnForward(sl.LIF):
    def forward(self, x):
        return x


class OwnStates(sl.LIF):
    def init_state_with_shape(self, shape, randomize=False):
        super().init_state_with_shape(shape, randomize)
        self.v_mem = torch.full(shape, 0.9)


def test_a_subclass_with_custom_initial_states_is_replaced():
    neurons = both(lambda: OwnStates(5.0))
    compare(neurons, [drive(neurons[0])])


LEFT = {
    "defines its own forward": lambda: OwnForward(5.0),
    "no fused form": lambda: type("Own", (sl.StatefulLayer,), {"forward": lambda self, x: x})(["v"]),
    **{f"its {name} has": lambda part={name: value}: sl.LIF(5.0, **part) for name, value in CUSTOM.items()},
    "reset_fn": lambda: sl.IAF(reset_fn=MembraneReset(torch.rand(N))),
}


@pytest.mark.parametrize("why", LEFT)
def test_a_neuron_that_is_not_known_for_sure_is_left_alone(why):
    assert_left_alone(LEFT[why](), why)


def test_layers_that_are_no_neurons_are_not_in_the_report():
    assert not len(spikeforge.accelerate(nn.Sequential(sl.SumPool2d(2), sl.Merge(), sl.FlattenTime())))


def test_torch_compile_has_the_results_of_a_call():
    torch.compiler.reset()
    neuron, fused = both(NEURONS["LIF, everything"])
    x = drive(neuron)
    assert torch.equal(torch.compile(fused, backend="aot_eager")(x), neuron(x))
