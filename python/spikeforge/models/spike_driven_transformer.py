"""The Spike-driven Transformer: Yao et al., "Spike-driven transformer", NeurIPS 2023."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from spikeforge.models.parts import ImageMean, ImageNetwork, MakeNeuron, Residual, conv_norm, mlp, splitting_channels
from spikeforge.nn.attention import SpikeDrivenSelfAttention, check_neuron, paper_neuron
from spikeforge.nn.containers import Sequential, TimeDistributed
from spikeforge.nn.pooling import MaxPool2d


class SpikeDrivenTransformer(ImageNetwork):
    """A transformer whose layers all read spikes: figure 2 of the paper. Images ``[T, B, channels, H, W]`` to ``[T, B,
    classes]``.

    Shortcuts add currents, not spikes, and each block begins with a neuron (membrane shortcuts), so that no layer reads
    sums of spikes. Attention is a mask of channels.

    Args:
        classes, dim, depth: the numbers of classes, channels of a token, and blocks.
        channels: the number of channels of an image, 1 for grey images.
        pool: for each of the four convolutions of the patch splitting, whether a max pooling halves the image.
        mlp_ratio: the hidden channels of an MLP, as a multiple of `dim`. (For 1, the papers' code has one more shortcut
            in the MLP; this network has none.)
        neuron: creates a neuron, as for :class:`~spikeforge.nn.SpikeDrivenSelfAttention`.
    """

    SPIKINGJELLY = {
        "patch_embed.stages.*.*": "embed.*.0.module.*",
        "patch_embed.final_stage.*": "embed.3.module.*",
        "patch_embed.rpe_{conv,bn}": "embed.4.body.1.module.{0,1}",
        "blocks.*.attn.{q,k,v}_conv": "blocks.*.0.body.1.heads_projection.module.0",
        "blocks.*.attn.{q,k,v}_bn": "blocks.*.0.body.1.heads_projection.module.1",
        "blocks.*.attn.proj_{conv,bn}": "blocks.*.0.body.1.projection.module.{0,1}",
        "blocks.*.mlp.{fc,bn}1": "blocks.*.1.body.1.0.module.{0,1}",
        "blocks.*.mlp.{fc,bn}2": "blocks.*.1.body.1.2.module.{0,1}",
        "head": "head.2",
    }

    def __init__(
        self, classes: int = 1000, dim: int = 384, depth: int = 8, *, channels: int = 3,
        pool: tuple[bool, bool, bool, bool] = (True, True, True, True), mlp_ratio: float = 4.0,
        neuron: MakeNeuron = paper_neuron,
    ):  # fmt: skip
        check_neuron("SpikeDrivenTransformer", neuron, v_threshold=0.5)
        if len(pool) != 4:
            raise ValueError(f"SpikeDrivenTransformer: pool must have four values, but is {pool!r}")
        widths = splitting_channels("SpikeDrivenTransformer", channels, dim)
        embed: list[nn.Module] = []
        for inputs, outputs, halves in zip(widths, widths[1:4], pool):
            halved = [TimeDistributed(MaxPool2d(3, 2, 1))] if halves else []  # of spikes
            embed.append(Sequential(conv_norm(inputs, outputs), neuron(), *halved))
        position = Sequential(neuron(), conv_norm(dim, dim))
        embed += [conv_norm(dim // 2, dim, pool=pool[3]), Residual(position)]
        blocks = [
            Sequential(
                Residual(Sequential(neuron(), SpikeDrivenSelfAttention(dim, neuron=neuron))),
                Residual(Sequential(neuron(), mlp(dim, int(mlp_ratio * dim), neuron))),
            )
            for _ in range(depth)
        ]
        mean = TimeDistributed(ImageMean())
        head = Sequential(mean, neuron(), nn.Linear(dim, classes))
        super().__init__(OrderedDict(embed=Sequential(*embed), blocks=Sequential(*blocks), head=head))


sdt_8_384 = SpikeDrivenTransformer
