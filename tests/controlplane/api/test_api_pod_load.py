"""The API shows the load of pods and what protects them."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from controlplane.editing import edits
from controlplane.fleet.models import Figures, Server
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.rows import row_of
from controlplane.policies.models import Environment
from fuseboard.contract.load import PodLoad, TierLoad
from fuseboard.contract.words import LoadLevel
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat
from tests.controlplane.gateway.test_gateway_protection import calling, hear

API = "/api/v1/production"
HOT = PodLoad(
    pressure=820,
    level=LoadLevel.SHED,
    cause="94 calls wait (limit 100)",
    cpu=950,
    waiting=94,
    p95_ms=740,
    asks_unready=True,
)


def reported(*loads: PodLoad | None) -> list[dict[str, Any]]:
    """What a gateway writes of pods that report these loads: two heartbeats of each."""
    clock = TurnedClock()
    fleet = Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)
    for count in (0, 50):
        slots = TierLoad(limit=25, active=10, queued=2, full=count, timed_out=count)
        calls = calling(count * 10, tiers=(slots, slots), retries=count, no_budget=count * 2, observed=count)
        for number, load in enumerate(loads):
            hear(fleet, beat(f"pod-{number}", load=load, protection=calls if load else ()))
        clock.turn(10.0)
    return [row_of(server).load for server in fleet.servers.values()]


def put(*loads: dict[str, Any]) -> None:
    now = timezone.now()
    for number, load in enumerate(loads):
        Server.objects.create(
            environment="production",
            name=f"pod-{number}",
            boot="0123456789abcdef",
            service="shop",
            state="online",
            mode="shared",
            mode_since=now,
            epoch=1,
            revision=1,
            config_status="applied",
            started_at=now,
            last_seen_at=now,
            due_at=now + timedelta(minutes=1),
            load=load,
        )


def test_a_pod_has_its_pressure_with_the_cause_its_slots_and_its_retries(production: str, call: Any) -> None:
    put(*reported(HOT, PodLoad(), None))
    load = call("viewer", "GET", f"{API}/servers/pod-0").json()["load"]
    assert (load["pressure"], load["level"], load["cause"]) == (0.82, "shed", "94 calls wait (limit 100)")
    assert (load["cpu"], load["memory"], load["p95_ms"]) == (0.95, None, 740)
    assert (load["asks_unready"], load["unready"], load["unhealthy"]) == (True, False, ["CPU is at 95 %"])
    # Over both tiers: 50 calls of each did not find a place, and 50 waited too long, in 10 s.
    assert (load["slots"], load["slots_in_use"], load["queued"]) == (50, 20, 4)
    assert (load["calls_refused_per_s"], load["retries_per_s"]) == (20.0, 5.0)
    assert (load["retries_no_budget_per_s"], load["observed_calls_per_s"]) == (10.0, 5.0)
    every = {row["name"]: row["load"] for row in call("viewer", "GET", f"{API}/servers").json()}
    assert every["pod-0"] == load
    assert every["pod-1"]["level"] == "normal"
    assert every["pod-2"] is None, "a pod of version 0.1.0 reports none"


def test_the_fleet_has_levels_unhealthy_pods_and_what_protects_calls(
    production: str, call: Any, ada: Any
) -> None:
    put(*reported(HOT, PodLoad(), None))
    tiers = {"critical": {"limit": 50, "active": 12}}
    Figures.objects.create(
        gateway="one",
        environment="production",
        at=timezone.now() + timedelta(minutes=1),
        document={"protection": {"openai": {"callers": 2, "tiers": tiers, "retries_per_s": 1.5}}},
    )
    edits.set_pod_protection(
        environment="production",
        protection={"shedding": {}},
        observe_for_s={"shedding": 60},
        reason="Watch first",
        actor=ada,
    )
    found = call("viewer", "GET", f"{API}/fleet").json()
    assert found["pods"]["by_level"] == {"normal": 1, "shed": 1, "shed_hard": 0}
    assert (found["pods"]["unready"], found["pods"]["unhealthy"]) == (0, 1)
    assert found["pods"]["unhealthy_pods"] == [
        {
            "server": "pod-0",
            "because": ["CPU is at 95 %"],
            "spared": "asks to be unready, but no gateway agrees; would shed the lowest tiers",
        }
    ]
    (observing,) = found["pods"]["observing"]
    assert (observing["part"], observing["by"], observing["reason"]) == ("shedding", "ada", "Watch first")
    calls = found["protection"]["openai"]
    assert (calls["callers"], calls["retries_per_s"], calls["mean_ms"]) == (2, 1.5, None)
    (tier,) = calls["tiers"]
    assert (tier["tier"], tier["limit"], tier["active"]) == ("critical", 50, 12)


def test_a_fleet_without_pods_has_none(production: str, call: Any) -> None:
    found = call("viewer", "GET", f"{API}/fleet").json()
    assert found["pods"]["by_level"] == {"normal": 0, "shed": 0, "shed_hard": 0}
    assert (found["pods"]["unhealthy_pods"], found["pods"]["observing"], found["protection"]) == ([], [], {})


def test_pods_are_unhealthy_above_the_threshold_of_the_alert(production: str, call: Any) -> None:
    put(*reported(HOT, PodLoad(), None))
    for at, because in ((1.1, []), (0.5, ["CPU is at 95 %"])):
        Environment.objects.update(alert_rules={"unhealthy": {"warning": at}})
        assert call("viewer", "GET", f"{API}/servers/pod-0").json()["load"]["unhealthy"] == because
        (load,) = [
            row["load"] for row in call("viewer", "GET", f"{API}/servers").json() if row["name"] == "pod-0"
        ]
        assert load["unhealthy"] == because
        assert call("viewer", "GET", f"{API}/fleet").json()["pods"]["unhealthy"] == len(because)
