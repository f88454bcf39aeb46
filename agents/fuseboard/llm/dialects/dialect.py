"""A dialect reads what a request asks for, and the usage of an answer."""

from typing import Any, Protocol

from msgspec import Struct

from fuseboard.llm.usage import Usage


class Asked(Struct):
    """A request, as far as its tokens are concerned. Each dialect reads it from other fields."""

    model: str = ""
    streams: bool = False
    #: The most tokens that the answer may have; ``None`` for no bound.
    most: int | None = None


class Dialect(Protocol):
    """``read`` methods raise ``msgspec.DecodeError`` for what is not in the format."""

    #: How the path of its endpoint ends.
    path: str
    #: The names of its endpoint and of its format in the semantic conventions of OpenTelemetry.
    operation: str
    provider: str
    #: Whether limits of the vendor count what was read from its cache.
    counts_cached: bool
    #: An event without one of these bytes says nothing about usage.
    hints: tuple[bytes, ...]

    def asked(self, body: bytes) -> Asked: ...

    def with_usage(self, body: bytes) -> bytes | None:
        """The body that also asks for the usage of a stream; ``None`` if it need not be changed."""

    def read_answer(self, document: bytes, usage: Usage) -> None: ...

    def read_event(self, data: bytes, usage: Usage) -> bool:
        """Whether it is the event that ``with_usage`` has added."""


def letters_of(*texts: Any) -> int:
    """Letters in these, as far as they are text: vendors also send lists and objects."""
    total = 0
    for text in texts:
        if type(text) is str:
            total += len(text)
    return total
