"""Security finding 1: a token of a pod reports revisions that Postgres never made.

Each test sends its heartbeats to a real gateway, over a real Postgres and a real Redis.
"""

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.db import connection

from controlplane.alerts.rules.rule import Finding
from controlplane.alerts.state.evaluate import evaluate
from controlplane.editing import edits
from controlplane.fleet.models import Server
from controlplane.policies.models import Environment
from controlplane.policies.revision_rows import Revision
from controlplane.publishing.models import Ahead, OutboxEntry
from controlplane.publishing.unknown_revisions import LARGEST, NEAR_REVISIONS
from controlplane.repair.tasks import reconcile, sweep_outbox
from controlplane.status.read_facts import read_facts
from controlplane.status.status import status_of
from fuseboard.contract import keys
from fuseboard.contract.sync import Applied, Number
from tests.controlplane.gateway.manual_gateway import beat, post
from tests.people import ADA
from tests.waiting import eventually

MAX_NUMBER: int = Number.__metadata__[0].le  # type: ignore[attr-defined]
LIE = "0" * 16


def edit(limit: int) -> int:
    return edits.set_tenant_quota(
        environment="production",
        tenant="acme",
        quota="requests",
        limit=limit,
        window_s=60,
        burst=10,
        expected_version=None,
        reason="for a test",
        actor=ADA,
    )


def republish(**options: Any) -> str:
    call_command("republish", "production", "--new-epoch", reason="after a lie", **options)
    return "done"


def alerts() -> dict[str, Finding]:
    return {one.key: one for one in evaluate(status_of(read_facts("production")))}


def waiting() -> int:
    return OutboxEntry.objects.filter(published_at__isnull=True).count()


@pytest.fixture
def in_redis(text_limits: Any) -> Callable[[], tuple[int, int]]:
    def read() -> tuple[int, int]:
        epoch, revision = text_limits.hmget(keys.config_head("production"), "epoch", "revision")
        return int(epoch), int(revision)

    return read


def lie_of(epoch: int, revision: int) -> Applied:
    return Applied(epoch=epoch, revision=revision, hash=LIE, source="redis", status="applied")


async def lie(gateway: Any, name: str, *, epoch: int, revision: int) -> None:
    """Send it, and wait until the gateway has looked at the rows with it in them."""
    assert (await post(gateway, beat(name, applied=lie_of(epoch, revision)))).status_code == 200
    await eventually(lambda: name in gateway.fleets["production"].unknown_revisions)


async def test_a_pod_that_claims_a_newer_revision_raises_an_alert_and_stops_nothing(
    gateway: Any,
    in_redis: Callable[[], tuple[int, int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    head = gateway.configurations["production"].head
    await post(gateway, beat(applied=Applied(epoch=head.epoch, revision=head.revision, hash=head.hash)))
    await lie(gateway, "liar-1", epoch=1, revision=head.revision + 1_000_000)

    revision = await sync_to_async(edit)(100)
    assert in_redis() == (1, revision)
    for task in (sweep_outbox, reconcile):
        await sync_to_async(task)()
    assert await sync_to_async(waiting)() == 0
    assert not await Ahead.objects.aexists()
    found = await sync_to_async(alerts)()
    assert "ahead" not in found
    assert found["unknown-revision"].text == "liar-1 reports a revision that Postgres never made"
    assert f"1.{head.revision + 1_000_000}" in found["unknown-revision"].detail
    assert found["unknown-revision"].subject.name == "liar-1"
    # Counted and logged once, not with every look.
    assert caplog.text.count("fleet.unknown_revision") == 1


async def test_the_recovery_works_for_the_largest_number_that_the_wire_carries(
    gateway: Any,
    in_redis: Callable[[], tuple[int, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    await lie(gateway, "liar-1", epoch=MAX_NUMBER, revision=MAX_NUMBER)
    row = await Server.objects.aget(name="liar-1")
    assert (row.epoch, row.revision) == (LARGEST, LARGEST)
    before = await Environment.objects.aget()
    await sync_to_async(republish)()
    assert in_redis() == (before.epoch + 1, before.revision + 1)
    assert "liar-1" in capsys.readouterr().out


async def test_a_recovery_after_a_huge_revision_leaves_an_environment_that_takes_edits(
    gateway: Any,
    in_redis: Callable[[], tuple[int, int]],
) -> None:
    before = await Environment.objects.aget()
    await lie(gateway, "liar-1", epoch=1, revision=MAX_NUMBER - 2)
    await sync_to_async(republish)()
    for limit in (10, 20, 30):
        revision = await sync_to_async(edit)(limit)
        assert in_redis() == (2, revision)
    assert revision == before.revision + 4


async def test_a_lie_near_the_head_moves_the_revision_at_most_by_the_bound_and_never_with_ignore_pods(
    gateway: Any,
    in_redis: Callable[[], tuple[int, int]],
) -> None:
    before = await Environment.objects.aget()
    near = before.revision + NEAR_REVISIONS
    await lie(gateway, "liar-1", epoch=1, revision=near)
    await lie(gateway, "liar-2", epoch=1, revision=near + 1)
    await sync_to_async(republish)(ignore_pods=True)
    assert in_redis() == (2, before.revision + 1)
    # A pod that reports too much never counts. Another one does, so that a true restore ends.
    await lie(gateway, "liar-3", epoch=2, revision=near)
    await lie(gateway, "liar-4", epoch=2, revision=near + 2)
    await sync_to_async(republish)()
    assert in_redis() == (3, near + 1)


async def test_a_pod_is_believed_when_the_chain_of_the_database_has_its_revision(
    gateway: Any,
) -> None:
    """The row of the environment went back, and its history did not."""
    await sync_to_async(edit)(100)
    last = await Revision.objects.alatest("number")

    def go_back() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            cursor.execute("UPDATE policies_environment SET revision = %s", [last.number - 1])
            cursor.execute("SET session_replication_role = origin")

    await sync_to_async(go_back)()
    await lie(gateway, "pod-2", epoch=last.epoch, revision=last.number)
    ahead = await eventually_ahead()
    assert (ahead.epoch, ahead.revision) == (last.epoch, last.number)
    assert "pod-2" in ahead.who


async def eventually_ahead() -> Ahead:
    async def found() -> Ahead | None:
        return await Ahead.objects.afirst()

    return await eventually(found)


def test_ignore_pods_needs_a_new_epoch(production: str) -> None:
    with pytest.raises(CommandError, match="--new-epoch"):
        call_command("republish", "production", ignore_pods=True)
