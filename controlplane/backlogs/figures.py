"""The figures of one backlog, and its rates over the last half minute, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict, replace

from fuseboard.contract.backlog_figures import MAX_BYTES, MAX_JOBS, BacklogFigures

#: Rates are measured over this time, or since the first look.
RATES_OVER_S = 30.0
#: Totals whose rates are kept.
COUNTED = ("submitted", "done", "refused")
_FIELDS = BacklogFigures.__struct_fields__


@dataclass(frozen=True, kw_only=True)
class BacklogSeen:
    """One backlog as it was read at ``read_at``, in unix seconds."""

    dependency: str
    read_at: float
    figures: BacklogFigures
    #: Jobs per second: submitted, done, refused. Empty until two looks are known.
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def max_jobs(self) -> int:
        return self.figures.max_jobs or MAX_JOBS

    @property
    def max_bytes(self) -> int:
        return self.figures.max_bytes or MAX_BYTES

    @property
    def share(self) -> float:
        """How full it is: of jobs or of bytes, whichever is more. At 1, submits are refused."""
        return max(self.figures.jobs / self.max_jobs, self.figures.bytes / self.max_bytes)

    @property
    def waiting_s(self) -> float:
        """Seconds that the job that comes next has waited."""
        return self.figures.waiting_us / 1e6

    @property
    def asked_s(self) -> float | None:
        """Seconds since a worker last asked for a job, when it was read; ``None`` for never."""
        return self.figures.asked_s

    @property
    def untaken_s(self) -> float:
        """Seconds that a job could be taken while no worker asks or has a job; 0 if none could."""
        # Workers that all have a job do not ask. Leases of workers that died end, and stay until one asks; so
        # do delayed jobs that are due.
        if self.figures.held:
            return 0.0
        late_s = self.figures.late_us / 1e6
        return late_s if self.asked_s is None else min(late_s, self.asked_s)

    @property
    def empty(self) -> bool:
        return not self.figures.jobs and not self.figures.dead


def to_document(figures: BacklogFigures, before: Mapping[str, Any], read_at: float) -> dict[str, Any]:
    """The document that Postgres keeps. ``before``: the document of the last look; empty for none."""
    totals = {name: getattr(figures, name) for name in COUNTED}
    points = [point for point in before.get("points", []) if read_at - point["at"] <= RATES_OVER_S]
    if any(point[name] > totals[name] for point in points for name in COUNTED):
        # Redis lost the totals: rates begin again.
        points = []
    rates = {}
    if points and (passed_s := read_at - points[0]["at"]) > 0:
        rates = {name: (totals[name] - points[0][name]) / passed_s for name in COUNTED}
    return {
        "figures": asdict(figures),
        "rates": rates,
        "points": [*points, {"at": read_at, **totals}],
    }


def from_document(dependency: str, document: Mapping[str, Any], read_at: float) -> BacklogSeen:
    """A figure that an older version did not keep is 0."""
    kept = document.get("figures", {})
    figures = BacklogFigures(**{name: int(kept.get(name, 0)) for name in _FIELDS})
    if "late_us" not in kept:
        # An older worker looked only at ready jobs.
        figures = replace(figures, late_us=figures.waiting_us)
    return BacklogSeen(
        dependency=dependency, read_at=read_at, figures=figures, rates=document.get("rates", {})
    )
