"""Spiking neurons as modules of torch, and networks of them. See ``docs/python_modules.md``."""

from spikeforge.nn.constant import Constant, Learnable
from spikeforge.nn.neurons import EIF, IF, LIF, PLIF, QIF, AdaptiveLIF, Izhikevich
from spikeforge.nn.own import LI, CubaLIF, Neuron
from spikeforge.nn.stateful import StatefulModule, call, detach_, get_states, keep_state, reset_, set_states_

__all__ = [
    "AdaptiveLIF",
    "Constant",
    "CubaLIF",
    "EIF",
    "IF",
    "Izhikevich",
    "LI",
    "LIF",
    "Learnable",
    "Neuron",
    "PLIF",
    "QIF",
    "StatefulModule",
    "call",
    "detach_",
    "get_states",
    "keep_state",
    "reset_",
    "set_states_",
]
