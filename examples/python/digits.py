#!/usr/bin/env python3
"""Trains a spiking network to read handwritten digits. It needs only the library of spikeforge: the operators are in
torch.ops.spikeforge once it is loaded."""

import argparse
import copy
import math
import os
import pathlib
import sys
import time
import zipfile

import torch
from torch import nn
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("SPIKEFORGE_LIBRARY", ROOT / "build/release/lib/libspikeforge.so")


class UserError(Exception):
    """An error of the user: it ends the program with one line and exit code 2."""


class Neuron(nn.Module):
    """A layer of neurons: maps input currents [T, batch, ...] to spikes of the same shape."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.register_parameter("w", nn.Parameter(torch.zeros(())) if kind == "plif" else None)  # 1/tau = sigmoid(w)

    def forward(self, current):
        if self.w is not None:
            spikes, v = torch.ops.spikeforge.plif(current, self.w)
        elif self.kind == "lif":
            spikes, v = torch.ops.spikeforge.lif(current, tau=2.0)
        else:
            spikes, v = torch.ops.spikeforge.integrate_and_fire(current)
        return spikes


class AtEveryStep(nn.Sequential):
    """Folds time into the batch: [T, batch, ...] -> [T * batch, ...] -> layers -> [T, batch, ...]."""

    def forward(self, x):
        y = x.flatten(0, 1)
        for layer in self:
            y = layer(y)
        return y.unflatten(0, x.shape[:2])


class Network(nn.Module):
    def __init__(self, neuron, steps):
        super().__init__()
        self.steps = steps
        self.first = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32))
        self.rest = nn.Sequential(
            Neuron(neuron),
            AtEveryStep(nn.Conv2d(32, 64, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(64)),
            Neuron(neuron),
            AtEveryStep(nn.Flatten(), nn.Linear(64 * 4 * 4, 128, bias=False), nn.BatchNorm1d(128)),
            Neuron(neuron),
            AtEveryStep(nn.Linear(128, 10)),
            Neuron(neuron))

    def forward(self, images):
        # The image is a constant current, so the output of the first convolution is the same at every step.
        current = self.first(images).expand(self.steps, -1, -1, -1, -1)
        return self.rest(current).sum(0)  # the number of spikes of each class


def read_digits(path):
    """Reads a file with a line for each digit, 64 pixels (0 to 16) and the label; returns images [count, 1, 8, 8] from
    0 to 1, and labels [count]."""
    rows = []
    try:
        lines = pathlib.Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror} (scripts/prepare_digits.py writes it)") from None
    for number, line in enumerate(lines, start=1):
        row = [int(word) if word.isdecimal() else -1 for word in line.split(",")]
        if len(row) != 65 or not all(0 <= pixel <= 16 for pixel in row[:64]) or not 0 <= row[64] <= 9:
            raise UserError(f"{path}:{number}: expected 64 pixels (0 to 16) and a label (0 to 9), with commas between")
        rows.append(row)
    if len(rows) < 10:
        raise UserError(f"{path}:{len(rows) + 1}: the file ends here, expected at least 10 digits")
    table = torch.tensor(rows)
    return table[:, :64].view(-1, 1, 8, 8) / 16, table[:, 64]


def split(images, labels, device):
    """Splits into four fifths for training and one fifth that is held out; the split is fixed."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:len(labels) // 5], order[len(labels) // 5:]
    return [(images[part].to(device), labels[part].to(device)) for part in (train, test)]


def move_a_little(images):
    """Shifts each image by up to one pixel, as data augmentation."""
    windows = functional.pad(images, (1, 1, 1, 1)).unfold(2, 8, 1).unfold(3, 8, 1)
    row, column = torch.randint(3, (2, len(images)), device=images.device)
    return windows[torch.arange(len(images), device=images.device), :, row, column]


def count_right(counts, labels):
    return (counts.argmax(1) == labels).sum()


@torch.no_grad()
def evaluate(network, images, labels):
    """Returns the number of correct images as a tensor, without synchronising a GPU."""
    network.eval()
    return count_right(network(images), labels)


def accuracy(network, images, labels):
    return evaluate(network, images, labels).item() / len(labels)


class CudaGraph:
    """A function of tensors whose kernels are captured once as a CUDA graph, and then launched together: a call is not
    limited by the time in which Python launches kernels.

    The first calls run the function without a graph, on a separate stream, as PyTorch requires before a capture: they
    compile kernels, and allocate persistent tensors (the optimizer's state) outside the graph's memory. The capture
    runs nothing. Arguments must keep their shapes; results are overwritten by the next call.
    """

    def __init__(self, function):
        self.function = function
        self.warm_ups_left = 3
        self.graph = None

    def __call__(self, *arguments):
        if self.warm_ups_left > 0:
            self.warm_ups_left -= 1
            return self.warm_up(*arguments)
        if self.graph is None:
            self.record(*arguments)
        for static, argument in zip(self.arguments, arguments):
            static.copy_(argument)
        self.graph.replay()
        return self.results

    def warm_up(self, *arguments):
        current, own = torch.cuda.current_stream(), torch.cuda.Stream()
        own.wait_stream(current)
        with torch.cuda.stream(own):
            results = self.function(*arguments)
        current.wait_stream(own)
        return results

    def record(self, *arguments):
        self.arguments = [argument.clone() for argument in arguments]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.results = self.function(*self.arguments)
        self.graph = graph


def milliseconds(function, *arguments, calls=50):
    for _ in range(5):  # warm-up and recording
        function(*arguments)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function(*arguments)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e3


def print_gain(what, function, graph, *arguments):
    alone, together = (milliseconds(f, *arguments) for f in (function, graph))
    print(f"{what}: {alone:.3f} ms, as a CUDA graph {together:.3f} ms: {alone / together:.1f} times as fast", flush=True)


def train(network, digits, held_out, options):
    images, labels = digits
    batches = math.ceil(len(labels) / options.batch_size)
    # A CUDA graph reads the learning rate and the count of steps from GPU memory.
    rate = torch.tensor(options.learning_rate, device=labels.device) if options.cuda_graph else options.learning_rate
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, capturable=options.cuda_graph)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * batches)
    loss_and_right = torch.zeros(2, dtype=torch.float64, device=labels.device)  # summed over an epoch

    def step(batch):
        counts = network(move_a_little(images[batch]))
        loss = functional.cross_entropy(counts, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_and_right[0].add_(loss.detach() * len(batch))
        loss_and_right[1].add_(count_right(counts, labels[batch]))

    def test():
        return evaluate(network, *held_out)

    whole_step, fast_test = (CudaGraph(step), CudaGraph(test)) if options.cuda_graph else (step, test)
    start = time.monotonic()
    for epoch in range(1, options.epochs + 1):
        network.train()
        loss_and_right.zero_()
        for batch in torch.randperm(len(labels)).to(labels.device).split(options.batch_size):
            # The last batch is smaller, and a graph has a fixed size.
            (whole_step if len(batch) == options.batch_size else step)(batch)
            schedule.step()
        if not options.quiet:
            loss, right = (loss_and_right / len(labels)).tolist()
            seconds = time.monotonic() - start
            print(f"epoch {epoch:2}/{options.epochs}  loss {loss:.4f}"
                  f"  accuracy {right:6.1%}  held out {fast_test().item() / len(held_out[1]):6.1%}"
                  f"  {epoch * len(labels) / seconds:5.0f} samples/s"
                  f"  {seconds / epoch * (options.epochs - epoch):3.0f} s left", flush=True)
    if options.cuda_graph and not options.quiet:
        trained = copy.deepcopy(network.state_dict())  # the following measurements continue to train
        network.train()
        batch = torch.arange(options.batch_size, device=labels.device)
        print_gain(f"training step of {len(batch)} images", step, whole_step, batch)
        print_gain(f"evaluation of {len(held_out[1])} images", test, fast_test)
        network.load_state_dict(trained)


def save(network, options, path):
    torch.save({"neuron": options.neuron, "steps": options.steps, "parameters": network.state_dict()}, path)


def load(path, device):
    try:
        if zipfile.ZipFile(path).testzip():  # torch does not check the checksums
            raise ValueError("it has a wrong checksum")
        saved = torch.load(path, map_location=device, weights_only=True)
        network = Network(saved["neuron"], saved["steps"]).to(device)
        network.load_state_dict(saved["parameters"])
        return network
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # torch raises many kinds
        raise UserError(f"{path} is damaged, or not a checkpoint of this program: {error}") from None


def load_spikeforge():
    try:
        torch.ops.load_library(LIBRARY)
    except OSError as error:
        raise UserError(f"cannot load the operators: {error} (build them, or name the library in SPIKEFORGE_LIBRARY)") from None


def find_device(name):
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def run(options):
    load_spikeforge()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    device = find_device(options.device)
    if options.cuda_graph and device != "cuda":
        raise UserError("--cuda-graph needs a GPU that torch finds, and a --device that allows it")
    digits, held_out = split(*read_digits(options.data), device)
    if options.load:
        print(f"accuracy on the held-out digits: {accuracy(load(options.load, device), *held_out):.2%}")
        return 0

    checkpoint = pathlib.Path(options.output) / "network_python.pt"
    try:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.open("ab").close()
    except OSError as error:
        raise UserError(f"cannot write {checkpoint}: {error.strerror}") from None
    network = Network(options.neuron, options.steps).to(device)
    train(network, digits, held_out, options)
    save(network, options, checkpoint)

    reached, again = accuracy(network, *held_out), accuracy(load(checkpoint, device), *held_out)
    print(f"accuracy on the held-out digits: {reached:.2%}")
    print(f"saved to {checkpoint}, read back: {again:.2%}, {'the same' if again == reached else 'NOT THE SAME'}")
    return 0 if again == reached else 1


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{message} (--help lists the options)")


def positive(text):
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def parse_options():
    parser = Parser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", default="build/data/digits.csv", help="digits of scripts/prepare_digits.py")
    parser.add_argument("--output", default="build/digits", help="folder for the checkpoint")
    parser.add_argument("--load", help="only evaluate this checkpoint")
    parser.add_argument("--neuron", choices=["if", "lif", "plif"], default="plif", help="the neurons of every layer")
    parser.add_argument("--steps", type=positive, default=8, help="time steps for each image")
    parser.add_argument("--epochs", type=positive, default=30, help="passes over the training digits")
    parser.add_argument("--batch-size", type=positive, default=64, help="images in a batch")
    parser.add_argument("--learning-rate", type=float, default=5e-3, help="the initial learning rate of Adam")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights and the order of the digits")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto uses a GPU if there is one")
    parser.add_argument("--cuda-graph", action="store_true",
                        help="on a GPU: launch all kernels of a step together, and print the speed-up")
    parser.add_argument("--threads", type=positive, default=1, help="threads of the CPU")
    parser.add_argument("--quiet", action="store_true", help="only print the result")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(run(parse_options()))
    except UserError as error:
        print(f"digits.py: {' '.join(str(error).splitlines()[:1])}", file=sys.stderr)
        sys.exit(2)
