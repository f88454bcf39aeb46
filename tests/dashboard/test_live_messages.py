"""What a tick sends to a browser: at most a bound, and always what brings the page to the present state."""

import random
import re
from dataclasses import replace

import pytest
from msgspec import structs

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.fleet.call_figures import TIERS, CallFigures, SlotFigures
from controlplane.fleet.live import DependencyFigures, FleetFigures, RuleFigures
from controlplane.status.facts import BreakerSeen, Dependency, Facts, Server
from dashboard.live import drawing
from dashboard.live.drawing import SentFragments, draw
from dashboard.live.history import History
from dashboard.live.overview import build
from dashboard.live.pages import page_of
from dashboard.live.topics import Topic
from tests.controlplane.alerts.backlog_alert_cases import NOW_US
from tests.controlplane.alerts.backlog_alert_cases import seen as backlog_seen
from tests.dashboard.live_page import LivePage, unpacked

NOW = 1_795_144_367.0
PAGES = ("overview", "breakers", "servers", "backlogs", "bulkheads", "retries", "limits")


def figures(chance):
    return DependencyFigures(calls_per_s=chance.random() * 900, failures_per_s=chance.random() * 90)


def calls(chance):
    tiers = tuple(SlotFigures(tier, 9, chance.randrange(9), 0, 1, chance.random(), 0) for tier in TIERS)
    return CallFigures(tiers=tiers, callers=4, first_calls_per_s=9, retries_per_s=chance.random())


def fleet(chance, now, *, pods=40, breakers=20):
    """A fleet of which everything differs from that of another moment."""
    names = [f"dependency-{number}" for number in range(breakers) if chance.random() < 0.9]
    views = {
        name: BreakerSeen(
            state=chance.choice(("closed", "closed", "open", "half_open")),
            generation=int(now),
            since=now - chance.randrange(600),
            calls=chance.randrange(900),
            failures=chance.randrange(90),
        )
        for name in names
    }
    servers = tuple(
        Server(
            name=f"pod-{number}",
            zone=chance.choice("abc"),
            last_seen=now - chance.randrange(3),
            mode=chance.choice(("shared", "shared", "local")),
            redis_p99_us=chance.randrange(2000),
            epoch=1,
            revision=7,
            breakers=views,
        )
        for number in range(pods)
        if chance.random() < 0.9
    )
    traffic = {name: figures(chance) for name in names}
    own = random.Random(now)
    backlogs = tuple(
        backlog_seen(
            dependency=name,
            read_at=now - own.randrange(3),
            ready=own.randrange(700),
            leased=own.randrange(9),
            waiting_us=own.randrange(10**9),
            asked_us=NOW_US - own.randrange(10**7),
        )
        for name in names
        if own.random() < 0.9
    )
    protection = {name: calls(chance) for name in names}
    rules = [
        RuleFigures(f"tenant {n}", "<b>'\"", chance.random() * 90, chance.random(), 0) for n in range(pods)
    ]
    return Facts(
        now=now,
        as_of=now,
        epoch=1,
        revision=7,
        servers=servers,
        dependencies=tuple(Dependency(name=name) for name in names),
        backlogs=backlogs,
        figures=FleetFigures(
            gateways=1,
            live_servers=len(servers),
            dependencies=traffic,
            protection=protection,
            rules=rules,
        ),
    )


class Stream:
    """One page of one browser, drawn again and again."""

    def __init__(self, page):
        self.topic, self.history = Topic(page=page, role="admin"), History()
        self.sent, self.shown, self.rev = SentFragments(), LivePage(), 0

    def draw(self, facts):
        self.rev += 1
        live = build(facts, self.history, FirstSeen())
        return draw(page_of(self.topic, live, self.history), self.sent, rev=self.rev, announce="")

    def take(self, facts):
        drawing = self.draw(facts)
        self.shown.take(drawing.changed or drawing.whole)
        return drawing

    def shows(self, whole):
        """Whether the page is what this message would make of an empty one."""
        fresh = LivePage()
        fresh.take(whole)
        del fresh.html["tick"]
        # The browser may also keep an item that left the fleet before it was ever in its list.
        same = all(self.shown.html[target] == html for target, html in fresh.html.items())
        return same and all(self.shown.drawn(target) == fresh.drawn(target) for target in fresh.lists)


def waits_since(message):
    return float(re.search(r'data-shown="([0-9.]+)"', unpacked(message)["html"]["tick"])[1])


@pytest.mark.django_db
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("bound", [2_000, 16 * 1024])
def test_no_message_is_longer_than_the_bound_and_the_page_gets_everything(page, bound, monkeypatch):
    monkeypatch.setattr(drawing, "TICK_BYTES", bound)
    chance, stream = random.Random(f"{page} {bound}"), Stream(page)
    stream.take(fleet(chance, NOW))
    for second in range(1, 8):
        drawn = stream.take(fleet(chance, NOW + second))
        assert len(drawn.changed) <= bound
        assert stream.shows(drawn.whole), "who joins now displays the same as who was there"
    last = fleet(chance, NOW + 8)
    stream.take(last)  # adds a second to the history, which the next drawing displays
    for _ in range(200):
        drawn = stream.take(last)
        assert len(drawn.changed) <= bound
        if not stream.sent.waiting:
            break
    assert waits_since(drawn.changed) == last.now
    anew = Stream(page)
    anew.history = stream.history
    assert stream.shows(anew.draw(last).whole)


@pytest.mark.django_db
def test_a_page_of_which_a_change_waits_is_dated_by_it_and_states_come_before_figures(monkeypatch):
    chance, stream = random.Random(1), Stream("breakers")
    before = fleet(chance, NOW, breakers=60)
    names = [one.name for one in before.dependencies]
    stream.take(before)

    def seen(at, opened):
        view = BreakerSeen(
            state="closed", generation=1, since=NOW, calls=1000 + at, failures=chance.randrange(90)
        )
        views = {name: replace(view, failures=chance.randrange(90)) for name in names}
        views |= {name: replace(view, state="open", until=NOW + 99) for name in opened}
        return replace(
            before,
            now=NOW + at,
            servers=(structs.replace(before.servers[0], last_seen=NOW + at, breakers=views),),
        )

    calm = seen(1, ())
    stream.take(calm)
    stream.take(calm)
    assert not stream.sent.waiting
    monkeypatch.setattr(drawing, "TICK_BYTES", 3_300)
    worst = names[-2:]
    drawn = stream.take(seen(2, worst))
    assert stream.sent.waiting, "the bound is too generous for this test"
    assert waits_since(drawn.changed) == NOW + 2
    assert all('class="st-open"' in stream.shown.html[f"row-{name}"] for name in worst)
    later = stream.take(seen(3, worst))
    assert waits_since(later.changed) == NOW + 3, "what has waited is sent before what changed since"


@pytest.mark.django_db
def test_an_item_that_cannot_be_sent_does_not_keep_the_others_waiting(monkeypatch, caplog):
    chance, stream = random.Random(2), Stream("servers")
    before = fleet(chance, NOW)
    stream.take(before)
    monkeypatch.setattr(drawing, "TICK_BYTES", 3_000)
    noise = "".join(chance.choice("0123456789abcdef") for _ in range(20_000))
    first, *others = before.servers
    after = replace(
        before,
        now=NOW + 1,
        servers=(structs.replace(first, zone=noise), *(structs.replace(one, zone="z") for one in others)),
    )
    for _ in range(60):
        drawn = stream.take(after)
        assert len(drawn.changed) <= 3_000
    assert list(stream.sent.waiting) == [f"srv-{first.name}"]
    assert waits_since(drawn.changed) == NOW + 1
    assert "hub.change_too_large" in caplog.text
    assert stream.take(replace(after, now=NOW + 61)).changed is None
    assert noise in stream.shown.html[f"srv-{first.name}"]


def test_the_bound_of_a_tick():
    assert drawing.TICK_BYTES == 16 * 1024
