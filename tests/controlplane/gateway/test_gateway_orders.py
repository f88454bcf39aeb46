"""Operators correct the fleet in the memory of gateways: forget a pod, and end a frozen expiry."""

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from controlplane.audit.models import Entry
from controlplane.errors import InvalidEdit, NotFound
from controlplane.fleet import live
from controlplane.fleet.edits import forget_pod, lift_freeze
from controlplane.fleet.models import Server, ServerState
from controlplane.gateway.postgres.flush import Flusher
from fuseboard.contract.words import Mode
from tests.controlplane.calling import API
from tests.controlplane.gateway.manual_gateway import beat, post, ready_gateway
from tests.dashboard.fleet_rows import put_figures, put_server
from tests.people import ADA
from tests.waiting import eventually

WHY = {"environment": "production", "reason": "it was invented", "actor": ADA}


async def test_a_forgotten_pod_disappears_everywhere_and_comes_back_with_its_next_heartbeat(
    gateway: Any,
) -> None:
    async def row() -> bool:
        return await Server.objects.filter(name="shop-1").aexists()

    async def no_row() -> bool:
        return not await row()

    await post(gateway, beat("shop-1"))
    await eventually(row)
    await sync_to_async(forget_pod)(server="shop-1", **WHY)
    await eventually(lambda: "shop-1" not in gateway.fleets["production"].servers)
    await eventually(no_row)
    entry = await Entry.objects.alatest("id")
    assert (entry.action, entry.target_name, entry.actor) == ("server.forgotten", "shop-1", ADA.name)
    assert (await post(gateway, beat("shop-1"))).status_code == 200
    await eventually(row)
    assert "shop-1" in gateway.fleets["production"].servers


async def test_a_forgotten_pod_does_not_return_with_a_batch_that_was_on_its_way(
    gateway: Any, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert, on_its_way, go_on = Flusher._upsert, asyncio.Event(), asyncio.Event()

    async def slow(self: Flusher, connection: Any, rows: Any) -> None:
        if [row.name for row in rows] == ["shop-1"]:
            on_its_way.set()
            await go_on.wait()
        await upsert(self, connection, rows)

    async def row() -> bool:
        cursor = await database.execute("SELECT 1 FROM fleet_server WHERE name = 'shop-1'")
        return await cursor.fetchone() is not None

    async def no_row() -> bool:
        return not await row()

    await post(gateway, beat("shop-1"))
    await eventually(row)
    monkeypatch.setattr(Flusher, "_upsert", slow)
    await post(gateway, beat("shop-1", mode=Mode.LOCAL))
    await on_its_way.wait()
    monkeypatch.setattr(Flusher, "_upsert", upsert)
    await sync_to_async(forget_pod)(server="shop-1", **WHY)
    await eventually(lambda: "shop-1" not in gateway.fleets["production"].servers)
    await eventually(no_row)
    go_on.set()
    await eventually(lambda: not gateway.fleets["production"].dirty)
    await eventually(no_row, "a later look deletes the row that was on its way")


def test_a_batch_that_failed_writes_no_forgotten_pod() -> None:
    ready = ready_gateway()
    fleet = ready.fleet("production")
    for name in ("shop-1", "shop-2"):
        fleet.absorb(beat(name))
    [batch] = Flusher(ready.fleets, ready.settings, ready.counts, ready.clock)._take(every=True)
    assert fleet.forget("shop-1", before=ready.clock.wall())
    batch.put_back()
    assert (list(fleet.dirty), list(fleet.urgent)) == (["shop-2"], ["shop-2"])


async def test_an_operator_ends_a_frozen_expiry_and_sees_why_it_froze(
    gateway: Any,
) -> None:
    fleet = gateway.fleet("production")
    for n in range(12):
        fleet.absorb(beat(f"shop-{n}"))
    for n in range(6):
        fleet.servers[f"shop-{n}"].seen -= 60.0

    async def figures() -> live.FleetFigures | None:
        found = await sync_to_async(live.figures)("production")
        return found if found.frozen else None

    found = await eventually(figures)
    assert (found.frozen_silent, found.frozen_expected) == (6, 12)
    assert found.frozen_until is not None
    assert fleet.servers["shop-0"].state is ServerState.UNKNOWN
    await sync_to_async(lift_freeze)(**WHY)
    await eventually(lambda: fleet.servers["shop-0"].state is ServerState.OFFLINE)
    assert not fleet.preservation.frozen
    assert (await Entry.objects.alatest("id")).action == "fleet.freeze_lifted"


def test_only_what_is_there_can_be_forgotten_or_lifted_and_for_a_reason(production: str) -> None:
    with pytest.raises(NotFound):
        forget_pod(server="nobody", **WHY)
    with pytest.raises(NotFound):
        lift_freeze(**WHY)
    with pytest.raises(InvalidEdit):
        lift_freeze(**WHY | {"reason": ""})


def test_the_api_forgets_a_pod_and_reports_why_the_expiry_is_frozen(call: Any) -> None:
    # Figures are fresh for 10 s. The first call of a process loads the API, which takes seconds.
    assert call("viewer", "GET", f"{API}/fleet").status_code == 200
    put_server("web-1")
    put_figures(frozen=True, frozen_silent=6, frozen_expected=20, frozen_until=1_800_000_000.0)
    fleet = call("viewer", "GET", f"{API}/fleet").json()
    assert (fleet["frozen_silent"], fleet["frozen_expected"]) == (6, 20)
    assert fleet["frozen_until"] == 1_800_000_000.0
    why = {"reason": "it was invented"}
    assert call("operator", "POST", f"{API}/servers/web-1/forget", why).json() == {"done": True}
    assert call("operator", "POST", f"{API}/servers/web-1/forget", why).status_code == 404
    assert call("operator", "POST", f"{API}/fleet/lift-freeze", why).json() == {"done": True}
