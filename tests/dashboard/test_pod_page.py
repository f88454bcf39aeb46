"""The page of a pod: who it is, and breakers and shares as it sees them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from fleet_rows import breaker, put_server
from shown import text_of

from controlplane.accounts.models import AgentToken
from controlplane.fleet.models import Server
from controlplane.shares.models import Piece
from controlplane.status.read_facts import read_facts
from dashboard.live.pod_page import MAX_DIFFERING, MAX_LIKE_THE_FLEET
from dashboard.live.topics import PAGES, Topic, fragments


def page(log_in: Any, name: str = "vera", pod: str = "web-1") -> str:
    answer = log_in(name).get(f"/servers/{pod}")
    assert answer.status_code == 200
    return str(answer.content.decode())


def pods(log_in: Any) -> str:
    return str(log_in("vera").get("/servers").content.decode())


def put_token(**columns: Any) -> None:
    usual = {"name": "shop pods", "selector": "abc123", "digest": "0" * 64, "environment": "production"}
    ends = datetime.now(UTC) + timedelta(days=300)
    AgentToken.objects.create(**{**usual, "expires_at": ends} | columns)


def test_breakers_that_the_pod_sees_differently_are_marked_and_come_first(log_in: Any) -> None:
    put_server("web-1", breakers=[breaker("payments-api"), breaker("search", "open", local=True)])
    text = text_of(page(log_in))
    assert "Breakers as this pod sees them 1 differs from the fleet" in text
    assert re.search(r"search Open decides alone .* Closed differs", text)
    assert text.index("search Open") < text.index("payments-api Closed")
    put_server("web-1", breakers=[breaker("payments-api"), breaker("search")])
    assert "all as the fleet sees them" in text_of(page(log_in))
    put_server("web-1", breakers=[])
    assert "it has not called a dependency yet" in text_of(page(log_in))


def test_a_breaker_that_is_not_configured_any_more_is_no_error(log_in: Any) -> None:
    put_server("web-1", breakers=[breaker("retired")])
    assert "not configured any more" in text_of(page(log_in))


def test_many_breakers_make_no_long_page(log_in: Any) -> None:
    put_server("web-1", breakers=[breaker(f"dep-{number:03}", local=True) for number in range(400)])
    html = page(log_in)
    assert html.count("decides alone") == MAX_DIFFERING + MAX_LIKE_THE_FLEET
    assert f"{400 - MAX_DIFFERING - MAX_LIKE_THE_FLEET} more, not listed" in text_of(html)


def test_its_token_and_address_are_displayed(log_in: Any) -> None:
    assert "the gateway of its last heartbeat does not record it" in text_of(page(log_in))
    put_server("web-1", token="abc123", address="10.1.2.3", gateway="gw-1")
    assert "abc123, deleted" in text_of(page(log_in))
    put_token(service="shop", name_prefix="web-")
    text = text_of(page(log_in))
    assert "shop pods abc123, expires" in text
    assert "only service shop, pods web-" in text
    assert "10.1.2.3 of its connection to gateway gw-1" in text
    assert 'href="/tokens"' not in page(log_in)
    assert 'href="/tokens"' in page(log_in, "ada")
    for columns, said in (
        ({"expires_at": datetime.now(UTC) + timedelta(days=3)}, "expires soon"),
        ({"expires_at": datetime.now(UTC) - timedelta(days=3)}, "abc123, expired"),
        ({"revoked_at": datetime.now(UTC) - timedelta(days=3)}, "abc123, revoked"),
    ):
        AgentToken.objects.update(**columns)
        assert said in text_of(page(log_in)), said


def test_a_pod_with_an_old_configuration_says_how_far_behind_it_is(log_in: Any) -> None:
    put_server("web-1", epoch=1, revision=read_facts().revision - 1)
    text = text_of(page(log_in))
    assert "behind" in text
    assert f"of {read_facts().revision}, behind" in text
    put_server("web-1", epoch=1, revision=read_facts().revision)
    assert "the newest" in text_of(page(log_in))


def test_a_share_that_the_pod_does_not_report_is_marked(log_in: Any) -> None:
    put_server("web-1", token="abc123", address="10.1.2.3")
    assert "no reserved share" in text_of(page(log_in))
    boot = Server.objects.get(name="web-1").boot
    common = {"environment": "production", "server": "web-1", "boot": boot}
    Piece.objects.create(**common, level=1, place=0, offered=1, terms=7, hold_ms=1)
    assert "but the pod does not report it" in text_of(page(log_in))
    put_server("web-1", token="abc123", share={"level": 1, "place": 0, "terms": 6})
    assert "another reserved share than the one that the gateway granted" in text_of(page(log_in))
    put_server("web-1", token="abc123", share={"level": 1, "place": 0, "terms": 7})
    text = text_of(page(log_in))
    assert "has a reserved share" in text
    assert "granted" not in text
    Piece.objects.all().delete()
    assert "no gateway grants it any more" in text_of(page(log_in))


def test_a_drill_starts_from_the_page_with_the_pod_chosen(log_in: Any) -> None:
    assert "/drills?pod=" not in page(log_in)
    assert 'href="/drills?pod=web-1#h-n"' in page(log_in, "ada")
    form = log_in("ada").get("/drills?pod=web-1").content.decode()
    assert re.search(r'value="web-1" checked', form)
    assert not re.search(r'value="web-2" checked', form)


def test_a_pod_that_left_is_displayed_as_last_known(log_in: Any) -> None:
    ago = datetime.now(UTC) - timedelta(hours=3)
    put_server("web-1", state="gone", last_seen_at=ago, breakers=[breaker("search")])
    text = text_of(page(log_in))
    assert "last known" in text
    assert "gone" in text


def test_values_of_a_silent_pod_are_not_those_of_now(log_in: Any) -> None:
    """The page said "connected" and "ready", and the list the time of its mode as its silence."""
    seen = datetime.now(UTC) - timedelta(seconds=46)
    load = {"pressure": 10, "p95_ms": 53, "cpu": 50}
    put_server("web-1", state="unknown", last_seen_at=seen, mode_cause="connected", load=load)
    text = text_of(page(log_in))
    last = f"last known at {seen:%H:%M:%S} UTC"
    assert f"web-1 no heartbeat. Silent since {seen:%H:%M:%S}, {last}." in text
    assert "Its mode was shared" in text
    assert f"Load {last}" in text
    assert "connected" not in text
    assert "3 pods, 1 silent revision" in text
    row = text_of(re.findall(r'<tr[^>]* id="srv-web-1".*?</tr>', pods(log_in), re.DOTALL)[0])
    assert f"No heartbeat {last} silent since {seen:%H:%M:%S} unknown" in row
    assert 'class="st-open is-old" id="srv-web-1"' in pods(log_in)


def test_the_page_is_live(log_in: Any) -> None:
    log_in("vera")
    from controlplane.alerts.state.evaluate import FirstSeen
    from dashboard.live.history import History
    from dashboard.live.overview import build
    from dashboard.live.pages import page_of

    topic, history = Topic(page="server", role="viewer", key="web-1"), History()
    live = build(read_facts(), history, FirstSeen())
    drawn = page_of(topic, live, history)
    found = {one.target: one.html(drawn.context) for one in fragments(topic, drawn.context)}
    assert {"verdict", "load", "sees", "identity"} <= found.keys()
    for target in ("verdict", "load", "sees", "identity"):
        assert f'id="{target}"' in found[target]
    other = page_of(Topic(page="server", role="viewer", key="none"), live, history)
    assert "sees" not in {one.target for one in fragments(other.topic, other.context)}
    assert "server" in PAGES


def test_the_api_reports_them_too(log_in: Any) -> None:
    put_server("web-1", token="abc123", address="10.1.2.3", share={"level": 1, "place": 0, "terms": 7})
    found = log_in("vera").get("/api/v1/production/servers/web-1").json()
    assert found["token"] == "abc123"
    assert found["address"] == "10.1.2.3"
    assert found["share"] == {"level": 1, "place": 0, "terms": 7}


def test_a_sidecar_of_a_node_says_what_it_does_not_protect(log_in: Any) -> None:
    put_server("web-1", serves_node=False)
    assert "decides for all pods of a node" not in text_of(page(log_in))
    assert "serves a node" not in text_of(pods(log_in))
    put_server("web-1", serves_node=True)
    assert "So it has no bulkhead, no local rate and no shedding" in text_of(page(log_in))
    assert "serves a node" in text_of(pods(log_in))
