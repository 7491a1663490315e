#!/usr/bin/env python3
"""Compares spikeforge.convert with SpikingJelly's ann2snn: accuracy for each number of steps, and time.

A small CNN is trained on scikit-learn's digits, and each library converts it by several methods. Accuracies are those of
the test images for constant input; "qcfs" fine-tunes the CNN first (spikeforge.qcfs). Microseconds per sample are those
of 64 steps, the least of all rounds, in which contestants alternate. SpikingJelly runs all steps at once ("m") or one by
one, and the faster is listed.

    python benchmarks/convert.py                                # digits
    python benchmarks/convert.py --resnet                       # also the time of a ResNet-18 with random weights
    python benchmarks/convert.py --weights resnet18.pth --data imagenet/val   # accuracy of a trained ResNet-18

--weights is a state_dict of torchvision's resnet18, and --data a folder of images in a folder for each class.
"""

import argparse
import contextlib
import copy
import io
import json
import pathlib

import this_clone  # noqa: F401
import torch
from measure import Clock, least
from torch import nn

import spikeforge

STEPS = (2, 4, 8, 16, 32, 64)
METHODS = ("max", "99.9%", 0.8)  # SpikingJelly's fraction of the maximum has no equivalent here


def digits():
    """Returns images and labels for training and for tests."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32)[order, None] / 16
    labels = torch.tensor(data.target)[order]
    return images[:1200], labels[:1200], images[1200:], labels[1200:]


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def train(model, images, labels, epochs, rate):
    optimizer = torch.optim.Adam(model.parameters(), rate)
    model.train()
    for epoch in range(epochs):
        for indices in torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch)).split(100):
            loss = nn.functional.cross_entropy(model(images[indices]), labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


class SpikingJelly(nn.Module):
    """SpikingJelly's conversion, with the interface of spikeforge's."""

    def __init__(self, model, batches, method, mode, **options):
        from spikingjelly.activation_based import ann2snn, functional

        super().__init__()
        self.functional, self.mode = functional, mode
        recipe = ann2snn.RateCodingRecipe(batches, mode=method, **options)
        with contextlib.redirect_stderr(io.StringIO()):
            self.network = ann2snn.FXConverter(recipe).convert(copy.deepcopy(model))
        functional.set_step_mode(self.network, mode)

    def forward(self, x, steps, every=False):
        self.functional.reset_net(self.network)
        if self.mode == "m":
            y = self.network(x.expand(steps, *x.shape))
        else:
            y = torch.stack([self.network(x) for _ in range(steps)])
        return y.cumsum(0) / torch.arange(1, steps + 1).view(-1, 1, 1) if every else y.mean(0)


def contestants(model, batches, peers):
    """Yields a library, a method and the converted network."""
    for method in ("max", 99.9):
        yield "spikeforge", f"{method}", spikeforge.convert(model, batches, method)
    if not peers:
        return
    for method in METHODS:
        yield "SpikingJelly", f"{method}", SpikingJelly(model, batches, method, "m")
    for method in METHODS[:2]:
        options = {"channel_wise": True, "half_threshold": True}
        yield "SpikingJelly", f"{method}, channels, half", SpikingJelly(model, batches, method, "m", **options)


def accuracy(logits, labels):
    return (logits.argmax(-1) == labels).double().mean(-1)


def accuracies(net, batches):
    """Returns the accuracy for each of STEPS."""
    hits, count = 0, 0
    with torch.no_grad():
        for images, labels in batches:
            hits += accuracy(net(images, steps=max(STEPS), every=True), labels) * len(labels)
            count += len(labels)
    return [hits[steps - 1].item() / count for steps in STEPS]


def microseconds(nets, x, rounds):
    """Returns the time of a sample in max(STEPS) steps for each network."""
    with torch.no_grad():
        best = least({name: lambda net=net: net(x, steps=max(STEPS)) for name, net in nets.items()}, rounds, Clock("cpu", True))
    return {name: seconds / len(x) * 1e6 for name, seconds in best.items()}


def show(title, source, rows):
    print(f"\n{title}; accuracy of the source {source}")
    print(f"{'library':14}{'method':24}" + "".join(f"{f'T = {steps}':>9}" for steps in STEPS) + f"{'us/sample':>12}")
    for row in rows:
        columns = "".join(f"{a:9.2%}" for a in row["accuracy"]) if row["accuracy"] else " " * 9 * len(STEPS)
        print(f"{row['library']:14}{row['method']:24}{columns}{row['microseconds']:12.0f}")


def measure(model, calibration, batches, x, options):
    """Returns a row for each conversion of a model."""
    nets, rows = {}, []
    for library, method, net in contestants(model, calibration, not options.alone):
        nets[library, method] = net
        rows.append({"library": library, "method": method, "accuracy": batches and accuracies(net, batches)})
    single = {} if options.alone else {("single steps", METHODS[0]): SpikingJelly(model, calibration, METHODS[0], "s")}
    times = microseconds(nets | single, x, options.rounds)
    for row in rows:
        row["microseconds"] = times[row["library"], row["method"]]
        if row["library"] == "SpikingJelly":
            row["microseconds"] = min(row["microseconds"], times["single steps", METHODS[0]])
    return rows


def measure_digits(options):
    images, labels, test, truth = digits()
    model = train(cnn(), images, labels, 20, 2e-3)
    rows = measure(model, [images], [(test, truth)], test[:100], options)
    for levels in (2, 4):
        tuned = train(spikeforge.qcfs(model, images, levels=levels), images, labels, 20, 1e-3)
        net = spikeforge.convert(tuned, images)
        rows.append({"library": "spikeforge", "method": f"qcfs, {levels} levels", "accuracy": accuracies(net, [(test, truth)])})
        rows[-1]["microseconds"] = microseconds({"net": net}, test[:100], options.rounds)["net"]
        rows[-1]["source"] = accuracy(tuned(test), truth).item()
    source = accuracy(model(test), truth).item()
    show("digits", f"{source:.2%}", rows)
    return {"source": source, "rows": rows}


def measure_resnet(options):
    from torchvision import datasets, models, transforms

    torch.manual_seed(0)
    model, batches, source = models.resnet18(), None, None
    x = torch.randn(2, 3, options.size, options.size)
    calibration = [x]
    if options.weights:
        model.load_state_dict(torch.load(options.weights))
    model.eval()
    if options.data:
        steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
        steps.append(transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        images = datasets.ImageFolder(options.data, transforms.Compose(steps))
        order = torch.randperm(len(images)).tolist()
        load = torch.utils.data.DataLoader(torch.utils.data.Subset(images, order[: options.images]), 2)
        batches = list(load)
        calibration = [images for images, _ in batches[: len(batches) // 4 + 1]]
        with torch.no_grad():
            source = sum((accuracy(model(x), y) * len(y)).item() for x, y in batches) / sum(len(y) for _, y in batches)
    rows = measure(model, calibration, batches, x, options)
    show(f"ResNet-18, {options.size} x {options.size}", f"{source:.2%}" if source is not None else "unknown", rows)
    return {"source": source, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resnet", action="store_true")
    parser.add_argument("--weights", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--size", type=int, default=64, help="of the images of ResNet-18 that are timed")
    parser.add_argument("--alone", action="store_true", help="without SpikingJelly")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = {"digits": measure_digits(options)}
    if options.resnet or options.weights or options.data:
        found["resnet18"] = measure_resnet(options)
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "threads": options.threads, "steps": STEPS, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
