"""run(scan=True): steps computed in parallel, for neurons whose next states are affine in their states."""

import pytest
import torch
from loops import refused

import spikeforge.nn as snn

ops = torch.ops.spikeforge

LI = "neuron li(x; v; tau) { n = v + (x - v) / tau; return n\n v' = n }"
GATED = "neuron gated(x, g; v) { a = sigmoid(g); n = a * v + (1 - a) * x; return n, a * x\n v' = n }"
RESONATOR = (
    "neuron resonator(x; u, w; d, o) { p = d * (u * cos(o) - w * sin(o)) + x; q = d * (u * sin(o) + w * cos(o))\n"
    "return p, spike(p - 1, atan(2))\n u' = p; w' = q }"
)
CASCADE = (
    "neuron cascade(x; i, j, v = 0.25) { a = 0.9 * i + x; b = 0.8 * j + a; n = 0.7 * v + b; return n\n"
    "i' = a; j' = b; v' = n }"
)
LIF = "neuron lif(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s\n v' = select(s, 0, h) }"


def li(x, v, tau):
    n = v + (x - v) / tau
    return (n,), (n,)


def gated(x, g, v):
    a = torch.sigmoid(g)
    n = a * v + (1 - a) * x
    return (n, a * x), (n,)


def resonator(x, u, w, d, o):
    p = d * (u * torch.cos(o) - w * torch.sin(o)) + x
    return (p, None), (p, d * (u * torch.sin(o) + w * torch.cos(o)))


def cascade(x, i, j, v):
    a = 0.9 * i + x
    b = 0.8 * j + a
    n = 0.7 * v + b
    return (n,), (a, b, n)


# text, step, number of inputs, initial states, parameters
CELLS = {
    "li": (LI, li, 1, (0.0,), (5.0,)),
    "gated": (GATED, gated, 2, (0.0,), ()),
    "resonator": (RESONATOR, resonator, 1, (0.0, 0.0), (0.98, 0.3)),
    "cascade": (CASCADE, cascade, 1, (0.0, 0.0, 0.25), ()),
}
# In a scan of this many steps, the neurons have tiles of different lengths; some tiles end in the middle of a segment.
LONG = 4099


def looped(step, inputs, states, params):
    """Runs a plain loop in float64."""
    outputs, sequences = [], []
    for t in range(inputs[0].shape[0]):
        made, states = step(*(x[t] for x in inputs), *states, *params)
        outputs.append(made)
        sequences.append(states)
    return [None if y[0] is None else torch.stack(y) for y in zip(*outputs)], [torch.stack(s) for s in zip(*sequences)]


def drawn(name, steps, neurons, dtype, device, given):
    text, step, n_inputs, starts, params = CELLS[name]
    torch.manual_seed(3)
    inputs = [torch.randn(steps, neurons, dtype=torch.float64).to(dtype).to(device) for _ in range(n_inputs)]
    state = torch.float64 if dtype == torch.float64 else torch.float32
    states = [torch.randn(neurons, dtype=state).to(device) for _ in starts] if given else []
    params = [torch.full((neurons,), p, dtype=state).to(device) for p in params]
    return text, step, inputs, states, params, starts


def close(result, expected, dtype, terms=1):
    """Compares within a bound. `terms`: the number of steps that are summed in one float32 value."""
    bound = {torch.float64: 1e-10, torch.float32: 1e-5}.get(dtype, 1e-2) * max(1, terms / 1000)
    difference = (result.double().cpu() - expected.double().cpu()).abs().max().item()
    assert difference <= bound * max(1.0, expected.abs().max().item()), difference


def check(name, steps, neurons, dtype, device, store):
    """Compares results and gradients with the plain loop."""
    text, step, inputs, states, params, starts = drawn(name, steps, neurons, dtype, device, given=store)
    leaves = [t.requires_grad_() for t in (*inputs, *states, *params)]
    outputs, after = ops.run(text, inputs, states, params, store_states=store, scan=True)
    exact = [t.detach().double().cpu().requires_grad_() for t in leaves]
    rest = iter(exact)
    exact_inputs, exact_states = [next(rest) for _ in inputs], [next(rest) for _ in states]
    exact_params = list(rest)
    first = exact_states or [torch.full((neurons,), s, dtype=torch.float64) for s in starts]
    expected, sequences = looped(step, exact_inputs, first, exact_params)
    expected_after = sequences if store else [s[-1] for s in sequences]
    pairs = [(y, e) for y, e in zip((*outputs, *after), (*expected, *expected_after)) if e is not None]
    for result, right in pairs:
        close(result, right, dtype)
    ups = [torch.randn(e.shape, dtype=torch.float64) for _, e in pairs]
    rounded = [u.to(y.dtype) for u, (y, _) in zip(ups, pairs)]
    found = torch.autograd.grad([y for y, _ in pairs], leaves, [u.to(device) for u in rounded], allow_unused=True)
    right = torch.autograd.grad([e for _, e in pairs], exact, [u.double() for u in rounded], allow_unused=True)
    for i, (gradient, true) in enumerate(zip(found, right)):
        close(gradient, true, dtype, terms=steps if i >= len(inputs) + len(states) else 1)


@pytest.fixture
def four_threads():
    """Sets enough threads for the CPU to use a scan, for any number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name, store", [("li", False), ("gated", True), ("resonator", False), ("cascade", True)])
def test_a_scan_on_threads_gives_the_results_and_gradients_of_the_loop(name, store, four_threads):
    check(name, LONG, 61, torch.float64, "cpu", store)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scan_on_threads_takes_every_type(dtype, four_threads):
    check("resonator", LONG, 61, dtype, "cpu", False)


def test_a_scan_rounds_in_another_way_and_is_asked_for(four_threads):
    x, tau = torch.randn(LONG, 64), torch.tensor(5.0)
    loop, scan = (ops.run(LI, [x], [], [tau], scan=on)[0][0] for on in (False, True))
    assert torch.equal(loop, ops.run(LI, [x], [], [tau])[0][0])
    assert not torch.equal(loop, scan), "the scan was not taken"
    assert torch.equal(scan, ops.run(LI, [x], [], [tau], scan=True)[0][0]), "it is deterministic"
    torch.testing.assert_close(loop, scan, rtol=1e-5, atol=1e-5)


def test_training_and_inference_agree_on_every_bit(four_threads):
    x, params = torch.randn(LONG, 64), [torch.tensor(0.98), torch.tensor(0.3)]
    inference = ops.run(RESONATOR, [x], [], params, scan=True)
    training = ops.run(RESONATOR, [x.clone().requires_grad_()], [], params, scan=True)
    for one, other in zip((*inference[0], *inference[1]), (*training[0], *training[1])):
        assert torch.equal(one, other)


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_short_sequences_give_what_the_loop_gives(steps):
    x, v = torch.randn(steps, 5), torch.randn(5)
    for store in (False, True):
        results = [ops.run(LI, [x], [v], [torch.tensor(3.0)], store_states=store, scan=on) for on in (False, True)]
        for one, other in zip(*((*outputs, *states) for outputs, states in results)):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    "text, n_params, message",
    [
        (LIF, 1, r"run\(lif\): scan=True: the next v is not affine in the states: a condition on a state chooses it"),
        ("neuron bent(x; v) { return v\n v' = tanh(v) + x }", 0, r"run\(bent\): .*it takes tanh of a value"),
        ("neuron none(x) { return 2 * x }", 0, r"a neuron with 1 to 4 states is scanned, but none has 0"),
        (
            "neuron five(x; a, b, c, d, e) { return a\n a' = x; b' = a; c' = b; d' = c; e' = d }",
            0,
            r"a neuron with 1 to 4 states is scanned, but five has 5",
        ),
    ],
)
def test_a_neuron_that_cannot_be_scanned_is_refused_in_words(text, n_params, message):
    with pytest.raises(ValueError, match=message):
        ops.run(text, [torch.randn(3, 2)], [], [torch.tensor(2.0)] * n_params, scan=True)


def test_opcheck_and_compilers_take_a_scan(four_threads):
    x, params = torch.randn(3100, 64), [torch.tensor(0.98), torch.tensor(0.3)]
    torch.library.opcheck(ops.run.default, (RESONATOR, [x.clone().requires_grad_()], [], params), {"scan": True})

    def run(x):
        return ops.run(RESONATOR, [x], [], params, scan=True)[0][0]

    leaf = x.clone().requires_grad_()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(leaf)
    assert torch.equal(compiled, run(x))
    again = x.clone().requires_grad_()
    run(again).sum().backward()
    compiled.sum().backward()
    assert torch.equal(leaf.grad, again.grad)


def test_the_gradient_is_that_of_finite_differences(four_threads):
    x = torch.randn(3100, 64, dtype=torch.float64, requires_grad=True)
    d, o = (torch.tensor(p, dtype=torch.float64, requires_grad=True) for p in (0.98, 0.3))
    text = RESONATOR.replace("p, spike(p - 1, atan(2))", "p, tanh(p)")
    assert torch.autograd.gradcheck(lambda *a: ops.run(text, [a[0]], [], a[1:], scan=True)[0][1], (x, d, o), fast_mode=True)


def test_modules_scan(four_threads):
    x = torch.randn(LONG, 64)
    scan, loop = snn.LI(tau=5.0, scan=True), snn.LI(tau=5.0)
    assert torch.equal(scan(x), ops.run(scan.text, [x], [], [torch.tensor(5.0), torch.tensor(0.0)], scan=True)[0][0])
    assert not torch.equal(scan(x), loop(x))
    refused(ValueError, r"scan=True: the next v is not affine", lambda: snn.Neuron(LIF, tau=2.0, scan=True))
    refused(TypeError, "scan must be True or False", lambda: snn.LI(scan=1))


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [513, 16384])
@pytest.mark.parametrize("neurons", [1, 64, 333])
@pytest.mark.parametrize("name", CELLS)
def test_a_scan_on_a_gpu_gives_the_results_and_gradients_of_the_loop(name, neurons, steps, cuda):
    check(name, steps, neurons, torch.float32, cuda, store=neurons == 333)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CELLS)
def test_a_scan_on_a_gpu_takes_every_type(name, dtype, cuda):
    check(name, 5003, 37, dtype, cuda, store=True)


def test_blocks_take_turns_on_a_gpu_and_the_results_are_the_same_every_time(cuda):
    x, tau = torch.randn(2**19 + 5, 40, device=cuda), torch.tensor(50.0)
    first, (last,) = ops.run(LI, [x], [], [tau], scan=True)
    loop, (loop_last,) = ops.run(LI, [x], [], [tau])
    torch.testing.assert_close(first[0], loop[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last, loop_last, rtol=1e-5, atol=1e-5)
    assert not torch.equal(first[0], loop[0]), "the scan was not taken"
    for _ in range(5):
        assert torch.equal(first[0], ops.run(LI, [x], [], [tau], scan=True)[0][0])


@pytest.mark.parametrize("steps, neurons", [(16384, 64), (5001, 3), (70001, 33)])
def test_many_blocks_take_the_backward_pass_of_few_neurons(steps, neurons, cuda):
    """For any cell, gradients equal those of the CPU and are reproducible."""
    torch.manual_seed(2)
    x, tau, up = torch.randn(steps, neurons) * 2, torch.full((neurons,), 4.0), torch.randn(steps, neurons)

    def gradients(device):
        leaves = [t.to(device).requires_grad_() for t in (x, torch.zeros(neurons), tau)]
        (s,), (v,) = ops.run(LIF, leaves[:1], leaves[1:2], leaves[2:])
        return torch.autograd.grad([s, v], leaves, [up.to(device), torch.ones(neurons, device=device)])

    found = gradients(cuda)
    for gradient, right in zip(found, gradients("cpu")):
        assert (gradient.cpu() - right).abs().max() <= 1e-4 * right.abs().max()
    for gradient, again in zip(found, gradients(cuda)):
        assert torch.equal(gradient, again)


def test_a_scan_is_captured_in_a_graph(cuda):
    x, tau = torch.randn(8192, 64, device=cuda), torch.tensor(5.0)
    right = ops.run(LI, [x], [], [tau], scan=True)[0][0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = ops.run(LI, [x], [], [tau], scan=True)[0][0]
    graph.replay()
    assert torch.equal(made, right)
