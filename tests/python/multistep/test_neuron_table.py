"""Neurons from text use bounded memory: hundreds in a program, one of them between its forward and backward pass."""

import os
import subprocess
import sys

from conftest import library_path

BEGIN = """
import sys, torch
torch.ops.load_library(sys.argv[1])
run = torch.ops.spikeforge.run
def text(i):
    return f"neuron n(x; v) {{ h = {i + 2} * v / {i + 3} + x; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }}"
"""


def python(program, **environment):
    command = [sys.executable, "-c", BEGIN + program, str(library_path())]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def test_a_neuron_between_its_passes_stays_and_others_give_way():
    done = python("""
torch.manual_seed(2)
x = torch.randn(7, 5, requires_grad=True)
weight = torch.arange(35.).view(7, 5)
def loss():
    return (run(text(0), [x], [], [])[0][0] * weight).sum()
(at_once,) = torch.autograd.grad(loss(), x)
later = loss()
for i in range(1, 400):  # more than have room
    (spikes,), _ = run(text(i), [torch.ones(2, 3)], [], [])
    assert spikes.sum() == 6, i
(afterwards,) = torch.autograd.grad(later, x)
assert at_once.equal(afterwards) and at_once.abs().sum() > 1
""", SPIKEFORGE_NEURONS_LIMIT_MB="1")
    assert done.returncode == 0, done.stderr


def test_lack_of_memory_raises_a_clear_error():
    done = python("run(text(0), [torch.ones(2, 3)], [], [])", SPIKEFORGE_NEURONS_LIMIT_MB="0")
    assert done.returncode != 0
    assert "run: the memory limit of neurons is exceeded" in done.stderr
    assert "SPIKEFORGE_NEURONS_LIMIT_MB" in done.stderr
    assert "not legal" not in done.stderr
