"""The networks that are compared: a hidden layer of LIF neurons and a leaky readout, of one size each, which differ in how
the hidden layer hears the past."""

import torch
from data import CHANNELS, CLASSES
from torch import nn

import spikeforge
import spikeforge.nn as snn

TAU = 2.0  # steps, of the hidden neurons
SURROGATE = snn.surrogate.atan(alpha=2.0) if hasattr(snn, "surrogate") else None


def lif():
    return snn.LIF(tau=TAU, v_reset=None, decay_input=False, surrogate="atan")


def readout(hidden):
    return [nn.Linear(hidden, CLASSES), snn.LI(tau=10.0)]


def plain(hidden, max_delay):
    return snn.Sequential(nn.Linear(CHANNELS, hidden), lif(), *readout(hidden))


def delays(hidden, max_delay):
    return snn.Sequential(snn.DelayedLinear(CHANNELS, hidden, max_delay), lif(), *readout(hidden))


def recurrent(hidden, max_delay):
    return snn.Sequential(nn.Linear(CHANNELS, hidden), snn.Recurrent(lif(), nn.Linear(hidden, hidden)), *readout(hidden))
