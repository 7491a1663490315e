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
        v, a: states before the first step, [*shape]; where they are not given they start anew, v at v_reset (0 under
            soft reset), a at 0.
        tau: time constant in steps, > 0.
        decay_input: divide x by tau too.
        decay: what is left of a after a step, 0 to 1.
        b: how much the threshold rises with a.
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

def avg_pool2d(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = [], padding: Sequence[int] = [0, 0],
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:
    """Means over windows of images [..., C, H, W].

    Args:
        x: images with any dimensions before the channels, plain or channels last; the result lies alike.
        kernel_size, stride, padding: a number for both dimensions, or one for each; stride is kernel_size where it is
            [].
        ceil_mode: as torch's.
        count_include_pad: padding counts in a mean.
        divisor_override: divide sums by this instead.

    Raises:
        ValueError: for a window of more than 256 places, and for what does not fit.
    """

def batch_norm_run(
    neuron: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor],
    weight: Tensor | None = None, bias: Tensor | None = None, mean: Tensor | None = None, var: Tensor | None = None,
    residual: Tensor | None = None, *, residual_mode: str = "add", channel_dim: int = 2, eps: float = 1e-05,
    store_states: bool = False, bits: int = 0,
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """A neuron written as text behind a batch normalisation, with a residual connection behind it, in one pass. Returns
    (outputs, states, mean, var).

    The first input x becomes (x - mean) / sqrt(var + eps) * weight + bias, with one number for each channel.

    Args:
        neuron: the neuron text.
        inputs: each [T, *shape], of one floating-point dtype.
        states: each [*shape]; [] starts all of them at the text's own numbers.
        params: numbers' tensors that broadcast against shape, in the order of the text; each gets its gradient.
        weight, bias: [C], or None.
        mean, var: [C]; where they are not given, those of x over all dimensions but the channels'.
        residual: of the spikes' shape, joined to the first output as `residual_mode` says: "add", "and" or "iand".
        channel_dim: any dimension of x but time.
        bits: keep the first output in so many bits of each number too, 1 or 4, which `linear` and `convolution` that
            read it then take.
        store_states: return the states after each step rather than the last ones.

    Raises:
        ValueError: for a text that is not legal, with its line; for a number or a shape of tensors that does not fit.
        TypeError: for dtypes that do not fit.
    """

def batch_norm_run_tracked(
    neuron: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor], running_mean: Tensor,
    running_var: Tensor, num_batches_tracked: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
    residual: Tensor | None = None, *, residual_mode: str = "add", channel_dim: int = 2, eps: float = 1e-05,
    momentum: float | None = 0.1, store_states: bool = False, bits: int = 0,
) -> tuple[list[Tensor], list[Tensor]]:
    """batch_norm_run with the statistics of its input, towards which running ones move in the same pass; not for
    compilers. Returns (outputs, states)."""

def channel_statistics(x: Tensor, channel_dim: int = 2) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel of x [T, B, C, ...]. Returns (mean, var).

    Args:
        x: a sequence with its channels at `channel_dim`.

    Returns:
        mean and var, [C], over all other dimensions; the variance is divided by the count. In float32 for half types.
    """

def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sequence[int] = [1], padding: Sequence[int] = [0],
    dilation: Sequence[int] = [1], groups: int = 1, *, bits: int = 1, recompute: bool = False,
) -> Tensor:
    """torch's convolution of spikes (1 to 3 dimensions of space) that keeps bits of x for its backward pass.

    Args:
        x: [B, C, ...] with 1 to 3 dimensions of space; spikes 0 or 1, or counts up to 15 with `bits=4`.
        weight, bias: as torch's.
        bits: how many bits of each number of x are kept, 1 or 4; 0 keeps x as it is.
        recompute: the result is not kept by what follows, but made again in the backward pass.

    Raises:
        ValueError: on the CPU, for a number that does not fit in these bits. On a GPU it makes the weight's gradient
            NaN.
    """

def csr_check(indices: Tensor, indptr: Tensor, *, rows: int, cols: int, sorted: bool = True) -> None:
    """Reads a CSR matrix now and raises ValueError with what is wrong with it; products then need not check it.

    Args:
        indices: int32 [nonzeros], in [0, cols).
        indptr: int32 or int64 [rows + 1], rising from 0 to the number of nonzeros.
        sorted: also refuse rows whose columns fall.

    Raises:
        ValueError: names the row and the index that are wrong.
    """

def csr_transpose(indices: Tensor, indptr: Tensor, *, rows: int, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """The transpose of a CSR matrix, and for each of its nonzeros the slot it has in the original. Returns (indices,
    indptr, slots).

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
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        matrix: [..., cols, n]; with `transpose`, [..., rows, n].
        rows, cols: of the stored matrix, whatever the order.
        transpose: e A rather than A e.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call.

    Returns:
        [..., rows, n], or with `transpose` [..., cols, n], of the weights' dtype. Gradients reach weights and matrix.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
    """

def csrmv(
    weights: Tensor, indices: Tensor, indptr: Tensor, vector: Tensor, *, rows: int, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and a vector of numbers [..., cols]; with `transpose`, [..., rows].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which all are read.

    Args:
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        vector: [..., cols]; with `transpose`, [..., rows].
        rows, cols: of the stored matrix, whatever the order.
        transpose: e A rather than A e.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call.

    Returns:
        [..., rows], or with `transpose` [..., cols], of the weights' dtype. Gradients reach weights and vector.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
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
        v: states before the first step, [*shape]; where they are not given they start anew, v at v_reset, or 0 under
            soft reset.
        tau: time constant in steps, > 0.
        delta_t: sharpness of the exponential, > 0.
        theta_rh: the rheobase threshold, from where the exponential takes over.
        v_rest: the resting voltage.
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

def ellmm(
    weights: Tensor, indices: Tensor, matrix: Tensor, *, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and a matrix of numbers [..., cols, n].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which all are read.

    Args:
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32, the columns, [rows, nonzeros a row].
        matrix: [..., cols, n]; with `transpose`, [..., rows, n].
        cols: of the stored matrix, whatever the order.
        transpose: e A rather than A e.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call.

    Returns:
        [..., rows, n], or with `transpose` [..., cols, n], of the weights' dtype. Gradients reach weights and matrix.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
    """

def ellmv(
    weights: Tensor, indices: Tensor, vector: Tensor, *, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and a vector of numbers [..., cols].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which all are read.

    Args:
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32, the columns, [rows, nonzeros a row].
        vector: [..., cols]; with `transpose`, [..., rows].
        cols: of the stored matrix, whatever the order.
        transpose: e A rather than A e.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call.

    Returns:
        [..., rows], or with `transpose` [..., cols], of the weights' dtype. Gradients reach weights and vector.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
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
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        events: [..., cols, n]; with `transpose`, [..., rows, n].
        rows, cols: of the stored matrix, whatever the order.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call.

    Returns:
        [..., rows, n], or with `transpose` [..., cols, n], of the weights' dtype. Gradients reach weights and events.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
    """

def event_csrmv(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, *, rows: int, cols: int, transpose: bool = False,
    graded: bool = False, deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and events, entries that are true or > 0, [..., cols]; with `transpose`, [..., rows].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which rows that fired
    alone are read.

    Args:
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32 [nonzeros], the columns of row 0, then those of row 1, in any order.
        indptr: int32 or int64 [rows + 1], where rows begin.
        events: [..., cols]; with `transpose`, [..., rows].
        rows, cols: of the stored matrix, whatever the order.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call.

    Returns:
        [..., rows], or with `transpose` [..., cols], of the weights' dtype. Gradients reach weights and events.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
    """

def event_ellmm(
    weights: Tensor, indices: Tensor, events: Tensor, *, cols: int, transpose: bool = False, graded: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and events [..., cols, n].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which rows that fired
    alone are read.

    Args:
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32, the columns, [rows, nonzeros a row].
        events: [..., cols, n]; with `transpose`, [..., rows, n].
        cols: of the stored matrix, whatever the order.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call.

    Returns:
        [..., rows, n], or with `transpose` [..., cols, n], of the weights' dtype. Gradients reach weights and events.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
    """

def event_ellmv(
    weights: Tensor, indices: Tensor, events: Tensor, *, cols: int, transpose: bool = False, graded: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and events [..., cols].

    A e sums for each row what its nonzeros meet; with `transpose`, e A scatters from the rows, of which rows that fired
    alone are read.

    Args:
        weights: [nonzeros], or a single element that all share; float64, float32, float16 or bfloat16.
        indices: int32, the columns, [rows, nonzeros a row].
        events: [..., cols]; with `transpose`, [..., rows].
        cols: of the stored matrix, whatever the order.
        transpose: e A rather than A e.
        graded: an event counts its number rather than 1.
        deterministic: the same bits in every call, also where a GPU adds in any order.
        unchecked: trust the indices, rather than reading the matrix at its first call.

    Returns:
        [..., rows], or with `transpose` [..., cols], of the weights' dtype. Gradients reach weights and events.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds (on a GPU at the next call).
    """

def event_linear(events: Tensor, weight: Tensor, bias: Tensor | None = None, *, graded: bool = False) -> Tensor:
    """Adds up the rows of weight [in, out] whose inputs fired; events [..., in], or bits of pack_events.

    Args:
        events: [..., in], an event where true or > 0; or int32 bits [..., ceil(in / 32)].
        weight: [in, out]; rows of inputs that did not fire are not read.
        bias: [out], or None.
        graded: an event counts its number rather than 1.

    Returns:
        [..., out] of the weight's dtype. Gradients reach events (straight through), weight and bias.

    Raises:
        ValueError: for shapes that do not fit.
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
        v: states before the first step, [*shape]; where they are not given they start anew, v at v_reset, or 0 under
            soft reset.

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
        v, w: states before the first step, [*shape]; where they are not given they start anew, v at v_reset (0 under
            soft reset), w at w_rest.
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
        surrogate: name of the spike's derivative; `surrogate_args` are its numbers, [] for the defaults.
        spiking: False puts the surrogate's primitive in the place of the step function: a smooth operator.
        store_v: return the states after each step, [T, *shape], rather than the last ones, [*shape].
        bits: 1, keep the spikes as bits too, which `linear` and `convolution` that read them then take.

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
            deviation).
        values: what entries are: "event" (1 where > 0), "graded" (their number where > 0) or "number".
        transpose: e A, [..., rows, n] in and [..., cols, n] out.

    Raises:
        ValueError: for a probability, a law or a shape that is not legal.
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
            deviation).
        values: what entries are: "event" (1 where > 0), "graded" (their number where > 0) or "number".
        transpose: e A, [..., rows] in and [..., cols] out.

    Raises:
        ValueError: for a probability, a law or a shape that is not legal.
    """

def lava_neuron(name: str) -> str:
    """The neuron text of one of Lava's floating-point neurons, for `run`.

    Args:
        name: "lif", "ternary_lif", "lif_reset" or "lif_refractory". Parameters are du, dv, bias and vth (vth_hi and
            vth_lo), then interval and offset, or period. They fire strictly above the threshold.

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
        v: states before the first step, [*shape]; where they are not given they start anew, v at v_reset, or 0 under
            soft reset.
        tau: time constant in steps, > 0.
        decay_input: divide x by tau too.
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
        x: [..., in]; spikes 0 or 1, or counts up to 15 with `bits=4`.
        weight, bias: as torch's.
        bits: how many bits of each number of x are kept, 1 or 4; 0 keeps x as it is.
        recompute: the result is not kept by what follows, but made again in the backward pass.

    Raises:
        ValueError: on the CPU, for a number that does not fit in these bits. On a GPU it makes the weight's gradient
            NaN.
    """

def load_kernel_pack(path: str) -> int:
    """Adds a file of compiled GPU kernels to those of this process; how many it has.

    Raises:
        ValueError: for a file that is no pack of this build of the library.
    """

def loihi_delay_dense(
    x: Tensor, weight: Tensor, delays: Tensor, buffer: Tensor | None = None, *, max_delay: int, weight_exp: int = 0,
    num_message_bits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Dense connection of Loihi with a delay for each synapse: x [T, *batch, in] to [T, *batch, out]. Returns (y,
    buffer).

    Args:
        x: int32 messages, [T, *batch, in].
        weight, delays: int32 [out, in]: prepared weights, and steps of each synapse, 0 to max_delay.
        buffer: what is still on its way, int32 [max_delay, *batch, out]; 0 where it is not given.
        max_delay: the longest delay, 0 to 63.
        weight_exp: sums are shifted to the left by it, or arithmetically to the right, -8 to 7.
        num_message_bits: 0 where a message is a spike, and anything but 0 counts as 1.

    Returns:
        y [T, *batch, out], and the buffer after the last step. Sums are exact modulo 2**32.

    Raises:
        ValueError: for a shape or a number out of its range.
        TypeError: for anything but int32.
    """

def loihi_dense(
    x: Tensor, weight: Tensor, buffer: Tensor | None = None, *, delay: int = 1, weight_exp: int = 0,
    num_message_bits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Dense connection of Loihi: x [T, *batch, in] to [T, *batch, out], after `delay` steps. Returns (y, buffer).

    Args:
        x: int32 messages, [T, *batch, in].
        weight: int32 [out, in], prepared by `loihi_prepare_weights`, -256 to 255.
        delay: in steps, 0 to 64.
        buffer: what is still on its way, int32 [delay, *batch, out]; 0 where it is not given.
        weight_exp: sums are shifted to the left by it, or arithmetically to the right, -8 to 7.
        num_message_bits: 0 where a message is a spike, and anything but 0 counts as 1.

    Returns:
        y [T, *batch, out], and the buffer after the last step. Sums are exact modulo 2**32.

    Raises:
        ValueError: for a shape or a number out of its range.
        TypeError: for anything but int32.
    """

@overload
def loihi_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: int = 0, dv: int = 0, bias_mant: int = 0,
    bias_exp: int = 0, vth: int = 10, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """LIF in Loihi's fixed-point arithmetic (int32): x [T, *shape], time first. Returns (spikes, u, v).

    Args:
        x: int32, [T, *shape], in the units of the voltage.
        u, v: current and voltage before the first step, int32 [*shape]; 0 where they are not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4095.
        bias_mant, bias_exp: the bias is bias_mant * 2**bias_exp, -4096 to 4095 and -31 to 7.
        vth: it fires where v > 64 vth, 0 to 131071.
        store_states: return the states after each step rather than the last ones.

    Parameters are numbers, or int32 tensors that broadcast against shape. There are no gradients, as integers have
    none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for anything but int32.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: int = 0, dv: int = 0, bias_mant: Tensor,
    bias_exp: int = 0, vth: int = 10, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def loihi_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: Tensor | None = None, dv: Tensor | None = None,
    bias_mant: Tensor | None = None, bias_exp: Tensor | None = None, vth: Tensor | None = None,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...

@overload
def loihi_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: int = 0, bias_exp: int = 0, vth: int = 10, refractory_period: int = 1,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF with a refractory period, in Loihi's fixed-point arithmetic (int32): x [T, *shape], time first. Returns
    (spikes, u, v, wait).

    Args:
        x: int32, [T, *shape], in the units of the voltage.
        u, v: current and voltage before the first step, int32 [*shape]; 0 where they are not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4095.
        bias_mant, bias_exp: the bias is bias_mant * 2**bias_exp, -4096 to 4095 and -31 to 7.
        vth: it fires where v > 64 vth, 0 to 131071.
        refractory_period: steps for which v rests after a spike, counted by the state `wait`.
        store_states: return the states after each step rather than the last ones.

    Parameters are numbers, or int32 tensors that broadcast against shape. There are no gradients, as integers have
    none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for anything but int32.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: Tensor, bias_exp: int = 0, vth: int = 10, refractory_period: int = 1,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth: Tensor | None = None, refractory_period: int = 1, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

@overload
def loihi_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: int = 0, bias_exp: int = 0, vth: int = 10, reset_interval: int = 1, reset_offset: int = 0,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF whose states are reset every `reset_interval` steps, in Loihi's fixed-point arithmetic (int32): x [T,
    *shape], time first. Returns (spikes, u, v, phase).

    Args:
        x: int32, [T, *shape], in the units of the voltage.
        u, v: current and voltage before the first step, int32 [*shape]; 0 where they are not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4095.
        bias_mant, bias_exp: the bias is bias_mant * 2**bias_exp, -4096 to 4095 and -31 to 7.
        vth: it fires where v > 64 vth, 0 to 131071.
        reset_interval, reset_offset: states are set to 0 every so many steps, counted by the state `phase`.
        store_states: return the states after each step rather than the last ones.

    Parameters are numbers, or int32 tensors that broadcast against shape. There are no gradients, as integers have
    none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for anything but int32.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: Tensor, bias_exp: int = 0, vth: int = 10, reset_interval: int = 1, reset_offset: int = 0,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth: Tensor | None = None, reset_interval: int = 1, reset_offset: int = 0, store_states: bool = False,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

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
        weight, bias: of the layer, [out, in] and [out] or None.
        tau, decay_input, v_threshold: of the `lif` behind it, with a hard reset to 0.
        input_scale, largest_message: what a message of 1 is worth, and the largest that comes.
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
        x: int32 messages, [T, *batch, in].
        crow_indices, col_indices, values: the prepared weights [out, in] in CSR: int64 [out + 1], int64 and int32
            [nonzeros].
        delay: in steps, 0 to 64.
        buffer: what is still on its way, int32 [delay, *batch, out]; 0 where it is not given.
        weight_exp: sums are shifted to the left by it, or arithmetically to the right, -8 to 7.
        num_message_bits: 0 where a message is a spike, and anything but 0 counts as 1.

    Returns:
        y [T, *batch, out], and the buffer after the last step. Sums are exact modulo 2**32.

    Raises:
        ValueError: for a shape or a number out of its range.
        TypeError: for anything but int32.
    """

@overload
def loihi_ternary_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: int = 0, dv: int = 0, bias_mant: int = 0,
    bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """LIF with spikes -1, 0 and 1, in Loihi's fixed-point arithmetic (int32): x [T, *shape], time first. Returns
    (spikes, u, v).

    Args:
        x: int32, [T, *shape], in the units of the voltage.
        u, v: current and voltage before the first step, int32 [*shape]; 0 where they are not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4095.
        bias_mant, bias_exp: the bias is bias_mant * 2**bias_exp, -4096 to 4095 and -31 to 7.
        vth_hi, vth_lo: it fires 1 where v > 64 vth_hi and -1 where v < 64 vth_lo.
        store_states: return the states after each step rather than the last ones.

    Parameters are numbers, or int32 tensors that broadcast against shape. There are no gradients, as integers have
    none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for anything but int32.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_ternary_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: int = 0, dv: int = 0, bias_mant: Tensor,
    bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def loihi_ternary_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: Tensor | None = None, dv: Tensor | None = None,
    bias_mant: Tensor | None = None, bias_exp: Tensor | None = None, vth_hi: Tensor | None = None,
    vth_lo: Tensor | None = None, store_states: bool = False, lengths: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...

@overload
def loihi_ternary_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: int = 0, bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, refractory_period: int = 1,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF with spikes -1, 0 and 1 and a refractory period, in Loihi's fixed-point arithmetic (int32): x [T, *shape],
    time first. Returns (spikes, u, v, wait).

    Args:
        x: int32, [T, *shape], in the units of the voltage.
        u, v: current and voltage before the first step, int32 [*shape]; 0 where they are not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4095.
        bias_mant, bias_exp: the bias is bias_mant * 2**bias_exp, -4096 to 4095 and -31 to 7.
        vth_hi, vth_lo: it fires 1 where v > 64 vth_hi and -1 where v < 64 vth_lo.
        refractory_period: steps for which v rests after a spike, counted by the state `wait`.
        store_states: return the states after each step rather than the last ones.

    Parameters are numbers, or int32 tensors that broadcast against shape. There are no gradients, as integers have
    none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for anything but int32.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_ternary_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: Tensor, bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, refractory_period: int = 1,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_ternary_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth_hi: Tensor | None = None, vth_lo: Tensor | None = None, refractory_period: int = 1, store_states: bool = False,
    lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

@overload
def loihi_ternary_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: int = 0, bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, reset_interval: int = 1,
    reset_offset: int = 0, store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF with spikes -1, 0 and 1, reset every `reset_interval` steps, in Loihi's fixed-point arithmetic (int32): x [T,
    *shape], time first. Returns (spikes, u, v, phase).

    Args:
        x: int32, [T, *shape], in the units of the voltage.
        u, v: current and voltage before the first step, int32 [*shape]; 0 where they are not given.
        du: u decays by (du + 1) / 4096 a step, -1 to 4095; -1 is no decay.
        dv: v decays by dv / 4096 a step, 0 to 4095.
        bias_mant, bias_exp: the bias is bias_mant * 2**bias_exp, -4096 to 4095 and -31 to 7.
        vth_hi, vth_lo: it fires 1 where v > 64 vth_hi and -1 where v < 64 vth_lo.
        reset_interval, reset_offset: states are set to 0 every so many steps, counted by the state `phase`.
        store_states: return the states after each step rather than the last ones.

    Parameters are numbers, or int32 tensors that broadcast against shape. There are no gradients, as integers have
    none.

    Raises:
        ValueError: for a number out of its range.
        TypeError: for anything but int32.

    Source: the fixed-point models of Lava (github.com/lava-nc/lava), which compute what the chip computes.
    """
@overload
def loihi_ternary_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: Tensor, bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, reset_interval: int = 1,
    reset_offset: int = 0, store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_ternary_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth_hi: Tensor | None = None, vth_lo: Tensor | None = None, reset_interval: int = 1, reset_offset: int = 0,
    store_states: bool = False, lengths: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

def max_pool2d(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = [], padding: Sequence[int] = [0, 0],
    dilation: Sequence[int] = [1, 1], ceil_mode: bool = False,
) -> Tensor:
    """Maxima over windows of images [..., C, H, W].

    Args:
        x: images with any dimensions before the channels, plain or channels last; the result lies alike.
        kernel_size, stride, padding, dilation: a number for both dimensions, or one for each; stride is kernel_size
            where it is [].
        ceil_mode: as torch's.

    Raises:
        ValueError: for a window of more than 256 places, and for what does not fit.

    One byte is kept for each result, where torch keeps eight.
    """

def max_pool2d_with_places(x: Tensor, windows: Sequence[int], ceil_mode: bool) -> tuple[Tensor, Tensor]:
    """max_pool2d, and the place in its window that each maximum is from. Returns (y, which).

    Args:
        x: images with any dimensions before the channels.
        windows: kernel_size, stride, padding and dilation, of rows and columns each: eight numbers.

    Places are uint8, counted row by row in the window.
    """

def pack_events(events: Tensor) -> Tensor:
    """Events [..., n] as bits, [..., ceil(n / 32)] of int32.

    An entry is an event where it is true or > 0; entry 32 w + b is bit b of word w.
    """

def pack_spikes(x: Tensor, bits: int = 1) -> tuple[Tensor, Tensor]:
    """Numbers 0 and 1 in a bit each, or 0 to 15 in four, in the order of memory; and whether all were such. Returns
    (packed, valid).

    Args:
        x: numbers of any floating-point dtype, dense in some order of its dimensions.
        bits: 1 or 4.
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
        v: states before the first step, [*shape]; where they are not given they start anew, v at v_reset, or 0 under
            soft reset.
        w: 1 / tau = sigmoid(w): a tensor that broadcasts against shape.
        decay_input: divide x by tau too.
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
        v: states before the first step, [*shape]; where they are not given they start anew, v at v_reset, or 0 under
            soft reset.
        tau: time constant in steps, > 0.
        v_c: the critical voltage, above which v runs away.
        a0: sharpness of the square.
        v_rest: the resting voltage.
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
        bits: keep the first output in so many bits of each number too, 1 or 4, which `linear` and `convolution` that
            read it then take.
        scan: let steps be taken side by side, of few neurons over a long sequence, which rounds in another way.
            For 1 to 4 states, of which the next are affine in them.
        seed: of a neuron that draws random numbers: int64 of one element, on the CPU or x's device; equal seeds draw
            equal numbers. By default
            torch's generator gives one.
        offset: the number of the first step, as `seed`; by default 0.
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
        weights: [nonzeros].
        indices, indptr: (and slots) what `csr_transpose` gives of the CSR matrix, computed once.
        events: [cols], true or > 0.
        trace: [rows], what a nonzero gains.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds.
    """

def stdp_post_(
    weights: Tensor, indices: Tensor, indptr: Tensor, slots: Tensor, events: Tensor, trace: Tensor, *, rows: int,
    cols: int, w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> None:
    """Spike-timing-dependent plasticity at events of columns, in place.

    For every column j with an event, w_ij += trace_i of its nonzeros; those weights are then clipped to w_min and
    w_max.

    Args:
        weights: [nonzeros].
        indices, indptr: (and slots) what `csr_transpose` gives of the CSR matrix, computed once.
        events: [cols], true or > 0.
        trace: [rows], what a nonzero gains.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds.
    """

def stdp_pre(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, trace: Tensor, *, rows: int, cols: int,
    w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> Tensor:
    """Spike-timing-dependent plasticity at events of rows: the weights of a CSR matrix after it.

    For every row i with an event, w_ij += trace_j of its nonzeros; those weights are then clipped to w_min and w_max.

    Args:
        weights: [nonzeros].
        indices, indptr: of the CSR matrix.
        events: [rows], true or > 0.
        trace: [cols], what a nonzero gains.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds.
    """

def stdp_pre_(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, trace: Tensor, *, rows: int, cols: int,
    w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> None:
    """Spike-timing-dependent plasticity at events of rows, in place.

    For every row i with an event, w_ij += trace_j of its nonzeros; those weights are then clipped to w_min and w_max.

    Args:
        weights: [nonzeros].
        indices, indptr: of the CSR matrix.
        events: [rows], true or > 0.
        trace: [cols], what a nonzero gains.

    Raises:
        ValueError: for shapes that do not fit, and for an index out of bounds.
    """

def text_on_a_line(neuron: str) -> str:
    """A neuron text without line breaks and comments, which says the same.

    Inductor (torch 2.11) writes line breaks in an argument into code that does not parse: packages for GPUs want a text
    on one line.
    """

def unpack_events(packed: Tensor, n: int) -> Tensor:
    """The n events of each row of bits that pack_events made.

    Returns:
        bool, [..., n].
    """

def unpack_spikes(
    packed: Tensor, valid: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, bits: int = 1,
) -> Tensor:
    """The tensor that pack_spikes was given, of a size and stride; NaN where its numbers were not valid.

    Args:
        packed, valid: what `pack_spikes` gave.
        size, stride, dtype: of the tensor to make.
    """

def write_kernel_pack(path: str) -> int:
    """Compiles what record_kernels has noted into one file; how many kernels.

    Args:
        path: of the file. `SPIKEFORGE_KERNEL_PACK` names it to a program.

    Raises:
        RuntimeError: where there is no NVRTC, or nothing was recorded.
    """
