"""EventProp's gradients are those of an event-driven network in float64, whose spike times this file finds as roots."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import spikeforge.nn as snn
from spikeforge import losses
from spikeforge.nn import eventprop

TAU_S, TAU_M, END, DELAY = 5.0, 20.0, 40.0, 2.0  # ms


# --- the event-driven network ------------------------------------------------------------------------------------------


def crossing(v, i):
    """Returns the time after which v' = (i - v) / TAU_M, with i' = -i / TAU_S, first reaches 1; inf if it never does."""
    a = i * TAU_S / (TAU_S - TAU_M)
    voltage = lambda t: a * math.exp(-t / TAU_S) + (v - a) * math.exp(-t / TAU_M)
    slope = lambda t: -a / TAU_S * math.exp(-t / TAU_S) - (v - a) / TAU_M * math.exp(-t / TAU_M)
    if slope(0.0) <= 0:  # V falls, and cannot have a maximum above the start: I decays faster
        return math.inf
    ratio = -a * TAU_M / (TAU_S * (v - a))  # the slope is 0 at exp(t (1 / TAU_S - 1 / TAU_M)) = ratio
    peak = math.log(ratio) / (1 / TAU_S - 1 / TAU_M) if ratio > 0 else 10 * TAU_M
    if voltage(peak) < 1:
        return math.inf
    low, high = 0.0, peak
    for _ in range(55):  # to the precision of float64
        middle = (low + high) / 2
        low, high = (low, middle) if voltage(middle) >= 1 else (middle, high)
    return high


def layer_spikes(times, w, recurrent=None, delay=DELAY):
    """Returns [(time, neuron)] of a layer whose inputs are spikes [(time, input)]."""
    n = w.shape[0]
    v, i, now, sent = np.zeros(n), np.zeros(n), 0.0, []
    pending = sorted(((t, w[:, j]) for t, j in times), key=lambda event: event[0])
    while True:
        arrives = pending[0][0] if pending else END
        after = np.array([crossing(v[j], i[j]) for j in range(n)])
        fires = int(after.argmin())
        until = min(arrives, now + after[fires], END)
        a, passed = i * TAU_S / (TAU_S - TAU_M), until - now
        v = a * np.exp(-passed / TAU_S) + (v - a) * np.exp(-passed / TAU_M)
        i, now = i * np.exp(-passed / TAU_S), until
        if until == END:
            return sent
        if now < arrives:
            v[fires] = 0.0
            sent.append((now, fires))
            if recurrent is not None:
                pending = sorted([*pending, (now + delay, recurrent[:, fires])], key=lambda event: event[0])
        else:
            i = i + pending.pop(0)[1]


def squared_voltage(times, w):
    """Returns the mean over time of the sum of u**2, where u' = (i - u) / TAU_M, i' = -i / TAU_S jumps by w at spikes."""
    kernel = [(TAU_S / (TAU_S - TAU_M), TAU_S), (-TAU_S / (TAU_S - TAU_M), TAU_M)]
    total = 0.0
    for t, i in times:
        for other, j in times:
            for a, tau in kernel:
                for b, second in kernel:
                    both = 1 / (1 / tau + 1 / second)
                    ends = [math.exp((t - end) / tau + (other - end) / second) for end in (max(t, other), END)]
                    total += float(w[:, i] @ w[:, j]) * a * b * both * (ends[0] - ends[1])
    return total / END


def by_events(p, inputs, loss):
    """Returns the loss of the network with parameters p, the mean over samples."""
    total = 0.0
    for times in inputs:
        delayed = [(t + p["delay"][i], i) for t, i in times]
        hidden = layer_spikes(delayed, p["in"], p["recurrent"])
        if loss == "voltage":
            total += squared_voltage(hidden, p["out"])
        else:
            first = np.full(len(p["out"]), END)
            for t, j in reversed(layer_spikes(hidden, p["out"])):
                first[j] = t
            total += float(np.log(np.exp(-(first - first[0]) / TAU_S).sum()) + 0.1 * (np.exp(first[0] / TAU_M) - 1))
    return total / len(inputs)


# --- the same on a grid ------------------------------------------------------------------------------------------------


def on_the_grid(p, inputs, loss, dt, dtype=torch.float64):
    """Returns the loss, and its gradients."""
    steps = round(END / dt)
    neuron = lambda: snn.CubaLIF(tau_synapse=TAU_S / dt, tau_membrane=TAU_M / dt)
    linear = lambda w: nn.utils.skip_init(nn.Linear, w.shape[1], w.shape[0], bias=False, dtype=dtype)
    delays = snn.DelayedLinear(3, 3, round(4 / dt), per="input", delay=torch.tensor(p["delay"] / dt), bias=False)
    delays = delays.to(dtype)
    hidden = snn.EventProp(neuron(), linear(p["in"]), linear(p["recurrent"]), delay=round(DELAY / dt))
    out = linear(p["out"])
    values = {"in": hidden.layer.weight, "recurrent": hidden.recurrent.weight, "out": out.weight}
    with torch.no_grad():
        delays.weight.copy_(torch.eye(3))
        for name, weight in values.items():
            weight.copy_(torch.tensor(p[name]))
    x = torch.zeros(steps, len(inputs), 3, dtype=dtype)
    for b, times in enumerate(inputs):
        for t, i in times:
            x[round(t / dt), b, i] += 1
    spikes = hidden(delays(x))
    if loss == "voltage":
        u = snn.LI(tau=TAU_M / dt)(snn.LI(tau=TAU_S / dt, decay_input=False)(out(spikes)))
        result = losses.mean_over_time(u.square()).sum(1).mean()
    else:
        result = losses.time_to_first_spike_loss(
            snn.EventProp(neuron(), out)(spikes), torch.zeros(len(inputs), dtype=torch.int64), tau0=TAU_S / dt, tau1=TAU_M / dt, alpha=0.1
        )
    result.backward()
    grads = {name: weight.grad.double().numpy() for name, weight in values.items()}
    return float(result.detach()), grads | {"delay": delays.delay.grad.double().numpy() / dt}


def network():
    random = np.random.default_rng(3)
    p = {
        "in": random.uniform(0.5, 3.0, (4, 3)), "recurrent": random.normal(0, 1.0, (4, 4)),
        "out": random.uniform(1.0, 3.0, (2, 4)), "delay": np.array([0.4, 1.6, 0.8]),
    }  # fmt: skip
    inputs = [[(0.4 * random.integers(2, 75), int(random.integers(3))) for _ in range(12)] for _ in range(2)]
    return p, inputs


def finite_differences(p, inputs, loss, eps=1e-6):
    grads = {}
    for name, value in p.items():
        grads[name] = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            ends = []
            for sign in (1, -1):
                moved = {key: array.copy() for key, array in p.items()}
                moved[name][place] += sign * eps
                ends.append(by_events(moved, inputs, loss))
            grads[name][place] = (ends[0] - ends[1]) / (2 * eps)
    return grads


# --- tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["voltage", "first spike times"])
def test_gradients_converge_to_those_of_the_event_driven_network(loss, monkeypatch):
    monkeypatch.setattr(eventprop, "AT_ONCE", 1000)  # many pieces
    p, inputs = network()
    expected, exact = finite_differences(p, inputs, loss), by_events(p, inputs, loss)
    errors = []
    for dt in (0.1, 0.00625):
        value, grads = on_the_grid(p, inputs, loss, dt)
        errors.append(max(np.abs(grads[key] - expected[key]).max() / np.abs(expected[key]).max() for key in expected))
    assert abs(value - exact) < 2e-3 * abs(exact)
    assert errors[1] < 0.01 and errors[1] < errors[0] / 5, errors
    single = on_the_grid(p, inputs, loss, 0.1, torch.float32)[1]
    for key, grad in on_the_grid(p, inputs, loss, 0.1)[1].items():
        np.testing.assert_allclose(single[key], grad, rtol=1e-3, atol=1e-3 * np.abs(grad).max())


TEXT = "neuron cuba(u; c, m; tau) { d = 0.8 * c + u; h = m + (d - m) / tau; s = spike(h - 0.7, none); return s; m' = where(s > 0, 0.1, h); c' = d }"


@pytest.mark.parametrize("neuron, expected", [
    (snn.LIF(tau=20.0, v_reset=-0.5), (0.95, 0, 0.05, -0.025, 0, 0, 1, -0.5)),
    (snn.LIF(tau=20.0, decay_input=False, v_threshold=2.0), (0.95, 0, 1, 0, 0, 0, 2, 0)),
    (snn.CubaLIF(tau_synapse=5.0, tau_membrane=20.0), (0.95, 0.04, 0.05, 0, 0.8, 1, 1, 0)),
    (snn.Neuron(TEXT, tau=20.0), (0.95, 0.04, 0.05, 0, 0.8, 1, 0.7, 0.1)),
])  # fmt: skip
def test_neurons_of_the_family_are_recognised(neuron, expected):
    found = snn.EventProp(neuron)._found()
    names = ("a", "p", "q", "c", "b", "m", "threshold", "v_reset")
    np.testing.assert_allclose([getattr(found, name) for name in names], expected, atol=1e-12)


@pytest.mark.parametrize("make, reason", [
    (lambda: snn.EventProp(snn.AdaptiveLIF()), "current depends on the membrane or on spikes"),
    (lambda: snn.EventProp(snn.LIF(v_reset=None)), "hard reset"),
    (lambda: snn.EventProp(snn.QIF()), "not linear below the threshold"),
    (lambda: snn.EventProp(snn.LI()), "not a spike"),
    (lambda: snn.EventProp(snn.LIF(tau=snn.Learnable(2.0))), "its constants are tensors"),
    (lambda: snn.EventProp(snn.LIF(spiking=False)), "spiking=False"),
    (lambda: snn.EventProp(snn.LIF(v_threshold=0.0)), "reset is not below its threshold"),
    (lambda: snn.EventProp(snn.LIF(v_threshold=1e6)), "from -1e4 to 1e4"),
    (lambda: snn.EventProp(snn.LIF(), None, prune.identity(nn.Linear(3, 3), "weight"))(torch.zeros(5, 2, 3)), "recurrent must be an nn.Linear without hooks"),
    (lambda: snn.EventProp(snn.LIF(), None, nn.Linear(3, 3))(torch.zeros(5, 2, 3), {"spikes": torch.zeros(2, 2, 3)}), r"spikes must have shape \[1, 2, 3\]"),
    (lambda: snn.EventProp(snn.Neuron("neuron two(x, y; v) { h = 0.5 * v + x + y; s = spike(h - 1, none); return s; v' = select(s, 0, h) }")), "2 inputs"),
    (lambda: snn.EventProp(snn.Neuron("neuron both(x; v) { h = 0.5 * v + x; s = spike(abs(h) - 1, none); return s; v' = select(s, 0, h) }")), "constant threshold"),
    (lambda: snn.EventProp(snn.LIF(), nn.Conv1d(3, 3, 3)), "layer must be an nn.Linear"),
    (lambda: snn.EventProp(snn.LIF(), nn.Linear(3, 4), nn.Linear(3, 3)), "recurrent must be square"),
    (lambda: snn.EventProp(snn.LIF(), delay=0), "delay must be 1 step or more"),
    (lambda: snn.EventProp(snn.LIF(), count_strength=-1.0), "count_strength must be"),
    (lambda: snn.EventProp(snn.LIF(), nn.Linear(3, 4))(torch.zeros(5, 2, 4)), r"x must be a tensor \[T, \*batch, 3\]"),
    (lambda: snn.EventProp(snn.LIF())(torch.zeros(5, 2), start=torch.zeros(5, 2, dtype=torch.bool)), "not start"),
    (lambda: snn.EventProp(snn.LIF())(torch.zeros(5, 2, dtype=torch.int64)), "x must be float16"),
    (lambda: losses.time_to_first_spike_loss(torch.zeros(5, 2, 3), torch.tensor([0, 3]), tau0=1.0), r"classes in \[0, 2\]"),
    (lambda: losses.time_to_first_spike_loss(torch.zeros(5, 2, 3), torch.tensor([0, 1]), tau0=0.0), "tau0 must be above 0"),
])  # fmt: skip
def test_other_neurons_and_arguments_are_refused(make, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        make()


def layer(dtype=torch.float64, **options):
    torch.manual_seed(0)
    parts = nn.Linear(6, 5), nn.Linear(5, 5)
    made = snn.EventProp(snn.CubaLIF(tau_synapse=5.0, tau_membrane=10.0), *parts, delay=3, **options).to(dtype)
    nn.init.uniform_(made.layer.weight, 0, 2)
    nn.init.uniform_(made.layer.bias, 0, 0.05)
    nn.init.zeros_(made.recurrent.bias)
    return made


def inputs(steps=60, batch=3, dtype=torch.float64):
    return (torch.rand(steps, batch, 6, generator=torch.Generator().manual_seed(1)) < 0.1).to(dtype)


def filtered(spikes):
    """A loss of the spikes that is smooth in their times."""
    return snn.LI(tau=10.0)(snn.LI(tau=5.0)(spikes)).square().mean(0).sum()


def grads_of(made, loss):
    return torch.autograd.grad(loss, list(made.parameters()))


class Adapter(nn.Module):
    """Adds to a Linear, as low-rank adaptation does."""

    def __init__(self, linear, extra):
        super().__init__()
        self.linear, self.extra = linear, nn.Parameter(extra)

    def forward(self, x):
        return self.linear(x) + x @ self.extra


def masked(made, mask):
    prune.custom_from_mask(made.layer, "weight", mask)


def adapted(made, mask):
    made.layer = Adapter(made.layer, ((mask - 1) * made.layer.weight.detach()).t())


@pytest.mark.parametrize("change", [masked, adapted])
def test_a_layer_that_is_changed_after_construction_is_called(change):
    made, expected, x = layer(), layer(), inputs()
    lengths = torch.tensor([60, 0, 37])
    x[37:, 2] = math.nan
    mask = torch.ones(5, 6, dtype=torch.float64)
    mask[2:, 3] = 0
    with torch.no_grad():
        expected.layer.weight *= mask
    change(made, mask)
    for _ in range(2):  # a weight that a hook computes changes at each call
        assert torch.equal(made(x, lengths=lengths), expected(x, lengths=lengths))
        for net in (made, expected):
            filtered(net(x, lengths=lengths)).backward()
    torch.testing.assert_close(made.recurrent.weight.grad, expected.recurrent.weight.grad)
    grad = expected.layer.weight.grad
    found, grad = (made.layer.weight_orig.grad, grad * mask) if change is masked else (made.layer.extra.grad, grad.t())
    torch.testing.assert_close(found, grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_spikes_are_those_of_the_same_network_with_surrogates(dtype):
    made, x = layer(dtype), inputs(dtype=dtype)
    spikes, states = made(x, None)
    current, line, v = made.layer(x), x.new_zeros(3, 3, 5), None
    for t in range(len(x)):
        s, v = made.neuron(current[t : t + 1] + made.recurrent(line[:1]), v)
        assert torch.equal(s[0], spikes[t]), t
        line = torch.cat((line[1:], s))
    assert spikes.sum() > 20 and torch.equal(states["spikes"], line)
    torch.testing.assert_close(states["neuron.v"], v["v"], **({"rtol": 0.02, "atol": 0.02} if dtype is torch.bfloat16 else {}))


def test_samples_and_pieces_are_those_of_separate_calls(monkeypatch):
    made, x = layer(), inputs()
    lengths = torch.tensor([60, 0, 37])
    x[37:, 2] = x[:, 1] = math.nan
    spikes, states = made(x, None, lengths=lengths)
    together = grads_of(made, filtered(spikes))
    alone = [made(x[:n, b : b + 1], None) for b, n in enumerate(lengths.tolist())]
    assert all(torch.equal(spikes[:n, b : b + 1], alone[b][0]) and not spikes[n:, b].any() for b, n in enumerate(lengths.tolist()))
    assert all(torch.equal(states[name][..., 2:, :], alone[2][1][name]) for name in ("neuron.v", "spikes"))
    loss = sum(snn.LI(tau=10.0)(snn.LI(tau=5.0)(torch.cat((s, s.new_zeros(60 - len(s), 1, 5))))).square().mean(0).sum() for s, _ in alone)
    for a, b in zip(together, grads_of(made, loss)):
        torch.testing.assert_close(a, b)
    monkeypatch.setattr(eventprop, "AT_ONCE", 15)  # one step
    spikes, after = made(x, None, lengths=lengths)
    assert all(torch.equal(after[name], states[name]) for name in states)
    for a, b in zip(together, grads_of(made, filtered(spikes))):
        torch.testing.assert_close(a, b)
    first, state = made(x[:20, ::2], None)
    second, _ = made(x[20:37, ::2], state)
    assert torch.equal(torch.cat((first, second)), spikes[:37, ::2])
    made.recurrent.weight.grad = None
    filtered(second).backward()  # the weights learn from spikes that the first piece has sent
    assert made.recurrent.weight.grad.abs().sum() > 0


def test_silent_neurons_counts_and_empty_sequences_have_no_gradient():
    made = layer()
    for x, loss in [
        (torch.zeros(60, 3, 6).double(), filtered), (inputs(), lambda s: s.sum(0).square().sum()),
        (inputs(steps=0), torch.sum), (inputs(steps=1) + 1, filtered), (inputs(batch=0), filtered),
    ]:  # fmt: skip
        assert all(not grad.any() for grad in grads_of(made, loss(made(x))))
    _, state = made(inputs(steps=0), None)
    assert torch.equal(made(inputs(), state)[0], made(inputs())) and state["spikes"].shape == (3, 3, 5)
    penalised = layer(target_count=1.0, count_strength=1.0)
    assert all(not grad.any() for grad in grads_of(penalised, penalised(inputs(steps=0)).sum()))
    assert not losses.first_spike_times(made(torch.zeros(60, 3, 6).double())).ne(60).any()


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 4)])
def test_the_gradient_of_the_penalty_of_counts_equals_a_loop(shape):
    made = snn.EventProp(snn.LIF(tau=10.0), target_count=3.0, count_strength=0.7)
    x = torch.rand(40, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(4).requires_grad_()
    spikes = made(x)
    batch = shape[0] if len(shape) > 1 else 1
    counts = spikes.detach().sum(0).view(batch, -1).sum(0) / batch
    push = (0.7 * (counts - 3) / batch).expand(batch, -1).reshape(shape)
    v, expected = torch.zeros(shape), torch.zeros_like(x)
    for t in reversed(range(40)):
        before = (x[t] - 1) / 10  # the slope of V before a spike; 1 / 10 more after it
        v = torch.where(spikes[t] > 0, v * (before + 0.1) / before + push, v)
        expected[t], v = v / 10, 0.9 * v
    torch.testing.assert_close(torch.autograd.grad((0 * spikes).sum(), x)[0], expected.detach())


def test_the_penalty_of_counts_moves_them_to_their_target():
    made = layer(target_count=4.0, count_strength=0.1)
    optimizer = torch.optim.Adam(made.parameters(), 0.02)
    for _ in range(60):
        spikes = made(inputs())
        optimizer.zero_grad()
        (0 * spikes.sum()).backward()
        optimizer.step()
    before = layer()(inputs()).sum(0).mean(0)
    after = spikes.sum(0).mean(0)
    assert (before - 4).abs().mean() > 3 * (after - 4).abs().mean(), (before, after)
    assert all(not grad.any() for grad in grads_of(made, 0 * made.eval()(inputs()).sum()))


def test_first_spike_times_and_their_loss_equal_loops():
    spikes = torch.zeros(8, 2, 3, dtype=torch.float64)
    for place in [(2, 0, 0), (5, 0, 0), (7, 0, 1), (3, 1, 2), (6, 1, 1)]:
        spikes[place] = 1
    spikes[6:, 1] = math.nan
    lengths, target = torch.tensor([8, 6]), torch.tensor([0, 2])
    spikes.requires_grad_()
    times = losses.first_spike_times(spikes, lengths)
    assert times.tolist() == [[2, 7, 8], [6, 6, 3]]
    weights = torch.arange(1.0, 7).view(2, 3).double()
    grad = torch.autograd.grad((times * weights).sum(), spikes)[0]
    assert {tuple(place): grad[tuple(place)].item() for place in grad.nonzero().tolist()} == {(2, 0, 0): -1, (7, 0, 1): -2, (3, 1, 2): -6}
    loss = losses.time_to_first_spike_loss(spikes, target, lengths, tau0=2.0, tau1=5.0, alpha=0.3)
    expected = sum(
        math.log(sum(math.exp(-t / 2) for t in row)) + row[n] / 2 + 0.3 * (math.exp(row[n] / 5) - 1)
        for row, n in zip(times.tolist(), target.tolist())
    )
    assert loss.item() == pytest.approx(expected / 2)
    assert losses.time_to_first_spike_loss(torch.zeros(900, 2, 3), target, tau0=2.0, tau1=1.0).item() == pytest.approx(math.log(3))
