"""The usage of language models, by model, dependency and tenant, until Postgres has it.

Calls that end within a few seconds are added up in one span, so that a pod sends few rows, and so that the
ledger knows their hour also when the control plane was away for a week. Memory is bounded: if there are too
many rows, the spans of an hour become one, and then the cheapest rows are counted without their tenant, and
after that without their model. No call is left out, and none moves to another hour.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic, time

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from fuseboard.contract.usage import MAX_AMOUNT, MAX_MODEL, MAX_PARTS, MAX_ROWS, UsagePart, UsageRow
from fuseboard.reporting.numbered_parts import NumberedParts, take_rows

#: Calls of this time are sent together.
EVERY_S = 15.0
#: While nothing is taken, calls of this time stay together.
SPAN_S = 300.0
#: Rows in memory, about 1 MB; and how many are left when there were too many.
MAX_KEPT = 3_000
_LEFT_PERCENT = 75
#: Models that are counted separately. A client may send any name, but vendors answer few.
MAX_MODELS = 100
#: Spans in memory, and hours: what is older than a week is together, as the ledger takes nothing older.
MAX_SPANS, MAX_HOURS = 300, 8 * 24
HOUR_S = 3_600
#: Bytes of all parts of one heartbeat, and of the last one, after which there is no other.
MAX_BYTES, LAST_BYTES = 12_000, 24_000
#: A gateway that does not answer parts is of an older release. It gets them after this time again.
OLDER_GATEWAY_S = 60.0

_encode = msgspec.json.Encoder().encode


class Used(Struct, frozen=True, kw_only=True, gc=False):
    """The usage of one call, or of many. See ``UsageRow``."""

    calls: int = 1
    fresh: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0
    micro_usd: int = 0
    wasted: int = 0
    wasted_micro_usd: int = 0
    estimated: int = 0
    estimated_micro_usd: int = 0
    unpriced: int = 0
    saved_micro_usd: int = 0


_Key = tuple[str, str, str]
_NAMELESS: _Key = "", "", ""
_COST = Used.__struct_fields__.index("micro_usd")


class _Span:
    __slots__ = ("began", "rows")

    def __init__(self, began: float) -> None:
        #: When its first call ended, monotonic.
        self.began = began
        #: Model, dependency and tenant -> the numbers of ``Used``.
        self.rows: dict[_Key, list[int]] = {}


class _Sent(Struct, frozen=True, gc=False):
    began: float
    part: UsagePart


class UsageTallies:
    """Calls are added in any thread. ``next`` and ``taken`` are for the sync thread."""

    def __init__(self, now: Callable[[], float] = monotonic, wall: Callable[[], float] = time) -> None:
        self._now, self._wall = now, wall
        self._lock = threading.Lock()
        self._spans: deque[_Span] = deque()
        #: Rows in all spans.
        self._kept = 0
        self._models: set[tuple[str, str]] = set()
        self._waiting: deque[UsageRow] = deque()
        self._began = 0.0
        self._parts: NumberedParts[_Sent] = NumberedParts()
        self._quiet_until = 0.0

    def add(self, model: str, dependency: str, tenant: str, used: Used) -> None:
        """Count a call that has ended. In any thread."""
        now, numbers = self._now(), astuple(used)
        asked = _text(model, MAX_MODEL), _text(dependency, 64), _text(tenant, 200)
        with self._lock:
            span = self._span(now)
            self._kept += _add(span.rows, self._key(asked), numbers)
            if self._kept > MAX_KEPT or len(self._spans) > MAX_SPANS:
                self._shrink(now)

    def next(self, *, leaving: bool = False) -> tuple[UsagePart, ...]:
        """The parts for the next heartbeat: those without an answer again, and new ones if there is room."""
        now = self._now()
        if now < self._quiet_until and not leaving:
            return ()
        room = (LAST_BYTES if leaving else MAX_BYTES) - sum(len(_encode(one.part)) for one in self._parts)
        while (
            len(self._parts) < MAX_PARTS and room > 0 and (self._waiting or self._take(now, leaving=leaving))
        ):
            rows = take_rows(self._waiting, MAX_ROWS, room, _size)
            if not rows:
                break
            began = self._began
            part = self._parts.add(
                lambda number, rows=rows, began=began: _Sent(  # type: ignore[misc]
                    began, UsagePart(number=number, ago_s=0, rows=rows)
                )
            ).part
            room -= len(_encode(part))
        return tuple(replace(one.part, ago_s=max(0, int(now - one.began))) for one in self._parts)

    def taken(self, number: int | None) -> None:
        """A gateway answers that Postgres has the parts until this number; ``None`` from an older gateway."""
        if number is not None:
            self._parts.taken(number)
        elif self._parts:
            self._quiet_until = self._now() + OLDER_GATEWAY_S

    @property
    def left(self) -> int:
        """Rows that no gateway has confirmed."""
        with self._lock:
            kept = self._kept
        return kept + len(self._waiting) + sum(len(one.part.rows) for one in self._parts)

    def _span(self, now: float) -> _Span:
        """The span of a call that ends now. One that waits to be taken ends with its hour."""
        if self._spans:
            last = self._spans[-1]
            age_s = now - last.began
            if age_s < EVERY_S or (age_s < SPAN_S and self._hour(last, now) == self._wall() // HOUR_S):
                return last
        self._spans.append(_Span(now))
        return self._spans[-1]

    def _hour(self, span: _Span, now: float) -> float:
        """The number of the hour in which it began, as a gateway will find it from its age."""
        return (self._wall() - (now - span.began)) // HOUR_S

    def _key(self, key: _Key) -> _Key:
        """The row to count in: that of no model, if there are too many models."""
        model = key[:2]
        if model not in self._models:
            if len(self._models) >= MAX_MODELS:
                return "", "", ""
            self._models.add(model)
        return key

    def _shrink(self, now: float) -> None:
        """Make the rows few enough, with all that they count, each in its hour."""
        hours: deque[_Span] = deque()
        for span in self._spans:
            if hours and self._hour(hours[-1], now) == self._hour(span, now):
                _merge(span.rows, hours[-1].rows)
            else:
                hours.append(span)
        while len(hours) > MAX_HOURS:
            _merge(hours.popleft().rows, hours[0].rows)
        kept = sum(len(span.rows) for span in hours)
        most = max(len(hours), MAX_KEPT * _LEFT_PERCENT // 100)
        while kept > most:
            widest = max(hours, key=lambda span: len(span.rows))
            before = len(widest.rows)
            widest.rows = _without_cheapest(widest.rows)
            kept -= before - len(widest.rows)
        self._spans, self._kept = hours, kept

    def _take(self, now: float, *, leaving: bool) -> bool:
        """Take the oldest span to send it, if it is due. Returns whether there is one."""
        with self._lock:
            spans = self._spans
            if not spans or not (leaving or len(spans) > 1 or now - spans[0].began >= EVERY_S):
                return False
            span = spans.popleft()
            self._kept -= len(span.rows)
        self._began = span.began
        for key, numbers in span.rows.items():
            self._waiting.append(
                UsageRow(*key, *[max(-MAX_AMOUNT, min(number, MAX_AMOUNT)) for number in numbers])
            )
        return True


def _add(rows: dict[_Key, list[int]], key: _Key, numbers: Iterable[int]) -> int:
    """Add to a row. Returns how many rows that makes."""
    row = rows.get(key)
    if row is None:
        rows[key] = list(numbers)
        return 1
    for at, number in enumerate(numbers):
        row[at] += number
    return 0


def _merge(rows: dict[_Key, list[int]], into: dict[_Key, list[int]]) -> None:
    for key, numbers in rows.items():
        _add(into, key, numbers)


def _without_cheapest(rows: dict[_Key, list[int]]) -> dict[_Key, list[int]]:
    """The rows, half of which are counted without their tenants, or without their models if none has one."""
    named = [key for key in rows if key[2]]
    plain = named or [key for key in rows if key != _NAMELESS]
    plain.sort(key=lambda key: (rows[key][_COST], sum(rows[key])))
    found = dict(rows)
    for key in plain[: len(plain) // 2 + 1]:
        numbers = found.pop(key)
        _add(found, (key[0], key[1], "") if named else _NAMELESS, numbers)
    return found


def _text(text: str, most: int) -> str:
    """Without NUL and halves of characters, which requests can have: Postgres would refuse the whole part."""
    return text[:most].replace("\0", "?").encode(errors="replace").decode()


def _size(row: UsageRow) -> int:
    return len(_encode(row)) + 1
