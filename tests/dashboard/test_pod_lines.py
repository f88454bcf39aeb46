"""S1.7: an outage of Redis, and the breakers that pods run themselves, leave a trace on the pages."""

from dataclasses import replace

import pytest
from fleet_rows import breaker, put_server
from shown import text_of
from test_incidents import CLOSED, FAILING, NOW, facts

from controlplane.alerts.evaluate import FirstSeen
from controlplane.status.facts import PodEvent
from dashboard.live.history import History
from dashboard.live.overview import build
from dashboard.live.pages import page_of
from dashboard.live.pod_lines import own_transitions, pod_lines
from dashboard.live.topics import Topic, fragments


def event(ago, server, detail, kind="mode"):
    return PodEvent(at=NOW - ago, server=server, kind=kind, detail=detail)


def said(*events):
    return [f"{line.pods} {line.did}" for line in pod_lines(events)]


OUTAGE = (
    event(9, "web-2", "ramping -> shared"),
    event(10, "web-1", "ramping -> shared"),
    event(20, "web-2", "local -> ramping"),
    event(21, "web-1", "local -> ramping"),
    event(60, "web-2", "payments-api: open -> half_open", kind="breaker"),
    event(90, "web-2", "payments-api: closed -> open", kind="breaker"),
    event(100, "web-2", "shared -> local: connection refused"),
    event(102, "web-1", "shared -> local: connection refused"),
)


def test_pods_that_lose_and_regain_redis_are_two_lines():
    assert said(*OUTAGE) == [
        "2 pods reach Redis again, their limits rise",
        "web-2 probes with its own breaker of payments-api",
        "web-2 opened its own breaker of payments-api",
        "2 pods lost Redis and use local limits: connection refused",
    ]
    assert [line.at for line in pod_lines(OUTAGE)][-1] == NOW - 102


def test_two_outages_are_not_one():
    again = event(500, "web-1", "shared -> local: connection refused")
    assert said(*OUTAGE, again)[-1] == "web-1 lost Redis and uses local limits: connection refused"
    assert len(said(*OUTAGE, again)) == 5


def test_a_drill_and_what_an_older_version_noted_are_readable():
    assert said(event(1, "web-1", "shared -> drill"), event(2, "web-3", "drill -> shared")) == [
        "web-1 began a drill",
        "web-3 uses shared limits again",
    ]
    assert said(event(1, "web-1", "nonsense here"), event(1, "w", "nonsense", kind="breaker")) == []


def test_recent_changes_and_transitions_contain_them():
    live = build(facts(view=CLOSED, transitions=FAILING, pod_events=OUTAGE), History(), FirstSeen())
    assert live.breakers[0].incident is None
    context = page_of(Topic(page="overview", role="viewer"), live, History()).context
    drawn = {
        one.target: one.html(context) for one in fragments(Topic(page="overview", role="viewer"), context)
    }
    assert "2 pods lost Redis and use local limits: connection refused" in text_of(drawn["events"])
    page = page_of(Topic(page="breaker", role="viewer", key="payments-api"), live, History()).context
    own = [one for one in page["timeline"].transitions if one.cause == "own_breaker"]
    assert [(one.before, one.after, one.server) for one in own] == [
        ("open", "half_open", "web-2"),
        ("closed", "open", "web-2"),
    ]
    assert own_transitions(OUTAGE, "search") == []


@pytest.mark.django_db(transaction=True)
def test_a_pods_own_breaker_is_noted_once_whatever_its_counters_do(production):
    from controlplane.fleet.models import Event
    from controlplane.status.read_facts import read_facts

    own = breaker("payments-api", "open", local=True)
    put_server("web-1", breakers=[breaker("payments-api"), breaker("search")])
    put_server("web-1", breakers=[own, breaker("search", local=True)])
    put_server("web-1", breakers=[own | {"window_calls": 77}, breaker("search", local=True)])
    put_server("web-1", breakers=[breaker("payments-api"), breaker("search", "open")])
    noted = [row.detail for row in Event.objects.filter(kind="breaker").order_by("id")]
    # The fleet's breaker of search opened as the pod came back: its transition shows that.
    assert noted[:2] == ["payments-api: closed -> open", "payments-api: open -> closed"]
    put_server("web-2", mode="local", mode_cause="connection refused")
    assert {(one.server, one.kind) for one in read_facts().pod_events} == {
        ("web-1", "breaker"),
        ("web-2", "mode"),
    }


@pytest.mark.django_db(transaction=True)
def test_a_pod_cannot_fill_the_table_with_its_own_breakers(production):
    from controlplane.fleet.models import Event

    names = [f"made-up-{number}" for number in range(500)]
    put_server("web-1", breakers=[breaker(name, "open", local=True) for name in names])
    assert Event.objects.filter(kind="breaker").count() == 10


def test_the_state_of_the_fleet_does_not_depend_on_pods_own_breakers():
    plain = build(facts(), History(), FirstSeen()).breakers[0]
    noted = build(replace(facts(), pod_events=OUTAGE), History(), FirstSeen()).breakers[0]
    assert (plain.since, plain.why) == (noted.since, noted.why)
