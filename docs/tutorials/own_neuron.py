"""
A neuron of one's own
=====================

Write one step of a neuron as a Python function and get one fused, differentiable operator over all steps: compiled for a GPU where there
is one, run by an interpreter of the CPU elsewhere. This tutorial takes a neuron from its equations to a layer that learns, checks it
against the loop that it replaces, looks at the kernel, and ends with functions that were written for SpikingJelly's FlexSN.
"""

# %%
# The equations
# -------------
# A neuron that adapts: a variable a rises with each spike and decays; the higher it is, the more input the neuron needs.
#
# .. math::
#
#    h = v + \frac{x - v - a}{\tau}, \qquad s = \Theta(h - 1), \qquad v' = \begin{cases} 0 & s = 1 \\ h & \text{else} \end{cases},
#    \qquad a' = \rho\, a + \beta\, s
#
# As a function: inputs and states first, parameters behind the star. It returns its output, and a dict of what the states are next.
# ``spike`` is the step function, whose derivative in the backward pass is a surrogate; ``select`` is the reset.

import time

import torch
from matplotlib import pyplot

import spikeforge
import spikeforge.nn as snn
from spikeforge import surrogate

torch.manual_seed(0)


@spikeforge.neuron(states={"v": 0.0, "a": 0.0})
def adapting(x, v, a, *, tau, rho=0.95, beta=0.3):
    h = v + (x - v - a) / tau
    s = spikeforge.spike(h - 1, surrogate.ATan(2.0))
    return s, {"v": spikeforge.trace.select(s, 0.0, h), "a": rho * a + beta * s}


# %%
# The function was called once, with values that wrote down what happened to them. What they wrote is *neuron text*, and is all that the
# operator needs: it can be kept in a file, read in C++, and travels with a saved model.

print(adapting)

# %%
# Calling it
# ----------
# Inputs are ``[T, *shape]``, time first. Parameters are numbers or tensors. What comes back are the spikes, and the states after the last
# step, or with ``store_states=True`` after each.

x = torch.zeros(200, 1)
x[20:] = 2.0
spikes, states = adapting(x, tau=5.0, store_states=True)

# sphinx_gallery_thumbnail_number = 1
figure, axes = pyplot.subplots(2, figsize=(8, 4), sharex=True, layout="constrained")
axes[0].plot(states["v"], label="v")
axes[0].vlines(spikes[:, 0].nonzero(), 1.0, 1.2, color="black", linewidth=1)
axes[1].plot(states["a"], label="a", color="C1")
axes[0].set(title="a constant current from step 20 on", ylabel="v")
axes[1].set(xlabel="step", ylabel="a")

fired = spikes[:, 0].nonzero().flatten()
intervals = fired.diff()
print(f"first intervals {intervals[:3].tolist()}, last ones {intervals[-3:].tolist()}: it adapts")
assert intervals[-1] > intervals[0]

# %%
# Is it right?
# ------------
# ``adapting.loop`` runs the function itself, step after step in torch's own operations under autograd. Values and gradients of both have
# to agree: here in float64, where a spike cannot fall to the other side by rounding. ``opcheck`` is torch's own test of an operator.

x = 3 * torch.rand(50, 4, 8, dtype=torch.float64)
tau = torch.full((8,), 5.0, dtype=torch.float64, requires_grad=True)  # one for each neuron, learned
upstream = torch.rand(50, 4, 8, dtype=torch.float64)

fused, _ = adapting(x, tau=tau)
(gradient,) = torch.autograd.grad(fused, tau, upstream)
by_hand, _ = adapting.loop(x, tau=tau)
(expected,) = torch.autograd.grad(by_hand, tau, upstream)
print(f"the same spikes: {torch.equal(fused, by_hand)}; gradients differ by {(gradient - expected).abs().max():.1e}")
assert torch.equal(fused, by_hand) and torch.allclose(gradient, expected, rtol=1e-10)

number = torch.tensor(0.95, dtype=torch.float64)
parameters = [tau.detach().requires_grad_(), number, number]
torch.library.opcheck(torch.ops.spikeforge.run.default, (adapting.text, [x], [], parameters), test_utils="test_schema")

# %%
# What it gains
# -------------
# The loop makes some ten tensors a step and autograd keeps them; the operator reads x once, and keeps x and a state every few steps.

x = 3 * torch.rand(100, 32, 256)


def seconds(run):
    """The least of three training steps."""
    times = []
    for _ in range(3):
        tau = torch.full((256,), 5.0, requires_grad=True)
        start = time.perf_counter()
        run(x, tau=tau)[0].sum().backward()
        times.append(time.perf_counter() - start)
    return min(times)


loop, operator = seconds(adapting.loop), seconds(adapting)
print(f"loop {1e3 * loop:.0f} ms, operator {1e3 * operator:.0f} ms: {loop / operator:.0f} times as fast on this CPU")
assert operator < loop

# %%
# The kernel
# ----------
# On a GPU the same text becomes one CUDA kernel forward and one backward. The derivative was taken of the equations; its source can be
# read without a GPU. This is the step of the forward pass, and the beginning of what differentiates it:

source = adapting.cuda_source()
start = source.index("struct")
print(source[start : start + 1800])

# %%
# A layer
# -------
# ``spikeforge.nn.Neuron`` makes a module of it, whose constants are numbers, tensors or ``Learnable``. It trains, is saved, compiled,
# exported and recorded as every other neuron.

layer = snn.Neuron(adapting, tau=snn.Learnable(5.0, min=1.0, per_channel=16), beta=0.5)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), layer)
spikes = net(torch.rand(50, 4, 8))
spikes.mean().backward()
print(net)
assert layer.tau.grad.shape == (16,)

# %%
# Functions of FlexSN
# -------------------
# SpikingJelly's FlexSN builds Triton kernels from a function of inputs, states and static inputs. ``from_core`` takes such a function as
# it is, with SpikingJelly's surrogates in it where it is installed.

fire = surrogate.ATan(2.5)


def core(x, v, decay):
    h = decay * v + x
    s = spikeforge.spike(h - 1.0, fire)
    return s, h * (1.0 - s)


decay = torch.tensor(0.7, requires_grad=True)
flex = spikeforge.trace.from_core(core, num_states=1, static_inputs=[decay])
spikes, states = flex(torch.rand(10, 4, 8))
spikes.mean().backward()
print(flex)
assert decay.grad != 0
pyplot.show()

# %%
# More of what a function may do, and what it may not, is in :doc:`../custom_neurons`; the language of the text is in
# :doc:`../neuron_text`; in C++ a lambda does the same (:doc:`../custom_neurons`).
