"""Networks shared by several processes have the spikes of one process, bit for bit; errors are one line."""

import re

import pytest
import rank_networks
import torch
from ranks import on_ranks


def same(one, other):
    return torch.equal(one["steps"], other["steps"]) and torch.equal(one["neurons"], other["neurons"]) and all(map(torch.equal, one["states"], other["states"]))


@pytest.fixture(scope="module")
def alone():
    """The results of one process."""
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
    for shares in ([rank["share"].neurons for rank in found], [rank["many"] for rank in found]):
        assert max(shares) - min(shares) <= 1


def test_spikes_are_exchanged_once_in_the_shortest_delay_between_ranks(found):
    assert {rank["share"].block for rank in found} == {2}
    assert {rank["share of areas"].block for rank in found} == {11}


def test_a_state_continues_with_any_number_of_ranks(found, alone):
    for rank in found:
        assert same(rank["after"], alone["after"])
        assert same(rank["resumed"], alone["after"])
        assert all(map(torch.equal, rank["state"]["tensors"], alone["state"]["tensors"]))
    network, populations = rank_networks.split()
    network.load_state_dict(found[0]["state"])
    assert same(rank_networks.run((network, populations), 30), alone["after"])


def test_spikes_of_other_ranks_arrive_after_a_silence():
    expected = rank_networks.after_silence(None)
    assert expected[0] == 58 and 125 in expected
    own = [steps for steps in on_ranks(2, rank_networks.silence) if steps]
    assert own == [expected]


def test_any_number_of_spikes_is_exchanged(found):
    burst = rank_networks.spikeforge.Network(seed=1)
    p = burst.populate("p", 2000, rank_networks.LIF, leak=torch.linspace(0.5, 0.99, 2000))
    burst.project(p, p, rank_networks.rules.one_to_one(), weight=0.1, delay=7)
    burst.inject(p, torch.linspace(0.3, 1.2, 2000))
    expected = rank_networks.run((burst, [p]), 40)
    assert len(expected["steps"]) > 7000
    assert all(same(rank["burst"], expected) for rank in found)
    assert all(rank["quiet"] == 0 for rank in found)


def test_each_rank_refuses_in_one_line(found):
    ranks = len(found)
    for rank in found:
        said = rank["said"]
        assert said["seed"] == f"ValueError: Network: rank 1 of {ranks} has another seed than rank 0: all ranks must describe the same network"
        assert said["populations"] == f"ValueError: Network: rank 1 of {ranks} has 12 populations, but rank 0 has 10: all ranks must describe the same network"
        assert said["few areas"].startswith(f"ValueError: Network: {ranks} ranks share a network of 1 areas")
        assert said["plastic"].startswith("NotImplementedError: Network: projections that learn are those of one process so far")
        for which, what in (("a population", "population 0 (a)"), ("a projection", "projection 1 (p to p)"), ("a current", "current 0 (of p)")):
            assert said[which] == f"ValueError: Network: rank 1 of {ranks} has another {what} than rank 0: all ranks must describe the same network"
        assert said["steps"] == f"RuntimeError: Network: rank 1 of {ranks} simulates steps 0 to 1, but rank 0 steps 0 to 0: all ranks must make the same calls"


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_with_different_calls_raise_and_step_nothing(ranks):
    network, populations = rank_networks.split()
    rank_networks.spikeforge.simulate(network, 27)
    expected = rank_networks.run((network, populations), 30)
    network, populations = rank_networks.apart(None)
    rank_networks.spikeforge.simulate(network, 2)
    expected_apart = rank_networks.run((network, populations), 30)
    assert len(expected_apart["steps"]) > 20
    calls, who = ": all ranks must make the same calls", f"Network: rank 1 of {ranks}"
    words = {
        "lengths": f"RuntimeError: {who} simulates steps 27 to 36, but rank 0 steps 27 to 31{calls}",
        "long lengths": f"RuntimeError: {who} simulates steps 27 to 1026, but rank 0 steps 27 to 2026{calls}",
        "nothing": f"RuntimeError: {who} simulates steps 27 to 29, but rank 0 no steps from 27 on{calls}",
        "networks": f"RuntimeError: {who} simulates, but of another network than rank 0{calls}, in the same order",
        "gather": f"RuntimeError: {who} gathers spikes that it recorded, but rank 0 simulates{calls}",
        "gather of another": f"RuntimeError: {who} gathers spikes that it recorded, but of another network than rank 0{calls}, in the same order",
        "state": f"RuntimeError: {who} simulates, but rank 0 gathers the state{calls}",
        "load": f"RuntimeError: {who} gathers spikes that it recorded, but rank 0 counts connections, to save or load a state{calls}",
        "building": f"RuntimeError: {who} builds a network, but rank 0 simulates{calls}",
        "states": f"RuntimeError: {who} records other states than rank 0{calls}",
        "neurons": f"RuntimeError: {who} records other states than rank 0{calls}",
        "recordings": f"ValueError: gather: rank 1 of {ranks} recorded steps 14 to 26, but rank 0 steps 0 to 13: all ranks must gather the same recording",
        "gathered": "ValueError: gather: ranks have the same spikes: was this recording gathered before?",
        "uneven": "ValueError: gather: steps and neurons must be int64 [spikes], but rank 1's are not",
        "loaded steps": f"ValueError: {who} loads a state of step 27, but rank 0 one of step 14",
        "loaded numbers": f"ValueError: {who} loads other numbers than rank 0, of the same step",
        "apart": f"RuntimeError: {who} simulates steps 2 to 101, but rank 0 steps 2 to 51{calls}",
    }
    for number, rank in enumerate(on_ranks(ranks, rank_networks.differing)):
        loaded = rank["said"].pop("loaded by others")
        if number == 0:
            assert loaded == "ValueError: Network: a state must be a result of state_dict(), but this one has no 'tensors'"
        else:
            assert loaded == f"ValueError: Network: rank 0 of {ranks} was given a state that it cannot load"
        assert rank["said"] == words
        assert same(rank["after"], expected) and same(rank["apart"], expected_apart)
        assert rank["span"] == (range(14, 27), range(14, 27))


def test_a_call_that_fails_in_the_middle_leaves_a_network_that_only_a_state_makes_whole(alone, tmp_path):
    torch.save(alone["state"], tmp_path / "saved.pt")
    for number, rank in enumerate(on_ranks(2, rank_networks.broken, tmp_path / "saved.pt")):
        assert rank["said"]["cut"].startswith(f"RuntimeError: Network: rank {number} of 2 did not get the spikes of steps 7 to 8 of all others")
        assert rank["said"]["cut"].endswith("the wire is cut")
        for call in ("simulate", "state"):
            assert rank["said"][call].startswith("RuntimeError: Network: an earlier call failed in the middle of its steps")
        assert same(rank["resumed"], alone["after"])


@pytest.mark.parametrize("call", rank_networks.CALLS_SHORT_OF_MEMORY)
def test_a_rank_without_memory_fails_with_the_others_which_go_on_from_a_state(call, alone, tmp_path):
    """In any call, no collective of one rank meets one of another size on another rank, which would abort gloo."""
    torch.save(alone["state"], tmp_path / "saved.pt")
    first, last = on_ranks(2, rank_networks.short_of_memory, tmp_path / "saved.pt", call)
    assert "memory" in last["said"] and "rank" not in last["said"]
    is_within = call == "spikes"
    how = " in the middle of its steps (its own error has the reason): load a state on all ranks"
    assert first["said"] == "RuntimeError: Network: rank 1 of 2 failed" + (how if is_within else " (its own error has the reason); all ranks are at the same step")
    for rank in (first, last):
        if is_within:
            assert rank["after"].startswith("RuntimeError: Network: an earlier call failed in the middle of its steps (")
            assert rank["after"].endswith("load a saved state (load_state_dict, or load_state in C++), or build the network again")
        else:
            assert rank["after"] == "nothing"
        assert rank["again"] == first["again"] and rank["again"][0] == range(12, 17) and rank["again"][1] > 0
        assert same(rank["resumed"], alone["after"])


@pytest.mark.parametrize("retries", [False, True])
def test_a_rank_that_fails_in_steps_by_operators_continues_with_the_others_from_a_state(retries):
    network, populations = rank_networks.with_noise()
    rank_networks.spikeforge.simulate(network, 5)
    expected = rank_networks.run((network, populations), 30)
    ranks = on_ranks(2, rank_networks.fails_by_operators, retries, timeout=60)
    assert ranks[0]["said"] == "RuntimeError: Network: rank 1 of 2 failed in the middle of its steps (its own error has the reason): load a state on all ranks"
    assert ranks[1]["said"].startswith("NotImplementedError: Network: neurons that draw random numbers are shared by ranks")
    if retries:
        for rank in ranks:
            assert rank["retried"].startswith("RuntimeError: Network: an earlier call failed in the middle of its steps (")
    assert all(same(rank["after"], expected) for rank in ranks)


def test_a_group_whose_calls_torch_checks_is_a_group(alone):
    assert all(same(rank, alone["split"]) for rank in on_ranks(2, rank_networks.checked))


def test_an_interrupt_of_one_rank_leaves_all_at_the_same_step():
    ranks = on_ranks(2, rank_networks.interrupted)
    step = ranks[0]["state"]["tensors"][1].item()
    assert step > 5 and (step - 5) % 1000 == 0
    for rank in ranks:
        assert rank["said"] == "RuntimeError: Network: rank 1 of 2 gathers the state, but rank 0 simulates: all ranks must make the same calls"
        assert all(map(torch.equal, rank["state"]["tensors"], ranks[0]["state"]["tensors"]))


def test_a_rank_that_is_gone_is_missed_in_a_line():
    with pytest.raises(pytest.fail.Exception) as failed:
        on_ranks(2, rank_networks.dies)
    missed = r"RuntimeError: Network: rank 0 of 2 did not get (the spikes of steps \d+ to \d+|the steps to simulate) of all others, one of which failed"
    assert re.search(missed, str(failed.value))
    assert "rank 1: the process ended without a word" in str(failed.value)


@pytest.mark.gpu
def test_two_gpus_fire_as_one_does():
    """Spikes are equal if sums are deterministic; otherwise only their number is."""
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
    """Weights and rates are such that the sums of a step are exact in any order."""
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
    missed = r"RuntimeError: Network: rank 0 of 2 did not get (the spikes of rank 1, which failed, is late or made a different call, within 3000 ms|the steps to simulate)"
    assert re.search(missed, str(failed.value))
