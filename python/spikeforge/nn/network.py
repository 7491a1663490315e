"""The former place of :mod:`spikeforge.nn.composite`, which pickles of version 0.1 name; removed after version 0.2."""

from spikeforge.nn.composite import Composite as Network
from spikeforge.nn.composite import Recurrent

__all__ = ["Network", "Recurrent"]
