#!/usr/bin/env python3
"""Trains on the Spiking Heidelberg Digits: spoken digits in German and English, 20 classes, as spikes of 700 channels
of a model of the cochlea (Cramer et al., "The Heidelberg Spiking Data Sets for the Systematic Evaluation of Spiking
Neural Networks", IEEE TNNLS 2020).

    python examples/events/shd.py --data FOLDER            # a recurrent layer of adaptive neurons
    python examples/events/shd.py --data FOLDER --delays   # learned delays, without recurrence
    python examples/events/shd.py --data FOLDER --exact    # a recurrent layer of LIF neurons, exact gradients (EventProp)
    python examples/events/shd.py --width 64 --batch-size 32 --rate 1e-2 --dropout 0.1 --epochs 8   # a stand-in
    torchrun --standalone --nproc_per_node 2 examples/events/shd.py --data FOLDER

FOLDER contains shd_train.h5 and shd_test.h5 (https://zenkelab.org/resources/spiking-heidelberg-datasets-shd/). Steps
are 10 ms, and five neighbouring channels are one input, as in Hammouamri et al.

The stand-in is generated and has the format of SHD: chirps, of which the third command classifies all test samples
after half a minute on a CPU core.

Test accuracies in the literature: 71 % for a recurrent network of LIF neurons, 83 % with augmentation (Cramer et al.,
2020); 94.6 % for recurrent networks of adaptive neurons (Bittar and Garner, "A surrogate gradient spiking baseline for
speech command recognition", Frontiers in Neuroscience 2022); 95.1 % for learned delays (Hammouamri,
Khalfaoui-Hassani and Masquelier, "Learning delays in spiking neural networks using dilated convolutions with learnable
spacings", ICLR 2024). The networks here follow theirs, without batch normalisation, whose statistics would include the
padding; their accuracies on the real data have not been measured.
"""

import numpy as np
import torch
import training
from torch import nn

import spikeforge.data
import spikeforge.nn as snn

CHANNELS, CLASSES = 700, 20
GROUPED = 5  # channels
INPUTS = CHANNELS // GROUPED
WINDOW = 10_000  # microseconds
LONGEST = 150  # steps
MAX_DELAY = 25  # steps
SHIFT = 20  # channels


class Recipe(training.Recipe):
    name = "shd"

    def network(self):
        """Maps x [T, B, INPUTS] to scores [T, B, CLASSES]."""
        if self.options.exact:
            return snn.Sequential(*self.exact_layers(), snn.LI(tau=2.0, decay_input=False), snn.LI(tau=5.0))
        layers = self.delayed_layers() if self.options.delays else self.recurrent_layers()
        return snn.Sequential(*layers, snn.LI(tau=5.0))

    def exact_layers(self):
        width = self.options.width
        layer, recurrent = nn.Linear(INPUTS, width), nn.Linear(width, width, bias=False)
        nn.init.normal_(layer.weight, 0.15, 0.3)  # neurons without spikes have no gradient
        nn.init.normal_(recurrent.weight, 0, 0.1 / width**0.5)
        neuron = snn.CubaLIF(tau_synapse=2.0, tau_membrane=10.0)
        return [snn.EventProp(neuron, layer, recurrent, target_count=10.0, count_strength=1e-4),
                nn.Dropout(self.options.dropout), nn.Linear(width, CLASSES)]

    def recurrent_layers(self):
        width = self.options.width
        neuron = snn.AdaptiveLIF(
            tau=snn.Learnable(10.0, min=1.0, per_channel=width),
            decay=snn.Learnable(0.95, min=0.0, max=0.999, per_channel=width),
            b=0.2, decay_input=False, v_reset=None, surrogate="atan")
        return [nn.Linear(INPUTS, width), snn.Recurrent(neuron, nn.Linear(width, width)),
                nn.Dropout(self.options.dropout), nn.Linear(width, CLASSES)]

    def delayed_layers(self):
        sizes = [INPUTS, self.options.width, self.options.width, CLASSES]
        *hidden, last = [
            snn.DelayedLinear(inputs, outputs, max_delay=MAX_DELAY, interpolation=self.options.interpolation)
            for inputs, outputs in zip(sizes, sizes[1:])]
        layers = []
        for layer in hidden:
            nn.init.kaiming_uniform_(layer.weight)  # torch's default is too small for neurons to fire at first
            neuron = snn.LIF(tau=2.0, decay_input=False, v_reset=None, surrogate="atan")
            layers += [layer, neuron, nn.Dropout(self.options.dropout)]
        return [*layers, last]

    def parameter_groups(self, network):
        """Delays are numbers of steps, and take larger steps of the optimizer than weights."""
        parameters = dict(network.named_parameters())
        delays = [parameters.pop(name) for name in list(parameters) if name.endswith(".delay")]
        return [{"params": list(parameters.values()), "factor": 1.0}, {"params": delays, "factor": 50.0}]

    def begin_epoch(self, network, progress):
        """Narrows the Gaussians of the delays from half of MAX_DELAY to half a step."""
        for layer in network.modules():
            if isinstance(layer, snn.DelayedLinear):
                layer.width = 0.5 * MAX_DELAY ** (1 - progress)

    def inputs(self, events, training):
        lengths = events.steps(WINDOW).clamp(1, LONGEST)
        origin = torch.zeros(len(events), 2, dtype=torch.int64, device=events.t.device)
        if training:
            events = events.drop(0.1).jitter(WINDOW / 2)
            origin[:, 1].random_(-SHIFT, SHIFT + 1)
        x = spikeforge.data.spike_trains(events, CHANNELS, steps=int(lengths.max()), window=WINDOW, values="count",
                                         crop=(1, CHANNELS), origin=origin, downsample=GROUPED)
        return x, {"lengths": lengths}

    def data_sets(self, folder):
        return tuple(spikeforge.data.SpikeTrains(folder / f"shd_{part}.h5") for part in ("train", "test"))

    def write_stand_in(self, folder):
        for part, count in (("train", 400), ("test", 200)):
            write_chirps(folder / f"shd_{part}.h5", count, np.random.default_rng(len(part)))


def write_chirps(path, count, random):
    """Writes a file of the format of SHD. The spikes of a sample move from one channel to another: a class is one of
    five first channels and one of four last ones. A tenth of the spikes is random."""
    import h5py

    labels = np.arange(count) % CLASSES
    with h5py.File(path, "w") as file:
        kinds = {"times": np.float16, "units": np.uint16}
        for name, kind in kinds.items():
            file.create_dataset(f"spikes/{name}", (count,), h5py.vlen_dtype(kind))
        for i, label in enumerate(labels):
            duration, size = random.uniform(0.4, 0.8), random.integers(1500, 2500)
            times = np.sort(random.uniform(0, duration, size))
            first, last = (label % 5 + 0.5) / 5, (label // 5 + 0.5) / 4
            units = CHANNELS * (first + (last - first) * times / duration) + random.normal(0, 15, size)
            units = np.where(random.random(size) < 0.1, random.uniform(0, CHANNELS, size), units).clip(0, CHANNELS - 1)
            for name, values in (("times", times), ("units", units)):
                file[f"spikes/{name}"][i] = values.astype(kinds[name])
        file["labels"] = labels.astype(np.uint16)


def parse_options():
    parser = training.parser(__doc__, "build/shd", epochs=60, batch_size=64, rate=2e-3)
    parser.add_argument("--delays", action="store_true", help="learned delays instead of recurrence")
    parser.add_argument("--exact", action="store_true", help="exact gradients of spike times")
    parser.add_argument("--interpolation", choices=["gauss", "linear"], default="gauss", help="linear is faster")
    parser.add_argument("--width", type=training.positive, default=256, help="neurons of a layer")
    parser.add_argument("--dropout", type=float, default=0.3)
    return parser.parse_args()


if __name__ == "__main__":
    training.main(Recipe, parse_options)
