#!/usr/bin/env python3
"""Draws the files of a spikeforge::nn Monitor: a folder of .npy files, or a CSV table. Recordings of zeros and ones are
drawn as spike rasters, others as traces over time."""

import argparse
import csv
import pathlib
import re
import sys

INK = "#22262e"
MUTED = "#7a8190"
GRID = "#e6e8ee"
COLOURS = ["#2e86ab", "#3d9970", "#c97b2a", "#d1495b", "#6b5b95", "#8a94a6"]
SHOWN = 128  # neurons of a raster, at most
TRACES = 6  # of one recording, at most

STYLE = {
    "figure.facecolor": "white", "font.size": 11, "text.color": INK,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 12, "axes.titlelocation": "left", "axes.titlepad": 8,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "legend.frameon": False,
}


def read_folder(folder):
    import numpy

    files = sorted(folder.glob("*.npy"))
    return {file.stem: (array := numpy.load(file)).reshape(len(array), -1) for file in files}


def read_table(path):
    import numpy

    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    if not header or header[0] != "step":
        raise ValueError("the first column must be 'step'")
    columns = {}
    for index, title in enumerate(header[1:], start=1):
        name = re.fullmatch(r"(.+)\[\d+\]", title)
        if not name:
            raise ValueError(f"the column {title!r} must be a name and an index, such as lif.v[0]")
        columns.setdefault(name[1], []).append([float(row[index]) for row in rows])
    return {name: numpy.array(values).T for name, values in columns.items()}


def is_raster(values):
    return values.size > 0 and ((values == 0) | (values == 1)).all()


def draw(plt, recordings, path):
    rasters = {name: is_raster(values) for name, values in recordings.items()}
    heights = [1.2 + min(SHOWN, values.shape[1]) / 64 if rasters[name] else 1.8 for name, values in recordings.items()]
    figure, axes = plt.subplots(len(recordings), 1, figsize=(9, 0.6 + sum(heights)), height_ratios=heights, sharex=True,
                                squeeze=False, layout="constrained")
    for number, (ax, (name, values)) in enumerate(zip(axes[:, 0], recordings.items())):
        colour = COLOURS[number % len(COLOURS)]
        shown = SHOWN if rasters[name] else TRACES
        left_out = f"   (the first {shown} of {values.shape[1]})" if values.shape[1] > shown else ""
        ax.set_title(name + left_out)
        if rasters[name]:
            steps, neurons = values[:, :shown].nonzero()
            ax.scatter(steps, neurons, s=5, marker="|", color=colour)
            ax.set_ylim(-0.5, min(shown, values.shape[1]) - 0.5)
            ax.set_ylabel("neuron")
        else:
            for k in range(min(shown, values.shape[1])):
                ax.plot(values[:, k], color=colour, linewidth=1, alpha=1 - 0.12 * k)
            ax.grid(axis="y", color=GRID)
            ax.set_axisbelow(True)
        ax.yaxis.get_major_locator().set_params(nbins=5)
    axes[-1, 0].set_xlabel("step")
    axes[-1, 0].xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=pathlib.Path, help="folder of .npy files, or a .csv file")
    parser.add_argument("--output", type=pathlib.Path, help="PNG to write (default: beside the recording)")
    arguments = parser.parse_args()

    source = arguments.recording
    output = arguments.output or (source / "recording.png" if source.is_dir() else source.with_suffix(".png"))
    try:
        recordings = read_folder(source) if source.is_dir() else read_table(source)
    except (OSError, ValueError) as error:
        sys.exit(f"plot_monitor: cannot read {source}: {error}")
    if not recordings:
        sys.exit(f"plot_monitor: there are no recordings in {source}")

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        draw(plt, recordings, output)
    print(output)


if __name__ == "__main__":
    main()
