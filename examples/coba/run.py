#!/usr/bin/env python3
"""Simulates the COBA network and draws what it did:

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
LIBRARY = os.environ.get("SPIKEFORGE_LIBRARY", ROOT / "build/release/lib/libspikeforge.so")


def progress(done, all_, start):
    if not sys.stderr.isatty():
        return
    spent = time.perf_counter() - start
    filled = 40 * done // all_
    left = spent / max(1, done) * (all_ - done)
    end = "\n" if done == all_ else ""
    print(f"\r[{'#' * filled}{'.' * (40 - filled)}] {done}/{all_} steps, {left:4.1f} s left", end=end, file=sys.stderr)


def plot(path, fired, dt):
    """fired: bool [steps, some neurons]; above who fired when, below how often they did, in Hz over 5 ms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (raster, rate) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=[3, 1])
    step, neuron = fired.nonzero().T
    raster.plot(step * dt, neuron, ",", color="black")
    raster.set_ylabel("neuron")
    window = round(5 / dt)
    counts = fired[: len(fired) // window * window].float().mean(1).view(-1, window).mean(1) * 1000 / dt
    rate.plot(torch.arange(len(counts)) * 5 + 2.5, counts, color="black")
    rate.set_ylabel("rate (Hz)")
    rate.set_xlabel("time (ms)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=1, help="of 4,000 neurons (default: 1)")
    parser.add_argument("--milliseconds", type=float, default=1000, help="of biological time (default: 1000)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--drive", type=float, default=20, help="constant input to all neurons in mV (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", default="build/coba.png", help="where the raster goes; empty: nowhere")
    options = parser.parse_args()

    torch.ops.load_library(str(LIBRARY))
    import network as coba

    connectivity = coba.random_connectivity(options.scale, options.seed)
    network = coba.Network(connectivity, coba.random_voltage(connectivity.neurons, options.seed + 1), options.drive,
                           device=options.device)
    recorder = coba.Recorder(network)
    steps = round(options.milliseconds / coba.DT)
    shown = slice(None, None, max(1, connectivity.neurons // 4000))
    total = torch.zeros((), dtype=torch.long, device=options.device)
    pieces = []
    start = time.perf_counter()
    done = 0
    while done < steps:
        fired = recorder.run()[: steps - done]
        total += fired.sum()
        if options.plot:
            pieces.append(fired[:, shown].clone())
        done += len(fired)
        if done % 200 == 0 or done == steps:
            progress(done, steps, start)
    rate = total.item() / connectivity.neurons / (options.milliseconds / 1000)
    spent = time.perf_counter() - start
    print(f"{connectivity.neurons} neurons, {options.milliseconds:g} ms: {rate:.1f} Hz; {spent:.2f} s, {spent / steps * 1e6:.1f} us a step")
    if options.plot:
        pathlib.Path(options.plot).parent.mkdir(parents=True, exist_ok=True)
        plot(options.plot, torch.cat(pieces).cpu(), coba.DT)
        print(f"raster: {options.plot}")


if __name__ == "__main__":
    main()
