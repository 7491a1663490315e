"""Online learning: traces compared with plain loops in float64, written from the equations of the papers."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from loops import fire, lif_step, refused
from torch import nn

import spikeforge
import spikeforge.nn as snn

ops = torch.ops.spikeforge

LIF = "neuron lif(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s, h\n v' = select(s, 0, h) }"
ALIF = (
    "neuron alif(x, g; v, a; tau, b) { h = v + (x + g - v) / tau; s = spike(h - 1 - b * a, atan(2)); return s, h\n"
    "v' = h - s; a' = 0.9 * a + s }"
)
QUADRATIC = "neuron q(x; v = 0.1; c) { h = v + 0.5 * (x + 0.3 * v * (v - c)); s = spike(h - 1, atan(2)); return s\n v' = select(s, 0.1, h) }"


def alif_step(x, v, a, tau, b):
    h = v + (x - v) / tau
    s = fire(h - 1 - b * a)
    return s, h - s, 0.9 * a + s


CELLS = {"lif": (LIF, lif_step, 1, (2.0,)), "alif": (ALIF, alif_step, 2, (2.0, 0.3))}


def leaves(params, dtype=torch.float64, device="cpu", n=4, i=5, per_neuron=False):
    make = lambda t: t.to(device, dtype).requires_grad_()
    shape = (n,) if per_neuron else ()
    return make(torch.randn(n, i)), make(torch.randn(n)), [make(torch.full(shape, p) + 0.1 * torch.rand(shape)) for p in params]


@pytest.mark.parametrize("piece", [1, 4, 12])
@pytest.mark.parametrize("per_neuron", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_eprop_of_a_layer_is_backpropagation_through_time(name, per_neuron, piece, device):
    text, step, states, params = CELLS[name]
    x = 3 * torch.randn(12, 3, 5, dtype=torch.float64)
    grad = torch.randn(12, 3, 4, dtype=torch.float64)
    w, b, p = leaves(params, per_neuron=per_neuron)

    v = [torch.zeros(3, 4, dtype=torch.float64) for _ in range(states)]
    spikes = []
    for t in range(12):
        s, *v = step(x[t] @ w.T + b, *v, *p)
        spikes.append(s)
    wanted = torch.autograd.grad((torch.stack(spikes) * grad).sum(), [w, b, *p])

    w, b, *p = (t.detach().to(device).requires_grad_() for t in (w, b, *p))
    external = lambda t: None if name == "lif" else [torch.zeros(piece, 3, 4, dtype=torch.float64, device=device)] * 2
    now, traces, got = [], [], []
    for t in range(0, 12, piece):
        (s, *_), now, traces = ops.online_linear(text, x[t : t + piece].to(device), w, b, now, p, traces, inputs=external(t))
        (s * grad[t : t + piece].to(device)).sum().backward()
        got.append(s.detach().cpu())
    assert torch.equal(torch.cat(got), torch.stack(spikes).detach())
    assert 0.01 < torch.cat(got).mean() < 0.99
    torch.testing.assert_close([leaf.grad.cpu() for leaf in (w, b, *p)], list(wanted), rtol=1e-10, atol=1e-10)


def test_ottt_is_its_paper(device):
    """Xiao et al. 2022, equations 8 and 9: dL/dW = Σ_t (dL/ds[t] · surrogate · dh/dI) â[t], â[t] = λ â[t-1] + z[t]."""
    x = 1.5 * torch.randn(10, 3, 5, dtype=torch.float64)
    grad = torch.randn(10, 3, 4, dtype=torch.float64)
    w, b, (tau,) = leaves((2.0,))
    w, b, tau = w.detach(), b.detach(), tau.detach()
    v, trace, trace_of_one, want, want_b = 0.0, 0.0, 0.0, 0.0, 0.0
    for t in range(10):
        h = v + (x[t] @ w.T + b - v) / tau
        v = torch.where(h >= 1, 0.0, h)
        trace = (1 - 1 / tau) * trace + x[t]
        trace_of_one = (1 - 1 / tau) * trace_of_one + 1
        signal = grad[t] / (1 + (torch.pi * (h - 1)).square()) / tau
        want = want + signal.T @ trace
        want_b = want_b + signal.sum(0) * trace_of_one

    w, b = w.to(device).requires_grad_(), b.to(device).requires_grad_()
    states, traces = [], []
    for t in range(10):
        row, params = x[t : t + 1].to(device), [tau.to(device)]
        (s, _), states, traces = ops.online_linear(LIF, row, w, b, states, params, traces, rule="ottt")
        (s[0] * grad[t].to(device)).sum().backward()
    assert [t.shape for t in traces] == [(3, 5), (3, 1)]
    torch.testing.assert_close(w.grad.cpu(), want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(b.grad.cpu(), want_b, rtol=1e-10, atol=1e-10)


def test_the_trace_of_an_input_is_the_leak():
    assert str(ops.trace_of_input(LIF)) == (
        "neuron lif(tangent0; tangent1; tau) { t1 = tangent1 + (tangent0 - tangent1) * (1 / tau); return t1; tangent1' = t1 }"
    )
    # If the neuron is not affine, its trace depends on its states.
    x = torch.randn(7, 3, dtype=torch.float64)
    v, u = torch.full((3,), 0.1, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for t in range(7):
        u = u + 0.5 * (x[t] + 0.3 * (2 * v - 1.2) * u)
        v = v + 0.5 * 0.3 * v * (v - 1.2)
    _, states = ops.run(ops.trace_of_input(QUADRATIC), [x], [], [torch.tensor(1.2, dtype=torch.float64)])
    torch.testing.assert_close(states[1], u, rtol=1e-12, atol=1e-12)
    # A custom surrogate is ignored, as its spike.
    own = spikeforge.neuron(states={"v": 0.0})(own_surrogate)
    assert "0.25" not in ops.trace_of_input(own.text)


def own_surrogate(x, v):
    h = 0.5 * v + x
    s = spikeforge.spike(h - 1, lambda u: 0.25 / (1 + u * u))
    return s, {"v": h - s}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_types(dtype, device):
    x = (1.5 * torch.randn(6, 3, 5)).to(device, dtype)
    w, b, p = leaves((2.0,), dtype, device)
    p = [t.detach().float().requires_grad_() for t in p]
    now, traces = [], []
    for t in range(6):
        (s, _), now, traces = ops.online_linear(LIF, x[t : t + 1], w, b, now, p, traces)
        s.float().sum().backward()
    state = torch.float32
    assert s.dtype == dtype and w.grad.dtype == dtype and all(t.dtype == state for t in (*now, *traces, p[0].grad))
    # Against one call: the same neuron's backpropagation, on the same rounded numbers.
    w2, b2, p2 = (t.detach().requires_grad_() for t in (w, b, p[0]))
    (s, _), _, _ = ops.online_linear(LIF, x, w2, b2, [], [p2], [])
    s.float().sum().backward()
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    for got, wanted in ((w, w2), (b, b2), (p[0], p2)):
        assert (got.grad - wanted.grad).abs().max() <= bound * max(1, wanted.grad.abs().max())


def pieces(net, online, x, grad, length=1):
    out = []
    for t in range(0, len(x), length):
        y = online(x[t : t + length])
        (y * grad[t : t + length]).sum().backward()
        out.append(y.detach())
    return torch.cat(out)


@pytest.mark.parametrize("length", [1, 6])
def test_pieces_under_autocast(length, device):
    net = nn.Sequential(nn.Linear(4, 5), snn.LIF(surrogate="atan")).to(device)
    whole, online = copy.deepcopy(net), spikeforge.Online(net)
    x, grad = 2 * torch.randn(12, 3, 4, device=device), torch.randn(12, 3, 5, device=device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        y = pieces(net, online, x, grad, length)
        expected = whole(x)
        (expected * grad).sum().backward()
    assert torch.equal(y, expected) and {trace.dtype for trace in online.traces[0]} == {torch.float32}
    for got, wanted in zip(net.parameters(), whole.parameters()):
        assert (got.grad - wanted.grad).abs().max() <= 2e-2 * wanted.grad.abs().max()


def test_a_recurrent_layer_drops_the_path_through_its_own_spikes():
    torch.set_default_dtype(torch.float64)
    try:
        net = nn.Sequential(nn.Linear(5, 6), snn.Recurrent(snn.LIF(surrogate="atan"), nn.Linear(6, 6)))
        x, grad = 6 * torch.randn(9, 3, 5), torch.randn(9, 3, 6)
        out = pieces(net, spikeforge.Online(net), x, grad)
    finally:
        torch.set_default_dtype(torch.float32)
    got = [p.grad for p in net.parameters()]
    w, b, r, c = net.parameters()
    v, heard, spikes = torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3, 6, dtype=torch.float64), []
    for t in range(9):
        current = x[t] @ w.T + b + heard.detach() @ r.T + c
        heard, v = lif_step(current, v)
        spikes.append(heard)
    assert torch.equal(out, torch.stack(spikes).detach()) and 0.02 < out.mean() < 0.98
    wanted = torch.autograd.grad((torch.stack(spikes) * grad).sum(), [w, b, r, c])
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def two_layers(dtype=torch.float64):
    layers = nn.Linear(5, 6), snn.LIF(surrogate="atan"), nn.Linear(6, 4), snn.LI(tau=3.0), nn.Linear(4, 2)
    return nn.Sequential(*layers).to(dtype)


@pytest.mark.parametrize("feedback", ["symmetric", "random"])
def test_the_hidden_layer_learns_by_the_signal_of_its_step(feedback):
    """Bellec et al. 2020: dE/dW_ji = Σ_t L_j[t] e_ji[t], in which L_j is the gradient of step t for s_j[t]."""
    net, x, grad = two_layers(), 2 * torch.randn(9, 3, 5, dtype=torch.float64), torch.randn(9, 3, 2, dtype=torch.float64)
    online = spikeforge.Online(net, feedback=feedback, generator=torch.Generator().manual_seed(3))
    out = pieces(net, online, x, grad)
    first, _, second, _, last = net
    back = [second.weight, last.weight] if feedback == "symmetric" else [online.feedback1, online.feedback2]
    assert feedback == "symmetric" or not torch.equal(online.feedback1, second.weight)
    v, e, want = torch.zeros(3, 6, dtype=torch.float64), 0.0, 0.0
    for t in range(9):
        h = v + (x[t] @ first.weight.T + first.bias - v) / 2
        s = (h >= 1).double()
        sigma = 1 / (1 + (torch.pi * (h - 1)).square())
        signal = (grad[t] @ back[1]) / 3 @ back[0]
        of_h = 0.5 * e + 0.5 * x[t][:, None, :]  # dh/dw
        want = want + (signal[:, :, None] * sigma[:, :, None] * of_h).sum(0)
        e = (1 - s - h * sigma)[:, :, None] * of_h  # derivative of v = (1 - s) h
        v = (1 - s) * h
    torch.testing.assert_close(first.weight.grad, want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(out, net_over_time(net, x), rtol=1e-10, atol=1e-10)


def net_over_time(net, x):
    with torch.no_grad():
        return snn.Sequential(*[m if isinstance(m, snn.StatefulModule) else snn.TimeDistributed(m) for m in net])(x)


def test_a_convolution_of_one_pixel_is_a_linear_layer(device):
    linear = nn.Sequential(nn.Linear(5, 6), snn.AdaptiveLIF(), nn.Linear(6, 2), snn.LI(tau=3.0)).to(device)
    conv = nn.Sequential(nn.Conv2d(5, 6, 1), snn.AdaptiveLIF(), nn.Flatten(), nn.Linear(6, 2), snn.LI(tau=3.0)).to(device)
    with torch.no_grad():
        for a, b in zip(conv.parameters(), linear.parameters()):
            a.copy_(b.view(a.shape))
    x, grad = 2 * torch.randn(8, 3, 5, device=device), torch.randn(8, 3, 2, device=device)
    for net, images in ((linear, x), (conv, x[..., None, None])):
        online = spikeforge.Online(net, rule="ottt")
        net.out = pieces(net, online, images, grad, length=2)
        online.reset(torch.tensor([True, False, True]))
        net.again = online(images[:1]).detach()
    torch.testing.assert_close(conv.out, linear.out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(conv.again, linear.again, rtol=1e-5, atol=1e-5)
    for a, b in zip(conv.parameters(), linear.parameters()):
        assert b.grad.abs().max() > 0
        torch.testing.assert_close(a.grad.view(b.shape), b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", ["eprop", "ottt"])
def test_some_samples_start_anew(rule):
    """These samples learn as in a new network, and the others as without the reset."""
    x, grad = 8 * torch.randn(6, 2, 5, dtype=torch.float64), torch.randn(6, 2, 6, dtype=torch.float64)
    one = snn.Recurrent(snn.LIF(), nn.Linear(6, 6)) if rule == "eprop" else snn.Neuron(QUADRATIC, c=1.2)
    net = nn.Sequential(nn.Linear(5, 6), one).double()

    def gradients(x, grad, reset_at=None):
        net.zero_grad()
        online = spikeforge.Online(net, rule=rule)
        for t in range(len(x)):
            if t == reset_at:
                online.reset(torch.tensor([True, False]))
            (online(x[t : t + 1]) * grad[t : t + 1]).sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    got = gradients(x, grad, reset_at=3)
    parts = [gradients(x[:3, :1], grad[:3, :1]), gradients(x[3:, :1], grad[3:, :1]), gradients(x[:, 1:], grad[:, 1:])]
    for g, *wanted in zip(got, *parts):
        torch.testing.assert_close(g, sum(wanted), rtol=1e-10, atol=1e-10)
        assert wanted[1].abs().max() > 0


def test_a_module_may_stand_in_several_places():
    pool, linear, neuron = nn.Dropout(0.0), nn.Linear(6, 6), snn.LIF(v_reset=None)
    net = nn.Sequential(pool, linear, neuron, pool, linear, neuron, linear).double()
    x, grad = 3 * torch.randn(5, 3, 6, dtype=torch.float64), torch.randn(5, 3, 6, dtype=torch.float64)
    out = pieces(net, spikeforge.Online(net), x, grad)
    with torch.no_grad():
        torch.testing.assert_close(out, net(x))


@pytest.mark.parametrize("rule", ["eprop", "ottt"])
def test_what_is_between_the_pieces(rule):
    """Calls without gradients, in inference mode, of no steps, with a frozen constant, and of a copy continue alike."""
    tau = snn.Learnable(2.0, min=1.1, max=10.0) if rule == "eprop" else 2.0
    net = nn.Sequential(nn.Linear(5, 6), snn.LIF(tau=tau), nn.Linear(6, 2))
    x = 3 * torch.randn(4, 3, 5)
    online = spikeforge.Online(net, rule=rule)
    with torch.no_grad():
        online(x[:1])
    with torch.inference_mode():
        online(x[1:2])
    assert online(x[:0]).shape == (0, 3, 2)
    again = copy.deepcopy(online)
    for p in net[1].parameters():
        p.requires_grad_(False)
    online(x[2:]).sum().backward()
    other = spikeforge.Online(again.net, rule=rule)
    for part in x.split(1):
        other(part)
    torch.testing.assert_close(online.traces[0], other.traces[0])
    torch.testing.assert_close(again(x[2:]), online.net(x)[2:], rtol=1e-4, atol=1e-5)
    (again(x[2:]).sum()).backward()
    torch.testing.assert_close(torch.compile(online, fullgraph=True, backend="aot_eager")(x[2:]).shape, (2, 3, 2))


def test_a_recurrent_layer_takes_no_steps_and_pieces():
    net = nn.Sequential(nn.Linear(5, 6), snn.Recurrent(snn.LIF(), nn.Linear(6, 6)))
    online, stepped = spikeforge.Online(net), spikeforge.Online(net)
    x = 3 * torch.randn(5, 3, 5)
    assert online(x[:0]).shape == (0, 3, 6)
    torch.testing.assert_close(online(x), torch.cat([stepped(step) for step in x.split(1)]))
    torch.testing.assert_close(online.traces[0], stepped.traces[0])


def test_more_batch_dimensions_start_anew():
    net = nn.Sequential(nn.Linear(5, 6), snn.LIF(), nn.Linear(6, 2))
    for rule in ("eprop", "ottt"):
        online = spikeforge.Online(net, rule=rule)
        x = 3 * torch.randn(2, 2, 3, 5)  # [T, B, E, I]
        online(x)
        done = torch.tensor([True, False])
        online.reset(done)
        done.zero_()  # changes only the caller's tensor
        torch.testing.assert_close(online(x)[:, 0], net(x)[:, 0])
        with pytest.raises(ValueError, match=r"samples of reset must be \[2\], the number of samples of the kept states, but are \[3\]"):
            online.reset(torch.ones(3, dtype=torch.bool))
        online.reset(torch.ones(2, dtype=torch.bool))  # resets all samples
        torch.testing.assert_close(online(x), net(x))
        with pytest.raises(ValueError, match=r"samples of reset were \[3\], but x has 2"):
            online.reset()
            online.reset(torch.ones(3, dtype=torch.bool))
            online(x)
        refused(TypeError, "bool tensor", lambda: online.reset([True, False]))
    with pytest.raises(ValueError, match="the kept states have 2; call reset"):
        spikeforge_online = spikeforge.Online(net)
        spikeforge_online(x)
        spikeforge_online(x[:, :1])


def test_random_feedback_is_of_what_has_weights_before_it():
    net = nn.Sequential(nn.Dropout(0.0), nn.Linear(5, 6), snn.LIF(), nn.Linear(6, 2))
    online = spikeforge.Online(net, feedback="random")
    assert [name for name, _ in online.named_buffers()] == ["feedback2"]
    conv = nn.Sequential(nn.Conv1d(2, 3, 1), snn.LIF(), nn.Flatten(), nn.Linear(12, 2))
    online = spikeforge.Online(conv, rule="ottt", feedback="random")
    online(torch.randn(2, 3, 2, 4)).sum().backward()
    assert [name for name, _ in online.named_buffers()] == ["feedback2"] and conv[0].weight.grad.abs().sum() > 0


def test_nothing_of_the_past_is_kept():
    net = two_layers(torch.float32)
    online = spikeforge.Online(net)

    def steps(count):
        """Returns the number of inputs that are not freed, and the number of existing tensors."""
        alive = []
        for _ in range(count):
            x = torch.rand(1, 3, 5)
            alive.append(weakref.ref(x))
            online(x).sum().backward()
        del x
        gc.collect()
        return sum(ref() is not None for ref in alive), sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    steps(2)
    (alive, few), (still_alive, many) = steps(3), steps(30)
    assert alive == still_alive == 0 and few == many


def test_operators(device):
    """Traces of compiled and eager calls are equal."""
    w, b, (tau,) = leaves((2.0,), torch.float32, device)
    x = torch.randn(2, 3, 5, device=device)

    def piece(x, w, b, tau, states, traces):
        (s, _), states, traces = ops.online_linear(LIF, x, w, b, states, [tau], traces)
        return s.sum(), states, traces

    compiled = torch.compile(piece, fullgraph=True, backend="aot_eager")
    results = []
    for call in (piece, compiled):
        _, states, traces = call(x, w, b, tau, [], [])
        loss, states, traces = call(x, w, b, tau, [s.detach() for s in states], traces)
        results.append((*torch.autograd.grad(loss, [w, b, tau]), *states, *traces))
    torch.testing.assert_close(*results)
    per_sample = torch.vmap(lambda x: ops.online_linear(LIF, x, w, b, [], [tau], [])[2][0])(x.transpose(0, 1).unsqueeze(2))
    torch.testing.assert_close(per_sample[:, 0], ops.online_linear(LIF, x, w, b, [], [tau], [])[2][0])
    with pytest.raises(NotImplementedError, match="forward mode|forward-mode|tangent"):
        torch.func.jvp(lambda w: ops.with_eligibility(torch.rand(3, 4), w, torch.rand(3, 4, 5)), (w.detach().cpu(),), (w.detach().cpu(),))


@pytest.mark.parametrize("batch", [(), (1,), (4,), (11,), (3, 2), (0,)])
def test_what_a_weight_gets_by_its_trace(batch, device):
    torch.manual_seed(len(batch))
    g, e = torch.randn(*batch, 7, dtype=torch.float64), torch.randn(*batch, 7, 9, dtype=torch.float64)
    wanted = torch.einsum("bn,bni->ni", g.view(-1, 7), e.view(-1, 7, 9))
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        got = ops.eligibility_gradient(g.to(device, dtype), e.to(device, dtype))
        torch.testing.assert_close(got.cpu().double(), wanted, rtol=0, atol=bound * (1 + wanted.abs().max().item()))
    torch.library.opcheck(ops.eligibility_gradient.default, (g.to(device), e.to(device)))
    # The second derivative uses torch operators.
    if batch == (4,):
        w = torch.zeros(7, 9, dtype=torch.float64, requires_grad=True)
        upstream = g.clone().requires_grad_()
        (first,) = torch.autograd.grad(ops.with_eligibility(g, w, e), w, upstream, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), upstream)
        torch.testing.assert_close(second, e.sum(-1))


def call_with(**changes):
    x = torch.rand(2, 3, 5)
    arguments = dict(neuron=LIF, x=x, weight=torch.rand(4, 5), bias=None, states=[], params=[torch.tensor(2.0)], traces=[]) | changes
    return lambda: ops.online_linear(**arguments)


REFUSED = {
    "rule": (call_with(rule="bptt"), ValueError, '"eprop" or "ottt", but is "bptt"'),
    "x": (call_with(x=torch.rand(5)), ValueError, r"x must have shape \[T, \*batch, I\]"),
    "x's type": (call_with(x=torch.ones(2, 3, 5).int()), TypeError, "x must be float16"),
    "weight": (call_with(weight=torch.rand(5, 4)), ValueError, r"weight must have shape \[N, 5\]"),
    "bias": (call_with(bias=torch.rand(5)), ValueError, r"bias must have shape \[4\]"),
    "into": (call_with(into=1), ValueError, "into must be the index of one of 1 inputs, but is 1"),
    "inputs": (call_with(neuron=ALIF, params=[torch.tensor(2.0)] * 2), ValueError, "inputs must have 2 tensors, one for each input of neuron alif"),
    "traces": (call_with(traces=[torch.rand(3, 4, 5)] * 2), ValueError, "traces must have 1 tensors, those that the previous call returned, or none, but has 2"),
    "states": (call_with(rule="ottt", states=[torch.rand(3, 4)] * 2, traces=[torch.rand(3, 5)]), ValueError, "online_linear: states must have 1 tensors, one for each state of neuron lif, or none, but has 2"),
    "params": (call_with(rule="ottt", params=[torch.tensor(2.0), torch.rand(4)]), ValueError, "online_linear: params must have 1 tensors, one for each parameter of neuron lif, but has 2"),
    "trace's shape": (call_with(traces=[torch.rand(3, 4, 6)]), ValueError, r"traces\[0\] must have shape \[3, 4, 5\], but has \[3, 4, 6\]"),
    "trace's type": (call_with(traces=[torch.rand(3, 4, 5).double()]), TypeError, r"traces\[0\] must be Float, the type of states, but is Double"),
    "trace of inputs": (call_with(rule="ottt", traces=[torch.rand(3, 4)]), ValueError, r"traces\[0\] must have shape \[3, 5\], but has \[3, 4\]"),
    "weight's type": (call_with(weight=torch.rand(4, 5).double()), TypeError, "weight must be Float, the type of x, but is Double"),
    "bias's device": (call_with(bias=torch.empty(4, device="meta")), ValueError, "bias must be on cpu, the device of x, but is on meta"),
    "input's shape": (call_with(inputs=[torch.rand(2, 3, 7)]), ValueError, r"inputs\[0\] must have shape \[2, 3, 4\], that of x times weight, but has \[2, 3, 7\]"),
    "module's input": (lambda: spikeforge.Online(two_layers())(torch.rand(2, 3, 9)), ValueError, r"Online: 0 \(Linear\) takes \[T, B, ..., \d+\], but gets \[2, 3, 9\]"),
    "module's type": (lambda: spikeforge.Online(nn.Sequential(nn.Conv1d(3, 4, 1), snn.LIF()), rule="ottt")(torch.rand(2, 2, 3, 5).double()), TypeError, r"Online: 0 \(Conv1d\) is float32, but gets float64"),
    "parameters": (call_with(rule="ottt", params=[torch.rand(4)]), ValueError, "parameters must be numbers, but tau has shape"),
    "random": (call_with(neuron="neuron n(x; v) { h = v + x + normal(); return spike(h - 1, atan(2)); v' = h }", params=[]), NotImplementedError, "online_linear: neuron n draws random numbers"),
    "stateless": (call_with(neuron="neuron n(x) { return spike(x - 1, atan(2)) }", params=[], rule="ottt"), ValueError, "n has no state"),
    "module's rule": (lambda: spikeforge.Online(two_layers(), rule="bptt"), ValueError, "'eprop' or 'ottt'"),
    "module's feedback": (lambda: spikeforge.Online(two_layers(), feedback=True), ValueError, "'symmetric' or 'random'"),
    "no neuron": (lambda: spikeforge.Online(nn.Linear(3, 3)), ValueError, "the network has no neuron"),
    "batch norm": (lambda: spikeforge.Online(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), snn.LIF())), ValueError, r"0 \(Linear\) must be directly before a neuron"),
    "norm alone": (lambda: spikeforge.Online(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), snn.LIF())), ValueError, r"0 \(BatchNorm1d\) has parameters"),
    "convolution": (lambda: spikeforge.Online(nn.Sequential(nn.Conv2d(3, 3, 1), snn.LIF())), ValueError, 'pass rule="ottt"'),
    "learned alone": (lambda: spikeforge.Online(nn.Sequential(snn.PLIF())), ValueError, r"0 \(PLIF\) learns"),
    "other network": (lambda: spikeforge.Online(nn.Sequential(nn.Linear(3, 3), snn.Composite())), ValueError, r"1 \(Composite\) cannot learn online: Composite is not a neuron"),
    "hooks": (lambda: spikeforge.Online(nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 3)), snn.LIF())), ValueError, "0 .Linear.: it has hooks"),
    "own forward": (lambda: spikeforge.Online(nn.Sequential(type("Own", (nn.Conv1d,), {"forward": lambda self, x: x})(3, 3, 1), snn.LIF()), rule="ottt"), ValueError, "0 .Own.: it has a custom forward"),
    "two inputs": (lambda: spikeforge.Online(nn.Sequential(nn.Linear(3, 3), snn.Neuron(ALIF, tau=2.0, b=0.3))), ValueError, "it has 2 inputs"),
    "smooth": (lambda: spikeforge.Online(nn.Sequential(nn.Linear(3, 3), snn.LIF(spiking=False))), ValueError, "cannot learn online: spiking=False"),
    "LSTM": (lambda: spikeforge.Online(nn.Sequential(nn.Linear(3, 3), snn.LIF(), nn.LSTM(3, 3))), ValueError, "2 .LSTM. has states, which are not kept"),
    "leaf": (lambda: ops.with_eligibility(torch.rand(3, 6), torch.rand(7), torch.rand(3, 6)), ValueError, "and leaf of shape .7."),
    "parameter's shape": (lambda: ops.local_jacobian(LIF, [torch.rand(2, 3, 5)], [torch.rand(3, 5)], [torch.rand(4)], 0, [0]), ValueError, "tau has shape .4., which does not broadcast"),
    "learned": (call_with(learned=[3]), ValueError, "learned must be indices of 1 parameters, but has 3"),
    "no time": (lambda: spikeforge.Online(two_layers())(torch.rand(3, 5)), ValueError, "time first, but has 2 dimensions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, kind, words = REFUSED[name]
    refused(kind, words, call)


def test_a_layer_that_was_replaced_is_refused():
    online = spikeforge.Online(nn.Sequential(nn.Linear(5, 4), snn.LIF()))
    x = torch.rand(2, 3, 5)
    online(x)
    before, online.net[0] = online.net[0], nn.Linear(5, 4)
    refused(ValueError, "Online: 0 is another Linear than at construction", lambda: online(x))
    online.net[0] = before
    online(x)
    online.net.append(nn.Linear(4, 2))
    refused(ValueError, "Online: the network has 3 layers, but had 2 at construction", lambda: online(x))


def test_hooks_that_nothing_would_call_are_refused_at_a_call():
    net = nn.Sequential(nn.Linear(5, 4), snn.LIF(), nn.Identity(), nn.Linear(4, 4), snn.Recurrent(snn.LIF(), nn.Linear(4, 4)))
    online = spikeforge.Online(net)
    x = torch.rand(2, 3, 5)
    for part in (net[0], net[1], net[4], net[4].cell, net[4].module):
        hook = part.register_forward_hook(lambda *_: None)
        refused(ValueError, rf"Online: [14a-z0-9.]+ \({type(part).__name__}\) got hooks after construction", lambda: online(x))
        hook.remove()
        online(x)
    with spikeforge.Monitor(net, ["1.out"]):
        refused(ValueError, r"Online: 1 \(LIF\) got hooks after construction, such as a Monitor's", lambda: online(x))
        net(x)
    called = []
    net[2].register_forward_hook(lambda *_: called.append(1))
    online(x)
    assert called


@pytest.mark.parametrize("rule", ["eprop", "ottt"])
def test_a_copy_goes_on_and_a_state_dict_has_weights_alone(rule):
    x, later = torch.rand(3, 2, 5), torch.rand(3, 2, 5)

    def learned(online):
        online.zero_grad()
        out = online(later)
        out.sum().backward()
        return [out.detach(), *(p.grad.clone() for p in online.parameters())]

    online = spikeforge.Online(two_layers(torch.float32), rule=rule, feedback="random")
    online(x)
    online.reset(torch.tensor([True, False]))
    file = io.BytesIO()
    torch.save(online, file)
    file.seek(0)
    copies = [copy.deepcopy(online), pickle.loads(pickle.dumps(online)), torch.load(file, weights_only=False)]
    wanted = learned(online)
    for other in copies:
        assert all(map(torch.equal, learned(other), wanted))
    assert all(name.startswith(("net.", "feedback")) for name in online.state_dict())
    before = [t.clone() for traces in online.traces for t in traces]
    online.load_state_dict(online.state_dict())
    assert len(before) > 0 and all(map(torch.equal, before, (t for traces in online.traces for t in traces)))


def test_a_call_that_fails_leaves_an_online_network_as_it_was():
    """Traces, states, and the samples to be reset are unchanged."""
    broken = spikeforge.Online(nn.Sequential(nn.Linear(5, 4), snn.LIF(), nn.Linear(4, 4), snn.LIF()))
    whole = spikeforge.Online(copy.deepcopy(broken.net))
    x, later = torch.rand(3, 2, 5), torch.rand(3, 2, 5)
    for online in (broken, whole):
        online(x)
        online.reset(torch.tensor([True, False]))
    weight = broken.net[2].weight.data
    broken.net[2].weight.data = weight[:, :3]
    with pytest.raises(RuntimeError):
        broken(later)
    broken.net[2].weight.data = weight
    assert torch.equal(broken(later), whole(later))
