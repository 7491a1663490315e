#!/usr/bin/env python3
"""Measures learning while a sequence runs: the time of a step relative to inference, and the memory over the steps.

A Linear [700 x 128] and LIF neurons run 32 samples, one step at a time. "inference" is the network without gradients;
"eprop" and "ottt" are a step of spikeforge.Online with its backward pass; "bytes" is a pass that only reads e-prop's
traces twice and writes them once, the minimum of any e-prop of these sizes (docs/online.md). Milliseconds are the
least of all rounds, in which contestants alternate. Peak memory is measured in a separate process for each number of
steps: resident memory on the CPU, torch's allocations on a GPU.

    python benchmarks/online.py                                 # CPU: T = 100 and 10^4
    python benchmarks/online.py --device cuda --steps 100 100000 --json FILE
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

import this_clone  # noqa: F401
import torch
from measure import Clock, least
from torch import nn

import spikeforge
import spikeforge.nn as snn

RULES = ("eprop", "ottt")


def network(options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(options.inputs, options.outputs), snn.LIF(v_reset=None)).to(options.device)


def spikes(options):
    return (torch.rand(16, 1, options.batch, options.inputs, device=options.device) < options.rate).float()


def learning_step(online, parameters, x, upstream):
    y = online(x)
    for p in parameters:
        p.grad = None
    y.backward(upstream)


def steps_of(options):
    xs = spikes(options)
    turn = iter(lambda: xs[torch.randint(len(xs), ()).item()], None)
    upstream = torch.randn(1, options.batch, options.outputs, device=options.device)
    plain = snn.Sequential(network(options)[0], snn.LIF(v_reset=None, stateful=True))
    plain_step = torch.no_grad()(lambda: plain(next(turn)))
    calls = {"inference": plain_step}
    for rule in RULES:
        online = spikeforge.Online(network(options), rule=rule)
        parameters = list(online.parameters())
        calls[rule] = lambda online=online, parameters=parameters: learning_step(online, parameters, next(turn), upstream)
    traces = torch.rand(options.batch, options.outputs, options.inputs, device=options.device)
    other = torch.empty_like(traces)

    def read_twice_write_once():
        torch.mul(traces, 0.5, out=other)
        traces.sum()

    calls["bytes"] = read_twice_write_once
    return calls


def measure_time(options):
    best = least(steps_of(options), options.rounds, Clock(options.device, of_own_time=True), warm_up=5)
    return {name: value * 1e3 for name, value in best.items()}


def peak_of(options, rule, steps):
    """Returns the peak memory of this process in bytes."""
    xs = spikes(options)
    upstream = torch.randn(1, options.batch, options.outputs, device=options.device)
    online = spikeforge.Online(network(options), rule=rule)
    parameters = list(online.parameters())
    for t in range(steps):
        learning_step(online, parameters, xs[t % len(xs)], upstream)
    if options.device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    # getrusage would include the parent from which this process was forked.
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def measure_memory(options):
    """Measures each rule and number of steps."""
    found = {}
    for rule in RULES:
        for steps in options.steps:
            command = [sys.executable, __file__, *sys.argv[1:], "--peak-of", rule, str(steps)]
            found.setdefault(rule, {})[steps] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--inputs", type=int, default=700)
    parser.add_argument("--outputs", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 10000])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--peak-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.peak_of:
        print(peak_of(options, options.peak_of[0], int(options.peak_of[1])))
        return
    ms = measure_time(options)
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{options.inputs} x {options.outputs}, {options.batch} samples, {device}")
    for name, value in ms.items():
        print(f"{name:>10} {value:>9.3f} ms {value / ms['inference']:>8.1f} x inference")
    memory = measure_memory(options)
    for rule, peaks in memory.items():
        first = next(iter(peaks.values()))
        print(f"{rule:>10} " + "   ".join(f"T = {steps}: {peak / 2**20:.1f} MiB ({peak / first - 1:+.2%})" for steps, peak in peaks.items()))
    if options.json:
        sizes = {k: getattr(options, k) for k in ("inputs", "outputs", "batch", "rate")}
        options.json.write_text(json.dumps({"torch": torch.__version__, "device": device, **sizes, "ms": ms, "peak": memory}, indent=1) + "\n")


if __name__ == "__main__":
    main()
