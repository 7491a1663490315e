"""
Operators of one's own
======================

What no neuron is and no library has, such as spikes through your own kind of connections, you write as two functions: one for the CPU, and
CUDA source for a GPU. They become an operator of torch: it is differentiated, exported, mapped over, and called from Python, TorchScript
and C++. This tutorial uses the operators of ``examples/custom_op``, and shows how they are made.

It needs them built: ``cmake --build --preset release --target spikeforge_example_operators`` in a clone, or ``examples/custom_op`` as the project
that it is (:doc:`../custom_operators` has a smaller one, in ten minutes).
"""

# %%
# What an operator is made of
# ---------------------------
# ``mine::event_sum`` adds up the weights of the connections of those neurons that fired: row i of a sparse matrix holds where neuron i leads
# to, and rows without an event cost nothing. Its registration, in C++:
#
# .. code-block:: cpp
#
#    CustomOp op("mine::event_sum(Tensor events, Tensor indices, Tensor indptr, Tensor weight, SymInt columns) -> Tensor y");
#    op.shapes([](const Arguments& in) {
#        return std::vector<Result>{{.sizes = {in.symbol("columns")}, .dtype = in.dtype("events")}};
#      })
#        .cpu(event_sum_cpu)
#        .cuda({.source = event_sum_cuda, .entry = "event_sum", .grid = warp_a_row})
#        .zero_results()
#        .vjp("mine::event_sum_backward");
#
# The schema says what it takes and gives, ``shapes`` what its results look like, ``cpu`` and ``cuda`` compute them, ``vjp`` names the operator that
# is its gradient. The kernel is a string, compiled when it is first used, for the types that come:
#
# .. code-block:: cuda
#
#    extern "C" __global__ void event_sum(Array<const events_t> events, Array<const indices_t> indices,
#                                         Array<const indptr_t> indptr, Array<const weight_t> weight,
#                                         long long columns, Array<y_t> y) {
#      const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;  // a warp a row
#      if (row >= events.numel) return;
#      const y_t event = events[row];
#      if (event == 0) return;
#      for (int k = indptr[row] + threadIdx.x % 32; k < indptr[row + 1]; k += 32)
#        atomicAdd(&y[indices[k]], event * weight[k]);
#    }
#
# Nothing of torch's boilerplate is written: no dispatch, no autograd function, no meta kernel, no checks of devices and types.

import os
import time
from pathlib import Path

import torch

import spikeforge  # noqa: F401  (loads the library that the operators are linked to)

library = Path(os.environ.get("SPIKEFORGE_LIBRARY") or "build/release/lib/libspikeforge.so")
torch.ops.load_library(str(library.parent / "libspikeforge_example_operators.so"))
mine = torch.ops.mine
print(mine.event_sum.default._schema)

# %%
# Is it right?
# ------------
# Beside a dense product, which is slow and obvious; then torch's own test of an operator's registration, and its test of gradients.

torch.manual_seed(0)
ROWS, COLUMNS, TARGETS = 200, 300, 20


def connections(rows, columns, targets):
    """CSR: where each row begins, and the columns that it leads to, each once."""
    indices = torch.stack([torch.randperm(columns)[:targets].sort().values for _ in range(rows)]).int().flatten()
    return indices, targets * torch.arange(rows + 1, dtype=torch.int32)


indices, indptr = connections(ROWS, COLUMNS, TARGETS)
weight = torch.rand(len(indices), dtype=torch.float64, requires_grad=True)
events = (torch.rand(ROWS, dtype=torch.float64) < 0.1).double()

dense = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
dense[torch.arange(ROWS).repeat_interleave(TARGETS), indices.long()] = weight.detach()
y = mine.event_sum(events, indices, indptr, weight, COLUMNS)
assert torch.allclose(y, events @ dense, rtol=1e-12)

arguments = (events, indices, indptr, weight, COLUMNS)
print(torch.library.opcheck(mine.event_sum.default, arguments, test_utils=("test_schema", "test_autograd_registration", "test_faketensor")))
small = connections(5, 6, 3)
assert torch.autograd.gradcheck(
    lambda e, w: mine.event_sum(e, *small, w, 6),
    (torch.rand(5, dtype=torch.float64, requires_grad=True), torch.rand(15, dtype=torch.float64, requires_grad=True)),
)

# %%
# What it is good for
# -------------------
# It costs what the events cost:

indices, indptr = torch.randint(5000, (5000 * 100,), dtype=torch.int32), 100 * torch.arange(5001, dtype=torch.int32)
weight = torch.rand(len(indices))


def microseconds(share):
    events = (torch.rand(5000) < share).float()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        mine.event_sum(events, indices, indptr, weight, 5000)
        times.append(1e6 * (time.perf_counter() - start))
    return min(times)


print("share that fires, us a call:", {share: round(microseconds(share)) for share in (0.001, 0.01, 0.1, 1.0)})
assert microseconds(0.001) < microseconds(1.0)

# %%
# In torch's tools
# ----------------
# ``torch.vmap`` runs it over a batch, ``torch.export`` keeps it whole in a graph for C++.


class Synapses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(len(indices)))

    def forward(self, events):
        return mine.event_sum(events, indices, indptr, self.weight, 5000)


synapses = Synapses()
batch = (torch.rand(4, 5000) < 0.01).float()
mapped = torch.vmap(synapses)(batch)
assert torch.allclose(mapped[2], synapses(batch[2]))

exported = torch.export.export(synapses, (batch[0],))
print([node.target for node in exported.graph.nodes if node.op == "call_function"])
assert torch.allclose(exported.module()(batch[1]), synapses(batch[1]))

# %%
# An element-wise operator
# ------------------------
# Where each element is computed by itself, a lambda in C++ is all: kernels and gradient are made from it, as those of a neuron are.
#
# .. code-block:: cpp
#
#    spikeforge::elementwise("mine::boltzmann(Tensor v, Tensor v_half, float slope=5.0) -> Tensor",
#                            [](Value v, Value v_half, Value slope) { return sigmoid((v - v_half) / slope); });

v = torch.linspace(-80, 20, 5, requires_grad=True)
gates = mine.boltzmann(v, torch.tensor(-40.0))
gates.sum().backward()
print("open gates:", [f"{gate:.3f}" for gate in gates.tolist()])
assert torch.allclose(gates, torch.sigmoid((v + 40) / 5)) and torch.allclose(v.grad, gates * (1 - gates) / 5)

# %%
# :doc:`../custom_operators` has all parts of an operator, a project of three files, and what goes wrong in words. The products that
# come with the library, with everything that a real one needs, are in :doc:`../events`.
