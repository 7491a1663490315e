"""Trains a spiking network to read handwritten digits, and draws what its neurons do.

    python -m spikeforge.demo
    python -m spikeforge.demo --epochs 5 --device cuda --output digits.png

The data are scikit-learn's 1,797 digits (8 x 8 pixels); a fifth of them is held out from training.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import spikeforge
import spikeforge.nn as snn
from spikeforge import surrogate

STEPS = 8
BATCH = 64
LEARNING_RATE = 2e-3
MOMENTUM = 0.3  # an epoch has only 23 batches for the statistics of batch normalisation

Digits = tuple[Tensor, Tensor]  # images [count, 1, 8, 8] from 0 to 1, labels [count]


class UserError(Exception):
    """An error of the user: prints one line, and exits with code 2."""


class Reader(nn.Module):
    """Maps images ``[B, 1, 8, 8]`` to the number of spikes of each class ``[B, 10]``."""

    def __init__(self, steps: int = STEPS):
        super().__init__()
        self.steps = steps
        # The image is a constant current, so the output of the first convolution is the same at every step.
        self.first = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32, momentum=MOMENTUM))
        conv = nn.Conv2d(32, 64, 3, padding=1, stride=2, bias=False)
        dense, readout = nn.Linear(64 * 4 * 4, 128, bias=False), nn.Linear(128, 10)
        self.rest = snn.Sequential(
            OrderedDict(
                lif1=neuron(32),
                conv2=snn.TimeDistributed(conv, nn.BatchNorm2d(64, momentum=MOMENTUM)),
                lif2=neuron(64),
                dense=snn.TimeDistributed(nn.Flatten(), dense, nn.BatchNorm1d(128, momentum=MOMENTUM)),
                lif3=neuron(128),
                classes=snn.TimeDistributed(readout),
                output=snn.LIF(surrogate=surrogate.ATan(2.0)),
            )
        )

    def forward(self, images: Tensor) -> Tensor:
        current = self.first(images).expand(self.steps, -1, -1, -1, -1)
        return self.rest(current).sum(0)


def neuron(channels: int) -> snn.LIF:
    """A LIF with a learned time constant for each channel."""
    return snn.LIF(tau=snn.Learnable(2.0, min=1.0, per_channel=channels), surrogate=surrogate.ATan(2.0))


# --- data


def load_digits(device: torch.device) -> tuple[Digits, Digits]:
    """Returns the digits for training and those held out, in a fixed split."""
    try:
        from sklearn import datasets
    except ImportError:
        raise UserError("the digits are part of scikit-learn: pip install scikit-learn") from None
    found = datasets.load_digits()
    images = torch.tensor(found.data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, train = order[: len(order) // 5], order[len(order) // 5 :]
    images, labels = images.to(device), labels.to(device)
    return (images[train], labels[train]), (images[held_out], labels[held_out])


def moved(images: Tensor) -> Tensor:
    """Shifts each image by up to one pixel, as data augmentation."""
    windows = functional.pad(images, (1, 1, 1, 1)).unfold(2, 8, 1).unfold(3, 8, 1)
    row, column = torch.randint(3, (2, len(images)), device=images.device)
    return windows[torch.arange(len(images), device=images.device), :, row, column]


# --- training


def train(net: Reader, digits: Digits, held_out: Digits, epochs: int) -> list[float]:
    """Trains the network; returns the accuracy on the held-out digits after each epoch."""
    images, labels = digits
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    batches = math.ceil(len(labels) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4 * LEARNING_RATE, total_steps=epochs * batches)
    reached, start = [], time.monotonic()
    for epoch in range(1, epochs + 1):
        net.train()
        loss_sum = torch.zeros((), device=labels.device)
        order = torch.randperm(len(labels), device="cpu").to(labels.device).split(BATCH)
        for batch in progress(order, f"epoch {epoch}/{epochs}"):
            loss = functional.cross_entropy(net(moved(images[batch])), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            loss_sum += loss.detach() * len(batch)
        reached.append(accuracy(net, *held_out))
        seconds = time.monotonic() - start
        print(
            f"epoch {epoch:{len(str(epochs))}}/{epochs}  loss {loss_sum.item() / len(labels):.3f}  held out "
            f"{reached[-1]:6.1%}  {seconds / epoch * (epochs - epoch):3.0f} s left",
            flush=True,
        )
    return reached


@torch.no_grad()
def accuracy(net: Reader, images: Tensor, labels: Tensor) -> float:
    net.eval()
    return (net(images).argmax(1) == labels).double().mean().item()


def progress(batches: Iterable[Any], what: str) -> Iterable[Any]:
    """Shows a progress bar on a terminal, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return batches
    return tqdm(batches, what, leave=False, disable=None, unit="batch")


# --- the picture


@torch.no_grad()
def draw(net: Reader, image: Tensor, reached: list[float], path: Path) -> None:
    """Draws the spikes of each layer for one image, and the accuracy over the epochs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from spikeforge import plot

    layers = {"lif1": "conv 1", "lif2": "conv 2", "lif3": "dense", "output": "classes"}
    with spikeforge.Monitor(net, [f"rest.{name}.out" for name in layers]) as monitor:
        counts = net(image[None])[0]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    shown, *rasters, curve = figure.subplots(1, len(layers) + 2, width_ratios=[0.9, *[1.2] * len(layers), 1.2])
    shown.imshow(image[0].cpu().numpy(), cmap="Greys", vmin=0, vmax=1)
    shown.set_title(f"it reads a {counts.argmax().item()}", loc="left", color=plot.INK)
    shown.set_xticks([])
    shown.set_yticks([])
    shown.spines[:].set_color(plot.GRID)
    for i, (ax, name, title) in enumerate(zip(rasters, monitor.names, layers.values())):
        plot.raster(monitor[name], ax, title=title, color=plot.COLORS[i], neurons=64)
        ax.set_ylabel(f"neuron, of {monitor[name][0, 0].numel():,}")
    rasters[-1].set_ylabel("class")
    rasters[-1].set_yticks(range(10))
    curve.plot(range(1, len(reached) + 1), [100 * share for share in reached], color=plot.INK, marker=".")
    curve.set_title(f"held out: {100 * reached[-1]:.1f} %", loc="left", color=plot.INK)
    curve.set_xlabel("epoch")
    curve.xaxis.get_major_locator().set_params(integer=True)
    curve.yaxis.set_major_formatter("{x:g} %")
    curve.spines[["top", "right"]].set_visible(False)
    curve.spines[["left", "bottom"]].set_color(plot.MUTED)
    curve.tick_params(color=plot.MUTED, labelcolor=plot.INK)
    curve.grid(axis="y", color=plot.GRID)
    figure.savefig(path, dpi=110)


def check_output(path: Path) -> bool:
    """Returns True if the picture can be written; checks this before the training."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        print("no picture will be drawn without matplotlib: pip install matplotlib")
        return False
    kinds = (".png", ".pdf", ".svg")
    if path.suffix not in kinds:
        raise UserError(f"--output {path}: must end in {', '.join(kinds)}")
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    if not existed:
        path.unlink()
    return True


# --- the program


def find_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--device {name}: torch finds no CUDA device here; --device cpu runs everywhere")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda") or (device.index or 0) >= max(torch.cuda.device_count(), 1):
        raise UserError(f"--device {name}: must be cpu, cuda, or an existing device such as cuda:0")
    return device


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, but is {number}")
    return number


def run(options: argparse.Namespace) -> None:
    device = find_device(options.device)
    if device.type == "cpu":
        # The layers are small: on busy cores, several threads take ten times as long to synchronise.
        torch.set_num_threads(1)
    digits, held_out = load_digits(device)
    has_picture = check_output(options.output)
    torch.manual_seed(options.seed)
    net = Reader().to(device)
    weights = sum(parameter.numel() for parameter in net.parameters())
    print(f"spikeforge {spikeforge.__version__}, torch {torch.__version__}, {device}")
    print(f"{len(digits[1])} digits to train with, {len(held_out[1])} held out; {weights:,} weights, {STEPS} steps")
    reached = train(net, digits, held_out, options.epochs)

    with torch.no_grad(), spikeforge.count(net) as counted:
        net(held_out[0])
    print(f"\nall {len(held_out[1])} held-out digits:\n{counted.table()}")
    print(f"\naccuracy on the held-out digits: {reached[-1]:.2%}")
    if has_picture:
        draw(net, held_out[0][0], reached, options.output)
        print(f"the spikes of one digit: {options.output}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spikeforge.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=positive, default=20, help="default: 20")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1; default: a GPU if there is one")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the order of digits; default: 0")
    parser.add_argument("--output", type=Path, default=Path("digits.png"), help="picture to write; default: digits.png")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except UserError as error:
        print(f"python -m spikeforge.demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
