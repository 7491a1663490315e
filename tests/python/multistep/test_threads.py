"""Large calls on the CPU use torch's threads."""

import os
import threading
import time

import pytest
import torch

ops = torch.ops.spikeforge
SIZE = 4096

if not os.path.exists("/proc/self/schedstat"):
    pytest.skip("the kernel does not tell what its threads did", allow_module_level=True)
if (os.cpu_count() or 1) < 2:
    pytest.skip("there is one processor", allow_module_level=True)


def ran_elsewhere(call):
    """Returns the CPU time of other threads during a call, in nanoseconds, until all of them sleep."""
    me = threading.get_native_id()

    def others():
        times = 0
        for thread in os.listdir("/proc/self/task"):
            if int(thread) != me:
                with open(f"/proc/self/task/{thread}/schedstat") as stat:
                    times += int(stat.read().split()[0])
        return times

    def call_and_settle():
        call()
        time.sleep(0.1)  # threads spin for a while, and their time is updated when they sleep

    call_and_settle()
    before = others()
    call_and_settle()
    return others() - before


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


INDICES = torch.randint(SIZE, (SIZE, 64), dtype=torch.int32).sort(1).values.flatten()
CSR = torch.ones(1), INDICES, torch.arange(SIZE + 1, dtype=torch.int32) * 64, torch.ones(SIZE, dtype=torch.bool)
SQUARE = dict(rows=SIZE, cols=SIZE)
X, STATE = torch.randn(16, SIZE * 32), torch.zeros(SIZE * 32)
SPIKES, WEIGHT = torch.ones(64, SIZE), torch.randn(SIZE, 256)
CALLS = {
    "lif": lambda: ops.lif(X),
    "run": lambda: ops.run("neuron decay(x; v) { next = 0.9 * v + x; v' = next; return next }", [X], [STATE], []),
    "event_csrmv": lambda: ops.event_csrmv(*CSR, **SQUARE),
    "event_csrmv, transposed": lambda: ops.event_csrmv(*CSR, **SQUARE, transpose=True),
    "jit_csrmv": lambda: ops.jit_csrmv(torch.ones(1), SPIKES[0], **SQUARE, prob=0.05, seed=1),
    "event_linear": lambda: ops.event_linear(SPIKES, WEIGHT),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_large_call_runs_on_more_than_one_thread(two_threads, name):
    with torch.no_grad():
        assert ran_elsewhere(CALLS[name]) > 50_000
