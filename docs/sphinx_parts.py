"""What conf.py needs beyond Sphinx's extensions: operators as ops.pyi has them, all surrogates, tutorials in the order of
the index."""

import ast
import re
from pathlib import Path

from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.docutils import SphinxDirective

SHAPE = re.compile(r"`{0,2}(\[[\w.,*/()+\s-]*\])`{0,2}(?!\()")
DOCS = Path(__file__).resolve().parent
PAGE = re.compile(r"`{0,2}\bdocs/(\w+)\.md`{0,2}")
STUBS = DOCS.parent / "python/spikeforge/ops.pyi"


def as_restructured_text(lines):
    """Docstrings write shapes such as [T, *shape] as they are, where reStructuredText would begin to emphasise."""
    literal = lambda shape: f"``{' '.join(shape[1].split())}``" if "*" in shape[1] else shape[0]
    return SHAPE.sub(literal, PAGE.sub(r":doc:`/\1`", "\n".join(lines))).split("\n")


def signature(overloads):
    """One for all overloads, which have the same names: each argument with all of its types, and the first one's default."""
    first = overloads[0]
    lists = [overload.args.args + overload.args.kwonlyargs for overload in overloads]
    for arguments in zip(*lists, strict=True):
        kinds = [kind for argument in arguments for kind in ast.unparse(argument.annotation).split(" | ")]
        kinds = sorted(dict.fromkeys(kinds), key="None".__eq__)  # None comes last
        arguments[0].annotation = ast.parse(" | ".join(kinds), mode="eval").body
    return f"{first.name}({ast.unparse(first.args)}) -> {ast.unparse(first.returns)}"


def read_stubs():
    """The signature and the docstring of each operator."""
    operators = {}
    for node in ast.parse(STUBS.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            operators.setdefault(node.name, []).append(node)
    return {name: (signature(overloads), ast.get_docstring(overloads[0])) for name, overloads in operators.items()}


def predefined_neurons():
    from spikeforge.nn import neurons

    operators = read_stubs()
    return [kind for kind in vars(neurons).values() if getattr(kind, "_op_name", None) in operators]


class Operators(SphinxDirective):
    """`.. operators:: run recurrent_run` describes these operators, in this order, and `.. operators:: neurons` those of the
    predefined neurons."""

    has_content = False
    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        self.env.note_dependency(str(STUBS))
        operators, lines = read_stubs(), []
        names = self.arguments[0].split()
        if names == ["neurons"]:
            names = [kind._op_name for kind in predefined_neurons()]
        for name in names:
            signature, docstring = operators[name]
            lines += [f".. py:function:: {signature}", ""]
            lines += [f"   {line}" for line in as_restructured_text(GoogleDocstring(docstring, Config()).lines())] + [""]
        return self.parse_text_to_nodes("\n".join(lines), offset=self.lineno)


class Neurons(SphinxDirective):
    """The modules of the predefined neurons."""

    def run(self):
        lines = [line for kind in predefined_neurons() for line in (f".. autoclass:: spikeforge.nn.{kind.__name__}", "")]
        return self.parse_text_to_nodes("\n".join(lines), offset=self.lineno)


class Surrogates(SphinxDirective):
    """All surrogates of spikeforge.surrogate, in the order of their table."""

    def run(self):
        from spikeforge import surrogate

        lines = []
        for kind in surrogate.SURROGATES.values():
            lines += [f".. autoclass:: spikeforge.surrogate.{kind.__name__}", ""]
        return self.parse_text_to_nodes("\n".join(lines), offset=self.lineno)


def read_docstring(app, what, name, object_, options, lines):
    lines[:] = as_restructured_text(lines)


class OrderOfTheIndex:
    """Sorts the tutorials as docs/README.md lists them."""

    def __init__(self, folder):
        self.index = (DOCS / "README.md").read_text()

    def __call__(self, name):
        return self.index.find(f"](tutorials/{name})")


def setup(app):
    app.connect("autodoc-process-docstring", read_docstring, priority=900)  # after napoleon
    app.add_directive("operators", Operators)
    app.add_directive("neurons", Neurons)
    app.add_directive("surrogates", Surrogates)
    return {"parallel_read_safe": True}
