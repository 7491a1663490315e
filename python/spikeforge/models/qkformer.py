"""QKFormer: Zhou et al., "QKFormer: hierarchical spiking transformer using Q-K attention", NeurIPS 2024."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from spikeforge.models.parts import ImageNetwork, MakeNeuron, Residual, conv_norm, read_out, spiking
from spikeforge.models.spikformer import encoder_block
from spikeforge.nn.attention import QKAttention, SpikingSelfAttention, check_neuron, paper_neuron
from spikeforge.nn.containers import Sequential


class QKFormer(ImageNetwork):
    """Three stages of transformer blocks on images of 1/4, 1/8 and 1/16 of the size: figure 2 of the paper. Images
    ``[T, B, channels, H, W]`` to ``[T, B, classes]``.

    The blocks of the first two stages, with many tokens, use attention of queries and keys, whose cost is linear in
    their number; those of the third use spiking self-attention. Before each stage is a spiking patch embedding with
    deformed shortcut (SPEDS), which halves the image (the first one twice).

    Args:
        classes: the number of classes.
        dim: the channels of the third stage, a multiple of 4, at least 8; the stages have dim / 4, dim / 2 and dim.
        heads, depths: the numbers of heads and of blocks of each stage.
        channels: the number of channels of an image, 1 for grey images.
        mlp_ratio: the hidden channels of an MLP, as a multiple of the stage's channels.
        mode: "token" or "channel", of the first two stages.
        neuron: creates a neuron, as for :class:`~spikeforge.nn.QKAttention`.
    """

    SPIKINGJELLY = {
        "patch_embed1.{conv,bn}1": "embed1.0.0.module.{0,1}",
        "patch_embed1.{conv,bn}2": "embed1.1.body.0.module.{0,1}",
        "patch_embed1.{conv,bn}3": "embed1.1.body.2.module.{0,1}",
        "patch_embed1.shortcut.*": "embed1.1.shortcut.0.module.*",
        "patch_embed*.{conv,bn}1": "embed*.body.0.module.{0,1}",
        "patch_embed*.{conv,bn}2": "embed*.body.2.module.{0,1}",
        "patch_embed*.shortcut.*": "embed*.shortcut.0.module.*",
        "stage*.*.attn.{qk,qkv}_conv_bn.*": "stage*.*.0.body.heads_projection.module.*",
        "stage*.*.attn.proj_conv_bn.*": "stage*.*.0.body.projection.module.*",
        "stage*.*.mlp.{fc,bn}1": "stage*.*.1.body.0.module.{0,1}",
        "stage*.*.mlp.{fc,bn}2": "stage*.*.1.body.2.module.{0,1}",
        "head": "head.module.1",
    }

    def __init__(
        self, classes: int = 1000, dim: int = 384, heads: Sequence[int] = (6, 6, 6), depths: Sequence[int] = (1, 2, 7),
        *, channels: int = 3, mlp_ratio: float = 4.0, mode: str = "token", neuron: MakeNeuron = paper_neuron,
    ):  # fmt: skip
        check_neuron("QKFormer", neuron, v_threshold=0.5)
        if not all(isinstance(n, Sequence) and len(n) == 3 for n in (heads, depths)) or dim % 4 or dim < 8:
            raise ValueError(
                "QKFormer: heads and depths must have three values, and dim must be a multiple of 4, at least 8, but "
                f"they are {heads}, {depths} and {dim}"
            )
        parts: OrderedDict = OrderedDict()
        width = dim // 8
        stem = spiking(neuron, channels, width, pool=True)
        for i, (n, depth) in enumerate(zip(heads, depths)):
            halved = deformed_shortcut(width, dim * 2**i // 4, neuron)
            parts[f"embed{i + 1}"] = Sequential(stem, halved) if i == 0 else halved
            width = dim * 2**i // 4
            make = partial(QKAttention, mode=mode) if i < 2 else SpikingSelfAttention
            attentions = [make(width, n, neuron=neuron) for _ in range(depth)]
            parts[f"stage{i + 1}"] = Sequential(*(encoder_block(a, int(mlp_ratio * width), neuron) for a in attentions))
        super().__init__(parts | OrderedDict(head=read_out(dim, classes)))


def deformed_shortcut(inputs: int, outputs: int, neuron: MakeNeuron) -> Residual:
    """Halves an image: the spikes of two convolutions, added to those of one of size 1."""
    body = Sequential(conv_norm(inputs, outputs, pool=True), neuron(), conv_norm(outputs, outputs))
    return Residual(body, neuron(), spiking(neuron, inputs, outputs, 1, 2))


qkformer_10_384 = QKFormer
