"""Kernel packs: recorded on the CPU, compiled without a GPU, loaded without NVRTC."""

import os
import subprocess
import sys
from typing import Tuple

import pytest
import torch
from conftest import REPOSITORY, library_path
from loops import refused

ops = torch.ops.spikeforge
TOOL = REPOSITORY / "build" / "release" / "bin" / "spikeforge-pack"
TEXT = "neuron leaky(x; v; k) { h = 0.5 * v + x * k; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"

# Records the given calls and writes a pack, or loads a pack and makes the calls on a GPU.
PROGRAM = f"""
import sys, torch
torch.ops.load_library(sys.argv[1])
ops = torch.ops.spikeforge
device = sys.argv[3]
if device == "cpu":
    ops.record_kernels(["sm_90", "sm_80"] if len(sys.argv) < 5 else [sys.argv[4]])
torch.manual_seed(0)
x = (2 * torch.rand(9, 4, 33)).to(device).requires_grad_()
k = torch.rand(33).to(device).requires_grad_()
weight = torch.rand(9, 4, 33).to(device)
(spikes,), _ = ops.run({TEXT!r}, [ops.lif(x, None, tau=2.0, v_reset=0.0)[0] + x], [], [k])
grads = torch.autograd.grad((spikes * weight).sum(), [x, k])
with torch.no_grad():
    ops.lif(x.half(), None, tau=2.0, v_reset=None)
    ops.loihi_lif(torch.ones(3, 8, dtype=torch.int32, device=device), du=100, dv=100, vth=3)
indices, indptr = (torch.tensor(t, dtype=torch.int32, device=device) for t in ([0, 2, 1, 1, 0], [0, 2, 2, 5]))
synapses = torch.rand(5).to(device).requires_grad_()
events = torch.tensor([1.0, 0.0, 1.0], device=device, requires_grad=True)
arrived = ops.event_csrmv(synapses, indices, indptr, events, rows=3, cols=3)
of_events = torch.autograd.grad(arrived.sum(), [synapses, events])
with torch.no_grad():
    of_events += (arrived, ops.event_csrmm(synapses[:1], indices, indptr, events[:, None], rows=3, cols=3, transpose=True))
    of_events += (ops.csrmv(synapses, indices, indptr, events, rows=3, cols=3, transpose=True, deterministic=True),)
    of_events += (ops.event_linear(events, torch.ones(3, 40, device=device)),)
    of_events += tuple(ops.jit_csrmv(synapses[:1], events, rows=3, cols=50, prob=0.5, seed=1, transpose=t) for t in (True,))
    step = torch.tensor(5, device=device)
    of_events += ops.take_arrivals(ops.event_csrmv_delayed(synapses, indices, indptr, events, indices.byte() % 2, torch.zeros(2, 3, device=device), step, rows=3, cols=3, transpose=True), step)
    places = torch.arange(5, device=device)
    of_events += (ops.event_frames(places, places, None, None, torch.tensor([0, 5], device=device), size=[1, 1, 5], steps=2, values="voxel"),)
    of_events += (ops.stdp_pre(synapses, indices, indptr, events, arrived, rows=3, cols=3),)
synapses, delays = torch.rand(5, 33).to(device).requires_grad_(), (3 * torch.rand(5, 33)).to(device).requires_grad_()
delayed = ops.delayed_linear(x, synapses, delays, max_delay=3)
of_delays = (delayed, *torch.autograd.grad(delayed.square().sum(), [x, synapses, delays]))
if device == "cpu":
    print(ops.write_kernel_pack(sys.argv[2]))
else:
    torch.save([r.detach().cpu() for r in (spikes, *grads, *of_events, *of_delays)], sys.argv[2])
"""


def run(arguments, **environment):
    env = {**os.environ, "SPIKEFORGE_CACHE_DIR": "off", **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(library_path()), *map(str, arguments)], env=env, capture_output=True, text=True)
    return done


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "kernels.pack"
    done = run([path, "cpu"])
    assert done.returncode == 0, done.stderr
    # For two architectures: lif forward and backward, the neuron forward and backward, lif in half, loihi_lif; for events 2 by
    # rows, 3 for their gradients and by columns, 2 deterministic ones, linear, 2 for a drawn matrix, plasticity, the check of
    # a matrix; with delays the product, its check and the arrivals; learned delays forward and backward.
    assert int(done.stdout) == 52
    return path


def test_packed_kernels_are_found_without_nvrtc_and_without_a_cache(pack, tmp_path):
    without = {"SPIKEFORGE_NVRTC": str(tmp_path / "none")}
    again = run([tmp_path / "again.pack", "cpu"], SPIKEFORGE_KERNEL_PACK=f"{tmp_path / 'missing'}:{pack}", **without)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.pack").read_bytes() == pack.read_bytes()
    assert f"kernel pack {tmp_path / 'missing'}: it cannot be opened" in again.stderr
    # The calls above used the pack, because other kernels, or calls without a pack, need NVRTC.
    for arguments, environment in [([tmp_path / "x.pack", "cpu"], {}), ([tmp_path / "x.pack", "cpu", "sm_86"], {"SPIKEFORGE_KERNEL_PACK": str(pack)})]:
        failed = run(arguments, **environment, **without)
        assert failed.returncode != 0
        assert "NVRTC" in failed.stderr
        assert not (tmp_path / "x.pack").exists()


def test_a_damaged_kernel_is_not_used(pack, tmp_path):
    damaged = tmp_path / "damaged.pack"
    content = bytearray(pack.read_bytes())
    content[-100] ^= 1
    damaged.write_bytes(content)
    assert ops.load_kernel_pack(str(pack)) == 52
    done = run([tmp_path / "again.pack", "cpu"], SPIKEFORGE_KERNEL_PACK=str(damaged))
    assert done.returncode == 0
    assert "a kernel in it is damaged" in done.stderr
    assert (tmp_path / "again.pack").read_bytes() == pack.read_bytes()  # the damaged kernel was compiled again


def change(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "content, words",
    [
        (lambda c: b"", "it is not a kernel pack"),
        (lambda c: b"PK" + c[2:], "it is not a kernel pack"),
        (lambda c: change(c, 9), "another build of spikeforge wrote it"),
        (lambda c: change(c, 20), "another build of spikeforge wrote it"),
        (lambda c: change(c, 38), "it is damaged"),
        (lambda c: change(c, 100), "it is damaged"),
        (lambda c: c[:100], "it is damaged"),
        (lambda c: c[:-1], "it is damaged: its end is missing"),
    ],
    ids=["empty", "magic", "version", "library", "index length", "index", "cut index", "cut images"],
)
def test_a_file_that_is_no_good_pack_is_refused(pack, tmp_path, content, words):
    path = tmp_path / "bad.pack"
    path.write_bytes(content(pack.read_bytes()))
    refused(ValueError, f"load_kernel_pack: kernel pack .*bad.pack: {words}", lambda: ops.load_kernel_pack(str(path)))


def test_errors(tmp_path):
    os.mkfifo(tmp_path / "pipe.pack")  # opening a pipe must not block
    for error, words, op, argument in [
        (RuntimeError, "write_kernel_pack: call record_kernels first", ops.write_kernel_pack, "unused.pack"),
        (ValueError, 'record_kernels: an architecture is sm_ and a number, such as sm_90, not "sm90"', ops.record_kernels,
         ["sm90"]),
        (ValueError, "record_kernels: at least one architecture", ops.record_kernels, []),
        (ValueError, "it cannot be opened", ops.load_kernel_pack, "/no/such/file"),
        (ValueError, "it cannot be opened: it is not a regular file", ops.load_kernel_pack, str(tmp_path / "pipe.pack")),
    ]:
        refused(error, words, lambda: op(argument))
    ops.record_kernels(["sm_90"])
    with pytest.raises(ValueError, match="write_kernel_pack: kernel pack /no/such/folder/x: it cannot be written"):
        ops.write_kernel_pack("/no/such/folder/x")


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(20, 10)

    def forward(self, x):
        return torch.ops.spikeforge.lif(self.layer(x), None, tau=2.0, v_reset=0.0)


@pytest.fixture
def tool(tmp_path):
    """Runs spikeforge-pack for sm_90 in the test's folder."""
    if not TOOL.exists():
        pytest.skip("spikeforge-pack is not built")

    def run(*arguments):
        command = [str(TOOL), "--arch", "sm_90", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    return run


@pytest.mark.long
def test_the_tool_packs_the_kernels_of_a_torchscript_model(tool, tmp_path):
    torch.jit.script(Network()).save(tmp_path / "network.pt")
    done = tool(tmp_path / "network.pt", "--input", "16,3,20", "--input", "16,500,20", "--train")
    assert done.returncode == 0, done.stderr
    assert ops.load_kernel_pack(str(tmp_path / "kernels.pack")) >= 2
    for arguments, words in [
        ((tmp_path / "network.pt", "--input", "16,3,21"), "network.pt: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ((tmp_path / "none.pt", "--input", "16,3,21"), "none.pt: open file failed"),
        ((tmp_path / "kernels.pack", "--input", "16,3,21"), "kernels.pack: PytorchStreamReader failed reading zip archive"),
        ((tmp_path / "network.pt", "--input", "16,3,x"), "16,3,x is not a shape"),
        ((tmp_path / "network.pt", "--input", "16,3,20:int8"), "the type in 16,3,20:int8 is not float16"),
        ((tmp_path / "network.pt",), "a model needs the shapes of its inputs"),
        (("--neuron", "lip"), 'there is no predefined neuron "lip"'),
        ((), "pass models, or --predefined"),
    ]:
        failed = tool(*arguments, "-o", "other.pack")
        assert failed.returncode != 0 and words in failed.stderr
        assert not (tmp_path / "other.pack").exists()


class Writes(torch.nn.Module):
    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def forward(self, x):
        return torch.from_file(self.path, True, 4) + torch.ops.spikeforge.lif(x, None, tau=2.0, v_reset=0.0)[0]


@pytest.mark.long
def test_a_model_writes_no_files(tool, tmp_path):
    torch.jit.script(Writes(str(tmp_path / "written"))).save(tmp_path / "network.pt")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = tool(tmp_path / "network.pt", "--input", "16,3,4", "-o", elsewhere / "p.pack")
    if "has no Landlock" not in done.stderr:
        assert done.returncode == 1 and "written" in done.stderr and not (tmp_path / "written").exists()


class Nothing(torch.nn.Module):
    def forward(self, x) -> Tuple[()]:
        return ()


class Crashes(torch.nn.Module):
    def forward(self, x):
        least = torch.full([9], -9223372036854775807, dtype=torch.int64) - 1
        return torch.div(least, torch.full([9], -1, dtype=torch.int64), rounding_mode="trunc")


@pytest.mark.long
def test_models_that_give_nothing_or_crash_are_one_line(tool, tmp_path):
    for model, more, words in [(Nothing(), ["--train"], "the model returns no tensor"),
                               (Crashes(), [], "a model crashed (signal 8)")]:
        torch.jit.script(model).save(tmp_path / "network.pt")
        failed = tool(tmp_path / "network.pt", "--input", "16,3,4", *more)
        assert failed.returncode == 1 and failed.stderr.startswith("spikeforge-pack: "), failed.stderr
        assert words in failed.stderr and failed.stderr.count("\n") == 1, failed.stderr


@pytest.mark.gpu
def test_a_gpu_runs_from_the_pack_alone(cuda, tmp_path):
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    assert run([tmp_path / "kernels.pack", "cpu", arch]).returncode == 0
    without = {"SPIKEFORGE_NVRTC": str(tmp_path / "none")}
    done = run([tmp_path / "packed.pt", "cuda"], SPIKEFORGE_KERNEL_PACK=str(tmp_path / "kernels.pack"), **without)
    assert done.returncode == 0, done.stderr
    assert "NVRTC" in run([tmp_path / "x.pt", "cuda"], **without).stderr
    assert run([tmp_path / "compiled.pt", "cuda"]).returncode == 0
    for packed, compiled in zip(torch.load(tmp_path / "packed.pt"), torch.load(tmp_path / "compiled.pt"), strict=True):
        assert packed.equal(compiled)
