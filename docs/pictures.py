"""Draws the pictures of the pages in this folder: python docs/pictures.py. Needs matplotlib."""

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import torch  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402

from spikeforge import surrogate  # noqa: E402

DOCS = Path(__file__).resolve().parent
BLUE, GREY, RED = "tab:blue", "0.35", "tab:red"


def save(figure, name):
    figure.savefig(DOCS / name, dpi=110, facecolor="white", bbox_inches="tight")
    plt.close(figure)


def canvas(width, height):
    figure, axis = plt.subplots(figsize=(width, height))
    axis.set(xlim=(0, 10 * width), ylim=(0, 10 * height), aspect="equal")
    axis.set_axis_off()
    return figure, axis


def box(axis, x, y, text, width=14, height=7, color="#e8f0fa"):
    axis.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=1", fc=color, ec=GREY))
    axis.text(x, y, text, ha="center", va="center", fontsize=9)


def arrow(axis, start, end, text="", shift=(0, 1.5), bend=0.0, color=GREY):
    style = {"arrowstyle": "-|>", "color": color, "connectionstyle": f"arc3,rad={bend}", "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", end, start, arrowprops=style)
    middle = [(a + b) / 2 + s for a, b, s in zip(start, end, shift, strict=True)]
    axis.text(*middle, text, ha="center", va="bottom", fontsize=8, color=color)


def draw_layer():
    figure, axis = canvas(9, 2.4)
    axis.add_patch(FancyBboxPatch((27, 3), 49, 18, boxstyle="round,pad=0,rounding_size=1", fc="0.97", ec=GREY, ls="--"))
    axis.text(51.5, 19.3, "one operator: a loop over T steps", ha="center", va="center", fontsize=9, color=GREY)
    box(axis, 10, 12, "convolution\nor linear", 14)
    box(axis, 36, 12, "batch norm\n(optional)", 15)
    box(axis, 53, 12, "charge, fire,\nreset", 13, color="#fdebd8")
    box(axis, 69, 12, "residual\n(optional)", 11)
    arrow(axis, (17, 12), (28.5, 12), "x [T, B, C]", shift=(-0.6, 1))
    arrow(axis, (43.5, 12), (46.5, 12))
    arrow(axis, (59.5, 12), (63.5, 12))
    arrow(axis, (74.5, 12), (87, 12), "spikes\n[T, B, C]", shift=(1.5, 1))
    arrow(axis, (55.5, 8.5), (50.5, 8.5), bend=-0.9, color=BLUE)
    axis.text(53, 4, "v: step t to t + 1", ha="center", fontsize=8, color=BLUE)
    save(figure, "layer.png")


def draw_spike():
    x = torch.linspace(-2, 2, 401)
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.3), sharex=True, layout="constrained")
    axes[0].step(x, (x >= 0).float(), color=GREY, label="spike (forward)")
    axes[1].axhline(0, color=GREY, label="derivative of the spike")
    for kind, color in ((surrogate.Sigmoid(), BLUE), (surrogate.ATan(), "tab:orange"), (surrogate.FastSigmoid(), "tab:green")):
        if not isinstance(kind, surrogate.FastSigmoid):
            axes[0].plot(x, kind.primitive(x), color=color, lw=1, label=f"primitive of {kind.name}")
        axes[1].plot(x, kind.gradient(x), color=color, label=kind.name)
    for axis in axes:
        axis.set_xlabel("H - v_threshold")
        axis.legend(fontsize=7, frameon=False, loc="upper left")
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, "spike.png")


def draw_delay():
    figure, axes = plt.subplots(2, 1, figsize=(7, 2.2), sharex=True, layout="constrained")
    spikes, delay = [3, 9, 10, 17], 5.4
    axes[0].vlines(spikes, 0, 1, color=GREY, lw=2)
    axes[0].set_ylabel("input", rotation=0, ha="right", va="center")
    low = int(delay)
    for step in spikes:
        axes[1].vlines([step + low, step + low + 1], 0, [1 - (delay - low), delay - low], color=BLUE, lw=2)
    axes[0].annotate("", (3 + delay, 0.5), (3, 0.5), arrowprops={"arrowstyle": "->", "color": RED})
    axes[0].text(3 + delay / 2, 0.56, "d = 5.4", ha="center", color=RED, fontsize=8)
    axes[1].set_ylabel("delayed,\n\"linear\"", rotation=0, ha="right", va="center")
    axes[1].set_xlabel("step")
    for axis in axes:
        axis.set(ylim=(0, 1.1), xlim=(0, 25), yticks=[])
        axis.spines[["top", "right", "left"]].set_visible(False)
    save(figure, "delay.png")


def draw_recurrent():
    figure, axis = canvas(7, 2.2)
    box(axis, 9, 13, "x [t]", 10)
    box(axis, 26, 13, "+", 5, 5)
    box(axis, 43, 13, "neuron", 13, color="#fdebd8")
    box(axis, 41, 4, "w, delay of d steps", 22, 5)
    arrow(axis, (14, 13), (23.5, 13))
    arrow(axis, (28.5, 13), (36.5, 13), "current [t]", shift=(0, 1))
    arrow(axis, (49.5, 13), (66, 13), "s [t]", shift=(0, 1))
    axis.plot([57, 57, 52], [13, 4, 4], color=BLUE, lw=1)
    axis.plot([30, 26], [4, 4], color=BLUE, lw=1)
    arrow(axis, (26, 4), (26, 10.5), color=BLUE)
    axis.text(15, 5.5, "s [t - d] @ w", ha="center", fontsize=8, color=BLUE)
    save(figure, "recurrent.png")


def draw_network():
    page = (DOCS / "networks.md").read_text()
    program = re.search(r"<!-- test: networks in Python -->\n```python\n(.*?)```", page, re.DOTALL)[1]
    names = {}
    torch.manual_seed(0)
    exec(compile(program, "docs/networks.md", "exec"), names)
    figure, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
    for population, color, first in ((names["excitatory"], BLUE, 0), (names["inhibitory"], RED, 800)):
        steps, neurons = names["recording"].of(population)
        axis.plot(steps.cpu(), neurons.cpu() + first, ",", color=color, ms=1)
    axis.set(xlabel="step", ylabel="neuron", xlim=(0, 1000), ylim=(0, 1000))
    axis.text(1005, 400, "excitatory", color=BLUE, fontsize=8, clip_on=False)
    axis.text(1005, 900, "inhibitory", color=RED, fontsize=8, clip_on=False)
    axis.spines[["top", "right"]].set_visible(False)
    save(figure, "network.png")


if __name__ == "__main__":
    for draw in (draw_layer, draw_spike, draw_delay, draw_recurrent, draw_network):
        draw()
