#!/usr/bin/env python3
"""Writes a network that digits.py has trained as a NIR file, for spikeforge-nir and other programs that read NIR."""

import pathlib
import sys

import digits
import nir
import numpy as np
import torch
from torch import nn


def lif(shape, dt, tau=2.0, v_threshold=1.0, v_reset=0.0, decay_input=True):
    """Converts tau of torch.ops.spikeforge.lif, in steps, to seconds as in NIR."""
    full = lambda value: np.full(shape, float(value))
    return nir.LIF(tau=full(tau * dt), r=full(1 if decay_input else tau), v_leak=full(v_reset), v_threshold=full(v_threshold),
                   v_reset=full(v_reset))


def integrate_and_fire(shape, dt, v_threshold=1.0, v_reset=0.0):
    """Returns the IF node: a step adds x to the membrane here, and dt * r * x in NIR."""
    full = lambda value: np.full(shape, float(value))
    return nir.IF(r=full(1 / dt), v_threshold=full(v_threshold), v_reset=full(v_reset))


def neuron(module, shape, dt):
    if module.kind == "if":
        return integrate_and_fire(shape, dt)
    return lif(shape, dt, tau=1 / module.w.sigmoid().item() if module.kind == "plif" else 2.0)


def weight_and_bias(layer, norm):
    """Folds a BatchNorm, which NIR does not have, into the layer before: a factor and a summand for each channel."""
    weight = layer.weight.double()
    bias = torch.zeros(len(weight)).double() if layer.bias is None else layer.bias.double()
    if norm is not None:
        factor = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        weight = weight * factor.view(-1, *[1] * (weight.dim() - 1))
        bias = norm.bias.double() + factor * (bias - norm.running_mean.double())
    return weight.numpy(), bias.numpy()


@torch.no_grad()
def graph_of(network, shape, dt):
    """Converts the layers of a network to a chain of nodes. `shape` is that of one step of one sample."""
    layers = [module for module in network.modules() if not list(module.children())]
    nodes = [nir.Input(input_type=np.array(shape))]
    for layer, next_layer in zip(layers, layers[1:] + [None]):
        norm = next_layer if isinstance(next_layer, (nn.BatchNorm1d, nn.BatchNorm2d)) else None
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            continue
        if isinstance(layer, digits.Neuron):
            nodes.append(neuron(layer, shape, dt))
            continue
        if isinstance(layer, nn.Conv2d):
            weight, bias = weight_and_bias(layer, norm)
            nodes.append(nir.Conv2d(shape[1:], weight, layer.stride, layer.padding, layer.dilation, layer.groups, bias))
        elif isinstance(layer, nn.Linear):
            nodes.append(nir.Affine(*weight_and_bias(layer, norm)))
        elif isinstance(layer, nn.Flatten):
            nodes.append(nir.Flatten({"input": np.array(shape)}, start_dim=0))  # dimensions in NIR exclude the batch
        else:
            raise TypeError(f"{layer} has no NIR node")
        shape = tuple(layer(torch.zeros(1, *shape)).shape[1:])
    return nir.NIRGraph.from_list(*nodes, nir.Output(output_type=np.array(shape)))


def main():
    if len(sys.argv) != 3:
        raise digits.UserError("expected CHECKPOINT.pt OUT.nir")
    network = digits.load(sys.argv[1], "cpu").eval()
    nir.write(pathlib.Path(sys.argv[2]), graph_of(network, (1, 8, 8), dt=1e-3))


if __name__ == "__main__":
    try:
        main()
    except digits.UserError as error:
        print(f"digits_to_nir.py: {error}", file=sys.stderr)
        sys.exit(2)
