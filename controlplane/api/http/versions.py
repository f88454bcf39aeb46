import re

from django.http import HttpRequest
from ninja.errors import HttpError

_ETAG = re.compile(r'"?([0-9]{1,18})"?', re.ASCII)


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
