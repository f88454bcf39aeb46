"""People and receivers that get alerts of level 3: receivers, routes and mutes, as Postgres last knew them.

A plan holds rows, not a decision: routes depend on the hour, and the same functions read them.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django.db.models import F
from django.db.models.functions import Now
from msgspec import Struct

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Evaluation, Mute, Receiver, Route
from controlplane.alerts.people.routing import (
    AddressBook,
    default_last,
    later_steps,
    names_of,
    refusal_of,
    route_of,
)
from controlplane.alerts.state.mutes import mute_of
from controlplane.fleet.live import FIGURES_FRESH_FOR
from controlplane.fleet.models import Figures
from controlplane.policies.models import Environment

#: The level of alerts that need a person at once.
LEVEL = 3

_RECEIVER = (
    *("pk", "name", "url", "least_level", "least_severity", "secret_version", "old_secret_until"),
    "disabled_because",
)
_ROUTE = (
    *("name", "place", "owner", "least_level", "least_severity", "days", "begins", "ends", "zone"),
    "steps",
)
_MUTE = (
    *("pk", "rule", "dependency", "pod", "reason", "by", "starts_at", "ends_at", "weekly"),
    "skipped_until",
)

Fields = dict[str, Any]


class EmergencyPlan(Struct, frozen=True, kw_only=True):
    """The receivers, routes and mutes of one environment. Moments are unix seconds."""

    environment: str
    #: When Postgres was read.
    at: float
    receivers: list[Fields] = []
    routes: list[Fields] = []
    mutes: list[Fields] = []
    #: Alerts of level 3 that receivers know of.
    known: list[str] = []
    #: The gateways that reported then.
    gateways: list[str] = []


class Reading(Struct, frozen=True, kw_only=True):
    plans: dict[str, EmergencyPlan]
    #: Environment -> seconds since its alerts were evaluated; without those that never were.
    quiet_s: dict[str, float]


def read_plans(now: float) -> Reading:
    """The plans of all environments, in seven queries. Raises ``django.db.Error``."""
    receivers = _by_environment(Receiver.objects.order_by("name"), _RECEIVER)
    routes = _by_environment(Route.objects.order_by("place", "pk"), _ROUTE)
    moment = datetime.fromtimestamp(now, UTC)
    mutes = _by_environment(
        (
            mute
            for mute in Mute.objects.filter(ended_at=None).order_by("pk")
            if mute.weekly or mute.ends_at > moment
        ),
        _MUTE,
    )
    known: dict[str, list[str]] = defaultdict(list)
    notified = Alert.objects.filter(level=LEVEL).exclude(state=AlertState.RESOLVED).exclude(notified="")
    for environment, key in notified.values_list("environment", "key").order_by("key"):
        known[environment].append(key)
    fresh = Figures.objects.filter(at__gte=Now() - FIGURES_FRESH_FOR)
    gateways = sorted(set(fresh.values_list("gateway", flat=True)))
    plans = {
        slug: EmergencyPlan(
            environment=slug,
            at=now,
            receivers=receivers[slug],
            routes=routes[slug],
            mutes=mutes[slug],
            known=known[slug],
            gateways=gateways,
        )
        for slug in Environment.objects.order_by("slug").values_list("slug", flat=True)
    }
    ages = Evaluation.objects.annotate(age=Now() - F("at")).values_list("environment", "age")
    return Reading(plans=plans, quiet_s={slug: max(0.0, age.total_seconds()) for slug, age in ages})


def receivers_of(plan: EmergencyPlan, alert: Alert, at: datetime) -> tuple[list[Receiver], list[list[Any]]]:
    """The receivers that get the alert now, and the later steps of its route as in ``Alert.escalations``."""
    book = _book(plan)
    facts = book.facts_of(alert)
    route = route_of(book.routes, facts, at)
    names = set(names_of(route, 0, book.receivers))
    wanted = [row for row in book.receivers if row.name in names and not refusal_of(row, facts)]
    return wanted, later_steps(route, at, book.receivers)


def is_muted(plan: EmergencyPlan, alert: Alert, at: datetime) -> bool:
    return mute_of([Mute(**_parsed(fields)) for fields in plan.mutes], alert, at) is not None


def receiver_rows(plan: EmergencyPlan) -> list[Receiver]:
    return [Receiver(**_parsed(fields)) for fields in plan.receivers]


def _book(plan: EmergencyPlan) -> AddressBook:
    routes = [Route(environment=plan.environment, **fields) for fields in plan.routes]
    return AddressBook(
        receivers=receiver_rows(plan),
        routes=default_last(plan.environment, routes),
        # No alert of level 3 is about a dependency.
        owners={},
    )


def _by_environment(rows: Iterable[Any], names: tuple[str, ...]) -> defaultdict[str, list[Fields]]:
    found: defaultdict[str, list[Fields]] = defaultdict(list)
    for row in rows:
        fields = {name: getattr(row, name) for name in names}
        found[row.environment].append(
            {
                name: value.timestamp() if isinstance(value, datetime) else value
                for name, value in fields.items()
            }
        )
    return found


_MOMENTS = ("old_secret_until", "starts_at", "ends_at", "skipped_until")


def _parsed(fields: Fields) -> Fields:
    moments = {
        name: datetime.fromtimestamp(fields[name], UTC) for name in _MOMENTS if fields.get(name) is not None
    }
    return fields | moments
