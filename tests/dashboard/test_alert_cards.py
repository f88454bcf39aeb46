"""Cards of alerts by cause: what fires, what does not yet or not any more, and one name for each."""

import re
from dataclasses import replace
from typing import Any

import pytest

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.rules.rule import Subject
from controlplane.alerts.rules.texts import past
from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.alerts.state.stored_alerts import StoredAlert
from controlplane.fleet.live import StoreFigures
from controlplane.status.facts import Facts
from dashboard.live.alert_cards import MAX_ALERT_CARDS, MAX_LIVE_CARDS
from dashboard.live.history import History
from dashboard.live.overview import Live, build
from dashboard.live.pages import page_of
from dashboard.live.topics import Topic, fragments
from tests.dashboard.test_headline import NOW, PLANNED, fleet, others, pod, stored_alert, with_figures

DOWN = StoreFigures(asked_per_s=100.0, timeouts_per_s=100.0, primaries=1, primaries_down=1)


def drawn(facts: Facts, *stored: StoredAlert) -> Live:
    return build(facts, History(), FirstSeen(), stored={one.key: one for one in stored})


def names(live: Live) -> list[str]:
    return [card.alert.name for card in live.alert_cards.cards]


def test_redis_down_is_one_card_with_three_more_that_follow() -> None:
    servers = [pod(number, mode="local", mode_since=NOW - 60) for number in (1, 2, 3)]
    live = drawn(fleet(*servers, figures=with_figures(store=DOWN)))
    [card] = live.alert_cards.cards
    assert card.alert.name == "Redis is down"
    assert {one.key for one in card.follow} == {"all-local", "local", "check-failures", "check-errors"}
    assert live.alert_cards.following == {one.key for one in card.follow}
    assert live.verdict.sentences[0].subject == "Redis"


def test_only_what_fires_counts_as_firing() -> None:
    """S2-11: 8 were "firing", 2 of which were pending, and those that recover were left out."""
    refused = fleet(figures=with_figures(refused_per_s=37.0), evaluated_at=NOW - 3)
    pending = drawn(refused)
    [line] = pending.alert_cards.lines
    assert (line.state, line.changes_at, pending.frame.alerts) == ("pending", NOW + 120, 0)
    assert pending.alert_cards.counts == "1 pending"
    fires = stored_alert("429", subject=Subject(kind="tenants"))
    recovers = stored_alert(
        "p99", state=AlertState.RECOVERING, clear_since=NOW - 90, text="Redis p99 is 7 ms"
    )
    live = drawn(refused, fires, recovers)
    assert live.alert_cards.counts == "1 firing, 1 recovering"
    assert (live.frame.alerts, live.frame.alerts_css) == (1, "st-open")
    late = {one.key: one for one in live.alert_cards.lines}["p99"]
    assert (late.state, late.changes_at, late.below) == ("recovering", NOW + 30, True)


def test_incidents_are_active_while_an_alert_of_them_is_true() -> None:
    """The badge of Incidents counted the alerts that fire, and its page listed fewer."""
    closed = {"incident": 4, "incident_closed": True}
    live = drawn(
        fleet(),
        stored_alert("open:payments-api", incident=1),
        stored_alert("open-share:payments-api", id=2, incident=1, severity="warning"),
        stored_alert("p99", id=3, incident=2, state=AlertState.RECOVERING, clear_since=NOW - 90),
        stored_alert("429", id=4, incident=None),
        stored_alert("lag", id=5, **closed),
    )
    assert (live.frame.incidents, live.frame.incidents_css) == (1, "st-open")
    assert live.frame.alerts == 4
    assert drawn(fleet()).frame.incidents == 0


def test_what_is_folded_below_a_card_is_counted_on_it() -> None:
    """A page with "4 firing" had three cards that fired: the fourth was folded below a pending one."""
    servers = [pod(number, mode="local", mode_since=NOW - 60) for number in (1, 2, 3)]
    live = drawn(fleet(*servers, figures=with_figures(store=DOWN)))
    [card] = live.alert_cards.cards
    counted = {state: int(number) for number, state in re.findall(r"(\d+) ([a-z]+)", live.alert_cards.counts)}
    folded = re.findall(r"(\d+) ([a-z]+)", card.follow_words.partition(": ")[2])
    assert card.follow_words.startswith("4 more follow from it: ")
    counted[card.alert.state] -= 1
    assert {state: int(number) for number, state in folded} == {
        state: number for state, number in counted.items() if number
    }
    one = replace(card, follow=card.follow[:1])
    assert one.follow_words == f"1 more follows from it: 1 {card.follow[0].state}"


def test_a_planned_change_is_listed_and_does_not_count() -> None:
    live = drawn(fleet(scheduled=(PLANNED,)))
    assert (live.alert_cards.counts, live.frame.alerts) == ("1 planned", 0)


def test_without_a_worker_an_alert_fires_by_its_time() -> None:
    silent = fleet(*others(state="offline", last_seen=NOW - 31))
    assert drawn(silent).frame.alerts == 1
    assert drawn(replace(silent, evaluated_at=NOW - 3)).frame.alerts == 0


def test_two_alerts_never_have_one_name() -> None:
    """S2-7: "11 % of checks fail" stood there twice."""
    store = StoreFigures(asked_per_s=100.0, timeouts_per_s=11.0)
    live = drawn(fleet(figures=with_figures(store=store)))
    assert {one.name for one in live.alert_cards.lines} == {
        "11 % of requests to Redis fail",
        "More requests to Redis fail than usual: 11 %",
    }
    assert names(live) == ["11 % of requests to Redis fail"]

    def same(key: str, **fields: Any) -> StoredAlert:
        return stored_alert(key, text="The same words", **fields)

    pods = (same("x", pods=("web-1",)), same("y", pods=("web-2",)), same("lag"), same("near:stripe"))
    found = {one.name for one in drawn(fleet(), *pods).alert_cards.lines}
    assert found == {
        *("The same words (web-1)", "The same words (web-2)"),
        *("The same words (rule lag, level 2)", "The same words (stripe)"),
    }


def test_an_alert_of_level_3_offers_no_mute_that_would_not_apply() -> None:
    live = drawn(fleet(), stored_alert("redis-down", level=3), stored_alert("open:stripe"))
    found = {one.key: [minutes for minutes, _ in one.mutes] for one in live.alert_cards.lines}
    assert found == {"redis-down": [30, 60], "open:stripe": [30, 60, 240]}


def test_a_mute_of_what_is_about_no_dependency_or_pod_is_one_of_its_rule() -> None:
    breaker, quota = Subject(kind="breaker", name="stripe"), Subject(kind="quota", name="acme", quota="day")
    live = drawn(
        fleet(),
        *(stored_alert("open:stripe", subject=breaker), stored_alert("quota:acme/day", subject=quota)),
        *(stored_alert("hot-key:acme/day"), stored_alert("runaway-tenant:acme"), stored_alert("lag")),
        stored_alert("pod:web-1", pods=("web-1",)),
    )
    found = {one.key for one in live.alert_cards.lines if one.mutes_rule}
    assert found == {"quota:acme/day", "hot-key:acme/day", "runaway-tenant:acme"}


def test_an_alert_that_recovers_is_in_the_past_tense() -> None:
    """ "payments-api is open" stood there while the breaker was half-open."""
    gone = {"state": AlertState.RECOVERING, "clear_since": NOW - 9}
    live = drawn(fleet(), stored_alert("open:stripe", text="stripe is open", **gone))
    assert names(live) == ["stripe was open"]
    for now, then in (
        ("No heartbeat from web-1", "No heartbeat from web-1"),
        ("11 % of requests to Redis fail", "11 % of requests to Redis failed"),
        ("3 pods have old configuration", "3 pods had old configuration"),
        ("Edits are not published: Postgres was restored", "Edits were not published: Postgres was restored"),
    ):
        assert past(now) == then


def test_every_page_dates_an_alert_alike() -> None:
    """A breaker that opened again within its episode was younger on the overview than on its own page."""
    stored = stored_alert("429", subject=Subject(kind="tenants"), true_since=NOW - 700)
    refused = fleet(figures=with_figures(refused_per_s=37.0), evaluated_at=NOW - 3)
    assert {one.key: one.since for one in drawn(refused, stored).alert_cards.lines}["429"] == NOW - 700


@pytest.mark.parametrize(("severity", "critical"), [("critical", NOW - 60), ("warning", None)])
def test_an_alert_that_changes_its_severity_has_one_beginning(severity: str, critical: float | None) -> None:
    """A warning since 20:28 was critical at 20:30, and a warning again: "Warning, since 20:30"."""
    dates = {"true_since": NOW - 180, "level_since": NOW - 60}
    live = drawn(fleet(), stored_alert("p99", severity=severity, **dates))
    [line] = live.alert_cards.lines
    assert (line.since, line.critical_since) == (NOW - 180, critical)


def test_the_page_of_alerts_sends_a_bounded_number_of_cards() -> None:
    many = [stored_alert(f"near:vendor-{n}", text=f"vendor-{n} is near") for n in range(MAX_LIVE_CARDS + 3)]
    cards = drawn(fleet(), *many).alert_cards
    assert len(cards.live) == MAX_LIVE_CARDS
    assert cards.live + cards.not_live == cards.cards


@pytest.mark.parametrize(("others", "words"), [(1, "1 more alert"), (2, "2 more alerts")])
def test_the_overview_counts_the_alerts_that_it_leaves_out(others: int, words: str) -> None:
    alerts = [stored_alert(f"near:vendor-{n}", text=f"{n} is near") for n in range(MAX_ALERT_CARDS + others)]
    live = drawn(fleet(), *alerts)
    topic = Topic(page="overview", role="viewer")
    context = page_of(topic, live, History()).context
    [conditions] = [one for one in fragments(topic, context) if one.target == "conditions"]
    assert re.findall(r">(\d+ more alerts?)<", conditions.html(context)) == [words]
