"""Fused layers have the same loss as separate layers in each step of training, from the same seed.

In float64, so that rounding changes no spike in 50 steps. The oracle is the network before the fusion."""

import copy

import pytest
import torch
from test_recompute import Block
from torch import nn

import spikeforge.nn as snn

STEPS = 50


def network():
    return nn.Sequential(
        snn.TimeDistributed(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)),
        snn.LIF(surrogate="atan"),
        Block("add"),
        snn.MaxPool2d(2),
        snn.TimeDistributed(nn.Flatten(), nn.Linear(8 * 4 * 4, 10)),
    ).double()


def coloured(device):
    """Returns images of ten classes: colour patterns, shifted and noisy."""
    labels = torch.arange(400) % 10
    patterns = torch.rand(10, 3, 8, 8).double()
    images = torch.stack([torch.roll(patterns[k], (int(i) % 3, int(i) % 5), (1, 2)) for i, k in enumerate(labels)])
    return (images + 0.2 * torch.randn(images.shape)).to(device), labels.to(device)


def losses(net, images, labels):
    optimizer, curve = torch.optim.Adam(net.parameters(), 2e-3), []
    for i in range(STEPS):
        batch = torch.arange(16) + 16 * i
        x = images[batch % len(images)].expand(4, -1, -1, -1, -1)
        loss = nn.functional.cross_entropy(net(x).mean(0), labels[batch % len(labels)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return torch.tensor(curve)


@pytest.mark.long(but="recomputed")
@pytest.mark.parametrize("recompute", [False, True], ids=["fused", "recomputed"])
def test_fused_layers_have_the_curve_of_layers_by_themselves(recompute, device):
    torch.manual_seed(11)
    images, labels = coloured(device)
    net = network().to(device)
    fused = copy.deepcopy(net)
    assert len(snn.fuse(fused, images[:2].expand(4, -1, -1, -1, -1), recompute=recompute)) == 3
    expected, found = losses(net, images, labels), losses(fused, images, labels)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    assert expected[-10:].mean() < 0.8 * expected[:5].mean()  # the loss decreases
