#!/usr/bin/env python3
"""Compares the network of examples/coba with the same one in brainevent, if that is installed.

    python benchmarks/coba.py --threads 2                  # 4,000 neurons on the CPU
    python benchmarks/coba.py --device cuda --scale 1 10 100 --no-peers

Prints microseconds per step of 0.1 ms, the best of several runs of 100 ms each, and the mean rate over all of them.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples/coba")]
STEPS, ROUNDS = 1000, 5


def best(run, neurons):
    """Returns (microseconds per step, Hz) of run(), which runs STEPS steps and returns the number of spikes."""
    run()
    times, spikes = [], 0
    for _ in range(ROUNDS):
        start = time.perf_counter()
        spikes += run()
        times.append(time.perf_counter() - start)
    return min(times) / STEPS * 1e6, spikes / neurons / (ROUNDS * STEPS * 1e-4)


def ours(coba, connectivity, voltage, device):
    import spikeforge

    network, _ = coba.build(connectivity, voltage, device=device)
    return best(lambda: len(spikeforge.simulate(network, STEPS).steps), connectivity.neurons)


def brainevent_(coba, connectivity, voltage):
    import brainevent
    import jax
    from jax import numpy as jnp

    n, excitatory = connectivity.neurons, len(connectivity.excitatory)
    to = [brainevent.FixedNumPerPre((jnp.float32(w), jnp.asarray(i.numpy())), shape=(len(i), n))
          for w, i in ((coba.WEIGHT_E, connectivity.excitatory), (coba.WEIGHT_I, connectivity.inhibitory))]

    def step(state, _):
        v, g_e, g_i, wait, fired = state
        x_e = brainevent.BinaryArray(fired[:excitatory]) @ to[0]
        x_i = brainevent.BinaryArray(fired[excitatory:]) @ to[1]
        h = v + coba.DT / 20 * (-60 - v - g_e * v + g_i * (-80 - v) + 20)
        spikes = (wait <= 0) & (h >= -50)
        v = jnp.where(wait > 0, v, jnp.where(spikes, -60, h))
        g_e, g_i = g_e * jnp.exp(-coba.DT / 5) + x_e, g_i * jnp.exp(-coba.DT / 10) + x_i
        wait = jnp.where(spikes, round(coba.REFRACTORY / coba.DT), jnp.maximum(wait - 1, 0))
        return (v, g_e, g_i, wait, spikes), spikes.sum()

    many = jax.jit(lambda state: jax.lax.scan(step, state, length=STEPS))
    zeros = jnp.zeros(n, jnp.float32)
    state = [(jnp.asarray(voltage.float().numpy()), zeros, zeros, jnp.zeros(n, jnp.int32), jnp.zeros(n, bool))]

    def run():
        state[0], counts = many(state[0])
        return int(counts.sum())

    return best(run, n)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--scale", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, help="on the CPU")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    import network as coba

    lines = []
    for scale in options.scale:
        connectivity = coba.random_connectivity(scale)
        voltage = coba.random_voltage(connectivity.neurons)
        results = {"spikeforge": ours(coba, connectivity, voltage, options.device)}
        if not options.no_peers:
            try:
                results["brainevent"] = brainevent_(coba, connectivity, voltage)
            except ImportError:
                print("brainevent is not installed")
        for name, (microseconds, rate) in results.items():
            print(f"{connectivity.neurons:7} neurons  {name:12} {microseconds:8.1f} us a step  {rate:6.1f} Hz", flush=True)
            lines.append(dict(neurons=connectivity.neurons, name=name, microseconds=microseconds, rate=rate))
    if options.json:
        name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        facts = dict(device=name, torch=torch.__version__, threads=torch.get_num_threads(), lines=lines)
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
