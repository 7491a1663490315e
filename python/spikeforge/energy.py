"""Measures the energy of a call with the counters of the GPU (NVML) and of the CPU (RAPL)."""

from __future__ import annotations

import math
import operator
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spikeforge._energy_model import in_joules
from spikeforge._numbers import check_number

POWERCAP = Path("/sys/class/powercap")
WINDOWS = 10  # of a measurement, for its standard error


@dataclass(frozen=True)
class Measured:
    """The energy of a call by one counter, without the idle energy.

    Attributes:
        joules: energy per call: power of the calls less idle power, divided by the calls per second.
        error: its standard error, from the spread of the powers of windows of a tenth of the measurement.
        watts, idle_watts: the mean power during the calls and before them.
        seconds: time per call.
        calls: the number of measured calls.
    """

    joules: float
    error: float
    watts: float
    idle_watts: float
    seconds: float
    calls: int

    def __str__(self) -> str:
        found = f"{in_joules(self.joules)} ± {in_joules(self.error)} a call"
        power = f"{self.watts:.1f} W, idle {self.idle_watts:.1f} W"
        return f"{found} ({power}; {self.calls} calls of {1e3 * self.seconds:.3g} ms)"


def energy(
    call: Callable[[], Any], *, seconds: float = 10.0, counters: Sequence[str] | None = None
) -> dict[str, Measured]:
    """Measures the energy of a call: repeats it for some seconds, and subtracts the idle energy.

    >>> spikeforge.energy(lambda: net(x))["gpu"].joules

    Args:
        call: a function without arguments. It runs once before the measurement.
        seconds: the least duration of the measurement, and that of the measurement of idle power before it. Counters of
            GPUs advance every 20 to 100 ms.
        counters: "gpu", the current CUDA device by NVML, which needs the package nvidia-ml-py; and "cpu", all packages
            and their memory (DRAM) by RAPL, in /sys/class/powercap. By default, all that can be read.

    Returns:
        The :class:`Measured` energy of each counter. The counters include all programs of the machine, so run no
        others. The GPU's energy is that of the whole card. Calls follow one another with a synchronization between
        them, so pass a call of some milliseconds or more.

    Raises:
        RuntimeError: if a counter, or each of them by default, is missing or cannot be read.
        ValueError, TypeError: if call is not a function, seconds is not above 0, or there is no such counter.
    """
    if not 0 < check_number("energy: seconds", seconds) < math.inf:
        raise ValueError(f"energy: seconds must be above 0 and finite, but is {seconds}")
    if not callable(call):
        raise TypeError(f"energy: call must be a function without arguments, but is {type(call).__name__}")
    opened = _opened(counters)
    call()
    _synchronize()
    idle_seconds, _, *idle = zip(*_windows(opened.values(), seconds, lambda: time.sleep(min(0.02, seconds / WINDOWS))))
    busy_seconds, calls, *busy = zip(*_windows(opened.values(), seconds, call))
    each = sum(busy_seconds) / sum(calls)
    found = {}
    for name, idle_joules, joules in zip(opened, idle, busy):
        watts, error = _power(busy_seconds, joules)
        idle_watts, idle_error = _power(idle_seconds, idle_joules)
        error = math.hypot(error, idle_error) * each
        found[name] = Measured((watts - idle_watts) * each, error, watts, idle_watts, each, int(sum(calls)))
    return found


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _windows(counters: Collection[Nvml | Rapl], seconds: float, call: Callable[[], Any]) -> Iterator[tuple[float, ...]]:
    """Repeats a call. Yields seconds, number of calls, and energy by each counter, of each window."""
    begin, before = time.perf_counter(), [counter.joules() for counter in counters]
    for _ in range(WINDOWS):
        calls, end = 0, begin
        while end - begin < seconds / WINDOWS:
            call()
            calls += 1
            _synchronize()
            end = time.perf_counter()
        after = [counter.joules() for counter in counters]
        yield end - begin, calls, *map(operator.sub, after, before)
        begin, before = end, after


def _power(seconds: Sequence[float], joules: Sequence[float]) -> tuple[float, float]:
    """Returns the mean power of windows in watts, and its standard error."""
    spread = statistics.stdev(map(operator.truediv, joules, seconds))
    return sum(joules) / sum(seconds), spread / math.sqrt(len(seconds))


# --- counters: joules() is the energy since some time in the past


def _opened(names: Sequence[str] | None) -> dict[str, Nvml | Rapl]:
    kinds: dict[str, type[Nvml | Rapl]] = {"gpu": Nvml, "cpu": Rapl}
    names = (names,) if isinstance(names, str) else names
    for name in names or ():
        if name not in kinds:
            raise ValueError(f"energy: counters must be among {', '.join(kinds)}, but one is {name!r}")
    opened, reasons = {}, []
    for name in kinds if names is None else names:
        try:
            opened[name] = kinds[name]()
        except RuntimeError as error:
            reasons.append(str(error))
    if not opened or (names is not None and reasons):
        raise RuntimeError(f"energy: counters of energy cannot be read: {'; '.join(reasons) or 'none is requested'}")
    return opened


class Nvml:
    """The energy of the current CUDA device since the driver was loaded. The counter advances every 20 to 100 ms.

    Raises:
        RuntimeError: without the package nvidia-ml-py, a CUDA device, or its energy counter (GPUs before Volta).
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("gpu: torch finds no CUDA device")
        try:
            import pynvml
        except ImportError:
            raise RuntimeError("gpu: NVML needs the package nvidia-ml-py (pip install nvidia-ml-py)") from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
            self._card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            self.joules()
        except pynvml.NVMLError as error:
            raise RuntimeError(f"gpu: NVML does not read the energy ({error})") from None

    def joules(self) -> float:
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._card) / 1000  # of millijoules


class Rapl:
    """The energy of all packages of the CPU and their DRAM, by the kernel's powercap files.

    The counters of zones wrap around (after some ten minutes to hours): they must be read more often than that.

    Raises:
        RuntimeError: if there are no such files, or the user may not read them.
    """

    def __init__(self) -> None:
        self._zones: list[Any] = []
        self._joules = 0.0
        try:
            for zone in sorted(POWERCAP.glob("intel-rapl:*")):
                name = (zone / "name").read_text().strip()
                if name.startswith("package") or name == "dram":  # others are parts of packages, or contain them
                    largest = int((zone / "max_energy_range_uj").read_text())
                    self._zones.append([zone / "energy_uj", largest, _microjoules(zone / "energy_uj")])
        except (OSError, ValueError) as error:
            raise RuntimeError(f"cpu: RAPL cannot be read ({error}); Linux lets only root read it by default") from None
        if not self._zones:
            raise RuntimeError(f"cpu: {POWERCAP} has no zone of RAPL for a package")

    def joules(self) -> float:
        for zone in self._zones:
            file, largest, before = zone
            zone[2] = _microjoules(file)
            self._joules += (zone[2] - before + (largest if zone[2] < before else 0)) / 1e6
        return self._joules


def _microjoules(file: Path) -> int:
    return int(file.read_text())
