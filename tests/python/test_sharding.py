"""Operators on torch's DTensor: what ranks compute of their shards is what one process computes of the whole, and what
is sharded over samples or neurons stays so."""

import pytest
import torch
from torch import nn

import spikeforge  # noqa: F401, which registers the rules
from ranks import on_ranks

ADAPTIVE = """neuron adaptive(x; v, a; leak, gain) {
  h = leak * v + gain * x
  s = spike(h - (1 + a), atan(2))
  return s
  v' = select(s, 0, h)
  a' = 0.75 * a + s
}"""
LIF = "neuron lif(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"
SIZES = {"T": 6, "B": 5, "C": 4, "H": 6, "W": 4, "K": 3, "1": 1}  # 5 and 6 leave ranks with unequal shares
PREDEFINED = ("lif", "integrate_and_fire", "qif", "eif", "izhikevich", "adaptive_lif")

# By name: a function of tensors; the dimensions of each; those over which the first may stay sharded.
CASES = {name: (lambda x, v, op=getattr(torch.ops.spikeforge, name): op(3 * x, v), "TBC BC", "BC") for name in PREDEFINED}
CASES |= {
    "plif": (lambda x, w, v: torch.ops.spikeforge.plif(3 * x, w - 0.5, v), "TBC C BC", "BC"),
    "lif with parameters": (
        lambda x, v, tau, reset: torch.ops.spikeforge.lif(3 * x, v, tau=1.5 + tau, v_reset=reset, store_v=True),
        "TBC BC C 1",
        "BC",
    ),
    "run": (
        lambda x, v, a, leak, gain: flat(torch.ops.spikeforge.run(ADAPTIVE, [3 * x], [v, a], [leak, gain])),
        "TBC BC BC C 1",
        "BC",
    ),
    "recurrent_run": (
        lambda x, w, tau: flat(torch.ops.spikeforge.recurrent_run(LIF, [3 * x], w, [], [1.5 + tau])),
        "TBC CC C",
        "B",
    ),
    "batch_norm_run": (
        lambda x, weight, bias, tau: flat(torch.ops.spikeforge.batch_norm_run(LIF, [x], [], [1.5 + tau], weight, bias)),
        "TBC C C 1",
        "C",
    ),
    "max_pool2d": (lambda x: (torch.ops.spikeforge.max_pool2d(x, [2], [2]),), "TBCHW", "TBC"),
    "avg_pool2d": (lambda x: (torch.ops.spikeforge.avg_pool2d(x, [2], [2]),), "TBCHW", "TBC"),
    "delayed_linear": (
        lambda x, weight, delay: (torch.ops.spikeforge.delayed_linear(x, weight, 2 * delay, max_delay=2),),
        "TBC KC KC",
        "B",
    ),
    "linear of bits": (
        lambda x, weight: (torch.ops.spikeforge.linear(torch.ops.spikeforge.lif(3 * x, bits=1)[0], weight),),
        "TBC KC",
        None,  # the product is torch's, which has rules of its own
    ),
}


def flat(results):
    return tuple(t for part in results for t in (part if isinstance(part, (list, tuple)) else [part]))


def gradients(function, tensors, weights):
    results = function(*tensors)
    weights = [like_placed(weight, result) for weight, result in zip(weights, results)]
    sum((result * weight).sum() for result, weight in zip(results, weights)).backward()
    return [t.detach() for t in results] + [t.grad for t in tensors]


def like_placed(weight, result):
    """Upstream gradients lie as the results do."""
    if not hasattr(result, "placements") or any(placement.is_partial() for placement in result.placements):
        return weight
    return weight.redistribute(placements=result.placements)


def compare(name, mesh, over):
    """The largest difference of results and gradients, relative to the whole's; and their placements."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def placed(t, axes):
        return distribute_tensor(t, mesh, [Shard(axes.index(a)) if a in axes else Replicate() for a in over])

    function, axes, _ = CASES[name]
    torch.manual_seed(0)
    tensors = [torch.rand([SIZES[a] for a in of], dtype=torch.float64) for of in axes.split()]
    weights = [torch.rand_like(t) for t in function(*tensors)]
    expected = gradients(function, [t.clone().requires_grad_() for t in tensors], weights)
    given = [placed(t, of).requires_grad_() for t, of in zip(tensors, axes.split())]
    got = gradients(function, given, [placed(w, "") for w in weights])
    assert all(one.shape == whole.shape for one, whole in zip(got, expected))
    errors = [((one.full_tensor() - whole).abs().max() / whole.abs().max()).item() for one, whole in zip(got, expected)]
    return max(errors), [one.placements for one in got]


def on_meshes(rank, world_size):
    from torch.distributed.device_mesh import init_device_mesh

    row = init_device_mesh("cpu", (world_size,))
    seen = {(name, over): compare(name, row, over) for name in CASES for over in ("B", "C", "T")}
    if world_size == 4:
        square = init_device_mesh("cpu", (2, 2))
        seen |= {(name, "BC"): compare(name, square, "BC") for name in CASES}
    return seen


@pytest.fixture(scope="module", params=[2, 4])
def seen(request):
    """Of each rank."""
    return on_ranks(request.param, on_meshes, request.param)


@pytest.mark.parametrize("name", CASES)
def test_shards_give_what_the_whole_gives_and_stay_sharded_where_they_can(seen, name):
    from torch.distributed.tensor import Partial, Replicate, Shard

    _, axes, stays = CASES[name]
    first, *rest = axes.split()
    for (of, over), (error, placements) in seen[0].items():
        if of != name:
            continue
        assert error < 1e-12, over
        assert all(other[of, over] == (error, placements) for other in seen)
        if stays is None:
            continue
        expected = [Shard(first.index(a)) if a in stays else Replicate() for a in over]
        results = len(placements) - len(axes.split())
        assert list(placements[0]) == expected, over
        assert list(placements[results]) == expected, over
