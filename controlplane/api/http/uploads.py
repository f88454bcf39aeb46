"""A file as the request body: read once, with its hash."""

from hashlib import sha256
from io import BytesIO

from django.http import HttpRequest
from ninja.errors import HttpError

from controlplane.editing.plans import MAX_BYTES

#: Accepted content types of a plan.
KINDS = ("application/yaml", "application/x-yaml", "text/yaml", "text/csv")
_PART = 1_048_576


def upload_of(request: HttpRequest) -> tuple[BytesIO, str]:
    """The file, at its beginning, and its SHA-256."""
    found: tuple[BytesIO, str] | None = getattr(request, "upload", None)
    if found is None:
        if request.content_type not in KINDS or "Content-Encoding" in request.headers:
            raise HttpError(415, f"Send the file as one of {', '.join(KINDS)}, without compression.")
        found = _copy(request)
        request.upload = found  # type: ignore[attr-defined]
    found[0].seek(0)
    return found


def _copy(request: HttpRequest) -> tuple[BytesIO, str]:
    file = BytesIO()
    while part := request.read(_PART):
        file.write(part)
        if file.tell() > MAX_BYTES:
            raise HttpError(413, f"The file is larger than {MAX_BYTES // 1_048_576} MiB.")
    return file, sha256(file.getbuffer()).hexdigest()
