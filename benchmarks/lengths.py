#!/usr/bin/env python3
"""Batches whose sequences end before T: their time beside that of the same batch without lengths.

B sequences of LIF neurons (or, with --recurrent, of a recurrent layer) whose lengths are drawn from T/4 to T. "share" is the steps that there are, of all;
"time" that with lengths, of that without; "time / share" is what a step costs more or less than in a whole batch. Zeros behind the ends are
written in any case. The least of all rounds, in which both take turns.

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
    told = dict(lengths=lengths.to(args.device))
    if args.start:
        told["start"] = (torch.rand(args.steps, args.batch) < 0.02).to(args.device)
    w = (torch.randn(inner, inner) / inner**0.5).to(**options) if args.recurrent else None

    def forward(x, **told):
        return ops.lif(x, **told)[0] if w is None else ops.recurrent_run(LIF, [x], w, [], [], **told)[0][0]

    def train(**told):
        leaf = x.detach().requires_grad_()
        torch.autograd.grad(forward(leaf, **told), leaf, grad)

    return share, {
        "inference": (lambda: forward(x), lambda: forward(x, **told)),
        "training": (train, lambda: train(**told)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--inner", type=int, nargs="+", default=[32, 128, 512, 4096], help="neurons of a sample")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--start", action="store_true", help="samples start anew now and then, too")
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
