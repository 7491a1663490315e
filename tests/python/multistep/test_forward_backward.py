"""Every form of every neuron in every type, with different surrogates for each: spikes, states and all gradients equal
those of the reference."""

import pytest
import torch
from cases import (
    DTYPES, FORMS, KINDS, NUMBERS, Inputs, Options, Tally, arguments_of, compare, forms, numbers,
    random_parameters, random_states, random_x, some_of, state_dtype,
)
from reference import NEURONS, SURROGATES

STEPS = 21  # several segments between checkpoints, the last one shorter
SHAPE = (2, 3, 71)  # not a multiple of a vector

every_form = pytest.mark.parametrize("neuron, form", [pytest.param(n, f, id=name) for n, f, name in FORMS])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
every_neuron = pytest.mark.parametrize("neuron", NEURONS)
both_spikes = pytest.mark.parametrize("spiking", [True, False], ids=["spikes", "smooth"])


def drive(neuron, surrogate, dtype, spiking, device):
    """Returns few steps of weak inputs for the smooth form, whose neurons diverge."""
    steps = STEPS if spiking else 1 if SURROGATES[surrogate].grows else 5
    x = random_x(neuron, steps, SHAPE, dtype, device)
    return x if spiking else x / 2


@pytest.mark.covering(2)
@both_spikes
@every_dtype
@every_form
def test_with_numbers_surrogates_equal_the_reference(neuron, form, dtype, spiking, device):
    tally = Tally()
    for i, surrogate in some_of(enumerate(SURROGATES), device, neuron, form, dtype, spiking):
        for arguments in arguments_of(surrogate, dtype):
            options = Options(**form, surrogate=surrogate, surrogate_args=arguments, spiking=spiking)
            x = drive(neuron, surrogate, dtype, spiking, device)
            inputs = Inputs(x, params=numbers(neuron, dtype=dtype, device=device))
            if i % 4 < 2 or not spiking:
                kind = dtype if i % 8 < 4 and spiking else state_dtype(dtype)
                inputs.v, inputs.w = random_states(neuron, SHAPE, kind, device)
            compare(neuron, inputs, options, store_v=bool(i % 2), tally=tally)
    rate = tally.finish()
    assert not spiking or 0.03 < rate < 0.8, f"only a test in which neurons fire now and then shows anything: {rate:.0%}"


@pytest.mark.covering(2)
@both_spikes
@every_dtype
@every_form
def test_every_tensor_parameter_gets_its_gradient(neuron, form, dtype, spiking, device):
    """Parameters have different shapes; states are given, or start at v_reset and w_rest."""
    tally = Tally()
    for i, surrogate in some_of(enumerate(SURROGATES), device, neuron, form, dtype, spiking):
        options = Options(**form, surrogate=surrogate, surrogate_args=arguments_of(surrogate, dtype)[0], spiking=spiking)
        kinds = [KINDS[(i + j * (i % 2)) % 3] for j in range(len(NEURONS[neuron].params))]  # equal or different
        given = dtype if i % 2 else state_dtype(dtype)
        of_kind = {kind: random_parameters(neuron, SHAPE, kind, given, device) for kind in KINDS}
        params = {name: of_kind[kind][name] for name, kind in zip(NEURONS[neuron].params, kinds)}
        inputs = Inputs(drive(neuron, surrogate, dtype, spiking, device), params=params)
        if i % 4 < 2:
            inputs.v, inputs.w = random_states(neuron, SHAPE, state_dtype(dtype), device)
        if options.soft:
            del params["v_reset"]
        compare(neuron, inputs, options, store_v=i % 8 < 4, tally=tally, case=kinds)
    tally.finish()


@pytest.mark.long(but=r"-dtype1-|-37$")
@pytest.mark.parametrize("neurons", [37, 4096])
@pytest.mark.parametrize("dtype, lengths", [(torch.float64, (512, 301)), (torch.float32, (48, 37))])
@every_neuron
def test_long_sequences_of_few_neurons(neuron, dtype, lengths, neurons, device):
    """A GPU computes the segments of such sequences in parallel. The last segment is complete or incomplete."""
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
    """Each input in turn is the only one with a gradient; parameters are tensors or scalars."""
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
