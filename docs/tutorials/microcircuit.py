"""
Events and microcircuits
========================

In a network similar to the cortex, each neuron connects to few others, and few neurons fire at a time. The cost of a
step should then be proportional to the number of spikes, not of connections. This tutorial simulates the network of
Vogels and Abbott (J. Neurosci. 25, 10786, 2005), a benchmark of simulators (Brette et al., J. Comput. Neurosci. 23,
349, 2007). It has 4,000 neurons with synaptic conductances, four excitatory ones for each inhibitory one, each with 80
random targets.
"""

# %%
# The neuron
# ----------
# Two conductances, relative to the leak, drive the voltage v, in mV:
#
# .. math::
#
#    \tau_m \dot v = (E_l - v) + g_e\,(E_e - v) + g_i\,(E_i - v) + I, \qquad \tau_e \dot g_e = -g_e, \qquad \tau_i \dot g_i = -g_i
#
# A spike at -50 mV resets v to -60 mV, where it is held for 5 ms. The following function computes one step of 0.1 ms.
# The neuron has four states and two inputs, the arriving excitatory and inhibitory spikes:

import math
import time

import torch
from matplotlib import pyplot

import spikeforge

DT = 0.1  # ms
EXCITATORY, INHIBITORY, TARGETS = 3200, 800, 80
NEURONS = EXCITATORY + INHIBITORY


@spikeforge.neuron(states={"v": -60.0, "g_e": 0.0, "g_i": 0.0, "wait": 0.0})
def coba(x_e, x_i, v, g_e, g_i, wait, *, drive=20.0):
    h = v + DT / 20 * (-60 - v - g_e * v + g_i * (-80 - v) + drive)
    resting = wait > 0
    s = spikeforge.trace.where(resting, 0.0, spikeforge.spike(h + 50, "atan"))
    return s, {
        "v": spikeforge.trace.where(resting, v, spikeforge.trace.select(s, -60.0, h)),
        "g_e": g_e * math.exp(-DT / 5) + 0.6 * x_e,  # a spike brings 6 nS, of a leak of 10 nS
        "g_i": g_i * math.exp(-DT / 10) + 6.7 * x_i,
        "wait": spikeforge.trace.select(s, 5 / DT, torch.clamp(wait - 1, min=0)),
    }


# %%
# The connections
# ---------------
# All neurons have the same number of targets, so that the matrix is a table with the targets of each neuron in a row
# (the ELL form; matrices with rows of different lengths are CSR). All synapses of a kind have the same weight, so that
# one weight is stored. One matrix contains both kinds of synapses: excitatory spikes arrive in its first 4,000 columns,
# inhibitory ones in the next 4,000.

torch.manual_seed(0)
torch.set_num_threads(1)  # a step is too short to be shared
targets = torch.randint(NEURONS, (NEURONS, TARGETS), dtype=torch.int32).sort(1).values
targets[EXCITATORY:] += NEURONS
one = torch.ones(1)


def arriving(spikes):
    """How many excitatory and inhibitory spikes reach each neuron: [2, NEURONS]. It reads the rows of those that fired alone."""
    counts = torch.ops.spikeforge.event_ellmv(one, targets, spikes, cols=2 * NEURONS, transpose=True)
    return counts.view(2, NEURONS)


# %%
# The product equals that of a dense matrix:

spikes = (torch.rand(NEURONS) < 0.02).float()
matrix = torch.zeros(NEURONS, 2 * NEURONS)
matrix.scatter_add_(1, targets.long(), torch.ones(NEURONS, TARGETS))
assert torch.equal(arriving(spikes), (spikes @ matrix).view(2, NEURONS))
del matrix

# %%
# Half a second of simulated time
# -------------------------------
# Spikes of a step arrive in the next one, so that the steps are sequential: each consists of a product and a step of
# the neurons. Initial voltages are random.

STEPS = 5000
states = {"v": -60 + 10 * torch.rand(NEURONS)}
spikes, fired = torch.zeros(NEURONS), []
start = time.perf_counter()
with torch.no_grad():
    for _ in range(STEPS):
        x_e, x_i = arriving(spikes).unsqueeze(1)
        outputs, states = coba(x_e, x_i, **states)
        spikes = outputs[0]
        fired.append(spikes.nonzero()[:, 0])
seconds = time.perf_counter() - start

steps = torch.cat([torch.full_like(who, step) for step, who in enumerate(fired)])
neurons = torch.cat(fired)
rate = len(neurons) / NEURONS / (STEPS * DT / 1000)
print(f"{NEURONS} neurons, {NEURONS * TARGETS:,} synapses, {STEPS * DT:.0f} ms: {rate:.1f} Hz, {1e6 * seconds / STEPS:.0f} us a step")
assert 5 < rate < 40

# %%
# The network sustains its activity, and its neurons fire irregularly. The coefficient of variation of a neuron's
# interspike intervals is 0 for a clock and 1 for a Poisson process; it is above 1 here, since spikes come in bursts.

# sphinx_gallery_thumbnail_number = 1
figure, (raster, rates) = pyplot.subplots(2, figsize=(8, 6), sharex=True, height_ratios=[3, 1], layout="constrained")
shown = neurons % 8 == 0
raster.plot(steps[shown] * DT, neurons[shown], ",", color="black")
raster.axhline(EXCITATORY, color="C3", linewidth=0.8)
raster.set(ylabel="neuron (inhibitory ones above the line)")
counts = torch.bincount(steps // 50, minlength=STEPS // 50)
rates.plot(torch.arange(len(counts)) * 5 + 2.5, counts / NEURONS / 0.005, color="black")
rates.set(xlabel="time (ms)", ylabel="rate (Hz)")

variations = []
for neuron in range(0, NEURONS, 20):
    intervals = steps[(neurons == neuron) & (steps > 1000)].diff().float()
    if len(intervals) > 3:
        variations.append((intervals.std() / intervals.mean()).item())
variation = sum(variations) / len(variations)
print(f"coefficient of variation {variation:.2f}, of {len(variations)} neurons")
assert 0.7 < variation < 2
pyplot.show()

# %%
# What a step costs
# -----------------
# The cost of the product depends on the number of spikes: more spikes take longer, and a step without spikes is almost
# free.


def microseconds(share):
    events = (torch.rand(NEURONS) < share).float()
    times = []
    for _ in range(50):
        start = time.perf_counter()
        arriving(events)
        times.append(1e6 * (time.perf_counter() - start))
    return min(times)


print("share that fires, us a product:", {share: round(microseconds(share), 1) for share in (0.0, 0.001, 0.01, 0.1, 1.0)})
assert microseconds(0.001) < microseconds(1.0)

# %%
# ``examples/coba`` is the same network as a program with up to 400,000 neurons, which runs on a GPU as a CUDA graph:
# ``python examples/coba/run.py --scale 100 --device cuda``. :doc:`../events` describes the products, matrices that are
# never stored, and plasticity.
