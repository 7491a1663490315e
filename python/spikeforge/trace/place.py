"""The position in the user's code during a trace: for errors, and for the names of values."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch

from . import graph

_LONGEST_SOURCE = 100
_FILES = Path(__file__), Path(torch.__file__)
_FOLDERS = [folder for file in _FILES for folder in (file.parent, file.resolve().parent)]
_NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in _FOLDERS)


def user_frame() -> FrameType | None:
    """Returns the innermost frame that belongs neither to this package's tracer nor to torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return frame


def here() -> str:
    """Returns the running line of the user's code: its file, its number and its text."""
    frame = user_frame()
    if frame is None:
        return "the traced function"
    file, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(file, line, frame.f_globals).strip()
    if len(source) > _LONGEST_SOURCE:
        source = source[:_LONGEST_SOURCE] + "..."
    where = f"{file}:{line}"
    return f"{where}: `{source}`" if source else where


def fail(message: str, error: type[Exception] = TypeError) -> NoReturn:
    """Raises an error that names the neuron in trace and shows the user's line."""
    recording = graph.current()
    name = f"{recording.neuron}: " if recording else ""
    raise error(f"{name}{message} ({here()})")
