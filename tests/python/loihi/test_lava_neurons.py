"""Lava's other neurons, in floating point and in fixed point, compared with their equations in Python numbers, one neuron at
a time; and their straight-through gradients."""

import math
import random

import pytest
import torch
from cases import all_equal
from test_loihi import M, rtz

ops = torch.ops.spikeforge


def relu(x):
    return max(x, 0)


def wrapped(c):
    return c - 2 * M if c > M else c + 2 * M if c <= -M else c


def clipped(x):
    return max(1 - M, min(M - 1, x))


# Each function returns the outputs of a step and the states after it, for integers of the chip or for doubles. `decay(x, n)` is
# the remainder of x after a decay n, and `turn(x, n)` is x times the factor of a decay n.


def atrlif(a, s, p, fixed):
    u, v, excess, r = s
    unit = 64 if fixed else 1
    kept = (lambda x, d: rtz(x * (4096 - d), 12)) if fixed else (lambda x, d: x * (1 - d))
    u = wrapped(kept(u, p["du"] + 1) + 64 * a) if fixed else kept(u, p["du"]) + a
    v = kept(v, p["dv"]) + u + p["bias"]
    v = clipped(v) if fixed else v
    excess, r = kept(excess, p["dtheta"]), kept(r, p["dr"])
    theta = unit * p["theta_0"] + excess
    if v - r >= theta:
        return 1, (u, v, excess + unit * p["theta_step"], r + 2 * theta)
    return 0, (u, v, excess, r)


def rf(a, s, p, fixed):
    (x, y), (re, im) = a, s
    turn = (lambda x, n: rtz(x * n, 12)) if fixed else (lambda x, n: x * n)
    gain = p.get("gain", 1)
    new_re = turn(re, p["cos_decay"]) - turn(im, p["sin_decay"]) + gain * x
    new_im = turn(re, p["sin_decay"]) + turn(im, p["cos_decay"]) + gain * y
    if fixed:
        new_re, new_im = clipped(new_re), clipped(new_im)
    return int(new_re >= p["vth"] and new_im >= 0 and im < 0), (new_re, new_im)


def sent(act, before, residue, p):
    change = act - before + residue
    out = change if abs(change) >= p["vth"] else 0
    return (math.floor(out / p["unit"]) if "unit" in p else out), change - out


def sigma(a, s, p, fixed):
    return s[0] + a, (s[0] + a,)


def delta(a, s, p, fixed):
    act = p.get("gain", 1) * a
    out, residue = sent(act, *s, p)
    return out, (act, residue)


def sigma_delta(a, s, p, fixed, activation=relu):
    total = s[0] + a
    act = activation(total + p["bias"])
    out, residue = sent(act, s[1], s[2], p)
    return out, (total, act, residue)


def sigma_delta_unit(a, s, p, fixed):
    return sigma_delta(a, s, p, fixed, lambda x: x)


def lif(a, s, p, fixed):
    """Resets every `interval` steps, or waits `period` steps after a spike; the third state is the counter."""
    u, v, counter = (*s, 0)[:3]
    if "interval" in p:
        counter = (counter + 1) % p["interval"]
        u, v = (0, 0) if counter == p["offset"] % p["interval"] else (u, v)
    u = u * (1 - p["du"]) + a
    h = v if "period" in p and counter > 0 else v * (1 - p["dv"]) + u + p["bias"]
    out = (h > p["vth_hi"]) - (h < p["vth_lo"]) if "vth_hi" in p else int(h > p["vth"])
    if "period" in p:
        counter = p["period"] if out else max(counter - 1, 0)
    return out, (u, 0 if out else h, counter)[: len(s)]


LIF = dict(du=0.3, dv=0.25, bias=0.05, vth=1.5)
FIXED = {
    "atrlif": (atrlif, 4, dict(du=400, dv=300, dtheta=200, dr=700, theta_0=60, theta_step=25, bias=300)),
    "rf": (rf, 2, dict(sin_decay=round(0.95 * 4096 * math.sin(0.6)), cos_decay=round(0.95 * 4096 * math.cos(0.6)), vth=9000, gain=64)),
    "delta": (delta, 2, dict(vth=700, gain=16, unit=4)),
    "sigma_delta": (sigma_delta, 3, dict(bias=-60, vth=90, unit=2)),
    "sigma_delta_unit": (sigma_delta_unit, 3, dict(bias=30, vth=40, unit=1)),
}
FLOATING = {
    "lif": (lif, 2, LIF),
    "ternary_lif": (lif, 2, dict(du=0.3, dv=0.25, bias=0.05, vth_hi=1.5, vth_lo=-1.0)),
    "lif_reset": (lif, 3, dict(LIF, interval=7.0, offset=-2.0)),
    "lif_refractory": (lif, 3, dict(LIF, period=3.0)),
    "atrlif": (atrlif, 4, dict(du=0.4, dv=0.4, dtheta=0.2, dr=0.2, theta_0=5.0, theta_step=3.75, bias=0.5)),
    "rf": (rf, 2, dict(sin_decay=0.9 * math.sin(0.6), cos_decay=0.9 * math.cos(0.6), vth=1.0)),
    "sigma": (sigma, 1, {}),
    "delta": (delta, 2, dict(vth=0.8)),
    "sigma_delta": (sigma_delta, 3, dict(bias=-0.3, vth=0.7)),
    "sigma_delta_unit": (sigma_delta_unit, 3, dict(bias=0.2, vth=0.5)),
}


def by_hand(step, states, p, xs, fixed):
    """Applies `step` to inputs [T, N]. Returns outputs and states [T, N]."""
    columns = []
    for n in range(xs[0].shape[1]):
        s, rows = (0,) * states, []
        for t in range(len(xs[0])):
            a = tuple(x[t, n].item() for x in xs)
            out, s = step(a if len(xs) > 1 else a[0], s, p, fixed)
            rows.append((out, *s))
        columns.append(rows)
    return torch.tensor(columns, dtype=torch.float64).permute(2, 1, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FIXED)
def test_fixed_point_has_the_bits_of_its_equations(name, dtype, device, seeded):
    torch.manual_seed(seeded)
    step, states, p = FIXED[name]
    for low, high in ((-40, 60), (-3000, 4000)):
        xs = [torch.randint(low, high, (60, 12)).to(dtype) for _ in range(2 if name == "rf" else 1)]
        tensors = [torch.tensor(float(v), dtype=dtype) for v in p.values()]
        (got,), after = ops.run(ops.loihi_neuron(name), [x.to(device) for x in xs], [], tensors, store_states=True)
        want = by_hand(step, states, p, [x.long() for x in xs], fixed=True)
        for a, b in zip((got, *after), want, strict=True):
            assert torch.equal(a.cpu().double(), b)
        assert want[0].any() and (low < -40 or not want[0].all()), "large inputs may send something at every step"


@pytest.mark.parametrize("name", FLOATING)
def test_floating_point_is_its_equations(name, device, seeded):
    torch.manual_seed(seeded)
    step, states, p = FLOATING[name]
    xs = [torch.rand(60, 12, dtype=torch.float64) * 4 - 1.5 for _ in range(2 if name == "rf" else 1)]
    tensors = [torch.tensor(v, dtype=torch.float64) for v in p.values()]
    (got,), after = ops.run(ops.lava_neuron(name), [x.to(device) for x in xs], [], tensors, store_states=True)
    want = by_hand(step, states, p, xs, fixed=False)
    assert all_equal([t.cpu() for t in (got, *after)], want) and want[0].any()
    parts, states = [], []
    for chunk in zip(*(x.to(device).split([1, 22, 37]) for x in xs)):
        (part,), states = ops.run(ops.lava_neuron(name), list(chunk), states, tensors)
        parts.append(part)
    assert torch.equal(torch.cat(parts), got), "chunks are one run"


@pytest.mark.parametrize("text", ["lava", "loihi"])
def test_a_delta_that_is_not_sent_has_the_gradient_of_one_that_is(text, device):
    """The gradient is straight-through: each change has the gradient of a change that is sent."""
    x = torch.tensor([[100.0], [101.0], [160.0]], device=device, requires_grad=True)
    params = [torch.tensor(40.0)] + ([torch.tensor(4.0), torch.tensor(2.0)] if text == "loihi" else [])
    source = ops.loihi_neuron("delta") if text == "loihi" else ops.lava_neuron("delta")
    (y,), _ = ops.run(source, [x], [], params)
    gain = 2 if text == "loihi" else 1
    assert y.flatten().tolist() == [100 * gain, 0, 60 * gain]
    weights = torch.tensor([[1.0], [10.0], [100.0]], device=device)
    (grad,) = torch.autograd.grad((y * weights).sum(), x)
    assert grad.flatten().tolist() == [gain * (1 - 10), gain * (10 - 100), gain * 100]


def test_fixed_and_floating_point_have_the_same_gradients(device):
    """An adaptive neuron in units of 512, and in doubles: their surrogates differ only by the unit of the threshold."""
    k, p = 512, dict(du=0.25, dv=0.125, dtheta=0.25, dr=0.5, theta_0=1.0, theta_step=0.5, bias=0.25)
    torch.manual_seed(3)
    x = torch.randint(-k // 2, k, (15, 9)).double() / k
    grads, spikes = [], []
    for fixed in (False, True):
        leaf = x.to(device).requires_grad_()
        chip = dict(du=1023, dv=512, dtheta=1024, dr=2048, theta_0=k, theta_step=k // 2, bias=16 * k)
        tensors = [torch.tensor(float(v), dtype=torch.float64) for v in (chip if fixed else p).values()]
        source = ops.loihi_neuron("atrlif") if fixed else ops.lava_neuron("atrlif")
        (s,), _ = ops.run(source, [leaf * (k if fixed else 1)], [], tensors)
        s.sum().backward()
        grads.append(leaf.grad), spikes.append(s)
    assert torch.equal(*spikes) and 0.05 < spikes[0].mean() < 0.9
    torch.testing.assert_close(*grads, rtol=0.02, atol=0.02 * grads[0].abs().max().item())


def test_the_texts_of_the_lif_are_its_operators(device, seeded):
    rng = random.Random(seeded)
    x = torch.tensor([[rng.randint(-30, 60) for _ in range(7)] for _ in range(20)], dtype=torch.float32, device=device)
    params = [torch.tensor(v) for v in (300.0, 200.0, 5.0, 40.0)]
    (spikes,), (u, v) = ops.run(ops.loihi_neuron("lif", surrogate="atan", surrogate_args=[3.0]), [x], [], params)
    for a, b in zip((spikes, u, v), ops.loihi_lif(x.int(), du=300, dv=200, bias_mant=5, vth=40)):
        assert torch.equal(a, b.float())
