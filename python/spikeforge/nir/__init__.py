"""NIR graphs as networks of ordinary modules, and back: see ``docs/nir.md``.

>>> net = spikeforge.nir.load("network.nir", dt=1e-4)
>>> spikes = net(x)                                                   # [T, B, *shape]
>>> spikeforge.nir.save(net, torch.zeros(1, 28, 28), "trained.nir")   # an example of one step of one sample

The conversion of nodes is in C++, and is shared with ``spikeforge-nir run`` and ``nir::to_module``, so results are the
same bit for bit.
"""

from spikeforge.nir.graph import NIRGraph
from spikeforge.nir.loading import load
from spikeforge.nir.modules import NodeNeuron
from spikeforge.nir.saving import save, to_graph

__all__ = ["NIRGraph", "NodeNeuron", "load", "save", "to_graph"]
