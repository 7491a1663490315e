"""Spikes that the neuron's loop packs, and products that read them.

The oracles are pack_spikes of the same output, and the gradients of the same call without bits."""

import pytest
import torch
from cases import DTYPES, Calls, all_equal, weighted
from test_recompute import Block
from torch import nn
from torch.library import opcheck

import spikeforge.nn as snn

ops = torch.ops.spikeforge
LEAKY = "neuron leaky(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"
COUNTS = "neuron counts(x) { return floor(x) }"  # any values
LAYOUTS = {
    "plain": lambda t: t,
    "channels last": lambda t: t.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, t.shape[:2]),
    "rows apart": lambda t: torch.stack([t, t], 1)[:, 0],
    "off the grid": lambda t: torch.cat([t.new_zeros(3), t.flatten()])[3:].view(t.shape),
}


@pytest.fixture(autouse=True)
def same_numbers(monkeypatch):
    torch.manual_seed(8)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # so that gradients are reproducible


def kept_bits(results):
    """Returns the first output, and the tensors in which the operator saves its bits."""
    outputs, kept = results[0], results[-1]
    assert len(kept) == 3  # the first is the checkpoints
    return outputs[0], kept[1:]


def assert_packed(results, bits, valid=True):
    y, (packed, is_valid) = kept_bits(results)
    expected, _ = ops.pack_spikes(y, bits)
    assert torch.equal(packed, expected) and is_valid.item() is valid
    return y


# N = B C H W of one step: 1 to 8 neurons per thread, rows that are not whole bytes, and a single number.
SHAPES = [(9, 2, 3, 5, 7), (4, 1, 8, 1, 1), (17, 2, 8, 4, 4), (1, 3, 8, 5, 5), (3, 1, 1, 1, 1), (2, 4, 64, 33, 32)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_loop_writes_the_bits_that_packing_gives(layout, dtype, device):
    for shape in SHAPES:
        x = LAYOUTS[layout](torch.rand(shape, device=device).mul_(3).to(dtype))
        tau = torch.tensor(2.0, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device=device)
        for bits in (1, 4):
            y = assert_packed(ops.run_forward(LEAKY, [x, tau], store_states=False, save=True, bits=bits), bits)
            assert y.any() or y.numel() == 3
        sums = torch.randint(0, 16, shape, device=device).to(dtype)
        y = assert_packed(ops.run_forward(COUNTS, [LAYOUTS[layout](sums)], store_states=False, save=True, bits=4), 4)
        assert torch.equal(y, sums)
        sums.view(-1)[-1] = 16.0
        assert_packed(ops.run_forward(COUNTS, [LAYOUTS[layout](sums)], store_states=False, save=True, bits=4), 4, valid=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_normalised_neuron_does_with_its_residual(layout, dtype, device):
    for shape in [(5, 2, 3, 5, 7), (4, 2, 8, 4, 4), (3, 2, 40, 4, 4), (2, 4, 64, 33, 32)]:
        x = LAYOUTS[layout](torch.randn(shape, device=device).mul_(2).to(dtype))
        r = LAYOUTS[layout](torch.randint(0, 3, shape, device=device).to(dtype))
        tau = torch.tensor(1.5, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device=device)
        for bits, residual in ((1, None), (4, r)):
            options = dict(residual_mode="add", channel_dim=2, eps=1e-5, store_states=False, save=True, bits=bits)
            y = assert_packed(ops.batch_norm_run_forward(LEAKY, [x, tau], None, None, residual, **options), bits)
            assert y.max() == (3 if bits == 4 else 1)


def test_large_results_and_all_threads_write_the_same_bits(device):
    """The results are large enough for non-temporal stores."""
    x = torch.rand(5, 1 << 20, device=device) * 3
    for bits in (1, 4):
        assert_packed(ops.run_forward(LEAKY, [x, torch.tensor(2.0)], store_states=False, save=True, bits=bits), bits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_predefined_neurons_write_them_too(dtype, device):
    """Compares the gradient of a weight, whose elements are sums of different spikes."""
    for n in (1, 7, 8, 72, 4104):
        x = torch.rand(5, 3, n, device=device).mul_(3).to(dtype).requires_grad_()
        weight = torch.zeros(1, n, device=device, dtype=dtype, requires_grad=True)
        upstream = torch.tensor([2.0**k for k in range(-7, 8)], device=device, dtype=dtype).view(5, 3, 1)
        found = []
        for bits in (0, 1):
            spikes, _ = ops.lif(x, surrogate="atan", bits=bits)
            found.append(torch.autograd.grad(ops.linear(spikes, weight), weight, upstream)[0])
        assert torch.equal(*found) and (n < 7 or found[0].any())


def test_no_steps_and_no_neurons_have_no_bits(device):
    for shape in ((0, 8), (0, 3), (4, 0)):
        for stored in (False, True):
            results = ops.run_forward(LEAKY, [torch.rand(shape, device=device), torch.tensor(2.0)], store_states=stored, save=True, bits=1)
            packed, valid = kept_bits(results)[1]
            assert packed.numel() == 0 and valid.item() is True


def neurons(device):
    """Yields the number of bits, that of calls of pack_spikes, and functions of x [T, B, 8, H, W] and bits. Under a
    dispatch mode, as here, predefined operators pack once, because their lowered operators return no bits."""
    norm = torch.rand(8, device=device) + 0.5, torch.rand(8, device=device)
    r = torch.randint(0, 2, (4, 3, 8, 6, 6), device=device).float()
    tau = torch.tensor(1.5, device=device)
    yield 1, 0, lambda x, bits: ops.run(LEAKY, [x], [], [tau], bits=bits)[0][0]
    yield 1, 1, lambda x, bits: ops.lif(x, tau=1.5, surrogate="atan", bits=bits)[0]
    yield 1, 1, lambda x, bits: ops.izhikevich(x, tau=tau, surrogate="atan", bits=bits)[0]
    yield 1, 0, lambda x, bits: ops.batch_norm_run(LEAKY, [x], [], [tau], *norm, bits=bits)[0][0]
    yield 1, 0, lambda x, bits: ops.batch_norm_run(LEAKY, [x], [], [tau], *norm, *norm, bits=bits)[0][0]  # given statistics
    yield 4, 0, lambda x, bits: ops.batch_norm_run(LEAKY, [x], [], [tau], *norm, None, None, r, bits=bits)[0][0]


def gradients(neuron, weight, kept, bits, change=lambda y: y):
    """Returns the gradients of a neuron followed by a product, and the number of calls of pack_spikes."""
    torch.manual_seed(2)
    x = torch.randn(4, 3, 8, 6, 6, device=weight.device).mul_(2).requires_grad_()
    with Calls() as calls:
        y = change(neuron(x, kept))
        z = ops.convolution(y.flatten(0, 1), weight, bits=bits)
        found = torch.autograd.grad(weighted(z), [x, weight])
    return found, calls.count("pack_spikes")


def test_a_product_takes_the_bits_of_the_neuron_before_it(device):
    weight = torch.randn(5, 8, 3, 3, device=device, requires_grad=True)
    for bits, own, neuron in neurons(device):
        expected, packed = gradients(neuron, weight, 0, bits)
        found, then = gradients(neuron, weight, bits, bits)
        assert (packed, then) == (1, own)
        assert all_equal(found, expected) and found[1].any() and found[0].any()
        x = torch.randn(4, 3, 8, 6, 6, device=device).mul_(2).requires_grad_()
        with Calls() as calls:  # three products of one output, one of them linear
            y = neuron(x, bits)
            ops.convolution(y.flatten(0, 1), weight, bits=bits)
            ops.linear(y, torch.randn(2, 6, device=device, requires_grad=True), bits=bits)
        assert calls.count("pack_spikes") == own


def test_bits_of_something_else_are_never_taken(device):
    weight = torch.randn(5, 8, 3, 3, device=device, requires_grad=True)
    *_, neuron = next(neurons(device))
    changes = {
        "other bits": (1, 4, lambda y: y),
        "a part": (1, 1, lambda y: y[1:]),
        "some channels": (1, 1, lambda y: y.unflatten(2, (2, 4))[:, :, 1].repeat(1, 1, 2, 1, 1)),
        "a copy": (1, 1, lambda y: y.clone()),
        "another type": (1, 1, lambda y: y.half().float()),
        "written to": (1, 1, lambda y: y.mul_(torch.arange(y.numel(), device=y.device).view_as(y) % 2)),
        "a view written to": (1, 1, lambda y: y[:, 1].zero_() is None or y),
        "written to without being told": (1, 1, lambda y: y.detach().zero_() is None or y),
    }
    for name, (kept, bits, change) in changes.items():
        expected, _ = gradients(neuron, weight, 0, bits, change)
        found, packed = gradients(neuron, weight, kept, bits, change)
        assert packed == 1, name
        assert all_equal(found, expected), name


def test_values_that_are_no_spikes_never_give_a_wrong_gradient(device):
    x = torch.rand(3, 2, 8, device=device, requires_grad=True)
    weight = torch.randn(4, 8, device=device, requires_grad=True)

    def run():
        (y,), _ = ops.run("neuron half(x) { return 0.5 * x }", [x], [], [], bits=1)
        return torch.autograd.grad(ops.linear(y, weight).sum(), weight)[0]

    if device.type == "cpu":
        with pytest.raises(ValueError, match="linear: x must be 0 or 1 everywhere"):
            run()
    else:
        assert run().isnan().all()


def test_bits_compile_and_are_right_operators(device):
    weight = torch.randn(5, 8, 3, 3, device=device, requires_grad=True)
    x = torch.randn(4, 3, 8, 6, 6, device=device).mul_(2).requires_grad_()
    tau = torch.tensor(1.5, device=device)

    def f(x, weight):
        (y,), *_ = ops.batch_norm_run(LEAKY, [x], [], [tau], bits=1)
        (y,), _ = ops.run(LEAKY, [y * 2], [], [tau], bits=1)
        return ops.convolution(y.flatten(0, 1), weight, recompute=True)

    def found(f):
        z = f(x, weight)
        return torch.autograd.grad(weighted(z), [x, weight])

    for got, expected in zip(found(torch.compile(f, fullgraph=True, backend="aot_eager")), found(f)):
        torch.testing.assert_close(got, expected)
    opcheck(ops.run.default, (LEAKY, [x], [], [tau]), dict(bits=1))
    opcheck(ops.batch_norm_run.default, (LEAKY, [x], [], [tau]), dict(bits=4))
    opcheck(ops.run_forward.default, (LEAKY, [x.detach(), tau]), dict(store_states=False, save=True, bits=4))


def test_under_transforms_there_are_none(device):
    x, tau = torch.rand(3, 4, 8, device=device) * 3, torch.tensor(2.0, device=device)

    def total(x):
        return ops.run(LEAKY, [x], [], [tau], bits=1)[0][0].sum()

    got = torch.func.vmap(torch.func.grad(total), in_dims=1)(x)
    leaf = x.clone().requires_grad_()
    total(leaf).backward()
    torch.testing.assert_close(got, leaf.grad.transpose(0, 1))


def test_wrong_bits_raise():
    x = torch.rand(3, 8)
    with pytest.raises(ValueError, match="bits must be 1, for 0 and 1, or 4, for 0 to 15, but is 2"):
        ops.run(LEAKY, [x], [], [torch.tensor(2.0)], bits=2)
    with pytest.raises(ValueError, match="batch_norm_run: bits must be 1"):
        ops.batch_norm_run(LEAKY, [x], [], [torch.tensor(2.0)], channel_dim=1, bits=3)
    with pytest.raises(ValueError, match="BatchNormNeuron: bits must be 0, 1 or 4, but is 3"):
        snn.BatchNormNeuron(nn.BatchNorm1d(8), snn.LIF(), bits=3)


def test_fuse_pairs_neurons_with_the_products_after_them(device):
    """Spikes need one bit, and their sums four; only outputs of other layers are packed separately."""
    stem = snn.TimeDistributed(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8))
    net = nn.Sequential(stem, snn.LIF(surrogate="atan"), snn.MaxPool2d(2), *(Block("add") for _ in range(3))).to(device)
    nn.init.constant_(stem.module[1].bias, 1.0)
    x = torch.rand(4, 2, 3, 8, 8, device=device)
    snn.fuse(net, x, recompute=True)
    assert [(block.fire1.bits, block.fire2.bits) for block in net[3:]] == [(1, 4), (1, 4), (1, 0)]
    assert net[1].bits == 0 and "bits=4" in str(net[3].fire2)
    losses = []
    for packs in (True, False):
        if not packs:
            for module in net.modules():
                if isinstance(module, snn.BatchNormNeuron):
                    module.bits = 0
        with Calls() as calls:
            y = net(x)
        losses.append((calls.count("pack_spikes"), torch.autograd.grad(weighted(y), list(net.parameters()))))
    (few, found), (many, expected) = losses
    assert (few, many) == (1, 6)  # for the pooling
    assert all_equal(found, expected)
