#!/usr/bin/env python3
"""Compares the activity of the microcircuit's populations over several seeds: rates with published ones, and the
distributions of rates, irregularity and correlations (Kolmogorov-Smirnov distances) between seeds and with a saved
simulation.

    python examples/microcircuit/ensemble.py --scale 1 --seeds 10 --milliseconds 10000 --device cuda --save build/gpu.pt
    python examples/microcircuit/ensemble.py --scale 1 --seeds 1 --milliseconds 10000 --double --beside build/gpu.pt
"""

import argparse
import itertools
import os
import pathlib
import sys

import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
sys.path.insert(0, str(ROOT / "python"))

import activity  # noqa: E402
import network as microcircuit  # noqa: E402

import spikeforge  # noqa: E402

WARM_UP = 500.0  # ms
KINDS = ("rates", "irregularity", "correlations")


def simulate(scale, seed, milliseconds, device, dtype):
    """Returns the statistics of each population."""
    network, populations = microcircuit.build(scale, seed=seed, device=device, dtype=dtype)
    first, steps = round(WARM_UP / microcircuit.DT), round(milliseconds / microcircuit.DT)
    spikeforge.simulate(network, first, spikes=False)
    recording = spikeforge.simulate(network, steps)
    found = [tuple(t.cpu() for t in recording.of(population)) for population in populations]
    return told(found, [len(p) for p in populations], first, first + steps)


def told(spikes, sizes, first, last):
    """Computes statistics of the spikes of each population, steps and neurons, in steps first to last - 1."""
    return {
        name: {kind: numbers.double() for kind, numbers in activity.of_population(when, who, size, first, last, microcircuit.DT).items()}
        for name, size, (when, who) in zip(microcircuit.NAMES, sizes, spikes)
    }


def saved(path, scale):
    """Reads statistics that this program saved, or computes those of NEST's spikes from benchmarks/microcircuit.py."""
    if path.suffix != ".npz":
        return torch.load(path)
    of = np.load(path)
    steps, neurons = torch.from_numpy(of["steps"]), torch.from_numpy(of["neurons"]).long()
    first, last = round(WARM_UP / microcircuit.DT), int(of["last"])
    sizes = [round(scale * n) for n in microcircuit.NEURONS]
    spikes, start = [], 0
    for size in sizes:
        here = (neurons >= start) & (neurons < start + size) & (steps >= first)
        spikes.append((steps[here], neurons[here] - start))
        start += size
    return [told(spikes, sizes, first, last)]


def distance(a, b):
    """Returns the Kolmogorov-Smirnov statistic: the largest difference of the two distribution functions."""
    if len(a) == 0 or len(b) == 0:
        return float("nan")
    a, b = a.sort().values, b.sort().values
    at = torch.cat([a, b])
    share = lambda x: torch.searchsorted(x, at, right=True).double() / len(x)
    return float((share(a) - share(b)).abs().max())


def table(runs):
    """Prints means over seeds; for rates also the standard deviation, and the distance of the published rate in it."""
    print(f"{'':6}{'rate':>8} {'± over seeds':>13} {'published':>10} {'away':>6} {'CV':>7} {'correlation':>12}")
    for name, published in zip(microcircuit.NAMES, microcircuit.RATES):
        rates = torch.stack([run[name]["rates"].mean() for run in runs])
        deviation = rates.std() if len(runs) > 1 else torch.tensor(float("nan"))
        means = [torch.stack([run[name][kind].mean() for run in runs]).mean() for kind in KINDS[1:]]
        away = abs(rates.mean() - published) / deviation
        print(f"{name:6}{rates.mean():8.3f} {deviation:13.3f} {published:10.3f} {away:6.1f} {means[0]:7.3f} {means[1]:12.4f}")


def distances(pairs, title):
    """Formats the mean, and in brackets the largest, over pairs of simulations."""
    print(f"\n{title:30}" + "".join(f"{kind:>22}" for kind in KINDS))
    for name in microcircuit.NAMES:
        found = {kind: torch.tensor([distance(a[name][kind], b[name][kind]) for a, b in pairs]) for kind in KINDS}
        print(f"{name:30}" + "".join(f"{found[kind].mean():14.4f} ({found[kind].max():.4f})"[-22:].rjust(22) for kind in KINDS))


def positive(text):
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def positive_number(text):
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=positive_number, default=0.1)
    parser.add_argument("--seeds", type=positive, default=3, help="number of simulations, with seeds from 0 (default: 3)")
    parser.add_argument("--milliseconds", type=positive_number, default=2000, help="biological time, after 500 (default: 2000)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--double", action="store_true", help="float64 rather than float32")
    parser.add_argument("--save", type=pathlib.Path, help="file for all statistics")
    parser.add_argument("--beside", type=pathlib.Path, help="a saved file to compare with")
    options = parser.parse_args()
    dtype = torch.float64 if options.double else torch.float32
    runs = []
    for seed in range(options.seeds):
        runs.append(simulate(options.scale, seed, options.milliseconds, options.device, dtype))
        print(f"\rseed {seed} of {options.seeds} simulated", end="\n" if seed + 1 == options.seeds else "", file=sys.stderr, flush=True)
    table(runs)
    if len(runs) > 1:
        distances(list(itertools.combinations(runs, 2)), "distance between two seeds")
    if options.beside:
        others = saved(options.beside, options.scale)
        distances(list(itertools.product(runs, others)), f"distance from {options.beside.name}")
        if len(others) > 1:
            distances(list(itertools.combinations(others, 2)), f"between those of {options.beside.name}")
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        torch.save(runs, options.save)


if __name__ == "__main__":
    main()
