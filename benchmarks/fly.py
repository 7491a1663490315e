#!/usr/bin/env python3
"""Measures the fly's brain of examples/fly: spikeforge, a loop of PyTorch's operators, and Brian2 if --brian is passed.

    python benchmarks/fly.py --scale 0.05 --threads 1 --brian PYTHON     # PYTHON has Brian2
    python benchmarks/fly.py --device cuda --scale 1 --json benchmarks/results/fly_h200.json
    python benchmarks/fly.py --flywire ~/Drosophila_brain_model

All three receive the same input spikes, 150/s of each of 21 neurons, and record all spikes. It prints microseconds per
step of 0.1 ms, the best of --rounds, and the real-time factor: the time of a simulation divided by the simulated time.
Brian2 (C++ standalone, float64) runs once, and its time is that of the simulation alone. The loop multiplies a sparse
matrix by the spikes in each step, and runs for at most 500 steps. Further lines show spikeforge with drives instead of
given spikes, recorded and not; a closed loop, which passes input and reads the spikes of 100 neurons every 150 steps;
and --copies trials at once.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples/fly")]

import connectome as connectomes  # noqa: E402
import network as fly  # noqa: E402

import spikeforge  # noqa: E402

STEPS_OF_LOOP = 500
STEPS_OF_TICK = 150  # between input and read-out in the closed loop
OUTPUTS = 100  # neurons whose spikes the closed loop reads
warnings.filterwarnings("ignore", message="Sparse")  # sparse CSR tensors are in beta state


def clock(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def best(brain, steps, device, rounds, run):
    times = []
    for _ in range(rounds + 1):  # the first one compiles
        brain.network.load_state_dict(brain.resting)
        begun = clock(device)
        spikes = run()
        times.append((clock(device) - begun) / steps * 1e6)
    return dict(microseconds=min(times[1:]), spikes=spikes)


def ours(connectome, activated, inputs, steps, device, rounds, copies):
    """Returns the figures of each way to run the network, by name."""
    begun = clock(device)
    brain = fly.Fly(connectome, device=device, trials=copies)
    brain.activate(activated)
    network, built = brain.network, clock(device) - begun
    measured = lambda run: best(brain, steps, device, rounds, run)
    given = {(brain.neurons, "poisson"): (*inputs, fly.F_POI * fly.W_SYN)}
    record = lambda **options: len(spikeforge.simulate(network, steps, **options).steps)
    if copies > 1:
        return {f"{copies} copies": dict(measured(lambda: record(inputs=given)), built=built)}
    found = {"spikeforge": dict(measured(lambda: record(inputs=given)), built=built)}
    ticks = steps // STEPS_OF_TICK
    rows = torch.zeros(ticks, STEPS_OF_TICK, len(activated))
    where = torch.full((len(connectome.ids),), -1).index_copy_(0, activated, torch.arange(len(activated)))
    early = inputs[0] < ticks * STEPS_OF_TICK
    rows.view(-1, len(activated)).index_put_((inputs[0][early], where[inputs[1][early]]), torch.tensor(fly.F_POI * fly.W_SYN))
    rows, part = rows.to(device), brain.neurons[activated]
    outputs = connectome.hubs(len(activated) + OUTPUTS)[len(activated) :].to(device)

    def closed_loop():
        count = torch.zeros((), dtype=torch.long, device=device)
        for tick in range(ticks):
            count += network.step(STEPS_OF_TICK, {(part, "poisson"): rows[tick]})[:, outputs].sum()
        return int(count)

    found["closed loop"] = measured(closed_loop)
    network.drive(part, fly.R_POI * fly.DT / 1000, weight=fly.F_POI * fly.W_SYN, into="poisson")
    found["drive"] = measured(record)
    found["unrecorded"] = measured(lambda: record(spikes=False))
    return found


def loop(connectome, activated, inputs, steps, device, rounds):
    """The same equations with a dense state, a sparse product for each step, and a ring of pending input."""
    size, delay = len(connectome.ids), round(fly.T_DLY / fly.DT)
    weights = torch.sparse_coo_tensor(torch.stack([connectome.targets, connectome.sources]), fly.W_SYN * connectome.synapses, (size, size))
    weights = weights.coalesce().to_sparse_csr().to(device)
    waiting = torch.full((size,), round(fly.T_RFC / fly.DT) - 1.0)
    waiting[activated] = 0
    waiting, steps = waiting.to(device), min(steps, STEPS_OF_LOOP)
    early = inputs[0] < steps
    poisson = torch.zeros(steps, size).index_put_((inputs[0][early], inputs[1][early]), torch.tensor(fly.F_POI * fly.W_SYN)).to(device)
    times = []
    for _ in range(rounds + 1):
        v, g, wait = torch.full((size,), fly.V_0, device=device), torch.zeros(size, device=device), torch.zeros(size, device=device)
        pending, fired = torch.zeros(delay + 1, size, device=device), torch.zeros(steps, size, dtype=torch.bool, device=device)
        begun = clock(device)
        for t in range(steps):
            h = fly.V_0 + fly.B * (v - fly.V_0) + fly.C * g
            s, is_refractory = h > fly.V_TH, wait > 0
            v = torch.where(s | is_refractory, fly.V_RST, h + poisson[t])
            g = torch.where(s | is_refractory, 0, fly.A * g + pending[t % (delay + 1)])
            wait = torch.where(s, waiting, (wait - 1).clamp(min=0))
            pending[(t + delay) % (delay + 1)] = weights @ s.to(v.dtype)
            fired[t] = s
        times.append((clock(device) - begun) / steps * 1e6)
    return dict(microseconds=min(times[1:]), spikes=int(fired.sum()), steps=steps)


def brian(python, connectome, activated, inputs, steps, threads):
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        given = os.path.join(folder, "network.npz")
        np.savez(given, size=len(connectome.ids), sources=connectome.sources, targets=connectome.targets, synapses=connectome.synapses,
                 input_steps=inputs[0], input_neurons=inputs[1], activated=activated, steps=steps)
        command = [python, str(ROOT / "benchmarks/brian_fly.py"), given, "--standalone", "--threads", str(threads)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    connectomes.add_options(parser)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--milliseconds", type=float, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=32, help="trials at once; 0: none")
    parser.add_argument("--no-peers", action="store_true", help="without the loop")
    parser.add_argument("--brian", metavar="PYTHON", help="a Python that has Brian2")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    connectome = connectomes.chosen(options)
    activated = connectome.neurons(connectomes.SUGAR) if options.flywire else connectome.hubs(21)
    rates, steps = torch.zeros(len(connectome.ids)), round(options.milliseconds / fly.DT)
    rates[activated] = fly.R_POI
    inputs = fly.draw(rates, steps, torch.Generator().manual_seed(0))
    case = connectome, activated, inputs, steps
    print(f"{connectome.name}: {len(connectome.ids)} neurons, {len(connectome.sources)} connections")
    lines = []

    def show(name, found):
        found["real_time_factor"] = found["microseconds"] / fly.DT / 1000
        lines.append(dict(name=name, **found))
        print(f"{name:12}{found['microseconds']:10.1f} us a step, real-time factor {found['real_time_factor']:8.4f}; "
              f"{found['spikes']} spikes in {found.get('steps', steps)} steps", flush=True)

    for copies in (1, options.copies):
        for name, found in (ours(*case, options.device, options.rounds, copies) if copies else {}).items():
            show(name, found)
    if not options.no_peers:
        show("torch loop", loop(*case, options.device, options.rounds))
    if options.brian:
        show("Brian2", brian(options.brian, *case, options.threads))
    if options.json:
        device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        figures = dict(connectome=connectome.name, neurons=len(connectome.ids), connections=len(connectome.sources), device=device,
                       threads=options.threads, torch=torch.__version__, lines=lines)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
