"""The usage of language models, by model, dependency and tenant, until Postgres has it.

Calls that end within a few seconds are added up in one span, so that a pod sends few rows, and so that the
ledger knows their hour also when the control plane was away for a day. Memory is bounded: what exceeds the
bounds is counted without its tenant, then without its model, and never left out.
"""

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from fuseboard.contract.usage import MAX_AMOUNT, MAX_MODEL, MAX_PARTS, MAX_ROWS, UsagePart, UsageRow
from fuseboard.reporting.numbered_parts import NumberedParts, take_rows

#: Calls of this time are sent together.
EVERY_S = 15.0
#: While nothing is taken, calls of this time stay together.
SPAN_S = 300.0
#: Rows in memory, about 1 MB. Further ones are counted without their tenants.
MAX_KEPT = 3_000
#: Models that are counted separately. A client may send any name, but vendors answer few.
MAX_MODELS = 100
#: Spans in memory: what is older than a day is together.
MAX_SPANS = 300
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

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
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
            key = self._key(span, asked)
            row = span.rows.get(key)
            if row is None:
                self._kept += 1
                span.rows[key] = list(numbers)
            else:
                for at, number in enumerate(numbers):
                    row[at] += number

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
        """The span of a call that ends now."""
        spans = self._spans
        if spans and (now - spans[-1].began < SPAN_S or self._kept >= MAX_KEPT or len(spans) >= MAX_SPANS):
            return spans[-1]
        spans.append(_Span(now))
        return spans[-1]

    def _key(self, span: _Span, key: _Key) -> _Key:
        """The row to count in: of another tenant or model, if there are too many rows."""
        model, dependency, _ = key
        if (model, dependency) not in self._models:
            if len(self._models) >= MAX_MODELS:
                return "", "", ""
            self._models.add((model, dependency))
        return key if key in span.rows or self._kept < MAX_KEPT else (model, dependency, "")

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


def _text(text: str, most: int) -> str:
    """Without NUL and halves of characters, which requests can have: Postgres would refuse the whole part."""
    return text[:most].replace("\0", "?").encode(errors="replace").decode()


def _size(row: UsageRow) -> int:
    return len(_encode(row)) + 1
