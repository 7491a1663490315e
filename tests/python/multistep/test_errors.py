"""Every error once: it names the operator, the argument, the expected and the actual value, and changes nothing."""

import math

import pytest
import torch
from cases import LOWERED_LIF, refused
from reference import NEURONS, SURROGATES

ops = torch.ops.spikeforge
every_neuron = pytest.mark.parametrize("neuron", NEURONS)


def arguments(neuron, dtype=torch.float32):
    """Returns the operator and its required arguments after x."""
    return getattr(ops, neuron), ([torch.zeros((), dtype=dtype)] if neuron == "plif" else [])


@every_neuron
def test_v_of_another_shape(neuron):
    op, more = arguments(neuron)
    expected = f"{neuron}: v must have shape [64, 128], that of x without its time dimension, but has [64, 127]"
    assert refused(ValueError, [], op, torch.rand(5, 64, 128), *more, torch.rand(64, 127)) == expected


X = torch.rand(5, 64, 128)
WRONG = {
    "w's shape": (ValueError, ["izhikevich: w must have shape [64, 128]", "but has [128]"], ops.izhikevich,
                  (X, None, X[0, 0]), {}),
    "v over time": (ValueError, ["lif: v must have shape [64, 128]", "[5, 64, 128]"], ops.lif, (X, X), {}),
    "sparse": (TypeError, ["lif: x must be", ".to_dense()"], ops.lif, (X.to_sparse(),), {}),
    "csr": (TypeError, ["lif: x must be", ".to_dense()"], ops.lif, (X[0].to_sparse_csr(),), {}),
    "no time": (ValueError, ["lif: x must have shape [T", "0-dimensional"], ops.lif, (torch.tensor(1.0),), {}),
    # In the tensor overload, None means soft reset, so v_reset is required: omitting it cannot mean v_reset = 0.
    "no v_reset": (RuntimeError, ["v_reset"], ops.lif.tensor, (X,), dict(tau=torch.tensor(2.0))),
    **{f"{name} {value}": (ValueError, ["lif: ", name, "but is"], ops.lif, (X,), dict(surrogate=name, surrogate_args=[value]))
       for name, value in (("sigmoid", 0.0), ("sigmoid", math.nan), ("q_pseudo_spike", 1.0), ("rect", -1.0))},
    **{f"{neuron} {name} {value}": (ValueError, [f"{neuron}: {name} must be", f"but is {value:g}"], getattr(ops, neuron), (X,),
                                    {name: value})
       for neuron, name in (("lif", "tau"), ("qif", "tau"), ("eif", "tau"), ("eif", "delta_t"), ("izhikevich", "tau"),
                            ("izhikevich", "tau_w"), ("adaptive_lif", "tau"))
       for value in (0.0, -1.0, math.nan, math.inf, -math.inf)},
    **{f"decay {value}": (ValueError, ["adaptive_lif: decay must be in [0, 1]", f"but is {value:g}"], ops.adaptive_lif, (X,),
                          dict(decay=value)) for value in (-0.1, 1.1, math.nan, math.inf)},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_raises_a_clear_error(case):
    error, words, op, args, options = WRONG[case]
    refused(error, words, op, *args, **options)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str)
@every_neuron
def test_x_of_another_type_names_the_cast(neuron, dtype):
    x = torch.ones(4, 3).to(dtype)
    op, more = arguments(neuron)
    refused(TypeError, [f"{neuron}: x must be", "float32", "but is", ".to(torch.float32)"], op, x, *more)


@pytest.mark.parametrize("value, error, words", [
    (True, TypeError, "be a real number"), (2j, TypeError, "be a real number"), (math.nan, ValueError, "but is nan"),
])
@every_neuron
def test_bool_complex_and_nan_are_no_numbers(neuron, value, error, words):
    x = torch.rand(4, 3)
    op, more = arguments(neuron)
    for name, default in NEURONS[neuron].params.items():
        if default is not None:
            refused(error, [f"{neuron}: {name} must ", words], op.default, x, *more, **{name: value})


@every_neuron
def test_an_unknown_surrogate_lists_the_known_ones(neuron):
    x = torch.rand(4, 3)
    op, more = arguments(neuron)
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
    """A parameter must broadcast to [5, 3], without extending it."""
    x = torch.rand(4, 5, 3)
    op, more = arguments(neuron)
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
            op, more = arguments(neuron, dtype)
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
    op, more = arguments(neuron)
    refused(ValueError, [f"{neuron}: v must be on cpu", "meta"], op, x, *more, torch.zeros(3, device="meta"))
    wrong = torch.zeros(3, device="meta")
    refused(ValueError, [f"{neuron}: v_threshold must be on cpu", "meta"], op.tensor, x, *more, v_threshold=wrong, v_reset=None)


def test_an_argument_on_the_cpu_beside_a_gpu(cuda):
    x = torch.rand(4, 3, device=cuda)
    refused(ValueError, ["lif: v must be on cuda", "cpu"], ops.lif, x, torch.zeros(3))
    refused(ValueError, ["lif: tau must be on cuda", "cpu"], ops.lif.tensor, x, tau=torch.ones(3), v_reset=None)
    refused(ValueError, ["lif: v must be on cpu", "cuda"], ops.lif, torch.rand(4, 3), torch.zeros(3, device=cuda))


# --- the lowered operators, which compilers and other languages may call -------------------------------------------


def lif_backward(**changes):
    x = torch.rand(4, 3)
    checkpoints = ops.lif_forward(x, None, [None] * 3, [2.0, 1.0, 0.0], **LOWERED_LIF, save=True)[-1]
    given = dict(grad_spikes=torch.ones(4, 3), grad_v=torch.ones(3), x=x, v=None, checkpoints=checkpoints,
                 params=[None] * 3, numbers=[2.0, 1.0, 0.0], **LOWERED_LIF, needs_grad=[True] + [False] * 4)
    return ops.lif_backward(**dict(given, **changes))


def test_the_backward_operator_checks_its_arguments():
    assert lif_backward()[0].shape == (4, 3)
    wrong = dict(
        grad_spikes=torch.ones(4, 2), grad_v=torch.ones(4, 3), checkpoints=torch.ones(9, 1, 3), needs_grad=[True],
        numbers=[2.0], params=[None],
    )
    for name, value in wrong.items():
        refused(ValueError, ["lif"], lif_backward, **{name: value})
    refused(TypeError, ["grad_spikes"], lif_backward, grad_spikes=torch.ones(4, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="needs_grad.*v"):
        lif_backward(needs_grad=[True, True, False, False, False])
