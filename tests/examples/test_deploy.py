"""The program that runs saved networks (examples/deploy): what it prints, and that no file of a stranger crashes it."""

import ctypes
import json
import os
import pathlib
import pty
import re
import resource
import shutil
import struct
import subprocess
import time
import tty
import warnings
import zipfile
import zlib
from typing import Dict, List, Optional, Tuple, Union

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
    refused(["cannot be read", "nothing.pt"], folder / "nothing.pt", folder / "x.npy")
    refused(["cannot be read", "nothing.pt2"], folder / "nothing.pt2", folder / "x.npy")
    refused(["cannot be opened", "nothing.npy"], folder / "net.pt", folder / "nothing.npy")
    refused("it is no zip file, or cut short", folder / "x.csv", folder / "x.npy")
    refused("cannot be read: it is a folder", folder, folder / "x.npy")
    refused("cannot read", folder / "net.pt", folder)
    (tmp_path / "empty.csv").touch()
    refused("empty.csv: it is empty", folder / "net.pt", tmp_path / "empty.csv")
    torch.save({"weight": torch.rand(3)}, tmp_path / "weights.pt")
    refused(["is no TorchScript file", "weights.pt"], tmp_path / "weights.pt", folder / "x.npy")
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
        archive.writestr("net/version", b"3")
    refused("is too large", tmp_path / "bomb.pt", folder / "x.npy")
    end = whole.rfind(b"PK\x05\x06")
    for offset in (0, 1, 0xfffffff0):
        (tmp_path / "net.pt").write_bytes(whole[:end + 16] + struct.pack("<I", offset) + whole[end + 20:])
        refused("net.pt: it is damaged", tmp_path / "net.pt", folder / "x.npy")


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
    (b"torch.save(", "it calls aten::save, which is not among the operators"),
    (b"torch.from_file(", "it calls aten::from_file"),
    (b"torch . \\\n save(", "it calls aten::save"),
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
    refused("it calls aten::from_file", tmp_path / "net.pt", folder / "x.npy")
    assert not (tmp_path / "written").exists()


def with_source(folder, path, line, name="net.pt", beside=b""):
    """The network, whose forward begins with this line, and beside which this is defined. HERE is their module."""
    def change(entry, data):
        if b"class Net(" not in data:
            return data
        here = re.search(rb"self: ([\w.]+)\.Net", data)[1]
        start = data.index(b"\n", data.index(b"Tensor:", data.index(b"def forward"))) + 1
        return (data[:start] + b"    " + line.replace(b"HERE", here) + b"\n" + data[start:].rstrip(b"\n") + b"\n"
                + beside.replace(b"HERE", here))
    return with_entries(folder / name, path / "changed.pt", change)


@pytest.mark.parametrize("line", [
    b'getattr(torch, "save")(x, "PATH")', b'f = torch.save', b'o = torch', b'x.save("PATH")', b'self.save("PATH")',
    b'torch.autograd.save(x, "PATH")', b'ops.aten.save(x, "PATH")', b'y = getattr(x, "save")', b'y = getattr(x, "sa" "ve")',
    b'y = ops.spikeforge.load_kernel_pack("PATH")', b'y = ops.spikeforge.write_kernel_pack("PATH")',
    b'ops.spikeforge.record_kernels(["sm_90"])', b'y = ops.spikeforge.lif_forward(x)', b'o = ops.spikeforge',
    b'y = getattr(ops, "spikeforge")', b'y = fork(self.forward, x)', b'print("\\x1b[2J")', b'y = torch._foobar(x)',
    b'y = torch._test_warn_in_autograd(x)', b'y = torch.set_(x, x)', b'y = torch.resize_(x, [99])', b'y = x.resize_([99])',
    b'y = unchecked_cast(__torch__.Net, x)', b'y = __torch__.torch.classes.c10d.FileStore("PATH", 1)',
    b'y : __torch__.torch.classes.quantized.LinearPackedParamsBase = x', b'y = ops.prim.rpc_sync(x)',
    b'y = ops.prim.PythonOp(x)', b'y = [z.save("PATH") for z in [x]]', b'y = x if x.save("PATH") is None else x',
    b'with torch.save(x, "PATH"):\n      pass', b'assert x.from_file("PATH"), x', b'y = torch.to_here(x)',
])
def test_no_way_leads_to_another_operator(folder, tmp_path, line):
    path = with_source(folder, tmp_path, line.replace(b"PATH", str(tmp_path / "written").encode()))
    refused("changed.pt: it", path, folder / "x.npy")  # "it calls", "its source"; torch would say "cannot load"
    assert not (tmp_path / "written").exists()


def test_what_saved_source_says_otherwise_is_taken(folder, tmp_path):
    lines = [b'y = torch.add_(x, 0)', b'y = unchecked_cast(Tensor, x)', b'y = annotate(List[Optional[Tensor]], [x])',
             b'if torch.gt(torch.len("a b"), 9):\n      ops.prim.RaiseException("no")\n    else:\n      pass',
             b'y, z = torch.max(x, 0), ops.prim.device(x)']
    for line in lines:
        assert deploy(with_source(folder, tmp_path, line), folder / "x.npy").returncode == 0, line
    save(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.BatchNorm1d(3)).eval(), tmp_path / "sequential.pt")
    result = deploy(tmp_path / "sequential.pt", folder / "x.npy")  # whose parts are getattr(self, "0")
    assert result.returncode == 0, result.stderr


# What is not used is not compiled.
USED = b'\n    if torch.eq(torch.len(annotate(List[Any], [y])), 9):\n      ops.prim.RaiseException("no")\n    else:\n      pass'
CALL = (b"ops.spikeforge.event_csrmv(torch.ones([1]), torch.full([1], NUMBER, dtype=3), torch.tensor([0, 1], dtype=3), "
        b"torch.ones([1]), rows=1, cols=4, transpose=True")
WRONG = CALL.replace(b"NUMBER", b"268435456")


@pytest.mark.parametrize("line, words", [
    (b"y = " + WRONG + b", unchecked=True)", "with unchecked, which a stranger cannot vouch for"),
    (b"y = " + WRONG + b", unchecked=torch.gt(torch.len(x), 0))", "with unchecked"),
    (b"f = ops.spikeforge.event_csrmv\n    y = " + WRONG.replace(b"ops.spikeforge.event_csrmv(", b"f(") + b", unchecked=True)", "with unchecked"),
    (b"ops.spikeforge.stdp_pre_(x, x, x, x, x, rows=1, cols=1, unchecked=True)", "with unchecked"),
    (b"y = " + WRONG + b")", "indices must be from 0 to"), (b"y = " + WRONG + b", unchecked=False)", "indices must be from 0 to"),
    (b"y = torch.unsafe_chunk(x, 1)", "it calls aten::unsafe_chunk"), (b"y = torch.unsafe_split(x, 1)", "it calls aten::unsafe_split"),
    (b"y = torch.unsafe_split_with_sizes(x, [1])", "it calls aten::unsafe_split"), (b"y = x.data", "::data"),
    (b"y = ops.prim.data(x)", "::data"),
])
def test_no_script_vouches_for_a_matrix_nor_hides_its_changes(folder, tmp_path, line, words):
    used = b"\n    x = torch.add(x, torch.sum(y))" if line.startswith((b"y", b"f")) else b""
    refused(words, with_source(folder, tmp_path, line + used), folder / "x.npy")


BIG = b"class Big(Module):\n" + b"".join(b"  s%d : Tensor\n" % i for i in range(400)) + (
    b"  def forward(self: HERE.Big,\n    x: Tensor) -> Tensor:\n    return x\n")


@pytest.mark.parametrize("line, beside", [
    (b"l = annotate(List[HERE.Big], [])\n    t = unchecked_cast(List[Tensor], annotate(Any, l))\n"
     b"    _9 = torch.append(t, unchecked_cast(Tensor, annotate(Any, self)))\n    y = (l[0]).s399", BIG),
    (b'big = unchecked_cast("HERE.Big", annotate(Any, self))\n    y = big.s399', BIG),
    (b'y = unchecked_cast(List["int"], annotate(Any, [1]))', b""), (b'y = annotate("List[int]", [])', b""),
    (b'y : "List[int]" = [1]', b""), (b'if isinstance(x, "Tensor"):\n      pass\n    else:\n      pass', b""),
    (b'y = 1', b'def f(x: "Tensor") -> Tensor:\n  return x\n'), (b'y = 1', b'def f(x: Tensor) -> "Tensor":\n  return x\n'),
    (b"y, b, = unchecked_cast(Tuple[int, int], annotate(Any, (1,)))", b""),
    (b"y, b, = unchecked_cast(Tuple[int, int], (1,))", b""),
    (b"l = annotate(List[Any], [()])\n    y, = unchecked_cast(Tuple[Tensor], l[0])", b""),
    (b"l = annotate(List[Any], [(x,)])\n    y = unchecked_cast(Optional[Tuple[Tensor, Tensor]], l[0])", b""),
    (b'y = unchecked_cast(Dict[str, Tensor], annotate(Any, annotate(Dict[str, List[Tensor]], {})))', b""),
    (b'y = unchecked_cast(List[Tensor], annotate(Optional[List[int]], [1]))', b""),
])
def test_no_value_passes_for_one_of_another_type(folder, tmp_path, line, beside):
    used = USED if b"y" in line.split(b" ")[0] or b"    y" in line else b""
    refused("changed.pt: its source", with_source(folder, tmp_path, line + used, beside=beside), folder / "x.npy")


class Optionals(torch.nn.Module):
    """What torch writes casts for: arguments and attributes that may be None, and what isinstance tells apart."""

    kept: Optional[List[torch.Tensor]]

    def __init__(self):
        super().__init__()
        self.kept = None

    def part(self, x, states: Optional[Tuple[torch.Tensor, torch.Tensor]] = None, sizes: Optional[List[int]] = None,
             named: Optional[Dict[str, torch.Tensor]] = None, factor: Optional[float] = None, text: str = "a",
             largest: float = float("inf"), device: torch.device = torch.device("cpu"), pair: Tuple[int, float] = (1, -2.5)):
        if states is not None:
            x = x + states[0] + states[1]
        if sizes is not None:
            x = x.expand(sizes)
        if named is not None:
            x = x + named["x"]
        if factor is not None:
            x = x * factor
        return x.clamp_max(largest).to(device) * pair[0]

    def forward(self, x):
        kept = self.kept
        if kept is not None:
            x = x + kept[0]
        self.kept = [torch.zeros_like(x)]
        values: List[Union[int, torch.Tensor]] = [2, x]
        last = values[1]
        if isinstance(last, torch.Tensor):
            x = last
        return self.part(self.part(x), (x, x), list(x.shape), {"x": x}, 0.5)

    @torch.jit.export
    def reset(self):
        self.kept = None


def test_casts_that_torch_writes_are_taken(folder, tmp_path):
    save(Optionals(), tmp_path / "net.pt")
    result = deploy(tmp_path / "net.pt", folder / "x.npy")
    assert result.returncode == 0, result.stderr


LIAR = b"""class K:
  v : int
  def __init__(self: HERE.K, v: int) -> NoneType:
    self.v = v
    return None
  def __lt__(self: HERE.K, other: HERE.K) -> bool:
    return True
"""


@pytest.mark.parametrize("line, beside", [
    (b'l = torch.mul([float("nan")], 5000)\n    _9 = torch.sort(l, True)', b""),
    (b"l = annotate(List[HERE.K], [])\n    for i in range(5000):\n      _9 = torch.append(l, HERE.K(i, ))\n    _9 = torch.sort(l)", LIAR),
    (b"l = annotate(List[HERE.K], [])\n    y = torch.sorted(l)", LIAR), (b"y = sorted([2, 1])", b""),
    (b"l = torch.mul([x], 5000)\n    _9 = torch.sort(l, True)", b""), (b"l = annotate(List[float], [])\n    _9 = l.sort()", b""),
    (b"y = torch.repeat_interleave(torch.full([4], 4611686018427387904, dtype=4))", b""),
    (b"y = ops.prim.tolist()", b""), (b"y = ops.prim.tolist(x, 1)", b""),
])
def test_operators_that_trust_what_they_are_given_are_refused(folder, tmp_path, line, beside):
    used = USED if line.startswith(b"y") or b"    y" in line else b"\n    x = torch.add(x, torch.len(l))"
    refused("changed.pt: it", with_source(folder, tmp_path, line + used, beside=beside), folder / "x.npy")


def test_tensors_are_sorted(folder, tmp_path):
    for line in (b"y, z = torch.sort(x)", b"y = torch.msort(x)", b"y = torch.argsort(x)", b"l = [1]\n    _9 = torch._set_item(l, 0, 2)"):
        result = deploy(with_source(folder, tmp_path, line), folder / "x.npy")
        assert result.returncode == 0, (line, result.stderr)


@pytest.mark.parametrize("beside", [
    b"def f(x: int=torch.len(torch.mul([1], 200000000))) -> int:\n  return x\n",
    b"class N(NamedTuple):\n  a : int=torch.len(torch.mul([1], 200000000))\n",
    b"class C(Module):\n  a : Final[int] = torch.len(torch.mul([1], 200000000))\n",
    b"def f(x: Tensor=torch.ones([100000])) -> Tensor:\n  return x\n",
])
def test_default_values_are_not_computed(folder, tmp_path, beside):
    refused("its source computes a default value", with_source(folder, tmp_path, b"y = 1", beside=beside), folder / "x.npy")


def chain(kind, n):
    if kind == "functions":
        return (b"y = HERE.f0(x, )",
                b"".join(b"def f%d(x: Tensor) -> Tensor:\n  return HERE.f%d(x, )\n" % (i, i + 1) for i in range(n))
                + b"def f%d(x: Tensor) -> Tensor:\n  return x\n" % n)
    return (b"l = annotate(List[HERE.A0], [])",
            b"".join(b"class A%d(Module):\n  a : HERE.A%d\n" % (i, i + 1) for i in range(n))
            + b"class A%d(Module):\n  a : Tensor\n" % n)


@pytest.mark.parametrize("kind, words", [("functions", "call each other too deep"), ("classes", "types are nested too deep")])
def test_no_chain_of_definitions_exhausts_the_stack(folder, tmp_path, kind, words):
    line, beside = chain(kind, 100)
    result = deploy(with_source(folder, tmp_path, line, beside=beside), folder / "x.npy")
    assert result.returncode == 0, result.stderr
    line, beside = chain(kind, 10_000)
    refused(words, with_source(folder, tmp_path, line, beside=beside), folder / "x.npy")


def test_a_packed_record_is_source(folder, tmp_path):
    def packed(name, data):
        return zipfile.ZIP_DEFLATED if name.endswith("data.pkl") else zipfile.ZIP_STORED
    with zipfile.ZipFile(folder / "net.pt") as old, zipfile.ZipFile(tmp_path / "net.pt", "w") as new:
        for name in old.namelist():
            data = b"\x80\x02" + b"N" * (16 << 20) + b"." if name.endswith("data.pkl") else old.read(name)
            new.writestr(name, data, compress_type=packed(name, data))
    assert (tmp_path / "net.pt").stat().st_size < 100_000
    refused("data.pkl is packed", tmp_path / "net.pt", folder / "x.npy")


def test_large_data_is_looked_through_in_one_pass(folder, tmp_path):
    many = 200_000
    data = b"\x80\x02" + b"".join(b"Nr" + struct.pack("<I", i) for i in range(many)) + b"]" + b"K\x01a" * many + b"."
    path = with_entries(folder / "net.pt", tmp_path / "net.pt", lambda name, old: data if name.endswith("data.pkl") else old)
    started = time.monotonic()
    refused("something is left over", path, folder / "x.npy")
    assert time.monotonic() - started < 30
    # and takes no more memory than a few of torch's values for each of its bytes
    data = b"\x80\x02" + b"N" * (8 << 20) + b"."
    path = with_entries(folder / "net.pt", tmp_path / "net.pt", lambda name, old: data if name.endswith("data.pkl") else old)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    refused("something is left over", path, folder / "x.npy")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < before + (700 << 10)


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTMCell(4, 3)

    def forward(self, x):
        return self.cell(x)[0]


def test_operators_beyond_the_list_are_allowed_by_name(folder, tmp_path):
    save(Cell(), tmp_path / "cell.pt")
    refused("it calls aten::lstm_cell, which is not among the operators", tmp_path / "cell.pt", folder / "x.npy")
    result = deploy(tmp_path / "cell.pt", folder / "x.npy", "--allow", "aten::lstm_cell")
    assert result.returncode == 0, result.stderr


# --- archives that two readers read differently ------------------------------------------------------------------------


def end_records(data):
    """Where the directory, the zip64 record, its locator and the end record of a file of torch begin."""
    end = data.rfind(b"PK\5\6")
    assert data[end - 20:end - 16] == b"PK\6\7" and data[end - 76:end - 72] == b"PK\6\6"
    directory, = struct.unpack("<Q", data[end - 76 + 48:end - 76 + 56])
    return directory, end - 76, end - 20, end


def zip64(count, size, offset, at):
    return (b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 30, 45, 0, 0, count, count, size, offset)
            + b"PK\6\7" + struct.pack("<IQI", 0, at, 1))


def plain_end(count, size, offset, comment=b""):
    return b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, count, count, size, offset, len(comment)) + comment


def two_directories(harmless, harmful):
    """A file of which the end record shows one archive, and the zip64 record another, with the directory of the first last."""
    directory, _, _, end = end_records(harmful)
    front = harmful[:end - 76]
    with_directory = bytearray(harmless[end_records(harmless)[0]:end_records(harmless)[1]])
    at = 0
    while at < len(with_directory):  # its records are further behind now
        name, extra, comment = struct.unpack("<HHH", with_directory[at + 28:at + 34])
        offset, = struct.unpack("<I", with_directory[at + 42:at + 46])
        with_directory[at + 42:at + 46] = struct.pack("<I", offset + len(front))
        at += 46 + name + extra + comment
    count = struct.unpack("<H", harmful[end + 10:end + 12])[0]
    own = struct.unpack("<H", harmless[end_records(harmless)[3] + 10:end_records(harmless)[3] + 12])[0]
    body = front + harmless[:end_records(harmless)[0]] + bytes(with_directory)
    return (body + zip64(count, end - 76 - directory, directory, len(body))
            + plain_end(own, len(with_directory), len(body) - len(with_directory)))


def test_archives_that_two_readers_read_differently(folder, tmp_path):
    harmless = (folder / "net.pt").read_bytes()
    written = tmp_path / "written"
    save(Writes(str(written)), tmp_path / "harmful.pt")
    harmful = (tmp_path / "harmful.pt").read_bytes()
    directory, large, locator, end = end_records(harmful)
    size, = struct.unpack("<I", harmful[end + 12:end + 16])
    no_entries = harmful[:end + 8] + b"\0\0\0\0" + harmful[end + 12:]
    files = {
        "no entries in the end record": no_entries,
        "nor in its size": no_entries[:end + 12] + b"\0\0\0\0" + no_entries[end + 16:],
        "zip64 beside plain": two_directories(harmless, harmful),
        "an end record in a comment": harmful[:end] + plain_end(0, 0, 0, b"..." + plain_end(0, 0, 0)),
        "an archive in a comment": harmful[:end + 20] + struct.pack("<H", min(len(harmless), 65535)) + harmless,
        "bytes behind the end": harmful + b"\0",
        "bytes before it": b"\0" * 64 + harmful,
        "a flatbuffer before it": b"\x18\0\0\0PTMF" + b"\0" * 56 + harmful,
        "a flatbuffer that begins as a zip": b"PK\3\4PTMF" + harmful,
        "the mark of a flatbuffer in the first header": b"PK\3\4PTMF" + harmful[8:],
        "another end record before the end": harmful[:end] + plain_end(0, 0, directory) + harmful[end:],
        "a locator that leads elsewhere": harmful[:locator + 8] + struct.pack("<Q", 0) + harmful[locator + 16:],
        "a directory with more than it says": harmful[:large + 24] + struct.pack("<QQ", 1, 1) + harmful[large + 40:],
        "a directory elsewhere": harmful[:large + 48] + struct.pack("<Q", directory + 46) + harmful[large + 56:],
    }
    assert size == large - directory
    for name, data in files.items():
        (tmp_path / "net.pt").write_bytes(data)
        result = deploy(tmp_path / "net.pt", folder / "x.npy")
        assert result.returncode == 1 and result.stderr.count("\n") == 1, (name, result.stdout, result.stderr)
        assert not written.exists(), name


@pytest.mark.parametrize("change, words", [
    (lambda all: all | {"code/__torch__.PY": b"def f() -> int:\n  return 1\n"}, "a record that TorchScript has not"),
    (lambda all: all | {"DATA.PKL": all["data.pkl"]}, "is in it twice"),
    (lambda all: all | {next(n for n in all if n.endswith(".py")).upper(): b"def f() -> int:\n  return 1\n"}, "is in it twice"),
    (lambda all: all | {"model.json": b"{}"}, "a record that TorchScript has not: model.json"),
    (lambda all: all | {"attributes.pkl": b"{}"}, "a record that TorchScript has not"),
    (lambda all: all | {"bytecode.pkl": b"{}"}, "a record that TorchScript has not"),
    (lambda all: all | {"data/../x": b"{}"}, "a record that TorchScript has not"),
    (lambda all: all | {"../x": b"{}"}, "a record that TorchScript has not"),
    (lambda all: all | {"\x1b[2J": b"{}"}, "a record that TorchScript has not: \\x1b[2J"),
    (lambda all: all | {"n" * 500: b"{}"}, "a name of 5"),
    (lambda all: all | {"byteorder": b"big"}, "another byte order"),
    (lambda all: all | {"code/deep.py": b"def f() -> int:\n  return " + b"(" * 100_000 + b"1" + b")" * 100_000 + b"\n"}, "nested too deep"),
    (lambda all: all | {"code/deep.py": b"def f() -> int:\n  return " + b"-" * 100_000 + b"1\n"}, "nested too deep"),
    (lambda all: all | {"code/deep.py": b"def f() -> int:\n  return " + b"not " * 100_000 + b"1\n"}, "nested too deep"),
    (lambda all: all | {"code/x.py": b"x = torch.save\n"}, "something else than classes and functions"),
    (lambda all: all | {"code/x.py": b"def f() -> int:\n  return 1"}, "does not end with a line"),
    (lambda all: {name: data for name, data in all.items() if name != "constants.pkl"}, "it has no constants.pkl"),
])
def test_records_that_torch_would_read_by_other_ways(folder, tmp_path, change, words):
    with zipfile.ZipFile(folder / "net.pt") as old:
        records = {name.split("/", 1)[1]: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as new:
        for name, data in change(records).items():
            new.writestr("net/" + name, data)
    refused(words, tmp_path / "net.pt", folder / "x.npy")


# --- data that lies ----------------------------------------------------------------------------------------------------


def pickled(value):
    """data.pkl with this instead of the weight that `Plain` has."""
    def change(name, data):
        if not name.endswith("data.pkl"):
            return data
        start = data.index(b"ctorch._utils\n_rebuild_tensor_v2")
        return data[:start] + value + data[end_of_tensor(data, start):]
    return change


def end_of_tensor(data, start):
    first = data.index(b"R", data.index(b"OrderedDict\n", start))  # of OrderedDict()
    return data.index(b"R", first + 1) + 1


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x[:, :3] * self.w


def number(value):
    return b"\x8a\x08" + struct.pack("<q", value)


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


def tensor(sizes=(3,), strides=(1,), offset=0, stored=3, kind=b"FloatStorage", key=b"0"):
    def numbers(all):
        return b"(" + b"".join(map(number, all)) + b"t"
    return (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text(b"storage") + b"ctorch\n" + kind + b"\n" + text(key) + text(b"cpu")
            + number(stored) + b"tQ" + number(offset) + numbers(sizes) + numbers(strides) + b"\x88ccollections\nOrderedDict\n)RtR")


@pytest.mark.parametrize("value, words", [
    (tensor(), None), (tensor((0, 7), (1, 1)), ""), (tensor((2,), (2,)), ""),
    (tensor((4,)), "a tensor is larger than what is stored of it"),
    (tensor((3,), (2,)), "a tensor is larger"), (tensor((3,), (1,), 1), "a tensor is larger"),
    (tensor((3,), (-1,), 2), "a tensor is larger"), (tensor((-3,), (1,)), "a tensor is larger"),
    (tensor((3,), (1,), -1), "a tensor is larger"), (tensor((2**40, 3), (0, 1)), "memory"),
    (tensor((2**40, 2**40), (0, 0)), "a tensor is larger"), (tensor((2,), (2**62,)), "a tensor is larger"),
    (tensor((2**31,), (1,), 0, 2**31), "a tensor is larger"), (tensor((1,), (1,), 0, 2**62), "a tensor is larger"),
    (tensor((3,), (1,), 0, 3, b"DoubleStorage"), "a tensor is larger"), (tensor((3,), (1,), 0, -1), "a tensor is larger"),
    (tensor(key=b"../data/0"), "are not there"), (tensor(key=b"1"), "are not there"), (tensor((3, 1)), "a tensor has no shape"),
    (tensor(kind=b"QInt8Storage"), "data is not what torch writes"), (tensor().replace(b"v2", b"v3"), "it calls torch._utils._rebuild_tensor_v3"),
    (b"cos\nsystem\n" + text(b"true") + b"\x85R", "it calls os.system"),
    (b"c__torch__.torch.classes.c10d\nFileStore\n)\x81Nb", "a class that is written in C++"),
    (b"K\x00N\x85R", "it calls what is no function"), (b"K\x00)\x81}b", "an object of no class"),
    (b"N", "an attribute w is not what its class says"), (b"K\x03", "an attribute w is not"), (b"]", "an attribute w is not"),
    (b"(" * 300 + b"t" * 300, "nested too deep"), (b"]q\x63h\x63a", "it remembers what it cannot"), (b"0", "an instruction that it does not have"),
    (b"\x8a\x01\x05", "longer than 8 bytes"), (b"X\xff\xff\xff\xff", "cut short"), (b"b", ""), (b"h\xff", "recalls"), (b"t", ""),
], ids=lambda value: repr(value[:40]) + str(len(value)) if isinstance(value, bytes) else "")
def test_data_that_is_not_what_torch_writes(folder, tmp_path, value, words):
    save(Plain(), tmp_path / "plain.pt")
    renumber = pickled(value)

    def change(name, data):  # what comes later is remembered at the places that are left
        if not name.endswith("data.pkl"):
            return data
        return renumber(name, without_memo(data))
    path = with_entries(tmp_path / "plain.pt", tmp_path / "net.pt", change)
    if words is None:
        result = deploy(path, folder / "x.npy")
        assert result.returncode == 0, result.stderr
    else:
        refused(words, path, folder / "x.npy")


def without_memo(data):
    """The same pickle, which remembers and recalls nothing."""
    import pickletools
    operations = [(code.name, argument, place) for code, argument, place in pickletools.genops(data)]
    assert not any(name in ("BINGET", "LONG_BINGET") for name, _, _ in operations)
    places = [place for _, _, place in operations] + [len(data)]
    return b"".join(data[place:after] for (name, _, place), after in zip(operations, places[1:]) if "BINPUT" not in name)


class Large(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(12):
            setattr(self, f"number{i}", float(i))

    def forward(self, x):
        return x[:, :3] * self.number11


class Small(torch.nn.Module):
    def forward(self, x):
        return x


class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.large, self.small = Large(), Small()

    def forward(self, x):
        return self.large(self.small(x))


def test_no_object_passes_for_one_of_another_class(folder, tmp_path):
    save(Both(), tmp_path / "both.pt")
    assert deploy(tmp_path / "both.pt", folder / "x.npy").returncode == 0

    def change(name, data):
        if not name.endswith("data.pkl"):
            return data
        assert data.count(b"Large\n") == 1
        return data.replace(b"Large\n", b"Small\n")
    refused("an attribute large is not what its class says", with_entries(tmp_path / "both.pt", tmp_path / "net.pt", change), folder / "x.npy")


class Setting(torch.nn.Module):
    def __init__(self, more: bool):
        super().__init__()
        self.more = more
        self.w = torch.ones(3)

    def forward(self, x):
        return x[:, :3] * self.w

    @torch.jit.export
    def __getstate__(self):
        return self.w, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        self.more = False
        self.training = state[1]
        self.w = state[0] + 1


def test_what_runs_while_a_file_is_loaded_only_sets_attributes(folder, tmp_path):
    save(Setting(True), tmp_path / "net.pt")
    refused("a __setstate__ that does more than set attributes", tmp_path / "net.pt", folder / "x.npy")


# --- what the process may do -------------------------------------------------------------------------------------------


@pytest.fixture()
def running(folder):
    """deploy in the midst of its work, and the process that runs the network."""
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


def test_the_file_is_opened_once(folder, tmp_path):
    shutil.copy(folder / "net.pt", tmp_path / "net.pt")
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert watch >= 0 and libc.inotify_add_watch(watch, str(tmp_path / "net.pt").encode(), 0x20) >= 0  # IN_OPEN
    assert deploy(tmp_path / "net.pt", folder / "x.npy").returncode == 0
    events = os.read(watch, 1 << 16)
    os.close(watch)
    opened = sum(1 for at in range(0, len(events), 16))
    assert opened == 1


def test_files_that_are_no_plain_files_do_not_hang(folder, tmp_path):
    os.mkfifo(tmp_path / "net.pt")
    os.mkfifo(tmp_path / "x.npy")
    refused("it is no plain file", tmp_path / "net.pt", folder / "x.npy", timeout=30)
    refused("it is no plain file", folder / "net.pt", tmp_path / "x.npy", timeout=30)


def test_an_array_of_nothing_takes_no_memory(folder, tmp_path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 0), }"
    (tmp_path / "x.npy").write_bytes(npy(header, b""))
    started = time.monotonic()
    refused("it holds no numbers", folder / "net.pt", tmp_path / "x.npy", timeout=30)
    assert time.monotonic() - started < 20
    numpy.save(tmp_path / "x.npy", numpy.ones((9, 0), dtype=numpy.float32))
    refused("there is no sample in [9, 0]", folder / "net.pt", tmp_path / "x.npy")


def test_a_table_that_cannot_be_read_to_its_end_is_no_table(folder):
    # A terminal gives an error, and no end, once its other side has gone.
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


def test_a_package_refuses_what_it_was_not_compiled_for(folder, package, tmp_path):
    for shape in ((10, 5), (10,), (10, 4, 1), (100, 4)):
        numpy.save(tmp_path / "x.npy", numpy.ones(shape, dtype=numpy.float32))
        refused("", package, tmp_path / "x.npy", "--batch", 100)
    refused("", package, folder / "x.npy", "--batch", 10, "--dtype", "float64")


def test_a_package_that_is_damaged(package, folder, tmp_path):
    whole = pathlib.Path(package).read_bytes()
    for at in (len(whole) // 3, len(whole) // 2, 2 * len(whole) // 3):
        (tmp_path / "net.pt2").write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1:])
        refused("net.pt2: it is damaged: the checksum of", tmp_path / "net.pt2", folder / "x.npy")
    (tmp_path / "net.pt2").write_bytes(whole[:-1000])
    refused("net.pt2: ", tmp_path / "net.pt2", folder / "x.npy")
    with_entries(package, tmp_path / "net.pt2", lambda name, data: b"\x7fELF" + b"\0" * 100 if name.endswith(".so") else data)
    refused("", tmp_path / "net.pt2", folder / "x.npy")
