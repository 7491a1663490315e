#!/usr/bin/env python3
"""A step of connections that learn, beside the plain scatter of the same spikes through the same connections, on the CPU.

    python benchmarks/plasticity.py --threads 2 --json benchmarks/results/plasticity_cpu.json

`scatter` is event_csrmv of what the neurons before sent; `stdp` is a step of the rule, spikes before and after at the same
activity, and `stdp + send` also sums what arrives. Spikes are other ones in each step, and the three take turns: times are
the best of the steps, the ratio is to the scatter. `--brian` runs the same rule in Brian2, where it is installed.
"""

import argparse
import json
import os
import pathlib
import platform
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))

import spikeforge  # noqa: E402
from spikeforge import ops, plasticity  # noqa: E402

RULES = {"pair": plasticity.pair_stdp, "triplet": plasticity.triplet_stdp, "reward": plasticity.reward_stdp}


def measure(connections, per_row, activity, rule, steps):
    size = connections // per_row
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(size, (size, per_row), dtype=torch.int32, generator=generator).sort(1).values.flatten()
    indptr = torch.arange(size + 1) * per_row
    weights = torch.rand(len(indices), generator=generator)
    plastic = spikeforge.Plastic(RULES[rule](), weights, indices, indptr, rows=size, cols=size)
    fire = max(1, round(activity * size))

    def spikes():
        chosen = torch.zeros(size, dtype=torch.bool)
        chosen[torch.randperm(size, generator=generator)[:fire]] = True
        return chosen

    calls = {
        "scatter": lambda pre, post: ops.event_csrmv(plastic._states[0], indices, indptr, pre, rows=size, cols=size, transpose=True),
        "stdp": plastic.step,
        "stdp + send": plastic.send,
    }
    times = {name: [] for name in calls}
    for step in range(steps + 5):
        for name, call in calls.items():
            pre, post = spikes(), spikes()
            begun = time.perf_counter()
            call(pre, post)
            if step >= 5:
                times[name].append(time.perf_counter() - begun)
    return {name: min(each) * 1e6 for name, each in times.items()}


def brian(connections, per_row, activity, steps):
    """Microseconds a step of Brian2's C++ standalone."""
    import brian2 as b

    size = connections // per_row
    b.set_device("cpp_standalone", directory=None)
    b.prefs.devices.cpp_standalone.openmp_threads = torch.get_num_threads()
    source = b.PoissonGroup(size, rates=activity / b.defaultclock.dt)
    target = b.PoissonGroup(size, rates=activity / b.defaultclock.dt)
    synapses = b.Synapses(
        source, target,
        "w : 1\ndx/dt = -x / (20*ms) : 1 (event-driven)\ndy/dt = -y / (20*ms) : 1 (event-driven)",
        on_pre="x += 1\nw = clip(w - 0.0105 * y, 0, 1)", on_post="y += 1\nw = clip(w + 0.01 * x, 0, 1)",
    )  # fmt: skip
    synapses.connect(i=torch.arange(size).repeat_interleave(per_row).numpy(), j=torch.randint(size, (connections,)).numpy())
    b.run(steps * b.defaultclock.dt)
    return b.device._last_run_time / steps * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[10**6, 10**7])
    parser.add_argument("--per-row", type=int, default=1000)
    parser.add_argument("--activity", type=float, nargs="+", default=[0.01])
    parser.add_argument("--rules", nargs="+", default=["pair", "triplet"], choices=RULES)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--brian", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    rows = []
    print(f"{'connections':>11} {'active':>7} {'rule':>8} {'scatter us':>11} {'stdp us':>10} {'ratio':>6} {'+ send us':>10} {'ratio':>6}")
    for connections in options.connections:
        for activity in options.activity:
            for rule in options.rules:
                t = measure(connections, options.per_row, activity, rule, options.steps)
                rows.append(dict(connections=connections, activity=activity, rule=rule, microseconds=t))
                print(
                    f"{connections:>11} {100 * activity:>6g}% {rule:>8} {t['scatter']:>11.1f} {t['stdp']:>10.1f} {t['stdp'] / t['scatter']:>6.2f} "
                    f"{t['stdp + send']:>10.1f} {t['stdp + send'] / t['scatter']:>6.2f}"
                )
            if options.brian:
                own = brian(connections, options.per_row, activity, options.steps)
                rows.append(dict(connections=connections, activity=activity, rule="brian2", microseconds=own))
                print(f"{connections:>11} {100 * activity:>6g}% {'brian2':>8} {'':>11} {own:>10.1f}")
    if options.json:
        about = dict(torch=torch.__version__, threads=torch.get_num_threads(), machine=platform.processor() or platform.machine())
        options.json.write_text(json.dumps(dict(about=about, per_row=options.per_row, results=rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
