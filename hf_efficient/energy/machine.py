"""Readings of the machine to check the tracker against: raw counters, limits of containers, load."""

import os
import platform
from pathlib import Path
from typing import NamedTuple

POWERCAP = Path("/sys/class/powercap")
CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
SAME_COUNTER = 1e6  # µJ: two counters this close are two views of one, as the dies of an EPYC have
NO_LIMIT = 2**60  # bytes; version 1 of cgroups writes about 2^63 for "unlimited"


def machine_id() -> str:
    """The same for all processes of a running machine, in whatever containers they are."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def is_virtual() -> bool:
    """Whether the processor reports a hypervisor."""
    try:
        return " hypervisor" in (PROC / "cpuinfo").read_text()
    except OSError:
        return False


class RaplCounters:
    """The processor packages' own energy counters (RAPL), each package once.

    Attributes:
        locked: whether there are counters that this user may not read.
    """

    def __init__(self, root: Path = POWERCAP):
        self.locked, self.joules = False, 0.0
        self._last: dict[Path, float] = {}
        packages: set[str] = set()
        for domain in sorted(root.glob("intel-rapl*:*"), key=lambda path: ("mmio" in path.name, path.name)):
            try:
                name = (domain / "name").read_text().strip()
                if not name.startswith("package") or name in packages:
                    continue
                energy = self._microjoules(domain)
            except PermissionError:
                self.locked = True
                continue
            except (OSError, ValueError):
                continue
            if not any(abs(energy - other) < SAME_COUNTER for other in self._last.values()):
                self._last[domain] = energy
                packages.add(name)

    def __bool__(self) -> bool:
        return bool(self._last)

    @staticmethod
    def _microjoules(domain: Path) -> float:
        return float((domain / "energy_uj").read_text())

    def skip(self) -> None:
        """Leaves out what was added since the last reading."""
        before = self.joules
        self.read()
        self.joules = before

    def read(self) -> float | None:
        """Joules since the object was made, but for what was skipped; None without counters."""
        for domain, before in self._last.items():
            try:
                now = self._microjoules(domain)
                wrapped = float((domain / "max_energy_range_uj").read_text()) if now < before else 0.0
            except (OSError, ValueError):
                continue
            self.joules += max(0.0, now + wrapped - before) / 1e6
            self._last[domain] = now
        return self.joules if self else None


class Limits(NamedTuple):
    """What a container may use of its machine; None = all."""

    cpus: float | None
    memory_gb: float | None


def find_limits(root: Path = CGROUPS, proc: Path = PROC) -> Limits:
    """Of the cgroups, versions 1 and 2, that this process is in."""
    cpus, memory = [], []
    for folder in _cgroup_folders(root, proc):
        quota, period = _numbers(folder / "cpu.max") or (None, None)
        if quota is None:
            quota = next(iter(_numbers(folder / "cpu.cfs_quota_us") or ()), None)
            period = next(iter(_numbers(folder / "cpu.cfs_period_us") or ()), None)
        if quota and period and quota > 0:
            cpus.append(quota / period)
        for name in ("memory.max", "memory.limit_in_bytes"):
            memory += [size / 2**30 for size in _numbers(folder / name) or () if size < NO_LIMIT]
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < (os.cpu_count() or 1):
        cpus.append(len(os.sched_getaffinity(0)))
    return Limits(min(cpus, default=None), min(memory, default=None))


def _cgroup_folders(root: Path, proc: Path) -> list[Path]:
    """The process's group in each hierarchy, and all groups above it: each may set a limit."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: dict[Path, None] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root / controllers if controllers else root
        inner = base / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder == root and controllers:
                break
            folders[folder] = None
            if folder == base:
                break
    return list(folders)


def _numbers(file: Path) -> tuple[float, ...] | None:
    try:
        return tuple(float(word) for word in file.read_text().split())
    except (OSError, ValueError):  # "max" is no number
        return None


class Load:
    """Seconds of processor time: all of the machine's, and those of this process with its children."""

    def __init__(self):
        try:
            import psutil
        except ImportError:
            psutil = None
        self._psutil, self.machine, self.own = psutil, 0.0, 0.0
        self.skip()

    def _machine_seconds(self) -> float:
        if self._psutil is None:
            return 0.0
        times = self._psutil.cpu_times()
        counted_twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # within user and nice
        return sum(times) - counted_twice - times.idle - getattr(times, "iowait", 0.0)

    def _own_seconds(self) -> dict[int, float]:
        if self._psutil is None:
            return {}
        own = self._psutil.Process()
        seconds = {}
        for process in (own, *own.children(recursive=True)):
            try:
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
            except self._psutil.Error:  # it has just ended
                continue
        return seconds

    def skip(self) -> None:
        """Leaves out what was added since the last reading."""
        self._busy, self._times = self._machine_seconds(), self._own_seconds()

    def read(self) -> None:
        busy, times = self._machine_seconds(), self._own_seconds()
        self.machine += max(0.0, busy - self._busy)
        self.own += sum(max(0.0, now - self._times.get(pid, 0.0)) for pid, now in times.items())
        self._busy, self._times = busy, times

    @property
    def others(self) -> float | None:
        """The share of the machine's work that was not this run's; None if there was none to speak of."""
        return max(0.0, 1 - self.own / self.machine) if self.machine > 1 else None
