"""Checks and conversions of scalars and dtypes for operators and neuron text."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

HALF_TYPES = (torch.float16, torch.bfloat16)
FLOATS = (*HALF_TYPES, torch.float32, torch.float64)


def state_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the type of states for inputs of this type: float32 for half types, else the same type."""
    return torch.float32 if dtype in HALF_TYPES else dtype


def is_number(value: object) -> bool:
    """Returns True for an int or float of Python, but not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole(value: Any) -> int | None:
    """Converts a whole number of Python, NumPy or a tensor to int; returns None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_whole(what: str, value: Any, most: int = 2**63 - 1) -> int:
    """Converts a whole number to int. Raises TypeError for anything else, and ValueError beyond 64 bits."""
    number = whole(value)
    if number is None:
        raise TypeError(f"{what} must be a whole number, but is {value!r:.60}")
    if not -(2**63) <= number <= most:
        raise ValueError(f"{what} must be a number of 64 bits, but is {number}")
    return number


def check_number(what: str, value: Any) -> float:
    """Converts a number of Python, NumPy or a tensor to float. Raises TypeError for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what} must be a number, but is {value!r:.60}") from None


def check_text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, but is {value!r:.60}")
    return value


def check_seed(what: str, value: Any) -> int:
    """Converts a seed of 64 bits, signed or unsigned as in torch, to a signed int for operators."""
    seed = check_whole(what, value, most=2**64 - 1)
    return seed if seed < 2**63 else seed - 2**64


def check_dtype(what: str, value: Any) -> torch.dtype | None:
    """Raises TypeError unless the value is a torch.dtype or None."""
    if not isinstance(value, torch.dtype | None):
        raise TypeError(f"{what} must be a torch.dtype such as torch.float32, but is {value!r:.60}")
    return value


def tensor_of(what: str, value: Any, dtype: torch.dtype | None = torch.float64) -> Tensor:
    """Converts scalars and arrays to a tensor: tensors and arrays keep their type; others get ``dtype``, on the CPU."""
    if isinstance(value, Tensor):
        return value.detach()
    try:
        if hasattr(value, "dtype"):
            dtype = None
            if hasattr(value, "__array__") and not hasattr(value, "__cuda_array_interface__"):
                import numpy

                value = numpy.asarray(value)  # also a pandas Series
                if not value.flags.writeable or min(value.strides, default=0) < 0:
                    value = value.copy()  # torch cannot share such memory
        numbers = torch.as_tensor(value, dtype=dtype, device="cpu")
        return numbers.long() if numbers.dtype in (torch.uint16, torch.uint32, torch.uint64) else numbers
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{what} must be a number, or numbers in a tensor, an array or a list, but is {value!r:.60}"
        ) from None


def check_indices(what: str, numbers: Tensor, size: int, least: int = 0) -> Tensor:
    """Returns indices from ``least`` to ``size - 1`` as int64 [count]. Raises TypeError or ValueError for others.

    An empty tensor may have any type: an empty list becomes one of float32.
    """
    if numbers.numel() and (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool):
        raise TypeError(f"{what} must be whole numbers, but are {numbers.dtype}")
    if numbers.dim() != 1:
        raise ValueError(f"{what} must have one dimension, but have shape {list(numbers.shape)}")
    numbers = numbers.long()
    wrong = numbers[(numbers < least) | (numbers >= size)]
    if len(wrong):
        raise ValueError(f"{what} must be from {least} to {size - 1}, but one is {int(wrong[0])}")
    return numbers


def operand(value: float) -> str:
    """Formats a number as an operand of neuron text."""
    number = float(value) if isinstance(value, float) else value  # NumPy's scalars print their type
    return f"({number!r})" if number < 0 else repr(number)
