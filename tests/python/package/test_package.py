"""The Python package: library selection, errors without a matching library, stubs, `spikeforge info`, the wheel."""

import ast
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import spikeforge
import torch
from conftest import REPOSITORY, library_path
from documentation import code
from loops import refused
from spikeforge import _info, _library, ops

PACKAGE = REPOSITORY / "python" / "spikeforge"
MINOR = ".".join(torch.__version__.split(".")[:2])
NAME = f"libspikeforge-torch{MINOR}{'' if torch.version.cuda else '-cpu'}.so"  # the library for this version of torch
sys.path.insert(0, str(REPOSITORY / "scripts"))
import wheel_policy  # noqa: E402


def run(*command, check=True, **variables):
    """Runs a command. Sets environment variables with a value, and unsets those that are None."""
    env = {name: value for name, value in (os.environ | variables).items() if value is not None}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env)
    assert done.returncode == 0 or not check, f"{' '.join(done.args)}\n{done.stdout}\n{done.stderr}"
    return done


def script(name):
    loader = importlib.machinery.SourceFileLoader(f"script_{name}", str(REPOSITORY / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def compile_library(path, *options, source=""):
    if shutil.which("c++") is None:
        pytest.skip("there is no c++ on this machine")
    path.parent.mkdir(parents=True, exist_ok=True)
    run("sh", "-c", 'echo "$0" | c++ -shared -fPIC -s -x c++ - -o "$@"', source, path, *options)
    return path


# --- library selection -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torch_version, cuda, expected", [
    ("2.11.0+cu130", True, "libspikeforge-torch2.11.so"),
    ("2.11.1", True, "libspikeforge-torch2.11.so"),
    ("2.12.0a0+git1234", True, "libspikeforge-torch2.12.so"),
    ("2.11.0+cpu", False, "libspikeforge-torch2.11-cpu.so"),
    ("2.12.0+cpu", False, None),
    ("2.20.0", True, "libspikeforge-torch2.20-cpu.so"),
    ("2.1.0", True, None),
    ("2.13.0", True, None),
    ("3.11.0", True, None),
])
def test_the_library_is_chosen_by_torchs_minor_version(tmp_path, torch_version, cuda, expected):
    for name in ("torch2.11", "torch2.11-cpu", "torch2.12", "torch2.20-cpu"):
        (tmp_path / f"libspikeforge-{name}.so").touch()
    for other in ("libspikeforge.so", "libspikeforge-torch2.13.so.0", "libspikeforge-torch2.1.pack"):
        (tmp_path / other).touch()
    library = _library.fitting(_library.held([tmp_path]), torch_version, cuda)
    assert (library and library.path.name) == expected


@pytest.fixture
def installed(tmp_path):
    """The package as installed by pip, without a library: a copy in a folder that precedes others in sys.path."""
    shutil.copytree(PACKAGE, tmp_path / "site" / "spikeforge", ignore=shutil.ignore_patterns("__pycache__", "lib"))
    info = tmp_path / "site" / f"spikeforge-{spikeforge.__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: spikeforge\nVersion: {spikeforge.__version__}\n")
    lib = tmp_path / "site" / "spikeforge" / "lib"
    lib.mkdir()
    return lib


def import_it(installed, program="import spikeforge", **variables):
    variables = {"SPIKEFORGE_LIBRARY": None, "PYTHONPATH": str(installed.parents[1])} | variables
    return run(sys.executable, "-c", program, check=False, **variables)


def error_of(installed, program="import spikeforge", **variables):
    """Returns the message of the ImportError, which is one line."""
    done = import_it(installed, program, **variables)
    assert done.returncode != 0
    assert "undefined symbol" not in done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr  # no chained exceptions
    return re.search(r"\nImportError: (.*)\n$", done.stderr)[1]


def test_an_installed_package_loads_the_library_of_this_torch_among_others(installed):
    (installed / NAME).symlink_to(library_path().resolve())
    for other in ("2.0", "99.0"):
        (installed / f"libspikeforge-torch{other}.so").write_text("not a library")
    program = "import torch, spikeforge; print(spikeforge.ops.lif(torch.full((1, 2), 9.0))[0].tolist(), spikeforge.__version__)"
    done = import_it(installed, program)
    assert done.stdout == f"[[1.0, 1.0]] {spikeforge.__version__}\n", done.stderr


@pytest.fixture
def error_here(monkeypatch, tmp_path):
    """Returns the error message of `load`, emulating a process without operators and a package with these libraries."""
    monkeypatch.delenv("SPIKEFORGE_LIBRARY", raising=False)
    monkeypatch.setattr(torch.ops, "spikeforge", None)
    monkeypatch.setattr(_library, "folders", lambda: [tmp_path])

    def load(version=torch.__version__, cuda=torch.version.cuda):
        monkeypatch.setattr(torch, "__version__", version)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        with pytest.raises(ImportError) as error:
            _library.load()
        assert "undefined symbol" not in str(error.value) and "\n" not in str(error.value)
        return str(error.value)

    return load


@pytest.mark.parametrize("version, cuda, would_do", [
    ("2.10.1+cu128", "12.8", "torch 2.10.1+cu128: install torch 2.11 or 2.12"),
    ("2.13.0", "13.0", "torch 2.13.0: install torch 2.11 or 2.12, or build spikeforge for this one by `pip install --no-b"),
    ("2.11.0+cpu", None, "torch 2.11.0+cpu (without CUDA): install torch 2.11 with CUDA, 2.12 with CUDA or 2.12, or build"),
])
def test_without_a_library_for_this_torch_the_error_says_which_torch_would_do(error_here, tmp_path, version, cuda, would_do):
    for other in ("2.11", "2.12", "2.12-cpu"):
        (tmp_path / f"libspikeforge-torch{other}.so").touch()
    assert error_here(version, cuda).startswith(f"spikeforge {spikeforge.__version__} has no library for {would_do}")


def test_without_torch_the_error_is_a_line(installed):
    error = error_of(installed, "import sys; sys.modules['torch'] = None; import spikeforge")
    assert error == "spikeforge needs torch 2.11 or later, but torch is not installed: pip install torch"


def test_a_library_of_another_torch_is_no_undefined_symbol(installed):
    file = installed / NAME
    compile_library(file, source='extern "C" int of_another_torch(); int f() { return of_another_torch(); }')
    assert "was built with another torch than" in error_of(installed)


def test_a_file_that_is_no_library_is_named_with_the_linkers_reason(error_here, tmp_path):
    file = tmp_path / NAME
    file.write_text("not a library")
    error = error_here()
    assert error.startswith(f"{file} does not load with torch") and "file too short" in error


def test_a_library_by_name_comes_first_and_must_be_there(monkeypatch, error_here, tmp_path):
    (tmp_path / NAME).touch()
    other = tmp_path / "another.so"
    other.touch()
    monkeypatch.setenv("SPIKEFORGE_LIBRARY", str(other))
    assert _library.path() == other.resolve()
    assert str(other) in error_here()
    monkeypatch.setenv("SPIKEFORGE_LIBRARY", "/nowhere.so")
    assert error_here() == "SPIKEFORGE_LIBRARY=/nowhere.so is not there"


def test_operators_that_are_there_are_used_if_they_are_of_this_version(installed, tmp_path):
    (installed / NAME).write_text("not a library")
    load = "import torch; torch.ops.load_library({!r}); import spikeforge; print(spikeforge._library.load())"
    done = import_it(installed, load.format(str(library_path())))
    assert done.stdout.strip() == str(library_path().resolve()), done.stderr

    ours = ".".join(spikeforge.__version__.split(".")[:2]).encode()
    other = tmp_path / "libspikeforge.so"
    content = library_path().read_bytes()
    assert content.count(b"\0libspikeforge.so." + ours + b"\0") == 1
    other.write_bytes(content.replace(b"\0libspikeforge.so." + ours + b"\0", b"\0libspikeforge.so.9.9\0"))
    error = error_of(installed, load.format(str(other)))
    assert "cannot use the operators of spikeforge 9.9" in error and str(other) in error


# --- names -------------------------------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_header():
    citation = (REPOSITORY / "CITATION.cff").read_text()
    assert spikeforge.__version__ == re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1]


def test_all_names_are_there_and_are_imported_when_they_are_used():
    program = """
import sys, spikeforge
assert not [name for name in sys.modules if name.startswith("spikeforge.") and not name.startswith("spikeforge._")]
for name in spikeforge.__all__:
    getattr(spikeforge, name)
print(sorted(dir(spikeforge)) == spikeforge.__all__, set(spikeforge._FROM) < set(spikeforge.__all__))
"""
    assert run(sys.executable, "-c", program).stdout == "True True\n"
    refused(AttributeError, "no attribute liff", lambda: spikeforge.liff)


def test_accelerate_stays_the_function_once_its_module_is_imported():
    program = "import spikeforge.accelerate; import torch; print(spikeforge.accelerate(torch.nn.Linear(2, 2)) is not None)"
    assert run(sys.executable, "-c", program).stdout == "True\n"


def test_operators_are_torchs_own():
    assert ops.lif is torch.ops.spikeforge.lif
    assert vars(ops)["run"] is torch.ops.spikeforge.run  # the operator itself, without a wrapper
    assert "lif" in dir(ops) and "lif_backward" not in dir(ops)
    assert ops.lif_backward is torch.ops.spikeforge.lif_backward
    refused(AttributeError, "no operator event_csrv; did you mean event_csrmv?", lambda: ops.event_csrv)


def test_operators_by_the_package_compile_whole():
    def twice(x):
        return spikeforge.ops.lif(ops.lif(x, tau=3.0)[0])[0]

    x = 3 * torch.rand(5, 7)
    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), twice(x))


# --- stubs -------------------------------------------------------------------------------------------------------------


def test_the_stubs_are_up_to_date(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["write_stubs", "--check"])
    script("write_stubs").main()


def test_stubs_that_are_out_of_date_are_found(monkeypatch, tmp_path):
    write_stubs = script("write_stubs")
    old = tmp_path / "ops.pyi"
    old.write_text((PACKAGE / "ops.pyi").read_text().replace("tau: float = 2.0", "tau: float = 3.0", 1))
    monkeypatch.setattr(write_stubs, "REPOSITORY", tmp_path)
    monkeypatch.setattr(write_stubs, "STUBS", old)
    monkeypatch.setattr(sys, "argv", ["write_stubs", "--check"])
    refused(SystemExit, "out of date", write_stubs.main)


def test_the_stubs_have_the_names_and_defaults_of_every_overload():
    def of_stub(function):
        arguments = function.args
        assert not arguments.posonlyargs and not arguments.vararg and not arguments.kwarg
        defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
        pairs = [*zip(arguments.args, defaults), *zip(arguments.kwonlyargs, arguments.kw_defaults)]
        values = tuple((arg.arg, repr(ast.literal_eval(default)) if default else "required") for arg, default in pairs)
        return values, len(arguments.args)

    def of_schema(overload):
        arguments = overload._schema.arguments
        values = tuple((arg.name, repr(arg.default_value) if arg.has_default_value() else "required") for arg in arguments)
        return values, sum(not arg.kwarg_only for arg in arguments)

    written = {}
    for node in ast.parse((PACKAGE / "ops.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            written.setdefault(node.name, []).append(node)
    assert sorted(written) == ops.__all__
    for name, functions in written.items():
        packet = getattr(ops, name)
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        assert sorted(map(of_stub, functions)) == sorted(map(of_schema, overloads)), name
        assert ast.get_docstring(functions[0]) == packet.__doc__ != "", name
        assert all((len(functions) > 1) == any(d.id == "overload" for d in one.decorator_list) for one in functions), name


def test_the_stubs_say_what_an_operator_returns():
    returns = {
        node.name: ast.unparse(node.returns)
        for node in ast.parse((PACKAGE / "ops.pyi").read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    x = torch.rand(3, 2)
    assert returns["lif"] == "tuple[Tensor, Tensor]" and [type(one) for one in ops.lif(x)] == [torch.Tensor] * 2
    assert returns["izhikevich"] == "tuple[Tensor, Tensor, Tensor]" and len(ops.izhikevich(x)) == 3
    assert returns["lava_neuron"] == "str" and isinstance(ops.lava_neuron("lif"), str)
    assert returns["pack_events"] == "Tensor" and isinstance(ops.pack_events(x), torch.Tensor)
    quantised = ops.loihi_quantize(torch.rand(2, 3))
    kinds = {torch.Tensor: "Tensor", int: "int", float: "float"}
    assert returns["loihi_quantize"] == f"tuple[{', '.join(kinds[type(one)] for one in quantised)}]"


# --- info --------------------------------------------------------------------------------------------------------------


def test_info_shows_what_the_process_has(tmp_path):
    kernel = f"lif_{'0' * 32}_sm90_nvrtc13.0.cubin"
    (tmp_path / kernel).write_bytes(b"k" * 1000)
    (tmp_path / "notes.txt").write_bytes(b"n" * 5000)
    tmp_path.chmod(0o700)
    info = run(sys.executable, "-m", "spikeforge", "info", "--json", SPIKEFORGE_CACHE_DIR=str(tmp_path),
               SPIKEFORGE_CACHE_LIMIT_MB="7", SPIKEFORGE_KERNEL_PACK=str(tmp_path / "no.pack"))
    found = json.loads(info.stdout)
    assert found["spikeforge"] == spikeforge.__version__ and found["torch"] == torch.__version__
    assert found["library"]["file"] == str(library_path().resolve())
    assert found["cache"] == {"folder": str(tmp_path), "kernels": 1, "bytes": 1000, "limit": 7 << 20, "trusted": True}
    assert [one["name"] for one in found["gpus"]] == [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    assert found["packs"][0]["file"].endswith("no.pack") and "cannot be opened" in found["packs"][0]["error"]


def test_info_for_a_person_has_a_line_for_each_thing(monkeypatch, tmp_path):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("SPIKEFORGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SPIKEFORGE_NVRTC", "/nowhere")
    rows = dict(line.split(maxsplit=1) for line in _info.text(_info.collect()).splitlines())
    assert {"spikeforge", "library", "torch", "Python", "CPU", "GPU", "NVRTC", "cache", "pack"} <= set(rows)
    assert rows["torch"].startswith(torch.__version__) and str(library_path().resolve()) in rows["library"]
    assert "NOT USED" in rows["cache"] and rows["NVRTC"].startswith("none")
    monkeypatch.setenv("SPIKEFORGE_CACHE_DIR", "off")
    assert _info.cache() is None


def test_info_says_why_nothing_loads():
    done = run(sys.executable, "-m", "spikeforge", "info", check=False, SPIKEFORGE_LIBRARY="/nowhere.so")
    assert done.returncode == 1 and done.stderr == ""
    assert re.search(r"^library +NOT LOADED: SPIKEFORGE_LIBRARY=/nowhere.so is not there$", done.stdout, re.MULTILINE)


def test_info_looks_for_nvrtc_and_the_cache_where_the_library_does(monkeypatch):
    source = (REPOSITORY / "csrc" / "jit" / "nvrtc_places.cpp").read_text()
    in_order = re.findall(r'^  add\("(\S+)", "(\S+)"\);', source, re.MULTILINE)
    monkeypatch.delenv("SPIKEFORGE_NVRTC", raising=False)
    places = _info.nvrtc_places()
    assert [place for place in places if "/" not in place] == [soname for soname, _ in in_order]
    assert [place for place in places if "/nvidia/" in place] == [
        str(Path(torch.__file__).parents[1] / "nvidia" / folder / soname) for soname, folder in in_order
    ]
    for own, xdg, home, expected in [
        ("/own", "/xdg", "/home", "/own"),
        ("", "/xdg", "/home", "/xdg/spikeforge"),
        ("", "relative", "/home", "/home/.cache/spikeforge"),
        ("0", "/xdg", "/home", "None"),
        ("", "", "", "None"),
    ]:
        for name, value in [("SPIKEFORGE_CACHE_DIR", own), ("XDG_CACHE_HOME", xdg), ("HOME", home)]:
            monkeypatch.setenv(name, value)
        assert str(_info.cache_folder()) == expected


@pytest.mark.gpu
def test_info_counts_the_kernel_that_was_compiled(cuda, tmp_path):
    cache = tmp_path / "cache"
    program = "import torch, spikeforge; spikeforge.ops.lif(torch.rand(3, 5, device='cuda'))"
    run(sys.executable, "-c", program, SPIKEFORGE_CACHE_DIR=str(cache), SPIKEFORGE_KERNEL_PACK=None)
    found = json.loads(run(sys.executable, "-m", "spikeforge", "info", "--json", SPIKEFORGE_CACHE_DIR=str(cache)).stdout)
    assert found["cache"]["kernels"] == len(list(cache.iterdir())) > 0 and found["cache"]["trusted"]
    assert found["nvrtc"] and found["gpus"][0]["arch"] == "sm_{}{}".format(*torch.cuda.get_device_capability())


# --- the wheel ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def linked(tmp_path):
    """Compiles a library linked to torch's libraries, and to further ones."""
    for name in ("torch_cuda", "cudart"):
        compile_library(tmp_path / "there" / f"lib{name}.so", f"-Wl,-soname,lib{name}.so")
    short_version = ".".join(spikeforge.__version__.split(".")[:2])

    def make(name="libspikeforge-torch2.11.so", soname=None, links=("torch_cuda",), rpath=None):
        soname = soname or f"{name.split('-')[0]}.so.{short_version}"
        words = [f"-Wl,-soname,{soname}", "-Wl,--no-as-needed", f"-L{tmp_path / 'there'}", *(f"-l{link}" for link in links)]
        return compile_library(tmp_path / name, *words, *([f"-Wl,-rpath,{rpath}"] if rpath else []))

    return make


def test_a_library_may_link_torch_and_what_every_system_has(linked):
    library = wheel_policy.check_library("libspikeforge-torch2.11.so", linked(), spikeforge.__version__)
    assert {"libtorch_cuda.so", "libstdc++.so.6"} <= set(library.needed)


@pytest.mark.parametrize("options, named, words", [
    (dict(links=("torch_cuda", "cudart")), "libspikeforge-torch2.11.so", "links libcudart.so, which"),
    (dict(rpath="/here/lib"), "libspikeforge-torch2.11.so", "has the RPATH /here/lib"),
    (dict(soname="libspikeforge.so.7"), "libspikeforge-torch2.11.so", "has the soname libspikeforge.so.7"),
    (dict(links=()), "libspikeforge-torch2.11.so", "without CUDA, contrary to its name"),
    (dict(), "libspikeforge-torch2.11-cpu.so", "with CUDA, contrary to its name"),
])
def test_the_policy_refuses_what_works_on_one_machine_alone(linked, options, named, words):
    with pytest.raises(wheel_policy.PolicyError, match=re.escape(words)):
        wheel_policy.check_library(named, linked(**options), spikeforge.__version__)


def test_the_tag_is_that_of_the_newest_symbols():
    def needs(glibc, libstdcxx):
        return wheel_policy.Linkage([], None, [], glibc, libstdcxx, "x86_64")

    assert wheel_policy.platform_tag([needs((2, 34), (3, 4, 21))]) == "manylinux_2_34_x86_64"
    assert wheel_policy.platform_tag([needs((2, 17), (3, 4, 30)), needs((2, 34), (3, 4))]) == "manylinux_2_35_x86_64"
    assert wheel_policy.platform_tag([needs((2, 2, 5), (3, 4, 22))]) == "manylinux_2_28_x86_64"
    with pytest.raises(wheel_policy.PolicyError, match="is missing in GLIBC_OF_LIBSTDCXX"):
        wheel_policy.platform_tag([needs((2, 34), (3, 4, 99))])


@pytest.mark.parametrize("said, allowed", [
    ("manylinux_2_35_x86_64", True), ("manylinux_2_39_x86_64", True), ("manylinux_2_28_x86_64", False),
    ("manylinux_2_35_aarch64", False), ("linux_x86_64", True), ("any", False),
])
def test_a_wheel_may_not_promise_older_systems(said, allowed):
    assert wheel_policy.covers(said, "manylinux_2_35_x86_64") == allowed


def of_torch(linked, torch):
    return [linked(name=f"lib{name}-torch{torch}.so") for name in ("spikeforge", "spikeforge_nir_nn")]


def packed(monkeypatch, tmp_path, libraries):
    """Builds a wheel from libraries with scripts/wheel, with a small package instead of the build backend's."""
    wheel, info = script("wheel"), f"spikeforge-{spikeforge.__version__}.dist-info"
    base = tmp_path / "base.whl"
    with zipfile.ZipFile(base, "w") as opened:
        for name in ("__init__.py", "ops.pyi", "py.typed"):
            opened.writestr(f"spikeforge/{name}", "")
        opened.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\n")
        opened.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        opened.writestr(f"{info}/RECORD", "")
    monkeypatch.setattr(wheel, "wheel_without_library", lambda: base)
    return wheel.pack(libraries, tmp_path / "dist")


def test_a_packed_wheel_passes_the_check_and_a_changed_one_does_not(linked, monkeypatch, tmp_path):
    path = packed(monkeypatch, tmp_path, of_torch(linked, "2.11") + of_torch(linked, "2.12"))
    assert [name[2] for name, *_ in wheel_policy.check_wheel(path)] == ["2.11", "2.11", "2.12", "2.12"]
    tag = path.name.removesuffix(".whl").split("-", 2)[2]
    with zipfile.ZipFile(path) as wheel:
        about = wheel.read(f"spikeforge-{spikeforge.__version__}.dist-info/WHEEL").decode()
    assert f"Tag: {tag}\n" in about and "Root-Is-Purelib: false\n" in about

    with zipfile.ZipFile(path, "a") as wheel:
        wheel.writestr("spikeforge/left_over.cpp", "")
    done = run(sys.executable, REPOSITORY / "scripts" / "check_wheel", path, check=False)
    assert done.returncode == 1 and "left_over.cpp" in done.stderr and done.stderr.count("\n") == 1


def test_a_wheel_without_nir_is_refused(linked, monkeypatch, tmp_path):
    path = packed(monkeypatch, tmp_path, of_torch(linked, "2.11") + [linked(name="libspikeforge-torch2.12.so")])
    with pytest.raises(wheel_policy.PolicyError, match="libraries of NIR for other versions of torch"):
        wheel_policy.check_wheel(path)


def test_a_wheel_that_promises_an_older_system_is_refused(linked, monkeypatch, tmp_path):
    path = packed(monkeypatch, tmp_path, of_torch(linked, "2.11"))
    older = path.with_name(re.sub(r"manylinux_\d+_\d+", "manylinux_2_5", path.name))
    path.rename(older)
    with pytest.raises(wheel_policy.PolicyError, match="has the platform manylinux_2_5_x86_64, but its libraries need"):
        wheel_policy.check_wheel(older)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A new virtual environment with this Python's torch, and without the source tree."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    (Path(site) / "torch_of_another_environment.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.long
def test_the_wheel_installs_in_seconds_and_works(environment, tmp_path):
    run(sys.executable, REPOSITORY / "scripts" / "wheel", "--python", sys.executable, "--out", tmp_path,
        f"{MINOR}{'' if torch.version.cuda else '+cpu'}")
    (wheel,) = tmp_path.glob("*.whl")
    start = time.monotonic()
    run(environment, "-m", "pip", "install", "--no-index", wheel, PYTHONPATH=None)
    assert time.monotonic() - start < 60
    alone = {"PYTHONPATH": None, "SPIKEFORGE_LIBRARY": None}
    program = code("first use of the package") + "\nassert 0 < spikes.mean() < 1 and tau.grad.abs().sum() > 0\n"
    assert "of all steps fired" in run(environment, "-c", program, **alone).stdout
    found = json.loads(run(environment, "-m", "spikeforge", "info", "--json", **alone).stdout)
    assert Path(found["library"]["file"]).is_relative_to(environment.parents[1])
    assert found["holds"][0].startswith(MINOR)

    nir = pytest.importorskip("nir")
    nir.write(tmp_path / "a.nir", nir.NIRGraph.from_list(nir.Affine(np.eye(2, 3), np.ones(2))))
    program = f"import spikeforge.nir, torch; print(spikeforge.nir.load({str(tmp_path / 'a.nir')!r}, dt=1e-3)(torch.ones(1, 3)).tolist())"
    assert run(environment, "-c", program, **alone).stdout == "[[2.0, 2.0]]\n"


def test_pip_does_not_build_where_there_is_no_torch(tmp_path):
    """Runs CMake as pip does in an isolated environment, whose Python has no torch."""
    for tool in ("c++", "cmake", "ninja"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} on this machine")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    done = run("cmake", "-G", "Ninja", "-S", REPOSITORY, "-B", tmp_path / "build", "-DSKBUILD=2", "-DSPIKEFORGE_PYTHON_PACKAGE=ON",
               f"-DPython_EXECUTABLE={python}", check=False, SPIKEFORGE_PYTHON=sys.executable)
    assert done.returncode != 0 and "pip install --no-build-isolation ." in done.stderr
