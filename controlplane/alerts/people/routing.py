"""The receivers that get an alert: a pure function of the routes, the alert, and the time.

The first route that matches decides. The last one is the default: it matches every alert and stays. The
worker, the preview and the warnings of the page use the same functions.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

from controlplane.alerts.models import Alert, Receiver, Route
from controlplane.alerts.people.untested_receivers import untested_receivers
from controlplane.alerts.rules.every import RULES
from controlplane.alerts.rules.settings import Changes, settings_of
from controlplane.policies.models import Dependency, Environment

DEFAULT = "default"
SEVERITIES = ("warning", "critical")
#: Alerts below this level need no person, so that none of their routes needs a receiver.
MIN_LEVEL_OF_PEOPLE = 2

MAX_WARNINGS = 5
#: The warning of an environment without receivers.
NO_RECEIVER = "No person is notified: add a receiver."


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of an alert that routes are compared with."""

    level: int
    severity: str
    #: The owner of the dependency that the alert is about; empty for another alert.
    owner: str = ""


@dataclass(frozen=True, kw_only=True)
class Hole:
    """Alerts that a route sends to no receiver."""

    route: str
    facts: Facts


def routes_of(environment: str) -> list[Route]:
    """The routes in their order; the default is the last, also before an admin has changed it."""
    return default_last(environment, Route.objects.filter(environment=environment).order_by("place", "pk"))


def default_last(environment: str, found: Iterable[Route]) -> list[Route]:
    rows = list(found)
    default = [row for row in rows if row.name == DEFAULT]
    return [
        *(row for row in rows if row.name != DEFAULT),
        *(default or [Route(environment=environment, name=DEFAULT, steps=[[0, []]])]),
    ]


@dataclass(frozen=True, kw_only=True)
class AddressBook:
    """Everyone who may get the alerts of an environment: read once for all news of an evaluation."""

    #: By name.
    receivers: list[Receiver]
    routes: list[Route]
    #: Dependency -> its owner.
    owners: dict[str, str]

    def facts_of(self, alert: Alert) -> Facts:
        owner = self.owners.get(alert.subject_name, "") if alert.subject_kind == "breaker" else ""
        return Facts(level=alert.level, severity=alert.severity, owner=owner)


def read_address_book(environment: str) -> AddressBook:
    """Three queries."""
    owners = Dependency.objects.filter(environment=environment).exclude(owner="")
    return AddressBook(
        receivers=list(Receiver.objects.filter(environment=environment).order_by("name")),
        routes=routes_of(environment),
        owners=dict(owners.values_list("name", "owner")),
    )


def route_of(routes: Sequence[Route], facts: Facts, at: datetime) -> Route:
    """The first route that matches; the last of them is the default."""
    return next((route for route in routes if matches(route, facts) and in_hours(route, at)), routes[-1])


def matches(route: Route, facts: Facts) -> bool:
    """At whatever time."""
    return (
        (not route.owner or route.owner == facts.owner)
        and route.least_level <= facts.level
        and _severe(route.least_severity, facts.severity)
    )


def in_hours(route: Route, at: datetime) -> bool:
    """Whether the route applies at this moment. Hours past midnight belong to the day that they began on."""
    local = at.astimezone(ZoneInfo(route.zone))
    today, yesterday = _on(route, local.weekday()), _on(route, (local.weekday() - 1) % 7)
    now = f"{local:%H:%M}"
    if not route.begins:
        return today
    if route.begins < route.ends:
        return today and route.begins <= now < route.ends
    return (today and now >= route.begins) or (yesterday and now < route.ends)


def always(route: Route) -> bool:
    return not route.begins and not route.days


def names_of(route: Route, step: int, receivers: Iterable[Receiver]) -> list[str]:
    """The receivers of one step. A default without receivers stands for all of them."""
    names = list(route.steps[step][1])
    if route.name == DEFAULT and step == 0 and not names:
        return sorted(receiver.name for receiver in receivers)
    return names


def later_steps(route: Route, at: datetime, receivers: Collection[Receiver]) -> list[list[Any]]:
    """When each step after the first is due, and its receivers: as ``Alert.escalations`` has them."""
    return [
        [at.timestamp() + after_min * 60, names_of(route, number, receivers)]
        for number, (after_min, _) in enumerate(route.steps)
        if number
    ]


def refusal_of(receiver: Receiver | None, facts: Facts) -> str:
    """Why a receiver does not get the alert; empty if it does."""
    if receiver is None:
        return "It was removed."
    if receiver.disabled_because:
        return receiver.disabled_because
    if receiver.least_level > facts.level:
        return f"It gets alerts from level {receiver.least_level} only."
    if not _severe(receiver.least_severity, facts.severity):
        return "It gets critical alerts only."
    return ""


def holes(
    routes: Sequence[Route],
    receivers: Collection[Receiver],
    owners: Iterable[str] = (),
    rules: Changes = MappingProxyType({}),
) -> list[Hole]:
    """Alerts for people that would reach no receiver at some hour. ``rules``: what an admin changed."""
    by_name = {receiver.name: receiver for receiver in receivers}
    found: dict[Hole, None] = {}
    for facts in _possible(owners, rules):
        for route in routes:
            if not matches(route, facts):
                continue
            names = names_of(route, 0, receivers)
            if all(refusal_of(by_name.get(name), facts) for name in names):
                found[Hole(route=route.name, facts=facts)] = None
            if always(route):
                break
    return list(found)


def warnings(environment: str) -> list[str]:
    """Problems of routes and receivers, for the page of alerts. Five queries."""
    receivers = list(Receiver.objects.filter(environment=environment))
    if not receivers:
        return [NO_RECEIVER]
    owners = Dependency.objects.filter(environment=environment).exclude(owner="")
    names = owners.order_by("owner").values_list("owner", flat=True).distinct()
    rules = Environment.objects.filter(slug=environment).values_list("alert_rules", flat=True).first() or {}
    routes, known = routes_of(environment), list(names)
    found = [_text(hole) for hole in holes(routes, receivers, known, rules)]
    more = len(found) - MAX_WARNINGS
    rest = [f"{more} more kinds of alerts reach no receiver."] if more > 0 else []
    idle = _without_owner(routes, known)[:MAX_WARNINGS]
    return [*found[:MAX_WARNINGS], *rest, *idle, *_unproven(environment, receivers)]


def _without_owner(routes: Iterable[Route], owners: Collection[str]) -> list[str]:
    """Routes that match nothing: the name of their owner is mistyped, or no dependency has it any more."""
    return [
        f"The route {route.name} matches no alert: no dependency has the owner {route.owner}."
        for route in routes
        if route.owner and route.owner not in owners
    ]


def _unproven(environment: str, receivers: Iterable[Receiver]) -> list[str]:
    """One line, however many there are."""
    doubts = untested_receivers(environment)
    names = sorted(row.name for row in receivers if row.pk in doubts)
    if not names:
        return []
    listed = ", ".join(names[:MAX_WARNINGS]) + (" and others" if len(names) > MAX_WARNINGS else "")
    return [f"No message reached {listed} in 30 days. Test them on the page Receivers."]


def _text(hole: Hole) -> str:
    facts = hole.facts
    about = f" about dependencies of {facts.owner}" if facts.owner else ""
    return (
        f"No receiver of the route {hole.route} gets {facts.severity} alerts of level {facts.level}{about}."
    )


def _possible(owners: Iterable[str], rules: Changes) -> list[Facts]:
    """All alerts for people that are possible: by the rules, and by the owners of dependencies."""
    every = ("", *owners)
    found: dict[Facts, None] = {}
    for rule in RULES:
        settings = settings_of(rules, rule.key)
        level = settings.timing.level
        if not rule.alerts or not settings.enabled or level < MIN_LEVEL_OF_PEOPLE:
            continue
        for owner in every if rule.of_dependency else ("",):
            for severity in rule.severities:
                found[Facts(level=level, severity=severity, owner=owner)] = None
    return list(found)


def _severe(least: str, severity: str) -> bool:
    return SEVERITIES.index(severity) >= SEVERITIES.index(least)


def _on(route: Route, day: int) -> bool:
    return not route.days or day in route.days
