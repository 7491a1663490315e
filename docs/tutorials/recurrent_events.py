"""
A recurrent network on events
=============================

Recurrent connections give a network memory. The network in this tutorial receives streams of events, such as those of
an event camera or a silicon cochlea. At the beginning one of two groups of channels is active for a short time,
followed by noise; at a signal the network must report which group was active. Without recurrent connections it cannot
do so; with them it learns the task within seconds.
"""

# %%
# Events
# ------
# An event consists of a step, a sample, and a channel. One line converts a list of events to a tensor
# ``[T, batch, channels]``.

import time

import torch
from matplotlib import pyplot
from torch import nn

import spikeforge
import spikeforge.nn as snn
from spikeforge import plot

STEPS, CHANNELS, GO, HIDDEN = 60, 12, 11, 64
CUE, SIGNAL = range(5, 15), range(40, 60)


def bursts(steps, samples, channels, probability):
    """Events of these samples, each at these steps and channels with this probability: [3, events]."""
    steps, channels = torch.tensor(steps), torch.tensor(channels)
    step, sample, channel = (torch.rand(len(steps), len(samples), len(channels)) < probability).nonzero().T
    return torch.stack([steps[step], samples[sample], channels[channel]])


def streams(count):
    """Events [3, n] of so many samples, and which group of channels was active in each, 0 or 1."""
    labels = torch.randint(2, (count,))
    everywhere = torch.arange(count)
    events = [bursts(range(STEPS), everywhere, range(CHANNELS), 0.02), bursts(SIGNAL, everywhere, [GO], 0.6)]
    for group in range(2):
        channels = range(4 * group, 4 * group + 4)
        events.append(bursts(CUE, (labels == group).nonzero()[:, 0], channels, 0.6))
    return torch.cat(events, 1), labels


def dense(events, count):
    """Spikes [STEPS, count, CHANNELS]; two events in one place are one."""
    x = torch.zeros(STEPS, count, CHANNELS)
    x[events[0], events[1], events[2]] = 1.0
    return x


torch.manual_seed(0)
events, labels = streams(8)
print(f"{events.shape[1]} events of {len(labels)} samples; the first ones (step, sample, channel): {events[:, :4].T.tolist()}")

# %%
# The network
# -----------
# ``Recurrent(neuron, linear)`` adds the product of the preceding step's spikes and a matrix to the neuron's input. For
# a neuron and an ``nn.Linear`` it is a single operator over all steps, forward and backward, which ``repr`` shows.


def network(recurrent):
    torch.manual_seed(1)
    neurons = snn.LIF(tau=snn.Learnable(5.0, min=1.0, per_channel=HIDDEN), decay_input=False, surrogate="atan")
    if recurrent:
        back = nn.Linear(HIDDEN, HIDDEN)
        nn.init.normal_(back.weight, std=HIDDEN**-0.5)
        neurons = snn.Recurrent(neurons, back)
    net = nn.Sequential(
        snn.TimeDistributed(nn.Linear(CHANNELS, HIDDEN)), neurons, snn.TimeDistributed(nn.Linear(HIDDEN, 2)), snn.LI(tau=5.0)
    )
    nn.init.normal_(net[0].module.weight, std=0.7)
    return net


print(network(recurrent=True))

# %%
# Training
# --------
# The answer is the read-out's mean voltage while the signal is on. A network without recurrent connections forgets: its
# neurons leak with a time constant of five steps, and the answer is read 25 steps after the cue.


def answers(net, x):
    return 5 * net(x)[SIGNAL.start :].mean(0)


def accuracy(net, count=512):
    events, labels = streams(count)
    with torch.no_grad():
        return (answers(net, dense(events, count)).argmax(-1) == labels).float().mean().item()


def train(net, batches=140, batch=64):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    start = time.perf_counter()
    for _ in range(batches):
        events, labels = streams(batch)
        loss = nn.functional.cross_entropy(answers(net, dense(events, batch)), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return time.perf_counter() - start


torch.manual_seed(2)
net, without = network(recurrent=True), network(recurrent=False)
seconds = train(net)
train(without)
found, by_chance = accuracy(net), accuracy(without)
print(f"with connections {found:.1%} after {seconds:.1f} s, without {by_chance:.1%}")
assert found > 0.9 and by_chance < 0.65

# %%
# What it does
# ------------
# The activity that the cue starts continues until the answer is read.

events, labels = streams(64)
with torch.no_grad(), spikeforge.Monitor(net, ["1.out", "3.v"]) as monitor:
    net(dense(events, 64))
samples = [int((labels == group).nonzero()[0]) for group in range(2)]
# sphinx_gallery_thumbnail_number = 1
figure, axes = pyplot.subplots(3, 2, figsize=(9, 7), sharex=True, sharey="row", layout="constrained")
for column, sample in zip(axes.T, samples):
    own = events[:, events[1] == sample]
    column[0].plot(own[0], own[2], "|", color="black")
    column[0].set(title=f"group {labels[sample]}", ylabel="channel")
    plot.raster(monitor["1.out"], column[1], sample=sample)
    column[2].plot(monitor["3.v"][:, sample], label=["group 0", "group 1"])
    column[2].axvspan(SIGNAL.start, STEPS, color="0.9")
    column[2].set(xlabel="step", ylabel="read-out")
axes[2, 0].legend()
pyplot.show()

# %%
# The same as a loop
# ------------------
# The operator gives the same result as a Python loop over steps (``net.step`` of a network that keeps its state),
# within the rounding of its sums:

x = dense(events, 64)
loop = net[1]
currents = net[0](x).detach()
with torch.no_grad(), snn.keep_state(loop):
    steps = torch.stack([loop.step(current) for current in currents])
with torch.no_grad():
    whole = loop(currents)
print(f"{(steps == whole).float().mean():.2%} of all spikes are the same")
assert (steps == whole).float().mean() > 0.99

# %%
# The guide is :doc:`../recurrent`: other neurons, delays, and the layers that have a kernel on a GPU.
# :doc:`microcircuit` uses sparse products for networks with few connections for each neuron.
