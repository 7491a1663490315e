"""Pooling of sequences of images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

max_pool2d = torch.ops.spikeforge.max_pool2d.default
max_pool2d_statistics = torch.ops.spikeforge.max_pool2d_statistics.default
avg_pool2d = torch.ops.spikeforge.avg_pool2d.default
channel_statistics = torch.ops.spikeforge.channel_statistics.default
MOST_PLACES = 256  # of a window


class MaxPool2d(nn.MaxPool2d):
    """``torch.nn.MaxPool2d`` of images with any dimensions before the channels, such as ``[T, B, C, H, W]``.

    Results and gradients are torch's. Instead of x, the backward pass needs one byte for each result, its place in the
    window; so a window has at most 256 places. The result has x's memory format, contiguous or channels last.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.return_indices:
            raise ValueError("MaxPool2d: return_indices is not supported; use torch.nn.MaxPool2d in a TimeDistributed")

    def forward(self, input: Tensor) -> Tensor:
        return max_pooled(self, input)


class AvgPool2d(nn.AvgPool2d):
    """``torch.nn.AvgPool2d`` of images with any dimensions before the channels, such as ``[T, B, C, H, W]``.

    A window has at most 256 places. The result has x's memory format, contiguous or channels last.
    """

    def forward(self, input: Tensor) -> Tensor:
        windows = map(_numbers, (self.kernel_size, self.stride, self.padding))
        return avg_pool2d(input, *windows, self.ceil_mode, self.count_include_pad, self.divisor_override)


def max_pooled(module: nn.MaxPool2d, x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Pools x ``[..., C, H, W]`` by the options of torch's module. With the `weight` ``[C]`` of a normalisation that
    follows, it selects the elements that are the largest after it."""
    windows = map(_numbers, (module.kernel_size, module.stride, module.padding, module.dilation))
    return max_pool2d(x, *windows, module.ceil_mode, weight=weight)


def max_pooled_with_statistics(module: nn.MaxPool2d, x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Pools like max_pooled, and returns the mean and variance ``[C]`` of x ``[T, B, C, H, W]`` too."""
    if set(_numbers(module.dilation)) != {1}:
        return max_pooled(module, x, weight), *channel_statistics(x)
    windows = map(_numbers, (module.kernel_size, module.stride, module.padding))
    return max_pool2d_statistics(x, *windows, module.ceil_mode, weight=weight)


def has_byte_places(module: nn.MaxPool2d) -> bool:
    """Returns True if max_pooled supports the windows of the module."""
    size = _numbers(module.kernel_size)
    return 0 < len(size) <= 2 and size[0] * size[-1] <= MOST_PLACES and not module.return_indices


def goes_before_norm(module: nn.Module) -> bool:
    """Returns True if the pooling can run before a normalisation. The maximum of an increasing function is at the
    maximum of its argument, that of a decreasing one at the minimum."""
    if not isinstance(module, nn.MaxPool2d) or type(module).forward not in (nn.MaxPool2d.forward, MaxPool2d.forward):
        return False
    return "forward" not in module.__dict__ and has_byte_places(module)


def _numbers(given: int | tuple[int, ...]) -> list[int]:
    return [given] if isinstance(given, int) else list(given)
