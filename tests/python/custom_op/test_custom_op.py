"""Custom operators used from Python: those of examples/custom_op and of docs/custom_operators.md."""

import io
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import REPOSITORY, library_path
from documentation import PAGES, code
from loops import printed_by

OPERATORS = library_path().parent / "libspikeforge_example_operators.so"
GUIDE = PAGES["docs/custom_operators.md"]


@pytest.fixture(scope="module", autouse=True)
def loaded():
    if not OPERATORS.exists():
        pytest.skip(f"{OPERATORS} was not built")
    torch.ops.load_library(str(OPERATORS))


@pytest.fixture
def mine():
    return torch.ops.mine


def connections(rows, columns, device, dtype=torch.float32):
    """Returns rows of different lengths, the first of them empty, with some repeated connections."""
    lengths = torch.randint(0, 6, (rows,))
    lengths[0] = 0
    indptr = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int()
    indices = torch.randint(columns, (int(indptr[-1]),), dtype=torch.int32)
    return indptr.to(device), indices.to(device), torch.rand(indices.numel(), dtype=dtype, device=device)


def dense(indptr, indices, weight, columns):
    rows = torch.repeat_interleave(torch.arange(indptr.numel() - 1, device=indptr.device), indptr.diff())
    matrix = weight.new_zeros(indptr.numel() - 1, columns)
    return matrix.index_put((rows, indices.long()), weight, accumulate=True)


def event_sum_arguments(device, gradients, dtype=torch.float32, rows=20, columns=7):
    indptr, indices, weight = connections(rows, columns, device, dtype)
    events = (torch.rand(rows, device=device) < 0.5).to(dtype)
    return events.requires_grad_(gradients), indices, indptr, weight.requires_grad_(gradients), columns


def trace_arguments(device, gradients, dtype=torch.float32):
    trace, spikes = (torch.rand(3, 4, device=device, dtype=dtype).requires_grad_(gradients) for _ in range(2))
    return trace, spikes, 20.0


def boltzmann_arguments(device, gradients, dtype=torch.float32):
    v = 10 * torch.randn(3, 4, device=device, dtype=dtype)
    return v.requires_grad_(gradients), torch.randn(4, device=device, dtype=dtype).requires_grad_(gradients)


ARGUMENTS = {"event_sum": event_sum_arguments, "synaptic_trace": trace_arguments, "boltzmann": boltzmann_arguments}
every_operator = pytest.mark.parametrize("name", ARGUMENTS)


# --- requirements of torch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@every_operator
def test_opcheck(name, gradients, device, mine):
    operator = getattr(mine, name).default
    torch.library.opcheck(operator, ARGUMENTS[name](device, gradients))
    assert torch.Tag.pt2_compliant_tag in operator.tags


def test_opcheck_of_an_operator_that_is_a_vjp(device, mine):
    events, indices, indptr, weight, columns = event_sum_arguments(device, False)
    grad = torch.rand(columns, device=device)
    torch.library.opcheck(mine.event_sum_backward.default, (grad, events, indices, indptr, weight, columns))


def differentiable(name, device, mine):
    args = ARGUMENTS[name](device, True, torch.float64)
    leaves = [arg for arg in args if torch.is_tensor(arg) and arg.requires_grad]

    def function(*values):
        values = iter(values)
        return getattr(mine, name)(*(next(values) if torch.is_tensor(a) and a.requires_grad else a for a in args))

    return function, leaves


@every_operator
def test_gradcheck(name, device, mine):
    function, leaves = differentiable(name, device, mine)
    # A row without an event does not contribute to the sum, but has a derivative, because events are a factor.
    torch.autograd.gradcheck(function, leaves, nondet_tol=1e-12 if device.type == "cuda" else 0)


def test_a_jvp_is_forward_mode(device, mine):
    function, leaves = differentiable("synaptic_trace", device, mine)
    torch.autograd.gradcheck(function, leaves, check_forward_ad=True, check_backward_ad=False)
    tangents = tuple(torch.rand_like(leaf) for leaf in leaves)
    _, rates = torch.func.jvp(function, tuple(leaf.detach() for leaf in leaves), tangents)
    decay = torch.exp(torch.tensor(-1 / 20.0, dtype=torch.float64))
    torch.testing.assert_close(rates[0], decay * tangents[0] + tangents[1])


def test_without_a_jvp_forward_mode_is_refused(device, mine):
    function, leaves = differentiable("event_sum", device, mine)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="mine::event_sum has no jvp"):
        function(*(torch.autograd.forward_ad.make_dual(leaf.detach(), torch.ones_like(leaf)) for leaf in leaves))


def test_a_vjp_of_torch_operators_is_differentiated_twice(mine):
    function, leaves = differentiable("synaptic_trace", torch.device("cpu"), mine)
    torch.autograd.gradgradcheck(lambda *x: [y.square() for y in function(*x)], leaves)


@every_operator
def test_torch_func_differentiates(name, device, mine):
    function, leaves = differentiable(name, device, mine)

    def loss(*values):
        results = function(*values)
        return sum((k + 1) * y.square().sum() for k, y in enumerate(results if isinstance(results, tuple) else [results]))

    expected = torch.autograd.grad(loss(*leaves), leaves)
    actual = torch.func.grad(loss, argnums=tuple(range(len(leaves))))(*(leaf.detach() for leaf in leaves))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [False, True])
@every_operator
def test_compile_keeps_it_whole(name, dynamic, device, mine):
    torch._dynamo.reset()
    args = ARGUMENTS[name](device, True)
    leaves = [arg for arg in args if torch.is_tensor(arg) and arg.requires_grad]

    def loss(*values):
        results = getattr(mine, name)(*values)
        return sum((2 * y).sum() for y in (results if isinstance(results, tuple) else [results]))

    expected = loss(*args)
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")(*args)
    torch.testing.assert_close(compiled, expected)
    for a, b in zip(torch.autograd.grad(compiled, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(a, b)


@every_operator
def test_export(name, device, mine):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return getattr(torch.ops.mine, name)(*args)

    args = ARGUMENTS[name](device, False)
    exported = torch.export.export(Module(), args)
    assert any(f"mine.{name}.default" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(*args), getattr(mine, name)(*args))


@pytest.mark.filterwarnings("ignore:.*is deprecated.*:DeprecationWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript(mine):
    def network(trace: torch.Tensor, spikes: torch.Tensor):
        trace, change = torch.ops.mine.synaptic_trace(trace, spikes, 20.0, dt=0.5)
        return torch.ops.mine.boltzmann(trace, change)

    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(network), buffer)
    buffer.seek(0)
    trace, spikes, _ = trace_arguments(torch.device("cpu"), False)
    assert torch.equal(torch.jit.load(buffer)(trace, spikes), network(trace, spikes))


# --- vmap ----------------------------------------------------------------------------------------------------------------


def vmapped(device, mine):
    indptr, indices, weight = connections(20, 7, device)
    return lambda one: mine.event_sum(one, indices, indptr, weight, 7), dense(indptr, indices, weight, 7)


def test_defect_5_a_batch_folded_into_the_launch_grid_of_one_slice(device, mine):
    product, matrix = vmapped(device, mine)
    events = (torch.rand(20, 3, device=device) < 0.5).float()  # the mapped dimension is not the first
    torch.testing.assert_close(torch.vmap(product, in_dims=1)(events), events.t() @ matrix)


def test_defect_9_nested_vmap_returns_memory_that_nobody_wrote(device, mine):
    product, matrix = vmapped(device, mine)
    events = (torch.rand(20, 2, 3, device=device) < 0.5).float()
    expected = torch.einsum("iab,ij->abj", events, matrix)
    torch.testing.assert_close(torch.vmap(torch.vmap(product, in_dims=1), in_dims=1)(events), expected)


def test_vmap_over_the_gradient_of_weights(device, mine):
    indptr, indices, weight = connections(20, 7, device)
    weights = torch.rand(3, weight.numel(), device=device)
    one = (torch.rand(20, device=device) < 0.5).float()
    gradient = torch.vmap(torch.func.grad(lambda w: mine.event_sum(one, indices, indptr, w, 7).square().sum()))(weights)
    for w, actual in zip(weights, gradient):
        w = w.clone().requires_grad_()
        expected = torch.autograd.grad((one @ dense(indptr, indices, w, 7)).square().sum(), w)[0]
        torch.testing.assert_close(actual, expected)


# --- results of the examples ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_event_sum_is_torchs_sparse_product(dtype, device, mine):
    for rows, columns in ((1, 1), (300, 200), (200, 3000)):
        indptr, indices, weight = connections(rows, columns, device, dtype)
        matrix = dense(indptr, indices, weight, columns)
        for share in (0.0, 0.1, 1.0):
            events = (torch.rand(rows, device=device) < share).to(dtype) * torch.rand(rows, device=device, dtype=dtype)
            actual = mine.event_sum(events, indices, indptr, weight, columns)
            torch.testing.assert_close(actual, events @ matrix)
            sparse = matrix.to_sparse_csr()
            torch.testing.assert_close(actual, sparse.t() @ events)


@pytest.mark.parametrize("threads", [1, 3])
def test_event_sum_on_several_threads(threads, mine):
    torch.set_num_threads(threads)
    indptr, indices, weight = connections(500, 40, "cpu", torch.float64)
    events = torch.rand(500, dtype=torch.float64)
    torch.testing.assert_close(mine.event_sum(events, indices, indptr, weight, 40), events @ dense(indptr, indices, weight, 40))


def test_event_sum_by_hand(device, mine):
    weight = torch.arange(1.0, 8.0, device=device)
    indices = torch.tensor([2, 3, 4, 0, 2, 4, 1], dtype=torch.int32, device=device)
    indptr = torch.tensor([0, 3, 6, 7], dtype=torch.int32, device=device)
    events = torch.tensor([2.0, 1.0, 3.0], device=device)
    assert mine.event_sum(events, indices, indptr, weight, 5).tolist() == [4.0, 21.0, 7.0, 4.0, 12.0]


def test_the_trace_and_boltzmann_are_their_formulas(device, mine):
    trace, spikes, tau = trace_arguments(device, False, torch.float64)
    after, change = mine.synaptic_trace(trace, spikes, tau, dt=0.5)
    expected = trace * torch.exp(torch.tensor(-0.5 / tau, dtype=torch.float64)) + spikes
    torch.testing.assert_close(after, expected)
    torch.testing.assert_close(change, expected - trace)
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        v, v_half = boltzmann_arguments(device, False, dtype)
        actual = mine.boltzmann(v, v_half, slope=3.0)
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), torch.sigmoid((v - v_half).double() / 3), rtol=bound, atol=bound)


def test_errors_are_exceptions_with_words(device, mine):
    events, indices, indptr, weight, columns = event_sum_arguments(device, False)
    with pytest.raises(TypeError, match="mine::event_sum: indices must be Int, but is Long"):
        mine.event_sum(events, indices.long(), indptr, weight, columns)
    with pytest.raises(ValueError, match="its shape function declares for result 0 the shape .* sizes must not be negative"):
        mine.event_sum(events, indices, indptr, weight, -1)
    with pytest.raises(RuntimeError, match="event_sum"):
        mine.event_sum(events, indices)


def test_it_runs_in_a_cuda_graph(cuda, mine):
    args = list(event_sum_arguments(cuda, False))
    mine.event_sum(*args)  # compiles before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = mine.event_sum(*args)
    args[0].copy_(torch.rand_like(args[0]))
    graph.replay()
    torch.testing.assert_close(y, mine.event_sum(*args))


# --- the guide -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_guides_programs_build_and_run(installed_package, tmp_path):
    (tmp_path / "operators.cpp").write_text(code("operators.cpp of the guide"))
    (tmp_path / "CMakeLists.txt").write_text(code("CMakeLists.txt of the guide"))
    ccache = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={path}" for path in [shutil.which("ccache")] if path]
    printed_by("cmake", "-B", "build", f"-DCMAKE_PREFIX_PATH={installed_package}", *ccache, cwd=tmp_path)
    printed_by("cmake", "--build", "build", cwd=tmp_path)

    program = code("Python program of the guide") + "\nassert torch.allclose(v.grad, 1.7 * (p := torch.sigmoid(1.7 * (v - 0.8) / noise)) * (1 - p) / noise)\n"
    assert "adds" in printed_by(sys.executable, "-c", program, cwd=tmp_path)


PUBLIC = (REPOSITORY / "csrc" / "custom_op" / "custom_op.h").read_text()


@pytest.mark.parametrize("method", sorted(set(re.findall(r"^\| `\.(\w+)\(", GUIDE, re.MULTILINE))))
def test_every_part_of_the_guides_table_is_there(method):
    assert re.search(rf"CustomOp& {method}\(", PUBLIC), f"the guide tells of .{method}, which CustomOp does not have"


RECORDED = """
import sys, torch
for library in sys.argv[1:3]:
    torch.ops.load_library(library)
torch.ops.spikeforge.record_kernels(["sm_90"])
indptr, indices = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
for dtype in (torch.float32, torch.float64, torch.float32):
    torch.ops.mine.event_sum(torch.ones(2, dtype=dtype), indices, indptr, torch.ones(2, dtype=dtype), 2)
torch.ops.mine.boltzmann(torch.zeros(3), torch.ones(3))
print(torch.ops.spikeforge.write_kernel_pack(sys.argv[3]))
"""


def test_a_kernel_pack_contains_the_gpu_kernels_of_recorded_cpu_calls(tmp_path):
    def run(name, **environment):
        command = [sys.executable, "-c", RECORDED, library_path(), OPERATORS, tmp_path / name]
        return subprocess.run([*map(str, command)], capture_output=True, text=True,
                              env={**os.environ, "SPIKEFORGE_CACHE_DIR": "off", **environment})

    first = run("first.pack")
    assert first.returncode == 0, first.stderr
    assert int(first.stdout) == 3  # event_sum for two types, and boltzmann
    without_nvrtc = {"SPIKEFORGE_NVRTC": str(tmp_path / "none")}
    again = run("again.pack", SPIKEFORGE_KERNEL_PACK=str(tmp_path / "first.pack"), **without_nvrtc)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.pack").read_bytes() == (tmp_path / "first.pack").read_bytes()
    assert "NVRTC" in run("other.pack", **without_nvrtc).stderr
