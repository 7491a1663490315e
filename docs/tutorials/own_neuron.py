"""
A custom neuron
===============

A Python function for one step of a neuron becomes one fused, differentiable operator over all steps. On a GPU it is
compiled; on a CPU an interpreter runs it. This tutorial goes from the equations of a neuron to a layer that learns. It
compares the neuron with the loop that it replaces, prints the kernel, and ends with functions that were written for
SpikingJelly's FlexSN.
"""

# %%
# The equations
# -------------
# The neuron adapts: a variable a rises with each spike and decays; the higher it is, the more input the neuron needs to
# fire.
#
# .. math::
#
#    h = v + \frac{x - v - a}{\tau}, \qquad s = \Theta(h - 1), \qquad v' = \begin{cases} 0 & s = 1 \\ h & \text{else} \end{cases},
#    \qquad a' = \rho\, a + \beta\, s
#
# The function takes inputs and states first, and parameters after the star. It returns its output, and a dict of the
# next states. ``spike`` is the step function, whose derivative in the backward pass is a surrogate; ``select`` is the
# reset.

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
# The decorator calls the function once, with values that record the operations applied to them. The result is *neuron
# text*, which fully defines the operator: it can be stored in a file and read in C++, and saved models contain it.

print(adapting)

# %%
# Calling it
# ----------
# Inputs are ``[T, *shape]``, time first. Parameters are scalars or tensors. The call returns the spikes and the states
# after the last step, or, with ``store_states=True``, after each step.

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
# ``adapting.loop`` runs the Python function step by step in torch's operations under autograd. Values and gradients of
# both must agree. The comparison uses float64, in which rounding does not change a spike here. ``opcheck`` is torch's
# test of an operator.

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
# The loop allocates about ten tensors in each step, and autograd saves them; the operator reads x once, and saves x and
# a state every few steps.

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
# For a GPU, one CUDA kernel is generated from the text for the forward pass, and one for the backward pass, whose
# derivative is derived from the equations. The source can be printed without a GPU. The following is the step of the
# forward pass, and the beginning of its derivative:

source = adapting.cuda_source()
start = source.index("struct")
print(source[start : start + 1800])

# %%
# A layer
# -------
# ``spikeforge.nn.Neuron`` is a module of this neuron, whose constants are scalars, tensors or ``Learnable``. It can be
# trained, saved, compiled, exported and recorded like every other neuron.

layer = snn.Neuron(adapting, tau=snn.Learnable(5.0, min=1.0, per_channel=16), beta=0.5)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), layer)
spikes = net(torch.rand(50, 4, 8))
spikes.mean().backward()
print(net)
assert layer.tau.grad.shape == (16,)

# %%
# Functions of FlexSN
# -------------------
# SpikingJelly's FlexSN builds Triton kernels from a function of inputs, states and static inputs. ``from_core`` accepts
# such a function unchanged, including SpikingJelly's surrogates if SpikingJelly is installed.

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
# :doc:`../custom_neurons` describes the operations that a function may use, and the equivalent lambdas in C++.
# :doc:`../neuron_text` describes the language of the text.
