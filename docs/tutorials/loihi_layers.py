"""
Networks of networks, and Loihi
===============================

This tutorial builds a layer of a Dense connection and LIF neurons as one module with named ports and variables, and
uses it twice. Lava builds the same hierarchy from processes; here it is a network within a network. The last part
computes the same layer in Loihi's fixed point.
"""

# %%
# The neuron
# ----------
# Lava's LIF has a current u and a voltage v, which decay independently, and a bias. It fires strictly above its
# threshold. The library contains its text:

import torch
from matplotlib import pyplot
from torch import nn

import spikeforge
import spikeforge.nn as snn

LIF = torch.ops.spikeforge.lava_neuron("lif")
print(LIF)

# %%
# A layer as a module
# -------------------
# A ``Composite`` has named parts, and connections between ports. The names of its own inputs and outputs are those that
# users of the layer see. Lava's Dense outputs in each step its result for the preceding step: a connection with a delay
# of 1. ``alias`` gives variables of the parts a name in the layer.

NEURONS, STEPS = 3, 9


def dense_layer(weights, bias):
    dense = nn.Linear(NEURONS, NEURONS, bias=False)
    dense.weight.data = weights.clone()
    layer = snn.Composite()
    layer.add("dense", dense)
    layer.add("lif", snn.Neuron(LIF, du=0.0, dv=0.0, bias=bias, vth=10.0))
    layer.connect("s_in", "dense.in")
    layer.connect("dense.out", "lif.in", delay=1)
    layer.connect("lif.out", "s_out")
    layer.alias("u", "lif.u")
    layer.alias("v", "lif.v")
    layer.alias("weights", "dense.weight")
    return layer


# %%
# Two layers
# ----------
# The network refers only to the ports ``s_in`` and ``s_out`` of the layers. The weights connect the middle neuron of
# the first layer to that of the second; a bias of 4 makes all neurons fire without input, every third step.

weights = torch.zeros(NEURONS, NEURONS)
weights[1, 1] = 1.0
net = snn.Composite()
net.add("layer0", dense_layer(weights, torch.full((NEURONS,), 4.0)))
net.add("layer1", dense_layer(weights, torch.full((NEURONS,), 4.0)))
net.connect("in", "layer0.s_in")
net.connect("layer0.s_out", "layer1.s_in")
net.connect("layer1.s_out", "out")
print(net)

# %%
# Step by step
# ------------
# With ``keep_state`` each call continues from the states of the preceding one, and the network's variables can be read
# and written by name in between.

nothing = torch.zeros(STEPS, 1, NEURONS)  # no spikes come from outside
row = lambda name: " ".join(f"{value:3.0f}" for value in net.get(name).flatten())
table = []
print("step | layer0.v    | layer1.u    | layer1.v")
with torch.no_grad(), snn.keep_state(net):
    for t in range(STEPS):
        net.step(nothing[t])
        print(f"{t:4} | {row('layer0.v')} | {row('layer1.u')} | {row('layer1.v')}")
        table.append(net.get("layer1.v").clone())

# %%
# Only the middle neuron of layer 1 receives input, in the step after layer 0 fired. A plain loop in Python gives the
# same values:

u1, v0, v1, arriving, expected = torch.zeros(3), torch.zeros(3), torch.zeros(3), torch.zeros(3), []
for t in range(STEPS):
    v0 = v0 + 4
    fired = (v0 > 10).float()
    v0 = v0 * (1 - fired)
    u1 = u1 + arriving
    v1 = v1 + u1 + 4
    v1 = v1 * (v1 <= 10)
    arriving = weights @ fired
    expected.append(v1)
assert torch.equal(torch.cat(table), torch.stack(expected))

# %%
# As one run
# ----------
# The fused operators run the same network over all steps at once, with the same bits as the single steps. ``Monitor``
# records variables by the same names.

with torch.no_grad(), spikeforge.Monitor(net, ["layer0.v", "layer1.v"]) as monitor:
    net(nothing)
assert torch.equal(monitor["layer1.v"], torch.stack(table))

# sphinx_gallery_thumbnail_number = 1
figure, axes = pyplot.subplots(figsize=(8, 3), layout="constrained")
for neuron in (0, 1):
    axes.step(range(STEPS), monitor["layer1.v"][:, 0, neuron], where="mid", label=f"layer1.v[{neuron}]")
axes.set(xlabel="step", ylabel="v after the step", title="the middle neuron (1) also hears layer 0")
axes.legend()
pyplot.show()

# %%
# In fixed point
# --------------
# Loihi computes with integers: decays are 12-bit numbers, voltages have 24 bits, and a threshold ``vth`` represents 64
# vth. The modules implement the chip's arithmetic bit for bit. ``du=-1`` is no decay of the current; ``bias_mant``
# times two to ``bias_exp`` is the bias.


def fixed_layer(weights):
    layer = snn.Composite()
    layer.add("dense", snn.LoihiDense(weights, delay=0))
    layer.add("lif", snn.LoihiLIF(du=-1, dv=0, bias_mant=4, bias_exp=6, vth=10))
    layer.connect("s_in", "dense.in")
    layer.connect("dense.out", "lif.in", delay=1)
    layer.connect("lif.out", "s_out")
    return layer


whole = torch.ops.spikeforge.loihi_prepare_weights(weights.int() * 2)  # the chip keeps even weights where signs are mixed
chip = snn.Composite()
chip.add("layer0", fixed_layer(whole))
chip.add("layer1", fixed_layer(whole))
chip.connect("in", "layer0.s_in")
chip.connect("layer0.s_out", "layer1.s_in")
chip.connect("layer1.s_out", "out")
with spikeforge.Monitor(chip, ["layer0.lif.out", "layer1.lif.v"]) as monitor:
    chip(nothing.int())
print("layer0 fires:", monitor["layer0.lif.out"][:, 0, 1].tolist())
print("layer1.v[1] :", monitor["layer1.lif.v"][:, 0, 1].tolist())

# %%
# A plain loop with integers gives the same values: u increases by 64 times the weight of a spike, and v by u and the
# bias, 4 * 2^6 = 256.

u1, v0, v1, arriving, expected = 0, 0, 0, 0, []
for t in range(STEPS):
    v0 += 256
    fired = v0 > 640
    v0 = 0 if fired else v0
    u1 += arriving
    v1 += u1 + 256
    v1 = 0 if v1 > 640 else v1
    arriving = 64 * int(whole[1, 1]) * fired
    expected.append(v1)
assert monitor["layer1.lif.v"][:, 0, 1].tolist() == expected

# %%
# :doc:`../loihi` describes the ranges, sparse connections, delays for each synapse, and ``loihi_quantize``, which
# converts a trained floating-point layer to fixed point and returns the errors. ``examples/dense_layer.cpp`` is this
# tutorial in C++.
