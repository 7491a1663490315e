"""Distributed training: modules under FSDP2, DDP and DTensor, synchronised statistics, and products of a distributed
matrix have the losses and gradients of one process."""

import dataclasses

import pytest
import torch
from torch import distributed, nn

import spikeforge
import spikeforge.nn as snn
from documentation import code
from ranks import on_ranks
from spikeforge import rules

F64 = {"dtype": torch.float64}
BATCH, STEPS = 4, 5


def network(norm, device):
    """Returns a network with this class of normalisation, or without one if `norm` is None."""
    torch.manual_seed(1)
    lif = snn.LIF(tau=nn.Parameter(torch.full((8,), 2.0)), v_threshold=0.3)
    return nn.Sequential(
        snn.TimeDistributed(nn.Linear(6, 8, bias=False)),  # a normalisation removes any bias
        lif if norm is None else snn.BatchNormNeuron(norm(8), lif),
        nn.Linear(8, 8),
        snn.Recurrent(snn.AdaptiveLIF(v_threshold=0.2), nn.Linear(8, 8)),
        snn.TimeDistributed(nn.Linear(8, 3)),
    ).to(device, torch.float64)


def difference(got, expected):
    """Returns the largest error, relative to the largest expected value of each tensor."""
    return max(((one - whole).abs().max() / whole.abs().max().clamp(min=1e-30)).item() for one, whole in zip(got, expected))


def loss_of(net, x, samples):
    """Returns a loss whose mean over equal shares is the loss of the whole batch."""
    return net(x).square().sum() / samples


def of_one_process(x, norm):
    net = network(norm, x.device)
    loss_of(net, x, x.shape[1]).backward()
    grads = [p.grad for p in net.parameters()]
    assert all(grad.abs().max() > 0 for grad in grads)
    return grads


def under_ddp(mesh, x, own):
    on_gpu = x.device.type == "cuda"  # SyncBatchNorm in torch's DDP needs a GPU
    net = nn.parallel.DistributedDataParallel(network(nn.SyncBatchNorm if on_gpu else None, x.device))
    loss_of(net, x[:, own], own.stop - own.start).backward()
    return difference([p.grad for p in net.parameters()], of_one_process(x, nn.BatchNorm1d if on_gpu else None))


def under_fsdp(mesh, x, own):
    from torch.distributed.fsdp import fully_shard

    net = network(nn.SyncBatchNorm, x.device)
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    loss_of(net, x[:, own], own.stop - own.start).backward()
    return difference([p.grad.full_tensor() for p in net.parameters()], of_one_process(x, nn.BatchNorm1d))


def on_shards(mesh, x, own):
    """Runs a network of DTensors; x is sharded over samples, and the parameters are replicated."""
    from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

    torch.manual_seed(2)
    parts = snn.BatchNormNeuron(nn.BatchNorm1d(6), snn.LIF(tau=nn.Parameter(torch.tensor(2.0)))), snn.Recurrent(snn.LIF(), nn.Linear(6, 6))
    net = nn.Sequential(*parts).to(x.device, torch.float64)
    loss_of(net, x, x.shape[1]).backward()
    expected = [p.grad.clone() for p in net.parameters()] + [net[0].norm.running_var.clone()]
    net.zero_grad()
    net[0].norm.reset_running_stats()
    sharded = distribute_module(net, mesh)
    loss_of(sharded, distribute_tensor(x, mesh, [Shard(1)]), x.shape[1]).backward()
    got = [p.grad.full_tensor() for p in sharded.parameters()] + [sharded[0].norm.running_var.full_tensor()]
    return difference(got, expected)


def with_an_empty_batch(mesh, x, own):
    """Gives all samples to the first rank: statistics and gradients are those of the first rank."""
    layer = snn.BatchNormNeuron(nn.SyncBatchNorm(6), snn.LIF(tau=2.0)).to(x.device, torch.float64)
    alone = snn.BatchNormNeuron(nn.BatchNorm1d(6), snn.LIF(tau=2.0)).to(x.device, torch.float64)
    mine = (x if mesh.get_local_rank() == 0 else x[:, :0]).clone().requires_grad_()
    whole = x.clone().requires_grad_()
    layer(mine).square().sum().backward()
    alone(whole).square().sum().backward()
    grads = [p.grad for p in layer.parameters()]
    for grad in grads:
        distributed.all_reduce(grad)
    running = [layer.norm.running_mean - alone.norm.running_mean, layer.norm.running_var - alone.norm.running_var]
    of_x = mine.grad - whole.grad[:, : mine.shape[1]]
    return max(
        difference(grads, [p.grad for p in alone.parameters()]),
        max(t.abs().max().item() for t in running),
        of_x.abs().max().item() if of_x.numel() else 0.0,
    )


def product(mesh, homogeneous, kinds):
    """Compares a drawn matrix that is distributed with a whole one: results, and gradients of weights and events."""
    from spikeforge.distributed import deal, event_product, gather, share

    rows, n = 13, 9
    matrix = spikeforge.connect(
        rows,
        kinds * n,
        [spikeforge.Projection(slice(0, rows), slice(0, kinds * n), rules.fixed_total(60), weight=1.5 if homogeneous else rules.normal(1.0, 0.3))],
        seed=4,
        dtype=torch.float64,
        device=mesh.device_type,
    )
    torch.manual_seed(6)
    events, upstream = ((torch.rand(3, size, **F64) - 0.5).relu().to(mesh.device_type) for size in (rows, kinds * n))
    weights, heard = matrix.weights.clone().requires_grad_(), events.clone().requires_grad_()
    options = {"rows": rows, "transpose": True, "graded": True}
    y = torch.ops.spikeforge.event_csrmv(weights, matrix.indices, matrix.indptr, heard, cols=kinds * n, **options)
    (y * upstream).sum().backward()

    own, mine = share(n, mesh), share(rows, mesh)
    part = deal(matrix, mesh, kinds=kinds)
    of_part = deal(spikeforge.Connectivity(matrix.indices, matrix.indptr, torch.arange(len(matrix.indices), device=mesh.device_type), matrix.delays, rows, kinds * n), mesh, kinds=kinds)
    part.weights.requires_grad_()
    sent = events[:, mine].clone().requires_grad_()
    z = event_product(part, sent, mesh, graded=True)

    def of_rank(t):
        return t.unflatten(-1, (kinds, n))[..., own].flatten(-2)

    (z * of_rank(upstream)).sum().backward()
    expected_weights = weights.grad if homogeneous else weights.grad[of_part.weights]
    pairs = [(z, of_rank(y)), (sent.grad, heard.grad[:, mine]), (part.weights.grad, expected_weights)]
    pairs.append((gather(sent.detach(), rows, mesh), events))
    return max((one - whole).abs().max().item() if one.numel() else 0.0 for one, whole in pairs)


def weight_of_one_connection(mesh, x, own):
    """Each rank has one connection with its own weight: different losses have different gradients."""
    from spikeforge.distributed import deal, event_product, share

    n, device = mesh.size(), mesh.device_type
    one_to_one = [spikeforge.Projection(slice(0, n), slice(0, n), rules.one_to_one())]
    matrix = spikeforge.connect(n, n, one_to_one, dtype=torch.float64, device=device)
    weights = torch.arange(1.0, n + 1, **F64, device=device)
    part = deal(dataclasses.replace(matrix, weights=weights), mesh)
    part.weights.requires_grad_()
    arriving = event_product(part, torch.ones(n, **F64, device=device)[share(n, mesh)], mesh)
    ((mesh.get_local_rank() + 1) * arriving).sum().backward()
    return difference([arriving, part.weights.grad], [weights[share(n, mesh)], weights[share(n, mesh)]])


def second_derivatives(mesh, x, own):
    """Compares second derivatives of products and gathered values with those of one process; ranks' losses add."""
    from spikeforge.distributed import deal, event_product, gather, share

    rows, cols, device = 7, 5, mesh.device_type
    matrix = spikeforge.connect(
        rows, cols, [spikeforge.Projection(slice(0, rows), slice(0, cols), rules.fixed_in_degree(3), weight=0.5)], dtype=torch.float64, device=device
    )
    events = torch.linspace(0.5, 1.5, rows, **F64, device=device)
    mine = share(rows, mesh)

    def penalties(product_of, weights, events, count):
        y = product_of(weights, events)
        by_weights, by_events = torch.autograd.grad((y**3).sum(), (weights, events), create_graph=True)
        loss = count * by_weights.square().sum() + by_events.square().sum()
        return [by_weights, by_events, *torch.autograd.grad(loss, (weights, events))]

    def whole(weights, events):
        options = {"rows": rows, "cols": cols, "transpose": True, "graded": True}
        return torch.ops.spikeforge.event_csrmv(weights, matrix.indices, matrix.indptr, events, **options)

    def dealt(weights, events):
        return event_product(dataclasses.replace(deal(matrix, mesh), weights=weights), events, mesh, graded=True)

    # The loss of every rank includes the penalty of the shared weight.
    expected = penalties(whole, matrix.weights.clone().requires_grad_(), events.clone().requires_grad_(), mesh.size())
    got = penalties(dealt, matrix.weights.clone().requires_grad_(), events[mine].clone().requires_grad_(), 1)
    heard = events[mine].clone().requires_grad_()
    (of_heard,) = torch.autograd.grad((gather(heard, rows, mesh) ** 3).sum(), heard, create_graph=True)
    (second,) = torch.autograd.grad(of_heard.sum(), heard)
    pairs = [(one, of if of.numel() == 1 else of[mine]) for one, of in zip(got, expected)]
    pairs.append((second, 6 * mesh.size() * events[mine]))
    return difference(*zip(*[pair for pair in pairs if pair[0].numel()]))


def of_the_page(mesh, x, own):
    """Runs the programs of the page on this device and this number of ranks."""
    names, text = {}, code("a sharded call") + code("a dealt matrix")
    exec(text.replace('"cuda"', repr(mesh.device_type)).replace("(4,)", f"({mesh.size()},)"), names)
    assert names["spikes"].placements == names["x"].placements and names["tau"].grad.placements[0].is_shard(0)
    arrives = 0.1 * torch.bincount(names["matrix"].indices, minlength=4000)[names["share"](4000, mesh)]  # in each of 32 samples
    return difference([names["arriving"].detach()], [arrives.expand(32, -1)])


def differences(rank, world_size, device):
    """Returns the largest difference from one process of each kind."""
    from torch.distributed.device_mesh import init_device_mesh

    torch.manual_seed(0)
    mesh = init_device_mesh(device, (world_size,))
    x = (2 * torch.randn(STEPS, BATCH, 6, **F64)).to(device)
    own = slice(rank * BATCH // world_size, (rank + 1) * BATCH // world_size)
    ways = (under_ddp, under_fsdp, on_shards, with_an_empty_batch, weight_of_one_connection, second_derivatives, of_the_page)
    seen = {way.__name__: way(mesh, x, own) for way in ways}
    products = [(homogeneous, kinds) for homogeneous in (False, True) for kinds in (1, 2)]
    return seen | {("product", *options): product(mesh, *options) for options in products}


@pytest.fixture(scope="module", params=["2 on cpu", "4 on cpu", pytest.param("2 on cuda", marks=pytest.mark.gpu)])
def seen(request):
    """Returns the largest difference over all ranks."""
    count, device = request.param.split(" on ")
    of_ranks = on_ranks(int(count), differences, int(count), device, backend="nccl" if device == "cuda" else "gloo")
    return {name: max(of_rank[name] for of_rank in of_ranks) for name in of_ranks[0]}


@pytest.mark.parametrize("way", ["under_ddp", "under_fsdp", "on_shards"])
def test_gradients_of_ranks_are_those_of_one_process(seen, way):
    assert seen[way] < 1e-10


def test_a_rank_without_samples_has_the_statistics_of_the_others(seen):
    assert seen["with_an_empty_batch"] < 1e-10


def test_the_programs_of_the_page_run(seen):
    assert seen["of_the_page"] < 1e-5


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("kinds", [1, 2])
def test_a_dealt_matrix_has_the_product_and_the_gradients_of_the_whole(seen, homogeneous, kinds):
    assert seen["product", homogeneous, kinds] < 1e-12


def test_a_rank_with_one_connection_does_not_take_its_weight_for_that_of_all(seen):
    assert seen["weight_of_one_connection"] < 1e-12


def test_second_derivatives_of_ranks_are_those_of_one_process(seen):
    assert seen["second_derivatives"] < 1e-10


def refusals(rank):
    """Returns the error messages of wrong calls on this rank."""
    from torch.distributed.device_mesh import init_device_mesh

    from spikeforge.distributed import deal, event_product, gather, share

    mesh = init_device_mesh("cpu", (2,))
    matrix = spikeforge.connect(4, 4, [spikeforge.Projection(slice(0, 4), slice(0, 4), rules.one_to_one())])
    calls = {
        "share: count must be a whole number, but is 2.5": lambda: share(2.5, mesh),
        "share: count must be a whole number, but is None": lambda: share(None, mesh),
        "share: count must not be below 0, but is -1": lambda: share(-1, mesh),
        "gather: size must be a whole number, but is 4.0": lambda: gather(torch.ones(2), 4.0, mesh),
        "event_product: matrix must be returned by deal, but is Connectivity": lambda: event_product(matrix, torch.ones(2), mesh),
        "deal: matrix must be a whole one, but is a partition of deal": lambda: deal(deal(matrix, mesh), mesh),
    }
    return {expected: message_of(call) for expected, call in calls.items()}


def message_of(call):
    try:
        call()
    except Exception as error:
        return str(error)
    return "no error"


def test_every_rank_raises_the_error():
    for of_rank in on_ranks(2, refusals):
        for expected, message in of_rank.items():
            assert message == expected
