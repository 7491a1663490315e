"""Calls whose parameters are scalars, tensors or both: the overload `any`, which calls from Python use."""

import pytest
import torch
from cases import NUMBERS, SHAPE, all_equal, operator, random_parameters, random_states, random_x, saved_and_loaded
from reference import NEURONS

ops = torch.ops.spikeforge
every_neuron = pytest.mark.parametrize("neuron", NEURONS)


def mixed(neuron, device, dtype=torch.float32, gradients=False):
    """Returns arguments in which every second parameter is a tensor, as positional and keyword arguments."""
    tensors = random_parameters(neuron, SHAPE, "per channel", dtype, device)
    params = {name: (tensors if i % 2 else NUMBERS)[name] for i, name in enumerate(NEURONS[neuron].params) if name != "w"}
    x = random_x(neuron, 7, SHAPE, dtype, device).requires_grad_(gradients)
    for value in params.values():
        if torch.is_tensor(value):
            value.requires_grad_(gradients)
    return (x, tensors["w"]) if neuron == "plif" else (x,), params


def as_tensors(neuron, params, device):
    return {name: value if torch.is_tensor(value) else torch.tensor(value, device=device) for name, value in params.items()}


@pytest.fixture
def printed(monkeypatch):
    """Records the tensors that are formatted during a test."""
    seen, plain = [], torch.Tensor.__repr__

    def count(self, **options):
        seen.append(self.shape)
        return plain(self, **options)

    monkeypatch.setattr(torch.Tensor, "__repr__", count)
    return seen


@every_neuron
def test_no_call_prints_its_tensors(neuron, device, printed):
    op = operator(neuron)
    args, params = mixed(neuron, device, gradients=True)
    v, _ = random_states(neuron, SHAPE, torch.float32, device)
    op(*args)
    op(*args, v)
    op(*args, **params)
    op(*args, **dict(params, v_reset=None))
    op(*args, **as_tensors(neuron, params, device))
    op(*args, v, **as_tensors(neuron, params, device))
    assert printed == []
    repr(args[0])
    assert len(printed) == 1, "the count counts"


@every_neuron
def test_numbers_beside_tensors_are_as_tensors(neuron, device):
    args, params = mixed(neuron, device, gradients=True)
    leaves = [t for t in (*args, *params.values()) if torch.is_tensor(t) and t.requires_grad]
    got = operator(neuron)(*args, **params)
    want = operator(neuron).tensor(*args, **as_tensors(neuron, params, device))
    assert all_equal(got, want)
    grads = [torch.autograd.grad(sum(o.sin().sum() for o in outputs), leaves) for outputs in (got, want)]
    assert all_equal(*grads)


@every_neuron
def test_a_parameter_that_is_not_given_has_its_default(neuron, device):
    x, *more = mixed(neuron, device)[0]
    threshold = torch.nn.Parameter(torch.tensor(0.9, device=device))
    got = operator(neuron)(x, *more, v_threshold=threshold)
    assert all_equal(got, operator(neuron).default(x, *more, v_threshold=0.9)), "v_reset too"
    assert torch.autograd.grad(got[1].sum(), threshold)[0].shape == ()
    assert all_equal(operator(neuron)(x, *more, v_threshold=None), operator(neuron)(x, *more)), "None is the default"
    soft = operator(neuron)(x, *more, v_reset=None)
    assert all_equal(soft, operator(neuron).default(x, *more, v_reset=None)), "but for v_reset, where it is soft reset"
    soft_by_tensors = operator(neuron).tensor(x, *more, v_threshold=threshold, v_reset=None)
    assert all_equal(soft_by_tensors, operator(neuron).default(x, *more, v_threshold=0.9, v_reset=None))
    assert not torch.equal(soft[1], operator(neuron)(x, *more)[1])


@pytest.mark.parametrize("value, word", [("2", "str"), ([2.0], "List"), ((2.0,), "Tuple"), (True, "bool"), (2j, "complex")])
def test_a_parameter_of_another_kind_is_refused_by_name(value, word):
    with pytest.raises(TypeError, match=f"lif: tau must be .* but is .*{word}"):
        ops.lif(torch.rand(3, 2), tau=value)


def test_errors_print_no_tensors(device, printed):
    with pytest.raises(ValueError, match="lif: tau must broadcast"):
        ops.lif(torch.rand(3, 2, device=device), tau=torch.rand(5, device=device))
    assert printed == []


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.long(but=r"-(lif|izhikevich)-True$")
@every_neuron
def test_opcheck(neuron, gradients, device):
    args, params = mixed(neuron, device, gradients=gradients)
    torch.library.opcheck(operator(neuron).any, args, params)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tau = torch.nn.Parameter(torch.tensor(2.5))

    def forward(self, x):
        spikes, v = torch.ops.spikeforge.lif(x, tau=self.tau, v_threshold=0.9)
        return spikes + torch.ops.spikeforge.lif(x, None, tau=3.0, v_reset=None)[1] + v


def test_scripts_and_traces_take_both(device):
    network, x = Network().to(device), torch.randn(6, 4, 5, device=device)
    want = network(x)
    for module in (torch.jit.script(network), torch.jit.trace(network, x)):
        for each in (module, saved_and_loaded(module)):
            got = each(x)
            assert torch.equal(got, want)
            (grad,) = torch.autograd.grad(got.sum(), list(each.parameters()))
            (expected,) = torch.autograd.grad(network(x).sum(), network.tau)
            assert torch.equal(grad, expected)


def test_compiled_calls_take_both(device):
    def function(x, tau):
        return ops.lif(x, tau=tau, v_threshold=0.9)[1] + ops.lif(x, tau=2.5, v_reset=None)[1]

    x, tau = torch.randn(6, 5, device=device), torch.tensor(2.2, device=device, requires_grad=True)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, tau), function(x, tau))
    grads = [torch.autograd.grad(f(x, tau).sum(), tau)[0] for f in (compiled, function)]
    assert torch.equal(*grads)


@pytest.mark.parametrize("overload, whole", [("default", True), ("any", False)])
def test_a_number_that_changes_becomes_a_symbol_of_the_graph(overload, whole, device):
    """If torch finds no type for it in `Any?`, the graph breaks."""
    op = getattr(ops.lif, overload) if whole else ops.lif
    x = torch.randn(6, 5, device=device)
    compiled = torch.compile(lambda x, tau: op(x, tau=tau)[1] + 1, backend="aot_eager", fullgraph=whole)
    for tau in (2.0, 3.0, 4.5):
        assert torch.equal(compiled(x, tau), op(x, tau=tau)[1] + 1)


def test_a_call_with_tensors_is_captured(cuda):
    x = torch.randn(6, 50, device=cuda)
    tau, reset = torch.full((), 2.5, device=cuda), torch.zeros((), device=cuda)
    want = ops.lif(x, tau=tau, v_reset=reset)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = ops.lif(x, tau=tau, v_reset=reset)
    graph.replay()
    torch.cuda.synchronize()
    assert all_equal(got, want)
