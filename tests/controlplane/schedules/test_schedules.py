"""Temporary quotas and scheduled changes: on time, announced, and never lost silently."""

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.proposals import Proposed
from controlplane.approvals.rules import set_approvals
from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.plans import apply_plan, export_plan, plan_from_document
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.effective import effective
from controlplane.policies.models import Environment, TenantQuota
from controlplane.schedules import due
from controlplane.schedules import edits as schedule_edits
from controlplane.schedules.due import _fail, announce, applied, failed, run_due
from controlplane.schedules.edits import acknowledge_failure, cancel_schedule, schedule_change
from controlplane.schedules.models import Needs, Schedule
from controlplane.schedules.worker_backup import LATE_S, make_overdue
from controlplane.spending.models import Budget
from controlplane.status.scheduled_changes import upcoming
from tests.people import create_people
from tests.squashed import earlier_files

WHY: dict[str, Any] = {"environment": "production", "reason": "for a sale in spring"}
MORE = {"tenants": {"acme": {"quotas": {"requests": {"limit": 9_000, "window_s": 60}}}}}


@pytest.fixture(autouse=True)
def _ada(production: str) -> None:
    """The rights of the author count when a change is due, so there is an account."""
    create_people("ada")


def quota(ada: Any, limit: int, **more: Any) -> int:
    return edits.set_tenant_quota(
        tenant="acme",
        quota="requests",
        limit=limit,
        window_s=60,
        burst=10,
        expected_version=None,
        actor=ada,
        **WHY,
        **more,
    )


def head() -> int:
    return Environment.objects.get(pk="production").revision


def limit_of(store: Any) -> int | None:
    from tests.controlplane.publishing.test_publishing import record

    quotas = record(store, "acme").quotas
    return quotas[0].limit if quotas else None


def pass_time() -> None:
    """Make them due now."""
    past = timezone.now() - timedelta(seconds=1)
    TenantQuota.objects.filter(expires_at__isnull=False).update(expires_at=past)
    Schedule.objects.filter(state="waiting").update(due_at=past)


def actions() -> list[str]:
    return list(Entry.objects.order_by("id").values_list("action", flat=True))


def test_after_a_temporary_quota_the_quota_of_the_tier_applies(
    production: str, ada: Any, hour: datetime, text_limits: Any
) -> None:
    quota(ada, 9_000, expires_at=hour)
    found = {value.name: value for value in effective("production", "acme")}["quotas.requests.limit"]
    assert (found.value, found.source, found.until, found.instead_of) == (
        9_000,
        "expiring override",
        hour,
        1_000,
    )
    run_due()
    assert limit_of(text_limits) == 9_000
    pass_time()
    before = head()
    run_due()
    run_due()
    assert limit_of(text_limits) is None
    assert head() == before + 1
    [entry] = Entry.objects.filter(action="tenant_quota.expired")
    assert (entry.actor, entry.target_name, entry.revision) == ("fuseboard", "acme", before + 1)


def test_after_a_temporary_quota_the_permanent_one_applies(
    production: str, ada: Any, hour: datetime, text_limits: Any
) -> None:
    quota(ada, 300)
    quota(ada, 9_000, expires_at=hour)
    # Extended and changed: the permanent one still applies afterwards.
    quota(ada, 8_000, expires_at=hour + timedelta(hours=1))
    pass_time()
    run_due()
    assert limit_of(text_limits) == 300
    assert TenantQuota.objects.get().expires_at is None


def test_an_edit_without_an_end_makes_a_quota_permanent(production: str, ada: Any, hour: datetime) -> None:
    quota(ada, 9_000, expires_at=hour)
    quota(ada, 8_000)
    pass_time()
    before = head()
    run_due()
    assert (head(), TenantQuota.objects.get().limit) == (before, 8_000)


def test_a_plan_can_contain_the_end_of_a_quota(production: str, ada: Any, hour: datetime) -> None:
    quota(ada, 300)
    text = {"tenants": {"acme": {"quotas": {"requests": {"limit": 7, "expires_at": hour.isoformat()}}}}}
    apply_plan(plan=plan_from_document(text), expected_revision=None, actor=ada, **WHY)
    assert "".join(export_plan("production")).count("expires_at") == 1
    pass_time()
    run_due()
    assert TenantQuota.objects.get().limit == 300
    edits.rollback(to_revision=head() - 1, expected_revision=None, actor=ada, **WHY)
    again = TenantQuota.objects.get()
    assert (again.limit, again.returns_to["limit"]) == (7, 300)
    run_due()
    assert TenantQuota.objects.get().limit == 300, "what comes back has ended all the same"


@pytest.mark.parametrize("zone", ["+02:00", "Z", "-09:30"])
def test_an_edit_with_the_end_in_any_time_zone_is_reverted(
    production: str, ada: Any, hour: datetime, zone: str
) -> None:
    """History kept the time as it was written, and the revert took that for another edit."""
    end = hour.astimezone(datetime.fromisoformat(f"2030-01-01T00:00{zone}").tzinfo)
    written = end.isoformat().replace("+00:00", "Z") if zone == "Z" else end.isoformat()
    text = {
        "tenants": {"acme": {"quotas": {"requests": {"limit": 7, "window_s": 60, "expires_at": written}}}}
    }
    quota(ada, 300)
    number = apply_plan(plan=plan_from_document(text), expected_revision=None, actor=ada, **WHY)
    assert TenantQuota.objects.get().expires_at == hour
    again = apply_plan(plan=plan_from_document(text), expected_revision=None, actor=ada, **WHY)
    assert again == number, "the same end, so nothing changes"
    made = edits.revert(number=number, expected_revision=None, actor=ada, **WHY)
    assert (made.kept, TenantQuota.objects.get().limit) == ([], 300)


def test_an_end_outside_of_the_calendar_is_refused(production: str, ada: Any) -> None:
    for end in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-14:00"):
        columns = {"limit": 7, "window_s": 60, "expires_at": end}
        with pytest.raises(InvalidEdit, match="Choose a time"):
            apply_plan(
                plan=plan_from_document({"tenants": {"acme": {"quotas": {"requests": columns}}}}),
                expected_revision=None,
                actor=ada,
                **WHY,
            )


@pytest.mark.parametrize("delta", [timedelta(seconds=-1), timedelta(days=401)])
def test_an_invalid_end_is_refused(production: str, ada: Any, delta: timedelta) -> None:
    with pytest.raises(InvalidEdit, match="expires_at"):
        quota(ada, 5, expires_at=timezone.now() + delta)
    with pytest.raises(InvalidEdit, match="time zone"):
        quota(ada, 5, expires_at=datetime(2100, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidEdit, match="due_at"):
        schedule_change(due_at=timezone.now() + delta, document=MORE, actor=ada, **WHY)
    assert head() == 3


def test_a_scheduled_change_is_applied_once_when_it_is_due(
    production: str, ada: Any, hour: datetime, text_limits: Any
) -> None:
    quota(ada, 300)
    made = schedule_change(due_at=hour, document=MORE, actor=ada, **WHY)
    assert made.title == "tenant acme"
    before = head()
    run_due()
    assert limit_of(text_limits) == 300
    pass_time()
    counted = applied._value.get()
    run_due()
    run_due()
    made.refresh_from_db()
    assert (made.state, made.revision, head()) == ("applied", before + 1, before + 1)
    assert limit_of(text_limits) == 9_000
    assert applied._value.get() == counted + 1
    [entry] = Entry.objects.filter(revision=before + 1)
    assert (entry.actor, entry.origin, entry.reason) == ("ada", "celery", WHY["reason"])


def test_a_change_that_is_no_longer_valid_fails_with_an_alert_and_changes_nothing(
    production: str, ada: Any, hour: datetime, caplog: Any
) -> None:
    edits.create_tier(tier="gold", title="", priority=50, actor=ada, **WHY)
    made = schedule_change(due_at=hour, document={"tenants": {"acme": {"tier": "gold"}}}, actor=ada, **WHY)
    good = schedule_change(due_at=hour, document={"tenants": {"acme": {"title": "A"}}}, actor=ada, **WHY)
    edits.rollback(to_revision=3, expected_revision=None, actor=ada, **WHY)
    pass_time()
    counted = failed._value.get()
    run_due()
    made.refresh_from_db()
    assert made.state == "failed"
    assert "There is no tier 'gold'" in made.error
    assert failed._value.get() == counted + 1
    assert "schedule.failed" in actions()
    assert "schedule.failed" in caplog.text
    good.refresh_from_db()
    assert good.state == "applied", "one that fails does not hold up the next"
    acknowledge_failure(schedule=made.pk, actor=ada, **WHY)
    made.refresh_from_db()
    assert made.seen
    run_due()
    assert failed._value.get() == counted + 1


def test_a_cancelled_change_is_not_applied(production: str, ada: Any, hour: datetime) -> None:
    made = schedule_change(due_at=hour, document=MORE | {"tenants": {"n": {"tier": "pro"}}}, actor=ada, **WHY)
    cancel_schedule(schedule=made.pk, actor=ada, **WHY)
    before = head()
    pass_time()
    run_due()
    assert head() == before
    with pytest.raises(InvalidEdit, match="already cancelled"):
        cancel_schedule(schedule=made.pk, actor=ada, **WHY)
    with pytest.raises(NotFound):
        cancel_schedule(schedule=made.pk + 1, actor=ada, **WHY)
    assert actions()[-2:] == ["change.scheduled", "schedule.cancelled"]


@pytest.mark.parametrize(
    "document",
    [{"tenants": {"acme": {"tier": "nowhere"}}}, {"tenants": {"acme": {"tier": "pro"}}}, {"nope": 1}, {}],
)
def test_an_invalid_change_cannot_be_scheduled(
    production: str, ada: Any, hour: datetime, document: Any
) -> None:
    with pytest.raises(InvalidEdit):
        schedule_change(due_at=hour, document=document, actor=ada, **WHY)
    assert not Schedule.objects.exists()


def announce_in(hours: float, monkeypatch: pytest.MonkeyPatch) -> None:
    later = datetime.now(UTC) + timedelta(hours=hours)
    with monkeypatch.context() as patched:
        patched.setattr(timezone, "now", lambda: later)
        announce()


def test_due_changes_and_ending_quotas_are_announced_once(
    production: str, ada: Any, settings: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota(ada, 300, expires_at=datetime.now(UTC) + timedelta(hours=3))
    schedule_change(due_at=timezone.now() + timedelta(hours=3), document=MORE, actor=ada, **WHY)
    announce()
    assert "tenant_quota.ends_soon" not in actions()
    settings.ANNOUNCE_S = 4 * 3600
    announce()
    # The person who has just planned it knows.
    assert "tenant_quota.ends_soon" not in actions()
    assert "schedule.due_soon" not in actions()
    announce_in(2, monkeypatch)
    announce_in(2, monkeypatch)
    assert actions().count("tenant_quota.ends_soon") == 1
    assert actions().count("schedule.due_soon") == 1
    assert "tenant_quota.ends_soon" in caplog.text
    # Another edit of the tenant does not announce it again; another end does.
    title = plan_from_document({"tenants": {"acme": {"title": "Acme"}}})
    apply_plan(plan=title, expected_revision=None, actor=ada, **WHY)
    announce()
    assert actions().count("tenant_quota.ends_soon") == 1
    ends = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    sooner = plan_from_document({"tenants": {"acme": {"quotas": {"requests": {"expires_at": ends}}}}})
    apply_plan(plan=sooner, expected_revision=None, actor=ada, **WHY)
    announce_in(1.5, monkeypatch)
    assert actions().count("tenant_quota.ends_soon") == 2


def test_the_status_reads_scheduled_changes_without_their_plans(
    production: str, ada: Any, django_assert_max_num_queries: Any
) -> None:
    made = schedule_change(due_at=timezone.now() + timedelta(minutes=10), document=MORE, actor=ada, **WHY)
    with django_assert_max_num_queries(2) as asked:
        [change] = upcoming("production")
    assert (change.key, change.title) == (f"schedule {made.pk}", "Scheduled change: tenant acme")
    assert change.at == made.due_at.timestamp()
    assert not any('"document"' in query["sql"] for query in asked.captured_queries)


def test_scheduled_changes_are_not_recorded_as_sql(
    production: str, ada: Any, settings: Any, hour: datetime
) -> None:
    settings.ANNOUNCE_S = 7_200
    by_this_test = Entry.objects.filter(origin="sql").count()
    made = [
        schedule_change(due_at=hour, document={"tenants": {name: {"tier": "gold"}}, **new}, actor=ada, **WHY)
        for name, new in (("a", {"tiers": {"gold": {}}}), ("acme", {"tiers": {"gold": {}}}))
    ]
    quota(ada, 300, expires_at=hour)
    run_due()
    cancel_schedule(schedule=made[0].pk, actor=ada, **WHY)
    _fail(made[1].pk, "no tier gold")
    acknowledge_failure(schedule=made[1].pk, actor=ada, **WHY)
    assert Entry.objects.filter(origin="sql").count() == by_this_test


def test_a_change_that_another_edit_has_already_made_is_not_recorded_as_sql(
    production: str, ada: Any, hour: datetime
) -> None:
    made = [
        schedule_change(due_at=hour + timedelta(seconds=second), document=MORE, actor=ada, **WHY)
        for second in range(2)
    ]
    pass_time()
    by_this_test = Entry.objects.filter(origin="sql").count()
    run_due()
    assert {Schedule.objects.get(pk=row.pk).state for row in made} == {"applied"}
    assert Entry.objects.filter(origin="sql").count() == by_this_test


def test_the_web_process_applies_what_the_worker_does_not(
    production: str, ada: Any, hour: datetime, text_limits: Any
) -> None:
    quota(ada, 300, expires_at=hour)
    made = schedule_change(due_at=hour, document={"tenants": {"later": {"tier": "free"}}}, actor=ada, **WHY)
    assert not make_overdue()
    pass_time()
    assert not make_overdue(), "the worker has some seconds to do it first"
    past = timezone.now() - timedelta(seconds=LATE_S + 1)
    TenantQuota.objects.filter(expires_at__isnull=False).update(expires_at=past)
    Schedule.objects.filter(state="waiting").update(due_at=past)
    assert make_overdue()
    assert limit_of(text_limits) is None
    assert Schedule.objects.get(pk=made.pk).state == "applied"
    assert not make_overdue()


def test_the_web_process_ends_raises_of_budgets_that_the_worker_does_not(production: str, ada: Any) -> None:
    edit: dict[str, Any] = {"budget": "pro-day", "actor": ada, **WHY}
    edits.set_budget(tier="pro", amount=5, period="day", expected_version=0, **edit)
    edits.raise_budget(amount=9, minutes=60, expected_version=None, **edit)
    assert not make_overdue()
    Budget.objects.update(raised_until=timezone.now() - timedelta(seconds=LATE_S + 1))
    assert make_overdue()
    assert Budget.objects.get().raised_to is None
    assert not make_overdue()


def test_the_worker_knows_every_periodic_task() -> None:
    from controlplane.celery import app

    app.loader.import_default_modules()
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= app.tasks.keys()


def test_times_of_a_scheduled_change_are_checked_against_its_own_time(production: str, ada: Any) -> None:
    """A part may observe for 7 days from the moment of the change, not from now; a quota ends after it."""

    def schedule(due_at: datetime, document: dict[str, Any]) -> Schedule:
        return schedule_change(due_at=due_at, document=document, actor=ada, **WHY)

    def observing(until: datetime) -> dict[str, Any]:
        until_us = int(until.timestamp() * 1_000_000)
        return {"protection": {"shedding": {}, "observe": {"shedding_until_us": until_us}}}

    far = timezone.now() + timedelta(days=30)
    row = schedule(far, observing(far + timedelta(days=1)))
    assert row.state == "waiting"
    with pytest.raises(InvalidEdit, match="at most 7 days"):
        schedule(far, observing(far + timedelta(days=8)))
    ends = {"expires_at": (far - timedelta(days=1)).isoformat(), "limit": 9_000, "window_s": 60}
    with pytest.raises(InvalidEdit, match="in the future"):
        schedule(far, {"tenants": {"acme": {"quotas": {"requests": ends}}}})


@pytest.mark.parametrize("needs", [Needs.NEW, Needs.PRESENT])
def test_what_another_person_created_or_removed_before_it_is_due_stays(
    production: str, ada: Any, hour: datetime, needs: Needs
) -> None:
    gold: dict[str, Any] = {"environment": "production", "tier": "gold", "title": "Theirs", "actor": ada}
    if needs == Needs.PRESENT:
        edits.create_tier(priority=7, reason="for a test", **gold)
    document = {"tiers": {"gold": {"title": "Gold", "priority": 80}}}
    made = schedule_change(due_at=hour, document=document, needs=needs, actor=ada, **WHY)
    if needs == Needs.NEW:
        edits.create_tier(priority=7, reason="for a test", **gold)
    else:
        edits.remove_entity(kind="tier", name="gold", actor=ada, **WHY)
    before = head()
    pass_time()
    run_due()
    made.refresh_from_db()
    assert (made.state, head()) == ("failed", before)
    said = {"new": "has created tier gold since", "present": "has removed tier gold since"}
    assert said[needs] in made.error


def test_of_two_workers_one_makes_a_request_of_a_change_that_needs_approval(
    production: str, ada: Any, hour: datetime, monkeypatch: Any
) -> None:
    """Each made one, and two people could apply the change twice."""
    made = schedule_change(due_at=hour, document=MORE, actor=ada, **WHY)
    create_people("bob")
    set_approvals(needed=1, actor=ada, **WHY)
    pass_time()
    real = due.apply_plan

    def after_another_worker(**given: Any) -> int:
        monkeypatch.setattr(due, "apply_plan", real)
        run_due()
        return real(**given)

    monkeypatch.setattr(due, "apply_plan", after_another_worker)
    run_due()
    made.refresh_from_db()
    assert (made.state, made.request) == ("proposed", ChangeRequest.objects.get().pk)
    assert actions().count("schedule.proposed") == 1


def test_a_form_that_is_sent_twice_becomes_one_request(
    production: str, ada: Any, hour: datetime, monkeypatch: Any
) -> None:
    create_people("bob")
    set_approvals(needed=1, actor=ada, **WHY)
    check = schedule_edits._check_is_not_proposed
    said: list[type[Exception]] = []

    def slow_check(*given: Any) -> None:
        check(*given)
        time.sleep(0.3)

    def send() -> None:
        try:
            schedule_change(due_at=hour, document=MORE, actor=ada, **WHY)
        except (Proposed, InvalidEdit) as error:
            said.append(type(error))
        finally:
            connection.close()

    monkeypatch.setattr(schedule_edits, "_check_is_not_proposed", slow_check)
    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # The one that is refused may say so first.
    assert set(said) == {Proposed, InvalidEdit}
    assert ChangeRequest.objects.count() == 1


def test_the_release_before_takes_a_change_that_became_a_request_as_failed(
    production: str, ada: Any, hour: datetime
) -> None:
    """The reverse of the migration failed with the first such change."""
    made = schedule_change(due_at=hour, document=MORE, actor=ada, **WHY)
    Schedule.objects.update(state="proposed", request=7)
    newest = [("schedules", "0004_wait_for_approval")]
    try:
        with earlier_files():
            MigrationExecutor(connection).migrate([("schedules", "0003_remember_what_was_seen")])
        with connection.cursor() as cursor:
            cursor.execute("SELECT state, error FROM schedules_schedule WHERE id = %s", [made.pk])
            assert cursor.fetchone() == ("failed", "Waiting for approval: change request 7.")
    finally:
        MigrationExecutor(connection).migrate(newest)
