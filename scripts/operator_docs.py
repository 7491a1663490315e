"""What the stubs and the reference say of each operator below its first line: equations, arguments, results, errors, sources.

They are docstrings in Google's style. `write_stubs` joins them to its DESCRIPTIONS.
"""

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


def neuron(equations, parameters, source=FANG, states="v", starts="v at v_reset, or 0 under soft reset", **changed):
    words = ARGUMENTS | changed
    own = "\n".join(f"    {name}: {words[name]}." for name in parameters)
    return f"""
{equations} It fires where h >= v_threshold; then v is v_reset, or under soft reset h less the threshold.

Args:
    x: input, [T, *shape], of float16, bfloat16, float32 or float64.
    {states}: states before the first step, [*shape]; where they are not given they start anew, {starts}.
{own}
    v_threshold: where it fires.
    v_reset: the voltage after a spike; None is soft reset. Leaks lead there, or to 0 under soft reset.
    detach_reset: no gradient flows through the spike in the reset.
    surrogate: name of the spike's derivative; `surrogate_args` are its numbers, [] for the defaults.
    spiking: False puts the surrogate's primitive in the place of the step function: a smooth operator.
    store_v: return the states after each step, [T, *shape], rather than the last ones, [*shape].
    bits: 1, keep the spikes as bits too, which `linear` and `convolution` that read them then take.

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
    bits: keep the first output in so many bits of each number too, 1 or 4, which `linear` and `convolution` that read it then take."""
TEXT_RESULTS = """
    store_states: return the states after each step rather than the last ones.

Raises:
    ValueError: for a text that is not legal, with its line; for a number or a shape of tensors that does not fit.
    TypeError: for dtypes that do not fit."""

# --- events

ROWS_OF = "rows that fired alone are read"
PRODUCT = """
A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which {read}.

Args:
    weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
    indices: int32{indices}.{indptr}
    {entries}: {shape}; with `transpose`, [..., rows{n}].
    {rows}cols: of the stored matrix, whatever the order.
    transpose: e A rather than A e.{graded}
    deterministic: the same bits in every call, also where a GPU adds in any order.
    unchecked: trust the indices, rather than reading the matrix at its first call.

Returns:
    [..., rows{n}], or with `transpose` [..., cols{n}], of the weights' dtype. Gradients reach weights and {entries}.

Raises:
    ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call)."""
GRADED = "\n    graded: an event counts its number rather than 1."


def product(csr, events, matrix):
    entries = "events" if events else "matrix" if matrix else "vector"
    return PRODUCT.format(
        read=ROWS_OF if events else "all are read",
        indices=" [nonzeros], the columns of row 0, then those of row 1, in any order" if csr else ", the columns, [rows, nonzeros a row]",
        indptr="\n    indptr: int32 or int64 [rows + 1], where rows begin." if csr else "",
        entries=entries, shape="[..., cols, n]" if matrix else "[..., cols]", n=", n" if matrix else "",
        rows="rows, " if csr else "", graded=GRADED if events else "",
    )


RANDOM = """
Each entry of the [rows, cols] matrix is a nonzero with probability `prob`; `seed` says which matrix it is, on every device alike. It is
drawn anew in each call.

Args:
    weights: the numbers of the law: [1] for "constant", [2] for "uniform" (from, to) and "normal" (mean, deviation).
    values: what entries are: "event" (1 where > 0), "graded" (their number where > 0) or "number".
    transpose: e A, [..., rows{n}] in and [..., cols{n}] out.

Raises:
    ValueError: for a probability, a law or a shape that is not legal."""

STDP = """
For every {line} with an event, w_ij += trace_{other} of its nonzeros; those weights are then clipped to w_min and w_max.

Args:
    weights: [nonzeros].
    indices, indptr: {matrix}.
    events: [{size}], true or > 0.
    trace: [{other_size}], what a nonzero gains.

Raises:
    ValueError: for shapes that do not fit, and for an index out of bounds."""


def stdp(pre):
    return STDP.format(
        line="row i" if pre else "column j", other="j" if pre else "i", size="rows" if pre else "cols",
        other_size="cols" if pre else "rows",
        matrix="of the CSR matrix" if pre else "(and slots) what `csr_transpose` gives of the CSR matrix, computed once",
    )


# --- Loihi

LOIHI_NEURON = """
Args:
    x: int32, [T, *shape], in the units of the voltage.
    u, v: current and voltage before the first step, int32 [*shape]; 0 where they are not given.
    du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
    dv: v decays by dv / 4096 a step, 0 to 4095.
    bias_mant, bias_exp: the bias is bias_mant * 2**bias_exp, -4096 to 4095 and -31 to 7.
    {threshold}
    {extra}store_states: return the states after each step rather than the last ones.

Parameters are numbers, or int32 tensors that broadcast against shape. There are no gradients, as integers have none.

Raises:
    ValueError: for a number out of its range.
    TypeError: for anything but int32.

Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes."""


def loihi(ternary=False, extra=""):
    threshold = (
        "vth_hi, vth_lo: it fires 1 where v > 64 vth_hi and -1 where v < 64 vth_lo." if ternary
        else "vth: it fires where v > 64 vth, 0 to 131071."
    )
    return LOIHI_NEURON.format(threshold=threshold, extra=extra)


RESET = "reset_interval, reset_offset: states are set to 0 every so many steps, counted by the state `phase`.\n    "
REFRACTORY = "refractory_period: steps for which v rests after a spike, counted by the state `wait`.\n    "
CONNECTION = """
Args:
    x: int32 messages, [T, *batch, in].
    {weight}
    buffer: what is still on its way, int32 {buffer}; 0 where it is not given.
    weight_exp: sums are shifted to the left by it, or arithmetically to the right, -8 to 7.
    num_message_bits: 0 where a message is a spike, and anything but 0 counts as 1.

Returns:
    y [T, *batch, out], and the buffer after the last step. Sums are exact modulo 2**32.

Raises:
    ValueError: for a shape or a number out of its range.
    TypeError: for anything but int32."""

# --- layers

POOLING = """
Args:
    x: images with any dimensions before the channels, plain or channels last; the result lies alike.
    kernel_size, stride, padding{dilation}: a number for both dimensions, or one for each; stride is kernel_size where it is [].
    ceil_mode: as torch's.{more}

Raises:
    ValueError: for a window of more than 256 places, and for what does not fit."""
PRODUCT_OF_SPIKES = """
Args:
    x: {x}; spikes 0 or 1, or counts up to 15 with `bits=4`.
    weight, bias: as torch's.
    bits: how many bits of each number of x are kept, 1 or 4; 0 keeps x as it is.
    recompute: the result is not kept by what follows, but made again in the backward pass.

Raises:
    ValueError: on the CPU, for a number that does not fit in these bits. On a GPU it makes the weight's gradient NaN."""

DETAILS = {
    "integrate_and_fire": neuron("h = v + x.", []),
    "lif": neuron(LIF_CHARGE, ["tau", "decay_input"]),
    "plif": neuron(LIF_CHARGE, ["w", "decay_input"]),
    "qif": neuron("h = v + (x + a0 (v - v_rest) (v - v_c)) / tau.", ["tau", "v_c", "a0", "v_rest"]),
    "eif": neuron("h = v + (x + v_rest - v + delta_t exp((v - theta_rh) / delta_t)) / tau.",
                  ["tau", "delta_t", "theta_rh", "v_rest"]),
    "izhikevich": neuron(
        "h = v + (x + a0 (v - v_rest) (v - v_c) - w) / tau; next w = w + (a (h - v_rest) - w) / tau_w + b s.",
        ["tau", "v_c", "a0", "v_rest", "w_rest", "tau_w", "a", "b"], states="v, w",
        starts="v at v_reset (0 under soft reset), w at w_rest"),
    "adaptive_lif": neuron(
        "The charge h is that of `lif`. The threshold is v_threshold + b a, where next a = decay a + s.",
        ["tau", "decay_input", "decay", "b"], source="the charge of " + FANG, states="v, a",
        starts="v at v_reset (0 under soft reset), a at 0", b="how much the threshold rises with a"),
    "run": f"""
Args:{TEXT_CALL.format(shape="")}{TEXT_BITS}
    scan: let steps be taken side by side, of few neurons over a long sequence, which rounds in another way.
        For 1 to 4 states, of which the next are affine in them.
    seed: of a neuron that draws random numbers: int64 of one element, on the CPU or x's device; equal seeds draw equal numbers. By default
        torch's generator gives one.
    offset: the number of the first step, as `seed`; by default 0.{TEXT_RESULTS}

Returns:
    The outputs, each [T, *shape], and the states.""",
    "recurrent_run": f"""
Before step t, inputs[into][t] + s[t - delay] @ w becomes the input number `into`, where s is the first output.

Args:{TEXT_CALL.format(shape=" = [T, *batch, H]")}
    w: [H, H]; w[i, j] leads from neuron i to neuron j.
    spikes: s before the first step, [delay, *batch, H], the oldest first; zeros where it is not given.
    into: the input that the current is added to.
    delay: in steps, 1 or more.{TEXT_RESULTS}

Returns:
    The outputs, each [T, *batch, H], and the states.""",
    "batch_norm_run": f"""
The first input x becomes (x - mean) / sqrt(var + eps) * weight + bias, with one number for each channel.

Args:{TEXT_CALL.format(shape="")}
    weight, bias: [C], or None.
    mean, var: [C]; where they are not given, those of x over all dimensions but the channels'.
    residual: of the spikes' shape, joined to the first output as `residual_mode` says: "add", "and" or "iand".
    channel_dim: any dimension of x but time.{TEXT_BITS}{TEXT_RESULTS}""",
    "text_on_a_line": """
Inductor (torch 2.11) writes line breaks in an argument into code that does not parse: packages for GPUs want a text on one line.""",
    "print_cuda": """
Args:
    neuron: the neuron text.
    dtype: of the inputs.

Returns:
    The source of the kernels of the forward and the backward pass. It needs no GPU.""",
    "lava_neuron": """
Args:
    name: "lif", "ternary_lif", "lif_reset" or "lif_refractory". Parameters are du, dv, bias and vth (vth_hi and vth_lo), then interval and\
 offset, or period. They fire strictly above the threshold.

Raises:
    ValueError: for any other name.

Source: the floating-point models of Lava (github.com/lava-nc/lava).""",
    "channel_statistics": """
Args:
    x: a sequence with its channels at `channel_dim`.

Returns:
    mean and var, [C], over all other dimensions; the variance is divided by the count. In float32 for half types.""",
    "max_pool2d": POOLING.format(dilation=", dilation", more="") + "\n\nOne byte is kept for each result, where torch keeps eight.",
    "max_pool2d_with_places": """
Args:
    x: images with any dimensions before the channels.
    windows: kernel_size, stride, padding and dilation, of rows and columns each: eight numbers.

Places are uint8, counted row by row in the window.""",
    "avg_pool2d": POOLING.format(
        dilation="", more="\n    count_include_pad: padding counts in a mean.\n    divisor_override: divide sums by this instead."),
    "linear": PRODUCT_OF_SPIKES.format(x="[..., in]"),
    "convolution": PRODUCT_OF_SPIKES.format(x="[B, C, ...] with 1 to 3 dimensions of space"),
    "pack_spikes": """
Args:
    x: numbers of any floating-point dtype, dense in some order of its dimensions.
    bits: 1 or 4.""",
    "unpack_spikes": """
Args:
    packed, valid: what `pack_spikes` gave.
    size, stride, dtype: of the tensor to make.""",
    "event_csrmv": product(True, True, False), "event_csrmm": product(True, True, True),
    "csrmv": product(True, False, False), "csrmm": product(True, False, True),
    "event_ellmv": product(False, True, False), "event_ellmm": product(False, True, True),
    "ellmv": product(False, False, False), "ellmm": product(False, False, True),
    "jit_csrmv": RANDOM.format(n=""), "jit_csrmm": RANDOM.format(n=", n"),
    "event_linear": """
Args:
    events: [..., in], an event where true or > 0; or int32 bits [..., ceil(in / 32)].
    weight: [in, out]; rows of inputs that did not fire are not read.
    bias: [out], or None.
    graded: an event counts its number rather than 1.

Returns:
    [..., out] of the weight's dtype. Gradients reach events (straight through), weight and bias.

Raises:
    ValueError: for shapes that do not fit.""",
    "pack_events": "\nAn entry is an event where it is true or > 0; entry 32 w + b is bit b of word w.",
    "unpack_events": "\nReturns:\n    bool, [..., n].",
    "csr_check": """
Args:
    indices: int32 [nonzeros], in [0, cols).
    indptr: int32 or int64 [rows + 1], rising from 0 to the number of nonzeros.
    sorted: also refuse rows whose columns fall.

Raises:
    ValueError: names the row and the index that are wrong.""",
    "csr_transpose": "\nRaises:\n    ValueError: for an index out of bounds.",
    "stdp_pre": stdp(True), "stdp_pre_": stdp(True), "stdp_post": stdp(False), "stdp_post_": stdp(False),
    "loihi_lif": loihi(), "loihi_ternary_lif": loihi(True),
    "loihi_lif_reset": loihi(extra=RESET), "loihi_ternary_lif_reset": loihi(True, RESET),
    "loihi_lif_refractory": loihi(extra=REFRACTORY), "loihi_ternary_lif_refractory": loihi(True, REFRACTORY),
    "loihi_dense": CONNECTION.format(
        weight="weight: int32 [out, in], prepared by `loihi_prepare_weights`, -256 to 255.\n    delay: in steps, 0 to 64.",
        buffer="[delay, *batch, out]"),
    "loihi_sparse": CONNECTION.format(
        weight="crow_indices, col_indices, values: the prepared weights [out, in] in CSR: int64 [out + 1], int64 and int32 "
               "[nonzeros].\n    delay: in steps, 0 to 64.",
        buffer="[delay, *batch, out]"),
    "loihi_delay_dense": CONNECTION.format(
        weight="weight, delays: int32 [out, in]: prepared weights, and steps of each synapse, 0 to max_delay.",
        buffer="[max_delay, *batch, out]").replace(
            "    weight_exp", "    max_delay: the longest delay, 0 to 63.\n    weight_exp", 1),
    "loihi_prepare_weights": """
Args:
    weight: int32, clipped to -256 and 255.
    num_weight_bits: 1 to 8; weights are rounded to as many bits, and to even numbers where signs are mixed.
    sign_mode: of the chip; read off the weights where it is not given.

Source: Lava's Dense (github.com/lava-nc/lava).""",
    "loihi_quantize": """
Args:
    weight, bias: of the layer, [out, in] and [out] or None.
    tau, decay_input, v_threshold: of the `lif` behind it, with a hard reset to 0.
    input_scale, largest_message: what a message of 1 is worth, and the largest that comes.
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
Raises:
    ValueError: for a file that is no pack of this build of the library.""",
}
