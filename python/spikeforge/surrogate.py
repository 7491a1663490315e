"""Surrogate derivatives of the spike, as objects: ``LIF(surrogate=ATan(2.0))``.

A spike is a step function of x = H - v_threshold, whose derivative is zero almost everywhere; the backward pass uses a
surrogate derivative instead. Each surrogate is a frozen object with the parameters of ``docs/surrogates.md``:
``gradient(x)`` is the derivative and ``primitive(x)`` its integral, both in plain torch, for plots and tests; the
operators have their own implementation. ``name`` and ``args`` are arguments of the operators, ``text`` is the surrogate
in neuron text."""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spikeforge._numbers import operand


@dataclass(frozen=True)
class Surrogate:
    """Base class of surrogates."""

    name: ClassVar[str] = ""

    @property
    def args(self) -> tuple[float, ...]:
        """The parameters, in the order of the table."""
        return tuple(float(getattr(self, field.name)) for field in dataclasses.fields(self))

    @property
    def text(self) -> str:
        """The surrogate in neuron text, such as ``atan(2.0)``."""
        return f"{self.name}({', '.join(map(repr, self.args))})" if self.args else self.name

    def gradient(self, x: Tensor) -> Tensor:
        """Returns the surrogate derivative at x = H - v_threshold, of the shape of x."""
        raise NotImplementedError

    def primitive(self, x: Tensor) -> Tensor:
        """Returns the integral of the gradient, which ``spiking=False`` uses instead of the step function."""
        raise NotImplementedError

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(f"{self!r}: {what}")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(
                    f"{type(self).__name__}: {field.name} must be a number, but is {type(value).__name__}; write a "
                    "learned surrogate as Custom, with a parameter of the neuron"
                )
            self._require(math.isfinite(value), f"{field.name} must be finite")
            if field.metadata.get("positive"):
                self._require(value > 0, f"{field.name} must be above 0")


def positive(default: float):
    return dataclasses.field(default=default, metadata={"positive": True})


def _bell(x: Tensor, sigma: float) -> Tensor:
    """Returns the density of the normal distribution around 0."""
    return torch.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def _half_bell(x: Tensor, sigma: float) -> Tensor:
    """Returns the integral of the density from 0 to x."""
    return 0.5 * torch.erf(x / (sigma * math.sqrt(2)))


@dataclass(frozen=True)
class Sigmoid(Surrogate):
    """alpha sigma(alpha x) (1 - sigma(alpha x)), with the logistic function sigma."""

    name = "sigmoid"
    alpha: float = positive(4.0)

    def gradient(self, x):
        return self.alpha * torch.sigmoid(self.alpha * x) * torch.sigmoid(-self.alpha * x)

    def primitive(self, x):
        return torch.sigmoid(self.alpha * x)


@dataclass(frozen=True)
class ATan(Surrogate):
    """(alpha / 2) / (1 + (pi / 2 alpha x)^2)."""

    name = "atan"
    alpha: float = positive(2.0)

    def gradient(self, x):
        return self.alpha / 2 / (1 + (math.pi / 2 * self.alpha * x) ** 2)

    def primitive(self, x):
        return torch.atan(math.pi / 2 * self.alpha * x) / math.pi + 0.5


@dataclass(frozen=True)
class PiecewiseQuadratic(Surrogate):
    """max(0, alpha - alpha^2 abs(x)): a hat."""

    name = "piecewise_quadratic"
    alpha: float = positive(1.0)

    def gradient(self, x):
        return (self.alpha - self.alpha**2 * x.abs()).clamp(min=0)

    def primitive(self, x):
        a = self.alpha
        x = x.clamp(-1 / a, 1 / a)
        return a * x - 0.5 * a**2 * x * x.abs() + 0.5


@dataclass(frozen=True)
class PiecewiseExp(Surrogate):
    """(alpha / 2) exp(-alpha abs(x))."""

    name = "piecewise_exp"
    alpha: float = positive(1.0)

    def gradient(self, x):
        return self.alpha / 2 * torch.exp(-self.alpha * x.abs())

    def primitive(self, x):
        return 0.5 - 0.5 * x.sign() * torch.expm1(-self.alpha * x.abs())


@dataclass(frozen=True)
class SoftSign(Surrogate):
    """1 / (2 alpha (1 / alpha + abs(x))^2)."""

    name = "soft_sign"
    alpha: float = positive(2.0)

    def gradient(self, x):
        return self.alpha / 2 / (1 + self.alpha * x.abs()) ** 2

    def primitive(self, x):
        return 0.5 * (self.alpha * x / (1 + self.alpha * x.abs()) + 1)


@dataclass(frozen=True)
class SuperSpike(Surrogate):
    """alpha / (abs(x) + 1)^2."""

    name = "super_spike"
    alpha: float = positive(1.0)

    def gradient(self, x):
        return self.alpha / (x.abs() + 1) ** 2

    def primitive(self, x):
        return self.alpha * x / (1 + x.abs())


@dataclass(frozen=True)
class Erf(Surrogate):
    """(alpha / sqrt(pi)) exp(-alpha^2 x^2)."""

    name = "erf"
    alpha: float = positive(2.0)

    def gradient(self, x):
        return self.alpha / math.sqrt(math.pi) * torch.exp(-((self.alpha * x) ** 2))

    def primitive(self, x):
        return 0.5 * torch.erfc(-self.alpha * x)


@dataclass(frozen=True)
class PiecewiseLeakyReLU(Surrogate):
    """1 / (2 w) where abs(x) < w, else c."""

    name = "piecewise_leaky_relu"
    w: float = positive(1.0)
    c: float = 0.01

    def gradient(self, x):
        return torch.where(x.abs() < self.w, torch.full_like(x, 0.5 / self.w), torch.full_like(x, self.c))

    def primitive(self, x):
        inside = x.clamp(-self.w, self.w)
        return inside / (2 * self.w) + 0.5 + self.c * (x - inside)


@dataclass(frozen=True)
class S2NN(Surrogate):
    """alpha sigma(alpha x) (1 - sigma(alpha x)) where x < 0, else beta / (x + 1)."""

    name = "s2nn"
    alpha: float = positive(4.0)
    beta: float = positive(1.0)

    def gradient(self, x):
        return torch.where(x < 0, Sigmoid(self.alpha).gradient(x), self.beta / (x.clamp(min=0) + 1))

    def primitive(self, x):
        return torch.where(x < 0, torch.sigmoid(self.alpha * x), self.beta * torch.log1p(x.clamp(min=0)) + 0.5)


@dataclass(frozen=True)
class QPseudoSpike(Surrogate):
    """(1 + 2 abs(x) / (alpha - 1))^(-alpha), with alpha above 1."""

    name = "q_pseudo_spike"
    alpha: float = positive(2.0)

    def __post_init__(self):
        super().__post_init__()
        self._require(self.alpha > 1, "alpha must be above 1")

    def gradient(self, x):
        return (1 + 2 * x.abs() / (self.alpha - 1)) ** -self.alpha

    def primitive(self, x):
        tail = 0.5 * (1 + 2 * x.abs() / (self.alpha - 1)) ** (1 - self.alpha)
        return torch.where(x < 0, tail, 1 - tail)


@dataclass(frozen=True)
class LeakyKReLU(Surrogate):
    """k where x >= 0, else leak."""

    name = "leaky_k_relu"
    leak: float = 0.0
    k: float = 1.0

    def gradient(self, x):
        return torch.where(x >= 0, torch.full_like(x, self.k), torch.full_like(x, self.leak))

    def primitive(self, x):
        return self.gradient(x) * x


@dataclass(frozen=True)
class FakeNumericalGradient(Surrogate):
    """min(1 / abs(x), alpha)."""

    name = "fake_numerical_gradient"
    alpha: float = positive(0.3)

    def gradient(self, x):
        return (1 / x.abs()).clamp(max=self.alpha)

    def primitive(self, x):
        size = self.alpha * x.abs()
        return x.sign() * torch.where(size < 1, size, 1 + torch.log(size.clamp(min=1)))


@dataclass(frozen=True)
class LogTailedReLU(Surrogate):
    """alpha where x <= 0, 1 where x <= 1, else 1 / x."""

    name = "log_tailed_relu"
    alpha: float = 0.0

    def gradient(self, x):
        return torch.where(x <= 0, torch.full_like(x, self.alpha), 1 / x.clamp(min=1))

    def primitive(self, x):
        return torch.where(x <= 0, self.alpha * x, x.clamp(max=1) + torch.log(x.clamp(min=1)))


@dataclass(frozen=True)
class NonzeroSignLogAbs(Surrogate):
    """1 / (1 / alpha + abs(x))."""

    name = "nonzero_sign_log_abs"
    alpha: float = positive(1.0)

    def gradient(self, x):
        return self.alpha / (1 + self.alpha * x.abs())

    def primitive(self, x):
        return x.sign() * torch.log1p(self.alpha * x.abs())


@dataclass(frozen=True)
class SquarewaveFourier(Surrogate):
    """4 / period times the sum of cos((2 i - 1) 2 pi x / period) over i = 1 ... n - 1, where n is at least 2."""

    name = "squarewave_fourier"
    n: int = 2
    period: float = positive(8.0)

    def __post_init__(self):
        super().__post_init__()
        self._require(self.n >= 2 and self.n == int(self.n), "n must be a whole number, 2 or more")

    def _orders(self) -> range:
        return range(1, 2 * int(self.n) - 2, 2)

    def gradient(self, x):
        turn = 2 * math.pi * x / self.period
        return 4 / self.period * sum(torch.cos(k * turn) for k in self._orders())

    def primitive(self, x):
        turn = 2 * math.pi * x / self.period
        return 0.5 + 2 / math.pi * sum(torch.sin(k * turn) / k for k in self._orders())


@dataclass(frozen=True)
class Rect(Surrogate):
    """alpha where abs(x) < 0.5 / alpha, else 0."""

    name = "rect"
    alpha: float = positive(1.0)

    def gradient(self, x):
        return self.alpha * (x.abs() < 0.5 / self.alpha).to(x.dtype)

    def primitive(self, x):
        return (self.alpha * x + 0.5).clamp(0, 1)


@dataclass(frozen=True)
class FastSigmoid(Surrogate):
    """1 / (1 + slope abs(x))^2."""

    name = "fast_sigmoid"
    slope: float = positive(25.0)

    def gradient(self, x):
        return 1 / (1 + self.slope * x.abs()) ** 2

    def primitive(self, x):
        return x / (1 + self.slope * x.abs())


@dataclass(frozen=True)
class ZenkeSuperSpike(Surrogate):
    """1 / (1 + beta abs(x))^2. Source: Zenke and Ganguli, Neural Computation 30 (2018)."""

    name = "zenke_super_spike"
    beta: float = positive(100.0)

    def gradient(self, x):
        return 1 / (1 + self.beta * x.abs()) ** 2

    def primitive(self, x):
        return x / (1 + self.beta * x.abs())


@dataclass(frozen=True)
class StraightThrough(Surrogate):
    """1."""

    name = "straight_through"

    def gradient(self, x):
        return torch.ones_like(x)

    def primitive(self, x):
        return x.clone()


@dataclass(frozen=True)
class Triangular(Surrogate):
    """threshold where x < 0, else -threshold, as in snnTorch."""

    name = "triangular"
    threshold: float = positive(1.0)

    def gradient(self, x):
        return torch.where(x < 0, torch.full_like(x, self.threshold), torch.full_like(x, -self.threshold))

    def primitive(self, x):
        return -self.threshold * x.abs()


@dataclass(frozen=True)
class SpikeRateEscape(Surrogate):
    """slope exp(-beta abs(x - 1))."""

    name = "spike_rate_escape"
    beta: float = positive(1.0)
    slope: float = positive(25.0)

    def gradient(self, x):
        return self.slope * torch.exp(-self.beta * (x - 1).abs())

    def primitive(self, x):
        tail = torch.exp(-self.beta * (x - 1).abs())
        return self.slope / self.beta * (torch.where(x < 1, tail, 2 - tail) - math.exp(-self.beta))


@dataclass(frozen=True)
class Gaussian(Surrogate):
    """gamma N(x; 0, sigma), with the density N of the normal distribution."""

    name = "gaussian"
    sigma: float = positive(0.5)
    gamma: float = positive(0.5)

    def gradient(self, x):
        return self.gamma * _bell(x, self.sigma)

    def primitive(self, x):
        return 0.5 + self.gamma * _half_bell(x, self.sigma)


@dataclass(frozen=True)
class MultiGaussian(Surrogate):
    """gamma ((1 + h) N(x; 0, sigma) - h N(x; sigma, s sigma) - h N(x; -sigma, s sigma))."""

    name = "multi_gaussian"
    sigma: float = positive(0.5)
    h: float = 0.15
    s: float = positive(6.0)
    gamma: float = positive(0.5)

    def _sum(self, part, x):
        sides = part(x - self.sigma, self.s * self.sigma) + part(x + self.sigma, self.s * self.sigma)
        return self.gamma * ((1 + self.h) * part(x, self.sigma) - self.h * sides)

    def gradient(self, x):
        return self._sum(_bell, x)

    def primitive(self, x):
        return 0.5 + self._sum(_half_bell, x)


@dataclass(frozen=True)
class Custom:
    """A custom surrogate, given by its derivative in neuron text: ``Custom("w / square(1 + abs(u))", w=0.5)``.

    Args:
        expression: the derivative at ``u`` = H - v_threshold, with the functions of ``docs/neuron_text.md``.
        numbers: values of other names in the expression.

    A predefined neuron with such a surrogate runs as neuron text, with the same forward bits. A surrogate with a
    learned parameter needs a custom neuron.

    >>> LIF(surrogate=Custom("0.3 * relu(1 - abs(u))"))
    """

    expression: str
    numbers: tuple[tuple[str, float], ...] = ()

    def __init__(self, expression: str, **numbers: float):
        if not isinstance(expression, str) or not expression.strip():
            raise TypeError(f"Custom: the expression must be text, but is {expression!r}")
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(
                    f"Custom: {name} must be a number, but is {type(value).__name__}; write a learned surrogate in a "
                    "custom neuron, spikeforge.nn.Neuron(text, ...), by "
                    'add_gradient(spike(u, none), u, "...")'
                )
            if name == "u":
                raise ValueError("Custom: u is H - v_threshold and cannot be the name of a number")
        object.__setattr__(self, "expression", expression.strip())
        object.__setattr__(self, "numbers", tuple((name, float(value)) for name, value in numbers.items()))
        try:
            self.gradient(torch.empty(0, device="cpu"))
        except ValueError as error:
            raise ValueError(f"{self!r}: {str(error).splitlines()[0]}") from None

    def __repr__(self) -> str:
        return f"Custom({self.expression!r}{''.join(f', {name}={value}' for name, value in self.numbers)})"

    def spike(self, u: str, *, strict: bool = False) -> str:
        """Returns neuron text of a spike at the value `u` with this derivative."""
        return f"add_gradient({'spike_strict' if strict else 'spike'}({u}, none), {u}, {self.derivative(u)})"

    def derivative(self, u: str) -> str:
        """Returns neuron text of the derivative at the value `u`."""
        import re

        values = {"u": u} | {name: operand(value) for name, value in self.numbers}
        return re.sub(
            r"(?<![\w.])[A-Za-z_]\w*(?!\w*\s*\()", lambda found: values.get(found[0], found[0]), self.expression
        )

    def gradient(self, x: Tensor) -> Tensor:
        """Returns the derivative at x, computed by the library."""
        x = x.detach()
        text = f"neuron surrogate(x; ) {{ u = 1 * x; d = {self.derivative('u')}; return d }}"
        (d,), _ = torch.ops.spikeforge.run(text, [x.unsqueeze(0)], [], [])
        return d.squeeze_(0)


_KINDS: tuple[type[Surrogate], ...] = (
    Sigmoid, ATan, PiecewiseQuadratic, PiecewiseExp, SoftSign, SuperSpike, Erf, PiecewiseLeakyReLU, S2NN,
    QPseudoSpike, LeakyKReLU, FakeNumericalGradient, LogTailedReLU, NonzeroSignLogAbs, SquarewaveFourier, Rect,
    FastSigmoid, ZenkeSuperSpike, StraightThrough, Triangular, SpikeRateEscape, Gaussian, MultiGaussian,
)  # fmt: skip
SURROGATES = {kind.name: kind for kind in _KINDS}


def unknown(name: str, besides: tuple[str, ...] = ()) -> ValueError:
    """Returns the error for an unknown name; `besides` are further legal names."""
    known = (*SURROGATES, *besides)
    near = difflib.get_close_matches(name, known, 1)
    meant = f'; did you mean "{near[0]}"?' if near else ""
    return ValueError(f'unknown surrogate "{name}"; known are {", ".join(known)}{meant}')


def of(surrogate: str | Surrogate | Custom) -> Surrogate | Custom:
    """Returns the surrogate of a name with its defaults, or the given surrogate.

    Raises:
        ValueError: if the name is unknown.
        TypeError: if the argument is neither a name nor a surrogate.
    """
    if isinstance(surrogate, (Surrogate, Custom)):
        return surrogate
    if isinstance(surrogate, str):
        if surrogate not in SURROGATES:
            raise unknown(surrogate)
        return SURROGATES[surrogate]()
    if isinstance(surrogate, type) and issubclass(surrogate, Surrogate):
        raise TypeError(
            f"surrogate must be an object, but is the class {surrogate.__name__}; pass {surrogate.__name__}()"
        )
    hint = ""
    if callable(surrogate):
        hint = (
            '; write its derivative as text, Custom("1 / square(1 + abs(u))"), or the neuron as a function '
            "(@spikeforge.neuron), whose spikeforge.spike(u, surrogate) accepts a function"
        )
    raise TypeError(
        'surrogate must be a name ("atan") or an object of spikeforge.surrogate, but is '
        f"{type(surrogate).__name__}{hint}"
    )


__all__ = ["Custom", "SURROGATES", "Surrogate", "of", *(kind.__name__ for kind in SURROGATES.values())]
