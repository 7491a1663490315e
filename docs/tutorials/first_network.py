"""
A first network
===============

This tutorial goes from one neuron to a trained network. It trains a spiking network on patterns in time, learns its
time constants, and plots its activity.

It needs torch, spikeforge and matplotlib.
"""

# %%
# One neuron
# ----------
# A leaky integrate-and-fire neuron has a voltage v that follows its input and leaks. In every step it
#
# 1. *charges*: h = v + (x - v) / tau,
# 2. *fires* a spike if h reaches the threshold, 1,
# 3. *resets* v to 0 if it fired; otherwise v = h.
#
# ``LIF`` runs all steps in one call. Time is the first dimension: ``[T, batch, ...]``. In this example one neuron
# receives a constant current, which is switched on in step 20 and off in step 80.

import torch
from matplotlib import pyplot
from torch import nn

import spikeforge
import spikeforge.nn as snn
from spikeforge import plot

torch.manual_seed(0)
current = torch.zeros(100, 1, 1)  # 100 steps, a batch of 1, 1 neuron
current[20:80] = 1.2

lif = snn.LIF(tau=10.0)
spikes, states = lif(current, store_states=True)  # the voltage after each step, too

# sphinx_gallery_thumbnail_number = 2
figure, axes = pyplot.subplots(figsize=(8, 2.5), layout="constrained")
plot.traces(states["v"], axes, spikes=spikes, threshold=1.0, title="v under a constant current")

print(f"{int(spikes.sum())} spikes, at steps {spikes.flatten().nonzero().flatten().tolist()}")
assert spikes[:20].sum() == 0 and spikes[20:80].sum() >= 2

# %%
# Patterns in time
# ----------------
# In this task only the timing of spikes identifies the class. In each of four classes 40 inputs fire once each, in an
# order that is specific to the class. A sample is that order with jittered times, without a random fifth of the spikes,
# and with random additional spikes. The firing rates of the inputs contain no information.

STEPS, INPUTS, CLASSES = 50, 40, 4
times = torch.randint(5, STEPS - 5, (CLASSES, INPUTS))


def samples(count):
    """Spikes [STEPS, count, INPUTS] and the class of each sample [count]."""
    labels = torch.randint(CLASSES, (count,))
    jittered = (times[labels] + torch.randn(count, INPUTS).mul(1.5).round().long()).clamp(0, STEPS - 1)
    spikes = torch.zeros(STEPS, count, INPUTS).scatter_(0, jittered.unsqueeze(0), 1.0)
    spikes *= torch.rand_like(spikes) < 0.8
    noise = (torch.rand_like(spikes) < 0.01).float()
    return torch.maximum(spikes, noise), labels


x, labels = samples(256)
print(f"x is {list(x.shape)}, an input fires {x.sum(0).mean():.2f} times in a sample")

# %%
# A network
# ---------
# Layers of torch are placed between neurons. ``TimeDistributed`` calls a layer for all steps at once. ``Learnable``
# makes a time constant a parameter: here one for each of 64 neurons, clamped to at least 1. (A clamped value has no
# gradient: :doc:`../tour` shows the line that restores it.) With ``decay_input=False`` an input is added to v without
# division by tau. The read-out ``LI`` integrates and never fires; the mean of its voltage is the network's output.

net = nn.Sequential(
    snn.TimeDistributed(nn.Linear(INPUTS, 64)),
    snn.LIF(tau=snn.Learnable(8.0, min=1.0, per_channel=64), decay_input=False, surrogate="atan"),
    snn.TimeDistributed(nn.Linear(64, CLASSES)),
    snn.LI(tau=20.0),
)
nn.init.normal_(net[0].module.weight, std=0.5)  # an input is a single spike: few of them have to make a neuron fire
print(net)

# %%
# The network is trained like any network of torch. The step function of a spike has no useful derivative; the backward
# pass uses the derivative of a *surrogate* instead, here an arc tangent.

optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
losses = []
for step in range(80):
    x, labels = samples(64)
    loss = nn.functional.cross_entropy(20 * net(x).mean(0), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 20 == 19:
        print(f"step {step + 1}: loss {loss.item():.3f}")

# %%
# What it learned
# ---------------
# ``Monitor`` records the named values while the network runs: here the output of module 1, and the voltage of the
# read-out. ``count`` counts the operations that the network would need on event-driven hardware.

x, labels = samples(256)
with torch.no_grad(), spikeforge.Monitor(net, ["1.out", "3.v"]) as monitor, spikeforge.count(net) as counted:
    answer = net(x).mean(0).argmax(-1)
accuracy = (answer == labels).float().mean().item()
print(f"{accuracy:.1%} of samples that it never saw")
print(counted.table())
assert accuracy > 0.9

sample = 0
figure, axes = pyplot.subplots(3, figsize=(8, 7), sharex=True, layout="constrained")
plot.raster(x, axes[0], sample=sample, title=f"inputs of a sample of class {labels[sample]}")
plot.raster(monitor["1.out"], axes[1], sample=sample, title="hidden neurons")
axes[2].plot(monitor["3.v"][:, sample], label=[f"class {c}" for c in range(CLASSES)])
axes[2].set(title="voltages of the read-out", xlabel="step")
axes[2].legend(loc="upper left")

# %%
# Time constants are trained together with the weights:

taus = net[1].tau.detach()
print(f"tau from {taus.min():.1f} to {taus.max():.1f} steps; all began at 8")
assert losses[-1] < losses[0] and taus.std() > 0.1
pyplot.show()

# %%
# Continue with :doc:`own_neuron` for custom neurons, :doc:`recurrent_events` for recurrent connections, and
# :doc:`deploy_to_cpp` for deployment without Python. The guide to modules is :doc:`../modules`.
