"""The networks of test_ranks.py, and the functions that its ranks execute."""

import contextlib
import datetime
import os
import signal
import sys
import threading

import torch

import spikeforge
from ranks import limited_memory
from spikeforge import rules

LIF = """
neuron lif(x; v, wait; leak) {
  h = leak * v + x
  resting = wait > 0
  s = where(resting, 0, spike(h - 1, none))
  return s
  v' = where(resting, v, select(s, 0, h))
  wait' = select(s, 3, maximum(wait - 1, 0))
}
"""
TWO_INPUTS = "neuron two(a, b; v) { h = 0.8 * v + a - b; s = spike(h - 1, none); return s; v' = select(s, 0, h) }"
NOISY = "neuron noisy(x; v) { h = 0.9 * v + x + 0.05 * normal(); s = spike(h - 1, none); return s; v' = select(s, 0, h) }"
STEPS = 90


def split(group=None, device="cpu", dtype=torch.float32, seed=3, deterministic=False, noisy=True, leak=0.9):
    """Populations divided among all ranks: two inputs, every rule, overlapping drives, neurons that draw."""
    made = spikeforge.Network(seed=seed, dtype=dtype, device=device, group=group, deterministic=deterministic)
    a = made.populate("a", 61, LIF, states={"v": torch.linspace(0, 0.9, 61)}, leak=leak)
    b = made.populate("b", 26, LIF, leak=torch.linspace(0.8, 0.95, 26))
    c = made.populate("c", 15, TWO_INPUTS)
    d = made.populate("d", 37, NOISY if noisy else LIF.replace("lif", "other"), **({} if noisy else {"leak": 0.9}))
    e = made.populate("e", 3, NOISY if noisy else LIF.replace("lif", "other"), **({} if noisy else {"leak": 0.9}))
    weight, delay = rules.normal(0.09, 0.05), rules.uniform(2, 9)
    for source in (a, b, c, d):
        for target in (a, b, c):
            made.project(source, target, rules.fixed_total(5 * len(target)), weight=weight, delay=delay)
    made.project(a, d, rules.fixed_in_degree(6, autapses=False), weight=weight, delay=delay)
    made.project(d, d, rules.fixed_in_degree(5, autapses=False, multapses=False), weight=weight, delay=2)
    made.project(b, d, rules.fixed_out_degree(4), weight=0.1, delay=delay)
    made.project(e, a, rules.all_to_all(), weight=0.02, delay=3)
    made.project(a, a, rules.one_to_one(), weight=-0.1, delay=delay)
    made.project(a, c, rules.fixed_probability(0.2), weight=0.1, delay=4, into="b")
    made.project(c, e, rules.arrays(torch.arange(15), torch.arange(15) % 3), weight=torch.linspace(0.1, 0.3, 15), delay=torch.arange(15) + 2)
    made.inject(a, 0.07)
    made.inject(c, torch.linspace(0.1, 0.3, 15), into="a")
    made.drive(a, 0.3, weight=0.2)
    made.drive(b, torch.linspace(0.5, 2, 26), weight=0.15)
    made.drive(b, 0.2, weight=0.1)
    made.drive(c, 0.5, weight=0.3, into="a")
    made.drive(d, 0.4, weight=0.15)
    return made, (a, b, c, d, e)


def areas(group=None, device="cpu", dtype=torch.float32, deterministic=False, count=5):
    """Areas with delays from 1 on within an area, and from 11 on between areas."""
    made = spikeforge.Network(seed=5, dtype=dtype, device=device, group=group, deterministic=deterministic)
    populations = []
    for k in range(count):
        e = made.populate(f"e{k}", 40, LIF, area=f"area {k}", leak=0.9)
        i = made.populate(f"i{k}", 11, LIF, area=f"area {k}", leak=0.8)
        populations.append((e, i))
        for source, weight in ((e, 0.12), (i, -0.2)):
            for target in (e, i):
                made.project(source, target, rules.fixed_in_degree(7), weight=rules.normal(weight, 0.02), delay=rules.uniform(1, 5))
        made.drive(e, 0.6, weight=0.3)
        made.drive(i, 0.5, weight=0.3)
    for k, (e, _) in enumerate(populations):
        made.project(e, populations[(k + 1) % count][0], rules.fixed_total(150), weight=rules.normal(0.1, 0.02), delay=rules.uniform(11, 20))
    return made, [p for pair in populations for p in pair]


def exact(group=None, device="cpu", areas=True):
    """Sums are exact: weights are multiples of 1/64. Ranks exchange spikes in each step, and some lists are too short."""
    made = spikeforge.Network(seed=7, dtype=torch.float32, device=device, group=group)
    populations = []
    for k in range(4):
        name = f"area {k}" if areas else ""
        populations.append(made.populate(f"p{k}", 3000, LIF, area=name, leak=0.875, states={"v": torch.arange(3000) % 64 / 64}))
        made.project(populations[k], populations[k], rules.fixed_in_degree(10), weight=1 / 64, delay=rules.uniform(1, 6))
        made.drive(populations[k], 0.5, weight=0.25)
    for k in range(4):
        made.project(populations[k - 1], populations[k], rules.fixed_total(9000), weight=1 / 64, delay=rules.uniform(8 if areas else 1, 12))
    return made, populations


def ring(group, weight=0.4, current=0.05):
    made = spikeforge.Network(seed=1, group=group)
    p = made.populate("p", 9, LIF, leak=0.9)
    made.project(p, p, rules.arrays(torch.arange(9), (torch.arange(9) + 1) % 9), weight=0.3, delay=4)
    made.project(p, p, rules.one_to_one(), weight=weight, delay=6)
    made.drive(p, 0.2, weight=0.3)
    made.inject(p, current)
    return made


def apart(group):
    """Areas without connections between them."""
    made = spikeforge.Network(seed=1, group=group)
    populations = [made.populate(name, 5, LIF, area=name, leak=0.9) for name in ("x", "y", "z", "w")]
    for p in populations:
        made.inject(p, 0.3)
    return made, populations


def run(made, steps=STEPS, states=True):
    """Runs two calls that do not end with a block, and records states of some neurons."""
    network, populations = made
    probes = [(p, "v", [0, len(p) - 1, len(p) // 2]) for p in populations] if states else []
    first = spikeforge.simulate(network, steps // 3 + 1, states=probes)
    second = spikeforge.simulate(network, steps - steps // 3 - 1, states=probes)
    found = [network.gather(r) if network.group else r for r in (first, second)]
    states = [torch.cat(pair).cpu() for pair in zip(*(r.states for r in found))]
    return {"steps": torch.cat([r.steps for r in found]).cpu(), "neurons": torch.cat([r.neurons for r in found]).cpu(), "states": states}


def run_by_operators(made):
    """Runs steps as on GPUs in deterministic networks."""
    torch.ops.spikeforge_simulation.uses_operators(made[0]._held, True)
    return run(made)


def after_silence(group):
    """Returns the steps at which a neuron of another area fires, which receives a spike after a long silence."""
    made = spikeforge.Network(group=group)
    source = made.populate("source", 64, "neuron source(x;) { return x }", area="one")
    target = made.populate("target", 64, LIF, area="two", leak=0.5)
    made.project(source, target, rules.all_to_all(), weight=1.0, delay=5)
    steps = []
    for first in range(0, 150, 5):
        given = torch.tensor([[float(step in (53, 120))] for step in range(first, first + 5)]).expand(-1, 64)
        steps += spikeforge.simulate(made, 5, inputs={source: given}).of(target)[0].tolist()
    return sorted(set(steps))


def silence(rank):
    return after_silence(torch.distributed.group.WORLD)


def said(call, *arguments):
    try:
        call(*arguments)
    except (ValueError, RuntimeError, MemoryError, IndexError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "nothing"


def checks(rank, saved):
    """Runs all checks in which no rank dies, in one start of the processes."""
    group = torch.distributed.group.WORLD
    found = {"split": run(split(group)), "double": run(split(group, dtype=torch.float64))}
    network, populations = split(group)
    built = network.build()
    found["built"] = (built.indices, built.indptr, built.weights, built.delays)
    found["share"] = network.share()
    spikeforge.simulate(network, 40)
    state = network.state_dict()
    found["state"] = state
    found["after"] = run((network, populations), 30)
    resumed = split(group)
    resumed[0].load_state_dict(torch.load(saved))
    found["resumed"] = run(resumed, 30)
    if group.size() <= 5:
        found["areas"] = run(areas(group))
        network, _ = areas(group)
        network.build()
        found["share of areas"] = network.share()
    found["by operators"] = run_by_operators(split(group, noisy=False))
    quiet = spikeforge.Network(group=group)
    quiet.populate("p", 3, LIF, leak=0.9)
    found["quiet"] = len(spikeforge.simulate(quiet, 5).steps)
    burst = spikeforge.Network(seed=1, group=group)  # a block has more spikes than the lists have entries
    p = burst.populate("p", 2000, LIF, leak=torch.linspace(0.5, 0.99, 2000))
    burst.project(p, p, rules.one_to_one(), weight=0.1, delay=7)
    burst.inject(p, torch.linspace(0.3, 1.2, 2000))
    found["burst"] = {k: v for k, v in run((burst, [p]), 40).items()}
    found["said"] = {
        "seed": said(lambda: split(group, seed=3 + rank)[0].build()),
        "populations": said(lambda: areas(group, count=5 + rank)[0].build()),
        "few areas": said(lambda: areas(group, count=1)[0].build()),
        "plastic": said(lambda: learning(group)),
        "a population": said(lambda: split(group, leak=0.9 + 0.01 * rank)[0].build()),
        "a projection": said(lambda: ring(group, weight=0.4 + 0.1 * rank).build()),
        "a current": said(lambda: ring(group, current=0.05 + 0.1 * rank).build()),
    }
    many = spikeforge.Network(group=group)  # populations that cannot be divided
    for k in range(50):
        many.populate(f"p{k}", 1 + k % 3, LIF, leak=0.9)
    found["many"] = many.share().neurons
    network, _ = split(group)
    network.build()
    found["said"]["steps"] = said(lambda: spikeforge.simulate(network, 1 if rank == 0 else 2))
    return found


def learning(group):
    made, (a, *_) = split(group)
    made.project(a, a, rules.one_to_one(), delay=1, plasticity=spikeforge.plasticity.pair_stdp())


def differing(rank):
    """Returns the errors if rank 0 makes another call than the others, which must leave this network and later ones unchanged."""
    group, simulate = torch.distributed.group.WORLD, spikeforge.simulate
    (network, populations), (other, _) = split(group), split(group)
    network.build(), other.build()
    recording = simulate(network, 14)
    earlier = network.state_dict()
    later = simulate(network, 13)
    state = network.state_dict()
    stale = {**state, "tensors": [t + rank if t.is_floating_point() else t for t in state["tensors"]]}
    whole = network.gather(later)
    shorter = spikeforge.Recording(later.steps, later.neurons[rank:], later.states, later.span)
    calls = {  # on rank 0, and on the others
        "lengths": (lambda: simulate(network, 5), lambda: simulate(network, 10)),
        "long lengths": (lambda: simulate(network, 2000), lambda: simulate(network, 1000)),
        "nothing": (lambda: simulate(network, 0), lambda: simulate(network, 3)),
        "networks": (lambda: simulate(network, 5), lambda: simulate(other, 5)),
        "gather": (lambda: simulate(network, 5), lambda: network.gather(later)),
        "gather of another": (lambda: network.gather(later), lambda: other.gather(later)),
        "state": (lambda: network.state_dict(), lambda: simulate(network, 5)),
        "load": (lambda: network.load_state_dict(state), lambda: network.gather(later)),
        "building": (lambda: simulate(network, 5), lambda: split(group)[0].build()),
        "states": (lambda: simulate(network, 5, states=[(populations[0], "v", [0])]), lambda: simulate(network, 5)),
        "neurons": (lambda: simulate(network, 5, states=[(populations[0], "v", [0])]), lambda: simulate(network, 5, states=[(populations[0], "v", [1])])),
        "recordings": (lambda: network.gather(recording), lambda: network.gather(later)),
        "gathered": (lambda: network.gather(whole), lambda: network.gather(whole)),
        "uneven": (lambda: network.gather(shorter), lambda: network.gather(shorter)),
        "loaded steps": (lambda: network.load_state_dict(earlier), lambda: network.load_state_dict(state)),
        "loaded numbers": (lambda: network.load_state_dict(stale), lambda: network.load_state_dict(stale)),
        "loaded by others": (lambda: network.load_state_dict({}), lambda: network.load_state_dict(state)),
    }
    found = {name: said(pair[min(rank, 1)]) for name, pair in calls.items()}
    network_apart, populations_apart = apart(group)
    simulate(network_apart, 2)
    found["apart"] = said(lambda: simulate(network_apart, 50 if rank == 0 else 100))
    return {"said": found, "after": run((network, populations), 30), "apart": run((network_apart, populations_apart), 30), "span": (later.span, whole.span)}


def broken(rank, saved):
    """Simulates with a group that fails during the exchange of spikes."""

    class Cut(torch.distributed.ProcessGroup):
        group_name = "cut"

        def __init__(self, group):
            super().__init__(group.rank(), group.size())
            self.group, self.left = group, -1
            torch._C._distributed_c10d._register_process_group(self.group_name, self)

        def allgather_into_tensor_coalesced(self, everything, own, options=None):
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("the wire is cut")
            work = self.group.allgather_into_tensor_coalesced(everything, own)
            work.wait()
            return work

    group = Cut(torch.distributed.group.WORLD)
    network, populations = split(group)
    spikeforge.simulate(network, 3)
    state = torch.load(saved)
    group.left = 4
    found = {"cut": said(lambda: spikeforge.simulate(network, 20))}
    found["simulate"] = said(lambda: spikeforge.simulate(network, 20))
    found["state"] = said(network.state_dict)
    network.load_state_dict(state)
    return {"said": found, "resumed": run((network, populations), 30)}


def short_of_memory(rank, saved, call):
    """Limits the memory of the last rank to less than its part of a call."""
    group = torch.distributed.group.WORLD
    limit = contextlib.nullcontext() if rank < group.size() - 1 else limited_memory(CALLS_SHORT_OF_MEMORY[call][0])
    network, populations = split(group)
    spikeforge.simulate(network, 3)
    big = spikeforge.Network(seed=1, group=group)
    p = big.populate("p", 200000, LIF, leak=0.9)
    big.project(p, p, rules.one_to_one(), weight=0.01, delay=rules.uniform(2, 6))
    big.inject(p, 1.5)
    big.build()
    recording, state = spikeforge.simulate(big, 12), big.state_dict()
    with limit:
        found = said(CALLS_SHORT_OF_MEMORY[call][1], big, p, recording)
    after = said(spikeforge.simulate, big, 3)
    big.load_state_dict(state)
    again = spikeforge.simulate(big, 5)
    network.load_state_dict(torch.load(saved))
    return {"said": found, "after": after, "again": (again.span, len(big.gather(again).steps)), "resumed": run((network, populations), 30)}


def with_noise(group=None):
    """Areas of which the last has neurons that draw."""
    made = spikeforge.Network(seed=2, group=group)
    a = made.populate("a", 40, LIF, area="a", leak=0.9)
    b = made.populate("b", 30, NOISY, area="b")
    for source, target in ((a, b), (b, a)):
        made.project(source, target, rules.fixed_in_degree(9), weight=0.1, delay=rules.uniform(2, 6))
    made.drive(a, 0.5, weight=0.3)
    return made, [a, b]


def fails_by_operators(rank, retries):
    """Rank 1 fails, because operators do not step neurons that draw on several ranks; then the ranks load a state."""
    network, populations = with_noise(torch.distributed.group.WORLD)
    spikeforge.simulate(network, 5)
    state = network.state_dict()
    by_operators = lambda uses: torch.ops.spikeforge_simulation.uses_operators(network._held, uses)
    by_operators(True)
    found = {"said": said(spikeforge.simulate, network, 4)}
    by_operators(False)
    if retries:
        found["retried"] = said(spikeforge.simulate, network, 3)
    network.load_state_dict(state)
    return found | {"after": run((network, populations), 30)}


# The available memory in bytes, and a call for which it is not sufficient.
CALLS_SHORT_OF_MEMORY = {
    "states to record": (30 << 20, lambda network, p, _: spikeforge.simulate(network, 5000, states=[(p, "v", range(40000))])),
    "states of a short call": (30 << 20, lambda network, p, _: spikeforge.simulate(network, 900, states=[(p, "v", range(40000))])),
    "spikes": (30 << 20, lambda network, p, _: spikeforge.simulate(network, 5000)),
    "state": (1 << 20, lambda network, p, _: network.state_dict()),
    "gather": (1 << 20, lambda network, p, recording: network.gather(recording)),
    "building": (1 << 20, lambda network, p, _: dense(network.group).build()),
}


def dense(group):
    made = spikeforge.Network(seed=1, group=group)
    p = made.populate("p", 4000, LIF, leak=0.9)
    made.project(p, p, rules.fixed_in_degree(1000), delay=2)
    return made


def checked(rank):
    """Uses a group whose collectives torch checks."""
    torch.distributed.set_debug_level(torch.distributed.DebugLevel.DETAIL)
    group = torch.distributed.new_group()
    torch.distributed.set_debug_level(torch.distributed.DebugLevel.OFF)
    return run(split(group))


def interrupted(rank):
    """A signal interrupts rank 1, which then saves its state while the other rank simulates."""
    network, _ = split(torch.distributed.group.WORLD)
    spikeforge.simulate(network, 5)
    if rank == 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    try:
        found = said(lambda: spikeforge.simulate(network, 10**7, spikes=False))
    except KeyboardInterrupt:
        found = said(network.state_dict)
    return {"said": found, "state": network.state_dict()}


def dies(rank):
    """Rank 1 exits after some time."""
    network, _ = split(torch.distributed.group.WORLD)
    spikeforge.simulate(network, 5)
    if rank == 1:
        threading.Timer(0.5, os._exit, [0]).start()
    spikeforge.simulate(network, 10**7, spikes=False)


def on_gpus(rank):
    group = torch.distributed.group.WORLD
    device = torch.device("cuda", rank)
    found = {}
    for name, make in (("split", split), ("areas", areas)):
        noise = {"noisy": False} if make is split else {}
        found[name] = run(make(group, device=device, deterministic=True, **noise))
        found[f"{name} by atomics"] = run(make(group, device=device), 400)
    network, _ = areas(group, device=device)
    network.build()
    found["share of areas"] = network.share()
    for name in ("areas", "split"):
        found[f"exact {name}"] = run(exact(group, device=device, areas=name == "areas"), 240, states=False)
    return found


def kernels_of(made, steps):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        spikeforge.simulate(made[0], steps)
    return {event.key for event in profile.key_averages()}


def on_one_gpu(rank):
    """Runs two processes that share one GPU."""
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    group, device = torch.distributed.group.WORLD, torch.device("cuda", 0)
    made = exact(group, device=device, areas=False)
    found = {"exact": run(made, 40), "kernels": kernels_of(made, 3)}
    os.environ["SPIKEFORGE_PEER_MEMORY"] = "0" if rank == 1 else "1"
    made = exact(group, device=device, areas=False)
    return found | {"exact by a gather": run(made, 40), "kernels of a gather": kernels_of(made, 3)}


def dies_beside_a_gpu(rank):
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    group = torch.distributed.new_group(timeout=datetime.timedelta(seconds=3))
    network, _ = exact(group, device=torch.device("cuda", 0), areas=False)
    spikeforge.simulate(network, 5)
    if rank == 1:
        threading.Timer(2, os._exit, [0]).start()
    spikeforge.simulate(network, 10**7, spikes=False)
