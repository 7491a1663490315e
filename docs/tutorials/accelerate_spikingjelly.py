"""
Accelerating SpikingJelly
=========================

``spikeforge.accelerate(net)`` replaces the dynamics of a SpikingJelly network's neurons with fused operators. The
modules keep their identity, and the training loop does not change. SpikingJelly needs a ``backend`` to be selected for
speed; ``accelerate`` has no such option: the same call supports CPUs and GPUs, every surrogate, learned parameters, and
neurons without a kernel in any backend.

It needs SpikingJelly 2.0 (``pip install spikingjelly``).
"""

# %%
# An existing network
# -------------------
# The network is typical SpikingJelly code in step mode ``"m"``: ``[T, batch, channels, height, width]``.

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
# ``accelerate`` works in place; the tutorial keeps an unmodified copy for comparison. The report lists the replaced
# modules and the others, with the reason for each.

original = copy.deepcopy(net)
report = spikeforge.accelerate(net)
print(report)
assert len(report.replaced) == 2 and not report.left

# %%
# The same spikes
# ---------------
# Charge, threshold and reset are computed in SpikingJelly's order and precision. On a CPU the spikes are therefore bit
# for bit equal, and the gradients agree within rounding.


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
# Objects, parameters, keys and classes are unchanged, so that optimizers, checkpoints and ``isinstance`` continue to
# work.

assert isinstance(net[2], neuron.LIFNode) and net.state_dict().keys() == original.state_dict().keys()
net[2].v_threshold = 0.8  # is read at each call, as before
original[2].v_threshold = 0.8
assert torch.equal(training_step(net)[0], training_step(original)[0])

# %%
# How much faster?
# ----------------
# This measures the forward and backward pass of a single neuron layer on a CPU. (:doc:`../benchmarks` compares with
# SpikingJelly's Triton and CUDA kernels on a GPU, and :doc:`../accelerate` compares whole networks.)

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
# A batch normalization whose only consumer is a neuron can be fused into the neuron's pass over memory, and poolings
# can save one byte for each maximum. ``accelerate.layers`` runs the network once to find the consumers of each result:

print(spikeforge.accelerate.layers(net, images))
assert torch.equal(training_step(net)[0], training_step(original)[0])

# %%
# And back
# --------
# ``restore`` restores the original dynamics of all modules, at any time.

print(spikeforge.accelerate.restore(net))
assert type(net[2]) is neuron.LIFNode

# %%
# Networks of snnTorch and Norse are supported in the same way. :doc:`../accelerate` lists the replaced modules and the
# intended differences. :doc:`own_neuron` describes neurons that SpikingJelly does not have, and FlexSN's functions.
