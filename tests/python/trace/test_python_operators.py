"""Custom operators registered from Python: spikeforge.custom_op."""

import ctypes
import gc
import inspect
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
import weakref

import pytest
import torch
from conftest import REPOSITORY, library_path
from documentation import PAGES, code
from loops import printed_by, refused

import spikeforge
from spikeforge import CudaKernel, custom_op

EVENT_SUM = "Tensor events, Tensor indices, Tensor indptr, Tensor weight, SymInt columns"


@pytest.fixture
def register():
    """custom_op for operators that are removed after the test."""
    made = []

    def make(*args, **kwargs):
        made.append(custom_op(*args, **kwargs))
        return made[-1]

    yield make
    for op in reversed(made):
        op.unregister()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Compiles C functions with this machine's compiler: compiled(source, T="float")["name"]."""
    folder = tmp_path_factory.mktemp("functions")

    def make(source, **macros):
        library = folder / f"{len(list(folder.iterdir()))}.so"
        words = [f"-D{name}={text}" for name, text in macros.items()]
        command = ["c++", "-shared", "-fPIC", "-O2", *words, "-x", "c++", "-", "-o", library]
        try:
            subprocess.run(command, input=source, text=True, check=True)
        except FileNotFoundError:
            pytest.skip("there is no c++ on this machine")
        return ctypes.CDLL(str(library))

    return make


# --- an operator with several outputs, a dtype as an attribute, and kernels of every kind ----------------------------------

SCHEMA = f"({EVENT_SUM}, *, ScalarType dtype=float) -> (Tensor y, Tensor delivered)"


def rows_of(indptr):
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1, device=indptr.device), indptr.long().diff())


def event_sum(events, indices, indptr, weight, columns, dtype):
    """Returns the sum of the rows with a nonzero event, and the number of events of each target."""
    given = events[rows_of(indptr)]
    y = torch.zeros(columns, dtype=dtype, device=events.device).index_add(0, indices.long(), (given * weight).to(dtype))
    return y, torch.zeros(columns, dtype=torch.int32, device=events.device).index_add(0, indices.long(), (given != 0).int())


def event_sum_vjp(grad_y, grad_delivered, events, indices, indptr, weight, columns, dtype):
    at_synapse, rows = grad_y.to(weight.dtype)[indices.long()], rows_of(indptr)
    return torch.zeros_like(events).index_add(0, rows, at_synapse * weight), at_synapse * events[rows]


def event_sum_shapes(events, indices, indptr, weight, columns, dtype):
    if events.dim() != 1 or indptr.shape[0] != events.shape[0] + 1:
        raise ValueError(f"indptr must have one element more than events, but has {tuple(indptr.shape)}")
    return [((columns,), dtype), ((columns,), torch.int32)]


CUDA = """
extern "C" __global__ void event_sum(Array<const events_t> events, Array<const indices_t> indices,
                                     Array<const indptr_t> indptr, Array<const weight_t> weight, long long columns,
                                     long long dtype, Array<y_t> y, Array<delivered_t> delivered) {
  const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
  if (row >= events.numel || events[row] == 0) return;
  for (int k = indptr[row] + threadIdx.x % 32; k < indptr[row + 1]; k += 32) {
    atomicAdd(&y[indices[k]], convert<y_t>(events[row] * weight[k]));
    atomicAdd(&delivered[indices[k]], 1);
  }
}
"""

SOURCE = """
void event_sum(Array<const events_t> events, Array<const indices_t> indices, Array<const indptr_t> indptr,
               Array<const weight_t> weight, long long columns, long long dtype, Array<y_t> y,
               Array<delivered_t> delivered) {
  for (long long row = 0; row < events.numel; ++row) {
    if (events[row] == 0) continue;
    for (int k = indptr[row]; k < indptr[row + 1]; ++k) {
      y[indices[k]] += convert<y_t>(events[row] * weight[k]);
      delivered[indices[k]] += 1;
    }
  }
}
"""

# At an address: integers are columns and dtype, whose number 6 is float and 7 double.
FUNCTION = """
#include <cstdint>
template <class Out>
void add(void** data, int64_t** sizes) {
  const T *events = (T*)data[0], *weight = (T*)data[3];
  const int *indices = (int*)data[1], *indptr = (int*)data[2];
  Out* y = (Out*)data[4];
  int* delivered = (int*)data[5];
  for (int64_t row = 0; row < sizes[0][0]; ++row)
    for (int k = indptr[row]; events[row] != 0 && k < indptr[row + 1]; ++k) {
      y[indices[k]] += events[row] * weight[k];
      delivered[indices[k]] += 1;
    }
}
extern "C" void event_sum(void** data, int64_t* dims, int64_t** sizes, int64_t* integers, double* numbers) {
  integers[1] == 7 ? add<double>(data, sizes) : add<float>(data, sizes);
}
"""


def warp_a_row(events, *rest):
    return (32 * events.numel() + 255) // 256


def cpu_function(kind, compiled):
    if kind == "function":
        return event_sum
    if kind == "source":
        compiled("")  # skips the test without a compiler
        return SOURCE
    return {torch.float32: compiled(FUNCTION, T="float").event_sum, torch.float64: compiled(FUNCTION, T="double").event_sum}


@pytest.fixture(params=["function", "address", "source"])
def operator(request, register, compiled):
    return register(
        "mine_py::event_sum" + SCHEMA,
        shapes=event_sum_shapes,
        cpu=cpu_function(request.param, compiled),
        cuda=CudaKernel(CUDA, grid=warp_a_row),
        vjp=event_sum_vjp,
        differentiable=["events", "weight"],
        zero_results=True,
        dtypes={"events": (torch.float32, torch.float64), "indices": torch.int32, "indptr": torch.int32},
    )


def arguments(device, dtype=torch.float32, gradients=False, rows=20, columns=7):
    """Returns rows of different lengths, the first of them empty, with some repeated connections."""
    lengths = torch.randint(0, 6, (rows,))
    lengths[0] = 0
    indptr = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int().to(device)
    indices = torch.randint(columns, (int(indptr[-1]),), dtype=torch.int32, device=device)
    events = (torch.rand(rows, device=device) < 0.5).to(dtype).requires_grad_(gradients)
    weight = torch.rand(indices.numel(), dtype=dtype, device=device, requires_grad=gradients)
    return events, indices, indptr, weight, columns


def test_results_are_a_dense_products(operator, device):
    for dtype in (torch.float32, torch.float64):
        for out in (torch.float32, torch.float64):
            events, indices, indptr, weight, columns = arguments(device, dtype)
            matrix = weight.new_zeros(events.numel(), columns)
            matrix.index_put_((rows_of(indptr), indices.long()), weight, accumulate=True)
            y, delivered = operator(events, indices, indptr, weight, columns, dtype=out)
            assert y.dtype == out and delivered.dtype == torch.int32
            torch.testing.assert_close(y, (events @ matrix).to(out), rtol=1e-5, atol=1e-5)
            fired = torch.zeros_like(matrix, dtype=torch.int32)
            fired.index_put_((rows_of(indptr), indices.long()), torch.ones_like(indices), accumulate=True)
            assert torch.equal(delivered, (fired * (events != 0)[:, None]).sum(0).int())


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
def test_opcheck(operator, device, gradients):
    torch.library.opcheck(operator.overload, arguments(device, gradients=gradients))
    assert torch.Tag.pt2_compliant_tag in operator.overload.tags


def test_gradcheck_and_a_second_derivative(operator, device):
    events, indices, indptr, weight, columns = arguments(device, torch.float64, gradients=True)

    def function(events, weight):
        return operator(events, indices, indptr, weight, columns, dtype=torch.float64)[0]

    assert torch.autograd.gradcheck(function, (events, weight))
    assert torch.autograd.gradgradcheck(function, (events, weight))


def loss(operator, events, indices, indptr, weight, columns):
    y, delivered = operator(events * events, indices, indptr, weight, columns)
    return (y.sin() * delivered).sum()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compile_keeps_it_whole_and_equal_under_new_sizes(operator, device, backend):
    torch._dynamo.reset()
    compiled = torch.compile(lambda *args: loss(operator, *args), fullgraph=True, backend=backend, dynamic=True)
    for rows, columns in ((20, 7), (31, 12)):
        gradients = []
        for function in (compiled, lambda *args: loss(operator, *args)):
            torch.manual_seed(rows)
            args = arguments(device, gradients=True, rows=rows, columns=columns)
            function(*args).backward()
            gradients.append((args[0].grad, args[3].grad))
        torch.testing.assert_close(gradients[0], gradients[1])


def test_export_keeps_it_whole(operator, device):
    class Sum(torch.nn.Module):
        def forward(self, *args):
            return operator(*args, 7)[0] + 1

    args = arguments(device)[:-1]
    program = torch.export.export(Sum(), args)
    assert operator.overload in [node.target for node in program.graph.nodes]
    torch.testing.assert_close(program.module()(*args), Sum()(*args))


def test_vmap_runs_slice_by_slice_without_a_rule(operator, device):
    events, indices, indptr, weight, columns = arguments(device)
    batch = (torch.rand(3, events.numel(), device=device) < 0.5).float()
    actual = torch.vmap(lambda events: operator(events, indices, indptr, weight, columns)[0])(batch)
    expected = torch.stack([operator(events, indices, indptr, weight, columns)[0] for events in batch])
    torch.testing.assert_close(actual, expected)


# --- parts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes, expected", [
    ("x", (2, 3, torch.float32)),
    (["x"], (2, 3, torch.float32)),
    ((4,), (4, torch.float32)),
    (("n", 3), (5, 3, torch.float32)),
    ((("n",), torch.int64), (5, torch.int64)),
    (([2, 2], "w"), (2, 2, torch.float64)),
    (lambda x, w, n: x.shape, (2, 3, torch.float32)),
    (lambda x, w, n: [x.shape[0], n], (2, 5, torch.float32)),
    (lambda x, w, n: [((n, x.shape[1]), w.dtype)], (5, 3, torch.float64)),
    (lambda x, w, n: x.new_empty(n, dtype=torch.bool), (5, torch.bool)),
])
def test_shapes_are_a_function_a_value_or_a_list(register, shapes, expected):
    *sizes, dtype = expected
    op = register("mine_py::shaped(Tensor x, Tensor w, SymInt n) -> Tensor", shapes=shapes, cpu=lambda x, w, n: x.new_ones(sizes, dtype=dtype))
    args = torch.zeros(2, 3), torch.zeros(1, dtype=torch.float64), 5
    for device in ("cpu", "meta"):
        result = op(*(arg.to(device) if torch.is_tensor(arg) else arg for arg in args))
        assert (*result.shape, result.dtype) == expected
    torch.library.opcheck(op.overload, args)


def test_a_shape_function_is_asked_once_for_each_combination(register):
    asked = []
    op = register("mine_py::asked(Tensor x, float a=1.0, str name='') -> Tensor", shapes=lambda x, a, name: asked.append(a) or x,
                  cpu=lambda x, a, name: x * a)
    for _ in range(3):
        for x in (torch.ones(2), torch.ones(3), torch.ones(3, 1), torch.ones(3).double()):
            op(x), op(x, 2.0), op(x, 2.0, name="b")
    assert len(asked) == 12


def exponential(register, **parts):
    return register("mine_py::exponential(Tensor x, float a=1.0) -> Tensor y", shapes="x", cpu=lambda x, a: torch.exp(a * x), **parts)


def test_another_operator_is_the_vjp_and_finds_the_results(register):
    backward = register(
        "mine_py::exponential_backward(Tensor grad, Tensor x, float a, Tensor y) -> Tensor",
        shapes="x", cpu=lambda grad, x, a, y: a * grad * y, vjp=lambda g, grad, x, a, y: (g * a * y, None, g * a * grad),
        differentiable=["grad", "x", "y"],
    )  # fmt: skip
    for vjp in (backward, "mine_py::exponential_backward", lambda grad, x, a, y: a * grad * y):
        op = custom_op("mine_py::exponential(Tensor x, float a=1.0) -> Tensor y", shapes="x", cpu=lambda x, a: torch.exp(a * x),
                       vjp=vjp, save_results=True)
        x = torch.rand(4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: op(x, 0.5), (x,))
        op.unregister()


def test_forward_mode(register):
    op = exponential(register, jvp=lambda tangent, x, a: a * tangent * torch.exp(a * x), vjp=lambda g, x, a: g * a * torch.exp(a * x))
    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: op(x, 2.0), (x,), check_forward_ad=True)
    torch.testing.assert_close(torch.func.jvp(lambda x: op(x, 2.0), (x,), (torch.ones_like(x),))[1], 2 * torch.exp(2 * x))


def test_vmap_by_a_rule_and_as_a_batch(register):
    calls = []

    def outer(x, w):
        calls.append(x.shape)
        return x[..., :, None] * w[..., None, :]

    def rule(info, in_dims, x, w):
        assert info.batch_size == 5
        return (outer(x, w) if None not in in_dims else (x[..., None] * w[..., None, :])), 0

    x, w = torch.rand(5, 3), torch.rand(2)
    for number, vmap in enumerate(("batched", rule)):
        op = register(f"mine_py::outer{number}(Tensor x, Tensor w) -> Tensor",
                      shapes=lambda x, w: (*x.shape, w.shape[-1]), cpu=outer, vjp=lambda g, x, w: ((g @ w[..., None])[..., 0], (x[..., None, :] @ g)[..., 0, :]),
                      vmap=vmap)  # fmt: skip
        calls.clear()
        torch.testing.assert_close(torch.vmap(op.overload, in_dims=(0, None))(x, w), torch.einsum("bi,j->bij", x, w))
        assert len(calls) <= 1
        gradient = torch.vmap(torch.func.grad(lambda x, w: op(x, w).sin().sum()), in_dims=(0, None))(x, w)
        expected = torch.vmap(torch.func.grad(lambda x, w: torch.outer(x, w).sin().sum()), in_dims=(0, None))(x, w)
        torch.testing.assert_close(gradient, expected)


def test_lists_of_tensors_and_optional_ones(register):
    op = register(
        "mine_py::weighted(Tensor[] xs, Tensor? w, Tensor y) -> Tensor", shapes=lambda xs, w, y: y,
        cpu=lambda xs, w, y: sum(xs) * (1 if w is None else w) + y,
        vjp=lambda g, xs, w, y: ([g * (1 if w is None else w) for _ in xs], None if w is None else g * sum(xs), g),
    )  # fmt: skip
    xs = [torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    w, y = (torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda a, b, w, y: op([a, b], w, y), (*xs, w, y))
    assert torch.autograd.gradcheck(lambda a, b, y: op([a, b], None, y), (*xs, y))


def test_tensors_are_contiguous_and_results_are_of_their_own(register):
    seen = []
    op = register("mine_py::same(Tensor x) -> (Tensor, Tensor)", shapes=lambda x: [x, x.shape[::-1]],
                  cpu=lambda x: seen.append(x.is_contiguous()) or (x, x.t()))
    for x in (torch.rand(2, 3), torch.rand(3, 2).t()):
        same, turned = op(x)
        assert seen.pop() and torch.equal(same, x) and torch.equal(turned, x.t()) and turned.is_contiguous()
        assert same.data_ptr() != x.data_ptr() and turned.data_ptr() not in (x.data_ptr(), same.data_ptr())


def test_a_numba_function(register):
    numba = pytest.importorskip("numba")

    @numba.cfunc(spikeforge.CustomOp.cfunc_signature)
    def scaled(data, dims, sizes, integers, numbers):
        x, y = numba.carray(data[0], sizes[0][0], numba.float32), numba.carray(data[1], sizes[0][0], numba.float32)
        for i in range(sizes[0][0]):
            y[i] = numbers[0] * x[i]

    op = register("mine_py::by_numba(Tensor x, float a) -> Tensor", shapes="x", cpu=scaled, dtypes={"x": torch.float32})
    assert op(torch.arange(3.0), 2.0).tolist() == [0.0, 2.0, 4.0]


# --- lifetime --------------------------------------------------------------------------------------------------------------


def test_functions_live_as_long_as_the_operator(register):
    class Big:
        pass

    big = Big()
    watched = weakref.ref(big)
    op = register("mine_py::living(Tensor x) -> Tensor", shapes="x", cpu=lambda x, big=big: x + 1, vjp=lambda g, x: g)
    del big
    gc.collect()
    assert watched() is not None and torch.ops.mine_py.living(torch.zeros(1)).item() == 1
    op.unregister()
    gc.collect()
    assert watched() is None
    assert not hasattr(torch.ops.mine_py, "living")


@pytest.mark.parametrize("compiler", ["eager", "compiled"])
def test_a_name_that_is_free_again_may_get_another_schema(register, compiler):
    def sums(op, *args):
        if compiler == "eager":
            return op(*args)
        torch._dynamo.reset()
        return torch.compile(lambda *args: op(*args), fullgraph=True, backend="aot_eager")(*args)

    first = register("mine_py::again(Tensor x) -> Tensor", shapes="x", cpu=lambda x: x + 1)
    assert sums(first, torch.zeros(1)).item() == 1
    first.unregister()
    second = register("mine_py::again(Tensor x, Tensor y) -> (Tensor, Tensor)", shapes=["x", "y"], cpu=lambda x, y: (x + y, x - y))
    assert [t.item() for t in sums(second, torch.zeros(1), torch.ones(1))] == [1, -1]
    torch.library.opcheck(torch.ops.mine_py.again.default, (torch.zeros(1), torch.ones(1)))


@pytest.mark.parametrize("part", ["cpu", "vjp", "shapes"])
def test_an_operator_is_not_unregistered_by_its_own_functions(register, part):
    functions = dict(shapes=lambda x: x, cpu=lambda x: x + 1, vjp=lambda g, x: g)

    def ends_it(*args, function=functions[part]):
        op.unregister()
        return function(*args)

    op = register("mine_py::within(Tensor x) -> Tensor", **functions | {part: ends_it})
    with pytest.raises(RuntimeError, match=r"mine_py::within: unregister\(\) was called while one of its functions runs"):
        op(torch.ones(2, requires_grad=True)).sum().backward()
    op.unregister()
    assert not hasattr(torch.ops.mine_py, "within")


def test_a_backward_pass_after_its_operator_went_says_so(register):
    op = exponential(register, vjp=lambda g, x, a: g)
    y = op(torch.ones(1, requires_grad=True))
    op.unregister()
    refused(RuntimeError, "mine_py::exponential: its vjp, .*, is no longer registered", y.backward)


def test_the_process_ends_well_with_operators_registered():
    program = """
        import torch, spikeforge
        op = spikeforge.custom_op("mine_py::ending(Tensor x) -> Tensor", shapes="x", cpu=lambda x: x + 1, vjp=lambda g, x: g)
        kept = op(torch.ones(1, requires_grad=True)); kept.backward()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# --- errors ----------------------------------------------------------------------------------------------------------------


def identity(x):
    return x + 0


WRONG_PARTS = {
    'the schema "mine_py::f Tensor" cannot be read': dict(schema="mine_py::f Tensor"),
    "must begin with a namespace": dict(schema="f(Tensor x) -> Tensor"),
    "mine_py::f: its schema must have an argument of type Tensor": dict(schema="mine_py::f(int n) -> Tensor"),
    "mine_py::f: every result must be a new Tensor": dict(schema="mine_py::f(Tensor x) -> int"),
    "mine_py::f: shapes is missing: pass shapes=": dict(shapes=None),
    "mine_py::f: shapes names z, which its schema": dict(shapes="z"),
    "mine_py::f: it has no kernel": dict(cpu=None),
    "mine_py::f: cpu must be a function, the address of one": dict(cpu=1.5),
    "mine_py::f: cpu is one compiled function, which has one dtype: declare that of x in dtypes": dict(cpu=4096),
    "mine_py::f: -1 is not the address of a function": dict(cpu={torch.float32: -1}),
    "mine_py::f: cuda must be CUDA source, a CudaKernel or a function": dict(cuda=3),
    "mine_py::f: the block of its CUDA kernel must be one to three ints": dict(cuda=CudaKernel("x", block=(1, 2, 3, 4))),
    "mine_py::f: its vjp, mine_py::missing, is not registered: register it first": dict(vjp="mine_py::missing"),
    "mine_py::f: differentiable names z, which its schema": dict(differentiable=["z"]),
    "mine_py::f: zero_results names result 3": dict(zero_results=[3]),
    "mine_py::f: dtypes names n, which is not a tensor": dict(dtypes={"n": torch.int8}),
    'mine_py::f: vmap must be a function, "batched" or None': dict(vmap=3),
    'on_missing_device must be "error" or "cpu", but is .gpu.': dict(on_missing_device="gpu"),
    "mine_py::f: it has no CPU function to run for missing devices": dict(cpu=None, cuda=identity, on_missing_device="cpu"),
    "aten::add: the namespace aten is torch's own": dict(schema="aten::add(Tensor x, int n) -> Tensor"),
    "mine_py::name: torch.ops.mine_py.name is an attribute of torch": dict(schema="mine_py::name(Tensor x, int n) -> Tensor"),
    "torch.ops.mine_py._dir is an attribute": dict(schema="mine_py::_dir(Tensor x, int n) -> Tensor"),
    "torch.ops.mine_py.__doc__ is an attribute": dict(schema="mine_py::__doc__(Tensor x, int n) -> Tensor"),
    "torch.ops.mine_py.f.op is an attribute": dict(schema="mine_py::f.op(Tensor x, int n) -> Tensor"),
    "torch.ops.loaded_libraries.f is an attribute": dict(schema="loaded_libraries::f(Tensor x, int n) -> Tensor"),
    "mine_py::f: the dtype of char16 would be called char16_t": dict(schema="mine_py::f(Tensor char16) -> Tensor", shapes="char16", cpu="x"),
    "mine_py::f: the dtype of wchar would be called wchar_t": dict(schema="mine_py::f(Tensor x) -> Tensor wchar", cpu=None, cuda="x"),
}


def operators():
    return {name for name in torch._C._dispatch_get_all_op_names() if not name.startswith("spikeforge_functions::")}


@pytest.mark.parametrize("message, parts", WRONG_PARTS.items())
def test_parts_that_do_not_fit_are_refused_and_nothing_is_registered(message, parts):
    given = dict(schema="mine_py::f(Tensor x, int n=1) -> Tensor", shapes="x", cpu=lambda x, n: x + n) | parts
    before = operators()
    refused((ValueError, TypeError), message, lambda: custom_op(**given))
    assert operators() == before
    assert not hasattr(torch.ops.mine_py, "f") and torch.ops.mine_py.name == "mine_py"


def test_a_name_is_taken_once(register):
    exponential(register)
    with pytest.raises(ValueError, match="mine_py::exponential: an operator of this name is registered already"):
        exponential(register)


WRONG_CALLS = {
    "its CPU function must return 2 tensors, one for each result, but returned 1": dict(cpu=identity),
    "its CPU function must return a tensor for each result, but returned a NoneType": dict(cpu=lambda x: None),
    "its CPU function must return a tensor for each result, but returned a tuple of Tensor, int": dict(cpu=lambda x: (x, 1)),
    r"its CPU function returned result 1 the shape \[1\], but its shape function declares \[2\]": dict(cpu=lambda x: (x, x[:1])),
    "its CPU function returned result 0 the dtype Double, but its shape function declares Float": dict(cpu=lambda x: (x.double(), x)),
    "its CPU function returned result 0 on meta, but its arguments are on cpu": dict(cpu=lambda x: (x.to("meta"), x)),
    "its shape function must describe 2 results, as its schema has, but describes 1": dict(shapes="x"),
    "shapes must return the name of an argument, sizes": dict(shapes=lambda x: [3.5, x]),
    r"its shape function returns the shape \[-1\]: sizes must not be negative": dict(shapes=lambda x: [(-1,), x]),
    "x must be Float, but is Long": dict(dtypes={"x": torch.float32}, x=torch.ones(2, dtype=torch.long)),
    "has a kernel for CUDA only": dict(cpu=None, cuda=identity),
    "its vjp must return 1 gradient|its vjp returned no gradient for x": dict(vjp=lambda *args: None),
    "its vjp must return x a gradient of its shape": dict(vjp=lambda g, h, x: g[:1]),
    "its vjp must return a tensor or None as the gradient of x, but returned a float": dict(vjp=lambda g, h, x: 2.0),
    "its vjp must return 1 gradient, one for each differentiable argument, but returned 2": dict(vjp=lambda g, h, x: (g, h)),
    "its vjp must return a tensor or None as the gradient of x, but returned a list of Tensor": dict(vjp=lambda g, h, x: [[g]]),
    "mine_py::g has no vjp": dict(),
}


@pytest.mark.parametrize("message, parts", WRONG_CALLS.items())
def test_wrong_calls_and_wrong_functions_are_errors_with_words(register, message, parts):
    given = dict(shapes=["x", "x"], cpu=lambda x: (x + 1, x - 1)) | parts
    x = given.pop("x", torch.ones(2, requires_grad=True))
    op = register("mine_py::g(Tensor x) -> (Tensor, Tensor)", **given)
    refused((ValueError, TypeError, NotImplementedError), message, lambda: op(x)[0].sum().backward())


def test_an_exception_of_a_function_is_the_callers(register):
    def fails(x, a):
        raise KeyError("mine")

    op = register("mine_py::failing(Tensor x, float a=1.0) -> Tensor", shapes="x", cpu=fails, vjp=lambda g, x, a: 1 // 0)
    refused(KeyError, "mine", lambda: op(torch.ones(1)))


def test_a_compiled_function_takes_no_other_dtype(register, compiled):
    functions = {torch.float32: compiled(FUNCTION, T="float").event_sum}
    op = register("mine_py::event_sum" + SCHEMA, shapes=event_sum_shapes, cpu=functions, zero_results=True,
                  dtypes={"indices": torch.int32, "indptr": torch.int32})
    events, indices, indptr, weight, columns = arguments("cpu")
    with pytest.raises(TypeError, match="events must be Float on the CPU, which its functions are for, but is Double"):
        op(events.double(), indices, indptr, weight.double(), columns)
    with pytest.raises(TypeError, match="weight must be Float, as events is, but is Double"):
        op(events, indices, indptr, weight.double(), columns)
    refused(TypeError, "indices must be Int, but is Long", lambda: op(events, indices.long(), indptr, weight, columns))
    with pytest.raises(ValueError, match="indptr must have one element more than events"):
        op(events[1:], indices, indptr, weight, columns)


def test_a_source_that_does_not_compile_shows_its_line(register, compiled):
    compiled("")
    body = "{name}(Array<const x_t> x, Array<y_t> y) {{\n  y[0] = unknown;\n}}"
    op = register("mine_py::broken(Tensor x) -> Tensor y", shapes="x", cpu="void " + body.format(name="broken"),
                  cuda='extern "C" __global__ void ' + body.format(name="broken"))
    with pytest.raises(RuntimeError, match=r"(?s)mine_py::broken: its CPU source .*unknown.*\n +2 \|   y\[0\] = unknown;"):
        op(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"(?s)mine_py_broken.*> +2 \|   y\[0\] = unknown;"):
        op.compile("sm_90", torch.ones(2))


def test_tensors_may_be_called_as_types_of_c_are(register):
    names = ["time", "size", "mode", "key", "clock", "id", "int8", "double"]
    parameters = ", ".join(f"Array<const {name}_t> {name}" for name in names if name != "double")
    total = " + ".join(f"{name}[i]" for name in names if name != "double")
    body = f"""({parameters}, Array<const double_t> last, Array<off_t> off) {{
      for (long long i = 0; i < off.numel; ++i) off[i] = {total} + last[i] + (i == 0 ? seven() : 0);
    }}"""
    headers = {"seven.h": "#pragma once\n__device__ inline int seven() { return sizeof(time_t) > 0 ? 7 : 0; }\n"}
    op = register(
        f"mine_py::times({', '.join('Tensor ' + name for name in names)}) -> Tensor off",
        shapes="time",
        cpu="#include <ctime>  // time_t\n # include  <vector>/* a list */\n#define HEADER <ctime>\n#include HEADER\n"
        "int seven() { return std::time_t(6) + std::vector<int>(1).size(); }\nvoid times" + body,
        cuda=CudaKernel('#include "seven.h"  // seven\nextern "C" __global__ void times' + body, headers=headers),
    )
    x = torch.arange(3.0)
    given = [x + 2**i if i % 2 else (x + 2**i).to(torch.int64) for i in range(len(names))]
    assert torch.equal(op(*given), (len(names) * x + 2 ** len(names) - 1 + 7 * (x == 0)).to(torch.int64))
    op.compile("sm_90", *given)


def test_cuda_source_compiles_for_gpus_that_are_not_here(operator):
    for dtype in (torch.float32, torch.float64):
        operator.compile("sm_90", *arguments("cpu", dtype))


# --- documentation, example, cost ------------------------------------------------------------------------------------------


def test_the_guides_program_runs(capsys):
    names = {}
    exec(code("Python operator of the guide"), names)
    try:
        fired = int(names["fired"])
        assert capsys.readouterr().out == f"{fired} of 1000 fired, and as many rows of weight got a gradient: {fired}\n"
        names["event_sum"].compile("sm_90", names["events"], names["weight"])
    finally:
        names["event_sum"].unregister()


def test_the_guides_function_of_numba_runs(capsys):
    pytest.importorskip("numba")
    names = {}
    exec(code("numba function of the guide"), names)
    try:
        assert capsys.readouterr().out == "tensor([2., 2., 2.])\n"
    finally:
        names["scaled_by"].unregister()


@pytest.mark.parametrize("part", sorted(inspect.signature(custom_op).parameters))
def test_every_part_is_in_the_guide(part):
    assert re.search(rf"^\|.*`{part}=?[`\"]", PAGES["docs/custom_operators.md"], re.MULTILINE)


@pytest.mark.long
def test_the_example_runs(device):
    command = [sys.executable, REPOSITORY / "examples" / "python" / "event_operator.py", "--size", "2000", "--device", device.type]
    assert "a step along the gradient" in printed_by(*command, timeout=300)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no cc on this machine")
def test_a_call_of_a_c_function_costs_what_it_does_in_cpp():
    if not (library_path().parent / "libspikeforge_example_operators.so").exists():
        pytest.skip("the example's operators were not built")
    printed = printed_by(sys.executable, REPOSITORY / "benchmarks" / "custom_op.py", timeout=300)
    ratio = re.search(r"function of C .* ([\d.]+)$", printed, re.MULTILINE)
    assert float(ratio[1]) <= 1.3, printed


# --- GPU -------------------------------------------------------------------------------------------------------------------


def test_a_missing_device_runs_the_cpu_function_and_warns_once(cuda, register):
    op = exponential(register, vjp=lambda g, x, a: g * a * torch.exp(a * x), on_missing_device="cpu")
    x = torch.rand(4, device=cuda, requires_grad=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.testing.assert_close(op(x, 2.0), torch.exp(2 * x))
        op(x).sum().backward()
    assert [str(one.message) for one in said if "has no kernel for cuda" in str(one.message)][1:] == []
    assert any("mine_py::exponential has no kernel for cuda:0: its CPU function runs on copies" in str(one.message) for one in said)
    torch.testing.assert_close(x.grad, torch.exp(x.detach()))


def test_without_it_a_missing_device_is_an_error(cuda, register):
    with pytest.raises(NotImplementedError, match="mine_py::exponential has a kernel for the CPU only"):
        exponential(register)(torch.ones(1, device=cuda))


def test_a_python_function_serves_a_gpu(cuda, register):
    op = register("mine_py::twice(Tensor x) -> Tensor", shapes="x", cpu=lambda x: 2 * x, cuda=lambda x: x + x)
    torch.testing.assert_close(op(torch.arange(3.0, device=cuda)), torch.tensor([0.0, 2.0, 4.0], device=cuda))
