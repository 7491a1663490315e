"""Distributed training with torch.distributed.

    share, deal          the neurons of a rank, and its part of a sparse matrix
    event_product        the product with a partitioned matrix, with its gradients
    gather, replicated   tensors gathered from all ranks, and parameters that are the same on all

After the import of torch.distributed.tensor, operators run on DTensors by the rules of ``sharding``.
"""

from spikeforge.distributed.partition import DealtConnectivity, deal, event_product, gather, replicated, share

__all__ = ["DealtConnectivity", "deal", "event_product", "gather", "replicated", "share"]
