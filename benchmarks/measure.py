"""Measures the time and the memory of calls."""

import gc
import statistics
import time
from functools import partial

import torch

REPEATS = 5  # calls in one measurement


class Clock:
    """Returns seconds per call by the clock, with the device idle before and after. `of_own_time`: with one thread on a
    CPU, the process's CPU time, which other programs of the machine disturb less."""

    def __init__(self, device, of_own_time=False):
        self.synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
        is_alone = device == "cpu" and torch.get_num_threads() == 1
        self.now = time.process_time if of_own_time and is_alone else time.perf_counter

    def __call__(self, calls):
        self.synchronize()
        gc.disable()
        try:
            start = self.now()
            for call in calls:
                call()
            self.synchronize()
            return (self.now() - start) / len(calls)
        finally:
            gc.enable()


def least(calls, rounds, clock, warm_up=1):
    """Returns the least seconds of each of the named calls, which alternate, after warm-up rounds."""
    best = dict.fromkeys(calls, float("inf"))
    for number in range(-warm_up, rounds):
        for name, call in calls.items():
            took = clock([call])
            if number >= 0:
                best[name] = min(best[name], took)
    return best


def profiled(calls, of=""):
    """Returns seconds per call of its kernels, copies and fills on the GPU, by CUPTI, without launches and gaps. `of`:
    only of kernels whose names begin with this."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        for call in calls:
            call()
        torch.cuda.synchronize()
    on_gpu = [event.time_range.elapsed_us() for event in profile.events()
              if event.device_type == torch.autograd.DeviceType.CUDA and event.name != "Context Sync" and event.name.startswith(of)]
    if not on_gpu:
        raise RuntimeError("the profiler recorded no kernel (--timer events measures without it)")
    return sum(on_gpu) * 1e-6 / len(calls)


def by_events(calls):
    """Returns seconds per call between two CUDA events. The GPU sleeps until all calls are queued, so the time excludes
    launches, but includes the gaps of about a microsecond between kernels."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)
    start.record()
    for call in calls:
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3 / len(calls)


TIMERS = {"profiler": profiled, "events": by_events}


class Copy:
    """The unit of time: a copy of 1 GiB (256 MiB on a CPU), far larger than any cache."""

    def __init__(self, device):
        self.source = torch.randn(2**28 if device == "cuda" else 2**26, device=device)
        self.target = torch.randn_like(self.source)

    def bytes_per_second(self, timer):
        calls = [partial(self.target.copy_, self.source)] * 3
        return 2 * self.source.nbytes / timer(calls)


class Data:
    """Inputs and upstream gradients, in enough copies that none is still in a cache when it is used again (unless the
    case is a small one). They are random, because a GPU computes zeros faster, and about a fifth of all steps fires."""

    def __init__(self, case, device, cache_bytes):
        shape = (case.steps, case.neurons)
        bytes_each = case.inputs * case.steps * case.neurons * case.dtype.itemsize
        count = 2 if case.small else min(max(2, -(-3 * cache_bytes // bytes_each)), 256)
        draw = partial(torch.randn, shape, device=device, dtype=case.dtype)
        self.inputs = [[(1.2 * draw() + 0.6).requires_grad_(case.training) for _ in range(case.inputs)]
                       for _ in range(count)]
        self.gradients = [[draw() for _ in range(case.outputs)] for _ in range(count if case.training else 0)]
        self.turn = 0

    def next_inputs(self, count):
        self.turn += count
        return [self.inputs[i % len(self.inputs)] for i in range(self.turn - count, self.turn)]

    def upstream(self, i):
        return self.gradients[i % len(self.gradients)]


def backward(neuron, outputs, inputs, gradients):
    return torch.autograd.grad(outputs, (*inputs, *neuron.parameters), gradients)


def train_step(neuron, inputs, gradients):
    return backward(neuron, neuron.outputs(*inputs), inputs, gradients)


def run_once(neuron, case, data):
    """Runs a neuron once, to compile its kernels and to raise its errors."""
    inputs = data.inputs[0]
    if case.training:
        train_step(neuron, inputs, data.upstream(0))
        return
    with torch.no_grad():
        neuron.outputs(*inputs)


def measure_inference(neuron, data, timer, clock):
    with torch.no_grad():
        return {"forward": timer([partial(neuron.outputs, *inputs) for inputs in data.next_inputs(REPEATS)]),
                "wall": clock([partial(neuron.outputs, *inputs) for inputs in data.next_inputs(REPEATS)])}


def measure_training(neuron, data, timer, clock):
    """Measures forward and backward pass separately, then both together by the clock."""
    forward = timer([partial(neuron.outputs, *inputs) for inputs in data.next_inputs(REPEATS)])
    passes = [partial(backward, neuron, neuron.outputs(*inputs), inputs, data.upstream(i))
              for i, inputs in enumerate(data.next_inputs(REPEATS))]
    seconds = {"forward": forward, "backward": timer(passes)}
    del passes  # and the graphs in them
    steps = [partial(train_step, neuron, inputs, data.upstream(i)) for i, inputs in enumerate(data.next_inputs(REPEATS))]
    return {**seconds, "wall": clock(steps)}


def peak_memory(neuron, case, data):
    """Returns the peak of the memory allocated during a call, beyond inputs and upstream gradients, in elements for
    each element of an input. The outputs are kept to the end, as by a next layer."""
    inputs = data.inputs[0]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.set_grad_enabled(case.training):
        outputs = neuron.outputs(*inputs)
        if case.training:
            backward(neuron, outputs, inputs, data.upstream(0))
    return (torch.cuda.max_memory_allocated() - before) / inputs[0].nbytes


def small_call(neuron, inputs, gradients, clock, calls=200):
    """Returns seconds per call by the clock, over many calls with the same tensors; with its backward pass if there are
    gradients."""
    if gradients:
        return clock([partial(train_step, neuron, inputs, gradients)] * calls)
    with torch.no_grad():
        return clock([partial(neuron.outputs, *inputs)] * calls)


def summary(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def firing_rate(neuron, data):
    with torch.no_grad():
        return neuron.outputs(*data.inputs[0])[0].float().mean().item()


def in_one_line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]
