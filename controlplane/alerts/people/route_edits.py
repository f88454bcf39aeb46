"""Edits of routes, and the preview that says who gets an alert."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db import transaction
from django.utils import timezone

from controlplane.alerts.models import Alert, Muted, Receiver, Route
from controlplane.alerts.people.audit_entries import record_named
from controlplane.alerts.people.content_version import content_version
from controlplane.alerts.people.routing import (
    DEFAULT,
    SEVERITIES,
    names_of,
    read_address_book,
    refusal_of,
    route_of,
    routes_of,
)
from controlplane.alerts.people.rule_words import RULES_TO_MUTE
from controlplane.alerts.rules.every import RULE_OF_KEY
from controlplane.alerts.rules.settings import settings_of
from controlplane.alerts.state.mutes import mute_of, not_ended
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.errors import EditConflict, find
from controlplane.policies.document import environment_of
from controlplane.policies.models import Environment
from controlplane.validation import Problems

MAX_ROUTES = 50
MAX_RECEIVERS = 20
#: Escalations: the steps of a route after the first message.
MAX_ESCALATIONS = 3
LONGEST_ESCALATION_MIN = 24 * 60
#: Columns of a route that are stored as they are typed.
_COLUMNS = ("owner", "least_level", "least_severity", "begins", "ends", "zone")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class RouteValues:
    """The values that a person enters. An empty condition matches every alert."""

    owner: str = ""
    least_level: int = 1
    least_severity: str = "warning"
    #: 0 is Monday.
    days: tuple[int, ...] = ()
    begins: str = ""
    ends: str = ""
    zone: str = "UTC"
    receivers: tuple[str, ...] = ()
    #: Minutes after the alert was sent, and who gets it then unless a person acknowledges it.
    escalations: tuple[tuple[int, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Addressed:
    """One receiver, and why it does not get the alert."""

    receiver: str
    #: Empty if it gets the alert.
    refusal: str


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    at: datetime
    receivers: list[Addressed]


@dataclass(frozen=True, kw_only=True)
class RoutePreview:
    """The receivers of an alert that fires at a moment."""

    at: datetime
    route: str
    owner: str
    level: int
    muted: Muted | None
    steps: list[PlannedStep]

    @property
    def reached(self) -> bool:
        """Whether a receiver gets it at some step."""
        return any(not one.refusal for step in self.steps for one in step.receivers)


def version_of(route: Route | None) -> int:
    """An edit names the version that it was based on. It differs after each change; 0 without a route."""
    if route is None:
        return 0
    return content_version({field: getattr(route, field) for field in (*_COLUMNS, "place", "days", "steps")})


def put_route(
    *,
    environment: str,
    name: str,
    values: RouteValues,
    place: int | None,
    reason: str,
    actor: Actor,
    expected_version: int | None = None,
) -> Route:
    """Add a route, or change one. ``place`` 1 is tried first.

    ``None`` keeps the place; a new route goes last before the default.

    Raises ``InvalidEdit``, and ``EditConflict`` if another person changed it since ``expected_version``.
    Without a version, it replaces what another person saved.
    """
    problems = Problems()
    problems.reason(reason)
    slug = environment_of(environment).slug
    _check(name, values, problems)
    problems.settle()
    with transaction.atomic():
        Environment.objects.select_for_update().get(pk=slug)
        # The lock makes a concurrent removal of a receiver wait.
        _check_receivers(slug, values, problems)
        others = [row for row in routes_of(slug)[:-1] if row.name != name]  # without the default
        row = Route.objects.filter(environment=slug, name=name).first()
        _check_version(slug, name, row, expected_version)
        if row is None and name != DEFAULT and len(others) >= MAX_ROUTES:
            problems.add("name", f"An environment has at most {MAX_ROUTES} routes. Remove one first.")
        if place is not None:
            problems.whole("place", place, 1, len(others) + 1)
        problems.settle()
        before = _audit_values(row) if row is not None else None
        row = row or Route(environment=slug, name=name, place=len(others) + 1)
        for field in _COLUMNS:
            setattr(row, field, getattr(values, field))
        row.days = sorted(set(values.days))
        row.steps = [
            [after_min, list(dict.fromkeys(names))]
            for after_min, names in ((0, values.receivers), *values.escalations)
        ]
        row.save()
        if name != DEFAULT:
            at = (place or row.place) - 1
            _number([*others[:at], row, *others[at:]])
        record_named(row, "route.set", reason, actor, before=before, after=_audit_values(row))
    return row


def remove_route(
    *, environment: str, name: str, reason: str, actor: Actor, expected_version: int | None = None
) -> None:
    """Remove a route. Raises ``NotFound``, ``InvalidEdit`` for the default, or as ``put_route`` does."""
    problems = Problems()
    problems.reason(reason)
    if name == DEFAULT:
        problems.add("name", "The default route cannot be removed. Change its receivers instead.")
    problems.settle()
    slug = environment_of(environment).slug
    with transaction.atomic():
        Environment.objects.select_for_update().get(pk=slug)
        row = find(Route.objects.filter(environment=slug), "route", name=name)
        _check_version(slug, name, row, expected_version)
        record_named(row, "route.removed", reason, actor, before=_audit_values(row))
        row.delete()
        _number(routes_of(slug)[:-1])  # without the default


def preview_route(
    *,
    environment: str,
    rule: str,
    dependency: str = "",
    severity: str = "critical",
    at: datetime | None = None,
) -> RoutePreview:
    """The receivers of an alert of this rule if it fires now, or at another time. Raises ``InvalidEdit``."""
    alert = _imagined(environment, rule, dependency, severity)
    moment = at or timezone.now()
    book = read_address_book(alert.environment)
    facts = book.facts_of(alert)
    route = route_of(book.routes, facts, moment)
    receivers = {row.name: row for row in book.receivers}
    return RoutePreview(
        at=moment,
        route=route.name,
        owner=facts.owner,
        level=facts.level,
        muted=mute_of(not_ended(alert.environment, moment), alert, moment),
        steps=[
            PlannedStep(
                at=moment + timedelta(minutes=after_min),
                receivers=[
                    Addressed(receiver=name, refusal=refusal_of(receivers.get(name), facts))
                    for name in names_of(route, number, receivers.values())
                ],
            )
            for number, (after_min, _) in enumerate(route.steps)
        ],
    )


def _imagined(environment: str, rule: str, dependency: str, severity: str) -> Alert:
    """An alert of the rule. Raises ``InvalidEdit``."""
    problems = Problems()
    if rule not in RULES_TO_MUTE:
        problems.add("rule", f"Choose one of: {', '.join(RULES_TO_MUTE)}.")
    known = RULE_OF_KEY.get(rule)
    if dependency and (known is None or not known.of_dependency):
        problems.add("dependency", f"Alerts of the rule {rule} are not about a dependency: leave it out.")
    if severity not in SEVERITIES:
        problems.add("severity", "Choose warning or critical.")
    problems.settle()
    here = environment_of(environment)
    return Alert(
        environment=here.slug,
        key=f"{rule}:{dependency}" if dependency else rule,
        level=settings_of(here.alert_rules, rule).timing.level,
        severity=severity,
        subject_kind="breaker" if dependency else "servers",
        subject_name=dependency,
    )


def hours_of(route: Route) -> str:
    """When a route applies, as a person reads it."""
    if not route.days and not route.begins:
        return "always"
    days = ", ".join(DAYS[day] for day in route.days) or "every day"
    hours = f" {route.begins}\u2013{route.ends}" if route.begins else ""
    return f"{days}{hours} {route.zone}"


def escalations_of(route: Route) -> str:
    """The receivers that get an alert later, as a person reads them."""
    return "; ".join(f"after {after_min} min {', '.join(names)}" for after_min, names in route.steps[1:])


def _check(name: str, values: RouteValues, problems: Problems) -> None:
    problems.slug("name", name)
    problems.text("owner", values.owner, 200)
    if values.least_level not in (1, 2, 3):
        problems.add("least_level", "Choose a level from 1 to 3.")
    if values.least_severity not in SEVERITIES:
        problems.add("least_severity", "Choose warning or critical.")
    if not set(values.days) <= set(range(7)):
        problems.add("days", "Choose days from 0 (Monday) to 6 (Sunday).")
    hours = (values.begins, values.ends)
    if any(hours) and not (all(map(_TIME.fullmatch, hours)) and values.begins != values.ends):
        problems.add("begins", "Enter two different times, like 09:00 and 17:30, or leave out both.")
    if not _is_zone(values.zone):
        problems.add("zone", "Use the name of a time zone, like Europe/Berlin or UTC.")
    if name == DEFAULT and values != RouteValues(receivers=values.receivers, escalations=values.escalations):
        problems.add("name", "The default route matches every alert at all hours: change only its receivers.")
    _check_escalations(values, problems)
    if name != DEFAULT and not values.receivers:
        problems.add("receivers", "Choose one receiver or more.")
    if len(values.receivers) > MAX_RECEIVERS:
        problems.add("receivers", f"Choose at most {MAX_RECEIVERS} receivers.")


def _check_version(environment: str, name: str, row: Route | None, expected: int | None) -> None:
    if expected is None or expected == version_of(row):
        return
    entries = Entry.objects.filter(environment=environment, target_kind="route", target_name=name)
    latest = entries.order_by("-pk").first()
    raise EditConflict(
        expected_version=expected,
        current_version=version_of(row),
        changed={},
        by=latest.actor if latest else "",
        at=latest.at if latest else None,
    )


def _check_receivers(environment: str, values: RouteValues, problems: Problems) -> None:
    named = {*values.receivers, *(name for _, names in values.escalations for name in names)}
    known = Receiver.objects.filter(environment=environment, name__in=named)
    missing = named - set(known.values_list("name", flat=True))
    if missing:
        problems.add("receivers", f"There is no receiver {sorted(missing)[0]!r}.")


def _check_escalations(values: RouteValues, problems: Problems) -> None:
    minutes = [after_min for after_min, _ in values.escalations]
    for after_min in minutes:
        problems.whole("escalations", after_min, 1, LONGEST_ESCALATION_MIN)
    if minutes != sorted(set(minutes)):
        problems.add("escalations", "Give each step more minutes than the step before.")
    if len(minutes) > MAX_ESCALATIONS:
        problems.add("escalations", f"Use at most {MAX_ESCALATIONS} steps.")
    if not all(0 < len(names) <= MAX_RECEIVERS for _, names in values.escalations):
        problems.add("escalations", f"Name 1 to {MAX_RECEIVERS} receivers for each step.")


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _number(rows: list[Route]) -> None:
    for place, row in enumerate(rows, 1):
        if row.place != place:
            row.place = place
            row.save(update_fields=["place"])


def _audit_values(row: Route) -> dict[str, object]:
    return {
        "place": row.place,
        "owner": row.owner,
        "least_level": row.least_level,
        "least_severity": row.least_severity,
        "hours": hours_of(row),
        "receivers": ", ".join(row.steps[0][1]),
        "escalations": escalations_of(row),
    }
