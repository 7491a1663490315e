"""
From Python to a program in C++
===============================

A network is trained in Python and runs in a program without Python, which needs only libtorch and spikeforge's library.
This tutorial saves the network as TorchScript, runs the program, and compiles the GPU kernels ahead of time, on a
machine without a GPU.

The program needs the C++ build (:doc:`../install`); the rest of the tutorial runs without it.
"""

# %%
# A network
# ---------
# Any neuron can be deployed; this one is written as a function. The saved file contains its text, so that the program
# needs no code for it.

import subprocess
import tempfile
from pathlib import Path

import numpy
import torch
from torch import nn

import spikeforge
import spikeforge.nn as snn

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())


@spikeforge.neuron(states={"v": 0.0, "tired": 0.0})
def tiring(x, v, tired, *, tau, cost=0.3):
    h = v + (x - v) / tau
    s = spikeforge.spike(h - (1 + cost * tired), "atan")
    return s, {"v": spikeforge.trace.select(s, 0.0, h), "tired": 0.8 * tired + s}


class Network(nn.Module):
    """Sequences [T, batch, 12] become scores [batch, 3]: how often the neurons of each class fired."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            snn.TimeDistributed(nn.Linear(12, 32)),
            snn.Neuron(tiring, tau=snn.Learnable(3.0, min=1.0, per_channel=32)),
            snn.TimeDistributed(nn.Linear(32, 3)),
            snn.LIF(surrogate="atan"),
        )

    def forward(self, x):
        return self.layers(x).mean(0)


def samples(count):
    """Noise in which one third of the inputs is stronger, depending on the class."""
    labels = torch.randint(3, (count,))
    strong = nn.functional.one_hot(labels, 3).repeat_interleave(4, 1)
    return 2 * torch.rand(20, count, 12) * (1 + strong), labels


net = Network()
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
for step in range(60):
    x, labels = samples(64)
    loss = nn.functional.cross_entropy(10 * net(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
net.eval()
x, labels = samples(100)
with torch.no_grad():
    expected = net(x)
accuracy = (expected.argmax(-1) == labels).float().mean().item()
print(f"loss {loss.item():.3f}, {accuracy:.0%} right")
assert accuracy > 0.8

# %%
# A file
# ------
# ``torch.jit.trace`` records the operators of one call. Neurons are single operators, so that the loop over time is not
# unrolled and the file accepts any number of steps and samples. (At its first call a module converts its scalars to
# tensors and keeps them: call the network once before tracing it, as above, or torch's check of the trace finds two
# different graphs.)

with torch.no_grad():
    script = torch.jit.trace(net, x)
script.save(str(folder / "network.pt"))
loaded = torch.jit.load(str(folder / "network.pt"))
other = torch.rand(7, 3, 12)
with torch.no_grad():
    assert torch.equal(loaded(x), expected) and torch.equal(loaded(other), net(other))
print(f"network.pt has {(folder / 'network.pt').stat().st_size / 1024:.0f} KiB")

# %%
# The program
# -----------
# ``examples/deploy`` runs such a file on an array of samples, and prints the time of a call. ``--sample-dim 1`` selects
# the array's second dimension as the sample dimension, since time is the first. The neurons have the same bits as in
# Python; the layers of torch agree within rounding, since they may sum in another order for another batch size.

library = next(Path(path) for path in torch.ops.loaded_libraries if "libspikeforge" in path)  # that which spikeforge loaded
deploy = library.resolve().parents[1] / "bin" / "deploy"
numpy.save(folder / "samples.npy", x.numpy())
command = [deploy, folder / "network.pt", folder / "samples.npy", "--sample-dim=1", "--batch=100", f"--scores={folder / 'scores.txt'}"]
if deploy.exists():
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    lines = (folder / "scores.txt").read_text().splitlines()
    scores = torch.tensor([[float(number) for number in line.replace(",", " ").split()] for line in lines])
    worst = (scores - expected).abs().max().item()
    print(f"scores of Python and of the program differ by {worst:.1e}")
    assert worst < 1e-4
else:
    print(f"there is no {deploy}: cmake --build --preset release --target deploy")

# %%
# A program of your own
# ---------------------
# A minimal program needs the following source and a ``CMakeLists.txt`` that calls ``find_package(spikeforge REQUIRED)``
# and links ``spikeforge::spikeforge`` (:doc:`../deployment` contains both):
#
# .. code-block:: cpp
#
#    #include <torch/script.h>
#
#    int main() {
#      torch::jit::Module net = torch::jit::load("network.pt");
#      at::Tensor scores = net.forward({torch::rand({20, 1, 12})}).toTensor();
#    }

# %%
# Kernels, ahead of time
# ----------------------
# On a GPU a kernel is compiled at its first call. A *kernel pack* contains precompiled kernels, for machines without
# NVRTC or with too little time or memory to compile. To write one, run the program's calls on the CPU: the library
# records the kernels that a GPU would need, and compiles them for the given architectures.

try:
    torch.ops.spikeforge.record_kernels(["sm_90"])
    with torch.no_grad():
        net(x)
    kernels = torch.ops.spikeforge.write_kernel_pack(str(folder / "kernels.pack"))
    print(f"{kernels} kernels for sm_90, {(folder / 'kernels.pack').stat().st_size / 1024:.0f} KiB")
    print("SPIKEFORGE_KERNEL_PACK=kernels.pack ./program")
except RuntimeError as error:  # a torch without CUDA brings no NVRTC
    print(error)

# %%
# :doc:`../deployment` compares TorchScript with AOTInductor, and describes how a program keeps states and how to run
# untrusted files.
