"""Networks that receive input while they run: inputs of a call, steps of closed loops, drives, currents, parameters and
states that change between calls, and silenced neurons. Oracles are a dense loop in float64, and networks that were built
with the later values and continue from the same state."""

import random
from types import SimpleNamespace

import pytest
import torch
from loops import refused

import spikeforge
from rank_networks import LIF, TWO_INPUTS
from spikeforge import rules

EXACT = "neuron exact(x; v; leak) { h = leak * v + x; s = spike(h - 1, none); return s; v' = select(s, 0, h) }"


def listed(recording):
    return sorted(zip(recording.steps.tolist(), recording.neurons.tolist()))


def random_network(seed, device, least_delay=1, **options):
    """Returns a network of float64 neurons, whose sums are exact, so that devices have equal bits."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    made = spikeforge.Network(seed=seed, dtype=torch.float64, device=device, **options)
    populations = []
    for k in range(rng.randint(1, 4)):
        size = rng.choice([1, 3, 17, 70])
        text = rng.choice([EXACT, TWO_INPUTS])
        populations.append(made.populate(f"p{k}", size, text, **({"leak": rng.choice([0.5, 0.75])} if text is EXACT else {})))
    for source in populations:
        for target in populations:
            count = rng.randint(0, 4 * len(target))
            ends = [torch.randint(len(p), (count,), generator=generator) for p in (source, target)]
            weights = torch.randint(-8, 12, (count,), generator=generator).double() / 32
            delays = torch.randint(least_delay, least_delay + rng.choice([1, 6]), (count,), generator=generator)
            made.project(source, target, rules.arrays(*ends), weight=weights, delay=delays, into=rng.choice(target.inputs))
    return made, populations, rng, generator


def random_inputs(populations, steps, rng, generator):
    """Returns inputs, and the same as dense tensors: (population, name) to [steps, size]."""
    given, dense = {}, {}
    for p in populations:
        for name in p.inputs:
            kind = rng.choice(["none", "dense", "events", "events of one weight"])
            if kind == "none":
                continue
            key = p if name == p.inputs[0] and rng.random() < 0.5 else (p, name)
            if kind == "dense":
                given[key] = dense[p, name] = torch.randint(0, 40, (steps, len(p)), generator=generator).double() / 64
                continue
            count = rng.randint(0, 3 * steps)
            at = torch.randint(steps, (count,), generator=generator), torch.randint(len(p), (count,), generator=generator)
            weights = torch.full((count,), 0.75) if kind != "events" else torch.randint(0, 64, (count,), generator=generator) / 32
            given[key] = (*at, 0.75) if kind != "events" else (*at, weights)
            dense[p, name] = torch.zeros(steps, len(p)).double().index_put_(at, weights.double(), accumulate=True)
    return given, dense


def dense_loop(made, populations, steps, dense, silenced=()):
    """Simulates from the initial state, with a dense matrix for each delay. Returns the spikes, bool [steps, neurons]."""
    m, size = made.build(), made.size
    row = torch.repeat_interleave(torch.arange(m.rows), m.indptr.diff().cpu())
    delays = m.delays.cpu().long().expand(len(row))
    matrices = torch.zeros(16, m.rows, m.cols, dtype=torch.float64)
    matrices.index_put_((delays, row, m.indices.cpu().long()), m.weights.cpu().expand(len(row)), accumulate=True)
    v, past = torch.zeros(size).double(), []
    for t in range(steps):
        x = sum((past[-d] @ matrices[d] for d in range(1, min(16, t + 1))), torch.zeros(m.cols).double())
        s = torch.zeros(size).double()
        for p in populations:
            own = [x[k * size + p.start : k * size + p.stop] for k in range(len(p.inputs))]
            own = [a + dense[p, name][t] if (p, name) in dense else a for a, name in zip(own, p.inputs)]
            leak = p.params["leak"].cpu() if "leak" in p.params else 0.8
            h = leak * v[p.neurons] + (own[0] if len(own) == 1 else own[0] - own[1])
            s[p.neurons] = (h >= 1).double()
            v[p.neurons] = torch.where(h >= 1, 0, h)
        s[list(silenced)] = 0
        past.append(s)
    return torch.stack(past).bool()


@pytest.mark.parametrize("least_delay", [1, 4])
def test_inputs_of_a_call_are_added_in_their_steps(device, least_delay):
    for seed in range(40 if torch.device(device).type == "cpu" else 8):
        made, populations, rng, generator = random_network(seed, device, least_delay)
        steps = rng.choice([1, 2, 13, 60])
        given, dense = random_inputs(populations, steps, rng, generator)
        expected = dense_loop(made, populations, steps, dense)
        other, others, *_ = random_network(seed, device, least_delay)
        renamed = {(others[populations.index(k)] if not isinstance(k, tuple) else (others[populations.index(k[0])], k[1])): v for k, v in given.items()}
        recording = spikeforge.simulate(other, steps, inputs=renamed)
        found = torch.zeros(steps, made.size, dtype=torch.bool)
        found[recording.steps.cpu(), recording.neurons.cpu()] = True
        assert torch.equal(found, expected), f"seed {seed}"
        stepped = made.step(steps, given)
        assert stepped.device.type == torch.device(device).type
        assert torch.equal(stepped.cpu(), expected), f"seed {seed}"


def test_pieces_of_inputs_are_the_same_as_one_call(device):
    for seed in range(10):
        made, populations, rng, generator = random_network(seed, device)
        given, dense = random_inputs(populations, 50, rng, generator)
        expected = dense_loop(made, populations, 50, dense)
        found, done = [], 0
        for count in (1, 7, 1, 30, 11):
            part = {key: values[done : done + count] for key, values in dense.items()}
            found.append(made.step(count, part))
            done += count
        assert torch.equal(torch.cat(found).cpu(), expected), f"seed {seed}"


def test_operators_add_inputs_too(device):
    for seed in range(10):
        made, populations, rng, generator = random_network(seed, device, deterministic=torch.device(device).type != "cpu")
        torch.ops.spikeforge_simulation.uses_operators(made._held, True)
        given, dense = random_inputs(populations, 70, rng, generator)
        expected = dense_loop(made, populations, 70, dense)
        assert torch.equal(made.step(45, {k: v[:45] for k, v in dense.items()}).cpu(), expected[:45]), f"seed {seed}"
        rest = spikeforge.simulate(made, 25, inputs={k: v[45:] for k, v in dense.items()})
        assert listed(rest) == [(45 + t, i) for t, i in expected[45:].nonzero().tolist()], f"seed {seed}"


def test_many_steps_read_the_inputs_of_their_piece():
    made, (p, *_), rng, generator = random_network(3, "cpu")
    values = torch.randint(0, 40, (2500, len(p)), generator=generator).double() / 64
    whole = spikeforge.simulate(made, 2500, inputs={p: values})
    for at in (values.nonzero().t(), values.nonzero().flip(0).t()):  # in any order
        other, (q, *_), *_ = random_network(3, "cpu")
        again = spikeforge.simulate(other, 2500, inputs={q: (at[0], at[1], values[at[0], at[1]])})
        assert len(whole.steps) > 1000 and listed(again) == listed(whole)


def driven(device, rate=0.3, current=0.07, leak=0.75, into=True):
    made = spikeforge.Network(seed=5, dtype=torch.float64, device=device)
    a, b = made.populate("a", 40, EXACT, leak=leak), made.populate("b", 30, EXACT, leak=0.5)
    made.project(a, b, rules.fixed_in_degree(5), weight=0.25, delay=rules.uniform(1, 4))
    made.project(b, a, rules.fixed_in_degree(5), weight=0.125, delay=3)
    drive, input_current = made.drive(a, rate, weight=0.5), made.inject(b, current)
    return SimpleNamespace(net=made, a=a, b=b, drive=drive, current=input_current)


CHANGES = {
    "rate": (lambda n: n.drive.set_rate(0.9), {"rate": 0.9}),
    "rates": (lambda n: n.drive.set_rate(torch.linspace(0, 2, 40)), {"rate": torch.linspace(0, 2, 40)}),
    "current": (lambda n: n.current.set_current(0.3), {"current": 0.3}),
    "currents": (lambda n: n.current.set_current(torch.linspace(0, 1, 30)), {"current": torch.linspace(0, 1, 30)}),
    "parameter": (lambda n: n.a.params.__setitem__("leak", 0.25), {"leak": 0.25}),
    "parameters": (lambda n: n.a.params.__setitem__("leak", torch.linspace(0, 0.9, 40)), {"leak": torch.linspace(0, 0.9, 40)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_value_is_used_from_the_next_step(device, change):
    act, options = CHANGES[change]
    made, other = driven(device), driven(device, **options)
    spikeforge.simulate(made.net, 30)
    act(made)
    other.net.load_state_dict(made.net.state_dict())
    before = driven(device)
    before.net.load_state_dict(made.net.state_dict())
    expected = listed(spikeforge.simulate(other.net, 60))
    assert listed(spikeforge.simulate(made.net, 60)) == expected
    assert listed(spikeforge.simulate(before.net, 60)) != expected  # the change has an effect


def test_drives_and_currents_are_added_between_steps(device):
    made, other = driven(device), driven(device)
    other.net.drive(other.b, 0.7, weight=0.5)
    other.net.inject(other.a, 0.2)
    spikeforge.simulate(made.net, 30)
    made.net.drive(made.b, 0.7, weight=0.5)
    made.net.inject(made.a, 0.2)
    other.net.load_state_dict(made.net.state_dict())
    assert listed(spikeforge.simulate(made.net, 60)) == listed(spikeforge.simulate(other.net, 60))


def test_states_and_parameters_of_a_population_are_read_and_written(device):
    made = driven(device, leak=torch.linspace(0.1, 0.9, 40))
    assert made.a.states["v"] == 0 and made.b.params["leak"] == 0.5 and list(made.a.params) == ["leak"]
    refused(RuntimeError, "can be assigned after build", lambda: made.a.states.__setitem__("v", 1.0))
    record = spikeforge.simulate(made.net, 20, states=[(made.b, "v", range(30))])
    assert torch.equal(made.b.states["v"], record.states[0][-1]) and made.b.states["v"].device.type == torch.device(device).type
    made.a.states["v"] = 0.5
    made.b.states["v"].fill_(2.0)  # shares memory
    assert made.net.step()[0, made.b.neurons].all()
    torch.testing.assert_close(made.a.params["leak"].cpu(), torch.linspace(0.1, 0.9, 40).double())
    made.b.params["leak"] = 0.25
    assert made.b.params["leak"].tolist() == [0.25] * 30 and made.a.params["leak"].shape == (40,)
    refused(KeyError, "no state w; it has v", lambda: made.a.states["w"])
    refused(ValueError, r"must be a scalar or have shape \[40\], but has \[3\]", lambda: made.a.states.__setitem__("v", torch.ones(3)))
    refused(ValueError, r"leak of a must be a number or have shape \[40\]", lambda: made.a.params.__setitem__("leak", torch.ones(3)))


def test_populations_of_one_neuron_keep_separate_parameters(device):
    """Neighbouring populations of one text are stepped together, and share a scalar."""
    made = spikeforge.Network(seed=1, dtype=torch.float64, device=device)
    a, b = made.populate("a", 3, EXACT, leak=0.5), made.populate("b", 2, EXACT, leak=0.5)
    made.build()
    b.params["leak"] = 0.25
    for p in (a, b):
        p.states["v"] = 0.5
    made.step()
    assert a.states["v"].tolist() == [0.25] * 3 and b.states["v"].tolist() == [0.125] * 2


def test_silenced_neurons_neither_send_nor_record_spikes(device):
    for seed in range(12 if torch.device(device).type == "cpu" else 4):
        for operators in (False, True):
            made, populations, rng, generator = random_network(seed, device, deterministic=operators and torch.device(device).type != "cpu")
            torch.ops.spikeforge_simulation.uses_operators(made._held, operators)
            _, dense = random_inputs(populations, 40, rng, generator)
            p = rng.choice(populations)
            chosen = sorted(rng.sample(range(len(p)), rng.randint(1, len(p))))
            made.build()
            made.silence(p, range(len(p)))
            made.silence(p, silent=False)
            made.silence(p, chosen)
            expected = dense_loop(made, populations, 40, dense, [p.start + i for i in chosen])
            assert torch.equal(made.step(40, dense).cpu(), expected), f"seed {seed}"


def test_a_closed_loop_reads_spikes_and_sets_input(device):
    """Each neuron receives input as long as it has fired less often than the step number divided by four."""
    made = spikeforge.Network(dtype=torch.float64, device=device)
    p = made.populate("p", 5, EXACT, leak=0.5)
    counts = torch.zeros(5, device=device)
    for t in range(40):
        counts += made.step(1, {p: (2.0 * (counts < t / 4)).unsqueeze(0)})[0]
    assert counts.tolist() == [10] * 5


def test_a_step_on_a_gpu_does_not_synchronise(cuda):
    made, populations, rng, generator = random_network(2, cuda)
    rows = {p: torch.rand(20, len(p), device=cuda, dtype=torch.float64) for p in populations}
    for inputs in (rows, {populations[0][:1]: rows[populations[0]][:, :1]}):
        made.step(20, inputs)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            made.step(20, inputs)
        finally:
            torch.cuda.set_sync_debug_mode("default")


WRONG = {
    "shape": (lambda n: {n.a: torch.zeros(5, 3)}, ValueError, r"the input of a must have shape \[5, 40\], steps and neurons, but has \[5, 3\]"),
    "steps": (lambda n: {n.a: torch.zeros(4, 40)}, ValueError, r"the input of a must have shape \[5, 40\]"),
    "scalar": (lambda n: {n.a: 1.0}, ValueError, r"the input of a must have shape \[5, 40\]"),
    "name": (lambda n: {(n.a, "y"): torch.zeros(5, 40)}, ValueError, "the neuron of a has no input y; its inputs: x"),
    "population": (lambda n: {"a": torch.zeros(5, 40)}, TypeError, "a population must be a result of populate"),
    "another network's": (lambda n: {driven("cpu", leak=0.1).net.populate("c", 1, EXACT, leak=0.5): torch.zeros(5, 1)}, ValueError, "c is not a population of this network"),
    "a list": (lambda n: [torch.zeros(5, 40)], TypeError, "inputs must be a dict of populations and values"),
    "late": (lambda n: {n.a: ([0, 5], [1, 1])}, ValueError, "the input of a: steps must be from 0 to 4, but one is 5"),
    "negative": (lambda n: {n.a: ([0, -1], [1, 1])}, ValueError, "the input of a: steps must be from 0 to 4, but one is -1"),
    "neuron": (lambda n: {n.a: ([0, 1], [1, 40])}, ValueError, "the input of a: neurons must be from 0 to 39, but one is 40"),
    "columns": (lambda n: {n.a: ([[0, 1]], [1])}, ValueError, r"the input of a: steps must have one dimension, but have shape \[1, 2\]"),
    "lengths": (lambda n: {n.a: ([0, 1], [1])}, ValueError, "as many steps as neurons"),
    "fractions": (lambda n: {n.a: ([0.5], [1])}, TypeError, "the input of a: steps must be whole numbers, but are torch.float32"),
    "weights": (lambda n: {n.a: ([0, 1], [1, 2], [1.0, 2.0, 3.0])}, ValueError, "as many steps as neurons, weights and copies"),
    "complex": (lambda n: {n.a: torch.zeros(5, 40, dtype=torch.complex64)}, TypeError, "must be real numbers"),
    "sparse": (lambda n: {n.a: torch.ones(5, 40).to_sparse()}, TypeError, "the input of a must be a dense tensor with values"),
    "meta": (lambda n: {n.a: torch.ones(5, 40, device="meta")}, TypeError, "the input of a must be a dense tensor with values"),
    "a list of one weight": (lambda n: {n.a: ([0, 1], [1, 2], [1.0])}, ValueError, "as many steps as neurons, weights and copies"),
    "weights in rows": (lambda n: {n.a: ([0, 1], [1, 2], [[1.0], [2.0]])}, ValueError, "as many steps as neurons, weights and copies"),
    "one of three": (lambda n: {n.a: (torch.tensor([1]),)}, TypeError, "must be a tensor or"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_refused_and_leave_the_network(case):
    inputs, error, words = WRONG[case]
    made, other = driven("cpu"), driven("cpu")
    refused(error, words, lambda: spikeforge.simulate(made.net, 5, inputs=inputs(made)))
    refused(error, words, lambda: made.net.step(5, inputs(made)))
    assert listed(spikeforge.simulate(made.net, 40)) == listed(spikeforge.simulate(other.net, 40))


def test_wrong_changes_are_refused():
    made = driven("cpu")
    refused(ValueError, "must be finite and not negative, but is -1", lambda: made.drive.set_rate(-1.0))
    refused(ValueError, r"must be a number or have shape \[40\]", lambda: made.drive.set_rate(torch.ones(3)))
    refused(ValueError, "must be finite", lambda: made.current.set_current(float("nan")))
    refused(ValueError, "silence: neurons of a must be from 0 to 39", lambda: made.net.silence(made.a, [40]))
    refused(TypeError, "silence: neurons of a must be whole numbers", lambda: made.net.silence(made.a, [0.5]))
    refused(ValueError, "steps must not be negative", lambda: made.net.step(-1))
    assert made.net.step(0).shape == (0, 70)
