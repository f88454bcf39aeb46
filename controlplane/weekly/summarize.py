"""Makes the sections of a week from its figures. What is not known is written as unknown, and never as 0."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, date, datetime, time, timedelta
from math import ceil
from typing import Any

from controlplane.phrases import count, percent, rounded
from controlplane.policies.models import Dependency, TierQuota
from controlplane.series.kinds import DEPENDENCY, FULL_FIELDS, TIMED_OUT_FIELDS
from controlplane.series.totals import Total, totals
from controlplane.weekly import week_figures
from controlplane.weekly.model_costs import model_costs
from controlplane.weekly.sections import Line, Opens, Section
from controlplane.weekly.week_figures import MAX_ROWS, QuotaUse, Week
from fuseboard.contract.words import Algorithm

HOURS = 7 * 24
#: A limit is too low if it refuses this part of the requests, of this number at least.
TOO_LOW, MIN_ASKED = 0.01, 1_000
#: A limit is never reached if the busiest hour of each tenant needs at most this part of it.
NEVER = 0.5
#: Room above the busiest hour in a suggestion.
ROOM = 2.0
#: An alert that fires this often in a week has a threshold to look at.
OFTEN = 5
_CALLS = ("ok", "failures", "slow", "neutral")


def week_of(environment: str, begins: date) -> Week:
    start = datetime.combine(begins, time(), UTC)
    return Week(environment=environment, start=start, end=start + timedelta(days=7))


def summarize(environment: str, begins: date) -> list[dict[str, Any]]:
    """The sections, as they are stored. ``begins`` is a Monday. In a transaction."""
    week = week_of(environment, begins)
    week_figures.allow_long_statements()
    uses = week_figures.quota_uses(week)
    quotas = {
        (row.tier.name, row.name): row
        for row in TierQuota.objects.filter(tier__environment=environment).select_related("tier")
    }
    dependencies = totals(
        environment,
        DEPENDENCY,
        (*_CALLS, *FULL_FIELDS, *TIMED_OUT_FIELDS),
        start=week.start,
        end=week.end,
    )
    sections = (
        _tenants(week),
        _breakers(week),
        _too_low(uses, quotas),
        _never_reached(uses, quotas),
        _bulkheads(environment, dependencies),
        _flapping(week),
        *model_costs(week),
    )
    return [asdict(section) for section in sections]


def _tenants(week: Week) -> Section:
    hours, partial = week_figures.known_hours(week)
    rows, every = week_figures.refused_tenants(week) if hours else ([], 0)
    missing = f"; some tenants are missing in {partial} of them" if partial else ""
    return Section(
        title="Tenants with most refused requests",
        lines=tuple(
            Line(
                name=row.key or "a caller that is not registered",
                found=f"{row.refused:,} of {row.asked:,} refused, {_percent(row.refused, row.asked)}",
                opens=Opens.TENANT,
                key=row.key or "",
            )
            for row in rows
        ),
        known=f"Measured in {hours} of {HOURS} hours{missing}.",
        nothing="No request of a tenant was refused." if hours else "Unknown: no gateway measured this week.",
        more=max(0, every - len(rows)),
    )


def _breakers(week: Week) -> Section:
    rows, every = week_figures.open_breakers(week)
    return Section(
        title="Breakers by time open",
        lines=tuple(
            Line(
                name=row.dependency,
                found=f"open for {_duration(row.open_s)}, opened {count(row.times, 'time')}",
                opens=Opens.BREAKER,
                key=row.dependency,
            )
            for row in rows
        ),
        known="From the stored transitions of the whole week.",
        nothing="No breaker was open.",
        more=max(0, every - len(rows)),
    )


_LISTED = "Of the tenants that gateways list as the busiest, without a separate quota."


def _too_low(uses: Iterable[QuotaUse], quotas: dict[tuple[str, str], TierQuota]) -> Section:
    lines, known = [], False
    for use in uses:
        quota = quotas.get((use.tier, use.quota))
        if quota is None or quota.shadow:
            continue
        known = True
        if use.asked < MIN_ASKED or use.refused < TOO_LOW * use.asked:
            continue
        size = _rounded_up(quota.limit * use.asked / max(1, use.asked - use.refused))
        if (needed := _per_window(use, quota)) is not None:
            size = max(size, _rounded_up(needed))
        lines.append(
            Line(
                name=f"{use.quota} of tier {use.tier}",
                found=f"{use.refused:,} of {use.asked:,} refused, {_percent(use.refused, use.asked)}; "
                f"limit {quota.limit:,} per {_duration(quota.window_s)}; {count(use.tenants, 'tenant')}",
                suggestion=f"Raise it to at least {size:,}.",
                opens=Opens.TIER,
                key=use.tier,
                limit=use.quota,
                size=size,
            )
        )
    lines.sort(key=lambda line: line.name)
    return _limits("Limits that are too low", lines, known, "No quota of a tier refused 1 % of its requests.")


def _never_reached(uses: Iterable[QuotaUse], quotas: dict[tuple[str, str], TierQuota]) -> Section:
    lines, known = [], False
    for use in uses:
        quota = quotas.get((use.tier, use.quota))
        if quota is None:
            continue
        needed = _per_window(use, quota)
        known = known or needed is not None
        if needed is None or use.refused or use.asked < MIN_ASKED or needed > NEVER * quota.limit:
            continue
        size = _rounded_up(ROOM * needed)
        if size >= quota.limit:
            continue
        lines.append(
            Line(
                name=f"{use.quota} of tier {use.tier}",
                found=f"nothing refused of {use.asked:,}; in its busiest hour, a tenant asked "
                f"{use.peak_hour:,} times, which is {needed:,.1f} per {_duration(quota.window_s)} of "
                f"{quota.limit:,}; {count(use.tenants, 'tenant')}",
                suggestion=f"{size:,} leaves room for twice the busiest hour. Shorter bursts are not known.",
                opens=Opens.TIER,
                key=use.tier,
                limit=use.quota,
                size=size,
            )
        )
    return _limits("Limits that are never reached", lines, known, "Every quota is used by half or more.")


def _limits(title: str, lines: list[Line], known: bool, nothing: str) -> Section:
    return Section(
        title=title,
        lines=tuple(lines[:MAX_ROWS]),
        known=_LISTED,
        nothing=nothing if known else "Unknown: no quota of a tier was measured this week.",
        more=max(0, len(lines) - MAX_ROWS),
    )


def _bulkheads(environment: str, measured: Iterable[Total]) -> Section:
    sizes = {
        row.name: row.protection["bulkhead"]["max_concurrent"]
        for row in Dependency.objects.filter(environment=environment)
        if row.protection.get("bulkhead")
    }
    lines, known = [], False
    for total in measured:
        size = sizes.get(total.name)
        refusals = total.values[len(_CALLS) :]
        if size is None or all(value is None for value in refusals):
            continue
        known = True
        refused = sum(value or 0 for value in refusals)
        calls = refused + sum(value or 0 for value in total.values[: len(_CALLS)])
        if calls < MIN_ASKED or refused < TOO_LOW * calls:
            continue
        wanted = ceil(size * calls / max(1, calls - refused))
        lines.append(
            Line(
                name=total.name,
                found=f"its bulkhead refused {refused:,} of {calls:,} calls, {_percent(refused, calls)}; "
                f"{count(size, 'slot')} per pod; measured in {total.known_s // 3600} of {HOURS} hours",
                suggestion=f"{count(wanted, 'slot')}, if the dependency bears that."
                " Otherwise, send it fewer calls.",
                opens=Opens.DEPENDENCY,
                key=total.name,
                size=wanted,
            )
        )
    return Section(
        title="Sizes of bulkheads",
        lines=tuple(lines[:MAX_ROWS]),
        known="Of dependencies that have a bulkhead now.",
        nothing="No bulkhead refused 1 % of its calls." if known else "Unknown: no bulkhead was measured.",
        more=max(0, len(lines) - MAX_ROWS),
    )


def _flapping(week: Week) -> Section:
    rows, every = week_figures.flapping_alerts(week, least=OFTEN)
    return Section(
        title="Alerts that fire too often",
        lines=tuple(
            Line(
                name=row.key,
                found=f"fired {count(row.times, 'time')}, for {_duration(row.fired_s)} in all"
                + ("; it flapped" if row.flapped else ""),
                suggestion="Repair its cause, or raise its threshold.",
                opens=Opens.ALERTS,
                key=row.key,
            )
            for row in rows
        ),
        known="From the stored alerts of the whole week.",
        nothing=f"No alert fired {OFTEN} times, and none flapped.",
        more=max(0, every - len(rows)),
    )


def _per_window(use: QuotaUse, quota: TierQuota) -> float | None:
    """The average demand of the busiest hour on one window; ``None`` if hours do not show it."""
    if quota.algorithm == Algorithm.CONCURRENCY or quota.measure != "calls" or quota.window_s > 3_600:
        return None
    return use.peak_hour * quota.window_s / 3_600


def _rounded_up(size: float) -> int:
    """To two digits, so that no figure looks exact."""
    whole = max(1, ceil(size))
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // step) * step


def _percent(part: int, whole: int) -> str:
    return percent(part / whole if whole else 0.0)


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{rounded(seconds / length, 3)} {unit}"
    return f"{rounded(seconds, 3)} s"
