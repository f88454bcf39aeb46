"""Runs the code of docs/databases.md against a real Postgres, and judges real errors of both libraries."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuseboard import Refused
from fuseboard.contract.policy import BreakerPolicy, Dependency, Policy
from fuseboard.contract.words import Reason
from fuseboard.decision import Permit
from tests.agents.alone import NOWHERE, settings_with
from tests.agents.servers import POLICY
from tests.agents.test_classification import flags
from tests.llm.pods import outcomes
from tests.waiting import eventually

psycopg = pytest.importorskip("psycopg")
sqlalchemy = pytest.importorskip("sqlalchemy")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "databases.md").read_text()
KINDS = ["psycopg", "psycopg on a loop", "SQLAlchemy", "SQLAlchemy on a loop"]
#: A sleep that no test waits for.
SLEEP = "SELECT pg_sleep(60)"


def policy(**more: Any) -> Policy:
    breaker = BreakerPolicy(consecutive_failures=more.pop("consecutive_failures", 1000), open_ms=60_000)
    dependency = Dependency(name="orders-db", breaker=breaker, **{"timeout_ms": 30_000, **more})
    return msgspec.structs.replace(POLICY, dependencies=(dependency,))


class Page:
    """The names of the page, with its pools open."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        for code in re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL):
            exec(compile(code, "docs/databases.md", "exec"), self.names)  # noqa: S102 - our own page

    async def start(self) -> None:
        await self.names["agent"].start()
        await asyncio.to_thread(self.names["pool"].open, True)
        await self.names["async_pool"].open(True)

    async def stop(self) -> None:
        await self.names["async_pool"].close()
        await self.names["async_engine"].dispose()
        self.names["engine"].dispose()
        await asyncio.to_thread(self.names["pool"].close)
        await asyncio.to_thread(self.names["worker"].stop)
        await self.names["agent"].stop()

    async def run(self, kind: str, statement: str) -> Any:
        """The first value of a statement, in a transaction of this kind."""
        query = sqlalchemy.text(statement) if "SQLAlchemy" in kind else statement
        if kind == "psycopg on a loop":
            async with self.names["orders_on_a_loop"]() as connection:
                return (await (await connection.execute(query)).fetchone())[0]
        if kind == "SQLAlchemy on a loop":
            async with self.names["session_on_a_loop"]() as session:
                return (await session.execute(query)).scalar()
        return await asyncio.to_thread(self._run, kind, query)

    def _run(self, kind: str, query: Any) -> Any:
        if kind == "psycopg":
            with self.names["orders"]() as connection:
                return connection.execute(query).fetchone()[0]
        with self.names["session"]() as session:
            return session.execute(query).scalar()

    def outcomes(self, kind: str) -> dict[str, int]:
        return outcomes(self.names["agent" if "loop" in kind else "worker"], "orders-db")


async def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, rules: Policy) -> Page:
    bootstrap = settings_with(folder, rules).bootstrap_file
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"FUSEBOARD_{name}", raising=False)
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", NOWHERE)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(folder))
    monkeypatch.setenv("FUSEBOARD_BOOTSTRAP_FILE", str(bootstrap))
    url = os.environ["DATABASE_URL"]
    monkeypatch.setenv("ORDERS_URL", url)
    monkeypatch.setenv("ORDERS_ENGINE", re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url))
    page = Page()
    await page.start()
    return page


@pytest.fixture
async def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Page]:
    page = await opened(tmp_path, monkeypatch, policy())
    yield page
    await page.stop()


@pytest.fixture
async def hurried_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Page]:
    """Its calls have a second, and one failure opens the breaker."""
    page = await opened(tmp_path, monkeypatch, policy(timeout_ms=1000, consecutive_failures=1))
    yield page
    await page.stop()


def fails_with(state: str) -> str:
    """A statement that fails with this SQLSTATE."""
    return f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_class_of_an_error_is_the_outcome_of_a_transaction(page: Page, kind: str):
    assert await page.run(kind, "SELECT 7") == 7
    neutral = [
        "SELECT 1/0",
        "SELEC 1",
        fails_with("23505"),
        fails_with("40001"),
        fails_with("40P01"),
        fails_with("0A000"),
        fails_with("54000"),
    ]
    for statement in neutral:
        with pytest.raises((psycopg.Error, sqlalchemy.exc.DBAPIError)):
            await page.run(kind, statement)
    failures = ["SELECT pg_terminate_backend(pg_backend_pid())", fails_with("57P03"), fails_with("53300")]
    for statement in failures:
        with pytest.raises((psycopg.OperationalError, sqlalchemy.exc.OperationalError)):
            await page.run(kind, statement)
    expected = {"ok": 1, "neutral": len(neutral), "failure": len(failures)}
    await eventually(lambda: page.outcomes(kind), accept=lambda found: found == expected)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_statement_that_takes_too_long_is_cancelled_and_opens_the_breaker(
    hurried_page: Page, kind: str
):
    with pytest.raises((psycopg.errors.QueryCanceled, sqlalchemy.exc.OperationalError, TimeoutError)):
        await hurried_page.run(kind, SLEEP)
    await eventually(lambda: hurried_page.outcomes(kind), accept=lambda found: found == {"failure": 1})

    async def sleeping() -> int:
        with psycopg.connect(os.environ["ORDERS_URL"]) as connection:
            found = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE query = %s", [SLEEP])
            return int(found.fetchone()[0])

    await eventually(sleeping, accept=lambda count: count == 0)
    with pytest.raises(Refused) as refused:
        await hurried_page.run(kind, "SELECT 7")
    assert refused.value.decision.reason is Reason.BREAKER_OPEN


@pytest.mark.parametrize("kind", ["psycopg", "SQLAlchemy"])
async def test_a_call_with_hardly_any_time_left_has_a_timeout(page: Page, kind: str):
    worker = page.names["worker"]

    class Late:
        """Its calls have less than a millisecond left."""

        @staticmethod
        @contextmanager
        def call(name: str) -> Iterator[Permit]:
            with worker.call(name) as permit:
                permit.timeout_s = 0.0004
                yield permit

    page.names["worker"] = Late
    try:
        with pytest.raises((psycopg.errors.QueryCanceled, sqlalchemy.exc.OperationalError)):
            await page.run(kind, "SELECT pg_sleep(5)")
    finally:
        page.names["worker"] = worker


def test_both_pools_of_the_page_have_the_connections_that_it_counts_on(page: Page):
    assert page.names["async_pool"].max_size == page.names["pool"].max_size == 10


def test_errors_of_pools_say_whose_shortage_it_is():
    import psycopg_pool

    orm = pytest.importorskip("sqlalchemy.orm.exc")
    for error, expected in (
        (psycopg_pool.PoolTimeout("late"), "RT"),
        (psycopg_pool.TooManyRequests("full"), ""),
        (sqlalchemy.exc.TimeoutError("late"), ""),
        (sqlalchemy.exc.NoResultFound("none"), ""),
        (sqlalchemy.exc.ArgumentError("wrong"), ""),
        (orm.StaleDataError("another was first"), ""),
        (orm.DetachedInstanceError("closed"), ""),
        (orm.FlushError("no key"), ""),
    ):
        assert flags(error) == expected, repr(error)
