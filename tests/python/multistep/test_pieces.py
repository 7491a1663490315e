"""Layers in pieces of the batch have the results and gradients of whole layers, whose product never exists."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from cases import weighted
from conftest import REPOSITORY
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import spikeforge
from spikeforge.accelerate import layers, restore
from spikeforge.nn.pieces import Layer, Tensors, run_in_pieces

SMOOTH = "neuron smooth(x; v = 0.25; decay) { h = v * decay + x; return tanh(h); v' = h - 0.5 * sigmoid(h) }"
T, B, C, OUT, SIDE = 3, 5, 2, 4, 7


def smooth(x, decay):
    """Returns the neuron and its last state, in torch operations."""
    v, results = torch.full_like(x[0], 0.25), []
    for row in x:
        h = v * decay + row
        results.append(torch.tanh(h))
        v = h - 0.5 * torch.sigmoid(h)
    return torch.stack(results), v


def product(x, weight, bias):
    return F.conv2d(x, weight, bias, 2, 1)


def behind(y):
    return F.max_pool2d(y.flatten(0, 1), 2).unflatten(0, y.shape[:2])


@pytest.mark.parametrize("pieces", [1, 2, 4, 5])
@pytest.mark.parametrize("bits", [0, 4])
def test_results_and_gradients_are_those_of_torch(pieces, bits, device):
    torch.manual_seed(3)
    x = torch.randint(0, 16, (T, B, C, SIDE, SIDE)).double().to(device).requires_grad_()
    given = [torch.randn(OUT, C, 3, 3), torch.randn(OUT), torch.rand(OUT) + 0.5, torch.randn(OUT), torch.rand(OUT, 1, 1)]
    given = [t.double().to(device).requires_grad_() for t in given]
    weight, bias, scale, shift, decay = given

    y = product(x.flatten(0, 1), weight, bias)
    var, mean = torch.var_mean(y, (0, 2, 3), correction=0)
    spikes, v = smooth(F.batch_norm(y, None, None, scale, shift, training=True).unflatten(0, (T, B)), decay)
    wanted = behind(spikes), v

    layer = Layer(product, SMOOTH, 1e-5, behind, pieces, bits)
    result, (last,), *statistics, count = run_in_pieces(layer, x, Tensors(weight, bias, scale, shift, (decay,)))
    assert count == y.numel() // y.shape[1]
    for got, expected in zip((result, last, *statistics), (*wanted, mean, var)):
        torch.testing.assert_close(got, expected.detach(), rtol=1e-10, atol=1e-10)
    upstream = [torch.rand_like(t) for t in wanted]
    expected = torch.autograd.grad(wanted, [x, *given], upstream, retain_graph=True)
    got = torch.autograd.grad((result, last), [x, *given], upstream, retain_graph=True)
    assert all(t.abs().max() > 1e-3 for t in expected[:2])
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)
    # The gradients of the states only, with respect to some of the arguments.
    some = [weight, decay]
    got, expected = torch.autograd.grad(last, some, upstream[1]), torch.autograd.grad(v, some, upstream[1])
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


def test_numbers_beyond_their_bits_are_refused():
    x, weight = torch.rand(T, B, C, SIDE, SIDE), torch.randn(OUT, C, 3, 3, requires_grad=True)
    with pytest.raises(ValueError, match="x must be 0 or 1 everywhere"):
        run_in_pieces(Layer(product, SMOOTH, 1e-5, behind, 2, 1), x, Tensors(weight, None, None, None, (torch.tensor(0.5),)))


def test_a_second_derivative_raises():
    x, weight = torch.rand(T, B, C, SIDE, SIDE), torch.randn(OUT, C, 3, 3, requires_grad=True)
    layer = Layer(product, SMOOTH, 1e-5, behind, 2, 0)
    y = run_in_pieces(layer, x, Tensors(weight, None, None, None, (torch.tensor(0.5),)))[0]
    with pytest.raises(NotImplementedError, match="cannot be differentiated: pass pieces=1"):
        torch.autograd.grad(y.sum(), weight, create_graph=True)


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that an operator returns."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, *(t.untyped_storage().nbytes() // t.element_size() for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)), 0)
        return result


def network(device):
    jelly = pytest.importorskip("spikingjelly.activation_based", reason="spikingjelly is not installed")
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    def node():
        return neuron.LIFNode(detach_reset=True, surrogate_function=surrogate.ATan())

    stem = layer.Conv2d(2, 8, 3, padding=1), layer.BatchNorm2d(8), node(), layer.MaxPool2d(2)
    more = layer.Conv2d(8, 8, 3, padding=1), layer.BatchNorm2d(8), node()
    last = layer.Conv2d(8, 2, 3), layer.BatchNorm2d(2), node()
    net = nn.Sequential(*stem, *more, *last).double().to(device)
    for norm in (net[1], net[5], net[8]):
        nn.init.constant_(norm.bias, 1.5)  # so that neurons fire
    functional.set_step_mode(net, "m")
    assert jelly is not None
    return net, functional


@pytest.mark.parametrize("keep_states", [True, False])
def test_a_network_in_pieces_takes_the_same_step(keep_states, device):
    torch.manual_seed(4)
    net, functional = network(device)
    x = torch.rand(4, 6, 2, 8, 8, dtype=torch.double, device=device)
    spikeforge.accelerate(net)
    twin = copy.deepcopy(net)
    layers(twin, x, recompute=True, keep_states=keep_states)
    done = layers(net, x, recompute=True, pieces=4, keep_states=keep_states)
    assert done.in_pieces == ("0",) and "of them in pieces of the batch, with their neurons: 1\n  0" in str(done)

    def step(net, x):
        with Largest() as largest:
            y = net(x)
            gradients = torch.autograd.grad(weighted(y), list(net.parameters()))
        states = [module.v for module in net if hasattr(module, "v")]
        functional.reset_net(net)
        return [y.detach(), *gradients, *states, *[buffer.clone() for buffer in net.buffers()]], largest.numbers

    for _ in range(2):
        (got, pieced), (wanted, whole) = step(net, x), step(twin, x)
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
    assert got[0].any() and got[1].any()
    product = 4 * 6 * 8 * 8 * 8
    assert whole == product and pieced <= product // 2, (whole, pieced)
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert step(copied, x)[1] == pieced
    # The layers run one by one if the neuron continues from a state, if one of them has hooks, or in evaluation.
    net(x), twin(x)
    torch.testing.assert_close(net(x), twin(x))
    functional.reset_net(net), functional.reset_net(twin)
    seen = []
    handle = net[2].register_forward_hook(lambda _, __, y: seen.append(y.shape))
    torch.testing.assert_close(step(net, x)[0], step(twin, x)[0], rtol=1e-9, atol=1e-10)
    handle.remove()
    assert seen == [(4, 6, 8, 8, 8)]
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), twin.eval()(x))
    functional.reset_net(net), functional.reset_net(twin)
    net.train(), twin.train()
    restore(net)
    torch.testing.assert_close(step(net, x)[0][0], step(twin, x)[0][0])


def test_the_peak_of_a_training_step_is_that_of_smaller_images(monkeypatch):
    """Counts memory without allocating it, as benchmarks/alive.py does; the first layer of SEW-ResNet18 needs most."""
    pytest.importorskip("spikingjelly", reason="spikingjelly is not installed")
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import alive

    options = SimpleNamespace(steps=8, batch=16, size=64, classes=10, device="cpu", dtype="float32")
    peaks = {form: alive.counted("SEW-ResNet18", form, options).peak for form in ("recomputed", "in pieces")}
    weights = 2 * 4 * 11.2e6  # gradients, and the tensors from which they are computed
    assert (peaks["in pieces"] - weights) < 0.6 * (peaks["recomputed"] - weights), peaks


def test_pieces_are_checked():
    net, _ = network("cpu")
    spikeforge.accelerate(net)
    x = torch.rand(4, 6, 2, 8, 8, dtype=torch.double)
    for pieces in (0, 1.5, True):
        with pytest.raises(ValueError, match="pieces must be a whole number of 1 or more, but is"):
            layers(net, x, recompute=True, pieces=pieces)
    with pytest.raises(ValueError, match="pieces needs recompute=True"):
        layers(net, x, pieces=2)


def test_autocast_casts_the_inputs_of_a_product(device):
    torch.manual_seed(6)
    x, given = torch.rand(T, B, C, SIDE, SIDE, device=device), [torch.randn(OUT, C, 3, 3), torch.randn(OUT), torch.rand(OUT), torch.randn(OUT)]
    given = [t.to(device).requires_grad_() for t in given]
    tensors = Tensors(*given, (torch.tensor(0.5),))
    with torch.autocast(device.type, torch.bfloat16):
        y, (v,), *_ = run_in_pieces(Layer(product, SMOOTH, 1e-5, behind, 2, 0), x, tensors)
    assert y.dtype == torch.bfloat16 and v.dtype == torch.float32
    got = torch.autograd.grad(y.sum(), given)
    exact = run_in_pieces(Layer(product, SMOOTH, 1e-5, behind, 1, 0), x, tensors)[0]
    for gradient, expected in zip(got, torch.autograd.grad(exact.sum(), given)):
        assert gradient.dtype == torch.float32
        assert (gradient - expected).abs().max() <= 0.05 * expected.abs().max() + 0.05
