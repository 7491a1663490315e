"""PyTorch's contract of an operator: opcheck, compile, export, TorchScript, transforms, autocast."""

import functools

import pytest
import torch
import torch._dynamo.testing
from cases import (
    NUMBERS, SHAPE, Calls, Inputs, Options, all_equal, call, compare, numbers, operator, prepare_call, random_parameters,
    random_states, random_x, sample, saved_and_loaded,
)
from reference import NEURONS

ops = torch.ops.spikeforge
every_neuron = pytest.mark.parametrize("neuron", NEURONS)


def lowered_options(neuron, **changes):
    options = dict(decay_input=True, hard_reset=True, detach_reset=False, surrogate="atan", surrogate_args=[3.0], spiking=True)
    if not NEURONS[neuron].has_decay_input:
        del options["decay_input"]
    return dict(options, **{"store_v": False, **changes})


# --- opcheck -------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=r"-(lif|izhikevich)-tensors-training$")
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("overload", ["numbers", "tensors"])
@every_neuron
def test_opcheck_of_the_public_operators(neuron, overload, gradients, device):
    tensors = overload == "tensors"
    for states in (False, True):
        inputs = sample(neuron, device, tensors, states, gradients)
        for store_v, options in (
            (False, Options()),
            (True, Options(detach_reset=True)),
            (False, Options(soft=not tensors, surrogate="s2nn", surrogate_args=(2.0, 0.5))),
        ):
            op, args, kwargs = prepare_call(neuron, inputs, options, store_v)
            torch.library.opcheck(op, args, kwargs)


@pytest.mark.long(but=r"-lif$")
@every_neuron
def test_opcheck_of_the_lowered_operators(neuron, device):
    forward, backward = getattr(ops, f"{neuron}_forward").default, getattr(ops, f"{neuron}_backward").default
    inputs = sample(neuron, device)
    names = list(NEURONS[neuron].params)
    tensor_parameters = random_parameters(neuron, SHAPE, "per neuron", torch.float32, device)
    states = [inputs.v] + ([inputs.w] if NEURONS[neuron].has_w else [])
    numbers_ = [float(NUMBERS.get(name, 0)) for name in names]
    for tensors, store_v in (("all", False), ("even", True), ("odd", False)):
        some = {"all": names, "even": names[::2], "odd": names[1::2]}[tensors]
        params = [tensor_parameters[name] if name in some or name == "w" else None for name in names]
        options = lowered_options(neuron, store_v=store_v)
        torch.library.opcheck(forward, (inputs.x, *states, params, numbers_), dict(options, save=tensors != "odd"))
        *outputs, checkpoints = forward(inputs.x, *states, params, numbers_, **options, save=True)
        upstream = [torch.rand_like(output) for output in outputs]
        everything = [True] * (1 + len(states)) + [p is not None for p in params]
        for grads, needs_grad in (
            (upstream, everything),
            ([upstream[0]] + [None] * (len(upstream) - 1), [True] + [False] * (len(everything) - 1)),
            ([None] + upstream[1:], [False] + everything[1:]),
        ):
            args = (*grads, inputs.x, *states, checkpoints, params, numbers_)
            torch.library.opcheck(backward, args, dict(options, needs_grad=needs_grad))


def test_every_operator_has_the_tag_for_compile():
    for neuron in NEURONS:
        for name, overload in ((neuron, "default"), (neuron, "tensor"), (f"{neuron}_forward", "default"), (f"{neuron}_backward", "default")):
            assert torch.Tag.pt2_compliant_tag in getattr(getattr(ops, name), overload).tags, f"{name}.{overload}"


# --- compile -------------------------------------------------------------------------------------------------------


@functools.cache
def why_inductor_fails(device):
    """Returns why Inductor cannot run: it needs a C++ compiler, and Triton on a GPU. Returns None if it runs."""
    torch._dynamo.reset()
    try:
        torch.compile(lambda x: x.sin() + 1, backend="inductor")(torch.rand(8, device=device))
    except Exception as error:
        return str(error).splitlines()[0]


def require_inductor(device):
    if why := why_inductor_fails(device):
        pytest.skip(f"inductor does not work here: {why}")


# Inductor is slow, and compiles the same graphs.
COMPILED = [*((neuron, "aot_eager") for neuron in NEURONS), *((neuron, "inductor") for neuron in ("lif", "plif", "izhikevich"))]


@pytest.mark.long(but=r"-aot_eager-|-lif-inductor-numbers$")
@pytest.mark.covering(1)
@pytest.mark.parametrize("overload", ["numbers", "tensors"])
@pytest.mark.parametrize("neuron, backend", COMPILED)
def test_compiled_is_equal_to_eager_forward_and_backward(neuron, overload, backend, device):
    if backend == "inductor":
        require_inductor(device)
    tensors = overload == "tensors"
    some, others = Options(), Options(soft=True, detach_reset=True, surrogate="atan")
    for options in (others,) if backend == "inductor" else (some, others):
        inputs = sample(neuron, device, tensors, gradients=True)
        if options.soft:
            inputs.params.pop("v_reset", None)
        overload, args, kwargs = prepare_call(neuron, inputs, options)
        eager = lambda *args: overload(*args, **kwargs)
        torch._dynamo.reset()
        compiled = torch.compile(eager, fullgraph=True, backend=backend)
        leaves = list(inputs.tensors().values())
        results = [], []
        for function, result in zip((eager, compiled), results):
            outputs = function(*args)
            # The loss is not compiled, so that eager and compiled code differ in the operator only.
            result += [*outputs, *torch.autograd.grad(sum(o.sin().sum() for o in outputs), leaves, allow_unused=True)]
        for i, (one, other) in enumerate(zip(*results)):
            assert (one is None) == (other is None), f"{neuron} {options}: result {i}"
            assert one is None or torch.equal(one, other), f"{neuron} {options}: result {i} differs"


@every_neuron
def test_compile_takes_other_sizes_without_a_new_graph(neuron):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    overload, weight = operator(neuron).default, [torch.zeros(())] if neuron == "plif" else []
    compiled = torch.compile(lambda x, *w: overload(x, *w)[0], fullgraph=True, dynamic=True, backend=counter)
    for steps, batch in ((40, 3), (57, 4), (99, 7)):
        x = random_x(neuron, steps, (batch, 6), torch.float32, "cpu").requires_grad_()
        got, want = compiled(x, *weight), overload(x, *weight)[0]
        assert torch.equal(got, want)
        assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, want)))
    assert counter.frame_count == 1, "one graph serves all sizes"


def captured_graphs(neuron, inputs):
    """Returns the graphs that a compiler's backend receives (forward, backward, inference), and the call's result."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs = {}

    def keep(name):
        def compiler(graph, _):
            graphs[name] = graph.graph
            return make_boxed_func(graph.forward)

        return compiler

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep("forward"), bw_compiler=keep("backward"), inference_compiler=keep("inference"))
    overload, args, kwargs = prepare_call(neuron, inputs, Options())
    result = torch.compile(lambda *args: overload(*args, **kwargs), fullgraph=True, backend=backend)(*args)
    return graphs, result


def our_nodes(graph):
    return [n for n in graph.nodes if n.op == "call_function" and str(n.target).startswith("spikeforge.")]


@every_neuron
def test_compile_keeps_the_operators_whole(neuron):
    inputs = sample(neuron, "cpu", gradients=True)
    graphs, results = captured_graphs(neuron, inputs)
    results[0].sum().backward()
    (forward,) = our_nodes(graphs["forward"])
    (backward,) = our_nodes(graphs["backward"])
    assert str(forward.target) == f"spikeforge.{neuron}_forward.default" and forward.kwargs["save"] is True
    assert str(backward.target) == f"spikeforge.{neuron}_backward.default"
    others = [n for n in graphs["forward"].nodes if n.op == "call_function" and n not in (forward,)]
    assert len(others) <= 8, f"there is little beside the operator, but found {others}"


@pytest.mark.covering(1)
@pytest.mark.parametrize("why", ["nothing requires a gradient", "no_grad", "inference_mode"])
@every_neuron
def test_compiled_inference_writes_no_checkpoint(neuron, why):
    inputs = sample(neuron, "cpu", gradients=why != "nothing requires a gradient")
    guard = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(why, torch.enable_grad)
    with guard():
        graphs, _ = captured_graphs(neuron, inputs)
    (forward,) = our_nodes(graphs["inference"])
    assert forward.kwargs["save"] is False


# --- export --------------------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self, neuron, learn=False):
        super().__init__()
        self.neuron = neuron
        self.linear = torch.nn.Linear(6, 6)
        self.learn = learn
        if neuron == "plif":
            self.w = torch.nn.Parameter(torch.zeros(6))
        if learn:
            self.v_threshold = torch.nn.Parameter(torch.tensor(0.8))
            self.v_reset = torch.nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        weight = [self.w] if self.neuron == "plif" else []
        params = dict(v_threshold=self.v_threshold, v_reset=self.v_reset) if self.learn else dict(v_threshold=0.8)
        return operator(self.neuron)(self.linear(x), *weight, **params, store_v=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("learn", [False, True], ids=["numbers", "tensors"])
@every_neuron
def test_export_saves_loads_and_runs_at_any_batch_size(neuron, learn):
    layer = Layer(neuron, learn)
    x = 2 * torch.rand(7, 4, 6)
    program = torch.export.export(layer, (x,), dynamic_shapes=({1: torch.export.Dim("batch", min=2, max=4096)},))
    assert len(our_nodes(program.graph)) == 1, f"the operator is not whole in\n{program.graph}"
    loaded = saved_and_loaded(program, torch.export).module()
    for batch in (4, 2, 33):
        x = 2 * torch.rand(7, batch, 6)
        assert all_equal(loaded(x), layer(x)), f"{neuron} batch {batch}"
    inference = program.run_decompositions()
    assert [str(n.target) for n in our_nodes(inference.graph)], "after decompositions it is still there"


# --- TorchScript ---------------------------------------------------------------------------------------------------


scripting = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@scripting
def test_a_scripted_function_runs_after_saving():
    def function(x: torch.Tensor, w: torch.Tensor):
        spikes, _ = torch.ops.spikeforge.plif(x, w, v_reset=None, surrogate="erf")
        spikes, v = torch.ops.spikeforge.lif(spikes, tau=3.0, v_threshold=0.4, store_v=True)
        return spikes, v

    x = (2 * torch.rand(9, 4, 6)).requires_grad_()
    w = torch.zeros(6, requires_grad=True)
    expected = function(x, w)
    wanted = torch.autograd.grad(expected[1].sum(), (x, w))
    for script in (torch.jit.script(function), saved_and_loaded(torch.jit.script(function))):
        results = script(x, w)
        assert all_equal(results, expected)
        assert all_equal(torch.autograd.grad(results[1].sum(), (x, w)), wanted)


@scripting
def test_the_exported_torchscript_computes_the_network(tmp_path):
    """Tests the files that the C++ tests load."""
    import export_torchscript

    export_torchscript.export(tmp_path)
    values = torch.jit.load(tmp_path / "values.pt")
    function, module = torch.jit.load(tmp_path / "function.pt"), torch.jit.load(tmp_path / "module.pt")
    spikes, v = function(values.x)
    y = module(values.x)
    grad_w, grad_tau = torch.autograd.grad(y.sum(), (module.w, module.tau))
    traced = torch.jit.load(tmp_path / "traced.pt")
    traced_spikes, tired = traced(values.x)
    (grad_leak,) = torch.autograd.grad(tired.sum(), traced.leak)
    found = dict(spikes=spikes, v=v, y=y, grad_w=grad_w, grad_tau=grad_tau,
                 traced_spikes=traced_spikes, tired=tired, grad_leak=grad_leak)
    for name, tensor in found.items():
        assert torch.equal(tensor, getattr(values, name)), name
    assert 0 < spikes.mean() < 1 and grad_w.abs().max() > 0 and grad_tau != 0, "the files show something"


# --- scalars and parameters ----------------------------------------------------------------------------------------


def test_a_number_may_be_an_integer_or_a_numpy_scalar():
    import numpy

    x = torch.rand(4, 3) * 2
    expected = ops.lif(x, tau=3.0)
    for tau in (3, numpy.float64(3)):
        assert torch.equal(ops.lif(x, tau=tau)[1], expected[1])


# --- vmap ------------------------------------------------------------------------


def unstacked(function, in_dims, *args):
    size = next(a.shape[d] for a, d in zip(args, in_dims) if d is not None)
    results = [function(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims))) for i in range(size)]
    return [torch.stack(parts) for parts in zip(*results)]


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("x_dim, v_dim", [(0, None), (1, None), (2, None), (None, 0), (None, 1), (1, 0), (2, 1), (0, 1)])
@every_neuron
def test_vmap_is_a_loop(neuron, x_dim, v_dim, device):
    mapped = 4
    x_shape, v_shape = [6, 5], [5]
    if x_dim is not None:
        x_shape.insert(x_dim, mapped)
    if v_dim is not None:
        v_shape.insert(v_dim, mapped)
    x = random_x(neuron, x_shape[0], x_shape[1:], torch.float32, device).requires_grad_()
    v = torch.rand(v_shape, device=device).requires_grad_()
    params = numbers(neuron, (), torch.float32, device)

    def function(x, v):
        return tuple(call(neuron, Inputs(x, v, params=params), Options()))

    got = torch.func.vmap(function, in_dims=(x_dim, v_dim))(x, v)
    want = unstacked(function, (x_dim, v_dim), x, v)
    for a, e in zip(got, want):
        assert torch.equal(a, e), f"{neuron}: vmap over dimensions {x_dim} of x and {v_dim} of v"
    gradients = [torch.autograd.grad(sum(o.sin().sum() for o in outputs), (x, v)) for outputs in (got, want)]
    for a, e in zip(*gradients):
        torch.testing.assert_close(a, e, msg=lambda m: f"{neuron}, gradient through vmap: {m}")


@pytest.mark.filterwarnings("error:There is a performance drop")
@every_neuron
def test_vmap_is_one_call_forward_and_one_backward(neuron, device):
    x = random_x(neuron, 5, (3, 4), torch.float64, device)  # a step has two dimensions, the second is mapped
    op, more = operator(neuron), [torch.zeros((), dtype=x.dtype, device=device)] if neuron == "plif" else []
    with Calls() as forward:
        torch.func.vmap(lambda one: op(one, *more)[0], in_dims=2, out_dims=2)(x)
    assert [(name, list(args[0].shape)) for name, args, _ in forward.seen] == [(f"{neuron}_forward", [5, 4, 3])]

    leaf = x.clone().requires_grad_()
    spikes = op(leaf, *more)[0]
    upstream = torch.randn(6, *spikes.shape, dtype=x.dtype, device=device)

    def gradient(g):
        return torch.autograd.grad(spikes, leaf, g, retain_graph=True)[0]

    with Calls() as backward:
        got = torch.func.vmap(gradient)(upstream)
    assert [(name, list(args[0].shape)) for name, args, _ in backward.seen] == [(f"{neuron}_backward", [5, 6, 3, 4])]
    torch.testing.assert_close(got, torch.stack([gradient(g) for g in upstream]))


def test_vmap_over_many_models(device):
    """Maps w and tau over models with one x; tau is tested with scalars and tensors too."""
    x = random_x("plif", 8, (3, 5), torch.float32, device)
    w = torch.linspace(-1, 1, 4, device=device).requires_grad_()
    got = torch.func.vmap(lambda w: ops.plif(x, w))(w)
    want = unstacked(lambda w: ops.plif(x, w), (0,), w)
    assert all_equal(got, want)
    (a,), (e,) = (torch.autograd.grad(o[1].sum(), w) for o in (got, want))
    torch.testing.assert_close(a, e)

    tau, zero = torch.linspace(1.5, 4, 4 * 5, device=device).reshape(4, 5), torch.zeros((), device=device)
    lif = lambda tau: ops.lif(x, tau=tau, v_threshold=0.9, v_reset=zero)
    assert all_equal(torch.func.vmap(lif)(tau), unstacked(lif, (0,), tau))


# --- autocast ------------------------------------------------------------------------------------------------------


@every_neuron
def test_under_autocast_x_keeps_its_type(neuron, device):
    low = torch.bfloat16 if device.type == "cpu" else torch.float16
    for dtype in (torch.float32, low):
        inputs = sample(neuron, device, dtype=dtype)
        states = random_states(neuron, SHAPE, torch.float32, device)
        for v, w in ((None, None), states):
            inputs.v, inputs.w = v, w
            expected = call(neuron, inputs, Options())
            with torch.autocast(device.type, dtype=low):
                results = call(neuron, inputs, Options())
            for a, e in zip(results, expected):
                assert a.dtype == e.dtype and torch.equal(a, e), f"{neuron} {dtype}"
            assert results[0].dtype == dtype and results[1].dtype == torch.float32


# --- common usage of PyTorch ---------------------------------------------------------------------------------------


def test_a_checkpointed_segment_has_the_same_gradient(device):
    from torch.utils.checkpoint import checkpoint

    x = random_x("lif", 8, (5,), torch.float32, device).requires_grad_()
    gradients = [torch.autograd.grad(f(x).sum(), x)[0]
                 for f in (lambda x: ops.lif(x)[0], lambda x: checkpoint(lambda x: ops.lif(x)[0], x, use_reentrant=False))]
    assert torch.equal(*gradients)


def test_the_same_tensor_may_be_two_arguments(device):
    x = random_x("qif", 8, (5,), torch.float64, device)
    same = torch.tensor(-0.1, dtype=torch.float64, device=device)
    compare("qif", Inputs(x, params=dict(v_rest=same.clone(), v_reset=same.clone())), Options())
    shared = same.clone().requires_grad_()
    apart = [same.clone().requires_grad_() for _ in range(2)]
    (together,) = torch.autograd.grad(ops.qif(x, v_rest=shared, v_reset=shared)[1].sum(), shared)
    parts = torch.autograd.grad(ops.qif(x, v_rest=apart[0], v_reset=apart[1])[1].sum(), apart)
    torch.testing.assert_close(together, sum(parts))
