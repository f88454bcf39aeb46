"""The REST API, with the HTTP client of the standard library.

A write has an ``Idempotency-Key``. So it can be sent again when no answer came, and still happens once.
"""

import os
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

import msgspec

from fuseboard.cli.ctl.documents import Problem
from fuseboard.cli.ctl.exit_codes import ApprovalNeeded, Exit, Failed, code_of
from fuseboard.cli.ctl.settings import CtlSettings
from fuseboard.contract.portable import Portable
from fuseboard.reporting.heartbeat import agent_version
from fuseboard.store.tls import tls_context

Answer = TypeVar("Answer")

#: The timeout of one request. A plan of 200,000 rows takes long.
TIMEOUT_S = 60.0
UPLOAD_TIMEOUT_S = 600.0
#: The largest answer that is read.
_MAX_BYTES = 256 * 1_048_576
#: Pauses before a request without an answer is sent again.
_PAUSES_S = (0.2, 0.6, 1.8)
_NOT_KNOWN = "It is not known whether a change was made: look at the page Changes before you run this again."


class _NoRedirects(HTTPRedirectHandler):
    """Redirects are not followed: the token is for one server only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Client:
    """Raises ``Failed`` with a message and the exit code."""

    def __init__(self, settings: CtlSettings) -> None:
        self.environment = settings.environment
        self._base = settings.api_url
        self._token = settings.token
        self._opener = _opener(self._base)

    def get(self, path: str, kind: type[Answer], **query: Any) -> Answer:
        return _read(self.raw("GET", path, query=query), kind)

    def write(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        body: Any = None,
        *,
        version: int | None = None,
        old_path: str = "",
        **query: Any,
    ) -> Answer:
        """``old_path`` is the name of the operation in version 0.1.0, for servers of that version."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if version is not None:
            headers["If-Match"] = f'"{version}"'
        content = msgspec.json.encode(body) if body is not None else None
        try:
            answer = self.raw(method, path, content=content, headers=headers, query=query)
        except _NoSuchOperation:
            if not old_path:
                raise
            answer = self.raw(method, old_path, content=content, headers=headers, query=query)
        return _read(answer, kind)

    def upload(
        self, path: str, kind: type[Answer], content: bytes, content_type: str, **query: Any
    ) -> Answer:
        """Send a file unchanged."""
        headers = {"Content-Type": content_type}
        return _read(
            self.raw("POST", path, content=content, headers=headers, query=query, timeout_s=UPLOAD_TIMEOUT_S),
            kind,
        )

    def raw(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        """``path`` is below the environment. The caller quotes every part of it, see ``part``."""
        asked = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        url = f"{self._base}/{part(self.environment)}/{path}" + (f"?{urlencode(asked)}" if asked else "")
        sent = {
            "Authorization": f"Bearer {self._token}",
            "Accept": "application/json",
            "User-Agent": f"fuseboard-ctl/{agent_version()}",
            **(headers or {}),
        }
        if method != "GET":
            sent["Idempotency-Key"] = str(uuid.uuid4())
        request = Request(url, data=content, headers=sent, method=method)  # noqa: S310 - settings check the scheme
        unknown = False
        for pause_s in (*_PAUSES_S, None):
            try:
                return self._once(request, timeout_s)
            except _Again as failure:
                unknown |= method != "GET" and not failure.answered
                if pause_s is None:
                    said = f"{failure}\n  {_NOT_KNOWN}" if unknown else str(failure)
                    raise Failed(Exit.UNREACHABLE, said) from failure
                time.sleep(max(pause_s, failure.after_s))
        raise AssertionError("the last pause is None")

    def _once(self, request: Request, timeout_s: float) -> bytes:
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                found: bytes = answer.read(_MAX_BYTES)
                if answer.status == 202:
                    raise ApprovalNeeded(found)
                return found
        except HTTPError as error:
            with error:
                raise _failure(error) from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, ssl.SSLError):
                raise Failed(Exit.UNREACHABLE, f"{self._base} cannot be trusted: {reason}") from None
            raise _Again(f"{self._base} does not answer: {reason}", answered=False) from None


class _NoSuchOperation(Failed):
    """The server has no operation of this name. It may be of an older version."""


class _Again(Portable, Exception):
    """No answer, or one that asks to come back later."""

    def __init__(self, message: str, after_s: float = 0.0, *, answered: bool = True) -> None:
        self.after_s = after_s
        #: By this API, and not by a proxy, which cannot know what happened.
        self.answered = answered
        super().__init__(message)


def part(name: str) -> str:
    """One part of a path."""
    return quote(name, safe="")


def parts(name: str) -> str:
    """The end of a path. Slashes stay: keys of tenants and names of domains may have them."""
    return quote(name, safe="/")


def pages(client: Client, path: str, kind: type[Any], cursor: str, **query: Any) -> Iterator[Any]:
    """Every item of every page."""
    at: Any = None
    while True:
        page = client.get(path, kind, **query, **{cursor: at})
        yield from page.items
        if page.next is None:
            return
        at = page.next


def _opener(url: str) -> OpenerDirector:
    host = urlsplit(url).hostname or ""
    local = host in ("localhost", "127.0.0.1", "::1")
    context = tls_context(os.environ.get("FUSEBOARD_CA_FILE", ""))
    handlers: list[Any] = [_NoRedirects, HTTPSHandler(context=context)]
    # Servers on this machine are not called through a proxy.
    return build_opener(*handlers, ProxyHandler({}) if local else ProxyHandler())


def _read(content: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise Failed(
            Exit.UNREACHABLE,
            f"the answer is not from this API ({error}): is FUSEBOARD_API_URL the address of Fuseboard, "
            "and is Fuseboard of the same version?",
        ) from None


def _failure(error: HTTPError) -> Exception:
    body, ours = error.read(_MAX_BYTES), True
    try:
        found = msgspec.json.decode(body, type=Problem)
    except msgspec.DecodeError:
        found = Problem(title=f"HTTP {error.code}", detail="the answer is not from this API")
        ours = False
    retry = error.headers.get("Retry-After", "")
    waits = error.code in (429, 502, 503, 504) or (error.code == 409 and retry)
    if waits:
        after_s = min(30.0, float(retry)) if retry.isdigit() else 0.0
        return _Again(f"{found.title or error.code}: {found.detail}", after_s, answered=ours)
    if 300 <= error.code < 400:
        detail = f"redirects to {error.headers.get('Location', '?')}: set FUSEBOARD_API_URL to that address"
        return Failed(Exit.UNREACHABLE, detail)
    lines = [f"{each.field}: {each.message}" for each in found.errors] or [found.detail or found.title]
    # Every operation counts requests, so it answers with RateLimit. A missing operation cannot.
    missing = error.code == 404 and "RateLimit" not in error.headers
    kind = _NoSuchOperation if missing else Failed
    return kind(code_of(error.code), "\n  ".join(lines))
