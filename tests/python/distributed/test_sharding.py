"""Operators on torch's DTensor: the results of shards equal those of one process, and tensors sharded over samples or
neurons stay sharded."""

import pytest
import torch

import spikeforge  # noqa: F401, which registers the rules
from loops import output_of
from ranks import on_ranks

ADAPTIVE = """neuron adaptive(x; v, a; leak, gain) {
  h = leak * v + gain * x
  s = spike(h - (1 + a), atan(2))
  return s
  v' = select(s, 0, h)
  a' = 0.75 * a + s
}"""
LIF = "neuron lif(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"
SIZES = {"T": 6, "B": 5, "C": 4, "H": 6, "W": 4, "K": 3, "1": 1}  # 5 and 6 are not divisible by all numbers of ranks
PREDEFINED = ("lif", "integrate_and_fire", "qif", "eif", "izhikevich", "adaptive_lif")

# name -> a function of tensors, the dimensions of each tensor, and the dimensions over which the first stays sharded
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
    "max_pool2d of a normalisation": (
        lambda x, weight: (torch.ops.spikeforge.max_pool2d(x, [2], [2], weight=weight - 0.5) * weight.view(-1, 1, 1),),
        "TBCHW C",
        "TBC",
    ),
    "max_pool2d_statistics": (
        lambda x, weight: tuple(t * weight.sum() for t in torch.ops.spikeforge.max_pool2d_statistics(x, [2], [2], weight=weight - 0.5)),
        "TBCHW C",
        None,  # the statistics are over all samples
    ),
    "avg_pool2d": (lambda x: (torch.ops.spikeforge.avg_pool2d(x, [2], [2]),), "TBCHW", "TBC"),
    "delayed_linear": (
        lambda x, weight, delay: (torch.ops.spikeforge.delayed_linear(x, weight, 2 * delay, max_delay=2),),
        "TBC KC KC",
        "B",
    ),
    "linear of bits": (
        lambda x, weight: (torch.ops.spikeforge.linear(torch.ops.spikeforge.lif(3 * x, bits=1)[0], weight),),
        "TBC KC",
        None,  # torch shards the product by its own rules
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
    """Returns the upstream gradient with the placements of the result."""
    if not hasattr(result, "placements") or any(placement.is_partial() for placement in result.placements):
        return weight
    return weight.redistribute(placements=result.placements)


def compare(name, mesh, over):
    """Returns the largest difference of results and gradients, relative to one process; and their placements."""
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


NOISY = """neuron noisy(x; v; leak) {
  h = leak * v + x + 0.5 * normal()
  s = spike(h - 1, atan(2))
  return s
  v' = select(s, 0, h)
}"""


def sharded(t, mesh, dim):
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(t, mesh, [Shard(dim)])


def samples_of_different_lengths(mesh):
    x, lengths = 3 * torch.rand(6, 5, 4), torch.tensor([6, 0, 3, 5, 1])
    start = torch.rand(6, 5) < 0.3
    expected, v = torch.ops.spikeforge.lif(x, lengths=lengths, start=start)
    given = {"lengths": sharded(lengths, mesh, 0), "start": sharded(start, mesh, 1)}
    got, w = torch.ops.spikeforge.lif(sharded(x, mesh, 1), **given)
    return torch.equal(got.full_tensor(), expected) and torch.equal(w.full_tensor(), v) and got.placements[0].is_shard(1)


def every_shard_draws_numbers_of_its_own(mesh):
    x, leak = torch.full((6, 8, 50), 0.2, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    seed = torch.tensor(7)
    (s,), _ = torch.ops.spikeforge.run(NOISY, [sharded(x, mesh, 1).requires_grad_()], [], [place_whole(leak, mesh)], seed=seed)
    (again,), _ = torch.ops.spikeforge.run(NOISY, [sharded(x, mesh, 1)], [], [place_whole(leak, mesh)], seed=seed)
    whole = s.detach().full_tensor()
    rows = {tuple(row.flatten().tolist()) for row in whole.unbind(1)}
    s.sum().backward()  # recomputes the states with the same random numbers
    return len(rows) == 8 and torch.equal(again.full_tensor(), whole)


def place_whole(t, mesh):
    from torch.distributed.tensor import Replicate, distribute_tensor

    return distribute_tensor(t, mesh, [Replicate()])


def channels_last_stays(mesh):
    x = torch.rand(3, 4, 2, 5, 6).permute(0, 1, 4, 2, 3)
    expected = torch.ops.spikeforge.max_pool2d(torch.ops.spikeforge.lif(3 * x)[0], [2], [2])
    got = torch.ops.spikeforge.max_pool2d(torch.ops.spikeforge.lif(3 * sharded(x, mesh, 1))[0], [2], [2])
    return got.stride() == expected.stride() and torch.equal(got.full_tensor(), expected)


def inference_mode(mesh):
    x = 3 * torch.rand(6, 5, 4)
    with torch.inference_mode():
        got, _ = torch.ops.spikeforge.lif(sharded(x, mesh, 2))
    return torch.equal(got.full_tensor(), torch.ops.spikeforge.lif(x)[0]) and got.placements[0].is_shard(2)


def plain_tensors_beside_are_refused(mesh):
    with pytest.raises(TypeError, match="lif_forward: v is a plain tensor, but another argument is a DTensor; convert it"):
        torch.ops.spikeforge.lif(sharded(torch.rand(6, 5, 4), mesh, 1), torch.rand(5, 4))
    with pytest.raises(TypeError, match="lif_forward: x is a plain tensor, but another argument is a DTensor; convert it"):
        torch.ops.spikeforge.lif(torch.rand(6, 5, 4), sharded(torch.rand(5, 4), mesh, 0))
    return True


def shapes_of_the_whole_are_refused_alike(mesh):
    """Passes a state or a constant with the shape of a shard instead of the whole."""
    ranks, messages = mesh.size(), []
    x = sharded(torch.rand(6, 5, 3 * ranks), mesh, 2)
    for wrong in ({"v": place_whole(torch.zeros(5, 3), mesh)}, {"tau": place_whole(torch.full((3,), 2.0), mesh)}):
        with pytest.raises(ValueError) as refused:
            torch.ops.spikeforge.lif(x, **wrong)
        messages.append(str(refused.value))
    beside = f"[5, {3 * ranks}]"
    return messages == [
        f"lif: v must have shape {beside}, that of x without its time dimension, but has [5, 3]",
        f"lif: tau must broadcast against {beside}, the shape of x without its time dimension, but has shape [3]",
    ]


def a_rank_without_neurons_has_no_constants(mesh):
    x, tau = 3 * torch.rand(6, 5, 1), torch.full((1,), 3.0)
    got, _ = torch.ops.spikeforge.lif(sharded(x, mesh, 2), tau=sharded(tau, mesh, 0))
    return torch.equal(got.full_tensor(), torch.ops.spikeforge.lif(x, tau=tau)[0])


def second_derivatives_without_a_first_state(mesh):
    """Tests a voltage with a constant initial value, and a recovery whose initial value is a parameter."""

    def second(x, neuron):
        y, *_ = getattr(torch.ops.spikeforge, neuron)(x)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        return torch.autograd.grad((first * first).sum(), x)[0]

    x = 3 * torch.rand(6, 5, 4, dtype=torch.float64)
    for neuron in ("lif", "izhikevich"):
        expected = second(x.clone().requires_grad_(), neuron)
        got = second(sharded(x, mesh, 2).requires_grad_(), neuron)
        torch.testing.assert_close(got.full_tensor(), expected)
    return bool(expected.abs().sum() > 0)


def compiled(mesh):
    def function(x, tau):
        s, v = torch.ops.spikeforge.lif(3 * x, tau=1.5 + tau, v_reset=None)
        return s, v

    torch.manual_seed(0)
    x, tau = sharded(torch.rand(6, 4, 4), mesh, 1), place_whole(torch.rand(4), mesh)
    results = []
    for call in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        leaves = x.detach().clone().requires_grad_(), tau.detach().clone().requires_grad_()
        s, v = call(*leaves)
        (s.sum() + v.square().sum()).backward()
        results.append([t.full_tensor() for t in (s, v, *(leaf.grad for leaf in leaves))] + [s.placements])
    eager, other = results
    return all(torch.equal(one, two) for one, two in zip(eager[:-1], other[:-1])) and eager[-1] == other[-1]


CLAIMS = (
    samples_of_different_lengths,
    every_shard_draws_numbers_of_its_own,
    channels_last_stays,
    inference_mode,
    plain_tensors_beside_are_refused,
    shapes_of_the_whole_are_refused_alike,
    a_rank_without_neurons_has_no_constants,
    second_derivatives_without_a_first_state,
    compiled,
)


def on_meshes(rank, world_size):
    from torch.distributed.device_mesh import init_device_mesh

    row = init_device_mesh("cpu", (world_size,))
    if world_size == 2:
        seen = {(name, over): compare(name, row, over) for name in CASES for over in ("B", "C", "T")}
    else:  # one rank has no samples
        square = init_device_mesh("cpu", (2, 2))
        seen = {(name, over): compare(name, row if over == "B" else square, over) for name in CASES for over in ("B", "BC")}
    torch.manual_seed(0)
    return seen, {claim.__name__: claim(row) for claim in CLAIMS if claim is not compiled or world_size == 2}


@pytest.fixture(scope="module", params=[2, 4])
def seen(request):
    """The results of each rank."""
    return on_ranks(request.param, on_meshes, request.param)


@pytest.mark.parametrize("name", CASES)
def test_shards_equal_the_whole_and_stay_sharded_if_possible(seen, name):
    from torch.distributed.tensor import Partial, Replicate, Shard

    _, axes, stays = CASES[name]
    first, *rest = axes.split()
    for (of, over), (error, placements) in seen[0][0].items():
        if of != name:
            continue
        assert error < 1e-12, over
        assert all(other[of, over] == (error, placements) for other, _ in seen)
        if stays is None:
            continue
        expected = [Shard(first.index(a)) if a in stays else Replicate() for a in over]
        results = len(placements) - len(axes.split())
        assert list(placements[0]) == expected, over
        assert list(placements[results]) == expected, over


def test_single_calls_are_sharded_as_the_rules_say(seen):
    for _, claims in seen:
        assert all(claims.values()), claims


def test_rules_are_there_whatever_is_imported_first():
    program = "import sys, spikeforge; before = set(sys.modules); import torch.distributed.tensor; print(set(sys.modules) - before)"
    assert "'spikeforge.distributed.sharding'" in output_of(program)
