"""Loihi's operators on floating-point tensors have the bits of the integer operators, and straight-through gradients. The
reference is a torch loop in float64, with custom derivatives for rounding, wraps and spikes."""

import os
import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import library_path
from loops import output_of, refused
from reference import SURROGATES

from test_loihi import EDGES, PER_NEURON, csr, draw_case, every_kind, expected, messages, names, on, op_of

ops = torch.ops.spikeforge
M = 2**23


# --- the reference -------------------------------------------------------------------------------------------------------


def with_slope(value, x, slope=1.0):
    """Returns value, with the derivative `slope` with respect to x."""
    return value.detach() + slope * (x - x.detach())


def straight(x, function):
    return with_slope(function(x.detach()), x)


def fire(z, name, alpha):
    return with_slope((z > 0).to(z), z, SURROGATES[name].gradient(z.detach(), alpha))


def wrapped(c):
    c = torch.where(c > M, c - 2 * M, c)
    return torch.where(c <= -M, c + 2 * M, c)


def loop(x, states, p, ternary, form, surrogate=("sigmoid", 4.0), detach_reset=False):
    """Spikes and sequences of states, in float64."""
    zero = torch.zeros(x.shape[1:], dtype=torch.float64)
    p = {k: torch.as_tensor(t, dtype=torch.float64) for k, t in p.items()}
    u, v, counter = [zero if s is None else s for s in states] + [zero] * (3 - len(states))
    rows = []
    for row in x:
        if form == "reset":
            counter = (counter + 1) % p["reset_interval"]
            again = counter == p["reset_offset"] % p["reset_interval"]
            u, v = torch.where(again, 0.0, u), torch.where(again, 0.0, v)
        u = straight(straight(u * (4095 - p["du"]) / 4096, torch.trunc) + 64 * row, wrapped)
        bias = straight(p["bias_mant"] * 2.0 ** p["bias_exp"], torch.floor)
        h = (straight(v * (4096 - p["dv"]) / 4096, torch.trunc) + u + bias).clamp(1 - M, M - 1)
        if form == "refractory":
            h = torch.where(counter > 0, v, h)
        unit = lambda th: 64 * th.detach().abs().clamp_min(1)
        if ternary:
            up = fire((h - 64 * p["vth_hi"]) / unit(p["vth_hi"]), *surrogate)
            down = fire((64 * p["vth_lo"] - h) / unit(p["vth_lo"]), *surrogate)
            s = up - down
            kept = (1 - up) * (1 - down) + up * down
        else:
            s = fire((h - 64 * p["vth"]) / unit(p["vth"]), *surrogate)
            kept = 1 - s
        v = h * (kept.detach() if detach_reset else kept)
        if form == "refractory":
            counter = torch.where(s != 0, p["refractory_period"], (counter - 1).clamp_min(0))
        rows.append((s, u, v))
    return [torch.stack(sequence) for sequence in zip(*rows)]


def leaves(dtype, device, x, states, params):
    """Returns the call's tensors as floats, and those of them that require gradients: all except the counter."""
    leaf = lambda t: t.to(device, dtype).requires_grad_()
    x, states = leaf(x), [t if t is None else leaf(t) if i < 2 else t.to(device, dtype) for i, t in enumerate(states)]
    of_its_own = lambda k, t: t.to(device) if k == "bias_exp" else leaf(t)
    params = {k: of_its_own(k, t) if isinstance(t, torch.Tensor) else t for k, t in params.items()}
    return x, states, params, [t for t in (x, *states[:2], *params.values()) if isinstance(t, torch.Tensor) and t.requires_grad]


def close(found, wanted, tolerance):
    scale = wanted.abs().max().clamp_min(1e-6)  # in the tails of a surrogate, the relative error is larger
    assert ((found.cpu().double() - wanted).abs().max() / scale) <= tolerance


# --- neurons -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_kind
def test_floats_have_the_bits_of_the_integers_and_the_gradients_of_the_loop(ternary, form, dtype, device, seeded):
    rng = random.Random(seeded)
    torch.manual_seed(seeded)
    fired = 0
    for case in range(6):
        x, states, params = draw_case(ternary, form, rng, rng.choice([(5,), (2, 3)]), 12, tensors=case > 0)
        integers = expected(x, states, params, ternary, form)
        options = [{}, {"detach_reset": True}, {"surrogate": "rect", "surrogate_args": [0.7]}][case % 3]
        x_, states_, params_, wanted = leaves(dtype, device, x, states, params)
        results = op_of(ternary, form)(x_, *states_, **params_, store_states=True, **options)
        for got, want in zip(results, integers, strict=True):
            assert got.dtype == dtype and torch.equal(got.detach().cpu(), want.to(dtype)), f"case {case}: {params}"
        fired += int(integers[0].abs().sum())

        x64, states64, params64, leaves64 = leaves(torch.float64, "cpu", x, states, params)
        surrogate = (options.get("surrogate", "sigmoid"), options.get("surrogate_args", [4.0])[0])
        oracle = loop(x64, states64, params64, ternary, form, surrogate, options.get("detach_reset", False))
        upstream = [torch.randn(x.shape, dtype=torch.float64) * scale for scale in (1.0, 1e-4, 1e-4)]
        torch.autograd.backward(oracle, upstream)
        torch.autograd.backward(results[:3], [g.to(device, dtype) for g in upstream])
        for got, want in zip(wanted, leaves64, strict=True):
            close(got.grad, want.grad if want.grad is not None else torch.zeros_like(want), 5e-6 if dtype is torch.float64 else 2e-5)
    assert fired > 0


def test_the_gradient_goes_straight_through_the_wrap_and_stops_where_v_saturates(device):
    x = torch.tensor([[2.0**17], [1.0]], device=device, requires_grad=True)  # 64 x is 2^23: the second step wraps
    _, u, v = ops.loihi_lif(x, du=-1, dv=4096, vth=2**17, store_states=True, detach_reset=True)
    assert u.flatten().tolist() == [M, 64 - M] and v.flatten().tolist() == [M - 1, 64 - M]
    assert torch.autograd.grad(u[1].sum(), x, retain_graph=True)[0].flatten().tolist() == [64, 64]
    assert torch.autograd.grad(v[0].sum(), x, retain_graph=True)[0].flatten().tolist() == [0, 0]
    assert torch.autograd.grad(v[1].sum(), x)[0].flatten().tolist() == [64, 64]


def test_samples_of_different_lengths_have_gradients(device):
    """Steps after a sample's end have no gradient; those before have the gradient of a separate call."""
    x = torch.randint(-20, 60, (7, 2, 3), device=device).float().requires_grad_()
    spikes, _, v = ops.loihi_lif(x, dv=500, vth=20, lengths=torch.tensor([7, 4], device=device))
    (spikes.sum() + v.sum()).backward()
    alone = x.detach()[:4, 1].clone().requires_grad_()
    s, _, last = ops.loihi_lif(alone, dv=500, vth=20)
    (s.sum() + last.sum()).backward()
    assert torch.equal(v[1], last) and x.grad[4:, 1].eq(0).all()
    torch.testing.assert_close(x.grad[:4, 1], alone.grad)


# --- connections -----------------------------------------------------------------------------------------------------------


def sent_by_loop(x, weight, delays, slots, weight_exp, bits, buffer=None):
    """Returns the sent values in float64, with a straight-through gradient of the message."""
    arriving = torch.zeros(len(x) + slots, *x.shape[1:-1], weight.shape[0], dtype=torch.float64)
    if buffer is not None:
        arriving = arriving + torch.cat([buffer, torch.zeros_like(arriving[slots:])])
    message = straight(x, lambda t: (t != 0).to(t)) if bits == 0 else x
    for d in range(slots):
        sums = straight(F.linear(message, weight * (delays == d)) * 2.0**weight_exp, torch.floor)
        arriving = arriving + F.pad(sums, (0, 0) * (x.dim() - 1) + (1 + d, slots - 1 - d))
    return arriving[: len(x)], arriving[len(x) :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits, weight_exp", [(0, 0), (0, -3), (6, 2)])
def test_connections_have_the_bits_of_the_integers_and_the_gradients_of_the_loop(bits, weight_exp, dtype, device, seeded):
    rng = random.Random(seeded)
    torch.manual_seed(seeded)
    n_in, n_out, steps = 7, 5, 6
    weight = torch.randint(-128, 128, (n_out, n_in), dtype=torch.int32) * 2
    weight[torch.rand(n_out, n_in) < 0.3] = 0
    x = torch.tensor([messages(rng, steps, n_in, bits) for _ in range(2)], dtype=torch.int32).transpose(0, 1).contiguous()
    crow, col, values = (t.to(device) for t in csr(weight.tolist()))
    delays = torch.randint(0, 3, weight.shape, dtype=torch.int32)
    options = dict(weight_exp=weight_exp, num_message_bits=bits)
    dense = lambda x, w, b: ops.loihi_dense(x, w, b, delay=3, **options)
    sparse = lambda x, w, b: ops.loihi_sparse(x, crow, col, w, b, delay=3, **options)
    delayed = lambda x, w, b: ops.loihi_delay_dense(x, w, delays.to(device), b, max_delay=2, **options)
    for call, w, which in ((dense, weight, torch.full_like(delays, 2)), (sparse, values, torch.full_like(delays, 2)), (delayed, weight, delays)):
        buffer = torch.randint(-90, 90, (3, 2, n_out), dtype=torch.int32)
        integers = call(*(t.to(device) for t in (x, w, buffer)))
        floats = [t.to(device, dtype).requires_grad_() for t in (x, w, buffer)]
        results = call(*floats)
        for got, want in zip(results, integers, strict=True):
            assert got.dtype == dtype and torch.equal(got, want.to(dtype))

        reals = [t.double().requires_grad_() for t in (x, weight, buffer)]
        oracle = sent_by_loop(reals[0], reals[1], which, 3, weight_exp, bits, reals[2])
        upstream = [torch.randn(t.shape, dtype=torch.float64) for t in oracle]
        torch.autograd.backward(oracle, upstream)
        torch.autograd.backward(results, [g.to(device, dtype) for g in upstream])
        if call is sparse:
            reals[1] = SimpleNamespace(grad=reals[1].grad[weight != 0])
        for got, want in zip(floats, reals, strict=True):
            close(got.grad, want.grad, 1e-12 if dtype is torch.float64 else 1e-5)


GEOMETRIES = [dict(), dict(stride=2, padding=1), dict(padding=(2, 0), dilation=(1, 2), groups=2), dict(stride=(1, 3), groups=2)]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: " ".join(g) or "plain")
def test_a_convolution_is_torchs_wrapped_around_at_24_bits(geometry, device, seeded):
    torch.manual_seed(seeded)
    weight = torch.randint(-128, 128, (6, 4 // geometry.get("groups", 1), 3, 2), dtype=torch.int32) * 2
    wraps = 0
    for bits, weight_exp, largest in ((0, 0, 2), (20, 3, 2**13), (8, -2, 50)):
        x = torch.randint(-largest, largest, (5, 2, 4, 9, 8), dtype=torch.int32)
        options = dict(weight_exp=weight_exp, num_message_bits=bits, delay=2, **geometry)
        y, buffer = ops.loihi_conv(x.to(device), weight.to(device), **options)

        reals = [t.double().requires_grad_() for t in (x, weight)]
        message = straight(reals[0], lambda t: (t != 0).to(t)) if bits == 0 else reals[0]
        wrap = lambda t: (torch.floor(t) + M) % (2 * M) - M
        sums = F.conv2d(message.flatten(0, 1), reals[1], **geometry) * 2.0**weight_exp
        sent = straight(sums, wrap).unflatten(0, (5, 2))
        want = torch.cat([torch.zeros_like(sent[:2]), sent])
        assert y.dtype == torch.int32 and torch.equal(torch.cat([y, buffer]).cpu().double(), want)
        wraps += int((sums.abs() > M).sum())

        floats = [t.to(device, torch.float32).requires_grad_() for t in (x, weight)]
        got = torch.cat(ops.loihi_conv(*floats, **options))
        assert torch.equal(got.cpu().double(), want)
        upstream = torch.randn(want.shape, dtype=torch.float64)
        torch.autograd.backward([want], [upstream])
        torch.autograd.backward([got], [upstream.to(device, torch.float32)])
        for a, b in zip(floats, reals, strict=True):
            close(a.grad, b.grad, 1e-5)

        first, buffer = ops.loihi_conv(x[:2].to(device), weight.to(device), **options)
        second, _ = ops.loihi_conv(x[2:].to(device), weight.to(device), buffer, **options)
        assert torch.equal(torch.cat([first, second]), y), "chunks are one run"
    assert wraps > 0


# --- weights ---------------------------------------------------------------------------------------------------------------

MODES = {"mixed": (-256, 255), "excitatory": (0, 255), "inhibitory": (-255, 0)}


@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_fake_quantization_is_the_chips_weights_and_a_clips_gradient(bits, mode, device, seeded):
    torch.manual_seed(seeded)
    for low, high in ((-300.0, 300.0), (0.0, 300.0), (-300.0, 0.0)):
        weight = torch.empty(40, 5).uniform_(low, high)
        inferred = mode or ("mixed" if low < 0 < high else "excitatory" if high > 0 else "inhibitory")
        least, most = MODES[inferred]
        step = 2 ** (8 - bits + (inferred == "mixed"))
        nearest = torch.round(weight.double() / step) * step
        nearest = nearest.clamp(0 if inferred == "excitatory" else -256 if inferred == "mixed" else step - 256,
                                0 if inferred == "inhibitory" else 256 - step)
        for truncate in (False, True):
            leaf = weight.clone().to(device).requires_grad_()
            got = ops.loihi_fake_quantize(leaf, num_weight_bits=bits, sign_mode=mode, truncate=truncate)
            prepared = ops.loihi_prepare_weights(weight, num_weight_bits=bits, sign_mode=mode)
            assert got.dtype == torch.float32
            assert torch.equal(got.cpu().double(), prepared.double() if truncate else nearest)
            assert torch.equal(ops.loihi_prepare_weights(got.detach(), num_weight_bits=bits, sign_mode=inferred), got.int()), "the chip keeps it"
            got.backward(torch.full_like(got, 3.0))
            assert torch.equal(leaf.grad.cpu(), 3.0 * ((weight >= least) & (weight <= most)).float())


def fewest_bits_by_hand(values, mode):
    least, most = MODES[mode]
    fits = lambda shift: all(least <= v << shift <= most for v in values)
    shift = max((s for s in range(9) if fits(s)), default=0)
    shifted = [v << shift for v in values]
    keep = lambda bits: all(abs(v) % 2 ** (8 - bits + (mode == "mixed")) == 0 for v in shifted)
    return shifted, min((b for b in range(1, 9) if keep(b)), default=8), -shift


def test_weights_in_the_fewest_bits_give_the_same_product(seeded):
    rng = random.Random(seeded)
    # Results of Lava's optimize_weight_bits.
    known = [([1, 2, 3], None, ([64, 128, 192], 2, -6)), ([-128, 127], None, ([-256, 254], 8, -1)),
             ([-4, 4], "mixed", ([-128, 128], 2, -5)), ([0, 7, -6], None, ([0, 224, -192], 4, -5)), ([-3, -12], None, ([-48, -192], 4, -4)), ([-255, 0], None, ([-255, 0], 8, 0)), ([5, 40], None, ([20, 160], 6, -2))]
    for values, mode, want in known:
        weights, *numbers = ops.loihi_optimize_weight_bits(torch.tensor(values), sign_mode=mode)
        assert (weights.tolist(), *numbers) == want
    for _ in range(60):
        mode = rng.choice(list(MODES))
        least, most = (bound // rng.choice([1, 3, 16]) for bound in MODES[mode])
        step = rng.choice([1, 2, 8])
        values = [rng.randint(least, most) // step * step for _ in range(5)]
        values = [max(v, MODES[mode][0]) for v in values]
        if not any(values):
            continue
        weights, bits, exponent = ops.loihi_optimize_weight_bits(torch.tensor(values), sign_mode=mode)
        assert (weights.tolist(), bits, exponent) == fewest_bits_by_hand(values, mode)
        x = torch.randint(0, 2, (4, 5), dtype=torch.int32)
        old, _ = ops.loihi_dense(x, torch.tensor([values], dtype=torch.int32), delay=0)
        new, _ = ops.loihi_dense(x, weights.view(1, -1), delay=0, weight_exp=exponent)
        assert torch.equal(old, new)


def test_small_weights_of_both_signs_keep_their_signs(device):
    """Truncated, all of them are 0, without a sign."""
    weight = torch.tensor([-1.4, 1.4, -0.6, 0.6], device=device)
    for scale in (1.0, 0.5):
        leaf = (scale * weight).requires_grad_()
        got = ops.loihi_fake_quantize(leaf)
        want = (scale * weight.double() / 2).round() * 2
        assert torch.equal(got.detach().double(), want) and want.any() == (scale == 1)
        got.sum().backward()
        assert leaf.grad.tolist() == [1.0] * 4
    assert ops.loihi_fake_quantize(weight.abs() - 0.5).tolist() == [1.0, 1.0, 0.0, 0.0], "one sign has odd numbers"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_longest_waits_that_floats_count(dtype):
    most = 2**23
    x = torch.full((2, 3), 2000)
    for op, numbers in ((ops.loihi_lif_refractory, dict(refractory_period=most)),
                        (ops.loihi_lif_reset, dict(reset_interval=most, reset_offset=-most))):
        want, got = op(x.int(), **numbers), op(x.to(dtype), **numbers)
        assert all(torch.equal(a, b.int()) for a, b in zip(want, got, strict=True)) and want[0].any()
        for name in numbers:
            refused(ValueError, f"{name} must be in", lambda: op(x.to(dtype), **{name: most + 1}))


# --- errors ----------------------------------------------------------------------------------------------------------------

X = torch.zeros(3, 4)
W = torch.zeros(2, 4)


@pytest.mark.parametrize("call, error, words", [
    (lambda: ops.loihi_lif(X.half()), TypeError, "loihi_lif: x must be int32, or float32 or float64 to be differentiated, but is Half"),
    (lambda: ops.loihi_lif(X, X[0].double()), TypeError, "loihi_lif: u must be Float or Int for a Float x, but is Double"),
    (lambda: ops.loihi_lif(X, bias_mant=X[0] + 0.5), ValueError, "loihi_lif: bias_mant must hold whole numbers, but has others"),
    (lambda: ops.loihi_lif(X, du=X[0] + torch.inf), ValueError, r"loihi_lif: du must be in \[-1, 4095\], but has values from inf to inf"),
    (lambda: ops.loihi_lif(X, X[0] - 1e30), ValueError, r"loihi_lif: u must be in \[-8388608, 8388608\], but has values from -1.*e\+30"),
    (lambda: ops.loihi_lif(X, bias_mant=X[0] + torch.nan), ValueError, "loihi_lif: bias_mant must hold whole numbers, but has others$"),
    (lambda: ops.loihi_dense(X, W - 1e30), ValueError, r"loihi_dense: weight must be in \[-256, 255\], but has values from -1.*e\+30"),
    (lambda: ops.loihi_dense(X.half(), W), TypeError, "loihi_dense: x must be int32, or float32 or float64 to be differentiated, but is float16"),
    (lambda: ops.loihi_dense(X, W, X[:1, :2] + 1.7), ValueError, "loihi_dense: buffer must hold whole numbers, but has others$"),
    (lambda: ops.loihi_dense(X, W, X[:1, :2] + torch.nan), ValueError, "loihi_dense: buffer must hold whole numbers"),
    (lambda: ops.loihi_delay_dense(X, W, W.int(), X[:1, :2] + torch.inf, max_delay=0), ValueError, "loihi_delay_dense: buffer must be in"),
    (lambda: ops.loihi_conv(torch.zeros(2, 3, 5, 5), torch.zeros(2, 3, 3, 3), stride=[2**62]), ValueError, "loihi_conv: stride must be 2147483647 or less"),
    (lambda: ops.loihi_optimize_weight_bits(W + 0.5), ValueError, "loihi_optimize_weight_bits: weight must hold whole numbers"),
    (lambda: ops.loihi_optimize_weight_bits(W.int() + 70000), ValueError, "weight must be in .*, but has values from 70000 to 70000"),
    (lambda: ops.loihi_lif(X, du=X[0] + 4096), ValueError, r"loihi_lif: du must be in \[-1, 4095\], but has values from 4096 to 4096"),
    (lambda: ops.loihi_lif(X, dv=0.5), TypeError, "loihi_lif: dv must be a whole number, but is 0.5"),
    (lambda: ops.loihi_lif(X, surrogate="odd"), ValueError, "loihi_lif: .*odd"),
    (lambda: ops.loihi_dense(X, W.int()), TypeError, r"loihi_dense: weight must be Float, but is Int; pass weight.to\(torch.float32\)"),
    (lambda: ops.loihi_dense(X, W + 0.5), ValueError, "loihi_dense: weight must hold whole numbers, but has others; loihi_fake_quantize makes them"),
    (lambda: ops.loihi_dense(X, W + 256), ValueError, r"loihi_dense: weight must be in \[-256, 255\]"),
    (lambda: ops.loihi_float_product(X, W.double(), 0, 0, 32), TypeError, "loihi_float_product: x and weights must be float32 or float64, both of one type"),
    (lambda: ops.loihi_conv(X, W), ValueError, r"loihi_conv: x must have shape \[T, \*batch, channels, height, width\]"),
    (lambda: ops.loihi_conv(torch.zeros(2, 3, 5, 5), torch.zeros(2, 2, 3, 3)), ValueError, r"loihi_conv: weight must have shape \[out, in / groups, height, width\] with in = 3"),
    (lambda: ops.loihi_conv(torch.zeros(2, 3, 5, 5), torch.zeros(2, 3, 6, 3)), ValueError, "loihi_conv: the kernel must be no larger than the padded input, but spans 6 of 5"),
    (lambda: ops.loihi_conv(torch.zeros(2, 3, 5, 5), torch.zeros(2, 3, 3, 3), stride=[0]), ValueError, r"loihi_conv: stride must be 1 or more, but is \[0\]"),
    (lambda: ops.loihi_fake_quantize(W.int()), TypeError, "loihi_fake_quantize: weight must be floating point, but is Int"),
    (lambda: ops.loihi_optimize_weight_bits(W.int() + 300), ValueError, r"loihi_optimize_weight_bits: weight must be in \[0, 255\]"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_errors(call, error, words):
    refused(error, words, call)


# --- transforms and compilers ----------------------------------------------------------------------------------------------


def training_step(x, w, bias):
    """Returns the loss of a layer whose float weights are rounded as for the chip."""
    current, _ = ops.loihi_dense(x, ops.loihi_fake_quantize(w * 40), delay=0)
    spikes, u, v = ops.loihi_lif(current, du=2000, dv=300, bias_mant=bias, vth=30)
    return (spikes.mean(0) - 0.3).square().sum() + 1e-5 * v.sum()


def training_arguments(device):
    torch.manual_seed(3)
    return torch.randint(0, 2, (9, 3, 6), device=device).float(), torch.randn(4, 6, device=device), torch.arange(4.0, device=device)


def test_a_gradient_is_that_of_each_sample_under_vmap(device):
    x, w, bias = training_arguments(device)
    per_sample = torch.func.vmap(torch.func.grad(training_step, argnums=(1, 2)), (1, None, None))(x, w, bias)
    for i in range(3):
        alone = torch.func.grad(training_step, argnums=(1, 2))(x[:, i], w, bias)
        for a, b in zip(per_sample, alone):
            torch.testing.assert_close(a[i], b)
    integers = torch.func.vmap(lambda x: ops.loihi_dense(x, w.int(), delay=0)[0], 1, 1)(x.int())
    assert torch.equal(integers, ops.loihi_dense(x.int(), w.int(), delay=0)[0])


def test_a_training_step_compiles_whole(device):
    x, w, bias = training_arguments(device)
    w.requires_grad_(), bias.requires_grad_()
    compiled = torch.compile(training_step, fullgraph=True, backend="aot_eager")
    want = torch.autograd.grad(training_step(x, w, bias), (w, bias))
    for a, b in zip(torch.autograd.grad(compiled(x, w, bias), (w, bias)), want):
        torch.testing.assert_close(a, b)
    assert want[0].abs().sum() > 0


def test_opcheck_of_floats(device, seeded):
    rng = random.Random(seeded)
    floats = lambda *size: torch.randint(-9, 9, size, device=device).float().requires_grad_()
    for ternary, form in ((False, "plain"), (True, "refractory")):
        x, states, params = draw_case(ternary, form, rng, (5,), 6, tensors=True)
        (x, *states), params = on(device, [x, *states], params)
        as_float = {k: p.float() if isinstance(p, torch.Tensor) else p for k, p in params.items()}
        states = [s if s is None else s.float() for s in states]
        torch.library.opcheck(op_of(ternary, form).tensor, (x.float().requires_grad_(), *states), dict(as_float, store_states=True))
    torch.library.opcheck(ops.loihi_lif.default, (floats(6, 5),), dict(dv=7, vth=3, surrogate="atan", surrogate_args=[2.0]))
    torch.library.opcheck(ops.loihi_lif.bias, (floats(6, 5),), dict(bias_mant=floats(5), bias_exp=-1))
    x, w = floats(5, 2, 4), floats(3, 4)
    torch.library.opcheck(ops.loihi_dense.default, (x, w))
    torch.library.opcheck(ops.loihi_sparse.default, (x, *(t.to(device) for t in csr(w.int().tolist())[:2]), w[w != 0].detach().requires_grad_()))
    torch.library.opcheck(ops.loihi_delay_dense.default, (x, w, torch.ones(3, 4, dtype=torch.int32, device=device)), dict(max_delay=2))
    torch.library.opcheck(ops.loihi_conv.default, (floats(3, 2, 4, 6, 5), floats(6, 2, 3, 3)), dict(groups=2, padding=[1], stride=[2]))
    torch.library.opcheck(ops.loihi_float_product.default, (x[0].detach().requires_grad_(), w, 0, 1, 24))
    torch.library.opcheck(ops.loihi_fake_quantize.default, (torch.randn(3, 4, device=device, requires_grad=True),))


PROGRAM = """
import sys, torch
torch.ops.load_library(sys.argv[1])
ops = torch.ops.spikeforge
ops.record_kernels(["sm_80", "sm_90", "sm_100", "sm_120"])
spikes, u, v = ops.loihi_lif(torch.ones(3, 8, requires_grad=True), dv=100, vth=3)
(spikes.sum() + v.sum()).backward()
print(ops.write_kernel_pack(sys.argv[2]))
"""


def test_the_kernels_of_training_compile_for_every_architecture(tmp_path):
    """Compiles the forward and the backward kernel without a GPU."""
    environment = {**os.environ, "SPIKEFORGE_CACHE_DIR": "off"}
    assert int(output_of(PROGRAM, library_path(), tmp_path / "pack", env=environment)) == 2 * 4
