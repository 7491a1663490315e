"""
The brain of a fly
==================

The connectome of a fly lists all neurons of its brain, and how many synapses connect each pair. Shiu et al. (Nature
634, 210, 2024) make each neuron a leaky integrate-and-fire neuron, activate some of them, and find which others fire.
This tutorial builds their model on a twentieth of a connectome with random connections, activates and silences neurons,
and closes the loop through a body. ``examples/fly`` is the same as a program that reads the published connectomes.
"""

# %%
# The neuron
# ----------
# A spike that arrives over n synapses adds 0.275 mV n to g, which drives the voltage v:
#
# .. math::
#
#    t_{mbr} \dot v = v_0 - v + g, \qquad \tau \dot g = -g
#
# A spike above -45 mV resets v to -52 mV and g to 0, and for 2.2 ms the neuron ignores its input. The equations are
# linear, so that a step of 0.1 ms has an exact solution, with the constants A, B and C:

import cmath
import math

import torch
from matplotlib import pyplot

import spikeforge
from spikeforge import rules

DT = 0.1  # ms
T_MBR, TAU = 20.0, 5.0  # ms
A, B = math.exp(-DT / TAU), math.exp(-DT / T_MBR)
C = (A - B) * TAU / (TAU - T_MBR)

NEURON = f"""
neuron shiu(synapses, poisson; v = -52, g, wait; refractory) {{
  h = -52 + {B} * (v + 52) + {C} * g
  s = spike_strict(h + 45, none)
  is_refractory = wait > 0
  return s
  v' = where(is_refractory, -52, select(s, -52, h + poisson))
  g' = where(is_refractory, 0, select(s, 0, {A} * g + synapses))
  wait' = select(s, refractory, maximum(wait - 1, 0))
}}
"""

# %%
# The connectome
# --------------
# A connectome is three arrays: sources, targets, and numbers of synapses, which are negative if the source inhibits. The
# numbers of a neuron's connections, and of the synapses of a connection, differ by orders of magnitude; here both are
# log-normal, with the means of the published connectome.

torch.manual_seed(0)
torch.set_num_threads(1)  # a step is too short to be shared
NEURONS, CONNECTIONS = 6932, 754_599


def draw(deviation):
    shares = torch.exp(deviation * torch.randn(NEURONS, dtype=torch.float64)).cumsum(0)
    return torch.searchsorted(shares, shares[-1] * torch.rand(CONNECTIONS, dtype=torch.float64))


sources, targets = draw(1.0), draw(0.9)
inhibits = torch.rand(NEURONS) < 0.34
synapses = torch.exp(0.3 + 1.41 * torch.randn(CONNECTIONS)).floor().clamp(min=1)
synapses[inhibits[sources]] *= -1

# %%
# The network has one population. All spikes arrive after 1.8 ms, and a neuron is refractory for 21 steps after that of
# its spike. The state after ``build()`` is kept, because each trial begins with it.

network = spikeforge.Network()
brain = network.populate("brain", NEURONS, NEURON, refractory=torch.full((NEURONS,), 21.0))
network.project(brain, brain, rules.arrays(sources, targets), weight=0.275 * synapses, delay=18, into="synapses")
network.build()
resting = network.state_dict()

# %%
# Activation
# ----------
# An activated neuron receives random input spikes, 150 in a second, each of which lifts v far above the threshold, and
# has no refractory period. The 21 neurons with most output are activated.

excitation = torch.zeros(NEURONS).index_add_(0, sources, synapses.clamp(min=0))
activated = excitation.argsort(descending=True)[:21]
refractory = brain.params["refractory"]
refractory[activated] = 0
brain.params["refractory"] = refractory


def trial(milliseconds=500):
    """Returns the spikes of a trial, and the rate of each neuron."""
    network.load_state_dict(resting)
    steps, which = (torch.rand(round(milliseconds / DT), len(activated)) < 150 * DT / 1000).nonzero(as_tuple=True)
    events = steps, activated[which], 250 * 0.275
    recording = spikeforge.simulate(network, round(milliseconds / DT), inputs={(brain, "poisson"): events})
    return recording, torch.bincount(recording.neurons, minlength=NEURONS) * 1000 / milliseconds


recording, rates = trial()
order = rates.argsort(descending=True, stable=True)
print(f"{(rates > 0).sum()} neurons fire")
print("the fastest:", {int(n): round(float(rates[n])) for n in order[:5]}, "spikes/s")
assert 500 < (rates > 0).sum() < 4000

# sphinx_gallery_thumbnail_number = 1
place = torch.empty_like(order).index_copy_(0, order, torch.arange(NEURONS))
figure, (raster, bars) = pyplot.subplots(1, 2, figsize=(8, 5), width_ratios=[3, 1], sharey=True, layout="constrained")
raster.plot(recording.steps * DT, place[recording.neurons], ",", color="black")
raster.set(xlabel="time (ms)", ylabel="neurons, by rate")
bars.plot(rates[order], range(NEURONS), color="black")
bars.set(xlabel="rate (1/s)", ylim=(int((rates > 0).sum()), 0))
pyplot.show()

# %%
# Silencing
# ---------
# The spikes of a silenced neuron are neither sent nor recorded. With half of the activated neurons silenced, far fewer
# others fire:

network.silence(brain, activated[::2])
print(f"{(trial()[1] > 0).sum()} neurons fire")
assert (trial()[1] > 0).sum() < 0.8 * (rates > 0).sum()
network.silence(brain, activated[::2], silent=False)

# %%
# A closed loop
# -------------
# Half of the activated neurons are now the left eye, the others the right one: they fire more if a light is on their
# side. The neurons that receive most synapses from one eye, compared with the other, turn the body to its side. Every 15
# ms, ``step`` runs 150 steps with the rates of the eyes, and its spikes move the body.


def received(eye):
    here = torch.isin(sources, eye)
    return torch.zeros(NEURONS).index_add_(0, targets[here], synapses[here])


left_eye, right_eye = activated[::2], activated[1::2]
difference = received(left_eye) - received(right_eye)
turn_left, turn_right = difference.argsort(descending=True)[:20], difference.argsort()[:20]

network.load_state_dict(resting)
sight = network.drive(brain, 0.0, weight=250 * 0.275, into="poisson")
light, position, heading, path = 30 + 30j, 0j, 0.0, [0j]
for tick in range(150):
    angle = cmath.phase((light - position) * cmath.exp(-1j * heading))  # above 0 if the light is on the left
    rate = torch.zeros(NEURONS)
    rate[left_eye], rate[right_eye] = 75 * (1 + math.sin(angle)), 75 * (1 - math.sin(angle))
    sight.set_rate(rate * DT / 1000)
    spikes = network.step(150)
    heading += 0.02 * float(spikes[:, turn_left].sum() - spikes[:, turn_right].sum())
    position += 0.3 * cmath.exp(1j * heading)  # mm
    path.append(position)

nearest = min(abs(light - p) for p in path)
print(f"the fly comes as close as {nearest:.1f} mm to the light, from {abs(light):.1f} mm")
assert nearest < 15
figure, axes = pyplot.subplots(figsize=(4, 4), layout="constrained")
axes.plot([p.real for p in path], [p.imag for p in path], color="black")
axes.plot(light.real, light.imag, "*", markersize=15, color="C1")
axes.set(xlabel="x (mm)", ylabel="y (mm)", aspect="equal")
pyplot.show()

# %%
# ``examples/fly`` reads the connectomes of FlyWire and MaleCNS, compares its spikes with Brian2's, and runs on a GPU:
# ``python examples/fly/run.py --flywire FOLDER --device cuda``. :doc:`../networks` describes networks and their input.
