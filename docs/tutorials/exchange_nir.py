"""
Exchanging networks through NIR
===============================

`NIR <https://neuroir.org>`_ is a file format for spiking networks, between simulators and chips. Here a network of SpikingJelly goes to a
file, is run, trained and saved again by spikeforge, and ends where it came from, with the same spikes at each border.

It needs ``nir``, SpikingJelly 2.0, and ``spikeforge.nir``, which is there if HDF5 was when spikeforge was installed (:doc:`../install`).
"""

# %%
# From SpikingJelly to a file
# ---------------------------
# A network of two layers, exported by SpikingJelly's own exporter. A file has differential equations, with time constants in seconds; how
# long a step is, is told to whoever writes or reads it.

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
# ``load`` makes a network of ordinary modules, which have the nodes' names. What NIR leaves open is an option: SpikingJelly's neurons fire
# at the threshold itself, others only above it.

net = spikeforge.nir.load(folder / "network.nir", dt=DT, comparison="ge", dtype=torch.float64, surrogate="atan")
print(net)
with torch.no_grad():
    spikes = net(x)
print(f"{int(spikes.sum())} spikes, the same as in SpikingJelly: {torch.equal(spikes, expected)}")
assert torch.equal(spikes, expected) and spikes.sum() > 20

# %%
# Training on
# -----------
# Weights are parameters; with ``learn_neurons=True`` neurons' constants are too. Here the network learns to fire at a rate.

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
# ``save`` writes the file, and ``to_graph`` gives the graph of the package ``nir``. The example is one step of one sample.

spikeforge.nir.save(net, x[0, 0], folder / "trained.nir")
graph = spikeforge.nir.to_graph(net, x[0, 0])
print(graph)

read = nir.read(folder / "trained.nir")
assert set(read.nodes) == set(graph.nodes)

# %%
# SpikingJelly takes its network back, and fires the same spikes:

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
# The equations leave open how a step is computed, where states start, what a cycle brings. :doc:`../nir` has each decision, the options
# that give other frameworks' spikes, and the command line:
#
# .. code-block:: sh
#
#    spikeforge-nir info network.nir
#    spikeforge-nir run network.nir --dt 1e-4 --comparison ge --input x.npy --output spikes.npy
#    spikeforge-nir convert network.nir network.pt --dt 1e-4 --comparison ge    # TorchScript, for C++
