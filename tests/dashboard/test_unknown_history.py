"""What the control plane does not know is drawn as unknown, not as closed and not as zero."""

import re
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import structs
from test_incidents import NOW, OPEN, facts, moved

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.fleet.live import DependencyFigures, FleetFigures
from controlplane.status.facts import PodEvent
from controlplane.status.outages import times_without_redis
from dashboard.live.history import POINTS, History
from dashboard.live.overview import build
from dashboard.live.pages import page_of
from dashboard.live.timeline import segments, segments_of
from dashboard.live.topics import LIVE_PAGES, PAGES, Topic, fragments
from dashboard.plots import band, spark

CLOSED = replace(OPEN, state="closed", since=NOW - 60, until=None)
HOUR = (NOW - 3600, NOW)


def kinds(found):
    return [(segment.kind, round(segment.end - segment.start)) for segment in found]


def states(some_facts):
    breaker = build(some_facts, History(), FirstSeen()).breakers[0]
    return kinds(segments_of(breaker, some_facts, *HOUR))


def test_the_time_before_the_fleet_was_known_is_unknown():
    """S1.6: "Closed" was drawn for hours before dependency, fleet and control plane existed."""
    quiet = facts(view=CLOSED, transitions=())
    assert (
        sum(length for kind, length in states(replace(quiet, known_from=NOW - 600)) if kind == "unknown")
        == 3000
    )
    [dependency] = quiet.dependencies
    new = replace(quiet, known_from=NOW - 9000, dependencies=(replace(dependency, added_at=NOW - 100),))
    assert sum(length for kind, length in states(new) if kind == "unknown") == 3500


def test_a_transition_says_what_was_before_it_as_far_as_that_is_known():
    trip = moved(NOW - 300, "closed", "open", "ratio")
    assert states(facts(transitions=(trip,), known_from=NOW - 600)) == [
        ("unknown", 3000),
        ("closed", 300),
        ("open", 300),
    ]
    lost = moved(NOW - 300, "missing", "closed", "reset")
    assert kinds(segments([lost], "closed", None, *HOUR)) == [("unknown", 3300), ("closed", 300)]


def test_a_breaker_that_no_pod_reports_is_unknown_since_the_last_heartbeat():
    silent = facts(view=CLOSED, transitions=())
    gone = tuple(structs.replace(pod, state="offline", last_seen=NOW - 120) for pod in silent.servers)
    assert states(replace(silent, servers=gone)) == [("closed", 3480), ("unknown", 120)]


def lost(ago, server, detail="shared -> local: connection refused"):
    return PodEvent(at=NOW - ago, server=server, kind="mode", detail=detail)


def alone(some_facts, *events, names=("web-0", "web-1"), mode="local"):
    since = {event.server: event.at for event in reversed(events)}
    pods = tuple(
        structs.replace(
            pod,
            mode=mode if pod.name in names else "shared",
            mode_since=since.get(pod.name, NOW - 9000),
            started_at=NOW - 9000,
        )
        for pod in some_facts.servers
    )
    return replace(some_facts, servers=pods, pod_events=events)


def test_the_state_is_unknown_while_no_pod_reaches_redis():
    """S1.6: during an outage, the timeline drew the last known state, or what pods decided alone."""
    trip = moved(NOW - 1000, "closed", "open", "ratio")
    known = facts(transitions=(trip,), known_from=NOW - 9000)
    down = alone(known, lost(60, "web-0"), lost(100, "web-1"))
    assert states(down) == [("closed", 2600), ("open", 940), ("unknown", 60)]
    # One pod that reaches Redis sees the state.
    assert states(alone(known, lost(60, "web-0"), names=("web-0",))) == [("closed", 2600), ("open", 1000)]


@pytest.mark.parametrize("together", [True, False])
def test_a_past_outage_stays_unknown(together):
    if together:
        back = [replace(lost(20, "web-0", "local -> ramping"), pods=2, last=NOW - 18)]
        gone = [replace(lost(100, "web-1"), pods=2, last=NOW - 60)]
    else:
        back = [lost(20, name, "local -> ramping") for name in ("web-0", "web-1")]
        gone = [lost(60, "web-0"), lost(100, "web-1")]
    quiet = facts(view=CLOSED, transitions=(), known_from=NOW - 9000)
    healthy = alone(quiet, *back, *gone, names=())
    assert states(healthy) == [("closed", 3540), ("unknown", 40), ("closed", 20)]
    one = alone(quiet, *back[:1], names=())
    assert times_without_redis(one.servers, [replace(back[0], pods=1), gone[0]], NOW) == []


def test_a_pod_that_starts_during_an_outage_does_not_shorten_it():
    quiet = facts(view=CLOSED, transitions=(), known_from=NOW - 9000)
    down = alone(quiet, lost(60, "web-0"))
    new = structs.replace(down.servers[1], started_at=NOW - 10, mode_since=NOW - 10)
    first = lost(10, "web-1", "local: not connected yet")
    for events in (down.pod_events, (first, *down.pod_events)):
        assert times_without_redis((down.servers[0], new), events, NOW) == [(NOW - 60, NOW)]


def test_pods_that_start_together_make_no_unknown_time():
    """A rolling start drew "unknown from 03:02 to 03:02" over a closed breaker."""
    quiet = facts(view=CLOSED, transitions=(), known_from=NOW - 9000)
    shared = replace(lost(99, "web-0", "local -> shared"), pods=2, last=NOW - 89)
    began = replace(lost(100, "web-0", "local: not connected yet"), pods=2, last=NOW - 90)
    started = alone(quiet, shared, began, names=())
    assert times_without_redis(started.servers, started.pod_events, NOW) == []
    assert {kind for kind, _ in states(started)} == {"closed"}


@pytest.mark.django_db
def test_unknown_time_is_hatched_in_the_timeline_and_blank_in_a_strip():
    some_facts = facts(view=CLOSED, transitions=(), known_from=NOW - 600)
    live = build(some_facts, History(), FirstSeen())
    context = page_of(Topic(page="breaker", role="viewer", key="payments-api"), live, History()).context
    picture = context["timeline"].picture
    assert "seg-unknown" in picture
    assert "unknown from" in picture
    assert "Approximate if the number of pods changed" in picture
    assert band([("stale", 60.0), ("unknown", 20.0), ("closed", 20.0)]).count("<rect") == 1


def traffic(second, **fields):
    figures = FleetFigures(**{"gateways": 1} | fields)
    return replace(facts(figures=figures), now=NOW + second, as_of=NOW + second)


CALLED = {"payments-api": DependencyFigures(calls_per_s=20.0)}


def test_a_series_that_stopped_does_not_end_at_the_right_edge():
    """It ended there with 20/s, 50 s after the last gateway, beside "0/s"."""
    history = History()
    for second in range(110):
        if second < 60:
            history.add(traffic(second, dependencies=CALLED), {"requests": 20.0})
        else:
            history.add(traffic(second, gateways=0), {})
    known = history.known("requests")
    assert len(known) == POINTS
    assert known[-16:] == [None] * 16
    assert known.count(20.0) in (20, 21)
    assert history.marks("payments-api") == " " * POINTS


def test_a_gap_in_a_series_stays_a_gap():
    history = History()
    for second in range(90):
        if not 30 <= second < 60:
            history.add(traffic(second), {"refused": 7.0})
    known = history.known("refused")
    begun = next(place for place, value in enumerate(known) if value is not None)
    gap = known[begun:].index(None)
    assert known[begun + gap : begun + gap + 9] == [None] * 9
    points = history.points("refused")
    assert points[0] == points[-1] == 7.0
    assert points.count(None) in (9, 10)
    area, line, _ = re.findall(r' d="([^"]+)"', spark(points))
    assert (area.count("Z"), line.count("M")) == (2, 2)
    assert "nan" not in spark([None, None, 1.0])
    drawn = spark([], limit=5.0)
    assert re.findall(r'class="(\w+)"', drawn) == ["spark", "lim"], "it drew a line and a dot at 0"


def test_the_figures_of_the_fleet_are_not_zero_while_no_gateway_measures():
    """Sparklines fell to 0 with the last gateway, and at every start of one."""
    history = History()
    for second in range(90):
        measured = {"requests_per_s": 100.0, "refused_per_s": 2.0, "live_servers": 3, "dependencies": CALLED}
        starts = {"uncounted": 3, "live_servers": 3}
        figures = measured if second < 30 else {"gateways": 0} if second < 60 else starts
        build(traffic(second, **figures), history, FirstSeen())
    rates = {"requests": 100.0, "refused": 2.0, "store_errors": 0.0, "full": 0.0}
    for name, value in rates.items():
        known = history.known(name)
        assert known[-19:] == [None] * 19, name
        assert {one for one in known if one is not None} == {value}, name
    assert history.known("local")[-1] == 0.0, "pods report their mode to any process"
    # A few new pods do not blank the rates of the others.
    build(traffic(90, requests_per_s=90.0, uncounted=1, live_servers=10), history, FirstSeen())
    assert history.points("requests")[-1] == 90.0


def test_a_tile_without_a_measurement_has_no_line():
    tile = next(one for one in build(facts(), History(), FirstSeen()).tiles if one.key == "p99")
    assert tile.value == "no data"
    assert 'class="end"' not in tile.spark


@pytest.mark.django_db(transaction=True)
def test_the_fleet_is_known_from_its_first_heartbeat(production):
    from controlplane.fleet.models import Event
    from controlplane.status.read_facts import read_facts

    found = read_facts()
    assert 0 <= time.time() - found.known_from < 600
    first = Event.objects.order_by("at")[0]
    first.at -= timedelta(hours=1)
    first.save()
    assert read_facts().known_from == first.at.timestamp()
    assert all(0 <= time.time() - one.added_at < 6000 for one in found.dependencies)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", ["tenants", "drills", "requests", "schedules", "revisions", "servers"])
def test_only_a_page_with_a_live_fragment_is_called_live(log_in, page):
    """S1.8: the bar said "Live" beside figures that were never updated."""
    html = log_in("ada").get(f"/{page}").content.decode()
    assert ("data-frame" in html) is (page not in LIVE_PAGES)
    assert page in PAGES


@pytest.mark.django_db(transaction=True)
def test_the_audit_is_not_called_live(log_in):
    """Its table was never updated: only the hint that there are newer entries is."""
    assert "data-frame" in log_in("ada").get("/audit").content.decode()
    assert [one.target for one in fragments(Topic(page="audit", role="admin"), {})][-1] == "news"


@pytest.mark.django_db(transaction=True)
def test_the_page_of_a_person_is_not_called_live(log_in):
    assert "data-frame" in log_in("ada").get("/people/olga").content.decode()
