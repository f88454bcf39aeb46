"""Refuses requests that are not the application's: by token, ``Host`` and ``Origin``.

A page in a browser can send requests to loopback, and so can a proxy in the pod that fetches what strangers
name. Neither has the token. A browser sends an ``Origin``, and a name that was pointed at loopback
(DNS rebinding) is in ``Host``.
"""

import hmac
import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

from fuseboard.contract.endpoints import starred
from fuseboard.contract.sidecar import EXPLAIN_PATH
from fuseboard.contract.words import is_subject
from fuseboard.errors import Misconfigured
from fuseboard.reporting.token import TokenSource
from fuseboard.serving.exchange import Answer, Request
from fuseboard.sidecar.answers import problem

TOKEN, TOKEN_FILE = "FUSEBOARD_SIDECAR_TOKEN", "FUSEBOARD_SIDECAR_TOKEN_FILE"

_HOST = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)


class LoopbackAccess:
    """``token`` of ``None`` asks for no token."""

    def __init__(self, token: TokenSource | None) -> None:
        self._token = token
        #: The last ``Host`` that was right: an application sends the same one each time.
        self._host: str | None = None

    def refuse(self, request: Request) -> Answer | None:
        """The answer to a request that is not the application's."""
        headers = request.headers
        if "origin" in headers:
            return _refuse_browser()
        host = headers.get("host", "")
        if host != self._host:
            if not _HOST.fullmatch(host):
                return problem(403, "host", "the header Host must be 127.0.0.1, localhost or [::1]")
            self._host = host
        if self._token is None:
            return _refuse_to_explain() if request.path == EXPLAIN_PATH else None
        if _has_token(headers.get("authorization", ""), self._token.current()):
            return None
        return problem(401, "token", f"send Authorization: Bearer with the token of {TOKEN_FILE}")


class UnixAccess:
    """The mode of the socket's file says who may connect; ``uids`` says it more exactly, if there are any."""

    def __init__(self, uids: frozenset[int] = frozenset()) -> None:
        self._uids = uids

    def refuse(self, request: Request) -> Answer | None:
        """The answer to a request that is not the application's."""
        if "origin" in request.headers:
            return _refuse_browser()
        if self._uids and request.uid not in self._uids:
            return problem(403, "uid", f"the user {request.uid} is not named by --uid")
        return None


class TenantNames:
    """The tenants that an application may use, by patterns in which ``*`` stands for any text.

    Raises ``Misconfigured`` for a pattern that no name can match.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        for pattern in patterns:
            if not is_subject(pattern):
                raise Misconfigured(
                    "--tenants must be a name with 1 to 200 characters, in which * is any text, "
                    f"not {pattern!r:.80}"
                )
        self._match = re.compile("|".join(starred(pattern) for pattern in patterns)).match

    def include(self, tenant: str) -> bool:
        """Whether the application may use it. A name that no tenant can have is none of them."""
        return is_subject(tenant) and self._match(tenant) is not None


def _refuse_browser() -> Answer:
    return problem(403, "origin", "requests of browsers are refused: remove the header Origin")


def _refuse_to_explain() -> Answer:
    """An explanation has the names of operators, and what tenants have left."""
    return problem(403, "explain", f"{EXPLAIN_PATH} needs a token: start the sidecar without --no-token")


def _has_token(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), token.encode())


def token_of(environ: Mapping[str, str]) -> TokenSource:
    """The token of the application. Its file may be replaced while the sidecar runs.

    Raises ``Misconfigured`` without a token.
    """
    token, file = environ.get(TOKEN, "").strip(), environ.get(TOKEN_FILE, "").strip()
    if bool(token) == bool(file):
        raise Misconfigured(
            f"set {TOKEN_FILE} or {TOKEN}, or pass --no-token, or --listen off to serve Envoy alone"
        )
    if file:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(f"{TOKEN_FILE} cannot be read: {type(error).__name__}") from None
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise Misconfigured(f"{TOKEN_FILE if file else TOKEN} must be one word of printable ASCII")
    return TokenSource(token, Path(file) if file else None)


def loopback_of(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``. Raises ``Misconfigured`` unless ``Host`` may name the host."""
    host, port = address_of("--listen", address)
    host = str(ip_address(host))
    if host not in ("127.0.0.1", "::1"):
        raise Misconfigured(
            "--listen must be 127.0.0.1 or [::1], like 127.0.0.1:7480: others could spend your limits"
        )
    return host, port


def address_of(option: str, address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``. Raises ``Misconfigured`` unless the host is an address."""
    host, _, port = address.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        ip_address(host)
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError(port)
    except ValueError:
        raise Misconfigured(f"{option} must be HOST:PORT, like 127.0.0.1:7480, not {address!r:.80}") from None
    return host, int(port)
