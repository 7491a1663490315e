"""Surrogates as objects: their formulas, names and arguments, and neurons that use them."""

import copy
import dataclasses
import pickle

import pytest
import spikeforge.nn as snn
import torch
from reference import SURROGATES
from spikeforge import surrogate

every = pytest.mark.parametrize("name", SURROGATES)


def objects(name):
    """Returns the surrogate with default and with other arguments."""
    kind = surrogate.SURROGATES[name]
    return [(kind(), SURROGATES[name].defaults), (kind(*SURROGATES[name].other), SURROGATES[name].other)]


def grid(name, arguments):
    x = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    for jump in SURROGATES[name].jumps(*arguments):
        x = x[(x - jump).abs() > 1e-6]
    return x


def test_there_is_an_object_for_each_surrogate_of_the_library():
    assert list(surrogate.SURROGATES) == list(SURROGATES)
    assert all(kind.__name__ in surrogate.__all__ for kind in surrogate.SURROGATES.values())


@every
def test_gradient_and_primitive_are_those_of_the_formula(name):
    for made, arguments in objects(name):
        x = grid(name, arguments)
        assert torch.allclose(made.gradient(x), SURROGATES[name].gradient(x, *arguments), rtol=1e-12, atol=1e-14)
        assert torch.allclose(made.primitive(x), SURROGATES[name].primitive(x, *arguments), rtol=1e-12, atol=1e-14)


@every
def test_a_neuron_takes_the_object_and_the_name(name, device):
    x = torch.linspace(-3, 3, 64, dtype=torch.float64, device=device).repeat(3, 1)

    def gradient(lif):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(lif(leaf).sum(), leaf)[0]

    (default, _), (other, numbers) = objects(name)
    assert torch.equal(gradient(snn.LIF(surrogate=default)), gradient(snn.LIF(surrogate=name)))
    operator = lambda x: torch.ops.spikeforge.lif(x, surrogate=name, surrogate_args=list(map(float, numbers)))[0]
    assert torch.equal(gradient(snn.LIF(surrogate=other)), gradient(operator))


@every
def test_surrogates_are_values(name):
    for made, numbers in objects(name):
        assert made == type(made)(*numbers) and hash(made) == hash(type(made)(*numbers))
        assert made.args == tuple(map(float, numbers)) and made.name == name
        assert eval(repr(made), vars(surrogate)) == made
        assert copy.deepcopy(made) == made == pickle.loads(pickle.dumps(made))
        for field in dataclasses.fields(made):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(made, field.name, 1.0)
    if SURROGATES[name].other:
        assert objects(name)[0][0] != objects(name)[1][0]
    assert surrogate.of(name) == surrogate.SURROGATES[name]()


@every
def test_the_text_of_a_surrogate_is_neuron_text(name):
    made = objects(name)[1][0]
    text = f"neuron one(x; v) {{ u = x + v\n s = spike(u, {made.text})\n return s\n v' = 0 * u }}"
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)[None].requires_grad_()
    (spikes,), _ = torch.ops.spikeforge.run(text, [x], [], [])
    (got,) = torch.autograd.grad(spikes.sum(), x)
    assert torch.allclose(got, made.gradient(x.detach()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make, message", [
    (lambda: surrogate.ATan(-1.0), r"ATan\(alpha=-1.0\): alpha must be above 0"),
    (lambda: surrogate.ATan(float("nan")), "alpha must be finite"),
    (lambda: surrogate.QPseudoSpike(1.0), "alpha must be above 1"),
    (lambda: surrogate.SquarewaveFourier(1), "n must be a whole number, 2 or more"),
    (lambda: surrogate.ATan(torch.tensor(2.0)), "ATan: alpha must be a number, but is Tensor; .*Custom"),
    (lambda: snn.LIF(surrogate="tan"), 'LIF: unknown surrogate "tan"; known are sigmoid, atan'),
    (lambda: snn.LIF(surrogate=surrogate.ATan), r"LIF: surrogate must be an object, but is the class ATan; pass ATan\(\)"),
    (lambda: snn.LIF(surrogate=2.0), "LIF: surrogate must be a name .* but is float$"),
    (lambda: snn.LIF(surrogate=lambda u: u), "LIF: surrogate must be a name .* but is function; .*Custom.*spikeforge.neuron"),
    (lambda: surrogate.Custom(3), "Custom: the expression must be text"),
    (lambda: surrogate.Custom("a * u", a="2"), "Custom: a must be a number, but is str"),
    (lambda: surrogate.Custom("u", u=1.0), "Custom: u is H - v_threshold"),
    (lambda: surrogate.Custom("q * u"), r"Custom\('q \* u'\): .*nothing above is called \"q\""),
    (lambda: surrogate.Custom("1 / (1 + u"), r"Custom\('1 / \(1 \+ u'\): "),
    (lambda: snn.LIF(surrogate=surrogate.Custom("abs(u)"), spiking=False), "LIF: spiking=False needs a surrogate's primitive"),
])
def test_wrong_surrogates_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_custom_surrogate(device):
    own = surrogate.Custom("width / square(1 + abs(u)) + max0 * exp(-abs(u))", width=0.5, max0=-0.25)
    x = torch.linspace(-3, 3, 101, dtype=torch.float64, device=device)
    want = 0.5 / (1 + x.abs()) ** 2 - 0.25 * torch.exp(-x.abs())
    assert torch.allclose(own.gradient(x), want, rtol=1e-9)
    leaf = x[None].clone().requires_grad_()
    spikes = snn.IF(v_threshold=0.0, surrogate=own)(leaf)
    assert torch.equal(spikes, (leaf >= 0).double())
    assert torch.allclose(torch.autograd.grad(spikes.sum(), leaf)[0][0], want, rtol=1e-9)
    assert own == surrogate.Custom("width / square(1 + abs(u)) + max0 * exp(-abs(u))", width=0.5, max0=-0.25)
    assert own != surrogate.Custom("u") and copy.deepcopy(own) == own == pickle.loads(pickle.dumps(own))


NEURONS = [snn.IF, snn.LIF, snn.PLIF, snn.QIF, snn.EIF, snn.Izhikevich, snn.AdaptiveLIF]


@pytest.mark.parametrize("kind", NEURONS)
@pytest.mark.parametrize("options", [{}, {"v_reset": None}, {"detach_reset": True}, {"v_threshold": torch.tensor(0.8)}])
def test_a_neuron_with_a_custom_surrogate_has_the_bits_of_its_operator(kind, options, device):
    """The neuron runs as text. With the expression of a built-in surrogate, gradients agree too."""
    options = dict(options)
    if kind in (snn.Izhikevich, snn.AdaptiveLIF):
        options["b"] = 0.3
    own = surrogate.Custom("1 / square(1 + 3 * abs(u))")
    x = (2 * torch.randn(9, 4, 6, dtype=torch.float64, device=device)).requires_grad_()
    plain = kind(surrogate=surrogate.FastSigmoid(3.0), **options).to(device)
    text = kind(surrogate=own, **options).to(device)
    (want, want_state), (got, got_state) = plain(x, None), text(x, None)
    assert 0 < want.mean() < 1
    if kind is not snn.EIF or device.type == "cpu":
        assert torch.equal(got, want) and all(torch.equal(got_state[name], want_state[name]) for name in want_state)
    loss = [y.sin().sum() + sum(v.sum() for v in state.values()) for y, state in ((got, got_state), (want, want_state))]
    finite = want_state["v"].isfinite()  # an EIF may diverge
    grads = [torch.autograd.grad(value, x)[0][:, finite] for value in loss]
    assert finite.any() and torch.allclose(*grads, rtol=1e-9, atol=1e-12)
