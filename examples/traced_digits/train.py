#!/usr/bin/env python3
"""Trains a network of a neuron that is written below, in ten lines of text, on handwritten digits; saves it for C++.

The saved model holds the neuron's text: whoever runs it (examples/deploy) needs libspikeforge, and neither
this script nor Python."""

import argparse
import os
import pathlib
import sys
import time
import warnings

import numpy
import torch
from torch import nn
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("SPIKEFORGE_LIBRARY", ROOT / "build/release/lib/libspikeforge.so")

# The threshold rises with each spike. Time constant and adaptation are learned per channel.
TIRING = """
neuron tiring(x; v, tired; leak, strength) {
  keep = sigmoid(leak)
  h = keep * v + (1 - keep) * x
  s = spike(h - (1 + softplus(strength) * tired), atan(2))
  return s
  v' = select(s, 0, h)
  tired' = 0.8 * tired + s
}
"""


class Neurons(nn.Module):
    """A layer of neurons: maps currents [T, batch, channels, ...] to spikes of the same shape."""

    def __init__(self, channels: int, dimensions: int):
        super().__init__()
        self.neuron = TIRING
        shape = (channels,) + (1,) * dimensions  # broadcasts against the channels
        self.leak = nn.Parameter(torch.zeros(shape))
        self.strength = nn.Parameter(torch.full(shape, -2.0))

    def forward(self, currents):
        outputs, states = torch.ops.spikeforge.run(
            self.neuron, [currents], [], [self.leak, self.strength], store_states=False)
        return outputs[0]


class Network(nn.Module):
    """Maps pixels [batch, 64], 0 to 16, to scores [batch, 10]: the number of spikes of each digit's neuron."""

    def __init__(self, steps: int):
        super().__init__()
        self.steps = steps
        self.first = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32))
        self.first_neurons = Neurons(32, 2)
        self.second = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(64))
        self.second_neurons = Neurons(64, 2)
        self.last = nn.Sequential(nn.Flatten(), nn.Linear(64 * 4 * 4, 10))
        self.last_neurons = Neurons(10, 0)

    def forward(self, pixels):
        images = (pixels / 16).view(-1, 1, 8, 8)
        # The image is a constant current; for the following layers without time, steps are further samples.
        spikes = self.first_neurons(3 * self.first(images).expand(self.steps, -1, -1, -1, -1))
        currents = self.second(spikes.flatten(0, 1))
        spikes = self.second_neurons(3 * currents.view(self.steps, -1, 64, 4, 4))
        currents = self.last(spikes.flatten(0, 1))
        return self.last_neurons(currents.view(self.steps, -1, 10)).sum(0)


def moved_a_little(pixels):
    """Shifts each image by up to one pixel, as data augmentation."""
    windows = functional.pad(pixels.view(-1, 8, 8), (1, 1, 1, 1)).unfold(1, 8, 1).unfold(2, 8, 1)
    row, column = torch.randint(3, (2, len(pixels)))
    return windows[torch.arange(len(pixels)), row, column].flatten(1)


@torch.no_grad()
def accuracy(network, pixels, labels):
    return (network(pixels).argmax(1) == labels).float().mean().item()


def train(network, pixels, labels, held_out, options):
    batches = -(-len(labels) // options.batch_size)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.learning_rate, total_steps=options.epochs * batches)
    start = time.monotonic()
    for epoch in range(1, options.epochs + 1):
        network.train()
        total = 0.0
        for batch in torch.randperm(len(labels)).split(options.batch_size):
            loss = functional.cross_entropy(network(moved_a_little(pixels[batch])), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        network.eval()
        seconds = time.monotonic() - start
        print(f"epoch {epoch:2}/{options.epochs}  loss {total / len(labels):.4f}  held out {accuracy(network, *held_out):6.1%}"
              f"  {seconds / epoch * (options.epochs - epoch):3.0f} s left", flush=True)


@torch.no_grad()
def package(network, pixels, path):
    """Compiles the network to machine code for this CPU and any batch size: torch.export, then AOTInductor."""
    batch = torch.export.Dim("batch", min=2, max=1 << 20)
    like = pixels[:8].contiguous()  # a package reads its inputs with the strides of the example, and does not check them
    program = torch.export.export(network, (like,), dynamic_shapes=({0: batch},))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def run(options):
    torch.ops.load_library(LIBRARY)
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    table = torch.from_numpy(numpy.loadtxt(options.data, delimiter=",", dtype=numpy.float32))
    # Four fifths are for training, one fifth is held out. The split is fixed.
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    held_out, digits = table[:len(table) // 5], table[len(table) // 5:]

    network = Network(options.steps)
    test = held_out[:, :-1], held_out[:, -1].long()
    train(network, digits[:, :-1], digits[:, -1].long(), test, options)

    folder = pathlib.Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    numpy.savetxt(folder / "held_out.csv", held_out, fmt="%g", delimiter=",")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(network).save(str(folder / "network.pt"))
    saved = [folder / "network.pt"]
    if options.package:
        saved.append(folder / "network.pt2")
        package(network, test[0], saved[-1])
    print(f"accuracy {accuracy(network, *test):.2%} on {len(held_out)} held-out digits")
    for path in saved:
        print(f"to run it: build/release/bin/deploy {path} {folder / 'held_out.csv'} --classes-last --batch 64")


def positive(text):
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", default="build/data/digits.csv", help="digits of scripts/prepare_digits.py")
    parser.add_argument("--output", default="build/traced_digits", help="folder for the model and the held-out digits")
    parser.add_argument("--package", action="store_true", help="also compile the network to a package, which takes g++ and a minute")
    parser.add_argument("--steps", type=positive, default=8, help="time steps for each image")
    parser.add_argument("--epochs", type=positive, default=20, help="passes over the training digits")
    parser.add_argument("--batch-size", type=positive, default=64, help="images in a batch")
    parser.add_argument("--learning-rate", type=float, default=1e-2, help="the largest learning rate of Adam")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights and the order of the digits")
    parser.add_argument("--threads", type=positive, default=1, help="threads of the CPU")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        run(parse_options())
    except OSError as error:
        print(f"train.py: {error}", file=sys.stderr)
        sys.exit(2)
