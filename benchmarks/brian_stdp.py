#!/usr/bin/env python3
"""The network of `plasticity.py --network` in Brian2's C++ standalone mode; that program runs it with a Python with
Brian2.

    python benchmarks/brian_stdp.py 10000 1000 0.01 --steps 500 --threads 2

Neurons before and after fire at random; traces belong to neurons, so that connections store only their weight
(`--per-synapse`: event-driven traces of each connection, as in Brian2's documentation). Prints JSON: microseconds per
step of the simulation alone.
"""

import argparse
import json
import tempfile

import brian2 as b
import numpy as np

EVENT_DRIVEN = "w : 1\ndx/dt = -x / (20*ms) : 1 (event-driven)\ndy/dt = -y / (20*ms) : 1 (event-driven)"
UP, DOWN = "w = clip(w + 0.01 * {x}, 0, 1)", "w = clip(w - 0.0105 * {y}, 0, 1)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", type=int)
    parser.add_argument("per_row", type=int)
    parser.add_argument("activity", type=float)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--per-synapse", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        b.set_device("cpp_standalone", directory=folder, build_on_run=False)
        b.prefs.devices.cpp_standalone.openmp_threads = options.threads if options.threads > 1 else 0
        b.prefs.codegen.cpp.extra_compile_args_gcc = ["-O3", "-march=native", "-ffast-math", "-std=c++11", "-w"]
        if options.float32:
            b.prefs.core.default_float_dtype = np.float32
        b.defaultclock.dt = 1 * b.ms
        rate, size = options.activity, options.size
        trace = "" if options.per_synapse else "dz/dt = -z / (20*ms) : 1"
        change = {"reset": ""} if options.per_synapse else {"reset": "z += 1"}
        fires = dict(threshold=f"rand() < {rate}", method="exact", **change)
        source = b.NeuronGroup(size, trace or "z : 1", **fires)
        target = b.NeuronGroup(size, f"dv/dt = -v / (10*ms) : 1\n{trace}", **fires)
        if options.per_synapse:
            rule = dict(model=EVENT_DRIVEN, on_pre=f"v_post += w\n{DOWN.format(y='y')}\nx += 1", on_post=f"{UP.format(x='x')}\ny += 1")
        else:
            rule = dict(model="w : 1", on_pre=f"v_post += w\n{DOWN.format(y='z_post')}", on_post=UP.format(x="z_pre"))
        synapses = b.Synapses(source, target, delay=1 * b.ms, **rule)
        rng = np.random.default_rng(0)
        synapses.connect(i=np.repeat(np.arange(size), options.per_row), j=rng.integers(0, size, size * options.per_row))
        synapses.w = "rand()"
        counts = [b.SpikeMonitor(group, record=False) for group in (source, target)]
        b.run(options.steps * b.ms)
        b.device.build(directory=folder, compile=True, run=True, debug=False)
        spikes = [int(each.num_spikes) for each in counts]
        weight = float(np.mean(synapses.w[:]))
        print(json.dumps(dict(microseconds=b.device._last_run_time / options.steps * 1e6, spikes=spikes, mean_weight=weight)))


if __name__ == "__main__":
    main()
