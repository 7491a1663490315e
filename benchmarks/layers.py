#!/usr/bin/env python3
"""Measures batch normalisation and LIF, forward and backward, in passes over their input: fused, one after the other,
and with SpikingJelly's LIF, if it is installed. Measures pooling in multiples of the bytes that must move.

A pass is the time in which a copy, measured in the same run, reads or writes the bytes of x. Training needs at least 8:
statistics read x, then x is read and spikes are written; the backward pass reads x and the gradient for two sums, and
again to write. `memory` is the peak of a training call beyond x and the upstream gradient, in elements for each
element of x (GPU). Tensors are read from memory: together they are larger than the cache.

Pooling must read x and write its results, and one byte per result for the place of the maximum; the backward pass reads
those and writes x's gradient.

    python benchmarks/layers.py --device cuda --json benchmarks/results/layers_h200.json
    python benchmarks/layers.py --device cpu --batch 2 --rounds 2
"""

import argparse
import gc
import json
import pathlib
import statistics
from functools import partial

import this_clone  # noqa: F401
import torch
from measure import REPEATS, TIMERS, Clock, Copy, in_one_line
from torch import nn

import spikeforge.nn as snn

CACHE = 3 * 50 * 2**20  # bytes beyond which tensors are read from memory
IMAGES = [(512, 7), (256, 14), (128, 28), (64, 56), (64, 112)]  # channels and side, of ResNets


class Apart(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.neuron = snn.TimeDistributed(nn.BatchNorm2d(channels)), snn.LIF(surrogate="atan")

    def forward(self, x):
        return self.neuron(self.norm(x))


class Theirs(nn.Module):
    """SpikingJelly's, which chooses its own backend; each call starts from the initial states."""

    def __init__(self, channels):
        from spikingjelly.activation_based import functional, layer, neuron, surrogate

        super().__init__()
        self.start_anew = partial(functional.reset_net, self)
        self.norm = layer.BatchNorm2d(channels, step_mode="m")
        self.neuron = neuron.LIFNode(tau=2.0, step_mode="m", surrogate_function=surrogate.ATan())

    def forward(self, x):
        self.start_anew()
        return self.neuron(self.norm(x))


CONTESTANTS = {
    "together": lambda channels: snn.BatchNormNeuron(nn.BatchNorm2d(channels), snn.LIF(surrogate="atan")),
    "apart": Apart,
    "spikingjelly": Theirs,
}


class Data:
    def __init__(self, shape, dtype, channels_last, device):
        def drawn():
            x = torch.randn(shape, device=device, dtype=dtype)
            return x.movedim(2, -1).contiguous().movedim(-1, 2) if channels_last else x

        count = max(2, -(-CACHE // drawn().nbytes)) if device == "cuda" else 2
        self.inputs = [drawn().requires_grad_() for _ in range(count)]
        self.gradients = [drawn() for _ in range(count)]
        self.turn = 0

    def next(self):
        for _ in range(REPEATS):
            self.turn += 1
            yield self.inputs[self.turn % len(self.inputs)], self.gradients[self.turn % len(self.gradients)]


def step(net, x, gradient):
    return torch.autograd.grad(net(x), (x, *net.parameters()), gradient)


def measure(net, data, timer):
    forward = timer([partial(net, x) for x, _ in data.next()])
    pending = [partial(torch.autograd.grad, net(x), (x, *net.parameters()), gradient) for x, gradient in data.next()]
    return {"forward": forward, "backward": timer(pending)}


def peak_memory(net, data):
    x, gradient = data.inputs[0], data.gradients[0]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(net, x, gradient)
    return (torch.cuda.max_memory_allocated() - before) / x.nbytes


def rows(options):
    timer = TIMERS["profiler"] if options.device == "cuda" else Clock("cpu")
    copy = Copy(options.device)
    for steps, batch in ((4, options.batch), (16, max(options.batch // 4, 1))):
        for channels, side in IMAGES if steps == 4 else IMAGES[2:3]:
            for dtype in (torch.float16, torch.float32):
                for channels_last in (True, False):
                    shape = (steps, batch, channels, side, side)
                    data = Data(shape, dtype, channels_last, options.device)
                    layout = "channels last" if channels_last else "plain"
                    row = {"shape": shape, "dtype": str(dtype)[6:], "layout": layout, "MB": data.inputs[0].nbytes / 1e6}
                    for name, contestant in CONTESTANTS.items():
                        try:
                            net = contestant(channels).to(options.device)
                            step(net, data.inputs[0], data.gradients[0])
                            rounds = [(copy.bytes_per_second(timer), measure(net, data, timer)) for _ in range(options.rounds)]
                        except Exception as error:
                            row[name] = {"error": in_one_line(error)}
                            continue
                        passes = {
                            which: statistics.median(seconds[which] * speed for speed, seconds in rounds) / data.inputs[0].nbytes
                            for which in ("forward", "backward")
                        }
                        memory = peak_memory(net, data) if options.device == "cuda" else None
                        row[name] = {**passes, "memory": memory}
                    yield row
                    del data, net
                    gc.collect()


POOLING = {
    "max 3x3/2": (partial(snn.MaxPool2d, 3, 2, 1), partial(nn.MaxPool2d, 3, 2, 1)),
    "max 2x2": (partial(snn.MaxPool2d, 2), partial(nn.MaxPool2d, 2)),
    "mean 2x2": (partial(snn.AvgPool2d, 2), partial(nn.AvgPool2d, 2)),
}


def pooling_rows(options):
    timer = TIMERS["profiler"] if options.device == "cuda" else Clock("cpu")
    copy = Copy(options.device)
    for channels, side in IMAGES[2:]:
        for dtype in (torch.float16, torch.float32):
            for channels_last in (True, False):
                shape = (4, options.batch, channels, side, side)
                data = Data(shape, dtype, channels_last, options.device)
                layout = "channels last" if channels_last else "plain"
                for kind, (ours, theirs) in POOLING.items():
                    row = {"pooling": kind, "shape": shape, "dtype": str(dtype)[6:], "layout": layout}
                    x = data.inputs[0]
                    y = ours()(x)
                    bytes_of = x.nbytes + y.nbytes + (y.numel() if kind.startswith("max") else 0)
                    upstream = [torch.randn_like(y) for _ in range(2)]
                    for name, pool in (("ours", ours()), ("torch", snn.TimeDistributed(theirs()))):
                        times = []
                        for _ in range(options.rounds):
                            speed = copy.bytes_per_second(timer)
                            forward = timer([partial(pool, x) for x, _ in data.next()])
                            pending = [
                                partial(torch.autograd.grad, pool(x), x, upstream[i % 2]) for i, (x, _) in enumerate(data.next())
                            ]
                            times.append((forward * speed / bytes_of, timer(pending) * speed / bytes_of))
                        row[name] = dict(zip(("forward", "backward"), map(statistics.median, zip(*times))))
                    yield row
                del data, x, y, upstream
                gc.collect()


def pooling_text_of(row):
    parts = [f"{row['pooling']:>10s} {'x'.join(map(str, row['shape'])):>18s} {row['dtype']:8s}{row['layout']:14s}"]
    parts += [f"{name} {row[name]['forward']:5.2f} + {row[name]['backward']:5.2f}" for name in ("ours", "torch")]
    return " | ".join(parts)


def text_of(row):
    parts = [f"{'x'.join(map(str, row['shape'])):>18s} {row['dtype']:8s}{row['layout']:14s}{row['MB']:7.1f} MB"]
    for name in CONTESTANTS:
        found = row[name]
        if "error" in found:
            parts.append(f"{name}: {found['error'][:60]}")
            continue
        memory = f", memory {found['memory']:.2f}" if found["memory"] is not None else ""
        parts.append(f"{name} {found['forward']:5.1f} + {found['backward']:5.1f} = {found['forward'] + found['backward']:5.1f}{memory}")
    return " | ".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--what", nargs="+", choices=["layers", "pooling"], default=["layers", "pooling"])
    parser.add_argument("--json", help="write the table there")
    options = parser.parse_args()
    found = {"rows": [], "pooling": []}
    if "layers" in options.what:
        for row in rows(options):
            found["rows"].append(row)
            print(text_of(row), flush=True)
    if "pooling" in options.what:
        for row in pooling_rows(options):
            found["pooling"].append(row)
            print(pooling_text_of(row), flush=True)
    if options.json:
        name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        pathlib.Path(options.json).write_text(json.dumps({"torch": torch.__version__, "device": name, **found}, indent=1))


if __name__ == "__main__":
    main()
