"""The page of changes: what could explain an incident, from every source."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from shown import text_of

from controlplane.alerts.models import Alert
from controlplane.alerts.people.acknowledge import acknowledge_alert
from controlplane.breakers.models import Transition
from controlplane.breakers.overrides import override_breaker
from controlplane.editing import edits
from controlplane.fleet.models import Event
from controlplane.policies.models import Dependency
from controlplane.schedules.edits import schedule_change
from dashboard.views.history import change_log
from fuseboard.contract.words import OverrideMode
from tests.people import ADA, BOB, OLGA

WHY = "CHG-77 asked for by sales"
NOW = "%Y-%m-%dT%H:%M:%S.%f"


def page(log_in: Any, query: str = "", name: str = "vera") -> str:
    answer = log_in(name).get(f"/changes{query}")
    assert answer.status_code == 200
    return str(answer.content.decode())


def lines(html: str) -> list[str]:
    return [text_of(row) for row in re.findall(r"<tr data-row.*?</tr>", html, re.DOTALL)]


@pytest.fixture
def moved(production: str) -> int:
    number: int = edits.change_tier(
        environment=production,
        tenant="acme-retail",
        tier="free",
        expected_version=None,
        reason=WHY,
        actor=ADA,
    )
    return number


def put_transition(
    after: str = "open", *, seconds: float = 30.0, generation: int = 5, **columns: Any
) -> None:
    dependency = Dependency.objects.get(name="search")
    at = datetime.now(UTC) - timedelta(seconds=seconds)
    Transition.objects.create(
        dependency=dependency,
        generation=generation,
        at=at,
        from_state="closed",
        to_state=after,
        **{"cause": "consecutive", "server": "web-2"} | columns,
    )


def put_alert(**columns: Any) -> None:
    now = datetime.now(UTC)
    usual = {
        "environment": "production",
        "key": "open:search",
        "level": 3,
        "severity": "critical",
        "worst": "critical",
        "state": "firing",
        "true_since": now - timedelta(minutes=5),
        "level_since": now - timedelta(minutes=5),
        "fired_at": now - timedelta(minutes=4),
        "text": "search is open",
        "subject_kind": "breaker",
        "subject_name": "search",
    }
    Alert.objects.create(**{**usual, **columns})


def override(production: str) -> None:
    override_breaker(
        environment=production,
        dependency="payments-api",
        mode=OverrideMode.FORCED_OPEN,
        reason="vendor maintenance",
        expires_at=datetime.now(UTC) + timedelta(hours=1),
        actor=OLGA,
    )


def test_an_edit_says_what_changed_by_whom_and_why_and_can_be_reverted(log_in: Any, moved: int) -> None:
    html = page(log_in, name="ada")
    (line,) = (one for one in lines(html) if WHY in one)
    assert re.search(r"Changed tenant acme-retail *: Tier pro → free ada", line), line
    assert f'href="/revisions/{moved}/revert"' in html
    assert f'href="/revisions/{moved}"' in html
    assert "/revert" not in page(log_in)
    common: dict[str, Any] = {"environment": "production", "expected_revision": None}
    number = edits.revert(**common, number=moved, reason=WHY, actor=BOB).revision
    html = page(log_in, name="ada")
    assert f'href="/revisions/{moved}/revert"' not in html
    assert f'Reverted by <a href="/revisions/{number}">' in html


def test_overrides_breakers_alerts_and_pods_are_in_one_list_by_time(
    log_in: Any, production: str, moved: int
) -> None:
    put_transition()
    put_alert(resolved_at=datetime.now(UTC) - timedelta(minutes=1), state="resolved")
    override(production)
    for number in range(4):
        Event.objects.create(
            environment=production,
            server=f"web-{number}",
            boot="b",
            kind="mode",
            detail=f"shared -> local: cause {number}",
            at=datetime(2026, 1, 1, tzinfo=UTC) if number == 3 else datetime.now(UTC),
        )
    found = lines(page(log_in))
    text = " | ".join(found)
    assert "vendor maintenance" in text
    assert re.search(r"Breaker opened search", text), text
    assert "on web-2" in text
    set_until = r"Override set payments-api forced open, until \d+ \w+ \d\d:\d\d UTC olga vendor"
    assert re.search(set_until, text), text
    assert "Alert search is open" in text
    assert "Alert resolved after 3 min search is open" in text
    assert "Mode changed 3 pods" in text or "Mode changed 2 pods" in text
    assert text.index("vendor maintenance") < text.index("Breaker opened") < text.index("Alert resolved")


def test_an_alert_of_the_past_keeps_its_words(log_in: Any, production: str) -> None:
    """The stored text has the figure of now, and changes while the alert is open."""
    words = {
        "begun_text": "Redis p99 is 18.1 ms",
        "begun_detail": "One pod is slow.",
        "fired_text": "Redis p99 is 19.5 ms",
    }
    put_alert(key="redis-slow", text="Redis p99 is 46.3 ms", detail="Four pods are slow.", **words)
    before = lines(page(log_in, "?kind=alert"))
    Alert.objects.update(text="Redis p99 is 39.3 ms", detail="Nine pods are slow.")
    assert lines(page(log_in, "?kind=alert")) == before
    (line,) = before
    assert "Redis p99 is 19.5 ms" in line
    assert "One pod is slow." in line
    Alert.objects.update(state="resolved", resolved_at=datetime.now(UTC))
    ended, fired = lines(page(log_in, "?kind=alert"))
    assert re.search(r"Alert resolved after 4 min( \d+ s)? Redis p99 is 18.1 ms", ended)
    assert fired == line


def test_filters_are_in_the_address(log_in: Any, production: str, moved: int) -> None:
    put_transition()
    put_alert()
    override(production)
    only = {
        "?kind=override": "vendor maintenance",
        "?kind=alert": "search is open",
        "?kind=breaker": "Breaker opened",
        "?thing=acme-retail&kind=edit": WHY,
        f"?actor={ADA.name}&kind=edit": WHY,
    }
    every = {"vendor maintenance", "search is open", "Breaker opened", WHY}
    for query, said in only.items():
        text = " ".join(lines(page(log_in, query)))
        assert said in text, query
        for other in every - {said}:
            assert other not in text, (query, other)
    assert "Nothing matches these filters" in page(log_in, "?actor=nobody")
    assert "search" in " ".join(lines(page(log_in, "?thing=search")))


def test_the_range_ends_where_it_is_asked_to(log_in: Any, production: str) -> None:
    put_transition(seconds=2 * 3600)
    put_transition("closed", seconds=600, generation=6)
    assert len(lines(page(log_in, "?kind=breaker&period=1h"))) == 1
    to = (datetime.now(UTC) - timedelta(hours=1)).strftime(NOW[:14])
    assert "Breaker opened" in page(log_in, f"?kind=breaker&period=6h&to={to}")
    assert "Breaker closed" not in page(log_in, f"?kind=breaker&period=6h&to={to}")
    assert "enter a date and a time" in page(log_in, "?to=yesterday")
    assert "ranges of up to 24 hours" in page(log_in, "?period=7d")
    assert page(log_in, "?period=99y&kind=nonsense&before=x")


def test_a_schedule_is_listed(log_in: Any, production: str) -> None:
    schedule_change(
        environment=production,
        document={"tenants": {"acme-retail": {"tier": "free"}}},
        due_at=datetime.now(UTC) + timedelta(days=1),
        reason=WHY,
        actor=ADA,
    )
    (line,) = (one for one in lines(page(log_in, "?kind=other")) if WHY in one)
    assert "ada" in line


def test_older_lines_are_on_further_pages_and_none_is_repeated(log_in: Any, production: str) -> None:
    for number in range(130):
        put_alert(
            key=f"open:d{number}",
            text=f"alert number {number}.",
            fired_at=datetime.now(UTC) - timedelta(minutes=number),
        )
    assert pages_of_alerts(log_in) == [f"alert number {number}." for number in range(130)]


def test_no_line_is_lost_between_pages_when_many_have_one_time(log_in: Any, production: str) -> None:
    """One evaluation fires an alert for each of 150 breakers."""
    together = datetime.now(UTC) - timedelta(minutes=5)
    for number in range(170):
        put_alert(
            key=f"open:d{number}",
            text=f"alert number {number}.",
            fired_at=together - timedelta(minutes=max(0, number - 149)),
        )
    seen = pages_of_alerts(log_in)
    assert len(seen) == len(set(seen)) == 170
    assert seen[150:] == [f"alert number {number}." for number in range(150, 170)]
    assert page(log_in, "?before=2026-01-01T00:00&displayed=99999999999999999999")


def pages_of_alerts(log_in: Any) -> list[str]:
    """The alerts of all pages, in order."""
    return [text for html in pages(log_in, "?kind=alert") for text in re.findall(r"alert number \d+\.", html)]


def pages(log_in: Any, query: str) -> list[str]:
    """The page, and all that follow it."""
    found: list[str] = []
    for _ in range(4):
        found.append(page(log_in, query))
        if (older := re.search(r'rel="next" href="/changes(\?[^"]+)"', found[-1])) is None:
            return found
        query = older[1].replace("&amp;", "&")
    raise AssertionError(f"more pages than expected: {query}")


def test_the_number_of_queries_does_not_grow_with_the_edits(
    log_in: Any, moved: int, django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(56) as of_one:
        page(log_in, "?kind=edit")
    for tier in ("pro", "free", "pro", "free"):
        edits.change_tier(
            environment="production",
            tenant="acme-retail",
            tier=tier,
            expected_version=None,
            reason=WHY,
            actor=ADA,
        )
    before = len(of_one)
    with django_assert_max_num_queries(before):
        assert len(lines(page(log_in, "?kind=edit"))) >= 5


def test_a_breaker_that_flaps_is_one_line(log_in: Any, production: str) -> None:
    for number in range(20):
        put_transition("closed" if number % 2 else "open", seconds=400 - number * 10, generation=number)
    (line,) = lines(page(log_in, "?kind=breaker"))
    assert "opened 10 times" in line


TABS = {
    "/changes": "All",
    "/revisions": "Edits",
    "/requests": "Waiting for approval",
    "/schedules": "Scheduled",
    "/audit": "Audit",
}


@pytest.mark.parametrize("path", TABS)
def test_five_lists_are_tabs_with_what_waits_and_each_has_its_name_in_the_side_bar(
    log_in: Any, production: str, path: str
) -> None:
    """They were five entries of the side bar with five designs."""
    now = datetime.now(UTC)
    for hours in (1, 2):
        schedule_change(
            environment=production,
            due_at=now + timedelta(hours=hours),
            document={"tenants": {"acme-retail": {"tier": "free"}}},
            reason=WHY,
            actor=ADA,
        )
    html = str(log_in("ada").get(path).content.decode())
    name = re.search(rf'<a href="{path}" aria-current="page"[^>]*>\s*([^<]*?)\s*<', html)
    assert name
    assert re.findall(r"<h1>(.*?)</h1>", html) == [name[1]], "the heading is the name in the side bar"
    tabs = html.partition('aria-label="Lists of changes">')[2].partition("</nav>")[0]
    assert re.findall(r'href="([^"]*)"', tabs) == list(TABS)
    here = re.search(r'href="([^"]*)" aria-current="page">\s*([\w ]+?)(?:\s|<)*(?:<|$)', tabs)
    assert here
    assert here[1] == path
    assert re.sub(r"\s+", " ", text_of(tabs)).strip() == "All Edits Waiting for approval Scheduled 2 Audit"
    assert 'href="/import"' in html.partition("</nav>")[2]
    assert 'href="/edit-freeze"' in html
    viewer = str(log_in("vera").get(path).content.decode())
    assert 'href="/import">Import' not in viewer
    assert 'href="/edit-freeze">Freeze edits' not in viewer


def own_event(server: str, change: str, *, seconds: float) -> None:
    Event.objects.create(
        environment="production",
        server=server,
        boot="b",
        kind="breaker",
        detail=f"search: {change}",
        at=datetime.now(UTC) - timedelta(seconds=seconds),
    )


def test_own_breakers_that_flap_are_one_line_beside_the_edits_of_people(log_in: Any, moved: int) -> None:
    """Of the first 30 lines, 28 were about own breakers."""
    Event.objects.all().delete()
    for flap in range(5):
        began = 600.0 - 100 * flap
        own_event("shop-1", "closed -> open", seconds=began)
        own_event("shop-1", "open -> half_open", seconds=began - 20)
        own_event("shop-1", "half_open -> closed", seconds=began - 25)
    (line,) = (one for one in lines(page(log_in, "?period=1h")) if "Own breaker" in one)
    said = r"Own breaker shop-1 opened its own breaker of search 5 times, \d\d:\d\d to \d\d:\d\d"
    assert re.search(said, line), line
    assert any(WHY in one for one in lines(page(log_in, "?period=1h")))
    for thing, number in {"shop-1": 1, "search": 1, "shop-2": 0}.items():
        assert len([one for one in lines(page(log_in, f"?thing={thing}")) if "5 times" in one]) == number


def test_what_flapped_is_listed_once_over_all_pages(log_in: Any, production: str) -> None:
    """The next page began in the middle of it, and listed the rest again."""
    Event.objects.all().delete()
    for flap in range(5):
        own_event("shop-1", "closed -> open", seconds=600.0 - 100 * flap)
    before = (datetime.now(UTC) - timedelta(seconds=350)).isoformat()
    assert any("5 times" in line for line in lines(page(log_in)))
    assert not any("5 times" in line for line in lines(page(log_in, f"?before={before.replace('+', '%2B')}")))


@pytest.mark.parametrize("displayed", [5_000, 10])
def test_every_transition_is_on_a_page_however_many_are_newer(
    log_in: Any, production: str, monkeypatch: Any, displayed: int
) -> None:
    """Every page read the newest of the range, so those before them were on none."""
    monkeypatch.setattr(change_log, "_TRANSITIONS", 61)
    monkeypatch.setattr(change_log, "_DISPLAYED", displayed)
    for number in range(150):
        put_transition(seconds=130.0 * (number + 2), generation=1_000 - number, server=f"pod-{number}.")
    for flap in range(200):
        put_transition("closed" if flap % 2 else "open", seconds=1 + flap / 2, generation=2_000 - flap)
    found = [line for html in pages(log_in, "?kind=breaker") for line in lines(html)]
    assert [re.findall(r"pod-\d+", line) for line in found[1:]] == [[f"pod-{n}"] for n in range(150)]
    assert "opened 100 times" in found[0], "one line, though it has more transitions than are read at first"


def test_own_breakers_of_one_thing_are_read_however_many_others_are_newer(
    log_in: Any, production: str, monkeypatch: Any
) -> None:
    Event.objects.all().delete()
    monkeypatch.setattr(change_log, "_OWN_EVENTS", 3)
    monkeypatch.setattr(change_log, "_TIMES", (1,))
    for number in range(5):
        own_event("shop-2", "closed -> open", seconds=10.0 + number)
    own_event("shop-1", "closed -> open", seconds=600.0)
    assert any("shop-1 opened its own breaker" in line for line in lines(page(log_in, "?thing=shop-1")))


def test_a_new_quota_of_a_tenant_is_compared_with_that_of_its_tier(log_in: Any, production: str) -> None:
    """All fields of the quota were listed as changes, and the limit of the tier before was not."""
    common: dict[str, Any] = {"environment": production, "reason": WHY, "actor": ADA, "quota": "requests"}
    rate: dict[str, Any] = {"window_s": 1, "burst": 30, "failure_policy": "fail_closed"}
    edits.set_tier_quota(tier="pro", limit=30, expected_version=None, **rate, **common)
    edits.set_tenant_quota(tenant="acme-retail", limit=45, expected_version=None, **rate, **common)
    for path in ("/changes", "/revisions"):
        shown = text_of(log_in("vera").get(path).content.decode())
        assert "requests 30 per s, burst 30 (tier pro) → 45 per s, burst 30 (+50 %)" in shown, path
        assert "tenant acme-retail: requests, without Redis" not in shown


def test_an_alert_is_named_by_its_sentence(log_in: Any, production: str) -> None:
    """Its key was read by people: "Alert acknowledged open:search"."""
    put_alert()
    acknowledge_alert(environment=production, number=Alert.objects.get().pk, actor=OLGA, note="")
    for path in ("/changes", "/audit"):
        shown = text_of(log_in("vera").get(path).content.decode())
        assert "Alert acknowledged A breaker is open: search" in shown, path
        assert "open:search" not in shown
