"""The worker keeps alerts in Postgres: when they began, what changed, and who works on them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import F
from django.db.models.functions import Now

from controlplane.alerts import evaluator
from controlplane.alerts.evaluator import Change, evaluate_environment, forget
from controlplane.alerts.lifecycle import NO_TRAFFIC_S, AlertEvent, AlertState, ResolvedWhy
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Evaluation, Receiver
from controlplane.alerts.people.acknowledge import acknowledge_alert, release_alert
from controlplane.alerts.rules.rule import LONGEST_KEY
from controlplane.alerts.state.stored_alerts import open_alerts, past_alerts, stored_alerts
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.editing.edits import create_environment
from controlplane.errors import InvalidEdit, NotFound
from controlplane.fleet.models import Figures

ADA = Actor(name="ada", role="operator", origin="dashboard")

pytestmark = pytest.mark.django_db


def measure(refused_per_s: float, requests_per_s: float = 100.0, **more: object) -> None:
    Figures.objects.update_or_create(
        gateway="g1",
        environment="production",
        defaults={
            # Ahead: figures of 10 s ago are too old, and a machine may pause for that long.
            "at": Now() + timedelta(minutes=5),
            "document": {
                "requests_per_s": requests_per_s,
                "refused_per_s": refused_per_s,
                "refused_by_reason": {},
                "store": {},
                "decided_locally_per_s": 0,
                "unknown_tenants_per_s": 0,
                "live_servers": 2,
                **more,
            },
        },
    )


def evaluate() -> list[tuple[str, AlertEvent]]:
    return [(change.alert.key, change.news) for change in evaluate_environment("production")]


def test_a_long_name_of_a_tenant_stops_no_evaluation(
    production: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys of two alerts that begin alike stay apart, and each stays the same."""
    rules = [
        {"tenant": "x" * 200, "rule": name, "asked_per_s": 9.0, "refused_per_s": 0.0, "shadow_per_s": 0.0}
        | {"leased_per_s": 9.0, "leased_since": 1.0}
        for name in ("minute", "hour")
    ]
    measure(0.0, rules=rules)
    assert [news for _, news in evaluate()] == [AlertEvent.FIRED, AlertEvent.FIRED]
    assert evaluate() == []
    keys = set(Alert.objects.filter(key__startswith="hot-key:").values_list("key", flat=True))
    assert len(keys) == 2
    assert {len(key) for key in keys} == {LONGEST_KEY}
    logged = caplog.text
    assert "'key': 'hot-key'" in logged
    assert "xxx" not in logged, "no erasure finds a tenant in a log"


def let_pass(seconds: float) -> None:
    """As if everything that is stored had happened earlier, evaluated all the time."""
    earlier = timedelta(seconds=seconds)
    Alert.objects.update(
        true_since=F("true_since") - earlier,
        level_since=F("level_since") - earlier,
        fired_at=F("fired_at") - earlier,
        clear_since=F("clear_since") - earlier,
        idle_since=F("idle_since") - earlier,
        resolved_at=F("resolved_at") - earlier,
    )


def fire() -> Alert:
    measure(5.0)
    assert evaluate() == []
    let_pass(120)
    assert evaluate() == [("429", AlertEvent.FIRED)]
    return Alert.objects.get()


def test_an_alert_is_pending_fires_recovers_and_is_resolved() -> None:
    row = fire()
    assert (row.state, row.severity, row.level) == (AlertState.FIRING, "critical", 1)
    assert row.text == "5 % of requests are refused"
    assert row.runbook == "too-many-429s"
    assert row.fired_at is not None
    assert row.fired_at - row.true_since == timedelta(seconds=120)
    measure(0.0)
    assert evaluate() == []
    assert Alert.objects.get().state == AlertState.RECOVERING
    let_pass(300)
    assert evaluate() == [("429", AlertEvent.RESOLVED)]
    assert open_alerts("production") == []
    [past] = past_alerts("production")
    assert past.resolved_at is not None
    assert past.text == "5 % of requests are refused", "the last text is kept"
    assert evaluate() == []


def test_an_alert_of_a_rule_that_this_version_does_not_know_is_resolved() -> None:
    """During an upgrade, or after a rule was removed: the evaluation failed for every rule."""
    row = fire()
    Alert.objects.filter(pk=row.pk).update(key="removed-rule:payments-api")
    measure(0.0)
    assert evaluate() == []
    let_pass(60)
    assert evaluate() == [("removed-rule:payments-api", AlertEvent.RESOLVED)]


def test_an_environment_that_fails_keeps_no_other_from_its_alerts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("aaa", "production"):
        create_environment(environment=name, reason="for a test", actor=ADA)
    fire()
    measure(0.0)
    read = evaluator.read_facts

    def fails_for_one(environment: str) -> Any:
        if environment == "aaa":
            raise ValueError("a stored document of another version")
        return read(environment)

    monkeypatch.setattr(evaluator, "read_facts", fails_for_one)
    with pytest.raises(ExceptionGroup, match="some environments"):
        evaluator.evaluate_all()
    assert Alert.objects.get().state == AlertState.RECOVERING


def test_a_pending_alert_that_ends_leaves_no_row() -> None:
    measure(5.0)
    evaluate()
    measure(0.0)
    evaluate()
    assert not Alert.objects.exists()


def test_a_new_episode_is_a_new_row() -> None:
    fire()
    measure(0.0)
    evaluate()
    let_pass(300)
    evaluate()
    measure(5.0)
    evaluate()
    assert sorted(Alert.objects.values_list("state", flat=True)) == ["pending", "resolved"]


def test_without_a_gateway_figures_resolve_nothing() -> None:
    fire()
    Figures.objects.all().delete()
    evaluate()
    row = Alert.objects.get()
    assert row.state == AlertState.FIRING
    assert row.blind_since is not None
    let_pass(3_600)
    assert evaluate() == []
    assert Alert.objects.get().blind_since == row.blind_since
    measure(5.0)
    evaluate()
    row = Alert.objects.get()
    assert (row.state, row.blind_since) == (AlertState.FIRING, None)


def test_an_alert_without_traffic_ends_after_ten_minutes_and_says_why(production: str) -> None:
    url = "https://pager.example.com/hook"
    Receiver.objects.create(environment=production, name="pager", url=url, least_level=1)
    fire()
    Delivery.objects.update(state=DeliveryState.SENT, attempts=1)
    measure(0.5, requests_per_s=0.9)
    assert evaluate() == []
    row = Alert.objects.get()
    assert row.idle_since is not None
    assert (row.state, row.text) == (AlertState.FIRING, "5 % of requests are refused")
    assert stored_alerts(production)["429"].idle_since == row.idle_since.timestamp()
    let_pass(NO_TRAFFIC_S)
    assert evaluate() == [("429", AlertEvent.RESOLVED)]
    assert Alert.objects.get().resolved_why == ResolvedWhy.NO_TRAFFIC
    document = Delivery.objects.get(kind="resolved").document["data"]
    assert document["resolved_why"] == "no_traffic"
    assert "It ended after 10 minutes without traffic" in document["message"]
    measure(5.0)
    evaluate()
    let_pass(120)
    evaluate()
    measure(0.0)
    evaluate()
    let_pass(300)
    evaluate()
    assert Alert.objects.latest("pk").resolved_why == ResolvedWhy.CLEARED


def test_an_hour_without_a_worker_fires_nothing() -> None:
    measure(5.0)
    evaluate()
    let_pass(3_600)
    Evaluation.objects.update(at=F("at") - timedelta(seconds=3_600))
    assert evaluate() == []
    assert Alert.objects.get().state == AlertState.PENDING
    let_pass(120)
    assert evaluate() == [("429", AlertEvent.FIRED)]


def test_nothing_is_written_while_nothing_changes() -> None:
    fire()
    before = Alert.objects.get()
    with connection.execute_wrapper(_no_write_of("alerts_alert")):
        evaluate()
    assert Alert.objects.get().text == before.text


def _no_write_of(table: str) -> Callable[..., Any]:
    def check(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        assert not sql.startswith(("INSERT", "UPDATE", "DELETE")) or f'"{table}"' not in sql, sql
        return execute(sql, params, many, context)

    return check


@pytest.mark.django_db(transaction=True)
def test_two_processes_do_not_evaluate_at_once() -> None:
    measure(5.0)
    evaluate_environment("production")
    let_pass(120)

    def other() -> list[Change]:
        try:
            return evaluate_environment("production")
        finally:
            connections.close_all()

    with transaction.atomic():
        assert [change.news for change in evaluate_environment("production")] == [AlertEvent.FIRED]
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(other).result(timeout=30) == []
    assert evaluate_environment("production") == []


def test_acknowledging_is_recorded_and_shown() -> None:
    row = fire()
    taken = acknowledge_alert(environment="production", number=row.pk, note="I am on it", actor=ADA)
    assert (taken.acknowledged_by, taken.note) == ("ada", "I am on it")
    assert taken.acknowledged_at is not None
    assert stored_alerts("production")["429"].acknowledged_by == "ada"
    entry = Entry.objects.get(action="alert.acknowledged")
    assert (entry.target_name, entry.reason, entry.actor) == ("429", "I am on it", "ada")
    with pytest.raises(InvalidEdit, match="already"):
        acknowledge_alert(environment="production", number=row.pk, note="Again", actor=ADA)
    released = release_alert(environment="production", number=row.pk, note="Not mine", actor=ADA)
    assert (released.acknowledged_by, released.acknowledged_at, released.note) == ("", None, "")
    with pytest.raises(InvalidEdit, match="not acknowledged"):
        release_alert(environment="production", number=row.pk, note="Again", actor=ADA)


def test_an_acknowledged_warning_that_becomes_critical_needs_a_person_again() -> None:
    measure(1.0)
    evaluate()
    let_pass(120)
    evaluate()
    row = Alert.objects.get()
    assert row.severity == "warning"
    acknowledge_alert(environment="production", number=row.pk, note="I am on it", actor=ADA)
    measure(5.0)
    assert evaluate() == [("429", AlertEvent.WORSENED)]
    row = Alert.objects.get()
    assert (row.severity, row.worst, row.acknowledged_by) == ("critical", "critical", "")
    measure(1.0)
    evaluate()
    row = Alert.objects.get()
    assert (row.severity, row.worst) == ("warning", "critical")


def test_a_warning_that_is_acknowledged_while_it_becomes_critical_needs_a_person_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure(1.0)
    evaluate()
    let_pass(120)
    evaluate()
    row = Alert.objects.get()
    timing = evaluator.timing_while

    def while_it_evaluates(*given: Any) -> Any:
        acknowledge_alert(
            environment="production", number=row.pk, note="I am on it", actor=ADA, seen="warning"
        )
        return timing(*given)

    measure(5.0)
    with monkeypatch.context() as patched:
        patched.setattr(evaluator, "timing_while", while_it_evaluates)
        assert evaluate() == [("429", AlertEvent.WORSENED)]
    row = Alert.objects.get()
    assert (row.severity, row.acknowledged_by, row.acknowledged_at, row.note) == ("critical", "", None, "")
    with pytest.raises(InvalidEdit, match="has just become critical"):
        acknowledge_alert(environment="production", number=row.pk, note="", actor=ADA, seen="warning")
    taken = acknowledge_alert(environment="production", number=row.pk, note="", actor=ADA, seen="critical")
    assert taken.acknowledged_by == "ada"


@pytest.mark.parametrize("state", [AlertState.PENDING, AlertState.RESOLVED])
def test_only_an_alert_that_fires_can_be_acknowledged(state: AlertState) -> None:
    row = fire()
    Alert.objects.update(state=state)
    with pytest.raises(InvalidEdit, match=f"is {state}"):
        acknowledge_alert(environment="production", number=row.pk, note="I am on it", actor=ADA)


def test_an_alert_of_another_environment_is_not_found() -> None:
    row = fire()
    with pytest.raises(NotFound):
        acknowledge_alert(environment="staging", number=row.pk, note="I am on it", actor=ADA)


def test_old_alerts_are_forgotten_and_open_ones_are_not() -> None:
    fire()
    let_pass(86_400 * 100)
    assert forget() == 0
    measure(0.0)
    evaluate()
    let_pass(300)
    evaluate()
    assert forget() == 0
    let_pass(86_400 * 91)
    assert forget() == 1
    assert not Alert.objects.exists()
