#!/usr/bin/env python3
"""Measures the speed of neurons and of each installed peer, as a ratio to the time of the bytes that must move.

    python benchmarks/neurons.py --device cuda --json benchmarks/results/h200.json
    python benchmarks/neurons.py --device cpu --json benchmarks/results/cpu.json

The unit is the time of a copy of the same number of bytes, measured in the same run, alternating with everything else:
5 elements per step to train, 2 to infer, and the final states once. 1.00 can hardly be beaten. On a GPU the time is
that of the kernels (--timer selects the method); on a CPU it is that of the clock. Small calls are in units of
torch.nn.functional.silu on the same tensor, by the clock. All figures are medians; the spread is from the least to the
largest of all rounds. On a CPU half of the time of a large result can go to fresh pages: for the kernels alone, set
MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=68719476736.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

import contestants
import torch
from cases import cases
from measure import (TIMERS, Clock, Copy, Data, firing_rate, in_one_line, measure_inference, measure_training, peak_memory,
                     run_once, small_call, summary)

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = os.environ.get("SPIKEFORGE_LIBRARY", REPOSITORY / "build" / "release" / "lib" / "libspikeforge.so")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures there")
    parser.add_argument("--cases", default="", metavar="REGEX", help="only cases whose name matches, e.g. 'train T=32'")
    parser.add_argument("--quick", action="store_true", help="2 rounds")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all contestants (default: 5)")
    parser.add_argument("--lengths", action="store_true", help="each case at T + 1 and at T = 100 too")
    parser.add_argument("--no-peers", action="store_true", help="only this library")
    parser.add_argument("--plain", action="store_true", help="also the plain loop over time (T <= 256)")
    parser.add_argument("--compile", action="store_true", help="also torch.compile of the plain loop (T <= 32): takes minutes")
    parser.add_argument("--jelly", choices=["auto", "cuda", "triton"], default="auto",
                        help="SpikingJelly's kernels (default: its own choice, native CUDA where it was built with it)")
    parser.add_argument("--timer", choices=list(TIMERS), default="profiler", help="for kernels on a GPU (default: profiler)")
    parser.add_argument("--library", default=LIBRARY, help="libspikeforge.so")
    return parser.parse_args()


def chosen_contestants(options):
    names = ["spikeforge"] + ["spikingjelly", "snntorch"] * (not options.no_peers)
    names += ["plain_loop"] * options.plain + ["compiled_loop"] * options.compile
    return {name: getattr(contestants, name) for name in names}


def cache_bytes(device):
    if device == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    return 2**28  # larger than most caches


# --- One case ----------------------------------------------------------------------------------------------------------


def ready_neurons(case, device, data, factories, errors):
    """Returns the contestants that support the case, after one run of each."""
    neurons = {}
    for name, factory in factories.items():
        try:
            neuron = factory(case, device)
            if neuron is not None:
                run_once(neuron, case, data)
                neurons[name] = neuron
        except Exception as error:  # a contestant that fails is missing in the row
            errors[name] = in_one_line(error)
    return neurons


def relative_to_floor(case, samples, rates):
    """Computes ratios of each round to that round's copy, then their medians."""
    floor = case.floor_bytes()
    floor["total"] = sum(floor.values())
    result = {}
    for part in ("forward", "backward", "total", "wall"):
        bytes_moved = floor["total"] if part == "wall" else floor[part]
        seconds = [sample.get(part, sample["forward"] + sample.get("backward", 0)) for sample in samples]
        if bytes_moved and (part != "backward" or case.training):
            result[part] = summary([s * rate / bytes_moved for s, rate in zip(seconds, rates)])
            result[part]["milliseconds"] = 1e3 * summary(seconds)["median"]
    return result


def measure_large(case, neurons, data, copy, timer, clock, rounds):
    measure = measure_training if case.training else measure_inference
    samples, rates = {name: [] for name in neurons}, []
    for _ in range(rounds):
        rates.append(copy.bytes_per_second(timer))
        for name, neuron in neurons.items():
            samples[name].append(measure(neuron, data, timer, clock))
    results = {name: relative_to_floor(case, samples[name], rates) for name in neurons}
    if copy.source.is_cuda:
        for name, neuron in neurons.items():
            results[name]["memory"] = peak_memory(neuron, case, data)
    return results, {"copy_gb_per_second": summary([rate / 1e9 for rate in rates])}


def measure_small(case, neurons, data, clock, rounds):
    silu_neuron = contestants.Neuron(lambda x: (torch.nn.functional.silu(x),))
    inputs, gradients = data.inputs[0], data.upstream(0) if case.training else []
    seconds, silu = {name: [] for name in neurons}, []
    for _ in range(4 * rounds):
        silu.append(small_call(silu_neuron, inputs[:1], gradients[:1], clock))
        for name, neuron in neurons.items():
            seconds[name].append(small_call(neuron, inputs, gradients, clock))
    results = {}
    for name in neurons:
        results[name] = {"total": summary([s / unit for s, unit in zip(seconds[name], silu)])}
        results[name]["total"]["microseconds"] = 1e6 * summary(seconds[name])["median"]
    return results, {"silu_microseconds": 1e6 * summary(silu)["median"]}


def measure_case(case, options, factories, copy):
    torch.manual_seed(0)
    if case.threads:
        torch.set_num_threads(case.threads)
    clock = Clock(options.device)
    timer = TIMERS[options.timer] if options.device == "cuda" else clock
    row = {"case": case.name, "unit": "silu" if case.small else "floor", "goal": case.goal, "errors": {}}
    data = Data(case, options.device, cache_bytes(options.device))
    neurons = ready_neurons(case, options.device, data, factories, row["errors"])
    rounds = 2 if options.quick else options.rounds
    if case.small:
        row["results"], unit = measure_small(case, neurons, data, clock, rounds)
    else:
        row["results"], unit = measure_large(case, neurons, data, copy, timer, clock, rounds)
    row.update(unit)
    if "spikeforge" in neurons:
        row["firing_rate"] = firing_rate(neurons["spikeforge"], data)
    return row


# --- The table ---------------------------------------------------------------------------------------------------------

COLUMNS = [("case", -40), ("goal", 6), ("spikeforge", 20), ("forward", 8), ("backward", 9), ("wall", 7), ("memory", 7)]


def number(value):
    return "-" if value is None else f"{value:.2f}"


def with_spread(result):
    if not result:
        return "-"
    total = result["total"]
    return f"{total['median']:.2f} ({total['least']:.2f}-{total['most']:.2f})"


def median(result, part):
    return number(result[part]["median"] if part in result else None)


def aligned(cells, widths):
    return "  ".join(f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}" for cell, width in zip(cells, widths))


def print_header(peers):
    print(aligned([name for name, _ in COLUMNS] + peers, [width for _, width in COLUMNS] + [20] * len(peers)))


def print_row(row, peers):
    ours = row["results"].get("spikeforge", {})
    cells = [row["case"], number(row["goal"]), with_spread(ours), median(ours, "forward"), median(ours, "backward"),
             median(ours, "wall"), number(ours.get("memory"))]
    cells += [with_spread(row["results"].get(peer)) for peer in peers]
    note = f"  x silu ({row['silu_microseconds']:.1f} us)" if "silu_microseconds" in row else ""
    print(aligned(cells, [width for _, width in COLUMNS] + [20] * len(peers)) + note, flush=True)
    for name, error in row["errors"].items():
        print(f"    {name} failed: {error}", flush=True)


# --- All of it ---------------------------------------------------------------------------------------------------------


def output_of(*command):
    try:
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def processor():
    try:
        return re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        return platform.processor()


def machine(device):
    kept_pages = os.environ.get("MALLOC_MMAP_MAX_") == "0"
    facts = {"device": torch.cuda.get_device_name() if device == "cuda" else processor(), "torch": torch.__version__,
             "python": platform.python_version(), "commit": output_of("git", "rev-parse", "--short", "HEAD")}
    if device == "cuda":
        facts["cuda"] = torch.version.cuda
        facts["driver"] = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0")
    else:
        facts["cores"], facts["pages"] = os.cpu_count(), "kept" if kept_pages else "fresh"
    return facts


def choose_jelly_kernels(choice):
    for neuron in ("LIF", "PLIF", "QIF", "EIF", "IZHIKEVICH"):
        os.environ.setdefault(f"SJ_{neuron}_CUDA_IMPLEMENTATION", choice)  # read when it is imported


def failed_row(case, error):
    return {"case": case.name, "goal": case.goal, "results": {}, "errors": {"the case": in_one_line(error)}}


def run(options):
    torch.ops.load_library(str(options.library))
    choose_jelly_kernels(options.jelly)
    factories = chosen_contestants(options)
    peers = [name for name in factories if name != "spikeforge"]
    copy = Copy(options.device)
    if options.device == "cuda":
        copy.bytes_per_second(TIMERS[options.timer])  # the first use of the profiler is slow

    facts = machine(options.device)
    print(", ".join(f"{key}: {value}" for key, value in facts.items()))
    print_header(peers)
    rows = []
    for case in cases(options.device, options.lengths):
        if not re.search(options.cases, case.name):
            continue
        try:
            row = measure_case(case, options, factories, copy)
        except Exception as error:  # a case that fails is one row; the others continue
            row = failed_row(case, error)
        if options.device == "cuda":
            torch.cuda.empty_cache()
        print_row(row, peers)
        rows.append(row)

    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        command = ["python", "benchmarks/neurons.py", *sys.argv[1:]]
        options.json.write_text(json.dumps({"machine": facts, "command": " ".join(command), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    run(parse_options())
