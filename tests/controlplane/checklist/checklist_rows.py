"""Two environments for the checklist: one where all is wrong, and one where all is right."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.utils import timezone

from controlplane.accounts.models import AgentToken, ApiToken
from controlplane.alerts.models import Alert, Delivery, Evaluation, Receiver
from controlplane.breakers.models import Override, Transition
from controlplane.checklist import read_state as reading
from controlplane.drills.models import Drill
from controlplane.editing import edits
from controlplane.fleet.models import FailedCalls, RedisNode
from controlplane.policies.models import Dependency, Environment, Runbook, TierQuota
from controlplane.series import partitions
from controlplane.series.kinds import DEPENDENCY, FLEET, Kind
from controlplane.series.sealing import write_rows
from tests.controlplane.series.test_series_sealing import thing
from tests.dashboard.fleet_rows import breaker, put_figures, put_server
from tests.people import ADA, create_people

DOCS = Path(__file__).resolve().parents[3] / "docs"
WHY: dict[str, Any] = {"environment": "production", "reason": "for a test", "actor": ADA}

#: What the vendors state: dependency, limit, number, the one that is followed, answers, since when.
STATED = [["openai", "rate", 500, 0, 10, 1.0], ["small-model", "rate", 900, 0, 10, 1.0]]


def today() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def measured(kind: Kind, name: str = "", *, day: datetime, **values: int) -> None:
    """One hour of a day: 360 known spans, and these counts."""
    partitions.ensure(day)
    row: list[int | None] = [None] * 24 * (kind.width + 1)
    row[5] = 360
    for field, place in kind.places.items():
        row[24 * (place + 1) + 5] = values.get(field, 0)
    number = thing(kind, name, first_at=day)
    write_rows(partitions.SPANS_1H, day, [(number, row)])


def failed_call(trace: str) -> None:
    calls = [[1.0, "web-1", "boot", 1, "timeout", "failure", trace]]
    FailedCalls.objects.create(
        gateway="g",
        environment="production",
        dependency="openai",
        document={"calls": calls, "kinds": [], "since": 1.0},
    )


def put_poor_rows(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that can be found is wrong."""
    monkeypatch.setattr(
        "controlplane.checklist.read_state.used_old_names", lambda: {"POST /breakers/{dependency}/hold": 2}
    )
    warning = checks.Warning("FUSEBOARD_ORIGINS is not set.", id="fuseboard.W002")
    monkeypatch.setattr(reading, "_settings_found", lambda: (warning,))
    Dependency.objects.update(
        consecutive_failures=1,
        minimum_calls=500,
        window_calls=0,
        open_ms=5_000,
        timeout_ms=1_000,
        fallback_note="",
        owner="",
        protection={
            "sla_ms": 500,
            "bulkhead": {"queue_timeout_ms": 5_000},
            "retry": {"attempts": 3, "base_ms": 500, "cap_ms": 5_000, "jitter": "none", "budget_percent": 50},
        },
    )
    edits.create_dependency(dependency="search", kind="internal", **WHY)
    Dependency.objects.filter(name="search").update(protection={}, consecutive_failures=1, open_ms=5_000)
    Environment.objects.update(
        protection={"observe": {"bulkhead_until_us": int(timezone.now().timestamp() + 3600) * 1_000_000}}
    )
    TierQuota.objects.update(shadow=True)
    limit = {"limit": 5, "window_s": 1, "failure_policy": "fail_open", "shadow": True}
    edits.set_subject_limit(name="by-ip", per=["ip"], algorithm="sliding_window", **limit, **WHY)
    openai = Dependency.objects.get(name="openai")
    Override.objects.create(
        dependency=openai,
        mode="disabled",
        reason="for a test",
        actor="olga",
        expires_at=timezone.now() + timedelta(hours=1),
        revision=1,
    )
    day = today() - timedelta(days=2)
    measured(DEPENDENCY, "openai", day=day, ok=360, critical_full=3)
    measured(FLEET, day=day, requests=1_000, refused=100, unknown_tenants=500)
    failed_call("")
    put_figures()
    put_server("web-1", mode="local", revision=0, rivals=1, agent_version="0.1.0", breakers=[])
    put_server("web-2", mode="local", revision=0, agent_version="0.2.0", breakers=[])
    put_server("web-3", mode="local", revision=0, agent_version="0.2.0", breakers=[])
    AgentToken.objects.all().delete()
    now = timezone.now()
    Alert.objects.create(
        environment=production,
        key="open:openai",
        level=2,
        severity="critical",
        worst="critical",
        state="firing",
        true_since=now,
        level_since=now,
        fired_at=now,
        text="openai is open",
        subject_kind="breaker",
    )


def put_rich_rows(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that can be found is right."""
    monkeypatch.setattr("controlplane.checklist.read_state.used_old_names", dict)
    monkeypatch.setattr(reading, "_settings_found", tuple)
    monkeypatch.setattr("django.conf.settings.WATCHDOG_URL", "https://watch.example.com/x")
    create_people("ada", "bob")
    RedisNode.objects.create(
        address="10.0.0.1:6379", role="primary", up=True, commands=1, ops_per_s=20_000, cpu_share=0.2,
        memory_bytes=1, memory_limit_bytes=0, read_at=timezone.now(),
    )  # fmt: skip
    edits.create_environment(environment="staging", reason="for a test", actor=ADA)
    _put_dependencies()
    _put_limits()
    _put_measurements(production)
    _put_pod(production)
    _put_receiver(production)
    for model, fields in ((AgentToken, {}), (ApiToken, {"role": "metrics"})):
        model.objects.create(
            name="pods",
            selector=f"checklist{model.__name__}",
            digest="x",
            environment=production,
            expires_at=timezone.now() + timedelta(days=200),
            **fields,
        )


def _put_dependencies() -> None:
    edits.create_dependency(dependency="small-model", kind="llm", **WHY)
    runbook = Runbook.objects.create(slug="models", title="Models", body="Wait.")
    Dependency.objects.update(
        fallback_note="The small model answers.",
        owner="ml",
        runbook=runbook,
        protection={
            "sla_ms": 2_000,
            "bulkhead": {
                "max_concurrent": 50,
                "queue_timeout_ms": 1_000,
                "queues": [10, 12, 6],
                "when_full": ["queue", "abort", "discard"],
                "adaptive": False,
            },
            "retry": {
                "attempts": 2,
                "base_ms": 500,
                "cap_ms": 5_000,
                "jitter": "full",
                "budget_percent": 10,
                "idempotent": False,
            },
        },
    )
    edits.set_pod_protection(
        protection={
            "shedding": {},
            "readiness": {},
            "routes": [{"pattern": "POST /reports", "sla_ms": 90_000}],
        },
        **WHY,
    )


def _put_limits() -> None:
    for dependency in ("openai", "small-model"):
        usual: dict[str, Any] = {"dependency": dependency, "window_s": 60, "expected_version": None, **WHY}
        edits.set_vendor_limit(name="rate", limit=500, **usual)
        edits.set_vendor_limit(name="tokens", limit=50_000, measure="tokens", **usual)
        edits.set_vendor_limit(
            name="spend",
            limit=5_000_000,
            measure="micro_usd",
            algorithm="fixed_window",
            period="day",
            warn_percent=80,
            failure_policy="fail_closed",
            **{**usual, "window_s": 86_400},
        )
    edits.set_subject_limit(name="by-ip", per=["ip"], limit=5, window_s=1, algorithm="sliding_window", **WHY)
    price = {"2025-12-01": {"input": 2_500_000, "output": 10_000_000}}
    edits.set_model(model="gpt-5.2", pool="openai", prices=price, expected_version=0, **WHY)


def _put_measurements(production: str) -> None:
    day = today() - timedelta(days=2)
    now = timezone.now()
    for number, row in enumerate(Dependency.objects.all()):
        measured(DEPENDENCY, row.name, day=day, ok=360_000)
        for generation, states in enumerate((("closed", "open"), ("open", "closed"))):
            Transition.objects.create(
                dependency=row,
                generation=10 * number + generation,
                at=now - timedelta(days=3),
                from_state=states[0],
                to_state=states[1],
                cause="ratio",
            )
    measured(FLEET, day=day, requests=10_000, refused=10)
    document = {
        "calls": [[1.0, "web-1", "b", 1, "timeout", "failure", "4bf92f35"]],
        "kinds": [],
        "since": 1.0,
    }
    FailedCalls.objects.create(gateway="g", environment=production, dependency="openai", document=document)


def _put_pod(production: str) -> None:
    head = Environment.objects.get(pk=production)
    put_figures()
    closed = [breaker("openai"), breaker("small-model")]
    put_server(
        "web-1",
        mode="shared",
        epoch=head.epoch,
        revision=head.revision,
        breakers=closed,
        seen=STATED,
    )
    put_server("web-8", mode="shared", epoch=head.epoch, revision=head.revision, breakers=closed, seen=STATED)


def _put_receiver(production: str) -> None:
    now = timezone.now()
    receiver = Receiver.objects.create(
        environment=production, name="pager", url="https://hooks.example.com/x"
    )
    Receiver.objects.update(least_level=1)
    Delivery.objects.create(receiver=receiver, kind="test", document={}, state="sent", sent_at=now)
    Evaluation.objects.create(environment=production, at=now)
    Drill.objects.create(
        environment=production,
        kind="gone",
        servers=["web-1"],
        chosen="1 pod",
        reason="for a test",
        actor="ada",
        ends_at=now + timedelta(minutes=1),
    )
