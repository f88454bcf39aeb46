"""What the control plane does not know is drawn as unknown, not as closed and not as zero."""

import re
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from test_incidents import NOW, OPEN, facts, moved

from controlplane.alerts.evaluate import FirstSeen
from controlplane.fleet.live import DependencyFigures, FleetFigures
from dashboard.live.history import POINTS, History
from dashboard.live.overview import build
from dashboard.live.pages import page_of
from dashboard.live.timeline import segments, segments_of
from dashboard.live.topics import LIVE_PAGES, PAGES, Topic, fragments
from dashboard.plots import band, plot, spark

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
    gone = tuple(replace(pod, state="offline", last_seen=NOW - 120) for pod in silent.servers)
    assert states(replace(silent, servers=gone)) == [("closed", 3480), ("unknown", 120)]


def test_unknown_time_is_hatched_in_the_timeline_and_blank_in_a_strip():
    some_facts = facts(view=CLOSED, transitions=(), known_from=NOW - 600)
    live = build(some_facts, History(), FirstSeen())
    context = page_of(Topic(page="breaker", role="viewer", key="payments-api"), live, History()).context
    picture = context["timeline"].picture
    assert "seg-unknown" in picture
    assert "unknown from" in picture
    assert band([("stale", 60.0), ("unknown", 20.0), ("closed", 20.0)]).count("<rect") == 1


def test_a_plot_says_its_span_and_unit_and_leaves_blank_what_it_does_not_know():
    history = History()
    for second in range(30):
        figures = FleetFigures(dependencies={"payments-api": DependencyFigures(calls_per_s=20.0)}, gateways=1)
        history.add(replace(facts(figures=figures), now=NOW + second), {})
    live = build(facts(), history, FirstSeen(), observe=False)
    context = page_of(Topic(page="breaker", role="viewer", key="payments-api"), live, history).context
    failed, calls, slow = context["timeline"].plots
    assert [(one.top, one.bottom, one.span) for one in (failed, calls, slow)] == [
        ("100 %", "0 %", "last 2 minutes"),
        ("23/s", "0/s", "last 2 minutes"),
        ("1.1/s", "0/s", "last 2 minutes"),
    ]
    # Ten or eleven of forty points are known: the line begins in the last third, not at the left edge.
    begins = float(re.search(r'class="s1" d="M([0-9.]+)', calls.svg)[1])
    assert begins > 180


def traffic(second, **fields):
    figures = FleetFigures(**{"gateways": 1} | fields)
    return replace(facts(figures=figures), now=NOW + second)


CALLED = {"payments-api": DependencyFigures(calls_per_s=20.0)}


def test_a_series_that_stopped_does_not_end_at_the_right_edge():
    """It ended there with 20/s, 50 s after the last gateway, beside "0/s"."""
    history = History()
    for second in range(110):
        history.add(traffic(second, dependencies=CALLED) if second < 60 else traffic(second, gateways=0), {})
    known = history.known("calls:payments-api")
    assert len(known) == POINTS
    assert known[-16:] == [None] * 16
    assert known.count(20.0) in (20, 21)
    assert history.marks("payments-api") == " " * POINTS
    live = build(facts(), history, FirstSeen(), observe=False)
    context = page_of(Topic(page="breaker", role="viewer", key="payments-api"), live, history).context
    line = re.search(r'class="s1" d="([^"]+)"', context["timeline"].plots[1].svg)[1]
    assert max(float(x) for x in re.findall(r"[ML]([0-9.]+) ", line)) < 180


def test_a_gap_in_a_series_stays_a_gap_and_a_dependency_that_is_not_called_has_no_calls():
    history = History()
    for second in range(90):
        if not 30 <= second < 60:
            history.add(traffic(second, dependencies=CALLED if second < 75 else {}), {"refused": 7.0})
    known = history.known("calls:payments-api")
    assert known[-4:] == [0.0] * 4, "it was measured: nothing calls it"
    begun = next(place for place, value in enumerate(known) if value is not None)
    gap = known[begun:].index(None)
    assert known[begun + gap : begun + gap + 9] == [None] * 9
    points = history.points("refused")
    assert points[0] == points[-1] == 7.0
    assert points.count(None) in (9, 10)
    area, line, _ = re.findall(r' d="([^"]+)"', spark(points))
    assert (area.count("Z"), line.count("M")) == (2, 2)
    assert "nan" not in spark([None, None, 1.0])
    assert spark([]) == spark([0.0, 0.0])


def test_a_second_without_calls_has_no_share_of_failures():
    drawn = plot([("s2", [0.5, None, 1.0])], across=3)
    assert re.findall(r"M[0-9.]+", drawn) == ["M0", "M280"]
    live = build(facts(), History(), FirstSeen(), observe=False)
    context = page_of(Topic(page="breaker", role="viewer", key="payments-api"), live, History()).context
    assert context["timeline"].plots[0].value == "no calls"
    assert 'class="s2"' not in context["timeline"].plots[0].svg


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
def test_the_page_of_a_pod_is_not_called_live(log_in):
    assert "data-frame" in log_in("ada").get("/servers/web-1").content.decode()
