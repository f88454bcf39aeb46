"""A row that takes long stops neither other rows nor the figures."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from controlplane.gateway.postgres import portions
from controlplane.gateway.postgres.portions import Portions
from controlplane.gateway.process import Gateway
from controlplane.gateway.servers.rows import Row, row_of
from controlplane.gateway.settings import GatewaySettings
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, ready_gateway
from tests.waiting import eventually


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


def rows_of(count: int) -> list[Row]:
    fleet = ready_gateway().fleet("production")
    for n in range(count):
        fleet.absorb(beat(f"pod-{n:03}"))
    return [row_of(server) for server in fleet.servers.values()]


class Postgres:
    """Takes statements of rows. Those that contain a locked row time out, as do those with too many rows."""

    def __init__(self, clock: TurnedClock, *, locked: str = "", most: int = 10_000) -> None:
        self.locked, self.most = locked, most
        self.written: set[str] = set()
        self.timeouts = 0
        self.sizes: list[int] = []
        self._clock = clock

    def attempt(self, parts: Portions, rows: list[Row]) -> None:
        """As the flusher does it: the first timeout ends the attempt."""
        for part in parts.divide([row for row in rows if row.name not in self.written]):
            names = {row.name for row in part}
            self.sizes.append(len(part))
            if self.locked in names or len(part) > self.most:
                self.timeouts += 1
                self._clock.turn(3.0)
                parts.timed_out(part)
                return
            parts.wrote(part)
            self.written |= names


def test_a_locked_row_is_found_and_every_other_row_is_written(clock: TurnedClock) -> None:
    parts, rows, postgres = Portions(clock), rows_of(400), Postgres(clock, locked="pod-100")
    for _ in range(10):
        postgres.attempt(parts, rows)
    assert postgres.written == {row.name for row in rows} - {"pod-100"}
    # From 250 rows to one, by halves.
    assert postgres.timeouts == 8
    # Alone, it has to wait.
    assert list(parts.divide([row for row in rows if row.name == "pod-100"])) == []
    clock.turn(portions.AGAIN_S)
    postgres.locked = ""
    postgres.attempt(parts, rows)
    assert len(postgres.written) == 400


def test_rows_that_wait_come_after_all_others(clock: TurnedClock) -> None:
    parts, rows = Portions(clock), rows_of(300)
    parts.timed_out(rows[:250])
    assert [len(part) for part in parts.divide(rows)] == [50, 125, 125]


def test_a_slow_postgres_gets_small_statements_and_larger_ones_only_after_several_in_time(
    clock: TurnedClock,
) -> None:
    parts, rows, postgres = Portions(clock), rows_of(400), Postgres(clock, most=100)
    for _ in range(2):
        postgres.attempt(parts, rows)
    assert postgres.timeouts == 2
    for _ in range(5):
        postgres.written.clear()
        postgres.attempt(parts, rows)
    assert len(postgres.written) > 300
    assert postgres.timeouts <= 5


def test_an_attempt_begins_after_the_row_at_which_the_last_one_ended(clock: TurnedClock) -> None:
    parts, rows = Portions(clock), rows_of(600)
    parts.wrote(next(iter(parts.divide(rows))))
    again = [[row.name for row in part] for part in parts.divide(rows)]
    assert [part[0] for part in again] == ["pod-250", "pod-500", "pod-000"]
    assert all(part == sorted(part) for part in again)


@pytest.fixture
async def hasty(token: Any) -> AsyncIterator[Gateway]:
    """A gateway that waits 0.3 s for a statement."""
    started = Gateway(GatewaySettings(gateway="test", flush_timeout_s=0.3))
    started.start()
    await eventually(lambda: started.ready)
    yield started
    await started.stop()


async def test_a_row_that_another_session_locked_stops_neither_the_last_row_nor_the_figures(
    hasty: Gateway, database: Any
) -> None:
    fleet = hasty.fleet("production")
    for n in range(20):
        fleet.absorb(beat(f"pod-{n:02}"))
    hasty.hurry()

    async def first(query: str) -> Any:
        return await (await database.execute(query)).fetchone()

    async def all_rows() -> bool:
        return bool(await first("SELECT count(*) FROM fleet_server") == (20,))

    await eventually(all_rows)
    async with database.transaction():
        await database.execute("SELECT 1 FROM fleet_server WHERE name = 'pod-00' FOR UPDATE")
        for n in range(20):
            fleet.absorb(beat(f"pod-{n:02}", zone="moved", boot="boot-0002", up_ms=1))
        hasty.hurry()
        count = "SELECT count(*) FROM fleet_server WHERE zone = 'moved'"

        async def all_others() -> bool:
            return bool(await first(count) == (19,))

        await eventually(all_others, within_s=60.0)
        figures = "SELECT max(at) FROM fleet_figures"
        before = await first(figures)

        async def newer() -> bool:
            return bool(await first(figures) > before)

        # READ COMMITTED: each statement sees what was committed before it.
        await eventually(newer, within_s=60.0)
        assert await first("SELECT 1 FROM fleet_server WHERE name = 'pod-00' AND zone = 'moved'") is None
