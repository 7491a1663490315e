"""Forward mode and second derivatives. The reference is a loop in plain torch operations, whose backward pass torch
differentiates."""

import pytest
import torch
from cases import Inputs, Options, call, numbers, random_parameters, random_states, random_x
from loops import refused
from reference import NEURONS, SURROGATES, Fire, Select, jvp, run
from torch.autograd import forward_ad

ops = torch.ops.spikeforge
every_neuron = pytest.mark.parametrize("neuron", NEURONS)
FORMS = {
    "given states": (dict(), True, True),
    "states from parameters": (dict(), True, False),
    "numbers": (dict(), False, False),
    "soft, detached": (dict(soft=True, detach_reset=True), True, True),
    "smooth": (dict(spiking=False), True, False),
    "smooth, soft": (dict(spiking=False, soft=True), True, True),
}
every_form = pytest.mark.parametrize("form", FORMS)
SMOOTH = {
    "smooth": FORMS["smooth"],
    "smooth, soft": FORMS["smooth, soft"],
    "smooth, without decay_input": (dict(spiking=False, decay_input=False), True, True),
    "smooth, soft, without decay_input": (dict(spiking=False, soft=True, decay_input=False), True, False),
}


def pair(neuron, form, device, surrogate="atan", surrogate_args=(), store_v=False):
    """Returns the operator and the reference as functions of the same tensors, and these tensors."""
    options, tensors, states = {**FORMS, **SMOOTH}[form]
    options = Options(**options, surrogate=surrogate, surrogate_args=surrogate_args)
    torch.manual_seed(3)
    shape, dtype = (2, 3), torch.float64
    params = random_parameters(neuron, shape, "per channel", dtype, device) if tensors else numbers(neuron, (), dtype, device)
    if options.soft:
        params.pop("v_reset")
    inputs = Inputs(random_x(neuron, 7, shape, dtype, device), params=params)
    if states:
        inputs.v, inputs.w = random_states(neuron, shape, dtype, device)
    names = list(inputs.tensors())

    def with_values(values):
        given = dict(zip(names, values))
        return inputs.map(lambda name, t: given[name])

    def operator(*values):
        return tuple(call(neuron, with_values(values), options, store_v))

    def reference(*values):
        i = with_values(values)
        return run(neuron, i.x, i.v, i.w, params=i.params, **options.reference()).outputs(store_v)

    return operator, reference, [t.detach().clone() for t in inputs.tensors().values()]


def directions(values, seed=11):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device) for t in values]


def loss_of(outputs):
    return sum((o * (i + 1)).sin().sum() for i, o in enumerate(outputs))


def close(actual, wanted, tolerance=1e-9):
    assert len(actual) == len(wanted)
    for i, (a, w) in enumerate(zip(actual, wanted)):
        scale = max(1.0, w.abs().max().item()) if w.numel() else 1.0
        assert (a - w).abs().max().item() <= tolerance * scale, f"{i}: {(a - w).abs().max()} of {scale}"


def second(function, values, towards):
    """Returns the derivative of <gradient of the loss, towards> with respect to all values."""
    leaves = [t.clone().requires_grad_() for t in values]
    grads = torch.autograd.grad(loss_of(function(*leaves)), leaves, create_graph=True, allow_unused=True)
    total = sum((g * t).sum() for g, t in zip(grads, towards) if g is not None)
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(t) if f is None else f for f, t in zip(found, values)]


@every_form
@every_neuron
def test_tangents_are_those_of_the_loop(neuron, form, device):
    for store_v in (False, True):
        operator, reference, values = pair(neuron, form, device, store_v=store_v)
        tangents = directions(values)
        outputs, rates = torch.func.jvp(operator, tuple(values), tuple(tangents))
        assert all(torch.equal(o, w) for o, w in zip(outputs[:1], operator(*values)[:1])), "the spikes are the same bits"
        close(outputs, operator(*values), 1e-13)
        close(rates, jvp(reference, values, tangents))
        assert rates[0].abs().sum() > 0


@every_form
@every_neuron
def test_a_gradient_is_differentiated_again(neuron, form, device):
    for store_v in (False, True):
        operator, reference, values = pair(neuron, form, device, store_v=store_v)
        towards = directions(values)
        close(second(operator, values, towards), second(reference, values, towards), 1e-8)


@every_neuron
def test_all_orders_of_the_two_modes_agree(neuron, device):
    operator, _, values = pair(neuron, "states from parameters", device)
    towards = directions(values)
    over_reverse = second(operator, values, towards)
    argnums = tuple(range(len(values)))
    gradient = torch.func.grad(lambda *v: loss_of(operator(*v)), argnums=argnums)
    close(torch.func.jvp(gradient, tuple(values), tuple(towards))[1], over_reverse, 1e-9)

    def rate(*v):
        return torch.func.jvp(lambda *w: loss_of(operator(*w)), v, tuple(towards))[1]

    close(torch.func.grad(rate, argnums=argnums)(*values), over_reverse, 1e-9)
    close(torch.func.grad(lambda *v: sum((g * t).sum() for g, t in zip(gradient(*v), towards)), argnums=argnums)(*values),
          over_reverse, 1e-9)  # fmt: skip


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_every_surrogate_is_differentiated_twice(surrogate, device):
    operator, reference, values = pair("lif", "given states", device, surrogate, SURROGATES[surrogate].other)
    towards = directions(values)
    close(second(operator, values, towards), second(reference, values, towards), 1e-7)
    assert torch.func.jvp(operator, tuple(values), tuple(towards))[1][0].isfinite().all()


def test_hessians_and_higher_derivatives(device):
    operator, reference, values = pair("lif", "smooth", device)
    x = values[0][:3, :1, :1].contiguous()
    rest = [v[..., :1] if v.dim() else v for v in values[1:]]

    def loss(function):
        return lambda x: loss_of(function(x, *rest))

    want = torch.autograd.functional.hessian(loss(reference), x)
    for found in (torch.func.hessian(loss(operator))(x), torch.func.jacrev(torch.func.jacrev(loss(operator)))(x),
                  torch.func.jacfwd(torch.func.jacfwd(loss(operator)))(x)):  # fmt: skip
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-11)

    def third(function):
        y = x.clone().requires_grad_()
        for _ in range(3):
            (y_grad,) = torch.autograd.grad(loss(function)(y) if _ == 0 else y_grad.sin().sum(), y, create_graph=True)
        return y_grad.detach()

    torch.testing.assert_close(third(operator), third(reference), rtol=1e-8, atol=1e-10)
    batch = torch.stack([x, x + 0.1, x - 0.2])
    each = torch.stack([torch.func.hessian(loss(operator))(one) for one in batch])
    torch.testing.assert_close(torch.vmap(torch.func.hessian(loss(operator)))(batch), each)


TWO = """neuron two(x, y; v = 0.25, a; tau, b) {
  h = v + (tanh(x) * y - v) / tau
  s = spike(h - 0.5 - a, s2nn(3, 0.7))
  return s, h * where(x > 0, x, 0.5 * y)
  v' = select(s, 0.1 * b, h)
  a' = 0.8 * a + b * s + 0.1 * square(y)
}"""


def two_in_torch(x, y, tau, b, v=None, a=None):
    v = torch.full(x.shape[1:], 0.25, dtype=x.dtype, device=x.device) if v is None else v
    a = torch.zeros_like(v) if a is None else a
    spikes, products = [], []
    for x_t, y_t in zip(x, y):
        h = v + (torch.tanh(x_t) * y_t - v) / tau
        s = Fire.apply(h - 0.5 - a, SURROGATES["s2nn"], (3.0, 0.7), True)
        spikes.append(s)
        products.append(h * torch.where(x_t > 0, x_t, 0.5 * y_t))
        v, a = Select.apply(h, s, 0.1 * b.expand(h.shape)), 0.8 * a + b * s + 0.1 * y_t.square()
    return torch.stack(spikes), torch.stack(products), v, a


@pytest.mark.parametrize("states", [False, True], ids=["own states", "given states"])
def test_a_custom_neuron(states, device):
    def operator(x, y, tau, b, *given):
        outputs, after = ops.run(TWO, [x, y], list(given), [tau, b])
        return (*outputs, *after)

    torch.manual_seed(7)
    options = dict(dtype=torch.float64, device=device)
    values = [2 + 2 * torch.randn(8, 4, 3, **options), 2 + 2 * torch.randn(8, 4, 3, **options), 2 + torch.rand(3, **options),
              torch.rand((), **options)]  # fmt: skip
    if states:
        values += [torch.rand(4, 3, **options), torch.rand(4, 3, **options)]
    towards = directions(values)
    assert two_in_torch(*values)[0].mean() > 0.05
    close(operator(*values), two_in_torch(*values), 1e-12)
    close(torch.func.jvp(operator, tuple(values), tuple(towards))[1], jvp(two_in_torch, values, towards))
    close(second(operator, values, towards), second(two_in_torch, values, towards), 1e-8)
    only_y = torch.func.jvp(lambda y: operator(values[0], y, *values[2:]), (values[1],), (towards[1],))[1]
    nothing = [torch.zeros_like(t) for t in towards]
    nothing[1] = towards[1]
    close(only_y, jvp(two_in_torch, values, nothing))


@pytest.mark.parametrize("form", SMOOTH)
@every_neuron
def test_the_smooth_form_by_finite_differences(neuron, form, device):
    operator, _, values = pair(neuron, form, device)
    leaves = [t[:3].clone().requires_grad_() if t.dim() > 2 else t.clone().requires_grad_() for t in values]
    assert torch.autograd.gradcheck(operator, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(operator, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_types_keep_theirs(dtype, device):
    x = torch.randn(6, 4, device=device, dtype=dtype)
    tau = torch.full((4,), 2.5, device=device)
    with forward_ad.dual_level():
        spikes, v = ops.lif(forward_ad.make_dual(x, torch.ones_like(x)), tau=tau)
        for result in (spikes, v):
            primal, tangent = forward_ad.unpack_dual(result)
            assert tangent.dtype == primal.dtype and tangent.shape == primal.shape and tangent.isfinite().all()
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(ops.lif(leaf, tau=tau)[1].square().sum(), leaf, create_graph=True)
    (again,) = torch.autograd.grad(grad.float().square().sum(), leaf)
    assert again.dtype == dtype and again.isfinite().all() and again.abs().sum() > 0


def test_gradients_have_tangents(device):
    """Forward over reverse mode: dual numbers that require a gradient."""
    text = "neuron n(x; v; tau) { h = v + (x - v) / tau; s = sigmoid(4 * (h - 1)); return s; v' = (1 - s) * h }"
    arguments = [torch.randn(size, dtype=torch.float64, device=device) for size in ((5, 3), (3,))]
    arguments = [t.requires_grad_() for t in (*arguments, torch.tensor(2.5, dtype=torch.float64, device=device))]

    def smooth_lif(x, v, tau):
        return ops.lif(x, v, tau=tau, spiking=False)

    def written(x, v, tau):
        (s,), (last,) = ops.run(text, [x], [v], [tau])
        return s, last

    def layer(x, v, tau):
        (s,), (last,), mean, var = ops.batch_norm_run(text, [x.unsqueeze(1)], [v.unsqueeze(0)], [tau])
        return s, last, mean, var

    for function in (smooth_lif, written, layer):
        assert torch.autograd.gradgradcheck(function, arguments, check_fwd_over_rev=True)


@pytest.mark.parametrize("elsewhere", ["cuda", "meta"])
def test_parameters_of_one_number_may_stay_on_the_cpu(elsewhere, request):
    if elsewhere == "cuda":
        request.getfixturevalue("cuda")
    x = torch.randn(6, 4, device=elsewhere)
    # A tensor without data cannot send a gradient to the CPU.
    tau, v_reset = torch.full((4,), 2.5, device=elsewhere), torch.tensor(0.1, requires_grad=elsewhere == "cuda")
    for parameters in (dict(tau=tau), dict(tau=2.5, v_reset=v_reset), dict(tau=tau, v_reset=v_reset)):
        with forward_ad.dual_level():
            v = ops.lif(forward_ad.make_dual(x, torch.ones_like(x)), **parameters)[1]
            assert forward_ad.unpack_dual(v).tangent.device == x.device
        leaf = x.clone().requires_grad_()
        wanted = [leaf, v_reset] if "v_reset" in parameters and v_reset.requires_grad else [leaf]
        gradients = torch.autograd.grad(ops.lif(leaf, **parameters)[1].square().sum(), wanted, create_graph=True)
        again = torch.autograd.grad(gradients[0].square().sum(), wanted)
        assert [g.device for g in again] == [t.device for t in wanted]


def test_a_neuron_that_becomes_too_large_raises(device):
    body = "".join(f"  h{i} = h{i - 1} * tanh(h{i - 1}) / (1 + square(h{i - 1}))\n" for i in range(1, 400))
    text = f"neuron long(x; v) {{\n  h0 = v + x\n{body}  return h399\n  v' = h399\n}}"
    x = torch.rand(2, 3, device=device, dtype=torch.float64)
    if device.type == "cuda":
        pytest.skip("it is longer than what a GPU runs")
    ops.run(text, [x], [], [])
    with pytest.raises(NotImplementedError, match="long: its second derivative, or forward mode: a neuron .*has at most 4096 operations"):
        torch.func.jvp(lambda x: ops.run(text, [x], [], [])[0][0], (x,), (x,))


@pytest.mark.parametrize("change, words", [
    (lambda x, v: (x[0, 0, 0], v), "x must"),
    (lambda x, v: (x, v[:1]), "v must"),
    (lambda x, v: (x, v.float()), "v must"),
    (lambda x, v: (x.long(), v), "x must"),
])
def test_wrong_calls_end_in_the_same_words_as_without_tangents(change, words, device):
    x, v = change(torch.rand(4, 3, 2, dtype=torch.float64, device=device), torch.rand(3, 2, dtype=torch.float64, device=device))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(v, torch.ones_like(v))
        refused((TypeError, ValueError), words, lambda: ops.lif(x, dual))
        text = "neuron n(x; v) { h = v + x; return h; v' = h }"
        refused((TypeError, ValueError), words, lambda: ops.run(text, [x], [dual], []))
