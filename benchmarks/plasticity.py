#!/usr/bin/env python3
"""Compares a step of connections that learn with the scatter of the same spikes through the same connections.

    python benchmarks/plasticity.py --threads 2 --json benchmarks/results/plasticity_cpu.json

`scatter` is event_csrmv of the presynaptic spikes; `stdp` is a step of the rule, with presynaptic and postsynaptic
spikes at the same activity, and `stdp + send` also sums the arriving spikes. Each step has other spikes, and the three
alternate: times are the best of the steps, the ratio is to the scatter.

    python benchmarks/plasticity.py --network --threads 1 --brian PYTHON

This measures a network that learns by pair STDP, and the same in Brian2's C++ standalone mode, run by PYTHON with
Brian2.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))

import spikeforge  # noqa: E402
from spikeforge import ops, plasticity, rules  # noqa: E402

RULES = {"pair": plasticity.pair_stdp, "triplet": plasticity.triplet_stdp, "reward": plasticity.reward_stdp}


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timer(call, size, device):
    """Returns a function that measures the seconds of call(pre, post); on a GPU of a CUDA graph, without Python."""
    if device == "cpu":

        def seconds(pre, post):
            begun = time.perf_counter()
            call(pre, post)
            return time.perf_counter() - begun

        return seconds
    own = [torch.zeros(size, dtype=torch.bool, device=device) for _ in range(2)]
    for _ in range(3):  # compiles, and verifies the matrix
        call(*own)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(*own)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def replay(pre, post):
        own[0].copy_(pre)
        own[1].copy_(post)
        torch.cuda.synchronize()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    return replay


def measure(connections, per_row, activity, rule, steps, device):
    size = connections // per_row
    generator = torch.Generator(device).manual_seed(0)
    indices = torch.randint(size, (size, per_row), dtype=torch.int32, generator=generator, device=device).sort(1).values.flatten()
    indptr = torch.arange(size + 1, device=device) * per_row
    weights = torch.rand(len(indices), generator=generator, device=device)
    plastic = spikeforge.Plastic(RULES[rule](), weights, indices, indptr, rows=size, cols=size)
    fire = max(1, round(activity * size))

    def spikes():
        chosen = torch.zeros(size, dtype=torch.bool, device=device)
        chosen[torch.randperm(size, generator=generator, device=device)[:fire]] = True
        return chosen

    calls = {
        "scatter": lambda pre, post: ops.event_csrmv(plastic._states[0], indices, indptr, pre, rows=size, cols=size, transpose=True),
        "stdp": plastic.step,
        "stdp + send": plastic.send,
    }
    timed = {name: timer(call, size, device) for name, call in calls.items()}
    times = {name: [] for name in calls}
    for step in range(steps + 5):
        for name, seconds in timed.items():
            spent = seconds(spikes(), spikes())
            if step >= 5:
                times[name].append(spent)
    return {name: min(each) * 1e6 for name, each in times.items()}


NEURON = "neuron fires(x; v) { h = 0.9048374180359595 * v + x; s = bernoulli(RATE); return s; v' = h }"


def network(connections, per_row, activity, steps, device, rounds=3):
    """Returns microseconds per step of a network that learns and whose neurons fire at random, and the numbers of
    presynaptic and postsynaptic spikes."""
    size = connections // per_row
    neuron = NEURON.replace("RATE", str(activity))
    made = spikeforge.Network(seed=0, device=device)
    before, after = made.populate("before", size, neuron), made.populate("after", size, neuron)
    number = made.project(
        before, after, rules.fixed_out_degree(per_row), weight=rules.uniform(0, 1), delay=1, plasticity=plasticity.pair_stdp()
    )  # fmt: skip
    spikeforge.simulate(made, 50)
    times, spikes = [], torch.zeros(2)
    for _ in range(rounds):
        begun = time.perf_counter()
        fired = spikeforge.simulate(made, steps).neurons
        synchronize(device)
        times.append(time.perf_counter() - begun)
        spikes += torch.tensor([float((fired < size).sum()), float((fired >= size).sum())])
    return dict(microseconds=min(times) / steps * 1e6, spikes=(spikes / rounds).tolist(), mean_weight=float(made.weights(number).mean()))


def brian(python, connections, per_row, activity, steps):
    """The same in Brian2's C++ standalone, by an interpreter that has it; in float32, and with traces of neurons."""
    arguments = [str(connections // per_row), str(per_row), str(activity), "--steps", str(steps), "--threads", str(torch.get_num_threads())]
    results = {}
    for name, options in (("brian2 float32", ["--float32"]), ("brian2 float64", []), ("brian2 its form", ["--per-synapse"])):
        run = [python, str(ROOT / "benchmarks/brian_stdp.py"), *arguments, *options]
        results[name] = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return results


def networks(options):
    rows = []
    for connections in options.connections:
        for activity in options.activity:
            results = {"spikeforge": network(connections, options.per_row, activity, options.steps, options.device)}
            if options.brian:
                results |= brian(options.brian, connections, options.per_row, activity, options.steps)
                results["spikeforge again"] = network(connections, options.per_row, activity, options.steps, options.device)
            for name, each in results.items():
                rows.append(dict(connections=connections, activity=activity, name=name, **each))
                print(f"{connections:>11} {100 * activity:>6g}% {name:>16} {each['microseconds']:>10.1f} us a step, mean weight {each['mean_weight']:.3f}", flush=True)
    return rows


def tables(options):
    rows = []
    print(f"{'connections':>11} {'active':>7} {'rule':>8} {'scatter us':>11} {'stdp us':>10} {'ratio':>6} {'+ send us':>10} {'ratio':>6}")
    for connections in options.connections:
        for activity in options.activity:
            for rule in options.rules:
                t = measure(connections, options.per_row, activity, rule, options.steps, options.device)
                rows.append(dict(connections=connections, activity=activity, rule=rule, microseconds=t))
                print(
                    f"{connections:>11} {100 * activity:>6g}% {rule:>8} {t['scatter']:>11.1f} {t['stdp']:>10.1f} {t['stdp'] / t['scatter']:>6.2f} "
                    f"{t['stdp + send']:>10.1f} {t['stdp + send'] / t['scatter']:>6.2f}"
                )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[10**6, 10**7])
    parser.add_argument("--per-row", type=int, default=1000)
    parser.add_argument("--activity", type=float, nargs="+", default=[0.01])
    parser.add_argument("--rules", nargs="+", default=["pair", "triplet"], choices=RULES)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--brian", help="with --network: an interpreter that has Brian2")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    rows = networks(options) if options.network else tables(options)
    if options.json:
        about = dict(torch=torch.__version__, device=torch.cuda.get_device_name() if options.device == "cuda" else "cpu", threads=torch.get_num_threads(), machine=platform.processor() or platform.machine())
        options.json.write_text(json.dumps(dict(about=about, per_row=options.per_row, results=rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
