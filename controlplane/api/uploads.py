"""A file as the body of a request: copied aside once, with its hash, however large it is."""

from hashlib import sha256
from tempfile import SpooledTemporaryFile
from typing import IO

from django.http import HttpRequest
from ninja.errors import HttpError

from controlplane.policies.plans import MAX_BYTES

#: What a plan may call itself.
KINDS = ("application/yaml", "application/x-yaml", "text/yaml", "text/csv")
_IN_MEMORY = 4 * 1_048_576
_PART = 1_048_576


def upload_of(request: HttpRequest) -> tuple[IO[bytes], str]:
    """The file, at its beginning, and its SHA-256."""
    found: tuple[IO[bytes], str] | None = getattr(request, "upload", None)
    if found is None:
        if request.content_type not in KINDS or "Content-Encoding" in request.headers:
            raise HttpError(415, f"Send the file as one of {', '.join(KINDS)}, and not compressed.")
        found = _copy(request)
        request.upload = found  # type: ignore[attr-defined]
    found[0].seek(0)
    return found


def _copy(request: HttpRequest) -> tuple[IO[bytes], str]:
    # Closed with the request that holds it.
    aside: IO[bytes] = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
    digest, size = sha256(), 0
    while part := request.read(_PART):
        size += len(part)
        if size > MAX_BYTES:
            raise HttpError(413, f"The file is larger than {MAX_BYTES // 1_048_576} MiB.")
        digest.update(part)
        aside.write(part)
    return aside, digest.hexdigest()
