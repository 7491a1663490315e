#!/usr/bin/env python3
"""Measures the cortical microcircuit of examples/microcircuit, and the same one in NEST if --nest-python is passed.

    python benchmarks/microcircuit.py --threads 1 2 --scale 0.1
    python benchmarks/microcircuit.py --threads 1 2 --scale 0.1 --nest-python ~/nest/bin/python
    python benchmarks/microcircuit.py --threads 2 --scale 1 --pieces 245 --nest-python ~/nest/bin/python --nest-spikes build/nest.npz
    python benchmarks/microcircuit.py --device cuda --scale 0.1 1 3 10 --json benchmarks/results/microcircuit_h200.json
    python benchmarks/microcircuit.py --device cuda --league --json benchmarks/results/microcircuit_league_h200.json

On a GPU it prints the time to draw the network, the time of a step with and without recording of all spikes, the best
of five seconds each, and the real-time factor, for Poisson and constant drive. A scale above 1 has more neurons, each
with the number of synapses at scale 1.

--league follows the protocol of INM-6/microcircuit-PD14-model at full scale: initial potentials of each population, 500
ms discarded, 10 s without recording, ten seeds; and 10 s with recording beside it, for rates, irregularity and
correlations. It prints the real-time factor and the energy per synaptic event. The energy is that of the whole card,
idle power included, by NVML's counter (the package nvidia-ml-py); the host's processor, memory and power supply are not
metered. Synaptic events are the recorded spikes times the number of connections of the neuron that fired; Poisson input
is not counted.

On the CPU it prints microseconds per step of 0.1 ms with recording of all spikes: the best and the median of pieces of
10 ms, after 50 ms; and the mean rate of all neurons. NEST draws its own connections and Poisson input, with the same
laws and rates. Its spikes may be saved for examples/microcircuit/ensemble.py.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
WARM_UP, PIECE = 50.0, 10.0  # ms


def figures(run, spikes, neurons, step, pieces):
    """Measures run(milliseconds); spikes() returns the number of spikes since the last call."""
    run(WARM_UP)
    spikes()
    times = []
    for _ in range(pieces):
        start = time.perf_counter()
        run(PIECE)
        times.append((time.perf_counter() - start) * step / PIECE * 1e6)
    return dict(best=min(times), median=statistics.median(times), rate=spikes() / neurons / (pieces * PIECE / 1000))


def circuit(scale):
    """Returns the parameters of the example, for a program without torch."""
    import network as m

    return dict(
        step=m.DT, leak=m.LEAK, threshold=m.THRESHOLD, capacity=m.CAPACITY, tau_m=m.TAU_M, tau_syn=m.TAU_SYN, refractory=m.REFRACTORY,
        weight_deviation=m.WEIGHT_DEVIATION, delay_deviation=m.DELAY_DEVIATION, external_weight=m.WEIGHT / math.sqrt(scale),
        populations=[dict(
            size=round(scale * m.NEURONS[t]), current=m.missing_current(t, scale, True), mean=m.INITIAL_MEAN[t], deviation=m.INITIAL_DEVIATION[t],
            external_rate=m.EXTERNAL_DEGREES[t] * scale * m.EXTERNAL_RATE,
            sources=[dict(
                connections=round(m.connections(t, s) * scale * scale), weight=m.mean_weight(t, s) / math.sqrt(scale),
                delay=m.DELAY_E if m.is_excitatory(s) else m.DELAY_I,
            ) for s in range(8)],
        ) for t in range(8)],
    )


def ours(scale, threads, pieces):
    import network as m
    import torch

    import spikeforge

    torch.set_num_threads(threads)
    net, _ = m.build(scale)
    net.build()
    count = [0]

    def run(milliseconds):
        count[0] += len(spikeforge.simulate(net, round(milliseconds / m.DT)).steps)

    def spikes():
        counted, count[0] = count[0], 0
        return counted

    return figures(run, spikes, net.size, m.DT, pieces)


def on_gpu(scale, drive, rounds=5):
    import network as m
    import torch

    import spikeforge

    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    net, _ = m.build(scale, min(scale, 1.0), drive, device="cuda")
    matrix = net.build()
    torch.cuda.synchronize()
    drawn = time.perf_counter() - start
    connections = len(matrix.indices)
    del matrix
    steps = round(1000 / m.DT)

    def best(**options):
        times, spikes = [], 0
        for _ in range(rounds):
            begun = time.perf_counter()
            spikes += len(spikeforge.simulate(net, steps, **options).steps)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begun) / steps * 1e6)
        return min(times), spikes / (rounds * steps)

    spikeforge.simulate(net, round(WARM_UP / m.DT))
    microseconds, spikes = best()
    return dict(neurons=net.size, connections=connections, drawn=drawn, microseconds=microseconds, unrecorded=best(spikes=False)[0], spikes=spikes,
                real_time_factor=microseconds / m.DT / 1000, gibibytes=torch.cuda.max_memory_allocated() / 2**30)


def league(drive, seeds, seconds):
    """Returns the real-time factor and energy of each seed, and means over seeds of the populations' activity."""
    import activity
    import network as m
    import torch

    import spikeforge
    from spikeforge.energy import Nvml

    card = Nvml()
    runs, activities = [], []
    steps, discarded = round(seconds * 1000 / m.DT), round(500 / m.DT)
    for seed in range(seeds):
        net, populations = m.build(1.0, drive=drive, seed=seed, device="cuda")
        degrees = net.build().indptr.diff()
        spikeforge.simulate(net, discarded, spikes=False)
        torch.cuda.synchronize()
        before, begun = card.joules(), time.perf_counter()
        spikeforge.simulate(net, steps, spikes=False)
        torch.cuda.synchronize()
        wall, energy = time.perf_counter() - begun, card.joules() - before
        first = discarded + steps
        recording = spikeforge.simulate(net, steps)
        events = int(degrees[recording.neurons].sum())
        runs.append(dict(seed=seed, real_time_factor=wall / seconds, joules=energy, events=events, microjoules_per_event=energy / events * 1e6, watts=energy / wall))
        print(f"{drive:7} seed {seed}: real-time factor {wall / seconds:.4f}, {energy / wall:.0f} W, {energy / events * 1e6:.4f} uJ per synaptic event", flush=True)
        found = []
        for population in populations:
            when, who = (t.cpu() for t in recording.of(population))
            measured = activity.of_population(when, who, len(population), first, first + steps, m.DT)
            found.append({kind: float(numbers.double().mean()) for kind, numbers in measured.items()})
        activities.append(found)
        del net, populations, recording, degrees
        torch.cuda.empty_cache()
    means = [dict(population=name, **{kind: statistics.mean(found[k][kind] for found in activities) for kind in activities[0][k]}) for k, name in enumerate(m.NAMES)]
    return dict(drive=drive, seconds=seconds, runs=runs, activity=means, **{
        key: statistics.mean(run[key] for run in runs) for key in ("real_time_factor", "microjoules_per_event", "watts")})


def nest_(of, threads, pieces, keep):
    import nest
    import numpy as np

    nest.set_verbosity("M_ERROR")
    nest.SetKernelStatus(dict(resolution=of["step"], local_num_threads=threads, rng_seed=1))
    populations = []
    for p in of["populations"]:
        made = nest.Create("iaf_psc_exp", p["size"], params=dict(
            E_L=of["leak"], V_reset=of["leak"], V_th=of["threshold"], C_m=of["capacity"], tau_m=of["tau_m"], tau_syn_ex=of["tau_syn"],
            tau_syn_in=of["tau_syn"], t_ref=of["refractory"], I_e=p["current"]))
        made.V_m = nest.random.normal(p["mean"], p["deviation"])
        populations.append(made)
    recorder = nest.Create("spike_recorder")
    for model in ("excitatory", "inhibitory"):  # a thread has at most 2^27 connections of one model
        nest.CopyModel("static_synapse", model)
    for targets, p in zip(populations, of["populations"]):
        for sources, c in zip(populations, p["sources"]):
            if c["connections"] == 0:
                continue
            signs = dict(min=0.0) if c["weight"] > 0 else dict(max=0.0)
            weight = nest.math.redraw(nest.random.normal(c["weight"], of["weight_deviation"] * abs(c["weight"])), **{"min": -1e9, "max": 1e9, **signs})
            delay = nest.math.redraw(nest.random.normal(c["delay"], of["delay_deviation"] * c["delay"]), min=of["step"] / 2, max=1e9)
            nest.Connect(sources, targets, dict(rule="fixed_total_number", N=c["connections"]),
                         dict(synapse_model="excitatory" if c["weight"] > 0 else "inhibitory", weight=weight, delay=delay))
        drive = nest.Create("poisson_generator", params=dict(rate=p["external_rate"]))
        nest.Connect(drive, targets, syn_spec=dict(weight=of["external_weight"], delay=1.5))
        nest.Connect(targets, recorder)
    seen = [0]

    def spikes():
        before, seen[0] = seen[0], recorder.n_events
        return seen[0] - before

    found = figures(nest.Simulate, spikes, sum(p["size"] for p in of["populations"]), of["step"], pieces)
    if keep:
        steps, neurons = np.round(recorder.events["times"] / of["step"]).astype(np.int64), recorder.events["senders"] - 1
        order = np.lexsort((neurons, steps))
        np.savez_compressed(keep, steps=steps[order], neurons=neurons[order], last=round((WARM_UP + pieces * PIECE) / of["step"]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--scale", type=float, nargs="+", default=[0.1])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pieces", type=int, default=50)
    parser.add_argument("--drive", nargs="+", default=["poisson", "dc"], choices=["poisson", "dc"], help="on a GPU (default: both)")
    parser.add_argument("--league", action="store_true", help="the protocol of published comparisons, on a GPU")
    parser.add_argument("--seeds", type=int, default=10, help="of --league (default: 10)")
    parser.add_argument("--seconds", type=float, default=10, help="of --league, simulated (default: 10)")
    parser.add_argument("--nest-python", help="a Python that has NEST")
    parser.add_argument("--nest-spikes", help="the file for NEST's spikes, with the last number of threads")
    parser.add_argument("--nest", action="store_true", help=argparse.SUPPRESS)  # for the Python of --nest-python
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.nest:
        print("\n" + json.dumps(nest_(json.load(sys.stdin), options.threads[0], options.pieces, options.nest_spikes)))
        return

    os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
    sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples/microcircuit")]
    lines = []
    if options.device == "cuda":
        import torch

        for drive in options.drive if options.league else ():
            found = league(drive, options.seeds, options.seconds)
            lines.append(found)
            print(f"{drive}: real-time factor {found['real_time_factor']:.4f}, {found['microjoules_per_event']:.4f} uJ per synaptic event, {found['watts']:.0f} W")
            for row in found["activity"]:
                print(f"  {row['population']:6}{row['rates']:8.3f} /s, CV {row['irregularity']:.3f}, correlation {row['correlations']:.4f}", flush=True)
        for scale in () if options.league else options.scale:
            for drive in options.drive:
                found = on_gpu(scale, drive)
                torch.cuda.empty_cache()
                lines.append(dict(scale=scale, drive=drive, **found))
                print(f"scale {scale:4g}, {drive:7}: {found['connections'] / 1e6:7.1f} M connections drawn in {found['drawn']:.2f} s, {found['gibibytes']:.2f} GiB; "
                      f"{found['spikes']:.1f} spikes a step, {found['microseconds']:.2f} us ({found['unrecorded']:.2f} unrecorded): real-time factor {found['real_time_factor']:.3f}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(dict(device=torch.cuda.get_device_name(), torch=torch.__version__, lines=lines), indent=1) + "\n")
        return

    def show(name, threads, found):
        print(f"{name:11} {threads:3} threads {found['best']:9.1f} us a step (median {found['median']:.1f}), {found['rate']:.2f} spikes/s a neuron", flush=True)
        lines.append(dict(name=name, threads=threads, **found))

    (scale,) = options.scale
    for threads in options.threads:
        show("spikeforge", threads, ours(scale, threads, options.pieces))
        if options.nest_python:
            command = [options.nest_python, __file__, "--nest", "--threads", str(threads), "--pieces", str(options.pieces)]
            command += ["--nest-spikes", options.nest_spikes] if options.nest_spikes else []
            numbers = json.dumps(circuit(scale))
            printed = subprocess.run(command, input=numbers, check=True, capture_output=True, text=True).stdout
            show("NEST", threads, json.loads(printed.splitlines()[-1]))
    if options.json:
        options.json.write_text(json.dumps(dict(scale=scale, lines=lines), indent=1) + "\n")


if __name__ == "__main__":
    main()
