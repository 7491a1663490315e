"""Compares products with delays with dense float64 matrices, one for each delay."""

import pytest
import torch
from cases import Calls
from events import (KINDS, TYPES, assert_close, both_orders, both_weights, contribution, from_lengths, matrix, ops,
                    random_entries, random_weights)
from loops import refused, with_threads
from test_event_jit import mixed


def sum_type(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def random_delays(m, kind, slots):
    if kind == "one":
        return torch.tensor([slots - 1], dtype=torch.int32)
    return torch.randint(min(slots, 256), (len(m.indices),), dtype=torch.uint8 if kind == "bytes" else torch.int32)


def of_each_delay(m, weights, delays, slots):
    """Returns dense matrices [slots, rows, cols], one for each delay."""
    values = weights.detach().cpu().double().expand(len(m.indices))
    return torch.stack([m.dense(torch.where(delays.cpu().long().expand(len(m.indices)) == d, values, 0.0)) if len(m.indices) else m.dense(values) for d in range(slots)])


def delivered(matrices, x, buffer, step, transpose, values):
    """Returns the buffer after the call. x contains entries, or, if values is None, their contributions."""
    result = list(buffer.detach().cpu().double() if values else buffer)
    x = contribution(x, values) if values else x
    for d, a in enumerate(matrices):
        slot = (step + d) % len(matrices)
        result[slot] = result[slot] + (x @ a if transpose else x @ a.T)
    return torch.stack(result)


def deliver(m, weights, x, delays, buffer, step, in_place=False, **options):
    op = ops.event_csrmv_delayed_ if in_place else ops.event_csrmv_delayed
    return op(weights, m.indices, m.indptr, x, delays, buffer, step, **m.size, **options)


def check(m, shared, dtype, entries, kind, transpose, values, batch, device, slots=5, step=12, **options):
    weights, delays = random_weights(m, shared, dtype), random_delays(m, kind, slots)
    x = random_entries((*batch, m.rows if transpose else m.cols), entries)
    before = torch.randn(slots, *batch, m.cols if transpose else m.rows, dtype=sum_type(dtype))
    expected = delivered(of_each_delay(m, weights, delays, slots), x, before, step, transpose, values)
    options |= dict(transpose=transpose, graded=values == "graded")
    for on in {"cpu", device.type}:
        buffer = before.to(device, copy=True)
        arguments = m.to(device), weights.to(device), x.to(device), delays.to(device), buffer, torch.tensor(step, device=on)
        after = deliver(*arguments, **options)
        assert after.dtype == before.dtype and torch.equal(buffer.cpu(), before)
        assert_close(after, expected, dtype if dtype == torch.float64 else torch.float32)
        assert deliver(*arguments, in_place=True, **options) is None
        assert_close(buffer, expected, dtype if dtype == torch.float64 else torch.float32)
        if options.get("deterministic") or device.type == "cpu":
            assert torch.equal(buffer, after)


@both_weights
@both_orders
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_matrix(kind, transpose, shared, device):
    m = matrix(kind)
    for values in ("event", "graded"):
        for delays in ("bytes", "words", "one"):
            check(m, shared, torch.float64, torch.bool if values == "event" else torch.float64, delays, transpose, values, (), device)
        check(m, shared, torch.float32, torch.float32, "bytes", transpose, values, (3,), device, deterministic=True)


@both_weights
@both_orders
def test_types_batches_and_steps(transpose, shared, device):
    m = matrix("ragged")
    for i, dtype in enumerate(TYPES):
        for entries in [torch.bool, *TYPES]:
            check(m, shared, dtype, entries, "words", transpose, "event" if entries == torch.bool else "graded", (2, 2), device, step=2**40 + i)
    for batch, slots, step in (((), 1, 0), ((0,), 4, 3), ((1,), 300, 299), ((70,), 2, 1)):
        for deterministic in (False, True):
            check(matrix("random"), shared, torch.float64, torch.float64, "bytes", transpose, "event", batch, device, slots, step, deterministic=deterministic)


@both_weights
@both_orders
def test_ell(transpose, shared, device):
    rows, width, cols, slots = 50, 13, 31, 4
    indices = torch.randint(cols, (rows, width), dtype=torch.int32)
    m = from_lengths(torch.full((rows,), width), cols)
    m.indices = indices.flatten()
    for delays in (torch.randint(slots, (rows, width), dtype=torch.uint8), torch.tensor(2, dtype=torch.int32)):
        weights = torch.randn((1,) if shared else (rows, width), dtype=torch.float64)
        x, before = random_entries((2, rows if transpose else cols), torch.float64), torch.randn(slots, 2, cols if transpose else rows, dtype=torch.float64)
        expected = delivered(of_each_delay(m, weights.flatten(), delays.flatten(), slots), x, before, 7, transpose, "graded")
        buffer, step = before.to(device, copy=True), torch.tensor(7)
        arguments = weights.to(device), indices.to(device), x.to(device), delays.to(device), buffer, step
        options = dict(cols=cols, transpose=transpose, graded=True)
        assert_close(ops.event_ellmv_delayed(*arguments, **options), expected)
        ops.event_ellmv_delayed_(*arguments, **options)
        assert_close(buffer, expected)


@both_weights
@pytest.mark.parametrize("slots, cols", [(6, 700), (300, 2300)], ids=["small ring", "ring beyond a cache"])
def test_any_number_of_threads_gives_the_same_bits(slots, cols, shared):
    """Threads own columns if those of each row ascend; otherwise one thread processes all connections."""
    for sort in (True, False):
        m = from_lengths(torch.randint(0, 300, (700,)), cols, sort=sort)
        weights, delays = random_weights(m, shared, torch.float32), random_delays(m, "words", slots)
        for transpose, entries in ((False, torch.bool), (True, torch.bool), (True, torch.float32)):
            x = random_entries(m.rows if transpose else m.cols, entries, 0.5)
            start = torch.randn(slots, m.cols if transpose else m.rows)
            options = dict(transpose=transpose, graded=entries == torch.float32)
            results = with_threads((1, 2, 3), lambda: deliver(m, weights, x, delays, start, torch.tensor(3), **options))
            assert all(torch.equal(results[0], result) for result in results)
            assert_close(results[0], delivered_one_by_one(m, weights, x, delays, start, 3, transpose))


def delivered_one_by_one(m, weights, x, delays, buffer, step, transpose):
    """Returns the float64 buffer after each connection was added to it."""
    rows, cols = m.row_of_connections(), m.indices.long()
    entries = contribution(x, "event" if x.dtype == torch.bool else "graded").double()
    sent = entries[rows if transpose else cols] * weights.double()
    slots = (step + delays.long()) % len(buffer)
    return buffer.double().index_put((slots, cols if transpose else rows), sent, accumulate=True)


@both_orders
def test_a_long_run_in_place_is_that_of_the_functional_form_and_of_dense_matrices(transpose, device):
    """Spikes arrive after the delay of their connection; on a GPU, the step is a tensor on the device."""
    m, slots, steps = matrix("unsorted"), 7, 200
    weights, delays = random_weights(m, False, torch.float64), random_delays(m, "bytes", slots)
    matrices = of_each_delay(m, weights, delays, slots)
    x = torch.stack([random_entries((m.rows if transpose else m.cols,), torch.bool, 0.05) for _ in range(steps)])
    out = m.cols if transpose else m.rows
    buffer, functional = (torch.zeros(slots, out, dtype=torch.float64, device=device) for _ in range(2))
    on, step = (m.to(device), weights.to(device)), torch.tensor(0, device=device)
    for t in range(steps):
        arguments = *on, x[t].to(device), delays.to(device)
        deliver(*arguments, buffer, step, in_place=True, transpose=transpose, deterministic=True)
        arrivals = ops.take_arrivals_(buffer, step)
        functional = deliver(*arguments, functional, step, transpose=transpose, deterministic=True)
        arrived, functional = ops.take_arrivals(functional, step)
        assert torch.equal(arrivals, arrived) and torch.equal(buffer, functional)
        assert buffer[t % slots].eq(0).all()
        sent = [(x[t - d].double() @ (a if transpose else a.T)) for d, a in enumerate(matrices) if d <= t]
        assert_close(arrivals, sum(sent))
        step += 1


@both_orders
def test_weights_of_entries_without_an_event_have_no_influence(transpose, device):
    m = matrix("random")
    x = random_entries(m.rows if transpose else m.cols, torch.float32, 0.4)
    inputs = m.row_of_connections() if transpose else m.indices.long()
    weights, delays, step = random_weights(m, False, torch.float32), random_delays(m, "bytes", 3), torch.tensor(1)
    buffer = torch.zeros(3, m.cols if transpose else m.rows)
    expected = delivered(of_each_delay(m, weights, delays, 3), x, buffer, 1, transpose, "graded")
    poisoned = torch.where((x > 0)[inputs], weights, torch.nan)
    for deterministic in (False, True):
        options = dict(transpose=transpose, graded=True, deterministic=deterministic)
        assert_close(deliver(m.to(device), poisoned.to(device), x.to(device), delays.to(device), buffer.to(device), step, **options), expected)
        nothing = deliver(m.to(device), torch.tensor([torch.nan], device=device), torch.zeros_like(x, device=device), delays.to(device), buffer.to(device), step, **options)
        assert nothing.eq(0).all()


# ---- gradients ----

def small(device, shared, transpose, batch=(), slots=3, entries=None):
    m = from_lengths(torch.randint(0, 6, (7,)), 9).to(device)
    weights = random_weights(m, shared, torch.float64, device).requires_grad_()
    shape = (*batch, m.rows if transpose else m.cols)
    x = (torch.rand(shape, dtype=torch.float64) + 0.1 if entries is None else random_entries(shape, torch.float64, 0.5)).to(device).requires_grad_()
    delays = random_delays(m, "words", slots).to(device)
    buffer = torch.randn(slots, *batch, m.cols if transpose else m.rows, dtype=torch.float64, device=device, requires_grad=True)
    return m, weights, x, delays, buffer


@both_weights
@both_orders
def test_gradcheck_over_several_steps(transpose, shared, device):
    """For graded events above 0, the straight-through gradient is exact."""
    for batch in ((), (2,)):
        m, weights, x, delays, buffer = small(device, shared, transpose, batch)

        def run(weights, x, buffer):
            step, arrivals = torch.tensor(4, device=device), []
            for _ in range(4):
                buffer = deliver(m, weights, x, delays, buffer, step, transpose=transpose, graded=True)
                arrived, buffer = ops.take_arrivals(buffer, step)
                arrivals.append(arrived * arrived)
                step += 1  # the saved step must not change
            return torch.stack(arrivals).sum(0), buffer

        assert torch.autograd.gradcheck(run, (weights, x, buffer), nondet_tol=1e-12)
        if not batch:
            assert torch.autograd.gradgradcheck(run, (weights, x, buffer), nondet_tol=1e-12)


@both_weights
@both_orders
def test_gradients_are_straight_through(transpose, shared, device):
    for batch in ((), (4,)):
        m, weights, x, delays, buffer = small(device, shared, transpose, batch, entries="mixed")
        g = torch.randn_like(buffer)
        for values in ("event", "graded"):
            after = deliver(m, weights, x, delays, buffer, torch.tensor(2), transpose=transpose, graded=values == "graded")
            got = torch.autograd.grad(after, (weights, x, buffer), g)
            w, through, start = (t.detach().cpu().clone().requires_grad_() for t in (weights, contribution(x, values), buffer))
            pick = torch.nn.functional.one_hot(delays.cpu().long(), len(buffer)).double()
            rows, cols = m.row_of_connections(), m.indices.cpu().long()
            matrices = [torch.zeros(m.rows, m.cols, dtype=torch.float64).index_put((rows, cols), w * pick[:, d], accumulate=True) for d in range(len(buffer))]
            want = torch.autograd.grad(delivered(matrices, through, start, 2, transpose, None), (w, through, start), g.cpu())
            for a, b in zip(got, want):
                assert_close(a, b)
            send = lambda events: deliver(m, weights, events, delays, buffer, torch.tensor(2), transpose=transpose)
            torch.testing.assert_close(*(torch.autograd.grad(after, (weights,), g) for after in (send(x > 0), send(x))))


def test_gradients_have_their_arguments_types(device):
    for transpose in (False, True):
        m = matrix("random").to(device)
        for dtype in (torch.float16, torch.bfloat16):
            weights = random_weights(m, False, dtype, device).requires_grad_()
            x = random_entries(m.rows if transpose else m.cols, torch.bfloat16).nan_to_num().to(device).requires_grad_()
            buffer = torch.zeros(2, m.cols if transpose else m.rows, device=device, requires_grad=True)
            deliver(m, weights, x, random_delays(m, "bytes", 2).to(device), buffer, torch.tensor(0), transpose=transpose).sum().backward()
            assert weights.grad.dtype == dtype and x.grad.dtype == torch.bfloat16 and buffer.grad.eq(1).all()


@both_orders
def test_opcheck(transpose, device):
    step = torch.tensor(2)
    m, weights, x, delays, buffer = small(device, not transpose, transpose, (2,), entries="mixed")
    torch.library.opcheck(ops.event_csrmv_delayed.default, (weights, m.indices, m.indptr, x, delays, buffer, step), dict(m.size, transpose=transpose))
    arguments = weights.detach(), m.indices, m.indptr, x.detach(), delays, buffer.detach(), step
    torch.library.opcheck(ops.event_csrmv_delayed_.default, arguments, dict(m.size, transpose=transpose))
    if transpose:
        torch.library.opcheck(ops.event_csrmv_delayed.default, arguments, dict(m.size, transpose=transpose))
        torch.library.opcheck(ops.take_arrivals.default, (buffer, step))
        torch.library.opcheck(ops.take_arrivals_.default, (buffer.detach(), step))
    indices = torch.randint(8, (5, 3), dtype=torch.int32, device=device)
    weights, x = (torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True) for shape in ((5, 3), (5 if transpose else 8,)))
    buffer = torch.zeros(2, 8 if transpose else 5, dtype=torch.float64, device=device)
    torch.library.opcheck(ops.event_ellmv_delayed.default, (weights, indices, x, indices % 2, buffer, step), dict(cols=8, transpose=transpose))


def test_the_form_in_place_refuses_gradients(device):
    m, weights, x, delays, buffer = small(device, False, True)
    for given in ((weights, x.detach(), buffer.detach()), (weights.detach(), x, buffer.detach()), (weights.detach(), x.detach(), buffer * 1)):
        before = given[2].detach().clone()
        with pytest.raises(NotImplementedError, match="event_csrmv_delayed_: what changes in place has no gradient; call event_csrmv_delayed"):
            deliver(m, given[0], given[1], delays, given[2], torch.tensor(0), in_place=True, transpose=True)
        assert torch.equal(given[2], before)
    with pytest.raises(NotImplementedError, match="take_arrivals_: what changes in place has no gradient"):
        ops.take_arrivals_(buffer * 1, torch.tensor(0))
    with torch.no_grad():
        deliver(m, weights, x, delays, buffer.clone(), torch.tensor(0), in_place=True, transpose=True)
    left = torch.zeros_like(buffer)
    version = left._version
    deliver(m, weights.detach(), x.detach(), delays, left, torch.tensor(0), in_place=True, transpose=True)
    ops.take_arrivals_(left, torch.tensor(0))
    assert left._version > version + 1


@both_orders
def test_vmap(transpose, device):
    m, weights, x, delays, buffer = (t.detach() if isinstance(t, torch.Tensor) else t for t in small(device, False, transpose, (4,)))
    step = torch.tensor(1, device=device)
    call = lambda w, x, d, b, s: deliver(m, w, x, d, b, s, transpose=transpose)
    each = lambda **at: torch.stack([call(*(t[i] if name in at else t for name, t in given.items())) for i in range(4)])
    given = dict(w=weights, x=x, d=delays, b=buffer.movedim(1, 0), s=step)
    with Calls() as calls:
        together = torch.vmap(call, (None, 0, None, 0, None))(*given.values())
        torch.vmap(lambda x: ops.event_csrmv(weights, m.indices, m.indptr, x, **m.size, transpose=transpose))(x)
    assert [name for name, *_ in calls.seen] == ["csr_deliver", "csr_product"]  # one call for all maps
    torch.testing.assert_close(together, each(x=0, b=0))
    torch.testing.assert_close(torch.vmap(call, (None, 0, None, None, None))(weights, x, delays, buffer[:, 0], step), torch.stack([call(weights, e, delays, buffer[:, 0], step) for e in x]))
    several = torch.randn(4, len(weights), dtype=torch.float64, device=device)
    steps = torch.arange(4, device=device)
    torch.testing.assert_close(torch.vmap(call, (0, 0, None, 0, 0))(several, x, delays, given["b"], steps), torch.stack([call(several[i], x[i], delays, given["b"][i], steps[i]) for i in range(4)]))
    changed = given["b"].clone()
    torch.vmap(lambda x, b: (deliver(m, weights, x, delays, b, step, in_place=True, transpose=transpose), ops.take_arrivals_(b, step))[1])(x, changed)
    torch.testing.assert_close(changed, torch.vmap(lambda b: ops.take_arrivals(b, step)[1])(together))
    with pytest.raises(ValueError, match="event_csrmv_delayed: under vmap a buffer that is changed in place must be mapped"):
        torch.vmap(lambda x: deliver(m, weights, x, delays, changed[0], step, in_place=True, transpose=transpose) or x)(x)


def test_compile_keeps_it_whole(device):
    m, weights, x, delays, buffer = small(device, False, True)

    def step_of_a_network(w, x, buffer, step):
        buffer = deliver(m, w, x, delays, buffer, step, transpose=True)
        deliver(m, w.detach(), x.detach(), delays, buffer.detach().clone(), step, in_place=True, transpose=True)
        arrivals, buffer = ops.take_arrivals(buffer, step)
        return arrivals.square().sum() + buffer.sum()

    compiled, arguments = torch.compile(step_of_a_network, backend="aot_eager", fullgraph=True), (weights, x, buffer, torch.tensor(1))
    grads = (torch.autograd.grad(run(*arguments), (weights, x, buffer)) for run in (compiled, step_of_a_network))
    torch.testing.assert_close(*grads)


# ---- drawn matrices ----

def delay_of_law(law, numbers, u, slots):
    if law == "constant":
        return numbers[0]
    if law == "uniform":
        return int(numbers[0] + (numbers[1] - numbers[0] + 1) * u)
    x = numbers[0] + numbers[1] * float(torch.distributions.Normal(0, 1).icdf(torch.tensor(u, dtype=torch.float64)))
    return None if abs(x + 0.5 - round(x + 0.5)) < 1e-4 else min(slots - 1, max(0, round(x)))


@pytest.mark.parametrize("delay_law, numbers", [("constant", [2.0]), ("uniform", [1.0, 3.0]), ("normal", [2.0, 1.5])])
def test_drawn_delays_are_those_of_a_hash(delay_law, numbers, device):
    rows, cols, slots, prob, seed = 60, 200, 5, 0.2, 11
    where = dict(rows=rows, cols=cols, prob=prob, seed=seed)
    is_there = ops.jit_csrmm(torch.ones(1), torch.eye(rows, dtype=torch.bool), **where, transpose=True).T > 0
    events = torch.eye(rows, dtype=torch.bool, device=device)
    buffer = torch.zeros(slots, rows, cols, device=device)
    ops.jit_csrmv_delayed_(torch.ones(1, device=device), events, buffer, torch.tensor(0), **where, delays=numbers, delay_law=delay_law, transpose=True)
    assert torch.equal(buffer.sum(0).cpu() > 0, is_there) and int(buffer.sum()) == int(is_there.sum())
    delays, golden, width = buffer.argmax(0).cpu(), 0x9E3779B97F4A7C15, 256
    seen = set()
    for row, column in is_there.nonzero().tolist():
        of_row = mixed((mixed(seed) + golden * (row + 1)) % 2**64)
        key = mixed((of_row + golden * (column // width + 1)) % 2**64)
        hashed = mixed(key ^ (golden * (column + 1) % 2**64))
        delay = delay_of_law(delay_law, numbers, ((hashed % 2**32 >> 9) + 0.5) / 2**23, slots)
        assert delay is None or delays[row, column] == delay
        seen.add(delay)
    assert len(seen) > (0 if delay_law == "constant" else 2)


@both_orders
@pytest.mark.parametrize("law, numbers", [("constant", [0.7]), ("uniform", [-0.5, 1.5]), ("normal", [0.25, 2.0])])
def test_drawn_matrices(law, numbers, transpose, device):
    """Reconstructs a drawn matrix as a stored one: weights from unit vectors, delays from arrivals of a weight of 1."""
    rows, cols, slots = 70, 300, 6
    where = dict(rows=rows, cols=cols, prob=0.15, seed=3)
    drawn = dict(delays=[2.0, 2.0], delay_law="normal")
    eye = torch.eye(rows, dtype=torch.bool)
    at = ops.jit_csrmv_delayed(torch.ones(1, dtype=torch.float64), eye, torch.zeros(slots, rows, cols, dtype=torch.float64), torch.tensor(0), **where, **drawn, transpose=True)
    for i, dtype in enumerate(TYPES):
        weights = torch.tensor(numbers, dtype=torch.float64).to(dtype)
        dense = ops.jit_csrmm(weights.double(), eye, **where, law=law, transpose=True).T
        for values in ("event", "graded", "number"):
            x = random_entries((2, rows if transpose else cols), dtype).nan_to_num()
            before = torch.randn(slots, 2, cols if transpose else rows, dtype=sum_type(dtype))
            expected = delivered(at * dense, x, before, 9, transpose, values)
            for deterministic in (False, True):
                arguments = weights.to(device), x.to(device), before.to(device, copy=True), torch.tensor(9, device=device)
                options = dict(where, **drawn, law=law, transpose=transpose, values=values, deterministic=deterministic)
                after = ops.jit_csrmv_delayed(*arguments, **options)
                assert_close(after, expected, torch.float64 if dtype == torch.float64 else torch.float32)
                ops.jit_csrmv_delayed_(*arguments, **options)
                assert_close(arguments[2], after.double().cpu())


@both_orders
@pytest.mark.parametrize("law, numbers", [("constant", [0.7]), ("normal", [0.25, 2.0])])
def test_gradients_of_drawn_matrices(law, numbers, transpose, device):
    rows, cols, slots = 5, 7, 3
    weights = torch.tensor(numbers, dtype=torch.float64, device=device, requires_grad=True)
    x = torch.rand(rows if transpose else cols, dtype=torch.float64, device=device, requires_grad=True)
    buffer = torch.randn(slots, cols if transpose else rows, dtype=torch.float64, device=device, requires_grad=True)
    step = torch.tensor(4, device=device)
    options = dict(rows=rows, cols=cols, prob=0.5, seed=2, delays=[0.0, 2.0], delay_law="uniform", law=law, transpose=transpose, values="number")
    run = lambda w, x, b: ops.jit_csrmv_delayed(w, x, b, step, **options)
    assert torch.autograd.gradcheck(run, (weights, x, buffer), nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(run, (weights, x, buffer), nondet_tol=1e-12)
    torch.library.opcheck(ops.jit_csrmv_delayed.default, (weights, x, buffer, step), options)
    torch.library.opcheck(ops.jit_csrmv_delayed_.default, (weights.detach(), x.detach(), buffer.detach(), step), options)
    mapped = torch.vmap(run, (None, 0, 0))(weights, torch.stack([x, 2 * x]), torch.stack([buffer, buffer]))
    torch.testing.assert_close(mapped, torch.stack([run(weights, x, buffer), run(weights, 2 * x, buffer)]))


# ---- errors ----

def test_errors(device):
    m = matrix("random").to(device)
    weights, events, step = torch.ones(1, device=device), torch.zeros(m.rows, device=device), torch.tensor(0)
    delays, buffer = torch.zeros(len(m.indices), dtype=torch.uint8, device=device), torch.ones(4, m.cols, device=device)
    right = dict(weights=weights, x=events, delays=delays, buffer=buffer, step=step)

    def refused(error, words, **changed):
        for in_place in (False, True):
            with pytest.raises(error, match="event_csrmv_delayed: " + words):
                deliver(m, **(right | changed), in_place=in_place, transpose=True)
        assert buffer.eq(1).all()

    refused(TypeError, "delays must be a dense uint8 or int32 tensor, but is Strided Long", delays=delays.long())
    refused(ValueError, rf"delays must have one element, shared by all connections, or the shape of indices, \[{len(delays)}\], but has \[3\]", delays=delays[:3])
    refused(TypeError, "buffer must be a dense float32 or float64 tensor, but is Strided Half", buffer=buffer.half())
    refused(TypeError, "buffer must be Float, in which sums of BFloat16 weights are computed, but is Double", buffer=buffer.double(), weights=weights.bfloat16())
    refused(ValueError, r"buffer must have shape \[slots, \*batch, neurons\] with 1 to 2\^30 slots, but has \[0, 90\]", buffer=buffer[:0])
    refused(ValueError, r"buffer must have shape \[slots, \*batch, cols\] = \[4, 90\] to match events, but has \[4, 89\]", buffer=buffer[:, 1:])
    refused(ValueError, r"buffer must have shape \[slots, \*batch, cols\] = \[4, 2, 90\] to match events, but has \[4, 90\]", x=events.expand(2, -1))
    refused(TypeError, "step must be an int64 tensor, but is Strided Int", step=step.int())
    refused(ValueError, r"step must be 0-dimensional, but has shape \[1\]", step=step.view(1))
    refused(ValueError, "step must be 0 or more, but is -3", step=step - 3)
    refused(ValueError, "weights must have one element", weights=weights[:0])
    with pytest.raises(ValueError, match="event_csrmv_delayed: a buffer that is changed in place must not have"):
        deliver(m, **(right | dict(buffer=buffer[:1].expand(4, -1))), in_place=True, transpose=True)
    with pytest.raises(ValueError, match="take_arrivals: step must be 0 or more, but is -1"):
        ops.take_arrivals_(buffer, step - 1)
    # A single delay for all connections may have any shape.
    of_shapes = [deliver(m, **(right | dict(delays=delays.new_zeros(shape))), transpose=True) for shape in ((), (1,) * 12)]
    assert torch.equal(*of_shapes)
    drawn = dict(rows=m.rows, cols=m.cols, prob=0.1, seed=1, transpose=True)
    for error, words, options in ((ValueError, 'delay_law must be "constant", "uniform" or "normal", but is "gamma"', dict(delays=[1.0], delay_law="gamma")),
                                  (ValueError, 'delays must be 2 numbers under the law "normal", but are 1', dict(delays=[1.0], delay_law="normal")),
                                  (ValueError, "delays must be below 4, for the buffer has 4 slots, but the largest is 4", dict(delays=[1.0, 4.0], delay_law="uniform")),
                                  (ValueError, "delays must be whole numbers from 0 on", dict(delays=[-1.0])),
                                  (ValueError, "delays must be a mean and a standard deviation of 0 or more, but are 1 and nan", dict(delays=[1.0, torch.nan], delay_law="normal"))):
        with pytest.raises(error, match="jit_csrmv_delayed: " + words):
            ops.jit_csrmv_delayed_(weights, events, buffer, step, **drawn, **options)
    assert buffer.eq(1).all()
    if device.type == "cuda":
        refused(ValueError, "delays must be on cuda:0, the device of indices, but is on cpu", delays=delays.cpu())
        after = deliver(m, **(right | dict(x=events + 1, step=torch.tensor(-1, device=device))), transpose=True)
        assert torch.equal(after, buffer)  # an error would need a synchronization with the GPU


@both_orders
@pytest.mark.parametrize("dtype, wrong", [(torch.uint8, 4), (torch.int32, 4), (torch.int32, -1), (torch.int32, -(2**31))])
def test_delays_beyond_the_buffer_are_refused_and_nothing_is_written(dtype, wrong, transpose):
    m = matrix("random")
    delays = torch.randint(4, (len(m.indices),), dtype=dtype)
    delays[17] = wrong
    buffer = torch.ones(4, m.cols if transpose else m.rows)
    for given, place in ((delays, 17), (delays[17:18], 0)):
        for _ in range(2):
            with pytest.raises(ValueError, match=rf"event_csrmv_delayed: delays must be from 0 to 3, for the buffer has 4 slots, but delays\[{place}\] is {wrong}$"):
                deliver(m, torch.ones(1), torch.ones(m.rows if transpose else m.cols), given, buffer, torch.tensor(0), in_place=True, transpose=transpose)
    assert buffer.eq(1).all()


def test_delays_are_read_again_where_they_or_the_slots_changed():
    m = matrix("random")
    delays, events = torch.full((len(m.indices),), 3, dtype=torch.int32), torch.ones(m.rows)
    call = lambda slots: deliver(m, torch.ones(1), events, delays, torch.zeros(slots, m.cols), torch.tensor(0), transpose=True)
    call(4)
    refused(ValueError, "delays must be from 0 to 2", lambda: call(3))
    call(4)
    delays[0] = 4
    refused(ValueError, r"delays\[0\] is 4", lambda: call(4))


@pytest.mark.parametrize("shared", ["events", "weights", "delays", "indices", "step"])
def test_a_buffer_may_share_memory_with_whatever_is_read(shared):
    memory = torch.zeros(64, dtype=torch.float64)
    given = dict(weights=torch.rand(4, dtype=torch.float64), indices=torch.tensor([0, 1, 1, 2], dtype=torch.int32), indptr=torch.tensor([0, 2, 4]),
                 events=torch.tensor([1.0, 1.0], dtype=torch.float64), delays=torch.tensor([0, 1, 2, 0], dtype=torch.int32), step=torch.tensor(1))
    alias = memory.view(given[shared].dtype)[: given[shared].numel()].view(given[shared].shape)
    alias.copy_(given[shared])
    buffer = memory[:9].view(3, 3)
    expected = ops.event_csrmv_delayed(**given, buffer=buffer.clone(), rows=2, cols=3, transpose=True)
    ops.event_csrmv_delayed_(**(given | {shared: alias}), buffer=buffer, rows=2, cols=3, transpose=True)
    assert torch.equal(buffer, expected)


def test_a_buffer_that_is_not_contiguous_changes_in_place(device):
    m = matrix("random").to(device)
    wide = torch.zeros(m.cols, 4, device=device)
    arguments = m, torch.ones(1, device=device), torch.ones(m.rows, device=device), torch.ones(1, dtype=torch.uint8, device=device)
    expected = deliver(*arguments, torch.zeros(4, m.cols, device=device), torch.tensor(2), transpose=True)
    deliver(*arguments, wide.T, torch.tensor(2), in_place=True, transpose=True)
    assert torch.equal(wide.T, expected) and expected[3].sum() == len(m.indices)
    assert torch.equal(ops.take_arrivals_(wide.T, torch.tensor(3, device=device)), expected[3]) and wide.eq(0).all()


def test_a_buffer_that_is_seen_negated_changes_in_place():
    m = matrix("random")
    arguments = m, torch.ones(1), torch.ones(m.rows), torch.ones(1, dtype=torch.uint8)
    start, step = torch.rand(4, m.cols), torch.tensor(2)
    expected, beneath = deliver(*arguments, start, step, transpose=True), -start
    deliver(*arguments, torch._neg_view(beneath), step, in_place=True, transpose=True)
    assert torch.equal(-beneath, expected)
    assert torch.equal(ops.take_arrivals_(torch._neg_view(beneath), step), expected[2]) and beneath[2].eq(0).all()


# ---- on a GPU ----

def test_a_captured_graph_advances_the_step(cuda):
    m, slots = matrix("ragged"), 5
    weights, delays = random_weights(m, False, torch.float32), random_delays(m, "bytes", slots)
    matrices, on = of_each_delay(m, weights, delays, slots), m.to(cuda)
    x, buffer, step = torch.zeros(m.rows, device=cuda), torch.zeros(slots, m.cols, device=cuda), torch.zeros((), dtype=torch.long, device=cuda)
    arguments = on, weights.to(cuda), x, delays.to(cuda), buffer, step

    def one_step():
        deliver(*arguments, in_place=True, transpose=True)
        arrivals = ops.take_arrivals_(buffer, step)
        step.add_(1)
        return arrivals

    for _ in range(2):
        one_step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        arrivals = one_step()
    buffer.zero_(), step.zero_()
    sent = []
    for t in range(20):
        sent.append(random_entries((m.rows,), torch.float32, 0.1))
        x.copy_(sent[-1])
        graph.replay()
        assert_close(arrivals, sum(contribution(sent[t - d], "event") @ a for d, a in enumerate(matrices) if d <= t))


@both_orders
def test_wrong_delays_are_found_on_the_gpu_and_nothing_is_written(transpose, cuda):
    m = matrix("random").to(cuda)
    for dtype, wrong in ((torch.uint8, 200), (torch.int32, -1), (torch.int32, 2**30)):
        delays = torch.zeros(len(m.indices), dtype=dtype, device=cuda)
        delays[17] = wrong
        buffer = torch.ones(4, m.cols if transpose else m.rows, device=cuda)
        call = lambda: deliver(m, torch.ones(1, device=cuda), torch.ones(m.rows if transpose else m.cols, device=cuda), delays, buffer, torch.tensor(0), in_place=True, transpose=transpose)
        call()
        torch.cuda.synchronize()
        assert buffer.eq(1).all()
        refused(ValueError, rf"delays\[17\] is {wrong}", call)
        assert buffer.eq(1).all()
