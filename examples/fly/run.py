#!/usr/bin/env python3
"""Activates and silences neurons of the fly's brain, and shows which others fire most:

    python examples/fly/run.py                                            # a stand-in, a twentieth of the brain
    python examples/fly/run.py --flywire ~/Drosophila_brain_model         # the 21 sugar-sensing neurons of Shiu et al.
    python examples/fly/run.py --flywire ~/Drosophila_brain_model --silence 720575940639332736 --device cuda
    python examples/fly/run.py --male-cns ~/male-cns --activate @ids.txt  # a file with an id on each line
"""

import argparse
import csv
import json
import os
import pathlib
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
sys.path.insert(0, str(ROOT / "python"))

import connectome as connectomes  # noqa: E402
import network as fly  # noqa: E402


def activated(options, connectome):
    """Returns the neurons of --activate, by default sugar-sensing ones, or those of a stand-in with most output."""
    if options.activate:
        return connectome.neurons(options.activate)
    if options.flywire:
        return connectome.neurons(connectomes.SUGAR)
    if options.male_cns:
        raise ValueError("--male-cns needs --activate: ids of neurons")
    return connectome.hubs(len(connectomes.SUGAR))


def table(connectome, rates, is_activated, shown):
    """Prints the mean rate of activated neurons, and those of the most active others, with deviations over trials."""
    print(f"{'neuron':>20}{'rate (1/s)':>12}{'± over trials':>15}")
    row = lambda name, of: print(f"{name:>20}{of.mean():12.1f}{of.std(correction=0):15.1f}")
    row("mean of activated", rates[:, is_activated].mean(1))
    mean = torch.where(is_activated, 0, rates.mean(0))
    for neuron in mean.argsort(descending=True, stable=True)[:shown].tolist():
        if mean[neuron] > 0:
            row(int(connectome.ids[neuron]), rates[:, neuron])


def write(path, connectome, rates):
    """Writes the rates of all neurons that fired, highest first, in all trials."""
    mean = rates.mean(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "mean rate (1/s)", *(f"trial {k} (1/s)" for k in range(len(rates)))])
        for neuron in mean.argsort(descending=True, stable=True).tolist():
            if mean[neuron] > 0:
                rows.writerow([int(connectome.ids[neuron]), f"{mean[neuron]:g}", *(f"{r:g}" for r in rates[:, neuron].tolist())])


def plot(path, recording, population, rates, is_activated, milliseconds):
    """Draws the spikes of the first trial, neurons in the order of their rates, and the rates of all trials."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    mean = rates.mean(0)
    order = mean.argsort(descending=True, stable=True)[: int((mean > 0).sum())]
    place = torch.full_like(mean, -1).index_copy_(0, order, torch.arange(len(order)).to(mean))
    figure, (raster, bars) = pyplot.subplots(1, 2, figsize=(11, 6), width_ratios=[3, 1], sharey=True, layout="constrained")
    steps, neurons = (t.cpu() for t in recording.of(population, copy=0))
    for kind, colour, label in ((is_activated, "#b5472f", "activated"), (~is_activated, "#2b6ca3", "others")):
        here = kind[neurons]
        raster.plot(steps[here] * fly.DT, place[neurons[here]], ".", markersize=2, color=colour, label=label, rasterized=True)
        shown = kind[order]
        bars.plot(mean[order][shown], place[order][shown], ".", color=colour)
    raster.set(xlabel="time (ms)", ylabel="neurons that fired, by rate", xlim=(0, milliseconds))
    raster.invert_yaxis()
    raster.legend(loc="lower right", markerscale=5)
    bars.set(xlabel="mean rate (1/s)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, fromfile_prefix_chars="@"
    )
    connectomes.add_options(parser)
    parser.add_argument("--activate", type=int, nargs="+", default=[], metavar="ID", help="neurons with input spikes")
    parser.add_argument("--silence", type=int, nargs="+", default=[], metavar="ID", help="neurons whose spikes are suppressed")
    parser.add_argument("--rate", type=positive_number, default=fly.R_POI, help="input spikes/s (default: 150)")
    parser.add_argument("--trials", type=positive, default=5, help="number of trials (default: 5)")
    parser.add_argument("--milliseconds", type=positive_number, default=1000, help="biological time of a trial (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial; the others follow")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--double", action="store_true", help="float64 rather than float32")
    parser.add_argument("--shown", type=positive, default=20, help="rows of the table (default: 20)")
    parser.add_argument("--csv", type=pathlib.Path, default=ROOT / "build/fly.csv", help="file for the rates")
    parser.add_argument("--plot", type=pathlib.Path, default=ROOT / "build/fly.png", help="file for the picture")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures, for programs")
    options = parser.parse_args()

    begun = time.perf_counter()
    try:
        connectome = connectomes.chosen(options)
        chosen, silenced = activated(options, connectome), connectome.neurons(options.silence)
    except (ImportError, OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    brain = fly.Fly(connectome, torch.float64 if options.double else torch.float32, options.device, options.trials)
    brain.activate(chosen, options.rate)
    brain.silence(silenced)
    built = time.perf_counter() - begun
    print(f"{connectome.name}: {len(connectome.ids)} neurons, {len(connectome.sources)} connections, built in {built:.1f} s; "
          f"{len(chosen)} activated, {len(silenced)} silenced")

    begun = time.perf_counter()
    recording = brain.run(options.milliseconds, options.seed)
    rates = brain.mean_rates(recording)
    spent = time.perf_counter() - begun
    factor = spent * 1000 / (options.trials * options.milliseconds)
    print(f"{options.trials} trials of {options.milliseconds:g} ms in {spent:.2f} s: real-time factor {factor:.3f}, "
          f"{factor * fly.DT * 1000:.1f} us a step; {int((rates.mean(0) > 0).sum())} neurons fired")

    is_activated = torch.zeros(len(connectome.ids), dtype=torch.bool).index_fill_(0, chosen, True)
    table(connectome, rates, is_activated, options.shown)
    write(options.csv, connectome, rates)
    plot(options.plot, recording, brain.neurons, rates, is_activated, options.milliseconds)
    print(f"rates: {options.csv}\npicture: {options.plot}")
    if options.json:
        fired = rates.mean(0).nonzero().flatten().tolist()
        figures = {
            "connectome": connectome.name, "neurons": len(connectome.ids), "connections": len(connectome.sources), "device": options.device,
            "trials": options.trials, "milliseconds": options.milliseconds, "seed": options.seed, "seconds_to_build": built, "seconds": spent,
            "activated": connectome.ids[chosen].tolist(), "silenced": options.silence,
            "rates": {str(int(connectome.ids[neuron])): float(rates[:, neuron].mean()) for neuron in fired},
        }  # fmt: skip
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
