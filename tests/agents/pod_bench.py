"""A pod in a time that the test sets."""

from fuseboard.contract.protection import PodProtection, Shedding
from fuseboard.protection.cgroup import ResourceReader, Usage
from fuseboard.protection.pod import Pod, ServedRequest
from fuseboard.protection.pressure import Pressure

FREE, PREMIUM = 10, 90


class Calls:
    """What the admission says about calls that leave the pod."""

    def __init__(self) -> None:
        self.waits = 0
        self.full = 0.0
        self.turned_away = 0
        self.relieved: list[tuple[float | None, float | None]] = []

    def waiting(self) -> int:
        return self.waits

    def slots(self) -> float:
        return self.full

    def refused(self) -> int:
        return self.turned_away

    def resize_for_pressure(self, cpu: float | None, memory: float | None, now: float) -> None:
        self.relieved.append((cpu, memory))


class Resources(ResourceReader):
    def __init__(self) -> None:
        self.usage = Usage(cpu=0.1, memory=0.2)

    def read(self, now: float) -> Usage:
        return self.usage

    def close(self) -> None:
        self.usage = Usage()


class Bench:
    """A pod whose time passes by ``run``."""

    def __init__(self, settings: PodProtection | None = None, priorities: tuple[int, ...] = (FREE, PREMIUM)):
        self.now = 100.0
        self.server_us = 0
        self.calls, self.resources = Calls(), Resources()
        self.pod = Pod(
            settings or PodProtection(shedding=Shedding()),
            priorities,
            calls=self.calls,
            clock=lambda: self.now,
            server_us=lambda: self.server_us,
            resources=lambda: self.resources,
        )
        self.pod._resources = self.resources

    def run(self, seconds: float = 1.0, *, late_s: float = 0.0) -> Pressure:
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            self.pod.tick(self.now, late_s)
        return self.pod.pressure

    def serve(
        self, times: int, seconds: float, *, endpoint: str = "GET /orders/1", status: int = 200
    ) -> None:
        for _ in range(times):
            visit = self.pod.enter(endpoint, PREMIUM, "acme")
            assert isinstance(visit, ServedRequest)
            self.now += seconds
            visit.answered(status)
            visit.leave()
            self.now -= seconds
