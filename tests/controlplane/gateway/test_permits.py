"""A sidecar whose permits get no reports: from its heartbeats through a gateway and Postgres to an alert."""

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from controlplane.alerts.rules.every import RULE_OF_KEY
from controlplane.gateway.metrics import exporter
from controlplane.gateway.postgres.flush import Flusher
from controlplane.status.read_facts import read_facts
from controlplane.status.status import Status, status_of
from fuseboard.contract.primitives import Primitives
from fuseboard.contract.sync import PermitCounters
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, post, ready_gateway

RULE = RULE_OF_KEY["permits-unreported"]


def read() -> Status:
    return status_of(read_facts("production"))


@pytest.mark.usefixtures("token", "thread_connections")
async def test_an_alert_names_the_sidecar(database: Any) -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    pods = {
        "edge-1": PermitCounters(issued=400, expired=30, displaced=6),
        "edge-2": PermitCounters(issued=5_000, expired=40),
        # Too few to say.
        "edge-3": PermitCounters(issued=20, expired=19),
        "web-1": None,
    }
    for turn in (0, 1):
        for name, permits in pods.items():
            counts = permits if turn else None
            await post(gateway, beat(name, up_ms=1_000 + turn, primitives=Primitives(), permits=counts))
        clock.turn(5)
    flusher = Flusher(gateway.fleets, gateway.settings, gateway.counts, clock)
    await flusher.write(with_figures=True)
    await flusher.disconnect()
    status = await sync_to_async(read)()
    assert [(one.pod, one.issued, one.unreported) for one in status.permits.pods] == [
        ("edge-1", 400, 36),
        ("edge-2", 5_000, 40),
        ("edge-3", 20, 19),
    ]
    assert RULE.value is not None
    assert RULE.value(status) == pytest.approx(0.09)
    assert RULE.pods is not None
    assert RULE.pods(status) == ("edge-1",)
    assert RULE.finding(status, "warning").text == "9 % of the permits of edge-1 get no report"
    # The rule of Prometheus compares the same figure, so that both alerts fire for the same sidecar.
    text = exporter(gateway)("production").decode()
    assert 'fuseboard_fleet_permits_unreported_ratio{environment="production"} 0.09\n' in text
