"""The plan of ``manage.py migrate``: its operations, and about how many rows they read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations import Migration
from django.db.migrations.exceptions import AmbiguityError, NodeNotFoundError
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import (
    AddConstraint,
    AddIndex,
    AlterField,
    AlterUniqueTogether,
    RemoveConstraint,
    RemoveIndex,
    RunPython,
    RunSQL,
    SeparateDatabaseAndState,
)
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import Field

from controlplane.upgrades.operations import AddIndexConcurrently, Long

#: Postgres reads at least so many rows per second for an index, on one core with a slow disk.
_ROWS_PER_S = 200_000
#: Bytes of a row, where Postgres has not counted the rows of a table yet.
_BYTES_PER_ROW = 100
#: Every ordinary table by name, with the rows of its partitions.
_ROWS = f"""
    WITH RECURSIVE part AS (
        SELECT oid AS root, oid FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
        UNION ALL
        SELECT part.root, inhrelid FROM pg_inherits JOIN part ON inhparent = part.oid
    )
    SELECT root.relname, sum(
        CASE WHEN one.reltuples >= 0 OR one.relkind = 'p' THEN greatest(one.reltuples, 0)
        ELSE pg_relation_size(one.oid) / {_BYTES_PER_ROW} END
    )::bigint
    FROM part JOIN pg_class root ON root.oid = part.root JOIN pg_class one ON one.oid = part.oid
    GROUP BY root.relname
"""  # noqa: S608 - a constant
#: Bodies of functions, and statements that read no table.
_BODY = re.compile(r"\$\$.*?\$\$", re.DOTALL)
_OF_THE_CATALOGUE = re.compile(
    r"\s*(DROP|CREATE\s+(OR\s+REPLACE\s+)?(FUNCTION|TRIGGER|TABLE))\b", re.IGNORECASE
)
_EITHER_WAY = (AlterField, AlterUniqueTogether, RunSQL)
_READ_EVERY_ROW = {
    False: (AddConstraint, AddIndex, *_EITHER_WAY),
    # Undone, the one that removes an index builds it.
    True: (RemoveConstraint, RemoveIndex, *_EITHER_WAY),
}


class NoSuchMigration(LookupError):
    """No app or migration has this name, several have, or it is only a part of one."""


@dataclass(frozen=True)
class Step:
    migration: str
    #: Tables that it reads as a whole, with about how many rows each has.
    rows: Mapping[str, int]
    #: Whether it has Python code, whose work is unknown.
    code: bool
    long: bool
    concurrent: bool

    def __str__(self) -> str:
        return f"{self.migration}: {', '.join(self._words())}"

    def _words(self) -> Iterator[str]:
        total = sum(self.rows.values())
        if self.code:
            yield "runs code"
        for table, rows in self.rows.items():
            yield f"reads {table} (about {rows:,} rows)"
        if self.rows:
            yield f"about {total / _ROWS_PER_S:,.0f} s" if total >= _ROWS_PER_S else "less than 1 s"
        elif not self.code:
            yield "less than 1 s, reads no table"
        if self.long:
            yield "no time limit"
        if self.concurrent:
            yield "locks out no reader or writer"


@dataclass(frozen=True)
class Plan:
    steps: Sequence[Step]
    #: Whether it undoes migrations.
    backwards: bool
    applied: Mapping[tuple[str, str], Any]
    #: Applied migrations of apps of this release that it does not have.
    unknown: Sequence[str]


def plan_of(
    connection: BaseDatabaseWrapper,
    app: str | None,
    migration: str | None,
    *,
    without_migrations: bool = False,
) -> Plan:
    """Raises ``NoSuchMigration``, and ``NodeNotFoundError`` if files that the database needs are gone.

    ``without_migrations``: the app can be one that has none.
    """
    executor = MigrationExecutor(connection)
    loader = executor.loader
    loader.check_consistent_history(connection)
    syncs = without_migrations and app in loader.unmigrated_apps
    targets = [] if syncs else _targets(executor, app, migration)
    full = executor.migration_plan(targets)
    applied = loader.applied_migrations
    replaced = {name for one in loader.disk_migrations.values() for name in one.replaces}
    unknown = applied.keys() - loader.disk_migrations.keys() - replaced
    return Plan(
        steps=list(_steps(connection, executor, full)),
        backwards=any(backwards for _, backwards in full),
        applied=applied,
        unknown=sorted(f"{app}.{name}" for app, name in unknown if app in loader.migrated_apps),
    )


def applied_migrations(connection: BaseDatabaseWrapper) -> Mapping[tuple[str, str], Any]:
    """Also of a database for which there is no plan, because files that it needs are gone.

    A squashed migration counts if all that it replaces have been applied.
    """
    loader = MigrationLoader(connection, load=False)
    with suppress(NodeNotFoundError):
        loader.build_graph()
    return loader.applied_migrations


def _targets(
    executor: MigrationExecutor, app: str | None, migration: str | None
) -> list[tuple[str, str | None]]:
    graph = executor.loader.graph
    if not app:
        return list(graph.leaf_nodes())
    if app not in executor.loader.migrated_apps:
        raise NoSuchMigration(f"No app {app!r} has migrations.")
    if not migration:
        return [leaf for leaf in graph.leaf_nodes() if leaf[0] == app]
    if migration == "zero":
        return [(app, None)]
    try:
        node = (app, executor.loader.get_migration_by_prefix(app, migration).name)
    except (AmbiguityError, LookupError, ValueError) as error:
        raise NoSuchMigration(f"No migration of {app}, or several, begin with {migration!r}.") from error
    if node in graph.nodes:
        return [node]
    if node in executor.loader.replacements:
        # The database lacks a part of it, so Django applies its parts.
        return [executor.loader.replacements[node].replaces[-1]]
    squashed = next(one for one in graph.nodes.values() if node in one.replaces)
    raise NoSuchMigration(
        f"{app}.{node[1]} is a part of {app}.{squashed.name}, which is applied and undone as a whole."
        " Only migrate of an earlier release can apply or undo a part of it."
    )


def _steps(
    connection: BaseDatabaseWrapper, executor: MigrationExecutor, full: Sequence[tuple[Migration, bool]]
) -> Iterator[Step]:
    if not full:
        return
    with connection.cursor() as cursor:
        cursor.execute(_ROWS)
        rows: dict[str, int] = dict(cursor.fetchall())
    loader = executor.loader
    state = loader.project_state([node for node in loader.applied_migrations if node in loader.graph.nodes])
    for migration, backwards in full:
        if backwards:
            # The state before it: a later migration may have removed the field or the model.
            state = loader.project_state((migration.app_label, migration.name), at_end=False)
        operations = [part for operation in migration.operations for part in _parts(operation)]
        tables = {
            table
            for operation in operations
            if isinstance(operation, _READ_EVERY_ROW[backwards])
            for table in _tables(operation, migration.app_label, state, rows, backwards)
        }
        yield Step(
            migration=f"{migration.app_label}.{migration.name}",
            rows={table: rows[table] for table in sorted(tables & rows.keys())},
            code=any(isinstance(operation, RunPython) for operation in operations),
            long=any(
                isinstance(operation, Long) or (isinstance(operation, AddIndexConcurrently) and not backwards)
                for operation in migration.operations
            ),
            concurrent=bool(operations)
            and all(isinstance(operation, AddIndexConcurrently) for operation in operations),
        )
        if not backwards:
            state = migration.mutate_state(state, preserve=False)


def _parts(operation: Operation) -> Iterator[Operation]:
    if isinstance(operation, SeparateDatabaseAndState):
        for part in operation.database_operations:
            yield from _parts(part)
    else:
        yield operation


def _tables(
    operation: Operation, app: str, state: ProjectState, known: Mapping[str, int], backwards: bool
) -> set[str]:
    """Tables of which the operation reads or writes every row."""
    if isinstance(operation, RunSQL):
        written = operation.reverse_sql if backwards else operation.sql
        statements = _BODY.sub("", str(written or "")).split(";")
        reading = (one for one in statements if not _OF_THE_CATALOGUE.match(one))
        return {word for one in reading for word in re.findall(r"\w+", one)} & known.keys()
    model: str = getattr(operation, "model_name", "") or getattr(operation, "name", "")
    found = state.models.get((app, model.lower()))
    if found is None:
        return set()
    if isinstance(operation, AlterField) and _stored(found.fields[operation.name]) == _stored(
        operation.field
    ):
        return set()
    return {str(found.options.get("db_table") or f"{app}_{model.lower()}")}


def _stored(field: "Field[Any, Any]") -> tuple[Any, ...]:
    """The parts of a field that its column has; the others exist in Django only."""
    _, path, arguments, named = field.deconstruct()
    return path, arguments, {name: v for name, v in named.items() if name not in field.non_db_attrs}
