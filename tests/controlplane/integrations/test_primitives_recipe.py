"""The recipe of docs/primitives.md for a record in the transaction of the effect, on a real Postgres."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import fuseboard
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/primitives.md").read_text()


def blocks(language: str, word: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (code,) = [code for code in found if word in code]
    return str(code)


@pytest.fixture
def connect(settings: Any, transactional_db: Any) -> Iterator[Any]:
    """A function that connects to a schema with the table of the page, and an account with 100."""
    names = settings.DATABASES["default"]
    options = {name.lower(): names[name] for name in ("HOST", "PORT", "USER", "PASSWORD")}
    url = {"dbname": names["NAME"], **options, "autocommit": True}
    with psycopg.connect(**url) as admin:
        admin.execute("DROP SCHEMA IF EXISTS recipe CASCADE")
        admin.execute("CREATE SCHEMA recipe")
        admin.execute("SET search_path TO recipe")
        admin.execute(sql.SQL(blocks("sql", "CREATE TABLE")))  # type: ignore[arg-type] # of our own page
        admin.execute("CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL CHECK (balance >= 0))")
        admin.execute("INSERT INTO accounts VALUES (1, 100)")
        yield lambda: psycopg.connect(**url, options="-c search_path=recipe")
        admin.execute("DROP SCHEMA recipe CASCADE")


@pytest.fixture
def pay_once() -> Any:
    names: dict[str, Any] = {"fuseboard": fuseboard}
    exec(compile(blocks("python", "def pay_once"), "docs/primitives.md", "exec"), names)  # noqa: S102 - our page
    return names["pay_once"]


def balance(connect: Any) -> int:
    with connect() as connection:
        return int(connection.execute("SELECT balance FROM accounts").fetchone()[0])


def test_a_second_delivery_gets_the_result_and_pays_nothing(connect: Any, pay_once: Any) -> None:
    with connect() as connection:
        assert [pay_once(connection, 4711, 30) for _ in range(2)] == [{"paid": 30}] * 2
        assert pay_once(connection, 4712, 10) == {"paid": 10}
    assert balance(connect) == 60


def test_a_failed_effect_leaves_no_record(connect: Any, pay_once: Any) -> None:
    with connect() as connection:
        with pytest.raises(psycopg.errors.CheckViolation):
            pay_once(connection, 4711, 200)
        assert pay_once(connection, 4711, 20) == {"paid": 20}
    assert balance(connect) == 80


def test_deliveries_at_once_pay_once(connect: Any, pay_once: Any) -> None:
    def deliver(_: int) -> Any:
        with connect() as connection:
            return pay_once(connection, 4711, 30)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(deliver, range(8))) == [{"paid": 30}] * 8
    assert balance(connect) == 70


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_delivery_waits_for_the_end_of_the_first(connect: Any, pay_once: Any, commits: bool) -> None:
    results: list[Any] = []

    def deliver() -> None:
        with connect() as connection:
            results.append(pay_once(connection, 4711, 30))

    with connect() as first, connect() as looking:
        key = fuseboard.idempotency_key("order", "pay", order_id=4711)
        first.execute("BEGIN")
        first.execute("INSERT INTO done_once (key, result) VALUES (%s, '{\"paid\": 1}')", [key])
        second = threading.Thread(target=deliver)
        second.start()
        waits = "wait_event_type = 'Lock' AND query LIKE '%done_once%'"
        waiting = f"SELECT count(*) FROM pg_stat_activity WHERE {waits}"  # noqa: S608 - from above
        wait_until(lambda: looking.execute(waiting).fetchone()[0], "the second delivery waits")
        first.execute("COMMIT" if commits else "ROLLBACK")
        second.join()
    assert results == [{"paid": 1} if commits else {"paid": 30}]
    assert balance(connect) == (100 if commits else 70)
