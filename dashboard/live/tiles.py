"""The key figures: what is sampled every second, and the tiles that display it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from django.urls import reverse
from django.utils.safestring import SafeString

from controlplane.alerts.rules.settings import settings_of
from controlplane.alerts.rules.texts import allowed_alone
from controlplane.phrases import listed, name_or_count, number, percent, they
from controlplane.status.facts import Facts
from controlplane.status.servers import LAG_WARN_S, FleetSummary
from dashboard.live.capacity import bulkhead_rows, retry_rows
from dashboard.live.history import History
from dashboard.live.known import NO_DATA, no_data_words, rates_known, since_words
from dashboard.plots import spark

#: Tiles about pods, which need no rates.
_OF_PODS = ("local", "lag", "shared", "lagging")
#: Seconds between two heartbeats, over which pods' counts become rates.
RATES_S = 5
#: Values of tiles that are words.
OFF, NO_CALLS = "off", "no calls"
_BREAKER_REFUSALS = ("breaker_open", "probe_busy", "forced_open")


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One key figure."""

    key: str
    name: str
    value: str
    unit: str
    foot: str
    spark: SafeString
    over: bool
    link: str
    #: The value is no figure, and nothing is wrong: it is written smaller than one.
    quiet: bool = False


def refused_limit(facts: Facts) -> float | None:
    """The share of refused requests above which the alert fires, as the admin chose it; ``None`` if off."""
    return _warns_above(facts, "429")


def usual_p99_ms(facts: Facts) -> float | None:
    """The p99 of Redis above which the alert warns, as the admin chose it; ``None`` if off."""
    part = _warns_above(facts, "p99")
    return None if part is None else facts.store_deadline_ms * part


def _warns_above(facts: Facts, rule: str) -> float | None:
    settings = settings_of(facts.alert_rules, rule)
    return settings.threshold.warning if settings.enabled else None


def samples(facts: Facts, fleet: FleetSummary) -> dict[str, float]:
    """The figures that the history keeps."""
    figures = facts.figures
    if not facts.current:
        return {}
    # Without a call to Redis there is no response time, not one of 0 ms.
    p99 = {"p99": figures.store.p99_us / 1000} if figures.store.p99_us is not None else {}
    # A figure that nothing measures is not 0/s.
    rates = {
        "refused": figures.active_refused_per_s,
        "full": _full_per_s(facts),
        "store_errors": figures.store.errors_per_s + figures.store.timeouts_per_s,
        "requests": figures.requests_per_s,
    }
    load = retry_load(facts)
    retry = {"retry": load} if load is not None else {}
    return (
        p99
        | (rates | retry if rates_known(facts) else {})
        | {
            "local": float(len(fleet.local) + len(fleet.drill)),
            "lag": fleet.worst_lag_s,
            "shared": float(fleet.sharing),
            "lagging": float(len(fleet.lagging)),
        }
    )


def _full_per_s(facts: Facts) -> float:
    """Calls that no bulkhead had a place for, per second of the fleet."""
    return sum(calls.refused_per_s for calls in facts.figures.protection.values())


def retry_load(facts: Facts) -> float | None:
    """Calls that vendors get for each first call of the fleet; ``None`` without calls."""
    calls = facts.figures.protection.values()
    first = sum(each.first_calls_per_s for each in calls)
    return 1 + sum(each.retries_per_s for each in calls) / first if first else None


def calls_in_words(facts: Facts) -> str:
    """The results of the calls to all dependencies."""
    if unknown := no_data_words(facts):
        return unknown
    traffic = facts.figures.dependencies.values()
    calls = sum(each.calls_per_s for each in traffic)
    failed = sum(each.failures_per_s for each in traffic) / calls * 100 if calls else 0.0
    blocked = number(_short_circuited(facts))
    return (
        f"{number(failed)} % of {number(calls)} calls/s failed, {blocked}/s blocked, in the last {RATES_S} s"
    )


def _short_circuited(facts: Facts) -> float:
    return sum(facts.figures.refused_by_reason.get(reason, 0.0) for reason in _BREAKER_REFUSALS) or sum(
        traffic.refused_per_s for traffic in facts.figures.dependencies.values()
    )


def _alone_words(fleet: FleetSummary) -> str:
    """The pods that decide locally: because of Redis, and because a drill wants it."""
    drill = fleet.drill
    in_drill = f"{listed(drill, 2)}: in a drill" if len(drill) < fleet.total else "all of them, in a drill"
    if not fleet.local:
        return in_drill if drill else ""
    return listed(fleet.local, 2) + (f"; {len(drill)} in a drill" if drill else "")


def why_not_exact(fleet: FleetSummary) -> str:
    """Every reason why limits are not exact now, in words."""
    found = []
    alone = (*fleet.local, *fleet.drill)
    if fleet.ramping:
        apply = they(fleet.ramping, "applies", "apply")
        found.append(
            f"{name_or_count(fleet.ramping)} {apply} limits that still rise after an outage of Redis"
        )
    if fleet.decided_locally_per_s and not alone:
        found.append(f"{number(fleet.decided_locally_per_s)} decisions/s are made locally")
    elif fleet.late and not alone:
        found.append(f"{name_or_count(fleet.late)} {they(fleet.late, 'waits', 'wait')} too long for Redis")
    if fleet.silent:
        silent, limits = they(fleet.silent, "is", "are"), they(fleet.silent, "its", "their")
        found.append(f"{name_or_count(fleet.silent)} {silent} silent: {limits} limits are unknown")
    if alone:
        decide = they(alone, "decides", "decide")
        allowed = allowed_alone(fleet.divisor)
        # Last, because it is two sentences.
        found.append(f"{name_or_count(alone)} {decide} locally. There, {allowed}")
    if not found:
        found.append(
            "not every pod is measured" if not fleet.measured else "not every pod uses shared limits"
        )
    return "; ".join(found)


class _TileBuilder:
    """Builds the tiles: one method for each figure."""

    def __init__(self, facts: Facts, fleet: FleetSummary, history: History) -> None:
        self.facts, self.figures, self.fleet, self.history = facts, facts.figures, fleet, history

    def tile(
        self,
        key: str,
        name: str,
        value: str,
        unit: str,
        foot: str,
        *,
        over: bool = False,
        link: str = "",
        limit: float | None = None,
    ) -> Tile:
        line = spark(self.history.points(key), limit=limit, label=f"{name}, {self.history.span}")
        return Tile(
            key=key,
            name=name,
            value=value,
            unit=unit,
            foot=foot,
            spark=line,
            over=over,
            link=link,
            quiet=value in (OFF, NO_CALLS, NO_DATA) and not over,
        )

    def refused(self) -> Tile:
        refused, asked = self.figures.active_refused_per_s, self.figures.requests_per_s
        share, limit = self.figures.refused_share, refused_limit(self.facts)
        return self.tile(
            "refused",
            "429 responses",
            number(refused),
            "/s",
            f"{percent(share)} of {number(asked)}/s"
            + (f", alert above {percent(limit)}" if limit is not None else ""),
            over=limit is not None and share > limit and asked > 1,
            link=reverse("refusals"),
            limit=asked * limit or None if limit is not None else None,
        )

    def p99(self, link: str = "") -> Tile:
        budget_ms, measured = self.facts.store_deadline_ms, self.figures.store.p99_us
        if measured is None:
            value, unit, foot, over = NO_DATA, "", "no recent calls to Redis", False
        else:
            usual_ms, ms = usual_p99_ms(self.facts), measured / 1000
            value, unit, over = f"{ms:.1f}", "ms", ms > (budget_ms if usual_ms is None else usual_ms)
            within = over and ms <= budget_ms
            foot = f"usually below {usual_ms:g} ms" if within else f"budget {budget_ms:g} ms"
        return self.tile("p99", "Redis p99", value, unit, foot, over=over, link=link, limit=budget_ms)

    def local(self) -> Tile:
        local, total = self.fleet.local, self.fleet.total
        alone = (*local, *self.fleet.drill)
        if alone:
            foot = _alone_words(self.fleet) if len(alone) < total or self.fleet.drill else "all of them"
        elif self.fleet.decided_locally_per_s:
            foot = f"{number(self.fleet.decided_locally_per_s)} local decisions/s"
        else:
            foot = "limits are exact" if self.fleet.exact else "limits are approximate"
        return self.tile(
            "local",
            "On local fallback",
            str(len(alone)),
            f"of {total} pods",
            foot,
            over=bool(local),
            link=reverse("servers"),
        )

    def lag(self) -> Tile:
        worst_s, server = self.fleet.worst_lag_s, self.fleet.worst_lag_server
        return self.tile(
            "lag",
            "Config lag, worst",
            f"{worst_s:.0f}",
            "s",
            f"{server}, limit {LAG_WARN_S:.0f} s"
            if server
            else "all up to date"
            if self.fleet.total
            else "no pods",
            over=worst_s > LAG_WARN_S,
            link=reverse("servers"),
            limit=LAG_WARN_S,
        )

    def bulkheads(self) -> Tile:
        rows = bulkhead_rows(self.facts)
        full = tuple(row.dependency for row in rows if row.refuses)
        if full:
            foot = f"{listed(full, 2)}: no place"
        elif rows:
            active, limit = sum(row.active for row in rows), sum(row.limit for row in rows)
            foot = f"{active:,} of {limit:,} slots in use"
        else:
            foot = "no bulkhead is on"
        return self.tile(
            "full",
            "Bulkhead refusals",
            number(_full_per_s(self.facts)),
            "/s",
            foot,
            over=bool(full),
            link=reverse("bulkheads"),
        )

    def retries(self) -> Tile:
        load = retry_load(self.facts)
        rows = retry_rows(self.facts)
        hot = tuple(row.dependency for row in rows if row.budget and row.hot)
        budgets = {row.budget for row in rows if row.budget}
        if hot:
            foot = f"{listed(hot, 2)}: budget spent"
        elif budgets:
            foot = f"at most {min(budgets):.2f} \N{MULTIPLICATION SIGN}" + (
                "" if len(budgets) == 1 else ", or more"
            )
        else:
            foot = "retries are off"
        value, unit = NO_DATA, ""
        if load is not None:
            value, unit = f"{load:.2f}", "\N{MULTIPLICATION SIGN}"
        elif not any(each.protection.get("retry") for each in self.facts.dependencies):
            value, foot = OFF, "no dependency has retries"
        elif self.facts.figures.protection and not hot:
            # Pods report, but no call that can be retried: a quotient of nothing, and not unknown.
            value, foot = NO_CALLS, "none that can be retried, in 30 s"
        return self.tile(
            "retry",
            "Retry load",
            value,
            unit,
            foot,
            over=bool(hot),
            link=reverse("retries"),
            limit=min(budgets, default=None),
        )

    def store_errors(self) -> Tile:
        store = self.figures.store
        errors = store.errors_per_s + store.timeouts_per_s
        alone = len(self.fleet.local) + len(self.fleet.drill)
        if self.fleet.live and alone == self.fleet.live and not errors:
            # Pods that gave Redis up ask it nothing: that is no sign of health.
            drill = not self.fleet.local
            why = "every pod is in a drill" if drill else "no pod reaches Redis"
            return self.tile("store_errors", "Redis errors", NO_DATA, "", why, over=not drill)
        return self.tile(
            "store_errors",
            "Redis errors",
            number(errors),
            "/s",
            "timeouts included",
            over=errors >= 0.05,
        )


def tiles(facts: Facts, fleet: FleetSummary, history: History) -> list[Tile]:
    """The figures of the overview."""
    builder = _TileBuilder(facts, fleet, history)
    found = [
        builder.refused(),
        builder.p99(link=reverse("servers")),
        builder.local(),
        builder.lag(),
        builder.bulkheads(),
        builder.retries(),
    ]
    return _known(facts, found)


def _known(facts: Facts, found: Iterable[Tile]) -> list[Tile]:
    """The tiles, without figures that no gateway measures."""
    since = since_words(facts)
    return [
        tile
        if not since or (facts.current and tile.key in _OF_PODS)
        else replace(tile, value=NO_DATA, unit="", foot=since, over=False, quiet=True)
        for tile in found
    ]


def server_tiles(facts: Facts, fleet: FleetSummary, history: History) -> list[Tile]:
    """The figures of the servers page."""
    builder = _TileBuilder(facts, fleet, history)
    local, lagging, requests = fleet.local, fleet.lagging, facts.figures.requests_per_s
    found = [
        builder.tile(
            "shared",
            "Shared limits",
            str(fleet.sharing),
            f"of {fleet.total}",
            "limits are exact" if fleet.exact else "limits are approximate",
        ),
        builder.tile(
            "local",
            "Local fallback",
            str(len(local) + len(fleet.drill)),
            "",
            _alone_words(fleet) or "none",
            over=bool(local),
        ),
        builder.tile(
            "lagging",
            "Old configuration",
            str(len(lagging)),
            "",
            listed(lagging, 2) or "none",
            over=bool(lagging),
        ),
        builder.p99(),
        builder.store_errors(),
        builder.tile("requests", "Requests", number(requests), "/s", "over the fleet"),
    ]
    return _known(facts, found)
