"""The published neurons compared with their equations, as slow loops over time in float64."""

import math
import re
from types import SimpleNamespace

import pytest
import spikeforge.nn as snn
import torch
from documentation import table
from loops import fire, in_steps, refused
from spikeforge import surrogate
from torch import nn
from torch.nn import functional

SHAPE = (12, 3, 5)  # steps, batch, channels


def charge(c, x, v, rate):
    """Returns the charge of a LIF."""
    leaving = v - (0 if c.v_reset is None else c.v_reset)
    return v + rate * (x - leaving) if c.decay_input else v - rate * leaving + x


def reset(c, h, s):
    s = s.detach() if c.detach_reset else s
    return h - s * c.v_threshold if c.v_reset is None else (1 - s) * h + s * c.v_reset


def klif(c, x, v):
    h = functional.relu(c.k * charge(c, x, v, 1 / c.tau))
    s = fire(h - c.v_threshold)
    if not c.scale_reset:
        return s, reset(c, h, s)
    return s, reset(SimpleNamespace(**{**vars(c), "v_threshold": c.v_threshold / c.k}), h / c.k, s)


def clif(c, x, v, m):
    h = v * (1 - 1 / c.tau) + x
    s = fire(h - c.v_threshold)
    m = m * torch.sigmoid(h / c.tau) + s
    s_reset = s.detach() if c.detach_reset else s
    return s, h - s_reset * (c.v_threshold + torch.sigmoid(m)), m


class Count(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward((x >= 0) & (x <= levels))
        return x.clamp(0, levels).round()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def ilif(c, x, v):
    h = (1 - 1 / c.tau) * v + x
    s = Count.apply(h / c.v_threshold, c.levels)
    return s, h - (s.detach() if c.detach_reset else s) * c.v_threshold


def ternary(c, x, v):
    h = charge(c, x, v, 1 / c.tau) if hasattr(c, "tau") else v + x
    up, down = fire(h - c.v_threshold), fire(-h - c.v_threshold)
    return up - down, reset(c, h, up - down if c.v_reset is None else up + down)


def resonate(c, x, v, u):
    z = torch.exp(torch.complex(c.b, c.omega)) * torch.complex(u, v)
    s = fire(z.imag - c.v_threshold)
    return s, reset(c, z.imag, s), z.real + x


def liaf(c, x, v):
    h = charge(c, x, v, 1 / c.tau)
    act = {"relu": functional.relu, "leaky_relu": functional.leaky_relu, "tanh": torch.tanh}[c.activation]
    return act(h - c.v_threshold if c.threshold_related else h), reset(c, h, fire(h - c.v_threshold))


def gated(c, x, v, fired, t):
    a, b, r, d, l, q, w = map(torch.sigmoid, (c.alpha, c.beta, c.gamma, c.tau, c.linear_decay, c.v_subreset, c.v_threshold))
    conduct = torch.sigmoid(c.conduct[min(int(t.flatten()[0]), len(c.conduct) - 1)])
    leak = (1 - a * (1 - d)) * v - (1 - a) * l
    h = leak + x * (1 - b * (1 - conduct)) - fired * ((1 - a * (1 - d)) * v * r + (1 - r) * q)
    s = fire(h - w)
    return s, h, s, t + 1


def compartments(c, x, v, d):
    d = d - torch.sigmoid(c.beta1) * v + x
    h = v + torch.sigmoid(c.beta2) * d
    s = fire(h - c.v_threshold)
    return s, reset(c, h, s), d - c.gamma * (s.detach() if c.detach_reset else s)


def multi_level(c, x, *potentials):
    charged = [(1 - 1 / c.tau) * v + x for v in potentials]
    spikes = [fire(h - c.v_threshold - level * c.spacing) for level, h in enumerate(charged)]
    return sum(spikes), *[(1 - (s.detach() if c.detach_reset else s)) * h for h, s in zip(charged, spikes)]


def sliding(c, x, *before):
    inputs = (x, *before)
    h = sum(c.weight[c.k - 1 - i] * value for i, value in enumerate(inputs)) + c.bias
    return fire(h), *inputs[: c.k - 1]


def test_the_table_of_the_page_names_each_neuron():
    named = {name for row in table("published neurons") for name in re.findall(r"`(\w+)`", row[0])}
    assert named == {kind.__name__ for kind in vars(snn).values() if isinstance(kind, type) and getattr(kind, "_body", None)} >= CASES.keys()


LIF = {"tau": 2.7, "v_threshold": 0.85, "v_reset": -0.15}
GATES = {"alpha": 0.3, "beta": -0.4, "gamma": 0.2, "tau": -0.8, "v_threshold": 0.1, "linear_decay": -1.5, "v_subreset": 0.2}
# Module, equations, constants, and options that differ from the defaults in all or in one of the runs.
CASES = {
    "KLIF": (snn.KLIF, klif, {**LIF, "k": 1.3}, [{}, {"scale_reset": True, "decay_input": False}]),
    "CLIF": (snn.CLIF, clif, {"tau": 2.7, "v_threshold": 0.85}, [{}]),
    "ILIF": (snn.ILIF, ilif, {"tau": 2.7, "v_threshold": 0.85}, [{"levels": 4}, {"levels": 2}]),
    "TernaryIF": (snn.TernaryIF, ternary, {"v_threshold": 0.85, "v_reset": -0.15}, [{}]),
    "TernaryLIF": (snn.TernaryLIF, ternary, LIF, [{}, {"decay_input": False}]),
    "ResonateAndFire": (snn.ResonateAndFire, resonate, {"b": -0.3, "omega": 0.9, "v_threshold": 0.85, "v_reset": 0.1}, [{}]),
    "LIAF": (snn.LIAF, liaf, LIF, [{}, {"activation": "leaky_relu", "threshold_related": True}, {"activation": "tanh"}]),
    "GatedLIF": (snn.GatedLIF, gated, {**GATES, "conduct": [0.5, -0.3, 0.1, 0.8]}, [{"steps": 4}]),
    "TCLIF": (snn.TCLIF, compartments, {"beta1": 0.2, "beta2": -0.3, "gamma": 0.4, "v_threshold": 0.85, "v_reset": 0.1}, [{}]),
    "MultiLevelLIF": (snn.MultiLevelLIF, multi_level, {"tau": 1.7, "v_threshold": 0.6, "spacing": 0.8}, [{"levels": 3}]),
    "SlidingPSN": (snn.SlidingPSN, sliding, {"weight": [0.3, -0.5, 0.9], "bias": -0.4}, [{"k": 3}]),
}
RUNS = [
    (name, options, soft)
    for name, (_, _, constants, runs) in CASES.items() for options in runs for soft in (False, True)[: 1 + ("v_reset" in constants)]
]


def module_of(name, options, soft, device):
    """Returns a module whose constants are learned for each channel, with options that the kind has, and the equations'
    constants, which share its parameters."""
    kind, step, constants, _ = CASES[name]
    given = {key: value for key, value in constants.items() if not (soft and key == "v_reset")}
    values = {key: torch.tensor(value, dtype=torch.float64).unsqueeze(-1) + 0.1 * torch.rand(5).double() for key, value in given.items()}
    fields = kind.__fields__
    options = {**options, **{key: value for key, value in {"surrogate": "atan", "detach_reset": soft}.items() if key in fields}}
    reset = {"v_reset": None} if soft else {}
    module = kind(**{key: snn.Learnable(value) for key, value in values.items()}, **options, **reset).to(device)
    defaults = {key: default for key, (_, default) in fields.items()} | {"v_reset": None, "detach_reset": False}
    return module, step, SimpleNamespace(**{**defaults, **options, **dict(module.named_parameters()), **reset})


@pytest.mark.parametrize("name, options, soft", RUNS, ids=[f"{name}-{number}" for number, (name, *_) in enumerate(RUNS)])
def test_a_neuron_is_its_equations(name, options, soft, device):
    module, step, c = module_of(name, options, soft, device)
    x = (1.5 * torch.randn(SHAPE, dtype=torch.float64)).to(device).requires_grad_()
    y, state = module(x, None)
    starts = {"v": c.v_reset if c.v_reset is not None else 0.0}
    states = [starts.get(key, 0.0) + torch.zeros_like(x[0]) for key in module.state_names]
    outputs = []
    for row in x:
        output, *states = step(c, row, *states)
        outputs.append(output)
    want = torch.stack(outputs)
    torch.testing.assert_close(y, want, rtol=1e-10, atol=1e-10)
    assert name == "LIAF" or 0.05 < (want.detach() != 0).double().mean() < 0.98
    for got, wanted in zip(state.values(), states, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
    loss = lambda y, states: (y * (1 + y).sin()).sum() + sum(value.cos().sum() for value in states)
    leaves = [x, *module.parameters()]
    for got, wanted in zip(*(torch.autograd.grad(loss(*pair), leaves) for pair in ((y, state.values()), (want, states)))):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)
    stepped, after = in_steps(module, x)
    assert torch.equal(stepped, y) and all(torch.equal(after[key], state[key]) for key in state)
    assert all(torch.equal(value[-1], state[key]) for key, value in module(x, store_states=True)[1].items())


def test_analog_outputs_pass_gradcheck():
    """The output of LIAF is smooth where no neuron fires."""
    module = snn.LIAF(activation="tanh", tau=snn.Learnable(torch.tensor(2.5, dtype=torch.float64)), v_threshold=50.0)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    function = lambda x, tau: torch.func.functional_call(module, {"tau": tau}, (x,))
    assert torch.autograd.gradcheck(function, (x, module.tau))


# --- noise ---------------------------------------------------------------------------------------------------------------

def test_noise_decides_about_spikes_and_its_density_is_their_derivative():
    x = (1.5 * torch.randn(6, 400, dtype=torch.float64)).requires_grad_()
    module = snn.NoisyLIF(sigma=snn.Learnable(torch.tensor(0.3, dtype=torch.float64)), v_reset=0.1)
    normal = snn.Neuron("neuron n(x; v) { return normal(); v' = v }")
    torch.manual_seed(3)
    y, state = module(x, None)
    torch.manual_seed(3)
    noise = normal(x.detach())
    v, want = torch.full_like(x[0], 0.1), []
    for row, drawn in zip(x, noise):
        h = v - (v - 0.1) / 2 + row
        density = torch.distributions.Normal(0, module.sigma.detach()).log_prob(h.detach() - 1).exp()
        s = (h.detach() - 1 + 0.3 * drawn >= 0).double() + density * (h - h.detach())
        v = (1 - s) * h + s * 0.1
        want.append(s)
    want = torch.stack(want)
    assert torch.equal(y, want.round()) and 0.1 < y.mean() < 0.9
    torch.testing.assert_close(state["v"], v)
    got, wanted = (torch.autograd.grad((s * x.detach().cos()).sum(), x)[0] for s in (y, want))
    torch.testing.assert_close(got, wanted)
    h = torch.full((1, 100_000), 1.2)
    assert snn.NoisyLIF(sigma=0.4)(h).mean().item() == pytest.approx(0.5 + 0.5 * math.erf(0.5 / math.sqrt(2)), abs=0.01)
    refused(TypeError, "must not draw random numbers, but NoisyLIF does", lambda: snn.BatchNormNeuron(nn.BatchNorm1d(4), module))


# --- parallel neurons ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("lambda_", [0.0, 0.3, 1.0])
def test_parallel_neurons_are_products_over_the_steps(lambda_):
    x = torch.randn(6, 2, 5, dtype=torch.float64, requires_grad=True)
    masked, plain = snn.MaskedPSN(steps=6, k=2, lambda_=lambda_).double(), snn.PSN(steps=6).double()
    plain.load_state_dict(masked.state_dict())
    with torch.no_grad():
        masked.bias.add_(torch.rand(6, 1))
    h = []
    for t in range(6):
        factors = [1.0 if t - 2 < i <= t else 1 - lambda_ for i in range(6)]
        h.append(sum(masked.weight[t, i] * factors[i] * x[i] for i in range(6)) + masked.bias[t])
    y, want = masked(x, None)[0], fire(torch.stack(h))
    assert torch.equal(y, want) and want.any()
    assert torch.equal(plain(x), fire((plain.weight @ x.flatten(1) + plain.bias).view(x.shape)))
    leaves = [x, *masked.parameters()]
    for got, wanted in zip(*(torch.autograd.grad((y * x.detach().sin()).sum(), leaves) for y in (y, want))):
        torch.testing.assert_close(got, wanted)
    assert torch.equal(torch.compile(masked, backend="aot_eager", fullgraph=True)(x), y)
    assert torch.equal(torch.vmap(masked, in_dims=1, out_dims=1)(x), y)
    masked.lambda_ = 1.0
    changed = x.detach().clone()
    changed[3] = 1000 * torch.randn(2, 5)
    before, after = masked(x), masked(changed)
    assert torch.equal(before[[0, 1, 2, 5]], after[[0, 1, 2, 5]]) and not torch.equal(before, after)


# --- integers as spikes --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("layer, shape", [(nn.Linear(5, 4, bias=False), (6, 2, 5)), (nn.Conv2d(3, 4, 3, bias=False), (6, 2, 3, 7, 7))])
def test_counts_give_the_same_as_spikes_over_virtual_steps(layer, shape):
    layer = snn.TimeDistributed(layer.double())
    first, second = snn.ILIF(levels=3), snn.ILIF(levels=3)
    counts = first(2 * torch.randn(shape, dtype=torch.float64))
    spikes = snn.counts_to_spikes(counts, 3)
    assert spikes.shape == (18, *shape[1:]) and spikes.dtype == counts.dtype and set(spikes.unique().tolist()) == {0, 1}
    assert torch.equal(snn.sum_virtual_steps(spikes, 3), counts) and len(counts.unique()) == 4
    torch.testing.assert_close(snn.sum_virtual_steps(layer(spikes), 3), layer(counts))
    assert torch.equal(second(snn.sum_virtual_steps(layer(spikes), 3)), second(layer(counts)))


# --- options, and wrong calls --------------------------------------------------------------------------------------------

def test_options_are_read_again_after_an_assignment():
    x = 3 * torch.rand(6, 3, 5)
    ilif = snn.ILIF()
    ilif.levels = 2
    assert torch.equal(ilif(x), snn.ILIF(levels=2)(x)) and ilif(x).max() == 2 and "levels=2" in repr(ilif)
    many = snn.MultiLevelLIF(levels=2, stateful=True)
    assert list(many(x, None)[1]) == ["v0", "v1"]
    klif = snn.KLIF()
    klif.scale_reset, klif.v_reset, klif.surrogate, klif.strict = True, None, surrogate.Custom("w / square(1 + abs(u))", w=0.5), True
    assert torch.equal(klif(x), snn.KLIF(scale_reset=True, v_reset=None)(x)), "no charge equals the threshold"
    assert torch.equal(snn.TernaryIF()(x), snn.TernaryLIF(tau=1e30, decay_input=False)(x))


@pytest.mark.parametrize("name", CASES)
def test_half_types_have_the_spikes_of_float32(name):
    kind, _, _, runs = CASES[name]
    torch.manual_seed(5)
    x = torch.randn(SHAPE).half()
    module = kind(**runs[0])
    want = module(x.float())
    got, state = module.to(torch.float16)(x, None)
    assert got.dtype == torch.float16 and all(value.dtype == torch.float32 for value in state.values())
    assert (got.float() - want).abs().mean() < 0.02


WRONG = [
    (lambda: snn.ILIF(levels=0), "^ILIF: levels must be 1 or more, but is 0"),
    (lambda: snn.ILIF(levels=2.5), "^ILIF: levels must be a whole number, but is 2.5"),
    (lambda: snn.ILIF(v_threshold=0.0), "^ILIF: v_threshold must be finite and above 0, but is 0.0"),
    (lambda: snn.ILIF(surrogate="atan"), "unexpected keyword argument 'surrogate'"),
    (lambda: snn.PSN(steps=4, _outside=()), "unexpected keyword argument '_outside'"),
    (lambda: snn.KLIF(scale_reset=1), "^KLIF: scale_reset must be True or False, but is 1"),
    (lambda: snn.KLIF(tau=0.0), "^KLIF: tau must be finite and above 0"),
    (lambda: snn.TernaryIF(v_threshold=-1.0), "^TernaryIF: v_threshold must be finite and above 0"),
    (lambda: snn.LIAF(activation="swish"), "^LIAF: activation must be one of relu, .*, but is 'swish'"),
    (lambda: snn.GatedLIF(), "missing 1 required keyword-only argument: 'steps'"),
    (lambda: snn.GatedLIF(steps=0), "^GatedLIF: steps must be 1 or more, but is 0"),
    (lambda: snn.GatedLIF(steps=4, conduct=torch.zeros(3)), "^GatedLIF: conduct must have a value for each of 4 steps, but has 3"),
    (lambda: snn.SlidingPSN(k=2, weight=torch.ones(3)), "^SlidingPSN: weight must have k = 2 values, but has 3"),
    (lambda: snn.NoisyLIF(sigma=-0.1), "^NoisyLIF: sigma must be finite and above 0, but is -0.1"),
    (lambda: snn.PSN(steps=4)(torch.rand(5, 3)), r"^PSN: x must have 4 steps, all of a sequence, but is \[5, 3\]; SlidingPSN runs"),
    (lambda: snn.PSN(steps=4).step(torch.rand(3)), r"^PSN: x must have 4 steps"),
    (lambda: snn.PSN(steps=4)(torch.ones(4, 3, dtype=torch.int32)), "^PSN: x must be float16, .* but is int32"),
    (lambda: snn.PSN(steps=2)(torch.rand(2, 3, 4), lengths=torch.tensor([1, 2, 1])),
     "^PSN: accepts neither lengths nor start: its product is over all steps"),
    (lambda: snn.counts_to_spikes(torch.ones(3), 0), "^counts_to_spikes: levels must be 1 or more, but is 0"),
    (lambda: snn.sum_virtual_steps(torch.ones(7, 2), 3), r"^sum_virtual_steps: x must have a multiple of 3 steps, but is \[7, 2\]"),
]


@pytest.mark.parametrize("call, message", WRONG, ids=range(len(WRONG)))
def test_a_wrong_call_ends_in_one_line(call, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_an_option_that_a_neuron_does_not_have_is_refused():
    refused(AttributeError, "ILIF: it has no option surrogate", lambda: setattr(snn.ILIF(), "surrogate", "atan"))
    refused(AttributeError, "CubaLIF: it has no option spiking", lambda: setattr(snn.CubaLIF(), "spiking", False))
