#!/usr/bin/env python3
"""Measures products of a sparse matrix with events; also of torch's CSR, SciPy and brainevent, if they are installed.

    python benchmarks/events.py --device cuda --json benchmarks/results/events_h200.json
    python benchmarks/events.py --device cpu --threads 2
    python benchmarks/events.py --device cuda --tune        # kernel times of several schedules, in under two minutes

Times are the best of several rounds. On the CPU `reading` is the time in which torch reads indices and weights. On a
GPU `kernels` is the sum of a call's kernels, the mean of 20, and `wall` is the time per call of consecutive calls; the
ratio is to the bytes of indices (and weights, and delays), at the speed of a copy measured in the same run. `e A +d`
delivers to a ring of 16 slots, with a delay of one byte for each connection.
"""

import argparse
import json
import os
import pathlib
import platform
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = os.environ.get("SPIKEFORGE_LIBRARY", ROOT / "build/release/lib/libspikeforge.so")
ACTIVITIES = [1.0, 0.1, 0.01, 0.001]
DELAYED, SLOTS = "e A +d", 16


def matrix(size, row, device):
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(size, (size, row), dtype=torch.int32, generator=generator).sort(1).values.flatten()
    return indices.to(device), (torch.arange(size + 1) * row).to(torch.int32).to(device)


def events(size, activity, device):
    """Returns events with exactly this activity, at random places."""
    e = torch.zeros(size, dtype=torch.bool)
    e[torch.randperm(size, generator=torch.Generator().manual_seed(1))[: round(size * activity)]] = True
    return e.to(device)


def wall(call, device, rounds=7, seconds=0.1):
    """Returns milliseconds per call, of consecutive calls."""
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    call()
    sync()
    start = time.perf_counter()
    call()
    sync()
    repeats = max(1, min(200, int(seconds / max(1e-6, time.perf_counter() - start))))
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        sync()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best * 1e3


def kernel_times(call, repeats=20):
    """Returns the milliseconds of each kernel of a call, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    return {e.key: e.self_device_time_total / repeats / 1e3 for e in p.key_averages() if e.self_device_time_total > 0}


def copy_speed(device):
    """Returns bytes per millisecond, read and written."""
    source = torch.empty(1 << 28 if device == "cuda" else 1 << 26, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / wall(lambda: target.copy_(source), device)


def peers(indices, indptr, weights, size, device):
    """Returns name -> call(events, transpose); a call returns None if the peer has no such product."""
    found = {}
    values = weights.expand(len(indices)).contiguous()
    csr = torch.sparse_csr_tensor(indptr, indices, values, (size, size))
    transposed = csr.t().to_sparse_csr() if device == "cpu" else csr.t()

    def torch_csr(e, transpose):
        x = e.float()
        matrix_ = transposed if transpose else csr
        return lambda: matrix_ @ x

    found["torch"] = torch_csr
    if device == "cpu":
        try:
            import scipy.sparse

            s = scipy.sparse.csr_matrix((values.numpy(), indices.numpy(), indptr.numpy()), (size, size))
            found["scipy"] = lambda e, transpose: (lambda x=e.float().numpy(), m=s.T if transpose else s: m @ x)
        except ImportError:
            pass
    try:
        import brainevent
        import jax

        parts = tuple(jax.numpy.asarray(t.cpu().numpy()) for t in (weights, indices, indptr))

        def brain(e, transpose):
            m = brainevent.CSR(parts, shape=(size, size))  # one for each jit, which caches what it traced
            array = jax.numpy.asarray(e.cpu().numpy())
            events_of = getattr(brainevent, "BinaryArray", None) or brainevent.EventArray  # its name until 0.1
            f = jax.jit(lambda a: events_of(a) @ m if transpose else m @ events_of(a))
            return lambda: f(array).block_until_ready()

        found["brainevent"] = brain
    except ImportError:
        pass
    return found


def measure(options, size, row):
    device = options.device
    indices, indptr = matrix(size, row, device)
    speed = copy_speed(device)
    all_weights = {"shared": torch.full((1,), 0.5, device=device), "each": torch.rand(len(indices), device=device)}
    delays = torch.randint(SLOTS, (len(indices),), dtype=torch.uint8, device=device)
    ring, step = torch.zeros(SLOTS, size, device=device), torch.tensor(0, device=device)
    lines = []
    # Peers are measured after this library: their threads spin for a while after a call.
    for name, weights in all_weights.items():
        for order in ("A e", "e A", DELAYED):
            floor = ((4 if name == "shared" else 8) + (order == DELAYED)) * len(indices) / speed
            for activity in ACTIVITIES:
                e = events(size, activity, device)
                call = lambda: torch.ops.spikeforge.event_csrmv(weights, indices, indptr, e, rows=size, cols=size, transpose=order == "e A")
                if order == DELAYED:
                    call = lambda: torch.ops.spikeforge.event_csrmv_delayed_(weights, indices, indptr, e, delays, ring, step, rows=size, cols=size, transpose=True)
                line = dict(order=order, weights=name, activity=activity, wall=wall(call, device))
                if device == "cuda":
                    line["kernels"] = sum(kernel_times(call).values())
                else:
                    line["reading"] = wall(lambda: (indices.min(), weights.min()), device, rounds=3)
                line["ratio"] = line.get("kernels", line["wall"]) / floor
                lines.append(line)
                print(show(line), flush=True)
    for name, weights in () if options.no_peers else all_weights.items():
        for peer, make in peers(indices, indptr, weights, size, device).items():
            for line in (line for line in lines if line["weights"] == name and line["order"] != DELAYED):
                try:
                    line[peer] = wall(make(events(size, line["activity"], device), line["order"] == "e A"), device, rounds=3)
                except Exception as error:  # a peer may raise any error: its column stays empty
                    line[peer] = None
                    print(f"{peer}: {str(error).strip().splitlines()[-1]}")
        print(*(show(line) for line in lines if line["weights"] == name), sep="\n", flush=True)
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return dict(device=name, torch=torch.__version__, threads=torch.get_num_threads(), size=size, row=row, copy_gb_s=speed / 1e6, lines=lines)


def show(line):
    head = f"{line['order']:6}  {line['weights']:6}  {line['activity']:6.1%}"
    times = "  ".join(f"{name} {value:8.4f}" for name, value in line.items() if isinstance(value, float) and name not in ("activity", "ratio"))
    return f"{head}  {times}  ratio {line['ratio']:.2f}"


def tune(size, row):
    """Prints kernel times of schedules (csrc/kernels/event/plan.cpp defines them)."""
    indices, indptr = matrix(size, row, "cuda")
    each = torch.rand(len(indices), device="cuda")
    one = torch.full((1,), 0.5, device="cuda")
    gather = ["", "unroll=1", "unroll=2", "unroll=8", "lanes=16", "lanes=4", "blocks=1", "block=256", "block=256,blocks=4", "lanes=16,block=256"]
    scatter = ["", "private_allowed=0", "private_from=0", "private_from=8", "private_from=64", "chunk=128", "chunk=512", "unroll=2", "unroll=4", "in_place_from=0"]
    for transpose, schedules in ((False, gather), (True, scatter)):
        for name, weights in (("shared", one), ("each", each)):
            print(f"\n{'e A' if transpose else 'A e'}, weights {name}: microseconds of kernels")
            for schedule in schedules:
                os.environ["SPIKEFORGE_EVENT_SCHEDULE"] = schedule
                row_of_times = []
                for activity in ACTIVITIES:
                    e = events(size, activity, "cuda")
                    call = lambda: torch.ops.spikeforge.event_csrmv(weights, indices, indptr, e, rows=size, cols=size, transpose=transpose)
                    times = kernel_times(call, 5)
                    parts = " + ".join(f"{value * 1e3:.1f}" for value in times.values())
                    row_of_times.append(f"{sum(times.values()) * 1e3:7.1f} ({parts})")
                print(f"{schedule:36}" + "  ".join(row_of_times), flush=True)
    del os.environ["SPIKEFORGE_EVENT_SCHEDULE"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, help="on the CPU")
    parser.add_argument("--size", type=int, default=50000)
    parser.add_argument("--row", type=int, default=500, help="connections per row")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.ops.load_library(str(LIBRARY))
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.tune:
        tune(options.size, options.row)
        return
    result = measure(options, options.size, options.row)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
