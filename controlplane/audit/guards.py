"""Which tables Postgres watches for writes that nobody recorded.

Attached after every ``migrate``, so that a table of configuration that a later migration adds is
watched without anybody thinking of it.
"""

from typing import Any

from django.apps import apps
from django.db import connections

#: Apps whose tables are configuration, and what of them is only history of it, or a file that may become it.
_CONFIGURATION = ("policies",)
_HISTORY = frozenset(("policies_revision", "policies_change", "policies_draft"))
#: Others: table -> columns whose values are secret, columns that change nothing.
_WATCHED = {
    "breakers_override": ("", ""),
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
_NOBODY_SAID_SO = "coalesce(current_setting('fuseboard.actor', true), '') = ''"


def tables() -> dict[str, tuple[str, str]]:
    """Table -> columns that are secret, columns that do not count; each separated by commas."""
    found = {
        model._meta.db_table: ("", "")
        for label in _CONFIGURATION
        for model in apps.get_app_config(label).get_models()
        if model._meta.managed and model._meta.db_table not in _HISTORY
    }
    return found | _WATCHED


def attach(*, using: str = "default", **_: Any) -> None:
    """Watch every table that is there and not watched yet."""
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_proc WHERE proname = %s", [ROW])
        if cursor.fetchone() is None:
            return  # migrated to before there was an audit of it
        present = set(connection.introspection.table_names(cursor))
        cursor.execute("SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = %s", [ROW])
        watched = {name for (name,) in cursor.fetchall()}
        for table, (secret, ignored) in tables().items():
            if table in present - watched:
                # The names are ours, and no text of anybody's.
                cursor.execute(
                    f"CREATE CONSTRAINT TRIGGER {ROW} AFTER INSERT OR UPDATE OR DELETE ON {table}"
                    f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ({_NOBODY_SAID_SO})"
                    f" EXECUTE FUNCTION audit_direct_write('{secret}', '{ignored}');"
                    f"CREATE TRIGGER {TRUNCATED} AFTER TRUNCATE ON {table} FOR EACH STATEMENT"
                    f" WHEN ({_NOBODY_SAID_SO}) EXECUTE FUNCTION audit_direct_write('', '')"
                )
    speak(None, using=using)


def announce_migration(*, using: str = "default", **_: Any) -> None:
    """What migrations write is theirs; watched rows would also keep them from altering the table."""
    speak("migrate", using=using)


def speak(name: str | None, *, using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT set_config('fuseboard.actor', %s, false)", [name or ""])
