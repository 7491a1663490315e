"""Files of events and spike trains: each reader against a writer of the format's specification, and damaged files."""

import io
import struct
import sys
import tracemalloc

import numpy as np
import pytest
import torch

import spikeforge.data
from spikeforge.data import SpikeTrains, collate, read

FIELDS = [("t", np.int64), ("x", np.int16), ("y", np.int16), ("p", bool)]


def random_events(count=500, size=(34, 34), longest=300_000, seed=0):
    random = np.random.default_rng(seed)
    events = np.zeros(count, FIELDS)
    events["t"] = np.sort(random.integers(0, longest, count))
    events["x"], events["y"] = random.integers(0, size[1], count), random.integers(0, size[0], count)
    events["p"] = random.integers(0, 2, count)
    return events


# --- writers of one recording ------------------------------------------------------------------------------------------


def write_bin(events):
    return b"".join(struct.pack(">BBB", x, y, p << 7 | t >> 16) + struct.pack(">H", t & 0xFFFF) for t, x, y, p in events.tolist())


def saved(save, *arguments, **named):
    file = io.BytesIO()
    save(file, *arguments, **named)
    return file.getvalue()


def write_npy(events):
    return saved(np.save, events)


def write_npy_of_other_types(events):
    other = np.zeros(len(events), [("x", ">i4"), ("p", "u1"), ("t", ">u4"), ("y", "i2")])
    for name in "txyp":
        other[name] = events[name]
    return saved(np.save, other)


def write_npz(events):
    return saved(np.savez_compressed, **{name: events[name] for name in "txyp"})


def write_dat(events):
    header = b"% Data file containing CD events.\n% Version 2\n% Height 480\n% Width 640\n" + bytes([12, 8])
    return header + b"".join(struct.pack("<II", t % 2**32, p << 28 | y << 14 | x) for t, x, y, p in events.tolist())


def write_evt2(events):
    words, high = [0xE << 28], None
    for t, x, y, p in events.tolist():
        if t >> 6 != high:
            high = t >> 6
            words.append(8 << 28 | high % 2**28)
        words.append(p << 28 | (t & 63) << 22 | x << 11 | y)
    return b"% camera_integrator_name Prophesee\n% evt 2.0\n% end\n" + struct.pack(f"<{len(words)}I", *words)


def write_evt3(events):
    """Pairs of events at the same time, row and polarity that are less than 12 (or 8) columns apart are one vector."""
    words, state, rows, i = [0xE000], {}, events.tolist(), 0

    def put(kind, value):
        if state.get(kind) != value:
            state[kind] = value
            words.append(kind << 12 | value)

    while i < len(rows):
        t, x, y, p = rows[i]
        if state.get(8) != (t >> 12) % 4096:
            state.pop(6, None)
        put(8, (t >> 12) % 4096)
        if t & 4095 or 6 in state:
            put(6, t & 4095)
        put(0, y)
        if i + 1 < len(rows) and rows[i + 1][::2] == (t, y) and rows[i + 1][3] == p and 0 < rows[i + 1][1] - x < 32:
            words.append(3 << 12 | p << 11 | x)
            mask = 1 | 1 << rows[i + 1][1] - x
            words += [4 << 12 | mask & 0xFFF, 4 << 12 | mask >> 12 & 0xFFF, 5 << 12 | mask >> 24]
            i += 2
        else:
            words.append(2 << 12 | p << 11 | x)
            i += 1
    return b"% format EVT3;height=480;width=640\n% end\n" + struct.pack(f"<{len(words)}H", *words)


def write_aedat2(events):
    rows = (struct.pack(">II", y << 8 | (127 - x) << 1 | (1 - p), t) for t, x, y, p in events.tolist())
    special = struct.pack(">II", 0x8000, 0)
    return b"#!AER-DAT2.0\r\n# This is a raw AE data file\r\n" + special + b"".join(rows)


def write_aedat3(events, per_packet=64):
    parts = [b"#!AER-DAT3.1\r\n#Format: RAW\r\n#!END-HEADER\r\n", struct.pack("<HHIIIIII", 2, 1, 36, 4, 0, 1, 1, 1), bytes(36)]
    for overflow in sorted({t >> 31 for t in events["t"].tolist()}):
        rows = [row for row in events.tolist() if row[0] >> 31 == overflow]
        for start in range(0, len(rows), per_packet):
            some = rows[start:start + per_packet]
            parts.append(struct.pack("<HHIIIIII", 1, 1, 8, 4, overflow, len(some) + 1, len(some) + 1, len(some)))
            parts += [struct.pack("<II", x << 17 | y << 2 | p << 1 | 1, t & 0x7FFFFFFF) for t, x, y, p in some]
            parts.append(struct.pack("<II", 5 << 17, 7))  # an event that is marked as invalid
    return b"".join(parts)


def table(builder, *fields):
    """Writes a table with (type, value) for each field."""
    builder.StartObject(len(fields))
    for slot, (kind, value) in enumerate(fields):
        getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
    return builder.EndObject()


def write_aedat4(events, per_packet=128, table_of_packets=b"\1\2\3\4\5\6\7\xff\xff\xff\xff\x7f"):
    flatbuffers = pytest.importorskip("flatbuffers")
    packets = b""
    for start in range(0, len(events), per_packet):
        some, builder = events[start:start + per_packet].tolist(), flatbuffers.Builder()
        builder.StartVector(16, len(some), 8)
        for t, x, y, p in reversed(some):
            builder.Prep(8, 16)
            builder.Pad(3)
            builder.PrependBool(p)
            builder.PrependInt16(y)
            builder.PrependInt16(x)
            builder.PrependInt64(t)
        vector = builder.EndVector()
        builder.FinishSizePrefixed(table(builder, ("UOffsetTRelative", vector)), b"EVTS")
        packets += struct.pack("<ii", 0, len(builder.Output())) + builder.Output()
    attributes = '<attr key="typeIdentifier" type="string">EVTS</attr><node name="info" path="/">' \
                 '<attr key="sizeX" type="int">640</attr><attr key="sizeY" type="int">480</attr></node>'
    node = f'<dv version="2.0"><node name="outInfo" path="/"><node name="0" path="/">{attributes}</node></node></dv>'

    def header(position):
        builder = flatbuffers.Builder()
        text = builder.CreateString(node)
        fields = ("Int32", 0), ("Int64", position), ("UOffsetTRelative", text)
        builder.FinishSizePrefixed(table(builder, *fields), b"IOHE")
        return b"#!AER-DAT4.0\r\n" + bytes(builder.Output())

    position = len(header(1)) + len(packets)
    return header(position) + packets + table_of_packets


SMALL, LARGE = random_events(), random_events(size=(480, 640), longest=20_000_000)
LONG = random_events(size=(480, 640), longest=9 * 2**31)  # the times of some formats restart
DENSE = random_events(4000, size=(4, 40), longest=400)
DENSE.sort(order=("t", "y", "p", "x"))
CAMERA = random_events(size=(128, 128))
# name: suffix, writer, events
FORMATS = {
    "bin": (".bin", write_bin, SMALL),
    "npy": (".npy", write_npy, LARGE),
    "npy of other types": (".npy", write_npy_of_other_types, LARGE),
    "npz": (".npz", write_npz, LARGE),
    "npz of one array": (".npz", lambda events: saved(np.savez, events=events), LARGE),
    "dat": (".dat", write_dat, LONG),
    "evt2": (".raw", write_evt2, LONG),
    "evt3": (".raw", write_evt3, LARGE),
    "evt3 of a long time": (".raw", write_evt3, random_events(3000, size=(480, 640), longest=60_000_000)),
    "evt3 of vectors": (".raw", write_evt3, DENSE),
    "aedat2": (".aedat", write_aedat2, CAMERA),
    "aedat3": (".aedat", write_aedat3, LONG),
    "aedat4": (".aedat4", write_aedat4, LARGE),
    "aedat4 without a table": (".aedat", lambda events: write_aedat4(events, table_of_packets=b""), LARGE),
}
each_format = pytest.mark.parametrize("name", FORMATS)


def written(folder, name):
    if name.startswith("aedat4"):
        pytest.importorskip("aedat")
    suffix, write, events = FORMATS[name]
    path = folder / f"recording{suffix}"
    path.write_bytes(write(events))
    return path, events


@each_format
def test_a_recording_is_read_as_it_was_written(name, tmp_path):
    path, events = written(tmp_path, name)
    found = read(path)
    assert len(events) == len(found) and found.dtype["t"] == np.int64
    for field in "txyp":
        assert (found[field] == events[field]).all(), field
    batch = collate([(found, 3), (found[:7], 4)])[0]
    assert batch.offsets.tolist() == [0, len(events), len(events) + 7] and (batch.t[:len(events)].numpy() == events["t"]).all()


@pytest.mark.parametrize("encoding, suffix", [("dat", ".dat"), ("evt2", ".raw"), ("evt3", ".raw")])
def test_prophesees_formats_are_read_as_by_expelliarmus(encoding, suffix, tmp_path):
    expelliarmus = pytest.importorskip("expelliarmus")
    events = np.zeros(len(DENSE), [("t", np.int64), ("y", np.int16), ("x", np.int16), ("p", np.uint8)])
    for field in "txyp":
        events[field] = DENSE[field]
    events["t"] = 5000 + 5 * events["t"]  # expelliarmus does not write the high half of a later time
    wizard = expelliarmus.Wizard(encoding=encoding)
    wizard.save(tmp_path / f"saved{suffix}", events)
    expected, found = wizard.read(tmp_path / f"saved{suffix}"), read(tmp_path / f"saved{suffix}")
    assert len(found) == len(expected) == len(events)
    for field in "txyp":
        assert (found[field] == expected[field]).all(), field


@pytest.mark.long
def test_a_recording_of_dvs_gesture_is_read_as_by_spikingjelly(tmp_path):
    utils = pytest.importorskip("spikingjelly.datasets.utils")
    data = write_aedat3(LONG)
    valid = bytearray(data)
    position = data.index(struct.pack("<II", 5 << 17, 7))
    while position >= 0:  # SpikingJelly reads invalid events too
        valid[position] |= 1
        position = data.find(struct.pack("<II", 5 << 17, 7), position + 8)
    (tmp_path / "a.aedat").write_bytes(valid)
    found, expected = read(tmp_path / "a.aedat"), utils.load_aedat_v3(tmp_path / "a.aedat")
    assert len(found) > len(LONG)
    for field in "txyp":
        assert (found[field] == expected[field]).all(), field


def test_words_before_the_first_time_are_skipped(tmp_path):
    path = tmp_path / "a.raw"
    path.write_bytes(b"% evt 3.0\n% end\n" + struct.pack("<8H", 0x2005, 0x8001, 0x2005, 0x0003, 0x4FFF, 0x2805, 0x6002, 0x2006))
    assert read(path).tolist() == [(4096, 5, 3, True), (4098, 6, 3, False)]
    path.write_bytes(b"% evt 2.0\n% end\n" + struct.pack("<3I", 0x10000000, 0x80000001, 0x10000803))
    assert read(path).tolist() == [(64, 1, 3, True)]


def test_a_time_overflow_of_nmnist_is_no_event(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes([1, 2, 128, 0, 5]) + bytes([0, 240, 0, 0, 0]) + bytes([3, 4, 0, 0, 1]))
    assert read(path).tolist() == [(5, 1, 2, True), (8193, 3, 4, False)]


# --- damaged files -----------------------------------------------------------------------------------------------------


class Unpickled:
    def __reduce__(self):
        return exec, ("import sys; sys.unpickled = True",)


def claims(data, old, new):
    assert data.count(old) == 1
    return data.replace(old, new + b" " * (len(old) - len(new)))


def packet(kind=1, size=8, capacity=1, number=1, data=bytes(8)):
    return b"#!AER-DAT3.1\r\n#!END-HEADER\r\n" + struct.pack("<HHIIIIII", kind, 1, size, 4, 0, capacity, number, 0) + data


def npy_that_claims(shape, fields):
    header = {"shape": shape, "fortran_order": False, "descr": fields}
    return saved(np.lib.format.write_array_header_1_0, header) + write_npy(SMALL)[-1300:]


AEDAT4 = b"#!AER-DAT4.0\r\n"
DAMAGED = [  # suffix, bytes, words of the message
    *((suffix, b"", "is empty") for suffix in spikeforge.data.readers._READERS),
    *((suffix, np.random.default_rng(1).bytes(1001), "is damaged") for suffix in spikeforge.data.readers._READERS),
    (".bin", write_bin(SMALL)[:-1], "it ends within an event"),
    (".npy", write_npy(SMALL)[:-1], "6499 bytes follow"),
    (".npy", claims(write_npy(SMALL), b"(500,)", b"(-1,)"), "(-1,)"),
    (".npy", claims(write_npy(SMALL), b"(500,)", b"(9**9)"), "is damaged"),
    (".npy", npy_that_claims((2**50,), np.dtype(FIELDS).descr), "claims (1125899906842624,)"),
    (".npy", npy_that_claims((2**62,), [("t", "V0"), ("x", "V0")]), "is damaged"),
    (".npy", saved(np.save, np.array([Unpickled()]), allow_pickle=True), "Python objects, which are not unpickled"),
    (".npy", saved(np.save, np.zeros(5)), "expected the fields t, x"),
    (".npy", saved(np.save, np.zeros(5, [("t", float), ("x", int)])), "'t': 'float64'"),
    (".npy", saved(np.save, np.zeros(5, [("x", int), ("y", int)])), "expected the fields t, x"),
    (".npy", saved(np.save, np.zeros(5, [("t", int, 2), ("x", int)])), "expected the fields t, x"),
    (".npy", saved(np.save, np.zeros((5, 5), FIELDS)), "expected shape [events]"),
    (".npy", saved(np.save, np.zeros((), FIELDS)), "expected shape [events]"),
    (".npz", saved(np.savez, t=np.zeros(3, int), x=np.zeros(2, int)), "different lengths: {'t': 3, 'x': 2}"),
    (".npz", saved(np.savez, t=np.zeros(3, int), y=np.zeros(3, int)), "expected the fields t, x"),
    (".npz", saved(np.savez, t=np.array([Unpickled()]), x=np.zeros(1, int)), "not unpickled"),
    (".npz", write_npz(SMALL)[:-30], "not a zip file"),
    (".npz", write_npz(SMALL)[:100] + b"damaged" + write_npz(SMALL)[107:], "is damaged"),
    (".dat", write_dat(SMALL)[:-3], "it ends within an event"),
    (".dat", b"% Width 640\n" + bytes([12, 16]), "type 12 and 16 bytes"),
    (".dat", b"% Width 640\n", "is damaged"),
    (".raw", write_evt2(SMALL)[:-1], "it ends within an event"),
    (".raw", write_evt2(SMALL) + struct.pack("<I", 9 << 28), "1 words of unknown types, such as 0x9"),
    (".raw", write_evt3(SMALL) + struct.pack("<H", 1 << 12), "1 words of unknown types, such as 0x1"),
    (".raw", b"% evt 3.0\n% end\n" + struct.pack("<5H", 0x8001, 3, 0x37FB, 0x4001, 0x4001), "beyond column 2047"),
    (".raw", b"% evt 2.1\n% end\n" + bytes(8), "EVT 2.0 and EVT 3.0 are read, but it has EVT 2.1"),
    (".raw", b"% format EVT21;width=4\n% end\n" + bytes(8), "it has EVT 21"),
    (".raw", b"% width 4\n% end\n" + bytes(8), "it has no version"),
    (".aedat", write_aedat2(SMALL)[:-1], "it ends within an event"),
    (".aedat", b"#!AER-DAT2.0\r\n" + struct.pack(">II", 1 << 20, 0), "not those of a DVS128"),
    (".aedat", b"#!AER-DAT1.0\r\n" + bytes(8), "version 2, 3 or 4"),
    (".aedat", b"#!AER-DAT3.1\r\n" + bytes(80), "no #!END-HEADER"),
    (".aedat", write_aedat3(SMALL)[:-1], "bytes follow"),
    (".aedat", packet(capacity=2**32 - 1, number=2**32 - 1), "4294967295 events of 8 bytes, and 8 bytes follow"),
    (".aedat", packet(size=2**32 - 1, kind=2), "and 8 bytes follow"),
    (".aedat", packet(number=2), "2 of 1 events"),
    (".aedat", packet(size=4, capacity=2), "events of 4 bytes"),
    (".aedat", packet()[:-10], "is damaged"),
    (".aedat4", AEDAT4 + struct.pack("<I", 2**32 - 1) + bytes(100), "is damaged"),
    (".aedat4", AEDAT4, "is damaged"),
    (".aedat4", write_aedat4(SMALL, table_of_packets=b"")[:-1], "a packet ends 1 bytes after the end"),
]


def refuses(function, path):
    """Returns the message of the ValueError, or None."""
    try:
        function(path)
    except ValueError as error:
        message = str(error)
        assert str(path) in message and "\n" not in message and len(message) < 300 + len(str(path)), message
        return message


@pytest.mark.parametrize("suffix, data, words", DAMAGED, ids=[f"{suffix[1:]} {words}" for suffix, _, words in DAMAGED])
def test_a_damaged_file_is_one_line(suffix, data, words, tmp_path):
    if suffix == ".bin" and words == "is damaged":
        words = "it ends within"  # any five bytes are an event
    if suffix == ".aedat4":
        pytest.importorskip("aedat")
    path = tmp_path / f"recording{suffix}"
    path.write_bytes(data)
    assert words in (refuses(read, path) or "no error")
    assert not hasattr(sys, "unpickled")


def damaged_copies(data, count=200, seed=0):
    random = np.random.default_rng(seed)
    for i in range(count):
        copy = bytearray(data)
        if i % 2:
            for place in random.integers(0, min(len(copy), 400 if i % 4 == 1 else len(copy)), 3):
                copy[place] ^= 1 << int(random.integers(8))
        else:
            del copy[random.integers(len(copy)):]
        yield bytes(copy)


@each_format
def test_damaged_copies_are_read_or_refused_in_little_memory(name, tmp_path):
    path, _ = written(tmp_path, name)
    refused, data = 0, path.read_bytes()
    tracemalloc.start()
    try:
        for copy in damaged_copies(data):
            path.write_bytes(copy)
            refused += refuses(read, path) is not None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused > 20 and peak < 10_000_000 + 200 * len(data), (refused, peak)


def test_other_suffixes_and_missing_files(tmp_path):
    (tmp_path / "a.h5").touch()
    assert "none of the suffixes .bin" in refuses(read, tmp_path / "a.h5")
    for function in (read, SpikeTrains):
        with pytest.raises(FileNotFoundError, match=r"nothing\.bin"):
            function(tmp_path / "nothing.bin")


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "a.aedat4").write_bytes(AEDAT4)
    for module, function in (("aedat", lambda: read(tmp_path / "a.aedat4")), ("h5py", lambda: SpikeTrains(tmp_path / "a.h5"))):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=f"needs {module}: pip install {module}|4 needs {module}: pip install"):
            function()


# --- spike trains ------------------------------------------------------------------------------------------------------


def write_trains(path, times, units, labels):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, rows, dtype in (("times", times, np.float16), ("units", units, np.uint16)):
            column = file.create_dataset(f"spikes/{name}", (len(rows),), h5py.vlen_dtype(dtype))
            for i, row in enumerate(rows):
                column[i] = np.asarray(row, dtype)
        file["labels"] = np.asarray(labels, np.uint16)
    return path


TIMES, UNITS = [[0.5, 0.25, 0.75, 0.25], [], [1.0]], [[699, 3, 5, 1], [], [0]]


def test_spike_trains_are_sorted_and_in_microseconds(tmp_path):
    trains = SpikeTrains(write_trains(tmp_path / "a.h5", TIMES, UNITS, [4, 0, 19]))
    assert len(trains) == 3 and trains.labels.tolist() == [4, 0, 19]
    events, label = trains[0]
    assert events.tolist() == [(250_000, 3), (250_000, 1), (500_000, 699), (750_000, 5)] and label == 4
    assert len(trains[1][0]) == 0 and trains[-1][1] == 19
    with pytest.raises(IndexError):
        trains[3]
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(trains, batch_size=3, collate_fn=collate, num_workers=workers)
        (batch, labels), = loader
        assert labels.tolist() == [4, 0, 19] and batch.offsets.tolist() == [0, 4, 4, 5]
        spikes = spikeforge.data.spike_trains(batch, 700, steps=3, window=250_000)
        assert spikes.nonzero().tolist() == [[0, 0, 1], [0, 0, 3], [0, 2, 0], [1, 0, 699], [2, 0, 5]]


@pytest.mark.parametrize("times, units, labels, words", [
    ([[np.nan]], [[1]], [0], "sample 0 has times that are not finite"),
    ([[np.inf]], [[1]], [0], "sample 0 has times that are not finite"),
    ([[1, 2]], [[1]], [0], "sample 0 has float16 (2,) times and uint16 (1,) units"),
    ([[1]], [[1]], [0, 1], "(uint16) have shapes ((1,), (1,), (2,))"),
    ([[1]], [[1], [2]], [0], "(uint16) have shapes ((1,), (2,), (1,))"),
])
def test_damaged_spike_trains(times, units, labels, words, tmp_path):
    path = write_trains(tmp_path / "a.h5", times, units, labels)
    assert words in (refuses(lambda path: SpikeTrains(path)[0], path) or "no error")


def test_files_that_are_no_spike_trains(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = write_trains(tmp_path / "a.h5", TIMES, UNITS, [4, 0, 19])
    data, random = path.read_bytes(), np.random.default_rng(0)
    for damaged in (b"", random.bytes(5000), *(data[:length] for length in random.integers(0, len(data), 200))):
        path.write_bytes(damaged)
        assert refuses(SpikeTrains, path)
    with h5py.File(path, "w") as file:  # claims samples that are not stored
        file.create_dataset("labels", (2**40,), np.uint16, chunks=(1024,))
        file["spikes/times"] = file["spikes/units"] = h5py.SoftLink("/labels")
    assert "(1099511627776,)" in refuses(SpikeTrains, path)


# --- tonic -------------------------------------------------------------------------------------------------------------


def test_a_dataset_of_tonic_is_collated(tmp_path, monkeypatch):
    tonic = pytest.importorskip("tonic")
    recordings = [random_events(count, seed=count) for count in (20, 0, 31, 7)]
    for label, events in enumerate(recordings):
        folder = tmp_path / f"NMNIST/Train/{label}"
        folder.mkdir(parents=True)
        (folder / "00002.bin").write_bytes(write_bin(events))
    monkeypatch.setattr(tonic.datasets.NMNIST, "_check_exists", lambda self: True)
    dataset = tonic.datasets.NMNIST(str(tmp_path))
    (batch, labels), = torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=collate, num_workers=2)
    assert labels.tolist() == [0, 1, 2, 3] and batch.offsets.tolist() == [0, 20, 20, 51, 58]
    for field in "txyp":
        assert (getattr(batch, field).numpy() == np.concatenate([events[field] for events in recordings])).all()
    x = spikeforge.data.frames(batch, (2, 34, 34), steps=5, window=60_000)
    assert x.shape == (5, 4, 2, 34, 34) and x.sum((0, 2, 3, 4)).tolist() == [20, 0, 31, 7]
