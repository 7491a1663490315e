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
    store_v: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Leaky integrate-and-fire whose threshold v_threshold + b a rises with each of its own spikes, over a whole
    sequence: x [T, *shape], time first. Returns (spikes, v, a)."""
@overload
def adaptive_lif(
    x: Tensor, v: Tensor | None = None, a: Tensor | None = None, *, tau: Tensor | None = None, decay_input: bool = True,
    v_threshold: Tensor | None = None, v_reset: Tensor | None, decay: Tensor | None = None, b: Tensor | None = None,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def adaptive_lif(
    x: Tensor, v: Tensor | None = None, a: Tensor | None = None, *, tau: float | Tensor | None = 2.0,
    decay_input: bool = True, v_threshold: float | Tensor | None = 1.0, v_reset: float | Tensor | None = 0.0,
    decay: float | Tensor | None = 0.9, b: float | Tensor | None = 0.1, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...

def avg_pool2d(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = [], padding: Sequence[int] = [0, 0],
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:
    """Means over windows of images [..., C, H, W]."""

def batch_norm_run(
    neuron: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor],
    weight: Tensor | None = None, bias: Tensor | None = None, mean: Tensor | None = None, var: Tensor | None = None,
    residual: Tensor | None = None, *, residual_mode: str = "add", channel_dim: int = 2, eps: float = 1e-05,
    store_states: bool = False,
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """A neuron written as text behind a batch normalisation, with a residual connection behind it, in one pass. Returns
    (outputs, states, mean, var)."""

def channel_statistics(x: Tensor, channel_dim: int = 2) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel of x [T, B, C, ...]. Returns (mean, var)."""

def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sequence[int] = [1], padding: Sequence[int] = [0],
    dilation: Sequence[int] = [1], groups: int = 1, *, bits: int = 1, recompute: bool = False,
) -> Tensor:
    """torch's convolution of spikes (1 to 3 dimensions of space) that keeps bits of x for its backward pass."""

def csr_check(indices: Tensor, indptr: Tensor, *, rows: int, cols: int, sorted: bool = True) -> None:
    """Reads a CSR matrix now and raises ValueError with what is wrong with it; products then need not check it."""

def csr_transpose(indices: Tensor, indptr: Tensor, *, rows: int, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """The transpose of a CSR matrix, and for each of its nonzeros the slot it has in the original. Returns (indices,
    indptr, slots)."""

def csrmm(
    weights: Tensor, indices: Tensor, indptr: Tensor, matrix: Tensor, *, rows: int, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and a matrix of numbers [..., cols, n]; with `transpose`, [..., rows, n]."""

def csrmv(
    weights: Tensor, indices: Tensor, indptr: Tensor, vector: Tensor, *, rows: int, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and a vector of numbers [..., cols]; with `transpose`, [..., rows]."""

@overload
def eif(
    x: Tensor, v: Tensor | None = None, *, tau: float = 2.0, delta_t: float = 1.0, theta_rh: float = 0.8,
    v_threshold: float = 1.0, v_rest: float = 0.0, v_reset: float | None = -0.1, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]:
    """Exponential integrate-and-fire over a whole sequence: x [T, *shape], time first. Returns (spikes, v)."""
@overload
def eif(
    x: Tensor, v: Tensor | None = None, *, tau: Tensor | None = None, delta_t: Tensor | None = None,
    theta_rh: Tensor | None = None, v_threshold: Tensor | None = None, v_rest: Tensor | None = None,
    v_reset: Tensor | None, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def eif(
    x: Tensor, v: Tensor | None = None, *, tau: float | Tensor | None = 2.0, delta_t: float | Tensor | None = 1.0,
    theta_rh: float | Tensor | None = 0.8, v_threshold: float | Tensor | None = 1.0,
    v_rest: float | Tensor | None = 0.0, v_reset: float | Tensor | None = -0.1, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]: ...

def ellmm(
    weights: Tensor, indices: Tensor, matrix: Tensor, *, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and a matrix of numbers [..., cols, n]."""

def ellmv(
    weights: Tensor, indices: Tensor, vector: Tensor, *, cols: int, transpose: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and a vector of numbers [..., cols]."""

def event_csrmm(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, *, rows: int, cols: int, transpose: bool = False,
    graded: bool = False, deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and events, entries that are true or > 0, [..., cols, n]; with `transpose`, [..., rows,
    n]."""

def event_csrmv(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, *, rows: int, cols: int, transpose: bool = False,
    graded: bool = False, deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a CSR matrix and events, entries that are true or > 0, [..., cols]; with `transpose`, [..., rows]."""

def event_ellmm(
    weights: Tensor, indices: Tensor, events: Tensor, *, cols: int, transpose: bool = False, graded: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and events [..., cols, n]."""

def event_ellmv(
    weights: Tensor, indices: Tensor, events: Tensor, *, cols: int, transpose: bool = False, graded: bool = False,
    deterministic: bool = False, unchecked: bool = False,
) -> Tensor:
    """Product of a matrix with equally many nonzeros a row and events [..., cols]."""

def event_linear(events: Tensor, weight: Tensor, bias: Tensor | None = None, *, graded: bool = False) -> Tensor:
    """Adds up the rows of weight [in, out] whose inputs fired; events [..., in], or bits of pack_events."""

@overload
def integrate_and_fire(
    x: Tensor, v: Tensor | None = None, *, v_threshold: float = 1.0, v_reset: float | None = 0.0,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False,
) -> tuple[Tensor, Tensor]:
    """Integrate-and-fire over a whole sequence: x [T, *shape], time first. Returns (spikes, v)."""
@overload
def integrate_and_fire(
    x: Tensor, v: Tensor | None = None, *, v_threshold: Tensor | None = None, v_reset: Tensor | None,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def integrate_and_fire(
    x: Tensor, v: Tensor | None = None, *, v_threshold: float | Tensor | None = 1.0,
    v_reset: float | Tensor | None = 0.0, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]: ...

@overload
def izhikevich(
    x: Tensor, v: Tensor | None = None, w: Tensor | None = None, *, tau: float = 2.0, v_c: float = 0.8, a0: float = 1.0,
    v_threshold: float = 1.0, v_rest: float = -0.1, w_rest: float = 0.0, v_reset: float | None = 0.0,
    tau_w: float = 2.0, a: float = 0.0, b: float = 0.0, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Izhikevich's neuron with its recovery variable w, over a whole sequence: x [T, *shape], time first. Returns
    (spikes, v, w)."""
@overload
def izhikevich(
    x: Tensor, v: Tensor | None = None, w: Tensor | None = None, *, tau: Tensor | None = None,
    v_c: Tensor | None = None, a0: Tensor | None = None, v_threshold: Tensor | None = None,
    v_rest: Tensor | None = None, w_rest: Tensor | None = None, v_reset: Tensor | None, tau_w: Tensor | None = None,
    a: Tensor | None = None, b: Tensor | None = None, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def izhikevich(
    x: Tensor, v: Tensor | None = None, w: Tensor | None = None, *, tau: float | Tensor | None = 2.0,
    v_c: float | Tensor | None = 0.8, a0: float | Tensor | None = 1.0, v_threshold: float | Tensor | None = 1.0,
    v_rest: float | Tensor | None = -0.1, w_rest: float | Tensor | None = 0.0, v_reset: float | Tensor | None = 0.0,
    tau_w: float | Tensor | None = 2.0, a: float | Tensor | None = 0.0, b: float | Tensor | None = 0.0,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...

def jit_csrmm(
    weights: Tensor, events: Tensor, *, rows: int, cols: int, prob: float, seed: int, law: str = "constant",
    transpose: bool = False, values: str = "event", deterministic: bool = False,
) -> Tensor:
    """Product of a random matrix that is never stored and [..., cols, n]."""

def jit_csrmv(
    weights: Tensor, events: Tensor, *, rows: int, cols: int, prob: float, seed: int, law: str = "constant",
    transpose: bool = False, values: str = "event", deterministic: bool = False,
) -> Tensor:
    """Product of a random matrix that is never stored and [..., cols]."""

def lava_neuron(name: str) -> str:
    """The neuron text of one of Lava's floating-point neurons, for `run`."""

@overload
def lif(
    x: Tensor, v: Tensor | None = None, *, tau: float = 2.0, decay_input: bool = True, v_threshold: float = 1.0,
    v_reset: float | None = 0.0, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]:
    """Leaky integrate-and-fire over a whole sequence: x [T, *shape], time first. Returns (spikes, v)."""
@overload
def lif(
    x: Tensor, v: Tensor | None = None, *, tau: Tensor | None = None, decay_input: bool = True,
    v_threshold: Tensor | None = None, v_reset: Tensor | None, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def lif(
    x: Tensor, v: Tensor | None = None, *, tau: float | Tensor | None = 2.0, decay_input: bool = True,
    v_threshold: float | Tensor | None = 1.0, v_reset: float | Tensor | None = 0.0, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]: ...

def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, bits: int = 1, recompute: bool = False,
) -> Tensor:
    """torch's linear layer of spikes that keeps bits of x for its backward pass."""

def load_kernel_pack(path: str) -> int:
    """Adds a file of compiled GPU kernels to those of this process; how many it has."""

def loihi_delay_dense(
    x: Tensor, weight: Tensor, delays: Tensor, buffer: Tensor | None = None, *, max_delay: int, weight_exp: int = 0,
    num_message_bits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Dense connection of Loihi with a delay for each synapse: x [T, *batch, in] to [T, *batch, out]. Returns (y,
    buffer)."""

def loihi_dense(
    x: Tensor, weight: Tensor, buffer: Tensor | None = None, *, delay: int = 1, weight_exp: int = 0,
    num_message_bits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Dense connection of Loihi: x [T, *batch, in] to [T, *batch, out], after `delay` steps. Returns (y, buffer)."""

@overload
def loihi_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: int = 0, dv: int = 0, bias_mant: int = 0,
    bias_exp: int = 0, vth: int = 10, store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """LIF in Loihi's fixed-point arithmetic (int32): x [T, *shape], time first. Returns (spikes, u, v)."""
@overload
def loihi_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: int = 0, dv: int = 0, bias_mant: Tensor,
    bias_exp: int = 0, vth: int = 10, store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def loihi_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: Tensor | None = None, dv: Tensor | None = None,
    bias_mant: Tensor | None = None, bias_exp: Tensor | None = None, vth: Tensor | None = None,
    store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...

@overload
def loihi_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: int = 0, bias_exp: int = 0, vth: int = 10, refractory_period: int = 1,
    store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF with a refractory period, in Loihi's fixed-point arithmetic (int32): x [T, *shape], time first. Returns
    (spikes, u, v, wait)."""
@overload
def loihi_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: Tensor, bias_exp: int = 0, vth: int = 10, refractory_period: int = 1,
    store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth: Tensor | None = None, refractory_period: int = 1, store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

@overload
def loihi_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: int = 0, bias_exp: int = 0, vth: int = 10, reset_interval: int = 1, reset_offset: int = 0,
    store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF whose states are reset every `reset_interval` steps, in Loihi's fixed-point arithmetic (int32): x [T,
    *shape], time first. Returns (spikes, u, v, phase)."""
@overload
def loihi_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: Tensor, bias_exp: int = 0, vth: int = 10, reset_interval: int = 1, reset_offset: int = 0,
    store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth: Tensor | None = None, reset_interval: int = 1, reset_offset: int = 0, store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

def loihi_prepare_weights(weight: Tensor, *, num_weight_bits: int = 8, sign_mode: str | None = None) -> Tensor:
    """Weights as Loihi's Dense stores them: rounded to the chip's bits."""

def loihi_quantize(
    weight: Tensor, bias: Tensor | None = None, *, tau: float = 2.0, decay_input: bool = True, v_threshold: float = 1.0,
    input_scale: float = 1.0, largest_message: int = 1, num_weight_bits: int = 8,
) -> tuple[Tensor, Tensor, int, int, int, int, float, float, float, float, float]:
    """A float layer and the constants of the `lif` behind it, in Loihi's fixed point, with the errors made. Returns
    (weights, bias_mant, bias_exp, weight_exp, dv, vth, scale, weight_error, bias_error, threshold_error,
    decay_error)."""

def loihi_sparse(
    x: Tensor, crow_indices: Tensor, col_indices: Tensor, values: Tensor, buffer: Tensor | None = None, *,
    delay: int = 1, weight_exp: int = 0, num_message_bits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Sparse (CSR) connection of Loihi: x [T, *batch, in] to [T, *batch, out], after `delay` steps. Returns (y,
    buffer)."""

@overload
def loihi_ternary_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: int = 0, dv: int = 0, bias_mant: int = 0,
    bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """LIF with spikes -1, 0 and 1, in Loihi's fixed-point arithmetic (int32): x [T, *shape], time first. Returns
    (spikes, u, v)."""
@overload
def loihi_ternary_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: int = 0, dv: int = 0, bias_mant: Tensor,
    bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def loihi_ternary_lif(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, *, du: Tensor | None = None, dv: Tensor | None = None,
    bias_mant: Tensor | None = None, bias_exp: Tensor | None = None, vth_hi: Tensor | None = None,
    vth_lo: Tensor | None = None, store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...

@overload
def loihi_ternary_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: int = 0, bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, refractory_period: int = 1,
    store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF with spikes -1, 0 and 1 and a refractory period, in Loihi's fixed-point arithmetic (int32): x [T, *shape],
    time first. Returns (spikes, u, v, wait)."""
@overload
def loihi_ternary_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: Tensor, bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, refractory_period: int = 1,
    store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_ternary_lif_refractory(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, wait: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth_hi: Tensor | None = None, vth_lo: Tensor | None = None, refractory_period: int = 1, store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

@overload
def loihi_ternary_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: int = 0, bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, reset_interval: int = 1,
    reset_offset: int = 0, store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIF with spikes -1, 0 and 1, reset every `reset_interval` steps, in Loihi's fixed-point arithmetic (int32): x [T,
    *shape], time first. Returns (spikes, u, v, phase)."""
@overload
def loihi_ternary_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *, du: int = 0,
    dv: int = 0, bias_mant: Tensor, bias_exp: int = 0, vth_hi: int = 10, vth_lo: int = -10, reset_interval: int = 1,
    reset_offset: int = 0, store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def loihi_ternary_lif_reset(
    x: Tensor, u: Tensor | None = None, v: Tensor | None = None, phase: Tensor | None = None, *,
    du: Tensor | None = None, dv: Tensor | None = None, bias_mant: Tensor | None = None, bias_exp: Tensor | None = None,
    vth_hi: Tensor | None = None, vth_lo: Tensor | None = None, reset_interval: int = 1, reset_offset: int = 0,
    store_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

def max_pool2d(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = [], padding: Sequence[int] = [0, 0],
    dilation: Sequence[int] = [1, 1], ceil_mode: bool = False,
) -> Tensor:
    """Maxima over windows of images [..., C, H, W]."""

def max_pool2d_with_places(x: Tensor, windows: Sequence[int], ceil_mode: bool) -> tuple[Tensor, Tensor]:
    """max_pool2d, and the place in its window that each maximum is from. Returns (y, which)."""

def pack_events(events: Tensor) -> Tensor:
    """Events [..., n] as bits, [..., ceil(n / 32)] of int32."""

def pack_spikes(x: Tensor, bits: int = 1) -> tuple[Tensor, Tensor]:
    """Numbers 0 and 1 in a bit each, or 0 to 15 in four, in the order of memory; and whether all were such. Returns
    (packed, valid)."""

@overload
def plif(
    x: Tensor, w: Tensor, v: Tensor | None = None, *, decay_input: bool = True, v_threshold: float = 1.0,
    v_reset: float | None = 0.0, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]:
    """Leaky integrate-and-fire with 1/tau = sigmoid(w), over a whole sequence: x [T, *shape], time first. Returns
    (spikes, v)."""
@overload
def plif(
    x: Tensor, w: Tensor, v: Tensor | None = None, *, decay_input: bool = True, v_threshold: Tensor | None = None,
    v_reset: Tensor | None, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def plif(
    x: Tensor, w: Tensor, v: Tensor | None = None, *, decay_input: bool = True,
    v_threshold: float | Tensor | None = 1.0, v_reset: float | Tensor | None = 0.0, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]: ...

def print_cuda(neuron: str, dtype: torch.dtype) -> str:
    """The CUDA source generated for a neuron text."""

@overload
def qif(
    x: Tensor, v: Tensor | None = None, *, tau: float = 2.0, v_c: float = 0.8, a0: float = 1.0,
    v_threshold: float = 1.0, v_rest: float = 0.0, v_reset: float | None = -0.1, detach_reset: bool = False,
    surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]:
    """Quadratic integrate-and-fire over a whole sequence: x [T, *shape], time first. Returns (spikes, v)."""
@overload
def qif(
    x: Tensor, v: Tensor | None = None, *, tau: Tensor | None = None, v_c: Tensor | None = None,
    a0: Tensor | None = None, v_threshold: Tensor | None = None, v_rest: Tensor | None = None, v_reset: Tensor | None,
    detach_reset: bool = False, surrogate: str = "sigmoid", surrogate_args: Sequence[float] = [], spiking: bool = True,
    store_v: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def qif(
    x: Tensor, v: Tensor | None = None, *, tau: float | Tensor | None = 2.0, v_c: float | Tensor | None = 0.8,
    a0: float | Tensor | None = 1.0, v_threshold: float | Tensor | None = 1.0, v_rest: float | Tensor | None = 0.0,
    v_reset: float | Tensor | None = -0.1, detach_reset: bool = False, surrogate: str = "sigmoid",
    surrogate_args: Sequence[float] = [], spiking: bool = True, store_v: bool = False,
) -> tuple[Tensor, Tensor]: ...

def record_kernels(archs: Sequence[str]) -> None:
    """From here on, calls on the CPU note the kernels that they would run on GPUs of these architectures."""

def records_kernels() -> bool:
    """Whether kernels are being noted, since record_kernels."""

def recurrent_run(
    neuron: str, inputs: Sequence[Tensor], w: Tensor, states: Sequence[Tensor], params: Sequence[Tensor],
    spikes: Tensor | None = None, *, into: int = 0, delay: int = 1, store_states: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """A neuron written as text whose first output comes back to it through w, `delay` steps later: inputs [T, *batch,
    H]. Returns (outputs, states)."""

def run(
    neuron: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor], *,
    store_states: bool = False, scan: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """A neuron written as text over whole sequences: inputs [T, *shape] in the order of the text, states, parameters.
    Returns (outputs, states)."""

def stdp_post(
    weights: Tensor, indices: Tensor, indptr: Tensor, slots: Tensor, events: Tensor, trace: Tensor, *, rows: int,
    cols: int, w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> Tensor:
    """Spike-timing-dependent plasticity at events of columns: the weights of a CSR matrix after it."""

def stdp_post_(
    weights: Tensor, indices: Tensor, indptr: Tensor, slots: Tensor, events: Tensor, trace: Tensor, *, rows: int,
    cols: int, w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> None:
    """Spike-timing-dependent plasticity at events of columns, in place."""

def stdp_pre(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, trace: Tensor, *, rows: int, cols: int,
    w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> Tensor:
    """Spike-timing-dependent plasticity at events of rows: the weights of a CSR matrix after it."""

def stdp_pre_(
    weights: Tensor, indices: Tensor, indptr: Tensor, events: Tensor, trace: Tensor, *, rows: int, cols: int,
    w_min: float | None = None, w_max: float | None = None, unchecked: bool = False,
) -> None:
    """Spike-timing-dependent plasticity at events of rows, in place."""

def text_on_a_line(neuron: str) -> str:
    """A neuron text without line breaks and comments, which says the same."""

def unpack_events(packed: Tensor, n: int) -> Tensor:
    """The n events of each row of bits that pack_events made."""

def unpack_spikes(
    packed: Tensor, valid: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, bits: int = 1,
) -> Tensor:
    """The tensor that pack_spikes was given, of a size and stride; NaN where its numbers were not valid."""

def write_kernel_pack(path: str) -> int:
    """Compiles what record_kernels has noted into one file; how many kernels."""
