"""Dispatch of Python's operators, torch's functions and tensor methods to the functions of a value.

Importing this module completes :class:`Value`: its operators, its methods and `__torch_function__`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from .functions import TABLE, detach, where_method
from .make import operand
from .place import fail
from .value import Value

# Maps the name of an operator, as in f"__{name}__", to the function of TABLE that computes it.
_BINARY = dict(add="add", sub="sub", mul="mul", truediv="div", floordiv="floor_divide", mod="remainder", pow="pow")
_BINARY |= {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_OTHERS = dict(neg="neg", pos="positive", abs="abs", invert="bitwise_not", round="round", floor="floor", ceil="ceil")
_OTHERS |= dict(trunc="trunc", lt="lt", le="le", gt="gt", ge="ge", eq="eq", ne="ne")
_NUMPY = dict(add="add", subtract="sub", multiply="mul", divide="div", floor_divide="floor_divide", power="pow")
_NUMPY |= dict(remainder="remainder", less="lt", less_equal="le", greater="gt", greater_equal="ge", equal="eq")
_NUMPY |= dict(not_equal="ne")
# Operators whose first operand is a tensor.
_TENSOR_OPERATORS = dict(truediv="div", rtruediv="div", rpow="pow", rdiv="div", radd="add", rmul="mul")

_ADVICE = (
    (
        "write spikeforge.trace.normal(), uniform(), bernoulli(p) or poisson(rate) for a random number",
        "rand randn randint randint_like normal uniform multinomial exponential",
    ),
    (
        "write x * draw_once(bernoulli(keep)) / keep, which keeps one mask in all steps, or x * bernoulli(keep) / "
        "keep, with the functions of spikeforge.trace",
        "dropout alpha_dropout feature_dropout",
    ),
    (
        "a neuron computes element by element: compute the product outside, and pass it as an input",
        "matmul mm bmm mv dot einsum linear bilinear conv1d conv2d conv3d addmm baddbmm outer",
    ),
    (
        "a neuron computes element by element and cannot read other neurons: reduce outside, and pass the result as an "
        "input",
        "sum mean std var prod cumsum cumprod softmax log_softmax norm amax amin any all argmax argmin sort topk "
        "batch_norm layer_norm group_norm max min median logsumexp",
    ),
    (
        "a neuron computes on one element of each argument, which has no shape",
        "reshape view permute transpose flatten unsqueeze squeeze expand stack cat concat split chunk roll repeat "
        "index_select gather scatter size dim numel new_zeros new_ones new_full shape ndim T",
    ),
    ("write spikeforge.spike(x, surrogate), which has a gradient", "heaviside"),
    ("a value is not a Python number while its function is traced", "item tolist numpy cpu cuda"),
    ("a neuron computes in the floating-point dtype of its inputs", "half bfloat16 int long short byte char"),
    ("compare with an explicit tolerance: torch.abs(a - b) < tolerance", "isclose allclose equal"),
    (
        "the gradient of a neuron is that of its equations: detach and custom_gradient of spikeforge.trace change it",
        "backward requires_grad_ register_hook retain_grad grad grad_fn requires_grad",
    ),
)


def _advice(name: str) -> str:
    stem = name.rstrip("_")
    for words, names in _ADVICE:
        if stem in names.split():
            return words
    return "supported are " + " ".join(sorted(name for name in TABLE if not name.startswith("bitwise")))


def _unknown(name: str) -> NoReturn:
    fail(f"{name} is not supported for a neuron's values: {_advice(name)}")


def _has_tensor(args: Any) -> torch.Tensor | None:
    for x in args:
        if isinstance(x, torch.Tensor):
            return x
    return None


def apply_function(name: str, args: tuple, kwargs: dict) -> Value:
    """Applies torch's function of this name to values and scalars."""
    function = TABLE.get(name) or _unknown(name)
    tensor = _has_tensor((*args, *kwargs.values()))
    if tensor is not None:
        operand(name, tensor)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        hint = _advice(name) if name in ("max", "min", "where") else f"the supported form is {_shown(name)}"
        fail(f"{name}: {error}: {hint}")
    return function(*args, **kwargs)


def _shown(name: str) -> str:
    arguments = inspect.signature(TABLE[name]).parameters.values()
    return f"{name}({', '.join(a.name if a.default is a.empty else f'{a.name}={a.default}' for a in arguments)})"


def _call_maybe_in_place(name: str, args: tuple, kwargs: dict) -> Value:
    """Applies a function; x.exp_() and relu(x, inplace=True) change x for all references to it."""
    in_place = kwargs.pop("inplace", False)
    if name.endswith("_") and not name.endswith("__") and name[:-1] in TABLE:
        name, in_place = name[:-1], True
    result = apply_function(name, args, kwargs)
    if in_place:
        args[0]._node = result._node
        return args[0]
    return result


def call_torch(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Implements `__torch_function__`: torch's function `func` with at least one value among its arguments."""
    name = getattr(func, "__name__", str(func)).removeprefix("special_")
    if name.startswith("__"):  # an operator whose first operand is a tensor
        name = name.strip("_")
        name = _TENSOR_OPERATORS.get(name, name)
    name = name.removeprefix("_")
    if func is torch.Tensor.where:
        return where_method(*args, **kwargs)
    if func is torch.max or func is torch.min:
        return apply_function(name, args, kwargs)
    return _call_maybe_in_place(name, args, kwargs)


def attribute(value: Value, name: str) -> Any:
    """Returns a method or property of torch.Tensor for a value."""
    if name == "data":
        return detach(value)
    if name == "dtype":
        return torch.bool if value._node.is_boolean else torch.float32
    if name == "device":
        return torch.device("cpu")
    stem = name[:-1] if name.endswith("_") and not name.startswith("_") else name
    if stem == "where":
        return lambda condition, other: where_method(value, condition, other)
    if stem in TABLE:
        return lambda *args, **kwargs: _call_maybe_in_place(name, (value, *args), kwargs)
    if hasattr(torch.Tensor, name) and not name.startswith("__"):
        if callable(getattr(torch.Tensor, name)):
            return lambda *_, **__: _unknown(name)
        fail(f"x.{name}: {_advice(name)}", AttributeError)
    raise AttributeError(f"a value of a traced neuron has no attribute {name!r}")


def _call_array_ufunc(value: Value, function: Any, method: str, *inputs: Any, **_: Any) -> Value:
    """Implements operators whose left operand is a NumPy scalar; NumPy's other functions raise."""
    name = _NUMPY.get(function.__name__)
    if name is None or method != "__call__":
        fail(f"numpy.{function.__name__} does not accept a value of a trace: use torch's functions on it")
    return apply_function(name, inputs, {})


def _set_item(value: Value, condition: Any, new: Any) -> None:
    """Implements x[condition] = value."""
    if not isinstance(condition, Value):
        fail(
            "a neuron computes on one element of each argument: write x[condition] = value, or "
            "where(condition, value, x)"
        )
    value._node = apply_function("where", (condition, new, value), {})._node


def _operator(name: str) -> Callable[..., Value]:
    return lambda self, *others: apply_function(name, (self, *others), {})


def _reflected(name: str) -> Callable[..., Value]:
    return lambda self, other: apply_function(name, (other, self), {})


def _in_place(name: str) -> Callable[..., Value]:
    def method(self: Value, other: Any) -> Value:
        self._node = apply_function(name, (self, other), {})._node
        return self

    return method


def _complete_value() -> None:
    methods: dict[str, Any] = {f"__{operator}__": _operator(name) for operator, name in {**_BINARY, **_OTHERS}.items()}
    methods |= {f"__r{operator}__": _reflected(name) for operator, name in _BINARY.items()}
    methods |= {f"__i{operator}__": _in_place(name) for operator, name in _BINARY.items()}
    methods |= {"__getattr__": attribute, "__setitem__": _set_item, "__array_ufunc__": _call_array_ufunc}
    methods["__hash__"] = object.__hash__  # values compare element by element
    methods["__torch_function__"] = classmethod(
        lambda cls, func, types, args=(), kwargs=None: call_torch(func, args, kwargs or {})
    )
    for name, method in methods.items():
        setattr(Value, name, method)


_complete_value()
