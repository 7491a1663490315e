"""The docstrings of the operators below their first line: equations, arguments, results, errors, sources.

They are docstrings in Google's style. `write_stubs` joins them to its DESCRIPTIONS.
"""

# --- what several of them take

DTYPES = "float16, bfloat16, float32 or float64"
SAMPLES = """
    lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md defines the results after its end.
    start: before which steps samples start anew, bool [T, B]."""

# --- predefined neurons

FANG = "Fang et al., Science Advances 9, eadi1480 (2023)"
ARGUMENTS = {
    "tau": "time constant in steps, > 0",
    "decay_input": "divide x by tau too",
    "v_c": "the critical voltage, above which v runs away",
    "a0": "sharpness of the square",
    "delta_t": "sharpness of the exponential, > 0",
    "theta_rh": "the rheobase threshold, from where the exponential takes over",
    "v_rest": "the resting voltage",
    "w_rest": "where w starts",
    "tau_w": "time constant of w in steps, > 0",
    "a": "how w follows v",
    "b": "what a spike adds to w",
    "w": "1 / tau = sigmoid(w): a tensor that broadcasts against shape",
    "decay": "what is left of a after a step, 0 to 1",
}


STATES = {
    "v": "voltage before the first step, [*shape]; where it is not given, v_reset, or 0 under soft reset",
    "w": "recovery before the first step, [*shape]; where it is not given, w_rest",
    "a": "how far the threshold has adapted before the first step, [*shape]; where it is not given, 0",
}


def neuron(equations, parameters, source=FANG, states="v", **changed):
    words = ARGUMENTS | changed
    starts = "\n".join(f"    {name}: {STATES[name]}." for name in states)
    own = "\n".join(f"    {name}: {words[name]}." for name in parameters)
    return f"""
{equations} It fires where h >= v_threshold; then v is v_reset, or under soft reset h less the threshold.

Args:
    x: input, [T, *shape], of {DTYPES}.
{starts}
{own}
    v_threshold: where it fires.
    v_reset: the voltage after a spike; None is soft reset. Leaks lead there, or to 0 under soft reset.
    detach_reset: no gradient flows through the spike in the reset.
    surrogate: name of the spike's derivative (docs/surrogates.md).
    surrogate_args: its numbers, in the order of their table; [] for the defaults.
    spiking: False puts the surrogate's primitive in the place of the step function: a smooth operator.
    store_v: return the states after each step, [T, *shape], rather than the last ones, [*shape].
    bits: 1 writes the spikes as bits too, which `linear` and `convolution` that read them in training then need not pack; 0 where\
 none does.{SAMPLES}

Parameters are numbers, or tensors that broadcast against shape and get their gradients.

Raises:
    ValueError: for a shape, a value, or a surrogate that is not legal; it names the argument.
    TypeError: for a dtype that it does not take; half types have states of float32.

Source: {source}."""


LIF_CHARGE = "h = v + (x - (v - v_reset)) / tau, or without `decay_input` h = v - (v - v_reset) / tau + x."

# --- neurons written as text

TEXT_CALL = """
    neuron: the neuron text.
    inputs: each [T, *shape]{shape}, of one floating-point dtype.
    states: each [*shape]; [] starts all of them at the text's own numbers.
    params: numbers' tensors that broadcast against shape, in the order of the text; each gets its gradient."""
TEXT_BITS = """
    bits: keep the first output in so many bits of each number too, 1 or 4 (sums up to 15), which `linear` and `convolution`\
 that read it in training then need not pack; 0 where none does."""
LAST_STATES = """
    last_states: False: the last states are not needed; the list of states is empty, and a GPU does not write them. Not with `store_states`."""
TEXT_RESULTS = """
    store_states: return the states after each step rather than the last ones.

Raises:
    ValueError: for a text that is not legal, with its line; for a number or a shape of tensors that does not fit.
    TypeError: for dtypes that do not fit."""

NORM = """
    weight: what the normalised number is multiplied by, [C]; None is 1.
    bias: what is then added, [C]; None is 0."""
RESIDUAL = """
    residual: of the spikes' shape, joined to the first output.
    residual_mode: "add", s + r; "and", s r; or "iand", (1 - s) r.
    channel_dim: any dimension of x but time.
    eps: added to the variance, 0 or more."""

# --- events

MATRIX_SIZES = """
    rows: of the stored matrix.
    cols: of the stored matrix."""
UNCHECKED = """
    unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes other memory."""
ROWS_OF = "rows that fired alone are read"
PRODUCT = """
A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which {read}.

Args:
    weights: [nonzeros], or a single element that all share; {dtypes}.
    indices: int32{indices}.{indptr}
    {entries}: {shape}; with `transpose`, [..., rows{n}]; {boolean}{dtypes}, whatever that of the weights is.
    {sizes}
    transpose: e A rather than A e.{graded}
    deterministic: the same bits in every call, also where a GPU adds in any order.{unchecked}

Returns:
    [..., rows{n}], or with `transpose` [..., cols{n}], of the weights' dtype. Gradients reach weights and {entries}.

Raises:
    ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
    TypeError: for other dtypes, and for what is not dense."""
GRADED = "\n    graded: an event counts its number rather than 1."


def product(csr, events, matrix):
    entries = "events" if events else "matrix" if matrix else "vector"
    return PRODUCT.format(
        read=ROWS_OF if events else "all are read",
        indices=" [nonzeros], the columns of row 0, then those of row 1, in any order" if csr else ", the columns, [rows, nonzeros a row]",
        indptr="\n    indptr: int32 or int64 [rows + 1], where rows begin." if csr else "",
        entries=entries, shape="[..., cols, n]" if matrix else "[..., cols]", n=", n" if matrix else "",
        sizes=(MATRIX_SIZES if csr else "\n    cols: of the stored matrix.").strip(), graded=GRADED if events else "",
        boolean="bool, " if events else "", dtypes=DTYPES, unchecked=UNCHECKED,
    )


DELAYED = """
The input of step t is in buffer[t % slots]; an event of step t through a connection of delay d is added to
buffer[(t + d) % slots].

Args:
    weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
    indices: int32{indices}.{indptr}
    events: [*batch, cols], true or > 0; with `transpose`, [*batch, rows].
    delays: uint8 or int32, of the shape of indices or a single element, from 0 to slots - 1.
    buffer: [slots, *batch, rows], or with `transpose` [slots, *batch, cols]; of the weights' dtype, float32 for half types.
    step: int64, 0-dimensional, on the CPU or the buffer's device.
{sizes}
    transpose: e A rather than A e.
    graded: an event counts its number rather than 1.
    deterministic: the same bits in every call, also where a GPU adds in any order.{unchecked}
{end}
Raises:
    ValueError: for shapes that do not fit, and for an index, a delay or a step out of bounds (on a GPU at the next call)."""
DELAYED_NEW = """
Returns:
    The new buffer. Gradients reach weights, events (straight through) and buffer.
"""


def delayed(csr, in_place=False):
    return DELAYED.format(
        indices=" [nonzeros], the columns of row 0, then those of row 1" if csr else ", the columns, [rows, nonzeros a row]",
        indptr="\n    indptr: int32 or int64 [rows + 1], where rows begin." if csr else "",
        sizes=(MATRIX_SIZES if csr else "\n    cols: of the stored matrix.").strip("\n"), unchecked=UNCHECKED,
        end="" if in_place else DELAYED_NEW,
    )


DRAWN_DELAYS = f"""
The matrix is that of `jit_csrmv` with the same seed; each nonzero has a delay too, drawn from a hash of its place.

Args:
    weights: the numbers of the law: [1] for "constant", [2] for "uniform" (from, to) and "normal" (mean, deviation); {DTYPES}.
    events: [*batch, cols]; with `transpose`, [*batch, rows]; {DTYPES}, or bool unless `values` is "number".
    buffer: [slots, *batch, rows], or with `transpose` [slots, *batch, cols]; of the weights' dtype, float32 for half types.
    step: int64, 0-dimensional, on the CPU or the buffer's device.
    delays: the numbers of the law: [d] for "constant", [first, last] for "uniform" (whole numbers, both of them too), [mean, deviation] for
        "normal" (rounded, and clipped to the slots).{MATRIX_SIZES}
    prob: of each entry to be a nonzero, 0 to 1.
    seed: which matrix it is.
    law: of the weights: "constant", "uniform" or "normal".
    delay_law: of the delays: "constant", "uniform" or "normal".
    transpose: e A rather than A e.
    values: what entries are: "event" (1 where > 0), "graded" (their number where > 0) or "number".
    deterministic: the same bits in every call, also where a GPU adds in any order.

Raises:
    ValueError: for a probability, a law, a delay or a shape that is not legal."""
TAKE = """
Args:
    buffer: [slots, *batch, neurons], float32 or float64.
    step: int64, 0-dimensional, on the CPU or the buffer's device.

Raises:
    ValueError: for a step below 0, and for shapes that do not fit."""

RANDOM = """
Each entry of the [rows, cols] matrix is a nonzero with probability `prob`; `seed` says which matrix it is, on every device alike. It is
drawn anew in each call.

Args:
    weights: the numbers of the law: [1] for "constant", [2] for "uniform" (from, to) and "normal" (mean, deviation); {dtypes}.
    events: [..., cols{n}]; with `transpose`, [..., rows{n}]; {dtypes}, or bool unless `values` is "number".{sizes}
    prob: of each entry to be a nonzero, 0 to 1.
    seed: which matrix it is.
    law: the law of the nonzeros, "constant", "uniform" or "normal". Their positions do not depend on it.
    transpose: e A, [..., rows{n}] in and [..., cols{n}] out.
    values: what entries are: "event" (1 where > 0), "graded" (their number where > 0) or "number".
    deterministic: the same bits in every call, also where a GPU adds in any order.

Returns:
    [..., rows{n}], or with `transpose` [..., cols{n}], of the weights' dtype. Gradients reach weights and events.

Raises:
    ValueError: for a probability, a law or a shape that is not legal.
    TypeError: for other dtypes, and for what is not dense."""


def random(n):
    return RANDOM.format(n=n, sizes=MATRIX_SIZES, dtypes=DTYPES)


STDP = """
For every {line} with an event, w_ij += trace_{other} of its nonzeros; those weights are then clipped to w_min and w_max.

Args:
    weights: [nonzeros], one for each; {dtypes}.{matrix}
    events: [{size}], an event where true or > 0; bool, {dtypes}.
    trace: [{other_size}], what a nonzero gains; of the weights' dtype, or float32 beside half types.{sizes}
    w_min: what weights that changed are raised to; None sets no bound.
    w_max: what weights that changed are lowered to; None sets no bound.{unchecked}

There are no gradients. {writes}

Raises:
    ValueError: for shapes that do not fit, for a single weight that all share, for w_min above w_max, and for an index out of\
 bounds (on a GPU at the next call).
    TypeError: for other dtypes."""
ROWS = """
    indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
    indptr: int32 or int64 [rows + 1], where rows begin."""
COLUMNS = """
    indices: of the transpose, int32 [nonzeros]: what `csr_transpose` gives of the CSR matrix, computed once.
    indptr: of the transpose, [cols + 1], from there too.
    slots: which of the weights each nonzero of the transpose has, int64 [nonzeros], from there too."""


def stdp(pre, in_place):
    return STDP.format(
        line="row i" if pre else "column j", other="j" if pre else "i", size="rows" if pre else "cols",
        other_size="cols" if pre else "rows",
        matrix=ROWS if pre else COLUMNS, sizes=MATRIX_SIZES, unchecked=UNCHECKED, dtypes=DTYPES,
        writes="The weights are changed in place." if in_place else "The weights given stay as they are.",
    )


def plastic(in_place):
    return f"""
Args:
    rule: synapse text, docs/plasticity.md.
    states: [nonzeros] each, in the order of the rule: weights of any floating dtype ({DTYPES}), others of the dtype that they are computed in. Where\
 one decays, behind them int32 [nonzeros], the step that each nonzero is of.
    traces: [rows] or [cols] each, in the order of the rule, of the dtype of the arithmetic.{ROWS}
    by_columns: what `csr_transpose` gives, computed once, for rules with `on post`; else [].
    pre: [rows], a spike that arrives where true or > 0; bool, {DTYPES}.
    post: [cols], a spike where true or > 0; bool, {DTYPES}.
    signals: a number, of no dimension, or [cols], or None, for each signal of the rule; [] for none.
    step: int64, of no dimension, the number of the step; for rules with a state that decays.
    params: a number for each parameter of the rule.{MATRIX_SIZES}
    sends: sum what arrives at the neurons after.
    refresh: do nothing but bring states that decay to this step.{UNCHECKED}

Returns:
    {"" if in_place else "The new states and traces, and "}what arrived, [cols], or without `sends` no elements.

There are no gradients, and no batch.{" States and traces are changed in place." if in_place else ""} On a GPU sums of what arrives are\
 in any order.

Raises:
    ValueError: for a text that cannot be read, with its line and column, for shapes that do not fit, and an index out of bounds.
    TypeError: for other dtypes.
    NotImplementedError: on a GPU for a rule of more than 8 states, 16 traces, 32 parameters or 8 signals."""


# --- Loihi

LOIHI_NEURON = """
Args:
    x: [T, *shape], of which 1 is 64 units of the voltage: int32, or float32 or float64 that hold whole numbers, up to 2**17.
    u: current before the first step, [*shape], of the type of x; 0 where it is not given.
    v: voltage before the first step, [*shape], of the type of x; 0 where it is not given.{state}
    du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
    dv: v decays by dv / 4096 a step, 0 to 4096.
    bias_mant: the mantissa of the bias, which is bias_mant * 2**bias_exp, -4096 to 4095.
    bias_exp: its exponent, -31 to 7.
    {threshold}
    {extra}store_states: return the states after each step rather than the last ones.{samples}
    surrogate: of a floating-point x: it sees the voltage above the threshold, in units of the threshold.
    surrogate_args: its numbers, in the order of docs/surrogates.md; [] for its defaults.
    detach_reset: of a floating-point x: no gradient flows through the spike in the reset.

Parameters are numbers, or tensors that broadcast against shape: all of the one kind, but for a tensor `bias_mant` beside\
 numbers. Among tensors None is the default. They are int32, or beside a floating-point x of its type. Of a floating-point x\
 the results have its type and the same values, and gradients, straight through rounding and wraps; integers have none.

Raises:
    ValueError: for a number out of its range.
    TypeError: for another dtype.

Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes."""


def loihi(ternary=False, extra="", state=""):
    threshold = (
        "vth_hi: it fires 1 where v > 64 vth_hi, -131072 to 131072.\n"
        "    vth_lo: it fires -1 where v < 64 vth_lo, -131072 to 131072." if ternary
        else "vth: it fires where v > 64 vth, 0 to 131072."
    )
    return LOIHI_NEURON.format(threshold=threshold, extra=extra, state=state, samples=SAMPLES)


RESET = {
    "extra": "reset_interval: u and v are set to 0 every so many steps, 1 or more.\n    reset_offset: the number of such a step, counted from 1 and modulo `reset_interval`; u and v are 0 ahead of it.\n    ",
    "state": "\n    phase: steps so far modulo `reset_interval`, int32 [*shape]; 0 where it is not given.",
}
REFRACTORY = {
    "extra": "refractory_period: steps for which v stays as it is after a spike.\n    ",
    "state": "\n    wait: for how many steps v still stays as it is, int32 [*shape]; 0 where it is not given.",
}
CONNECTION = """
Args:
    x: messages, [T, *batch, in]: int32, or float32 or float64 that hold whole numbers.
    {weight}
    buffer: the pending input, {buffer}, of the type of x; by default 0.
    weight_exp: sums are shifted to the left by it, or arithmetically to the right, -8 to 7.
    num_message_bits: 0 where a message is a spike, and anything but 0 counts as 1.

Returns:
    y [T, *batch, out], and the buffer after the last step. Sums are exact modulo 2**32. Of a floating-point x, beside weights\
 of its type, they have gradients: those of the product of numbers, straight through the shift.

Raises:
    ValueError: for a shape or a number out of its range.
    TypeError: for another dtype."""

# --- layers

OF_A_NORMALISATION = """
    weight: [C], that of a normalisation which follows. Where it is below 0 a window gives its least number, of which\
 that normalisation will make the largest."""
POOLING = """
Args:
    x: images with any dimensions before the channels, plain or channels last; the result has the same layout.
    kernel_size: rows and columns of a window, of at most 256 places.
    stride: from a window to the next, in rows and columns; kernel_size where it is [].
    padding: what is put around an image, in rows and columns, {padding}; at most half of kernel_size.{dilation}
    ceil_mode: round the number of windows up, not down: the last one may reach over the edge.{more}

Instead of two numbers a single one is for both dimensions.

Raises:
    ValueError: for a window of more than 256 places, and for what does not fit.
    TypeError: for a dtype other than {dtypes}, and for what is not dense."""
PRODUCT_OF_SPIKES = """
Args:
    x: {x}, of {dtypes}; spikes 0 or 1, or counts up to 15 with `bits=4`.
    weight: {weight}.
    bias: [out], or None.{geometry}
    bits: how many bits of each number of x are kept, 1 or 4; 0 keeps x as it is.
    recompute: the result is not kept by what follows, but made again in the backward pass.

Raises:
    ValueError: for shapes that do not fit, and on the CPU for a number that does not fit in these bits. On a GPU it makes the\
 weight's gradient NaN.
    TypeError: for another dtype of x, and for what is not dense."""
GEOMETRY = """
    stride: a number for each dimension of space, or one for all.
    padding: likewise, of zeros.
    dilation: likewise.
    groups: parts into which the channels are divided."""

DETAILS = {
    "integrate_and_fire": neuron("h = v + x.", []),
    "lif": neuron(LIF_CHARGE, ["tau", "decay_input"]),
    "plif": neuron(LIF_CHARGE, ["w", "decay_input"]),
    "qif": neuron("h = v + (x + a0 (v - v_rest) (v - v_c)) / tau.", ["tau", "v_c", "a0", "v_rest"]),
    "eif": neuron("h = v + (x + v_rest - v + delta_t exp((v - theta_rh) / delta_t)) / tau.",
                  ["tau", "delta_t", "theta_rh", "v_rest"]),
    "izhikevich": neuron(
        "h = v + (x + a0 (v - v_rest) (v - v_c) - w) / tau; next w = w + (a (h - v_rest) - w) / tau_w + b s.",
        ["tau", "v_c", "a0", "v_rest", "w_rest", "tau_w", "a", "b"], states="vw"),
    "adaptive_lif": neuron(
        "The charge h is that of `lif`. The threshold is v_threshold + b a, where next a = decay a + s.",
        ["tau", "decay_input", "decay", "b"], source="the charge of " + FANG, states="va",
        b="how much the threshold rises with a"),
    "run": f"""
Args:{TEXT_CALL.format(shape="")}{TEXT_BITS}
    scan: let steps be taken side by side, of few neurons over a long sequence, which rounds in another way.
        For 1 to 4 states, of which the next are affine in them.
    seed: of a neuron that draws random numbers: int64 of one element, on the CPU or x's device; equal seeds draw equal numbers. By default
        torch's generator gives one.
    offset: the number of the first step, as `seed`; by default 0.{SAMPLES}{TEXT_RESULTS}

Returns:
    The outputs, each [T, *shape], and the states.""",
    "recurrent_run": f"""
Before step t, inputs[into][t] + s[t - delay] @ w becomes the input number `into`, where s is the first output.

Args:{TEXT_CALL.format(shape=" = [T, *batch, H]")}
    w: [H, H]; w[i, j] leads from neuron i to neuron j.
    spikes: s before the first step, [delay, *batch, H], the oldest first; zeros where it is not given.
    into: the input that the current is added to.
    delay: in steps, 1 or more.{SAMPLES}{TEXT_RESULTS}

Returns:
    The outputs, each [T, *batch, H], and the states.""",
    "online_linear": """
A neuron after x weight^T + bias, with traces instead of earlier steps. docs/online.md derives them.

Args:
    neuron: its text.
    x: [T, *batch, I], the steps of this call.
    weight: [N, I].
    bias: [N].
    states: before the call, each [*batch, N]; none for the text's own.
    params: the neuron's, which broadcast against [*batch, N].
    traces: what the call before returned; none before the first.
    rule: "eprop" or "ottt".
    into: the input that the product is added to.
    inputs: one [T, *batch, N] for each input of the neuron; none where the product is the only one.
    learned: which parameters have traces under e-prop; by default those that require a gradient at this call.

Returns:
    The outputs, each [T, *batch, N]; the states; and the traces.

Raises:
    ValueError: for shapes that do not fit, and traces of another layer.
    NotImplementedError: for a neuron that draws random numbers.""",
    "delayed_linear": """
y[t] is the sum of weight[o, i] x[t - delay[o, i], i], and bias[o]. docs/delays.md says how delays between steps are spread.

Args:
    x: [T, *batch, I].
    weight: [O, I].
    delay: in steps, [O, I] or, one for each input, [I]; below 0 and above max_delay it counts as these.
    bias: [O].
    max_delay: the longest delay, 0 to 4096.
    interpolation: "linear", "triangle" or "gauss".
    width: of triangle and gauss, in steps.
    past: the inputs of the max_delay steps before, [max_delay, *batch, I], the oldest first; zeros where it is not given.

Returns:
    y, [T, *batch, O].

Source: Hammouamri, Khalfaoui-Hassani and Masquelier, ICLR 2024.""",
    "local_jacobian": """
How a neuron's states after some steps depend on those before, and on what came in. Nothing of it has a gradient.

Args:
    neuron: its text.
    inputs: each [T, *shape].
    states: before the steps, each [*shape].
    params: broadcast against shape.
    into: which input.
    of_params: which parameters.

Returns:
    dv_k / du_l for each pair of states, row after row, [*shape]; dv_k / dx[t] for each state, [T, *shape]; and dv_k / dp for
    each state of each parameter, [*shape].""",
    "with_eligibility": """
A state whose gradient reaches a leaf through a trace, d state / d leaf.

Args:
    state: [*batch, N].
    leaf: what was trained: a weight [N, I], or what broadcasts against the state.
    trace: [*batch, N, I] of a weight; with outer [*batch, I]; else [*batch, N] or [*batch, 1].
    outer: the trace is that of inputs, the same for all neurons.

Returns:
    The state.""",
    "eligibility_gradient": """
Σ_b grad[b, n] trace[b, n, i], over the whole batch.

Args:
    grad: [*batch, N].
    trace: [*batch, N, I], of its type.

Returns:
    [N, I].""",
    "advance_eligibility": """
e_k becomes the sum of transitions_kl e_l and of drives_k[t] x[t].

Args:
    traces: one for each state, [*batch, N, I]; none for zeros.
    transitions: one for each pair of states, [*batch, N].
    drives: one for each state, [T, *batch, N]; without x [*batch, N].
    x: [T, *batch, I].

Returns:
    The traces.""",
    "trace_of_input": """
What an input leaves in the states of a neuron that does not fire, as neuron text: run on x, its states are the traces of
rule="ottt".

Args:
    neuron: its text.
    into: which input.

Returns:
    The text.""",
    "batch_norm_run": f"""
The first input x becomes (x - mean) / sqrt(var + eps) * weight + bias, with one number for each channel.

Args:{TEXT_CALL.format(shape="")}{NORM}
    mean: [C]; where it is not given, mean and var are those of x over all dimensions but the channels'.
    var: [C], beside mean.{RESIDUAL}{TEXT_BITS}{LAST_STATES}{TEXT_RESULTS}

Returns:
    The outputs, the states, and the mean and the variance that were used.""",
    "batch_norm_run_tracked": f"""
Args:{TEXT_CALL.format(shape="")}
    running_mean: [C], moved towards the mean of x, in place.
    running_var: [C], moved towards the variance of x (divided by the count less one), in place.
    num_batches_tracked: int64, counted up in place.{NORM}{RESIDUAL}
    momentum: how far running statistics move; None makes them the means over all calls.{TEXT_BITS}{LAST_STATES}{TEXT_RESULTS}

Returns:
    The outputs and the states.""",
    "neuron_text": """
Args:
    neuron: the name of its operator, or ``cuba_lif``.
    spike: neuron text of the spike at u = H - v_threshold: ``spike(u, atan(2))``.
    params: the constants that the text has as parameters, in this order.
    names: the constants that are numbers. One that is also a parameter gives the number that a state starts at. Without v_reset
        the reset is soft.
    numbers: their values.
    name: the name of the text; by default the neuron's.
    detach_reset: no gradient flows through the spike in the reset.
    decay_input: divide the input by tau too, for neurons with this option.
    divides: divides by time constants, where the operator multiplies by their reciprocals.

Raises:
    ValueError: for an unknown neuron, a missing constant, and a spike that cannot be read.""",
    "text_on_a_line": """
Args:
    neuron: the neuron text.

Raises:
    ValueError: for a text that is not legal, with its line.

Inductor (torch 2.11) writes line breaks in an argument into code that does not parse: packages for GPUs want a text on one line.""",
    "print_cuda": """
Args:
    neuron: the neuron text.
    dtype: of the inputs.

Returns:
    The source of the kernels of the forward and the backward pass. It needs no GPU.""",
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
    channel_dim: where the channels are: any dimension but time; negative ones count from the end.

Returns:
    mean and var, [C], over all other dimensions; the variance is divided by the count. In float32 for half types.

Raises:
    ValueError: for an x without elements, and a dimension that it does not have.
    TypeError: for another dtype, and for sparse tensors.""",
    "max_pool2d": POOLING.format(
        dilation="\n    dilation: from a place of a window to the next, in rows and columns.", more=OF_A_NORMALISATION,
        dtypes=DTYPES, padding="which is never the maximum")
    + "\n\nOne byte is kept for each result, where torch keeps eight.",
    "max_pool2d_statistics": POOLING.format(
        dilation="", more=OF_A_NORMALISATION, dtypes=DTYPES, padding="which is never the maximum")
    + """

Returns:
    y, the maxima; and the mean and the biased variance of all of x, [C], in float32 for half types; 0 and 1 of nothing.

`batch_norm_run` of y with this mean and variance is the pooling of what it gives of x. The backward pass goes over x once.""",
    "max_pool2d_with_places": """
Args:
    x: images with any dimensions before the channels.
    windows: kernel_size, stride, padding and dilation, of rows and columns each: eight numbers.
    ceil_mode: round the number of windows up, not down.
    weight: as of `max_pool2d`.

Returns:
    The maxima, and the places as uint8, counted row by row in the window.

Raises:
    ValueError: for windows of more than 256 places, and for what does not fit.
    TypeError: as `max_pool2d`.""",
    "avg_pool2d": POOLING.format(
        dilation="", dtypes=DTYPES, padding="of zeros", more="\n    count_include_pad: padding counts in a mean.\n    divisor_override: divide sums by this instead."),
    "linear": PRODUCT_OF_SPIKES.format(x="[..., in]", weight="[out, in]", geometry="", dtypes=DTYPES),
    "convolution": PRODUCT_OF_SPIKES.format(
        x="[B, C, ...] with 1 to 3 dimensions of space", weight="[out, C / groups, *kernel]", geometry=GEOMETRY, dtypes=DTYPES),
    "pack_spikes": f"""
Args:
    x: numbers of {DTYPES}, dense in some order of its dimensions.
    bits: 1, for numbers 0 and 1; or 4, for 0 to 15.

Returns:
    The bits, uint8 [bytes], and whether all numbers were such, bool [].

Raises:
    ValueError: for other bits.
    TypeError: for another dtype, and for what is not dense.""",
    "unpack_spikes": """
Args:
    packed: what `pack_spikes` gave.
    valid: what it gave beside it.
    size: of the tensor to make.
    stride: of the tensor to make, that of a dense one.
    bits: those that `pack_spikes` was given.
    dtype: of the tensor to make.

Raises:
    ValueError: for a size whose numbers these are not.
    TypeError: for another dtype.""",
    "event_csrmv": product(True, True, False), "event_csrmm": product(True, True, True),
    "csrmv": product(True, False, False), "csrmm": product(True, False, True),
    "event_ellmv": product(False, True, False), "event_ellmm": product(False, True, True),
    "ellmv": product(False, False, False), "ellmm": product(False, False, True),
    "event_csrmv_delayed": delayed(True), "event_csrmv_delayed_": delayed(True, True),
    "event_ellmv_delayed": delayed(False), "event_ellmv_delayed_": delayed(False, True),
    "jit_csrmv_delayed": DRAWN_DELAYS, "jit_csrmv_delayed_": DRAWN_DELAYS,
    "take_arrivals": TAKE, "take_arrivals_": TAKE,
    "jit_csrmv": random(""), "jit_csrmm": random(", n"),
    "event_linear": f"""
Args:
    events: [..., in], an event where true or > 0; bool, {DTYPES}. Or int32 bits [..., ceil(in / 32)] of `pack_events`.
    weight: [in, out], of {DTYPES}; rows of inputs that did not fire are not read.
    bias: [out], of the weight's dtype, or None.
    graded: an event counts its number rather than 1; not of bits.

Returns:
    [..., out] of the weight's dtype. Gradients reach events (straight through), weight and bias.

Raises:
    ValueError: for shapes and devices that do not fit, and for bits with `graded`.
    TypeError: for other dtypes, and for what is not dense.""",
    "pack_events": f"""
Args:
    events: [..., n], an event where true or > 0; bool, {DTYPES}.

Returns:
    int32, [..., ceil(n / 32)]: entry 32 w + b is bit b of word w.

Raises:
    ValueError: for a tensor without dimensions.
    TypeError: for other dtypes.""",
    "unpack_events": """
Args:
    packed: int32, [..., ceil(n / 32)].
    n: how many entries a row has.

Returns:
    bool, [..., n].

Raises:
    ValueError: for a shape that does not hold n entries.
    TypeError: for anything but int32.""",
    "connect": """
The same network for any number of threads and on every device. Lists are of all projections, one after the other.

Args:
    rows: of the matrix.
    cols: of the matrix; column j belongs to neuron j % rows.
    seed: which network it is.
    rules: names of rules, one a projection.
    ranges: begin and end of its rows, begin and end of its columns.
    amounts: the probability, degree or number of connections.
    choices: whether autapses, and multapses, are allowed; whether weights, and delays, out of bounds are drawn again.
    laws: names of the laws of weights and of delays.
    numbers: of each law first, second, low and high.
    arrays: of the rule "arrays": sources, targets, and of the law "array" weights and delays.
    dtype: of the weights, float64, float32 or float16; None: torch's default.
    device: where the matrix is made.

Returns:
    indices int32 [connections]; indptr int64 [rows + 1]; weights [connections], or [1] where all are the same; delays alike, uint8 or int32.

Raises:
    ValueError: for what cannot be drawn; it names the projection.""",
    "csr_check": """
Args:
    indices: int32 [nonzeros], in [0, cols).
    indptr: int32 or int64 [rows + 1], rising from 0 to the number of nonzeros.
    rows: of the matrix.
    cols: of the matrix.
    sorted: also raise if the columns of a row do not ascend.

Raises:
    ValueError: names the row and the index that are wrong.""",
    "csr_transpose": f"""
Args:{ROWS}
    rows: of the matrix.
    cols: of the matrix.

Returns:
    indices and indptr of the transpose, and slots: which nonzero of the matrix each of its nonzeros is.

Raises:
    ValueError: for an index out of bounds.""",
    "stdp_pre": stdp(True, False), "stdp_pre_": stdp(True, True),
    "stdp_post": stdp(False, False), "stdp_post_": stdp(False, True),
    "plastic_step": plastic(False), "plastic_step_": plastic(True),
    "loihi_lif": loihi(), "loihi_ternary_lif": loihi(True),
    "loihi_lif_reset": loihi(**RESET), "loihi_ternary_lif_reset": loihi(True, **RESET),
    "loihi_lif_refractory": loihi(**REFRACTORY), "loihi_ternary_lif_refractory": loihi(True, **REFRACTORY),
    "loihi_dense": CONNECTION.format(
        weight="weight: [out, in], of the type of x, prepared by `loihi_prepare_weights` or `loihi_fake_quantize`, -256 to 255.\n    delay: in steps, 0 to 64.",
        buffer="[delay, *batch, out]"),
    "loihi_sparse": CONNECTION.format(
        weight="crow_indices: where the rows of the weights [out, in] begin, int64 [out + 1].\n"
               "    col_indices: of their nonzeros, int64.\n"
               "    values: of their nonzeros, of the type of x, prepared by `loihi_prepare_weights` or `loihi_fake_quantize`.\n    delay: in steps, 0 to 64.",
        buffer="[delay, *batch, out]"),
    "loihi_delay_dense": CONNECTION.format(
        weight="weight: [out, in], of the type of x, prepared by `loihi_prepare_weights` or `loihi_fake_quantize`, -256 to 255.\n"
               "    delays: of each synapse, int32 [out, in] steps, 0 to max_delay.",
        buffer="[max_delay, *batch, out]").replace(
            "    weight_exp", "    max_delay: the longest delay, 0 to 63.\n    weight_exp", 1),
    "loihi_conv": CONNECTION.format(
        weight="weight: [out, in / groups, height, width], of the type of x, prepared, -256 to 255, as that of torch's conv2d.\n"
               "    stride: in height and width.\n    padding: zeros around an image, in height and width.\n"
               "    dilation: in height and width.\n    groups: of channels.\n    delay: in steps, 0 to 64.",
        buffer="[delay, *batch, out, height, width]").replace("[T, *batch, in]", "[T, *batch, in, height, width]").replace(
            "y [T, *batch, out]", "y [T, *batch, out, height, width]").replace(
            "Sums are exact modulo 2**32.", "Sums wrap around at 24 bits.").replace("through the shift", "through shift and wrap"),
    "loihi_fake_quantize": """
Args:
    weight: floating point.
    num_weight_bits: 1 to 8.
    sign_mode: "mixed", "excitatory" or "inhibitory"; read off the weights, truncated toward zero, where it is not given.
    truncate: as `loihi_prepare_weights` does, and not to the nearest number that the chip has.

Returns:
    Whole numbers in the type of weight. The gradient is that of a clip to the range of the sign mode.

Raises:
    ValueError: for a NaN, and a number out of its range.
    TypeError: for weights that are no floating-point numbers.""",
    "loihi_optimize_weight_bits": """
Args:
    weight: whole numbers in the range of the sign mode; others are truncated toward zero.
    sign_mode: "mixed", "excitatory" or "inhibitory"; read off the weights where it is not given.

Returns:
    The weights times the largest 2**-weight_exp that fits, int32 on the CPU; the fewest bits that hold these; and weight_exp, -8 to 0.

Raises:
    ValueError: for a weight out of the range.""",
    "loihi_neuron": """
Args:
    name: lif, lif_reset, lif_refractory, ternary_lif, ternary_lif_reset, ternary_lif_refractory, atrlif, rf, delta, sigma_delta or sigma_delta_unit.
    surrogate: of its spikes.
    surrogate_args: the surrogate's numbers; [] for its defaults.

Returns:
    The neuron text, for `run`: on float32 or float64 that hold whole numbers.

Raises:
    ValueError: for another name.""",
    "loihi_prepare_weights": """
Args:
    weight: int32, clipped to -256 and 255.
    num_weight_bits: 1 to 8; weights are rounded to as many bits, and to even numbers where signs are mixed.
    sign_mode: of the chip; read off the weights where it is not given.

Source: Lava's Dense (github.com/lava-nc/lava).""",
    "loihi_quantize": """
Args:
    weight: of the layer, [out, in].
    bias: of the layer, [out], or None.
    tau: the time constant of the `lif` after it, with a hard reset to 0.
    decay_input: of the `lif`.
    v_threshold: of the `lif`.
    input_scale: what a message of 1 is worth.
    largest_message: the largest that comes.
    num_weight_bits: 1 to 8.

Returns:
    Weights, bias_mant, bias_exp, weight_exp, dv, vth and scale for `loihi_dense` and `loihi_lif`; then the worst errors: of a weight, relative to\
 the largest; of the bias, relative to the threshold; of the threshold; and of 1 / tau.

Raises:
    ValueError: for a layer that does not fit into the chip's numbers.""",
    "record_kernels": """
Args:
    archs: such as ["sm_80", "sm_90"].

Raises:
    ValueError: for an architecture that NVRTC does not know.""",
    "write_kernel_pack": """
Args:
    path: of the file. `SPIKEFORGE_KERNEL_PACK` names it to a program.

Raises:
    RuntimeError: where there is no NVRTC, or nothing was recorded.""",
    "load_kernel_pack": """
Args:
    path: of the file.

Raises:
    ValueError: for a file that is no pack of this build of the library.""",
}
