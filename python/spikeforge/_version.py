"""The version: read from csrc/base/version.h in the source tree, else from the installed package's metadata."""

import re
from importlib import metadata
from pathlib import Path

_HEADER = Path(__file__).resolve().parents[2] / "csrc" / "base" / "version.h"


def _version() -> str:
    if not _HEADER.is_file():
        return metadata.version("spikeforge")
    numbers = dict(re.findall(r"#define SPIKEFORGE_VERSION_(MAJOR|MINOR|PATCH) (\d+)", _HEADER.read_text()))
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))


__version__ = _version()
