"""recurrent_run: neurons whose outputs are fed back through a matrix.

The oracle is a loop over time in plain torch, in float64."""

import pytest
import torch
from torch.library import opcheck

from loops import fire, refused, with_threads

ops = torch.ops.spikeforge


def leaky_step(inputs, states, params):
    (x,), (v,), (tau,) = inputs, states, params
    h = v + (x - v) / tau
    s = fire(h - 1, "piecewise_quadratic")
    return [s], [(1 - s) * h]


def smooth_step(inputs, states, params):
    (x,), (v,), (tau,) = inputs, states, params
    h = v + (x - v) / tau
    s = torch.sigmoid(4 * (h - 1))
    return [s], [(1 - s) * h]


def two_step(inputs, states, params):
    (x, y), (v, a), (k,) = inputs, states, params
    h = 0.5 * v + x - a
    s = torch.sigmoid(h - 1 + k * y)
    return [s, h * y], [(1 - s) * h, 0.9 * a + y * s]


def filter_step(inputs, states, params):
    (x,) = inputs
    return [torch.tanh(x)], []


LEAKY = (
    "neuron leaky(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, piecewise_quadratic(1)); return s; v' = select(s, 0, h) }",
    leaky_step,
)
SMOOTH = ("neuron smooth(x; v; tau) { h = v + (x - v) / tau; s = sigmoid(4 * (h - 1)); return s; v' = (1 - s) * h }", smooth_step)
TWO = (
    "neuron two(x, y; v, a; k) { h = 0.5 * v + x - a; s = sigmoid(h - 1 + k * y); return s, h * y; v' = (1 - s) * h; a' = 0.9 * a + y * s }",
    two_step,
)
STATELESS = ("neuron squashed(x) { return tanh(x) }", filter_step)
COUNTS = {LEAKY: (1, 1, 1), SMOOTH: (1, 1, 1), TWO: (2, 2, 1), STATELESS: (1, 0, 0)}


def loop(cell, inputs, w, states, params, spikes=None, *, into=0, delay=1, store_states=False):
    inputs, history = list(inputs), []
    states = list(states) or [inputs[0].new_zeros(inputs[0].shape[1:]) for _ in range(COUNTS[cell][1])]
    outputs, stored = [], []
    for t in range(inputs[0].shape[0]):
        step = [x[t] for x in inputs]
        heard = history[t - delay] if t >= delay else None if spikes is None else spikes[t]
        if heard is not None:
            step[into] = step[into] + heard @ w
        found, states = cell[1](step, states, params)
        history.append(found[0])
        outputs.append(found)
        stored.append(states)
    if not outputs:
        return [inputs[0] * 1], states
    outputs = [torch.stack(column) for column in zip(*outputs)]
    return outputs, [torch.stack(column) for column in zip(*stored)] if store_states else list(states)


def make(cell, steps=19, batch=(7,), width=11, *, delay=1, spikes=True, states=True, dtype=torch.float64, device="cpu", scale=0.5):
    n_inputs, n_states, n_params = COUNTS[cell]
    generator = torch.Generator().manual_seed(steps * 1000 + width)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype).requires_grad_()  # noqa: E731
    call = dict(
        inputs=[(draw(steps, *batch, width) * 1.5).detach().requires_grad_() for _ in range(n_inputs)],
        w=(draw(width, width) * scale).detach().requires_grad_(),
        states=[draw(*batch, width) for _ in range(n_states if states else 0)],
        params=[(draw(width).abs() + 1.3).detach().requires_grad_() for _ in range(n_params)],
    )
    if spikes:
        call["spikes"] = (draw(delay, *batch, width) > 0).to(dtype).detach().requires_grad_()
    return call


def copied(call, *to):
    copy = lambda t: t.detach().to(*to).requires_grad_()  # noqa: E731
    return {k: [copy(t) for t in v] if isinstance(v, list) else copy(v) for k, v in call.items()}


def tensors(call):
    return [t for v in call.values() for t in (v if isinstance(v, list) else [v])]


def gradients(results, call, seed=3):
    """Returns the gradients of all results, with a different upstream gradient for each."""
    outputs, states = results
    generator = torch.Generator().manual_seed(seed)
    total = 0
    for t in (*outputs, *states):
        total = total + (t * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)).sum()
    return torch.autograd.grad(total, tensors(call), materialize_grads=True)


def largest(t):
    return t.abs().max().item() if t.numel() else 0.0


def assert_like_the_loop(cell, call, bound, **options):
    results = ops.recurrent_run(cell[0], **call, **options)
    reference = copied(call, torch.float64)
    expected = loop(cell, **reference, **options)
    for found, value in zip((*results[0], *results[1]), (*expected[0], *expected[1])):
        assert found.shape == value.shape
        torch.testing.assert_close(found.double(), value, rtol=bound, atol=bound * max(1, largest(value)))
    for argument, found, value in zip(tensors(call), gradients(results, call), gradients(expected, reference)):
        assert found.shape == argument.shape and found.dtype == argument.dtype
        torch.testing.assert_close(found.double(), value, rtol=0, atol=bound * largest(value))


@pytest.mark.parametrize("options", [{}, {"delay": 3, "store_states": True}], ids=["", "delayed"])
@pytest.mark.parametrize("cell", [LEAKY, SMOOTH, TWO, STATELESS], ids=["leaky", "smooth", "two", "stateless"])
def test_results_and_gradients_are_those_of_a_loop(cell, options, device):
    call = make(cell, delay=options.get("delay", 1), device=device)
    assert_like_the_loop(cell, call, 1e-10, into=1 if cell is TWO else 0, **options)


@pytest.mark.parametrize("shape", [(40, (13,), 70), (9, (2, 3), 5), (1, (), 4), (2, (5,), 64), (0, (2,), 3), (3, (0,), 4)], ids=str)
def test_shapes(shape, device):
    steps, batch, width = shape
    for spikes, states, delay in [(False, False, 1), (True, True, 4)]:
        call = make(LEAKY, steps, batch, width, delay=delay, spikes=spikes, states=states, device=device, scale=0.2)
        assert_like_the_loop(LEAKY, call, 1e-10, delay=delay)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_types(dtype, device):
    call = make(SMOOTH, 30, (9,), 33, dtype=dtype, device=device, scale=0.2)
    call["params"] = [p.detach().float().requires_grad_() for p in call["params"]]
    call["states"] = [v.detach().float().requires_grad_() for v in call["states"]]
    bound = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    assert_like_the_loop(SMOOTH, call, bound)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_gradient_of_the_matrix_is_a_product_of_spikes_and_gradients_where_few_fire(dtype):
    """On the CPU, the rows of neurons that fired are added, here for more steps and samples than one list holds."""
    torch.manual_seed(4)
    x = (torch.randn(60, 41, 70, dtype=torch.float64) - 0.3).to(dtype).requires_grad_()
    w = (torch.randn(70, 70, dtype=torch.float64) * 0.1).to(dtype).requires_grad_()
    upstream = torch.randn(60, 41, 70).to(dtype)
    tau = torch.tensor(2.0, dtype=torch.promote_types(dtype, torch.float32))

    def run():
        (s,), _ = ops.recurrent_run(LEAKY[0], [x], w, [], [tau])
        return s.detach(), *torch.autograd.grad(s, (x, w), upstream)

    (s, grad_x, grad_w), by_threads = with_threads((1, 4), run)
    assert 0.01 < s.double().mean() < 0.15
    exact = torch.einsum("tbi,tbj->ij", s[:-1].double(), grad_x[1:].double())
    bound = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 1e-2)
    assert grad_w.dtype == dtype
    torch.testing.assert_close(grad_w.double(), exact, rtol=0, atol=bound * largest(exact))
    assert torch.equal(grad_w, by_threads[2]), "the sums depend on the number of threads"


# Cases with different GPU kernels: a single block, clusters of 4, 8 and 16 blocks, one or several tiles of samples, complete and
# incomplete tiles, and neurons that are read together or one by one.
LAYERS = [(33, 16, 128), (1, 3, 40), (50, 9, 99), (18, 260, 64), (24, 9, 200), (24, 5, 256), (21, 260, 250), (24, 70, 384), (40, 20, 500)]
LAYERS += [(20, 150, 512), (20, 17, 1000), (18, 70, 1024)]


def few_bits(call, dtype):
    """Rounds values to few bits, so that half types represent every sum exactly, in any order."""
    coarse = lambda t, unit, most: (t.detach().double() / unit).round().clamp(-most, most) * unit  # noqa: E731
    unit = 1 / 16 if dtype == torch.bfloat16 else 1 / 128
    width = call["w"].shape[0]
    sparse = torch.rand(width, width, generator=torch.Generator().manual_seed(1)) * width < 20
    call["inputs"] = [coarse(x, unit, 2 / unit).to(x).requires_grad_() for x in call["inputs"]]
    call["w"] = (coarse(call["w"], unit, 4) * sparse.to(call["w"].device)).to(call["w"]).requires_grad_()
    return call


GPU_BOUND = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def few_bits_on_a_gpu(shape, dtype, **options):
    steps, batch, width = shape
    call = few_bits(make(LEAKY, steps, (batch,), width, dtype=dtype, device="cuda", **options), dtype)
    call["params"] = [(p.detach().float() * 8).round().div(8).requires_grad_() for p in call["params"]]
    return call


def assert_as_on_a_cpu(call, dtype, least, samples={}, **options):
    """Compares results bit for bit, and gradients, which it returns, within rounding. `samples`: lengths, starts."""
    on_cpu, on_gpu = copied(call, "cpu"), {name: t if t is None else t.cuda() for name, t in samples.items()}
    found = ops.recurrent_run(LEAKY[0], **call, **options, **on_gpu)
    expected = ops.recurrent_run(LEAKY[0], **on_cpu, **options, **samples)
    assert least < expected[0][0].float().mean() < 0.6
    for a, b in zip((*found[0], *found[1]), (*expected[0], *expected[1])):
        assert torch.equal(a.cpu(), b)
    grads = gradients(found, call)
    for g, value in zip(grads, gradients(expected, on_cpu)):
        error = (g.cpu().double() - value.double()).norm() / value.double().norm().clamp(min=1e-30)
        assert error < GPU_BOUND[dtype]
    return grads


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_layers_on_a_gpu_fire_as_on_a_cpu(shape, dtype, cuda):
    for given in (False, True):
        call = few_bits_on_a_gpu(shape, dtype, spikes=given, states=given)
        grads = assert_as_on_a_cpu(call, dtype, 0.02, store_states=given)
        again = ops.recurrent_run(LEAKY[0], **call, store_states=given)
        assert all(map(torch.equal, grads, gradients(again, call)))


@pytest.mark.parametrize("delay", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(70, 9, 99), (40, 260, 64), (37, 17, 250), (40, 70, 384), (70, 150, 512), (36, 11, 1000)], ids=str)
def test_samples_and_delays_on_a_gpu_are_as_on_a_cpu(shape, dtype, delay, cuda):
    """Samples have any ends and starts; values after their ends are NaN."""
    steps, batch, width = shape
    generator = torch.Generator().manual_seed(width)
    lengths = torch.randint(steps + 1, (batch,), generator=generator, dtype=torch.int32)
    lengths[:8] = lengths[:8] // 2  # the first tile ends early
    start = torch.rand(steps, batch, generator=generator) < 0.06
    ended = (torch.arange(steps).view(-1, 1) >= lengths).unsqueeze(-1)
    for has_lengths, has_start, given in [(True, True, True), (False, True, False), (True, False, False), (False, False, False)]:
        call = few_bits_on_a_gpu(shape, dtype, delay=delay, spikes=given, states=given)
        if has_lengths:
            call["inputs"] = [x.detach().masked_fill(ended.cuda(), torch.nan).requires_grad_() for x in call["inputs"]]
        samples = dict(lengths=lengths if has_lengths else None, start=start if has_start else None)
        assert_as_on_a_cpu(call, dtype, 0.01, samples, store_states=given, delay=delay)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("width", [60, 320, 700])
def test_cells_of_several_states_and_inputs_on_a_gpu(width, dtype, cuda):
    call = make(TWO, 21, (11,), width, dtype=dtype, device="cuda", scale=0.5 / width**0.5)
    assert_like_the_loop(TWO, call, 2e-5 if dtype == torch.float32 else 2e-2, into=1, store_states=True)
    few = make(STATELESS, 6, (11,), width, dtype=dtype, device="cuda", scale=0.5 / width**0.5)
    assert_like_the_loop(STATELESS, few, 2e-5 if dtype == torch.float32 else 2e-2)


def test_a_sum_of_all_outputs_has_one_gradient_for_all_on_a_gpu(cuda):
    call = make(SMOOTH, 40, (9,), 64, dtype=torch.float16, device="cuda", scale=0.05)

    def gradients_of(call, weights):
        (s,), (v,) = ops.recurrent_run(SMOOTH[0], **call)
        return torch.autograd.grad(weights[0] * s.sum().float() + weights[1] * v.sum(), tensors(call))

    for weights in [(1, 1), (0, 1), (1, 0)]:
        for g, value in zip(gradients_of(call, weights), gradients_of(copied(call, "cpu"), weights)):
            torch.testing.assert_close(g.cpu().double(), value.double(), rtol=0, atol=2e-2 * value.abs().max().item() + 1e-6)


def test_values_that_are_no_spikes_and_matrices_of_any_layout(device):
    call = make(SMOOTH, device=device)
    call["w"] = call["w"].detach().t().requires_grad_()
    call["inputs"] = [call["inputs"][0].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()]
    call["spikes"] = torch.rand(1, 7, 11, dtype=torch.float64, device=device).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    assert_like_the_loop(SMOOTH, call, 1e-10)


def test_spikes_of_the_forward_and_of_the_backward_pass_are_the_same(device):
    """The backward pass recomputes states with the rounded current; otherwise spikes would change. Rect's derivative is 1
    near the threshold and otherwise 0, and the reset is detached: the gradient counts these steps."""
    text = "neuron near(x; v) { h = 0.9 * v + x; s = spike(h - 1, rect(1)); return s; v' = select(detach(s), 0, h) }"
    x = (torch.randn(60, 8, 40, device=device) * 0.7).half().requires_grad_()
    w = (torch.randn(40, 40, device=device) * 0.3).half()
    (s,), (v,) = ops.recurrent_run(text, [x], w, [], [])
    (g,) = torch.autograd.grad(s[-1].sum(), x)
    # In the last step no gradient arrives from later steps: the derivative is that of the spike, at the states of the forward pass.
    (_,), (before,) = ops.recurrent_run(text, [x[:-1]], w, [], [])
    current = torch.addmm(x[-1], s[-2], w).detach()
    h = 0.9 * before + current.float()
    sure = ((h - 1).abs() - 0.5).abs() > 1e-2
    assert sure.float().mean() > 0.9
    torch.testing.assert_close(g[-1].float()[sure], ((h - 1).abs() < 0.5).float()[sure])


@pytest.mark.parametrize("cell", [SMOOTH, TWO], ids=["smooth", "two"])
def test_gradcheck(cell, device):
    call = make(cell, 5, (2,), 3, delay=2, device=device)
    counts = COUNTS[cell]

    def run(*flat):
        inputs, w, rest = flat[: counts[0]], flat[counts[0]], flat[counts[0] + 1 :]
        outputs, states = ops.recurrent_run(cell[0], list(inputs), w, list(rest[: counts[1]]), list(rest[counts[1] : -1]), rest[-1], delay=2)
        return (*outputs, *states)

    assert torch.autograd.gradcheck(run, tensors(call), check_forward_ad=True)


def test_any_number_of_threads_gives_the_same_bits():
    call = make(LEAKY, 60, (37,), 50, dtype=torch.float32, scale=0.3)

    def run():
        results = ops.recurrent_run(LEAKY[0], **call)
        return *results[0], *results[1], *gradients(results, call)[:-2]

    first, *others = with_threads((1, 2, 3), run)
    assert all(all(map(torch.equal, first, other)) for other in others)


def test_opcheck():
    call = make(TWO, 4, (2,), 3, dtype=torch.float32)
    opcheck(ops.recurrent_run.default, (TWO[0], call["inputs"], call["w"], call["states"], call["params"], call["spikes"]), dict(into=1))
    plain = make(LEAKY, 20, (2,), 3, dtype=torch.float32, spikes=False, states=False)
    arguments = (LEAKY[0], [plain["inputs"][0].detach()], plain["w"].detach(), [], [plain["params"][0].detach()])
    opcheck(ops.recurrent_run.default, arguments, dict(store_states=True, delay=2))
    flat, options = [*arguments[1], *arguments[4]], dict(into=0, delay=2, store_states=True)
    opcheck(ops.recurrent_run_forward.default, (LEAKY[0], flat, arguments[2], None), dict(save=True, **options))
    (s,), (v,), (current, checkpoints) = ops.recurrent_run_forward(LEAKY[0], flat, arguments[2], None, save=True, **options)
    grads = [torch.rand_like(s), None]
    opcheck(ops.recurrent_run_backward.default, (LEAKY[0], grads, [current, flat[1]], arguments[2], checkpoints, [True, True]), options)


def test_compile_and_export_keep_the_operator():
    call = make(LEAKY, 6, (2,), 4, dtype=torch.float32, spikes=False, states=False)

    def run(x, w, tau):
        outputs, states = ops.recurrent_run(LEAKY[0], [x], w, [], [tau])
        return outputs[0], states[0]

    arguments = (*call["inputs"], call["w"], *call["params"])
    compiled = torch.compile(run, fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(*arguments), run(*arguments))
    found, value = (torch.autograd.grad(f(*arguments)[0].sum(), arguments) for f in (compiled, run))
    torch.testing.assert_close(found, value)

    class Module(torch.nn.Module):
        def forward(self, x, w, tau):
            return run(x, w, tau)

    arguments = tuple(t.detach() for t in arguments)
    exported = torch.export.export(Module(), arguments)
    assert any("recurrent_run" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(*arguments), run(*arguments))


@pytest.mark.parametrize("mapped_w", [False, True], ids=["shared", "mapped"])
def test_vmap_and_transforms(mapped_w, device):
    call = make(SMOOTH, 6, (2,), 4, device=device, spikes=False, states=False)
    x, w, tau = call["inputs"][0].detach(), call["w"].detach(), call["params"][0].detach()
    xs = torch.stack([x, x * 0.5, x + 0.1])
    ws = torch.stack([w, -w, w * 0.5])

    def score(x, w, tau):
        (s,), (v,) = ops.recurrent_run(SMOOTH[0], [x], w, [], [tau])
        return (s * s).sum() + v.sum()

    dims = (0, 0 if mapped_w else None, None)
    found = torch.vmap(torch.func.grad(score, (0, 1, 2)), dims)(xs, ws if mapped_w else w, tau)
    for i in range(3):
        one = torch.func.grad(score, (0, 1, 2))(xs[i], ws[i] if mapped_w else w, tau)
        torch.testing.assert_close([of_map[i] for of_map in found], list(one))
    values = torch.vmap(score, dims)(xs, ws if mapped_w else w, tau)
    torch.testing.assert_close(values[1], score(xs[1], ws[1] if mapped_w else w, tau))


def test_second_derivatives_are_refused_in_words():
    call = make(SMOOTH, 4, (2,), 3)
    results = ops.recurrent_run(SMOOTH[0], **call)
    (g,) = torch.autograd.grad(results[0][0].square().sum(), call["w"], create_graph=True)
    refused(NotImplementedError, "recurrent_run: second derivatives are not implemented", g.sum().backward)


WRONG = {
    "w of another width": (dict(w=torch.rand(3, 4)), ValueError, r"w must have shape \[4, 4\], .* but has \[3, 4\]"),
    "w of another type": (dict(w=torch.rand(4, 4).double()), TypeError, r"w must be Float, .* but is Double; pass w.to\(x.dtype\)"),
    "a sequence of numbers": (dict(inputs=[torch.rand(4)]), ValueError, r"x must be \[T, \*batch, H\], but has shape \[4\]"),
    "no delay": (dict(delay=0), ValueError, "delay must be 1 or more steps, and below 2.31, but is 0"),
    "into no input": (dict(into=1), ValueError, "into must be the number of an input, 0 to 0, but is 1"),
    "spikes of one step": (dict(delay=2, spikes=torch.rand(1, 2, 4)), ValueError, r"spikes must have shape \[2, 2, 4\], .* but has \[1, 2, 4\]"),
    "spikes of another type": (dict(spikes=torch.rand(1, 2, 4).half()), TypeError, "spikes must be Float, .* but is Half"),
    "whole numbers": (dict(inputs=[torch.ones(3, 2, 4, dtype=torch.int64)]), TypeError, "x must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_raise(name):
    change, error, words = WRONG[name]
    call = dict(neuron=LEAKY[0], inputs=[torch.rand(3, 2, 4)], w=torch.rand(4, 4), states=[], params=[torch.tensor(2.0)])
    refused(error, words, lambda: ops.recurrent_run(**{**call, **change}))


def test_no_neurons_have_gradients_too(device):
    x, w = torch.zeros(6, 3, 0, device=device, requires_grad=True), torch.zeros(0, 0, device=device, requires_grad=True)
    text = "neuron lif(x; v) { h = 0.9 * v + x; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"
    torch.ops.spikeforge.recurrent_run(text, [x], w, [], [])[0][0].sum().backward()
    assert x.grad.shape == (6, 3, 0) and w.grad.shape == (0, 0)
