"""Neurons made from text in bounded memory: thousands of them in a program, and one that is dropped between the forward and the
backward pass."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import library_path

ops = torch.ops.spikeforge

BEGIN = """
import sys, torch
torch.ops.load_library(sys.argv[1])
run = torch.ops.spikeforge.run
def text(i):
    return f"neuron n(x; v) {{ h = {i + 2} * v / {i + 3} + x; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }}"
"""

MANY = """
for i in range(6000):
    (spikes,), _ = run(text(i), [torch.ones(2, 3)], [], [])
    assert spikes.sum() == 6, i
"""

DROPPED = """
torch.manual_seed(2)
x = torch.randn(7, 5, requires_grad=True)
weight = torch.arange(35.).view(7, 5)
def loss():
    return (run(text(0), [x], [], [])[0][0] * weight).sum()
(at_once,) = torch.autograd.grad(loss(), x)
later = loss()
for i in range(1, 400):  # more than have room
    run(text(i), [x.detach()], [], [])
(afterwards,) = torch.autograd.grad(later, x)
assert at_once.equal(afterwards) and at_once.abs().sum() > 1
"""


def python(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", BEGIN + program, str(library_path())],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("program", [MANY, DROPPED], ids=["many", "dropped"])
def test_neurons_that_nobody_holds_give_way(program):
    done = python(program, SPIKEFORGE_NEURONS_LIMIT_MB="1")
    assert done.returncode == 0, done.stderr


def test_no_room_is_said_in_words():
    done = python("run(text(0), [torch.ones(2, 3)], [], [])", SPIKEFORGE_NEURONS_LIMIT_MB="0")
    assert done.returncode != 0
    assert "run: there is no room for one neuron more" in done.stderr
    assert "SPIKEFORGE_NEURONS_LIMIT_MB" in done.stderr
    assert "not legal" not in done.stderr


def test_a_host_compiled_neuron_keeps_no_descriptor():
    program = """
import os
count = lambda: len(os.listdir("/proc/self/fd"))
x = torch.ones(2, 3, requires_grad=True)
run(text(0), [x], [], [])[0][0].sum().backward()
before = count()
for i in (1, 2):
    run(text(i), [x], [], [])[0][0].sum().backward()
assert count() <= before, (before, count())
"""
    done = python(program, SPIKEFORGE_HOST_COMPILER="1")
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_a_neuron_too_long_for_a_gpu_runs_on_the_cpu():
    divisions = " ".join(f"a{i} = a{i - 1} / (1.5 + a{i - 1});" for i in range(1, 1001))
    text = f"neuron long(x; v) {{ a0 = x + v; {divisions} s = spike(a1000 - 1, atan(2)); return s; v' = select(s, 0, a1000) }}"
    (spikes,), _ = ops.run(text, [torch.ones(2, 3)], [], [])
    assert spikes.shape == (2, 3)
    with pytest.raises(ValueError, match="print_cuda.*long.*need about .* instructions, but at most 8000"):
        ops.print_cuda(text, torch.float32)
