"""The compared networks: a hidden layer of LIF neurons and a leaky readout of the same sizes, with different memories
of the past in the hidden layer."""

import functools

from data import CHANNELS, CLASSES
from torch import nn

import spikeforge.nn as snn

FAST = 2.0  # steps: the neuron forgets a volley before the next one arrives
SLOW = 15.0  # steps: the neuron has a faint memory of several volleys


def lif(tau=FAST):
    return snn.LIF(tau=tau, decay_input=False, v_reset=None, surrogate="atan")


def layers(first, *hidden):
    """Maps spikes [T, B, CHANNELS] to scores [T, B, CLASSES]."""
    return snn.Sequential(first, *hidden, nn.Linear(first.out_features, CLASSES), snn.LI(tau=20.0))


def plain(width, tau=FAST):
    """A network whose only memory is the states of neurons."""
    return layers(nn.Linear(CHANNELS, width), lif(tau))


def delays(width):
    """A network with a learned delay for each synapse."""
    return layers(snn.DelayedLinear(CHANNELS, width, max_delay=25), lif())


def recurrent(width, tau=FAST):
    """A network whose spikes feed back one step later."""
    return layers(nn.Linear(CHANNELS, width), snn.Recurrent(lif(tau), nn.Linear(width, width)))


def slow(network):
    return functools.partial(network, tau=SLOW)
