#!/usr/bin/env python3
"""Registers a custom operator in Python: sums spikes through millions of synapses to currents.

Row i of the weights has the synapses indptr[i] to indptr[i+1] of neuron i, `indices` are their targets (the CSR
format). `events::event_sum` adds up the rows whose neuron fired: y, in the dtype that the call requests, and the number
of spikes that arrived at each target. A row without an event costs nothing; if few neurons fire, these are nearly all
rows.

    python examples/python/event_operator.py                  # compares with torch's sparse product
    python examples/python/event_operator.py --device cuda

Its kernels are CUDA source, which NVRTC compiles, and on the CPU a function of numba, or of torch without numba.
"""

import argparse
import time
import warnings

import torch

import spikeforge

try:
    import numba
except ImportError:
    numba = None

warnings.filterwarnings("ignore", "Sparse")  # torch warns that its sparse tensors are in beta state

# --- kernels ---------------------------------------------------------------------------------------------------------

CUDA = """
extern "C" __global__ void event_sum(Array<const events_t> events, Array<const indices_t> indices,
                                     Array<const indptr_t> indptr, Array<const weight_t> weight, long long columns,
                                     long long dtype, Array<y_t> y, Array<arrived_t> arrived) {
  const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;  // 32 threads a row
  if (row >= events.numel || events[row] == 0) return;
  for (int k = indptr[row] + threadIdx.x % 32; k < indptr[row + 1]; k += 32) {
    atomicAdd(&y[indices[k]], convert<y_t>(events[row] * weight[k]));
    atomicAdd(&arrived[indices[k]], 1);
  }
}
"""


def by_torch(events, indices, indptr, weight, columns, dtype):
    """The CPU function in torch's operators: it reads all rows, also those of silent neurons."""
    given = events[row_of_each_synapse(indptr)]
    y = torch.zeros(columns, dtype=dtype).index_add(0, indices, (given * weight).to(dtype))
    return y, torch.zeros(columns, dtype=torch.int32).index_add(0, indices, (given != 0).int())


def by_numba(result_type):
    """The CPU function compiled by numba, for results of one dtype: its address is all that the operator needs.

    data and sizes have an entry for each tensor, arguments before results; integers are columns and dtype.
    """

    def add_rows(data, dims, sizes, integers, numbers):
        events = numba.carray(data[0], sizes[0][0], numba.float32)
        indices = numba.carray(data[1], sizes[1][0], numba.int32)
        indptr = numba.carray(data[2], sizes[2][0], numba.int32)
        weight = numba.carray(data[3], sizes[3][0], numba.float32)
        y = numba.carray(data[4], integers[0], result_type)
        arrived = numba.carray(data[5], integers[0], numba.int32)
        for row in range(events.size):
            if events[row] != 0:
                for k in range(indptr[row], indptr[row + 1]):
                    y[indices[k]] += events[row] * weight[k]
                    arrived[indices[k]] += 1

    return numba.cfunc(spikeforge.CustomOp.cfunc_signature)(add_rows)


# --- the operator ----------------------------------------------------------------------------------------------------


def row_of_each_synapse(indptr):
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1, device=indptr.device), indptr.diff())


def shapes(events, indices, indptr, weight, columns, dtype):
    """Describes the results. It is called once for each combination of shapes, and raises for wrong ones."""
    if indptr.shape[0] != events.shape[0] + 1 or indices.shape != weight.shape:
        raise ValueError("event_sum: indptr must have one element more than events, and weight the shape of indices")
    return [((columns,), dtype), ((columns,), torch.int32)]


def gradients(grad_y, grad_arrived, events, indices, indptr, weight, columns, dtype):
    at_synapse, row = grad_y.to(weight.dtype)[indices], row_of_each_synapse(indptr)
    return torch.zeros_like(events).index_add(0, row, at_synapse * weight), at_synapse * events[row]


def register(result_dtype=torch.float32):
    compiled = numba and by_numba(numba.float64 if result_dtype == torch.float64 else numba.float32)
    return spikeforge.custom_op(
        "events::event_sum(Tensor events, Tensor indices, Tensor indptr, Tensor weight, SymInt columns, *, "
        "ScalarType dtype=float) -> (Tensor y, Tensor arrived)",
        shapes=shapes,
        cpu=compiled or by_torch,
        cuda=spikeforge.CudaKernel(CUDA, grid=lambda events, *rest: (32 * events.numel() + 255) // 256),
        zero_results=True,  # the kernels add to them
        vjp=gradients,
        differentiable=["events", "weight"],
        dtypes={"events": torch.float32, "weight": torch.float32, "indices": torch.int32, "indptr": torch.int32},
    )


# --- the program -----------------------------------------------------------------------------------------------------


def milliseconds(function, repetitions, device):
    """Returns the least time of several calls, after a first call that may compile."""
    least = float("inf")
    for repetition in range(repetitions + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        least = min(least, time.perf_counter() - start) if repetition else least
    return 1000 * least


def positive(text):
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", type=positive, default=50000, help="neurons, on both sides (default %(default)s)")
    parser.add_argument("--density", type=float, default=0.01, help="share of pairs that are connected (default %(default)s)")
    parser.add_argument("--repetitions", type=positive, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    size, device = options.size, options.device
    event_sum = register()

    a_row = max(1, round(options.density * size))
    indices = torch.randint(size, (size, a_row), dtype=torch.int32, device=device).sort(dim=1).values.flatten()
    indptr = torch.arange(size + 1, dtype=torch.int32, device=device) * a_row
    weight = torch.rand(indices.numel(), device=device)
    transposed = torch.sparse_csr_tensor(indptr, indices, weight, (size, size)).to_sparse_csc().t()

    kernels = "CUDA source" if device == "cuda" else "numba" if numba else "torch's operators"
    print(f"{size} x {size}, {indices.numel() / 1e6:.3g} million synapses, {device}; event_sum by {kernels}")
    print(f"{'active':>8} {'event_sum':>14} {'torch sparse':>14} {'error':>10} {'arrived':>12}")
    for share in (1.0, 0.1, 0.01):
        events = (torch.rand(size, device=device) < share).float()
        y, arrived = event_sum(events, indices, indptr, weight, size)
        expected = transposed @ events
        error = ((y - expected).abs().max() / expected.abs().max()).item()
        assert error < 1e-4, f"event_sum differs from torch's sparse product by {error:.1e} of its largest element"
        assert arrived.sum() == events.sum() * a_row
        ours = milliseconds(lambda: event_sum(events, indices, indptr, weight, size), options.repetitions, device)
        theirs = milliseconds(lambda: transposed @ events, options.repetitions, device)
        print(f"{share:>8.0%} {ours:>11.3f} ms {theirs:>11.3f} ms {error:>10.1e} {arrived.sum().item():>12}")

    # It can be used like torch's operators: here in a compiled training step of its weights.
    @torch.compile(fullgraph=True, backend="aot_eager")
    def loss(events, weight):
        y, _ = event_sum(events, indices, indptr, weight, size)
        return ((y - 1) ** 2).mean()

    weight.requires_grad_()
    before = loss(events, weight)
    before.backward()
    step = 0.1 * before.detach() / weight.grad.square().sum()
    after = loss(events, (weight - step * weight.grad).detach())
    print(f"a step along the gradient: loss {before.item():.4f} to {after.item():.4f}")
    assert after < before


if __name__ == "__main__":
    main()
