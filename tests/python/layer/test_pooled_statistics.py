"""Max pooling moved before its normalisation: max_pool2d(weight=), max_pool2d_statistics, and the layers that use them. The
oracle is torch's normalisation, pooling and a neuron in sequence."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from loops import refused
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.nn import functional

import spikeforge.nn as snn
from spikeforge.accelerate.watch import watched
from test_pooling import TYPES, images, pair

ops = torch.ops.spikeforge
doubles = partial(images, dtype=torch.float64)
SPIKING = "neuron leaky(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 0.3, atan(2)); return s; v' = select(s, 0, h) }"
WINDOWS = [(2, 2, 0), (3, 2, 1), (3, 1, 1), ((2, 3), (1, 2), (1, 0)), ((3, 1), (4, 3), (0, 0)), ((7, 9), 2, (3, 4)), ((9, 8), (3, 8), 4)]


def by_torch(x, weight, window, ceil_mode=False):
    """Returns the elements of x for which weight x is largest in a window, and the mean and variance of x."""
    sign = torch.where(weight < 0, -1.0, 1.0).to(x.dtype).view(-1, 1, 1)
    size, stride, padding = window
    y = functional.max_pool2d((sign * x).flatten(0, -4), size, stride, padding, ceil_mode=ceil_mode).unflatten(0, x.shape[:-3])
    others = [d for d in range(x.dim()) if d != x.dim() - 3]
    return sign * y, x.mean(others), x.var(others, unbiased=False)


@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize("layout", ["plain", "channels_last", "other"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_maxima_statistics_and_gradients_are_those_of_torch(window, layout, channels, device):
    for dtype in TYPES:
        x = images(2, 2, channels, 20, 17, layout=layout, dtype=dtype, device=device)
        weight = torch.randn(channels, device=device, dtype=torch.float64)
        weight[0], weight[1] = -0.5, 0.0
        ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
        assert ours.stride() == x.stride() or layout == "other"
        state = dtype if dtype == torch.float64 else torch.float32
        y, mean, var = ops.max_pool2d_statistics(ours, *map(pair, window), True, weight=weight.to(state))
        expected = by_torch(theirs, weight, window, ceil_mode=True)
        assert torch.equal(y.double(), expected[0]) and mean.dtype == var.dtype == state
        assert torch.equal(y, ops.max_pool2d(x, *map(pair, window), [1], True, weight=weight.to(state)))
        bound = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close((mean.double(), var.double()), expected[1:], rtol=bound, atol=bound)
        upstream = [torch.randn_like(t).to(dtype).double() for t in expected]
        got = torch.autograd.grad((y, mean, var), ours, [u.to(t.dtype) for u, t in zip(upstream, (y, mean, var))])[0]
        wanted = torch.autograd.grad(expected, theirs, upstream)[0]
        bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(got.double(), wanted, rtol=bound, atol=bound * (1 + wanted.abs().max().item() / 4))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2)], ids=str)
def test_each_gradient_alone(wanted, device):
    x, weight = doubles(2, 3, 4, 6, 7, device=device).requires_grad_(), torch.tensor([1.0, -1, 2, -3], dtype=torch.float64, device=device)
    results = ops.max_pool2d_statistics(x, [3], [2], [1], weight=weight)
    expected = by_torch(x, weight, (3, 2, 1))
    upstream = [torch.randn_like(results[i]) for i in wanted]
    got, = torch.autograd.grad([results[i] for i in wanted], x, upstream)
    torch.testing.assert_close(got, torch.autograd.grad([expected[i] for i in wanted], x, upstream)[0])


@pytest.mark.parametrize("layout", ["plain", "channels_last"])
def test_derivatives_of_any_order_and_transforms(layout, device):
    x = doubles(2, 2, 3, 6, 5, layout=layout, device=device).requires_grad_()
    weight = torch.tensor([1.0, -1, 0.5], dtype=torch.float64, device=device)
    call = lambda x, weight=weight: ops.max_pool2d_statistics(x, [3], [2], [1], weight=weight)
    assert gradcheck(call, (x,), check_forward_ad=True)
    assert gradgradcheck(call, (x,))
    jacobians = [torch.func.jacrev(lambda x: f(x)[1:])(x.detach()) for f in (call, lambda x: by_torch(x, weight, (3, 2, 1)))]
    torch.testing.assert_close(*jacobians)
    xs, ws = doubles(5, 2, 2, 3, 6, 5, device=device), torch.randn(5, 3, dtype=torch.float64, device=device)
    for in_dims, w in (((0, None), weight), ((0, 0), ws)):
        expected = [torch.stack(of) for of in zip(*(call(xs[i], w if w is weight else w[i]) for i in range(5)))]
        torch.testing.assert_close(torch.vmap(call, in_dims)(xs, w), tuple(expected))
        mapped = torch.vmap(lambda x, w: ops.max_pool2d(x, [3], [2], [1], weight=w), in_dims)(xs, w)
        torch.testing.assert_close(mapped, expected[0])
    for arguments, options in (((x, [3], [2], [1]), dict(weight=weight)), ((x.detach(), [2], [], [0], True), {})):
        opcheck(ops.max_pool2d_statistics.default, arguments, options)
    opcheck(ops.max_pool2d.default, (x, [3], [2], [1]), dict(weight=weight))
    windows = [3, 3, 2, 2, 1, 1, 1, 1]
    y, which = ops.max_pool2d_with_places(x.detach(), windows, False, weight)
    numbers = [torch.randn(3, dtype=torch.float64, device=device) for _ in range(3)]
    opcheck(ops.max_pool2d_with_places.default, (x.detach(), windows, False, weight))
    opcheck(ops.max_pool2d_statistics_backward.default, (torch.randn_like(y), which, x.detach(), *numbers, windows))


def test_nothing_but_x_and_a_byte_for_each_result_is_kept(device):
    x = torch.randn(2, 2, 4, 16, 16, device=device, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ops.max_pool2d_statistics(x, [2])
    assert sum(t.numel() * t.element_size() for t in kept if t.data_ptr() != x.data_ptr()) == 2 * 2 * 4 * 8 * 8 + 4 * 4


@pytest.mark.parametrize("changed, error, words", [
    (dict(x=torch.randn(3, 8, 8)), ValueError, r"x must be \[T, ..., C, H, W\]"),
    (dict(x=torch.ones(2, 3, 8, 8).int()), TypeError, "x must be float16"),
    (dict(kernel_size=[9]), ValueError, "a window of 9 must fit into an image of 8"),
    (dict(kernel_size=[]), ValueError, "kernel_size must be one number"),
    (dict(weight=torch.ones(4)), ValueError, r"weight must have shape \[3\]"),
    (dict(weight=torch.ones(3).double()), TypeError, "weight must be"),
    (dict(weight=torch.ones(3, device="meta")), ValueError, "weight must be on cpu"),
])
def test_wrong_calls_raise(changed, error, words):
    for wants in (False, True):
        call = dict(x=torch.randn(2, 3, 8, 8), kernel_size=[2], weight=torch.ones(3)) | changed
        if wants and call["x"].is_floating_point():
            call["x"] = call["x"].clone().requires_grad_()
        refused(error, words, lambda: ops.max_pool2d_statistics(**call))


# --- layers

NEURONS = {"LIF": lambda: snn.LIF(v_threshold=0.3, surrogate="atan"), "text": lambda: snn.Neuron(SPIKING, tau=2.0)}


def norm_of(channels, kind=nn.BatchNorm2d, **options):
    norm = kind(channels, **options)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(channels)), norm.bias.copy_(torch.randn(channels))
    return norm


def step(net, x, upstream):
    """Returns the output, and all gradients."""
    x = x.clone().requires_grad_()
    y = net(x)
    return y.detach(), torch.autograd.grad(y, [x, *net.parameters()], upstream)


def check_alike(net, other, x):
    with torch.no_grad():
        upstream = torch.randn_like(copy.deepcopy(other)(x))
    (y, grads), (expected, wanted) = step(net, x, upstream), step(other, x, upstream)
    assert torch.equal(y, expected) and y.mean() > 0.02
    for got, want in zip(sorted(grads, key=lambda g: tuple(g.shape)), sorted(wanted, key=lambda g: tuple(g.shape))):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close([b for b in net.buffers() if b.dim()], [b for b in other.buffers() if b.dim()])


@pytest.mark.parametrize("layout", ["plain", "channels_last"])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((2, 3), ceil_mode=True), snn.MaxPool2d(2), nn.MaxPool2d(2, dilation=2)], ids=str)
@pytest.mark.parametrize("neuron", NEURONS)
def test_a_layer_equals_its_three_parts_in_sequence(neuron, pool, layout, device):
    parts = norm_of(6), pool, NEURONS[neuron]()
    layer = snn.BatchNormNeuron(*copy.deepcopy((parts[0], parts[2])), pool=pool).to(device)
    apart = nn.Sequential(snn.TimeDistributed(*copy.deepcopy(parts[:2])), parts[2]).to(device)
    for training in (True, False, True):
        layer.train(training), apart.train(training)
        check_alike(layer, apart, images(4, 3, 6, 8, 10, layout=layout, dtype=torch.float32, device=device))
    assert list(layer.state_dict()) == ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    # A sequence can be run step by step with states, and copies give the same results.
    x = torch.randn(4, 3, 6, 8, 10, device=device)
    layer.eval()
    whole, state = layer(x, None)[0], None
    for t in range(4):
        y, state = copy.deepcopy(layer)(x[t : t + 1], state)
        assert torch.equal(y[0], whole[t])
    assert state["neuron.v"].shape == whole.shape[1:]


def test_steps_and_processes_and_scale(device):
    """Tests normalisation through time, SyncBatchNorm in one process, and tdBN."""
    x, pool = torch.randn(3, 2, 4, 6, 6, device=device), nn.MaxPool2d(2)
    norms = nn.ModuleList(norm_of(4) for _ in range(3)).to(device)
    layer = snn.BatchNormNeuron(copy.deepcopy(norms), snn.Neuron(SPIKING, tau=2.0).to(device), pool=pool)
    y = torch.stack([pool(norm(row)) for norm, row in zip(norms, x)])
    assert torch.equal(layer(x), snn.Neuron(SPIKING, tau=2.0).to(device)(y))
    sync = norm_of(4, nn.SyncBatchNorm).to(device).eval()
    layer = snn.BatchNormNeuron(sync, snn.Neuron(SPIKING, tau=2.0).to(device), pool=pool)
    assert torch.equal(layer(x), snn.Neuron(SPIKING, tau=2.0).to(device)(pool(sync(x.flatten(0, 1))).unflatten(0, (3, 2))))
    plain = nn.BatchNorm2d(4, affine=False).to(device)
    layer = snn.BatchNormNeuron(plain, snn.Neuron(SPIKING, tau=2.0).to(device), pool=pool, scale=-0.7)
    y = pool(-0.7 * copy.deepcopy(plain)(x.flatten(0, 1))).unflatten(0, (3, 2))
    assert torch.equal(layer(x), snn.Neuron(SPIKING, tau=2.0).to(device)(y))


def test_compiled(device):
    layer = snn.BatchNormNeuron(norm_of(4), snn.Neuron(SPIKING, tau=2.0), pool=nn.MaxPool2d(3, 2, 1)).to(device)
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="aot_eager")
    check_alike(compiled, layer, torch.randn(3, 2, 4, 8, 8, device=device))


@pytest.mark.parametrize("norm, options, error, words", [
    (nn.BatchNorm2d(4), dict(pool=nn.AvgPool2d(2)), TypeError, "pool must be a MaxPool2d"),
    (nn.BatchNorm2d(4), dict(pool=nn.MaxPool2d(2, return_indices=True)), TypeError, "without return_indices"),
    (nn.BatchNorm2d(4), dict(pool=nn.MaxPool2d(17)), TypeError, "at most 256 places"),
    (nn.BatchNorm1d(4), dict(pool=nn.MaxPool2d(2)), TypeError, "norm is BatchNorm1d"),
    (nn.BatchNorm2d(4), dict(pool=nn.MaxPool2d(2), residual="add"), ValueError, "pool and residual"),
])
def test_wrong_layers_raise(norm, options, error, words):
    refused(error, "BatchNormNeuron: .*" + words, lambda: snn.BatchNormNeuron(norm, snn.LIF(), **options))


def test_wrong_inputs_raise(device):
    layer = snn.BatchNormNeuron(nn.SyncBatchNorm(4).eval(), snn.LIF(), pool=nn.MaxPool2d(2)).to(device)
    refused(ValueError, r"x must be \[T, B, 4, H, W\] for the pooling", lambda: layer(torch.randn(3, 2, 4, 8, device=device)))


class Stage(nn.Module):
    """A convolution, a normalisation, a pooling and a neuron, with a custom forward()."""

    def __init__(self, between):
        super().__init__()
        self.convolution, self.norm = snn.TimeDistributed(nn.Conv2d(3, 6, 3)), snn.TimeDistributed(norm_of(6))
        self.pool, self.neuron, self.between = snn.MaxPool2d(3, 2, 1), snn.LIF(v_threshold=0.3), between

    def forward(self, x):
        return self.between(self, self.pool(self.norm(self.convolution(x))))


def counts_on_the_size(self, y):
    T, B, C, H, W = y.shape
    return self.neuron(y).reshape(T, B, C, H * W)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("between, fused", [
    (lambda self, y: self.neuron(y), True),
    (counts_on_the_size, False),
    (lambda self, y: (self.neuron(y), y.shape[-1]), False),
    (lambda self, y: self.neuron(y) / y.shape[-1], False),
    (lambda self, y: self.neuron(y) if y.size(3) < 10 else 2 * self.neuron(y), False),
    (lambda self, y: self.neuron(y) * y.flatten(3).numel(), False),
    (lambda self, y: self.neuron(y) + torch.zeros_like(y), False),
    (lambda self, y: self.neuron(y.reshape(2, 3, 6, 5, 5)), False),
    (lambda self, y: (self.neuron(y), object(), np.arange(3))[0], True),
    (lambda self, y: self.neuron(y.flatten(3)), False),
    (lambda self, y: self.neuron(y + y), False),
    (lambda self, y: self.neuron(y) + y, False),
])
def test_fuse_takes_a_pooling_that_nothing_else_looks_at(between, fused, recompute, device):
    net = Stage(between).to(device)
    before, x = copy.deepcopy(net), torch.randn(2, 3, 3, 12, 12, device=device)
    assert snn.fuse(net, x, recompute=recompute) == (["neuron"] if fused else [])
    if not fused:
        assert isinstance(net.pool, snn.MaxPool2d) and not hasattr(net.neuron, "pool")
        return
    assert isinstance(net.pool, nn.Identity) and isinstance(net.neuron.pool, snn.MaxPool2d)
    with torch.backends.cudnn.flags(allow_tf32=False):
        check_alike(net, before, x)


def test_fuse_looks_at_the_network_and_leaves_it_as_it_was():
    """Tests results in objects, a buffer that counts steps, and a pooling with a custom forward()."""

    class Counting(Stage):
        def __init__(self):
            super().__init__(None)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.neuron(self.pool(self.norm(self.convolution(x)))), np.arange(3), float("nan"), object()

    net, x = Counting(), torch.randn(2, 1, 3, 12, 12)
    norm, pool, neuron = net.norm.module, net.pool, net.neuron
    watch = watched(net, (x,), {norm}, {neuron}, pools={pool})
    assert watch.chains(net, (x,)) == [(norm, pool, neuron)] and net.calls == 1
    assert snn.fuse(net, x) == ["neuron"]
    mean = nn.MaxPool2d(2)
    mean.forward = lambda x: functional.avg_pool2d(x, 2)
    assert snn.fuse(nn.Sequential(snn.TimeDistributed(norm_of(6), mean), snn.LIF())) == []


def test_fuse_finds_a_pooling_at_the_end_of_a_sequential(device):
    def make():
        torch.manual_seed(2)
        return nn.Sequential(
            snn.TimeDistributed(nn.Conv2d(3, 6, 3), norm_of(6), nn.MaxPool2d(2)), snn.LIF(v_threshold=0.3),
            snn.TimeDistributed(norm_of(6), nn.MaxPool2d(2)), snn.LIF(v_threshold=0.3),
            snn.TimeDistributed(nn.Conv2d(6, 6, 1), nn.MaxPool2d(1)), snn.LIF(v_threshold=0.3),
        ).to(device)

    net = make()
    assert snn.fuse(net) == ["1", "3"]
    assert isinstance(net[0].module, nn.Conv2d) and isinstance(net[2].module, nn.Identity | nn.Sequential)
    with torch.backends.cudnn.flags(allow_tf32=False):
        check_alike(net, make(), torch.randn(2, 3, 3, 14, 14, device=device))
