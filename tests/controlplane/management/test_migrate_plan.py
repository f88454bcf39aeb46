"""``manage.py migrate`` prints what it will do, and refuses what it cannot do, before its first statement."""

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.core.management.commands.migrate import Command as Migrate
from django.db import OperationalError, connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

from controlplane.management.commands.migrate import Command
from controlplane.upgrades import operations, plan, required_stops
from controlplane.upgrades.operations import AddIndexConcurrently, Long
from controlplane.upgrades.required_stops import RequiredStop
from tests.squashed import earlier_files, squashed_files

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments: str, **options: Any) -> str:
    out = StringIO()
    call_command("migrate", *arguments, stdout=out, **options)
    return out.getvalue()


@pytest.fixture
def earlier() -> Iterator[None]:
    """A database without the last two migrations of the audit, whose table has 1,000,000 entries."""
    with earlier_files():
        call_command("migrate", "audit", "0006", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT reltuples FROM pg_class WHERE relname = 'audit_entry'")
        counted = cursor.fetchone()
        cursor.execute("UPDATE pg_class SET reltuples = 1000000 WHERE relname = 'audit_entry'")
    yield
    call_command("migrate", "audit", verbosity=0)
    with connection.cursor() as cursor:
        # Plans of other tests depend on it.
        cursor.execute("UPDATE pg_class SET reltuples = %s WHERE relname = 'audit_entry'", counted)


def applied() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM django_migrations WHERE app = 'audit'")
        return {name for (name,) in cursor.fetchall()}


@pytest.mark.usefixtures("earlier")
def test_the_plan_names_tables_rows_and_seconds_and_check_only_changes_nothing() -> None:
    before = applied()
    text = run("--check-only", verbosity=0)
    assert text.splitlines() == [
        "Migrations to apply: 2",
        "  audit.0007_find_entries_by_request: reads audit_entry (about 1,000,000 rows), about 5 s,"
        " no time limit, locks out no reader or writer",
        "  audit.0008_find_cleared_counters: reads audit_entry (about 1,000,000 rows), about 5 s,"
        " no time limit, locks out no reader or writer",
    ]
    assert applied() == before
    assert "0008" not in run("audit", "0007", "--check-only")
    assert "Migrations to undo: 1\n  audit.0006" in run("audit", "0005", "--check-only")
    # The plan comes first, and then Django's own lines.
    done = run("audit", "0007")
    assert done.index("about 1,000,000 rows") < done.index("Applying audit.0007")
    assert applied() == before | {"0007_find_entries_by_request"}


@pytest.mark.usefixtures("earlier")
def test_what_was_migrated_before_an_error_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    before = applied()
    shown = Command.migration_progress_callback

    def fail_at_the_second(command: Command, action: str, migration: Any = None, fake: bool = False) -> None:
        shown(command, action, migration, fake)
        if action == "apply_start" and migration.name.startswith("0008"):
            raise RuntimeError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Command, "migration_progress_callback", fail_at_the_second)
        with pytest.raises(RuntimeError, match="the disk is full"):
            run(verbosity=0)
    assert applied() == before | {"0007_find_entries_by_request"}
    assert "Migrations to apply: 1" in run()
    assert applied() == before | {"0007_find_entries_by_request", "0008_find_cleared_counters"}


def test_with_nothing_to_do_check_only_says_so() -> None:
    assert run("--check-only") == "The database has every migration of this release: nothing to do.\n"


@pytest.mark.parametrize("given", [("away",), ("audit", "9999")])
def test_check_only_of_what_does_not_exist_fails(given: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match=given[-1]):
        run(*given, "--check-only")


def test_what_a_later_migration_has_removed_can_be_in_a_plan_to_undo() -> None:
    lines = run("contenttypes", "zero", "--check-only").splitlines()
    # It altered a field that it then removed.
    assert "  contenttypes.0002_remove_content_type_name: runs code, reads django_content_type" in [
        line.partition(" (about")[0] for line in lines
    ]


def test_an_index_that_is_removed_reads_no_table() -> None:
    with earlier_files():
        lines = run("audit", "0007", "--check-only").splitlines()
    # The first one names the squashed migrations, as with the release before them.
    assert lines[1:] == [
        "Migrations to undo: 1",
        "  audit.0008_find_cleared_counters: less than 1 s, reads no table, locks out no reader or writer",
    ]


def test_the_one_that_removed_an_index_builds_it_when_it_is_undone() -> None:
    state = ProjectState.from_apps(apps)
    removed = migrations.RemoveIndex("entry", "audit_by_request")
    found = {
        backwards: isinstance(removed, plan._READ_EVERY_ROW[backwards])
        and plan._tables(removed, "audit", state, {"audit_entry": 1}, backwards)
        for backwards in (False, True)
    }
    assert found == {False: False, True: {"audit_entry"}}


@pytest.mark.parametrize("option", ["--plan", "--check", "--prune"])
def test_check_only_counts_beside_options_of_django(option: str) -> None:
    assert "nothing to do" in run("audit", option, "--check-only")
    with pytest.raises(CommandError, match="9999"):
        run("audit", "9999", option, "--check-only")


@pytest.mark.parametrize("option", ["--plan", "--check"])
def test_options_of_django_that_show_a_plan_print_theirs_only(option: str) -> None:
    assert "nothing to do" not in run(option)


def test_a_required_release_cannot_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stops = (
        RequiredStop("0.2.0", ("audit", "0008_find_cleared_counters")),
        RequiredStop("0.7.0", ("audit", "0099_of_that_release")),
    )
    monkeypatch.setattr(required_stops, "REQUIRED_STOPS", stops)
    ran: list[None] = []
    monkeypatch.setattr(Migrate, "handle", lambda *_, **__: ran.append(None))
    for options in ((), ("--check-only",)):
        with pytest.raises(CommandError, match=r"not been at release 0\.7\.0.*Install release 0\.7\.0, run"):
            run(*options)
    assert not ran
    # Undoing migrations of this release leaves out no release, and neither does noting them.
    run("audit", "zero", "--check-only")
    run("--fake")
    assert ran
    # An empty database has left out nothing.
    assert required_stops.first_skipped({stop.migration for stop in stops}) is None


def test_a_database_of_a_later_release_is_named_and_stays_as_it_is() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('audit', '0099_later', now())"
        )
    try:
        text = run("--check-only")
        assert text.startswith("A later release has migrated this database: audit.0099_later.")
        assert "0099_later" in run()
        assert "0099_later" in applied()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM django_migrations WHERE name = '0099_later'")


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("UPDATE audit_entry SET x = 1", {"audit_entry"}),
        ("INSERT INTO ledger_usageday SELECT * FROM audit_entry", {"audit_entry", "ledger_usageday"}),
        ("CREATE FUNCTION f() RETURNS void AS $$ SELECT 1; DELETE FROM audit_entry; $$", set()),
        ("CREATE TRIGGER t BEFORE INSERT ON audit_entry; DROP TABLE ledger_usageday", set()),
    ],
)
def test_tables_of_sql(sql: str, tables: set[str]) -> None:
    known = {"audit_entry": 1, "ledger_usageday": 1}
    assert plan._tables(migrations.RunSQL(sql), "audit", ProjectState(), known, False) == tables
    undone = migrations.RunSQL("SELECT 1 FROM audit_entry", sql)
    assert plan._tables(undone, "audit", ProjectState(), known, True) == tables
    assert plan._tables(migrations.RunSQL(sql), "audit", ProjectState(), known, True) == set()


def test_a_table_that_postgres_has_not_counted_is_estimated_by_its_size() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE measured AS SELECT repeat('x', 60) FROM generate_series(1, 1000)")
        try:
            cursor.execute(plan._ROWS)
            assert 500 < dict(cursor.fetchall())["measured"] < 2_000
        finally:
            cursor.execute("DROP TABLE measured")


def test_only_statements_of_long_operations_have_no_time_limit() -> None:
    sleep = migrations.RunSQL("SELECT pg_sleep(0.3)", "SELECT pg_sleep(0.3)")
    state = ProjectState()
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '100ms'")
    try:
        with pytest.raises(OperationalError), connection.schema_editor() as editor:
            sleep.database_forwards("audit", editor, state, state)
        for direction in ("database_forwards", "database_backwards"):
            with connection.schema_editor() as editor:
                getattr(Long(sleep), direction)("audit", editor, state, state)
    finally:
        connection.close()


def test_a_concurrent_index_that_was_interrupted_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ProjectState()
    state.add_model(
        migrations.state.ModelState("audit", "Walk", [("id", models.BigAutoField(primary_key=True))])
    )
    index = AddIndexConcurrently("walk", models.Index(fields=["-id"], name="walk_by_id"))
    later = state.clone()
    index.state_forwards("audit", later)
    [operation] = [migrations.CreateModel("Walk", [("id", models.BigAutoField(primary_key=True))])]
    with connection.schema_editor() as editor:
        operation.database_forwards("audit", editor, ProjectState(), state)

    def build() -> None:
        with connection.schema_editor(atomic=False) as editor:
            index.database_forwards("audit", editor, state, later)

    def valid() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(operations._VALID, ["walk_by_id"])
            [found] = cursor.fetchone()
            return bool(found)

    try:
        build()
        with connection.cursor() as cursor:
            cursor.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'walk_by_id'::regclass")
        assert not valid()
        build()
        assert valid()
        build()  # As after a migration whose second index met a lock.
        assert valid()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE audit_walk")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            "0004",
            r"audit\.0004_move_heads_once is a part of audit\.0001_squashed_\w+, which is applied and undone",
        ),
        ("0001", "or several, begin with '0001'"),
    ],
)
def test_a_part_of_a_squashed_migration_is_no_target(asked: str, said: str) -> None:
    for option in ((), ("--check-only",)):
        with pytest.raises(CommandError, match=said):
            run("audit", asked, *option)


@pytest.mark.usefixtures("earlier")
def test_a_squashed_migration_is_a_target_also_for_a_database_that_lacks_a_part_of_it() -> None:
    assert "Migrations to apply: 2" in run("audit", "0001_squashed", "--check-only")


@pytest.mark.parametrize("app", ["audit", "policies"])
def test_a_database_from_before_a_required_release_is_refused_when_earlier_files_are_gone(
    monkeypatch: pytest.MonkeyPatch, app: str
) -> None:
    """Others depend on ``policies``, so no plan can be made without its files. On ``audit``, none does."""
    squashed = next(
        node for node in plan.applied_migrations(connection) if node[0] == app and "squashed" in node[1]
    )
    stops = (RequiredStop("0.2.0", squashed),)
    monkeypatch.setattr(required_stops, "REQUIRED_STOPS", stops)
    with squashed_files():
        assert "nothing to do" in run("--check-only")
        parts = [name for _, name in MigrationLoader(connection).disk_migrations[squashed].replaces]
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT max(id) FROM django_migrations WHERE app = %s AND name = ANY(%s)", [app, parts]
            )
            cursor.execute("UPDATE django_migrations SET app = 'lacking' WHERE id = %s", cursor.fetchone())
        try:
            for options in ((), ("--check-only",)):
                with pytest.raises(CommandError, match=r"not been at release 0\.2\.0"):
                    run(*options)
        finally:
            with connection.cursor() as cursor:
                cursor.execute("UPDATE django_migrations SET app = %s WHERE app = 'lacking'", [app])
