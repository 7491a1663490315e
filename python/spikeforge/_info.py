"""Collects the output of `python -m spikeforge info`: versions, GPUs, NVRTC, compiled kernels, kernel packs.

NVRTC, cache and packs are searched in the same places and order as in the library (csrc/jit/nvrtc_places.cpp,
disk_cache.cpp, kernel_pack.cpp).
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import stat
from pathlib import Path
from typing import Any

import torch

from spikeforge import _library
from spikeforge._version import __version__

MIB = 1 << 20
GIB = 1 << 30
CACHE_LIMIT = 256 * MIB
_ENTRY = re.compile(r".*_[0-9a-f]{32}_[^_]+_(nvrtc[\d.]+\.cubin|cxx\.so)")


def collect() -> dict[str, Any]:
    """Collects everything, in types of JSON. If the library does not load, "error" has the reason."""
    file, error = None, {}
    try:
        file = _library.load()
    except ImportError as reason:
        error = {"error": str(reason)}
    return {
        "spikeforge": __version__,
        **error,
        "library": _file(file),
        "holds": [str(library) for library in _library.held(_library.folders())],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": {"instructions": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()},
        "gpus": gpus(),
        "nvrtc": nvrtc(),
        "cache": cache(),
        "packs": [] if error else packs(file),
    }


def gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        one = torch.cuda.get_device_properties(index)
        found.append({"name": one.name, "arch": f"sm_{one.major}{one.minor}", "bytes": one.total_memory})
    return found


def nvrtc_places() -> list[str]:
    """Returns the names that the library passes to dlopen, in its order."""
    named = os.environ.get("SPIKEFORGE_NVRTC")
    if named:
        return [named]
    folder = Path(torch.__file__).parent / "lib"
    nvidia = folder.parent.parent / "nvidia"
    places = []
    for soname, wheel in [("libnvrtc.so.13", "cu13/lib"), ("libnvrtc.so.12", "cuda_nvrtc/lib")]:
        places += [soname, str(nvidia / wheel / soname), str(folder / soname)]
    return places


def nvrtc() -> dict[str, str] | None:
    """Returns version and file of the NVRTC that compiles kernels, or None."""
    for place in nvrtc_places():
        major, minor = ctypes.c_int(), ctypes.c_int()
        try:
            library = ctypes.CDLL(place)
            library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        except (OSError, AttributeError):
            continue
        return {"version": f"{major.value}.{minor.value}", "file": _mapped(os.path.basename(place)) or place}
    return None


def cache() -> dict[str, Any] | None:
    """Returns folder, size and limit of the cache of compiled kernels, or None if it is turned off."""
    folder = cache_folder()
    if folder is None:
        return None
    entries = [entry for entry in os.scandir(folder) if _ENTRY.fullmatch(entry.name)] if folder.is_dir() else []
    return {
        "folder": str(folder),
        "kernels": len(entries),
        "bytes": sum(entry.stat(follow_symlinks=False).st_size for entry in entries),
        "limit": cache_limit(),
        "trusted": not folder.exists() or _only_user_writes(folder),
    }


def cache_folder() -> Path | None:
    own = os.environ.get("SPIKEFORGE_CACHE_DIR", "")
    if own in ("off", "0"):
        return None
    if own:
        return Path(own)
    xdg, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    if os.path.isabs(xdg):
        return Path(xdg) / "spikeforge"
    return Path(home) / ".cache" / "spikeforge" if os.path.isabs(home) else None


def cache_limit() -> int:
    written = os.environ.get("SPIKEFORGE_CACHE_LIMIT_MB", "")
    return int(written) * MIB if re.fullmatch(r"[0-9]+", written) else CACHE_LIMIT


def packs(library: Path | None) -> list[dict[str, Any]]:
    """Returns the kernel packs of a process: that of the library, then those of SPIKEFORGE_KERNEL_PACK."""
    beside = library.parent / "libspikeforge.pack" if library else None
    places = [str(beside)] if beside and beside.exists() else []
    places += [place for place in os.environ.get("SPIKEFORGE_KERNEL_PACK", "").split(":") if place]
    found: list[dict[str, Any]] = []
    for place in places:
        try:
            found.append({"file": place, "kernels": torch.ops.spikeforge.load_kernel_pack(place)})
        except (RuntimeError, ValueError) as error:
            found.append({"file": place, "error": str(error).splitlines()[0]})
    return found


def text(info: dict[str, Any]) -> str:
    """Formats the information as lines of text."""
    cuda = f"CUDA {info['cuda']}" if info["cuda"] else "without CUDA"
    cpu = info["cpu"]
    rows = [
        ("spikeforge", f"{info['spikeforge']} in {_library.PACKAGE}"),
        ("library", f"NOT LOADED: {info['error']}" if "error" in info else _of_file(info["library"])),
        ("torch", f"{info['torch']}, {cuda}"),
        ("Python", f"{info['python']}, {info['system']}"),
        ("CPU", f"{cpu['instructions']}, {cpu['threads']} thread{'s' if cpu['threads'] != 1 else ''}"),
    ]
    if info["holds"]:
        rows.insert(2, ("holds", f"libraries for torch {', '.join(info['holds'])}"))
    rows += [("GPU", f"{one['name']}, {one['arch']}, {one['bytes'] / GIB:.1f} GiB") for one in info["gpus"]]
    if not info["gpus"]:
        rows.append(("GPU", "none that torch sees"))
    rows.append(("NVRTC", _of_nvrtc(info["nvrtc"])))
    rows.append(("cache", _of_cache(info["cache"])))
    rows += [("pack", _of_pack(pack)) for pack in info["packs"]] or [("pack", "none")]
    return "\n".join(f"{name:<11} {value}" for name, value in rows)


def _file(path: Path | None) -> dict[str, Any] | None:
    return {"file": str(path), "bytes": path.stat().st_size} if path and path.exists() else None


def _of_file(library: dict[str, Any] | None) -> str:
    return f"{library['file']} ({library['bytes'] / MIB:.1f} MiB)" if library else "already loaded, file unknown"


def _of_nvrtc(found: dict[str, str] | None) -> str:
    if found is None:
        return "none: no GPU kernel can be compiled. Set SPIKEFORGE_NVRTC, or pip install nvidia-cuda-nvrtc"
    return f"{found['version']} in {found['file']}"


def _of_cache(found: dict[str, Any] | None) -> str:
    if found is None:
        return "off (SPIKEFORGE_CACHE_DIR)"
    warning = "" if found["trusted"] else "; NOT USED, because other users can write to it: chmod 700"
    sizes = f"{found['bytes'] / MIB:.1f} of {found['limit'] / MIB:.0f} MiB"
    return f"{found['folder']}: {found['kernels']} kernels, {sizes}{warning}"


def _of_pack(pack: dict[str, Any]) -> str:
    return f"{pack['file']}: " + (f"{pack['kernels']} kernels" if "kernels" in pack else pack["error"])


def _mapped(name: str) -> str | None:
    """Returns the path of a library that this process has loaded, by its file name."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place = line.split(maxsplit=5)[-1]
        if os.path.basename(place).startswith(name):
            return place
    return None


def _only_user_writes(folder: Path) -> bool:
    status = folder.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
