#!/usr/bin/env python3
"""Measures the time over T and over N, forward and backward together, of this library, its peers and a copy.

    python benchmarks/scaling.py --device cuda --json benchmarks/results/scaling_h200.json
    python benchmarks/scaling.py --plot benchmarks/results/scaling_h200.json docs/scaling.png

Times are by the clock, with all costs of a call. The floor is a line through 0: the time of a copy of the bytes that
must move; for small sizes, launches and the latency of T consecutive steps are above it.
"""

import argparse
import json
import pathlib
import statistics
from functools import partial

import contestants
import torch
from cases import SINGLE, size, train
from measure import Clock, Copy, Data, in_one_line, run_once, train_step
from neurons import LIBRARY, cache_bytes, choose_jelly_kernels, machine

STEPS = [2**i for i in range(2, 13)]
NEURONS = [2**i for i in range(6, 25)]
FIXED = {"cuda": {"steps": 32, "neurons": 2**16}, "cpu": {"steps": 16, "neurons": 2**14}}
MOST = {"cuda": 2**29, "cpu": 2**24}  # elements
PEERS = ("spikingjelly", "plain_loop")


def sweeps(device):
    fixed, most = FIXED[device], MOST[device]
    yield "T", [train("lif", steps, fixed["neurons"], SINGLE) for steps in STEPS if steps * fixed["neurons"] <= most]
    yield "N", [train("lif", fixed["steps"], neurons, SINGLE) for neurons in NEURONS if neurons * fixed["steps"] <= most]


def seconds(neuron, case, data, clock):
    run_once(neuron, case, data)
    calls = max(3, min(50, 2**24 // (case.steps * case.neurons)))
    steps = [partial(train_step, neuron, x, data.upstream(i)) for i, x in enumerate(data.next_inputs(calls))]
    return statistics.median(clock(steps) for _ in range(5))


def measure(device):
    torch.ops.load_library(str(LIBRARY))
    choose_jelly_kernels("auto")
    clock, copy = Clock(device), Copy(device)
    record = {"machine": machine(device), "sweeps": {}}
    for axis, cases in sweeps(device):
        for case in cases:
            data = Data(case, device, cache_bytes(device) // 4)
            row = {"steps": case.steps, "neurons": case.neurons, "seconds": {},
                   "floor": sum(case.floor_bytes().values()) / copy.bytes_per_second(clock)}
            for name in ("spikeforge", *PEERS):
                try:
                    neuron = getattr(contestants, name)(case, device)
                    if neuron is not None:
                        row["seconds"][name] = seconds(neuron, case, data, clock)
                except Exception as error:  # a peer that fails is missing in the plot
                    print(f"{name}, {case.name}: {in_one_line(error)}")
            record["sweeps"].setdefault(axis, []).append(row)
            times = ", ".join(f"{name} {1e6 * s:.0f} us" for name, s in row["seconds"].items())
            print(f"{case.name}: floor {1e6 * row['floor']:.1f} us, {times}", flush=True)
    return record


def plot(record, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for ax, (axis, rows) in zip(axes, record["sweeps"].items()):
        key, other = ("steps", "neurons") if axis == "T" else ("neurons", "steps")
        at = [row[key] for row in rows]
        for name in ("spikeforge", *PEERS):
            points = [(row[key], 1e3 * row["seconds"][name]) for row in rows if name in row["seconds"]]
            if points:
                ax.plot(*zip(*points), marker="o", markersize=3, label=name.replace("_", " "))
        ax.plot(at, [1e3 * row["floor"] for row in rows], "k--", linewidth=1, label="bytes that must move")
        ax.set(xscale="log", yscale="log", xlabel={"T": "steps T", "N": "neurons N"}[axis],
               title=f"{'N' if axis == 'T' else 'T'} = {size(rows[0][other])}")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("forward + backward, ms")
    axes[0].legend(fontsize=8)
    figure.suptitle(f"LIF, float32, {record['machine']['device']}", fontsize=10)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--plot", nargs=2, type=pathlib.Path, metavar=("JSON", "PNG"), help="only draw a file's results")
    options = parser.parse_args()
    if options.plot:
        plot(json.loads(options.plot[0].read_text()), options.plot[1])
    else:
        result = measure(options.device)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")
