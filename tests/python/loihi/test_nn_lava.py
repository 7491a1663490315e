"""Lava's modules: in floating point compared with plain torch, in fixed point with their deployed integers."""

import copy

import pytest
import torch
import torch.nn.functional as F

import spikeforge.nn as snn

ops = torch.ops.spikeforge


def spikes_of(*shape, device="cpu", most=2):
    return torch.randint(0, most, shape, device=device).float()


def lif_by_hand(x, du, dv, bias, vth):
    u = v = torch.zeros_like(x[0])
    spikes = []
    for row in x:
        u = u * (1 - du) + row
        v = v * (1 - dv) + u + bias
        s = (v > vth).to(x)
        v = v * (1 - s)
        spikes.append(s)
    return torch.stack(spikes)


def later(sent, delay):
    return torch.cat([torch.zeros_like(sent[:1]).expand(delay, *sent.shape[1:]), sent])[: len(sent)]


def connections(run_config):
    torch.manual_seed(2)
    delays = torch.randint(0, 3, (4, 6), dtype=torch.int32)
    options = dict(scale=200, run_config=run_config)
    return {
        "dense": (snn.LavaDense(6, 4, delay=2, **options), (6,)),
        "dense of messages": (snn.LavaDense(6, 4, delay=0, num_message_bits=6, weight_exp=1, **options), (6,)),
        "delay dense": (snn.LavaDelayDense(6, 4, delays, **options), (6,)),
        "conv": (snn.LavaConv(2, 4, 3, padding=1, stride=2, groups=2, **options), (2, 5, 6)),
    }


@pytest.mark.parametrize("name", connections("fixed"))
def test_a_connection_in_fixed_point_equals_its_deployed_form(name, device):
    module, shape = connections("fixed")[name]
    module = module.to(device)
    x = spikes_of(7, 3, *shape, device=device, most=2 if module.num_message_bits == 0 else 30)
    integers = snn.deploy(module)
    want, state = integers(x.int(), None)
    got, kept = module(x, None)
    assert got.dtype == torch.float32 and torch.equal(got, want.float()) and want.any()
    assert state.keys() == kept.keys() and all(torch.equal(kept[k], state[k].float()) for k in state)
    first, between = module(x[:3], None)
    rest, _ = module(x[3:], between)
    assert torch.equal(torch.cat([first, rest]), got)
    got.square().sum().backward()
    assert module.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", connections("float"))
def test_a_connection_in_floating_point_is_torchs_and_later(name, device):
    module, shape = connections("float")[name]
    module = module.double().to(device)
    x = spikes_of(7, 3, *shape, device=device, most=2 if module.num_message_bits == 0 else 30).double()
    if name == "conv":
        sent = F.conv2d(x.flatten(0, 1), module.weight, stride=2, padding=1, groups=2)
        want = later(sent.unflatten(0, (7, 3)), 1)
    elif name == "delay dense":
        want = sum(later(F.linear(x, module.weight * (module.delays == d)), 1 + d) for d in range(3))
    else:
        want = later(F.linear(x, module.weight), module.delay)
    torch.testing.assert_close(module(x), want)
    first, between = module(x[:3], None)
    rest, _ = module(x[3:], between)
    torch.testing.assert_close(torch.cat([first, rest]), want)
    if module.num_message_bits == 0:
        torch.testing.assert_close(module(-3 * x), want), "anything but 0 is a spike"
    # The same module in fixed-point arithmetic differs by the rounding of the weights.
    fixed = snn.set_run_config_(copy.deepcopy(module), "fixed")(x)
    fan_in = module.weight[0].numel()
    assert (fixed / module.scale - want).abs().max() <= fan_in * 30 * 2**module.weight_exp / module.scale + 1e-9


@pytest.mark.parametrize("run_config", ["float", "fixed"])
def test_the_neuron_is_its_equations_in_both(run_config, device):
    torch.manual_seed(4)
    k, constants = 512, dict(du=0.25, dv=0.125, vth=1.5)
    bias = torch.nn.Parameter(torch.randint(-40, 40, (5,)) / k)
    lif = snn.LavaLIF(**constants, bias=bias, scale=k, run_config=run_config).to(device)
    x = torch.randint(-k // 2, k, (20, 3, 5), device=device) / k
    spikes, states = lif(x * (k if run_config == "fixed" else 1), store_states=True)
    want = lif_by_hand(x.double().cpu(), **constants, bias=bias.detach().double().cpu())
    # In none of these steps is v within rounding of the threshold.
    assert torch.equal(spikes.detach().cpu().double(), want) and 0.05 < want.mean() < 0.9
    assert states["v"].shape == x.shape
    spikes.sum().backward()
    assert lif.bias.grad.abs().min() > 0
    if run_config == "fixed":
        integers = snn.deploy(lif)
        assert torch.equal(integers((x * k).int()).float(), spikes)


def network(scale=128, **options):
    torch.manual_seed(1)
    bias = torch.nn.Parameter(torch.zeros(12))
    return snn.Sequential(
        snn.LavaDense(8, 12, delay=1, scale=scale, **options),
        snn.LavaLIF(du=0.5, dv=0.1, vth=1.0, bias=bias, scale=scale, **options),
        snn.LavaDense(12, 3, delay=0, scale=scale, **options),
        snn.LavaLIF(du=1.0, dv=0.2, vth=1.0, scale=scale, **options),
    )


def test_a_network_that_learns_in_fixed_point_deploys_with_its_spikes(device):
    torch.manual_seed(0)
    x = spikes_of(12, 30, 8, device=device)
    label = (x[..., :4].sum((0, 2)) > x[..., 4:].sum((0, 2))).long()
    net = network().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
    losses = []
    for _ in range(40):
        loss = F.cross_entropy(net(x).sum(0), label)
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    spikes = net(x).detach()
    chip = snn.deploy(snn.set_run_config_(net, "float"))
    assert not any(p.requires_grad for p in chip.parameters()) and not list(chip.parameters())
    assert torch.equal(chip(x.int()).float(), spikes) and spikes.any()
    assert isinstance(chip[0], snn.LoihiDense) and isinstance(net[0], snn.LavaDense)
    step = [chip(x[:5].int(), None), None]
    step[1] = chip(x[5:].int(), step[0][1])
    assert torch.equal(torch.cat([step[0][0], step[1][0]]).float(), spikes)


def test_a_network_with_a_loop_deploys(device):
    torch.manual_seed(1)
    net = snn.Composite()
    net.add("dense", snn.LavaDense(4, 4, delay=0, scale=256))
    net.add("lif", snn.LavaLIF(du=0.9, dv=0.1, vth=0.5, bias=0.2, scale=256))
    net.add("back", snn.LavaDense(4, 4, delay=0, scale=256))
    net.connect("in", "dense.in")
    net.connect("dense.out", "lif.in")
    net.connect("lif.out", "back.in")
    net.connect("back.out", "lif.in", delay=1)
    net.connect("lif.out", "out")
    net = net.to(device)
    x = spikes_of(15, 2, 4, device=device)
    spikes = net(x)
    assert torch.equal(snn.deploy(net)(x.int()).float(), spikes) and 0 < spikes.mean() < 1


def test_wide_layers_learn_with_both_signs():
    """Initially, all weights are below one of the chip's units."""
    layer = snn.LavaDense(5000, 10)
    layer(torch.ones(2, 1, 5000)).sum().backward()
    assert (layer.weight.detach() * layer.scale).abs().max() < 1 and layer.weight.grad.ne(0).all()
    with torch.no_grad():
        layer.weight[:, 0], layer.weight[:, 1] = -3 / layer.scale, 3.0 / layer.scale
    assert {-4.0, 0.0, 4.0} == set(layer.quantized_weight().unique().tolist())


def looped(**options):
    torch.manual_seed(1)
    net = snn.Composite(**options)
    net.add("dense", snn.LavaDense(4, 4, delay=2, scale=256, **options))
    net.add("lif", snn.LavaLIF(du=0.9, dv=0.1, vth=0.5, bias=0.2, scale=256, **options))
    net.connect("in", "dense.in")
    net.connect("dense.out", "lif.in", delay=1)
    net.connect("lif.out", "out")
    return net


def test_another_run_configuration_forgets_all_kept_states():
    x = spikes_of(5, 2, 4)
    net = looped(stateful=True)
    net(x)
    assert len(snn.get_states(net)) == 4
    assert not snn.get_states(snn.set_run_config_(net, "float"))
    net(x)
    net.lif.run_config = "float"
    assert "lif.v" in snn.get_states(net), "nothing has changed"
    net.lif.run_config = "fixed"
    assert "lif.v" not in snn.get_states(net) and "dense.buffer" in snn.get_states(net)


def test_saved_states_are_of_a_run_configuration():
    x = spikes_of(5, 2, 4)
    net = looped(stateful=True, persistent_state=True)
    net(x)
    saved = net.state_dict()
    same = looped(stateful=True, persistent_state=True)
    same.load_state_dict(saved)
    assert torch.equal(same(x), net(x))
    with pytest.raises(RuntimeError, match="lif: the saved states are of run_config fixed, but the module's is float"):
        snn.set_run_config_(same, "float").load_state_dict(saved)
    assert not (snn.get_states(same).keys() & {"lif.v", "lif.u", "dense.buffer"})


def test_a_deployed_network_keeps_flags_and_shared_modules():
    x = spikes_of(9, 2, 4)
    net = looped(stateful=True, persistent_state=True).eval()
    want = net(x)
    chip = snn.deploy(net)  # within a sequence: the states are reset
    assert torch.equal(torch.cat([chip(x[:4].int()), chip(x[4:].int())]).float(), want) and want.any()
    assert not chip.training and not chip.lif.training and chip.lif.stateful and chip.lif.persistent_state
    assert "lif.v" in chip.state_dict()
    lif = snn.LavaLIF(vth=0.5)
    twice = snn.deploy(torch.nn.ModuleList([lif, torch.nn.ModuleDict({"again": lif}), snn.LavaLIF(vth=0.5)]))
    assert twice[0] is twice[1]["again"] and twice[0] is not twice[2]


@pytest.mark.parametrize("wrong, message", [
    (lambda: snn.LavaDense(3, 4, run_config="loihi"), "LavaDense: run_config must be float or fixed, but is 'loihi'"),
    (lambda: snn.LavaDense(3, 4, scale=0), "LavaDense: scale must be a whole number of 1 or more, but is 0"),
    (lambda: snn.LavaDense(3, 4, delay=65), r"LavaDense: .*delay must be in \[0, 64\]"),
    (lambda: snn.LavaDense(3, 4, sign_mode="odd"), "LavaDense: .*sign_mode must be mixed"),
    (lambda: snn.LavaLIF(du=1.5), r"LavaLIF: du must be in \[0, 1\], but is 1.5"),
    (lambda: snn.LavaLIF(vth=0), "LavaLIF: vth must be above 0 and finite, but is 0"),
    (lambda: snn.LavaLIF(vth=0.001), "LavaLIF: at scale 64, vth must be at least 1 unit of the chip, but is 0.001"),
    (lambda: snn.LavaLIF(vth=float("inf")), "LavaLIF: vth must be above 0 and finite, but is inf"),
    (lambda: snn.LavaLIF(bias=1e9), r"LavaLIF: at scale 64, bias must be in \[-63.9844, 63.9844\], but has values from 1e\+09 to 1e\+09"),
    (lambda: snn.LavaLIF(bias=torch.tensor([0.0, torch.nan])), "LavaLIF: at scale 64, bias must be in"),
    (lambda: snn.LavaDense(3, 4)(torch.zeros(2, 3).half()), "LavaDense: x must be float32 or float64 in fixed point, but is float16"),
    (lambda: snn.LavaDense(3, 4, delay=2, run_config="float")(torch.zeros(2, 3), {"buffer": torch.zeros(1, 4)}), r"LavaDense: buffer must have shape \[2, 4\], \[delay, \*batch, out\], but has \[1, 4\]"),
    (lambda: snn.LavaConv(3, 4, 3, groups=2), "LavaConv: groups must be 1 or more and divide in_channels and out_channels, but is 2 of 3 and 4"),
    (lambda: snn.LavaConv(3, 4, 3, groups=0), "LavaConv: groups must be 1 or more"),
    (lambda: snn.LavaDelayDense(2, 1, torch.tensor([[0.5, 1.0]])), "LavaDelayDense: delays must be whole numbers"),
    (lambda: snn.LavaDelayDense(2, 1, torch.tensor([[0, 2**40]])), r"LavaDelayDense: .*max_delay must be in \[0, 63\]"),
    (lambda: snn.LavaLIF(vth=1e4), "LavaLIF: at scale 64, .*vth must be in"),
    (lambda: snn.LavaLIF()(torch.zeros(3, 4, dtype=torch.int32)), r"LavaLIF: x must be a floating-point tensor \[T, \*shape\], time first, but is int32"),
    (lambda: snn.LavaDense(3, 4)(torch.zeros(2, 5)), "LavaDense: .*weight must have shape"),
    (lambda: snn.LavaDense(3, 4)(torch.zeros(2, 3), store_states=True), "LavaDense: store_states is supported only by neurons"),
    (lambda: snn.set_run_config_(torch.nn.Linear(2, 2), "float"), "set_run_config_: the network has no Lava module"),
    (lambda: snn.deploy(torch.nn.Linear(2, 2)), "deploy: the network has no Lava module"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_wrong_arguments_are_refused(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        wrong()
