"""Products of sparse matrices and events against dense float64 expressions."""

import pytest
import torch
from events import (KINDS, TYPES, Matrix, assert_close, both_orders, both_weights, from_lengths, matrix, ops, product,
                    random_entries, random_weights)
from loops import refused, with_threads


VARIANTS = ["event", "graded", "number"]


def call(m, weights, x, transpose, values, columns, **options):
    name = ("" if values == "number" else "event_") + ("csrmm" if columns else "csrmv")
    if values == "graded":
        options["graded"] = True
    return getattr(ops, name)(weights, m.indices, m.indptr, x, **m.size, transpose=transpose, **options)


def check(m, shared, dtype, entries, transpose, values, shape, columns, device, **options):
    weights = random_weights(m, shared, dtype)
    size = m.rows if transpose else m.cols
    x = random_entries((*shape[:-1], size, shape[-1]) if columns else (*shape, size), entries)
    if values == "number":
        x = x.nan_to_num()
    y = call(m.to(device), weights.to(device), x.to(device), transpose, values, columns, **options)
    assert y.dtype == dtype and y.device.type == device.type
    assert_close(y, product(m, weights, x, transpose, values, columns))


@both_weights
@both_orders
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_every_kind_of_matrix(kind, transpose, shared, device):
    m = matrix(kind)
    for dtype in (torch.float64, torch.float32):
        for values in VARIANTS:
            for entries in [torch.bool, dtype] if values == "event" else [dtype]:
                check(m, shared, dtype, entries, transpose, values, (), False, device)
                for shape in ((1,), (5,), (40,)):
                    check(m, shared, dtype, entries, transpose, values, shape, True, device)


@both_weights
@both_orders
def test_every_pair_of_types(transpose, shared, device):
    m = matrix("ragged")
    for dtype in TYPES:
        for entries in [torch.bool, *TYPES]:
            for values in VARIANTS if entries != torch.bool else ["event", "graded"]:
                check(m, shared, dtype, entries, transpose, values, (), False, device)
        check(m, shared, dtype, dtype, transpose, "event", (3,), True, device)


@both_weights
@both_orders
def test_leading_dimensions(transpose, shared, device):
    m = matrix("random")
    for values in VARIANTS:
        for shape in ((1,), (3,), (2, 5), (70,), (0,)):
            check(m, shared, torch.float64, torch.float64, transpose, values, shape, False, device)
            check(m, shared, torch.float64, torch.float64, transpose, values, (*shape, 3), True, device)


@both_weights
@both_orders
def test_many_vectors_of_few_events(transpose, shared, device):
    m = matrix("ragged")
    weights = random_weights(m, shared, torch.float64)
    for values in VARIANTS:
        x = random_entries((40, m.rows if transpose else m.cols), torch.float64, activity=0.01).nan_to_num()
        y = call(m.to(device), weights.to(device), x.to(device), transpose, values, False)
        assert_close(y, product(m, weights, x, transpose, values, False))


@both_orders
def test_weights_of_entries_without_an_event_have_no_influence(transpose, device):
    m = matrix("random")
    for dtype in (torch.float64, torch.float32, torch.float16):
        for values in ("event", "graded"):
            for columns in (False, True):
                size = m.rows if transpose else m.cols
                x = random_entries((size, 3) if columns else (size,), dtype, 0.4)
                active = (x > 0).any(-1) if columns else x > 0
                inputs = m.row_of_connections() if transpose else m.indices.long()
                weights = random_weights(m, False, dtype)
                expected = product(m, weights, x, transpose, values, columns)
                poisoned = torch.where(active[inputs], weights, torch.tensor([torch.nan, torch.inf], dtype=dtype).repeat(len(weights))[: len(weights)])
                assert_close(call(m.to(device), poisoned.to(device), x.to(device), transpose, values, columns), expected)
                nothing = call(m.to(device), torch.tensor([torch.nan], dtype=dtype, device=device), torch.zeros_like(x, device=device), transpose, values, columns)
                assert nothing.eq(0).all()


@both_orders
def test_an_infinite_weight_of_an_event_is_infinite(transpose, device):
    m = Matrix(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0, 1, 2]), 2, 2)
    weights = torch.tensor([torch.inf, 2.0], device=device)
    for deterministic in (False, True):
        y = ops.event_csrmv(weights, m.indices.to(device), m.indptr.to(device), torch.tensor([True, True], device=device), **m.size, transpose=transpose, deterministic=deterministic)
        assert y.tolist() == [torch.inf, 2.0]


@both_orders
def test_half_types_sum_in_float32_and_round_once(transpose, device):
    """4096 ones and a one are 4097, rounded to 4096 in float16; a sum in float16 would stop at 2048."""
    n = 4097
    column = Matrix(torch.zeros(n, dtype=torch.int32), torch.arange(n + 1), n, 1)
    row = Matrix(torch.arange(n, dtype=torch.int32), torch.tensor([0, n]), 1, n)
    m = (column if transpose else row).to(device)
    events = torch.ones(n, dtype=torch.bool, device=device)
    for weights in (torch.ones(n, device=device), torch.ones(1, device=device)):
        for dtype in (torch.float16, torch.bfloat16):
            y = ops.event_csrmv(weights.to(dtype), m.indices, m.indptr, events, **m.size, transpose=transpose)
            assert y.tolist() == [torch.tensor(4097.0).to(dtype).item()]


def test_counts_beyond_the_whole_numbers_of_float32_are_exact(device):
    n = 2**24 + 2
    m = Matrix(torch.zeros(n, dtype=torch.int32), torch.tensor([0, n]), 1, 1).to(device)
    event = torch.ones(1, dtype=torch.bool, device=device)
    for transpose in (False, True):
        y = ops.event_csrmv(torch.ones(1, device=device), m.indices, m.indptr, event, **m.size, transpose=transpose)
        assert y.item() == n


@both_weights
@both_orders
def test_ell(transpose, shared, device):
    rows, width, cols = 50, 13, 31
    for width in (13, 1, 0):
        indices = torch.randint(cols, (rows, width), dtype=torch.int32)
        m = Matrix(indices.flatten(), torch.arange(rows + 1) * width, rows, cols)
        weights = torch.randn((1,) if shared else (rows, width), dtype=torch.float64)
        flat = weights if shared else weights.flatten()
        for values in VARIANTS:
            for columns in (False, True):
                size = rows if transpose else cols
                x = random_entries((size, 4) if columns else (size,), torch.float64).nan_to_num()
                name = ("" if values == "number" else "event_") + ("ellmm" if columns else "ellmv")
                options = dict(graded=True) if values == "graded" else {}
                y = getattr(ops, name)(weights.to(device), indices.to(device), x.to(device), cols=cols, transpose=transpose, **options)
                assert_close(y, product(m, flat, x, transpose, values, columns))


@both_weights
def test_large_matrices_in_several_threads(shared):
    """The same number of threads gives the same bits; with a shared weight, any number does."""
    m = from_lengths(torch.randint(0, 300, (2000,)), 700)
    weights = random_weights(m, shared, torch.float32)
    for transpose in (False, True):
        x = random_entries(m.rows if transpose else m.cols, torch.bool, 0.5)
        results = with_threads((1, 3, 3, 7), lambda: call(m, weights, x, transpose, "event", False))
        for result in results:
            assert_close(result, product(m, weights, x, transpose, "event", False))
        assert torch.equal(results[1], results[2])
        if shared or not transpose:
            assert all(torch.equal(results[0], result) for result in results)


def with_hubs(rows, every, length):
    """Returns lengths of short rows, and a long row for each `every` rows."""
    lengths = torch.randint(0, 4, (rows,))
    lengths[::every] = length
    return lengths


# Sizes for which a GPU has a special schedule: many connections per column (sums in shared memory), more than a million
# columns (sums in place; too many bits for shared memory), few long rows, some long rows among many, and more vectors
# than the largest height of a grid.
@both_weights
@both_orders
@pytest.mark.parametrize("lengths, cols, shape", [
    (torch.full((20_000,), 40), 300, ()), (torch.full((300,), 100), 1_200_000, ()), (torch.full((3,), 9000), 500, ()),
    (with_hubs(150_000, 1000, 6000), 500, ()), (torch.full((3,), 4), 5, (70_000,))],
    ids=["dense_columns", "many_columns", "long_rows", "hubs", "many_vectors"])
def test_sizes_that_go_their_own_way(lengths, cols, shape, transpose, shared, device):
    rows = len(lengths)
    m = from_lengths(lengths, cols, sort=False)
    source, target = (m.row_of_connections(), m.indices.long()) if transpose else (m.indices.long(), m.row_of_connections())
    for dtype in (torch.float32, torch.float64):
        weights = random_weights(m, shared, dtype)
        for values in VARIANTS:
            x = random_entries((*shape, rows if transpose else cols), dtype, 0.5).nan_to_num()
            y = call(m.to(device), weights.to(device), x.to(device), transpose, values, False)
            counted = {"event": x > 0, "graded": x.clamp(min=0), "number": x}[values].double()
            expected = torch.zeros(*shape, cols if transpose else rows, dtype=torch.float64)
            assert_close(y, expected.index_add(-1, target, counted[..., source] * weights.double()))


@both_weights
@pytest.mark.covering(2)
@pytest.mark.parametrize("columns", [1, 3, 40])
@pytest.mark.parametrize("rows", [300, 40_000], ids=["few", "many"])
def test_long_rows_that_wait_for_a_block(rows, columns, shared, device, monkeypatch):
    """A block has up to 64 rows, so 40,000 rows need more blocks than any device runs at once."""
    monkeypatch.setenv("SPIKEFORGE_EVENT_SCHEDULE", "blocks=1,long_row=16")
    lengths = torch.randint(0, 17, (rows,))
    lengths[::2] = torch.randint(17, 40, (rows // 2,))
    m = from_lengths(lengths, 60)
    for values in ("event", "number"):
        check(m, shared, torch.float64, torch.float64, False, values, (columns,), True, device)
        check(m, shared, torch.float32, torch.float32, False, values, (), False, device)


@both_weights
def test_gathers_give_the_same_bits_every_time(shared, device):
    """Includes rows that wait for a block and are processed in any order."""
    m = from_lengths(with_hubs(30_000, 100, 3000), 500)
    weights = random_weights(m, shared, torch.float32)
    for values in VARIANTS:
        x = random_entries(500, torch.float32, 0.5).nan_to_num()
        results = [call(m.to(device), weights.to(device), x.to(device), False, values, False) for _ in range(5)]
        assert all(torch.equal(results[0], result) for result in results)


@pytest.mark.parametrize("activity", [1.0, 0.2])
def test_listed_tasks_are_added_in_place(activity, device, monkeypatch):
    """The sums are the results themselves, and blocks find more tasks than they add at once."""
    monkeypatch.setenv("SPIKEFORGE_EVENT_SCHEDULE", "in_place_from=0,private_allowed=0")
    m = from_lengths(torch.randint(0, 600, (20_000,)), 300, sort=False)
    weights = random_weights(m, False, torch.float64)
    x = random_entries(m.rows, torch.float64, activity).nan_to_num()
    assert_close(call(m.to(device), weights.to(device), x.to(device), True, "event", False), product(m, weights, x, True, "event", False))


@both_weights
@both_orders
def test_the_deterministic_way_gives_the_same_bits_every_time(transpose, shared, device):
    m = from_lengths(torch.randint(0, 300, (3000,)), 70)
    for dtype in (torch.float32, torch.float16, torch.float64):
        weights = random_weights(m, shared, dtype)
        for values in VARIANTS:
            x = random_entries(m.rows if transpose else m.cols, dtype, 0.5).nan_to_num()
            results = [call(m.to(device), weights.to(device), x.to(device), transpose, values, False, deterministic=True) for _ in range(5)]
            assert_close(results[0], product(m, weights, x, transpose, values, False))
            assert all(torch.equal(results[0], result) for result in results)


def test_the_deterministic_way_sums_products_below_the_least_number_to_0(device):
    m = from_lengths([4], 3)
    for exponent in range(980, 1023):
        tiny = torch.tensor([2.0**-exponent], dtype=torch.float64, device=device)
        y = call(m.to(device), tiny.expand(4), tiny, True, "number", False, deterministic=True)
        assert torch.equal(y.cpu(), torch.zeros(3, dtype=torch.float64)), exponent


def test_tensors_of_other_layouts_are_read(device):
    m = matrix("random").to(device)
    weights = random_weights(m, False, torch.float64, device)
    x = random_entries((m.cols, 4), torch.float64).to(device)
    expected = ops.event_csrmm(weights, m.indices, m.indptr, x, **m.size)
    strided = torch.stack([weights, weights], 1)[:, 0]
    assert torch.equal(ops.event_csrmm(strided, torch.stack([m.indices] * 2, 1)[:, 1], torch.stack([m.indptr] * 2, 1)[:, 0], x.T.contiguous().T, **m.size), expected)
    column = ops.event_csrmv(weights, m.indices, m.indptr, x[:, 2], **m.size)
    torch.testing.assert_close(column, expected[:, 2])


def test_a_matrix_that_fails_the_check_raises(device):
    good = Matrix(torch.tensor([0, 2, 1, 1], dtype=torch.int32), torch.tensor([0, 2, 2, 4]), 3, 3)

    def checked(indices=good.indices, indptr=good.indptr, rows=3, cols=3, **options):
        ops.csr_check(torch.as_tensor(indices, dtype=torch.int32).to(device), torch.as_tensor(indptr).to(device), rows=rows, cols=cols, **options)

    checked()
    for words, arguments in {
        "indptr must begin with 0, but begins with 1": dict(indptr=[1, 2, 2, 4]),
        r"indptr must not decrease, but indptr\[1\] is 3 and indptr\[2\] is 2": dict(indptr=[0, 3, 2, 4]),
        "indptr must end with 4, the number of indices, but ends with 5": dict(indptr=[0, 2, 2, 5]),
        r"indices must be from 0 to cols - 1 = 2, but indices\[1\], in row 0, is 3": dict(indices=[0, 3, 1, 1]),
        r"indices must be from 0 to cols - 1 = 2, but indices\[0\], in row 0, is -1": dict(indices=[-1, 2, 1, 1]),
        r"the indices of a row must not decrease, but indices\[0\] is 2 and indices\[1\], in the same row 0, is 0": dict(indices=[2, 0, 1, 1]),
        r"indptr must have shape \[rows \+ 1\] = \[5\], but has \[4\]": dict(rows=4),
    }.items():
        refused(ValueError, f"csr_check: {words}", lambda: checked(**arguments))
    checked(indices=[2, 0, 1, 1], sorted=False)


def test_every_wrong_argument_raises(device):
    m = matrix("random").to(device)
    weights, events = torch.ones(1, device=device), torch.zeros(m.cols, dtype=torch.bool, device=device)
    good = dict(weights=weights, indices=m.indices, indptr=m.indptr, events=events, **m.size)

    def refused(error, words, **changes):
        arguments = dict(good, **changes)
        first = [arguments.pop(name) for name in ("weights", "indices", "indptr", "events")]
        with pytest.raises(error, match=f"event_csrmv: {words}"):
            ops.event_csrmv(*first, **arguments)

    refused(TypeError, "weights must be a dense float16, bfloat16, float32 or float64 tensor, but is Strided Int", weights=weights.int())
    refused(ValueError, r"weights must have one element, shared by all connections, or the shape of indices", weights=torch.ones(2, device=device))
    refused(TypeError, r"indices must be a dense int32 tensor, but is Strided Long; pass indices.to\(torch.int32\)", indices=m.indices.long())
    refused(ValueError, "indices must have one dimension, but has shape", indices=m.indices.unsqueeze(0))
    refused(TypeError, "indptr must be a dense int32 or int64 tensor, but is Strided Float", indptr=m.indptr.float())
    refused(ValueError, r"indptr must have shape \[rows \+ 1\] = \[72\], but has \[71\]", rows=71)
    refused(ValueError, r"rows must be from 0 to 2\^31, but is -1", rows=-1)
    refused(ValueError, r"cols must be from 0 to 2\^31, but is -2", cols=-2)
    refused(TypeError, "events must be a dense bool, float16, bfloat16, float32 or float64 tensor, but is Strided Long", events=events.long())
    refused(ValueError, r"events must have shape \[..., cols\] with cols = 90, but has \[3\]", events=events[:3])
    refused(ValueError, r"events must have shape \[..., rows\] with rows = 70 under transpose, but has \[90\]", transpose=True)
    with pytest.raises(TypeError, match="csrmm: matrix must be a dense float16, bfloat16, float32 or float64 tensor, but is Strided Bool"):
        ops.csrmm(weights, m.indices, m.indptr, events.unsqueeze(1), **m.size)
    with pytest.raises(ValueError, match=r"event_ellmv: indices must have shape \[rows, connections a row\]"):
        ops.event_ellmv(weights, m.indices, events, cols=m.cols)
    if device.type == "cuda":
        refused(ValueError, "events must be on cuda:0, the device of indices, but is on cpu", events=events.cpu())


def test_errors_are_the_same_where_shapes_alone_are_known():
    indices, indptr = torch.tensor([0, 1, 2], dtype=torch.int32, device="meta"), torch.zeros(3, dtype=torch.int64, device="meta")
    weights, events = torch.ones(3, device="meta"), torch.ones(3, device="meta")
    assert ops.event_csrmv(weights, indices, indptr, events, rows=2, cols=3).shape == (2,)
    for error, words, arguments, size in (
        (ValueError, r"rows must be from 0 to 2\^31, but is -1", (weights, indices, indptr, events), (-1, 3)),
        (ValueError, r"rows must be from 0 to 2\^31, but is 4611686018427387904", (weights, indices, indptr, events), (2**62, 3)),
        (ValueError, r"indptr must have shape \[rows \+ 1\] = \[2\], but has \[3\]", (weights, indices, indptr, events), (1, 3)),
        (TypeError, "indptr must be a dense int32 or int64 tensor", (weights, indices, indptr.short(), events), (2, 3)),
        (TypeError, "indices must be a dense int32 tensor", (weights, indices.long(), indptr, events), (2, 3)),
        (ValueError, "weights must have one element", (weights[:0], indices, indptr, events), (2, 3)),
        (ValueError, r"events must have shape \[..., cols\]", (weights, indices, indptr, events[0]), (2, 3)),
    ):
        refused(error, f"event_csrmv: {words}", lambda: ops.event_csrmv(*arguments, rows=size[0], cols=size[1]))


@both_orders
def test_rows_that_lie_about_themselves_are_refused_on_the_cpu(transpose):
    """On a GPU, the host reads nothing; test_verified.py tests the errors there."""
    indices, weights = torch.tensor([0, 1, 2], dtype=torch.int32), torch.ones(3)
    for indptr in ([0, 900_000_000, 3], [0, -5, 3], [1, 2, 3], [0, 2, 9], [0, 2, 2]):
        for dtype in (torch.int32, torch.int64):
            lying = torch.tensor(indptr, dtype=dtype)
            with pytest.raises(ValueError, match="csrmv: indptr must begin with 0, never decrease and end with 3"):
                ops.csrmv(weights, indices, lying, torch.ones(2 if transpose else 3), rows=2, cols=3, transpose=transpose)
            with pytest.raises(ValueError, match="stdp_pre: indptr must begin with 0"):
                ops.stdp_pre(weights, indices, lying, torch.ones(2), weights, rows=2, cols=3)
            refused(ValueError, "csr_transpose: indptr must", lambda: ops.csr_transpose(indices, lying, rows=2, cols=3))
