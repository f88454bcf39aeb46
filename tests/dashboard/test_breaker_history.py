"""The history of a breaker: transitions in the words of overrides, and the tabs of its dependency."""

from typing import Any

import pytest
from shown import text_of
from test_incidents import CLOSED, NOW, moved, picture

from controlplane.status.facts import Change, Override
from dashboard.live.history import History
from dashboard.live.pages import page_of
from dashboard.live.topics import Topic, fragments

FORCED = moved(NOW - 100, "open", "open", "forced_open", actor="olga")
EXTENDED = moved(NOW - 60, "open", "open", "forced_open", actor="omar")
PROBING = moved(NOW - 10, "open", "half_open", "open_time_over", server="web-3")


def ended(at: float) -> Change:
    return Change(
        at=at, actor="olga", human=True, action="breaker.released", target="payments-api", reason="It is well"
    )


def over(at: float, by: str) -> dict[str, tuple[Override, ...]]:
    """The override of ``FORCED``, which ended."""
    past = Override(
        mode="forced_open",
        reason="why",
        actor="olga",
        expires_at=at,
        made_at=NOW - 101,
        revision=3,
        ended_by=by,
    )
    return {"payments-api": (past,)}


def rows(*transitions: Any, changes: tuple[Change, ...] = (), **more: Any) -> str:
    live = picture(view=CLOSED, transitions=transitions, changes=changes, **more)
    topic = Topic(page="breaker_history", role="viewer", key="payments-api")
    context = page_of(topic, live, History()).context
    drawn = {one.target: one.html(context) for one in fragments(topic, context)}
    return text_of(drawn["transitions"])


@pytest.mark.django_db
def test_a_forced_opening_and_its_end_are_in_the_words_of_the_override():
    """It read "still Open", and "open time over on shop-3" after an operator ended the override."""
    text = rows(PROBING, EXTENDED, FORCED, changes=(ended(NOW - 12),))
    assert "Forced open \u2192 Half-open an operator ended the override, olga: It is well" in text
    assert "Forced open an operator extended the override, omar" in text
    assert "Open \u2192 Forced open override: forced open, olga" in text
    assert "still" not in text
    assert "open time over" not in text


@pytest.mark.django_db
def test_an_override_that_expires_is_not_ended_by_an_operator():
    past = over(NOW - 8, "fuseboard")
    text = rows(PROBING, FORCED, changes=(ended(NOW - 500),), past_overrides=past)
    assert "Forced open \u2192 Half-open the override expired on web-3" in text


@pytest.mark.django_db
def test_an_override_whose_end_is_no_longer_among_the_newest_changes_is_not_said_to_expire():
    """It read "the override expired" after 60 other changes, although an operator ended it."""
    text = rows(PROBING, FORCED, past_overrides=over(NOW - 12, "omar"))
    assert "Forced open \u2192 Half-open an operator ended the override, omar" in text
    for unknown in ({}, over(NOW + 30, "omar")):
        assert "Half-open the override is over on web-3" in rows(PROBING, FORCED, past_overrides=unknown)


@pytest.mark.django_db
def test_a_reset_of_a_closed_breaker_is_no_extension():
    text = rows(moved(NOW - 5, "closed", "closed", "reset", actor="olga"))
    assert "Closed reset by an operator, olga" in text


def test_the_tabs_lead_to_every_page_of_a_dependency(production: str, log_in: Any) -> None:
    pages = {
        "State": "/breakers/payments-api",
        "Settings": "/breakers/payments-api/settings",
        "Limits": "/edit/dependency?key=payments-api",
        "Backlog": "/backlogs/payments-api",
        "History": "/breakers/payments-api/history",
    }
    ada = log_in("ada")
    for word, path in pages.items():
        html = ada.get(path).content.decode()
        for link in pages.values():
            assert f'href="{link}"' in html, (path, link)
        assert f'aria-current="page">{word}</a>' in html
    html = log_in("vera").get("/breakers/payments-api").content.decode()
    assert pages["Settings"] not in html, "viewers cannot open it"
    assert pages["History"] in html


def test_a_link_to_a_longer_time_leads_to_the_history(production: str, log_in: Any) -> None:
    vera = log_in("vera")
    answer = vera.get("/breakers/payments-api?range=24h")
    assert (answer.status_code, answer["Location"]) == (302, "/breakers/payments-api/history?range=24h")
    assert "State, last 24 h" in vera.get(answer["Location"]).content.decode()
    assert "No such breaker" in vera.get("/breakers/unknown/history").content.decode()


def test_the_history_lists_edits_and_overrides_of_the_dependency(production: str, log_in: Any) -> None:
    olga = log_in("olga")
    given = {"act": "forced_open", "reason": "CHG-4821 vendor maintenance", "lasts": "10"}
    assert olga.post("/breakers/payments-api", given).status_code == 302
    given |= {"act": "extend", "lasts": "30"}
    assert olga.post("/breakers/payments-api", given).status_code == 302
    text = text_of(olga.get("/breakers/payments-api/history").content.decode())
    listed = text[text.index("Changes and overrides") :]
    assert listed.index("Override extended") < listed.index("Override set")
    assert "CHG-4821 vendor maintenance" in listed
    assert "Dependency added" in listed
