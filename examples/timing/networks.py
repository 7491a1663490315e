"""The networks that are compared: a hidden layer of LIF neurons and a leaky readout, of one size each, which differ in how
the hidden layer hears the past."""

from data import CHANNELS, CLASSES
from torch import nn

import spikeforge.nn as snn

TAU = 2.0  # steps: a neuron by itself forgets a volley before the next one comes


def lif():
    return snn.LIF(tau=TAU, decay_input=False, v_reset=None, surrogate="atan")


def layers(first, *hidden):
    """Scores [T, B, CLASSES] of spikes [T, B, CHANNELS]."""
    return snn.Sequential(first, *hidden, nn.Linear(first.out_features, CLASSES), snn.LI(tau=20.0))


def plain(width):
    """No past but what neurons keep."""
    return layers(nn.Linear(CHANNELS, width), lif())


def delays(width):
    """A learned delay for each synapse."""
    return layers(snn.DelayedLinear(CHANNELS, width, max_delay=25), lif())


def recurrent(width):
    """Spikes that come back a step later."""
    return layers(nn.Linear(CHANNELS, width), snn.Recurrent(lif(), nn.Linear(width, width)))
