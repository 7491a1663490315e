"""Custom operators registered from Python, without a compiler: spikeforge::CustomOp in C++.

The registration, its checks, the launch of the CUDA source and the derivatives are implemented in C++ (csrc/custom_op).
A Python function becomes an operator too, which C++ calls by name."""

from __future__ import annotations

import ctypes
import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from spikeforge import _library

_library.load()

_CPP = torch.ops.spikeforge_custom_op
_FUNCTIONS = "spikeforge_functions"  # the namespace of the Python functions
_numbers = itertools.count()
_registered: dict[str, CustomOp] = {}  # holds functions and compiled code while torch may call them
_former: dict[str, torch._ops.OpOverload] = {}  # the handles of unregistered operators, by name

# c10::ScalarType values, which operators take as dtypes.
_DTYPE_NUMBERS = {
    dtype: number
    for number, dtype in enumerate(
        (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
    )
} | {torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15}

_C_FUNCTION: Any = ctypes._CFuncPtr  # type: ignore[attr-defined]  # the base of ctypes' functions

Extent = int | Sequence[int] | Callable[..., int | Sequence[int]]


@dataclass(frozen=True)
class CudaKernel:
    """CUDA source, which NVRTC compiles on first use, and its launch configuration.

    Args:
        source: the source text. Its kernel takes the schema's arguments, then its results: `Array<const x_t> x` for a
            Tensor x, `long long` for int, `double` for float, `bool`, `Array<y_t> y` for a result y
            (docs/custom_operators.md).
        entry: the name of its `extern "C" __global__` function; by default the operator's name without its namespace.
        grid, block: the number of blocks and of threads per block: up to three ints, or a function of the arguments and
            the results that returns them. By default one thread for each element of the first result, in blocks of 256.
        shared_bytes: the bytes of dynamic shared memory.
        options: options of NVRTC.
        headers: texts that the source may include, by name.
    """

    source: str
    entry: str | None = None
    grid: Extent | None = None
    block: Extent = 256
    shared_bytes: int = 0
    options: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


class CustomOp:
    """An operator registered by `spikeforge.custom_op`; a call is one of `torch.ops.<namespace>.<name>`.

    Attributes:
        name: the qualified name, such as "mine::event_sum".
        overload: the torch.ops handle, for torch.library.opcheck and graphs.
    """

    # The signature of a compiled CPU function, for numba.cfunc.
    cfunc_signature = (
        "void(CPointer(voidptr), CPointer(int64), CPointer(CPointer(int64)), CPointer(int64), CPointer(float64))"
    )

    def __init__(self, schema: str, parts: _Parts) -> None:
        self._parts = parts
        parsed = torch._C.parse_schema(schema)
        self.name: str = parsed.name + (f".{parsed.overload_name}" if parsed.overload_name else "")
        _check_name(self.name)
        self._number = parts.register()
        self.overload = _overload(self.name)
        _registered[self.name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.overload(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<spikeforge.CustomOp {self.overload._schema}>"

    def compile(self, arch: str, *args: Any) -> None:
        """Compiles the CUDA source for an architecture ("sm_90") and the dtypes of these arguments. Needs no GPU.

        Raises:
            RuntimeError: if the source does not compile, with its numbered lines around the error.
        """
        _CPP.compile(self._number, arch, list(args))

    def unregister(self) -> None:
        """Unregisters the operator, which frees its name. No other thread may be calling it.

        Raises:
            RuntimeError: if one of its own functions is running.
        """
        if self._parts.running:
            raise RuntimeError(
                f"{self.name}: unregister() was called while one of its functions runs; call it after the operator has "
                "returned"
            )
        if _registered.pop(self.name, None) is None:
            return
        _CPP.unregister(self._number)
        self._parts.close()
        _former[self.name] = self.overload
        namespace, local = self.name.split(".")[0].split("::")
        operators = getattr(torch.ops, namespace)
        if local in vars(operators):  # torch caches operators on first use
            delattr(operators, local)
            operators._dir.remove(local)


def _check_name(name: str) -> None:
    """Raises ValueError for names that torch.ops, its namespaces or its operators have as attributes."""
    packet, _, overload = name.partition(".")
    namespace, local = packet.split("::")
    operators = getattr(torch.ops, namespace)
    any_packet = torch.ops.aten.relu
    if (
        not isinstance(operators, torch._ops._OpNamespace)
        or not isinstance(getattr(operators, local, any_packet), torch._ops.OpOverloadPacket)
        or not isinstance(getattr(any_packet, overload or "default", any_packet.default), torch._ops.OpOverload)
    ):
        raise ValueError(f"{name}: torch.ops.{name.replace('::', '.')} is an attribute of torch; use another name")


def _overload(name: str) -> torch._ops.OpOverload:
    """Returns the torch.ops handle of a registered operator."""
    packet, _, overload = name.partition(".")
    namespace, local = packet.split("::")
    packet = getattr(getattr(torch.ops, namespace), local)
    fresh = getattr(packet, overload or "default")
    former = _former.pop(name, None)
    if former is None:
        return fresh
    # C++ has one handle per name for the life of the process; it gets the contents of the new one.
    vars(former).update(vars(fresh))
    setattr(packet, overload or "default", former)
    return former


def custom_op(
    schema: str, *, shapes: Any, cpu: Any = None, cuda: str | CudaKernel | Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | str | CustomOp | None = None, jvp: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | Literal["batched"] | None = None, differentiable: Sequence[str] | None = None,
    save_results: bool = False, zero_results: bool | Sequence[int] = False,
    dtypes: Mapping[str, torch.dtype | Sequence[torch.dtype]] | None = None,
    on_missing_device: Literal["error", "cpu"] = "error",
) -> CustomOp:  # fmt: skip
    """Registers a custom operator, `torch.ops.<namespace>.<name>`, and returns it::

        scaled = spikeforge.custom_op(
            "mine::scaled(Tensor x, float factor) -> Tensor y",
            shapes="x",
            cpu=lambda x, factor: x * factor,
            cuda='''extern "C" __global__ void scaled(Array<const x_t> x, double factor, Array<y_t> y) {
                      const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
                      if (i < x.numel) y[i] = factor * x[i];
                    }''',
            vjp=lambda grad, x, factor: grad * factor,
        )

    Functions get all arguments by position, in the schema's order, with defaults; tensors are contiguous.

    Args:
        schema: a torch schema, "namespace::name(Tensor x, int n, float a=1.0) -> (Tensor y, Tensor z)".
        shapes: the shape of each result: the name of an argument with the same shape and dtype; a tuple of sizes, with
            the dtype of the first tensor; or (sizes, dtype). A size may be the name of an int argument, a dtype the
            name of an argument. Several results take a list of these. A function of the arguments returns the same, or
            tensors; it gets meta tensors, is called once for each combination of shapes, dtypes and scalars, and should
            raise for wrong shapes.
        cpu: a function that returns the results as new tensors; or the address of a compiled function, as an int, a
            numba.cfunc or a ctypes function, for the dtype in `dtypes`, or a dict of them by the dtype of the first
            tensor (with the signature `CustomOp.cfunc_signature`); or C++ source, a str, whose function of the
            operator's name has the parameters of a CUDA kernel, compiled by the machine's compiler on first use.
        cuda: CUDA source, a CudaKernel, or a function that returns the results.
        vjp: a function of the gradients of the results, then the arguments (then the results, with `save_results`),
            that returns the gradients of the differentiable arguments; or another operator with this signature. Without
            it, differentiation raises an error.
        jvp: a function of the tangents of the differentiable arguments, then the arguments, that returns the tangents
            of the results. Without it, forward-mode differentiation raises an error.
        vmap: for torch.vmap: a function for torch.library.register_vmap, `(info, in_dims, *args) -> (results,
            out_dims)`, where in_dims are 0 or None; "batched" if the operator accepts tensors with one more leading
            dimension; or None for one call per slice.
        differentiable: the arguments that have a gradient; by default all tensors.
        save_results: pass the results to the vjp.
        zero_results: fill results with zeros, for CUDA kernels and compiled functions that add to them: all, or a list.
        dtypes: the legal dtypes of arguments, by name; other dtypes raise a TypeError.
        on_missing_device: "cpu" runs `cpu` on copies of tensors on a device that has no kernel, and warns once.

    Raises:
        ValueError: if the schema is illegal or not supported, the name is taken, or the parts do not fit the schema.
    """
    if on_missing_device not in ("error", "cpu"):
        raise ValueError(f'{schema}: on_missing_device must be "error" or "cpu", but is {on_missing_device!r}')
    parts = _Parts(schema, differentiable, save_results, dtypes)
    try:
        parts.add("shapes", _shapes(parts, shapes))
        _add_cpu(parts, cpu)
        _add_cuda(parts, cuda)
        _add_rules(parts, vjp, jvp, vmap)
        if zero_results is not False:
            parts["zero_results"] = list(range(len(parts.results)) if zero_results is True else zero_results)
        if on_missing_device == "cpu":
            parts.add("copies", _warner_of_copies(parts.name))
        return CustomOp(schema, parts)
    except BaseException:
        parts.close()
        raise


# --- Arguments of C++ -------------------------------------------------------------------------------------------


class _Parts:
    """The parts of an operator by their names in C++, and the operators that its functions define."""

    def __init__(
        self,
        schema: str,
        differentiable: Sequence[str] | None,
        save_results: bool,
        dtypes: Mapping[str, torch.dtype | Sequence[torch.dtype]] | None,
    ) -> None:
        self.schema = schema
        self._dict: dict[str, Any] = {}
        self._library: torch.library.Library | None = None
        self._functions: dict[str, list[Callable[..., Any]]] = {}
        self.running: list[str] = []  # names of the running functions
        self.kept: list[Any] = []  # the owners of addresses
        self.differentiable = differentiable
        self.dtypes = {name: _listed(allowed, torch.dtype) for name, allowed in (dtypes or {}).items()}
        if differentiable is not None:
            self["names_differentiable"] = 1
            self["differentiable"] = list(differentiable)
        if save_results:
            self["save_results"] = 1
        if self.dtypes:
            pairs = [(name, dtype) for name, allowed in self.dtypes.items() for dtype in allowed]
            self["dtypes"] = [name for name, _ in pairs]
            self["dtypes_offered"] = [_number_of(dtype) for _, dtype in pairs]
        _CPP.function_schema(schema, self._dict, "spikeforge_functions::probe", "shapes")  # checks the schema
        parsed = torch._C.parse_schema(schema)
        self.name: str = parsed.name
        self.arguments: list[str] = [argument.name for argument in parsed.arguments]
        self.kinds: list[str] = [str(argument.type) for argument in parsed.arguments]
        self.results: list[str] = [result.name for result in parsed.returns]

    def __setitem__(self, key: str, value: Any) -> None:
        if value != []:  # an empty list has no type for torch
            self._dict[key] = value

    def local_name(self) -> str:
        return self.name.split("::")[1].split(".")[0]

    def add(self, part: str, function: Callable[..., Any], key: str | None = None) -> None:
        """Registers a function as an operator, whose name becomes the value of the part."""
        name = f"{re.sub(r'[^A-Za-z0-9_]', '_', self.name)}_{part}_{next(_numbers)}"
        if self._library is None:
            self._library = torch.library.Library(_FUNCTIONS, "FRAGMENT")
        full = f"{_FUNCTIONS}::{name}"
        schema = _CPP.function_schema(self.schema, self._dict, full, part)
        self._library.define(schema.removeprefix(f"{_FUNCTIONS}::"))
        # Rules are traced; the others run below autograd.
        is_rule = part in ("vjp", "jvp", "vmap")
        held, running = [function], self.running  # torch never frees `call`
        self._functions[name] = held

        def call(*args: Any) -> Any:
            running.append(name)
            try:
                return held[0](*args)
            finally:
                running.pop()

        self._library.impl(name, call, "CompositeImplicitAutograd" if is_rule else "CompositeExplicitAutograd")
        self[key or part] = full

    def register(self) -> int:
        return _CPP.register_operator(self.schema, self._dict)

    def close(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None
        for held in self._functions.values():
            held.clear()
        self.kept.clear()


def _number_of(dtype: torch.dtype) -> int:
    if dtype not in _DTYPE_NUMBERS:
        raise TypeError(f"custom operators do not support {dtype}")
    return _DTYPE_NUMBERS[dtype]


def _listed(value: Any, kind: type) -> list[Any]:
    return [value] if isinstance(value, kind) else list(value)


def _tensors(name: str, whose: str, returned: Any) -> list[Tensor]:
    """Converts the result of a function to a list of tensors."""
    results = [returned] if isinstance(returned, Tensor) else returned
    if not isinstance(results, (list, tuple)) or not all(isinstance(result, Tensor) for result in results):
        raise TypeError(f"{name}: {whose} must return a tensor for each result, but returned {_described(returned)}")
    return list(results)


def _described(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {', '.join(type(element).__name__ for element in value) or 'nothing'}"
    return f"a {type(value).__name__}"


def _warner_of_copies(name: str) -> Callable[..., list[Tensor]]:
    def warn(*args: Any) -> list[Tensor]:
        tensors = itertools.chain.from_iterable(arg if isinstance(arg, (list, tuple)) else [arg] for arg in args)
        device = next(t.device for t in tensors if isinstance(t, Tensor))
        copies = "its CPU function runs on copies of the arguments, and its results are copied back"
        warnings.warn(f"{name} has no kernel for {device}: {copies}", stacklevel=2)
        return []

    return warn


# --- shapes ----------------------------------------------------------------------------------------------------------


def _shapes(parts: _Parts, shapes: Any) -> Callable[..., list[Tensor]]:
    """Returns a function of the arguments that returns a meta tensor for each result."""
    if shapes is None:
        raise ValueError(f"{parts.name}: shapes is missing: pass shapes=")
    name, count = parts.name, len(parts.results)

    def evaluate(*args: Any) -> list[Tensor]:
        value = shapes(*args) if callable(shapes) else shapes
        named = dict(zip(parts.arguments, args))
        return [_meta(name, spec, named) for spec in _specs(value, count)]

    if not callable(shapes):
        _check_names(parts, shapes)
    return evaluate


def _is_sizes(spec: Any) -> bool:
    return isinstance(spec, (tuple, list)) and all(isinstance(size, (int, str, torch.SymInt)) for size in spec)


def _specs(value: Any, count: int) -> Sequence[Any]:
    """Returns one shape description per result; a single result may be described without a list."""
    if isinstance(value, list) and not (count == 1 and value and _is_sizes(value) and not isinstance(value[0], str)):
        return value
    if isinstance(value, tuple) and count > 1 and not _is_sizes(value) and len(value) == count:
        return value
    return [value]


def _meta(name: str, spec: Any, arguments: dict[str, Any]) -> Tensor:
    first = next(value for value in arguments.values() if isinstance(value, Tensor))
    if isinstance(spec, str):
        spec = arguments[spec]
    if hasattr(spec, "shape") and hasattr(spec, "dtype"):
        sizes, dtype = tuple(spec.shape), spec.dtype
    elif _is_sizes(spec):
        sizes, dtype = spec, first.dtype
    elif isinstance(spec, (tuple, list)) and len(spec) == 2 and _is_sizes(spec[0]):
        sizes, dtype = spec
    else:
        raise TypeError(
            f"{name}: shapes must return the name of an argument, sizes, (sizes, dtype) or a tensor for each result, "
            f"but returned {spec!r}"
        )
    if isinstance(dtype, str):
        dtype = arguments[dtype]
    dtype = dtype.dtype if isinstance(dtype, Tensor) else dtype
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name}: shapes must return a torch.dtype for each result, but returned {dtype!r}")
    sizes = tuple(arguments[size] if isinstance(size, str) else size for size in sizes)
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise ValueError(f"{name}: its shape function returns the shape {list(sizes)}: sizes must not be negative")
    return torch.empty(sizes, dtype=dtype, device="meta")


def _check_names(parts: _Parts, value: Any) -> None:
    """Raises ValueError if a name in fixed shapes is not an argument."""
    if isinstance(value, str) and value not in parts.arguments:
        raise ValueError(f"{parts.name}: shapes names {value}, which its schema, {parts.schema}, does not have")
    if isinstance(value, (list, tuple)):
        for element in value:
            _check_names(parts, element)


# --- kernels ---------------------------------------------------------------------------------------------------------


def _add_function(parts: _Parts, part: str, whose: str, function: Callable[..., Any]) -> None:
    name = parts.name
    parts.add(part, lambda *args: _tensors(name, whose, function(*args)))


def _add_cpu(parts: _Parts, cpu: Any) -> None:
    if cpu is None:
        return
    if isinstance(cpu, str):
        parts["cpu_source"], parts["cpu_entry"] = cpu, parts.local_name()
    elif isinstance(cpu, Mapping):
        if not cpu:
            raise ValueError(f"{parts.name}: cpu must have at least one function, but is an empty dict")
        _add_addresses(parts, {dtype: _address(parts, function) for dtype, function in cpu.items()})
    elif _is_compiled(cpu):
        leading = next(name for name, kind in zip(parts.arguments, parts.kinds) if kind == "Tensor")
        offered = parts.dtypes.get(leading, [])
        if len(offered) != 1:
            raise ValueError(
                f"{parts.name}: cpu is one compiled function, which has one dtype: declare that of {leading} in "
                "dtypes, or pass a dict of functions by dtype"
            )
        _add_addresses(parts, {offered[0]: _address(parts, cpu)})
    elif callable(cpu):
        _add_function(parts, "cpu", "its CPU function", cpu)
    else:
        raise TypeError(
            f"{parts.name}: cpu must be a function, the address of one, C++ source or a dict of addresses by dtype, "
            f"but is {_described(cpu)}"
        )


def _is_compiled(function: Any) -> bool:
    is_address = isinstance(function, int) and not isinstance(function, bool)
    return is_address or isinstance(function, _C_FUNCTION) or isinstance(getattr(function, "address", None), int)


def _add_addresses(parts: _Parts, addresses: dict[torch.dtype, int]) -> None:
    parts["cpu_dtypes"] = [_number_of(dtype) for dtype in addresses]
    parts["cpu_addresses"] = list(addresses.values())


def _address(parts: _Parts, function: Any) -> int:
    if not _is_compiled(function):
        raise TypeError(
            f"{parts.name}: cpu must be the address of a compiled function for each dtype: an int, a numba.cfunc or a "
            f"function of ctypes; but is {_described(function)}"
        )
    parts.kept.append(function)
    if isinstance(function, int):
        address = function
    elif isinstance(function, _C_FUNCTION):
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
    else:
        address = function.address
        takes = getattr(getattr(function, "ctypes", None), "argtypes", None)
        if takes is not None and len(takes) != 5:
            raise TypeError(
                f"{parts.name}: its compiled CPU function takes {len(takes)} parameters, but must have the signature "
                f"{CustomOp.cfunc_signature}"
            )
    if address <= 0:
        raise ValueError(f"{parts.name}: {address} is not the address of a function")
    return address


def _add_cuda(parts: _Parts, cuda: str | CudaKernel | Callable[..., Any] | None) -> None:
    if cuda is None:
        return
    if isinstance(cuda, str):
        cuda = CudaKernel(cuda)
    if not isinstance(cuda, CudaKernel):
        if not callable(cuda):
            raise TypeError(
                f"{parts.name}: cuda must be CUDA source, a CudaKernel or a function, but is {_described(cuda)}"
            )
        _add_function(parts, "cuda", "its CUDA function", cuda)
        return
    parts["cuda_source"] = cuda.source
    parts["cuda_entry"] = parts.local_name() if cuda.entry is None else cuda.entry
    parts["cuda_shared_bytes"] = cuda.shared_bytes
    parts["cuda_options"] = list(cuda.options)
    parts["cuda_headers"] = [word for header in cuda.headers.items() for word in header]
    for part, extent in (("grid", cuda.grid), ("block", cuda.block)):
        if callable(extent):
            parts.add(part, _extent_function(parts.name, part, extent), key=f"cuda_{part}")
        elif extent is not None:
            parts[f"cuda_{part}"] = _dim3(parts.name, part, extent)


def _extent_function(name: str, part: str, extent: Callable[..., Any]) -> Callable[..., list[int]]:
    return lambda *args: _dim3(name, part, extent(*args[:-1], *args[-1]))


def _dim3(name: str, part: str, extent: Any) -> list[int]:
    numbers = [extent] if isinstance(extent, int) else list(extent)
    if not 1 <= len(numbers) <= 3 or not all(isinstance(number, int) for number in numbers):
        raise ValueError(f"{name}: the {part} of its CUDA kernel must be one to three ints, but is {extent!r}")
    return numbers + [1] * (3 - len(numbers))


# --- derivatives and vmap --------------------------------------------------------------------------------------------


def _add_rules(parts: _Parts, vjp: Any, jvp: Any, vmap: Any) -> None:
    if isinstance(vjp, str):
        parts["vjp"] = vjp
    elif isinstance(vjp, CustomOp):
        parts["vjp"] = vjp.name
    elif vjp is not None:
        parts.add("vjp", _vjp_function(parts, vjp))
    if jvp is not None:
        parts.add("jvp", _jvp_function(parts, jvp))
    if vmap == "batched":
        parts["vmap_batched"] = 1
    elif vmap is not None:
        if not callable(vmap):
            raise ValueError(f'{parts.name}: vmap must be a function, "batched" or None, but is {vmap!r}')
        parts.add("vmap", _vmap_function(parts, vmap))


def _differentiable(parts: _Parts) -> list[int]:
    """Returns the positions of the arguments that have a gradient."""
    named = parts.differentiable
    is_tensor = ["Tensor" in kind for kind in parts.kinds]
    return [i for i, name in enumerate(parts.arguments) if (is_tensor[i] if named is None else name in named)]


def _vjp_function(parts: _Parts, vjp: Callable[..., Any]) -> Callable[..., Any]:
    name, places = parts.name, _differentiable(parts)
    count, is_list = len(places), ["List[" in parts.kinds[i] for i in places]

    def gradients(*args: Any) -> Any:
        given = vjp(*args)
        row = _row_of_gradients(given, is_list)
        if len(row) != count:
            raise ValueError(
                f"{name}: its vjp must return {count} {'gradient' if count == 1 else 'gradients'}, one for each "
                f"differentiable argument, but returned {len(row)}"
            )
        for place, takes_list, gradient in zip(places, is_list, row):
            if not _is_gradient(gradient, takes_list):
                wanted = "a list of tensors" if takes_list else "a tensor or None"
                raise TypeError(
                    f"{name}: its vjp must return {wanted} as the gradient of {parts.arguments[place]}, but returned "
                    f"{_described(gradient)}"
                )
        return row[0] if count == 1 else tuple(row)

    return gradients


def _row_of_gradients(given: Any, is_list: Sequence[bool]) -> Sequence[Any]:
    """Returns one gradient per differentiable argument; a single one may be returned without a tuple."""
    if not isinstance(given, (list, tuple)):
        return [given]
    is_alone = is_list == [True] and not (len(given) == 1 and isinstance(given[0], (list, tuple)))
    return [given] if is_alone else given


def _is_gradient(value: Any, takes_list: bool) -> bool:
    if not takes_list:
        return value is None or isinstance(value, Tensor)
    return isinstance(value, (list, tuple)) and all(isinstance(t, Tensor) for t in value)


def _jvp_function(parts: _Parts, jvp: Callable[..., Any]) -> Callable[..., Any]:
    name, places = parts.name, _differentiable(parts)

    def tangents(flat: list[Tensor | None], *args: Any) -> list[Tensor]:
        rest = iter(flat)
        taken = [[next(rest) for _ in args[i]] if isinstance(args[i], (list, tuple)) else next(rest) for i in places]
        return _tensors(name, "its jvp", jvp(*taken, *args))

    return tangents


def _vmap_function(parts: _Parts, vmap: Callable[..., Any]) -> Callable[..., Any]:
    name, count = parts.name, len(parts.results)

    def batched(size: int, mapped: list[bool], *args: Any) -> list[Tensor]:
        info = SimpleNamespace(batch_size=size, randomness="error")
        returned = vmap(info, tuple(0 if is_mapped else None for is_mapped in mapped), *args)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(f"{name}: its vmap must return (results, out_dims), but returned {_described(returned)}")
        results = _tensors(name, "its vmap", returned[0])
        dims = returned[1] if isinstance(returned[1], (list, tuple)) else [returned[1]] * count
        if len(dims) != len(results):
            raise ValueError(f"{name}: its vmap returned {len(results)} results, but {len(dims)} out_dims")
        return [
            result.expand(size, *result.shape) if dim is None else result.movedim(dim, 0)
            for result, dim in zip(results, dims)
        ]

    return batched
