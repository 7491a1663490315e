"""The introductory pages: the tour and the tutorials run as written, and the reference contains all public names."""

import ast
import importlib
import os
import re
import runpy
import sys

import pytest
import spikeforge
from documentation import PAGES, code
from loops import printed_by

from conftest import REPOSITORY, library_path

FOLDER = REPOSITORY / "docs" / "tutorials"
TUTORIALS = sorted(path.stem for path in FOLDER.glob("*.py"))
NEEDS = {
    "accelerate_spikingjelly": ["spikingjelly"],
    "exchange_nir": ["spikingjelly", "nir", "libspikeforge_nir_nn.so"],
    "deploy_to_cpp": ["../bin/deploy"],
}
TOUR = [
    "tour, an operator", "tour, a gradient", "tour, a network", "tour, states", "tour, a look inside", "tour, an own neuron",
    "tour, a device", "tour, a file for C++",
]


@pytest.mark.long
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_by_itself(name, tmp_path):
    for needed in NEEDS.get(name, []):
        if "/" in needed or needed.endswith(".so"):
            if not (library_path().parent / needed).exists():
                pytest.skip(f"{needed} was not built")
        else:
            pytest.importorskip(needed)
    own = {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "SPIKEFORGE_LIBRARY": str(library_path().absolute())}
    printed_by(sys.executable, FOLDER / f"{name}.py", cwd=tmp_path, env={**os.environ, **own})


def test_the_tutorial_of_hierarchies_prints_its_table(monkeypatch, capsys):
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(FOLDER / "loihi_layers.py"), run_name="__main__")
    assert "   4 |   8   8   8 |   0   1   0 |   8  10   8" in capsys.readouterr().out


def test_the_tour_runs_from_its_first_block_to_its_last(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    names = re.findall(r"^<!-- test: (tour, .+) -->$", PAGES["docs/tour.md"], re.MULTILINE)
    assert names == TOUR
    session = {"__name__": "__main__"}
    for name in names:
        exec(compile(code(name), f"docs/tour.md, {name}", "exec"), session)
    assert capsys.readouterr().out.endswith("True\n") and (tmp_path / "network.pt").exists()


def test_the_demo_builds_the_programs_of_the_tour():
    targets = re.search(r"--target ([\w ]+) -j", (REPOSITORY / "scripts" / "demo").read_text())[1].split()
    programs = re.findall(r"build/release/bin/(\w+)", PAGES["docs/tour.md"])
    assert programs and set(programs) <= set(targets)


def test_the_first_call_of_the_install_page_prints_what_it_shows(capsys):
    exec(code("a first call"), {})
    assert capsys.readouterr().out in PAGES["docs/install.md"].split("```\n")


def test_every_tutorial_is_in_the_index():
    missing = [name for name in TUTORIALS if f"](tutorials/{name}.py)" not in PAGES["docs/README.md"]]
    assert not missing, f"docs/README.md does not list {', '.join(missing)}"


def reference():
    return "".join(path.read_text() for path in sorted((REPOSITORY / "docs" / "api").glob("*.rst")))


def test_the_reference_has_each_operator_once():
    listed = " ".join(re.findall(r"^\.\. operators:: ((?:.*\n(?:   .+\n)*))", reference(), re.MULTILINE)).split()
    neurons = ["integrate_and_fire", "lif", "plif", "qif", "eif", "izhikevich", "adaptive_lif"]  # `.. operators:: neurons`
    assert sorted(listed) == sorted({*spikeforge.ops.__all__, "neurons"} - set(neurons))


def test_the_reference_describes_each_argument_of_each_operator():
    undescribed = []
    for node in ast.parse((REPOSITORY / "python/spikeforge/ops.pyi").read_text()).body:
        text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        if text is None:  # an overload without a docstring
            continue
        described = re.findall(r"^    (\w+): ", text.partition("\nArgs:\n")[2], re.MULTILINE)
        wanted = [argument.arg for argument in node.args.args + node.args.kwonlyargs]
        undescribed += [f"{argument} of {node.name}" for argument in wanted if argument not in described]
    assert not undescribed, f"scripts/operator_docs.py does not describe {', '.join(undescribed)}"


@pytest.mark.parametrize("module", ["spikeforge", "spikeforge.nn", "spikeforge.data", "spikeforge.distributed", "spikeforge.losses", "spikeforge.nir", "spikeforge.plot"])
def test_the_reference_has_each_public_name(module):
    try:
        names = set(importlib.import_module(module).__all__)
    except ImportError as error:  # NIR needs HDF5
        pytest.skip(str(error))
    listed = {name.split(".")[-1] for name in re.findall(r"^\.\. auto(?:class|function):: ([\w.]+)", reference(), re.MULTILINE)}
    others = {"__version__", "COLORS", "data", "demo", "distributed", "losses", "models", "nir", "nn", "ops", "plasticity", "plot", "rules", "surrogate", "trace"}  # a number, colours, modules
    listed |= {name for name in names if hasattr(getattr(spikeforge.nn, name, None), "_op_name")}  # `.. neurons::`
    missing = sorted(names - listed - others)
    assert not missing, f"docs/api does not name {', '.join(missing)} of {module}"
