"""What an operator should look at now: derived from the facts, each with its runbook."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from controlplane.status.facts import Facts
from dashboard.live.breakers import Breaker
from dashboard.live.servers import LAG_CRITICAL_S, FleetSummary

#: Share of requests answered 429 above which it is more than one greedy tenant.
REFUSED_SHARE = 0.02

#: Share of servers missing from the rates that is more than pods which moved from gateway to gateway.
UNCOUNTED_SHARE = 0.1

#: What should have been made so long ago is made neither by the worker nor by who stands in for it.
OVERDUE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Condition:
    key: str
    #: critical | warning
    severity: str
    text: str
    detail: str
    runbook: str
    #: Where to look.
    link: str = ""
    since: float | None = None

    @property
    def css(self) -> str:
        return "st-open" if self.severity == "critical" else "st-warn"

    @property
    def glyph(self) -> str:
        return "crit" if self.severity == "critical" else "warn"


def conditions(facts: Facts, breakers: tuple[Breaker, ...], fleet: FleetSummary) -> list[Condition]:
    """Critical first. ``since`` is filled in by ``remember``."""
    found = [*_breaker_conditions(breakers), *_server_conditions(fleet), *_figure_conditions(facts)]
    found += _schedule_conditions(facts)
    found += _fleet_conditions(facts)
    return sorted(found, key=lambda condition: (condition.severity != "critical", condition.key))


def _breaker_conditions(breakers: tuple[Breaker, ...]) -> list[Condition]:
    found = []
    for breaker in breakers:
        runbook = breaker.dependency.runbook or "payment-provider-timeouts"
        link = f"/breakers/{breaker.name}"
        if breaker.face.kind == "open":
            detail = f"{breaker.failures} of {breaker.calls} calls failed. "
            detail += f"Callers get: {breaker.dependency.fallback}." if breaker.dependency.fallback else ""
            found.append(
                Condition(
                    key=f"open:{breaker.name}",
                    severity="critical",
                    text=f"{breaker.name} is open",
                    detail=detail.strip(),
                    runbook=runbook,
                    link=link,
                    since=breaker.since,
                )
            )
        elif breaker.near:
            found.append(
                Condition(
                    key=f"near:{breaker.name}",
                    severity="warning",
                    text=f"{breaker.name} is near its threshold",
                    detail=f"{breaker.failures} of {breaker.calls} calls failed, trips at "
                    f"{breaker.dependency.failure_percent} %.",
                    runbook=runbook,
                    link=link,
                )
            )
        elif breaker.override and breaker.face.kind == "pinned":
            found.append(
                Condition(
                    key=f"held:{breaker.name}",
                    severity="warning",
                    text=f"{breaker.name} is {breaker.face.verb}",
                    detail="It cannot trip while it is held. Check that the dependency bears the load.",
                    runbook="breaker-held-by-hand",
                    link=link,
                    since=breaker.since,
                )
            )
    return found


def _server_conditions(fleet: FleetSummary) -> list[Condition]:
    found = []
    count = len(fleet.local)
    if count:
        everyone = count == fleet.live
        share = f"Limits are approximate: each server allows 1/{fleet.divisor} of a quota."
        found.append(
            Condition(
                key="local",
                severity="critical" if everyone else "warning",
                text=(
                    "Redis is unreachable from every server"
                    if everyone
                    else _servers(count) + " on local fallback"
                ),
                detail=f"{share} Breakers work from each server's own counters.",
                runbook="redis-unreachable",
                link="/servers",
                since=fleet.local_since,
            )
        )
    if fleet.drill:
        found.append(
            Condition(
                key="drill",
                severity="warning",
                text=_servers(len(fleet.drill)) + " in a drill",
                detail="They pretend that Redis is slow or gone, until their drill is over.",
                runbook="drill",
                link="/servers",
            )
        )
    if fleet.lagging:
        late = fleet.worst_lag_s > LAG_CRITICAL_S
        has = "has" if len(fleet.lagging) == 1 else "have"
        found.append(
            Condition(
                key="lag",
                severity="critical" if late else "warning",
                text=f"{_some(fleet.lagging)} {has} old configuration",
                detail=f"{fleet.worst_lag_s:.0f} s behind. Edits made since do not hold there.",
                runbook="configuration-lag",
                link="/servers",
            )
        )
    if fleet.rejected:
        found.append(
            Condition(
                key="rejected",
                severity="critical",
                text=f"{_some(fleet.rejected)} refused the configuration",
                detail="The last good one stays in force there. The row says what was wrong.",
                runbook="configuration-lag",
                link="/servers",
            )
        )
    if fleet.silent:
        found.append(
            Condition(
                key="silent",
                severity="warning",
                text=f"No heartbeat from {_some(fleet.silent)}",
                detail="It may be stopped, or cut off from the control plane and still deciding.",
                runbook="server-silent",
                link="/servers",
            )
        )
    return found


def _fleet_conditions(facts: Facts) -> list[Condition]:
    found = []
    if facts.figures.frozen:
        found.append(
            Condition(
                key="frozen",
                severity="warning",
                text="Many servers fell silent at once",
                detail="More likely we lost sight of them: none is called offline, and what is shown of"
                " them is what they last said.",
                runbook="server-silent",
                link="/servers",
            )
        )
    uncounted = facts.figures.uncounted
    if uncounted > facts.figures.live_servers * UNCOUNTED_SHARE:
        found.append(
            Condition(
                key="uncounted",
                severity="warning",
                text="Figures are incomplete: a gateway has just started",
                detail=f"{uncounted} of {max(uncounted, facts.figures.live_servers)} servers are in no rate"
                " yet. Each is when it has beaten twice, which takes seconds.",
                runbook="server-silent",
                link="/servers",
            )
        )
    if facts.duplicated:
        found.append(
            Condition(
                key="duplicated",
                severity="warning",
                text=f"Two processes report as {_some(facts.duplicated)}",
                detail="Each counts as a server that spends, but figures of one of them are missing.",
                runbook="server-silent",
                link=f"/servers/{facts.duplicated[0]}",
            )
        )
    if facts.ahead:
        found.append(
            Condition(
                key="ahead",
                severity="critical",
                text="Edits are not published: Postgres was restored",
                detail=f"{facts.ahead}, which it never made. Begin a new epoch.",
                runbook="postgres-restored",
            )
        )
    return found


def _figure_conditions(facts: Facts) -> list[Condition]:
    found, figures, deadline_ms = [], facts.figures, facts.store_deadline_ms
    if figures.store.p99_us is not None and figures.store.p99_us > facts.store_deadline_us:
        found.append(
            Condition(
                key="p99",
                severity="warning",
                text=f"Redis p99 is {figures.store.p99_us / 1000:.1f} ms",
                detail=f"Over the {deadline_ms:g} ms a decision may wait: some calls are decided locally.",
                runbook="redis-unreachable",
                link="/servers",
            )
        )
    if figures.requests_per_s > 1 and figures.refused_per_s / figures.requests_per_s > REFUSED_SHARE:
        share = figures.refused_per_s / figures.requests_per_s * 100
        greedy = max(figures.tenants, key=lambda tenant: tenant.refused_per_s, default=None)
        who = f" Most are {greedy.tenant}'s." if greedy and greedy.refused_per_s > 0 else ""
        found.append(
            Condition(
                key="429",
                severity="warning",
                text=f"{share:.1f} % of requests are refused",
                detail=f"{figures.refused_per_s:.0f} of {figures.requests_per_s:.0f}/s, limit 2 %.{who}",
                runbook="too-many-429s",
                link="/tenants",
            )
        )
    return found


def _schedule_conditions(facts: Facts) -> list[Condition]:
    found = []
    if facts.schedules_failed:
        count = facts.schedules_failed
        found.append(
            Condition(
                key="schedules",
                severity="critical",
                text=f"{count} scheduled change{'' if count == 1 else 's'} could not be made",
                detail="Nothing was changed. Make it by hand, or plan it again.",
                runbook="scheduled-change-failed",
                link="/schedules",
            )
        )
    for what, at, link in facts.soon:
        overdue = at < facts.now - OVERDUE_S
        moment = f"{datetime.fromtimestamp(at, UTC):%H:%M UTC on %-d %B}"
        found.append(
            Condition(
                key=f"{'overdue' if overdue else 'soon'}:{what}",
                severity="critical" if overdue else "warning",
                text=f"Overdue: {what[0].lower()}{what[1:]}" if overdue else what,
                detail=f"It was due at {moment}. Does the worker run?"
                if overdue
                else f"By itself, at {moment}.",
                runbook="scheduled-change-failed",
                link=link,
                since=at if overdue else None,
            )
        )
    return found


def remember(found: list[Condition], before: dict[str, float], now: float) -> tuple[Condition, ...]:
    """Give each condition the moment it was first seen; ``before`` is updated in place."""
    for key in before.keys() - {condition.key for condition in found}:
        del before[key]
    for condition in found:
        before.setdefault(condition.key, condition.since or now)
    return tuple(replace(condition, since=before[condition.key]) for condition in found)


def _servers(count: int) -> str:
    return f"{count} server{'' if count == 1 else 's'}"


def _some(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else _servers(len(names))
