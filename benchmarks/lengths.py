#!/usr/bin/env python3
"""Compares batches whose sequences end before T with the same batch without lengths.

B sequences of LIF neurons (or, with --recurrent, of a recurrent layer) have random lengths from T/4 to T. "share" is
the share of steps before the ends; "time" is the time with lengths relative to that without; "time / share" is the
cost of a step relative to one in a whole batch. Zeros after the ends are written in both cases. Times are the least of
all rounds, in which both alternate.

    python benchmarks/lengths.py
    python benchmarks/lengths.py --device cuda --dtype float16 --json FILE"""

import argparse
import json
import pathlib

import this_clone  # noqa: F401
import torch
from measure import Clock, by_events

ops = torch.ops.spikeforge
LIF = "neuron lif(x; v) { h = v + (x - v) * 0.5; s = spike(h - 1, sigmoid(4)); return s; v' = select(s, 0, h) }"


def contestants(args, inner):
    torch.manual_seed(0)
    options = dict(device=args.device, dtype=getattr(torch, args.dtype))
    x = torch.rand(args.steps, args.batch, inner, **options) * 1.5
    grad = torch.randn_like(x)
    lengths = torch.randint(args.steps // 4, args.steps + 1, (args.batch,), dtype=torch.int32)
    share = lengths.sum().item() / (args.batch * args.steps)
    given = dict(lengths=lengths.to(args.device))
    if args.start:
        given["start"] = (torch.rand(args.steps, args.batch) < 0.02).to(args.device)
    w = (torch.randn(inner, inner) / inner**0.5).to(**options) if args.recurrent else None

    def forward(x, **given):
        return ops.lif(x, **given)[0] if w is None else ops.recurrent_run(LIF, [x], w, [], [], **given)[0][0]

    def train(**given):
        leaf = x.detach().requires_grad_()
        torch.autograd.grad(forward(leaf, **given), leaf, grad)

    return share, {
        "inference": (lambda: forward(x), lambda: forward(x, **given)),
        "training": (train, lambda: train(**given)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--inner", type=int, nargs="+", default=[32, 128, 512, 4096], help="neurons of a sample")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--start", action="store_true", help="also restart samples at random steps")
    parser.add_argument("--recurrent", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    seconds = by_events if args.device == "cuda" else Clock(args.device)
    rows = []
    print(f"{'neurons':>8} {'':>10} {'all, ms':>9} {'lengths, ms':>12} {'share':>6} {'time':>6} {'time / share':>13}")
    for inner in args.inner:
        share, cases = contestants(args, inner)
        for name, (whole, ending) in cases.items():
            times = [(seconds([whole]), seconds([ending])) for _ in range(args.rounds + 2)][2:]
            least = [min(column) for column in zip(*times)]
            ratio = least[1] / least[0]
            rows.append(dict(inner=inner, what=name, whole=least[0], lengths=least[1], share=share))
            print(
                f"{inner:>8} {name:>10} {least[0] * 1e3:>9.3f} {least[1] * 1e3:>12.3f} {share:>6.2f} {ratio:>6.2f} "
                f"{ratio / share:>13.2f}",
                flush=True,
            )
    if args.json:
        device = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
        settings = {key: value for key, value in vars(args).items() if key != "json"}
        args.json.write_text(json.dumps(dict(device=device, settings=settings, rows=rows), indent=1))


if __name__ == "__main__":
    main()
