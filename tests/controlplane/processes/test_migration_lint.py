"""Migrations after the last release lock out no caller for long, and break no process of that release.

``django-migration-linter`` judges the SQL of each migration, and rules of our own that for tables that grow.
``test_rollback_lint.py`` compares the database with the code of the last release.
"""

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, migrations, models
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState, ProjectState
from django_migration_linter.sql_analyser.analyser import analyse_sql_statements
from django_migration_linter.sql_analyser.postgresql import PostgresqlAnalyser

from controlplane.upgrades.operations import AddIndexConcurrently, Long
from tests.contract.compat import release

#: Their rows are of each call, entry, hour or pod, so any of them can have millions.
GROWING = {
    "alerts_delivery",
    "approvals_proposedchange",
    "audit_entry",
    "breakers_transition",
    "fleet_event",
    "ledger_usageday",
    "ledger_usagehour",
    "ledger_usagereceipt",
    "policies_change",
    "policies_runbookrevision",
    "policies_tenant",
    "policies_tenantquota",
    "reconciliation_allowedalone",
    "refusals_refusalsample",
    "series_frame",
    "series_span",
    "usage_demand",
    "usage_ruledemand",
}
#: Their rows are of each edit, person, alert, gateway, pod or day, or are deleted after a short time.
SMALL = {
    "accounts_agenttoken",
    "accounts_apitoken",
    "accounts_kept",
    "accounts_login",
    "accounts_savedview",
    "accounts_ticket",
    "accounts_user",
    "accounts_user_groups",
    "accounts_user_user_permissions",
    "alerts_alert",
    "alerts_evaluation",
    "alerts_incident",
    "alerts_incidentline",
    "alerts_marker",
    "alerts_mute",
    "alerts_receiver",
    "alerts_route",
    "api_keptreply",
    "approvals_approval",
    "approvals_changerequest",
    "approvals_rule",
    "audit_chainhead",
    "audit_export_export",
    "backlogs_backlog",
    "breakers_override",
    "breakers_streamposition",
    "drills_drill",
    "fleet_descriptorfigures",
    "fleet_failedcalls",
    "fleet_figures",
    "fleet_gatewayorder",
    "fleet_redisnode",
    "fleet_server",
    "ledger_invoice",
    "ledger_usagetotal",
    "policies_dependency",
    "policies_descriptorfile",
    "policies_draft",
    "policies_environment",
    "policies_revision",
    "policies_runbook",
    "policies_subjectlimit",
    "policies_template",
    "policies_tier",
    "policies_tierquota",
    "policies_vendorlimit",
    "publishing_ahead",
    "publishing_outboxentry",
    "reconciliation_copying",
    "reconciliation_lostcounts",
    "refusals_digestkey",
    "refusals_refusalservice",
    "refusals_toplist",
    "schedules_schedule",
    "series_entity",
    "series_seal",
    "series_writer",
    "shares_piece",
    "shares_pool",
    "spending_account",
    "spending_budget",
    "spending_model",
    "spending_price",
    "suggestions_following",
    "suggestions_suggestion",
    "usage_budgetcorrection",
    "usage_knownbudget",
    "weekly_weeklysummary",
}
#: Findings in migrations after the last release, and the reason why each is right here.
ALLOWED: dict[str, tuple[set[str], str]] = {
    "policies.0024_name_domains_with_slashes": (
        {"ALTER_COLUMN"},
        "Postgres allows longer texts without a look at the rows, and no release has this table.",
    ),
}
#: A plain index is right for a small table.
_ONLY_FOR_GROWING = {"CREATE_INDEX", "CREATE_INDEX_EXCLUSIVE", "DROP_INDEX"}
_LOCKING = {
    "index without CONCURRENTLY": re.compile(
        r'(?:CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY).*?|REINDEX.*) ON "?(?P<table>\w+)', re.DOTALL
    ),
    "constraint without NOT VALID": re.compile(
        r'ALTER TABLE "?(?P<table>\w+)"? ADD CONSTRAINT(?!.*NOT VALID)', re.DOTALL
    ),
}


def problems(migration: Migration, statements: list[str]) -> Iterator[str]:
    begun = ["BEGIN", *statements] if migration.atomic else statements
    errors, _, warnings = analyse_sql_statements(PostgresqlAnalyser, begun)
    created = set(re.findall(r'CREATE TABLE "?(\w+)', "\n".join(statements)))
    yield from {found.code for found in [*errors, *warnings]} - _ONLY_FOR_GROWING
    if any(_runs_code(operation) for operation in migration.operations):
        yield "code that no rule judges"
    for statement in statements:
        for name, pattern in _LOCKING.items():
            found = pattern.search(statement)
            if found and found["table"] in GROWING - created:
                yield f"{name}: {found['table']}"


def _runs_code(operation: Operation) -> bool:
    """Forward, when processes of the last release run. Only a person knows what it does to their rows."""
    if isinstance(operation, migrations.SeparateDatabaseAndState):
        return any(_runs_code(one) for one in operation.database_operations)
    return isinstance(operation, migrations.RunPython) and operation.code != migrations.RunPython.noop


def test_every_table_is_known_to_grow_or_to_stay_small() -> None:
    """Put a new table into one of the lists: the rules for large tables are for the first one."""
    tables = {
        model._meta.db_table
        for model in apps.get_models(include_auto_created=True)
        if model.__module__.startswith("controlplane.")
    }
    assert (tables - GROWING - SMALL, SMALL - tables) == (set(), set())
    assert not GROWING & SMALL


def released() -> set[str]:
    """``app/migrations/name.py`` of the last release."""
    release.need_history(release.LAST.commit)
    listing = ["git", "ls-tree", "-r", "--name-only", release.LAST.commit, "controlplane"]
    found = subprocess.run(listing, cwd=release.ROOT, capture_output=True, text=True, check=True)
    return set(re.findall(r"\w+/migrations/\w+\.py", found.stdout))


def statements_of(migration: Migration, state: ProjectState) -> tuple[list[str], ProjectState]:
    with connection.schema_editor(collect_sql=True, atomic=migration.atomic) as editor:
        state = migration.apply(state, editor, collect_sql=True)
    collected = (re.sub(r"--.*", "", line).strip() for line in editor.collected_sql)
    return [line for line in collected if line not in ("", "BEGIN;", "COMMIT;")], state


@pytest.mark.usefixtures("transactional_db")
def test_no_migration_after_the_last_release_locks_or_breaks() -> None:
    earlier = released()
    # It has squashed migrations instead of those that they replace.
    loader = MigrationLoader(connection)
    state, found, used = ProjectState(), [], set()
    for node in loader.graph._generate_plan(loader.graph.leaf_nodes(), at_end=True):
        migration = loader.graph.nodes[node]
        ours = migration.__module__.startswith("controlplane.")
        if (
            not ours
            or {f"{app}/migrations/{name}.py" for app, name in migration.replaces or [node]} <= earlier
        ):
            state = migration.mutate_state(state, preserve=False)
            continue
        statements, state = statements_of(migration, state)
        name = ".".join(node)
        allowed, _ = ALLOWED.get(name, (set(), ""))
        judged = set(problems(migration, statements))
        used |= {(name, code) for code in judged & allowed}
        found += [f"{name}: {code}" for code in sorted(judged - allowed)]
    assert not found, "\n".join(found)
    assert used == {(name, code) for name, (codes, _) in ALLOWED.items() for code in codes}


def code(*_: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("operation", "atomic", "found"),
    [
        (migrations.AddField("drill", "x", models.IntegerField(default=0)), True, {"NOT_NULL"}),
        (migrations.AddField("drill", "x", models.IntegerField(db_default=0)), True, set()),
        (migrations.AddField("drill", "x", models.IntegerField(null=True)), True, set()),
        (migrations.RemoveField("drill", "spent"), True, {"DROP_COLUMN"}),
        (migrations.RenameField("drill", "spent", "x"), True, {"RENAME_COLUMN"}),
        (migrations.DeleteModel("drill"), True, {"DROP_TABLE"}),
        (migrations.AlterField("drill", "spent", models.TextField()), True, {"ALTER_COLUMN"}),
        (
            migrations.AddConstraint("drill", models.UniqueConstraint(fields=["spent"], name="x")),
            True,
            {"ADD_UNIQUE"},
        ),
        (migrations.AddIndex("drill", models.Index(fields=["spent"], name="x")), True, set()),
        (
            migrations.RunSQL("CREATE INDEX x ON audit_entry (at)"),
            True,
            {"index without CONCURRENTLY: audit_entry"},
        ),
        (
            migrations.RunSQL('CREATE UNIQUE INDEX "x" ON "fleet_event" (at)'),
            True,
            {"index without CONCURRENTLY: fleet_event", "ADD_UNIQUE"},
        ),
        (migrations.RunSQL("CREATE INDEX CONCURRENTLY x ON audit_entry (at)"), False, set()),
        (migrations.RunPython(code), True, {"code that no rule judges"}),
        (Long(migrations.RunPython(code)), True, {"code that no rule judges"}),
        (migrations.RunPython(migrations.RunPython.noop, code), True, set()),
        (AddIndexConcurrently("drill", models.Index(fields=["spent"], name="x")), False, set()),
        (
            migrations.RunSQL("ALTER TABLE audit_entry ADD CONSTRAINT x CHECK (at > '2000-01-01')"),
            True,
            {"constraint without NOT VALID: audit_entry"},
        ),
        (
            migrations.RunSQL("ALTER TABLE audit_entry ADD CONSTRAINT x CHECK (true) NOT VALID"),
            True,
            set(),
        ),
    ],
)
@pytest.mark.usefixtures("transactional_db")
def test_what_locks_or_breaks_is_found(operation: Operation, atomic: bool, found: set[str]) -> None:
    state = ProjectState()
    spent = ("spent", models.IntegerField())
    state.add_model(ModelState("drills", "Drill", [("id", models.BigAutoField(primary_key=True)), spent]))
    kind = type("Migration", (Migration,), {"operations": [operation], "atomic": atomic})
    migration = kind("0099_test", "drills")
    statements, _ = statements_of(migration, state)
    assert set(problems(migration, statements)) == found, statements
