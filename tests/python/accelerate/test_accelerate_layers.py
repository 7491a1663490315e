"""accelerate.layers fuses batch normalisations and poolings of SpikingJelly. The oracle is the original network."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loops import refused
from accelerated import close
from documentation import PAGES, code
from torch import nn

jelly = pytest.importorskip("spikingjelly", reason="spikingjelly is not installed")
from spikingjelly.activation_based import functional, layer, neuron, surrogate  # noqa: E402
from test_accelerate_spikingjelly import networks, train_step  # noqa: E402

import spikeforge  # noqa: E402
from spikeforge.accelerate import layers, restore  # noqa: E402


def node(**options):
    return neuron.LIFNode(detach_reset=True, surrogate_function=surrogate.ATan(), step_mode="m", **options)


def small(*more):
    """Returns a network of torch's modules and of SpikingJelly's modules with a step mode."""
    net = nn.Sequential(
        layer.Conv2d(2, 4, 3, padding=1), layer.BatchNorm2d(4), node(), layer.MaxPool2d(2),
        layer.SeqToANNContainer(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)), node(tau=3.0), *more,
    )
    for norm in (net[1], net[4][1]):
        nn.init.constant_(norm.bias, 2.0)  # so that neurons fire in evaluation too
    return functional_m(net)


class Between(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) if self.function else x


def pooled(between=None):
    """Returns a network with max pooling between normalisations and neurons, like the embedding of Spikformer."""

    def stage(inputs, outputs, window):
        norm = nn.BatchNorm2d(outputs)
        nn.init.normal_(norm.weight), nn.init.constant_(norm.bias, 2.0)
        parts = nn.Conv2d(inputs, outputs, 3, 1, 1), norm, nn.MaxPool2d(*window)
        return nn.Sequential(layer.SeqToANNContainer(*parts), Between(between), node())

    return functional_m(nn.Sequential(stage(2, 4, (3, 2, 1)), stage(4, 6, (2, 1))))


def functional_m(net):
    functional.set_step_mode(net, "m")
    return net


def accelerated(net):
    spikeforge.accelerate(net)
    return net


def step(net, x):
    y = net(x)
    parameters = list(net.parameters())
    gradients = torch.autograd.grad((y * torch.linspace(0.5, 1.5, y.numel(), device=y.device).view_as(y)).sum(), parameters)
    functional.reset_net(net)
    return y.detach(), gradients, {name: buffer.clone() for name, buffer in net.named_buffers()}


def assert_alike(got, wanted):
    assert torch.equal(got[0], wanted[0]) and wanted[0].any()
    for i, (a, b) in enumerate(zip(got[1], wanted[1])):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=str(i))
    for name, buffer in wanted[2].items():
        torch.testing.assert_close(got[2][name], buffer, rtol=1e-6, atol=1e-7)


@pytest.mark.long(but="SEW")
@pytest.mark.parametrize("name, pairs, pools", [("SEW-ResNet18", 20, 1), ("VGG11", 8, 5), ("Spikformer", 13, 4)])
def test_networks_of_spikingjelly_go_on_as_they_were(name, pairs, pools):
    pytest.importorskip("torchvision", reason="SpikingJelly's models need torchvision")
    net = functional_m(networks()[name]())
    spikeforge.accelerate(net)
    x, labels = torch.randn(2, 2, 3, 32, 32), torch.tensor([3, 7])
    keys, parameters, modules = list(net.state_dict()), list(net.parameters()), list(net.modules())
    # Some are in evaluation mode: neurons share their default surrogate with those of other networks.
    training = [module.training for module in modules]
    before = copy.deepcopy(dict(net.named_buffers()))
    scores, spikes, gradients = train_step(net, x, labels)
    after = copy.deepcopy(dict(net.named_buffers()))
    net.load_state_dict({**net.state_dict(), **before})

    done = layers(net, x)
    assert len(done.normalised) == pairs and len(done.pooled) == pools, done
    assert all(torch.equal(buffer, before[key]) for key, buffer in net.named_buffers())  # buffers are unchanged
    assert [module.training for module in net.modules()] == training
    assert list(net.state_dict()) == keys and all(a is b for a, b in zip(net.parameters(), parameters))
    assert all(a is b for a, b in zip(net.modules(), modules))
    got_scores, got_spikes, got_gradients = train_step(net, x, labels)
    assert torch.equal(got_scores, scores) and all(torch.equal(got_spikes[key], spikes[key]) for key in spikes)
    for key in gradients:
        close(got_gradients[key], gradients[key], key)
    for key, buffer in net.named_buffers():
        torch.testing.assert_close(buffer, after[key], rtol=1e-6, atol=1e-7)
    assert layers(net, x) == type(done)((), ())  # a second call finds nothing to fuse


def test_the_report_lists_the_layers_found():
    net = small()
    spikeforge.accelerate(net)
    done = layers(net, torch.rand(2, 1, 2, 8, 8))
    assert done.normalised == (("1", "2"), ("4.1", "5")) and done.pooled == ("3",)
    assert str(done).splitlines()[:2] == ["batch normalisations that run in the pass of a neuron: 2", "  1  in  2"]


def test_the_program_of_the_page_prints_the_output_of_the_page(capsys):
    names = {}
    exec(code("accelerate a network"), names)
    capsys.readouterr()
    for block in ("accelerate layers", "accelerate without states"):
        exec(code(block), names)
        assert capsys.readouterr().out in PAGES["docs/accelerate.md"].split("```\n")


def test_a_step_is_captured_as_on_the_page(device):
    if device.type == "cpu":
        pytest.skip("needs a CUDA device: a CUDA graph")
    import spikeforge.nn as snn

    names = {"torch": torch}
    exec(code("a step as a CUDA graph"), names)
    net = nn.Sequential(snn.BatchNormNeuron(nn.BatchNorm2d(3), snn.LIF()), snn.MaxPool2d(2), nn.Flatten(2), nn.Linear(48, 5)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    images, labels = torch.randn(4, 6, 3, 8, 8, device=device), torch.randint(5, (6,), device=device)
    graph, loss = names["captured_step"](net, optimizer, images, labels)
    losses = []
    for _ in range(20):
        graph.replay()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    twin = copy.deepcopy(net)
    graph.replay()
    with torch.autocast("cuda", torch.float16):
        expected = nn.functional.cross_entropy(twin(images).mean(0), labels)
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-3)


def test_training_evaluation_and_back_again():
    net, x = accelerated(small()), torch.rand(3, 2, 2, 8, 8) * 2
    twin = copy.deepcopy(net)
    layers(net, x)
    for _ in range(3):
        assert_alike(step(net, x), step(twin, x))
    net.eval(), twin.eval()
    assert_alike(step(net, x), step(twin, x))
    restore(net)
    assert type(net[1]) is layer.BatchNorm2d and type(net[3]) is layer.MaxPool2d
    net.train(), twin.train()
    assert_alike(step(net, x), step(twin, x))


@pytest.mark.parametrize("make, name", [(small, "1"), (small, "2"), (pooled, "0.0.1"), (pooled, "0.0.2"), (pooled, "0.2")])
def test_one_part_may_be_restored(make, name):
    net, x = accelerated(make()), torch.rand(3, 2, 2, 8, 8) * 2
    wanted = step(copy.deepcopy(net), x)
    layers(net, x)
    restore(net.get_submodule(name))
    assert_alike(step(net, x), wanted)


def test_copies_and_pickles_are_separate_pairs():
    net, x = accelerated(small()), torch.rand(3, 2, 2, 8, 8) * 2
    wanted = step(copy.deepcopy(net), x)
    layers(net, x)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        with torch.no_grad():
            twin[1].weight.zero_()
            twin[1].bias.fill_(-9)
        assert not twin(x)[:, :, :, 0].isnan().any()
        functional.reset_net(twin)
        assert not list(twin.children())[2](list(twin.children())[1](torch.ones(3, 2, 4, 8, 8))).any()
    assert_alike(step(net, x), wanted)


def test_a_call_that_has_no_fused_form_is_normalised_too():
    net, x = accelerated(small()), torch.rand(3, 2, 2, 8, 8) * 2
    layers(net, x)
    for module in net:
        if isinstance(module, neuron.BaseNode):
            module.surrogate_function = surrogate.PoissonPass()  # runs SpikingJelly's code
            module.surrogate_function.forward = surrogate.ATan().forward
    twin = copy.deepcopy(net)
    restore(twin)
    a, b = net(x), twin(x)
    assert torch.equal(a, b) and a.any()


class Uses(nn.Module):
    """A normalisation whose result has other users too, or is changed in place before the neuron."""

    def __init__(self, use):
        super().__init__()
        self.conv, self.norm, self.node = layer.Conv2d(2, 4, 3), layer.BatchNorm2d(4), node()
        self.use = use

    def forward(self, x):
        return self.use(self.norm(self.conv(x)), self.node)


@pytest.mark.parametrize("use", [
    lambda y, n: n(y) + y, lambda y, n: n(y.relu_()), lambda y, n: n(y * 1), lambda y, n: n(y.mul_(2)),
    lambda y, n: n(y[:, :1]), lambda y, n: n(y.transpose(3, 4)), lambda y, n: n(y) * n(y), lambda y, n: n(y) + y.view(-1)[0],
    lambda y, n: n(y.transpose(0, 1)),
])
def test_a_normalisation_that_feeds_more_than_a_neuron_is_left_alone(use):
    net, x = accelerated(functional_m(Uses(use))), torch.rand(2, 2, 2, 6, 6)
    assert not layers(net, x).normalised


def test_views_between_them_are_no_matter():
    net, x = accelerated(functional_m(Uses(lambda y, n: n(y.flatten(0, 1).view_as(y)) + y.shape[0]))), torch.rand(2, 2, 2, 6, 6)
    wanted = net(x)
    functional.reset_net(net)
    assert layers(net, x).normalised == (("norm", "node"),)
    assert torch.equal(net(x), wanted)


def test_hooks_twins_and_other_modules_are_left_alone():
    x = torch.rand(3, 2, 2, 8, 8)
    hooked = small()
    spikeforge.accelerate(hooked)
    hooked[1].register_forward_hook(lambda *_: None)
    hooked[5].register_forward_pre_hook(lambda *_: None)
    assert not layers(hooked, x).normalised
    plain = small()  # without accelerate()
    assert not layers(plain, x).normalised
    twice = functional_m(nn.Sequential(layer.BatchNorm2d(2), node(), layer.Conv2d(2, 2, 1)))
    twice = nn.Sequential(twice[0], twice[1], twice[2], twice[0], node())
    spikeforge.accelerate(twice)
    assert not layers(twice, x).normalised
    others = nn.ModuleList([nn.MaxPool2d(2, return_indices=True), nn.MaxPool2d(17), nn.MaxPool3d(2), nn.MaxPool1d(2)])
    assert not layers(others).pooled
    refused(TypeError, "accelerate.layers: net must be a torch.nn.Module", lambda: layers("net"))


class Block(nn.Module):
    """A residual block of SEW-ResNet."""

    def __init__(self, kind):
        super().__init__()
        self.conv, self.norm, self.node = layer.Conv2d(4, 4, 3, padding=1), layer.BatchNorm2d(4), node()
        self.shortcut = nn.Sequential(layer.Conv2d(4, 4, 1), layer.BatchNorm2d(4), node())
        self.kind = kind
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.bias, 1.5)

    def forward(self, x):
        s = self.node(self.norm(self.conv(x)))
        r = self.shortcut(x)
        if self.kind == "ADD":
            return s + r
        if self.kind == "in place":
            s += r
            return s
        if self.kind == "AND":
            return s * r
        if self.kind == "IAND":
            return (1.0 - s) * r
        if self.kind == "others in place":
            x = x.clone()
            x += 1
            x *= 2
            return s + x + 0 * r
        if self.kind == "and others":
            s = s + r
            s -= 1
            return s[1:].relu()
        if self.kind == "by its mode":
            return s + r if self.training else s - r
        return s + r if r.sum() > 0 else s + r  # depends on values


@pytest.mark.parametrize("recompute", [False, True])
def test_residuals_are_joined_in_the_neurons_pass(recompute):
    kinds = {"ADD": "add", "in place": "add", "AND": "and", "IAND": "iand", "others in place": "add", "and others": "add", "by its mode": None, "numbers": None}
    for kind, mode in kinds.items():
        net, x = accelerated(functional_m(nn.Sequential(Block(kind))).double()), torch.randint(0, 2, (4, 2, 4, 6, 6)).double()
        twin = copy.deepcopy(net)
        done = layers(net, x, recompute=recompute)
        assert done.joined == ((("0", "0.node", mode),) if mode else ()), kind
        assert done.recomputed == ((("0.conv", 0), ("0.shortcut.0", 0)) if recompute else ())
        assert type(net[0]).__name__ == "Block" and list(net.state_dict()) == list(twin.state_dict())
        older = copy.deepcopy(net)
        if mode:  # the format of pickles of earlier versions
            older[0].__dict__["_spikeforge_source"] = older[0].__dict__.pop("_spikeforge_forward").source
        for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), pickle.loads(pickle.dumps(older))):
            assert_alike(step(copied, x), step(copy.deepcopy(twin), x))
        assert_alike(step(net, x), step(twin, x))
        seen = []
        handle = net[0].node.register_forward_hook(lambda _, __, y: seen.append(y.clone()))
        net.eval()(x), functional.reset_net(net), net.train(), handle.remove()
        assert ((seen[0] == 0) | (seen[0] == 1)).all()  # all values are spikes
        functional.set_step_mode(net, "s"), functional.set_step_mode(twin, "s")
        assert torch.equal(net(x[0]), twin(x[0]))
        functional.reset_net(net), functional.reset_net(twin)
        functional.set_step_mode(net, "m"), functional.set_step_mode(twin, "m")
        restore(net)
        assert type(net[0]) is Block and type(net[0].conv) is layer.Conv2d
        assert_alike(step(net, x), step(twin, x))


class Shortcut(nn.Module):
    """A block of MS-ResNet: the neuron after it reads the sum."""

    def __init__(self, kind):
        super().__init__()
        self.node, self.conv, self.norm = node(), layer.Conv2d(4, 4, 3, padding=1), layer.BatchNorm2d(4)
        self.kind = kind
        nn.init.constant_(self.norm.bias, 1.0)

    def forward(self, x):
        if self.kind == "reads ranks" and x.ndim != 5 and x.dim() != 4:
            raise ValueError(f"x has {x.ndim} dimensions")
        y = self.norm(self.conv(self.node(x)))
        if self.kind == "in place":
            y += x
            return y
        if self.kind == "reversed":
            return x + y
        if self.kind == "broadcast":
            return y + x.mean(1, keepdim=True)
        if self.kind == "copied":
            return (y + x).clone()
        if self.kind == "changed":
            y = y + x
            y *= 2
            return y
        if self.kind == "read twice":
            return y + x + 0 * y
        return y + x


def shortcut(kind="reads ranks"):
    return functional_m(nn.Sequential(layer.Conv2d(2, 4, 1), Shortcut(kind), Shortcut(kind), node()))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind, found", [
    ("sum", True), ("in place", True), ("reversed", True), ("reads ranks", True), ("broadcast", True),
    ("copied", False), ("changed", False), ("read twice", False),
])  # fmt: skip
def test_a_shortcut_before_a_neuron_is_added_in_its_pass(kind, found, recompute, device):
    net, x = accelerated(shortcut(kind).double().to(device)), 2 * torch.rand(3, 2, 2, 6, 6, device=device).double()
    twin, kept = copy.deepcopy(net), copy.deepcopy(net)
    done = layers(net, x, recompute=recompute, shortcuts=True)
    assert done.joined == ((("1", "2.node", "membrane"), ("2", "3", "membrane")) if found else ())
    assert done.normalised == ((("1.norm", "2.node"), ("2.norm", "3")) if found else ())
    layers(kept, x, recompute=recompute, keep_states=False, shortcuts=True)
    with torch.backends.cudnn.flags(allow_tf32=False):
        for _ in range(2):  # the second sequence continues the first
            torch.testing.assert_close(net(x), twin(x))
            torch.testing.assert_close([net[2].node.v, net[3].v], [twin[2].node.v, twin[3].v])
        for one in (net, twin):
            functional.reset_net(one)
        assert torch.equal(kept(x), kept(x))
        for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert_alike(step(copied, x), step(copy.deepcopy(twin), x))
        net.eval(), twin.eval()
        assert_alike(step(copy.deepcopy(net), x), step(copy.deepcopy(twin), x))
        for name, part in (("norm", net[1].norm), ("neuron", net[2].node)):
            seen = []
            handle = part.register_forward_hook(lambda _, given, y: seen.append(given[0] if name == "neuron" else y))
            torch.testing.assert_close(net(x), twin(x))
            other = []
            other_handle = (twin[1].norm if name == "norm" else twin[2].node).register_forward_hook(
                lambda _, given, y: other.append(given[0] if name == "neuron" else y)
            )
            functional.reset_net(net), functional.reset_net(twin)
            twin(x), functional.reset_net(twin), handle.remove(), other_handle.remove()
            torch.testing.assert_close(seen[0], other[0])
        for one in (net, twin):
            one[2].node.store_v_seq = True
        torch.testing.assert_close(net(x), twin(x))
        torch.testing.assert_close(net[2].node.v_seq, twin[2].node.v_seq)
        functional.reset_net(net), functional.reset_net(twin)
        functional.set_step_mode(net, "s"), functional.set_step_mode(twin, "s")
        torch.testing.assert_close(net(x[0]), twin(x[0]))
        functional.reset_net(net), functional.reset_net(twin)
        functional.set_step_mode(net, "m"), functional.set_step_mode(twin, "m")
        restore(net)
        assert type(net[1]) is Shortcut and type(net[1].norm) is layer.BatchNorm2d
        assert_alike(step(net, x), step(twin, x))


CHANGES = {
    "a reset": lambda node: functional.reset_net(node),
    "a state": lambda node: setattr(node, "v", 0.5 * torch.ones(2, 4, 6, 6).double()),
    "a threshold": lambda node: setattr(node, "v_threshold", 0.25),
    "recorded states": lambda node: setattr(node, "store_v_seq", True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_neuron_that_ran_before_its_call_runs_again_if_anything_changes(change):
    net, x = accelerated(shortcut().double()), 2 * torch.rand(3, 2, 2, 6, 6).double()
    twin = copy.deepcopy(net)
    layers(net, x, recompute=True, shortcuts=True)
    results = []
    for one in (net, twin):
        one(x)  # states to continue from
        total = one[1](one[0](x))
        change(one[2].node)
        spikes = one[2].node(total)
        results.append((spikes, one[2].node.v, one[2].node.v_seq))
        one[2].node.store_v_seq = False
    torch.testing.assert_close(*results)
    assert results[0][0].any()


def test_shortcuts_in_other_gradient_modes():
    net, x = accelerated(shortcut().double()), 2 * torch.rand(3, 2, 2, 6, 6).double()
    twin = copy.deepcopy(net)
    with torch.inference_mode():
        assert layers(net, x, recompute=True, shortcuts=True).joined
        torch.testing.assert_close(net(x), twin(x))
    for one in (net, twin):
        functional.reset_net(one)
    with torch.no_grad():
        total = net[1](net[0](x))
    y = net[2].node(total.requires_grad_())
    assert y.requires_grad
    with pytest.raises(TypeError, match="accelerate.layers: shortcuts must be True or False, but is 1"):
        layers(net, x, shortcuts=1)
    assert not layers(accelerated(shortcut()), x.float()).joined  # by default


class Notes(Block):
    def forward(self, x):
        self.seen = x.shape
        return super().forward(x)


class ChangesItsInput(Block):
    def forward(self, x):
        y = self.node(self.norm(self.conv(x)))
        r = x.clone()
        alias = r.view_as(r)
        r += y
        return alias + y + 0 * self.shortcut(x)


@pytest.mark.parametrize("block", [Notes, ChangesItsInput])
def test_a_forward_with_side_effects_keeps_them(block):
    net, x = accelerated(functional_m(nn.Sequential(block("ADD")))), torch.randint(0, 2, (4, 2, 4, 6, 6)).float()
    twin = copy.deepcopy(net)
    assert not layers(net, x).joined
    assert_alike(step(net, x), step(twin, x))


def test_products_of_spikes_are_recomputed_of_bits_and_kept_no_more():
    net, x = small(layer.Conv2d(8, 8, 1), layer.BatchNorm2d(8), node()), torch.rand(3, 2, 2, 8, 8).double() * 2
    nn.init.constant_(net[7].bias, 2.0)
    spikeforge.accelerate(functional_m(net).double())
    twin = copy.deepcopy(net)
    layers(twin, x)
    done = layers(net, x, recompute=True)
    assert done.recomputed == (("0", 0), ("4.0", 1), ("6", 1))
    assert str(done).splitlines()[-3:] == ["  0  all", "  4.0  1", "  6  1"]
    kept = []
    for some in (net, twin):
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.update({t.untyped_storage()._cdata: (t, t.numel())}) or t, lambda t: t):
            some(x)
        functional.reset_net(some)
        kept.append(sum(n for t, n in sizes.values() if not (t.is_leaf and t.requires_grad)))
    assert kept[0] < 0.45 * kept[1], kept  # both keep x
    assert_alike(step(net, x), step(twin, x))
    with pytest.raises(TypeError, match="accelerate.layers: recompute must be True or False, but is 'yes'"):
        layers(net, x, recompute="yes")


def test_states_are_those_of_before():
    net, x = accelerated(small()), torch.rand(3, 2, 2, 8, 8) * 2
    net(x)
    before = [module.v for module in net if isinstance(module, neuron.BaseNode)]
    layers(net, x)
    assert all(a is b for a, b in zip(before, [module.v for module in net if isinstance(module, neuron.BaseNode)]))


@pytest.mark.parametrize("recompute", [False, True])
def test_states_may_be_left_as_they_were(recompute, device):
    net, x = accelerated(small().to(device)), torch.rand(3, 4, 2, 8, 8, device=device) * 2
    twin = copy.deepcopy(net)
    layers(twin, x, recompute=recompute)
    done = layers(net, x, recompute=recompute, keep_states=False)
    assert done.stateless == ("2", "5") and str(done).endswith("\nneurons that keep no states after a sequence: 2")
    assert_alike(step(net, x), step(twin, x))
    for _ in range(2):  # without reset
        spikes = net(x)
        assert torch.equal(spikes, twin(x)) and net[2].v == net[5].v == 0.0
        functional.reset_net(twin)
    started = torch.rand_like(twin[2](x.new_zeros(3, 4, 4, 8, 8))[0])
    net[2].v = started
    assert not torch.equal(net(x), spikes) and net[2].v is started
    net[2].store_v_seq = True
    net(x)
    assert net[2].v_seq.shape == (3, 4, 4, 8, 8) and net[2].v is started
    functional.reset_net(net)
    net[2].step_mode = "s"
    net[2](torch.rand(4, 4, 8, 8, device=device))
    assert not torch.equal(net[2].v, torch.zeros_like(net[2].v))  # a single step keeps its state
    net[2].step_mode = "m"
    functional.reset_net(net)
    assert pickle.loads(pickle.dumps(net))(x).shape == spikes.shape
    assert layers(net, x).stateless == ("2", "5")  # the same result as in the first call
    assert layers(net, x, keep_states=True).stateless == ()
    net(x)
    assert isinstance(net[2].v, torch.Tensor)
    with pytest.raises(TypeError, match="accelerate.layers: keep_states must be True, False or None, but is 0"):
        layers(net, x, keep_states=0)


class OwnSurrogate(surrogate.ATan):
    def forward(self, x):
        return super().forward(x)


def test_states_are_left_too_where_a_node_falls_back_and_others_are_named():
    net, x = small(node()), torch.rand(3, 2, 2, 8, 8) * 2
    net[6].surrogate_function = OwnSurrogate()
    assert layers(copy.deepcopy(net), x, keep_states=False).stateless == ()  # accelerate() has not replaced the neuron
    spikeforge.accelerate(net)
    done = layers(net, x, keep_states=False)
    assert done.stateless == ("2", "5") and done.keeping == ("6",)
    assert str(done).splitlines()[-2:] == ["neurons that keep no states after a sequence: 2", "  but 6 keeps its own: it was not replaced"]
    net[5].surrogate_function = OwnSurrogate()
    net(x)
    assert net[2].v == net[5].v == 0.0 and isinstance(net[6].v, torch.Tensor)
    for _ in range(2):  # reset_net releases the autograd graph
        functional.reset_net(net[6])
        net(x).sum().backward()


@pytest.mark.parametrize("recompute", [False, True])
def test_a_pooling_before_a_neuron_is_done_before_the_normalisation(recompute, device):
    net, x = accelerated(pooled().double().to(device)), torch.rand(3, 2, 2, 8, 8, device=device).double() * 2
    twin = copy.deepcopy(net)
    done = layers(net, x, recompute=recompute)
    assert done.normalised == (("0.0.1", "0.2"), ("1.0.1", "1.2"))
    assert done.pooled_before == (("0.0.2", "0.2"), ("1.0.2", "1.2")) and done.pooled == ("0.0.2", "1.0.2")
    assert "  0.0.2  before the normalisation, in  0.2" in str(done).splitlines()
    with torch.backends.cudnn.flags(allow_tf32=False):
        for training in (True, True, False, True):
            net.train(training), twin.train(training)
            assert_alike(step(net, x), step(twin, x))
        for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)) if recompute else net):
            assert_alike(step(copied, x), step(copy.deepcopy(twin), x))
        assert net[0][0](x).shape == (3, 2, 4, 8, 8)  # the pooling moved into the neuron
        restore(net)
        assert type(net[0][0][1]) is nn.BatchNorm2d and type(net[0][0][2]) is nn.MaxPool2d
        twin = copy.deepcopy(net)
        assert_alike(step(net, x), step(twin, x))
        assert net[0][0](x).shape == (3, 2, 4, 4, 4)


def test_code_that_counts_on_the_size_of_maxima_keeps_its_pooling():
    reads = (lambda x: x if x.shape[-1] < 8 else x.flip(-1), lambda x: x.view(x.size()), lambda x: x.view(x.shape))
    for between in (*reads, lambda x: x.reshape(3, 2, 4, 4, 4), lambda x: x.flatten(3), lambda x: x * 1.0):
        net, x = pooled(between), torch.rand(3, 2, 2, 8, 8) * 2
        net = net[:1]
        spikeforge.accelerate(net)
        twin = copy.deepcopy(net)
        done = layers(net, x)
        assert not done.normalised and not done.pooled_before and done.pooled == ("0.0.2",)
        assert_alike(step(net, x), step(twin, x))


@pytest.mark.parametrize("shape", [(4, 2, 3, 9, 8), (4, 3, 9, 8), (3, 9, 8)])
def test_pooling_is_torchs(shape):
    x = torch.randint(0, 3, shape).float().requires_grad_()
    modes = ("m",) if len(shape) == 5 else ("s",)
    for mode in modes:
        for pool in (layer.MaxPool2d(3, 2, 1, step_mode=mode), layer.MaxPool2d((2, 3), ceil_mode=True, step_mode=mode)):
            net = nn.Sequential(copy.deepcopy(pool))
            assert layers(net).pooled == ("0",) and repr(net[0]) == repr(pool)
            y, expected = net(x), pool(x)
            assert torch.equal(y, expected)
            assert torch.equal(*(torch.autograd.grad(z, x, torch.ones_like(z))[0] for z in (y, expected)))


@pytest.mark.parametrize("kind", [None, "ADD", "IAND", "and others", "shortcut"])
def test_torch_compile_has_no_graph_break(kind):
    net, x = small(), torch.rand(3, 2, 2, 8, 8) * 2
    if kind == "shortcut":
        net = shortcut()
    elif kind is not None:
        net, x = functional_m(nn.Sequential(Block(kind))), torch.randint(0, 2, (4, 2, 4, 6, 6)).float()
    spikeforge.accelerate(net)
    layers(net, x, shortcuts=True)
    wanted = net(x)
    functional.reset_net(net)
    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), wanted)
    functional.reset_net(net)


AS_ON_A_GPU = """
import copy, torch, spikeforge
from spikingjelly.activation_based import functional, neuron
import test_accelerate_layers
from test_accelerate_layers import assert_alike, layers, step, nn
torch.manual_seed(1)
net, x = test_accelerate_layers.NET().double(), 2 * torch.rand(3, 2, 2, 8, 8).double()
spikeforge.accelerate(net)
twin = copy.deepcopy(net)
layers(net, x, shortcuts=True)
torch.ops.spikeforge.record_kernels(["sm_90"])  # from here on calls on the CPU run what a GPU would
with torch.profiler.profile() as profile:
    got = step(net, x)
names = {event.key for event in profile.key_averages()}
assert any(name.startswith("spikeforge::batch_norm_run") for name in names) and "aten::native_batch_norm" not in names, names
assert_alike(got, step(twin, x))
net.eval(), twin.eval()
assert_alike(step(net, x), step(twin, x))
print("alike")
"""


@pytest.mark.parametrize("net", ["small", "pooled", "shortcut"])
def test_the_kernels_of_a_gpu_are_right_on_the_cpu(net):
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run([sys.executable, "-c", AS_ON_A_GPU.replace("NET", net)], env=os.environ | {"PYTHONPATH": path},
                            capture_output=True, text=True)  # fmt: skip
    assert result.stdout.strip() == "alike", result.stderr[-2000:]


@pytest.mark.parametrize("make", [small, pooled, shortcut])
def test_on_a_gpu_it_is_the_same_within_rounding(make, device):
    if device.type == "cpu":
        pytest.skip("needs a CUDA device: on a CPU bits are the same")
    net, x = accelerated(make().double().to(device)), 2 * torch.rand(3, 2, 2, 8, 8, device=device).double()
    twin = copy.deepcopy(net)
    assert len(layers(net, x, shortcuts=True).normalised) == 2
    for _ in range(2):
        y, expected = net(x), twin(x)
        assert torch.equal(y, expected) and y.any()
        y.sum().backward(), expected.sum().backward()
        functional.reset_net(net), functional.reset_net(twin)
    for (name, a), b in zip(net.named_parameters(), twin.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-8, msg=name)
    for (name, a), b in zip(net.named_buffers(), twin.buffers()):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=name)
