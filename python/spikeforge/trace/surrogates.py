"""What a spike takes as its surrogate: an object of spikeforge.surrogate, its name, one's own derivative, or one of SpikingJelly."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from torch import Tensor

from .derivatives import DERIVATIVES
from .printer import number_text

SPIKINGJELLY = {  # the names of its functions, and of its classes, where they are not ours
    "squarewave_fourier_series": "squarewave_fourier", "deterministic_pass": "straight_through",
    "PiecewiseQuadratic": "piecewise_quadratic", "PiecewiseExp": "piecewise_exp", "Sigmoid": "sigmoid",
    "SoftSign": "soft_sign", "SuperSpike": "super_spike", "ATan": "atan", "NonzeroSignLogAbs": "nonzero_sign_log_abs",
    "Erf": "erf", "PiecewiseLeakyReLU": "piecewise_leaky_relu", "SquarewaveFourierSeries": "squarewave_fourier",
    "S2NN": "s2nn", "QPseudoSpike": "q_pseudo_spike", "LeakyKReLU": "leaky_k_relu",
    "FakeNumericalGradient": "fake_numerical_gradient", "LogTailedReLU": "log_tailed_relu",
    "DeterministicPass": "straight_through", "Rect": "rect",
}


class Named(NamedTuple):
    """A surrogate of the table in docs/surrogates.md, with its numbers; without them for the defaults."""

    name: str
    args: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.name}({', '.join(map(number_text, self.args))})" if self.args else self.name

    def gradient(self, x: Tensor) -> Tensor:
        derivative = DERIVATIVES[self.name]
        return derivative.at(x, *(self.args or derivative.defaults))


class Own(NamedTuple):
    """A derivative that the user wrote, of values and of tensors."""

    gradient: Callable[[Any], Any]


def _of_spikingjelly(surrogate: Any) -> Named:
    kind = type(surrogate).__name__
    if kind not in SPIKINGJELLY:
        raise ValueError(f"surrogate: {kind} of SpikingJelly is none of spikeforge's; call it on the value instead")
    if not surrogate.spiking:
        raise ValueError(f"surrogate: {kind}(spiking=False) makes no spikes; call it on the value instead")
    return Named(SPIKINGJELLY[kind], tuple(float(x) for x in surrogate._sg_params.values()))


def resolve(surrogate: Any) -> Named | Own:
    """The surrogate that a user means. Raises TypeError and ValueError."""
    if isinstance(surrogate, str):
        return _known(Named(surrogate))
    if isinstance(surrogate, type):
        raise TypeError(f"surrogate: {surrogate.__name__} is a class: write {surrogate.__name__}()")
    library = type(surrogate).__module__.partition(".")[0]
    if library == "spikingjelly":
        return _of_spikingjelly(surrogate)
    if isinstance(getattr(surrogate, "name", None), str) and isinstance(getattr(surrogate, "args", None), (tuple, list)):
        return _known(Named(surrogate.name, tuple(float(x) for x in surrogate.args)))
    if getattr(surrogate, "__module__", "").partition(".")[0] in ("snntorch", "norse"):
        raise TypeError("surrogate: one of snnTorch or Norse makes the spikes itself: write s = surrogate(u)")
    if callable(surrogate):
        return Own(surrogate)
    raise TypeError("surrogate: takes an object of spikeforge.surrogate, a name such as \"atan\" or a function that gives the "
                    f"derivative at u, not {type(surrogate).__name__}")


def _known(named: Named) -> Named:
    if named.name not in DERIVATIVES:
        raise ValueError(f"surrogate: none is called {named.name!r}; there are {', '.join(DERIVATIVES)}")
    wanted = len(DERIVATIVES[named.name].defaults)
    if len(named.args) not in (0, wanted):
        raise ValueError(f"surrogate: {named.name} takes {wanted} numbers, not {len(named.args)}")
    return named
