"""A pod reports up to 500 breakers, every second if it wants to: no other pod notices."""

from typing import Any

import pytest

from controlplane.fleet.models import MAX_EVENTS_PER_HOUR, Event
from controlplane.gateway.postgres import flush
from controlplane.gateway.postgres.portions import Portions
from controlplane.gateway.servers.rows import row_of
from controlplane.status.read_facts import RECENT_OF_ONE_POD, recent_events
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import BreakerState, Mode
from tests.controlplane.gateway.manual_gateway import beat, post, ready_gateway
from tests.dashboard.fleet_rows import breaker, put_server
from tests.waiting import eventually


def views(count: int, **fields: Any) -> tuple[BreakerView, ...]:
    return tuple(BreakerView(dependency=f"invented-{n}", local=True, **fields) for n in range(count))


async def test_a_dependency_that_is_named_twice_is_refused_with_its_place() -> None:
    ready = ready_gateway()
    twice = (*views(3), BreakerView(dependency="invented-1", state=BreakerState.OPEN))
    answer = await post(ready, beat(breakers=twice))
    assert (answer.status_code, answer.json()["field"]) == (422, "breakers[3].dependency")
    assert "'invented-1' occurs twice" in answer.json()["detail"]
    assert (await post(ready, beat(breakers=views(500)))).status_code == 200


def test_a_row_names_a_dependency_once(gateway_of_the_past: Any) -> None:
    assert [view.dependency for view in row_of(gateway_of_the_past).breakers] == ["openai"]


@pytest.fixture
def gateway_of_the_past() -> Any:
    """A pod whose breakers were accepted before repeated ones were refused."""
    fleet = ready_gateway().fleet("production")
    fleet.absorb(beat(breakers=(BreakerView(dependency="openai"), BreakerView(dependency="openai"))))
    return fleet.servers["pod-1"]


async def test_250_pods_with_500_own_breakers_stop_no_other_pod(gateway: Any, database: Any) -> None:
    """Written as one batch, these rows took longer than a statement may."""
    fleet = gateway.fleet("production")
    for generation, mode in enumerate((Mode.SHARED, Mode.LOCAL)):
        reported = views(500, generation=generation)
        for n in range(250):
            fleet.absorb(beat(f"invented-{n:03}", breakers=reported))
        # Rows are written in the order of names, so this is the last one.
        fleet.absorb(beat("zz-real", mode=mode))
        gateway.hurry()

        async def is_written(mode: Mode = mode) -> bool:
            cursor = await database.execute("SELECT mode FROM fleet_server WHERE name = 'zz-real'")
            return bool(await cursor.fetchone() == (mode.value,))

        await eventually(is_written, "the last row is written", within_s=100.0, every_s=0.1)
    # So that the last batch of the gateway is short.
    for name in list(fleet.servers):
        fleet.hand_over(name)


def test_a_statement_contains_a_bounded_number_of_breakers() -> None:
    ready = ready_gateway()
    portions = Portions(ready.clock)
    fleet = ready.fleet("production")
    for n in range(300):
        fleet.absorb(beat(f"pod-{n}"))
        fleet.absorb(beat(f"invented-{n}", breakers=views(500)))
    plain = [row_of(fleet.servers[f"pod-{n}"]) for n in range(300)]
    heavy = [row_of(fleet.servers[f"invented-{n}"]) for n in range(25)]
    assert [len(part) for part in portions.divide(plain)] == [250, 50]
    assert [len(part) for part in portions.divide(heavy)] == [10, 10, 5]
    assert [row for part in portions.divide(heavy + plain) for row in part] == heavy + plain


async def test_after_a_timeout_the_rows_are_written_in_halves(
    gateway: Any, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    upsert = flush.Flusher._upsert

    async def slow(self: Any, connection: Any, rows: Any) -> None:
        sizes.append(len(rows))
        if len(rows) > 2:
            raise TimeoutError
        await upsert(self, connection, rows)

    monkeypatch.setattr(flush.Flusher, "_upsert", slow)
    fleet = gateway.fleet("production")
    for n in range(8):
        fleet.absorb(beat(f"pod-{n}"))
    gateway.hurry()

    async def written() -> bool:
        cursor = await database.execute("SELECT count(*) FROM fleet_server")
        return bool(await cursor.fetchone() == (8,))

    await eventually(written)
    assert sizes == [8, 4, 4, 2, 2, 2, 2]


def test_a_pod_writes_a_bounded_number_of_events_and_hides_none_of_others(production: str) -> None:
    put_server("web-2", mode="local", mode_cause="connection refused")
    for turn in range(40):
        names = [f"invented-{turn}-{n}" for n in range(20)]
        state = "open" if turn % 2 else "half_open"
        put_server("web-1", breakers=[breaker(name, state, local=True) for name in names])
        put_server("web-1", mode="local" if turn % 2 else "shared", breakers=[])
    assert Event.objects.filter(server="web-1").count() == MAX_EVENTS_PER_HOUR
    found = recent_events("production")
    assert {name for one in found for name in one.names} == {"web-1", "web-2"}
    assert 1 < len(found) <= RECENT_OF_ONE_POD + 1
    assert list(found) == sorted(found, key=lambda one: one.at, reverse=True)
    # A pod that is quiet for an hour writes again.
    Event.objects.update(at="2026-01-01T00:00:00Z")
    put_server("web-1", mode="ramping", mode_cause="again")
    assert Event.objects.filter(server="web-1", kind="mode", detail__contains="again").count() == 1
