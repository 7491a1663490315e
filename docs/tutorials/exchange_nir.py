"""
Exchanging networks through NIR
===============================

`NIR <https://neuroir.org>`_ is a file format that simulators and chips use to exchange spiking networks. This tutorial
exports a network of SpikingJelly to a file, loads, runs, trains and saves it with spikeforge, and imports it into
SpikingJelly again. The spikes are the same after each conversion.

It needs ``nir``, SpikingJelly 2.0, and ``spikeforge.nir``, which is available if HDF5 was present when spikeforge was
installed (:doc:`../install`).
"""

# %%
# From SpikingJelly to a file
# ---------------------------
# SpikingJelly's exporter writes a network of two layers. A file contains differential equations, with time constants in
# seconds; the length of a step is an argument of the functions that write or read it.

import tempfile
from pathlib import Path

import nir
import torch
from spikingjelly.activation_based import functional, layer, neuron, nir_exchange

import spikeforge

DT = 1e-4
folder = Path(tempfile.mkdtemp())

torch.manual_seed(0)
theirs = torch.nn.Sequential(
    layer.Linear(20, 30), neuron.IFNode(), layer.Linear(30, 5), neuron.LIFNode(tau=3.0, v_threshold=0.7, decay_input=True)
).double()
with torch.no_grad():
    theirs[0].weight.mul_(6)
    theirs[2].weight.mul_(6)
functional.set_step_mode(theirs, "m")
x = torch.rand(60, 4, 20, dtype=torch.float64)  # 60 steps, a batch of 4
nir_exchange.export_to_nir(theirs, x, folder / "network.nir", dt=DT)

functional.reset_net(theirs)
with torch.no_grad():
    expected = theirs(x)

# %%
# The file, read
# --------------
# ``load`` creates a network of ordinary modules, named after the nodes. Options define the details that NIR leaves
# open: SpikingJelly's neurons fire at the threshold, those of other frameworks only above it.

net = spikeforge.nir.load(folder / "network.nir", dt=DT, comparison="ge", dtype=torch.float64, surrogate="atan")
print(net)
with torch.no_grad():
    spikes = net(x)
print(f"{int(spikes.sum())} spikes, the same as in SpikingJelly: {torch.equal(spikes, expected)}")
assert torch.equal(spikes, expected) and spikes.sum() > 20

# %%
# Training on
# -----------
# Weights are parameters; with ``learn_neurons=True`` the neurons' constants are parameters too. The network is trained
# to fire at a given rate.

optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
losses = []
for _ in range(30):
    loss = (net(x).mean((0, 1)) - 0.2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.4f} before, {losses[-1]:.4f} after")
assert losses[-1] < losses[0] / 2

# %%
# And back
# --------
# ``save`` writes the file, and ``to_graph`` returns a graph of the package ``nir``. The example input is one step of
# one sample.

spikeforge.nir.save(net, x[0, 0], folder / "trained.nir")
graph = spikeforge.nir.to_graph(net, x[0, 0])
print(graph)

read = nir.read(folder / "trained.nir")
assert set(read.nodes) == set(graph.nodes)

# %%
# SpikingJelly imports the trained network and computes the same spikes:

again = nir_exchange.import_from_nir(folder / "trained.nir", dt=DT, dtype=torch.float64)
state, rows = None, []
with torch.no_grad():
    for row in x:
        y, state = again(row, state)
        rows.append(y)
    trained = net(x)
print(f"the same spikes: {torch.equal(torch.stack(rows), trained)}")
assert torch.equal(torch.stack(rows), trained)

# %%
# What is decided, and what can be chosen
# ---------------------------------------
# NIR's equations do not define the discretization of a step, the initial states, or the order of computation in a
# cycle. :doc:`../nir` describes each decision, the options that reproduce other frameworks' spikes, and the command
# line:
#
# .. code-block:: sh
#
#    spikeforge-nir info network.nir
#    spikeforge-nir run network.nir --dt 1e-4 --comparison ge --input x.npy --output spikes.npy
#    spikeforge-nir convert network.nir network.pt --dt 1e-4 --comparison ge    # TorchScript, for C++
