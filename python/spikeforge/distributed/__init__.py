"""Training over ranks, on torch.distributed."""

from spikeforge.distributed.sharding import register

register()
