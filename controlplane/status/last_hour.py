"""Refusals of bulkheads and outcomes of retries in the last hour, from the stored series."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.series.kinds import DEPENDENCY, FULL_FIELDS, RETRY_FIELDS, TIMED_OUT_FIELDS
from controlplane.series.reading import Answer, read
from fuseboard.contract.words import CallTier

#: The most dependencies of one answer. Each needs one SQL statement.
MAX_DEPENDENCIES = 50
_HOUR = timedelta(hours=1)


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


@dataclass(frozen=True, kw_only=True)
class RetriesLately:
    """Outcomes of the last hour; ``None`` if nothing is stored of it."""

    dependency: str
    first_calls: int | None
    retries: int | None
    #: Calls that a retry saved; retries that the budget refused; calls whose last allowed attempt failed.
    helped: int | None
    no_budget: int | None
    exhausted: int | None

    @property
    def attempts(self) -> int | None:
        if self.first_calls is None or self.retries is None:
            return None
        return self.first_calls + self.retries

    @property
    def success_percent(self) -> float | None:
        """How many of 100 retries saved their call; ``None`` without retries."""
        if not self.retries or self.helped is None:
            return None
        return min(100.0, 100 * self.helped / self.retries)


def refused_lately(environment: str, dependencies: Sequence[str], now: datetime) -> list[BulkheadRefusals]:
    """Refusals for the first ``MAX_DEPENDENCIES`` dependencies."""
    return [_refused(environment, name, now) for name in dependencies[:MAX_DEPENDENCIES]]


def retries_lately(environment: str, dependencies: Sequence[str], now: datetime) -> list[RetriesLately]:
    """Outcomes for the first ``MAX_DEPENDENCIES`` dependencies."""
    return [_retries(environment, name, now) for name in dependencies[:MAX_DEPENDENCIES]]


def _refused(environment: str, dependency: str, now: datetime) -> BulkheadRefusals:
    found = _read(environment, dependency, (*FULL_FIELDS, *TIMED_OUT_FIELDS), now)
    tiers = zip(CallTier, FULL_FIELDS, TIMED_OUT_FIELDS, strict=True)
    return BulkheadRefusals(
        dependency=dependency,
        known_s=sum(found.known_s),
        tiers=tuple(
            TierRefusals(tier=tier.value, full=found.total(full), timed_out=found.total(timed_out))
            for tier, full, timed_out in tiers
        ),
    )


def _retries(environment: str, dependency: str, now: datetime) -> RetriesLately:
    found = _read(environment, dependency, RETRY_FIELDS, now)
    return RetriesLately(dependency=dependency, **{field: found.total(field) for field in RETRY_FIELDS})


def _read(environment: str, dependency: str, fields: Sequence[str], now: datetime) -> Answer:
    return read(environment, DEPENDENCY, dependency, fields=fields, start=now - _HOUR, end=now, now=now)
