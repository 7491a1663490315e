"""README.md is right: its programs run as written, and its tables are those of the library."""

import ast
import re
import shutil
import subprocess
import sys

import pytest
import torch

from conftest import REPOSITORY, library_path

README = (REPOSITORY / "README.md").read_text()
NEURONS = ["integrate_and_fire", "lif", "plif", "qif", "eif", "izhikevich"]
COMMON = ["detach_reset", "surrogate", "surrogate_args", "spiking", "store_v"]


def code(language):
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 1, f"README.md has {len(blocks)} blocks of {language}, expected one"
    return blocks[0]


def rows_of_table(first_column):
    table = re.search(rf"^\| {first_column} \|.*\n\|[-|]+\n((?:\|.*\n)+)", README, re.MULTILINE)
    assert table, f"README.md has no table whose first column is {first_column}"
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table[1].splitlines()]


def run(*command, cwd=REPOSITORY):
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(done.args)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# --- programs ----------------------------------------------------------------------------------------------------------


def test_the_python_program_runs_and_learns_tau():
    program = code("python").replace("build/release/lib/libspikeforge.so", str(library_path()))
    assert str(library_path()) in program
    program += "\nassert spikes.sum() > 0 and tau.grad.isfinite().all() and tau.grad.abs().sum() > 0\n"
    assert "of all steps fired" in run(sys.executable, "-c", program)


def test_the_python_program_of_a_neuron_of_ones_own_runs():
    program = code("py").replace("build/release/lib/libspikeforge.so", str(library_path()))
    assert str(library_path()) in program
    program += "\nassert 0 < spikes.mean() < 1 and tau.grad.abs().sum() > 0\n"
    assert "of all steps fired" in run(sys.executable, "-c", program)


def test_the_python_program_of_fixed_point_runs():
    program = code("python3").replace("build/release/lib/libspikeforge.so", str(library_path()))
    assert str(library_path()) in program
    program += "\nassert 0.03 < spikes.mean() < 0.9 and (fixed == spikes).float().mean() > 0.99\n"
    assert "of all steps agree" in run(sys.executable, "-c", program)


def test_the_python_program_of_events_runs():
    program = code("Python").replace("build/release/lib/libspikeforge.so", str(library_path()))
    assert str(library_path()) in program
    program += "\nassert weights.grad.sum() == 50 * spikes.sum() and len(arriving) == cols\n"
    assert "spikes reached" in run(sys.executable, "-c", program)


def build_against_the_installed_package(program, folder):
    for tool in ("c++", "cmake"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} on this machine")
    build = library_path().resolve().parents[1]
    if not (build / "cmake_install.cmake").exists():
        pytest.skip(f"{library_path()} does not lie in a build folder, so there is nothing to install")

    (folder / "main.cpp").write_text(program)
    (folder / "CMakeLists.txt").write_text(code("cmake"))
    ccache = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={path}" for path in [shutil.which("ccache")] if path]
    run("cmake", "--install", build, "--prefix", folder / "prefix")
    run("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}", *ccache)
    run("cmake", "--build", folder / "build")
    return folder / "build" / "example"


def test_the_cpp_program_builds_against_the_installed_package_and_learns(tmp_path):
    output = run(build_against_the_installed_package(code("cpp"), tmp_path))
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", output)]
    assert len(losses) == 5 and losses[-1] < losses[0], output


def test_the_program_of_a_network_runs_alike_in_pieces_and_is_drawn(tmp_path):
    output = run(build_against_the_installed_package(code(r"C\+\+"), tmp_path), cwd=tmp_path)
    assert "v after 60 steps" in output and "the same spikes" in output
    run(sys.executable, REPOSITORY / "scripts" / "plot_monitor.py", tmp_path / "recording")
    assert (tmp_path / "recording" / "recording.png").stat().st_size > 10_000


def test_the_programs_are_as_short_as_they_claim():
    def statements(program):
        return [line for line in program.splitlines() if line.strip() and not line.startswith(("#include", "import"))]

    assert len(statements(code("python"))) <= 10
    assert len(statements(code("cpp"))) <= 15


# --- tables ------------------------------------------------------------------------------------------------------------


def test_the_operators_have_the_signatures_of_the_table():
    signatures = [row[0].strip("`") for row in rows_of_table("operator")]
    assert [signature.split("(")[0] for signature in signatures] == NEURONS
    for signature in signatures:
        name = signature.split("(")[0]
        documented = ast.parse(f"def {signature}: pass").body[0].args
        defaults = [None] * (len(documented.args) - len(documented.defaults)) + documented.defaults
        pairs = list(zip(documented.args, defaults)) + list(zip(documented.kwonlyargs, documented.kw_defaults))
        written = [(arg.arg, ast.literal_eval(default) if default else "required") for arg, default in pairs]

        schema = getattr(torch.ops.spikeforge, name).default._schema
        actual = [(arg.name, arg.default_value if arg.has_default_value() else "required") for arg in schema.arguments]
        assert written == [pair for pair in actual if pair[0] not in COMMON], name
        assert [pair[0] for pair in actual[len(written):]] == COMMON, name


def test_the_arguments_for_all_operators_have_the_defaults_of_the_table():
    written = dict(re.findall(r"`(\w+)=([^`]+)`", " ".join(row[0] for row in rows_of_table("argument"))))
    schema = torch.ops.spikeforge.lif.default._schema
    actual = {arg.name: arg.default_value for arg in schema.arguments if arg.name in COMMON}
    assert {name: ast.literal_eval(value) for name, value in written.items()} == actual


def gradient(**options):
    x = torch.linspace(-2, 3, 64, dtype=torch.float64).repeat(3, 1).requires_grad_()
    spikes, _ = torch.ops.spikeforge.lif(x, **options)
    return torch.autograd.grad(spikes.sum(), x)[0]


def test_the_surrogates_have_the_numbers_of_the_table():
    rows = rows_of_table("surrogate")
    assert len(rows) == 16
    for name, numbers, _ in rows:
        surrogate = name.strip("`")
        written = [float(number) for number in re.findall(r"=(\S+?)(?:,|$)", numbers)]
        by_default = gradient(surrogate=surrogate)
        assert torch.equal(by_default, gradient(surrogate=surrogate, surrogate_args=written)), surrogate
        others = [2 * number + 1 for number in written]
        assert not torch.equal(by_default, gradient(surrogate=surrogate, surrogate_args=others)), surrogate


PROSE = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", PROSE))))
def test_what_it_links_to_exists(link):
    assert link.startswith("http") or (REPOSITORY / link).exists(), f"README.md links to {link}, which is not there"


def test_every_environment_variable_of_the_table_is_read_by_the_library():
    sources = "".join(path.read_text() for path in (REPOSITORY / "csrc").rglob("*.cpp"))
    for (name, _) in rows_of_table("variable"):
        assert f'"{name.strip("`")}"' in sources, f"{name} is in README.md, but nothing reads it"
