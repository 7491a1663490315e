"""Every neuron module compared with a slow loop over time in float64, its constants in all forms, and its errors."""

import copy
import math
import pickle

import pytest
import reference
import spikeforge
import spikeforge.nn as snn
import torch
from loops import TWO, refused
from spikeforge import surrogate
from torch import nn
from torch.nn.utils import parametrize

PREDEFINED = {kind._op_name: kind for kind in vars(snn).values() if getattr(kind, "_op_name", None) in reference.NEURONS}
OTHERS = {  # values other than the defaults
    "tau": 2.7, "v_threshold": 0.85, "v_reset": -0.15, "v_c": 0.7, "a0": 1.2, "v_rest": -0.05, "delta_t": 0.9, "theta_rh": 0.6,
    "w_rest": 0.1, "tau_w": 3.1, "a": 0.2, "b": 0.15, "decay": 0.8, "w": -0.4,
}  # fmt: skip
every = pytest.mark.parametrize("name", PREDEFINED)


def test_every_predefined_neuron_has_a_module_and_its_text():
    assert set(PREDEFINED) == set(reference.NEURONS)
    for kind in PREDEFINED.values():
        kind(strict=True)  # strict neurons run as text


def constants(name, soft=False):
    params = {key: OTHERS.get(key, 0.7) for key in reference.NEURONS[name].params}
    if name == "plif":
        params["w"] = torch.tensor(params["w"], dtype=torch.float64)  # always a tensor
    return dict(params, v_reset=None) if soft else params


def compare(module, name, x, params, soft=False, **options):
    """Compares spikes, states and the gradients of x and of the parameters."""
    given = {key: value for key, value in params.items() if value is not None}
    params = {key: value.double() if torch.is_tensor(value) else value for key, value in given.items()}
    learned = [value for value in params.values() if torch.is_tensor(value) and value.requires_grad]
    leaves = [x.detach().double().requires_grad_(), *learned]
    want = reference.run(name, leaves[0], params=params, soft=soft, **options)
    x = x.detach().clone().requires_grad_()
    y, state = module(x, None)
    assert torch.equal(y, want.spikes) and 0.02 < y.mean() < 0.98
    wanted = dict(zip(module.state_names, (want.v_last, want.w_last)))
    for key, value in state.items():
        assert torch.allclose(value, wanted[key], rtol=1e-10, atol=1e-10)
    loss = lambda y, state: y.sin().sum() + sum(value.cos().sum() for value in state.values())
    got = torch.autograd.grad(loss(y, state), [x, *module.parameters()])
    wanted = torch.autograd.grad(loss(want.spikes, wanted if module.state_names[1:] else {"v": want.v_last}), leaves)
    for g, w in zip(got, wanted):
        assert torch.allclose(g, w.reshape(g.shape), rtol=1e-8, atol=1e-9)


def input_for(x_shape=(12, 3, 5)):
    return 2.5 * torch.randn(x_shape, dtype=torch.float64)


@every
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("form", ["operator", "strict"])
def test_a_neuron_is_its_equations(name, soft, form):
    params = constants(name, soft)
    options = dict(detach_reset=soft, surrogate="atan")
    module = PREDEFINED[name](**params, **options, strict=form == "strict").double()
    compare(module, name, input_for(), params, soft, **options)


@every
def test_the_defaults_are_those_of_the_operator(name):
    x = input_for()
    module = PREDEFINED[name]().double()
    spikes, *states = getattr(torch.ops.spikeforge, name)(x, *([module.w.detach()] if name == "plif" else []))
    y, state = module(x, None)
    assert torch.equal(y, spikes) and all(torch.equal(a, b) for a, b in zip(state.values(), states))
    assert list(state) == list(module.state_names)


@pytest.mark.parametrize("name", ["lif", "plif", "adaptive_lif"])
@pytest.mark.parametrize("strict", [False, True])
def test_without_decay_input(name, strict):
    params = constants(name)
    module = PREDEFINED[name](**params, decay_input=False, strict=strict).double()
    compare(module, name, input_for() / 2, params, decay_input=False)


@every
def test_learned_constants_get_their_gradients(name):
    params = {key: torch.full((5,), float(value), dtype=torch.float64) for key, value in constants(name).items()}
    module = PREDEFINED[name](**{key: snn.Learnable(value) for key, value in params.items()})
    assert [key for key, _ in module.named_parameters()] == list(params)
    compare(module, name, input_for(), {key: value.requires_grad_() for key, value in params.items()})


def test_a_strict_neuron_does_not_fire_at_its_threshold():
    x = torch.tensor([[1.0, 1.0 + 2**-20]])
    assert snn.IF()(x).tolist() == [[1.0, 1.0]]
    assert snn.IF(strict=True)(x).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("decay_input", [True, False])
@pytest.mark.parametrize("soft", [False, True])
def test_cuba_lif_is_its_equations(decay_input, soft):
    x = input_for()
    options = dict(decay_input=decay_input, v_threshold=0.9, v_reset=None if soft else -0.1)
    module = snn.CubaLIF(tau_synapse=2.2, tau_membrane=3.3, **options)
    y, state = module(x, None)
    v, i = torch.full((3, 5), 0.0 if soft else -0.1, dtype=torch.float64), torch.zeros(3, 5, dtype=torch.float64)
    for t in range(len(x)):
        i = i - i / 2.2 + x[t]
        leak = v if soft else v + 0.1
        h = v + (i - leak) / 3.3 if decay_input else v - leak / 3.3 + i
        s = (h >= 0.9).double()
        v = h - 0.9 * s if soft else torch.where(s == 1, -0.1, h)
        assert torch.equal(y[t], s)
    assert 0 < y.mean() < 1
    assert torch.allclose(state["v"], v, atol=1e-10) and torch.allclose(state["i"], i, atol=1e-10)


@pytest.mark.parametrize("decay_input", [True, False])
def test_li_is_its_equation(decay_input):
    x = input_for()
    y, state = snn.LI(tau=2.5, v_rest=0.2, decay_input=decay_input)(x, None)
    v = torch.zeros(3, 5, dtype=torch.float64)
    for t in range(len(x)):
        v = v + (x[t] - (v - 0.2)) / 2.5 if decay_input else v - (v - 0.2) / 2.5 + x[t]
        assert torch.allclose(y[t], v, atol=1e-12)
    assert torch.equal(state["v"], y[-1])


def test_a_neuron_of_several_inputs_and_outputs():
    x, y = input_for(), input_for()
    tau = torch.linspace(1.5, 4.0, 5, dtype=torch.float64)
    neuron = snn.Neuron(TWO, tau=snn.Learnable(tau, min=1.0), beta=0.3)
    (spikes, h), state = neuron(x, y, None)
    v, a = torch.full((3, 5), 0.25, dtype=torch.float64), torch.zeros(3, 5, dtype=torch.float64)
    for t in range(len(x)):
        want_h = v + (x[t] - v) / tau + 0.3 * y[t]
        want_s = (want_h >= 1 + a).double()
        v, a = torch.where(want_s == 1, 0.0, want_h), 0.9 * a + want_s
        assert torch.equal(spikes[t], want_s) and torch.allclose(h[t], want_h, atol=1e-10)
    assert torch.allclose(state["v"], v) and torch.allclose(state["a"], a)
    assert 0 < spikes.mean() < 1
    only_v = {"v": state["v"]}
    (first, _), _ = neuron(x, y, only_v)
    (second, _), _ = neuron(x, y, {"v": state["v"], "a": torch.zeros_like(a)})
    assert torch.equal(first, second), "a state that is not given starts anew"
    assert neuron.in_ports == ("x", "y") and neuron.out_ports == ("out0", "out1")
    assert [len(out) for out in neuron.step(x[0], y[0])] == [3, 3]


def adaptive(x, v, a, *, tau, beta=0.2, rest=0.1):
    h = v + (x - v) / tau
    s = spikeforge.spike(h - (1 + beta * a), surrogate.ATan(2.0))
    return s, {"v": spikeforge.trace.select(s, rest, h), "a": 0.9 * a + s}


def test_a_traced_function_is_a_neuron():
    """Missing parameters have the defaults of the function, and its rule gives the initial states."""
    traced = spikeforge.neuron(adaptive, states={"v": "rest", "a": 0.0})
    neuron = snn.Neuron(traced, tau=snn.Learnable(2.5), rest=torch.tensor(0.25))
    x = input_for().float()
    y, state = neuron(x, None)
    want, want_state = traced.loop(x, tau=2.5, beta=0.2, rest=0.25)
    assert torch.equal(y, want) and 0 < y.mean() < 1
    assert all(torch.allclose(state[name], want_state[name], atol=1e-5) for name in ("v", "a"))
    _, first = neuron(x[:0], None)
    assert (first["v"] == 0.25).all() and (first["a"] == 0).all()
    assert torch.equal(neuron(x[4:], neuron(x[:4], None)[1])[0], y[4:])
    from_a, _ = neuron(x, {"a": torch.ones(3, 5)})
    want, _ = traced.loop(x, a=torch.ones(3, 5), tau=2.5, rest=0.25)
    assert torch.equal(from_a, want) and not torch.equal(want, y)
    assert torch.equal(copy.deepcopy(neuron)(x), y) and torch.equal(pickle.loads(pickle.dumps(neuron))(x), y)
    refused(ValueError, "Neuron adaptive: the parameter tau is missing", lambda: snn.Neuron(traced))


def test_fake_tensors_leave_no_trace():
    neuron = snn.Neuron(TWO, tau=2.0, beta=0.1)
    with torch._subclasses.FakeTensorMode():
        x = torch.rand(4, 3)
        assert neuron(x, x)[0].shape == (4, 3)
    x = torch.rand(4, 3)
    want = neuron(x, x)
    with torch._subclasses.FakeTensorMode() as mode:
        assert neuron(mode.from_tensor(x), mode.from_tensor(x))[0].shape == (4, 3)
    assert torch.equal(neuron(x, x)[0], want[0])


# --- constants ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", [snn.Learnable, snn.Constant, torch.Tensor, nn.Parameter])
def test_a_tensor_of_one_dimension_belongs_to_the_channels(kind, device):
    """C equals W, so that broadcasting along W would raise no error."""
    tau = torch.linspace(1.2, 6.0, 5)
    x = 2 * torch.rand(6, 2, 5, 3, 5, device=device)
    given = tau.clone() if kind is torch.Tensor else kind(tau.clone())
    want, _ = torch.ops.spikeforge.lif(x, tau=tau.view(5, 1, 1).to(device))
    wrong, _ = torch.ops.spikeforge.lif(x, tau=tau.to(device))
    got = snn.LIF(tau=given).to(device)(x)
    assert torch.equal(got, want) and not torch.equal(got, wrong)
    assert torch.equal(snn.LIF(tau=snn.Constant(tau, dim=-1)).to(device)(x), wrong)
    plane = 2 * torch.rand(6, 2, 5, device=device)
    assert torch.equal(snn.LIF(tau=given).to(device)(plane), torch.ops.spikeforge.lif(plane, tau=tau.to(device))[0])


def test_channels_of_text_and_of_dim():
    tau = torch.linspace(1.2, 6.0, 5)
    x = 2 * torch.rand(6, 2, 5, 5)
    text = "neuron n(x; v; tau) { h = v + 1 / tau * (x - v); s = spike(h - 1, sigmoid(4)); return s; v' = select(s, 0, h) }"
    assert torch.equal(snn.Neuron(text, tau=tau)(x), snn.LIF(tau=tau.view(5, 1))(x))
    assert torch.equal(snn.LIF(tau=snn.Constant(tau, dim=3))(x), snn.LIF(tau=tau.view(1, 1, 5))(x))
    batch = torch.tensor([1.5, 4.0])
    assert torch.equal(snn.LIF(tau=snn.Constant(batch, dim=1))(x), snn.LIF(tau=batch.view(2, 1, 1))(x))


def test_learnable_makes_parameters():
    lif = snn.LIF(
        tau=snn.Learnable(2.0, per_channel=4), v_threshold=snn.Learnable(0.5), v_reset=snn.Learnable(0.1, shape=(4, 1, 3)),
    )
    shapes = {"tau": (4,), "v_threshold": (), "v_reset": (4, 1, 3)}
    assert {name: tuple(p.shape) for name, p in lif.named_parameters()} == shapes
    assert (lif.tau == 2).all() and lif.v_threshold == 0.5
    buffers = dict(snn.LIF(tau=torch.full((4,), 3.0)).named_buffers())
    assert list(buffers) == ["tau"] and not buffers["tau"].requires_grad


def test_a_parameter_is_taken_itself_and_a_tensor_is_copied():
    parameter, tensor = nn.Parameter(torch.tensor(2.0)), torch.tensor(0.5)
    one, two = snn.LIF(tau=parameter, v_threshold=tensor), snn.LIF(tau=parameter)
    assert one.tau is two.tau is parameter
    tensor.fill_(9.0)
    assert one.v_threshold == 0.5


@pytest.mark.parametrize("bounds, taken", [(dict(min=1.5), 1.5), (dict(min=1.5, max=4.0), 1.5), (dict(max=3.0), 1.2)])
def test_a_learned_constant_is_taken_within_its_bounds(bounds, taken):
    x = 2 * torch.rand(6, 3, 5)
    lif = snn.LIF(tau=snn.Learnable(2.0, **bounds))
    with torch.no_grad():
        lif.tau.fill_(1.2)
    assert torch.equal(lif(x), snn.LIF(tau=torch.tensor(taken))(x))
    assert lif.tau.item() == pytest.approx(1.2), "the parameter is the optimiser's"
    (grad,) = torch.autograd.grad(lif(x).sum(), lif.tau)
    assert (grad == 0) == (taken != 1.2), "beyond a bound it is that of clamp"
    with torch.no_grad():
        lif.tau.fill_(9.0)
    if "max" in bounds:
        assert torch.equal(lif(x), snn.LIF(tau=torch.tensor(bounds["max"]))(x))


def test_a_constant_beyond_its_bound_returns():
    """The hook of the docs runs after each step; without it the gradient stays 0."""
    x = torch.rand(6, 3, 5)
    tau = snn.Learnable(torch.tensor([1.2, 2.0, 3.9, 2.0, 2.0]), min=1.0, max=4.0)
    net = nn.Sequential(snn.LIF(tau=tau, v_threshold=snn.Learnable(1.0, max=1.5)), snn.DelayedLinear(5, 2, 3, delay=3.0))
    parametrize.register_parametrization(net[0], "v_threshold", nn.Softplus())
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    handle = optimizer.register_step_post_hook(lambda *_: snn.clamp_(net))
    net(x).sum().backward()
    net[0].tau.grad.copy_(torch.tensor([5.0, 0.5, -5.0, 0.0, -0.5]))
    net[1].delay.grad.fill_(-1.0)
    optimizer.step()
    assert net[0].tau.tolist() == [1.0, 1.5, 4.0, 2.0, 2.5] and (net[1].delay == 3).all()
    taken = net[0].constant("tau", 3)
    assert torch.equal(torch.autograd.grad(taken.sum(), net[0].tau)[0], torch.ones(5)), "also at a bound"
    handle.remove()
    net[0].tau.data[0] = 0.5
    assert torch.autograd.grad(net[0].constant("tau", 3).sum(), net[0].tau)[0].tolist() == [0, 1, 1, 1, 1]
    snn.clamp_(nn.Linear(2, 2)), snn.clamp_(snn.Sequential(snn.IF()))


def test_plif_starts_where_it_is_told():
    assert 1 / torch.sigmoid(snn.PLIF(init_tau=5.0).w).item() == pytest.approx(5.0)
    assert 1 / torch.sigmoid(snn.PLIF().w).item() == 2.0
    assert not list(snn.PLIF(w=0.3).parameters()), "a number is not learned"


def test_tensors_of_the_reset_and_rest_are_where_states_start():
    x = torch.zeros(1, 3)
    reset, rest = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4, 0.5, 0.6])
    for options in ({}, {"strict": True}):
        _, state = snn.Izhikevich(v_reset=reset, w_rest=rest, a0=0.0, tau=1e9, tau_w=1e9, **options)(x, None)
        assert torch.allclose(state["v"], reset, atol=1e-6) and torch.allclose(state["w"], rest, atol=1e-6)


# --- wrong calls -------------------------------------------------------------------------------------------------------

X = torch.rand(7, 3, 5)
IMAGE = torch.rand(4, 2, 6, 5, 5)
PER_CHANNEL = snn.LIF(tau=snn.Learnable(2.0, per_channel=5))


WRONG = [
    (lambda: snn.LIF()(X.int()), r"LIF: x must be float16, bfloat16, float32 or float64, but is int32; pass x.float\(\)"),
    (lambda: snn.LIF()(X > 0), "LIF: x must be .* but is bool"),
    (lambda: snn.LIF()([1.0]), r"LIF: x must be a tensor \[T, \*shape\], time first, but is list"),
    *((lambda kind=kind: kind()(None), rf"{kind.__name__}: x must be a tensor \[T, \*shape\], time first, but is NoneType")
      for kind in (snn.IF, snn.LIF, snn.Izhikevich, snn.PLIF)),
    (lambda: snn.LIF()(torch.tensor(1.0)), r"LIF: x must be \[T, \*shape\], time first, but is 0-dimensional; step\(x\)"),
    (lambda: snn.LIF()(X, None, None), "takes from 2 to 3 positional arguments"),
    (lambda: snn.LIF()(X, {"v": torch.zeros(2, 5)}),
     r"LIF: the state v has shape \[2, 5\], but a step of x \[7, 3, 5\] has \[3, 5\]; pass None"),
    (lambda: snn.LIF()(X, {"v": torch.zeros(3, 5).double()}),
     "LIF: the state v is float64, but for x of float32 states are float32"),
    (lambda: snn.LIF()(X, {"v": torch.zeros(3, 5, device="meta")}),
     r"LIF: the state v is on meta, but x is on cpu; pass v.to\(x.device\)"),
    (lambda: snn.LIF()(X, {"w": X[0]}), "LIF: there is no state 'w'; it has v"),
    (lambda: snn.LIF()(X, X[0]), r'LIF: state must be None or a dict \{"v": ...\}, as a call returned it, but is Tensor'),
    (lambda: snn.LIF()(X, {"v": 1.0}), "LIF: the state v must be a tensor, but is float"),
    (lambda: PER_CHANNEL(torch.rand(4, 2, 3)),
     r"LIF: tau has 5 values, one per channel, but x \[4, 2, 3\] has 3 channels \(dimension 2"),
    (lambda: PER_CHANNEL(IMAGE),
     r"LIF: tau has 5 values.* has 6 channels .*if they belong to dimension 3, pass Constant\(..., dim=3\)"),
    (lambda: PER_CHANNEL(torch.rand(2, 5, 9)), r"has 9 channels .*if its last dimension is time, pass x.movedim\(-1, 0\)"),
    (lambda: snn.LIF(tau=torch.ones(2, 7))(X),
     r"LIF: tau has shape \[2, 7\], which does not broadcast against \[3, 5\], a step of x"),
    (lambda: snn.LIF(tau=torch.ones(5).double())(X),
     r"LIF: tau is float64, but x is float32; use one type for both: net.to\(torch.float32\)"),
    (lambda: snn.LIF(tau=torch.ones(5, dtype=torch.int64))(X), r"LIF: tau must be floating point, but is int64"),
    (lambda: snn.LIF(tau=torch.ones(5, device="meta"))(X),
     r"LIF: tau is on meta, but x is on cpu; move the module: net.to\(x.device\)"),
    (lambda: snn.LIF(tau=torch.zeros(5))(X), "LIF: tau must be finite and above 0, but .* 0"),
    (lambda: snn.LIF(tau=-1.0), "^LIF: tau must be finite and above 0, but is -1"),
    (lambda: snn.LIF(tau=0), "^LIF: tau must be finite and above 0"),
    (lambda: snn.AdaptiveLIF(decay=1.5), r"^AdaptiveLIF: decay must be in \[0, 1\], but is 1.5"),
    (lambda: snn.CubaLIF(tau_synapse=0.0), "^CubaLIF: tau_synapse must be finite and above 0, but is 0.0"),
    (lambda: snn.LI(tau=math.inf), "^LI: tau must be finite and above 0"),
    (lambda: snn.LIF(tau="2"), "LIF: tau must be a number, a tensor, an nn.Parameter or Learnable.*, but is str"),
    (lambda: snn.LIF(tau=None), "LIF: tau must be a number, .* but is NoneType"),
    (lambda: snn.LIF(tau=True), "LIF: tau must be a number, .* but is bool"),
    (lambda: snn.LIF(tau=torch.ones(3, requires_grad=True)),
     r"LIF: tau requires a gradient, but is not an nn.Parameter.*nn.Parameter\(tau\)"),
    (lambda: snn.LIF(taus=2.0), "unexpected keyword argument 'taus'"),
    (lambda: snn.PLIF(init_tau=1.0), "PLIF: init_tau must be a finite number above 1, but is 1.0"),
    (lambda: snn.PLIF(init_tau=2.0, w=0.0), "PLIF: pass w or init_tau, not both"),
    (lambda: snn.Learnable(2.0, min=3.0, max=1.0), "Learnable: min must not be above max"),
    (lambda: snn.Learnable(2.0, per_channel=3, shape=(3,)), "Learnable: pass per_channel or shape, not both"),
    (lambda: snn.Learnable(0.5, min=1.0), r"Learnable: value is 0.5, outside its bounds \[1.0, inf\]"),
    (lambda: snn.Learnable(torch.tensor([1.0, math.nan]), max=2.0), r"Learnable: value is nan, outside its bounds"),
    (lambda: snn.Learnable("2"), "Learnable: value must be a number or a tensor, but is str"),
    (lambda: snn.LI(v_rest=math.nan), "^LI: v_rest must not be NaN"),
    (lambda: snn.CubaLIF(v_threshold=math.nan), "^CubaLIF: v_threshold must not be NaN"),
    (lambda: snn.LIF(decay_input="no"), "^LIF: decay_input must be True or False, but is 'no'"),
    (lambda: snn.LI(decay_input=None), "^LI: decay_input must be True or False, but is None"),
    (lambda: snn.IF(detach_reset=1), "^IF: detach_reset must be True or False, but is 1"),
    (lambda: snn.IF(stateful="yes"), "^IF: stateful must be True or False, but is 'yes'"),
    (lambda: snn.LIF().step(None), r"^LIF: step takes tensors \[\*shape\], but got NoneType"),
    (lambda: snn.Constant(2.0, dim=0), "Constant: dim must not be 0, which is time"),
    (lambda: snn.Neuron("alif"), 'Neuron: the text must begin with "neuron name'),
    (lambda: snn.Neuron(3), "Neuron: neuron must be neuron text or a traced function, but is int"),
    (lambda: snn.Neuron("neuron n(x; v) { return q }"), 'Neuron n: .*nothing above is called "q"'),
    (lambda: snn.Neuron(TWO, tau=2.0), r"Neuron two: the parameter beta is missing; pass Neuron two\(..., beta=value\)"),
    (lambda: snn.Neuron(TWO, tau=2.0, beta=0.1, gamma=1.0), "Neuron two: it has no parameter gamma; its parameters: tau, beta"),
    (lambda: snn.Neuron(TWO, tau=2.0, beta=0.1)(X), "Neuron two: takes 2 inputs, then optionally a state, but got 1 arguments"),
    (lambda: snn.Neuron(TWO, tau=2.0, beta=0.1)(X, X[:3]),
     r"Neuron two: all inputs must have the same shape, but they are \[7, 3, 5\] and"),
]


@pytest.mark.parametrize("call, message", WRONG, ids=range(len(WRONG)))
def test_a_wrong_call_ends_in_one_line(call, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("half", [torch.ones(3), 1.0], ids=["tensor", "number"])
def test_a_constant_may_not_hide_an_attribute_of_torch(half):
    with pytest.raises(ValueError, match="Neuron n: torch.nn.Module has an attribute 'half'; rename the constant"):
        snn.Neuron("neuron n(x; v; half) { return half * x; v' = v }", half=half)


def test_a_wrong_assignment_leaves_the_module_as_it_was():
    lif = snn.LIF(tau=3.0)
    with pytest.raises(ValueError, match="LIF: tau must be finite and above 0"):
        lif.tau = -2.0
    assert lif.tau == 3.0 and torch.equal(lif(X), snn.LIF(tau=3.0)(X))


@every
def test_the_smooth_form_passes_gradcheck(name):
    params = {key: snn.Learnable(torch.full((2,), float(value), dtype=torch.float64)) for key, value in constants(name).items()}
    module = PREDEFINED[name](**params, spiking=False, surrogate=surrogate.ATan(1.3))
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    leaves = dict(module.named_parameters())

    def function(x, *values):
        y, state = torch.func.functional_call(module, dict(zip(leaves, values)), (x, None))
        return (y, *state.values())

    assert torch.autograd.gradcheck(function, (x, *leaves.values()))


@pytest.mark.parametrize("value", [-0.3, 0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("make, name", [
    (lambda t: snn.LI(tau=t), "tau"),
    (lambda t: snn.LIF(tau=t, strict=True), "tau"),
    (lambda t: snn.EIF(delta_t=t, strict=True), "delta_t"),
    (lambda t: snn.Izhikevich(tau_w=t, strict=True), "tau_w"),
    (lambda t: snn.CubaLIF(tau_membrane=t), "tau_membrane"),
], ids=["LI", "strict LIF", "strict EIF", "strict Izhikevich", "CubaLIF"])
def test_time_constants_of_tensors_are_checked_where_a_neuron_runs_as_text(make, name, value):
    module = make(torch.full((8,), 2.0))
    x = torch.rand(5, 4, 8)
    module(x)
    with torch.no_grad():
        getattr(module, name)[3] = value
    refused(ValueError, f"{name} must be finite and above 0, but is", lambda: module(x))
    torch.vmap(module)(x[None])  # values under vmap cannot be checked
