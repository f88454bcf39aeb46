"""Alerts as sentences of the headline: what is wrong, and how, without the figures that explain it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from controlplane.alerts.rules.rule import Headline
from controlplane.alerts.rules.texts import p99_part, slow_redis_ms
from controlplane.fleet.live import RuleFigures
from controlplane.phrases import count, is_or_are, name_or_count, percent, they
from controlplane.refusals.callers import RefusedCaller
from controlplane.status.backlogs import BacklogStatus
from controlplane.status.breakers import BreakerStatus
from controlplane.status.facts import Observing, ScheduledChange
from controlplane.status.observed import observed_head
from controlplane.status.status import Status
from controlplane.status.watched import Blind, Source, Spent


class NamesTenant(Protocol):
    @property
    def tenant(self) -> str: ...


class NamesDependency(Protocol):
    @property
    def dependency(self) -> str: ...


class NamesCause(NamesDependency, Protocol):
    @property
    def why(self) -> str: ...

    @property
    def part(self) -> str: ...


#: The words of each ``controlplane.status.watched.Source``.
SOURCES: Mapping[Source, str] = MappingProxyType(
    {
        "budgets": "What is spent of quotas and budgets",
        "redis": "The servers of Redis",
        "series": "The history of calls",
        "tokens": "When tokens and certificates expire",
    }
)
AHEAD = Headline(subject="Edits", join="are", verb="not published")
FROZEN = Headline(subject="Many pods", join="went", verb="silent at once")
NEW_PODS = Headline(subject="New pods", join="are", verb="refused")
NOTHING_LIMITED = Headline(subject="No limit", join="refuses", verb="anything")
REDIS_DOWN = Headline(subject="Redis", join="is", verb="down")
SHED = Headline(subject="Pods", join="shed", verb="requests")
WRITES_REFUSED = Headline(subject="Postgres", join="refuses", verb="what a gateway writes")


def refused(status: Status) -> Headline:
    share = percent(status.figures.refused_share)
    return Headline(subject=f"{share} of requests", join="are", verb="refused")


def drill(status: Status) -> Headline:
    return _pods(status.fleet.drill, "is", "are", "in a drill")


def duplicated(status: Status) -> Headline:
    who = name_or_count(status.facts.duplicated)
    return Headline(subject="Two processes", join="report", verb=f"as {who}")


def lag(status: Status) -> Headline:
    return _pods(status.fleet.lagging, "has", "have", "old configuration")


def local(status: Status) -> Headline:
    pods = status.fleet.local
    # One that is silent may do anything.
    if len(pods) == status.fleet.total:
        return Headline(subject="Every pod", join="uses", verb="local limits")
    return Headline(subject=count(len(pods), "pod"), join=they(pods, "uses", "use"), verb="local limits")


def all_refused(one: NamesCause) -> Headline:
    if one.part:
        return Headline(
            subject=f"{one.part} of calls to {one.dependency}", join="are", verb=f"refused{one.why}"
        )
    return Headline(subject=f"No call to {one.dependency}", join="is", verb=f"allowed{one.why}")


def near(breaker: BreakerStatus) -> Headline:
    return Headline(subject=breaker.name, join="is", verb="near its threshold")


def overdue(change: ScheduledChange) -> Headline:
    title = f"The end of quota {change.quota} of {change.tenant}" if change.tenant else change.title
    return Headline(subject=title, join="is", verb="overdue")


def redis_at_deadline(status: Status) -> Headline:
    # An alert that fires on, or the threshold of an admin, can be below the deadline.
    where = "over" if p99_part(status) > 1 else "near"
    return Headline(subject="Redis p99", join="is", verb=f"{slow_redis_ms(status)}, {where} its deadline")


def redis_slower_than_usual(status: Status) -> Headline:
    return Headline(subject="Redis p99", join="is", verb=f"{slow_redis_ms(status)}, higher than usual")


def pressed(status: Status) -> Headline:
    return _pods(status.fleet.pressed, "is", "are", "under pressure")


def unhealthy(status: Status) -> Headline:
    return _pods(status.fleet.unhealthy, "is", "are", "unhealthy")


def observing(one: Observing) -> Headline:
    subject, _, verb = observed_head(one).rpartition(" only ")
    return Headline(subject=subject, join="only", verb=verb)


def bulkhead_full(breaker: BreakerStatus) -> Headline:
    return Headline(subject=f"The bulkhead of {breaker.name}", join="is", verb="full")


def no_retry_budget(breaker: BreakerStatus) -> Headline:
    return Headline(subject=f"The retry budget of {breaker.name}", join="is", verb="spent")


def rejected(status: Status) -> Headline:
    return _pods(status.fleet.rejected, "rejected", "rejected", "the configuration")


def failed_checks(status: Status) -> Headline:
    share = percent(status.figures.store.failed_share)
    return Headline(subject=f"{share} of checks", join="", verb="fail")


def schedules(status: Status) -> Headline:
    return Headline(subject=count(status.facts.schedules_failed, "scheduled change"), join="", verb="failed")


def silent(status: Status) -> Headline | None:
    # Without a gateway, which another sentence names, every pod is silent.
    return None if not status.facts.current else _pods(status.fleet.silent, "is", "are", "silent")


def uncounted(status: Status) -> Headline | None:
    return Headline(subject="The figures", join="are", verb="incomplete") if status.facts.current else None


def unknown_revision(status: Status) -> Headline:
    pods = tuple(one.server for one in status.facts.unknown_revisions)
    return _pods(pods, "reports", "report", "an unknown revision")


def lock_held(_: Status) -> Headline:
    return Headline(subject="A lock", join="is", verb="in use for long")


def lock_lost(status: Status) -> Headline:
    lost = status.locks.lost
    return Headline(subject=count(lost, "lock"), join=is_or_are(lost), verb="lost")


def lock_failures(status: Status) -> Headline:
    return Headline(subject=f"{percent(status.locks.failed_share)} of locks", join="", verb="fail")


def hot_key(rule: RuleFigures) -> Headline:
    return Headline(subject=f"{rule.rule} of {rule.tenant}", join="is", verb="a hot key")


def runaway(one: NamesTenant) -> Headline:
    return Headline(subject=one.tenant, join="sends", verb="many times its usual requests")


def refused_caller(one: RefusedCaller) -> Headline:
    return Headline(subject=f"One {one.kind}", join="is", verb="refused again and again")


def vendor_429(vendor: NamesDependency) -> Headline:
    return Headline(subject=vendor.dependency, join="answers", verb="429")


def vendor_auth(vendor: NamesDependency) -> Headline:
    return Headline(subject=vendor.dependency, join="refuses", verb="our credentials")


def spent(one: Spent) -> Headline:
    whose = one.tenant or one.dependency
    return Headline(subject=f"{int(one.share * 100)} % of {one.name} of {whose}", join="is", verb="spent")


def backlog_full(backlog: BacklogStatus) -> Headline:
    return Headline(subject=f"The backlog of {backlog.name}", join="is", verb="nearly full")


def dead_jobs(backlog: BacklogStatus) -> Headline:
    number = backlog.seen.figures.dead
    return Headline(subject=f"{count(number, 'job')} of {backlog.name}", join=is_or_are(number), verb="dead")


def untaken(backlog: BacklogStatus) -> Headline:
    return Headline(subject="No worker", join="takes", verb=f"jobs of {backlog.name}")


def queue_full(breaker: BreakerStatus) -> Headline:
    return Headline(subject=f"The queue of {breaker.name}", join="is", verb="nearly full")


def blind(one: Blind) -> Headline:
    return Headline(subject=SOURCES[one.source], join="cannot", verb="be read")


def script_fails(_: Status) -> Headline:
    return Headline(subject="A script", join="fails", verb="in Redis")


def _pods(names: tuple[str, ...], one: str, several: str, verb: str) -> Headline:
    return Headline(subject=name_or_count(names), join=they(names, one, several), verb=verb)
