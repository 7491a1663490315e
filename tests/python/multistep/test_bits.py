"""The forward pass has the same bits for any device, threads, instruction set, vector width and checkpoints."""

import os
import sys
from pathlib import Path

import pytest
import torch
from bits_worker import EXACT, SHAPE, results_on
from cases import BOUND, Inputs, Options, call, random_parameters, random_states, random_x
from conftest import require_cuda
from loops import output_of, printed_by

WORKER = Path(__file__).parents[1] / "bits_worker.py"
ULPS = 4  # between backends, for functions such as exp


@pytest.fixture(scope="module")
def on_cpu():
    torch.set_num_threads(1)
    return results_on("cpu")


@pytest.fixture(scope="module")
def on_cuda():
    require_cuda()
    return results_on("cuda")


@pytest.fixture
def here(device, request):
    """The results of this process on the test's device."""
    return request.getfixturevalue(f"on_{device.type}")


def in_another_process(device, tmp_path, **environment):
    file = tmp_path / "results.pt"
    printed_by(sys.executable, WORKER, device, file, env=dict(os.environ, **environment), timeout=900)
    return torch.load(file)


def assert_same_forward(results, expected, what, neurons):
    compared = 0
    for name, (outputs, _) in results.items():
        if name.split()[0] not in neurons:
            continue
        for label, a, b in zip(("spikes", "v", "w"), outputs, expected[name][0]):
            different = int((a != b).sum())
            assert different == 0, f"{what}: {name}: {different} of {a.numel()} values of {label} have other bits"
            compared += 1
    assert compared > 100


def assert_same_gradients(results, expected, what):
    """Gradients may differ in rounding, because a backward pass may be split in time, but belong to the same spikes."""
    for name, (outputs, gradients) in results.items():
        for i, (a, b) in enumerate(zip(gradients, expected[name][1])):
            scale = b.double().abs().max()  # 0 for w_rest if the state w is given
            error = (a.double() - b.double()).abs().max()
            bound = max(BOUND[a.dtype], BOUND[outputs[1].dtype])
            assert error <= bound * scale, f"{what}: {name}: gradient {i}, up to {scale:.1e}, is off by {error:.1e}"


ALL = [*EXACT, "eif"]


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads(threads, on_cpu):
    torch.set_num_threads(threads)
    results = results_on("cpu")
    assert_same_forward(results, on_cpu, f"{threads} threads", ALL)
    assert_same_gradients(results, on_cpu, f"{threads} threads")


@pytest.fixture(params=["default", "avx2", "avx512"])
def level(request):
    """An instruction set other than the best one, which this process uses."""
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    supported = ["default"] + ["avx2"] * ("avx2" in flags and "fma" in flags) + ["avx512"] * ("avx512bw" in flags)
    if request.param not in supported[:-1]:
        pytest.skip(f"of {', '.join(supported)}, the last is used here")
    return request.param


def test_any_instruction_set(level, on_cpu, tmp_path):
    results = in_another_process("cpu", tmp_path, SPIKEFORGE_CPU_CAPABILITY=level)
    assert_same_forward(results, on_cpu, level, EXACT)
    assert_same_gradients({n: r for n, r in results.items() if n.split()[0] in EXACT}, on_cpu, level)


@pytest.mark.long(but="cuda|-8$")
@pytest.mark.parametrize("length", [4, 8, 16, 32])
def test_any_checkpoint_length(length, here, device, tmp_path):
    results = in_another_process(device.type, tmp_path, SPIKEFORGE_CHECKPOINT=str(length))
    assert_same_forward(results, here, f"a checkpoint every {length} steps", ALL)
    assert_same_gradients(results, here, f"a checkpoint every {length} steps")


@pytest.mark.parametrize("variable, value", [
    *(("PREFETCH", rows) for rows in (1, 8, 32)),  # from 32 on, through shared memory
    *(("SEGMENTS", count) for count in (1, 2, 4, 16)),  # of 45 steps; 1: one thread processes all steps
    *(("VECTOR_WIDTH", neurons) for neurons in (1, 2, 4)),
])
def test_any_schedule_of_a_gpu(variable, value, cuda, on_cuda, tmp_path):
    results = in_another_process("cuda", tmp_path, **{f"SPIKEFORGE_{variable}": str(value)})
    assert_same_forward(results, on_cuda, f"{variable} {value}", ALL)
    if variable != "PREFETCH":
        assert_same_gradients(results, on_cuda, f"{variable} {value}")


def test_cpu_and_gpu(cuda, on_cpu, on_cuda):
    assert_same_forward(on_cuda, on_cpu, "GPU and CPU", EXACT)
    exact = {name: r for name, r in on_cuda.items() if name.split()[0] in EXACT}
    assert_same_gradients(exact, on_cpu, "GPU and CPU")


def one_step(neuron, dtype):
    """Returns a single step from random states and parameters, so that no loop amplifies a difference."""
    torch.manual_seed(11)
    shape = (4, 3, 5000)
    v, w = random_states(neuron, shape, dtype, "cpu")
    params = random_parameters(neuron, shape, "per neuron", dtype, "cpu")
    params["v_threshold"] = torch.full((), 100.0, dtype=dtype)  # no neuron fires, so v is H
    return Inputs(random_x(neuron, 1, shape, dtype, "cpu"), v, w, params)


def ulps_apart(a, b):
    """Returns the error in units of the spacing of numbers near b, or near 1 if b is smaller."""
    return ((a - b).abs() / (torch.finfo(a.dtype).eps * b.abs().clamp(min=1))).max().item()


ONE_STEP = """
import sys, torch
from conftest import library_path
torch.ops.load_library(str(library_path()))
from cases import Options, call
from test_bits import one_step
torch.save([call(n, one_step(n, d), Options())[1] for n in ("plif", "eif") for d in (torch.float32, torch.float64)], sys.argv[1])
"""


def one_steps():
    for neuron in ("plif", "eif"):
        for dtype in (torch.float32, torch.float64):
            inputs = one_step(neuron, dtype)
            yield neuron, inputs, call(neuron, inputs, Options())[1]


def test_exponentials_agree_between_instruction_sets(level, tmp_path):
    file = tmp_path / "h.pt"
    environment = dict(os.environ, SPIKEFORGE_CPU_CAPABILITY=level, PYTHONPATH=os.pathsep.join([str(WORKER.parent), str(Path(__file__).parent)]))
    output_of(ONE_STEP, file, env=environment, timeout=300)
    for (neuron, inputs, here), there in zip(one_steps(), torch.load(file)):
        assert ulps_apart(there, here) <= ULPS, f"{neuron} {here.dtype}, {level}: {ulps_apart(there, here):.1f} ulp"


def test_exponentials_agree_between_cpu_and_gpu(cuda):
    for neuron, inputs, here in one_steps():
        there = call(neuron, inputs.map(lambda name, t: t.to(cuda)), Options())[1].cpu()
        assert ulps_apart(there, here) <= ULPS, f"{neuron} {here.dtype}: {ulps_apart(there, here):.1f} ulp"


@pytest.mark.parametrize("neuron", EXACT)
def test_a_recomputed_step_has_the_bits_of_the_first(neuron, device):
    """The gradient of each step depends, through the surrogate, on which side of the threshold H is.

    The backward pass recomputes H. With a detached reset and gradients of single steps only, the gradient of x is leak
    if S was 0, and k if S was 1, times the charge's slope, so that a changed spike changes the gradient.
    """
    steps = 45
    x = random_x(neuron, steps, SHAPE, torch.float32, device).requires_grad_()
    params = random_parameters(neuron, SHAPE, "per neuron", torch.float32, device)
    options = Options(surrogate="leaky_k_relu", surrogate_args=(0.25, 1.0), detach_reset=True)
    spikes = call(neuron, Inputs(x, params=params), options)[0]
    for t in (0, 1, 7, 8, 15, 16, 17, 31, 32, 44):
        (gradient,) = torch.autograd.grad(spikes[t].sum(), x, retain_graph=True)
        slope = {"integrate_and_fire": 1.0, "plif": torch.sigmoid(params["w"]) if "w" in params else None}.get(neuron)
        slope = 1 / params["tau"] if slope is None else slope
        surrogate = (gradient[t] / slope).round(decimals=2)
        assert torch.equal(surrogate == 1, spikes[t] == 1), f"{neuron}: step {t} was recomputed to another side of the threshold"
        assert gradient[t + 1 :].eq(0).all(), "a spike depends on no later input"
