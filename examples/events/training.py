"""Trains a network: the loop of shd.py, dvs_gesture.py and ../python/transformer.py."""

import argparse
import contextlib
import math
import os
import pathlib
import sys
import tempfile
import time

import torch
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, Subset

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import digits_ddp  # noqa: E402
from digits import Parser, UserError, positive  # noqa: E402

import spikeforge.nn as snn  # noqa: E402
from spikeforge import losses  # noqa: E402
from spikeforge.data import collate  # noqa: E402


class Recipe:
    """A data set and a network for it. A subclass defines its `name`, and

    data_sets(folder)           returns the data sets for training and test, of (events, label)
    write_stand_in(folder)      writes generated data of the data set's format
    network()                   returns a module, after data_sets
    inputs(events, training)    returns x and the module's other arguments, on the device of the events

    It may define `collate`, for samples that are not events.
    """

    collate = staticmethod(collate)

    def __init__(self, options):
        self.options = options

    def parameter_groups(self, network):
        """Returns the optimizer's groups, each with a factor of the learning rate."""
        return [{"params": network.parameters(), "factor": 1.0}]

    def begin_epoch(self, network, progress):
        """Changes the network before an epoch; progress is from 0 to 1."""


class Trainer:
    """Trains in one process, or in each of the processes that torchrun starts."""

    def __init__(self, recipe, options, device, folder):
        self.recipe, self.options, self.device = recipe, options, device
        self.rank, self.processes = 0, 1
        if distributed.is_initialized():
            self.rank, self.processes = distributed.get_rank(), distributed.get_world_size()
        try:
            training_set, test_set = recipe.data_sets(folder)
        except ValueError as error:
            raise UserError(error) from None
        own = options.batch_size // self.processes
        if own == 0 or len(training_set) < options.batch_size:
            bounds = f"at least {self.processes} and at most {len(training_set)}"
            raise UserError(f"--batch-size must be {bounds}, but is {options.batch_size}")
        loader = dict(batch_size=own, collate_fn=recipe.collate, num_workers=options.workers)
        loader["pin_memory"] = device.type == "cuda"
        self.order = DistributedSampler(training_set, self.processes, self.rank, seed=options.seed)
        self.training = DataLoader(training_set, sampler=self.order, drop_last=True, **loader)
        self.test = DataLoader(Subset(test_set, range(self.rank, len(test_set), self.processes)), **loader)
        torch.manual_seed(options.seed)
        self.network = recipe.network().to(device)  # evaluated and saved; `parallel` is the same, or wraps it
        groups = recipe.parameter_groups(self.network)
        self.optimizer = torch.optim.AdamW(groups, options.rate, weight_decay=options.weight_decay)
        self.optimizer.register_step_post_hook(lambda *_: snn.clamp_(self.network))  # constants and delays in bounds
        self.averaged = AveragedModel(self.network, multi_avg_fn=get_ema_multi_avg_fn(options.ema), use_buffers=True)
        self.history = []  # of each epoch: loss, accuracy of training and of test
        self.checkpoint = pathlib.Path(options.output) / f"{recipe.name}.pt"
        if options.resume:
            self.load()
        self.parallel = digits_ddp.prepare(self.network, device) if self.processes > 1 else self.network
        if options.compile:
            self.parallel = torch.compile(self.parallel)

    def load(self):
        try:
            saved = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
            self.network.load_state_dict(saved["network"])
            self.averaged.load_state_dict(saved["averaged"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.history = saved["history"]
        except OSError as error:
            raise UserError(f"--resume: cannot read {self.checkpoint}: {error.strerror}") from None
        except Exception as error:  # torch raises many kinds
            reason = " ".join(str(error).split())[:100]
            raise UserError(f"--resume: {self.checkpoint} is damaged, or of other options: {reason}") from None

    def save(self):
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        new = self.checkpoint.with_suffix(".new")
        states = {name: getattr(self, name).state_dict() for name in ("network", "averaged", "optimizer")}
        torch.save({**states, "history": self.history}, new)
        new.replace(self.checkpoint)

    def forward(self, network, events, labels):
        """Returns the sum of losses, and the number of correct samples."""
        x, arguments = self.recipe.inputs(events.to(self.device, non_blocking=True), network.training)
        labels = labels.to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.amp):
            y = network(x, **arguments)
        y = losses.mean_over_time(y.float(), arguments.get("lengths"))
        return cross_entropy(y, labels, reduction="sum"), (y.detach().argmax(1) == labels).sum()

    def step(self, events, labels, progress):
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.rate * group["factor"] * (1 + math.cos(math.pi * progress)) / 2
        loss, right = self.forward(self.parallel, events, labels)
        self.optimizer.zero_grad()
        (loss / len(labels)).backward()
        torch.nn.utils.clip_grad_norm_(self.parallel.parameters(), 1.0)
        self.optimizer.step()
        if self.options.ema:
            self.averaged.update_parameters(self.network)
        return loss.detach(), right

    def mean(self, sums):
        """Returns the mean loss and accuracy of all processes, from (loss, correct, samples) of each batch."""
        total = torch.tensor(sums, dtype=torch.float64).sum(0).to(self.device)
        if self.processes > 1:
            distributed.all_reduce(total)
        loss, right, samples = total.tolist()
        return loss / max(1, samples), right / max(1, samples)

    def epoch(self, number):
        self.order.set_epoch(number)
        torch.manual_seed(self.options.seed + 1000 * number + self.rank)  # a resumed run draws the same augmentations
        self.recipe.begin_epoch(self.network, number / max(1, self.options.epochs - 1))
        self.parallel.train()
        sums = [(0, 0, 0)]
        for i, (events, labels) in enumerate(self.training):
            progress = (number + i / len(self.training)) / self.options.epochs
            sums.append((*self.step(events, labels, progress), len(labels)))
        loss, right = self.mean(sums)
        return loss, right, self.evaluate()

    @torch.no_grad()
    def evaluate(self):
        network = (self.averaged.module if self.options.ema else self.network).eval()
        # Not `parallel`, whose calls wait for the other processes: they may have fewer batches.
        return self.mean([(0, 0, 0), *((*self.forward(network, *batch), len(batch[1])) for batch in self.test)])[1]

    def run(self):
        options, start, writer = self.options, time.monotonic(), None
        if options.logs and self.rank == 0:
            writer = summary_writer(options.logs)
        first = len(self.history)
        for number in range(first, options.epochs):
            loss, training, test = row = self.epoch(number)
            self.history.append(list(row))
            if self.rank > 0:
                continue
            self.save()
            if writer:
                for name, value in {"loss": loss, "accuracy/training": training, "accuracy/test": test}.items():
                    writer.add_scalar(name, value, number + 1)
            seconds = time.monotonic() - start
            left = seconds / (number + 1 - first) * (options.epochs - number - 1)
            print(f"epoch {number + 1:3}/{options.epochs}  loss {loss:.4f}  training {training:6.1%}  test {test:6.1%}"
                  f"  {seconds:5.0f} s, {left:5.0f} s left", flush=True)
        if writer:
            writer.close()
        if self.rank == 0 and self.history:
            picture = self.checkpoint.with_suffix(".png")
            draw(self.history, picture)
            print(f"test accuracy: {self.history[-1][2]:.2%}")
            print(f"checkpoint: {self.checkpoint}, curves: {picture}")


def summary_writer(folder):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(f"--logs needs tensorboard: pip install tensorboard ({error})") from None
    return SummaryWriter(folder)


def draw(history, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5))
    loss, training, test = zip(*history)
    epochs = range(1, len(history) + 1)
    left.plot(epochs, loss, marker=".")
    left.set(xlabel="epoch", ylabel="loss")
    for name, values in {"training": training, "test": test}.items():
        right.plot(epochs, [100 * value for value in values], marker=".", label=name)
    right.set(xlabel="epoch", ylabel="accuracy, %", ylim=(0, 101))
    right.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def parser(description, output, **defaults):
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="folder of the data set; default: a generated stand-in")
    parser.add_argument("--output", default=output, help="folder for the checkpoint and the curves")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint, up to --epochs")
    parser.add_argument("--logs", help="folder for TensorBoard")
    parser.add_argument("--epochs", type=positive)
    parser.add_argument("--batch-size", type=positive, help="samples, of all processes together")
    parser.add_argument("--rate", type=float, help="the largest learning rate of AdamW")
    parser.add_argument("--weight-decay", type=float, default=1e-5)
    parser.add_argument("--amp", action="store_true", help="mixed precision in bfloat16")
    parser.add_argument("--ema", type=float, default=0.0, help="decay of averaged parameters, to be tested; 0: none")
    parser.add_argument("--compile", action="store_true", help="torch.compile the network for training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes that read files, of each process that trains")
    parser.add_argument("--threads", type=positive, default=1, help="threads of the CPU, of each process")
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto", help="auto uses a GPU if there is one")
    parser.set_defaults(**defaults)
    return parser


def run(recipe, options):
    torch.set_num_threads(options.threads)
    if "LOCAL_RANK" in os.environ:
        device = digits_ddp.start_process()
    else:
        device = torch.device("cuda" if options.device == "auto" and torch.cuda.is_available() else "cpu")
    with contextlib.ExitStack() as stack:
        folder = options.data
        if folder is None:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            recipe.write_stand_in(folder)
        trainer = Trainer(recipe, options, device, folder)
        trainer.run()
    if trainer.processes > 1:
        del trainer
        digits_ddp.end_process()


def main(recipe, parse_options):
    """Runs the recipe with the options of the command line. An error of the user is one line, and exit code 2."""
    try:
        options = parse_options()
        run(recipe(options), options)
    except (UserError, OSError, ImportError) as error:
        print(f"{pathlib.Path(sys.argv[0]).name}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
