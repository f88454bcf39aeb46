"""Phrases of alert texts and headlines that depend on how many there are, or that two rules share."""

import re
from math import inf
from types import MappingProxyType

from controlplane.alerts.rules.rule import Headline, Subject
from controlplane.alerts.rules.thresholds import (
    LOCAL_SHARE,
    MIN_REQUESTS_PER_S,
    P99_WARN_PART,
)
from controlplane.fleet.live import FleetFigures
from controlplane.phrases import count, moment, name_or_count, number, percent, rounded, they
from controlplane.status.breakers import NO_DATA, PHRASES, BreakerStatus
from controlplane.status.incidents import NOT_CLOSED
from controlplane.status.status import Status

#: Fewer requests per second are shown as 0.
SHOWN_PER_S = 0.05


def refused(status: Status) -> str:
    figures = status.figures
    tenant = refused_tenant(status).name
    rates = f"{rounded(figures.active_refused_per_s, 2)} of {rounded(figures.requests_per_s, 2)}/s"
    besides = ""
    if figures.suspended_per_s >= SHOWN_PER_S:
        besides = (
            f" Besides, {number(figures.suspended_per_s)}/s of suspended tenants are refused on purpose."
        )
    return f"{rates}.{most_are_from(tenant) if tenant else ''}{besides}"


def refused_headline(status: Status) -> Headline:
    tenant = refused_tenant(status).name
    verb = f"refused, most of {tenant}" if tenant else "refused"
    return Headline(f"{percent(status.figures.refused_share)} of requests", "are", verb)


def most_are_from(tenant: str) -> str:
    return f" Most are from {tenant}."


def refused_tenant(status: Status) -> Subject:
    """The tenant that most refusals are of, if one has more than half of them."""
    figures, suspended = status.figures, status.facts.suspended
    active = (tenant for tenant in figures.tenants if tenant.tenant not in suspended)
    most = max(active, key=lambda tenant: tenant.refused_per_s, default=None)
    if most is not None and most.refused_per_s > figures.active_refused_per_s / 2:
        return Subject(kind="tenant", name=most.tenant)
    return Subject(kind="tenants")


def refused_share(status: Status) -> float:
    """The share of requests that are refused; 0 while there are too few requests to say."""
    return 0.0 if few_requests(status) else status.figures.refused_share


def few_requests(status: Status) -> bool:
    """Whether there are too few requests for a share of them to say anything."""
    return status.figures.requests_per_s <= MIN_REQUESTS_PER_S


def slow_redis(status: Status) -> str:
    return f"Redis p99 is {slow_redis_ms(status)}"


def slow_redis_ms(status: Status) -> str:
    return f"{(status.figures.store.p99_us or 0) / 1000:.1f} ms"


def p99_warn_us(status: Status) -> float:
    return status.facts.store_deadline_us * P99_WARN_PART


def slow_redis_detail(status: Status) -> str:
    deadline = f"{status.facts.store_deadline_ms:g} ms"
    if (status.figures.store.p99_us or 0) > status.facts.store_deadline_us:
        return f"A decision waits at most {deadline}: pods decide some calls locally."
    return (
        f"Usual is below {p99_warn_us(status) / 1000:g} ms. Above {deadline}, pods decide some calls locally."
    )


def redis_at_deadline_headline(status: Status) -> Headline:
    # An alert that fires on, or the threshold of an admin, can be below the deadline.
    where = "over" if p99_part(status) > 1 else "near"
    return Headline("Redis p99", "is", f"{slow_redis_ms(status)}, {where} its deadline")


def redis_slower_headline(status: Status) -> Headline:
    return Headline("Redis p99", "is", f"{slow_redis_ms(status)}, higher than usual")


def local(status: Status) -> str:
    pods = len(status.fleet.local)
    if pods == status.fleet.live:
        return "Redis is unreachable from every pod"
    return f"{count(pods, 'pod')} on local fallback"


def local_headline(status: Status) -> Headline:
    pods = status.fleet.local
    # One that is silent may do anything.
    if len(pods) == status.fleet.total:
        return Headline("Every pod", "uses", "local limits")
    return Headline(count(len(pods), "pod"), they(pods, "uses", "use"), "local limits")


def all_local(status: Status) -> bool:
    return 0 < len(status.fleet.local) == status.fleet.live


def local_pods(status: Status) -> float:
    """How many pods are on local fallback; endless if Redis itself is the likely cause."""
    local, live = len(status.fleet.local), status.fleet.live
    return inf if local > live * LOCAL_SHARE else local


def p99_part(status: Status) -> float:
    return (status.figures.store.p99_us or 0) / status.facts.store_deadline_us


def uncounted_share(status: Status) -> float:
    figures = status.figures
    return figures.uncounted / max(1, figures.live_servers)


def failed(breaker: BreakerStatus) -> str:
    return f"{breaker.failures} of {breaker.calls} calls failed"


def opened(breaker: BreakerStatus) -> str:
    """Why the breaker is open; what it counted since its trip explains nothing."""
    if not breaker.why:
        return "Its cause is not known yet"
    return f"{breaker.why[:1].upper()}{breaker.why[1:]}"


def how_open(breaker: BreakerStatus) -> str:
    """How a breaker is now that was open for long."""
    override = breaker.override
    if override is not None and breaker.effective == "forced_open":
        return f"{override.actor} forced it open until {moment(override.expires_at)}."
    if breaker.effective == NO_DATA:
        return "No pod reports it now."
    state = f"It is {PHRASES[breaker.effective]} now."
    return f"{state} {opened(breaker)}." if breaker.effective in NOT_CLOSED else state


#: Verbs of the texts of alerts, and how they read when the condition is over.
_PAST = MappingProxyType(
    {
        "is": "was",
        "are": "were",
        "has": "had",
        "have": "had",
        "use": "used",
        "uses": "used",
        "fail": "failed",
        "fails": "failed",
        "decide": "decided",
        "decides": "decided",
        "evaluates": "evaluated",
        "report": "reported",
        "reports": "reported",
        "allows": "allowed",
        "answers": "answered",
        "cannot": "could not",
        "refuse": "refused",
        "refuses": "refused",
        "let": "let",
        "lets": "let",
        "sends": "sent",
        "shed": "shed",
        "takes": "took",
        "waits": "waited",
    }
)
_VERB = re.compile(rf"(?<= )({'|'.join(_PAST)})(?= |$)")


def past(text: str) -> str:
    """The text of an alert whose condition is not true any more: "search is open" to "search was open"."""
    return _VERB.sub(lambda found: _PAST[found[0]], text, count=1)


def lag(status: Status) -> str:
    lagging = status.fleet.lagging
    return f"{name_or_count(lagging)} {'has' if len(lagging) == 1 else 'have'} old configuration"


def missing_edits(status: Status) -> str:
    pods = "This pod does" if len(status.fleet.lagging) == 1 else "These pods do"
    return f"{status.fleet.worst_lag_s:.0f} s behind. {pods} not have edits made since then."


def approximate_limits(status: Status) -> str:
    return (
        f"Limits are approximate: {allowed_alone(status.fleet.divisor)}."
        " Breakers work from each pod\u2019s own counters."
    )


def allowed_alone(divisor: int) -> str:
    """The calls that a pod allows without Redis: its own table lists it for each limit."""
    part = f"1/{divisor} of their value" if divisor > 1 else "their full value"
    return f"limits with a local share allow {part}, and limits that fail open allow every call"


def why_frozen(figures: FleetFigures) -> str:
    of = (
        f"{figures.frozen_silent} of {figures.frozen_expected} pods are silent. "
        if figures.frozen_expected
        else ""
    )
    until = f" until {moment(figures.frozen_until)} at the latest" if figures.frozen_until else ""
    return (
        f"{of}The gateway probably lost contact with them, so none is marked offline{until}."
        " If they really stopped, an operator can mark them offline on the Pods page."
    )


def unknown_revision(status: Status) -> str:
    pods = [one.server for one in status.facts.unknown_revisions]
    return Headline.of_pods(pods, "reports", "report", "a revision that Postgres never made").text


def unknown_revision_headline(status: Status) -> Headline:
    pods = [one.server for one in status.facts.unknown_revisions]
    return Headline.of_pods(pods, "reports", "report", "an unknown revision")


def how_unknown(status: Status) -> str:
    facts = status.facts
    first = facts.unknown_revisions[0]
    # Redis, or the history in Postgres, confirms a restore: publishing has stopped, as another alert says.
    edits = "Edits wait for a new epoch." if facts.ahead else "Edits are still published."
    return (
        f"{first.server} reports {first.epoch}.{first.revision}; the newest is"
        f" {facts.epoch}.{facts.revision}. {edits} Either its token is misused, or Postgres was restored."
    )
