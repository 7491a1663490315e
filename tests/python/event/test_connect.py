"""Networks drawn by rule: a second implementation in Python integers, degrees, distributions, threads, devices, errors."""

import math
import types
from statistics import NormalDist

import numpy as np
import pytest
import torch
from loops import refused, with_threads

import spikeforge
from spikeforge import Projection, rules
from test_draws import philox

SQUARE = (slice(0, 60), slice(0, 60))
APART = (slice(10, 50), slice(60, 160))  # sources and targets, out of 160 neurons
LAWS = dict(weight=rules.normal(2.0, 0.5), delay=rules.uniform(1, 20))


# ---- the definition: csrc/kernels/event/connection_rules.h ----

PLACES, NUMBERS, LINES = range(3)


class Line:
    """Row or column `line` of a projection with `width` places, without the place `own` if that is not None."""

    def __init__(self, seed, number, line, width, own):
        self.seed, self.number, self.line, self.width, self.own = seed & (2**64 - 1), number, line, width, own
        self.legal = [p for p in range(width) if p != own]

    def word(self, position, purpose=PLACES, attempt=0, each=4, of=0):
        words = philox((position // each, self.line, 3 * self.number + purpose, attempt), self.seed)
        return words[position % each * (4 // each) + of]

    def drawn(self, position, attempt=0):
        return self.legal[len(self.legal) * self.word(position, attempt=attempt) >> 32]

    def distinct(self, wanted):
        if 2 * wanted > len(self.legal):
            chosen = []
            for i, place in enumerate(self.legal):
                if (len(self.legal) - i) * self.word(i) >> 32 < wanted - len(chosen):
                    chosen.append(place)
            return chosen
        places, attempt = sorted(map(self.drawn, range(wanted))), 1
        while len(set(places)) < wanted:
            again = [i for i in range(1, wanted) if places[i] == places[i - 1]]
            for i in again:
                places[i] = self.drawn(i, attempt)
            places, attempt = sorted(places), attempt + 1
        return places

    def probable(self, p):
        place, draw, chosen = 0, 0, []
        while True:
            u = (self.word(draw) + 1) / 2**32
            place, draw = place + math.floor(math.log(u) / math.log1p(-p)), draw + 1
            if place >= self.width:
                return chosen
            chosen += [place] if place != self.own else []
            place += 1

    def uniform(self, position, of):
        return ((self.word(position, NUMBERS, each=2, of=of) >> 9) + 0.5) / 2**23


def line_of(connection, seed, number, lines, width, own_of):
    for attempt in range(100):
        words = philox((connection // 2, 0, 3 * number + LINES, attempt), seed)[connection % 2 * 2:]
        line, place = lines * words[0] >> 32, width * words[1] >> 32
        if place != own_of(line):
            return line


def redrawn(rule, sources, targets, seed, number=0):
    """Returns rows of (column, uniform number of the weight, uniform number of the delay)."""
    n, m = sources.stop - sources.start, targets.stop - targets.start
    shift = sources.start - targets.start
    own = lambda line, sign, width: line + sign * shift if not rule.autapses and 0 <= line + sign * shift < width else None
    rows = [Line(seed, number, i, m, own(i, 1, m)) for i in range(n)]
    k = int(rule.amount)
    if rule.rule == "fixed_in_degree":
        columns = [Line(seed, number, j, n, own(j, -1, n)) for j in range(m)]
        places = [[] for _ in rows]
        for j, column in enumerate(columns):
            for i in map(column.drawn, range(k)) if rule.multapses else column.distinct(k):
                places[i].append(j)
    elif rule.rule == "fixed_total":
        lines = [line_of(c, seed, number, n, m, lambda i: rows[i].own) for c in range(k)]
        places = [list(map(row.drawn, range(lines.count(i)))) for i, row in enumerate(rows)]
    else:
        of_row = {
            "all_to_all": lambda row: row.legal,
            "one_to_one": lambda row: [row.line],
            "fixed_probability": lambda row: row.probable(rule.amount),
            "fixed_out_degree": lambda row: list(map(row.drawn, range(k))) if rule.multapses else row.distinct(k),
        }[rule.rule]
        places = list(map(of_row, rows))
    return [[(targets.start + p, row.uniform(i, 0), row.uniform(i, 1)) for i, p in enumerate(of)] for row, of in zip(rows, places)]


EVERY_RULE = [
    rules.all_to_all(), rules.all_to_all(autapses=False), rules.fixed_probability(0.2), rules.fixed_probability(0.3, autapses=False),
    rules.fixed_total(900), rules.fixed_total(900, autapses=False),
    *(rule(k, autapses=a, multapses=m) for rule in (rules.fixed_out_degree, rules.fixed_in_degree)
      for k, a, m in ((15, True, True), (15, False, False), (35, False, False), (39, True, False), (12, False, True))),
]


def text(rule):
    return f"{rule.rule}-{rule.amount:g}" + ("" if rule.autapses else "-no_autapses") + ("" if rule.multapses else "-no_multapses")


def lists(connectivity):
    columns, begins = connectivity.indices.tolist(), connectivity.indptr.tolist()
    return [columns[a:b] for a, b in zip(begins, begins[1:])]


@pytest.mark.parametrize("rule", [*EVERY_RULE, rules.one_to_one()], ids=text)
def test_connections_and_numbers_are_those_of_the_definition(rule):
    for sources, targets, seed in ((*SQUARE, 3), (APART[0], slice(30, 70), 2**60 + 5)):
        drawn = spikeforge.connect(160, 160, [Projection(sources, targets, rule, **LAWS)], seed=seed, dtype=torch.float64)
        rows = redrawn(rule, sources, targets, seed)
        got = lists(drawn)
        assert got[sources] == [[column for column, *_ in row] for row in rows]
        assert sum(map(len, got)) == sum(map(len, rows))
        weights = [2 + 0.5 * NormalDist().inv_cdf(w) for row in rows for _, w, _ in row]
        delays = [math.floor(1 + 19 * d + 0.5) for row in rows for *_, d in row]
        torch.testing.assert_close(drawn.weights, torch.tensor(weights, dtype=torch.float64), rtol=0, atol=2e-6)
        assert (drawn.delays.long() - torch.tensor(delays)).abs().sum() <= 1  # rounding may change one delay
        assert drawn.delays.dtype == torch.uint8
        torch.ops.spikeforge.csr_check(drawn.indices, drawn.indptr, rows=160, cols=160, sorted=False)


def pairs(connectivity):
    row = torch.repeat_interleave(torch.arange(connectivity.rows), connectivity.indptr.diff())
    return row, connectivity.indices.long()


@pytest.mark.parametrize("rule", EVERY_RULE, ids=text)
def test_degrees_autapses_and_multapses_follow_the_rule(rule):
    sources, targets = slice(5, 305), slice(100, 500)
    row, column = pairs(spikeforge.connect(500, 500, [Projection(sources, targets, rule)], seed=11))
    assert row.min() >= 5 and row.max() < 305 and column.min() >= 100 and column.max() < 500
    if not rule.autapses:
        assert not (row == column).any()
    if not rule.multapses:
        assert len(torch.unique(row * 500 + column)) == len(row)
    if rule.rule == "fixed_out_degree":
        assert row.bincount(minlength=305)[5:].eq(rule.amount).all()
    if rule.rule == "fixed_in_degree":
        assert column.bincount(minlength=500)[100:].eq(rule.amount).all()
    if rule.rule == "fixed_total":
        assert len(row) == rule.amount
    if rule.rule == "all_to_all":
        assert len(row) == 300 * 400 - (0 if rule.autapses else 205)


# ---- distributions: at fixed seeds, within five standard deviations, or a Kolmogorov-Smirnov distance of probability 1e-4 ----

def assert_uniform(counts, expected):
    """Chi-square test (in its normal limit) of counts that should all be `expected`."""
    chi = ((counts.double() - expected) ** 2 / expected).sum().item()
    freedom = counts.numel() - 1
    assert abs(chi - freedom) < 5 * math.sqrt(2 * freedom), (chi, freedom)


@pytest.mark.parametrize("rule", [rules.fixed_total(600_000), rules.fixed_out_degree(400), rules.fixed_in_degree(300),
                                  rules.fixed_total(600_000, autapses=False)], ids=text)
def test_every_pair_is_as_likely_with_multapses(rule):
    row, column = pairs(spikeforge.connect(2000, 2000, [Projection(slice(0, 1500), slice(0, 2000), rule)], seed=5))
    cells = (row // 50 * 40 + column // 50).bincount(minlength=1200)
    own = 0 if rule.autapses else 50  # cells on the diagonal have fewer pairs
    share = torch.full((30, 40), 2500.0).double()
    share.diagonal().sub_(own)
    expected = share.flatten() / share.sum() * 600_000
    assert_uniform(cells, expected)


@pytest.mark.parametrize("rule", [rules.fixed_out_degree(2, multapses=False), rules.fixed_out_degree(3, multapses=False)], ids=text)
def test_every_set_of_different_targets_is_as_likely(rule):
    """There are 10 sets of 2 of 5 targets, which are drawn again if equal, and 10 sets of 3, which are selected."""
    drawn = spikeforge.connect(50_000, 5, [Projection(slice(0, 50_000), slice(0, 5), rule)], seed=8)
    sets = (1 << drawn.indices.view(50_000, -1)).sum(1)
    assert_uniform(sets.bincount()[sets.unique()], 5000.0)
    assert len(sets.unique()) == 10


def test_fixed_probability_is_binomial():
    for p in (0.003, 0.1, 0.7, 1.0, 0.0, -0.0):
        drawn = spikeforge.connect(4000, 1000, [Projection(slice(0, 4000), slice(0, 1000), rules.fixed_probability(p))], seed=2)
        degrees = drawn.indptr.diff().double()
        deviation = math.sqrt(1000 * p * (1 - p))
        assert abs(degrees.mean() - 1000 * p) <= 5 * deviation / math.sqrt(4000)
        assert abs(degrees.std() - deviation) <= 5 * deviation / math.sqrt(8000)
        of_columns = drawn.indices.bincount(minlength=1000).double()
        assert abs(of_columns - 4000 * p).max() <= 5.5 * math.sqrt(4000 * p * (1 - p))


def ks(numbers, cdf):
    numbers = numbers.double().sort().values
    n = len(numbers)
    at = torch.tensor([cdf(x) for x in numbers.tolist()], dtype=torch.float64)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    return max((at - steps[:-1]).max().item(), (steps[1:] - at).max().item()) * math.sqrt(n)


def numbers_of(law, dtype=torch.float32, count=20_000):
    return spikeforge.connect(1, 1, [Projection(slice(0, 1), slice(0, 1), rules.fixed_total(count), weight=law)], seed=4, dtype=dtype).weights


def test_numbers_have_the_distribution_of_their_law():
    normal = NormalDist(1.0, 2.0)
    assert ks(numbers_of(rules.uniform(-1, 3)), lambda x: (x + 1) / 4) < 2.2
    assert ks(numbers_of(rules.normal(1, 2)), normal.cdf) < 2.2
    assert ks(numbers_of(rules.lognormal(1, 2)), lambda x: normal.cdf(math.log(x))) < 2.2
    low, high = normal.cdf(0.5), normal.cdf(4)
    again = numbers_of(rules.normal(1, 2, low=0.5, high=4, redraw=True))
    assert ks(again, lambda x: (normal.cdf(x) - low) / (high - low)) < 2.2 and again.min() >= 0.5 and again.max() <= 4
    clipped = numbers_of(rules.normal(1, 2, low=0.5, high=4))
    assert torch.equal(clipped, numbers_of(rules.normal(1, 2)).clamp(0.5, 4))


def test_weights_and_delays_are_independent_and_halves_are_rounded():
    p = Projection(slice(0, 1), slice(0, 1), rules.fixed_total(50_000), weight=rules.normal(0, 1), delay=rules.normal(30, 5))
    drawn = spikeforge.connect(1, 1, [p], seed=6)
    assert abs(np.corrcoef(drawn.weights, drawn.delays)[0, 1]) < 5 / math.sqrt(50_000)
    assert abs(np.corrcoef(drawn.weights[:-1], drawn.weights[1:])[0, 1]) < 5 / math.sqrt(50_000)
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(spikeforge.connect(1, 1, [p], seed=6, dtype=dtype).weights, drawn.weights.to(dtype))


# ---- networks ----

def microcircuit():
    """Returns projections of every rule, several of them into the same rows."""
    populations = [slice(0, 80), slice(80, 100), slice(100, 180), slice(180, 200)]
    made = []
    for i, (rule, (a, b)) in enumerate(zip(EVERY_RULE, ((a, b) for a in populations for b in populations))):
        if not rule.multapses:
            rule = rules.fixed_in_degree(9, autapses=rule.autapses, multapses=False)
        made.append(Projection(a, b, rule, weight=rules.normal(i, 0.1), delay=rules.normal(15, 7.5, low=0.5, redraw=True)))
    return made


def equal(a, b):
    return all(torch.equal(x.cpu(), y.cpu()) for x, y in zip((a.indices, a.indptr, a.weights, a.delays), (b.indices, b.indptr, b.weights, b.delays)))


def test_any_number_of_threads_draws_the_same_network():
    big = [Projection(slice(0, 1000), slice(0, 1000), rule, **LAWS) for rule in EVERY_RULE[2:]]
    made = with_threads((1, 2, 5), lambda: spikeforge.connect(1000, 1000, big, seed=1))
    assert equal(made[0], made[1]) and equal(made[0], made[2])
    assert not torch.equal(made[0].weights, spikeforge.connect(1000, 1000, big, seed=2).weights)


def test_a_gpu_draws_the_same_network(cuda):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for projections, n in ((microcircuit(), 200), ([Projection(slice(0, 3000), slice(0, 3000), rule, **LAWS) for rule in EVERY_RULE], 3000)):
            assert equal(*(spikeforge.connect(n, n, projections, seed=3, dtype=dtype, device=device) for device in ("cpu", cuda)))


def test_projections_of_one_matrix_do_not_see_each_other():
    projections = microcircuit()
    whole = spikeforge.connect(200, 200, projections, seed=9)
    fewer = spikeforge.connect(200, 200, projections[:5], seed=9)
    row, column = pairs(whole)
    of_first = lambda c: [(r, j, w) for r, j, w in zip(*(t.tolist() for t in (*pairs(c), c.weights)))]
    kept = [t for t in of_first(whole) if round(t[2]) < 5]
    assert kept == of_first(fewer)
    for i, p in enumerate(projections):
        here = (whole.weights - i).abs() < 0.5
        assert row[here].min() >= p.sources.start and row[here].max() < p.sources.stop
        assert column[here].min() >= p.targets.start and column[here].max() < p.targets.stop


def test_one_number_for_all_is_kept_once_and_long_delays_are_wide():
    p = Projection(slice(0, 9), slice(0, 9), rules.all_to_all(), weight=0.1, delay=3)
    drawn = spikeforge.connect(9, 9, [p, p], dtype=torch.float64)
    assert drawn.weights.tolist() == [0.1] and drawn.delays.tolist() == [3] and len(drawn.indices) == 162
    far = Projection(slice(0, 9), slice(0, 9), rules.all_to_all(), weight=0.2, delay=300)
    drawn = spikeforge.connect(9, 9, [p, far], dtype=torch.float64)
    assert drawn.delays.dtype == torch.int32 and drawn.delays.tolist() == ([3] * 9 + [300] * 9) * 9
    assert drawn.weights.tolist() == ([0.1] * 9 + [0.2] * 9) * 9
    nothing = spikeforge.connect(4, 5, [])
    assert nothing.indptr.tolist() == [0] * 5 and len(nothing.indices) == 0


def test_arrays_are_taken_as_they_are():
    source, target = torch.tensor([3, 0, 3, 1, 0]), torch.tensor([0, 1, 1, 0, 1], dtype=torch.int32)
    weight, delay = torch.tensor([1.0, 2, 3, 4, 5]), torch.tensor([9, 8, 7, 6, 500])
    given = Projection(slice(2, 6), slice(4, 6), rules.arrays(source, target), weight=weight, delay=delay)
    other = Projection(slice(2, 6), slice(0, 4), rules.one_to_one(), weight=7.0, delay=1)
    drawn = spikeforge.connect(6, 6, [other, given, other])
    assert lists(drawn) == [[], [], [0, 5, 5, 0], [1, 4, 1], [2, 2], [3, 4, 5, 3]]
    assert drawn.weights.tolist() == [7, 2, 5, 7, 7, 4, 7, 7, 7, 7, 1, 3, 7]
    assert drawn.delays.tolist() == [1, 8, 500, 1, 1, 6, 1, 1, 1, 1, 9, 7, 1]
    drawn = spikeforge.connect(6, 6, [Projection(slice(2, 6), slice(4, 6), rules.arrays(source, target), weight=rules.normal(1, 1))], seed=1)
    assert len(drawn.weights.unique()) == 5


class Series:
    """Like a pandas Series, whose `flags` differ from those of an array."""

    flags = types.SimpleNamespace(allows_duplicate_labels=True)

    def __init__(self, values):
        self.values, self.dtype = values, values.dtype

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __len__(self):
        return len(self.values)


LISTS = {
    "a Series": lambda m: [Series(t) for t in np.nonzero(m)],
    "np.nonzero": np.nonzero,
    "np.argwhere(m).T": lambda m: np.argwhere(m).T,
    "reversed": lambda m: [t[::-1] for t in np.nonzero(m)],
    "columns of a table": lambda m: np.column_stack([*np.nonzero(m), m[np.nonzero(m)]]).T[:2],
    "columns of a tensor": lambda m: torch.tensor(np.argwhere(m)).unbind(1),
    "lists": lambda m: [t.tolist() for t in np.nonzero(m)],
    "read only": lambda m: [np.frombuffer(t.astype(np.int64).tobytes(), dtype=np.int64) for t in np.nonzero(m)],
    "uint32": lambda m: [t.astype(np.uint32) for t in np.nonzero(m)],
    "int32": lambda m: [t.astype(np.int32) for t in np.nonzero(m)],
    "floats where there are none": lambda m: [t if t.size else t.astype(float) for t in np.nonzero(m)],
}
ADDS = "neuron adds(x; n, v) { s = where(n == 0, 1, 0); return s; n' = n + 1; v' = v + x }"


@pytest.mark.parametrize("way", LISTS)
@pytest.mark.parametrize("count", [0, 1, 2, 15])
def test_a_matrix_is_connected_by_the_lists_of_its_entries(count, way):
    """Includes lists of one entry and none, whose strides are arbitrary."""
    chosen = np.random.default_rng(count)
    m = np.zeros((5, 4), dtype=np.int64)
    m.ravel()[chosen.choice(20, count, replace=False)] = chosen.integers(1, 9, count)
    sources, targets = LISTS[way](m)
    entries = m[np.nonzero(m)][::-1] if way == "reversed" else m[np.nonzero(m)]
    wanted = torch.tensor(m.sum(0) / 8)
    table = torch.tensor(np.stack([entries / 8, entries % 3 + 1.0], 1))
    for weight, delay in ((entries / 8, entries % 3 + 1), ((entries / 8).tolist(), (entries % 3 + 1).tolist()), table.unbind(1)):
        rule = rules.arrays(sources, targets)
        drawn = spikeforge.connect(9, 9, [Projection(slice(0, 5), slice(5, 9), rule, weight=weight, delay=delay)], dtype=torch.float64)
        dense = torch.zeros(5, 9, dtype=torch.float64).index_put_(pairs(drawn), drawn.weights)
        assert torch.equal(dense[:, 5:], torch.tensor(m / 8))
        for plasticity in (None, spikeforge.plasticity.pair_stdp(w_max=9)):
            made = spikeforge.Network(dtype=torch.float64)
            a, b = made.populate("a", 5, ADDS), made.populate("b", 4, ADDS.replace("n == 0", "n < 0"))
            made.project(a, b, rule, weight=weight, delay=delay, plasticity=plasticity)
            arrived = spikeforge.simulate(made, 5, states=[(b, "v", range(4))]).states[0]
            assert torch.equal(arrived[-1], wanted)
            late = [torch.tensor((m / 8 * (m % 3 + 1 <= t)).sum(0)) for t in range(5)]
            assert all(map(torch.equal, arrived, late))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_delays_that_are_no_whole_numbers_are_rounded(dtype):
    """Arrays are rounded like scalars and distributions: halves are rounded up."""
    given = torch.tensor([0.5, 1.0, 1.4921875, 1.5, 2.5, 16.125, 254.5, 255.5, 1000.0], dtype=dtype)
    delays = np.floor(given.double().numpy() + 0.5)
    to = list(range(len(given)))
    for chosen in (given, given[:-2], given[3:4]):
        rounded = delays[: len(chosen)] if len(chosen) > 1 else delays[3:4]
        p = Projection(slice(0, 1), slice(1, 10), rules.arrays([0] * len(chosen), to[: len(chosen)]), delay=chosen)
        drawn = spikeforge.connect(10, 10, [p])
        assert drawn.delays.tolist() == rounded.tolist() and (drawn.delays.dtype == torch.int32) == (max(rounded) > 255)
        made = spikeforge.Network()
        a, b = made.populate("a", 1, ADDS), made.populate("b", 9, ADDS)
        made.project(a, b, p.rule, delay=chosen)
        assert made.build().delays.tolist() == rounded.tolist()
        one = spikeforge.connect(10, 10, [Projection(slice(0, 1), slice(1, 10), rules.all_to_all(), delay=float(chosen[0]))])
        assert one.delays.tolist() == [rounded[0]]
    far = 2.0**24 + 2 if dtype == torch.float64 else 2.0**24
    if dtype in (torch.float32, torch.float64):
        p = Projection(slice(0, 1), slice(0, 2), rules.arrays([0, 0], [0, 1]), delay=torch.tensor([8388609.0, far], dtype=dtype))
        assert spikeforge.connect(2, 2, [p]).delays.tolist() == [8388609, far]


WRONG = {
    "projection 0: sources must be a range within the 9 rows, but is 3:12": dict(sources=slice(3, 12)),
    "projection 0: targets must be a range within the 9 columns, but is -1:4": dict(targets=slice(-1, 4)),
    "sources must be a slice begin:end": dict(sources=slice(None, 4)),
    "a probability must be from 0 to 1, but is nan": dict(rule=rules.fixed_probability(math.nan)),
    "a probability must be from 0 to 1, but is -0.1": dict(rule=rules.fixed_probability(-0.1)),
    r"a degree must be a whole number from 0 to 2\^31, but is -1": dict(rule=rules.fixed_out_degree(-1)),
    r"a degree must be a whole number from 0 to 2\^31, but is 1.5": dict(rule=rules.fixed_in_degree(1.5)),
    "the out-degree must be at most 4, the number of neurons that there are without multapses, but is 5":
        dict(rule=rules.fixed_out_degree(5, autapses=False, multapses=False)),
    "the in-degree must be at most 5, .* but is 6": dict(rule=rules.fixed_in_degree(6, multapses=False)),
    "an in-degree of 2 needs a neuron to connect to, but the population has none": dict(sources=slice(3, 3), rule=rules.fixed_in_degree(2)),
    r"the number of connections must be a whole number from 0 to 2\^30 a source, but is 1e\+30": dict(rule=rules.fixed_total(1e30)),
    "5 connections need neurons, but the population has none": dict(sources=slice(2, 3), targets=slice(2, 3), rule=rules.fixed_total(5, autapses=False)),
    "one_to_one needs as many targets as sources, 5, but has 4": dict(targets=slice(0, 4), rule=rules.one_to_one()),
    "the standard deviation of weight must not be negative, but is -1": dict(weight=rules.normal(0, -1)),
    "the numbers of weight's law must be finite, but are nan": dict(weight=math.nan),
    "a uniform weight must have low <= high": dict(weight=rules.uniform(2, 1)),
    "weight must have low <= high": dict(weight=rules.normal(0, 1, low=2, high=1)),
    "weight is drawn again until it is from 9 to inf, where fewer than one in a thousand are": dict(weight=rules.normal(0, 1, low=9, redraw=True)),
    "a lognormal weight must have a finite number": dict(weight=rules.lognormal(0, 50)),
    r"a delay must be from 0 to 2\^31 steps, but this law gives ones from": dict(delay=rules.normal(15, 7.5)),
    r"a delay must be from 0 to 2\^31 steps": dict(delay=-1),
    "a weight for each connection needs the rule arrays, but the rule is all_to_all: give one number or a law": dict(weight=torch.ones(3)),
    "a delay for each connection needs the rule arrays, but the rule is one_to_one": dict(rule=rules.one_to_one(), delay=np.ones((5, 5))),
    "sources must be from 0 to 4, the neurons of their range, but are from 0 to 5": dict(rule=rules.arrays([0, 5], [1, 1])),
    "there must be as many targets as sources, 2, but there are 1": dict(rule=rules.arrays([0, 4], [1])),
    r"weights must have shape \[2\], one a connection, but has \[3\]": dict(rule=rules.arrays([0, 4], [1, 2]), weight=torch.ones(3)),
    "weights must be finite, but one is not": dict(rule=rules.arrays([0, 4], [1, 2]), weight=torch.tensor([1, math.nan])),
    r"delays must be from 0 to 2\^31 steps, but are from -2 to 1": dict(rule=rules.arrays([0, 4], [1, 2]), delay=torch.tensor([1, -2])),
    r"delays must be from 0 to 2\^31 steps, but are from -?nan to -?nan": dict(rule=rules.arrays([0, 4], [1, 2]), delay=[1, math.nan]),
}


@pytest.mark.parametrize("words", WRONG)
def test_connections_that_cannot_be_drawn_are_refused(words):
    right = dict(sources=slice(0, 5), targets=slice(0, 5), rule=rules.all_to_all())
    refused(ValueError, words, lambda: spikeforge.connect(9, 9, [Projection(**{**right, **WRONG[words]})]))


def test_wrong_types_and_lists_raise():
    p = Projection(slice(0, 5), slice(0, 5), rules.all_to_all())
    with pytest.raises(TypeError, match="connect: weights must be float16, bfloat16, float32 or float64"):
        spikeforge.connect(9, 9, [p], dtype=torch.int32)
    refused(ValueError, r"connect: rows must be from 0 to 2\^31", lambda: spikeforge.connect(-9, 9, [p]))
    with pytest.raises(ValueError, match="connect: ranges must have 4 elements for each of the 1 rules, but has 3"):
        torch.ops.spikeforge.connect(9, 9, ["all_to_all"], [0, 1, 2], [0.0], [True] * 4, ["constant"] * 2, [0.0] * 8, [])
    with pytest.raises(ValueError, match='connect: projection 0: a rule must be "all_to_all", .* but is "some"'):
        torch.ops.spikeforge.connect(9, 9, ["some"], [0, 1, 2, 3], [0.0], [True] * 4, ["constant"] * 2, [0.0] * 8, [])
