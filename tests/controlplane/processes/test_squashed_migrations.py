"""Squashed migrations make the database that those they replace made, and change none that has it.

The code of earlier releases makes their databases, with the files that are replaced.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import psycopg
import pytest
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader

from controlplane.upgrades.required_stops import REQUIRED_STOPS
from tests.contract.compat import release
from tests.controlplane.processes.test_migration_lint import released
from tests.controlplane.web_process import database_url
from tests.postgres_programs import program
from tests.squashed import squashed_files

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("transactional_db")]

NAME = "squashed"


def squashed() -> dict[tuple[str, str], Migration]:
    found = MigrationLoader(None).disk_migrations
    return {node: migration for node, migration in found.items() if migration.replaces}


@contextmanager
def empty_database() -> Iterator[str]:
    """This process uses it, too, until the end."""
    url = database_url()
    of_tests = connection.settings_dict["NAME"]
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {NAME}")
        connection.close()
        connection.settings_dict["NAME"] = NAME
        ContentType.objects.clear_cache()
        try:
            yield url.rpartition("/")[0] + f"/{NAME}"
        finally:
            connection.close()
            connection.settings_dict["NAME"] = of_tests
            ContentType.objects.clear_cache()
            server.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


def migrate(*words: str) -> str:
    out = StringIO()
    call_command("migrate", *words, stdout=out, verbosity=1)
    return out.getvalue()


def rows_of_migrations(url: str) -> set[tuple[str, str]]:
    with psycopg.connect(url) as reading:
        return set(reading.execute("SELECT app, name FROM django_migrations").fetchall())


def content(url: str) -> tuple[str, set[str], set[tuple[str, ...]]]:
    """The schema, the tables that have rows, and the rows by their names: numbers depend on the order."""
    dump = subprocess.run(
        [program("pg_dump"), "--schema-only", "--no-owner", url], check=True, capture_output=True, text=True
    )
    # Newer versions print a random word in a command of psql.
    schema = re.sub(r"^\\.*$", "", dump.stdout, flags=re.MULTILINE)
    with psycopg.connect(url) as reading:
        tables = reading.execute("SELECT relname FROM pg_stat_user_tables").fetchall()
        filled = {
            table
            for (table,) in tables
            if reading.execute(f'SELECT FROM "{table}" LIMIT 1').rowcount  # type: ignore[call-overload]
        }
        rows = reading.execute(
            "SELECT app_label, model, p.name, codename FROM auth_permission p"
            " JOIN django_content_type c ON c.id = content_type_id"
        ).fetchall()
    return schema, filled, set(rows)


@pytest.fixture(scope="module")
def by_squashed_files(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> object:
    """What the squashed files make of an empty database, as when those that they replace are gone."""
    with django_db_blocker.unblock(), squashed_files(), empty_database() as url:  # type: ignore[attr-defined]
        migrate()
        # Code of the last release looks for these names: for it, nothing waits.
        assert {
            node for migration in squashed().values() for node in migration.replaces
        } <= rows_of_migrations(url)
        return content(url)


@pytest.mark.parametrize("earlier", release.SUPPORTED, ids=str)
def test_a_database_of_an_earlier_release_is_upgraded(
    earlier: release.Release, by_squashed_files: object, tmp_path: Path
) -> None:
    source = release.source(earlier.commit)
    with empty_database() as url:
        environment = os.environ | {
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "FUSEBOARD_DATA_DIR": str(tmp_path),
            "PYTHONPATH": release.python_path(source, source / "agents"),
        }
        command = [sys.executable, "-m", "django", "migrate"]
        subprocess.run([*command, "--verbosity", "0"], cwd=source, env=environment, check=True)
        loader = MigrationLoader(connection)
        names = [f"{app}.{name}" for app, name in squashed() if (app, name) not in loader.applied_migrations]
        plan = migrate("--check-only")
        if earlier == release.LAST:
            assert not names, "every squashed migration counts as applied"
            assert "_squashed_" not in plan
            with squashed_files():
                assert migrate("--check-only") == plan, "they need none of the earlier files"
        else:
            # The earlier files of an app are used where the database has some of them.
            assert "policies.0022_follow_latency" in plan
            assert "alerts.0001_squashed_0016_keep_the_worst_words" in plan
            # This app is then complete, and that of the tables which it refers to is not.
            migrate("breakers")
        migrate()
        assert "nothing to do" in migrate("--check-only")
        assert content(url) == by_squashed_files
        if earlier == release.LAST:
            # A job of that release runs it after a rollback.
            done = subprocess.run(
                command, cwd=source, env=environment, check=True, capture_output=True, text=True
            )
            assert "A later release has migrated this database: " in done.stdout
            assert content(url) == by_squashed_files


def test_a_squashed_migration_needs_no_more_of_other_apps_than_its_parts() -> None:
    """Its app can be complete in a database where another app has only a part of its own."""
    files = MigrationLoader(None).disk_migrations
    for node, migration in squashed().items():
        parts = [dependency for part in migration.replaces for dependency in files[part].dependencies]
        # The last one of each app.
        needed = {app: name for app, name in sorted(parts) if app != node[0]}
        assert dict(migration.dependencies) == needed, node


def test_only_released_migrations_are_squashed_and_their_files_are_needed_until_a_required_stop() -> None:
    """A database can have any part of what no release has had."""
    files = MigrationLoader(None).disk_migrations
    known = released()
    stops = {stop.migration for stop in REQUIRED_STOPS}
    for node, migration in squashed().items():
        assert {f"{app}/migrations/{name}.py" for app, name in migration.replaces} <= known, node
        if not set(migration.replaces) <= files.keys():
            assert stops, f"a database that has a part of {node} cannot be upgraded: see CONTRIBUTING.md"
