"""Pages show which part of the protection only observes, and what spares a pod."""

from dataclasses import replace
from typing import Any

import pytest
from fleet_rows import put_server

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.editing import edits
from controlplane.fleet.call_figures import CallFigures
from controlplane.fleet.live import FleetFigures
from controlplane.policies.protection import CALL, changed
from controlplane.status.facts import Dependency, Facts, Observing, PodLoad, Server
from controlplane.status.read_facts import read_facts
from controlplane.validation import Problems
from dashboard.live.history import History
from dashboard.live.overview import build
from dashboard.live.pages import page_of
from dashboard.live.topics import Topic, fragments
from tests.people import ADA, OLGA

NOW = 1_795_144_367.0
DAY = 86_400
SHEDDING = Observing(part="shedding", until=NOW + 60, by="ada", reason="Watch <first>")
RETRIES = Observing(part="retry", until=NOW + DAY, by="bob")
UNREADY = PodLoad(pressure=960, level="shed_hard", cause="1,200 calls wait", waiting=1_200, unready=True)
ASKS = PodLoad(pressure=950, level="shed", cause="the event loop is late", asks_unready=True)
BUSY = PodLoad(cpu=950, observed_per_s=2.5)


def pod(name: str, load: PodLoad | None, **fields: Any) -> Server:
    return Server(name=name, service="shop", last_seen=NOW, epoch=1, revision=7, load=load, **fields)


def facts(*observing: Observing, **fields: Any) -> Facts:
    usual: dict[str, Any] = {
        "now": NOW,
        "as_of": NOW,
        "epoch": 1,
        "revision": 7,
        "servers": (
            pod("web-1", UNREADY),
            pod("web-2", ASKS),
            pod("web-3", BUSY),
            pod("web-4", PodLoad()),
            pod("web-5", None),
            pod("web-6", UNREADY, state="offline"),
        ),
        "pod_protection": {"shedding": {}, "readiness": {}},
        "observing": observing,
        "dependencies": (
            Dependency(name="payments-api", protection=changed(Problems(), {}, {"retry": {}}, CALL)),
        ),
        "figures": FleetFigures(gateways=1, protection={"payments-api": CallFigures(observed_per_s=1.5)}),
    }
    return Facts(**{**usual, **fields})


def drawn(page: str, some: Facts, role: str = "viewer") -> dict[str, str]:
    live = build(some, History(), FirstSeen())
    topic = Topic(page=page, role=role, key="payments-api")  # type: ignore[arg-type]  # one of its roles
    context = page_of(topic, live, History()).context
    return {one.target: " ".join(one.html(context).split()) for one in fragments(topic, context)}


def test_the_page_of_the_pods_lists_unhealthy_pods_and_what_spares_them() -> None:
    html = drawn("servers", facts())["protection"]
    assert "shedding, readiness" in html
    for words in (
        "1,200 calls wait",
        "unready, gets no new traffic; sheds all but the highest tier",
        "asks to be unready, but no gateway agrees; sheds the lowest tiers",
        "CPU is at 95 %",
        "serves all traffic: it neither sheds nor asks to be unready",
    ):
        assert words in html, words
    assert html.index("web-1") < html.index("web-3") < html.index("web-2"), "unhealthy ones are first"
    for name in ("web-4", "web-5", "web-6"):
        assert name not in html


def test_pods_are_unhealthy_on_the_page_above_the_threshold_of_the_alert() -> None:
    raised = drawn("servers", replace(facts(), alert_rules={"unhealthy": {"warning": 100.0}}))["protection"]
    assert "CPU is at 95 %" not in raised
    half = PodLoad(waiting=600)
    lowered = facts(servers=(pod("web-1", half),), alert_rules={"unhealthy": {"warning": 0.5}})
    assert "600 calls wait" in drawn("servers", lowered)["protection"]


def test_the_list_is_bounded() -> None:
    many = tuple(pod(f"web-{number:03}", UNREADY) for number in range(300))
    html = drawn("servers", facts(servers=many))["protection"]
    assert html.count("<tr") == 21
    assert "and 280 more" in html


@pytest.mark.django_db
def test_a_part_that_only_observes_is_on_the_pages_with_its_end_its_author_and_what_it_would_refuse() -> None:
    some = facts(SHEDDING, RETRIES)
    for page in ("servers", "breaker"):
        html = drawn(page, some)["protection"]
        assert "Shedding is in trial mode" in html
        assert "until 03:13 UTC on 20 November, by ada" in html
        assert "Watch &lt;first&gt;" in html
        assert "It would have refused 2.5 requests/s." in html
        assert "Retry budgets are in trial mode" in html
        assert "They would have refused 1.5 calls/s." in html
    assert "would shed all but the highest tier" in drawn("servers", some)["protection"]
    assert "1.5 calls/s to it would be refused" in drawn("breaker", some)["protection"]
    # And in the headline and the alerts of the overview.
    live = build(some, History(), FirstSeen())
    assert {"observing:shedding", "observing:retry"} <= {alert.key for alert in live.alerts}
    assert "Shedding is in trial mode" in " ".join(one for one in drawn("overview", some).values())


@pytest.mark.django_db
def test_what_is_over_or_off_is_not_displayed() -> None:
    over = Observing(part="shedding", until=NOW - 1)
    no_bulkhead = Observing(part="bulkhead", until=NOW + 60)
    for page in ("servers", "breaker"):
        assert "observe" not in drawn(page, facts(over, no_bulkhead))["protection"].lower().replace(
            "observed only:", ""
        )


def test_two_parts_of_calls_are_counted_together() -> None:
    both = changed(Problems(), {}, {"retry": {}, "bulkhead": {}}, CALL)
    some = facts(
        RETRIES,
        Observing(part="bulkhead", until=NOW + DAY),
        dependencies=(Dependency(name="payments-api", protection=both),),
    )
    assert (
        "Retry budgets and bulkheads together would have refused 1.5 calls/s."
        in drawn("servers", some)["protection"]
    )


def test_only_admins_get_the_link_to_the_form() -> None:
    assert "/protection" in drawn("servers", facts(), role="admin")["protection"]
    assert "/protection" not in drawn("servers", facts(), role="operator")["protection"]


@pytest.mark.django_db(transaction=True)
def test_the_facts_name_who_let_a_part_observe(production: str) -> None:
    common: dict[str, Any] = {"environment": production}
    edits.set_pod_protection(
        protection={"shedding": {}}, observe_for_s={"shedding": 60}, reason="Watch first", actor=ADA, **common
    )
    # A later change of something else does not change who it was.
    edits.set_pod_protection(
        protection={"shedding": {"queue_max": 50}}, reason="Long queues are slow", actor=OLGA, **common
    )
    found = read_facts(production)
    assert found.pod_protection["shedding"]["queue_max"] == 50
    (one,) = found.observing
    assert (one.part, one.by, one.reason) == ("shedding", "ada", "Watch first")
    assert one.since is not None
    assert 0 < one.until - found.now <= 60
    assert found.observing_now == (one,)
    edits.set_pod_protection(
        protection={}, observe_for_s={"shedding": 0}, reason="Long queues are slow", actor=OLGA, **common
    )
    assert read_facts(production).observing == ()


@pytest.mark.django_db(transaction=True)
def test_the_page_of_a_pod_says_that_shedding_only_observes(log_in: Any, production: str) -> None:
    edits.set_pod_protection(
        environment=production,
        protection={"shedding": {}},
        observe_for_s={"shedding": 3600},
        reason="Watch first",
        actor=ADA,
    )
    put_server(
        "web-1", load={"pressure": 820, "level": "shed", "cause": "94 calls wait", "observed_per_s": 3.0}
    )
    page = " ".join(log_in("vera").get("/servers/web-1").content.decode().split())
    assert "would shed the lowest tiers, but is in trial mode" in page
    assert "3 requests/s would be refused" in page or "3.0 requests/s would be refused" in page
