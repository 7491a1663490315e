"""Products of random matrices that are drawn in every call, and of events with dense weights."""

import numpy as np
import pytest
import torch
from events import TYPES, assert_close, both_orders, contribution, ops, random_entries
from loops import refused, with_threads

laws = pytest.mark.parametrize("law", ["constant", "uniform", "normal"])
WEIGHTS = {"constant": [0.7], "uniform": [-0.5, 1.5], "normal": [0.25, 2.0]}
M64 = 2**64 - 1


def mixed(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M64
    return x ^ x >> 31


def surprise(u):
    """Returns -log2((u + 1) / 2^32) in double precision, which the library approximates in float."""
    return 32 - np.log2(u + 1.0) if u < 2**31 else -np.log1p(-(2**32 - 1 - u) / 2**32) / np.log(2)


def connections(rows, cols, prob, seed):
    """Returns (row, column, uniform number) of every connection, as defined in csrc/kernels/event/random_rows.h.

    Returns None if a rounding error in float may change the result.
    """
    golden = 0x9E3779B97F4A7C15
    width = 1 << int(np.ceil(np.log2(min(2**20, np.ceil(32 / prob)))))
    a_bit = -1 / np.log2(1 - prob) if prob < 1 else 0.0
    for row in range(rows):
        of_row = mixed((mixed(seed & M64) + golden * (row + 1)) & M64)
        for piece in range(-(-cols // width)):
            key = mixed((of_row + golden * (piece + 1)) & M64)
            state, column, end = key, piece * width, min(cols, (piece + 1) * width)
            while True:
                x, turn = ((state >> 18 ^ state) >> 27) & 0xFFFFFFFF, state >> 59
                state = (state * 6364136223846793005 + 1442695040888963407) & M64
                gap = surprise((x >> turn | x << (32 - turn & 31)) & 0xFFFFFFFF) * a_bit
                if round(gap) > 0 and abs(gap - round(gap)) < 3e-7 * gap:
                    yield None
                if gap >= end - column:
                    break
                column += int(gap)
                hashed = mixed(key ^ (golden * (column + 1) & M64))
                yield row, column, ((hashed >> 41) + 0.5) / 2**23
                column += 1


def dense(weights, law, rows, cols, prob, seed):
    """Returns the matrix from its products with the unit vectors of the shorter side."""
    where = dict(rows=rows, cols=cols, prob=prob, seed=seed, law=law)
    if cols <= rows:
        return ops.jit_csrmm(weights, torch.eye(cols, dtype=torch.bool, device=weights.device), **where).cpu()
    eye = torch.eye(rows, dtype=torch.bool, device=weights.device)
    return ops.jit_csrmm(weights, eye, **where, transpose=True).cpu().T


def numbers(law, dtype=torch.float64, device="cpu"):
    return torch.tensor(WEIGHTS[law], dtype=dtype, device=device)


@laws
def test_connections_are_those_of_the_description(law):
    from statistics import NormalDist

    for rows, cols, prob, seed in ((40, 300, 0.05, 7), (30, 5000, 0.01, -3), (50, 40, 0.5, 2**62), (3, 70, 1.0, 0)):
        drawn = list(connections(rows, cols, prob, seed))
        if None in drawn:
            pytest.fail(f"choose another seed than {seed}: a float may round either way")
        a, b = (WEIGHTS[law] + [0.0])[:2]
        expected = torch.zeros(rows, cols, dtype=torch.float64)
        for row, column, u in drawn:
            expected[row, column] = {"constant": a, "uniform": a + (b - a) * u, "normal": a + b * NormalDist().inv_cdf(u)}[law]
        actual = dense(numbers(law), law, rows, cols, prob, seed)
        assert torch.equal(actual != 0, expected != 0)
        torch.testing.assert_close(actual, expected, rtol=0, atol=5e-6)


def test_connections_are_independent_and_as_probable_as_asked():
    """Tests within five standard deviations: the total count, counts per column, and counts of neighbouring pairs."""
    rows, cols, prob = 3000, 1000, 0.03
    a = dense(torch.ones(1), "constant", rows, cols, prob, 11)
    deviation = lambda n, p: 5 * (n * p * (1 - p)) ** 0.5
    assert abs(float(a.sum()) - rows * cols * prob) < deviation(rows * cols, prob)
    assert float((a.sum(0) - rows * prob).abs().max()) < 1.2 * deviation(rows, prob)
    assert float((a.sum(1) - cols * prob).abs().max()) < 1.2 * deviation(cols, prob)
    for shift in (1, 2, 32):
        together = float((a[:, shift:] * a[:, :-shift]).sum())
        assert abs(together - rows * (cols - shift) * prob**2) < deviation(rows * (cols - shift), prob**2)
        down = float((a[shift:] * a[:-shift]).sum())
        assert abs(down - (rows - shift) * cols * prob**2) < deviation((rows - shift) * cols, prob**2)
    other = dense(torch.ones(1), "constant", rows, cols, prob, 12)
    assert abs(float((a * other).sum()) - rows * cols * prob**2) < deviation(rows * cols, prob**2)


def test_weights_follow_their_law():
    rows, cols, prob = 500, 2000, 0.1
    for law in ("uniform", "normal"):
        a = dense(numbers(law), law, rows, cols, prob, 5)
        w = a[a != 0]
        low, high = WEIGHTS[law]
        mean, deviation = (low, high) if law == "normal" else ((low + high) / 2, (high - low) / 12**0.5)
        assert abs(float(w.mean()) - mean) < 5 * deviation / len(w) ** 0.5
        assert abs(float(w.std()) / deviation - 1) < 0.02
        quantiles = ((w - mean) / deviation).quantile(torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99], dtype=torch.float64))
        expected = [-2.326, -1.282, 0, 1.282, 2.326] if law == "normal" else [-1.697, -1.386, 0, 1.386, 1.697]
        assert (quantiles - torch.tensor(expected, dtype=torch.float64)).abs().max() < 0.06
        assert torch.equal(w != 0, torch.ones_like(w, dtype=torch.bool))
        pattern = dense(torch.ones(1), "constant", rows, cols, prob, 5)
        assert torch.equal(a != 0, pattern != 0), "the connections depend on the law"


def test_rare_connections_are_as_rare_as_asked():
    """On average a piece of 2^20 columns has 0.1 connections, and 10^6 rows of few columns have fewer."""
    y = ops.jit_csrmv(torch.ones(1), torch.ones(1, dtype=torch.bool), rows=10**7, cols=1, prob=1e-5, seed=3)
    assert 50 < float(y.sum()) < 150
    y = ops.jit_csrmv(torch.ones(1), torch.ones(2**20, dtype=torch.bool), rows=2000, cols=2**20, prob=1e-7, seed=4)
    assert 140 < float(y.sum()) < 280  # 210 expected
    assert ops.jit_csrmv(torch.ones(1), torch.ones(9), rows=5, cols=9, prob=0.0, seed=4).eq(0).all()


@laws
@both_orders
def test_products_are_those_of_the_matrix(transpose, law, device):
    for rows, cols, prob in ((70, 90, 0.2), (1, 400, 0.1), (400, 1, 0.1), (33, 5000, 0.01), (9, 9, 1.0)):
        where = dict(rows=rows, cols=cols, prob=prob, seed=21, law=law)
        matrices = {dtype: dense(numbers(law, dtype).double(), law, rows, cols, prob, 21) for dtype in TYPES}
        matrices = {dtype: a.T if transpose else a for dtype, a in matrices.items()}
        size = rows if transpose else cols
        for values in ("event", "graded", "number"):
            for shape in ((size,), (3, size), (0, size)):
                x = random_entries(shape, torch.float64, 0.3)
                x = x.nan_to_num() if values == "number" else x
                for dtype, a in matrices.items():
                    y = ops.jit_csrmv(numbers(law, dtype, device), x.to(device), **where, values=values, transpose=transpose)
                    assert y.dtype == dtype
                    assert_close(y, (a @ contribution(x, values).unsqueeze(-1)).squeeze(-1), dtype)
            for shape in ((size, 1), (size, 5), (2, size, 3)):
                x = random_entries(shape, torch.float64, 0.3).nan_to_num()
                for deterministic in (False, True):
                    y = ops.jit_csrmm(numbers(law, device=device), x.to(device), **where, values=values, transpose=transpose, deterministic=deterministic)
                    assert_close(y, matrices[torch.float64] @ contribution(x, values))


@both_orders
def test_weights_of_entries_without_an_event_have_no_influence(transpose, device):
    nan = torch.tensor([torch.nan], device=device)
    y = ops.jit_csrmv(nan, torch.zeros(50, device=device), rows=50, cols=50, prob=0.2, seed=1, transpose=transpose)
    assert y.eq(0).all()


@laws
def test_a_gpu_draws_the_matrix_that_a_cpu_draws(law, cuda):
    """Connections and weights have the same bits."""
    for rows, cols, prob in ((400, 3000, 0.01), (3000, 400, 0.5), (20, 70, 1.0)):
        for dtype in (torch.float32, torch.float64):
            drawn = [dense(numbers(law, dtype, device), law, rows, cols, prob, 17) for device in ("cpu", cuda)]
            assert torch.equal(*drawn)


def test_a_matrix_is_the_same_in_any_number_of_threads():
    x = torch.rand(1500) < 0.5
    for law in ("constant", "normal"):
        draw = lambda: ops.jit_csrmv(numbers(law), x, rows=2000, cols=1500, prob=0.05, seed=9, law=law)
        results = with_threads((1, 2, 5), draw)
        assert all(torch.equal(results[0], r) for r in results)


@laws
@both_orders
def test_gradcheck(transpose, law, device):
    where = dict(rows=8, cols=11, prob=0.3, seed=2, law=law, transpose=transpose)
    weights = numbers(law, device=device).requires_grad_()
    x = torch.randn(2, 8 if transpose else 11, dtype=torch.float64, device=device, requires_grad=True)
    plain = lambda w, x: ops.jit_csrmv(w, x, **where, values="number")
    assert torch.autograd.gradcheck(plain, (weights, x)) and torch.autograd.gradgradcheck(plain, (weights, x))
    assert torch.autograd.gradcheck(lambda w: ops.jit_csrmv(w, x.detach(), **where), (weights,))
    y = ops.jit_csrmv(weights, x, **where)
    straight, plainly = (torch.autograd.grad(r.sum(), x)[0] for r in (y, plain(weights, x)))
    assert torch.equal(straight, plainly)


@both_orders
def test_the_operator_keeps_pytorchs_contract(transpose, device):
    where = dict(rows=8, cols=11, prob=0.3, seed=2, law="uniform", transpose=transpose)
    size = 8 if transpose else 11
    weights = numbers("uniform", device=device)
    for gradients in (False, True):
        w = weights.clone().requires_grad_(gradients)
        torch.library.opcheck(ops.jit_csrmv.default, (w, torch.randn(size, dtype=torch.float64, device=device, requires_grad=gradients)), where)
        torch.library.opcheck(ops.jit_csrmm.default, (w, torch.randn(size, 3, dtype=torch.float64, device=device, requires_grad=gradients)), where)
    x = torch.rand(4, size, device=device) - 0.5
    call = lambda w, x: ops.jit_csrmv(w, x, **where)
    torch.testing.assert_close(torch.vmap(call, (None, 0))(weights, x), call(weights, x))
    several = torch.rand(4, 2, device=device)
    torch.testing.assert_close(torch.vmap(call)(several, x), torch.stack([call(w, e) for w, e in zip(several, x)]))


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_wrong_arguments_of_a_drawn_matrix_raise(place):
    good = dict(rows=5, cols=7, prob=0.5, seed=0)
    w, x = torch.ones(1, device=place), torch.ones(7, device=place)

    def refused(error, words, *tensors, **changes):
        with pytest.raises(error, match=words):
            ops.jit_csrmv(*(tensors or (w, x)), **dict(good, **changes))

    refused(ValueError, "jit_csrmv: prob must be from 0 to 1, but is 1.5", prob=1.5)
    refused(ValueError, "jit_csrmv: prob must be from 0 to 1, but is nan", prob=float("nan"))
    refused(ValueError, r"jit_csrmv: rows must be from 0 to 2\^31, but is -5", rows=-5)
    refused(ValueError, r"jit_csrmv: cols must be from 0 to 2\^31, but is -7", cols=-7)
    refused(ValueError, 'jit_csrmv: law must be "constant", "uniform" or "normal", but is "gamma"', law="gamma")
    refused(ValueError, 'jit_csrmv: values must be "event", "graded" or "number", but is "spike"', values="spike")
    refused(ValueError, r'jit_csrmv: weights must have shape \[2\] under the law "normal", but has \[1\]', law="normal")
    refused(TypeError, "jit_csrmv: weights must be a dense float16, bfloat16, float32 or float64 tensor", w.int(), x)
    refused(ValueError, r"jit_csrmv: events must have shape \[..., cols\] with cols = 7, but has \[5\]", w, x[:5])
    refused(TypeError, "jit_csrmv: events must be a dense bool, float16", w, x.long())
    refused(TypeError, "jit_csrmv: events must be a dense float16", w, x.bool(), values="number")


# --- dense weights ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_event_linear(dtype, device):
    for batch, inputs, outputs in (((), 70, 9), ((3,), 1, 1), ((2, 4), 3000, 17), ((5,), 33, 1100), ((0,), 4, 4), ((2,), 0, 3), ((2,), 5, 0)):
        weight = torch.randn(inputs, outputs, dtype=torch.float64).to(dtype)
        bias = torch.randn(outputs, dtype=torch.float64).to(dtype)
        for entries in (torch.bool, torch.float32, dtype):
            x = random_entries((*batch, inputs), entries, 0.2)
            for graded in (False, True):
                expected = contribution(x, "graded" if graded else "event") @ weight.double()
                y = ops.event_linear(x.to(device), weight.to(device), graded=graded)
                assert y.dtype == dtype
                assert_close(y, expected)
                assert_close(ops.event_linear(x.to(device), weight.to(device), bias.to(device), graded=graded), expected + bias.double())
            packed = ops.pack_events(x.to(device))
            y = ops.event_linear(x.to(device), weight.to(device), bias.to(device))
            assert torch.equal(ops.event_linear(packed, weight.to(device), bias.to(device)), y)


def test_event_linear_reads_the_rows_of_active_inputs_alone(device):
    x = torch.tensor([1.0, torch.nan, -1.0, 0.0, 2.0], device=device)
    weight = torch.full((5, 3), torch.nan, device=device)
    weight[0], weight[4] = 1.0, 10.0
    assert ops.event_linear(x, weight).tolist() == [11.0] * 3
    assert ops.event_linear(x, weight, graded=True).tolist() == [21.0] * 3
    assert ops.event_linear(ops.pack_events(x), weight).tolist() == [11.0] * 3
    bits_beyond = torch.tensor([-1], dtype=torch.int32, device=device)
    assert ops.event_linear(bits_beyond, torch.ones(5, 2, device=device)).tolist() == [5.0] * 2


def test_event_linear_sums_half_types_in_float32_and_rounds_once(device):
    x = torch.ones(4097, dtype=torch.bool, device=device)
    y = ops.event_linear(x, torch.ones(4097, 1, dtype=torch.float16, device=device))
    assert y.item() == torch.tensor(4097.0).half().item()


def test_gradients_of_event_linear(device):
    for graded in (False, True):
        x = random_entries((2, 3, 6), torch.float64, 0.5).nan_to_num().to(device).requires_grad_()
        weight = torch.randn(6, 4, dtype=torch.float64, device=device, requires_grad=True)
        bias = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)
        call = lambda w, b: ops.event_linear(x.detach(), w, b, graded=graded)
        assert torch.autograd.gradcheck(call, (weight, bias)) and torch.autograd.gradcheck(lambda w: ops.event_linear(ops.pack_events(x), w), (weight,))
        y = ops.event_linear(x, weight, bias, graded=graded)
        g = torch.randn_like(y)
        (grad_x,) = torch.autograd.grad(y, x, g, create_graph=True)
        torch.testing.assert_close(grad_x, g @ weight.T)
        torch.testing.assert_close(torch.autograd.grad(grad_x.sum(), weight)[0], g.sum((0, 1)).expand(6, 4))
        (grad_weight,) = torch.autograd.grad(ops.event_linear(x, weight, graded=graded).sum(), weight, create_graph=True)
        if grad_weight.requires_grad:
            refused(RuntimeError, "not implemented", grad_weight.sum().backward)
        for dtype in (torch.float16, torch.bfloat16):
            w = weight.detach().to(dtype).requires_grad_()
            ops.event_linear(x, w, graded=graded).sum().backward()
            assert w.grad.dtype == dtype
            assert_close(w.grad, contribution(x, "graded" if graded else "event").sum((0, 1)).unsqueeze(1).expand(6, 4), dtype)


def test_event_linear_keeps_pytorchs_contract(device):
    weight, bias = torch.randn(6, 4, device=device), torch.randn(4, device=device)
    x = torch.rand(3, 6, device=device) - 0.5
    for gradients in (False, True):
        tensors = [t.clone().requires_grad_(gradients) for t in (x, weight, bias)]
        torch.library.opcheck(ops.event_linear.default, tensors)
        torch.library.opcheck(ops.event_linear.default, (ops.pack_events(x), *tensors[1:]))
    torch.library.opcheck(ops.event_linear_weight_grad.default, (x, torch.randn(3, 4, device=device), 6, True))
    call = lambda x, w: ops.event_linear(x, w, bias)
    torch.testing.assert_close(torch.vmap(call, (0, None))(x, weight), call(x, weight))
    several = torch.randn(3, 6, 4, device=device)
    torch.testing.assert_close(torch.vmap(call)(x, several), torch.stack([call(a, w) for a, w in zip(x, several)]))


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_wrong_arguments_of_event_linear_raise(place):
    x, w, b = torch.ones(6, device=place), torch.ones(6, 4, device=place), torch.ones(4, device=place)
    for error, words, arguments in (
        (TypeError, "events must be a dense bool", (x.long(), w)),
        (TypeError, "weight must be a dense float16", (x, w.int())),
        (ValueError, r"weight must have shape \[in, out\], but has \[4\]", (x, b)),
        (ValueError, r"events must have shape \[..., in\] with in = 6, the rows of weight, but has \[4\]", (b, w)),
        (ValueError, r"events must have shape \[..., in\]", (x[0], w)),
        (ValueError, r"events, as bits, must have shape \[..., ceil\(in / 32\)\] with in = 6", (x.int(), w)),
        (TypeError, "bias must be Float, as weight, but is Double", (x, w, b.double())),
        (ValueError, r"bias must have shape \[out\] = \[4\], but has \[6\]", (x, w, x)),
    ):
        refused(error, f"event_linear: {words}", lambda: ops.event_linear(*arguments))
    refused(ValueError, "event_linear: bits have no value", lambda: ops.event_linear(x[:1].int(), w, graded=True))
