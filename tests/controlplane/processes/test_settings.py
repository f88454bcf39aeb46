import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connection, transaction
from django.db.migrations.loader import MigrationLoader

from controlplane import command_line, env
from controlplane.audit.models import Entry
from controlplane.checks import VARIABLES

PROJECT = Path(__file__).resolve().parents[3]


def django(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command in a separate process with these variables only."""
    # Not manage.py, which looks first whether every server answers.
    program = (
        "import sys; from controlplane.management.commands_loaded import Commands;"
        "Commands(['manage.py', *sys.argv[1:]]).execute()"
    )
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        cwd=PROJECT,
        env={
            "PATH": os.environ["PATH"],
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


def documented(tmp_path: Path) -> dict[str, str]:
    return {
        "DATABASE_URL": os.environ["DATABASE_URL"],
        "FUSEBOARD_REDIS_URL": os.environ["FUSEBOARD_REDIS_URL"],
        "FUSEBOARD_BROKER_URL": os.environ["FUSEBOARD_BROKER_URL"],
        "FUSEBOARD_SECRET_KEY": "k" * 25 + "0123456789" * 5,
        "FUSEBOARD_ALLOWED_HOSTS": "board.example.com",
        "FUSEBOARD_ORIGINS": "https://board.example.com",
        "FUSEBOARD_MFA_ROLES": "operator,admin",
        "FUSEBOARD_DATA_DIR": str(tmp_path),
    }


def test_check_deploy_is_clean_with_the_documented_variables(tmp_path: Path) -> None:
    done = django("check", "--deploy", "--fail-level", "WARNING", **documented(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


@pytest.mark.parametrize(
    ("variable", "options"),
    [("DATABASE_URL", ()), ("FUSEBOARD_REDIS_URL", ()), ("FUSEBOARD_BROKER_URL", ("--deploy",))],
)
def test_a_store_that_is_not_configured_is_named(
    tmp_path: Path, variable: str, options: tuple[str, ...]
) -> None:
    variables = documented(tmp_path)
    del variables[variable]
    done = django("check", *options, **variables)
    assert done.returncode == 1
    assert f"{variable} is not set" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_that_enqueues_nothing_needs_no_address_of_the_queue(tmp_path: Path) -> None:
    """Then a gateway, which the whole fleet reaches, does not know the queue's password."""
    variables = documented(tmp_path)
    del variables["FUSEBOARD_BROKER_URL"]
    assert django("check", **variables).returncode == 0


@pytest.mark.parametrize(
    ("command", "configured", "started"),
    [
        ("web", ["DATABASE_URL", "FUSEBOARD_REDIS_URL"], []),
        ("first_admin", ["DATABASE_URL", "FUSEBOARD_REDIS_URL"], []),
        ("worker", ["DATABASE_URL", "FUSEBOARD_REDIS_URL"], ["FUSEBOARD_BROKER_URL"]),
        ("beat", ["DATABASE_URL", "FUSEBOARD_REDIS_URL"], ["FUSEBOARD_BROKER_URL"]),
        ("web", ["DATABASE_URL"], ["FUSEBOARD_REDIS_URL", "FUSEBOARD_BROKER_URL"]),
        ("web", [], ["DATABASE_URL", "FUSEBOARD_REDIS_URL", "FUSEBOARD_BROKER_URL"]),
    ],
)
def test_a_queue_of_its_own_is_started_for_workers_and_beat_only(
    monkeypatch: pytest.MonkeyPatch, command: str, configured: list[str], started: list[str]
) -> None:
    """Someone who configures the other stores has a queue, which a web process need not know."""
    for variable in ("DATABASE_URL", "FUSEBOARD_REDIS_URL", "FUSEBOARD_BROKER_URL"):
        monkeypatch.delenv(variable, raising=False)
        if variable in configured:
            monkeypatch.setenv(variable, "of a server")
    assert command_line._missing(command) == started


def test_beat_alone_needs_the_queue_and_no_other_secret(tmp_path: Path) -> None:
    """It signs nothing, and writes no key beside its data: its disk may be read-only."""
    script = (
        "import sys; sys.argv = ['celery', '-A', 'controlplane', 'beat']; import controlplane.celery as c;"
        "from django.conf import settings; print(c.app.conf.broker_url, len(settings.SECRET_KEY))"
    )
    variables = {"FUSEBOARD_BROKER_URL": "redis://broker:6379/0", "FUSEBOARD_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=PROJECT,
        env={"PATH": os.environ["PATH"], "DJANGO_SETTINGS_MODULE": "controlplane.settings"} | variables,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["redis://broker:6379/0", "64"], done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"FUSEBOARD_ALLOWED_HOSTS": "*"}, "FUSEBOARD_ALLOWED_HOSTS"),
        ({"FUSEBOARD_ORIGINS": ""}, "FUSEBOARD_ORIGINS"),
        ({"FUSEBOARD_DEBUG": "1"}, "DEBUG"),
        ({"FUSEBOARD_PLAIN_HTTP": "1"}, "SESSION_COOKIE_SECURE"),
        ({"FUSEBOARD_SECRET_KEY": "short"}, "SECRET_KEY"),
    ],
)
def test_check_deploy_reports_problems(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    done = django("check", "--deploy", "--fail-level", "WARNING", **documented(tmp_path) | changed)
    assert done.returncode == 1
    assert said in done.stderr


def test_a_misspelled_variable_is_reported(tmp_path: Path) -> None:
    done = django("check", **documented(tmp_path), FUSEBOARD_ALOWED_HOSTS="x", FUSEBOARD_OUR_OWN_THING="y")
    assert done.returncode == 1
    assert "FUSEBOARD_ALOWED_HOSTS is unknown" in done.stderr
    assert "Did you mean FUSEBOARD_ALLOWED_HOSTS?" in done.stderr
    assert "OUR_OWN" not in done.stderr
    readme = (Path(__file__).resolve().parents[3] / "docs/settings.md").read_text().splitlines()
    rows = [line.split("|")[1] for line in readme if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`FUSEBOARD_([A-Z0-9_]+)`", row)}
    # Set by the demo itself, to find its processes.
    assert named | {"DEMO"} == VARIABLES


def test_limits_and_queue_on_one_server_are_reported(tmp_path: Path) -> None:
    variables = documented(tmp_path)
    variables["FUSEBOARD_BROKER_URL"] = variables["FUSEBOARD_REDIS_URL"]
    assert "its own server" in django("check", "--deploy", **variables).stderr


def test_a_secret_key_is_generated_once_and_kept_private(tmp_path: Path) -> None:
    variables = documented(tmp_path)
    del variables["FUSEBOARD_SECRET_KEY"]
    assert django("check", **variables).returncode == 0
    file = tmp_path / "secret_key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(file.read_text()) >= 50
    kept = file.read_text()
    assert django("check", **variables).returncode == 0
    assert file.read_text() == kept


@pytest.mark.parametrize(
    ("read", "value", "says"),
    [
        (lambda: env.flag("X"), "maybe", "one of 1, 0"),
        (lambda: env.integer("X", 1, at_least=1, at_most=9), "0", "from 1 to 9"),
        (lambda: env.integer("X", 1, at_least=1, at_most=9), "1_0", "from 1 to 9"),
        (lambda: env.integer("X", 1, at_least=1, at_most=9), "٣", "from 1 to 9"),
        (lambda: env.integer("X", 1, at_least=1, at_most=9), "5s", "from 1 to 9"),
        (lambda: env.url("X", ("redis",)), "localhost:6379/secret", "redis://"),
        (lambda: env.origins("X"), "board.example.com", "origins"),
        (lambda: env.origins("X"), "https://board.example.com/path", "origins"),
        (lambda: env.origins("X"), "https://board.example.com:99999", "origins"),
        (lambda: env.origins("X"), "*", "origins"),
    ],
)
def test_a_bad_variable_is_named_and_its_value_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, read: Any, value: str, says: str
) -> None:
    monkeypatch.setenv("X", value)
    with pytest.raises(ImproperlyConfigured) as error:
        read()
    assert str(error.value).startswith("X ")
    assert says in str(error.value)
    assert "secret" not in str(error.value)


def test_a_variable_may_come_as_a_file_but_not_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from a file\n")
    monkeypatch.setenv("X_FILE", str(file))
    assert env.text("X") == "from a file"
    monkeypatch.setenv("X", "directly")
    with pytest.raises(ImproperlyConfigured, match="both set"):
        env.text("X")
    monkeypatch.delenv("X")
    file.unlink()
    with pytest.raises(ImproperlyConfigured, match="X_FILE"):
        env.text("X")


def test_the_environment_variable_names_reach_the_settings() -> None:
    assert env.words("NOT_SET_AT_ALL", ["a"]) == ["a"]


# Refused by the database itself


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_entry SET reason = 'nicer'",
        "DELETE FROM audit_entry",
    ],
)
def test_the_audit_is_append_only(production: str, statement: str) -> None:
    before = Entry.objects.count()
    assert before
    with pytest.raises(Exception, match="append_only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    with pytest.raises(Exception, match="append_only"):
        Entry.objects.all().delete()
    assert Entry.objects.count() == before


@pytest.mark.parametrize(
    "statement",
    [
        'UPDATE policies_tierquota SET "limit" = -1',
        'UPDATE policies_tierquota SET "limit" = 1000000001',
        "UPDATE policies_tierquota SET window_s = 0",
        "UPDATE policies_tierquota SET burst = 0",
        "UPDATE policies_tierquota SET algorithm = 'guess'",
        "UPDATE policies_tierquota SET algorithm = 'sliding_window', burst = 2",
        "UPDATE policies_tierquota SET failure_policy = 'hope'",
        "UPDATE policies_tier SET priority = 101",
        "UPDATE policies_tenant SET key = ''",
        "UPDATE policies_dependency SET failure_percent = 0",
        "UPDATE policies_dependency SET probes = 101",
        "UPDATE policies_dependency SET open_max_ms = 1",
        "UPDATE policies_dependency SET kind = 'magic'",
        "UPDATE policies_environment SET revision = -1",
    ],
)
def test_the_database_refuses_invalid_rows(production: str, statement: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


def test_every_migration_is_named_and_reversible() -> None:
    ours = {"accounts", "audit", "policies", "publishing", "breakers", "fleet"}
    for (app, name), migration in MigrationLoader(None).disk_migrations.items():
        if app in ours:
            assert "auto" not in name
            assert all(operation.reversible for operation in migration.operations), (app, name)


@pytest.mark.parametrize(
    "wrong", ["8:00 UTC", "08:00", "24:00 UTC", "08:00 Nowhere/City", "08:00 ../UTC", "noon UTC"]
)
def test_the_time_of_weekly_summaries_needs_a_zone(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("FUSEBOARD_WEEKLY_AT", "07:30 Europe/Berlin")
    at, zone = env.time_of_day("FUSEBOARD_WEEKLY_AT", "08:00 UTC")
    assert (f"{at:%H:%M}", zone.key) == ("07:30", "Europe/Berlin")
    monkeypatch.setenv("FUSEBOARD_WEEKLY_AT", wrong)
    with pytest.raises(ImproperlyConfigured, match="a time and the name of its zone"):
        env.time_of_day("FUSEBOARD_WEEKLY_AT", "08:00 UTC")


@pytest.mark.parametrize(
    ("changed", "redirects"),
    [
        ({}, "False"),
        ({"FUSEBOARD_ORIGINS": "https://board.example.com"}, "True"),
        ({"FUSEBOARD_ALLOWED_HOSTS": "board.example.com"}, "True"),
        ({"FUSEBOARD_BEHIND_PROXY": "1"}, "True"),
        ({"FUSEBOARD_PLAIN_HTTP": "0"}, "True"),
        ({"FUSEBOARD_ORIGINS": "http://127.0.0.1:8000", "FUSEBOARD_PLAIN_HTTP": "1"}, "False"),
    ],
)
def test_a_control_plane_that_only_this_machine_reaches_serves_plain_http(
    tmp_path: Path, changed: dict[str, str], redirects: str
) -> None:
    variables = documented(tmp_path)
    del variables["FUSEBOARD_ALLOWED_HOSTS"], variables["FUSEBOARD_ORIGINS"]
    show = "from django.conf import settings; print(settings.SECURE_SSL_REDIRECT)"
    done = django("shell", "--no-imports", "-c", show, **variables | changed)
    assert done.stdout.strip() == redirects, done.stderr
