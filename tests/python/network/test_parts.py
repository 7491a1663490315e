"""Parts of populations: indices, projections, drives, inputs, recordings. Oracles are NumPy's indices, plain loops over
pairs, and networks whose parts are separate populations."""

import numpy as np
import pytest
import torch
from loops import refused

import spikeforge
from spikeforge import rules
from test_draws import poisson
from test_live import EXACT, listed
from test_simulation import key_of

STILL = "neuron still(x; v) { n = v + x; return 0 * n; v' = n }"
MASK = torch.arange(40) % 3 == 0
INDICES = {
    "slice": slice(10, 20), "to the end": slice(-5, None), "beyond the end": slice(35, 99), "steps": slice(1, 30, 4), "reversed": slice(None, None, -1),
    "none": slice(3, 3), "crossed": slice(9, 3), "tensor": torch.tensor([3, 5, 1]), "int32": torch.tensor([7, -1], dtype=torch.int32), "int8": torch.tensor([-1, -40, 7], dtype=torch.int8), "uint8": torch.tensor([39, 0], dtype=torch.uint8), "list": [8, 2], "array": np.array([4, 30]),
    "mask": MASK, "array of bool": MASK.numpy(), "one": 17, "last": -1, "NumPy's whole number": np.int64(3), "empty list": [], "no mask": MASK & False,
}  # fmt: skip


def one_population(device="cpu", size=40, **options):
    made = spikeforge.Network(seed=3, dtype=torch.float64, device=device, **options)
    return made, made.populate("a", size, EXACT, leak=0.75)


def ends(made):
    """Returns the source and the target of each connection, in the order of the matrix."""
    m = made.build()
    return zip(torch.repeat_interleave(m.indptr.diff().cpu()).tolist(), m.indices.tolist())


def entries(made):
    return sorted(ends(made))


@pytest.mark.parametrize("index", INDICES)
def test_an_index_selects_the_neurons_of_numpy(index):
    made, a = one_population()
    made.populate("first", 2, STILL)
    b = made.populate("b", 40, STILL)
    chosen = INDICES[index]
    expected = np.atleast_1d(np.arange(40)[np.asarray(chosen, dtype=None if len(chosen) else int) if hasattr(chosen, "__len__") else chosen])
    for p in (a, b):
        part = p[chosen]
        assert part.indices.dtype == torch.int64 and part.indices.tolist() == expected.tolist() and len(part) == len(expected)
        assert part.neurons.tolist() == (p.start + expected).tolist() and part.population is p and part.name.startswith(p.name + "[")
        with pytest.raises(AttributeError):
            part.indices = torch.arange(3)
    assert [a[2:5].name, a[::-1].name, a[[5, 3]].name, a[:6:1].name, a[range(6)].name] == ["a[2:5]", "a[39:-1:-1]", "a[5, 3]", "a[0:6]", "a[0, 1, 2, 3, ...]"]
    assert repr(a[2:5]) == "Part('a[2:5]', 3 neurons)" and [len(part) for part in a] == [1] * 40


WRONG_INDICES = [
    (IndexError, "Network: the index of a must be from -40 to 39, but one is 40", [3, 40]),
    (IndexError, "Network: the index of a must be from -40 to 39, but one is -41", -41),
    (ValueError, "Network: the index of a must have each neuron once, but one is repeated", [3, 5, 3]),
    (ValueError, "each neuron once", torch.tensor([39, -1])),
    (IndexError, r"Network: the index of a is a mask, which must have shape \[40\], but has \[39\]", torch.ones(39) > 0),
    (IndexError, "must have one dimension", torch.zeros(2, 2, dtype=torch.long)),
    (TypeError, "Network: the index of a must be whole numbers, but are torch.float", [0.5]),
    (TypeError, "Network: the index of a must be a number, or numbers", "x"),
]


@pytest.mark.parametrize("error, words, index", WRONG_INDICES, ids=range(len(WRONG_INDICES)))
def test_a_wrong_index_is_refused(error, words, index):
    _, a = one_population()
    with pytest.raises(error, match=words):
        a[index]


SOURCES, TARGETS = [3, 30, 4, 12, 9, 25], [12, 2, 25, 38, 3]  # 3, 12 and 25 are both
COMPLETE = [(i, j) for i in SOURCES for j in TARGETS]
NO_AUTAPSES = [(i, j) for i, j in COMPLETE if i != j]
EXACT_RULES = {  # rules that leave no choice
    "all_to_all": (rules.all_to_all(), COMPLETE),
    "all_to_all, no autapses": (rules.all_to_all(autapses=False), NO_AUTAPSES),
    "fixed_probability": (rules.fixed_probability(1.0, autapses=False), NO_AUTAPSES),
    "fixed_in_degree": (rules.fixed_in_degree(6, multapses=False), COMPLETE),
    "fixed_in_degree of each": (rules.fixed_in_degree([5, 6, 5, 6, 5], autapses=False, multapses=False), NO_AUTAPSES),
    "fixed_out_degree": (rules.fixed_out_degree(5, multapses=False), COMPLETE),
    "arrays": (rules.arrays([5, 0, 5], [4, 1, 4]), [(25, 3), (3, 2), (25, 3)]),
    "matrix": (rules.matrix(torch.eye(6, 5)), list(zip(SOURCES, TARGETS))),
}


@pytest.mark.parametrize("rule", EXACT_RULES)
def test_a_rule_draws_within_the_parts(device, rule):
    made, a = one_population(device)
    made.project(a[SOURCES], a[torch.tensor(TARGETS)], EXACT_RULES[rule][0])
    assert entries(made) == sorted(EXACT_RULES[rule][1])


RANDOM_RULES = {
    "fixed_probability": (rules.fixed_probability(0.4), 0.4 * 20 * 14), "fixed_in_degree": (rules.fixed_in_degree(7), 7 * 14), "fixed_out_degree": (rules.fixed_out_degree(3), 3 * 20),
    "fixed_total": (rules.fixed_total(50), 50), "pairwise_poisson": (rules.pairwise_poisson(0.3), 0.3 * 20 * 14), "fixed_in_degree, no autapses": (rules.fixed_in_degree(7, autapses=False), 7 * 14),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["contiguous", "scattered"])
@pytest.mark.parametrize("rule", RANDOM_RULES)
def test_a_rule_draws_from_all_pairs_of_the_parts(rule, kind):
    """The mean number of connections of each pair, over seeds, is that of the rule; degrees count within the parts."""
    drawn, expected = RANDOM_RULES[rule]
    index = {"contiguous": (slice(5, 25), slice(18, 32)), "scattered": (torch.arange(20) * 2, torch.arange(14) * 2 + 7)}[kind]
    counts, seeds = torch.zeros(40, 40), 120
    for seed in range(seeds):
        made = spikeforge.Network(seed=seed)
        a = made.populate("a", 40, EXACT, leak=0.5)
        s, t = a[index[0]], a[index[1]]
        made.project(s, t, drawn, weight=rules.uniform(0.5, 1), delay=rules.uniform(2, 9))
        m = made.build()
        count = torch.zeros(40, 40).index_put_(tuple(torch.tensor(entries(made)).t()), torch.tensor(1.0), accumulate=True)
        assert 0.5 <= m.weights.min() and m.weights.max() <= 1 and len(m.weights.unique()) > len(m.weights) / 2 and m.delays.min() >= 2 and m.delays.max() <= 9
        if rule.startswith("fixed_in_degree"):
            assert count.sum(0)[t.indices].eq(7).all()
        if rule == "fixed_out_degree":
            assert count.sum(1)[s.indices].eq(3).all()
        counts += count
    inside = torch.zeros(40, 40, dtype=torch.bool)
    inside[s.indices[:, None], t.indices] = True
    if not drawn.autapses:
        inside.fill_diagonal_(False)
    assert counts[~inside].eq(0).all()
    mean = expected / inside.sum() if rule != "fixed_in_degree, no autapses" else 7 / inside.sum(0, keepdim=True).clamp(min=1)
    assert ((counts - seeds * mean)[inside].abs().max() < 5.5 * (seeds * torch.as_tensor(mean)).sqrt().max()) and abs(counts.sum() / seeds - expected) < 6 * (expected / seeds) ** 0.5


def built_with_parts(seed, device="cpu", parts=True):
    made = spikeforge.Network(seed=seed, dtype=torch.float64, device=device)
    a, b = made.populate("a", 40, EXACT, leak=0.5), made.populate("b", 30, EXACT, leak=0.5)
    made.project(a, b, rules.fixed_in_degree(4), weight=rules.normal(0.1, 0.1), delay=rules.uniform(1, 5))
    for s, t, rule in ((a[3:9], b[MASK[:30]], rules.fixed_probability(0.5)), (a[[1, 2]], b, rules.fixed_total(9)), (a[[1, 2]], b, rules.fixed_total(9))) if parts else ():
        made.project(s, t, rule, weight=rules.normal(0.1, 0.1), delay=rules.uniform(1, 5))
    m = made.build()
    return made, sorted(zip(ends(made), m.weights.tolist(), m.delays.tolist()))


def test_the_seed_determines_the_connections_of_parts(device):
    made, one = built_with_parts(5, device)
    other, changed = built_with_parts(6, device)
    _, plain = built_with_parts(5, device, parts=False)
    assert one == built_with_parts(5)[1] and [pair for pair, *_ in one] != [pair for pair, *_ in changed]
    assert set(plain) < set(one) and len(one) > len(plain) + 18
    both = [pair for pair, *_ in one if pair[0] in (1, 2)]
    assert len(set(both)) > 12  # two projections of one description differ
    refused(ValueError, "Network: this is the state of another network", lambda: other.load_state_dict(made.state_dict()))


@pytest.mark.parametrize("kind", ["contiguous", "scattered"])
def test_a_network_of_parts_is_that_of_separate_populations(device, kind):
    """Parts 0:15 and 15:40 are compared with populations of 15 and 25 neurons. Scattered parts have the same neurons."""
    whole, split = (spikeforge.Network(seed=3, dtype=torch.float64, device=device) for _ in range(2))
    a = whole.populate("a", 40, EXACT, leak=0.75)
    p, q = (a[:15], a[15:]) if kind == "contiguous" else (a[torch.arange(40) < 15], a[list(range(15, 40))])
    r, s = split.populate("p", 15, EXACT, leak=0.75), split.populate("q", 25, EXACT, leak=0.75)
    generator = torch.Generator().manual_seed(1)
    ends, weights = (torch.randint(15, (90,), generator=generator), torch.randint(25, (90,), generator=generator)), torch.randint(-8, 12, (90,), generator=generator) / 32
    dense, events = torch.rand(60, 15, generator=generator), (torch.randint(60, (50,), generator=generator), torch.randint(25, (50,), generator=generator), 0.5)
    found = []
    for made, first, second in ((whole, p, q), (split, r, s)):
        made.project(first, second, rules.arrays(*ends), weight=weights, delay=torch.arange(90) % 5 + 1)
        drives = [made.drive(first, torch.linspace(0, 0.5, 15), weight=0.25), made.drive(second, 0.3, weight=torch.linspace(0.25, 1, 25))]
        current = made.inject(second, 0.125)
        kept = [made.step(60, {first: dense, (second, "x"): events})[:, first.neurons]]
        drives[0].set_rate(0.75)
        current.set_current(torch.arange(25) / 64)
        made.silence(second, [1, 24])
        made.silence(first)
        made.silence(first, [3, 4], silent=False)
        recording = spikeforge.simulate(made, 60, states=[(first, "v", [14, 2]), (second, "v", range(25))], inputs={first: dense})
        found.append([*kept, *recording.of(first), *recording.of(second), *recording.states])
        assert len(recording.of(first)[0]) > 5 and set(recording.of(first)[1].tolist()) <= {3, 4} and not {1, 24} & set(recording.of(second)[1].tolist()) and len(recording.of(second)[0]) > 50
    assert all(map(torch.equal, *found))


def test_the_first_neuron_of_a_recorded_part_is_0():
    made, a = one_population()
    spikes = torch.zeros(4, 40)
    spikes[0, 7] = spikes[2, 3] = spikes[2, 9] = spikes[3, 7] = 1
    recording = spikeforge.simulate(made, 4, inputs={a: spikes})
    steps, neurons = recording.of(a[[9, 7, 3]])
    assert list(zip(steps.tolist(), neurons.tolist())) == [(0, 1), (2, 2), (2, 0), (3, 1)] and len(recording.of(a[:3])[0]) == 0


def test_the_drive_of_each_neuron_has_its_own_weight(device):
    """Two scattered parts are driven in the first layer; what overlaps is in the second. Weights are exact."""
    made, rates = spikeforge.Network(seed=19, dtype=torch.float64, device=device), torch.arange(40) / 16
    a = made.populate("a", 40, STILL)
    even, odd, weights = torch.arange(0, 40, 2), torch.arange(1, 40, 2).flip(0), torch.arange(40) / 8 - 2
    made.drive(a[even], rates[even], weight=weights[even])
    made.drive(a[odd], rates[odd], weight=weights[odd])
    made.drive(a[30:], 0.5, weight=torch.tensor([64.0] + [128.0] * 9))
    v = spikeforge.simulate(made, 40, states=[(a, "v", range(40))]).states[0].cpu()
    counts, more = torch.zeros(40, 40).double(), poisson(0, 0.5, 40, 40, key_of(19, 1), 0, False)
    for rate in rates[1:].tolist():
        counts = torch.where(rates == rate, poisson(0, rate, 40, 40, key_of(19, 0), 0, False), counts)
    expected = counts * weights
    expected[:, 30:] += more[:, 30:] * torch.tensor([64.0] + [128.0] * 9)
    assert torch.equal(v.diff(dim=0, prepend=torch.zeros(1, 40).double()), expected) and expected.abs().sum() > 1000


def test_a_part_that_learns_has_the_weights_of_its_connections():
    made, a = one_population()
    number = made.project(a[[3, 5]], a[10:12], rules.all_to_all(), weight=0.5, plasticity=spikeforge.plasticity.pair_stdp())
    learned = made.learned(number)
    rows = torch.repeat_interleave(torch.arange(40), learned.indptr.diff())
    assert list(zip(rows.tolist(), learned.indices.tolist())) == [(3, 10), (3, 11), (5, 10), (5, 11)] and made.weights(number).eq(0.5).all()


def test_a_part_without_neurons_does_nothing():
    made, a = one_population()
    none = a[:0]
    made.project(none, a, rules.all_to_all())
    made.project(a, none, rules.fixed_in_degree(3))
    made.drive(none, 1.0)
    made.inject(none, torch.zeros(0))
    made.silence(none)
    assert len(made.build().indices) == 0 and not made.step(9, {none: torch.ones(9, 0), (none, "x"): ([], [])}).any()


WRONG = [
    (ValueError, r"Network: a\[3:9\] to a\[0:5\]: the in-degree must be at most 6, the number of neurons", lambda net, a: net.project(a[3:9], a[:5], rules.fixed_in_degree(7, multapses=False))),
    (ValueError, r"Network: a\[3:9\] to a: one_to_one needs as many targets as sources, 6, but has 40", lambda net, a: net.project(a[3:9], a, rules.one_to_one())),
    (ValueError, r"Network: a\[3:9\] to a: sources must be from 0 to 5, but one is 6", lambda net, a: net.project(a[3:9], a, rules.arrays([6], [0]))),
    (TypeError, r"Network: a\[3:9\] to a: targets must be whole numbers", lambda net, a: net.project(a[3:9], a, rules.arrays([5], torch.ones(1)))),
    (TypeError, r"Network: a\[3:9\] to a: rule must be one of spikeforge.rules", lambda net, a: net.project(a[3:9], a, "all_to_all")),
    (ValueError, "Network: a to a: a delay must be from 1 ", lambda net, a: net.project(a[3:9], a, rules.all_to_all(), delay=0)),
    (ValueError, r"Network: the rate that drives a\[3:9\] must be a number or have shape \[6\], but has \[40\]", lambda net, a: net.drive(a[3:9], torch.ones(40))),
    (ValueError, "must be finite and not negative, but is -1", lambda net, a: net.drive(a[3:9], -1.0)),
    (ValueError, r"Network: the weight of what drives a\[3:9\] must be a number or have shape \[6\]", lambda net, a: net.drive(a[3:9], 1.0, weight=torch.ones(5))),
    (ValueError, r"Network: weight of a must be a number or have shape \[40\], but has \[5\]", lambda net, a: net.drive(a, 1.0, weight=torch.ones(5))),
    (ValueError, "Network: the weight of what drives a must be finite", lambda net, a: net.drive(a, 1.0, weight=[1.0] * 39 + [float("inf")])),
    (ValueError, r"Network: the current of a\[3:9\] must be a number or have shape \[6\]", lambda net, a: net.inject(a[3:9], torch.ones(2, 3))),
    (ValueError, r"Network: the neurons of a\[3:9\] to silence must be from 0 to 5, but one is 6", lambda net, a: net.silence(a[3:9], [6])),
    (ValueError, r"simulate: neurons of a\[3:9\] must be from 0 to 5, but one is -1", lambda net, a: spikeforge.simulate(net, 3, states=[(a[3:9], "v", [-1])])),
    (ValueError, r"simulate: the input of a\[3:9\] must have shape \[3, 6\], steps and neurons, but has \[3, 40\]", lambda net, a: net.step(3, {a[3:9]: torch.ones(3, 40)})),
    (ValueError, r"simulate: the input of a\[3:9\]: neurons must be from 0 to 5, but one is 6", lambda net, a: net.step(3, {a[3:9]: ([0], [6])})),
    (ValueError, "is not a population of this network", lambda net, a: net.drive(spikeforge.Network().populate("z", 9, STILL)[:3], 1.0)),
]  # fmt: skip


@pytest.mark.parametrize("error, words, call", WRONG, ids=range(len(WRONG)))
def test_a_call_for_a_part_that_is_refused_has_not_happened(error, words, call):
    (made, a), (other, b) = one_population(), one_population()
    refused(error, words, lambda: call(made, a))
    assert made.state_dict()["network"] == other.state_dict()["network"]
    for net, p in ((made, a), (other, b)):
        net.drive(p, 0.3, weight=0.5)
    assert listed(spikeforge.simulate(made, 40)) == listed(spikeforge.simulate(other, 40)) != []
