#!/usr/bin/env python3
"""Compares mine::event_sum with torch's sparse product, for spikes through 25 million synapses."""

import argparse
import os
import pathlib
import time
import warnings

import torch

warnings.filterwarnings("ignore", "Sparse")  # torch warns that its sparse tensors are in beta state

HERE = pathlib.Path(__file__).resolve().parent


def random_connections(rows, columns, density, device):
    """Draws the same number of targets for each row, with repetition; returns CSR's indptr and indices."""
    per_row = max(1, round(density * columns))
    indices = torch.randint(columns, (rows * per_row,), dtype=torch.int32, device=device)
    indices = indices.view(rows, per_row).sort(dim=1).values.flatten()
    indptr = torch.arange(rows + 1, device=device, dtype=torch.int32) * per_row
    return indptr, indices


def milliseconds(function, repetitions, device):
    """Returns the least time of several calls, after a first call that may compile."""

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    function()
    least = float("inf")
    for _ in range(repetitions):
        wait()
        start = time.perf_counter()
        function()
        wait()
        least = min(least, time.perf_counter() - start)
    return 1000 * least


def positive(text):
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default=HERE / "build/libmine.so", help="the operators of this project")
    parser.add_argument("--spikeforge", default=os.environ.get("SPIKEFORGE_LIBRARY"), help="libspikeforge.so, if not found")
    parser.add_argument("--size", type=positive, default=50000, help="neurons, on both sides (default %(default)s)")
    parser.add_argument("--density", type=float, default=0.01, help="share of pairs that are connected (default %(default)s)")
    parser.add_argument("--repetitions", type=positive, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()

    if options.spikeforge:
        torch.ops.load_library(str(options.spikeforge))
    torch.ops.load_library(str(options.library))
    torch.manual_seed(0)

    size, device = options.size, options.device
    indptr, indices = random_connections(size, size, options.density, device)
    weight = torch.rand(indices.numel(), device=device)
    matrix = torch.sparse_csr_tensor(indptr, indices, weight, (size, size))
    transposed = matrix.to_sparse_csc().t()  # torch's product is fastest in this layout
    print(f"{size} x {size}, {indices.numel() / 1e6:.3g} million synapses, {device}, {torch.get_num_threads()} threads")
    print(f"{'active':>8} {'event_sum':>14} {'torch sparse':>14} {'error':>10}")
    for share in [1.0, 0.1, 0.01]:
        events = (torch.rand(size, device=device) < share).float()

        def ours():
            return torch.ops.mine.event_sum(events, indices, indptr, weight, size)

        def theirs():
            return transposed @ events

        expected = theirs()
        error = ((ours() - expected).abs().max() / expected.abs().max()).item()
        assert error < 1e-4, f"event_sum differs from torch's sparse product by {error:.1e} of its largest element"
        times = [milliseconds(function, options.repetitions, device) for function in (ours, theirs)]
        print(f"{share:>8.0%} {times[0]:>11.3f} ms {times[1]:>11.3f} ms {error:>10.1e}")


if __name__ == "__main__":
    main()
