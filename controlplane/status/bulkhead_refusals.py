"""Recent refusals of bulkheads, by tier, from the stored series."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.series.kinds import DEPENDENCY, FULL_FIELDS, TIMED_OUT_FIELDS
from controlplane.series.reading import read
from fuseboard.contract.words import CallTier

#: Dependencies of one answer: each is read with a statement of its own.
MAX_DEPENDENCIES = 50
_LATELY = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class TierRefusals:
    """Calls of one tier that were refused; ``None`` if nothing is stored of it."""

    tier: str
    full: int | None
    timed_out: int | None


@dataclass(frozen=True, kw_only=True)
class BulkheadRefusals:
    dependency: str
    #: Seconds of the last hour that were measured.
    known_s: int
    tiers: tuple[TierRefusals, ...]


def refused_lately(environment: str, dependencies: Sequence[str], now: datetime) -> list[BulkheadRefusals]:
    """Refusals of the last hour, for the first ``MAX_DEPENDENCIES`` dependencies."""
    return [_of(environment, name, now) for name in dependencies[:MAX_DEPENDENCIES]]


def _of(environment: str, dependency: str, now: datetime) -> BulkheadRefusals:
    fields = (*FULL_FIELDS, *TIMED_OUT_FIELDS)
    found = read(environment, DEPENDENCY, dependency, fields=fields, start=now - _LATELY, end=now, now=now)

    def counted(field: str) -> int | None:
        known = [value for value in found.fields[field] if value is not None]
        return sum(known) if known else None

    tiers = zip(CallTier, FULL_FIELDS, TIMED_OUT_FIELDS, strict=True)
    return BulkheadRefusals(
        dependency=dependency,
        known_s=sum(found.known_s),
        tiers=tuple(
            TierRefusals(tier=tier.value, full=counted(full), timed_out=counted(timed_out))
            for tier, full, timed_out in tiers
        ),
    )
