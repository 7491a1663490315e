"""The program that runs saved networks (examples/deploy): what it prints, and that no file of a stranger crashes it."""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import warnings
import zipfile
import zlib

import numpy
import pytest
import torch

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SPIKEFORGE_BUILD_DIR", ROOT / "build/release"))
LIBRARY = os.environ.get("SPIKEFORGE_LIBRARY", str(BUILD / "lib/libspikeforge.so"))
torch.ops.load_library(LIBRARY)
warnings.simplefilter("ignore", DeprecationWarning)


def deploy(*arguments, timeout=120, **environment):
    program = BUILD / "bin/deploy"
    if not program.exists():
        pytest.fail(f"{program} is not built: cmake --build --preset release --target deploy")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, timeout=timeout,
                          env=dict(os.environ, **environment), text=True, errors="replace")


def refused(words, *arguments, **more):
    result = deploy(*arguments, **more)
    assert result.returncode == 1, (result.returncode, result.stdout, result.stderr)
    assert result.stderr.startswith("deploy: ") and result.stderr.count("\n") == 1, result.stderr
    assert not result.stdout
    for word in [words] if isinstance(words, str) else words:
        assert word in result.stderr, result.stderr


NEURON = "neuron n(x; v) { h = 0.5 * v + x; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"


class Net(torch.nn.Module):
    """[rows, 4] to scores [rows, 3]."""

    def __init__(self, text: str = NEURON):
        super().__init__()
        self.text = text
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        outputs, states = torch.ops.spikeforge.run(
            self.text, [self.layer(x).expand(5, -1, -1)], [], [], store_states=False)
        return outputs[0].sum(0) + states[0]


def save(module, path):
    torch.jit.script(module).save(str(path))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deploy")
    torch.manual_seed(0)
    net = Net().eval()
    save(net, folder / "net.pt")
    x = 4 * torch.rand(10, 4) - 1
    numpy.save(folder / "x.npy", x.numpy())
    with torch.no_grad():
        scores = net(x)
    numpy.savetxt(folder / "x.csv", torch.cat([x, scores.argmax(1, keepdim=True)], 1), fmt="%.9g", delimiter=",")
    torch.save(scores, folder / "scores.pt")
    return folder


# --- what it prints ----------------------------------------------------------------------------------------------------


def test_it_prints_classes_accuracy_latency_and_throughput(folder):
    classes = torch.load(folder / "scores.pt").argmax(1).tolist()
    result = deploy(folder / "net.pt", folder / "x.csv", "--classes-last", "--batch", 4, "--rounds", 3)
    assert result.returncode == 0 and not result.stderr, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["classes", *map(str, classes)]
    assert lines[1].split() == ["accuracy", "100.00%", "of", "10"]
    times = re.fullmatch(r"latency +p50 ([\d.]+) ms, p90 ([\d.]+) ms, p99 ([\d.]+) ms \(9 calls of 4\)", lines[2])
    assert times and 0 < float(times[1]) <= float(times[2]) <= float(times[3])
    assert re.fullmatch(r"throughput +\d+ samples/s", lines[3]) and len(lines) == 4


def test_arrays_and_tables_of_all_kinds_are_the_same_samples(folder, tmp_path):
    x = numpy.load(folder / "x.npy")
    numpy.savetxt(tmp_path / "spaces.csv", x, fmt="%.9g", delimiter=", ", newline="\r\n")
    numpy.save(tmp_path / "fortran.npy", numpy.asfortranarray(x))
    numpy.save(tmp_path / "double.npy", x.astype(numpy.float64))
    numpy.lib.format.write_array((tmp_path / "version2.npy").open("wb"), x, version=(2, 0))
    expected = torch.load(folder / "scores.pt")
    for name in ("spaces.csv", "fortran.npy", "double.npy", "version2.npy"):
        result = deploy(folder / "net.pt", tmp_path / name, "--batch", 10, "--scores", tmp_path / "scores.csv", "--json")
        assert result.returncode == 0, result.stderr
        scores = numpy.loadtxt(tmp_path / "scores.csv", delimiter=",", dtype=numpy.float32)
        assert torch.equal(torch.from_numpy(scores), expected), name
        measured = json.loads(result.stdout)
        assert measured["calls"] == 1 and measured["classes"] == expected.argmax(1).tolist()
    for dtype in ("i1", "u1", "<i2", "<i4", "<i8", "?", "<f2"):
        numpy.save(tmp_path / "small.npy", numpy.ones((2, 4)).astype(dtype))
        assert deploy(folder / "net.pt", tmp_path / "small.npy").returncode == 0, dtype


class Remembers(torch.nn.Module):
    """[T, rows, 3] to spikes of the same shape, with a state that lives until reset()."""

    def __init__(self):
        super().__init__()
        self.register_buffer("v", torch.empty(0))

    def forward(self, x):
        v = self.v if self.v.numel() > 0 else torch.zeros(x.size(1), x.size(2))
        spikes, self.v = torch.ops.spikeforge.lif(x, v)
        return spikes

    @torch.jit.export
    def reset(self):
        self.v = torch.empty(0)


def test_sequences_are_summed_and_states_begin_anew_with_every_batch(tmp_path):
    torch.manual_seed(1)
    x = 3 * torch.rand(9, 5, 3)
    numpy.save(tmp_path / "x.npy", x.numpy())
    save(Remembers(), tmp_path / "net.pt")
    spikes, _ = torch.ops.spikeforge.lif(x)
    for batch in (1, 2, 5):  # with a smaller one at the end
        result = deploy(tmp_path / "net.pt", tmp_path / "x.npy", "--sample-dim", 1, "--batch", batch, "--scores", tmp_path / "s")
        assert result.returncode == 0, result.stderr
        assert numpy.array_equal(numpy.loadtxt(tmp_path / "s", delimiter=","), spikes.sum(0).numpy())


# --- what a user can mend ----------------------------------------------------------------------------------------------


def test_wrong_command_lines_end_with_2(folder):
    for arguments in ([], [folder / "net.pt"], [folder / "net.pt", folder / "x.npy", "--batch", "0"],
                      [folder / "net.pt", folder / "x.npy", "--device", "tpu"]):
        result = deploy(*arguments)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr


def test_files_that_are_not_there_or_something_else(folder, tmp_path):
    refused(["cannot read", "nothing.pt"], folder / "nothing.pt", folder / "x.npy")
    refused(["cannot read", "nothing.pt2"], folder / "nothing.pt2", folder / "x.npy")
    refused(["cannot read", "nothing.npy"], folder / "net.pt", folder / "nothing.npy")
    refused("it is no zip file, or cut short", folder / "x.csv", folder / "x.npy")
    refused("cannot read", folder, folder / "x.npy")
    refused("cannot read", folder / "net.pt", folder)
    (tmp_path / "empty.csv").touch()
    refused("empty.csv: it is empty", folder / "net.pt", tmp_path / "empty.csv")
    torch.save({"weight": torch.rand(3)}, tmp_path / "weights.pt")
    refused(["cannot load", "weights.pt"], tmp_path / "weights.pt", folder / "x.npy")
    shutil.copy(folder / "net.pt", tmp_path / "net.pt2")
    refused("net.pt2", tmp_path / "net.pt2", folder / "x.npy")
    refused("--classes-last is for tables", folder / "net.pt", folder / "x.npy", "--classes-last")
    refused("cannot write", folder / "net.pt", folder / "x.npy", "--scores", tmp_path / "no" / "scores.csv")
    if not torch.cuda.is_available():
        refused("torch finds no CUDA device here", folder / "net.pt", folder / "x.npy", "--device", "cuda")


@pytest.mark.parametrize("text, words", [
    ("1,2,3,4\n1,two,3,4\n", ".csv:2: expected 4 numbers with commas between"),
    ("1,2,3,4\n1,2,3\n", ".csv:2: expected 4 numbers"),
    ("1,2,,4\n", ".csv:1: expected numbers"),
    ("1,2,3,4,\n", ".csv:1: expected numbers"),
    ("\n", ".csv:1: expected numbers"),
    ("\x00" * 100, ".csv:1: expected numbers"),
])
def test_tables_that_are_none(folder, tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    refused(words, folder / "net.pt", tmp_path / "t.csv")


@pytest.mark.parametrize("last", ["-1", "0.5", "1e30", "nan"])
def test_classes_that_are_none(folder, tmp_path, last):
    (tmp_path / "t.csv").write_text(f"1,2,3,4,{last}\n")
    refused(".csv:1: a class is a whole number", folder / "net.pt", tmp_path / "t.csv", "--classes-last")


def test_shapes_that_the_network_does_not_take(folder, tmp_path):
    for shape, words in (((3, 5), "shapes cannot be multiplied"), ((0, 4), "there is no sample in [0, 4]"),
                         ((), "there is no sample in []"), ((2, 3, 4), "")):
        numpy.save(tmp_path / "x.npy", numpy.ones(shape, dtype=numpy.float32))
        refused(words, folder / "net.pt", tmp_path / "x.npy")
    save(torch.nn.Flatten(0), tmp_path / "flat.pt")
    refused("the network gives [4] for 1 samples, expected scores", tmp_path / "flat.pt", folder / "x.npy")


def npy(header, data=b"\0" * 16):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize("data", [
    b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff", b"\x93NUMPY\x09\x00", b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4)", b""),
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 5), }"),
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }"),
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999, 4), }"),
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4), }"),
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4"), npy("{'descr': '<f4', 'shape': (1, 4)}"),
    npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 4), }"), npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1, 4), }"),
    npy("shape"), npy(""),
])
def test_arrays_that_are_none(folder, tmp_path, data):
    (tmp_path / "x.npy").write_bytes(data)
    refused("x.npy", folder / "net.pt", tmp_path / "x.npy")


# --- networks of strangers ---------------------------------------------------------------------------------------------


def test_no_flipped_bit_and_no_cut_is_taken_for_a_network(folder, tmp_path):
    whole = (folder / "net.pt").read_bytes()
    dice = numpy.random.default_rng(0)
    damaged = [whole[:length] for length in (0, 100, len(whole) // 2, len(whole) - 1)]
    for _ in range(6):
        at = int(dice.integers(len(whole)))
        damaged.append(whole[:at] + bytes([whole[at] ^ 1 << int(dice.integers(8))]) + whole[at + 1:])
    expected = deploy(folder / "net.pt", folder / "x.npy").stdout.splitlines()[0]
    told = 0
    for data in damaged:
        (tmp_path / "net.pt").write_bytes(data)
        result = deploy(tmp_path / "net.pt", folder / "x.npy")
        if result.returncode == 0:  # in what nobody reads, such as a date or padding
            assert result.stdout.splitlines()[0] == expected
            continue
        told += 1
        assert result.returncode == 1 and result.stderr.count("\n") == 1 and result.stderr.startswith("deploy: "), result.stderr
    assert told > 5


def with_entries(source, target, change):
    """The archive with changed entries, and right checksums."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return target


def test_files_that_are_wrong_inside_have_right_checksums(folder, tmp_path):
    dice = numpy.random.default_rng(1)

    def scrambled(kind):
        def change(name, data):
            if not name.endswith(kind) or not data:
                return data
            data = bytearray(data)
            for at in dice.integers(len(data), size=3):
                data[at] = int(dice.integers(256))
            return bytes(data)
        return change

    changes = [scrambled(kind) for kind in ("data.pkl", ".py", "constants.pkl", "version") for _ in range(2)]
    changes += [lambda name, data: None if name.endswith("data.pkl") else data, lambda name, data: None if name.endswith(".py") else data,
                lambda name, data: data[:len(data) // 2] if "/data/" in name else data,
                lambda name, data: b"" if name.endswith("data.pkl") else data]
    for change in changes:
        with_entries(folder / "net.pt", tmp_path / "net.pt", change)
        result = deploy(tmp_path / "net.pt", folder / "x.npy")
        if result.returncode:
            assert result.returncode == 1 and result.stderr.count("\n") == 1 and result.stderr.startswith("deploy: "), result.stderr


def test_archives_that_lie(folder, tmp_path):
    whole = (folder / "net.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "twice.pt", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("net/data.pkl", b"1")
        archive.writestr("net/data.pkl", b"2")
    refused("is in it twice", tmp_path / "twice.pt", folder / "x.npy")
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/code/bomb.py", b"#" * (80 << 20))
    refused("is too large", tmp_path / "bomb.pt", folder / "x.npy")
    end = whole.rfind(b"PK\x05\x06")
    for offset in (0, 1, 0xfffffff0):
        (tmp_path / "net.pt").write_bytes(whole[:end + 16] + struct.pack("<I", offset) + whole[end + 20:])
        refused("net.pt is damaged", tmp_path / "net.pt", folder / "x.npy")


def replaced(before, after):
    def change(name, data):
        return data.replace(before, after) if name.endswith(".py") else data
    return change


@pytest.mark.parametrize("after, words", [
    (b"ops.spikeforge.mystery(", "mystery"),
    (b"ops.strange.run(", "it calls strange::run, which is neither of torch nor of spikeforge"),
    (b"ops.quantized.run(", "it calls quantized::run"),
    (b"ops.spikeforge.lif(", ""),
    (b"ops . caffe2 .run(", "it calls caffe2::run"),
    (b"torch.mystery(", "mystery"),
    (b"torch.save(", "it calls save, which reads or writes files"),
    (b"torch.from_file(", "it calls from_file, which reads or writes files"),
    (b"torch . \\\n save(", "it calls save"),
])
def test_other_operators_are_refused(folder, tmp_path, after, words):
    with_entries(folder / "net.pt", tmp_path / "net.pt", replaced(b"ops.spikeforge.run(", after))
    refused(words, tmp_path / "net.pt", folder / "x.npy")


class Writes(torch.nn.Module):
    """Writes a file while it is loaded."""

    def __init__(self, path: str):
        super().__init__()
        self.path = path
        self.kept = torch.zeros(4)

    def forward(self, x: torch.Tensor):
        return x + self.kept

    @torch.jit.export
    def __getstate__(self):
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]):
        self.path, self.training = state
        self.kept = torch.from_file(self.path, True, 4)


def test_a_file_is_screened_before_any_of_it_runs(folder, tmp_path):
    save(Writes(str(tmp_path / "written")), tmp_path / "net.pt")
    refused("it calls from_file", tmp_path / "net.pt", folder / "x.npy")
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("text", [
    "", "neuron", "neuron n(x; v) { return }", NEURON[:-1], NEURON + NEURON, "\0", "neuron n(x; v) { return q; v' = v }",
    "neuron n(x; v) { return " + "(" * 100_000 + "x" + ")" * 100_000 + "; v' = v }",
    "neuron n(x; v) { return " + "-" * 1_000_000 + "x; v' = v }",
    "neuron n(x; v) { return x" + " + x * 1.5" * 500_000 + "; v' = v }",
    "neuron " + "n" * 30_000_000 + "(x; v) { return x; v' = v }",
    "neuron n(x; v) { return x; v' = v } " + " " * 30_000_000 + "x",
], ids=lambda text: f"{len(text)} characters, {zlib.crc32(text.encode()):08x}")
def test_neuron_texts_that_are_none_or_huge(folder, tmp_path, text):
    save(Net(text), tmp_path / "net.pt")
    refused("", tmp_path / "net.pt", folder / "x.npy", timeout=60)


class Hostile(torch.nn.Module):
    def __init__(self, kind: int):
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == 1:
            return torch.ones(1 << 60)
        if self.kind == 2:
            return x.as_strided([1000], [1 << 40])
        if self.kind == 3:
            return torch.zeros(1)[[7]] + x[9, 9]
        raise ValueError("a message\nof several lines")


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_networks_that_fail_while_they_run(folder, tmp_path, kind):
    save(Hostile(kind), tmp_path / "net.pt")
    refused("", tmp_path / "net.pt", folder / "x.npy")


class Two(torch.nn.Module):
    def forward(self, x, y):
        return x + y


class NoTensor(torch.nn.Module):
    def forward(self, x):
        return 5


def test_networks_of_another_form(folder, tmp_path):
    save(Two(), tmp_path / "two.pt")
    refused("its forward does not take one tensor", tmp_path / "two.pt", folder / "x.npy")
    save(NoTensor(), tmp_path / "number.pt")
    refused("the network gives no tensor", tmp_path / "number.pt", folder / "x.npy")


# --- packages of machine code ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(folder):
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor compiles with g++, which is not on this machine")
    torch.manual_seed(0)
    net = Net().eval().requires_grad_(False)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(net, (torch.rand(8, 4),), dynamic_shapes=({0: rows},))
    return torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "net.pt2"))


def test_a_package_gives_the_same_scores(folder, package, tmp_path):
    result = deploy(package, folder / "x.npy", "--batch", 10, "--scores", tmp_path / "s")
    assert result.returncode == 0, result.stderr
    scores = torch.from_numpy(numpy.loadtxt(tmp_path / "s", delimiter=",", dtype=numpy.float32))
    assert torch.equal(scores, torch.load(folder / "scores.pt"))


def test_a_package_refuses_what_it_was_not_compiled_for(folder, package, tmp_path):
    for shape in ((10, 5), (10,), (10, 4, 1), (100, 4)):
        numpy.save(tmp_path / "x.npy", numpy.ones(shape, dtype=numpy.float32))
        refused("", package, tmp_path / "x.npy", "--batch", 100)
    refused("", package, folder / "x.npy", "--batch", 10, "--dtype", "float64")


def test_a_package_that_is_damaged(package, folder, tmp_path):
    whole = pathlib.Path(package).read_bytes()
    for at in (len(whole) // 3, len(whole) // 2, 2 * len(whole) // 3):
        (tmp_path / "net.pt2").write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1:])
        refused("net.pt2 is damaged: the checksum of", tmp_path / "net.pt2", folder / "x.npy")
    (tmp_path / "net.pt2").write_bytes(whole[:-1000])
    refused("net.pt2 is damaged", tmp_path / "net.pt2", folder / "x.npy")
    with_entries(package, tmp_path / "net.pt2", lambda name, data: b"\x7fELF" + b"\0" * 100 if name.endswith(".so") else data)
    refused("", tmp_path / "net.pt2", folder / "x.npy")
