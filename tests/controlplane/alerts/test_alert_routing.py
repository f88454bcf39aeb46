"""An alert goes to the receivers of the first route that matches, and a hole in the routes is found."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now

from controlplane.alerts.delivery.queue import enqueue
from controlplane.alerts.delivery.receivers import remove_receiver
from controlplane.alerts.lifecycle import AlertEvent
from controlplane.alerts.models import Alert, Delivery, Receiver, Route
from controlplane.alerts.people.route_edits import (
    MAX_ROUTES,
    RouteValues,
    hours_of,
    preview_route,
    put_route,
    remove_route,
)
from controlplane.alerts.people.routing import DEFAULT, Facts, holes, in_hours, route_of, routes_of, warnings
from controlplane.alerts.rules.backlogs import EACH_BACKLOG
from controlplane.alerts.rules.every import RULES
from controlplane.alerts.rules.rule import EACH_BREAKER
from controlplane.alerts.rules.traffic import EACH_REFUSED, EACH_VENDOR
from controlplane.alerts.rules.vendor_limits import EACH_FOLLOWED
from controlplane.audit.models import Entry
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.models import Dependency
from tests.controlplane.alerts.delivery.test_alert_deliveries import alert, receiver
from tests.controlplane.alerts.test_alert_evaluator import ADA
from tests.waiting import wait_until

WHY = "the team has a chat"
needs_postgres = pytest.mark.django_db


def route(name: str, *receivers: str, **fields: Any) -> Route:
    return Route(environment="production", name=name, steps=[[0, list(receivers)]], **fields)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "moment", "applies"),
    [
        ({}, "2026-05-04T03:00", True),
        ({"begins": "09:00", "ends": "17:30"}, "2026-05-04T09:00", True),
        ({"begins": "09:00", "ends": "17:30"}, "2026-05-04T17:30", False),
        # Berlin is two hours ahead in May, and one in January.
        ({"begins": "09:00", "ends": "17:30", "zone": "Europe/Berlin"}, "2026-05-04T07:00", True),
        ({"begins": "09:00", "ends": "17:30", "zone": "Europe/Berlin"}, "2026-01-05T07:00", False),
        ({"days": [0]}, "2026-05-04T12:00", True),
        ({"days": [0]}, "2026-05-05T12:00", False),
        # A night belongs to the day that it begins on.
        ({"days": [0], "begins": "22:00", "ends": "06:00"}, "2026-05-04T23:00", True),
        ({"days": [0], "begins": "22:00", "ends": "06:00"}, "2026-05-05T05:59", True),
        ({"days": [0], "begins": "22:00", "ends": "06:00"}, "2026-05-04T05:59", False),
        ({"days": [0], "begins": "22:00", "ends": "06:00"}, "2026-05-05T22:00", False),
    ],
)
def test_a_route_applies_in_its_hours(fields: dict[str, Any], moment: str, applies: bool) -> None:
    assert in_hours(route("day", **fields), at(moment)) is applies


def test_the_first_route_that_matches_decides() -> None:
    routes = [
        route("payments-by-day", "chat", owner="payments", begins="09:00", ends="17:00"),
        route("urgent", "pager", least_severity="critical", least_level=2),
        route(DEFAULT, "mail"),
    ]
    day, night = at("2026-05-04T12:00"), at("2026-05-04T02:00")
    payments = Facts(level=2, severity="critical", owner="payments")
    assert route_of(routes, payments, day).name == "payments-by-day"
    assert route_of(routes, payments, night).name == "urgent"
    assert route_of(routes, Facts(level=2, severity="warning"), day).name == DEFAULT
    assert route_of(routes, Facts(level=1, severity="critical"), day).name == DEFAULT


def test_holes_are_found_at_every_hour() -> None:
    pager = Receiver(name="pager", least_level=2, least_severity="warning")
    shy = Receiver(name="shy", least_level=2, least_severity="critical")
    off = Receiver(name="off", least_level=1, least_severity="warning", disabled_because="410")
    default = route(DEFAULT)
    assert holes([default], [pager]) == []
    assert {hole.facts.severity for hole in holes([default], [shy])} == {"warning"}
    assert {hole.route for hole in holes([default], [off])} == {DEFAULT}
    by_night = route("night", "off", begins="22:00", ends="06:00")
    assert {hole.route for hole in holes([by_night, default], [pager, off])} == {"night"}
    # Every alert has found a receiver before the default is asked.
    assert holes([route("all", "pager"), route(DEFAULT, "off")], [pager, off]) == []
    owned = holes([route("payments", "off", owner="payments"), default], [pager, off], ["payments"])
    assert {(hole.route, hole.facts.owner) for hole in owned} == {("payments", "payments")}


def test_the_rules_about_a_dependency_are_known() -> None:
    scopes = (EACH_BACKLOG, EACH_BREAKER, EACH_FOLLOWED, EACH_REFUSED, EACH_VENDOR)
    about = {rule.key for rule in RULES if rule.scope in scopes}
    assert about == {rule.key for rule in RULES if rule.of_dependency}


@needs_postgres
def test_news_goes_to_the_route_of_the_owner(production: str) -> None:
    for name in ("chat", "pager"):
        receiver(name)
    Dependency.objects.create(environment_id=production, name="payments-api", owner="payments")
    put_route(
        environment=production,
        name="payments",
        values=RouteValues(owner="payments", receivers=("chat",)),
        place=None,
        reason=WHY,
        actor=ADA,
    )
    put_route(
        environment=production,
        name=DEFAULT,
        values=RouteValues(receivers=("pager",)),
        place=None,
        reason=WHY,
        actor=ADA,
    )
    enqueue(alert(subject_kind="breaker", subject_name="payments-api"), AlertEvent.FIRED)
    enqueue(alert("local"), AlertEvent.FIRED)
    sent = Delivery.objects.order_by("created_at").values_list("alert__key", "receiver__name")
    assert list(sent) == [("open:payments-api", "chat"), ("local", "pager")]


@needs_postgres
def test_receivers_that_know_of_an_alert_hear_that_it_worsened_on_another_route(production: str) -> None:
    for name in ("chat", "pager"):
        receiver(name)
    row = _routed(production)
    assert [one.receiver.name for one in enqueue(row, AlertEvent.FIRED)] == ["chat"]
    row.severity = "critical"
    found = enqueue(row, AlertEvent.WORSENED)
    assert sorted((one.receiver.name, one.kind) for one in found) == [
        ("chat", "worsened"),
        ("pager", "fired"),
    ]


def _routed(production: str) -> Alert:
    for name, values in (
        ("urgent", RouteValues(least_severity="critical", receivers=("pager",))),
        (DEFAULT, RouteValues(receivers=("chat",))),
    ):
        put_route(environment=production, name=name, values=values, place=None, reason=WHY, actor=ADA)
    return alert("local", severity="warning")


@needs_postgres
def test_routes_are_ordered_changed_and_removed(production: str) -> None:
    receiver("chat")
    for name in ("a", "b"):
        _put(name)
    _put("c", place=1)
    assert [row.name for row in routes_of(production)] == ["c", "a", "b", DEFAULT]
    _put("c", place=3, owner="payments")
    assert [row.name for row in routes_of(production)] == ["a", "b", "c", DEFAULT]
    _put("a", place=None, owner="search")
    assert routes_of(production)[0].owner == "search"
    remove_route(environment=production, name="a", reason=WHY, actor=ADA)
    assert [(row.name, row.place) for row in routes_of(production)][:2] == [("b", 1), ("c", 2)]
    with pytest.raises(NotFound):
        remove_route(environment=production, name="a", reason=WHY, actor=ADA)
    with pytest.raises(InvalidEdit, match="cannot be removed"):
        remove_route(environment=production, name=DEFAULT, reason=WHY, actor=ADA)
    last = Entry.objects.filter(target_kind="route").order_by("id").last()
    assert last is not None
    assert (last.action, last.target_name, last.before["owner"]) == ("route.removed", "a", "search")


@needs_postgres
def test_the_default_route_can_be_saved_first_when_all_routes_are_used(production: str) -> None:
    receiver("chat")
    Route.objects.bulk_create(
        Route(environment=production, name=f"day-{place}", place=place, steps=[[0, ["chat"]]])
        for place in range(1, MAX_ROUTES + 1)
    )
    with pytest.raises(InvalidEdit, match="at most 50 routes"):
        _put("night")
    _put(DEFAULT)
    assert routes_of(production)[-1].steps == [[0, ["chat"]]]


def _put(name: str, *, place: int | None = None, **fields: Any) -> Route:
    values = RouteValues(**({"receivers": ("chat",)} | fields))
    return put_route(environment="production", name=name, values=values, place=place, reason=WHY, actor=ADA)


@needs_postgres
@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("My route", {}, "name"),
        ("day", {"least_level": 4}, "least_level"),
        ("day", {"least_severity": "bad"}, "least_severity"),
        ("day", {"days": (7,)}, "days"),
        ("day", {"begins": "9:00", "ends": "17:00"}, "begins"),
        ("day", {"begins": "09:00"}, "begins"),
        ("day", {"begins": "09:00", "ends": "09:00"}, "begins"),
        ("day", {"zone": "Mars/Olympus"}, "zone"),
        ("day", {"zone": "../../etc/passwd"}, "zone"),
        ("day", {"zone": "Europe"}, "zone"),
        ("day", {"receivers": ()}, "receivers"),
        ("day", {"receivers": ("gone",)}, "receivers"),
        ("day", {"place": 2}, "place"),
        (DEFAULT, {"owner": "payments"}, "name"),
    ],
)
def test_wrong_values_are_named(production: str, name: str, fields: dict[str, Any], field: str) -> None:
    receiver("chat")
    with pytest.raises(InvalidEdit) as refused:
        _put(name, **fields)
    assert list(refused.value.errors) == [field]
    assert not Route.objects.exists()


@needs_postgres
def test_a_receiver_of_a_route_is_not_removed(production: str) -> None:
    receiver("chat")
    _put("day")
    with pytest.raises(InvalidEdit, match="The route day sends to it"):
        remove_receiver(environment=production, name="chat", reason=WHY, actor=ADA)
    remove_route(environment=production, name="day", reason=WHY, actor=ADA)
    remove_receiver(environment=production, name="chat", reason=WHY, actor=ADA)


def _save() -> None:
    _put("day")


def _remove() -> None:
    remove_receiver(environment="production", name="chat", reason=WHY, actor=ADA)


def _waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_locks WHERE NOT granted")
        return cursor.fetchone() is not None


@needs_postgres
@pytest.mark.parametrize(
    ("first", "second", "says"),
    [(_save, _remove, "The route day sends to it"), (_remove, _save, "There is no receiver 'chat'")],
)
def test_two_admins_leave_no_route_to_a_receiver_that_is_gone(
    production: str, first: Callable[[], None], second: Callable[[], None], says: str
) -> None:
    receiver("chat")

    def other() -> None:
        try:
            second()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            first()
            done = pool.submit(other)
            wait_until(lambda: _waits() or done.done(), "the second admin waits for the first")
        with pytest.raises(InvalidEdit, match=says):
            done.result(timeout=30)


@needs_postgres
def test_a_preview_says_who_gets_an_alert_and_why_others_do_not(production: str) -> None:
    receiver("chat", least_severity="critical")
    receiver("old", disabled_because="The receiver answered 410 Gone.")
    Dependency.objects.create(environment_id=production, name="payments-api", owner="payments")
    _put("payments", owner="payments", receivers=("chat", "old"))
    plan = preview_route(environment=production, rule="open", dependency="payments-api")
    assert (plan.route, plan.owner, plan.level, plan.muted, plan.reached) == (
        "payments",
        "payments",
        2,
        None,
        True,
    )
    [step] = plan.steps
    assert [(one.receiver, one.refusal) for one in step.receivers] == [
        ("chat", ""),
        ("old", "The receiver answered 410 Gone."),
    ]
    plan = preview_route(environment=production, rule="local", severity="warning")
    assert (plan.route, plan.reached) == (DEFAULT, False)
    assert warnings(production) == [
        "No receiver of the route default gets warning alerts of level 2.",
        "No receiver of the route payments gets warning alerts of level 2 about dependencies of payments.",
        "No message reached chat in 30 days. Test them on the page Receivers.",
    ]
    for wrong in (
        {"rule": "x"},
        {"rule": "local", "dependency": "openai"},
        {"rule": "open", "severity": "x"},
    ):
        with pytest.raises(InvalidEdit):
            preview_route(environment=production, **wrong)


@needs_postgres
def test_a_route_for_an_owner_that_no_dependency_has_is_a_warning(production: str) -> None:
    receiver("pager")
    Dependency.objects.create(environment_id=production, name="payments-api", owner="payments-oncall")
    _put("payments", owner="payments", receivers=("pager",))
    said = "The route payments matches no alert: no dependency has the owner payments."
    assert said in warnings(production)
    _put("payments", owner="payments-oncall", receivers=("pager",))
    assert said not in warnings(production)


@needs_postgres
def test_without_a_receiver_the_page_warns(production: str) -> None:
    assert warnings(production) == ["No person is notified: add a receiver."]
    receiver()
    assert warnings(production) == ["No message reached pager in 30 days. Test them on the page Receivers."]
    Delivery.objects.create(
        receiver=Receiver.objects.get(), kind="test", document={}, state="sent", sent_at=Now()
    )
    assert warnings(production) == []


def test_hours_are_written_for_people() -> None:
    assert hours_of(route("a")) == "always"
    assert hours_of(route("a", days=[0, 4])) == "Mon, Fri UTC"
    assert hours_of(route("a", begins="22:00", ends="06:00", zone="Europe/Berlin")) == (
        "every day 22:00\u201306:00 Europe/Berlin"
    )
