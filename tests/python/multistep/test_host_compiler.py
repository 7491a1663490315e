"""Traced neurons compiled by the machine's C++ compiler: when it is called, and its failures."""

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import library_path

PROGRAM = """
import sys, torch
torch.ops.load_library(sys.argv[1])
text = '''neuron adapting(x; v, a; tau) { h = v + (x - v) / tau; s = spike(h - 1 - a, atan(2)); return s
          v' = select(s, 0, h); a' = 0.9 * a + 0.1 * s + 0 * exp(-h * h) }'''
torch.manual_seed(1)
result = []
for dtype in (torch.float32, torch.bfloat16):
    x = (2 * torch.randn(19, 301)).to(dtype).requires_grad_()
    tau = torch.rand(301).add_(1.5).requires_grad_()
    (spikes,), states = torch.ops.spikeforge.run(text, [x], [], [tau])
    loss = (spikes.float() * torch.arange(19)[:, None]).sum() + states[0].sum()
    result += [spikes, *states, *torch.autograd.grad(loss, [x, tau])]
torch.save([r.detach() for r in result], sys.argv[2])
"""


@pytest.fixture
def compiler(tmp_path):
    """A C++ compiler that records each call."""
    path = tmp_path / "compiler"
    path.write_text(f'#!/bin/sh\necho called >> "{tmp_path}/calls"\nexec "${{CXX:-c++}}" "$@"\n')
    path.chmod(0o755)
    return path


def run(tmp_path, compiler):
    """Returns (results, number of compiler calls, standard error)."""
    import torch

    env = {**os.environ, "SPIKEFORGE_CACHE_DIR": str(tmp_path / "cache")}
    env.pop("SPIKEFORGE_HOST_COMPILER", None)
    if compiler is not None:
        env["SPIKEFORGE_HOST_COMPILER"] = str(compiler)
    out, calls = tmp_path / "out.pt", tmp_path / "calls"
    calls.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library_path()), str(out)], env=env, capture_output=True, text=True, check=True
    )
    return torch.load(out), len(calls.read_text().splitlines()) if calls.exists() else 0, done.stderr


def same(a, b):
    return len(a) == len(b) and all(x.equal(y) for x, y in zip(a, b, strict=True))


def test_compiled_once_found_on_disk_afterwards_and_the_same_bits(tmp_path, compiler):
    interpreted, calls, _ = run(tmp_path, None)
    assert calls == 0
    assert interpreted[0].sum() > 100
    compiled, calls, stderr = run(tmp_path, compiler)
    assert calls == 2  # forward and backward; bfloat16 uses the code of float32
    assert stderr == ""
    assert same(compiled, interpreted)
    again, calls, _ = run(tmp_path, compiler)
    assert calls == 0
    assert same(again, interpreted)
    off, calls, _ = run(tmp_path, "0")
    assert calls == 0
    assert same(off, interpreted)


@pytest.mark.long
def test_a_damaged_entry_of_the_cache_is_compiled_again(tmp_path, compiler):
    before, _, _ = run(tmp_path, compiler)
    entries = list((tmp_path / "cache").rglob("*_cxx.so"))
    assert len(entries) == 2
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-100] + bytes(100))
    after, calls, _ = run(tmp_path, compiler)
    assert calls == 2
    assert same(before, after)


@pytest.mark.long(but=r"^/bin/false")
@pytest.mark.parametrize("name, words", [("no-such-compiler", "there is no compiler"), ("/bin/false", "failed")])
def test_without_a_compiler_the_interpreter_runs_and_warns_once(tmp_path, name, words):
    interpreted, _, _ = run(tmp_path, None)
    result, _, stderr = run(tmp_path, name)
    assert same(result, interpreted)
    assert stderr.count("spikeforge: warning: neuron adapting is interpreted, not compiled") == 1
    assert name in stderr
    assert words in stderr


CALL = """
import os, sys, threading, time, torch
torch.ops.load_library(sys.argv[1])
torch.set_num_threads(1)
text = "neuron decay(x; v) { h = 0.5 * v + x; return h; v' = h }"
result = lambda: torch.ops.spikeforge.run(text, [torch.ones(2, 2)], [], [])[0][0].tolist()
"""
CALL_IN_A_CHILD = """
thread = threading.Thread(target=result)
thread.start()
while not os.path.exists(sys.argv[2] + "/calls"): time.sleep(0.01)
child = os.fork()
if child == 0:
    os._exit(0 if result() == [[1, 1], [1.5, 1.5]] else 1)
print(os.waitpid(child, 0)[1], flush=True)
open(sys.argv[2] + "/answered", "w").close()
thread.join()
"""


def start(program, tmp_path, script):
    """Starts a process with this shell script as its compiler, and returns its folder for temporary files too."""
    path, folder = tmp_path / "compiler", tmp_path / "tmp"
    path.write_text(f'#!/bin/sh\ncd "{tmp_path}"\n{script}\n')
    path.chmod(0o755)
    folder.mkdir()
    env = {**os.environ, "SPIKEFORGE_CACHE_DIR": "off", "SPIKEFORGE_HOST_COMPILER": str(path), "TMPDIR": str(folder)}
    command = [sys.executable, "-c", program, str(library_path()), str(tmp_path)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), folder


def test_a_child_that_is_forked_while_a_thread_compiles_runs_the_same_neuron(tmp_path):
    # The first call of the compiler ends after the child has its result, the second fails immediately: the child interprets.
    script = "[ -e calls ] && exit 1; touch calls; while [ ! -e answered ]; do sleep 0.02; done; exit 1"
    program, folder = start(CALL + CALL_IN_A_CHILD, tmp_path, script)
    try:
        assert program.communicate(timeout=60)[0] == "0\n"
    finally:
        program.kill()
    assert list(folder.iterdir()) == []


FORK_AND_STAY = """
thread = threading.Thread(target=result)
thread.start()
while not os.path.exists(sys.argv[2] + "/calls"): time.sleep(0.01)
child = os.fork()
if child == 0:
    for stream in 1, 2: os.close(stream)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
thread.join()
"""


def test_a_child_that_outlives_a_killed_process_keeps_no_compiler_or_files(tmp_path):
    program, folder = start(CALL + FORK_AND_STAY, tmp_path, "echo $$ > pid; mv pid calls; sleep 60 & wait")
    child = int(program.stdout.readline())
    try:
        program.kill()
        compiler = (tmp_path / "calls").read_text().strip()
        until(lambda: list(folder.iterdir()) == [] and not os.path.exists(f"/proc/{compiler}"))
        os.kill(child, 0)  # the child is still running
    finally:
        os.kill(child, signal.SIGKILL)


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
