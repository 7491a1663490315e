"""Spiking neurons as fused, differentiable PyTorch operators."""

from spikeforge import _library

_library.load()
