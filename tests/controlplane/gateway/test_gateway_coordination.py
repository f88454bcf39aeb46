"""Pieces and drills through a real Postgres: what gateways agree on, and what servers are told."""

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from controlplane.gateway.process import Gateway
from controlplane.gateway.settings import GatewaySettings
from fuseboard.contract.shares import HeldShare
from fuseboard.contract.sync import decode_response
from tests.controlplane.gateway.manual_gateway import beat, post
from tests.waiting import eventually


@pytest.fixture
async def gateways(token):
    """Starts gateways as ``manage.py gateway`` does; their looks are the test's to ask for."""
    started = []

    async def start(name="one"):
        gateway = Gateway(GatewaySettings(gateway=name))
        gateway.coordination.run = _never
        gateway.start()
        started.append(gateway)
        await eventually(lambda: gateway.ready)
        return gateway

    yield start
    for gateway in started:
        await gateway.coordination.disconnect()
        await gateway.stop()
    await sync_to_async(connections.close_all)()


async def _never():
    await eventually(lambda: False, within_s=1e9)


async def answered(gateway, server="pod-1", **fields):
    return decode_response((await post(gateway, beat(server, **fields))).content)


async def given(gateway, server):
    """Its piece; a look that comes too soon after the last one is put off."""

    async def asked_again():
        if (share := (await answered(gateway, server)).share) is None:
            await gateway.coordination.look()
        return share

    return await eventually(asked_again, accept=lambda share: share is not None)


@sync_to_async
def pieces():
    from controlplane.shares.models import Piece

    return {
        (piece.server or "resting", piece.level, piece.place)
        for piece in Piece.objects.filter(environment="production")
    }


async def test_a_pod_gets_its_reserved_share_once_postgres_has_it(gateways):
    gateway = await gateways()
    assert (await answered(gateway)).share is None
    await gateway.coordination.look()
    share = (await answered(gateway)).share
    assert (share.level, share.place) == (1, 0)
    assert 890_000 < share.remaining_ms <= 900_000
    assert await pieces() == {("pod-1", 1, 0)}


async def test_two_gateways_never_grant_the_same_share(gateways):
    one, two = await gateways("one"), await gateways("two")
    for number, gateway in enumerate([one, two] * 10):
        await answered(gateway, f"pod-{number}")
        await gateway.coordination.look()
    held = [await given(gateway, f"pod-{n}") for n, gateway in enumerate([one, two] * 10)]
    assert sum(2.0**-share.level for share in held) <= 1.0
    assert len({share.terms for share in held}) == 20


async def test_a_restarted_gateway_renews_granted_shares_and_grants_them_to_no_other_pod(gateways):
    before = await gateways()
    await answered(before, "stays")
    await answered(before, "dies")
    await before.coordination.look()
    kept = (await answered(before, "stays")).share
    after = await gateways("after")
    held = HeldShare(level=kept.level, place=kept.place, terms=kept.terms)
    assert (await answered(after, "stays", share=held)).share is None
    await answered(after, "comes")
    await after.coordination.look()
    again = (await answered(after, "stays", share=held)).share
    assert (again.level, again.place, again.terms) == (kept.level, kept.place, kept.terms)
    assert {server for server, _, _ in await pieces()} == {"stays", "dies", "comes"}
    assert sum(2.0**-level for _, level, _ in await pieces()) <= 1.0


async def test_the_share_of_a_pod_that_left_rests_and_a_new_boot_gets_another(gateways):
    gateway = await gateways()
    await answered(gateway)
    await gateway.coordination.look()
    first = (await answered(gateway)).share
    assert (await answered(gateway, leaving=True)).share is None
    await answered(gateway, boot="boot-0002", up_ms=0)
    await gateway.coordination.look()
    second = (await answered(gateway, boot="boot-0002", up_ms=10)).share
    assert (second.level, second.place) != (first.level, first.place)
    assert ("resting", first.level, first.place) in await pieces()


async def test_after_a_restore_every_share_counts_as_granted(gateways):
    gateway = await gateways()
    await answered(gateway)
    await gateway.coordination.look()
    terms = (await answered(gateway)).share.terms

    @sync_to_async
    def restore():
        from controlplane.policies.models import Environment

        Environment.objects.update(epoch=2)

    await restore()
    await answered(gateway, "late")
    await gateway.coordination.look()
    assert await pieces() == {("resting", 0, 0)}
    assert (await answered(gateway, "late")).share is None
    assert terms < 2 << 32


async def test_while_postgres_is_down_heartbeats_are_answered_and_the_share_expires(gateways, monkeypatch):
    gateway = await gateways()
    await answered(gateway)
    await gateway.coordination.look()
    await gateway.coordination.disconnect()

    async def refused(_):
        raise OSError("connection refused")

    monkeypatch.setattr("controlplane.gateway.postgres.keep_trying.connect", refused)
    with pytest.raises(OSError, match="refused"):
        await gateway.coordination.look()
    left = (await answered(gateway)).share.remaining_ms
    assert left < 900_000
