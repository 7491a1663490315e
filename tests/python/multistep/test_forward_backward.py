"""Every form of every neuron in every type, with surrogates that are others for each: spikes, states and all gradients are
those of the reference."""

import pytest
import torch
from cases import (
    DTYPES, FORMS, HALF, KINDS, NUMBERS, Inputs, Options, Tally, arguments_of, call, compare, forms, numbers,
    random_parameters, random_states, random_x, some_of, state_dtype,
)
from reference import NEURONS, SURROGATES

STEPS = 21  # more than one segment between checkpoints, the last one short
SHAPE = (2, 3, 71)  # odd, and no multiple of a vector

every_form = pytest.mark.parametrize("neuron, form", [pytest.param(n, f, id=name) for n, f, name in FORMS])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
every_neuron = pytest.mark.parametrize("neuron", NEURONS)


@pytest.mark.covering(2)
@every_dtype
@every_form
def test_with_numbers_surrogates_equal_the_reference(neuron, form, dtype, device):
    tally = Tally()
    for i, surrogate in some_of(enumerate(SURROGATES), device, neuron, form, dtype, "numbers"):
        for arguments in arguments_of(surrogate, dtype):
            options = Options(**form, surrogate=surrogate, surrogate_args=arguments)
            inputs = Inputs(random_x(neuron, STEPS, SHAPE, dtype, device), params=numbers(neuron, dtype=dtype, device=device))
            if i % 4 < 2:
                kind = dtype if i % 8 < 4 else state_dtype(dtype)
                inputs.v, inputs.w = random_states(neuron, SHAPE, kind, device)
            compare(neuron, inputs, options, store_v=bool(i % 2), tally=tally)
    rate = tally.finish()
    assert 0.03 < rate < 0.8, f"only a test in which neurons fire now and then shows anything: {rate:.0%}"


@pytest.mark.covering(2)
@every_dtype
@every_form
def test_every_tensor_parameter_gets_its_gradient(neuron, form, dtype, device):
    tally = Tally()
    for i, surrogate in some_of(enumerate(SURROGATES), device, neuron, form, dtype):
        options = Options(**form, surrogate=surrogate, surrogate_args=arguments_of(surrogate, dtype)[0])
        kind = KINDS[i % 3]
        params = random_parameters(neuron, SHAPE, kind, dtype if i % 2 else state_dtype(dtype), device)
        inputs = Inputs(random_x(neuron, STEPS, SHAPE, dtype, device), params=params)
        if i % 4 < 2:  # otherwise v_reset and w_rest are the initial states
            inputs.v, inputs.w = random_states(neuron, SHAPE, state_dtype(dtype), device)
        if options.soft:
            del params["v_reset"]
        compare(neuron, inputs, options, store_v=i % 8 < 4, tally=tally, case=kind)
    tally.finish()


@pytest.mark.covering(2)
@every_dtype
@every_form
def test_the_smooth_form_equals_the_reference(neuron, form, dtype, device):
    tally = Tally()
    for i, surrogate in some_of(enumerate(SURROGATES), device, neuron, form, dtype):
        for arguments in arguments_of(surrogate, dtype):
            options = Options(**form, surrogate=surrogate, surrogate_args=arguments, spiking=False)
            steps = 1 if SURROGATES[surrogate].grows else 5
            inputs = Inputs(random_x(neuron, steps, SHAPE, dtype, device) / 2, params=numbers(neuron, dtype=dtype, device=device))
            inputs.v, inputs.w = random_states(neuron, SHAPE, state_dtype(dtype), device)
            compare(neuron, inputs, options, store_v=bool(i % 2), tally=tally)
    tally.finish()


@pytest.mark.long(but=r"-dtype1-|-37$")
@pytest.mark.parametrize("neurons", [37, 4096])
@pytest.mark.parametrize("dtype, lengths", [(torch.float64, (512, 301)), (torch.float32, (48, 37))])
@every_neuron
def test_long_sequences_of_few_neurons(neuron, dtype, lengths, neurons, device):
    """A GPU computes the segments of such sequences side by side. The steps end within one of them, or they do not."""
    tally = Tally()
    for steps, detach_reset in zip(lengths, (False, True)):
        params = random_parameters(neuron, (neurons,), "per neuron", dtype, device)
        inputs = Inputs(random_x(neuron, steps, (neurons,), dtype, device), params=params)
        inputs.v, inputs.w = random_states(neuron, (neurons,), dtype, device)
        compare(neuron, inputs, Options(detach_reset=detach_reset), store_v=detach_reset, tally=tally)
    tally.finish()


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@every_neuron
def test_a_gradient_asked_for_alone_is_right(neuron, dtype, device):
    """Each input in turn is the only one that requires a gradient, beside parameters that are tensors or numbers."""
    tally = Tally()
    for form in forms(neuron):
        options = Options(**form, surrogate="atan")
        names = ["x", "v", *(["w0"] if NEURONS[neuron].has_w else []), *NEURONS[neuron].params]
        if options.soft:
            names.remove("v_reset")
        for i, name in enumerate(names):
            params = random_parameters(neuron, SHAPE, KINDS[i % 3], dtype, device)
            if options.soft:
                del params["v_reset"]
            if i % 2:
                params = {n: NUMBERS[n] if n in NUMBERS and n != name else p for n, p in params.items()}
            inputs = Inputs(random_x(neuron, STEPS, SHAPE, dtype, device), *random_states(neuron, SHAPE, dtype, device), params)
            compare(neuron, inputs, options, needs_grad=[name], tally=tally, case=f"only {name}")
    tally.finish()


@every_neuron
def test_parameters_of_different_shapes_mix(neuron, device):
    tally = Tally()
    for form in forms(neuron):
        options = Options(**form)
        params = {}
        for i, name in enumerate(NEURONS[neuron].params):
            params[name] = random_parameters(neuron, SHAPE, KINDS[i % 3], torch.float64, device)[name]
        if options.soft:
            del params["v_reset"]
        inputs = Inputs(random_x(neuron, STEPS, SHAPE, torch.float64, device), params=params)
        compare(neuron, inputs, options, store_v=True, tally=tally)
    tally.finish()


@every_neuron
def test_a_state_that_starts_at_v_reset_sends_its_gradient_there(neuron, device):
    """v=None is v_reset expanded; its gradient through the initial state is counted once, with or without a reset."""
    for dtype in (torch.float64, torch.float32):
        for kind in KINDS:
            params = random_parameters(neuron, SHAPE, kind, dtype, device)
            inputs = Inputs(random_x(neuron, 3, SHAPE, dtype, device) / 4, params=params)
            starts = [name for name in ("v_reset", "w_rest") if name in params]
            compare(neuron, inputs, Options(), needs_grad=starts, case=kind)


@every_neuron
def test_nothing_requires_a_gradient_unless_an_input_does(neuron, device):
    for dtype in DTYPES:
        inputs = Inputs(random_x(neuron, STEPS, SHAPE, dtype, device), params=numbers(neuron, dtype=dtype, device=device))
        for store_v in (False, True):
            compare(neuron, inputs, Options(), store_v=store_v, needs_grad=[])
            results = call(neuron, inputs, Options(), store_v)
            assert not any(result.requires_grad for result in results), f"{neuron} {dtype}"


@every_neuron
def test_the_documented_defaults_are_the_defaults(neuron, device):
    """A call with nothing but x, and one that spells out the design's defaults, are the same call."""
    x = random_x(neuron, STEPS, SHAPE, torch.float64, device)
    params = {"w": torch.zeros((), dtype=torch.float64, device=device)} if neuron == "plif" else {}
    compare(neuron, Inputs(x, params=params), Options())


@every_neuron
def test_in_the_tensor_overload_none_is_the_default_and_a_soft_reset(neuron, device):
    x = random_x(neuron, 5, SHAPE, torch.float64, device)
    params = {"v_threshold": torch.tensor(0.9, dtype=torch.float64, device=device)}
    if neuron == "plif":
        params["w"] = torch.zeros((), dtype=torch.float64, device=device)
    compare(neuron, Inputs(x, params=params), Options(soft=True), case="tensor overload, all else None")


@pytest.mark.parametrize("dtype", HALF)
@every_neuron
def test_half_types_keep_their_state_in_float32(neuron, dtype, device):
    """Two calls of T/2 steps, the state handed over, are one call of T steps, bit for bit."""
    x = random_x(neuron, STEPS, SHAPE, dtype, device)
    params = numbers(neuron, dtype=dtype, device=device)
    whole = call(neuron, Inputs(x, params=params), Options())
    first = call(neuron, Inputs(x[: STEPS // 2], params=params), Options())
    second = call(neuron, Inputs(x[STEPS // 2 :], *first[1:], params=params), Options())
    assert torch.equal(torch.cat((first[0], second[0])), whole[0]), f"{neuron}: spikes differ"
    for a, b in zip(second[1:], whole[1:]):
        assert a.dtype == torch.float32 and torch.equal(a, b), f"{neuron}: the state differs"
