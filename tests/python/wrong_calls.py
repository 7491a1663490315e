"""Fuzzes every operator of the namespace with wrong calls, which must not access memory outside their arguments.

    python wrong_calls.py LIBRARY --calls 5000 --seed 1 [--only REGEX] [--log FILE]

Legal calls of public operators are defined below, and those of lowered operators are recorded from these. Some arguments
are then changed, by type: shapes, dtypes, values, aliases, devices, layouts. Each call must raise an exception with a
message, or return results with the shapes and types of the meta device, and must not change arguments that its schema does
not declare as written. Tensors end at an inaccessible page, and the memory before them is compared after the call.
FILE contains the current call, in case the process crashes.
"""

import argparse
import ctypes
import mmap
import random
import re
import signal
import sys
import traceback
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

ops = torch.ops.spikeforge
TEXT = "neuron leaky(x; v; k) { h = 0.5 * v + x * k; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"
TWO = "neuron two(x, y; v, w) { h = 0.5 * v + x - w; s = spike(h - 1, sigmoid(4)); return s; v' = select(s, 0, h); w' = 0.9 * w + y * s }"
AFFINE = "neuron affine(x; v) { n = 0.5 * v + x; return n; v' = n }"
STDP = "synapse stdp(w, c; x, y; tau; m) { on pre { x' = x + 1; c' = c - y }; on post { y' = y + 1; c' = c + x }; on m { w' = w + m * c }; decay c by tau; decay x by 2; decay y by 3 }"
NOISY = "neuron noisy(x; v; k) { h = 0.5 * v + x * k + normal(); s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) * draw_once(uniform()) }"
# These operators write files or affect later calls. Their arguments are strings and paths.
UNTOUCHED = {"record_kernels", "records_kernels", "write_kernel_pack", "load_kernel_pack", "print_cuda", "text_on_a_line", "neuron_text"}

SECONDS_A_CALL = 120
READS_WEIGHTS = {"loihi_quantize", "loihi_optimize_weight_bits"}  # on the host: meta tensors raise an error


# ---- legal calls ----

def integers(low, high, *shape, dtype=torch.int32):
    return torch.randint(low, high, shape, dtype=dtype)


def csr(rows=6, cols=7, nnz=15, dtype=torch.int64):
    begins = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(nnz + 1, (rows - 1,)).sort().values, torch.tensor([nnz])])
    return integers(0, cols, nnz), begins.to(dtype), dict(rows=rows, cols=cols)


def samples(steps=4, count=2):
    return dict(lengths=integers(0, steps + 1, count), start=torch.rand(steps, count) < 0.3)


def neuron_calls(schema):
    """Returns calls with all optional arguments, and with none."""
    for full in (False, True):
        arguments = {}
        for a in schema.arguments:
            if a.name == "x":
                arguments[a.name] = torch.randn(4, 2, 5, dtype=random.choice([torch.float32, torch.float64, torch.bfloat16])).requires_grad_()
            elif a.name in ("lengths", "start"):
                arguments |= {a.name: samples()[a.name]} if full else {}
            elif a.name == "w" and schema.name.endswith("plif"):
                arguments[a.name] = torch.randn(()).to(arguments["x"].dtype)
            elif a.name == "v_reset" and schema.overload_name:
                arguments[a.name] = torch.zeros((5,) if full else (), dtype=arguments["x"].dtype)
            elif full and str(a.type) in ("Optional[Tensor]", "Optional[Any]"):
                shape = (2, 5) if a.name in schema_states(schema) else (5,)
                least = 0 if a.name == "decay" else 0.5
                arguments[a.name] = (least + torch.rand(shape)).to(arguments["x"].dtype)
            elif full and a.name == "store_v":
                arguments[a.name] = True
        yield arguments


def schema_states(schema):
    return {r.name for r in schema.returns} - {"spikes"}


def loihi_calls(schema):
    """Returns calls with integers, and with floats that contain integers."""
    for full, dtype in ((False, torch.int32), (True, torch.int32), (True, torch.float32)):
        arguments = {}
        integers = lambda low, high, *size: torch.randint(low, high, size).to(dtype)
        for a in schema.arguments:
            if a.name == "x":
                arguments[a.name] = integers(-3, 4, 4, 2, 5).requires_grad_(dtype.is_floating_point)
            elif a.name in ("lengths", "start"):
                arguments |= {a.name: samples()[a.name]} if full else {}
            elif a.name == "bias_mant" and schema.overload_name == "bias":
                arguments[a.name] = integers(0, 4, 5)
            elif full and str(a.type) == "Optional[Tensor]":
                shape = (2, 5) if a.name in schema_states(schema) else (5,)
                arguments[a.name] = integers(0, 4, *shape)
            elif full and a.name == "store_states":
                arguments[a.name] = True
        yield arguments


def public_calls(schema):
    """Returns argument names and values."""
    name = schema.name.partition("::")[2]
    names = [a.name for a in schema.arguments]
    if name.startswith(("loihi_lif", "loihi_ternary")):
        yield from loihi_calls(schema)
    elif "surrogate" in names and "numbers" not in names and name != "loihi_neuron":
        yield from neuron_calls(schema)
    elif name in ("run",):
        x = torch.randn(4, 2, 5, requires_grad=True)
        yield dict(neuron=TEXT, inputs=[x], states=[torch.rand(2, 5)], params=[torch.rand(5)])
        yield dict(neuron=TEXT, inputs=[x], states=[], params=[torch.rand(())], store_states=True, bits=4, **samples())
        yield dict(neuron=TWO, inputs=[x.double(), torch.rand(4, 2, 5).double()], states=[torch.rand(2, 5).double(), torch.rand(2, 5).double()], params=[])
        yield dict(neuron=AFFINE, inputs=[x], states=[], params=[], scan=True)
        yield dict(neuron=NOISY, inputs=[x], states=[torch.rand(2, 5)], params=[torch.rand(5)], seed=torch.tensor(3), offset=torch.tensor(1))
    elif name == "recurrent_run":
        x = torch.randn(4, 2, 5, requires_grad=True)
        yield dict(neuron=TEXT, inputs=[x], w=torch.randn(5, 5, requires_grad=True), states=[torch.rand(2, 5)], params=[torch.rand(5)], spikes=torch.rand(2, 2, 5), delay=2)
        yield dict(neuron=TWO, inputs=[x.double(), torch.rand(4, 2, 5).double()], w=torch.randn(5, 5).double(), states=[], params=[], into=1, store_states=True)
    elif name == "sparse_recurrent_run":
        x = torch.randn(4, 2, 3, requires_grad=True)
        matrix = dict(weights=torch.randn(4, requires_grad=True), indices=torch.tensor([0, 2, 1, 1], dtype=torch.int32), indptr=torch.tensor([0, 2, 2, 4]), delays=torch.tensor([1, 2, 2, 1], dtype=torch.uint8))
        yield dict(neuron=TEXT, inputs=[x], **matrix, states=[torch.rand(2, 3)], params=[torch.rand(3)], spikes=torch.rand(2, 2, 3), max_delay=2)
        yield dict(neuron=TWO, inputs=[x, torch.rand(4, 2, 3)], **matrix, states=[], params=[], max_delay=2, into=1, values="number", store_states=True, **samples())
    elif name == "online_linear":
        x, w = torch.randn(2, 3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
        yield dict(neuron=TEXT, x=x, weight=w, bias=torch.randn(5), states=[torch.rand(3, 5)], params=[torch.rand(5)], traces=[torch.rand(3, 5, 4), torch.rand(3, 5)])
        yield dict(neuron=TEXT, x=x, weight=w, bias=None, states=[], params=[torch.rand(())], traces=[torch.rand(3, 4)], rule="ottt")
        yield dict(neuron=TWO, x=x.detach(), weight=w, bias=None, states=[], params=[], traces=[], into=1, inputs=[torch.rand(2, 3, 5), torch.rand(2, 3, 5)])
    elif re.fullmatch(r"delayed_linear(_forward|_backward)?", name):
        x, w = torch.randn(6, 2, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
        for delay, form, past in ((torch.rand(3, 5, requires_grad=True), "gauss", torch.rand(4, 2, 5)), (torch.rand(5), "linear", None)):
            given = dict(x=x, weight=w, delay=delay, max_delay=4, interpolation=form, width=0.5, past=past)
            if name.endswith("backward"):
                given = dict(grad=torch.randn(6, 2, 3), needs_grad=[True, past is None, True, past is not None], **{key: value.detach() if isinstance(value, torch.Tensor) else value for key, value in given.items()})
            yield given
    elif name == "rows_product":
        yield dict(a=torch.rand(2, 3, 5), b=torch.rand(2, 3, 4))
    elif name == "local_jacobian":
        yield dict(neuron=TEXT, inputs=[torch.randn(2, 3, 5)], states=[torch.rand(3, 5)], params=[torch.rand(())], into=0, of_params=[0])
    elif name == "with_eligibility":
        state, w = torch.rand(3, 5, requires_grad=True), torch.rand(5, 4, requires_grad=True)
        yield dict(state=state, leaf=w, trace=torch.rand(3, 5, 4))
        yield dict(state=state, leaf=w, trace=torch.rand(3, 4), outer=True)
        yield dict(state=state, leaf=torch.rand((), requires_grad=True), trace=torch.rand(3, 5))
    elif name == "eligibility_gradient":
        yield dict(grad=torch.rand(3, 5), trace=torch.rand(3, 5, 4))
    elif name == "advance_eligibility":
        square, drives = [torch.rand(3, 5) for _ in range(4)], [torch.rand(2, 3, 5) for _ in range(2)]
        yield dict(traces=[torch.rand(3, 5, 4), torch.rand(3, 5, 4)], transitions=square, drives=drives, x=torch.rand(2, 3, 4))
        yield dict(traces=[], transitions=square, drives=square[:2])
    elif name == "trace_of_input":
        yield dict(neuron=TEXT)
    elif name == "batch_norm_run":
        x, c = torch.randn(4, 2, 5, 3, requires_grad=True), torch.rand(5)
        yield dict(neuron=TEXT, inputs=[x], states=[torch.rand(2, 5, 3)], params=[torch.rand(3)], weight=c, bias=c, residual=torch.rand(4, 2, 5, 3), residual_mode="iand", bits=1)
        yield dict(neuron=TEXT, inputs=[x.detach()], states=[], params=[torch.rand(())], mean=c, var=c, channel_dim=-2, store_states=True)
    elif name == "batch_norm_run_tracked":
        x, c = torch.randn(4, 2, 5, 3, requires_grad=True), torch.rand(5)
        running = dict(running_mean=torch.rand(5), running_var=torch.rand(5), num_batches_tracked=torch.tensor(3))
        yield dict(neuron=TEXT, inputs=[x], states=[torch.rand(2, 5, 3)], params=[torch.rand(3)], **running, weight=c, bias=c, residual=torch.rand(4, 2, 5, 3), residual_mode="and")
        yield dict(neuron=TEXT, inputs=[x.detach()], states=[], params=[torch.rand(())], **running, momentum=None, channel_dim=-2)
    elif name == "channel_statistics":
        yield dict(x=torch.randn(4, 2, 5, 3, requires_grad=True))
        yield dict(x=torch.randn(9, 70, dtype=torch.bfloat16), channel_dim=1)
    elif name == "pack_spikes":
        yield dict(x=torch.randint(0, 2, (3, 41)).float())
        yield dict(x=torch.randint(0, 16, (3, 5, 7)).bfloat16(), bits=4)
    elif name == "unpack_spikes":
        yield dict(packed=integers(0, 256, 13, dtype=torch.uint8), valid=torch.tensor(True), size=[5, 20], stride=[20, 1], dtype=torch.float32)
        yield dict(packed=integers(0, 256, 50, dtype=torch.uint8), valid=torch.tensor(False), size=[5, 20], stride=[1, 5], dtype=torch.float16, bits=4)
    elif name == "linear":
        yield dict(x=torch.randint(0, 2, (3, 7)).float(), weight=torch.randn(5, 7, requires_grad=True), bias=torch.randn(5))
        yield dict(x=torch.randn(3, 7), weight=torch.randn(5, 7, requires_grad=True), bits=0, recompute=True)
    elif name == "convolution":
        yield dict(x=torch.randint(0, 2, (3, 4, 7)).float(), weight=torch.randn(6, 4, 3, requires_grad=True), bias=torch.randn(6), padding=[1])
        yield dict(x=torch.randint(0, 9, (3, 4, 7, 7)).float().requires_grad_(), weight=torch.randn(6, 2, 3, 3, requires_grad=True), groups=2, stride=[2, 1], bits=4)
    elif name == "max_pool2d":
        yield dict(x=torch.randn(2, 3, 4, 7, 6, requires_grad=True), kernel_size=[3], stride=[2], padding=[1])
        yield dict(x=torch.randn(3, 4, 7, 6).bfloat16().to(memory_format=torch.channels_last).requires_grad_(), kernel_size=[2, 3], dilation=[2, 1], ceil_mode=True)
        yield dict(x=torch.randn(2, 3, 4, 7, 6, requires_grad=True), kernel_size=[3], stride=[2], padding=[1], weight=torch.randn(4))
    elif name == "max_pool2d_statistics":
        yield dict(x=torch.randn(2, 3, 4, 7, 6, requires_grad=True), kernel_size=[3], stride=[2], padding=[1], weight=torch.randn(4))
        yield dict(x=torch.randn(3, 4, 7, 6).half().to(memory_format=torch.channels_last).requires_grad_(), kernel_size=[2, 3], ceil_mode=True)
    elif name == "avg_pool2d":
        yield dict(x=torch.randn(2, 3, 4, 7, 6, requires_grad=True), kernel_size=[3], stride=[2], padding=[1], ceil_mode=True)
        yield dict(x=torch.randn(3, 4, 7, 6).half().to(memory_format=torch.channels_last).requires_grad_(), kernel_size=[2, 3], count_include_pad=False, divisor_override=5)
    elif re.fullmatch(r"(event_)?csrm[vm]|(event_)?ellm[vm]", name):
        for transpose in (False, True):
            indices, indptr, size = csr(dtype=random.choice([torch.int32, torch.int64]))
            x = (size["rows"] if transpose else size["cols"],) + ((3,) if name.endswith("mm") else ())
            common = dict(transpose=transpose, **{names[3 if "csr" in name else 2]: torch.randn(x, requires_grad=True)})
            if "csr" in name:
                yield dict(weights=torch.randn(15, requires_grad=True), indices=indices, indptr=indptr, **size, **common)
                yield dict(weights=torch.randn(1), indices=indices, indptr=indptr, **size, **common)
            else:
                yield dict(weights=torch.randn(6, 4, requires_grad=True), indices=integers(0, 7, 6, 4), cols=7, **common)
    elif re.fullmatch(r"event_(csr|ell)mv_delayed_?", name):
        for transpose in (False, True):
            indices, indptr, size = csr(dtype=random.choice([torch.int32, torch.int64]))
            sides = [size["rows"], size["cols"]]
            into, out = sides if transpose else reversed(sides)
            gradients = not name.endswith("_")
            common = dict(events=torch.randn(2, into, requires_grad=gradients), buffer=torch.randn(3, 2, out, requires_grad=gradients), step=torch.tensor(4), transpose=transpose)
            if "csr" in name:
                yield dict(weights=torch.randn(15, requires_grad=gradients), indices=indices, indptr=indptr, delays=integers(0, 3, 15), **size, **common)
                yield dict(weights=torch.randn(1).half(), indices=indices, indptr=indptr, delays=integers(0, 3, 1, dtype=torch.uint8), **size, **common)
            else:
                yield dict(weights=torch.randn(6, 4, requires_grad=gradients), indices=integers(0, 7, 6, 4), delays=integers(0, 3, 6, 4, dtype=torch.uint8), cols=7, **common)
    elif name in ("jit_csrmv_delayed", "jit_csrmv_delayed_"):
        gradients = not name.endswith("_")
        for transpose in (False, True):
            yield dict(weights=torch.randn(2), events=torch.randn(2, 30 if transpose else 40, requires_grad=gradients), buffer=torch.zeros(3, 2, 40 if transpose else 30), step=torch.tensor(4),
                       rows=30, cols=40, prob=0.1, seed=3, delays=[1.0, 2.0], law="normal", delay_law="uniform", transpose=transpose)
    elif name in ("take_arrivals", "take_arrivals_"):
        yield dict(buffer=torch.randn(3, 2, 5, requires_grad=not name.endswith("_")), step=torch.tensor(4))
    elif name in ("jit_csrmv", "jit_csrmm"):
        for transpose in (False, True):
            x = (40 if not transpose else 30,) + ((3,) if name.endswith("mm") else ())
            yield dict(weights=torch.randn(2), events=torch.randn(x), rows=30, cols=40, prob=0.1, seed=3, law="normal", transpose=transpose)
    elif name == "connect":
        infinity = float("inf")
        yield dict(rows=6, cols=12, rules=["fixed_in_degree", "fixed_total", "arrays"], ranges=[0, 4, 6, 12, 1, 6, 0, 6, 0, 2, 3, 5], amounts=[3.0, 40.0, 0.0],
                   choices=[False, False, False, True] + [True] * 8, laws=["normal", "lognormal", "uniform", "constant", "array", "array"],
                   numbers=[1.0, 0.1, 0.0, infinity, 3.0, 1.0, 1.0, 30.0, 0.0, 1.0, -infinity, infinity, 2.0, 0.0, 0.0, 9.0] + [0.0] * 8,
                   arrays=[integers(0, 2, 5), integers(0, 2, 5), torch.rand(5), integers(1, 9, 5)], seed=3, dtype=torch.float32)
        yield dict(rows=5, cols=5, rules=["fixed_out_degree", "fixed_probability"], ranges=[0, 5, 0, 5, 0, 5, 0, 5], amounts=[3.0, 0.5], choices=[False] * 8,
                   laws=["constant"] * 4, numbers=[1.0, 0.0, 0.0, 2.0] * 4, arrays=[])
    elif name == "csr_check" or name == "csr_transpose":
        indices, indptr, size = csr()
        yield dict(indices=indices, indptr=indptr, **size, **(dict(sorted=False) if name == "csr_check" else {}))
    elif name.startswith("stdp_"):
        indices, indptr, size = csr()
        post = "post" in name
        if post:
            indices, indptr, slots = ops.csr_transpose(indices, indptr, **size)
        sizes = [size["rows"], size["cols"]]
        events, trace = reversed(sizes) if post else sizes
        yield dict(weights=torch.randn(15), indices=indices, indptr=indptr, **(dict(slots=slots) if post else {}), events=torch.rand(events) - 0.3, trace=torch.rand(trace), **size, w_max=1.0)
    elif name.startswith("plastic_step"):
        indices, indptr, size = csr()
        given = dict(indices=indices, indptr=indptr, pre=torch.rand(size["rows"]) - 0.3, post=torch.rand(size["cols"]) < 0.5, **size)
        before, after = torch.rand(size["rows"]), torch.rand(size["cols"])
        columns = list(ops.csr_transpose(indices, indptr, **size))
        yield dict(rule=STDP, states=[torch.randn(15), torch.rand(15), integers(-1, 3, 15)], traces=[before, after], by_columns=columns, signals=[torch.rand(size["cols"])], step=torch.tensor(3), params=[5.0], sends=True, **given)
        yield dict(rule="synapse relay(w) { }", states=[torch.randn(15).half()], traces=[], by_columns=[], signals=[], **given)
    elif name == "event_linear":
        yield dict(events=torch.randn(3, 40, requires_grad=True), weight=torch.randn(40, 7, requires_grad=True), bias=torch.randn(7))
        yield dict(events=integers(0, 9, 3, 2), weight=torch.randn(40, 7))
    elif name == "event_frames":
        count = dict(t=integers(0, 90, 20, dtype=torch.int64), x=integers(0, 8, 20, dtype=torch.int16), offsets=torch.tensor([0, 7, 7, 20]))
        start, offset = torch.zeros(3, dtype=torch.int64), integers(-3, 4, 3, 2, dtype=torch.int64)
        yield dict(**count, y=None, p=None, size=[1, 1, 8], steps=4, bins="count", values="bits")
        for values in ("count", "binary", "normalised", "voxel", "surface", "bits"):
            yield dict(**count, y=integers(0, 6, 20, dtype=torch.uint8), p=torch.rand(20) < 0.5, size=[2, 6, 8], steps=4, window=20, start=start, values=values, tau=5.0, crop=[4, 5],
                       origin=offset, flip=torch.rand(3, 2) < 0.5, downsample=2, ignored=torch.rand(6, 8) < 0.1, keep=torch.rand(20) < 0.9, dtype=torch.float16)
    elif name == "pack_events":
        yield dict(events=torch.randn(3, 40))
    elif name == "unpack_events":
        yield dict(packed=integers(0, 9, 3, 2), n=40)
    elif name in ("loihi_dense", "loihi_delay_dense"):
        delays = dict(delays=integers(0, 3, 3, 4), max_delay=2) if "delay" in name else {}
        for batch in ((2,), (9,)):
            yield dict(x=integers(-3, 4, 5, *batch, 4), weight=integers(-9, 9, 3, 4), **delays)
        yield dict(x=integers(-3, 4, 5, 4), weight=integers(-9, 9, 3, 4), buffer=integers(0, 9, 3 if delays else 1, 3), **delays)
        yield dict(x=integers(-3, 4, 5, 4).float(), weight=integers(-9, 9, 3, 4).float().requires_grad_(), **delays)
    elif name == "loihi_conv":
        yield dict(x=integers(-3, 4, 5, 2, 4, 6, 5), weight=integers(-9, 9, 6, 2, 3, 2), groups=2, padding=[1, 0], stride=[2])
        yield dict(x=integers(-3, 4, 5, 4, 6, 5).float(), weight=integers(-9, 9, 3, 4, 3, 2).float().requires_grad_(), dilation=[2, 1])
    elif name == "loihi_sparse":
        indices, indptr, _ = csr(3, 4, 6)
        yield dict(x=integers(-3, 4, 5, 2, 4), crow_indices=indptr, col_indices=indices.long(), values=integers(-9, 9, 6))
        yield dict(x=integers(-3, 4, 5, 4).float(), crow_indices=indptr, col_indices=indices.long(), values=integers(-9, 9, 6).float().requires_grad_())
    elif name == "loihi_product":
        for rows in (2, 9):
            yield dict(x=integers(-3, 4, rows, 4), weight=integers(-9, 9, 3, 4), num_message_bits=random.choice([0, 24]))
    elif name == "loihi_sparse_product":
        indices, indptr, _ = csr(3, 4, 6)
        yield dict(x=integers(-3, 4, 5, 4), crow_indices=indptr, col_indices=indices.long(), values=integers(-9, 9, 6), num_message_bits=random.choice([0, 24]))
    elif name == "loihi_float_product":
        yield dict(x=integers(-3, 4, 5, 4).double(), weight=integers(-9, 9, 3, 4).double().requires_grad_(), num_message_bits=3, weight_exp=-1, bits=24)
    elif name == "loihi_float_sparse_product":
        indices, indptr, _ = csr(3, 4, 6)
        yield dict(x=integers(-3, 4, 5, 4).float(), crow_indices=indptr, col_indices=indices.long(), values=integers(-9, 9, 6).float().requires_grad_(), num_message_bits=0, weight_exp=2, bits=32)
    elif name == "loihi_forward":
        yield dict(x=integers(-3, 4, 4, 2, 5), states=[integers(0, 4, 2, 5), None], params=[None, integers(0, 4, 5), None, None, None], numbers=[1, 2, 3, 0, 9], ternary=False, form="plain", store_states=True)
        yield dict(x=integers(-3, 4, 4, 2, 5), states=[None] * 3, params=[None] * 7, numbers=[1, 2, 3, 0, 9, -9, 2], ternary=True, form="refractory", store_states=False)
    elif name == "loihi_prepare_weights":
        yield dict(weight=torch.randn(3, 4))
        yield dict(weight=integers(-9, 9, 3, 4), sign_mode="mixed")
    elif name == "loihi_fake_quantize":
        yield dict(weight=torch.randn(3, 4, requires_grad=True), truncate=True)
        yield dict(weight=torch.randn(3, 4), sign_mode="mixed", num_weight_bits=5)
    elif name == "loihi_optimize_weight_bits":
        yield dict(weight=integers(-9, 9, 3, 4), sign_mode="mixed")
    elif name == "loihi_neuron":
        yield dict(name="atrlif", surrogate="atan", surrogate_args=[2.0])
    elif name == "loihi_quantize":
        yield dict(weight=torch.randn(3, 4), bias=torch.randn(3))
    elif name == "lava_neuron":
        yield dict(name="lif")
    elif name == "neuron_text":
        yield dict(neuron="integrate_and_fire", spike="spike(u, none)", params=["v_threshold"], names=["v_reset"], numbers=[0.0])
    elif name == "text_on_a_line":
        yield dict(neuron=TEXT)
    elif name == "print_cuda":
        yield dict(neuron=TEXT, dtype=torch.float32)
    elif name == "records_kernels":
        yield {}
    elif name == "record_kernels":
        yield dict(archs=["sm_1"])
    elif name in ("load_kernel_pack", "write_kernel_pack"):
        yield dict(path="/nowhere/at/all")


class Lowered(TorchDispatchMode):
    """Records the arguments with which operators of the namespace are called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "spikeforge":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def overload_of(schema):
    return getattr(getattr(ops, schema.name.partition("::")[2]), schema.overload_name or "default")


def named(func, args, kwargs):
    """Returns all arguments by name, including defaults."""
    values = {}
    for i, a in enumerate(func._schema.arguments):
        if i < len(args):
            values[a.name] = args[i]
        elif a.name in kwargs:
            values[a.name] = kwargs[a.name]
        elif a.has_default_value():
            values[a.name] = a.default_value
    return values


def detached(value):
    return tree_map(lambda t: t.detach().clone() if isinstance(t, torch.Tensor) else t, value)


def tensors_of(value):
    return [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]


def right_calls():
    """Returns (overload, {name: value}) for every operator of the namespace."""
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("spikeforge::")]
    calls = []
    for schema in schemas:
        overload = overload_of(schema)
        for arguments in public_calls(schema):
            calls.append((overload, detached(arguments)))
            if schema.name.partition("::")[2] in UNTOUCHED:
                continue
            with Lowered() as lowered:
                results = invoke(overload, arguments)
                differentiable = [t for t in tensors_of(results) if t.requires_grad]
                if differentiable:
                    sum(t.double().sum() for t in differentiable).backward()
            calls += [(func, detached(named(func, args, kwargs))) for func, args, kwargs in lowered.calls]
    missing = {str(overload_of(s)) for s in schemas} - {str(overload) for overload, _ in calls}
    assert not missing, f"no right call is known of {sorted(missing)}: add one to wrong_calls.py"
    return calls


def invoke(overload, arguments):
    positional, by_name = [], {}
    for a in overload._schema.arguments:
        if a.name not in arguments:
            continue
        if a.kwarg_only or len(positional) < overload._schema.arguments.index(a):
            by_name[a.name] = arguments[a.name]
        else:
            positional.append(arguments[a.name])
    return overload(*positional, **by_name)


# ---- tensors at the end of memory ----

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
CANARY = 0xA5


class Fence:
    """Memory for a tensor that ends at an inaccessible page."""

    def __init__(self, count):
        page = mmap.PAGESIZE
        self.body = -(-count // page) * page
        self.memory = mmap.mmap(-1, self.body + page)
        self.offset = self.body - count
        self.memory[: self.offset] = bytes([CANARY]) * self.offset
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        assert libc.mprotect(self.address + self.body, page, 0) == 0  # PROT_NONE

    def is_whole(self):
        return self.memory[: self.offset] == bytes([CANARY]) * self.offset


def fenced(t, fences):
    """Returns a copy of t in fenced memory."""
    if not (t.device.type == "cpu" and t.layout == torch.strided and 0 < t.numel() < 1 << 16 and t.is_contiguous()):
        return t
    fence = Fence(t.numel() * t.element_size())
    result = torch.frombuffer(fence.memory, dtype=t.dtype, count=t.numel(), offset=fence.offset).view(t.shape)
    fences.append(fence)
    return result.copy_(t)


# ---- changes of arguments ----

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int16, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16]
INTEGERS = [0, 1, -1, 2, 3, 7, 31, 64, 2**15, 2**31 - 1, 2**31, 2**32 + 1, 2**62, 2**63 - 1, -(2**63), -(2**31)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324, -1e30, 2.0]
STRINGS = ["", "lif", "sigmoid", "atan", "event", "graded", "number", "reset", "refractory", "plain", "normal", "uniform", "mixed", "\0", "x" * 5000, "neuron", TEXT, TWO, "ü{}"]


def other_shape(t, rng):
    shape = list(t.shape)
    place = rng.randrange(len(shape)) if shape else 0
    choice = rng.randrange(11)
    if choice == 0:
        return torch.zeros(rng.choice([[], [0], [1], [3], [2, 2], [0, 4], [4, 2, 5], [4, 2, 5, 1], [1] * 12])).to(t.dtype)
    if choice == 1 and shape:
        return t.select(place, 0) if shape[place] else t.flatten()
    if choice == 2:
        return t.unsqueeze(rng.randint(0, len(shape)))
    if choice == 3 and shape:
        return t.narrow(place, 0, max(0, shape[place] - rng.randint(1, 3)))
    if choice == 4 and shape:
        return torch.cat([t] + [t.narrow(place, 0, min(1, shape[place]))] * rng.randint(1, 3), place)
    if choice == 5 and shape:
        shape[place] = 0
        return t.new_zeros(shape)
    if choice == 6 and len(shape) > 1:
        return t.transpose(place, rng.randrange(len(shape)))
    if choice == 7:
        return t.flatten()
    if choice == 8 and shape:  # larger than any memory, by expansion
        shape[place] = rng.choice([2**40, 2**61])
        return t.new_ones(1).expand(shape) if all(shape) else t
    if choice == 9 and shape:
        return t.narrow(place, 0, min(1, shape[place])).expand(shape) if shape[place] else t
    return t.flip(0) if shape else t.reshape(1)


def other_values(t, rng):
    if t.device.type != "cpu" or t.numel() == 0 or t.layout != torch.strided:
        return t
    t = t.clone()
    if t.dtype == torch.bool:
        return ~t
    if t.dtype.is_complex or t.dtype == torch.float8_e4m3fn:
        return t
    numbers = FLOATS if t.dtype.is_floating_point else [i for i in INTEGERS if torch.iinfo(t.dtype).min <= i <= torch.iinfo(t.dtype).max]
    flat = t.view(-1) if t.is_contiguous() else t.reshape(-1)
    for _ in range(rng.choice([1, 1, 2, 5])):
        flat[rng.randrange(flat.numel())] = rng.choice(numbers)
    return flat.view(t.shape) if rng.random() < 0.9 else torch.full_like(t, rng.choice(numbers))


def other_tensor(t, others, rng):
    choice = rng.randrange(13)
    if choice <= 3:
        return other_shape(t, rng)
    if choice <= 6:
        return other_values(t, rng)
    if choice == 7:
        return t.to(rng.choice(DTYPES))
    if choice == 8:
        return t.to("meta")
    if choice == 9 and others:  # the same memory as another argument
        other = rng.choice(others)
        if rng.random() < 0.5:
            return other
        try:
            viewed = other.detach().view(-1).view(t.dtype)
            return viewed[: t.numel()].view(t.shape) if viewed.numel() >= t.numel() else viewed
        except RuntimeError:
            return other
    if choice == 10 and t.numel() < 10**6:  # operations that write all elements
        return rng.choice([lambda: t.to_sparse(), lambda: torch._neg_view(t), lambda: t.detach().requires_grad_(), lambda: t.to_mkldnn()])()
    if choice == 11 and t.dim() and t.numel() < 10**6:
        return t.repeat_interleave(2, -1)[..., ::2]
    return t.as_strided(t.shape, [0] * t.dim()) if t.numel() and t.layout == torch.strided else t


def other_value(name, value, type_name, others, rng):
    if isinstance(value, torch.Tensor):
        if "Optional" in type_name and rng.random() < 0.1:
            return None
        return other_tensor(value, others, rng)
    if isinstance(value, (list, tuple)):
        value = list(value)
        choice = rng.randrange(5)
        if choice == 0 and value:
            del value[rng.randrange(len(value))]
        elif choice == 1:
            value.insert(rng.randint(0, len(value)), rng.choice(value) if value else (rng.choice(others) if others and "Tensor" in type_name else 1))
        elif choice == 2:
            value = value * rng.choice([0, 2, 40])
        elif value:
            place = rng.randrange(len(value))
            value[place] = other_value(name, value[place], type_name, others, rng)
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        # A matrix with 2^31 columns is legal, but needs much time and memory.
        most_legal = 2**31 if name in ("rows", "cols", "n", "in_features") else 0
        return rng.choice([*(i for i in INTEGERS if not 2**15 < i <= most_legal), value - 1, value + 1])
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, str):
        return rng.choice(STRINGS)
    if isinstance(value, torch.dtype):
        return rng.choice(DTYPES)
    if value is None:
        if "Tensor" in type_name and others:
            return other_tensor(rng.choice(others), others, rng)
        return rng.choice([None, 0, 1.5, "mixed"])
    return value


# ---- a call ----

def described(value):
    if isinstance(value, torch.Tensor):
        numbers = ""
        if value.device.type == "cpu" and value.layout == torch.strided and 0 < value.numel() <= 20 and not value.is_neg():
            numbers = f" {value.tolist()}"
        return f"{str(value.dtype)[6:]}{list(value.shape)} strides {value.stride() if value.layout == torch.strided else value.layout} {value.device}{numbers} at {value.data_ptr() if value.layout == torch.strided and value.device.type == 'cpu' else 0:#x}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(described(v) for v in value) + "]"
    return repr(value)[:200]


def bits_of(t):
    """Returns the bits of t, or None if it has no memory, or too much."""
    if t.device.type != "cpu" or t.layout != torch.strided or t.numel() > 1 << 16 or t.is_neg():
        return None
    return t.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def on_meta(value):
    return tree_map(lambda t: t.to("meta") if isinstance(t, torch.Tensor) else t, value)


def huge(arguments):
    return any(t.numel() > 1 << 24 for t in tensors_of(arguments))


class Wrong(Exception):
    pass


def check(condition, words):
    if not condition:
        raise Wrong(words)


def attempt(overload, arguments, fences):
    """Makes the call. Returns whether it returned a result."""
    writes = {a.name for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    before = [(name, t, bits_of(t)) for name, value in arguments.items() for t in tensors_of(value)]
    changed_on_purpose = [t for name, t, _ in before if name in writes]
    error = None
    try:
        results = invoke(overload, arguments)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, OverflowError, MemoryError) as e:
        error = e
    check(all(fence.is_whole() for fence in fences), "it wrote before a tensor")
    ranges = [(t.data_ptr(), t.data_ptr() + t.untyped_storage().nbytes()) for t in changed_on_purpose if t.device.type == "cpu" and t.layout == torch.strided]
    for name, t, bits in before:
        aliases = error is None and t.device.type == "cpu" and t.layout == torch.strided and any(begin < t.data_ptr() + t.untyped_storage().nbytes() and t.data_ptr() < end for begin, end in ranges)
        check(bits is None or aliases or torch.equal(bits, bits_of(t)), f"{name} has changed")
    if error is not None:
        check("INTERNAL ASSERT" not in str(error), f"an assertion failed: {error}")
        return False
    for t in tensors_of(results):
        bits_of(t)  # reads all of it
    if overload._schema.name.partition("::")[2] not in READS_WEIGHTS and not any(t.device.type == "meta" for t in tensors_of(arguments)):
        shapes = [(t.dtype, t.shape) for t in tensors_of(results)]
        try:
            expected = [(t.dtype, t.shape) for t in tensors_of(invoke(overload, on_meta(arguments)))]
        except NotImplementedError:  # meta tensors are not supported
            return True
        check(shapes == expected, f"the result is {shapes}, but on the meta device {expected}")
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--log")
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.ops.load_library(options.library)
    torch.set_num_threads(2)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    rng = random.Random(options.seed)
    log = open(options.log, "w+b", buffering=0) if options.log else None

    calls = right_calls()
    for overload, arguments in calls:
        if overload._schema.name.partition("::")[2] in UNTOUCHED:
            continue
        say(log, overload, arguments)
        assert attempt(overload, detached(arguments), []), f"the right call of {overload} was refused"
    calls = [(o, a) for o, a in calls if o._schema.name.partition("::")[2] not in UNTOUCHED and re.search(options.only, str(o))]
    by_operator = {}
    for overload, arguments in calls:
        by_operator.setdefault(overload, []).append(arguments)
    operators = list(by_operator)
    results = failures = 0
    for i in range(options.calls):
        overload = operators[i % len(operators)]
        arguments = detached(rng.choice(by_operator[overload]))
        if "unchecked" in arguments:
            arguments["unchecked"] = False  # `unchecked` permits invalid memory accesses
        fences = []
        arguments = tree_map(lambda t: fenced(t, fences) if isinstance(t, torch.Tensor) else t, arguments)
        types = {a.name: str(a.type) for a in overload._schema.arguments}
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            name = rng.choice([name for name in arguments if name != "unchecked"])
            others = [t for key, value in arguments.items() if key != name for t in tensors_of(value)]
            try:
                arguments[name] = other_value(name, arguments[name], types[name], others, rng)
            except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
                continue  # torch cannot create this tensor
        say(log, overload, arguments)
        signal.alarm(SECONDS_A_CALL)  # ends the process if the call hangs
        try:
            results += attempt(overload, arguments, fences)
        except Exception as e:
            failures += 1
            print(f"call {i}: {overload}", *(f"  {k} = {described(v)}" for k, v in arguments.items()), f"  {type(e).__name__}: {str(e)[:600]}", sep="\n", flush=True)
            if not isinstance(e, Wrong):
                traceback.print_exc(limit=3)
            if not options.keep_going:
                return 1
        finally:
            signal.alarm(0)
    print(f"{options.calls} calls of {len(operators)} operators: {results} came to a result, {options.calls - results - failures} were refused, {failures} are wrong")
    return 1 if failures else 0


def say(log, overload, arguments):
    if log is None:
        return
    text = "\n".join([str(overload), *(f"  {name} = {described(value)}" for name, value in arguments.items())]).encode()
    log.seek(0)
    log.truncate()
    log.write(text)


if __name__ == "__main__":
    sys.exit(main())
