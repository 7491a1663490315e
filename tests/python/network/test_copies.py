"""Copies of a network: each has the bits of a network of one copy with its noise seed, parameters and input."""

import random

import pytest
import torch
from loops import refused, with_threads

import spikeforge
from rank_networks import LIF
from spikeforge import rules

NOISY = "neuron noisy(x; v) { h = 0.75 * v + x + 0.25 * bernoulli(0.3); s = spike(h - 1, none); return s; v' = select(s, 0, h) }"
TWO = "neuron two(a, b; v; leak) { h = leak * v + a - b; s = spike(h - 1, none); return s; v' = select(s, 0, h) }"


def random_network(seed, device, copies, only=None, least_delay=1, plastic=False, **options):
    """A network whose sums are exact in float64, so that all devices have the same bits. If `only` is a number, returns
    a network of one copy with the values of this copy.

    The network has neurons of one and of two inputs that draw random numbers, several drives and currents, and values
    for each copy, for each neuron, and for both."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def value(low, high, size):
        numbers = torch.randint(low, high, rng.choice([(), (size,), (copies, 1), (copies, size)]), generator=generator).double() / 32
        return numbers if only is None or numbers.dim() < 2 else numbers[only].expand(size)

    seeds = [rng.randrange(1000) for _ in range(copies)] if rng.random() < 0.7 else [seed + c for c in range(copies)]
    chosen = dict(copies=copies, noise_seeds=seeds) if only is None else dict(noise_seeds=[seeds[only]])
    made = spikeforge.Network(seed=seed, dtype=torch.float64, device=device, **chosen, **options)
    populations = []
    for k in range(rng.randint(1, 4)):
        size, text = rng.choice([1, 3, 40, 130]), rng.choice([LIF, LIF, NOISY, TWO])
        params = {} if text is NOISY else {"leak": value(8, 28, size)}
        populations.append(made.populate(f"p{k}", size, text, states={"v": value(0, 30, size)}, **params))
    for source in populations:
        for target in populations:
            count = rng.randint(0, 4 * len(target))
            ends = [torch.randint(len(p), (count,), generator=generator) for p in (source, target)]
            weights = torch.randint(-8, 12, (count,), generator=generator).double() / 32
            delays = torch.randint(least_delay, least_delay + 5, (count,), generator=generator)
            made.project(source, target, rules.arrays(*ends), weight=weights, delay=delays, into=rng.choice(target.inputs))
    for p in populations:
        for _ in range(rng.randint(0, 2)):
            made.drive(p, value(0, 10, len(p)), weight=rng.choice([0.5, 0.25]), into=rng.choice(p.inputs))
        if rng.random() < 0.5:
            made.inject(p, value(0, 6, len(p)), into=rng.choice(p.inputs))
    if plastic:
        source, target = rng.choice(populations), rng.choice(populations)
        made.project(source, target, rules.fixed_out_degree(2), weight=0.25, delay=least_delay + 2, plasticity=spikeforge.plasticity.pair_stdp())
    return made, populations, rng, generator


def random_inputs(populations, copies, steps, rng, generator):
    """Inputs of all copies, and those of each copy alone."""
    given, alone = {}, [{} for _ in range(copies)]
    for k, p in enumerate(populations):
        kind = rng.choice(["none", "dense", "dense of copies", "events", "events of copies"])
        if kind.startswith("dense"):
            numbers = torch.randint(0, 20, (steps, *([copies] if "copies" in kind else []), len(p)), generator=generator).double() / 64
            given[k] = numbers
            for c in range(copies):
                alone[c][k] = numbers[:, c] if numbers.dim() == 3 else numbers
        if kind.startswith("events"):
            count = rng.randint(0, 2 * steps)
            at = [torch.randint(end, (count,), generator=generator) for end in (steps, len(p), copies)]
            weights = torch.randint(0, 64, (count,), generator=generator).double() / 32
            given[k] = (*at[:2], weights, at[2]) if "copies" in kind else (*at[:2], weights)
            for c in range(copies):
                here = at[2] == c if "copies" in kind else torch.ones(count, dtype=torch.bool)
                alone[c][k] = tuple(t[here] for t in (*at[:2], weights))
    return given, alone


def by_population(populations, inputs):
    return {populations[k]: value for k, value in inputs.items()}


def operators(device):
    return {"deterministic": torch.device(device).type != "cpu"}


@pytest.mark.parametrize("kind", ["", "operators", "plastic"])
@pytest.mark.parametrize("least_delay", [1, 4])
def test_a_copy_has_the_bits_of_a_network_of_one_copy(device, least_delay, kind):
    is_slow = torch.device(device).type == "cuda" or kind != ""
    for seed in range(8 if is_slow else 60):
        copies = random.Random(seed).choice([2, 3, 7])
        options = dict(least_delay=least_delay, plastic=kind == "plastic", **(operators(device) if kind else {}))
        made, populations, rng, generator = random_network(seed, device, copies, **options)
        if kind == "operators":
            torch.ops.spikeforge_simulation.uses_operators(made._held, True)
        silenced = [torch.randint(len(p), (1,), generator=generator) for p in populations]
        quiet_copy = rng.randrange(copies)
        pieces = [(steps, *random_inputs(populations, copies, steps, rng, generator)) for steps in (30, 1, 45)]
        probe = rng.choice(range(len(populations)))
        neurons = list(range(0, len(populations[probe]), 2))
        found = []
        for number, (steps, given, _) in enumerate(pieces):
            if number == 1:
                made.silence(populations[0], silenced[0])
                made.silence(populations[-1], silenced[-1], copy=quiet_copy)
            found.append(spikeforge.simulate(made, steps, states=[(populations[probe], "v", neurons)], inputs=by_population(populations, given)))
        for c in range(copies):
            single, others, *_ = random_network(seed, device, copies, only=c, **options)
            for number, (steps, _, alone) in enumerate(pieces):
                if number == 1:
                    single.silence(others[0], silenced[0])
                    if c == quiet_copy:
                        single.silence(others[-1], silenced[-1])
                expected = spikeforge.simulate(single, steps, states=[(others[probe], "v", neurons)], inputs=by_population(others, alone[c]))
                here = found[number].copies == c
                message = f"seed {seed}, copy {c}, piece {number}"
                assert torch.equal(found[number].steps[here], expected.steps), message
                assert torch.equal(found[number].neurons[here], expected.neurons), message
                assert torch.equal(found[number].states[0][:, c], expected.states[0]), message
            for p, other in zip(populations, others):
                assert torch.equal(p.states["v"][c], other.states["v"]), f"seed {seed}, copy {c}"
                for name in other.params:
                    assert torch.equal(p.params[name][c], other.params[name]), f"seed {seed}, copy {c}"
            if kind == "plastic":
                assert torch.equal(made.weights(0, copy=c), single.weights(0)), f"seed {seed}, copy {c}"


def test_steps_of_a_closed_loop_return_the_spikes_of_copies(device):
    for seed in range(8):
        made, populations, rng, generator = random_network(seed, device, 3)
        again, others, *_ = random_network(seed, device, 3)
        for steps in (1, 20, 7):
            given, _ = random_inputs(populations, 3, steps, rng, generator)
            fired = made.step(steps, by_population(populations, given))
            assert fired.shape == (steps, 3, made.size)
            recording = spikeforge.simulate(again, steps, inputs=by_population(others, given))
            expected = torch.zeros(steps, 3, made.size, dtype=torch.bool)
            expected[(recording.steps - recording.span.start).cpu(), recording.copies.cpu(), recording.neurons.cpu()] = True
            assert torch.equal(fired.cpu(), expected), f"seed {seed}"
            for p in populations:
                for copy in range(3):
                    steps_of, neurons_of = recording.of(p, copy=copy)
                    assert len(steps_of) == expected[:, copy, p.neurons].sum()


def test_any_number_of_threads_has_the_same_bits():
    def run():
        made = spikeforge.Network(seed=3, dtype=torch.float32, copies=5)
        p = made.populate("p", 1500, LIF, states={"v": torch.linspace(0, 1, 5 * 1500).view(5, 1500)}, leak=0.9)
        q = made.populate("q", 700, NOISY)
        made.drive(p, torch.linspace(0.05, 0.2, 5).unsqueeze(1), weight=0.3)
        for source in (p, q):
            for target in (p, q):
                made.project(source, target, rules.fixed_out_degree(30), weight=rules.normal(0.01, 0.1), delay=rules.uniform(2, 9))
        recording = spikeforge.simulate(made, 200)
        return recording.steps, recording.copies, recording.neurons, p.states["v"].clone()

    expected, *others = with_threads((1, 2, 3), run)
    assert len(expected[0]) > 1000 and set(expected[1].tolist()) == set(range(5))
    assert all(all(map(torch.equal, other, expected)) for other in others)


def test_a_state_is_restored_into_copies(device):
    made, populations, *_ = random_network(11, device, 4)
    spikeforge.simulate(made, 25)
    saved = made.state_dict()
    expected = spikeforge.simulate(made, 40)
    again, *_ = random_network(11, device, 4)
    again.load_state_dict(saved)
    found = spikeforge.simulate(again, 40)
    for kind in ("steps", "neurons", "copies"):
        assert torch.equal(getattr(found, kind), getattr(expected, kind))
    with pytest.raises(ValueError, match="copies"):
        random_network(11, device, 3)[0].load_state_dict(saved)


def test_drives_currents_states_and_parameters_of_copies_change_between_calls(device):
    made = spikeforge.Network(dtype=torch.float64, device=device, copies=3)
    p = made.populate("p", 2, LIF, leak=torch.tensor([[0.5], [0.25], [0.0]]))
    current = made.inject(p, 0.25)
    drive = made.drive(p, 0.0, weight=8.0)
    made.build()
    assert p.params["leak"].tolist() == [[0.5, 0.5], [0.25, 0.25], [0.0, 0.0]]
    p.states["v"] = torch.tensor([[0.0, 0.5]] * 3)
    spikeforge.simulate(made, 1)
    assert p.states["v"].tolist() == [[0.25, 0.5], [0.25, 0.375], [0.25, 0.25]]
    current.set_current(torch.tensor([[0.0], [0.25], [0.5]]))
    p.params["leak"] = torch.tensor([[0.0, 0.5]] * 3)
    p.states["v"][1] = 0.5
    spikeforge.simulate(made, 1)
    assert p.states["v"].tolist() == [[0.0, 0.25], [0.25, 0.5], [0.5, 0.625]]
    drive.set_rate(torch.tensor([[0.0], [0.0], [50.0]]))
    fired = made.step()
    assert fired.tolist() == [[[False, False], [False, False], [True, True]]]


@pytest.mark.parametrize("width", [1, 10])
def test_signals_of_copies(device, width):
    rewards = torch.linspace(-1, 1, 3 * width).view(3, width)

    def learn(copies, reward):
        made = spikeforge.Network(seed=3, dtype=torch.float64, device=device, copies=copies, noise_seeds=[5] * copies, **operators(device))
        p, q = (made.populate(name, 10, LIF, leak=0.875) for name in "pq")
        made.project(p, q, rules.fixed_out_degree(4), weight=0.25, delay=2, plasticity=spikeforge.plasticity.reward_stdp())
        for each in (p, q):
            made.drive(each, 0.3, weight=0.5)
        made.modulate(reward=reward)
        spikeforge.simulate(made, 60)
        return made

    made = learn(3, rewards)
    weights = [made.weights(0, copy=c) for c in range(3)]
    assert not torch.equal(weights[0], weights[2])
    for c in range(3):
        assert torch.equal(weights[c], learn(1, rewards[c] if width > 1 else rewards[c].item()).weights(0))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda n, p: spikeforge.Network(copies=0), ValueError, "copies must be from 1 to 1048576, but are 0"),
        (lambda n, p: spikeforge.Network(copies=2.5), TypeError, "copies must be a whole number"),
        (lambda n, p: spikeforge.Network(copies=2, noise_seeds=[1]), ValueError, "noise_seeds must have one seed for each of 2 copies, but has 1"),
        (lambda n, p: n.populate("q", 4, LIF, leak=torch.zeros(2, 4)), ValueError, r"leak of q must be a number or have shape \[4\], \[3, 1\] or \[3, 4\], but has \[2, 4\]"),
        (lambda n, p: n.populate("q", 4, LIF, area="left"), NotImplementedError, "networks with areas have one copy"),
        (lambda n, p: n.drive(p, torch.zeros(4, 1)), ValueError, r"or have shape \[2\], \[3, 1\] or \[3, 2\], but has \[4, 1\]"),
        (lambda n, p: n.silence(p, [0], copy=3), ValueError, "copy must be from 0 to 2, but is 3"),
        (lambda n, p: n.step(5, {p: torch.zeros(5, 2, 2)}), ValueError, r"must have shape \[5, 2\].*or \[5, 3, 2\].*but has \[5, 2, 2\]"),
        (lambda n, p: n.step(5, {p: ([0], [0], 1.0, [3])}), ValueError, "copies must be from 0 to 2, but one is 3"),
        (lambda n, p: n.step(5, {p: ([0], [0], 1.0, [0, 1])}), ValueError, "as many"),
        (lambda n, p: p.states.__setitem__("v", torch.zeros(3)), ValueError, r"must be a scalar or have shape \[3, 2\]"),
        (lambda n, p: spikeforge.simulate(n, 2).of(p, copy=3), ValueError, "copy must be from 0 to 2, but is 3"),
    ],
)  # fmt: skip
def test_wrong_copies_are_refused(call, error, message):
    made = spikeforge.Network(copies=3)
    p = made.populate("p", 2, LIF, leak=0.5)
    if "states" in str(call.__code__.co_names):
        made.build()
    refused(error, message, lambda: call(made, p))
    assert spikeforge.simulate(made, 3).states == []


COUNT = "neuron count(x; v) { h = maximum(v - 0.25, 0) + x; s = spike(h - 1, none); return s; v' = select(s, 0, h) }"
BOTH = "neuron both(a, b; v) { h = maximum(v - 0.5, 0) + a - b; s = spike(h - 1, none); return s; v' = select(s, 0, h) }"


def many_copies(device, copies):
    """Neurons that rest in most steps, in more copies than a GPU has multiprocessors."""
    generator = torch.Generator().manual_seed(1)
    made = spikeforge.Network(dtype=torch.float64, device=device, copies=copies)
    p, q = made.populate("p", 40, COUNT), made.populate("q", 30, BOTH)
    for source, target, into in ((p, p, "x"), (p, q, "a"), (q, p, "x"), (q, q, "b")):
        ends = [torch.randint(len(each), (90,), generator=generator) for each in (source, target)]
        weights = torch.randint(-8, 18, (90,), generator=generator).double() / 16
        made.project(source, target, rules.arrays(*ends), weight=weights, delay=torch.randint(4, 12, (90,), generator=generator), into=into)
    made.drive(p[3:5], torch.arange(copies).div(40 * copies).unsqueeze(1), weight=1.5)
    return made, p, q


def test_neurons_that_rest_have_the_same_bits_on_every_device(device):
    copies = 300
    generator = torch.Generator().manual_seed(2)
    at = [torch.randint(end, (500,), generator=generator) for end in (80, 40, copies)]
    rows = torch.randint(0, 3, (20, copies, 2), generator=generator).double() / 4
    found = []
    for kind in ("cpu", device):
        made, p, q = many_copies(kind, copies)
        run = lambda steps, **options: spikeforge.simulate(made, steps, **options)
        parts = [run(80, inputs={p: (*at[:2], 1.25, at[2])}), run(1), run(2500), run(30, states=[(q, "v", [0, 7])]), run(40)]
        fired = made.step(20, {q[[2, 9]]: rows})
        p.states["v"][::7, 3] = 2.0
        parts.append(run(300, inputs={q[[9, 2]]: torch.ones(300, 2)}))
        made.silence(p, [1], copy=5)
        parts.append(run(50, inputs={p: torch.eye(40)[torch.arange(50) % 40]}))
        spikes = [(r.steps.cpu(), r.copies.cpu(), r.neurons.cpu(), *(t.cpu() for t in r.states)) for r in parts]
        tensors = [t.cpu() for t in made.state_dict()["tensors"]]
        found.append([*(t for each in spikes for t in each), fired.cpu(), *tensors])
    assert len(found[0][0]) > 1000 and found[0][-1].isfinite().all()
    assert all(map(torch.equal, *found))
