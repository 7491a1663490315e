#!/usr/bin/env python3
"""Trains the network of digits.py in several processes, each on its share of every batch:

    torchrun --standalone --nproc_per_node 2 examples/python/digits_ddp.py

On GPUs, one a process, through NCCL; otherwise on the CPU, through gloo. Gradients are those of one process on the
whole batch: DistributedDataParallel takes their mean, those of learned neuron parameters included. Initial states and
states that a module keeps between calls belong to the samples of a process: keep them out of what
DistributedDataParallel copies from the first process (plain attributes, or broadcast_buffers=False where they are
buffers)."""

import argparse
import os
import pathlib
import sys
import time

import digits
import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def start_process():
    """Joins the group of processes; returns the device of this process."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        distributed.init_process_group("nccl", device_id=device)
        return device
    distributed.init_process_group("gloo")
    return torch.device("cpu")


def end_process():
    """Leaves the group after all processes have finished, so that gloo's threads end here. If they free their last
    tensors after Python has ended, the process aborts."""
    distributed.barrier()
    distributed.destroy_process_group()


def share(batch):
    """Returns this process's samples: with two processes, every second one."""
    return batch[distributed.get_rank()::distributed.get_world_size()]


def share_of_loss(losses, batch_size):
    """Returns the loss of this process's samples; its mean over processes is the mean loss of the whole batch."""
    return losses.sum() * distributed.get_world_size() / batch_size


def prepare(network, device):
    """Wraps the network for distributed training. Batch statistics cover all processes on GPUs, and the share of each
    process on the CPU, where torch has no synchronised batch norm."""
    network = network.to(device)
    if device.type != "cuda":
        return DistributedDataParallel(network)
    return DistributedDataParallel(torch.nn.SyncBatchNorm.convert_sync_batchnorm(network), device_ids=[device.index])


def train(network, samples, held_out, options):
    images, labels = samples
    fewest = 2 * distributed.get_world_size()  # batch norm needs two samples per process
    batches = [size for size in [len(labels) % options.batch_size] if size >= fewest]
    batches = len(labels) // options.batch_size + len(batches)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * batches)
    start = time.monotonic()
    for epoch in range(1, options.epochs + 1):
        network.train()
        total = torch.zeros((), device=labels.device)
        # The order is the same in all processes.
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(options.seed + epoch))
        for batch in order.to(labels.device).split(options.batch_size)[:batches]:
            own = share(batch)
            losses = functional.cross_entropy(network(digits.move_a_little(images[own])), labels[own], reduction="none")
            optimizer.zero_grad()
            share_of_loss(losses, len(batch)).backward()
            optimizer.step()
            schedule.step()
            total += losses.detach().sum()
        distributed.all_reduce(total)
        if distributed.get_rank() == 0:
            seconds = time.monotonic() - start
            print(f"epoch {epoch:2}/{options.epochs}  loss {total.item() / len(labels):.4f}"
                  f"  held out {digits.accuracy(network.module, *held_out):6.1%}"
                  f"  {seconds / epoch * (options.epochs - epoch):3.0f} s left", flush=True)


def run(options):
    digits.load_spikeforge()
    torch.set_num_threads(options.threads)
    device = start_process()
    samples, held_out = digits.split(*digits.read_digits(options.data), device)
    torch.manual_seed(options.seed)
    network = prepare(digits.Network(options.neuron, options.steps), device)
    torch.manual_seed(options.seed + distributed.get_rank())  # each process shifts its images independently
    train(network, samples, held_out, options)

    if distributed.get_rank() == 0:
        plain = digits.Network(options.neuron, options.steps).to(device)
        plain.load_state_dict(network.module.state_dict())
        checkpoint = pathlib.Path(options.output) / "network_python.pt"
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        digits.save(plain, options, checkpoint)
        print(f"accuracy on the held-out digits: {digits.accuracy(plain, *held_out):.2%}")
        print(f"saved to {checkpoint}; to look again: examples/python/digits.py --load {checkpoint}")
    del network
    end_process()


def parse_options():
    parser = digits.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="build/data/digits.csv", help="digits of scripts/prepare_digits.py")
    parser.add_argument("--output", default="build/digits", help="folder for the checkpoint")
    parser.add_argument("--neuron", choices=["if", "lif", "plif"], default="plif", help="the neurons of every layer")
    parser.add_argument("--steps", type=digits.positive, default=8, help="time steps for each image")
    parser.add_argument("--epochs", type=digits.positive, default=30, help="passes over the training digits")
    parser.add_argument("--batch-size", type=digits.positive, default=64, help="images in a batch, of all processes together")
    parser.add_argument("--learning-rate", type=float, default=5e-3, help="the initial learning rate of Adam")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights and the order of the digits")
    parser.add_argument("--threads", type=digits.positive, default=1, help="threads of the CPU, of each process")
    options = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        raise digits.UserError("start it with torchrun --standalone --nproc_per_node 2 examples/python/digits_ddp.py")
    return options


if __name__ == "__main__":
    try:
        run(parse_options())
    except digits.UserError as error:
        print(f"digits_ddp.py: {error}", file=sys.stderr)
        sys.exit(2)
