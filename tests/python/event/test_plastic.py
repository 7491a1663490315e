"""Plasticity rules as text: compared with float64 loops over their equations and published figures, and in networks."""

import copy
import math
import pickle
import threading

import pytest
import torch
from events import TOLERANCE, matrix, ops
from loops import refused, with_threads

import spikeforge
from spikeforge import plasticity, rules


def decayed(x, tau, target=0.0):
    return target + (x - target) * math.exp(-1 / tau)


class Equations:
    """Applies a rule's equations to all connections in each step, in float64, without lazy updates."""

    before, after = {}, {}  # the traces, and their initial values

    def __init__(self, p, size, row, col, delay, weights):
        self.p, self.size, self.row, self.col, self.delay = p, size[1], row, col, delay
        self.w = weights.double().clone()
        self.c = torch.zeros_like(self.w)
        self.seen = []  # for each step: presynaptic traces before and after spikes, and the spikes
        self.b = {key: torch.full((size[0],), start, dtype=torch.float64) for key, start in self.before.items()}
        self.a = {key: torch.full((size[1],), start, dtype=torch.float64) for key, start in self.after.items()}
        self.start = {key: value.clone() for key, value in self.b.items()}

    def past(self, which, key, t):
        """Returns the presynaptic value that each connection sees at step t, after its delay."""
        steps = t - self.delay
        values = torch.stack([step[which][key] for step in self.seen])
        return torch.where(steps >= 0, values[steps.clamp_min(0), self.row], self.start[key][self.row])

    def arrivals(self, t):
        steps = t - self.delay
        fired = torch.stack([step[2] for step in self.seen])
        return (steps >= 0) & fired[steps.clamp_min(0), self.row]

    def step(self, t, pre, post, reward=0.0):
        """Returns the current of each postsynaptic neuron. Spikes leave in this step; those with a delay of 0 arrive in it."""
        self.decay()
        earlier = {key: value.clone() for key, value in self.b.items()}
        self.spike_before(pre)
        self.seen.append((earlier, {key: value.clone() for key, value in self.b.items()}, pre.clone()))
        arrives = self.arrivals(t)
        sent = self.sends(t)
        self.at_pre(t, arrives)
        self.at_post(t, post[self.col])
        self.spike_after(post)
        self.modulate(reward)
        return torch.zeros(self.size, dtype=torch.float64).index_add_(0, self.col[arrives], sent[arrives])

    def spike_before(self, pre):
        for key in self.b:
            self.b[key] = self.b[key] + pre

    def spike_after(self, post):
        for key in self.a:
            self.a[key] = self.a[key] + post

    def sends(self, t):
        return self.w.clone()

    def nothing(self, *_):
        pass

    at_pre = at_post = modulate = nothing


class Pair(Equations):
    before, after = {"x": 0.0}, {"y": 0.0}

    def decay(self):
        self.b["x"] = decayed(self.b["x"], self.p["tau_plus"])
        self.a["y"] = decayed(self.a["y"], self.p["tau_minus"])

    def at_pre(self, t, arrives):
        down = (self.w - self.p["a_minus"] * self.a["y"][self.col]).clamp(self.p["w_min"], self.p["w_max"])
        self.w = torch.where(arrives, down, self.w)

    def at_post(self, t, fired):
        up = (self.w + self.p["a_plus"] * self.past(1, "x", t)).clamp(self.p["w_min"], self.p["w_max"])
        self.w = torch.where(fired, up, self.w)


class Triplet(Equations):
    before, after = {"r1": 0.0, "r2": 0.0}, {"o1": 0.0, "o2": 0.0}

    def decay(self):
        for traces, key, tau in ((self.b, "r1", "tau_plus"), (self.b, "r2", "tau_x"), (self.a, "o1", "tau_minus"), (self.a, "o2", "tau_y")):
            traces[key] = decayed(traces[key], self.p[tau])

    def at_pre(self, t, arrives):
        change = self.a["o1"][self.col] * (self.p["a2_minus"] + self.p["a3_minus"] * self.past(0, "r2", t))
        self.w = torch.where(arrives, (self.w - change).clamp(self.p["w_min"], self.p["w_max"]), self.w)

    def at_post(self, t, fired):
        change = self.past(1, "r1", t) * (self.p["a2_plus"] + self.p["a3_plus"] * self.a["o2"][self.col])
        self.w = torch.where(fired, (self.w + change).clamp(self.p["w_min"], self.p["w_max"]), self.w)


class Reward(Pair):
    def decay(self):
        super().decay()
        self.c = decayed(self.c, self.p["tau_c"])

    def at_pre(self, t, arrives):
        self.c = torch.where(arrives, self.c - self.p["a_minus"] * self.a["y"][self.col], self.c)

    def at_post(self, t, fired):
        self.c = torch.where(fired, self.c + self.p["a_plus"] * self.past(1, "x", t), self.c)

    def modulate(self, reward):
        if reward != 0:
            self.w = (self.w + self.p["rate"] * reward * self.c).clamp(self.p["w_min"], self.p["w_max"])


class ShortTerm(Equations):
    before = {"u": 0.0, "x": 1.0}

    def decay(self):
        self.b = {"u": decayed(self.b["u"], self.p["tau_f"]), "x": decayed(self.b["x"], self.p["tau_d"], 1.0)}

    def used(self, u):
        return u + self.p["use"] * (1 - u)

    def spike_before(self, pre):
        used = self.used(self.b["u"])
        self.b["x"] = torch.where(pre, self.b["x"] - used * self.b["x"], self.b["x"])
        self.b["u"] = torch.where(pre, used, self.b["u"])

    def sends(self, t):
        return self.w * self.used(self.past(0, "u", t)) * self.past(0, "x", t)


RULES = {
    "pair": (plasticity.pair_stdp(a_plus=0.1, a_minus=0.12, tau_minus=12.0, w_max=0.9), Pair),
    "triplet": (plasticity.triplet_stdp(a2_plus=0.02, a2_minus=0.03, a3_plus=0.03, a3_minus=0.01, w_max=1.0), Triplet),
    "reward": (plasticity.reward_stdp(tau_c=30.0, rate=0.05), Reward),
    "short_term": (plasticity.tsodyks_markram(), ShortTerm),
}


def weights_and_equations(name, m, dtype=torch.float64, delay=None):
    rule, equations = RULES[name]
    weights = (0.9 * torch.rand(len(m.indices))).to(dtype)
    delay = torch.zeros(len(m.indices), dtype=torch.long) if delay is None else delay
    return rule, weights, equations(rule.params, (m.rows, m.cols), m.row_of_connections(), m.indices.long(), delay, weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_its_equations(name, dtype, device):
    for kind in ("random", "duplicates", "unsorted", "empty"):
        m = matrix(kind)
        rule, weights, expected = weights_and_equations(name, m, dtype)
        at = m.to(device)
        plastic = spikeforge.Plastic(rule, weights.to(device), at.indices, at.indptr, **m.size)
        for t in range(25):
            pre, post = torch.rand(m.rows) < 0.2, torch.rand(m.cols) < 0.2
            reward = {"reward": 0.5 + t / 10} if name == "reward" and t % 7 == 3 else {}
            arrives = expected.step(t, pre, post, *reward.values())
            sent = plastic.send(pre.to(device), post.to(device, dtype), **reward).cpu()
            torch.testing.assert_close(sent.double(), arrives, rtol=0, atol=10 * TOLERANCE[dtype] * float(arrives.abs().max().clamp_min(1)) if arrives.numel() else 1)
        tolerance = dict(rtol=0, atol=3 * TOLERANCE[dtype])
        torch.testing.assert_close(plastic.weights.cpu().double(), expected.w, **tolerance)
        for key, trace in plastic.traces.items():
            torch.testing.assert_close(trace.cpu().double(), {**expected.b, **expected.a}[key], **tolerance)
        if name == "reward":
            torch.testing.assert_close(plastic.states["c"].cpu().double(), expected.c, **tolerance)


def test_each_step_and_a_signal_for_each_neuron(device):
    rule = spikeforge.synapse("synapse s(w, c = 1; x; k; m) { on pre { x' = x + k }; on m { c' = c * 0.5 + x * m }; each step { w' = w + k * c - m }; decay c by 4 to 2; decay x by 5 }", k=0.25)
    weights, targets = torch.rand(6, 4, dtype=torch.float64), torch.linspace(-1, 1, 4, dtype=torch.float64)
    plastic = spikeforge.Plastic(rule, weights.to(device))
    w, c, x = weights.clone(), torch.ones_like(weights), torch.zeros(6, dtype=torch.float64)
    for t in range(20):
        pre, m = torch.rand(6) < 0.3, targets * (t % 3 == 0)
        plastic.step(pre.to(device), torch.zeros(4, dtype=torch.bool, device=device), **({"m": m.to(device)} if t % 3 < 2 else {}))
        x, c = decayed(x, 5), decayed(c, 4, 2.0)
        x = x + 0.25 * pre
        if t % 3 == 0:
            c = c * 0.5 + x[:, None] * m
        w = w + 0.25 * c - m
    torch.testing.assert_close(plastic.weights.cpu(), w, rtol=1e-12, atol=0)
    torch.testing.assert_close(plastic.states["c"].cpu(), c, rtol=1e-12, atol=0)


def test_dense_and_ell_connections_learn_as_those_by_rows(device):
    rule = RULES["pair"][0]
    weights = 0.9 * torch.rand(7, 5, dtype=torch.float64, device=device)
    columns = torch.arange(5, dtype=torch.int32, device=device).repeat(7, 1)
    made = [
        spikeforge.Plastic(rule, weights), spikeforge.Plastic(rule, weights, columns, cols=5),
        spikeforge.Plastic(rule, weights.flatten(), columns.flatten(), torch.arange(0, 36, 5, device=device), rows=7, cols=5),
    ]
    for _ in range(10):
        pre, post = torch.rand(7).to(device) < 0.4, torch.rand(5).to(device) < 0.4
        for each in made:
            each.step(pre, post)
    assert made[0].weights.shape == (7, 5) and not torch.equal(made[0].weights, weights)
    assert all(torch.equal(each.weights.flatten(), made[0].weights.flatten()) for each in made)


def test_any_number_of_threads_gives_the_same_bits():
    rows, cols, per_row = 900, 1100, 200
    indices = torch.stack([torch.randperm(cols)[:per_row].sort().values for _ in range(rows)]).int()
    weights = torch.rand(rows, per_row)
    spikes = [(torch.rand(rows) < 0.3, torch.rand(cols) < 0.3) for _ in range(4)]
    for name in ("triplet", "reward", "short_term"):
        rule = RULES[name][0]

        def run():
            plastic = spikeforge.Plastic(rule, weights, indices, cols=cols)
            sent = [plastic.send(*each, **({"reward": 1.0} if rule.signals else {})) for each in spikes]
            return [*sent, *plastic.states.values(), *plastic.traces.values()]

        first, *others = with_threads((1, 2, 3), run)
        assert all(all(map(torch.equal, first, other)) for other in others)


# ---- published figures ----

def test_a_pair_of_spikes_changes_a_weight_by_the_exponential_window():
    """Bi and Poo 1998, as in Song, Miller and Abbott: A exp(-|dt| / tau), positive if the presynaptic spike is first."""
    a_plus, a_minus, tau_plus, tau_minus = 0.8, 0.5, 17.0, 34.0
    rule = plasticity.pair_stdp(a_plus=a_plus, a_minus=a_minus, tau_plus=tau_plus, tau_minus=tau_minus, w_min=-10.0, w_max=10.0)
    differences = torch.arange(-60, 61)  # one synapse for each
    n, begin = len(differences), 70
    plastic = spikeforge.Plastic(rule, torch.zeros(n, dtype=torch.float64), torch.arange(n, dtype=torch.int32), torch.arange(n + 1), rows=n, cols=n)
    for t in range(140):
        plastic.step(torch.full((n,), t == begin), begin + differences == t)
    dt = differences.double()
    expected = torch.where(dt >= 0, a_plus * torch.exp(-dt / tau_plus), -a_minus * torch.exp(dt / tau_minus))
    torch.testing.assert_close(plastic.weights, expected, rtol=1e-12, atol=1e-14)


def test_the_triplet_rule_depends_on_the_frequency_of_pairs_as_measured():
    """60 pairs, 10 ms apart, at each frequency: measured by Sjöström et al. 2001, and computed as sums of the rule over all spikes."""
    rule = plasticity.triplet_stdp(w_min=-10.0, w_max=10.0)
    p = rule.params
    measured = {  # frequency: (mean, standard error) with the postsynaptic spike second, and first
        10: ((0.14, 0.10), (-0.41, 0.11)), 20: ((0.29, 0.14), (-0.34, 0.10)), 40: ((0.53, 0.11), (0.56, 0.32)), 50: ((0.56, 0.26), (0.75, 0.19)),
    }  # fmt: skip
    protocols = [(f, dt) for f in measured for dt in (10, -10)]
    n, pairs = len(protocols), 60
    pre = [100 + torch.arange(pairs) * (1000 // f) for f, _ in protocols]
    post = [times + dt for times, (_, dt) in zip(pre, protocols)]
    plastic = spikeforge.Plastic(rule, torch.zeros(n, dtype=torch.float64), torch.arange(n, dtype=torch.int32), torch.arange(n + 1), rows=n, cols=n)
    raster = torch.zeros(2, 6200, n, dtype=torch.bool)
    for k in range(n):
        raster[0, pre[k], k] = raster[1, post[k], k] = True
    for t in range(raster.size(1)):
        plastic.step(raster[0, t], raster[1, t])
    for k, (f, dt) in enumerate(protocols):
        x, y = pre[k].double(), post[k].double()
        trace = lambda at, spikes, tau: torch.where(spikes < at, torch.exp(-(at - spikes) / tau), 0.0).sum()
        up = sum(trace(t, x, p["tau_plus"]) * (p["a2_plus"] + p["a3_plus"] * trace(t, y, p["tau_y"])) for t in y)
        down = sum(trace(t, y, p["tau_minus"]) * (p["a2_minus"] + p["a3_minus"] * trace(t, x, p["tau_x"])) for t in x)
        torch.testing.assert_close(plastic.weights[k], up - down, rtol=1e-10, atol=1e-12)
        mean, error = measured[f][0 if dt > 0 else 1]
        assert abs(float(plastic.weights[k]) - mean) < 2 * error, (f, dt, float(plastic.weights[k]))


def test_short_term_plasticity_reaches_its_steady_state():
    """Tsodyks, Pawelzik and Markram 1998: the fixed point of u and x at a regular rate, for depression and for facilitation."""
    for use, tau_f, tau_d in ((0.5, 0.01, 800.0), (0.05, 1000.0, 100.0)):
        for interval in (5, 20, 100):
            plastic = spikeforge.Plastic(plasticity.tsodyks_markram(use=use, tau_f=tau_f, tau_d=tau_d), torch.full((1, 1), 2.0, dtype=torch.float64))
            for t in range(interval * (6000 // interval) + 1):
                spike = torch.tensor([t % interval == 0])
                sent = plastic.send(spike, torch.tensor([False]))
            f, d = math.exp(-interval / tau_f), math.exp(-interval / tau_d)
            u = use / (1 - (1 - use) * f)
            x = (1 - d) / (1 - (1 - u) * d)
            torch.testing.assert_close(float(sent), 2 * u * x, rtol=2e-3, atol=0)


def test_synaptic_scaling_brings_neurons_to_their_rate():
    rule = plasticity.synaptic_scaling(target=0.1, beta=0.02, tau=200.0)
    plastic = spikeforge.Plastic(rule, torch.tensor([[0.2, 3.0]], dtype=torch.float64))
    charge = torch.zeros(2, dtype=torch.float64)
    arrives = torch.zeros(2, dtype=torch.float64)
    for t in range(6000):
        charge = charge + 0.1 * arrives  # an input of 1 adds a tenth of the charge for a spike
        fires = charge >= 1
        charge = charge - fires.double()
        arrives = plastic.send(torch.tensor([True]), fires, **({"scale": 10.0} if t % 10 == 0 else {}))
    torch.testing.assert_close(plastic.weights[0], torch.ones(2, dtype=torch.float64), rtol=0.1, atol=0)


# ---- networks ----

SPIKE = "neuron threshold(x; v, got) { h = 0.8 * v + x; s = where(h >= 1, 1, 0); return s; v' = where(h >= 1, 0, h); got' = x }"


def learning_network(name, delay, dtype=torch.float64, seed=5, **options):
    made = spikeforge.Network(seed=seed, dtype=dtype, **options)
    a = made.populate("a", 40, SPIKE)
    b = made.populate("b", 30, SPIKE)
    made.drive(a, 0.15, weight=1.0)
    made.drive(b, 0.05, weight=1.0, into="x")
    made.project(b, a, rules.fixed_in_degree(3), weight=-0.1, delay=3)
    number = made.project(a, b, rules.fixed_probability(0.3), weight=rules.uniform(0, 0.2), delay=delay, plasticity=RULES[name][0])
    return made, a, b, number


@pytest.mark.parametrize("delay", [3, rules.uniform(1, 7)], ids=["one", "each"])
@pytest.mark.parametrize("name", RULES)
def test_a_network_learns_by_the_equations(name, delay, device):
    made, a, b, number = learning_network(name, delay, device=device)
    learned = made.learned(number)
    row = torch.repeat_interleave(torch.arange(40), learned.indptr.diff().cpu())
    delays = learned.delays.cpu().long().expand(len(row))
    rule, equations = RULES[name]
    expected = equations(rule.params, (40, 30), row, learned.indices.cpu().long(), delays, next(iter(learned.states.values())).cpu())
    steps, silent = 80, torch.zeros(30, dtype=torch.float64)
    if name == "reward":
        made.modulate(reward=0.3)
    recording = spikeforge.simulate(made, steps, states=[(b, "got", range(30))])
    fired = torch.zeros(steps, 70, dtype=torch.bool)
    fired[recording.steps.cpu(), recording.neurons.cpu()] = True
    assert 0.05 < fired.double().mean() < 0.6
    arrives = torch.stack([expected.step(t, fired[t, :40], fired[t, 40:], 0.3 if name == "reward" else 0.0) for t in range(steps)])
    # The input of neurons of b without that of connections is the drive, which is an integer.
    driven = recording.states[0].cpu() - arrives
    torch.testing.assert_close(driven, driven.round(), rtol=0, atol=1e-9)
    assert arrives.abs().max() > 0.1
    now = made.learned(number)
    torch.testing.assert_close(made.weights(number).cpu(), expected.w, rtol=0, atol=1e-11)
    for key in rule.after:
        torch.testing.assert_close(now.traces[key].cpu(), expected.a[key], rtol=0, atol=1e-11)
    for key in set(rule.traces) - rule.after:
        shortest = int(delays.min())
        torch.testing.assert_close(now.traces[key].cpu(), expected.seen[steps - 1 - shortest][1][key], rtol=0, atol=1e-11)
    if name == "reward":
        torch.testing.assert_close(now.states["c"].cpu(), expected.c, rtol=0, atol=1e-11)


@pytest.mark.parametrize("delay", [3, rules.uniform(1, 7)], ids=["one", "each"])
def test_a_network_that_learns_continues_from_its_state(delay, device):
    options = dict(device=device, deterministic=True)
    one, *_ = learning_network("reward", delay, **options)
    one.modulate(reward=0.5)
    spikeforge.simulate(one, 30)
    other, _, _, number = learning_network("reward", delay, **options)
    other.load_state_dict(one.state_dict())  # the state includes signals
    first, second = spikeforge.simulate(one, 30), spikeforge.simulate(other, 30)
    assert torch.equal(first.steps, second.steps) and torch.equal(first.neurons, second.neurons) and len(first.steps) > 0
    assert torch.equal(one.weights(number), other.weights(number))
    assert one.learned(number).states["c"].ne(0).any()


def test_a_state_has_the_signals_that_the_network_was_given():
    one, _, _, number = learning_network("reward", 2)
    other, *_ = learning_network("reward", 2)
    spikeforge.simulate(one, 20)
    silent = one.state_dict()
    reward = torch.linspace(0, 1, 30)
    one.modulate(reward=reward)
    state = one.state_dict()
    reward.zero_()  # changes only the caller's tensor
    for given, learns in ((state, True), (silent, False), ({key: value for key, value in state.items() if key != "signals"}, False)):
        other.load_state_dict(given)
        before = other.weights(number).clone()
        spikeforge.simulate(other, 20)
        assert torch.equal(other.weights(number), before) != learns
    other.modulate(reward=0.5)
    saved = other.state_dict()
    del state["signals"]
    other.load_state_dict(state)  # a state of an earlier version without signals: they are unchanged
    assert float(other.state_dict()["signals"]["reward"]) == 0.5
    other.load_state_dict(saved)
    for signals in ({}, None, {"reward": torch.tensor(math.nan)}, {"reward": torch.ones(4)}, {"reward": 1.0, "scale": 1.0}):
        refused(ValueError, "signal|reward", lambda: other.load_state_dict({**silent, "signals": signals}))
    with pytest.raises(ValueError):
        other.load_state_dict({**silent, "tensors": []})
    after = other.state_dict()
    assert float(after["signals"]["reward"]) == 0.5
    assert all(map(torch.equal, after["tensors"], saved["tensors"]))
    spikeforge.simulate(other, 20)
    assert not torch.equal(other.weights(number), one.weights(number))


@pytest.mark.parametrize("delay", [3, rules.uniform(1, 7)], ids=["one", "each"])
@pytest.mark.parametrize("name", RULES)
def test_a_network_that_learns_is_the_same_by_operators(name, delay):
    """Steps by operators, as on a GPU, are equivalent; each of the two continues from the states of the other."""
    one, _, b, number = learning_network(name, delay)
    other, *_ = learning_network(name, delay)
    cpp = torch.ops.spikeforge_simulation
    for made in (one, other):
        if name == "reward":
            made.modulate(reward=torch.linspace(0, 0.4, 30))
    spikeforge.simulate(one, 25)
    cpp.uses_operators(other._held, True)
    spikeforge.simulate(other, 25)
    cpp.uses_operators(other._held, False)
    for _ in range(2):
        for (key, a), b in zip(one.learned(number).states.items(), other.learned(number).states.values()):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12, msg=key)
        for (key, a), b in zip(one.learned(number).traces.items(), other.learned(number).traces.values()):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12, msg=key)
        first = spikeforge.simulate(one, 20)
        assert len(first.steps) > 50
        second = spikeforge.simulate(other, 20)
        assert torch.equal(first.steps, second.steps) and torch.equal(first.neurons, second.neurons)


def test_signals_come_and_end_between_steps(device):
    """A CUDA graph of steps reads signals from memory."""
    made, *_, number = learning_network("reward", 2, device=device, deterministic=True)
    weights = [made.weights(number).clone()]
    for reward in (None, 0.5, None, 0.0):
        if reward is not None:
            made.modulate(reward=reward)
        spikeforge.simulate(made, 25)
        weights.append(made.weights(number).clone())
    changed = [not torch.equal(a, b) for a, b in zip(weights, weights[1:])]
    assert changed == [False, True, True, False]


def test_a_deterministic_network_on_a_gpu_sends_weights_alone(cuda):
    with pytest.raises(NotImplementedError, match="learns by rules that send their weight, which does not decay, but tsodyks_markram has a send of its own"):
        learning_network("short_term", 2, device=cuda, deterministic=True)


def test_weights_of_a_network_may_be_written(device):
    made, _, b, number = learning_network("pair", 2, device=device)
    made.weights(number).zero_()
    assert made.weights(number).eq(0).all()
    spikeforge.simulate(made, 5)
    assert made.weights(number).numel() > 100
    if device.type == "cuda":
        return  # on a GPU, the memory of weights belongs to a graph
    made.weights(number).untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="Network: the weights of a built network may be written, but not resized"):
        spikeforge.simulate(made, 1)


# ---- texts and arguments ----

def test_connections_go_on_from_their_state(device):
    """Includes decaying states, and a copy."""
    rule = spikeforge.synapse("synapse f(w; x; tau) { on pre { w' = w + x\n x' = x + 1 } decay w by tau\n decay x by tau }", tau=7.0)
    draw = lambda: [torch.rand(n, device=device) < 0.4 for n in (4, 3)]
    plastic = spikeforge.Plastic(rule, torch.rand(4, 3, dtype=torch.float64, device=device))
    for _ in range(5):
        plastic.step(*draw())
    saved, copied = plastic.state_dict(), copy.deepcopy(plastic)
    later = [draw() for _ in range(6)]
    found = []
    for each in (plastic, copied, spikeforge.Plastic(rule, torch.zeros(4, 3, dtype=torch.float64, device=device))):
        if len(found) == 2:
            each.load_state_dict(saved)
        for pre, post in later:
            each.step(pre, post)
        found.append(each.weights.clone())
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2]) and found[0].max() > 1
    with pytest.raises(ValueError, match="its states have other sizes or types"):
        spikeforge.Plastic(rule, torch.zeros(4, 2, device=device)).load_state_dict(saved)


def test_a_state_that_is_refused_changes_nothing():
    text = "synapse f(w; x; k) { on pre { w' = w + k * x; x' = x + 1 } decay w by 7 }"
    plastic = spikeforge.Plastic(spikeforge.synapse(text, k=1), torch.rand(4, 3))
    plastic.step(torch.ones(4), torch.ones(3))
    before = plastic.state_dict()
    other = spikeforge.Plastic(spikeforge.synapse(text.replace("k * x", "k"), k=1), torch.rand(4, 3))
    other.step(torch.ones(4), torch.ones(3))
    good = spikeforge.Plastic(spikeforge.synapse(text, k=2), torch.rand(4, 3)).state_dict()
    for wrong, kind, words in (
        (None, ValueError, "it has no 'states'"),
        ({key: value for key, value in good.items() if key != "traces"}, ValueError, "it has no 'traces'"),
        ({key: value for key, value in good.items() if key != "step"}, ValueError, "it has no 'step'"),
        (other.state_dict(), ValueError, r"it belongs to another rule, synapse f\(w; x; k\)"),
        ({**good, "states": None}, TypeError, "its states must be a list of tensors, but are None"),
        ({**good, "traces": [1.0]}, TypeError, r"its traces must be a list of tensors, but are \[1.0\]"),
        ({**good, "traces": [torch.zeros(3)]}, ValueError, "its traces have other sizes or types"),
        ({**good, "states": [t.double() for t in good["states"]]}, ValueError, "its states have other sizes or types"),
        ({**good, "step": 1.5}, TypeError, "its step must be a whole number, but is 1.5"),
        ({**good, "step": True}, TypeError, "its step must be a whole number, but is True"),
        ({**good, "step": "1"}, TypeError, "its step must be a whole number, but is '1'"),
        ({**good, "step": -1}, ValueError, r"its step must be 0 or more and below 2\^62, but is -1"),
        ({**good, "step": 2**62}, ValueError, r"its step must be 0 or more and below 2\^62, but is 4611686018427387904"),
        ({**good, "step": 2**64}, ValueError, r"its step must be 0 or more and below 2\^62, but is 18446744073709551616"),
        ({**good, "traces": [t.to("meta") for t in good["traces"]]}, ValueError, "its traces must be dense tensors with data, but one is torch.strided on meta"),
        ({**good, "traces": [t.to_sparse() for t in good["traces"]]}, ValueError, "its traces must be dense tensors with data, but one is torch.sparse_coo on cpu"),
    ):
        refused(kind, "Plastic: the loaded state does not fit: " + words, lambda: plastic.load_state_dict(wrong))
        after = plastic.state_dict()
        assert all(map(torch.equal, after["states"] + after["traces"], before["states"] + before["traces"])) and after["step"] == before["step"]
    plastic.load_state_dict(good)  # parameters may have other values
    del good["rule"]  # as in states of earlier versions
    plastic.load_state_dict(good)


@pytest.mark.parametrize("how", ["made", "copied", "pickled", "loaded", "from its weights"])
def test_connections_of_inference_mode_are_stepped_outside_of_it_too(how):
    rule = spikeforge.synapse("synapse f(w; x; tau) { on pre { w' = w + x\n x' = x + 1 } decay w by tau\n decay x by tau }", tau=7.0)
    weights = torch.rand(4, 3)
    expected = spikeforge.Plastic(rule, weights)
    with torch.inference_mode():
        given = weights.clone()
        plastic = spikeforge.Plastic(rule, given)
        if how == "copied":
            plastic = copy.deepcopy(plastic)
        if how == "pickled":
            plastic = pickle.loads(pickle.dumps(plastic))
        if how == "loaded":
            plastic.load_state_dict(expected.state_dict())
    if how == "from its weights":
        plastic = spikeforge.Plastic(rule, given)
    for _ in range(3):
        for each in (plastic, expected):
            each.step(torch.ones(4), torch.ones(3))
    assert torch.equal(plastic.weights, expected.weights) and plastic.weights.max() > 1
    plastic.weights.zero_()


def test_a_second_thread_is_refused():
    plastic, refused = spikeforge.Plastic(spikeforge.synapse("synapse f(w) { on pre { w' = w + 1 } }"), torch.zeros(300, 300)), []
    pre, post = torch.ones(300, dtype=torch.bool), torch.zeros(300, dtype=torch.bool)

    def walk():
        for _ in range(200):
            try:
                plastic.step(pre, post)
            except RuntimeError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=walk) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plastic.weights.min() == plastic.weights.max() == 600 - len(refused)
    assert all("another thread is in a step" in words for words in refused)


def test_reading_or_writing_all_states_is_refused_within_a_step():
    plastic = spikeforge.Plastic(RULES["reward"][0], torch.rand(3, 4))
    saved = plastic.state_dict()
    for call in (lambda: plastic.states, lambda: plastic.weights, plastic.state_dict, lambda: plastic.load_state_dict(saved)):
        with plastic._in_use, pytest.raises(RuntimeError, match="another thread is in a step of these connections"):
            call()
        call()


def test_the_state_of_a_network_with_another_rule_or_other_arrays_is_refused():
    def network(sources, text, **params):
        made = spikeforge.Network(seed=1)
        a = made.populate("a", 4, "neuron n(x; v) { s = spike(v + x - 1, none); return s; v' = 0.5 * v + x }")
        made.project(a, a, rules.arrays(sources, [0, 1]), plasticity=spikeforge.synapse(text, **params))
        return made

    text = "synapse f(w; x; t) { on pre { x' = x + 1 } on post { w' = w + x } decay x by t }"
    state = network([0, 1], text, t=3.0).state_dict()
    network([0, 1], text, t=3.0).load_state_dict(state)
    for other in (network([2, 3], text, t=3.0), network([0, 1], text.replace("x + 1", "x + 2"), t=3.0), network([0, 1], text, t=3.0000001)):
        refused(ValueError, "this is the state of another network", lambda: other.load_state_dict(state))
    with pytest.raises(ValueError, match="projection must be an index that project.. returned, below 1, but is 1"):
        network([0, 1], text, t=3.0).weights(1)


EVERY = """
synapse every(w, c = 0.5; p, q = 1; k, tau; m, n) {
  on pre { d = w * k; e = d + d; c' = c + e * q; p' = p + k; send where(d > 0 and m < 1, d, e * e) }  # a comment
  on post { q' = q * (1 - k) }
  on n { w' = w + n * c
    c' = 0 }
  each step { w' = w - 0.1 * w }
  decay c by tau + tau * tau
  decay q by tau to 1 / k
}"""


def test_a_printed_rule_reads_as_itself():
    rule = spikeforge.synapse(EVERY, k=0.5, tau=3)
    assert spikeforge.synapse(rule.text, **rule.params) == rule
    assert (list(rule.states.items()), list(rule.traces.items())) == ([("w", 0.0), ("c", 0.5)], [("p", 0.0), ("q", 1.0)])
    assert rule.after == {"q"} and rule.signals == ("m", "n") and rule.states_decay and rule.reads_columns
    assert "send where(d > 0 and m < 1, d, e * e)" in rule.text


def test_a_rule_of_functions_is_that_of_its_text():
    @spikeforge.synapse(k=0.5, tau=3)
    class every:
        states, traces, signals = {"w": 0, "c": 0.5}, {"p": 0, "q": 1}, "m, n"
        decay = {"c": lambda tau: tau + tau * tau, "q": ("tau", lambda k: 1 / k)}

        def on_pre(k, w, c, q, p, *, m):
            d = w * k
            e = d + d
            return {"send": torch.where((d > 0) & (m < 1), d, e * e), "p": p + k, "c": c + e * q}

        @staticmethod
        def on_post(q, k):
            return {"q": q * (1 - k)}

        def on_n(w, c, n):
            return {"w": w + n * c, "c": 0}

        def each_step(w):
            return {"w": w - 0.1 * w}

    assert every == spikeforge.synapse(EVERY, k=0.5, tau=3) and every(k=1).params == {"k": 1.0, "tau": 3.0}

    @spikeforge.synapse
    class silent:
        states = "w"

    assert silent == spikeforge.synapse("synapse silent(w) { }")


def test_a_class_has_its_inherited_members():
    class Traces:
        states, traces = "w", "x, y"
        decay = {"x": "tau", "y": "tau"}

        def on_pre(w, x, y):
            return {"w": w - y, "x": x + 1}

    class Base(Traces):
        def on_post(w, x, y):
            return {"w": w + x, "y": y + 1}

    class stdp(Base):
        def on_post(w, x, y):
            return {"w": w + 2 * x, "y": y + 1}

    text = "synapse stdp(w; x, y; tau) { on pre { w' = w - y; x' = x + 1 } on post { w' = w + 2 * x; y' = y + 1 } decay x by tau; decay y by tau }"
    assert spikeforge.synapse(tau=20)(stdp) == spikeforge.synapse(text, tau=20)


def test_wrong_functions_of_a_rule_raise():
    def refused(error, words, params={}, **members):
        with pytest.raises(error, match=words):
            spikeforge.synapse(type("r", (), {"states": "w", "traces": "x", **members}), **params)

    refused(TypeError, r"r: on_pre has an argument v, which the rule does not define; it has w, x, k", {"k": 1}, on_pre=lambda v: {})
    refused(TypeError, r"r: on_pre must return a dict of next values, such as \{'w': ...\}, but returns Value", on_pre=lambda w: w)
    refused(ValueError, "r: on_post returns a value of 'send'; it can return those of w, x$", on_post=lambda w: {"send": w})
    refused(ValueError, "r: on_spike is not an event; a rule has states, traces, signals, decay, on_pre, on_post, on_m, each_step", signals=["m"], on_spike=lambda w: {})
    refused(ValueError, "r: a state, trace, parameter or signal cannot be called 'not'", states="not")
    refused(ValueError, "r: a state, trace, parameter or signal cannot be called send", signals="send")
    refused(ValueError, "r: decay of x: tau is not a parameter; there are k", {"k": 1}, decay={"x": "tau"})
    refused(TypeError, "r: on_pre: x must be a value or a number, but is Tensor", on_pre=lambda x: {"x": torch.ones(1)})
    refused(TypeError, "the truth of a value is not known while its function is traced", on_pre=lambda x: {"x": 1 if x > 0 else 0})
    refused(TypeError, r"of shape \[3\] is used .* make it a parameter \(an argument of synapse\(\)\), or", on_pre=lambda x: {"x": x + torch.ones(3)})
    refused(ValueError, "r: its functions are not a legal rule: .*\"x\" is a trace of a neuron.* but no w", on_pre=lambda w, x: {"x": w})
    refused(ValueError, "r: its functions are not a legal rule: .*a synapse draws no random numbers", on_pre=lambda x: {"x": torch.rand_like(x)})
    refused(ValueError, "r: its functions are not a legal rule: .*\"y\" is not a state or trace and cannot decay", decay={"y": 2}, on_pre=lambda x: {"x": x})
    with pytest.raises(TypeError, match="synapse: rule must be text or a class of functions, but is a int"):
        spikeforge.synapse(3)


REFUSED = {
    "synapse s() { }": "line 1, column 11: a synapse has at least one state, its weight",
    "synapse s(w; x) { }": "column 19: trace x changes at no spike",
    "synapse s(w; x) { on pre { x' = x }; on post { x' = x } }": "column 48: \"x\" is changed in on pre already",
    "synapse s(w; x) { on pre { x' = w } }": "column 28: \"x\" is a trace of a neuron, which sees traces of the same neuron and parameters, but no w",
    "synapse s(w; x) { on pre { x' = x }; each step { x' = 0 } }": "column 50: \"x\" is a trace, which only on pre, on post and decay can change",
    "synapse s(w) { on now { } }": "column 19: \"now\" is not an event",
    "synapse s(w) { on pre { w' = w; w' = 0 } }": "column 33: w' has a value already",
    "synapse s(w) { on pre { }; on pre { } }": "column 31: each event may occur once in a synapse",
    "synapse s(w) { on pre { w' = w > 0 } }": "column 25: a state is a number, not a boolean",
    "synapse s(w) { on pre { w' = w + normal() } }": "a synapse draws no random numbers",
    "synapse s(w) { on post { send w } }": "column 26: send is legal in on pre only",
    "synapse s(w;; tau) { decay w by w }": "column 33: nothing above is called \"w\"",
    "synapse s(w;; tau) { decay v by tau }": "column 28: \"v\" is not a state or trace and cannot decay",
    "synapse s(w;;; pre) { }": "column 16: a signal cannot be called \"pre\"",
    "synapse s(w) { w' = 0 }": "column 16: expected on pre { ... }, on post { ... }, each step { ... } or decay name by tau, but found \"w\"",
    "neuron s(w) { return w }": "expected \"synapse\" at the beginning",
}


def test_wrong_texts_are_refused_where_they_are_wrong():
    for text, words in REFUSED.items():
        with pytest.raises(ValueError) as error:
            spikeforge.synapse(text)
        assert words in str(error.value), text


def test_wrong_rules_are_refused():
    for text, words in (
        ("synapse s(w; ; ; reward) { on pre { w' = w } }", r"synapse: no event of the rule s reads the signal reward: write on reward \{ ... \}"),
        ("synapse s(w = 0.5) { }", "synapse: w of the rule s is its weight, whose values are arguments of Plastic and Network; it cannot start at 0.5"),
        ("synapse s(w; x) { on pre { x' = x + 1 } decay x by 0 }", "synapse: x of s must decay by a positive number of steps, but it is 0"),
        ("synapse s(w) { decay w by nan }", "synapse: w of s must decay by a positive number of steps, but it is nan"),
        ("synapse s(w) { decay w by 2 to inf }", "synapse: w of s must decay to a finite number, not inf"),
    ):
        refused(ValueError, words, lambda: spikeforge.synapse(text))
    spikeforge.synapse("synapse s(w; ; ; m) { each step { w' = w + m } }")


def test_wrong_arguments_of_rules_raise():
    rule = RULES["pair"][0]
    refused(ValueError, "synapse: the rule pair_stdp has no parameter tau; it has a_plus, ", lambda: rule(tau=1))
    with pytest.raises(ValueError, match="synapse: the parameter k of the rule s is missing"):
        spikeforge.synapse("synapse s(w;; k) { }")
    weights = 0.9 * torch.rand(3, 4)
    for wrong in (weights - 0.5, weights + 1):
        with pytest.raises(ValueError, match="Plastic: weights are from .*, but the rule pair_stdp keeps them from 0 to 0.9: change its bounds"):
            spikeforge.Plastic(rule, wrong)
    with pytest.raises(ValueError, match=r"plastic_step: pre must have shape \[rows\] = \[3\], without a batch.* but has \[2, 3\]"):
        spikeforge.Plastic(rule, weights).step(torch.zeros(2, 3), torch.zeros(4))
    with pytest.raises(ValueError, match="Plastic: the rule pair_stdp has no signal reward; it has none"):
        spikeforge.Plastic(rule, weights).step(torch.zeros(3), torch.zeros(4), reward=1.0)
    with pytest.raises(ValueError, match="synapse: x of pair_stdp must decay by a positive number of steps, but it is -1"):
        rule(tau_plus=-1.0)
    with pytest.raises(ValueError, match="synapse: w of s must decay by a positive number of steps, but it is -2"):
        spikeforge.synapse("synapse s(w;; k) { decay w by k }", k=1)(k=-2)
    made, a, b, _ = learning_network("pair", 1)
    with pytest.raises(TypeError, match="Network: plasticity must be a rule of spikeforge.synapse"):
        made.project(a, b, rules.one_to_one(), plasticity="stdp")
    refused(ValueError, "Network: no projection learns by a rule with the signal reward", lambda: made.modulate(reward=1.0))


def test_arguments_that_contradict_each_other_are_refused():
    weights, indices, indptr = 0.9 * torch.rand(3, 2), torch.tensor([[0, 1], [0, 1], [1, 2]], dtype=torch.int32), torch.tensor([0, 2, 4, 6])
    for rule in (RULES["pair"][0], RULES["short_term"][0]):
        make = lambda *args, **sizes: spikeforge.Plastic(rule, *args, **sizes)
        make(weights, rows=3, cols=2), make(weights, indices, rows=3, cols=3), make(weights.flatten(), indices, cols=3), make(weights, indices, indptr, rows=3, cols=3)
        for args, sizes, words in (
            ((weights,), dict(rows=5, cols=9), "Plastic: rows must be 3, the shape of the given matrix, but is 5"),
            ((weights,), dict(cols=9), "Plastic: cols must be 2, the shape of the given matrix, but is 9"),
            ((weights, None, indptr), {}, "Plastic: indptr needs indices: dense weights have neither"),
            ((weights, indices), dict(rows=4, cols=3), "Plastic: rows must be 3, the shape of the given matrix, but is 4"),
            ((weights, indices), dict(cols=2), "indices must be from 0 to cols - 1 = 1"),
            ((weights.T, indices), dict(cols=3), r"Plastic: weights must have one element per connection, as indices \[3, 2\], but have \[2, 3\]"),
            ((weights.flatten()[:3], indices.flatten(), indptr), dict(rows=3, cols=3), r"as indices \[6\], but have \[3\]"),
            ((weights.flatten(), indices.flatten(), indptr), dict(rows=5, cols=3), r"indptr must have shape \[rows \+ 1\] = \[6\], but has \[4\]"),
        ):
            refused(ValueError, words, lambda: make(*args, **sizes))


def test_spikes_and_signals_of_a_step_are_looked_at():
    plastic = spikeforge.Plastic(RULES["reward"][0], torch.rand(3, 4))
    before = plastic.weights.clone()
    for spikes, kind in (([1.0, 0.0, 1.0], "list"), (torch.ones(3).numpy(), "ndarray"), (None, "NoneType")):
        with pytest.raises(TypeError, match=rf"Plastic: pre must be a bool or floating-point tensor \[rows\], but is {kind}"):
            plastic.step(spikes, torch.ones(4))
        with pytest.raises(TypeError, match=rf"Plastic: post must be a bool or floating-point tensor \[cols\], but is {kind}"):
            plastic.send(torch.ones(3), spikes)
    for reward in (math.nan, math.inf, -math.inf, 1e39, [1.0, math.nan, 1.0, 1.0]):
        with pytest.raises(ValueError, match="Plastic: the signal reward must be finite in float32, but is "):
            plastic.step(torch.ones(3), torch.ones(4), reward=reward)
    assert torch.equal(plastic.weights, before) and plastic.state_dict()["step"] == 0
    spikeforge.Plastic(RULES["reward"][0], torch.rand(3, 4).double()).step(torch.ones(3), torch.ones(4), reward=1e39)


def call(text=plasticity.PAIR_STDP, dtype=torch.float32):
    m = matrix("random")
    rule = spikeforge.synapse(text, **RULES["pair"][0].params)
    states = [torch.rand(len(m.indices), dtype=dtype)]
    traces = [torch.rand(m.rows, dtype=dtype), torch.rand(m.cols, dtype=dtype)]
    columns = list(ops.csr_transpose(m.indices, m.indptr, **m.size))
    args = (rule.text, states, traces, m.indices, m.indptr, columns, torch.rand(m.rows) < 0.3, torch.rand(m.cols) < 0.3, [])
    return args, dict(params=list(rule.params.values()), **m.size, sends=True)


def test_the_operators_are_those_of_torch():
    args, options = call()
    before = [t.clone() for t in (*args[1], *args[2])]
    states, traces, sent = ops.plastic_step(*args, **options)
    assert all(torch.equal(a, b) for a, b in zip(before, (*args[1], *args[2])))
    assert torch.equal(ops.plastic_step_(*args, **options), sent)
    assert all(torch.equal(a, b) for a, b in zip((*states, *traces), (*args[1], *args[2]))) and not torch.equal(states[0], before[0])
    for op in (ops.plastic_step, ops.plastic_step_):
        torch.library.opcheck(op.default, *call()[:1], call()[1])
    with pytest.raises(ValueError, match="plastic_step: states and traces must not share memory"):
        ops.plastic_step_(args[0], args[1], [args[1][0][:70], args[2][1]], *args[3:], **options)
