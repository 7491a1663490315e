"""Pooling of sequences of images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

max_pool2d = torch.ops.spikeforge.max_pool2d.default
avg_pool2d = torch.ops.spikeforge.avg_pool2d.default


class MaxPool2d(nn.MaxPool2d):
    """``torch.nn.MaxPool2d`` of images ``[..., C, H, W]`` with any dimensions before the channels, as ``[T, B, C, H, W]``.

    Results and gradients are torch's. Of x nothing is kept for the backward pass, but a byte for each result: the place
    in its window that it is from, so that a window has at most 256 places. The result has x's order of memory, plain or
    channels last.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.return_indices:
            raise ValueError("MaxPool2d: return_indices is not there; use torch.nn.MaxPool2d in a TimeDistributed")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, torch's name
        return max_pooled(self, input)


class AvgPool2d(nn.AvgPool2d):
    """``torch.nn.AvgPool2d`` of images ``[..., C, H, W]`` with any dimensions before the channels, as ``[T, B, C, H, W]``.

    A window has at most 256 places. The result has x's order of memory, plain or channels last.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        windows = map(_numbers, (self.kernel_size, self.stride, self.padding))
        return avg_pool2d(input, *windows, self.ceil_mode, self.count_include_pad, self.divisor_override)


def max_pooled(module: nn.MaxPool2d, x: Tensor) -> Tensor:
    """x ``[..., C, H, W]`` by the options of torch's module."""
    windows = map(_numbers, (module.kernel_size, module.stride, module.padding, module.dilation))
    return max_pool2d(x, *windows, module.ceil_mode)


def _numbers(given: int | tuple[int, ...]) -> list[int]:
    return [given] if isinstance(given, int) else list(given)
