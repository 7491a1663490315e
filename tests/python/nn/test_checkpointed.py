"""Sequences in segments that are recomputed in the backward pass: the values and gradients of one call over all steps."""

import weakref

import pytest
import torch
from loops import detached, in_pieces, refused
from torch import nn
from torch.utils.checkpoint import checkpoint

import spikeforge
import spikeforge.nn as snn

NOISY = """neuron noisy(x; v; leak) {
  h = leak * v + x + 0.3 * normal()
  s = spike(h - 1, atan(2))
  return s
  v' = select(s, 0, h)
}"""
F64 = {"dtype": torch.float64}


def network():
    torch.manual_seed(3)
    return snn.Sequential(nn.Linear(4, 6, **F64), snn.LIF(v_threshold=0.3), nn.Linear(6, 3, **F64), snn.LI(tau=3.0))


def gradients(y, *tensors):
    torch.manual_seed(5)
    return torch.autograd.grad((y * torch.rand_like(y)).sum(), tensors)


def assert_alike(got, expected):
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12 * other.abs().max().item())


@pytest.mark.parametrize("segments", [1, 3, 23])
def test_one_neuron_has_the_bits_of_one_call(device, segments):
    x = (3 * torch.rand(23, 5, **F64, device=device)).requires_grad_()
    v = torch.rand(5, **F64, device=device, requires_grad=True)
    lif = snn.LIF()
    y, states = lif(x, {"v": v})
    z, after = spikeforge.checkpointed(lif, x, {"v": v}, segments=segments)
    assert torch.equal(y, z) and torch.equal(states["v"], after["v"])
    assert y.sum() > 5
    # On a GPU, the schedule depends on the number of steps, so that the last bits of gradients differ.
    bounds = {"rtol": 1e-12, "atol": 1e-12} if device.type == "cuda" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(gradients(y, x, v), gradients(z, x, v), **bounds)


def test_a_network_has_the_gradients_of_one_call(device):
    net, x = network().to(device), torch.rand(20, 2, 4, **F64, device=device)
    expected, states = net(x, None)
    y, after = spikeforge.checkpointed(net, x, segments=4)
    assert expected.abs().sum() > 1
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after, states, rtol=1e-12, atol=1e-12)
    assert_alike(gradients(y, *net.parameters()), gradients(expected, *net.parameters()))


class Block(nn.Module):
    """A module without a state argument, whose second part is recurrent."""

    def __init__(self):
        super().__init__()
        self.layer, self.lif = nn.Linear(4, 6, **F64), snn.LIF(v_threshold=0.3)
        self.recurrent = snn.Recurrent(snn.LIF(v_threshold=0.3), nn.Linear(6, 6, **F64))

    def forward(self, x):
        return self.recurrent(2 * self.lif(self.layer(x)))


CHECKPOINTS = {
    "spikeforge's": lambda run, x: spikeforge.checkpointed(run, x, segments=4)[0],
    "torch's": lambda run, x: in_pieces(lambda *args: checkpoint(run, *args, use_reentrant=False), x.split(5))[0],
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_module_without_states_is_called_within_a_checkpoint(device, kind):
    torch.manual_seed(3)
    net, x = Block().to(device), torch.rand(20, 2, 4, **F64, device=device, requires_grad=True)
    run = lambda x, state: snn.call(net, x, state)
    expected, _ = in_pieces(run, x.split(5))
    y = CHECKPOINTS[kind](run, x)
    assert torch.equal(y, expected) and 0 < y.mean() < 1
    tensors = x, *net.parameters()
    torch.testing.assert_close(gradients(y, *tensors), gradients(expected, *tensors), rtol=1e-12, atol=1e-12)
    with snn.keep_state(net):  # states that are kept between calls still raise an error
        y = checkpoint(net, x, use_reentrant=False)
        with pytest.raises(RuntimeError, match=r"pass the states: y, state = net\(x, state\), or spikeforge.nn.call\(net, x, state\)"):
            y.sum().backward()


def test_random_numbers_are_the_same_the_second_time(device):
    """Random numbers of neurons and of torch equal those of a loop over segments that keeps all tensors."""
    leak = torch.tensor(0.5, **F64, device=device, requires_grad=True)
    dropout = nn.Dropout(0.5)

    def run(x, states):
        (s,), states = torch.ops.spikeforge.run(NOISY, [dropout(x)], states or [], [leak])
        return s, states

    x = torch.rand(12, 50, **F64, device=device).requires_grad_()
    torch.manual_seed(11)
    expected, _ = in_pieces(run, x.split(3))
    torch.manual_seed(11)
    z, _ = spikeforge.checkpointed(run, lambda i: x.split(3)[i], segments=4)
    assert torch.equal(z, expected) and 0 < z.mean() < 1
    torch.testing.assert_close(gradients(expected, x, leak), gradients(z, x, leak), rtol=1e-12, atol=1e-14)


def test_inputs_that_a_function_reads_are_not_kept_and_read_once_more():
    net, read = network(), []
    chunks = torch.rand(6, 5, 2, 4, **F64)

    def chunk(number):
        x = chunks[number].clone()
        read.append((number, weakref.ref(x)))
        return x

    def loss_of(x, states):
        y, states = net(x, states)
        return y.square().sum(), states

    loss, states = spikeforge.checkpointed(loss_of, chunk, segments=6, combine="sum")
    assert [number for number, _ in read] == list(range(6))
    assert all(x() is None for _, x in read)
    expected, _ = net(chunks.flatten(0, 1), None)
    torch.testing.assert_close(loss, expected.square().sum())
    got = torch.autograd.grad(loss, list(net.parameters()))
    assert [number for number, _ in read[6:]] == list(range(5, -1, -1))
    assert_alike(got, torch.autograd.grad(expected.square().sum(), list(net.parameters())))


def test_nothing_of_a_segment_is_kept_but_its_states():
    """Counts the bytes that autograd saves during the sequence."""
    net, kept = network(), []
    x = torch.rand(400, 2, 4, **F64)

    def pack(t):
        kept.append(t.untyped_storage().nbytes())
        return t

    def bytes_of(run):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            return run(), sum(kept)

    _, whole = bytes_of(lambda: net(x, None))
    loss, in_segments = bytes_of(lambda: spikeforge.checkpointed(net, x, segments=20)[0].sum())
    assert whole > 400 * 2 * (4 + 6 + 3) * 8 and in_segments < whole / 10


def test_truncated_gradients_are_those_of_detached_states():
    net, x = network(), torch.rand(20, 2, 4, **F64)
    expected, _ = in_pieces(net, x.split(5), after_piece=lambda y, state: detached(state))
    y, _ = spikeforge.checkpointed(net, x, segments=4, truncated=True)
    whole, _ = net(x, None)
    torch.testing.assert_close(y, whole, rtol=1e-12, atol=1e-12)
    got = gradients(y, *net.parameters())
    assert_alike(got, gradients(expected, *net.parameters()))
    assert not torch.allclose(got[0], gradients(whole, *net.parameters())[0], rtol=1e-3)


def test_truncation_leaves_the_gradient_of_the_states_before_the_first_step():
    """The gradient is that of a loop that detaches states between segments."""
    lif, x = snn.LI(tau=3.0), torch.rand(20, 5, **F64)
    v = torch.rand(5, **F64, requires_grad=True)
    looped, _ = in_pieces(lif, x.split(5), {"v": v}, lambda y, state: detached(state))
    y, _ = spikeforge.checkpointed(lif, x, {"v": v}, segments=4, truncated=True)
    (expected,), (got,) = gradients(looped, v), gradients(y, v)
    assert expected.abs().min() > 0
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_a_run_may_write_into_its_arguments_and_a_caller_into_its_results():
    """Tensors in dicts and lists may be replaced: run and caller have separate containers."""
    x = torch.rand(12, 3, **F64).requires_grad_()

    def run(x, states):
        v = states["v"]
        states["v"] = torch.tanh(v + x.sum(0))
        return x * v, states

    given, parts = {"v": torch.ones(3, **F64)}, list(x.split(4))
    y, _ = spikeforge.checkpointed(run, parts, given)
    assert list(given["v"]) == [1, 1, 1]
    parts.clear()
    given["v"] = torch.zeros(3, **F64)
    kept, _ = in_pieces(lambda x, states: run(x, dict(states)), x.split(4), {"v": torch.ones(3, **F64)})
    (expected,), (got,) = gradients(kept, x), gradients(y, x)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("changed", ["inputs", "list", "state", "by the run"])
def test_a_change_in_place_before_the_backward_pass_is_noticed(changed):
    """A change raises the error that autograd raises for changed saved tensors."""
    x, v = torch.rand(12, 3, **F64), torch.zeros(3, **F64)
    weight = torch.ones(3, **F64, requires_grad=True)

    def run(x, states):
        x = x.mul_(2) if changed == "by the run" else x
        return x * weight + states["v"], {"v": states["v"] + x.sum(0)}

    parts = [part.clone() for part in x.split(4)]
    y, _ = spikeforge.checkpointed(run, parts if changed == "list" else x, {"v": v}, segments=3)
    if changed != "by the run":
        {"inputs": x, "list": parts[1], "state": v}[changed].add_(1)
    with pytest.raises(RuntimeError, match="checkpointed: one of the variables needed for gradient computation has been modified by an inplace"):
        y.sum().backward()


def test_steps_that_segments_do_not_divide_are_dealt_to_the_later_ones():
    sizes = []
    spikeforge.checkpointed(lambda x, states: (sizes.append(len(x)) or x, states), torch.rand(23, 2), segments=4)
    assert sizes == [5, 6, 6, 6]


def test_running_statistics_move_twice_unless_the_second_run_ends_before():
    """The recomputation stops at the last tensor that the gradient needs, before statistics of a last BatchNormNeuron."""
    x, norm = torch.rand(12, 4, 3, requires_grad=True), nn.BatchNorm1d
    for layers, moved in (
        ([snn.TimeDistributed(norm(3)), snn.LIF()], 6),
        ([snn.BatchNormNeuron(norm(3), snn.LIF()), snn.TimeDistributed(nn.Linear(3, 3))], 6),
        ([snn.BatchNormNeuron(norm(3), snn.LIF())], 3),
    ):
        net = snn.Sequential(*layers)
        spikeforge.checkpointed(net, x, segments=3)[0].sum().backward()
        assert [b.item() for b in net.buffers() if b.dtype == torch.int64] == [moved]


def test_inputs_may_be_several_and_a_list_and_outputs_any_structure():
    x, gain = torch.rand(7, 3), torch.rand(7, 3)

    def run(x, gain, state):
        state = (0 if state is None else state) + (x * gain).sum(0)
        return {"scaled": x * gain, "last": state[None]}, state

    y, state = spikeforge.checkpointed(run, (x, gain), segments=3)
    assert torch.equal(y["scaled"], x * gain) and y["last"].shape == (3, 3)
    parts, _ = spikeforge.checkpointed(run, [(x[:2], gain[:2]), (x[2:], gain[2:])], combine="list")
    torch.testing.assert_close(parts[1]["last"][0], state)


def test_errors_name_the_expected_value():
    x = torch.rand(5, 2)

    run = lambda x, state: (x, state)
    for call, kind, message in (
        (lambda: spikeforge.checkpointed(run, x, segments=6), ValueError, "segments must be at most the number of steps, 5, but is 6"),
        (lambda: spikeforge.checkpointed(run, x), ValueError, "segments must be a whole number of 1 or more, but is None"),
        (lambda: spikeforge.checkpointed(run, [x], segments=2), ValueError, "segments must be 1"),
        (lambda: spikeforge.checkpointed(run, (x, x[1:]), segments=2), ValueError, "input 1 has 4 steps, but input 0 has 5"),
        (lambda: spikeforge.checkpointed(run, 3, segments=2), TypeError, "but is int"),
        (lambda: spikeforge.checkpointed(run, x, segments=2, combine="mean"), ValueError, "but is 'mean'"),
        (lambda: spikeforge.checkpointed(lambda x, s: x, x, segments=2), TypeError, "must return \\(output, states\\), but returned Tensor"),
        (lambda: spikeforge.checkpointed(run, lambda number: None, segments=2), TypeError, "of segment 0, but returned None"),
        (lambda: spikeforge.checkpointed(lambda x, s: (x.sum(), s), x, segments=2), TypeError, "pass 'sum'"),
    ):
        refused(kind, f"checkpointed: .*{message}", call)
