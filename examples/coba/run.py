#!/usr/bin/env python3
"""Simulates the COBA network and plots its activity:

    python examples/coba/run.py                          # 4,000 neurons, one second, on the CPU
    python examples/coba/run.py --scale 100 --device cuda
"""

import argparse
import os
import pathlib
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
sys.path.insert(0, str(ROOT / "python"))

import network as coba  # noqa: E402

import spikeforge  # noqa: E402

SHOWN = 4000  # neurons of the raster


def plot(path, recording, steps, neurons):
    """Draws a raster of spikes above, and below the rate in Hz over 5 ms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (raster, rate) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=[3, 1])
    when, who = recording.steps.cpu() * coba.DT, recording.neurons.cpu()
    shown = who % max(1, neurons // SHOWN) == 0
    raster.plot(when[shown], who[shown], ",", color="black")
    raster.set_ylabel("neuron")
    counts = torch.bincount((when / 5).long(), minlength=int(steps * coba.DT / 5))
    rate.plot(torch.arange(len(counts)) * 5 + 2.5, counts / neurons * 200, color="black")
    rate.set_ylabel("rate (Hz)")
    rate.set_xlabel("time (ms)")
    figure.tight_layout()
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=positive, default=1, help="multiples of 4,000 neurons (default: 1)")
    parser.add_argument("--milliseconds", type=positive_number, default=1000, help="biological time (default: 1000)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--drive", type=float, default=20, help="constant input to all neurons in mV (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", default="build/coba.png", help="file for the raster; empty: none")
    options = parser.parse_args()

    connectivity = coba.random_connectivity(options.scale, options.seed)
    voltage = coba.random_voltage(connectivity.neurons, options.seed + 1)
    network, _ = coba.build(connectivity, voltage, options.drive, device=options.device)
    network.build()
    steps = round(options.milliseconds / coba.DT)
    start = time.perf_counter()
    recording = spikeforge.simulate(network, steps, progress=True)
    spikes = len(recording.steps)
    spent = time.perf_counter() - start
    rate = spikes / connectivity.neurons / (options.milliseconds / 1000)
    print(f"{connectivity.neurons} neurons, {options.milliseconds:g} ms: {rate:.1f} Hz; {spent:.2f} s, {spent / steps * 1e6:.1f} us a step")
    if options.plot:
        plot(pathlib.Path(options.plot), recording, steps, connectivity.neurons)
        print(f"raster: {options.plot}")


if __name__ == "__main__":
    main()
