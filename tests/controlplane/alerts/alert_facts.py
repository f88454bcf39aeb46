"""Facts for the tests of alert rules."""

from typing import Any

from controlplane.fleet.call_figures import CallFigures, SlotFigures
from controlplane.fleet.live import FleetFigures, StoreFigures
from controlplane.status.facts import (
    BreakerSeen,
    Dependency,
    Facts,
    Override,
    PodLoad,
    ScheduledChange,
    Server,
)

NOW = 1_795_144_367.0

CLOSED = BreakerSeen(state="closed", generation=3, calls=40, failures=1)
OPEN = BreakerSeen(state="open", generation=4, since=NOW - 20, until=NOW + 40, calls=40, failures=31)


def pod(name: str = "web-1", view: BreakerSeen = CLOSED, **fields: Any) -> Server:
    usual: dict[str, Any] = {"last_seen": NOW, "epoch": 1, "revision": 7, "breakers": {"payments-api": view}}
    return Server(name=name, **{**usual, **fields})


def facts(*pods: Server, override: Override | None = None, **fields: Any) -> Facts:
    usual: dict[str, Any] = {
        "now": NOW,
        "as_of": NOW,
        "epoch": 1,
        "revision": 7,
        "servers": pods or (pod(),),
        "dependencies": (Dependency(name="payments-api", fallback="Order queue", override=override),),
        "figures": FleetFigures(gateways=1),
    }
    return Facts(**{**usual, **fields})


def figures(**fields: Any) -> Facts:
    return facts(figures=FleetFigures(**{"gateways": 1, **fields}))


def behind(seconds: float) -> Facts:
    return facts(pod(revision=6), pod("web-2"), revisions=((6, NOW - 900), (7, NOW - seconds)))


def override(mode: str, *, expires_at: float = NOW + 60) -> Override:
    return Override(
        mode=mode, reason="CHG-1", actor="olga", expires_at=expires_at, made_at=NOW - 9, revision=7
    )


def quota_end(at: float) -> Facts:
    change = ScheduledChange(
        key="quota acme/requests",
        title="Quota requests of acme ends",
        at=at,
        tenant="acme",
        quota="requests",
    )
    return facts(scheduled=(change,))


def redis_answers(*pods: Server, **store: Any) -> Facts:
    """What gateways and pods say of Redis."""
    return facts(*pods, figures=FleetFigures(gateways=1, store=StoreFigures(**store)))


def slow(p99_us: int | None) -> Facts:
    return figures(store=StoreFigures(p99_us=p99_us))


FULL = CallFigures(tiers=(SlotFigures("standard", 17, 17, 0, 9, 2, 1),))
HOT = PodLoad(pressure=950, level="shed_hard", cause="94 calls wait", unready=True)
ONE_OF_TWO_LOCAL = facts(pod(mode="local", mode_since=NOW - 60), pod("web-2"))
