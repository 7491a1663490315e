#!/usr/bin/env python3
"""Measures frames of events beside the bytes that must move, and beside tonic's ToFrame if it is installed.

    python benchmarks/data.py --device cuda --json benchmarks/results/data_h200.json
    python benchmarks/data.py --device cpu --threads 2 --json benchmarks/results/data_cpu.json

The events of a sensor of 128 x 128 pixels are concentrated around a point that moves. The bytes are those of the columns
(t 8, x and y 2, p 1 for each event, read once) and of the frames (written once). On a GPU, times are those of kernels,
copies and fills, by the profiler; `wall` includes launches.
"""

import argparse
import json
import pathlib

import torch
from measure import Clock, Copy, least, profiled
from this_clone import spikeforge

SENSOR = 128


def batch(samples, events, device):
    """Returns Events: the columns have the types of tonic's arrays."""
    generator = torch.Generator().manual_seed(0)
    n = samples * events
    t = torch.randint(0, 6_000_000, (samples, events), generator=generator).sort(1).values
    angle = t.double() / 1e6
    places = [
        (64 + 40 * f(angle) + 12 * torch.randn(t.shape, generator=generator)).clamp(0, SENSOR - 1).to(torch.int16)
        for f in (torch.sin, torch.cos)
    ]
    polarity = torch.rand(n, generator=generator) < 0.5
    offsets = torch.arange(samples + 1) * events
    return spikeforge.data.Events(t.flatten(), places[0].flatten(), offsets, places[1].flatten(), polarity).to(device)


def by_tonic(events, steps):
    """Returns a call of tonic's ToFrame for each sample, or None."""
    try:
        import numpy as np
        from tonic.transforms import ToFrame
    except ImportError:
        return None
    arrays = []
    for begin, end in zip(events.offsets, events.offsets[1:]):
        array = np.zeros(int(end - begin), [("x", np.int16), ("y", np.int16), ("t", np.int64), ("p", bool)])
        for name in "xytp":
            array[name] = getattr(events, name)[begin:end].cpu().numpy()
        arrays.append(array)
    frame = ToFrame(sensor_size=(SENSOR, SENSOR, 2), n_time_bins=steps)
    return lambda: [frame(array) for array in arrays]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--events", type=int, default=300_000, help="of a sample")
    parser.add_argument("--steps", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    events, clock = batch(options.samples, options.events, options.device), Clock(options.device)
    speed = Copy(options.device).bytes_per_second(profiled if options.device == "cuda" else lambda calls: clock(calls))
    columns = sum(column.nbytes for column in (events.t, events.x, events.y, events.p))
    rows = []
    print(f"{'values':>10}{'steps':>7}{'wall ms':>10}{'kernels ms':>12}{'of bytes':>10}{'ns/event':>10}{'tonic ms':>10}")
    for steps in options.steps:
        tonic = by_tonic(events, steps) if options.device == "cpu" else None
        for values in ("count", "binary", "bits", "voxel", "surface"):
            call = lambda: spikeforge.data.frames(events, (2, SENSOR, SENSOR), steps=steps, values=values, tau=1e5)
            calls = {"ours": call} | ({"tonic": tonic} if tonic and values == "count" else {})
            seconds = least(calls, 5, clock)
            kernels = profiled([call] * 10) if options.device == "cuda" else seconds["ours"]
            floor = (columns + call().nbytes) / speed
            row = {"values": values, "steps": steps, "wall": seconds["ours"], "kernels": kernels, "ratio": kernels / floor,
                   "tonic": seconds.get("tonic")}  # fmt: skip
            rows.append(row)
            theirs = f"{row['tonic'] * 1e3:10.1f}" if row["tonic"] else ""
            print(f"{values:>10}{steps:7}{row['wall'] * 1e3:10.3f}{kernels * 1e3:12.3f}{row['ratio']:10.2f}"
                  f"{kernels * 1e9 / len(events.t):10.2f}{theirs}", flush=True)  # fmt: skip
    if options.json:
        name = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {options.threads} threads"
        options.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "samples": options.samples,
                                            "events": options.events, "rows": rows}, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
