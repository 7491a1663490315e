"""Custom neurons: spikeforge::run with neuron text."""

from itertools import product

import pytest
import torch
from cases import (
    FORMS, Inputs, Options, all_equal, assert_close, call, random_gradients, random_parameters, random_states, random_x,
    state_dtype, uniform,
)
from conftest import REPOSITORY
from reference import NEURONS, SURROGATES, Fire, Select
from torch._dynamo.testing import CompileCounterWithBackend

ops = torch.ops.spikeforge
GALLERY = REPOSITORY / "examples" / "neurons"
SHAPE = (2, 3, 5)


def text_of(name):
    return (GALLERY / f"{name}.neuron").read_text()


def test_a_large_call_gives_the_bits_of_small_ones():
    """Large results are written with non-temporal stores, in pieces of rows that need not begin on a cache line."""
    steps, part = 18, 5003
    text = text_of("alif")
    for size in (2**17, 2**17 + 3):
        assert steps * size * 4 > 8 << 20, "not large enough"
        torch.manual_seed(5)
        x, upstream = 1.5 * torch.rand(steps, size), torch.randn(steps, size)

        def results(neurons):
            leaf = x[:, neurons].contiguous().requires_grad_()
            (spikes,), states = ops.run(text, [leaf], [], [torch.tensor(2.0)])
            return [spikes, *states, torch.autograd.grad(spikes, leaf, upstream[:, neurons].contiguous())[0]]

        whole = results(slice(None))
        for first in (0, size // 2 - 1, size - part):
            for of_all, alone in zip(whole, results(slice(first, first + part))):
                assert torch.equal(of_all[..., first:first + part], alone), f"from neuron {first} of {size}"


# --- the example neurons, step by step from their equations ----------------------------------------------------------


def spike(u, surrogate, *args):
    return Fire.apply(u, SURROGATES[surrogate], args or SURROGATES[surrogate].defaults, True)


def select(s, a, b):
    a, b = (torch.as_tensor(z, dtype=s.dtype, device=s.device).expand_as(s) for z in (a, b))
    return Select.apply(b, s, a)


def alif(x, v, a, tau):
    h = v + (x - v) / tau
    s = spike(h - (1 + a), "atan")
    return [s], [select(s, 0, h), 0.9 * a + s]


def lif(x, v, tau, v_threshold, v_reset):
    h = v + (x - (v - v_reset)) / tau
    s = spike(h - v_threshold, "sigmoid")
    return [s], [select(s, v_reset, h)]


def adex(x, v, w, tau, tau_w, delta, a, b):
    h = v + 0.5 / tau * (delta * torch.exp(torch.minimum((v - 1) / delta, torch.full_like(v, 5))) - v + x - w)
    s = spike(h - 1.5, "sigmoid")
    return [s], [select(s, 0, h), w + 0.5 / tau_w * (a * v - w) + b * s]


def channel_decay_lif(x, v, decay_logit, threshold):
    decay = 1 / (1 + torch.exp(-decay_logit))
    h = decay * v + (1 - decay) * x
    s = spike(h - threshold, "sigmoid")
    return [s], [h - s * threshold]


def complicated_lif(x, y, v, rho, beta):
    h = beta * v + x
    adapted, plain = spike(h - (rho + 1), "atan"), spike(h - 1, "atan")
    gate = 1 / (1 + torch.exp(-y))
    return [adapted, plain], [h - adapted * (rho + 1), gate * rho + (1 - gate) * adapted]


def cuba_lif(x, i, v, current_decay, voltage_decay, threshold):
    current = (1 - current_decay) * i + x
    h = (1 - voltage_decay) * v + current
    s = spike(h - threshold, "super_spike")
    return [s], [current, select(s, 0, h)]


def fitzhugh_nagumo(x, v, w, a, b, epsilon):
    v_new = v + 0.1 * (v - v**3 / 3 - w + x)
    s = spike(v_new - 1, "sigmoid") * (1 - spike(v - 1, "sigmoid"))
    return [v_new, s], [v_new, w + 0.1 * epsilon * (v + a - b * w)]


def hodgkin_huxley(x, v, m, h, n, g_na, g_k, g_l):
    dt = 0.02
    ratio = lambda u: u / (1 - torch.exp(-u))
    alpha_m, beta_m = ratio((v + 40) / 10), 4 * torch.exp(-(v + 65) / 18)
    alpha_h, beta_h = 0.07 * torch.exp(-(v + 65) / 20), 1 / (1 + torch.exp(-(v + 35) / 10))
    alpha_n, beta_n = 0.1 * ratio((v + 55) / 10), 0.125 * torch.exp(-(v + 65) / 80)

    def gate(y, alpha, beta):
        limit = alpha / (alpha + beta)
        return limit + (y - limit) * torch.exp(-dt * (alpha + beta))

    m, h, n = gate(m, alpha_m, beta_m), gate(h, alpha_h, beta_h), gate(n, alpha_n, beta_n)
    currents = g_na * m**3 * h * (v - 50) + g_k * n**4 * (v + 77) + g_l * (v + 54.4)
    v_new = v + dt * (x - currents)
    s = spike(v_new, "sigmoid", 1.0) * (1 - spike(v, "sigmoid", 1.0))
    return [s], [v_new, m, h, n]


def morris_lecar(x, v, w, g_ca, g_k, g_l, phi):
    m_limit, w_limit = (1 + torch.tanh((v + 1.2) / 18)) / 2, (1 + torch.tanh((v - 2) / 30)) / 2
    currents = g_ca * m_limit * (v - 120) + g_k * w * (v + 84) + g_l * (v + 60)
    v_new = v + 0.1 / 20 * (x - currents)
    s = spike(v_new, "atan") * (1 - spike(v, "atan"))
    return [s], [v_new, w + 0.1 * phi * torch.cosh((v - 2) / 60) * (w_limit - w)]


def refractory_lif(x, v, wait, tau, period):
    resting = wait > 0
    h = torch.where(resting, v, v + (x - v) / tau)
    s = torch.where(resting, torch.zeros_like(h), spike(h - 1, "atan"))
    return [s], [select(s, 0, h), torch.where(s == 1, period.expand_as(s), torch.clamp(wait - 1, min=0))]


def resonate_and_fire(x, re, im, damping, omega):
    rotation = torch.exp(torch.complex(-0.1 * damping.abs(), 0.1 * omega))
    z = rotation * torch.complex(re, im) + 0.1 * x
    s = spike(z.imag - 1, "soft_sign")
    return [s], [select(s, 0, z.real), select(s, 1, z.imag)]


def two_compartment(x_dendrite, x_soma, d, v, tau_d, tau_v, coupling, feedback):
    flow = coupling * (d - v)
    h = v + (x_soma - v + flow) / tau_v
    s = spike(h - 1, "piecewise_quadratic")
    return [s], [d + (x_dendrite - d - flow) / tau_d + feedback * s, select(s, 0, h)]


# name -> the step, and a range for each input, initial state and parameter
CELLS = {
    alif: ([(-1, 4)], [(-0.5, 1), (0, 1)], [(1.5, 3)]),
    lif: ([(-1, 3)], [(-0.5, 1)], [(1.5, 3), (0.8, 1.2), (-0.2, 0.2)]),
    adex: ([(-1, 4)], [(-0.5, 1), (-0.2, 0.5)], [(1.5, 3), (2, 5), (0.2, 0.4), (0.1, 0.5), (0.1, 0.5)]),
    channel_decay_lif: ([(-1, 4)], [(-0.5, 1)], [(-1, 1), (0.8, 1.2)]),
    complicated_lif: ([(-1, 2), (-2, 2)], [(-0.5, 1), (0, 1)], [(0.5, 0.9)]),
    cuba_lif: ([(-1, 1.5)], [(-0.5, 0.5), (-0.5, 1)], [(0.2, 0.8), (0.1, 0.5), (0.8, 1.2)]),
    fitzhugh_nagumo: ([(0, 5)], [(-1.5, 1.5), (-1, 1)], [(0.6, 0.8), (0.7, 0.9), (0.05, 0.1)]),
    hodgkin_huxley: ([(0, 60)], [(-70, 20), (0.02, 0.6), (0.3, 0.6), (0.3, 0.6)], [(110, 130), (30, 40), (0.2, 0.4)]),
    morris_lecar: ([(50, 300)], [(-60, 20), (0, 0.3)], [(4, 5), (7, 9), (1.5, 2.5), (0.03, 0.08)]),
    refractory_lif: ([(-1, 5)], [(-0.5, 1), (0, 2)], [(1.5, 3), (1.5, 3.5)]),
    resonate_and_fire: ([(-8, 12)], [(-1, 1), (-1, 1)], [(0.1, 1), (5, 15)]),
    two_compartment: ([(-1, 3), (-1, 3)], [(-0.5, 1), (-0.5, 1)], [(1.5, 3), (1.5, 3), (0.2, 0.8), (-0.5, 0.5)]),
}
every_cell = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)


def sample(cell, device, steps=19, shape=SHAPE, dtype=torch.float64, grad=True):
    """Returns inputs, states and parameters; parameters are 0-d, per channel and per neuron in turn."""
    inputs, states, params = CELLS[cell]
    sizes = [(), (shape[1], *(1 for _ in shape[2:])) if len(shape) > 1 else shape, shape]
    state = state_dtype(dtype)
    lists = (
        [uniform((steps, *shape), *r, dtype, device) for r in inputs],
        [uniform(shape, *r, state, device) for r in states],
        [uniform(sizes[(i + 1) % 3], *r, state, device) for i, r in enumerate(params)],
    )
    return [[t.requires_grad_(grad) for t in tensors] for tensors in lists]


def loop(cell, inputs, states, params):
    """Returns outputs and states of all steps."""
    kept = []
    for x in zip(*inputs):
        outputs, states = cell(*x, *states, *params)
        kept.append((outputs, states))
    stack = lambda which: [torch.stack(rows) for rows in zip(*(step[which] for step in kept))]
    return stack(0), stack(1)


@every_cell
@pytest.mark.parametrize("store_states", [False, True], ids=["last", "sequences"])
def test_a_gallery_neuron_is_its_equations(cell, store_states, device):
    lists = sample(cell, device)
    leaves = sum(lists, [])
    outputs, states = ops.run(text_of(cell.__name__), *lists, store_states=store_states)
    expected_outputs, expected_states = loop(cell, *lists)
    if not store_states:
        expected_states = [s[-1] for s in expected_states]
    results, expected = [*outputs, *states], [*expected_outputs, *expected_states]
    assert len(results) == len(expected)
    for i, (a, e) in enumerate(zip(results, expected)):
        assert_close(f"result {i}", a, e.detach(), 1e-10)
    for i, (a, e) in enumerate(zip(random_gradients(results, leaves), random_gradients(expected, leaves))):
        assert_close(f"the gradient of argument {i}", a, e, 1e-9)


@every_cell
def test_every_gallery_neuron_does_something(cell):
    lists = sample(cell, "cpu", steps=300 if cell in (hodgkin_huxley, morris_lecar) else 60, grad=False)
    outputs, _ = ops.run(text_of(cell.__name__), *lists)
    assert outputs[-1].max() == 1 and outputs[-1].min() == 0, "it fires, and not always"


# --- the predefined neurons as text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("neuron, form", [pytest.param(neuron, form, id=name) for neuron, form, name in FORMS])
def test_a_predefined_neuron_as_text_has_its_bits(neuron, form, device):
    for dtype, surrogate in product((torch.float32, torch.float64, torch.float16), ("sigmoid", "atan", "s2nn")):
        wide = state_dtype(dtype)
        params = random_parameters(neuron, (4, 9), "per neuron", wide, device)
        used = {k: p.requires_grad_() for k, p in params.items() if not (form["soft"] and k == "v_reset")}
        inputs = Inputs(random_x(neuron, 37, (4, 9), dtype, device), *random_states(neuron, (4, 9), wide, device), used)
        leaves = [t.requires_grad_() for t in inputs.tensors().values()]
        options = {"detach_reset": form["detach_reset"], "decay_input": form["decay_input"]}
        text = ops.neuron_text(neuron, f"spike(u, {surrogate})", list(used), [], [], **options)
        states = [s for s in (inputs.v, inputs.w) if s is not None]
        outputs, last = ops.run(text, [inputs.x], states, list(used.values()), store_states=True)
        got, expected = [*outputs, *last], call(neuron, inputs, Options(**form, surrogate=surrogate), store_v=True)
        bound = 1e-11 if wide == torch.float64 else 1e-4
        if neuron in ("plif", "eif"):
            assert (got[0] == expected[0]).float().mean() > 0.99
            apart, ulps = (got[1][0] - expected[1][0]).abs(), 4 * torch.finfo(wide).eps * expected[1][0].abs().clamp(min=0.1)
            assert ((apart <= ulps) | (got[0][0] != expected[0][0])).all()
            if not torch.equal(got[0], expected[0]):
                continue
            bound = 1e-8 if wide == torch.float64 else 2e-3
        else:
            assert all_equal(got, expected), f"{neuron} {dtype} differs in the forward pass"
        for leaf, a, e in zip(leaves, random_gradients(got, leaves), random_gradients(expected, leaves)):
            assert_close("a gradient", a, e, max(bound, 2e-3 if leaf.dtype == torch.float16 else 0))


# --- requirements of PyTorch -------------------------------------------------------------------------------------------

SMOOTH = """neuron smooth(x, y; v, w = 0.3; tau, b) {
  h = v + (x - v) / tau + tanh(y) * w
  s = sigmoid(4 * (h - 1))
  return s, h * b
  v' = h * (1 - s)
  w' = 0.9 * w + b * s
}"""


def smooth_arguments(device, dtype=torch.float64, grad=True, steps=21, shape=(3, 2)):
    make = lambda *size: torch.rand(size, dtype=dtype, device=device).requires_grad_(grad)
    return [make(steps, *shape), make(steps, *shape)], [make(*shape), make(*shape)], [(1.5 + make()).detach().requires_grad_(grad), make(shape[-1])]


@pytest.mark.parametrize("upstream", [float("inf"), float("nan")])
def test_a_branch_that_was_not_chosen_stops_any_gradient_as_torchs_where_does(upstream, device):
    text = "neuron n(x; v) { h = 0.5 * v + x; return h; v' = where(h >= 1, 0.25, h) }"
    x = (torch.rand(64, 40, dtype=torch.float64, device=device) * 1.5).requires_grad_()
    (y,), (v,) = ops.run(text, [x], [], [])
    rows, state = [], torch.zeros_like(x[0])
    for step in x:
        h = 0.5 * state + step
        rows.append(h)
        state = torch.where(h >= 1, 0.25, h)
    assert torch.equal(y, torch.stack(rows)) and torch.equal(v, state)
    grads = [torch.ones_like(y), torch.full_like(v, upstream)]
    (found,), (expected,) = (torch.autograd.grad(of, x, grads) for of in ((y, v), (torch.stack(rows), state)))
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert expected.isfinite().any(0).all() and not expected.isfinite().all()


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_opcheck(grad, device):
    for dtype in (torch.float32, torch.float16):
        inputs, states, params = smooth_arguments(device, dtype, grad)
        for store_states in (False, True):
            torch.library.opcheck(ops.run.default, (SMOOTH, inputs, states, params), dict(store_states=store_states))
        torch.library.opcheck(ops.run.default, (SMOOTH, inputs, [], params), {})
    stateless = "neuron f(x;; p) { return p * exp(x) }"
    torch.library.opcheck(ops.run.default, (stateless, inputs[:1], [], params[:1]), {})


def test_opcheck_of_the_lowered_operators(device):
    inputs, states, params = smooth_arguments(device, torch.float32, grad=False)
    for given, store_states in ((states, False), ([], True)):
        forward = ops.run_forward.default
        arguments = [*inputs, *given, *params]
        torch.library.opcheck(forward, (SMOOTH, arguments), dict(store_states=store_states, save=True))
        torch.library.opcheck(forward, (SMOOTH, arguments), dict(store_states=store_states, save=False))
        outputs, last, checkpoints = forward(SMOOTH, arguments, store_states=store_states, save=True)
        assert len(checkpoints) == 1 and 0 < checkpoints[0].numel() < inputs[0].numel()
        everything = [True] * (len(inputs) + len(given) + len(params))
        for grad_outputs, grad_states, needs_grad in (
            (outputs, last, everything),
            ([outputs[0], None], [None, None], [True] + [False] * (len(everything) - 1)),
            ([None, outputs[1]], [None, last[1]], [False] * len(inputs) + everything[len(inputs) :]),
        ):
            args = (SMOOTH, grad_outputs, grad_states, inputs, given, params, checkpoints, needs_grad)
            torch.library.opcheck(ops.run_backward.default, args, dict(store_states=store_states))


class Layer(torch.nn.Module):
    def __init__(self, text: str):
        super().__init__()
        self.text = text
        self.tau = torch.nn.Parameter(torch.tensor(2.5))
        self.b = torch.nn.Parameter(torch.rand(2))

    def forward(self, x):
        outputs, states = torch.ops.spikeforge.run(self.text, [x, 0.5 * x], [], [self.tau, self.b], store_states=False)
        return outputs[0], outputs[1], states[0]


def test_compiled_once_for_any_shape_it_is_equal_to_eager(device):
    layer = Layer(SMOOTH).to(device)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for shape in ((20, 4), (33, 5), (100, 33)):
        x = torch.rand(*shape, 2, device=device, requires_grad=True)
        found, expected = compiled(x), layer(x)
        assert all_equal(found, expected)
        leaves = [x, *layer.parameters()]
        assert all_equal(*(random_gradients(results, leaves, retain_graph=False) for results in (found, expected)))
    assert counter.frame_count == 1


@pytest.mark.parametrize("mapped", ["x", "v", "tau", "b", "all"])
def test_vmap_is_a_loop(mapped, device):
    maps = 4
    (x, y), (v, w), (tau, b) = smooth_arguments(device, grad=False)
    all = dict(x=x, y=y, v=v, w=w, tau=tau, b=b)
    place = dict(x=2, y=0, v=1, w=0, tau=0, b=1)
    names = list(all) if mapped == "all" else [mapped]
    batched = {n: torch.stack([t * (1 + 0.1 * i) for i in range(maps)], place[n]) if n in names else t for n, t in all.items()}

    def function(x, y, v, w, tau, b):
        outputs, states = ops.run(SMOOTH, [x, y], [v, w], [tau, b], store_states=True)
        _, last = ops.run(SMOOTH, [x, y], [v, w], [tau, b])
        return (*outputs, *states, *last)

    in_dims = tuple(place[n] if n in names else None for n in all)
    got = torch.vmap(function, in_dims=in_dims)(*batched.values())
    for i in range(maps):
        one = function(*(t.select(place[n], i) if n in names else t for n, t in batched.items()))
        for a, e in zip(got, one):
            assert torch.equal(a[i], e)


def test_transforms_see_mapped_arguments_at_any_position(device):
    inputs, states, params = smooth_arguments(device)
    inputs, states, params = ([t.detach() for t in part] for part in (inputs, states, params))
    for part in (states, params):
        for i, one in enumerate(part):
            batch = torch.stack([one, 1.1 * one, 0.9 * one])

            def loss(value):
                given = [value if part is p and k == i else t for p in (states, params) for k, t in enumerate(p)]
                outputs, after = ops.run(SMOOTH, inputs, given[: len(states)], given[len(states) :])
                return sum(t.sin().sum() for t in (*outputs, *after))

            got = torch.vmap(torch.func.grad(loss))(batch)
            for row, value in zip(got, batch):
                torch.testing.assert_close(row, torch.func.grad(loss)(value))


def test_batched_gradients_are_refused_with_the_way_to_them():
    inputs, states, params = smooth_arguments("cpu")
    (output, _), _ = ops.run(SMOOTH, inputs, states, params)
    rows = torch.rand(3, *output.shape, dtype=output.dtype)
    with pytest.raises(NotImplementedError, match="run_backward: is_grads_batched=True is not supported.*torch.vmap"):
        torch.autograd.grad(output, inputs[0], rows, is_grads_batched=True, retain_graph=True)
    (mapped,) = torch.vmap(lambda g: torch.autograd.grad(output, inputs[0], g, retain_graph=True))(rows)
    for row, gradient in zip(rows, mapped):
        torch.testing.assert_close(gradient, torch.autograd.grad(output, inputs[0], row, retain_graph=True)[0])


def test_autocast_leaves_types_alone(device):
    inputs, states, params = smooth_arguments(device, torch.float32, grad=False)
    half = [x.bfloat16() for x in inputs]
    with torch.autocast(device.type, torch.bfloat16):
        (s, _), (v, _) = ops.run(SMOOTH, half, states, params)
    assert s.dtype == torch.bfloat16 and v.dtype == torch.float32


# --- shapes, layouts, parts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps, shape", [(0, (3, 2)), (5, (0, 2)), (1, (1,)), (4, ()), (9, (7, 31)), (3, (65,))])
def test_edges_of_shape(steps, shape, device):
    for store_states in (False, True):
        inputs, states, params = smooth_arguments(device, steps=steps, shape=shape or (1,))
        if shape == ():
            inputs, states, params = [x[:, 0] for x in inputs], [s[0] for s in states], [params[0], params[1][0]]
        inputs, states, params = ([t.detach().requires_grad_() for t in ts] for ts in (inputs, states, params))
        outputs, last = ops.run(SMOOTH, inputs, states, params, store_states=store_states)
        assert all(o.shape == (steps, *shape) for o in outputs)
        assert all(s.shape == ((steps, *shape) if store_states else shape) for s in last)
        leaves = [*inputs, *states, *params]
        total = sum((r * 1.5).sum() for r in (*outputs, *last))
        grads = torch.autograd.grad(total, leaves)
        assert all(g.shape == leaf.shape for g, leaf in zip(grads, leaves))
        if steps == 0 and not store_states:
            assert all_equal(last, states)
            assert torch.equal(grads[2], torch.full_like(states[0], 1.5)), "the identity"


def test_channels_last_is_kept_and_other_layouts_are_copied(device):
    def results(arrange):
        torch.manual_seed(0)
        inputs, states, params = sample(complicated_lif, device, shape=(2, 3, 4, 5), steps=17)
        inputs = [arrange(x) for x in inputs]
        outputs, last = ops.run(text_of("complicated_lif"), inputs, states, params)
        return outputs, [*outputs, *last, *random_gradients([*outputs, *last], [*states, *params])]

    _, expected = results(lambda x: x)
    last = lambda x: x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    strided = lambda x: torch.stack([x, x], -1)[..., 0]
    for arrange in (last, strided):
        outputs, got = results(arrange)
        for a, e in zip(got, expected):
            torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)
        if arrange is last:
            assert outputs[0].stride() == last(torch.empty(outputs[0].shape)).stride()


def test_inputs_of_two_layouts_and_an_expanded_one(device):
    inputs, states, params = sample(two_compartment, device, shape=(2, 3, 4, 5))
    text = text_of("two_compartment")
    x, y = inputs
    twisted = y.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    assert all_equal(*(ops.run(text, [x, z], states, params)[1] for z in (y, twisted)))
    row = y[:, :1, :1, :1, :1]
    results = [ops.run(text, [x, z], states, params)[1] for z in (row.expand_as(x), row.expand_as(x).contiguous())]
    assert all_equal(*results)


def test_expanded_upstream_gradients_and_unused_results(device):
    inputs, states, params = smooth_arguments(device)
    leaves = [*inputs, *states, *params]
    outputs, last = ops.run(SMOOTH, inputs, states, params)
    one = torch.autograd.grad(outputs[0].sum(), leaves, retain_graph=True)
    other = torch.autograd.grad(outputs[0], leaves, torch.ones_like(outputs[0]))
    assert all_equal(one, other)


def test_threads_and_tiles_do_not_change_a_bit():
    inputs, states, params = sample(complicated_lif, "cpu", shape=(3, 50021), steps=9, dtype=torch.float32)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        outputs, last = ops.run(text_of("complicated_lif"), inputs, states, params)
        results.append([*outputs, *last, *random_gradients([*outputs, *last], [*inputs, *states])])
    small = ops.run(text_of("complicated_lif"), [x[:, :, 777:1801] for x in inputs], [s[:, 777:1801] for s in states],
                    [p.expand(3, 50021)[:, 777:1801] if p.dim() else p for p in params])
    for other in results[1:]:
        assert all_equal(results[0], other)
    assert torch.equal(small[0][0], results[0][0][:, :, 777:1801])


# --- errors ------------------------------------------------------------------------------------------------------------

ALIF = "neuron alif(x; v, a; tau) {\n  h = v + (x - v) / tau\n  return h\n  v' = h; a' = a\n}"
X = torch.rand(4, 3)
V = torch.rand(3)
TAU = torch.tensor(2.0)
TWO = "neuron two(x, y) { return x + y }"
ERRORS = [
    (ValueError, ["line 2, column", "^", "h = v +* x"], ("neuron n(x; v) {\n  h = v +* x\n  return h\n}", [X], [], [])),
    (ValueError, ["run(alif): inputs must have 1 tensor (x), but has 2"], (ALIF, [X, X], [], [TAU])),
    (ValueError, ["run(alif): states must have 2 tensors (v, a), but has 1"], (ALIF, [X], [V], [TAU])),
    (ValueError, ["run(alif): params must have 1 tensor (tau), but has 0"], (ALIF, [X], [], [])),
    (TypeError, ["run(alif): x must be float16", "Long", "x.to(torch.float32)"], (ALIF, [X.long()], [], [TAU])),
    (ValueError, ["run(alif): x must have shape [T, *shape]"], (ALIF, [TAU], [], [TAU])),
    (TypeError, ["run(alif): x must be a dense tensor"], (ALIF, [X.to_sparse()], [], [TAU])),
    (ValueError, ["run(alif): a must have shape [3]", "[4]"], (ALIF, [X], [V, torch.rand(4)], [TAU])),
    (TypeError, ["run(alif): v must be Float for a Float x, but is Double"], (ALIF, [X], [V.double(), V], [TAU])),
    (ValueError, ["run(alif): tau must broadcast against [3]", "[2]"], (ALIF, [X], [], [torch.rand(2)])),
    (ValueError, ["run(alif): tau must be on cpu", "meta"], (ALIF, [X], [], [V.to("meta")])),
    (ValueError, ["run(two): y must have shape [4, 3]", "[4, 1]", "y.expand_as(x)"], (TWO, [X, X[:, :1]], [], [])),
    (TypeError, ["run(two): y must be Float, the type of x, but is Half"], (TWO, [X, X.half()], [], [])),
    (ValueError, ["run(free): inputs must have 1 tensor (x), but has 0"],
     ("neuron free(x; v) { return x; v' = v }", [], [], [])),
    *((ValueError, ["run: ", " a neuron has at least one input: the number of steps is that of its inputs"],
       ("neuron free(; v) {\n  return v\n  v' = 0.5 * v\n}\n", [], states, [])) for states in ([], [V])),
]


@pytest.mark.parametrize("error, words, args", ERRORS, ids=[words[0] for _, words, _ in ERRORS])
def test_an_error_suggests_a_solution(error, words, args):
    with pytest.raises(error) as caught:
        ops.run(*args)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {caught.value}"


def test_print_cuda_lists_its_arguments():
    with pytest.raises(TypeError, match=r"print_cuda\(alif\): dtype must be float16, .*but is Long"):
        ops.print_cuda(ALIF, torch.long)
    with pytest.raises(ValueError, match="print_cuda: the neuron's text is not legal: line 1, column"):
        ops.print_cuda("neuron", torch.float32)


def test_the_backward_operator_checks_its_arguments():
    outputs, states, checkpoints = ops.run_forward(ALIF, [X, TAU], store_states=False, save=True)
    good = dict(neuron=ALIF, grad_outputs=outputs, grad_states=states, inputs=[X], states=[], params=[TAU],
                checkpoints=checkpoints, needs_grad=[True, True], store_states=False)
    assert len(ops.run_backward(**good)) == 2
    wrong = dict(grad_outputs=[V], grad_states=[None], checkpoints=[], needs_grad=[True])
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=r"run_backward\(alif\): .*" + name):
            ops.run_backward(**dict(good, **{name: value}))
