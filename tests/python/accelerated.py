"""The comparison that the tests of accelerate share."""

import torch


def close(got, wanted, what, summed=0.0):
    """Within 1e-5 of the largest, and within the rounding of sums whose terms' magnitudes sum to `summed`."""
    bound = 1e-5 * wanted.abs().max().item() + 2**-23 * summed
    torch.testing.assert_close(got, wanted, rtol=0, atol=bound, msg=lambda message: f"{what}: {message}")
