"""spikeforge.losses: read-outs, losses and penalties, compared with float64 loops over single samples and with snnTorch."""

import math

import pytest
import spikeforge
import torch
from loops import refused
from spikeforge import losses
from torch.nn import functional

T, B, C = 9, 5, 4
LENGTHS = [9, 1, 4, 0, 7]
LABELS = torch.tensor([3, 0, 1, 1, 2])


def mean(values):
    return sum(values) / max(len(values), 1)


def tet_of_sample(rows, label, lamb=0.05, threshold=1.0):
    entropy = [-(row[label].exp() / row.exp().sum()).log() for row in rows]
    return (1 - lamb) * mean(entropy) + lamb * mean([mean(list((row - threshold) ** 2)) for row in rows])


def rate_of_sample(rows, label):
    rate = mean(list(rows)) if len(rows) else torch.zeros(C, dtype=torch.float64)
    return mean([(rate[c] - (0.8 if c == label else 0.2)) ** 2 for c in range(C)])


def penalty_of_sample(rows, lower, upper):
    rate = mean(list(rows)) if len(rows) else torch.zeros(C, dtype=torch.float64)
    return mean([(lower - r).clamp(min=0) ** 2 for r in rate]) + (mean(list(rate)) - upper).clamp(min=0) ** 2


# Functions of x and lengths, and of the rows and the label of one sample; a loss is the mean of the samples.
READ_OUTS = {
    "spike_count": (losses.spike_count, sum),
    "mean_over_time": (losses.mean_over_time, lambda rows: mean(list(rows))),
    "last_step": (losses.last_step, lambda rows: rows[-1]),
    "max_over_time": (losses.max_over_time, lambda rows: torch.stack([max(column) for column in rows.T])),
}
LOSSES = {
    "tet_loss": (lambda x, lengths: losses.tet_loss(x, LABELS, lengths), tet_of_sample),
    "tet_loss, lamb=0.4": (
        lambda x, lengths: losses.tet_loss(x, LABELS, lengths, lamb=0.4, threshold=0.5),
        lambda rows, label: tet_of_sample(rows, label, 0.4, 0.5),
    ),
    "rate_mse_loss": (lambda x, lengths: losses.rate_mse_loss(x, LABELS, lengths), rate_of_sample),
    "rate_penalty": (
        lambda x, lengths: losses.rate_penalty(x, lengths, lower=0.3, upper=0.1),
        lambda rows, label: penalty_of_sample(rows, 0.3, 0.1),
    ),
}


def expected(name, x, lengths):
    if name in LOSSES:
        return mean([LOSSES[name][1](x[:n, b], int(LABELS[b])) for b, n in enumerate(lengths)])
    zeros = torch.zeros(x.shape[2:], dtype=x.dtype)
    return torch.stack([READ_OUTS[name][1](x[:n, b]) if n else zeros for b, n in enumerate(lengths)])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", [*READ_OUTS, *LOSSES])
def test_each_sample_counts_as_without_its_padding(name, padded):
    function, lengths = (READ_OUTS | LOSSES)[name][0], LENGTHS if padded else [T] * B
    x = torch.randn(T, B, C, dtype=torch.float64)
    for b, n in enumerate(lengths):
        x[n:, b] = math.nan
    x.requires_grad_()
    y = function(x, lengths if padded else None)
    want = expected(name, x, lengths)
    torch.testing.assert_close(y, want)
    weight = torch.randn_like(y)
    (grad,), (wanted,) = (torch.autograd.grad((r * weight).sum(), x) for r in (y, want))
    torch.testing.assert_close(grad, wanted)


@pytest.mark.parametrize("name", [*READ_OUTS, *LOSSES])
def test_half_types_are_summed_in_float32(name):
    function, x = (READ_OUTS | LOSSES)[name][0], 2 * torch.rand(2000, B, C)
    for dtype in (torch.float16, torch.bfloat16):
        given = x.to(dtype)
        with torch.autocast("cpu", torch.bfloat16):
            found = function(given, [2000, 700, 1999, 3, 1000])
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, function(given.float(), [2000, 700, 1999, 3, 1000]))


def test_a_compiled_loss_of_a_network_is_the_same():
    net = spikeforge.nn.Sequential(torch.nn.Linear(3, C), spikeforge.nn.LIF(surrogate="atan"))
    x, lengths = 3 * torch.rand(T, B, 3), torch.tensor(LENGTHS)

    def loss(x, lengths):
        spikes = net(x, lengths=lengths)
        entropy = functional.cross_entropy(losses.max_over_time(spikes, lengths), LABELS)
        return entropy + losses.tet_loss(spikes, LABELS, lengths) + losses.rate_penalty(spikes, lengths, lower=0.5, upper=math.inf)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, lengths), loss(x, lengths))


def test_probabilities_and_images():
    x, labels = torch.randn(T, B, C), torch.rand(B, C).softmax(1)
    each = mean([functional.cross_entropy(row, labels) for row in x])
    torch.testing.assert_close(losses.tet_loss(x, labels, lamb=0), each)
    images = torch.rand(T, B, 2, 3, 3)
    for read_out, _ in READ_OUTS.values():
        assert torch.equal(read_out(images, LENGTHS).flatten(1), read_out(images.flatten(2), LENGTHS))


def test_losses_of_snntorch_are_the_same():
    theirs = pytest.importorskip("snntorch.functional")
    spikes, v = (torch.rand(10, B, C) < 0.4).float(), torch.randn(10, B, C)
    pairs = [
        (losses.tet_loss(spikes, LABELS, lamb=0), theirs.ce_rate_loss()(spikes, LABELS)[0]),
        (functional.cross_entropy(losses.max_over_time(v), LABELS), theirs.ce_max_membrane_loss()(v, LABELS)),
        (functional.cross_entropy(losses.spike_count(spikes), LABELS), theirs.ce_count_loss()(spikes, LABELS)),
        (10 * losses.rate_mse_loss(spikes, LABELS), theirs.mse_count_loss(0.8, 0.2)(spikes, LABELS)),
    ]
    for ours, other in pairs:
        torch.testing.assert_close(ours, other)


x = torch.rand(T, B, C)
WRONG = [
    (lambda: losses.spike_count(x.int()), TypeError, "spike_count: x must be a floating-point tensor, but is torch.int32"),
    (lambda: losses.last_step([1.0]), TypeError, "last_step: x must be a floating-point tensor, but is list"),
    (lambda: losses.max_over_time(x[0, 0]), ValueError, r"max_over_time: x must be \[T, B, C, ...\] with T of 1 or more, but has shape \[4\]"),
    (lambda: losses.mean_over_time(x[:0]), ValueError, r"with T of 1 or more, but has shape \[0, 5, 4\]"),
    (lambda: losses.mean_over_time(x, [1, 2]), ValueError, r"mean_over_time: lengths must have shape \[5\]"),
    (lambda: losses.mean_over_time(x, [1.0] * B), TypeError, "mean_over_time: lengths must be int32 or int64, but is float32"),
    (lambda: losses.mean_over_time(x, [10, *LENGTHS[1:]]), ValueError, r"lengths must be in \[0, 9\], the steps of x, but one is 10"),
    (lambda: losses.tet_loss(x, LABELS[:2]), ValueError, r"tet_loss: target must be classes, int64 \[5\], or probabilities \[5, 4\], but is torch.int64 \[2\]"),
    (lambda: losses.tet_loss(x[0], LABELS), ValueError, r"tet_loss: x must be \[T, B, C\] with T"),
    (lambda: losses.rate_mse_loss(x, x[0]), ValueError, r"rate_mse_loss: target must be classes, int64 \[5\], but is torch.float32"),
    (lambda: losses.tet_loss(x, LABELS - 100), ValueError, r"tet_loss: target must be classes in \[0, 3\], but one is -97"),
    (lambda: losses.rate_mse_loss(x, LABELS + 1), ValueError, r"rate_mse_loss: target must be classes in \[0, 3\], but one is 4"),
    (lambda: losses.rate_mse_loss(x.unsqueeze(3), LABELS), ValueError, r"rate_mse_loss: x must be \[T, B, C\] with T of 1 or more, but has shape"),
    (lambda: losses.rate_penalty(x[0], lower=0.1, upper=0.2), ValueError, r"rate_penalty: x must be \[T, B, C, ...\] with T"),
    (lambda: losses.rate_mse_loss(x, 3), TypeError, "rate_mse_loss: target must be a tensor, but is int"),
]  # fmt: skip


@pytest.mark.parametrize("call, kind, message", WRONG)
def test_a_wrong_argument_is_named(call, kind, message):
    refused(kind, message, call)
