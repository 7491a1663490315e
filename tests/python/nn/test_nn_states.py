"""States: not kept by default; passed, kept, reset, detached, and errors for illegal states."""

import copy

import pytest
import spikeforge.nn as snn
import torch
from loops import STATEFUL, composite, in_pieces, in_steps, refused, same
from reference import run
from torch import nn

NEURONS = STATEFUL
every = pytest.mark.parametrize("kind", NEURONS)


class Block(nn.Module):
    """A custom module without a state argument."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)
        self.lif = snn.LIF(surrogate="atan")
        self.inner = nn.Sequential(snn.AdaptiveLIF(b=0.2), nn.Identity())
        for layer in (self.first, self.second):
            nn.init.uniform_(layer.weight)

    def forward(self, x, gain=1.0):
        return self.inner(self.second(self.lif(gain * self.first(x))))


def sequence(steps=8, shape=(3, 5)):
    return 2 * torch.rand(steps, *shape)


@every
def test_no_state_is_kept_unless_asked_for(kind, device):
    module, x = NEURONS[kind]().to(device), sequence().to(device)
    first = module(x)
    assert torch.equal(module(x), first) and snn.get_states(module) == {}
    module(x[:, :2, :])  # the batch size may change
    assert torch.equal(module(x), first)


@every
def test_steps_pieces_and_the_whole_have_the_same_bits(kind, device):
    module, x = NEURONS[kind]().to(device), sequence().to(device)
    whole, last = module(x, None)
    assert torch.equal(module(x), whole)

    for y, state in (in_pieces(module, x.split([1, 3, 0, 4])), in_steps(module, x)):
        assert torch.equal(y, whole) and same(state, last)
    with snn.keep_state(module):
        assert torch.equal(torch.stack([module.step(row) for row in x]), whole)
        assert same(snn.get_states(module), last)
    assert torch.equal(module.step(x[0]), whole[0]), "a step by itself starts anew"


@every
def test_the_states_of_all_steps_are_returned_and_not_kept(kind):
    module, x = NEURONS[kind](), sequence()
    y, states = module(x, store_states=True)
    state = None
    for t, row in enumerate(x):
        _, state = module.step(row, state)
        assert same({name: value[t] for name, value in states.items()}, state)
    assert torch.equal(y, module(x)) and snn.get_states(module) == {}
    middle = {name: value[3] for name, value in states.items()}
    assert torch.equal(module(x[4:], middle)[0], y[4:]), "a row of them is a state"
    with snn.keep_state(module):
        module(x[:4])
        rest, after = module(x[4:], store_states=True)
        assert torch.equal(rest, y[4:])
        assert same(snn.get_states(module), {name: value[-1] for name, value in states.items()})


def test_gradients_flow_through_states_until_they_are_detached():
    x = sequence().double().requires_grad_()
    lif = snn.LIF(surrogate="atan")
    gradient = lambda y: torch.autograd.grad(y.sum(), x)[0]
    want = gradient(run("lif", x, surrogate="atan").spikes[4:])
    _, state = lif(x[:4], None)
    assert torch.allclose(gradient(lif(x[4:], state)[0]), want, atol=1e-12)
    assert want[:4].abs().sum() > 0
    with snn.keep_state(lif):
        lif(x[:4])
        assert torch.allclose(gradient(lif(x[4:])), want, atol=1e-12)
    with snn.keep_state(lif):
        lif(x[:4])
        snn.detach_(lif)
        cut = gradient(lif(x[4:]))
        assert torch.equal(cut[:4], torch.zeros_like(cut[:4])) and torch.allclose(cut[4:], want[4:], atol=1e-12)


LAYERS = {
    "Recurrent": lambda: snn.Recurrent(snn.LIF(), nn.Linear(5, 5)),
    "stepped": lambda: snn.Recurrent(snn.LIF(), nn.Sequential(nn.Linear(5, 5), nn.ReLU())),
    "DelayedLinear": lambda: snn.DelayedLinear(5, 4, 3),
    "BatchNormNeuron": lambda: snn.BatchNormNeuron(nn.BatchNorm1d(5), snn.LIF()),
}


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("kind", [*NEURONS, *LAYERS])
def test_states_kept_in_inference_mode_start_a_training_call(kind, detach):
    """The reference is a call with the same states as ordinary tensors."""
    module, x = (NEURONS | LAYERS)[kind](), sequence()
    given = x[4:].clone().requires_grad_()
    want, _ = module(given, module(x[:4], None)[1])
    with snn.keep_state(module):
        with torch.inference_mode():
            module(x[:4])
        if detach:
            snn.detach_(module)
            assert not any(value.is_inference() for value in snn.get_states(module).values())
        y = module(given)
        assert torch.equal(y, want)
        if y.requires_grad:
            grad = torch.autograd.grad(y.sum(), given)
            assert torch.equal(grad[0], torch.autograd.grad(want.sum(), given)[0])


def test_states_kept_in_inference_mode_start_a_compiled_training_call():
    net, x = nn.Sequential(nn.Linear(5, 4), snn.LIF(stateful=True)), sequence()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        net(x)
    snn.detach_(net)
    compiled(x).sum().backward()
    assert net[0].weight.grad.abs().sum() > 0


def _set(module, x):
    with torch.inference_mode():
        states = snn.call(copy.deepcopy(module), x, None)[1]
    snn.set_states_(module, states)


def _load(module, x):
    other = copy.deepcopy(module)
    other(x)
    with torch.inference_mode():
        module.load_state_dict(other.state_dict())


def _copy(module, x):
    module(x)
    with torch.inference_mode():
        return copy.deepcopy(module)


def _convert(module, x):
    module.float()(x.float())
    with torch.inference_mode():
        module.double()


def _call_between(module, x):
    with torch.inference_mode():
        module(x)
    snn.call(module, 2 * x, None)


def _compile(module, x):
    with torch.inference_mode():
        torch.compile(module, backend="aot_eager")(x)


@pytest.mark.parametrize("leave", [_set, _load, _copy, _convert, _call_between, _compile])
def test_states_left_by_inference_mode_start_a_training_call(leave):
    """Tests every way to set states. Inputs are multiples of 1/8, which float represents exactly."""
    module = snn.Sequential(snn.LIF(surrogate="atan", stateful=True, persistent_state=True), snn.LI(stateful=True, persistent_state=True)).double()
    x = (8 * sequence()).round().double() / 8
    given = x[4:].clone().requires_grad_()
    want, _ = module(given, module(x[:4], None)[1])
    module = leave(module, x[:4]) or module
    y = module(given)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), given), torch.autograd.grad(want.sum(), given), rtol=1e-5, atol=1e-5)


def test_an_initial_state_can_be_learned():
    v = nn.Parameter(torch.full((3, 5), 0.5, dtype=torch.float64))
    y, _ = snn.LIF(surrogate="atan")(sequence().double(), {"v": v})
    y.sum().backward()
    assert v.grad.abs().sum() > 0


def test_stateful_modules_go_on_until_they_are_reset():
    module, x = snn.LIF(stateful=True), sequence()
    whole = snn.LIF()(x)
    assert module.stateful and not snn.LIF().stateful
    assert torch.equal(torch.cat([module(x[:3]), module(x[3:])]), whole)
    snn.reset_(module)
    assert torch.equal(module(x), whole)
    handed, _ = module(x, None)
    assert torch.equal(handed, whole), "a state that is handed in counts, not the one that is kept"


def sequential():
    return snn.Sequential(nn.Linear(5, 5), snn.LIF(stateful=True), nn.Linear(5, 5), snn.LI(stateful=True))


def nested():
    return snn.Sequential(snn.LIF(stateful=True), sequential(), nn.Linear(5, 5), snn.Delay(2, stateful=True))


def twice():
    lif = snn.LIF(stateful=True)
    return snn.Sequential(lif, lif, nn.Linear(5, 5), snn.LI(stateful=True))


def looped():
    """Returns a network with a loop, which is stepped, and other parts before and after it."""
    return composite(
        "in -> first.in, first.out -> lif.in, lif.out -> back.in, back.out -> lif.in 2, lif.out -> last.in 1, "
        "last.out -> li.in, li.out -> out",
        stateful=True, first=snn.LIF(stateful=True), lif=snn.LIF(stateful=True), back=nn.Linear(5, 5),
        last=nn.Linear(5, 5), li=snn.LI(stateful=True),
    )


@pytest.mark.parametrize("make", [sequential, nested, twice, looped])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_module_that_raises_leaves_all_states_as_they_were(make, error):
    network, x = make(), sequence()
    whole = copy.deepcopy(network)(torch.cat([x, x]))
    assert torch.equal(network(x), whole[:8])
    before = snn.get_states(network)

    def fail(*_):
        raise error

    for module in network.modules():
        hook = module.register_forward_hook(fail)
        with pytest.raises(error):
            network(2 * x)
        hook.remove()
        assert same(snn.get_states(network), before)
    assert torch.equal(network(x), whole[8:])


def test_keep_state_begins_and_ends_anew():
    block, x = Block(), sequence()
    whole = block(x)
    for _ in range(2):
        with snn.keep_state(block) as same_net:
            assert same_net is block
            assert torch.equal(block(x), whole)
            assert set(snn.get_states(block)) == {"lif.v", "inner.0.v", "inner.0.a"}
        assert snn.get_states(block) == {}


def test_keep_state_is_reentrant():
    block, x = Block(), sequence()
    whole = block(x)
    keep = snn.keep_state(block)
    with keep:
        first = block(x[:2])
        with snn.keep_state(block), keep, snn.keep_state(block.lif):
            second = block(x[2:4])
        third = block(x[4:])
    assert torch.allclose(torch.cat([first, second, third]), whole)
    assert not block.lif.stateful and snn.get_states(block) == {}


def test_keep_state_leaves_stateful_modules_as_they_are():
    pair, x = nn.Sequential(snn.LIF(stateful=True), snn.LI()), sequence()
    pair(x[:4])
    kept = snn.get_states(pair)["0.v"]
    with snn.keep_state(pair):
        assert snn.get_states(pair)["0.v"] is kept
        pair(x[4:])
    assert set(snn.get_states(pair)) == {"0.v"} and pair[0].stateful and not pair[1].stateful


def test_keep_state_ends_with_an_error_too():
    lif = snn.LIF()
    with pytest.raises(ZeroDivisionError), snn.keep_state(lif):
        lif(sequence())
        raise ZeroDivisionError
    assert snn.get_states(lif) == {} and not lif.stateful


def test_call_hands_on_the_states_of_any_module():
    block, x = Block().double(), sequence().double()
    whole = block(x, gain=3.0)
    first, state = snn.call(block, x[:3], None, gain=3.0)
    second, last = snn.call(block, x[3:], state, 3.0)
    assert torch.allclose(torch.cat([first, second]), whole) and 0 < whole.mean() < 1
    assert set(last) == {"lif.v", "inner.0.v", "inner.0.a"}
    assert torch.utils._pytree.tree_map(torch.zeros_like, last).keys() == last.keys()
    only = {"lif.v": state["lif.v"]}
    other, _ = snn.call(block, x[3:], only, gain=3.0)
    want = block.inner(block.second(block.lif(3.0 * block.first(x[3:]), only and {"v": state["lif.v"]})[0]))
    assert torch.equal(other, want), "what is missing starts anew"


def test_call_neither_reads_nor_changes_what_is_kept():
    block, x = Block(), sequence()
    want, _ = snn.call(block, x)
    with snn.keep_state(block):
        block(x[:2])
        kept = snn.get_states(block)
        assert torch.equal(snn.call(block, x)[0], want)
        assert same(snn.get_states(block), kept)
        refused(ValueError, "no state 'lif.w'", lambda: snn.call(block, x, {"lif.w": x}))
        with pytest.raises((ValueError, RuntimeError)):
            snn.call(block, x[:, :, :2])
        assert same(snn.get_states(block), kept)


def test_states_are_set_and_got():
    block, x = Block(), sequence()
    _, state = snn.call(block, x[:3])
    want, _ = snn.call(block, x[3:], state)
    with snn.keep_state(block):
        snn.set_states_(block, state)
        assert torch.equal(block(x[3:]), want)
        with pytest.raises(ValueError, match="Block: there is no state 'lif.q'; it has inner.0.a, inner.0.v, lif.v"):
            snn.set_states_(block, {"lif.q": x})
    words = r"AdaptiveLIF 'inner.0': does not keep its states; use stateful=True or keep_state\(net\)"
    refused(ValueError, words, lambda: snn.set_states_(block, {"inner.0.a": x}))
    partly = snn.Sequential(snn.LIF(stateful=True), snn.LIF())
    partly(x)
    before = snn.get_states(partly)
    refused(ValueError, "LIF '1': does not keep its states", lambda: snn.set_states_(partly, {"0.v": x[0], "1.v": x[0]}))
    assert same(snn.get_states(partly), before)


@pytest.mark.parametrize("other, message", [
    (lambda x: x[:, :2],
     r"the kept state v has shape \[3, 5\], but a step of x \[8, 2, 5\] has \[2, 5\]; call spikeforge.nn.reset_\(net\)"),
    (lambda x: x.double(),
     r"the kept state v is float32, but for x of float64 states are float64; call spikeforge.nn.reset_\(net\)"),
    (lambda x: x.to("meta"),
     r"the kept state v is on cpu, but x is on meta; net.to\(x.device\) moves kept states, or call spikeforge"),
])
@pytest.mark.parametrize("kind", ["LIF", "PLIF", "strict", "Neuron"])
def test_another_batch_is_an_error_and_never_a_silent_restart(kind, other, message):
    pair = nn.Sequential(nn.Identity(), NEURONS[kind]())
    x = sequence()
    with snn.keep_state(pair):
        pair(x)
        before = snn.get_states(pair)
        with pytest.raises((TypeError, ValueError), match=rf"{pair[1]._kind()} '1': {message}") as error:
            pair(other(x))
        assert "\n" not in str(error.value)
        assert same(snn.get_states(pair), before)
        snn.reset_(pair)
        pair(other(x)) if "meta" not in message else None


def test_delays_and_encoders_say_it_too():
    delay = snn.Delay(2, stateful=True)
    delay(sequence())
    words = r"Delay: the kept state x has shape \[2, 3, 5\] on cpu, but this x needs \[2, 4, 5\] .*reset_"
    refused(ValueError, words, lambda: delay(sequence(shape=(4, 5))))
    with pytest.raises(TypeError, match="Delay: steps must be whole numbers, but are float32; pass steps.long()"):
        snn.Delay(torch.ones(3))
    refused(ValueError, "Delay: steps must be 0 or more, but one is -1", lambda: snn.Delay(torch.tensor([1, -1])))
    refused(ValueError, "Latency: steps must be at least 1, but is 0", lambda: snn.Latency(0))


def test_copies_share_no_states():
    module, x = snn.LIF(stateful=True), sequence()
    module(x[:4])
    other = copy.deepcopy(module)
    module(x[4:])
    assert torch.equal(other(x[4:]), snn.LIF()(x)[4:])


def test_no_steps_leave_the_states_as_they_are():
    module, x = snn.LIF(v_reset=0.25), sequence()
    y, state = module(x[:0], None)
    assert y.shape == (0, 3, 5) and torch.equal(state["v"], torch.full((3, 5), 0.25))
    _, state = module(x, None)
    assert torch.equal(module(x[:0], state)[1]["v"], state["v"])


def test_dropout_has_one_mask_for_all_steps_of_a_sequence():
    x = 1 + torch.rand(6, 400, 5)
    x.requires_grad_()
    dropout = snn.Dropout(0.25)
    y, state = dropout(x, None)
    mask = state["mask"]
    assert torch.equal(y, x * (mask / 0.75)) and abs(mask.float().mean() - 0.75) < 0.05
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], (mask / 0.75).expand(x.shape))
    assert not torch.equal(dropout(x, None)[1]["mask"], mask)
    with snn.keep_state(dropout):
        steps = torch.stack([dropout.step(row) for row in x])
        assert torch.equal(steps, dropout(x)), "one mask"
        kept = snn.get_states(dropout)
        assert torch.equal(dropout.eval()(x), x) and torch.equal(snn.get_states(dropout)["mask"], kept["mask"])
        assert torch.equal(dropout.train()(x), steps)
        snn.reset_(dropout)
        assert not torch.equal(dropout(x), steps)
    assert torch.equal(dropout(x, state, store_states=True)[1]["mask"], mask.expand(6, 400, 5))
    assert torch.equal(snn.Dropout(0)(x), x) and not snn.Dropout(1)(x).any()
    half = snn.Dropout(0.5)(torch.ones(2, 50, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16 and set(half.unique().tolist()) == {0, 2}


def test_dropout_in_networks():
    """With lengths, in a loop that is stepped, under vmap, and compiled."""
    net = snn.Sequential(nn.Linear(5, 20), snn.Dropout(0.5), snn.LIF(), nn.Linear(20, 2), snn.LI())
    x, lengths = sequence(), torch.tensor([8, 2, 5])
    x[5:, 2] = float("nan")
    y, state = net(x, None, lengths=lengths, start=torch.ones(8, 3, dtype=torch.bool))
    alone = [net(x[:n, b : b + 1], {"1.mask": state["1.mask"][b : b + 1]}, start=torch.ones(n, 1, dtype=torch.bool))[0]
             for b, n in enumerate(lengths)]  # fmt: skip
    assert all(torch.allclose(y[:n, b : b + 1], one) for b, (n, one) in enumerate(zip(lengths, alone))) and y.isfinite().all()
    dropout = snn.Dropout(0.5)
    assert not snn.Sequential(dropout)(x, lengths=lengths)[5:, 2].any()
    loop = snn.Recurrent(snn.LIF(), nn.Sequential(nn.Linear(5, 5), dropout))
    given = 5 * torch.rand(8, 3, 5)
    y, state = loop(given, None)
    (name,) = [name for name in state if name.endswith("mask")]
    assert torch.equal(loop(given, {name: state[name]})[0], y), "the mask of the first step is that of all"
    batched = torch.vmap(dropout, randomness="different")(torch.ones(4, 2, 30))
    assert torch.equal(batched[:, 0], batched[:, 1]) and not torch.equal(batched[0], batched[1])
    compiled = torch.compile(lambda x, state: dropout(x, state), fullgraph=True, backend="aot_eager")
    y, state = compiled(given, None)
    assert torch.equal(y, given * state["mask"] * 2) and torch.equal(compiled(given, state)[0], y)


def test_encoders():
    values = torch.rand(4, 6)
    assert torch.equal(snn.Repeat().encode(values, 3), values.expand(3, 4, 6))
    spikes = snn.Latency(5).encode(values, 9)
    assert torch.equal(spikes.sum(0), torch.ones(4, 6))
    assert torch.equal(spikes.argmax(0), torch.round(4 * (1 - values)).long())
    drawn = snn.Poisson(torch.Generator().manual_seed(1)).encode(values, 4000)
    assert torch.allclose(drawn.mean(0), values, atol=0.05) and set(drawn.unique().tolist()) == {0.0, 1.0}
    generator = torch.Generator().manual_seed(1)
    pieces = [snn.Poisson(generator).encode(values, n) for n in (1, 3)]
    assert torch.equal(torch.cat(pieces), drawn[:4]), "a sequence in pieces draws the same numbers"
    # Half types have too few values for random numbers and steps: 256 or 2,048 below 1.
    for dtype in (torch.float16, torch.bfloat16):
        steps, values = 2501, torch.arange(257) / 256
        spikes = snn.Latency(steps).encode(values.to(dtype), steps)
        assert spikes.dtype == dtype and torch.equal(spikes.sum(0, dtype=torch.float32), torch.ones(257))
        assert torch.equal(spikes.argmax(0), torch.round(2500 * (1 - values.double())).long())
        for probability in (1e-4, 1e-3, 0.3):
            given = torch.full((4000,), probability, dtype=dtype)
            drawn = snn.Poisson(torch.Generator().manual_seed(1)).encode(given, 500)
            p, count = given[0].item(), drawn.numel()
            assert drawn.dtype == dtype and abs(drawn.double().sum() - p * count) < 6 * (p * count) ** 0.5
    refused(ValueError, "Poisson: steps must be at least 0, but is -1", lambda: snn.Poisson().encode(values, -1))
    refused(TypeError, "Repeat: steps must be a whole number, but is 3.5", lambda: snn.Repeat().encode(values, 3.5))
