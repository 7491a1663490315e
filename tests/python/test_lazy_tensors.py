"""Tensors whose values differ from their memory: lazily negated ones (from torch.complex and .imag), zeros without memory,
and subclasses that contain another tensor. Every operator treats each of them like its clone, as an argument and as an
upstream gradient."""

import functools

import pytest
import torch
import wrong_calls
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

PLAIN = (torch.uint8, torch.bool)  # types that cannot be negated


class Holder(torch.Tensor):
    """A subclass without memory; operators run with the tensor that it contains."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, strides=held.stride(), dtype=held.dtype, device=held.device)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return tree_map(lambda t: Holder(t) if isinstance(t, torch.Tensor) else t, func(*held(args), **held(kwargs or {})))


def held(value):
    return tree_map(lambda t: t.held if isinstance(t, Holder) else t, value)


def written(overload):
    return {a.name for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write}


def leaf(value):
    return value.clone().requires_grad_() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


KINDS = {
    "negated": lambda t: None if t.dtype in PLAIN else (torch._neg_view(-t), t),
    "zero": lambda t: (torch._efficientzerotensor(t.shape, dtype=t.dtype, device=t.device), torch.zeros_like(t)),
    "held": lambda t: (Holder(t.clone()), t),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def calls():
    """Returns calls by operator, with their arguments."""
    torch.manual_seed(1)
    found = {}
    for overload, arguments in wrong_calls.right_calls():
        if overload._schema.name.partition("::")[2] not in wrong_calls.UNTOUCHED:
            found.setdefault(overload, []).append(arguments)
    return found


def results(overload, arguments):
    """Returns the tensors, or the type of the exception: zeros are illegal for some arguments."""
    torch.manual_seed(2)
    copies = tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) and not (t.is_neg() or t._is_zerotensor() or isinstance(t, Holder)) else t, arguments)
    try:
        return wrong_calls.tensors_of(held(wrong_calls.invoke(overload, copies)))
    except (RuntimeError, ValueError, TypeError) as error:
        return type(error)


def same(a, b):
    if isinstance(a, type) or isinstance(b, type):
        return a is b
    return len(a) == len(b) and all(x.dtype == y.dtype and torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(a, b))


@every_kind
def test_every_argument(kind):
    wrong = []
    for overload, given in calls().items():
        for arguments in given:
            for name in arguments:
                values, form = tree_flatten(arguments[name])
                for i, value in enumerate(values):
                    pair = KINDS[kind](value) if isinstance(value, torch.Tensor) and name not in written(overload) else None
                    if pair is None:
                        continue
                    got, want = (results(overload, {**arguments, name: tree_unflatten([*values[:i], t, *values[i + 1 :]], form)}) for t in pair)
                    if not same(got, want):
                        wrong.append(f"{overload}: {name}[{i}]: {got if isinstance(got, type) else 'other numbers'}")
    assert not wrong, "\n".join(sorted(set(wrong)))


@every_kind
def test_every_upstream_gradient(kind):
    wrong, count = [], 0
    for overload, given in calls().items():
        for arguments in given:
            constant = written(overload) | ({"params"} if "traces" in arguments else set())  # trainable ones have traces
            leaves = {name: value if name in constant else tree_map(leaf, value) for name, value in arguments.items()}
            torch.manual_seed(2)
            try:
                found = wrong_calls.tensors_of(wrong_calls.invoke(overload, leaves))
            except RuntimeError:  # not differentiable with respect to an argument
                continue
            outputs = [t for t in found if t.requires_grad]
            upstream = [torch.randn_like(t) for t in outputs]
            asked = [t for t in wrong_calls.tensors_of(leaves) if t.requires_grad]

            def gradients(k, t):
                grads = torch.autograd.grad(outputs, asked, [*upstream[:k], t, *upstream[k + 1 :]], retain_graph=True, allow_unused=True)
                return [held(g) for g in grads if g is not None]

            for k, gradient in enumerate(upstream):
                lazy, plain = KINDS[kind](gradient)
                try:
                    want = gradients(k, plain)
                except RuntimeError:  # this result has no gradient
                    break
                count += 1
                if not same(gradients(k, lazy), want):
                    wrong.append(f"{overload}: gradient of result {k}")
    assert not wrong, "\n".join(sorted(set(wrong)))
    assert count > 50
