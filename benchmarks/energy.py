#!/usr/bin/env python3
"""Compares the energy of a spiking network with that of the same network with ReLU.

    python benchmarks/energy.py                                   # modelled; measured as well if there are counters
    python benchmarks/energy.py --device cuda --json benchmarks/results/energy_h200.json
    python benchmarks/energy.py --device cuda --input random      # larger images and layers, untrained

Both networks have the convolutions, linear layers and batch normalisations of spikeforge.demo. The images are the same
current at every step of the spiking network, whose first layer multiplies them once; the outputs are means over the
steps. With scikit-learn both learn its digits, and the accuracy is that on a fifth of the digits, held out. It prints
JSON, all energies in joules per image:

    modelled    Count.energy(), for SRAM of 1 MB: of arithmetic (compute) and memory, for several types of numbers; and
                with one read of a weight for 16 multiplications (reuse)
    measured    spikeforge.energy(), for batches of --batch images, with its standard error; null without counters
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
sys.path.insert(0, str(ROOT / "python"))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import spikeforge  # noqa: E402
import spikeforge.nn as snn  # noqa: E402
from spikeforge import demo  # noqa: E402


class Twin(nn.Module):
    """Maps images [B, C, size, size] to 10 classes, in steps of LIF neurons, or at once with ReLU if steps is 0."""

    def __init__(self, steps, channels, size, width):
        super().__init__()
        self.steps = steps
        layers = [
            (nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, momentum=demo.MOMENTUM)),
            (nn.Conv2d(width, 2 * width, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(2 * width, momentum=demo.MOMENTUM)),
            (nn.Flatten(), nn.Linear(width * size * size // 2, 4 * width, bias=False), nn.BatchNorm1d(4 * width, momentum=demo.MOMENTUM)),
            (nn.Linear(4 * width, 10),),
        ]
        self.first = nn.Sequential(*layers[0])
        self.rest = nn.Sequential(*(
            part for layer in layers[1:]
            for part in ((snn.LIF(tau=2.0, surrogate="atan"), snn.TimeDistributed(*layer)) if steps else (nn.ReLU(), *layer))))

    def forward(self, images):
        current = self.first(images)
        if not self.steps:
            return self.rest(current)
        return self.rest(current.expand(self.steps, *current.shape)).mean(0)


def modelled(net, images):
    with torch.no_grad(), spikeforge.count(net) as counted:
        net(images)
    print(counted, file=sys.stderr)
    kinds = {numbers: dict(numbers=numbers) for numbers in ("float32", "float16", "int8")} | {"float32, reuse 16": dict(reuse=16.0)}
    energies = {}
    for name, options in kinds.items():
        found = counted.energy(**options)
        energies[name] = dict(compute=found.compute / len(images), memory=found.memory / len(images), total=found.total / len(images))
    operations = {name: getattr(counted, name) / len(images) for name in ("spikes", "accumulates", "multiply_accumulates")}
    return dict(operations, energy=energies, not_counted=counted.not_counted)


def measured(net, images, seconds):
    @torch.inference_mode()
    def call():
        net(images)

    call()  # compiles the neurons' kernels
    found = spikeforge.energy(call, seconds=seconds)
    return {name: dict(joules=each.joules / len(images), error=each.error / len(images), watts=each.watts, idle_watts=each.idle_watts,
                       seconds=each.seconds / len(images), calls=each.calls) for name, each in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--input", default="digits", choices=["digits", "random"], help="random: 3 x 32 x 32, four times as many channels")
    parser.add_argument("--steps", type=int, default=4, help="of the spiking network (default: 4)")
    parser.add_argument("--epochs", type=int, default=10, help="of training with the digits (default: 10)")
    parser.add_argument("--batch", type=int, default=1024, help="images of a measured call (default: 1024)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement, and of idle power before it (default: 8)")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()

    torch.manual_seed(0)
    digits = held_out = None
    if options.input == "digits":
        try:
            digits, held_out = demo.load_digits(torch.device(options.device))
            images = held_out[0]
        except demo.UserError as error:
            print(f"{error}; the networks are untrained", file=sys.stderr)
            images = torch.rand(360, 1, 8, 8, device=options.device)
    else:
        images = torch.rand(64, 3, 32, 32, device=options.device)
    batch = images.repeat(-(-options.batch // len(images)), 1, 1, 1)[: options.batch].contiguous()
    lines = []
    for name, steps in (("spiking", options.steps), ("ReLU", 0)):
        net = Twin(steps, images.shape[1], images.shape[2], 32 if options.input == "digits" else 128).to(options.device)
        accuracy = None
        if digits is not None:
            with contextlib.redirect_stdout(sys.stderr):
                accuracy = demo.train(net, digits, held_out, options.epochs)[-1]
        else:  # statistics of the batch normalisation
            with torch.no_grad():
                for _ in range(20):
                    net(images)
        net.eval()
        line = dict(network=name, steps=steps, accuracy=accuracy, modelled=modelled(net, images))
        try:
            line["measured"] = measured(net, batch, options.seconds)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            line["measured"] = None
        lines.append(line)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    text = json.dumps(dict(device=device, torch=torch.__version__, input=options.input, batch=len(batch), lines=lines), indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
