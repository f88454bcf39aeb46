"""A crowd of made-up pods, given to the objects of a gateway directly. As a program, it prints its memory."""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Sized

import django
import msgspec
import structlog

from controlplane.gateway.clock import Clock
from fuseboard.contract.load import CallLoad, PodLoad, TierLoad
from fuseboard.contract.sync import BreakerView, Counters, SyncRequest, TenantCounters, encode
from fuseboard.contract.words import BreakerState, LoadLevel
from tests.memory import most_memory

#: The name in a heartbeat, until it is sent.
ANYONE = "pod-xxxxx"
#: Pods between two seconds of the gateway.
PER_SECOND = 2_000
#: A gateway that did nothing for longer than this was asleep.
SECONDS = 2.5
#: Heartbeats of each pod, so that all points are there from which rates are made.
ROUNDS = 3
_MAX_COUNT = 10**12


def small(server: str, number: int = 0) -> SyncRequest:
    """As the heartbeat of an ordinary pod: 10 KB, in which no name is like that of another pod.

    It says that the pod has just started, so that all it counted is in the figures at once. Each pod is the
    only one of its service, is under pressure, and asks to be unready.
    """
    return SyncRequest(
        environment="production",
        server=server,
        service=f"{server}-service",
        boot="boot-0001",
        sequence=number + 1,
        agent_version="0.1.0",
        up_ms=5_000 + 25_000 * number,
        breakers=tuple(
            BreakerView(dependency=f"{server}-{n}", state=BreakerState.OPEN, generation=10**15, for_ms=10**6)
            for n in range(4)
        ),
        counters=Counters(
            requests=30 * (number + 1),
            tenants=tuple(TenantCounters(tenant=f"{server}-{n}", allowed=number + 1) for n in range(30)),
        ),
        load=pressed(server),
        protection=protected(server, 10, number=number),
    )


def pressed(server: str) -> PodLoad:
    return PodLoad(
        pressure=1_000,
        level=LoadLevel.SHED_HARD,
        cause=f"{server} {'c' * 180}",
        cpu=10**6,
        throttled=10**6,
        memory=10**6,
        lag_ms=_MAX_COUNT,
        in_flight=_MAX_COUNT,
        waiting=_MAX_COUNT,
        p95_ms=_MAX_COUNT,
        errors=_MAX_COUNT,
        observed=_MAX_COUNT,
        asks_unready=True,
    )


def protected(server: str, dependencies: int, *, number: int = 0) -> tuple[CallLoad, ...]:
    most = _MAX_COUNT + number
    tier = TierLoad(limit=most, active=most, queued=most, peak=most, entered=most, full=most, timed_out=most)
    return tuple(
        CallLoad(
            dependency=f"{server}-call-{n:03}",
            tiers=(tier, tier, tier),
            mean_ms=10**6 + n,
            p95_ms=10**6 + n,
            wait_p95_ms=10**6 + n,
            first_calls=most,
            retries=most,
            helped=most,
            no_budget=most,
            fallbacks=most,
            queue_size=10**6 + n,
            queue_predicted=10**6 + n,
            observed=most,
            reclaimed=most,
            nested=most,
        )
        for n in range(dependencies)
    )


def named(body: bytes, number: int) -> bytes:
    return body.replace(ANYONE.encode(), f"pod-{number:05}".encode())


class Crowd:
    """Its heartbeats take the path of a request, without HTTP and without Postgres."""

    def __init__(self, clock: Clock) -> None:
        from controlplane.gateway.app import GatewayApp
        from controlplane.gateway.postgres.flush import Flusher
        from tests.controlplane.gateway.manual_gateway import ready_gateway

        self.gateway = ready_gateway(
            clock, new_pods_per_min=10_000_000, token_rate_per_s=10_000_000, token_burst=10_000_000
        )
        self._app = GatewayApp(self.gateway)
        self._token = next(iter(self.gateway.tokens._tokens.values()))
        self._flusher = Flusher(self.gateway.fleets, self.gateway.settings, self.gateway.counts, clock)
        self._clock = clock

    async def send(self, pods: int, number: int) -> None:
        """Each pod sends its heartbeat of this number."""
        body = encode(small(ANYONE, number))
        for first in range(0, pods, PER_SECOND):
            for pod in range(first, min(pods, first + PER_SECOND)):
                self._app._answer(self._token, named(body, pod), "192.0.2.7")
            await self.second()

    async def second(self, seconds: float = 1.0) -> None:
        """What the gateway does once per second, and Postgres takes every row."""
        fleet = self.gateway.fleet("production")
        self._clock.turn(seconds)  # type: ignore[attr-defined]
        fleet.sweep()
        for dirty in self._flusher._take(every=True):
            for row in await self._flusher._rows([dirty]):
                dirty.written(row.name, self._clock.monotonic())
            dirty.put_back_rows()
        now, wall = self._clock.monotonic(), self._clock.wall()
        known = len(fleet.servers)
        for _ in fleet.sums.series.collect(now, wall, known=known, present=lambda: fleet.servers):
            pass

    async def leave(self, pods: int) -> None:
        """All of them sign off, and time goes on until nothing of them is needed."""
        from controlplane.gateway.servers.fleet import TOMBSTONE_S
        from controlplane.gateway.servers.series_spans import KEPT_S

        goodbye = msgspec.structs.replace(small(ANYONE, ROUNDS + 1), leaving=True)
        body = encode(goodbye)
        for pod in range(pods):
            self._app._answer(self._token, named(body, pod), "192.0.2.7")
        for _ in range(int((TOMBSTONE_S + KEPT_S) / SECONDS) + 2):
            await self.second(SECONDS)

    def left(self) -> dict[str, int]:
        """What is still there of any pod."""
        fleet = self.gateway.fleet("production")
        kept: dict[str, Sized] = {
            "pods": fleet.servers,
            "waiting rows": fleet.dirty,
            "urgent rows": fleet.urgent,
            "totals": fleet.sums.totals.milli,
            "services with unready pods": fleet.protection.unready._by_service,
            "services": fleet.protection.unready._pods,
            "retry caps": fleet.protection.caps.caps,
            "logged caps": fleet.protection.log._capped,
            "series of pods": fleet.sums.series._pods,
            "pieces": fleet.sums.series._ended,
            "things of spans": [t for s in fleet.sums.series.spans.values() for t in s.counted if t[1]],
            "names of spans": [n for span in fleet.sums.series.spans.values() for n in span.heard_names],
            "tokens": fleet.kept._by_token,
            "room": fleet._room._by_token,
            "samples": self.gateway.coordination.refusals.log._by_pod,
        }
        return {name: len(held) for name, held in kept.items() if len(held)} | (
            {"bytes": fleet.kept.bytes} if fleet.kept.bytes else {}
        )


async def _measure(pods: int) -> dict[str, object]:
    from tests.controlplane.gateway.manual_gateway import TurnedClock

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    crowd = Crowd(TurnedClock())
    await crowd.send(1, 0)
    idle = most_memory(os.getpid())
    for number in range(ROUNDS):
        await crowd.send(pods, number + 1)
        sys.stderr.write(f"round {number}: {most_memory(os.getpid()) >> 20} MiB\n")
    most = most_memory(os.getpid())
    await crowd.leave(pods)
    gc.collect()
    return {"idle": idle, "most": most, "left": crowd.left()}


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    sys.stdout.write(msgspec.json.encode(asyncio.run(_measure(int(sys.argv[1])))).decode() + "\n")
