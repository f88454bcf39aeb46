import re

from django.http import HttpRequest
from ninja.errors import HttpError

_ETAG = re.compile(r'"?([0-9]{1,9})"?', re.ASCII)


def version_read(request: HttpRequest, given: int | None) -> int:
    """The version an edit was made on, from the body or from ``If-Match``."""
    header = request.headers.get("If-Match")
    if header is None:
        if given is None:
            raise HttpError(428, "Send the version you have read, as If-Match or expected_version.")
        return given
    match = _ETAG.fullmatch(header.strip())
    if match is None or (given is not None and int(match[1]) != given):
        raise HttpError(400, "If-Match must be the version you have read, and agree with expected_version.")
    return int(match[1])
