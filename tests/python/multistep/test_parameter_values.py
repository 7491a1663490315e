"""Parameters as tensors: their memory layouts, their types, and illegal values."""

import math

import pytest
import torch
from cases import DTYPES, LOWERED_LIF, NUMBERS, RANGES, all_equal, refused
from reference import NEURONS

ops = torch.ops.spikeforge
every_neuron = pytest.mark.parametrize("neuron", NEURONS)

ILLEGAL = dict(
    tau=(0.0, -0.5, math.inf, math.nan, 1e-45), delta_t=(0.0, math.nan), tau_w=(-1.0,), decay=(-0.1, 1.5, math.nan),
)


def call(neuron, x, **params):
    """Calls the neuron with a tensor for every other parameter."""
    given = {name: torch.tensor(NUMBERS[name], dtype=torch.float64).to(x) for name in NEURONS[neuron].params if name in NUMBERS}
    if neuron == "plif":
        given["w"] = torch.zeros((), dtype=x.dtype, device=x.device)
    given.update(params)
    weight = [given.pop("w")] if neuron == "plif" else []
    return getattr(ops, neuron).tensor(x, *weight, **given)


def some(name, shape, dtype=torch.float32):
    low, high = RANGES[name]
    return (low + (high - low) * torch.rand(shape, dtype=torch.float64)).to(dtype)


# --- memory layouts ------------------------------------------------------------------------------------------------

# Shapes of neurons and of the parameter: one value for all, the same value for neighbours, a value for each neighbour, both, and
# sizes within and beyond a tile.
PLACES = [
    ((7,), (7,)), ((3, 5), (3, 1)), ((3, 5), (1, 5)), ((2, 3, 4, 5), (3, 1, 1)), ((2, 3, 4, 5), (4, 1)), ((2, 3, 4, 5), (2, 1, 4, 1)),
    ((5, 1000), (5, 1)), ((3000, 3), (3,)), ((4, 3, 700), (3, 1)), ((9001,), (9001,)), ((2, 5000), (5000,)), ((1,), (1,)),
]


def assert_broadcast_alike(run, x, small, tolerance):
    """Checks that run(parameters) has the same bits with expanded parameters, whose gradients sum to the given ones."""
    large = [p.detach().expand(x.shape[1:]).contiguous().requires_grad_() for p in small]
    results = [run(params) for params in (small, large)]
    assert all_equal(*results)
    (of_x, *grads), (expected_of_x, *expected) = (
        torch.autograd.grad(r[0].sum() + r[1].sum(), [x, *params]) for r, params in zip(results, (small, large))
    )
    assert torch.equal(of_x, expected_of_x)
    for a, b in zip(grads, expected):
        a, b = a.double(), b.double()
        torch.testing.assert_close(a, b.sum_to_size(a.shape), rtol=tolerance, atol=tolerance * float(b.abs().sum() / a.numel()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape, of_param", PLACES, ids=str)
@pytest.mark.parametrize("neuron", ["lif", "plif", "izhikevich", "adaptive_lif"])
def test_a_parameter_that_broadcasts_is_one_of_every_neuron(neuron, shape, of_param, dtype, device):
    x = (3 * torch.rand(9, *shape)).to(device, dtype).requires_grad_()
    small = {name: some(name, of_param, dtype).to(device).requires_grad_() for name in NEURONS[neuron].params if name in RANGES}
    assert_broadcast_alike(lambda params: call(neuron, x, **dict(zip(small, params))), x, list(small.values()), 2e-2)


def test_a_traced_neuron_takes_parameters_as_they_lie(device):
    """Each parameter is a tensor or a scalar; values that depend on no tensor are computed once for all neurons."""
    text = """neuron n(x; v; tau, high, low) { h = v + (x - v) / tau; s = spike(h - high * 2, atan(2)); return s
    v' = select(s, low + 1, h) }"""

    def run(params):
        outputs, states = ops.run(text, [x], [], params)
        return [*outputs, *states]

    for shape, of_param in PLACES:
        x = (6 * torch.rand(9, *shape, device=device)).requires_grad_()
        for which in range(8):
            params = [some("tau", of_param if which >> i & 1 else ()).to(device).requires_grad_() for i in range(3)]
            assert_broadcast_alike(run, x, params, 1e-4)


# --- types ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("of_param", [(), (5,), (3, 1), (3, 5)], ids=str)
@every_neuron
def test_a_parameter_of_lower_precision_is_converted(neuron, of_param, given, device):
    """The type is promoted as in a sum: results are those of the converted parameter; its gradient has its own type."""
    x = (3 * torch.rand(6, 3, 5, dtype=torch.float64)).to(device).requires_grad_()
    for name in NEURONS[neuron].params:
        if name not in RANGES:
            continue
        low = some(name, of_param, given).to(device).requires_grad_()
        high = low.detach().double().requires_grad_()
        got, expected = call(neuron, x, **{name: low}), call(neuron, x, **{name: high})
        assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
        (grad,) = torch.autograd.grad(got[1].sum() + got[0].sum(), low)
        (wanted,) = torch.autograd.grad(expected[1].sum() + expected[0].sum(), high)
        assert grad.dtype == given and torch.equal(grad, wanted.to(given))


def test_an_expanded_parameter_of_lower_precision(device):
    x = (3 * torch.rand(6, 3, 5, dtype=torch.float64)).to(device)
    tau = some("tau", (3, 1)).to(device).expand(3, 5).requires_grad_()
    got, expected = call("lif", x, tau=tau), call("lif", x, tau=tau.double().contiguous())
    assert torch.equal(got[1], expected[1])
    (grad,) = torch.autograd.grad(got[1].sum(), tau)
    assert grad.shape == (3, 5) and grad.dtype == torch.float32


def test_a_traced_neuron_converts_parameters_of_lower_precision():
    text = "neuron n(x; v; tau) { h = v + (x - v) / tau; return h; v' = h }"
    x = torch.rand(6, 5, dtype=torch.float64)
    tau = some("tau", (5,)).requires_grad_()
    (out,), _ = ops.run(text, [x], [], [tau])
    assert torch.equal(out, ops.run(text, [x], [], [tau.double()])[0][0])
    assert torch.autograd.grad(out.sum(), tau)[0].dtype == torch.float32


def test_a_parameter_of_higher_precision_is_refused():
    with pytest.raises(TypeError, match="lif: tau must be Float for a Float x, but is Double"):
        call("lif", torch.rand(4, 3), tau=torch.full((3,), 2.0, dtype=torch.float64))


# --- illegal values: on the CPU -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@every_neuron
def test_an_illegal_value_is_named(neuron, dtype):
    x = torch.rand(3, 2, 3, 40).to(dtype)
    for name in NEURONS[neuron].params:
        if name not in RANGES:
            continue
        for bad in ILLEGAL.get(name, (math.nan,)):
            bad = torch.tensor(bad, dtype=dtype).item()
            if bad > 0 and math.isfinite(bad) and name == "tau" and dtype == torch.float64:
                continue  # its reciprocal is finite
            words = [f"{neuron}: {name} must ", f"but is {bad:g}"]
            refused(ValueError, words, call, neuron, x, **{name: torch.tensor(bad, dtype=dtype)})
            channels, neurons = some(name, (3, 1), dtype), some(name, (2, 3, 40), dtype)
            channels[1] = neurons[1, 2, 39] = bad
            refused(ValueError, [*words, " at [1, 0]"], call, neuron, x, **{name: channels})
            refused(ValueError, [*words, " at [1, 2, 39]"], call, neuron, x, **{name: neurons})


@pytest.mark.parametrize("place", [0, 31, 4096, 9000, 20000])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_illegal_value_is_found_at_any_position(place, steps):
    tau = torch.full((20001,), 2.0)
    tau[place] = -3.0
    tau[20000] = 0.0
    at = f"but is {'-3' if place < 20000 else '0'} at [{place}]"
    refused(ValueError, ["lif: tau must be finite and above 0", at], call, "lif", torch.rand(steps, 20001), tau=tau)


def test_legal_extremes_are_taken():
    x = torch.rand(4, 3)
    call("lif", x, tau=torch.tensor([1e-38, 3e38, 1.0]), v_threshold=torch.tensor([math.inf, -math.inf, 0.0]))
    call("adaptive_lif", x, decay=torch.tensor([0.0, -0.0, 1.0]))


def test_the_backward_operator_refuses_them_too():
    x = torch.rand(4, 3)
    checkpoints = ops.lif_forward(x, None, [None] * 3, [2.0, 1.0, 0.0], **LOWERED_LIF, save=True)[-1]
    refused(
        ValueError, ["lif: tau must be finite and above 0, but is 0 at [1]"], ops.lif_backward,
        torch.ones(4, 3), None, x, None, checkpoints, [torch.tensor([1.0, 0.0, 2.0]), None, None], [0.0, 1.0, 0.0],
        **LOWERED_LIF, needs_grad=[True] + [False] * 4,
    )


def test_a_compiled_graph_refuses_them_too():
    compiled = torch.compile(lambda x, tau: ops.lif.tensor(x, tau=tau, v_reset=None)[0], backend="aot_eager", fullgraph=True)
    x = torch.rand(4, 3)
    assert compiled(x, torch.full((3,), 2.0)).shape == (4, 3)
    refused(ValueError, ["lif: tau must be finite and above 0, but is -2 at [0]"], compiled, x, torch.full((3,), -2.0))


def test_a_traced_neuron_may_take_any_value():
    """The text does not state which values are legal."""
    text = "neuron n(x; v; tau) { h = v + (x - v) / tau; return h; v' = h }"
    (out,), _ = ops.run(text, [torch.rand(4, 3)], [], [torch.tensor([math.nan, 0.0, 1.0])])
    assert out[:, 0].isnan().all() and out[:, 2].isfinite().all()


@pytest.mark.parametrize("dtype, bad", [(torch.float64, 5e-324), (torch.float32, 5e-324), (torch.float32, 1e-39), (torch.float32, 1e39)])
def test_a_number_whose_reciprocal_is_none_is_refused(dtype, bad):
    refused(ValueError, ["lif: tau must be finite and above 0", "but is"], ops.lif, torch.rand(4, 3, dtype=dtype), tau=bad)
    with pytest.raises(ValueError, match="tau must be"):
        ops.lif_forward(torch.rand(4, 3, dtype=dtype), None, [None] * 3, [bad, 1.0, 0.0], **LOWERED_LIF, save=False)


def test_small_numbers_whose_reciprocal_is_one_are_taken():
    ops.lif(torch.rand(4, 3, dtype=torch.float64), tau=1e-39)
    ops.lif(torch.rand(4, 3), tau=3e-39)


def test_loihis_tensors_are_checked():
    x = torch.ones(4, 3, dtype=torch.int32)
    bad = torch.tensor([5, 4096, 7], dtype=torch.int32)
    refused(ValueError, ["loihi_lif: du must be in [-1, 4095], but has values from 5 to 4096"], ops.loihi_lif, x, du=bad)


# --- illegal values: NaN on a GPU -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given_state", [False, True])
@every_neuron
def test_on_a_gpu_an_illegal_value_makes_its_neuron_nan(neuron, given_state, cuda):
    x = torch.rand(20, 64, device=cuda)
    for name in NEURONS[neuron].params:
        if name not in RANGES:
            continue
        for bad in ILLEGAL.get(name, (math.nan,)):
            tensor = some(name, (64,)).to(cuda)
            tensor[7] = bad
            states = dict(v=torch.zeros(64, device=cuda)) if given_state else {}
            spikes, v, *_ = call(neuron, x, **states, **{name: tensor}, store_v=True)
            assert v[:, 7].isnan().all() and not spikes[:, 7].any(), f"{neuron}: {name}={bad}"
            others = torch.arange(64, device=cuda) != 7
            assert v[:, others].isfinite().all()


def test_on_a_gpu_a_zero_dimensional_value_on_the_host_is_checked(cuda):
    refused(ValueError, ["lif: tau must", "but is -1"], call, "lif", torch.rand(4, 3, device=cuda), tau=torch.tensor(-1.0))
