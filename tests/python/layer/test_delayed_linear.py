"""Layers with learned delays, compared with plain loops, and gradcheck."""

import math

import pytest
import torch
from cuda_graphs import captured
from loops import refused, with_threads
from torch import nn

import spikeforge.nn as snn

ops = torch.ops.spikeforge
MOST = 4


def kernel(form, d, width, most=MOST):
    """Returns κ_k(d) for k = 0 .. most, [most + 1, *d.shape], by the formulas of the papers."""
    k = torch.arange(most + 1, dtype=d.dtype).view(-1, *[1] * d.dim())
    d = d.clamp(0, most)
    if form == "linear":
        return (1 - (k - d).abs()).clamp(min=0)
    raw = (1 + width - (k - d).abs()).clamp(min=0) if form == "triangle" else torch.exp(-((k - d) ** 2) / (2 * width**2))
    return raw / raw.sum(0)


def looped(x, w, d, b, form, width, past=None, most=MOST):
    """Loops over all synapses and steps, in float64."""
    x, w, d = x.double(), w.double(), d.double().expand(w.shape)
    all = torch.cat([torch.zeros(most, *x.shape[1:], dtype=x.dtype) if past is None else past.double(), x])
    k = kernel(form, d, width, most)
    rows = []
    for t in range(len(x)):
        rows.append(sum(torch.einsum("...i,oi->...o", all[most + t - j], w * k[j]) for j in range(most + 1)))
    return torch.stack(rows) + (0 if b is None else b.double())


def numbers(per, dtype=torch.float64, device="cpu"):
    make = lambda *shape: torch.randn(shape).to(device, dtype)
    d = MOST * torch.rand((5,) if per == "input" else (3, 5))
    d.view(-1)[0], d.view(-1)[1] = -1.5, MOST + 0.5  # delays outside their bounds
    return make(6, 2, 5), make(3, 5), d.to(device, torch.float32 if dtype in (torch.half, torch.bfloat16) else dtype), make(3), make(MOST, 2, 5)


def assert_like(got, wanted, leaves, on_cpu, bound):
    """Compares values, and gradients for a random upstream gradient, within `bound` of the largest."""
    upstream = torch.randn(wanted.shape).to(got.dtype)
    grads = torch.autograd.grad(got, leaves, upstream.to(got.device)), torch.autograd.grad(wanted, on_cpu, upstream.double())
    for one, want in ((got, wanted), *zip(*grads)):
        assert (one.detach().cpu().double() - want).abs().max() <= bound * want.abs().max()


per_each = pytest.mark.parametrize("per", ["synapse", "input"])
every_form = pytest.mark.parametrize("form", ["linear", "triangle", "gauss"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@per_each
@every_form
def test_each_synapse_receives_its_delayed_input(form, per, dtype, device):
    x, w, d, b, past = numbers(per, dtype, device)
    bound = {torch.float64: 1e-10, torch.float32: 1e-5}.get(dtype, 2e-2)
    leaves = [t.requires_grad_() for t in (x, w, d, b, past)]
    got = ops.delayed_linear(x, w, d, b, max_delay=MOST, interpolation=form, width=0.8, past=past)
    on_cpu = [t.detach().cpu().double().requires_grad_() for t in leaves]
    wanted = looped(*on_cpu[:4], form, 0.8, on_cpu[4])
    assert got.dtype == dtype and got.shape == (6, 2, 3)
    assert_like(got, wanted, leaves, on_cpu, bound)


# Samples that fill vectors or not, in one group or several; spikes in few steps, and values in all steps; delays longer
# than the steps that are processed at once; sequences about as long as tiles; long sequences of samples that do not
# fill a warp.
@pytest.mark.parametrize("form, width, shape, rate, dtype", [
    ("linear", 0.5, (37, 32, 21), 0.02, torch.float32),
    ("linear", 0.5, (37, 32, 21), 1.0, torch.float32),
    ("linear", 0.5, (1, 1, 40), 0.5, torch.float32),
    ("linear", 0.5, (140, 16, 3), 0.02, torch.float64),
    ("gauss", 5.0, (20, 40, 7), 0.05, torch.float64),
    ("triangle", 3.0, (33, 16, 5), 0.01, torch.float32),
    ("gauss", 0.3, (19, 17, 6), 1.0, torch.bfloat16),
    ("linear", 0.5, (300, 33, 5), 0.1, torch.float32),
    ("gauss", 5.0, (130, 3, 9), 1.0, torch.float64),
])
@per_each
def test_sizes_of_layers(form, width, shape, rate, dtype, per, device):
    torch.manual_seed(len(form) + shape[0])
    most, features, out = 13, shape[-1], 19
    x = (torch.randn(shape) if rate == 1 else (torch.rand(shape) < rate)).to(device, dtype).requires_grad_()
    w = torch.randn(out, features).to(device, dtype).requires_grad_()
    d = (most * torch.rand((out, features) if per == "synapse" else features)).to(device, dtype).requires_grad_()
    past = torch.randn(most, *shape[1:]).to(device, dtype).requires_grad_() if shape[0] != 37 else None
    leaves = [x, w, d] + ([] if past is None else [past])
    got = ops.delayed_linear(x, w, d, max_delay=most, interpolation=form, width=width, past=past)
    on_cpu = [t.detach().cpu().double().requires_grad_() for t in leaves]
    wanted = looped(*on_cpu[:3], None, form, width, *on_cpu[3:], most=most)
    bound = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    assert_like(got, wanted, leaves, on_cpu, bound)


def test_threads_change_no_bit():
    x, w, d = torch.randn(40, 33, 50), torch.randn(30, 50), 9 * torch.rand(30, 50)
    for t in (x, w, d):
        t.requires_grad_()

    def run():
        y = ops.delayed_linear(x, w, d, max_delay=9)
        return y.detach(), *torch.autograd.grad(y.square().sum(), (x, w, d))

    first, *others = with_threads((1, 2, 5), run)
    assert all(all(map(torch.equal, first, other)) for other in others)


@per_each
def test_a_call_again_gives_the_same_bits(per, device):
    x, w, d = torch.randn(40, 33, 50), torch.randn(30, 50), 9 * torch.rand(*(50,) if per == "input" else (30, 50))
    leaves = [t.to(device).requires_grad_() for t in (x, w, d)]
    found = []
    for _ in range(2):
        y = ops.delayed_linear(*leaves, max_delay=9)
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*found))


@per_each
def test_a_cuda_graph_has_it(per, cuda):
    x, w, d = torch.randn(20, 5, 7), torch.randn(6, 7), 9 * torch.rand(*(7,) if per == "input" else (6, 7))
    leaves = [t.to(cuda).requires_grad_() for t in (x, w, d)]
    upstream = torch.randn(20, 5, 6, device=cuda)

    def step():
        y = ops.delayed_linear(*leaves, max_delay=9)
        return [y.detach(), *torch.autograd.grad(y, leaves, upstream)]

    graph, found = captured(step)
    with torch.no_grad():
        for t in leaves:
            t.copy_(t.roll(1, 0))
    graph.replay()
    torch.testing.assert_close(found, step())


def test_a_delay_that_is_no_number(device):
    x, d = torch.randn(5, 2, 3, device=device), torch.full((4, 3), float("nan"), device=device)
    assert ops.delayed_linear(x, torch.randn(4, 3, device=device), d, max_delay=MOST).isnan().all()


@pytest.mark.parametrize("shape, out", [((0, 2, 3), 4), ((5, 0, 3), 4), ((5, 2, 0), 4), ((5, 2, 3), 0), ((5, 3), 4), ((4, 2, 3, 5), 6)])
@per_each
def test_empty_ones_and_any_batch(shape, out, per, device):
    x, w, past = torch.randn(*shape), torch.randn(out, shape[-1]), torch.randn(MOST, *shape[1:])
    d = MOST * torch.rand(shape[-1] if per == "input" else w.shape)
    leaves = [t.double().to(device).requires_grad_() for t in (x, w, d, past)]
    y = ops.delayed_linear(*leaves[:3], max_delay=MOST, past=leaves[3])
    grads = torch.autograd.grad(y.sum(), leaves)
    on_meta = ops.delayed_linear(*(t.detach().to("meta") for t in leaves[:3]), max_delay=MOST, past=leaves[3].detach().to("meta"))
    assert y.shape == on_meta.shape == (*shape[:-1], out) and y.stride() == on_meta.stride()
    assert all(g.shape == t.shape and g.is_contiguous() for g, t in zip(grads, leaves))
    if y.numel() > 0 and w.numel() > 0:
        wanted = looped(x, w, d, None, "linear", 0.5, past)
        torch.testing.assert_close(y.detach().cpu(), wanted, rtol=1e-10, atol=1e-10)


def test_a_whole_delay_is_learned_to_the_right():
    x = torch.randn(8, 1, 1, dtype=torch.float64)
    w, d = torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64, requires_grad=True)
    y = ops.delayed_linear(x, w, d, max_delay=MOST)
    assert torch.equal(y[2:], x[:-2]) and y[:2].abs().max() == 0
    y.sum().backward()
    assert torch.isclose(d.grad, x[: 8 - 3].sum() - x[: 8 - 2].sum()).all()
    last = torch.full((1, 1), float(MOST), dtype=torch.float64, requires_grad=True)  # the largest possible delay
    y = ops.delayed_linear(x, w, last, max_delay=MOST)
    assert torch.equal(y[MOST:], x[:-MOST])
    y.sum().backward()
    assert torch.isclose(last.grad, x[: 8 - MOST].sum() - x[: 8 - MOST + 1].sum()).all()


def test_a_narrow_gauss_is_the_nearest_step(device):
    for width in (0.03, 1e-3, 1e-20, 1e-200):
        x, d = torch.randn(9, 1, 1, device=device), torch.tensor([2.4], device=device, requires_grad=True)
        y = ops.delayed_linear(x, torch.ones(1, 1, device=device), d, max_delay=MOST, interpolation="gauss", width=width)
        torch.testing.assert_close(y[2:], x[:-2])
        y.sum().backward()
        assert d.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0.01, 1e-3, 1e-20, 1e-200])
def test_layers_of_a_narrow_gauss_take_the_nearest_step(width, dtype):
    for delay, nearest in ((2.4, 2), (2.6, 3), (0.0, 0), (9.0, MOST)):
        x = torch.randn(9, 1, 1, dtype=dtype)
        form = dict(interpolation="gauss", width=width, delay=delay, bias=False)
        linear, conv = snn.DelayedLinear(1, 1, MOST, **form).to(dtype), snn.DelayedConv1d(1, 1, 1, MOST, **form).to(dtype)
        for layer, y in ((linear, linear(x)), (conv, conv(x.unsqueeze(-1)).squeeze(-1))):
            torch.testing.assert_close(y[nearest:], layer.weight.flatten() * x[: 9 - nearest])
            y.sum().backward()
            assert layer.delay.grad.isfinite().all()


def test_a_width_that_is_written_must_be_above_0():
    for layer, x in ((snn.DelayedLinear(1, 1, MOST), torch.rand(3, 1, 1)), (snn.DelayedConv1d(1, 1, 1, MOST), torch.rand(3, 1, 1, 1))):
        for layer.width in (0.0, -1.0, float("nan")):
            refused(ValueError, rf"{type(layer).__name__}: width must be above 0, but is {layer.width}", lambda: layer(x))


def test_whole_numbers_may_be_numpys():
    numpy = pytest.importorskip("numpy")
    n = numpy.int64
    linear, conv = snn.DelayedLinear(n(3), n(2), n(MOST)), snn.DelayedConv1d(n(3), n(2), n(2), n(MOST), stride=(n(1),))
    assert linear(torch.rand(2, 1, 3)).shape == (2, 1, 2) and conv(torch.rand(2, 1, 3, 4)).shape == (2, 1, 2, 3)
    assert {type(layer.max_delay) for layer in (linear, conv)} == {int} and snn.Delay(n(3)).longest == 3


def test_no_features_and_frozen_arguments():
    layer = snn.DelayedLinear(0, 2, 3)
    assert torch.equal(layer(torch.rand(4, 2, 0)), layer.bias.expand(4, 2, 2))
    none = snn.DelayedLinear(2, 0, 3)
    none(torch.rand(4, 2, 2)).sum().backward()
    assert none.weight.grad.shape == (0, 2)
    x, w, d, b, past = numbers("synapse")
    for wanted in ((x,), (w,), (d,), (past,), (w, past)):
        leaves = [t.requires_grad_(any(t is one for one in wanted)) for t in (x, w, d, past)]
        y = ops.delayed_linear(leaves[0], leaves[1], leaves[2], max_delay=MOST, past=leaves[3])
        some = torch.autograd.grad(y.square().sum(), wanted)
        for t in leaves:
            t.requires_grad_()
        y = ops.delayed_linear(leaves[0], leaves[1], leaves[2], max_delay=MOST, past=leaves[3])
        torch.testing.assert_close(some, torch.autograd.grad(y.square().sum(), wanted))


def test_a_checkpoint_has_its_form():
    layer = snn.DelayedLinear(3, 2, MOST, interpolation="gauss", width=3.0)
    layer.width = 0.7
    other = snn.DelayedLinear(3, 2, MOST)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(6, 2, 3)
    assert torch.equal(other(x), layer(x)) and (other.interpolation, other.width) == ("gauss", 0.7)
    with torch.no_grad():
        layer.delay.fill_(-3.0)
    assert layer.clamp_().delay.abs().max() == 0


@per_each
def test_pieces_are_the_whole(per, device):
    layer = snn.DelayedLinear(5, 3, MOST, per=per, interpolation="gauss").to(device, torch.float64)
    x = torch.randn(9, 2, 5, dtype=torch.float64, device=device)
    whole, (state) = layer(x, None)
    y1, first = layer(x[:2], None)  # fewer steps than the longest delay
    y2, last = layer(x[2:], first)
    torch.testing.assert_close(torch.cat([y1, y2]), whole)
    assert torch.equal(last["x"], x[-MOST:]) and torch.equal(state["x"], last["x"])
    _, stored = layer(x, None, store_states=True)
    assert torch.equal(stored["x"][1], first["x"]) and stored["x"].shape == (9, MOST, 2, 5)
    with snn.keep_state(layer):
        kept = torch.cat([layer(x[:2]), layer(x[2:])])
    torch.testing.assert_close(kept, whole)
    in_net = snn.Sequential(layer, snn.LIF().to(device))
    torch.testing.assert_close(in_net(x), snn.LIF().to(device)(whole))


def test_a_loaded_layer_has_learned_delays():
    torch.manual_seed(0)
    layer = snn.Recurrent(snn.LIF(), snn.DelayedLinear(8, 8, MOST)).double()
    back, x = layer.module, 2 * torch.rand(20, 3, 8, dtype=torch.float64)
    wanted, v = [], torch.zeros(3, 8, dtype=torch.float64)
    for t in range(len(x)):
        heard = torch.stack([torch.zeros_like(v), *wanted])
        h = v + (x[t] + looped(heard, back.weight, back.delay, back.bias, "linear", 0.5)[-1] - v) / 2
        wanted.append((h >= 1).double())
        v = torch.where(h >= 1, 0.0, h)
    spikes = layer(x)
    assert torch.equal(spikes, torch.stack(wanted)) and 0.1 < spikes.mean() < 0.9
    spikes.sum().backward()
    assert back.delay.grad.abs().max() > 0


@pytest.mark.parametrize("kind", ["synapse", "input", "conv1d", "conv2d"])
def test_an_exported_layer_takes_any_number_of_steps(kind):
    if kind.startswith("conv"):
        layer = (snn.DelayedConv1d if kind == "conv1d" else snn.DelayedConv2d)(5, 3, 2, MOST)
    else:
        layer = snn.DelayedLinear(5, 3, MOST, per=kind, interpolation="gauss", width=1.5)
    x = torch.randn(3 * MOST, 2, 5, *(3,) * getattr(layer, "dims", 0))
    net = torch.nn.Sequential(layer)
    steps = {0: torch.export.Dim("T", min=1, max=99)}
    exported = torch.export.export(net, (x[: MOST + 2],), dynamic_shapes=(steps,)).module()
    for piece in (x[:1], x[: MOST - 1], x[:MOST], x):
        torch.testing.assert_close(exported(piece), net(piece))


def test_it_compiles_and_deploys(tmp_path):
    nir = pytest.importorskip("nir")
    graphs = pytest.importorskip("spikeforge.nir", exc_type=ImportError)

    layer = snn.DelayedLinear(5, 3, MOST, per="input", interpolation="gauss", width=1.5)
    x = torch.randn(7, 2, 5)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    layer.round_()
    net = layer.deployed()
    torch.testing.assert_close(net(x), layer(x))
    graphs.save(snn.Sequential(net[0], net[1].module, snn.LI(tau=2.0)), x[0, 0], tmp_path / "net.nir", dt=1e-3)
    assert any(isinstance(node, nir.Delay) for node in nir.read(tmp_path / "net.nir").nodes.values())
    back = graphs.load(tmp_path / "net.nir", dt=1e-3)
    torch.testing.assert_close(back(x), snn.LI(tau=2.0)(net(x)), rtol=1e-4, atol=1e-5)


def test_autocast_is_that_of_linear(device):
    layer, x = snn.DelayedLinear(5, 3, MOST, delay=0.0).to(device), torch.randn(6, 2, 5, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        y, wanted = layer(x), nn.functional.linear(x, layer.weight, layer.bias)
    assert y.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(y, wanted, rtol=2e-2, atol=2e-2)
    y.sum().backward()
    assert layer.weight.grad.dtype == layer.delay.grad.dtype == torch.float32


def test_a_delay_is_found():
    """x is random, and the target is x three steps earlier: a longer initial delay converges to 3."""
    torch.manual_seed(5)
    layer = snn.DelayedLinear(1, 1, 8, delay=6.5, interpolation="gauss", width=3.0, bias=False)
    optimizer = torch.optim.Adam([{"params": [layer.weight], "lr": 0.02}, {"params": [layer.delay], "lr": 0.1}])
    for i in range(300):
        layer.width = 3.0 * (1 - i / 300) + 0.3
        x = torch.randn(64, 8, 1)
        loss = (layer(x)[3:] - x[:-3]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    layer.round_()
    assert layer.delay.item() == 3
    assert abs(layer.weight.item() - 1) < 0.1


def call(**changes):
    arguments = dict(x=torch.rand(6, 2, 5), weight=torch.rand(3, 5), delay=torch.rand(3, 5), max_delay=MOST) | changes
    return lambda: ops.delayed_linear(**arguments)


REFUSED = {
    "x": (call(x=torch.rand(5)), ValueError, r"x must have shape \[T, \*batch, I\]"),
    "x's type": (call(x=torch.ones(6, 2, 5).int()), TypeError, "x must be float16"),
    "weight": (call(weight=torch.rand(5, 3)), ValueError, r"weight must have shape \[O, 5\]"),
    "weight's type": (call(weight=torch.rand(3, 5).double()), TypeError, "weight must be Float"),
    "delay": (call(delay=torch.rand(3)), ValueError, "delay must have the shape of weight"),
    "delay's type": (call(delay=torch.ones(3, 5).int()), TypeError, "delay must be of a floating type"),
    "bias": (call(bias=torch.rand(5)), ValueError, "bias must have shape"),
    "max_delay": (call(max_delay=-1), ValueError, "max_delay must be from 0 to 4096, but is -1"),
    "interpolation": (call(interpolation="cubic"), ValueError, '"gauss", but is "cubic"'),
    "width": (call(interpolation="gauss", width=0.0), ValueError, "width must be above 0"),
    "past": (call(past=torch.rand(3, 2, 5)), ValueError, r"past must have shape \[4, 2, 5\]"),
    "module's per": (lambda: snn.DelayedLinear(3, 3, 2, per="neuron"), ValueError, "'synapse' or 'input'"),
    "module's delay": (lambda: snn.DelayedLinear(3, 3, 2, delay=torch.rand(2)), ValueError, r"delay must be real and have shape \[3, 3\]"),
    "module's max_delay": (lambda: snn.DelayedLinear(3, 3, 2.5), ValueError, "max_delay must be a whole number from 0 to 4096"),
    "module's x": (lambda: snn.DelayedLinear(3, 3, 2)(torch.rand(4, 2, 5)), ValueError, "DelayedLinear: weight must have shape"),
    "module's sizes": (lambda: snn.DelayedLinear(-1, 3, 4), ValueError, "DelayedLinear: in_features must be a whole number of 0 or more, but is -1"),
    "module's outputs": (lambda: snn.DelayedLinear(3, 2.5, 4), ValueError, "DelayedLinear: out_features must be a whole number of 0 or more, but is 2.5"),
    "module's width": (lambda: snn.DelayedLinear(3, 3, 2, width=0.0), ValueError, "width must be above 0"),
    "bias's type": (call(bias=torch.ones(3).int()), TypeError, "bias must be of a floating type"),
    "deployed": (lambda: snn.DelayedLinear(3, 3, 2).deployed(), ValueError, "per='input'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    run, kind, words = REFUSED[name]
    refused(kind, words, run)


def test_a_state_dict_is_tensors_that_can_be_averaged():
    made = lambda: snn.DelayedConv1d(2, 3, 3, 4, interpolation="gauss", width=0.75)
    net, average, other = made(), made(), snn.DelayedConv1d(2, 3, 3, 4)
    for state in (net.state_dict(), {name: 0.9 * average.state_dict()[name] + 0.1 * value for name, value in net.state_dict().items()}):
        assert all(isinstance(value, torch.Tensor) for value in state.values())
        other.load_state_dict(state)
        assert (other.interpolation, other.width) == ("gauss", pytest.approx(0.75))
        assert torch.equal(other.weight, state["weight"])
    other = snn.DelayedConv1d(2, 3, 3, 4)
    other.load_state_dict({**net.state_dict(), "_extra_state": {"max_delay": 4, "interpolation": "gauss", "width": 0.75}})
    assert (other.interpolation, other.width) == ("gauss", 0.75), "checkpoints of 0.1 hold a dict"


def test_the_state_of_another_layer_is_refused():
    state = snn.DelayedLinear(3, 4, 9).state_dict()
    with pytest.raises(ValueError, match="the loaded state has max_delay=9, but the layer has 2"):
        snn.DelayedLinear(3, 4, 2).load_state_dict(state)
    snn.DelayedLinear(3, 4, 9).load_state_dict(state)
    forms = torch.tensor([[9.0, 3.0, 0.5], [9.0, 0.0, -1.0], [9.0, 0.0, math.nan]])
    for form in ({}, None, {"interpolation": "xx", "width": 1.0}, {"interpolation": "gauss", "width": -1.0}, *forms, forms):
        with pytest.raises(ValueError, match="the loaded state is not that of a layer with delays"):
            snn.DelayedLinear(3, 4, 9).load_state_dict({**state, "_extra_state": form})
    refused(ValueError, "delay must be finite", lambda: snn.DelayedLinear(3, 4, 2, delay=float("nan")))


# ---- convolutions ----

@every_form
def test_a_convolution_of_one_pixel_is_a_linear_layer(form, device):
    """Compares values, and gradients of x, weight, delay and bias; includes delays outside their bounds."""
    x, w, d, b, past = numbers("synapse", device=device)
    conv = snn.DelayedConv1d(5, 3, 1, MOST, interpolation=form, width=0.8).to(device, torch.float64)
    with torch.no_grad():
        for own, given in ((conv.weight, w), (conv.delay, d), (conv.bias, b)):
            own.copy_(given.view(own.shape))
    leaves = [t.clone().requires_grad_() for t in (x, w, d, b)]
    x = x.clone().requires_grad_()
    wanted = ops.delayed_linear(*leaves, max_delay=MOST, interpolation=form, width=0.8, past=past)
    got, state = conv(x.unsqueeze(-1), {"x": past.unsqueeze(-1)})
    torch.testing.assert_close(got.squeeze(-1), wanted, rtol=0, atol=1e-12)
    assert torch.equal(state["x"].squeeze(-1), torch.cat((past, x))[-MOST:])
    upstream = torch.randn_like(wanted)
    found = torch.autograd.grad(got, [x, conv.weight, conv.delay, conv.bias], upstream.unsqueeze(-1))
    for one, want in zip(found, torch.autograd.grad(wanted, leaves, upstream)):
        torch.testing.assert_close(one.view(want.shape), want, rtol=0, atol=1e-11)


def test_each_weight_of_a_convolution_has_a_separate_delay():
    conv = snn.DelayedConv2d(4, 6, (2, 3), MOST, stride=(1, 2), padding=1, dilation=(2, 1), groups=2).double()
    x = torch.randn(7, 2, 4, 5, 6, dtype=torch.float64)
    k = kernel("linear", conv.delay.detach(), 0.5)
    padded = torch.cat((torch.zeros(MOST, *x.shape[1:], dtype=x.dtype), x))
    wanted = torch.stack([
        sum(nn.functional.conv2d(padded[t + MOST - j], conv.weight * k[j], None, (1, 2), 1, (2, 1), 2) for j in range(MOST + 1)) for t in range(7)
    ]) + conv.bias[:, None, None]  # fmt: skip
    torch.testing.assert_close(conv(x), wanted, rtol=0, atol=1e-12)
    first, state = conv(x[:3], None)
    second, _ = conv(x[3:], state)
    torch.testing.assert_close(torch.cat((first, second)), wanted, rtol=0, atol=1e-12)
    conv.round_()
    assert torch.equal(conv.delay, conv.delay.round()) and conv.kernel().ne(0).sum(2).max() == 1


@every_form
def test_gradients_of_a_convolution(form):
    torch.manual_seed(5)
    conv = snn.DelayedConv1d(2, 2, 2, MOST, interpolation=form, width=0.7).double()
    x = torch.randn(3, 1, 2, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x, w, d: torch.func.functional_call(conv, {"weight": w, "delay": d}, (x,)), (x, conv.weight, conv.delay))


def test_wrong_convolutions_are_refused():
    for wrong, words in (
        (dict(kernel_size=0), "DelayedConv1d: kernel_size must be 1 whole numbers of 1 or more, or one for all, but is 0"),
        (dict(stride=(1, 1)), "DelayedConv1d: stride must be 1 whole numbers"),
        (dict(groups=2), "DelayedConv1d: groups must divide in_channels and out_channels, 3 and 4, but is 2"),
        (dict(max_delay=-1), "DelayedConv1d: max_delay must be a whole number"),
        (dict(delay=torch.zeros(3)), r"DelayedConv1d: delay must be real and have shape \[4, 3, 2\]"),
        (dict(interpolation="cubic"), "DelayedConv1d: interpolation must be 'linear' or 'triangle' or 'gauss'"),
    ):
        with pytest.raises(ValueError, match=words):
            snn.DelayedConv1d(**(dict(in_channels=3, out_channels=4, kernel_size=2, max_delay=3) | wrong))
    conv = snn.DelayedConv1d(3, 4, 2, 3)
    with pytest.raises(ValueError, match=r"DelayedConv1d: x must have shape \[T, B, 3, size\], but has \[2, 1, 4, 5\]"):
        conv(torch.rand(2, 1, 4, 5))
    with pytest.raises(ValueError, match=r"DelayedConv1d: the state x must have shape \[3, 1, 3, 5\], but has \[2, 1, 3, 5\]"):
        conv(torch.rand(2, 1, 3, 5), {"x": torch.rand(2, 1, 3, 5)})
    with pytest.raises(TypeError, match="DelayedConv1d: x must be torch.float32, the type of the weights, but is torch.float64"):
        conv(torch.rand(2, 1, 3, 5).double())
