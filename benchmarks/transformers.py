#!/usr/bin/env python3
"""Measures a training step of SpikingJelly's transformers and residual networks, and of those of spikeforge.models.

For each network: milliseconds per step, eager and as a CUDA graph, peak memory, the time by kind of operator, and a
floor: the bytes and operations that a step needs, at the bandwidth and the speed of products that --bandwidth and
--tflops give. Forms are SpikingJelly's network ("SpikingJelly"), after spikeforge.accelerate ("accelerated"),
accelerate.layers ("with layers"), and layers(shortcuts=True) ("with shortcuts"); and this package's ("models"), after
nn.fuse ("fused") and fuse(recompute=True) ("recomputed"). A step is forward, cross entropy of the mean over time,
backward and SGD, under autocast on a GPU.
spikformer_ti is the case of SpikingJelly's recipe of distributed training: T = 8, 16 images of 224 pixels.

The kinds are those of the operators that launch the kernels; "other" are kernels that no operator of torch launches,
such as Triton's. On a CPU, they are the operators' own times. "host gaps" are the step's time without kernels.

    python benchmarks/transformers.py --json benchmarks/results/transformers_h200.json
    python benchmarks/transformers.py --networks spikformer_ti --forms SpikingJelly fused
    python benchmarks/transformers.py --device cpu --batch 1 --size 32 --steps 2 --rounds 1 --networks qkformer_10_384
"""

import argparse
import collections
import contextlib
import gc
import json
import pathlib
import re
import statistics
import sys

import this_clone  # noqa: F401
import torch
from measure import Clock
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import spikeforge
import spikeforge.nn as snn
from spikeforge import losses, models

try:
    from spikingjelly.activation_based import functional
    from spikingjelly.activation_based.model import (
        maxformer, ms_resnet, qkformer, sew_resnet, spike_driven_transformer, spikformer,
    )  # fmt: skip
    from spikingjelly.activation_based.neuron import IFNode
    from spikingjelly.activation_based.surrogate import ATan
except ImportError as error:
    print(f"without SpikingJelly, which cannot be imported here: {error}", file=sys.stderr)
    functional = maxformer = ms_resnet = qkformer = sew_resnet = spike_driven_transformer = spikformer = None

WARM_UP = 3


def sew(**options):
    neurons = dict(spiking_neuron=IFNode, surrogate_function=ATan(), detach_reset=True)
    return sew_resnet.sew_resnet18(cnf="ADD", **neurons, **options)


# SpikingJelly's module, the images' pixels, classes, images and steps. Both packages use one name; SEW needs arguments.
Case = collections.namedtuple("Case", "peer size classes batch steps")
NETWORKS = {
    "qkformer_10_384": Case(qkformer, 224, 1000, 32, 4),
    "sdt_8_384": Case(spike_driven_transformer, 224, 1000, 32, 4),
    "spikformer_ti": Case(spikformer, 224, 1000, 16, 8),
    "spikformer_cifar10": Case(spikformer, 32, 10, 128, 4),
    "ms_resnet18": Case(ms_resnet, 224, 1000, 32, 4),
    "sew_resnet18": Case(sew_resnet, 224, 1000, 32, 4),
    "maxformer_cifar": Case(maxformer, 32, 100, 128, 4),
    "max_resnet18": Case(ms_resnet, 32, 10, 128, 4),
}
PEERS = ("SpikingJelly", "accelerated", "with layers", "with shortcuts")
OWN = ("models", "fused", "recomputed")
KINDS = {
    "copies": "nchwToNhwc|nhwcToNchw|aten::(copy_|cat|stack|clone|_to_copy)$|Memcpy",
    "attention": "aten::(bmm|baddbmm)$",
    "convolutions": "conv",
    "products": "aten::(mm|addmm|linear)$|spikeforge::linear",
    "norm and neuron": "batch_norm|spikeforge::|_neuron|LIF|IFNode|Node",
    "reductions": "aten::(sum|mean|amax|nll_loss|_log_softmax)",
    "elementwise": "aten::|Optimizer",
}


def kind_of(*names):
    return next((kind for kind, words in KINDS.items() if any(re.search(words, name) for name in names)), "other")


def make(name, form, case, device):
    """Returns the network; the form "recomputed" saves bits instead of spikes."""
    if form in PEERS:
        options = dict(num_classes=case.classes) | ({} if name == "sew_resnet18" else dict(T=case.steps))
        if name == "spikformer_ti":
            options |= dict(img_size_h=case.size, img_size_w=case.size)
        net = (sew if name == "sew_resnet18" else getattr(case.peer, name))(**options).to(device)
        functional.set_step_mode(net, "m")
        if form != "SpikingJelly":
            spikeforge.accelerate(net)
        if form.startswith("with "):
            images = images_of(case, device, 2)
            spikeforge.accelerate.layers(net, images, keep_states=False, shortcuts=form == "with shortcuts")
        return net
    net = getattr(models, name)(classes=case.classes).to(device)
    if form != "models":
        snn.fuse(net, images_of(case, device, 2), recompute=form == "recomputed")
    return net


def images_of(case, device, batch, layout=torch.contiguous_format):
    images = torch.randn(batch, 3, case.size, case.size, device=device).contiguous(memory_format=layout)
    return images.repeat(case.steps, 1, 1, 1).contiguous(memory_format=layout).unflatten(0, (case.steps, batch))


class Step:
    def __init__(self, name, form, case, options):
        torch.manual_seed(0)
        layout = torch.channels_last if options.channels_last else torch.contiguous_format
        self.net = make(name, form, case, options.device).to(memory_format=layout)
        self.is_peer, self.device = form in PEERS, options.device
        self.dtype = getattr(torch, options.dtype)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 1e-4)
        self.images = images_of(case, options.device, case.batch, layout)
        self.labels = torch.randint(case.classes, (case.batch,), device=options.device)

    def __call__(self):
        half = self.dtype != torch.float32
        with torch.autocast(self.device, self.dtype, cache_enabled=False) if half else contextlib.nullcontext():
            y = self.net(self.images)
        y = y[0] if isinstance(y, tuple) else y
        y = losses.mean_over_time(y) if y.dim() == 3 else y.float()
        nn.functional.cross_entropy(y, self.labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.is_peer:
            functional.reset_net(self.net)

    def captured(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self()
        return graph.replay


def milliseconds(call, options):
    """Returns the median of the rounds."""
    clock = Clock(options.device)
    for _ in range(WARM_UP):
        call()
    return 1e3 * statistics.median(clock([call] * options.steps_per_round) for _ in range(options.rounds))


def by_kind(step, device):
    """Returns milliseconds of a step's kernels by kind; on a CPU those of the operators."""
    on_gpu, times = device == "cuda", collections.Counter()
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * on_gpu
    with torch.profiler.profile(activities=activities) as profile:
        step()
        if on_gpu:
            torch.cuda.synchronize()
    total = 0.0
    for event in profile.events():
        if event.device_type != torch.autograd.DeviceType.CPU:
            total += event.time_range.elapsed_us() * (event.name != "Context Sync")
        elif on_gpu:
            for kernel in event.kernels:
                times[kind_of(kernel.name, event.name)] += kernel.duration
        else:
            times[kind_of(event.name)] += event.self_cpu_time_total
    times["other"] += max(0.0, total - sum(times.values())) if on_gpu else 0
    return {kind: time * 1e-3 for kind, time in times.items()}


def floor(name, case, options):
    """Returns bytes and operations of a step of the network of spikeforge.models.

    Each convolution reads its input and writes its result, and both of its gradients read and write as much. A
    normalisation and its neuron read x twice and write spikes; backwards they read x and the gradient twice, and write
    a gradient. Attention reads its three factors and writes one, and backwards reads four and writes three. Other
    operators are free. Operations are those of products and convolutions, two for each multiplication.
    """
    net, item = make(name, "models", case, options.device), 4 if options.dtype == "float32" else 2
    elements, x = collections.Counter(), images_of(case, options.device, 1)

    def add(module, args, result):
        if isinstance(module, nn.Conv2d):
            elements["convolutions"] += 3 * (args[0].numel() + result.numel())
        elif isinstance(module, nn.BatchNorm2d):
            elements["norm and neuron"] += 8 * result.numel()
        else:
            elements["attention"] += (3 * module.PARTS + 2) * result.numel()

    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.BatchNorm2d, snn.attention.Attention)):
            module.register_forward_hook(add)
    with FlopCounterMode(display=False) as counter:
        net(x).sum().backward()
    moved, operations = sum(elements.values()) * item * case.batch, counter.get_total_flops() * case.batch
    times = moved / (options.bandwidth * 1e6), operations / (options.tflops * 1e9)
    return dict(bytes=moved, operations=operations, milliseconds=sum(times))


def with_step(row, options, measure):
    """Adds the results of `measure` of the row's network to the row."""
    names = ("size", "classes", "batch", "steps")
    case = NETWORKS[row["network"]]._replace(**{name: row[name] for name in names})
    try:
        row.update(measure(Step(row["network"], row["form"], case, options), case))
    except Exception as error:
        if row["form"] in OWN:
            raise
        row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    gc.collect()


def times(row, options):
    def measure(step, case):
        found = dict(milliseconds=milliseconds(step, options))
        if options.device == "cuda":
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            found["peak_bytes"] = torch.cuda.max_memory_allocated() - before
            found["graph_milliseconds"] = milliseconds(step.captured(), options)
        if row["form"] == "models":
            found["floor"] = floor(row["network"], case, options)
        return found

    with_step(row, options, measure)


def profile(row, options):
    """Adds the times by kind. The profiler slows all later launches down: it is used after all other measurements."""

    def measure(step, case):
        for _ in range(WARM_UP):
            step()
        kinds = by_kind(step, options.device)
        if options.device == "cuda":
            kinds["host gaps"] = max(0.0, row["milliseconds"] - sum(kinds.values()))
        return dict(by_kind=kinds)

    with_step(row, options, measure)


def line(row):
    form = f"  {row['form']:<16}"
    if "error" in row:
        return form + row["error"]
    if "by_kind" in row:
        kinds = sorted(row["by_kind"].items(), key=lambda each: -each[1])
        return form + "  ".join(f"{kind} {time:.2f}" for kind, time in kinds)
    text = form + f"{row['milliseconds']:7.2f} ms"
    if "graph_milliseconds" in row:
        text += f"  graph {row['graph_milliseconds']:7.2f} ms  peak {row['peak_bytes'] / 2**30:6.2f} GiB"
    if "floor" in row:
        least = row["floor"]
        text += f"\n  {'floor':<16}{least['milliseconds']:7.2f} ms"
        text += f"  {least['bytes'] / 1e9:.2f} GB, {least['operations'] / 1e12:.2f} T operations"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--forms", nargs="+", choices=[*PEERS, *OWN], default=[*PEERS, *OWN], metavar="FORM")
    parser.add_argument("--size", type=int, help="pixels of an image's side; default: those of each network")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, help="time steps T")
    parser.add_argument("--dtype", choices=["float16", "bfloat16", "float32"], help="of autocast; float16 on a GPU")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps-per-round", type=int, default=5)
    parser.add_argument("--bandwidth", type=float, default=4800, help="GB/s, for the floor; default: an H200")
    parser.add_argument("--tflops", type=float, default=989, help="of products; default: an H200, half types")
    parser.add_argument("--json", type=pathlib.Path, help="also write the results there")
    options = parser.parse_args()
    options.dtype = options.dtype or ("float16" if options.device == "cuda" else "float32")
    torch.backends.cudnn.benchmark = True
    rows = []
    for name in options.networks:
        changes = {key: getattr(options, key) for key in ("size", "batch", "steps") if getattr(options, key)}
        case = NETWORKS[name]._replace(**changes, peer=None)._asdict()
        has = {True: functional is not None, False: hasattr(models, name)}
        forms = [form for form in options.forms if has[form in PEERS]]
        rows += [dict(network=name, form=form, **case) for form in forms]
    for title, measure in (("times", times), ("kernels", profile)):
        name = None
        for row in rows:
            if row["network"] != name:
                name = row["network"]
                print(f"{title}: " + "{network}, T={steps}, B={batch}, {size} pixels, ".format(**row) + options.dtype)
            if "error" not in row:
                measure(row, options)
            print(line(row), flush=True)
    if options.json:
        device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        about = dict(torch=torch.__version__, device=device, channels_last=options.channels_last)
        options.json.write_text(json.dumps(dict(command=sys.argv, machine=about, rows=rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
