"""Containers and networks equal their parts called separately: in one call, in pieces and step by step; and errors."""

import copy
import itertools
import pickle
import time

import pytest
import spikeforge
import spikeforge.nn as snn
import torch
from loops import composite, in_pieces, in_steps, lif_step, refused, same
from spikeforge.nn.parts import output_like
from spikeforge.nn.plan import make_plan
from torch import nn

ops = torch.ops.spikeforge


def in_all_ways(net, x):
    """Returns the outputs of all steps, which must be the same for any division of the steps."""
    whole, last = net(x, None)
    assert torch.equal(net(x), whole)
    for sizes in ([1] * len(x), [2, 1, len(x) - 3]):
        y, state = in_pieces(net, x.split(sizes))
        assert torch.equal(y, whole) and same(state, last)
        with snn.keep_state(net):
            assert torch.equal(torch.cat([net(piece) for piece in x.split(sizes)]), whole)
            assert same(snn.get_states(net), last)
    y, state = in_steps(net, x)
    assert torch.equal(y, whole) and same(state, last)
    return whole


@torch.no_grad()
def with_exact_products(net, x):
    """Rounds weights and x to 16ths, so that matrix products are exact in any order, which depends on their size."""
    for p in net.parameters():
        p.copy_((16 * p).round() / 16)
    return (16 * x).round() / 16


# --- sequences ----------------------------------------------------------------------------------------------------------

def test_a_sequential_is_its_parts_one_after_the_other(device):
    net = snn.Sequential(nn.Linear(5, 4), snn.LIF(), nn.Linear(4, 3), snn.LI()).to(device)
    nn.init.uniform_(net[0].weight)
    x = with_exact_products(net, torch.rand(7, 3, 5, device=device))
    whole = in_all_ways(net, x)
    spikes = net[1](torch.stack([net[0](row) for row in x]))
    assert torch.equal(whole, net[3](torch.stack([net[2](row) for row in spikes]))) and 0 < spikes.mean() < 1
    assert [name for name, _ in net.named_children()] == ["0", "1", "2", "3"] and len(net) == 4


def test_a_sequential_takes_modules_of_ones_own_names_and_sequentials():
    block = nn.Sequential(nn.Linear(5, 5), snn.LIF())
    net = snn.Sequential({"block": block, "inner": snn.Sequential(snn.AdaptiveLIF()), "last": nn.Identity()}).append(snn.LI())
    x = with_exact_products(net.double(), 6 * torch.rand(6, 2, 5, dtype=torch.float64))
    whole = in_all_ways(net, x)
    assert torch.equal(whole, net[3](net.inner[0](block(x))))
    _, state = net(x, None)
    assert list(state) == ["block.1.v", "inner.0.v", "inner.0.a", "3.v"]


def test_the_states_of_all_steps_of_a_sequential():
    net, x = snn.Sequential(snn.LIF(), snn.TimeDistributed(nn.Linear(5, 4)), snn.LI()), 2 * torch.rand(6, 2, 5)
    y, states = net(x, store_states=True)
    assert torch.equal(y, net(x))
    for t in range(6):
        _, state = net(x[: t + 1], None)
        assert all(torch.allclose(states[name][t], value) for name, value in state.items())


def test_time_distributed_is_one_call():
    layer = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    calls = []
    layer.register_forward_hook(lambda *args: calls.append(1))
    x = torch.rand(5, 2, 3, 8, 8)
    y = snn.TimeDistributed(layer)(x)
    assert calls == [1] and y.shape == (5, 2, 4, 6, 6)
    reference = copy.deepcopy(layer)
    mean = x.flatten(0, 1)
    assert torch.allclose(y.flatten(0, 1), reference(mean), atol=1e-5), "the statistics are those over steps and batch"
    several = snn.TimeDistributed(*layer)
    assert torch.allclose(several(x), y, atol=1e-5)
    refused(ValueError, "TimeDistributed: LIF has neurons, which accept sequences", lambda: snn.TimeDistributed(snn.LIF()))
    with pytest.raises(ValueError, match=r"TimeDistributed: x must be \[T, B, ...\], time first, but has 1 dimensions"):
        several(torch.rand(4))


class Doubled(nn.Module):
    """A custom layer, unknown to the library."""

    def forward(self, x):
        return x * len(x)


PLAIN = {  # layer, shape of a step, number of calls for a sequence of 3 steps
    "Linear": (lambda: nn.Linear(5, 4), (2, 5), 1),
    "Linear without a batch": (lambda: nn.Linear(5, 4), (5,), 1),
    "activation": (lambda: nn.Softplus(), (2, 5), 1),
    "LayerNorm": (lambda: nn.LayerNorm(5), (2, 5), 1),
    "parametrized": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), (2, 5), 1),
    "LayerNorm of all dimensions": (lambda: nn.LayerNorm((2, 5)), (2, 5), 1),
    "LayerNorm over the batch": (lambda: nn.Sequential(nn.LayerNorm((2, 5)), nn.PReLU()), (2, 5), 3),
    "LayerNorm of samples": (lambda: nn.Sequential(nn.LayerNorm((4, 5)), nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(20)), (2, 4, 5), 1),
    "LayerNorm over the batch of what is flat": (lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm((2, 20))), (2, 4, 5), 3),
    "Conv1d of what is flat": (lambda: nn.Sequential(nn.Flatten(), nn.Conv1d(2, 3, 4)), (2, 4, 5), 3),
    "Conv1d": (lambda: nn.Conv1d(4, 2, 3), (2, 4, 5), 1),
    "Conv2d": (lambda: nn.Conv2d(4, 2, 3), (2, 4, 5, 5), 1),
    "Conv2d without a batch": (lambda: nn.Conv2d(4, 2, 3), (4, 5, 5), 3),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 2, 3, stride=2), (2, 4, 5, 5), 1),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 4, 5, 5), 1),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(2), (2, 4, 5), 1),
    "Flatten": (lambda: nn.Flatten(), (2, 4, 5, 5), 1),
    "Flatten of the batch": (lambda: nn.Flatten(0), (2, 4, 5), 3),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (2, 4, 5), 1),
    "PReLU": (lambda: nn.PReLU(4), (2, 4, 5), 1),
    "BatchNorm": (lambda: nn.BatchNorm1d(5), (4, 5), 3),
    "BatchNorm in evaluation": (lambda: trained(nn.BatchNorm2d(4)), (2, 4, 5, 5), 1),
    "several": (lambda: nn.Sequential(nn.Conv2d(4, 2, 3), nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), nn.Flatten(), nn.Linear(2, 3)), (2, 4, 5, 5), 1),
    "several with statistics": (lambda: nn.Sequential(nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2)), (2, 4, 5, 5), 3),
    "Softmax": (lambda: nn.Softmax(0), (2, 5), 3),
    "one's own": (Doubled, (2, 5), 3),
}


@pytest.mark.parametrize("layer, shape", [(nn.LayerNorm((6, 3, 4)), (6, 3, 4)), (nn.Linear(6, 2), (6,))], ids=["LayerNorm", "Linear"])
def test_a_layer_that_would_span_time_is_refused(layer, shape):
    with pytest.raises(RuntimeError):  # torch's error for one step
        snn.Sequential(layer)(torch.rand(shape))


def trained(norm):
    nn.init.uniform_(norm.weight)
    norm(2 + torch.rand(6, 4, 5, 5))
    return norm.eval()


@pytest.mark.parametrize("kind", PLAIN)
def test_a_sequential_calls_layers_that_treat_each_step_alike_once(kind):
    """Compares values and gradients with a loop; a Composite calls all once per step; a Monitor sees sequences."""
    make, shape, expected_calls = PLAIN[kind]
    layer, calls = make().double(), []
    nets = [snn.Sequential(copy.deepcopy(layer), snn.LIF(v_threshold=0.2)) for _ in range(2)]
    handle = nets[0][0].register_forward_hook(lambda *args: calls.append(1))
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    expected = snn.LIF(v_threshold=0.2)(torch.stack([layer(row) for row in x]))
    for run in (nets[0], lambda x: nets[1](x, None)[0]):
        y = run(x)
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        grads = [torch.autograd.grad((z * (z + 1)).sum(), x, retain_graph=True)[0] for z in (y, expected)]
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)
    assert len(calls) == expected_calls
    for key, value in layer.named_buffers():
        torch.testing.assert_close(nets[0][0].get_buffer(key), value)
    with spikeforge.Monitor(nets[0], "0.out") as monitor:
        nets[0](x)
    rows = torch.stack([copy.deepcopy(layer)(row) for row in x]).detach()
    torch.testing.assert_close(monitor["0.out"], rows, rtol=1e-12, atol=1e-12)
    handle.remove()

    calls = []
    layer.register_forward_hook(lambda *args: calls.append(1))
    composite("in -> layer.in, layer.out -> out", layer=layer)(x)
    assert len(calls) == 3


def test_a_sequential_is_sliced_and_changed_as_torchs():
    parts = lambda: [nn.Linear(5, 4), snn.LIF(), nn.Linear(4, 4), snn.LI()]
    ours, theirs = snn.Sequential(*parts()), nn.Sequential(*parts())
    for net in (ours, theirs):
        assert type(net[1:]) is type(net) and net[1:][1] is net[2] and len(net[:-1]) == 3 and net[-1] is net[3]
        net[0] = nn.Linear(6, 4)
        net[-1] = nn.Identity()
        del net[1]
        del net[1:2]
        with pytest.raises(IndexError):
            net[2]
        with pytest.raises(IndexError):
            net[5] = nn.Identity()
        with pytest.raises(IndexError):
            del net[-3]
        net.append(snn.LIF())
    assert [(name, type(part)) for name, part in ours.named_children()] == [(name, type(part)) for name, part in theirs.named_children()]
    assert list(ours[1:].state_dict()) == list(theirs[1:].state_dict())
    x = torch.rand(3, 2, 6)
    _, state = ours(x, None)
    assert list(state) == ["2.v"] and ours[2]._title() == "LIF '2'"
    tail = snn.Sequential(*parts())[2:].append(snn.IF())
    assert [name for name, _ in tail.named_children()] == ["2", "3", "4"]
    with pytest.raises(TypeError, match="Sequential: part 0 must be a module of torch, but is int"):
        ours[0] = 3
    named = snn.Sequential({"a": nn.Linear(6, 4), "b": snn.LIF()})
    named[1] = snn.IF()
    assert type(named.b) is snn.IF and list(named[:1].state_dict()) == ["a.weight", "a.bias"]


# --- recurrence, delays --------------------------------------------------------------------------------------------------

def test_a_recurrent_cell_is_its_loop(device):
    net = snn.Recurrent(snn.LIF(tau=2.0), nn.Linear(5, 5)).to(device).double()
    x = 3 * torch.rand(9, 4, 5, device=device, dtype=torch.float64)
    whole = in_all_ways(net, x)
    v, s = torch.zeros_like(x[0]), torch.zeros_like(x[0])
    for t in range(9):
        s, v = lif_step(x[t] + net.module(s), v)
        assert torch.equal(whole[t], s)
    assert 0 < whole.mean() < 1
    _, state = net(x, None)
    assert list(state) == ["cell.v", "cell_out_to_module_in"] and torch.equal(state["cell_out_to_module_in"][0], s)


def test_a_recurrent_cell_and_a_module_of_another_width_name_both_ends():
    words = r"Recurrent: 'module.out' has an output of shape \[4, 8\] .* but 'cell.in' takes \[4, 16\]"
    refused(ValueError, words, lambda: snn.Recurrent(snn.LIF(), nn.Linear(16, 8))(torch.rand(3, 4, 16)))


def late_loop(*, delay_there, delay_back, from_rest=False, bias=True):
    text = "neuron two(x, y; v; k) { h = 0.5 * v + x * k; return tanh(h + y), h; v' = h - y }"
    net = composite("x -> a.x, y -> a.y", a=snn.Neuron(text, k=snn.Learnable(0.7)), w=nn.Linear(4, 4, bias=bias))
    net.connect("a.out0", "w.in", delay=delay_there, shape=(3, 4))
    net.connect("w.out", "a.y", delay=delay_back, from_rest=from_rest)
    net.connect("a.out1", "h")
    net.connect("a.out0", "out")
    return net


LOOPS = {
    "LIF": lambda: snn.Recurrent(snn.LIF(tau=snn.Learnable(2.0, min=1.0, per_channel=4)), nn.Linear(4, 4)),
    "CubaLIF without bias": lambda: snn.Recurrent(snn.CubaLIF(v_reset=None), nn.Linear(4, 4, bias=False)),
    "late": lambda: late_loop(delay_there=0, delay_back=3),
    "late, from rest": lambda: late_loop(delay_there=0, delay_back=2, from_rest=True),
    "late before the Linear": lambda: late_loop(delay_there=3, delay_back=0),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_through_a_linear_is_one_operator_and_the_same_as_its_steps(kind, device):
    net = LOOPS[kind]().to(device).double()
    assert "one operator over time" in repr(net)
    stepped = copy.deepcopy(net)
    (linear,) = (module for module in stepped.children() if isinstance(module, nn.Linear))
    linear.register_forward_hook(lambda module, args, out: None)
    assert "stepped (the Linear has a custom forward or hooks)" in repr(stepped)
    for weight in (*net.parameters(), *stepped.parameters()):
        torch.manual_seed(weight.numel())
        if weight.dim():
            nn.init.uniform_(weight, 0, 1.5)
    x = [(2 * torch.rand(7, 3, 4, device=device, dtype=torch.float64)).requires_grad_() for _ in net.in_ports]
    state, found = None, []
    with torch.profiler.profile() as profile:
        for piece in zip(*(each.split([2, 5]) for each in x)):
            y, state = net(*piece, state)
            found.append(y)
    assert sum(event.name == "spikeforge::recurrent_run" for event in profile.events()) == 2
    want, last = stepped(*x, None)
    several = isinstance(want, tuple)
    outputs = [torch.cat(column) for column in zip(*found)] if several else [torch.cat(found)]
    results = [*outputs, *state.values()], [*(want if several else [want]), *last.values()]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    assert list(state) == list(last)
    losses = (sum(y.sin().sum() for y in each) for each in results)
    grads = [torch.autograd.grad(loss, [*x, *each.parameters()]) for loss, each in zip(losses, (net, stepped))]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spiking, nested, steps, most", [(True, False, 1, 1), (True, False, 5, 1), (True, True, 5, 2),
                                                          (False, False, 5, 2)])
def test_a_recurrent_layer_reads_a_parametrised_weight_once_a_call_or_twice_where_it_is_stepped(spiking, nested, steps, most):
    class Reads(nn.Module):
        count = 0

        def forward(self, weight):
            self.count += 1
            return 2 * weight

    linears = [nn.Linear(4, 4) for _ in range(2)]
    net, plain = (snn.Recurrent(snn.LIF(spiking=spiking), nn.Sequential(linear) if nested else linear) for linear in linears)
    plain.load_state_dict({name: 2 * p if name.endswith("weight") else p for name, p in net.state_dict().items()})
    reads = Reads()
    nn.utils.parametrize.register_parametrization(linears[0], "weight", reads)
    reads.count, x = 0, 2 * torch.rand(steps, 2, 4)
    y = net(x)
    assert torch.equal(y, plain(x)) and reads.count == most
    if steps > 1:
        y.sum().backward()
        plain(x).sum().backward()
        torch.testing.assert_close(linears[0].parametrizations.weight.original.grad, 2 * linears[1].weight.grad)


def test_a_weight_whose_first_read_is_for_a_shape_has_its_gradient():
    """Shapes of values in flight are computed without gradients; later steps must not reuse that weight."""
    net = excitation_and_inhibition(("there", "e", "back", "i"), (1, 1, 1, 1))
    x = 4 * torch.rand(6, 2, 3, dtype=torch.float64)
    want = torch.autograd.grad(net(x).sum(), net.there.weight)[0]
    nn.utils.parametrize.register_parametrization(net.there, "weight", nn.Identity())
    got = torch.autograd.grad(net(x).sum(), net.there.parametrizations.weight.original)[0]
    assert torch.equal(got, want) and want.any()


def excitation_and_inhibition(order, delays, *, from_rest=False, shape=None):
    """Returns a network e -> there -> i -> back -> e."""
    parts = {"e": snn.LIF(), "there": nn.Linear(3, 5), "i": snn.LIF(v_threshold=0.5), "back": nn.Linear(5, 3)}
    net = snn.Composite()
    for name in order:
        net.add(name, parts[name])
    net.connect("in", "e.in")
    for source, target, delay in zip(parts, (*list(parts)[1:], "e"), delays):
        net.connect(f"{source}.out", f"{target}.in", delay=delay, from_rest=from_rest, shape=shape)
    net.connect("e.out", "out")
    return net.double()


@pytest.mark.parametrize("from_rest", [False, True])
@pytest.mark.parametrize("order", [("e", "there", "i", "back"), ("back", "i", "there", "e"), ("there", "e", "back", "i")])
@pytest.mark.parametrize("delays", [(0, 1, 0, 2), (1, 0, 2, 0), (1, 1, 1, 1), (0, 0, 0, 1), (2, 0, 0, 0), (0, 0, 1, 0)])
def test_a_loop_needs_no_shape_and_takes_any_batch(delays, order, from_rest):
    net = excitation_and_inhibition(order, delays, from_rest=from_rest)
    silent = {"e": torch.zeros(3), "there": net.there.bias, "i": torch.zeros(5), "back": net.back.bias}
    for batch in (4, 2):
        x = 4 * torch.rand(6, batch, 3, dtype=torch.float64)
        lines = {
            name: [(rest if from_rest else torch.zeros_like(rest)).double().expand(batch, -1)] * delay
            for (name, rest), delay in zip(silent.items(), delays)
        }
        v = {"e": torch.zeros(batch, 3, dtype=torch.float64), "i": torch.zeros(batch, 5, dtype=torch.float64)}
        whole = in_all_ways(net, x)
        for t in range(6):
            sent = {}
            while len(sent) < 4:  # each part after its inputs
                for source, name in zip(("back", "e", "there", "i"), silent):
                    if name in sent or not (lines[source] or source in sent):
                        continue
                    current = lines[source][0] if lines[source] else sent[source]
                    if name == "e":
                        sent[name], v[name] = lif_step(x[t] + current, v[name])
                    elif name == "i":
                        sent[name], v[name] = lif_step(current, v[name], v_threshold=0.5)
                    else:
                        sent[name] = getattr(net, name)(current)
            lines = {name: [*line, sent[name]][1:] for name, line in lines.items()}
            assert torch.equal(whole[t], sent["e"])


def test_a_loop_without_shapes_nests_and_compiles():
    inner = excitation_and_inhibition(("back", "i", "there", "e"), (1, 0, 2, 0), shape=(4, 3))
    connections = "in -> inner.in, inner.out -> again.in 1, again.out -> inner.in, inner.out -> out"
    net = composite(connections, inner=inner, again=nn.Linear(3, 3).double())
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for batch in (4, 2):
        x = 4 * torch.rand(5, batch, 3, dtype=torch.float64)
        assert torch.equal(compiled(x), net(x)) and net(x).any()


def test_finding_a_shape_changes_nothing():
    norm, dropout = nn.BatchNorm1d(7), nn.Dropout()
    cell = snn.Sequential(snn.DelayedLinear(4, 7, 2), norm, dropout, snn.LIF())
    net, x = snn.Recurrent(cell, nn.Linear(7, 4)), torch.rand(3, 2, 4)
    with spikeforge.Monitor(net, ["cell.0.out", "cell.3.out"]) as monitor:
        y = net(x)
    assert y.shape == (3, 2, 7) and torch.equal(monitor["cell.3.out"], y) and len(monitor["cell.0.out"]) == 3
    assert norm.num_batches_tracked == 3 and norm.training and dropout.training

    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    drawn = torch.get_rng_state()
    for part in (Noisy(), snn.Poisson(), snn.Sequential(Noisy(), snn.LIF())):
        assert output_like(part, [x[:1]])[0].shape == x[:1].shape
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_state_of_another_batch_is_refused():
    words = r"the state cell_out_to_module_in holds values of shape \[{}, 4\] .*, but the new values have shape \[{}, 4\] .*; {}"
    net = snn.Recurrent(snn.LIF(), nn.Linear(4, 4), stateful=True)
    for steps in (1, 3):
        for before, now in ((3, 2), (3, 1), (1, 3)):
            snn.reset_(net)
            net(torch.rand(2, before, 4))
            refused(ValueError, words.format(before, now, "call spikeforge.nn.reset_"), lambda: net(torch.rand(steps, now, 4)))
            _, state = snn.call(net, torch.rand(2, before, 4))
            with pytest.raises(ValueError, match=words.format(before, now, "pass None|call")):
                net(torch.rand(steps, now, 4), {"cell_out_to_module_in": state["cell_out_to_module_in"]})


@pytest.mark.parametrize("cell", [snn.LIF, snn.LI])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_state_of_another_type_or_width_is_refused(cell, steps):
    net, x = snn.Recurrent(cell(), nn.Linear(4, 4), stateful=True), torch.rand(steps, 2, 4)
    for state, words in (
        (torch.zeros(1, 2, 3), r"shape \[2, 3\] \(float32"),
        (torch.zeros(1, 4), r"shape \[4\] \(float32"),
        (torch.zeros(1, 2, 4, dtype=torch.float64), r"shape \[2, 4\] \(float64"),
        (torch.zeros(2, 2, 4), r"must be \[1, \*shape\], but has shape \[2, 2, 4\]"),
    ):
        refused(ValueError, "the state cell_out_to_module_in .*" + words, lambda: net(x, {"cell_out_to_module_in": state}))
    net(x)
    net.bfloat16()
    refused(ValueError, r"holds values .* \(float32, cpu\), but the new values have shape \[2, 4\] \(bfloat16, cpu\)", lambda: net(x.bfloat16()))


def test_a_term_of_a_loop_broadcasts_without_a_batch_as_with_one():
    connections = "in -> lif.in, lif.out -> layer.in 1, layer.out -> lif.in, lif.out -> out"
    net = composite(connections, lif=snn.LIF(), layer=nn.Linear(10, 1))
    x = 3 * torch.rand(6, 10)
    assert torch.allclose(net(x), net(x.unsqueeze(1)).squeeze(1)) and net(x).any()


def test_a_network_whose_output_is_delayed_has_its_shape_at_rest():
    net = composite("in -> layer.in, layer.out -> out 1", layer=nn.Linear(4, 7))
    (rest,) = net.at_rest((torch.zeros(1, 3, 4),))
    assert torch.equal(rest, torch.zeros(1, 3, 7))


@pytest.mark.parametrize("order", itertools.permutations(("e", "there", "i", "back")))
def test_parts_of_a_loop_whose_outputs_are_delayed_are_added_in_any_order(order):
    def made(order):
        torch.manual_seed(3)
        of_part = "in -> layer.in, layer.out -> lif.in, lif.out -> out 1"
        parts = {
            name: composite(of_part, layer=nn.Linear(n, m), lif=snn.LIF(v_threshold=0.1))
            for name, n, m in (("e", 5, 8), ("there", 8, 3), ("i", 3, 3), ("back", 3, 5))
        }
        loop = "e.out -> there.in 1, there.out -> i.in 1, i.out -> back.in 1, back.out -> e.in 1"
        return composite(f"in -> e.in, {loop}, e.out -> out", **{name: parts[name] for name in order})

    x = 4 * torch.rand(9, 2, 5)
    y = made(order)(x)
    assert torch.equal(y, made(("e", "there", "i", "back"))(x)) and y.any()


def test_a_pickle_without_what_is_found_from_connections_loads():
    net, x = snn.Recurrent(snn.LIF(), nn.Linear(4, 4)), 3 * torch.rand(5, 2, 4)
    y = net(x)
    file = {key: value for key, value in vars(net).items() if key not in ("_into", "_leaving", "_delayed")}
    loaded = snn.Composite.__new__(snn.Composite)
    loaded.__setstate__(file | {"state_names": net.state_names, "_plan": "of another version"})
    assert torch.equal(loaded(x), y) and loaded.state_names == net.state_names == ("cell_out_to_module_in",)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), y)
    of_0_1 = pickle.dumps(net, protocol=0).replace(b"cspikeforge.nn.composite\n", b"cspikeforge.nn.network\n")
    assert b"nn.network" in of_0_1 and torch.equal(pickle.loads(of_0_1)(x), y)


def test_a_network_of_many_parts_is_planned_in_time():
    count = 100_000
    parts = [f"p{i}" for i in range(count)]
    times = []
    for _ in range(3):
        start = time.process_time()
        chain = make_plan(parts, [(a, b, 0) for a, b in zip(parts, parts[1:])])
        times.append(time.process_time() - start)
    assert min(times) < 1
    start = time.process_time()
    ring = make_plan(parts, [(a, b, int(b == "p0")) for a, b in zip(parts, [*parts[1:], "p0"])])
    assert [stage.parts for stage in chain] == [(part,) for part in parts] and not any(stage.is_loop for stage in chain)
    planned = time.process_time() - start
    assert [stage.parts for stage in ring] == [tuple(parts)] and ring[0].is_loop
    for names in (parts[:3000], parts[2999::-1]):
        chained = [f"{source}.out -> {target}.in" for source, target in zip(names, names[1:])]
        connections = [*chained, f"in -> {names[0]}.in", f"{names[-1]}.out -> out"]
        net = composite(", ".join(connections), **{name: snn.IF() for name in parts[:3000]})
        y, state = net(torch.ones(2, 1, 1), None)
        assert y.sum() == 2 and len(state) == 3000
    assert planned < 5 and time.process_time() - start < 30
    start = time.process_time()
    net = snn.Composite()
    net.add("hub", snn.IF())
    for i in range(3000):  # many connections to and from one port
        net.add(f"a{i}", snn.IF()), net.add(f"b{i}", snn.IF())
        for source, target in (("in", f"a{i}.in"), ("hub.out", f"b{i}.in"), (f"a{i}.out", "hub.in"), (f"b{i}.out", "out")):
            net.connect(source, target)
    refused(ValueError, "closes the loop a7 -> hub -> b5 -> a7 without a delay", lambda: net.connect("b5.out", "a7.in"))
    assert len(net._make_plan()) == 6001 and time.process_time() - start < 10


def test_many_ports_of_a_network_are_found_without_a_search():
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    net = snn.Composite()
    net.add("a", nn.Identity())
    for i in range(300):
        net.connect("a.out", Name(f"out{i}"))
    assert net.out_ports == tuple(f"out{i}" for i in range(300)) and compared < 300 * 10


@pytest.mark.parametrize("steps", [0, 3, torch.tensor([0, 3, 1, 2, 7]), torch.tensor([[1], [0], [2]])])
def test_delays(steps, device):
    x = torch.randn(8, 3, 5, device=device)
    delay = snn.Delay(steps).to(device)
    y = in_all_ways(delay, x)
    each = torch.as_tensor(steps).expand(3, 5)
    for b in range(3):
        for i in range(5):
            d = int(each[b, i])
            want = torch.cat((torch.zeros(d, device=device), x[:, b, i]))[:8]
            assert torch.equal(y[:, b, i], want)


def full_network():
    return composite(
        "in -> dense.in, dense.out -> lif.in 1, lif.out -> lateral.in, lateral.out -> lif.in 3, lif.out -> read.in 2, "
        "lif.out -> read.in, read.out -> out",
        dense=nn.Linear(5, 4), lif=snn.LIF(), lateral=nn.Linear(4, 4), read=snn.LI(),
    )


def test_a_network_is_its_connections(device):
    net = full_network().to(device).double()
    x = with_exact_products(net, 8 * torch.rand(9, 3, 5, device=device, dtype=torch.float64))
    whole = in_all_ways(net, x)
    zeros = x.new_zeros(3, 4)
    v, read, spikes, lateral, dense = zeros, zeros, [], [], []
    for t in range(9):
        dense.append(net.dense(x[t]))
        arriving = (dense[t - 1] if t >= 1 else zeros) + (lateral[t - 3] if t >= 3 else zeros)
        s, v = lif_step(arriving, v)
        spikes.append(s)
        lateral.append(net.lateral(s))
        into = (spikes[t - 2] if t >= 2 else zeros) + s
        read = read + (into - read) / 2
        assert torch.allclose(whole[t], read, atol=1e-12)
    assert 0 < torch.stack(spikes).mean() < 1


def test_parts_on_no_loop_run_over_all_steps_at_once():
    net, calls = full_network(), []
    for part in (net.lif, net.read):
        part.register_forward_hook(lambda module, args, out: calls.append((module._path, len(args[0]))))
    net(torch.rand(6, 3, 5))
    assert calls == [("lif", 1)] * 6 + [("read", 6)]


def test_networks_nest_and_have_several_ports():
    inner = snn.Recurrent(snn.LIF(), nn.Linear(4, 4))
    net = composite(
        "left -> inner.in, inner.out -> two.a, right -> two.b 1, two.out0 -> sum, two.out1 -> product", inner=inner,
        two=snn.Neuron("neuron two(a, b; v) { h = 0.5 * v + a - b; return h, a * b; v' = h }"),
    )
    assert net.in_ports == ("left", "right") and net.out_ports == ("sum", "product")
    left, right = 4 * torch.rand(6, 2, 4), torch.rand(6, 2, 4)
    (total, product), state = net(left, right, None)
    late = torch.cat((torch.zeros(1, 2, 4), right[:5]))
    assert torch.equal(product, inner(left) * late)
    assert set(state) == {"inner.cell.v", "inner.cell_out_to_module_in", "right_to_two_b", "two.v"}

    def call(piece, state):
        (y, _), state = net(*piece, state)
        return y, state

    assert torch.equal(in_pieces(call, zip(left.split(2), right.split(2)))[0], total)
    refused(TypeError, "Composite: takes 2 inputs, then optionally a state, but got 1 arguments", lambda: net(left))
    with pytest.raises(ValueError, match=r"Composite: inputs must have the same number of steps, but the first has 6 and 'right' has 5"):
        net(left, right[:5])


def test_a_network_that_starts_from_rest_counts_no_batch_that_finds_it():
    norm = composite("in -> norm.in", norm=nn.BatchNorm1d(4))
    norm.connect("norm.out", "out", delay=1, from_rest=True)
    norm(torch.rand(6, 3, 4))
    assert norm.get("norm.num_batches_tracked") == 6


def test_a_connection_may_need_its_shape():
    net = composite("a.out -> b.in, b.out -> a.in 1, in -> out", a=snn.LIF(), b=snn.LIF())
    with pytest.raises(ValueError, match="Composite: every input of 'a.in' is still in flight at the first step, .* shape=..."):
        net(torch.rand(3, 2, 4))
    other = composite("in -> out, a.out -> spikes", a=snn.LIF())
    other.connect("a.out", "a.in", delay=1, shape=[2, 4])
    y, spikes = other(torch.rand(3, 2, 4))
    assert spikes.shape == (3, 2, 4) and spikes.sum() == 0


# --- names ---------------------------------------------------------------------------------------------------------------

def test_variables_are_read_and_written_by_name():
    lif = snn.LIF(tau=snn.Learnable(3.0), stateful=True)
    inner = composite("in -> lif.in 2, lif.out -> out", stateful=True, lif=lif)
    inner.alias("tau", "lif.tau")
    net = composite("in -> inner.in, inner.out -> out", inner=inner)
    net.alias("tau", "inner.tau")
    net.alias("v", "inner.lif.v", shape=[2, 4])
    assert net.get("tau") is inner.lif.tau and net.get("v") is None
    net.set("tau", torch.tensor(5.0))
    assert inner.lif.tau.item() == 5.0 and inner.lif.tau.requires_grad
    x = 3 * torch.rand(5, 2, 4)
    net(x)
    assert torch.equal(net.get("v"), snn.get_states(net)["inner.lif.v"]) and net.get("inner.in_to_lif_in").shape == (2, 2, 4)
    net.set("v", torch.full((2, 4), 0.5))
    assert (net.get("inner.lif.v") == 0.5).all()
    for wrong, message in [
        (lambda: net.get("w"), "Composite: there is no state, parameter, buffer or alias 'w'"),
        (lambda: net.set("v", torch.zeros(3)), r"Composite: 'v' has shape \[2, 4\], but the new value has \[3\]"),
        (lambda: net.alias("x", "inner.lif.q"),
         "Composite: the alias 'x' must name a state, parameter or buffer of a submodule"),
        (lambda: net.alias("v", "inner.lif.v"), "Composite: alias 'v': the name is taken"),
        (lambda: net.alias("y", "inner.lif.tau", shape=[3]),
         r"the alias 'y' must have shape \[3\], but 'inner.lif.tau' has shape \[\]"),
    ]:
        refused(ValueError, message, wrong)


def connected():
    return composite("in -> a.in, a.out -> b.in, b.out -> c.in", a=snn.LIF(), b=snn.LIF(), c=snn.LIF())


@pytest.mark.parametrize("wrong, message", [
    (lambda n: n.connect("c.out", "a.in"),
     r"connecting 'c.out' to 'a.in' closes the loop a -> b -> c -> a without a delay; give .* delay=1"),
    (lambda n: n.connect("b.out", "b.in"), "closes the loop b -> b without a delay"),
    (lambda n: n.connect("a.out", "b.in"), "'a.out' is connected to 'b.in' already"),
    (lambda n: n.connect("a.spikes", "b.in"), "'a' has no output 'spikes'; it has out"),
    (lambda n: n.connect("a.out", "b.x"), "'b' has no input 'x'; it has in"),
    (lambda n: n.connect("d.out", "b.in"), "there is no part 'd' for the port 'd.out'"),
    (lambda n: n.connect("a.out", "a"), "'a' is a part, not a port of the network; use 'a.in'"),
    (lambda n: n.connect("a", "out"), "'a' is a part, not a port of the network; use 'a.out'"),
    *((lambda n, delay=delay: n.connect("in", "b.in", delay=delay),
       "the delay from 'in' to 'b.in' must be a whole number of steps, but is") for delay in (1.5, True, "2")),
    (lambda n: n.connect("a.out", "b.in", delay=-1), "the delay from 'a.out' to 'b.in' must be 0 or more steps, but is -1"),
    (lambda n: n.add("a", snn.LIF()), "part 'a': the name is taken"),
    (lambda n: n.add("x.y", snn.LIF()), "part 'x.y' must be a name without dots"),
    (lambda n: n.add("forward", snn.LIF()), "part 'forward': the name is taken"),
    (lambda n: n.add(3, snn.LIF()), "name of a part must be a str, but is int: 3"),
    (lambda n: (n.connect("b.out", "a.in", delay=1), n.add("b_out_to_a_in", snn.LIF())),
     "part 'b_out_to_a_in': the connection from 'b.out' to 'a.in' has a state of this name; choose another name"),
    (lambda n: (n.add("b_out_to_a_in", snn.LIF()), n.connect("b.out", "a.in", delay=1)),
     "connection from 'b.out' to 'a.in': rename the part or alias that has the name of its state 'b_out_to_a_in': the name is taken"),
    (lambda n: n.add("lif", 3), "part 'lif' must be a module of torch, but is int"),
    (lambda n: (n.add("d", snn.LIF()), n(torch.rand(3, 4))), "nothing is connected to 'd.in'"),
    (lambda n: n(), "takes 1 input, then optionally a state, but got 0 arguments"),
    (lambda n: snn.Composite()(), "no connection starts at an input of the network"),
    (lambda n: n(3.0), r"input 'in' must be a tensor \[T, \*shape\], time first, but is float"),
])
def test_a_network_refuses_wrong_connections_and_calls(wrong, message):
    net = connected()
    with pytest.raises((TypeError, ValueError), match=message) as error:
        wrong(net)
    assert str(error.value).startswith("Composite: ") and "\n" not in str(error.value)


def test_a_refused_connection_leaves_the_network_as_it_was():
    net = connected()
    before = str(net), net.in_ports, net.out_ports
    for source, target in (("c.out", "a.in"), ("new", "a.q"), ("a.q", "new")):
        with pytest.raises(ValueError):
            net.connect(source, target)
    assert (str(net), net.in_ports, net.out_ports) == before


def test_errors_name_the_module_within_its_network():
    net = composite("in -> hidden.in, hidden.out -> out", hidden=snn.Sequential(nn.Linear(4, 4), snn.LIF()))
    with pytest.raises(TypeError, match="LIF 'hidden.1': x must be float16, .* but is int32"):
        net.hidden[1](torch.ones(3, 4, dtype=torch.int32))
    with snn.keep_state(net):
        net(torch.rand(3, 2, 4))
        refused(ValueError, r"LIF 'hidden.1': the kept state v has shape \[2, 4\]", lambda: net(torch.rand(3, 5, 4)))


# --- fixed point ---------------------------------------------------------------------------------------------------------

def spikes_of(*shape):
    return (torch.rand(shape) < 0.4).int()


LOIHI_FORMS = {"plain": {}, "reset": {"reset_interval": 3, "reset_offset": 1}, "refractory": {"refractory_period": 2}}


@pytest.mark.parametrize("ternary", [False, True])
@pytest.mark.parametrize("form", LOIHI_FORMS)
@pytest.mark.parametrize("tensors", [(), ("bias_mant",), ("du", "dv", "bias_mant", "bias_exp", "vth", "vth_hi", "vth_lo")])
def test_loihis_neurons_are_their_operators(ternary, form, tensors, device):
    steps = LOIHI_FORMS[form]
    constants = dict(du=2000, dv=300, bias_mant=900, bias_exp=1) | (dict(vth_hi=30, vth_lo=-20) if ternary else dict(vth=25))
    name = f"loihi{'_ternary' if ternary else ''}_lif{'' if form == 'plain' else '_' + form}"
    x = 600 * torch.randint(-5, 10, (12, 2, 4), dtype=torch.int32, device=device)
    want = getattr(ops, name)(x, **constants, **steps)
    given = constants | {key: torch.full((4,), constants[key], dtype=torch.int32) for key in tensors if key in constants}
    module = snn.LoihiLIF(ternary=ternary, form=form, **given, **steps).to(device)
    y, state = module(x, None)
    assert len(state) == len(want) - 1 and all(map(torch.equal, (y, *state.values()), want))
    assert y.abs().sum() > 0 and torch.equal(in_all_ways(module, x), y)
    assert torch.equal(module.half()(x), y), "integers stay integers"


def test_loihis_connections_are_their_operators(device):
    weight = ops.loihi_prepare_weights(torch.randint(-200, 200, (3, 5), dtype=torch.int32, device=device))
    x = spikes_of(8, 2, 5).to(device)
    dense = snn.LoihiDense(weight, delay=2, weight_exp=1)
    assert torch.equal(in_all_ways(dense, x), ops.loihi_dense(x, weight, delay=2, weight_exp=1)[0])
    sparse = weight.to_sparse_csr()
    csr = sparse.crow_indices(), sparse.col_indices(), sparse.values()
    assert torch.equal(in_all_ways(snn.LoihiSparse(*csr, delay=1), x), ops.loihi_sparse(x, *csr, delay=1)[0])
    assert torch.equal(snn.LoihiSparse(*csr, delay=0)(x), snn.LoihiDense(weight, delay=0)(x))
    delays = torch.randint(0, 4, (3, 5), dtype=torch.int32, device=device)
    module = snn.LoihiDelayDense(weight, delays, max_delay=3)
    assert torch.equal(in_all_ways(module, x), ops.loihi_delay_dense(x, weight, delays, max_delay=3)[0])


def test_a_network_of_loihis_modules():
    weight = ops.loihi_prepare_weights(torch.randint(-200, 200, (4, 4), dtype=torch.int32))
    lif = snn.LoihiLIF(du=4095, dv=128, vth=2, bias_mant=torch.arange(0, 4000, 1000, dtype=torch.int32))
    connections = "in -> lif.in, lif.out -> back.in, back.out -> lif.in 1, lif.out -> out"
    net = composite(connections, lif=lif, back=snn.LoihiDense(weight, delay=0))
    y = in_all_ways(net, 64 * spikes_of(10, 2, 4))
    assert y.dtype == torch.int32 and 0 < y.sum() < y.numel()


@pytest.mark.parametrize("wrong, message", [
    (lambda: snn.LoihiLIF(du=5000), r"LoihiLIF: du must be in \[-1, 4095\], but is 5000"),
    (lambda: snn.LoihiLIF(du=torch.tensor([5000], dtype=torch.int32)), "LoihiLIF: du must be in"),
    (lambda: snn.LoihiLIF(vth_hi=3),
     "LoihiLIF: vth_hi is not an argument of loihi_lif, which has du, dv, bias_mant, bias_exp, vth"),
    (lambda: snn.LoihiLIF(form="soft"), "LoihiLIF: form must be plain, reset, refractory, but is 'soft'"),
    (lambda: snn.LoihiLIF(du=1.0), "LoihiLIF: du must be a whole number or an int32 tensor, but is float"),
    (lambda: snn.LoihiLIF()(torch.rand(3, 4).half()),
     r"LoihiLIF: x must be int32 or float32 or float64, but is float16; pass x.to\(torch.int32\)"),
    (lambda: snn.LoihiLIF()(spikes_of(3, 4), {"v": spikes_of(3)}), "LoihiLIF: v must have shape .*; pass None to restart"),
    (lambda: snn.LoihiDense(torch.rand(3, 4)), r"LoihiDense: weight must be Int, but is Float; pass weight.to\(torch.int32\)"),
    (lambda: snn.LoihiDense(spikes_of(3, 4), delay=65), "LoihiDense: delay must be in"),
    (lambda: snn.LoihiDense(spikes_of(3, 4))(spikes_of(2, 5)), "LoihiDense: "),
])
def test_loihis_modules_refuse_wrong_arguments(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        wrong()
    assert "\n" not in str(error.value)


# --- errors of one line ----------------------------------------------------------------------------------------------

def test_neurons_of_others_are_not_called_where_the_batch_would_pass_for_time():
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
    x = 3 * torch.rand(6, 4, 12)
    expected = neuron.LIFNode(step_mode="m")(x)
    assert torch.equal(snn.Sequential(neuron.LIFNode())(x), expected), "single steps are called once a step"
    for make in (lambda part: snn.Sequential(part), lambda part: snn.Composite().add("a", part)):
        with pytest.raises(ValueError, match="LIFNode in step mode 'm' takes sequences, but is called once a step here"):
            make(neuron.LIFNode(step_mode="m"))
    for mode in "sm":
        with pytest.raises(ValueError, match="TimeDistributed: LIFNode has states, and would process all steps as one batch"):
            snn.TimeDistributed(nn.Linear(12, 12), nn.Sequential(neuron.LIFNode(step_mode=mode)))


def test_steps_of_a_delay_fit_x():
    with pytest.raises(ValueError, match=r"steps have shape \[5\], which does not broadcast against \[4, 12\], a step of x"):
        snn.Delay(torch.arange(5))(torch.rand(6, 4, 12))


@pytest.mark.parametrize("encoder", [snn.Poisson(), snn.Latency(4)], ids=["Poisson", "Latency"])
def test_bytes_are_no_values_to_encode(encoder):
    with pytest.raises(TypeError, match="x must be floating-point values between 0 and 1, but is torch.uint8; pass"):
        encoder.encode(torch.full((2, 3), 200, dtype=torch.uint8), steps=3)


def test_the_names_of_version_0_1_still_work():
    with pytest.warns(DeprecationWarning, match="use spikeforge.nn.Composite"):
        assert snn.Network is snn.Composite
    net, x = snn.Recurrent(snn.LIF(), nn.Linear(4, 4)), torch.rand(5, 2, 4)
    text = pickle.dumps(net, protocol=2)  # torch.save uses this protocol
    for name in ("composite", "plan"):
        text = text.replace(b"cspikeforge.nn.%s\n" % name.encode(), b"cspikeforge.nn.network\n")
    assert b"spikeforge.nn.network" in text and b"spikeforge.nn.plan" not in text
    assert torch.equal(pickle.loads(text)(x), net(x))
