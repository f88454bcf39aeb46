"""A made-up past for the charts of the demo, so that they show something in the first minute.

It ends when the demo starts, and charts say that it is made up.
"""

import math
import random
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.utils import timezone

from controlplane.policies.models import VendorLimit
from controlplane.series import partitions
from controlplane.series.kinds import DEPENDENCY, FLEET, POD, SPAN_S, TENANT, Kind
from controlplane.series.models import MADE_UP, Entity, Seal, Writer
from controlplane.series.partitions import SPANS_1H, SPANS_1M, SPANS_10S, Table
from controlplane.series.sealing import Values, write_rows
from controlplane.suggestions.models import Suggestion, SuggestionKind
from tools.demo import scenario

#: How far back there are points of 10 s, of minutes, and of hours.
FINE, MINUTES, HOURS = timedelta(hours=12), timedelta(days=2), timedelta(days=30)

_FRAME = "INSERT INTO series_frame (at, writer, kind, part, ids, v) VALUES (%s, %s, %s, 0, %s, %s)"
_SPAN = "INSERT INTO series_span VALUES (%s, %s, 10000, %s, %s, 0)"
#: Pods that are said to have been heard.
_PODS = 18
#: The usual use of one core by a pod, in thousandths.
_CPU = 30
#: Of the tenants, those with a past.
_TENANTS = 4


def make_up(environment: str, now: datetime | None = None) -> int:
    """Write the past of a new environment, unless it has figures already; returns the number of things."""
    now = now or timezone.now()
    if Entity.objects.filter(environment=environment).exists():
        return 0
    now = now.replace(microsecond=0) - timedelta(seconds=now.second % SPAN_S)
    hour = now.replace(minute=0, second=0)
    things = _things(environment, first_at=hour - HOURS, last_at=now)
    for seconds in range(0, int(HOURS.total_seconds()), 86_400):
        partitions.ensure(hour - timedelta(seconds=seconds))
    partitions.ensure(hour - HOURS)
    with transaction.atomic():
        writer = Writer.objects.create(gateway=MADE_UP, environment=environment, started_at=now)
        for table, back in ((SPANS_10S, FINE), (SPANS_1M, MINUTES), (SPANS_1H, HOURS)):
            at = table.row_of(hour - back)
            while at < hour:
                write_rows(
                    table,
                    at,
                    [(number, _row(kind, weight, at, table, hour)) for kind, number, weight in things],
                )
                at += timedelta(seconds=table.row_s)
        at = hour - FINE
        while at < hour:
            Seal.objects.get_or_create(hour=at, defaults={"final": True, "sealed_at": now})
            at += timedelta(hours=1)
        _write_frames(writer.id, things, hour, now)
    return len(things)


def suggest(environment: str, dependency: str, name: str, *, number: int) -> None:
    """Make up that the vendor stated less than is configured: real vendors do, and that of the demo does not.

    As any suggestion, it ends an hour after its evidence.
    """
    now = timezone.now()
    limit = VendorLimit.objects.get(
        dependency__environment=environment, dependency__name=dependency, name=name
    )
    evidence = f"In 1,240 answers to 2 pods the vendor said {number:,} calls per 1 s, which the demo made up."
    Suggestion.objects.create(
        environment=environment,
        dependency=dependency,
        limit=name,
        kind=SuggestionKind.LIMIT,
        number=number,
        configured=limit.limit,
        algorithm=limit.algorithm,
        window_s=limit.window_s,
        evidence=f"{evidence} Configured: {limit.limit:,} calls per 1 s.",
        first_at=now,
        last_at=now,
    )


_Thing = tuple[Kind, int, float]


def _things(environment: str, *, first_at: datetime, last_at: datetime) -> list[_Thing]:
    weights: list[tuple[Kind, str, float]] = [(FLEET, "", 1.0)]
    weights += [(DEPENDENCY, one.name, 0.5 / (place + 1)) for place, one in enumerate(scenario.DEPENDENCIES)]
    weights += [(POD, name, 1 / len(scenario.PODS)) for name in scenario.PODS]
    weights += [(TENANT, one.key, 0.4 / (place + 1)) for place, one in enumerate(scenario.TENANTS[:_TENANTS])]
    return [
        (
            kind,
            Entity.objects.create(
                environment=environment,
                kind=kind.number,
                name=name,
                first_at=first_at,
                last_at=last_at,
            ).id,
            weight,
        )
        for kind, name, weight in weights
    ]


def _row(kind: Kind, weight: float, start: datetime, table: Table, end: datetime) -> Values:
    """One row of a table; its points from ``end`` on are unknown."""
    spans = table.step_s // SPAN_S
    chance = _chance(kind, weight, start)
    points = [
        [spans * value for value in _span_of(kind, weight, at, chance)] if at < end else None
        for at in (start + timedelta(seconds=table.step_s * place) for place in range(table.across))
    ]
    known: Values = [] if spans == 1 else [spans if point is not None else 0 for point in points]
    return known + [
        None if point is None else point[place] for place in range(kind.width) for point in points
    ]


def _chance(kind: Kind, weight: float, start: datetime) -> random.Random:
    """One for many points: to make one costs more than to draw all numbers of a point."""
    return random.Random(f"{kind.number}/{weight}/{int(start.timestamp())}")


def _span_of(kind: Kind, weight: float, at: datetime, chance: random.Random) -> list[int]:
    """More by day than by night, with noise, and an hour of failures each day."""
    seconds = int(at.timestamp())
    day = 1 + 0.5 * math.sin((seconds % 86_400) / 86_400 * 2 * math.pi - 2)
    calls = max(0, round(SPAN_S * 40 * weight * day * chance.uniform(0.85, 1.15)))
    bad = kind is DEPENDENCY and (seconds + int(weight * 40_000)) % 86_400 < 900
    failures = round(calls * chance.uniform(0.3, 0.6)) if bad else chance.randrange(2)
    few = round(calls * 0.01 * chance.random())
    if kind is TENANT:
        return [calls, few]
    if kind is DEPENDENCY:
        ok = max(0, calls - failures)
        ended = {"ok": ok, "failures": min(calls, failures), "slow": few, "blocked": calls // 2 if bad else 0}
        quick = chance.uniform(0.4, 0.6)
        took = {"took_to_50_ms": ok * quick, "took_to_100_ms": ok * (0.96 - quick)}
        took |= {"took_to_200_ms": ok * 0.03, "took_to_500_ms": ok * 0.01, "took_to_5000_ms": few}
        ended |= {name: round(count) for name, count in took.items()}
        return [ended.get(field.name, 0) for field in kind.fields]
    counted = {"requests": calls, "refused": few, "calls": calls // 2, "failures": failures}
    counted |= {"redis_asked": calls, "redis_to_500_us": calls * 8 // 10, "redis_to_1000_us": calls // 6}
    counted |= {"redis_to_3000_us": calls // 50, "cpu": round(_CPU * chance.uniform(0.5, 1.5))}
    return [counted.get(field.name, 0) for field in kind.fields]


def _write_frames(writer: int, things: list[_Thing], start: datetime, end: datetime) -> None:
    """The hour that is not over yet, as a gateway would write it."""
    moments = list(_spans(start, end))
    with connection.cursor() as cursor:
        cursor.executemany(_SPAN, [(at, writer, _PODS, _PODS) for at in moments])
        for kind in (FLEET, DEPENDENCY, POD, TENANT):
            of_kind = [(number, weight) for one, number, weight in things if one is kind]
            ids = [number for number, _ in of_kind]
            chance = _chance(kind, 1.0, start)
            cursor.executemany(
                _FRAME,
                [
                    (
                        at,
                        writer,
                        kind.number,
                        ids,
                        [v for _, w in of_kind for v in _span_of(kind, w, at, chance)],
                    )
                    for at in moments
                ],
            )


def _spans(start: datetime, end: datetime) -> Iterator[datetime]:
    while start < end:
        yield start
        start += timedelta(seconds=SPAN_S)
