"""Finds an error in a stream of server-sent events, whose status was a good one.

The bytes are only looked at: the reader gets them as they came. An event is decoded only if its bytes contain
the word ``error``. OpenAI sends the error as ``data: {"error": ...}`` or as the event ``response.failed``,
Anthropic as the event ``error``.
"""

import re
from typing import Any

import msgspec
from msgspec.structs import replace

from fuseboard.calling.classification import UNKNOWN, Verdict, classify_answer
from fuseboard.calling.vendor_codes import code_in, code_in_part, status_of_code

#: The longest event that is kept until it is whole. The beginning of a longer one decides.
MAX_BYTES = 65_536

_END = re.compile(rb"\n\n|\n\r\n|\r\r")
_LINES = re.compile(rb"\r\n|\r|\n")
#: How a stream of events begins, also after a byte order mark.
_EVENTS = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*(?:event|data|id|retry)?:")
_HINT = b"error"


def are_events(part: bytes) -> bool:
    """Whether a body that begins so is a stream of events, whatever its content type says."""
    return _EVENTS.match(part) is not None


class EventErrors:
    """One stream. Give it every part in order; parts may be split anywhere."""

    def __init__(self) -> None:
        #: The bytes after the last event that is whole.
        self._tail = b""
        #: The rest of an event that was too long.
        self._skips = False
        #: An event with data has begun. Comments keep a connection open, and are no part of the answer.
        self.begun = False

    def feed(self, part: bytes) -> Verdict | None:
        """Judge the first error that ends in this part; ``None`` for none."""
        events = self._tail + part if self._tail else part
        if self._skips:
            ended = _END.search(events)
            if ended is None:
                self._tail = events[-3:]
                return None
            events, self._skips = events[ended.end() :], False
        end = _end_of_events(events)
        if not self.begun:
            self.begun = b"data" in events
        verdict = None
        if _HINT in events:
            verdict = _error_in(events[:end])
        self._tail = events[end:]
        if len(self._tail) > MAX_BYTES:
            verdict = verdict or _beginning(self._tail)
            # The mark at the end of an event has at most four bytes.
            self._tail, self._skips = self._tail[-3:], True
        return verdict

    def finish(self) -> Verdict | None:
        """Judge an event that nothing ends: the stream is over."""
        tail, self._tail = self._tail, b""
        return _error_in(tail) if _HINT in tail and not self._skips else None


def _end_of_events(events: bytes) -> int:
    """Where the last empty line ends; 0 without one."""
    end = events.rfind(b"\n\n")
    found = end + 2 if end >= 0 else 0
    if b"\r" in events:
        for mark in (b"\n\r\n", b"\r\r"):
            end = events.rfind(mark)
            if end >= 0:
                found = max(found, end + len(mark))
    return found


def _error_in(events: bytes) -> Verdict | None:
    name, data = b"", []
    for line in (*_LINES.split(events), b""):
        field, _, value = line.partition(b":")
        if field == b"event":
            name = value.strip()
        elif field == b"data":
            data.append(value.removeprefix(b" "))
        elif not line and (name or data):
            verdict = _judge(name, b"\n".join(data))
            if verdict is not None:
                return verdict
            name, data = b"", []
    return None


def _judge(name: bytes, data: bytes) -> Verdict | None:
    if name != b"error" and _HINT not in data:
        return None
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = None
    error = _error_of(document, name == b"error")
    return None if error is None else _verdict(error)


def _error_of(document: Any, named: bool) -> dict[str, Any] | None:
    """The error that an event is about; ``None`` if it is about something else."""
    if not isinstance(document, dict):
        return {"message": str(document or "")} if named else None
    kind = document.get("type")
    if kind == "response.failed" and isinstance(response := document.get("response"), dict):
        document, named = response, True
    error = document.get("error")
    if isinstance(error, dict) and error:
        return error
    if isinstance(error, str) and error:
        return {"message": error}
    return document if named or kind == "error" else None


def _verdict(error: dict[str, Any]) -> Verdict:
    code, message = code_in({"error": error}), str(error.get("message") or "")
    number = error.get("code")
    status = number if type(number) is int and 400 <= number <= 599 else 0
    if not status and status_of_code(code, message, has_status=False) is None:
        return replace(UNKNOWN, code=code)
    return classify_answer(status, {}, code, message)


def _beginning(event: bytes) -> Verdict | None:
    """An event that is too long to be an error of a vendor, unless it is named so."""
    if not re.search(rb"(?:^|[\r\n])event: ?error[\r\n]", event):
        return None
    return _verdict({"code": code_in_part(event)})
