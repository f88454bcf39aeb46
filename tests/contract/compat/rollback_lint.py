"""Code of the release before on a database of the release after: what its statements would miss.

The file is run by its path, so that PYTHONPATH and the working folder select the control plane's version. It
prints one line for each problem. docs/upgrading.md says what it does not see.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_COLUMNS = """
    SELECT table_name, column_name, is_nullable = 'YES', column_default IS NOT NULL OR is_identity = 'YES'
           OR is_generated = 'ALWAYS', character_maximum_length
    FROM information_schema.columns WHERE table_schema = current_schema()
"""
#: A table that a statement in Python names, or a function that returns one.
_NAMED = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE(?: ONLY)?)\s+([a-z]\w*_\w+)")
_RELATIONS = """
    SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace
    UNION SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
"""

#: Checks, unique constraints and indexes, and triggers of the tables, with the columns of a constraint.
_RULES = """
    SELECT relname, conname, ARRAY(
        SELECT attname::text FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY(conkey)
    )
    FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
    WHERE contype IN ('c', 'u', 'x') AND relnamespace = current_schema()::regnamespace AND NOT relispartition
    UNION ALL
    SELECT relname, indexrelid::regclass::text, '{}' FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
    WHERE indisunique AND relnamespace = current_schema()::regnamespace AND NOT relispartition
        AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
    UNION ALL
    SELECT relname, tgname, '{}' FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    WHERE NOT tgisinternal AND relnamespace = current_schema()::regnamespace AND NOT relispartition
"""
_PGTRIGGER = re.compile(r"^pgtrigger_|_[0-9a-f]{5}$")


class Column(NamedTuple):
    nullable: bool
    has_default: bool
    length: int | None


def problems(cursor: Any, models: list[Any], source: Path) -> Iterator[str]:
    tables: dict[str, dict[str, Column]] = {}
    cursor.execute(_COLUMNS)
    for table, name, *rest in cursor.fetchall():
        tables.setdefault(table, {})[name] = Column(*rest)
    for model in models:
        if model._meta.managed and not model._meta.proxy:
            yield from _of_model(model, tables)
    yield from _of_rules(cursor, models, source)
    labels = {model._meta.app_label for model in models}
    cursor.execute(_RELATIONS)
    there = {name for (name,) in cursor.fetchall()}
    for name, file in sorted(_in_sql(source).items()):
        if name.partition("_")[0] in labels and name not in there:
            yield f"{name}: it is gone, and {file} uses it"


def _of_rules(cursor: Any, models: list[Any], source: Path) -> Iterator[str]:
    """A rule that the earlier code names nowhere can refuse what that code stores."""
    earlier = "".join(file.read_text() for file in sorted((source / "controlplane").rglob("*.py")))
    known = {model._meta.db_table: model for model in models}
    cursor.execute(_RULES)
    for table, name, columns in sorted(cursor.fetchall()):
        if table in known and _PGTRIGGER.sub("", name) not in earlier:
            names, unique = _of_model_itself(known[table])
            if name not in names and frozenset(columns) not in unique:
                yield f"{table}: the rule {name} is new, and can refuse what the earlier code stores"


def _of_model_itself(model: Any) -> tuple[set[str], set[frozenset[str]]]:
    """Names of its rules, also if no file here has them, and columns that are unique together.

    Django and Postgres name the checks of fields, and what is unique in a field or together.
    """
    from django.db import connection

    meta = model._meta
    fields = meta.local_concrete_fields
    checks = {f"{meta.db_table}_{field.column}_check" for field in fields if field.db_check(connection)}
    unique = {frozenset({field.column}) for field in fields if field.unique}
    together = (frozenset(meta.get_field(name).column for name in names) for names in meta.unique_together)
    return checks | {rule.name for rule in meta.constraints}, unique | set(together)


def _of_model(model: Any, tables: dict[str, dict[str, Column]]) -> Iterator[str]:
    table = model._meta.db_table
    if table not in tables:
        yield f"{table}: the table is gone"
        return
    known = {field.column: field for field in model._meta.local_concrete_fields}
    for name, field in known.items():
        column = tables[table].get(name)
        if column is None:
            yield f"{table}.{name}: the column is gone"
            continue
        if field.null and not column.nullable:
            yield f"{table}.{name}: NOT NULL, and the earlier code stores NULL"
        if column.nullable and not field.null:
            yield f"{table}.{name}: can be NULL, and the earlier code reads a value"
        if column.length is not None and column.length < (field.max_length or 0):
            yield f"{table}.{name}: {column.length} characters at most, and the earlier code stores more"
    for name, column in tables[table].items():
        if name not in known and not column.nullable and not column.has_default:
            yield f"{table}.{name}: NOT NULL without a default, and no INSERT of the earlier code has it"


def _in_sql(source: Path) -> dict[str, Path]:
    """Name -> the first file that has it in a statement."""
    found: dict[str, Path] = {}
    for package in ("controlplane", "dashboard"):
        for file in sorted((source / package).rglob("*.py")):
            if "migrations" not in file.parts:
                for name in _NAMED.findall(file.read_text()):
                    found.setdefault(name, file.relative_to(source))
    return found


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django

    django.setup()
    from django.apps import apps
    from django.db import connection

    with connection.cursor() as cursor:
        found = list(problems(cursor, list(apps.get_models(include_auto_created=True)), Path.cwd()))
    sys.stdout.writelines(f"{line}\n" for line in found)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
