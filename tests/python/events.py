"""Sparse matrices for the tests of event products, and the expected results as dense float64 expressions."""

import dataclasses

import pytest
import torch

ops = torch.ops.spikeforge
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
both_orders = pytest.mark.parametrize("transpose", [False, True], ids=["gather", "scatter"])
both_weights = pytest.mark.parametrize("shared", [False, True], ids=["heterogeneous", "homogeneous"])
# Bounds relative to the largest expected value.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}


@dataclasses.dataclass
class Matrix:
    indices: torch.Tensor
    indptr: torch.Tensor
    rows: int
    cols: int

    @property
    def size(self):
        return dict(rows=self.rows, cols=self.cols)

    def to(self, device):
        return dataclasses.replace(self, indices=self.indices.to(device), indptr=self.indptr.to(device))

    def row_of_connections(self):
        return torch.repeat_interleave(torch.arange(self.rows), self.indptr.cpu().long().diff())

    def dense(self, weights):
        """Returns a dense matrix. The weights of repeated connections are summed."""
        values = weights.detach().cpu().double().expand(len(self.indices)) if weights.numel() == 1 else weights.detach().cpu().double()
        dense = torch.zeros(self.rows, self.cols, dtype=torch.float64)
        return dense.index_put((self.row_of_connections(), self.indices.cpu().long()), values, accumulate=True)


def from_lengths(lengths, cols, sort=True, index_type=torch.int32):
    lengths = torch.as_tensor(lengths)
    indptr = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    indices = torch.randint(cols, (int(indptr[-1]),), dtype=torch.int32) if cols else torch.zeros(0, dtype=torch.int32)
    if sort:
        indices = torch.cat([row.sort().values for row in indices.split(lengths.tolist())]) if len(lengths) else indices
    return Matrix(indices, indptr.to(index_type), len(lengths), cols)


def matrix(kind):
    if kind == "random":
        return from_lengths(torch.randint(0, 40, (70,)), 90)
    if kind == "wide_indptr":
        return from_lengths(torch.randint(0, 40, (70,)), 90, index_type=torch.int64)
    if kind == "ragged":
        lengths = torch.randint(0, 60, (120,))
        lengths[::10] = 0
        lengths[5], lengths[77] = 5000, 3001
        return from_lengths(lengths, 1000)
    if kind == "unsorted":
        return from_lengths(torch.randint(0, 40, (70,)), 90, sort=False)
    if kind == "duplicates":
        return from_lengths(torch.full((33,), 65), 7)
    if kind == "empty":
        return from_lengths(torch.zeros(9, dtype=torch.long), 5)
    if kind == "no_rows":
        return from_lengths([], 5)
    if kind == "no_columns":
        return from_lengths(torch.zeros(9, dtype=torch.long), 0)
    if kind == "one_row":
        return from_lengths([300], 200)
    if kind == "one_column":
        return from_lengths(torch.randint(0, 2, (150,)), 1)
    if kind == "one_entry":
        return from_lengths([1], 1)
    raise KeyError(kind)


KINDS = ["random", "wide_indptr", "ragged", "unsorted", "duplicates", "empty", "no_rows", "no_columns", "one_row",
         "one_column", "one_entry"]


def random_weights(matrix, shared, dtype, device="cpu"):
    return torch.randn(1 if shared else len(matrix.indices), dtype=torch.float64).to(dtype).to(device)


def random_entries(size, dtype, activity=0.3):
    """Returns about this fraction of events; other entries may be negative or NaN."""
    events = torch.rand(size) < activity
    if dtype == torch.bool:
        return events
    x = torch.where(events, torch.rand(size) + 0.1, -torch.rand(size) * (torch.rand(size) < 0.5))
    return torch.where(~events & (torch.rand(size) < 0.1), torch.nan, x).to(dtype)


def contribution(x, values):
    """Returns the value with which each entry contributes, in float64."""
    x = x.detach().cpu()
    if values == "number":
        return x.double()
    active = x if x.dtype == torch.bool else x > 0
    counted = torch.ones_like(x, dtype=torch.float64) if values == "event" else x.double()
    return torch.where(active, counted, 0.0)


def product(matrix, weights, x, transpose, values, columns):
    """Returns the product in float64. x is [..., in], or with `columns` [..., in, n]."""
    dense = matrix.dense(weights)
    dense = dense.T if transpose else dense
    x = contribution(x, values)
    return dense @ x if columns else (dense @ x.unsqueeze(-1)).squeeze(-1)


def assert_close(actual, expected, dtype=None):
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} is not {tuple(expected.shape)}"
    bound = TOLERANCE[dtype or actual.dtype] * max(1e-30, float(expected.abs().max()) if expected.numel() else 0.0)
    difference = (actual.detach().cpu().double() - expected).abs()
    worst = float(difference.max()) if difference.numel() else 0.0
    assert worst <= bound, f"differs by {worst:.3g}, allowed are {bound:.3g}"
