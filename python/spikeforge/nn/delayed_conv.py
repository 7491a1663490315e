"""Convolutions whose delays are learned."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from spikeforge._numbers import whole
from spikeforge.nn.delayed_linear import DelayedLayer


class _DelayedConv(DelayedLayer):
    dims: int

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int | tuple[int, ...], max_delay: int, *,
        stride: int | tuple[int, ...] = 1, padding: int | tuple[int, ...] = 0, dilation: int | tuple[int, ...] = 1, groups: int = 1,
        delay: float | Tensor | None = None, interpolation: str = "linear", width: float = 0.5, bias: bool = True,
        stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        super().__init__(max_delay, interpolation, width, stateful, persistent_state)
        sizes = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
        for name, size in sizes.items():
            setattr(self, name, self._sizes(name, size, 0 if name == "padding" else 1))
        counts = (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups))
        in_channels, out_channels, groups = (self._whole(name, count, 1) for name, count in counts)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{self._kind()}: groups must divide in_channels and out_channels, {in_channels} and {out_channels}, but is {groups}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        self.weight = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_channels).uniform_(-bound, bound)) if bias else None
        self.delay = self._first_delays(shape, delay)

    def _sizes(self, name: str, given: int | tuple[int, ...], least: int) -> tuple[int, ...]:
        sizes = [whole(n) for n in (given if isinstance(given, (tuple, list)) else (given,) * self.dims)]
        if len(sizes) != self.dims or any(n is None or n < least for n in sizes):
            raise ValueError(
                f"{self._kind()}: {name} must be {self.dims} whole numbers of {least} or more, or one for all, but is "
                f"{given!r}"
            )
        return tuple(sizes)

    def kernel(self) -> Tensor:
        """Returns the weights spread over the steps of their delays: ``[out, in / groups, max_delay + 1,
        *kernel_size]``, delay 0 first."""
        return self.weight.unsqueeze(2) * spread(self.delay, self.max_delay, self.interpolation, self._narrowed())

    def _computed(self, x: Tensor, past: Tensor | None) -> Tensor:
        shape = f"[T, B, {self.in_channels}{', size' * self.dims}]"
        if x.dim() != self.dims + 3 or x.shape[2] != self.in_channels:
            raise ValueError(f"x must have shape {shape}, but has {list(x.shape)}")
        if x.dtype != self.weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"x must be {self.weight.dtype}, the type of the weights, but is {x.dtype}")
        wanted = (self.max_delay, *x.shape[1:])
        if past is None:
            past = x.new_zeros(wanted)
        elif past.shape != wanted:
            raise ValueError(f"the state x must have shape {list(wanted)}, but has {list(past.shape)}")
        images = torch.cat((past, x)).movedim(0, 2)  # [B, C, time, *sizes]
        convolve = nn.functional.conv2d if self.dims == 1 else nn.functional.conv3d
        y = convolve(
            images, self.kernel().flip(2), self.bias, (1, *self.stride), (0, *self.padding), (1, *self.dilation),
            self.groups,
        )  # fmt: skip
        if torch.compiler.is_compiling():
            return y.movedim(2, 0)
        return y.transpose_(0, 2).transpose_(1, 2)  # [time, B, C, *sizes], not a view

    def extra_repr(self) -> str:
        return (f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, max_delay={self.max_delay}, stride={self.stride}, "
                f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, interpolation={self._form()}")  # fmt: skip


class DelayedConv1d(_DelayedConv):
    """``nn.Conv1d`` with a learned delay for each weight of its kernels. State: x, the last inputs.

    Args:
        in_channels, out_channels: of x ``[T, B, in, size]`` and y ``[T, B, out, size]``.
        kernel_size, stride, padding, dilation, groups: as in ``nn.Conv1d``; they do not apply to time.
        max_delay: the longest delay, in steps.
        delay: the initial delays, a number or a tensor of the weights' shape; by default uniform from 0 to max_delay.
        interpolation, width: see :class:`DelayedLinear`, which also describes ``clamp_``, ``round_`` and the
            ``state_dict``.
        bias: add a learned bias.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.

    Each call computes a kernel from weights and delays, ``max_delay + 1`` times as large as that of ``nn.Conv1d``, for
    torch's convolution over time and space. Source: Hammouamri, Khalfaoui-Hassani and Masquelier, ICLR 2024.
    """

    dims = 1


class DelayedConv2d(_DelayedConv):
    """``nn.Conv2d`` with a learned delay for each weight of its kernels; x is ``[T, B, in, height, width]``. See
    :class:`DelayedConv1d`."""

    dims = 2


def spread(delay: Tensor, max_delay: int, interpolation: str, width: float) -> Tensor:
    """Returns the weight of each step 0, ..., max_delay for delays ``[out, in, *rest]``: ``[out, in, max_delay + 1,
    *rest]`` (docs/delays.md)."""
    steps = torch.arange(max_delay + 1, dtype=delay.dtype, device=delay.device).view(-1, *[1] * (delay.dim() - 2))
    delay = delay.clamp(0, max_delay).unsqueeze(2)
    if interpolation == "linear":
        first = delay.detach().floor().clamp(max=max(max_delay - 1, 0))
        beyond = delay - first
        return torch.where(
            steps == first, 1 - beyond, torch.where(steps == first + 1, beyond, torch.zeros_like(beyond))
        )
    if interpolation == "triangle":
        share = (1 + width - (steps - delay).abs()).relu()
    else:
        distance = (steps - delay) ** 2
        # Distances are relative to the nearest step: a narrow Gaussian would be 0 at every step.
        beyond = distance - distance.detach().amin(2, keepdim=True)
        share = torch.exp(-beyond / (2 * width**2))
    return share / share.sum(2, keepdim=True)
