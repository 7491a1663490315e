"""Connectomes of the adult fly: FlyWire v783 and MaleCNS from their published tables, or a generated stand-in.

README.md in this folder names the files, their licences, and what they contain.
"""

import dataclasses
import pathlib

import numpy as np
import torch
from torch import Tensor

NEURONS, CONNECTIONS = 138_639, 15_091_983  # of FlyWire v783
MOST_SYNAPSES = 2405  # of a connection
# Of the stand-in: mean and deviation of log(synapses), which give FlyWire's mean of 3.6; the share of inhibitory neurons.
LOG_MEAN, LOG_DEVIATION = 0.3, 1.41
INHIBITORY_SHARE = 0.34

# Names of columns, by what they contain. The neuron table of FlyWire is an index without a name.
FLYWIRE = {"source": "Presynaptic_Index", "target": "Postsynaptic_Index", "synapses": "Excitatory x Connectivity", "id": ""}
MALE_CNS = {
    "source": "body_pre", "target": "body_post", "synapses": "weight", "id": "bodyId", "class": "superclass",
    "transmitter id": "body", "transmitter": "consensus_nt",
}  # fmt: skip
# The labellar sugar-sensing neurons of Shiu et al., with the id in v783 of the one that changed since v630.
SUGAR = (
    720575940624963786, 720575940630233916, 720575940637568838, 720575940638202345, 720575940617000768, 720575940630797113,
    720575940632889389, 720575940621754367, 720575940621502051, 720575940640649691, 720575940639332736, 720575940616885538,
    720575940639198653, 720575940639259967, 720575940617937543, 720575940632425919, 720575940633143833, 720575940612670570,
    720575940628853239, 720575940629176663, 720575940611875570,
)  # fmt: skip
INHIBITORY = ("gaba", "glutamate", "histamine")  # transmitters; all others are excitatory

FORMATS = {".parquet": "parquet", ".feather": "feather", ".csv": "csv"}


@dataclasses.dataclass
class Connectome:
    """Connections between neurons 0 to ``len(ids) - 1``.

    Attributes:
        ids: int64 [neurons], the identifiers in the published data.
        sources, targets: int64 [connections], neurons.
        synapses: int64 [connections], how many synapses a connection has; negative if its source is inhibitory.
    """

    name: str
    ids: Tensor
    sources: Tensor
    targets: Tensor
    synapses: Tensor

    def hubs(self, count):
        """Returns the neurons with the most excitatory synapses onto others."""
        synapses = torch.zeros(len(self.ids), dtype=torch.int64).index_add_(0, self.sources, self.synapses.clamp(min=0))
        return synapses.argsort(descending=True, stable=True)[:count]

    def neurons(self, ids):
        """Returns the neurons with these ids."""
        ids = torch.as_tensor(ids, dtype=torch.int64).reshape(-1)
        ascending, order = self.ids.sort()
        found, is_known = map(torch.from_numpy, _find(ascending.numpy(), ids.numpy()))
        if not is_known.all():
            raise ValueError(f"{self.name} has no neuron with the id {ids[~is_known][0]}")
        return order[found]


def flywire(folder, columns=None):
    """Reads ``*Connectivity_783`` and ``*Completeness_783`` (.parquet, .feather or .csv) of Shiu et al."""
    columns = _named(FLYWIRE, columns)
    (ids,) = _read(_file(folder, "*Completeness_783"), [columns["id"]])
    table = _file(folder, "*Connectivity_783")
    sources, targets, synapses = _read(table, [columns[key] for key in ("source", "target", "synapses")])
    highest = max(sources.max(initial=0), targets.max(initial=0))
    if highest >= len(ids):
        raise ValueError(f"{table.name} has the index {highest}, but the table of neurons has {len(ids)} rows")
    arrays = ids, sources, targets, synapses
    return Connectome("FlyWire v783", *(torch.from_numpy(each.astype(np.int64)) for each in arrays))


def male_cns(folder, columns=None):
    """Reads ``connectome-weights-male-cns-*``, ``body-annotations-male-cns-*`` and ``body-neurotransmitters-male-cns-*``.

    Neurons are the bodies that have a class. Connections from or to other bodies are left out.
    """
    columns = _named(MALE_CNS, columns)
    bodies, classes = _read(_file(folder, "body-annotations-male-cns-*"), [columns["id"], columns["class"]])
    has_class = np.array([name not in (None, "") for name in classes])
    ids = np.unique(bodies[has_class].astype(np.int64))
    transmitters = _file(folder, "body-neurotransmitters-male-cns-*")
    bodies, names = _read(transmitters, [columns["transmitter id"], columns["transmitter"]])
    inhibiting = np.array([str(name).lower() in INHIBITORY for name in names])
    sign = np.where(_find(np.unique(bodies[inhibiting].astype(np.int64)), ids)[1], -1, 1)

    def between_neurons(source, target, synapses):
        (source, is_source), (target, is_target) = _find(ids, source), _find(ids, target)
        kept = is_source & is_target
        return source[kept], target[kept], sign[source[kept]] * synapses[kept]

    connections = _file(folder, "connectome-weights-male-cns-*")
    arrays = _read(connections, [columns[key] for key in ("source", "target", "synapses")], between_neurons)
    return Connectome("MaleCNS", torch.from_numpy(ids), *(torch.from_numpy(each.astype(np.int64)) for each in arrays))


def stand_in(scale=1.0, seed=1):
    """Generates ``scale`` of FlyWire's neurons, with its numbers of connections and synapses for each, at random.

    The numbers of a neuron's connections, and of the synapses of a connection, are log-normal. Ids count from 0.
    """
    if not 0 < scale:
        raise ValueError(f"scale must be above 0, but is {scale}")
    generator = torch.Generator().manual_seed(seed)
    size, count = round(scale * NEURONS), round(scale * CONNECTIONS)

    of = {"generator": generator, "dtype": torch.float64}

    def draw(deviation):
        shares = torch.exp(deviation * torch.randn(size, **of)).cumsum(0)
        return torch.searchsorted(shares, shares[-1] * torch.rand(count, **of))

    sources, targets = draw(1.0), draw(0.9)
    synapses = torch.exp(LOG_MEAN + LOG_DEVIATION * torch.randn(count, **of)).long().clamp(1, MOST_SYNAPSES)
    is_inhibitory = torch.rand(size, **of) < INHIBITORY_SHARE
    synapses = torch.where(is_inhibitory[sources], -synapses, synapses)
    return Connectome(f"a stand-in of {scale:g} of FlyWire v783", torch.arange(size), sources, targets, synapses)


def add_options(parser):
    """Adds the options that choose a connectome, for :func:`chosen`."""
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--flywire", type=pathlib.Path, metavar="FOLDER", help="the tables of FlyWire v783")
    data.add_argument("--male-cns", type=pathlib.Path, metavar="FOLDER", help="the tables of MaleCNS")
    data.add_argument("--scale", type=float, default=0.05, help="share of the stand-in's neurons, without tables (default: 0.05)")
    parser.add_argument("--columns", nargs="+", default=[], metavar="KEY=NAME", help="other names of columns, e.g. source=pre (connectome.py)")


def chosen(options):
    columns = dict(each.partition("=")[::2] for each in options.columns)
    if options.flywire:
        return flywire(options.flywire, columns)
    if options.male_cns:
        return male_cns(options.male_cns, columns)
    return stand_in(options.scale)


def _named(defaults, columns):
    unknown = [key for key in columns or {} if key not in defaults]
    if unknown:
        raise ValueError(f"columns: {unknown[0]!r} is none of {', '.join(map(repr, defaults))}")
    return {**defaults, **(columns or {})}


def _file(folder, pattern):
    """Returns the only table of this name."""
    found = [path for path in sorted(pathlib.Path(folder).glob(f"{pattern}.*")) if path.suffix in FORMATS]
    if len(found) != 1:
        what = "several tables" if found else "no table"
        names = ", ".join(path.name for path in found) or f"{pattern}.parquet, .feather or .csv"
        raise FileNotFoundError(f"{folder}: {what} {names}; one is needed (examples/fly/README.md)")
    return found[0]


def _read(path, columns, select=lambda *arrays: arrays):
    """Returns columns as arrays, of which ``select`` keeps some rows; batch by batch, as a table can exceed memory."""
    try:
        import pyarrow.dataset
    except ImportError:
        raise ImportError(f"{path.name} is read by pyarrow, which is not installed: pip install pyarrow") from None
    table = pyarrow.dataset.dataset(path, format=FORMATS[path.suffix])
    for name in columns:
        if name not in table.schema.names:
            raise ValueError(f"{path.name} has no column {name!r}; its columns are {', '.join(map(repr, table.schema.names))}")
    batches = (
        select(*(batch.column(name).to_numpy(zero_copy_only=False) for name in columns))
        for batch in table.to_batches(columns=columns)
    )
    return [np.concatenate(arrays) for arrays in zip(*batches)]


def _find(ids, wanted):
    """Returns the position of each wanted id among ascending ids, and whether it exists."""
    if len(ids) == 0:
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    places = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    return places, ids[places] == wanted
