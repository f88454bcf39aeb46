"""The tables whose direct changes Postgres records.

The triggers are attached after every ``migrate``, so a configuration table that a later migration
adds is covered without further work.
"""

from typing import Any

from django.apps import apps
from django.db import connections

#: Apps whose tables are configuration, and their tables that are only history or uploaded files.
_CONFIGURATION = ("policies",)
_HISTORY = frozenset(("policies_revision", "policies_change", "policies_draft"))
#: Other tables -> columns with secret values, and columns to ignore.
_WATCHED = {
    "breakers_override": ("", ""),
    "spending_account": ("", ""),
    "spending_budget": ("", ""),
    "spending_model": ("", ""),
    "spending_price": ("", ""),
    "schedules_schedule": ("", "announced_at,seen"),
    "drills_drill": ("", ""),
    "approvals_rule": ("", ""),
    "approvals_changerequest": ("", ""),
    "approvals_proposedchange": ("", ""),
    "approvals_approval": ("", ""),
    "accounts_user": ("password", "last_login"),
    "accounts_agenttoken": ("digest", ""),
    "accounts_apitoken": ("digest", ""),
}
ROW, TRUNCATED = "audit_direct_write", "audit_direct_truncate"
_NOT_MARKED = "coalesce(current_setting('fuseboard.actor', true), '') = ''"


def tables() -> dict[str, tuple[str, str]]:
    """Return table -> columns with secret values and columns to ignore, each separated by commas."""
    found = {
        model._meta.db_table: ("", "")
        for label in _CONFIGURATION
        for model in apps.get_app_config(label).get_models()
        if model._meta.managed and model._meta.db_table not in _HISTORY
    }
    return found | _WATCHED


def attach(*, using: str = "default", **_: Any) -> None:
    """Attach the triggers to every existing table that lacks them."""
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_proc WHERE proname = %s", [ROW])
        if cursor.fetchone() is None:
            return  # migrated to a version before these triggers
        present = set(connection.introspection.table_names(cursor))
        cursor.execute("SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = %s", [ROW])
        watched = {name for (name,) in cursor.fetchall()}
        for table, (secret, ignored) in tables().items():
            if table in present - watched:
                # All names are constants, so they are safe in SQL.
                cursor.execute(
                    f"CREATE CONSTRAINT TRIGGER {ROW} AFTER INSERT OR UPDATE OR DELETE ON {table}"
                    f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ({_NOT_MARKED})"
                    f" EXECUTE FUNCTION audit_direct_write('{secret}', '{ignored}');"
                    f"CREATE TRIGGER {TRUNCATED} AFTER TRUNCATE ON {table} FOR EACH STATEMENT"
                    f" WHEN ({_NOT_MARKED}) EXECUTE FUNCTION audit_direct_write('', '')"
                )
    mark_connection(None, using=using)


def announce_migration(*, using: str = "default", **_: Any) -> None:
    """Mark what migrations write as theirs. Pending triggers would also block their ALTER TABLE."""
    mark_connection("migrate", using=using)


def mark_connection(name: str | None, *, using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT set_config('fuseboard.actor', %s, false)", [name or ""])
