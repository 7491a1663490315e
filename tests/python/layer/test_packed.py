"""Packed spikes: pack_spikes, unpack_spikes, linear, convolution and packed_activations.

The oracles are torch's own layers, with the same bits, and explicit values."""

import contextlib
import gc
import weakref

import pytest
import torch
from loops import refused
from torch import nn
from torch.library import opcheck

import spikeforge
import spikeforge.nn as snn
from documentation import code

ops = torch.ops.spikeforge
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def counts(*shape, most=1, dtype=torch.float32, device="cpu"):
    return torch.randint(0, most + 1, shape).to(device, dtype)


# --- packing

@pytest.mark.parametrize("bits", [1, 4])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 63, 64, 65, 1000, 40007])
def test_bits_stand_where_they_are_said_to(n, bits, device):
    x = counts(n, most=(1 << bits) - 1, device=device)
    packed, valid = ops.pack_spikes(x, bits)
    a_byte, numbers = 8 // bits, [int(value) for value in x.tolist()]
    expected = [sum(value << k * bits for k, value in enumerate(numbers[i : i + a_byte])) for i in range(0, n, a_byte)]
    assert packed.tolist() == expected and packed.dtype == torch.uint8 and valid.item() is True


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [1, 4])
def test_packed_spikes_come_back_in_every_type_and_layout(bits, dtype, device):
    x = counts(3, 4, 5, 6, most=(1 << bits) - 1, dtype=dtype, device=device)
    for layout in (x, x.contiguous(memory_format=torch.channels_last), x.permute(3, 1, 0, 2)):
        packed, valid = ops.pack_spikes(layout, bits)
        back = ops.unpack_spikes(packed, valid, layout.shape, layout.stride(), dtype, bits)
        assert torch.equal(back, layout) and back.stride() == layout.stride() and back.dtype == dtype


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("wrong", [0.5, -1.0, 2.0, 15.5, 16.0, 1e4, float("nan"), float("inf"), float("-inf")])
def test_other_values_are_reported_and_returned_as_nan(wrong, dtype, device):
    for bits in (1, 4):
        for place in (0, 7, 500, 999):
            x = counts(1000, dtype=dtype, device=device)
            x[place] = wrong
            packed, valid = ops.pack_spikes(x, bits)
            assert valid.item() is (bits == 4 and wrong == 2.0)
            back = ops.unpack_spikes(packed, valid, [1000], [1], dtype, bits)
            assert torch.equal(back, x) if valid else back.isnan().all()
    assert ops.pack_spikes(torch.tensor([-0.0, 1.0], dtype=dtype, device=device))[1]


def test_any_byte_but_zero_is_true():
    packed = ops.pack_spikes(torch.ones(10))[0]
    valid = torch.tensor([37], dtype=torch.uint8).view(torch.bool)[0]
    assert torch.equal(ops.unpack_spikes(packed, valid, [10], [1], torch.float32), torch.ones(10))


def test_packing_is_a_right_operator(device):
    x = counts(3, 50, device=device)
    opcheck(ops.pack_spikes.default, (x,))
    packed, valid = ops.pack_spikes(x, 4)
    opcheck(ops.unpack_spikes.default, (packed, valid, [3, 50], [50, 1], torch.float16, 4))
    opcheck(ops.unpack_spikes.default, (packed, valid, [3, 50], [1, 3], torch.float16, 4))


@pytest.mark.parametrize(("words", "error", "call"), [
    ("bits must be 1, for 0 and 1, or 4, for 0 to 15, but is 2", ValueError, lambda x, p, v: ops.pack_spikes(x, 2)),
    ("x must be float16, bfloat16, float32 or float64, but is Int", TypeError, lambda x, p, v: ops.pack_spikes(x.int())),
    (r"packed must have shape \[3\]", ValueError, lambda x, p, v: ops.unpack_spikes(p, v, [20], [1], x.dtype)),
    ("packed must be uint8", TypeError, lambda x, p, v: ops.unpack_spikes(x, v, [10], [1], x.dtype)),
    ("valid must be bool", TypeError, lambda x, p, v: ops.unpack_spikes(p, p, [10], [1], x.dtype)),
    ("must have as many entries", ValueError, lambda x, p, v: ops.unpack_spikes(p, v, [10], [], x.dtype)),
    ("size must not be negative", ValueError, lambda x, p, v: ops.unpack_spikes(p, v, [-10], [1], x.dtype)),
    ("that of a dense tensor", ValueError, lambda x, p, v: ops.unpack_spikes(p, v, [10], [2], x.dtype)),
    ("that of a dense tensor", ValueError, lambda x, p, v: ops.unpack_spikes(p, v, [10], [0], x.dtype)),
    ("that of a dense tensor", ValueError, lambda x, p, v: ops.unpack_spikes(p, v, [5, 2], [1 << 40, 1], x.dtype)),
    ("size is too large", ValueError, lambda x, p, v: ops.unpack_spikes(p, v, [3, 4, 1 << 62], [28, 7, 1], x.dtype)),
    ("that of a dense tensor", ValueError, lambda x, p, v: ops.unpack_spikes(p[:0], v, [0, 2], [1, -1], x.dtype)),
    ("dtype must be float16", TypeError, lambda x, p, v: ops.unpack_spikes(p, v, [10], [1], torch.int32)),
])
def test_wrong_packs_raise(words, error, call):
    x = counts(10)
    refused(error, words, lambda: call(x, *ops.pack_spikes(x)))


# --- products

def products():
    """Yields a name, the operator, torch's function, the shapes of x and weight, and the options."""
    yield "linear", ops.linear, nn.functional.linear, (4, 3, 7), (5, 7), {}
    yield "linear of nothing", ops.linear, nn.functional.linear, (2, 0), (3, 0), {}
    yield "linear to nothing", ops.linear, nn.functional.linear, (2, 3), (0, 3), {}
    yield "linear of a vector", ops.linear, nn.functional.linear, (7,), (5, 7), {}
    for dims, function in enumerate((nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d), 1):
        space = (9, 8, 7)[:dims]
        yield f"conv{dims}d", ops.convolution, function, (4, 6, *space), (8, 6, *[3] * dims), {}
        options = dict(stride=[2] * dims, padding=[1, 2, 1][:dims], dilation=[2] * dims, groups=2)
        yield f"conv{dims}d with options", ops.convolution, function, (4, 6, *space), (8, 3, *[3] * dims), options


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("name", "op", "function", "shape", "weight", "options"), products(), ids=[p[0] for p in products()])
def test_products_and_gradients_have_the_bits_of_torch(name, op, function, shape, weight, options, has_bias, device):
    for bits in (1, 4):
        x = counts(*shape, most=(1 << bits) - 1, device=device)
        w, b = torch.randn(weight, device=device), torch.randn(weight[0], device=device)
        results = []
        if options:  # one value for all dimensions, as in torch
            torch.testing.assert_close(op(x, w, None, 2, 1, groups=2), function(x, w, None, 2, 1, groups=2))
        for run in (lambda *t: op(*t, **options, bits=bits), lambda *t: function(*t, **options)):
            leaves = [t.clone().requires_grad_() for t in ((x, w, b) if has_bias else (x, w))]
            y = run(*leaves)
            y.backward(torch.linspace(-1, 1, y.numel(), device=device).view_as(y))
            results.append((y.detach(), *(t.grad for t in leaves)))
        for found, expected in zip(*results):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wanted", range(3))
def test_each_gradient_alone(wanted, device):
    x, w, b = counts(2, 6, 9, 9, device=device), torch.randn(8, 6, 3, 3, device=device), torch.randn(8, device=device)
    found = []
    for run in (ops.convolution, nn.functional.conv2d):
        leaves = [t.clone().requires_grad_(i == wanted) for i, t in enumerate((x, w, b))]
        found.append(torch.autograd.grad(run(*leaves).square().sum(), leaves[wanted])[0])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_bit_a_number_is_kept(layout, device):
    x = counts(8, 16, 12, 12, device=device).contiguous(memory_format=layout)
    weight, kept = torch.randn(4, 16, 3, 3, device=device, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = ops.convolution(x, weight)
    assert sum(t.numel() * t.element_size() for t in kept if t is not weight) == x.numel() // 8 + 1
    expected = torch.autograd.grad(nn.functional.conv2d(x, weight).sum(), weight)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), weight), expected)


def test_values_that_are_no_spikes_never_give_a_wrong_gradient(device):
    x, weight = counts(4, 7, device=device), torch.randn(5, 7, device=device, requires_grad=True)
    x[2, 3] = 0.25
    if device.type == "cpu":
        refused(ValueError, "linear: x must be 0 or 1 everywhere.*pass bits=4", lambda: ops.linear(x, weight))
        with pytest.raises(ValueError, match="convolution: x must be a whole number from 0 to 15"):
            ops.convolution(x.view(1, 4, 7), weight.view(5, 1, 7)[:, :, :3].expand(5, 4, 3), bits=4)
    else:
        ops.linear(x, weight).sum().backward()
        assert weight.grad.isnan().all()
    assert torch.equal(ops.linear(x, weight.detach()), nn.functional.linear(x, weight.detach()))  # without autograd


def test_second_derivatives_are_refused_and_transforms_are_torchs(device):
    x, weight = counts(4, 7, device=device), torch.randn(5, 7, device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(ops.linear(x, weight.requires_grad_()).square().sum(), weight)
    with pytest.raises(NotImplementedError, match="its backward pass cannot be differentiated"):
        torch.autograd.grad(ops.linear(x, weight).square().sum(), weight, create_graph=True)
    loss = lambda weight: ops.linear(x, weight).square().sum()
    torch.testing.assert_close(torch.func.grad(loss)(weight.detach()), gradient)
    assert torch.func.hessian(loss)(weight.detach()).shape == (5, 7, 5, 7)
    weights = torch.randn(3, 5, 7, device=device)
    torch.testing.assert_close(torch.func.vmap(loss)(weights), torch.stack([loss(w) for w in weights]))


@pytest.mark.parametrize("op", ["linear", "convolution"])
def test_compile_autocast_and_opcheck(op, device):
    op = getattr(ops, op).default
    linear = op is ops.linear.default
    x = counts(*((4, 7) if linear else (2, 7, 5, 5)), device=device)
    weight = torch.randn(*((5, 7) if linear else (5, 7, 3, 3)), device=device, requires_grad=True)
    opcheck(op, (x, weight))
    opcheck(op, (x, weight.detach()))
    run = lambda x, w: op(x, w).square().sum()
    gradients = [torch.autograd.grad(f(x, weight), weight) for f in (run, torch.compile(run, fullgraph=True))]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        y = op(x.bfloat16(), weight)
        expected = (nn.functional.linear if linear else nn.functional.conv2d)(x.bfloat16(), weight)
    assert y.dtype == torch.bfloat16 and torch.equal(y, expected)
    found, expected = (torch.autograd.grad(t.float().sum(), weight)[0] for t in (y, expected))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_a_weight_that_nothing_reads_again_may_change(device):
    x, weight = counts(4, 7, device=device), torch.randn(5, 7, device=device, requires_grad=True)
    y = ops.linear(x, weight)
    with torch.no_grad():
        weight.add_(1)
    y.sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand(5, 7))
    y = ops.linear(x.requires_grad_(), weight)
    with torch.no_grad():
        weight.add_(1)
    refused(RuntimeError, "modified by an inplace operation", y.sum().backward)


def test_a_product_under_autocast_leaves_torchs_their_gradients(device):
    """Autocast caches casts of weights, which must stay differentiable for the next operator."""
    x, weight = counts(4, 7, device=device), torch.randn(5, 7, device=device, requires_grad=True)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        y = ops.linear(x, weight) + nn.functional.linear(x, weight)
    (found,) = torch.autograd.grad(y.float().sum(), weight)
    torch.testing.assert_close(found, 2 * x.sum(0).expand(5, 7), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("words", "call"), [
    (r"weight must have shape \[out, in\]", lambda x, w: ops.linear(x, w[0])),
    (r"weight must have shape \[out, in / groups, \*kernel\]", lambda x, w: ops.convolution(x, w)),
    ("x must have 3 dimensions", lambda x, w: ops.convolution(x, w[None])),
    (r"linear: x must have shape \[\.\.\., 7\] .*, but has shape \[4, 6\]", lambda x, w: ops.linear(x[:, 1:], w)),
    (r"linear: x must have shape \[\.\.\., 7\] .*, but has shape \[\]", lambda x, w: ops.linear(x[0, 0], w.detach())),
    (r"convolution: x must have 7 channels, .* but has shape \[1, 4, 7\]", lambda x, w: ops.convolution(x[None], w[:, :, None])),
    (r"x must have 14 channels, .* and 2 groups, but", lambda x, w: ops.convolution(x[None], w[:4, :, None], groups=2)),
    ("groups must divide the outputs of weight, 5, but is 2", lambda x, w: ops.convolution(x.T[None], w[..., None], groups=2)),
    ("stride must not be below 1, but is", lambda x, w: ops.convolution(x.T[None], w[..., None], stride=0)),
    ("padding must not be below 0, but is", lambda x, w: ops.convolution(x.T[None], w[..., None], padding=-1)),
    ("the kernel must not be larger than x, but takes 9 places of 6 in dimension 2 of x",
     lambda x, w: ops.convolution(x.T[None], w[..., None].expand(5, 7, 5), padding=1, dilation=2)),
    ("linear: bits must be 1, for 0 and 1, or 4", lambda x, w: ops.linear(x, w.detach(), bits=7)),
    ("stride must have one entry, or 1, but has 2", lambda x, w: ops.convolution(x.T[None], w[..., None], stride=[1, 1])),
])
def test_wrong_products_raise(words, call):
    refused(ValueError, words, lambda: call(counts(4, 7), torch.randn(5, 7, requires_grad=True)))


def test_weight_and_bias_fit_x():
    x, weight = counts(4, 7), torch.randn(5, 7, requires_grad=True)
    for bias in (torch.randn(4, 5), torch.randn(4), torch.randn(())):
        refused(ValueError, r"linear: bias must have shape \[5\]", lambda: ops.linear(x, weight, bias))
    with pytest.raises(ValueError, match="linear: weight must be on cpu, the device of x, but is on meta"):
        ops.linear(x, weight.to("meta"))
    with pytest.raises(ValueError, match="convolution: bias must be on cpu"):
        ops.convolution(x[None], weight[:, :, None].expand(5, 7, 1)[:, :4], torch.zeros(5, device="meta"))
    refused(TypeError, "linear: weight must be Float, the type of x, but is Double", lambda: ops.linear(x, weight.double()))
    with torch.inference_mode(), pytest.raises(ValueError, match=r"linear: x must have shape \[\.\.\., 7\]"):
        ops.linear(x[:, 1:], weight)


# --- packed_activations

def network(device):
    return nn.Sequential(
        snn.TimeDistributed(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)), snn.LIF(),
        snn.TimeDistributed(nn.Conv2d(16, 16, 3, padding=1)), snn.IF(),
        snn.TimeDistributed(nn.Flatten(), nn.Linear(16 * 8 * 8, 10)),
    ).to(device)


@pytest.fixture(params=["now", "later"])
def when(request, monkeypatch):
    """Whether the contents of a tensor are known immediately, or later as on a GPU."""
    spikeforge.packed._Place.known.clear()
    if request.param == "later":
        monkeypatch.setattr(spikeforge.packed, "_is_checked_later", lambda t: True)


def decided(kept):
    return kept.decide() if isinstance(kept, spikeforge.packed._Undecided) else kept


def test_gradients_have_the_same_bits_and_spikes_are_kept_as_bits(device, monkeypatch, when):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # so that gradients are reproducible
    net, x = network(device), torch.randn(4, 6, 3, 8, 8, device=device)
    net(x).square().sum().backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    kept, pack = [], spikeforge.packed_activations._pack

    def noted(self, t):
        kept.append(pack(self, t))
        return kept[-1]

    monkeypatch.setattr(spikeforge.packed_activations, "_pack", noted)
    spikes = 4 * 6 * 16 * 8 * 8
    for _ in range(3):
        kept.clear()
        with spikeforge.packed_activations():
            loss = net(x).square().sum()
        loss.backward()
        for parameter, gradient in zip(net.parameters(), expected):
            assert torch.equal(parameter.grad, gradient)
        net.zero_grad()
        packed = [one for one in map(decided, kept) if isinstance(one, spikeforge.packed._Packed)]
        assert [(one.size.numel(), one.packed.numel(), one.bits) for one in packed] == [(spikes, spikes // 8, 1)] * 2


def test_spikes_become_bits_counts_become_four_and_the_rest_stays(device, when):
    from spikeforge.packed import _unpack

    def _pack(t):
        spikeforge.packed._Place.known.clear()
        return decided(spikeforge.packed_activations()._pack(t))

    spikes, more = counts(40, 50, device=device), counts(40, 50, most=9, device=device)
    for x, bits in ((spikes, 1), (more, 4), (spikes.t(), 1), (more.expand(3, 40, 50), 4)):
        kept = _pack(x)
        assert kept.packed.numel() == (x.numel() * bits + 7) // 8
        assert torch.equal(_unpack(kept), x)
    late = spikes.clone()
    late[-1, -1] = 0.5
    one = torch.ones(1, device=device).expand(64, 64)
    for x in (torch.randn(40, 50, device=device), late, counts(30, device=device), spikes.int(), nn.Parameter(spikes), one, spikes.to("meta")):
        kept = _pack(x)
        assert kept.tensor.data_ptr() == x.data_ptr() and _unpack(kept) is kept.tensor


def test_the_contents_of_a_place_may_change(monkeypatch):
    """Memory that contained spikes may contain counts or other values later; other values are checked again later."""
    monkeypatch.setattr(spikeforge.packed, "_is_checked_later", lambda t: True)
    spikeforge.packed._Place.known.clear()
    spikes, more, other = counts(40, 50), counts(40, 50, most=9), torch.randn(40, 50)

    def bits_of(t):
        kept = spikeforge.packed_activations()._pack(t)
        assert torch.equal(spikeforge.packed._unpack(kept), t)
        kept = decided(kept)
        return kept.bits if isinstance(kept, spikeforge.packed._Packed) else None

    assert [bits_of(t) for t in (spikes, spikes, more, more, more, other, other, spikes)] == [1, 1, None, 4, 4, None, None, None]
    assert 1 in [bits_of(spikes) for _ in range(spikeforge.packed.RECHECK)] and bits_of(spikes) == 1


def test_no_more_than_a_few_tensors_wait_for_an_answer(monkeypatch):
    monkeypatch.setattr(spikeforge.packed, "_is_checked_later", lambda t: True)
    spikeforge.packed._Place.known.clear()
    context = spikeforge.packed_activations()
    with context:
        kept = [context._pack(counts(64, 64)) for _ in range(8)]
        assert sum(bool(one.tried) for one in kept) == spikeforge.packed.LAG
    assert all(isinstance(decided(one), spikeforge.packed._Packed) for one in kept)


@pytest.mark.parametrize("changed", ["leaf", "output"])
def test_changes_in_place_are_noticed_as_without_it(changed, when):
    x, w = torch.randn(4096), torch.randn(4096, requires_grad=True)
    with spikeforge.packed_activations():
        h = x * w if changed == "leaf" else torch.sigmoid(w)
        loss = h.sum()
    x.zero_() if changed == "leaf" else h.detach().mul_(2)
    refused(RuntimeError, "modified by an inplace operation", loss.backward)


def test_kept_bits_are_freed_with_their_graph(when):
    x = torch.randn(1 << 16, requires_grad=True)
    with spikeforge.packed_activations():
        y = torch.sigmoid(x)
    alive = weakref.ref(y)
    del y
    gc.collect()
    assert alive() is None


def test_double_backward_and_compile_within_the_context(device):
    x, w = counts(64, 64, device=device), torch.randn(64, 64, device=device, requires_grad=True)
    results = []
    for packed in (True, False):
        with spikeforge.packed_activations() if packed else contextlib.nullcontext():
            (gradient,) = torch.autograd.grad((x @ w).sigmoid().square().sum(), w, create_graph=True)
            (second,) = torch.autograd.grad(gradient.square().sum(), w)
        results.append((gradient.detach(), second))
    assert all(torch.equal(a, b) for a, b in zip(*results))
    with spikeforge.packed_activations():
        y = torch.compile(lambda w: (x @ w).square().sum())(w)
    (found,) = torch.autograd.grad(y, w)
    torch.testing.assert_close(found, torch.autograd.grad((x @ w).square().sum(), w)[0], rtol=1e-4, atol=1e-4)


def test_the_page_of_bits():
    names = {}
    exec(code("layers in Python") + code("bits in Python"), names)
    assert names["weight"].grad.abs().sum() > 0


def test_the_page_of_bits_by_the_neuron():
    names = {"torch": torch}
    exec(code("bits of a neuron"), names)
    weight, spikes = names["weight"], names["spikes"]
    assert spikes.sum() > 0
    torch.testing.assert_close(weight.grad, spikes.detach().sum((0, 1)).expand_as(weight))
