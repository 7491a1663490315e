"""Training in two processes (examples/python/digits_ddp.py) has the gradients of one process for the joined batch."""

import os
import re
import subprocess
import sys

import pytest
import torch

from conftest import REPOSITORY, library_path
from loops import printed_by

EXAMPLES = REPOSITORY / "examples" / "python"


def torchrun(*command, gpus=False):
    """Runs two processes, on two GPUs with NCCL or on the CPU with gloo."""
    environment = dict(os.environ, SPIKEFORGE_LIBRARY=str(library_path()), OMP_NUM_THREADS="1")
    if not gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return printed_by(*start, *command, env=environment, timeout=300)


@pytest.fixture(params=["gloo", "nccl"])
def gpus(request):
    if request.param == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL between two processes needs two GPUs")
    return request.param == "nccl"


def test_gradients_are_those_of_the_joined_batch_and_states_belong_to_each_process(gpus, tmp_path):
    torchrun(REPOSITORY / "tests" / "python" / "ddp_worker.py", tmp_path, gpus=gpus)
    for call in range(2):  # the second call starts from the states after the first
        first, second = (torch.load(tmp_path / f"{rank}_{call}.pt") for rank in range(2))
        assert first["samples"].tolist() == [0, 2, 4, 6, 8] and second["samples"].tolist() == [1, 3, 5, 7, 9]
        for name in ("tau", "leak", "w", "first.weight", "second.bias", "third.weight"):
            joined = first["joined"][name]
            assert joined.abs().max() > 0, name
            bound = 1e-5 * joined.abs().max().item()
            for seen in (first, second):
                torch.testing.assert_close(seen["together"][name], joined, rtol=1e-5, atol=bound)
                assert (seen["alone"][name] - joined).abs().max() > 10 * bound, f"{name}: a share would have done"
            assert torch.equal(first["together"][name], second["together"][name]), name
        assert not torch.equal(first["states"], second["states"])
        for seen in (first, second):
            torch.testing.assert_close(seen["states"], seen["all_states"][seen["samples"]], rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_the_example_trains_in_two_processes_and_its_checkpoint_is_that_of_one(tmp_path):
    data = tmp_path / "digits.csv"
    printed_by(sys.executable, REPOSITORY / "scripts" / "prepare_digits.py", "--output", data)
    output = torchrun(EXAMPLES / "digits_ddp.py", "--data", data, "--output", tmp_path, "--epochs", 2, "--steps", 4)
    reached = re.search(r"^accuracy on the held-out digits: ([\d.]+)%", output, re.MULTILINE)[1]
    assert float(reached) > 70 and len(re.findall(r"^epoch", output, re.MULTILINE)) == 2, output
    environment = dict(os.environ, SPIKEFORGE_LIBRARY=str(library_path()))
    command = [sys.executable, EXAMPLES / "digits.py", "--load", tmp_path / "network_python.pt", "--data", data, "--device", "cpu"]
    assert f"accuracy on the held-out digits: {reached}%" in printed_by(*command, env=environment)


def test_without_torchrun_it_prints_how_to_start_it():
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    done = subprocess.run([sys.executable, EXAMPLES / "digits_ddp.py"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "torchrun --standalone" in done.stderr
