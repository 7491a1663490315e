#!/usr/bin/env python3
"""Measures a step of the microcircuit over several processes and its exchange, and fits the model of docs/scaling.md.

    python benchmarks/ranks.py --scale 0.05                                                    # one process
    torchrun --standalone --nproc_per_node 2 benchmarks/ranks.py --scale 0.05                  # two share its neurons
    torchrun --standalone --nproc_per_node 2 benchmarks/ranks.py --areas 2 --scale 0.05        # an area each
    torchrun --standalone --nproc_per_node 2 benchmarks/ranks.py --device cuda --areas 2 --scale 1
    torchrun --standalone --nproc_per_node 2 benchmarks/ranks.py --late 1000 --areas 2         # exchanges 1 ms later (CPU)
    torchrun --standalone --nproc_per_node 2 benchmarks/ranks.py --messages                    # an all-gather by bytes
    python benchmarks/ranks.py --model benchmarks/results/ranks_h200.json                      # fits, and extrapolates

Figures are microseconds per step without recording, the best of --rounds pieces. The time of the exchange is measured
on the CPU; on a GPU it is the time of a step beyond that of a single process. Lines are appended to the file of
--json.
"""

import argparse
import json
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples/microcircuit")]

import network as microcircuit  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import spikeforge  # noqa: E402

WARM_UP = 500  # steps
MESSAGES = [2**i for i in range(4, 23, 2)]  # bytes


class Late(dist.ProcessGroup):
    """A group whose messages take some microseconds more, as between distant machines."""

    group_name = "late"

    def __init__(self, group, microseconds):
        super().__init__(group.rank(), group.size())
        self.group, self.seconds = group, microseconds / 1e6
        torch._C._distributed_c10d._register_process_group(self.group_name, self)

    def allgather_into_tensor_coalesced(self, everything, own, options=None):
        work = self.group.allgather_into_tensor_coalesced(everything, own)
        work.wait()
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:  # a process that sleeps may wake up later
            pass
        return work


def start(device):
    """Returns the group of torchrun's processes, or None, and the device of this process."""
    if device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if "RANK" not in os.environ:
        return None, device
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    return dist.group.WORLD, device


def wait(device):
    if device != "cpu":
        torch.cuda.synchronize()


def step_of(options, group, device):
    begun = time.perf_counter()
    made, _ = microcircuit.build(options.scale, min(options.scale, 1.0), options.drive, device=device, areas=options.areas, group=group)
    share = made.share()
    wait(device)
    drawn = time.perf_counter() - begun
    spikes = len(spikeforge.simulate(made, WARM_UP).steps) / WARM_UP
    times, before = [], made.share()
    for _ in range(options.rounds):
        begun = time.perf_counter()
        spikeforge.simulate(made, options.steps, spikes=False)
        wait(device)
        times.append((time.perf_counter() - begun) / options.steps * 1e6)
    after = made.share()
    steps = options.rounds * options.steps
    return dict(
        scale=options.scale, areas=options.areas, drive=options.drive, ranks=group.size() if group else 1, late=options.late, neurons=share.neurons,
        connections=share.connections, block=share.block, drawn=drawn, spikes=spikes, microseconds=min(times), mean=sum(times) / len(times),
        exchange=(after.seconds - before.seconds) / steps * 1e6, bytes_a_step=(after.bytes - before.bytes) / steps,
    )


def messages_of(group, device, rounds=200):
    """Returns the microseconds of an all-gather of each number of bytes per process, one after the other."""
    found = []
    for size in MESSAGES:
        own = torch.zeros(size // 4, dtype=torch.int32, device=device)
        everything = torch.zeros(group.size() * own.numel(), dtype=torch.int32, device=device)
        best = float("inf")
        for _ in range(5):
            wait(device)
            begun = time.perf_counter()
            for _ in range(rounds):
                dist.all_gather_into_tensor(everything, own)
            wait(device)
            best = min(best, (time.perf_counter() - begun) / rounds * 1e6)
        found.append(dict(bytes=size, microseconds=best))
    return dict(ranks=group.size(), messages=found)


def fit(messages):
    """Fits the latency in microseconds, and bytes per microsecond, by least squares of relative errors."""
    x = torch.tensor([[1.0, m["bytes"]] for m in messages], dtype=torch.float64)
    y = torch.tensor([m["microseconds"] for m in messages], dtype=torch.float64)
    latency, per_byte = torch.linalg.lstsq(x / y[:, None], torch.ones(len(y), 1, dtype=torch.float64)).solution.flatten().tolist()
    return latency, per_byte


def exchange(latency, per_byte, ranks, bytes_of_a_rank, block, is_ring=False):
    """Returns the microseconds of an all-gather per step: one latency for each round of a tree or a ring, and the
    transfer of the data of all other ranks, one after the other."""
    rounds = ranks - 1 if is_ring else (ranks - 1).bit_length()
    return (rounds * latency + (ranks - 1) * bytes_of_a_rank * per_byte) / block


def bytes_sent(line):
    """Returns the bytes of each rank at an exchange: the number of its spikes, then the spikes, as 32-bit integers."""
    return 4 * (line["spikes"] * line["block"] + 1)


def model(path, network_latency, network_speed):
    kept = json.loads(path.read_text())["lines"]
    messages = next(line for line in kept if "messages" in line)
    latency, per_byte = fit(messages["messages"])
    print(f"an all-gather of {messages['ranks']} ranks: {latency:.1f} us and {1e-3 / per_byte:.1f} GB/s")
    steps = [line for line in kept if "microseconds" in line]
    shared = [line for line in steps if line["ranks"] > 1]
    for line in shared:
        own = exchange(latency, per_byte, line["ranks"], bytes_sent(line), line["block"]) + line["late"] / line["block"]
        alone = next((s for s in steps if s["ranks"] == 1 and s["areas"] * line["ranks"] == line["areas"] and s["scale"] == line["scale"]), None)
        text = f"scale {line['scale']:g}, {line['areas']} areas, {line['ranks']} ranks, {line['late']:g} us late: {line['microseconds']:.1f} us a step, of which the all-gather should take {own:.2f}"
        print(text + (f"; one rank {alone['microseconds']:.1f} us, model {alone['microseconds'] + own:.1f}" if alone else ""))
    print(f"\nfrom here on all-gathers between machines of 8 ranks: {network_latency:g} us a round, {network_speed:g} GB/s")
    for line in shared:
        for ranks in (8, 64 * 8):
            far = ranks > 8
            cost = [exchange(network_latency if far else latency, 1e-3 / network_speed if far else per_byte, ranks, bytes_sent(line), line["block"], ring) for ring in (False, True)]
            print(f"block {line['block']:4}, {line['spikes']:.0f} spikes a step of a rank, {ranks:4} ranks: {cost[0]:.2f} us a step in a tree, {cost[1]:.2f} in a ring")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--scale", type=float, default=0.05)
    parser.add_argument("--areas", type=int, default=1)
    parser.add_argument("--drive", choices=["poisson", "dc"], default="poisson")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of each process on the CPU")
    parser.add_argument("--late", type=float, default=0, help="microseconds that are added to each exchange, on the CPU")
    parser.add_argument("--messages", action="store_true", help="time an all-gather alone")
    parser.add_argument("--model", type=pathlib.Path, help="a file of --json")
    parser.add_argument("--network-latency", type=float, default=10, help="microseconds between machines, which --model assumes")
    parser.add_argument("--network-speed", type=float, default=50, help="GB/s of each rank between machines")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.model:
        model(options.model, options.network_latency, options.network_speed)
        return
    torch.set_num_threads(options.threads)
    group, device = start(options.device)
    if options.late:
        group = Late(group, options.late)
    line = messages_of(group, device) if options.messages else step_of(options, group, device)
    if group is None or group.rank() == 0:
        print(json.dumps(line), flush=True)
        if options.json:
            kept = json.loads(options.json.read_text()) if options.json.exists() else dict(
                device=torch.cuda.get_device_name() if options.device == "cuda" else "CPU", torch=torch.__version__, lines=[])
            kept["lines"].append(line)
            options.json.write_text(json.dumps(kept, indent=1) + "\n")
    if group is not None:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
