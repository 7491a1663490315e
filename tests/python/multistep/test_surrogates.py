"""Each surrogate in a neuron of one step: with V = 0 and threshold 0, H is x, and the gradient of the spike is the
surrogate."""

import pytest
import torch
from reference import SURROGATES

IF = torch.ops.spikeforge.integrate_and_fire

EVEN = set(SURROGATES) - {"s2nn", "leaky_k_relu", "log_tailed_relu", "triangular", "spike_rate_escape"}
POSITIVE = set(SURROGATES) - {"squarewave_fourier", "triangular", "multi_gaussian"}  # nonnegative everywhere

each = pytest.mark.parametrize(
    "name, arguments",
    [(name, args) for name, surrogate in SURROGATES.items() for args in (surrogate.defaults, surrogate.other)],
)


def surrogate_of(name, arguments, x):
    x = x.clone().requires_grad_()
    spikes, _ = IF(x[None], v_threshold=0, surrogate=name, surrogate_args=list(arguments))
    (gradient,) = torch.autograd.grad(spikes.sum(), x)
    return gradient


def smooth_spike_of(name, arguments, x):
    return IF(x[None], v_threshold=0, surrogate=name, surrogate_args=list(arguments), spiking=False)[0][0]


def grid(name, dtype, device):
    """Periodic surrogates are compared for a few periods only: further out, the rounding of x determines the phase."""
    fine = torch.linspace(-12, 12, 20011, dtype=torch.float64)
    tails = torch.logspace(1, 4, 101, dtype=torch.float64)
    near_zero = torch.logspace(-9, -1, 101, dtype=torch.float64)
    x = torch.cat((fine, tails, -tails, near_zero, -near_zero, torch.zeros(1, dtype=torch.float64)))
    if name == "squarewave_fourier":
        x = x[x.abs() <= 12]
    return x.to(dtype).to(device)


def away_from_jumps(name, arguments, x):
    clear = torch.ones_like(x, dtype=torch.bool)
    for jump in SURROGATES[name].jumps(*arguments):
        if jump != 0:  # comparing x itself with 0 is exact
            clear &= (x - jump).abs() > 1e-6
    return x[clear]


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
@each
def test_every_surrogate_is_its_formula(name, arguments, dtype, bound, device):
    """The error is relative to the maximum."""
    x = away_from_jumps(name, arguments, grid(name, dtype, device))
    expected = SURROGATES[name].gradient(x.cpu().double(), *arguments)
    error = (surrogate_of(name, arguments, x).cpu().double() - expected).abs() / expected.abs().max()
    worst = error.argmax()
    assert error[worst] <= bound, f"{name}{arguments} at x = {x[worst].item()}: off by {error[worst]:.2e} of its maximum"


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@each
def test_surrogates_do_not_cancel_in_their_tails(name, arguments, dtype, bound, device):
    """Relative errors up to abs(alpha x) = 10; in float32, the error of 4 s (1 - s) would be one third at 4."""
    if name not in POSITIVE - {"piecewise_quadratic"}:
        pytest.skip("a relative error means nothing where its gradient comes to zero")
    x = away_from_jumps(name, arguments, grid(name, dtype, device))
    if arguments:
        x = x[(arguments[0] * x).abs() <= 10]
    expected = SURROGATES[name].gradient(x.cpu().double(), *arguments)
    seen = expected > 1e-20  # for smaller values, the rounding of the argument dominates
    error = ((surrogate_of(name, arguments, x).cpu().double() - expected) / expected).abs()[seen]
    assert error.max() <= bound, f"{name}: relative error {error.max():.2e} at x = {x.cpu()[seen][error.argmax()].item()}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@each
def test_surrogates_are_even_finite_and_not_negative(name, arguments, dtype, device):
    x = grid(name, dtype, device)
    gradient = surrogate_of(name, arguments, x)
    assert name not in EVEN or torch.equal(gradient, surrogate_of(name, arguments, -x)), "x and -x give other bits"
    tiny, huge = (1e-300, 1e300) if dtype == torch.float64 else (1e-40, 1e30)
    x = torch.tensor([0.0, -0.0, tiny, -tiny, 1.0, -1.0, 1e30, -1e30, huge, -huge], dtype=dtype, device=device)
    gradient, primitive = surrogate_of(name, arguments, x), smooth_spike_of(name, arguments, x)
    assert gradient.isfinite().all() and primitive.isfinite().all()
    assert name not in POSITIVE or gradient.ge(0).all()
    assert primitive[0] == primitive[1] and primitive[0] in (0, 0.5)


@each
def test_every_primitive_is_its_formula(name, arguments, device):
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        x = grid(name, dtype, device)
        expected = SURROGATES[name].primitive(x.cpu().double(), *arguments)
        error = (smooth_spike_of(name, arguments, x).cpu().double() - expected).abs() / expected.abs().clamp(min=1)
        assert error.max() <= bound, f"{name}{arguments} {dtype} at x = {x[error.argmax()].item()}: error {error.max():.2e}"
    kinks = torch.tensor(SURROGATES[name].kinks(*arguments), dtype=torch.float64, device=device)
    left, right = (smooth_spike_of(name, arguments, kinks + side) for side in (-1e-9, 1e-9))
    largest = SURROGATES[name].gradient(grid(name, torch.float64, "cpu"), *arguments).abs().max().clamp(min=1).item()
    assert (right - left).abs().le(1e-8 * largest).all(), f"{name}{arguments} jumps"


BOUNDARIES = [  # name, arguments, x, gradient at x
    ("leaky_k_relu", (0.25, 2.0), 0.0, 2.0),
    ("leaky_k_relu", (0.25, 2.0), -1e-6, 0.25),
    ("log_tailed_relu", (0.25,), 0.0, 0.25),
    ("log_tailed_relu", (0.25,), 1e-6, 1.0),
    ("log_tailed_relu", (0.25,), 1.0, 1.0),
    ("s2nn", (4.0, 2.0), 0.0, 2.0),
    ("piecewise_leaky_relu", (0.5, 0.125), 0.5, 0.125),
    ("piecewise_leaky_relu", (0.5, 0.125), -0.5, 0.125),
    ("piecewise_leaky_relu", (0.5, 0.125), 0.25, 1.0),
    ("piecewise_quadratic", (2.0,), 0.5, 0.0),
    ("rect", (2.0,), 0.25, 0.0),
    ("rect", (2.0,), -0.25, 0.0),
    ("rect", (2.0,), 0.125, 2.0),
    ("fake_numerical_gradient", (0.25,), 0.0, 0.25),
    ("fake_numerical_gradient", (0.25,), 4.0, 0.25),
    ("triangular", (0.5,), 0.0, -0.5),
    ("triangular", (0.5,), -0.0, -0.5),
    ("triangular", (0.5,), -1e-6, 0.5),
]


@pytest.mark.parametrize("name, arguments, x, expected", BOUNDARIES)
def test_a_point_on_a_boundary_belongs_to_its_side(name, arguments, x, expected, device):
    for dtype in (torch.float64, torch.float32):
        at = torch.tensor([x], dtype=dtype, device=device)
        assert surrogate_of(name, arguments, at).item() == expected


@each
def test_the_reference_itself_has_the_gradient_of_its_primitive(name, arguments):
    """Tests the reference: each surrogate is the finite difference of its primitive."""
    surrogate, step = SURROGATES[name], 1e-6
    x = torch.linspace(-6, 6, 4001, dtype=torch.float64) + 1.234e-4
    for kink in surrogate.kinks(*arguments):
        x = x[(x - kink).abs() > 1e-4]
    difference = (surrogate.primitive(x + step, *arguments) - surrogate.primitive(x - step, *arguments)) / (2 * step)
    assert (difference - surrogate.gradient(x, *arguments)).abs().max() < 1e-8
