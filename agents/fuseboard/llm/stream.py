"""Reads server-sent events while they are handed on.

The reader of the answer gets each byte at once and as it came. Only if events may be hidden from it, an event
is kept back until it is whole, and never more than one.
"""

import re
from collections.abc import Callable

#: The longest event that is kept back. A longer one is handed on, and cannot be hidden.
MAX_KEPT_BACK = 65_536
#: The longest event that is read. The last one of a response of OpenAI repeats the whole answer.
MAX_READ = 4 * 1024 * 1024

#: An event ends with an empty line. The group takes CR and LF together wherever both have come.
_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_ENDS = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventReader:
    """One stream. Give it every part in order; parts may be split anywhere.

    ``read`` gets each event with its end, and returns whether to hide it, which ``hides`` must allow.
    """

    __slots__ = ("_cr", "_given", "_hid", "_read", "_skips", "_tail", "hides")

    def __init__(self, read: Callable[[bytes], bool], *, hides: bool) -> None:
        self._read = read
        self.hides = hides
        #: The event that is not whole yet, and how much of it the reader of the answer has.
        self._tail, self._given = bytearray(), 0
        #: The event is too long, and its beginning is dropped.
        self._skips = False
        #: The last event was hidden. It ended with a CR, whose LF may still come.
        self._hid = self._cr = False

    def feed(self, part: bytes) -> bytes:
        """The bytes that the reader of the answer gets now."""
        if not self._tail and not self._cr and 0 <= part.find(b"\n\n") == len(part) - 2 and b"\r" not in part:
            # Nearly always, a part is one event.
            self._hid = self._read(part) and self.hides
            return b"" if self._hid else part
        kept: list[bytes | bytearray] = []
        tail, new = self._tail, part
        if self._cr and part:
            self._cr = False
            if part[0] == 10:
                new = part[1:]
                if not self._hid:
                    kept.append(b"\n")
        # An event that is not whole ends with at most one end of a line.
        begun = max(0, len(tail) - 2)
        tail += new
        at = 0
        for end in _END.finditer(tail, begun):
            after = end.end()
            self._hid = (
                not self._skips and self._read(bytes(tail[at:after])) and self.hides and not self._given
            )
            if not self._hid:
                kept.append(tail[at + self._given : after])
            at, self._given, self._skips = after, 0, False
        if at:
            self._cr = at == len(tail) and tail[-1] == 13
            del tail[:at]
        self._bound(kept)
        return b"".join(kept) if self.hides else part

    def finish(self) -> bytes:
        """The stream is over: read what is left. Returns what the reader of the answer does not have yet."""
        tail, self._tail = bytes(self._tail), bytearray()
        hid = bool(tail) and not self._skips and self._read(tail) and not self._given
        return tail[self._given :] if self.hides and not hid else b""

    def _bound(self, kept: list[bytes | bytearray]) -> None:
        """Hand on the beginning of an event that is too long to be kept back, and drop it if it is longer."""
        tail = self._tail
        if not self._given and len(tail) <= MAX_KEPT_BACK:
            return
        kept.append(tail[self._given :])
        self._given = len(tail)
        if len(tail) > MAX_READ or self._skips:
            # The end of a line may be at the end of what is dropped.
            del tail[:-2]
            self._given, self._skips = len(tail), True


def data_of(event: bytes) -> bytes:
    """The data of an event: its lines that begin so, joined. Spaces and ends of lines around it may stay."""
    # Nearly all events have one such line, which is the last one.
    begins = event.startswith(b"data:")
    at = 5 if begins else event.find(b"\ndata:") + 6
    if (begins or at > 5) and event.find(b"\n", at, -2) < 0 and b"\r" not in event:
        return event[at:]
    lines = _LINE_ENDS.split(event.removeprefix(_BYTE_ORDER_MARK))
    return b"\n".join([line[5:] for line in lines if line.startswith(b"data:")])
