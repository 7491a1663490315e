"""Finds the library for the installed torch, and loads its operators.

A library of this package has the version of the torch that it was built with in its name:
`lib/libspikeforge-torch2.11.so`, or `lib/libspikeforge-torch2.11-cpu.so` for a torch without CUDA. SPIKEFORGE_LIBRARY
names another file."""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from spikeforge._version import __version__

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("spikeforge needs torch 2.11 or later, but torch is not installed: pip install torch") from None

PACKAGE = Path(__file__).resolve().parent
OLDEST_TORCH = (2, 11)


@dataclass(frozen=True)
class Library:
    path: Path
    torch: str  # minor version, such as "2.11"
    cuda: bool

    def __str__(self) -> str:
        return f"{self.torch}{'' if self.cuda else ' without CUDA'}"


def held(folders: list[Path]) -> list[Library]:
    """Returns the libraries in these folders, ordered by the version of their torch."""
    found = []
    for path in (path for folder in folders for path in folder.glob("libspikeforge-torch*.so")):
        name = re.fullmatch(r"libspikeforge-torch(\d+\.\d+)(-cpu)?\.so", path.name)
        if name:
            found.append(Library(path, name[1], cuda=name[2] is None))
    return sorted(found, key=lambda library: (_numbers(library.torch), not library.cuda))


def fitting(libraries: list[Library], torch_version: str, cuda: bool) -> Library | None:
    """Returns the library for this torch, or None. A torch with CUDA prefers a library with CUDA."""
    fit = [library for library in libraries if library.torch == _minor(torch_version) and (cuda or not library.cuda)]
    return fit[0] if fit else None


def folders() -> list[Path]:
    """Returns the package's folder of libraries: next to its sources, or in site-packages for an editable install."""
    own = PACKAGE / "lib"
    if own.is_dir():
        return [own]
    try:
        installed = metadata.distribution("spikeforge")
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(installed.locate_file("spikeforge/lib")))] if installed.version == __version__ else []


def path() -> Path:
    """Returns the library to load: SPIKEFORGE_LIBRARY, else that of this package, else that of a build in the source.

    Raises ImportError if there is none for this torch.
    """
    named = os.environ.get("SPIKEFORGE_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise ImportError(f"SPIKEFORGE_LIBRARY={named} is not there")
        return Path(named).resolve()
    libraries = held(folders())
    cuda = torch.version.cuda is not None
    library = fitting(libraries, torch.__version__, cuda)
    if library:
        return library.path
    built = PACKAGE.parents[1] / "build" / "release" / "lib" / "libspikeforge.so"
    if not libraries and built.is_file():
        return built
    raise ImportError(_nothing_fits(libraries, torch.__version__, cuda))


def load() -> Path | None:
    """Loads the operators, unless this process has loaded them.

    Returns the file, or None if the file of loaded operators is unknown. Raises ImportError if the loaded operators
    have another version, or the library does not load with this torch."""
    if hasattr(torch.ops.spikeforge, "lif"):
        return _loaded_before()
    file = path()
    try:
        torch.ops.load_library(str(file))
    except OSError as error:
        reason = error.__cause__ or error  # torch wraps the linker's error
        raise ImportError(_does_not_load(file, str(reason))) from None
    return file


def load_nir() -> None:
    """Loads the operators of NIR graphs, from a second library in the same folder.

    Raises ImportError if there is none.
    """
    if hasattr(torch.ops.spikeforge_nir, "load_file"):
        return
    beside = _mapped_library() or path()
    file = beside.with_name(re.sub(r"\.so.*", ".so", beside.name).replace("libspikeforge", "libspikeforge_nir_nn", 1))
    if not file.is_file():
        raise ImportError(
            f"NIR needs {file}, which is built with {beside.name} if HDF5's headers are installed (Debian: "
            "libhdf5-dev), and is part of the wheels of scripts/wheel"
        )
    try:
        torch.ops.load_library(str(file))
    except OSError as error:
        raise ImportError(_does_not_load(file, str(error.__cause__ or error))) from None
    # Without libhdf5, graphs in memory work, and reading a file raises. SPIKEFORGE_HDF5 excludes other libraries.
    if torch.ops.spikeforge_nir.load_hdf5("") and not os.environ.get("SPIKEFORGE_HDF5"):
        with hdf5_of_h5py() as copy:
            if copy:
                torch.ops.spikeforge_nir.load_hdf5(str(copy))


@contextlib.contextmanager
def hdf5_of_h5py() -> Iterator[Path | None]:
    """Yields a copy of the libhdf5 of h5py's wheel, to be loaded within the context; None without such a wheel.

    The copy has another soname, because the dynamic linker loads a soname once, and h5py's library state (filters,
    locks) must not change."""
    found = importlib.util.find_spec("h5py")
    folder = Path(found.origin).parents[1] / "h5py.libs" if found and found.origin else None
    files = sorted(folder.glob("libhdf5-*.so*")) if folder and folder.is_dir() else []
    if not files or not folder:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="spikeforge_") as place:
        for file in folder.iterdir():
            os.symlink(file, Path(place, file.name))  # its dependencies are in the same folder
        copy = Path(place, "libhdf5.so")
        name = files[0].name.encode()
        copy.write_bytes(files[0].read_bytes().replace(name + b"\0", name.replace(b"libhdf5-", b"libh5sf-") + b"\0"))
        yield copy


def _loaded_before() -> Path | None:
    file = _mapped_library()
    version = _version_in(file) if file else None
    if version is not None and version != _minor(__version__):
        raise ImportError(
            f"spikeforge {__version__} cannot use the operators of spikeforge {version}, which {file} has registered "
            "in this process: load one of the two"
        )
    return file


def _mapped_library() -> Path | None:
    """Returns the file of the library that this process has loaded, however it was loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place = line.split(maxsplit=5)[-1]
        if re.fullmatch(r"libspikeforge(-torch[\d.]+(-cpu)?)?\.so[\d.]*", os.path.basename(place)):
            return Path(place)
    return None


def _version_in(file: Path) -> str | None:
    """Returns the major and minor version in the soname of a library."""
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        soname = re.search(rb"\0libspikeforge\.so\.(\d+\.\d+)\0", content)
        return soname[1].decode() if soname else None


def _nothing_fits(libraries: list[Library], torch_version: str, cuda: bool) -> str:
    ways = []
    if libraries:
        would_do = [library.torch + (" with CUDA" if library.cuda and not cuda else "") for library in libraries]
        ways.append(f"install torch {_listed(list(dict.fromkeys(would_do)))}")
    if _numbers(_minor(torch_version)) >= OLDEST_TORCH:
        ways.append("build spikeforge for this one by `pip install --no-build-isolation .` in its source")
    elif not libraries:
        ways.append("install torch 2.11 or later")
    return f"spikeforge {__version__} has no library for {_this(torch_version, cuda)}: {', or '.join(ways)}"


def _does_not_load(file: Path, reason: str) -> str:
    this = _this(torch.__version__, torch.version.cuda is not None)
    if "undefined symbol" in reason or "libtorch_cuda" in reason or "libc10_cuda" in reason:
        return (
            f"{file} was built with another torch than {this}: install a spikeforge that holds a library for this one, "
            "or build it by `pip install --no-build-isolation .` in its source"
        )
    return f"{file} does not load with {this}: {reason}"


def _this(torch_version: str, cuda: bool) -> str:
    return f"torch {torch_version}{'' if cuda else ' (without CUDA)'}"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", minor))


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
