#!/usr/bin/env python3
"""Compares run(scan=True) with the loop and torch's scan, for few neurons and long sequences of a leaky integrator and
a resonator.

Columns are microseconds, the least of all rounds, in which contestants alternate: on a GPU of replayed CUDA graphs,
without launches from Python, on a CPU by the clock. "bytes" is the time of a copy of the bytes that a pass must move
(inference: x and the output; training: x, the output, their gradients and x once more), measured in the same run on a
copy too large for any cache. "associative_scan" is torch._higher_order_ops.associative_scan under torch.compile, if
this torch has it for the device: only the forward pass of the integrator. "LIF, backward" is the backward pass of a
spiking LIF, which is divided among many blocks as well.

    python benchmarks/scan.py --device cuda --json benchmarks/results/scan_h200.json
    python benchmarks/scan.py --steps 16384 --neurons 64
"""

import argparse
import json
import pathlib
import sys

import this_clone  # noqa: F401
import torch
from contestants import TRACED
from measure import Clock, Copy, by_events
from recurrent import as_graph

ops = torch.ops.spikeforge
TAU = 20.0
LI = "neuron li(x; v) { n = v + (x - v) * 0.05; return n; v' = n }"
RESONATOR = (
    "neuron resonator(x; u, w) { p = 0.936 * u - 0.29 * w + x; q = 0.29 * u + 0.936 * w; return p; u' = p; w' = q }"
)


def by_torch(x):
    """Returns the integrator by torch's scan over pairs (factor, summand)."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def compose(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    factor = torch.full_like(x, 1 - 1 / TAU)
    return associative_scan(compose, (factor, x / TAU), dim=0, combine_mode="pointwise")[1]


def inference(text, x, scan):
    def call():
        with torch.no_grad():
            return ops.run(text, [x], [], [], scan=scan)

    return call


def training(text, x, upstream, scan):
    leaf = x.detach().requires_grad_()

    def call():
        (y,), _ = ops.run(text, [leaf], [], [], scan=scan)
        return torch.autograd.grad(y, leaf, upstream)

    return call


def backward(text, x, upstream):
    """Returns a call of the backward operator alone, on the tensors that a forward pass saved."""
    _, _, checkpoints = ops.run_forward(text, [x], store_states=False, save=True)
    return lambda: ops.run_backward(text, [upstream], [None], [x], [], [], checkpoints, [True], store_states=False)


def contestants(x, upstream, device):
    calls = {}
    for name, text in (("LI", LI), ("resonator", RESONATOR)):
        for scan in (True, False):
            how = "scan" if scan else "loop"
            calls[f"{name}, {how}"] = inference(text, x, scan)
            calls[f"{name}, {how}, training"] = training(text, x, upstream, scan)
    calls["LIF, backward"] = backward(TRACED["traced lif"], x, upstream)
    if x.dtype == torch.float32:
        try:
            compiled = torch.compile(by_torch, fullgraph=True, dynamic=False)
            with torch.no_grad():
                difference = (compiled(x) - ops.run(LI, [x], [], [])[0][0]).abs().max().item()
            if difference > 1e-3:
                raise RuntimeError(f"associative_scan is {difference} off")
            calls["LI, associative_scan"] = lambda: compiled(x)
        except Exception as error:  # noqa: BLE001: torch may raise any error for this device
            print(f"associative_scan is not measured: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    return calls


def measure(options, steps, neurons, seconds, speed):
    torch.manual_seed(0)
    like = dict(device=options.device, dtype=getattr(torch, options.dtype))
    x, upstream = (torch.randn(steps, neurons, **like) for _ in range(2))
    calls = contestants(x, upstream, options.device)
    for name, call in calls.items():
        call()
        if options.device == "cuda":
            calls[name] = as_graph(call)
    repeats = 20 if options.device == "cuda" else 1
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(options.rounds):
        for name, call in calls.items():
            least[name] = min(least[name], 1e6 * seconds([call] * repeats))
    moved = {"inference": 2 * x.nbytes / speed, "training": 5 * x.nbytes / speed, "backward": 3 * x.nbytes / speed}
    return {"T": steps, "N": neurons, "bytes_us": moved, "us": least}


def print_row(row):
    print(f"T = {row['T']}, N = {row['N']}")
    for name, us in row["us"].items():
        kind = "training" if name.endswith("training") else "backward" if name.endswith("backward") else "inference"
        print(f"  {name:26} {us:10.1f} us {us / row['bytes_us'][kind]:8.1f} of the bytes' time")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, nargs="+", default=[1024, 16384])
    parser.add_argument("--neurons", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    seconds = by_events if gpu else Clock(options.device)
    copy = Copy(options.device)
    speed = max(copy.bytes_per_second(seconds) for _ in range(5)) / 1e6  # bytes a microsecond
    device = torch.cuda.get_device_name() if gpu else f"cpu, {torch.get_num_threads()} threads"
    print(f"{device}, {options.dtype}, a copy at {speed / 1e3:.0f} GB/s")
    rows = [measure(options, steps, neurons, seconds, speed) for steps in options.steps for neurons in options.neurons]
    for row in rows:
        print_row(row)
    if options.json:
        named = dict(torch=torch.__version__, device=device, dtype=options.dtype, copy_gb_s=speed / 1e3)
        options.json.write_text(json.dumps({**named, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
