#!/usr/bin/env python3
"""The fly's brain of examples/fly in Brian2, as Shiu et al. published it; for a Python with Brian2.

    python benchmarks/brian_fly.py network.npz --spikes spikes.npz             # runtime mode, NumPy
    python benchmarks/brian_fly.py network.npz --standalone --threads 2        # C++ standalone mode

network.npz contains size, sources, targets and synapses of the connectome; input_steps and input_neurons, the steps and
neurons of input spikes; activated, the neurons without a refractory period; and steps. Prints JSON: the number of
spikes, and the microseconds per step of the simulation alone.
"""

import argparse
import json
import tempfile
import time

import brian2 as b
import numpy as np

PARAMETERS = dict(
    v_0=-52 * b.mV, v_rst=-52 * b.mV, v_th=-45 * b.mV, t_mbr=20 * b.ms, tau=5 * b.ms, w_syn=0.275 * b.mV, f_poi=250,
)  # fmt: skip
EQUATIONS = """
dv/dt = (v_0 - v + g) / t_mbr : volt (unless refractory)
dg/dt = -g / tau : volt (unless refractory)
rfc : second
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--spikes", help="file for the steps and neurons of all spikes")
    options = parser.parse_args()
    given = np.load(options.network)
    folder = tempfile.TemporaryDirectory()
    if options.standalone:
        b.set_device("cpp_standalone", directory=folder.name, build_on_run=False)
        b.prefs.devices.cpp_standalone.openmp_threads = options.threads if options.threads > 1 else 0
        b.prefs.codegen.cpp.extra_compile_args_gcc = ["-O3", "-march=native", "-ffast-math", "-std=c++11", "-w"]
    else:
        b.prefs.codegen.target = "numpy"
    b.defaultclock.dt = 0.1 * b.ms

    neurons = b.NeuronGroup(int(given["size"]), EQUATIONS, method="linear", threshold="v > v_th", reset="v = v_rst; g = 0 * mV", refractory="rfc",
                            namespace=PARAMETERS)
    refractory = np.full(int(given["size"]), 2.2)
    refractory[given["activated"]] = 0
    neurons.v = PARAMETERS["v_0"]
    neurons.rfc = refractory * b.ms
    synapses = b.Synapses(neurons, neurons, "w : volt", on_pre="g += w", delay=1.8 * b.ms)
    synapses.connect(i=given["sources"], j=given["targets"])
    synapses.w = given["synapses"] * PARAMETERS["w_syn"]
    activated, sources = np.unique(given["input_neurons"], return_inverse=True)
    poisson = b.SpikeGeneratorGroup(len(activated), sources, given["input_steps"] * b.defaultclock.dt)
    into = b.Synapses(poisson, neurons, on_pre="v += w_syn * f_poi", namespace=PARAMETERS)
    into.connect(i=np.arange(len(activated)), j=activated)
    monitor = b.SpikeMonitor(neurons)

    begun = time.perf_counter()
    b.run(int(given["steps"]) * b.defaultclock.dt)
    spent = time.perf_counter() - begun
    if options.standalone:
        b.device.build(directory=folder.name, compile=True, run=True, debug=False)
        spent = b.device._last_run_time
    if options.spikes:
        np.savez(options.spikes, steps=np.round(monitor.t / b.defaultclock.dt).astype(np.int64), neurons=np.asarray(monitor.i))
    print(json.dumps(dict(spikes=int(monitor.num_spikes), microseconds=spent / int(given["steps"]) * 1e6)))


if __name__ == "__main__":
    main()
