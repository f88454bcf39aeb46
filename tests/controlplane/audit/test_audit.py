"""The audit records every write, and no entry can be changed."""

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test import AsyncClient

from controlplane.accounts.models import AgentToken, User
from controlplane.audit import guards
from controlplane.audit.chain import Head, verify
from controlplane.audit.export import export
from controlplane.audit.models import ChainHead, Entry
from controlplane.audit.record import record
from controlplane.editing import edits
from controlplane.policies.models import Tenant
from tests.people import ADA, create_person

pytestmark = pytest.mark.django_db(transaction=True)


def note(name: str, *, environment: str = "", reason: str = "for a test") -> Entry:
    with transaction.atomic():
        return record(
            actor=ADA,
            action="thing.done",
            target_kind="thing",
            target_name=name,
            before={"z": 1, "a": None},
            after={"text": 'ä "quoted" \u2028 \U0001f600', "n": 1.50},
            reason=reason,
            environment=environment,
        )


def sql(*statements: str) -> None:
    """Run statements in one transaction as a superuser with another client."""
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def tamper(*statements: str) -> None:
    """Run statements as the owner of the table, who can disable its triggers."""
    sql("ALTER TABLE audit_entry DISABLE TRIGGER USER", *statements)
    sql(
        "ALTER TABLE audit_entry ENABLE TRIGGER USER",
        f"ALTER TABLE audit_entry DISABLE TRIGGER {_trigger('never_emptied')}",
        f"ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER {_trigger('append_only')}",
    )


def _trigger(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tgname FROM pg_trigger WHERE tgname LIKE %s", [f"pgtrigger_{name}%"])
        return str(cursor.fetchone()[0])


# The chain


def test_every_entry_names_the_previous_one() -> None:
    for number in range(5):
        note(f"thing {number}", environment="production" if number % 2 else "")
    good, broken = verify()
    assert broken == []
    assert [(head.environment, head.sequence) for head in good] == [("", 3), ("production", 2)]
    said = StringIO()
    call_command("verify_audit", stdout=said)
    assert said.getvalue().splitlines() == [f"ok {head}" for head in good]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (
            "UPDATE audit_entry SET reason = 'nicer' WHERE sequence = 3",
            "(number 3 of no environment): was changed",
        ),
        (
            "UPDATE audit_entry SET after = '{}' WHERE sequence = 2",
            "(number 2 of no environment): was changed",
        ),
        (
            "UPDATE audit_entry SET before = NULL WHERE sequence = 5",
            "(number 5 of no environment): was changed",
        ),
        ("DELETE FROM audit_entry WHERE sequence = 2", "(number 2 of no environment): is missing"),
        ("DELETE FROM audit_entry WHERE sequence = 5", "(number 5 of no environment): and all later"),
        ("DELETE FROM audit_entry", "(number 1 of no environment): and all later"),
        (
            "UPDATE audit_entry SET id = id + 1000 WHERE sequence = 4",
            "(number 4 of no environment): was changed",
        ),
        (
            "INSERT INTO audit_entry (actor, role, origin, address, action, target_kind, target_name, reason,"
            " environment) VALUES ('mallory', '', 'form', '', 'x', 'x', 'x', '', '')",
            "was written without the chain",
        ),
    ],
)
def test_the_first_entry_that_was_tampered_with_is_named(statement: str, says: str) -> None:
    for number in range(5):
        note(f"thing {number}")
    tamper(statement)
    with pytest.raises(CommandError) as error:
        call_command("verify_audit", stdout=StringIO())
    assert says in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_rewritten_chain_differs_from_a_head_noted_elsewhere() -> None:
    for number in range(3):
        note(f"thing {number}")
    [noted], _ = verify()
    tamper("DELETE FROM audit_entry", "DELETE FROM audit_chainhead")
    for number in range(4):
        note(f"another {number}")
    assert verify()[1] == []
    _, [broken] = verify([noted])
    assert (broken.sequence, broken.why) == (3, "differs from the copy noted elsewhere")
    with pytest.raises(CommandError):
        call_command("verify_audit", "--anchor", str(noted), stdout=StringIO())
    assert Head.parse(str(noted)) == noted


def test_concurrent_writers_do_not_fork_the_chain() -> None:
    def write(worker: int) -> None:
        try:
            for number in range(15):
                note(f"{worker}-{number}", environment="" if worker % 2 else "production")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    good, broken = verify()
    assert broken == []
    assert [head.sequence for head in good] == [30, 30]


def test_environments_do_not_wait_for_each_other() -> None:
    note("first", environment="staging")
    with transaction.atomic():
        note("held open", environment="production")

        def elsewhere() -> Entry:
            try:
                return note("meanwhile", environment="staging")
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(elsewhere).result(timeout=30).pk
    assert verify()[1] == []


def test_a_transaction_that_is_rolled_back_leaves_no_gap() -> None:
    note("kept")
    with transaction.atomic():
        note("lost")
        transaction.set_rollback(True)
    note("kept, too")
    assert verify() == ([Head("", 2, ChainHead.objects.get().hash)], [])


def test_one_transaction_moves_the_head_once() -> None:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM FULL audit_chainhead")  # of the rows of other tests
    note("before")
    sql(
        "INSERT INTO audit_entry (actor, role, origin, address, action, target_kind, target_name, reason,"
        " environment) SELECT 'n ' || n, '', 'form', '', 'x', 'x', 'x', '', ''"
        " FROM generate_series(1, 2000) n",
        "SAVEPOINT here",
        _ENTRY,
        "ROLLBACK TO here",
        _ENTRY,
    )
    note("after")
    assert verify() == ([Head("", 2003, ChainHead.objects.get().hash)], [])
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_relation_size('audit_chainhead')")
        # One page. Each version of a row that moved would still be in the table.
        assert cursor.fetchone()[0] <= 8192


def test_the_chain_is_complete_when_constraints_are_checked_immediately() -> None:
    sql("SET CONSTRAINTS ALL IMMEDIATE", _ENTRY, _ENTRY, "SET CONSTRAINTS ALL DEFERRED", _ENTRY)
    assert verify() == ([Head("", 3, ChainHead.objects.get().hash)], [])


def test_a_removed_last_entry_is_noticed_after_the_next_one_is_written() -> None:
    for number in range(3):
        note(f"thing {number}")
    tamper("DELETE FROM audit_entry WHERE sequence = 3")
    note("goes on")
    [broken] = verify()[1]
    assert (broken.sequence, broken.why) == (3, "is missing")


# Append-only


@pytest.mark.parametrize("statement", ["UPDATE audit_entry SET reason = ''", "DELETE FROM audit_entry"])
def test_a_client_in_replica_mode_cannot_change_entries(statement: str) -> None:
    note("thing")
    with pytest.raises(Exception, match="append_only"):
        sql("SET LOCAL session_replication_role = replica", statement)


def test_the_table_cannot_be_emptied() -> None:
    note("thing")
    # Disabled in tests, which empty every table between two tests.
    sql(f"ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER {_trigger('never_emptied')}")
    try:
        for statement in ("TRUNCATE audit_entry", "TRUNCATE audit_entry, accounts_user CASCADE"):
            with pytest.raises(Exception, match="append_only"):
                sql(statement)
    finally:
        sql(f"ALTER TABLE audit_entry DISABLE TRIGGER {_trigger('never_emptied')}")
    assert Entry.objects.count() == 1


def test_a_role_that_owns_no_table_can_only_add_entries() -> None:
    note("by the owner")
    sql(
        "DROP ROLE IF EXISTS product",
        "CREATE ROLE product",
        "GRANT SELECT, INSERT ON audit_entry TO product",
        "GRANT USAGE ON SEQUENCE audit_entry_id_seq TO product",
        "GRANT SELECT, UPDATE ON policies_tenant TO product",
    )
    try:
        sql("SET LOCAL ROLE product", _ENTRY)
        for statement in (
            "UPDATE audit_entry SET reason = ''",
            "TRUNCATE audit_entry",
            "ALTER TABLE audit_entry DISABLE TRIGGER ALL",
            "UPDATE audit_chainhead SET sequence = 0",
            "DROP FUNCTION audit_seal() CASCADE",
            "SET LOCAL session_replication_role = replica",
        ):
            with pytest.raises(Exception, match=r"permission denied|must be owner"):
                sql("SET LOCAL ROLE product", statement)
    finally:
        sql("DROP OWNED BY product", "DROP ROLE product")
    good, broken = verify()
    assert ([head.sequence for head in good], broken) == ([2], [])


_ENTRY = (
    "INSERT INTO audit_entry (actor, role, origin, address, action, target_kind, target_name, reason,"
    " environment) VALUES ('product', '', 'form', '', 'x', 'x', 'x', '', '')"
)


# What is written with SQL


@pytest.fixture
def acme(production: str) -> Tenant:
    Tenant.objects.get(key="acme")
    return Tenant.objects.get(key="acme")


def written_with_sql() -> list[Entry]:
    return list(Entry.objects.filter(origin="sql").order_by("id"))


def test_an_edit_by_the_application_is_recorded_once(acme: Tenant) -> None:
    edits.suspend_tenant(
        environment="production",
        tenant="acme",
        reason="for a test",
        actor=ADA,
        expected_version=acme.version,
    )
    assert written_with_sql() == []


def test_the_setup_of_the_demo_is_not_recorded_as_sql(limits: Any) -> None:
    from tools.demo.seed import seed

    seed()
    seed()
    assert Entry.objects.filter(target_kind="dependency").exists()
    assert written_with_sql() == []
    assert verify()[1] == []


def test_a_row_changed_with_sql_is_recorded_with_its_old_values(acme: Tenant) -> None:
    sql("UPDATE policies_tenant SET suspended = true WHERE key = 'acme'")
    [entry] = written_with_sql()
    assert (entry.action, entry.target_kind, entry.target_name) == ("sql.updated", "tenant", "acme")
    assert entry.environment == "production"
    assert entry.changes == {"suspended": (False, True)}
    assert entry.actor == connection.settings_dict["USER"]
    assert "Written with SQL by" in entry.reason
    assert verify()[1] == []


def test_rows_inserted_and_deleted_with_sql_are_recorded(acme: Tenant) -> None:
    sql("DELETE FROM policies_tierquota WHERE name = 'requests'")
    sql("INSERT INTO policies_runbook (slug, title, body, source) VALUES ('x', 'X', '', '')")
    actions = {entry.action for entry in written_with_sql()}
    assert actions == {"sql.deleted", "sql.inserted"}


def test_rights_granted_with_sql_are_recorded_without_secrets() -> None:
    create_person("mallory")
    AgentToken.objects.create(
        name="t", selector="s", digest="a" * 64, environment="production", expires_at="2030-01-01T00:00:00Z"
    )
    Entry.objects.filter(pk=0)
    sql("UPDATE accounts_user SET role = 'admin', password = 'argon2$stolen' WHERE username = 'mallory'")
    sql("UPDATE accounts_agenttoken SET digest = repeat('b', 64)")
    user, token = [entry for entry in written_with_sql() if entry.action == "sql.updated"]
    assert user.changes == {"role": ("viewer", "admin"), "password": (None, "replaced")}
    assert token.changes == {"digest": (None, "replaced")}
    assert not any(
        "stolen" in str(entry.after) or "bbbb" in str(entry.after) for entry in Entry.objects.all()
    )


def test_a_login_is_not_recorded_as_sql() -> None:
    create_person("vera")
    count = Entry.objects.count()
    User.objects.update(last_login="2026-01-01T00:00:00Z")
    assert Entry.objects.count() == count


def test_every_configuration_table_has_the_triggers() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = %s", [guards.ROW])
        watched = {name for (name,) in cursor.fetchall()}
    assert watched == set(guards.tables())
    assert {"policies_environment", "policies_tenantquota", "breakers_override", "accounts_user"} <= watched


# Export


def test_a_spreadsheet_executes_no_exported_text() -> None:
    nasty = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "plain", 'say "no", please\nor not']
    for text in nasty:
        note(text, reason=text)
    rows = list(csv.DictReader(io.StringIO("".join(export(Entry.objects.all(), "csv")), newline="")))
    assert [row["reason"] for row in rows] == [
        "'=1+1",
        "'+1",
        "'-1",
        "'@SUM(A1)",
        "'\t=1",
        "plain",
        'say "no", please\nor not',
    ]
    assert all(row["hash"] for row in rows)


def test_json_lines_contain_every_value_unchanged() -> None:
    entry = note("=1+1")
    [line] = "".join(export(Entry.objects.all(), "jsonl")).split("\n")[:-1]
    found = json.loads(line)
    entry.refresh_from_db()
    assert found["target_name"] == "=1+1"
    assert found["after"] == entry.after
    assert (found["sequence"], found["hash"]) == (1, entry.hash)


async def test_the_page_streams_the_export(settings: Any, limits: Any) -> None:
    from asgiref.sync import sync_to_async

    settings.SECURE_SSL_REDIRECT = False
    for number in range(3):
        await sync_to_async(note)(f"thing {number}")
    browser = AsyncClient()
    for role, status in (("operator", 403), ("admin", 200)):
        await browser.aforce_login(await User.objects.acreate(username=role, role=role))
        answer = await browser.get("/audit/export?format=csv&q=thing&origin=form")
        assert answer.status_code == status
    assert answer["Content-Disposition"].startswith('attachment; filename="audit-')
    text = b"".join([piece async for piece in answer.streaming_content]).decode()
    assert [row["target_name"] for row in csv.DictReader(io.StringIO(text))] == [
        f"thing {n}" for n in range(3)
    ]
    assert (await browser.get("/audit/export?format=exe")).status_code == 400
    await sync_to_async(connections.close_all)()
