"""Recent outcomes of retries, from the stored series."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.series.kinds import DEPENDENCY, RETRY_FIELDS
from controlplane.series.reading import read

#: Dependencies of one answer: each is read with a statement of its own.
MAX_DEPENDENCIES = 50
_LATELY = timedelta(hours=1)


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


def retries_lately(environment: str, dependencies: Sequence[str], now: datetime) -> list[RetriesLately]:
    """Outcomes for the first ``MAX_DEPENDENCIES`` dependencies."""
    return [_of(environment, name, now) for name in dependencies[:MAX_DEPENDENCIES]]


def _of(environment: str, dependency: str, now: datetime) -> RetriesLately:
    found = read(
        environment, DEPENDENCY, dependency, fields=RETRY_FIELDS, start=now - _LATELY, end=now, now=now
    )

    def counted(field: str) -> int | None:
        known = [value for value in found.fields[field] if value is not None]
        return sum(known) if known else None

    return RetriesLately(dependency=dependency, **{field: counted(field) for field in RETRY_FIELDS})
