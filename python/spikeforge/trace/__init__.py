"""Neurons from Python functions: traced once, run as one fused operator."""

from . import calls as calls  # completes Value
from .core import from_core
from .neuron import TracedNeuron, neuron
from .primitives import (
    add_gradient,
    bernoulli,
    custom_gradient,
    detach,
    draw_once,
    normal,
    poisson,
    select,
    spike,
    spike_strict,
    surrogate_gradient,
    uniform,
    where,
)
from .value import Value

__all__ = [
    "TracedNeuron", "Value", "add_gradient", "bernoulli", "custom_gradient", "detach", "draw_once", "from_core",
    "neuron", "normal", "poisson", "select", "spike", "spike_strict", "surrogate_gradient", "uniform", "where",
]  # fmt: skip
