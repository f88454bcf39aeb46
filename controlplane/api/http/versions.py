"""The version that an answer carries and an edit is based on."""

import re
from typing import Any, Protocol, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Query
from ninja.errors import HttpError

from controlplane.api.http.auth import actor_of
from controlplane.api.http.parsing import QueryIn
from controlplane.api.schemas.edits_in import ExpectedVersion, Reason
from controlplane.errors import find

_ETAG = re.compile(r'"?([0-9]{1,18})"?', re.ASCII)

_Row = TypeVar("_Row", bound=Model)


class Removal(QueryIn):
    """The query of a DELETE."""

    reason: Reason
    expected_version: ExpectedVersion | None = None


RemovalInQuery = Query[Removal]


class Versioned(Protocol):
    """Values of an edit with ``expected_version``: a body, or the query of a removal."""

    expected_version: int | None

    def model_dump(self, *, exclude: set[str]) -> dict[str, Any]: ...


def edit_arguments(request: HttpRequest, values: Versioned) -> dict[str, Any]:
    """The caller, the version that the edit is based on, and its other values."""
    return {
        **values.model_dump(exclude={"expected_version"}),
        "expected_version": version_read(request, values.expected_version),
        "actor": actor_of(request),
    }


def find_version(response: HttpResponse, rows: QuerySet[_Row], kind: str, **by: Any) -> _Row:
    """The row with this key. The answer carries its version. Raises ``NotFound``."""
    row = find(rows, kind, **by)
    response["ETag"] = f'"{row.version}"'  # type: ignore[attr-defined]
    return row


def version_read(request: HttpRequest, given: int | None) -> int:
    """The version an edit was made on, from the body or from ``If-Match``."""
    return _read(request, given, "version")


def revision_read(request: HttpRequest, given: int | None) -> int:
    """``version_read`` for edits of the whole configuration: the revision it was made on."""
    return _read(request, given, "revision")


def _read(request: HttpRequest, given: int | None, what: str) -> int:
    header = request.headers.get("If-Match")
    if header is None:
        if given is None:
            raise HttpError(428, f"Send the {what} you have read, as If-Match or expected_{what}.")
        return given
    match = _ETAG.fullmatch(header.strip())
    if match is None or (given is not None and int(match[1]) != given):
        raise HttpError(400, f"If-Match must be the {what} you have read, and agree with expected_{what}.")
    return int(match[1])
