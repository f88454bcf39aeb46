"""Samples of this pod's refusals, for the log of the control plane. Any thread can add one.

Each rule has a reservoir (algorithm R): of the ``n`` refusals of one heartbeat's time, each is in the sample
with the same probability. So a rule that refuses seldom is in the log beside one that refuses always. Rules
beyond ``RULES`` share one reservoir.
"""

import logging
import random
import re
from collections.abc import Callable
from threading import Lock
from time import monotonic

from msgspec import Struct

from fuseboard.calling.trace import trace_id
from fuseboard.contract.refusal_samples import MAX_WEIGHT, DigestKey, RefusalSample, digest_of
from fuseboard.contract.words import Reason
from fuseboard.decision import Decision
from fuseboard.subject import NO_SUBJECT, Subject

#: Rules with a reservoir in one heartbeat, and the size of it; then the size of the one that others share.
#: 32 samples take about 8 KB of a heartbeat.
RULES, PER_RULE, OF_OTHERS = 12, 2, 8
MAX_AGO_MS = 3_600_000
#: Lines in the log of the pod about the samples of one heartbeat.
LINES = 5

logger = logging.getLogger("fuseboard.refusals")

#: Segments of a path that identify something: numbers, long or mixed ids, addresses of people.
_ID = re.compile(r"^(?=.*\d)[\w.~:%-]{6,}$|^\d+$|.*[@%].*|^.{25,}$")

#: Where a query or a fragment begins. In a route that is a regular expression, ``?`` follows a parenthesis.
_QUERY = re.compile(r"(?<!\()\?|#")


class _Seen(Struct, frozen=True):
    """A refusal in a reservoir."""

    decision: Decision
    subject: Subject
    tenant: str
    reason: Reason
    at: float
    trace: str


class Reservoir:
    """A uniform sample of at most ``size`` of the things that were offered."""

    def __init__(self, size: int, below: Callable[[int], int] = random.randrange) -> None:
        self.kept: list[_Seen] = []
        self.offered = 0
        self._size, self._below = size, below

    def place(self) -> int | None:
        """Where the next thing goes; ``None`` if it is not kept. Ask once per thing."""
        self.offered += 1
        if self.offered <= self._size:
            return len(self.kept)
        place = self._below(self.offered)
        return place if place < self._size else None

    def put(self, place: int, thing: _Seen) -> None:
        self.kept[place : place + 1] = [thing]


class RefusalSamples:
    """Bounded, however many requests are refused. Without a key of the control plane, nothing is kept."""

    def __init__(self, below: Callable[[int], int] = random.randrange) -> None:
        self._below = below
        self._key: bytes | None = None
        self._lock = Lock()
        self._rules: dict[tuple[str, str, Reason], Reservoir] = {}
        self._others = Reservoir(OF_OTHERS, below)

    def take(self, key: DigestKey | None) -> None:
        """The last answer's key; without one, the control plane keeps no log."""
        self._key = None if key is None else key.key
        if key is None:
            self._clear()

    def offer(self, decision: Decision, subject: Subject = NO_SUBJECT, tenant: str = "") -> None:
        """Count a refusal, and perhaps keep it."""
        reason = decision.reason
        if self._key is None or decision.allowed or reason is None:
            return
        with self._lock:
            key = (decision.dependency, decision.rule, reason)
            reservoir = self._rules.get(key)
            if reservoir is None:
                reservoir = self._others
                if len(self._rules) < RULES:
                    reservoir = self._rules[key] = Reservoir(PER_RULE, self._below)
            place = reservoir.place()
            if place is not None:
                tenant = decision.tenant or tenant
                reservoir.put(place, _Seen(decision, subject, tenant, reason, monotonic(), trace_id()))

    def drain(self) -> tuple[RefusalSample, ...]:
        """The samples since the last call. For one caller, the sync thread."""
        key, (rules, others) = self._key, self._clear()
        if key is None:
            return ()
        now = monotonic()
        samples = tuple(
            _sample(seen, key, reservoir.offered / len(reservoir.kept), now)
            for reservoir in (*rules.values(), others)
            for seen in reservoir.kept
        )
        _log(samples)
        return samples

    def _clear(self) -> tuple[dict[tuple[str, str, Reason], Reservoir], Reservoir]:
        with self._lock:
            before = self._rules, self._others
            self._rules, self._others = {}, Reservoir(OF_OTHERS, self._below)
        return before


def _log(samples: tuple[RefusalSample, ...]) -> None:
    """A line for some of the samples, with digests in place of the caller."""
    for one in samples[:LINES]:
        logger.info(
            "refusal.sampled rule=%r reason=%s dependency=%r tenant=%r endpoint=%r ip=%s user=%s api_key=%s"
            " retry_after_ms=%d stands_for=%.0f trace=%s",
            one.rule,
            one.reason,
            one.dependency,
            one.tenant,
            one.endpoint,
            one.ip or "-",
            one.user or "-",
            one.api_key or "-",
            one.retry_after_ms,
            one.weight,
            one.trace or "-",
        )


def _sample(seen: _Seen, key: bytes, weight: float, now: float) -> RefusalSample:
    decision, subject = seen.decision, seen.subject
    return RefusalSample(
        ago_ms=min(MAX_AGO_MS, int((now - seen.at) * 1000)),
        rule=decision.rule[:300],
        dependency=decision.dependency[:64],
        reason=seen.reason,
        mode=decision.mode,
        tenant=seen.tenant[:200],
        endpoint=template_of(subject.endpoint),
        revision=min(max(0, decision.revision), 2**40 - 1),
        retry_after_ms=min(max(0, decision.retry_after_ms), 2**31 - 1),
        ip=digest_of(key, "ip", subject.ip),
        user=digest_of(key, "user", subject.user),
        api_key=digest_of(key, "api_key", subject.api_key),
        trace=seen.trace,
        weight=min(float(MAX_WEIGHT), weight),
    )


def template_of(endpoint: str) -> str:
    """The endpoint without what identifies a person or a thing, in case a service passes the plain path.

    ``GET /users/anna@example.com/orders/8812?token=x`` becomes ``GET /users/{id}/orders/{id}``.
    """
    method, space, path = endpoint.partition(" ")
    if not space:
        method, path = "", endpoint
    path = _QUERY.split(path, maxsplit=1)[0]
    parts = ["{id}" if _ID.match(part) and not part.startswith("{") else part for part in path.split("/")]
    return f"{method}{space}{'/'.join(parts)}"[:120]
