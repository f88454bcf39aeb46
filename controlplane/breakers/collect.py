"""Streams of transitions in Redis -> rows in Postgres, each once."""

import re
from datetime import UTC, datetime, timedelta

import redis
import structlog
from django.db import transaction

from controlplane import notify_channels
from controlplane.breakers.models import StreamPosition, Transition
from controlplane.metric_catalogue import traffic as catalogue
from controlplane.policies.models import Dependency
from controlplane.postgres import notify
from controlplane.redis.scripts import PATIENT_S, limits
from controlplane.validation import printable
from fuseboard.contract import keys
from fuseboard.contract.words import BreakerState

log = structlog.get_logger(__name__)

transitions = catalogue.BREAKER_TRANSITIONS.make()

#: The scripts cap the streams at about a thousand.
AT_ONCE = 1_000

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STATES = {state.value for state in BreakerState}

#: Fields of a trip that other transitions lack.
TRIP_FIGURES = ("calls", "failures", "slow", "consecutive", "threshold")

StreamEntry = tuple[str, dict[str, str]]


def collect_transitions(environment: str) -> int:
    """Store the new entries of the streams. Return the number of rows.

    The position only saves reading: a row is stored once per generation, whatever is read. A
    position beyond the end of its stream, after Redis was emptied, starts from the beginning.
    """
    store = limits(deadline_s=PATIENT_S)
    dependencies = list(Dependency.objects.filter(environment_id=environment).order_by("name"))
    positions = dict(
        StreamPosition.objects.filter(dependency__in=dependencies).values_list("dependency_id", "last_id")
    )
    streams = _read(store, environment, dependencies, positions)
    rows: list[Transition] = []
    moved: list[StreamPosition] = []
    for dependency, entries in zip(dependencies, streams, strict=True):
        if entries:
            rows += filter(None, (_transition(dependency, entry) for entry in entries))
            moved.append(StreamPosition(dependency=dependency, last_id=entries[-1][0]))
    if not moved:
        return 0
    with transaction.atomic():
        new = _not_stored(rows)
        Transition.objects.bulk_create(rows, ignore_conflicts=True)
        StreamPosition.objects.bulk_create(
            moved, update_conflicts=True, unique_fields=["dependency"], update_fields=["last_id"]
        )
        if rows:
            names = sorted({row.dependency.name for row in rows})
            notify(notify_channels.BREAKERS, {"environment": environment, "dependencies": names[:50]})
    for row in new:
        _log(environment, row)
    return len(rows)


def _not_stored(rows: list[Transition]) -> list[Transition]:
    """Transitions that no earlier run has stored, and so logged."""
    stored = set(
        Transition.objects.filter(
            dependency__in={row.dependency_id for row in rows},
            generation__in={row.generation for row in rows},
        ).values_list("dependency_id", "generation")
    )
    return [row for row in rows if (row.dependency_id, row.generation) not in stored]


def _log(environment: str, row: Transition) -> None:
    transitions.labels(environment, row.dependency.name, row.to_state).inc()
    log.warning(
        "breaker.moved",
        environment=environment,
        dependency=row.dependency.name,
        from_state=row.from_state,
        to_state=row.to_state,
        cause=row.cause,
        actor=row.actor,
        server=row.server,
        generation=row.generation,
        at=row.at.isoformat(),
    )


def _read(
    store: redis.Redis,
    environment: str,
    dependencies: list[Dependency],
    positions: dict[int, str],
) -> list[list[StreamEntry]]:
    """Return the new entries of each stream."""
    with store.pipeline(transaction=False) as pipeline:
        for dependency in dependencies:
            stream = keys.transitions(environment, dependency.name)
            pipeline.xrange(stream, min=f"({positions.get(dependency.pk, '0-0')}", count=AT_ONCE)
            pipeline.xrevrange(stream, count=1)
        answers = pipeline.execute(raise_on_error=False)
    found: list[list[StreamEntry]] = []
    for number, dependency in enumerate(dependencies):
        entries, newest = answers[2 * number : 2 * number + 2]
        if isinstance(entries, redis.ResponseError) or isinstance(newest, redis.ResponseError):
            log.warning("transitions.unreadable", environment=environment, dependency=dependency.name)
            entries = []
        elif not entries and newest and _is_before(newest[0][0], positions.get(dependency.pk, "0-0")):
            entries = store.xrange(keys.transitions(environment, dependency.name), count=AT_ONCE)
        found.append(entries)
    return found


def _is_before(one: str, other: str) -> bool:
    return _stream_id(one) < _stream_id(other)


def _stream_id(text: str) -> tuple[int, int]:
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence)


def _transition(dependency: Dependency, entry: StreamEntry) -> Transition | None:
    """Return the row for a stream entry, or log it and return ``None`` when its fields are invalid."""
    _, fields = entry
    generation, at = fields.get("generation", ""), _moment(fields.get("at_us", ""))
    if not _NUMBER.fullmatch(generation) or at is None or fields.get("to") not in _STATES:
        log.warning("transition.unreadable", dependency=dependency.name, entry=entry[0])
        return None
    return Transition(
        dependency=dependency,
        generation=int(generation),
        at=at,
        from_state=_text(fields, "from", 16),
        to_state=fields["to"],
        cause=_text(fields, "cause", 64),
        actor=_text(fields, "actor", 200),
        server=_text(fields, "server", 64),
        figures=_figures(fields),
    )


def _figures(fields: dict[str, str]) -> dict[str, int] | None:
    """The counts at a trip; ``None`` unless all of them are there."""
    found = {name: fields.get(name, "") for name in TRIP_FIGURES}
    if not all(_NUMBER.fullmatch(text) for text in found.values()):
        return None
    return {name: int(text) for name, text in found.items()}


def _moment(text: str) -> datetime | None:
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return _EPOCH + timedelta(microseconds=int(text))
    except OverflowError:
        return None


def _text(fields: dict[str, str], name: str, longest: int) -> str:
    return printable(fields.get(name, ""))[:longest]
