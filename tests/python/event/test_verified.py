"""Out-of-range indices of a matrix are rejected before they are used, and a matrix is checked only once."""

import time

import numpy
import pytest
import torch
from loops import refused
from events import Matrix, assert_close, from_lengths, matrix, ops, product

WRONG = [-1, -(2**31), 2**31 - 1]


def small():
    return Matrix(torch.tensor([0, 2, 1, 1, 0], dtype=torch.int32), torch.tensor([0, 2, 2, 5]), 3, 3)


def products(m, **options):
    """Yields a call of every operator that reads a CSR matrix, in both orders."""
    weights, device = torch.ones(len(m.indices), device=m.indices.device), m.indices.device
    for transpose in (False, True):
        x = torch.ones(m.rows if transpose else m.cols, device=device)
        for name in ("event_csrmv", "csrmv", "event_csrmm", "csrmm"):
            entries = x if name.endswith("mv") else x[:, None].expand(-1, 2)
            for w in (weights, weights[:1]):
                yield name, lambda name=name, w=w, entries=entries, transpose=transpose: getattr(ops, name)(w, m.indices, m.indptr, entries, **m.size, transpose=transpose, **options)


@pytest.mark.parametrize("wrong", [*WRONG, 3], ids=str)
def test_an_index_out_of_range_is_refused(wrong):
    m = small()
    m.indices[3] = wrong
    for name, call in products(m):
        refused(ValueError, rf"{name}: indices must be from 0 to cols - 1 = 2, but indices\[3\], in row 2, is {wrong}$", call)
    weights = torch.ones(5)
    for transpose in (False, True):
        x = torch.ones(3)
        with pytest.raises(ValueError, match=r"csr_weight_grad: indices must be from 0 to .*indices\[3\]"):
            ops.csr_weight_grad(x, x, m.indices, m.indptr, **m.size, transpose=transpose, matrix=False, values="event")
    with pytest.raises(ValueError, match=r"stdp_pre: indices must be from 0 to .*indices\[3\]"):
        ops.stdp_pre_(weights, m.indices, m.indptr, torch.ones(3), torch.ones(3), **m.size)
    assert weights.eq(1).all()


@pytest.mark.parametrize("wrong", [*WRONG, 7], ids=str)
def test_an_index_out_of_range_is_refused_where_rows_have_one_width(wrong):
    indices = torch.randint(7, (6, 4), dtype=torch.int32)
    indices[2, 1] = wrong
    for name in ("event_ellmv", "ellmv", "event_ellmm", "ellmm"):
        for transpose in (False, True):
            x = torch.ones(6 if transpose else 7)
            with pytest.raises(ValueError, match=rf"{name}: indices must be from 0 to cols - 1 = 6, but indices\[9\], in row 2, is {wrong}$"):
                getattr(ops, name)(torch.ones(6, 4), indices, x if name.endswith("mv") else x[:, None], cols=7, transpose=transpose)


def test_a_matrix_that_changes_is_read_again():
    m = small()
    calls = list(products(m))
    for name, call in calls:
        right = call()
        m.indices[3] = -1
        refused(ValueError, f"{name}: indices must be from 0", call)
        m.indices[3] = 1
        assert torch.equal(call(), right)
    m.indices.data = torch.full_like(m.indices, 9)
    refused(ValueError, "indices must be from 0", calls[0][1])


def test_the_same_numbers_are_read_again_as_another_matrix():
    m = small()
    x = torch.ones(3)
    ops.csrmv(torch.ones(5), m.indices, m.indptr, x, **m.size)
    with pytest.raises(ValueError, match="indices must be from 0 to cols - 1 = 1, but"):
        ops.csrmv(torch.ones(5), m.indices, m.indptr, x[:2], rows=3, cols=2)
    ops.csrmv(torch.ones(3), m.indices[2:], torch.tensor([0, 1, 2, 3]), x[:2], rows=3, cols=2)  # reads only 1, 1, 0
    with pytest.raises(ValueError, match=r"indices\[1\], in row 1, is 2"):
        ops.csrmv(torch.ones(3), m.indices[:3], torch.tensor([0, 1, 2, 3]), x[:2], rows=3, cols=2)
    begins = torch.tensor([0, 1, 2, 3])  # as int32: 0 0 1 0 2 0 3 0
    with pytest.raises(ValueError, match="indptr must begin with 0, never decrease"):
        ops.csrmv(torch.ones(3), m.indices[2:], begins.view(torch.int32)[:4], x[:2], rows=3, cols=2)


def test_a_wrong_matrix_in_the_memory_of_a_right_one_is_refused():
    places = set()
    for i in range(200):
        indices = torch.full((4000,), -1 if i % 2 else 1, dtype=torch.int32)
        indptr = torch.tensor([0, 4000])
        places.add(indices.data_ptr())
        if i % 2:
            with pytest.raises(ValueError, match="indices must be from 0"):
                ops.csrmv(torch.ones(1), indices, indptr, torch.ones(2), rows=1, cols=2)
        else:
            assert ops.csrmv(torch.ones(1), indices, indptr, torch.ones(2), rows=1, cols=2).item() == 4000
    assert len(places) < 200, "no memory was used again: this has shown nothing"


def test_a_tensor_of_inference_mode_is_read_at_every_call():
    with torch.inference_mode():
        m = small()
        weights, x = torch.ones(5), torch.ones(3)
        ops.csrmv(weights, m.indices, m.indptr, x, **m.size)
        m.indices[0] = -1
        refused(ValueError, "indices must be from 0", lambda: ops.csrmv(weights, m.indices, m.indptr, x, **m.size))


def test_a_matrix_is_read_once():
    n = 20_000_000
    indices, indptr = torch.zeros(n, dtype=torch.int32), torch.tensor([0, n])
    no_event = torch.zeros(1)

    def seconds():
        start = time.perf_counter()
        ops.event_csrmv(torch.ones(1), indices, indptr, no_event, rows=1, cols=1, transpose=True)
        return time.perf_counter() - start

    seconds(), indices.add_(0)
    first = seconds()
    later = sorted(seconds() for _ in range(20))[10]
    assert later < first / 5, f"the first call took {first * 1e3:.2f} ms, later ones {later * 1e3:.2f}"
    indices.add_(0)
    ops.csr_check(indices, indptr, rows=1, cols=1)  # csr_check also stores that the matrix is valid
    assert seconds() < first / 5


def resident_bytes():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def test_remembered_checks_keep_no_matrix_alive_and_have_a_bound():
    def call(n):
        ops.csrmv(torch.ones(1), torch.zeros(n, dtype=torch.int32), torch.tensor([0, n]), torch.ones(1), rows=1, cols=1)

    call(1 << 24)
    before = resident_bytes()
    for _ in range(6):
        call(1 << 24)
    assert resident_bytes() < before + (1 << 26), "the indices of 64 MiB are alive"
    kept = [torch.zeros(1, dtype=torch.int32) for _ in range(10_000)]
    begins, x = torch.tensor([0, 1]), torch.ones(1)
    for indices in kept:
        ops.csrmv(x, indices, begins, x, rows=1, cols=1)
    before = resident_bytes()
    for indices in [indices.add_(0) for indices in kept] * 3:
        ops.csrmv(x, indices, begins, x, rows=1, cols=1)
    assert resident_bytes() < before + (1 << 23)


def test_unchecked_skips_the_check():
    m = matrix("ragged")
    for (_, checked), (_, unchecked) in zip(products(m), products(m, unchecked=True)):
        assert torch.equal(checked(), unchecked())
    m = small()
    m.indices[3] = -1  # in row 2, which is not read without an event
    events = torch.tensor([1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="indices must be from 0"):
        ops.event_csrmv(torch.ones(5), m.indices, m.indptr, events, **m.size, transpose=True)
    y = ops.event_csrmv(torch.ones(5), m.indices, m.indptr, events, **m.size, transpose=True, unchecked=True)
    assert y.tolist() == [1, 0, 1]
    weights = torch.ones(5)
    ops.stdp_pre_(weights, m.indices, m.indptr, events, torch.ones(3), **m.size, unchecked=True)
    assert weights.tolist() == [2, 2, 1, 1, 1]


def test_unchecked_reaches_gradients_and_vmap():
    m = small()
    m.indices[3] = -1
    weights, events = torch.ones(5, requires_grad=True), torch.tensor([1.0, 0.0, 0.0], requires_grad=True)
    call = lambda w, e: ops.event_csrmv(w, m.indices, m.indptr, e, **m.size, transpose=True, unchecked=True)
    assert torch.vmap(call, (None, 0))(weights.detach(), events.detach().expand(2, 3)).tolist() == [[1, 0, 1]] * 2
    y = call(weights, events)
    with pytest.raises(ValueError, match="event_csrmv: indices must be from 0"):  # the same call with the check
        ops.event_csrmv(weights, m.indices, m.indptr, events, **m.size, transpose=True)
    assert y.grad_fn is not None
    m.indices[3] = 1
    refused(RuntimeError, "modified by an inplace operation", y.sum().backward)
    y = call(weights, events)
    y.sum().backward()
    assert weights.grad.tolist() == [1, 1, 0, 0, 0]
    torch.library.opcheck(ops.csr_product.default, (weights, m.indices, m.indptr, events), dict(m.size, transpose=True, matrix=False, values="event", deterministic=False, unchecked=True))


def test_lowered_operators_of_graphs_from_before_unchecked_still_run():
    m = small()
    y = ops.csr_product(torch.ones(5), m.indices, m.indptr, torch.ones(3), **m.size, transpose=False, matrix=False, values="number", deterministic=False)
    assert y.tolist() == [2, 0, 3]
    g = ops.csr_weight_grad(torch.ones(3), y, m.indices, m.indptr, **m.size, transpose=False, matrix=False, values="number")
    assert g.tolist() == [2, 2, 3, 3, 3]


def test_a_change_by_plasticity_is_a_new_version_of_the_weights():
    m = small()
    weights = torch.ones(5)
    ops.stdp_pre_(weights, m.indices, m.indptr, torch.ones(3), torch.ones(3), **m.size)
    assert weights._version == 1
    rows, begins, slots = ops.csr_transpose(m.indices, m.indptr, **m.size)
    ops.stdp_post_(weights, rows, begins, slots, torch.ones(3), torch.ones(3), **m.size)
    assert weights._version == 2
    learned = torch.ones(5, requires_grad=True)
    held = learned * 1
    y = ops.csrmv(held, m.indices, m.indptr, torch.ones(3, requires_grad=True), **m.size)
    ops.stdp_pre_(held.detach(), m.indices, m.indptr, torch.ones(3), torch.ones(3), **m.size)
    refused(RuntimeError, "modified by an inplace operation", y.sum().backward)


@pytest.mark.parametrize("through", ["the same storage", "another of the same memory"])
def test_weights_may_share_memory_with_whatever_is_read(through):
    """All arguments are read before anything changes."""
    m = small()
    rows, begins, slots = ops.csr_transpose(m.indices, m.indptr, **m.size)
    count = len(slots)
    for shared in ("events", "trace", "indices", "indptr", "slots"):
        memory = torch.zeros(64, dtype=torch.float64)
        other = memory if through == "the same storage" else torch.from_numpy(numpy.asarray(memory))
        weights = memory[:count]
        arguments = dict(weights=weights, indices=rows, indptr=begins.long(), slots=slots, events=torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), trace=torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
        alias = other.view(arguments[shared].dtype)[: arguments[shared].numel()]
        alias.copy_(arguments[shared])
        arguments[shared] = alias
        alone = {name: t.clone() for name, t in arguments.items()}
        ops.stdp_post_(**arguments, **m.size)
        ops.stdp_post_(**alone, **m.size)
        assert torch.equal(weights.view(torch.int64), alone["weights"].view(torch.int64)), shared


def test_events_that_share_the_weights_memory_do_not_lead_past_the_check():
    """During row 0, row 1 becomes an event, whose slots are outside the weights."""
    weights = torch.tensor([1.0, 0.0, 0.0, 0.0])
    indices, indptr = torch.zeros(4, dtype=torch.int32), torch.tensor([0, 2, 4])
    slots = torch.tensor([0, 1, 2**20, -(2**20)])
    with pytest.raises(ValueError, match=r"stdp_post: slots must be those of csr_transpose, from 0 to 3, but slots\[2\] is 1048576"):
        ops.stdp_post_(weights, indices, indptr, slots, weights[:2], torch.ones(1), rows=1, cols=2)
    assert weights.tolist() == [1, 0, 0, 0]


# ---- on a GPU ----

def synchronized(call):
    """Returns the result of the call after synchronization."""
    result = call()
    torch.cuda.synchronize()
    return result


def test_a_gpu_reports_an_invalid_matrix_at_the_next_call(cuda):
    for i, (name, _) in enumerate(products(small())):
        m = small()
        m.indices[3] = 2**31 - 1
        calls = list(products(m.to(cuda)))
        result = synchronized(calls[i][1])  # no memory is read with the wrong index
        assert (result.isnan() | result.eq(0)).all()
        for _ in range(2):
            with pytest.raises(ValueError, match=rf"{name}: indices must be from 0 to cols - 1 = 2, but indices\[3\], in row 2, is 2147483647"):
                calls[i][1]()


def test_a_gpu_reports_an_invalid_matrix_at_a_call_with_another_matrix(cuda):
    m = small()
    m.indptr[1] = 900_000_000
    wrong, right = m.to(cuda), small().to(cuda)
    synchronized(next(iter(products(wrong)))[1])
    with pytest.raises(ValueError, match="csrmv: an earlier call, event_csrmv on cuda:0, had a matrix with numbers that are out of range"):
        ops.csrmv(torch.ones(1, device=cuda), right.indices, right.indptr, torch.ones(3, device=cuda), **right.size)
    assert ops.csrmv(torch.ones(1, device=cuda), right.indices, right.indptr, torch.ones(3, device=cuda), **right.size).tolist() == [2, 0, 3]


def test_a_gpu_changes_no_weight_by_a_wrong_matrix(cuda):
    m = small()
    rows, begins, slots = ops.csr_transpose(m.indices, m.indptr, **m.size)
    for which in ("indices", "slots"):
        arguments = dict(indices=rows.clone(), indptr=begins, slots=slots.clone(), events=torch.ones(3), trace=torch.ones(3))
        arguments[which][2] = -1
        arguments = {name: t.to(cuda) for name, t in arguments.items()}
        weights = torch.ones(5, device=cuda)
        synchronized(lambda: ops.stdp_post_(weights, **arguments, **m.size))
        assert weights.eq(1).all()
        refused(ValueError, f"stdp_post: {which} must be", lambda: ops.stdp_post_(weights, **arguments, **m.size))
        assert weights.eq(1).all()


def test_a_gpu_reads_a_changed_matrix_again(cuda):
    m = small().to(cuda)
    for name, call in products(m):
        right = synchronized(call)
        assert torch.equal(synchronized(call), right)
        m.indices[3] = -1
        synchronized(call)
        refused(ValueError, f"{name}: indices must be from 0", call)
        m.indices[3] = 1
        assert torch.equal(synchronized(call), right)


def test_a_gpu_is_not_waited_for(cuda):
    """A call returns while the GPU is still computing the previous work."""
    m = matrix("ragged").to(cuda)
    calls = [call for _, call in products(m)]
    for call in calls:
        call()  # compiles
    torch.cuda.synchronize()
    m.indices.add_(0)
    done = torch.cuda.Event()
    torch.cuda._sleep(1_000_000_000)
    done.record()
    results = [call() for call in calls]
    assert not done.query(), "a call waited for the GPU"
    torch.cuda.synchronize()
    for y, call in zip(results, calls):
        assert_close(y, call().double().cpu())


def test_matrices_on_several_streams(cuda):
    m = matrix("random").to(cuda)
    expected = product(matrix_on_cpu := m.to("cpu"), torch.ones(1), torch.ones(m.cols), False, "number", False)
    assert len(matrix_on_cpu.indices) > 0
    results = []
    for _ in range(4):
        m.indices.add_(0)
        torch.cuda.synchronize()
        torch.cuda._sleep(10_000_000)
        for stream in [torch.cuda.Stream() for _ in range(3)]:
            with torch.cuda.stream(stream):
                results.append(ops.csrmv(torch.ones(1, device=cuda), m.indices, m.indptr, torch.ones(m.cols, device=cuda), **m.size))
    torch.cuda.synchronize()
    for y in results:
        assert_close(y, expected)


def test_a_matrix_in_a_cuda_graph(cuda):
    """Captures a graph with an unchecked and with a checked matrix."""
    for seen in (False, True):
        m = matrix("random").to(cuda)
        weights, x = torch.ones(1, device=cuda), torch.rand(m.cols, device=cuda)
        run = lambda: ops.csrmv(weights, m.indices, m.indptr, x, **m.size)
        warm = matrix("random").to(cuda)
        ops.csrmv(weights, warm.indices, warm.indptr, x, **warm.size)
        if seen:
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = run()
        x.uniform_()
        graph.replay()
        assert_close(y, product(m.to("cpu"), weights.cpu(), x.cpu(), False, "number", False))


def test_wrong_numbers_of_loihis_connections_on_a_gpu(cuda):
    x = torch.ones(2, 4, dtype=torch.int32, device=cuda)
    crow, col = torch.tensor([0, 2, 3]), torch.tensor([0, 2**40, 1])
    values = torch.ones(3, dtype=torch.int32, device=cuda)
    call = lambda: ops.loihi_sparse(x, crow.to(cuda), col.to(cuda), values)
    synchronized(call)
    refused(ValueError, "loihi_sparse: an earlier call, loihi_sparse on cuda:0", call)
    assert ops.loihi_sparse(x, crow.to(cuda), col.clamp(0, 3).to(cuda), values, delay=0)[0].tolist() == [[2, 1]] * 2


def test_lengths_of_rows_of_a_large_matrix(device):
    """A wrong index is found at any position."""
    m = from_lengths(torch.full((1000,), 200), 500)
    for place in (0, 65_535, 65_536, 131_071, 199_999):
        wrong = Matrix(m.indices.clone(), m.indptr, m.rows, m.cols)
        wrong.indices[place] = 500
        wrong = wrong.to(device)
        with pytest.raises(ValueError, match=rf"csrmv: indices must be from 0 to cols - 1 = 499, but indices\[{place}\]"):
            for _ in range(2):
                ops.csrmv(torch.ones(1, device=device), wrong.indices, wrong.indptr, torch.ones(500, device=device), **m.size)
                torch.cuda.synchronize() if device.type == "cuda" else None


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("byte", [2, 255])
@pytest.mark.parametrize("size", [5, 70])
def test_a_bool_of_any_byte_is_true_or_false(size, byte, transpose, device):
    """torch's views can create bools with bytes other than 0 and 1."""
    true = torch.full((size,), byte, dtype=torch.uint8, device=device).view(torch.bool)
    m = from_lengths(torch.full((size,), 3), size).to(device)
    fixed = torch.arange(size * 3, device=device).reshape(size, 3).int() % size
    weights, ones = torch.ones(1, device=device), torch.ones(size, dtype=torch.bool, device=device)
    trace = torch.ones(size, device=device)
    calls = [
        lambda e: ops.event_csrmv(weights, m.indices, m.indptr, e, **m.size, transpose=transpose),
        lambda e: ops.csrmv(weights, m.indices, m.indptr, e, **m.size, transpose=transpose),
        lambda e: ops.event_ellmv(weights, fixed, e, cols=size, transpose=transpose),
        lambda e: ops.event_csrmm(weights, m.indices, m.indptr, e[:, None].expand(-1, 2), **m.size, transpose=transpose),
        lambda e: ops.stdp_pre(torch.zeros(len(m.indices), device=device), m.indices, m.indptr, e, trace, **m.size),
        lambda e: ops.event_linear(e, torch.ones(size, 3, device=device)), lambda e: ops.pack_events(e),
    ]
    for call in calls:
        try:
            wanted = call(ones)
        except (TypeError, NotImplementedError):  # the product does not support bool
            continue
        assert torch.equal(call(true), wanted)
