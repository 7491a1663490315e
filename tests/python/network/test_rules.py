"""Rules that Python draws: matrices, Poisson numbers, symmetric pairs, in-degrees of each target, distances. Oracles are
plain loops over pairs, and the distribution of each rule over seeds."""

import math

import numpy as np
import pytest
import torch
from loops import refused

import spikeforge
from spikeforge import Projection, rules
from test_live import EXACT
from test_parts import entries


def drawn(rule, sizes=(12, 9), seed=1, same=False, device="cpu", **how):
    """Returns a built network of two populations, or one, that the rule connects."""
    made = spikeforge.Network(seed=seed, dtype=torch.float64, device=device)
    a = made.populate("a", sizes[0], EXACT, leak=0.5)
    b = a if same else made.populate("b", sizes[1], EXACT, leak=0.5)
    made.project(a, b, rule, **how)
    return made


def counts_of(rule, seeds, sizes=(12, 9), same=False):
    """Returns the number of connections of each pair, [seeds, sources, targets], of networks and of connect()."""
    counts = torch.zeros(seeds, sizes[0], sizes[0] if same else sizes[1])
    for seed in range(seeds):
        if seed % 2:
            ends = [slice(0, sizes[0])] * 2 if same else [slice(0, sizes[0]), slice(sizes[0], sum(sizes))]
            m = spikeforge.connect(sum(sizes), sum(sizes), [Projection(*ends, rule)], seed=seed)
            rows, cols = torch.repeat_interleave(m.indptr.diff()), m.indices.long()
        else:
            rows, cols = torch.tensor(entries(drawn(rule, sizes, seed, same)), dtype=torch.long).reshape(-1, 2).t()
        counts[seed].index_put_((rows, cols - (0 if same else sizes[0])), torch.tensor(1.0), accumulate=True)
    return counts


WEIGHTS = torch.where(torch.rand(12, 9, generator=torch.Generator().manual_seed(2)) < 0.4, torch.linspace(-1, 1, 108).reshape(12, 9), 0).double()
DELAYS = torch.arange(108).reshape(12, 9) % 7 + 1
FORMS = {
    "dense": lambda t: t, "transposed": lambda t: t.t().contiguous().t(), "list": lambda t: t.tolist(), "numpy": lambda t: t.numpy(), "sparse": lambda t: t.to_sparse(),
    "explicit zeros": lambda t: torch.sparse_coo_tensor(torch.ones_like(t).nonzero().t(), t.flatten(), check_invariants=True), "csr": lambda t: t.to_sparse_csr(),
    "halves": lambda t: torch.sparse_coo_tensor(torch.cat([t.nonzero(), t.nonzero()]).t(), torch.cat([t[t != 0] / 2] * 2), check_invariants=True),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_connects_where_it_is_not_0(device, form):
    for delays in (None, DELAYS, DELAYS.to_sparse(), (DELAYS * (WEIGHTS != 0)).to_sparse(), DELAYS.tolist()):
        made = drawn(rules.matrix(FORMS[form](WEIGHTS), delays), device=device, **({"delay": 3} if delays is None else {}))
        m = made.build()
        found = sorted(zip(entries(made), m.weights.tolist(), m.delays.cpu().expand(len(m.indices)).tolist()))
        expected = [((i, 12 + j), WEIGHTS[i, j].item(), 3 if delays is None else DELAYS[i, j].item()) for i in range(12) for j in range(9) if WEIGHTS[i, j] != 0]
        if torch.device(device).type == "cuda":  # rows are in another order
            assert sorted(w for _, w, _ in found) == sorted(w for _, w, _ in expected) and entries(made) == [pair for pair, *_ in expected]
        else:
            assert found == expected


def test_a_matrix_of_bool_has_the_weights_of_the_projection():
    made = drawn(rules.matrix(WEIGHTS > 0, DELAYS), weight=rules.uniform(2, 3))
    assert entries(made) == [(i, 12 + j) for i, j in (WEIGHTS > 0).nonzero().tolist()] and made.build().weights.min() >= 2


def test_numbers_of_connections_of_pairs_are_poisson():
    counts = counts_of(rules.pairwise_poisson(0.8), 300)
    n = counts.numel()
    for k in range(4):
        share = 0.8**k * math.exp(-0.8) / math.factorial(k)
        assert abs((counts == k).double().mean() - share) < 5 * (share * (1 - share) / n) ** 0.5
    assert (counts.mean(0) - 0.8).abs().max() < 5 * (0.8 / 300) ** 0.5
    assert abs(counts.sum((1, 2)).var() / (0.8 * 108) - 1) < 5 * (2 / 300) ** 0.5
    itself = counts_of(rules.pairwise_poisson(0.8, autapses=False), 100, same=True)
    assert itself.diagonal(dim1=1, dim2=2).eq(0).all() and abs(itself.sum() / 100 - 0.8 * 132) < 5 * (0.8 * 132 / 100) ** 0.5


@pytest.mark.parametrize("size", [1, 2, 7, 12])
def test_symmetric_pairs_are_connected_in_both_directions(size):
    counts = counts_of(rules.symmetric(0.3), 300, (size, 1), same=True)
    assert torch.equal(counts, counts.mT) and counts.diagonal(dim1=1, dim2=2).eq(0).all() and counts.max() <= 1
    i, j = torch.triu_indices(size, size, 1)
    pairs = counts[:, i, j]
    if pairs.numel():
        assert (pairs.mean(0) - 0.3).abs().max() < 5 * (0.21 / 300) ** 0.5
        assert abs(pairs.sum(1).var() / (0.21 * len(i)) - 1) < 0.6  # pairs are independent
    made = spikeforge.Network(seed=1)
    a = made.populate("a", 40, EXACT, leak=0.5)
    made.project(a[5:30], a[5:30], rules.symmetric(1.0), weight=rules.uniform(0, 1))
    assert entries(made) == [(i, j) for i in range(5, 30) for j in range(5, 30) if i != j] and len(made.build().weights.unique()) > 500


@pytest.mark.parametrize("options", [{}, {"autapses": False}, {"multapses": False}, {"autapses": False, "multapses": False}], ids=str)
def test_each_target_has_its_own_in_degree(options):
    degrees = [3, 0, 1, 3, 11, 5, 0, 2, 7, 4, 4, 4]
    for given in (degrees, torch.tensor(degrees), np.array(degrees, dtype=np.uint16)):
        counts = counts_of(rules.fixed_in_degree(given, **options), 200, same=True)
        assert counts.sum(1).eq(torch.tensor(degrees)).all()
        mean = counts.mean(0)
        if not options.get("autapses", True):
            assert mean.diagonal().eq(0).all()
        if not options.get("multapses", True):
            assert counts.max() == 1
        legal = torch.ones(12, 12) - (0 if options.get("autapses", True) else torch.eye(12))
        expected = legal * torch.tensor(degrees) / legal.sum(0)
        assert (mean - expected).abs().max() < 5.5 * (expected.max() / 200) ** 0.5


def grid(side, dimensions=2):
    return torch.cartesian_prod(*[torch.arange(side)] * dimensions).double()


@pytest.mark.parametrize("period", [None, 5.0, [5.0, 8.0]])
def test_pairs_within_a_distance_are_connected(device, period):
    sources, targets = grid(5)[:20], grid(5) + 0.25

    def apart(p, q):
        """The distance to the nearest image, by trying all."""
        images = [(0, 0)] if period is None else [(5 * i, (5 if period == 5.0 else 8) * j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        return min(math.hypot(p[0] - q[0] + x, p[1] - q[1] + y) for x, y in images)

    rule = rules.distance(lambda d: (d < 1.5).double(), sources, targets, period=period)
    expected = [(i, 20 + j) for i, p in enumerate(sources.tolist()) for j, q in enumerate(targets.tolist()) if apart(p, q) < 1.5]
    assert entries(drawn(rule, (20, 25), device=device)) == expected and len(expected) > 60


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_the_probability_of_a_pair_is_the_kernel_of_its_distance(dimensions, monkeypatch):
    monkeypatch.setattr(spikeforge._drawing, "PAIRS_AT_ONCE", 30)  # blocks of three sources
    generator = torch.Generator().manual_seed(dimensions)
    sources, targets = torch.rand(12, dimensions, generator=generator), torch.rand(9, dimensions, generator=generator)
    calls = []

    def kernel(d):
        calls.append(d.shape)
        return torch.exp(-d)

    counts = counts_of(rules.distance(kernel, sources, targets.numpy()), 400)
    expected = np.exp(-np.linalg.norm(sources.double().numpy()[:, None] - targets.double().numpy(), axis=-1))
    assert abs(counts.mean(0).numpy() - expected).max() < 5 * 0.5 / 400**0.5 and counts.max() == 1 and set(calls) == {(3, 9)}


def test_distances_of_many_neurons_are_computed_in_blocks():
    """Ten million pairs, and a chi-square test of the number of connections by distance."""
    at = torch.rand(3200, 2, generator=torch.Generator().manual_seed(1))
    made = drawn(rules.distance(lambda d: 0.1 * torch.exp(-d / 0.1), at, at, period=1, autapses=False), (3200, 1), same=True)
    pairs = torch.tensor(entries(made))
    assert (pairs[:, 0] != pairs[:, 1]).all() and len(pairs.unique(dim=0)) == len(pairs)
    apart = (at[pairs[:, 0]] - at[pairs[:, 1]]).double().abs()
    d = torch.minimum(apart, 1 - apart).norm(dim=1)
    edges = torch.linspace(0, 0.45, 10).double()
    found = torch.histogram(d.float(), edges.float()).hist
    x = torch.linspace(0, 0.45, 9001).double()
    density = 2 * math.pi * x * 0.1 * torch.exp(-x / 0.1) * 3200 * 3199
    expected = torch.stack([torch.trapezoid(density[1000 * k : 1000 * k + 1001], x[1000 * k : 1000 * k + 1001]) for k in range(9)])
    assert ((found - expected) ** 2 / expected).sum() < 60, (found, expected)  # positions are random too


def test_the_same_seed_draws_the_same(device):
    at = grid(6)
    for rule in (rules.pairwise_poisson(0.4), rules.symmetric(0.4), rules.fixed_in_degree(range(36)), rules.distance(lambda d: 0.5 * torch.exp(-d), at, at)):
        one, two, other = (entries(drawn(rule, (36, 1), seed, same=True, device=device)) for seed in (7, 7, 8))
        assert one == two != other and one == entries(drawn(rule, (36, 1), 7, same=True))


HALF = lambda d: torch.full_like(d, 0.5)  # noqa: E731
WRONG = [
    (ValueError, r"Network: a to b: weights of a matrix must have shape \[5, 4\], but have \[4, 5\]", lambda: rules.matrix(torch.ones(4, 5)), {}),
    (ValueError, r"Network: a to b: delays of a matrix must have shape \[5, 4\], but have \[5\]", lambda: rules.matrix(torch.ones(5, 4), torch.ones(5)), {}),
    (ValueError, r"Network: a to b: delays of a matrix must have an entry for each weight, but not at \[0, 1\]", lambda: rules.matrix(torch.ones(5, 4), torch.eye(5, 4).to_sparse()), {}),
    (ValueError, "Network: a to b: delays must be from 1 to .* but are from 0 to 0", lambda: rules.matrix(torch.ones(5, 4), torch.zeros(5, 4)), {}),
    (ValueError, "Network: a to b: the rule matrix has weights, so that weight must not be given", lambda: rules.matrix(torch.ones(5, 4)), {"weight": 2.0}),
    (ValueError, "the rule matrix has delays, so that delay must not be given", lambda: rules.matrix(torch.ones(5, 4), torch.ones(5, 4)), {"delay": rules.uniform(1, 2)}),
    (ValueError, "Network: weights of a to b must be finite", lambda: rules.matrix(torch.full((5, 4), math.nan)), {}),
    (TypeError, "rules.matrix: weights must be a number, or numbers in a tensor", lambda: rules.matrix([[1, 2], [3]]), {}),
    (ValueError, "Network: a to b: the mean of pairwise_poisson must be finite and not negative, but is -1", lambda: rules.pairwise_poisson(-1), {}),
    (ValueError, "finite and not negative, but is nan", lambda: rules.pairwise_poisson(math.nan), {}),
    (TypeError, "the mean of pairwise_poisson must be a number, but is 'x'", lambda: rules.pairwise_poisson("x"), {}),
    (ValueError, "Network: a to b: symmetric needs the same neurons as sources and targets", lambda: rules.symmetric(0.5), {}),
    (ValueError, r"Network: a to b: in-degrees must have shape \[4\], but have \[5\]", lambda: rules.fixed_in_degree([1] * 5), {}),
    (ValueError, "Network: a to b: a degree must be a whole number from 0 to .*, but is -1", lambda: rules.fixed_in_degree([1, 2, -1, 0]), {}),
    (ValueError, "Network: a to b: a degree must be a whole number from 0 to .*, but is 0.5", lambda: rules.fixed_in_degree([1, 2, 0.5, 0]), {}),
    (ValueError, "Network: a to b: the in-degree must be at most 5", lambda: rules.fixed_in_degree([1, 6, 1, 0], multapses=False), {}),
    (ValueError, r"Network: a to b: positions of targets must have shape \[4, 2\], but have \[5, 2\]", lambda: rules.distance(HALF, torch.ones(5, 2), torch.ones(5, 2)), {}),
    (ValueError, r"rules.distance: sources and targets must have shapes .* but have \[5, 2\] and \[4, 3\]", lambda: rules.distance(HALF, torch.ones(5, 2), torch.ones(4, 3)), {}),
    (ValueError, "rules.distance: period must be positive, a number or one for each dimension, but is 0", lambda: rules.distance(HALF, torch.ones(5, 2), torch.ones(4, 2), period=0), {}),
    (ValueError, "the kernel of distance must return probabilities from 0 to 1", lambda: rules.distance(lambda d: d + 2, torch.ones(5, 2), torch.ones(4, 2)), {}),
    (ValueError, r"of the shape of its argument, \[5, 4\], but returned tensor", lambda: rules.distance(lambda d: d[0], torch.ones(5, 2), torch.ones(4, 2)), {}),
    (TypeError, "the kernel's probabilities must be a number, or numbers", lambda: rules.distance(lambda d: None, torch.ones(5, 2), torch.ones(4, 2)), {}),
]  # fmt: skip


@pytest.mark.parametrize("error, words, rule, how", WRONG, ids=range(len(WRONG)))
def test_a_rule_that_cannot_be_drawn_is_refused(error, words, rule, how):
    made = spikeforge.Network(seed=1)
    a, b = made.populate("a", 5, EXACT, leak=0.5), made.populate("b", 4, EXACT, leak=0.5)
    refused(error, words, lambda: made.project(a, b, rule(), **how))
    assert made.state_dict()["network"]["projections"] == [] and len(made.build().indices) == 0
