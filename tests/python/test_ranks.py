"""Networks that several processes share: the spikes of one, bit for bit, and one clear line where something is wrong."""

import pytest
import rank_networks
import torch
from ranks import on_ranks


def same(one, other):
    return torch.equal(one["steps"], other["steps"]) and torch.equal(one["neurons"], other["neurons"]) and all(map(torch.equal, one["states"], other["states"]))


@pytest.fixture(scope="module")
def alone():
    """What one process finds."""
    network, populations = rank_networks.split()
    rank_networks.spikeforge.simulate(network, 40)
    state = network.state_dict()
    return {
        "split": rank_networks.run(rank_networks.split()),
        "double": rank_networks.run(rank_networks.split(dtype=torch.float64)),
        "areas": rank_networks.run(rank_networks.areas()),
        "no noise": rank_networks.run(rank_networks.split(noisy=False)),
        "built": rank_networks.split()[0].build(),
        "state": state,
        "after": rank_networks.run((network, populations), 30),
    }


@pytest.fixture(scope="module", params=[2, 4])
def found(request, alone, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.save(alone["state"], folder / "saved.pt")
    return on_ranks(request.param, rank_networks.checks, folder / "saved.pt")


def test_ranks_together_fire_as_one_process_does(found, alone):
    assert len(alone["split"]["steps"]) > 200 and len(alone["areas"]["steps"]) > 200
    for rank in found:
        for which in ("split", "double", "areas"):
            assert same(rank[which], alone[which]), which
        assert same(rank["by operators"], alone["no noise"])


def test_ranks_together_have_the_connections_of_one_process(found, alone):
    whole = alone["built"]
    owner = torch.repeat_interleave(torch.arange(whole.rows), whole.indptr.diff())
    listed = lambda row, built: sorted(zip(row.tolist(), built[0].tolist(), built[2].tolist(), built[3].tolist()))
    together = []
    for rank in found:
        indices, indptr, weights, delays = rank["built"]
        assert rank["share"].connections == len(indices)
        together += listed(torch.repeat_interleave(torch.arange(whole.rows), indptr.diff()), rank["built"])
    assert sorted(together) == listed(owner, (whole.indices, None, whole.weights, whole.delays))
    assert sum(rank["share"].neurons for rank in found) == whole.rows
    assert max(rank["share"].neurons for rank in found) < whole.rows / len(found) + 5


def test_spikes_are_exchanged_once_in_the_shortest_delay_between_ranks(found):
    assert {rank["share"].block for rank in found} == {2}
    assert {rank["share of areas"].block for rank in found} == {11}


def test_a_state_goes_on_with_any_number_of_ranks(found, alone):
    for rank in found:
        assert same(rank["after"], alone["after"])
        assert same(rank["resumed"], alone["after"])
        assert all(map(torch.equal, rank["state"]["tensors"], alone["state"]["tensors"]))
    network, populations = rank_networks.split()
    network.load_state_dict(found[0]["state"])
    assert same(rank_networks.run((network, populations), 30), alone["after"])


def test_any_number_of_spikes_is_exchanged(found):
    burst = rank_networks.spikeforge.Network(seed=1)
    p = burst.populate("p", 2000, rank_networks.LIF, leak=torch.linspace(0.5, 0.99, 2000))
    burst.project(p, p, rank_networks.rules.one_to_one(), weight=0.1, delay=7)
    burst.inject(p, torch.linspace(0.3, 1.2, 2000))
    expected = rank_networks.run((burst, [p]), 40)
    assert len(expected["steps"]) > 7000
    assert all(same(rank["burst"], expected) for rank in found)
    assert all(rank["quiet"] == 0 for rank in found)


def test_what_ranks_cannot_do_is_said_on_each_of_them_in_a_line(found):
    ranks = len(found)
    for rank in found:
        said = rank["said"]
        assert said["seed"] == f"ValueError: Network: rank 1 of {ranks} has another seed than rank 0: all ranks must describe the same network"
        assert said["populations"] == f"ValueError: Network: rank 1 of {ranks} has other populations than rank 0: all ranks must describe the same network"
        assert said["few areas"].startswith(f"ValueError: Network: {ranks} ranks share a network of 1 areas")
        assert said["plastic"].startswith("NotImplementedError: Network: projections that learn are those of one process so far")
        assert "all ranks must make the same calls" in said["steps"]


def test_a_rank_that_is_gone_is_missed_in_a_line():
    with pytest.raises(pytest.fail.Exception) as failed:
        on_ranks(2, rank_networks.dies)
    assert "RuntimeError: Network: rank 0 of 2 did not get the spikes of steps 5 to 6 of all others, one of which has failed" in str(failed.value)
    assert "rank 1: the process ended without a word" in str(failed.value)


@pytest.mark.gpu
def test_two_gpus_fire_as_one_does():
    """Bit for bit where sums are deterministic; else as often."""
    ranks = on_ranks(2, rank_networks.on_gpus, backend="nccl")
    alone = {
        "split": rank_networks.run(rank_networks.split(device="cuda", deterministic=True, noisy=False)),
        "areas": rank_networks.run(rank_networks.areas(device="cuda", deterministic=True)),
    }
    counts = {
        "split": len(rank_networks.run(rank_networks.split(device="cuda"), 400)["steps"]),
        "areas": len(rank_networks.run(rank_networks.areas(device="cuda"), 400)["steps"]),
    }
    for rank in ranks:
        assert same(rank["split"], alone["split"]) and same(rank["areas"], alone["areas"])
        for which, count in counts.items():
            assert count > 1000 and abs(len(rank[f"{which} by atomics"]["steps"]) - count) < 0.05 * count
        assert rank["share of areas"].block == 11
        for which in ("areas", "split"):
            assert same(rank[f"exact {which}"], rank_networks.run(rank_networks.exact(areas=which == "areas"), 240, states=False)), which


@pytest.mark.gpu
def test_areas_of_one_gpu_fire_as_those_of_the_cpu(cuda):
    """Weights and rates are such that sums of a step are exact in any order."""
    assert len(rank_networks.run(rank_networks.exact(device="cpu"))["steps"]) > 200
    assert same(rank_networks.run(rank_networks.exact(device=cuda)), rank_networks.run(rank_networks.exact(device="cpu")))


@pytest.mark.gpu
def test_gpus_tell_spikes_by_their_memory_or_by_a_gather(cuda):
    expected = rank_networks.run(rank_networks.exact(areas=False), 40)
    assert len(expected["steps"]) > 200
    for rank in on_ranks(2, rank_networks.on_one_gpu):
        assert same(rank["exact"], expected) and same(rank["exact by a gather"], expected)
        assert "spikeforge_network" in rank["kernels"] and "spikeforge_network_send" not in rank["kernels"]
        assert "spikeforge_network_send" in rank["kernels of a gather"]


@pytest.mark.gpu
def test_a_gpu_misses_one_that_is_gone(cuda):
    with pytest.raises(pytest.fail.Exception) as failed:
        on_ranks(2, rank_networks.dies_beside_a_gpu, timeout=60)
    assert "RuntimeError: Network: rank 0 of 2 did not get the spikes of rank 1, which has failed, is late or does something else, within 3000 ms" in str(failed.value)
