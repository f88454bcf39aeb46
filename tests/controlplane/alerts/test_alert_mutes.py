"""A mute hides news from receivers for its time, and nothing that still fires is lost when it ends."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from django.utils import timezone

from controlplane.alerts import evaluator
from controlplane.alerts.evaluator import forget
from controlplane.alerts.lifecycle import AlertEvent
from controlplane.alerts.models import Alert, Delivery, Mute
from controlplane.alerts.people.mute_edits import MuteValues, add_mute, end_mute, preview_mute
from controlplane.alerts.state.mutes import active_until, matches, mute_of, period_of
from controlplane.alerts.state.stored_alerts import open_alerts
from controlplane.audit.models import Entry
from controlplane.editing.edits import create_environment
from controlplane.errors import InvalidEdit, NotFound
from tests.controlplane.alerts.delivery.test_alert_deliveries import alert, receiver
from tests.controlplane.alerts.test_alert_evaluator import ADA, evaluate, let_pass, measure

MONDAY = datetime(2026, 5, 4, 22, tzinfo=UTC)
WHY = "the vendor maintains its database"

needs_postgres = pytest.mark.django_db


def mute(**fields: Any) -> Mute:
    usual = {"rule": "429", "starts_at": MONDAY, "ends_at": MONDAY + timedelta(hours=2)}
    return Mute(pk=1, environment="production", by="ada", reason=WHY, **(usual | fields))


def about(key: str = "429", **fields: Any) -> Alert:
    return Alert(**({"key": key, "level": 2, "subject_kind": "servers"} | fields))


@pytest.mark.parametrize(
    ("fields", "alert", "matched"),
    [
        ({}, about(), True),
        ({}, about("lag"), False),
        (
            {"rule": "", "dependency": "openai"},
            about("open:openai", subject_kind="breaker", subject_name="openai"),
            True,
        ),
        (
            {"rule": "near", "dependency": "openai"},
            about("open:openai", subject_kind="breaker", subject_name="openai"),
            False,
        ),
        (
            {"rule": "", "dependency": "web-1"},
            about("silent", subject_kind="server", subject_name="web-1"),
            False,
        ),
        ({"rule": "", "pod": "web-1"}, about("silent", pods=["web-1"]), True),
        ({"rule": "", "pod": "web-1"}, about("silent", pods=["web-1", "web-2"]), False),
        ({"rule": "", "pod": "web-*"}, about("silent", pods=["web-1", "web-2"]), True),
        ({"rule": "", "pod": "web-*"}, about("silent", pods=[]), False),
        ({"ends_at": MONDAY + timedelta(hours=1)}, about(level=3), True),
        ({"ends_at": MONDAY + timedelta(hours=2)}, about(level=3), False),
    ],
)
def test_an_alert_matches_if_everything_that_is_given_matches(
    fields: dict[str, Any], alert: Alert, matched: bool
) -> None:
    assert matches(mute(**fields), alert) is matched


def test_a_mute_applies_in_its_period_and_a_weekly_one_in_each() -> None:
    once, weekly = mute(), mute(weekly=True)
    for at, applies in (
        (MONDAY - timedelta(seconds=1), False),
        (MONDAY, True),
        (MONDAY + timedelta(hours=2), False),
    ):
        assert bool(active_until(once, at)) is applies
        assert bool(active_until(weekly, at)) is applies
        later = at + timedelta(days=70)
        assert active_until(once, later) is None
        assert bool(active_until(weekly, later)) is (applies and later >= MONDAY)
    assert period_of(weekly, MONDAY + timedelta(days=1))[0] == MONDAY + timedelta(days=7)
    # A person ended the first period: the second one applies.
    weekly.skipped_until = weekly.ends_at
    assert active_until(weekly, MONDAY + timedelta(hours=1)) is None
    assert period_of(weekly, MONDAY)[0] == MONDAY + timedelta(days=7)
    assert active_until(weekly, MONDAY + timedelta(days=7)) == MONDAY + timedelta(days=7, hours=2)
    weekly.ended_at = MONDAY
    assert active_until(weekly, MONDAY + timedelta(days=7)) is None


def test_of_several_mutes_the_one_that_lasts_longest_is_displayed() -> None:
    longer = mute(ends_at=MONDAY + timedelta(hours=5))
    longer.pk = 2
    found = mute_of([mute(), longer], about(), MONDAY)
    assert found is not None
    assert (found.mute, found.until) == (2, longer.ends_at)


def starts() -> Alert:
    """An alert that fires while a mute applies."""
    measure(1.0)
    evaluate()
    let_pass(120)
    measure(1.0)
    assert evaluate() == [("429", AlertEvent.FIRED)]
    return Alert.objects.get()


def kinds() -> list[str]:
    return list(Delivery.objects.order_by("place", "pk").values_list("kind", flat=True))


@needs_postgres
def test_a_muted_alert_is_sent_when_the_mute_ends_and_still_fires(production: str) -> None:
    receiver(least_level=1)
    row = add_mute(environment="production", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    starts()
    assert kinds() == []
    [shown] = open_alerts("production")
    assert shown.muted is not None
    assert (shown.muted.by, shown.muted.reason, shown.muted.until) == ("ada", WHY, row.ends_at)
    # It ends by its time, and no process has to end it.
    Mute.objects.update(ends_at=timezone.now())
    assert open_alerts("production")[0].muted is None
    evaluate()
    evaluate()
    assert kinds() == ["fired"]


@needs_postgres
def test_a_mute_of_another_environment_changes_nothing(production: str) -> None:
    receiver(least_level=1)
    create_environment(environment="staging", reason="for a test", actor=ADA)
    add_mute(environment="staging", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    starts()
    assert kinds() == ["fired"]
    assert open_alerts("production")[0].muted is None
    with pytest.raises(NotFound):
        end_mute(environment="production", number=Mute.objects.get().pk, reason=WHY, actor=ADA)
    assert preview_mute(environment="staging", values=MuteValues(rule="429")).open == []


@needs_postgres
def test_a_mute_that_a_person_ends_is_over_at_once(production: str) -> None:
    receiver(least_level=1)
    row = add_mute(environment="production", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    starts()
    end_mute(environment="production", number=row.pk, reason="it is maintained", actor=ADA)
    evaluate()
    assert kinds() == ["fired"]
    with pytest.raises(NotFound):
        end_mute(environment="production", number=row.pk, reason="it is maintained", actor=ADA)
    actions = list(Entry.objects.filter(target_kind="mute").order_by("id").values_list("action", flat=True))
    assert actions == ["mute.created", "mute.ended"]


@needs_postgres
def test_one_period_of_a_weekly_mute_ends_and_the_others_do_not(production: str) -> None:
    receiver(least_level=1)
    values = MuteValues(rule="429", weekly=True)
    row = add_mute(environment="production", values=values, reason=WHY, actor=ADA)
    starts()
    end_mute(environment="production", number=row.pk, reason=WHY, actor=ADA, only_period=True)
    evaluate()
    assert kinds() == ["fired"]
    row.refresh_from_db()
    assert (row.ended_at, row.skipped_until) == (None, row.ends_at)
    assert active_until(row, row.starts_at + timedelta(days=7)) is not None
    entry = Entry.objects.get(action="mute.period_ended")
    assert entry.after["skipped_until"] == row.ends_at.isoformat()
    with pytest.raises(InvalidEdit, match="does not apply now"):
        end_mute(environment="production", number=row.pk, reason=WHY, actor=ADA, only_period=True)
    once = add_mute(environment="production", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    with pytest.raises(InvalidEdit, match="not repeated"):
        end_mute(environment="production", number=once.pk, reason=WHY, actor=ADA, only_period=True)


@needs_postgres
def test_an_alert_that_ends_during_its_mute_is_never_sent(production: str) -> None:
    receiver(least_level=1)
    add_mute(environment="production", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    starts()
    measure(0.0)
    evaluate()
    let_pass(400)
    measure(0.0)
    assert evaluate() == [("429", AlertEvent.RESOLVED)]
    assert kinds() == []


@needs_postgres
def test_receivers_that_got_fired_get_resolved_during_a_mute(production: str) -> None:
    receiver(least_level=1)
    starts()
    Delivery.objects.update(state="sent", attempts=1)
    add_mute(environment="production", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    measure(5.0)
    assert evaluate() == [("429", AlertEvent.WORSENED)]
    assert kinds() == ["fired"]
    measure(0.0)
    evaluate()
    let_pass(400)
    measure(0.0)
    evaluate()
    assert kinds() == ["fired", "resolved"]


@needs_postgres
def test_what_worsened_during_a_mute_is_sent_once_after_it(production: str) -> None:
    receiver(least_level=1)
    starts()
    row = add_mute(environment="production", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    measure(5.0)
    evaluate()
    end_mute(environment="production", number=row.pk, reason="it is maintained", actor=ADA)
    evaluate()
    evaluate()
    assert kinds() == ["fired", "worsened"]


@pytest.mark.django_db(transaction=True)
def test_an_evaluation_that_dies_after_a_mute_sends_the_alert_once(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver(least_level=1)
    row = add_mute(environment="production", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    starts()
    end_mute(environment="production", number=row.pk, reason="it is maintained", actor=ADA)
    notify = evaluator.notify

    def dies(*given: Any) -> None:
        notify(*given)
        raise DatabaseError("the server closed the connection unexpectedly")

    with monkeypatch.context() as patched:
        patched.setattr(evaluator, "notify", dies)
        with pytest.raises(DatabaseError):
            evaluate()
    assert (kinds(), Alert.objects.get().notified) == ([], "")
    evaluate()
    evaluate()
    assert kinds() == ["fired"]


@needs_postgres
def test_a_preview_names_open_alerts_and_counts_past_ones(production: str) -> None:
    alert("open:openai", subject_kind="breaker", subject_name="openai")
    alert("open:payments-api", subject_kind="breaker", subject_name="payments-api")
    now = timezone.now()
    for days in (1, 29, 31):
        alert("open:openai", state="resolved", resolved_at=now - timedelta(days=days))
    found = preview_mute(environment="production", values=MuteValues(rule="open"))
    assert sorted(row.key for row in found.open) == ["open:openai", "open:payments-api"]
    assert (found.past, found.more) == (2, False)
    found = preview_mute(environment="production", values=MuteValues(rule="open", dependency="openai"))
    assert [row.key for row in found.open] == ["open:openai"]
    assert not Mute.objects.exists()


@needs_postgres
@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "rule"),
        ({"rule": "unknown"}, "rule"),
        ({"rule": "soon"}, "rule"),
        ({"dependency": "a\x07b"}, "dependency"),
        ({"pod": "we*b"}, "pod"),
        ({"pod": "w*"}, "pod"),
        ({"rule": "lag", "minutes": 0}, "minutes"),
        ({"rule": "lag", "minutes": 7 * 24 * 60 + 1}, "minutes"),
        ({"rule": "lag", "minutes": 24 * 60 + 1, "weekly": True}, "minutes"),
        ({"rule": "lag", "starts_at": MONDAY - timedelta(days=900)}, "starts_at"),
        ({"rule": "lag", "starts_at": MONDAY + timedelta(days=9_000)}, "starts_at"),
    ],
)
def test_wrong_values_are_named(production: str, values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEdit) as refused:
        add_mute(environment="production", values=MuteValues(**values), reason=WHY, actor=ADA)
    assert list(refused.value.errors) == [field]
    assert not Mute.objects.exists()


@needs_postgres
def test_mutes_are_bounded_and_old_ones_are_forgotten(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.alerts.people.mute_edits.MAX_MUTES", 1)
    add_mute(environment="production", values=MuteValues(rule="lag", weekly=True), reason=WHY, actor=ADA)
    with pytest.raises(InvalidEdit, match="at most 1 mutes"):
        add_mute(environment="production", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    old = timezone.now() - timedelta(days=91)
    Mute.objects.update(ends_at=old)
    forget()
    assert Mute.objects.count() == 1, "a weekly one ends by hand only"
    Mute.objects.update(weekly=False)
    forget()
    assert not Mute.objects.exists()
