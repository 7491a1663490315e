"""
Accelerating SpikingJelly
=========================

``spikeforge.accelerate(net)`` gives the neurons of a network of SpikingJelly the fused operators as their dynamics. The modules stay what
they are, and the training loop does not change. SpikingJelly itself asks you to choose a ``backend`` for speed; here there is nothing to
choose: the same call serves CPUs and GPUs, every surrogate, learned parameters, and neurons that no backend has a kernel for.

It needs SpikingJelly 2.0 (``pip install spikingjelly``).
"""

# %%
# A network that exists
# ---------------------
# This is a network as SpikingJelly's users write it, in step mode ``"m"``: ``[T, batch, channels, height, width]``.

import copy
import time

import torch
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import nn

import spikeforge

torch.manual_seed(0)
net = nn.Sequential(
    layer.Conv2d(1, 8, 3, padding=1, bias=False),
    layer.BatchNorm2d(8),
    neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan(), detach_reset=True),
    layer.MaxPool2d(2),
    layer.Flatten(),
    layer.Linear(8 * 8 * 8, 10),
    neuron.ParametricLIFNode(init_tau=3.0),
)
functional.set_step_mode(net, "m")
images, labels = torch.rand(8, 16, 1, 16, 16), torch.randint(10, (16,))  # 8 steps, a batch of 16

# %%
# One line
# --------
# It works in place; here a copy is kept as it was, to compare with. What is printed says what was replaced and what was not, and why.

original = copy.deepcopy(net)
report = spikeforge.accelerate(net)
print(report)
assert len(report.replaced) == 2 and not report.left

# %%
# The same spikes
# ---------------
# Charge, threshold and reset are computed in SpikingJelly's own order and precision. On a CPU spikes are therefore equal bit for bit, and
# gradients within rounding.


def training_step(net):
    functional.reset_net(net)
    net.zero_grad()
    spikes = net(images)
    nn.functional.cross_entropy(spikes.mean(0), labels).backward()
    return spikes, [parameter.grad.clone() for parameter in net.parameters()]


expected, gradients = training_step(original)
spikes, ours = training_step(net)
worst = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in zip(ours, gradients))
print(f"the same spikes: {torch.equal(spikes, expected)}; gradients differ by {worst:.1e} of the largest")
assert torch.equal(spikes, expected) and worst < 1e-4

# %%
# What stays
# ----------
# The objects, their parameters, keys and classes are those of before, so that optimisers, checkpoints and ``isinstance`` go on.

assert isinstance(net[2], neuron.LIFNode) and net.state_dict().keys() == original.state_dict().keys()
net[2].v_threshold = 0.8  # is read at each call, as before
original[2].v_threshold = 0.8
assert torch.equal(training_step(net)[0], training_step(original)[0])

# %%
# How much faster?
# ----------------
# On a CPU, a neuron alone, forward and backward. (On a GPU :doc:`../benchmarks` compares with the Triton and CUDA kernels of SpikingJelly,
# and :doc:`../accelerate` whole networks.)

x = torch.rand(16, 64, 1024)


def milliseconds(node):
    least = float("inf")
    for _ in range(3):
        functional.reset_net(node)
        inputs = x.clone().requires_grad_()
        start = time.perf_counter()
        node(inputs).sum().backward()
        least = min(least, 1e3 * (time.perf_counter() - start))
    return least


node = neuron.LIFNode(step_mode="m", surrogate_function=surrogate.ATan())
before = milliseconds(node)
spikeforge.accelerate(node)
after = milliseconds(node)
print(f"LIFNode, T = 16, 65,536 neurons, a training step: {before:.1f} ms before, {after:.1f} ms after")
assert after < before

# %%
# The layers around the neurons
# -----------------------------
# A batch normalisation that feeds a neuron and nothing else can run in the neuron's own pass over memory, and poolings keep a byte for
# each maximum. The network is run once to see who reads what:

print(spikeforge.accelerate.layers(net, images))
assert torch.equal(training_step(net)[0], training_step(original)[0])

# %%
# And back
# --------
# ``restore`` gives all modules their own dynamics again, at any time.

print(spikeforge.accelerate.restore(net))
assert type(net[2]) is neuron.LIFNode

# %%
# Networks of snnTorch and Norse are treated alike. :doc:`../accelerate` lists what is replaced, and where results are meant to differ. A
# neuron that SpikingJelly does not have, or FlexSN's functions, are the matter of :doc:`own_neuron`.
