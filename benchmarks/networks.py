#!/usr/bin/env python3
"""Measures a training step of whole networks of SpikingJelly: unchanged, accelerated, with the layers around their
neurons accelerated too, and without neurons.

SEW-ResNet18, spiking VGG11 (with batch norm) and Spikformer-S for ImageNet, built from SpikingJelly's layers and
neurons. A step is forward, cross entropy of the mean over time, backward and SGD, under autocast on a GPU. "no neuron"
has the identity instead of each neuron: the time of everything else. Times are by the clock, the median of all rounds.
"its Triton" are SpikingJelly's nodes with states of autocast's type, which its Triton kernels then run; unchanged
nodes with half inputs loop over torch's operations. "with layers" is accelerated, and then accelerate.layers: batch
normalisation in the neuron's pass, and pooling; "stateless" also keeps no state after a sequence (keep_states=False);
"with bits" keeps spikes as bits; "recomputed" is accelerate.layers(net, ..., recompute=True): bits, and no result of a
convolution; "in pieces" also computes the layers with the largest tensors in pieces of the batch (pieces=8). "its
memopt" is SpikingJelly's own optimize_memory, level 1, of all blocks: checkpoints, and binary inputs as bits. "as a
graph" is the same step, captured once as a CUDA graph and replayed: the time of its kernels. without Python's time.

    python benchmarks/networks.py --device cuda --json benchmarks/results/networks_h200.json
    python benchmarks/networks.py --device cuda --networks SEW-ResNet18 --steps 16 --layouts channels-last
    python benchmarks/networks.py --device cpu --batch 2 --size 32 --rounds 1 --steps-per-round 1

SpikingJelly chooses its own backend for each neuron. It is imported without its models and data sets, so that on a
machine without torchvision and h5py a folder with spikingjelly and loguru on PYTHONPATH does (pip install --no-deps
--target FOLDER ...).
"""

import argparse
import contextlib
import gc
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[1]
try:
    import spikeforge
except ModuleNotFoundError:  # not installed: the package of this clone
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
    import spikeforge

try:
    from spikingjelly.activation_based import functional, layer, neuron, surrogate
except ImportError as error:
    sys.exit(f"benchmarks/networks.py measures networks of SpikingJelly, which cannot be imported here: {error}")

WARM_UP = 3  # steps before the first round, in which kernels are compiled and chosen


# --- the networks ----------------------------------------------------------------------------------------------------


def integrate():
    return neuron.IFNode(surrogate_function=surrogate.ATan(), detach_reset=True, step_mode="m")


def leak(v_threshold=1.0):
    return neuron.LIFNode(tau=2.0, v_threshold=v_threshold, detach_reset=True, step_mode="m")


class Residual(nn.Module):
    """A block of SEW-ResNet: spikes are added to spikes."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = layer.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1, self.sn1 = layer.BatchNorm2d(out), integrate()
        self.conv2 = layer.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2, self.sn2 = layer.BatchNorm2d(out), integrate()
        self.shortcut = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                layer.Conv2d(channels, out, 1, stride, bias=False), layer.BatchNorm2d(out), integrate()
            )

    def forward(self, x):
        y = self.sn2(self.bn2(self.conv2(self.sn1(self.bn1(self.conv1(x))))))
        return y + (x if self.shortcut is None else self.shortcut(x))


def sew_resnet18(steps, size, classes):
    """Fang et al., NeurIPS 34 (2021)."""
    blocks = [
        Residual(channels, out, stride)
        for channels, out, stride in [
            (64, 64, 1),
            (64, 64, 1),
            (64, 128, 2),
            (128, 128, 1),
            (128, 256, 2),
            (256, 256, 1),
            (256, 512, 2),
            (512, 512, 1),
        ]
    ]
    stem = [layer.Conv2d(3, 64, 7, 2, 3, bias=False), layer.BatchNorm2d(64), integrate(), layer.MaxPool2d(3, 2, 1)]
    net = nn.Sequential(*stem, *blocks, layer.AdaptiveAvgPool2d(1), nn.Flatten(2), layer.Linear(512, classes))
    for module in net.modules():
        if isinstance(module, layer.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return Repeated(net, steps)


def spiking_vgg11(steps, size, classes):
    """VGG11 with batch norm, and a neuron instead of each ReLU."""
    layers, channels = [], 3
    for out in [64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"]:
        if out == "pool":
            layers.append(layer.MaxPool2d(2, 2))
            continue
        layers += [layer.Conv2d(channels, out, 3, padding=1), layer.BatchNorm2d(out), integrate()]
        channels = out
    dense = [
        layer.Linear(512 * 7 * 7, 4096),
        integrate(),
        layer.Dropout(),
        layer.Linear(4096, 4096),
        integrate(),
        layer.Dropout(),
        layer.Linear(4096, classes),
    ]
    net = nn.Sequential(*layers, layer.AdaptiveAvgPool2d(7), nn.Flatten(2), *dense)
    for module in net.modules():
        if isinstance(module, layer.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return Repeated(net, steps)


def normalised(convolution, norm, *more):
    """A layer without time and its batch norm, over all steps."""
    return layer.SeqToANNContainer(convolution, norm, *more)


class Attention(nn.Module):
    """Spiking self-attention: queries, keys and values are spikes, and no softmax is taken."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = normalised(nn.Conv1d(width, 3 * width, 1, bias=False), nn.BatchNorm1d(3 * width))
        self.qkv_neuron, self.attention_neuron = leak(), leak(0.5)
        self.projection = normalised(nn.Conv1d(width, width, 1, bias=False), nn.BatchNorm1d(width))
        self.out_neuron = leak()

    def forward(self, x):
        steps, batch, width, tokens = x.shape
        qkv = self.qkv_neuron(self.qkv(x)).reshape(steps, batch, 3 * self.heads, width // self.heads, tokens)
        q, k, v = qkv.chunk(3, dim=2)
        mixed = (v @ k.transpose(-2, -1)) @ q * 0.125
        mixed = self.attention_neuron(mixed).reshape(steps, batch, width, tokens)
        return self.out_neuron(self.projection(mixed))


class Block(nn.Module):
    """Attention and a multi-layer perceptron, each added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.attention = Attention(width, heads)
        self.up = normalised(nn.Conv1d(width, 4 * width, 1, bias=False), nn.BatchNorm1d(4 * width))
        self.up_neuron = leak()
        self.down = normalised(nn.Conv1d(4 * width, width, 1, bias=False), nn.BatchNorm1d(width))
        self.down_neuron = leak()

    def forward(self, x):
        tokens = x.flatten(3)
        tokens = tokens + self.attention(tokens)
        tokens = tokens + self.down_neuron(self.down(self.up_neuron(self.up(tokens))))
        return tokens.reshape(x.shape).contiguous()


class Embedding(nn.Module):
    """Patches of 16x16 pixels as tokens, and a convolution that encodes their position."""

    def __init__(self, width):
        super().__init__()
        widths = [3, width // 8, width // 4, width // 2, width]
        self.stages = nn.Sequential(
            *[
                nn.Sequential(
                    normalised(
                        nn.Conv2d(channels, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out), nn.MaxPool2d(3, 2, 1)
                    ),
                    leak(),
                )
                for channels, out in zip(widths, widths[1:])
            ]
        )
        self.position = nn.Sequential(
            normalised(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)), leak()
        )

    def forward(self, x):
        x = self.stages(x)
        return x + self.position(x)


class MeanOfTokens(nn.Module):
    def forward(self, x):
        return x.flatten(3).mean(-1)


def spikformer_s(steps, size, classes, width=384, heads=12, depth=6):
    """Zhou et al., ICLR (2023): 384 channels, 12 heads, 6 blocks."""
    blocks = [Block(width, heads) for _ in range(depth)]
    net = nn.Sequential(Embedding(width), *blocks, MeanOfTokens(), layer.Linear(width, classes))
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            nn.init.trunc_normal_(module.weight, std=0.02)
    return Repeated(net, steps)


class Repeated(nn.Module):
    """Shows an image [B, C, H, W] at every step; scores are the mean over time."""

    def __init__(self, net, steps):
        super().__init__()
        self.net, self.steps = net, steps
        functional.set_step_mode(self, "m")

    def forward(self, images):
        return self.net(self.over_time(images)).mean(0)

    def over_time(self, images):
        return torch.cat([images] * self.steps).unflatten(0, (self.steps, len(images)))  # keeps channels-last


NETWORKS = {"SEW-ResNet18": sew_resnet18, "VGG11": spiking_vgg11, "Spikformer-S": spikformer_s}


# --- the forms of a network ------------------------------------------------------------------------------------------


def as_it_is(net, options):
    return net


def on_triton(net, options):
    """Uses SpikingJelly's nodes with states of autocast's type: for half inputs its default is a loop in torch."""
    from spikingjelly.activation_based.precision import prepare_model_for_precision

    kind = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}[options.dtype]
    return prepare_model_for_precision(net, options.device, dict(mode=kind, neuron_storage=kind)).model


def accelerated(net, options):
    report = spikeforge.accelerate(net)
    if report.left or not report.replaced:
        raise RuntimeError(f"not every neuron was replaced\n{report}")
    return net


def with_layers(**settings):
    """Returns accelerate.layers with these settings."""

    def form(net, options):
        accelerated(net, options)
        images = torch.randn(1, 3, options.size, options.size, device=options.device)
        spikeforge.accelerate.layers(net, images, **settings)
        return net

    return form


def memory_optimised(net, options):
    from spikingjelly.activation_based.memopt import optimize_memory

    def example(net):
        images = torch.randn(2, 3, options.size, options.size, device=options.device)
        half = options.dtype != "float32"
        with torch.autocast(options.device, getattr(torch, options.dtype)) if half else contextlib.nullcontext():
            y = net(images)
        functional.reset_net(net)
        return y

    net = on_triton(net, options) if options.device == "cuda" else net
    blocks = (Residual, Block, Embedding) if any(isinstance(m, (Residual, Block)) for m in net.modules()) else (neuron.BaseNode,)
    return optimize_memory(net, blocks, example, level=1, checkpoint_budget="memory")


def without_neurons(net, options):
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if isinstance(child, neuron.BaseNode):
                setattr(parent, name, nn.Identity())
    return net


FORMS = {
    "no neuron": without_neurons,
    "accelerated": accelerated,
    "with layers": with_layers(),
    "stateless": with_layers(keep_states=False),
    "with bits": with_layers(),
    "recomputed": with_layers(recompute=True),
    "in pieces": with_layers(recompute=True, pieces=8),
    "SpikingJelly": as_it_is,
    "its Triton": on_triton,
    "its memopt": memory_optimised,
}
# Packing reads values, which synchronises, so it cannot be captured.
GRAPHS = ("no neuron", "accelerated", "with layers", "stateless", "recomputed", "in pieces")
LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}


# --- measuring -------------------------------------------------------------------------------------------------------


class Step:
    """A training step on random images."""

    def __init__(self, name, form, layout, options):
        torch.manual_seed(0)
        self.device, self.dtype = options.device, getattr(torch, options.dtype)
        net = NETWORKS[name](options.steps, options.size, options.classes)
        self.net = FORMS[form](net.to(options.device, memory_format=LAYOUTS[layout]), options)
        self.called = torch.compile(self.net) if options.compile else self.net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        images = torch.randn(options.batch, 3, options.size, options.size, device=options.device)
        self.images = images.contiguous(memory_format=LAYOUTS[layout])
        self.labels = torch.randint(options.classes, (options.batch,), device=options.device)
        self.kept = spikeforge.packed_activations if form == "with bits" else contextlib.nullcontext

    def __call__(self, cache_casts=True):
        half = self.dtype != torch.float32
        casts = torch.autocast(self.device, self.dtype, cache_enabled=cache_casts) if half else contextlib.nullcontext()
        with casts, self.kept():
            loss = nn.functional.cross_entropy(self.called(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        functional.reset_net(self.net)

    def captured(self):
        """Captures the step as a CUDA graph: new images and labels are copied into self.images and self.labels. Each
        step starts from the initial states, and includes casts of weights."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self(cache_casts=False)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self(cache_casts=False)
        return graph.replay


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(step, options):
    """Returns seconds per step by the clock, the median of the rounds, and the longest and shortest round."""
    for _ in range(WARM_UP):
        step()
    times = []
    for _ in range(options.rounds):
        synchronize(options.device)
        start = time.perf_counter()
        for _ in range(options.steps_per_round):
            step()
        synchronize(options.device)
        times.append((time.perf_counter() - start) / options.steps_per_round)
    return statistics.median(times), min(times), max(times)


def peak_memory(step, device):
    """Returns the bytes that a step allocates: activations, gradients and the saved tensors of neurons."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(name, form, layout, options):
    """Returns a row of results; the row of a peer that fails has its error."""
    row = dict(network=name, form=form, layout=layout, compiled=options.compile)
    try:
        step = Step(name, form, layout, options)
        median, least, most = seconds(step, options)
        row.update(milliseconds=1e3 * median, least=1e3 * least, most=1e3 * most)
        row.update(peak_bytes=peak_memory(step, options.device))
        if options.device == "cuda" and form in GRAPHS:
            row.update(graph_milliseconds=1e3 * seconds(step.captured(), options)[0])
    except Exception as error:
        if form in (*GRAPHS[1:], "with bits"):
            raise
        print(f"{name}, {layout}, {form}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        row["error"] = f"{type(error).__name__}: {error}"
    step = None
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()
    if options.compile:
        torch.compiler.reset()
    return row


def table(name, rows, options):
    """Formats the times of a network, one line per layout, and its peak memory below each."""
    wide = "".join(f"{form:>14}" for form in options.forms)
    lines = [
        f"{name}, T={options.steps}, B={options.batch}, {options.size}x{options.size}, {options.dtype}"
        f"{', torch.compile' if options.compile else ''}: milliseconds a training step",
        f"  {'':<14}{wide}{'times faster':>14}",
    ]
    for layout in options.layouts:
        here = {row["form"]: row for row in rows if row["network"] == name and row["layout"] == layout}
        times = {form: here[form]["milliseconds"] for form in options.forms if "milliseconds" in here[form]}
        both = "accelerated" in times and "SpikingJelly" in times
        gain = f"{times['SpikingJelly'] / times['accelerated']:.2f}" if both else "-"
        cells = "".join(f"{times[form]:>14.2f}" if form in times else f"{'-':>14}" for form in options.forms)
        lines.append(f"  {layout:<14}{cells}{gain:>14}")
        graphs = [here[form].get("graph_milliseconds") for form in options.forms]
        if any(graphs):
            lines.append(f"  {'  as a graph':<14}" + "".join(f"{g:>14.2f}" if g else f"{'-':>14}" for g in graphs))
        peaks = [here[form].get("peak_bytes") for form in options.forms]
        if any(peaks):
            lines.append(f"  {'  peak GiB':<14}" + "".join(f"{(peak or 0) / 2**30:>14.2f}" for peak in peaks))
    return "\n".join(lines)


def machine(device):
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    gpu = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    )
    return dict(device=gpu, torch=torch.__version__, commit=commit)


def chosen(known):
    """Reads a list of names, separated by commas."""

    def parse(text):
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'}: expected some of {', '.join(known)}")
        return names

    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", type=chosen(NETWORKS), default=list(NETWORKS), help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--forms", type=chosen(FORMS), help=f"of {', '.join(FORMS)}; its Triton kernels need a GPU")
    parser.add_argument("--layouts", type=chosen(LAYOUTS), default=list(LAYOUTS), help=f"of {', '.join(LAYOUTS)}")
    parser.add_argument("--steps", type=int, default=4, help="time steps T")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="pixels of an image's side, a multiple of 16")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument(
        "--dtype", choices=["float16", "bfloat16", "float32"], help="of autocast; float16 on a GPU, none on a CPU"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps-per-round", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="torch.compile the networks: minutes more")
    parser.add_argument("--json", type=pathlib.Path, help="also write the results there")
    options = parser.parse_args()
    if options.size % 16 or options.size < 32:
        parser.error(f"--size must be a multiple of 16 and at least 32, but is {options.size}")
    options.dtype = options.dtype or ("float16" if options.device == "cuda" else "float32")
    options.forms = options.forms or [form for form in FORMS if form != "its Triton" or options.device == "cuda"]
    torch.backends.cudnn.benchmark = True

    rows = []
    for name in options.networks:
        for layout in options.layouts:
            rows += [measure(name, form, layout, options) for form in options.forms]
        print(table(name, rows, options), flush=True)
    if options.json:
        record = dict(
            command=" ".join(["python", *sys.argv]),
            machine=machine(options.device),
            rows=rows,
            **{key: getattr(options, key) for key in ("steps", "batch", "size", "classes", "dtype", "rounds")},
        )
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
