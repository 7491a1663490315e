"""The operators: `spikeforge.ops.lif` is `torch.ops.spikeforge.lif`, typed for editors by ops.pyi.

An operator is called as it is (`ops.lif(x, tau=2.0)`); `ops.lif.default` and its other overloads are those of torch.
docs/operators.md, docs/events.md and docs/loihi.md describe them.
"""

from __future__ import annotations

import difflib
import inspect
import re
from pathlib import Path
from typing import Any

import torch

from spikeforge import _library

_library.load()

_NAMESPACE = "spikeforge::"
# Suffixes of internal operators, which autograd and compilers call; they may change.
_INNER = ("_forward", "_backward", "_product", "_grad", "_deliver", "_deliver_")

__all__ = sorted(
    {
        name.removeprefix(_NAMESPACE).split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(_NAMESPACE) and not name.split(".")[0].endswith(_INNER)
    }
)
globals().update({name: getattr(torch.ops.spikeforge, name) for name in __all__})


def _add_docstrings() -> None:
    """Sets the docstring of each operator from the stubs."""
    stubs = Path(__file__).with_suffix(".pyi")
    if not stubs.exists():  # a copy of the package without them
        return
    pieces = stubs.read_text(encoding="utf-8").split('"""')[2:]  # alternately code and docstrings
    for code, text in zip(pieces[::2], pieces[1::2]):
        name = re.findall(r"^def (\w+)", code, re.MULTILINE)[-1]
        if name in __all__:
            globals()[name].__doc__ = inspect.cleandoc(text)


_add_docstrings()


def __getattr__(name: str) -> Any:
    try:
        if not name.startswith("_"):
            return getattr(torch.ops.spikeforge, name)
    except AttributeError:
        pass
    near = difflib.get_close_matches(name, __all__, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise AttributeError(f"spikeforge.ops has no operator {name}{hint}")


def __dir__() -> list[str]:
    return list(__all__)
