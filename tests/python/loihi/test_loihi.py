"""Loihi's integer neurons and connections have the bits of their equations in Python integers."""

import random

import pytest
import torch
from cases import all_equal, saved_and_loaded
from loops import refused

ops = torch.ops.spikeforge
M = 2**23
FORMS = ["plain", "reset", "refractory"]
KINDS = [(ternary, form) for ternary in (False, True) for form in FORMS]
every_kind = pytest.mark.parametrize("ternary, form", KINDS, ids=lambda v: v if isinstance(v, str) else ("lif", "ternary")[v])


# --- the equations, one neuron at a time -----------------------------------------------------------------------------


def rtz(x, bits):
    """Returns x / 2**bits, rounded toward zero."""
    return x // 2**bits if x >= 0 else -(-x // 2**bits)


def int32(x):
    return (x + 2**31) % 2**32 - 2**31


def one_neuron(xs, u, v, counter, p, ternary, form):
    """Returns spikes and states of all steps; p contains Python integers."""
    rows = []
    for x in xs:
        if form == "reset":
            counter = (counter + 1) % p["reset_interval"]
            if counter == p["reset_offset"] % p["reset_interval"]:
                u = v = 0
        c = int32(rtz(u * (4096 - (p["du"] + 1)), 12) + int32(x * 64))
        if c > M:
            c -= 2 * M
        elif c <= -M:
            c += 2 * M
        u = c
        bias = p["bias_mant"] * 2 ** p["bias_exp"] if p["bias_exp"] >= 0 else p["bias_mant"] // 2 ** -p["bias_exp"]
        h = max(-(M - 1), min(M - 1, int32(int32(rtz(v * (4096 - p["dv"]), 12) + u) + bias)))
        if form == "refractory" and counter > 0:
            h = v
        if ternary:
            s = (h > p["vth_hi"] * 64) - (h < p["vth_lo"] * 64)
        else:
            s = int(h > p["vth"] * 64)
        v = 0 if s else h
        if form == "refractory":
            counter = p["refractory_period"] if s else max(counter - 1, 0)
        rows.append((s, u, v, counter))
    return rows


PER_NEURON = ["du", "dv", "bias_mant", "bias_exp", "vth", "vth_hi", "vth_lo"]


def names(ternary, form):
    number = {"plain": [], "reset": ["reset_interval", "reset_offset"], "refractory": ["refractory_period"]}[form]
    return PER_NEURON[:4] + (["vth_hi", "vth_lo"] if ternary else ["vth"]) + number


def op_of(ternary, form):
    return getattr(ops, ("loihi_ternary_lif" if ternary else "loihi_lif") + ("" if form == "plain" else f"_{form}"))


def expected(x, states, params, ternary, form):
    """The expected results with store_states: a tensor for spikes, u, v and the counter."""
    shape = x.shape[1:]
    flat = x.flatten(1)
    states = [torch.zeros(shape, dtype=torch.int32) if s is None else s for s in states]
    states += [torch.zeros(shape, dtype=torch.int32)] * (3 - len(states))
    per_neuron = {k: torch.as_tensor(p).expand(shape).flatten().tolist() for k, p in params.items()}
    columns = []
    for n in range(flat.shape[1]):
        p = {k: values[n] for k, values in per_neuron.items()}
        columns.append(one_neuron(flat[:, n].tolist(), *(s.flatten()[n].item() for s in states), p, ternary, form))
    results = torch.tensor(columns, dtype=torch.int32).reshape(flat.shape[1], len(x), 4).permute(2, 1, 0)
    return list(results.reshape(4, *x.shape)[: 3 if form == "plain" else 4])


# Values at the limits of each range, and between them.
EDGES = {
    "du": [-1, 0, 1, 2047, 4094, 4095],
    "dv": [0, 1, 2048, 4095, 4096],
    "bias_mant": [-4096, -1, 0, 1, 4095],
    "bias_exp": [-31, -12, -3, -1, 0, 7],
    "vth": [0, 1, 8, 2000, 131072],
    "vth_hi": [-5, 0, 1, 2000, 131072],
    "vth_lo": [-131072, -2000, -5],
    "reset_interval": [1, 2, 7],
    "reset_offset": [-3, 0, 1, 9],
    "refractory_period": [0, 1, 3],
}
LIMITS = {"du": (-1, 4095), "dv": (0, 4096), "bias_mant": (-4096, 4095), "bias_exp": (-31, 7), "vth": (0, 131072),
          "vth_hi": (-131072, 131072), "vth_lo": (-131072, 131072)}


def draw(name, rng):
    if rng.random() < 0.6 or name not in ("du", "dv", "bias_mant", "vth"):
        return rng.choice(EDGES[name])
    low, high = LIMITS[name]
    return rng.randint(low, 3000 if name == "vth" else high)


def draw_int32(shape, rng, values):
    count = torch.Size(shape).numel()
    return torch.tensor([values() for _ in range(count)], dtype=torch.int32).reshape(shape)


def draw_x(shape, rng):
    """Returns 16-bit inputs; some are large in many steps, so that u wraps around and v saturates."""
    kind = rng.choice(["small", "large", "edges"])
    value = {
        "small": lambda: rng.randint(-40, 60),
        "large": lambda: rng.randint(-(2**15), 2**15 - 1),
        "edges": lambda: rng.choice([-(2**15), 2**15 - 1, 2**15 - 1, 0, 1]),
    }[kind]
    return draw_int32(shape, rng, value)


def draw_case(ternary, form, rng, shape, steps, tensors):
    wide = lambda: rng.choice([rng.randint(-M, M), -M, M, M - 1, 1 - M, 0, 2047, -2047])
    params = {}
    for name in names(ternary, form):
        params[name] = draw(name, rng)
        if tensors and name in PER_NEURON:
            size = rng.choice([(), (shape[0], *(1 for _ in shape[1:])), shape])
            params[name] = draw_int32(size, rng, lambda: draw(name, rng))
    states = [draw_int32(shape, rng, wide) if rng.random() < 0.8 else None for _ in range(2)]
    if form != "plain":
        most = params["reset_interval"] - 1 if form == "reset" else 3
        states.append(draw_int32(shape, rng, lambda: rng.randint(0, most)) if rng.random() < 0.7 else None)
    return draw_x((steps, *shape), rng), states, params


def on(device, *lists):
    move = lambda t: t.to(device) if isinstance(t, torch.Tensor) else t
    return [{k: move(t) for k, t in x.items()} if isinstance(x, dict) else [move(t) for t in x] for x in lists]


@pytest.mark.parametrize("tensors", [False, True], ids=["numbers", "tensors"])
@every_kind
def test_a_neuron_has_the_bits_of_its_equations(ternary, form, tensors, device, seeded):
    rng = random.Random(seeded)
    op = op_of(ternary, form)
    saturated = wrapped = 0
    for case in range(40):
        x, states, params = draw_case(ternary, form, rng, rng.choice([(1,), (3, 5), (33,), (2, 3, 4)]), 24, tensors)
        want = expected(x, states, params, ternary, form)
        (x_, *states_), params_ = on(device, [x, *states], params)
        sequences = op(x_, *states_, **params_, store_states=True)
        last = op(x_, *states_, **params_)
        labels = ("spikes", "u", "v", "counter")[: len(want)]
        for label, got, got_last, wanted in zip(labels, sequences, last, want, strict=True):
            assert got.dtype == torch.int32
            assert torch.equal(got.cpu(), wanted), f"case {case}: {label}, {params}"
            assert torch.equal(got_last.cpu(), wanted if label == "spikes" else wanted[-1]), f"case {case}: last {label}"
        saturated += int((want[2].abs() == M - 1).sum())
        wrapped += int((want[1].diff(dim=0).abs() > M).sum())
    assert wrapped > 0, "the edges of u were reached"
    assert saturated > 0 or ternary, "the edges of v were reached, where a ternary neuron fires"


def test_the_edges_of_the_wrap_of_u_and_of_saturation(device):
    """du = -1 keeps u; x changes it by 64. +2^23 stays, -2^23 becomes +2^23, and one more wraps around."""
    u = torch.tensor([M - 64, M - 64, 64 - M, 64 - M, M - 65, 65 - M], dtype=torch.int32)
    x = torch.tensor([[1, 2, -1, -2, 1, -1]], dtype=torch.int32)
    spikes, u, v = ops.loihi_lif(x.to(device), u.to(device), du=-1, dv=4095, vth=131071)
    assert u.tolist() == [M, 64 - M, M, M - 64, M - 1, 1 - M]
    # 64 * 131071 is M - 64, the largest threshold of 17 bits; a threshold of 64 * 2^17 is above every v.
    assert v.tolist() == [0, 64 - M, 0, M - 64, 0, 1 - M] and spikes.tolist() == [[1, 0, 1, 0, 1, 0]]


@every_kind
def test_an_input_wider_than_16_bits_is_int32_arithmetic(ternary, form, device, seeded):
    rng = random.Random(seeded)
    x, states, params = draw_case(ternary, form, rng, (40,), 12, tensors=False)
    x = draw_int32(x.shape, rng, lambda: rng.randint(-(2**31), 2**31 - 1))
    (x_, *states_), params_ = on(device, [x, *states], params)
    results = op_of(ternary, form)(x_, *states_, **params_, store_states=True)
    assert all_equal([t.cpu() for t in results], expected(x, states, params, ternary, form))


@every_kind
def test_chunks_are_one_run(ternary, form, device, seeded):
    rng = random.Random(seeded)
    op = op_of(ternary, form)
    for _ in range(4):
        x, states, params = draw_case(ternary, form, rng, (3, 7), 37, tensors=True)
        (x, *states), params = on(device, [x, *states], params)
        whole = op(x, *states, **params)
        spikes = []
        for chunk in x.split([1, 0, 5, 16, 1, 14]):
            part, *states = op(chunk, *states, **params)
            spikes.append(part)
        assert all_equal(whole, [torch.cat(spikes), *states])


@pytest.mark.parametrize("shape", [(2051,), (1 << 17,), (7, 300)])
@every_kind
def test_every_schedule_has_the_same_bits(ternary, form, shape, device, seeded):
    """Neurons are repeated: many of them give the results of few, for any division of the loop."""
    rng = random.Random(seeded)
    x, states, params = draw_case(ternary, form, rng, (16,), 40, tensors=False)
    want = expected(x, states, params, ternary, form)
    count = torch.Size(shape).numel()
    spread = lambda t: t[..., torch.arange(count) % 16].reshape(*t.shape[:-1], *shape).contiguous()
    arguments = [spread(t).to(device) if t is not None else None for t in (x, *states)]
    torch.set_num_threads(2)
    results = op_of(ternary, form)(*arguments, **params, store_states=True)
    assert all_equal([t.cpu() for t in results], list(map(spread, want)))


def test_any_layout_of_x_is_read(device):
    x = torch.randint(-100, 200, (9, 4, 6, 8), dtype=torch.int32, device=device)
    bias = torch.randint(-100, 100, (6, 1), dtype=torch.int32, device=device)
    want = ops.loihi_lif(x, dv=100, bias_mant=bias)
    for other in (x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), x.repeat_interleave(2, -1)[..., ::2],
                  torch.stack([x, x], 1)[:, 0]):
        assert all_equal(ops.loihi_lif(other, dv=100, bias_mant=bias), want)
    constant = x[:1].expand(9, -1, -1, -1)
    assert all_equal(ops.loihi_lif(constant, dv=7), ops.loihi_lif(constant.contiguous(), dv=7))


@every_kind
def test_no_steps_and_no_neurons(ternary, form, device):
    op = op_of(ternary, form)
    n_states = 2 if form == "plain" else 3
    states = [torch.randint(0, 9, (5,), dtype=torch.int32, device=device) for _ in range(n_states)]
    spikes, *last = op(torch.zeros(0, 5, dtype=torch.int32, device=device), *states)
    assert spikes.shape == (0, 5) and all(torch.equal(a, b) and a is not b for a, b in zip(last, states))
    spikes, *sequences = op(torch.zeros(0, 5, dtype=torch.int32, device=device), store_states=True)
    assert all(t.shape == (0, 5) for t in (spikes, *sequences))
    spikes, *last = op(torch.zeros(4, 0, 3, dtype=torch.int32, device=device))
    assert spikes.shape == (4, 0, 3) and all(t.shape == (0, 3) for t in last)


@pytest.mark.slow
def test_more_than_2_31_elements(cuda):
    neurons, steps = 2**26 + 1, 33
    if torch.cuda.mem_get_info()[0] < 25e9:
        pytest.skip("needs 25 GB")
    seen = [0, 1, 2**25, 2**26 - 1, 2**26]
    x = torch.randint(-50, 100, (steps, neurons), dtype=torch.int32, device=cuda)
    spikes, u, v = ops.loihi_lif(x, dv=100, vth=200)
    few = ops.loihi_lif(x[:, seen].contiguous(), dv=100, vth=200)
    assert all_equal((spikes[:, seen], u[seen], v[seen]), few)


# --- connections -------------------------------------------------------------------------------------------------------


def shifted(x, exponent):
    return int32(x << exponent) if exponent > 0 else x >> -exponent


def dense_by_hand(x, weight, delays, slots, weight_exp, bits):
    """Uses Lava's order: sends the first slot, then fills the buffer. x [T][in]; returns [T][out] and the buffer."""
    buffer = [[0] * len(weight) for _ in range(slots)]
    sent = []
    for row in x:
        message = row if bits > 0 else [int(m != 0) for m in row]
        sent.append(buffer.pop(0))
        buffer.append([0] * len(weight))
        for o, w in enumerate(weight):
            for d in range(slots):
                total = int32(sum(a * b for a, b, delay in zip(w, message, delays[o]) if delay == d))
                buffer[d][o] = int32(buffer[d][o] + shifted(total, weight_exp))
    return sent, buffer


def messages(rng, steps, size, bits):
    if bits == 0:
        return [[rng.choice([0, 0, 0, 1, -1, 5]) for _ in range(size)] for _ in range(steps)]
    return [[rng.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for _ in range(size)] for _ in range(steps)]


def csr(weight):
    crow, col, values = [0], [], []
    for row in weight:
        for i, w in enumerate(row):
            if w:
                col.append(i), values.append(w)
        crow.append(len(col))
    return torch.tensor(crow), torch.tensor(col, dtype=torch.int64), torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("bits", [0, 1, 8, 24, 32])
@pytest.mark.parametrize("weight_exp", [-8, -1, 0, 3, 7])
def test_dense_and_sparse_have_the_bits_of_their_equations(weight_exp, bits, device, seeded):
    rng = random.Random(seeded)
    for n_in, n_out, steps in ((1, 1, 3), (7, 5, 4), (33, 20, 17)):
        weight = [[rng.choice([-256, 254, 0, 0, 2, -2]) if rng.random() < 0.7 else rng.randint(-128, 127) * 2
                   for _ in range(n_in)] for _ in range(n_out)]
        x = messages(rng, steps, n_in, bits)
        tensors = [torch.tensor(t, dtype=torch.int32, device=device) for t in (x, weight)]
        sparse = [t.to(device) for t in csr(weight)]
        options = dict(weight_exp=weight_exp, num_message_bits=bits)
        for delay in (1, 3):
            want = dense_by_hand(x, weight, [[delay - 1] * n_in] * n_out, delay, **dict(weight_exp=weight_exp, bits=bits))
            for y, buffer in (ops.loihi_dense(*tensors, delay=delay, **options),
                              ops.loihi_sparse(tensors[0], *sparse, delay=delay, **options)):
                assert y.tolist() == want[0] and buffer.tolist() == want[1]
                assert y.dtype == buffer.dtype == torch.int32
        y, buffer = ops.loihi_dense(*tensors, delay=0, **options)
        assert y[:-1].tolist() == ops.loihi_dense(*tensors, **options)[0][1:].tolist() and buffer.shape == (0, n_out)


@pytest.mark.parametrize("bits", [0, 16])
def test_delays_of_each_synapse(bits, device, seeded):
    rng = random.Random(seeded)
    for max_delay, weight_exp in ((0, 0), (1, 2), (5, -2), (5, 0)):
        n_in, n_out, steps = 6, 4, 13
        weight = [[rng.randint(-128, 127) * 2 for _ in range(n_in)] for _ in range(n_out)]
        delays = [[rng.randint(0, max_delay) for _ in range(n_in)] for _ in range(n_out)]
        x = messages(rng, steps, n_in, bits)
        tensors = [torch.tensor(t, dtype=torch.int32, device=device) for t in (x, weight, delays)]
        y, buffer = ops.loihi_delay_dense(*tensors, max_delay=max_delay, weight_exp=weight_exp, num_message_bits=bits)
        want = dense_by_hand(x, weight, delays, max_delay + 1, weight_exp, bits)
        assert y.tolist() == want[0] and buffer.tolist() == want[1]


def test_connections_in_chunks_and_batches_are_one_run(device):
    x = torch.randint(-3, 4, (23, 2, 5, 9), dtype=torch.int32, device=device)
    weight = ops.loihi_prepare_weights(torch.randint(-300, 300, (6, 9), device=device))
    delays = torch.randint(0, 4, (6, 9), dtype=torch.int32, device=device)
    sparse = [t.to(device) for t in csr(weight.tolist())]
    runs = [lambda x, b, delay=delay: ops.loihi_dense(x, weight, b, delay=delay, num_message_bits=3) for delay in (0, 1, 9)]
    runs += [lambda x, b: ops.loihi_sparse(x, *sparse, b, delay=2, num_message_bits=3),
             lambda x, b: ops.loihi_delay_dense(x, weight, delays, b, max_delay=3, num_message_bits=3, weight_exp=-1)]
    for run in runs:
        whole, last = run(x, None)
        assert whole.shape == (23, 2, 5, 6)
        buffer, parts = None, []
        for chunk in x.split([1, 0, 7, 2, 13]):
            part, buffer = run(chunk, buffer)
            parts.append(part)
        assert torch.equal(torch.cat(parts), whole) and torch.equal(buffer, last)
        sample, sample_last = run(x[:, 1, 3], None)
        assert torch.equal(sample, whole[:, 1, 3]) and torch.equal(sample_last, last[:, 1, 3])


def test_sums_are_exact_modulo_2_32_for_many_messages(device):
    """There are more messages than one product in double precision sums exactly, and sums exceed int32."""
    x = torch.randint(-(2**31), 2**31, (9, 20000)).to(torch.int32)
    weight = ops.loihi_prepare_weights(torch.randint(-256, 256, (3, 20000)))
    want = (x.long() @ weight.long().t()).to(torch.int32)
    sparse = [t.to(device) for t in csr(weight.tolist())]
    for count in (9, 2):  # several rows together, and one by one
        args = x[:count].to(device)
        y, _ = ops.loihi_dense(args, weight.to(device), delay=0, num_message_bits=32)
        assert torch.equal(y.cpu(), want[:count])
        y, _ = ops.loihi_sparse(args, *sparse, delay=0, num_message_bits=32)
        assert torch.equal(y.cpu(), want[:count])


def test_connections_without_steps_inputs_or_outputs(device):
    int32s = dict(dtype=torch.int32, device=device)
    for steps, n_in, n_out in ((0, 3, 2), (4, 0, 2), (4, 3, 0)):
        x, weight = torch.ones(steps, n_in, **int32s), torch.ones(n_out, n_in, **int32s)
        sparse = [t.to(device) for t in csr(weight.tolist())]
        for y, buffer in (ops.loihi_dense(x, weight), ops.loihi_sparse(x, *sparse),
                          ops.loihi_delay_dense(x, weight, weight - 1, max_delay=0)):
            assert y.shape == (steps, n_out) and buffer.shape == (1, n_out)
            assert y.eq(0).sum() == y.numel() - (max(steps - 1, 0) * n_out if n_in else 0)


# --- weights -----------------------------------------------------------------------------------------------------------


def prepared_by_hand(weights, bits, mode):
    mode = mode or ("excitatory" if min(weights) >= 0 else "inhibitory" if max(weights) <= 0 else "mixed")
    w = [int(value) for value in weights]  # rounds toward zero
    low, high = {"excitatory": (0, 255), "inhibitory": (-255, 0), "mixed": (-256, 255)}[mode]
    w = [max(low, min(high, value)) for value in w]
    step = 2 ** (8 - bits + (mode == "mixed"))
    return [-(-value // step * step) if mode == "inhibitory" else value // step * step for value in w]


@pytest.mark.parametrize("mode", [None, "mixed", "excitatory", "inhibitory"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_weights_are_prepared_as_the_chip_holds_them(bits, mode, device, seeded):
    rng = random.Random(seeded)
    for low, high in ((-300, 300), (0, 300), (-300, 0), (-0.9, 300), (-300, 0.9), (-1e9, 1e9)):
        weights = [rng.uniform(low, high) for _ in range(200)] + [low, high, 0.0]
        weights = torch.tensor(weights).tolist()
        got = ops.loihi_prepare_weights(torch.tensor(weights, device=device), num_weight_bits=bits, sign_mode=mode)
        assert got.dtype == torch.int32 and got.tolist() == prepared_by_hand(weights, bits, mode)
        again = ops.loihi_prepare_weights(got, num_weight_bits=bits, sign_mode=mode)
        assert mode is None or torch.equal(again, got)


# --- floating point ----------------------------------------------------------------------------------------------------


def test_a_floating_neuron_at_its_threshold_does_not_fire(device):
    """The second case is Lava's table of a neuron that is driven by its bias."""
    for x, bias, vth, fires in (([[1.0, 1.0000001]], 0.0, 1.0, [1]), ([[0.0]] * 10, 1.0, 4.0, [4, 9])):
        params = [torch.tensor(p) for p in (0.0, 0.0, bias, vth)]
        (spikes,), _ = ops.run(ops.lava_neuron("lif"), [torch.tensor(x, device=device)], [], params)
        assert spikes.flatten().nonzero().flatten().tolist() == fires


# --- errors ------------------------------------------------------------------------------------------------------------

X = torch.zeros(3, 4, dtype=torch.int32)
W = torch.zeros(2, 4, dtype=torch.int32)
CSR = csr([[1, 2, 3, 4], [0, 0, 0, 5]])


@pytest.mark.parametrize("name", LIMITS)
def test_a_parameter_out_of_its_range_is_refused_by_name(name):
    op = ops.loihi_ternary_lif if name in ("vth_hi", "vth_lo") else ops.loihi_lif
    low, high = LIMITS[name]
    for value in (low - 1, high + 1, 10**6):
        words = rf"{op.__name__.split('.')[0]}: {name} must be in \[{low}, {high}\], but "
        refused(ValueError, words + f"is {value}", lambda: op(X, **{name: value}))
        with pytest.raises(ValueError, match=words + f"has values from 0 to {value}" if value > 0 else words):
            op(X, **{name: torch.tensor([0, 0, 0, value], dtype=torch.int32)})
    for value in (low, high):
        legal = {"vth_lo": {"vth_hi": 131072}, "vth_hi": {"vth_lo": -131072}}.get(name, {}) | {name: value}
        op(X, **legal)
        op(X, **{k: torch.tensor(number, dtype=torch.int32) for k, number in legal.items()})


@pytest.mark.parametrize("call, error, words", [
    (lambda: ops.loihi_lif(X.long()), TypeError, r"loihi_lif: x must be int32, but is Long; pass x.to\(torch.int32\)"),
    (lambda: ops.loihi_lif(torch.tensor(1, dtype=torch.int32)), ValueError, "loihi_lif: x must have shape"),
    (lambda: ops.loihi_lif(X, torch.zeros(3, dtype=torch.int32)), ValueError, r"loihi_lif: u must have shape \[4\]"),
    (lambda: ops.loihi_lif(X, None, torch.zeros(4)), TypeError, "loihi_lif: v must be Int for a Int x, but is Float"),
    (lambda: ops.loihi_lif(X, torch.full((4,), 2**23 + 1, dtype=torch.int32)), ValueError, r"loihi_lif: u must be in \[-8388608, 8388608\]"),
    (lambda: ops.loihi_lif(X, bias_mant=torch.zeros(3, dtype=torch.int32)), ValueError, "loihi_lif: bias_mant must broadcast"),
    (lambda: ops.loihi_lif_reset(X, reset_interval=0), ValueError, r"loihi_lif_reset: reset_interval must be in \[1, "),
    (lambda: ops.loihi_lif_reset(X, None, None, -torch.ones_like(X[0])), ValueError, r"loihi_lif_reset: phase must be in \[0, "),
    (lambda: ops.loihi_lif_refractory(X, refractory_period=-1), ValueError, "loihi_lif_refractory: refractory_period must be in"),
    (lambda: ops.loihi_ternary_lif(X, vth_hi=1, vth_lo=2), ValueError, "loihi_ternary_lif: vth_lo must not be above vth_hi, but is 2, and vth_hi is 1"),
    (lambda: ops.loihi_forward(X, [None] * 2, [None] * 5, [0] * 5, ternary=False, form="odd", store_states=False), ValueError, "form must be plain, reset or refractory, but is odd"),
    (lambda: ops.loihi_dense(X, W + 256), ValueError, r"loihi_dense: weight must be in \[-256, 255\], but has values from 256 to 256"),
    (lambda: ops.loihi_dense(X, W, weight_exp=8), ValueError, r"loihi_dense: weight_exp must be in \[-8, 7\], but is 8"),
    (lambda: ops.loihi_float_product(X.float(), W.float(), 0, -2**63, 32), ValueError, r"loihi_float_product: weight_exp must be in \[-8, 7\], but is -9223372036854775808"),
    (lambda: ops.loihi_float_product(X.float(), W.float(), 0, 0, -2**63), ValueError, r"loihi_float_product: bits must be in \[1, 32\], but is -9223372036854775808"),
    (lambda: ops.loihi_dense(X, W, num_message_bits=33), ValueError, r"loihi_dense: num_message_bits must be in \[0, 32\]"),
    (lambda: ops.loihi_dense(X, W, delay=65), ValueError, r"loihi_dense: delay must be in \[0, 64\], but is 65"),
    (lambda: ops.loihi_dense(X, W.t()), ValueError, "loihi_dense: weight must have shape .*in = 4"),
    (lambda: ops.loihi_dense(X, W.float()), TypeError, "loihi_dense: weight must be Int, but is Float"),
    (lambda: ops.loihi_dense(X, W, torch.zeros(2, 2, dtype=torch.int32)), ValueError, r"loihi_dense: buffer must have shape \[1, 2\]"),
    (lambda: ops.loihi_dense(X[0], W), ValueError, r"loihi_dense: x must have shape \[T, \*batch, in\]"),
    (lambda: ops.loihi_delay_dense(X, W, W, max_delay=64), ValueError, r"loihi_delay_dense: max_delay must be in \[0, 63\]"),
    (lambda: ops.loihi_delay_dense(X, W, W + 3, max_delay=2), ValueError, r"loihi_delay_dense: delays must be in \[0, 2\], but has values from 3 to 3"),
    (lambda: ops.loihi_sparse(X, CSR[0], CSR[1] + 1, CSR[2]), ValueError, r"loihi_sparse: col_indices must be from 0 to in - 1 = 3, but col_indices\[\d\], in row \d, is 4"),
    (lambda: ops.loihi_sparse(X, CSR[0] + 1, *CSR[1:]), ValueError, "loihi_sparse: crow_indices must begin with 0, but begins with 1"),
    (lambda: ops.loihi_sparse(X, CSR[0], CSR[1], CSR[2] * 100), ValueError, "loihi_sparse: values must be in"),
    (lambda: ops.loihi_product(X, W[:, :1], 0), ValueError, r"loihi_product: weight must have shape \[out, in\] with in = 4, but has \[2, 1\]"),
    (lambda: ops.loihi_product(X, W[0], 0), ValueError, r"loihi_product: weight must have shape \[out, in\]"),
    (lambda: ops.loihi_product(X.flatten(), W, 0), ValueError, r"loihi_product: x must have shape \[rows, in\]"),
    (lambda: ops.loihi_product(X, W.long(), 0), TypeError, "loihi_product: weight must be Int, but is Long"),
    (lambda: ops.loihi_product(X.float(), W, 0), TypeError, "loihi_product: x must be Int, but is Float"),
    (lambda: ops.loihi_sparse_product(X[:, :1], *CSR, 0), ValueError, "loihi_sparse: col_indices must be from 0 to in - 1 = 0"),
    (lambda: ops.loihi_sparse_product(X, CSR[0][:0], *CSR[1:], 0), ValueError, r"loihi_sparse_product: crow_indices must have shape \[out \+ 1\], but has \[0\]"),
    (lambda: ops.loihi_sparse_product(X, *CSR[:2], CSR[2][:1], 0), ValueError, r"loihi_sparse_product: col_indices and values must have the same shape \[nnz\]"),
    (lambda: ops.loihi_sparse_product(X, CSR[0].int(), *CSR[1:], 0), TypeError, "loihi_sparse_product: crow_indices must be Long, but is Int"),
    (lambda: ops.loihi_prepare_weights(W, num_weight_bits=9), ValueError, r"loihi_prepare_weights: num_weight_bits must be in \[1, 8\], but is 9"),
    (lambda: ops.loihi_prepare_weights(W, sign_mode="odd"), ValueError, "sign_mode must be mixed, excitatory or inhibitory"),
    (lambda: ops.loihi_prepare_weights(W.float() + float("nan")), ValueError, "loihi_prepare_weights: weight contains NaN"),
    (lambda: ops.loihi_quantize(W), TypeError, "loihi_quantize: weight must be floating point"),
    (lambda: ops.loihi_quantize(W.float(), tau=0.5), ValueError, "loihi_quantize: tau must be finite and >= 1, but is 0.5"),
    (lambda: ops.loihi_quantize(W.float() + 1, v_threshold=1e9), ValueError, r"loihi_quantize: no weight_exp in \[-8, 7\] fits"),
    (lambda: ops.lava_neuron("odd"), ValueError, "lava_neuron: name must be lif, ternary_lif, .* but is odd"),
    (lambda: ops.loihi_neuron("odd"), ValueError, "loihi_neuron: name must be lif, lif_reset, .* but is odd"),
    (lambda: ops.loihi_neuron("rf", surrogate="none"), ValueError, "loihi_neuron: surrogate none is for custom neurons"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_errors(call, error, words):
    refused(error, words, call)


# --- compilers ---------------------------------------------------------------------------------------------------------


@pytest.mark.covering(1)
@every_kind
def test_opcheck_of_the_neurons(ternary, form, device, seeded):
    rng = random.Random(seeded)
    op = op_of(ternary, form)
    x, states, params = draw_case(ternary, form, rng, (3, 5), 6, tensors=True)
    (x, *states), params = on(device, [x, *states], params)
    assert all(torch.Tag.pt2_compliant_tag in overload.tags for overload in (op.default, op.bias, op.tensor))
    torch.library.opcheck(op.tensor, (x, *states), dict(params, store_states=True))
    numbers = {k: EDGES[k][1] for k in params}
    torch.library.opcheck(op.default, (x,), numbers)
    torch.library.opcheck(op.bias, (x, *states), dict(numbers, bias_mant=torch.ones_like(x[0])))
    names_ = names(ternary, form)
    tensors = [p if isinstance(p, torch.Tensor) else None for p in params.values()]
    torch.library.opcheck(ops.loihi_forward.default, (x, states, tensors, [EDGES[k][1] for k in names_]),
                          dict(ternary=ternary, form=form, store_states=False))


def test_opcheck_of_the_connections(device):
    x = torch.randint(0, 2, (5, 2, 4), dtype=torch.int32, device=device)
    w = torch.randint(-9, 9, (3, 4), dtype=torch.int32, device=device)
    delays = torch.randint(0, 3, (3, 4), dtype=torch.int32, device=device)
    sparse = [t.to(device) for t in csr(w.tolist())]
    buffer = torch.ones(2, 2, 3, dtype=torch.int32, device=device)
    torch.library.opcheck(ops.loihi_dense.default, (x, w))
    torch.library.opcheck(ops.loihi_dense.default, (x, w, buffer), dict(delay=2, weight_exp=-1, num_message_bits=4))
    torch.library.opcheck(ops.loihi_dense.default, (x, w), dict(delay=0))
    torch.library.opcheck(ops.loihi_sparse.default, (x, *sparse, buffer), dict(delay=2))
    torch.library.opcheck(ops.loihi_delay_dense.default, (x, w, delays), dict(max_delay=2))
    torch.library.opcheck(ops.loihi_product.default, (x[0], w, 0))
    torch.library.opcheck(ops.loihi_sparse_product.default, (x[0], *sparse, 3))
    torch.library.opcheck(ops.loihi_prepare_weights.default, (torch.randn(3, 4, device=device, requires_grad=True) * 100,))
    torch.library.opcheck(ops.loihi_prepare_weights.default, (w,), dict(num_weight_bits=4, sign_mode="mixed"))


class Chip(torch.nn.Module):
    """Two layers, with all states as inputs and outputs."""

    def __init__(self):
        super().__init__()
        for i, size in enumerate(((6, 9), (4, 6))):
            self.register_buffer(f"w{i}", ops.loihi_prepare_weights(torch.randint(-200, 256, size)))

    def forward(self, x, arriving, u, v, wait):
        x, arriving = torch.ops.spikeforge.loihi_dense(x, self.w0, arriving, num_message_bits=4)
        x, u, v, wait = torch.ops.spikeforge.loihi_lif_refractory(x, u, v, wait, du=2047, dv=500, vth=60)
        x, _ = torch.ops.spikeforge.loihi_dense(x, self.w1, delay=0, weight_exp=1)
        x, _, _ = torch.ops.spikeforge.loihi_lif(x, du=torch.tensor(4095, dtype=torch.int32), vth=None)
        return x, arriving, u, v, wait


def chip_arguments(device, batch=3):
    int32s = dict(dtype=torch.int32, device=device)
    states = [torch.randint(0, 500, (batch, 6), **int32s) for _ in range(2)]
    return (torch.randint(0, 9, (11, batch, 9), **int32s), torch.ones(1, batch, 6, **int32s), *states,
            torch.zeros(batch, 6, **int32s))


def test_compile_export_and_torchscript_keep_the_operators(device):
    chip = Chip().to(device)
    arguments = chip_arguments(device)
    want = chip(*arguments)
    assert 0 < want[0].float().mean() < 1

    batch = torch.export.Dim("batch", min=2, max=1024)
    dynamic = ({1: batch}, {1: batch}, {0: batch}, {0: batch}, {0: batch})
    program = torch.export.export(chip, arguments, dynamic_shapes=dynamic)
    loaded = saved_and_loaded(program, torch.export).module()
    assert any("loihi" in str(node.target) for node in program.graph.nodes)
    for run in (torch.compile(chip, fullgraph=True, backend="aot_eager"), loaded, torch.jit.script(chip)):
        assert all_equal(run(*arguments), want)
    more = chip_arguments(device, batch=7)
    assert all_equal(loaded(*more), chip(*more))


def test_a_cuda_graph_continues_from_the_last_replay(cuda):
    """The phase of a periodic reset is a tensor, so each replay has its own phase."""
    x = torch.randint(0, 40, (5, 70), dtype=torch.int32, device=cuda)
    states = [torch.zeros(70, dtype=torch.int32, device=cuda) for _ in range(3)]
    run = lambda x, states: ops.loihi_lif_reset(x, *states, vth=50, reset_interval=7, reset_offset=3)
    run(x, states)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        spikes, *last = run(x, states)
        for state, new in zip(states, last):
            state.copy_(new)
    for state in states:
        state.zero_()
    seen = []
    for _ in range(4):
        graph.replay()
        seen.append(spikes.clone())
    want, *_ = run(x.repeat(4, 1), [None] * 3)
    assert torch.equal(torch.cat(seen), want)


def test_calls_run_on_the_current_stream(cuda):
    x = torch.randint(0, 2, (64, 128, 512), dtype=torch.int32, device=cuda)
    w = ops.loihi_prepare_weights(torch.randint(-300, 300, (512, 512), device=cuda))
    run = lambda x: ops.loihi_lif(ops.loihi_dense(x, w)[0], vth=300)
    want = run(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        got = run(torch.zeros_like(x).copy_(x))
    torch.cuda.synchronize()
    assert all_equal(got, want)


# --- conversion from floating point to fixed point -----------------------------------------------------------------------


@pytest.mark.parametrize("decay_input", [False, True])
@pytest.mark.parametrize("bits", [2, 5, 8])
def test_a_quantised_layer_is_near_the_float_one_by_its_errors(bits, decay_input):
    weight, bias = torch.randn(20, 30, dtype=torch.float64) / 5, torch.randn(20, dtype=torch.float64) / 10
    tau, threshold = 3.0, 0.7
    w, mant, bias_exp, weight_exp, dv, vth, scale, *errors = ops.loihi_quantize(
        weight, bias, tau=tau, decay_input=decay_input, v_threshold=threshold, num_weight_bits=bits)
    assert torch.equal(ops.loihi_prepare_weights(w, num_weight_bits=bits, sign_mode="mixed"), w)
    gain = 1 / tau if decay_input else 1.0
    largest = gain * weight.abs().max()
    near = [
        ((w.double() * 2.0**weight_exp / scale - gain * weight).abs().max() / largest).item(),
        ((mant.double() * 2.0**bias_exp / (64 * scale) - gain * bias).abs().max() / threshold).item(),
        abs(vth / scale - threshold) / threshold,
        abs(dv / 4096 - 1 / tau),
    ]
    assert errors == pytest.approx(near, rel=1e-9, abs=1e-15)
    # The error is at most half a step, or a whole step for a value that is clipped at the end of the range.
    step = 2.0 ** (8 - bits + 1) / (256 - 2.0 ** (8 - bits + 1))
    assert errors[0] <= step / 2 + 1e-12 and errors[1] < 1e-3 and errors[2] < 1e-3 and errors[3] <= 0.5 / 4096


@pytest.mark.parametrize("decay_input", [False, True])
def test_a_layer_that_fits_exactly_gives_the_same_spikes(decay_input):
    """With weights of seven bits and a power of two for tau, both have the same values, and no product is rounded."""
    weight = torch.randint(-127, 128, (12, 10)).double() / 64
    weight[0, 0] = 127 / 64
    x = torch.randint(0, 2, (1, 500, 10))
    w, mant, bias_exp, weight_exp, dv, vth, *_ = ops.loihi_quantize(weight, tau=2.0, decay_input=decay_input, v_threshold=1.0)
    arriving, _ = ops.loihi_dense(x.to(torch.int32), w, delay=0, weight_exp=weight_exp)
    spikes, _, _ = ops.loihi_lif(arriving, du=4095, dv=dv, bias_mant=mant, bias_exp=bias_exp, vth=vth)
    current = x.double() @ weight.t()
    want, _ = ops.lif(current, tau=2.0, decay_input=decay_input, v_threshold=1.0)
    ties = current == (2.0 if decay_input else 1.0)  # at the threshold, only the float neuron fires
    assert torch.equal(spikes.double()[~ties], want[~ties]) and 0.1 < want.mean() < 0.9
