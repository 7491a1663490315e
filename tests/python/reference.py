"""The neurons as slow, simple loops over time, written from their equations.

The reference for all results of the operators: computed step by step, in float64, with gradients from torch's autograd.
This file is independent of the implementation.
"""

import math
from dataclasses import dataclass
from typing import Callable, NamedTuple, Optional

import torch

# --- surrogates ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Surrogate:
    """`gradient` replaces the derivative of the Heaviside function, `primitive` is its integral.

    `jumps` are the points where the gradient is not continuous, `kinks` those where it is not smooth. If the defaults
    are `steep`, the rounding of H in float32 causes errors above the bound. If the primitive `grows` with x, or is large,
    neurons of the smooth form diverge.
    """

    defaults: tuple
    other: tuple  # a second set of arguments, so that no test passes because of a default
    gradient: Callable
    primitive: Callable
    jumps: Callable = lambda *args: []
    kinks: Callable = lambda *args: []
    steep: bool = False
    grows: bool = False


def sigma(x):
    return torch.sigmoid(x)


def pick(condition, x, yes, no):
    """Returns torch.where(condition, yes, no) with scalars in the dtype of x."""
    yes, no = (value if torch.is_tensor(value) else torch.full_like(x, value) for value in (yes, no))
    return torch.where(condition, yes, no)


def sigmoid_gradient(x, alpha):
    return alpha * sigma(alpha * x) * sigma(-alpha * x)


def sigmoid_primitive(x, alpha):
    return sigma(alpha * x)


def atan_gradient(x, alpha):
    return alpha / 2 / (1 + (math.pi / 2 * alpha * x) ** 2)


def atan_primitive(x, alpha):
    return torch.atan(math.pi / 2 * alpha * x) / math.pi + 0.5


def piecewise_quadratic_gradient(x, alpha):
    return (alpha - alpha**2 * x.abs()).clamp(min=0)


def piecewise_quadratic_primitive(x, alpha):
    inside = alpha * x - alpha**2 / 2 * x * x.abs() + 0.5
    return torch.where(x.abs() < 1 / alpha, inside, (x > 0).to(x.dtype))


def piecewise_exp_gradient(x, alpha):
    return alpha / 2 * torch.exp(-alpha * x.abs())


def piecewise_exp_primitive(x, alpha):
    tail = torch.exp(-alpha * x.abs()) / 2
    return torch.where(x < 0, tail, 1 - tail)


def soft_sign_gradient(x, alpha):
    return 1 / (2 * alpha * (1 / alpha + x.abs()) ** 2)


def soft_sign_primitive(x, alpha):
    return alpha * x / (1 + alpha * x.abs()) / 2 + 0.5


def super_spike_gradient(x, alpha):
    return alpha / (x.abs() + 1) ** 2


def super_spike_primitive(x, alpha):
    return alpha * x / (1 + x.abs())


def erf_gradient(x, alpha):
    return alpha / math.sqrt(math.pi) * torch.exp(-(alpha**2) * x * x)


def erf_primitive(x, alpha):
    return torch.erfc(-alpha * x) / 2


def piecewise_leaky_relu_gradient(x, w, c):
    return pick(x.abs() < w, x, 1 / (2 * w), c)


def piecewise_leaky_relu_primitive(x, w, c):
    outside = torch.where(x < 0, c * x + c * w, c * x - c * w + 1)
    return torch.where(x.abs() < w, x / (2 * w) + 0.5, outside)


def s2nn_gradient(x, alpha, beta):
    right = beta / (x.clamp(min=0) + 1)
    return torch.where(x < 0, sigmoid_gradient(x, alpha), right)


def s2nn_primitive(x, alpha, beta):
    right = beta * torch.log(x.clamp(min=0) + 1) + 0.5
    return torch.where(x < 0, sigma(alpha * x), right)


def q_pseudo_spike_gradient(x, alpha):
    return (1 + 2 * x.abs() / (alpha - 1)) ** (-alpha)


def q_pseudo_spike_primitive(x, alpha):
    tail = (1 + 2 * x.abs() / (alpha - 1)) ** (1 - alpha) / 2
    return torch.where(x < 0, tail, 1 - tail)


def leaky_k_relu_gradient(x, leak, k):
    return pick(x >= 0, x, k, leak)


def leaky_k_relu_primitive(x, leak, k):
    return torch.where(x >= 0, k * x, leak * x)


def fake_numerical_gradient_gradient(x, alpha):
    return torch.clamp(1 / x.abs(), max=alpha)


def fake_numerical_gradient_primitive(x, alpha):
    far = x.abs().clamp(min=1 / alpha)
    return torch.where(x.abs() < 1 / alpha, alpha * x, x.sign() * (1 + torch.log(alpha * far)))


def log_tailed_relu_gradient(x, alpha):
    return pick(x <= 0, x, alpha, 1 / x.clamp(min=1))


def log_tailed_relu_primitive(x, alpha):
    right = torch.where(x <= 1, x, 1 + torch.log(x.clamp(min=1)))
    return torch.where(x <= 0, alpha * x, right)


def nonzero_sign_log_abs_gradient(x, alpha):
    return 1 / (1 / alpha + x.abs())


def nonzero_sign_log_abs_primitive(x, alpha):
    return x.sign() * torch.log(alpha * x.abs() + 1)


def harmonics(n, period):
    return [((2 * i - 1), (2 * i - 1) * 2 * math.pi / period) for i in range(1, int(n))]


def squarewave_fourier_gradient(x, n, period):
    return 4 / period * sum((torch.cos(omega * x) for _, omega in harmonics(n, period)), torch.zeros_like(x))


def squarewave_fourier_primitive(x, n, period):
    waves = (torch.sin(omega * x) / order for order, omega in harmonics(n, period))
    return 0.5 + 2 / math.pi * sum(waves, torch.zeros_like(x))


def rect_gradient(x, alpha):
    return pick(x.abs() < 0.5 / alpha, x, alpha, 0.0)


def rect_primitive(x, alpha):
    return (alpha * x + 0.5).clamp(0, 1)


def fast_sigmoid_gradient(x, slope):
    return 1 / (1 + slope * x.abs()) ** 2


def fast_sigmoid_primitive(x, slope):
    return x / (1 + slope * x.abs())


def straight_through_gradient(x):
    return torch.ones_like(x)


def straight_through_primitive(x):
    return 1 * x


def triangular_gradient(x, threshold):
    return pick(x < 0, x, threshold, -threshold)


def triangular_primitive(x, threshold):
    return -threshold * x.abs()


def spike_rate_escape_gradient(x, beta, slope):
    return slope * torch.exp(-beta * (x - 1).abs())


def spike_rate_escape_primitive(x, beta, slope):
    below = torch.exp(beta * (x.clamp(max=1) - 1))
    above = 2 - torch.exp(beta * (1 - x.clamp(min=1)))
    return slope / beta * (torch.where(x < 1, below, above) - math.exp(-beta))


def normal_density(x, mean, deviation):
    return torch.exp(-((x - mean) ** 2) / (2 * deviation**2)) / math.sqrt(2 * math.pi) / deviation


def normal_distribution(x, mean, deviation):
    return torch.special.ndtr((x - mean) / deviation)


def gaussian_gradient(x, sigma, gamma):
    return gamma * normal_density(x, 0, sigma)


def gaussian_primitive(x, sigma, gamma):
    return gamma * (normal_distribution(x, 0, sigma) - 0.5) + 0.5


def multi_gaussian_gradient(x, sigma, h, s, gamma):
    sides = normal_density(x, sigma, s * sigma) + normal_density(x, -sigma, s * sigma)
    return gamma * ((1 + h) * normal_density(x, 0, sigma) - h * sides)


def multi_gaussian_primitive(x, sigma, h, s, gamma):
    sides = normal_distribution(x, sigma, s * sigma) + normal_distribution(x, -sigma, s * sigma)
    return gamma * ((1 + h) * (normal_distribution(x, 0, sigma) - 0.5) - h * (sides - 1)) + 0.5


def at_zero(*args):
    return [0.0]


SURROGATES = {
    "sigmoid": Surrogate((4.0,), (2.5,), sigmoid_gradient, sigmoid_primitive),
    "atan": Surrogate((2.0,), (1.3,), atan_gradient, atan_primitive),
    "piecewise_quadratic": Surrogate(
        (1.0,), (1.4,), piecewise_quadratic_gradient, piecewise_quadratic_primitive,
        kinks=lambda alpha: [-1 / alpha, 0.0, 1 / alpha],
    ),
    "piecewise_exp": Surrogate((1.0,), (1.7,), piecewise_exp_gradient, piecewise_exp_primitive, kinks=at_zero),
    "soft_sign": Surrogate((2.0,), (3.2,), soft_sign_gradient, soft_sign_primitive, kinks=at_zero),
    "super_spike": Surrogate((1.0,), (0.6,), super_spike_gradient, super_spike_primitive, kinks=at_zero),
    "erf": Surrogate((2.0,), (1.2,), erf_gradient, erf_primitive),
    "piecewise_leaky_relu": Surrogate(
        (1.0, 0.01), (0.7, 0.05), piecewise_leaky_relu_gradient, piecewise_leaky_relu_primitive,
        jumps=lambda w, c: [-w, w], kinks=lambda w, c: [-w, w],
    ),
    "s2nn": Surrogate((4.0, 1.0), (3.0, 0.6), s2nn_gradient, s2nn_primitive, jumps=at_zero, kinks=at_zero),
    "q_pseudo_spike": Surrogate((2.0,), (2.7,), q_pseudo_spike_gradient, q_pseudo_spike_primitive, kinks=at_zero),
    "leaky_k_relu": Surrogate(
        (0.0, 1.0), (0.2, 0.8), leaky_k_relu_gradient, leaky_k_relu_primitive, jumps=at_zero, kinks=at_zero
    ),
    "fake_numerical_gradient": Surrogate(
        (0.3,), (0.8,), fake_numerical_gradient_gradient, fake_numerical_gradient_primitive,
        kinks=lambda alpha: [-1 / alpha, 1 / alpha],
    ),
    "log_tailed_relu": Surrogate(
        (0.0,), (0.3,), log_tailed_relu_gradient, log_tailed_relu_primitive, jumps=at_zero, kinks=lambda a: [0.0, 1.0]
    ),
    "nonzero_sign_log_abs": Surrogate(
        (1.0,), (0.7,), nonzero_sign_log_abs_gradient, nonzero_sign_log_abs_primitive, kinks=at_zero
    ),
    "squarewave_fourier": Surrogate(
        (2.0, 8.0), (3.0, 11.0), squarewave_fourier_gradient, squarewave_fourier_primitive
    ),
    "rect": Surrogate(
        (1.0,), (0.8,), rect_gradient, rect_primitive,
        jumps=lambda alpha: [-0.5 / alpha, 0.5 / alpha], kinks=lambda alpha: [-0.5 / alpha, 0.5 / alpha],
    ),
    "fast_sigmoid": Surrogate((25.0,), (3.0,), fast_sigmoid_gradient, fast_sigmoid_primitive, kinks=at_zero, steep=True),
    "zenke_super_spike": Surrogate((100.0,), (2.0,), fast_sigmoid_gradient, fast_sigmoid_primitive, kinks=at_zero, steep=True),
    "straight_through": Surrogate((), (), straight_through_gradient, straight_through_primitive, grows=True),
    "triangular": Surrogate((1.0,), (0.7,), triangular_gradient, triangular_primitive, jumps=at_zero, kinks=at_zero, grows=True),
    "spike_rate_escape": Surrogate(
        (1.0, 25.0), (1.5, 0.8), spike_rate_escape_gradient, spike_rate_escape_primitive, kinks=lambda beta, slope: [1.0],
        steep=True, grows=True,
    ),
    "gaussian": Surrogate((0.5, 0.5), (0.8, 1.1), gaussian_gradient, gaussian_primitive),
    "multi_gaussian": Surrogate(
        (0.5, 0.15, 6.0, 0.5), (0.7, 0.3, 4.0, 0.9), multi_gaussian_gradient, multi_gaussian_primitive
    ),
}

# --- fire and reset ------------------------------------------------------------------------------------------------


class Fire(torch.autograd.Function):
    """Returns 1 where x >= 0, or the primitive in the smooth form; the derivative is the surrogate gradient."""

    @staticmethod
    def forward(ctx, x, surrogate, args, spiking):
        ctx.save_for_backward(x)
        ctx.surrogate, ctx.args = surrogate, args
        return (x >= 0).to(x.dtype) if spiking else surrogate.primitive(x, *args)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.surrogate.gradient(x, *ctx.args), None, None, None


class Select(torch.autograd.Function):
    """Returns v_reset if the neuron fired, otherwise h; differentiated as s * v_reset + (1 - s) * h."""

    @staticmethod
    def forward(ctx, h, s, v_reset):
        ctx.save_for_backward(h, s, v_reset)
        return torch.where(s == 1, v_reset, h)

    @staticmethod
    def backward(ctx, grad):
        h, s, v_reset = ctx.saved_tensors
        return grad * (1 - s), grad * (v_reset - h), grad * s


def hard_reset(h, s, v_reset, spiking):
    return Select.apply(h, s, v_reset) if spiking else s * v_reset + (1 - s) * h


# --- neurons -------------------------------------------------------------------------------------------------------


class Neuron(NamedTuple):
    params: dict  # name -> the operator's default, in the order of its signature; None without a default
    has_w: bool = False  # whether it has a second state
    has_decay_input: bool = False


NEURONS = {
    "integrate_and_fire": Neuron(dict(v_threshold=1.0, v_reset=0.0)),
    "lif": Neuron(dict(tau=2.0, v_threshold=1.0, v_reset=0.0), has_decay_input=True),
    "plif": Neuron(dict(w=None, v_threshold=1.0, v_reset=0.0), has_decay_input=True),
    "qif": Neuron(dict(tau=2.0, v_c=0.8, a0=1.0, v_threshold=1.0, v_rest=0.0, v_reset=-0.1)),
    "eif": Neuron(dict(tau=2.0, delta_t=1.0, theta_rh=0.8, v_threshold=1.0, v_rest=0.0, v_reset=-0.1)),
    "izhikevich": Neuron(
        dict(tau=2.0, v_c=0.8, a0=1.0, v_threshold=1.0, v_rest=-0.1, w_rest=0.0, v_reset=0.0, tau_w=2.0, a=0.0, b=0.0),
        has_w=True,
    ),
    "adaptive_lif": Neuron(
        dict(tau=2.0, v_threshold=1.0, v_reset=0.0, decay=0.9, b=0.1), has_w=True, has_decay_input=True
    ),
}


def charge(neuron, x, v, w, p, decay_input):
    """Returns H of one step. p contains the parameters; p['leak_to'] is v_reset, or 0 under soft reset."""
    if neuron == "integrate_and_fire":
        return v + x
    if neuron in ("lif", "plif", "adaptive_lif"):
        rate = torch.sigmoid(p["w"]) if neuron == "plif" else 1 / p["tau"]
        leak = v - p["leak_to"]
        return v + (x - leak) * rate if decay_input else v - leak * rate + x
    if neuron == "eif":
        upswing = p["delta_t"] * torch.exp((v - p["theta_rh"]) / p["delta_t"])
        return v + (x + p["v_rest"] - v + upswing) / p["tau"]
    parabola = p["a0"] * (v - p["v_rest"]) * (v - p["v_c"])
    if neuron == "qif":
        return v + (x + parabola) / p["tau"]
    if neuron == "izhikevich":
        return v + (x + parabola - w) / p["tau"]
    raise AssertionError(neuron)


def threshold_of(neuron, w, p):
    """Returns the threshold of one step: that of adaptive_lif increases with the second state."""
    return p["v_threshold"] + p["b"] * w if neuron == "adaptive_lif" else p["v_threshold"]


def recover(neuron, h, s, w, p):
    """Returns the second state after a step."""
    if neuron == "adaptive_lif":
        return p["decay"] * w + s
    return w + (p["a"] * (h - p["v_rest"]) - w) / p["tau_w"] + p["b"] * s


class Result(NamedTuple):
    spikes: torch.Tensor  # [T, *shape]
    v: torch.Tensor  # [T, *shape], after reset
    w: Optional[torch.Tensor]
    h: torch.Tensor  # [T, *shape], compared with the threshold
    v_last: torch.Tensor
    w_last: Optional[torch.Tensor]
    threshold: torch.Tensor  # [T, *shape], compared with h

    def outputs(self, store_v):
        """Returns the results of the operator."""
        states = (self.v, self.w) if store_v else (self.v_last, self.w_last)
        return (self.spikes, *(state for state in states if state is not None))


def run(
    neuron, x, v=None, w=None, *, params=None, soft=False, decay_input=True, detach_reset=False, surrogate="sigmoid",
    surrogate_args=(), spiking=True,
):
    """Runs the loop over time in the dtype of x. params: name -> scalar or tensor; missing ones have their defaults."""
    shape = x.shape[1:]
    p = {name: default for name, default in NEURONS[neuron].params.items() if default is not None}
    p.update(params or {})
    p = {name: torch.as_tensor(value, dtype=x.dtype, device=x.device).expand(shape) for name, value in p.items()}
    zero = torch.zeros(shape, dtype=x.dtype, device=x.device)
    p["leak_to"] = zero if soft else p["v_reset"]
    form = SURROGATES[surrogate]
    arguments = tuple(surrogate_args) or form.defaults

    v = p["leak_to"] if v is None else v
    if NEURONS[neuron].has_w:
        w = p.get("w_rest", zero) if w is None else w
    spikes, voltages, recoveries, charged, thresholds = [], [], [], [], []
    for x_t in x:
        h = charge(neuron, x_t, v, w, p, decay_input)
        threshold = threshold_of(neuron, w, p)
        s = Fire.apply(h - threshold, form, arguments, spiking)
        s_reset = s.detach() if detach_reset else s
        v = h - threshold * s_reset if soft else hard_reset(h, s_reset, p["v_reset"], spiking)
        if NEURONS[neuron].has_w:
            w = recover(neuron, h, s, w, p)
            recoveries.append(w)
        spikes.append(s)
        voltages.append(v)
        charged.append(h)
        thresholds.append(threshold)

    def sequence(steps):
        return torch.stack(steps) if steps else x.new_zeros(x.shape)

    return Result(
        sequence(spikes), sequence(voltages), sequence(recoveries) if NEURONS[neuron].has_w else None,
        sequence(charged), v.clone(), w.clone() if NEURONS[neuron].has_w else None,
        sequence(thresholds),
    )


def jvp(function, values, tangents):
    """Returns the derivative of a function along tangents: the derivative of its vjp, which is linear."""
    leaves = [t.clone().requires_grad_() for t in values]
    outputs = function(*leaves)
    ones = [torch.zeros_like(o, requires_grad=True) for o in outputs]
    grads = torch.autograd.grad(outputs, leaves, ones, create_graph=True, allow_unused=True)
    pairs = [(g, t) for g, t in zip(grads, tangents) if g is not None]
    found = torch.autograd.grad([g for g, _ in pairs], ones, [t for _, t in pairs], allow_unused=True)
    return [torch.zeros_like(o) if f is None else f for f, o in zip(found, outputs)]
