"""Plots with matplotlib: spikes and states over time as rasters, traces and rates, and the costs of layers.

Data is ``[T, N]``, or ``[T, B, ...]`` as returned by modules and :class:`~spikeforge.Monitor`, of which `sample`
chooses one element of the batch: a tensor on any device, with or without gradients, or an array. Each function draws
into `ax`, or into new axes, and returns them for further changes.

>>> spikeforge.plot.raster(monitor["hidden.out"], title="hidden").figure.savefig("raster.png")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLORS", "costs", "raster", "rates", "traces"]

COLORS = ("#2e86ab", "#d1495b", "#3d9970", "#c97b2a", "#6b5b95", "#8a94a6")
INK, MUTED, GRID = "#22262e", "#7a8190", "#e6e8ee"


def raster(
    spikes: Any, ax: Axes | None = None, *, sample: int | None = 0, neurons: int | Sequence[int] | None = 128,
    dt: float | None = None, color: str = COLORS[0], title: str | None = None,
) -> Axes:  # fmt: skip
    """Draws a spike raster: a mark for each nonzero value of a neuron and step. The title shows the rate.

    Args:
        spikes: ``[T, N]``, or ``[T, B, ...]``.
        ax: the axes to draw into; None creates a figure.
        sample: the index in the batch; None for data without a batch, ``[T, ...]``.
        neurons: the number of neurons to draw at most, spread evenly over all; or a list of their indices; None for
            all.
        dt: milliseconds per step; None shows steps.
        color: the color of the marks.
        title: the title, on the left.

    Raises:
        ValueError, TypeError: if the data is not a sequence, a sample or neuron does not exist, or dt is not above 0.
        ImportError: without matplotlib.
    """
    from_matplotlib = _matplotlib("collections")
    _check_dt("raster", dt)
    values = _sequence("raster", "spikes", spikes, sample)
    chosen = _chosen("raster", neurons, values.shape[1])
    fired = values[:, chosen] != 0
    ax = _axes(ax, (6, 1.2 + 2.2 * min(1, (8 + len(chosen)) / 72)))

    width = dt or 1
    at, row = (index.double() for index in fired.nonzero(as_tuple=True))
    left, right, low, high = at * width + 0.1 * width, at * width + 0.9 * width, row - 0.42, row + 0.42
    corners = torch.stack([left, low, left, high, right, high, right, low], 1).view(-1, 4, 2).numpy()
    # The edge keeps a mark visible if a step is narrower than a pixel.
    marks = from_matplotlib.PolyCollection(corners, facecolor=color, edgecolor=color, linewidth=0.4)
    ax.add_collection(marks, autolim=False)

    _tidy(ax, title)
    _time_axis(ax, len(values), dt)
    ax.set_ylim(-0.5, max(len(chosen), 1) - 0.5)
    ax.yaxis.get_major_locator().set_params(integer=True, nbins=5)  # type: ignore[call-arg]
    all_neurons = chosen == list(range(len(chosen)))
    if not all_neurons:
        ax.yaxis.set_major_formatter(lambda at, _: str(chosen[int(at)]) if 0 <= at < len(chosen) else "")
    of = f" ({len(chosen)} of {values.shape[1]})" if len(chosen) < values.shape[1] else ""
    ax.set_ylabel("neuron" + of)
    if values.numel():
        rate = float((values != 0).double().mean())
        text = f"{_short(100 * rate)} % fire" if dt is None else f"{_short(1000 * rate / dt)} Hz"
        ax.set_title(text, loc="right", color=MUTED, fontsize="small")
    return ax


def traces(
    values: Any, ax: Axes | None = None, *, spikes: Any = None, threshold: float | None = None,
    sample: int | None = 0, neurons: int | Sequence[int] | None = 3, dt: float | None = None,
    title: str | None = None, label: str = "v",
) -> Axes:  # fmt: skip
    """Draws states over time, a line per neuron.

    Args:
        values: ``[T, N]``, or ``[T, B, ...]``.
        ax: the axes to draw into; None creates a figure.
        spikes: spikes of the same shape, drawn as marks above the lines.
        threshold: the height of a dashed line.
        sample, dt, title: see :func:`raster`.
        neurons: the number of neurons to draw, from the first; or a list of their indices; None for all.
        label: the label of the vertical axis.

    Raises:
        ValueError, TypeError, ImportError: as :func:`raster`, and if spikes have another shape.
    """
    _matplotlib("collections")
    _check_dt("traces", dt)
    drawn = _sequence("traces", "values", values, sample)
    fired = None if spikes is None else _sequence("traces", "spikes", spikes, sample)
    if fired is not None and fired.shape != drawn.shape:
        raise ValueError(
            f"traces: spikes must have the shape of values, {list(torch.as_tensor(values).shape)}, but have "
            f"{list(torch.as_tensor(spikes).shape)}"
        )
    chosen = _chosen("traces", neurons, drawn.shape[1], first=True)
    ax = _axes(ax, (6, 2.4))
    width = dt or 1
    time = (torch.arange(len(drawn), device="cpu").double() + 0.5) * width
    for i, neuron in enumerate(chosen):
        color = COLORS[i % len(COLORS)]
        ax.plot(time.numpy(), drawn[:, neuron].numpy(), color=color, linewidth=1.2, label=f"neuron {neuron}")
        if fired is not None and fired[:, neuron].any():
            at = time[fired[:, neuron] != 0].numpy()
            # Above the lines, one row per neuron.
            ax.plot(
                at, [1.03 + 0.05 * i] * len(at), "|", color=color, markersize=5, clip_on=False,
                transform=ax.get_xaxis_transform(),
            )  # fmt: skip
    if threshold is not None:
        ax.axhline(threshold, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    _tidy(ax, title, pad=8 if fired is None else 10 + 6 * len(chosen))
    _time_axis(ax, len(drawn), dt)
    ax.grid(axis="y", color=GRID)
    ax.set_axisbelow(True)
    ax.set_ylabel(label)
    if 1 < len(chosen) <= len(COLORS):
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small", handlelength=1.2)
    return ax


def rates(
    spikes: Any, ax: Axes | None = None, *, window: int = 1, dt: float | None = None, title: str | None = None
) -> Axes:
    """Draws firing rates over time, averaged over neurons and batch: a line per population.

    Args:
        spikes: ``[T, ...]``; or several by name, such as ``dict(monitor.items())``.
        ax: the axes to draw into; None creates a figure.
        window: the steps of a moving average, truncated at the ends.
        dt: milliseconds per step, for rates in Hz; None shows per cent of the neurons in a step.
        title: the title, on the left.

    Raises:
        ValueError, TypeError, ImportError: as :func:`raster`, and if window is below 1.
    """
    _matplotlib("collections")
    _check_dt("rates", dt)
    if window < 1:
        raise ValueError(f"rates: window must be 1 or more steps, but is {window}")
    is_named = isinstance(spikes, Mapping) or hasattr(spikes, "keys")
    populations = {name: spikes[name] for name in list(spikes.keys())} if is_named else {"": spikes}
    ax = _axes(ax, (6, 2.4))
    width, longest = dt or 1, 0
    for i, (name, given) in enumerate(populations.items()):
        values = _sequence("rates", f"spikes of {name}" if name else "spikes", given, None)
        share = _smooth((values != 0).double().mean(1), window) * (100 if dt is None else 1000 / dt)
        time = (torch.arange(len(values), device="cpu").double() + 0.5) * width
        ax.plot(time.numpy(), share.numpy(), color=COLORS[i % len(COLORS)], linewidth=1.6, label=name)
        longest = max(longest, len(values))
    _tidy(ax, title)
    _time_axis(ax, longest, dt)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("fire per step" if dt is None else "rate (Hz)")
    if dt is None:
        ax.yaxis.set_major_formatter("{x:g} %")
    ax.grid(axis="y", color=GRID)
    ax.set_axisbelow(True)
    if is_named:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small", handlelength=1.2)
    return ax


def costs(costs: Any, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draws the costs of layers: a horizontal bar per layer.

    Args:
        costs: the result of :func:`spikeforge.count`, for operations; or of its ``energy()``, for joules.
        ax: the axes to draw into; None creates a figure.
        title: the title, on the left.

    Raises:
        TypeError, ImportError: for another argument, and without matplotlib.
    """
    _matplotlib("collections")
    kinds: dict[str, tuple[tuple[str, str], str]] = {
        "accumulates": (("accumulates", "multiply_accumulates"), "operations"), "compute": (("compute", "memory"), "J"),
    }  # fmt: skip
    found = [kinds[name] for name in kinds if hasattr(costs, name)]
    if not found:
        kind = type(costs).__name__
        raise TypeError(f"costs: costs must be a Count of spikeforge.count, or its energy(), but is {kind}")
    (names, unit), *_ = found
    layers = [layer for layer in costs.layers if any(getattr(layer, name) for name in names)]
    ax = _axes(ax, (6, 1 + 0.3 * max(len(layers), 1)))
    left = [0.0] * len(layers)
    for name, color in zip(names, COLORS):
        widths = [float(getattr(layer, name) or 0) for layer in layers]
        ax.barh(range(len(layers)), widths, 0.7, left, color=color, label=name.replace("_accumulates", "-accumulates"))
        left = [a + b for a, b in zip(left, widths)]
    _tidy(ax, title)
    ax.set_yticks(range(len(layers)), [layer.name or layer.kind for layer in layers])
    ax.invert_yaxis()
    ax.xaxis.set_major_formatter(_matplotlib("ticker").EngFormatter(unit if unit == "J" else ""))
    ax.set_xlabel("energy" if unit == "J" else unit)
    ax.grid(axis="x", color=GRID)
    ax.set_axisbelow(True)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small", handlelength=1.2)
    return ax


# --- data


def _sequence(function: str, name: str, given: Any, sample: int | None) -> Tensor:
    """Converts data to ``[T, N]`` on the CPU."""
    try:
        values = torch.as_tensor(given, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        kind = type(given).__name__
        raise TypeError(f"{function}: {name} must be a tensor or array [T, ...], but is a {kind}") from None
    if values.dim() == 0:
        raise ValueError(f"{function}: {name} must be [T, N] or [T, B, ...], time first, but is 0-dimensional")
    values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    if values.dim() > 2 and sample is not None:
        if not -values.shape[1] <= sample < values.shape[1]:
            raise ValueError(
                f"{function}: sample must be below {values.shape[1]}, the batch of {name} {list(values.shape)}, but is "
                f"{sample}; pass sample=None for data without a batch"
            )
        values = values[:, sample]
    return values.flatten(1) if values.dim() > 1 else values[:, None]


def _chosen(function: str, neurons: int | Sequence[int] | None, count: int, *, first: bool = False) -> list[int]:
    if neurons is None:
        return list(range(count))
    if isinstance(neurons, int):
        shown = max(min(neurons, count), 0)
        if first or not shown:
            return list(range(shown))
        apart = count // shown
        return [i * count // shown + i % apart for i in range(shown)]  # not always the same pixel of feature maps
    numbers = [int(number) for number in neurons]
    for number in numbers:
        if not 0 <= number < count:
            raise ValueError(f"{function}: neurons must be indices below {count}, but one is {number}")
    return numbers


def _smooth(values: Tensor, window: int) -> Tensor:
    """Returns moving means over a window around each step."""
    sums = torch.cat((values.new_zeros(1), values.cumsum(0)))
    at = torch.arange(len(values), device="cpu")
    begin, end = (at - (window - 1) // 2).clamp(min=0), (at + window // 2 + 1).clamp(max=len(values))
    return (sums[end] - sums[begin]) / (end - begin)


def _check_dt(function: str, dt: float | None) -> None:
    if dt is not None and not dt > 0:
        raise ValueError(f"{function}: dt must be milliseconds per step, above 0, or None, but is {dt}")


# --- style


def _matplotlib(module: str) -> Any:
    try:
        import importlib

        return importlib.import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise ImportError(f"spikeforge.plot needs matplotlib: pip install matplotlib ({error})") from None


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def _tidy(ax: Axes, title: str | None, pad: float = 8) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(color=MUTED, labelcolor=INK)
    if title is not None:
        ax.set_title(title, loc="left", color=INK, pad=pad)


def _time_axis(ax: Axes, steps: int, dt: float | None) -> None:
    ax.set_xlim(0, max(steps, 1) * (dt or 1))
    ax.set_xlabel("step" if dt is None else "time (ms)")
    ax.xaxis.get_major_locator().set_params(integer=dt is None)  # type: ignore[call-arg]
    if dt is None and steps <= 24:  # labels are at the middle of steps
        ticks = range(0, steps, 1 if steps <= 8 else 4)
        ax.set_xticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 9.5 else f"{number:.2g}"
