"""
A first network
===============

From one neuron to a network that learns. At the end you have trained a spiking network on patterns in time, let it find its own time
constants, and seen what happens inside.

It needs torch, spikeforge and matplotlib.
"""

# %%
# One neuron
# ----------
# A leaky integrate-and-fire neuron has a voltage v that follows its input and leaks. In every step it
#
# 1. *charges*: h = v + (x - v) / tau,
# 2. *fires* a spike where h reaches the threshold, 1,
# 3. *resets* v to 0 where it fired; else v = h.
#
# ``LIF`` runs all steps in one call. Time is the first dimension: ``[T, batch, ...]``. Here one neuron sees a constant current that is
# switched on in step 20 and off in step 80.

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
# The task is one that needs time. In each of four classes 40 inputs fire once each, in an order that belongs to the class. A sample is
# that order with its times jittered, a fifth of the spikes lost, and others thrown in. How often an input fires says nothing.

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
# Layers of torch come between neurons. ``TimeDistributed`` calls one for all steps at once. ``Learnable`` makes a time constant a
# parameter: here one for each of 64 neurons, which is taken as 1 where training leads it below. (There it has no gradient: :doc:`../tour`
# has the line that brings it back.) With ``decay_input=False`` an input is added to v as it is, rather than divided by tau. The read-out
# ``LI`` integrates and never fires; how high its voltage is on the average is the network's answer.

net = nn.Sequential(
    snn.TimeDistributed(nn.Linear(INPUTS, 64)),
    snn.LIF(tau=snn.Learnable(8.0, min=1.0, per_channel=64), decay_input=False, surrogate="atan"),
    snn.TimeDistributed(nn.Linear(64, CLASSES)),
    snn.LI(tau=20.0),
)
nn.init.normal_(net[0].module.weight, std=0.5)  # an input is a single spike: few of them have to make a neuron fire
print(net)

# %%
# Training is that of any network of torch. The step of a spike has no useful derivative; in the backward pass a *surrogate* stands in its
# place, here that of an arc tangent.

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
# ``Monitor`` records what you name while the network runs: the output of module 1, and the voltage of the read-out. ``count`` counts
# what hardware that computes on spikes would have to do.

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
# Time constants were learned with everything else:

taus = net[1].tau.detach()
print(f"tau from {taus.min():.1f} to {taus.max():.1f} steps; all began at 8")
assert losses[-1] < losses[0] and taus.std() > 0.1
pyplot.show()

# %%
# Where to go from here: :doc:`own_neuron` writes a neuron of one's own, :doc:`recurrent_events` lets neurons hear each other,
# :doc:`deploy_to_cpp` takes a network out of Python. The guide to modules is :doc:`../modules`.
