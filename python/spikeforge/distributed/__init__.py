"""Training over ranks, on torch.distributed.

    share, deal       which neurons are a rank's, and its part of a sparse matrix
    event_product     the product of a matrix that is dealt to ranks, with its gradients
    gather, replicated   what all ranks have together, and what is the same on all

Once torch.distributed.tensor is imported, operators run on DTensors by the rules of ``sharding``.
"""

from spikeforge.distributed.partition import DealtConnectivity, deal, event_product, gather, replicated, share

__all__ = ["DealtConnectivity", "deal", "event_product", "gather", "replicated", "share"]
