"""accelerate on Norse 1.1: cells and modules over sequences agree with the original networks."""

import copy

import pytest
import torch
from accelerated import assert_accelerated_trains_alike, assert_left_alone, assert_restored_as_it_was, close
from loops import in_pieces
from torch import nn

nt = pytest.importorskip("norse.torch", reason="norse is not installed")
from norse.torch.functional import iaf, izhikevich, leaky_integrator, lif, lif_box, lif_ex, lsnn  # noqa: E402
from norse.torch.functional.reset import reset_subtract  # noqa: E402
from norse.torch.module.iaf import IAF, IAFCell  # noqa: E402
from norse.torch.module.leaky_integrator_box import LIBoxCell  # noqa: E402
from norse.torch.module.lif_box import LIFBoxCell  # noqa: E402
from norse.torch.module.lif_ex import LIFEx, LIFExCell  # noqa: E402
from norse.torch.module.lsnn import LSNN, LSNNCell, LSNNRecurrent, LSNNRecurrentCell  # noqa: E402

import spikeforge  # noqa: E402

N = 20
STEPS = 30
METHODS = ["super", "heaviside", "triangle", "tanh", "circ", "heavi_erfc"]


def made(cls, method, **values):
    return cls(method=method, alpha=torch.tensor(2.0), **values)


def learned(value):
    return torch.tensor(value, requires_grad=True)


def lif_p(method="super"):
    return made(lif.LIFParameters, method, tau_mem_inv=learned(150.0), tau_syn_inv=learned(180.0), v_th=learned(0.4))


def lsnn_p(method="super"):
    return made(lsnn.LSNNParameters, method, v_th=learned(0.3), tau_adapt_inv=torch.tensor(5.0))


CELLS = {
    "LIFCell": lambda m: nt.LIFCell(lif_p(m)),
    "LIFRecurrentCell": lambda m: nt.LIFRecurrentCell(N, N, lif_p(m)),
    "LIFBoxCell": lambda m: LIFBoxCell(made(lif_box.LIFBoxParameters, m, v_th=learned(0.3), v_leak=learned(0.05))),
    "LIFBoxCell, subtract": lambda m: LIFBoxCell(
        made(lif_box.LIFBoxParameters, m, v_th=learned(0.3), reset_method=reset_subtract)),
    "LICell": lambda m: nt.LICell(leaky_integrator.LIParameters(tau_mem_inv=learned(120.0))),
    "LIBoxCell": lambda m: LIBoxCell(),
    "IAFCell": lambda m: IAFCell(made(iaf.IAFParameters, m, v_th=learned(1.2))),
    "LSNNCell": lambda m: LSNNCell(lsnn_p(m)),
    "LSNNRecurrentCell": lambda m: LSNNRecurrentCell(N, N, lsnn_p(m)),
    "IzhikevichCell": lambda m: nt.IzhikevichCell(izhikevich.tonic_spiking),
    "LIFExCell": lambda m: LIFExCell(made(lif_ex.LIFExParameters, m)),
}
SEQUENCES = {
    "LIF": lambda m, **k: nt.LIF(lif_p(m), **k),
    "LIF, dt": lambda m, **k: nt.LIF(lif_p(m), dt=0.003, **k),
    "LI": lambda m, **k: nt.LI(leaky_integrator.LIParameters(tau_mem_inv=learned(120.0)), **k),
    "LIFRecurrent": lambda m, **k: nt.LIFRecurrent(N, N, lif_p(m), **k),
    "LSNN": lambda m, **k: LSNN(lsnn_p(m), **k),
    "LSNNRecurrent": lambda m, **k: LSNNRecurrent(N, N, lsnn_p(m), **k),
    "IAF": lambda m: IAF(made(iaf.IAFParameters, m)),
    "Izhikevich": lambda m, **k: nt.Izhikevich(izhikevich.tonic_spiking, **k),
    "LIFEx": lambda m, **k: LIFEx(made(lif_ex.LIFExParameters, m, v_th=torch.tensor(0.6)), **k),
}


def both(module, device):
    """Returns two copies, one accelerated, that share the parameters p (which Norse does not register)."""
    p = module.p
    copies = [copy.deepcopy(module).to(device) for _ in range(2)]
    for each in copies:
        each.p = p
    report = spikeforge.accelerate(copies[1])
    assert len(report.replaced) == 1 and not report.left, report
    return copies


def drive(name, device):
    strength = 30.0 if name.startswith("Izhikevich") else 1.5
    return strength * torch.rand(STEPS, 4, N, device=device)


def cells(cell, x):
    state, outputs = None, []
    for current in x:
        output, state = cell(current, state)
        assert not any(value._is_view() for value in (output, *state)), "detach_() would fail"
        outputs.append(output)
    return torch.stack(outputs), state


def compare(name, modules, call, x):
    """Compares the outputs, states and all gradients of the two modules."""
    learnable = [value for value in modules[0].p if isinstance(value, torch.Tensor) and value.requires_grad]
    results = []
    for module in modules:
        leaf = x.clone().requires_grad_()
        outputs, state = call(module, leaf)
        weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1)).to(outputs)
        total = (outputs * weights).sum() + sum(value.square().sum() for value in state)
        gradients = torch.autograd.grad(total, [leaf, *learnable, *module.parameters()], allow_unused=True)
        results.append((outputs, state, gradients))
    (wanted, wanted_state, wanted_gradients), (got, state, gradients) = results
    assert type(state) is type(wanted_state) and got.dtype == wanted.dtype
    fires = not name.startswith("LI") or name.startswith("LIF")
    assert torch.equal(got, wanted) if fires else torch.allclose(got, wanted)
    exact = x.device.type == "cpu" and not name.startswith("LIFEx")
    for field, value, wanted_value in zip(state._fields, state, wanted_state):
        assert value.dtype == wanted_value.dtype and value.shape == wanted_value.shape
        if exact:
            assert torch.equal(value, wanted_value), field
        else:
            torch.testing.assert_close(value, wanted_value, rtol=1e-5, atol=1e-5)
    for number, (value, wanted_value) in enumerate(zip(gradients, wanted_gradients)):
        assert (value is None or not value.any()) if wanted_value is None else True
        if wanted_value is not None:
            close(value, wanted_value, f"gradient {number}", wanted_gradients[0].abs().sum().item() if number else 0)
    return wanted


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_has_the_spikes_states_and_gradients_of_norse(name, device):
    outputs = compare(name, both(CELLS[name]("super"), device), cells, drive(name, device))
    assert outputs.count_nonzero() > 20


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_has_the_spikes_states_and_gradients_of_norse(name, device):
    in_two_pieces = lambda module, x: in_pieces(module, x.split([17, STEPS - 17]))
    outputs = compare(name, both(SEQUENCES[name]("super"), device), in_two_pieces, drive(name, device))
    assert outputs.count_nonzero() > 20


@pytest.mark.parametrize("name", [name for name in SEQUENCES if name != "IAF"])
def test_recorded_states_are_those_of_norse(name):
    modules = both(SEQUENCES[name]("super", record_states=True), torch.device("cpu"))
    compare(name, modules, lambda module, x: module(x), drive(name, torch.device("cpu")))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["LIF", "LSNN"])
def test_every_method_has_the_gradient_of_norse(name, method):
    modules = both(SEQUENCES[name](method), torch.device("cpu"))
    compare(name, modules, lambda module, x: module(x), drive(name, torch.device("cpu")))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_inputs_of_other_types_have_the_results_of_norse(dtype):
    module, fused = both(nt.LIF(), torch.device("cpu"))
    x = (4 * torch.rand(STEPS, 4, N)).to(dtype)
    (wanted, wanted_state), (got, state) = module(x), fused(x)
    assert got.dtype == wanted.dtype and torch.equal(got, wanted) and wanted.any()
    for value, wanted_value in zip(state, wanted_state):
        assert value.dtype == wanted_value.dtype and torch.equal(value, wanted_value)


def test_numbers_in_the_place_of_tensors_and_channel_wise_parameters():
    for v_th, tau_mem_inv in ((0.4, 150.0), (0.2 + torch.rand(N), 200 * torch.rand(N))):
        p = lif.LIFParameters(v_th=v_th, tau_mem_inv=tau_mem_inv)
        module, fused = nt.LIF(p), nt.LIF(p)
        assert spikeforge.accelerate(fused).replaced
        x = drive("LIF", "cpu")
        state = nt.LIF().initial_state(x)
        (wanted, wanted_state), (got, state) = module(x, state), fused(x, state)
        assert torch.equal(got, wanted) and torch.equal(state.v, wanted_state.v) and wanted.any()


# --- networks of the tutorials ---------------------------------------------------------------------------------------

def classifier():
    """Returns a network of convolutions, LIF cells and a leaky read-out, for one step per call."""
    return nt.SequentialState(
        nn.Conv2d(1, 6, 5), nt.LIFCell(nt.LIFParameters(v_th=torch.tensor(0.2))), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(6 * 12 * 12, 30), nt.LIFCell(nt.LIFParameters(v_th=torch.tensor(0.1), method="tanh")),
        nn.Linear(30, 10, bias=False), nt.LICell(),
    )


def regressor():
    """Returns a recurrent layer and a leaky read-out, for a sequence per call."""
    recurrent = nt.LIFRecurrent(N, 40, nt.LIFParameters(v_th=torch.tensor(0.3)))
    return nt.SequentialState(recurrent, nt.Lift(nn.Linear(40, 3)), nt.LI())


TUTORIALS = {
    "classifier": (classifier, lambda net, x: in_pieces(net, [x] * 8)[0], (3, 1, 28, 28), 3),
    "regressor": (regressor, lambda net, x: net(x)[0], (STEPS, 4, N), 2),
}


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorials_network_trains_to_the_same_weights(name):
    make, call, shape, neurons = TUTORIALS[name]
    source = make()
    net, fused = copy.deepcopy(source), copy.deepcopy(source)  # copies of Norse's recurrent modules lose a hook
    loss = lambda output: (output - 0.5).square().mean()
    outputs = lambda net, x: (call(net, x),)
    assert_accelerated_trains_alike(net, fused, neurons, outputs, loss, lambda: 2 * torch.rand(shape))


# --- restore, unsupported calls and modules --------------------------------------------------------------------------

def test_restore_and_a_second_call():
    assert_restored_as_it_was(classifier(), ["1", "5", "7"])


def test_a_call_without_a_fused_form_runs_as_in_norse():
    module, fused = both(nt.LIF(), torch.device("cpu"))
    sparse = (4 * torch.rand(5, 3, N) * (torch.rand(5, 3, N) < 0.2)).to_sparse()
    for x in (4 * torch.rand(5, 3, N, dtype=torch.float64), sparse):
        (wanted, wanted_state), (got, state) = module(x), fused(x)
        assert torch.equal(got.to_dense() if got.is_sparse else got, wanted.to_dense() if wanted.is_sparse else wanted)
        assert got.dtype == wanted.dtype and torch.equal(state.v, wanted_state.v)
    for n in (module, fused):
        n.p = n.p._replace(method="triangle", v_th=torch.tensor(0.3))
    x = drive("LIF", "cpu")
    assert torch.equal(fused(x)[0], module(x)[0])


class OwnStart(nt.LIFCell):
    def initial_state(self, x):
        return super().initial_state(x)._replace(i=torch.ones_like(x))


class OwnForward(nt.LIFCell):
    def forward(self, x, state=None):
        return x, state


def test_a_subclass_with_a_custom_initial_state_is_replaced():
    cell, fused = OwnStart(), OwnStart()
    assert spikeforge.accelerate(fused).replaced
    x = 30 * torch.rand(4, N)
    assert torch.equal(fused(x)[1].i, cell(x)[1].i)


LEFT = {
    "defines its own forward": OwnForward,
    "adjoint": lambda: nt.LIFCell(nt.LIFParameters(method="adjoint")),
    "'logistic'": lambda: nt.LIFCell(nt.LIFParameters(method="logistic")),
    "reset_method": lambda: LIFBoxCell(lif_box.LIFBoxParameters(reset_method=lambda z, v, reset, th: v - z * th / 2)),
    "lif_adex_feed_forward_step": lambda: nt.LIFAdExCell(),
}


@pytest.mark.parametrize("why", LEFT)
def test_a_neuron_that_is_not_known_for_sure_is_left_alone(why):
    assert_left_alone(LEFT[why](), why)


def test_torch_compile_has_no_graph_break_where_a_state_is_given():
    torch.compiler.reset()
    module = nt.LIF()
    spikeforge.accelerate(module)
    x = drive("LIF", "cpu")
    state = lif.LIFFeedForwardState(v=torch.zeros(4, N), i=torch.zeros(4, N))
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, state)[0], module(x, state)[0])
