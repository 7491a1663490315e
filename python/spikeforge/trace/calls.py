"""How Python and torch reach the functions of a value: calls, methods, operations in place, and advice on others."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import torch

from .functions import TABLE, detach, where_method
from .make import fail, operand
from .value import Value

_ADVICE = (
    ("write spikeforge.normal(), uniform(), bernoulli(p) or poisson(rate) for a random number",
     "rand randn randint randint_like normal uniform multinomial exponential"),
    ("write x * spikeforge.draw_once(spikeforge.bernoulli(keep)) / keep, which keeps one mask in all steps, or x * "
     "spikeforge.bernoulli(keep) / keep", "dropout alpha_dropout feature_dropout"),
    ("a neuron computes element by element: compute the product outside, and pass it as an input",
     "matmul mm bmm mv dot einsum linear bilinear conv1d conv2d conv3d addmm baddbmm outer"),
    ("a neuron computes element by element and sees no other neuron: reduce outside, and pass the result as an input",
     "sum mean std var prod cumsum cumprod softmax log_softmax norm amax amin any all argmax argmin sort topk "
     "batch_norm layer_norm group_norm max min median logsumexp"),
    ("a neuron sees one element of each argument: shapes are those of the call",
     "reshape view permute transpose flatten unsqueeze squeeze expand stack cat concat split chunk roll repeat "
     "index_select gather scatter size dim numel new_zeros new_ones new_full shape ndim T"),
    ("write spikeforge.spike(x, surrogate), which has a gradient", "heaviside"),
    ("a value is no Python number while its function is traced", "item tolist numpy cpu cuda"),
    ("a neuron's numbers have the floating-point type of its call", "half bfloat16 int long short byte char"),
    ("compare with a tolerance of your own: torch.abs(a - b) < tolerance", "isclose allclose equal"),
    ("the gradient of a neuron is that of its equations: spikeforge.detach, spikeforge.trace.custom_gradient change it",
     "backward requires_grad_ register_hook retain_grad grad grad_fn requires_grad"),
)


def _advice(name: str) -> str:
    stem = name.rstrip("_")
    for words, names in _ADVICE:
        if stem in names.split():
            return words
    return "there are: " + " ".join(sorted(name for name in TABLE if not name.startswith("bitwise")))


def _unknown(name: str) -> Any:
    fail(f"{name} is no function of a neuron's values: {_advice(name)}")


def _has_tensor(args: Any) -> torch.Tensor | None:
    for x in args:
        if isinstance(x, torch.Tensor):
            return x
    return None


def call(name: str, args: tuple, kwargs: dict) -> Value:
    """The function called `name` in torch, of values and numbers."""
    function = TABLE.get(name)
    if function is None:
        _unknown(name)
    tensor = _has_tensor((*args, *kwargs.values()))
    if tensor is not None:
        operand(name, tensor)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        hint = _advice(name) if name in ("max", "min", "where") else f"it is taken as {_shown(name)}"
        fail(f"{name}: {error}: {hint}")
    return function(*args, **kwargs)


def _shown(name: str) -> str:
    arguments = inspect.signature(TABLE[name]).parameters.values()
    return f"{name}({', '.join(a.name if a.default is a.empty else f'{a.name}={a.default}' for a in arguments)})"


def _call_maybe_in_place(name: str, args: tuple, kwargs: dict) -> Value:
    """x.exp_() and relu(x, inplace=True) change what x stands for, for all that hold it."""
    in_place = kwargs.pop("inplace", False)
    if name.endswith("_") and not name.endswith("__") and name[:-1] in TABLE:
        name, in_place = name[:-1], True
    result = call(name, args, kwargs)
    if in_place:
        args[0]._node = result._node
        return args[0]
    return result


def call_torch(func: Callable, args: tuple, kwargs: dict) -> Any:
    """What torch calls where one of a function's arguments is a value."""
    name = getattr(func, "__name__", str(func)).removeprefix("special_")
    if name.startswith("__"):  # an operator whose first operand is a tensor
        name = name.strip("_")
        name = TENSOR_OPERATORS.get(name, name)
    name = name.removeprefix("_")
    if func is torch.Tensor.where:
        return where_method(*args, **kwargs)
    if func is torch.max or func is torch.min:
        return call(name, args, kwargs)
    return _call_maybe_in_place(name, args, kwargs)


TENSOR_OPERATORS = {
    "rsub": "rsub", "truediv": "div", "rtruediv": "div", "rpow": "pow", "rdiv": "div", "radd": "add", "rmul": "mul",
}


def attribute(value: Value, name: str) -> Any:
    """A method or property of torch.Tensor."""
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
