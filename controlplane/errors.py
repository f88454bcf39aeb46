"""Why an edit was not made.

EditError
├── InvalidEdit    what was asked makes no sense: field -> messages
├── EditConflict   somebody else changed it meanwhile
└── NotFound       there is no such thing
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any


class EditError(Exception):
    """Nothing was changed."""


class InvalidEdit(EditError):
    def __init__(self, errors: Mapping[str, list[str]]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(f"{field}: {' '.join(found)}" for field, found in self.errors.items()))


class EditConflict(EditError):
    """``changed`` maps the fields somebody else changed to the values they have now."""

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


class NotFound(EditError):
    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"There is no {kind} {name!r}.")
