"""MS-ResNet: Hu et al., "Advancing spiking neural networks toward deep residual learning", IEEE TNNLS 2024."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from spikeforge.models.parts import ImageNetwork, MakeNeuron, Residual, conv_norm, read_out, strides
from spikeforge.nn.attention import check_neuron
from spikeforge.nn.containers import Sequential
from spikeforge.nn.neurons import LIF
from spikeforge.surrogate import Rect

leaky = partial(LIF, tau=4 / 3, decay_input=False, v_threshold=0.5, surrogate=Rect(2.0), detach_reset=True)


class MSResNet(ImageNetwork):
    """A ResNet with membrane shortcuts, which add the currents of neurons: a block is neuron, convolution,
    normalisation, twice, plus its input. Images ``[T, B, channels, H, W]`` to ``[T, B, classes]``.

    The weights of normalisations are initially the threshold 0.5, and 0 for the last one of a block: each block begins
    as the identity.

    Args:
        classes: the number of classes.
        depths: the number of blocks of each stage; each has twice the channels of the one before it, and half the size.
        width: the channels of the first stage.
        channels: the number of channels of an image, 1 for grey images.
        neuron: creates a neuron; by default the paper's LIF, V = V / 4 + X, with threshold 0.5 and the derivative 2
            within 1/4 of the threshold.
    """

    SPIKINGJELLY = {
        "stem.*": "stem.module.*",
        "layer*.*.{conv,bn}1": "layer*.*.body.1.module.{0,1}",
        "layer*.*.{conv,bn}2": "layer*.*.body.3.module.{0,1}",
        "layer*.*.downsample.*": "layer*.*.shortcut.module.*",
        "head": "head.1.module.1",
    }

    def __init__(
        self, classes: int = 1000, depths: Sequence[int] = (2, 2, 2, 2), *, width: int = 64, channels: int = 3,
        neuron: MakeNeuron = leaky,
    ):  # fmt: skip
        check_neuron("MSResNet", neuron)
        parts: OrderedDict = OrderedDict(stem=conv_norm(channels, width, 7, 2, weight=0.5))
        inputs = width
        for i, depth in enumerate(depths):
            outputs, blocks = width * 2**i, []
            for stride in strides("MSResNet", 2, depth):
                first, second = conv_norm(inputs, outputs, 3, stride, weight=0.5), conv_norm(outputs, outputs, weight=0)
                shortcut = conv_norm(inputs, outputs, 1, stride, weight=0.5) if stride != 1 else None
                blocks.append(Residual(Sequential(neuron(), first, neuron(), second), shortcut=shortcut))
                inputs = outputs
            parts[f"layer{i + 1}"] = Sequential(*blocks)
        super().__init__(parts | OrderedDict(head=Sequential(neuron(), read_out(inputs, classes))))


ms_resnet18 = MSResNet
ms_resnet34 = partial(MSResNet, depths=(3, 4, 6, 3))
