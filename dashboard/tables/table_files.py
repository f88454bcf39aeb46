"""CSV of any table of a page: ``?csv=`` with the id of the heading of its section.

The file is read from the page itself, so it has the same columns, rights and filters. A list that the page
divides is followed to its end, one piece after the other. See docs/adr/0024-csv-from-the-drawn-table.md.
"""

import copy
import csv
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from io import StringIO
from typing import Any
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.http.response import HttpResponseBase

from controlplane.accounts.permissions import environment_in, may
from controlplane.audit.export import harmless_cell
from dashboard.tables.drawn_table import DrawnTable, drawn_table

#: Rows of one file, and of one piece of a list that the page divides.
MAX_ROWS, _PIECE = 200_000, 500
#: Rows of a list of which the page draws only the newest.
_LISTED = 10_000
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.IGNORECASE)
#: Where the whole list is more than one page tells: all customers, and the history of all changes.
_NEEDS = {
    "tenants": "export_configuration",
    "revisions": "export_audit",
    "audit": "export_audit",
    "changes": "export_audit",
}
#: One piece of any file at a time in a process, so that files leave most of it to live pages.
_turn = threading.Lock()

View = Callable[..., HttpResponseBase]


def is_file(request: HttpRequest) -> bool:
    return request.method == "GET" and bool(request.GET.get("csv"))


def rows_drawn(request: HttpRequest, drawn: int) -> int:
    """Rows per page of a list that has more pages: more of them in a file."""
    return max(drawn, _PIECE) if is_file(request) else drawn


def rows_listed(request: HttpRequest, drawn: int) -> int:
    """Rows of a list that the page cuts after the newest: many more of them in a file."""
    return max(drawn, _LISTED) if is_file(request) else drawn


def table_file(request: HttpRequest, page: Callable[[HttpRequest], HttpResponseBase]) -> HttpResponseBase:
    """The file instead of the page."""
    name = request.GET["csv"]
    if not _NAME.fullmatch(name):
        return _missing()
    first = page(request)
    if first.status_code != 200 or not isinstance(first, HttpResponse):
        return first
    match = request.resolver_match
    needed = _NEEDS.get(match.url_name or "" if match else "")
    if needed and not may(request.user, needed, environment_in(request)):
        raise PermissionDenied("The whole list as a file needs the role admin.")
    if not first.headers.get("Content-Type", "").startswith("text/html"):
        return _missing()
    table = drawn_table(first.content.decode(), name)
    if table is None:
        return _missing()
    pieces = _pieces(request, page, table)
    place = match.url_name if match and match.url_name else "table"
    file = f"{environment_in(request)}-{place}-{name.removeprefix('h-')}-{datetime.now(UTC):%Y-%m-%d}.csv"
    return StreamingHttpResponse(
        # A WSGI server streams plain iterators, an ASGI server asynchronous ones.
        _apieces(pieces) if isinstance(request, ASGIRequest) else pieces,
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{file}"', "Cache-Control": "no-store"},
    )


def _missing() -> HttpResponse:
    text = "This page has no such table. Use the CSV link of the page."
    return HttpResponse(text, status=404, content_type="text/plain")


async def _apieces(pieces: Iterator[str]) -> AsyncIterator[str]:
    while piece := await sync_to_async(lambda: next(pieces, ""))():
        yield piece


def _pieces(
    request: HttpRequest, page: Callable[[HttpRequest], HttpResponseBase], table: DrawnTable
) -> Iterator[str]:
    yield as_csv([table.headings])
    written, headings = 0, table.headings
    while True:
        rows = [row.cells for row in _chosen(table, request.GET)][: MAX_ROWS - written]
        written += len(rows)
        if rows:
            yield as_csv(rows)
        if written >= MAX_ROWS or (len(table.rows) >= _LISTED and not table.following):
            yield as_csv([[f"cut: only the first {written} rows"]])
            return
        if not table.following:
            return
        with _turn:
            found = _following(request, page, table.following)
        if found is None or found.headings != headings:
            # An answer that began with 200 can only end early. The last line says so.
            yield as_csv([[f"cut: the page changed after {written} rows"]])
            return
        table = found


def _following(
    request: HttpRequest, page: Callable[[HttpRequest], HttpResponseBase], address: str
) -> DrawnTable | None:
    """The table on the next page. The view checks the rights of the reader again."""
    asked = copy.copy(request)
    query = QueryDict(urlsplit(address).query, mutable=True)
    query["csv"] = request.GET["csv"]
    # Properties of Django's requests that were computed once for the first page.
    asked.__dict__["GET"] = query
    answer = page(asked)
    if answer.status_code != 200 or not isinstance(answer, HttpResponse):
        return None
    return drawn_table(answer.content.decode(), request.GET["csv"])


def as_csv(rows: list[list[Any]]) -> str:
    text = StringIO()
    csv.writer(text).writerows([harmless_cell(cell) for cell in row] for row in rows)
    return text.getvalue()


def _chosen(table: DrawnTable, given: QueryDict) -> list[Any]:
    """The rows that the page shows: what the browser filters and orders, for the tables where it does so."""
    rows = table.rows
    if table.paged:
        return rows
    prefix = "" if table.main else f"{given.get('csv', '').removeprefix('h-')}."
    words, kind = given.get(f"{prefix}q", "").strip().lower(), given.get(f"{prefix}state", "")
    rows = [row for row in rows if words in row.name.lower() and (not kind or kind in row.kinds)]
    wanted = given.get(f"{prefix}sort", "")
    keys = [re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in table.headings]
    if wanted.removeprefix("-") not in keys:
        return rows
    place = keys.index(wanted.removeprefix("-"))
    # Empty cells come last, in either order.
    filled = [row for row in rows if row.cells[place]]
    filled.sort(key=lambda row: _order(row.cells[place]), reverse=wanted.startswith("-"))
    return [*filled, *(row for row in rows if not row.cells[place])]


def _order(text: str) -> tuple[bool, float, str]:
    """Numbers before words, each in its own order."""
    found = re.match(r"[+-]?\d+(\.\d+)?", text.replace(",", "").replace(" ", ""))
    return (found is None, float(found.group()) if found else 0.0, text.lower())
