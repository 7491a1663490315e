#!/usr/bin/env python3
"""Trains on DVS128 Gesture: 11 gestures of hands and arms in front of an event camera (Amir et al., "A low power, fully
event-based gesture recognition system", CVPR 2017).

    python examples/events/dvs_gesture.py --data FOLDER
    python examples/events/dvs_gesture.py --downsample 4 --blocks 3 --channels 16 --epochs 8   # a stand-in
    torchrun --standalone --nproc_per_node 2 examples/events/dvs_gesture.py --data FOLDER

FOLDER is the extracted DvsGesture: user*.aedat, user*_labels.csv, trials_to_train.txt and trials_to_test.txt. Its
gestures are cut out once, into FOLDER/gestures. The stand-in has the same files, of blobs that move in 11 directions.

The network is the 7B-Net of Fang et al., "Deep residual learning in spiking neural networks", NeurIPS 2021, with LIF
neurons: seven SEW blocks that add their input to their spikes, each followed by a max pooling. A sample is split into
frames with equal numbers of events. The paper reports a test accuracy of 97.92 % with 16 frames.
"""

import os
import struct

import numpy as np
import torch
import training
from torch import nn

import spikeforge.data
import spikeforge.nn as snn

SIZE, CLASSES = 128, 11
SHIFT = 8  # pixels


def neuron():
    return snn.LIF(tau=2.0, surrogate="atan", detach_reset=True)


def convolution(inputs, channels):
    return snn.TimeDistributed(nn.Conv2d(inputs, channels, 3, padding=1, bias=False))


def normalised(inputs, channels):
    return nn.Sequential(convolution(inputs, channels), snn.BatchNormNeuron(nn.BatchNorm2d(channels), neuron()))


class Block(nn.Module):
    """A SEW block: spikes of two layers of neurons, added to the block's input."""

    def __init__(self, channels):
        super().__init__()
        self.first = normalised(channels, channels)
        self.second = convolution(channels, channels)
        self.neuron = snn.BatchNormNeuron(nn.BatchNorm2d(channels), neuron(), residual="add")

    def forward(self, x):
        return self.neuron(self.second(self.first(x)), x)


class Recipe(training.Recipe):
    name = "dvs_gesture"

    def network(self):
        """Maps frames [T, B, 2, size, size] to scores [T, B, CLASSES]."""
        channels, blocks, size = self.options.channels, self.options.blocks, SIZE // self.options.downsample
        if size >> blocks == 0:
            raise training.UserError(f"--blocks: {blocks} are too many for {size} pixels, which each block halves")
        layers = [layer for _ in range(blocks) for layer in (Block(channels), snn.MaxPool2d(2))]
        return nn.Sequential(
            normalised(2, channels), *layers,
            snn.TimeDistributed(nn.Flatten(), nn.Linear(channels * (size >> blocks) ** 2, CLASSES)))

    def inputs(self, events, training):
        origin = torch.zeros(len(events), 2, dtype=torch.int64, device=events.t.device)
        if training:
            events = events.drop(0.1)
            origin.random_(-SHIFT, SHIFT + 1)
        x = spikeforge.data.frames(events, (2, SIZE, SIZE), steps=self.options.frames, bins="count", crop=(SIZE, SIZE),
                                   origin=origin, downsample=self.options.downsample)
        return x, {}

    def data_sets(self, folder):
        return tuple(Samples(folder, f"trials_to_{part}.txt") for part in ("train", "test"))

    def write_stand_in(self, folder):
        for part, users in (("train", range(16)), ("test", range(16, 20))):
            names = [f"user{user:02}_led.aedat" for user in users]
            (folder / f"trials_to_{part}.txt").write_text("\n".join(names) + "\n")
            for user, name in zip(users, names):
                write_blobs(folder / name, np.random.default_rng(user))


class Samples(torch.utils.data.Dataset):
    """The gestures of the recordings that a file lists, as (events, label)."""

    def __init__(self, folder, trials):
        self.samples = [sample for name in (folder / trials).read_text().split() for sample in cut(folder, name)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return spikeforge.data.read(path), label


def cut(folder, name):
    """Writes the gestures of a recording to files, unless they are there. Returns [(path, label)]."""
    recording = folder / name
    labels = recording.with_name(f"{recording.stem}_labels.csv")
    table = np.loadtxt(labels, np.int64, delimiter=",", skiprows=1, ndmin=2)
    (folder / "gestures").mkdir(exist_ok=True)
    samples = [(folder / f"gestures/{recording.stem}_{i}.npy", int(row[0]) - 1) for i, row in enumerate(table)]
    if not all(path.exists() for path, _ in samples):
        events = spikeforge.data.read(recording)
        for (path, _), (_, start, end) in zip(samples, table):
            new = path.with_name(f"{path.stem}.{os.getpid()}.npy")  # several processes may cut at the same time
            np.save(new, events[(events["t"] >= start) & (events["t"] < end)])
            new.replace(path)
    return samples


def write_blobs(path, random):
    """Writes a recording of the format of DVS128 Gesture: in half a second for each class, a blob moves from the middle
    in one of 11 directions. Its leading edge has events of polarity 1."""
    words, rows = [], ["class,startTime_usec,endTime_usec"]
    for label in random.permutation(CLASSES):
        start, count = 600_000 * len(rows), 600
        angle = 2 * np.pi * label / CLASSES
        direction = np.array([np.cos(angle), np.sin(angle)])
        t = np.sort(random.uniform(0, 1, count))
        edge = random.normal(0, 5, (count, 2))
        x, y = (SIZE / 2 + random.normal(0, 3, 2) + 45 * t[:, None] * direction + edge).clip(0, SIZE - 1).astype(int).T
        p = (edge @ direction > 0).astype(int)
        words.append(np.stack([x << 17 | y << 2 | p << 1 | 1, start + (500_000 * t).astype(int)], 1))
        rows.append(f"{label + 1},{start},{start + 500_000}")
    path.with_name(f"{path.stem}_labels.csv").write_text("\n".join(rows) + "\n")
    with path.open("wb") as file:
        file.write(b"#!AER-DAT3.1\r\n#Format: RAW\r\n#!END-HEADER\r\n")
        for some in words:
            file.write(struct.pack("<HHIIIIII", 1, 1, 8, 4, 0, len(some), len(some), len(some)))
            file.write(some.astype("<u4").tobytes())


def parse_options():
    parser = training.parser(__doc__, "build/dvs_gesture", epochs=100, batch_size=16, rate=2e-3)
    parser.add_argument("--frames", type=training.positive, default=16)
    parser.add_argument("--downsample", type=training.positive, default=1, help="pixels per side that become one")
    parser.add_argument("--channels", type=training.positive, default=32)
    parser.add_argument("--blocks", type=training.positive, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    training.main(Recipe, parse_options)
