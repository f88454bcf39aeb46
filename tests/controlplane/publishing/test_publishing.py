import random
import threading
from typing import Any

import pytest
from django.db import connection, connections

from controlplane.editing import edits, revise
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies.models import Environment, Tenant, TenantQuota
from controlplane.publishing import publish
from controlplane.publishing.models import OutboxEntry
from controlplane.publishing.publish import publish_head
from controlplane.publishing.snapshot import take_snapshot
from controlplane.repair.tasks import reconcile_environment, sweep_outbox
from fuseboard.contract import keys
from fuseboard.contract.policy import decode_policy, decode_tenant, hash_of
from tests.tenants import create_tenants


def head(store: Any) -> dict[str, str]:
    return store.hgetall(keys.config_head("production"))


def record(store: Any, tenant: str) -> Any:
    number = keys.tenant_bucket_number(tenant)
    texts = [store.hget(key("production", number), tenant) for key in (keys.tenant_bucket, keys.own_bucket)]
    assert texts.count(None) >= 1, "a tenant is in one bucket or in none"
    text = texts[0] or texts[1]
    return decode_tenant(text.encode()) if text else None


def quota(ada: Any, limit: int, **more: Any) -> int:
    return edits.set_tenant_quota(
        **{
            "environment": "production",
            "tenant": "acme",
            "quota": "requests",
            "limit": limit,
            "window_s": 60,
            "burst": 10,
            "expected_version": None,
            "reason": "for a test",
            "actor": ada,
        }
        | more
    )


def test_an_edit_is_in_redis_when_it_returns(production: str, text_limits: Any, ada: Any) -> None:
    revision = quota(ada, 250)
    assert head(text_limits)["revision"] == str(revision)
    [limit] = record(text_limits, "acme").quotas
    assert (limit.limit, limit.window_ms, limit.burst) == (250, 60_000, 10)
    policy = head(text_limits)["policy"].encode()
    assert hash_of(policy) == head(text_limits)["hash"]
    assert [tier.name for tier in decode_policy(policy).tiers] == ["anonymous", "enterprise", "free", "pro"]
    assert not OutboxEntry.objects.filter(published_at__isnull=True).exists()


def test_a_removed_tenant_leaves_redis_too(production: str, text_limits: Any, ada: Any) -> None:
    assert record(text_limits, "acme") is not None
    edits.remove_tenant(environment="production", tenant="acme", reason="for a test", actor=ada)
    assert record(text_limits, "acme") is None


def test_a_nudge_names_the_tenants_that_changed(production: str, limits: Any, ada: Any) -> None:
    from fuseboard.contract.sync import decode_nudge

    with limits.pubsub() as subscription:
        subscription.subscribe(keys.config_channel("production"))
        subscription.get_message(timeout=30)
        revision = quota(ada, 9)
        message = subscription.get_message(timeout=30)
    nudge = decode_nudge(message["data"])
    assert (nudge.revision, nudge.since, nudge.tenants) == (revision, revision - 1, ("acme",))


def test_the_sweep_publishes_what_a_dead_process_left(
    production: str, text_limits: Any, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.editing.revise.publish_promptly", lambda environment: None)
    revision = quota(ada, 77)
    assert head(text_limits)["revision"] == str(revision - 1)
    sweep_outbox()
    assert head(text_limits)["revision"] == str(revision)
    assert record(text_limits, "acme").quotas[0].limit == 77
    assert not OutboxEntry.objects.filter(published_at__isnull=True).exists()


def test_an_emptied_redis_is_filled_again(production: str, text_limits: Any, ada: Any) -> None:
    quota(ada, 31)
    before = head(text_limits)
    text_limits.flushall()
    reconcile_environment("production")
    after = head(text_limits)
    assert {**after, "published_at_us": ""} == {**before, "published_at_us": ""}
    assert record(text_limits, "acme").quotas[0].limit == 31


@pytest.mark.parametrize("damage", ["wrong type", "other policy", "head without revision"])
def test_a_damaged_copy_is_repaired(production: str, text_limits: Any, damage: str) -> None:
    key, before = keys.config_head("production"), head(text_limits)
    if damage == "wrong type":
        text_limits.set(key, "rubbish")
    elif damage == "other policy":
        text_limits.hset(key, "policy", "{}")
    else:
        text_limits.hdel(key, "revision")
    reconcile_environment("production")
    assert head(text_limits)["policy"] == before["policy"]
    assert record(text_limits, "acme") is not None


def test_a_large_configuration_is_written_in_parts(
    production: str, text_limits: Any, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "TENANTS_PER_CALL", 10)
    names = [f"tenant-{number}" for number in range(300)]
    revision = create_tenants(
        tenants=[(name, "free", "") for name in names],
        actor=ada,
    )
    text_limits.flushall()
    publish_head("production")
    assert head(text_limits)["revision"] == str(revision)
    assert "staged" not in head(text_limits)
    assert all(record(text_limits, name).tier == "free" for name in names)


def test_older_never_overwrites_newer(production: str, text_limits: Any, ada: Any) -> None:
    """Write the snapshots of all revisions in a shuffled order."""
    snapshots = []
    for limit in range(1, 21):
        revision = quota(ada, limit)
        snapshots.append(take_snapshot("production", since=None))
        assert snapshots[-1].head.revision == revision
    text_limits.flushall()
    shuffled = snapshots * 2
    random.Random(7).shuffle(shuffled)
    newest = 0
    for snapshot in shuffled:
        seen = publish.read_head(text_limits, "production")
        publish._write(text_limits, "production", seen, snapshot)
        revision = int(head(text_limits)["revision"])
        assert revision >= newest
        newest = revision
        # Head and tenants always belong to the same revision.
        assert record(text_limits, "acme").quotas[0].limit == revision - snapshots[0].head.revision + 1
    assert newest == snapshots[-1].head.revision


def test_concurrent_publishers_end_with_the_newest_revision(
    production: str, text_limits: Any, ada: Any
) -> None:
    failures: list[Exception] = []
    barrier = threading.Barrier(6)

    def edit(start: int) -> None:
        try:
            barrier.wait(10)
            for limit in range(start, start + 5):
                quota(ada, limit)
        except Exception as error:
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=edit, args=(100 * number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    sweep_outbox()
    row = Environment.objects.get(pk="production")
    assert head(text_limits)["revision"] == str(row.revision)
    assert record(text_limits, "acme").quotas[0].limit == TenantQuota.objects.get().limit
    revisions = list(OutboxEntry.objects.order_by("revision").values_list("revision", flat=True))
    assert revisions == list(range(1, row.revision + 1))


def test_a_half_published_newer_revision_excludes_an_older_one(
    production: str, text_limits: Any, ada: Any
) -> None:
    quota(ada, 1)
    older = take_snapshot("production", since=None)
    quota(ada, 2)
    newer = take_snapshot("production", since=None)
    text_limits.flushall()
    text_limits.hset(keys.config_head("production"), "staged", f"{newer.head.epoch} {newer.head.revision}")
    assert not publish._write(text_limits, "production", None, older)
    assert publish._write(text_limits, "production", None, newer)


def test_a_crash_before_commit_leaves_nothing(production: str, text_limits: Any, ada: Any) -> None:
    from controlplane.audit.models import Entry

    before = Environment.objects.get().revision, Entry.objects.count(), OutboxEntry.objects.count()
    pid = connection.cursor().execute("SELECT pg_backend_pid()").fetchone()[0]

    def crash(*_: Any, **__: Any) -> None:
        other = connections.create_connection("default")
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
        other.close()
        Tenant.objects.count()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revise, "notify", crash)
        with pytest.raises(Exception, match="terminat"):
            quota(ada, 5)
    connection.close()
    assert (Environment.objects.get().revision, Entry.objects.count(), OutboxEntry.objects.count()) == before
    assert not TenantQuota.objects.exists()
    assert record(text_limits, "acme").quotas == ()


def test_the_second_of_two_editors_gets_a_409_with_the_changes(production: str, ada: Any) -> None:
    quota(ada, 100, expected_version=1)
    with pytest.raises(EditConflict) as conflict:
        quota(ada, 200, expected_version=1)
    assert conflict.value.current_version == 2
    assert conflict.value.changed["quotas.requests.limit"] == 100
    assert conflict.value.by == "ada"
    assert TenantQuota.objects.get().limit == 100


def test_a_refused_edit_takes_no_revision(production: str, ada: Any) -> None:
    before = Environment.objects.get().revision
    with pytest.raises(NotFound):
        quota(ada, 1, tenant="nobody")
    with pytest.raises(InvalidEdit) as invalid:
        quota(ada, -1, reason="short", window_s=0)
    assert set(invalid.value.errors) == {"limit", "window_s", "reason"}
    assert Environment.objects.get().revision == before
