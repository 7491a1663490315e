"""Blocks of steps and resting neurons on the CPU: the bits are those of single steps in which every neuron runs."""

import re
import time

import numpy as np
import pytest
import torch
from loops import with_threads

import spikeforge
from rank_networks import LIF
from spikeforge import rules

CLOCK = "neuron clock(x; n; period) { s = spike(n - period, none); return s; n' = select(s, 0, n + 1) }"
NOISY = "neuron noisy(x; v) { h = 0.9 * v + x + 0.05 * normal(); s = spike(h - 1, none); return s; v' = select(s, 0, h) }"
TWO_INPUTS = """
neuron two(a, b; v, i; leak) {
  h = 0.5 * v + i
  s = spike(h - 1, none)
  return s
  v' = select(s, 0, h)
  i' = leak * i + a - b
}
"""


def restless(text):
    """The same neuron with one more state, its last, which changes in every step: the neuron never rests."""
    return re.sub("(; [^;)]*)", r"\1, age = 0.5", text, count=1).rstrip().removesuffix("}") + "\nage' = age + 1 }"


def mixed_network(least, seed, change=lambda text: text, random=True, plastic=False):
    """Clocks whose spikes wake neurons that rest most of the time; neurons that never rest; delays from `least` on."""
    generator = torch.Generator().manual_seed(seed)
    made = spikeforge.Network(seed=seed, dtype=torch.float32)
    clocks = made.populate("clocks", 30, change(CLOCK), period=torch.randint(60, 400, (30,), generator=generator))
    quiet = made.populate("quiet", 1500, change(LIF), states={"v": torch.rand(1500, generator=generator)}, leak=0.2 + 0.4 * torch.rand(1500, generator=generator))
    two = made.populate("two", 777, change(TWO_INPUTS), leak=0.3)
    steady = made.populate("steady", 70, change(LIF), leak=0.9)
    made.inject(steady, torch.linspace(0, 0.2, 70))
    made.inject(two, torch.linspace(-0.1, 0.1, 777), into="b")
    delays = rules.uniform(least, least + 12)
    for source, target, degree, weight in ((clocks, quiet, 9, 0.4), (quiet, quiet, 3, 0.3), (quiet, two, 7, 0.4), (two, quiet, 2, -0.2), (steady, two, 1, 0.05)):
        made.project(source, target, rules.fixed_out_degree(degree), weight=rules.normal(weight, 0.2), delay=delays)
    made.project(two, two, rules.fixed_total(200), weight=0.3, delay=least, into="b")
    if random:
        noisy = made.populate("noisy", 100, change(NOISY))
        driven = made.populate("driven", 90, change(LIF), leak=0.8)
        made.drive(driven, torch.linspace(0, 0.9, 90), weight=0.3)
        made.drive(quiet, torch.zeros(1500).index_fill_(0, torch.arange(640, 660), 0.01), weight=2.0)
        made.project(noisy, two, rules.fixed_out_degree(1), weight=0.1, delay=delays)
        made.project(driven, noisy, rules.fixed_total(50), weight=0.1, delay=delays)
    if plastic:
        made.project(steady, quiet, rules.fixed_out_degree(5), weight=0.3, delay=delays, plasticity=spikeforge.plasticity.pair_stdp())
    return made, clocks


def tensors_of(made):
    """What changes in a step, without the ages."""
    tensors = made.state_dict()["tensors"]
    age = tensors[1].item() + 0.5
    return [t for t in tensors if not (t.dtype == torch.float32 and t.eq(age).all())]


def assert_same_bits(made, single, clocks, pieces):
    """The spikes and the state after each piece; recorded states and ages force single steps without rest."""
    spikes = 0
    for steps in pieces:
        found, expected = spikeforge.simulate(made, steps), spikeforge.simulate(single, steps, states=[(clocks, "n", [0])])
        assert torch.equal(found.steps, expected.steps) and torch.equal(found.neurons, expected.neurons)
        here, there = tensors_of(made), tensors_of(single)
        assert len(here) == len(there) and all(map(torch.equal, here, there))
        spikes += len(found.steps)
    return spikes


PIECES = (1, 300, 0, 7, 444, 19, 2, 900)


@pytest.mark.parametrize("least", [1, 2, 5, 18, 60])
@pytest.mark.parametrize("random", [False, True])
def test_blocks_with_neurons_at_rest_have_the_bits_of_single_steps(least, random):
    made, _ = mixed_network(least, least, random=random)
    single, clocks = mixed_network(least, least, restless, random=random)
    assert assert_same_bits(made, single, clocks, PIECES) > 3000


def test_two_threads_have_the_bits_of_single_steps_too():
    def run():
        made, _ = mixed_network(5, 8)
        single, clocks = mixed_network(5, 8, restless)
        return assert_same_bits(made, single, clocks, PIECES)

    ((one,), (two,)) = with_threads((1, 2), lambda: [run()])
    assert one == two


def test_a_network_that_learns_has_the_bits_of_single_steps():
    made, _ = mixed_network(2, 4, plastic=True)
    single, clocks = mixed_network(2, 4, restless, plastic=True)
    assert_same_bits(made, single, clocks, (150, 33, 400))


@pytest.mark.parametrize("least", [1, 2, 5, 18])
def test_a_network_has_the_bits_of_a_plain_loop(least):
    """The loop adds the terms of a column one by one, in the order of steps, rows and columns."""
    made, clocks = mixed_network(least, 3, random=False)
    steps, n = 700, made.size
    matrix, state = made.build(), tensors_of(made)
    begins, columns, weights, delays = (t.numpy() for t in (matrix.indptr, matrix.indices, matrix.weights, matrix.delays))
    ring = np.zeros((delays.max() + 1, 2 * n), np.float32)
    current = torch.zeros(2, n)
    current[0, 2307:] = torch.linspace(0, 0.2, 70)
    current[1, 1530:2307] = torch.linspace(-0.1, 0.1, 777)
    generator = torch.Generator().manual_seed(3)
    period = torch.randint(60, 400, (30,), generator=generator).float()
    v = torch.cat([torch.rand(1500, generator=generator), torch.zeros(70)])
    leak = torch.cat([(0.2 + 0.4 * torch.rand(1500, generator=generator)), torch.full((70,), 0.9)])
    ticks, wait, u, i = torch.zeros(30), torch.zeros(1570), torch.zeros(777), torch.zeros(777)
    lif = torch.cat([torch.arange(30, 1530), torch.arange(2307, n)])
    fired = []
    for t in range(steps):
        x = torch.from_numpy(ring[t % len(ring)].copy()).view(2, n) + current
        ring[t % len(ring)] = 0
        s = torch.zeros(n, dtype=torch.bool)
        s[:30] = ticks >= period
        ticks = torch.where(s[:30], 0, ticks + 1)
        h = leak * v + x[0, lif]
        s[lif] = (wait <= 0) & (h - 1 >= 0)
        v = torch.where(wait > 0, v, torch.where(s[lif], 0, h))
        wait = torch.where(s[lif], 3, (wait - 1).clamp(min=0))
        h = 0.5 * u + i
        s[1530:2307] = h - 1 >= 0
        u = torch.where(s[1530:2307], 0, h)
        i = torch.tensor(0.3) * i + x[0, 1530:2307] - x[1, 1530:2307]
        for row in s.nonzero().flatten().tolist():
            fired.append((t, row))
            own = slice(begins[row], begins[row + 1])
            np.add.at(ring, ((t + delays[own].astype(int)) % len(ring), columns[own]), weights[own])
    recording = spikeforge.simulate(made, steps)
    assert len(fired) > 1000 and list(zip(recording.steps.tolist(), recording.neurons.tolist())) == fired
    now = tensors_of(made)
    assert np.array_equal(now[0].numpy(), ring) and not torch.equal(now[0], state[0])
    for found, expected in zip(now[3:], (ticks, v[:1500], wait[:1500], u, i, v[1500:], wait[1500:]), strict=True):
        assert torch.equal(found, expected)


def quiet_network(size=3000, text=LIF):
    made = spikeforge.Network(seed=1, dtype=torch.float32)
    p = made.populate("p", size, text, leak=0.5)
    made.project(p, p, rules.fixed_out_degree(2), weight=0.6, delay=9)
    return made, p


def test_a_loaded_state_wakes_neurons_at_rest():
    (made, _), (single, _) = quiet_network(), quiet_network(text=restless(LIF))
    for network in (made, single):
        spikeforge.simulate(network, 1000)
        state = network.state_dict()
        state["tensors"][3].copy_(torch.linspace(0, 3.9, 3000))  # v
        network.load_state_dict(state)
    found, expected = spikeforge.simulate(made, 60), spikeforge.simulate(single, 60)
    assert len(found.steps) > 1500
    assert torch.equal(found.steps, expected.steps) and torch.equal(found.neurons, expected.neurons)


def test_an_arrival_in_flight_in_a_loaded_state_is_not_lost():
    (made, _), (single, _) = quiet_network(), quiet_network(text=restless(LIF))
    for network in (made, single):
        spikeforge.simulate(network, 1000)
        state = network.state_dict()
        state["tensors"][0][5, ::7] = 1.5
        network.load_state_dict(state)
    found, expected = spikeforge.simulate(made, 60), spikeforge.simulate(single, 60)
    assert len(found.steps) > 400
    assert torch.equal(found.steps, expected.steps) and torch.equal(found.neurons, expected.neurons)


def test_weights_written_between_calls_reach_neurons_at_rest():
    recorded = []
    for change in (lambda text: text, restless):
        made, _ = mixed_network(5, 6, change)
        weights = made.build().weights
        spikeforge.simulate(made, 800)
        weights.mul_(1.5)
        recorded.append(spikeforge.simulate(made, 800))
    assert torch.equal(recorded[0].steps, recorded[1].steps) and torch.equal(recorded[0].neurons, recorded[1].neurons)


def test_a_step_of_neurons_at_rest_takes_little_time():
    def microseconds(text):
        made, _ = quiet_network(100_000, text)
        spikeforge.simulate(made, 1000, spikes=False)
        times = []
        for _ in range(10):
            start = time.perf_counter()
            spikeforge.simulate(made, 180, spikes=False)
            times.append((time.perf_counter() - start) / 180 * 1e6)
        return min(times)

    assert microseconds(LIF) < 0.1 * microseconds(restless(LIF))
