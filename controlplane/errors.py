"""Why an edit was refused.

EditError
├── InvalidEdit    the values are not valid: field -> messages
│   └── EditsFrozen    the environment is frozen for a time
├── EditConflict   another person changed the same thing first
├── NameTaken      the name is in use
└── NotFound       it does not exist
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from fuseboard.contract.portable import Portable

#: The text where an edit has waited for the lock of another one for too long.
OTHERS_EDIT = "Another edit of the same things is in progress. Try again in a few seconds."


class EditError(Portable, Exception):
    """The edit was refused; nothing changed."""


class InvalidEdit(EditError):
    def __init__(self, errors: Mapping[str, list[str]]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(f"{field}: {' '.join(found)}" for field, found in self.errors.items()))


class EditsFrozen(InvalidEdit):
    """An admin has frozen the environment until a time. Overrides of breakers still work."""

    def __init__(self, *, environment: str, until: datetime, by: str, reason: str) -> None:
        self.until = until
        text = (
            f"{environment} is frozen until {until:%-d %B %H:%M} UTC by {by}: {reason}."
            " Overrides still work. Schedule the edit for later, or ask an admin to end the freeze."
        )
        super().__init__({"environment": [text]})


class EditConflict(EditError):
    """``changed``: a field -> its present value; or a changed thing -> the names of its fields, as text."""

    def __init__(
        self,
        *,
        expected_version: int,
        current_version: int,
        changed: dict[str, Any],
        by: str,
        at: datetime | None,
    ) -> None:
        self.expected_version = expected_version
        self.current_version = current_version
        self.changed = changed
        self.by = by
        self.at = at
        super().__init__(f"version {expected_version} was expected, but it is at {current_version}")


class NameTaken(EditError):
    """Another thing that is in use has this name. The message says what to do."""


class NotFound(EditError):
    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"There is no {kind} {name!r}.")


_Row = TypeVar("_Row", bound=Model)


def find(rows: QuerySet[_Row], kind: str, **by: Any) -> _Row:
    """Return the row with this key, such as ``pk=7``. Raises ``NotFound``."""
    [key] = by.values()
    row = rows.filter(**by).first()
    if row is None:
        raise NotFound(kind, str(key))
    return row
