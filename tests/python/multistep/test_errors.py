"""Every refusal once: it names the operator, the argument, what was expected and what came, and changes nothing."""

import math
import re

import pytest
import torch
from cases import numbers
from reference import NEURONS, SURROGATES

ops = torch.ops.spikeforge
every_neuron = pytest.mark.parametrize("neuron", NEURONS)


def arguments(neuron, x):
    """The operator and what it takes beside x."""
    return getattr(ops, neuron), ([torch.zeros(())] if neuron == "plif" else [])


def refused(error, words, function, *args, **kwargs):
    """function raises, its first line holds all the words, and the tensors it was given are as before."""
    tensors = [a for a in (*args, *kwargs.values()) if torch.is_tensor(a) and a.layout == torch.strided and not a.is_meta]
    before = [(t.clone(), t._version, t.stride()) for t in tensors]
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    message = str(caught.value).splitlines()[0]
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    for t, (value, version, stride) in zip(tensors, before):
        assert torch.equal(t, value) and t._version == version and t.stride() == stride, "an argument was changed"
        assert t.grad is None
    return message


@every_neuron
def test_v_of_another_shape(neuron):
    x = torch.rand(5, 64, 128)
    op, more = arguments(neuron, x)
    expected = f"{neuron}: v must have shape [64, 128], that of x without its time dimension, but has [64, 127]"
    assert refused(ValueError, [], op, x, *more, torch.rand(64, 127)) == expected


def test_w_of_another_shape():
    words = ["izhikevich: w must have shape [64, 128]", "but has [128]"]
    refused(ValueError, words, ops.izhikevich, torch.rand(5, 64, 128), None, torch.rand(128))


def test_a_state_with_a_time_dimension():
    refused(ValueError, ["lif: v must have shape [3]", "[4, 3]"], ops.lif, torch.rand(4, 3), torch.rand(4, 3))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str)
@every_neuron
def test_x_of_another_type_names_the_cast(neuron, dtype):
    x = torch.ones(4, 3).to(dtype)
    op, more = arguments(neuron, x)
    refused(TypeError, [f"{neuron}: x must be", "float32", "but is", ".to(torch.float32)"], op, x, *more)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_x_that_is_not_dense_names_the_cast(layout):
    refused(TypeError, ["lif: x must be", ".to_dense()"], ops.lif, getattr(torch.rand(4, 3), layout)())


def test_x_without_a_time_dimension():
    refused(ValueError, ["lif: x must have shape [T", "0-dimensional"], ops.lif, torch.tensor(1.0))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "neuron, name",
    [("lif", "tau"), ("qif", "tau"), ("eif", "tau"), ("eif", "delta_t"), ("izhikevich", "tau"), ("izhikevich", "tau_w"), ("adaptive_lif", "tau")],
)
def test_a_time_constant_that_is_none(neuron, name, value):
    x = torch.rand(4, 3)
    refused(ValueError, [f"{neuron}: {name} must be", f"but is {value:g}"], getattr(ops, neuron), x, **{name: value})


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_a_decay_that_is_no_fraction(value):
    words = ["adaptive_lif: decay must be in [0, 1]", f"but is {value:g}"]
    refused(ValueError, words, ops.adaptive_lif, torch.rand(4, 3), decay=value)


@pytest.mark.parametrize("value", [True, 2j], ids=["bool", "complex"])
@every_neuron
def test_bool_and_complex_are_no_numbers(neuron, value):
    x = torch.rand(4, 3)
    op, more = arguments(neuron, x)
    for name, default in NEURONS[neuron].params.items():
        if default is not None:
            refused(TypeError, [f"{neuron}: {name} must be a real number"], op.default, x, *more, **{name: value})


@every_neuron
def test_an_unknown_surrogate_lists_the_known_ones(neuron):
    x = torch.rand(4, 3)
    op, more = arguments(neuron, x)
    refused(ValueError, [f"{neuron}: ", '"arctan"', *SURROGATES], op, x, *more, surrogate="arctan")


@pytest.mark.parametrize("name", SURROGATES)
def test_a_surrogate_with_the_wrong_number_of_arguments(name):
    takes = len(SURROGATES[name].defaults)
    for given in {1, 2, 3} - {takes}:
        words = ["lif: ", name, "surrogate_args", str(takes), str(given)]
        refused(ValueError, words, ops.lif, torch.rand(4, 3), surrogate=name, surrogate_args=[1.0] * given)


@pytest.mark.parametrize("shape", [(7,), (2, 3), (4, 5, 3), (5, 1, 1), (0,)], ids=str)
@every_neuron
def test_a_parameter_that_does_not_broadcast_against_a_step(neuron, shape):
    """Against [5, 3], and without making it larger."""
    x = torch.rand(4, 5, 3)
    op, more = arguments(neuron, x)
    for name, default in NEURONS[neuron].params.items():
        words = [f"{neuron}: {name} must broadcast against [5, 3]", str(list(shape))]
        if default is None:
            refused(ValueError, words, op, x, torch.rand(shape))
            continue
        given = dict({"v_reset": torch.zeros(())}, **{name: torch.rand(shape)})
        refused(ValueError, words, op.tensor, x, *more, **given)


@every_neuron
def test_a_state_or_parameter_of_a_third_type(neuron):
    """A parameter may be of lower precision than the states; a state may not."""
    allowed = {
        torch.float64: {torch.float64},
        torch.float32: {torch.float32},
        torch.float16: {torch.float16, torch.float32},
        torch.bfloat16: {torch.bfloat16, torch.float32},
    }
    for dtype, of_state in allowed.items():
        x = torch.rand(4, 3).to(dtype)
        for other in (*allowed, torch.int64):
            op, more = getattr(ops, neuron), ([torch.zeros((), dtype=dtype)] if neuron == "plif" else [])
            state, zero = torch.zeros(3, dtype=other), torch.zeros((), dtype=other)
            if other in of_state:
                op(x, *more, state)
            else:
                refused(TypeError, [f"{neuron}: v must be", "but is"], op, x, *more, state)
            if other != torch.int64 and other.itemsize <= max(t.itemsize for t in of_state):
                op.tensor(x, *more, v_threshold=zero, v_reset=zero)
            else:
                refused(TypeError, [f"{neuron}: v_threshold must be", "but is"], op.tensor, x, *more, v_threshold=zero, v_reset=None)


@every_neuron
def test_an_argument_on_another_device(neuron):
    x = torch.rand(4, 3)
    op, more = arguments(neuron, x)
    refused(ValueError, [f"{neuron}: v must be on cpu", "meta"], op, x, *more, torch.zeros(3, device="meta"))
    wrong = torch.zeros(3, device="meta")
    refused(ValueError, [f"{neuron}: v_threshold must be on cpu", "meta"], op.tensor, x, *more, v_threshold=wrong, v_reset=None)


def test_an_argument_on_the_cpu_beside_a_gpu(cuda):
    x = torch.rand(4, 3, device=cuda)
    refused(ValueError, ["lif: v must be on cuda", "cpu"], ops.lif, x, torch.zeros(3))
    refused(ValueError, ["lif: tau must be on cuda", "cpu"], ops.lif.tensor, x, tau=torch.ones(3), v_reset=None)
    refused(ValueError, ["lif: v must be on cpu", "cuda"], ops.lif, torch.rand(4, 3), torch.zeros(3, device=cuda))


def test_a_surrogate_argument_that_makes_no_sense():
    for name, args in (("sigmoid", [0.0]), ("sigmoid", [math.nan]), ("q_pseudo_spike", [1.0]), ("rect", [-1.0])):
        refused(ValueError, ["lif: ", name, "but is"], ops.lif, torch.rand(4, 3), surrogate=name, surrogate_args=args)


def test_v_reset_must_be_said_in_the_overload_of_tensors():
    """There None means soft reset, so that leaving it out cannot mean v_reset = 0."""
    with pytest.raises(RuntimeError, match="v_reset"):
        ops.lif.tensor(torch.rand(4, 3), tau=torch.tensor(2.0))


# --- the lowered operators, which a compiler or another language may call ------------------------------------------

LIF = dict(decay_input=True, hard_reset=True, detach_reset=False, surrogate="sigmoid", surrogate_args=[], spiking=True, store_v=False)


def lif_backward(**changes):
    x = torch.rand(4, 3)
    checkpoints = ops.lif_forward(x, None, [None] * 3, [2.0, 1.0, 0.0], **LIF, save=True)[-1]
    given = dict(grad_spikes=torch.ones(4, 3), grad_v=torch.ones(3), x=x, v=None, checkpoints=checkpoints,
                 params=[None] * 3, numbers=[2.0, 1.0, 0.0], **LIF, needs_grad=[True] + [False] * 4)
    return ops.lif_backward(**dict(given, **changes))


def test_the_backward_operator_checks_its_arguments():
    assert lif_backward()[0].shape == (4, 3)
    wrong = dict(
        grad_spikes=torch.ones(4, 2), grad_v=torch.ones(4, 3), checkpoints=torch.ones(9, 1, 3), needs_grad=[True],
        numbers=[2.0], params=[None],
    )
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=re.escape("lif")):
            lif_backward(**{name: value})
    with pytest.raises(TypeError, match="grad_spikes"):
        lif_backward(grad_spikes=torch.ones(4, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="needs_grad.*v"):
        lif_backward(needs_grad=[True, True, False, False, False])
