import os
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.breakers.overrides import override_breaker
from controlplane.celery import app
from controlplane.editing import edits
from controlplane.policies.document import environment_of, policy_of, tenant_records
from controlplane.publishing.models import OutboxEntry
from controlplane.publishing.publish import read_head
from controlplane.redis.scripts import limits as client_of_limits
from controlplane.repair.tasks import prune_outbox, reconcile, sweep_outbox
from fuseboard.contract.words import OverrideMode
from tests.tenants import create_tenants
from tests.waiting import PATIENCE_S


def test_every_scheduled_task_exists_and_is_dropped_when_late() -> None:
    app.loader.import_default_modules()
    for entry in app.conf.beat_schedule.values():
        assert entry["task"] in app.tasks
        assert entry["options"]["expires"] >= entry["schedule"]
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"


def test_an_edit_does_not_wait_long_for_a_hanging_redis(
    production: str, ada: Any, valkey: Any, settings: Any
) -> None:
    settings.REDIS_URL = valkey.url
    sweep_outbox()
    os.kill(valkey.process.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        revision = override_breaker(
            environment="production",
            dependency="openai",
            mode=OverrideMode.FORCED_OPEN,
            reason="vendor is having an incident",
            expires_at=timezone.now() + timedelta(minutes=5),
            actor=ada,
        )
        # One question each for the override and for the configuration, of half a second; Redis never answers.
        assert time.monotonic() - begun < PATIENCE_S
    finally:
        os.kill(valkey.process.pid, signal.SIGCONT)
    assert OutboxEntry.objects.filter(published_at__isnull=True).get().revision == revision
    sweep_outbox()
    reconcile()
    assert read_head(client_of_limits(), "production").revision == revision


def test_a_redis_that_is_down_is_reported_and_stops_no_task(production: str, settings: Any, ada: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1"
    edits.suspend_tenant(environment="production", tenant="acme", reason="for a test", actor=ada)
    sweep_outbox()
    reconcile()
    assert OutboxEntry.objects.filter(published_at__isnull=True).exists()


def test_published_entries_are_kept_for_a_week(production: str) -> None:
    before = OutboxEntry.objects.count()
    prune_outbox()
    assert OutboxEntry.objects.count() == before
    OutboxEntry.objects.update(published_at=timezone.now() - timedelta(days=8))
    prune_outbox()
    assert not OutboxEntry.objects.exists()


@pytest.mark.parametrize("more", [1, 20])
def test_reading_the_configuration_takes_few_queries(
    production: str, ada: Any, more: int, django_assert_max_num_queries: Any
) -> None:
    create_tenants(
        tenants=[(f"tenant-{number}", "free", "") for number in range(more)],
        actor=ada,
    )
    for number in range(more):
        edits.create_dependency(
            environment="production",
            dependency=f"vendor-{number}",
            kind="external",
            reason="for a test",
            actor=ada,
        )
    with django_assert_max_num_queries(11):
        assert len(policy_of(environment_of("production")).dependencies) == more + 1
    with django_assert_max_num_queries(3):
        assert len(tenant_records("production")) == more + 1
