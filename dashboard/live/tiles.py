"""The key figures: what is sampled every second, and the tiles that show it."""

from dataclasses import dataclass

from django.utils.safestring import SafeString

from dashboard.live.facts import Facts
from dashboard.live.history import History
from dashboard.live.servers import LAG_WARN_S, P99_BUDGET_US, FleetSummary
from dashboard.plots import spark

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


def samples(facts: Facts, fleet: FleetSummary) -> dict[str, float]:
    """What the history keeps."""
    figures = facts.figures
    return {
        "refused": figures.refused_per_s,
        "p99": (figures.store.p99_us or 0) / 1000,
        "local": float(len(fleet.local)),
        "lag": fleet.worst_lag_s,
        "short": _short_circuited(facts),
        "failed": _failed_percent(facts),
        "shared": float(fleet.shared),
        "lagging": float(len(fleet.lagging)),
        "store_errors": figures.store.errors_per_s + figures.store.timeouts_per_s,
        "requests": figures.requests_per_s,
    }


def _short_circuited(facts: Facts) -> float:
    return sum(facts.figures.refused_by_reason.get(reason, 0.0) for reason in _BREAKER_REFUSALS) or sum(
        traffic.refused_per_s for traffic in facts.figures.dependencies.values()
    )


def _failed_percent(facts: Facts) -> float:
    calls = sum(traffic.calls_per_s for traffic in facts.figures.dependencies.values())
    failures = sum(traffic.failures_per_s for traffic in facts.figures.dependencies.values())
    return failures / calls * 100 if calls else 0.0


def number(value: float) -> str:
    """A rate a person can read: 0.4, 7.2, 228, 12,400."""
    if value >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def tiles(facts: Facts, fleet: FleetSummary, history: History) -> list[Tile]:
    figures, span = facts.figures, history.span
    p99 = figures.store.p99_us
    refused_share = figures.refused_per_s / figures.requests_per_s * 100 if figures.requests_per_s else 0.0
    failed, short = _failed_percent(facts), _short_circuited(facts)

    def tile(
        key: str, name: str, value: str, unit: str, foot: str, over: bool, link: str, limit: float | None
    ) -> Tile:
        line = spark(history.points(key), limit=limit, label=f"{name}, {span}")
        return Tile(key=key, name=name, value=value, unit=unit, foot=foot, spark=line, over=over, link=link)

    local_foot = (
        "limits are exact" if not fleet.local else "all of them" if len(fleet.local) == fleet.live else ""
    )
    lag_foot = (
        f"{fleet.worst_lag_server}, limit {LAG_WARN_S:.0f} s" if fleet.worst_lag_server else "all up to date"
    )
    calls = sum(traffic.calls_per_s for traffic in figures.dependencies.values())
    return [
        tile(
            "refused",
            "429 responses",
            number(figures.refused_per_s),
            "/s",
            f"{refused_share:.1f} % of {number(figures.requests_per_s)}/s, limit 2 %",
            refused_share > 2 and figures.requests_per_s > 1,
            "/tenants",
            figures.requests_per_s * 0.02 or None,
        ),
        tile(
            "p99",
            "Redis p99",
            "none" if p99 is None else f"{p99 / 1000:.1f}",
            "" if p99 is None else "ms",
            "nobody asked it" if p99 is None else "budget 5 ms",
            p99 is not None and p99 > P99_BUDGET_US,
            "/servers",
            5.0,
        ),
        tile(
            "local",
            "On local fallback",
            str(len(fleet.local)),
            f"of {fleet.live} servers",
            local_foot or ", ".join(fleet.local[:2]) + (" and more" if len(fleet.local) > 2 else ""),
            bool(fleet.local),
            "/servers",
            None,
        ),
        tile(
            "lag",
            "Config lag, worst",
            f"{fleet.worst_lag_s:.0f}",
            "s",
            lag_foot,
            fleet.worst_lag_s > LAG_WARN_S,
            "/servers",
            LAG_WARN_S,
        ),
        tile(
            "short",
            "Not sent, breaker open",
            number(short),
            "/s",
            "answered by fallbacks" if short else "no call held back",
            False,
            "/breakers",
            None,
        ),
        tile(
            "failed",
            "Failed calls",
            number(failed),
            "%",
            f"of {number(calls)} calls/s sent out",
            failed > 10,
            "/breakers",
            None,
        ),
    ]


def server_tiles(facts: Facts, fleet: FleetSummary, history: History) -> list[Tile]:
    """The figures of the servers page."""
    figures, span = facts.figures, history.span
    p99, errors = figures.store.p99_us, figures.store.errors_per_s + figures.store.timeouts_per_s

    def tile(
        key: str, name: str, value: str, unit: str, foot: str, over: bool, limit: float | None = None
    ) -> Tile:
        line = spark(history.points(key), limit=limit, label=f"{name}, {span}")
        return Tile(key=key, name=name, value=value, unit=unit, foot=foot, spark=line, over=over, link="")

    local, lagging = len(fleet.local), len(fleet.lagging)
    return [
        tile("shared", "Shared", str(fleet.shared), f"of {fleet.total}", "exact limits", False),
        tile("local", "Local fallback", str(local), "", _some(fleet.local) or "none", local > 0),
        tile("lagging", "Old configuration", str(lagging), "", _some(fleet.lagging) or "none", lagging > 0),
        tile(
            "p99",
            "Redis p99",
            "none" if p99 is None else f"{p99 / 1000:.1f}",
            "" if p99 is None else "ms",
            "nobody asked it" if p99 is None else "budget 5 ms",
            p99 is not None and p99 > P99_BUDGET_US,
            5.0,
        ),
        tile("store_errors", "Redis errors", number(errors), "/s", "timeouts included", errors >= 0.05),
        tile("requests", "Requests", number(figures.requests_per_s), "/s", "over the fleet", False),
    ]


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
