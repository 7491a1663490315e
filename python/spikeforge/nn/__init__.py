"""Spiking neurons as modules of torch, and networks of them. See ``docs/modules.md``."""

import warnings
from typing import TYPE_CHECKING, Any

from spikeforge.nn.attention import (
    QKAttention,
    SpikeDrivenSelfAttention,
    SpikingSelfAttention,
    qk_attention,
    spike_driven_self_attention,
    spiking_self_attention,
)
from spikeforge.nn.composite import Composite, Recurrent
from spikeforge.nn.constant import Constant, Learnable
from spikeforge.nn.containers import Sequential, TimeDistributed
from spikeforge.nn.delay import Delay
from spikeforge.nn.delayed_conv import DelayedConv1d, DelayedConv2d
from spikeforge.nn.delayed_linear import DelayedLinear
from spikeforge.nn.dropout import Dropout
from spikeforge.nn.encoders import Latency, Poisson, Repeat
from spikeforge.nn.eventprop import EventProp
from spikeforge.nn.fusing import fuse
from spikeforge.nn.lava import LavaConv, LavaDelayDense, LavaDense, LavaLIF, deploy, set_run_config_
from spikeforge.nn.layers import BatchNormNeuron
from spikeforge.nn.loihi import LoihiConv, LoihiDelayDense, LoihiDense, LoihiLIF, LoihiSparse
from spikeforge.nn.neurons import EIF, IF, LIF, PLIF, QIF, AdaptiveLIF, Izhikevich
from spikeforge.nn.own import LI, CubaLIF, Neuron
from spikeforge.nn.pooling import AvgPool2d, MaxPool2d
from spikeforge.nn.published import (
    CLIF,
    ILIF,
    KLIF,
    LIAF,
    PSN,
    TCLIF,
    GatedLIF,
    MaskedPSN,
    MultiLevelLIF,
    NoisyLIF,
    ResonateAndFire,
    SlidingPSN,
    TernaryIF,
    TernaryLIF,
    counts_to_spikes,
    sum_virtual_steps,
)  # fmt: skip
from spikeforge.nn.sparse_recurrent import SparseRecurrent
from spikeforge.nn.stateful import StatefulModule, call, clamp_, detach_, get_states, keep_state, reset_, set_states_

__all__ = [
    "AdaptiveLIF", "AvgPool2d", "BatchNormNeuron", "CLIF", "Composite", "Constant", "CubaLIF", "Delay",
    "DelayedConv1d", "DelayedConv2d", "DelayedLinear", "Dropout", "EIF", "EventProp", "GatedLIF", "IF", "ILIF", "Izhikevich",
    "KLIF", "LI", "LIAF", "LIF", "Latency", "LavaConv", "LavaDelayDense", "LavaDense", "LavaLIF", "Learnable",
    "LoihiConv", "LoihiDelayDense", "LoihiDense", "LoihiLIF", "LoihiSparse", "MaskedPSN", "MaxPool2d",
    "MultiLevelLIF", "Neuron", "NoisyLIF", "PLIF", "PSN", "Poisson", "QIF", "QKAttention", "Recurrent", "Repeat",
    "ResonateAndFire", "Sequential", "SlidingPSN", "SparseRecurrent", "SpikeDrivenSelfAttention",
    "SpikingSelfAttention", "StatefulModule", "TCLIF", "TernaryIF", "TernaryLIF", "TimeDistributed", "call", "clamp_",
    "counts_to_spikes", "deploy", "detach_", "fuse", "get_states", "keep_state", "qk_attention", "reset_",
    "set_run_config_", "set_states_", "spike_driven_self_attention", "spiking_self_attention", "sum_virtual_steps",
]  # fmt: skip


if not TYPE_CHECKING:  # with __getattr__, a type checker accepts any name

    def __getattr__(name: str) -> Any:
        if name == "Network":
            message = (
                "spikeforge.nn.Network is deprecated and will be removed in version 0.3: use spikeforge.nn.Composite"
            )
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return Composite
        raise AttributeError(f"module spikeforge.nn has no attribute {name}")
