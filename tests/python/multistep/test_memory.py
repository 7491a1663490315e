"""Unusual memory layouts of tensors do not change the results."""

import os
import resource
import threading

import pytest
import torch
from cases import LOWERED_LIF
from conftest import library_path
from loops import output_of

ops = torch.ops.spikeforge
NUMBERS = [2.0, 1.0, 0.0]


def empty_views(device):
    """Returns sequences of no steps, whose strides do not determine the layout of states."""
    yield torch.randn(5, 1, device=device).expand(5, 3000)[:0]
    yield torch.randn(5, 3, 8, device=device)[:0, :, ::2]
    yield torch.randn(5, 8, 3, device=device).transpose(1, 2)[:0]


def test_no_steps_of_an_unusual_x_return_the_initial_state(device):
    for x in empty_views(device):
        v0 = torch.randn(x.shape[1:], device=device, requires_grad=True)
        _, v = ops.lif(x, v0)
        assert torch.equal(v, v0)
        (grad,) = torch.autograd.grad(v.sum(), v0)
        assert torch.equal(grad, torch.ones_like(v0))
        assert torch.equal(ops.lif(x, v_reset=-0.5)[1], torch.full_like(v0, -0.5))


@pytest.mark.parametrize("name", ["lif", "izhikevich"])
def test_x_may_come_back_from_a_saved_tensor_hook_with_other_strides(device, name):
    x = torch.randn(40, 2, 3, 4, 5, device=device).to(memory_format=torch.contiguous_format)
    x = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3).requires_grad_()  # channels-last
    weight = torch.randn(40, 2, 3, 4, 5, device=device)

    def gradient():
        return torch.autograd.grad((getattr(ops, name)(x)[0] * weight).sum(), x)[0]

    wanted = gradient()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
        assert torch.equal(gradient(), wanted)


def test_checkpoints_of_any_strides_give_the_same_gradient(device):
    x = torch.randn(40, 6, 10, device=device)
    spikes, v, checkpoints = ops.lif_forward(x, None, [None] * 3, NUMBERS, **LOWERED_LIF, save=True)
    grad = torch.randn_like(spikes)

    def gradient(checkpoints):
        needs_grad = [True] + [False] * 4
        return ops.lif_backward(grad, None, x, None, checkpoints, [None] * 3, NUMBERS, **LOWERED_LIF, needs_grad=needs_grad)[0]

    wanted = gradient(checkpoints)
    assert torch.equal(gradient(checkpoints.transpose(0, 3).contiguous().transpose(0, 3)), wanted)
    shifted = torch.empty(checkpoints.numel() + 1, device=device)[1:].view(checkpoints.shape).copy_(checkpoints)  # 4-byte aligned
    assert torch.equal(gradient(shifted), wanted)
    expanded = checkpoints[:, :, :1, :1].expand(checkpoints.shape)
    assert torch.equal(gradient(expanded), gradient(expanded.contiguous()))


def test_a_negated_view_as_parameter_has_its_value(device):
    x = torch.randn(7, 8, device=device)
    tau = torch.rand(8, device=device) + 1.5
    negated = torch._neg_view(-tau)
    assert torch.equal(negated, tau)
    wanted = ops.lif(x, tau=tau, v_reset=None, v_threshold=None)
    for result, expected in zip(ops.lif(x, tau=negated, v_reset=None, v_threshold=None), wanted):
        assert torch.equal(result, expected)


def test_a_parameter_of_one_element_is_as_good_as_a_number(device):
    x = torch.randn(7, 8, device=device)
    number = ops.lif(x, tau=3.0)
    for shape in [(), (1,)]:
        tau = torch.full(shape, 3.0, device=device, requires_grad=True)
        spikes, v = ops.lif(x, tau=tau, v_reset=torch.tensor(0.0))
        assert torch.equal(spikes, number[0]) and torch.equal(v, number[1])
        (grad,) = torch.autograd.grad(v.sum(), tau)
        assert grad.shape == tau.shape and grad.abs().item() > 0


# --- large results on the CPU: 64 MiB ------------------------------------------------------------------------------

LARGE = (16, 2**20)


def first_touches():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_large_results_take_the_pages_of_earlier_ones():
    x = torch.rand(LARGE, requires_grad=True)
    upstream = torch.rand(LARGE)

    def step():
        torch.autograd.grad(ops.lif(x)[0], x, upstream)

    for _ in range(3):
        step()
    before = first_touches()
    for _ in range(5):
        step()
    assert first_touches() - before < 100, "each step would touch 128 MiB: 64 large pages, or 32,768"


def test_results_that_live_at_once_share_no_memory():
    x = torch.rand(LARGE)
    first, second = ops.lif(x, v_threshold=0.3)[0], ops.lif(x, v_threshold=0.6)[0]
    kept = first.sum(), second.sum()
    third = ops.lif(x, v_threshold=2.0)[0]
    spaces = sorted((t.data_ptr(), t.nbytes) for t in (first, second, third))
    assert all(a + n <= b for (a, n), (b, _) in zip(spaces, spaces[1:]))
    assert (first.sum(), second.sum()) == kept and third.sum() == 0


def test_a_large_result_can_grow_be_shared_and_outlive_its_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(ops.lif(torch.rand(LARGE))[0]))
    thread.start()
    thread.join()
    spikes = results.pop()
    total = spikes.sum()
    assert torch.equal(spikes.clone().share_memory_().sum(), total)
    spikes.resize_(17, 2**20)
    assert torch.equal(spikes[:16].sum(), total)


@pytest.mark.parametrize("megabytes, kept", [("0", False), ("1000", True)])
def test_the_kept_memory_is_bounded(megabytes, kept):
    program = """
import sys, torch
torch.ops.load_library(sys.argv[1])
x = torch.rand(16, 2**20)
lif = lambda: torch.ops.spikeforge.lif(x)[0]
for _ in range(3): lif()
mapped = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
print(mapped())
held = [lif() for _ in range(8)]
del held
print(mapped())
"""
    environment = {"SPIKEFORGE_RESULT_CACHE_MB": megabytes}
    words = output_of(program, library_path(), env={**os.environ, **environment}).split()
    before, after = (int(word) / 1024 for word in words)
    grown = after - before
    assert 350 < grown < 600 if kept else grown < 70, f"{grown} MiB more are mapped after eight results of 64 MiB are gone"
