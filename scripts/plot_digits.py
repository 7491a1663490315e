#!/usr/bin/env python3
"""Draws the results of examples/digits: learning_curve.png, and raster.png with the spikes of one image."""

import argparse
import csv
import json
import pathlib
import sys

INK = "#22262e"
MUTED = "#7a8190"
GRID = "#e6e8ee"
TRAIN = "#8a94a6"
TEST = "#d1495b"
LAYERS = ["#2e86ab", "#3d9970", "#c97b2a", TEST]
SHOWN = 128  # neurons of a layer in the raster, at most

STYLE = {
    "figure.facecolor": "white", "font.size": 11, "text.color": INK,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 12, "axes.titlelocation": "left", "axes.titlepad": 8,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "legend.frameon": False,
}


def read_learning_curve(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def draw_learning_curve(plt, curve, path):
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.grid(axis="y", color=GRID)
        axes.set_axisbelow(True)
        axes.xaxis.get_major_locator().set_params(integer=True)

    left.set_title("Loss")
    left.set_yscale("log")
    left.yaxis.set_major_locator(plt.matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_locator(plt.NullLocator())
    left.plot(curve["epoch"], curve["train_loss"], color=TRAIN, label="training, digits moved about")
    left.plot(curve["epoch"], curve["test_loss"], color=TEST, label="held out")
    left.legend()

    right.set_title("Accuracy")
    right.plot(curve["epoch"], [100 * a for a in curve["train_accuracy"]], color=TRAIN)
    right.plot(curve["epoch"], [100 * a for a in curve["test_accuracy"]], color=TEST)
    right.set_ylim(max(0, 100 * min(curve["test_accuracy"][1:] or [0]) - 5), 100.5)
    right.yaxis.set_major_formatter("{x:g} %")
    last = 100 * curve["test_accuracy"][-1]
    right.annotate(f"{last:.1f} %", (curve["epoch"][-1], last), xytext=(0, -18), textcoords="offset points",
                   ha="right", color=TEST, weight="bold")
    figure.savefig(path, dpi=110)


def draw_image(axes, raster):
    axes.imshow(raster["image"], cmap="Greys", vmin=0, vmax=1)
    axes.set_title("Input")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("8 × 8 pixels,\nthe same at every step", color=MUTED, fontsize=8)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(GRID)


def draw_layer(axes, layer, steps, color):
    """Draws a row per neuron, a column per step, and a mark per spike."""
    shown = min(SHOWN, layer["neurons"])
    apart = layer["neurons"] // shown
    row_of = {i * apart + i % apart: i for i in range(shown)}  # other pixels in each feature map
    spikes = [(step, row_of[neuron]) for step, neuron in layer["spikes"] if neuron in row_of]
    rate = len(layer["spikes"]) / (layer["neurons"] * steps)

    axes.barh([row for _, row in spikes], 0.86, height=1.1 if shown > 10 else 0.7, left=[step + 0.07 for step, _ in spikes], color=color)
    axes.set_xlim(0, steps)
    axes.set_ylim(-0.5, shown - 0.5)
    axes.set_title(layer["name"])
    axes.set_title(f"{100 * rate:.0f} % fire", loc="right", color=MUTED, fontsize=9)
    axes.set_xlabel("step")
    ticks = range(0, steps, max(1, steps // 4))
    axes.set_xticks([tick + 0.5 for tick in ticks], ticks)
    axes.set_yticks([])
    axes.set_ylabel(f"{shown} of {layer['neurons']} neurons" if shown < layer["neurons"] else f"{shown} neurons", color=MUTED)


def draw_counts(axes, raster):
    counts = raster["counts"]
    read = counts.index(max(counts))
    axes.barh(range(10), counts, height=0.7, color=[TEST if i == read else TRAIN for i in range(10)])
    axes.set_ylim(-0.5, 9.5)
    axes.set_xlim(0, raster["steps"])
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=4)
    axes.set_yticks(range(10))
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"It reads a {read}", weight="bold", color=TEST)
    axes.set_xlabel("spikes of each class")


def draw_raster(plt, raster, path):
    layers = raster["layers"]
    figure, axes = plt.subplots(1, len(layers) + 2, figsize=(11, 3.8), layout="constrained",
                                width_ratios=[1.1] + [1.25] * len(layers) + [1.2])
    draw_image(axes[0], raster)
    for i, layer in enumerate(layers):
        draw_layer(axes[i + 1], layer, raster["steps"], LAYERS[i % len(LAYERS)])
    draw_counts(axes[-1], raster)
    figure.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="the --output of digits")
    folder = parser.parse_args().folder
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        curve = read_learning_curve(folder / "learning_curve.csv")
        raster = json.loads((folder / "raster.json").read_text())
    except ImportError as error:
        sys.exit(f"plot_digits.py: {error} (scripts/setup installs it)")
    except OSError as error:
        print(f"plot_digits.py: cannot read {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)

    plt.rcParams.update(STYLE)
    draw_learning_curve(plt, curve, folder / "learning_curve.png")
    draw_raster(plt, raster, folder / "raster.png")


if __name__ == "__main__":
    main()
