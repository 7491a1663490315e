"""The operators, typed for editors. Written by scripts/write_stubs from their schemas: do not edit."""

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor


@overload
def adaptive_lif(
    x: Tensor, v: Tensor | None = None, a: Tensor | None = None, *, tau: float = 2.0, decay_input: bool = True,
    v_threshold: float = 1.0, v_reset: float | None = 0.0, decay: float = 0.9, b: float = 0.1,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False, bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Leaky integrate-and-fire whose threshold v_threshold + b a rises with each of its own spikes, over a whole
    sequence: x [T, *shape], time first. Returns (spikes, v, a).

    The charge h is that of `lif`. The threshold is v_threshold + b a, where next a = decay a + s. It fires where h >=
    v_threshold; then v is v_reset, or under soft reset h less the threshold.

    Args:
        x: input, [T, *shape], of float16, bfloat16, float32 or float64.
        v: voltage before the first step, [*shape]; where it is not given, v_reset, or 0 under soft reset.
        a: how far the threshold has adapted before the first step, [*shape]; where it is not given, 0.
        tau: time constant in steps, > 0.
        decay_input: divide x by tau too.
        decay: what is left of a after a step, 0 to 1.
        b: how much the threshold rises with a.
        v_threshold: where it fires.
        v_reset: the voltage after a spike; None is soft reset. Leaks lead there, or to 0 under soft reset.
        detach_reset: no gradient flows through the spike in the reset.
        surrogate: name of the spike's derivative (docs/surrogates.md).
        surrogate_args: its numbers, in the order of their table; [] for the defaults.
        spiking: False puts the surrogate's primitive in the place of the step function: a smooth operator.
        store_v: return the states after each step, [T, *shape], rather than the last ones, [*shape].
        bits: 1 writes the spikes as bits too, which `linear` and `convolution` that read them in training then need not
            pack; 0 where none does.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].

    Parameters are numbers, or tensors that broadcast against shape and get their gradients.

    Raises:
        ValueError: for a shape, a value, or a surrogate that is not legal; it names the argument.
        TypeError: for a dtype that it does not take; half types have states of float32.

    Source: the charge of Fang et al., Science Advances 9, eadi1480 (2023).
    """
@overload
def adaptive_lif(
    x: Tensor, v: Tensor | None = None, a: Tensor | None = None, *, tau: Tensor | None = None, decay_input: bool = True,
    v_threshold: Tensor | None = None, v_reset: Tensor | None, decay: Tensor | None = None, b: Tensor | None = None,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False, bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def adaptive_lif(
    x: Tensor, v: Tensor | None = None, a: Tensor | None = None, *, tau: float | Tensor | None = 2.0,
    decay_input: bool = True, v_threshold: float | Tensor | None = 1.0, v_reset: float | Tensor | None = 0.0,
    decay: float | Tensor | None = 0.9, b: float | Tensor | None = 0.1, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
    bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...

def advance_eligibility(
    traces: Sequence[Tensor], transitions: Sequence[Tensor], drives: Sequence[Tensor], x: Tensor | None = None,
) -> list[Tensor]:
    """Traces [*batch, N, I] after the steps that transitions and drives are of.

    e_k becomes the sum of transitions_kl e_l and of drives_k[t] x[t].

    Args:
        traces: one for each state, [*batch, N, I]; none for zeros.
        transitions: one for each pair of states, [*batch, N].
        drives: one for each state, [T, *batch, N]; without x [*batch, N].
        x: [T, *batch, I].

    Returns:
        The traces.
    """

def avg_pool2d(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = [], padding: Sequence[int] = [0, 0],
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:
    """Means over windows of images [..., C, H, W].

    Args:
        x: images with any dimensions before the channels, plain or channels last; the result lies alike.
        kernel_size: rows and columns of a window, of at most 256 places.
        stride: from a window to the next, in rows and columns; kernel_size where it is [].
        padding: what is put around an image, in rows and columns, of zeros; at most half of kernel_size.
        ceil_mode: round the number of windows up, not down: the last one may reach over the edge.
        count_include_pad: padding counts in a mean.
        divisor_override: divide sums by this instead.

    Instead of two numbers a single one is for both dimensions.

    Raises:
        ValueError: for a window of more than 256 places, and for what does not fit.
        TypeError: for a dtype other than float16, bfloat16, float32 or float64, and for what is not dense.
    """

def batch_norm_run(
    neuron: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor],
    weight: Tensor | None = None, bias: Tensor | None = None, mean: Tensor | None = None, var: Tensor | None = None,
    residual: Tensor | None = None, *, residual_mode: str = "add", channel_dim: int = 2, eps: float = 1e-05,
    store_states: bool = False, bits: int = 0, last_states: bool = True,
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """A neuron written as text behind a batch normalisation, with a residual connection behind it, in one pass. Returns
    (outputs, states, mean, var).

    The first input x becomes (x - mean) / sqrt(var + eps) * weight + bias, with one number for each channel.

    Args:
        neuron: the neuron text.
        inputs: each [T, *shape], of one floating-point dtype.
        states: each [*shape]; [] starts all of them at the text's own numbers.
        params: numbers' tensors that broadcast against shape, in the order of the text; each gets its gradient.
        weight: what the normalised number is multiplied by, [C]; None is 1.
        bias: what is then added, [C]; None is 0.
        mean: [C]; where it is not given, mean and var are those of x over all dimensions but the channels'.
        var: [C], beside mean.
        residual: of the spikes' shape, joined to the first output.
        residual_mode: "add", s + r; "and", s r; or "iand", (1 - s) r.
        channel_dim: any dimension of x but time.
        eps: added to the variance, 0 or more.
        bits: keep the first output in so many bits of each number too, 1 or 4 (sums up to 15), which `linear` and
            `convolution` that read it in training then need not pack; 0 where none does.
        last_states: False: nobody asks for the last states; the list of states is empty, and a GPU need not write them.
            Not with `store_states`.
        store_states: return the states after each step rather than the last ones.

    Raises:
        ValueError: for a text that is not legal, with its line; for a number or a shape of tensors that does not fit.
        TypeError: for dtypes that do not fit.

    Returns:
        The outputs, the states, and the mean and the variance that were used.
    """

def batch_norm_run_tracked(
    neuron: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor], running_mean: Tensor,
    running_var: Tensor, num_batches_tracked: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
    residual: Tensor | None = None, *, residual_mode: str = "add", channel_dim: int = 2, eps: float = 1e-05,
    momentum: float | None = 0.1, store_states: bool = False, bits: int = 0, last_states: bool = True,
) -> tuple[list[Tensor], list[Tensor]]:
    """batch_norm_run with the statistics of its input, towards which running ones move in the same pass; not for
    compilers. Returns (outputs, states).

    Args:
        neuron: the neuron text.
        inputs: each [T, *shape], of one floating-point dtype.
        states: each [*shape]; [] starts all of them at the text's own numbers.
        params: numbers' tensors that broadcast against shape, in the order of the text; each gets its gradient.
        running_mean: [C], moved towards the mean of x, in place.
        running_var: [C], moved towards the variance of x (divided by the count less one), in place.
        num_batches_tracked: int64, counted up in place.
        weight: what the normalised number is multiplied by, [C]; None is 1.
        bias: what is then added, [C]; None is 0.
        residual: of the spikes' shape, joined to the first output.
        residual_mode: "add", s + r; "and", s r; or "iand", (1 - s) r.
        channel_dim: any dimension of x but time.
        eps: added to the variance, 0 or more.
        momentum: how far running statistics move; None makes them the means over all calls.
        bits: keep the first output in so many bits of each number too, 1 or 4 (sums up to 15), which `linear` and
            `convolution` that read it in training then need not pack; 0 where none does.
        last_states: False: nobody asks for the last states; the list of states is empty, and a GPU need not write them.
            Not with `store_states`.
        store_states: return the states after each step rather than the last ones.

    Raises:
        ValueError: for a text that is not legal, with its line; for a number or a shape of tensors that does not fit.
        TypeError: for dtypes that do not fit.

    Returns:
        The outputs and the states.
    """

def channel_statistics(x: Tensor, channel_dim: int = 2) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel of x [T, B, C, ...]. Returns (mean, var).

    Args:
        x: a sequence [T, B, C, ...] of float16, bfloat16, float32 or float64.
        channel_dim: where the channels are: any dimension but time; negative ones count from the end.

    Returns:
        mean and var, [C], over all other dimensions; the variance is divided by the count. In float32 for half types.

    Raises:
        ValueError: for an x without elements, and a dimension that it does not have.
        TypeError: for another dtype, and for sparse tensors.
    """

def connect(
    rows: int, cols: int, rules: Sequence[str], ranges: Sequence[int], amounts: Sequence[float],
    choices: Sequence[bool], laws: Sequence[str], numbers: Sequence[float], arrays: Sequence[Tensor], *, seed: int = 0,
    dtype: torch.dtype | None = None, device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draws a network by the rules of projections, as a CSR matrix with weights and delays; spikeforge.connect calls
    it. Returns (indices, indptr, weights, delays).

    The same network for any number of threads and on every device. Lists are of all projections, one after the other.

    Args:
        rows: of the matrix.
        cols: of the matrix; column j belongs to neuron j % rows.
        seed: which network it is.
        rules: names of rules, one a projection.
        ranges: begin and end of its rows, begin and end of its columns.
        amounts: the probability, degree or number of connections.
        choices: whether autapses, and multapses, are allowed; whether weights, and delays, out of bounds are drawn
            again.
        laws: names of the laws of weights and of delays.
        numbers: of each law first, second, low and high.
        arrays: of the rule "arrays": sources, targets, and of the law "array" weights and delays.
        dtype: of the weights, float64, float32 or float16; None: torch's default.
        device: where the matrix is made.

    Returns:
        indices int32 [connections]; indptr int64 [rows + 1]; weights [connections], or [1] where all are the same;
        delays alike, uint8 or int32.

    Raises:
        ValueError: for what cannot be drawn; it names the projection.
    """

def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sequence[int] = [1], padding: Sequence[int] = [0],
    dilation: Sequence[int] = [1], groups: int = 1, *, bits: int = 1, recompute: bool = False,
) -> Tensor:
    """torch's convolution of spikes (1 to 3 dimensions of space) that keeps bits of x for its backward pass.

    Args:
        x: [B, C, ...] with 1 to 3 dimensions of space, of float16, bfloat16, float32 or float64; spikes 0 or 1, or
            counts up to 15 with `bits=4`.
        weight: [out, C / groups, *kernel].
        bias: [out], or None.
        stride: a number for each dimension of space, or one for all.
        padding: likewise, of zeros.
        dilation: likewise.
        groups: parts into which the channels are divided.
        bits: how many bits of each number of x are kept, 1 or 4; 0 keeps x as it is.
        recompute: the result is not kept by what follows, but made again in the backward pass.

    Raises:
        ValueError: for shapes that do not fit, and on the CPU for a number that does not fit in these bits. On a GPU it
            makes the weight's gradient NaN.
        TypeError: for another dtype of x, and for what is not dense.
    """

def csr_check(indices: Tensor, indptr: Tensor, *, rows: int, cols: int, sorted: bool = True) -> None:
    """Reads a CSR matrix now and raises ValueError with what is wrong with it; products then need not check it.

    Args:
        indices: int32 [nonzeros], in [0, cols).
        indptr: int32 or int64 [rows + 1], rising from 0 to the number of nonzeros.
        rows: of the matrix.
        cols: of the matrix.
        sorted: also refuse rows whose columns fall.

    Raises:
        ValueError: names the row and the index that are wrong.
    """

def csr_transpose(indices: Tensor, indptr: Tensor, *, rows: int, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """The transpose of a CSR matrix, and for each of its nonzeros the slot it has in the original. Returns (indices,
    indptr, slots).

    Args:
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        rows: of the matrix.
        cols: of the matrix.

    Returns:
        indices and indptr of the transpose, and slots: which nonzero of the matrix each of its nonzeros is.

    Raises:
        ValueError: for an index out of bounds.
    """

def csrmm(
    weights: Tensor, indices: Tensor, indptr: Tensor, matrix: Tensor, *, rows: int, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and a matrix of numbers [..., cols, n]; with `transpose`, [..., rows, n].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which all are read.

    Args:
        weights: [nonzeros], or a single element that all share; float16, bfloat16, float32 or float64.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        matrix: [..., cols, n]; with `transpose`, [..., rows, n]; float16, bfloat16, float32 or float64, whatever that
            of the weights is.
        rows: of the stored matrix.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        [..., rows, n], or with `transpose` [..., cols, n], of the weights' dtype. Gradients reach weights and matrix.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes, and for what is not dense.
    """

def csrmv(
    weights: Tensor, indices: Tensor, indptr: Tensor, vector: Tensor, *, rows: int, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and a vector of numbers [..., cols]; with `transpose`, [..., rows].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which all are read.

    Args:
        weights: [nonzeros], or a single element that all share; float16, bfloat16, float32 or float64.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        vector: [..., cols]; with `transpose`, [..., rows]; float16, bfloat16, float32 or float64, whatever that of the
            weights is.
        rows: of the stored matrix.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        [..., rows], or with `transpose` [..., cols], of the weights' dtype. Gradients reach weights and vector.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes, and for what is not dense.
    """

def delayed_linear(
    x: Tensor, weight: Tensor, delay: Tensor, bias: Tensor | None = None, *, max_delay: int,
    interpolation: str = "linear", width: float = 0.5, past: Tensor | None = None,
) -> Tensor:
    """A linear layer over x [T, *batch, I] that hears each input some steps later; weights and delays are learned.

    y[t] is the sum of weight[o, i] x[t - delay[o, i], i], and bias[o]. docs/delays.md says how delays between steps are
    spread.

    Args:
        x: [T, *batch, I].
        weight: [O, I].
        delay: in steps, [O, I] or, one for each input, [I]; below 0 and above max_delay it counts as these.
        bias: [O].
        max_delay: the longest delay, 0 to 4096.
        interpolation: "linear", "triangle" or "gauss".
        width: of triangle and gauss, in steps.
        past: the inputs of the max_delay steps before, [max_delay, *batch, I], the oldest first; zeros where it is not
            given.

    Returns:
        y, [T, *batch, O].

    Source: Hammouamri, Khalfaoui-Hassani and Masquelier, ICLR 2024.
    """

@overload
def eif(
    x: Tensor, v: Tensor | None = None, *, tau: float = 2.0, delta_t: float = 1.0, theta_rh: float = 0.8,
    v_threshold: float = 1.0, v_rest: float = 0.0, v_reset: float | None = -0.1, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
    bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Exponential integrate-and-fire over a whole sequence: x [T, *shape], time first. Returns (spikes, v).

    h = v + (x + v_rest - v + delta_t exp((v - theta_rh) / delta_t)) / tau. It fires where h >= v_threshold; then v is
    v_reset, or under soft reset h less the threshold.

    Args:
        x: input, [T, *shape], of float16, bfloat16, float32 or float64.
        v: voltage before the first step, [*shape]; where it is not given, v_reset, or 0 under soft reset.
        tau: time constant in steps, > 0.
        delta_t: sharpness of the exponential, > 0.
        theta_rh: the rheobase threshold, from where the exponential takes over.
        v_rest: the resting voltage.
        v_threshold: where it fires.
        v_reset: the voltage after a spike; None is soft reset. Leaks lead there, or to 0 under soft reset.
        detach_reset: no gradient flows through the spike in the reset.
        surrogate: name of the spike's derivative (docs/surrogates.md).
        surrogate_args: its numbers, in the order of their table; [] for the defaults.
        spiking: False puts the surrogate's primitive in the place of the step function: a smooth operator.
        store_v: return the states after each step, [T, *shape], rather than the last ones, [*shape].
        bits: 1 writes the spikes as bits too, which `linear` and `convolution` that read them in training then need not
            pack; 0 where none does.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].

    Parameters are numbers, or tensors that broadcast against shape and get their gradients.

    Raises:
        ValueError: for a shape, a value, or a surrogate that is not legal; it names the argument.
        TypeError: for a dtype that it does not take; half types have states of float32.

    Source: Fang et al., Science Advances 9, eadi1480 (2023).
    """
@overload
def eif(
    x: Tensor, v: Tensor | None = None, *, tau: Tensor | None = None, delta_t: Tensor | None = None,
    theta_rh: Tensor | None = None, v_threshold: Tensor | None = None, v_rest: Tensor | None = None,
    v_reset: Tensor | None, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False, bits: int = 0,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def eif(
    x: Tensor, v: Tensor | None = None, *, tau: float | Tensor | None = 2.0, delta_t: float | Tensor | None = 1.0,
    theta_rh: float | Tensor | None = 0.8, v_threshold: float | Tensor | None = 1.0,
    v_rest: float | Tensor | None = 0.0, v_reset: float | Tensor | None = -0.1, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
    bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...

def eligibility_gradient(grad: Tensor, trace: Tensor) -> Tensor:
    """What the gradient of a state [*batch, N] is to a weight by its trace [*batch, N, I].

    Σ_b grad[b, n] trace[b, n, i], over the whole batch.

    Args:
        grad: [*batch, N].
        trace: [*batch, N, I], of its type.

    Returns:
        [N, I].
    """

def ellmm(
    weights: Tensor, indices: Tensor, matrix: Tensor, *, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and a matrix of numbers [..., cols, n].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which all are read.

    Args:
        weights: [nonzeros], or a single element that all share; float16, bfloat16, float32 or float64.
        indices: int32, the columns, [rows, nonzeros a row].
        matrix: [..., cols, n]; with `transpose`, [..., rows, n]; float16, bfloat16, float32 or float64, whatever that
            of the weights is.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        [..., rows, n], or with `transpose` [..., cols, n], of the weights' dtype. Gradients reach weights and matrix.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes, and for what is not dense.
    """

def ellmv(
    weights: Tensor, indices: Tensor, vector: Tensor, *, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and a vector of numbers [..., cols].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which all are read.

    Args:
        weights: [nonzeros], or a single element that all share; float16, bfloat16, float32 or float64.
        indices: int32, the columns, [rows, nonzeros a row].
        vector: [..., cols]; with `transpose`, [..., rows]; float16, bfloat16, float32 or float64, whatever that of the
            weights is.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        [..., rows], or with `transpose` [..., cols], of the weights' dtype. Gradients reach weights and vector.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes, and for what is not dense.
    """

def event_csrmm(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, *, rows: int, cols: int, transpose: bool = False,
    graded: bool = False, deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and events, entries that are true or > 0, [..., cols, n]; with `transpose`, [..., rows,
    n].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which rows that fired
    alone are read.

    Args:
        weights: [nonzeros], or a single element that all share; float16, bfloat16, float32 or float64.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        events: [..., cols, n]; with `transpose`, [..., rows, n]; bool, float16, bfloat16, float32 or float64, whatever
            that of the weights is.
        rows: of the stored matrix.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        [..., rows, n], or with `transpose` [..., cols, n], of the weights' dtype. Gradients reach weights and events.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes, and for what is not dense.
    """

def event_csrmv(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, *, rows: int, cols: int, transpose: bool = False,
    graded: bool = False, deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and events, entries that are true or > 0, [..., cols]; with `transpose`, [..., rows].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which rows that fired
    alone are read.

    Args:
        weights: [nonzeros], or a single element that all share; float16, bfloat16, float32 or float64.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        events: [..., cols]; with `transpose`, [..., rows]; bool, float16, bfloat16, float32 or float64, whatever that
            of the weights is.
        rows: of the stored matrix.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        [..., rows], or with `transpose` [..., cols], of the weights' dtype. Gradients reach weights and events.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes, and for what is not dense.
    """

def event_csrmv_delayed(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, delays: Tensor, buffer: Tensor, step: Tensor, *,
    rows: int, cols: int, transpose: bool = False, graded: bool = False, deterministic: bool = False,
    unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and events, entries that are true or > 0, which arrives after the delay of each
    connection: the buffer of what is on its way.

    What arrives at step t stands in buffer[t % slots]; an event of step t through a connection of delay d is added to
    buffer[(t + d) % slots].

    Args:
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1.
        indptr: int32 or int64 [rows + 1], where rows begin.
        events: [*batch, cols], true or > 0; with `transpose`, [*batch, rows].
        delays: uint8 or int32, of the shape of indices or a single element, from 0 to slots - 1.
        buffer: [slots, *batch, rows], or with `transpose` [slots, *batch, cols]; of the weights' dtype, float32 for
            half types.
        step: int64, 0-dimensional, on the CPU or the buffer's device.
        rows: of the stored matrix.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        The new buffer. Gradients reach weights, events (straight through) and buffer.

    Raises:
        ValueError: for shapes that do not fit, and for an index, a delay or a step out of bounds (on a GPU at the next
            call).
    """

def event_csrmv_delayed_(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, delays: Tensor, buffer: Tensor, step: Tensor, *,
    rows: int, cols: int, transpose: bool = False, graded: bool = False, deterministic: bool = False,
    unchecked: bool = False,
) -> None:
    """event_csrmv_delayed that adds to the buffer in place.

    What arrives at step t stands in buffer[t % slots]; an event of step t through a connection of delay d is added to
    buffer[(t + d) % slots].

    Args:
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1.
        indptr: int32 or int64 [rows + 1], where rows begin.
        events: [*batch, cols], true or > 0; with `transpose`, [*batch, rows].
        delays: uint8 or int32, of the shape of indices or a single element, from 0 to slots - 1.
        buffer: [slots, *batch, rows], or with `transpose` [slots, *batch, cols]; of the weights' dtype, float32 for
            half types.
        step: int64, 0-dimensional, on the CPU or the buffer's device.
        rows: of the stored matrix.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Raises:
        ValueError: for shapes that do not fit, and for an index, a delay or a step out of bounds (on a GPU at the next
            call).
    """

def event_ellmm(
    weights: Tensor, indices: Tensor, events: Tensor, *, cols: int, transpose: bool = False, graded: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and events [..., cols, n].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which rows that fired
    alone are read.

    Args:
        weights: [nonzeros], or a single element that all share; float16, bfloat16, float32 or float64.
        indices: int32, the columns, [rows, nonzeros a row].
        events: [..., cols, n]; with `transpose`, [..., rows, n]; bool, float16, bfloat16, float32 or float64, whatever
            that of the weights is.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        [..., rows, n], or with `transpose` [..., cols, n], of the weights' dtype. Gradients reach weights and events.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes, and for what is not dense.
    """

def event_ellmv(
    weights: Tensor, indices: Tensor, events: Tensor, *, cols: int, transpose: bool = False, graded: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and events [..., cols].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which rows that fired
    alone are read.

    Args:
        weights: [nonzeros], or a single element that all share; float16, bfloat16, float32 or float64.
        indices: int32, the columns, [rows, nonzeros a row].
        events: [..., cols]; with `transpose`, [..., rows]; bool, float16, bfloat16, float32 or float64, whatever that
            of the weights is.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        [..., rows], or with `transpose` [..., cols], of the weights' dtype. Gradients reach weights and events.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes, and for what is not dense.
    """

def event_ellmv_delayed(
    weights: Tensor, indices: Tensor, events: Tensor, delays: Tensor, buffer: Tensor, step: Tensor, *, cols: int,
    transpose: bool = False, graded: bool = False, deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """event_csrmv_delayed of a matrix with equally many nonzeros a row.

    What arrives at step t stands in buffer[t % slots]; an event of step t through a connection of delay d is added to
    buffer[(t + d) % slots].

    Args:
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32, the columns, [rows, nonzeros a row].
        events: [*batch, cols], true or > 0; with `transpose`, [*batch, rows].
        delays: uint8 or int32, of the shape of indices or a single element, from 0 to slots - 1.
        buffer: [slots, *batch, rows], or with `transpose` [slots, *batch, cols]; of the weights' dtype, float32 for
            half types.
        step: int64, 0-dimensional, on the CPU or the buffer's device.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        The new buffer. Gradients reach weights, events (straight through) and buffer.

    Raises:
        ValueError: for shapes that do not fit, and for an index, a delay or a step out of bounds (on a GPU at the next
            call).
    """

def event_ellmv_delayed_(
    weights: Tensor, indices: Tensor, events: Tensor, delays: Tensor, buffer: Tensor, step: Tensor, *, cols: int,
    transpose: bool = False, graded: bool = False, deterministic: bool = False, unchecked: bool = False,
) -> None:
    """event_ellmv_delayed that adds to the buffer in place.

    What arrives at step t stands in buffer[t % slots]; an event of step t through a connection of delay d is added to
    buffer[(t + d) % slots].

    Args:
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32, the columns, [rows, nonzeros a row].
        events: [*batch, cols], true or > 0; with `transpose`, [*batch, rows].
        delays: uint8 or int32, of the shape of indices or a single element, from 0 to slots - 1.
        buffer: [slots, *batch, rows], or with `transpose` [slots, *batch, cols]; of the weights' dtype, float32 for
            half types.
        step: int64, 0-dimensional, on the CPU or the buffer's device.
        cols: of the stored matrix.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Raises:
        ValueError: for shapes that do not fit, and for an index, a delay or a step out of bounds (on a GPU at the next
            call).
    """

def event_linear(events: Tensor, weight: Tensor, bias: Tensor | None = None, *, graded: bool = False) -> Tensor:
    """Adds up the rows of weight [in, out] whose inputs fired; events [..., in], or bits of pack_events.

    Args:
        events: [..., in], an event where true or > 0; bool, float16, bfloat16, float32 or float64. Or int32 bits [...,
            ceil(in / 32)] of `pack_events`.
        weight: [in, out], of float16, bfloat16, float32 or float64; rows of inputs that did not fire are not read.
        bias: [out], of the weight's dtype, or None.
        graded: an event counts its number rather than 1; not of bits.

    Returns:
        [..., out] of the weight's dtype. Gradients reach events (straight through), weight and bias.

    Raises:
        ValueError: for shapes and devices that do not fit, and for bits with `graded`.
        TypeError: for other dtypes, and for what is not dense.
    """

@overload
def integrate_and_fire(
    x: Tensor, v: Tensor | None = None, *, v_threshold: float = 1.0, v_reset: float | None = 0.0,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False, bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Integrate-and-fire over a whole sequence: x [T, *shape], time first. Returns (spikes, v).

    h = v + x. It fires where h >= v_threshold; then v is v_reset, or under soft reset h less the threshold.

    Args:
        x: input, [T, *shape], of float16, bfloat16, float32 or float64.
        v: voltage before the first step, [*shape]; where it is not given, v_reset, or 0 under soft reset.

        v_threshold: where it fires.
        v_reset: the voltage after a spike; None is soft reset. Leaks lead there, or to 0 under soft reset.
        detach_reset: no gradient flows through the spike in the reset.
        surrogate: name of the spike's derivative (docs/surrogates.md).
        surrogate_args: its numbers, in the order of their table; [] for the defaults.
        spiking: False puts the surrogate's primitive in the place of the step function: a smooth operator.
        store_v: return the states after each step, [T, *shape], rather than the last ones, [*shape].
        bits: 1 writes the spikes as bits too, which `linear` and `convolution` that read them in training then need not
            pack; 0 where none does.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].

    Parameters are numbers, or tensors that broadcast against shape and get their gradients.

    Raises:
        ValueError: for a shape, a value, or a surrogate that is not legal; it names the argument.
        TypeError: for a dtype that it does not take; half types have states of float32.

    Source: Fang et al., Science Advances 9, eadi1480 (2023).
    """
@overload
def integrate_and_fire(
    x: Tensor, v: Tensor | None = None, *, v_threshold: Tensor | None = None, v_reset: Tensor | None,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False, bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def integrate_and_fire(
    x: Tensor, v: Tensor | None = None, *, v_threshold: float | Tensor | None = 1.0,
    v_reset: float | Tensor | None = 0.0, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False, bits: int = 0,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...

@overload
def izhikevich(
    x: Tensor, v: Tensor | None = None, w: Tensor | None = None, *, tau: float = 2.0, v_c: float = 0.8, a0: float = 1.0,
    v_threshold: float = 1.0, v_rest: float = -0.1, w_rest: float = 0.0, v_reset: float | None = 0.0,
    tau_w: float = 2.0, a: float = 0.0, b: float = 0.0, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False, bits: int = 0,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Izhikevich's neuron with its recovery variable w, over a whole sequence: x [T, *shape], time first. Returns
    (spikes, v, w).

    h = v + (x + a0 (v - v_rest) (v - v_c) - w) / tau; next w = w + (a (h - v_rest) - w) / tau_w + b s. It fires where h
    >= v_threshold; then v is v_reset, or under soft reset h less the threshold.

    Args:
        x: input, [T, *shape], of float16, bfloat16, float32 or float64.
        v: voltage before the first step, [*shape]; where it is not given, v_reset, or 0 under soft reset.
        w: recovery before the first step, [*shape]; where it is not given, w_rest.
        tau: time constant in steps, > 0.
        v_c: the critical voltage, above which v runs away.
        a0: sharpness of the square.
        v_rest: the resting voltage.
        w_rest: where w starts.
        tau_w: time constant of w in steps, > 0.
        a: how w follows v.
        b: what a spike adds to w.
        v_threshold: where it fires.
        v_reset: the voltage after a spike; None is soft reset. Leaks lead there, or to 0 under soft reset.
        detach_reset: no gradient flows through the spike in the reset.
        surrogate: name of the spike's derivative (docs/surrogates.md).
        surrogate_args: its numbers, in the order of their table; [] for the defaults.
        spiking: False puts the surrogate's primitive in the place of the step function: a smooth operator.
        store_v: return the states after each step, [T, *shape], rather than the last ones, [*shape].
        bits: 1 writes the spikes as bits too, which `linear` and `convolution` that read them in training then need not
            pack; 0 where none does.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].

    Parameters are numbers, or tensors that broadcast against shape and get their gradients.

    Raises:
        ValueError: for a shape, a value, or a surrogate that is not legal; it names the argument.
        TypeError: for a dtype that it does not take; half types have states of float32.

    Source: Fang et al., Science Advances 9, eadi1480 (2023).
    """
@overload
def izhikevich(
    x: Tensor, v: Tensor | None = None, w: Tensor | None = None, *, tau: Tensor | None = None,
    v_c: Tensor | None = None, a0: Tensor | None = None, v_threshold: Tensor | None = None,
    v_rest: Tensor | None = None, w_rest: Tensor | None = None, v_reset: Tensor | None, tau_w: Tensor | None = None,
    a: Tensor | None = None, b: Tensor | None = None, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False, bits: int = 0,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def izhikevich(
    x: Tensor, v: Tensor | None = None, w: Tensor | None = None, *, tau: float | Tensor | None = 2.0,
    v_c: float | Tensor | None = 0.8, a0: float | Tensor | None = 1.0, v_threshold: float | Tensor | None = 1.0,
    v_rest: float | Tensor | None = -0.1, w_rest: float | Tensor | None = 0.0, v_reset: float | Tensor | None = 0.0,
    tau_w: float | Tensor | None = 2.0, a: float | Tensor | None = 0.0, b: float | Tensor | None = 0.0,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False, bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...

def jit_csrmm(
    weights: Tensor, events: Tensor, *, rows: int, cols: int, prob: float, seed: int, law: str = "constant",
    transpose: bool = False, values: str = "event", deterministic: bool = False,
) -> Tensor:
    """Product of a random matrix that is never stored and [..., cols, n].

    Each entry of the [rows, cols] matrix is a nonzero with probability `prob`; `seed` says which matrix it is, on every
    device alike. It is
    drawn anew in each call.

    Args:
        weights: the numbers of the law: [1] for "constant", [2] for "uniform" (from, to) and "normal" (mean,
            deviation); float16, bfloat16, float32 or float64.
        events: [..., cols, n]; with `transpose`, [..., rows, n]; float16, bfloat16, float32 or float64, or bool unless
            `values` is "number".
        rows: of the stored matrix.
        cols: of the stored matrix.
        prob: of each entry to be a nonzero, 0 to 1.
        seed: which matrix it is.
        law: of the nonzeros: "constant", "uniform" or "normal". Where they are does not depend on it.
        transpose: e A, [..., rows, n] in and [..., cols, n] out.
        values: what entries are: "event" (1 where > 0), "graded" (their number where > 0) or "number".
        deterministic: the same bits in every call, also where a GPU adds in any order.

    Returns:
        [..., rows, n], or with `transpose` [..., cols, n], of the weights' dtype. Gradients reach weights and events.

    Raises:
        ValueError: for a probability, a law or a shape that is not legal.
        TypeError: for other dtypes, and for what is not dense.
    """

def jit_csrmv(
    weights: Tensor, events: Tensor, *, rows: int, cols: int, prob: float, seed: int, law: str = "constant",
    transpose: bool = False, values: str = "event", deterministic: bool = False,
) -> Tensor:
    """Product of a random matrix that is never stored and [..., cols].

    Each entry of the [rows, cols] matrix is a nonzero with probability `prob`; `seed` says which matrix it is, on every
    device alike. It is
    drawn anew in each call.

    Args:
        weights: the numbers of the law: [1] for "constant", [2] for "uniform" (from, to) and "normal" (mean,
            deviation); float16, bfloat16, float32 or float64.
        events: [..., cols]; with `transpose`, [..., rows]; float16, bfloat16, float32 or float64, or bool unless
            `values` is "number".
        rows: of the stored matrix.
        cols: of the stored matrix.
        prob: of each entry to be a nonzero, 0 to 1.
        seed: which matrix it is.
        law: of the nonzeros: "constant", "uniform" or "normal". Where they are does not depend on it.
        transpose: e A, [..., rows] in and [..., cols] out.
        values: what entries are: "event" (1 where > 0), "graded" (their number where > 0) or "number".
        deterministic: the same bits in every call, also where a GPU adds in any order.

    Returns:
        [..., rows], or with `transpose` [..., cols], of the weights' dtype. Gradients reach weights and events.

    Raises:
        ValueError: for a probability, a law or a shape that is not legal.
        TypeError: for other dtypes, and for what is not dense.
    """

def jit_csrmv_delayed(
    weights: Tensor, events: Tensor, buffer: Tensor, step: Tensor, *, rows: int, cols: int, prob: float, seed: int,
    delays: Sequence[float], law: str = "constant", delay_law: str = "constant", transpose: bool = False,
    values: str = "event", deterministic: bool = False,
) -> Tensor:
    """event_csrmv_delayed of a random matrix that is never stored, with drawn delays.

    The matrix is that of `jit_csrmv` with the same seed; each nonzero has a delay too, drawn from a hash of its place.

    Args:
        weights: the numbers of the law: [1] for "constant", [2] for "uniform" (from, to) and "normal" (mean,
            deviation); float16, bfloat16, float32 or float64.
        events: [*batch, cols]; with `transpose`, [*batch, rows]; float16, bfloat16, float32 or float64, or bool unless
            `values` is "number".
        buffer: [slots, *batch, rows], or with `transpose` [slots, *batch, cols]; of the weights' dtype, float32 for
            half types.
        step: int64, 0-dimensional, on the CPU or the buffer's device.
        delays: the numbers of the law: [d] for "constant", [first, last] for "uniform" (whole numbers, both of them
            too), [mean, deviation] for
            "normal" (rounded, and clipped to the slots).
        rows: of the stored matrix.
        cols: of the stored matrix.
        prob: of each entry to be a nonzero, 0 to 1.
        seed: which matrix it is.
        law: of the weights: "constant", "uniform" or "normal".
        delay_law: of the delays: "constant", "uniform" or "normal".
        transpose: e A rather than A e.
        values: what entries are: "event" (1 where > 0), "graded" (their number where > 0) or "number".
        deterministic: the same bits in every call, also where a GPU adds in any order.

    Raises:
        ValueError: for a probability, a law, a delay or a shape that is not legal.
    """

def jit_csrmv_delayed_(
    weights: Tensor, events: Tensor, buffer: Tensor, step: Tensor, *, rows: int, cols: int, prob: float, seed: int,
    delays: Sequence[float], law: str = "constant", delay_law: str = "constant", transpose: bool = False,
    values: str = "event", deterministic: bool = False,
) -> None:
    """jit_csrmv_delayed that adds to the buffer in place.

    The matrix is that of `jit_csrmv` with the same seed; each nonzero has a delay too, drawn from a hash of its place.

    Args:
        weights: the numbers of the law: [1] for "constant", [2] for "uniform" (from, to) and "normal" (mean,
            deviation); float16, bfloat16, float32 or float64.
        events: [*batch, cols]; with `transpose`, [*batch, rows]; float16, bfloat16, float32 or float64, or bool unless
            `values` is "number".
        buffer: [slots, *batch, rows], or with `transpose` [slots, *batch, cols]; of the weights' dtype, float32 for
            half types.
        step: int64, 0-dimensional, on the CPU or the buffer's device.
        delays: the numbers of the law: [d] for "constant", [first, last] for "uniform" (whole numbers, both of them
            too), [mean, deviation] for
            "normal" (rounded, and clipped to the slots).
        rows: of the stored matrix.
        cols: of the stored matrix.
        prob: of each entry to be a nonzero, 0 to 1.
        seed: which matrix it is.
        law: of the weights: "constant", "uniform" or "normal".
        delay_law: of the delays: "constant", "uniform" or "normal".
        transpose: e A rather than A e.
        values: what entries are: "event" (1 where > 0), "graded" (their number where > 0) or "number".
        deterministic: the same bits in every call, also where a GPU adds in any order.

    Raises:
        ValueError: for a probability, a law, a delay or a shape that is not legal.
    """

def lava_neuron(name: str) -> str:
    """The neuron text of one of Lava's floating-point neurons, for `run`.

    Args:
        name: "lif", "ternary_lif", "lif_reset" or "lif_refractory", whose parameters are du, dv, bias and vth (vth_hi
            and vth_lo), then interval and offset, or period, and which fire strictly above the threshold; or "atrlif",
            "rf", "sigma", "delta", "sigma_delta" or "sigma_delta_unit", whose names docs/loihi.md lists.

    Raises:
        ValueError: for any other name.

    Source: the floating-point models of Lava (github.com/lava-nc/lava).
    """

@overload
def lif(
    x: Tensor, v: Tensor | None = None, *, tau: float = 2.0, decay_input: bool = True, v_threshold: float = 1.0,
    v_reset: float | None = 0.0, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False, bits: int = 0,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Leaky integrate-and-fire over a whole sequence: x [T, *shape], time first. Returns (spikes, v).

    h = v + (x - (v - v_reset)) / tau, or without `decay_input` h = v - (v - v_reset) / tau + x. It fires where h >=
    v_threshold; then v is v_reset, or under soft reset h less the threshold.

    Args:
        x: input, [T, *shape], of float16, bfloat16, float32 or float64.
        v: voltage before the first step, [*shape]; where it is not given, v_reset, or 0 under soft reset.
        tau: time constant in steps, > 0.
        decay_input: divide x by tau too.
        v_threshold: where it fires.
        v_reset: the voltage after a spike; None is soft reset. Leaks lead there, or to 0 under soft reset.
        detach_reset: no gradient flows through the spike in the reset.
        surrogate: name of the spike's derivative (docs/surrogates.md).
        surrogate_args: its numbers, in the order of their table; [] for the defaults.
        spiking: False puts the surrogate's primitive in the place of the step function: a smooth operator.
        store_v: return the states after each step, [T, *shape], rather than the last ones, [*shape].
        bits: 1 writes the spikes as bits too, which `linear` and `convolution` that read them in training then need not
            pack; 0 where none does.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].

    Parameters are numbers, or tensors that broadcast against shape and get their gradients.

    Raises:
        ValueError: for a shape, a value, or a surrogate that is not legal; it names the argument.
        TypeError: for a dtype that it does not take; half types have states of float32.

    Source: Fang et al., Science Advances 9, eadi1480 (2023).
    """
@overload
def lif(
    x: Tensor, v: Tensor | None = None, *, tau: Tensor | None = None, decay_input: bool = True,
    v_threshold: Tensor | None = None, v_reset: Tensor | None, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False, bits: int = 0,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def lif(
    x: Tensor, v: Tensor | None = None, *, tau: float | Tensor | None = 2.0, decay_input: bool = True,
    v_threshold: float | Tensor | None = 1.0, v_reset: float | Tensor | None = 0.0, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
    bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...

def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, bits: int = 1, recompute: bool = False,
) -> Tensor:
    """torch's linear layer of spikes that keeps bits of x for its backward pass.

    Args:
        x: [..., in], of float16, bfloat16, float32 or float64; spikes 0 or 1, or counts up to 15 with `bits=4`.
        weight: [out, in].
        bias: [out], or None.
        bits: how many bits of each number of x are kept, 1 or 4; 0 keeps x as it is.
        recompute: the result is not kept by what follows, but made again in the backward pass.

    Raises:
        ValueError: for shapes that do not fit, and on the CPU for a number that does not fit in these bits. On a GPU it
            makes the weight's gradient NaN.
        TypeError: for another dtype of x, and for what is not dense.
    """

def load_kernel_pack(path: str) -> int:
    """Adds a file of compiled GPU kernels to those of this process; how many it has.

    Args:
        path: of the file.

    Raises:
        ValueError: for a file that is no pack of this build of the library.
    """

def local_jacobian(
    neuron: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor], into: int,
    of_params: Sequence[int],
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The derivatives of a neuron's states after some steps by those before, by an input and by parameters. Returns
    (transitions, drives, param_drives).

    How a neuron's states after some steps depend on those before, and on what came in. Nothing of it has a gradient.

    Args:
        neuron: its text.
        inputs: each [T, *shape].
        states: before the steps, each [*shape].
        params: broadcast against shape.
        into: which input.
        of_params: which parameters.

    Returns:
        dv_k / du_l for each pair of states, row after row, [*shape]; dv_k / dx[t] for each state, [T, *shape]; and dv_k
        / dp for
        each state of each parameter, [*shape].
    """

def loihi_conv(
    x: Tensor, weight: Tensor, buffer: Tensor | None = None, *, stride: Sequence[int] = [1, 1],
    padding: Sequence[int] = [0, 0], dilation: Sequence[int] = [1, 1], groups: int = 1, delay: int = 1,
    weight_exp: int = 0, num_message_bits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Convolution of Loihi, of two dimensions, after `delay` steps, whose sums wrap around at 24 bits. Returns (y,
    buffer).

    Args:
        x: messages, [T, *batch, in, height, width]: int32, or float32 or float64 that hold whole numbers.
        weight: [out, in / groups, height, width], of the type of x, prepared, -256 to 255, as that of torch's conv2d.
        stride: in height and width.
        padding: zeros around an image, in height and width.
        dilation: in height and width.
        groups: of channels.
        delay: in steps, 0 to 64.
        buffer: what is still on its way, [delay, *batch, out, height, width], of the type of x; 0 where it is not
            given.
        weight_exp: sums are shifted to the left by it, or arithmetically to the right, -8 to 7.
        num_message_bits: 0 where a message is a spike, and anything but 0 counts as 1.

    Returns:
        y [T, *batch, out, height, width], and the buffer after the last step. Sums wrap around at 24 bits. Of a
        floating-point x, beside weights of its type, they have gradients: those of the product of numbers, straight
        through shift and wrap.

    Raises:
        ValueError: for a shape or a number out of its range.
        TypeError: for another dtype.
    """

def loihi_delay_dense(
    x: Tensor, weight: Tensor, delays: Tensor, buffer: Tensor | None = None, *, max_delay: int, weight_exp: int = 0,
    num_message_bits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Dense connection of Loihi with a delay for each synapse: x [T, *batch, in] to [T, *batch, out]. Returns (y,
    buffer).

    Args:
        x: messages, [T, *batch, in]: int32, or float32 or float64 that hold whole numbers.
        weight: [out, in], of the type of x, prepared by `loihi_prepare_weights` or `loihi_fake_quantize`, -256 to 255.
        delays: of each synapse, int32 [out, in] steps, 0 to max_delay.
        buffer: what is still on its way, [max_delay, *batch, out], of the type of x; 0 where it is not given.
        max_delay: the longest delay, 0 to 63.
        weight_exp: sums are shifted to the left by it, or arithmetically to the right, -8 to 7.
        num_message_bits: 0 where a message is a spike, and anything but 0 counts as 1.

    Returns:
        y [T, *batch, out], and the buffer after the last step. Sums are exact modulo 2**32. Of a floating-point x,
        beside weights of its type, they have gradients: those of the product of numbers, straight through the shift.

    Raises:
        ValueError: for a shape or a number out of its range.
        TypeError: for another dtype.
    """

def loihi_dense(
    x: Tensor, weight: Tensor, buffer: Tensor | None = None, *, delay: int = 1, weight_exp: int = 0,
    num_message_bits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Dense connection of Loihi: x [T, *batch, in] to [T, *batch, out], after `delay` steps. Returns (y, buffer).

    Args:
        x: messages, [T, *batch, in]: int32, or float32 or float64 that hold whole numbers.
        weight: [out, in], of the type of x, prepared by `loihi_prepare_weights` or `loihi_fake_quantize`, -256 to 255.
        delay: in steps, 0 to 64.
        buffer: what is still on its way, [delay, *batch, out], of the type of x; 0 where it is not given.
        weight_exp: sums are shifted to the left by it, or arithmetically to the right, -8 to 7.
        num_message_bits: 0 where a message is a spike, and anything but 0 counts as 1.

    Returns:
        y [T, *batch, out], and the buffer after the last step. Sums are exact modulo 2**32. Of a floating-point x,
        beside weights of its type, they have gradients: those of the product of numbers, straight through the shift.

    Raises:
        ValueError: for a shape or a number out of its range.
        TypeError: for another dtype.
    """

def loihi_fake_quantize(
    weight: Tensor, *, num_weight_bits: int = 8, sign_mode: str | None = None, truncate: bool = False,
) -> Tensor:
    """Weights as Loihi stores them, as floating-point numbers with the gradient of a clip.

    Args:
        weight: floating point.
        num_weight_bits: 1 to 8.
        sign_mode: "mixed", "excitatory" or "inhibitory"; read off the weights, truncated toward zero, where it is not
            given.
        truncate: as `loihi_prepare_weights` does, and not to the nearest number that the chip has.

    Returns:
        Whole numbers in the type of weight. The gradient is that of a clip to the range of the sign mode.

    Raises:
        ValueError: for a NaN, and a number out of its range.
        TypeError: for weights that are no floating-point numbers.
    """

@overload
def loihi_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: float = 0, dv: float = 0, bias_mant: float = 0,
    bias_exp: float = 0, vth: float = 10, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [],
    detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """LIF in Loihi's fixed-point arithmetic: x [T, *shape], time first. Returns (spikes, u, v).

    Args:
        x: [T, *shape], of which 1 is 64 units of the voltage: int32, or float32 or float64 that hold whole numbers, up
            to 2**17.
        u: current before the first step, [*shape], of the type of x; 0 where it is not given.
        v: voltage before the first step, [*shape], of the type of x; 0 where it is not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4096.
        bias_mant: the mantissa of the bias, which is bias_mant * 2**bias_exp, -4096 to 4095.
        bias_exp: its exponent, -31 to 7.
        vth: it fires where v > 64 vth, 0 to 131072.
        store_states: return the states after each step rather than the last ones.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].
        surrogate: of a floating-point x: it sees the voltage above the threshold, in units of the threshold.
        surrogate_args: its numbers, in the order of docs/surrogates.md; [] for its defaults.
        detach_reset: of a floating-point x: no gradient flows through the spike in the reset.

    Parameters are numbers, or tensors that broadcast against shape: all of the one kind, but for a tensor `bias_mant`
    beside numbers. Among tensors None is the default. They are int32, or beside a floating-point x of its type. Of a
    floating-point x the results have its type and the same values, and gradients, straight through rounding and wraps;
    integers have none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for another dtype.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: float = 0, dv: float = 0, bias_mant: Tensor,
    bias_exp: float = 0, vth: float = 10, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [],
    detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def loihi_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: Tensor | None = None, dv: Tensor | None = None,
    bias_mant: Tensor | None = None, bias_exp: Tensor | None = None, vth: Tensor | None = None,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...

@overload
def loihi_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: float = 0,
    dv: float = 0, bias_mant: float = 0, bias_exp: float = 0, vth: float = 10, refractory_period: int = 1,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF with a refractory period, in Loihi's fixed-point arithmetic: x [T, *shape], time first. Returns (spikes, u,
    v, wait).

    Args:
        x: [T, *shape], of which 1 is 64 units of the voltage: int32, or float32 or float64 that hold whole numbers, up
            to 2**17.
        u: current before the first step, [*shape], of the type of x; 0 where it is not given.
        v: voltage before the first step, [*shape], of the type of x; 0 where it is not given.
        wait: for how many steps v still stays as it is, int32 [*shape]; 0 where it is not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4096.
        bias_mant: the mantissa of the bias, which is bias_mant * 2**bias_exp, -4096 to 4095.
        bias_exp: its exponent, -31 to 7.
        vth: it fires where v > 64 vth, 0 to 131072.
        refractory_period: steps for which v stays as it is after a spike.
        store_states: return the states after each step rather than the last ones.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].
        surrogate: of a floating-point x: it sees the voltage above the threshold, in units of the threshold.
        surrogate_args: its numbers, in the order of docs/surrogates.md; [] for its defaults.
        detach_reset: of a floating-point x: no gradient flows through the spike in the reset.

    Parameters are numbers, or tensors that broadcast against shape: all of the one kind, but for a tensor `bias_mant`
    beside numbers. Among tensors None is the default. They are int32, or beside a floating-point x of its type. Of a
    floating-point x the results have its type and the same values, and gradients, straight through rounding and wraps;
    integers have none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for another dtype.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: float = 0,
    dv: float = 0, bias_mant: Tensor, bias_exp: float = 0, vth: float = 10, refractory_period: int = 1,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth: Tensor | None = None, refractory_period: int = 1, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [],
    detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

@overload
def loihi_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: float = 0,
    dv: float = 0, bias_mant: float = 0, bias_exp: float = 0, vth: float = 10, reset_interval: int = 1,
    reset_offset: int = 0, store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF whose states are reset every `reset_interval` steps, in Loihi's fixed-point arithmetic: x [T, *shape], time
    first. Returns (spikes, u, v, phase).

    Args:
        x: [T, *shape], of which 1 is 64 units of the voltage: int32, or float32 or float64 that hold whole numbers, up
            to 2**17.
        u: current before the first step, [*shape], of the type of x; 0 where it is not given.
        v: voltage before the first step, [*shape], of the type of x; 0 where it is not given.
        phase: steps so far modulo `reset_interval`, int32 [*shape]; 0 where it is not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4096.
        bias_mant: the mantissa of the bias, which is bias_mant * 2**bias_exp, -4096 to 4095.
        bias_exp: its exponent, -31 to 7.
        vth: it fires where v > 64 vth, 0 to 131072.
        reset_interval: u and v are set to 0 every so many steps, 1 or more.
        reset_offset: the number of such a step, counted from 1 and modulo `reset_interval`; u and v are 0 ahead of it.
        store_states: return the states after each step rather than the last ones.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].
        surrogate: of a floating-point x: it sees the voltage above the threshold, in units of the threshold.
        surrogate_args: its numbers, in the order of docs/surrogates.md; [] for its defaults.
        detach_reset: of a floating-point x: no gradient flows through the spike in the reset.

    Parameters are numbers, or tensors that broadcast against shape: all of the one kind, but for a tensor `bias_mant`
    beside numbers. Among tensors None is the default. They are int32, or beside a floating-point x of its type. Of a
    floating-point x the results have its type and the same values, and gradients, straight through rounding and wraps;
    integers have none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for another dtype.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: float = 0,
    dv: float = 0, bias_mant: Tensor, bias_exp: float = 0, vth: float = 10, reset_interval: int = 1,
    reset_offset: int = 0, store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth: Tensor | None = None, reset_interval: int = 1, reset_offset: int = 0, store_states: bool = False,
    lengths: Tensor | None = None, start: Tensor | None = None, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

def loihi_neuron(name: str, *, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = []) -> str:
    """Fixed-point neurons of Loihi as neuron text, on floating-point numbers that are whole.

    Args:
        name: lif, lif_reset, lif_refractory, ternary_lif, ternary_lif_reset, ternary_lif_refractory, atrlif, rf, delta,
            sigma_delta or sigma_delta_unit.
        surrogate: of its spikes.
        surrogate_args: the surrogate's numbers; [] for its defaults.

    Returns:
        The neuron text, for `run`: on float32 or float64 that hold whole numbers.

    Raises:
        ValueError: for another name.
    """

def loihi_optimize_weight_bits(weight: Tensor, *, sign_mode: str | None = None) -> tuple[Tensor, int, int]:
    """Integer weights in the fewest bits, and the exponent that makes up for it. Returns (weights, num_weight_bits,
    weight_exp).

    Args:
        weight: whole numbers in the range of the sign mode; others are truncated toward zero.
        sign_mode: "mixed", "excitatory" or "inhibitory"; read off the weights where it is not given.

    Returns:
        The weights times the largest 2**-weight_exp that fits, int32 on the CPU; the fewest bits that hold these; and
        weight_exp, -8 to 0.

    Raises:
        ValueError: for a weight out of the range.
    """

def loihi_prepare_weights(weight: Tensor, *, num_weight_bits: int = 8, sign_mode: str | None = None) -> Tensor:
    """Weights as Loihi's Dense stores them: rounded to the chip's bits.

    Args:
        weight: int32, clipped to -256 and 255.
        num_weight_bits: 1 to 8; weights are rounded to as many bits, and to even numbers where signs are mixed.
        sign_mode: of the chip; read off the weights where it is not given.

    Source: Lava's Dense (github.com/lava-nc/lava).
    """

def loihi_quantize(
    weight: Tensor, bias: Tensor | None = None, *, tau: float = 2.0, decay_input: bool = True, v_threshold: float = 1.0,
    input_scale: float = 1.0, largest_message: int = 1, num_weight_bits: int = 8,
) -> tuple[Tensor, Tensor, int, int, int, int, float, float, float, float, float]:
    """A float layer and the constants of the `lif` behind it, in Loihi's fixed point, with the errors made. Returns
    (weights, bias_mant, bias_exp, weight_exp, dv, vth, scale, weight_error, bias_error, threshold_error, decay_error).

    Args:
        weight: of the layer, [out, in].
        bias: of the layer, [out], or None.
        tau: of the `lif` behind it, with a hard reset to 0.
        decay_input: of the `lif`.
        v_threshold: of the `lif`.
        input_scale: what a message of 1 is worth.
        largest_message: the largest that comes.
        num_weight_bits: 1 to 8.

    Returns:
        Weights, bias_mant, bias_exp, weight_exp, dv, vth and scale for `loihi_dense` and `loihi_lif`; then the worst
        errors: of a weight, relative to the largest; of the bias, relative to the threshold; of the threshold; and of 1
        / tau.

    Raises:
        ValueError: for a layer that does not fit into the chip's numbers.
    """

def loihi_sparse(
    x: Tensor, crow_indices: Tensor, col_indices: Tensor, values: Tensor, buffer: Tensor | None = None, *,
    delay: int = 1, weight_exp: int = 0, num_message_bits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Sparse (CSR) connection of Loihi: x [T, *batch, in] to [T, *batch, out], after `delay` steps. Returns (y,
    buffer).

    Args:
        x: messages, [T, *batch, in]: int32, or float32 or float64 that hold whole numbers.
        crow_indices: where the rows of the weights [out, in] begin, int64 [out + 1].
        col_indices: of their nonzeros, int64.
        values: of their nonzeros, of the type of x, prepared by `loihi_prepare_weights` or `loihi_fake_quantize`.
        delay: in steps, 0 to 64.
        buffer: what is still on its way, [delay, *batch, out], of the type of x; 0 where it is not given.
        weight_exp: sums are shifted to the left by it, or arithmetically to the right, -8 to 7.
        num_message_bits: 0 where a message is a spike, and anything but 0 counts as 1.

    Returns:
        y [T, *batch, out], and the buffer after the last step. Sums are exact modulo 2**32. Of a floating-point x,
        beside weights of its type, they have gradients: those of the product of numbers, straight through the shift.

    Raises:
        ValueError: for a shape or a number out of its range.
        TypeError: for another dtype.
    """

@overload
def loihi_ternary_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: float = 0, dv: float = 0, bias_mant: float = 0,
    bias_exp: float = 0, vth_hi: float = 10, vth_lo: float = -10, store_states: bool = False,
    lengths: Tensor | None = None, start: Tensor | None = None, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """LIF with spikes -1, 0 and 1, in Loihi's fixed-point arithmetic: x [T, *shape], time first. Returns (spikes, u,
    v).

    Args:
        x: [T, *shape], of which 1 is 64 units of the voltage: int32, or float32 or float64 that hold whole numbers, up
            to 2**17.
        u: current before the first step, [*shape], of the type of x; 0 where it is not given.
        v: voltage before the first step, [*shape], of the type of x; 0 where it is not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4096.
        bias_mant: the mantissa of the bias, which is bias_mant * 2**bias_exp, -4096 to 4095.
        bias_exp: its exponent, -31 to 7.
        vth_hi: it fires 1 where v > 64 vth_hi, -131072 to 131072.
        vth_lo: it fires -1 where v < 64 vth_lo, -131072 to 131072.
        store_states: return the states after each step rather than the last ones.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].
        surrogate: of a floating-point x: it sees the voltage above the threshold, in units of the threshold.
        surrogate_args: its numbers, in the order of docs/surrogates.md; [] for its defaults.
        detach_reset: of a floating-point x: no gradient flows through the spike in the reset.

    Parameters are numbers, or tensors that broadcast against shape: all of the one kind, but for a tensor `bias_mant`
    beside numbers. Among tensors None is the default. They are int32, or beside a floating-point x of its type. Of a
    floating-point x the results have its type and the same values, and gradients, straight through rounding and wraps;
    integers have none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for another dtype.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_ternary_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: float = 0, dv: float = 0, bias_mant: Tensor,
    bias_exp: float = 0, vth_hi: float = 10, vth_lo: float = -10, store_states: bool = False,
    lengths: Tensor | None = None, start: Tensor | None = None, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def loihi_ternary_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: Tensor | None = None, dv: Tensor | None = None,
    bias_mant: Tensor | None = None, bias_exp: Tensor | None = None, vth_hi: Tensor | None = None,
    vth_lo: Tensor | None = None, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [],
    detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...

@overload
def loihi_ternary_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: float = 0,
    dv: float = 0, bias_mant: float = 0, bias_exp: float = 0, vth_hi: float = 10, vth_lo: float = -10,
    refractory_period: int = 1, store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF with spikes -1, 0 and 1 and a refractory period, in Loihi's fixed-point arithmetic: x [T, *shape], time
    first. Returns (spikes, u, v, wait).

    Args:
        x: [T, *shape], of which 1 is 64 units of the voltage: int32, or float32 or float64 that hold whole numbers, up
            to 2**17.
        u: current before the first step, [*shape], of the type of x; 0 where it is not given.
        v: voltage before the first step, [*shape], of the type of x; 0 where it is not given.
        wait: for how many steps v still stays as it is, int32 [*shape]; 0 where it is not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4096.
        bias_mant: the mantissa of the bias, which is bias_mant * 2**bias_exp, -4096 to 4095.
        bias_exp: its exponent, -31 to 7.
        vth_hi: it fires 1 where v > 64 vth_hi, -131072 to 131072.
        vth_lo: it fires -1 where v < 64 vth_lo, -131072 to 131072.
        refractory_period: steps for which v stays as it is after a spike.
        store_states: return the states after each step rather than the last ones.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].
        surrogate: of a floating-point x: it sees the voltage above the threshold, in units of the threshold.
        surrogate_args: its numbers, in the order of docs/surrogates.md; [] for its defaults.
        detach_reset: of a floating-point x: no gradient flows through the spike in the reset.

    Parameters are numbers, or tensors that broadcast against shape: all of the one kind, but for a tensor `bias_mant`
    beside numbers. Among tensors None is the default. They are int32, or beside a floating-point x of its type. Of a
    floating-point x the results have its type and the same values, and gradients, straight through rounding and wraps;
    integers have none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for another dtype.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_ternary_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: float = 0,
    dv: float = 0, bias_mant: Tensor, bias_exp: float = 0, vth_hi: float = 10, vth_lo: float = -10,
    refractory_period: int = 1, store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_ternary_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth_hi: Tensor | None = None, vth_lo: Tensor | None = None, refractory_period: int = 1, store_states: bool = False,
    lengths: Tensor | None = None, start: Tensor | None = None, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

@overload
def loihi_ternary_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: float = 0,
    dv: float = 0, bias_mant: float = 0, bias_exp: float = 0, vth_hi: float = 10, vth_lo: float = -10,
    reset_interval: int = 1, reset_offset: int = 0, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [],
    detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF with spikes -1, 0 and 1, reset every `reset_interval` steps, in Loihi's fixed-point arithmetic: x [T,
    *shape], time first. Returns (spikes, u, v, phase).

    Args:
        x: [T, *shape], of which 1 is 64 units of the voltage: int32, or float32 or float64 that hold whole numbers, up
            to 2**17.
        u: current before the first step, [*shape], of the type of x; 0 where it is not given.
        v: voltage before the first step, [*shape], of the type of x; 0 where it is not given.
        phase: steps so far modulo `reset_interval`, int32 [*shape]; 0 where it is not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4096.
        bias_mant: the mantissa of the bias, which is bias_mant * 2**bias_exp, -4096 to 4095.
        bias_exp: its exponent, -31 to 7.
        vth_hi: it fires 1 where v > 64 vth_hi, -131072 to 131072.
        vth_lo: it fires -1 where v < 64 vth_lo, -131072 to 131072.
        reset_interval: u and v are set to 0 every so many steps, 1 or more.
        reset_offset: the number of such a step, counted from 1 and modulo `reset_interval`; u and v are 0 ahead of it.
        store_states: return the states after each step rather than the last ones.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].
        surrogate: of a floating-point x: it sees the voltage above the threshold, in units of the threshold.
        surrogate_args: its numbers, in the order of docs/surrogates.md; [] for its defaults.
        detach_reset: of a floating-point x: no gradient flows through the spike in the reset.

    Parameters are numbers, or tensors that broadcast against shape: all of the one kind, but for a tensor `bias_mant`
    beside numbers. Among tensors None is the default. They are int32, or beside a floating-point x of its type. Of a
    floating-point x the results have its type and the same values, and gradients, straight through rounding and wraps;
    integers have none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for another dtype.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_ternary_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: float = 0,
    dv: float = 0, bias_mant: Tensor, bias_exp: float = 0, vth_hi: float = 10, vth_lo: float = -10,
    reset_interval: int = 1, reset_offset: int = 0, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [],
    detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_ternary_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth_hi: Tensor | None = None, vth_lo: Tensor | None = None, reset_interval: int = 1, reset_offset: int = 0,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], detach_reset: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

def max_pool2d(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = [], padding: Sequence[int] = [0, 0],
    dilation: Sequence[int] = [1, 1], ceil_mode: bool = False, *, weight: Tensor | None = None,
) -> Tensor:
    """Maxima over windows of images [..., C, H, W].

    Args:
        x: images with any dimensions before the channels, plain or channels last; the result lies alike.
        kernel_size: rows and columns of a window, of at most 256 places.
        stride: from a window to the next, in rows and columns; kernel_size where it is [].
        padding: what is put around an image, in rows and columns, which is never the maximum; at most half of
            kernel_size.
        dilation: from a place of a window to the next, in rows and columns.
        ceil_mode: round the number of windows up, not down: the last one may reach over the edge.
        weight: [C], that of a normalisation which follows. Where it is below 0 a window gives its least number, of
            which that normalisation will make the largest.

    Instead of two numbers a single one is for both dimensions.

    Raises:
        ValueError: for a window of more than 256 places, and for what does not fit.
        TypeError: for a dtype other than float16, bfloat16, float32 or float64, and for what is not dense.

    One byte is kept for each result, where torch keeps eight.
    """

def max_pool2d_statistics(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = [], padding: Sequence[int] = [0, 0],
    ceil_mode: bool = False, *, weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Maxima over windows of images [..., C, H, W] before they are normalised, and the statistics of all of x. Returns
    (y, mean, var).

    Args:
        x: images with any dimensions before the channels, plain or channels last; the result lies alike.
        kernel_size: rows and columns of a window, of at most 256 places.
        stride: from a window to the next, in rows and columns; kernel_size where it is [].
        padding: what is put around an image, in rows and columns, which is never the maximum; at most half of
            kernel_size.
        ceil_mode: round the number of windows up, not down: the last one may reach over the edge.
        weight: [C], that of a normalisation which follows. Where it is below 0 a window gives its least number, of
            which that normalisation will make the largest.

    Instead of two numbers a single one is for both dimensions.

    Raises:
        ValueError: for a window of more than 256 places, and for what does not fit.
        TypeError: for a dtype other than float16, bfloat16, float32 or float64, and for what is not dense.

    Returns:
        y, the maxima; and the mean and the biased variance of all of x, [C], in float32 for half types; 0 and 1 of
        nothing.

    `batch_norm_run` of y with this mean and variance is the pooling of what it gives of x. The backward pass goes over
    x once.
    """

def max_pool2d_with_places(
    x: Tensor, windows: Sequence[int], ceil_mode: bool, weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """max_pool2d, and the place in its window that each maximum is from. Returns (y, which).

    Args:
        x: images with any dimensions before the channels.
        windows: kernel_size, stride, padding and dilation, of rows and columns each: eight numbers.
        ceil_mode: round the number of windows up, not down.
        weight: as of `max_pool2d`.

    Returns:
        The maxima, and the places as uint8, counted row by row in the window.

    Raises:
        ValueError: for windows of more than 256 places, and for what does not fit.
        TypeError: as `max_pool2d`.
    """

def online_linear(
    neuron: str, x: Tensor, weight: Tensor, bias: Tensor | None, states: Sequence[Tensor], params: Sequence[Tensor],
    traces: Sequence[Tensor], *, rule: str = "eprop", into: int = 0, inputs: Sequence[Tensor] | None = None,
    learned: Sequence[int] | None = None,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """A neuron behind x weight^T + bias that learns from a piece of a sequence, x [T, *batch, I]; traces stand for what
    came before. Returns (outputs, states, traces).

    The neuron behind x weight^T + bias, with traces in the place of the steps before. docs/online.md derives them.

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
        NotImplementedError: for a neuron that draws random numbers.
    """

def pack_events(events: Tensor) -> Tensor:
    """Events [..., n] as bits, [..., ceil(n / 32)] of int32.

    Args:
        events: [..., n], an event where true or > 0; bool, float16, bfloat16, float32 or float64.

    Returns:
        int32, [..., ceil(n / 32)]: entry 32 w + b is bit b of word w.

    Raises:
        ValueError: for a tensor without dimensions.
        TypeError: for other dtypes.
    """

def pack_spikes(x: Tensor, bits: int = 1) -> tuple[Tensor, Tensor]:
    """Numbers 0 and 1 in a bit each, or 0 to 15 in four, in the order of memory; and whether all were such. Returns
    (packed, valid).

    Args:
        x: numbers of float16, bfloat16, float32 or float64, dense in some order of its dimensions.
        bits: 1, for numbers 0 and 1; or 4, for 0 to 15.

    Returns:
        The bits, uint8 [bytes], and whether all numbers were such, bool [].

    Raises:
        ValueError: for other bits.
        TypeError: for another dtype, and for what is not dense.
    """

def plastic_step(
    rule: str, states: Sequence[Tensor], traces: Sequence[Tensor], indices: Tensor, indptr: Tensor,
    by_columns: Sequence[Tensor], pre: Tensor, post: Tensor, signals: Sequence[Tensor | None],
    step: Tensor | None = None, *, params: Sequence[float] = [], rows: int, cols: int, sends: bool = False,
    refresh: bool = False, unchecked: bool = False,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """A step of connections that learn by a synapse text: their states, the traces of their neurons, and what arrived.
    Returns (states, traces, sent).

    Args:
        rule: synapse text, docs/plasticity.md.
        states: [nonzeros] each, in the order of the rule: weights of any floating dtype (float16, bfloat16, float32 or
            float64), others of the dtype that they are computed in. Where one decays, behind them int32 [nonzeros], the
            step that each nonzero is of.
        traces: [rows] or [cols] each, in the order of the rule, of the dtype of the arithmetic.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        by_columns: what `csr_transpose` gives, computed once, for rules with `on post`; else [].
        pre: [rows], a spike that arrives where true or > 0; bool, float16, bfloat16, float32 or float64.
        post: [cols], a spike where true or > 0; bool, float16, bfloat16, float32 or float64.
        signals: a number, of no dimension, or [cols], or None, for each signal of the rule; [] for none.
        step: int64, of no dimension, the number of the step; for rules with a state that decays.
        params: a number for each parameter of the rule.
        rows: of the stored matrix.
        cols: of the stored matrix.
        sends: sum what arrives at the neurons after.
        refresh: do nothing but bring states that decay to this step.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        The new states and traces, and what arrived, [cols], or without `sends` no elements.

    There are no gradients, and no batch. On a GPU sums of what arrives are in any order.

    Raises:
        ValueError: for a text that cannot be read, with its line and column, for shapes that do not fit, and an index
            out of bounds.
        TypeError: for other dtypes.
        NotImplementedError: on a GPU for a rule of more than 8 states, 16 traces, 32 parameters or 8 signals.
    """

def plastic_step_(
    rule: str, states: Sequence[Tensor], traces: Sequence[Tensor], indices: Tensor, indptr: Tensor,
    by_columns: Sequence[Tensor], pre: Tensor, post: Tensor, signals: Sequence[Tensor | None],
    step: Tensor | None = None, *, params: Sequence[float] = [], rows: int, cols: int, sends: bool = False,
    refresh: bool = False, unchecked: bool = False,
) -> Tensor:
    """A step of connections that learn by a synapse text, in place; what arrived.

    Args:
        rule: synapse text, docs/plasticity.md.
        states: [nonzeros] each, in the order of the rule: weights of any floating dtype (float16, bfloat16, float32 or
            float64), others of the dtype that they are computed in. Where one decays, behind them int32 [nonzeros], the
            step that each nonzero is of.
        traces: [rows] or [cols] each, in the order of the rule, of the dtype of the arithmetic.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        by_columns: what `csr_transpose` gives, computed once, for rules with `on post`; else [].
        pre: [rows], a spike that arrives where true or > 0; bool, float16, bfloat16, float32 or float64.
        post: [cols], a spike where true or > 0; bool, float16, bfloat16, float32 or float64.
        signals: a number, of no dimension, or [cols], or None, for each signal of the rule; [] for none.
        step: int64, of no dimension, the number of the step; for rules with a state that decays.
        params: a number for each parameter of the rule.
        rows: of the stored matrix.
        cols: of the stored matrix.
        sends: sum what arrives at the neurons after.
        refresh: do nothing but bring states that decay to this step.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    Returns:
        what arrived, [cols], or without `sends` no elements.

    There are no gradients, and no batch. States and traces are changed in place. On a GPU sums of what arrives are in
    any order.

    Raises:
        ValueError: for a text that cannot be read, with its line and column, for shapes that do not fit, and an index
            out of bounds.
        TypeError: for other dtypes.
        NotImplementedError: on a GPU for a rule of more than 8 states, 16 traces, 32 parameters or 8 signals.
    """

@overload
def plif(
    x: Tensor, w: Tensor, v: Tensor | None = None, *, decay_input: bool = True, v_threshold: float = 1.0,
    v_reset: float | None = 0.0, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False, bits: int = 0,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Leaky integrate-and-fire with 1/tau = sigmoid(w), over a whole sequence: x [T, *shape], time first. Returns
    (spikes, v).

    h = v + (x - (v - v_reset)) / tau, or without `decay_input` h = v - (v - v_reset) / tau + x. It fires where h >=
    v_threshold; then v is v_reset, or under soft reset h less the threshold.

    Args:
        x: input, [T, *shape], of float16, bfloat16, float32 or float64.
        v: voltage before the first step, [*shape]; where it is not given, v_reset, or 0 under soft reset.
        w: 1 / tau = sigmoid(w): a tensor that broadcasts against shape.
        decay_input: divide x by tau too.
        v_threshold: where it fires.
        v_reset: the voltage after a spike; None is soft reset. Leaks lead there, or to 0 under soft reset.
        detach_reset: no gradient flows through the spike in the reset.
        surrogate: name of the spike's derivative (docs/surrogates.md).
        surrogate_args: its numbers, in the order of their table; [] for the defaults.
        spiking: False puts the surrogate's primitive in the place of the step function: a smooth operator.
        store_v: return the states after each step, [T, *shape], rather than the last ones, [*shape].
        bits: 1 writes the spikes as bits too, which `linear` and `convolution` that read them in training then need not
            pack; 0 where none does.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].

    Parameters are numbers, or tensors that broadcast against shape and get their gradients.

    Raises:
        ValueError: for a shape, a value, or a surrogate that is not legal; it names the argument.
        TypeError: for a dtype that it does not take; half types have states of float32.

    Source: Fang et al., Science Advances 9, eadi1480 (2023).
    """
@overload
def plif(
    x: Tensor, w: Tensor, v: Tensor | None = None, *, decay_input: bool = True, v_threshold: Tensor | None = None,
    v_reset: Tensor | None, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False, bits: int = 0,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def plif(
    x: Tensor, w: Tensor, v: Tensor | None = None, *, decay_input: bool = True,
    v_threshold: float | Tensor | None = 1.0, v_reset: float | Tensor | None = 0.0, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
    bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...

def print_cuda(neuron: str, dtype: torch.dtype) -> str:
    """The CUDA source generated for a neuron text.

    Args:
        neuron: the neuron text.
        dtype: of the inputs.

    Returns:
        The source of the kernels of the forward and the backward pass. It needs no GPU.
    """

@overload
def qif(
    x: Tensor, v: Tensor | None = None, *, tau: float = 2.0, v_c: float = 0.8, a0: float = 1.0,
    v_threshold: float = 1.0, v_rest: float = 0.0, v_reset: float | None = -0.1, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
    bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Quadratic integrate-and-fire over a whole sequence: x [T, *shape], time first. Returns (spikes, v).

    h = v + (x + a0 (v - v_rest) (v - v_c)) / tau. It fires where h >= v_threshold; then v is v_reset, or under soft
    reset h less the threshold.

    Args:
        x: input, [T, *shape], of float16, bfloat16, float32 or float64.
        v: voltage before the first step, [*shape]; where it is not given, v_reset, or 0 under soft reset.
        tau: time constant in steps, > 0.
        v_c: the critical voltage, above which v runs away.
        a0: sharpness of the square.
        v_rest: the resting voltage.
        v_threshold: where it fires.
        v_reset: the voltage after a spike; None is soft reset. Leaks lead there, or to 0 under soft reset.
        detach_reset: no gradient flows through the spike in the reset.
        surrogate: name of the spike's derivative (docs/surrogates.md).
        surrogate_args: its numbers, in the order of their table; [] for the defaults.
        spiking: False puts the surrogate's primitive in the place of the step function: a smooth operator.
        store_v: return the states after each step, [T, *shape], rather than the last ones, [*shape].
        bits: 1 writes the spikes as bits too, which `linear` and `convolution` that read them in training then need not
            pack; 0 where none does.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].

    Parameters are numbers, or tensors that broadcast against shape and get their gradients.

    Raises:
        ValueError: for a shape, a value, or a surrogate that is not legal; it names the argument.
        TypeError: for a dtype that it does not take; half types have states of float32.

    Source: Fang et al., Science Advances 9, eadi1480 (2023).
    """
@overload
def qif(
    x: Tensor, v: Tensor | None = None, *, tau: Tensor | None = None, v_c: Tensor | None = None,
    a0: Tensor | None = None, v_threshold: Tensor | None = None, v_rest: Tensor | None = None, v_reset: Tensor | None,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False, bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def qif(
    x: Tensor, v: Tensor | None = None, *, tau: float | Tensor | None = 2.0, v_c: float | Tensor | None = 0.8,
    a0: float | Tensor | None = 1.0, v_threshold: float | Tensor | None = 1.0, v_rest: float | Tensor | None = 0.0,
    v_reset: float | Tensor | None = -0.1, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False, bits: int = 0,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...

def record_kernels(archs: Sequence[str]) -> None:
    """From here on, calls on the CPU note the kernels that they would run on GPUs of these architectures.

    Args:
        archs: such as ["sm_80", "sm_90"].

    Raises:
        ValueError: for an architecture that NVRTC does not know.
    """

def records_kernels() -> bool:
    """Whether kernels are being noted, since record_kernels."""

def recurrent_run(
    neuron: str, inputs: Sequence[Tensor], w: Tensor, states: Sequence[Tensor], params: Sequence[Tensor],
    spikes: Tensor | None = None, *, into: int = 0, delay: int = 1, store_states: bool = False,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """A neuron written as text whose first output comes back to it through w, `delay` steps later: inputs [T, *batch,
    H]. Returns (outputs, states).

    Before step t, inputs[into][t] + s[t - delay] @ w becomes the input number `into`, where s is the first output.

    Args:
        neuron: the neuron text.
        inputs: each [T, *shape] = [T, *batch, H], of one floating-point dtype.
        states: each [*shape]; [] starts all of them at the text's own numbers.
        params: numbers' tensors that broadcast against shape, in the order of the text; each gets its gradient.
        w: [H, H]; w[i, j] leads from neuron i to neuron j.
        spikes: s before the first step, [delay, *batch, H], the oldest first; zeros where it is not given.
        into: the input that the current is added to.
        delay: in steps, 1 or more.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].
        store_states: return the states after each step rather than the last ones.

    Raises:
        ValueError: for a text that is not legal, with its line; for a number or a shape of tensors that does not fit.
        TypeError: for dtypes that do not fit.

    Returns:
        The outputs, each [T, *batch, H], and the states.
    """

def run(
    neuron: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor], *,
    store_states: bool = False, bits: int = 0, lengths: Tensor | None = None, start: Tensor | None = None,
    scan: bool = False, seed: Tensor | None = None, offset: Tensor | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """A neuron written as text over whole sequences: inputs [T, *shape] in the order of the text, states, parameters.
    Returns (outputs, states).

    Args:
        neuron: the neuron text.
        inputs: each [T, *shape], of one floating-point dtype.
        states: each [*shape]; [] starts all of them at the text's own numbers.
        params: numbers' tensors that broadcast against shape, in the order of the text; each gets its gradient.
        bits: keep the first output in so many bits of each number too, 1 or 4 (sums up to 15), which `linear` and
            `convolution` that read it in training then need not pack; 0 where none does.
        scan: let steps be taken side by side, of few neurons over a long sequence, which rounds in another way.
            For 1 to 4 states, of which the next are affine in them.
        seed: of a neuron that draws random numbers: int64 of one element, on the CPU or x's device; equal seeds draw
            equal numbers. By default
            torch's generator gives one.
        offset: the number of the first step, as `seed`; by default 0.
        lengths: how many steps each sample has, int32 or int64 [B]; docs/operators.md says what is there behind its
            end.
        start: before which steps samples start anew, bool [T, B].
        store_states: return the states after each step rather than the last ones.

    Raises:
        ValueError: for a text that is not legal, with its line; for a number or a shape of tensors that does not fit.
        TypeError: for dtypes that do not fit.

    Returns:
        The outputs, each [T, *shape], and the states.
    """

def stdp_post(
    weights: Tensor, indices: Tensor, indptr: Tensor, slots: Tensor, events: Tensor, trace: Tensor, *, rows: int,
    cols: int, w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> Tensor:
    """Spike-timing-dependent plasticity at events of columns: the weights of a CSR matrix after it.

    For every column j with an event, w_ij += trace_i of its nonzeros; those weights are then clipped to w_min and
    w_max.

    Args:
        weights: [nonzeros], one for each; float16, bfloat16, float32 or float64.
        indices: of the transpose, int32 [nonzeros]: what `csr_transpose` gives of the CSR matrix, computed once.
        indptr: of the transpose, [cols + 1], from there too.
        slots: which of the weights each nonzero of the transpose has, int64 [nonzeros], from there too.
        events: [cols], an event where true or > 0; bool, float16, bfloat16, float32 or float64.
        trace: [rows], what a nonzero gains; of the weights' dtype, or float32 beside half types.
        rows: of the stored matrix.
        cols: of the stored matrix.
        w_min: what weights that changed are raised to; None sets no bound.
        w_max: what weights that changed are lowered to; None sets no bound.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    There are no gradients. The weights given stay as they are.

    Raises:
        ValueError: for shapes that do not fit, for a single weight that all share, for w_min above w_max, and for an
            index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes.
    """

def stdp_post_(
    weights: Tensor, indices: Tensor, indptr: Tensor, slots: Tensor, events: Tensor, trace: Tensor, *, rows: int,
    cols: int, w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> None:
    """Spike-timing-dependent plasticity at events of columns, in place.

    For every column j with an event, w_ij += trace_i of its nonzeros; those weights are then clipped to w_min and
    w_max.

    Args:
        weights: [nonzeros], one for each; float16, bfloat16, float32 or float64.
        indices: of the transpose, int32 [nonzeros]: what `csr_transpose` gives of the CSR matrix, computed once.
        indptr: of the transpose, [cols + 1], from there too.
        slots: which of the weights each nonzero of the transpose has, int64 [nonzeros], from there too.
        events: [cols], an event where true or > 0; bool, float16, bfloat16, float32 or float64.
        trace: [rows], what a nonzero gains; of the weights' dtype, or float32 beside half types.
        rows: of the stored matrix.
        cols: of the stored matrix.
        w_min: what weights that changed are raised to; None sets no bound.
        w_max: what weights that changed are lowered to; None sets no bound.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    There are no gradients. The weights are changed in place.

    Raises:
        ValueError: for shapes that do not fit, for a single weight that all share, for w_min above w_max, and for an
            index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes.
    """

def stdp_pre(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, trace: Tensor, *, rows: int, cols: int,
    w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> Tensor:
    """Spike-timing-dependent plasticity at events of rows: the weights of a CSR matrix after it.

    For every row i with an event, w_ij += trace_j of its nonzeros; those weights are then clipped to w_min and w_max.

    Args:
        weights: [nonzeros], one for each; float16, bfloat16, float32 or float64.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        events: [rows], an event where true or > 0; bool, float16, bfloat16, float32 or float64.
        trace: [cols], what a nonzero gains; of the weights' dtype, or float32 beside half types.
        rows: of the stored matrix.
        cols: of the stored matrix.
        w_min: what weights that changed are raised to; None sets no bound.
        w_max: what weights that changed are lowered to; None sets no bound.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    There are no gradients. The weights given stay as they are.

    Raises:
        ValueError: for shapes that do not fit, for a single weight that all share, for w_min above w_max, and for an
            index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes.
    """

def stdp_pre_(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, trace: Tensor, *, rows: int, cols: int,
    w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> None:
    """Spike-timing-dependent plasticity at events of rows, in place.

    For every row i with an event, w_ij += trace_j of its nonzeros; those weights are then clipped to w_min and w_max.

    Args:
        weights: [nonzeros], one for each; float16, bfloat16, float32 or float64.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        events: [rows], an event where true or > 0; bool, float16, bfloat16, float32 or float64.
        trace: [cols], what a nonzero gains; of the weights' dtype, or float32 beside half types.
        rows: of the stored matrix.
        cols: of the stored matrix.
        w_min: what weights that changed are raised to; None sets no bound.
        w_max: what weights that changed are lowered to; None sets no bound.
        unchecked: trust the indices, rather than reading the matrix at its first call; a wrong one reads or writes
            other memory.

    There are no gradients. The weights are changed in place.

    Raises:
        ValueError: for shapes that do not fit, for a single weight that all share, for w_min above w_max, and for an
            index out of bounds (on a GPU at the next call).
        TypeError: for other dtypes.
    """

def take_arrivals(buffer: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """What arrives at a step, buffer[step % slots], and the buffer with zero there. Returns (arrivals, buffer).

    Args:
        buffer: [slots, *batch, neurons], float32 or float64.
        step: int64, 0-dimensional, on the CPU or the buffer's device.

    Raises:
        ValueError: for a step below 0, and for shapes that do not fit.
    """

def take_arrivals_(buffer: Tensor, step: Tensor) -> Tensor:
    """What arrives at a step, buffer[step % slots], which is zero then.

    Args:
        buffer: [slots, *batch, neurons], float32 or float64.
        step: int64, 0-dimensional, on the CPU or the buffer's device.

    Raises:
        ValueError: for a step below 0, and for shapes that do not fit.
    """

def text_on_a_line(neuron: str) -> str:
    """A neuron text without line breaks and comments, which says the same.

    Args:
        neuron: the neuron text.

    Raises:
        ValueError: for a text that is not legal, with its line.

    Inductor (torch 2.11) writes line breaks in an argument into code that does not parse: packages for GPUs want a text
    on one line.
    """

def trace_of_input(neuron: str, into: int = 0) -> str:
    """The neuron text whose states are what an input leaves in a neuron that does not fire.

    What an input leaves in the states of a neuron that does not fire, as neuron text: run on x, its states are the
    traces of
    rule="ottt".

    Args:
        neuron: its text.
        into: which input.

    Returns:
        The text.
    """

def unpack_events(packed: Tensor, n: int) -> Tensor:
    """The n events of each row of bits that pack_events made.

    Args:
        packed: int32, [..., ceil(n / 32)].
        n: how many entries a row has.

    Returns:
        bool, [..., n].

    Raises:
        ValueError: for a shape that does not hold n entries.
        TypeError: for anything but int32.
    """

def unpack_spikes(
    packed: Tensor, valid: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, bits: int = 1,
) -> Tensor:
    """The tensor that pack_spikes was given, of a size and stride; NaN where its numbers were not valid.

    Args:
        packed: what `pack_spikes` gave.
        valid: what it gave beside it.
        size: of the tensor to make.
        stride: of the tensor to make, that of a dense one.
        bits: those that `pack_spikes` was given.
        dtype: of the tensor to make.

    Raises:
        ValueError: for a size whose numbers these are not.
        TypeError: for another dtype.
    """

def with_eligibility(state: Tensor, leaf: Tensor, trace: Tensor, outer: bool = False) -> Tensor:
    """A state [*batch, N] whose gradient goes on to a leaf by a trace, d state / d leaf.

    A state, whose gradient goes on to a leaf by a trace: d state / d leaf.

    Args:
        state: [*batch, N].
        leaf: what was trained: a weight [N, I], or what broadcasts against the state.
        trace: [*batch, N, I] of a weight; with outer [*batch, I]; else [*batch, N] or [*batch, 1].
        outer: the trace is that of inputs, the same for all neurons.

    Returns:
        The state.
    """

def write_kernel_pack(path: str) -> int:
    """Compiles what record_kernels has noted into one file; how many kernels.

    Args:
        path: of the file. `SPIKEFORGE_KERNEL_PACK` names it to a program.

    Raises:
        RuntimeError: where there is no NVRTC, or nothing was recorded.
    """
