"""How much CPU and memory the pod uses, in relation to what it may use.

From the pod's cgroup: version 2 or 1, chosen for each controller because hosts mix them. Without one, CPU
is that of the process, and memory is unknown. Reads files only.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

from msgspec import Struct

#: ``memory.stat`` is the longest file, with about 2 KB.
_READ_BYTES = 16_384
#: Version 1 writes "no limit" as a number near 2 ** 63.
_NO_LIMIT = 2**60


class Usage(Struct, frozen=True, kw_only=True):
    """Parts of 1. ``None`` is unknown; more than 1 is possible where the limit is not strict."""

    #: Used part of ``cores`` since the last reading.
    cpu: float | None = None
    #: Part of the scheduler's periods in which the CPU limit stopped the pod.
    throttled: float | None = None
    memory: float | None = None
    #: The CPU limit, or without one the CPUs that the process may run on.
    cores: float = 1.0
    #: Part of the time that something in the pod waited for a CPU (``cpu.pressure``). Reported only: it also
    #: rises because of neighbours.
    stalled: float | None = None
    #: Where CPU and memory come from: ``cgroup2``, ``cgroup1``, ``process`` or ``none``.
    cpu_from: str = "process"
    memory_from: str = "none"


class CpuTotals(NamedTuple):
    used_s: float
    #: The CPU limit in cores.
    quota: float | None = None
    periods: int = 0
    throttled: int = 0


class _Cpu(Protocol):
    name: str

    def read(self) -> CpuTotals | None: ...


class _Memory(Protocol):
    name: str

    def read(self) -> float | None: ...


class ResourceReader:
    """Belongs to one thread. ``root`` is where ``proc`` and ``sys`` are; ``close`` closes the files."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        cores: Callable[[], int] | None = None,
        process_s: Callable[[], float] | None = None,
        host_cores: int | None = None,
    ) -> None:
        self._cores = cores or _cores
        self._host_cores = host_cores or os.cpu_count() or 1
        self._files: list[_File] = []
        groups = _Groups(root)
        self._cpu = self._find_cpu(groups) or _Process(process_s or _process_s)
        self._memory = self._find_memory(groups)
        self._stalls = self._open(groups.of("cpu", version=2), "cpu.pressure")
        self._before: tuple[float, CpuTotals] | None = None

    def read(self, now: float) -> Usage:
        """Return the use since the last reading; ``now`` is of a monotonic clock."""
        totals = self._cpu.read()
        before, self._before = self._before, None if totals is None else (now, totals)
        cores = float(self._cores())
        cpu = throttled = None
        if totals is not None:
            if totals.quota is not None:
                cores = min(cores, totals.quota) or cores
            if before is not None:
                cpu, throttled = self._since(before, now, totals, cores)
        return Usage(
            cpu=cpu,
            throttled=throttled,
            memory=self._memory.read() if self._memory is not None else None,
            cores=cores,
            stalled=_stalled(self._stalls.read()) if self._stalls is not None else None,
            cpu_from=self._cpu.name,
            memory_from=self._memory.name if self._memory is not None else "none",
        )

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()

    def _since(
        self, before: tuple[float, CpuTotals], now: float, totals: CpuTotals, cores: float
    ) -> tuple[float | None, float | None]:
        began, first = before
        elapsed, used = now - began, totals.used_s - first.used_s
        # Counters of a container that moved, or of a clock that did: no evidence.
        if elapsed <= 0 or used < 0 or used > elapsed * self._host_cores * 1.1:
            return None, None
        periods, throttled = totals.periods - first.periods, totals.throttled - first.throttled
        part = min(1.0, throttled / periods) if periods > 0 and throttled >= 0 else None
        return used / (elapsed * cores), part if totals.quota is not None else None

    def _find_cpu(self, groups: "_Groups") -> _Cpu | None:
        if chain := groups.of("cpu", version=2):
            stat, limits = self._open(chain, "cpu.stat"), self._open_all(chain, "cpu.max")
            # The root of a host has no limit, and the usage of every process of the host.
            if stat is not None and limits:
                return _Cpu2(stat, limits)
        if (chain := groups.of("cpu", version=1)) and (usage := groups.of("cpuacct", version=1)):
            used = self._open(usage, "cpuacct.usage")
            limits = self._open_all(chain, "cpu.cfs_quota_us")
            periods = self._open_all(chain, "cpu.cfs_period_us")
            if used is not None and limits and len(limits) == len(periods):
                source = _Cpu1(used, list(zip(limits, periods, strict=True)), self._open(chain, "cpu.stat"))
                totals = source.read()
                if totals is not None and (totals.quota is not None or not groups.is_root("cpu")):
                    return source
        return None

    def _find_memory(self, groups: "_Groups") -> _Memory | None:
        if chain := groups.of("memory", version=2):
            used, stat = self._open(chain, "memory.current"), self._open(chain, "memory.stat")
            limits = [*self._open_all(chain, "memory.max"), *self._open_all(chain, "memory.high")]
            if used is not None and limits:
                return _WorkingSet("cgroup2", used, stat, "inactive_file", limits)
        if chain := groups.of("memory", version=1):
            used, stat = self._open(chain, "memory.usage_in_bytes"), self._open(chain, "memory.stat")
            limits = self._open_all(chain, "memory.limit_in_bytes")
            if used is not None and limits:
                return _WorkingSet("cgroup1", used, stat, "total_inactive_file", limits)
        return None

    def _open(self, chain: list[Path], name: str) -> "_File | None":
        """The file of the pod's own group, the first one of the chain."""
        files = self._open_all(chain[:1], name)
        return files[0] if files else None

    def _open_all(self, chain: list[Path], name: str) -> list["_File"]:
        """The files of this name of the pod's group and of all groups above it."""
        opened = [file for folder in chain if (file := _File.open(folder / name)) is not None]
        self._files += opened
        return opened


class _File:
    """Kept open: reading it again takes a microsecond."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path) -> "_File | None":
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None

    def read(self) -> str:
        """Empty when it cannot be read: the group may be gone."""
        try:
            return os.pread(self._descriptor, _READ_BYTES, 0).decode("ascii", "replace")
        except OSError:
            return ""

    def close(self) -> None:
        os.close(self._descriptor)


class _Groups:
    """Where the groups of this process are, by controller."""

    def __init__(self, root: Path) -> None:
        self._mounts: dict[str, tuple[Path, PurePosixPath]] = {}
        self._paths: dict[str, PurePosixPath] = {}
        for line in _lines(root / "proc/self/cgroup"):
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            names = controllers.split(",") if controllers else ["2"] if number == "0" else []
            self._paths |= dict.fromkeys(names, PurePosixPath(path))
        for line in _lines(root / "proc/self/mountinfo"):
            left, _, right = line.partition(" - ")
            fields, kind = left.split(), right.split()
            if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
                continue
            place = (root / fields[4].lstrip("/"), PurePosixPath(fields[3]))
            for name in ["2"] if kind[0] == "cgroup2" else kind[2].split(","):
                self._mounts.setdefault(name, place)

    def of(self, controller: str, *, version: int) -> list[Path]:
        """The folder of the pod's group and those above it, the nearest first; empty if there is none."""
        if (version == 1) != (controller in self._paths):
            return []
        key = controller if version == 1 else "2"
        if key not in self._mounts or key not in self._paths:
            return []
        mount, shown = self._mounts[key]
        path = self._paths[key]
        # A container sees its own group as the root of the mount, whatever path the host gave it.
        inside = path.relative_to(shown) if path.is_relative_to(shown) else path.relative_to("/")
        own = mount / inside
        return list(_upwards(own, mount)) if ".." not in inside.parts and own.is_dir() else [mount]

    def is_root(self, controller: str) -> bool:
        """Whether the process is in no group, or cannot see in which."""
        return self._paths.get(controller) == PurePosixPath("/")


def _upwards(own: Path, mount: Path) -> Iterator[Path]:
    folder = own
    while folder != mount and mount in folder.parents:
        yield folder
        folder = folder.parent
    yield mount


class _Cpu2:
    name = "cgroup2"

    def __init__(self, stat: _File, limits: list[_File]) -> None:
        self._stat, self._limits = stat, limits

    def read(self) -> CpuTotals | None:
        stat = _table(self._stat.read())
        if "usage_usec" not in stat:
            return None
        quotas = (_ratio(*limit.read().split()) for limit in self._limits)
        return CpuTotals(
            used_s=stat["usage_usec"] / 1e6,
            quota=min((quota for quota in quotas if quota is not None), default=None),
            periods=stat.get("nr_periods", 0),
            throttled=stat.get("nr_throttled", 0),
        )


class _Cpu1:
    name = "cgroup1"

    def __init__(self, used: _File, limits: list[tuple[_File, _File]], stat: _File | None) -> None:
        self._used, self._limits, self._stat = used, limits, stat

    def read(self) -> CpuTotals | None:
        used_ns = _whole(self._used.read())
        if used_ns is None:
            return None
        stat = _table(self._stat.read()) if self._stat is not None else {}
        quotas = (_ratio(quota.read(), period.read()) for quota, period in self._limits)
        return CpuTotals(
            used_s=used_ns / 1e9,
            quota=min((quota for quota in quotas if quota is not None), default=None),
            periods=stat.get("nr_periods", 0),
            throttled=stat.get("nr_throttled", 0),
        )


class _Process:
    name = "process"

    def __init__(self, used_s: Callable[[], float]) -> None:
        self._used_s = used_s

    def read(self) -> CpuTotals:
        return CpuTotals(self._used_s())


class _WorkingSet:
    """Memory without the page cache that the kernel takes back first."""

    def __init__(
        self, name: str, used: _File, stat: _File | None, reclaimable: str, limits: list[_File]
    ) -> None:
        self.name = name
        self._used, self._stat, self._reclaimable, self._limits = used, stat, reclaimable, limits

    def read(self) -> float | None:
        used = _whole(self._used.read())
        limits = (_whole(limit.read()) for limit in self._limits)
        limit = min((one for one in limits if one and one < _NO_LIMIT), default=None)
        if used is None or limit is None:
            return None
        stat = _table(self._stat.read()) if self._stat is not None else {}
        return max(0, used - stat.get(self._reclaimable, 0)) / limit


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", "replace").splitlines()
    except OSError:
        return []


def _table(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _whole(text: str) -> int | None:
    """``None`` for ``max``, for what cannot be read, and for the -1 of version 1."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def _ratio(quota: str = "", period: str = "") -> float | None:
    most, every = _whole(quota), _whole(period)
    return most / every if most and every else None


def _stalled(text: str) -> float | None:
    """``avg10`` of the line ``some avg10=1.25 avg60=...``, as a part of 1."""
    for line in text.splitlines():
        if line.startswith("some avg10="):
            percent = line.split()[1].removeprefix("avg10=")
            return float(percent) / 100 if percent.replace(".", "", 1).isdecimal() else None
    return None


def _cores() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _process_s() -> float:
    times = os.times()
    return times.user + times.system
