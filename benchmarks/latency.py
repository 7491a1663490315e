#!/usr/bin/env python3
"""Measures a call of the exported digits network: in the C++ program of examples/deploy, as TorchScript and as a
package of AOTInductor, and in Python, eager and compiled.

Figures are milliseconds per call, from samples in host memory to scores in host memory; the median of all calls, and
the 99th percentile. The network is that of examples/python/digits.py with its initial weights: speed does not depend
on them."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import numpy
import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = pathlib.Path(os.environ.get("SPIKEFORGE_LIBRARY", ROOT / "build/release/lib/libspikeforge.so"))
PROGRAM = LIBRARY.resolve().parents[1] / "bin" / "deploy"
sys.path.insert(0, str(ROOT / "examples" / "python"))
import digits  # noqa: E402


def percentiles(times):
    times = sorted(times)
    return {"p50_ms": statistics.median(times), "p99_ms": times[-(-99 * len(times) // 100) - 1]}


@torch.no_grad()
def in_python(network, images, batch, device, calls):
    batches = images.split(batch)
    times = []
    for number in range(-10, calls):  # the first ones compile, and are not counted
        start = time.perf_counter()
        network(batches[number % len(batches)].to(device)).cpu()
        if number >= 0:
            times.append((time.perf_counter() - start) * 1e3)
    return percentiles(times)


def in_cpp(path, samples, batch, device, calls, threads):
    rounds = max(1, round(calls * batch / len(numpy.load(samples, mmap_mode="r"))))
    command = [PROGRAM, path, samples, "--batch", batch, "--device", device, "--rounds", rounds, "--threads", threads, "--json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    measured = json.loads(done.stdout)
    return {name: measured[name] for name in ("p50_ms", "p99_ms")}


def export(network, folder, batch, device):
    """Exports the network as TorchScript, and as machine code for this batch size."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = torch.rand(batch, 1, 8, 8, device=device)
        torch.jit.script(network).save(str(folder / "network.pt"))
        program = torch.export.export(network, (example,))
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "network.pt2"))
    return folder / "network.pt", folder / "network.pt2"


def measure(device, options):
    torch.manual_seed(0)
    network = digits.Network("plif", options.steps).to(device).eval().requires_grad_(False)
    rows = []
    for batch in (1, 256):
        calls = options.calls if batch == 1 else max(20, options.calls // 10)
        images = torch.rand(512, 1, 8, 8)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            numpy.save(folder / "x.npy", images.numpy())
            script, package = export(network, folder, batch, device)
            torch._dynamo.reset()
            compiled = torch.compile(network, fullgraph=True)
            row = {"device": device, "batch": batch,
                   "Python, eager": in_python(network, images, batch, device, calls),
                   "Python, torch.compile": in_python(compiled, images, batch, device, calls),
                   "C++, TorchScript": in_cpp(script, folder / "x.npy", batch, device, calls, options.threads),
                   "C++, AOTInductor": in_cpp(package, folder / "x.npy", batch, device, calls, options.threads)}
        rows.append(row)
        print(" | ".join(f"{name} {value['p50_ms']:.3f}" for name, value in row.items() if isinstance(value, dict)), flush=True)
    return rows


def table(rows):
    ways = [name for name, value in rows[0].items() if isinstance(value, dict)]
    lines = ["| ms a call, p50 (p99) | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for row in rows:
        cells = [f"{row[way]['p50_ms']:.2f} ({row[way]['p99_ms']:.2f})" for way in ways]
        lines.append(f"| {row['device']}, batch {row['batch']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(options):
    if not PROGRAM.exists():
        sys.exit(f"latency.py: {PROGRAM} is not built")
    digits.load_spikeforge()
    torch.set_num_threads(options.threads)
    devices = ["cpu", "cuda"] if options.device == "all" and torch.cuda.is_available() else [options.device.replace("all", "cpu")]
    rows = [row for device in devices for row in measure(device, options)]
    print(table(rows))
    if options.json:
        gpu = torch.cuda.get_device_name() if "cuda" in devices else None
        about = {"torch": torch.__version__, "threads": options.threads, "steps": options.steps, "gpu": gpu}
        pathlib.Path(options.json).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", choices=["all", "cpu", "cuda"], default="all", help="all: also a GPU, if there is one")
    parser.add_argument("--calls", type=int, default=500, help="of batch 1; a tenth of them of batch 256")
    parser.add_argument("--steps", type=int, default=8, help="time steps for each image")
    parser.add_argument("--threads", type=int, default=1, help="threads of the CPU")
    parser.add_argument("--json", help="write the figures here")
    run(parser.parse_args())
