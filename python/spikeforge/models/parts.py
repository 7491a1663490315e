"""The blocks that the networks share."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType

from torch import Tensor, nn

from spikeforge.nn.attention import check_images
from spikeforge.nn.containers import Sequential, TimeDistributed
from spikeforge.nn.pooling import MaxPool2d
from spikeforge.nn.stateful import States

MakeNeuron = Callable[..., nn.Module]
JOINS = ("add", "and", "iand")


def conv_norm(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, *, groups: int = 1, pool: bool = False,
    weight: float = 1.0,
) -> TimeDistributed:  # fmt: skip
    """A convolution without bias, a batch normalisation whose `weight` has this initial value, and with `pool` a max
    pooling to half the size: the layers before a neuron."""
    norm = nn.BatchNorm2d(outputs)
    nn.init.constant_(norm.weight, weight)
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return TimeDistributed(convolution, norm, *([MaxPool2d(3, 2, 1)] if pool else []))


def spiking(neuron: MakeNeuron, *args, **options) -> Sequential:
    """:func:`conv_norm` and a neuron."""
    return Sequential(conv_norm(*args, **options), neuron())


def mlp(dim: int, hidden: int, neuron: MakeNeuron) -> Sequential:
    """Two layers for each token, with a neuron between them."""
    return Sequential(conv_norm(dim, hidden, 1), neuron(), conv_norm(hidden, dim, 1))


def splitting_channels(network: str, channels: int, dim: int) -> list[int]:
    """The channels of the image, and after each of the four convolutions of a patch splitting."""
    if dim < 8:
        raise ValueError(f"{network}: dim must be at least 8, for dim / 8 channels of a convolution, but is {dim}")
    return [channels, dim // 8, dim // 4, dim // 2, dim]


def strides(network: str, first: int, depth: int) -> list[int]:
    """The strides of the blocks of a stage of a ResNet."""
    if depth < 1:
        raise ValueError(f"{network}: depths must be numbers of blocks, at least 1, but one of them is {depth}")
    return [first] + [1] * (depth - 1)


class ImageMean(nn.Module):
    """The mean over an image, ``[B, C, H, W]`` to ``[B, C]``. The gradient has x's memory format, unlike that of
    ``torch.nn.AdaptiveAvgPool2d(1)``, which is contiguous, and is then copied by each layer of a residual network."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(x, x.shape[-2:]).flatten(1)


def read_out(channels: int, classes: int) -> TimeDistributed:
    """The mean over an image, and a linear layer."""
    return TimeDistributed(ImageMean(), nn.Linear(channels, classes))


class ImageNetwork(Sequential):
    """Named parts, called one after the other on images ``[T, B, channels, H, W]``."""

    def forward(self, x: Tensor, state: States | EllipsisType = ..., *, store_states: bool = False):
        check_images(self._title(), x, hint="; images.float().expand(T, -1, -1, -1, -1) repeats images for T steps")
        return super().forward(x, state, store_states=store_states)


class Residual(nn.Module):
    """Joins the result of layers with their input x.

    With a neuron, spikes are joined: s = neuron(body(x)) with r = shortcut(x). Without one, the currents are: body(x) +
    shortcut(x), a membrane shortcut, whose sum the next neuron reads.

    Args:
        body, neuron, shortcut: modules; without `shortcut`, r is x.
        join: "add" s + r, "and" s r, "iand" (1 - s) r (Fang et al., SEW-ResNet, NeurIPS 2021, table 1).
    """

    def __init__(
        self, body: nn.Module, neuron: nn.Module | None = None, shortcut: nn.Module | None = None, join: str = "add"
    ):
        super().__init__()
        if join not in JOINS:
            raise ValueError(f"Residual: join must be 'add', 'and' or 'iand', but is {join!r}")
        self.body, self.neuron, self.shortcut, self.join = body, neuron, shortcut, join

    def forward(self, x: Tensor) -> Tensor:
        r = x if self.shortcut is None else self.shortcut(x)
        y = self.body(x) if self.neuron is None else self.neuron(self.body(x))
        if self.join == "add":
            return y + r
        return y * r if self.join == "and" else (1 - y) * r

    def extra_repr(self) -> str:
        return f"join={self.join!r}"
