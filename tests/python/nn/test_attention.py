"""Attention between spikes, compared with float64 loops over single elements."""

import itertools

import pytest
import spikeforge
import spikeforge.nn as snn
import torch
from loops import in_pieces, refused
from torch import nn

HEADS = (2, 3, 2)  # T, B, heads


def smooth(sums):
    """A neuron whose gradient is known: sums are of the order of 1."""
    assert sums.dim() == 5
    return torch.tanh(sums - 0.2)


def loop_of_products(q, k, v, scale=0.125):
    y = torch.zeros(*q.shape[:-2], v.shape[-2], q.shape[-1], dtype=q.dtype) + 0 * (q.sum() + k.sum() + v.sum())
    for at in itertools.product(*map(range, q.shape[:-2])):
        for n, m in itertools.product(range(q.shape[-1]), range(k.shape[-1])):
            weight = sum(k[at][d, m] * q[at][d, n] for d in range(q.shape[-2]))
            for e in range(v.shape[-2]):
                y[at][e, n] = y[at][e, n] + scale * weight * v[at][e, m]
    return y


def loop_of_sums(x, over):
    """Sums over channels (-2) or tokens (-1) of x [T, B, heads, D, N]."""
    total = x.narrow(over, 0, 1) * 0 if x.shape[over] else x.new_zeros([*x.shape[:over], 1, *x.shape[over:][1:]])
    for i in range(x.shape[over]):
        total = total + x.narrow(over, i, 1)
    return total


# A function of q, k and v, and its loop.
FUNCTIONS = {
    "products": (snn.spiking_self_attention, loop_of_products),
    "products, scale": (
        lambda q, k, v: snn.spiking_self_attention(q, k, v, -0.3), lambda q, k, v: loop_of_products(q, k, v, -0.3)
    ),
    "token": (lambda q, k, v: snn.qk_attention(q, k, smooth), lambda q, k, v: smooth(loop_of_sums(q, -2)) * k),
    "channel": (
        lambda q, k, v: snn.qk_attention(q, k, smooth, "channel"), lambda q, k, v: smooth(loop_of_sums(q, -1)) * k
    ),
    "driven": (
        lambda q, k, v: snn.spike_driven_self_attention(q, k, v, smooth),
        lambda q, k, v: smooth(loop_of_sums(k * v, -1)) * q,
    ),
}
# Leading dimensions, channels and tokens.
SHAPES = [
    (HEADS, 3, 5), (HEADS, 5, 3), (HEADS, 1, 1), (HEADS, 4, 1), (HEADS, 1, 4), (HEADS, 3, 0), ((0, 2, 3), 2, 3),
    ((2, 0, 3), 2, 3),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_a_loop(name, shape, device):
    function, loop = FUNCTIONS[name]
    leading, channels, tokens = shape
    given = [torch.randn(*leading, channels, tokens, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    copies = [t.detach().to(device).requires_grad_() for t in given]
    expected, got = loop(*given), function(*copies)
    torch.testing.assert_close(got.cpu(), expected)
    upstream = torch.randn_like(expected)
    grads = torch.autograd.grad(expected, given, upstream, materialize_grads=True, allow_unused=True)
    found = torch.autograd.grad(got, copies, upstream.to(device), materialize_grads=True, allow_unused=True)
    for a, b in zip(found, grads):
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (5, 2, 3, 1), (3, 4, 1, 2)])
def test_queries_and_values_may_have_other_sizes_than_keys(sizes, device):
    inner, outer, queries, tokens = sizes
    q, k, v = (
        torch.randn(2, *shape, dtype=torch.float64) for shape in ((inner, queries), (inner, tokens), (outer, tokens))
    )
    got = snn.spiking_self_attention(*(t.to(device) for t in (q, k, v)))
    torch.testing.assert_close(got.cpu(), loop_of_products(q, k, v))


# Channels, tokens and type. With ones, sums are as large as they can be; those of the last case would overflow before
# the scale.
EXACT = [
    (8, 40, torch.float32), (40, 8, torch.float32), (32, 196, torch.float16), (32, 196, torch.bfloat16),
    (100, 301, torch.bfloat16), (301, 100, torch.bfloat16), (64, 2048, torch.float16),
]  # fmt: skip


@pytest.mark.parametrize("channels, tokens, dtype", EXACT, ids=str)
def test_products_of_spikes_are_exact_up_to_one_rounding(channels, tokens, dtype, device):
    ones = torch.ones(1, channels, tokens, device=device)
    spikes = [(torch.rand(3, channels, tokens, device=device) < rate).float() for rate in (0.1, 0.3, 0.5)]
    for given in ([ones] * 3, [ones, spikes[0], ones.clone()], spikes):
        q, k, v = torch.broadcast_tensors(*given)
        exact = (v.double() @ k.double().mT @ q.double() * 0.125).to(dtype)
        assert torch.equal(snn.spiking_self_attention(q.to(dtype), k.to(dtype), v.to(dtype)), exact)
        assert exact.isfinite().all() and exact.any()


def test_an_order_that_may_round_is_computed_if_the_exact_one_costs_too_much():
    ones = torch.ones(8, 301, dtype=torch.bfloat16)
    rounded = torch.tensor(301.0).bfloat16() * 0.125  # of each element of the first product
    expected = (rounded.double() * 8).bfloat16()
    assert (snn.spiking_self_attention(ones, ones, ones) == expected).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_applies_as_to_products_of_torch(dtype, device):
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    q, k, v = ((torch.rand(2, 3, 4, 5, 6, device=device) < 0.5).to(dtype).requires_grad_() for _ in range(3))
    with torch.autocast(device.type, half):
        y, product = snn.spiking_self_attention(q, k, v), v @ k.mT
        token, channel = (snn.qk_attention(q.to(half), k.to(half), smooth, mode) for mode in ("token", "channel"))
        driven = snn.spike_driven_self_attention(q.to(half), k.to(half), v.to(half), smooth)
    assert y.dtype == product.dtype == (half if dtype == torch.float32 else dtype)
    torch.testing.assert_close(y.double(), v.double() @ k.double().mT @ q.double() * 0.125)
    assert token.dtype == channel.dtype == driven.dtype == half
    y.sum().backward()
    assert q.grad.dtype == dtype and q.grad.any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms(name):
    function, _ = FUNCTIONS[name]
    given = [torch.randn(4, *HEADS, 3, 5) for _ in range(3)]
    expected = torch.stack([function(*rows) for rows in zip(*given)])
    torch.testing.assert_close(torch.vmap(function)(*given), expected)
    gradient = torch.func.grad(lambda *rows: function(*rows).square().sum(), argnums=(0, 1, 2))
    for got, *rows in zip(torch.vmap(gradient)(*given)[1], *given):
        torch.testing.assert_close(got, gradient(*rows)[1])
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*(t[0] for t in given)), expected[0])


def attentions(**options):
    return {
        "products": snn.SpikingSelfAttention(12, 3, scale=1.0, **options),
        "token": snn.QKAttention(12, 2, **options),
        "channel": snn.QKAttention(12, 4, mode="channel", **options),
        "driven": snn.SpikeDrivenSelfAttention(12, **options),
    }


def spikes_for(module, x):
    """Makes half of the neurons fire, and returns x."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.constant_(layer.bias, 1.0)
            nn.init.constant_(layer.weight, 1.5)
    return x


def loop_of_module(module, x):
    """The module in float64 with one sample, one head and one step of products at a time."""
    convolution, norm = module.heads_projection.module
    heads, parts, width = module.heads, module.PARTS, module.dim // module.heads
    y = norm(convolution(x.flatten(0, 1))).unflatten(0, x.shape[:2])
    spikes = module.heads_neuron(y).flatten(3)
    groups = [[], [], []]  # of [T, B, D, N] for each head
    for head in range(heads):
        for part in range(parts):
            start = (head * parts + part) * width
            groups[part].append(spikes[:, :, start : start + width])
    q, k, *v = (torch.stack(group, 2) for group in groups[:parts])
    fires = module.attention_neuron
    if isinstance(module, snn.SpikingSelfAttention):
        y = fires(loop_of_products(q, k, *v, module.scale))
    elif isinstance(module, snn.QKAttention):
        y = fires(loop_of_sums(q, -2 if module.mode == "token" else -1)) * k
    else:
        y = q * fires(loop_of_sums(k * v[0], -1))
    y = torch.cat([y[:, :, head] for head in range(heads)], 2).unflatten(3, x.shape[3:])
    convolution, norm = module.projection.module
    return norm(convolution(y.flatten(0, 1))).unflatten(0, x.shape[:2])


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", attentions())
def test_modules_are_their_loops(name, memory):
    module = attentions()[name].double()
    x = spikes_for(module, (torch.rand(3, 2, 12, 3, 2) < 0.5).double())
    expected = loop_of_module(module, x)
    expected.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    got = module.to(memory_format=memory)(x.flatten(0, 1).to(memory_format=memory).unflatten(0, x.shape[:2]))
    assert expected.std() > 0.5
    torch.testing.assert_close(got, expected)
    got.square().sum().backward()
    for parameter, gradient in zip(module.parameters(), gradients):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("name", attentions())
def test_modules_in_pieces_compiled_exported_fused_and_empty(name):
    module = snn.Sequential(attentions()[name], snn.LIF()).eval()
    x = spikes_for(module, (torch.rand(4, 2, 12, 3, 2) < 0.5).float())
    y = module(x)
    assert 0 < y.mean() < 1
    assert torch.equal(in_pieces(module, x.split(1))[0], y)
    assert torch.equal(torch.compile(module, fullgraph=True, backend="aot_eager")(x), y)
    exported = torch.export.export(module, (x,), dynamic_shapes=({1: torch.export.Dim("batch")},))
    assert torch.equal(exported.module()(x[:, :1].repeat(1, 3, 1, 1, 1))[:, 2:], y[:, :1])
    for empty in (x[:0], x[:, :0]):
        assert module(empty).shape == empty.shape
    assert snn.fuse(module, x) == ["0.heads_neuron", "1"]
    assert torch.equal(module(x), y)
    plain = attentions(norm=None, bias=True)[name]
    assert len(list(plain.buffers())) == 0 and plain(x).isfinite().all()


def test_products_are_counted():
    module = attentions()["products"].eval()
    x = spikes_for(module, (torch.rand(3, 2, 12, 3, 2) < 0.5).float())
    seen = []
    module.heads_neuron.register_forward_hook(lambda *call: seen.append(call[2]))
    with spikeforge.count(module) as counted:
        module(x)
    q, k, v = seen[0].flatten(3).unflatten(2, (3, 3, 4)).unbind(3)
    first = v @ k.mT  # D < N
    layer = counted[""]
    assert (layer.role, layer.kind) == ("product", "matmul") and layer.multiply_accumulates == 0
    assert layer.accumulates == first.sum() + (first @ q).sum() > 0


ONE = torch.ones(2, 1, 3, 4)
WRONG = {
    "integers": (TypeError, r"q must be a floating-point tensor.*int64", lambda: snn.spiking_self_attention(ONE.long(), ONE, ONE)),
    "a vector": (TypeError, r"k must be .*float32 \[3\]", lambda: snn.qk_attention(ONE, torch.ones(3), smooth)),
    "no tensor": (TypeError, "v must be .*NoneType", lambda: snn.spike_driven_self_attention(ONE, ONE, None, smooth)),
    "other tokens": (
        ValueError, r"\[\.\.\., E, M\], but have shapes.*3, 5", lambda: snn.spiking_self_attention(ONE, ONE, torch.ones(2, 1, 3, 5))
    ),
    "other channels": (ValueError, "all of one shape", lambda: snn.qk_attention(ONE, torch.ones(2, 1, 1, 4), smooth)),
    "scale": (ValueError, "scale must be a finite number, but is nan", lambda: snn.spiking_self_attention(ONE, ONE, ONE, float("nan"))),
    "scale of text": (ValueError, "scale must be", lambda: snn.spiking_self_attention(ONE, ONE, ONE, "1")),
    "mode": (ValueError, "mode must be 'token' or 'channel', but is 'both'", lambda: snn.qk_attention(ONE, ONE, smooth, "both")),
    "mode of a module": (ValueError, "QKAttention: mode", lambda: snn.QKAttention(8, 2, mode="both")),
    "heads": (ValueError, "heads must divide dim, but dim is 8 and heads is 3", lambda: snn.SpikingSelfAttention(8, 3)),
    "neuron without a threshold": (
        TypeError, "QKAttention: neuron must .* accepts v_threshold, .*unexpected keyword argument", lambda: snn.QKAttention(8, 2, neuron=lambda: snn.LIF())
    ),
    "spikes of a module, integers": (ValueError, r"x must be .*, but is torch.int64", lambda: attentions()["driven"](torch.ones(2, 1, 12, 4, 1).long())),
    "tokens without an image": (
        ValueError, r"x must be .* \[T, B, 12, H, W\], but is torch.float32 \[2, 1, 12, 4\]", lambda: attentions()["driven"](torch.ones(2, 1, 12, 4))
    ),
    "types": (RuntimeError, "Float but found Double", lambda: snn.spiking_self_attention(ONE, ONE.double(), ONE)),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case):
    refused(*WRONG[case])
