"""Simulation of networks with delays: compared with a dense loop in float64, continued, recorded, and errors."""

import copy
import math
import os
import pickle
import signal
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from loops import output_of, refused, with_threads

import spikeforge
from rank_networks import LIF, TWO_INPUTS
from ranks import limited_memory, on_ranks
from spikeforge import _recording, rules
from test_draws import philox, poisson

PAIR = spikeforge.plasticity.pair_stdp()


def network(device="cpu", drive=True, seed=3, dtype=torch.float64):
    """Returns a network of two kinds of neuron, one with two inputs, with a weight and a delay per connection."""
    made = spikeforge.Network(seed=seed, dtype=dtype, device=device)
    a = made.populate("a", 60, LIF, states={"v": torch.linspace(0, 0.9, 60)}, leak=0.9)
    b = made.populate("b", 25, LIF, leak=torch.linspace(0.8, 0.95, 25))
    c = made.populate("c", 15, TWO_INPUTS)
    weights, delays = rules.normal(0.12, 0.03), rules.uniform(1, 9)
    for source in (a, b, c):
        for target in (a, b, c):
            made.project(source, target, rules.fixed_total(4 * len(target)), weight=weights, delay=delays)
    made.project(a, c, rules.fixed_in_degree(3), weight=0.1, delay=4, into="b")
    made.inject(a, 0.07)
    made.inject(c, torch.linspace(0.1, 0.3, 15), into="a")
    if drive:
        made.drive(a, 0.3, weight=0.2)
        made.drive(b, torch.linspace(0.5, 2, 25), weight=0.2)
        made.drive(c, 0.5, weight=0.4, into="a")
    return made, (a, b, c)


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("delay", [1, 20])
def test_sums_of_whole_weights_are_exact(device, weight_dtype, delay):
    generator = torch.Generator().manual_seed(4)
    counts = torch.randint(-2000, 2001, (3000, 8), generator=generator)
    made = spikeforge.Network(device=device, weight_dtype=weight_dtype)
    sources = made.populate("sources", 3000, "neuron source(x;) { return x }")
    targets = made.populate("targets", 8, "neuron silent(x; received) { return where(x > 1e9, 1, 0); received' = x }")
    made.project(sources, targets, rules.matrix(counts), delay=delay)
    fires = torch.rand(30, 3000, generator=generator) < 0.3
    recording = spikeforge.simulate(made, 30 + delay, inputs={sources: torch.nn.functional.pad(fires.float(), (0, 0, 0, delay))},
                                    states=[(targets, "received", range(8))])
    expected = fires.double() @ counts.double()
    assert torch.equal(recording.states[0][delay:].double().cpu(), expected)


def pairs(matrix):
    return list(zip(torch.repeat_interleave(torch.arange(matrix.rows), matrix.indptr.diff()).tolist(), matrix.indices.tolist()))


def listed(recording):
    return sorted(zip(recording.steps.tolist(), recording.neurons.tolist()))


def dense_loop(made, steps):
    """Simulates the network without drive, with a dense matrix for each delay. Returns spikes, and v of all neurons."""
    m = made.build()
    row = torch.repeat_interleave(torch.arange(m.rows), m.indptr.diff())
    matrices = torch.zeros(10, m.rows, m.cols, dtype=torch.float64)
    matrices.index_put_((m.delays.long(), row, m.indices.long()), m.weights, accumulate=True)
    v = torch.cat([torch.linspace(0, 0.9, 60), torch.zeros(40)]).double()
    leak = torch.cat([torch.tensor([0.9] * 60, dtype=torch.float64), torch.linspace(0.8, 0.95, 25).double(), torch.tensor([0.8] * 15, dtype=torch.float64)])
    wait = torch.zeros(100)
    past, fired, voltages = [], [], []
    for _ in range(steps):
        arriving = sum((past[-d] @ matrices[d] for d in range(1, min(10, len(past) + 1))), torch.zeros(200).double())
        x = arriving[:100].clone()
        x[:60] += 0.07
        x[85:] += torch.linspace(0.1, 0.3, 15).double() - arriving[185:]
        h = leak * v + x
        s = ((h >= 1) & (wait <= 0)).double()
        v = torch.where(wait > 0, v, torch.where(s > 0, 0.0, h))
        wait = torch.where(s > 0, 3.0, (wait - 1).clamp(min=0))
        wait[85:] = 0  # these neurons have no refractory period
        past.append(s)
        fired.append(s)
        voltages.append(v)
    return torch.stack(fired), torch.stack(voltages)


def test_a_parameter_may_have_the_name_of_an_argument():
    made = spikeforge.Network()
    text = "neuron n(x; v; self, name, size) { h = self * v + x + name; s = spike(h - size, none); return s; v' = select(s, 0, h) }"
    made.populate("a", 3, text, self=0.5, name=0.1, size=2.0)
    with pytest.raises(TypeError, match="Network: states of b must be a dict of names and numbers, but are 0.5; a parameter cannot be called states here"):
        made.populate("b", 3, text.replace("self", "states"), states=0.5, name=0.1, size=2.0)


def test_a_network_is_its_dense_loop():
    made, (a, b, c) = network(drive=False)
    recording = spikeforge.simulate(made, 150, states=[(a, "v", range(60)), (c, "v", [0, 14])])
    fired, voltages = dense_loop(made, 150)
    assert fired.sum(0).gt(0).sum() > 50 and fired[:, 60:85].sum() > 20 and fired[:, 85:].sum() > 20
    assert listed(recording) == [tuple(pair) for pair in fired.nonzero().tolist()]
    torch.testing.assert_close(recording.states[0], voltages[:, :60], rtol=0, atol=1e-12)
    torch.testing.assert_close(recording.states[1], voltages[:, [85, 99]], rtol=0, atol=1e-12)
    for _ in range(_recording.SCANS_BEFORE_SORTING):  # the last scans use a sorted recording
        for p in (a, b, c):
            own = fired[:, p.neurons].nonzero()
            assert all(map(torch.equal, recording.of(p), own.unbind(1)))


def test_populations_without_neurons_are_distinguished():
    made = spikeforge.Network()
    parts = [made.populate(name, size, LIF, leak=0.9) for name, size in (("none", 0), ("none", 0), ("two", 2), ("empty", 0), ("one", 1))]
    for number, p in zip((0, 0, 2, 3, 4), parts):
        assert made._number(copy.deepcopy(p)) == number
        made.inject(p, 0.3 * len(p))
        made.project(p, parts[2], rules.all_to_all(), weight=0.5, delay=1)
    other = spikeforge.Network().populate("none", 0, LIF.replace("lif", "other"), leak=0.9)
    refused(ValueError, "none is not a population of this network", lambda: made.inject(other, 1.0))
    assert len(made.build().indices) == 6 and sorted(set(spikeforge.simulate(made, 20).neurons.tolist())) == [0, 1, 2]


def assert_goes_on_where_it_was_saved(make):
    """Runs of 37 and 53 steps equal a run of 90, also if another network continues from the saved state."""
    whole, made = listed(spikeforge.simulate(make()[0], 90)), make()[0]
    first = listed(spikeforge.simulate(made, 37))
    saved = made.state_dict()
    rest = listed(spikeforge.simulate(made, 53))
    resumed, _ = make()
    resumed.load_state_dict(saved)
    assert listed(spikeforge.simulate(resumed, 53)) == rest and first + rest == whole
    return whole


def test_a_network_continues_from_its_saved_state():
    whole = assert_goes_on_where_it_was_saved(network)
    assert len(whole) > 200 and listed(spikeforge.simulate(network(seed=4)[0], 90)) != whole


def test_a_state_of_another_network_or_of_a_step_that_cannot_be_is_refused():
    made, (a, _, _) = network()
    saved = made.state_dict()
    other = spikeforge.Network(seed=3)
    other.populate("a", 3, LIF, leak=0.5)
    fewer, (p, _, _) = network()
    fewer.project(p, p, rules.one_to_one())
    for another, words in ((network(seed=4)[0], "its seed is 3, but this one's is 4"),
                           (other, "its populations are 3, but this one's are 1"),
                           (fewer, "its projections are 10, but this one's are 11")):
        with pytest.raises(ValueError, match="Network: this is the state of another network: " + words):
            another.load_state_dict(saved)
    spikeforge.simulate(made, 10)
    before = made.state_dict()["tensors"]
    for state, words in (({}, "has no 'tensors'"), ({"tensors": saved["tensors"]}, "has no 'network'"),
                         ({**saved, "tensors": saved["tensors"][:-1]}, r"state must have 6 tensors, those of this network, but has 5"),
                         ({**saved, "tensors": [saved["tensors"][0].float(), *saved["tensors"][1:]]}, r"state\[0\] must be a dense Double \[10, 200\], but is Float \[10, 200\] on cpu"),
                         ({**saved, "tensors": None}, "a list of tensors and a dict, but this one has None"),
                         ({**saved, "tensors": [*saved["tensors"][:-1], 1.0]}, "a list of tensors and a dict"),
                         ({**saved, "tensors": [*saved["tensors"][:-1], saved["tensors"][-1].to("meta")]}, r"state\[5\] must be a dense Double \[15\], but is Double \[15\] on meta"),
                         ({**saved, "tensors": [*saved["tensors"][:-1], saved["tensors"][-1].to_sparse()]}, r"state\[5\] must be a dense Double \[15\], but is Sparse Double \[15\]")):
        refused(ValueError, words, lambda: made.load_state_dict(state))
        assert all(map(torch.equal, made.state_dict()["tensors"], before))
    for step in (-5, 2**62, 2**63 - 3):
        saved["tensors"][1].fill_(step)
        with pytest.raises(ValueError, match=rf"a state's step must be from 0 to 2\^62, but is {step}"):
            made.load_state_dict(saved)
    assert len(spikeforge.simulate(made, 20).steps) > 0


def test_a_recording_that_does_not_fit_is_refused_before_the_first_step(device):
    made, (a, _, _) = network(device)
    spikeforge.simulate(made, 10)
    refused(RuntimeError, "memory", lambda: spikeforge.simulate(made, 10**12, states=[(a, "v", range(60))]))
    assert spikeforge.simulate(made, 80).span == range(10, 90)


def test_states_are_recorded_into_tensors_that_fit_alone(device):
    operators, neurons = torch.ops.spikeforge_simulation, [0, 59, 30]
    made, (a, _, _) = network(device)
    simulate = lambda into: operators.simulate(made._held, 40, False, [0], ["v"], [torch.tensor(neurons)], [], [], [], [], into)
    empty = lambda *sizes, **options: torch.empty(*sizes, **{"dtype": made.dtype, "device": device, **options})
    for into, words in (([], "into must have a tensor for each of 1 recorded states, but has 0"),
                        ([empty(40, 3), empty(40, 3)], "for each of 1 recorded states, but has 2"),
                        ([empty(1)], r"into\[0\] must be a contiguous Double \[40, 3\] on .*, but is Double \[1\] on"),
                        ([empty(3, 40).t()], r"but is Double \[40, 3\] on .*, not contiguous"),
                        ([empty(40, 3).to_sparse()], "but is Sparse Double"),
                        ([empty(40, 3, dtype=torch.float32)], "but is Float"),
                        ([empty(40, 3, device="meta")], "on meta")):
        refused(ValueError, "simulate: .*" + words, lambda: simulate(into))
    simulate(into := [empty(40, 3)])
    other, (p, _, _) = network(device)
    torch.testing.assert_close(into[0], spikeforge.simulate(other, 40, states=[(p, "v", neurons)]).states[0])


def runs_out_of_memory(rank):
    """Records the spikes of neurons that fire in all steps except the first."""
    made = spikeforge.Network(seed=1)
    p = made.populate("p", 60000, "neuron n(x; v) { s = spike(v - 1, none); return s; v' = v + x }")
    made.inject(p, 1)
    made.project(p, p, rules.one_to_one(), delay=7)
    spikeforge.simulate(made, 10, spikes=False)
    with limited_memory(64 << 20), pytest.raises(MemoryError) as failed:
        spikeforge.simulate(made, 5000)
    state = made.state_dict()["tensors"]
    return {"words": str(failed.value), "step": state[1].item(), "v": state[3][0].item(), "next": [t[0].item() for t in spikeforge.simulate(made, 1, states=[(p, "v", [0])]).states]}


def test_a_network_whose_spikes_do_not_fit_has_the_state_of_its_last_step():
    (found,) = on_ranks(1, runs_out_of_memory)
    step = found["step"]
    assert step > 15
    assert f"and the recording is lost; the network's state is that after step {step}. Spikes take 16 bytes each: simulate fewer steps in a call" in found["words"]
    v = [0]  # before each step; a spike arrives 7 steps later
    for k in range(step + 1):
        v.append(v[k] + 1 + (1 if k >= 7 and v[k - 7] >= 1 else 0))
    assert found["v"] == v[step] and found["next"] == [v[step + 1]]


def large_network():
    """Returns a network of enough neurons for two threads, which share the first steps without measurement."""
    made = spikeforge.Network(seed=3)
    many = made.populate("many", 2500, LIF, states={"v": torch.linspace(0, 1.2, 2500)}, leak=0.9)
    few = made.populate("few", 700, TWO_INPUTS)
    for target, into in ((many, "x"), (few, "a"), (few, "b")):
        made.project(many, target, rules.fixed_in_degree(20), weight=rules.normal(0.1, 0.05), delay=rules.uniform(1, 3), into=into)
    made.drive(many, 0.5, weight=0.2)
    return made


def test_any_number_of_threads_and_of_steps_a_call_gives_the_same_spikes():
    def run(*steps):
        made = large_network()
        return [spikeforge.simulate(made, n) for n in steps]

    ((whole,),) = with_threads((1,), lambda: run(1100))
    (pieces,) = with_threads((2,), lambda: run(1, 0, 2, 1057, 40))
    assert (whole.steps < 4).sum() > 100 and (whole.neurons >= 2500).any()
    assert torch.equal(torch.cat([p.steps for p in pieces]), whole.steps)
    assert torch.equal(torch.cat([p.neurons for p in pieces]), whole.neurons)


def test_a_network_shares_no_memory_with_its_arguments_and_results():
    whole = listed(spikeforge.simulate(network()[0], 60))
    made = spikeforge.Network(seed=3, dtype=torch.float64)
    v, rate, current = torch.zeros(40).double(), torch.ones(40).double(), torch.full((40,), 0.1).double()
    sources, weights, delays = torch.arange(40), torch.full((40,), 0.5).double(), torch.full((40,), 2)
    p = made.populate("p", 40, LIF, states={"v": v}, leak=0.9)
    made.project(p, p, rules.arrays(sources, sources), weight=weights, delay=delays)
    made.drive(p, rate, weight=0.1)
    made.inject(p, current)
    for t in (v, rate, current, weights):
        t.fill_(math.nan)
    sources.fill_(10**8)
    delays.fill_(-1)
    recording = spikeforge.simulate(made, 60, states=[(p, "v", range(40))])
    assert recording.states[0].isfinite().all() and len(recording.steps) > 40

    made, _ = network()
    m = made.build()
    m.indices.fill_(10**8)
    m.indptr.fill_(-1)
    m.delays.resize_(1).fill_(255)
    assert listed(spikeforge.simulate(made, 60)) == whole


def test_weights_of_a_built_network_may_be_written_but_not_resized():
    made, _ = network(drive=False)
    weights = made.build().weights
    weights.mul_(0.8)
    fired, _ = dense_loop(made, 100)
    assert listed(spikeforge.simulate(made, 100)) == [tuple(pair) for pair in fired.nonzero().tolist()]
    weights.resize_(10**6)
    refused(ValueError, "the weights of a built network may be written, but not resized", lambda: spikeforge.simulate(made, 1))


def test_a_second_thread_is_refused():
    made, _ = network()
    failures = []

    def use(call):
        try:
            call()
        except RuntimeError as error:
            failures.append(str(error))

    def in_thread(call):
        thread = threading.Thread(target=use, args=(call,))
        thread.start()
        return thread

    with made._alone():  # like another thread between two pieces of a simulation
        in_thread(lambda: spikeforge.simulate(made, 1)).join()
    assert len(failures) == 1 and "Network: another thread is using this network" in failures.pop()
    operators = torch.ops.spikeforge_simulation
    stepping = in_thread(lambda: [operators.simulate(made._held, 5000, False, [], [], [], [], [], [], []) for _ in range(1000) if not failures])
    while stepping.is_alive() and not failures:
        use(lambda: operators.state(made._held))
    stepping.join()
    assert all("Network: another thread is using this network" in failure for failure in failures) and failures
    spikeforge.simulate(made, 1)


def test_a_simulation_is_interrupted_between_pieces():
    made = spikeforge.Network()
    made.populate("p", 3, LIF, leak=0.5)
    # A process started in the background of a shell ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
            spikeforge.simulate(made, 10**7, spikes=False)
    finally:
        signal.signal(signal.SIGINT, before)
    done = made.state_dict()["tensors"][1].item()
    assert 0 < done < 10**7
    assert len(spikeforge.simulate(made, 1000).steps) == 0


def test_a_network_of_inference_mode_is_stepped_outside_of_it_too():
    whole = spikeforge.simulate(network()[0], 60)
    with torch.inference_mode():
        made, _ = network()
        first = spikeforge.simulate(made, 20)
        saved = made.state_dict()
    rest = spikeforge.simulate(made, 40)
    assert listed(first) + listed(rest) == listed(whole)
    made.load_state_dict(saved)
    assert listed(spikeforge.simulate(made, 40)) == listed(rest)


def test_populations_are_keys_and_found_when_copied():
    made, (a, _, c) = network()
    assert {a: 1, c: 2}[a] == 1 and repr(a) == "Population('a', neurons 0:60)"
    made.inject(copy.deepcopy(a), 0.1)
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        refused(TypeError, "Network: a network can be neither copied nor pickled", lambda: call(made))


def test_drive_is_poisson():
    """Tests a common rate, a rate per neuron, and a large rate, which use different algorithms."""
    each = torch.cat([torch.full((750,), 0.4), torch.full((750,), 2.9)])
    made = spikeforge.Network(seed=2)
    text = "neuron still(x; v) { n = v + x; return 0 * n; v' = n }"
    populations = [made.populate(name, 1500, text) for name in ("one", "each", "large")]
    for population, rate in zip(populations, (1.3, each, 40.0)):
        made.drive(population, rate, weight=2.0)
    states = spikeforge.simulate(made, 50, states=[(p, "v", range(1500)) for p in populations]).states
    one, other, large = (torch.diff(v, dim=0, prepend=torch.zeros(1, 1500)).double() / 2 for v in states)
    for part, rate in ((one, 1.3), (other[:, :750], 0.4), (other[:, 750:], 2.9), (large, 40.0)):
        n = part.numel()
        assert torch.equal(part, part.round()) and part.min() >= 0
        assert abs(part.mean() - rate) < 5 * (rate / n) ** 0.5
        assert abs(part.var() - rate) < 5 * rate * ((2 + 1 / rate) / n) ** 0.5
        assert abs((part == round(rate)).double().mean() - math.exp(round(rate) * math.log(rate) - rate - math.lgamma(round(rate) + 1))) < 5 * (0.25 / n) ** 0.5
    assert abs(torch.corrcoef(one[:, :40].T).fill_diagonal_(0)).max() < 5 / 50**0.5


def key_of(seed, layer):
    """Returns the key of a network's drives in this layer. Drives in one layer do not overlap."""
    low, high, *_ = philox([layer, 2, 0, 0x6E657477], seed)
    return int(low) | int(high) << 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_drive_equals_the_draws_of_poisson(dtype):
    """Draws depend on column, step and the layer's key: common rates, rates per neuron, and overlapping drives."""
    made = spikeforge.Network(seed=19, dtype=dtype)
    text = "neuron still(x; v) { n = v + x; return 0 * n; v' = n }"
    sizes, rates = (300, 133, 40, 35), (0.125, 2.25, torch.arange(40) / 8, 12.0)
    populations = [made.populate(name, size, text) for name, size in zip("abcd", sizes)]
    for population, rate in zip(populations, rates):
        made.drive(population, rate)
    made.drive(populations[1], 0.5, weight=100)
    spikeforge.simulate(made, 3)
    v = torch.cat(spikeforge.simulate(made, 40, states=[(p, "v", range(len(p))) for p in populations]).states, 1)

    def counts(rates, layer):
        """Returns counts [40, 508] from step 3 on."""
        numbers = torch.zeros(40, 508).double()
        for rate in rates.unique()[rates.unique() > 0].tolist():
            of_rate = poisson(0, rate, 40, 508, key_of(19, layer), 3, False)
            numbers = torch.where(rates == rate, of_rate, numbers)
        return numbers

    lower = torch.cat([torch.as_tensor(rate).expand(size) for rate, size in zip(rates, sizes)]).double()
    upper = torch.zeros(508).double()
    upper[300:433] = 0.5
    expected = counts(lower, 0) + 100 * counts(upper, 1)
    assert torch.equal((v[1:] - v[:-1]).double(), expected[1:]) and expected[:, 300:433].max() > 200


def test_a_gpu_gives_the_spikes_of_the_cpu(cuda):
    """Tests with and without drive, for more steps than a graph has, and a remainder."""
    for drive in (False, True):
        here, there = (spikeforge.simulate(network(device, drive=drive)[0], 90) for device in ("cpu", cuda))
        assert listed(here) == listed(there)


DELAYS = {
    "own, resident": rules.uniform(1, 5),
    "own, in turns": rules.uniform(1, 5),
    "own_and_later": rules.uniform(1, 9),
    "later": rules.uniform(2, 300),
    "together": 1,
    "in_rounds": rules.uniform(5, 40),
    "in_rounds, one delay": 18,
    "in_rounds, resident": rules.uniform(13, 40),
    "in_rounds, in turns": rules.uniform(6, 20),
}


def many(device, sending, dtype=torch.float64, **options):
    """Returns a network whose number of connections, and whose delays, make a GPU choose `sending`."""
    made = spikeforge.Network(seed=11, dtype=dtype, device=device, **options)
    size = {"own, resident": 150_000, "in_rounds, resident": 120_000}.get(sending, 450_000 if sending.endswith("in turns") else 700)
    a = made.populate("a", size, LIF, states={"v": torch.linspace(0, 1.1, size)}, leak=0.9)
    b = made.populate("b", 1000, TWO_INPUTS)
    delay = DELAYS[sending]
    degree = 5 if size > 1000 else 600
    for source, target, mean, deviation in ((a, a, 0.02, 0.03), (a, b, 0.03, 0.02), (b, a, -0.01, 0.02)):
        weight = 0.1 if sending == "together" else rules.normal(mean, deviation)
        made.project(source, target, rules.fixed_out_degree(degree), weight=weight, delay=delay)
    made.drive(a, 0.9, weight=0.09)
    made.drive(b, torch.linspace(1, 30, 1000), weight=0.01, into="a")
    made.drive(b, 0.2, weight=0.3, into="b")
    made.drive(b, 0.2, weight=0.1, into="b")
    made.inject(b, 0.02)
    return made, (a, b)


@pytest.mark.parametrize("sending", DELAYS)
def test_a_gpu_gives_the_spikes_of_the_cpu_for_every_sending_rank(cuda, sending):
    """Runs one call and calls of odd lengths, recording states of arbitrary neurons, some of them twice."""
    chosen = [0, 31, 32, 699, 5, 5]
    recorded = []
    for device, pieces in (("cpu", (127,)), (cuda, (127,)), (cuda, (1, 7, 19, 100))):
        made, (a, b) = many(device, sending)
        states = [(a, "v", chosen), (b, "v", [999, 0]), (a, "wait", [3])]
        calls = [spikeforge.simulate(made, n, states=states) for n in pieces]
        spikes = torch.cat([c.steps << 20 | c.neurons for c in calls]).cpu().sort().values
        recorded.append((spikes, [*map(torch.cat, zip(*(c.states for c in calls))), *made.state_dict()["tensors"]]))
    (spikes, state), *of_gpu = recorded
    assert (spikes >> 20 > 100).sum() > 500 and (spikes >> 20 == 0).any()
    for spikes_of_gpu, state_of_gpu in of_gpu:
        assert torch.equal(spikes_of_gpu, spikes)
        for here, there in zip(state, state_of_gpu):
            torch.testing.assert_close(there.cpu(), here, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sending", ["own_and_later", "together", "in_rounds, one delay"])
def test_a_gpu_continues_from_a_saved_state(cuda, sending):
    assert len(assert_goes_on_where_it_was_saved(lambda: many(cuda, sending))) > 1500


def test_arrays_connect_a_network_of_a_gpu_without_a_number(cuda):
    made = spikeforge.Network(device=cuda)
    a = made.populate("a", 3, LIF, leak=0.9)
    made.project(a, a, rules.arrays([0, 1], [1, 2]), weight=torch.tensor([2.0, 2.0]))
    made.inject(a, torch.tensor([1.0, 0, 0]))
    assert listed(spikeforge.simulate(made, 3)) == [(0, 0), (1, 1), (2, 2)]


def test_float16_weights_and_float32_states_keep_the_rates_on_a_gpu(cuda):
    counts = [len(spikeforge.simulate(many(device, "own_and_later", torch.float32, weight_dtype=torch.float16)[0], 200).steps) for device in ("cpu", cuda)]
    assert counts[0] > 5000 and abs(counts[1] - counts[0]) < 0.05 * counts[0]


def test_a_deterministic_network_is_replays_of_a_graph_that_is_kept(cuda):
    """The graph is kept until other states are recorded; it is not used for the remaining steps."""
    made, (a, _) = many(cuda, "later", deterministic=True)
    pieces = [spikeforge.simulate(made, 40)]
    pieces.append(spikeforge.simulate(made, 25))
    saved = made.state_dict()
    pieces.append(spikeforge.simulate(made, 25, states=[(a, "v", [3])]))
    assert pieces[-1].states[0].shape == (25, 1)
    whole, *others = (listed(spikeforge.simulate(many(device, "later", deterministic=True)[0], 90)) for device in (cuda, cuda, "cpu"))
    assert sum(map(listed, pieces), []) == whole and others == [whole, whole]
    resumed, _ = many(cuda, "later", deterministic=True)
    resumed.load_state_dict(saved)
    assert listed(spikeforge.simulate(resumed, 25)) == listed(pieces[-1])


def test_more_drives_than_the_kernel_takes_are_stepped_by_operators(cuda):
    recorded = []
    for device in ("cpu", cuda):
        made, (a, _, _) = network(device)
        for _ in range(4):
            made.drive(a, 0.1, weight=0.1)
        recorded.append(listed(spikeforge.simulate(made, 50)))
    assert recorded[0] == recorded[1] and len(recorded[0]) > 100


def test_illegal_networks_are_refused():
    made, (a, _, c) = network()
    for error, words, call in [
        (ValueError, "the parameter leak of d is not given", lambda: made.populate("d", 5, LIF)),
        (ValueError, "the neuron of d has no state u; it has v, wait", lambda: made.populate("d", 5, LIF, leak=1, states={"u": 0})),
        (ValueError, r"v of d must be a number or have shape \[5\], but has \[4\]", lambda: made.populate("d", 5, LIF, leak=1, states={"v": torch.rand(4)})),
        (ValueError, "the rate that drives a must be finite and not negative, but is -1", lambda: made.drive(a, -1.0)),
        (ValueError, "the rate that drives a must be finite and not negative, but is nan", lambda: made.drive(a, float("nan"))),
        (ValueError, "the neuron of c has no input z; its inputs: a, b", lambda: made.inject(c, 1.0, into="z")),
        (ValueError, "the weight of what drives a must be finite in Double, but one is inf", lambda: made.drive(a, 1.0, weight=math.inf)),
        (ValueError, "the current of a must be finite in Double, but one is nan", lambda: made.inject(a, math.nan)),
        (ValueError, "weights of a to a must be finite in Double, but one is -inf",
         lambda: made.project(a, a, rules.arrays([0], [1]), weight=torch.tensor([-math.inf]))),
        (ValueError, r"d has 4611686018427387904 neurons, but a network whose neurons have 2 inputs has at most 1073741823, and this one has 100",
         lambda: made.populate("d", 2**62, LIF, leak=1.0)),
        (TypeError, "Network: a to a: rule must be one of spikeforge.rules, such as rules.all_to_all.., but is 'all_to_all'",
         lambda: made.project(a, a, "all_to_all")),
        (TypeError, "rule must be one of spikeforge.rules, .*but is <function all_to_all", lambda: made.project(a, a, rules.all_to_all)),
        (TypeError, "a population must be a result of populate.., but is 'a'", lambda: made.drive("a", 1.0)),
        (ValueError, "simulate: steps must not be negative, but is -1", lambda: spikeforge.simulate(made, -1)),
        (TypeError, "simulate: steps must be a whole number, but is 1000.0", lambda: spikeforge.simulate(made, 100 / 0.1)),
        (TypeError, r"simulate: states must be a list of \(population, name of a state, neurons\), but one is", lambda: spikeforge.simulate(made, 1, states=(a, "v", [0]))),
        (TypeError, "simulate: the state of a to record must be a str, but is 0", lambda: spikeforge.simulate(made, 1, states=[(a, 0, [0])])),
        (TypeError, "simulate: neurons of a must be a number, or numbers in .*, but is slice", lambda: spikeforge.simulate(made, 1, states=[(a, "v", slice(None))])),
        (TypeError, "Network: seed must be a whole number, but is None", lambda: spikeforge.Network(seed=None)),
        (ValueError, "Network: seed must be a number of 64 bits, but is 18446744073709551616", lambda: spikeforge.Network(seed=2**64)),
        (TypeError, "connect: seed must be a whole number, but is 0.5", lambda: spikeforge.connect(2, 2, [], seed=0.5)),
        (TypeError, "connect: dtype must be a torch.dtype", lambda: spikeforge.connect(2, 2, [], dtype="float32")),
        (TypeError, "connect: rows must be a whole number, but is 2.0", lambda: spikeforge.connect(2.0, 2, [])),
        (TypeError, "connect: projection 0 must be a spikeforge.Projection, but is None", lambda: spikeforge.connect(2, 2, [None])),
        (TypeError, "connect: projection 0: the ends of sources must be a whole number, but is 0.0",
         lambda: spikeforge.connect(2, 2, [spikeforge.Projection(slice(0.0, 1.0), slice(0, 1), rules.all_to_all())])),
        (TypeError, "Network: gather takes a Recording of simulate.., but this is None", lambda: made.gather(None)),
        (TypeError, "Network: dtype must be a torch.dtype such as torch.float32, but is 'float32'", lambda: spikeforge.Network(dtype="float32")),
        (ValueError, "simulate: the neuron of a has no state u; it has v, wait", lambda: spikeforge.simulate(made, 1, states=[(a, "u", [0])])),
        (ValueError, "simulate: neurons of c must be numbers from 0 to 14", lambda: spikeforge.simulate(made, 1, states=[(c, "v", [15])])),
        (TypeError, "neurons of a must be whole numbers, .*but are Bool; of a mask pass", lambda: spikeforge.simulate(made, 1, states=[(a, "v", torch.ones(60) > 0)])),
        (TypeError, "neurons of a must be whole numbers, .*but are Float", lambda: spikeforge.simulate(made, 1, states=[(a, "v", [0.5])])),
        (RuntimeError, "populate must come before the network is built", lambda: made.populate("d", 5, LIF, leak=1.0)),
        (TypeError, "dtype and weight_dtype must both be float64, or dtype float32", lambda: spikeforge.Network(dtype=torch.float16)),
        (TypeError, "but are Float and Int", lambda: spikeforge.Network(dtype=torch.float32, weight_dtype=torch.int32)),
        (ValueError, "device must be a CPU or a GPU, but is meta", lambda: spikeforge.Network(device="meta")),
        (ValueError, r"connect: rows must be from 0 to 2\^31 - 1, but is 2147483648", lambda: spikeforge.connect(2**31, 2**31, [])),
    ]:
        refused(error, words, call)
    if not torch.cuda.is_available():
        refused(ValueError, "device is cuda, but there is no GPU that torch can use", lambda: spikeforge.Network(device="cuda"))
    for seed in (2**63 + 5, -(2**63) + 5, np.uint64(2**63 + 5)):
        spikeforge.Network(seed=seed)


# Illegal calls for a network of five neurons a and four b, and their error messages.
REFUSED = [
    (ValueError, r"Network: a to b: a degree must be a whole number from 0 to 2\^31, but is -1", lambda net, a, b: net.project(a, b, rules.fixed_in_degree(-1))),
    (ValueError, "Network: a to b: a probability must be from 0 to 1, but is 2", lambda net, a, b: net.project(a, b, rules.fixed_probability(2.0))),
    (ValueError, "Network: a to b: one_to_one needs as many targets as sources, 5, but has 4", lambda net, a, b: net.project(a, b, rules.one_to_one())),
    (ValueError, "Network: a to b: sources must be from 0 to 4, .* but are from 5 to 5", lambda net, a, b: net.project(a, b, rules.arrays([5], [0]))),
    (ValueError, r"Network: a to b: sources must have shape \[connections\], but has \[1, 1\]", lambda net, a, b: net.project(a, b, rules.arrays([[4]], [0]))),
    (ValueError, r"Network: a to b: weights must have shape \[1\], one a connection", lambda net, a, b: net.project(a, b, rules.arrays([4], [0]), weight=[1, 2])),
    (TypeError, "Network: a to b: sources must be int32 or int64, but is Double", lambda net, a, b: net.project(a, b, rules.arrays(np.array([0.5]), [0]))),
    (TypeError, "Network: a to b: weights must be floating-point or whole numbers, .*but is ComplexFloat", lambda net, a, b: net.project(a, b, rules.arrays([0], [0]), weight=torch.ones(1) + 0j)),
    (TypeError, "Network: a to b: delays must be floating-point or whole numbers, .*but is Bool", lambda net, a, b: net.project(a, b, rules.arrays([0], [0]), delay=torch.ones(1) > 0)),
    (TypeError, "Network: a to b: weights must be dense, but is Sparse", lambda net, a, b: net.project(a, b, rules.arrays([0], [0]), weight=torch.ones(1).to_sparse())),
    (TypeError, "Network: a to b: weight must be a number, or numbers .*, but is None", lambda net, a, b: net.project(a, b, rules.all_to_all(), weight=None)),
    (TypeError, "Network: a to b: the number of fixed_in_degree must be a number, but is None", lambda net, a, b: net.project(a, b, rules.fixed_in_degree(None))),
    (TypeError, "Network: a to b: the numbers of delay's law must be a number, but is 'a'", lambda net, a, b: net.project(a, b, rules.all_to_all(), delay=rules.uniform(1, "a"))),
    (ValueError, "Network: a to b: a weight for each connection needs the rule arrays, but the rule is all_to_all", lambda net, a, b: net.project(a, b, rules.all_to_all(), weight=torch.ones(5, 4))),
    (ValueError, r"Network: a to b: a delay must be from 1 to 2\^31 steps, but is 0$", lambda net, a, b: net.project(a, b, rules.all_to_all(), delay=0)),
    (ValueError, r"Network: a to b: delays must be from 1 to 2\^31 steps, but are from 0.25 to 2", lambda net, a, b: net.project(a, b, rules.arrays([0, 1], [0, 1]), delay=[2, 0.25])),
    (ValueError, "Network: a to b: a delay must be from 1 .*, but this law gives ones from 0 to 3: bound it by low and high", lambda net, a, b: net.project(a, b, rules.all_to_all(), delay=rules.uniform(0, 3))),
    (ValueError, "Network: the neuron of b has no input z; its inputs: a, b", lambda net, a, b: net.project(a, b, rules.all_to_all(), into="z")),
    (TypeError, "Network: into must be a str, but is 1", lambda net, a, b: net.project(a, b, rules.all_to_all(), into=1)),
    (ValueError, "Network: a to b: weights are -0.5, but the rule pair_stdp keeps them from 0 to 1", lambda net, a, b: net.project(a, b, rules.all_to_all(), weight=-0.5, plasticity=PAIR)),
    (ValueError, "a to b: weights are from -0.1 to 0.1, but the rule reward_stdp keeps", lambda net, a, b: net.project(a, b, rules.all_to_all(), weight=rules.uniform(-0.1, 0.1), plasticity=spikeforge.plasticity.reward_stdp())),
    (ValueError, "a to b: weights are from 0.5 to 2, but the rule synaptic_scaling keeps them from 0 to 1.5", lambda net, a, b: net.project(a, b, rules.arrays([0, 1], [0, 1]), weight=[0.5, 2], plasticity=spikeforge.plasticity.synaptic_scaling(w_max=1.5))),
    (ValueError, "Network: the neuron of c has no parameter beta; it has leak", lambda net, a, b: net.populate("c", 5, LIF, leak=1.0, beta=2)),
    (ValueError, "Neuron: a state of lif must start at a number", lambda net, a, b: net.populate("c", 5, LIF.replace("v,", "v = one,"), leak=1.0)),
    (TypeError, "Network: the name of a population must be a str, but is 3", lambda net, a, b: net.populate(3, 5, LIF, leak=1.0)),
    (TypeError, "Network: the size of c must be a whole number, but is 1000.0", lambda net, a, b: net.populate("c", 1e3, LIF, leak=1.0)),
    (ValueError, "Network: the size of c must be a number of 64 bits, but is", lambda net, a, b: net.populate("c", 2**70, LIF, leak=1.0)),
    (ValueError, "Network: the size of c must not be negative, but is -1", lambda net, a, b: net.populate("c", -1, LIF, leak=1.0)),
    (TypeError, "Network: a state of c must be a str, but is 1", lambda net, a, b: net.populate("c", 5, LIF, states={1: 0.5}, leak=1.0)),
    (TypeError, "Network: v of c must be dense, but is Sparse", lambda net, a, b: net.populate("c", 5, LIF, states={"v": torch.ones(5).to_sparse()}, leak=1.0)),
    (TypeError, "Network: rate of a must be dense, but is Sparse", lambda net, a, b: net.drive(a, torch.ones(5).to_sparse())),
    (TypeError, "Network: the neuron of c must be neuron text .* or a traced function, but is a LIF", lambda net, a, b: net.populate("c", 5, spikeforge.nn.LIF())),
    (TypeError, "Network: leak of c must be a number, or numbers .*, but is None", lambda net, a, b: net.populate("c", 5, LIF, leak=None)),
    (TypeError, "Network: the weight of what drives a must be a number, or numbers .*, but is 'x'", lambda net, a, b: net.drive(a, 1.0, weight="x")),
    (ValueError, r"Network: weight of a must be a number or have shape \[5\]", lambda net, a, b: net.drive(a, 1.0, weight=torch.ones(4))),
    (ValueError, "Network: rate of a must be a number or have shape", lambda net, a, b: net.drive(a, [1.0, 2.0])),
    (TypeError, "Network: the current of a must be a number, or numbers .*, but is 'x'", lambda net, a, b: net.inject(a, "x")),
]


def neuron(output, more="", states="v", params=""):
    return f"neuron n(x, y; {states}; {params}) {{ h = 0.9 * v + x; s = spike(h - 1, none); o = {output}; return o; v' = select(s, 0, h) {more} }}"


GRADED = {  # a first output, other next states, states, and the words of the error
    "a potential": ("h", "", "v", "a graded function of the state v"),
    "a rate": ("sigmoid(h - 1)", "", "v", "a graded function of the state v"),
    "a graded spike": ("s * h", "", "v", "a graded function of the state v"),
    "a potential above a threshold": ("where(h > 1, h, 0)", "", "v", "a graded function of the state v"),
    "a filtered spike": ("t", "; t' = 0.9 * t + i; i' = 0.5 * i + y", "v, t, i", "a graded function of the state t"),
    "a state of a state": ("t", "; t' = maximum(v, 0)", "v, t", "a graded function of the state t"),
    "a scaled spike": ("0.25 * s", "", "v", "0 or 1, but may be 0.25: all spikes are equal; scale the weights instead"),
    "a sum of spikes": ("s + spike(y - 1, none)", "", "v", "may be 2"),
    "a chosen number": ("where(h > 1, 0.5, 0)", "", "v", "may be 0.5"),
    "a number": ("0.25", "", "v", "may be 0.25"),
}
NOT_GRADED = {  # parameters are those of the text
    "a spike": "s", "a condition": "where(h > 1, 1, 0)", "either": "maximum(s, spike(y - 1, none))", "both": "s * spike(y - 1, none)", "not": "1 - s", "none": "0 * h", "never": "0 * x",
    "an input": "x", "two inputs": "x - 2 * y", "a random number": "uniform() - 0.9", "a count": "poisson(0.2)", "a random spike": "bernoulli(sigmoid(h))", "a parameter": "p * s", "a sign": "sign(h - 1)",
    "a whole number": "floor(h)", "a held input": "t", "a gated input": "x * w", "the last spike": "u", "a wait": "w", "a strict spike": "spike_strict(h - 1, none)",
}  # fmt: skip


@pytest.mark.parametrize("output", GRADED)
def test_a_graded_output_is_refused(output):
    text, more, states, words = GRADED[output]
    net = spikeforge.Network()
    refused(ValueError, "Network: the first output of the neuron of a must be a spike.*" + words, lambda: net.populate("a", 3, neuron(text, more, states)))
    assert net.size == 0 and net.populate("a", 3, neuron("s")).start == 0


@pytest.mark.parametrize("output", NOT_GRADED)
def test_an_output_above_0_that_may_be_a_spike_is_one(output):
    text = neuron(NOT_GRADED[output], "; t' = select(s, x, t); w' = select(s, 3, maximum(w - 1, 0)); u' = s", "v, t, w, u", "p")
    net = spikeforge.Network(seed=1)
    p = net.populate("a", 50, text, states={"w": 1.0}, p=2.5)
    fired = spikeforge.simulate(net, 40, inputs={p: torch.randn(40, 50), (p, "y"): torch.randn(40, 50).abs()}).of(p)[0]
    assert (len(fired) == 0) == (output in ("none", "never"))


@pytest.mark.parametrize("error, words, call", REFUSED, ids=range(len(REFUSED)))
def test_a_call_that_is_refused_has_not_happened(error, words, call):
    def made():
        net = spikeforge.Network(seed=1)
        return net, net.populate("a", 5, LIF, leak=0.9), net.populate("b", 4, TWO_INPUTS)

    def described(net, a, b):
        net.project(a, b, rules.fixed_probability(0.5), delay=rules.uniform(1, 4))
        c = net.populate("c", 3, LIF, leak=0.5)
        net.project(b, c, rules.all_to_all(), weight=0.3)
        net.drive(a, 2.0)
        m = net.build()
        return net.state_dict()["network"], [m.indices, m.indptr, m.weights, m.delays], listed(spikeforge.simulate(net, 20))

    net, a, b = made()
    refused(error, words, lambda: call(net, a, b))
    (words, matrix, spikes), (other_words, other_matrix, other_spikes) = described(net, a, b), described(*made())
    assert words == other_words and all(map(torch.equal, matrix, other_matrix)) and spikes == other_spikes and spikes


def test_a_bound_beyond_the_weights_type_bounds_none():
    made = spikeforge.Network(dtype=torch.float32, weight_dtype=torch.float16)
    a = made.populate("a", 3, LIF, leak=0.9)
    number = made.project(a, a, rules.one_to_one(), weight=0.5, plasticity=spikeforge.plasticity.pair_stdp(w_max=1e5))
    assert made.weights(number).tolist() == [0.5] * 3


def test_signals_are_given_together_or_not_at_all():
    text = "synapse f(w; ; ; m, n) { on m { w' = w + m } on n { w' = w + n } }"
    net = spikeforge.Network()
    a = net.populate("a", 3, LIF, leak=0.9)
    number = net.project(a, a, rules.one_to_one(), plasticity=spikeforge.synapse(text))
    for wrong in (dict(m=1.0, k=1.0), dict(m=1.0, n=math.inf), dict(m=1.0, n=torch.ones(4)), dict(m=1.0, n="x")):
        with pytest.raises((TypeError, ValueError)):
            net.modulate(**wrong)
    spikeforge.simulate(net, 1)
    assert net.weights(number).eq(1).all() and all(t == 0 for t in net.state_dict()["signals"].values())


@pytest.mark.parametrize("start", ["- 1", "-\n 1", "- .5e+1", "-inf", "- inf", "nan", "1."])
def test_a_state_starts_at_any_number_of_the_grammar(start):
    text = f"neuron n(x; u, v = {start}) {{ s = spike(x, none); return s; u' = u; v' = v }}"
    net = spikeforge.Network()
    p, wanted = net.populate("p", 3, text), float(start.replace(" ", "").replace("\n", ""))
    q = net.populate("q", 2, text)
    assert (p.start, p.stop, q.start, q.stop) == (0, 3, 3, 5) and repr(p.states["v"]) == repr(wanted)
    found = [spikeforge.simulate(net, 1, states=[(q, "v", [1])]).states[0][0, 0], spikeforge.nn.Neuron(text)(torch.zeros(1, 2), None)[1]["v"][0]]
    torch.testing.assert_close(torch.stack(found), torch.full((2,), wanted), equal_nan=True)


def test_a_state_that_becomes_infinite_is_warned_of_once(device):
    """A state that is infinite from the start, such as the time of the last spike, is not."""
    text = "neuron n(x; v, last = -inf) { s = spike(v - 1e300, none); return s; v' = 1.5 * v + x; last' = last }"
    net = spikeforge.Network(dtype=torch.float64, device=device)
    quiet, loud = net.populate("quiet", 3, text), net.populate("loud", 3, text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spikeforge.simulate(net, 999)
        spikeforge.simulate(net, 1500)
        net.inject(loud, torch.tensor([0, 0, 1.0]))
        spikeforge.simulate(net, 400, spikes=False)
        net.step(100)
        spikeforge.simulate(net, 499, spikes=False)
        assert not caught
        spikeforge.simulate(net, 1500, spikes=False)  # infinite after 1750 steps of input
        spikeforge.simulate(net, 1500, spikes=False)
        assert [str(w.message) for w in caught] == ["simulate: the state v of loud is not finite after steps 2499 to 4997: a neuron diverges, or has infinite input"]
        assert caught[0].category is RuntimeWarning and caught[0].filename == __file__
        quiet.states["v"] = math.nan
        spikeforge.simulate(net, 1000, spikes=False)
        assert len(caught) == 2 and "the state v of quiet is not finite after steps 6498 to 7497" in str(caught[1].message)


def test_threads_that_describe_a_network_do_not_overlap():
    """Each call is atomic or raises an error, for any switch between threads."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            net, made, connected, begin = spikeforge.Network(seed=1), [], [], threading.Event()

            def describe(i):
                begin.wait()
                for k in range(20):
                    try:
                        made.append(own := net.populate(f"p{i}_{k}", 3 + i, TWO_INPUTS))
                        net.project(own, own, rules.one_to_one())
                        connected.append(own)
                    except RuntimeError as error:
                        assert "another thread is using this network" in str(error)

            threads = [threading.Thread(target=describe, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            begin.set()
            for thread in threads:
                thread.join()
            made.sort(key=lambda p: p.start)
            matrix = net.build()
            assert net.populations == made and [p.start for p in made] == [0, *(p.stop for p in made[:-1])] and net.size == made[-1].stop
            assert len(matrix.indptr) == net.size + 1
            assert pairs(matrix) == sorted((i, i) for p in connected for i in range(p.start, p.stop))
    finally:
        sys.setswitchinterval(before)


def test_arrays_that_a_network_was_given_are_not_kept():
    """After build(), each of 2 million connections needs 9 bytes, as without arrays; during the draw, at most 36 more."""
    code = f"""
import ctypes, gc, resource, torch, spikeforge
from spikeforge import rules
def now():
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
torch.set_num_threads(1)
connections, neurons = 2_000_000, 1000
def made(count):
    net = spikeforge.Network(seed=1, dtype=torch.float32)
    p = net.populate("p", neurons, {TWO_INPUTS!r})
    source, target = torch.randint(neurons, (2, count))
    net.project(p, p, rules.arrays(source, target), weight=torch.rand(count), delay=torch.randint(1, 20, (count,)))
    return net
spikeforge.simulate(made(1000), 1)
before = now()
net = made(connections)
described = now()
net.build()
print((described - before) / connections, (now() - before) / connections)
"""
    described, built = map(float, output_of(code, env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}).split())
    assert 12 <= described < 14.5 and 8.5 <= built < 10


def learns_by(rule):
    connections = spikeforge.Plastic(rule, torch.rand(3, 4, device="cpu"))
    events = torch.ones(3, device="cpu"), torch.ones(4, device="cpu")
    connections.send(*events)
    connections.load_state_dict(connections.state_dict())
    connections.step(*events, **{name: 1.0 for name in rule.signals})
    return connections.weights


def network_of_numbers():
    made = spikeforge.Network(seed=1, dtype=torch.float64)
    a, b = made.populate("a", 5, LIF, states={"v": 0.3}, leak=0.9), made.populate("b", 5, LIF, leak=[0.5] * 5)
    made.drive(a, 0.5)
    made.inject(a, 0.1)
    number = made.project(a, b, rules.arrays([0], [1]), weight=[0.5], delay=[2.0], plasticity=spikeforge.plasticity.reward_stdp())
    made.project(a, b, rules.arrays([], []))
    made.project(a[:3], b[[1, 2]], rules.fixed_in_degree([2, 1], autapses=False))
    made.project(a, a, rules.symmetric(0.5))
    made.project(a, b[1:], rules.distance(lambda d: d * 0, [[0.0]] * 5, [[1.0]] * 4))
    made.drive(a[1:], 0.5, weight=[0.1] * 4)
    spikeforge.simulate(made, 3, states=[(a, "v", [0, 1])])
    saved = made.state_dict()
    made.modulate(reward=1.0)
    made.load_state_dict(saved)
    return made.weights(number)


ON_THE_CPU = {
    "Plastic, pairs": lambda: learns_by(PAIR),
    "Plastic, reward": lambda: learns_by(spikeforge.plasticity.reward_stdp()),
    "Network": network_of_numbers,
    "connect": lambda: spikeforge.connect(5, 5, [spikeforge.Projection(slice(0, 5), slice(0, 5), rules.arrays([0], [1]), weight=[0.5])]).weights,
    "Delay": lambda: spikeforge.nn.Delay(2)(torch.ones(3, 2, device="cpu")),
    "Delay, each step": lambda: spikeforge.nn.Delay(2)(torch.ones(3, 2, device="cpu"), None, store_states=True)[0],
    "PLIF": lambda: spikeforge.nn.PLIF(w=0.5)(torch.ones(3, 2, device="cpu")),
    "Poisson": lambda: spikeforge.nn.Poisson().encode(torch.ones(2, device="cpu"), 3),
    "Latency": lambda: spikeforge.nn.Latency(3).encode(torch.ones(2, device="cpu"), 3),
}


@pytest.mark.parametrize("what", ON_THE_CPU)
def test_numbers_that_an_object_keeps_for_itself_are_on_the_cpu(what):
    """The default device has no effect; on meta, they would have no values."""
    torch.set_default_device("meta")
    try:
        assert ON_THE_CPU[what]().device.type == "cpu"
    finally:
        torch.set_default_device(None)
