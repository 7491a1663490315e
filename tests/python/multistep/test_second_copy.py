"""A process that loads the library from two files."""

import shutil
import subprocess
import sys

from conftest import library_path

PROGRAM = """
import sys, torch
torch.ops.load_library(sys.argv[1])
torch.ops.load_library(sys.argv[2])
x = torch.ones(4, 3, requires_grad=True)
spikes, v = torch.ops.spikeforge.lif(x, tau=2.0)
spikes.sum().backward()
print("spikes", spikes.sum().item(), x.grad.abs().sum().item() > 0)
"""


def test_a_second_copy_uses_the_first_and_warns(tmp_path):
    copy = tmp_path / "libspikeforge.so.copy"
    shutil.copyfile(library_path(), copy)
    # The copy needs another SONAME, because the loader would otherwise return the library that is already loaded.
    content = copy.read_bytes()
    name = b"libspikeforge.so.0."
    assert content.count(name) >= 1
    copy.write_bytes(content.replace(name, b"libspikeforgx.so.0."))
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library_path()), str(copy)], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "spikes 0.0 True"
    assert f"{copy} is a second copy of the library in this process; the operators are those of the first" in run.stderr
