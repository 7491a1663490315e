"""sparse_recurrent_run is a loop over steps with a dense matrix for each delay."""

import re

import pytest
import spikeforge
import spikeforge.nn as snn
import torch
from loops import refused
from torch import nn
from torch.library import opcheck

from spikeforge import ops, rules

SMOOTH = "neuron smooth(x; v; tau) { h = v + (x - v) / tau; s = sigmoid(4 * (h - 1)); return s, h; v' = (1 - s) * h }"
SPIKING = "neuron spiking(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s, h; v' = select(s, 0, h) }"


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u >= 0).to(u.dtype)

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad / (1 + (torch.pi * u) ** 2)


class Case:
    """A layer of random connections, some of them double, and its loop. Weights are multiples of 1/64, so that sums are
    exact."""

    def __init__(self, device, neuron=SMOOTH, shape=(7, 2, 3, 5), max_delay=3, dtype=torch.float64, one=(), density=0.4, seed=0):
        rng = torch.Generator().manual_seed(seed)
        n = shape[-1]
        counts = torch.randint(0, max(int(2 * density * n), 1) + 1, (n,), generator=rng)
        nnz = int(counts.sum())
        number = lambda *size: torch.randn(size, generator=rng, dtype=torch.float64)
        leaf = lambda t, dtype=dtype: t.to(device, dtype).requires_grad_()
        self.neuron, self.max_delay, self.shape = neuron, max_delay, shape
        self.values = "number" if neuron == SMOOTH else "event"
        self.indptr = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)]).to(device)
        self.indices = torch.randint(n, (nnz,), generator=rng, dtype=torch.int32).to(device)
        self.rows = torch.repeat_interleave(torch.arange(n), counts).to(device)
        self.delays = torch.randint(1, max_delay + 1, (1 if "delays" in one else nnz,), generator=rng, dtype=torch.uint8).to(device)
        self.weights = leaf((number(1 if "weights" in one else nnz) * 64).round() / 64)
        self.x, self.v = leaf((number(*shape) * 64).round() / 64 + 0.7), leaf((number(*shape[1:]) * 64).round() / 64)
        self.tau = leaf(torch.full((n,), 2.0, dtype=torch.float64))
        before = torch.rand((max_delay, *shape[1:]), generator=rng, dtype=torch.float64)
        self.spikes = leaf(before if neuron == SMOOTH else (before > 0.7).double())
        self.arguments = [self.x, self.v, self.tau, self.weights, self.spikes]
        self.lengths = self.start = None

    def ours(self, **options):
        options = {"max_delay": self.max_delay, "values": self.values, "lengths": self.lengths, "start": self.start, **options}
        matrix = self.weights, self.indices, self.indptr, self.delays
        outputs, (v,) = ops.sparse_recurrent_run(self.neuron, [self.x], *matrix, [self.v], [self.tau], self.spikes, **options)
        return *outputs, v

    def loop(self):
        """One matrix [n, n] for each delay. Spikes are kept with their steps."""
        n, wide = self.shape[-1], torch.promote_types(self.x.dtype, torch.float32)
        weights = self.weights.to(wide).expand(self.indices.numel())
        delays = self.delays.long().expand(self.indices.numel())
        matrices = []
        for d in range(1, self.max_delay + 1):
            at = delays == d
            dense = torch.zeros(n * n, dtype=wide, device=self.x.device)
            matrices.append(dense.index_add(0, self.rows[at] * n + self.indices[at].long(), weights[at]).view(n, n))
        sent, v, outputs, hs = list(self.spikes.to(wide)), self.v.to(wide), [], []
        for t, row in enumerate(self.x.to(wide)):
            if self.start is not None:
                restarts = self.start[t] if self.lengths is None else self.start[t] & (t < self.lengths)
                v = torch.where(restarts, 0.0, v)
                sent = [torch.where(restarts, 0.0, s) for s in sent]
            current = row
            for d, matrix in enumerate(matrices, 1):
                current = current + sent[len(sent) - d] @ matrix
            h = v + (current - v) / self.tau.to(wide)
            s = torch.sigmoid(4 * (h - 1)) if self.neuron == SMOOTH else Spike.apply(h - 1)
            after = (1 - s) * h
            if self.lengths is not None:
                runs = t < self.lengths
                s, h, after = s * runs, torch.where(runs, h, 0.0), torch.where(runs, after, v)
            v = after
            sent.append(s)
            outputs.append(s)
            hs.append(h)
        return torch.stack(outputs), torch.stack(hs), v


def assert_equal(case, **options):
    found, expected = case.ours(**options), case.loop()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert expected[0].any()
    upstream = [torch.randn_like(t) for t in expected]
    for used in ([0, 1, 2], [0], [2]):
        chosen = [[results[i] for i in used] for results in (found, expected)]
        given = [upstream[i] for i in used]
        ours, loop = (torch.autograd.grad(results, case.arguments, given, retain_graph=True) for results in chosen)
        torch.testing.assert_close(ours, loop, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("neuron", [SMOOTH, SPIKING])
def test_it_is_the_loop_with_dense_matrices(neuron, seed, device):
    rng = torch.Generator().manual_seed(seed)
    pick = lambda *options: options[int(torch.randint(len(options), (), generator=rng))]
    shape = (pick(1, 2, 9, 20), *pick((), (1,), (4,), (2, 3)), pick(1, 5, 17))
    one = pick((), (), ("weights",), ("delays",), ("weights", "delays"))
    case = Case(device, neuron, shape, max_delay=pick(1, 2, 4, 12), one=one, density=pick(0.2, 1.0), seed=seed)
    case.x = (case.x.detach() + 1).requires_grad_()
    case.arguments[0] = case.x
    assert_equal(case)


@pytest.mark.parametrize("shape, density", [((4, 1, 300), 4), ((4, 8, 300), 4), ((3, 32, 20), 0.4), ((3, 33, 20), 0.4)])
def test_rows_with_many_connections_and_many_samples(shape, density, device):
    assert_equal(Case(device, SMOOTH, shape, density=density))


@pytest.mark.parametrize("neuron", [SMOOTH, SPIKING])
@pytest.mark.parametrize("kind", ["lengths", "start", "both"])
def test_samples_end_and_restart(kind, neuron, device):
    case = Case(device, neuron, (9, 4, 6), max_delay=4)
    if kind != "start":
        case.lengths = torch.tensor([9, 0, 3, 7], device=device).unsqueeze(1)
        case.x = case.x.detach()
        for sample, length in enumerate(case.lengths.flatten().tolist()):
            case.x[length:, sample] = 1e9  # padding
        case.arguments[0] = case.x.requires_grad_()
    if kind != "lengths":
        case.start = torch.zeros(9, 4, 1, dtype=torch.bool, device=device)
        for step, sample in ((0, 1), (2, 0), (4, 0), (5, 3), (8, 0)):
            case.start[step, sample] = True
    assert_equal(case)


def test_padding_of_no_number_is_not_read(device):
    case = Case(device, SPIKING, (6, 2, 5))
    case.lengths = torch.tensor([[6], [2]], device=device)
    clean = case.ours()
    case.x = case.x.detach().clone()
    case.x[2:, 1] = float("nan")
    case.x.requires_grad_()
    assert all(map(torch.equal, case.ours(), clean))
    case.ours()[0].sum().backward()
    assert case.weights.grad.isfinite().all() and not case.x.grad[2:, 1].any()


@pytest.mark.parametrize("x, weights", [(torch.float32, torch.float32), (torch.float32, torch.float16), (torch.float16, torch.float16), (torch.bfloat16, torch.bfloat16)])  # fmt: skip
def test_types(x, weights, device):
    case = Case(device, SMOOTH, (8, 3, 12), dtype=x)
    case.weights = (case.weights.detach() / 4).to(weights).requires_grad_()
    case.arguments[3] = case.weights
    found, expected = case.ours(), case.loop()
    wide = torch.float32
    assert found[0].dtype == x and found[2].dtype == wide
    bound = 2e-5 if weights == torch.float32 else 1e-3 if x == torch.float32 else 3e-2
    upstream = torch.randn_like(expected[0])
    ours = torch.autograd.grad(found[0], case.arguments, upstream.to(x))
    loop = torch.autograd.grad(expected[0], case.arguments, upstream)
    for a, b in zip((*found, *ours), (*expected, *loop)):
        assert (a.to(wide) - b.to(wide)).abs().max() <= bound * max(b.to(wide).abs().max().item(), 1)
    assert ours[3].dtype == weights


@pytest.mark.parametrize("shape", [(0, 2, 5), (4, 0, 5), (4, 2, 0)])
def test_empty_calls(shape, device):
    case = Case(device, SPIKING, shape) if shape[-1] else None
    if case is None:
        x, none = torch.zeros(shape, device=device), torch.zeros(0, dtype=torch.int32, device=device)
        (s, h), (v,) = ops.sparse_recurrent_run(SPIKING, [x], torch.zeros(0, device=device), none, torch.zeros(1, dtype=torch.long, device=device), none, [], [torch.tensor(2.0)])
        assert s.shape == shape and v.shape == shape[1:]
        return
    s, h, v = case.ours()
    (s.sum() + h.sum() + v.sum()).backward()
    assert s.shape == case.x.grad.shape == shape and case.weights.grad.shape == case.weights.shape
    assert not case.weights.grad.any() or shape[0]


@pytest.fixture
def same_bits():
    """On a GPU the order of sums is undefined without this mode."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def test_states_and_spikes_before_the_first_step_are_zero_by_default(device, same_bits):
    case = Case(device)
    case.v, case.spikes = torch.zeros_like(case.v), torch.zeros_like(case.spikes)
    matrix = case.weights, case.indices, case.indptr, case.delays
    call = lambda **options: ops.sparse_recurrent_run(SMOOTH, [case.x], *matrix, [], [case.tau], max_delay=3, values="number", **options)
    (s, h), (v,) = call()
    assert all(map(torch.equal, (s, h, v), case.ours()))
    _, (stored,) = call(store_states=True)
    assert stored.shape == case.shape and torch.equal(stored[-1], v)
    (first, _), (middle,) = ops.sparse_recurrent_run(SMOOTH, [case.x[:4]], *matrix, [], [case.tau], max_delay=3, values="number")
    (second, _), (last,) = ops.sparse_recurrent_run(SMOOTH, [case.x[4:]], *matrix, [middle], [case.tau], first[-3:], max_delay=3, values="number")
    torch.testing.assert_close([torch.cat([first, second]), last], [s, v])  # the next piece


def test_the_current_may_be_any_input(device):
    text = "neuron two(x, y; v) { h = 0.5 * v + x - y; return spike(h - 1, atan(2)); v' = 0.9 * h }"
    case = Case(device, SPIKING)
    y = torch.rand_like(case.x).requires_grad_()
    (s,), _ = ops.sparse_recurrent_run(text, [case.x, y], case.weights, case.indices, case.indptr, case.delays, [], [], max_delay=3, into=1)
    swapped = "neuron two(y, x; v) { h = 0.5 * v + x - y; return spike(h - 1, atan(2)); v' = 0.9 * h }"
    (other,), _ = ops.sparse_recurrent_run(swapped, [y, case.x], case.weights, case.indices, case.indptr, case.delays, [], [], max_delay=3)
    assert torch.equal(s, other) and s.any()
    arguments = case.x, y, case.weights
    grads = (torch.autograd.grad(z.sum(), arguments) for z in (s, other))
    torch.testing.assert_close(*grads)


def test_gradcheck(device):
    case = Case(device, SMOOTH, (5, 2, 4), max_delay=2)
    matrix = case.indices, case.indptr, case.delays

    def run(x, v, tau, weights, spikes):
        outputs, states = ops.sparse_recurrent_run(SMOOTH, [x], weights, *matrix, [v], [tau], spikes, max_delay=2, values="number")
        return *outputs, *states

    assert torch.autograd.gradcheck(run, case.arguments)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        (grad,) = torch.autograd.grad(run(*case.arguments)[0].sum(), case.weights, create_graph=True)
        grad.sum().backward()
    with pytest.raises(NotImplementedError, match="sparse_recurrent_run"), torch.autograd.forward_ad.dual_level():
        run(torch.autograd.forward_ad.make_dual(case.x.detach(), torch.ones_like(case.x)), *case.arguments[1:])


def test_it_is_registered_and_compiles(device):
    case = Case(device, SPIKING, (5, 2, 6), dtype=torch.float32)
    matrix = case.weights, case.indices, case.indptr, case.delays
    call = (SPIKING, [case.x], *matrix, [case.v], [case.tau], case.spikes)
    opcheck(ops.sparse_recurrent_run.default, call, dict(max_delay=3))

    def f(x, weights):
        return ops.sparse_recurrent_run(SPIKING, [x], weights, *matrix[1:], [], [case.tau], max_delay=3)[0][0]

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    y, expected = compiled(case.x, case.weights), f(case.x, case.weights)
    assert torch.equal(y, expected)
    grads = (torch.autograd.grad(z.sum(), (case.x, case.weights)) for z in (y, expected))
    torch.testing.assert_close(*grads)
    assert torch.equal(torch.export.export(Layer(f), (case.x, case.weights)).module()(case.x, case.weights), expected)


class Layer(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


WRONG = {
    "x must be [T, *batch, H], but has shape [4]": dict(x=torch.zeros(4)),
    "into must be the number of an input, 0 to 0, but is 1": dict(into=1),
    "weights must have one element, or one for each connection, [3], but has shape [2]": dict(weights=torch.zeros(2)),
    "delays must have one element, or one for each connection, [3], but has shape [4]": dict(delays=torch.ones(4, dtype=torch.uint8)),
    "max_delay must be 1 or more steps, and below 2^30, but is 0": dict(max_delay=0),
    "delays must be from 1 to max_delay, 2, but are from 0 to 2": dict(delays=torch.tensor([1, 0, 2], dtype=torch.uint8)),
    "spikes must have shape [2, 4, 2]": dict(spikes=torch.zeros(1, 4, 2)),
    "values must be": dict(values="spikes"),
    "delays must be from 1 to max_delay, 1, but are from 1 to 2": dict(max_delay=1),
    "x must have one neuron in its last dimension for each row of the matrix, 1, but has shape [3, 4, 2]": dict(indptr=torch.tensor([0, 1])),
}
WRONG_TYPES = {
    "weights must have the type of x, Float, or a half type with float32, but is Double": dict(weights=torch.zeros(3).double()),
    "delays must be uint8 or int32, but is Long": dict(delays=torch.ones(3, dtype=torch.long)),
}


@pytest.mark.parametrize("error, words, changed", [(ValueError, *item) for item in WRONG.items()] + [(TypeError, *item) for item in WRONG_TYPES.items()])  # fmt: skip
def test_wrong_calls_raise(error, words, changed):
    given = dict(
        x=torch.zeros(3, 4, 2), weights=torch.ones(3), indices=torch.tensor([0, 1, 1], dtype=torch.int32),
        indptr=torch.tensor([0, 2, 3]), delays=torch.tensor([1, 2, 2], dtype=torch.uint8), spikes=None, max_delay=2,
    )  # fmt: skip
    call = lambda x, weights, indices, indptr, delays, spikes, **options: ops.sparse_recurrent_run(
        "neuron n(x; v) { return spike(x - v, atan(2)); v' = x }", [x], weights, indices, indptr, delays, [], [], spikes, **options
    )
    call(**given)
    refused(error, re.escape(words), lambda: call(**{**given, **changed}))


def test_wrong_matrices_raise():
    x, one = torch.zeros(3, 4, 2), torch.ones(1)
    call = lambda indices, delay=1: ops.sparse_recurrent_run(
        "neuron n(x; v) { return spike(x - v, atan(2)); v' = x }", [x], one, indices, torch.tensor([0, 1, 1]), torch.tensor([delay], dtype=torch.uint8), [], []
    )
    refused(ValueError, "sparse_recurrent_run: indices", lambda: call(torch.tensor([2], dtype=torch.int32)))


# --- the module

def layer(neuron=None, n=20, delay=(1, 4), **options):
    drawn = spikeforge.connect(
        n, n, [spikeforge.Projection(slice(0, n), slice(0, n), rules.fixed_probability(0.3), weight=rules.normal(0.3, 0.3), delay=rules.uniform(*delay))]
    )  # fmt: skip
    return snn.SparseRecurrent(neuron or snn.LIF(surrogate="atan"), drawn, **options)


def test_the_module_is_the_operator_and_continues_in_pieces(device, same_bits):
    net, x = layer().to(device), 2 * torch.rand(12, 3, 20, device=device)
    y, state = net(x, None)
    text = "neuron lif(x; v) { h = v + 0.5 * (x - v); s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"
    (expected,), (v,) = ops.sparse_recurrent_run(text, [x], net.weights, net.indices, net.indptr, net.delays, [], [], max_delay=net.max_delay)
    assert torch.equal(y, expected) and y.any() and torch.equal(state["neuron.v"], v) and list(state) == ["neuron.v", "spikes"]
    pieces, after = [], None
    for piece in x.split((1, 2, 6, 3)):
        out, after = net(piece, after)
        pieces.append(out)
    assert torch.equal(torch.cat(pieces), y) and all(torch.equal(after[name], state[name]) for name in state)
    with snn.keep_state(net):
        assert torch.equal(torch.cat([net(x[:5]), net(x[5:])]), y)
        assert all(torch.equal(kept, state[name]) for name, kept in snn.get_states(net).items())
    kept = layer(stateful=True, persistent_state=True).to(device)
    assert torch.equal(torch.cat([kept(x[:5]), kept(x[5:])]), y)
    other = layer(stateful=True, persistent_state=True).to(device)
    kept(x[:4]), other.load_state_dict(kept.state_dict())
    assert torch.equal(other(x), kept(x))
    snn.reset_(kept)
    assert torch.equal(torch.stack([kept.step(row) for row in x]), y)
    with spikeforge.count(net) as counted:
        y = net(x)
    assert counted.not_counted == ["(net) (SparseRecurrent)"]
    y.sum().backward()
    assert net.weights.grad.any()
    assert net.connectivity().weights.shape == net.weights.shape


def test_samples_of_different_lengths_are_those_alone(device, same_bits):
    net, x = layer().to(device), 2 * torch.rand(9, 3, 20, device=device)
    lengths = torch.tensor([9, 4, 6], device=device)
    y, state = snn.call(net, x, None, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        alone, after = net(x[:length, i : i + 1], None)
        assert torch.equal(y[:length, i], alone[:, 0]) and not y[length:, i].any()
        assert torch.equal(state["spikes"][:, i], after["spikes"][:, 0]) and torch.equal(state["neuron.v"][i], after["neuron.v"][0])
    start = torch.zeros(9, 3, dtype=torch.bool, device=device)
    start[5] = True
    assert torch.equal(net(x, start=start)[5:], net(x[5:]))
    assert torch.equal(net(x, start=start[:, :1]), net(x, start=start))  # one for all samples


def test_a_network_with_constraints_learns(device):
    """Signs of neurons (Dale's law) and a mask are parametrizations; the copy and the pickle continue."""
    net = layer(n=30).to(device)
    signs = torch.where(torch.arange(30, device=device) < 24, 1.0, -1.0)
    of_rows = signs.repeat_interleave(net.indptr.diff())

    class Dale(nn.Module):
        def forward(self, w):
            return w.abs() * of_rows

    nn.utils.parametrize.register_parametrization(net, "weights", Dale())
    x, target = 2 * torch.rand(15, 4, 30, device=device), 0.2
    optimizer, losses = torch.optim.Adam(net.parameters(), 0.03), []
    for _ in range(25):
        loss = (net(x).mean((0, 1)) - target).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0], losses
    assert ((net.weights * of_rows) >= 0).all()


def test_wrong_modules_raise():
    drawn = layer().connectivity()
    for error, words, call in (
        (TypeError, "neuron cannot run as one operator: Linear is not a neuron", lambda: snn.SparseRecurrent(nn.Linear(2, 2), drawn)),
        (TypeError, "connections must be a result of spikeforge.connect, but is Tensor", lambda: snn.SparseRecurrent(snn.LIF(), torch.eye(3))),
        (ValueError, "values must be 'event', 'graded', 'number', but is 'spikes'", lambda: snn.SparseRecurrent(snn.LIF(), drawn, values="spikes")),
        (ValueError, "delays must be 1 step or more, but the least is 0", lambda: layer(delay=(0, 2))),
        (ValueError, "store_states is not supported", lambda: layer()(torch.zeros(2, 1, 20), store_states=True)),
        (ValueError, r"SparseRecurrent: x must be \[T, \*batch, 20\], but has shape \[2, 1, 19\]", lambda: layer()(torch.zeros(2, 1, 19))),
        (TypeError, "LIF'> is not a module", lambda: layer(snn.LIF)),
    ):
        refused(error, words, call)
