"""The program that runs saved networks (examples/deploy): its output, and that no untrusted file crashes it."""

import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import time
import tty
import warnings
import zlib

import numpy
import pytest
import torch
from example import BUILD, deploy

pytestmark = pytest.mark.long

torch.ops.load_library(os.environ["SPIKEFORGE_LIBRARY"])
warnings.simplefilter("ignore", DeprecationWarning)


def refused(words, *arguments, **more):
    result = deploy(*arguments, **more)
    assert result.returncode == 1, (result.returncode, result.stdout, result.stderr)
    assert result.stderr.startswith("deploy: ") and result.stderr.count("\n") == 1, result.stderr
    assert not result.stdout
    for word in [words] if isinstance(words, str) else words:
        assert word in result.stderr, result.stderr


NEURON = "neuron n(x; v) { h = 0.5 * v + x; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"


class Net(torch.nn.Module):
    """Maps [rows, 4] to scores [rows, 3]."""

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


# --- output ------------------------------------------------------------------------------------------------------------


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
    """Maps [T, rows, 3] to spikes of the same shape, with a state that is kept until reset()."""

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


def test_sequences_are_summed_and_states_restart_with_every_batch(tmp_path):
    torch.manual_seed(1)
    x = 3 * torch.rand(9, 5, 3)
    numpy.save(tmp_path / "x.npy", x.numpy())
    save(Remembers(), tmp_path / "net.pt")
    spikes, _ = torch.ops.spikeforge.lif(x)
    for batch in (1, 2, 5):  # batches of 1, 2 and 5 samples, and a smaller last batch
        result = deploy(tmp_path / "net.pt", tmp_path / "x.npy", "--sample-dim", 1, "--batch", batch, "--scores", tmp_path / "s")
        assert result.returncode == 0, result.stderr
        assert numpy.array_equal(numpy.loadtxt(tmp_path / "s", delimiter=","), spikes.sum(0).numpy())


# --- errors of usage ---------------------------------------------------------------------------------------------------


def test_wrong_command_lines_end_with_2(folder):
    for arguments in ([], [folder / "net.pt"], [folder / "net.pt", folder / "x.npy", "--batch", "0"],
                      [folder / "net.pt", folder / "x.npy", "--device", "tpu"]):
        result = deploy(*arguments)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr


def test_files_that_are_not_there_or_something_else(folder, tmp_path):
    torch.save({"weight": torch.rand(3)}, tmp_path / "weights.pt")
    for network in (folder / "nothing.pt", folder / "nothing.pt2", folder / "x.csv", folder, tmp_path / "weights.pt"):
        refused(f"cannot load {network}: ", network, folder / "x.npy")
    refused(["cannot be opened", "nothing.npy"], folder / "net.pt", folder / "nothing.npy")
    refused("cannot read", folder / "net.pt", folder)
    (tmp_path / "empty.csv").touch()
    refused("empty.csv: it is empty", folder / "net.pt", tmp_path / "empty.csv")
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
    npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 4), }"),
    npy("shape"), npy(""),
])
def test_arrays_that_are_none(folder, tmp_path, data):
    (tmp_path / "x.npy").write_bytes(data)
    refused("x.npy", folder / "net.pt", tmp_path / "x.npy")


# --- untrusted networks ------------------------------------------------------------------------------------------------


@pytest.fixture()
def running(folder):
    """A running deploy, and its child process that runs the network."""
    program = subprocess.Popen([BUILD / "bin/deploy", folder / "net.pt", folder / "x.npy", "--rounds", "1000000"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/children")
    for _ in range(600):
        found = children.read_text().split()
        if found and int(pathlib.Path(f"/proc/{found[0]}/stat").read_text().rsplit(")", 1)[1].split()[11]) > 100:
            break
        time.sleep(0.1)
    yield program, int(found[0])
    program.kill()
    program.wait()


def test_the_network_runs_in_a_process_without_rights(running):
    _, child = running
    status = pathlib.Path(f"/proc/{child}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status, status


def test_a_program_that_is_killed_leaves_no_process(running):
    program, child = running
    program.kill()
    program.wait()
    for _ in range(100):
        if not pathlib.Path(f"/proc/{child}").exists() or "\nState:\tZ" in pathlib.Path(f"/proc/{child}/status").read_text():
            return
        time.sleep(0.1)
    pytest.fail("it goes on")


def test_files_that_are_no_plain_files_do_not_hang(folder, tmp_path):
    os.mkfifo(tmp_path / "net.pt")
    os.mkfifo(tmp_path / "x.npy")
    refused("it is not a regular file", tmp_path / "net.pt", folder / "x.npy", timeout=30)
    refused("it is not a regular file", folder / "net.pt", tmp_path / "x.npy", timeout=30)


def test_an_array_of_nothing_takes_no_memory(folder, tmp_path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 0), }"
    (tmp_path / "x.npy").write_bytes(npy(header, b""))
    started = time.monotonic()
    refused("x.npy: it has no elements", folder / "net.pt", tmp_path / "x.npy", timeout=30)
    assert time.monotonic() - started < 20
    numpy.save(tmp_path / "x.npy", numpy.ones((9, 0), dtype=numpy.float32))
    refused("there is no sample in [9, 0]", folder / "net.pt", tmp_path / "x.npy")


def test_a_table_that_cannot_be_read_to_its_end_is_no_table(folder):
    # Reading a terminal after its other end is closed gives an error instead of the end of the file.
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    program = subprocess.Popen([BUILD / "bin/deploy", folder / "net.pt", os.ttyname(theirs)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    os.write(ours, b"1,2,3,4\n")
    children = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/children")
    name = os.ttyname(theirs)
    os.close(theirs)
    for _ in range(300):
        found = children.read_text().split()
        links = pathlib.Path(f"/proc/{found[0]}/fd").iterdir() if found else []
        if any(link.is_symlink() and os.readlink(link) == name for link in links):
            break
        time.sleep(0.1)
    time.sleep(0.5)
    os.close(ours)
    out, error = program.communicate(timeout=60)
    assert program.returncode == 1 and "cannot be read beyond line 1" in error, (out, error)


def test_no_word_of_a_file_reaches_the_terminal_as_a_command(folder, tmp_path):
    class Screams(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("\x1b]0;title\x07\x9b2J")

    save(Screams(), tmp_path / "net.pt")
    result = deploy(tmp_path / "net.pt", folder / "x.npy")
    assert result.returncode == 1 and "\\x1b]0;title\\x07" in result.stderr, result.stderr
    assert "\x1b" not in result.stderr and "\x07" not in result.stderr and "\x9b" not in result.stderr


def test_scores_are_written_where_the_network_ran_and_nowhere_else(folder, tmp_path):
    save(Hostile(4), tmp_path / "bad.pt")
    (tmp_path / "old").write_text("old")
    for name in ("old", "new"):
        refused("a message", tmp_path / "bad.pt", folder / "x.npy", "--scores", tmp_path / name)
    assert (tmp_path / "old").read_text() == "old" and not (tmp_path / "new").exists()
    assert deploy(folder / "net.pt", folder / "x.npy", "--scores", tmp_path / "old").returncode == 0
    assert len((tmp_path / "old").read_text().splitlines()) == 10


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


def test_a_package_refuses_inputs_that_it_was_not_compiled_for(folder, package, tmp_path):
    for shape in ((10, 5), (10,), (10, 4, 1), (100, 4)):
        numpy.save(tmp_path / "x.npy", numpy.ones(shape, dtype=numpy.float32))
        refused("", package, tmp_path / "x.npy", "--batch", 100)
    refused("", package, folder / "x.npy", "--batch", 10, "--dtype", "float64")


def test_a_package_that_is_cut_is_refused(package, folder, tmp_path):
    (tmp_path / "net.pt2").write_bytes(pathlib.Path(package).read_bytes()[:-1000])
    refused("net.pt2: ", tmp_path / "net.pt2", folder / "x.npy")
