"""Calls to each dependency lately, from frames of all gateways: how long they took, and how many ended."""

from datetime import UTC, datetime, timedelta

from django.utils import timezone

from controlplane.series.frames import frames_of_kind
from controlplane.series.kinds import CALL_FIELDS, DEPENDENCY
from controlplane.series.models import Entity
from controlplane.series.percentiles import percentile
from fuseboard.contract.sync import CALL_EDGES_MS

_RECENT = timedelta(minutes=1)


def recent_p99_ms(environment: str) -> dict[str, float]:
    """Dependency -> milliseconds. A dependency is absent if no call reported how long it took."""
    now = timezone.now()
    first, count = DEPENDENCY.place(CALL_FIELDS[0]), len(CALL_FIELDS)
    counts: dict[int, list[int]] = {}
    for _, ids, values in frames_of_kind(environment, DEPENDENCY, now - _RECENT, now):
        width = len(values) // len(ids)
        for number, entity in enumerate(ids):
            # A frame of an earlier release is shorter.
            took = values[number * width + first : min(number * width + first + count, (number + 1) * width)]
            if any(took):
                kept = counts.setdefault(entity, [0] * count)
                for bucket, calls in enumerate(took):
                    kept[bucket] += calls or 0
    if not counts:
        return {}
    names = Entity.objects.filter(pk__in=counts).values_list("pk", "name")
    return {name: ms for pk, name in names if (ms := percentile(counts[pk], CALL_EDGES_MS, 99)) is not None}


def recent_calls(environment: str, since: float) -> dict[str, int]:
    """Dependency -> calls that ended since then, however they ended. At most some minutes ago."""
    places = [DEPENDENCY.place(name) for name in ("ok", "failures", "slow", "neutral")]
    counts: dict[int, int] = {}
    for _, ids, values in frames_of_kind(
        environment, DEPENDENCY, datetime.fromtimestamp(since, UTC), timezone.now()
    ):
        width = len(values) // len(ids)
        for number, entity in enumerate(ids):
            counts[entity] = counts.get(entity, 0) + sum(values[number * width + at] or 0 for at in places)
    names = Entity.objects.filter(pk__in=counts).values_list("pk", "name") if counts else ()
    return {name: counts[pk] for pk, name in names}
