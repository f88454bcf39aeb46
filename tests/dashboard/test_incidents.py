"""Why a breaker is open, and since when: from the transitions, not from the last probe."""

from dataclasses import replace

import pytest
from msgspec import structs
from shown import text_of

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.fleet.call_figures import CallFigures
from controlplane.fleet.live import DependencyFigures, FleetFigures
from controlplane.status.breaker_lines import breaker_lines
from controlplane.status.facts import (
    BreakerSeen,
    Dependency,
    Facts,
    Override,
    ScheduledChange,
    Server,
    Transition,
    TripFigures,
)
from dashboard.live.history import History
from dashboard.live.overview import build
from dashboard.live.pages import page_of
from dashboard.live.topics import Topic, fragments

NOW = 1_795_144_367.0
FIGURES = TripFigures(calls=24, failures=5, slow=0, consecutive=5, threshold=5)


def moved(at, before, after, cause, **fields):
    return Transition(dependency="payments-api", at=at, before=before, after=after, cause=cause, **fields)


TRIP = moved(NOW - 300, "closed", "open", "consecutive", figures=FIGURES)
#: The breaker tripped five minutes ago, and two probes failed since. Newest first.
FAILING = (
    moved(NOW - 6, "half_open", "open", "probe_failed"),
    moved(NOW - 7, "open", "half_open", "open_time_over"),
    moved(NOW - 120, "half_open", "open", "probe_failed"),
    moved(NOW - 121, "open", "half_open", "open_time_over"),
    TRIP,
    moved(NOW - 9000, "half_open", "closed", "probes_passed"),
)
FORCED = replace(TRIP, cause="forced_open", actor="olga", figures=None)
OPEN = BreakerSeen(state="open", generation=9, since=NOW - 6, until=NOW + 40, calls=33, failures=2)
CLOSED = BreakerSeen(state="closed", generation=9, since=NOW - 28, calls=33)


def facts(view=OPEN, transitions=FAILING, pods=2, override=None, **fields):
    servers = tuple(
        Server(name=f"web-{number}", last_seen=NOW, revision=7, epoch=1, breakers={"payments-api": view})
        for number in range(pods)
    )
    usual = {"servers": servers, "figures": FleetFigures(requests_per_s=100.0, gateways=1)}
    return Facts(
        now=NOW,
        as_of=NOW,
        epoch=1,
        revision=7,
        dependencies=(Dependency(name="payments-api", fallback="Order queue", override=override),),
        transitions=transitions,
        **usual | fields,
    )


def picture(**fields):
    return build(facts(**fields), History(), FirstSeen())


def drawn(page, live):
    """Every fragment of a page, by its id."""
    context = page_of(Topic(page=page, role="viewer", key="payments-api"), live, History()).context
    return {one.target: one.html(context) for one in fragments(Topic(page=page, role="viewer"), context)}


@pytest.mark.parametrize(
    ("trip", "why", "ratio", "threshold", "cell"),
    [
        (TRIP, "5 failures in a row, opens at 5", 1.0, 1.0, "5 in a row"),
        (
            replace(
                TRIP,
                cause="ratio",
                figures=TripFigures(calls=24, failures=18, slow=0, consecutive=1, threshold=50),
            ),
            "18 of 24 calls failed (75 %), opens at 50 %",
            0.75,
            0.5,
            "18/24",
        ),
        (
            replace(
                TRIP,
                cause="slow",
                figures=TripFigures(calls=20, failures=1, slow=15, consecutive=0, threshold=80),
            ),
            "15 of 20 calls were slow (75 %), opens at 80 %",
            0.75,
            0.8,
            "15/20 slow",
        ),
        (replace(TRIP, figures=None), "consecutive failures", 1.0, 1.0, ""),
        (replace(TRIP, cause="forced_open", actor="olga", figures=None), "opened by olga", 1.0, 1.0, ""),
    ],
)
@pytest.mark.django_db
def test_an_open_breaker_says_why_with_the_figures_of_its_trip(trip, why, ratio, threshold, cell):
    """S1.4: card, alert, ring and table displayed a window that was frozen after the trip: 2/33."""
    live = picture(transitions=(trip,))
    breaker = live.breakers[0]
    assert (breaker.why, breaker.shown_ratio, breaker.counted) == (why, ratio, cell)
    assert breaker.shown_threshold == threshold
    mark = f'<path class="mk" d="M{min(99.5, threshold * 100):g} -1'
    assert mark in drawn("breakers", live)["rows"], "the mark was at 50 % after a trip by 80 % slow calls"
    [alert] = (alert for alert in live.alerts if alert.key == "open:payments-api")
    assert alert.detail.lower().startswith(why.lower())
    assert why.lower() in breaker.label.lower()
    assert why in drawn("overview", live)["cards"]
    assert why.lower() in drawn("breaker", live)["hero"].lower()
    for html in (*drawn("overview", live).values(), *drawn("breakers", live).values()):
        assert "2/33" not in html


def test_a_breaker_that_a_person_forced_open_has_an_empty_bar() -> None:
    """Its bar of failures was full, though nothing was counted."""
    moments = {"made_at": NOW - 30, "expires_at": NOW + 600}
    forced = Override(mode="forced_open", reason="why", actor="olga", revision=3, **moments)
    live = picture(transitions=(FORCED,), override=forced)
    breaker = live.breakers[0]
    assert (breaker.face.kind, breaker.shown_ratio, breaker.drawn_ratio) == ("forced", 1.0, 0.0)
    assert 'class="ratio" data-value="0.000"' in drawn("breakers", live)["rows"]


def test_the_card_of_a_breaker_without_a_known_probe_has_no_countdown():
    """It read "until the next probe" below an empty line."""
    assert "Next probe" in drawn("overview", picture())["cards"]
    card = drawn("overview", picture(view=replace(OPEN, until=None)))["cards"]
    assert "Next probe" not in card
    assert "<b></b>" not in card


@pytest.mark.django_db
def test_pods_own_breakers_are_not_explained_by_a_window_of_the_fleet():
    """S1.4, without Redis: the card read "5/36, opens at 50 %" of one pod's window."""
    live = picture(view=replace(OPEN, local=True, calls=36, failures=5))
    breaker = live.breakers[0]
    assert breaker.why == "2 of 2 pods opened their own breaker, without Redis"
    assert (breaker.counted, breaker.shown_ratio) == ("", 1.0)
    html = drawn("overview", live)["cards"]
    assert breaker.why in html
    assert "5/36" not in html
    figures = " ".join(drawn("breaker", live)["facts"].split())
    assert "5 / 36" not in figures
    assert figures.count("each pod counts its own") == 2
    closed = picture(view=replace(CLOSED, local=True)).breakers[0]
    assert closed.why == ""


def test_failed_probes_belong_to_the_incident_of_the_trip():
    """S1.5: it said "Open for 6 s" of a breaker that had failed for five minutes."""
    breaker = picture().breakers[0]
    assert breaker.since == NOW - 300
    assert breaker.period_since == NOW - 6
    assert breaker.why == "5 failures in a row, opens at 5; 2 failed probes since"
    half = picture(
        view=replace(OPEN, state="half_open"),
        transitions=(moved(NOW - 1, "open", "half_open", "open_time_over"), *FAILING),
    ).breakers[0]
    assert (half.since, half.why) == (NOW - 300, breaker.why)


def test_before_the_transitions_are_collected_the_pods_say_since_when():
    breaker = picture(transitions=FAILING[-1:]).breakers[0]
    assert (breaker.since, breaker.why, breaker.counted) == (NOW - 6, "", "2/33")


@pytest.mark.parametrize(
    ("counted", "why"),
    [
        ({"calls": 29, "failures": 4, "consecutive": 5}, "5 failures in a row, opens at 5"),
        ({"calls": 40, "failures": 30, "consecutive": 1}, "30 of 40 calls failed, opens at 50 %"),
        ({"calls": 29, "failures": 4, "consecutive": 0}, ""),
    ],
)
@pytest.mark.django_db
def test_in_the_first_seconds_the_cause_is_what_pods_count_or_not_known_yet(counted, why):
    """The card read "Failures 4/29, opens at 50 %" after 5 failures in a row, and the alert too."""
    live = picture(view=replace(OPEN, **counted), transitions=())
    assert live.breakers[0].why == why
    card = " ".join(drawn("overview", live)["cards"].split())
    assert (why or "not known yet") in card
    assert "<dt>Failures</dt>" not in card
    [alert] = (alert for alert in live.alerts if alert.key == "open:payments-api")
    assert alert.detail.startswith(why[:1].upper() + why[1:] if why else "Its cause is not known yet.")


def test_an_extended_override_began_when_the_first_one_did():
    """It read "Forced open for 30 s" after Extend, of an override that began a minute before."""

    def override(ago, until, mode="forced_open"):
        made, expires = NOW - ago, NOW + until
        return Override(mode=mode, reason="why", actor="olga", expires_at=expires, made_at=made, revision=3)

    past = (override(90, -30.001), override(200, -90), override(500, -300))
    live = picture(override=override(30, 600), past_overrides={"payments-api": past})
    assert live.breakers[0].since == NOW - 200
    assert live.breakers[0].period_since == NOW - 30
    other = (override(90, -30, mode="forced_closed"),)
    live = picture(override=override(30, 600), past_overrides={"payments-api": other})
    assert live.breakers[0].since == NOW - 30


def test_a_card_claims_no_fallback_that_was_not_measured():
    """It read "Order queue, 10.9/s" beside "Fallbacks: 0/s used"."""
    blocked = {"payments-api": DependencyFigures(refused_per_s=10.9)}
    figures = FleetFigures(requests_per_s=100.0, gateways=1, dependencies=blocked)
    card = text_of(drawn("overview", picture(figures=figures))["cards"])
    assert "Fallback Order queue Blocked, last 5 s 10.9 calls/s" in card
    used = replace(figures, protection={"payments-api": CallFigures(fallbacks_per_s=4.0)})
    card = text_of(drawn("overview", picture(figures=used))["cards"])
    assert "Fallback Order queue, used 4/s Blocked, last 5 s 10.9 calls/s" in " ".join(card.split())


def test_a_trip_that_is_no_longer_listed_is_not_invented():
    breaker = picture(transitions=FAILING[:3]).breakers[0]
    assert breaker.trip is None
    assert breaker.since == NOW - 120
    assert breaker.why == "2 failed probes since"


def test_a_closed_breaker_is_dated_by_its_closing_not_by_the_start_of_a_pod():
    """S1.5: "Closed for 28 s" because a pod had started."""
    assert picture(view=CLOSED, transitions=()).breakers[0].since is None
    assert picture(view=CLOSED, transitions=FAILING[-1:]).breakers[0].since == NOW - 9000


def test_a_pod_that_joins_an_open_breaker_does_not_make_it_younger():
    old, new = replace(OPEN, since=NOW - 50), replace(OPEN, since=NOW - 2, calls=40)
    live = facts(transitions=())
    servers = tuple(
        structs.replace(pod, breakers={"payments-api": view})
        for pod, view in zip(live.servers, (old, new), strict=True)
    )
    assert build(replace(live, servers=servers), History(), FirstSeen()).breakers[0].since == NOW - 50


def test_a_breaker_that_opens_again_and_again_is_one_line():
    """S3.28: one flapping breaker took six of the seven lines of "Recent changes"."""
    other = replace(TRIP, dependency="search", at=NOW - 130)
    lines = breaker_lines(sorted([*FAILING[:4], other, TRIP, FAILING[-1]], key=lambda one: -one.at))
    flapping, *rest = lines
    # A failed probe belongs to the trip before it, however long the breaker was open between them.
    assert (flapping.flapping, flapping.did) == (
        "payments-api",
        "opened once and had 2 failed probes in 4 min 54 s",
    )
    assert (flapping.at, flapping.since) == (NOW - 6, TRIP.at)
    # What happened long before is a line of its own, and so is another breaker.
    assert rest == [other, FAILING[-1]]
    closed = moved(NOW - 1, "half_open", "closed", "probes_passed")
    [line, *_] = breaker_lines((closed, *FAILING[:4]))
    assert line.did == "had 2 failed probes and closed in 1 min 59 s"
    # The end of an incident before belongs to the line, and not to this count.
    before = moved(NOW - 235, "half_open", "closed", "probes_passed")
    [line, *_] = breaker_lines((closed, *FAILING[:4], before))
    assert line.did == "had 2 failed probes and closed in 1 min 59 s"
    drawn_lines = drawn("overview", picture())["events"]
    assert "opened once and had 2 failed probes in" in drawn_lines
    assert drawn_lines.count("payments-api") == 2


def test_a_line_says_how_often_a_breaker_closed_between():
    """ "Opened 20 times in 4 min 54 s, and closed after 5 min 2 s" read as one open stretch of 5 minutes."""
    flaps = [
        one
        for ago in (10, 30, 50)
        for one in (
            moved(NOW - ago, "half_open", "closed", "probes_passed"),
            moved(NOW - ago - 1, "open", "half_open", "open_time_over"),
            moved(NOW - ago - 2, "closed", "open", "consecutive"),
        )
    ]
    [line] = breaker_lines(flaps)
    assert line.did == "opened 3 times and closed 3 times in 42 s"
    [line] = breaker_lines(flaps[1:])
    assert line.did == "opened 3 times and closed 2 times in 41 s"
    # A person opened it between: the line does not count that, and so not its end.
    by_a_person = (
        moved(NOW - 70, "half_open", "closed", "probes_passed"),
        moved(NOW - 71, "half_open", "open", "probe_failed"),
    )
    [line] = breaker_lines([*flaps, *by_a_person])
    assert line.did == "opened 3 times, had 1 failed probe and closed 3 times in 1 min 1 s"
    [line] = breaker_lines([*FAILING[:4], replace(TRIP, at=NOW - 122)])
    assert line.did == "opened once and had 2 failed probes in 1 min 56 s"


def test_degraded_is_dated_by_the_incident_not_by_a_plan_or_refused_requests():
    """S1.5: a scheduled change of mine dated the outage of a vendor."""
    plan = ScheduledChange(key="schedule 3", title="Planned change: tenant initech", at=NOW + 60)
    overdue = ScheduledChange(key="schedule 4", title="Planned change: tenant acme", at=NOW - 4000)
    refused = FleetFigures(requests_per_s=100.0, refused_per_s=37.0, gateways=1)
    seen = FirstSeen()
    earlier = replace(facts(view=CLOSED, transitions=(), figures=refused, scheduled=(plan,)), now=NOW - 3600)
    build(earlier, History(), seen)
    both = facts(figures=refused, scheduled=(plan, overdue))
    assert build(both, History(), seen).verdict.since == NOW - 300
    assert build(replace(earlier, now=NOW, as_of=NOW), History(), seen).verdict.since == NOW - 3600
    assert picture(view=CLOSED, transitions=(), scheduled=(plan, overdue)).verdict.since is None


def test_an_override_keeps_its_own_time():
    held = Override(
        mode="forced_open", reason="r", actor="olga", made_at=NOW - 20, expires_at=NOW + 60, revision=7
    )
    breaker = picture(view=replace(OPEN, override="forced_open"), override=held).breakers[0]
    assert (breaker.since, breaker.period_since) == (NOW - 20, NOW - 20)
