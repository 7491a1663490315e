"""Readers of files of events, and of spike trains in HDF5."""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def read(path: str | os.PathLike[str]) -> Array:
    """Reads the events of one recording: a structured array with the fields t (int64), x, y and p, for
    :meth:`Events.of <spikeforge.data.Events.of>` and the transforms of tonic.

    The suffix of ``path`` selects the format:

    ============ =========================================================================== =============
    ``.bin``     N-MNIST and N-Caltech101: words of 40 bits                                  microseconds
    ``.npy``     a structured array with the fields t, x and, if present, y and p, integers  as stored
    ``.npz``     such an array, or an array for each field                                   as stored
    ``.raw``     Prophesee's EVT 2.0 and EVT 3.0                                             microseconds
    ``.dat``     Prophesee's DAT                                                             microseconds
    ``.aedat``   AEDAT 2 of a DVS128 (CIFAR10-DVS), AEDAT 3.1 (DVS128 Gesture) and AEDAT 4   microseconds
    ``.aedat4``  AEDAT 4, through the package aedat                                          microseconds
    ============ =========================================================================== =============

    Events keep the order of the file. Events before the first complete time of a Prophesee file are skipped, as are
    events that AEDAT 3.1 marks as invalid, and events that do not come from pixels.

    Raises:
        ValueError: if the format is unknown, or the file is empty, damaged or of another format.
        ImportError: if the package that reads the format is not installed.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"read: {path} has none of the suffixes {', '.join(_READERS)}; SpikeTrains reads HDF5")
    data = path.read_bytes()
    if not data:
        raise ValueError(f"read: {path} is empty")
    try:
        return reader(data, path)
    except ImportError:
        raise
    except Exception as error:  # decoders of damaged bytes raise many kinds
        raise _damaged("read", path, error) from None


class SpikeTrains(torch.utils.data.Dataset[tuple[Array, int]]):
    """The spike trains of an HDF5 file with the layout of the Spiking Heidelberg Digits and Spiking Speech Commands
    (Cramer et al., 2020): ``spikes/times`` in seconds and ``spikes/units``, an array for each sample, and ``labels``.

    Sample i is ``(events, label)``. ``events`` is a structured array with the fields t (int64, microseconds, ascending)
    and x (int32, units). A sample is read when it is used, also by the workers of a ``DataLoader``. h5py reads the
    file: a damaged byte in its inner structure can make the HDF5 library loop, so do not read files of unknown origin.

    Attributes:
        labels: int64 [samples].

    Raises:
        ValueError: if the file, or a sample that is read, is damaged.
        ImportError: without h5py.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.labels = self._read(self._labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        label = int(self.labels[index])  # raises IndexError
        return self._read(lambda file: self._sample(file, index)), label

    def _read(self, function: Callable[[Any], Array]) -> Array:
        try:
            import h5py
        except ImportError as error:
            raise ImportError(f"SpikeTrains needs h5py: pip install h5py ({error})") from None
        if not self.path.is_file():
            raise FileNotFoundError(f"SpikeTrains: there is no file {self.path}")
        try:
            with h5py.File(self.path, "r") as file:
                return function(file)
        except Exception as error:  # h5py raises many kinds
            raise _damaged("SpikeTrains", self.path, error) from None

    def _labels(self, file: Any) -> Array:
        times, units, labels = (file[name] for name in ("spikes/times", "spikes/units", "labels"))
        shapes = times.shape, units.shape, labels.shape
        if shapes != ((len(labels),),) * 3 or len(labels) > self.path.stat().st_size or labels.dtype.kind not in "iu":
            raise ValueError(f"spikes/times, spikes/units and labels ({labels.dtype}) have shapes {shapes}")
        return labels[:].astype(np.int64)

    def _sample(self, file: Any, index: int) -> Array:
        times, units = (np.asarray(file[f"spikes/{name}"][index]) for name in ("times", "units"))
        if times.shape != units.shape or times.dtype.kind != "f" or units.dtype.kind not in "iu":
            of = (f"{each.dtype} {each.shape}" for each in (times, units))
            raise ValueError(f"sample {index} has {next(of)} times and {next(of)} units")
        times, units = times.astype(np.float64), units.astype(np.int64)
        if not (np.abs(times) < 1e9).all() or (units >> 31).any():
            raise ValueError(f"sample {index} has times that are not finite, or units outside of [0, 2^31)")
        t = np.rint(times * 1e6).astype(np.int64)
        order = np.argsort(t, kind="stable")
        return _structured(t=t[order], x=units[order].astype(np.int32))


def _damaged(function: str, path: Path, error: BaseException) -> ValueError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ValueError(f"{function}: {path} is damaged, or has another format than its suffix says: {reason[:200]}")


def _structured(**columns: Array) -> Array:
    """Joins columns of equal lengths."""
    columns["t"] = columns["t"].astype(np.int64)
    events = np.empty(len(columns["t"]), [(name, column.dtype.newbyteorder("=")) for name, column in columns.items()])
    for name, column in columns.items():
        events[name] = column
    return events


def _pixels(t: Array, x: Array, y: Array, p: Array) -> Array:
    return _structured(t=t, x=x.astype(np.int16), y=y.astype(np.int16), p=p.astype(bool))


def _words(data: bytes, dtype: Any, start: int = 0) -> Array:
    size = np.dtype(dtype).itemsize
    if (len(data) - start) % size:
        raise ValueError(f"it ends within an event: {len(data) - start} bytes are not words of {size} bytes")
    return np.frombuffer(data, dtype, offset=start)


def _unwrapped(values: Array, period: int) -> Array:
    """Adds a period whenever a counter restarts, int64."""
    values = values.astype(np.int64)
    return values + period * np.cumsum(np.diff(values, prepend=values[:1]) < -(period // 2))


def _held(marked: Array, values: Array) -> Array:
    """Returns for each word the value of the last marked word up to it, or -1 before the first one, int64. ``values``
    are those of the marked words."""
    return np.concatenate([[-1], values.astype(np.int64)])[np.cumsum(marked)]


def _check_kinds(kind: Array, known: tuple[int, ...]) -> None:
    unknown = kind[~np.isin(kind, known)]
    if len(unknown):
        raise ValueError(f"it has {len(unknown)} words of unknown types, such as {unknown[0]:#x}")


def _bin(data: bytes, path: Path) -> Array:
    """Orchard et al., "Converting static image datasets to spiking neuromorphic datasets using saccades", 2015."""
    x, y, *times = _words(data, "5u1").T.astype(np.int64)
    overflow = y == 240
    t = (times[0] & 127) << 16 | times[1] << 8 | times[2]
    events = _pixels(t + np.cumsum(overflow) * 2**13, x, y, times[0] >> 7)
    return events[~overflow]


def _array(data: bytes) -> Array:
    """Reads a .npy file. No value of its header sets the size of an allocation, and no object is unpickled."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of .npy is not read")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if dtype.hasobject:
        raise ValueError("it contains Python objects, which are not unpickled")
    rest = len(data) - file.tell()
    if len(shape) != 1 or shape[0] < 0 or math.prod(shape) * dtype.itemsize != rest:
        raise ValueError(f"expected shape [events], but its header claims {shape} of {dtype}, and {rest} bytes follow")
    return np.frombuffer(data, dtype, offset=file.tell()) if rest else np.zeros(0, dtype)


def _fields(columns: Any, names: Any) -> Array:
    found = {name: columns[name] for name in "txyp" if name in (names or ())}
    kinds = {name: str(column.dtype) for name, column in found.items()}
    integers = all(column.ndim == 1 and column.dtype.kind in "iub" for column in found.values())
    if not (integers and found.keys() >= {"t", "x"}):
        raise ValueError(f"expected the fields t, x and, if present, y and p of integers, but it has {kinds or 'none'}")
    lengths = {name: len(column) for name, column in found.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"its fields have different lengths: {lengths}")
    return _structured(**found)


def _npy(data: bytes, path: Path) -> Array:
    events = _array(data)
    return _fields(events, events.dtype.names)


def _npz(data: bytes, path: Path) -> Array:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if len(names) == 1:
            return _npy(archive.read(archive.namelist()[0]), path)
        return _fields({name: _array(archive.read(f"{name}.npy")) for name in "txyp" if name in names}, names)


def _prophesee_header(data: bytes) -> tuple[str, int]:
    """Returns the lines of the header, and the position after it."""
    header = re.match(rb"(?:% (?!end)[^\n]*\n)+(?:% end[^\n]*\n)?", data)
    if header is None:
        raise ValueError("it does not begin with the header of a Prophesee file")
    return header[0].decode("latin1"), header.end()


def _dat(data: bytes, path: Path) -> Array:
    _, start = _prophesee_header(data)
    kind, size = struct.unpack_from("BB", data, start)
    if kind not in (0, 12) or size != 8:
        raise ValueError(f"expected events of type 0 or 12 and 8 bytes, but they have type {kind} and {size} bytes")
    t, word = _words(data, "2<u4", start + 2).T
    return _pixels(_unwrapped(t, 2**32), word & 0x3FFF, word >> 14 & 0x3FFF, word >> 28 & 1)


def _raw(data: bytes, path: Path) -> Array:
    text, start = _prophesee_header(data)
    version = re.search(r"^% (?:evt |format EVT)(\d[\d.]*)", text, re.MULTILINE)
    decode = {"2": _evt2, "2.0": _evt2, "3": _evt3, "3.0": _evt3}.get(version[1] if version else "")
    if decode is None:
        raise ValueError(f"EVT 2.0 and EVT 3.0 are read, but it has {'EVT ' + version[1] if version else 'no version'}")
    return decode(data, start)


def _evt2(data: bytes, start: int) -> Array:
    words = _words(data, "<u4", start)
    kind = words >> 28
    _check_kinds(kind, (0, 1, 8, 10, 14, 15))  # off, on, time, trigger, others, continued
    high = _held(kind == 8, _unwrapped(words[kind == 8] & 0xFFFFFFF, 2**28))
    pixel = (kind <= 1) & (high >= 0)
    word = words[pixel]
    return _pixels(high[pixel] << 6 | (word >> 22 & 63), word >> 11 & 0x7FF, word & 0x7FF, kind[pixel])


def _evt3(data: bytes, start: int) -> Array:
    words = _words(data, "<u2", start)
    kind, value = words >> 12, words & 0xFFF
    _check_kinds(kind, (0, 2, 3, 4, 5, 6, 7, 8, 10, 14, 15))
    is_row, is_base, is_low, is_high = (kind == k for k in (0, 3, 6, 8))
    # The low half of a time belongs to the high half before it, and is 0 after another one.
    high = _held(is_high, _unwrapped(value[is_high], 2**12))
    low = np.where(_held(is_low, high[is_low]) == high, _held(is_low, value[is_low]), 0)
    y = _held(is_row, value[is_row] & 0x7FF)
    # Each vector of 12 or 8 pixels begins where the one before it ends.
    width = 12 * (kind == 4) + 8 * (kind == 5)
    before = np.cumsum(width) - width
    first = before + _held(is_base, (value[is_base] & 0x7FF) - before[is_base])
    on = _held(is_base, value[is_base] >> 11)
    valid = (high >= 0) & (y >= 0)
    single = np.flatnonzero((kind == 2) & valid)
    vector = np.flatnonzero((width > 0) & valid & (on >= 0))
    fired = value[vector, None] >> np.arange(12) & (np.arange(12) < width[vector, None])
    row, pixel = fired.nonzero()
    place = np.concatenate([single, vector[row]])
    x = np.concatenate([value[single] & 0x7FF, first[vector[row]] + pixel])
    p = np.concatenate([value[single] >> 11, on[vector[row]]])
    if (x > 0x7FF).any():
        raise ValueError("its vectors of pixels end beyond column 2047")
    order = np.argsort(place, kind="stable")
    place = place[order]
    return _pixels(high[place] << 12 | low[place], x[order], y[place], p[order])


def _aedat(data: bytes, path: Path) -> Array:
    version = re.match(rb"#!AER-DAT(\d)\.\d\r?\n", data)
    decode = {b"2": _aedat2, b"3": _aedat3, b"4": _aedat4}.get(version[1] if version else b"")
    if decode is None:
        raise ValueError("it does not begin with #!AER-DAT and version 2, 3 or 4")
    return decode(data, path)


def _aedat2(data: bytes, path: Path) -> Array:
    """The addresses of jAER's class DVS128."""
    start = re.match(rb"(?:#[^\n]*\n)*", data).end()  # type: ignore[union-attr]
    address, t = _words(data, "2>u4", start).T
    if (address >> 16).any():
        raise ValueError("its addresses are not those of a DVS128")
    events = _pixels(_unwrapped(t, 2**32), 127 - (address >> 1 & 127), address >> 8 & 127, ~address & 1)
    return events[address < 2**15]


def _aedat3(data: bytes, path: Path) -> Array:
    end = data.find(b"#!END-HEADER\r\n")
    if end < 0:
        raise ValueError("its header has no #!END-HEADER")
    position, parts = end + 14, [np.zeros((0, 4), np.int64)]
    while position < len(data):
        kind, _, size, _, overflow, capacity, number, _ = struct.unpack_from("<HHIIIIII", data, position)
        position += 28
        if number > capacity or size * capacity > len(data) - position or (kind == 1 and size != 8):
            claimed = f"{number} of {capacity} events of {size} bytes"
            raise ValueError(f"a packet claims {claimed}, and {len(data) - position} bytes follow")
        if kind == 1:  # events of pixels
            word, t = np.frombuffer(data, "<u4", 2 * number, position).reshape(-1, 2).T.astype(np.int64)
            columns = np.stack([overflow << 31 | t, word >> 17, word >> 2 & 0x7FFF, word >> 1 & 1], 1)
            parts.append(columns[(word & 1) == 1])
        position += size * capacity
    return _pixels(*np.concatenate(parts).T)


def _aedat4(data: bytes, path: Path) -> Array:
    try:
        import aedat
    except ImportError as error:
        raise ImportError(f"read: AEDAT 4 needs aedat: pip install aedat ({error})") from None
    _check_aedat4(data)
    try:
        packets = [packet["events"] for packet in aedat.Decoder(path) if "events" in packet]
    except BaseException as error:  # a panic of Rust is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise ValueError(str(error)) from None
    columns = ([packet[name] for packet in packets] or [np.zeros(0)] for name in ("t", "x", "y", "on"))
    return _pixels(*map(np.concatenate, columns))


def _check_aedat4(data: bytes) -> None:
    """Checks the sizes of the header and the packets, which aedat allocates before it reads them."""
    start = data.index(b"\n") + 1
    (size,) = struct.unpack_from("<I", data, start)
    header, position = data[start + 4 :][:size], start + 4 + size
    (root,) = struct.unpack_from("<I", header)
    table = root - struct.unpack_from("<i", header, root)[0]
    fields = struct.unpack_from("<4H", header + bytes(8), table)  # sizes of both tables, then offsets of the fields
    place = fields[3] if fields[0] > 6 else 0
    end = struct.unpack_from("<q", header, root + place)[0] if place else -1  # the position of the table of packets
    end = len(data) if end < 0 else end
    while position < end:
        position += 8 + struct.unpack_from("<iI", data, position)[1]
    if position > len(data):
        raise ValueError(f"a packet ends {position - len(data)} bytes after the end of the file")


_READERS: dict[str, Callable[[bytes, Path], Array]] = {
    ".bin": _bin, ".npy": _npy, ".npz": _npz, ".raw": _raw, ".dat": _dat, ".aedat": _aedat, ".aedat4": _aedat,
}  # fmt: skip
