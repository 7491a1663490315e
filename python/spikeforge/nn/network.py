"""The old names of spikeforge.nn.composite, by which version 0.1 pickled modules. It is removed in version 0.3."""

from spikeforge.nn.composite import Composite as Network
from spikeforge.nn.composite import Recurrent
from spikeforge.nn.plan import Connection, Port

__all__ = ["Connection", "Network", "Port", "Recurrent"]
