"""Incidents open with alerts, join by cause, and close when they stay resolved: once, whoever evaluates."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import F
from django.utils import timezone

from controlplane.alerts.evaluator import evaluate_environment
from controlplane.alerts.incidents.edits import (
    add_note,
    close_incident,
    merge_incident,
    split_alert,
    steps_done,
    tick_step,
)
from controlplane.alerts.incidents.follow import QUIET
from controlplane.alerts.incidents.follow import follow as follow_alerts
from controlplane.alerts.incidents.reading import KEPT_DAYS, forget_incidents
from controlplane.alerts.incidents.timeline import timeline
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Evaluation, Incident, IncidentLine
from controlplane.alerts.notify import notify
from controlplane.alerts.people.mute_edits import MuteValues, add_mute
from controlplane.alerts.rules import every
from controlplane.alerts.rules.rule import Timing
from controlplane.alerts.state.causes import WAIT_S
from controlplane.audit.models import Entry
from controlplane.errors import InvalidEdit, NotFound
from tests.controlplane.alerts.delivery.test_alert_deliveries import alert
from tests.controlplane.alerts.test_alert_causes import open_alert
from tests.controlplane.alerts.test_alert_evaluator import ADA, measure
from tests.controlplane.publishing.test_publishing_crashes import killed_at

pytestmark = pytest.mark.django_db
WHY = "the same outage of the vendor"


@pytest.fixture(autouse=True)
def level_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that is easiest to drive is for people on call here, and does not wait."""
    timed(monkeypatch, level=2)


def timed(monkeypatch: pytest.MonkeyPatch, *, level: int) -> None:
    """The rule about refused requests fires and ends at once."""
    rule = replace(every.RULE_OF_KEY["429"], timing=Timing(level=level, fires_after_s=0, resolves_after_s=0))
    monkeypatch.setattr(every, "RULE_OF_KEY", {**every.RULE_OF_KEY, "429": rule})


def evaluate(refused_per_s: float) -> None:
    measure(refused_per_s)
    evaluate_environment("production")


def earlier(span: timedelta) -> None:
    """As if everything that is stored had happened earlier, evaluated all the time."""
    Alert.objects.update(
        true_since=F("true_since") - span,
        fired_at=F("fired_at") - span,
        clear_since=F("clear_since") - span,
        resolved_at=F("resolved_at") - span,
    )
    Incident.objects.update(
        started_at=F("started_at") - span,
        opened_at=F("opened_at") - span,
        quiet_since=F("quiet_since") - span,
        closed_at=F("closed_at") - span,
    )


def end() -> None:
    """Two evaluations: it recovers, and is resolved."""
    evaluate(0.0)
    evaluate(0.0)


def test_an_alert_opens_an_incident_that_closes_when_it_stays_resolved(production: str) -> None:
    evaluate(5.0)
    incident = Incident.objects.get()
    row = Alert.objects.get()
    assert (row.incident, incident.cause, incident.level) == (incident, "429", 2)
    assert (incident.severity, incident.started_at) == ("critical", row.true_since)
    evaluate(5.0)
    assert Incident.objects.count() == 1
    end()
    incident.refresh_from_db()
    assert incident.quiet_since is not None
    assert incident.closed_at is None
    earlier(QUIET)
    evaluate(0.0)
    incident.refresh_from_db()
    assert incident.closed_at is not None
    assert incident.closed_by == ""


def test_an_alert_that_returns_in_time_joins_and_a_later_one_opens_another(production: str) -> None:
    evaluate(5.0)
    end()
    evaluate(5.0)
    assert Alert.objects.filter(incident=Incident.objects.get()).count() == 2
    assert Incident.objects.get().quiet_since is None
    end()
    earlier(QUIET + timedelta(seconds=1))
    evaluate(0.0)
    evaluate(5.0)
    assert Incident.objects.count() == 2


def test_a_cause_that_returns_reopens_an_incident_that_was_closed_by_hand(production: str) -> None:
    evaluate(5.0)
    first = Incident.objects.get()
    close_incident(environment="production", number=first.pk, reason=WHY, actor=ADA)
    evaluate(5.0)
    first.refresh_from_db()
    assert first.closed_by == "ada", "an alert that fires does not open it again"
    end()
    evaluate(5.0)
    first.refresh_from_db()
    assert (first.closed_at, first.closed_by, first.reopened) == (None, "", 1)
    assert Incident.objects.count() == 1


def test_time_without_a_worker_closes_nothing(production: str) -> None:
    evaluate(5.0)
    end()
    earlier(QUIET)
    Evaluation.objects.update(at=F("at") - QUIET)
    evaluate(0.0)
    incident = Incident.objects.get()
    assert incident.closed_at is None
    assert incident.quiet_since is not None
    assert timezone.now() - incident.quiet_since < timedelta(minutes=1)


def test_a_muted_alert_opens_none_until_the_mute_ends(production: str) -> None:
    values = MuteValues(rule="429", minutes=60)
    mute = add_mute(environment="production", values=values, reason="for a test of mutes", actor=ADA)
    evaluate(5.0)
    assert not Incident.objects.exists()
    mute.ended_at = timezone.now()
    mute.save()
    evaluate(5.0)
    assert Incident.objects.count() == 1


def test_an_alert_of_level_1_opens_none(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, level=1)
    evaluate(5.0)
    assert Alert.objects.get().state == AlertState.FIRING
    assert not Incident.objects.exists()


def follow(now: Any) -> None:
    """What the evaluation does with rows that no rule finds."""
    rows = list(Alert.objects.exclude(state=AlertState.RESOLVED).select_related("cause__incident"))
    notify("production", rows, now.timestamp())
    follow_alerts("production", rows, now.timestamp())


def test_an_explained_alert_joins_and_another_at_the_same_time_does_not(production: str) -> None:
    now = timezone.now()
    child = open_alert("p99", now)
    cause = open_alert("local", now)
    other = open_alert("pressure", now)
    small = alert("near:openai", level=1, true_since=now, fired_at=now)
    follow(now + timedelta(seconds=WAIT_S))
    incidents = {row.key: row.incident_id for row in Alert.objects.all()}
    assert incidents[child.key] == incidents[cause.key] != incidents[other.key]
    assert incidents[small.key] is None
    assert Incident.objects.count() == 2, "never merged by time alone"


def test_a_cause_that_is_known_later_joins_what_it_explains(production: str) -> None:
    now = timezone.now()
    open_alert("local", now)
    follow(now + timedelta(seconds=WAIT_S))
    open_alert("redis-down", now + timedelta(seconds=20))
    Alert.objects.filter(key="redis-down").update(level=3, text="Redis is down")
    open_alert("all-local", now + timedelta(seconds=20))
    open_alert("p99", now + timedelta(seconds=20))
    follow(now + timedelta(seconds=40))
    assert Incident.objects.get().title == "Redis is down"
    assert set(Alert.objects.values_list("incident", flat=True)) == {Incident.objects.get().pk}


def two() -> tuple[Incident, Incident]:
    now = timezone.now()
    open_alert("local", now - timedelta(minutes=3))
    open_alert("pressure", now)
    follow(now)
    first, second = Incident.objects.order_by("started_at")
    return first, second


def test_people_merge_and_split(production: str) -> None:
    first, second = two()
    add_note(environment="production", number=second.pk, text="pods are slow", actor=ADA)
    merge_incident(environment="production", number=second.pk, into=first.pk, reason=WHY, actor=ADA)
    second.refresh_from_db()
    assert (second.merged_into, second.closed_by) == (first, "ada")
    assert set(Alert.objects.values_list("incident", flat=True)) == {first.pk}
    assert IncidentLine.objects.get().incident == first
    Alert.objects.filter(key="pressure").update(state=AlertState.RESOLVED, resolved_at=timezone.now())
    again = open_alert("pressure", timezone.now())
    follow(timezone.now())
    again.refresh_from_db()
    assert again.incident == first, "an alert of a cause that was merged joins there"
    with pytest.raises(InvalidEdit, match="was merged"):
        merge_incident(environment="production", number=second.pk, into=first.pk, reason=WHY, actor=ADA)
    new = split_alert(environment="production", number=first.pk, alert=again.pk, reason=WHY, actor=ADA)
    assert new.cause == "pressure"
    assert Alert.objects.filter(incident=new).count() == 2, "all episodes of it"
    assert [entry.action for entry in Entry.objects.filter(target_kind="incident").order_by("id")] == [
        "incident.noted",
        "incident.merged",
        "incident.split",
    ]


def test_splitting_the_cause_off_gives_the_rest_another_cause(production: str) -> None:
    first, second = two()
    merge_incident(environment="production", number=second.pk, into=first.pk, reason=WHY, actor=ADA)
    root = Alert.objects.get(key="local")
    new = split_alert(environment="production", number=first.pk, alert=root.pk, reason=WHY, actor=ADA)
    first.refresh_from_db()
    assert (first.cause, new.cause) == ("pressure", "local")
    assert first.started_at == Alert.objects.get(key="pressure").true_since
    with pytest.raises(InvalidEdit, match="no other alert"):
        split_alert(environment="production", number=new.pk, alert=root.pk, reason=WHY, actor=ADA)


def test_what_cannot_be_done_is_explained(production: str) -> None:
    first, second = two()
    edits: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (merge_incident, {"into": first.pk}, "Choose another"),
        (close_incident, {"reason": "short"}, "Say why"),
        (add_note, {"text": " "}, "Enter 1 to 2,000"),
        (add_note, {"text": "x" * 2_001}, "Enter 1 to 2,000"),
        (tick_step, {"runbook": "a b", "step": 1, "text": "x", "done": True}, "name of a runbook"),
        (tick_step, {"runbook": "redis-is-down", "step": 0, "text": "x", "done": True}, "from 1 to 999"),
        (tick_step, {"runbook": "redis-is-down", "step": 1, "text": "x", "done": False}, "not ticked"),
    ]
    for edit, values, says in edits:
        reason = {} if edit in (add_note, tick_step) else {"reason": WHY}
        with pytest.raises(InvalidEdit, match=says):
            edit(environment="production", number=first.pk, actor=ADA, **reason | values)
    with pytest.raises(NotFound):
        add_note(environment="staging", number=first.pk, text="hello", actor=ADA)
    close_incident(environment="production", number=first.pk, reason=WHY, actor=ADA)
    with pytest.raises(InvalidEdit, match="closed already"):
        close_incident(environment="production", number=first.pk, reason=WHY, actor=ADA)
    with pytest.raises(InvalidEdit, match="instead"):
        merge_incident(environment="production", number=second.pk, into=first.pk, reason=WHY, actor=ADA)


def test_a_step_is_noted_once_and_can_be_undone(production: str) -> None:
    first, _ = two()
    step: dict[str, Any] = {
        "environment": "production",
        "number": first.pk,
        "runbook": "redis-is-down",
        "step": 2,
        "text": "Look at the primaries",
        "actor": ADA,
    }
    assert tick_step(**step, done=True) == tick_step(**step, done=True)
    assert steps_done(first, "redis-is-down")["Look at the primaries"].by == "ada"
    tick_step(**step, done=False)
    assert steps_done(first, "redis-is-down") == {}
    assert [line.what for line in timeline(first) if line.kind == "step"] == ["Step 2 undone", "Step 2 done"]


@pytest.mark.django_db(transaction=True)
def test_two_evaluators_at_once_make_one_incident(production: str) -> None:
    measure(5.0)

    def one(_: int) -> None:
        try:
            evaluate_environment("production")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(8)))
    evaluate_environment("production")
    assert Incident.objects.count() == 1
    assert Alert.objects.get().incident == Incident.objects.get()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("place", ["follow", "Evaluation.objects.update_or_create"])
@pytest.mark.parametrize("before", [True, False])
def test_an_evaluator_that_dies_makes_none_twice_and_loses_none(
    production: str, place: str, before: bool
) -> None:
    measure(5.0)
    killed_at(f"controlplane.alerts.evaluator.{place}", before=before, work=evaluate_once)
    assert not Incident.objects.exists(), "nothing of a dead evaluation stays"
    evaluate_once()
    evaluate_once()
    assert Alert.objects.get().incident == Incident.objects.get()


def evaluate_once() -> None:
    evaluate_environment("production")


@pytest.mark.django_db(transaction=True)
def test_while_a_person_merges_no_evaluation_sees_a_half(production: str) -> None:
    first, second = two()

    def other() -> int:
        try:
            return len(evaluate_environment("production"))
        finally:
            connections.close_all()

    with transaction.atomic():
        merge_incident(environment="production", number=second.pk, into=first.pk, reason=WHY, actor=ADA)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(other).result(timeout=30) == 0
        assert not Evaluation.objects.exists()
    evaluate_once()
    assert Evaluation.objects.exists()


def test_old_incidents_are_forgotten_and_open_ones_are_not(production: str) -> None:
    first, second = two()
    close_incident(environment="production", number=first.pk, reason=WHY, actor=ADA)
    earlier(timedelta(days=KEPT_DAYS + 1))
    assert forget_incidents() == 1
    assert Incident.objects.get() == second
    assert Alert.objects.filter(incident=None).count() == 1
