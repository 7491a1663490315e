"""Linear layers and convolutions that keep bits of their input, and are recomputed in the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spikeforge._numbers import FLOATS
from spikeforge.accelerate import in_pieces, replacing
from spikeforge.accelerate.replacing import Replaced, ReplacedLayer

linear = torch.ops.spikeforge.linear.default
convolution = torch.ops.spikeforge.convolution.default
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS = "spikingjelly.activation_based.layer"


class Recomputed(ReplacedLayer):
    """A product that is recomputed in the backward pass from its input, kept in `_bits` bits per element (0: as it
    is)."""

    @property
    def _bits(self) -> int:
        return self.__dict__["_spikeforge_bits"]


class RecomputedLinear(Recomputed):
    def forward(self, input: Tensor) -> Tensor:
        if input.dtype not in FLOATS:
            return super().forward(input)
        return linear(input, self.weight, self.bias, bits=self._bits, recompute=True)


class RecomputedConvolution(Recomputed):
    def forward(self, input: Tensor) -> Tensor:
        result = in_pieces.run_pieces(self, input) if "_spikeforge_chain" in self.__dict__ else None
        return super().forward(input) if result is None else result

    def _product(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Computes the product by torch's own operator."""
        return super()._conv_forward(input, weight, bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.dtype not in FLOATS or input.dim() != weight.dim():
            return super()._conv_forward(input, weight, bias)
        options = self.stride, self.padding, self.dilation, self.groups
        return convolution(input, weight, bias, *options, bits=self._bits, recompute=True)


def is_product(module: nn.Module) -> bool:
    """Returns True for torch's products, and SpikingJelly's of the same name, with supported options."""
    own = replacing.own_class(module)
    if isinstance(module, Replaced) or "forward" in module.__dict__:
        return False
    kind = own.__mro__[1] if own.__module__.startswith(LAYERS) else own
    if kind is nn.Linear:
        return True
    return kind in CONVOLUTIONS and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def recompute(product: nn.Module, bits: int) -> None:
    """Makes a product keep its input in `bits` bits per element (0: unchanged), and recompute its result from it."""
    replacing.replace(product, RecomputedLinear if isinstance(product, nn.Linear) else RecomputedConvolution)
    product.__dict__["_spikeforge_bits"] = bits
