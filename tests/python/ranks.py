"""Runs a function in several processes that form one torch.distributed group, and returns the result of each.

    def work(rank, factor):                 # at the top of a test's module
        ...
        return {"sum": tensor}

    first, second = on_ranks(2, work, 3.0)

Processes are forked from a server that has imported torch, so that a group starts in a fraction of a second."""

import contextlib
import ctypes
import datetime
import io
import multiprocessing
import resource
import tempfile
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch
from torch import distributed


def on_ranks(world_size, function, *args, backend="gloo", timeout=120):
    """Returns the results of `function(rank, *args)` on each rank, serialized by torch.save, in the order of ranks.

    Fails with the traceback of the first rank that raised an error, or, after `timeout` seconds, with the ranks that
    returned nothing, which are ended. Skips the test if torch lacks the backend, or NCCL a GPU for each rank."""
    _require(backend, world_size)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.tensor", "spikeforge"])
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            call = rank, world_size, backend, timeout, Path(folder) / "store", function, args, theirs
            processes.append(context.Process(target=_rank, args=call, daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        patience = 0
        try:
            answers = _answers(pipes, time.monotonic() + timeout)
            patience = 5  # seconds
        finally:
            for process in processes:
                process.join(patience)
                if process.is_alive():
                    process.kill()
                    process.join()
        return answers


@contextlib.contextmanager
def limited_memory(more):
    """Limits this process to the address space in use and `more` bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    old = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


def _require(backend, world_size):
    if not distributed.is_available() or not distributed.is_backend_available(backend):
        pytest.skip(f"this torch has no torch.distributed with {backend}")
    if backend == "nccl" and torch.cuda.device_count() < world_size:
        pytest.skip(f"NCCL between {world_size} processes needs as many GPUs")


def _answers(pipes, deadline):
    waiting, answers, broken = dict(enumerate(pipes)), {}, {}
    while waiting:
        wait(waiting.values(), max(0.0, deadline - time.monotonic()))
        ready = [rank for rank, pipe in waiting.items() if pipe.poll()]
        if not ready and broken:
            break
        if not ready:
            pytest.fail(f"rank {', '.join(map(str, waiting))} did not answer in time", pytrace=False)
        for rank in ready:
            try:
                trace, answer = waiting.pop(rank).recv()
            except EOFError:
                trace = "the process ended without a word"
            if trace is None:
                answers[rank] = torch.load(io.BytesIO(answer), weights_only=False)
            else:
                broken[rank] = trace
                deadline = min(deadline, time.monotonic() + 6)  # other ranks may report the cause
    if broken:
        pytest.fail("\n".join(f"rank {rank}: {trace}" for rank, trace in broken.items()), pytrace=False)
    return [answers[rank] for rank in range(len(pipes))]


def _rank(rank, world_size, backend, timeout, store, function, args, pipe):
    torch.set_num_threads(1)
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        distributed.init_process_group(
            backend,
            init_method=store.as_uri(),
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout),
        )
        answer = io.BytesIO()
        torch.save(function(rank, *args), answer)
        pipe.send((None, answer.getvalue()))
        distributed.barrier()  # all ranks stay until communication ends
        distributed.destroy_process_group()
    except BaseException:
        pipe.send((traceback.format_exc(), None))
