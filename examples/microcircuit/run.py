#!/usr/bin/env python3
"""Simulates the cortical microcircuit and plots the activity of its populations:

    python examples/microcircuit/run.py                                   # a tenth of it, one second, on the CPU
    python examples/microcircuit/run.py --scale 1 --milliseconds 10000 --device cuda

and over several processes, each of which has a share of the neurons, or some of several areas:

    torchrun --standalone --nproc_per_node 2 examples/microcircuit/run.py --ranks --scale 0.05
    torchrun --standalone --nproc_per_node 2 examples/microcircuit/run.py --ranks --areas 2 --scale 1 --device cuda
"""

import argparse
import itertools
import json
import os
import pathlib
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
sys.path.insert(0, str(ROOT / "python"))

import activity  # noqa: E402
import network as microcircuit  # noqa: E402

import spikeforge  # noqa: E402

EXCITATORY, INHIBITORY = "#2b6ca3", "#b5472f"
SHOWN = 400.0  # ms of the raster


def measure(recording, populations, first, last):
    """Returns for each population its name, size and the statistics of activity.py."""
    described = []
    for population in populations:
        steps, neurons = recording.of(population)
        later = steps >= first
        steps, neurons = steps[later].cpu(), neurons[later].cpu()
        numbers = activity.of_population(steps, neurons, len(population), first, last, microcircuit.DT)
        described.append({"name": population.name, "neurons": len(population), **numbers})
    return described


def share(device):
    """Returns the group of processes that torchrun started, and the device of this process."""
    if device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    return torch.distributed.group.WORLD, device


def table(described):
    mean = lambda x: f"{x.mean():.3f}" if len(x) else "-"
    print(f"{'':6}{'neurons':>9}{'rate (1/s)':>12}{'published':>11}{'CV':>8}{'correlation':>13}")
    for row, published in zip(described, itertools.cycle(microcircuit.RATES)):
        print(f"{row['name']:6}{row['neurons']:9}{mean(row['rates']):>12}{published:11.3f}{mean(row['irregularity']):>8}{mean(row['correlations']):>13}")


def plot(path, recording, populations, described, last):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = [EXCITATORY if row["name"].endswith("E") else INHIBITORY for row in described]
    figure = pyplot.figure(figsize=(12, 8))
    grid = figure.add_gridspec(3, 2, width_ratios=[3, 2])
    raster = figure.add_subplot(grid[:, 0])
    first = max(0, last - round(SHOWN / microcircuit.DT))
    share = max(1, sum(row["neurons"] for row in described) // 8000)
    height = 0
    ticks = []
    for population, colour in zip(populations, colours):
        steps, neurons = (t.cpu() for t in recording.of(population))
        here = (steps >= first) & (neurons % share == 0)
        raster.plot(steps[here] * microcircuit.DT, -(height + neurons[here] // share), ".", markersize=1, color=colour, rasterized=True)
        ticks.append(-(height + len(population) // share / 2))
        height += len(population) // share
    raster.set_yticks(ticks, [row["name"] for row in described])
    raster.set_xlabel("time (ms)")
    raster.set_xlim(first * microcircuit.DT, last * microcircuit.DT)

    places = range(len(described))
    rates = figure.add_subplot(grid[0, 1])
    rates.bar(places, [row["rates"].mean() for row in described], color=colours, label="here")
    rates.plot(places, list(itertools.islice(itertools.cycle(microcircuit.RATES), len(described))), "_", markersize=18, color="black", label="published, whole network")
    rates.set_ylabel("rate (1/s)")
    rates.legend(frameon=False)
    for row, (key, label) in enumerate((("irregularity", "CV of intervals"), ("correlations", "correlation")), 1):
        axes = figure.add_subplot(grid[row, 1])
        numbers = [r[key].numpy() if len(r[key]) else [float("nan")] for r in described]
        drawn = axes.boxplot(numbers, positions=places, widths=0.6, showfliers=False, patch_artist=True, medianprops={"color": "black"})
        for box, colour in zip(drawn["boxes"], colours):
            box.set_facecolor(colour)
        axes.set_ylabel(label)
    for axes in figure.axes[1:]:
        axes.set_xticks(places, [row["name"] for row in described])
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def positive_number(text):
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=positive_number, default=0.1, help="share of the neurons, and of each one's synapses (default: 0.1)")
    parser.add_argument("--in-degrees", type=positive_number, help="share of each one's synapses (default: the scale)")
    parser.add_argument("--milliseconds", type=positive_number, default=1000, help="measured biological time (default: 1000)")
    parser.add_argument("--warm-up", type=float, default=500, help="milliseconds before that (default: 500)")
    parser.add_argument("--drive", choices=["poisson", "dc"], default="poisson")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--half", action="store_true", help="keep weights in float16")
    parser.add_argument("--areas", type=int, default=1, help="number of microcircuits, coupled by delays of 10 ms and more (default: 1)")
    parser.add_argument("--ranks", action="store_true", help="share the network among the processes that torchrun started")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=pathlib.Path, default=ROOT / "build/microcircuit.png", help="file for the picture")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures, for programs")
    options = parser.parse_args()
    group, device = share(options.device) if options.ranks else (None, options.device)
    rank = group.rank() if group else 0
    log = print if rank == 0 else lambda *_: None

    begun = time.perf_counter()
    weight_dtype = torch.float16 if options.half else None
    network, populations = microcircuit.build(
        options.scale, options.in_degrees, options.drive, options.seed, weight_dtype=weight_dtype, device=device, areas=options.areas, group=group
    )
    own = network.share()
    built = time.perf_counter() - begun
    synapses = own.connections
    if group:
        of_all = torch.tensor(synapses, device=device)
        torch.distributed.all_reduce(of_all)
        synapses = of_all.item()
    log(f"{network.size} neurons and {synapses} synapses; {own.neurons} and {own.connections} of them on rank 0: drawn in {built:.1f} s")

    first = round(options.warm_up / microcircuit.DT)
    steps = round(options.milliseconds / microcircuit.DT)
    spikeforge.simulate(network, first, spikes=False)
    if options.device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    recording = spikeforge.simulate(network, steps, progress=rank == 0)
    if options.device == "cuda":
        torch.cuda.synchronize()
    spent = time.perf_counter() - begun
    log(f"{options.milliseconds:g} ms of biological time in {spent:.2f} s: real-time factor {spent / options.milliseconds * 1000:.3f}, {spent / steps * 1e6:.1f} us a step")

    if group:
        exchange = network.share()
        log(f"spikes were exchanged once in {exchange.block} steps: {exchange.exchanges} times, {exchange.bytes} bytes, {exchange.seconds:.2f} s")
        recording = network.gather(recording)
        torch.distributed.destroy_process_group()
    if rank != 0:
        return
    described = measure(recording, populations, first, first + steps)
    table(described)
    plot(options.plot, recording, populations, described, first + steps)
    print(f"picture: {options.plot}")
    if options.json:
        figures = {
            "scale": options.scale, "drive": options.drive, "seed": options.seed, "milliseconds": options.milliseconds,
            "areas": options.areas, "synapses": synapses, "seconds_to_draw": built, "seconds": spent,
            "populations": {row["name"]: {key: float(row[key].mean()) for key in ("rates", "irregularity", "correlations")} for row in described},
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
