"""The surrogates' derivatives in plain torch operations, for the reference loop."""

from __future__ import annotations

import math
from typing import Callable, NamedTuple

import torch
from torch import Tensor


class Derivative(NamedTuple):
    defaults: tuple[float, ...]
    at: Callable[..., Tensor]  # (x, *numbers)


def _logistic(x: Tensor, alpha: float) -> Tensor:
    return alpha * torch.sigmoid(alpha * x) * torch.sigmoid(-alpha * x)


def _choose(condition: Tensor, a: Tensor | float, b: Tensor | float, like: Tensor) -> Tensor:
    return torch.where(condition, torch.as_tensor(a).to(like), torch.as_tensor(b).to(like))


def _normal(x: Tensor, mean: float, deviation: float) -> Tensor:
    return torch.exp(-((x - mean) / deviation) ** 2 / 2) / (deviation * math.sqrt(2 * math.pi))


def _waves(x: Tensor, n: float, period: float) -> Tensor:
    total = torch.zeros_like(x)
    for i in range(1, int(n)):
        total = total + torch.cos((2 * i - 1) * 2 * math.pi / period * x)
    return 4 / period * total


def _multi_gaussian(x: Tensor, sigma: float, h: float, s: float, gamma: float) -> Tensor:
    sides = _normal(x, sigma, s * sigma) + _normal(x, -sigma, s * sigma)
    return gamma * ((1 + h) * _normal(x, 0.0, sigma) - h * sides)


DERIVATIVES: dict[str, Derivative] = {
    "none": Derivative((), torch.zeros_like),
    "sigmoid": Derivative((4.0,), _logistic),
    "atan": Derivative((2.0,), lambda x, a: a / 2 / (1 + (math.pi / 2 * a * x) ** 2)),
    "piecewise_quadratic": Derivative((1.0,), lambda x, a: torch.clamp(a - a * a * x.abs(), min=0)),
    "piecewise_exp": Derivative((1.0,), lambda x, a: a / 2 * torch.exp(-a * x.abs())),
    "soft_sign": Derivative((2.0,), lambda x, a: 1 / (2 * a * (1 / a + x.abs()) ** 2)),
    "super_spike": Derivative((1.0,), lambda x, a: a / (1 + x.abs()) ** 2),
    "erf": Derivative((2.0,), lambda x, a: a / math.sqrt(math.pi) * torch.exp(-((a * x) ** 2))),
    "piecewise_leaky_relu": Derivative((1.0, 0.01), lambda x, w, c: _choose(x.abs() < w, 0.5 / w, c, x)),
    "s2nn": Derivative((4.0, 1.0), lambda x, a, b: _choose(x < 0, _logistic(x, a), b / (1 + x.abs()), x)),
    "q_pseudo_spike": Derivative((2.0,), lambda x, a: (1 + 2 / (a - 1) * x.abs()) ** -a),
    "leaky_k_relu": Derivative((0.0, 1.0), lambda x, leak, k: _choose(x >= 0, k, leak, x)),
    "fake_numerical_gradient": Derivative((0.3,), lambda x, a: torch.clamp(1 / x.abs(), max=a)),
    "log_tailed_relu": Derivative((0.0,), lambda x, a: _choose(x <= 0, a, 1 / torch.clamp(x, min=1), x)),
    "nonzero_sign_log_abs": Derivative((1.0,), lambda x, a: 1 / (1 / a + x.abs())),
    "squarewave_fourier": Derivative((2.0, 8.0), _waves),
    "rect": Derivative((1.0,), lambda x, a: _choose(x.abs() < 0.5 / a, a, 0.0, x)),
    "fast_sigmoid": Derivative((25.0,), lambda x, slope: 1 / (1 + slope * x.abs()) ** 2),
    "zenke_super_spike": Derivative((100.0,), lambda x, beta: 1 / (1 + beta * x.abs()) ** 2),
    "straight_through": Derivative((), torch.ones_like),
    "triangular": Derivative((1.0,), lambda x, threshold: _choose(x < 0, threshold, -threshold, x)),
    "spike_rate_escape": Derivative((1.0, 25.0), lambda x, beta, slope: slope * torch.exp(-beta * (x - 1).abs())),
    "gaussian": Derivative((0.5, 0.5), lambda x, sigma, gamma: gamma * _normal(x, 0.0, sigma)),
    "multi_gaussian": Derivative((0.5, 0.15, 6.0, 0.5), _multi_gaussian),
}
