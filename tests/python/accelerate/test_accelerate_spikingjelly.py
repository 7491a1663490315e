"""accelerate on SpikingJelly 2.0: networks, including SpikingJelly's own, agree with the original networks."""

import copy
import importlib.util
import json
import pickle
import sys

import pytest
import torch
from loops import refused
from accelerated import assert_restored_as_it_was, close
from conftest import REPOSITORY
from documentation import PAGES, code
from torch import nn

jelly = pytest.importorskip("spikingjelly", reason="spikingjelly is not installed")
from spikingjelly.activation_based import base, functional, layer, neuron, surrogate  # noqa: E402

import spikeforge  # noqa: E402
from spikeforge.accelerate import Report, restore  # noqa: E402

EXACT = {
    "if": lambda: neuron.IFNode(v_threshold=0.9),
    "if, soft": lambda: neuron.IFNode(v_reset=None, surrogate_function=surrogate.ATan()),
    "lif": lambda: neuron.LIFNode(),
    "lif, tau 3": lambda: neuron.LIFNode(tau=3.0, v_reset=-0.1, detach_reset=True),
    "lif, tau 1.7, soft": lambda: neuron.LIFNode(tau=1.7, decay_input=False, v_reset=None, v_threshold=0.7),
    "plif": lambda: neuron.ParametricLIFNode(init_tau=2.3),
    "plif, soft": lambda: neuron.ParametricLIFNode(init_tau=1.4, decay_input=False, v_reset=None, v_threshold=0.7),
    "qif": lambda: neuron.QIFNode(),
    "qif, tau 3.1": lambda: neuron.QIFNode(tau=3.1, v_reset=None, detach_reset=True, v_c=0.7, v_rest=0.1),
    "izhikevich": lambda: neuron.IzhikevichNode(a=0.1, b=0.2),
    "izhikevich, tau 3.3": lambda: neuron.IzhikevichNode(tau=3.3, tau_w=5.0, a=0.1, b=0.2, w_rest=0.1, v_reset=None),
    "klif": lambda: neuron.KLIFNode(tau=3.0),
    "klif, scaled": lambda: neuron.KLIFNode(scale_reset=True, v_reset=None, v_threshold=0.6),
    "cuba": lambda: neuron.CUBALIFNode(v_threshold=0.8),
    "half threshold": lambda: neuron.HalfThresholdIFNode(v_threshold=1.2),
    "ilif": lambda: neuron.ILIFNode(v_threshold=0.9),
    "ilif, window": lambda: neuron.ILIFNode(
        tau=3.1, surrogate_function=surrogate.MultiLevelSpikeCount(2, grad_window=(-0.5, 2.5)), detach_reset=True),
    "ternary if": lambda: neuron.TernaryIFNode(v_threshold=0.8),
    "ternary if, soft": lambda: neuron.TernaryIFNode(v_reset=None, surrogate_function=surrogate.ATan()),
    "ternary lif": lambda: neuron.TernaryLIFNode(tau=3.0, v_threshold=0.6, v_reset=-0.1),
    "ternary lif, soft": lambda: neuron.TernaryLIFNode(tau=3.0, decay_input=False, v_reset=None, detach_reset=True),
    "raf": lambda: neuron.RAFNode(v_threshold=0.7),
    "raf, soft": lambda: neuron.RAFNode(b=-0.1, omega=0.8, dt=0.5, v_threshold=0.3, v_reset=None, detach_reset=True),
    "simple if": lambda: neuron.SimpleIFNode(v_threshold=0.8, v_reset=None),
    "simple lif": lambda: neuron.SimpleLIFNode(tau=3.1, decay_input=True, v_reset=-0.1, v_threshold=0.6),
    "simple lif, no decay": lambda: neuron.SimpleLIFNode(tau=3.1, decay_input=False, detach_reset=True),
    "activation aware": lambda: neuron.ActivationAwareIFNode(torch.linspace(0.6, 1.2, 30), 0.1),
    "activation aware, hard": lambda: neuron.ActivationAwareIFNode(
        torch.linspace(0.6, 1.2, 4), torch.linspace(-0.2, 0.2, 4), channel_dim=-2, v_reset=0.1, detach_reset=True),
    "liaf": lambda: neuron.LIAFNode(torch.relu, True, tau=3.0),
    "liaf, module": lambda: neuron.LIAFNode(nn.ReLU(), False, v_reset=None, detach_reset=True),
    "sltt": lambda: neuron.SLTTLIFNode(tau=3.0, detach_reset=False),
    "sltt, evaluation": lambda: neuron.SLTTLIFNode(tau=3.0, v_reset=None).eval(),
}
ONLY_STEPS = ("liaf", "liaf, module", "sltt", "sltt, evaluation")
IN_THE_LAST_PLACE = {"eif": lambda: neuron.EIFNode(delta_T=1.2), "clif": lambda: neuron.ComplementaryLIFNode(tau=2.5)}
SURROGATES = [
    surrogate.Sigmoid(3.0), surrogate.ATan(1.5), surrogate.PiecewiseQuadratic(0.8), surrogate.PiecewiseExp(1.3),
    surrogate.SoftSign(1.7), surrogate.SuperSpike(1.2), surrogate.Erf(1.1), surrogate.PiecewiseLeakyReLU(0.7, 0.02),
    surrogate.S2NN(3.0, 0.9), surrogate.QPseudoSpike(2.5), surrogate.LeakyKReLU(0.1, 0.9), surrogate.FakeNumericalGradient(0.4),
    surrogate.LogTailedReLU(0.1), surrogate.NonzeroSignLogAbs(1.2), surrogate.SquarewaveFourierSeries(3, 6.0),
    surrogate.Rect(0.9), surrogate.DeterministicPass(),
]


def both(make, device, mode="m", **attributes):
    """Returns a node and an accelerated copy; on a GPU in float64: SpikingJelly's kernels divide approximately."""
    node = make().to(device)
    node = node.double() if device.type == "cuda" else node
    node.step_mode = mode
    for name, value in attributes.items():
        setattr(node, name, value)
    fused = copy.deepcopy(node)
    report = spikeforge.accelerate(fused)
    assert len(report.replaced) == 1 and not report.left, report
    return node, fused


def equal(got, wanted):
    """Compares bits; on a GPU within rounding, since torch's kernels multiply by the reciprocal of a number."""
    torch.testing.assert_close(got, wanted, rtol=1e-12 * got.is_cuda, atol=1e-12 * got.is_cuda)


def inputs(mode, device, calls=3):
    shape = (5, 4, 30) if mode == "m" else (4, 30)
    dtype = torch.float64 if device.type == "cuda" else torch.float32
    return [0.4 + 1.2 * torch.randn(shape, device=device, dtype=dtype) for _ in range(calls)]


def run(node, xs):
    """Returns spikes and states of several calls with continued states, and the gradients of a random sum of them."""
    leaves = [x.clone().requires_grad_() for x in xs]
    spikes = torch.stack([node(x) for x in leaves])
    states = [state for state in node._memories.values() if torch.is_tensor(state)]
    generator = torch.Generator(spikes.device).manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator, device=y.device, dtype=y.dtype) for y in (spikes, *states)]
    total = sum((y * weight).sum() for y, weight in zip((spikes, *states), weights))
    return spikes, states, torch.autograd.grad(total, [*leaves, *node.parameters()])


@pytest.mark.parametrize("name, mode", [
    (name, mode) for name in (*EXACT, *IN_THE_LAST_PLACE) for mode in ("s", "m")[: 1 + (name not in ONLY_STEPS)]
])
def test_spikes_states_and_gradients_are_those_of_the_node(name, mode, device):
    make = {**EXACT, **IN_THE_LAST_PLACE}[name]
    stored = {"store_v_seq": True} if name != "clif" and hasattr(make(), "store_v_seq") else {}
    node, fused = both(make, device, mode, **stored)
    xs = inputs(mode, device)
    spikes, states, gradients = run(node, xs)
    fused_spikes, fused_states, fused_gradients = run(fused, xs)
    assert 0.01 < (spikes != 0).float().mean() < 0.95
    equal(fused_spikes, spikes)
    for got, wanted in zip(fused_states, states):
        if name in EXACT and device.type == "cpu":
            assert torch.equal(got, wanted)
        else:
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    if stored and (mode == "m" or isinstance(node, neuron.BaseNode)):
        assert fused.v_seq.shape == node.v_seq.shape
        torch.testing.assert_close(fused.v_seq, node.v_seq, rtol=1e-5, atol=1e-6)
    for number, (got, wanted) in enumerate(zip(fused_gradients, gradients)):
        close(got, wanted, f"gradient {number}")
    assert not any(t._is_view() for t in (fused(xs[0].requires_grad_()), *fused_states)), "detach_() would fail"


@pytest.mark.parametrize("function", SURROGATES, ids=lambda function: type(function).__name__)
def test_every_surrogate_has_the_gradient_of_the_node(function, device):
    for kind, options in ((neuron.IFNode, {}), (neuron.LIFNode, {"tau": 3.0})):
        node, fused = both(lambda: kind(surrogate_function=function, **options), device)
        xs = inputs("m", device, calls=1)
        (spikes, _, wanted), (fused_spikes, _, got) = run(node, xs), run(fused, xs)
        assert torch.equal(fused_spikes, spikes) and wanted[0].any()
        close(got[0], wanted[0], "gradient of x")


def test_complementary_neurons_store_both_states_and_have_no_surrogate_in_evaluation():
    node, fused = both(IN_THE_LAST_PLACE["clif"], torch.device("cpu"), store_state_seqs=True)
    x = inputs("m", torch.device("cpu"), calls=1)[0].requires_grad_()
    for training in (True, False):
        node.train(training)
        fused.train(training)
        functional.reset_net(node)
        functional.reset_net(fused)
        wanted, got = node(x), fused(x)
        assert torch.equal(got, wanted)
        torch.testing.assert_close(fused.state_seqs, node.state_seqs, rtol=1e-5, atol=1e-6)
        gradients = [torch.autograd.grad(n.v.sum(), x, retain_graph=True)[0] for n in (node, fused)]
        close(gradients[1], gradients[0], "gradient of v")


@pytest.mark.parametrize("channels", [None, 3])
def test_gated_neurons_of_images_are_those_of_the_node(channels, device):
    """Other inputs, which SpikingJelly's node makes 4-dimensional, run its own code."""
    make = lambda: neuron.GatedLIFNode(T=4, inplane=channels)
    node, fused = (n.double() for n in both(make, device))
    with torch.no_grad():
        for parameter, other in zip(node.parameters(), fused.parameters()):
            parameter.copy_(0.5 * torch.randn_like(parameter))
            other.copy_(parameter)
    xs = [1.5 * torch.randn(4, 2, 3, 5, 5, device=device, dtype=torch.float64) for _ in range(2)]
    (spikes, states, gradients), (fused_spikes, fused_states, fused_gradients) = run(node, xs), run(fused, xs)
    assert 0.01 < spikes.mean() < 0.9 and torch.equal(fused_spikes, spikes)
    for got, wanted in zip((*fused_states, *fused_gradients), (*states, *gradients), strict=True):
        close(got, wanted, "a state or a gradient")
    module = spikeforge.nn.GatedLIF(steps=4, channels=channels).to(device, torch.float64)
    module.load_state_dict(node.state_dict())
    assert torch.equal(module(xs[0]), spikes[0])
    wide = torch.randn(4, 2, 3, 3, device=device, dtype=torch.float64)
    if channels is None:
        functional.reset_net(node), functional.reset_net(fused)
        assert torch.equal(fused(wide), node(wide))
    functional.reset_net(node.float()), functional.reset_net(fused.float())
    assert torch.equal(fused(xs[0].float()), node(xs[0].float()))


@pytest.mark.parametrize("decode", [None, "max-mem", "max-abs-mem", "mean-mem", "last_mem"])
@pytest.mark.parametrize("make", [neuron.NonSpikingIFNode, lambda decode: neuron.NonSpikingLIFNode(3.0, decode)])
def test_integrators_decode_the_potentials_of_the_node(make, decode, device):
    node, fused = both(lambda: make(decode=decode), device)
    x = inputs("m", device, calls=1)[0]
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    wanted, got = node(leaves[0]), fused(leaves[1])
    assert type(got) is type(wanted)
    equal(fused.v, node.v)
    (wanted, got) = (torch.stack(y) if isinstance(y, list) else y for y in (wanted, got))
    equal(got, wanted)
    gradients = [torch.autograd.grad(y.sin().sum(), leaf)[0] for y, leaf in ((wanted, leaves[0]), (got, leaves[1]))]
    close(gradients[1], gradients[0], "gradient of x")


@pytest.mark.parametrize("mode", ["s", "m"])
def test_bipolar_neurons_run_without_gradients(mode):
    node, fused = both(lambda: neuron.STBIFNode(0.3, level=8, sym=True), torch.device("cpu"), mode)
    for x in inputs(mode, torch.device("cpu")):
        with torch.no_grad():
            wanted, got = node(x), fused(x)
        assert torch.equal(got, wanted) and len(wanted.unique()) == 3
        assert all(torch.equal(getattr(fused, name), getattr(node, name)) for name in node._memories)
    refused(RuntimeError, "do not support autograd", lambda: fused(x.requires_grad_()))


def test_sliding_neurons_have_the_spikes_of_the_node(device):
    node, fused = both(lambda: neuron.SlidingPSN(k=3), device)
    xs = [2 * x for x in inputs("m", device, calls=2)]
    (spikes, _, gradients), (fused_spikes, _, fused_gradients) = run(node, xs), run(fused, xs)
    assert 0.01 < spikes.mean() < 0.9 and torch.equal(fused_spikes, spikes) and fused.queue == []
    for number, (got, wanted) in enumerate(zip(fused_gradients, gradients, strict=True)):
        close(got, wanted, f"gradient {number}")
    fused.step_mode = node.step_mode = "s"
    for row in xs[0]:
        assert torch.equal(fused(row), node(row)) and len(fused.queue) == len(node.queue)


def test_normalisations_before_these_neurons_stay_right():
    """The normalisation is fused, or runs before the neuron; outputs that are not 0 and 1 are not saved as bits."""
    x = torch.randn(4, 2, 3, 6, 6)
    for make in (lambda: neuron.ILIFNode(), lambda: neuron.TernaryLIFNode(v_threshold=0.5), lambda: neuron.RAFNode(),
                 lambda: neuron.SimpleLIFNode(2.0, True), lambda: neuron.GatedLIFNode(4, 5), lambda: neuron.SlidingPSN(2),
                 lambda: neuron.ActivationAwareIFNode(torch.linspace(0.6, 1.2, 5), channel_dim=-3)):
        net = nn.Sequential(
            layer.Conv2d(3, 5, 3), layer.BatchNorm2d(5), make(), layer.Conv2d(5, 4, 3), layer.BatchNorm2d(4), neuron.IFNode())
        functional.set_step_mode(net, "m")
        fused = copy.deepcopy(net)
        assert len(spikeforge.accelerate(fused).replaced) == 2
        spikeforge.accelerate.layers(fused, x, recompute=True)
        if isinstance(fused[2], (neuron.SimpleLIFNode, neuron.GatedLIFNode)):
            spikeforge.accelerate.layers(fused, x, keep_states=False)
            fused(x), fused(x)
            assert fused[2].v == 0
            spikeforge.accelerate.layers(fused, x, keep_states=True)
        results = []
        for n in (net, fused):
            y = n(x)
            y.sin().sum().backward()
            results.append((y, *(parameter.grad for parameter in n.parameters())))
        assert results[0][0].any()
        for got, wanted in zip(results[1], results[0]):
            torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-3, msg=lambda message: f"{net[2]}: {message}")


# --- SpikingJelly's own networks -------------------------------------------------------------------------------------

def networks():
    from spikingjelly.activation_based.model import sew_resnet, spikformer, spiking_vgg

    node = dict(spiking_neuron=neuron.IFNode, surrogate_function=surrogate.ATan(), detach_reset=True)
    size = dict(T=2, img_size_h=32, img_size_w=32, num_classes=10, embed_dims=64, num_heads=4, depths=2)
    return {
        "SEW-ResNet18": lambda: sew_resnet.sew_resnet18(cnf="ADD", num_classes=10, **node),
        "VGG11": lambda: spiking_vgg.spiking_vgg11_bn(num_classes=10, **node),
        "Spikformer": lambda: spikformer.Spikformer(**size),
    }


def train_step(net, x, labels, terms=None):
    """Returns scores, the spikes of all nodes in order, and all gradients of a step; resets the states. `terms` receives,
    by parameter, the sum of the magnitudes of the terms whose sum is the gradient of a convolution's bias."""
    spikes, hooks = {}, []

    def sum_terms(name, product):
        channels = product.dim() - 3
        others = [d for d in range(product.dim()) if d != channels]
        product.register_hook(lambda grad: terms.update({name: grad.abs().sum(others).max().item()}))

    for name, module in net.named_modules():
        if isinstance(module, neuron.BaseNode):
            hooks.append(module.register_forward_hook(lambda _, __, out, name=name: spikes.update({name: out.detach()})))
        elif terms is not None and isinstance(module, nn.Conv2d) and module.bias is not None:
            hooks.append(module.register_forward_hook(lambda _, __, out, name=name: sum_terms(f"{name}.bias", out)))
    torch.manual_seed(5)  # for dropout
    scores = net(x).mean(0)
    net.zero_grad()
    nn.functional.cross_entropy(scores, labels).backward()
    for hook in hooks:
        hook.remove()
    functional.reset_net(net)
    return scores.detach(), spikes, {name: parameter.grad.clone() for name, parameter in net.named_parameters()}


@pytest.mark.long(but="SEW|Spik")
@pytest.mark.parametrize("name", ["SEW-ResNet18", "VGG11", "Spikformer"])
def test_a_network_of_spikingjelly_has_the_same_spikes_and_gradients(name):
    pytest.importorskip("torchvision", reason="SpikingJelly's models need torchvision")
    net = networks()[name]()
    functional.set_step_mode(net, "m")
    x, labels = torch.randn(2, 2, 3, 32, 32), torch.tensor([3, 7])
    keys, parameters = list(net.state_dict()), list(net.parameters())
    running = copy.deepcopy(dict(net.named_buffers()))
    terms = {}
    scores, spikes, gradients = train_step(net, x, labels, terms)
    net.load_state_dict({**net.state_dict(), **running})

    report = spikeforge.accelerate(net)
    assert len(report.replaced) == len(spikes) and not report.left
    assert list(net.state_dict()) == keys
    assert all(a is b for a, b in zip(net.parameters(), parameters))
    fused_scores, fused_spikes, fused_gradients = train_step(net, x, labels)
    assert sum(map(torch.count_nonzero, spikes.values())) > 0
    for node in spikes:
        assert torch.equal(fused_spikes[node], spikes[node]), node
    assert torch.equal(fused_scores, scores)
    for parameter in gradients:  # the exact gradient of a bias before a normalisation is 0
        close(fused_gradients[parameter], gradients[parameter], parameter, terms.get(parameter, 0))


def benchmark():
    spec = importlib.util.spec_from_file_location("networks", REPOSITORY / "benchmarks" / "networks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_networks_of_the_benchmark_are_those_of_spikingjelly():
    pytest.importorskip("torchvision", reason="SpikingJelly's models need torchvision")
    built, own = benchmark(), networks()
    x = torch.randn(2, 3, 32, 32)
    resnet, spikformer = built.sew_resnet18(2, 32, 10), built.spikformer_s(2, 32, 10, 64, 4, 2)
    for ours, theirs in ((resnet, own["SEW-ResNet18"]()), (spikformer, own["Spikformer"]())):
        functional.set_step_mode(theirs, "m")
        values = theirs.state_dict().values()
        ours.load_state_dict(dict(zip(ours.state_dict(), values, strict=True)))
        wanted = theirs(x.repeat(2, 1, 1, 1, 1)).mean(0)
        assert torch.equal(ours(x), wanted) and wanted.any()
    leaves = lambda net: [type(module) for module in net.modules() if not list(module.children())]
    kinds = leaves(built.spiking_vgg11(2, 32, 10)), leaves(own["VGG11"]())
    assert [kind for kind in kinds[0] if kind is not nn.Flatten] == kinds[1]


def test_the_benchmark_counts_on_every_form(capsys, monkeypatch, tmp_path):
    options = "--device cpu --networks Spikformer-S --batch 1 --size 32 --steps 1 --rounds 1 --steps-per-round 1"
    file = tmp_path / "times.json"
    monkeypatch.setattr(sys, "argv", ["networks.py", *options.split(), "--layouts", "channels-last", "--json", str(file)])
    module = benchmark()
    make = lambda steps, size, classes: module.spikformer_s(steps, size, classes, 32, 4, 1)
    monkeypatch.setitem(module.NETWORKS, "Spikformer-S", make)
    module.main()
    rows = json.loads(file.read_text())["rows"]
    assert [row["form"] for row in rows] == [form for form in module.FORMS if form != "its Triton"]
    assert all(row["milliseconds"] > 0 for row in rows) and "times faster" in capsys.readouterr().out


# --- training, states, copies and restore ----------------------------------------------------------------------------

def network():
    return nn.Sequential(layer.Linear(12, 20), neuron.LIFNode(tau=3.0), layer.Linear(20, 8), neuron.ParametricLIFNode())


def test_an_optimiser_continues_and_training_gives_the_same_weights():
    net = network()
    functional.set_step_mode(net, "m")
    fused = copy.deepcopy(net)
    optimisers = [torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9) for n in (net, fused)]
    x, labels = 2 * torch.randn(6, 16, 12), torch.randint(8, (16,))
    for step in range(6):
        if step == 3:
            spikeforge.accelerate(fused)
        for n, optimiser in zip((net, fused), optimisers):
            optimiser.zero_grad()
            nn.functional.cross_entropy(n(x).mean(0), labels).backward()
            optimiser.step()
            functional.reset_net(n)
    for (name, wanted), got in zip(net.named_parameters(), fused.parameters()):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6, msg=lambda message: f"{name}: {message}")


def test_states_live_from_call_to_call_and_spikingjelly_resets_and_detaches_them():
    net, fused = network(), network()
    fused.load_state_dict(net.state_dict())
    net[1](torch.zeros(3, 20))
    fused[1](torch.zeros(3, 20))
    fused[1].v = net[1].v = torch.rand(3, 20)  # states exist before accelerate()
    spikeforge.accelerate(fused)
    x = 2 * torch.randn(3, 12)
    assert torch.equal(fused(x), net(x)) and torch.equal(fused[1].v, net[1].v)
    functional.detach_net(fused)
    assert not fused[1].v.requires_grad and torch.equal(fused[1].v, net[1].v)
    functional.reset_net(fused)
    assert fused[1].v == 0.0
    assert [name for name, _ in base.named_memories(fused)] == [name for name, _ in base.named_memories(net)]


def test_a_state_of_another_shape_restarts_as_in_spikingjelly():
    node, fused = both(lambda: neuron.LIFNode(v_reset=-0.2), torch.device("cpu"))
    for shape in ((4, 3, 7), (4, 5, 7), (2, 5, 7)):
        x = 2 * torch.randn(shape)
        assert torch.equal(fused(x), node(x)) and torch.equal(fused.v, node.v)


def test_functional_forward_passes_states():
    node, fused = both(lambda: neuron.LIFNode(tau=3.0), torch.device("cpu"))
    call, fused_call = base.to_functional_forward(node), base.to_functional_forward(fused)
    state, fused_state = (0.0,), (0.0,)
    for _ in range(3):
        x = 2 * torch.randn(4, 3, 7)
        (wanted,), state = call((x,), state)
        (got,), fused_state = fused_call((x,), fused_state)
        assert torch.equal(got, wanted) and torch.equal(fused_state[0], state[0])
    assert fused.v == 0.0


def test_isinstance_repr_hooks_copies_and_pickles_stay():
    net = network()
    before = repr(net)
    calls = []
    net[1].register_forward_hook(lambda *_: calls.append("hook"))
    spikeforge.accelerate(net)
    assert repr(net) == before
    assert isinstance(net[1], neuron.LIFNode) and isinstance(net[1], base.MemoryModule)
    x = 2 * torch.randn(3, 12)
    with torch.no_grad():  # a state with an autograd graph cannot be copied, in SpikingJelly either
        wanted = net(x)
    assert calls == ["hook"]
    net[1]._forward_hooks.clear()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert len(spikeforge.accelerate(other).already) == 2
        functional.reset_net(other)
        assert torch.equal(other(x), wanted)
        assert restore(other) == ["1", "3"] and type(other[1]) is neuron.LIFNode


def test_restore_undoes_it_with_states_and_a_second_call_finds_nothing():
    assert_restored_as_it_was(network(), ["1", "3"])
    net = network()
    spikeforge.accelerate(net)
    net(2 * torch.randn(3, 12))
    v = net[1].v
    restore(net)
    assert net[1].v is v


def test_constants_are_read_at_each_call():
    node, fused = both(lambda: neuron.LIFNode(tau=3.0), torch.device("cpu"))
    x = 2 * torch.randn(5, 4, 30)
    for name, value in dict(v_threshold=0.5, tau=2.0, v_reset=None, detach_reset=True, store_v_seq=True, step_mode="s").items():
        for n in (node, fused):
            setattr(n, name, value)
            functional.reset_net(n)
        assert torch.equal(fused(x), node(x)) and torch.equal(fused.v, node.v), name


def test_a_call_without_a_fused_form_runs_as_before():
    class Own(surrogate.SurrogateFunctionBase):
        @staticmethod
        def spiking_function(x):
            return (x > 0.2).to(x)

    node, fused = both(lambda: neuron.LIFNode(tau=3.0), torch.device("cpu"))
    x = 2 * torch.randn(5, 4, 30)
    smooth = surrogate.Sigmoid(spiking=False)
    for change in (dict(surrogate_function=Own()), dict(surrogate_function=smooth),
                   dict(surrogate_function=Own(), v_threshold=torch.rand(30)), dict(store_v_seq=True)):
        for n in (node, fused):
            for name, value in change.items():
                setattr(n, name, value)
            functional.reset_net(n)
        assert torch.equal(fused(x), node(x)) and torch.equal(fused.v, node.v)
    assert torch.equal(fused.v_seq, node.v_seq)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_have_the_spikes_of_float32(dtype, device):
    node, fused = both(lambda: neuron.LIFNode(tau=2.0), torch.device("cpu"))
    x = (2 * torch.randn(6, 4, 30)).to(dtype)
    wanted = node(x.float())
    got = fused.to(device)(x.to(device))
    assert got.dtype == dtype and torch.equal(got.cpu().float(), wanted)
    assert fused.v.dtype == torch.float32 and torch.equal(fused.v.cpu(), node.v)


def test_the_program_of_the_page_runs_and_prints_the_report_shown_there(capsys):
    exec(code("accelerate a network"), {})
    shown = PAGES["docs/accelerate.md"].split("```\n")
    assert capsys.readouterr().out in shown


@pytest.mark.parametrize("make", [lambda: neuron.LIFNode(tau=3.0), lambda: neuron.ParametricLIFNode(), lambda: neuron.IFNode()])
@pytest.mark.parametrize("mode", ["s", "m"])
def test_torch_compile_has_no_graph_break(make, mode):
    torch.compiler.reset()
    net = nn.Sequential(layer.Linear(12, 20, step_mode=mode), make())
    functional.set_step_mode(net, mode)
    spikeforge.accelerate(net)
    compiled = torch.compile(copy.deepcopy(net), fullgraph=True, backend="aot_eager")
    for _ in range(2):  # the second call starts from a state
        x = 2 * torch.randn(3, 5, 12)
        assert torch.equal(compiled(x), net(x))


# --- unsupported modules ---------------------------------------------------------------------------------------------

class OwnBase(neuron.BaseNode):
    def single_step_functional_forward(self, inputs, states, **kwargs):
        return (inputs[0],), states


class OwnCharge(neuron.LIFNode):
    def neuronal_charge(self, x):
        self.v = self.v + x


class OwnStep(neuron.LIFNode):
    def single_step_functional_forward(self, inputs, states, **kwargs):
        return (inputs[0],), states


class OwnName(neuron.LIFNode):
    def extra_repr(self):
        return "mine"


class OwnSurrogate(surrogate.Sigmoid):
    pass


def with_own_forward():
    node = neuron.LIFNode()
    node.forward = lambda x: x
    return node


def changed(node, **attributes):
    for name, value in attributes.items():
        setattr(node, name, value)
    return node


LEFT = {
    "defines its own neuronal_charge": OwnCharge,
    "defines its own single_step_functional_forward": OwnStep,
    "defines its own forward": with_own_forward,
    "surrogate OwnSurrogate": lambda: neuron.LIFNode(surrogate_function=OwnSurrogate()),
    "surrogate PoissonPass": lambda: neuron.LIFNode(surrogate_function=surrogate.PoissonPass()),
    "spiking=False": lambda: neuron.LIFNode(surrogate_function=surrogate.Sigmoid(spiking=False)),
    "a subclass defines its dynamics": OwnBase,
    "one product over the steps": lambda: neuron.PSN(T=4),
    "SpikingJelly evaluates its equations": lambda: changed(neuron.LIAFNode(torch.relu, False), step_mode="m"),
    "its act is not an activation": lambda: neuron.LIAFNode(torch.square, False),
    "without decay_input it starts in double precision": lambda: neuron.SimpleLIFNode(2.0, False, v_reset=0.1),
    "its v_reset is None": lambda: neuron.SimpleLIFNode(2.0, True, v_reset=None),
    "channel_dim counts from the front": lambda: neuron.ActivationAwareIFNode(channel_dim=1),
    "surrogate Sigmoid is not one of": lambda: changed(neuron.ILIFNode(), surrogate_function=surrogate.Sigmoid()),
    "surrogate MultiLevelSpikeCount is not": lambda: neuron.IFNode(surrogate_function=surrogate.MultiLevelSpikeCount(4)),
    "spikeforge.trace.from_core": lambda: neuron.FlexSN(lambda x, v: (x, v), num_states=1),
}


@pytest.mark.parametrize("why", LEFT)
def test_a_neuron_that_is_not_known_for_sure_is_left_alone(why):
    node = LEFT[why]()
    cls = type(node)
    report = spikeforge.accelerate(nn.Sequential(node, neuron.IFNode()))
    (entry,) = report.left
    assert why in entry.what and entry.name == "0" and type(node) is cls
    assert [entry.name for entry in report.replaced] == ["1"]


def test_every_node_of_spikingjelly_is_replaced_or_left_for_a_reason():
    from spikeforge.accelerate.spikingjelly import REASONS, RULES

    nodes = {kind.__name__: kind for kind in vars(neuron).values() if isinstance(kind, type) and issubclass(kind, nn.Module)}
    assert len(nodes) > 40
    assert {name for name, kind in nodes.items() if kind in RULES} | REASONS.keys() == nodes.keys()
    assert not {kind.__name__ for kind in RULES} & REASONS.keys()
    page = PAGES["docs/accelerate.md"]
    assert not [name for name in nodes if f"`{name}`" not in page]


def test_a_subclass_with_the_same_dynamics_is_replaced():
    node = OwnName(tau=3.0)
    wanted = copy.deepcopy(node)
    assert spikeforge.accelerate(node).replaced
    x = 2 * torch.randn(4, 30)
    assert "mine" in repr(node) and isinstance(node, OwnName) and torch.equal(node(x), wanted(x))


def test_the_report_reads_well():
    first = layer.Linear(3, 3), neuron.IFNode(surrogate_function=surrogate.ATan())
    net = nn.Sequential(*first, *[neuron.LIFNode() for _ in range(40)], OwnCharge(), neuron.EIFNode())
    report = spikeforge.accelerate(net)
    assert isinstance(report, Report) and len(report) == 43 and [e.kind for e in report][0] == "IFNode"
    text = str(report)
    assert "42 of 43 neurons of SpikingJelly 2.0.0 run as fused operators" in text
    assert all(words in text for words in ("integrate_and_fire, atan(2)", "left as they are", "float16", "exponentials"))
    assert max(map(len, text.splitlines())) <= 130 and " more" in text
    assert "(42 of them before this call)" in str(spikeforge.accelerate(net))
    assert "no neuron of SpikingJelly" in str(spikeforge.accelerate(nn.Linear(2, 2)))
    refused(TypeError, "accelerate: net must be a torch.nn.Module, but is list", lambda: spikeforge.accelerate([net]))
