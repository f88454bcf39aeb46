"""Postgres is restored from a backup, and Redis and pods have later revisions."""

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from controlplane.alerts.state.evaluate import evaluate
from controlplane.editing import edits
from controlplane.policies.models import Environment
from controlplane.publishing.models import HISTORY, REDIS, Ahead
from controlplane.publishing.publish import NOTE_AHEAD, PublishError, publish_head
from controlplane.publishing.unknown_revisions import LARGEST, MAX_LISTED
from controlplane.repair.tasks import sweep_outbox
from controlplane.status.read_facts import read_facts
from controlplane.status.status import status_of
from fuseboard.contract import keys
from fuseboard.contract.policy import decode_tenant
from tests.dashboard.fleet_rows import put_server


def set_limit(ada: Any, limit: int) -> int:
    return edits.set_tenant_quota(
        environment="production",
        tenant="acme",
        quota="requests",
        limit=limit,
        window_s=60,
        burst=10,
        expected_version=None,
        reason="for a test",
        actor=ada,
    )


def in_redis(store: Any) -> tuple[int, int, int]:
    epoch, revision = store.hmget(keys.config_head("production"), "epoch", "revision")
    number = keys.tenant_bucket_number("acme")
    [limit] = decode_tenant(store.hget(keys.own_bucket("production", number), "acme").encode()).quotas
    return int(epoch), int(revision), limit.limit


def ahead_of_postgres() -> Ahead | None:
    row = Environment.objects.get()
    return Ahead.objects.of(row.slug).filter(epoch__gte=row.epoch).first()


def note_ahead(*, epoch: int, revision: int, who: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(NOTE_AHEAD, [epoch, revision, who, "production", epoch, revision])


@pytest.fixture
def restored(production: str, text_limits: Any, ada: Any) -> int:
    """Redis has three edits and Postgres only the first. Returns the revision of Postgres."""
    first = set_limit(ada, 100)
    set_limit(ada, 200)
    set_limit(ada, 300)
    # The state of a backup from that time.
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("UPDATE policies_environment SET revision = %s", [first])
        cursor.execute('UPDATE policies_tenantquota SET "limit" = 100')
        cursor.execute("UPDATE policies_tenant SET changed_revision = %s WHERE key = 'acme'", [first])
        cursor.execute("DELETE FROM publishing_outboxentry WHERE revision > %s", [first])
        made_since = "SELECT id FROM policies_revision WHERE number > %s"
        cursor.execute(f"DELETE FROM policies_change WHERE revision_id IN ({made_since})", [first])  # noqa: S608
        cursor.execute("DELETE FROM policies_revision WHERE number > %s", [first])
        cursor.execute("SET session_replication_role = origin")
    return first


def test_nothing_is_published_over_a_revision_that_postgres_lost(
    restored: int, text_limits: Any, ada: Any
) -> None:
    known = in_redis(text_limits)
    with pytest.raises(PublishError, match="republish production --new-epoch"):
        publish_head("production")
    ahead = ahead_of_postgres()
    assert ahead is not None
    assert (ahead.who, ahead.epoch, ahead.revision) == ("Redis", *known[:2])
    # Also after edits brought Postgres to the same numbers and beyond, because these are other revisions.
    for limit in range(1, 6):
        assert set_limit(ada, limit) == restored + limit
        assert in_redis(text_limits) == known
    sweep_outbox()
    assert in_redis(text_limits) == known


def test_a_new_epoch_continues_above_every_known_revision(
    restored: int, text_limits: Any, ada: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _, newest, _ = in_redis(text_limits)
    set_limit(ada, 150)
    note_ahead(epoch=1, revision=newest + 5, who=REDIS)
    with pytest.raises(CommandError, match="--reason"):
        call_command("republish", "production", "--new-epoch")
    call_command("republish", "production", "--new-epoch", "--reason", "restored the backup of noon")
    assert in_redis(text_limits) == (2, newest + 6, 150)
    assert "epoch 2" in capsys.readouterr().out
    assert ahead_of_postgres() is None
    assert set_limit(ada, 160) == newest + 7
    assert in_redis(text_limits) == (2, newest + 7, 160)


def test_the_alerts_of_a_restore_agree_that_edits_wait(restored: int, text_limits: Any) -> None:
    _, newest, _ = in_redis(text_limits)
    put_server("web-1", epoch=1, revision=newest)

    def details() -> dict[str, str]:
        return {one.key: one.detail for one in evaluate(status_of(read_facts("production")))}

    assert "Edits are still published." in details()["unknown-revision"]
    with pytest.raises(PublishError):
        publish_head("production")
    found = details()
    assert "Start a new epoch." in found["ahead"]
    assert "Edits wait for a new epoch." in found["unknown-revision"]
    assert "still published" not in found["unknown-revision"]


def test_a_new_epoch_counts_every_pod_near_the_head(restored: int, text_limits: Any) -> None:
    """Pods with invented revisions and early names cannot hide it."""
    _, newest, _ = in_redis(text_limits)
    for n in range(MAX_LISTED + 1):
        put_server(f"aa-{n:03}", epoch=1, revision=LARGEST)
    put_server("web-1", epoch=3, revision=1)
    put_server("web-2", epoch=1, revision=newest + 40)
    call_command("republish", "production", "--new-epoch", "--reason", "restored the backup of noon")
    assert in_redis(text_limits)[:2] == (4, newest + 41)


def test_a_new_epoch_is_begun_with_its_audit_entry_or_not_at_all(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **fields: Any) -> None:
        raise RuntimeError("killed here")

    before = Environment.objects.values().get()
    with pytest.raises(CommandError, match="reason"):
        call_command("raise_epoch", "production", "--reason", " ")
    monkeypatch.setattr("controlplane.editing.revise.record", broken)
    with pytest.raises(RuntimeError):
        call_command("raise_epoch", "production", "--reason", "restored")
    assert Environment.objects.values().get() == before


def test_republish_writes_everything_again_and_takes_no_revision(
    production: str, text_limits: Any, ada: Any
) -> None:
    set_limit(ada, 100)
    before = in_redis(text_limits)
    text_limits.delete(keys.own_bucket("production", keys.tenant_bucket_number("acme")))
    call_command("republish")
    assert in_redis(text_limits) == before


def test_republish_in_the_old_epoch_is_refused_after_a_restore(restored: int, text_limits: Any) -> None:
    with pytest.raises(CommandError, match="restored"):
        call_command("republish")


def test_a_pod_is_ahead_only_of_a_revision_that_postgres_lacks(production: str) -> None:
    row = Environment.objects.get()
    note_ahead(epoch=row.epoch, revision=row.revision, who=f"{HISTORY}, and pod-1,")
    assert not Ahead.objects.exists()
    note_ahead(epoch=row.epoch, revision=row.revision + 1, who=f"{HISTORY}, and pod-1,")
    note_ahead(epoch=row.epoch, revision=row.revision + 9, who=f"{HISTORY}, and pod-2,")
    note_ahead(epoch=row.epoch, revision=row.revision + 3, who=f"{HISTORY}, and pod-3,")
    assert Ahead.objects.get().who == f"{HISTORY}, and pod-2,"


def test_what_an_older_gateway_noted_for_a_pod_alone_stops_nothing(production: str, text_limits: Any) -> None:
    """A gateway of 0.1.0 can still run after the migration that deletes such notes."""
    row = Environment.objects.get()
    note_ahead(epoch=row.epoch, revision=LARGEST, who="liar-1")
    assert Ahead.objects.get().who == "liar-1"
    assert ahead_of_postgres() is None
    assert read_facts("production").ahead == ""
    publish_head("production")
    # Redis replaces the note, whatever number it contains.
    note_ahead(epoch=row.epoch, revision=row.revision + 1, who=REDIS)
    found = ahead_of_postgres()
    assert found is not None
    assert (found.who, found.revision) == (REDIS, row.revision + 1)
