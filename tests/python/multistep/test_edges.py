"""Edge cases of loops over time, memory and neurons."""

import math
import os
from pathlib import Path

import pytest
import spikeforge
import spikeforge.nn as snn
import torch
from cases import (
    DTYPES, KINDS, NUMBERS, Inputs, Options, all_equal, call, compare, numbers, random_parameters, random_states, random_x,
    state_dtype,
)
from conftest import library_path
from cuda_graphs import captured
from loops import output_of
from reference import NEURONS, run
from spikeforge import surrogate

ops = torch.ops.spikeforge
every_neuron = pytest.mark.parametrize("neuron", NEURONS)
both_resets = pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])


def inputs_for(neuron, steps, shape, dtype, device, states=False, gradients=()):
    inputs = Inputs(random_x(neuron, steps, shape, dtype, device), params=numbers(neuron, shape, dtype, device))
    if states:
        inputs.v, inputs.w = random_states(neuron, shape, dtype, device)
    return inputs.map(lambda name, t: t.requires_grad_(name in gradients))


# --- special values ------------------------------------------------------------------------------------------------


def test_a_neuron_exactly_at_its_threshold_fires(device):
    for dtype in DTYPES:
        x = torch.tensor([[0.5], [0.5], [0.5]], dtype=dtype, device=device)
        spikes, v = ops.integrate_and_fire(x)
        assert spikes.flatten().tolist() == [0, 1, 0], f"{dtype}"
        assert v.tolist() == [0.5], f"{dtype}"
        below = torch.nextafter(torch.ones((), dtype=torch.float32), torch.zeros(())).to(device)
        assert ops.integrate_and_fire(below.reshape(1, 1))[0].item() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@both_resets
@every_neuron
def test_nan_does_not_fire_and_does_not_spread(neuron, soft, dtype, device):
    inputs = inputs_for(neuron, 9, (67,), dtype, device)
    clean = call(neuron, inputs, Options(soft=soft), store_v=True)
    sick = [0, 17, 66]
    inputs.x[3, sick] = math.nan
    spikes, *states = call(neuron, inputs, Options(soft=soft), store_v=True)
    healthy = torch.ones(67, dtype=torch.bool, device=device)
    healthy[sick] = False
    assert spikes[3:, sick].eq(0).all(), "it fired after NaN"
    assert states[0][3:, sick].isnan().all(), "the voltage forgot its NaN"
    for a, b in zip((spikes, *states), clean):
        assert torch.equal(a[:, healthy], b[:, healthy]), "NaN reached another neuron"
        assert torch.equal(a[:3], b[:3]), "NaN reached an earlier step"


@every_neuron
def test_the_gradient_of_a_nan_neuron_does_not_spread(neuron, device):
    inputs = inputs_for(neuron, 9, (67,), torch.float32, device)
    upstream = torch.rand_like(inputs.x)

    def gradient(x):
        x = x.clone().requires_grad_()
        spikes = call(neuron, Inputs(x, params=inputs.params), Options())[0]
        return torch.autograd.grad(spikes, x, upstream)[0]

    clean = gradient(inputs.x)
    inputs.x[3, 17] = math.nan
    others = torch.arange(67, device=device) != 17
    assert torch.equal(gradient(inputs.x)[:, others], clean[:, others])


def test_plus_infinity_fires_and_a_hard_reset_forgets_it(device):
    x = torch.tensor([[math.inf], [0.25]], device=device)
    for op in (ops.integrate_and_fire, ops.lif):
        spikes, v = op(x, v_reset=0.125, store_v=True)
        assert spikes.flatten().tolist() == [1, 0]
        assert v[0].item() == 0.125 and v.isfinite().all(), "the reset is a selection, not 0 * inf"


def test_minus_infinity_stays(device):
    x = torch.tensor([[-math.inf], [5.0]], device=device)
    spikes, v = ops.integrate_and_fire(x, store_v=True)
    assert spikes.sum() == 0 and v.eq(-math.inf).all()


# --- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@every_neuron
def test_no_steps_return_a_fresh_copy_of_the_state(neuron, dtype, device):
    inputs = inputs_for(neuron, 0, (3, 5), dtype, device, states=True)
    wide = state_dtype(dtype)
    given = [state.requires_grad_() for state in (inputs.v, inputs.w) if state is not None]
    spikes, *states = call(neuron, inputs, Options())
    assert spikes.shape == (0, 3, 5) and spikes.dtype == dtype
    for state, initial in zip(states, given):
        assert state.dtype == wide and state.data_ptr() != initial.data_ptr(), "a fresh copy in the state's type"
        assert torch.equal(state, initial.to(wide))
        upstream = torch.rand_like(state)
        (gradient,) = torch.autograd.grad(state, initial, upstream, retain_graph=True)
        assert gradient.dtype == initial.dtype and torch.equal(gradient, upstream.to(dtype)), "its gradient is the identity"
    for sequence in call(neuron, inputs, Options(), store_v=True):
        assert sequence.shape == (0, 3, 5)


@every_neuron
def test_no_steps_from_v_reset_send_the_gradient_there(neuron, device):
    start = torch.tensor(-0.25, dtype=torch.float64, device=device, requires_grad=True)
    x = torch.empty(0, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
    params = dict(numbers(neuron, (), torch.float64, device), v_reset=start)
    spikes, v, *_ = call(neuron, Inputs(x, params=params), Options())
    assert v.eq(-0.25).all() and v.shape == (3, 5)
    grad_start, grad_x = torch.autograd.grad(v.sum() + spikes.sum(), (start, x), allow_unused=True)
    assert grad_start.item() == 15
    assert grad_x is None or grad_x.shape == x.shape


@pytest.mark.parametrize("store_v", [False, True])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (1,), (), (1, 1), (7,), (31,), (515,)], ids=str)
@pytest.mark.parametrize("steps", [1, 2, 7, 8, 9, 16, 17, 33])
def test_any_number_of_steps_and_neurons(steps, shape, store_v, device):
    for neuron in ("lif", "izhikevich"):
        inputs = inputs_for(neuron, steps, shape, torch.float64, device, states=steps % 2 == 0)
        compare(neuron, inputs, Options(), store_v=store_v)


def test_no_steps_of_more_neurons_than_any_memory_has_take_no_time(device):
    x = torch.empty(0, 2**62, device=device, requires_grad=True)
    tau = torch.tensor(2.0, device=device)
    spikes, v = ops.lif(x, tau=tau, v_reset=0.0, store_v=True)
    assert spikes.shape == v.shape == x.shape
    (v.sum() + spikes.sum()).backward()
    assert x.grad.shape == x.shape


@every_neuron
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 0), (0, 4)], ids=str)
def test_parameters_of_an_empty_layer_have_zero_gradients(neuron, kind, shape, device):
    """Parameters without elements have no value to reject."""
    x = torch.empty(6, *shape, device=device, requires_grad=True)
    params = {name: t.requires_grad_() for name, t in random_parameters(neuron, shape, kind, torch.float32, device).items()}
    spikes, *states = call(neuron, Inputs(x, params=params), Options())
    total = spikes.sum() + sum(t.sum() for t in states)
    grad_x, *grads = torch.autograd.grad(total, [x, *params.values()])
    assert spikes.shape == grad_x.shape == x.shape
    assert all(grad.eq(0).all() for grad in grads)


# --- layouts -------------------------------------------------------------------------------------------------------


LAYOUTS = {
    "batch first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "every other step": lambda x: x.repeat_interleave(2, dim=0)[::2],
    "every other neuron": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "channels last": lambda x: x.movedim(2, -1).contiguous().movedim(-1, 2),
    "with an offset": lambda x: torch.cat((x[:1], x))[1:],
    "neurons transposed": lambda x: x.transpose(1, -1).contiguous().transpose(1, -1),
    "a gap": lambda x: torch.stack((x, x), 1)[:, 1],
    "an odd gap": lambda x: torch.nn.functional.pad(x.flatten(1), (1, 3))[:, 1:-3].unflatten(1, x.shape[1:]),
    "one step": lambda x: x[:1].expand_as(x),
    "one sample": lambda x: x[:, :1].expand_as(x),
    "one neuron": lambda x: x[..., :1].expand_as(x),
    "one number": lambda x: x[:1, :1, :1, :1, :1].expand_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@every_neuron
def test_strides_do_not_change_results(neuron, layout, device):
    """Values and gradients do not depend on the layouts of x, v and the upstream gradients."""
    shape, arrange = (2, 3, 4, 5), LAYOUTS[layout]
    plain = inputs_for(neuron, 18, shape, torch.float32, device, states=True)
    plain.params = random_parameters(neuron, shape, "per channel", torch.float32, device)
    strided = plain.map(lambda name, t: arrange(t.unsqueeze(0)).squeeze(0) if t.shape == shape else t)
    strided.x = arrange(plain.x)
    before = strided.x.clone()

    def run_with(inputs, lie, store_v):
        leaves = inputs.map(lambda name, t: lie(t.detach()).requires_grad_())
        results = call(neuron, leaves, Options(), store_v)
        torch.manual_seed(1)
        upstream = [arrange(torch.rand(18, *shape).to(device)) for _ in results]
        upstream = [lie(u if u.dim() == r.dim() else u[0]) for u, r in zip(upstream, results)]
        return results, torch.autograd.grad(results, list(leaves.tensors().values()), upstream)

    # The gradient of a parameter is a sum over neurons in the order in which they are stored.
    is_exact = lambda name: layout.startswith("one ") or device.type == "cpu" and name not in plain.params
    for store_v in (False, True):
        strided_results, strided_gradients = run_with(strided, lambda t: t, store_v)
        results, gradients = run_with(strided, torch.Tensor.contiguous, store_v)
        assert all_equal(strided_results, results), "another layout gives other values"
        for name, a, b in zip(plain.tensors(), strided_gradients, gradients):
            torch.testing.assert_close(a, b, **dict(rtol=0, atol=0) if is_exact(name) else dict(rtol=1e-5, atol=1e-5))
        assert torch.equal(strided.x, before), "x has changed"
        if layout == "channels last":
            for t in (*strided_results, strided_gradients[0]):
                assert t.flatten(0, -4).is_contiguous(memory_format=torch.channels_last), f"strides {t.stride()}"


@every_neuron
def test_outputs_that_nobody_used_have_no_gradient(neuron, device):
    """For any subset of used outputs, the upstream gradients of the others are undefined, not zeros."""
    for store_v in (False, True):
        inputs = inputs_for(neuron, 18, (3, 7), torch.float64, device, states=True)
        inputs.params = {name: torch.full((7,), NUMBERS[name], dtype=torch.float64, device=device)
                         if name in NUMBERS else value for name, value in inputs.params.items()}
        for used in [(0,), (1,), (0, 1), *([(2,), (0, 2), (1, 2)] if NEURONS[neuron].has_w else [])]:
            compare(neuron, inputs, Options(), store_v=store_v, used=used, case=f"only {used} used")


def test_the_results_own_their_memory(device):
    x = torch.rand(4, 5, device=device)
    v = torch.rand(5, device=device)
    before = x.clone(), v.clone()
    spikes, v_out = ops.lif(x, v)
    spikes.fill_(7)
    v_out.fill_(7)
    assert torch.equal(x, before[0]) and torch.equal(v, before[1])


@pytest.mark.parametrize("w", [-1e4, -95.0, -40.0, 0.3, 95.0])
def test_derivatives_do_not_overflow_where_a_sigmoid_is_flat(w, device):
    """In float32 exp(-w) is infinite below -88. The reference is a loop in float64."""
    x = 2 * torch.rand(5, 2, 4, device=device)

    def loop(x, w, fire):
        v, total = torch.zeros_like(x[0]), 0
        for now in x:
            h = v + torch.sigmoid(w) * (now - v)
            s = fire(h - 1)
            total, v = total + s.sum(), (1 - s) * h
        return total

    wide = torch.tensor(w, dtype=torch.float64, device=device, requires_grad=True)
    (want,) = torch.autograd.grad(loop(x.double(), wide, spikeforge.spike), wide)
    neurons = {
        "operator": lambda w: snn.PLIF(w=w),
        "strict": lambda w: snn.PLIF(w=w, strict=True),
        "custom": lambda w: snn.PLIF(w=w, surrogate=surrogate.Custom("4 * sigmoid(4 * u) * (1 - sigmoid(4 * u))")),
        "recurrent": lambda w: snn.Recurrent(snn.PLIF(w=w, strict=True), torch.nn.Linear(4, 4)),
    }
    for name, make in neurons.items():
        module = make(torch.nn.Parameter(torch.tensor(w))).to(device)
        own = {n.rpartition(".")[2]: p for n, p in module.named_parameters()}
        for connection in (own.get("weight"), own.get("bias")):
            if connection is not None:
                torch.nn.init.zeros_(connection)
        module(x).sum().backward()
        got = own["w"].grad
        torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-6, msg=lambda m: f"{name}: {m}")

    # The second derivative, and the derivative of the surrogate's primitive, are those of the neuron's equations.
    smooth = lambda u: torch.sigmoid(4 * u)
    narrow = torch.tensor([w], device=device, requires_grad=True)
    far = 60 * (x - 1)
    second = []
    for parameter, total in ((wide, loop(far.double(), wide, smooth)), (narrow, ops.plif(far, narrow, spiking=False)[0].sum())):
        (first,) = torch.autograd.grad(total, parameter, create_graph=True)
        second.append(torch.cat([first.detach().double().view(1), torch.autograd.grad(first, parameter)[0].double().view(1)]))
    torch.testing.assert_close(second[1], second[0], rtol=1e-3, atol=1e-4)


# --- long and large ------------------------------------------------------------------------------------------------


def lif_by_hand(x, grad_spikes, grad_v_last):
    """A LIF neuron and its gradient in Python floats: tau 2, hard reset to 0, sigmoid surrogate with alpha 4."""
    v, h, s = 0.0, [], []
    for x_t in x:
        h_t = v + (x_t - v) * 0.5
        s_t = 1.0 if h_t >= 1 else 0.0
        v = 0.0 if s_t else h_t
        h.append(h_t)
        s.append(s_t)
    g, grad_x = grad_v_last, [0.0] * len(x)
    for t in reversed(range(len(x))):
        e = math.exp(-4 * abs(h[t] - 1))
        surrogate = 4 * e / (1 + e) ** 2
        grad_h = grad_spikes[t] * surrogate + g * (1 - s[t] - h[t] * surrogate)
        grad_x[t] = grad_h * 0.5
        g = grad_h * 0.5
    return s, v, grad_x


def test_a_hundred_thousand_steps(device):
    steps, neurons = 100_000, 3
    x = (0.7 + torch.randn(steps, neurons, dtype=torch.float64)).to(device).requires_grad_()
    spikes, v = ops.lif(x)
    upstream = torch.rand(steps, neurons, dtype=torch.float64)
    (got,) = torch.autograd.grad((spikes, v), x, (upstream.to(device), torch.ones_like(v)))
    for n in range(neurons):
        s, v_last, grad_x = lif_by_hand(x[:, n].tolist(), upstream[:, n].tolist(), 1.0)
        assert spikes[:, n].tolist() == s, f"neuron {n}: the spikes differ"
        assert v[n].item() == pytest.approx(v_last, abs=1e-12)
        error = (got[:, n].cpu() - torch.tensor(grad_x, dtype=torch.float64)).abs().max()
        assert error < 1e-10, f"neuron {n}: the gradient is off by {error:.2e}"


def test_a_million_steps_need_little_memory(device):
    """Uses float16 with a state in float32, for which the loop's indices and checkpoints are sufficient."""
    x = torch.rand(1_000_000, 2, device=device, dtype=torch.float16).requires_grad_()
    spikes, v = ops.integrate_and_fire(x)
    spikes.sum().backward()
    assert x.grad.isfinite().all() and v.isfinite().all()
    half = ops.integrate_and_fire(x[:500_000])
    rest = ops.integrate_and_fire(x[500_000:], half[1])
    assert torch.equal(torch.cat((half[0], rest[0])), spikes) and torch.equal(rest[1], v)


@pytest.mark.parametrize("kind", ["one for all", "per channel", "per neuron"])
def test_a_layer_of_20_000_neurons_learns_its_parameter_reproducibly(kind, device):
    """The sum over batch and steps is correct, and has the same bits in every run."""
    steps, batch, channels, width = 16, 4, 50, 400
    shape = {"one for all": (), "per channel": (channels, 1), "per neuron": (channels, width)}[kind]
    x = (0.7 + torch.randn(steps, batch, channels, width)).to(device)
    w = torch.empty(shape).uniform_(-1, 1).to(device).requires_grad_()

    def gradient():
        spikes, v = ops.plif(x, w)
        return torch.autograd.grad(spikes.sum() + v.sum(), w)[0]

    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        first = gradient()
        for repetition in range(4):
            assert torch.equal(gradient(), first), f"{threads} threads, run {repetition}: other bits"

    wide = w.detach().cpu().double().expand(channels, width).clone().requires_grad_()
    expected = run("plif", x.cpu().double(), params={"w": wide})
    (per_neuron,) = torch.autograd.grad(expected.spikes.sum() + expected.v_last.sum(), wide)
    near = ((expected.h - 1).abs() < 1e-5).any(0).any(0)  # for any sample of the batch
    want = per_neuron.sum_to_size(shape)
    if kind == "per neuron":
        error = ((gradient().cpu() - want).abs() * ~near).max() / want.abs().max()
    else:
        error = (gradient().cpu() - want).abs().max() / per_neuron.abs().sum_to_size(shape).max()
    assert error < (1e-5 if kind == "per neuron" else 1e-4), f"error {error:.2e}"  # sums include these neurons


@pytest.mark.slow
def test_more_than_2_31_elements(device):
    """x is expanded over time, so that only the results are large. Needs 12 GB on the CPU, 40 GB on a GPU."""
    neurons, steps = 2**26 + 1, 33
    needed = 40e9 if device.type == "cuda" else 12e9
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.type == "cpu" and os.environ.get("SPIKEFORGE_SLOW") != "1":
        pytest.skip("slow on a CPU; SPIKEFORGE_SLOW=1 runs it")
    if free < needed:
        pytest.skip(f"needs {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")
    assert neurons * steps > 2**31
    seen = [0, 1, 2**25, 2**26 - 1, 2**26]
    if device.type == "cpu":
        x = torch.rand(neurons, dtype=torch.float16).mul_(1.5).expand(steps, neurons)
        spikes, v = ops.lif(x)
        small = ops.lif(x[:, seen].contiguous())
        assert torch.equal(spikes[:, seen], small[0]) and torch.equal(v[seen], small[1])
        return
    x = torch.rand(steps, neurons, dtype=torch.float16, device=device).mul_(1.5).requires_grad_()
    spikes, v = ops.lif(x)
    (gradient,) = torch.autograd.grad(spikes.sum(dtype=torch.float32), x)
    few = x.detach()[:, seen].contiguous().requires_grad_()
    small = ops.lif(few)
    (wanted,) = torch.autograd.grad(small[0].sum(dtype=torch.float32), few)
    assert torch.equal(spikes[:, seen], small[0]) and torch.equal(v[seen], small[1])
    torch.testing.assert_close(gradient[:, seen], wanted, rtol=1e-2, atol=1e-3)  # fewer neurons have another schedule


# --- streams, graphs, threads --------------------------------------------------------------------------------------


def test_each_call_runs_on_the_current_stream(cuda):
    x = random_x("lif", 64, (512, 512), torch.float32, cuda)
    expected = ops.lif(x)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            late = torch.zeros_like(x).copy_(x)  # valid on this stream only, after the sleep
            results.append(ops.lif(late))
    torch.cuda.synchronize()
    for result in results:
        assert torch.equal(result[0], expected[0]) and torch.equal(result[1], expected[1]), "it did not wait for its stream"


@every_neuron
def test_a_cuda_graph_captures_and_replays_a_training_step(neuron, cuda):
    inputs = inputs_for(neuron, 16, (33, 65), torch.float32, cuda, states=True, gradients=("x", "v"))

    def step():
        results = call(neuron, inputs, Options())
        return *results, *torch.autograd.grad(sum(r.float().sum() for r in results), (inputs.x, inputs.v))

    graph, results = captured(step)
    with torch.no_grad():
        inputs.x.copy_(random_x(neuron, 16, (33, 65), torch.float32, cuda))
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(results, step()):
        assert torch.equal(a, b), f"{neuron}: the replay differs from a plain call"


def test_a_call_does_not_wait_for_the_gpu(cuda):
    x = torch.rand(8, 1024, device=cuda, requires_grad=True)
    tau = torch.tensor(2.0, requires_grad=True)  # on the CPU, although x is on the GPU
    zero = torch.zeros((), device=cuda)

    def step():
        spikes, v = ops.lif(x, tau=tau.detach(), v_reset=zero)
        torch.autograd.grad(spikes.sum() + v.sum(), x)

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


EIGHT_THREADS = """
import sys, threading, torch
from concurrent.futures import ThreadPoolExecutor
torch.ops.load_library(sys.argv[1])
torch.set_num_threads(1)
from reference import NEURONS
neurons = (list(NEURONS) + ["qif"])[:8]
x = 2 * torch.rand(23, 3001, device=sys.argv[2])
barrier = threading.Barrier(8)

def work(neuron):
    mine = x.clone().requires_grad_()
    weight = [torch.zeros((), device=x.device)] if neuron == "plif" else []
    results = getattr(torch.ops.spikeforge, neuron)(mine, *weight, surrogate="s2nn")
    return [t.cpu() for t in (*results, *torch.autograd.grad(sum(r.sum() for r in results), mine))]

def together(neuron):
    barrier.wait()
    return work(neuron)

with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(together, neurons))
assert all(torch.equal(a, b) for neuron, results in zip(neurons, found) for a, b in zip(results, work(neuron)))
print("equal")
"""


def test_eight_threads_may_make_the_first_call_at_once(device):
    """Each thread calls a different operator; the results are those of one thread."""
    environment = dict(os.environ, SPIKEFORGE_CACHE_DIR="off", PYTHONPATH=str(Path(__file__).parents[1]))
    assert output_of(EIGHT_THREADS, library_path(), device.type, env=environment, timeout=300) == "equal\n"


# --- several devices -----------------------------------------------------------------------------------------------


def test_a_number_tensor_on_the_cpu_is_legal_beside_a_gpu(cuda):
    x = random_x("lif", 12, (3, 7), torch.float64, cuda).requires_grad_()
    tau = torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
    v_reset = torch.tensor(-0.1, dtype=torch.float64, requires_grad=True)
    spikes, v = ops.lif(x, tau=tau, v_reset=v_reset)
    got = torch.autograd.grad(spikes.sum() + v.sum(), (x, tau, v_reset))
    assert got[1].device.type == got[2].device.type == "cpu", "a gradient is where its argument is"

    wide = x.detach().cpu().requires_grad_()
    expected = run("lif", wide, params=dict(tau=tau, v_reset=v_reset))
    want = torch.autograd.grad(expected.spikes.sum() + expected.v_last.sum(), (wide, tau, v_reset))
    for name, a, e in zip(("x", "tau", "v_reset"), got, want):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-10, atol=1e-10, msg=lambda m: f"{name}: {m}")
