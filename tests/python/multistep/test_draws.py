"""Random numbers in neurons: normal(), uniform(), bernoulli(p), poisson(rate), draw_once().

The oracle is Philox4x32-10 in NumPy, with the counter that docs/neuron_text.md states, and the distributions by their
definitions. A neuron that draws numbers has the bits of a neuron that receives them as inputs.
"""

import math
import os
import subprocess
import sys

import numpy
import pytest
import torch
from cases import all_equal
from loops import refused
from torch.library import opcheck

import spikeforge

ops = torch.ops.spikeforge
SEED, OFFSET = 0x0123456789ABCDEF, (3 << 32) + 5
# Pairs of a neuron that draws random numbers and the same neuron with these numbers as inputs.
NOISY = """neuron noisy(x; v, a; tau, p) {
  k = 1 / (tau + draw_once(uniform()))
  h = v + (x + 0.5 * normal() - v) * k
  s = spike(h - 1 - a * uniform(), atan(2))
  return s, h * bernoulli(p) + poisson(3 * p)
  v' = select(s, 0, h)
  a' = 0.9 * a + 0.1 * s * normal()
}"""
HANDED = """neuron handed(x, o, n1, u, b, c, n2; v, a; tau, p) {
  k = 1 / (tau + o)
  h = v + (x + 0.5 * n1 - v) * k
  s = spike(h - 1 - a * u, atan(2))
  return s, h * b + c
  v' = select(s, 0, h)
  a' = 0.9 * a + 0.1 * s * n2
}"""


def number(x, device="cpu"):
    return torch.tensor(x, dtype=torch.int64, device=device)


# --- the oracle -------------------------------------------------------------------------------------------------------


def philox(counter, key):
    """Applies Philox4x32-10 to a counter of four uint32 words, which are integers or uint64 arrays."""
    (a, b, c, d), low, high = counter, key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ low, second & 0xFFFFFFFF, first >> 32 ^ d ^ high, first & 0xFFFFFFFF
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def words(draw, steps, neurons, seed, offset, once, stream=0):
    """Returns the words of a draw, [T, N]."""
    step = numpy.full(steps, 2**48 - 1) if once else (numpy.arange(steps) + offset) % 2**48
    step = step.astype(numpy.uint64)[:, None]
    neuron = numpy.arange(neurons, dtype=numpy.uint64)[None, :]
    four = neuron // numpy.uint64(4)
    shift, low16 = numpy.uint64(32), numpy.uint64(0xFFFF)
    counter = [four & numpy.uint64(0xFFFFFFFF), (four >> shift & low16) | numpy.uint64(stream << 16),
               step & numpy.uint64(0xFFFFFFFF), (step >> shift & low16) | numpy.uint64(draw << 16)]
    counter = [numpy.broadcast_to(word, (steps, neurons)) for word in counter]
    lane = numpy.broadcast_to(neuron % numpy.uint64(4), (steps, neurons))
    return numpy.choose(lane.astype(numpy.int64), philox(counter, seed % 2**64))


def uniform(dtype, draw, *where):
    high = words(draw, *where)
    if dtype == torch.float64:
        bits = high << numpy.uint64(32) | words(draw, *where, stream=1)
        return torch.from_numpy((bits >> numpy.uint64(12)).astype(numpy.float64) + 0.5) / 2**52
    return torch.from_numpy(((high >> numpy.uint64(9)).astype(numpy.float64) + 0.5) / 2**23)


def normal(dtype, draw, *where):
    return torch.special.ndtri(uniform(dtype, draw, *where))


def bernoulli(dtype, draw, p, *where):
    if dtype == torch.float64:
        return (uniform(dtype, draw, *where) < p).double()
    p = float(torch.tensor(p, dtype=torch.float32))
    return torch.from_numpy((words(draw, *where).astype(numpy.float64) < p * 2**32).astype(numpy.float64))


def poisson(draw, rate, *where):
    """Inverts sums of probabilities, for small rates."""
    bits = words(draw, *where) << numpy.uint64(32) | words(draw + 1, *where)
    u = ((bits >> numpy.uint64(12)).astype(numpy.float64) + 0.5) / 2**52
    sums = numpy.cumsum([math.exp(-rate + k * math.log(rate) - math.lgamma(k + 1)) for k in range(100)])
    return torch.from_numpy(numpy.searchsorted(sums, u, side="left").astype(numpy.float64))


def run(text, x, params=(), seed=SEED, offset=None, states=(), **named):
    offset = {} if offset is None else {"offset": number(offset)}
    return ops.run(text, [x], list(states), list(params), seed=number(seed), **offset, **named)


def drawn(text, dtype=torch.float32, steps=7, neurons=1001, device="cpu", seed=SEED, offset=OFFSET):
    """Returns the outputs of a neuron text with one input."""
    x = torch.zeros(steps, neurons, dtype=dtype, device=device)
    return [y.cpu() for y in run(text, x, seed=seed, offset=offset)[0]]


# --- counters of draws ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed, offset", [(SEED, OFFSET), (-1, 0), (2**62, 0)])
def test_draws_are_philox_of_neuron_step_and_draw(device, dtype, seed, offset):
    steps, neurons = 7, 1001
    where = (steps, neurons, seed, offset, False)
    once = (steps, neurons, seed, offset, True)
    # Poisson uses two numbers, so that the last draw has number 6.
    text = "neuron n(x) { return uniform(), normal(), draw_once(uniform()), bernoulli(0.3), poisson(2.5), normal() }"
    u, n1, o, b, c, n2 = drawn(text, dtype, steps, neurons, device, seed, offset)
    assert torch.equal(u.double(), uniform(dtype, 0, *where))
    assert torch.equal(o.double(), uniform(dtype, 2, *once))
    assert torch.equal(b.double(), bernoulli(dtype, 3, 0.3, *where))
    assert torch.equal(c.double(), poisson(4, 2.5, *where))
    close = dict(rtol=1e-13, atol=1e-15) if dtype == torch.float64 else dict(rtol=4e-6, atol=1e-7)
    torch.testing.assert_close(n1.double(), normal(dtype, 1, *where), **close)
    torch.testing.assert_close(n2.double(), normal(dtype, 6, *where), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_drawing_neuron_equals_one_that_receives_the_random_numbers(device, dtype):
    torch.manual_seed(1)
    steps, neurons, p = 37, 130, 0.25
    x = torch.randn(steps, neurons, dtype=dtype, device=device) + 0.5
    tau = torch.rand(neurons, dtype=dtype, device=device) + 1.5
    numbers = run("neuron n(x) { return draw_once(uniform()), normal(), uniform(), bernoulli(0.25), poisson(0.75), "
                  "normal() }", x)[0]
    results = []
    for text, inputs, seed in [(NOISY, [x], {"seed": number(SEED)}), (HANDED, [x, *numbers], {})]:
        arguments = [t.clone().requires_grad_() for t in (inputs[0], tau, torch.tensor(p, dtype=dtype, device=device))]
        y, states = ops.run(text, [arguments[0], *inputs[1:]], [], arguments[1:], **seed)
        loss = sum((t * torch.linspace(-1, 1, t.numel(), dtype=dtype, device=device).view_as(t)).sum()
                   for t in (*y, *states))
        results.append([*y, *states, *torch.autograd.grad(loss, arguments[:2])])
    assert results[0][0].mean() > 0.05
    assert all_equal(results[0][:-2], results[1][:-2])
    # A number that is drawn once is computed once, so that derivatives are multiplied in a different order.
    for drew, given in zip(results[0][-2:], results[1][-2:]):
        assert (drew - given).abs().max() <= (1e-5 if dtype == torch.float32 else 1e-13) * given.abs().max()


# --- any backend and schedule -----------------------------------------------------------------------------------------


def test_pieces_and_steps_are_the_whole_sequence(device):
    x = torch.randn(23, 5, 40, device=device)
    params = torch.tensor([2.0, 0.3], device=device).unbind()
    whole, last = run(NOISY, x, params, offset=11)
    for cuts in [(0, 9, 23), tuple(range(24))]:
        states, parts = [], []
        for begin, end in zip(cuts, cuts[1:]):
            y, states = run(NOISY, x[begin:end], params, offset=11 + begin, states=states)
            parts.append(y)
        assert all_equal(list(map(torch.cat, zip(*parts))), whole) and all_equal(states, last)


def test_layouts_and_threads_draw_the_same(device):
    x = torch.randn(6, 3, 4, 5, 7, device=device)
    params = torch.tensor([2.0, 0.3], device=device).unbind()
    expected = run(NOISY, x, params)
    threads = torch.get_num_threads()
    orders = [(0, 1, 2, 3, 4), (0, 1, 3, 4, 2), (0, 4, 1, 2, 3), (0, 2, 3, 4, 1), (0, 4, 3, 2, 1), (0, 3, 1, 2, 4)]
    for order in orders:
        back = [order.index(d) for d in range(5)]
        given = x.permute(order).contiguous().permute(back).requires_grad_()
        assert torch.equal(given, x)
        for count in {1, threads}:
            torch.set_num_threads(count)
            results = run(NOISY, given, params)
            torch.set_num_threads(threads)
            assert all_equal(results[0] + results[1], expected[0] + expected[1]), order


_BITS = """
import sys, torch
sys.path[:0] = [{here!r}, {helpers!r}]
import conftest
torch.ops.load_library(str(conftest.library_path()))
import test_draws as t
torch.manual_seed(0)
x = torch.randn(5, 333)
y, v = t.run(t.NOISY, x, [torch.tensor(2.0), torch.rand(333)])
print(hash(tuple(b for r in (*y, *v) for b in r.flatten().view(torch.int32).tolist())))
"""


def test_every_instruction_set_and_compiled_tapes_draw_the_same(tmp_path):
    here = os.path.dirname(os.path.abspath(__file__))
    command = [sys.executable, "-c", _BITS.format(here=here, helpers=os.path.dirname(here))]

    def bits(**environment):
        environment = {**os.environ, "SPIKEFORGE_CACHE_DIR": str(tmp_path), "PYTHONHASHSEED": "0", **environment}
        done = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
        assert "warning" not in done.stderr
        return done.stdout

    widest = bits()
    assert bits(SPIKEFORGE_CPU_CAPABILITY="default") == widest
    assert bits(SPIKEFORGE_HOST_COMPILER="c++") == widest


def test_lengths_leave_the_draws_of_the_others(device):
    x = torch.randn(9, 4, 8, device=device)
    lengths = torch.tensor([9, 0, 4, 7], dtype=torch.int32, device=device)
    params = torch.tensor([2.0, 0.3], device=device).unbind()
    whole = run(NOISY, x, params)[0]
    for y, wanted in zip(run(NOISY, x, params, lengths=lengths)[0], whole):
        behind = torch.arange(9, device=device)[:, None] >= lengths
        assert torch.equal(y, wanted.masked_fill(behind[..., None], 0))


# --- gradients --------------------------------------------------------------------------------------------------------

SMOOTH = """neuron smooth(x; v; tau, sigma) {
  h = v + (tanh(x) + sigma * normal() - v) / (tau + draw_once(uniform()))
  return h * uniform() + sigma * poisson(2) * x
  v' = h * bernoulli(0.7)
}"""


def test_gradients_flow_through_factors_of_draws():
    def f(x, v, tau, sigma):
        y, states = run(SMOOTH, x, [tau, sigma], states=[v], seed=5)
        return y[0], states[0]

    torch.manual_seed(3)
    arguments = [torch.randn(11, 3).double(), torch.randn(3).double(), torch.rand(3).double() + 1, torch.rand(()).double()]
    arguments = [t.requires_grad_() for t in arguments]
    assert torch.autograd.gradcheck(f, arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, arguments)


def test_probabilities_and_rates_get_no_gradient():
    p = torch.full((3,), 0.5, requires_grad=True)
    y = run("neuron n(x;; p) { return x * bernoulli(p) + poisson(p) }", torch.ones(4, 3), [p])[0][0]
    assert torch.autograd.grad(y.sum(), p)[0].abs().sum() == 0


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_without_a_seed_torch_gives_one(device):
    x = torch.zeros(3, 50, device=device)
    text = "neuron n(x) { return normal() }"

    def draw():
        return ops.run(text, [x], [], [])[0][0]

    torch.manual_seed(7)
    first, second = draw(), draw()
    torch.manual_seed(7)
    assert torch.equal(draw(), first) and not torch.equal(first, second)
    state = torch.get_rng_state()
    ops.run("neuron n(x) { return x }", [x], [], [])
    assert torch.equal(torch.get_rng_state(), state)


def test_the_operator_keeps_torchs_contract(device):
    x = torch.randn(5, 6, device=device)
    tau, p = torch.tensor(2.0, device=device), torch.tensor(0.4, device=device)
    for given in (x, x.clone().requires_grad_()):
        opcheck(ops.run.default, (NOISY, [given], [], [tau, p]), {"seed": number(3), "offset": number(4, device)})


def test_compiled_and_exported_models_draw_in_each_call(device):
    x, text = torch.randn(6, 10, device=device), "neuron n(x; v) { h = 0.5 * v + x + normal(); return h\n v' = h }"

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x, seed=None):
        return ops.run(text, [x], [], [], seed=seed)[0][0]

    given = x.clone().requires_grad_()
    y = compiled(given, number(1, device))
    assert torch.equal(y, run(text, x, seed=1)[0][0])
    (grad,) = torch.autograd.grad(y.sum(), given)
    assert torch.equal(grad, (2 - 0.5 ** torch.arange(5, -1, -1.0, device=device))[:, None].expand(6, 10))
    torch.manual_seed(0)
    assert not torch.equal(compiled(x), compiled(x))

    class Model(torch.nn.Module):
        def forward(self, x, seed, offset):
            return ops.run(text, [x], [], [], seed=seed, offset=offset)[0][0]

    program = torch.export.export(Model(), (x, number(1), number(0))).module()
    for seed, offset in [(1, 0), (2, 0), (1, 9)]:
        assert torch.equal(program(x, number(seed), number(offset)), run(text, x, seed=seed, offset=offset)[0][0])


def test_a_captured_graph_reads_the_seed_at_each_replay(cuda):
    x, seed, offset = torch.randn(6, 1000, device=cuda), number(1, cuda), number(0, cuda)
    params = [torch.tensor(2.0), torch.tensor(0.3)]
    ops.run(NOISY, [x], [], params, seed=seed, offset=offset)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.run(NOISY, [x], [], params, seed=seed, offset=offset)[0]
        z = ops.run(NOISY, [x], [], params)[0]
    graph.replay()
    before = z[0].clone()
    for s, o in [(1, 0), (2, 0), (1, 6)]:
        seed.fill_(s), offset.fill_(o)
        graph.replay()
        assert all(map(torch.equal, y, run(NOISY, x, params, seed=s, offset=o)[0]))
        assert not torch.equal(z[1], before)


def test_vmap_draws_for_each_map():
    x = torch.randn(4, 6, 5)
    text = "neuron n(x; v) { h = v + x + normal(); return h\n v' = 0.5 * h }"

    def f(x):
        return ops.run(text, [x], [], [])[0][0]

    y = torch.vmap(f, in_dims=1, out_dims=1, randomness="different")(x)
    assert not torch.equal(y[:, 0] - x[:, 0], y[:, 1] - x[:, 1])
    mapped = torch.vmap(lambda x: run(text, x)[0][0], in_dims=1)(x)
    assert torch.equal(mapped.transpose(0, 1), run(text, x)[0][0])
    refused(RuntimeError, "random operation while in randomness error mode", lambda: torch.vmap(f, in_dims=1)(x))
    with pytest.raises(NotImplementedError, match=r'run\(n\): torch.vmap with randomness="same" is not supported'):
        torch.vmap(f, in_dims=1, randomness="same")(x)
    with pytest.raises(NotImplementedError, match="torch.vmap over seeds"):
        torch.vmap(lambda s: ops.run(text, [x], [], [], seed=s)[0][0])(torch.arange(3))


# --- errors -----------------------------------------------------------------------------------------------------------


def test_wrong_draws_are_refused():
    x, plain, noisy = torch.zeros(2, 3), "neuron n(x) { return x }", "neuron n(x) { return normal() }"
    for text, named, error, words in [
        (plain, dict(seed=number(1)), ValueError, "seed is given, but the neuron draws no random numbers"),
        (plain, dict(offset=number(1)), ValueError, "offset is given, but the neuron draws no random numbers"),
        (noisy, dict(seed=torch.tensor(1.0)), TypeError, "seed must be int64, but is Float"),
        (noisy, dict(seed=number([1])), ValueError, r"seed must be a 0-dimensional tensor, but has shape \[1\]"),
        (noisy, dict(seed=number(1), offset=number([1])), ValueError, "offset must be a 0-dimensional tensor"),
        (noisy, dict(scan=True), ValueError, "scan=True: the neuron draws random numbers"),
        ("neuron n(x) { return bernoulli(1.5) }", {}, ValueError, r"the probability must be in \[0, 1\], but is 1.5"),
        ("neuron n(x) { return poisson(-1) }", {}, ValueError, "the rate must be finite and not negative, but is -1"),
        ("neuron n(x) { return poisson(inf) }", {}, ValueError, "the rate must be finite and not negative, but is inf"),
        ("neuron n(x) { return normal(0, 1) }", {}, ValueError, "write mean"),
        ("neuron n(x) { return draw_once(x) }", {}, ValueError, "draw_once takes a draw itself"),
        ("neuron n(x) { return draw(normal(), 0.5) }", {}, ValueError, "the number of a draw is a whole one below 8192"),
        ("neuron n(x) { return poisson(1) + draw(normal(), 1) }", {}, ValueError, "another draw has number 1"),
    ]:
        refused(error, words, lambda: ops.run(text, [x], [], [], **named))
    refused(ValueError, "needs a seed", lambda: ops.run_forward(noisy, [x], store_states=False, save=False))
    with pytest.raises(NotImplementedError, match="draws random numbers, which only run"):
        ops.recurrent_run(noisy, [x], torch.zeros(3, 3), [], [])


def test_tensors_that_are_no_probability_or_rate_give_nan():
    p = torch.tensor([-0.1, 0.0, 1.0, 1.1, float("nan"), float("inf")])
    for law, legal in (("bernoulli", [False, True, True, False, False, False]),
                       ("poisson", [False, True, True, True, False, False])):
        for dtype in (torch.float32, torch.float64):
            y = run(f"neuron n(x;; p) {{ return {law}(p) }}", torch.zeros(2, 6, dtype=dtype), [p.to(dtype)])[0][0]
            assert (~y.isnan()).tolist() == [legal] * 2


# --- Python functions -------------------------------------------------------------------------------------------------


def test_python_functions_draw():
    @spikeforge.neuron(states={"v": 0.0})
    def noisy(x, v, *, tau=2.0, keep=0.8):
        mask = spikeforge.trace.draw_once(spikeforge.trace.bernoulli(keep))
        h = v + (x * mask + spikeforge.trace.normal() + torch.randn_like(x) - v) / tau
        return h + spikeforge.trace.uniform() * spikeforge.trace.poisson(2.0), {"v": h}

    assert noisy.draws
    assert noisy.text.count("normal()") == 2 and "draw_once(bernoulli(keep))" in noisy.text
    x = torch.randn(5, 30)
    y, states = noisy(x, seed=3, offset=2)
    expected = run(noisy.text, x, [torch.tensor(2.0), torch.tensor(0.8)], seed=3, offset=2)
    assert torch.equal(y, expected[0][0]) and torch.equal(states["v"], expected[1][0])
    with pytest.raises(TypeError, match="draw_once: x must be a draw"):
        spikeforge.neuron(lambda x: spikeforge.trace.draw_once(x), name="n")
    refused(TypeError, "normal: draws only in the function of a traced neuron", spikeforge.trace.normal)
