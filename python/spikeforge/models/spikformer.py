"""Spikformer: Zhou et al., "Spikformer: when spiking neural network meets transformer", ICLR 2023."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from torch import nn

from spikeforge.models.parts import (
    ImageNetwork,
    MakeNeuron,
    Residual,
    conv_norm,
    mlp,
    read_out,
    spiking,
    splitting_channels,
)
from spikeforge.nn.attention import Attention, SpikingSelfAttention, check_neuron, paper_neuron
from spikeforge.nn.containers import Sequential


class Spikformer(ImageNetwork):
    """A transformer of spikes: figure 2 of the paper. Images ``[T, B, channels, H, W]`` to ``[T, B, classes]``.

    Spiking patch splitting: four convolutions, of which the last ones halve the image, and a position embedding, which
    is a convolution too. Each encoder block adds the spikes of its attention, and then of an MLP, to its input.

    Args:
        classes, dim, heads, depth: the numbers of classes, channels of a token, heads of attention, and blocks.
        channels: the number of channels of an image, 1 for grey images.
        patch: the pixels per side of a token: 1, 2, 4, 8 or 16.
        mlp_ratio: the hidden channels of an MLP, as a multiple of `dim`.
        neuron: creates a neuron, as for :class:`~spikeforge.nn.SpikingSelfAttention`.
    """

    SPIKINGJELLY = {
        "patch_embed.stages.*.conv_bn.block.*": "embed.*.0.module.*",
        "patch_embed.positional_encoding.conv_bn.block.*": "embed.4.body.module.*",
        "blocks.*.attn.qkv_conv_bn.*": "blocks.*.0.body.heads_projection.module.*",
        "blocks.*.attn.proj_conv_bn.*": "blocks.*.0.body.projection.module.*",
        "blocks.*.mlp.fc1.*": "blocks.*.1.body.0.module.*",
        "blocks.*.mlp.fc2.*": "blocks.*.1.body.2.module.*",
        "head": "head.module.1",
    }

    def __init__(
        self, classes: int = 1000, dim: int = 512, heads: int = 8, depth: int = 8, *, channels: int = 3,
        patch: int = 16, mlp_ratio: float = 4.0, neuron: MakeNeuron = paper_neuron,
    ):  # fmt: skip
        check_neuron("Spikformer", neuron, v_threshold=0.5)
        if patch not in (1, 2, 4, 8, 16):
            raise ValueError(f"Spikformer: patch must be 1, 2, 4, 8 or 16 pixels, but is {patch!r}")
        widths = splitting_channels("Spikformer", channels, dim)
        pooled = [patch >= 2 << i for i in range(4)][::-1]  # the last log2(patch) convolutions
        embed: list[nn.Module] = [spiking(neuron, *pair, pool=pool) for *pair, pool in zip(widths, widths[1:], pooled)]
        embed.append(Residual(conv_norm(dim, dim), neuron()))
        hidden = int(mlp_ratio * dim)
        blocks = [encoder_block(SpikingSelfAttention(dim, heads, neuron=neuron), hidden, neuron) for _ in range(depth)]
        super().__init__(OrderedDict(embed=Sequential(*embed), blocks=Sequential(*blocks), head=read_out(dim, classes)))
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def encoder_block(attention: Attention, hidden: int, neuron: MakeNeuron) -> Sequential:
    """Attention and an MLP, whose spikes are added to the input of each."""
    return Sequential(Residual(attention, neuron()), Residual(mlp(attention.dim, hidden, neuron), neuron()))


spikformer_ti = partial(Spikformer, dim=256, heads=8, depth=4)
spikformer_s = partial(Spikformer, dim=384, heads=12, depth=6)
spikformer_cifar10 = partial(Spikformer, classes=10, dim=384, heads=12, depth=4, patch=4)
