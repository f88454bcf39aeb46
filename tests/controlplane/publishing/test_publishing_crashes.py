"""A process is killed at every step between a form and Redis, and the sweep completes or drops its edit.

``STEPS`` names the steps. A child process makes the edit and kills itself with SIGKILL right before,
or right after, one step.
"""

import os
import signal
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import cycle
from typing import Any

import pytest
from django.db import connection, connections

from controlplane.breakers.overrides import override_breaker
from controlplane.editing import edits
from controlplane.policies.models import Environment, TenantQuota
from controlplane.publishing import publish
from controlplane.publishing.models import OutboxEntry
from controlplane.repair.tasks import reconcile_environment, sweep_outbox
from controlplane.repair.tenant_digests import reconcile_tenants
from fuseboard.contract import keys
from fuseboard.contract.policy import decode_tenant
from fuseboard.contract.words import OverrideMode
from tests.tenants import create_tenants
from tests.waiting import wait_until

#: In the order of an edit.
STEPS = (
    "controlplane.editing.revise.take_revision",
    "controlplane.editing.revise.record",
    "controlplane.editing.revise.store_revision",
    "controlplane.editing.revise.OutboxEntry.objects.create",
    "controlplane.editing.revise.notify",
    # From here on the transaction is committed.
    "controlplane.editing.revise.publish_promptly",
    "controlplane.publishing.publish.read_head",
    "controlplane.publishing.publish.take_snapshot",
    "controlplane.publishing.publish.PUBLISH_CONFIG.run",
    "controlplane.publishing.publish.mark_published",
)
COMMITTED_FROM = STEPS.index("controlplane.editing.revise.publish_promptly")


def find(step: str) -> tuple[Any, str]:
    """Return object and attribute. The longest prefix that is a module is imported."""
    parts = step.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:-1]:
            found = getattr(found, name)
        return found, parts[-1]
    raise LookupError(step)


def killed_at(step: str, *, before: bool, work: Callable[[], Any], nth: int = 1) -> None:
    """Run ``work`` in a child process that kills itself at the ``nth`` call of ``step``.

    Returns when Postgres has noticed, too: until then, the transaction of the child holds its locks.
    """
    connections.close_all()
    child = os.fork()
    if not child:
        connection.settings_dict["OPTIONS"]["application_name"] = f"killed-{os.getpid()}"
        calls = 0
        owner, name = find(step)
        whole = getattr(owner, name)

        def deadly(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth and before:
                os.kill(os.getpid(), signal.SIGKILL)
            found = whole(*args, **kwargs)
            if calls == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        try:
            setattr(owner, name, deadly)
            work()
        finally:
            os._exit(7)  # the step was not reached
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"{step} was not reached"
    assert os.WTERMSIG(status) == signal.SIGKILL
    wait_until(lambda: not _sessions_of(child), "Postgres ends the sessions of the killed process")


def _sessions_of(child: int) -> int:
    with connection.cursor() as cursor:
        counted = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        cursor.execute(counted, [f"killed-{child}"])
        (count,) = cursor.fetchone()
    return int(count)


def set_limit(ada: Any, limit: int, tenant: str = "acme") -> int:
    return edits.set_tenant_quota(
        environment="production",
        tenant=tenant,
        quota="requests",
        limit=limit,
        window_s=60,
        burst=10,
        expected_version=None,
        reason="for a test",
        actor=ada,
    )


def in_redis(store: Any, tenant: str = "acme") -> tuple[int, int]:
    """Return the revision in Redis, and the limit of the tenant there."""
    text = store.hget(keys.own_bucket("production", keys.tenant_bucket_number(tenant)), tenant)
    [limit] = decode_tenant(text.encode()).quotas
    return int(store.hget(keys.config_head("production"), "revision")), limit.limit


def redis_is_right(store: Any) -> None:
    row = Environment.objects.get(pk="production")
    assert in_redis(store) == (row.revision, TenantQuota.objects.get(tenant__key="acme").limit)
    assert not OutboxEntry.objects.filter(published_at__isnull=True).exists()
    revisions = list(OutboxEntry.objects.order_by("revision").values_list("revision", flat=True))
    assert revisions == list(range(1, row.revision + 1)), "a revision was lost, or taken twice"
    assert reconcile_tenants("production") == []


def test_an_edit_killed_at_any_step_is_complete_or_absent_and_the_sweep_publishes_it(
    production: str, text_limits: Any, ada: Any
) -> None:
    limit = 100
    for number, step in enumerate(STEPS):
        committed = number >= COMMITTED_FROM
        for before in (True, False):
            limit += 10
            revision = set_limit(ada, limit)
            killed_at(step, before=before, work=partial(set_limit, ada, limit + 1))

            tried = f"{'before' if before else 'after'} {step}"
            row = Environment.objects.get(pk="production")
            assert row.revision == revision + committed, tried
            assert TenantQuota.objects.get().limit == limit + committed, tried
            # Redis has the older revision completely, or the newer one completely.
            assert in_redis(text_limits) in ((revision, limit), (revision + 1, limit + 1)), tried

            sweep_outbox()
            redis_is_right(text_limits)
            # The next edit does not wait for anything that the dead process left.
            assert set_limit(ada, limit + 2) == row.revision + 1, tried
            assert in_redis(text_limits) == (row.revision + 1, limit + 2), tried


def test_a_publisher_killed_between_two_parts_of_a_large_configuration_leaves_the_old_head(
    production: str, text_limits: Any, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limit(ada, 100)
    names = [(f"tenant-{number}", "free", "") for number in range(150)]
    create_tenants(tenants=names, actor=ada)
    monkeypatch.setattr(publish, "TENANTS_PER_CALL", 20)
    for nth in (2, 100):
        text_limits.flushall()
        killed_at(
            "controlplane.publishing.publish.PUBLISH_CONFIG.run",
            before=False,
            nth=nth,
            work=partial(publish.publish_head, "production"),
        )
        assert text_limits.hget(keys.config_head("production"), "revision") is None
        set_limit(ada, 100 + nth)
        redis_is_right(text_limits)
        assert "staged" not in text_limits.hgetall(keys.config_head("production"))


def test_an_override_killed_before_redis_is_enforced_by_the_next_round(
    production: str, text_limits: Any, ada: Any, hour: Any
) -> None:
    modes = cycle((OverrideMode.FORCED_OPEN, OverrideMode.METRICS_ONLY))
    for step in (
        "controlplane.editing.revise.publish_promptly",
        "controlplane.publishing.publish.PUBLISH_CONFIG.run",
        "controlplane.breakers.overrides.enforce_promptly",
        "controlplane.breakers.enforce.enforce",
    ):
        for before, mode in zip((True, False), modes, strict=False):
            killed_at(
                step,
                before=before,
                work=partial(
                    override_breaker,
                    environment="production",
                    dependency="openai",
                    mode=mode,
                    expires_at=hour,
                    reason="for a test",
                    actor=ada,
                ),
            )
            sweep_outbox()
            reconcile_environment("production")
            assert mode.value in text_limits.get(keys.override("production", "openai")), step
            row = Environment.objects.get(pk="production")
            assert int(text_limits.hget(keys.config_head("production"), "revision")) == row.revision
