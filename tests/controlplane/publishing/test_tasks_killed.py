"""Every task of the worker that changes something, killed at each step: nothing is lost or doubled."""

import io
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.breakers.models import Override, StreamPosition, Transition
from controlplane.breakers.override_in_redis import force_open_without_postgres, reset_without_postgres
from controlplane.breakers.overrides import override_breaker
from controlplane.celery import app
from controlplane.editing import edits
from controlplane.editing.plans import drafting
from controlplane.policies.drafts import Draft
from controlplane.policies.models import Environment, Tenant, TenantQuota
from controlplane.publishing.models import OutboxEntry
from controlplane.schedules.edits import schedule_change
from controlplane.schedules.models import Schedule
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import parse_override
from fuseboard.contract.words import OverrideMode
from tests.controlplane.publishing.test_publishing_crashes import killed_at, redis_is_right, set_limit
from tests.people import create_people

REVISION = "controlplane.editing.revise"
#: The last moment before the transaction of an edit is committed, and the first after it.
COMMIT = (f"after {REVISION}.notify", f"before {REVISION}.publish_promptly")
WHY: dict[str, Any] = {"environment": "production", "reason": "for a test"}


def run(task: str) -> None:
    app.loader.import_default_modules()
    app.tasks[task].apply(throw=True)


def each_killed(
    task: str, *steps: str, prepare: Callable[[int], Any], check: Callable[[int, Any, str], None]
) -> None:
    """For every step: prepare, kill the task there, run the next round, check."""
    for number, moment in enumerate(steps):
        when, _, step = moment.partition(" ")
        prepared = prepare(number)
        killed_at(step, before=when == "before", work=lambda: run(task))
        run(task)
        run(task)  # and what is done is not repeated
        check(number, prepared, moment)


def head() -> int:
    return Environment.objects.get(pk="production").revision


def actions(action: str, since: int) -> int:
    return Entry.objects.filter(action=action, revision__gt=since).count()


def test_the_sweep(production: str, text_limits: Any, ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = "controlplane.publishing.publish"

    def edit(number: int) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(
                f"{REVISION}.publish_promptly", lambda *_: None
            )  # as if that process were killed, too
            return set_limit(ada, 100 + number)

    def check(number: int, revision: int, tried: str) -> None:
        assert head() == revision, tried
        redis_is_right(text_limits)

    each_killed(
        "publishing.sweep_outbox",
        f"before {publish}.PUBLISH_CONFIG.run",
        f"after {publish}.PUBLISH_CONFIG.run",
        f"after {publish}.mark_published",
        prepare=edit,
        check=check,
    )


def test_the_reconciler_after_redis_lost_everything(
    production: str, text_limits: Any, ada: Any, hour: datetime
) -> None:
    set_limit(ada, 100)
    held = {"dependency": "openai", "mode": OverrideMode.FORCED_OPEN, "expires_at": hour, "actor": ada}
    revision = override_breaker(**held, **WHY)

    def check(number: int, _: Any, tried: str) -> None:
        assert head() == revision, tried
        redis_is_right(text_limits)
        override = parse_override(text_limits.get(keys.override("production", "openai")))
        assert override is not None, tried
        assert override.revision == revision, tried

    each_killed(
        "publishing.reconcile",
        "before controlplane.publishing.publish.PUBLISH_CONFIG.run",
        "before controlplane.breakers.enforce.apply_override",
        "after controlplane.breakers.enforce.apply_override",
        prepare=lambda _: text_limits.flushall(),
        check=check,
    )


def test_the_import_of_overrides_made_without_postgres(production: str, text_limits: Any, ada: Any) -> None:
    journal = keys.emergency("production")

    def act(number: int) -> int:
        since = head()
        force_open_without_postgres(
            dependency="openai", expires_at=timezone.now() + timedelta(minutes=20), actor=ada, **WHY
        )
        if number % 2:
            reset_without_postgres(dependency="openai", actor=ada, **WHY)
        return since

    def check(number: int, since: int, tried: str) -> None:
        assert text_limits.xlen(journal) == 0, tried
        assert actions("breaker.held", since) == 1, tried
        assert actions("breaker.reset", since) == number % 2, tried
        assert head() == since + 1 + number % 2, tried
        holds = Override.objects.filter(ended_at__isnull=True)
        assert holds.count() == (0 if number % 2 else 1), tried
        stored = parse_override(text_limits.get(keys.override("production", "openai")))
        assert (stored is None) == bool(number % 2), tried

    each_killed(
        "publishing.reconcile",
        *COMMIT,
        "before controlplane.breakers.override_in_redis._store",
        "after controlplane.breakers.override_in_redis._adopt",
        prepare=act,
        check=check,
    )


def test_the_end_of_an_override(production: str, text_limits: Any, ada: Any, hour: datetime) -> None:
    def hold(number: int) -> int:
        held = {"dependency": "openai", "mode": OverrideMode.FORCED_OPEN, "expires_at": hour}
        revision = override_breaker(**held, actor=ada, **WHY)
        past = timezone.now() - timedelta(seconds=1)
        held_since = past - timedelta(seconds=1)
        Override.objects.filter(ended_at__isnull=True).update(created_at=held_since, expires_at=past)
        return revision

    def check(number: int, since: int, tried: str) -> None:
        assert (actions("override.expired", since), head()) == (1, since + 1), tried
        assert not Override.objects.filter(ended_at__isnull=True).exists(), tried
        run("publishing.sweep_outbox")
        run("publishing.reconcile")
        assert not OutboxEntry.objects.filter(published_at__isnull=True).exists(), tried
        assert parse_override(text_limits.get(keys.override("production", "openai"))) is None, tried

    enforcing = "before controlplane.breakers.overrides.enforce_promptly"
    each_killed("breakers.expire_overrides", *COMMIT, enforcing, prepare=hold, check=check)


def test_the_end_of_a_quota(production: str, text_limits: Any, ada: Any, hour: datetime) -> None:
    def quota(number: int) -> int:
        set_limit(ada, 100 + number)
        common = {"tenant": "acme", "quota": "requests", "window_s": 60, "burst": 10, "actor": ada}
        edits.set_tenant_quota(limit=9_000, expires_at=hour, expected_version=None, **common, **WHY)
        TenantQuota.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        return head()

    def check(number: int, since: int, tried: str) -> None:
        assert (actions("tenant_quota.expired", since), head()) == (1, since + 1), tried
        found = TenantQuota.objects.get()
        assert (found.limit, found.expires_at) == (100 + number, None), tried
        run("publishing.sweep_outbox")
        redis_is_right(text_limits)

    writing = "after controlplane.editing.edits.expiry.write_changes"
    each_killed("schedules.run_due", writing, *COMMIT, prepare=quota, check=check)


def test_a_scheduled_change(production: str, text_limits: Any, ada: Any, hour: datetime) -> None:
    create_people("ada")
    set_limit(ada, 1)

    def plan(number: int) -> tuple[int, int]:
        document = {"tenants": {"acme": {"quotas": {"requests": {"limit": 500 + number, "window_s": 60}}}}}
        made = schedule_change(due_at=hour, document=document, actor=ada, **WHY)
        Schedule.objects.filter(state="waiting").update(due_at=timezone.now() - timedelta(seconds=1))
        return made.pk, head()

    def check(number: int, planned: tuple[int, int], tried: str) -> None:
        made = Schedule.objects.get(pk=planned[0])
        assert (made.state, made.revision, head()) == ("applied", planned[1] + 1, planned[1] + 1), tried
        assert TenantQuota.objects.get().limit == 500 + number, tried
        run("publishing.sweep_outbox")
        redis_is_right(text_limits)

    each_killed("schedules.run_due", *COMMIT, prepare=plan, check=check)


def test_an_uploaded_file(production: str, ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    create_people("ada")
    monkeypatch.setattr(drafting, "AT_ONCE_BYTES", 0)

    def ordered(number: int) -> tuple[Any, int]:
        file = io.BytesIO(f"tenant,tier\nc-{number}-a,free\nc-{number}-b,pro\n".encode())
        draft = drafting.upload(
            environment="production", filename="c.csv", stream=file, prune=False, actor=ada
        )
        run("policies.work_drafts")
        drafting.order(draft=draft.pk, reason="for a test", actor=ada)
        return draft.pk, head()

    def check(number: int, made: tuple[Any, int], tried: str) -> None:
        draft = Draft.objects.get(pk=made[0])
        assert (draft.state, draft.revision, head()) == ("applied", made[1] + 1, made[1] + 1), tried
        assert Tenant.objects.filter(key__startswith=f"c-{number}-").count() == 2, tried

    reading = "after controlplane.editing.plans.drafting.read_plan"
    each_killed("policies.work_drafts", reading, *COMMIT, prepare=ordered, check=check)


def test_the_history_of_breakers(production: str, text_limits: Any) -> None:
    stream = keys.transitions("production", "openai")

    def move(number: int) -> int:
        fields = {"from": "closed", "to": "open", "cause": "ratio", "server": "pod-1"}
        text_limits.xadd(stream, {**fields, "generation": number + 1, "at_us": 1_800_000_000_000_000})
        return number + 1

    def check(number: int, generation: int, tried: str) -> None:
        found = list(Transition.objects.order_by("generation").values_list("generation", flat=True))
        assert found == list(range(1, generation + 1)), tried
        assert StreamPosition.objects.get().last_id == text_limits.xrevrange(stream, count=1)[0][0], tried

    each_killed(
        "breakers.collect_transitions",
        "after controlplane.breakers.collect._read",
        "after controlplane.breakers.collect.Transition.objects.bulk_create",
        "after controlplane.breakers.collect.notify",
        prepare=move,
        check=check,
    )
