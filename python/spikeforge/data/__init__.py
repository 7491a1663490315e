"""Events of cameras and spike trains: batches, frames, and readers of files.

>>> loader = DataLoader(dataset, batch_size=16, collate_fn=spikeforge.data.collate)
>>> for events, targets in loader:
...     x = spikeforge.data.frames(events.to("cuda"), (2, 128, 128), steps=16)  # [16, B, 2, 128, 128]
"""

from spikeforge.data.events import Events, collate, frames, spike_trains
from spikeforge.data.readers import SpikeTrains, read

__all__ = ["Events", "SpikeTrains", "collate", "frames", "read", "spike_trains"]
