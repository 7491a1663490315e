#!/usr/bin/env python3
"""Compares networks on classes that differ only in timing: a network without delays, one with learned delays, a
recurrent one, and one that learns online by e-prop, on the data that data.py generates from a seed. "slow" neurons
have a time constant of 15 steps, the others 2.

    python examples/timing/run.py                              # some minutes on two cores
    python examples/timing/run.py --networks "learned delays" --epochs 8

It prints a line per epoch and a final table, and draws the accuracies and samples of two classes (build/timing.png).
"""

import argparse
import pathlib
import sys
import time

import torch
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import data  # noqa: E402
import networks  # noqa: E402

import spikeforge  # noqa: E402
import spikeforge.nn as snn  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
UPDATE_EVERY = 25  # steps, online


def scores(y, lengths):
    """Returns the mean of the readout over the steps of each sample, [B, CLASSES]."""
    inside = torch.arange(len(y)).view(-1, 1) < lengths
    return (y * inside.unsqueeze(-1)).sum(0) / lengths.unsqueeze(-1)


def learn_from_the_whole(net, x, lengths, labels, update):
    """Trains by backpropagation through time."""
    y = scores(net(x), lengths)
    cross_entropy(y, labels).backward()
    update()
    return y.detach()


def learn_online(online, x, lengths, labels, update):
    """Trains with a loss of the readout at each step; only traces represent the past, and weights change while the
    sequence runs."""
    online.reset()
    total = torch.zeros(x.shape[1], data.CLASSES)
    for t, step in enumerate(x.split(1)):
        y = online(step)[0]
        going_on = t < lengths
        (cross_entropy(y, labels, reduction="none") * going_on).mean().backward()
        total += y.detach() * going_on.unsqueeze(-1)
        if (t + 1) % UPDATE_EVERY == 0:
            update()
    update()
    return total / lengths.unsqueeze(-1)


# name: network and training
CONTESTANTS = {
    "no delays": (networks.plain, learn_from_the_whole),
    "no delays, slow": (networks.slow(networks.plain), learn_from_the_whole),
    "learned delays": (networks.delays, learn_from_the_whole),
    "recurrent": (networks.recurrent, learn_from_the_whole),
    "recurrent, slow, e-prop": (networks.slow(networks.recurrent), learn_online),
}


@torch.no_grad()
def accuracy(net, samples, batch):
    right = 0
    for x, lengths, labels in samples.batches(batch):
        right += (scores(net(x), lengths).argmax(1) == labels).sum().item()
    return right / len(samples)


def optimizer_of(net, options, batches):
    """Returns a function for each update, and one for each batch."""
    delays = [layer for layer in net.modules() if isinstance(layer, snn.DelayedLinear)]
    of_delays = [layer.delay for layer in delays]
    others = [p for p in net.parameters() if not any(p is d for d in of_delays)]
    groups = [{"params": others, "lr": options.rate}]
    if of_delays:
        groups.append({"params": of_delays, "lr": options.delay_rate})
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [g["lr"] for g in groups], total_steps=batches)

    def update():
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        for layer in delays:
            layer.clamp_()

    return update, schedule.step


def train(name, training, test, options):
    """Returns the test accuracy after each epoch, and the total seconds."""
    make, learn = CONTESTANTS[name]
    torch.manual_seed(options.seed)
    net = make(options.width)
    learner = spikeforge.Online(net) if learn is learn_online else net
    epochs = options.online_epochs if learn is learn_online else options.epochs
    if learn is learn_online:
        training = training.first(options.online_training)
    batches = -(-len(training) // options.batch)
    update, next_batch = optimizer_of(net, options, epochs * batches)
    generator = torch.Generator().manual_seed(options.seed)
    start, curve = time.monotonic(), []
    for epoch in range(epochs):
        right = 0
        for x, lengths, labels in training.batches(options.batch, generator):
            right += (learn(learner, x, lengths, labels, update).argmax(1) == labels).sum().item()
            next_batch()
        if epoch == epochs - 1:
            for layer in net.modules():
                if isinstance(layer, snn.DelayedLinear):
                    layer.round_()  # as on a chip
        curve.append(accuracy(net, test, options.batch))
        spent = time.monotonic() - start
        left = spent / (epoch + 1) * (epochs - epoch - 1)
        print(f"{name:24} epoch {epoch + 1:2}/{epochs}: training {right / len(training):6.1%}, test {curve[-1]:6.1%}, {spent:4.0f} s, {left:4.0f} s to go", flush=True)
    return curve, time.monotonic() - start, sum(p.numel() for p in net.parameters())


def draw(curves, test, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, *rasters) = pyplot.subplots(1, 3, figsize=(13, 4), width_ratios=(1.2, 1, 1))
    for name, curve in curves.items():
        left.plot(range(1, len(curve) + 1), [100 * value for value in curve], marker=".", label=name)
    left.axhline(100 / data.CLASSES, color="grey", linestyle=":", label="chance")
    left.set(xlabel="epoch", ylabel="test accuracy, %", ylim=(0, 101))
    left.legend(loc="center right")
    for label, axes in enumerate(rasters):
        sample = int((test.labels == label).nonzero()[0])
        t, channel = test.spikes[sample].nonzero(as_tuple=True)
        axes.scatter(t, channel, s=0.4, color="black")
        axes.set(xlabel="step", ylabel="channel", title=f"class {label}", xlim=(0, 100), ylim=(0, data.CHANNELS))
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def positive(text):
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS))
    parser.add_argument("--width", type=positive, default=64, help="hidden neurons")
    parser.add_argument("--epochs", type=positive, default=16)
    parser.add_argument("--online-epochs", type=positive, default=6)
    parser.add_argument("--training", type=positive, default=1280, help="samples")
    parser.add_argument("--online-training", type=positive, default=640, help="samples, online, where each step is a call")
    parser.add_argument("--test", type=positive, default=400, help="samples")
    parser.add_argument("--batch", type=positive, default=32)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--delay-rate", type=float, default=0.1, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=pathlib.Path, default=ROOT / "build/timing.png")
    options = parser.parse_args()
    training, test = (data.samples(count, seed) for count, seed in ((options.training, 1), (options.test, 2)))
    results = {name: train(name, training, test, options) for name in options.networks}
    print(f"\n{data.CLASSES} classes by timing alone, {options.width} hidden neurons, {len(training)} samples to learn from")
    print(f"{'':24} {'test accuracy':>14} {'parameters':>11} {'seconds':>8}")
    for name, (curve, spent, count) in results.items():
        print(f"{name:24} {curve[-1]:>14.1%} {count:>11} {spent:>8.0f}")
    draw({name: curve for name, (curve, _, _) in results.items()}, test, options.picture)
    print(f"picture: {options.picture}")


if __name__ == "__main__":
    main()
