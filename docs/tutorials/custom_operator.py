"""
A first operator
================

A computation that is neither a neuron nor part of a library, such as a new kind of connection, can be written as two
functions: a Python function for the CPU, and CUDA source for a GPU, as a string. ``spikeforge.custom_op`` registers
them as an operator of torch with a gradient. It supports ``torch.compile``, export, ``torch.vmap`` and TorchScript like
any other operator. No compiler is needed; NVRTC compiles the CUDA source at its first use.
"""

# %%
# What it computes
# ----------------
# Each neuron connects to a fixed number of targets. The operator adds the weights of the neurons that fired to their
# targets, and does not read the connections of the other neurons. The CPU function operates on tensors:

import time

import torch

import spikeforge

torch.manual_seed(0)


def event_sum_cpu(events, indices, weight, columns):
    fired = events.nonzero()[:, 0]
    arriving = events[fired, None] * weight[fired]
    return torch.zeros(columns, dtype=weight.dtype).index_add(0, indices[fired].flatten().long(), arriving.flatten())


# %%
# The GPU function is a kernel. It takes the operator's arguments, followed by its results: ``Array<const weight_t>``
# for a tensor named ``weight``, where ``weight_t`` is the dtype of ``weight`` in this call. One source therefore serves
# float32 and float64. In this kernel a warp processes the connections of one neuron:

EVENT_SUM = spikeforge.CudaKernel(
    """
extern "C" __global__ void event_sum(Array<const events_t> events, Array<const indices_t> indices,
                                     Array<const weight_t> weight, long long columns, Array<y_t> y) {
  const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
  if (row >= events.numel) return;
  const y_t event = events[row];
  if (event == 0) return;
  const long long targets = indices.size(1);
  for (long long k = threadIdx.x % 32; k < targets; k += 32)
    atomicAdd(&y[indices[row * targets + k]], event * weight[row * targets + k]);
}
""",
    grid=lambda events, indices, weight, columns, y: (32 * events.numel() + 255) // 256,
)

# %%
# The gradient of an event is the sum of its targets' gradients times the weights. The gradient of a weight is its
# target's gradient if its neuron fired, and 0 otherwise.


def event_sum_vjp(grad, events, indices, weight, columns):
    at_targets = grad[indices.long()]
    return (at_targets * weight).sum(1), at_targets * events[:, None]


# %%
# The operator
# ------------
# The schema declares arguments and results in torch's schema language, and ``shapes`` declares the shape of the result,
# here ``columns`` elements. With ``zero_results`` the result is initialized to zeros on a GPU, since the kernel adds to
# it.

event_sum = spikeforge.custom_op(
    "mine::event_sum(Tensor events, Tensor indices, Tensor weight, SymInt columns) -> Tensor y",
    shapes=("columns",),
    cpu=event_sum_cpu,
    cuda=EVENT_SUM,
    vjp=event_sum_vjp,
    differentiable=["events", "weight"],
    zero_results=True,
)
print(event_sum)

# %%
# The operator can be called as ``event_sum(...)`` and as ``torch.ops.mine.event_sum(...)``. It needs no additional code
# for dispatch, autograd, or checks of devices and types.
#
# Is it right?
# ------------
# The tests are a comparison with a dense product, which is slow and obvious, torch's test of an operator's
# registration, and torch's test of gradients.


def random_connections(rows, columns, targets, dtype=torch.float32):
    """Where each neuron leads to [rows, targets], each target once, and weights of the same shape."""
    indices = torch.stack([torch.randperm(columns)[:targets] for _ in range(rows)]).int()
    return indices, torch.rand(rows, targets, dtype=dtype)


indices, weight = random_connections(200, 300, 20, torch.float64)
events = (torch.rand(200, dtype=torch.float64) < 0.1).double()
dense = torch.zeros(200, 300, dtype=torch.float64).scatter_(1, indices.long(), weight)
assert torch.allclose(event_sum(events, indices, weight, 300), events @ dense, rtol=1e-12)

tests = ("test_schema", "test_autograd_registration", "test_faketensor")
print(torch.library.opcheck(event_sum.overload, (events, indices, weight.requires_grad_(), 300), test_utils=tests))

indices, weight = random_connections(5, 6, 3, torch.float64)
events = torch.rand(5, dtype=torch.float64)
differentiable = (events.requires_grad_(), weight.requires_grad_())
assert torch.autograd.gradcheck(lambda events, weight: event_sum(events, indices, weight, 6), differentiable)

# %%
# In a network
# ------------
# This network has learned connections from 500 inputs to 100 neurons. It is trained to fire at a different rate for
# each of two groups of inputs.


class Synapses(torch.nn.Module):
    """[T, rows] spikes to [T, columns] currents."""

    def __init__(self, rows, columns, targets):
        super().__init__()
        indices, weight = random_connections(rows, columns, targets)
        self.columns, self.weight = columns, torch.nn.Parameter(weight / targets)
        self.register_buffer("indices", indices)

    def forward(self, spikes):
        return torch.stack([event_sum(row, self.indices, self.weight, self.columns) for row in spikes])


synapses, neurons = Synapses(500, 100, 20), spikeforge.nn.LIF(tau=5.0, surrogate="atan")
optimizer = torch.optim.Adam(synapses.parameters(), lr=0.02)
losses = []
for step in range(40):
    group = step % 2
    spikes = torch.zeros(30, 500)
    spikes[:, 250 * group : 250 * group + 250] = (torch.rand(30, 250) < 0.1).float()
    loss = (neurons(synapses(spikes)).mean() - (0.1, 0.4)[group]).square()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {sum(losses[:4]) / 4:.4f} at first, {sum(losses[-4:]) / 4:.4f} at last")
assert sum(losses[-4:]) < sum(losses[:4]) / 4

# %%
# In torch's tools
# ----------------
# ``torch.export`` keeps the operator as a single node of a graph, and ``torch.vmap`` maps it over a batch, here of
# spikes.

row = spikes[0]
exported = torch.export.export(synapses, (spikes[:2],))
called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
print(called)
assert called.count("mine.event_sum.default") == 2

mapped = torch.vmap(lambda row: event_sum(row, synapses.indices, synapses.weight, 100))(spikes)
assert torch.allclose(mapped, synapses(spikes))

# %%
# The cost depends on the events
# ------------------------------

torch.set_num_threads(1)  # for times that do not depend on who else computes
indices, weight = torch.randint(5000, (5000, 100), dtype=torch.int32), torch.rand(5000, 100)


def microseconds(share):
    events = (torch.rand(5000) < share).float()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        event_sum(events, indices, weight, 5000)
        times.append(1e6 * (time.perf_counter() - start))
    return min(times)


costs = {share: microseconds(share) for share in (0.001, 0.01, 0.1, 1.0)}
print("share that fires, us a call:", {share: round(cost) for share, cost in costs.items()})
assert costs[0.001] < costs[1.0]

# %%
# The kernel, ahead of time
# -------------------------
# ``compile`` compiles the source for any GPU architecture, without a GPU. If compilation fails, the error shows the
# lines of your source.

try:
    event_sum.compile("sm_90", row, synapses.indices, synapses.weight.detach(), 100)
    print("compiled for sm_90")
except RuntimeError as error:  # a torch without CUDA brings no NVRTC
    print(error)

# %%
# :doc:`../custom_operators` describes all parts of an operator, including registration in C++ with a CPU function in C,
# and the error messages. :doc:`../events` describes the event products of the library.
