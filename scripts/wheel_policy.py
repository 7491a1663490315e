"""The rules for the contents and linked libraries of a wheel, as in auditwheel, but with torch allowed."""

import base64
import csv
import hashlib
import io
import re
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

LIBRARY = re.compile(r"spikeforge/lib/lib(spikeforge|spikeforge_nir_nn)-torch(\d+\.\d+)(-cpu)?\.so")
KINDS = ("spikeforge", "spikeforge_nir_nn")
# torch's libraries are loaded before this one. Its OpenMP and CUDA runtimes are not listed, because their names differ.
LINKED = re.compile(
    r"lib(stdc\+\+\.so\.6|gcc_s\.so\.1|[cm]\.so\.6|dl\.so\.2|pthread\.so\.0|rt\.so\.1|z\.so\.1)|ld-linux-[\w-]+\.so\.\d"
    r"|lib(torch|torch_cpu|torch_cuda|c10|c10_cuda)\.so"
)
LARGEST_LIBRARY = 16 << 20
# The glibc of the oldest distribution that ships a libstdc++ with these symbols: GLIBCXX_3.4.30 is that of GCC 12, in
# Ubuntu 22.04 with glibc 2.35.
GLIBC_OF_LIBSTDCXX = {
    (3, 4, 25): (2, 28),  # GCC 8, Debian 10 and RHEL 8
    (3, 4, 28): (2, 31),  # GCC 10, Ubuntu 20.04
    (3, 4, 29): (2, 34),  # GCC 11, RHEL 9
    (3, 4, 30): (2, 35),  # GCC 12, Ubuntu 22.04
    (3, 4, 32): (2, 38),  # GCC 13, Ubuntu 23.10
    (3, 4, 33): (2, 39),  # GCC 14, Ubuntu 24.04
    (3, 4, 34): (2, 41),  # GCC 15, Ubuntu 25.04
}


class PolicyError(Exception):
    pass


@dataclass(frozen=True)
class Linkage:
    """The properties of a library that the dynamic linker reads."""

    needed: list[str]
    soname: str | None
    paths: list[str]  # RPATH, RUNPATH
    glibc: tuple[int, ...]  # the newest symbol versions that it needs
    libstdcxx: tuple[int, ...]
    machine: str


def linkage(file):
    text = subprocess.run(["objdump", "-p", str(file)], check=True, capture_output=True, text=True).stdout
    entries = dict.fromkeys(("NEEDED", "SONAME", "RPATH", "RUNPATH"))
    for key in entries:
        entries[key] = re.findall(rf"^ +{key} +(\S.*?)\s*$", text, re.MULTILINE)

    def newest(name):
        versions = re.findall(rf"\b{name}_(\d+(?:\.\d+)+)\b", text)
        return max((tuple(map(int, version.split("."))) for version in versions), default=(0,))

    machine = re.search(r"file format elf64-(\S+)", text)
    return Linkage(
        needed=entries["NEEDED"],
        soname=next(iter(entries["SONAME"]), None),
        paths=entries["RPATH"] + entries["RUNPATH"],
        glibc=newest("GLIBC"),
        libstdcxx=newest("GLIBCXX"),
        machine={"x86-64": "x86_64", "littleaarch64": "aarch64"}.get(machine[1], machine[1]) if machine else "unknown",
    )


def oldest_glibc(library):
    """Returns the oldest glibc whose distributions load a library with this linkage."""
    by_libstdcxx = [glibc for version, glibc in GLIBC_OF_LIBSTDCXX.items() if version >= library.libstdcxx]
    if not by_libstdcxx:
        raise PolicyError(
            f"libstdc++ {library.libstdcxx} is missing in GLIBC_OF_LIBSTDCXX of scripts/wheel_policy.py: add it"
        )
    return max(library.glibc[:2], min(by_libstdcxx), (2, 28))  # torch's own wheels need 2.28


def platform_tag(libraries):
    """Returns the platform on which all of these libraries load, such as manylinux_2_35_x86_64."""
    machines = {library.machine for library in libraries}
    if len(machines) != 1:
        raise PolicyError(f"the libraries are for different machines: {', '.join(sorted(machines))}")
    major, minor = max(oldest_glibc(library) for library in libraries)
    return f"manylinux_{major}_{minor}_{machines.pop()}"


def check_library(name, file, version):
    """Checks a library; returns its linkage, or raises PolicyError."""
    library = linkage(file)
    short_version = ".".join(version.split(".")[:2])
    called = "libspikeforge_nir_nn" if "libspikeforge_nir_nn" in name else "libspikeforge"
    own = f"libspikeforge.so.{short_version}"  # loaded before the library of NIR
    foreign = [needed for needed in library.needed if not LINKED.fullmatch(needed) and not (called != "libspikeforge" and needed == own)]
    if foreign:
        raise PolicyError(f"{name} links {', '.join(foreign)}, which other machines may not have")
    if library.paths:
        raise PolicyError(f"{name} has the RPATH {', '.join(library.paths)}, a path of this machine")
    soname = f"{called}.so.{short_version}"
    if library.soname != soname:
        raise PolicyError(f"{name} has the soname {library.soname}, not {soname}")
    if ("libtorch_cuda.so" in library.needed) == ("-cpu" in name):
        raise PolicyError(f"{name} is {'with' if '-cpu' in name else 'without'} CUDA, contrary to its name")
    if file.stat().st_size > LARGEST_LIBRARY:
        raise PolicyError(f"{name} has {file.stat().st_size / 2**20:.0f} MiB: is it stripped?")
    return library


def check_record(wheel, record):
    """Checks that every file is in RECORD, with its hash and length."""
    rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(wheel.read(record).decode()))}
    names = [info.filename for info in wheel.infolist() if not info.is_dir()]
    if set(names) != set(rows) or len(names) != len(set(names)):
        raise PolicyError(f"{record} lists other files than the wheel contains: {sorted(set(names) ^ set(rows))}")
    for name in names:
        if name != record and rows[name] != record_row(wheel.read(name)):
            raise PolicyError(f"{record}: hash or length of {name} is wrong")


def record_row(content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(content))


def check_wheel(path):
    """Checks a wheel; returns (torch, file's bytes, bytes in the wheel, linkage) of each library.

    Raises PolicyError if a rule is broken."""
    parts = re.fullmatch(r"spikeforge-([^-]+)-py3-none-([^-]+)\.whl", path.name)
    if not parts:
        raise PolicyError(f"{path.name} is not called spikeforge-<version>-py3-none-<platform>.whl")
    version, platform = parts.groups()
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        info = f"spikeforge-{version}.dist-info"
        check_record(wheel, f"{info}/RECORD")
        names = wheel.namelist()
        for needed in ("spikeforge/__init__.py", "spikeforge/ops.pyi", "spikeforge/py.typed", f"{info}/METADATA"):
            if needed not in names:
                raise PolicyError(f"{path.name} lacks {needed}")
        stray = [
            name for name in names
            if not name.startswith(f"{info}/") and not name.endswith((".py", ".pyi", "py.typed")) and not LIBRARY.fullmatch(name)
        ]
        if stray:
            raise PolicyError(f"{path.name} contains {', '.join(stray)}")
        found = []
        for name in filter(LIBRARY.fullmatch, names):
            file = Path(wheel.extract(name, folder))
            found.append((LIBRARY.fullmatch(name), file.stat().st_size, wheel.getinfo(name).compress_size,
                          check_library(name, file, version)))
        if not found:
            raise PolicyError(f"{path.name} contains no library")
        torches = {kind: {name.groups()[1:] for name, *_ in found if name[1] == kind} for kind in KINDS}
        if torches["spikeforge"] != torches["spikeforge_nir_nn"]:
            raise PolicyError(f"{path.name} has libraries of NIR for other versions of torch than its libraries")
        tag = platform_tag([library for *_, library in found])
        if not covers(platform, tag):
            raise PolicyError(f"{path.name} has the platform {platform}, but its libraries need {tag}")
    return found


def covers(platform, tag):
    """Returns True if pip installs a wheel of this platform only where `tag` holds; linux_x86_64 is for this machine."""
    needed = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", tag)
    said = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", platform)
    if not said:
        return platform == f"linux_{needed[3]}"
    return said[3] == needed[3] and (int(said[1]), int(said[2])) >= (int(needed[1]), int(needed[2]))
