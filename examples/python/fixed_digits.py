#!/usr/bin/env python3
"""Converts the network that digits.py trained to Loihi's fixed-point arithmetic: 8-bit weights, integer neurons.
Prints the worst error of each layer, and the accuracy of both on held-out digits."""

import argparse
import sys

import torch

import digits

STEPS_OF_A_PIXEL = 16  # a pixel is an integer from 0 to 16, and so is its message


def matrix_of(layers, shape):
    """Returns the weight [out, in] and bias [out] of a layer without time: convolutions and batch norms of a trained
    network are affine, so their values at 0 and at each unit vector determine them."""
    size = torch.Size(shape).numel()
    points = torch.cat([torch.zeros(1, size), torch.eye(size)]).view(-1, *shape)
    values = layers(points)
    bias = values[0].flatten()
    return (values[1:].flatten(1) - bias).t(), bias, values.shape[1:]


class FixedLayer:
    """A matrix and the neurons after it. Messages and spikes are int32 [T, batch, ...]."""

    def __init__(self, name, weight, bias, tau, threshold=1.0, input_scale=1.0, largest_message=1):
        (self.weight, self.bias_mant, self.bias_exp, self.weight_exp, self.dv, self.vth, self.scale,
         *self.errors) = torch.ops.spikeforge.loihi_quantize(
            weight, bias, tau=tau, decay_input=True, v_threshold=threshold, input_scale=input_scale,
            largest_message=largest_message)
        self.name, self.message_bits = name, 0 if largest_message == 1 else largest_message.bit_length() + 1

    def __call__(self, messages):
        # Without Lava's delay of a step between layers, step t of one is step t of the next, as in the float network.
        current, _ = torch.ops.spikeforge.loihi_dense(
            messages, self.weight, delay=0, weight_exp=self.weight_exp, num_message_bits=self.message_bits)
        spikes, _, _ = torch.ops.spikeforge.loihi_lif(
            current, du=4095, dv=self.dv, bias_mant=self.bias_mant, bias_exp=self.bias_exp, vth=self.vth)
        return spikes


def tau_of(neuron):
    """Returns the time constant of digits.py's neurons."""
    if neuron.kind == "plif":
        return 1 / torch.sigmoid(neuron.w).item()
    if neuron.kind == "lif":
        return 2.0
    raise digits.UserError("a network of integrate-and-fire neurons has no decay to quantise: train one of lif or plif")


@torch.no_grad()
def quantise(network):
    """Yields pairs of the layers of digits.py's network that compute a current, and the neurons that receive it."""
    rest = list(network.rest)
    currents, neurons = [network.first, *rest[1::2]], rest[0::2]
    shape, fixed = (1, 8, 8), []
    for i, (layers, neuron) in enumerate(zip(currents, neurons)):
        layers = layers if i == 0 else torch.nn.Sequential(*layers)  # without the folding of time
        weight, bias, shape = matrix_of(layers, shape)
        first = dict(input_scale=1 / STEPS_OF_A_PIXEL, largest_message=STEPS_OF_A_PIXEL) if i == 0 else {}
        fixed.append(FixedLayer(f"layer {i + 1}", weight, bias, tau_of(neuron), **first))
    return fixed


@torch.no_grad()
def fixed_accuracy(layers, steps, images, labels):
    right = 0
    for some, truth in zip(images.split(256), labels.split(256)):
        messages = (some * STEPS_OF_A_PIXEL).round().to(torch.int32).flatten(1).expand(steps, -1, -1)
        for layer in layers:
            messages = layer(messages)
        right += (messages.sum(0).argmax(1) == truth).sum().item()
    return right / len(labels)


def run(options):
    digits.load_spikeforge()
    torch.set_num_threads(options.threads)
    network = digits.load(options.load, "cpu").eval()
    _, held_out = digits.split(*digits.read_digits(options.data), "cpu")
    layers = quantise(network)
    print(f"{'':9}{'weights':>14}{'exponent':>10}{'vth':>8}{'dv':>6}   worst error of weights, bias, threshold, decay")
    for layer in layers:
        print(f"{layer.name:9}{'x'.join(map(str, layer.weight.shape)):>14}{layer.weight_exp:10}{layer.vth:8}{layer.dv:6}   "
              + "  ".join(f"{error:8.2%}" for error in layer.errors))
    floating, fixed = digits.accuracy(network, *held_out), fixed_accuracy(layers, network.steps, *held_out)
    print(f"accuracy on the held-out digits: float {floating:.2%}, fixed point {fixed:.2%}")
    return 0


def parse_options():
    parser = digits.Parser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--load", default="build/digits/network_python.pt", help="the checkpoint of digits.py")
    parser.add_argument("--data", default="build/data/digits.csv", help="digits of scripts/prepare_digits.py")
    parser.add_argument("--threads", type=digits.positive, default=1, help="threads of the CPU")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(run(parse_options()))
    except digits.UserError as error:
        print(f"fixed_digits.py: {' '.join(str(error).splitlines()[:1])}", file=sys.stderr)
        sys.exit(2)
