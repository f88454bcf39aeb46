"""Operations for migrations of tables that may be large."""

from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently as DjangosIndex
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import SeparateDatabaseAndState
from django.db.migrations.operations.base import Operation

_VALID = """
    SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(quote_ident(%s))
"""


class Long(SeparateDatabaseAndState):
    """Operations that read or write every row of a large table: their statements have no time limit.

    ``Long(migrations.RunSQL(...))``. All other statements of ``manage.py migrate`` have one.
    """

    def __init__(self, *operations: Operation) -> None:
        super().__init__(database_operations=operations, state_operations=operations)
        self.operations = operations

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, list(self.operations), {}

    def describe(self) -> str:
        return "; ".join(operation.describe() for operation in self.operations)

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        schema_editor.execute("SET statement_timeout = 0")
        super().database_forwards(app_label, schema_editor, from_state, to_state)
        schema_editor.execute("RESET statement_timeout")

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        schema_editor.execute("SET statement_timeout = 0")
        super().database_backwards(app_label, schema_editor, from_state, to_state)
        schema_editor.execute("RESET statement_timeout")


class AddIndexConcurrently(DjangosIndex):
    """Django's, without a time limit, and it can run again after it was interrupted.

    Everybody can read and write the table meanwhile. The migration needs ``atomic = False``, and should do
    nothing else, because what an interrupted one has done remains.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        self._ensure_not_in_transaction(schema_editor)
        valid = None if schema_editor.collect_sql else self._is_valid(schema_editor)
        if valid:
            return
        if valid is False:
            schema_editor.execute(f"DROP INDEX CONCURRENTLY {schema_editor.quote_name(self.index.name)}")
        # It waits for transactions that are open, and no other statement waits behind it.
        schema_editor.execute("SET statement_timeout = 0")
        schema_editor.execute("SET lock_timeout = 0")
        super().database_forwards(app_label, schema_editor, from_state, to_state)
        schema_editor.execute("RESET lock_timeout")
        schema_editor.execute("RESET statement_timeout")

    def _is_valid(self, schema_editor: BaseDatabaseSchemaEditor) -> bool | None:
        """``None`` without the index; one that was interrupted is not valid."""
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(_VALID, [self.index.name])
            found = cursor.fetchone()
        return None if found is None else bool(found[0])
