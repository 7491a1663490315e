"""The operators of libspikeforge_nir_nn, which are loaded when NIR is first used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spikeforge import _library

_library.load_nir()

load_file = torch.ops.spikeforge_nir.load_file
load_values = torch.ops.spikeforge_nir.load_values
save_file = torch.ops.spikeforge_nir.save_file
save_values = torch.ops.spikeforge_nir.save_values


def in_one_line(operator: Callable[..., Any], *arguments: Any) -> Any:
    """Calls an operator; an error has only the first line, without torch's additions."""
    try:
        return operator(*arguments)
    except ValueError as error:
        raise ValueError(str(error).split("\n", 1)[0]) from None


def warn_of(texts: Sequence[str], stacklevel: int) -> None:
    for text in texts:
        warnings.warn(text, stacklevel=stacklevel + 1)
