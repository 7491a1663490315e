"""The docstrings of the operators after their summary line: equations, arguments, results, errors, sources.

They are docstrings in Google's style. `write_stubs` appends them to its DESCRIPTIONS.
"""

# --- shared arguments

DTYPES = "float16, bfloat16, float32 or float64"
SAMPLES = """
    lengths: the number of steps of each sample, int32 or int64 [B]; docs/operators.md defines the results after its end.
    start: true where a sample restarts before the step, bool [T, B]."""

# --- predefined neurons

FANG = "Fang et al., Science Advances 9, eadi1480 (2023)"
ARGUMENTS = {
    "tau": "time constant in steps, > 0",
    "decay_input": "divide x by tau too",
    "v_c": "the critical voltage, above which v diverges",
    "a0": "coefficient of the quadratic term",
    "delta_t": "sharpness of the exponential, > 0",
    "theta_rh": "the rheobase threshold, above which the exponential term dominates",
    "v_rest": "the resting voltage",
    "w_rest": "the default initial value of w",
    "tau_w": "time constant of w in steps, > 0",
    "a": "coupling of w to v",
    "b": "increment of w at a spike",
    "w": "1 / tau = sigmoid(w): a tensor that broadcasts against shape",
    "decay": "the factor of a in each step, 0 to 1",
}


STATES = {
    "v": "voltage before the first step, [*shape]; by default v_reset, or 0 under soft reset",
    "w": "recovery before the first step, [*shape]; by default w_rest",
    "a": "adaptation of the threshold before the first step, [*shape]; by default 0",
}


def neuron(equations, parameters, source=FANG, states="v", **changed):
    words = ARGUMENTS | changed
    starts = "\n".join(f"    {name}: {STATES[name]}." for name in states)
    own = "\n".join(f"    {name}: {words[name]}." for name in parameters)
    return f"""
{equations} The neuron fires if h >= v_threshold; then v is v_reset, or under soft reset h minus the threshold.

Args:
    x: input, [T, *shape], of {DTYPES}.
{starts}
{own}
    v_threshold: the threshold.
    v_reset: the voltage after a spike; None is soft reset. v leaks towards v_reset, or towards 0 under soft reset.
    detach_reset: no gradient flows through the spike in the reset.
    surrogate: name of the spike's derivative (docs/surrogates.md).
    surrogate_args: the surrogate's arguments, in the order of docs/surrogates.md; [] for the defaults.
    spiking: False replaces the step function by the surrogate's primitive, which makes the operator smooth.
    store_v: return the states after each step, [T, *shape], instead of the last ones, [*shape].
    bits: 1 also writes the spikes as bits, so that a following `linear` or `convolution` does not pack them in training; 0 if\
 there is none.{SAMPLES}

Parameters are scalars, or tensors that broadcast against shape and receive gradients.

Raises:
    ValueError: if a shape, a value or a surrogate is not legal; the message names the argument.
    TypeError: if a dtype is not supported; states are float32 for half types.

Source: {source}."""


LIF_CHARGE = "h = v + (x - (v - v_reset)) / tau, or without `decay_input` h = v - (v - v_reset) / tau + x."

# --- neurons written as text

TEXT_CALL = """
    neuron: the neuron text.
    inputs: each [T, *shape]{shape}, of one floating-point dtype.
    states: each [*shape]; [] starts all of them at the initial values in the text.
    params: tensors that broadcast against shape, in the order of the text; each receives a gradient."""
TEXT_BITS = """
    bits: also save the first output in this number of bits per element, 1 or 4 (sums up to 15), so that a following `linear` or\
 `convolution` does not pack it in training; 0 if there is none."""
LAST_STATES = """
    last_states: False: the last states are not needed; the list of states is empty, and a GPU does not write them. Not with `store_states`."""
TEXT_RESULTS = """
    store_states: return the states after each step instead of the last ones.

Raises:
    ValueError: if the text is not legal (the message has the line), or if the number or a shape of tensors does not match it.
    TypeError: if dtypes do not match."""

NORM = """
    weight: the factor of the normalized value, [C]; None is 1.
    bias: added afterwards, [C]; None is 0."""
RESIDUAL = """
    residual: a tensor r of the shape of x, combined with the first output s or with x.
    residual_mode: the first output is s + r for "add", s r for "and", (1 - s) r for "iand"; for "membrane" the neuron
        reads the sum of the normalised x and r, which is an additional, last output.
    channel_dim: any dimension of x except time.
    eps: added to the variance, 0 or more."""

# --- events

MATRIX_SIZES = """
    rows: of the stored matrix.
    cols: of the stored matrix."""
UNCHECKED = """
    unchecked: skip the check of the indices at the first call with the matrix; a wrong index then reads or writes invalid memory."""
ROWS_OF = "only rows with an event are read"
PRODUCT = """
A e sums for each row the entries at its nonzeros; with `transpose`, e A scatters from the rows, and {read}.

Args:
    weights: [nonzeros], or a single element that all nonzeros share; {dtypes}.
    indices: int32{indices}.{indptr}
    {entries}: {shape}; with `transpose`, [..., rows{n}]; {boolean}{dtypes}, independent of the dtype of the weights.
    {sizes}
    transpose: e A instead of A e.{graded}
    deterministic: give the same bits in every call, including on GPUs, whose order of sums is otherwise undefined.{unchecked}

Returns:
    [..., rows{n}], or with `transpose` [..., cols{n}], of the weights' dtype. Gradients reach weights and {entries}.

Raises:
    ValueError: if shapes do not match, or an index is out of bounds (on a GPU at the next call).
    TypeError: for other dtypes, and for tensors that are not dense."""
GRADED = "\n    graded: an event counts its value instead of 1."


def product(csr, events, matrix):
    entries = "events" if events else "matrix" if matrix else "vector"
    return PRODUCT.format(
        read=ROWS_OF if events else "all rows are read",
        indices=" [nonzeros], the columns of row 0, then those of row 1, in any order" if csr else ", the columns, [rows, nonzeros per row]",
        indptr="\n    indptr: int32 or int64 [rows + 1], the start of each row." if csr else "",
        entries=entries, shape="[..., cols, n]" if matrix else "[..., cols]", n=", n" if matrix else "",
        sizes=(MATRIX_SIZES if csr else "\n    cols: of the stored matrix.").strip(), graded=GRADED if events else "",
        boolean="bool, " if events else "", dtypes=DTYPES, unchecked=UNCHECKED,
    )


DELAYED = """
The input of step t is in buffer[t % slots]; an event of step t through a connection of delay d is added to
buffer[(t + d) % slots].

Args:
    weights: [nonzeros], or a single element that all nonzeros share; float64, float32, float16 or bfloat16.
    indices: int32{indices}.{indptr}
    events: [*batch, cols], true or > 0; with `transpose`, [*batch, rows].
    delays: uint8 or int32, of the shape of indices or a single element, 0 to slots - 1.
    buffer: [slots, *batch, rows], or with `transpose` [slots, *batch, cols]; of the weights' dtype, float32 for half types.
    step: int64, 0-dimensional, on the CPU or the buffer's device.
{sizes}
    transpose: e A instead of A e.
    graded: an event counts its value instead of 1.
    deterministic: give the same bits in every call, including on GPUs, whose order of sums is otherwise undefined.{unchecked}
{end}
Raises:
    ValueError: if shapes do not match, or an index, a delay or a step is out of bounds (on a GPU at the next call)."""
DELAYED_NEW = """
Returns:
    The new buffer. Gradients reach weights, events (straight through) and buffer.
"""


def delayed(csr, in_place=False):
    return DELAYED.format(
        indices=" [nonzeros], the columns of row 0, then those of row 1" if csr else ", the columns, [rows, nonzeros per row]",
        indptr="\n    indptr: int32 or int64 [rows + 1], the start of each row." if csr else "",
        sizes=(MATRIX_SIZES if csr else "\n    cols: of the stored matrix.").strip("\n"), unchecked=UNCHECKED,
        end="" if in_place else DELAYED_NEW,
    )


DRAWN_DELAYS = f"""
The matrix is that of `jit_csrmv` with the same seed; each nonzero also has a delay, drawn from a hash of its position.

Args:
    weights: the parameters of the law: [1] for "constant", [2] for "uniform" (low, high) and "normal" (mean, standard deviation); {DTYPES}.
    events: [*batch, cols]; with `transpose`, [*batch, rows]; {DTYPES}, or bool unless `values` is "number".
    buffer: [slots, *batch, rows], or with `transpose` [slots, *batch, cols]; of the weights' dtype, float32 for half types.
    step: int64, 0-dimensional, on the CPU or the buffer's device.
    delays: the parameters of the law: [d] for "constant", [first, last] for "uniform" (whole numbers, both ends included), [mean,
        standard deviation] for "normal" (rounded, and clipped to the slots).{MATRIX_SIZES}
    prob: the probability of each entry to be a nonzero, 0 to 1.
    seed: the seed of the matrix.
    law: the law of the weights: "constant", "uniform" or "normal".
    delay_law: the law of the delays: "constant", "uniform" or "normal".
    transpose: e A instead of A e.
    values: the interpretation of entries: "event" (1 if > 0), "graded" (the value if > 0) or "number" (the value).
    deterministic: give the same bits in every call, including on GPUs, whose order of sums is otherwise undefined.

Raises:
    ValueError: if a probability, a law, a delay or a shape is not legal."""
TAKE = """
Args:
    buffer: [slots, *batch, neurons], float32 or float64.
    step: int64, 0-dimensional, on the CPU or the buffer's device.

Raises:
    ValueError: if the step is below 0, or shapes do not match."""

RANDOM = """
Each entry of the [rows, cols] matrix is a nonzero with probability `prob`. `seed` determines the matrix, which is
the same on every device and drawn again in each call.

Args:
    weights: the parameters of the law: [1] for "constant", [2] for "uniform" (low, high) and "normal" (mean, standard deviation); {dtypes}.
    events: [..., cols{n}]; with `transpose`, [..., rows{n}]; {dtypes}, or bool unless `values` is "number".{sizes}
    prob: the probability of each entry to be a nonzero, 0 to 1.
    seed: the seed of the matrix.
    law: the law of the nonzeros, "constant", "uniform" or "normal". Their positions do not depend on it.
    transpose: e A, [..., rows{n}] in and [..., cols{n}] out.
    values: the interpretation of entries: "event" (1 if > 0), "graded" (the value if > 0) or "number" (the value).
    deterministic: give the same bits in every call, including on GPUs, whose order of sums is otherwise undefined.

Returns:
    [..., rows{n}], or with `transpose` [..., cols{n}], of the weights' dtype. Gradients reach weights and events.

Raises:
    ValueError: if a probability, a law or a shape is not legal.
    TypeError: for other dtypes, and for tensors that are not dense."""


def random(n):
    return RANDOM.format(n=n, sizes=MATRIX_SIZES, dtypes=DTYPES)


STDP = """
For every {line} with an event, w_ij += trace_{other} for its nonzeros; these weights are then clipped to [w_min, w_max].

Args:
    weights: [nonzeros]; {dtypes}.{matrix}
    events: [{size}], an event if true or > 0; bool, {dtypes}.
    trace: [{other_size}], the increments of the weights; of the weights' dtype, or float32 for half types.{sizes}
    w_min: the lower bound of changed weights; None sets no bound.
    w_max: the upper bound of changed weights; None sets no bound.{unchecked}

There are no gradients. {writes}

Raises:
    ValueError: if shapes do not match, if all nonzeros share a single weight, if w_min is above w_max, or if an index is out of\
 bounds (on a GPU at the next call).
    TypeError: for other dtypes."""
ROWS = """
    indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
    indptr: int32 or int64 [rows + 1], the start of each row."""
COLUMNS = """
    indices: of the transpose, int32 [nonzeros]: a result of `csr_transpose` for the CSR matrix, computed once.
    indptr: of the transpose, [cols + 1], also a result of `csr_transpose`.
    slots: the index of the weight of each nonzero of the transpose, int64 [nonzeros], also a result of `csr_transpose`."""


def stdp(pre, in_place):
    return STDP.format(
        line="row i" if pre else "column j", other="j" if pre else "i", size="rows" if pre else "cols",
        other_size="cols" if pre else "rows",
        matrix=ROWS if pre else COLUMNS, sizes=MATRIX_SIZES, unchecked=UNCHECKED, dtypes=DTYPES,
        writes="The weights are changed in place." if in_place else "The given weights are not changed.",
    )


def plastic(in_place):
    return f"""
Args:
    rule: synapse text, docs/plasticity.md.
    states: [nonzeros] each, in the order of the rule: weights of any floating dtype ({DTYPES}), others of the dtype of the arithmetic. If\
 one decays, int32 [nonzeros] follows, the last updated step of each nonzero.
    traces: [rows] or [cols] each, in the order of the rule, of the dtype of the arithmetic.{ROWS}
    by_columns: the result of `csr_transpose`, computed once, for rules with `on post`; else [].
    pre: [rows], an arriving spike if true or > 0; bool, {DTYPES}.
    post: [cols], a spike if true or > 0; bool, {DTYPES}.
    signals: a 0-dimensional tensor, or [cols], or None, for each signal of the rule; [] for none.
    step: int64, 0-dimensional, the number of the step; for rules with a state that decays.
    params: a scalar for each parameter of the rule.{MATRIX_SIZES}
    sends: return the sums of the arriving weights for the postsynaptic neurons.
    refresh: only update states that decay to this step.{UNCHECKED}

Returns:
    {"" if in_place else "The new states and traces, and "}the sums that arrive, [cols], or an empty tensor without `sends`.

There are no gradients, and no batch.{" States and traces are changed in place." if in_place else ""} On a GPU the order of\
 the sums is undefined.

Raises:
    ValueError: if the text is not legal (the message has line and column), shapes do not match, or an index is out of bounds.
    TypeError: for other dtypes.
    NotImplementedError: on a GPU for a rule of more than 8 states, 16 traces, 32 parameters or 8 signals."""


# --- Loihi

LOIHI_NEURON = """
Args:
    x: [T, *shape], where 1 is 64 units of the voltage: int32, or float32 or float64 that hold whole numbers, up to 2**17.
    u: current before the first step, [*shape], of the type of x; by default 0.
    v: voltage before the first step, [*shape], of the type of x; by default 0.{state}
    du: u decays by (du + 1) / 4096 in each step, -1 to 4095; -1 is no decay.
    dv: v decays by dv / 4096 in each step, 0 to 4096.
    bias_mant: the mantissa of the bias, which is bias_mant * 2**bias_exp, -4096 to 4095.
    bias_exp: the exponent of the bias, -31 to 7.
    {threshold}
    {extra}store_states: return the states after each step instead of the last ones.{samples}
    surrogate: for a floating-point x, the surrogate; its argument is the voltage above the threshold, in units of the threshold.
    surrogate_args: the surrogate's arguments, in the order of docs/surrogates.md; [] for the defaults.
    detach_reset: for a floating-point x, no gradient flows through the spike in the reset.

Parameters are all scalars, or all tensors that broadcast against shape, or a tensor `bias_mant` with scalars. For tensors, None\
 selects the default. Tensors are int32, or of the type of a floating-point x. For a floating-point x the results have its type,\
 the same values, and gradients, straight through rounding and wraps; integers have no gradients.

Raises:
    ValueError: if a value is out of its range.
    TypeError: for other dtypes.

Source: the fixed-point models of Lava (github.com/lava-nc/lava), which have the chip's bits."""


def loihi(ternary=False, extra="", state=""):
    threshold = (
        "vth_hi: the neuron emits 1 if v > 64 vth_hi, -131072 to 131072.\n"
        "    vth_lo: the neuron emits -1 if v < 64 vth_lo, -131072 to 131072." if ternary
        else "vth: the neuron fires if v > 64 vth, 0 to 131072."
    )
    return LOIHI_NEURON.format(threshold=threshold, extra=extra, state=state, samples=SAMPLES)


RESET = {
    "extra": "reset_interval: the number of steps between resets of u and v to 0, 1 or more.\n    reset_offset: the number of a step with a reset, counted from 1 and modulo `reset_interval`; u and v are 0 before it.\n    ",
    "state": "\n    phase: the number of completed steps modulo `reset_interval`, int32 [*shape]; by default 0.",
}
REFRACTORY = {
    "extra": "refractory_period: the number of steps in which v is held after a spike.\n    ",
    "state": "\n    wait: the number of remaining steps in which v is held, int32 [*shape]; by default 0.",
}
CONNECTION = """
Args:
    x: messages, [T, *batch, in]: int32, or float32 or float64 that hold whole numbers.
    {weight}
    buffer: the pending input, {buffer}, of the type of x; by default 0.
    weight_exp: sums are shifted to the left by it, or arithmetically to the right, -8 to 7.
    num_message_bits: the number of bits of a message; 0 if messages are spikes, so that any nonzero value counts as 1.

Returns:
    y [T, *batch, out], and the buffer after the last step. Sums are exact modulo 2**32. For a floating-point x and weights\
 of its type they have gradients: those of the product, straight through the shift.

Raises:
    ValueError: if a shape does not match, or a value is out of its range.
    TypeError: for other dtypes."""

# --- layers

NORMALIZATION_WEIGHT = """
    weight: [C], the weight of a normalization that follows. For channels with a negative weight the result is the minimum of a window,\
 which this normalization maps to the maximum."""
POOLING = """
Args:
    x: images with any dimensions before the channels, plain or channels last; the result has the same layout.
    kernel_size: rows and columns of a window, at most 256 elements.
    stride: from a window to the next, in rows and columns; [] for kernel_size.
    padding: the padding around an image, in rows and columns, {padding}; at most half of kernel_size.{dilation}
    ceil_mode: round the number of windows up instead of down; the last one may extend beyond the edge.{more}

A single number applies to both dimensions.

Raises:
    ValueError: if a window has more than 256 elements, or arguments do not match.
    TypeError: for a dtype other than {dtypes}, and for tensors that are not dense."""
PRODUCT_OF_SPIKES = """
Args:
    x: {x}, of {dtypes}; spikes 0 or 1, or counts up to 15 with `bits=4`.
    weight: {weight}.
    bias: [out], or None.{geometry}
    bits: the number of bits that are saved for each element of x, 1 or 4; 0 saves x itself.
    recompute: following operators do not save the result; it is recomputed in the backward pass.

Raises:
    ValueError: if shapes do not match, or, on the CPU, if a value does not fit in these bits. On a GPU such a value makes the\
 weight's gradient NaN.
    TypeError: for other dtypes of x, and for tensors that are not dense."""
GEOMETRY = """
    stride: a number for each spatial dimension, or one for all.
    padding: the zero padding, likewise.
    dilation: likewise.
    groups: the number of groups of channels."""

# The summary of each predefined neuron, and its details.
NEURONS = {
    "integrate_and_fire": ("Integrate-and-fire", neuron("h = v + x.", [])),
    "lif": ("Leaky integrate-and-fire", neuron(LIF_CHARGE, ["tau", "decay_input"])),
    "plif": ("Leaky integrate-and-fire with 1/tau = sigmoid(w),", neuron(LIF_CHARGE, ["w", "decay_input"])),
    "qif": ("Quadratic integrate-and-fire",
            neuron("h = v + (x + a0 (v - v_rest) (v - v_c)) / tau.", ["tau", "v_c", "a0", "v_rest"])),
    "eif": ("Exponential integrate-and-fire",
            neuron("h = v + (x + v_rest - v + delta_t exp((v - theta_rh) / delta_t)) / tau.",
                   ["tau", "delta_t", "theta_rh", "v_rest"])),
    "izhikevich": (
        "Izhikevich neuron with its recovery variable w,",
        neuron("h = v + (x + a0 (v - v_rest) (v - v_c) - w) / tau; next w = w + (a (h - v_rest) - w) / tau_w + b s.",
               ["tau", "v_c", "a0", "v_rest", "w_rest", "tau_w", "a", "b"], states="vw")),
    "adaptive_lif": (
        "Leaky integrate-and-fire whose threshold v_threshold + b a rises with each spike,",
        neuron("The charge h is that of `lif`. The threshold is v_threshold + b a, where next a = decay a + s.",
               ["tau", "decay_input", "decay", "b"], source="the charge of " + FANG, states="va",
               b="coefficient of a in the threshold")),
}
DETAILS = {name: details for name, (_, details) in NEURONS.items()} | {
    "run": f"""
Args:{TEXT_CALL.format(shape="")}{TEXT_BITS}
    scan: allow steps to be computed in parallel, for few neurons and a long sequence, with different rounding. The neuron must have
        1 to 4 states, and its next states must be affine in them.
    seed: for neurons that draw random numbers, an int64 of one element, on the CPU or x's device; equal seeds draw equal numbers. By
        default torch's generator draws it.
    offset: the number of the first step, as `seed`; by default 0.{SAMPLES}{TEXT_RESULTS}

Returns:
    The outputs, each [T, *shape], and the states.""",
    "recurrent_run": f"""
Before step t, inputs[into][t] + s[t - delay] @ w becomes the input number `into`, where s is the first output.

Args:{TEXT_CALL.format(shape=" = [T, *batch, H]")}
    w: [H, H]; w[i, j] is the weight from neuron i to neuron j.
    spikes: s before the first step, [delay, *batch, H], the oldest first; by default zeros.
    into: the input that the current is added to.
    delay: in steps, 1 or more.{SAMPLES}{TEXT_RESULTS}

Returns:
    The outputs, each [T, *batch, H], and the states.""",
    "sparse_recurrent_run": f"""
Before step t, inputs[into][t, ..., j] becomes its sum with w s[t - d, ..., i] over all connections i -> j of weight w and
delay d, where s is the first output. Nothing of the size of the connections is stored for a step.

Args:{TEXT_CALL.format(shape=" = [T, *batch, H]")}
    weights: [connections], or [1] for all, of the dtype of the inputs, or a half type with float32.
    indices: int32 [connections], the targets j, row after row: row i contains the connections from neuron i.
    indptr: int32 or int64 [H + 1], the offset of each row.
    delays: uint8 or int32, [connections] or [1], 1 to max_delay steps; checked on the CPU.
    spikes: s before the first step, [max_delay, *batch, H], the oldest first; by default zeros.
    max_delay: the largest delay.
    into: the input that receives the connections.
    values: "event", an output above 0 counts 1; "graded", it counts its value; "number", all outputs count.{SAMPLES}{TEXT_RESULTS}

Returns:
    The outputs, each [T, *batch, H], and the states.""",
    "online_linear": """
A neuron after x weight^T + bias, with traces in place of the preceding steps. docs/online.md derives them.

Args:
    neuron: the neuron text.
    x: [T, *batch, I], the steps of this call.
    weight: [N, I].
    bias: [N].
    states: before the call, each [*batch, N]; empty for the initial values in the text.
    params: the neuron's parameters, which broadcast against [*batch, N].
    traces: the traces that the preceding call returned; empty in the first call.
    rule: "eprop" or "ottt".
    into: the input that the product is added to.
    inputs: one [T, *batch, N] for each input of the neuron; empty if the product is the only input.
    learned: the indices of the parameters with traces under e-prop; by default those that require a gradient at this call.

Returns:
    The outputs, each [T, *batch, N]; the states; and the traces.

Raises:
    ValueError: if shapes do not match, or traces belong to another layer.
    NotImplementedError: for a neuron that draws random numbers.""",
    "delayed_linear": """
y[t] is the sum of weight[o, i] x[t - delay[o, i], i], and bias[o]. docs/delays.md describes the interpolation of fractional delays.

Args:
    x: [T, *batch, I].
    weight: [O, I].
    delay: in steps, [O, I] or, one for each input, [I]; clamped to 0 and max_delay.
    bias: [O].
    max_delay: the longest delay, 0 to 4096.
    interpolation: "linear", "triangle" or "gauss".
    width: the width of "triangle" and "gauss", in steps.
    past: the inputs of the preceding max_delay steps, [max_delay, *batch, I], the oldest first; by default zeros.

Returns:
    y, [T, *batch, O].

Source: Hammouamri, Khalfaoui-Hassani and Masquelier, ICLR 2024.""",
    "local_jacobian": """
The derivatives of a neuron's states after some steps with respect to the states before, and to the inputs. The results have no gradients.

Args:
    neuron: the neuron text.
    inputs: each [T, *shape].
    states: before the steps, each [*shape].
    params: broadcast against shape.
    into: the index of the input.
    of_params: the indices of the parameters.

Returns:
    dv_k / du_l for each pair of states, row after row, [*shape]; dv_k / dx[t] for each state, [T, *shape]; and dv_k / dp for
    each state of each parameter, [*shape].""",
    "with_eligibility": """
A state whose gradient reaches a leaf through a trace, d state / d leaf.

Args:
    state: [*batch, N].
    leaf: the trained tensor: a weight [N, I], or a tensor that broadcasts against the state.
    trace: [*batch, N, I] for a weight; with outer [*batch, I]; else [*batch, N] or [*batch, 1].
    outer: the trace is that of the inputs, the same for all neurons.

Returns:
    The state.""",
    "eligibility_gradient": """
Σ_b grad[b, n] trace[b, n, i], over the whole batch.

Args:
    grad: [*batch, N].
    trace: [*batch, N, I], of the type of grad.

Returns:
    [N, I].""",
    "advance_eligibility": """
e_k becomes the sum of transitions_kl e_l and of drives_k[t] x[t].

Args:
    traces: one for each state, [*batch, N, I]; empty for zeros.
    transitions: one for each pair of states, [*batch, N].
    drives: one for each state, [T, *batch, N]; without x [*batch, N].
    x: [T, *batch, I].

Returns:
    The traces.""",
    "trace_of_input": """
Neuron text of the response of a non-firing neuron's states to an input: run on x, its states are the traces of
rule="ottt".

Args:
    neuron: the neuron text.
    into: the index of the input.

Returns:
    The text.""",
    "batch_norm_run": f"""
The first input x becomes (x - mean) / sqrt(var + eps) * weight + bias, with one value per channel.

Args:{TEXT_CALL.format(shape="")}{NORM}
    mean: [C]; by default mean and var are those of x over all dimensions except the channels'.
    var: [C], given together with mean.{RESIDUAL}{TEXT_BITS}{LAST_STATES}{TEXT_RESULTS}

Returns:
    The outputs, the states, the mean and the variance.""",
    "batch_norm_run_tracked": f"""
Args:{TEXT_CALL.format(shape="")}
    running_mean: [C], updated in place with the mean of x.
    running_var: [C], updated in place with the unbiased variance of x.
    num_batches_tracked: int64, incremented in place.{NORM}{RESIDUAL}
    momentum: the weight of the new statistics in the running ones; None averages over all calls.{TEXT_BITS}{LAST_STATES}{TEXT_RESULTS}

Returns:
    The outputs and the states.""",
    "neuron_text": """
Args:
    neuron: the name of its operator, or ``cuba_lif``.
    spike: neuron text of the spike at u = H - v_threshold: ``spike(u, atan(2))``.
    params: the constants that are parameters of the text, in this order.
    names: the constants with a fixed value. For a constant that is also a parameter, the value is the initial value of a state.
        Without v_reset the reset is soft.
    numbers: the values of these constants.
    name: the name of the text; by default the neuron's.
    detach_reset: no gradient flows through the spike in the reset.
    decay_input: divide the input by tau too, for neurons with this option.
    divides: divide by time constants, while the operator multiplies by their reciprocals.

Raises:
    ValueError: if the neuron is unknown, a constant is missing, or the spike is not legal.""",
    "text_on_a_line": """
Args:
    neuron: the neuron text.

Raises:
    ValueError: if the text is not legal; the message has the line.

Inductor (torch 2.11) writes line breaks in an argument into code that does not parse: packages for GPUs need a text on one line.""",
    "print_cuda": """
Args:
    neuron: the neuron text.
    dtype: the dtype of the inputs.

Returns:
    The source of the kernels of the forward and the backward pass. The call needs no GPU.""",
    "lava_neuron": """
Args:
    name: "lif", "ternary_lif", "lif_reset" or "lif_refractory", whose parameters are du, dv, bias and vth (vth_hi and vth_lo), then interval\
 and offset, or period, and which fire strictly above the threshold; or "atrlif", "rf", "sigma", "delta", "sigma_delta" or\
 "sigma_delta_unit", whose names docs/loihi.md lists.

Raises:
    ValueError: for any other name.

Source: the floating-point models of Lava (github.com/lava-nc/lava).""",
    "channel_statistics": f"""
Args:
    x: a sequence [T, B, C, ...] of {DTYPES}.
    channel_dim: the dimension of the channels, any except time; negative values count from the end.

Returns:
    mean and var, [C], over all other dimensions; the variance is divided by the count. In float32 for half types.

Raises:
    ValueError: if x has no elements, or does not have this dimension.
    TypeError: for other dtypes, and for sparse tensors.""",
    "max_pool2d": POOLING.format(
        dilation="\n    dilation: from an element of a window to the next, in rows and columns.", more=NORMALIZATION_WEIGHT,
        dtypes=DTYPES, padding="which is never the maximum")
    + "\n\nIt saves one byte for each result; torch saves eight.",
    "max_pool2d_statistics": POOLING.format(
        dilation="", more=NORMALIZATION_WEIGHT, dtypes=DTYPES, padding="which is never the maximum")
    + """

Returns:
    y, the maxima; and the mean and the biased variance of all of x, [C], in float32 for half types; 0 and 1 if x is empty.

`batch_norm_run` of y with this mean and variance equals the pooling of its result for x. The backward pass reads x once.""",
    "max_pool2d_with_places": """
Args:
    x: images with any dimensions before the channels.
    windows: kernel_size, stride, padding and dilation, each for rows and columns: eight numbers.
    ceil_mode: round the number of windows up instead of down.
    weight: as in `max_pool2d`.

Returns:
    The maxima, and their positions as uint8, counted row by row in the window.

Raises:
    ValueError: if windows have more than 256 elements, or arguments do not match.
    TypeError: as for `max_pool2d`.""",
    "avg_pool2d": POOLING.format(
        dilation="", dtypes=DTYPES, padding="of zeros", more="\n    count_include_pad: include the padding in a mean.\n    divisor_override: divide sums by this number instead."),
    "linear": PRODUCT_OF_SPIKES.format(x="[..., in]", weight="[out, in]", geometry="", dtypes=DTYPES),
    "convolution": PRODUCT_OF_SPIKES.format(
        x="[B, C, ...] with 1 to 3 spatial dimensions", weight="[out, C / groups, *kernel]", geometry=GEOMETRY, dtypes=DTYPES),
    "pack_spikes": f"""
Args:
    x: values of {DTYPES}, dense in some order of its dimensions.
    bits: 1, for values 0 and 1; or 4, for 0 to 15.

Returns:
    The bits, uint8 [bytes], and whether all values were in this range, bool [].

Raises:
    ValueError: for other values of bits.
    TypeError: for other dtypes, and for tensors that are not dense.""",
    "unpack_spikes": """
Args:
    packed: the first result of `pack_spikes`.
    valid: its second result.
    size: the size of the result.
    stride: the stride of the result, that of a dense tensor.
    bits: the argument `bits` of `pack_spikes`.
    dtype: the dtype of the result.

Raises:
    ValueError: if the size does not match the packed elements.
    TypeError: for other dtypes.""",
    "event_csrmv": product(True, True, False), "event_csrmm": product(True, True, True),
    "csrmv": product(True, False, False), "csrmm": product(True, False, True),
    "event_ellmv": product(False, True, False), "event_ellmm": product(False, True, True),
    "ellmv": product(False, False, False), "ellmm": product(False, False, True),
    "event_csrmv_delayed": delayed(True), "event_csrmv_delayed_": delayed(True, True),
    "event_ellmv_delayed": delayed(False), "event_ellmv_delayed_": delayed(False, True),
    "jit_csrmv_delayed": DRAWN_DELAYS, "jit_csrmv_delayed_": DRAWN_DELAYS,
    "take_arrivals": TAKE, "take_arrivals_": TAKE,
    "jit_csrmv": random(""), "jit_csrmm": random(", n"),
    "event_frames": """
Events are the columns t, x, y and p. Sample b has the events offsets[b] to offsets[b + 1] - 1. A step is a window of time, or a\
 number of events; events before the first step and after the last one are skipped.

Values:
    count: the number of events of a pixel. normalised: the same, divided by the largest of the frame.
    binary: 1 if a pixel has events. bits: the same, as the int32 words of `pack_events`.
    voxel: the sum of max(0, 1 - |step - position|), where the position of an event is (t - start) / window. Without\
 `window`, the last event is at the last step (Zhu et al., CVPR 2019). With one channel, off events are subtracted.
    surface: exp(-(end of the step - t) / tau) of a pixel's last event t until then, 0 before the first one (Lagorce et al.,\
 TPAMI 2017).

Args:
    t: times in ticks of any clock; [events], of an integer type. In a sample, no event may be before the first one, unless\
 `start` is given.
    x: columns on the sensor, or units of a spike train; [events], of an integer type.
    y: rows on the sensor; [events], of an integer type, or None for row 0.
    p: polarities, 0 or -1 for off, 1 for on; [events], bool or of an integer type, or None.
    offsets: int64 [B + 1].
    size: channels (2: off and on events apart; 1: together), height and width of the sensor.
    steps: the number of steps.
    window: the ticks of a step, or its events with bins="count". By default, the time from the first to the last event\
 (for values="voxel" to the last step), or the number of events, in equal shares of whole ticks or events; the rest is skipped.
    start: the time of the first step, int64 [B], with a window; by default that of the sample's first event.
    bins: "time" or "count".
    values: the contents of a frame, see above.
    tau: of values="surface", in ticks.
    crop: height and width of a window on the sensor; events outside of it are skipped.
    origin: its first row and column, int64 [B, 2]; by default it is in the middle. It may reach beyond the sensor.
    flip: whether samples are flipped upside down, and left to right, bool [B, 2]; after the crop.
    downsample: the number of pixels per side that become one; after crop and flip.
    ignored: pixels whose events are skipped, such as hot pixels; bool [H, W], or [B, H, W].
    keep: false for events that are skipped, bool [events].
    dtype: of the result, a floating-point type; by default torch's.

Returns:
    [steps, B, channels, height, width]; for values="bits", int32 with ceil(width / 32) words.

Raises:
    ValueError: for wrong shapes and sizes, for offsets that do not ascend from 0 to the number of events, for an event that is\
 not on the sensor, before the first one of its sample, or of another polarity. On a GPU, which is not synchronised, such an\
 event is skipped, and a later call raises the error, except while a CUDA graph is captured.
    TypeError: for other dtypes, and for tensors that are not dense.""",
    "event_linear": f"""
Args:
    events: [..., in], an event if true or > 0; bool, {DTYPES}. Or int32 bits [..., ceil(in / 32)] of `pack_events`.
    weight: [in, out], of {DTYPES}; the rows of inputs without an event are not read.
    bias: [out], of the weight's dtype, or None.
    graded: an event counts its value instead of 1; not with bits.

Returns:
    [..., out] of the weight's dtype. Gradients reach events (straight through), weight and bias.

Raises:
    ValueError: if shapes or devices do not match, and for bits with `graded`.
    TypeError: for other dtypes, and for tensors that are not dense.""",
    "pack_events": f"""
Args:
    events: [..., n], an event if true or > 0; bool, {DTYPES}.

Returns:
    int32, [..., ceil(n / 32)]: entry 32 w + b is bit b of word w.

Raises:
    ValueError: for a tensor without dimensions.
    TypeError: for other dtypes.""",
    "unpack_events": """
Args:
    packed: int32, [..., ceil(n / 32)].
    n: the number of entries of a row.

Returns:
    bool, [..., n].

Raises:
    ValueError: if the shape does not match n entries.
    TypeError: for a dtype other than int32.""",
    "connect": """
The network is the same for any number of threads and on every device. Lists contain the values of all projections in order.

Args:
    rows: of the matrix.
    cols: of the matrix; column j belongs to neuron j % rows.
    seed: the seed of the network.
    rules: the names of the rules, one for each projection.
    ranges: for each projection, begin and end of its rows, and begin and end of its columns.
    amounts: the probability, degree or number of connections.
    choices: whether autapses and multapses are allowed, and whether weights and delays out of bounds are drawn again.
    laws: the names of the laws of weights and of delays.
    numbers: for each law first, second, low and high.
    arrays: for the rule "arrays" sources and targets, and for the law "array" weights and delays.
    dtype: the dtype of the weights, float64, float32 or float16; by default torch's default dtype.
    device: the device of the matrix.

Returns:
    indices int32 [connections]; indptr int64 [rows + 1]; weights [connections], or [1] if all are equal; delays likewise, uint8 or int32.

Raises:
    ValueError: if a projection cannot be drawn; the message names it.""",
    "csr_check": """
Args:
    indices: int32 [nonzeros], in [0, cols).
    indptr: int32 or int64 [rows + 1], rising from 0 to the number of nonzeros.
    rows: of the matrix.
    cols: of the matrix.
    sorted: also raise if the columns of a row do not ascend.

Raises:
    ValueError: if an index is wrong; the message names the row and the index.""",
    "csr_transpose": f"""
Args:{ROWS}
    rows: of the matrix.
    cols: of the matrix.

Returns:
    indices and indptr of the transpose, and slots, the index in the matrix of each of its nonzeros.

Raises:
    ValueError: for an index out of bounds.""",
    "stdp_pre": stdp(True, False), "stdp_pre_": stdp(True, True),
    "stdp_post": stdp(False, False), "stdp_post_": stdp(False, True),
    "plastic_step": plastic(False), "plastic_step_": plastic(True),
    "loihi_lif": loihi(), "loihi_ternary_lif": loihi(True),
    "loihi_lif_reset": loihi(**RESET), "loihi_ternary_lif_reset": loihi(True, **RESET),
    "loihi_lif_refractory": loihi(**REFRACTORY), "loihi_ternary_lif_refractory": loihi(True, **REFRACTORY),
    "loihi_dense": CONNECTION.format(
        weight="weight: [out, in], of the type of x, prepared by `loihi_prepare_weights` or `loihi_fake_quantize`, -256 to 255.\n    delay: the delay in steps, 0 to 64.",
        buffer="[delay, *batch, out]"),
    "loihi_sparse": CONNECTION.format(
        weight="crow_indices: the start of each row of the weights [out, in], int64 [out + 1].\n"
               "    col_indices: the columns of their nonzeros, int64.\n"
               "    values: the values of their nonzeros, of the type of x, prepared by `loihi_prepare_weights` or `loihi_fake_quantize`.\n    delay: the delay in steps, 0 to 64.",
        buffer="[delay, *batch, out]"),
    "loihi_delay_dense": CONNECTION.format(
        weight="weight: [out, in], of the type of x, prepared by `loihi_prepare_weights` or `loihi_fake_quantize`, -256 to 255.\n"
               "    delays: the delay of each synapse in steps, int32 [out, in], 0 to max_delay.",
        buffer="[max_delay, *batch, out]").replace(
            "    weight_exp", "    max_delay: the longest delay, 0 to 63.\n    weight_exp", 1),
    "loihi_conv": CONNECTION.format(
        weight="weight: [out, in / groups, height, width], of the type of x, prepared, -256 to 255, in the layout of torch's conv2d.\n"
               "    stride: the stride in height and width.\n    padding: zeros around an image, in height and width.\n"
               "    dilation: the dilation in height and width.\n    groups: the number of groups of channels.\n    delay: the delay in steps, 0 to 64.",
        buffer="[delay, *batch, out, height, width]").replace("[T, *batch, in]", "[T, *batch, in, height, width]").replace(
            "y [T, *batch, out]", "y [T, *batch, out, height, width]").replace(
            "Sums are exact modulo 2**32.", "Sums wrap around at 24 bits.").replace("through the shift", "through shift and wrap"),
    "loihi_fake_quantize": """
Args:
    weight: floating point.
    num_weight_bits: 1 to 8.
    sign_mode: "mixed", "excitatory" or "inhibitory"; by default determined by the signs of the weights, truncated toward zero.
    truncate: truncate as `loihi_prepare_weights` does, instead of rounding to the nearest value that the chip can represent.

Returns:
    Whole numbers in the type of weight. The gradient is that of a clip to the range of the sign mode.

Raises:
    ValueError: for a NaN, or if a value is out of its range.
    TypeError: if weights are not floating point.""",
    "loihi_optimize_weight_bits": """
Args:
    weight: whole numbers in the range of the sign mode; others are truncated toward zero.
    sign_mode: "mixed", "excitatory" or "inhibitory"; by default determined by the signs of the weights.

Returns:
    The weights times the largest 2**-weight_exp that fits, int32 on the CPU; the fewest bits that hold these; and weight_exp, -8 to 0.

Raises:
    ValueError: if a weight is out of range.""",
    "loihi_neuron": """
Args:
    name: lif, lif_reset, lif_refractory, ternary_lif, ternary_lif_reset, ternary_lif_refractory, atrlif, rf, delta, sigma_delta or sigma_delta_unit.
    surrogate: the surrogate of its spikes.
    surrogate_args: the surrogate's arguments; [] for the defaults.

Returns:
    The neuron text, for `run` with float32 or float64 tensors that hold whole numbers.

Raises:
    ValueError: for any other name.""",
    "loihi_prepare_weights": """
Args:
    weight: int32, clipped to -256 and 255.
    num_weight_bits: 1 to 8; weights are rounded to this number of bits, and to even numbers if signs are mixed.
    sign_mode: "mixed", "excitatory" or "inhibitory"; by default determined by the signs of the weights.

Source: Lava's Dense (github.com/lava-nc/lava).""",
    "loihi_quantize": """
Args:
    weight: the weight of the layer, [out, in].
    bias: the bias of the layer, [out], or None.
    tau: the time constant of the `lif` after it, with a hard reset to 0.
    decay_input: the same argument of the `lif`.
    v_threshold: the same argument of the `lif`.
    input_scale: the input that a message of 1 represents.
    largest_message: the largest message.
    num_weight_bits: 1 to 8.

Returns:
    Weights, bias_mant, bias_exp, weight_exp, dv, vth and scale for `loihi_dense` and `loihi_lif`; then the largest errors: of a weight, relative to\
 the largest; of the bias, relative to the threshold; of the threshold, relative to its own value; of 1 / tau, absolute.

Raises:
    ValueError: if a layer does not fit into the chip's fields.""",
    "record_kernels": """
Args:
    archs: the architectures, such as ["sm_80", "sm_90"].

Raises:
    ValueError: for an architecture that NVRTC does not support.""",
    "write_kernel_pack": """
Args:
    path: the path of the file. Programs read it if `SPIKEFORGE_KERNEL_PACK` is set to this path.

Raises:
    RuntimeError: if NVRTC is not available, or nothing was recorded.""",
    "load_kernel_pack": """
Args:
    path: the path of the file.

Raises:
    ValueError: if the file is not a pack of this build of the library.""",
}
