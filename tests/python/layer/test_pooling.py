"""max_pool2d and avg_pool2d, and their modules. The oracle is torch's pooling of images, with the same bits and the
same positions of maxima."""

import itertools

import pytest
import torch
from loops import output_of, refused
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.library import opcheck
from torch.nn import functional

import spikeforge.nn as snn

ops = torch.ops.spikeforge
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LAYOUTS = ["plain", "channels_last", "other"]
# kernel_size, stride, padding, dilation
WINDOWS = [
    (2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 1), (1, 1, 0, 1), ((2, 3), (1, 2), (1, 0), 1), ((3, 1), (4, 3), (0, 0), 1),
    (2, 3, 1, 2), ((3, 2), (2, 1), 1, (2, 3)), (4, 2, 2, 1), ((7, 9), 2, (3, 4), 1), ((9, 8), (3, 8), 4, 1), (6, 6, 0, 1),
]


def images(*shape, layout="plain", dtype=torch.float32, device="cpu", spikes=False):
    """Returns [..., C, H, W] with few distinct values, so that maxima occur more than once."""
    x = torch.randint(0, 2, shape).to(device, dtype) if spikes else torch.randn(shape, device=device, dtype=torch.float64).to(dtype)
    if layout == "channels_last":
        return x.movedim(-3, -1).contiguous().movedim(-1, -3)
    if layout == "other":
        return torch.cat([x, x], -1)[..., : shape[-1]].transpose(0, 1).contiguous().transpose(0, 1)[..., :]
    return x


def pair(n):
    return [n] if isinstance(n, int) else list(n)


def by_torch(pool, x, *arguments, **options):
    """Applies torch's pooling of images to x with additional leading dimensions."""
    y = pool(x.flatten(0, -4), *arguments, **options)
    return y.unflatten(0, x.shape[:-3])


def max_pool(x, window, ceil_mode=False):
    return ops.max_pool2d(x, *map(pair, window), ceil_mode)


def gradient(y, x, upstream):
    return torch.autograd.grad(y, x, upstream)[0]


def sizes_that_fit(window):
    smallest = max(max(pair(d)) * (max(pair(k)) - 1) + 1 for k, _, _, d in [window])
    return [(smallest + 3, smallest + 6), (smallest, smallest + 1)]


@pytest.mark.covering(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 8, 40])
def test_maxima_are_those_of_torch(window, ceil_mode, layout, channels, device):
    for size, dtype, spikes in itertools.product(sizes_that_fit(window), TYPES, (False, True)):
        x = images(2, 3, channels, *size, layout=layout, dtype=dtype, device=device, spikes=spikes).requires_grad_()
        expected = by_torch(functional.max_pool2d, x, *window, ceil_mode)
        y = max_pool(x, window, ceil_mode)
        assert torch.equal(y, expected)
        upstream = torch.randint(-8, 9, y.shape, device=device).to(dtype)  # sums of these are exact
        assert torch.equal(gradient(y, x, upstream), gradient(expected, x, upstream))
        assert torch.equal(max_pool(x.detach(), window, ceil_mode), expected)  # without positions
        if layout != "other" and channels > 1 and y[0, 0, 0].numel() > 1:
            assert y.is_contiguous() == (layout == "plain") and y.movedim(-3, -1).is_contiguous() == (layout != "plain")


@pytest.mark.covering(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [w for w in WINDOWS if w[3] == 1])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("counts_padding, divisor", [(True, None), (False, None), (True, 7), (False, -2)])
def test_means_are_those_of_torch(window, ceil_mode, counts_padding, divisor, layout, device):
    for size, dtype, channels in itertools.product(sizes_that_fit(window), TYPES, (1, 3, 16)):
        x = images(2, 3, channels, *size, layout=layout, dtype=dtype, device=device).requires_grad_()
        exact = x.detach().cpu().double().requires_grad_()
        expected = by_torch(functional.avg_pool2d, exact, *window[:3], ceil_mode, counts_padding, divisor)
        y = ops.avg_pool2d(x, *map(pair, window[:3]), ceil_mode, counts_padding, divisor)
        close = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
        torch.testing.assert_close(y.double().cpu(), expected, rtol=close, atol=close)
        upstream = torch.randn(y.shape).to(dtype)
        grads = gradient(y, x, upstream.to(device)).double().cpu(), gradient(expected, exact, upstream.double())
        torch.testing.assert_close(*grads, rtol=close, atol=4 * close)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_and_infinity_are_chosen_as_by_torch_on_the_cpu(layout, device):
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, 1.0], dtype=torch.float32)
    x = images(2, 2, 8, 9, 11, layout=layout)
    x.copy_(special[torch.randint(5, x.shape)])
    for window in WINDOWS[:7]:
        a, b = x.to(device).requires_grad_(), x.clone().requires_grad_()
        y, expected = max_pool(a, window).cpu(), by_torch(functional.max_pool2d, b, *window)
        assert torch.equal(y.isnan(), expected.isnan()) and torch.equal(y.nan_to_num(7), expected.nan_to_num(7))
        upstream = torch.randint(1, 9, y.shape).float()
        if window[3] == 1:  # torch gives the gradient of a window outside the image to a position outside
            assert torch.equal(gradient(y, a, upstream).cpu(), gradient(expected, b, upstream))


def test_tensors_that_begin_anywhere(device):
    for dtype, offset, layout in itertools.product(TYPES, (1, 3), ("plain", "channels_last")):
        like = images(2, 2, 8, 12, 10, layout=layout, dtype=dtype, device=device)
        x = torch.randn(like.numel() + offset, device=device).to(dtype)[offset:].as_strided(like.shape, like.stride(), offset)
        a, b = x.clone().requires_grad_(), x.detach().requires_grad_()
        for window in WINDOWS[:3]:
            y, expected = max_pool(b, window), max_pool(a, window)
            assert torch.equal(y, expected) and torch.equal(y, by_torch(functional.max_pool2d, x, *window))
            upstream = torch.randn(y.numel() + 1, device=device).to(dtype)[1:].view(y.shape)
            torch.testing.assert_close(gradient(y, b, upstream), gradient(expected, a, upstream.clone()), rtol=0, atol=0)


def test_windows_that_begin_inside_and_end_outside(device):
    """With ceil_mode, an image may be smaller than a window by less than a stride."""
    for shape, options in (((2, 1, 1, 7), ([2, 3], [2, 1], [0, 1])), ((2, 8, 1, 7), ([3, 3], [3, 1], [1, 1]))):
        x = torch.randn(shape, device=device, requires_grad=True)
        for ours, theirs in ((ops.max_pool2d, functional.max_pool2d), (ops.avg_pool2d, functional.avg_pool2d)):
            y, expected = ours(x, *options, ceil_mode=True), theirs(x, *options, ceil_mode=True)
            torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(gradient(y, x, torch.ones_like(y)), gradient(expected, x, torch.ones_like(y)))
            refused(ValueError, "must fit into an image of 1", lambda: ours(x, [4, 3], [2, 1], [0, 1], ceil_mode=True))


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 0, 3, 8, 8), (2, 0, 8, 8)])
def test_batches_of_nothing(shape, device):
    x = torch.zeros(shape, device=device, requires_grad=True)
    for y in (ops.max_pool2d(x, [2]), ops.avg_pool2d(x, [2])):
        assert y.shape == (*shape[:-2], 4, 4)
        assert torch.equal(gradient(y, x, torch.ones_like(y)), x)


def test_one_image_without_a_batch(device):
    x = torch.randn(3, 8, 9, device=device)
    assert torch.equal(ops.max_pool2d(x, [3], [2], [1]), functional.max_pool2d(x, 3, 2, 1))


def test_a_maximum_keeps_a_byte_for_each_result(device):
    kept = []
    x = torch.randn(2, 3, 4, 8, 8, device=device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = ops.max_pool2d(x, [2])
        ops.avg_pool2d(x, [2])
    assert [(t.dtype, t.shape) for t in kept] == [(torch.uint8, y.shape)]


# --- derivatives

@pytest.mark.covering(1)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [WINDOWS[i] for i in (0, 1, 4, 7)])
def test_derivatives_of_any_order(window, layout, device):
    x = images(1, 2, 2, 6, 7, layout=layout, dtype=torch.float64, device=device).requires_grad_()
    functions = [lambda x: max_pool(x, window).tanh()]
    if window[3] == 1:
        functions += [lambda x: ops.avg_pool2d(x, *map(pair, window[:3]), True, False).tanh()]
    for f in functions:
        assert gradcheck(f, x, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(f, x, check_fwd_over_rev=True, check_rev_over_rev=True)


def test_transforms_of_torch_func(device):
    x = torch.randn(5, 3, 4, 6, 6, dtype=torch.float64, device=device)
    for ours, theirs in (
        (lambda x: ops.max_pool2d(x, [3], [2], [1]), lambda x: functional.max_pool2d(x, 3, 2, 1)),
        (lambda x: ops.avg_pool2d(x, [3], [2], [1]), lambda x: functional.avg_pool2d(x, 3, 2, 1)),
    ):
        assert torch.allclose(torch.func.vmap(ours)(x), torch.stack([theirs(one) for one in x]))
        assert torch.allclose(torch.func.vmap(ours, 1)(x), torch.stack([theirs(x[:, i]) for i in range(3)]))
        of = lambda f: torch.func.vmap(torch.func.grad(lambda one: f(one).square().sum()))(x)  # noqa: E731
        torch.testing.assert_close(of(ours), of(theirs))
        small = x[0, :1, :1]
        hessian = lambda f: torch.func.hessian(lambda one: f(one).square().sum())(small)  # noqa: E731
        torch.testing.assert_close(hessian(ours), hessian(theirs))
        tangent = torch.randn_like(x[0])
        for a, b in zip(torch.func.jvp(ours, (x[0],), (tangent,)), torch.func.jvp(theirs, (x[0],), (tangent,))):
            torch.testing.assert_close(a, b)
        tangents = torch.randn(3, *x[0].shape, dtype=torch.float64, device=device)
        rates = lambda f: torch.func.vmap(lambda t: torch.func.jvp(f, (x[0],), (t,))[1])(tangents)  # noqa: E731
        torch.testing.assert_close(rates(ours), rates(theirs))


def test_gradients_that_one_map_shares(device):
    x, upstream = torch.randn(4, 2, 3, 6, 6, device=device), torch.randn(2, 3, 3, 3, device=device)
    f = lambda one: torch.func.vjp(lambda x: ops.max_pool2d(x, [2]), one)[1](upstream)[0]  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(f)(x), torch.stack([f(one) for one in x]), rtol=0, atol=0)


def test_maps_of_a_backward_pass_check_one_samples_shapes():
    grad, which, rest = torch.randn(2, 3, 2, 2), torch.zeros(2, 3, 2, 2, dtype=torch.uint8), ([2, 2, 2, 2, 0, 0, 1, 1], 4, 4)
    backward = lambda g, w: ops.max_pool2d_backward(g, w, *rest)  # noqa: E731
    expected = backward(grad, which)
    assert torch.equal(torch.func.vmap(backward)(grad, which), expected)
    assert torch.equal(torch.func.vmap(backward, (None, 0))(grad[0], which), backward(grad[:1].expand(2, 3, 2, 2), which))
    for in_dims in ((None, 0), (0, None)):
        refused(ValueError, "which must have shape", lambda: torch.func.vmap(backward, in_dims)(grad, which))


def test_duals_that_want_a_gradient_too(device):
    x, tangent = torch.randn(2, 3, 6, 6, dtype=torch.float64, device=device, requires_grad=True), torch.randn(2, 3, 6, 6, dtype=torch.float64, device=device)
    with forward_ad.dual_level():
        y = ops.max_pool2d(forward_ad.make_dual(x, tangent), [2])
        value, rate = forward_ad.unpack_dual(y)
    expected = functional.max_pool2d(x, 2)
    assert torch.equal(value, expected)
    assert torch.equal(gradient(value, x, torch.ones_like(value)), gradient(expected, x, torch.ones_like(expected)))
    assert torch.equal(rate.abs() <= tangent.abs().amax(), torch.ones_like(rate, dtype=torch.bool))


# --- other properties of operators

@pytest.mark.parametrize("layout", ["plain", "channels_last"])
def test_opcheck(layout, device):
    x = images(2, 2, 4, 7, 6, layout=layout, device=device).requires_grad_()
    opcheck(ops.max_pool2d.default, (x, [3], [2], [1]))
    opcheck(ops.max_pool2d.default, (x.detach(), [2, 3], [], [1, 0], [1, 2], True))
    opcheck(ops.avg_pool2d.default, (x, [3], [2], [1], True, False))
    windows = [3, 3, 2, 2, 1, 1, 1, 1]
    y, which = ops.max_pool2d_with_places(x.detach(), windows, False)
    opcheck(ops.max_pool2d_with_places.default, (x.detach(), windows, False))
    opcheck(ops.max_pool2d_backward.default, (y.clone().requires_grad_(), which, windows, 7, 6))
    opcheck(ops.avg_pool2d_backward.default, (y.clone().requires_grad_(), windows, True, None, 7, 6))


def test_compiled_and_exported_at_any_batch_size(device):
    net = nn.Sequential(snn.MaxPool2d(3, 2, 1), snn.AvgPool2d(2)).to(device)
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 3):
        a = torch.randn(4, batch, 3, 16, 12, device=device, requires_grad=True)
        b = a.detach().clone().requires_grad_()
        y, expected = compiled(a), net(b)
        assert torch.equal(y, expected)
        assert torch.equal(gradient(y, a, torch.ones_like(y)), gradient(expected, b, torch.ones_like(y)))
    x = torch.randn(4, 2, 3, 16, 12, device=device)
    sizes = {1: torch.export.Dim("batch"), 3: torch.export.Dim("height", min=8)}
    program = torch.export.export(net, (x,), dynamic_shapes=({**sizes, 0: None},))
    for shape in ((4, 5, 3, 16, 12), (4, 2, 3, 33, 12)):
        x = torch.randn(shape, device=device)
        assert torch.equal(program.module()(x), net(x))


def test_modules_are_those_of_torch_over_time(device):
    x = torch.randn(4, 2, 6, 9, 9, device=device)
    for ours, theirs in (
        (snn.MaxPool2d(3, stride=2, padding=1), nn.MaxPool2d(3, stride=2, padding=1)),
        (snn.MaxPool2d((3, 2), dilation=(1, 2), ceil_mode=True), nn.MaxPool2d((3, 2), dilation=(1, 2), ceil_mode=True)),
        (snn.AvgPool2d((2, 3), padding=1, count_include_pad=False), nn.AvgPool2d((2, 3), padding=1, count_include_pad=False)),
    ):
        torch.testing.assert_close(ours(x), theirs(x.flatten(0, 1)).unflatten(0, (4, 2)), rtol=1e-6, atol=1e-6)
        assert isinstance(ours, type(theirs)) and repr(ours) == repr(theirs)
    refused(ValueError, "return_indices", lambda: snn.MaxPool2d(2, return_indices=True))


def test_kernels_recorded_on_the_cpu_are_those_of_a_gpu(tmp_path):
    """Packs contain the kernels of pooling and of bits; see also tests/kernels/layer.cpp."""
    program = """
import sys, torch, spikeforge
ops = torch.ops.spikeforge
ops.record_kernels(["sm_90"])
x = torch.randn(2, 3, 8, 8, 8, requires_grad=True)
ops.max_pool2d(x, [3], [2], [1]).sum().backward()
ops.avg_pool2d(x, [2]).sum().backward()
packed, valid = ops.pack_spikes(torch.ones(100))
ops.unpack_spikes(packed, valid, [100], [1], torch.float32)
print(ops.write_kernel_pack(sys.argv[1]))
"""
    assert output_of(program, tmp_path / "pack").split()[-1] == "6"


@pytest.mark.parametrize("arguments, words", [
    (lambda x: (x, [0]), "kernel_size must be positive"),
    (lambda x: (x, []), "kernel_size must be one number, or two, but is empty"),
    (lambda x: (x, [2, 2, 2]), "kernel_size must be one number, or two"),
    (lambda x: (x, [2], [0]), "stride must be positive"),
    (lambda x: (x, [2], [2], [2]), "padding must be at least 0 and at most half of kernel_size"),
    (lambda x: (x, [2], [2], [-1]), "padding must be at least 0"),
    (lambda x: (x, [2], [2], [0], [0]), "dilation must be positive"),
    (lambda x: (x, [9]), "a window of 9 must fit into an image of 8"),
    (lambda x: (x, [17]), "a window may have at most 256 elements.*use torch's operator"),
    (lambda x: (x[0, 0], [2]), r"x must be \[..., C, H, W\]"),
    (lambda x: (x.int(), [2]), "x must be float16, bfloat16, float32 or float64"),
    (lambda x: (x.to_sparse(), [2]), "x must be a dense tensor"),
    (lambda x: (x, [2**40]), "kernel_size"),
    (lambda x: (x, [2], [2**62]), "stride"),
    (lambda x: (x, [2], [2], [0], [2**62]), "dilation"),
])
def test_wrong_calls_name_the_argument(arguments, words):
    x = torch.randn(2, 3, 8, 8)
    for wants in (False, True):
        refused((ValueError, TypeError), "max_pool2d: .*" + words, lambda: ops.max_pool2d(*arguments(x.requires_grad_(wants))))
    refused(ValueError, "avg_pool2d: divisor_override must not be 0", lambda: ops.avg_pool2d(x, [2], divisor_override=0))


def test_wrong_backward_calls_raise():
    grad, which, windows = torch.randn(3, 4, 4), torch.zeros(3, 4, 4, dtype=torch.uint8), [2, 2, 2, 2, 0, 0, 1, 1]
    assert ops.max_pool2d_backward(grad, which, windows, 8, 9).shape == (3, 8, 9)
    for arguments in (
        (grad, which, windows, 6, 9), (grad, which, windows, -8, 9), (grad, which, windows[:7], 8, 9),
        (grad, which[:2], windows, 8, 9), (grad, which.int(), windows, 8, 9),
    ):
        refused((ValueError, TypeError), "max_pool2d_backward: ", lambda: ops.max_pool2d_backward(*arguments))
    undefined = torch._C.parse_ir("""
graph(%grad : Tensor, %windows : int[], %height : int, %width : int):
  %which : Tensor = prim::grad(%grad)
  %result : Tensor = spikeforge::max_pool2d_backward(%grad, %which, %windows, %height, %width)
  return (%result)
""")
    with pytest.raises(RuntimeError, match="max_pool2d_backward: which must be a tensor, but is undefined"):
        torch._C._create_function_from_graph("f", undefined)(grad, windows, 8, 9)
    assert not ops.max_pool2d_backward(grad, which + 200, windows, 8, 8).any()  # positions outside the windows
