"""One request and its answer."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

JSON = "application/json"


class Request(Struct, frozen=True, kw_only=True, gc=False):
    method: str
    path: str
    #: Names are in lower case.
    headers: Mapping[str, str]
    body: bytes
    #: The user of the peer's process, on a unix socket; ``None`` if it is not known.
    uid: int | None = None


class Answer(NamedTuple):
    status: int
    body: bytes
    kind: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    #: Called if the peer left before the answer could be written.
    unsent: Callable[[], object] | None = None


class Service(Protocol):
    """The application behind a listener."""

    def handle(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        """Answer at once, or with a coroutine. It is cancelled if the peer closes its connection.

        It has no task until it waits for the second time: see ``fuseboard.serving.call``.
        """

    def problem(self, status: int, kind: str, detail: str) -> Answer:
        """The answer to a request that cannot be read."""
