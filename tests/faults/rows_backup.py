"""Backups of Postgres, and what is lost without them: the claims of ``docs/backup.md``."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
from psycopg import sql

from controlplane.embedded.postgres import DATABASE
from controlplane.installation import FOLDER as PROJECT
from tests.faults.field import CONTROL_PLANE, Broken, Field
from tests.faults.matrix import row
from tests.faults.world import EVERYTHING, LIMIT, quota
from tests.migrated import TEST_DATABASE
from tests.postgres_programs import program
from tools.demo.processes import Process

REASON = "restored by a fault test"
ALERTS = "SELECT key, state FROM alerts_alert WHERE key = %s ORDER BY id"


def run(*command: str | Path, variables: Mapping[str, str] | None = None, folder: Path = PROJECT) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode != 0:
        raise Broken(f"{command[0]} {command[1]} ended with {done.returncode}: {done.stderr[-600:]}")
    return done.stdout


def manage(field: Field, *arguments: str | Path) -> str:
    return run(sys.executable, "manage.py", *arguments, variables=field.variables)


def ask(field: Field, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(field.postgres.url) as database:
        return database.execute(statement, values).fetchall()  # type: ignore[call-overload,no-any-return]


@contextmanager
def control_plane_with(field: Field, **variables: str) -> Iterator[None]:
    """Gateway, worker and beat run with these variables, and afterwards without them."""
    actors = [field.processes.by_name[name] for name in CONTROL_PLANE]
    before = [actor.environment for actor in actors]

    def begin() -> None:
        field.processes.begin(*CONTROL_PLANE)
        field.processes.wait_until_ready(CONTROL_PLANE)

    field.processes.kill(*CONTROL_PLANE)
    for actor in actors:
        actor.environment = {**actor.environment, **variables}
    begin()
    try:
        yield
    finally:
        field.processes.kill(*CONTROL_PLANE)
        for actor, environment in zip(actors, before, strict=True):
            actor.environment = environment
        begin()


def new_epoch(field: Field) -> float:
    """Begin it, and return the seconds until every pod has it."""
    manage(field, "republish", "production", "--new-epoch", "--reason", REASON)
    return in_new_epoch(field)


def in_new_epoch(field: Field) -> float:
    return field.until(
        "every pod has the new epoch",
        lambda: all(pod.state()["head"][:2] == field.redis_head() for pod in field.pods),
        30,
    )


def reopen(field: Field) -> None:
    """The director has another database than before."""
    field.director.stop()
    field.director = field.new_director()


def wait_for_alert(field: Field, key: str, state: str) -> None:
    field.until(f"{key} is {state}", lambda: (key, state) in ask(field, ALERTS, key), 90)


def empty(field: Field) -> None:
    """An empty database in place of the one that is there."""
    place = f"--maintenance-db={field.postgres.url.rpartition('/')[0]}/postgres"
    run(program("dropdb"), "--force", place, DATABASE)
    run(program("createdb"), place, DATABASE)


def follow(field: Field, start: str) -> str:
    """Run the commands of ``docs/backup.md`` that begin so, as pasted; return what they print."""
    page = (PROJECT / "docs" / "backup.md").read_text()
    [block] = (
        one
        for one in re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        if one.startswith(start)
    )
    places = f"{Path(sys.executable).parent}:{program('pg_dump').parent}"
    variables = {**field.variables, "PATH": f"{places}:{field.variables['PATH']}"}
    return run("bash", "-euo", "pipefail", "-c", block, variables=variables, folder=field.folder)


@row("62", "postgres-dump-restored")
def dump_restored(field: Field) -> str:
    """A dump under edits, 30 more edits, a restore, and a new epoch."""
    siem = field.folder / "siem.jsonl"
    with control_plane_with(field, FUSEBOARD_AUDIT_EXPORT_FILE=str(siem)):
        field.edit("override_breaker", dependency="held", mode="forced_closed", lasts_s=600)
        wait_for_alert(field, "override:held", "firing")
        field.edit("end_override", dependency="held")
        wait_for_alert(field, "override:held", "resolved")
        field.load(EVERYTHING, 40)
        (field.folder / "manage.py").symlink_to(PROJECT / "manage.py")
        ended = Event()
        editor = Thread(target=_edit_until, args=(field, ended))
        editor.start()
        try:
            follow(field, "python manage.py backup_manifest")
        finally:
            ended.set()
            editor.join()
        for number in range(30):
            lost = field.edit("set_tenant_quota", **quota(20 + number))
        sent = _sequence(field)
        field.until("the SIEM has every entry", lambda: _newest(siem) >= sent, 60)
        field.processes.kill(*CONTROL_PLANE)
        field.director.stop()
        field.begin_anew()
        empty(field)
        said = follow(field, "pg_restore")
        took_s = in_new_epoch(field)
        reopen(field)
        [epoch, revision] = field.redis_head()
        field.processes.begin(*CONTROL_PLANE)
        field.processes.wait_until_ready(CONTROL_PLANE)
        edited = field.edit("set_tenant_quota", **quota(8))
        manage(field, "verify_audit")
        field.until("the SIEM sees the gap", lambda: _repeated(siem), 90)
        time.sleep(15)
        fired = ask(field, ALERTS, "override:held")
    if epoch != 2 or not revision > lost or edited != revision + 1:
        raise Broken(f"the new epoch is {epoch}.{revision} after revision {lost}, and {edited} follows it")
    if "The audit is intact" not in said:
        raise Broken(f"verify_restore said {said}")
    if fired != [("override:held", "resolved")]:
        raise Broken(f"an alert that was resolved fired again: {fired}")
    return (
        f"every pod at {epoch}.{revision} {took_s:.1f} s after the command; the SIEM got"
        f" {_repeated(siem)} numbers with another entry than before"
    )


def _edit_until(field: Field, ended: Event) -> None:
    number = 0
    while not ended.is_set():
        number += 1
        field.edit("set_tenant_quota", **quota(8 + number % 5))


def _sequence(field: Field) -> int:
    [(sequence,)] = ask(field, "SELECT sequence FROM audit_chainhead WHERE environment = 'production'")
    return int(sequence)


def _entries(siem: Path) -> dict[int, set[str]]:
    """Number of an entry -> its hashes, as a SIEM has them."""
    found: dict[int, set[str]] = {}
    lines = siem.read_text().splitlines() if siem.exists() else []
    for line in lines:
        entry = json.loads(line)
        if entry["environment"] == "production":
            found.setdefault(entry["sequence"], set()).add(entry["hash"])
    return found


def _newest(siem: Path) -> int:
    return max(_entries(siem), default=0)


def _repeated(siem: Path) -> int:
    """How many numbers have two different entries: one that was lost, and one of after the restore."""
    return sum(len(hashes) > 1 for hashes in _entries(siem).values())


@row("63", "postgres-point-in-time")
def point_in_time(field: Field) -> str:
    """A base backup and an archive of WAL: Postgres returns to a time between two edits."""
    archive, base = field.folder / "archive", field.folder / "base"
    archive.mkdir()
    archive.chmod(0o777)
    kept = field.postgres.settings
    archiving = {
        "full_page_writes": "on",
        "archive_mode": "on",
        "archive_command": f"test ! -f {archive}/%f && cp %p {archive}/%f",
    }
    try:
        _restart(field, kept | archiving)
        run(program("pg_basebackup"), f"--dbname={field.postgres.url}", "--pgdata", base, "--wal-method=none")
        first = field.edit("set_tenant_quota", **quota(31))
        [(between,)] = ask(field, "SELECT clock_timestamp()::text")
        time.sleep(1.5)
        field.edit("set_tenant_quota", **quota(32))
        [(segment,)] = ask(field, "SELECT pg_walfile_name(pg_switch_wal())")
        field.until("the WAL is archived", lambda: (archive / segment).exists(), 60)
        field.processes.kill(*CONTROL_PLANE)
        field.director.stop()
        field.postgres.stop()
        shutil.rmtree(field.postgres.data)
        _as_server(base, field.postgres.data)
        (field.postgres.data / "recovery.signal").touch()
        field.postgres.settings = kept | {
            # It accepts connections only when it is promoted.
            "hot_standby": "off",
            "restore_command": f"cp {archive}/%f %p",
            "recovery_target_time": between,
            "recovery_target_action": "promote",
        }
        field.postgres.start()
        field.until("it is promoted", lambda: ask(field, "SELECT pg_is_in_recovery()") == [(False,)], 60)
        reopen(field)
        stored = field.director.ask({"do": "head"})[1]
        took_s = new_epoch(field)
    finally:
        field.postgres.stop()
        field.postgres.settings = kept
        field.postgres.start()
        reopen(field)
        field.processes.begin(*[name for name in CONTROL_PLANE if not field.processes.by_name[name].alive])
        field.processes.wait_until_ready(CONTROL_PLANE)
    manage(field, "verify_audit")
    field.edit("set_tenant_quota", **quota(8))
    if stored != first:
        raise Broken(f"recovered to revision {stored}, not to {first}")
    return f"recovered to revision {stored} of {first + 1}; every pod has the new epoch {took_s:.1f} s later"


def _restart(field: Field, settings: dict[str, str]) -> None:
    field.postgres.stop()
    field.postgres.settings = settings
    field.postgres.start()
    reopen(field)


def _as_server(base: Path, data: Path) -> None:
    """Move a backup into place, with the owner of the server's data."""
    owner = data.parent / "password"
    base.rename(data)
    data.chmod(0o700)
    stat = owner.stat()
    for path in [data, *data.rglob("*")]:
        shutil.chown(path, stat.st_uid, stat.st_gid)


@row("64", "redis-and-postgres-lost")
def redis_and_postgres_lost(field: Field) -> str:
    """Redis loses everything while Postgres is down: pods keep their limits, and Redis is filled again."""
    field.load(["d:shares"], 40)
    began = field.begin_anew()
    field.postgres_kill()
    field.kill()
    field.all_in("local", within_s=20)
    time.sleep(5)
    field.valkey.start()
    field.redis().flushall()
    field.until("pods use the empty Redis", lambda: "local" not in field.modes(), 60)
    time.sleep(3)
    worst = field.worst("d:shares", began, sources="sl")
    field.postgres_up()
    head = field.director.ask({"do": "head"})
    took_s = field.until("Redis has the configuration", lambda: field.redis_head() == head, 60)
    # A window can have what pods decided alone, and then with the empty Redis.
    if worst > 2 * LIMIT:
        raise Broken(f"{worst} calls in one window, the limit is {LIMIT}")
    return f"at most {worst} of {LIMIT} in a window; Redis filled {took_s:.1f} s after Postgres was back"


@row("65", "secret-key-lost")
def secret_key_lost(field: Field) -> str:
    """The control plane starts with another key: an alert, until it has the earlier one again."""
    field.director.ask({"do": "receiver", "name": "pager", "url": "https://pager.example.com/hook"})
    began = time.monotonic()
    another = "another-key-that-nothing-was-encrypted-with-before-this-row"
    try:
        with control_plane_with(field, FUSEBOARD_SECRET_KEY=another):
            wait_for_alert(field, "secret-key", "firing")
            took_s = time.monotonic() - began
        wait_for_alert(field, "secret-key", "resolved")
    finally:
        field.director.ask({"do": "remove-receiver", "name": "pager"})
    return f"fired {took_s:.0f} s after the processes were replaced; resolved with the earlier key"


#: Tables that an export does not contain. Environments have one row each of their own.
NOT_EXPORTED = (
    *("accounts_user", "accounts_agenttoken", "accounts_apitoken", "alerts_receiver", "alerts_route"),
    *("alerts_mute", "alerts_incident", "breakers_override"),
)


@row("66", "configuration-applied-into-empty")
def applied_into_empty(field: Field) -> str:
    """``fuseboard ctl export`` and ``apply`` into an empty control plane, and what it then has not."""
    server = field.postgres.url.rpartition("/")[0]
    with psycopg.connect(f"{server}/postgres", autocommit=True) as database:
        database.execute(f"CREATE DATABASE empty TEMPLATE {TEST_DATABASE}")
    spare = field.spare_valkey()
    variables = field.variables | {"DATABASE_URL": f"{server}/empty", "FUSEBOARD_REDIS_URL": spare.url}
    web = field.processes.by_name["web"]
    served = ["manage.py", "web", "--port", "{port}", "--exactly"]
    other = Process("empty-web", served, variables, health="/healthz")
    field.processes.add(other)
    try:
        run(sys.executable, "manage.py", "create_environment", variables=variables)
        if not web.alive:
            field.processes.begin("web")
        field.processes.begin(other.name)
        field.processes.wait_until_ready(["web", other.name])
        theirs = _token(field.variables)
        ours = _token(variables)
        file = field.folder / "production.yaml"
        file.write_text(_ctl(web, theirs, "export"))
        _ctl(other, ours, "apply", file, "--reason", REASON)
        same = _ctl(other, ours, "export") == file.read_text()
        with psycopg.connect(f"{server}/empty") as database:
            left = {table: _count(database, table) for table in NOT_EXPORTED}
            revisions = _count(database, "policies_revision")
    finally:
        field.processes.stop(other.name, grace_s=3.0)
        del field.processes.by_name[other.name]
        with psycopg.connect(f"{server}/postgres", autocommit=True) as database:
            database.execute("DROP DATABASE empty WITH (FORCE)")
    if not same:
        raise Broken("the export of the second control plane differs from the file")
    # The token that applied the file is the only row.
    if {table: rows for table, rows in left.items() if rows} != {"accounts_apitoken": 1}:
        raise Broken(f"the second control plane has more than its configuration: {left}")
    return (
        f"the same export, in {revisions} revisions; no people, tokens, receivers, routes, mutes or incidents"
    )


def _count(database: psycopg.Connection[Any], table: str) -> int:
    statement = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
    [rows] = database.execute(statement).fetchone() or [0]
    return int(rows)


def _token(variables: Mapping[str, str]) -> str:
    command = ["create_api_token", "pipeline", "--role", "admin", "--environment", "production"]
    return run(sys.executable, "manage.py", *command, variables=variables).strip().splitlines()[-1]


def _ctl(web: Process, token: str, *arguments: str | Path) -> str:
    variables = {**web.environment, "FUSEBOARD_API_URL": web.url, "FUSEBOARD_API_TOKEN": token}
    return run(sys.executable, "-m", "fuseboard", "ctl", *arguments, variables=variables)
