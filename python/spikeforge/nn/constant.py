"""A neuron's constants: scalars, tensors, and parameters that are learned within bounds.

A constant is a number; a tensor, registered as a buffer; an ``nn.Parameter``, registered as it is; or a
:class:`Learnable`.

**A one-dimensional tensor has one value per channel.** Channels are dimension 2 of x ``[T, B, C, *spatial]``, or the
last dimension if x has fewer than three: for x ``[T, B, C, H, W]``, a tensor of shape ``[C]`` is reshaped to
``[C, 1, 1]``, so it never broadcasts along W, even if C and W are equal. ``Constant(value, dim=-1)`` selects another
dimension. Tensors of more dimensions broadcast from the right, as everywhere in torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spikeforge._numbers import is_number
from spikeforge._warnings import warn_caller
from spikeforge.nn.stateful import StatefulModule, shape_of

if TYPE_CHECKING:
    from typing import Self

CHANNELS = 2  # of x [T, B, C, *spatial]


class Constant:
    """A constant and, if it is a 1-dimensional tensor, the dimension of x that its values belong to.

    Args:
        value: a number, a tensor or an ``nn.Parameter``.
        dim: dimension of x, time first: 2 are the channels of ``[T, B, C, *spatial]``, -1 is the last dimension.
    """

    def __init__(self, value: float | Tensor, *, dim: int = CHANNELS):
        if dim == 0:
            raise ValueError("Constant: dim must not be 0, which is time: a constant does not change over the steps")
        self.value, self.dim = value, dim

    def __repr__(self) -> str:
        return f"Constant({_short(self.value)}, dim={self.dim})"


class Learnable(Constant):
    """A learnable constant: an ``nn.Parameter`` with the initial value `value`.

    Args:
        value: the initial value, a number or a tensor. The tensor is copied.
        min: lower bound. The optimiser may leave the bounds; the neuron uses ``torch.clamp(parameter, min, max)``, so
            the gradient is 0 beyond them. :func:`clamp_` after ``optimizer.step()`` moves a parameter back to them.
        max: upper bound.
        per_channel: the number of channels, each with its own value.
        shape: as an alternative, the parameter's shape.
        dim: the dimension of the channels in x, time first.

    >>> LIF(tau=Learnable(2.0, min=1.0, per_channel=64))
    """

    def __init__(
        self, value: float | Tensor, *, min: float | None = None, max: float | None = None,
        per_channel: int | None = None, shape: tuple[int, ...] | None = None, dim: int = CHANNELS,
    ):  # fmt: skip
        super().__init__(value, dim=dim)
        low, high = (-math.inf if min is None else min), (math.inf if max is None else max)
        if not low <= high:  # false for NaN
            raise ValueError(
                f"Learnable: min must not be above max, and neither may be NaN, but they are {min} and {max}"
            )
        if per_channel is not None and shape is not None:
            raise ValueError("Learnable: pass per_channel or shape, not both")
        if not isinstance(value, Tensor) and not is_number(value):
            raise TypeError(f"Learnable: value must be a number or a tensor, but is {type(value).__name__}")
        start = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value), device="cpu")
        outside = () if start.is_meta else start[~((start >= low) & (start <= high))]
        if len(outside):
            raise ValueError(f"Learnable: value is {outside[0].item():g}, outside its bounds [{low}, {high}]")
        self.min, self.max = min, max
        self.shape = (per_channel,) if per_channel is not None else shape

    def initial(self) -> Tensor:
        if isinstance(self.value, Tensor):
            value = self.value.detach()
            return (value if self.shape is None else value.expand(self.shape)).clone()
        return torch.full(self.shape or (), float(self.value))

    def __repr__(self) -> str:
        options = ((name, getattr(self, name)) for name in ("min", "max", "shape"))
        given = "".join(f", {name}={value}" for name, value in options if value is not None)
        return f"Learnable({_short(self.value)}{given})"


def _short(value: Any) -> str:
    return f"tensor {shape_of(value)}" if isinstance(value, Tensor) else repr(value)


def _extent(value: Tensor) -> tuple[float, float] | None:
    """Returns the smallest and the largest element of a plain tensor; None for other tensors and for an empty one."""
    if type(value) not in (Tensor, nn.Parameter) or value.is_meta or value.numel() == 0:
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None:  # under vmap, elements cannot be read
        return None
    low, high = value.detach().aminmax()
    return low.item(), high.item()


@dataclass(frozen=True)
class Placement:
    """The dimension and the bounds of a tensor constant."""

    dim: int | None = None  # None: broadcast from the right
    min: float | None = None
    max: float | None = None
    count: int = 0  # above 0: dimension 0 has this size, and each of its elements is a constant of the text

    def parts(self, name: str) -> list[str]:
        """Returns the names in neuron text of the constant's parts."""
        return [f"{name}{i}" for i in range(self.count)] if self.count else [name]

    @property
    def bounded(self) -> bool:
        return self.min is not None or self.max is not None

    def take(self, value: Tensor, x_dims: int) -> Tensor:
        if self.min is not None:
            value = value.clamp_min(self.min) if self.max is None else value.clamp(self.min, self.max)
        elif self.max is not None:
            value = value.clamp_max(self.max)
        if self.dim is not None and x_dims > 2 and value.dim() == 1:
            trailing = x_dims - 1 - self.dim if self.dim >= 0 else -1 - self.dim
            if trailing > 0 and value.numel() != 1:
                value = value.view(-1, *(1,) * trailing)
        return value


# The name of a tensor constant, its placement, and the fewest dimensions of x for which it must be reshaped.
Taken = tuple[str, Placement, float]


def taken_by(module: nn.Module, taken: tuple[Taken, ...], x_dims: int) -> dict[str, Tensor]:
    """Returns tensor constants in the form that an operator accepts for an x with `x_dims` dimensions."""
    parameters, values = module._parameters, {}
    for name, place, fewest_dims in taken:
        value = parameters.get(name)  # getattr of a module costs as much as a small operator
        if value is None:
            value = getattr(module, name)
        if place.count:
            values.update(zip(place.parts(name), (place.take(part, x_dims) for part in value.unbind())))
        else:
            values[name] = value if x_dims < fewest_dims else place.take(value, x_dims)
    return values


class ConstantsModule(StatefulModule):
    """A module with constants by name. An assignment (``lif.tau = 3.0``) acts like an argument of the constructor."""

    _positive: tuple[str, ...] = ()  # constants that must be finite and above 0
    _in_parts: tuple[str, ...] = ()  # constants with a part for each element of dimension 0

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._numbers: dict[str, float | None] = {}  # constants that are scalars
        self._placements: dict[str, Placement] = {}  # constants that are tensors
        self._initial: dict[str, float | Tensor] = {}  # initial values, which reset_parameters() restores
        self._constant_names: tuple[str, ...] = ()
        self._taken: tuple[Taken, ...] = ()

    def _set_constants(self, constants: Mapping[str, Any]) -> None:
        for name, value in constants.items():
            self._set_constant(name, value)
        self._constant_names = tuple(constants)
        self._changed()

    def _set_constant(self, name: str, value: Any) -> None:
        dim = value.dim if isinstance(value, Constant) else CHANNELS
        learnable = value if isinstance(value, Learnable) else None
        if isinstance(value, Constant):
            value = value.value
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and not learnable and value.requires_grad:
            raise ValueError(
                f"{self._title()}: {name} requires a gradient, but is not an nn.Parameter, so a module does not train "
                f"it; pass nn.Parameter({name}) or Learnable({name})"
            )
        if not (value is None and name == "v_reset") and not is_number(value) and not isinstance(value, Tensor):
            raise TypeError(
                f"{self._title()}: {name} must be a number, a tensor, an nn.Parameter or Learnable(...), but is "
                f"{type(value).__name__}"
            )
        if is_number(value) and math.isnan(value):
            raise ValueError(f"{self._title()}: {name} must not be NaN")
        if name in self._positive and name.startswith("tau"):
            self._warn_below_a_step(name, value)
        if name not in self._constant_names and hasattr(self, name):
            raise ValueError(f"{self._title()}: torch.nn.Module has an attribute '{name}'; rename the constant")
        if self._is_parametrized(name):
            if learnable:
                raise TypeError(f"{self._title()}: {name} is parametrized; assign its new value, a number or a tensor")
            if not isinstance(value, Tensor):
                value = torch.full_like(getattr(self, name), value)
            object.__setattr__(self, name, value.detach())  # by right_inverse of the parametrization
            return
        self._forget(name)
        if learnable:
            self._initial[name] = value.detach().clone() if isinstance(value, Tensor) else float(value)
            self._register(name, nn.Parameter(learnable.initial()))
            self._placements[name] = Placement(dim, learnable.min, learnable.max, self._count(name))
        elif isinstance(value, Tensor):
            self._register(name, value)
            self._placements[name] = Placement(dim, count=self._count(name))
        else:
            self._numbers[name] = value
            object.__setattr__(self, name, value)

    def _count(self, name: str) -> int:
        """Returns the number of parts of a tensor constant; 0 if it is one constant."""
        return len(getattr(self, name)) if name in self._in_parts else 0

    def _warn_below_a_step(self, name: str, value: float | Tensor) -> None:
        extent = (value,) if is_number(value) else _extent(value) if value.device.type == "cpu" else None
        shortest = extent[0] if extent else 0
        if 0 < shortest < 1:
            warn_caller(
                f"{self._title()}: {name} is {shortest:g}, less than one step, so the neuron overshoots: in each step "
                f"it moves by 1 / {name} > 1 of its distance to the input. Time constants are in steps; a decay beta "
                f"of other libraries is {name} = 1 / (1 - beta)"
            )

    def _is_parametrized(self, name: str) -> bool:
        """Returns True if torch.nn.utils.parametrize computes this constant."""
        return name in self._modules.get("parametrizations", ())

    def _register(self, name: str, value: Tensor) -> None:
        if isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
        else:
            self.register_buffer(name, value.detach().clone())

    def _forget(self, name: str) -> None:
        for place in (self._numbers, self._placements, self._initial, self._parameters, self._buffers):
            place.pop(name, None)
        if name in self.__dict__.get("_constant_names", ()):
            self.__dict__.pop(name, None)

    def _prepare(self) -> None:
        """Prepares calls after constants have changed."""

    def _changed(self) -> None:
        self._taken = tuple((name, place, self._fewest_dims(name, place)) for name, place in self._placements.items())
        self._prepare()

    def _fewest_dims(self, name: str, place: Placement) -> float:
        """Returns the number of dimensions of x from which the constant must be reshaped to broadcast."""
        value = getattr(self, name)
        if place.bounded:
            return 0
        if place.dim is None or value.dim() != 1 or value.numel() == 1:
            return math.inf
        return place.dim + 2 if place.dim > 0 else 0

    def __setattr__(self, name: str, value: Any) -> None:
        # Replicas of DataParallel, and parameters that torch.func replaces, are assigned unchanged.
        if name in self.__dict__.get("_constant_names", ()) and not self.__dict__.get("_is_replica"):
            self._replace_constant(name, value)
        else:
            super().__setattr__(name, value)

    def _replace_constant(self, name: str, value: Any) -> None:
        tables = (self._numbers, self._placements, self._initial, self._parameters, self._buffers)
        before = [(table, table[name]) for table in tables if name in table]
        try:
            self._set_constant(name, value)
            self._changed()
        except Exception:  # right_inverse of a parametrization may raise any
            self._forget(name)
            for table, old in before:
                table[name] = old
            if name in self._numbers:
                object.__setattr__(self, name, self._numbers[name])
            self._changed()
            raise

    def constant(self, name: str, x_dims: int) -> Tensor:
        """Returns a tensor constant, clamped and reshaped for an x with `x_dims` dimensions."""
        return self._placements[name].take(getattr(self, name), x_dims)

    def reset_parameters(self) -> None:
        """Resets every Learnable to its first value. An ``nn.Parameter`` that was passed does not change."""
        with torch.no_grad():
            for name, value in self._initial.items():
                parameter = getattr(self, name)
                if self._is_parametrized(name):
                    self._set_constant(name, value)
                else:
                    parameter.copy_(value) if isinstance(value, Tensor) else parameter.fill_(value)

    @torch.no_grad()
    def clamp_(self) -> Self:
        """Clamps its learned constants to their bounds, except parametrized ones."""
        for name, placement in self._placements.items():
            if placement.bounded and not self._is_parametrized(name):
                getattr(self, name).clamp_(placement.min, placement.max)
        return self

    def _described_constants(self) -> list[str]:
        return [
            self._described(name) for name in self._constant_names if not (name == "v_reset" and self.v_reset is None)
        ]

    def _described(self, name: str) -> str:
        if name in self._numbers:
            return f"{name}={self._numbers[name]}"
        value, placement = getattr(self, name), self._placements[name]
        learned, extent = isinstance(value, nn.Parameter), [float(f"{end:.6g}") for end in _extent(value) or ()]
        text = f"{name}={extent[0] if extent and value.dim() == 0 else shape_of(value)}"
        if learned:
            text += f" from {extent[0]} to {extent[1]} learned" if extent and value.dim() else " learned"
        if placement.bounded:
            low = -math.inf if placement.min is None else placement.min
            high = math.inf if placement.max is None else placement.max
            text += f" in [{low}, {high}]"
        return text
