"""Weights of SpikingJelly's models."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from spikeforge.nn.attention import Attention


def from_spikingjelly(model: nn.Module, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """Loads the ``state_dict()`` of SpikingJelly's model of the same name and sizes into `model`, and returns it.

    ``type(model).SPIKINGJELLY`` is the map of module names: ``*`` is a number, and ``{a,b}`` one of these words, which
    is replaced by the word at the same place. Values change as follows:

    - Queries, keys and values, ``[3, heads, C / heads]`` in SpikingJelly, are ``[heads, 3, C / heads]`` here. The
      separate layers of its Spike-driven Transformer are concatenated.
    - Convolutions of tokens, ``[out, in, 1]``, become ``[out, in, 1, 1]``.
    - The bias of a convolution before a batch normalisation is subtracted from the running mean.

    Load before :func:`spikeforge.nn.fuse`, which renames parameters. Raises ValueError for a name that the map lacks,
    and RuntimeError, as ``load_state_dict`` does, if names are missing or shapes differ.
    """
    names = getattr(type(model), "SPIKINGJELLY", None)
    if names is None:
        raise TypeError(
            f"from_spikingjelly: model must be a network of spikeforge.models, but is {type(model).__name__}"
        )
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"from_spikingjelly: state_dict must be the state_dict() of a model, but is {type(state_dict).__name__}"
        )
    table = list(_expanded(names))
    found: dict[str, list[Tensor]] = {}
    for key, value in state_dict.items():
        module, _, leaf = key.rpartition(".")
        found.setdefault(f"{_renamed(module, table)}.{leaf}", []).append(value)
    values = {key: torch.cat(parts) if parts[0].dim() else parts[0] for key, parts in found.items()}
    here = model.state_dict().keys()
    for key in [key for key in values if key not in here and key.endswith("module.0.bias")]:
        mean = key.replace("module.0.bias", "module.1.running_mean")
        values[mean] = values[mean] - values.pop(key)
    for path, attention in model.named_modules():
        if isinstance(attention, Attention):
            shape = attention.PARTS, attention.heads, attention.dim // attention.heads
            for key, value in values.items():
                if key.startswith(f"{path}.heads_projection.") and value.shape[:1].numel() == math.prod(shape) > 1:
                    values[key] = value.unflatten(0, shape).transpose(0, 1).flatten(0, 2)
    model.load_state_dict({key: value[..., None] if value.dim() == 3 else value for key, value in values.items()})
    return model


def _expanded(table: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields a regular expression and a format string for each name."""
    for source, target in table.items():
        targets = _words(target)
        for i, name in enumerate(_words(source)):
            yield re.escape(name).replace(r"\*", r"(\d+)"), targets[i % len(targets)].replace("*", "{}")


def _words(text: str) -> list[str]:
    """Expands "a{b,c}d" to "abd" and "acd"."""
    before, *words, after = re.split("[{},]", text) if "{" in text else (text, "", "")
    return [before + word + after for word in words]


def _renamed(module: str, table: Iterable[tuple[str, str]]) -> str:
    for pattern, target in table:
        if match := re.fullmatch(pattern, module):
            return target.format(*match.groups())
    raise ValueError(
        f"from_spikingjelly: state_dict must be that of SpikingJelly's model, whose modules are the names in "
        f"type(model).SPIKINGJELLY, but contains '{module}'"
    )
