"""Statistics of the populations in a recording of the microcircuit: rates, irregularity, correlation."""

import torch

BIN = 2.0  # ms, for spike counts whose correlation is computed
MOST_CORRELATED = 200  # neurons of a population for all of whose pairs correlations are computed


def rates(neurons, size, milliseconds):
    """Returns the spikes/s of every neuron."""
    return torch.bincount(neurons, minlength=size) * 1000 / milliseconds


def irregularity(steps, neurons, size):
    """Returns the coefficient of variation of the intervals between spikes, for every neuron with at least two."""
    order = torch.argsort(neurons * (int(steps.max()) + 1) + steps) if len(steps) else steps
    when, who = steps[order].double(), neurons[order]
    same = who[1:] == who[:-1]
    intervals, owner = when.diff()[same], who[1:][same]
    count = torch.bincount(owner, minlength=size)
    total = lambda x: torch.zeros(size, dtype=torch.float64).index_add_(0, owner, x)
    mean = total(intervals) / count
    variance = total((intervals - mean[owner]) ** 2) / count
    return (variance.sqrt() / mean)[count >= 2]


def correlations(steps, neurons, size, first, last, dt):
    """Returns Pearson's coefficients of spike counts for all pairs of up to MOST_CORRELATED neurons that fired."""
    width = round(BIN / dt)
    bins = (last - first) // width
    chosen = torch.bincount(neurons, minlength=size).nonzero().flatten()[:MOST_CORRELATED]
    place = torch.full((size,), -1).index_copy_(0, chosen, torch.arange(len(chosen)))
    at, row = (steps - first) // width, place[neurons]
    here = (row >= 0) & (at < bins)
    counts = torch.zeros(len(chosen) * bins, dtype=torch.float64)
    counts.index_add_(0, row[here] * bins + at[here], torch.ones(int(here.sum()), dtype=torch.float64))
    counts = counts.view(len(chosen), bins)
    counts = counts[counts.var(1) > 0] if len(chosen) > 1 else counts[:0]
    if len(counts) < 2:
        return torch.zeros(0, dtype=torch.float64)
    coefficients = torch.corrcoef(counts)
    return coefficients[torch.triu(torch.ones_like(coefficients), 1) > 0]


def of_population(steps, neurons, size, first, last, dt):
    """Returns each statistic, for the spikes in steps first to last - 1."""
    return {
        "rates": rates(neurons, size, (last - first) * dt),
        "irregularity": irregularity(steps, neurons, size),
        "correlations": correlations(steps, neurons, size, first, last, dt),
    }
