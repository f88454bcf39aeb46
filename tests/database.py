"""The tests' database: emptied between tests, and filled again with rows that are dear to make."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import redis
from django.conf import settings
from django.core.management.commands import flush
from django.db import connection

from controlplane import notify_channels
from controlplane.audit.guards import TRUNCATED

#: Django fills these itself, once.
_DJANGOS_OWN = {"django_content_type", "auth_permission", "django_migrations"}
#: Rows are deleted, which costs little for a few of them; a table that has grown is truncated.
_GROWN_BYTES = 1_000_000
#: Rows older than this are made again: pages say how long ago something changed.
_FRESH_S = 30.0

_NO_TRIGGERS = "SET LOCAL session_replication_role = replica"
#: The connection that empties and fills. Django closes its own after each test, and Postgres reads the
#: catalog of 100 tables again for the next one: 15 ms of processor time.
_kept: psycopg.Connection | None = None
_EMPTY = """
CREATE OR REPLACE FUNCTION empty_tables() RETURNS void LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE grown text;
BEGIN
    SELECT string_agg(name, ', ') INTO grown FROM unnest('{{{tables}}}'::text[]) AS name
    WHERE pg_relation_size(name::regclass) > {grown_bytes};
    IF grown IS NOT NULL THEN
        BEGIN
            EXECUTE 'TRUNCATE ' || grown || ' CASCADE';
        EXCEPTION WHEN lock_not_available THEN
            NULL; -- Another process reads a table. Its rows are deleted, and the next call tries again.
        END;
    END IF;
    SET LOCAL lock_timeout = '20s';
    {deletes}
END $$
"""


def prepare() -> None:
    """Have ``flush`` delete what is there, past the triggers that guard the audit."""
    tables = _tables()
    deletes = "\n".join(f"DELETE FROM {table};" for table in tables)  # noqa: S608 - names of tables
    with connection.cursor() as cursor:
        cursor.execute(_EMPTY.format(deletes=deletes, tables=",".join(tables), grown_bytes=_GROWN_BYTES))
        # So that a plan does not depend on when autovacuum looked at a table.
        cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname = ANY(%s)", [tables])
        for (table,) in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        cursor.execute(
            "SELECT format('ALTER TABLE %%s DISABLE TRIGGER %%I', tgrelid::regclass, tgname)"
            " FROM pg_trigger WHERE tgname = %s OR tgname LIKE 'pgtrigger_never_emptied%%'",
            [TRUNCATED],
        )
        for (statement,) in cursor.fetchall():
            cursor.execute(statement)
        cursor.execute(
            "SELECT string_agg(DISTINCT tgname, ',') FROM pg_trigger WHERE tgname LIKE 'pgtrigger_%%'"
        )
        [(guards,)] = cursor.fetchall()
    emptying = f"{_NO_TRIGGERS}; SET LOCAL pgtrigger.ignore = '{{{guards}}}'; SELECT empty_tables()"
    flush.Command.handle = lambda *_, **__: _run(emptying)  # type: ignore[method-assign]


def close() -> None:
    if _kept is not None:
        _kept.close()


def _connect() -> psycopg.Connection:
    test = connection.settings_dict
    place = {"host": test["HOST"], "port": test["PORT"], "user": test["USER"], "dbname": test["NAME"]}
    return psycopg.connect(**place, password=test["PASSWORD"], autocommit=True)


def _run(statements: str) -> None:
    """Run them in one transaction."""
    global _kept
    if _kept is None or _kept.closed:
        _kept = _connect()
    try:
        with _kept.transaction():
            _kept.execute(statements.encode())
    except psycopg.errors.AdminShutdown:
        # A test has ended all idle sessions: that is a part of ``migrate`` behind a pooler.
        _kept.close()
        _run(statements)


@dataclass
class _Made:
    at: float
    tables: list[str]
    keys: dict[bytes, tuple[int, bytes]]
    notices: list[tuple[str, str]]


_made: dict[str, _Made] = {}


def fill(name: str, make: Callable[[], object], limits: redis.Redis) -> None:
    """Call ``make``, or restore what it left a moment ago; Redis is empty before."""
    if os.environ["FUSEBOARD_REDIS_URL"] != settings.REDIS_URL:
        # The test publishes to another Redis, which has no keys to save or restore.
        make()
        return
    made = _made.get(name)
    if made is not None and time.monotonic() - made.at <= _FRESH_S:
        _put_back(name, made, limits)
    elif _has_rows():
        # Rows of this test, or of a process that wrote after the end of the last one. They are not kept.
        make()
    else:
        _made[name] = _keep(name, make, limits)


def _has_rows() -> bool:
    anything = " OR ".join(f"EXISTS (SELECT FROM {table})" for table in _tables())
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {anything}")
        return bool(cursor.fetchone()[0])


def _keep(name: str, make: Callable[[], object], limits: redis.Redis) -> _Made:
    """What ``make`` leaves: rows in a schema beside, keys, and the notices that were sent."""
    began = time.monotonic()
    notices: list[tuple[str, str]] = []
    with _connect() as listener:
        listener.add_notify_handler(lambda notice: notices.append((notice.channel, notice.payload)))
        for channel in (notify_channels.CONFIG, notify_channels.TOKENS):
            listener.execute(f"LISTEN {channel}")
        make()
        listener.execute("SELECT 1")  # what was sent comes with the answer
        listener.execute(f"DROP SCHEMA IF EXISTS {_beside(name)} CASCADE")
        listener.execute(f"CREATE SCHEMA {_beside(name)}")
        tables = [table for table in _tables() if listener.execute(f"SELECT FROM {table} LIMIT 1").rowcount]
        for table in tables:
            listener.execute(f"CREATE UNLOGGED TABLE {_beside(name)}.{table} AS TABLE {table}")
    keys = {key: (max(limits.pttl(key), 0), limits.dump(key)) for key in limits.scan_iter()}
    return _Made(began, tables, keys, notices)


def _put_back(name: str, made: _Made, limits: redis.Redis) -> None:
    source = _beside(name)
    inserts = [f"INSERT INTO {table} SELECT * FROM {source}.{table}" for table in made.tables]  # noqa: S608
    with limits.pipeline(transaction=False) as pipeline:
        for key, (left_ms, value) in made.keys.items():
            pipeline.restore(key, left_ms, value)
        pipeline.execute()
    sent = [f"SELECT pg_notify('{channel}', '{payload}')" for channel, payload in made.notices]
    _run("; ".join([_NO_TRIGGERS, *inserts, *sent]))


def _beside(name: str) -> str:
    return f"kept_{name}"


def _tables() -> list[str]:
    return sorted(set(connection.introspection.table_names()) - _DJANGOS_OWN)
