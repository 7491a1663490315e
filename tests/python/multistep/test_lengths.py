"""lengths and start: samples of a batch that end before T, or restart within the sequence.

The oracle runs each sample, and each part between two starts, separately: in float64 by the loops of reference.py, or
by the operator without lengths, whose bits must be the same. Values after a sample's end are NaN in inputs and upstream
gradients, so that results that depend on them are NaN.
"""

import pytest
import torch
from torch.library import opcheck
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, unpack_sequence

import reference
from cases import (
    BOUND, LOWERED_LIF, Inputs, Options, assert_within, gradients, prepare_call, random_parameters, random_states, random_x,
)
from loops import refused
from reference import NEURONS

import spikeforge.nn as snn

ops = torch.ops.spikeforge
STEPS, LENGTHS = 19, (7, 19, 0, 16, 8)
LEAKY = """neuron leaky(x, y; v = 0.25, a; tau) {
  h = v + (x - v) / tau
  s = spike(h - 1 + 0.1 * y - a, atan(2))
  return s, h * y
  v' = select(s, 0, h)
  a' = 0.9 * a + 0.2 * s
}"""


def samples(device, lengths=LENGTHS, steps=STEPS, starts=True):
    start = torch.rand(steps, len(lengths)) < 0.15
    start[0, ::2] = True
    start[steps // 2] = True
    return torch.tensor(lengths, dtype=torch.int32, device=device), start.to(device) if starts else None


def behind(t, lengths):
    """Returns t [T, B, ...] with NaN after each sample's end."""
    steps = torch.arange(t.shape[0], device=t.device).view(-1, 1)
    return t.masked_fill((steps >= lengths).view(*t.shape[:2], *[1] * (t.dim() - 2)), float("nan"))


def stretches(b, lengths, start):
    """Returns the intervals [t0, t1) between starts; the first uses the given states unless it begins with a start."""
    begins = [t for t in range(int(lengths[b])) if start is not None and start[t, b]]
    begins = begins if begins[:1] == [0] else [0, *begins]
    return list(zip(begins, [*begins[1:], int(lengths[b])]))


def joined(run, steps, lengths, start, given):
    """Applies run(b, t0, t1, states) to all intervals. Returns [T, B, ...], zero after ends, and the last states."""
    columns, last = [], []
    for b in range(len(lengths)):
        parts, states = [], None
        for t0, t1 in stretches(b, lengths, start):
            begins = start is not None and t1 > t0 and bool(start[t0, b])
            sequences, states = run(b, t0, t1, None if begins else given)
            parts.append(sequences)
        padded = []
        for pieces in zip(*parts):
            whole = torch.cat(pieces)
            padded.append(torch.cat((whole, whole.new_zeros(steps - whole.shape[0], *whole.shape[1:]))))
        columns.append(padded)
        last.append(states)
    sequences = [torch.stack(of_all, 1) for of_all in zip(*columns)]
    return sequences, [torch.stack(of_all) for of_all in zip(*last)]


def assert_same(label, found, expected, bound, scale=None):
    """Compares within the bound, or bit for bit if the bound is None."""
    found, expected = found.detach().cpu(), expected.detach().cpu().nan_to_num(0)
    if bound is None:
        assert torch.equal(found, expected), label
    else:
        assert_within(label, found, expected.double(), bound, scale)


def assert_as_alone(found, expected, leaves, lengths, *, within=None, bound=1e-10, alone=None):
    """Compares results, bit for bit or within a bound, and gradients. `alone`: the leaves of the expected results."""
    for k, (y, e) in enumerate(zip(found, expected, strict=True)):
        assert_same(f"result {k}", y, e, within, torch.tensor(1.0))
    upstream = [torch.randn(y.shape, dtype=y.dtype) for y in expected]
    steps = leaves[0].shape[:2]
    nan = [behind(g.to(y), lengths) if g.shape[:2] == steps else g.to(y) for g, y in zip(upstream, found)]
    grads = gradients(found, nan, leaves)
    wanted = gradients(expected, upstream, leaves if alone is None else alone)
    for k, (grad, e) in enumerate(zip(grads, wanted, strict=True)):
        if e is None:
            assert grad is None or not grad.any(), f"gradient {k}"
        else:
            assert_same(f"gradient {k}", grad, e, bound)


def of_neuron(value, b, shape):
    """Returns the parameter of sample b."""
    return value.expand(shape)[b] if torch.is_tensor(value) and value.dim() else value


def by_reference(neuron, inputs, options, lengths, start, store):
    shape = inputs.x.shape[1:]
    given = [s for s in (inputs.v, inputs.w) if s is not None]

    def run(b, t0, t1, states):
        params = {name: of_neuron(value, b, shape) for name, value in inputs.params.items()}
        v, w = (*(s[b] for s in states), None)[:2] if states else (None, None)
        found = reference.run(neuron, inputs.x[t0:t1, b], v, w, params=params, **options.reference())
        kept = [s for s in (found.v, found.w) if s is not None]
        return [found.spikes, *kept], [s for s in (found.v_last, found.w_last) if s is not None]

    (spikes, *sequences), last = joined(run, inputs.x.shape[0], lengths, start, given)
    return spikes, *(sequences if store else last)


def with_samples(neuron, inputs, options, lengths, start, store=False):
    overload, args, kwargs = prepare_call(neuron, inputs, options, store)
    return overload(*args, **kwargs, lengths=lengths, start=start)


def compare(neuron, shape, device, lengths, start, *, store, states, options=Options(), kind="per channel", layout=None):
    x = random_x(neuron, STEPS, (len(lengths), *shape), torch.float64, device)
    if layout is not None:
        x = layout(x)
    params = random_parameters(neuron, x.shape[1:], kind, torch.float64, device)
    if options.soft:
        del params["v_reset"]
    inputs = Inputs(behind(x, lengths), params=params)
    if states:
        inputs.v, inputs.w = random_states(neuron, x.shape[1:], torch.float64, device)
    inputs = inputs.map(lambda name, t: t.requires_grad_())
    found = with_samples(neuron, inputs, options, lengths, start, store)
    host = inputs.map(lambda name, t: t.detach().cpu().requires_grad_())
    expected = by_reference(neuron, host, options, lengths.cpu(), None if start is None else start.cpu(), store)
    leaves, alone = list(inputs.tensors().values()), list(host.tensors().values())
    assert_as_alone(found, expected, leaves, lengths, within=1e-10, alone=alone)


@pytest.mark.parametrize("neuron", NEURONS)
def test_samples_are_as_each_alone(neuron, device):
    lengths, start = samples(device)
    compare(neuron, (3,), device, lengths, start, store=False, states=False)
    compare(neuron, (3, 2), device, lengths, None, store=True, states=True)


@pytest.mark.parametrize("soft, store, states, starts", [(False, False, True, True), (True, True, False, True), (False, True, True, False)])
def test_samples_of_many_neurons_are_as_each_alone(soft, store, states, starts, device):
    """A tile of the CPU and a block of the GPU process neurons of one sample."""
    lengths, start = samples(device, starts=starts)
    options = Options(soft=soft, surrogate="atan")
    compare("lif", (40, 5), device, lengths, start, store=store, states=states, options=options, kind="per neuron")


def test_starts_alone_and_lengths_alone(device):
    lengths, start = samples(device, lengths=(STEPS,) * 4)
    compare("lif", (6,), device, lengths, start, store=False, states=True)
    x = random_x("lif", STEPS, (4, 6), torch.float64, device)
    assert torch.equal(ops.lif(x, start=start)[0], ops.lif(x, lengths=lengths, start=start)[0])
    assert torch.equal(ops.lif(x, lengths=lengths)[0], ops.lif(x)[0])


def test_starts_of_any_byte(device):
    # A bool tensor that is a view of another dtype may contain bytes other than 0 and 1.
    start = torch.tensor([[2, 0, 255], [0, 128, 0], [3, 0, 0], [0, 0, 0]], dtype=torch.uint8, device=device)
    x = random_x("lif", 4, (3, 5), torch.float64, device)
    assert torch.equal(ops.lif(x, start=start.view(torch.bool))[0], ops.lif(x, start=start.ne(0))[0])


LAYOUTS = {
    "channels last": lambda x: x.movedim(2, -1).contiguous().movedim(-1, 2),
    "samples last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "batch first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_samples_are_found_in_any_layout(name, device):
    lengths, start = samples(device)
    compare("adaptive_lif", (3, 4), device, lengths, start, store=False, states=True, layout=LAYOUTS[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inner", [2, 64, 200])
def test_each_type_has_the_bits_of_each_sample_alone(dtype, inner, device):
    lengths, start = samples(device)
    x = random_x("lif", STEPS, (len(LENGTHS), inner), dtype, device)
    v = random_states("lif", x.shape[1:], dtype, device)[0]
    tau = torch.tensor(2.5, dtype=dtype, device=device)
    x, given = behind(x, lengths).requires_grad_(), v.clone().requires_grad_()

    def run(b, t0, t1, states):
        y, last = ops.lif(x[t0:t1, b], None if states is None else states[0][b], tau=tau, v_reset=0.25)
        return [y], [last]

    found = ops.lif(x, given, tau=tau, v_reset=0.25, lengths=lengths, start=start)
    sequences, last = joined(run, STEPS, lengths, start, [given])
    # On a GPU, segments are processed in parallel and their maps are composed, with different rounding.
    assert_as_alone(found, sequences + last, [x, given], lengths, bound=None if device.type == "cpu" else BOUND[dtype])


def test_a_text_is_as_each_sample_alone(device):
    lengths, start = samples(device)
    x, y = (torch.randn(STEPS, len(LENGTHS), 70, dtype=torch.float64, device=device) + 0.6 for _ in range(2))
    tau = torch.rand(70, dtype=torch.float64, device=device) + 1.5
    leaves = [t.requires_grad_() for t in (behind(x, lengths), behind(y, lengths), tau)]

    def run(b, t0, t1, states):
        inputs = [leaves[0][t0:t1, b], leaves[1][t0:t1, b]]
        outputs, last = ops.run(LEAKY, inputs, [], [leaves[2]])
        return outputs, last

    outputs, last = ops.run(LEAKY, leaves[:2], [], leaves[2:], lengths=lengths, start=start)
    expected, expected_last = joined(run, STEPS, lengths, start, None)
    assert_as_alone(outputs + last, expected + expected_last, leaves, lengths)


@pytest.mark.parametrize("batch, inner", [(130, 1), (70, 40), (70, 64), (66, 1100)])
def test_a_batch_of_many_samples_is_as_one_without_lengths_up_to_its_ends(batch, inner, device):
    """A tile has several samples, and a thread several tiles; the results of the last size use non-temporal stores."""
    torch.manual_seed(5)
    steps, text = 31, "neuron n(x; v) { h = 0.5 * v + x; s = spike(h - 1, sigmoid(4)); return s; v' = select(s, 0, h) }"
    lengths = torch.randint(steps + 1, (batch,), device=device)
    ended = (torch.arange(steps, device=device).view(-1, 1) >= lengths).unsqueeze(-1)
    x, upstream = (torch.rand(steps, batch, inner, device=device) * 1.5 for _ in range(2))
    threads = torch.get_num_threads()
    try:
        for run in (lambda x, **told: ops.lif(x, **told)[0], lambda x, **told: ops.run(text, [x], [], [], **told)[0][0]):
            whole, padded = x.clone().requires_grad_(), x.masked_fill(ended, torch.nan).requires_grad_()
            expected = run(whole).masked_fill(ended, 0)
            (wanted,) = torch.autograd.grad(expected, whole, upstream)
            for count in (1, 2):
                torch.set_num_threads(count)
                y = run(padded, lengths=lengths)
                (grad,) = torch.autograd.grad(y, padded, upstream.masked_fill(ended, torch.nan))
                assert torch.equal(y, expected)
                if device.type == "cpu":
                    assert torch.equal(grad, wanted)
                else:
                    assert_within("gradient", grad, wanted.double(), BOUND[torch.float32])
    finally:
        torch.set_num_threads(threads)


def test_long_sequences_of_few_neurons_are_as_each_alone(device):
    """On a GPU, the backward pass computes segments in parallel."""
    steps, lengths = 300, torch.tensor((300, 41, 0, 128, 299, 7), dtype=torch.int32, device=device)
    start = (torch.rand(steps, 6) < 0.02).to(device)
    x = behind(random_x("izhikevich", steps, (6, 4), torch.float64, device), lengths).requires_grad_()
    rest = torch.tensor(0.05, dtype=torch.float64, device=device, requires_grad=True)

    def neuron(x, **samples):
        numbers = [torch.tensor(n, dtype=torch.float64, device=device) for n in (-0.1, 0.0)]
        return ops.izhikevich(x, w_rest=rest, v_rest=numbers[0], v_reset=numbers[1], a=torch.tensor(0.1).double().to(device), **samples)

    def run(b, t0, t1, states):
        y, *last = neuron(x[t0:t1, b])
        return [y], last

    found = neuron(x, lengths=lengths, start=start)
    sequences, last = joined(run, steps, lengths, start, None)
    assert_as_alone(found, sequences + last, [x, rest], lengths, bound=1e-9)


def test_loihi_is_as_each_sample_alone(device):
    lengths, start = samples(device)
    x = torch.randint(-500, 3000, (STEPS, len(LENGTHS), 9), dtype=torch.int32).to(device)

    def run(b, t0, t1, states):
        y, *last = ops.loihi_lif(x[t0:t1, b], du=400, dv=300, vth=20)
        return [y], last

    found = ops.loihi_lif(x, du=400, dv=300, vth=20, lengths=lengths, start=start)
    (expected,), last = joined(run, STEPS, lengths, start, None)
    assert expected.any() and torch.equal(found[0], expected) and all(map(torch.equal, found[1:], last))


# --- shapes, compilers, transforms ---------------------------------------------------------------------------------


def test_no_steps_and_no_samples(device):
    v = torch.randn(3, 2, device=device)
    none = torch.zeros(3, dtype=torch.int64, device=device)
    y, last = ops.lif(torch.zeros(0, 3, 2, device=device), v, lengths=none, start=torch.zeros(0, 3, dtype=torch.bool, device=device))
    assert y.shape == (0, 3, 2) and torch.equal(last, v)
    y, last = ops.lif(torch.full((4, 3, 2), torch.nan, device=device), v, lengths=none)
    assert not y.any() and torch.equal(last, v)
    y, _ = ops.lif(torch.zeros(4, 0, 2, device=device), lengths=none[:0])
    assert y.shape == (4, 0, 2)


def test_opcheck_of_samples():
    lengths, start = samples("cpu", (3, 0, 4), steps=4)
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    opcheck(ops.lif.default, (x,), dict(lengths=lengths, start=start))
    opcheck(ops.run.default, (LEAKY, [x, x], [], [torch.tensor(2.0).double()]), dict(lengths=lengths, start=start))
    aligned = dict(lengths=lengths.view(3, 1), start=start.view(4, 3, 1))
    opcheck(ops.lif_forward.default, (x, None, [None] * 3, [2.0, 1.0, 0.0]), dict(LOWERED_LIF, save=True, **aligned))


def test_compiled_with_dynamic_shapes():
    @torch.compile(dynamic=True, fullgraph=True)
    def run(x, lengths, start):
        return ops.lif(x, lengths=lengths, start=start)

    for count in (3, 5):
        lengths, start = samples("cpu", LENGTHS[:count])
        x = behind(torch.randn(STEPS, count, 4), lengths).requires_grad_()
        found, expected = run(x, lengths, start), ops.lif(x, lengths=lengths, start=start)
        assert all(map(torch.equal, found, expected))
        assert torch.equal(*(torch.autograd.grad(y.sum() + v.sum(), x)[0] for y, v in (found, expected)))


@pytest.mark.parametrize("in_dims", [(1, 0, 1), (1, None, None), (None, 0, 1)])
def test_vmap_over_samples(in_dims):
    x = torch.randn(STEPS, 2, 5, 3, dtype=torch.float64)
    lengths = torch.tensor([LENGTHS, LENGTHS[::-1]])
    start = torch.rand(STEPS, 2, 5) < 0.2
    given = [t if d is not None else t.select(e, 0) for t, d, e in zip((x, lengths, start), in_dims, (1, 0, 1))]

    def loss(x, lengths, start):
        y, v = ops.lif(x, v_reset=-0.2, lengths=lengths, start=start)
        return y.sum() + (v * v).sum(), y

    grads, y = torch.vmap(torch.func.grad(loss, has_aux=True), in_dims)(*given)
    for i in range(2):
        one = [t if d is None else t.select(d, i) for t, d in zip(given, in_dims)]
        grad, expected = torch.func.grad(loss, has_aux=True)(*one)
        assert torch.equal(grads[i], grad) and torch.equal(y[i], expected)


@pytest.mark.parametrize("neuron", ["lif", "izhikevich"])
def test_second_derivatives_if_states_restart_at_parameters(neuron):
    """States restart at v_reset and w_rest, which are tensors with one value per neuron."""
    lengths, start = samples("cpu", (7, 5, 0), steps=7)
    x = torch.randn(7, 3, 2, dtype=torch.float64)
    params = [torch.rand(2, dtype=torch.float64) * 0.4 + low for low in (2.0, -0.3, 0.1)]
    names = ("tau", "v_reset", "w_rest")[: 3 if neuron == "izhikevich" else 2]

    def call(x, *params, **options):
        given = dict(zip(names, params), lengths=lengths, start=start, v_threshold=torch.tensor(1.0, dtype=x.dtype))
        return getattr(ops, neuron)(x, **given, **options)

    def smooth(*leaves):
        y, *states = call(*leaves, spiking=False)
        return y.sum(0) + sum(states)

    leaves = [t.requires_grad_() for t in (x, *params[: len(names)])]
    assert torch.autograd.gradcheck(smooth, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(smooth, leaves)
    torch.autograd.gradgradcheck(lambda tau: smooth(x.detach(), tau, *params[1 : len(names)]), [leaves[1]])
    values, _ = torch.func.jvp(lambda x: call(x * 3, *params)[0], (x.detach(),), (x.detach(),))
    assert torch.equal(values, call(x * 3, *params)[0]) and values.any()


WRONG = [
    (dict(lengths=torch.tensor([1, 2])), ValueError, r"lengths must have shape \[3\].* but has \[2\]"),
    (dict(lengths=torch.tensor([1, 2, 5])), ValueError, r"lengths must be in \[0, 4\]"),
    (dict(lengths=torch.tensor([1, -1, 2])), ValueError, "lengths must be in"),
    (dict(lengths=torch.tensor([1, 2**40, 2])), ValueError, "lengths must be in .* but one is 1099511627776, of sample 1"),
    (dict(lengths=torch.tensor([1.0, 2.0, 3.0])), TypeError, "lengths must be dense int32 or int64, but is Float"),
    (dict(start=torch.zeros(4, 2, dtype=torch.bool)), ValueError, r"start must have shape \[4, 3\].* but has \[4, 2\]"),
    (dict(start=torch.zeros(3, dtype=torch.bool)), ValueError, r"start must have shape \[4, 3\]"),
    (dict(start=torch.zeros(4, 3)), TypeError, "start must be dense bool, but is Float"),
]


@pytest.mark.parametrize("wrong, error, message", WRONG)
def test_wrong_samples_are_refused(wrong, error, message):
    refused(error, message, lambda: ops.lif(torch.zeros(4, 3, 2), **wrong))
    refused(error, message, lambda: ops.run("neuron same(x) { return x }", [torch.zeros(4, 3, 2)], [], [], **wrong))
    with pytest.raises(error, match="^recurrent_run: " + message):
        x = torch.zeros(4, 3, 2)
        ops.recurrent_run(LEAKY, [x, x], torch.eye(2), [], [torch.tensor(2.0)], **wrong)
    refused(ValueError, r"must be \[T, B, \*shape\]", lambda: ops.lif(torch.zeros(4), lengths=torch.tensor(3)))


# --- recurrent layers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [1, 3])
@pytest.mark.parametrize("width", [4, 70])
def test_a_recurrent_layer_is_as_each_sample_alone(delay, width, device):
    lengths, start = samples(device)
    options = dict(dtype=torch.float64, device=device)
    x, y = (torch.randn(STEPS, len(LENGTHS), width, **options) + 0.6 for _ in range(2))
    w = torch.randn(width, width, **options) / width**0.5
    tau, before = torch.tensor(2.0, **options), (torch.rand(delay, len(LENGTHS), width, **options) < 0.3).double()
    leaves = [behind(x, lengths), behind(y, lengths), w, tau, before]
    x, y, w, tau, before = [t.requires_grad_() for t in leaves]

    def run(b, t0, t1, given):
        spikes = before[:, b : b + 1] if given is not None else None
        outputs, last = ops.recurrent_run(
            LEAKY, [x[t0:t1, b : b + 1], y[t0:t1, b : b + 1]], w, [], [tau], spikes, delay=delay
        )
        return [t.squeeze(1) for t in outputs], [t.squeeze(0) for t in last]

    outputs, last = ops.recurrent_run(LEAKY, [x, y], w, [], [tau], before, delay=delay, lengths=lengths, start=start)
    expected, expected_last = joined(run, STEPS, lengths, start, ())
    assert_as_alone(outputs + last, expected + expected_last, [x, y, w, tau, before], lengths, within=1e-10)


def test_a_recurrent_layer_that_is_stepped_stores_zeros_after_the_ends():
    """As in forward mode: values after an end are not results, and have no gradient."""
    text = "neuron filter(x; v) { h = 0.5 * v + x; return tanh(h); v' = h }"
    lengths, start = samples("cpu")
    x, w = torch.randn(STEPS, len(LENGTHS), 5, dtype=torch.float64), torch.randn(5, 5, dtype=torch.float64)

    def states(x):
        return ops.recurrent_run(text, [x], w, [], [], store_states=True, lengths=lengths, start=start)[1][0]

    stepped, tangent = torch.func.jvp(states, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(stepped, states(x), rtol=1e-12, atol=1e-12)
    ended = torch.arange(STEPS).view(-1, 1) >= torch.as_tensor(LENGTHS)
    assert not tangent[ended].any() and tangent[~ended].any()


# --- modules -------------------------------------------------------------------------------------------------------


def net_of(*, recurrent):
    torch.manual_seed(3)
    hidden = snn.Recurrent(snn.LIF(tau=3.0), torch.nn.Linear(6, 6)) if recurrent else snn.AdaptiveLIF()
    return snn.Sequential(snn.TimeDistributed(torch.nn.Linear(4, 6)), hidden, snn.LI()).double()


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_network_tells_its_neurons(recurrent):
    net, (lengths, start) = net_of(recurrent=recurrent), samples("cpu")
    x = torch.randn(STEPS, len(LENGTHS), 4, dtype=torch.float64)

    def run(b, t0, t1, states):
        y, after = net(x[t0:t1, b : b + 1], None)
        return [y.squeeze(1)], [s.squeeze(0) if s.shape[0] == 1 and s.dim() == 2 else s.squeeze(1) for s in after.values()]

    keep = [b for b in range(len(LENGTHS)) if LENGTHS[b] > 0]  # a layer needs a step to determine its output's shape
    x, lengths, start = x[:, keep], lengths[keep], start[:, keep]
    start[0] = True
    y, after = net(x, None, lengths=lengths, start=start)
    (expected,), last = joined(run, STEPS, lengths, start, None)
    assert_within("outputs", y, expected, 1e-12)
    for name, found, e in zip(after, after.values(), last):
        e = e if found.shape == e.shape else e.movedim(0, 1)
        assert_within(name, found, e, 1e-12, torch.tensor(1.0))
    assert net[1]._memory.samples is None


DELAYS = {
    "Delay": lambda: snn.Delay(3),
    "Delay beyond all": lambda: snn.Delay(30),
    "Delay for each": lambda: snn.Delay(torch.tensor([0, 3, 1, 5])),
    "DelayedLinear": lambda: snn.DelayedLinear(4, 3, 3),
    "DelayedLinear for each input": lambda: snn.DelayedLinear(4, 3, 30, per="input", interpolation="gauss"),
    "DelayedLinear without delays": lambda: snn.DelayedLinear(4, 3, 0),
    "DelayedConv1d": lambda: snn.DelayedConv1d(2, 3, 3, 4),
    "DelayedConv2d": lambda: snn.DelayedConv2d(2, 3, 3, 2, stride=2, padding=1),
}
SHAPES = {"DelayedConv1d": (2, 6), "DelayedConv2d": (2, 5, 4)}


@pytest.mark.parametrize("kind", DELAYS)
def test_layers_with_delays_have_each_sample_alone(kind, device):
    """Compares values, states, and gradients of x, the first state and the parameters; values after an end are NaN."""
    layer = DELAYS[kind]().to(device, torch.float64)
    lengths, start = samples(device, starts=layer.takes_start)
    if "Conv" in kind:
        lengths.clamp_(min=1)  # a convolution needs a step to determine the shape of its output
    shape, batch = SHAPES.get(kind, (4,)), len(LENGTHS)
    depth = layer.longest if isinstance(layer, snn.Delay) else layer.max_delay
    x, before = (torch.randn(n, batch, *shape, dtype=torch.float64, device=device) for n in (STEPS, depth))
    x, before = behind(x, lengths).requires_grad_(), before.requires_grad_()

    def run(b, t0, t1, given):
        y, after = layer(x[t0:t1, b : b + 1], None if given is None else {"x": before[:, b : b + 1]})
        return [y.squeeze(1)], [after["x"].squeeze(1)]

    y, after = layer(x, {"x": before}, lengths=lengths, start=start)
    (expected,), (last,) = joined(run, STEPS, lengths, start, ())
    from_rest = layer(x, {"x": torch.zeros_like(before)}, lengths=lengths, start=start)[0]
    assert_within("result without a state", layer(x, lengths=lengths, start=start), from_rest, 1e-12)
    assert_as_alone((y, after["x"]), (expected, last.movedim(0, 1)), [x, before, *layer.parameters()], lengths, within=1e-12)


def test_a_delay_of_no_steps_gives_nothing_after_the_end():
    lengths, start = samples("cpu")
    x = behind(torch.randn(STEPS, len(LENGTHS), 4), lengths)
    y, after = snn.Delay(0)(x, None, lengths=lengths, start=start)
    assert torch.equal(y, x.nan_to_num(0)) and not after


class Plain(torch.nn.Module):
    """A module without states, lengths and starts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.lif, self.li = torch.nn.Linear(4, 6), snn.LIF(tau=3.0), snn.LI()

    def forward(self, x, gain=1.0):
        return self.li(gain * self.lif(self.layer(x)))


class Named(Plain):
    """A module with an unrelated argument `lengths`."""

    def forward(self, x, lengths=None):
        return super().forward(x) * lengths


def test_call_tells_the_neurons_of_any_module():
    lengths, start = samples("cpu", (7, 19, 3, 16))
    x = torch.randn(STEPS, 4, 4, dtype=torch.float64)
    net = Plain().double()

    def run(b, t0, t1, states):
        y, after = snn.call(net, x[t0:t1, b : b + 1], None, 2.0)
        return [y.squeeze(1)], [s.squeeze(0) for s in after.values()]

    start[0] = True
    for some in (net, torch.nn.DataParallel(net)):
        y, after = snn.call(some, x, None, gain=2.0, lengths=lengths, start=start)
        (expected,), last = joined(run, STEPS, lengths, start, None)
        assert_within("outputs", y, expected, 1e-12)
        for name, e in zip(after, last):
            assert_within(name, after[name], e, 1e-12, torch.tensor(1.0))
        grads = torch.autograd.grad(y.sum() + sum(v.sum() for v in after.values()), list(net.parameters()))
        wanted = torch.autograd.grad(expected.sum() + sum(v.sum() for v in last), list(net.parameters()))
        for grad, e in zip(grads, wanted):
            assert_within("gradient", grad, e, 1e-10, e.abs().max())
    assert net.lif._memory.samples is None
    wrapped, of_wrapped = snn.Sequential(net)(x, None, lengths=lengths, start=start)
    y, after = snn.call(net, x, None, lengths=lengths, start=start)
    assert torch.equal(wrapped, y) and all(torch.equal(of_wrapped[f"0.{name}"], v) for name, v in after.items())
    y, _ = snn.call(torch.nn.Sequential(net.layer, net.lif), x, None, lengths=lengths.tolist())
    assert torch.equal(y, net.lif(net.layer(x), lengths=lengths))
    with pytest.raises(ValueError, match="Sequential: accepts neither lengths nor start: statistics"):
        snn.call(torch.nn.Sequential(snn.TimeDistributed(torch.nn.BatchNorm1d(4)), snn.LIF()), x, lengths=lengths)
    refused(TypeError, "Plain: lengths must be a tensor, or a list of ints", lambda: snn.call(net, x, lengths=7))
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    nested = torch.nested.nested_tensor([torch.randn(3, 4)], layout=torch.jagged)
    for ragged, kind in ((packed, "PackedSequence"), (nested, "nested tensor")):
        for told in ({"lengths": lengths}, {"start": start}):
            with pytest.raises(ValueError, match=f"Plain: accepts neither lengths nor start: the {kind} already has lengths; pass a padded tensor"):
                snn.call(net, ragged, **told)
    named = Named().double()
    assert torch.equal(snn.call(named, x, None, lengths=2.0)[0], 2.0 * Plain().double()(x)), "a forward that names them has them"


def test_a_network_continues_after_the_ends():
    """Chunks of a stream in which episodes restart give the results of one call."""
    net = net_of(recurrent=True)
    _, start = samples("cpu", (STEPS,) * 5)
    x = torch.randn(STEPS, 5, 4, dtype=torch.float64)
    whole = net(x, start=start)
    state, pieces = None, []
    for chunk, starts in zip(x.split(5), start.split(5)):
        y, state = net(chunk, state, start=starts)
        pieces.append(y)
    assert_within("outputs", torch.cat(pieces), whole, 1e-12)


@pytest.mark.parametrize("sort", [False, True])
def test_packed_sequences(sort):
    net = net_of(recurrent=False)
    sequences = [torch.randn(n, 4, dtype=torch.float64) for n in (9, 7, 3) + (() if sort else (11, 1))]
    packed = pack_sequence(sequences, enforce_sorted=sort)
    packed = packed._replace(data=packed.data.requires_grad_())
    y, state = net(packed, None)
    assert [n.shape[0] for n in unpack_sequence(y)] == [s.shape[0] for s in sequences]
    for found, sequence in zip(unpack_sequence(y), sequences):
        assert_within("output", found, net(sequence.unsqueeze(1)).squeeze(1), 1e-12)
    assert state["1.v"].shape == (len(sequences), 6)
    padded, lengths = pad_packed_sequence(y)
    assert torch.equal(pack_padded_sequence(padded, lengths, enforce_sorted=sort).data, y.data)
    assert torch.autograd.grad(y.data.sum(), packed.data)[0].isfinite().all()


def test_nested_tensors():
    net = net_of(recurrent=True)
    sequences = [torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (9, 1, 12)]
    nested = torch.nested.as_nested_tensor(sequences, layout=torch.jagged)
    y = net(nested)
    assert y.is_nested and y.layout == torch.jagged
    for found, sequence in zip(y.unbind(), sequences):
        assert_within("output", found, net(sequence.unsqueeze(1)).squeeze(1), 1e-12)
    y.values().sum().backward()
    assert all(s.grad is not None and s.grad.any() for s in sequences)


def test_a_nested_tensor_of_another_layout_raises():
    nested = torch.nested.nested_tensor([torch.randn(n, 4) for n in (3, 5)], layout=torch.strided)
    for call in (snn.LIF(), net_of(recurrent=True), lambda x: snn.LIF()(x, None)):
        refused(ValueError, "a nested tensor must be jagged", lambda: call(nested))
    with pytest.raises(TypeError, match="lif: x must be a dense tensor, but is nested; pad its sequences, and pass lengths"):
        ops.lif(nested)


def test_lists_are_lengths_and_starts():
    net, x = net_of(recurrent=True), torch.randn(5, 3, 4, dtype=torch.float64)
    start = torch.rand(5, 3) < 0.4
    expected = net(x, lengths=torch.tensor([5, 2, 4]), start=start)
    assert torch.equal(net(x, lengths=[5, 2, 4], start=start.tolist()), expected)
    assert torch.equal(net(x, lengths=(5, 2, 4), start=start), expected)
    for wrong in (5, [1.5, 2.0, 3.0], [True, False, True], "abc", [[5, 2, 4]]):
        refused(TypeError, "lengths must be a tensor, or a list of ints, but is", lambda: net(x, lengths=wrong))
    refused(TypeError, "start must be a tensor, or a list of rows of bools, but is", lambda: net(x, start=[True] * 5))


def test_a_loop_refuses_wrong_starts_as_neurons_do():
    x = torch.rand(5, 3, 8)
    behind = snn.Composite()
    behind.add("cell", snn.LIF())
    behind.connect("in", "cell.in", delay=2)
    behind.connect("cell.out", "out")
    for net in (snn.Recurrent(snn.LIF(), torch.nn.Linear(8, 8)), behind):
        refused(TypeError, "start must be bool, but is float32", lambda: net(x, start=torch.zeros(5, 3)))
        for shape in ([4, 3], [5, 2], [3]):
            with pytest.raises(ValueError, match=r"start must have shape \[5, 3\], one for each step and sample, but has"):
                net(x, start=torch.zeros(shape, dtype=torch.bool))


def test_modules_without_samples_refuse_lengths():
    x, lengths = torch.randn(4, 3, 2), torch.tensor([1, 2, 4])
    refused(ValueError, "accepts neither lengths nor start", lambda: snn.Latency(3)(x, lengths=lengths))
    with pytest.raises(ValueError, match="DelayedLinear: accepts lengths, but not start, .* pass each part as a separate sample"):
        snn.DelayedLinear(2, 2, 3)(x, start=torch.zeros(4, 3, dtype=torch.bool))
    for layer in (snn.Delay(1), snn.DelayedLinear(2, 2, 3)):
        with pytest.raises(ValueError, match="accepts neither lengths nor start: store_states"):
            layer(x, lengths=lengths, store_states=True)
        for wrong, error, message in WRONG:
            if "lengths" in wrong:
                refused(error, message.replace("dense ", "").replace("Float", "float32"), lambda: layer(x, **wrong))
    with pytest.raises(ValueError, match=r"lengths must have shape \[2\], one for each sample of x \[T, B, \*shape\], but has \[2\], for x of"):
        snn.DelayedLinear(2, 2, 3)(x[:, 0], lengths=lengths[:2])
    with pytest.raises(ValueError, match="accepts neither lengths nor start: .*statistics"):
        snn.Sequential(snn.TimeDistributed(torch.nn.BatchNorm1d(2)), snn.LIF())(x, lengths=lengths)
    stepped = snn.Recurrent(snn.LIF(), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    refused(ValueError, "accepts neither lengths nor start: .*stepped", lambda: stepped(x, lengths=lengths))
    with pytest.raises(ValueError, match="must be scalars"):
        snn.LIF(v_reset=snn.Learnable(0.1), strict=True)(x, start=torch.zeros(4, 3, dtype=torch.bool))
