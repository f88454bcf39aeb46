"""Static files, probes, the response while Postgres is down, and text that cannot be stored."""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect, QueryDict
from django.middleware.common import CommonMiddleware
from django.shortcuts import render
from whitenoise.middleware import WhiteNoiseMiddleware  # type: ignore[import-untyped]
from whitenoise.responders import StaticFile  # type: ignore[import-untyped]

from controlplane.errors import OTHERS_EDIT
from controlplane.postgres import others_hold_lock

log = structlog.get_logger(__name__)


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]
    """Sends files whole: ASGI reads what WhiteNoise would stream anyway, and logs a warning."""

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        found = static_file.get_response(request.method, request.META)
        body = b""
        if found.file is not None:
            with found.file:
                body = found.file.read()
        response = HttpResponse(body, status=int(found.status))
        del response["Content-Type"]
        for name, value in found.headers:
            response[name] = value
        return response


class CommonExceptProbes(CommonMiddleware):
    """Django's, but it does not check the host of probes: they name an address, and no answer repeats it."""

    def process_request(self, request: HttpRequest) -> HttpResponsePermanentRedirect | None:
        return None if request.path_info in settings.PROBES else super().process_request(request)


class StoreErrors:
    """Turns a lost Postgres into a 503 that names the cause, and keeps pages out of shared caches.

    An edit that waits for another one for too long is a 409: Postgres is not lost.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if not request.path.startswith("/static/"):
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, OperationalError | InterfaceError):
            return None
        if request.method == "POST" and others_hold_lock(exception):
            log.warning("edit.waited_for_another", path=request.path)
            response = render(request, "409.html", {"said": OTHERS_EDIT}, status=409)
            response.headers["Retry-After"] = "1"
            return response
        log.error("database.unavailable", path=request.path, error=str(exception).splitlines()[0])
        response = render(request, "503.html", status=503)
        response.headers["Retry-After"] = "5"
        return response


_FORM = "application/x-www-form-urlencoded"
_UPLOAD = "multipart/form-data"
#: Also in a problem document, if the path is the API's.
UNREADABLE = (
    "The address or the form contains a NUL character, or text that is not UTF-8. Nothing was changed."
)


class ReadableText:
    """Answers 400 to NUL and to invalid UTF-8 in paths, queries and forms, whatever the page.

    Postgres refuses NUL, so any lookup by such a name would be a 500. ``StrictParser`` does the same for
    the bodies of the API.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not all(map(_is_text, (_path_of(request), _decoded(request.META.get("QUERY_STRING", ""))))):
            return _unreadable(request)
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        if request.method != "POST" or request.path.startswith("/api/"):
            return None
        if request.content_type == _FORM and not _is_text(_decoded(request.body)):
            return _unreadable(request)
        # Django has put U+FFFD in place of what was not UTF-8.
        if request.content_type == _UPLOAD and any(
            "\0" in text or "\ufffd" in text for text in _texts(request.POST)
        ):
            return _unreadable(request)
        return None


def _path_of(request: HttpRequest) -> bytes:
    """The path as it was sent, without percent signs: Django has replaced what is not UTF-8."""
    scope = getattr(request, "scope", {})
    raw: bytes | None = scope.get("raw_path")
    return request.path.encode() if raw is None else unquote_to_bytes(raw)


def _decoded(form: str | bytes) -> bytes:
    return unquote_to_bytes(form)


def _texts(values: QueryDict) -> Iterable[str]:
    for name, found in values.lists():
        yield name
        yield from map(str, found)


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def _unreadable(request: HttpRequest) -> HttpResponse:
    response = render(request, "400.html", {"said": UNREADABLE}, status=400)
    response.problem = UNREADABLE  # type: ignore[attr-defined]
    return response
