"""The header ``Idempotency-Key`` in HTTP, without a framework: what is the same request, and each answer.

Follows draft-ietf-httpapi-idempotency-key-header-07, with 409 for a request that runs and 422 for another
request with the same key.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from math import ceil

import msgspec

from fuseboard.agent_api.arguments import check_seconds
from fuseboard.errors import Misconfigured, StoreUnavailable
from fuseboard.integrations.problem import Headers
from fuseboard.primitives.idempotency import Found, Request
from fuseboard.store.off_store import REDIS_IS_OFF

logger = logging.getLogger("fuseboard")

#: Status, headers, body.
Answer = tuple[int, Headers, bytes]

METHODS = {"POST", "PATCH"}
#: A longer body with a key is refused: all of it is read before the application gets the request.
MAX_BODY = 1_048_576
#: A longer answer is not kept.
MAX_ANSWER = 262_144
KEEP_S, MAX_KEEP_S = 86_400.0, 3 * 86_400.0
LEASE_S = 60.0
#: ``Retry-After`` of a request in progress is at most this: most requests end long before their lease.
AGAIN_S = 5.0
#: The headers that a repeated answer has. Cookies, dates and ids of requests belong to the first one.
HEADERS = (
    "content-type",
    "content-encoding",
    "content-language",
    "location",
    "etag",
    "last-modified",
    "link",
    "cache-control",
    "vary",
)
#: A repeated answer without its own rule for caches gets this one: it can be private.
NO_STORE = ("cache-control", "no-store")
#: Headers that mark a repeated answer: our header, and the one that clients of Stripe look for.
REPLAYED = (("idempotency-replayed", "true"), ("idempotent-replayed", "true"))

_PROBLEM = "urn:fuseboard:problem:idempotency-"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
#: A header has no line break, and no other control character but a tab.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


#: Headers that a repeated answer cannot have, and why.
_NEVER = {
    "set-cookie": "it would give one session to two clients",
    "content-length": "a repeated answer states the length of its body",
    "transfer-encoding": "a repeated answer is whole",
    "connection": "it is about the connection of the first client",
}


class Kept(msgspec.Struct, array_like=True):
    """An answer as it is stored."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


_decode = msgspec.msgpack.Decoder(Kept).decode


class Rules:
    """The rules of one middleware for keys.

    ``keep``: whether the answer with this status ends the request; the default is 2xx. After another
    status, or an exception, the request can run again. ``fail_open``: while Redis cannot be asked, requests
    run without protection; otherwise they get 503. ``required``: a request without a key gets 400.
    """

    def __init__(
        self,
        *,
        keep_s: float = KEEP_S,
        lease_s: float = LEASE_S,
        keep: Callable[[int], bool] | None = None,
        headers: Iterable[str] = HEADERS,
        required: bool = False,
        fail_open: bool = False,
    ) -> None:
        check_seconds("keep_s", keep_s, 60.0, MAX_KEEP_S)
        check_seconds("lease_s", lease_s, 1.0, 3600.0)
        self.keep_s, self.lease_s = keep_s, lease_s
        self.ends = keep if keep is not None else lambda status: 200 <= status < 300
        self.headers = frozenset(name.lower() for name in headers)
        for name, why in _NEVER.items():
            if name in self.headers:
                raise Misconfigured(f"headers must not contain {name!r}: {why}")
        self.required, self.fail_open = required, fail_open

    def key(self, method: str, values: Sequence[str]) -> str | Answer | None:
        """The key of a request with these values of the header; ``None`` when it needs no protection."""
        if method not in METHODS:
            return None
        if not values:
            return (
                _problem(400, "missing", "This request needs the header Idempotency-Key.")
                if self.required
                else None
            )
        value = values[0].strip()
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        if len(values) > 1 or not _KEY.fullmatch(value):
            return _problem(400, "invalid", "Idempotency-Key is one value of 1 to 255 visible characters.")
        return value

    def kept(self, status: int, headers: Iterable[tuple[str, str]], body: bytes | None) -> bytes:
        """The answer as it is stored; empty when it is too long, or ``None``."""
        if body is None or len(body) > MAX_ANSWER:
            return b""
        chosen = [(name, value) for name, value in headers if name.lower() in self.headers]
        return msgspec.msgpack.encode(Kept(status, chosen, body))

    def answer_of(self, found: Found) -> Answer:
        """The answer to a request that must not run now."""
        if found.word == "other":
            return _problem(422, "reused", "This key belongs to another request: use a new key.")
        if found.word == "running":
            return _problem(
                409, "in-progress", "A request with this key is in progress.", min(found.left_s, AGAIN_S)
            )
        kept = self._read(found.answer)
        if kept is None:
            return _problem(409, "done", "The request with this key is done. Its answer was not kept.")
        headers = [(name, value) for name, value in kept.headers if name.lower() in self.headers]
        if not any(name.lower() == "cache-control" for name, _ in headers):
            headers.append(NO_STORE)
        return kept.status, [*headers, *REPLAYED, ("content-length", str(len(kept.body)))], kept.body

    def _read(self, stored: bytes) -> Kept | None:
        """The answer; ``None`` when it was not kept, or is not one that a pod has stored.

        Every pod of the environment can write to Redis, so this checks what it finds.
        """
        if not stored:
            return None
        try:
            kept = _decode(stored)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.warning("idempotency.unreadable: %s; the request is done, without an answer", error)
            return None
        good = 200 <= kept.status <= 599 and len(kept.body) <= MAX_ANSWER
        if good and all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in kept.headers):
            return kept
        logger.warning("idempotency.refused: no pod stores this answer; the request is done, without one")
        return None

    def unavailable(self, error: StoreUnavailable) -> Answer | None:
        """The answer while Redis cannot be asked; ``None`` to run the request."""
        if self.fail_open or error.why == REDIS_IS_OFF:
            return None
        return _problem(503, "unavailable", "Whether this request ran before cannot be found out now.", 1.0)


def request_of(
    *, caller: object, method: str, path: str, key: str, query: bytes, content_type: str, body: bytes
) -> Request:
    """The fingerprint is of the raw bytes: another order of the same fields is another request.

    Raises ``Misconfigured`` unless ``caller`` is text: with an empty one, strangers would share answers.
    """
    if not isinstance(caller, str) or not caller:
        raise Misconfigured(
            f"the caller of a request with a key must be text that is not empty, or None, not {caller!r:.80}"
        )
    digest = sha256()
    for part in (content_type.encode(), query, body):
        digest.update(b"%d:" % len(part) + part)
    return Request(caller, method, path, key, digest.hexdigest())


def too_long() -> Answer:
    return _problem(413, "body-too-long", f"A request with a key has a body of at most {MAX_BODY} bytes.")


def _problem(status: int, name: str, detail: str, retry_after_s: float = 0.0) -> Answer:
    title = name.replace("-", " ").capitalize()
    details: dict[str, object] = {"type": _PROBLEM + name, "title": title, "status": status, "detail": detail}
    headers = [("content-type", "application/problem+json")]
    if retry_after_s:
        details["retry_after"] = ceil(retry_after_s)
        headers.append(("retry-after", str(details["retry_after"])))
    body = json.dumps(details).encode()
    return status, [*headers, ("content-length", str(len(body)))], body
