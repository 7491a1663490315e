"""SEW-ResNet: Fang et al., "Deep residual learning in spiking neural networks", NeurIPS 2021."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from torch import nn

from spikeforge.models.parts import ImageNetwork, MakeNeuron, Residual, conv_norm, read_out, spiking, strides
from spikeforge.nn.attention import check_neuron
from spikeforge.nn.containers import Sequential, TimeDistributed
from spikeforge.nn.neurons import IF
from spikeforge.nn.pooling import MaxPool2d

integrate = partial(IF, surrogate="atan", detach_reset=True)


class SEWResNet(ImageNetwork):
    """A ResNet whose blocks join spikes with spikes (spike-element-wise): figure 1(c) of the paper. Images ``[T, B,
    channels, H, W]`` to ``[T, B, classes]``.

    Args:
        classes: the number of classes.
        depths: the number of blocks of each stage; each has twice the channels of the one before it, and half the size.
        width: the channels of the first stage.
        bottleneck: blocks of three convolutions (1, 3 and 1 pixels), with four times the channels at their ends,
            instead of two.
        groups, width_per_group: of the middle convolution of a bottleneck, as in torchvision's ResNeXt.
        join: "add", "and" or "iand" (:class:`Residual`); SpikingJelly's bottlenecks swap s and r in "iand".
        channels: the number of channels of an image, 1 for grey images.
        neuron: creates a neuron; by default an IF with the derivative of an arctangent, and a detached reset.
    """

    SPIKINGJELLY = {
        "{conv,bn}1": "stem.0.module.{0,1}",
        "layer*.*.{conv,bn}1": "layer*.*.body.0.module.{0,1}",
        "layer*.*.{conv,bn}2": "layer*.*.body.2.module.{0,1}",
        "layer*.*.{conv,bn}3": "layer*.*.body.4.module.{0,1}",
        "layer*.*.downsample.*": "layer*.*.shortcut.0.module.*",
        "fc": "head.module.1",
    }

    def __init__(
        self, classes: int = 1000, depths: Sequence[int] = (2, 2, 2, 2), *, width: int = 64, bottleneck: bool = False,
        groups: int = 1, width_per_group: int = 64, join: str = "add", channels: int = 3,
        neuron: MakeNeuron = integrate,
    ):  # fmt: skip
        check_neuron("SEWResNet", neuron)
        parts: OrderedDict = OrderedDict()
        parts["stem"] = Sequential(conv_norm(channels, width, 7, 2), neuron(), TimeDistributed(MaxPool2d(3, 2, 1)))
        inputs = width
        for i, depth in enumerate(depths):
            planes = width * 2**i
            inner = planes * width_per_group // 64 * groups
            outputs = 4 * planes if bottleneck else planes
            blocks = []
            for stride in strides("SEWResNet", 1 if i == 0 else 2, depth):
                if bottleneck:
                    layers = [conv_norm(inputs, inner, 1), neuron(), conv_norm(inner, inner, 3, stride, groups=groups),
                              neuron(), conv_norm(inner, outputs, 1)]  # fmt: skip
                else:
                    layers = [conv_norm(inputs, outputs, 3, stride), neuron(), conv_norm(outputs, outputs)]
                changes = stride != 1 or inputs != outputs
                shortcut = spiking(neuron, inputs, outputs, 1, stride) if changes else None
                blocks.append(Residual(Sequential(*layers), neuron(), shortcut, join))
                inputs = outputs
            parts[f"layer{i + 1}"] = Sequential(*blocks)
        super().__init__(parts | OrderedDict(head=read_out(inputs, classes)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


_bottleneck = partial(SEWResNet, bottleneck=True)
sew_resnet18 = SEWResNet
sew_resnet34 = partial(SEWResNet, depths=(3, 4, 6, 3))
sew_resnet50 = partial(_bottleneck, depths=(3, 4, 6, 3))
sew_resnet101 = partial(_bottleneck, depths=(3, 4, 23, 3))
sew_resnet152 = partial(_bottleneck, depths=(3, 8, 36, 3))
sew_resnext50_32x4d = partial(sew_resnet50, groups=32, width_per_group=4)
sew_resnext101_32x8d = partial(sew_resnet101, groups=32, width_per_group=8)
sew_wide_resnet50_2 = partial(sew_resnet50, width_per_group=128)
sew_wide_resnet101_2 = partial(sew_resnet101, width_per_group=128)
