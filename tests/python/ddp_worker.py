"""One of several processes that train together (test_ddp.py starts them with torchrun); saves its results.

    torchrun --nproc_per_node 2 ddp_worker.py FOLDER

FOLDER/<rank>_<call>.pt contains the results of a network with learned time constants in an operator, in a neuron written
as text and in PLIF: `joined`, the gradients of the whole batch in one process; `alone`, those of this process's share;
`together`, those of DistributedDataParallel; and `states`, the last states of the network."""

import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "examples" / "python"))
import digits  # noqa: E402
import digits_ddp  # noqa: E402

TIRED = """neuron tired(x; v, a; leak) {
  h = leak * v + x
  s = spike(h - (1 + a), atan(2))
  return s
  v' = select(s, 0, h)
  a' = 0.75 * a + s
}"""


class Network(nn.Module):
    """Maps [T, batch, 6] to scores [batch, 3]. The states of the first layer are kept between calls."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.tau = nn.Parameter(torch.full((8,), 2.0))
        self.leak = nn.Parameter(torch.tensor(0.5))
        self.w = nn.Parameter(torch.zeros(()))
        self.v = None  # not a buffer, which the first process would broadcast

    def forward(self, x):
        ops = torch.ops.spikeforge
        spikes, v = ops.lif(3 * self.first(x), self.v, tau=self.tau, v_reset=torch.tensor(0.0, device=x.device))
        self.v = v.detach()
        (spikes,), _ = ops.run(TIRED, [3 * self.second(spikes)], [], [self.leak])
        return ops.plif(3 * self.third(spikes), self.w)[0].sum(0)


def gradients(network, x, classes, loss):
    network.zero_grad()
    loss(nn.functional.cross_entropy(network(x), classes, reduction="none")).backward()
    return {name.removeprefix("module."): p.grad.cpu().clone() for name, p in network.named_parameters()}


def main(folder):
    torch.set_num_threads(1)
    digits.load_spikeforge()
    device = digits_ddp.start_process()
    rank = distributed.get_rank()
    torch.manual_seed(0)
    x, classes = torch.rand(7, 10, 6).to(device), torch.randint(3, (10,)).to(device)
    own = digits_ddp.share(torch.arange(10, device=device))
    seen = {"samples": own.cpu()}

    torch.manual_seed(1)
    alone = Network().to(device)
    torch.manual_seed(1 + rank)  # DistributedDataParallel broadcasts those of the first process
    together = digits_ddp.prepare(Network(), device)
    for call in range(2):
        joined = gradients(alone, x, classes, lambda losses: losses.mean())
        v, alone.v = alone.v, None
        if call:
            alone.v = before[own]
        seen["alone"] = gradients(alone, x[:, own], classes[own], lambda losses: losses.mean())
        before = alone.v = v
        seen["joined"], seen["all_states"] = joined, v.cpu()
        seen["together"] = gradients(together, x[:, own], classes[own],
                                     lambda losses: digits_ddp.share_of_loss(losses, len(classes)))
        seen["states"] = together.module.v.cpu()
        torch.save(seen, Path(folder) / f"{rank}_{call}.pt")
    del together
    digits_ddp.end_process()


if __name__ == "__main__":
    os.environ.setdefault("SPIKEFORGE_LIBRARY", str(REPOSITORY / "build/release/lib/libspikeforge.so"))
    main(sys.argv[1])
