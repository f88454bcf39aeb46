"""The gateway and a real Postgres: what it reads, what it writes, and how soon."""

import json
import time

import psycopg
import pytest
from asgiref.sync import sync_to_async

from controlplane.fleet import live
from controlplane.gateway.postgres.adoption import known_server_of
from controlplane.gateway.postgres.connections import conninfo
from controlplane.gateway.process import Gateway
from controlplane.gateway.servers.figures import figures_of
from controlplane.gateway.settings import GatewaySettings
from fuseboard.contract.shares import HeldShare
from fuseboard.contract.sync import Applied, BreakerView, Counters, decode_response
from fuseboard.contract.words import BreakerState, Mode
from tests.controlplane.gateway.manual_gateway import beat, post
from tests.waiting import eventually


@pytest.fixture
async def listener(token):
    async with await psycopg.AsyncConnection.connect(conninfo("test"), autocommit=True) as connection:
        await connection.execute("LISTEN fuseboard_fleet")
        yield connection


async def row(database, columns="state", server="pod-1"):
    query = f"SELECT {columns} FROM fleet_server WHERE name = %s"  # noqa: S608
    found = await (await database.execute(query, [server])).fetchone()
    return found and (found[0] if len(found) == 1 else found)


async def row_becomes(database, expected, *, server="pod-1", within_s=20.0):
    await eventually(
        lambda: row(database, server=server),
        f"{server} is {expected}",
        within_s=within_s,
        accept=lambda found: found == expected,
    )


async def test_a_heartbeat_becomes_a_row_that_pages_can_read(gateway, database):
    view = BreakerView(dependency="openai", state=BreakerState.OPEN, for_ms=2_000, remaining_ms=58_000)
    assert (await post(gateway, beat(breakers=(view,), zone="a\x00b"))).status_code == 200
    await row_becomes(database, "online")
    (server,) = await sync_to_async(live.servers)("production")
    assert (server.name, server.service, server.mode, server.zone) == ("pod-1", "checkout", "shared", "a b")
    (breaker,) = server.breakers
    assert (breaker["dependency"], breaker["state"], breaker["override"]) == ("openai", "open", None)
    assert breaker["since"] == pytest.approx(time.time() - 2, abs=20)
    assert breaker["until"] == pytest.approx(time.time() + 58, abs=20)


async def test_the_row_has_the_token_and_the_address_of_the_connection(gateway, database):
    """They come from what was verified: a pod cannot claim another token or address."""
    held = HeldShare(level=2, place=1, terms=9)
    answer = await post(gateway, beat(share=held, serves_node=True), headers={"x-forwarded-for": "6.6.6.6"})
    assert answer.status_code == 200
    await row_becomes(database, "online")
    columns = await row(database, "token, address, share")
    assert columns == (next(iter(gateway.tokens._tokens)), "127.0.0.1", {"level": 2, "place": 1, "terms": 9})
    (server,) = await sync_to_async(live.servers)("production")
    adopted = known_server_of(server, now=0.0, wall=server.last_seen_at.timestamp())
    assert (adopted.token, adopted.address, adopted.beat.share) == (*columns[:2], held)
    assert adopted.beat.serves_node


async def test_a_change_of_mode_is_written_and_notified_at_once(gateway, database, listener):
    await post(gateway, beat())
    await row_becomes(database, "online")
    for mode in (Mode.LOCAL, Mode.RAMPING, Mode.SHARED) * 3:
        await post(gateway, beat(mode=mode, mode_cause="a test"))
        async for notification in listener.notifies(timeout=20.0):
            named = "pod-1" in json.loads(notification.payload)["servers"]
            # The batch of the second before may be announced in between.
            if named and await row(database, "mode") == mode.value:
                break
        else:
            raise AssertionError(f"no notification says that it is {mode}")


async def test_figures_are_written_every_second(gateway, listener):
    await post(gateway, beat(up_ms=5_000, counters=Counters(requests=500)))
    seen = 0
    async for notification in listener.notifies(timeout=20.0):
        seen += json.loads(notification.payload)["figures"]
        if seen == 2:
            break
    figures = await sync_to_async(live.figures)("production")
    assert figures.requests_per_s == pytest.approx(100, rel=0.05)
    assert (figures.gateways, figures.live_servers, figures.frozen) == (1, 1, False)


async def test_a_gateway_is_known_before_the_first_pod_reports(gateway):
    """An empty control plane displayed that no gateway ever ran."""
    figures = await eventually(
        lambda: sync_to_async(live.figures)("production"),
        "figures of a gateway without pods",
        within_s=20.0,
        accept=lambda found: found.gateways == 1,
    )
    assert (figures.live_servers, figures.requests_per_s) == (0, 0)


async def test_an_edit_is_served_as_soon_as_it_is_committed(gateway, database, ada):
    from controlplane.editing import edits

    head = gateway.configurations["production"].head
    revision = await sync_to_async(edits.create_tenant)(
        environment="production", tenant="globex", tier="pro", reason="for a test", actor=ada
    )
    held = gateway.configurations["production"]
    await eventually(lambda: held.head.revision == revision)
    applied = Applied(epoch=head.epoch, revision=head.revision, hash=head.hash)
    answer = decode_response((await post(gateway, beat(applied=applied, want=("acme",)))).content)
    assert answer.tenants["globex"].tier == "pro"
    assert answer.tenants["acme"].tier == "pro"


async def test_confirmed_counts_pods_that_applied_a_revision(gateway, database):
    for n, revision in enumerate([7, 8, 9, 8]):
        await post(gateway, beat(f"pod-{n}", applied=Applied(epoch=1, revision=revision)))
    await post(gateway, beat("pod-4", applied=Applied(epoch=1, revision=9), leaving=True))
    for n in range(4):
        await row_becomes(database, "online", server=f"pod-{n}")
    await row_becomes(database, "gone", server="pod-4")
    confirmed = sync_to_async(live.confirmed)
    assert await confirmed("production", 8, epoch=1) == (3, 4)
    assert await confirmed("production", 9, epoch=1) == (1, 4)
    assert await confirmed("production", 7, epoch=2) == (0, 4)
    assert await confirmed("staging", 7, epoch=1) == (0, 0)


async def test_a_revoked_token_is_refused_within_the_reload_interval(gateway, token):
    from django.db.models.functions import Now

    assert (await post(gateway, beat())).status_code == 200

    def revoke():
        from django.db import connection

        type(token).objects.update(revoked_at=Now())
        with connection.cursor() as cursor:
            cursor.execute("NOTIFY fuseboard_tokens")

    await sync_to_async(revoke)()
    await eventually(lambda: post(gateway, beat()), accept=lambda answer: answer.status_code == 401)


async def test_a_restarted_gateway_remembers_its_pods(gateway, database):
    for n in range(3):
        await post(gateway, beat(f"pod-{n}", mode=Mode.LOCAL, mode_cause="connection refused"))
    await gateway.stop()
    again = Gateway(GatewaySettings(gateway="test"))
    again.start()
    try:
        await eventually(lambda: again.ready)
        fleet = again.fleet("production")
        assert fleet.size.live_servers == 3
        assert {server.beat.mode for server in fleet.servers.values()} == {Mode.LOCAL}
        assert all(server.state == "online" for server in fleet.servers.values())
        assert figures_of(fleet)["uncounted"] == 3
        assert (await post(again, beat("pod-0", sequence=1))).status_code == 200
    finally:
        await again.stop()


async def test_a_row_that_postgres_refuses_does_not_stop_the_others(gateway, database, caplog):
    fleet = gateway.fleet("production")
    for n in range(5):
        fleet.absorb(beat(f"pod-{n}"))
    # What no beat can do, because it is checked before.
    fleet.servers["pod-3"].rivals = 2**31
    gateway.hurry()
    for name in ("pod-0", "pod-1", "pod-2", "pod-4"):
        await row_becomes(database, "online", server=name)
    assert await row(database, server="pod-3") is None
    assert "gateway.write_refused" in caplog.text
    assert gateway.counts.flush_failures == 0


async def test_pods_that_left_long_ago_are_forgotten(gateway, database):
    for n in range(2):
        await post(gateway, beat(f"pod-{n}", leaving=True))
        await row_becomes(database, "gone", server=f"pod-{n}")
    long_ago = "UPDATE fleet_server SET last_seen_at = now() - interval '25 hours' WHERE name = 'pod-0'"
    await database.execute(long_ago)
    await gateway.stop()
    gateway.start()
    await row_becomes(database, None, server="pod-0")
    assert await row(database, server="pod-1") == "gone"


async def test_a_pod_with_an_unknown_revision_is_reported(gateway):
    head = gateway.configurations["production"].head
    await post(gateway, beat(applied=Applied(epoch=head.epoch, revision=head.revision, hash=head.hash)))
    await post(gateway, beat("pod-2", applied=Applied(epoch=head.epoch, revision=head.revision + 50)))
    await eventually(lambda: gateway.fleets["production"].unknown_revisions == {"pod-2"})
