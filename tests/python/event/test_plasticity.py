"""Spike-timing-dependent updates of weights, and packed events."""

import pytest
import torch
from loops import refused
from events import TOLERANCE, from_lengths, matrix, ops, random_entries


def expected_weights(m, weights, events, trace, of_rows, least, most):
    """Returns the updated weights, computed in float64 one connection at a time."""
    result = weights.double().clone()
    active = events if events.dtype == torch.bool else events > 0
    for k, (i, j) in enumerate(zip(m.row_of_connections().tolist(), m.indices.tolist())):
        if active[i if of_rows else j]:
            result[k] = min(max(result[k] + float(trace[j if of_rows else i]), least), most)
    return result


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("post", [False, True], ids=["pre", "post"])
def test_plasticity(post, dtype, device):
    for kind in ("random", "unsorted", "ragged", "empty", "one_column"):
        m = matrix(kind)
        weights = torch.rand(len(m.indices)).to(dtype)
        events = random_entries(m.cols if post else m.rows, torch.bool if kind == "random" else torch.float32, 0.4)
        trace = torch.randn(m.rows if post else m.cols).to(dtype)
        expected = expected_weights(m, weights, events, trace, not post, 0.1, 0.9)
        at = m.to(device)
        structure = ops.csr_transpose(at.indices, at.indptr, **m.size) if post else (at.indices, at.indptr)
        for in_place in (False, True):
            op = getattr(ops, ("stdp_post" if post else "stdp_pre") + ("_" if in_place else ""))
            given = weights.to(device).clone()
            result = op(given, *structure, events.to(device), trace.to(device), **m.size, w_min=0.1, w_max=0.9)
            if in_place:
                assert result is None
                result = given
            else:
                assert torch.equal(given.cpu(), weights)
            torch.testing.assert_close(result.cpu().double(), expected, rtol=0, atol=TOLERANCE[dtype])


def test_the_transposed_matrix_is_checked_and_leads_back(device):
    m = matrix("unsorted").to(device)
    rows, begins, slots = ops.csr_transpose(m.indices, m.indptr, **m.size)
    ops.csr_check(rows, begins, rows=m.cols, cols=m.rows)
    weights = torch.randn(len(m.indices), dtype=torch.float64, device=device)
    x = torch.randn(m.rows, dtype=torch.float64, device=device)
    forward = ops.csrmv(weights, m.indices, m.indptr, x, **m.size, transpose=True)
    backward = ops.csrmv(weights[slots], rows, begins, x, rows=m.cols, cols=m.rows)
    torch.testing.assert_close(forward, backward)


def test_wrong_arguments_of_plasticity_raise(device):
    m = matrix("random").to(device)
    weights, events, trace = torch.ones(len(m.indices), device=device), torch.ones(m.rows, device=device), torch.ones(m.cols, device=device)
    call = lambda w=weights, e=events, t=trace, **o: ops.stdp_pre_(w, m.indices, m.indptr, e, t, **m.size, **o)
    refused(ValueError, "stdp_pre: weights must have one element per connection", lambda: call(w=weights[:1]))
    refused(ValueError, r"stdp_pre: events must have shape \[rows\] = \[70\], but has \[90\]", lambda: call(e=trace))
    refused(ValueError, r"stdp_pre: trace must have shape \[cols\] = \[90\], but has \[70\]", lambda: call(t=events))
    refused(TypeError, "stdp_pre: trace must be Float, as the weights", lambda: call(t=trace.double()))
    refused(ValueError, "stdp_pre: w_min must not be above w_max, but they are 2 and 1", lambda: call(w_min=2.0, w_max=1.0))
    refused(ValueError, "stdp_pre: w_min must be a number, but is nan", lambda: call(w_min=float("nan")))
    with pytest.raises(ValueError, match="stdp_pre: weights that are changed in place must not have"):
        call(w=weights[:1].expand(len(weights)))
    assert weights.eq(1).all()


def test_slots_that_lead_nowhere_are_refused_on_the_cpu():
    m = from_lengths([3, 2], 4)
    rows, begins, slots = ops.csr_transpose(m.indices, m.indptr, **m.size)
    weights = torch.ones(5)
    for wrong in (-1, 5, 2**40):
        with pytest.raises(ValueError, match=rf"stdp_post: slots must be those of csr_transpose, from 0 to 4, but slots\[2\] is {wrong}"):
            ops.stdp_post_(weights, rows, begins, slots.index_fill(0, torch.tensor(2), wrong), torch.ones(4), torch.ones(2), **m.size)
    assert weights.eq(1).all()


def test_weights_may_be_used_as_a_trace(device):
    """Row 0 is updated before row 1 reads the trace: every connection must read the initial values."""
    m = from_lengths([5, 5], 5)
    weights = torch.arange(1.0, 6.0, device=device).repeat(2)
    at = m.to(device)
    expected = weights + weights[: m.cols][at.indices.long()]
    ops.stdp_pre_(weights, at.indices, at.indptr, torch.ones(2, device=device), weights[: m.cols], **m.size)
    assert torch.equal(weights, expected)


def test_opcheck_of_plasticity(device):
    m = matrix("random").to(device)
    weights, events, trace = torch.rand(len(m.indices), device=device), torch.rand(m.rows, device=device) > 0.5, torch.rand(m.cols, device=device)
    for op in (ops.stdp_pre, ops.stdp_pre_):
        torch.library.opcheck(op.default, (weights, m.indices, m.indptr, events, trace), dict(m.size, w_max=1.0))
    structure = ops.csr_transpose(m.indices, m.indptr, **m.size)
    torch.library.opcheck(ops.stdp_post_.default, (weights, *structure, trace > 0.5, torch.rand(m.rows, device=device)), m.size)
    torch.library.opcheck(ops.csr_transpose.default, (m.indices, m.indptr), m.size)


@pytest.mark.parametrize("shape", [(0,), (1,), (31,), (32,), (33,), (3, 100), (2, 0, 5)])
def test_events_as_bits(shape, device):
    for dtype in (torch.bool, torch.float32, torch.float16):
        x = random_entries(shape, dtype, 0.5)
        is_event = x if dtype == torch.bool else x > 0
        packed = ops.pack_events(x.to(device))
        assert packed.dtype == torch.int32 and packed.shape == (*shape[:-1], (shape[-1] + 31) // 32)
        assert torch.equal(ops.unpack_events(packed, shape[-1]).cpu(), is_event)
        for at in is_event.nonzero().tolist()[:50]:
            word = int(packed[(*at[:-1], at[-1] // 32)]) & 0xFFFFFFFF
            assert word >> at[-1] % 32 & 1
    refused(ValueError, r"unpack_events: packed must have shape", lambda: ops.unpack_events(packed, shape[-1] + 32))
    torch.library.opcheck(ops.pack_events.default, (x.to(device),))
