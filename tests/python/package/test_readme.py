"""README.md and docs/ are correct: their programs run as written, and their tables equal those of the library."""

import ast
import re
import shutil
import sys
import types

import numpy as np
import pytest
import reference
import torch
from documentation import PAGES, anchors, code, marked, prose, table
from loops import printed_by

import spikeforge.models
import spikeforge.nn
from spikeforge import surrogate

from conftest import REPOSITORY

NEURONS = list(reference.NEURONS)
COMMON = ["detach_reset", "surrogate", "surrogate_args", "spiking", "store_v", "bits", "lengths", "start"]


# --- programs ----------------------------------------------------------------------------------------------------------

# The blocks of a program, each with an assertion that is true after it, and the output of the program.
PROGRAMS = [
    ({"quick start in Python": "tau = net[1].tau; assert tau.grad.isfinite().all() and tau.grad.abs().sum() > 0; "
                               "assert spikes.sum() > 0 and torch.equal(monitor['1.v'] == 0, spikes > 0)"},
     r"of all steps fired, v is \[10, 4, 8\]"),
    ({"first use of the package": "assert 0 < spikes.mean() < 1 and tau.grad.abs().sum() > 0"}, "of all steps fired"),
    ({"a neuron as text": "assert 0 < spikes.mean() < 1 and tau.grad.abs().sum() > 0", "a scan": "assert v.shape == x.shape",
      "a neuron that draws": ""}, "of all steps fired"),
    ({"fixed point in Python": "assert 0.03 < spikes.mean() < 0.9 and (fixed == spikes).float().mean() > 0.99"},
     "of all steps agree"),
    ({"floating point in Python": "assert 0 < spikes.mean() < 1 and u.shape == (4, 8)"}, ""),
    ({"training in fixed point in Python": "assert loss < 0.01 and 0.1 < fixed.float().mean() < 0.3",
      "lava modules in Python": "assert (floating == fixed).float().mean() > 0.9 and fixed.any()"}, ""),
    ({"samples of different lengths": "assert spikes[:20].sum() > 0; "
                                      "assert spikes[20:, 1].sum() == spikes[57:, 2].sum() == 0"}, ""),
    ({"a recurrent layer": "assert w.grad.abs().sum() > 0 and tau.grad.abs().sum() > 0",
      "a recurrent layer with a mask": "spikes.sum().backward(); assert bias.grad.abs().sum() > 0"}, ""),
    ({"a sparse recurrent layer": "assert spikes.any() and layer.weights.grad.any() and trained.rows == 1000"}, ""),
    ({"a sequence in segments": "weight = first.module.weight; assert loss > 0 and weight.grad.abs().max() > 0; "
                                "before = weight.detach().clone()",
      "truncated backpropagation": "assert not torch.equal(weight, before)"}, ""),
    ({"learned delays": "layer = net[0]; assert layer.width < 12 and bool((layer.delay == layer.delay.round()).all())"}, ""),
    ({"events in Python": "assert weights.grad.sum() == 50 * spikes.sum() and len(arriving) == cols",
      "events with delays": "assert 0 < buffer.sum() < arrived"}, "spikes reached.*are in flight"),
    ({"plasticity of functions": """from spikeforge import plasticity
text = plasticity.PAIR_STDP.replace("pair_stdp", "stdp").replace(", w_min, w_max) {", ") {")
assert stdp == spikeforge.synapse(text.replace("w_min", "0").replace("w_max", "1"), **stdp.params)"""}, ""),
    ({"plasticity in Python": "assert (network.weights(learns) != first).sum() > 100 and len(arrives) == 50"},
     "weights changed"),
    ({"networks in Python": "assert 800 < len(steps) < 30_000 and network.size == 1000"}, "v of the first is"),
    ({"a network in a closed loop": "assert position != 0 and muscles.params['leak'].eq(0.95).all()"}, "position"),
    ({"copies of a network": "assert counts[0] < counts[-1] and spikes.shape == (15, 8, 22) and position.any()"},
     "spikes for each leak"),
    ({"parts of populations": "assert len(recording.steps) > len(steps) > 0 and neurons.max() < 10"}, ""),
    ({"events to frames": "assert x.shape == (16, 5, 2, 128, 128) and len(events) == 5",
      "events to frames, hot pixels": "assert x.shape == (16, 5, 2, 64, 64) and set(x.unique().tolist()) == {0, 1}",
      "spike trains": "assert x.shape == (steps, 3, 700) and voltages.shape == (steps, 3, 20) and not voltages[int(lengths[1]):, 1].any()"}, ""),
    ({"spike sources": "assert first.of(generator)[0].tolist() == [10, 50, 50, 300] and first.of(generator)[1].tolist() == [0, 0, 2, 1]; "
                       "counts = first.of(poisson)[0].bincount(minlength=400).view(4, 100).sum(1); "
                       "expected = (200 * rates * dt / 1000).view(4, 100).sum(1); "
                       "assert ((counts - expected).abs() < 5 * expected.sqrt()).all() and len(second.of(cells)[0]) > 300; "
                       "assert (first.of(rhythm)[0][first.of(rhythm)[1] == 1] == torch.arange(24, 400, 25)).all()",
      "a recording as a source": "assert torch.equal(played.of(player)[0] + 400, steps) and torch.equal(played.of(player)[1], neurons); "
                                 "assert len(played.of(target)[0]) > 0"}, "spikes, then"),
    ({"a converted network": "assert error < 0.2 and len(net.report.replaced) == 4",
      "fine-tuning before a conversion": "assert logits.shape == (64, 10) and logits.isfinite().all()"}, "64 steps: error 0.0"),
    ({"exact gradients": "assert loss > 0 and hidden.layer.weight.grad.abs().sum() > 0 and hidden.recurrent.weight.grad.abs().sum() > 0",
      "first spike times": "assert (losses.first_spike_times(spikes) < 200).any() and last.layer.weight.grad.abs().sum() > 0 and predicted.shape == (8,)"}, ""),
    ({"surrogates in Python": "of_both = [torch.autograd.grad(each.sum(), x)[0] for each in (spikes, same)]; "
                              "assert torch.equal(spikes, same) and torch.equal(*of_both); "
                              "assert isinstance(layer.surrogate, surrogate.ATan)"}, ""),
]


@pytest.mark.parametrize("blocks, printed", PROGRAMS, ids=[next(iter(blocks)) for blocks, _ in PROGRAMS])
def test_a_python_program_runs(blocks, printed, capsys):
    names = {}
    for block, check in blocks.items():
        exec(compile(code(block), block, "exec"), names)
        exec(check, names)
    assert re.search(printed, capsys.readouterr().out, re.DOTALL)


@pytest.mark.parametrize("name", ["constants in Python", "a refractory neuron", "cookbook", "with torch", "padded batches", "integers as spikes"])
def test_the_python_programs_of_the_guides_run(name):
    exec(code(name), {"torch": torch, "snn": spikeforge.nn})


# Blocks of docs/training.md: the libraries that they need, and assertions that are true after them.
TOOLS = [
    ({"losses": "tau = net[1].tau; assert loss > 0 and tau.grad.abs().sum() > 0; "
                "padded = samples.transpose(0, 1).clone(); padded[20:, lengths == 20] = float('nan'); lone = net.eval()(padded, lengths=lengths); "
                "torch.testing.assert_close(losses.max_over_time(lone, lengths), losses.max_over_time(net(x, lengths=lengths), lengths))"}, []),
    ({"losses": "", "Lightning": "weight = module.net[0].weight; assert weight.isfinite().all() and not weight.is_inference(); "
                                 "assert set(snn.get_states(module.net)) == {'1.v', '4.v'} and module.net[1].tau.min() >= 1"},
     ["lightning", "torchmetrics"]),
    ({"losses": "", "Accelerate": "assert loss.isfinite() and accelerator.unwrap_model(net)[1].tau.min() >= 1"}, ["accelerate"]),
    ({"losses": "", "TensorBoard": "from pathlib import Path; assert list(Path('runs').iterdir())"}, ["tensorboard"]),
    ({"averages, parametrizations, pruning": "assert averaged.shape == v.shape and (net[0].weight == 0).float().mean() == 0.5; "
                                             "assert ema.module[1].tau.requires_grad and ema.n_averaged == 1"}, []),
    ({"fused, then compiled": "twin = blocks[2].layer.module[0].weight; assert twin.grad.abs().sum() > 0 and blocks[2].neuron.residual == 'add'"}, []),
    ({"profiler": "names = {event.key for event in profiled.key_averages()}; "
                  "assert {f'spikeforge::{name}' for name in ('lif', 'lif_forward', 'lif_backward', 'run', 'run_forward', 'run_backward')} <= names; "
                  "assert any(name.startswith('autograd::engine::evaluate_function: spikeforge::ops::autograd::') for name in names)"}, []),
    ({"ONNX of a step": "", "ONNX of a sequence": "import pytest\n"
      "with pytest.raises(torch.onnx.OnnxExporterError, match='No ONNX function found for .*lif_forward'):\n"
      "    torch.onnx.export(snn.LIF(), (samples,), **options)"}, ["onnx", "onnxscript", "onnxruntime"]),
]  # fmt: skip


@pytest.mark.parametrize("blocks, libraries", TOOLS, ids=[list(blocks)[-1] for blocks, _ in TOOLS])
def test_a_program_of_the_training_page_runs(blocks, libraries, monkeypatch, tmp_path):
    for library in libraries:
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    page = types.ModuleType("training_page")  # Dynamo finds names in their module
    monkeypatch.setitem(sys.modules, page.__name__, page)
    for block, check in ({"a network to train": ""} | blocks).items():
        exec(compile(code(block), block, "exec"), vars(page))
        exec(check, vars(page))


def test_the_programs_of_the_page_of_models_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code("models in Python"), names)
    assert "26 normalisations" in capsys.readouterr().out and all(p.grad is not None for p in names["net"].parameters())
    exec(code("resume a model"), names)
    assert torch.equal(names["losses"].mean_over_time(names["net"].eval()(names["x"])), names["logits"])
    exec(code("attention in Python"), names)
    assert 0 < names["y"].mean() and names["products"].shape == names["selected"].shape == names["masked"].shape == (4, 8, 8, 8, 49)
    models = {name: getattr(spikeforge.models, name) for name in spikeforge.models.__all__}
    sizes = {name for row in table("table of models") for cell in row[:2] for name in re.findall(r"`(\w+)`", cell)}
    assert sizes == models.keys() - {"Residual", "from_spikingjelly"}
    pytest.importorskip("spikingjelly")
    pytest.importorskip("torchvision")
    exec(code("weights of SpikingJelly"), names)
    assert torch.equal(names["same"].head.module[1].weight, names["trained"].head.weight)


def test_the_programs_of_learning_online_run(capsys):
    names = {}
    exec(code("learning while a sequence runs"), names)
    assert names["online"].traces == [[], []]
    exec(code("the trace of an input"), names)
    printed, shown = capsys.readouterr().out.strip(), code("the trace of an input").strip().splitlines()[-1]
    assert shown == f"# {printed}"
    exec(code("one layer that learns online"), names)
    assert names["w"].grad.abs().sum() > 0 and names["tau"].grad.abs().sum() > 0


def test_the_program_of_files_reads_what_a_simulation_wrote(monkeypatch, tmp_path):
    pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in ("networks in Python", "files of a simulation"):
        exec(code(block), names)
    assert names["v"].shape == (200, 2) and len(names["neurons"]) == len(names["times"]) > 100
    assert 100 <= names["times"][0] <= names["times"][-1] < 300  # ms; the first 1000 steps were in memory


def test_the_programs_of_files_of_events_run(monkeypatch, tmp_path):
    pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(REPOSITORY / "examples/events")
    recipe = __import__("shd")
    recipe.write_chirps(tmp_path / "shd_train.h5", 40, np.random.default_rng(0))
    names = {}
    exec(code("a file of events"), names)
    assert names["x"].shape == (16, 1, 2, 128, 128) and names["x"].sum() == 5000
    exec(code("a file of spike trains"), names)
    assert names["lengths"].max() == len(names["y"]) < 150 and names["x"].sum() > 0


def test_the_table_of_lavas_other_neurons_names_their_arguments():
    for names, arguments, fixed in table("other neurons of Lava"):
        for name in re.findall(r"`(\w+)`", names):
            header = re.search(r"\((.*?)\)", torch.ops.spikeforge.lava_neuron(name))[1]
            assert re.sub(r"\s*=[^,;]*", "", header).strip() == arguments.strip("; ").strip(), name
            if fixed != "the same text":
                torch.ops.spikeforge.loihi_neuron(name)


@pytest.mark.parametrize(
    ("name", "library"),
    [("coming from snnTorch", "snntorch"), ("coming from Norse", "norse"), ("coming from Sinabs", "sinabs")],
)
def test_the_programs_of_other_libraries_give_the_same_spikes(name, library):
    pytest.importorskip(library)
    exec(code(name), {})


def test_the_neurons_of_other_libraries_equal_those_of_the_table():
    snntorch = pytest.importorskip("snntorch")
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
    generator = torch.Generator().manual_seed(0)
    x = 0.3 * torch.rand(200, 4, 16, generator=generator)
    compared = 0
    for theirs, ours in table("table of equivalents"):
        library, call = theirs.split(" ", 1)
        if library == "Norse":
            continue
        module = eval(call.strip("`"), {**vars(snntorch), **vars(neuron)})
        if library == "snnTorch":
            memory, steps = module.reset_mem(), []
            for row in x:
                spikes, memory = module(row, memory)
                steps.append(spikes)
            expected = torch.stack(steps)
        else:
            module.step_mode = "m"
            x = 3 * torch.rand(200, 4, 16, generator=generator)
            expected = module(x)
        assert expected.any() and torch.equal(eval(ours.strip("`"), dict(vars(spikeforge.nn)))(x), expected), theirs
        compared += 1
    assert compared == 14


def build_against(prefix, program, folder):
    (folder / "main.cpp").write_text(program)
    (folder / "CMakeLists.txt").write_text(code("quick start, CMakeLists.txt"))
    ccache = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={path}" for path in [shutil.which("ccache")] if path]
    printed_by("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}", *ccache)
    printed_by("cmake", "--build", folder / "build")
    return folder / "build" / "example"


@pytest.mark.long
def test_the_cpp_program_builds_against_the_installed_package_and_learns(installed_package, tmp_path):
    output = printed_by(build_against(installed_package, code("quick start in C++"), tmp_path))
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", output)]
    assert len(losses) == 5 and losses[-1] < losses[0], output


@pytest.mark.long
def test_the_program_of_a_network_runs_alike_in_pieces_and_is_drawn(installed_package, tmp_path):
    output = printed_by(build_against(installed_package, code("a network in C++"), tmp_path), cwd=tmp_path)
    assert "v after 60 steps" in output and "the same spikes" in output
    printed_by(sys.executable, REPOSITORY / "scripts" / "plot_monitor.py", tmp_path / "recording")
    assert (tmp_path / "recording" / "recording.png").stat().st_size > 10_000


@pytest.mark.long
def test_the_cpp_program_of_networks_of_populations_fires(installed_package, tmp_path):
    spikes, excitatory = map(int, re.findall(r"\d+", printed_by(build_against(installed_package, code("networks in C++"), tmp_path))))
    assert 100 < excitatory < spikes < 100_000


@pytest.mark.long
def test_the_program_of_the_deployment_page_runs_what_its_script_saved(installed_package, tmp_path):
    (tmp_path / "save.py").write_text(code("save.py of deployment"))
    printed_by(sys.executable, tmp_path / "save.py", cwd=tmp_path)
    output = printed_by(build_against(installed_package, code("main.cpp of deployment"), tmp_path), cwd=tmp_path)
    assert "the read-out after the last step" in output and "CPUFloatType{4,3}" in output


def test_the_programs_of_the_deployment_page_in_python_go_on_from_its_script(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    session = {"__name__": "__main__"}
    for name in ["save.py of deployment", "a stream, traced", "torch.export of a network"]:
        exec(compile(code(name), f"docs/deployment.md, {name}", "exec"), session)
        if name != "save.py of deployment":
            assert capsys.readouterr().out.endswith("True\n"), name
    assert session["whole"].sum() > 0 and (tmp_path / "stream.pt").exists()


def test_the_programs_are_as_short_as_they_claim():
    def statements(program):
        return [line for line in program.splitlines() if line.strip() and not line.startswith(("#include", "import"))]

    assert len(statements(code("quick start in Python"))) <= 10
    assert len(statements(code("quick start in C++"))) <= 15


def test_surrogates_are_as_wide_as_their_page_says():
    for name, width in [("sigmoid", 0.44), ("atan", 0.32), ("fast_sigmoid", 0.017), ("zenke_super_spike", 0.0041)]:
        assert f" {width}" in PAGES["docs/surrogates.md"]
        peak, half = surrogate.SURROGATES[name]().gradient(torch.tensor([0, width], dtype=torch.float64))
        assert peak == 1 and abs(half - 0.5) < 0.01, name


# --- tables ------------------------------------------------------------------------------------------------------------


def test_the_operators_have_the_signatures_of_the_table():
    signatures = [row[0].strip("`") for row in table("table of operators")]
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
    written = dict(re.findall(r"`(\w+)=([^`]+)`", " ".join(row[0] for row in table("table of common arguments"))))
    schema = torch.ops.spikeforge.lif.default._schema
    actual = {arg.name: arg.default_value for arg in schema.arguments if arg.name in COMMON}
    assert {name: ast.literal_eval(value) for name, value in written.items()} == actual


def gradient(**options):
    x = torch.linspace(-2, 3, 64, dtype=torch.float64).repeat(3, 1).requires_grad_()
    spikes, _ = torch.ops.spikeforge.lif(x, **options)
    return torch.autograd.grad(spikes.sum(), x)[0]


def test_the_surrogates_have_the_numbers_of_the_table():
    rows = table("table of surrogates")
    assert [name.strip("`") for name, _, _ in rows] == list(reference.SURROGATES)
    for name, numbers, _ in rows:
        surrogate = name.strip("`")
        written = [float(number) for number in re.findall(r"=(\S+?)(?:,|$)", numbers)]
        by_default = gradient(surrogate=surrogate)
        assert torch.equal(by_default, gradient(surrogate=surrogate, surrogate_args=written)), surrogate
        others = [2 * number + 1 for number in written]
        if not written:
            continue
        assert not torch.equal(by_default, gradient(surrogate=surrogate, surrogate_args=others)), surrogate


# --- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_targets_of_a_pages_links_exist(page):
    missing = []
    for link in sorted(set(re.findall(r"\]\(([^)\s]+)\)", prose(page)))):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (REPOSITORY / page).parent / path if path else REPOSITORY / page
        name = target.resolve().relative_to(REPOSITORY.resolve()).as_posix()
        if not target.exists() or (anchor and anchor not in anchors(name)):
            missing.append(link)
    assert not missing, f"{page} links to {', '.join(missing)}, which is not there"


def test_every_page_of_docs_is_in_the_index():
    pages = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/") and page != "docs/README.md"}
    missing = sorted(page for page in pages if f"]({page})" not in PAGES["docs/README.md"])
    assert not missing, f"docs/README.md does not list {', '.join(missing)}"


@pytest.mark.parametrize("walk", ["walk of lif, forward", "walk of lif, backward"])
def test_the_walk_passes_functions_that_are_there(walk):
    rows = table(walk)
    assert len(rows) <= 14
    missing = []
    for _, function, place, _ in rows:
        path = REPOSITORY / place.strip("`")
        if not path.exists() or not re.search(rf"\b{function.strip('`')}\b", path.read_text()):
            missing.append(f"{function} in {place}")
    assert not missing, f"docs/architecture.md: there is no {', no '.join(missing)}"


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_places_that_a_map_names_are_there(page):
    places = re.findall(r"`((?:csrc|ops|cuda|cmake|tests|docs|tools|examples|benchmarks|scripts)/[^`\s<>]*)`", PAGES[page])
    missing = sorted({place for place in places if not list(REPOSITORY.glob(place))})
    assert not missing, f"{page} names {', '.join(missing)}, which is not there"


def test_the_front_page_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 200


def test_every_mark_is_of_a_test():
    tests = "".join(path.read_text() for path in (REPOSITORY / "tests").rglob("*.py"))
    unused = [name for name in marked() if f'"{name}"' not in tests]
    assert not unused, f"no test reads the blocks called {', '.join(unused)}"


def test_every_environment_variable_of_the_table_is_read_by_the_library():
    sources = "".join(path.read_text() for path in [*(REPOSITORY / "csrc").rglob("*.cpp"), *(REPOSITORY / "ops").rglob("*.cpp")])
    for (name, _) in table("table of environment variables"):
        assert f'"{name.strip("`")}"' in sources, f"{name} is in the documentation, but nothing reads it"
