"""Issues warnings at the user's line."""

from __future__ import annotations

import sys
import warnings


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line outside this package and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("spikeforge", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
