"""spikeforge.models have the logits, spikes and gradients of SpikingJelly's models with the same weights."""

import copy
import dataclasses
import json
import sys

import pytest
import spikeforge
import spikeforge.nn as snn
import torch
from loops import in_pieces, printed_by, refused
from spikeforge import losses, models
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from conftest import REPOSITORY

jelly = pytest.importorskip("spikingjelly", reason="spikingjelly is not installed")
pytest.importorskip("torchvision", reason="SpikingJelly's models need torchvision")
from spikingjelly.activation_based import functional, neuron, surrogate  # noqa: E402
from spikingjelly.activation_based.model import (  # noqa: E402
    ms_resnet,
    qkformer,
    sew_resnet,
    spike_driven_transformer,
    spikformer,
)

T = 3
LEAKY = dict(tau=2.0, detach_reset=True, surrogate_function=surrogate.ATan())
INTEGRATES = dict(spiking_neuron=neuron.IFNode, detach_reset=True, surrogate_function=surrogate.ATan())


def sew(block, depths, **options):
    net = sew_resnet.SEWResNet(block, depths, 5, **INTEGRATES, **options)
    functional.set_step_mode(net, "m")
    return net


# SpikingJelly's model, ours, pixels, and the numbers of normalisations, of those that nn.fuse takes, and of residuals
# that it joins. Normalisations before a membrane shortcut are not taken.
ZOO = {
    "Spikformer": (
        lambda: spikformer.Spikformer(
            T, img_size_h=16, img_size_w=16, patch_size=4, num_classes=5, embed_dims=32, num_heads=4, depths=2, **LEAKY
        ),
        lambda: models.Spikformer(5, 32, 4, 2, patch=4), 16, 13, 13, 5,
    ),
    "QKFormer": (
        lambda: qkformer.QKFormer(T, 3, 5, 32, (2, 2, 4), (1, 1, 2), **LEAKY),
        lambda: models.QKFormer(5, 32, (2, 2, 4), (1, 1, 2)), 32, 26, 26, 11,
    ),
    "QKFormer of channels": (
        lambda: qkformer.QKFormer(T, 3, 5, 32, (2, 2, 4), (0, 2, 1), 2.0, "channel", **LEAKY),
        lambda: models.QKFormer(5, 32, (2, 2, 4), (0, 2, 1), mode="channel", mlp_ratio=2.0), 32, 22, 22, 9,
    ),
    "SDT": (
        lambda: spike_driven_transformer.SpikeDrivenTransformer(T, 3, 5, 32, 4, 2, pooling_stat="1011", **LEAKY),
        lambda: models.SpikeDrivenTransformer(5, 32, 2, pool=(True, False, True, True)), 32, 13, 7, 0,
    ),
    "SEW": (
        lambda: sew(sew_resnet.BasicBlock, [1, 1, 2, 1], cnf="ADD"), lambda: models.SEWResNet(5, (1, 1, 2, 1)), 32, 14, 14, 5
    ),
    "SEW iand": (
        lambda: sew(sew_resnet.BasicBlock, [1, 1, 1, 1], cnf="IAND"),
        lambda: models.SEWResNet(5, (1, 1, 1, 1), join="iand"), 32, 12, 12, 4,
    ),
    "SEW of bottlenecks": (
        lambda: sew(sew_resnet.Bottleneck, [1, 1, 1, 1], cnf="AND", groups=2, width_per_group=32),
        lambda: models.SEWResNet(5, (1,) * 4, bottleneck=True, groups=2, width_per_group=32, join="and"), 32, 17, 17, 4,
    ),
    "MS": (
        lambda: ms_resnet.MSResNet(T, num_classes=5, layers=(1, 2, 1, 1), base_channels=16),
        lambda: models.MSResNet(5, (1, 2, 1, 1), width=16), 64, 15, 5, 0,
    ),
}  # fmt: skip


def is_neuron(module):
    return isinstance(module, (neuron.BaseNode, snn.neurons.PredefinedNeuron))


def train_step(net, x, labels):
    """Returns logits [B, classes], the number of spikes, and the gradients of the network's parameters."""
    spikes = []
    hooks = [m.register_forward_hook(lambda *call: spikes.append(call[2].sum())) for m in net.modules() if is_neuron(m)]
    logits = net(x)
    logits = losses.mean_over_time(logits) if logits.dim() == 3 else logits
    nn.functional.cross_entropy(logits, labels).backward()
    for hook in hooks:
        hook.remove()
    functional.reset_net(net)
    gradients = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    return logits.detach(), sum(spikes, torch.zeros(())), gradients


def with_activity(net):
    """Sets the parameters so that neurons of all layers fire."""
    for module in net.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d)):
            nn.init.kaiming_uniform_(module.weight)
        if isinstance(module, _BatchNorm):
            for t, low, high in ((module.running_mean, -0.2, 0.2), (module.running_var, 0.5, 1.5)):
                t.uniform_(low, high)
            nn.init.uniform_(module.weight, 0.8, 1.6)
            nn.init.uniform_(module.bias, 0.2, 0.7)
    return net


@pytest.mark.parametrize("name", ZOO)
def test_a_model_is_that_of_spikingjelly(name):
    make_theirs, make_ours, size, norms, fused, residuals = ZOO[name]
    theirs, ours = with_activity(make_theirs()), make_ours()
    assert models.from_spikingjelly(ours, theirs.state_dict()) is ours
    x, labels = torch.randn(T, 2, 3, size, size), torch.tensor([0, 3])
    with torch.no_grad():
        expected, got = theirs.eval()(x), ours.eval()(x)
        functional.reset_net(theirs)
        torch.testing.assert_close(got if expected.dim() == 3 else got.mean(0), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(in_pieces(ours, x.split(2))[0], got, rtol=1e-5, atol=1e-6)

    logits, spikes, gradients = train_step(theirs.train(), x, labels)
    assert expected.std() > 0 and logits.std() > 0
    named = dict(zip(dict(theirs.named_parameters()), gradients))
    of_ours = models.from_spikingjelly(copy.deepcopy(ours), {**theirs.state_dict(), **named}).parameters()
    parameters = list(ours.parameters())
    for i in range(2):
        got, fires, found = train_step(ours.train(), x, labels)
        torch.testing.assert_close(got, logits, rtol=1e-5, atol=1e-6)
        for gradient, exact in zip(found, of_ours if i == 0 else known):
            torch.testing.assert_close(gradient, exact, rtol=1e-3, atol=1e-4 * exact.abs().max().item() + 1e-7)
        if i == 0:
            assert fires == spikes > 0
            assert sum(isinstance(module, _BatchNorm) for module in ours.modules()) == norms
            assert len(snn.fuse(ours, x[:, :1])) == fused
            layers = [module for module in ours.modules() if isinstance(module, snn.BatchNormNeuron)]
            assert sum(layer.residual is not None for layer in layers) == residuals
            known = [found[next(j for j, p in enumerate(parameters) if p is q)] for q in ours.parameters()]


PUBLISHED = {
    "spikformer_ti": spikformer, "spikformer_s": spikformer, "spikformer_cifar10": spikformer,
    "qkformer_10_384": qkformer, "sdt_8_384": spike_driven_transformer, "ms_resnet18": ms_resnet,
    "ms_resnet34": ms_resnet, "sew_resnet18": sew_resnet, "sew_resnet34": sew_resnet, "sew_resnet50": sew_resnet,
    "sew_resnet101": sew_resnet, "sew_resnet152": sew_resnet, "sew_resnext50_32x4d": sew_resnet,
    "sew_resnext101_32x8d": sew_resnet, "sew_wide_resnet50_2": sew_resnet, "sew_wide_resnet101_2": sew_resnet,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
def test_published_sizes(name):
    with torch.device("meta"):
        options = dict(cnf="ADD", spiking_neuron=neuron.IFNode) if name.startswith("sew") else {}
        theirs, ours = getattr(PUBLISHED[name], name)(**options), getattr(models, name)()
        models.from_spikingjelly(ours, theirs.state_dict())  # checks names and shapes
    assert name in models.__all__


def test_a_model_is_compiled_exported_and_counted():
    net = with_activity(models.Spikformer(5, 16, 2, 1, channels=1, patch=4)).eval()
    x = torch.randn(2, 2, 1, 8, 8)
    y = net(x)
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="aot_eager")(x), y)
    torch.testing.assert_close(torch.export.export(net, (x,)).module()(x), y)
    with spikeforge.count(net) as counted:
        net(x)
    assert not counted.not_counted
    assert [layer.name for layer in counted.layers if layer.role == "product"] == ["blocks.0.0.body"]
    for recompute in (False, True):
        fused = copy.deepcopy(net)
        snn.fuse(fused, x, recompute=recompute)
        with spikeforge.count(fused) as of_fused:
            fused(x)
        assert [dataclasses.replace(layer, kind="") for layer in of_fused] == [
            dataclasses.replace(layer, kind="") for layer in counted
        ]
    assert counted["embed.4.neuron"].spikes > 0


@pytest.mark.long
def test_the_benchmark_runs_without_a_gpu(tmp_path):
    forms = ["SpikingJelly", "with layers", "models", "recomputed"]
    small = ["--device", "cpu", "--batch", "1", "--size", "32", "--steps", "2", "--rounds", "1", "--steps-per-round", "1"]
    command = [sys.executable, REPOSITORY / "benchmarks/transformers.py", "--networks", "ms_resnet18", "--forms", *forms]
    printed = printed_by(*command, *small, "--json", tmp_path / "rows.json", timeout=300)
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["form"] for row in rows] == forms and all(form in printed for form in forms)
    for row in rows:
        assert 0 < row["by_kind"]["convolutions"] and 0 < row["milliseconds"], row
    # Two operations for each multiplication, forward and for both gradients, but for none of the images.
    net, done = models.ms_resnet18(), []
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(lambda m, args, y: done.append((m, m.weight[0].numel() * y.numel())))
    net(torch.randn(2, 1, 3, 32, 32))
    expected = sum((4 if layer.weight.shape[1] == 3 else 6) * multiplications for layer, multiplications in done)
    assert rows[2]["floor"]["operations"] == expected


def loaded(change):
    values = ZOO["SDT"][0]().state_dict()
    change(values)
    return lambda: models.from_spikingjelly(ZOO["SDT"][1](), values)


WRONG = {
    "join": (ValueError, "join must be 'add', 'and' or 'iand', but is 'xor'", lambda: models.Residual(nn.Identity(), join="xor")),
    "patch": (ValueError, "patch must be 1, 2, 4, 8 or 16 pixels, but is 3", lambda: models.Spikformer(patch=3)),
    "stages": (ValueError, "three values", lambda: models.QKFormer(heads=(1, 2))),
    "pool": (ValueError, "pool must have four values", lambda: models.SpikeDrivenTransformer(pool=(True,))),
    "images without time": (ValueError, r"MSResNet: x must be .* is torch.float32 \[2, 3, 8, 8\]; images.float", lambda: models.MSResNet()(torch.ones(2, 3, 8, 8))),
    "images of bytes": (ValueError, r"Spikformer: x must be .* is torch.uint8 \[1, 2, 3, 8, 8\]", lambda: models.Spikformer(5, 8, 1, 1)(torch.ones(1, 2, 3, 8, 8).byte())),
    "heads of all stages": (ValueError, "three values.* are 2, ", lambda: models.QKFormer(heads=2)),
    "dim": (ValueError, "multiple of 4, at least 8, .* and 4", lambda: models.QKFormer(dim=4, heads=(1, 1, 1))),
    "dim of a splitting": (ValueError, "Spikformer: dim must be at least 8, .* is 4", lambda: models.Spikformer(dim=4)),
    "a stage without blocks": (ValueError, "depths must be .* is 0", lambda: models.SEWResNet(depths=(1, 0))),
    **{
        f"neuron, {make.__name__}": (TypeError, f"{make.__name__}: neuron must be a function.*LIF.*it is a module", lambda make=make: make(neuron=snn.LIF()))
        for make in (models.SEWResNet, models.MSResNet, models.Spikformer, models.SpikeDrivenTransformer, models.QKFormer)
    },
    "another network": (TypeError, "must be a network of spikeforge.models, but is Linear", lambda: models.from_spikingjelly(nn.Linear(1, 1), {})),
    "unknown name": (ValueError, "must be that of SpikingJelly's model, .* contains 'neck'", loaded(lambda v: v.update({"neck.weight": torch.ones(1)}))),
    "a model instead of its state_dict": (TypeError, "state_dict must be .* is Linear", lambda: models.from_spikingjelly(models.MSResNet(5, (1,), width=8), nn.Linear(1, 1))),
    "missing name": (RuntimeError, "Missing key.*head.2.weight", loaded(lambda v: v.pop("head.weight"))),
    "another size": (RuntimeError, "size mismatch for head.2.bias", loaded(lambda v: v.update({"head.bias": torch.ones(4)}))),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case):
    refused(*WRONG[case])
