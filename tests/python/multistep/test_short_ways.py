"""Calls skip autograd's node if no argument requires a gradient, and autograd's kernel of the backward operator if the
backward pass is not differentiated. Results do not depend on what is skipped."""

import contextlib

import pytest
import torch
from torch.autograd import forward_ad

from cases import Calls, Options, all_equal, call, random_x, sample
from loops import refused
from reference import NEURONS

ops = torch.ops.spikeforge
every_neuron = pytest.mark.parametrize("neuron", NEURONS)


def drive(device, requires_grad=False):
    return random_x("lif", 20, (3, 5), torch.float32, device).requires_grad_(requires_grad)


# --- calls without a gradient --------------------------------------------------------------------------------------


GUARDS = {"grad mode": contextlib.nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


@pytest.mark.parametrize("guard", GUARDS)
@every_neuron
def test_the_same_bits_with_and_without_a_gradient(neuron, guard, device):
    inputs = sample(neuron, device, tensors=True)
    wanted = call(neuron, inputs.map(lambda name, t: t.clone().requires_grad_()), Options())
    assert all(o.requires_grad and o.grad_fn is not None for o in wanted)
    with GUARDS[guard]():
        results = call(neuron, inputs, Options())
    for a, e in zip(results, wanted):
        assert torch.equal(a, e) and not a.requires_grad and a.grad_fn is None
        assert a.is_inference() == (guard == "inference_mode")


@pytest.mark.parametrize("guard", GUARDS)
@every_neuron
def test_only_a_call_that_will_be_differentiated_writes_checkpoints(neuron, guard, device):
    inputs = sample(neuron, device, tensors=True)
    inputs.x = inputs.x.repeat(7, 1, 1, 1)
    leaves = inputs.map(lambda name, t: t.clone().requires_grad_())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        call(neuron, leaves, Options())
        with GUARDS[guard]():
            call(neuron, inputs, Options())
    forward = [event for event in profile.events() if event.name == f"spikeforge::{neuron}_forward"]
    assert [event.concrete_inputs[-3] for event in forward] == [True, False], "save, before lengths and start"
    with Calls() as calls:
        call(neuron, inputs, Options())
    ((name, arguments, options),) = calls.seen
    for save in (True, False):
        *_, checkpoints = getattr(ops, name)(*arguments, **{**options, "save": save})
        assert (checkpoints.numel() > 0) == save


@pytest.mark.parametrize("guard", GUARDS)
def test_a_result_without_a_gradient_is_an_ordinary_tensor(guard, device):
    """The result may be changed in place, and become a leaf."""
    with GUARDS[guard]():
        spikes, v = ops.lif(drive(device))
        spikes.add_(1)
        v.mul_(2)
    if guard != "inference_mode":
        y = (v.requires_grad_() * 3).sum()
        y.backward()
        assert v.grad.eq(3).all() and spikes._version == 1


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_mode_sees_the_lowered_operators(requires_grad):
    x = drive("cpu", requires_grad)
    with Calls() as calls:
        spikes, _ = ops.lif(x)
        if requires_grad:
            torch.autograd.grad(spikes.sum(), x)
    seen = [(name, options.get("save")) for name, _, options in calls.seen]
    assert seen == [("lif_forward", requires_grad)] + [("lif_backward", None)] * requires_grad


def test_a_profiler_sees_the_lowered_operators():
    x = torch.randn(4, 5, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        spikes, _ = torch.ops.spikeforge.lif(x)
        spikes.sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"spikeforge::lif_forward", "spikeforge::lif_backward"} <= names


def test_an_input_in_inference_mode_needs_no_gradient(device):
    with torch.inference_mode():
        x = drive(device)
    expected = ops.lif(x.clone())
    assert all_equal(ops.lif(x), expected)
    weight = torch.zeros((), device=device, requires_grad=True)
    refused(RuntimeError, "(?i)inference tensor", lambda: ops.plif(x, weight))


# --- forward-mode AD and functorch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", ["grad mode", "no_grad"])
@pytest.mark.parametrize("requires_grad", [False, True])
@every_neuron
def test_a_tangent_is_carried_whatever_else_is_true(neuron, requires_grad, guard, device):
    inputs = sample(neuron, device, tensors=True, gradients=requires_grad, dtype=torch.float64)
    for name in inputs.tensors():
        with GUARDS[guard](), forward_ad.dual_level():
            dual = inputs.map(lambda n, t: forward_ad.make_dual(t.detach(), torch.ones_like(t)) if n == name else t)
            results = [forward_ad.unpack_dual(result) for result in call(neuron, dual, Options())]
        leaves = inputs.map(lambda n, t: t.detach().requires_grad_())
        with torch.enable_grad():
            outputs = call(neuron, leaves, Options())
        for output, result in zip(outputs, results):
            assert torch.equal(output, result.primal)
            upstream = torch.randn_like(output)
            (grad,) = torch.autograd.grad(output, leaves.tensors()[name], upstream, retain_graph=True)
            torch.testing.assert_close((upstream * result.tangent).sum(), grad.sum())


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("guard", GUARDS)
def test_vmap_without_gradients(guard, device):
    x = torch.stack([drive(device), drive(device)])
    with GUARDS[guard]():
        mapped = torch.func.vmap(lambda x: tuple(ops.lif(x)))(x)
        one_by_one = [torch.stack(parts) for parts in zip(*(ops.lif(each) for each in x))]
    assert all_equal(mapped, one_by_one)


# --- the backward pass ---------------------------------------------------------------------------------------------


def gradients(outputs, inputs):
    return torch.autograd.grad(sum(o.sin().sum() for o in outputs), list(inputs.tensors().values()), allow_unused=True)


@every_neuron
def test_create_graph_changes_no_gradient(neuron, device):
    inputs = sample(neuron, device, tensors=True, gradients=True)
    outputs = call(neuron, inputs, Options())
    loss = sum(o.sin().sum() for o in outputs)
    leaves = list(inputs.tensors().values())
    plain = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
    with_graph = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    for a, e in zip(plain, with_graph):
        assert (a is None) == (e is None)
        assert a is None or torch.equal(a, e) and not a.requires_grad


@every_neuron
def test_hooks_see_saved_tensors_and_gradients(neuron, device):
    inputs = sample(neuron, device, tensors=True, gradients=True)
    expected = gradients(call(neuron, inputs, Options()), inputs)
    packed, unpacked, passed = [], [], []

    def pack(t):
        packed.append(t)
        return t.clone().cpu()

    def unpack(t):
        unpacked.append(t)
        return t.to(device)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        outputs = call(neuron, inputs, Options())
    assert len(packed) == len(inputs.tensors()) + 1, "the arguments and the checkpoints, and nothing else"
    node = outputs[0].grad_fn
    node.register_prehook(lambda grads: passed.append(len(grads)))
    node.register_hook(lambda grad_inputs, grad_outputs: passed.append(len(grad_inputs)))
    for a, e in zip(gradients(outputs, inputs), expected):
        assert (a is None) == (e is None) and (a is None or torch.equal(a, e))
    assert len(unpacked) == len(packed)
    assert passed[0] == len(outputs), "one for each result: the checkpoints are none"
    assert passed[1] >= len(inputs.tensors())


def test_a_saved_input_that_was_changed_is_noticed(device):
    x = drive(device, requires_grad=True)
    y = x * 1
    spikes, _ = ops.lif(y)
    y.add_(1)
    refused(RuntimeError, "modified by an inplace operation", lambda: spikes.sum().backward())


@pytest.mark.long(but=r"-lif-aot_eager$")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("neuron", ["lif", "plif", "izhikevich"])
def test_compiled_autograd(neuron, backend, device):
    """The backward pass is traced separately, after an eager forward pass."""
    from torch._dynamo import compiled_autograd

    inputs = sample(neuron, device, tensors=True, gradients=True)
    options = Options(surrogate="s2nn", surrogate_args=(2.0, 0.5), detach_reset=True)
    leaves = inputs.tensors()
    expected = gradients(call(neuron, inputs, options), inputs)
    torch._dynamo.reset()
    with compiled_autograd._enable(torch.compile(backend=backend, fullgraph=True)):
        sum(o.sin().sum() for o in call(neuron, inputs, options)).backward()
    for (name, leaf), e in zip(leaves.items(), expected):
        assert (leaf.grad is None) == (e is None), name
        assert e is None or torch.equal(leaf.grad, e), name
