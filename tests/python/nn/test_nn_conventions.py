"""Modules follow torch's conventions: copies, files, types, compilers, hooks, parallel wrappers."""

import copy
import io
import pickle
import re
import warnings

import pytest
import spikeforge
import spikeforge.nn as snn
import torch
from documentation import code, table
from loops import TWO, composite, output_of, refused, same
from ranks import on_ranks
from spikeforge import surrogate
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

ONE_INPUT = TWO.replace("two(x, y;", "one(x;").replace(" + beta * y", " + beta").replace("return s, h", "return s")


class Block(nn.Module):
    """A custom module without a state argument."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(5, 4)
        self.lif = snn.LIF(tau=snn.Learnable(2.5, min=1.0, per_channel=4), surrogate="atan")

    def forward(self, x):
        return self.lif(self.dense(x))


def network():
    lif = snn.LIF(tau=snn.Learnable(2.0), surrogate=surrogate.ATan(3.0))
    connections = "in -> dense.in, dense.out -> lif.in, lif.out -> lateral.in, lateral.out -> lif.in 2, lif.out -> out"
    return composite(connections, dense=nn.Linear(5, 4), lif=lif, lateral=nn.Linear(4, 4))


MODULES = {
    "IF": snn.IF,
    "LIF": lambda: snn.LIF(tau=3.0, v_reset=None),
    "LIF learned": lambda: snn.LIF(tau=snn.Learnable(2.5, min=1.0, per_channel=5), v_threshold=torch.tensor(0.9)),
    "LIF strict": lambda: snn.LIF(tau=snn.Learnable(2.5), strict=True),
    "LIF custom": lambda: snn.LIF(surrogate=surrogate.Custom("w / square(1 + abs(u))", w=0.5)),
    "PLIF": snn.PLIF,
    "QIF": lambda: snn.QIF(v_c=snn.Learnable(0.7)),
    "EIF": snn.EIF,
    "Izhikevich": lambda: snn.Izhikevich(a=0.1, b=snn.Learnable(0.2), w_rest=0.05),
    "AdaptiveLIF": lambda: snn.AdaptiveLIF(b=snn.Learnable(0.2)),
    "CubaLIF": lambda: snn.CubaLIF(tau_synapse=snn.Learnable(3.0), v_reset=torch.tensor(-0.1)),
    "KLIF": lambda: snn.KLIF(tau=snn.Learnable(3.0), v_reset=torch.tensor(-0.1)),
    "GatedLIF": lambda: snn.GatedLIF(steps=4, channels=5),
    "SlidingPSN": lambda: snn.SlidingPSN(k=3),
    "LI": lambda: snn.LI(tau=snn.Learnable(3.0)),
    "Neuron": lambda: snn.Neuron(ONE_INPUT, tau=snn.Learnable(2.0), beta=0.3),
    "Delay": lambda: snn.Delay(torch.tensor([0, 2, 1, 1, 3])),
    "Latency": lambda: snn.Latency(4),
    "Dropout": lambda: snn.Dropout(0.5).eval(),
    "block": Block,
    "Sequential": lambda: snn.Sequential(
        nn.Linear(5, 4), snn.LIF(tau=snn.Learnable(2.0)), snn.TimeDistributed(nn.Linear(4, 3)), snn.LI()),
    "Recurrent": lambda: snn.Recurrent(snn.PLIF(), nn.Linear(5, 5)),
    "Composite": network,
}
DEFERRED = {
    "DelayedLinear": lambda: snn.DelayedLinear(5, 4, 3, delay=1.5),
    "LavaLIF": lambda: snn.LavaLIF(bias=0.1),
    "LavaDense": lambda: snn.LavaDense(5, 4),
    "BatchNormNeuron": lambda: snn.BatchNormNeuron(nn.BatchNorm1d(5), snn.LIF()).eval(),
}
every = pytest.mark.parametrize("kind", MODULES)
steady = pytest.mark.parametrize("kind", [kind for kind in MODULES if kind not in ("Delay", "Latency")])


def made(kind, device="cpu"):
    module = MODULES[kind]().to(device)
    scale = 8 if kind in WITH_LAYERS else 2
    return module, scale * torch.rand(6, 3, 5, device=device)


WITH_LAYERS = ("block", "Sequential", "Recurrent", "Composite")


def agree(kind, got, want):
    """Compares bit for bit, except if compilers and exporters may reorder the sums of a layer."""
    return torch.allclose(got, want, atol=1e-5) if kind in WITH_LAYERS else torch.equal(got, want)


def states_agree(kind, got, want):
    return got.keys() == want.keys() and all(agree(kind, got[name], want[name]) for name in got)


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()


def with_state(module, x, state):
    return module(x, state) if isinstance(module, snn.StatefulModule) else snn.call(module, x, state)


def fires(kind, y):
    return kind in ("LI", "Delay", "Latency", "Sequential") or bool(0 < y.mean() < 1)


@every
def test_a_used_module_is_copied_pickled_and_saved(kind, device):
    module, x = made(kind, device)
    with snn.keep_state(module):
        module(x).sum()
        want_states = snn.get_states(module)
        copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        copies.append(torch.load(file, weights_only=False))
        want = module(x)
        assert all(str(each) == str(module) for each in copies)
    for each in copies:
        assert same(snn.get_states(each), want_states)
        assert all(not value.requires_grad for value in snn.get_states(each).values())
        assert torch.equal(each(x), want), "a copy goes on from the states of the original"
    assert copies[0].state_dict().keys() == module.state_dict().keys()


@every
def test_parameters_travel_by_state_dict(kind):
    module, x = made(kind)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.1)
    other = MODULES[kind]()
    missing, unexpected = other.load_state_dict(module.state_dict())
    assert not missing and not unexpected
    assert torch.equal(other(x), module(x))


@steady
def test_modules_follow_types(kind, device):
    module, x = made(kind, device)
    y, state = with_state(module.double(), x.double(), None)
    assert y.dtype == torch.float64 and all(value.dtype == torch.float64 for value in state.values())
    y, state = with_state(module.half(), x.half(), None)
    assert y.dtype == torch.float16
    assert all(value.dtype == (torch.float16 if "_to_" in name else torch.float32) for name, value in state.items())


@pytest.mark.parametrize("kind", [kind for kind in MODULES if kind not in ("Delay", "Composite")] + list(DEFERRED))
def test_the_default_device_is_of_new_parameters_alone(kind):
    """Tests the default device "meta", which has no values (deferred initialisation), and "cuda", which users set."""
    make = MODULES.get(kind) or DEFERRED[kind]
    module, x = make(), torch.rand(6, 3, 5)
    expected, states = snn.call(module, x)
    stepped = snn.call(module, x[3:], snn.call(module, x[:3])[1])[0]
    with torch.device("meta"):
        deferred = make()
        deferred.load_state_dict(module.state_dict(), assign=True)
        for one in (module, copy.deepcopy(module), deferred):
            repr(one)
            got, found = snn.call(one, x)
            assert torch.equal(got, expected) and same(found, states)
            assert torch.equal(snn.call(one, x[3:], snn.call(one, x[:3])[1])[0], stepped)


def test_float32_constants_beside_double_are_converted():
    x = torch.rand(6, 3, 5, dtype=torch.float64)
    tau = torch.full((5,), 2.5)
    assert torch.equal(snn.LIF(tau=tau)(x), snn.LIF(tau=tau.double())(x))


def test_kept_states_follow_to():
    lif = snn.LIF(stateful=True)
    lif(torch.rand(3, 4))
    assert snn.get_states(lif.double())["v"].dtype == torch.float64
    lif(torch.rand(3, 4, dtype=torch.float64))
    assert snn.get_states(lif.half())["v"].dtype == torch.float32, "states are float32 beside half types"
    lif(torch.rand(3, 4).half())
    assert snn.get_states(lif.to("meta"))["v"].device.type == "meta"


@every
@pytest.mark.long(but=r"LIF learned|Neuron|Composite")
def test_compiled_whole(kind, device):
    module, x = made(kind, device)
    x.requires_grad_()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    y = compiled(x)
    assert agree(kind, y, module(x)) and fires(kind, y)
    leaves = [x, *module.parameters()] if y.requires_grad else []
    grads = (torch.autograd.grad(m(x).sin().sum(), leaves, allow_unused=True) for m in (compiled, module) if leaves)
    for got, want in zip(*grads):
        assert (got is None) == (want is None) and (got is None or torch.allclose(got, want, atol=1e-4))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x, state):
        return with_state(module, x, state)

    want, state = with_state(module, x, None)
    got, got_state = step(x, None)
    assert agree(kind, got, want) and states_agree(kind, got_state, state)
    want, state = with_state(module, x, state)
    got, got_state = step(x, got_state)
    assert agree(kind, got, want) and states_agree(kind, got_state, state), "it goes on from the state that it is given"


@pytest.mark.parametrize("kind", ["LIF learned", "Neuron", "block", "Sequential"])
def test_compiled_modules_keep_their_states(kind):
    module, x = made(kind)
    want = [with_state(module, x[:2], None)]
    for piece in (x[2:4], x[4:]):
        want.append(with_state(module, piece, want[-1][1]))
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with snn.keep_state(module), torch.no_grad():
        for piece, (y, state) in zip(x.split(2), want):
            assert agree(kind, compiled(piece), y)
            assert states_agree(kind, snn.get_states(module), state)


@every
def test_traced_before_any_call(kind):
    module, x = made(kind)
    # TorchScript checks the trace with a second trace: tensors that the first call creates must not be part of either.
    traced = torch.jit.trace(module, x)
    assert agree(kind, traced(x), module(x))


@every
@pytest.mark.long(but=r"LIF learned|Neuron|block|Composite")
def test_exported(kind, device, tmp_path):
    module, x = made(kind, device)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "module.pt2")
    assert agree(kind, torch.export.load(tmp_path / "module.pt2").module()(x), module(x))
    if kind == "block":
        return
    want, state = module(x, None)
    exported = torch.export.export(module, (x, state))
    got, got_state = exported.module()(x, state)
    want, state = module(x, state)
    assert agree(kind, got, want) and states_agree(kind, got_state, state)


@pytest.mark.parametrize("kind", [kind for kind in MODULES if kind != "Composite"])  # it calls layers per step
def test_exported_for_any_number_of_steps(kind):
    module, x = made(kind)
    module.requires_grad_(False)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("T", max=4096)},)).module()
    for piece in (x[:2], x, torch.cat((x, x, x))):
        assert agree(kind, exported(piece), module(piece))


@steady
@pytest.mark.long(but=r"LIF learned|Neuron|block|Recurrent|custom")
def test_functional_call_and_vmap_over_parameters(kind):
    module, x = made(kind)
    parameters = dict(module.named_parameters())
    if not parameters:
        pytest.skip("it has none")
    changed = {name: value.detach() * 1.25 for name, value in parameters.items()}
    want = copy.deepcopy(module)
    want.load_state_dict(changed, strict=False)
    assert torch.equal(torch.func.functional_call(module, changed, (x,)), want(x))
    both = {name: torch.stack((value.detach(), changed[name])) for name, value in parameters.items()}
    got = torch.func.vmap(lambda p: torch.func.functional_call(module, p, (x,)))(both)
    assert torch.allclose(got, torch.stack((module(x), want(x))), atol=1e-5)


@steady
def test_vmap_over_inputs(kind):
    module, _ = made(kind)
    x = 2 * torch.rand(4, 6, 3, 5)
    got = torch.func.vmap(module)(x)
    assert torch.allclose(got, torch.stack([module(each) for each in x]), atol=1e-5)


def test_gradients_of_each_sample():
    net = snn.Sequential(snn.TimeDistributed(nn.Linear(5, 4)), snn.LIF(tau=snn.Learnable(2.0), surrogate="atan"))
    parameters = dict(net.named_parameters())
    x = 2 * torch.rand(3, 6, 1, 5)
    loss = lambda parameters, x: torch.func.functional_call(net, parameters, (x,)).mean()
    got = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(3):
        want = torch.autograd.grad(net(x[i]).mean(), list(parameters.values()))
        for name, grad in zip(parameters, want):
            assert torch.allclose(got[name][i], grad, atol=1e-6)


@steady
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_modules_have_the_same_gradients(kind, use_reentrant):
    module, x = made(kind)
    x.requires_grad_()
    leaves = [x, *module.parameters()]
    want = torch.autograd.grad(module(x).sin().sum(), leaves)
    module.zero_grad()
    checkpoint(module, x, use_reentrant=use_reentrant).sin().sum().backward()
    assert all(torch.equal(leaf.grad, grad) for leaf, grad in zip(leaves, want))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_module_that_keeps_states_cannot_be_recomputed(use_reentrant):
    lif = snn.LIF(stateful=True)
    x = torch.rand(3, 4, requires_grad=True)
    y = checkpoint(lif, x, use_reentrant=use_reentrant).sum()
    refused(RuntimeError, r"LIF: keeps its states, but is recomputed .*y, state = net\(x, state\)", y.backward)


def test_replicas_of_data_parallel_take_their_own_parameters():
    """Emulates DataParallel on several GPUs: replicas have other tensors in place of the parameters."""
    for kind in ("LIF learned", "PLIF", "Neuron", "CubaLIF"):
        module, x = made(kind)
        replica = module._replicate_for_data_parallel()
        for name, value in module.named_parameters():
            setattr(replica, name, (value * 1.5).detach().requires_grad_())
        for name, value in module.named_buffers():
            setattr(replica, name, value.clone())
        want = copy.deepcopy(module)
        with torch.no_grad():
            for parameter in want.parameters():
                parameter.mul_(1.5)
        y, state = replica(x, None)
        want_y, want_state = want(x, None)
        assert torch.equal(y, want_y) and same(state, want_state)


def test_replicas_of_data_parallel_refuse_to_keep_states():
    lif = snn.LIF(stateful=True)
    words = r"LIF: keeps its states, which DataParallel's replicas would lose; .*DistributedDataParallel"
    refused(RuntimeError, words, lambda: lif._replicate_for_data_parallel()(torch.rand(3, 4)))


def distributed_gradients(rank):
    """Returns gradients of DistributedDataParallel, those of one process, and the names of states."""
    torch.manual_seed(0)
    lif = snn.LIF(tau=snn.Learnable(2.0, per_channel=4), surrogate="atan")
    net, x = snn.Sequential(snn.TimeDistributed(nn.Linear(5, 4)), lif), 2 * torch.rand(6, 4, 5)
    ddp = nn.parallel.DistributedDataParallel(net)
    ddp(x[:, 2 * rank : 2 * rank + 2]).sin().mean().backward()
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x).sin().mean().backward()
    return got, [p.grad for p in net.parameters()], list(snn.call(ddp, x)[1])


@pytest.mark.long  # test_ddp.py has more tests
def test_gradients_of_distributed_data_parallel_are_those_of_the_whole_batch():
    for got, want, states in on_ranks(2, distributed_gradients):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert any(g.abs().sum() > 0 for g in got) and states == ["1.v"]


OTHERS = {
    "one delay": lambda: snn.Delay(2),
    "long delay": lambda: snn.Delay(9),
    "delayed output": lambda: composite("in -> lif.in, lif.out -> out 2", lif=snn.LIF()),
    "two outputs": lambda: snn.Neuron(TWO.replace("two(x, y;", "one(x;").replace("beta * y", "beta"), tau=2.0, beta=0.3),
    "DelayedLinear": lambda: snn.DelayedLinear(5, 4, 2),
    "BatchNormNeuron": lambda: snn.BatchNormNeuron(nn.BatchNorm1d(5), snn.LIF()),
    "stepped": lambda: snn.Recurrent(snn.LIF(), nn.Sequential(nn.Linear(5, 5), nn.ReLU())),
    "sigmoid": lambda: snn.Sequential(snn.LIF(), nn.Sequential(nn.Linear(5, 4), nn.Sigmoid())),
    "Poisson": snn.Poisson,
    "Repeat": snn.Repeat,
    "Dropout": snn.Dropout,
    **{f"LavaDense in {run}": lambda run=run: snn.LavaDense(5, 4, run_config=run) for run in ("float", "fixed")},
    "LavaDelayDense": lambda: snn.LavaDelayDense(5, 4, torch.randint(3, (4, 5)), run_config="float"),
    "LavaLIF": lambda: snn.LavaLIF(vth=1.0),
}


@pytest.mark.parametrize("kind", [*MODULES, *OTHERS])
def test_results_can_be_detached_in_place(kind):
    """No result is a view of a hidden tensor, except that of TimeDistributed, as for nn.Linear."""
    module, x = (MODULES | OTHERS)[kind](), torch.rand(6, 3, 5, requires_grad=True)
    step = torch.rand(3, 5, requires_grad=True)
    calls = [(lambda x: module(x), x), (lambda x: with_state(module, x, None), x), (lambda x: module(x), x[:1])]
    if isinstance(module, snn.StatefulModule):
        calls += [(module.step, step), (lambda x: module.step(x, None), step)]
    for run, given in calls:
        for value in torch.utils._pytree.tree_leaves(run(given)):
            if not (value._is_view() and (value._base is given or value._base is given._base)):
                value.detach_()


def test_results_of_a_step_that_others_hold_stay_as_they_are():
    """A hook and autograd keep the output of a call; the caller of step() changes its result in place."""
    seen = []
    lif = snn.LIF(surrogate="atan")
    lif.register_forward_hook(lambda module, args, y: seen.append(y.square().sum()))
    ended = snn.Sequential(snn.LIF(), Sigmoid())
    for module, loss in ((lif, lambda y: seen.pop()), (ended, lambda y: y.sum())):
        x = (3 * torch.rand(3, 5)).requires_grad_()
        (want,) = torch.autograd.grad(loss(module.step(x)), x)
        y = module.step(x)
        total = loss(y)
        with torch.no_grad():
            y.mul_(3.0)
        assert torch.equal(torch.autograd.grad(total, x)[0], want) and want.any()


class Sigmoid(nn.Module):
    """Contains a neuron, so that it is called on sequences; autograd keeps its output."""

    def __init__(self):
        super().__init__()
        self.li = snn.LI()

    def forward(self, x):
        return self.li(x).sigmoid()


def test_hooks_see_what_goes_in_and_out():
    lif, seen = snn.LIF(), []
    x = torch.rand(3, 4)
    lif.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    lif.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    y = lif(x)
    assert torch.equal(seen[0][0], 2 * x) and seen[0][1] is y
    assert torch.equal(y, snn.LIF()(2 * x))
    lif.step(x[0])
    assert len(seen) == 2, "step passes the hooks too"


def test_reset_parameters_starts_learned_constants_again():
    lif = snn.LIF(tau=snn.Learnable(2.5, per_channel=4), v_threshold=nn.Parameter(torch.tensor(0.5)), v_reset=0.0)
    plif = snn.PLIF(init_tau=4.0)
    with torch.no_grad():
        for parameter in (*lif.parameters(), *plif.parameters()):
            parameter.add_(1.0)
    lif.reset_parameters()
    plif.reset_parameters()
    assert torch.equal(lif.tau, torch.full((4,), 2.5))
    assert lif.v_threshold == 1.5, "a parameter that was passed is its owner's"
    assert (1 / torch.sigmoid(plif.w)).item() == pytest.approx(4.0)


def test_the_repr_of_a_module_lists_its_constants():
    tau, options = snn.Learnable(2.0, min=1.0, per_channel=8), dict(v_threshold=0.5, v_reset=None, stateful=True)
    shown = "LIF(tau=[8] from 1.5 to 2.0 learned in [1.0, inf], v_threshold=0.5, soft reset, surrogate=ATan(alpha=3.0), stateful=True)"
    lif = snn.LIF(tau=tau, surrogate=surrogate.ATan(3.0), **options)
    lif.tau.data[3] = 1.5
    assert str(lif) == shown
    assert str(snn.Neuron(TWO, tau=2.0, beta=nn.Parameter(torch.ones(3)))) == "Neuron(x, y; v, a; tau=2.0, beta=[3] from 1.0 to 1.0 learned)"
    assert str(snn.LI(tau=snn.Learnable(2.1, min=1.0))) == "LI(x; v; tau=2.1 learned in [1.0, inf], v_rest=0.0)"
    assert str(snn.LI(tau=torch.tensor(3.0))) == "LI(x; v; tau=3.0, v_rest=0.0)"
    assert str(snn.LI(tau=torch.tensor(3.0)).to("meta")) == "LI(x; v; tau=[], v_rest=0.0)"
    assert str(snn.Delay(3)) == "Delay(steps=3)"


@pytest.mark.parametrize("kind, name", [("LIF", "tau"), ("CubaLIF", "tau_synapse"), ("Izhikevich", "tau_w"), ("LI", "tau")])
def test_a_time_constant_below_one_step_is_warned_of_at_the_line_that_gives_it(kind, name):
    make = getattr(snn, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for legal in (1.0, torch.ones(3), snn.Learnable(1.0), torch.ones(2, device="meta")):
            made = make(**{name: legal})
    for short in (0.9, torch.tensor([2.0, 0.9]), nn.Parameter(torch.tensor(0.9)), snn.Learnable(0.9)):
        with pytest.warns(UserWarning, match=f"{kind}: {name} is 0.9, less than one step") as found:
            make(**{name: short})
            setattr(made, name, short)
        assert [one.filename for one in found] == [__file__] * 2


def test_constants_are_assigned_as_they_are_constructed():
    x = 2 * torch.rand(6, 3, 5)
    lif = snn.LIF()
    lif.tau = 3.0
    assert torch.equal(lif(x), snn.LIF(tau=3.0)(x))
    lif.tau = nn.Parameter(torch.full((5,), 2.5))
    assert [name for name, _ in lif.named_parameters()] == ["tau"]
    assert torch.equal(lif(x), snn.LIF(tau=2.5)(x))
    lif.tau = 4.0
    lif.surrogate = "atan"
    lif.v_reset = None
    assert not list(lif.parameters())
    assert torch.equal(lif(x), snn.LIF(tau=4.0, v_reset=None)(x))
    assert "surrogate=ATan(alpha=2.0)" in str(lif)
    neuron = snn.Neuron(ONE_INPUT, tau=2.0, beta=0.1)
    before = neuron(x)
    neuron.beta = 0.6
    assert torch.equal(neuron(x), snn.Neuron(ONE_INPUT, tau=2.0, beta=0.6)(x)) and not torch.equal(neuron(x), before)


class Positive(nn.Module):
    def forward(self, x):
        return x.exp()

    def right_inverse(self, y):
        return y.log()


@pytest.mark.parametrize("make", [lambda: snn.LIF(tau=snn.Learnable(2.0)), lambda: snn.LI(tau=snn.Learnable(2.0)), lambda: snn.LIF(tau=torch.tensor(2.0), strict=True)])
def test_parametrized_constants_are_assigned_and_refused_as_torch_does(make):
    x = 2 * torch.rand(6, 3, 5)
    module, plain = make(), make()
    parametrize.register_parametrization(module, "tau", Positive())
    for value in (torch.tensor(3.0), 5.0, nn.Parameter(torch.tensor(2.5))):
        module.tau, plain.tau = value, value
        torch.testing.assert_close(module.tau, torch.as_tensor(value).detach(), check_layout=False)
        torch.testing.assert_close(module(x), plain(x))
    assert list(dict(module.named_parameters())) in (["parametrizations.tau.original"], [])
    if module._initial:
        module.reset_parameters()
        assert module.tau.item() == pytest.approx(2.0)
    before, said = module(x), repr(module)
    for wrong, error in ((float("nan"), ValueError), ("x", TypeError), (snn.Learnable(3.0), TypeError)):
        with pytest.raises(error, match="tau"):
            module.tau = wrong
        assert repr(module) == said and torch.equal(module(x), before)
    parametrize.remove_parametrizations(module, "tau")
    module.tau = 4.0
    plain.tau = 4.0
    assert torch.equal(module(x), plain(x))

    module = make()
    parametrize.register_parametrization(module, "tau", nn.Softplus(), unsafe=True)
    before, said = module(x), repr(module)
    for value in (torch.tensor(3.0), 3.0, nn.Parameter(torch.tensor(3.0))):
        with pytest.raises(RuntimeError, match="does not implement right_inverse"):
            module.tau = value
        assert repr(module) == said and torch.equal(module(x), before)


def test_autocast_takes_half_inputs_beside_float_parameters():
    net = nn.Sequential(nn.Linear(5, 4), snn.LIF(tau=snn.Learnable(2.0)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(2 * torch.rand(6, 3, 5))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert net[1].tau.grad.dtype == torch.float32


def test_states_are_persistent_when_asked():
    x = 2 * torch.rand(4, 3, 5)
    net = snn.Sequential(nn.Linear(5, 5), snn.Izhikevich(a=0.1, stateful=True, persistent_state=True), snn.LIF(stateful=True))
    assert not [name for name in net.state_dict() if name.startswith("1")], "before the first call there are none"
    net(x)
    saved = net.state_dict()
    assert {"1.v", "1.w"} <= saved.keys() and "2.v" not in saved
    other = copy.deepcopy(net)
    snn.reset_(other)
    other.load_state_dict(saved)
    assert same({k: v for k, v in snn.get_states(other).items() if k.startswith("1")}, {k: saved[k] for k in ("1.v", "1.w")})
    saved["1.v"].zero_()
    assert not torch.equal(snn.get_states(other)["1.v"], saved["1.v"]), "what was loaded is a copy"
    with pytest.raises(RuntimeError, match="Unexpected key.*1.v"):
        snn.Sequential(nn.Linear(5, 5), snn.Izhikevich(), snn.LIF()).load_state_dict(saved)


# --- the page ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, says", [
    ("modules in Python", r"step 4: loss \d.*LIF\(tau=\[8\] from \d\.\d+ to \d\.\d+ learned in \[1.0, inf\]"),
    ("states in Python", r"of all steps fired, and v was 0\.\d"),
    ("a network in Python", r"v after 60 steps: torch.Size\(\[4, 8\]\)\nthe same spikes"),
])
def test_the_programs_of_the_page_run(name, says):
    assert re.search(says, output_of(code(name)), re.DOTALL)


def test_the_table_names_all_modules():
    named = set(re.findall(r"`(\w+)`", " ".join(row[0] for row in table("table of modules"))))
    classes = "StatefulModule Constant Learnable"
    functions = "call clamp_ keep_state reset_ detach_ get_states set_states_ fuse deploy set_run_config_ counts_to_spikes sum_virtual_steps"
    functions += " qk_attention spike_driven_self_attention spiking_self_attention"
    assert named == set(snn.__all__) - {*classes.split(), *functions.split()}


def test_parameters_of_own_neurons_named_as_arguments():
    text = "neuron n(x; v; self) { h = self * v + x; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"
    x = torch.rand(3, 2)
    assert torch.equal(snn.Neuron(text, self=0.5)(x), snn.Neuron(text.replace("self", "leak"), leak=0.5)(x))
    for name in ("scan", "stateful", "persistent_state"):
        with pytest.raises(ValueError, match=f"Neuron: n has a parameter {name}, which is an argument of the module: rename it"):
            snn.Neuron(text.replace("self", name), **{name: 0.5})

    @spikeforge.neuron(states={"v": 0.0})
    def own(x, v, *, self):
        h = self * v + x
        return spikeforge.spike(h - 1, "atan"), {"v": h}

    assert torch.equal(own(x, self=0.5)[0], own.loop(x, self=0.5)[0]) and "self" not in own.fixed(self=0.5).params
