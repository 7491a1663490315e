#!/usr/bin/env python3
"""Measures the kernels for csrc/kernels/multistep/schedule.cpp with every choice of width, rows in flight, parallel
segments and checkpoint length, relative to the time of the bytes that must move.

    python benchmarks/schedule.py                        # everything: two minutes on one GPU
    python benchmarks/schedule.py --cases 'backward.*float16'

A process reads its schedule from the environment once, so each setting runs in its own process. The row "chosen" is
the library's default.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
from functools import partial

import contestants
import torch
from cases import DOUBLE, HALF, SINGLE, train
from measure import Copy, Data, backward, profiled, run_once

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = os.environ.get("SPIKEFORGE_LIBRARY", REPOSITORY / "build" / "release" / "lib" / "libspikeforge.so")

WIDTH, ROWS, SEGMENTS, CHECKPOINT = (f"SPIKEFORGE_{name}" for name in ("VECTOR_WIDTH", "PREFETCH", "SEGMENTS", "CHECKPOINT"))

CASES = [train("lif", steps, neurons, dtype)
         for dtype in (SINGLE, HALF)
         for steps, neurons in ((4, 2**22), (32, 2**22), (33, 2**22), (128, 2**18), (256, 2**17), (512, 2**16), (1024, 2**15),
                                (1024, 2**14), (1024, 2**12), (100, 2**15))]
CASES += [train("lif", 32, 2**22, DOUBLE), train("lif", 1024, 2**15, DOUBLE)]
CASES += [train(neuron, 16, 2**22, SINGLE) for neuron in ("qif", "eif", "izhikevich")]

SETTINGS = [{}]
SETTINGS += [{WIDTH: width} for width in (1, 2, 4)]
SETTINGS += [{ROWS: rows} for rows in (8, 16, 32, 64)]
SETTINGS += [{SEGMENTS: segments} for segments in (1, 4, 8, 16)]
SETTINGS += [{CHECKPOINT: length} for length in (8, 16)]


def is_about(setting, direction):
    return {ROWS: "forward", SEGMENTS: "backward"}.get(next(iter(setting), None), direction) == direction


def name_of(setting):
    return " ".join(f"{key.removeprefix('SPIKEFORGE_').lower()}={value}" for key, value in setting.items()) or "chosen"


def least_ratio(measure, bytes_moved, copy):
    """Returns the least of three ratios, which excludes disturbances by other programs."""
    return min(measure() * copy.bytes_per_second(profiled) / bytes_moved for _ in range(3))


def measure_case(case, wanted, copy):
    torch.manual_seed(0)
    data = Data(case, "cuda", torch.cuda.get_device_properties(0).L2_cache_size)
    neuron = contestants.spikeforge(case, "cuda")
    run_once(neuron, case, data)
    floor, count = case.floor_bytes(), 5

    def forward_seconds():
        return profiled([partial(neuron.outputs, *x) for x in data.next_inputs(count)])

    def backward_seconds():
        inputs = data.next_inputs(count)
        outputs = [neuron.outputs(*x) for x in inputs]
        return profiled([partial(backward, neuron, y, x, data.upstream(i)) for i, (y, x) in enumerate(zip(outputs, inputs))])

    measures = {"forward": forward_seconds, "backward": backward_seconds}
    return {direction: least_ratio(measures[direction], floor[direction], copy) for direction in wanted}


def worker(pattern, setting):
    """Prints one line of JSON per case."""
    torch.ops.load_library(str(LIBRARY))
    copy = Copy("cuda")
    copy.bytes_per_second(profiled)
    for case in CASES:
        wanted = [d for d in ("forward", "backward") if is_about(setting, d) and re.search(pattern, f"{d} {case.name}")]
        if not wanted:
            continue
        try:
            print(json.dumps({"case": case.name, **measure_case(case, wanted, copy)}), flush=True)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            print(f"{case.name}, {name_of(setting)}: {error}", file=sys.stderr)


def in_a_process(pattern, setting):
    environment = dict(os.environ, **{key: str(value) for key, value in setting.items()})
    command = [sys.executable, __file__, "--cases", pattern, "--worker", json.dumps(setting)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True)
    if output.returncode != 0:
        sys.exit(output.stderr)
    return [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{")]


def main(pattern):
    table = {}
    for setting in SETTINGS:
        for row in in_a_process(pattern, setting):
            for direction in ("forward", "backward"):
                if direction in row:
                    table.setdefault(f"{direction} {row['case']}", {})[name_of(setting)] = row[direction]
    columns = [name_of(setting) for setting in SETTINGS]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n\n| kernel | " + " | ".join(columns) + " |")
    print("|---|" + "---|" * len(columns))
    for kernel, ratios in sorted(table.items()):
        cells = [f"{ratios[column]:.2f}" if column in ratios else "" for column in columns]
        print(f"| {kernel.replace(' train', '')} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="a regular expression on names such as 'backward lif train T=32 N=2^22 float16'")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    main(options.cases) if options.worker is None else worker(options.cases, options.worker)
