#!/usr/bin/env python3
"""Draws docs/surrogates.png: the derivative and the primitive of every surrogate with its defaults. Needs matplotlib."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import torch  # noqa: E402

from spikeforge import surrogate  # noqa: E402

COLUMNS = 4


def draw(path):
    kinds = list(surrogate.SURROGATES.values())
    rows = -(-len(kinds) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(2.6 * COLUMNS, 1.7 * rows), sharex=True, layout="constrained")
    x = torch.linspace(-2, 2, 801, dtype=torch.float64)
    for axis, kind in zip(axes.flat, kinds):
        made = kind()
        axis.plot(x, made.primitive(x), color="0.7", linewidth=1.2, label="primitive")
        axis.plot(x, made.gradient(x), color="tab:blue", linewidth=1.5, label="derivative")
        axis.axvline(0, color="0.85", linewidth=0.8, zorder=0)
        numbers = ", ".join(f"{number:g}" for number in made.args)
        axis.set_title(f"{kind.__name__}({numbers})", fontsize=8)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(kinds):]:
        axis.set_axis_off()
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="lower right", fontsize=8, frameon=False)
    figure.supxlabel("x = H - v_threshold", fontsize=9)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "docs" / "surrogates.png")
