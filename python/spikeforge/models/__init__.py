"""Published networks as modules of :mod:`spikeforge.nn`. See ``docs/models.md``.

Each maps images ``[T, B, channels, H, W]`` to ``[T, B, classes]``; :func:`spikeforge.losses.mean_over_time` is the
read-out of all papers. States are those of :class:`spikeforge.nn.Sequential`.
"""

from spikeforge.models.ms_resnet import MSResNet, ms_resnet18, ms_resnet34
from spikeforge.models.parts import Residual
from spikeforge.models.qkformer import QKFormer, qkformer_10_384
from spikeforge.models.sew_resnet import (
    SEWResNet,
    sew_resnet18,
    sew_resnet34,
    sew_resnet50,
    sew_resnet101,
    sew_resnet152,
    sew_resnext50_32x4d,
    sew_resnext101_32x8d,
    sew_wide_resnet50_2,
    sew_wide_resnet101_2,
)
from spikeforge.models.spike_driven_transformer import SpikeDrivenTransformer, sdt_8_384
from spikeforge.models.spikformer import Spikformer, spikformer_cifar10, spikformer_s, spikformer_ti
from spikeforge.models.spikingjelly import from_spikingjelly

__all__ = [
    "MSResNet", "QKFormer", "Residual", "SEWResNet", "SpikeDrivenTransformer", "Spikformer", "from_spikingjelly",
    "ms_resnet18", "ms_resnet34", "qkformer_10_384", "sdt_8_384", "sew_resnet101", "sew_resnet152", "sew_resnet18",
    "sew_resnet34", "sew_resnet50", "sew_resnext101_32x8d", "sew_resnext50_32x4d", "sew_wide_resnet101_2",
    "sew_wide_resnet50_2", "spikformer_cifar10", "spikformer_s", "spikformer_ti",
]  # fmt: skip
