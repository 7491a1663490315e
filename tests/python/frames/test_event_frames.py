"""event_frames and spikeforge.data: the oracle is a loop over the events in Python, with exact fractions; and tonic."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from conftest import SEED
from loops import refused
from torch.library import opcheck

from spikeforge import data

ops = torch.ops.spikeforge
VALUES = ["count", "binary", "normalised", "bits", "voxel", "surface"]
TYPES = [torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.int64]


def reference(events, size, steps, window=None, bins="time", values="count", tau=1.0, crop=None, origin=None, flip=None,
              downsample=1, ignored=None, keep=None, start=None):
    """Frames [steps, B, channels, height, width] in float64; for "bits" those of "binary"."""
    channels, height, width = size
    crop = crop or (height, width)
    out_size = [-(-n // downsample) for n in crop]
    sums = {}  # of each cell: a Fraction, or the times of its events
    t, x, offsets = events.t.tolist(), events.x.tolist(), events.offsets.tolist()
    y = [0] * len(t) if events.y is None else events.y.tolist()
    p = [0] * len(t) if events.p is None else [int(value) for value in events.p.tolist()]
    ends = {}
    for b, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        if begin == end:
            continue
        first = t[begin] if start is None else int(start[b])
        span = t[end - 1] - first
        if bins == "count":
            first, length = 0, Fraction(window or max((end - begin) // steps, 1))
        elif window is None and values == "voxel":
            length = Fraction(max(span, 1), steps - 1) if steps > 1 else Fraction(2**70)
        else:
            length = Fraction(window or max(span // steps, 1))
        ends[b] = first, length
        for i in range(begin, end):
            position = ((i - begin if bins == "count" else t[i]) - first) / length
            column, row = x[i], y[i]
            if keep is not None and not keep[i] or position < 0:
                continue
            if ignored is not None and (ignored[b] if ignored.dim() == 3 else ignored)[row, column]:
                continue
            corner = [(n - m) // 2 for n, m in zip((height, width), crop)] if origin is None else origin[b].tolist()
            row, column = row - corner[0], column - corner[1]
            if not (0 <= row < crop[0] and 0 <= column < crop[1]):
                continue
            if flip is not None:
                row, column = (crop[0] - 1 - row if flip[b, 0] else row), (crop[1] - 1 - column if flip[b, 1] else column)
            cell = (b, int(channels == 2 and p[i] > 0), row // downsample, column // downsample)
            step = math.floor(position)
            if values == "voxel":
                sign = -1 if channels == 1 and events.p is not None and p[i] <= 0 else 1
                for k in (step, step + 1):
                    if k < steps and 1 - abs(k - position) > 0:
                        sums[k, *cell] = sums.get((k, *cell), 0) + sign * (1 - abs(k - position))
            elif step < steps:
                sums.setdefault((step, *cell), []).append(t[i])
    frames = torch.zeros(steps, len(offsets) - 1, channels, *out_size, dtype=torch.float64)
    for (step, b, *cell), of in sums.items():
        index = (b, *cell)
        if values == "voxel":
            frames[step, *index] = float(of)
        elif values in ("count", "normalised"):
            frames[step, *index] = len(of)
        elif values in ("binary", "bits"):
            frames[step, *index] = 1
    if values == "surface":
        for (step, b, *cell), times in sorted(sums.items()):
            first, length = ends[b]
            for k in range(step, steps):  # later events of the pixel replace this one
                frames[k, b, *cell] = math.exp(-float(first + (k + 1) * length - max(times)) / tau)
    if values == "normalised":
        frames /= frames.amax((2, 3, 4), keepdim=True).clamp(min=1)
    return frames


def random_call(rng, generator):
    """Returns events and options: samples without events and with one, equal times, and all borders of the sensor."""
    channels, height, width = rng.choice([1, 2]), rng.randint(1, 9), rng.choice([1, 5, 31, 33, 70])
    counts = [rng.choice([0, 1, 2, 30, 700]) for _ in range(rng.randint(0, 5))]
    n, span = sum(counts), rng.choice([1, 10, 1000, 100_000])
    draw = lambda most, size, dtype: torch.randint(0, most, size, generator=generator).to(dtype)
    t = draw(span, (n,), torch.int64) + rng.choice([0, -50, 1 << 40])
    offsets = torch.tensor([0, *counts]).cumsum(0)
    column = lambda most: draw(most, (n,), rng.choice(TYPES[: 7 if most < 100 else 2]))
    polarity = rng.choice([None, draw(2, (n,), torch.bool), 2 * draw(2, (n,), torch.int8) - 1])
    y = None if height == 1 and rng.random() < 0.5 else column(height)
    events = data.Events(t, column(width), offsets, y, polarity).sorted()
    options = dict(steps=rng.choice([1, 2, 7, 150]),  # 150: a GPU computes whole frames
                    values=rng.choice(VALUES), tau=rng.choice([1.0, 300.0]))
    if options["values"] not in ("voxel", "surface") and rng.random() < 0.3:
        options["bins"] = "count"
    elif rng.random() < 0.5:
        options["start"] = draw(span, (len(counts),), torch.int64) - span // 4
        if rng.random() < 0.5 and n:  # times need no order
            events = data.Events(events.t[torch.randperm(n, generator=generator)], events.x, offsets, y, polarity)
    if "start" in options or rng.random() < 0.5:
        options["window"] = rng.choice([1, 7, 200, 30_000])
    if rng.random() < 0.5:
        options["crop"] = (rng.randint(1, height), rng.randint(1, width))
        if rng.random() < 0.7:
            options["origin"] = draw(9, (len(counts), 2), torch.int64) - 3
    if rng.random() < 0.3:
        options["flip"] = draw(2, (len(counts), 2), torch.bool)
    if rng.random() < 0.3:
        options["downsample"] = rng.choice([2, 3])
        options["downsample"] = min(options["downsample"], max(height, width))
    if rng.random() < 0.3:
        options["ignored"] = draw(3, rng.choice([(height, width), (len(counts), height, width)]), torch.int8) == 0
    if rng.random() < 0.3:
        options["keep"] = draw(3, (n,), torch.int8) > 0
    return events, (channels, height, width), options


def on(device, value):
    return value.to(device) if isinstance(value, torch.Tensor) else value


def test_frames_of_random_ragged_batches_equal_a_loop_over_the_events(device):
    rng, generator = random.Random(SEED), torch.Generator().manual_seed(SEED)
    seen = set()
    for number in range(200):
        events, size, options = random_call(rng, generator)
        on_device = events.to(device)
        arguments = dict(options, **{name: on(device, value) for name, value in options.items()})
        dtype = rng.choice([None, torch.float64, torch.float16])
        y = ops.event_frames(
            on_device.t, on_device.x, on_device.y, on_device.p, on_device.offsets, size=size, dtype=dtype, **arguments
        )
        expected = reference(events, size, **options)
        if options["values"] == "bits":
            y = ops.unpack_events(y, expected.shape[-1])
        assert y.shape == expected.shape and (y.dtype == (dtype or torch.float32) or options["values"] == "bits")
        tolerance = 1e-3 if y.dtype == torch.float16 else 1e-6
        torch.testing.assert_close(y.double().cpu(), expected, rtol=tolerance, atol=tolerance, msg=lambda m: f"{m}\n{number}: {size}, {options}")
        seen |= {options["values"]} if expected.any() else set()
    assert seen == set(VALUES)


def test_sums_have_the_same_bits_in_every_call_and_for_any_number_of_threads(device):
    n = 200_000
    t, x = torch.arange(n, device=device), torch.randint(0, 16, (n,), device=device)
    events = data.Events(t, x, torch.tensor([0, n // 3, n], device=device), p=x % 3 == 0)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results += [data.frames(events, (2, 1, 16), steps=10, values=values) for values in ("count", "voxel")]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(results, results[2:]))
    assert results[0].sum() > n - 40  # all but the last events of each sample


@pytest.mark.parametrize("steps", [2, 200])
def test_a_pixel_has_more_events_than_16_bits_count(steps, device):
    n = 70_000
    t = torch.arange(2 * n) // n * 100  # n at 0, and n at 100
    events = data.Events(t, torch.full_like(t, 5), torch.tensor([0, 2 * n])).to(device)
    frames = data.frames(events, (1, 1, 9), steps=steps, window=60)
    expected = torch.zeros(steps, 9)
    expected[:2, 5] = n
    assert torch.equal(frames.reshape(steps, 9).cpu(), expected)


def structured(n, rng, size=(34, 34)):
    events = np.zeros(n, dtype=[("x", np.int16), ("y", np.int16), ("t", np.int64), ("p", bool)])
    events["t"] = np.sort(rng.integers(100, 300_000, n))
    events["x"], events["y"], events["p"] = rng.integers(0, size[0], n), rng.integers(0, size[1], n), rng.integers(0, 2, n)
    return events


@pytest.mark.parametrize("sizes", [(3000, 500), (16,)])
def test_frames_equal_those_of_tonic(sizes):
    tonic = pytest.importorskip("tonic")
    rng = np.random.default_rng(SEED)
    samples = [structured(n, rng) for n in sizes]
    events, labels = data.collate([(sample, i) for i, sample in enumerate(samples)])
    assert labels.tolist() == list(range(len(sizes)))
    frame = lambda **options: [tonic.transforms.ToFrame(sensor_size=(34, 34, 2), **options)(sample) for sample in samples]
    for mine, theirs in [
        (dict(steps=8), frame(n_time_bins=8)), (dict(steps=8, bins="count"), frame(n_event_bins=8)),
        (dict(steps=300, window=1000), frame(time_window=1000)), (dict(steps=200, window=16, bins="count"), frame(event_count=16)),
    ]:  # fmt: skip
        ours = data.frames(events, (2, 34, 34), **mine)
        for b, expected in enumerate(theirs):  # a window that is not complete is left out by tonic
            np.testing.assert_array_equal(ours[: len(expected), b].numpy(), expected)


def test_a_voxel_grid_and_a_surface_equal_those_of_tonic():
    tonic = pytest.importorskip("tonic")
    events = structured(2000, np.random.default_rng(SEED))
    events["t"][0], events["t"][-1] = 0, 8 * 40_000
    batch = data.Events.of([events])
    ours = data.frames(batch, (1, 34, 34), steps=8, window=40_000, values="voxel", dtype=torch.float64)
    # tonic weights an event by its polarity, which must not be bool
    signed = events.astype([("x", np.int16), ("y", np.int16), ("t", np.int64), ("p", np.int8)])
    theirs = tonic.transforms.ToVoxelGrid(sensor_size=(34, 34, 2), n_time_bins=8)(signed)
    np.testing.assert_allclose(ours[:, 0].numpy(), theirs, atol=1e-9)
    ours = data.frames(batch, (2, 34, 34), steps=8, window=40_000, values="surface", tau=50_000.0, dtype=torch.float64)
    theirs = tonic.transforms.ToTimesurface(sensor_size=(34, 34, 2), dt=40_000, tau=50_000)(events.copy())
    np.testing.assert_allclose(ours[:, 0].numpy(), theirs, atol=1e-9)


# --- spike trains and augmentations


def trains(device="cpu"):
    t, x = torch.tensor([10, 11, 25, 30, 0, 59]), torch.tensor([0, 3, 3, 1, 2, 0])
    return data.Events(t, x, torch.tensor([0, 4, 4, 6])).to(device)


def test_spike_trains_are_binned_for_each_unit(device):
    spikes = data.spike_trains(trains(device), 4, steps=4, window=10)
    expected = torch.zeros(4, 3, 4)
    for step, sample, unit in [(0, 0, 0), (0, 0, 3), (1, 0, 3), (2, 0, 1), (0, 2, 2)]:
        expected[step, sample, unit] = 1
    assert torch.equal(spikes.cpu(), expected)
    assert trains(device).steps(10).tolist() == [3, 0, 6]
    assert data.Events.of([]).steps(10).tolist() == [] and len(data.Events.of([])) == 0


def test_units_are_shifted_by_the_origin_of_the_crop(device):
    origin = torch.tensor([[0, -1], [0, 0], [0, 1]], device=device)
    shifted = data.spike_trains(trains(device), 4, steps=4, window=10, crop=(1, 4), origin=origin)
    plain = data.spike_trains(trains(device), 4, steps=4, window=10)
    assert torch.equal(shifted[:, 0, 1:], plain[:, 0, :-1]) and not shifted[:, 0, 0].any()
    assert torch.equal(shifted[:, 2, :-1], plain[:, 2, 1:]) and not shifted[:, 2, -1].any()


def test_dropped_and_jittered_events(device):
    n = 20_000
    t = torch.arange(n, device=device)
    events = data.Events(t, torch.zeros_like(t), torch.tensor([0, n], device=device))
    generator = torch.Generator(device).manual_seed(SEED)
    total = lambda events, steps=2 * n, window=1: data.spike_trains(events, 1, steps=steps, window=window, values="count").sum().item()
    assert abs(total(events.drop(0.25, generator)) - 0.75 * n) < 5 * math.sqrt(n * 0.25 * 0.75)
    assert total(events.drop(0)) == n and total(events.drop(1)) == 0 and total(events.drop(0.5).drop(1)) == 0
    jittered = events.jitter(20.0, generator)
    moved = (jittered.t - t).double()
    assert abs(moved.mean()) < 1 and abs(moved.std() - 20) < 1 and jittered.start.tolist() == [0]
    assert n - 100 < total(jittered) <= n
    sorted_events = jittered.sorted()
    assert (sorted_events.t.diff() >= 0).all() and total(sorted_events) == total(jittered)


def test_the_steps_of_a_sample_end_with_its_latest_event_in_any_order(device):
    generator = torch.Generator().manual_seed(SEED)
    offsets = torch.tensor([0, 0, 400, 401, 401, 900, 900])
    t, start = torch.randint(-500, 9000, (900,), generator=generator), torch.tensor([7, 0, 9500, -3, 40, 9])
    events = data.Events(t, torch.zeros_like(t), offsets, start=start).to(device)
    of_sample = [t[begin:end].tolist() for begin, end in zip(offsets, offsets[1:])]
    expected = [max(((time - first) // 30 + 1 for time in times), default=0) for times, first in zip(of_sample, start.tolist())]
    assert events.steps(30).tolist() == [max(0, steps) for steps in expected]
    assert events.sorted().steps(30).tolist() == events.drop(1).steps(30).tolist() == events.steps(30).tolist()
    assert events.sample.tolist() == [i for i, times in enumerate(of_sample) for _ in times]
    jittered = data.Events(t.sort().values, t, torch.tensor([0, 900])).jitter(100.0, generator)
    assert jittered.steps(1).item() == jittered.t.max() - t.min() + 1
    empty = data.Events.of([{"t": [], "x": []}] * 2).to(device)
    assert empty.steps(5).tolist() == empty.jitter(1.0).steps(5).tolist() == [0, 0] and len(empty.sorted()) == 2


def test_samples_of_different_types_are_joined(device):
    types = [torch.int8, torch.bool, torch.uint16, torch.uint32, torch.uint64]
    t, x = torch.tensor([5, 2**31], dtype=torch.uint64, device=device), torch.tensor([0, 1], device=device)
    events = data.Events.of([{"t": t, "x": x.to(dtype)} for dtype in types])
    assert events.x.tolist() == [0, 1] * 5 and events.t.tolist() == [5, 2**31] * 5 and events.offsets.device == t.device
    assert data.spike_trains(events, 2, steps=2, window=2**30).tolist() == [[[1, 0]] * 5, [[0, 1]] * 5]
    events = data.Events.of([{"t": np.array([5, 2**31], ">u8"), "x": [0, 1]}, {"t": [], "x": []}])
    assert events.t.tolist() == [5, 2**31] and events.offsets.tolist() == [0, 2, 2]


# --- errors and transforms


def call(t=(1, 2, 3), x=(0, 1, 2), y=(0, 0, 0), p=(0, 1, 1), offsets=(0, 2, 3), size=(2, 2, 4), steps=2, **options):
    columns = [torch.as_tensor(column) if not isinstance(column, torch.Tensor) and column is not None else column for column in (t, x, y, p)]
    return ops.event_frames(*columns, torch.as_tensor(offsets), size=size, steps=steps, **options)


flat = torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize("words, error, options", [
    ("event 1 of sample 0 has x = 4 and y = 0, which are not on the sensor of height 2 and width 4", ValueError, dict(x=[0, 4, 0])),
    ("event 0 of sample 1 has x = 2 and y = -1", ValueError, dict(y=[0, 0, -1])),
    ("event 0 of sample 1 has x = 4294967296 and", ValueError, dict(x=[0, 1, 1 << 32])),
    ("p must be 0 or 1, or -1 or 1, but is 2 for event 1 of sample 0", ValueError, dict(p=[0, 2, 1])),
    ("event 1 of sample 0 has t = 1, before the sample's first event", ValueError, dict(t=[2, 1, 3])),
    ("t must be bool, uint8, int8, uint16, int16, uint32, int32 or int64, but is Float", TypeError, dict(t=[1.0, 2.0, 3.0])),
    ("t must have shape", ValueError, dict(t=[[1], [2], [3]])),
    (r"x must have shape \[3\], one number for each event of t, but has \[2\]", ValueError, dict(x=[0, 1])),
    (r"offsets must begin with 0, never decrease, and end with the number of events, 3, but are \[0, 2\]", ValueError, dict(offsets=[0, 2])),
    ("offsets must begin with 0", ValueError, dict(offsets=[0, 3, 2, 3])),
    ("offsets must begin with 0", ValueError, dict(offsets=[1, 3])),
    ("offsets must be int64, but is Int", TypeError, dict(offsets=torch.tensor([0, 3], dtype=torch.int32))),
    ("offsets must have shape", ValueError, dict(offsets=torch.zeros(0, dtype=torch.int64))),
    (r"size must be the channels \(1 or 2\), height and width", ValueError, dict(size=(3, 2, 4))),
    (r"size must be the channels \(1 or 2\), height and width", ValueError, dict(size=(1, 1 << 20, 1 << 20))),
    ("size must be channels, height and width", ValueError, dict(size=(3, 2))),
    ("steps must be in", ValueError, dict(steps=0)),
    ("window must be in", ValueError, dict(window=0)),
    ("bins must be time or count, but is frames", ValueError, dict(bins="frames")),
    ("values must be count, binary, normalised, bits, voxel or surface, but is sum", ValueError, dict(values="sum")),
    ("bins=count accepts neither start nor values voxel", ValueError, dict(bins="count", values="voxel")),
    ("bins=count accepts neither start", ValueError, dict(bins="count", start=flat)),
    ("start needs window", ValueError, dict(start=flat)),
    ("event 1 of sample 0 has t = 4611686018427387904, too far after the sample's first event, t = 0, for 64 bits", ValueError,
     dict(t=[0, 1 << 62, 0], steps=9, values="voxel")),
    (r"window must be in \[1, 1099511627776\]", ValueError, dict(window=1 << 41, values="voxel")),
    ("tau must be above 0", ValueError, dict(values="surface", tau=0.0)),
    (r"start must have shape \[2\], one time for each sample, but has \[3\]", ValueError, dict(start=torch.zeros(3, dtype=torch.int64), window=1)),
    ("crop must be a height and width within those of the sensor", ValueError, dict(crop=(3, 4))),
    ("origin needs crop", ValueError, dict(origin=torch.zeros(2, 2, dtype=torch.int64))),
    (r"flip must have shape \[2, 2\]", ValueError, dict(flip=torch.zeros(2, dtype=torch.bool))),
    ("flip must be bool, but is Long", TypeError, dict(flip=torch.zeros(2, 2, dtype=torch.int64))),
    ("downsample must be in", ValueError, dict(downsample=0)),
    (r"ignored must have shape \[2, 4\], one for each pixel", ValueError, dict(ignored=torch.zeros(4, 2, dtype=torch.bool))),
    ("keep must have shape", ValueError, dict(keep=torch.zeros(2, dtype=torch.bool))),
    ("dtype must be float16", TypeError, dict(dtype=torch.int32)),
])  # fmt: skip
def test_errors_name_the_argument_or_the_event(words, error, options):
    refused(error, words, lambda: call(**options))


def test_a_gpu_skips_wrong_events_and_reports_them_in_a_later_call(cuda):
    good = data.Events.of([dict(t=torch.tensor([1, 2, 3]), x=torch.tensor([0, 1, 2]))]).to(cuda)
    for wrong in (dict(x=torch.tensor([0, 7, 2])), dict(t=torch.tensor([1, 0, 3])), dict(p=torch.tensor([0, 5, 1]))):
        events = data.Events.of([{"t": torch.tensor([1, 2, 3]), "x": torch.tensor([0, 1, 2]), **wrong}]).to(cuda)
        assert data.frames(events, (1, 1, 4), steps=1, window=100).sum() == 2
        torch.cuda.synchronize()
        refused(ValueError, "in an earlier call, event 1 of the batch", lambda: data.frames(good, (1, 1, 4), steps=1))
        assert data.frames(good, (1, 1, 4), steps=1, window=100).sum() == 3
    for offsets in ([0, 2], [0, 9], [1, 3], [0, 3, 1, 3], [-5, 3]):
        data.frames(data.Events(good.t, good.x, torch.tensor(offsets, device=cuda)), (1, 1, 4), steps=1)
        torch.cuda.synchronize()
        refused(ValueError, "in an earlier call, event", lambda: data.frames(good, (1, 1, 4), steps=1))


def test_frames_in_a_cuda_graph_equal_those_outside(cuda):
    events = trains(cuda)
    expected = data.spike_trains(events, 4, steps=4, window=10, values="count")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = data.spike_trains(events, 4, steps=4, window=10, values="count")
    graph.replay()
    assert torch.equal(captured, expected)


@pytest.mark.parametrize("problem, samples", [
    ("sample 1 has no field x", [dict(t=flat, x=flat), dict(t=flat)]),
    ("y must be a field of all samples or of none, but differs for sample 1", [dict(t=flat, x=flat), dict(t=flat, x=flat, y=flat)]),
    ("x of sample 0 has 1 events, but t has 2", [dict(t=flat, x=flat[:1])]),
    ("t of sample 0 must be integers", [dict(t=flat.float(), x=flat)]),
    ("t of sample 0 must be integers .* but is datetime64", [dict(t=np.zeros(2, "datetime64[us]"), x=flat)]),
    ("expected a list of samples, .* but sample 0 is of type void", np.zeros(2, [("t", int), ("x", int)])),
    ("expected a list of samples, .* but sample 1 is of type ndarray", [dict(t=flat, x=flat), np.zeros((2, 2), int)]),
])  # fmt: skip
def test_a_batch_of_samples_that_do_not_fit_is_refused(problem, samples):
    refused((ValueError, TypeError), problem, lambda: data.Events.of(samples))
    refused((ValueError, TypeError), problem, lambda: data.collate(samples))


def test_arguments_of_batches_are_checked():
    for error, words, function in (
        (ValueError, "Events.steps: window must be an integer of at least 1 tick, but is 0", lambda: trains().steps(0)),
        (ValueError, "Events.steps: window must be an integer of at least 1 tick, but is 2.5", lambda: trains().steps(2.5)),
        (ValueError, "Events.jitter: std must be a finite number of ticks, at least 0, but is nan", lambda: trains().jitter(math.nan)),
        (ValueError, r"Events.drop: p must be in \[0, 1\], but is 2", lambda: trains().drop(2)),
        (TypeError, "frames: events must be Events, such as .* but is ndarray", lambda: data.frames(np.zeros(3), (1, 1, 4), steps=1)),
        (ValueError, "zip", lambda: data.collate([(dict(t=flat, x=flat), 1), (dict(t=flat, x=flat),)])),
    ):
        refused(error, words, function)


@pytest.mark.parametrize("values", VALUES)
def test_frames_pass_opcheck_and_compile(values, device):
    events = trains(device)
    arguments = (events.t, events.x, events.y, events.p, events.offsets)
    options = dict(size=(1, 1, 4), steps=4, window=10, values=values, tau=10.0)
    opcheck(ops.event_frames.default, arguments, options)
    torch.compiler.reset()  # the limit of recompilations is that of all rows
    compiled = torch.compile(lambda *columns: ops.event_frames(*columns, **options) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*arguments), ops.event_frames(*arguments, **options) * 2)
