"""Random inputs, the call of an operator, and its comparison with the reference."""

import io
import os
import zlib
from dataclasses import dataclass, field
from itertools import product
from typing import Optional

import pytest
import torch
from reference import NEURONS, SURROGATES, run
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
HALF = (torch.float16, torch.bfloat16)

# Bounds relative to the largest value.
BOUND = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}

# A value within this distance of the threshold may be on either side. Half types have float32 states, so the bound is not larger.
WINDOW = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-5, torch.bfloat16: 1e-5}
EXCLUDED_SHARE = 1e-3

RANGES = dict(
    tau=(2.2, 4.0), v_threshold=(0.8, 1.2), v_reset=(-0.2, 0.2), v_rest=(-0.2, 0.1), v_c=(0.6, 1.0), a0=(0.3, 0.5),
    delta_t=(0.8, 1.2), theta_rh=(0.7, 0.9), w_rest=(-0.2, 0.2), tau_w=(2.2, 4.0), a=(0.05, 0.4), b=(0.05, 0.4),
    w=(-1.0, 1.0), decay=(0.3, 0.7),
)

# None is a default value or a short binary fraction, so that half-precision inputs are never exactly at the threshold.
NUMBERS = dict(
    tau=2.9, v_threshold=0.97, v_reset=0.03, v_rest=-0.07, v_c=0.87, a0=0.43, delta_t=1.1, theta_rh=0.77, w_rest=0.13,
    tau_w=2.7, a=0.23, b=0.17, decay=0.63,
)


def state_dtype(dtype):
    return torch.float32 if dtype in HALF else dtype


def operator(neuron):
    return getattr(torch.ops.spikeforge, neuron)


@dataclass
class Options:
    soft: bool = False
    decay_input: bool = True
    detach_reset: bool = False
    surrogate: str = "sigmoid"
    surrogate_args: tuple = ()
    spiking: bool = True

    def reference(self):
        return dict(vars(self))

    def operator(self, neuron):
        options = dict(vars(self))
        del options["soft"]
        if not NEURONS[neuron].has_decay_input:
            del options["decay_input"]
        return options


# The arguments of lif_forward and lif_backward that are not tensors.
LOWERED_LIF = dict(
    decay_input=True, hard_reset=True, detach_reset=False, surrogate="sigmoid", surrogate_args=[], spiking=True, store_v=False,
)


@dataclass
class Inputs:
    x: torch.Tensor
    v: Optional[torch.Tensor] = None
    w: Optional[torch.Tensor] = None  # the second state
    params: dict = field(default_factory=dict)  # scalars or tensors; missing ones have their defaults

    def tensors(self):
        named = dict(x=self.x, v=self.v, w0=self.w, **self.params)
        return {name: value for name, value in named.items() if torch.is_tensor(value)}

    def map(self, change):
        """Returns the same inputs with every tensor changed."""
        named = {name: change(name, value) for name, value in self.tensors().items()}
        params = {name: named.get(name, value) for name, value in self.params.items()}
        return Inputs(named["x"], named.get("v"), named.get("w0"), params)


STEPS, SHAPE = 11, (2, 3, 5)


def sample(neuron, device, tensors=False, states=True, gradients=False, dtype=torch.float32):
    """Returns random inputs: with v and w if `states`, and with all parameters as tensors if `tensors`."""
    params = random_parameters(neuron, SHAPE, "per channel", dtype, device) if tensors else numbers(neuron, (), dtype, device)
    inputs = Inputs(random_x(neuron, STEPS, SHAPE, dtype, device), params=params)
    if states:
        inputs.v, inputs.w = random_states(neuron, SHAPE, dtype, device)
    return inputs.map(lambda name, t: t.requires_grad_(gradients))


def prepare_call(neuron, inputs, options, store_v=False):
    """Returns the overload for the parameters (scalars only, or tensors), and its positional and keyword arguments."""
    params = dict(inputs.params)
    if options.soft:
        params["v_reset"] = None
    states = [inputs.v] + ([inputs.w] if NEURONS[neuron].has_w else [])
    weight = [params.pop("w")] if neuron == "plif" else []
    overload = operator(neuron).default
    if any(torch.is_tensor(value) for value in params.values()):
        overload = operator(neuron).tensor
        params.setdefault("v_reset", NEURONS[neuron].params["v_reset"])
        dtype = state_dtype(inputs.x.dtype)
        for name, value in params.items():
            if isinstance(value, (int, float)):
                params[name] = torch.tensor(value, dtype=dtype, device=inputs.x.device)
    return overload, (inputs.x, *weight, *states), dict(params, **options.operator(neuron), store_v=store_v)


def call(neuron, inputs, options, store_v=False):
    overload, args, kwargs = prepare_call(neuron, inputs, options, store_v)
    return overload(*args, **kwargs)


class Calls(TorchDispatchMode):
    """Records the library's operators that are called below autograd: name, arguments, keyword arguments."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "spikeforge":
            self.seen.append((func._opname, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def count(self, name):
        return [seen for seen, *_ in self.seen].count(name)


def saved_and_loaded(module, package=torch.jit):
    """Saves and loads a TorchScript module, or a program of torch.export."""
    file = io.BytesIO()
    package.save(module, file)
    file.seek(0)
    return package.load(file)


# --- random inputs -------------------------------------------------------------------------------------------------


def uniform(shape, low, high, dtype, device):
    return (low + (high - low) * torch.rand(shape, dtype=torch.float64)).to(dtype).to(device)


# Uniform inputs for the three neurons whose voltage diverges when it is large, which a soft reset does not prevent. The ranges are
# wide enough that most steps are contractions; otherwise rounding errors in float32 would grow.
UNIFORM_DRIVE = dict(qif=(-1.8, 2.6), eif=(-1.8, 1.8), izhikevich=(-1.8, 2.3))
NORMAL_DRIVE = dict(integrate_and_fire=(0.45, 0.5), lif=(0.7, 1.0), plif=(0.7, 1.0), adaptive_lif=(0.6, 0.8))


def random_x(neuron, steps, shape, dtype, device):
    """Returns an input for which the neuron fires occasionally."""
    if neuron in UNIFORM_DRIVE:
        return uniform((steps, *shape), *UNIFORM_DRIVE[neuron], dtype, device)
    mean, deviation = NORMAL_DRIVE[neuron]
    return (mean + deviation * torch.randn(steps, *shape, dtype=torch.float64)).to(dtype).to(device)


KINDS = ("0-d", "per channel", "per neuron")


def parameter_shape(kind, shape):
    """Returns the shape of a parameter for neurons of shape [batch, channel, ...]."""
    if kind == "0-d":
        return ()
    if kind == "per channel":
        return (shape[1], *(1 for _ in shape[2:]))
    return tuple(shape)


def random_parameters(neuron, shape, kind, dtype, device):
    params = {
        name: uniform(parameter_shape(kind, shape), *RANGES[name], dtype, device) for name in NEURONS[neuron].params
    }
    if dtype in HALF:  # float32, and not a short binary fraction, so that sums of such fractions never equal it
        params["v_threshold"] = ((params["v_threshold"].float() * 128).round() + 1 / 3) / 128
    return params


def random_states(neuron, shape, dtype, device):
    v = uniform(shape, -0.5, 0.9, dtype, device)
    return v, uniform(shape, -0.3, 0.3, dtype, device) if NEURONS[neuron].has_w else None


def numbers(neuron, shape=(), dtype=torch.float32, device="cpu"):
    """Returns the parameters as scalars; plif's w, always a tensor, is 0-d."""
    params = {name: NUMBERS[name] for name in NEURONS[neuron].params if name in NUMBERS}
    if neuron == "plif":
        params["w"] = uniform((), *RANGES["w"], dtype, device)
    return params


def forms(neuron):
    """Yields both resets, attached and detached, with both values of decay_input if it exists; and a name."""
    decays = (True, False) if NEURONS[neuron].has_decay_input else (True,)
    for soft, detach_reset, decay_input in product((False, True), (False, True), decays):
        yield dict(soft=soft, detach_reset=detach_reset, decay_input=decay_input)


def form_name(form):
    words = ["soft" if form["soft"] else "hard"]
    words += ["detach"] if form["detach_reset"] else []
    words += [] if form["decay_input"] else ["no decay_input"]
    return " ".join(words)


FORMS = [
    (neuron, form, f"{neuron}-{form_name(form).replace(' ', '-')}") for neuron in NEURONS for form in forms(neuron)
]


def some_of(items, device, *case):
    """Returns every fourth item, offset by `case`; on the CPU in long tests, every second. On a GPU each form needs a compiled kernel."""
    every = 2 if device.type == "cpu" and os.environ.get("SPIKEFORGE_ALL_TESTS") == "1" else 4
    return list(items)[zlib.crc32(repr(case).encode()) % every :: every]


def arguments_of(surrogate, dtype):
    """Returns other arguments, and the defaults unless they are too steep for the type."""
    known = SURROGATES[surrogate]
    return [known.other] if known.steep and dtype != torch.float64 else [(), known.other]


# --- comparison ----------------------------------------------------------------------------------------------------


class Tally:
    """Counts the values excluded because they are too near the threshold, and how often the neurons fired."""

    def __init__(self):
        self.excluded = self.steps = self.spikes = 0

    def finish(self):
        share = self.excluded / max(self.steps, 1)
        rate = self.spikes / max(self.steps, 1)
        print(f"excluded {share:.2e} of {self.steps} element-steps; {rate:.0%} of them fired")
        assert share < EXCLUDED_SHARE, f"{share:.2%} of the steps are too near to the threshold to be compared"
        return rate


def near_a_jump(h, threshold, options, window):
    """Finds where a rounding error may change a spike, or may cross a jump of the surrogate's gradient."""
    surrogate = SURROGATES[options.surrogate]
    jumps = set(surrogate.jumps(*(options.surrogate_args or surrogate.defaults)))
    if options.spiking:
        jumps.add(0.0)
    near = torch.zeros_like(h, dtype=torch.bool)
    for jump in jumps:
        near |= (h - threshold - jump).abs() < window
    return near


def assert_within(name, actual, expected, bound, scale=None):
    assert actual.shape == expected.shape, f"{name} has shape {list(actual.shape)}, expected {list(expected.shape)}"
    if expected.numel() == 0:
        return
    assert expected.isfinite().all(), f"{name}: the reference is not finite, choose other inputs"
    largest = torch.finfo(actual.dtype).max
    too_large = expected.abs() > largest
    assert (actual[too_large].abs() >= largest).all(), f"{name}: what is too large for {actual.dtype} is not infinite"
    actual, expected = (t.masked_fill(too_large, 0) for t in (actual, expected))
    scale = expected.abs().max() if scale is None else scale
    error = (actual.double() - expected).abs().max()
    assert error <= bound * scale, (  # false for NaN
        f"{name}: error {error.item():.3e} is {(error / scale).item():.3e} of its maximum {scale.item():.3e}; "
        f"the bound is {bound:.0e}"
    )


def reduce_to(gradient, shape):
    """Sums a gradient per neuron to the shape of a parameter that was broadcast."""
    return gradient.sum_to_size(shape)


def gradients(outputs, upstream, leaves):
    """Returns a gradient for each leaf, or None if no output depends on it."""
    reached = [(out, g.to(out)) for out, g in zip(outputs, upstream) if out.requires_grad]
    if not reached:
        return [None] * len(leaves)
    outs, gs = zip(*reached)
    return torch.autograd.grad(outs, leaves, gs, allow_unused=True)


def compare(neuron, inputs, options, *, store_v=False, needs_grad=None, used=(0, 1, 2), tally=None, case=""):
    """Compares one call, forward and backward, with the reference: spikes, states, and the gradient of every tensor.

    The loss depends on the results that `used` lists; the upstream gradients of the others are undefined.

    Neurons too near a jump have an upstream gradient of zero, so that the gradients of all other neurons, and the sums
    over neurons, are compared completely.
    """
    tally = tally or Tally()
    dtype = inputs.x.dtype
    shape = inputs.x.shape[1:]
    names = list(inputs.tensors()) if needs_grad is None else list(needs_grad)
    case = f"{neuron} {options} store_v={store_v} {dtype} {inputs.x.device} {case}\n"

    # Parameters are expanded before they become leaves, so that they have one gradient per neuron.
    expand = lambda name, t: t.detach().double().cpu().expand(t.shape if name == "x" else shape).clone()
    wide = inputs.map(lambda name, t: expand(name, t).requires_grad_(name in names))
    expected = run(neuron, wide.x, wide.v, wide.w, params=wide.params, **options.reference())

    near = near_a_jump(expected.h.detach(), expected.threshold.detach(), options, WINDOW[dtype])
    downstream = near.cumsum(0) > 0
    touched = near.any(0)
    tally.excluded += int(downstream.sum())
    tally.steps += near.numel()
    tally.spikes += int((expected.spikes > 0.5).sum())

    leaves = inputs.map(lambda name, t: t.detach().clone().requires_grad_(name in names))
    results = call(neuron, leaves, options, store_v)
    wanted = expected.outputs(store_v)
    assert len(results) == len(wanted), f"{case}{len(results)} results, expected {len(wanted)}"

    labels = ("spikes", "v", "w")
    for label, actual, reference in zip(labels, results, wanted):
        dtype_wanted = dtype if label == "spikes" else state_dtype(dtype)
        assert actual.dtype == dtype_wanted, f"{case}{label} is {actual.dtype}, expected {dtype_wanted}"
        assert actual.device == inputs.x.device, f"{case}{label} is on {actual.device}"
        assert actual.shape == reference.shape, f"{case}{label} has shape {list(actual.shape)}"
        out = downstream if reference.dim() == near.dim() else touched
        a, e = actual.detach().double().cpu()[~out], reference.detach()[~out]
        if label == "spikes" and options.spiking:
            wrong = int((a != e).sum())
            assert wrong == 0, f"{case}{wrong} of {a.numel()} spikes differ from the reference"
        else:
            assert_within(case + label, a, e, BOUND[actual.dtype])

    if not names:
        return
    upstream = []
    for actual in results:
        g = (1 + 0.5 * torch.randn(actual.shape, dtype=torch.float64)).to(actual.dtype)
        g[(slice(None),) * (g.dim() - len(shape)) + (touched,)] = 0
        upstream.append(g)
    for label, actual, reference in zip(labels, results, wanted):
        assert actual.requires_grad or not reference.requires_grad, f"{case}{label} does not require a gradient"
    results, wanted, upstream = ([each[i] for i in used if i < len(results)] for each in (results, wanted, upstream))
    got = gradients(results, upstream, [leaves.tensors()[name] for name in names])
    want = gradients(wanted, upstream, [wide.tensors()[name] for name in names])
    for name, actual, reference in zip(names, got, want):
        leaf = leaves.tensors()[name]
        label = f"{case}the gradient of {name}"
        if reference is None:
            reference = torch.zeros_like(wide.tensors()[name])
            actual = torch.zeros_like(leaf) if actual is None else actual
        assert actual is not None, f"{label} is missing"
        assert actual.dtype == leaf.dtype, f"{label} is {actual.dtype}, its argument is {leaf.dtype}"
        # The error of a sum is relative to the size of its terms, which may cancel.
        scale = reduce_to(reference.abs(), leaf.shape).max() if leaf.numel() else None
        bound = max(BOUND[leaf.dtype], BOUND[state_dtype(dtype)])
        assert_within(label, actual.cpu(), reduce_to(reference, leaf.shape), bound, scale)


def all_equal(actual, expected):
    return len(actual) == len(expected) and all(map(torch.equal, actual, expected))


def weighted(y):
    """Returns a loss in which each element of y has a different weight."""
    return (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype, device=y.device).view_as(y)).sum()


def random_gradients(results, leaves, seed=0, retain_graph=True):
    """Returns gradients for random upstream gradients, with zeros for leaves without a gradient."""
    generator = torch.Generator().manual_seed(seed)
    upstream = [torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r) for r in results]
    pairs = [(r, u) for r, u in zip(results, upstream) if r.requires_grad]
    results, upstream = zip(*pairs)
    found = torch.autograd.grad(results, leaves, upstream, retain_graph, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves)]


def assert_close(label, actual, expected, bound=1e-9):
    """Compares relative to the largest finite number; infinities and NaN must be at the same positions."""
    assert actual.shape == expected.shape, f"{label} has shape {list(actual.shape)}, not {list(expected.shape)}"
    scale = torch.nan_to_num(expected.double(), posinf=0, neginf=0).abs().max().clamp(min=1e-30)
    close = torch.isclose(actual.double(), expected.double(), rtol=0, atol=bound * scale.item(), equal_nan=True)
    assert close.all(), f"{label} differs by {(actual - expected).abs().max()}, of at most {scale}"


# --- errors --------------------------------------------------------------------------------------------------------


def refused(error, words, function, *args, **kwargs):
    """Checks that the first line of the error contains all the words, and that the tensor arguments are unchanged."""
    tensors = [a for a in (*args, *kwargs.values()) if torch.is_tensor(a) and a.layout == torch.strided and not a.is_meta]
    before = [(t.clone(), t._version, t.stride()) for t in tensors]
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    message = str(caught.value).splitlines()[0]
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    for t, (value, version, stride) in zip(tensors, before):
        torch.testing.assert_close(t, value, rtol=0, atol=0, equal_nan=True)
        assert t._version == version and t.stride() == stride and t.grad is None, "an argument was changed"
    return message
