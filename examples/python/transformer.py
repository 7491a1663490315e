#!/usr/bin/env python3
"""Trains a network of spikeforge.models on images: handwritten digits, CIFAR-10 or ImageNet.

    python examples/python/transformer.py        # a small QKFormer on scikit-learn's digits, a minute
    python examples/python/transformer.py --data CIFAR --model spikformer_cifar10 --epochs 300 --compile --ema 0.999
    torchrun --standalone --nproc_per_node 8 examples/python/transformer.py --data IMAGENET --model sdt_8_384 --amp

CIFAR contains cifar-10-batches-py, and IMAGENET the folders train and val of torchvision's ImageFolder. Each image is
the input of all steps. spikeforge.nn.fuse runs normalisations and residuals in the passes of the neurons.
"""

import functools
import pathlib
import sys

import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "events"))
import training  # noqa: E402

import spikeforge.nn as snn  # noqa: E402
from spikeforge import models  # noqa: E402

SMALL = {
    "qkformer": functools.partial(models.QKFormer, dim=64, heads=(1, 2, 4), depths=(1, 1, 1)),
    "spikformer": functools.partial(models.Spikformer, dim=64, heads=4, depth=1, patch=4),
    "sdt": functools.partial(models.SpikeDrivenTransformer, dim=64, depth=1, pool=(False, False, True, True)),
    "sew_resnet": functools.partial(models.SEWResNet, depths=(1, 1), width=16),
    "ms_resnet": functools.partial(models.MSResNet, depths=(1, 1), width=16),
}
PUBLISHED = {name: getattr(models, name) for name in models.__all__ if name.islower() and name != "from_spikingjelly"}


class Recipe(training.Recipe):
    name = "transformer"
    collate = staticmethod(torch.utils.data.default_collate)

    def data_sets(self, folder):
        if (folder / "digits.pt").exists():
            images, labels = torch.load(folder / "digits.pt")
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
            parts = order[len(labels) // 5:], order[:len(labels) // 5]
            self.shape, self.classes = images.shape[1:], 10
            return tuple(torch.utils.data.TensorDataset(images[part], labels[part]) for part in parts)
        from torchvision import datasets, transforms

        end = [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        if (folder / "cifar-10-batches-py").exists():
            self.shape, self.classes = (3, 32, 32), 10
            change = transforms.Compose([transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), *end])
            return datasets.CIFAR10(folder, True, change), datasets.CIFAR10(folder, False, transforms.Compose(end))
        if not (folder / "train").exists():
            raise training.UserError(f"--data: {folder} contains neither cifar-10-batches-py nor train and val")
        change = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *end])
        test = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), *end])
        train = datasets.ImageFolder(folder / "train", change)
        self.shape, self.classes = (3, 224, 224), len(train.classes)
        return train, datasets.ImageFolder(folder / "val", test)

    def write_stand_in(self, folder):
        """Writes scikit-learn's digits, enlarged to 16 x 16 pixels."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = torch.from_numpy(digits.images).float().unsqueeze(1) / 8 - 1
        images = torch.nn.functional.interpolate(images, scale_factor=2)
        torch.save((images, torch.from_numpy(digits.target)), folder / "digits.pt")

    def network(self):
        make = (SMALL | PUBLISHED)[self.options.model]
        network = make(classes=self.classes, channels=self.shape[0])
        snn.fuse(network, torch.randn(self.options.steps, 2, *self.shape))
        return network

    def inputs(self, images, training):
        if training and self.classes == 10 and self.shape[0] == 1:  # shifts by up to two pixels
            images = images.roll(torch.randint(-2, 3, (2,)).tolist(), (2, 3))
        return images.expand(self.options.steps, *images.shape), {}


def parse_options():
    parser = training.parser(__doc__, "build/transformer", epochs=8, batch_size=32, rate=1e-2)
    parser.add_argument("--model", choices=[*SMALL, *PUBLISHED], default="qkformer", metavar="MODEL",
                        help=f"{', '.join(SMALL)} are small; of the published sizes: {', '.join(PUBLISHED)}")
    parser.add_argument("--steps", type=training.positive, default=4, help="time steps for each image")
    return parser.parse_args()


if __name__ == "__main__":
    training.main(Recipe, parse_options)
