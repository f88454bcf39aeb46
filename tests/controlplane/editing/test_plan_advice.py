"""A plan states what its bulkheads admit, and what pods of earlier versions do not apply."""

from typing import Any

import pytest
from django.utils import timezone

from controlplane.editing import edits
from controlplane.editing.plans import difference, plan_from_document
from controlplane.fleet.models import Server


@pytest.fixture(autouse=True)
def unprotected(production: str, ada: Any) -> None:
    edits.create_dependency(
        environment=production, dependency="api", kind="external", reason="for a test", actor=ada
    )


def test_a_plan_states_the_calls_of_a_bulkhead_and_warns_of_late_shedding(production: str) -> None:
    change = {"protection": {"shedding": {"queue_max": 500}}}
    plan = plan_from_document(change | {"dependencies": {"api": {"protection": {"bulkhead": {}}}}})
    planned = difference(production, plan)
    assert planned.notes == ["dependency api: 50 calls at once per pod; more wait 5 s."]
    assert "note: dependency api: 50 calls at once per pod; more wait 5 s." in planned.to_text()
    assert any("calls waiting exceed 500" in text for text in planned.advice), planned.advice
    only_title = plan_from_document({"dependencies": {"api": {"title": "OpenAI"}}})
    assert difference(production, only_title).notes == []


def test_a_plan_names_older_pods_that_ignore_what_it_sets(production: str) -> None:
    now = timezone.now()
    for name, carries in (("old-1", False), ("new-1", True)):
        Server.objects.create(
            environment=production, name=name, boot="boot-0001", service="shop", state="online",
            mode="shared", mode_since=now, config_status="applied", config_source="redis", started_at=now,
            last_seen_at=now, due_at=now, carries_counts=carries, enforces_budgets=carries,
        )  # fmt: skip
    ignored = "1 pod runs an older agent (old-1): {} do not apply there. Update them first."
    flood = {"flood": {"service": "*", "limit": 9, "window_s": 60}}
    for document, settings in (
        ({"subject_limits": flood}, "limits of all callers"),
        ({"tuning": {"ipv6_prefix": 56}}, "networks of IPv6 callers"),
        ({"tuning": {"remaining_for_ms": 0}}, "what vendors have left"),
        ({"tuning": {"vendor_floor_percent": 10}}, "limits that follow their vendors"),
        ({"dependencies": {"api": {"first_part_ms": 900}}}, "times of streams"),
        ({"dependencies": {"api": {"protection": {"timeouts_ms": [900, 0, 0]}}}}, "timeouts of tiers"),
        ({"dependencies": {"api": {"protection": {"bulkhead": {}}}}}, "shared idle slots"),
    ):
        assert ignored.format(settings) in difference(production, plan_from_document(document)).advice
    # It is newer than most settings, and older than budgets.
    Server.objects.filter(name="old-1").update(carries_counts=True)
    advice = difference(production, plan_from_document({"subject_limits": flood})).advice
    assert not any("old-1" in text for text in advice)
    for document, settings in (
        ({"models": {"gpt-5.2": {}}}, "models and prices"),
        ({"accounts": {"main": {}}}, "accounts"),
        ({"budgets": {"day": {"tier": "pro", "amount": 1, "period": "day"}}}, "budgets"),
        ({"tuning": {"vendor_floor_percent": 10}}, "limits that follow their vendors"),
        ({"dependencies": {"api": {"store_wait_ms": 100}}}, "waits for Redis"),
        ({"dependencies": {"api": {"latency_rise_percent": 50}}}, "limits that follow the time of calls"),
    ):
        assert ignored.format(settings) in difference(production, plan_from_document(document)).advice
