"""Evaluates an expression of neuron text, such as that of a custom surrogate, with values."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

from .functions import where
from .make import op
from .place import fail

_BINARY = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_ORDER = {ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal"}
_COMPARISONS = {**_ORDER, ast.Eq: "equal", ast.NotEq: "not_equal"}
_WORDS = {"inf": math.inf, "nan": math.nan, "true": True, "false": False}
_DEFAULTS = {"leaky_relu": 0.01, "elu": 1.0}


def evaluate(text: str, names: Mapping[str, Any], surrogate_text: Callable[[str, tuple[float, ...]], str]) -> Any:
    """Returns the value of an expression.

    Args:
        text: the expression.
        names: the values of its names.
        surrogate_text: returns the text of a surrogate for its name and arguments.

    Raises:
        ValueError: if the expression is not legal neuron text.
    """
    return _Evaluation(text, {**_WORDS, **names}, surrogate_text).value(_parsed(text))


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(f"({text})", mode="eval").body
    except SyntaxError as error:
        fail(f"the expression {text!r} is not legal: {error.msg}", ValueError)


class _Evaluation:
    def __init__(self, text: str, names: Mapping[str, Any], surrogate_text: Callable[[str, tuple[float, ...]], str]):
        self.text, self.names, self.surrogate_text = text, names, surrogate_text

    def value(self, tree: ast.expr) -> Any:
        match tree:
            case ast.Constant(value=float() | int() as number):
                return number
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Name(id=name):
                fail(f"the expression {self.text!r} has the name {name}, which is not defined", ValueError)
            case ast.BinOp(left=a, op=kind, right=b) if type(kind) in _BINARY:
                return op(_BINARY[type(kind)], self.value(a), self.value(b))
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return op("neg", self.value(a))
            case ast.UnaryOp(op=ast.Not(), operand=a):
                return op("logical_not", self.value(a))
            case ast.BoolOp(op=kind, values=[first, *rest]):
                result = self.value(first)
                for part in rest:
                    result = op("logical_and" if isinstance(kind, ast.And) else "logical_or", result, self.value(part))
                return result
            case ast.Compare(left=a, ops=[kind], comparators=[b]) if type(kind) in _COMPARISONS:
                return op(_COMPARISONS[type(kind)], self.value(a), self.value(b))
            case ast.Call(func=ast.Name(id="surrogate_gradient"), args=[u, surrogate], keywords=[]):
                gradient = op("surrogate_gradient", self.value(u), surrogate=self.surrogate(surrogate))
                return op("detach", gradient)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                operands = [self.value(arg) for arg in args]
                if name in _DEFAULTS and len(operands) == 1:
                    operands.append(_DEFAULTS[name])
                return where(*operands) if name == "where" else op(name, *operands)
        fail(f"the expression {self.text!r} has {ast.unparse(tree)!r}, which is not neuron text", ValueError)

    def surrogate(self, tree: ast.expr) -> str:
        match tree:
            case ast.Name(id=name):
                return self.surrogate_text(name, ())
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.surrogate_text(name, tuple(float(ast.literal_eval(arg)) for arg in args))
        fail(f"the expression {self.text!r} has no surrogate at {ast.unparse(tree)!r}", ValueError)
