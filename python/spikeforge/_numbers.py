"""Numbers and types, as the operators and neuron text take them."""

from __future__ import annotations

import operator
from typing import Any

import torch

HALF_TYPES = (torch.float16, torch.bfloat16)
FLOATS = (*HALF_TYPES, torch.float32, torch.float64)


def state_type(dtype: torch.dtype) -> torch.dtype:
    """The type of the states beside an input of this type: float32 for half types, else the type itself."""
    return torch.float32 if dtype in HALF_TYPES else dtype


def is_number(value: object) -> bool:
    """A Python number, which a text or an operator takes as a constant."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole(value: Any) -> int | None:
    """A whole number of Python, numpy or a tensor as an int; None of anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def operand(value: float) -> str:
    """A number as an operand in neuron text."""
    return f"({value!r})" if value < 0 else repr(value)
