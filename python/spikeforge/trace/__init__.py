"""Neurons from Python functions: traced once, run as one fused operator."""

from .core import from_core
from .neuron import TracedNeuron, neuron
from .primitives import add_gradient, custom_gradient, detach, select, spike, spike_strict, surrogate_gradient, where
from .value import Value

__all__ = [
    "TracedNeuron", "Value", "add_gradient", "custom_gradient", "detach", "from_core", "neuron", "select", "spike",
    "spike_strict", "surrogate_gradient", "where",
]
