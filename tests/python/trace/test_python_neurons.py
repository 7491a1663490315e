"""Neurons traced from Python functions, compared with the functions on tensors, loops, and SpikingJelly's FlexSN."""

import copy
import functools
import linecache
import math
import os
import pickle
import random
import re
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from cases import all_equal, assert_close, random_gradients
from documentation import PAGES, code
from loops import refused
from reference import SURROGATES, Fire, Select

import spikeforge
from spikeforge import surrogate
from spikeforge.trace import (
    TracedNeuron, add_gradient, autograd_functions, custom_gradient, detach, from_core, neuron, select, spike, spike_strict,
    surrogate_gradient, where,
)


@neuron(states={"v": 0.0, "a": 0.0})
def alif(x, v, a, *, tau, beta=0.2):
    h = v + (x - v) / tau
    s = spike(h - (1 + beta * a), surrogate.ATan(2.0))
    return s, {"v": select(s, 0.0, h), "a": 0.9 * a + s}


@neuron(states={"v": "v_reset"})
def lif(x, v, *, tau=2.0, v_reset=-0.25):
    """Leaky integrate-and-fire."""
    h = v + (x - (v - v_reset)) / tau
    s = spike(h - 1, "sigmoid")
    return s, {"v": select(s, v_reset, h)}


def flat(result):
    outputs, states = result
    return [*(outputs if isinstance(outputs, tuple) else (outputs,)), *states.values()]


def assert_alike(actual, expected, leaves, bound=1e-9):
    """Compares two results and their gradients."""
    actual, expected = flat(actual), flat(expected)
    assert len(actual) == len(expected)
    for i, (a, e) in enumerate(zip(actual, expected)):
        assert_close(f"result {i}", a.detach(), e.detach(), bound)
    for i, (a, e) in enumerate(zip(random_gradients(actual, leaves), random_gradients(expected, leaves))):
        assert_close(f"the gradient of leaf {i}", a, e, bound)


def doubles(*shape, low=-1.0, high=3.0, device="cpu"):
    return (low + (high - low) * torch.rand(shape, dtype=torch.float64)).to(device).requires_grad_()


# --- neuron text -------------------------------------------------------------------------------------------------------


def test_a_neuron_prints_as_it_was_written():
    assert str(alif) == (
        "neuron alif(x; v, a; tau, beta) {\n"
        "  h = v + (x - v) / tau\n"
        "  s = spike(h - (1 + beta * a), atan(2))\n"
        "  return s\n"
        "  v' = select(s, 0, h)\n"
        "  a' = 0.9 * a + s\n"
        "}\n"
    )
    assert repr(alif) == "<spikeforge neuron alif(x; v, a; tau, beta)>"
    assert (alif.inputs, alif.states, alif.params, alif.outputs) == (("x",), {"v": 0.0, "a": 0.0}, ("tau", "beta"), ("s",))
    assert alif.defaults == {"beta": 0.2} and isinstance(alif, TracedNeuron)
    assert lif.__doc__ == "Leaky integrate-and-fire." and lif.__name__ == "lif"


def test_values_have_the_names_of_variables():
    def decayed(y):
        kept = 0.5 * y
        return kept + torch.tanh(kept)

    @neuron(states={"v": 0.5})
    def n(x, v):
        for _ in range(2):
            x = torch.sin(x) + 1
        v = decayed(v)
        gate, nan = torch.sigmoid(x), v - x
        return (gate, nan * gate * gate), {"v": v}

    assert n.text == (
        "neuron n(x; v = 0.5) {\n"
        "  x_2 = sin(x) + 1\n"
        "  x_3 = sin(x_2) + 1\n"
        "  kept = 0.5 * v\n"
        "  v_2 = kept + tanh(kept)\n"
        "  gate = sigmoid(x_3)\n"
        "  return gate, (v_2 - x_3) * gate * gate\n"
        "  v' = v_2\n"
        "}\n"
    ), n.text
    assert n.outputs == ("gate", "out1")


def test_long_expressions_and_repeated_ones_get_names_and_stay_legal():
    def n(x, v):
        return sum((torch.exp(-((x - 0.123456789 * i) ** 2)) for i in range(60)), 0 * v), v - (v - (v - -1.0)) / (x / v)

    traced = from_core(n, num_states=1)
    assert max(map(len, traced.text.splitlines())) < 200
    x, v = doubles(1, 6), doubles(6)
    assert_alike(traced(x, v), traced.loop(x, v), [x, v])


def test_a_number_is_printed_to_its_last_bit():
    numbers = [0.1, 1 / 3, 1e-300, 123456789.123456789, -2.5e17, 5e-324, 1e22]
    for number in numbers:
        traced = neuron(lambda x: x + number, name="n")
        assert traced(torch.zeros(1, 1, dtype=torch.float64))[0].item() == number
    zeros = neuron(lambda x: torch.where(x > 0, 0.0, -0.0), name="n")(torch.tensor([[1.0, -1.0]]))[0]
    assert zeros.signbit().tolist() == [[False, True]]
    assert neuron(lambda x: x * math.inf, name="n")(torch.ones(1, 1))[0].item() == math.inf
    assert neuron(lambda x: x + math.nan, name="n")(torch.ones(1, 1))[0].isnan().all()


def test_the_kernels_can_be_looked_at():
    assert "double" in alif.cuda_source(torch.float64) and "spikeforge_forward(" in alif.cuda_source()
    refused(TypeError, "dtype must be", lambda: alif.cuda_source(torch.long))


# --- equations ---------------------------------------------------------------------------------------------------------


def test_a_neuron_is_its_equations(device):
    x, tau, v, a = doubles(19, 3, 5, device=device), doubles(5, low=1.5, device=device), doubles(3, 5, device=device), doubles(3, 5, device=device)

    spikes, states, v_now, a_now = [], [], v, a
    for row in x:
        h = v_now + (row - v_now) / tau
        s = Fire.apply(h - (1 + 0.3 * a_now), SURROGATES["atan"], (2.0,), True)
        v_now, a_now = Select.apply(h, s, torch.zeros_like(s)), 0.9 * a_now + s
        spikes.append(s)
        states.append((v_now, a_now))
    leaves = [x, v, a, tau]
    assert 0 < torch.stack(spikes).mean() < 1
    expected = torch.stack(spikes), dict(zip("va", states[-1]))
    assert_alike(alif(x, v, a, tau=tau, beta=0.3), expected, leaves)
    assert_alike(alif.loop(x, v, a, tau=tau, beta=0.3), expected, leaves)
    sequences = torch.stack(spikes), {name: torch.stack([step[i] for step in states]) for i, name in enumerate("va")}
    assert_alike(alif(x, v, a, tau=tau, beta=0.3, store_states=True), sequences, leaves)
    assert_alike(alif.loop(x, v, a, tau=tau, beta=0.3, store_states=True), sequences, leaves)


FUNCTIONS = {  # of x in (0.1, 0.9), y in (1.1, 2.9)
    **{name: getattr(torch, name) for name in """abs sign reciprocal square sqrt rsqrt exp expm1 exp2 log log1p log2 log10 sin cos
       tan asin acos atan sinh cosh tanh erf erfc sigmoid relu floor ceil round trunc frac neg positive absolute negative arcsin arccos
       arctan sgn fix clone""".split()},
    **{f"{name} of two": functools.partial(lambda f, x, y: f(x, y), getattr(torch, name)) for name in
       "add sub mul div pow atan2 arctan2 fmod remainder minimum maximum max min subtract multiply divide true_divide".split()},
    "special": lambda x, y: torch.special.expit(x) + torch.special.erf(x) * torch.special.exp2(y) + torch.special.log1p(x),
    "functional": lambda x, y: F.softplus(x) + F.gelu(x) * F.silu(y) + F.relu(x - y) + F.leaky_relu(x - y) * F.elu(x - y),
    "functional with numbers": lambda x, y: F.leaky_relu(x - y, 0.3) + F.elu(x - y, alpha=0.7) + F.softplus(x, beta=3),
    "functional, more": lambda x, y: F.hardtanh(x, -0.5, 0.5) + F.relu6(4 * y) + F.softsign(y) + F.logsigmoid(x) + F.mish(x) + F.tanhshrink(y) + F.threshold(x, 0.5, 2.0),
    "hardsigmoid": lambda x, y: F.hardsigmoid(x - y),
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "modules": lambda x, y: torch.nn.Sigmoid()(x) * torch.nn.ReLU(inplace=True)(y - x) + torch.nn.Softplus()(y) + torch.nn.GELU()(x),
    "methods": lambda x, y: x.exp() + x.sigmoid() * y.log().tanh() - y.pow(x).clamp(max=1.5) + x.lerp(y, 0.3) + x.mul(y).sub(y).div(x).add(y, alpha=2),
    "operators": lambda x, y: (2 - x) / (3 + y) * (4 * x) / y - 5 / x + (-y) ** 2 + (+x) + abs(-x) + 7 % y.detach() + y % x + 2**x,
    "powers": lambda x, y: x**0 + x**1 + x**2 + y**3 + x**4 + x**5 + y**-1 + x**-2 + y**0.5 + x**-0.5 + x**2.7 + x**y + torch.pow(2.5, x),
    "clamp": lambda x, y: torch.clamp(x, 0.3, 0.7) + torch.clamp(x, min=0.4) * torch.clamp(y, max=2) + torch.clamp(x - y, max=-1) + torch.clip(x, y / 4, y / 3) + torch.clamp_min(x, 0.5) - torch.clamp_max(y, 1.7),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3) + torch.lerp(y, x, x),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3) + torch.addcdiv(y, x, y, value=-2),
    "add with alpha": lambda x, y: torch.add(x, y, alpha=3) - torch.sub(x, y, alpha=0.5) + torch.rsub(x, y),
    "division rounded": lambda x, y: torch.div(y, x, rounding_mode="floor") + torch.div(-y, x, rounding_mode="trunc") + y.detach() // x.detach() + torch.floor_divide(y.detach(), x.detach()),
    "where": lambda x, y: torch.where(x > 0.5, x, y) + torch.where(x < 0.4, 0.1, y) + torch.where(y > 2, x, 0.3) + x.where(x > 0.3, y) + where(x > 0.2, x * y, 1.0),
    "where of numbers": lambda x: x * torch.where(x > 0.5, 0.1, 0.7) + x * where(x < 0.3, 0.2, 0.3),
    "booleans": lambda x, y: torch.where((x > 0.5) & (y < 2) | ~(x < 0.3), x, y) + torch.where((x > 0.5) ^ (y > 2), x, 0.0) + torch.where(torch.logical_and(x > 0.2, torch.logical_not(y > 2)), y, x),
    "booleans as numbers": lambda x, y: (x > 0.5) * y + (x > 0.4) * 0.1 + (y < 2).float() - (x >= 0.3).to(x) * x + (y > 1.5).to(torch.float64) + (y > 1.7).to(x.dtype) + (1 - (x > 0.3).double()),
    "sums of booleans": lambda x, y: torch.where((x > 0.5) + (y > 2), x, y) + torch.where((x > 0.5) * (y > 2), x, y) + torch.where(torch.where(x > 0.5, y > 2, y < 1.5), x, y),
    "comparisons": lambda x, y: sum(torch.where(c, x, y) for c in (x <= 0.5, y >= 2, x == x, x != x, torch.gt(x, 0.4), torch.le(x, y), torch.eq(x, y), torch.greater_equal(y, 2.2), 0.5 < x)),
    "nan and inf": lambda x, y: sum(torch.where(c, x, y) for c in (torch.isnan(x / 0 * 0), torch.isinf(x / 0), torch.isfinite(y), torch.isfinite(y / 0))),
    "likes": lambda x, y: torch.zeros_like(x) + torch.ones_like(y) * x + torch.full_like(x, 0.3) * y,
    "types of booleans": lambda x, y: torch.where((x > 0.5).detach().expand_as(y).to("cpu").clone() | torch.zeros_like(x, dtype=torch.bool), x, y) + (x > 0.3).to("cpu", torch.float64) + (x > 0.4).type_as(y) + torch.where((x - 0.5).clamp(min=0).bool(), x, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 2, 0.5) * y,
    "identities": lambda x, y: x.to(y) * y.type_as(x).contiguous() + x.expand_as(y).view_as(x) * x.clone().to(x.device) + y.double(),
    "detach": lambda x, y: x.detach() * y + detach(y) * x + y.data,
    "numpy's numbers": lambda x, y: __import__("numpy").float64(0.3) * x + y / __import__("numpy").float32(0.5) + __import__("numpy").int64(3) - x,
    "rounding": lambda x, y: round(y) + math.floor(y) * x + math.ceil(x) * y if not isinstance(x, torch.Tensor) else torch.round(y) + torch.floor(y) * x + torch.ceil(x) * y,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_functions_of_values_are_those_of_tensors(name):
    function = FUNCTIONS[name]

    def of_both(x, y):
        return function(x, y)

    def of_x(x, y):
        return function(x) + 0 * y

    x, y = doubles(2, 3, 40, low=0.1, high=0.9), doubles(2, 3, 40, low=1.1, high=2.9)
    try:
        expected, traced = of_both(x, y), neuron(of_both)
    except TypeError:
        expected, traced = of_x(x, y), neuron(of_x)
    # torch.where(c, 0.1, 0.7) has torch's default type, float32, and so has the constant 1/6 in hardsigmoid's derivative.
    bound = 1e-7 if name in ("where of numbers", "booleans as numbers", "hardsigmoid") else 1e-12
    assert_alike(traced(x, y), (expected, {}), [x, y], bound)
    assert_alike(traced.loop(x, y), traced(x, y), [x, y], 1e-7 if name == "hardsigmoid" else 1e-12)


def test_operations_in_place_change_what_all_names_stand_for():
    def core(x, v):
        h = v
        h += x
        v.mul_(0.5).add_(x, alpha=2)
        u = h.clone()
        u.sub_(1).mul_(0.7)
        torch.sigmoid_(u)
        w = 2 * u
        F.relu(w, inplace=True)
        u = 1 * w
        u /= h
        u[h > 1] = 0.25
        return u * h, v

    traced = from_core(core, num_states=1)
    x, v = doubles(5, 4), doubles(4)
    before = x.detach().clone()
    outputs, now = [], v
    for row in x:
        following = (now + row) * 0.5 + 2 * row
        u = torch.relu(2 * torch.sigmoid(0.7 * (following - 1))) / following
        outputs.append(torch.where(following > 1, torch.full_like(u, 0.25), u) * following)
        now = following
    expected = torch.stack(outputs), {"v": now}
    assert_alike(traced(x, v), expected, [x, v])
    assert_alike(traced.loop(x, v), expected, [x, v])
    assert torch.equal(x, before)


# --- random neurons ----------------------------------------------------------------------------------------------------

NAMES = ["x", "y", "v", "w", "p", "q"]
OF_ONE = ["torch.tanh({})", "torch.sin({})", "torch.sigmoid({})", "({}).cos()", "torch.exp(-torch.abs({}))", "F.softplus({})",
          "torch.atan({})", "torch.log1p(({}) ** 2)", "torch.sqrt(1 + torch.square({}))", "-({})", "torch.erf({})", "F.silu({})",
          "F.gelu({})", "F.relu({})", "torch.clamp({}, -1, 1)", "F.leaky_relu({}, 0.2)", "F.elu({})", "({}) ** 2", "({}) ** 3",
          "torch.round({})", "detach({})", "torch.reciprocal(2 + torch.cos({}))", "spike({} - 0.5, surrogate.Erf())",
          "spike({}, lambda u: 0.3 / (1 + torch.square(u)))", "spike_strict({}, 'sigmoid')", "torch.expm1(torch.tanh({}))",
          "custom_gradient(torch.floor({0}), {0}, 0.5)", "torch.asin(0.9 * torch.tanh({}))"]
OF_TWO = ["({}) + ({})", "({}) - ({})", "({}) * ({})", "({}) / (2 + torch.sin({}))", "torch.maximum({}, {})", "torch.minimum({}, {})",
          "torch.atan2({}, 1.5 + torch.cos({}))", "torch.remainder({}, 2.5) + ({})", "select(spike({}, 'atan'), {}, 0.3)",
          "torch.pow(1.5 + torch.tanh({}), {})", "torch.fmod({}, 1.7) * ({})", "surrogate_gradient({}, surrogate.ATan(1.5)).detach() * ({})"]
OF_THREE = ["torch.where(({}) > ({}), {}, 0.25)", "torch.lerp({}, {}, torch.sigmoid({}))", "torch.clamp({}, torch.sin({}) - 1, torch.cos({}) + 1)",
            "add_gradient({}, {}, torch.tanh({}))", "where((({}) < 0.5) & (({}) > -1), {}, -0.75)", "torch.addcmul({}, {}, {}, value=0.5)"]


def random_expression(dice, names, depth):
    if depth == 0 or dice.random() < 0.15:
        return str(round(dice.uniform(-2, 2), 3)) if dice.random() < 0.15 and depth < 3 else dice.choice(names)
    form = dice.choice(dice.choice([OF_ONE, OF_TWO, OF_THREE]))
    parts = [random_expression(dice, names, depth - 1) for _ in range(max(1, form.count("{}")))]
    if all(re.fullmatch(r"-?[\d.]+", part) for part in parts):
        parts[0] = dice.choice(names)
    # torch's functions need tensors here, although scalars would be sufficient.
    return form.format(*(part if not re.fullmatch(r"-?[\d.]+", part) else f"({part} + 0 * {names[0]})" for part in parts))


def random_neuron(seed):
    dice = random.Random(seed)
    names, lines = list(NAMES), []
    for i in range(dice.randint(1, 5)):
        lines.append(f"    t{i} = {random_expression(dice, names, 3)}")
        names.append(f"t{i}")
    out, v, w = (random_expression(dice, names, 2) for _ in range(3))
    lines.append(f"    return (torch.tanh({out} + 0 * y), t0 + 0 * x), {{'v': torch.tanh({v} + 0 * y), 'w': 0.9 * torch.sin({w} + 0 * v)}}")
    source = "def random_neuron(x, y, v, w, *, p, q=0.7):\n" + "\n".join(lines)
    scope = dict(globals())
    exec(compile(source, f"<random neuron {seed}>", "exec"), scope)
    return neuron(states={"v": 0.1, "w": "q"})(scope["random_neuron"]), source


def test_random_neurons_are_the_loops_of_their_functions(device):
    steps, wrong, flipped = 4, 0, 0
    for seed in range(120 if device.type == "cpu" else 30):  # fewer on a GPU, where kernels are compiled
        traced, source = random_neuron(seed)
        torch.manual_seed(seed)
        x, y = doubles(steps, 3, 4, device=device), doubles(steps, 3, 4, device=device)
        p, q, v = doubles(4, device=device), doubles(3, 1, low=0.3, high=1, device=device), doubles(3, 4, device=device)
        given = [v, None] if seed % 2 else [None, None]
        actual, expected = traced(x, y, *given, p=p, q=q), traced.loop(x, y, *given, p=p, q=q)
        leaves = [x, y, p, q] + [v] * (seed % 2)
        same = all(torch.allclose(a, e, rtol=1e-8, atol=1e-10, equal_nan=True) for a, e in zip(flat(actual), flat(expected)))
        if not same:  # rounding may cross a jump of round, floor or spike
            flipped += 1
            continue
        for i, (a, e) in enumerate(zip(random_gradients(flat(actual), leaves), random_gradients(flat(expected), leaves))):
            if not torch.allclose(a, e, rtol=1e-6, atol=1e-8 * max(1.0, e.nan_to_num().abs().max().item()), equal_nan=True):
                wrong += 1
                print(f"seed {seed}: leaf {i} differs by {(a - e).abs().max()}\n{source}\n{traced.text}")
    assert flipped <= 2 and wrong == 0, f"{flipped} neurons differ, {wrong} gradients"


# --- spikes, surrogates and gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SURROGATES)
def test_a_surrogate_has_its_derivative(name):
    made = surrogate.SURROGATES[name](*(int(n) if name == "squarewave_fourier" and not i else n for i, n in enumerate(SURROGATES[name].other)))
    traced = neuron(lambda u, x: spike(u, made) + 2 * spike_strict(u, name) + surrogate_gradient(u, made) * x, name="n")
    u, x = doubles(2, 50, low=-2, high=2), doubles(2, 50)
    of_other, by_default = (SURROGATES[name].gradient(u.detach(), *args) for args in (SURROGATES[name].other, SURROGATES[name].defaults))
    for run in (traced, traced.loop):
        output = run(u, x)[0]
        assert_close("the value", output.detach(), (3 * (u >= 0).double() + of_other * x).detach(), 1e-6)
        by_u, by_x = torch.autograd.grad(output.sum(), [u, x])
        assert_close("the gradient", by_u, of_other + 2 * by_default, 1e-6)
        assert_close("what it is a factor of", by_x, of_other, 1e-6)


OWN = {
    "function": lambda u: 1 / (1 + 3 * torch.abs(u)) ** 2,
    "expression": surrogate.Custom("1 / square(1 + w * abs(u))", w=3.0),
    "longer expression": surrogate.Custom("where(u >= inf and not true or u < 0, 1, 1.0) / square(1 + -w * -abs(u))", w=3),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_custom_surrogate(kind):
    traced = neuron(lambda u: spike(u, OWN[kind]), name="n")
    u = doubles(2, 50, low=-2, high=2)
    for run in (traced, traced.loop):
        found = torch.autograd.grad(run(u)[0].sum(), u)[0]
        assert_close("the gradient", found, 1 / (1 + 3 * u.detach().abs()) ** 2)


def test_a_surrogate_with_a_parameter_that_learns():
    traced = neuron(lambda u, *, width: spike(u, lambda d: width / (1 + torch.abs(d))), name="n")
    u, width = doubles(2, 50, low=-2, high=2), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    for run in (traced, traced.loop):
        by_u, by_width = torch.autograd.grad(run(u, width=width)[0].sum(), [u, width], allow_unused=True)
        assert_close("the gradient", by_u, 1.5 / (1 + u.detach().abs()))
        assert by_width is None or by_width == 0


def test_custom_gradients_and_a_reset_at_infinity():
    def f(x, y):
        rounded = custom_gradient(torch.round(x), x, where(torch.abs(x) < 2, 1.0, 0.0), y, x)
        return add_gradient(rounded * y, y, 5.0) + select(spike(x - 1, "atan"), 0.25, y)

    x, y = doubles(1, 60), doubles(1, 60)
    near, fired, theta = (x.abs() < 2).double(), (x >= 1).double(), 1 / (1 + (math.pi * (x.detach() - 1)) ** 2)
    by_x = y * near + theta * (0.25 - y)
    by_y = x.round() + y * x + 5 + 1 - fired
    for run in (neuron(f), neuron(f).loop):
        output = run(x, y)[0]
        assert_close("the value", output.detach(), (x.round() * y + torch.where(x >= 1, torch.full_like(y, 0.25), y)).detach())
        found = torch.autograd.grad(output.sum(), [x, y])
        assert_close("by x", found[0], by_x.detach())
        assert_close("by y", found[1], by_y.detach())
        reset = run(torch.full((1, 2), 2.0), torch.full((1, 2), math.inf))[0]
        assert neuron(lambda x, y: select(spike(x, "atan"), 0.0, y), name="n")(*(torch.full((1, 2), z) for z in (2.0, math.inf)))[0].eq(0).all(), reset


# Functions of an input x and a state v, and whether their results have a gradient with respect to x.
GRADIENTS = {
    "a comparison": (lambda x, v: ((v + x > 1).float(), {"v": v + x}), False),
    "rounding": (lambda x, v: (torch.floor(v + x), {"v": v + x}), False),
    "no derivative": (lambda x, v: (spike(v + x, "none"), {"v": v + x}), False),
    "detach": (lambda x, v: (detach(v + x), {"v": v + x}), False),
    "a state whose own is lost": (lambda x, v: (v, {"v": where(x > 1, 1.0, 0.5 * v)}), False),
    "a spike": (lambda x, v: (spike(v + x, "atan"), {"v": v + x}), True),
    "a custom gradient": (lambda x, v: (add_gradient(where(x > 0, 1.0, 0.0), x, 0.5), {"v": v}), True),
    "a branch": (lambda x, v: (where(v > 1, x, 0.0), {"v": v + x}), True),
    "a state, a step later": (lambda x, v: (v, {"v": torch.relu(x)}), True),
    "noise": (lambda x, v: (where(v > 0, 1.0, 0.0), {"v": torch.randn_like(v)}), True),  # no function of x
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_training_with_a_neuron_that_passes_no_gradient_is_warned_of(name):
    function, is_legal = GRADIENTS[name]
    made = neuron(function, states={"v": 0.0}, name="made")
    x = torch.rand(4, 3) + 0.5
    for call in (made, spikeforge.nn.Neuron(made), pickle.loads(pickle.dumps(spikeforge.nn.Neuron(made)))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(x)
            with torch.no_grad():
                call(x.clone().requires_grad_())
            if is_legal:
                call(x.clone().requires_grad_())
        if not is_legal:
            with pytest.warns(UserWarning, match="made: an input requires a gradient, but no output passes one") as found:
                call(x.clone().requires_grad_())
            assert found[0].filename == __file__


def test_a_neuron_that_passes_no_gradient_runs_as_any_other():
    """A recurrent layer with it is one operator, which accepts lengths, and warns."""
    made = neuron(GRADIENTS["a comparison"][0], states={"v": 0.0}, name="made")
    net = spikeforge.nn.Recurrent(spikeforge.nn.Neuron(made), torch.nn.Linear(3, 3))
    assert "one operator over time" in repr(net)
    with pytest.warns(UserWarning, match="made: an input requires a gradient, but no output passes one"), torch.profiler.profile() as profile:
        net(torch.rand(4, 2, 3), lengths=[4, 2])
    assert sum(event.name == "spikeforge::recurrent_run" for event in profile.events()) == 1


def test_a_neuron_of_an_older_pickle_has_no_verdict_on_its_gradient():
    made = neuron(GRADIENTS["a comparison"][0], states={"v": 0.0}, name="made")
    restore, (module, qualname, text, data) = made.__reduce__()
    del data["passes_gradient"]
    older = restore(module, qualname + " of old", text, data)
    x = torch.rand(4, 3)
    assert torch.equal(older(x)[0], made(x)[0]) and torch.equal(spikeforge.nn.Neuron(older)(x), made(x)[0])


def test_no_grad_stops_gradients():
    def f(x, y):
        with torch.no_grad():
            a = x * y
        return a + x

    x, y = doubles(1, 9), doubles(1, 9)
    for run in (neuron(f), neuron(f).loop):
        by_x, by_y = torch.autograd.grad(run(x, y)[0].sum(), [x, y], allow_unused=True)
        assert by_x.eq(1).all() and (by_y is None or by_y.eq(0).all())


class Hat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, width):
        ctx.save_for_backward(x)
        ctx.width = width
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = grad_output.clone()
        hat = torch.clamp(1 - x.abs() / ctx.width, min=0)
        return torch.where(x.abs() < 10, -(-hat * grad), 0.0) / ctx.width, None


class Scaled(torch.autograd.Function):
    """A function with setup_context, two gradients, and in-place operations."""

    @staticmethod
    def forward(x, y, scale=2.0):
        return torch.floor(x * y).mul_(scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * y + grad_output, x * grad_output - 0.5 * (grad_output * y), None


@pytest.mark.parametrize("f", [lambda x, y: Hat.apply(x, 1.5) * y, lambda x, y: Scaled.apply(x, y) + Scaled.apply(y, x, 3.0)], ids=["Hat", "Scaled"])
def test_autograd_functions_keep_their_backward(f):
    x, y = doubles(2, 60, low=-2), doubles(2, 60)
    assert_alike(neuron(f, name="n")(x, y), (f(x, y), {}), [x, y])


def test_tracing_leaves_torch_as_it_was():
    before = torch.autograd.Function.__dict__["apply"]
    with pytest.raises(TypeError):
        neuron(lambda x: float(x), name="n")
    neuron(lambda x: Hat.apply(x, 1.0), name="n")
    assert torch.autograd.Function.__dict__["apply"] is before


def test_a_child_that_is_forked_while_a_thread_traces_can_trace():
    is_held = threading.Event()

    def hold():
        with autograd_functions._lock:
            is_held.set()
            time.sleep(0.2)

    holding = threading.Thread(target=hold)
    holding.start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if neuron(lambda x: x * 2).outputs == ("out",) else 1)
    assert os.waitpid(child, 0)[1] == 0
    holding.join()


def test_threads_trace_side_by_side():
    barrier = threading.Barrier(8)

    def work(i):
        def step(x, v):
            barrier.wait(timeout=60)
            u = doubles(5)
            (given,) = torch.autograd.grad(Hat.apply(u, 2.0).sum(), u)  # torch's own call during the trace
            assert given.isfinite().all()
            h = v * float(i) + x
            return Hat.apply(h, float(i + 1)), h

        return from_core(step, num_states=1, name="n").text

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(work, range(8)))
    assert all(f"v * {i} + x" in text for i, text in enumerate(texts)), texts


# --- Python in functions -----------------------------------------------------------------------------------------------


def test_python_decides_on_numbers():
    order, soft = 3, True

    @neuron(states={"v": 0.0}, constants={"decay_input": False})
    def n(x, v, *, tau, decay_input, scale=(1.0, 2.0)):
        h = v + (x - v) / tau if decay_input else v - v / tau + x
        for i in range(order):
            h = h + scale[i % 2] * torch.sin(h)
        s = spike(h - 1, "atan")
        return s, {"v": h - s if soft else select(s, 0, h)}

    assert n.params == ("tau",) and n.constants == {"decay_input": False, "scale": (1.0, 2.0)}
    assert n.text.count("sin") == 3 and "v' = h_4 - s" in n.text and "v - v / tau + x" in n.text
    other = n.fixed(decay_input=True, tau=2.5)
    assert other.params == () and "v + (x - v) / 2.5" in other.text
    x = doubles(3, 4)
    assert_alike(other(x), other.loop(x), [x])
    with pytest.raises(TypeError, match="n: gain is not a parameter or constant; there are tau, decay_input, scale"):
        n.fixed(gain=1)


def test_a_neuron_within_a_neuron():
    @neuron(states={"v": 0.0, "a": 0.0, "y": 0.0})
    def filtered(x, v, a, y, *, tau):
        s, states = alif.step(x, v, a, tau=tau, beta=0.5)
        return 0.5 * y + s, {**states, "y": 0.5 * y + s}

    x, tau = doubles(9, 4), doubles(4, low=1.5)
    spikes, states = alif(x, tau=tau, beta=0.5)
    y, rows = 0, []
    for s in spikes:
        y = 0.5 * y + s
        rows.append(y)
    assert_alike(filtered(x, tau=tau), (torch.stack(rows), {**states, "y": y}), [x, tau])


def test_a_partial_and_an_object_can_be_traced():
    class Lif:
        def __init__(self, tau):
            self.tau = tau

        def __call__(self, x, v):
            h = v + (x - v) / self.tau
            return h, h

    def core(x, v, tau):
        h = v + (x - v) / tau
        return h, h

    x = doubles(3, 4)
    first, second = from_core(Lif(3.0), num_states=1), from_core(functools.partial(core, tau=3.0), num_states=1)
    assert first.name == "Lif" and second.name == "core" and first.text.replace("Lif", "core").count("/ 3") == 1
    assert_alike(first(x), second(x), [x])
    assert neuron(lambda x: x + 1).name == "lambda_neuron"


# --- errors ------------------------------------------------------------------------------------------------------------

WEIGHT, NUMBER = torch.rand(3), torch.tensor(0.5)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad_output):
        return torch.clamp(grad_output, -1, 1)


def branches(x, v):
    if v > 1:
        return x, v
    return v, x


BAD = {
    "if": (branches, TypeError, [r"branches: the truth of a value is not known", r"spikeforge.trace.where\(condition, a, b\)", r"`if v > 1:`", r"test_python_neurons.py:\d+"]),
    "and": (lambda x, v: (x > 0 and v, v), TypeError, ["truth", "& | ~"]),
    "not": (lambda x, v: (not x, v), TypeError, ["truth"]),
    "chain": (lambda x, v: (where(0 < x < 1, x, 0), v), TypeError, ["truth", "a < b < c"]),
    "max": (lambda x, v: (max(x, v), v), TypeError, ["torch.minimum"]),
    "float": (lambda x, v: (math.exp(x), v), TypeError, ["torch.exp, not math.exp"]),
    "int": (lambda x, v: (int(x), v), TypeError, ["torch.trunc"]),
    "range": (lambda x, v: (sum(x for _ in range(v)), v), TypeError, ["constant of the trace"]),
    "item": (lambda x, v: (x.item(), v), TypeError, ["item is not supported", "not a Python number"]),
    "numpy": (lambda x, v: (x.numpy(), v), TypeError, ["numpy", "not a Python number"]),
    "numpy function": (lambda x, v: (__import__("numpy").exp(x), v), TypeError, ["numpy.exp", "torch's functions"]),
    "array": (lambda x, v: (__import__("numpy").asarray(x), v), TypeError, ["not NumPy's"]),
    "closure": (lambda x, v: (x * WEIGHT, v), TypeError, [r"tensor of shape \[3\]", "make it a parameter"]),
    "closure first": (lambda x, v: (WEIGHT * x, v), TypeError, [r"tensor of shape \[3\]", "make it a parameter"]),
    "closure of one number": (lambda x, v: (torch.maximum(x, NUMBER), v), TypeError, [r"tensor of shape \[\]", r"tensor.item\(\)"]),
    "closure alone": (lambda x, v: (WEIGHT, v), TypeError, ["output 0 is a tensor", "make it a parameter"]),
    "matmul": (lambda x, v: (x @ v, v), TypeError, ["element by element"]),
    "linear": (lambda x, v: (torch.nn.Linear(2, 2)(x), v), TypeError, ["linear is not supported", "element by element"]),
    "sum": (lambda x, v: (x.sum(), v), TypeError, ["sum is not supported", "reduce outside"]),
    "max of one": (lambda x, v: (torch.max(x), v), TypeError, ["max", "reduce outside"]),
    "random": (lambda x, v: (torch.randperm(x), v), TypeError, ["randperm"]),
    "unknown": (lambda x, v: (torch.lgamma(x), v), TypeError, ["lgamma is not supported for a neuron's values", "supported are abs absolute acos add"]),
    "shape": (lambda x, v: (torch.zeros(x.shape), v), AttributeError, ["shape"]),
    "index": (lambda x, v: (x[0], v), TypeError, ["one element"]),
    "assign": (lambda x, v: (x.__setitem__(0, v), v), TypeError, ["where"]),
    "masked": (lambda x, v: (x[v > 0], v), TypeError, ["where"]),
    "out": (lambda x, v: (torch.exp(x, out=v), v), TypeError, [r"the supported form is exp\(input\)"]),
    "half": (lambda x, v: (x.half(), v), TypeError, ["dtype of its inputs"]),
    "to int": (lambda x, v: (x.to(torch.int32), v), TypeError, ["torch.trunc"]),
    "text": (lambda x, v: (x + "a", v), TypeError, ["accepts values and numbers, not str"]),
    "boolean output": (lambda x, v: (x > 0, v), TypeError, ["output 0 is a boolean", r"where\(condition, 1, 0\)"]),
    "numbers as booleans": (lambda x, v: (x & v, v), TypeError, ["expected a boolean", "comparison"]),
    "heaviside": (lambda x, v: (torch.heaviside(x, v), v), TypeError, ["spikeforge.spike"]),
    "clamp": (lambda x, v: (torch.clamp(x), v), (TypeError, ValueError), ["clamp"]),
    "surrogate": (lambda x, v: (spike(x, "hat"), v), ValueError, ['unknown surrogate "hat"', "atan"]),
    "surrogate's class": (lambda x, v: (spike(x, surrogate.ATan), v), TypeError, [r"write ATan\(\)"]),
    "surrogate's type": (lambda x, v: (spike(x, 2.0), v), TypeError, ["not float"]),
    "expression": (lambda x, v: (spike(x, surrogate.Custom("1 / width")), v), ValueError, ['nothing above is called "width"']),
    "complex": (lambda x, v: (complex(x), v), TypeError, ["real"]),
    "backward": (lambda x, v: (Clipped.apply(x), v), TypeError,
                 ["Clipped.backward: returns a gradient that is not a multiple of its grad_output"]),
    "None": (lambda x, v: (x, None), TypeError, ["state v must be a value or a number, not NoneType"]),
}


@pytest.mark.parametrize("case", BAD)
def test_an_error_of_the_trace_names_the_line(case):
    function, error, words = BAD[case]
    with pytest.raises(error) as caught:
        from_core(function, num_states=1)
    for word in words:
        assert re.search(word, str(caught.value)), f"{word!r} is not in {caught.value}"
    assert "\n" not in str(caught.value)


def test_a_value_outlives_no_trace():
    kept = []
    neuron(lambda x: kept.append(x) or x, name="n")
    refused(TypeError, "no meaning after its function has returned", lambda: kept[0] + 1)
    refused(TypeError, "n: .*a value of another trace", lambda: neuron(lambda x: x + kept[0], name="n"))


def good(x, v, *, tau=2.0):
    return x + v / tau, {"v": v}


SIGNATURES = [
    (dict(states={"w": 0}), good, TypeError, "good: states has 'w', but the function has no positional argument of this name; it has x, v"),
    (dict(states={"x": 0}), good, TypeError, "good: v comes after a state, and is not named in states"),
    (dict(states={"v": 0, "x": 0}), good, TypeError, "good: a neuron has at least one input"),
    (dict(states=["v"]), good, TypeError, "good: states must be a dict from each state to its initial value, not a list"),
    (dict(states={"v": None}), good, TypeError, "good: state v: the initial value must be a number, a parameter's name or a function of parameters, not a NoneType"),
    (dict(states={"v": "rest"}), good, ValueError, "good: state v: the initial value is rest, which is not a parameter; parameters are tau"),
    (dict(states={"v": lambda rest: rest}), good, ValueError, "good: state v: the initial value is rest, which is not a parameter"),
    (dict(states={"v": 0}, constants={"gain": 1}), good, TypeError, "good: constants has gain, which is not an argument of the function"),
    (dict(states={"v": 0}, name="my neuron"), good, ValueError, "cannot be called 'my neuron'"),
    (dict(), lambda x, *more: x, TypeError, "named one by one"),
    (dict(), lambda x, tau=2.0: x, TypeError, r"tau has a default, so it is neither an input nor a state: put it after the star, \*, tau=2.0"),
    (dict(), lambda τ: τ, ValueError, "an input cannot be called 'τ'"),
    (dict(), lambda neuron: neuron, ValueError, "an input cannot be called 'neuron'"),
    (dict(), lambda store_states: store_states, ValueError, "which is an argument of every call"),
    (dict(states={"v": 0}), lambda x, v: x, TypeError, r"must return its outputs and a dict of next states \(return outputs, {'v': ...}\), but returns Value"),
    (dict(states={"v": 0}), lambda x, v: (x, v), TypeError, "but returns a tuple of 2: Value, Value"),
    (dict(states={"v": 0}), lambda x, v: (x, {}), ValueError, "the next value of state v is not returned"),
    (dict(states={"v": 0}), lambda x, v: (x, {"v": v, "w": v}), ValueError, "returns a next value of 'w', which is not a state; states are v"),
    (dict(states={"v": 0}), lambda x, v: (x, {"v": "a"}), TypeError, "state v must be a value or a number, not str"),
    (dict(states={"v": 0}), lambda x, v: ((), {"v": v}), TypeError, "returns no output"),
    (dict(), lambda x: torch.exp(sum(x * i for i in range(5000))), ValueError, "equations are not legal neuron text: .*at most 4096 operations"),
]


@pytest.mark.parametrize("options, function, error, words", SIGNATURES, ids=[words[:60] for *_, words in SIGNATURES])
def test_a_function_of_another_form_is_refused_in_words(options, function, error, words):
    refused(error, words, lambda: neuron(**options)(function))


X = torch.rand(4, 3)
CALLS = [
    (lambda: alif(tau=2.0), TypeError, r"alif: input x must be a tensor \[T, \*shape\], but is None"),
    (lambda: alif(2.0, tau=2.0), TypeError, r"alif: input x must be a tensor \[T, \*shape\], but is 2.0 \(float\)"),
    (lambda: alif(X), TypeError, r"alif: parameter tau is missing: alif\(..., tau=...\)"),
    (lambda: alif(X, tau="2"), TypeError, "alif: parameter tau must be a number or a tensor, but is '2'"),
    (lambda: alif(X, tau=True), TypeError, "alif: parameter tau must be a number or a tensor, but is True"),
    (lambda: alif(X, tau=2.0, gain=1), TypeError, r"alif: gain is not an argument; it takes x; v, a; tau, beta"),
    (lambda: alif(X, {"v": X[0]}, tau=2.0), TypeError, r"alif: state v must be a tensor .* but is a dict; pass a dict of states as \*\*states"),
    (lambda: alif(X, X, X, X, tau=2.0), TypeError, "alif: takes x; v, a; tau, beta .*, but 4 positional arguments are given"),
    (lambda: alif(X.long(), tau=2.0), TypeError, r"run\(alif\): x must be float16"),
    (lambda: alif(X, torch.rand(4), tau=2.0), ValueError, r"run\(alif\): v must have shape \[3\]"),
    (lambda: alif(X, tau=torch.rand(2)), ValueError, r"run\(alif\): tau must broadcast against \[3\]"),
]


@pytest.mark.parametrize("call, error, words", CALLS, ids=[words[:50] for *_, words in CALLS])
def test_a_wrong_call_raises_a_clear_error(call, error, words):
    refused(error, words, call)


# --- calls -------------------------------------------------------------------------------------------------------------


def test_states_are_handed_on_by_name_position_or_not_at_all():
    x = 3 * torch.rand(12, 3, 4)
    whole, last = alif(x, tau=2.0)
    first, states = alif(x[:5], tau=2.0)
    second, after = alif(x[5:], **states, tau=2.0)
    assert torch.equal(torch.cat([first, second]), whole) and all(torch.equal(after[name], last[name]) for name in "va")
    assert all_equal(flat(alif(x[5:], *states.values(), tau=2.0)), flat((second, after)))
    zero = torch.zeros(3, 4)
    assert all_equal(flat(alif(x, None, zero, tau=2.0)), flat((whole, last)))
    assert all_equal(flat(alif(x=x, v=zero, tau=torch.tensor(2.0))), flat((whole, last)))


def test_defaults_of_parameters_are_those_of_the_signature():
    x = doubles(5, 3)
    assert all_equal(flat(lif(x)), flat(lif(x, tau=2.0, v_reset=torch.tensor(-0.25, dtype=torch.float64))))
    assert not torch.equal(flat(lif(x))[1], flat(lif(x, v_reset=0.0))[1])


def test_a_state_starts_at_a_parameter_or_at_what_a_function_makes_of_parameters():
    @neuron(states={"v": "rest", "w": lambda rest, gain: rest * gain + 1, "u": 0.5})
    def n(x, v, w, u, *, rest, gain=3.0):
        return 0.5 * v + x * w + u, {"v": 0.5 * v + x, "w": w * 0.9 - v, "u": u * x}

    assert n.states == {"v": 0.0, "w": 0.0, "u": 0.5} and "u = 0.5" in n.text
    x, rest, gain = doubles(4, 2, 3), doubles(3), doubles(2, 1)
    first = [rest.expand(2, 3), (rest * gain + 1).expand(2, 3), torch.full((2, 3), 0.5, dtype=torch.float64)]
    expected = n(x, *first, rest=rest, gain=gain)
    assert_alike(n(x, rest=rest, gain=gain), expected, [x, rest, gain])
    assert_alike(n.loop(x, rest=rest, gain=gain), expected, [x, rest, gain])
    by_numbers = n(x, rest=0.3)
    assert_alike(by_numbers, n(x, rest=torch.tensor(0.3, dtype=torch.float64)), [x])
    assert [state.shape for state in n.initial_states([x], [rest, gain])] == [(2, 3)] * 3 and alif.initial_states([x], [rest, gain]) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_are_those_of_the_operators(dtype):
    x = (3 * torch.rand(6, 4)).to(dtype)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    for run in (lif, lif.loop):
        spikes, states = run(x, tau=1.7)
        assert spikes.dtype == dtype and states["v"].dtype == wide
    assert_close("v", lif(x, tau=1.7)[1]["v"], lif.loop(x, tau=1.7)[1]["v"], 1e-5)


@pytest.mark.parametrize("shape", [(0, 3), (4,), (3, 0), (1, 2, 3, 2)])
def test_edges_of_shape(shape):
    x = torch.rand(shape)
    for a, b in zip(flat(lif(x)), flat(lif.loop(x))):
        assert a.shape == b.shape and torch.allclose(a, b, atol=1e-6)


def test_several_outputs_and_none_of_the_states():
    traced = neuron(lambda x, y: (x + y, torch.exp(x), 0.5), name="n")
    x, y = doubles(3, 2), doubles(3, 2)
    (first, second, third), states = traced(x, y)
    assert states == {} and torch.equal(first, x + y) and third.eq(0.5).all() and third.shape == x.shape
    assert_alike(traced.loop(x, y), ((first, second, third), {}), [x, y])


# --- PyTorch -----------------------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tau = torch.nn.Parameter(torch.full((4,), 2.0))
        self.beta = 0.3

    def forward(self, x):
        spikes, states = alif(x, tau=self.tau, beta=self.beta)
        y, _ = lif(spikes, tau=self.tau)
        return spikes, y, alif(2 * x, **states, tau=2.5)[1]


COMPILERS = {
    "aot_eager": lambda layer, x: torch.compile(layer, fullgraph=True, backend="aot_eager"),
    "inductor": lambda layer, x: torch.compile(layer, fullgraph=True, backend="inductor"),
    "strict export": lambda layer, x: torch.export.export(layer, (x,), strict=True).module(),
    "export": lambda layer, x: torch.export.export(layer, (x,), strict=False).module(),
}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_or_exported_it_is_the_same(compiler):
    layer, x = Layer(), 3 * torch.rand(6, 2, 4)
    torch._dynamo.reset()
    compiled = COMPILERS[compiler](layer, x)
    found, wanted = compiled(x), layer(x)
    assert all_equal([*found[:2], found[2]["v"]], [*wanted[:2], wanted[2]["v"]])
    by_compiled, by_eager = (
        torch.autograd.grad(results[1].sum() + results[2]["a"].sum(), list(module.parameters()))[0]
        for results, module in ((found, compiled), (wanted, layer))
    )
    assert torch.allclose(by_compiled, by_eager, rtol=1e-5)


def test_a_traced_neuron_as_a_module_has_the_same_bits():
    x, tau = 3 * torch.rand(6, 2, 4), torch.nn.Parameter(torch.full([4], 2.0))
    layer = spikeforge.nn.Neuron(alif, tau=tau, beta=0.3)
    assert torch.equal(layer(x), alif(x, tau=tau, beta=0.3)[0])
    assert torch.equal(spikeforge.nn.Neuron(lif, v_reset=-0.5)(x), lif(x, v_reset=-0.5)[0])


def test_it_can_be_copied_and_pickled():
    assert copy.deepcopy(alif) is alif and pickle.loads(pickle.dumps(alif)) is alif
    local = neuron(states={"v": 0.0, "w": lambda rest: 2 * rest})(lambda x, v, w, *, rest=0.5: (v + x, {"v": v * x, "w": w}))
    loaded, x = pickle.loads(pickle.dumps(local)), torch.rand(3, 2)
    assert (loaded.text, loaded.states, loaded.defaults) == (local.text, local.states, local.defaults)
    w = torch.rand(2)
    assert torch.equal(loaded(x, None, w)[0], local(x, None, w)[0])
    refused(ValueError, "state w: the function of its initial value was not pickled", lambda: loaded(x))
    refused(ValueError, "its function is not available", lambda: loaded.loop(x))


def test_vmap_is_a_loop():
    x, tau = torch.rand(5, 6, 3), 1.5 + torch.rand(5, 3)
    mapped, _ = torch.vmap(lambda x, tau: alif(x, tau=tau))(x, tau)
    for i in range(5):
        assert torch.equal(mapped[i], alif(x[i], tau=tau[i])[0])


# --- FlexSN ------------------------------------------------------------------------------------------------------------

SPIKINGJELLY = {
    "PiecewiseQuadratic": {"alpha": 1.3}, "PiecewiseExp": {"alpha": 1.3}, "Sigmoid": {"alpha": 3.0}, "SoftSign": {"alpha": 1.5},
    "SuperSpike": {"alpha": 1.5}, "ATan": {"alpha": 2.5}, "NonzeroSignLogAbs": {"alpha": 1.2}, "Erf": {"alpha": 1.7},
    "PiecewiseLeakyReLU": {"w": 0.8, "c": 0.05}, "SquarewaveFourierSeries": {"n": 3, "T_period": 6.5}, "S2NN": {"alpha": 3.0, "beta": 0.7},
    "QPseudoSpike": {"alpha": 2.3}, "LeakyKReLU": {"leak": 0.1, "k": 0.9}, "FakeNumericalGradient": {"alpha": 0.4},
    "LogTailedReLU": {"alpha": 0.2}, "DeterministicPass": {}, "Rect": {"alpha": 1.1},
}


FIRE = {}  # FlexSN does not support closures over modules


def their_lif(x, v):
    tau, v_th = 2.0, 1.0
    h = v + (x - v) / tau
    s = FIRE["x"](h - v_th)
    return s, h * (1.0 - s)


def spikingjelly():
    pytest.importorskip("spikingjelly")
    from spikingjelly.activation_based import neuron as theirs
    from spikingjelly.activation_based import surrogate as their_surrogates

    return theirs.FlexSN, their_surrogates


def assert_is_flexsn(core, num_states, inputs, static=(), **options):
    """Checks that spikes and states have the bits, and the gradients, of SpikingJelly's loop on the CPU."""
    FlexSN, _ = spikingjelly()
    leaves = [*inputs, *static]
    # FlexSN does not copy its static inputs: a Parameter stays the same object.
    module = FlexSN(core, num_states=num_states, static_inputs=tuple(torch.nn.Parameter(s.detach().clone()) for s in static), **options)
    expected = module(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    traced = from_core(core, num_states=num_states, static_inputs=tuple(static))
    outputs, states = traced(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for a, e in zip([*outputs, *states.values()], [*expected, *module.states], strict=True):
        assert_close("a result", a.detach(), e.detach(), 1e-12)
    assert torch.equal(outputs[0], expected[0]), "spikes"
    their_leaves = [*inputs, *module.parameters()]
    found = random_gradients([*outputs, *states.values()], leaves)
    for a, e in zip(found, random_gradients([*expected, *module.states], their_leaves)):
        assert_close("a gradient", a, e, 1e-9)
    return traced, outputs[0]


@pytest.mark.parametrize("kind", SPIKINGJELLY)
def test_a_core_of_flexsn_with_each_of_its_surrogates(kind):
    _, their_surrogates = spikingjelly()
    fire = FIRE["x"] = getattr(their_surrogates, kind)(**SPIKINGJELLY[kind])
    traced, spikes = assert_is_flexsn(their_lif, 1, [doubles(12, 3, 7)])
    assert "= spike(h - 1, " in traced.text and 0.05 < spikes.mean() < 0.95
    by_object = neuron(lambda u: spike(u, fire), name="n").text
    assert re.search(r"spike\(.*\)", by_object)[0].split(", ", 1)[1] == re.search(r"spike\(.*\)", traced.text)[0].split(", ", 1)[1]


@pytest.mark.parametrize("kind", [kind for kind in SPIKINGJELLY if kind not in ("SuperSpike", "FakeNumericalGradient")])
def test_a_surrogate_that_does_not_spike_is_its_primitive(kind):
    _, their_surrogates = spikingjelly()
    FIRE["x"] = getattr(their_surrogates, kind)(**SPIKINGJELLY[kind], spiking=False)
    x = doubles(3, 3, 7)
    FlexSN, _ = spikingjelly()
    module, traced = FlexSN(their_lif, num_states=1), from_core(their_lif, num_states=1)
    assert_alike(traced(x), (module(x), {"v": module.states[0]}), [x])


def test_a_core_of_flexsn_with_several_inputs_states_outputs_and_static_inputs():
    _, their_surrogates = spikingjelly()
    FIRE["x"] = their_surrogates.ATan()

    def core(x, y, v, rho, beta, scale):
        h = torch.sigmoid(beta) * v + torch.where(y > 0.5, x, 0.5 * x)
        s = FIRE["x"](h - (1.0 + rho))
        gate = torch.tanh(y).abs()
        return s, scale * h, h - s * (1.0 + rho), gate * rho + (1.0 - gate) * s

    one = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    traced, spikes = assert_is_flexsn(core, 2, [doubles(9, 5, 4), doubles(9, 5, 4)], [doubles(5, 4), one])
    assert 0.05 < spikes.mean() < 0.95
    assert (traced.inputs, tuple(traced.states), traced.params) == (("x", "y"), ("v", "rho"), ("beta", "scale"))
    assert set(traced.defaults) == {"beta", "scale"} and traced.outputs == ("s", "out1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_spikes_of_a_core_have_flexsn_bits(dtype):
    FlexSN, their_surrogates = spikingjelly()
    FIRE["x"] = their_surrogates.Sigmoid()
    x = (3 * torch.rand(40, 5000, dtype=torch.float64)).to(dtype)
    spikes, states = from_core(their_lif, num_states=1)(x)
    module = FlexSN(their_lif, num_states=1)
    assert torch.equal(spikes, module(x)) and torch.equal(states["v"], module.states[0])


def test_from_core_finds_its_inputs_and_says_what_does_not_fit():
    def core(x, v, leak=0.5):
        return x + v, v * leak

    traced = from_core(core, 1)
    assert traced.inputs == ("x",) and "v * 0.5" in traced.text
    assert from_core(lambda *args: args, 1, num_inputs=1).text == "neuron lambda_neuron(x0; v0) {\n  return x0\n  v0' = v0\n}\n"
    started = from_core(core, 1, init_states=[0.25])
    assert started.states == {"v": 0.25} and started(torch.zeros(1, 2))[0].eq(0.25).all()
    wrong = [
        (lambda: from_core(core, 2), ValueError, "cannot be 0 inputs, 2 states"),
        (lambda: from_core(core, 1, num_outputs=2), ValueError, "core: must return 2 outputs and 1 next states, but returns 2 values"),
        (lambda: from_core(lambda x, v: x, 1), ValueError, "must return at least one output"),
        (lambda: from_core(lambda *args: args, 1), TypeError, "pass num_inputs"),
        (lambda: from_core(lambda x, *, tau: x, 0), TypeError, "tau after a star has no value"),
        (lambda: from_core(core, 1, init_states=[0, 0]), TypeError, "init_states must have"),
        (lambda: from_core(lambda x, v: (WEIGHT[0] * x, v), 1), TypeError, "make it a parameter"),
    ]
    for call, error, words in wrong:
        refused(error, words, call)


@pytest.mark.parametrize("make", ["atan", "fast_sigmoid", "sigmoid", "straight_through_estimator", "spike_rate_escape"])
def test_a_surrogate_of_snntorch_keeps_its_backward(make):
    pytest.importorskip("snntorch")
    from snntorch import surrogate as theirs

    fire = getattr(theirs, make)()
    traced = neuron(lambda u: fire(u), name="n")
    u = doubles(2, 40, low=-1, high=1)
    assert_alike(traced(u), (fire(u), {}), [u], 1e-6)  # their spikes, and so their gradients, are float32


# --- the page ----------------------------------------------------------------------------------------------------------

PAGE = "docs/custom_neurons.md"


PROGRAMS = [
    "a neuron in Python, adaptive LIF", "a neuron in Python, in two parts", "a neuron in Python, decisions",
    "a neuron in Python, a decision on a value", "a neuron in Python, a closure over a tensor",
    "a neuron in Python, another neuron", "a neuron in Python, FlexSN",
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_page_prints_what_the_page_says(name, capsys):
    program = code(name)
    if "spikingjelly" in program:
        pytest.importorskip("spikingjelly")
    linecache.cache["neuron.py"] = len(program), None, program.splitlines(keepends=True), "neuron.py"
    exec(compile(program, "neuron.py", "exec"), {"__name__": "neuron"})
    printed = capsys.readouterr().out
    said = re.search(re.escape(f"<!-- test: {name} -->") + r"\n```python\n.*?```\n(?:\n?```\n(.*?)```\n)?", PAGES[PAGE], re.DOTALL)[1]
    if said is not None:
        assert printed.strip() == said.strip()


def test_the_page_lists_the_functions_there_are():
    from spikeforge.trace.functions import TABLE

    listed = set(" ".join(re.findall(r"^    ((?:\w+ ?)+)$", PAGES[PAGE], re.MULTILINE)).split())
    assert listed == set(TABLE), f"not listed: {sorted(set(TABLE) - listed)}; not there: {sorted(listed - set(TABLE))}"


def test_the_public_names_are_those_of_the_package():
    for name in ("neuron", "spike"):
        assert getattr(spikeforge, name) is globals()[name] is getattr(spikeforge.trace, name)


@pytest.mark.parametrize("name", spikeforge._AT_TRACE)
def test_a_tracing_function_at_the_old_place_is_the_same_and_warns(name):
    with pytest.warns(DeprecationWarning, match=rf"use spikeforge\.trace\.{name}$") as warned:
        assert getattr(spikeforge, name) is getattr(spikeforge.trace, name)
    assert warned[0].filename == __file__ and name not in spikeforge.__all__
