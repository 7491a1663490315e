#!/usr/bin/env python3
"""Trains one network on handwritten digits twice, in floating point and in Loihi's fixed point, and deploys the second
as integers. In fixed point every training pass computes the chip's results, so deployment loses no accuracy. Prints
the accuracy of both on held-out digits, and compares the integer network's spikes with those of training."""

import argparse
import sys

import torch
from torch import nn
from torch.nn import functional

import digits
import spikeforge.nn as snn

STEPS_OF_A_PIXEL = 16  # a pixel is an integer from 0 to 16, and so is its message
SCALE = 256  # the chip's units in a threshold of 1: weights from -1 to 1, in steps of 1/128


def neurons(*shape):
    """Neurons that lose half of their voltage in a step, and keep no current."""
    return snn.LavaLIF(du=1.0, dv=0.5, vth=1.0, bias=nn.Parameter(torch.zeros(shape)), scale=SCALE)


class Network(nn.Module):
    """The network of digits.py with biases instead of batch norms, without Lava's delay of a step between layers."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        # Messages are from 0 to 16, so a weight of the chip is worth an eighth of that in other layers.
        self.first = snn.LavaConv(1, 32, 3, padding=1, delay=0, num_message_bits=6, weight_exp=-3, scale=SCALE)
        self.rest = snn.Sequential(
            neurons(32, 1, 1),
            snn.LavaConv(32, 64, 3, padding=1, stride=2, delay=0, scale=SCALE),
            neurons(64, 1, 1),
            snn.TimeDistributed(nn.Flatten()),
            snn.LavaDense(64 * 4 * 4, 128, delay=0, scale=SCALE),
            neurons(128),
            snn.LavaDense(128, 10, delay=0, scale=SCALE),
            neurons(10))
        with torch.no_grad():
            self.first.weight.mul_(3 / STEPS_OF_A_PIXEL)
            for layer in self.rest:
                if isinstance(layer, snn.lava.LavaConnection):
                    layer.weight.mul_(4)  # one spike in four is enough to cause others

    def forward(self, messages):
        # The image is a constant current, so the output of the first convolution is the same at every step.
        current = self.first(messages[None]).expand(self.steps, -1, -1, -1, -1)
        return self.rest(current).sum(0)  # the number of spikes of each class


def messages_of(images, dtype=torch.float32):
    return (images * STEPS_OF_A_PIXEL).round().to(dtype)


@torch.no_grad()
def counts(network, images, dtype=torch.float32):
    return torch.cat([network(messages_of(some, dtype)) for some in images.split(256)])


def train(run_config, train_set, options):
    torch.manual_seed(options.seed)
    network = snn.set_run_config_(Network(options.steps), run_config)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr)
    images, labels = train_set
    epochs = options.epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.lr, total_steps=epochs * (len(labels) // options.batch))
    for epoch in range(epochs):
        order, total = torch.randperm(len(labels)), 0.0
        for batch in order.split(options.batch)[: len(labels) // options.batch]:
            spikes = network(messages_of(digits.move_a_little(images[batch])))
            loss = functional.cross_entropy(spikes, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        if options.verbose:
            print(f"{run_config:5} epoch {epoch + 1:3}: loss {total / (len(labels) // options.batch):.4f}", flush=True)
    return network


def run(options):
    torch.set_num_threads(options.threads)
    train_set, (images, labels) = digits.split(*digits.read_digits(options.data), "cpu")
    right = {}
    for run_config in ("float", "fixed"):
        network = train(run_config, train_set, options)
        spikes = counts(network, images)
        right[run_config] = (spikes.argmax(1) == labels).float().mean().item()
    chip = snn.deploy(network)
    same = torch.equal(counts(chip, images, torch.int32), spikes.int())
    print(f"accuracy on the held-out digits: float {right['float']:.2%}, fixed point {right['fixed']:.2%}")
    print(f"the deployed integer network has {'the same spike counts' if same else 'OTHER spike counts'}")
    return 0 if same else 1


def parse_options():
    parser = digits.Parser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", default="build/data/digits.csv", help="digits of scripts/prepare_digits.py")
    parser.add_argument("--epochs", type=digits.positive, default=30)
    parser.add_argument("--batch", type=digits.positive, default=64)
    parser.add_argument("--steps", type=digits.positive, default=6, help="of time")
    parser.add_argument("--lr", type=float, default=4e-3, help="the largest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=digits.positive, default=1, help="threads of the CPU")
    parser.add_argument("--verbose", action="store_true", help="print the loss of every epoch")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(run(parse_options()))
    except digits.UserError as error:
        print(f"loihi_digits.py: {' '.join(str(error).splitlines()[:1])}", file=sys.stderr)
        sys.exit(2)
