"""Monitors, counts and plots describe a network without changing its results."""

import copy
import importlib
import io
import itertools
import json
import os
import pickle
import subprocess
import sys
import time
import types

import numpy
import pytest
import spikeforge
import spikeforge.nn as snn
import torch
from documentation import code
from loops import STATEFUL, composite, lif_loop, lif_step, output_of, refused
from spikeforge import Monitor, count
from torch import nn
from torch.utils.checkpoint import checkpoint

from conftest import REPOSITORY

measuring = importlib.import_module("spikeforge.energy")
TAU = 2.5


class Block(nn.Module):
    """A custom module without a state argument."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 4)
        self.act = nn.ReLU(inplace=True)
        self.lif = snn.LIF(tau=TAU, surrogate="atan")
        nn.init.uniform_(self.fc.weight, -0.5, 1.5)

    def forward(self, x):
        return self.lif(self.act(self.fc(x)))


def looped():
    """Returns a network with a layer in a loop, one called once per step, and one called once for all steps."""
    net = composite(
        "in -> dense.in, dense.out -> once.in, once.out -> lif.in, lif.out -> lateral.in, lateral.out -> lif.in 2, "
        "lif.out -> out",
        dense=snn.TimeDistributed(nn.Sequential(nn.Linear(5, 4), nn.Identity())), once=nn.Linear(4, 4),
        lif=snn.LIF(tau=TAU, surrogate="atan"), lateral=nn.Linear(4, 4, bias=False),
    )
    net.alias("potential", "lif.v")
    with torch.no_grad():
        net.dense.module[0].weight.mul_(5)
        net.once.weight.mul_(5)
    return net.double()


def sequence(steps=9, batch=3, features=5):
    return 3 * torch.rand(steps, batch, features)


# --- Monitor ----------------------------------------------------------------------------------------------------------

def test_it_records_the_values_of_the_equations(device):
    block, x = Block().double().to(device), sequence().double().to(device)
    block.fc.weight.data[0].abs_().neg_()
    with Monitor(block, ["lif.out", "lif.v", "fc.out", "out"]) as monitor:
        y = block(x)
    current = block.fc(x)
    spikes, v = lif_loop(current.clamp(min=0), TAU)
    assert 0 < spikes.mean() < 1
    assert torch.equal(monitor["lif.out"], spikes) and torch.equal(monitor["out"], y)
    torch.testing.assert_close(monitor["lif.v"], v, rtol=1e-12, atol=1e-12)
    assert current.min() < 0 and torch.equal(monitor["fc.out"], current)  # the values before the in-place ReLU
    assert all(value.device == x.device and not value.requires_grad for _, value in monitor.items())


def test_states_of_a_normalised_neuron_are_recorded(device):
    layer = snn.BatchNormNeuron(nn.BatchNorm1d(3), snn.LIF(tau=TAU, surrogate="atan"), residual="add").to(device)
    net = snn.Sequential(snn.TimeDistributed(nn.Linear(5, 3)), snn.BatchNormNeuron(nn.BatchNorm1d(3), snn.LIF(tau=TAU)))
    assert Monitor.available(net.to(device))[-2:] == ["1.out", "1.neuron.v"]  # its submodules are not called
    x, r = torch.randn(6, 4, 3, device=device) + 1, torch.rand(6, 4, 3, device=device)
    with Monitor(layer, ["neuron.v", "out"]) as monitor:
        y = layer(x, r)
    spikes, states = layer(x, r, store_states=True)
    assert torch.equal(monitor["neuron.v"], states["neuron.v"]) and torch.equal(monitor["out"], y) and torch.equal(y, spikes)
    z = nn.functional.batch_norm(x.flatten(0, 1), None, None, training=True).unflatten(0, (6, 4))
    torch.testing.assert_close(monitor["neuron.v"], lif_loop(z, TAU)[1], rtol=1e-4, atol=1e-5)
    with Monitor(net, "*.v") as monitor:
        net(torch.randn(2, 4, 5, device=device)), net(torch.randn(3, 4, 5, device=device))
    assert monitor.names == ("1.neuron.v",) and monitor["1.neuron.v"].shape == (5, 4, 3)
    refused(ValueError, "there is no output or state '1.norm.out'", lambda: Monitor(net, "1.norm.out"))


def test_parts_of_a_network_are_recorded_over_time_however_they_are_called():
    net, x = looped(), sequence().double()
    names = ["dense.module.0.out", "dense.out", "once.out", "lateral.out", "lif.out", "lif.v", "potential", "out"]
    with Monitor(net, names) as monitor:
        y = net(x)
    dense = torch.stack([net.dense.module(row) for row in x])
    once = net.once(dense)
    v, rows, states, sent = torch.zeros(3, 4).double(), [], [], [torch.zeros(3, 4).double()] * 2
    for row in once:
        s, v = lif_step(row + sent[-2], v, TAU)
        rows.append(s)
        states.append(v)
        sent.append(net.lateral(s))
    expected = {
        "dense.module.0.out": dense, "dense.out": dense, "once.out": once, "lateral.out": torch.stack(sent[2:]),
        "lif.out": torch.stack(rows), "out": y, "lif.v": torch.stack(states), "potential": torch.stack(states),
    }  # fmt: skip
    for name in names:
        torch.testing.assert_close(monitor[name], expected[name], rtol=1e-9, atol=1e-9, msg=name)


def step_by_step(net, x):
    with snn.keep_state(net):
        return torch.stack([net.step(row) for row in x])


WAYS = {
    "call": lambda net, x: net(x),
    "state": lambda net, x: net(x, None),
    "store_states": lambda net, x: net(x, store_states=True),
    "steps": step_by_step,
    "step and state": lambda net, x: net.step(x[0], None),
    "call()": lambda net, x: snn.call(net, x, {}),
    "keyword": lambda net, x: net(x=x),
}
NEURONS = {kind: STATEFUL[kind] for kind in ("Izhikevich", "AdaptiveLIF", "CubaLIF", "LI", "Neuron", "Delay", "Latency")}
NEURONS["LIF"] = lambda: snn.LIF(tau=snn.Learnable(TAU), surrogate="atan")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NEURONS)
def test_results_and_gradients_are_those_without_it(kind, way, device):
    if way == "keyword" and kind in ("Neuron", "LI"):
        pytest.skip("its inputs are positional")
    module = NEURONS[kind]().to(device)
    x = sequence().to(device).requires_grad_()

    def run():
        x.grad = None
        module.zero_grad()
        result = WAYS[way](module, x)
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if leaf.requires_grad]
        sum(leaf.sum() for leaf in leaves).backward() if leaves else None
        gradients = [x.grad, *(parameter.grad for parameter in module.parameters())]
        results = [leaf.detach() for leaf in torch.utils._pytree.tree_leaves(result)]
        return results, [g.clone() for g in gradients if g is not None]

    seen = []
    module.register_forward_hook(lambda module, args, result: seen.append(type(result)))
    plain, gradients = run()
    names = [*module.out_ports, *module.state_names]
    with Monitor(module, names), Monitor(module, module.state_names), count(module), Monitor(module, names) as monitor:
        watched, watched_gradients = run()
    assert len(plain) == len(watched) and all(map(torch.equal, plain, watched))
    torch.testing.assert_close(gradients, watched_gradients, rtol=1e-6, atol=1e-6)
    assert seen == [seen[0]] * len(seen)  # other hooks receive the same outputs
    if way != "step and state":
        _, states = module(x, store_states=True)
        for name in module.state_names:
            assert torch.equal(monitor[name], states[name].detach()), name


@pytest.mark.parametrize("kind", NEURONS)
def test_states_that_are_kept_stay_as_they_are(kind):
    module, x = NEURONS[kind](), sequence()
    with snn.keep_state(module), torch.no_grad():
        whole = module(x)
        kept = {name: value.clone() for name, value in snn.get_states(module).items()}
        snn.reset_(module)
        with Monitor(module, list(module.state_names)) as monitor:
            pieces = [module(piece) for piece in x.split(4)] + [module(x[:0])]
        after = snn.get_states(module)
        assert torch.equal(torch.cat(pieces), whole)
        assert after.keys() == kept.keys() and all(torch.equal(after[name], kept[name]) for name in kept)
        for name in module.state_names:
            assert torch.equal(monitor[name][-1], kept[name]) and len(monitor[name]) == len(x)
            after[name].fill_(7)  # a recording does not share memory with states
            assert not (monitor[name] == 7).all()


def test_a_passed_state_continues_and_is_detached_from_the_recording():
    lif, x = snn.LIF(tau=TAU), sequence()
    whole, last = lif(x, None)
    with Monitor(lif, "v") as monitor:
        first, state = lif(x[:4], None)
        second, state = lif(x[4:], state)
    assert torch.equal(torch.cat((first, second)), whole) and torch.equal(state["v"], last["v"])
    assert len(monitor["v"]) == len(x) and torch.equal(monitor["v"][-1], last["v"])


def test_recordings_have_gradients_if_asked_for():
    block, x = Block(), sequence()
    with Monitor(block, ["lif.out", "lif.v"], detach=False) as monitor:
        block(x)
        (monitor["lif.v"].sum() + monitor["lif.out"].mean()).backward()
    recorded = block.fc.weight.grad.clone()
    block.zero_grad()
    y, states = block.lif(block.act(block.fc(x)), store_states=True)
    (states["v"].sum() + y.mean()).backward()
    torch.testing.assert_close(recorded, block.fc.weight.grad)
    assert recorded.abs().sum() > 0


def test_a_second_pass_of_checkpointing_is_not_recorded():
    block, x = Block(), sequence().requires_grad_()
    with Monitor(block, ["lif.out", "lif.v"]) as monitor, count(block) as counted:
        y = checkpoint(block, x, use_reentrant=False)
        before = counted.spikes
        y.sum().backward()
    assert x.grad.abs().sum() > 0
    assert torch.equal(monitor["lif.out"], y.detach()) and len(monitor["lif.v"]) == len(x)
    assert counted.spikes == before == int(y.sum())


def test_it_ends_forgets_and_is_garbage():
    block, x = Block(), sequence()
    monitor = Monitor(block, "lif.out")
    block(x)
    block(x)
    assert len(monitor["lif.out"]) == 2 * len(x)
    monitor.reset()
    y = block(x[:2])
    assert torch.equal(monitor["lif.out"], y.detach()) and monitor.nbytes == y.numel() * 4
    monitor.close()
    monitor.close()
    block(x)
    assert len(monitor["lif.out"]) == 2
    assert not block.lif._forward_hooks and not block.lif._forward_pre_hooks
    monitor = Monitor(block, "lif.v")
    assert block.lif._forward_hooks
    del monitor
    assert not block.lif._forward_hooks and not block.lif._forward_pre_hooks


def test_copies_of_a_watched_network_are_not_watched():
    block, x = Block(), sequence()
    with Monitor(block, ["lif.out", "lif.v"]) as monitor, count(block) as counted:
        y = block(x)
        file = io.BytesIO()
        torch.save(block, file)
        file.seek(0)
        assert len(file.getvalue()) < 20_000
        for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block)), torch.load(file, weights_only=False)):
            assert torch.equal(other(x), y)
            assert torch.equal(snn.call(other, x)[0], y)
    assert len(monitor["lif.out"]) == len(x) and counted.spikes == int(y.sum())


def test_a_recording_may_be_kept_elsewhere(cuda):
    block, x = Block().to(cuda), sequence().to(cuda)
    with Monitor(block, ["lif.out", "lif.v"], device="cpu") as monitor:
        y = block(x)
    assert monitor["lif.out"].device.type == monitor["lif.v"].device.type == "cpu"
    assert torch.equal(monitor["lif.out"], y.detach().cpu())


def test_patterns_and_the_list_of_names():
    net = looped()
    assert Monitor.available(net) == [
        "out", "potential", "dense.out", "dense.module.out", "dense.module.0.out", "dense.module.1.out", "once.out",
        "lif.out", "lif.v", "lateral.out",
    ]  # fmt: skip
    monitor = Monitor(net, ["l*.out", "lif.out"])
    assert monitor.names == ("lif.out", "lateral.out") == tuple(monitor) and len(monitor) == 2
    assert "lif.out" in monitor and "lif.v" not in monitor


def test_files(tmp_path):
    lif, x = snn.LIF(tau=TAU).double(), sequence(4, 2, 3).double()
    with Monitor(lif, ["out", "v"]) as monitor:
        lif(x)
    monitor.write_npy(tmp_path / "run")
    monitor.write_csv(tmp_path / "run.csv")
    for name in monitor:
        assert numpy.array_equal(numpy.load(tmp_path / "run" / f"{name}.npy"), monitor[name].numpy())
    table = numpy.genfromtxt(tmp_path / "run.csv", delimiter=",", names=True, deletechars="")
    assert table.dtype.names[:2] == ("step", "out[0]") and table.dtype.names[-1] == "v[5]"
    assert numpy.array_equal(table["v[4]"], monitor["v"][:, 1, 1].numpy())
    for recording in ("run", "run.csv"):
        script = REPOSITORY / "scripts" / "plot_monitor.py"
        subprocess.run([sys.executable, script, tmp_path / recording, "--output", tmp_path / "drawn.png"], check=True)
        assert pyplot.imread(tmp_path / "drawn.png").std() > 0.05


def test_monitors_refuse_wrong_arguments():
    block, x = Block(), sequence()
    with pytest.raises(ValueError, match=r"no output or state 'lif.w' in Block. Do you mean 'lif.\w+'\? There are .*"):
        Monitor(block, ["lif.v", "lif.w"])
    assert not block.lif._forward_hooks
    refused(ValueError, "is pending in a delay", lambda: Monitor(looped(), "lateral_out_to_lif_in"))
    refused(TypeError, "net must be a module of torch, but is list", lambda: Monitor([], "out"))
    refused(TypeError, "a name must be a string", lambda: Monitor(block, [3]))
    compiled = torch.compile(block)
    refused(ValueError, "net is compiled; torch.compile calls no hooks", lambda: Monitor(compiled, "lif.v"))
    monitor = Monitor(block, ["lif.v", "lif.out"])
    refused(ValueError, "'fc.out' is not recorded; recorded are lif.v, lif.out", lambda: monitor["fc.out"])
    refused(ValueError, "'lif.v' has no recorded steps", lambda: monitor["lif.v"])
    block(x)
    block(x[:, :2])
    refused(ValueError, r"have shape \[3, 4\] first and then \[2, 4\]; call reset\(\)", lambda: monitor["lif.v"])
    monitor.reset()
    refused(RuntimeError, "cannot leave it; call the network outside", lambda: torch.func.vmap(block)(x[None]))
    rnn = nn.Sequential(nn.LSTM(3, 2))
    with Monitor(rnn, "0.out"), pytest.raises(TypeError, match=r"0.out must be a tensor .* LSTM returns a tuple"):
        rnn(torch.rand(4, 2, 3))


# --- count ------------------------------------------------------------------------------------------------------------

def reached(layer, x):
    """Counts pairs of a spike and an output that it reaches: sends each spike separately through a layer of ones."""
    ones = copy.deepcopy(layer).double()
    with torch.no_grad():
        ones.weight.fill_(1)
        if isinstance(ones, snn.DelayedLinear | snn.DelayedConv1d | snn.DelayedConv2d):
            ones.delay.zero_()
            ones.round_()  # a spike arrives at its own step
        if ones.bias is not None:
            ones.bias.zero_()
    total = 0
    for at in x.nonzero():
        alone = torch.zeros(x.shape, dtype=torch.float64)
        alone[tuple(at)] = 1
        total += int(ones(alone).sum())
    return total


LAYERS = {
    "Linear": (lambda: nn.Linear(6, 5), (4, 6)),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 7)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (2, 2, 6, 5)),
    "Conv2d same": (lambda: nn.Conv2d(2, 3, 4, padding="same"), (1, 2, 5, 4)),
    "Conv2d unbatched": (lambda: nn.Conv2d(2, 3, 3), (2, 5, 4)),
    "Conv2d circular": (lambda: nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="circular"), (1, 2, 5, 4)),
    "Conv2d reflect": (lambda: nn.Conv2d(2, 3, 3, padding=(2, 1), stride=2, padding_mode="reflect"), (1, 2, 5, 4)),
    "Conv2d replicate": (lambda: nn.Conv2d(2, 3, 3, padding=2, padding_mode="replicate"), (1, 2, 5, 4)),
    "Conv3d": (lambda: nn.Conv3d(2, 2, (1, 2, 3), padding=(0, 1, 1), groups=2), (1, 2, 3, 4, 3)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), (2, 2, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 4, 3, padding=2, dilation=2, groups=2), (1, 2, 4, 5)),
    "DelayedLinear": (lambda: snn.DelayedLinear(5, 4, 2), (3, 2, 5)),
    "DelayedLinear input": (lambda: snn.DelayedLinear(5, 4, 2, per="input", interpolation="gauss"), (3, 2, 5)),
    "DelayedConv1d": (lambda: snn.DelayedConv1d(2, 4, 3, 2, stride=2, padding=1, groups=2), (3, 1, 2, 5)),
    "DelayedConv2d": (lambda: snn.DelayedConv2d(2, 3, (3, 2), 1, padding=(1, 0), dilation=(1, 2)), (2, 1, 2, 4, 4)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_operations_are_those_of_each_spike_sent_alone(kind, device):
    make, shape = LAYERS[kind]
    layer = make()
    spikes = (torch.rand(shape) < 0.4).float()
    everywhere = reached(layer, torch.ones(shape))
    watched = copy.deepcopy(layer).to(device)
    with count(watched) as counted:
        watched(spikes.to(device))
        watched(-spikes.to(device))  # inhibitory spikes
        watched(3 * spikes.to(device))  # sums of spikes
        (layer_count,) = counted.layers
        assert layer_count.accumulates == 5 * reached(layer, spikes) and layer_count.events == 5 * spikes.sum()
        assert counted.multiply_accumulates == layer_count.values == 0
        watched((spikes * 0.5).to(device))
    assert counted.multiply_accumulates == everywhere and counted.accumulates == 5 * reached(layer, spikes)
    assert counted.layers[0].values == spikes.numel() and counted.layers[0].role == "synapses"


def test_a_network_is_counted_layer_by_layer():
    net, x = looped().float(), sequence()
    with Monitor(net, "lif.out") as monitor, count(net) as counted:
        net(x)
    spikes, before = int(monitor["lif.out"].sum()), monitor["lif.out"]
    assert 0 < spikes < before.numel()
    rows = {layer.name: layer for layer in counted}
    assert list(rows) == ["dense.module.0", "once", "lif", "lateral"]
    assert rows["lif"].spikes == spikes and rows["lif"].rate == spikes / before.numel()
    assert rows["lateral"].accumulates == 4 * spikes and rows["lateral"].multiply_accumulates == 0
    assert rows["dense.module.0"].multiply_accumulates == x.numel() * 4
    assert counted["once"].multiply_accumulates == 9 * 3 * 4 * 4
    assert (counted.spikes, counted.accumulates) == (spikes, 4 * spikes)
    table = counted.table()
    assert f"{spikes:,}" in table and "lateral" in table and len(table.splitlines()) == 6 and str(counted) == table
    counted.reset()
    assert counted.layers == [] and counted.spikes == 0


def test_the_report_lists_values_that_are_no_spikes_or_unknown():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fire, self.read = snn.Poisson(), snn.LI()
            self.bilinear, self.unused = nn.Bilinear(5, 5, 2), nn.Linear(3, 3)

        def forward(self, x):
            y = self.fire(x)
            return self.read(self.bilinear(y, y))

    net = Net()
    with count(net) as counted:
        net(torch.rand(6, 2, 5))
    assert [layer.name for layer in counted] == ["fire", "read"] and counted["read"].spikes is None
    assert [layer.role for layer in counted] == ["encoder", "read-out"]
    assert counted["fire"].outputs == 60
    assert counted.not_counted == ["bilinear (Bilinear)"] and "not counted: bilinear" in counted.table()
    refused(ValueError, "layer 'unused' was not counted; counted are fire, read", lambda: counted["unused"])


class Function(nn.Module):
    """A custom module that computes a product by a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


# A function of two tensors, their shapes, and the equation of the product; shapes after broadcasting if they differ.
PRODUCTS = {
    "matmul": (torch.matmul, (2, 3, 4), (2, 4, 2), "bnk,bkm"),
    "@, broadcast": (lambda a, b: a @ b, (2, 1, 3, 2), (2, 2, 2), "xbnk,bkm", (2, 2, 3, 2), (2, 2, 2)),
    "@ of vectors": (lambda a, b: a @ b, (5,), (5,), "k,k"),
    "@ of a matrix and a vector": (lambda a, b: a @ b, (3, 5), (5,), "nk,k"),
    "@ of a vector": (lambda a, b: a @ b, (3,), (2, 3, 4), "k,bkm"),
    "rmatmul": (lambda a, b: torch.Tensor.__rmatmul__(b, a), (2, 3), (3, 2), "nk,km"),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 2), "bnk,bkm"),
    "mm": (torch.mm, (3, 4), (4, 2), "nk,km"),
    "mv": (torch.mv, (3, 4), (4,), "nk,k"),
    "dot": (torch.dot, (5,), (5,), "k,k"),
    "addmm": (lambda a, b: torch.addmm(torch.ones(2, device=a.device), a, b), (3, 4), (4, 2), "nk,km"),
    "baddbmm": (lambda a, b: a.new_ones(2, 3, 2).baddbmm_(a, b), (2, 3, 4), (2, 4, 2), "bnk,bkm"),
    "linear": (nn.functional.linear, (2, 3, 4), (5, 4), "bnk,mk"),
    "einsum": (lambda a, b: torch.einsum("bnk, bmk -> bnm", a, b), (2, 3, 4), (2, 2, 4), "bnk,bmk"),
    "einsum of sums": (lambda a, b: torch.einsum("bnk,bj->bk", a, b), (2, 3, 4), (2, 2), "bnk,bj"),
    "einsum ...": (lambda a, b: torch.einsum("...nk,mk->...nm", a, b), (1, 2, 3, 2), (2, 2), "xynk,mk"),
    "einsum of a diagonal": (lambda a, b: torch.einsum("iij,jk->ik", a, b), (3, 3, 2), (2, 2), "iij,jk"),
    "einsum, outer": (lambda a, b: torch.einsum("n,m", [a, b]), (3,), (4,), "n,m"),
    "outer": (torch.outer, (3,), (4,), "n,m"),
    "inner": (torch.inner, (2, 3), (4, 3), "nk,mk"),
    "tensordot": (torch.tensordot, (2, 3, 2), (3, 2, 3), "nij,ijm"),
    "tensordot, dims": (lambda a, b: torch.tensordot(a, b, dims=([0, -1], [2, 0])), (2, 3, 4), (4, 3, 2), "inj,jmi"),
    "tensordot, a tensor": (lambda a, b: torch.tensordot(a, b, torch.tensor([[1], [0]])), (2, 3), (3, 2), "ni,im"),
    "empty": (torch.matmul, (3, 0), (0, 2), "nk,km"),
}
OPERANDS = {"spikes": (0.4, 1), "sums": (0.5, -15), "values": (1.0, 0.3), "no spikes": (0.0, 1)}


def operand(kind, shape):
    share, value = OPERANDS[kind]
    return value * (torch.rand(shape) < share).float()


def loops(equation, a, b, kinds):
    """Counts operations one by one: visits all combinations of indices of both tensors."""
    first, second = equation.split(",")
    sizes = dict(zip(first + second, (*a.shape, *b.shape)))
    additions = multiplications = 0
    for at in itertools.product(*map(range, sizes.values())):
        index = dict(zip(sizes, at))
        x, y = a[tuple(index[i] for i in first)], b[tuple(index[i] for i in second)]
        spikes = [abs(int(value)) for value, kind in zip((x, y), kinds) if kind != "values"]
        additions += numpy.prod(spikes, dtype=int) if spikes else 0
        multiplications += not spikes
    return additions, multiplications


@pytest.mark.parametrize("function", PRODUCTS)
def test_products_of_functions_are_counted_as_in_loops(function, device):
    product, a_shape, b_shape, equation, *broadcast = PRODUCTS[function]
    for kinds in [*itertools.product(("spikes", "sums", "values"), repeat=2), ("no spikes", "values")]:
        a, b = operand(kinds[0], a_shape), operand(kinds[1], b_shape)
        with count(net := Function(product)) as counted:
            assert torch.equal(net(a.to(device), b.to(device)), product(a.to(device), b.to(device)))
        expanded = [t.expand(shape) for t, shape in zip((a, b), broadcast or (a_shape, b_shape))]
        if a.numel() == 0:  # no values are spikes
            kinds = ("spikes", "spikes")
        (layer,) = counted.layers
        assert (layer.accumulates, layer.multiply_accumulates) == loops(equation, *expanded, kinds), kinds
        assert layer.role == "product" and counted.not_counted == []


def test_attention_is_two_products(device):
    q, k, v = operand("spikes", (2, 4, 3, 5)), operand("spikes", (2, 2, 4, 5)), operand("sums", (2, 2, 4, 6))
    attend = Function(lambda *qkv: nn.functional.scaled_dot_product_attention(*qkv, enable_gqa=True))
    with count(attend) as counted:
        attend(q.to(device), k.to(device), v.to(device))
    keys, values = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    additions = loops("bhnk,bhmk", q, keys, ("spikes", "spikes"))[0]
    additions += loops("bhnm,bhmk", torch.full((2, 4, 3, 4), 0.5), values, ("values", "sums"))[0]
    assert (counted.accumulates, counted.multiply_accumulates) == (additions, 0)
    assert counted[""].kind == "scaled_dot_product_attention"


@pytest.mark.parametrize("kind", ["Conv1d", "Conv2d", "Conv2d same", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"])
def test_convolutions_by_functions_are_counted_like_layers(kind):
    make, shape = LAYERS[kind]
    layer = make()
    options = [layer.stride, layer.padding, layer.dilation, layer.groups]
    if layer.transposed:
        options = [layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation]
    function = getattr(nn.functional, f"conv{'_transpose' * layer.transposed}{layer.weight.dim() - 2}d")
    net = Function(lambda x: function(x, layer.weight, layer.bias, *options))
    for x in (operand("spikes", shape), operand("values", shape)):
        with count(layer) as of_layer, count(net) as of_function:
            assert torch.equal(layer(x), net(x))
        for sums in ("accumulates", "multiply_accumulates"):
            assert getattr(of_layer, sums) == getattr(of_function, sums)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.fire, self.join = nn.Linear(5, 5), nn.Linear(5, 5), snn.LIF(v_threshold=0.1), nn.Linear(5, 3)
        self.ones = nn.Parameter(torch.ones(5, 5))

    def forward(self, x, fails=None):
        q, k = self.fire(self.q(x)), self.fire(self.k(x))
        if fails:
            raise fails
        return self.join(q @ k.transpose(-1, -2) @ x @ self.ones) + torch.einsum("tbi,ij,jk->tbk", x, self.ones, self.ones[:, :3])


def test_products_of_functions_belong_to_their_module():
    net, x = nn.Sequential(Attention(), snn.LIF()), sequence().float()
    with count(net) as counted:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                net[0](x, fails=ZeroDivisionError)
            assert torch._C._len_torch_function_stack() == 0
            net(x)
        copy.deepcopy(net)(x)
        torch.ones(2, 2) @ torch.ones(2, 2)
    with torch.no_grad():
        q, k = (net[0].fire(layer(x)) for layer in (net[0].q, net[0].k))
        scores = q @ k.mT
    additions = loops("tnk,tmk", q, k, ("spikes", "spikes"))[0] + loops("tnm,tmk", scores, x, ("sums", "values"))[0]
    assert counted["0"].kind == "matmul" and counted["0"].accumulates == 2 * additions > 0
    assert counted["0"].multiply_accumulates == 2 * x.numel() * 5  # a parameter of ones is no tensor of spikes
    assert counted.not_counted == ["0 (Attention): einsum"] and "not counted: 0 (Attention)" in counted.table()
    assert [layer.name for layer in counted] == ["0", "0.q", "0.k", "0.fire", "0.join", "1"]
    counted.reset()
    assert counted.not_counted == []
    with count(net) as counted:
        y = checkpoint(net, x.requires_grad_(), use_reentrant=False)
        before = counted["0"].accumulates
        y.sum().backward()
    assert counted["0"].accumulates == before == additions
    block = Block()
    with count(block) as counted:
        block(x)
    assert counted.not_counted == [] and [layer.name for layer in counted] == ["fc", "lif"]
    with pytest.raises(KeyboardInterrupt), count(net):
        net[0](x, fails=KeyboardInterrupt)
    assert torch._C._len_torch_function_stack() == 0


def test_products_without_a_rule_are_listed():
    a, sparse, nested = torch.eye(3), torch.eye(3).to_sparse_csr(), torch.nested.nested_tensor([torch.eye(3), torch.eye(2)])
    for product, name in [
        (lambda: torch.linalg.multi_dot([a, a]), "multi_dot"), (lambda: sparse @ a, "matmul"), (lambda: torch.kron(a, a), "kron"),
        (lambda: torch.einsum("ij,jk,kl", a, a, a), "einsum"), (lambda: (a + 0j) @ (a + 0j), "matmul"),
        (lambda: nested @ nested, "matmul"),
        (lambda: torch.func.vmap(torch.mv, (None, 0))(a, a), "mv"),
    ]:
        net = Function(product)
        with count(net) as counted:
            net()
        assert counted.layers == [] and counted.not_counted == [f"(net) (Function): {name}"]


STRANGERS = {
    "LoihiConv": (lambda: snn.LoihiConv(torch.ones(2, 2, 3, 3, dtype=torch.int32)), (6, 2, 2, 5, 5)),
    "LSTM": (lambda: nn.LSTM(5, 4), (6, 2, 5)),
    "Weighted": (lambda: Weighted(), (2, 5)),
    "MultiheadAttention": (lambda: Query(nn.MultiheadAttention(5, 1)), (6, 2, 5)),
}


class Weighted(nn.Module):
    """A custom module whose weights are in no product."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 5))

    def forward(self, x):
        return (self.weight * x).sum()


class Query(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, x, x)


@pytest.mark.parametrize("kind", STRANGERS)
def test_layers_of_other_kinds_are_listed_and_have_no_row(kind):
    make, shape = STRANGERS[kind]
    net, x = nn.ModuleDict({"layer": make()}), torch.ones(shape, dtype=torch.int32 if kind == "LoihiConv" else torch.float32)
    with count(net) as counted:
        net["layer"](x)
    name = "layer.attention" if kind == "MultiheadAttention" else "layer"
    assert counted.layers == [] and counted.not_counted == [f"{name} ({kind})"]


def test_small_whole_numbers_are_spikes():
    spikes = torch.tensor([[0.0, 1, 1, 0], [1, 0, 1, 0]])
    layer, fires = nn.Linear(4, 3), Function(lambda x: x)
    for x in (spikes, spikes + spikes.flip(0), 15 * spikes - 1, spikes.bool(), -2 * spikes.long(), spikes.bfloat16()):
        net = layer.bfloat16() if x.dtype == torch.bfloat16 else layer.float()
        with count(net) as counted, count(fires, neurons=[Function]) as of_neuron:
            net(x) if x.is_floating_point() else None
            fires(x)
        assert of_neuron.spikes == int(x.double().abs().sum()) and of_neuron[""].rate == of_neuron.spikes / 8
        assert not x.is_floating_point() or counted.accumulates == 3 * of_neuron.spikes
    for x in (16 * spikes, spikes / 2, spikes * torch.nan, spikes * torch.inf):
        with count(layer.float()) as counted, count(fires, neurons=[Function]) as of_neuron:
            layer(x)
            fires(x)
        assert (counted.accumulates, counted.multiply_accumulates) == (0, 24)
        assert of_neuron[""].spikes is None and of_neuron[""].role == "read-out"


def test_a_recurrent_matrix_is_counted():
    net, x = snn.Recurrent(snn.LIF(tau=TAU, v_threshold=0.5), nn.Linear(5, 5)), sequence().float()
    with count(net) as counted:
        y = net(x)
    assert counted["module"].accumulates == 5 * int(y[:-1].sum()) > 0 and counted["cell"].spikes == int(y.sum())


def network_with_roles():
    torch.manual_seed(3)
    return nn.Sequential(snn.TimeDistributed(nn.Linear(5, 6)), snn.AdaptiveLIF(v_threshold=0.2), nn.Linear(6, 4), snn.LI())


def test_encoders_and_read_outs_have_their_role_and_counts_are_json():
    net, x = network_with_roles(), sequence()
    with count(net) as counted:
        net(x)
    assert [layer.role for layer in counted] == ["encoder", "neuron", "synapses", "read-out"]
    assert counted["0.module"].values == x.numel() and counted["2"].events == counted["1"].spikes > 0
    assert counted["1"].states == 2 * 9 * 3 * 6 and counted["3"].states == 9 * 3 * 4  # v and w; v
    found = json.loads(counted.to_json())
    assert found == counted.to_dict() and found["layers"][1]["rate"] == counted["1"].rate
    assert found["accumulates"] == 4 * counted.spikes and found["not_counted"] == []


def test_the_energy_is_that_of_each_operation_and_access():
    net, x = network_with_roles(), sequence()
    with Monitor(net, "1.out") as monitor, count(net) as counted:
        net(x)
    compute = memory = 0.0
    word, event = 2, 4  # bytes
    pico = {"add": 0.4, "multiply": 1.1, "access": 20 / 8}
    for _ in range(x.numel()):  # the encoder
        memory += 2 * word * pico["access"]
        for _ in range(6):
            compute += pico["add"] + pico["multiply"]
            memory += word * pico["access"] / 3
    for _ in range(9 * 3 * (6 * 2 + 4)):  # states
        compute += pico["add"] + pico["multiply"]
        memory += 2 * word * pico["access"]
    for _ in range(int(monitor["1.out"].sum())):
        memory += 2 * event * pico["access"]
        for _ in range(4):
            compute += pico["add"]
            memory += word * pico["access"]
    energy = counted.energy("float16", "32KB", reuse=3)
    assert energy.compute == pytest.approx(compute * 1e-12) and energy.memory == pytest.approx(memory * 1e-12)
    assert sum(layer.total for layer in energy.layers) == pytest.approx(energy.total)
    other = counted.energy("int8", "8KB", add=0.4e-12, multiply=1.1e-12, access=0)
    assert other.compute == pytest.approx(energy.compute) and other.memory == 0
    assert "read-out" in str(energy) and str(energy).splitlines()[-1].endswith("nJ")
    for options, says in [
        (dict(numbers="int4"), "numbers must be one of float32, float16, int8, but is 'int4'"),
        (dict(memory="L2"), "memory must be one of 8KB"), (dict(reuse=0.5), "reuse must be finite and at least 1"),
        (dict(access=-1), "access must be finite and at least 0, but is -1"), (dict(add=float("nan")), "add must be finite"),
    ]:
        refused(ValueError, says, lambda: counted.energy(**options))
    refused(TypeError, "energy: multiply must be a number", lambda: counted.energy(multiply="3.7 pJ"))


def test_a_normalisation_and_its_neuron_are_counted():
    net, x = nn.Sequential(snn.TimeDistributed(nn.BatchNorm1d(5)), snn.LIF(v_threshold=0.1)), sequence().float()
    snn.fuse(net)
    with count(net) as counted:
        y = net(x)
    assert counted["1"].spikes == int(y.sum()) > 0


def test_loihi_connections_count_events():
    weight = torch.tensor([[2, 0, -4], [6, 8, 0]], dtype=torch.int32)
    sparse = weight.to_sparse_csr()
    indices = sparse.crow_indices().long(), sparse.col_indices().long()
    x = torch.tensor([[1, 0, 1], [0, 1, 1], [0, 0, 0]], dtype=torch.int32)
    layers = snn.LoihiDense(weight), snn.LoihiSparse(*indices, sparse.values())
    for layer, fan_out in zip(layers, ([2, 2, 2], [2, 1, 1])):
        with count(layer) as counted:
            layer(x)
        assert counted.accumulates == sum(int(n) * f for n, f in zip(x.sum(0), fan_out))


def test_accelerated_neurons_are_counted():
    snntorch = pytest.importorskip("snntorch")
    leaky, x = snntorch.Leaky(beta=0.9, init_hidden=True), 2 * torch.rand(4, 6)
    net = nn.Sequential(leaky, nn.Linear(6, 3))
    spikeforge.accelerate(net)
    with Monitor(net, "0.out") as monitor, count(net) as counted:
        for _ in range(3):
            net(x)
    assert counted["0"].spikes == int(monitor["0.out"].sum()) > 0 and counted["0"].outputs == 3 * 24
    assert counted["1"].accumulates == 3 * counted["0"].spikes


def test_neurons_of_others_are_counted_by_their_class():
    class Fires(nn.Module):
        def forward(self, x):
            return (x > 0.5).float(), x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.neuron = Fires()

        def forward(self, x):
            return self.neuron(x)[0]

    net, x = Net(), torch.rand(5, 4)
    with count(net, neurons=[Fires]) as counted:
        y = net(x)
    assert counted["neuron"].spikes == int(y.sum()) and counted["neuron"].outputs == 20
    for wrong in (Fires, [Fires()], "Fires"):
        refused(TypeError, "count: neurons must be a list of classes of modules, but is", lambda: count(net, neurons=wrong))


# --- energy -----------------------------------------------------------------------------------------------------------

@pytest.fixture
def powercap(tmp_path, monkeypatch):
    """Returns a function that writes a zone of RAPL, and removes the GPU."""
    monkeypatch.setattr(measuring, "POWERCAP", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def write(zone, name, microjoules, largest=1_000_000):
        folder = tmp_path / zone
        folder.mkdir(exist_ok=True)
        for file, content in [("name", name), ("energy_uj", microjoules), ("max_energy_range_uj", largest)]:
            (folder / file).write_text(f"{content}\n")

    return write


def test_rapl_sums_packages_and_their_memory_and_wraps_around(powercap):
    zones = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "package-1", "intel-rapl:2": "psys"}
    for zone, name in zones.items():
        powercap(zone, name, 999_000)
    rapl = measuring.Rapl()
    assert rapl.joules() == 0
    for zone, name in zones.items():
        powercap(zone, name, 1_000)  # 2 mJ more in each zone
    assert rapl.joules() == pytest.approx(3 * 0.002) == rapl.joules()
    powercap("intel-rapl:1", "package-1", 6_000)
    assert rapl.joules() == pytest.approx(3 * 0.002 + 0.005)


class Card(types.ModuleType):
    """A card in place of pynvml: 50 W, and 0.25 J for each call. Its energy advances every 20 ms."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        super().__init__("pynvml")
        self.calls, self.has_counter = 0, True

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert uuid == "GPU-1234"
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, card):
        if not self.has_counter:
            raise self.NVMLError("Not Supported")
        return 50_000 * time.perf_counter() + 250 * self.calls

    def __call__(self):
        self.calls += 1
        time.sleep(0.01)


def test_the_energy_of_a_call_is_that_of_its_counter_without_idle_power(powercap, monkeypatch):
    card = Card()
    monkeypatch.setitem(sys.modules, "pynvml", card)
    for name, value in [("is_available", lambda: True), ("synchronize", lambda: None), ("current_device", lambda: 0),
                        ("get_device_properties", lambda device: types.SimpleNamespace(uuid="1234"))]:
        monkeypatch.setattr(torch.cuda, name, value)
    (name, found), = spikeforge.energy(card, seconds=0.5).items()
    assert name == "gpu" and 10 <= found.calls < card.calls <= found.calls + 1 and 0.01 <= found.seconds < 0.1
    assert found.joules == pytest.approx(0.25, rel=1e-3) and found.idle_watts == pytest.approx(50, rel=0.2)
    assert found.watts - found.idle_watts == pytest.approx(0.25 / found.seconds, rel=0.1)
    assert found.error < 0.2 and "a call" in str(found)
    seconds, joules = numpy.array([1.0, 2, 1, 1]), numpy.array([10.0, 30, 12, 14])
    powers = joules / seconds
    assert measuring._power(seconds.tolist(), joules.tolist()) == pytest.approx((66 / 5, powers.std(ddof=1) / 2))
    card.has_counter = False
    refused(RuntimeError, r"gpu: NVML does not read the energy \(Not Supported\)", lambda: spikeforge.energy(card, counters=["gpu"]))


def test_energy_refuses_what_it_cannot_measure(powercap, monkeypatch):
    call = lambda: None
    none = "energy: counters of energy cannot be read: gpu: torch finds no CUDA device; cpu: .* has no zone of RAPL"
    refused(RuntimeError, none, lambda: spikeforge.energy(call))
    powercap("intel-rapl:0", "package-0", "", 1_000_000)
    refused(RuntimeError, "cpu: RAPL cannot be read", lambda: spikeforge.energy(call))
    powercap("intel-rapl:0", "package-0", 0, 1_000_000)
    assert spikeforge.energy(call, seconds=0.05)["cpu"].joules == 0
    refused(RuntimeError, "gpu: torch finds no CUDA device", lambda: spikeforge.energy(call, counters=["gpu", "cpu"]))
    refused(TypeError, "call must be a function without arguments, but is Tensor", lambda: spikeforge.energy(torch.ones(1)))
    refused(RuntimeError, "none is requested", lambda: spikeforge.energy(call, counters=[]))
    refused(ValueError, "counters must be among gpu, cpu, but one is 'tpu'", lambda: spikeforge.energy(call, counters=["tpu"]))
    for seconds in (0, -1, float("nan")):
        refused(ValueError, "seconds must be above 0", lambda: spikeforge.energy(call, seconds=seconds))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    refused(RuntimeError, "pip install nvidia-ml-py", lambda: spikeforge.energy(call, counters="gpu"))


# --- plot -------------------------------------------------------------------------------------------------------------

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from spikeforge import plot  # noqa: E402


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    pyplot.close("all")


def marks(ax):
    """Returns step and row of each mark."""
    boxes = [path.get_extents() for path in ax.collections[0].get_paths()]
    return sorted((round((box.x0 + box.x1) / 2 - 0.5, 6), round((box.y0 + box.y1) / 2, 6)) for box in boxes)


def test_a_raster_has_a_mark_for_each_spike(device):
    spikes = (torch.rand(20, 3, 2, 4, device=device) < 0.3).float().requires_grad_()
    ax = plot.raster(spikes, sample=1, title="hidden")
    expected = sorted((t, n) for t in range(20) for n in range(8) if spikes[t, 1].flatten()[n])
    assert marks(ax) == expected
    rate = 100 * spikes[:, 1].mean().item()
    assert ax.get_title(loc="left") == "hidden" and ax.get_title(loc="right") == f"{rate:.0f} % fire"
    assert ax.get_xlim() == (0, 20) and ax.get_ylim() == (-0.5, 7.5) and ax.get_xlabel() == "step"
    again = pyplot.subplots()[1]
    assert plot.raster(spikes[:, 1].flatten(1).detach().cpu().numpy(), again) is again
    assert marks(again) == expected


def test_a_raster_of_chosen_neurons_in_milliseconds():
    spikes = torch.zeros(10, 40)
    spikes[4, 30] = spikes[7, 5] = 1
    ax = plot.raster(spikes, neurons=[5, 30], dt=2.0)
    box = ax.collections[0].get_paths()[0].get_extents()
    assert 8 <= box.x0 < box.x1 <= 10 and ax.get_ylim() == (-0.5, 1.5) and ax.get_xlabel() == "time (ms)"
    assert ax.get_title(loc="right") == "2.5 Hz"  # 2 spikes of 40 neurons in 20 ms
    assert ax.get_ylabel() == "neuron (2 of 40)" and ax.yaxis.get_major_formatter()(1, 0) == "30"
    every = plot.raster(torch.ones(3, 1000), neurons=100)
    assert len(marks(every)) == 300 and every.get_ylabel() == "neuron (100 of 1000)"


def test_traces_are_the_values():
    v, spikes = torch.randn(30, 2, 5), (torch.rand(30, 2, 5) < 0.2).float()
    ax = plot.traces(v, spikes=spikes, neurons=[1, 4], threshold=1.0, sample=1, dt=0.5, title="v")
    lines = {line.get_label(): line for line in ax.lines}
    assert numpy.array_equal(lines["neuron 4"].get_ydata(), v[:, 1, 4].numpy())
    assert numpy.allclose(lines["neuron 4"].get_xdata(), (numpy.arange(30) + 0.5) * 0.5)
    at = [line.get_xdata() for line in ax.lines if line.get_marker() == "|"]
    assert numpy.allclose(at[0], (spikes[:, 1, 1].nonzero().flatten().numpy() + 0.5) * 0.5)
    assert any(numpy.array_equal(line.get_ydata(), [1, 1]) for line in ax.lines)


def test_rates_are_means_over_neurons_and_window():
    spikes = (torch.rand(12, 3, 50) < 0.3).double()
    ax = plot.rates({"a": spikes, "b": spikes[:6]}, window=3, dt=2.0)
    share = spikes.mean((1, 2))
    expected = [500 * share[max(t - 1, 0) : t + 2].mean().item() for t in range(12)]
    numpy.testing.assert_allclose(ax.lines[0].get_ydata(), expected)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"] and ax.get_ylabel() == "rate (Hz)"
    plain = plot.rates(spikes)
    numpy.testing.assert_allclose(plain.lines[0].get_ydata(), 100 * share)
    lif = snn.LIF()
    with Monitor(lif, "out") as monitor:
        lif(spikes * 3)
    numpy.testing.assert_allclose(plot.rates(monitor).lines[0].get_ydata(), 100 * monitor["out"].mean((1, 2)))


def test_costs_are_bars_of_layers():
    net, x = network_with_roles(), sequence()
    with count(net) as counted:
        net(x)
    ax = plot.costs(counted, title="operations")
    additions, products = ([bar.get_width() for bar in bars] for bars in ax.containers)
    assert additions == [0, counted.accumulates] and products == [counted.multiply_accumulates, 0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0.module", "2"]
    energy = counted.energy()
    ax = plot.costs(energy, pyplot.subplots()[1])
    compute, memory = ax.containers
    assert [bar.get_width() for bar in memory] == pytest.approx([layer.memory for layer in energy.layers])
    assert [bar.get_x() for bar in memory] == pytest.approx([layer.compute for layer in energy.layers]) and len(compute) == 4
    with count(nn.ReLU()) as nothing:
        plot.costs(nothing).figure.canvas.draw()
    refused(TypeError, r"must be a Count of spikeforge.count, or its energy\(\), but is Tensor", lambda: plot.costs(x))


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5,), (5, 0), (2, 1, 3, 3)])
def test_every_shape_is_drawn(shape, tmp_path):
    for dtype in (torch.bfloat16, torch.int32, torch.bool, torch.float64):
        spikes = torch.ones(shape, dtype=dtype)
        with torch.device("meta"):  # the default device has no effect
            axes = (plot.raster(spikes), plot.traces(spikes, spikes=spikes), plot.rates(spikes))
        for i, ax in enumerate(axes):
            ax.figure.savefig(tmp_path / f"{i}.png")
        pyplot.close("all")


def test_plots_refuse_wrong_arguments():
    spikes = torch.ones(4, 2, 3)
    with pytest.raises(ValueError, match=r"raster: sample must be below 2, the batch of spikes \[4, 2, 3\], but is 2"):
        plot.raster(spikes, sample=2)
    refused(ValueError, "neurons must be indices below 3, but one is 3", lambda: plot.raster(spikes, neurons=[3]))
    refused(ValueError, "dt must be milliseconds per step, above 0", lambda: plot.rates(spikes, dt=0))
    refused(ValueError, "window must be 1 or more", lambda: plot.rates(spikes, window=0))
    refused(TypeError, "values must be a tensor or array", lambda: plot.traces("v"))
    refused(ValueError, r"\[4, 2, 3\], but have \[4, 2, 2\]", lambda: plot.traces(spikes, spikes=spikes[..., :2]))


def test_without_matplotlib_an_error_names_it():
    program = """
import sys, torch, spikeforge; sys.modules["matplotlib"] = None
from spikeforge import plot
try: plot.raster(torch.ones(3, 2))
except ImportError as error: print(error)"""
    assert output_of(program).startswith("spikeforge.plot needs matplotlib: pip install matplotlib")


def test_the_program_of_the_documentation_runs(tmp_path):
    program = "".join(map(code, ("a network watched in Python", "a loss of rates", "the estimated energy of a network")))
    shown = output_of(program, cwd=tmp_path, env=os.environ | {"MPLBACKEND": "agg"})
    assert "torch.Size([200, 4, 100])" in shown and "multiply-accumulates" in shown and "compute" in shown
    assert pyplot.imread(tmp_path / "costs.png").std() > 0.05
    assert pyplot.imread(tmp_path / "spikes.png").std() > 0.05


# --- the demo ---------------------------------------------------------------------------------------------------------

def demo(*options, cwd):
    command = [sys.executable, "-m", "spikeforge.demo", *map(str, options)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.mark.long
def test_the_demo_learns_digits_and_draws(tmp_path):
    done = demo("--epochs", 3, "--device", "cpu", "--output", tmp_path / "pictures" / "digits.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.split("accuracy on the held-out digits: ")[1].split("%")[0])
    assert accuracy > 85, done.stdout
    picture = pyplot.imread(tmp_path / "pictures" / "digits.png")
    assert picture.shape[1] > 1000 and picture.std() > 0.05
    assert "rest.lif1" in done.stdout and done.stdout.count("epoch") == 3


@pytest.mark.long
def test_the_demo_refuses_in_one_line(tmp_path):
    for options, says in [
        (("--output", tmp_path / "digits.txt"), "must end in .png, .pdf, .svg"),
        (("--output", "/proc/none/digits.png"), "cannot write"),
        (("--epochs", 0), "must be 1 or more"),
        (("--device", "tpu"), "--device tpu"),
    ]:
        done = demo(*options, cwd=tmp_path)
        assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_values_before_the_first_step_are_neither_recorded_nor_counted():
    net, x = composite("in -> fc.in, lif.out -> out", fc=nn.Linear(5, 4), lif=snn.LIF()), sequence()
    net.connect("fc.out", "lif.in", delay=2, from_rest=True, shape=(3, 4))
    with Monitor(net, ["fc.out", "out"]) as monitor, count(net) as counted:
        y = net(x)
    torch.testing.assert_close(monitor["fc.out"], torch.stack([net.fc(row) for row in x]))
    assert torch.equal(monitor["out"], y)
    assert counted["fc"].multiply_accumulates == x.numel() * 4
