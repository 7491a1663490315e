#!/usr/bin/env python3
"""Measures training on sequences longer than memory by spikeforge.checkpointed: the peak memory of a step, and its
time.

A network of two layers reads inputs that are generated one segment at a time, and sums a loss. Each length runs in a
separate process: "peak" is the memory of a forward and a backward pass beyond that of the process before (resident
memory on the CPU, memory of torch's allocator on a GPU), "whole" is the same in one call over all steps. "time" is the
least of some rounds: in segments, in the same segments with everything kept, and in one call. Relative to the second,
segments cost at most one more forward pass; the difference between the second and the third is the cost of shorter
calls, such as on a GPU that they do not fill.

    python benchmarks/long.py --json benchmarks/results/long_cpu.json
    python benchmarks/long.py --device cuda --batch 256 --neurons 1024 --json benchmarks/results/long_h100.json
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys

import this_clone  # noqa: F401
import torch
from measure import Clock, least
from torch import nn

import spikeforge
import spikeforge.nn as snn

INPUTS = 64
# glibc raises its mmap threshold over time, and the heap then fragments between tensors that graphs keep.
OF_GLIBC = {"MALLOC_MMAP_THRESHOLD_": "65536"}


class Sequence:
    """A sequence of `steps` steps, whose segments are generated when they are read."""

    def __init__(self, options, steps):
        self.segments, self.options = max(1, steps // options.segment), options
        self.steps = steps // self.segments

    def __call__(self, number):
        torch.manual_seed(number)
        return torch.rand(self.steps, self.options.batch, INPUTS, device=self.options.device)


def network(options):
    torch.manual_seed(0)
    first, last = nn.Linear(INPUTS, options.neurons), nn.Linear(options.neurons, 10)
    parts = snn.TimeDistributed(first), snn.LIF(v_threshold=0.3), snn.TimeDistributed(last), snn.LI(tau=10.0)
    return snn.Sequential(*parts).to(options.device)


def loss_in_segments(net, sequence):
    def loss_of(x, states):
        y, states = net(x, states)
        return y.square().sum(), states

    return spikeforge.checkpointed(loss_of, sequence, segments=sequence.segments, combine="sum")[0]


def loss_of_kept_segments(net, sequence):
    loss, states = 0, None
    for number in range(sequence.segments):
        y, states = net(sequence(number), states)
        loss = loss + y.square().sum()
    return loss


def loss_of_the_whole(net, sequence):
    x = torch.cat([sequence(number) for number in range(sequence.segments)])
    return net(x, None)[0].square().sum()


WAYS = {"segments": loss_in_segments, "kept": loss_of_kept_segments, "whole": loss_of_the_whole}


def step(net, way, sequence):
    net.zero_grad()
    WAYS[way](net, sequence).backward()


def held(options):
    if options.device == "cuda":
        return torch.cuda.memory_allocated()
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak(options):
    if options.device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_peak(options):
    """Returns the peak in bytes; runs in a separate process."""
    net = network(options)
    step(net, options.way, Sequence(options, 10))
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = held(options)
    step(net, options.way, Sequence(options, options.steps))
    return peak(options) - before


def peak_of(options, way, steps):
    own = ["--way", way, "--steps", steps, "--device", options.device, "--batch", options.batch]
    command = [sys.executable, __file__, *own, "--neurons", options.neurons, "--segment", options.segment]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=os.environ | OF_GLIBC)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return int(done.stdout)


def times(options):
    """Returns the seconds of a sequence of ten segments."""
    net, sequence = network(options), Sequence(options, 10 * options.segment)
    calls = {f"step, {way}": lambda way=way: step(net, way, sequence) for way in WAYS}
    calls["forward, kept"] = lambda: loss_of_kept_segments(net, sequence)
    calls["forward, whole"] = lambda: loss_of_the_whole(net, sequence)
    return least(calls, rounds=options.rounds, clock=Clock(options.device))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--neurons", type=int, default=256)
    parser.add_argument("--segment", type=int, default=1000, help="steps in a segment")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(measure_peak(options))
        return
    lengths = (1000, 10_000, 100_000)
    peaks = {steps: peak_of(options, "segments", steps) for steps in lengths}
    peaks_whole = {steps: peak_of(options, "whole", steps) for steps in lengths[:2]}
    print(f"segments of {options.segment} steps, batch {options.batch}, {options.neurons} neurons, {options.device}")
    print(f"{'steps':>8} {'peak, MB':>10} {'of 1000':>8} {'whole, MB':>10}")
    for steps in lengths:
        whole = f"{peaks_whole[steps] / 1e6:10.1f}" if steps in peaks_whole else ""
        print(f"{steps:8d} {peaks[steps] / 1e6:10.1f} {peaks[steps] / peaks[1000]:8.2f} {whole}")
    seconds = times(options)
    more = {way: (seconds["step, segments"] - seconds[f"step, {way}"]) / seconds[f"forward, {way}"] for way in ("kept", "whole")}
    for name, took in seconds.items():
        print(f"{name:16} {took * 1e3:8.1f} ms")
    print(f"segments take {more['kept']:.2f} forward passes more than kept ones, {more['whole']:.2f} more than the whole")
    if options.json:
        given = {name: value for name, value in vars(options).items() if name not in ("json", "way", "steps")}
        results = {"torch": torch.__version__, **given, "peaks": peaks, "peaks_whole": peaks_whole, "seconds": seconds, "forward_passes_more": more}
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
