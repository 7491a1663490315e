"""Measures the energy of a call with the counters of the GPU (NVML) and of the CPU (RAPL)."""

from __future__ import annotations

import math
import statistics
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from spikeforge._energy_model import in_joules
from spikeforge._numbers import check_number

POWERCAP = Path("/sys/class/powercap")
WINDOWS = 10  # of a measurement, for its standard error
SAMPLING = 0.02  # seconds between two readings of the power of a GPU without an energy counter


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
        ValueError, TypeError: if seconds is not above 0, or there is no such counter.
    """
    if not 0 < check_number("energy: seconds", seconds) < math.inf:
        raise ValueError(f"energy: seconds must be above 0 and finite, but is {seconds}")
    opened = _opened(counters)
    call()
    _synchronize()
    idle = _windows(opened, seconds, lambda: time.sleep(min(SAMPLING, seconds / WINDOWS)))
    busy = _windows(opened, seconds, call)
    duration, calls = (sum(numbers) for numbers in zip(*busy[""]))
    found = {}
    for name in opened:
        watts, error = _power(busy[name])
        idle_watts, idle_error = _power(idle[name])
        each = duration / calls
        found[name] = Measured(
            (watts - idle_watts) * each, math.hypot(error, idle_error) * each, watts, idle_watts, each, int(calls)
        )
    return found


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _windows(
    counters: dict[str, Counter], seconds: float, call: Callable[[], Any]
) -> dict[str, list[tuple[float, float]]]:
    """Repeats a call in windows. Returns their durations and energies for each counter, and durations and numbers of
    calls for the name ""."""
    windows: dict[str, list[tuple[float, float]]] = {name: [] for name in ("", *counters)}
    begin, before = time.perf_counter(), {name: counter.joules() for name, counter in counters.items()}
    for _ in range(WINDOWS):
        calls, end = 0, begin
        while end - begin < seconds / WINDOWS:
            call()
            calls += 1
            _synchronize()
            end = time.perf_counter()
        windows[""].append((end - begin, calls))
        for name, counter in counters.items():
            now = counter.joules()
            windows[name].append((end - begin, now - before[name]))
            before[name] = now
        begin = end
    return windows


def _power(windows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns the mean power in watts, and its standard error."""
    duration, joules = (sum(numbers) for numbers in zip(*windows))
    spread = statistics.stdev(joules / duration for duration, joules in windows)
    return joules / duration, spread / math.sqrt(len(windows))


# --- counters


class Counter(Protocol):
    def joules(self) -> float:
        """Returns the energy in joules since some time in the past."""
        ...


def _opened(names: Sequence[str] | None) -> dict[str, Counter]:
    kinds: dict[str, Callable[[], Counter]] = {"gpu": Nvml, "cpu": Rapl}
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

    A GPU without this counter (before Volta): the integral of the power that NVML reports, read every 20 ms.

    Raises:
        RuntimeError: without the package nvidia-ml-py, a CUDA device or NVML.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("gpu: torch finds no CUDA device")
        try:
            import pynvml
        except ImportError:
            raise RuntimeError("gpu: NVML needs the package nvidia-ml-py (pip install nvidia-ml-py)") from None
        self._nvml, self._sampled = pynvml, None
        try:
            pynvml.nvmlInit()
            uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
            self._card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            try:
                pynvml.nvmlDeviceGetTotalEnergyConsumption(self._card)
            except pynvml.NVMLError:
                self._sampled = Sampled(lambda: pynvml.nvmlDeviceGetPowerUsage(self._card) / 1000)
        except pynvml.NVMLError as error:
            raise RuntimeError(f"gpu: NVML reads neither energy nor power ({error})") from None

    def joules(self) -> float:
        if self._sampled:
            return self._sampled.joules()
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._card) / 1000  # of millijoules


class Sampled:
    """Integrates a power in watts, which a thread reads until the object is freed."""

    def __init__(self, watts: Callable[[], float]):
        self._joules, stop = [0.0], threading.Event()
        threading.Thread(target=_integrate, args=(watts, watts(), self._joules, stop), daemon=True).start()
        weakref.finalize(self, stop.set)

    def joules(self) -> float:
        return self._joules[0]


def _integrate(watts: Callable[[], float], power: float, joules: list[float], stop: threading.Event) -> None:
    before = time.perf_counter()
    while not stop.wait(SAMPLING):
        last, power, now = power, watts(), time.perf_counter()
        joules[0] += (last + power) / 2 * (now - before)
        before = now


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
