"""Fused layers of a neuron: batch_norm_run, channel_statistics, BatchNormNeuron and fuse.

The oracles are torch.nn.BatchNorm followed by a loop over time in plain torch, in float64, and gradcheck."""

import copy
import os

import pytest
import torch
from loops import output_of, refused, with_threads
from ranks import on_ranks
from torch import nn
from functorch.compile import nop
from torch._dynamo.backends.common import aot_autograd
from torch.library import opcheck

import spikeforge.nn as snn
from conftest import REPOSITORY
from documentation import code

ops = torch.ops.spikeforge
# Neurons for the operators: SMOOTH, for which finite differences are accurate, and neurons with spikes.
SMOOTH = "neuron smooth(x; v; tau) { h = v + (x - v) / tau; s = sigmoid(4 * (h - 1)); return s; v' = (1 - s) * h }"
SPIKING = "neuron leaky(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"
TWO = """neuron two(x, y; v, w; k) {
  h = 0.5 * v + x - w
  s = sigmoid(h - 1 + k * y)
  return s, h * y
  v' = (1 - s) * h
  w' = 0.9 * w + y * s
}"""
RESIDUALS = {"add": lambda s, r: s + r, "and": lambda s, r: s * r, "iand": lambda s, r: (1 - s) * r}


def batch_norm(x, weight, bias, eps=1e-5, channel_dim=2):
    """Returns the normalised x, its mean and its biased variance, by their definitions."""
    others = [d for d in range(x.dim()) if d != channel_dim % x.dim()]
    mean = x.mean(others, keepdim=True)
    var = ((x - mean) ** 2).mean(others, keepdim=True)
    y = (x - mean) / (var + eps).sqrt()
    shape = mean.shape
    y = y if weight is None else y * weight.view(shape)
    return y if bias is None else y + bias.view(shape), mean.flatten(), var.flatten()


def smooth_loop(x, v, tau):
    outputs = []
    for row in x:
        h = v + (row - v) / tau
        s = torch.sigmoid(4 * (h - 1))
        v = (1 - s) * h
        outputs.append(s)
    return torch.stack(outputs), v


def leaves(*shapes, dtype=torch.float64):
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def in_layout(x, layout):
    """Returns x with the channels (dimension 2) last in memory, or in an order that no kernel reads in place."""
    if layout == "channels_last":
        return x.movedim(2, -1).contiguous().movedim(-1, 2)
    return x if layout == "contiguous" else x.transpose(1, -1).contiguous().transpose(1, -1)


# --- statistics

@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "other"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 2, 5, 7, 7), (4, 3, 33, 5), (2, 1, 1, 40, 30), (5, 70, 19), (1, 2, 3)])
def test_statistics_are_those_of_float64(shape, dtype, layout, device):
    x = in_layout((torch.randn(shape) * 3 + torch.arange(shape[2]).view(-1, *(1,) * (len(shape) - 3))).to(dtype), layout)
    _, mean, var = batch_norm(x.double(), None, None)
    found_mean, found_var = ops.channel_statistics(x.to(device))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert found_mean.dtype == found_var.dtype == wide
    bound = 1e-12 if wide == torch.float64 else 2e-6
    torch.testing.assert_close(found_mean.double().cpu(), mean, rtol=bound, atol=bound * 10)
    torch.testing.assert_close(found_var.double().cpu(), var, rtol=bound * 5, atol=bound)


@pytest.mark.parametrize("outlier", [1e4, 3e6])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_statistics_do_not_cancel(layout, outlier, device):
    """The mean is 1e4 deviations, and a sum starts at an outlier: E[x^2] - E[x]^2 has no correct digit in float32."""
    x = torch.randn(4, 8, 3, 20, 20) + 1e4
    for first in (x[0, 0, 1, 0, 0].item(), outlier):
        x[0, 0, 1, 0, 0] = first
        found = ops.channel_statistics(in_layout(x, layout).to(device))[1]
        torch.testing.assert_close(found.cpu().double(), batch_norm(x.double(), None, None)[2], rtol=1e-4, atol=0)


@pytest.mark.parametrize("outlier", [1e3, 1e6, 1e8])
def test_an_outlier_at_any_position_does_not_change_the_variance(outlier):
    for place in ((0, 0), (3, 7)):
        x = torch.randn(8, 8, 3, 32, 32)
        x[place][:, 0, 0] = outlier
        for layout in ("contiguous", "channels_last"):
            found = ops.channel_statistics(in_layout(x, layout))[1].double()
            torch.testing.assert_close(found, batch_norm(x.double(), None, None)[2], rtol=1e-5, atol=0)


def test_statistics_of_constant_and_of_no_channels(device):
    for constant, dtype in ((1e100, torch.float64), (0.3, torch.float32)):
        mean, var = ops.channel_statistics(torch.full((4, 3, 2, 5), constant, dtype=dtype, device=device))
        assert torch.equal(var, torch.zeros_like(var)) and torch.equal(mean, torch.full_like(mean, constant))
    x = torch.zeros(2, 2, 0, 3, device=device, requires_grad=True)
    mean, var = ops.channel_statistics(x)
    (mean.sum() + var.sum() + ops.batch_norm_run(SPIKING, [x], [], [torch.tensor(2.0)])[0][0].sum()).backward()
    assert x.grad.shape == x.shape


def test_statistics_have_the_same_bits_at_every_call_and_for_any_number_of_threads(device):
    x = torch.randn(4, 16, 24, 30, 30, device=device)
    results = with_threads((1, 2, 3, 1), lambda: torch.stack(ops.channel_statistics(x)))
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("channel_dim", [1, 2, 3, -1])
def test_statistics_of_any_dimension_with_all_derivatives(channel_dim, device):
    (x,) = leaves((3, 2, 4, 5))
    x = x.detach().to(device).requires_grad_()
    expected = batch_norm(x, None, None, channel_dim=channel_dim)[1:]
    torch.testing.assert_close(ops.channel_statistics(x, channel_dim), expected)
    statistics = lambda x: ops.channel_statistics(x, channel_dim)
    assert torch.autograd.gradcheck(statistics, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(statistics, (x,))
    opcheck(ops.channel_statistics.default, (x, channel_dim))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("shape", [(4, 300, 16, 12, 12), (20, 512, 24, 8, 8), (3, 1200000, 2)])
def test_a_large_layer_is_that_of_float64(shape, layout, cuda):
    """The sizes make threads process several neurons, and several blocks share the sums of a channel."""
    x = in_layout(torch.randn(shape, device=cuda) * 2 + 3, layout).requires_grad_()
    weight, bias = (torch.rand(shape[2], device=cuda).requires_grad_() for _ in range(2))
    tau = torch.tensor(2.5, device=cuda, requires_grad=True)
    arguments = (x, weight, bias, tau)
    (found,), (last,), mean, var = ops.batch_norm_run(SMOOTH, [x], [torch.zeros(shape[1:], device=cuda)], [tau], weight, bias)
    upstream = torch.randn_like(found), torch.randn_like(last)
    gradients = torch.autograd.grad((found, last), arguments, upstream)

    wide = [t.detach().double().requires_grad_() for t in arguments]
    y, *statistics = batch_norm(*wide[:3])
    expected = smooth_loop(y, torch.zeros(shape[1:], dtype=torch.float64, device=cuda), wide[3])
    torch.testing.assert_close((mean.double(), var.double()), tuple(statistics), rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(
        (found, last, *gradients), (*expected, *torch.autograd.grad(expected, wide, [u.double() for u in upstream]))
    ):
        bound = 2e-5 if theirs.dim() else 1e-3  # the gradient of tau sums millions of terms of both signs
        assert (ours.double() - theirs).abs().max() <= bound * theirs.abs().max()
    run = lambda: ops.batch_norm_run(SMOOTH, [x], [torch.zeros(shape[1:], device=cuda)], [tau], weight, bias)[0][0]
    assert torch.equal(*(torch.autograd.grad(run(), x, upstream[0])[0] for _ in range(2)))


@pytest.mark.parametrize("mode", [None, "membrane"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [
    (4, 32, 512, 7, 7),  # many channels in few neurons
    (7, 5, 24, 9, 9),  # the number of steps is not a power of two
    (16, 4, 128, 28, 28),
    (4, 64, 2, 40, 40),  # several blocks per channel
    (3, 2, 3, 64, 64),  # several blocks per channel, and several strips
    (4, 8, 20000),
    (4, 2, 64, 112, 112),  # more strips than blocks
    (4, 2, 2, 1024, 1024),  # more strips than blocks, and several blocks per channel
    (4, 1000, 5),  # unaligned rows
    (4, 40, 64, 112, 112),  # the backward pass runs the loop twice
])
def test_a_ring_of_tiles_agrees_with_float64(shape, dtype, layout, mode, cuda):
    """Channels are shared by blocks in many ways. A second call gives the same bits."""
    x = in_layout(torch.randn(shape, device=cuda, dtype=dtype) * 2 + 3, layout).requires_grad_()
    weight, bias = (torch.rand(shape[2], device=cuda).requires_grad_() for _ in range(2))
    tau = torch.tensor(2.5, device=cuda, requires_grad=True)
    residual = None if mode is None else torch.randn_like(x).requires_grad_()
    arguments = (x, weight, bias, tau, *([] if mode is None else [residual]))
    upstream = [torch.randn_like(t) for t in ((x,) if mode is None else (x, x))]

    def call():
        found, _, mean, var = ops.batch_norm_run(
            SMOOTH, [x], [], [tau], weight, bias, None, None, residual, residual_mode=mode or "add", last_states=False
        )
        return *found, mean, var, *torch.autograd.grad(found, arguments, upstream)

    found = call()
    for ours, again in zip(found, call()):
        assert torch.equal(ours, again)
    wide = [t.detach().double().requires_grad_() for t in arguments]
    y, mean, var = batch_norm(*wide[:3])
    y = y if mode is None else y + wide[4]
    s, _ = smooth_loop(y, torch.zeros(shape[1:], dtype=torch.float64, device=cuda), wide[3])
    outputs = (s,) if mode is None else (s, y)
    expected = (*outputs, mean, var, *torch.autograd.grad(outputs, wide, [u.double() for u in upstream]))
    for ours, theirs in zip(found, expected):
        bound = 1e-3 if ours.dtype == torch.float16 or theirs.dim() == 0 else 2e-5
        assert (ours.double() - theirs).abs().max() <= bound * theirs.abs().max()


FILTERS = """neuron filters(x; a, b, c, d, e) {
  p = 0.5 * a + x; q = 0.5 * b + p; r = 0.5 * c + q; s = 0.5 * d + r; t = 0.5 * e + s
  return t; a' = p; b' = q; c' = r; d' = s; e' = t
}"""


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_few_steps_of_many_states(dtype, steps, device):
    """Threads have few neurons, and copy rows together: at most as many threads as steps."""
    x = torch.randn(steps, 8, 64, 6, 6, device=device, dtype=dtype).requires_grad_()
    upstream = torch.randn_like(x)
    (found,), _, mean, var = ops.batch_norm_run(FILTERS, [x], [], [], last_states=False)
    (grad,) = torch.autograd.grad(found, x, upstream)
    wide = x.detach().double().requires_grad_()
    y, expected_mean, expected_var = batch_norm(wide, None, None)
    states, rows = [torch.zeros_like(y[0])] * 5, []
    for row in y:
        new = []
        for state in states:
            row = 0.5 * state + row
            new.append(row)
        states = new
        rows.append(row)
    expected = torch.stack(rows)
    (expected_grad,) = torch.autograd.grad(expected, wide, upstream.double())
    bound = 1e-3 if dtype == torch.float16 else 2e-5
    for ours, theirs in ((mean, expected_mean), (var, expected_var), (found, expected), (grad, expected_grad)):
        assert (ours.double() - theirs).abs().max() <= bound * theirs.abs().max()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "a NaN of any bits"])
def test_a_number_that_is_none_stays_in_its_channel(bad, cuda):
    x = torch.randn(4, 32, 64, 14, 14, device=cuda)
    if isinstance(bad, float):
        x[1, 3, 5, 2, 2] = bad
    else:
        x.view(torch.int32)[1, 3, 5, 2, 2] = -1
    x.requires_grad_()
    layer = snn.BatchNormNeuron(nn.BatchNorm2d(64), snn.LIF(surrogate="atan")).to(cuda)
    s = layer(x)
    (grad,) = torch.autograd.grad(s, x, torch.ones_like(s))
    others = [c for c in range(64) if c != 5]
    assert layer.norm.running_mean[5].isnan() or layer.norm.running_mean[5].isinf()
    assert layer.norm.running_mean[others].isfinite().all() and layer.norm.running_var[others].isfinite().all()
    assert grad[:, :, 5].isnan().all() and grad[:, :, others].isfinite().all()


# --- the operator

class Case:
    """A call of SMOOTH in which all arguments are tensors, and the same computation in plain torch."""

    def __init__(self, device, mode=None, layout="contiguous", affine=True, dtype=torch.float64, shape=(4, 3, 5, 2, 6)):
        leaf = lambda *size: torch.randn(size, dtype=dtype, device=device)
        self.mode = mode
        self.x = in_layout(leaf(*shape), layout).requires_grad_()
        self.v = leaf(*shape[1:]).requires_grad_()
        self.tau = torch.tensor(1.7, dtype=dtype, device=device, requires_grad=True)
        self.weight = leaf(shape[2]).requires_grad_() if affine else None
        self.bias = leaf(shape[2]).requires_grad_() if affine else None
        self.residual = in_layout(leaf(*shape), layout).requires_grad_() if mode else None
        given = (self.x, self.v, self.tau, self.weight, self.bias, self.residual)
        self.arguments = [t for t in given if t is not None]

    def together(self):
        (s, *sums), (v,), mean, var = ops.batch_norm_run(
            SMOOTH, [self.x], [self.v], [self.tau], self.weight, self.bias, None, None, self.residual, residual_mode=self.mode or "add"
        )
        return s, v, mean, var, *sums

    def apart(self):
        y, mean, var = batch_norm(self.x, self.weight, self.bias)
        if self.mode == "membrane":
            y = y + self.residual
            return *smooth_loop(y, self.v, self.tau), mean, var, y
        s, v = smooth_loop(y, self.v, self.tau)
        return RESIDUALS[self.mode](s, self.residual) if self.mode else s, v, mean, var


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "other"])
@pytest.mark.parametrize("mode", [None, *RESIDUALS, "membrane"])
def test_results_and_gradients_are_those_of_one_after_the_other(mode, layout, affine, device):
    case = Case(device, mode, layout, affine)
    together, apart = case.together(), case.apart()
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-10)
    upstream = [torch.randn_like(t) for t in apart]
    last = len(apart) - 1
    for used in (range(len(apart)), [0], [1], [3], [2, 3], [last], [0, last]):  # indices of the results that have a gradient
        given, options = [upstream[i] for i in used], dict(retain_graph=True, materialize_grads=True)
        chosen = ([results[i] for i in used] for results in (together, apart))
        found, expected = (torch.autograd.grad(results, case.arguments, given, **options) for results in chosen)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("wanted", range(6))
@pytest.mark.parametrize("mode", ["and", "membrane"])
def test_each_gradient_alone(mode, wanted, device):
    case = Case(device, mode)
    for i, argument in enumerate(case.arguments):
        argument.requires_grad_(i == wanted)
    one = case.arguments[wanted]
    grads = (torch.autograd.grad(sum(t.square().sum() for t in results()), one)[0] for results in (case.together, case.apart))
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", ["iand", "membrane"])
def test_gradcheck_twice_and_forward(mode, device):
    case = Case(device, mode, shape=(2, 2, 2, 2))

    def run(x, v, tau, weight, bias, residual):
        outputs, (v,), mean, var = ops.batch_norm_run(SMOOTH, [x], [v], [tau], weight, bias, None, None, residual, residual_mode=mode)
        return *outputs, v, mean, var

    assert torch.autograd.gradcheck(run, case.arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, case.arguments)


@pytest.mark.parametrize("channel_dim", [1, 2, 3, 4, -1])
def test_channels_may_be_any_dimension_but_time(channel_dim, device):
    x = torch.randn(3, 4, 5, 6, 7, dtype=torch.float64, device=device)
    tau = torch.tensor(2.0, dtype=torch.float64)
    weight, bias = torch.randn(2, x.shape[channel_dim], dtype=torch.float64, device=device)
    (s,), _, mean, _ = ops.batch_norm_run(SMOOTH, [x], [], [tau], weight, bias, channel_dim=channel_dim, eps=0.1)
    y, expected_mean, _ = batch_norm(x, weight, bias, 0.1, channel_dim)
    torch.testing.assert_close(s, smooth_loop(y, torch.zeros_like(x[0]), 2.0)[0])
    torch.testing.assert_close(mean, expected_mean)


def test_given_statistics_are_used_and_are_differentiable(device):
    x, weight, bias, mean = (t.detach().to(device).requires_grad_() for t in leaves((4, 2, 3, 5), 3, 3, 3))
    var = torch.rand(3, dtype=torch.float64, device=device, requires_grad=True)
    tau = torch.tensor(2.0, dtype=torch.float64)
    (s,), _, used_mean, used_var = ops.batch_norm_run(SMOOTH, [x], [], [tau], weight, bias, mean, var)
    assert torch.equal(used_mean, mean) and torch.equal(used_var, var)
    y = nn.functional.batch_norm(x.flatten(0, 1), mean.detach(), var.detach(), weight, bias).unflatten(0, (4, 2))
    torch.testing.assert_close(s, smooth_loop(y, torch.zeros_like(x[0]), 2.0)[0])
    run = lambda *given: ops.batch_norm_run(SMOOTH, [given[0]], [], [tau], *given[1:])[0][0]
    assert torch.autograd.gradcheck(run, (x, weight, bias, mean, var), check_forward_ad=True)


def test_several_inputs_states_and_outputs_with_their_sequences(device):
    x, y, r = (t.detach().to(device).requires_grad_() for t in leaves((3, 2, 4), (3, 2, 4), (3, 2, 4)))
    k = torch.tensor(0.3, dtype=torch.float64, device=device, requires_grad=True)

    def together():
        (s, product), (v, w), _, _ = ops.batch_norm_run(TWO, [x, y], [], [k], residual=r, store_states=True)
        return s, product, v, w

    def apart():
        rows = [[], [], [], []]
        v, w = torch.zeros_like(x[0]), torch.zeros_like(x[0])
        for row, other, residual in zip(batch_norm(x, None, None)[0], y, r):
            h = 0.5 * v + row - w
            s = torch.sigmoid(h - 1 + k * other)
            v, w = (1 - s) * h, 0.9 * w + other * s
            for i, value in enumerate((s + residual, h * other, v, w)):
                rows[i].append(value)
        return tuple(torch.stack(values) for values in rows)

    torch.testing.assert_close(together(), apart(), rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(sum((t * t).sum() for t in f()), (x, y, k, r)) for f in (together, apart)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_spikes_and_gradients_in_every_type(dtype, device):
    """The reference is float64 with the rounded inputs. Spikes and later values may differ near the threshold."""
    case = Case(device, dtype=dtype, affine=False, shape=(6, 8, 16, 9, 9))
    wide = torch.float32
    weight, bias = torch.rand(16, dtype=wide, device=device) + 1, torch.rand(16, dtype=wide, device=device)
    tau, x = torch.tensor(1.7, dtype=wide, device=device), case.x
    (s,), _, _, _ = ops.batch_norm_run(SPIKING, [x], [], [tau], weight, bias)
    y = batch_norm(x.double(), weight.double(), bias.double())[0]
    v, near, expected = torch.zeros_like(y[0]), torch.zeros_like(y[0], dtype=torch.bool), []
    for row in y:
        h = v + (row - v) / tau.double()
        fired = h >= 1
        near |= (h - 1).abs() < 1e-5
        v = torch.where(fired, 0.0, h)
        expected.append(fired)
    assert s.dtype == dtype and near.double().mean() < 1e-3
    assert torch.equal(s.bool() & ~near, torch.stack(expected) & ~near)

    smooth = Case(device, dtype=torch.float64, shape=(6, 8, 16, 9, 9))
    smooth.x = x.detach().double().requires_grad_()
    upstream = torch.randn_like(smooth.x).to(dtype)
    (expected,) = torch.autograd.grad(smooth.apart()[0], smooth.x, upstream.double())
    narrow = {name: getattr(smooth, name).detach().to(wide) for name in ("v", "tau", "weight", "bias")}
    (s,), _, _, _ = ops.batch_norm_run(SMOOTH, [x], [narrow["v"]], [narrow["tau"]], narrow["weight"], narrow["bias"])
    (found,) = torch.autograd.grad(s, x, upstream)
    assert found.dtype == dtype
    bound = (1e-5 if dtype == wide else 1e-2) * expected.abs().max()
    assert (found.double() - expected).abs().max() <= bound


def test_only_the_input_is_kept_for_the_backward_pass(device):
    """Autograd keeps T values per neuron, and no second tensor of the size of x."""
    x, kept = torch.randn(8, 4, 16, 10, 10, device=device, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ops.batch_norm_run(SPIKING, [x], [], [torch.tensor(2.0)], torch.ones(16, device=device))
    large = [t for t in kept if t.numel() >= x.numel()]
    assert large and all(t.data_ptr() == x.data_ptr() for t in large)


@pytest.mark.parametrize("wanted", ["x", "weight"])
def test_an_input_that_changed_before_the_backward_pass_is_noticed(wanted, device):
    weight = torch.ones(5, dtype=torch.float64, device=device, requires_grad=True)
    leaf = torch.randn(4, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
    x = leaf * 1
    outputs, _, _, _ = ops.batch_norm_run(SMOOTH, [x], [], [torch.tensor(2.0, dtype=torch.float64)], weight)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(outputs[0].sum(), leaf if wanted == "x" else weight)


def test_compile_export_and_transforms(device):
    x, weight = torch.randn(4, 3, 5, 6, device=device, requires_grad=True), torch.rand(5, device=device, requires_grad=True)
    tau = torch.tensor(2.0)

    def run(x, weight):
        outputs, states, mean, var = ops.batch_norm_run(SPIKING, [x], [], [tau], weight)
        return outputs[0], mean, var

    opcheck(ops.batch_norm_run.default, (SPIKING, [x], [], [tau], weight))
    opcheck(ops.batch_norm_run.default, (SPIKING, [x.detach()], [], [tau], weight.detach(), None, weight.detach(), weight.detach()))
    compiled = torch.compile(run, fullgraph=True)
    gradients = [torch.autograd.grad(f(x, weight)[0].square().sum(), (x, weight)) for f in (run, compiled)]
    torch.testing.assert_close(*gradients)

    class Module(nn.Module):
        def forward(self, x, weight):
            return run(x, weight)

    exported = torch.export.export(Module(), (x.detach(), weight.detach())).module()
    torch.testing.assert_close(exported(x.detach(), weight.detach()), run(x.detach(), weight.detach()))
    batch = torch.randn(6, 4, 3, 5, 6, device=device)
    mapped = torch.func.vmap(torch.func.grad(lambda x: run(x, weight.detach())[0].square().sum()))(batch)
    one_by_one = [torch.autograd.grad(run(one, weight)[0].square().sum(), one)[0] for one in batch.clone().requires_grad_().unbind()]
    torch.testing.assert_close(mapped, torch.stack(one_by_one), rtol=1e-4, atol=1e-6)
    values, tangents = torch.func.jvp(lambda x: run(x, weight.detach())[1], (x.detach(),), (torch.ones_like(x),))
    torch.testing.assert_close((values, tangents), (run(x, weight)[1].detach(), torch.ones(5, device=device)))


@pytest.mark.parametrize("recompute", [False, True])
def test_a_compiled_residual_block_is_the_same_and_views_no_product_by_strides(recompute):
    """Inductor changes the layout of convolutions, so that as_strided of their result would read other elements."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.BatchNorm2d(4)
            self.layer = snn.TimeDistributed(nn.Conv2d(4, 4, 3, padding=1, bias=False), norm)
            self.neuron = snn.LIF(surrogate="atan")

        def forward(self, x):
            return x + self.neuron(self.layer(x))

    net = nn.Sequential(snn.TimeDistributed(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), snn.LIF(), Block())
    x, graphs = torch.randn(4, 2, 2, 6, 6), []
    assert snn.fuse(net, x, recompute=recompute) == ["1", "2.neuron"] and net[2].neuron.residual == "add"
    twin = copy.deepcopy(net)
    backend = aot_autograd(fw_compiler=nop, bw_compiler=lambda graph, x: graphs.append(graph) or nop(graph, x))
    for some in (torch.compile(net, fullgraph=True, backend=backend), twin):
        some(x).square().sum().backward()
    for (name, parameter), other in zip(net.named_parameters(), twin.parameters()):
        torch.testing.assert_close(parameter.grad, other.grad, msg=name)
    (graph,) = graphs
    called = {node.target for node in graph.graph.nodes}
    assert torch.ops.aten.convolution_backward.default in called and torch.ops.aten.as_strided.default not in called


@pytest.mark.parametrize("changed", [2, 3])
def test_statistics_that_are_changed_before_the_backward_pass_change_nothing(changed, device):
    x = torch.randn(4, 5, 6, device=device, requires_grad=True)
    results = ops.batch_norm_run(SMOOTH, [x], [], [torch.tensor(2.0)])
    with torch.no_grad():
        results[changed].mul_(1.5)
    found = torch.autograd.grad(results[0][0].square().sum(), x)
    expected = torch.autograd.grad(ops.batch_norm_run(SMOOTH, [x], [], [torch.tensor(2.0)])[0][0].square().sum(), x)
    torch.testing.assert_close(found, expected)


def test_second_derivatives_of_torch_func(device):
    x, weight, bias = (t.detach().to(device) for t in leaves((3, 2, 2), (2,), (2,)))
    tau, v = torch.tensor(2.5, dtype=torch.float64, device=device), torch.zeros(2, 2, dtype=torch.float64, device=device)
    found = lambda x, weight, bias: ops.batch_norm_run(SMOOTH, [x], [v], [tau], weight, bias)[0][0].square().sum()
    expected = lambda x, weight, bias: smooth_loop(batch_norm(x, weight, bias)[0], v, 2.5)[0].square().sum()
    for transform in (torch.func.hessian, lambda f, of: torch.func.jacrev(torch.func.jacrev(f, of), of)):
        torch.testing.assert_close(*(transform(f, (0, 1, 2))(x, weight, bias) for f in (found, expected)))


def test_second_derivatives_where_no_state_is_given(device):
    x, tau = torch.randn(3, 2, dtype=torch.float64, device=device), torch.tensor(2.5, dtype=torch.float64, device=device)
    total = lambda x, states: ops.run(SMOOTH, [x], states, [tau])[0][0].square().sum()
    zeros = torch.zeros(2, dtype=torch.float64, device=device)
    torch.testing.assert_close(*(torch.func.hessian(total)(x, states) for states in ([], [zeros])))


@pytest.mark.parametrize("shape", [(4, 0, 3), (4, 2, 3, 0), (0, 2, 3)])
@pytest.mark.parametrize("given", [True, False])
def test_nothing_has_gradients_of_zero(shape, given, device):
    x = torch.randn(shape, device=device, requires_grad=True)
    c = torch.ones(3, device=device, requires_grad=True)
    statistics = (c.detach(), c.detach()) if given else ()
    spikes = ops.batch_norm_run(SMOOTH, [x], [], [torch.tensor(2.0)], c, c, *statistics)[0][0]
    assert spikes.shape == shape and torch.autograd.grad(spikes.sum(), x, retain_graph=True)[0].shape == shape
    tau = torch.full((3, *(1,) * (len(shape) - 3)), 2.0, device=device, requires_grad=True)
    for result, leaf in ((spikes, c), (ops.run(SMOOTH, [x], [], [tau])[0][0], tau), (ops.lif(x, tau=tau)[0], tau)):
        assert torch.equal(torch.autograd.grad(result.sum(), leaf)[0], torch.zeros_like(leaf))


def wrong_calls():
    x, tau, c = torch.randn(4, 3, 5, 6), torch.tensor(2.0), torch.ones(5)
    long = torch.ones(4)
    yield "channel_dim must be a dimension of x other than time, but is 0", ValueError, dict(channel_dim=0)
    yield "channel_dim must be a dimension of x other than time, but is 4", ValueError, dict(channel_dim=4)
    yield "channel_dim must be a dimension of x other than time, but is -4", ValueError, dict(channel_dim=-4)
    for name in ("weight", "bias"):
        yield rf"{name} must have shape \[5\], one number for each channel, but has \[4\]", ValueError, {name: long}
        yield f"{name} must be Float for a Float x, but is Double", TypeError, {name: c.double()}
        yield f"{name} must be on cpu", ValueError, {name: c.to("meta")}
    yield r"mean must have shape \[5\]", ValueError, dict(mean=long, var=c)
    yield "pass both mean and var, or neither", ValueError, dict(mean=c)
    yield "pass both mean and var, or neither", ValueError, dict(var=c)
    yield "eps must be finite and not below 0, but is -1", ValueError, dict(eps=-1.0)
    yield "eps must be finite and not below 0, but is nan", ValueError, dict(eps=float("nan"))
    yield "residual_mode must be add, and, iand or membrane, but is 'ADD'", ValueError, dict(residual_mode="ADD")
    yield r"residual must have shape \[4, 3, 5, 6\], that of x, but has \[3, 5, 6\]", ValueError, dict(residual=x[0])
    yield "residual must be Float, the type of x, but is Half", TypeError, dict(residual=x.half())
    yield r"statistics need more than one number for each channel, but x has shape \[1, 1, 5\]", ValueError, dict(inputs=[x[:1, :1, :, 0]])
    yield "x must be float16, bfloat16, float32 or float64, but is Long", TypeError, dict(inputs=[x.long()])
    yield r"inputs must have 1 tensor \(x\), but has 0", ValueError, dict(inputs=[])
    yield r"params must have 1 tensor \(tau\), but has 0", ValueError, dict(params=[])
    yield "the neuron's text is not legal", ValueError, dict(neuron="neuron")
    yield r"tau must broadcast", ValueError, dict(params=[torch.ones(7)])


@pytest.mark.parametrize(("words", "error", "changed"), wrong_calls())
def test_wrong_calls_raise(words, error, changed):
    call = dict(neuron=SPIKING, inputs=[torch.randn(4, 3, 5, 6)], states=[], params=[torch.tensor(2.0)]) | changed
    refused(error, words, lambda: ops.batch_norm_run(**call))
    call["inputs"] = [t.requires_grad_(t.is_floating_point()) for t in call["inputs"]]
    refused(error, words, lambda: ops.batch_norm_run(**call))


@pytest.mark.parametrize(("words", "error", "x"), [
    ("must be float16, bfloat16, float32 or float64, but is Int", TypeError, torch.ones(2, 3, 4, dtype=torch.int32)),
    (r"channel_dim must be a dimension of x other than time, but is 2 where x has shape \[4, 5\]", ValueError, torch.ones(4, 5)),
    (r"x has no elements: its shape is \[0, 3, 5\]", ValueError, torch.ones(0, 3, 5)),
    ("x must be a dense tensor", TypeError, torch.ones(2, 3, 4).to_sparse()),
])
def test_statistics_of_nothing_are_refused(words, error, x):
    refused((error, NotImplementedError), words if x.layout == torch.strided else "", lambda: ops.channel_statistics(x))


# --- modules

def test_the_page_of_layers(capsys):
    names = {}
    exec(code("layers in Python"), names)
    assert capsys.readouterr().out == "['1', '3']\n" and names["spikes"].shape == (4, 8, 16, 32, 32)


def layers(neuron, norm, device):
    """Returns a normalisation and a neuron as separate layers, and fused."""
    apart = nn.Sequential(snn.TimeDistributed(norm), neuron).to(device)
    together = nn.Sequential(copy.deepcopy(apart))
    assert snn.fuse(together) == ["0.1"]
    return apart, together


NEURONS = {
    "LIF": lambda: snn.LIF(tau=snn.Learnable(2.0, min=1.0)),
    "IF, soft reset": lambda: snn.IF(v_reset=None, surrogate="atan"),
    "CubaLIF": lambda: snn.CubaLIF(tau_synapse=3.0),
    "ILIF": lambda: snn.ILIF(v_threshold=0.3),
    "GatedLIF": lambda: snn.GatedLIF(steps=4, channels=6),
    "strict": lambda: snn.LIF(strict=True),
    "text": lambda: snn.Neuron(SPIKING, tau=snn.Learnable(1.5)),
}


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("neuron", NEURONS)
def test_fused_layers_train_as_those_they_are_made_of(neuron, momentum, device):
    """Compares spikes, gradients and running statistics over steps of an optimiser, and then in evaluation."""
    apart, together = layers(NEURONS[neuron](), nn.BatchNorm2d(6, momentum=momentum), device)
    nets = (apart, together)
    optimisers = [torch.optim.SGD(net.parameters(), 0.5) for net in nets]
    for _ in range(5):
        x = torch.randn(4, 3, 6, 5, 5, device=device)
        losses = []
        for net, optimiser in zip(nets, optimisers):
            optimiser.zero_grad()
            loss = (net(x).mean((0, 1, 3, 4)) - torch.linspace(0.1, 0.6, 6, device=device)).square().sum()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
    parameters = [[p.detach() for p in net.parameters()] for net in nets]
    torch.testing.assert_close(sorted(parameters[0], key=str), sorted(parameters[1], key=str), rtol=1e-4, atol=1e-5)
    norm, fused_norm = apart[0].module, together[0][1].norm
    torch.testing.assert_close(dict(norm.named_buffers()), dict(fused_norm.named_buffers()), rtol=1e-4, atol=1e-6)
    apart.eval(), together.eval()
    assert (apart(x) != together(x)).double().mean() < 1e-3


@pytest.mark.parametrize("kind", [dict(affine=False), dict(track_running_stats=False), dict(eps=0.3)])
@pytest.mark.parametrize("training", [True, False])
def test_every_kind_of_norm(kind, training, device):
    apart, together = layers(NEURONS["text"](), nn.BatchNorm1d(7, **kind), device)
    apart.train(training), together.train(training)
    x = torch.randn(5, 4, 7, device=device)
    assert torch.equal(apart(x), together(x))


@pytest.mark.parametrize("momentum, running_type", [(0.3, torch.float32), (None, torch.float32), (0.1, torch.float16)])
def test_running_statistics_move_as_those_of_torch(momentum, running_type, device):
    norm = nn.BatchNorm1d(6, momentum=momentum).to(device)
    running = [torch.zeros(6, dtype=running_type, device=device), torch.ones(6, dtype=running_type, device=device), torch.tensor(0, device=device)]
    for _ in range(3):
        x = torch.randn(4, 5, 6, 7, device=device) * 2 + torch.arange(6, device=device).view(6, 1)
        x = (x if running_type == torch.float32 else x.to(running_type)).requires_grad_()
        norm(x.detach().float().flatten(0, 1))
        before = [t._version for t in running]
        (s,), (v,) = ops.batch_norm_run_tracked(SPIKING, [x], [], [torch.tensor(2.0)], *running, momentum=momentum)
        (expected,), (last,), _, _ = ops.batch_norm_run(SPIKING, [x], [], [torch.tensor(2.0)])
        assert torch.equal(s, expected) and torch.equal(v, last) and all(t._version > b for t, b in zip(running, before))
    wanted = [norm.running_mean.to(running_type), norm.running_var.to(running_type), norm.num_batches_tracked]
    tolerance = 1e-5 if running_type == torch.float32 else 5e-3
    torch.testing.assert_close(running, wanted, rtol=tolerance, atol=tolerance)


def test_running_statistics_that_cannot_be_updated_raise():
    x, c, count = torch.randn(4, 2, 5, 3), torch.ones(5), torch.tensor(0)
    for mean, batches, weight, words in (
        (torch.ones(4), count, None, r"running_mean must have shape \[5\]"),
        (c.double(), count, None, "running_mean must be"),
        (c, count.float(), None, "num_batches_tracked must be int64"),
        (c, count, c, "running_mean must not share memory with another argument"),
        (c, count, torch.ones(4), r"weight must have shape \[5\]"),
    ):
        with pytest.raises((ValueError, TypeError), match="batch_norm_run_tracked: " + words):
            ops.batch_norm_run_tracked(SPIKING, [x], [], [torch.tensor(2.0)], mean, torch.ones(5), batches, weight)
    assert torch.equal(c, torch.ones(5)) and count == 0


def test_states_go_on_are_kept_and_are_named(device):
    layer = snn.BatchNormNeuron(nn.BatchNorm2d(3), snn.Neuron(SPIKING, tau=2.0)).to(device).eval()
    x = torch.randn(6, 2, 3, 4, 4, device=device)
    whole, after = layer(x, None)
    assert list(after) == ["neuron.v"]
    first, state = layer(x[:2], None)
    second, state = layer(x[2:], state)
    assert torch.equal(torch.cat([first, second]), whole) and torch.equal(state["neuron.v"], after["neuron.v"])
    with snn.keep_state(layer):
        assert torch.equal(torch.cat([layer(x[:2]), layer(x[2:])]), whole)
        assert torch.equal(snn.get_states(layer)["neuron.v"], after["neuron.v"])
    _, stored = layer(x, store_states=True)
    assert torch.equal(stored["neuron.v"][-1], after["neuron.v"])
    assert torch.equal(layer.step(x[0]), whole[0])
    refused(ValueError, "there is no state 'v'", lambda: layer(x, {"v": after["neuron.v"]}))


def kernels(call):
    """Returns the names of the kernels that a call launches."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type.name == "CUDA"]


def test_under_autocast_too_the_launch_moves_running_statistics(cuda):
    layer = snn.BatchNormNeuron(nn.BatchNorm2d(32), snn.LIF(surrogate="atan")).to(cuda)
    x = torch.randn(4, 8, 32, 14, 14, device=cuda, dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda", torch.float16):
        found = kernels(lambda: layer(x))
    assert found == ["spikeforge_normalise_and_run"]
    assert layer.norm.num_batches_tracked == 2 and layer.norm.running_mean.any()


def test_a_gradient_in_another_layout_is_copied_once_and_keeps_the_layout_of_x(cuda):
    layer = snn.BatchNormNeuron(nn.BatchNorm2d(32), snn.LIF(surrogate="atan"), residual="add").to(cuda)
    x, r = (in_layout(torch.randn(4, 8, 32, 14, 14, device=cuda), "channels_last").requires_grad_() for _ in range(2))
    mean = torch.randn(4, 8, 32, 1, 1, device=cuda).expand_as(x)  # the gradient of a mean over images
    arguments = [x, r, *layer.parameters()]
    y = layer(x, r)
    for upstream in (mean, mean.contiguous(), in_layout(mean, "other")):
        found = torch.autograd.grad(y, arguments, upstream, retain_graph=True)
        wanted = torch.autograd.grad(y, arguments, in_layout(mean, "channels_last"), retain_graph=True)
        assert all(map(torch.equal, found, wanted)) and found[1].stride() == x.stride()
        launched = kernels(lambda u=upstream: torch.autograd.grad(y, arguments, u, retain_graph=True))
        assert len([name for name in launched if "copy" in name]) == 1, launched


@pytest.mark.parametrize("neuron", ["LIF", "text"])
@pytest.mark.parametrize("mode", RESIDUALS)
def test_residual_connections(mode, neuron, device):
    layer = snn.BatchNormNeuron(nn.BatchNorm2d(3), NEURONS[neuron](), residual=mode).to(device)
    alone = snn.BatchNormNeuron(copy.deepcopy(layer.norm), copy.deepcopy(layer.neuron)).to(device)
    x, r = torch.randn(2, 4, 2, 3, 4, 4, device=device).unbind()
    r = (r > 0).to(x.dtype)
    assert torch.equal(layer(x, r), RESIDUALS[mode](alone(x), r))
    refused(TypeError, "takes 2 inputs", lambda: layer(x))
    refused(ValueError, "residual must have shape", lambda: layer(x, r[0]))


@pytest.mark.parametrize("neuron", ["LIF", "text"])
@pytest.mark.parametrize("steps", [None, 4])
def test_the_neuron_reads_the_sum_of_a_membrane_shortcut(steps, neuron, device):
    norm = nn.BatchNorm2d(3) if steps is None else nn.ModuleList([nn.BatchNorm2d(3) for _ in range(steps)])
    layer = snn.BatchNormNeuron(norm, NEURONS[neuron](), residual="membrane").to(device).double()
    norms, alone = copy.deepcopy(layer.norm), copy.deepcopy(layer.neuron)
    x, r = torch.randn(2, 4, 2, 3, 4, 4, device=device, dtype=torch.float64).unbind()
    normalised = norms(x.flatten(0, 1)).unflatten(0, (4, 2)) if steps is None else torch.stack([n(row) for n, row in zip(norms, x)])
    spikes, total = layer(x, r)
    torch.testing.assert_close(total, normalised + r)
    assert torch.equal(spikes, alone(normalised + r)) and spikes.any() and layer.out_ports == ("out", "sum")
    torch.testing.assert_close(list(layer.norm.buffers()), list(norms.buffers()))
    layer.eval()
    if steps is None:
        with snn.keep_state(layer):
            first, second = layer(x[:2], r[:2]), layer(x[2:], r[2:])
        (spikes, total), state = layer(x, r, None)
        torch.testing.assert_close([torch.cat(parts) for parts in zip(first, second)], [spikes, total])
        assert torch.equal(layer(x, r, store_states=True)[1]["neuron.v"][-1], state["neuron.v"])
    refused(ValueError, "residual must have shape", lambda: layer(x, r[0]))


def test_scale_is_threshold_dependent_normalisation(device):
    x = torch.randn(4, 3, 5, 6, device=device)
    for affine in (True, False):
        norm = nn.BatchNorm1d(5, affine=affine).to(device)
        layer = snn.BatchNormNeuron(norm, snn.Neuron(SMOOTH, tau=2.0), scale=0.8)
        y = 0.8 * batch_norm(x.double(), None, None)[0]
        torch.testing.assert_close(layer(x).double(), smooth_loop(y, torch.zeros_like(y[0]), 2.0)[0], rtol=1e-5, atol=1e-5)


def test_fuse_finds_the_pairs_and_leaves_the_others(device):
    shared = nn.BatchNorm2d(4)
    hooked = snn.LIF()
    hooked.register_forward_hook(lambda *_: None)
    net = snn.Sequential(
        snn.TimeDistributed(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), snn.LIF(),
        snn.TimeDistributed(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)), snn.Neuron(SPIKING, tau=2.0),
        snn.TimeDistributed(shared), snn.LIF(), snn.TimeDistributed(shared), snn.LIF(), snn.TimeDistributed(nn.BatchNorm2d(4)),
        hooked, snn.TimeDistributed(nn.BatchNorm2d(4)), nn.ReLU(), snn.TimeDistributed(nn.Conv2d(4, 4, 1)), snn.LIF(),
    ).to(device)
    before = copy.deepcopy(net)
    x = torch.randn(3, 2, 3, 9, 9, device=device)
    assert snn.fuse(net) == ["1", "3"]
    assert isinstance(net[0].module, nn.Conv2d) and len(net[2].module) == 2
    assert (net(x) != before(x)).double().mean() < 1e-3
    assert {id(p) for p in net.parameters()}.isdisjoint({id(p) for p in before.parameters()})
    assert snn.fuse(net) == []
    assert "1.neuron.v" in net(x, None)[1]


class Louder(snn.LIF):
    def forward(self, x, *args, **options):
        return super().forward(3 * x, *args, **options)


class Doubled(nn.BatchNorm1d):
    def forward(self, x):
        return 2 * super().forward(x)


def test_fuse_skips_layers_whose_results_would_change(device):
    two = "neuron two(x; v) { h = v + x; return spike(h - 1, atan(2)), h; v' = 0.5 * h }"
    seen = []
    watched = snn.TimeDistributed(nn.Linear(4, 4), nn.BatchNorm1d(4))
    watched.module.register_forward_hook(lambda *_: seen.append(1))
    for layer, neuron in (
        (snn.TimeDistributed(nn.BatchNorm1d(4)), Louder()),
        (snn.TimeDistributed(Doubled(4)), snn.LIF()),
        (snn.TimeDistributed(nn.BatchNorm1d(4)), snn.Neuron(two)),
        (watched, snn.LIF()),
        (snn.TimeDistributed(nn.BatchNorm1d(4)), snn.LIF(spiking=False)),
    ):
        net = nn.Sequential(layer, neuron).to(device)
        assert snn.fuse(net) == [] and net[0] is layer and net[1] is neuron
        net(torch.randn(3, 2, 4, device=device))
    assert seen == [1]


def test_fuse_keeps_modes_and_objects_that_others_reference(device):
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    net = nn.Sequential(snn.TimeDistributed(nn.Linear(4, 4), nn.BatchNorm1d(4)), snn.LIF(), snn.TimeDistributed(inner), snn.LIF())
    net[0].module[1].eval()  # in evaluation mode
    assert snn.fuse(net.to(device)) == ["1", "3"]
    assert net[1].training and not net[1].norm.training and net[3].norm.training
    before = net[1].norm.running_mean.clone()
    net(torch.randn(3, 2, 4, device=device))
    assert torch.equal(net[1].norm.running_mean, before) and len(inner) == 2


@pytest.mark.parametrize("neuron", ["LIF", "text"])
def test_both_ways_of_a_layer_refuse_and_count_alike(neuron, device):
    layer = snn.BatchNormNeuron(nn.BatchNorm2d(3), NEURONS[neuron](), residual="iand").to(device)
    x = torch.randn(4, 2, 3, 5, 5, device=device)
    with pytest.raises(ValueError, match=r"x must be \[T, B, 3, ...\].*and 5 dimensions, but has shape \[4, 2, 3\]"):
        layer(x[..., 0, 0], x[..., 0, 0])
    refused(TypeError, "residual must be a tensor of the shape of x, but is NoneType", lambda: layer(x, None))
    refused(TypeError, "residual must be torch.float32, the type of x, but is torch.float64", lambda: layer(x, x.double()))
    layer = snn.BatchNormNeuron(nn.BatchNorm1d(3, momentum=None), NEURONS[neuron]()).to(device)
    x = torch.randn(2, 4, 3, device=device)
    layer(x)
    assert layer.norm.num_batches_tracked == 1
    torch.testing.assert_close(layer.norm.running_mean, x.mean((0, 1)))
    layer.eval()
    y = layer(x.requires_grad_())
    layer.train()(x.detach())
    y.sum().backward()  # with the statistics of the forward pass


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("neuron", ["LIF", "text"])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_an_empty_batch_is_as_torchs_normalisation_takes_it(neuron, training, momentum, device):
    norm = nn.BatchNorm2d(3, momentum=momentum).to(device).train(training)
    layer = snn.BatchNormNeuron(copy.deepcopy(norm), NEURONS[neuron]()).to(device).train(training)
    x = torch.empty(4, 0, 3, 5, 5, device=device, requires_grad=True)
    norm(x.flatten(0, 1))
    y, state = layer(x, None)
    assert y.shape == x.shape and state["neuron.v"].shape == (0, 3, 5, 5)
    y.sum().backward()
    assert x.grad.shape == x.shape and not layer.norm.weight.grad.any()
    torch.testing.assert_close(dict(layer.norm.named_buffers()), dict(norm.named_buffers()), rtol=0, atol=0)


@pytest.mark.parametrize("neuron", ["LIF", "text"])
@pytest.mark.parametrize("through_time", [False, True])
def test_a_call_that_fails_leaves_running_statistics(neuron, through_time, device):
    norms = [nn.BatchNorm1d(3) for _ in range(4)]
    layer = snn.BatchNormNeuron(nn.ModuleList(norms) if through_time else norms[0], NEURONS[neuron]()).to(device)
    x = torch.randn(4, 2, 3, device=device)
    before = {name: t.clone() for name, t in layer.named_buffers()}
    layer.neuron.tau = nn.Parameter(torch.full((5,), 2.0, device=device))
    refused(ValueError, "tau", lambda: layer(x))
    torch.testing.assert_close(dict(layer.named_buffers()), before, rtol=0, atol=0)


# --- batch normalisation through time

def bntt(kind, channels, steps, affine=True):
    """Returns a normalisation for each step, like that of snnTorch (without bias) and SpikingJelly."""
    snntorch = pytest.importorskip("snntorch", reason="snntorch is not installed")
    norms = {"1d": snntorch.BatchNormTT1d, "2d": snntorch.BatchNormTT2d}[kind](channels, steps, affine=affine)
    for norm in norms:
        if affine:
            nn.init.uniform_(norm.weight, 0.5, 3)
        if kind == "2d":  # with a bias, unlike snnTorch's
            norm.bias = nn.Parameter(torch.rand(channels))
    return norms


@pytest.mark.parametrize("neuron", ["LIF", "text"])
@pytest.mark.parametrize("kind, shape", [("1d", (5, 8, 6)), ("2d", (5, 4, 6, 3, 4))])
def test_normalisation_through_time_is_that_of_each_step_by_itself(kind, shape, neuron, device):
    norms = bntt(kind, 6, 5).to(device).double()
    twin = copy.deepcopy(norms)
    layer, alone = snn.BatchNormNeuron(norms, NEURONS[neuron]()).to(device), NEURONS[neuron]()
    for training in (True, True, False):
        layer.train(training), twin.train(training)
        x = torch.randn(shape, device=device, dtype=torch.float64) * torch.arange(1, 6, device=device).view(5, *[1] * (len(shape) - 1))
        x.requires_grad_()
        y = layer(x)
        expected = alone.to(device)(torch.stack([norm(row) for norm, row in zip(twin, x)]))
        assert torch.equal(y, expected) and y.any()
        weights = torch.rand_like(y)
        both = (y, norms), (expected, twin)
        grads = (torch.autograd.grad((z * weights).sum(), [x, *some.parameters()]) for z, some in both)
        torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(list(norms.buffers()), list(twin.buffers()), rtol=1e-10, atol=1e-10)
    assert list(layer.norm.state_dict()) == list(twin.state_dict())
    spikes, states = layer(x, store_states=True)
    assert torch.equal(spikes, y) and states["neuron.v"].shape == x.shape
    assert torch.equal(states["neuron.v"][-1], layer(x, None)[1]["neuron.v"])
    assert torch.equal(layer(x[:3]), y[:3])  # the first steps have the same results


def test_normalisation_through_time_with_residual_and_scale(device):
    norms = nn.ModuleList([nn.BatchNorm1d(6) for _ in range(4)]).to(device)
    layer = snn.BatchNormNeuron(norms, snn.LIF(), residual="iand", scale=3.0)
    x, r = torch.randn(4, 9, 6, device=device), torch.randint(0, 2, (4, 9, 6), device=device).float()
    expected = snn.LIF()(3 * torch.stack([norm(row) for norm, row in zip(copy.deepcopy(norms), x)]))
    assert torch.equal(layer(x, r), (1 - expected) * r) and expected.any()
    with pytest.raises(ValueError, match="x has 5 steps, but norm has 4, one for each"):
        layer(torch.randn(5, 9, 6, device=device), torch.zeros(5, 9, 6, device=device))
    refused(ValueError, "pass all steps in one call, without a state", lambda: layer(x, r, layer(x, r, None)[1]))
    with pytest.raises(ValueError, match="the norms of all steps must have the same class and number of channels"):
        snn.BatchNormNeuron(nn.ModuleList([nn.BatchNorm1d(6), nn.BatchNorm1d(5)]), snn.LIF())
    refused(ValueError, "norm must have a normalisation for each step, but is an empty ModuleList", lambda: snn.BatchNormNeuron(nn.ModuleList(), snn.LIF()))


def test_wrong_layers_raise():
    norm, words = nn.BatchNorm1d(3), "norm must be a BatchNorm1d, 2d, 3d or SyncBatchNorm, with their forward, but is"
    for kind, message, arguments, options in (
        (TypeError, f"{words} LayerNorm", (nn.LayerNorm(3), snn.LIF()), {}),
        (TypeError, f"{words} Doubled", (Doubled(3), snn.LIF()), {}),
        (TypeError, "neuron must be a neuron of spikeforge.nn, with its forward, but is ReLU", (norm, nn.ReLU()), {}),
        (TypeError, "neuron must have one input and one output, but Neuron has 2 and 2", (norm, snn.Neuron(TWO, k=1.0)), {}),
        (ValueError, "scale must be a finite number, but is nan", (norm, snn.LIF()), {"scale": float("nan")}),
        (ValueError, "residual must be None, 'add', 'and', 'iand' or 'membrane', but is 'ADD'", (norm, snn.LIF()), {"residual": "ADD"}),
        (ValueError, "spiking=False needs the neuron's own operator", (norm, snn.LIF(spiking=False)), {}),
    ):
        refused(kind, message, lambda: snn.BatchNormNeuron(*arguments, **options))
    layer = snn.BatchNormNeuron(nn.BatchNorm1d(3), snn.LIF())
    with pytest.raises(ValueError, match=r"x must be \[T, B, 3, ...\], with the 3 channels of BatchNorm1d in dimension 2"):
        layer(torch.randn(4, 2, 5))
    refused(ValueError, r"x must be \[T, B, 3, ...\]", lambda: layer(torch.randn(4, 3)))


def test_a_layer_is_copied_saved_compiled_and_follows_its_constants(device, tmp_path):
    layer = snn.BatchNormNeuron(nn.BatchNorm1d(5), snn.LIF(surrogate="atan")).to(device)
    x = torch.randn(4, 3, 5, device=device)
    expected = layer(x)
    layer.neuron.v_threshold = 1e9
    assert not layer(x).any()
    layer.neuron.v_threshold = 1.0
    torch.save(layer, tmp_path / "layer.pt")
    for other in (copy.deepcopy(layer), torch.load(tmp_path / "layer.pt", weights_only=False)):
        assert torch.equal(other(x), expected)
    assert list(layer.state_dict()) == [f"norm.{name}" for name in layer.norm.state_dict()]
    text = snn.BatchNormNeuron(nn.BatchNorm1d(5, momentum=None), snn.Neuron(SPIKING, tau=2.0)).to(device)
    assert torch.equal(torch.compile(text, fullgraph=True)(x), text(x))


RECORD = """
import sys, torch, torch.nn as nn, spikeforge.nn as snn
ops = torch.ops.spikeforge
layer = snn.BatchNormNeuron(nn.BatchNorm1d(5), snn.LIF())
x = torch.randn(4, 3, 5, requires_grad=True)
assert not ops.records_kernels()
ops.record_kernels(["sm_90"])
assert ops.records_kernels()
layer(x).sum().backward()
print(ops.write_kernel_pack(sys.argv[1]), ops.records_kernels())
"""


def test_kernels_recorded_on_the_cpu_are_those_of_a_gpu(tmp_path):
    """One kernel for each direction; and for larger layers: two for the statistics, one for the neuron's forward pass, two
    for the passes of the gradient of x, one between them, and one that sums over blocks."""
    written = output_of(RECORD, tmp_path / "kernels.pack", env=os.environ | {"SPIKEFORGE_CACHE_DIR": "off"})
    assert written.split() == ["10", "False"]


AS_ON_A_GPU = """
import torch
from test_layers import SMOOTH, batch_norm, in_layout, leaves, nn, ops, snn

ops.record_kernels(["sm_90"])  # from here on calls on the CPU run what a GPU would
for shape, layout in (((3, 2, 5, 7, 7), "contiguous"), ((4, 3, 33, 5), "channels_last"), ((5, 70, 19), "other"), ((17, 1, 2), "contiguous")):
    x = (in_layout(torch.randn(shape, dtype=torch.float64), layout) + 100).requires_grad_()
    expected = batch_norm(x, None, None)[1:]
    torch.testing.assert_close(ops.channel_statistics(x), expected, rtol=1e-9, atol=1e-9)
    channels = shape[2]
    weight, bias, tau = leaves((channels,), (channels,), ())
    residual = torch.randn_like(x).requires_grad_()
    tau = (tau.detach().abs() + 1.5).requires_grad_()
    v = torch.randn(shape[1:], dtype=torch.float64).requires_grad_()
    arguments = (x, residual, v, tau, weight, bias)

    def results(x, residual, v, tau, weight, bias):
        (s,), (last,), mean, var = ops.batch_norm_run(SMOOTH, [x], [v], [tau], weight, bias, residual=residual, residual_mode="iand")
        return s, last, mean, var

    def apart(x, residual, v, tau, weight, bias):
        y, mean, var = batch_norm(x, weight, bias)
        (s,), (last,) = ops.run(SMOOTH, [y], [v], [tau])
        return (1 - s) * residual, last, mean, var

    upstream = [torch.randn_like(t) for t in apart(*arguments)]
    for chosen in (arguments, arguments[:1], (x, bias)):
        found, expected = (torch.autograd.grad(f(*arguments), chosen, upstream) for f in (results, apart))
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
half = snn.BatchNormNeuron(nn.BatchNorm2d(3), snn.LIF()).half()  # its running statistics too
half(torch.randn(4, 5, 3, 6, 6).half().requires_grad_()).sum().backward()
# With an output more, it has its checkpoints elsewhere.
long = "neuron n(x; v; tau) { a = v + (x - v) / tau; b = a * tau + v; c = b * tau + v; d = c * tau + v; e = d * tau + v; "
long += "s = sigmoid(e - 1); return s; v' = (1 - s) * a }"
x, tau = torch.randn(9, 4, 3, dtype=torch.float64, requires_grad=True), torch.tensor(2.5, dtype=torch.float64)
together, apart = ops.batch_norm_run(long, [x], [], [tau])[0][0], ops.run(long, [batch_norm(x, None, None)[0]], [], [tau])[0][0]
torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x) for y in (together, apart)))
x = torch.randn(3, 2, 4, dtype=torch.float64)
x[0, 0, 1] = 1e8
torch.testing.assert_close(ops.channel_statistics(x)[1], batch_norm(x, None, None)[2], rtol=1e-6, atol=0)
assert ops.records_kernels()
"""


def test_the_kernels_of_a_gpu_are_right_on_the_cpu():
    """Computes statistics with the neuron's gradients, and the gradient of x in two passes, on the CPU."""
    folders = str(REPOSITORY / "tests/python"), os.path.dirname(__file__), os.environ["PYTHONPATH"]
    output_of(AS_ON_A_GPU, env=os.environ | {"SPIKEFORGE_CACHE_DIR": "off", "PYTHONPATH": os.pathsep.join(folders)})


def with_sync_batch_norm(rank):
    """Returns the results of one process for its share of the samples."""
    torch.manual_seed(0)
    joined, upstream = torch.randn(2, 4, 6, 5, 3).unbind()
    share = slice(None), slice(0, 2) if rank == 0 else slice(2, 6)
    x = joined[share].clone().requires_grad_()
    layer = snn.BatchNormNeuron(nn.SyncBatchNorm(5), snn.Neuron(SMOOTH, tau=2.0))
    y = layer(x)
    y.backward(upstream[share])
    weight = layer.norm.weight.grad.clone()
    torch.distributed.all_reduce(weight)
    return {"y": y.detach(), "x": x.grad, "weight": weight, "norm": layer.norm.state_dict()}


def test_sync_batch_norm_takes_the_statistics_of_all_processes():
    found = on_ranks(2, with_sync_batch_norm)
    torch.manual_seed(0)
    x, upstream = torch.randn(2, 4, 6, 5, 3).unbind()
    x.requires_grad_()
    layer = snn.BatchNormNeuron(nn.BatchNorm1d(5), snn.Neuron(SMOOTH, tau=2.0))
    y = layer(x)
    y.backward(upstream)
    torch.testing.assert_close(torch.cat([one["y"] for one in found], 1), y.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.cat([one["x"] for one in found], 1), x.grad, rtol=1e-4, atol=1e-6)
    for one in found:
        torch.testing.assert_close(one["weight"], layer.norm.weight.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one["norm"], layer.norm.state_dict(), rtol=1e-5, atol=1e-6)
