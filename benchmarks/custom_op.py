#!/usr/bin/env python3
"""Measures a call of a custom operator: registered in C++, and in Python with a CPU function in C or in Python.

    cmake --build --preset release --target spikeforge_example_operators
    python benchmarks/custom_op.py

All three are mine::synaptic_trace of examples/custom_op, on 12 elements: nearly all of a call is the overhead around
its function. torch.library.custom_op is measured as well. Calls alternate, and each figure is the least of many means.
"""

import argparse
import ctypes
import math
import subprocess
import tempfile
import time
from pathlib import Path

import torch

import spikeforge
from spikeforge import _library

SCHEMA = "(Tensor trace, Tensor spikes, float tau, float dt=1.0) -> (Tensor next, Tensor change)"
FUNCTION = r"""
#include <math.h>
#include <stdint.h>
void step(void** data, int64_t* dims, int64_t** sizes, int64_t* integers, double* numbers) {
  int64_t count = 1;
  for (int64_t d = 0; d < dims[0]; ++d) count *= sizes[0][d];
  const float decay = (float)exp(-numbers[1] / numbers[0]);
  const float *trace = data[0], *spikes = data[1];
  float *next = data[2], *change = data[3];
  for (int64_t i = 0; i < count; ++i) {
    next[i] = decay * trace[i] + spikes[i];
    change[i] = next[i] - trace[i];
  }
}
"""


def step(trace, spikes, tau, dt=1.0):
    next = math.exp(-dt / tau) * trace + spikes
    return next, next - trace


def compiled_function():
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "step.so"
        command = ["cc", "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", library, "-lm"]
        subprocess.run(command, input=FUNCTION, text=True, check=True)
        return ctypes.CDLL(str(library)).step


def operators():
    """Returns the operators by name, the first one in C++."""
    torch.ops.load_library(str((_library.load() or _library.path()).parent / "libspikeforge_example_operators.so"))
    torch_way = torch.library.custom_op("measured::torch_way", step, mutates_args=(), schema=SCHEMA)
    address = spikeforge.custom_op("measured::address" + SCHEMA, shapes=["trace", "trace"], cpu=compiled_function(),
                                   dtypes={"trace": torch.float32})
    function = spikeforge.custom_op("measured::function" + SCHEMA, shapes=["trace", "trace"], cpu=step)
    return {
        "C++": torch.ops.mine.synaptic_trace.default,
        "Python, function of C": address.overload,
        "Python, function of Python": function.overload,
        "torch.library.custom_op": torch_way,
    }


def least_means(functions, rounds, calls=50):
    """Returns seconds per call."""
    arguments = torch.rand(3, 4), torch.rand(3, 4), 20.0, 1.0
    expected = step(*arguments)
    for function in functions.values():
        torch.testing.assert_close(tuple(function(*arguments)), expected)
    least = dict.fromkeys(functions, float("inf"))
    with torch.inference_mode():
        for _ in range(rounds):
            for name, function in functions.items():
                start = time.perf_counter()
                for _ in range(calls):
                    function(*arguments)
                least[name] = min(least[name], (time.perf_counter() - start) / calls)
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    torch.set_num_threads(1)
    least = least_means(operators(), parser.parse_args().rounds)
    for name, seconds in least.items():
        print(f"{name:<28} {seconds * 1e6:6.2f} us  {seconds / least['C++']:5.2f}")


if __name__ == "__main__":
    main()
