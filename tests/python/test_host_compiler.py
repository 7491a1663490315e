"""Traced neurons compiled by the machine's C++ compiler: when it is asked, and what happens when it fails."""

import os
import subprocess
import sys

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
    """A C++ compiler that leaves a mark each time it is called."""
    path = tmp_path / "compiler"
    path.write_text(f'#!/bin/sh\necho called >> "{tmp_path}/calls"\nexec "${{CXX:-c++}}" "$@"\n')
    path.chmod(0o755)
    return path


def run(tmp_path, compiler):
    """(results, calls of the compiler, what stood on standard error)"""
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
    assert calls == 2  # forward and backward; bfloat16 runs what float32 does
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
def test_without_a_compiler_the_interpreter_runs_and_says_so_once(tmp_path, name, words):
    interpreted, _, _ = run(tmp_path, None)
    result, _, stderr = run(tmp_path, name)
    assert same(result, interpreted)
    assert stderr.count("spikeforge: warning: neuron adapting is interpreted, not compiled") == 1
    assert name in stderr
    assert words in stderr
