"""The smooth form proves the derivation: finite differences of the forward pass are what the backward pass returns.

Only where the reset is attached: a detached one is no derivative of anything, and is compared with the reference in
test_forward_backward.py.
"""

import pytest
import torch
from cases import KINDS, Inputs, Options, call, form_name, forms, random_parameters, random_states, random_x, some_of, surrogate_arguments
from reference import NEURONS, SURROGATES, run

STEPS = 4
SHAPE = (1, 3)
CLEARANCE = 1e-3  # much wider than gradcheck's step

ATTACHED = [
    pytest.param(neuron, form, id=f"{neuron}-{form_name(form).replace(' ', '-')}")
    for neuron in NEURONS for form in forms(neuron) if not form["detach_reset"]
]


def kinks(options):
    surrogate = SURROGATES[options.surrogate]
    return surrogate.kinks(*(options.surrogate_args or surrogate.defaults))


def inputs_away_from_kinks(neuron, options, kind, device):
    """Draws until no H lies near a kink of the primitive, where a finite difference means nothing."""
    steps = 1 if SURROGATES[options.surrogate].grows else STEPS  # neurons run away under it
    for _ in range(200):
        inputs = Inputs(random_x(neuron, steps, SHAPE, torch.float64, "cpu"), *random_states(neuron, SHAPE, torch.float64, "cpu"))
        inputs.params = random_parameters(neuron, SHAPE, kind, torch.float64, "cpu")
        if options.soft:
            del inputs.params["v_reset"]
        h = run(neuron, inputs.x, inputs.v, inputs.w, params=inputs.params, **options.reference()).h
        distance = h - inputs.params["v_threshold"]
        if h.abs().max() < 10 and all((distance - kink).abs().min() > CLEARANCE for kink in kinks(options)):
            return inputs.map(lambda name, t: t.to(device).requires_grad_())
    raise AssertionError("no inputs found away from the kinks")


@pytest.mark.long(but=r"-(lif|izhikevich)-hard$")
@pytest.mark.parametrize("neuron, form", ATTACHED)
def test_the_smooth_form_has_the_gradient_of_its_finite_differences(neuron, form, device):
    for i, (surrogate, arguments) in some_of(enumerate(surrogate_arguments()), device, neuron, form):
        options = Options(**form, surrogate=surrogate, surrogate_args=arguments, spiking=False)
        inputs = inputs_away_from_kinks(neuron, options, KINDS[i % 3], device)
        names = list(inputs.tensors())
        store_v = bool(i % 2)

        def smooth(*leaves):
            given = dict(zip(names, leaves))
            return call(neuron, inputs.map(lambda name, _: given[name]), options, store_v)

        try:
            assert torch.autograd.gradcheck(smooth, list(inputs.tensors().values()), eps=1e-6, atol=1e-6, rtol=1e-5)
        except RuntimeError as error:  # gradcheck's own complaint names an input by its number
            raise AssertionError(f"{neuron} {options} store_v={store_v}, inputs {names}:\n{error}") from None
