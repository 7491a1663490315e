"""torch.func: gradients of functions, and per-sample gradients."""

import pytest
import spikeforge.nn as snn
import torch
from cases import Options, call, sample
from reference import NEURONS
from spikeforge import neuron, spike
from spikeforge.trace import add_gradient, select

ops = torch.ops.spikeforge
every_neuron = pytest.mark.parametrize("neuron", NEURONS)

TRACED = "neuron leaky(x; v; beta) {\n  h = beta * v + x\n  s = spike(h - 1, sigmoid(4))\n  return s\n  v' = select(s, 0, h)\n}\n"


@neuron(states={"v": 0.0})
def leaky(x, v, *, beta):
    """Uses Python operations only, which `loop` and `step` execute directly."""
    h = add_gradient(beta * v + torch.round(x), x, 0.5 * x)
    s = spike(h - 1, "atan")
    return s, {"v": select(s, 0.25 * h, h)}


def loss_of(outputs):
    return sum((o.double() * (i + 1)).sin().sum() for i, o in enumerate(outputs))


def flat(results):
    outputs, states = results
    return (*outputs, *states)


def functions(device):
    """Returns each family of operators as a function of tensors, with the tensors."""

    def of_neuron(neuron):
        inputs = sample(neuron, device, tensors=True, dtype=torch.float64)
        names = list(inputs.tensors())

        def function(*values):
            given = dict(zip(names, values))
            return tuple(call(neuron, inputs.map(lambda name, t: given[name]), Options()))

        return function, list(inputs.tensors().values())

    x = torch.randn(9, 4, 3, dtype=torch.float64, device=device)
    beta = torch.rand(3, dtype=torch.float64, device=device)
    v = torch.rand(4, 3, dtype=torch.float64, device=device)
    traced = lambda x, v, beta: flat(ops.run(TRACED, [x], [v], [beta]))

    def by_python(run, x, v, beta):
        s, state = run(x, v, beta=beta)
        return s, state["v"]

    random = lambda *shape: torch.rand(shape, dtype=torch.float64, device=device)
    delayed = lambda x, weight, delay, past: (ops.delayed_linear(x, weight, delay, max_delay=2, interpolation="gauss", past=past),)
    kernels = snn.DelayedConv1d(2, 3, 2, max_delay=2).to(x)
    convolved = lambda x, weight, delay: (torch.func.functional_call(kernels, {"weight": weight, "delay": delay}, (x,)),)
    others = {
        "run": (traced, [x, v, beta]),
        "step": (lambda x, v, beta: by_python(leaky.step, x[0], v, beta), [2 * x, v, beta]),
        "loop": (lambda x, v, beta: by_python(leaky.loop, x, v, beta), [2 * x, v, beta]),
        "delayed_linear": (delayed, [x, random(2, 3), 2 * random(2, 3), random(2, 4, 3)]),
        "delayed_linear per input": (delayed, [x, random(2, 3), 2 * random(3), random(2, 4, 3)]),
        "DelayedConv1d": (convolved, [random(5, 2, 2, 4), random(3, 2, 2), 2 * random(3, 2, 2)]),
    }
    return {**{neuron: lambda n=neuron: of_neuron(n) for neuron in NEURONS}, **{name: lambda f=f: f for name, f in others.items()}}


every_family = pytest.mark.parametrize("family", functions("cpu"))


def expected(function, values):
    leaves = [t.clone().requires_grad_() for t in values]
    return torch.autograd.grad(loss_of(function(*leaves)), leaves)


def close(actual, wanted):
    for i, (a, e) in enumerate(zip(actual, wanted, strict=True)):
        torch.testing.assert_close(a, e, msg=lambda m: f"tensor {i}: {m}")


@every_family
def test_grad_vjp_and_jacrev(family, device):
    function, values = functions(device)[family]()
    want = expected(function, values)
    everything = tuple(range(len(values)))
    loss = lambda *values: loss_of(function(*values))
    close(torch.func.grad(loss, argnums=everything)(*values), want)
    close(torch.func.vjp(loss, *values)[1](torch.ones((), dtype=torch.float64, device=device)), want)
    close(torch.func.jacrev(loss, argnums=everything)(*values), want)
    value = torch.func.grad_and_value(loss)(*values)[1]
    torch.testing.assert_close(value, loss(*values))


@every_family
def test_the_jacobian_of_all_results(family, device):
    """jacrev maps the backward pass over the elements of the results."""
    function, values = functions(device)[family]()
    small = tuple(t[:3] if i == 0 else t for i, t in enumerate(values))  # three steps
    last_state = lambda *values: function(*values)[-1]
    close(torch.func.jacrev(last_state, argnums=tuple(range(len(small))))(*small),
          torch.autograd.functional.jacobian(last_state, small))  # fmt: skip


@pytest.mark.filterwarnings("error:There is a performance drop")
@every_family
def test_gradients_of_each_sample(family, device):
    """vmap of grad maps over samples of x; shared parameters have one gradient per sample."""
    function, values = functions(device)[family]()
    x, *others = values
    samples = torch.stack([x, x + 0.25, x.flip(0)])
    loss = lambda *values: loss_of(function(*values))
    everything = tuple(range(len(values)))
    got = torch.func.vmap(torch.func.grad(loss, argnums=everything), in_dims=(0,) + (None,) * len(others))(samples, *others)
    want = [torch.stack(parts) for parts in zip(*(expected(function, [one, *others]) for one in samples))]
    close(got, want)


@every_family
def test_a_gradient_through_a_map(family, device):
    function, values = functions(device)[family]()
    samples = torch.stack([values[0], values[0].flip(0)])
    mapped = lambda x: loss_of(torch.func.vmap(lambda one: function(one, *values[1:]))(x))
    got = torch.func.grad(mapped)(samples)
    want = torch.stack([expected(function, [one, *values[1:]])[0] for one in samples])
    torch.testing.assert_close(got, want)


def test_a_constant_of_the_function(device):
    x, scale = torch.rand(5, 3, device=device), torch.ones((), device=device)
    got = torch.func.grad(lambda scale: (ops.lif(x, v_threshold=0.4)[0] * scale).sum())(scale)
    torch.testing.assert_close(got, ops.lif(x, v_threshold=0.4)[0].sum())


def test_forward_mode_of_the_functions_of_python(device):
    x, v = 2 * torch.randn(2, 9, 4, 3, dtype=torch.float64, device=device)
    beta, tangents = torch.rand(3, dtype=torch.float64, device=device), torch.randn(2, 9, 4, 3, dtype=torch.float64, device=device)
    for run in (leaky.loop, leaky):
        function = lambda x, beta: run(x, v[0], beta=beta)[0]
        directions = (tangents[0], tangents[1, 0, 0])
        rates = torch.func.jvp(function, (x, beta), directions)[1]
        gradients = torch.func.vjp(function, x, beta)[1](tangents[1])
        torch.testing.assert_close((rates * tangents[1]).sum(), sum((g * d).sum() for g, d in zip(gradients, directions)))


def test_the_functions_of_one_step_compile_whole():
    """Uses torch operations without forward mode, since torch.compile does not support functions with a jvp."""

    def step(x, v):
        h = add_gradient(0.5 * v + torch.round(x), x, 0.5 * x)
        return select(spike(h - 1, "atan"), 0.25 * h, h)

    x, v = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    found, expected = torch.compile(step, backend="aot_eager", fullgraph=True)(x, v), step(x, v)
    assert torch.equal(found, expected)
    for one, other in zip(torch.autograd.grad(found.sin().sum(), (x, v)), torch.autograd.grad(expected.sin().sum(), (x, v))):
        torch.testing.assert_close(one, other)
