"""Gradients of event products, and PyTorch's requirements for operators."""

import pytest
import torch
from events import (assert_close, both_orders, both_weights, contribution, from_lengths, matrix, ops, product, random_entries,
                    random_weights)


def small(device, shared, transpose, columns=False, batch=()):
    m = from_lengths(torch.randint(0, 6, (7,)), 9).to(device)
    weights = random_weights(m, shared, torch.float64, device).requires_grad_()
    size = m.rows if transpose else m.cols
    x = random_entries((*batch, size, 3) if columns else (*batch, size), torch.float64, 0.5).nan_to_num().to(device).requires_grad_()
    return m, weights, x


@both_weights
@both_orders
def test_gradcheck_of_float_products(transpose, shared, device):
    for columns, batch in ((False, ()), (True, ()), (False, (2, 2)), (True, (2,))):
        m, weights, x = small(device, shared, transpose, columns, batch)
        op = ops.csrmm if columns else ops.csrmv
        run = lambda w, x: op(w, m.indices, m.indptr, x, **m.size, transpose=transpose)
        # On a GPU, products by columns are summed in any order.
        assert torch.autograd.gradcheck(run, (weights, x), nondet_tol=1e-12)
        assert torch.autograd.gradgradcheck(run, (weights, x), nondet_tol=1e-12)


@both_weights
@both_orders
def test_the_gradient_of_events_is_that_of_the_float_product(transpose, shared, device):
    """Entries without an event have a straight-through gradient too. For bool events, only weights have one."""
    for graded in (False, True):
        for columns in (False, True):
            m, weights, x = small(device, shared, transpose, columns)
            y = (ops.event_csrmm if columns else ops.event_csrmv)(weights, m.indices, m.indptr, x, **m.size, transpose=transpose, graded=graded)
            g = torch.randn_like(y)
            grad_weights, grad_x = torch.autograd.grad(y, (weights, x), g)
            dense = m.dense(weights)
            assert_close(grad_x, (dense if transpose else dense.T) @ g.cpu())
            counted = contribution(x, "graded" if graded else "event")
            rows, cols = m.row_of_connections(), m.indices.cpu().long()
            source, target = (rows, cols) if transpose else (cols, rows)
            each = counted[source] * g.cpu()[target]
            each = each.sum(-1) if columns else each
            assert_close(grad_weights, each.sum().reshape(1) if shared else each)
    m, weights, x = small(device, shared, transpose)
    by_bool, by_float = (ops.event_csrmv(weights, m.indices, m.indptr, events, **m.size, transpose=transpose) for events in (x > 0, x))
    assert torch.equal(by_bool, by_float) and by_bool.requires_grad
    assert torch.equal(*(torch.autograd.grad(y.sum(), weights)[0] for y in (by_bool, by_float)))


def test_gradients_have_their_arguments_types(device):
    m = matrix("random").to(device)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for shared in (False, True):
            weights = random_weights(m, shared, dtype, device).requires_grad_()
            x = random_entries(m.cols, torch.float32).nan_to_num().to(device).requires_grad_()
            y = ops.event_csrmv(weights, m.indices, m.indptr, x, **m.size)
            y.sum().backward()
            assert weights.grad.dtype == dtype and weights.grad.shape == weights.shape
            assert x.grad.dtype == torch.float32
            assert_close(x.grad, product(m, weights, torch.ones(m.rows), True, "number", False), dtype)


@both_weights
@both_orders
def test_opcheck(transpose, shared, device):
    for columns in (False, True):
        m, weights, x = small(device, shared, transpose, columns, (2,))
        options = dict(m.size, transpose=transpose)
        for gradients in (False, True):
            tensors = [t.detach().requires_grad_(gradients) for t in (weights, x)]
            event, plain = (ops.event_csrmm, ops.csrmm) if columns else (ops.event_csrmv, ops.csrmv)
            for op in (event.default, plain.default):
                torch.library.opcheck(op, (tensors[0], m.indices, m.indptr, tensors[1]), options)
    m, weights, x = small(device, False, transpose)
    lowered = dict(m.size, transpose=transpose, matrix=False, values="graded")
    torch.library.opcheck(ops.csr_product.default, (weights, m.indices, m.indptr, x), dict(lowered, deterministic=True))
    grad = torch.randn(m.cols if transpose else m.rows, dtype=torch.float64, device=device)
    torch.library.opcheck(ops.csr_weight_grad.default, (x, grad, m.indices, m.indptr), lowered)
    torch.library.opcheck(ops.csr_check.default, (m.indices, m.indptr), m.size)


def test_opcheck_of_ell(device):
    indices = torch.randint(8, (5, 3), dtype=torch.int32, device=device)
    for shape in ((1,), (5, 3)):
        weights = torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
        x = torch.randn(8, dtype=torch.float64, device=device, requires_grad=True)
        torch.library.opcheck(ops.event_ellmv.default, (weights, indices, x), dict(cols=8))
        assert torch.autograd.gradcheck(lambda w, x: ops.ellmv(w, indices, x, cols=8), (weights, x))


@both_orders
def test_vmap(transpose, device):
    m, weights, x = small(device, False, transpose, batch=(4,))
    call = lambda w, x: ops.event_csrmv(w, m.indices, m.indptr, x, **m.size, transpose=transpose)
    expected = call(weights, x)
    torch.testing.assert_close(torch.vmap(call, (None, 0))(weights, x), expected)
    torch.testing.assert_close(torch.vmap(call, (None, 1))(weights, x.T.contiguous()), expected)
    several = torch.randn(4, len(weights), dtype=torch.float64, device=device)
    torch.testing.assert_close(torch.vmap(call)(several, x), torch.stack([call(w, e) for w, e in zip(several, x)]))
    torch.testing.assert_close(torch.vmap(call, (0, None))(several, x[0]), torch.stack([call(w, x[0]) for w in several]))
    nested = torch.vmap(torch.vmap(call, (None, 0)), (None, 0))(weights, x.view(2, 2, -1))
    torch.testing.assert_close(nested.flatten(0, 1), expected)
    g = torch.randn_like(expected)
    through = torch.autograd.grad(torch.vmap(call, (None, 0))(weights, x), (weights, x), g)
    torch.testing.assert_close(through, torch.autograd.grad(expected, (weights, x), g))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("operator", ["csrmv", "event_csrmv", "jit_csrmv", "event_linear"])
def test_torch_func_differentiates(operator, device):
    m, weights, x = small(device, False, False, batch=(4,))
    weights, x = weights.detach(), x.detach()
    call = lambda w, x: getattr(ops, operator)(w, m.indices, m.indptr, x, **m.size)
    if operator == "event_linear":
        weights = torch.randn(x.shape[-1], 3, dtype=x.dtype, device=device)
        call = lambda w, x: ops.event_linear(x, w)
    elif operator == "jit_csrmv":
        weights, size = weights[:1], m.size["cols"]
        call = lambda w, x: ops.jit_csrmv(w, x, prob=0.4, seed=3, rows=7, cols=size)
    loss = lambda w, x: call(w, x).sin().sum()

    def expected(*values):
        leaves = [t.clone().requires_grad_() for t in values]
        return torch.autograd.grad(loss(*leaves), leaves)

    want = expected(weights, x)
    pull = torch.func.vjp(loss, weights, x)[1](torch.ones((), dtype=x.dtype, device=device))
    for got in (torch.func.grad(loss, argnums=(0, 1))(weights, x), torch.func.jacrev(loss, argnums=(0, 1))(weights, x), pull):
        torch.testing.assert_close(got, want)
    each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(None, 0))(weights, x)
    for a, e in zip(each, zip(*(expected(weights, one) for one in x))):
        torch.testing.assert_close(a, torch.stack(e))
    if operator != "event_linear":  # event_linear has no second derivative
        hessian = torch.func.jacrev(torch.func.jacrev(loss, argnums=1), argnums=1)(weights, x[0])
        torch.testing.assert_close(hessian, torch.autograd.functional.hessian(lambda x: loss(weights, x), x[0]))


@pytest.mark.parametrize("how", ["dual numbers", "torch.func.jvp"])
def test_forward_mode_raises(how, device):
    m, weights, x = small(device, False, False)
    call = lambda x: ops.event_csrmv(weights, m.indices, m.indptr, x, **m.size).sum()
    x, tangent = x.detach(), torch.ones_like(x)
    with pytest.raises(NotImplementedError, match="event_csrmv: forward-mode differentiation"):
        if how == "torch.func.jvp":
            torch.func.jvp(call, (x,), (tangent,))
        with torch.autograd.forward_ad.dual_level():
            call(torch.autograd.forward_ad.make_dual(x, tangent))


def test_compile_keeps_the_product_whole(device):
    m, weights, x = small(device, False, True)
    call = lambda w, x: ops.event_csrmv(w, m.indices, m.indptr, x, **m.size, transpose=True).square().sum()
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(*(torch.autograd.grad(run(weights, x), (weights, x)) for run in (compiled, call)))


def test_export_keeps_the_product_whole(device):
    m, weights, x = small(device, False, True)

    class Synapses(torch.nn.Module):
        def forward(self, weights, events):
            return ops.event_csrmv(weights, m.indices, m.indptr, events, **m.size, transpose=True, deterministic=True)

    arguments = weights.detach(), x.detach()
    program = torch.export.export(Synapses(), arguments)
    called = [node.target for node in program.graph.nodes if "spikeforge" in str(node.target)]
    assert len(called) == 1
    for exported in (program, program.run_decompositions()):
        assert torch.equal(exported.module()(*arguments), Synapses()(*arguments))


def test_one_compiled_product_serves_batches_of_any_size(device):
    m, weights, x = small(device, False, False, batch=(3,))
    call = lambda x: ops.event_csrmv(weights, m.indices, m.indptr, x, **m.size)
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch in (3, 5, 8):
        events = random_entries((batch, m.cols), torch.float64, 0.5).nan_to_num().to(device)
        assert torch.equal(compiled(events), call(events))


def test_under_autocast_types_are_as_they_are_outside(device):
    m = matrix("random").to(device)
    x = random_entries(m.cols, torch.float32).nan_to_num().to(device)
    for dtype in (torch.float32, torch.bfloat16):
        weights = random_weights(m, False, dtype, device)
        outside = ops.event_csrmv(weights, m.indices, m.indptr, x, **m.size)
        with torch.autocast(device.type, torch.bfloat16):
            inside = ops.event_csrmv(weights, m.indices, m.indptr, x, **m.size)
        assert inside.dtype == dtype and torch.equal(inside, outside)


def test_gradients_with_respect_to_a_mapped_matrix(device):
    m, weights, x = small(device, False, False)
    several = torch.randn(4, len(weights), dtype=torch.float64, device=device, requires_grad=True)
    call = lambda w: ops.event_csrmv(w, m.indices, m.indptr, x.detach(), **m.size)
    (together,) = torch.autograd.grad(torch.vmap(call)(several).square().sum(), several)
    (one_by_one,) = torch.autograd.grad(torch.stack([call(w) for w in several]).square().sum(), several)
    torch.testing.assert_close(together, one_by_one)
