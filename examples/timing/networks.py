"""The networks that are compared: a hidden layer of LIF neurons and a leaky readout, of one size each, which differ in how
the hidden layer hears the past."""

import functools

from data import CHANNELS, CLASSES
from torch import nn

import spikeforge.nn as snn

FAST = 2.0  # steps: such a neuron forgets a volley before the next one comes
SLOW = 15.0  # and such a one has a faint memory of several


def lif(tau=FAST):
    return snn.LIF(tau=tau, decay_input=False, v_reset=None, surrogate="atan")


def layers(first, *hidden):
    """Scores [T, B, CLASSES] of spikes [T, B, CHANNELS]."""
    return snn.Sequential(first, *hidden, nn.Linear(first.out_features, CLASSES), snn.LI(tau=20.0))


def plain(width, tau=FAST):
    """No past but what neurons keep."""
    return layers(nn.Linear(CHANNELS, width), lif(tau))


def delays(width):
    """A learned delay for each synapse."""
    return layers(snn.DelayedLinear(CHANNELS, width, max_delay=25), lif())


def recurrent(width, tau=FAST):
    """Spikes that come back a step later."""
    return layers(nn.Linear(CHANNELS, width), snn.Recurrent(lif(tau), nn.Linear(width, width)))


def slow(network):
    return functools.partial(network, tau=SLOW)
