"""recompute=True: the product of a linear layer or convolution is recomputed in the backward pass instead of kept.

The oracles are the gradients of the same network without it, bit for bit, and the bytes that autograd keeps."""

import copy
import pickle

import pytest
import torch
from cases import all_equal, weighted
from loops import refused
from torch import nn
from torch.library import opcheck

import spikeforge.nn as snn
from documentation import code
from spikeforge.accelerate import watch

ops = torch.ops.spikeforge
T, B, C, OUT, SIDE = 16, 2, 8, 16, 10
SPIKING = "neuron leaky(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"


@pytest.fixture(autouse=True)
def seed(monkeypatch):
    torch.manual_seed(5)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # so that products are reproducible


def kept_by(run):
    """Returns the result of run, and the bytes of the tensors that autograd keeps for it, each storage once."""
    kept = {}

    def note(t):
        kept[t.untyped_storage()._cdata] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        result = run()
    return result, sum(t.untyped_storage().nbytes() for t in kept.values() if not (t.is_leaf and t.requires_grad))


def spikes(*shape, most=1, device="cpu"):
    return torch.randint(0, most + 1, shape).float().to(device)


def of_convolution(device, residual=None, frozen=False):
    """Returns a layer as a function of x, bits and recompute, and its parameters."""
    product, norm = nn.Conv2d(C, OUT, 3, 2, 1).to(device), nn.BatchNorm2d(OUT).to(device)
    layer = snn.BatchNormNeuron(norm.train(not frozen), snn.LIF(surrogate="atan"), recompute=True, residual=residual)
    nn.init.constant_(norm.bias, 1.5)  # so that neurons fire

    def run(x, bits, recompute):
        y = ops.convolution(x.flatten(0, 1), product.weight, product.bias, 2, 1, bits=bits, recompute=recompute)
        y = y.unflatten(0, (T, B))
        return layer(y) if residual is None else layer(y, spikes(*y.shape, device=device))

    return run, [*product.parameters(), *norm.parameters()]


def of_linear(device):
    product, norm = nn.Linear(C, OUT, bias=False).to(device), nn.BatchNorm1d(OUT).to(device)
    layer = snn.BatchNormNeuron(norm, snn.Neuron(SPIKING, tau=2.0), recompute=True)
    return lambda x, bits, recompute: layer(ops.linear(x, product.weight, bits=bits, recompute=recompute)), [product.weight, *norm.parameters()]


@pytest.mark.parametrize("kind", ["convolution", "linear", "frozen", "add", "iand"])
@pytest.mark.parametrize("bits", [1, 4, 0])
def test_gradients_have_the_same_bits_and_the_product_is_not_kept(kind, bits, device):
    run, parameters = of_linear(device) if kind == "linear" else of_convolution(device, kind if kind in ("add", "iand") else None, kind == "frozen")
    shape = (T, B, C) if kind == "linear" else (T, B, C, SIDE, SIDE)
    x = (spikes(*shape, most={1: 1, 4: 15}[bits]) if bits else torch.randn(shape)).to(device).requires_grad_()
    results = []
    for recompute in (False, True):
        torch.manual_seed(1)
        y, kept = kept_by(lambda: run(x, bits, recompute))
        results.append((y.detach(), kept, torch.autograd.grad(weighted(y), [x, *parameters])))
    (y, before, expected), (got, after, gradients) = results
    assert torch.equal(got, y) and y.any()
    assert all_equal(gradients, expected) and gradients[0].any()
    assert before - after == y.numel() * 4, (before, after)  # one float per element is no longer kept


def test_bits_and_checkpoints_are_all_that_is_kept(device):
    """Autograd keeps one bit per element of the input, and a checkpoint per neuron every few steps."""
    run, _ = of_convolution(device)
    x = spikes(T, B, C, SIDE, SIDE, device=device).requires_grad_()
    y, kept = kept_by(lambda: run(x, 1, True))
    states = 4 * y[0].numel()
    assert x.numel() // 8 < kept <= x.numel() // 8 + T // 8 * states + 1000


def test_under_autocast_cast_tensors_are_recomputed(device):
    run, parameters = of_convolution(device)
    x = spikes(T, B, C, SIDE, SIDE, device=device)
    gradients = []
    for recompute in (False, True):
        with torch.autocast(device.type, torch.bfloat16):
            y, kept = kept_by(lambda: run(x, 1, recompute))
        assert y.dtype == torch.bfloat16
        gradients.append((kept, torch.autograd.grad(weighted(y.float()), parameters)))
    assert gradients[0][0] - gradients[1][0] == (y.numel() - OUT) * 2  # the cast bias is kept
    assert all_equal(gradients[0][1], gradients[1][1])
    y = run(x, 1, True)
    with torch.autocast(device.type, torch.bfloat16):  # only the backward pass, in which nothing is cast
        (found,) = torch.autograd.grad(weighted(y), parameters[0])
    (expected,) = torch.autograd.grad(weighted(run(x, 1, False)), parameters[0])
    assert torch.equal(found, expected)


lif_of = lambda y: ops.lif(y, surrogate="atan")[0]
USES = {  # functions of a product [T, B, OUT], and whether the product is not kept
    "a neuron without normalisation": (lif_of, True),
    "statistics over processes": (lambda y: torch.cat(ops.channel_statistics(y)), True),
    "written to without being told": (lambda y: lif_of(y.detach().mul_(0.5) is None or y), False),
    "written to": (lambda y: lif_of(y.mul_(0.5)), False),
    "a multiple": (lambda y: lif_of(y * 0.5), False),
    "cast": (lambda y: lif_of(y.double()), False),
    "a part": (lambda y: lif_of(y[2:, :, 3:9]), False),
    "transposed": (lambda y: lif_of(y.transpose(1, 2)), False),
    "a sample": (lambda y: lif_of(y[:, 1]), False),
}


@pytest.mark.parametrize("use", USES)
def test_any_use_of_a_product_has_the_gradient_of_one_that_is_kept(use, device):
    weight, x, results = torch.randn(OUT, C, device=device, requires_grad=True), spikes(T, B, C, device=device), []
    function, is_dropped = USES[use]
    for recompute in (False, True):
        y, kept = kept_by(lambda: function(ops.linear(x, weight, recompute=recompute)))
        results.append((kept, torch.autograd.grad(weighted(y), weight)[0]))
    assert torch.equal(results[0][1], results[1][1]) and results[0][1].any()
    assert not is_dropped or results[0][0] - results[1][0] == T * B * OUT * 4


def test_changes_of_the_recomputed_inputs_are_detected(device):
    run, parameters = of_convolution(device)
    x = spikes(T, B, C, SIDE, SIDE, device=device)
    for which in (0, 1):
        y = run(x, 1, True)
        with torch.no_grad():
            parameters[which].add_(1)
        refused(RuntimeError, "modified by an inplace operation", lambda: weighted(y).backward())
    y = run(x, 1, True)
    weighted(y).backward()
    refused(RuntimeError, "second time", lambda: weighted(y).backward())


def test_second_derivatives_are_refused_where_bits_are_kept(device):
    run, parameters = of_convolution(device)
    y = run(spikes(T, B, C, SIDE, SIDE, device=device), 1, True)
    with pytest.raises(NotImplementedError, match="its backward pass cannot be differentiated"):
        torch.autograd.grad(weighted(y), parameters[0], create_graph=True)


def test_operators_are_right_and_compile(device):
    x, weight = spikes(4, 7, device=device), torch.randn(5, 7, device=device, requires_grad=True)
    opcheck(ops.linear.default, (x, weight), dict(bits=0, recompute=True))
    run = lambda x, w: ops.lif(ops.linear(x.unsqueeze(1), w, recompute=True), surrogate="atan")[0].square().sum()
    gradients = [torch.autograd.grad(f(x, weight), weight) for f in (run, torch.compile(run, fullgraph=True, backend="aot_eager"))]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


# --- networks


class Block(nn.Module):
    """A residual block of SEW-ResNet, whose shortcut is computed after its spikes."""

    def __init__(self, kind):
        super().__init__()
        layer = lambda: snn.TimeDistributed(nn.Conv2d(C, C, 3, padding=1, bias=False), nn.BatchNorm2d(C))
        self.first, self.fire1, self.second, self.fire2 = layer(), snn.LIF(surrogate="atan"), layer(), snn.LIF(surrogate="atan")
        self.kind = kind
        self.shortcut = nn.Sequential(layer(), snn.LIF(surrogate="atan")) if kind == "shortcut" else None
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.bias, 1.5)

    def forward(self, x):
        s = self.fire2(self.second(self.fire1(self.first(x))))
        if self.kind == "and":
            return x * s
        if self.kind == "iand":
            return (1 - s) * x
        if self.kind == "in place":
            s += x
            return s
        if self.kind == "read twice":
            return s + x + s.mean()
        if self.kind == "broadcast":
            return s + x.mean((3, 4), keepdim=True)
        return s + (x if self.shortcut is None else self.shortcut(x))


def test_a_network_of_any_forward_is_fused_with_its_residuals(device):
    for kind, mode in {"add": "add", "shortcut": "add", "in place": "add", "and": "and", "iand": "iand", "read twice": None, "broadcast": "add"}.items():
        net = nn.Sequential(Block(kind), Block(kind)).to(device).double()
        before = copy.deepcopy(net)
        x = spikes(4, 2, C, 6, 6, device=device).double()
        buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
        names = snn.fuse(net, x, recompute=True)
        assert names[:2] == ["0.fire1", "0.fire2"] and len(names) == (6 if kind == "shortcut" else 4)
        assert net[0].fire2.residual == mode and net[0].fire1.residual is None and net[0].fire1.recompute, kind
        fused = {name.replace(".norm.", "."): buffer for name, buffer in net.named_buffers()}
        assert len(fused) == len(buffers) and all(buffer.double().sum() in (0, C) for buffer in fused.values())
        twin = copy.deepcopy(net)
        for run in (net, twin):
            y, expected = run(x), before(x)
            assert torch.equal(y, expected) and y.any(), kind
            got = torch.autograd.grad(weighted(y), list(run.parameters()))
            for a in got:  # parameters are in a different order
                wanted = torch.autograd.grad(weighted(before(x)), list(before.parameters()))
                assert any(a.shape == b.shape and torch.allclose(a, b, rtol=1e-8, atol=1e-10) for b in wanted), kind
        assert snn.fuse(net, x, recompute=True) == []


@pytest.mark.parametrize("kind, recompute", [("add", False), ("in place", False), ("iand", True)])
def test_a_network_with_residuals_compiles_without_a_break(kind, recompute):
    torch.compiler.reset()
    net, x = nn.Sequential(Block(kind)), spikes(4, 2, C, 6, 6)
    assert snn.fuse(net, x, recompute=recompute) == ["0.fire1", "0.fire2"] and net[0].fire2.residual
    for some in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        compiled = torch.compile(some, fullgraph=True, backend="aot_eager")
        y, expected = compiled(x), net(x)
        assert torch.equal(y, expected) and y.any()
        gradients = [torch.autograd.grad(weighted(y), list(model.parameters())) for y, model in ((y, some), (expected, net))]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


def test_the_input_of_a_product_decides_its_bits(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layer = lambda n=4: snn.TimeDistributed(nn.Conv2d(n, 4, 1), nn.BatchNorm2d(4))
            self.layers = nn.ModuleList([layer(3)] + [layer() for _ in range(7)])
            self.neurons = nn.ModuleList([snn.IF() for _ in range(8)])
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            go = lambda i, x: self.neurons[i](self.layers[i](x))
            s = go(0, x)  # any values
            t = go(1, s)  # 0 and 1
            s = go(2, s + t)  # 0, 1 and 2
            s = go(3, nn.functional.max_pool2d(s.flatten(0, 1), 2).unflatten(0, s.shape[:2]))
            s = go(4, self.drop(s))  # scaled during training
            s = go(5, 2 * s)
            s = go(6, nn.functional.dropout(s, 0.5, self.training))
            return go(7, torch.cat([s, s.clone()], 2)[:, :, :4] * t[:, :, :, :1, :1])

    net = Net().to(device)
    snn.fuse(net, torch.randn(2, 1, 3, 8, 8, device=device), recompute=True)
    kept = [module.__dict__["_spikeforge_bits"] for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert kept == [0, 1, 4, 1, 0, 0, 0, 1]
    net.train()(torch.randn(2, 2, 3, 8, 8, device=device)).sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


def test_a_training_step_that_recomputes_is_captured(device):
    if device.type == "cpu":
        pytest.skip("needs a CUDA device: a CUDA graph")
    net = nn.Sequential(snn.TimeDistributed(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), snn.LIF(), snn.TimeDistributed(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)), snn.LIF()).to(device)
    x = torch.randn(4, 2, 3, 8, 8, device=device)
    assert len(snn.fuse(net, x, recompute=True)) == 2
    twin, side = copy.deepcopy(net), torch.cuda.Stream()
    step = lambda net: weighted(net(x)).backward()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(net)
    torch.cuda.current_stream().wait_stream(side)
    net.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(net)
    for p in net.parameters():
        p.grad.zero_()
    graph.replay()
    step(twin)
    for a, b in zip(net.parameters(), twin.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_the_page_fuses_any_forward(capsys):
    names = dict(torch=torch, snn=snn)
    exec(code("fuse any forward"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("['1', '2.neuron']") and "residual='add', recompute=True" in printed


def test_recompute_raises():
    refused(ValueError, "fuse: recompute=True needs inputs", lambda: snn.fuse(nn.Sequential(snn.LIF()), recompute=True))
    with pytest.raises(TypeError, match="fuse: recompute must be True or False, but is 'a'"):
        snn.fuse(nn.Sequential(snn.LIF()), torch.ones(1, 1, 1), recompute="a")
    with pytest.raises(TypeError, match="BatchNormNeuron: recompute must be True or False, but is 1"):
        snn.BatchNormNeuron(nn.BatchNorm1d(3), snn.LIF(), recompute=1)


def test_a_look_leaves_states_and_modes(device):
    net = nn.Sequential(snn.TimeDistributed(nn.Linear(4, 4), nn.BatchNorm1d(4)), snn.LIF(stateful=True)).to(device)
    x = torch.randn(3, 2, 4, device=device)
    net(x)
    state = net[1]._memory.states["v"]
    norms, neurons = [net[0].module[1]], [net[1]]
    assert watch.watched(net, (x,), norms, neurons).chains(net, (x,)) == [(norms[0], None, neurons[0])]
    assert net[1]._memory.states["v"] is state and all(m.training for m in net.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
