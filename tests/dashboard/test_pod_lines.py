"""S1.7: an outage of Redis, and the breakers that pods run themselves, leave a trace on the pages."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from fleet_rows import breaker, put_server
from msgspec import structs
from shown import text_of
from test_incidents import CLOSED, FAILING, NOW, facts

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.fleet.models import Event
from controlplane.status.facts import PodEvent
from dashboard.live.history import History
from dashboard.live.overview import build
from dashboard.live.pages import page_of
from dashboard.live.pod_lines import event_rows, own_lines, pod_lines
from dashboard.live.topics import Topic, fragments
from dashboard.words.store_errors import store_error_words


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


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (
            "ConnectionRefusedError: [Errno 111] Connect call failed ('10.1.2.3', 6379)",
            "connection refused",
        ),
        (
            "3 failures in 2 s, last: ConnectionResetError: [Errno 104]",
            "3 failures in 2 s, last: connection reset",
        ),
        ("never reached: [Errno -2] Name or service not known", "never reached: host name unknown"),
        ("AuthenticationError: WRONGPASS invalid username-password pair", "wrong password or user"),
        ("20 timeouts in 2 s", "20 timeouts in 2 s"),
        # The runbook quotes these; the text of the client was cut before its end.
        (
            "this user may not load scripts, and function fuseboard_admit_0123456789abcdef is missing; the"
            " worker of the control plane loads it",
            "function missing",
        ),
        ("answers, but: BUSY Redis is busy running a script", "answers, but: a script blocks Redis"),
        ("MISCONF Redis is configured to save RDB snapshots", "Redis cannot save its data"),
        ("", ""),
    ],
)
def test_the_cause_of_an_outage_is_no_exception_of_python(cause, words):
    """S3.29: "ConnectionRefusedError: [Errno 111] Con..." widened the column of the mode."""
    assert store_error_words(cause) == words
    if cause:
        assert said(event(1, "web-1", f"shared -> local: {cause}")) == [
            f"web-1 lost Redis and uses local limits: {words}"
        ]


def test_pods_with_different_errors_lose_redis_in_one_line():
    detail = "shared -> local: ConnectionRefusedError: [Errno 111] Connect call failed ('10.0.0.{}', 6379)"
    assert said(event(1, "web-1", detail.format(1)), event(2, "web-2", detail.format(2))) == [
        "2 pods lost Redis and use local limits: connection refused"
    ]


def test_no_errors_of_redis_are_no_good_sign_while_no_pod_asks_it():
    """S3.29: "Redis errors 0/s, timeouts included" while every pod was local."""
    away = facts(view=replace(CLOSED, local=True))
    away = replace(away, servers=tuple(structs.replace(pod, mode="local") for pod in away.servers))
    [tile] = (t for t in build(away, History(), FirstSeen()).server_tiles if t.key == "store_errors")
    assert (tile.value, tile.foot, tile.over) == ("no data", "no pod reaches Redis", True)


def test_a_pod_that_starts_has_not_lost_redis():
    started = event(9, "web-1", "local: not connected yet")
    assert said(event(8, "web-1", "local -> shared"), started) == []
    again = event(9, "web-1", "shared -> local: not connected yet")
    lost = event(5, "web-1", "shared -> local: connection refused")
    assert said(lost, event(8, "web-1", "local -> shared"), again) == [
        "web-1 lost Redis and uses local limits: connection refused"
    ]


def test_two_outages_are_not_one():
    again = event(500, "web-1", "shared -> local: connection refused")
    assert said(*OUTAGE, again)[-1] == "web-1 lost Redis and uses local limits: connection refused"
    assert len(said(*OUTAGE, again)) == 5


def test_what_a_pod_does_again_and_again_is_not_one_event():
    """Forty events of one pod were one line, dated by the first of them."""
    flapping = [event(25 * turn, "web-1", "shared -> local: connection refused") for turn in range(40)]
    assert [line.at for line in pod_lines(flapping)] == [NOW - 25 * turn for turn in range(40)]
    own = [event(25 * turn, "web-1", "search: closed -> open", kind="breaker") for turn in range(4)]
    [line] = own_lines(own, "search")
    assert "4 times" in line.did
    chain = [event(25 * turn, f"web-{turn}", "shared -> local") for turn in range(5)]
    assert [line.pods for line in pod_lines(chain)] == ["2 pods", "2 pods", "web-4"]


def test_an_own_breaker_that_opens_again_and_again_is_one_line():
    """28 of the first 30 changes were about the own breakers of two pods."""
    turns = [
        event(100 * turn + ago, "web-1", f"search: {change}", kind="breaker")
        for turn in range(4)
        for ago, change in ((0, "half_open -> closed"), (20, "open -> half_open"), (40, "closed -> open"))
    ]
    [line] = pod_lines(turns)
    hours = [f"{datetime.fromtimestamp(at, UTC):%H:%M}" for at in (NOW - 340, NOW)]
    assert (line.pods, line.at) == ("web-1", NOW)
    assert line.did == f"opened its own breaker of search 4 times, {hours[0]} to {hours[1]}"
    other = event(50, "web-2", "search: closed -> open", kind="breaker")
    both = sorted([*turns, other], key=lambda one: -one.at)
    [line] = pod_lines(both)
    assert (line.pods, "their own breakers of search 5 times" in line.did) == ("2 pods", True)
    assert own_lines(both, "payments-api") == []
    hour_ago = event(4000, "web-1", "search: closed -> open", kind="breaker")
    assert len(own_lines([*turns, hour_ago], "search")) == 2


def test_several_pods_probe_and_one_pod_probes():
    """It read "2 pods probes with their own breaker"."""
    one, other = (event(1, f"web-{n}", "search: open -> half_open", kind="breaker") for n in (1, 2))
    assert said(one, other) == ["2 pods probe with their own breaker of search"]
    assert said(one) == ["web-1 probes with its own breaker of search"]


def test_the_events_of_a_pod_fold_a_breaker_that_flaps():
    at = datetime.fromtimestamp(NOW, UTC)

    def row(ago, kind, detail):
        return Event(at=at - timedelta(seconds=ago), kind=kind, detail=detail, boot="b")

    flaps = [row(60 * turn, "breaker", "search: closed -> open") for turn in range(5)]
    rows = event_rows([row(0, "joined", ""), *flaps, row(900, "breaker", "orders: closed -> open")])
    since = f"{at - timedelta(seconds=240):%H:%M}"
    assert [(one.kind, one.detail) for one in rows] == [
        ("joined", ""),
        ("breaker", f"search opened 5 times, {since} to {at:%H:%M}"),
        ("breaker", "orders: closed -> open"),
    ]


def test_one_outage_with_several_causes_is_one_line():
    causes = ["timeouts", "connection refused", f"OSError: {'x' * 400}"]
    events = [event(turn, f"web-{turn}", f"shared -> local: {cause}") for turn, cause in enumerate(causes)]
    [line] = pod_lines(events)
    assert (line.at, line.pods) == (NOW - 2, "3 pods")
    many = replace(events[2], pods=40, names=("web-2", "web-3", "web-4"), last=NOW)
    [line] = pod_lines((*events[:2], many))
    assert line.pods == "42 pods"
    assert line.did.startswith("lost Redis and use local limits: OSError: xxx")
    assert line.did.endswith("\u2026")
    assert len(line.did) < 120


def test_a_drill_and_what_an_older_version_noted_are_readable():
    assert said(event(1, "web-1", "shared -> drill"), event(2, "web-3", "drill -> shared")) == [
        "web-1 began a drill",
        "web-3 uses shared limits again",
    ]
    assert said(event(1, "web-1", "nonsense here"), event(1, "w", "nonsense", kind="breaker")) == []


@pytest.mark.django_db
def test_recent_changes_and_transitions_contain_them():
    live = build(facts(view=CLOSED, transitions=FAILING, pod_events=OUTAGE), History(), FirstSeen())
    assert live.breakers[0].incident is None
    context = page_of(Topic(page="overview", role="viewer"), live, History()).context
    drawn = {
        one.target: one.html(context) for one in fragments(Topic(page="overview", role="viewer"), context)
    }
    assert "2 pods lost Redis and use local limits: connection refused" in text_of(drawn["events"])
    topic = Topic(page="breaker_history", role="viewer", key="payments-api")
    history = page_of(topic, live, History()).context["timeline"]
    assert [(line.pods, line.did) for line in history.own] == [
        ("web-2", "probes with its own breaker of payments-api"),
        ("web-2", "opened its own breaker of payments-api"),
    ]
    assert "own_breaker" not in {one.cause for one in history.transitions}, "they are of one pod"
    assert own_lines(OUTAGE, "search") == []


@pytest.mark.django_db(transaction=True)
def test_a_pods_own_breaker_is_noted_once_whatever_its_counters_do(production):
    from controlplane.status.read_facts import read_facts

    own = breaker("payments-api", "open", local=True)
    put_server("web-1", breakers=[breaker("payments-api"), breaker("search")])
    put_server("web-1", breakers=[own, breaker("search", local=True)])
    put_server("web-1", breakers=[own | {"window_calls": 77}, breaker("search", local=True)])
    put_server("web-1", breakers=[breaker("payments-api"), breaker("search", "open")])
    noted = [row.detail for row in Event.objects.filter(kind="breaker").order_by("id")]
    # The fleet's breaker of search opened as the pod came back: its transition shows that.
    assert noted == ["payments-api: closed -> open", "payments-api: open -> closed"]
    put_server("web-2", mode="local", mode_cause="connection refused")
    assert {(one.server, one.kind) for one in read_facts().pod_events} == {
        ("web-1", "breaker"),
        ("web-2", "mode"),
    }


def lose_and_regain(pods, lost, back):

    def rows(detail, begun, cause=""):
        return [
            Event(
                environment="production",
                server=f"web-{number}",
                boot="b",
                kind="mode",
                detail=f"{detail}: {cause if number % 3 else f'an exception of pod {number}'}"
                if cause
                else detail,
                # Beyond the end of a half minute.
                at=begun + timedelta(seconds=12 * number / pods),
            )
            for number in range(pods)
        ]

    Event.objects.bulk_create(
        rows("shared -> local", lost, "connection refused")
        + rows("local -> ramping", back)
        + rows("ramping -> shared", back + timedelta(seconds=31))
    )


def half_minute_before(seconds):
    """25 s after the beginning of a half minute."""
    now = time.time() - seconds
    return datetime.fromtimestamp(now - now % 30 + 25, UTC)


@pytest.mark.django_db(transaction=True)
def test_the_loss_of_redis_in_a_large_fleet_is_counted_and_not_forgotten(limits):
    """300 rows were read: "300 pods lost Redis" in a fleet of 1,000, and no line after the recovery."""
    from controlplane.status.read_facts import read_facts, recent_events

    lost = half_minute_before(600)
    lose_and_regain(1_000, lost, half_minute_before(300))
    lines = pod_lines(read_facts().pod_events)
    assert [(line.pods, line.did) for line in lines] == [
        ("1000 pods", "reach Redis again, their limits rise"),
        ("1000 pods", "lost Redis and use local limits: connection refused"),
    ]
    assert lines[-1].at == lost.timestamp()
    cut = recent_events("production", rows=2_100)
    assert [(one.detail, one.more) for one in cut[-1:]] == [("shared -> local: connection refused", True)]
    assert not any(one.more for one in cut[:-1])
    assert said(
        event(1, "web-1", "shared -> local"), replace(event(2, "w", "shared -> local"), more=True)
    ) == ["2 or more pods lost Redis and use local limits"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("starts", "lost"), [(3, 2), (2, 3)])
def test_pods_that_start_do_not_hide_pods_that_lose_redis(limits, starts, lost):
    """A row of a half minute has the most common cause: five pods had not connected yet, or lost Redis."""
    from controlplane.status.read_facts import read_facts

    at = half_minute_before(60)
    causes = ["not connected yet"] * starts + ["connection refused"] * lost
    Event.objects.bulk_create(
        Event(
            environment="production",
            server=f"web-{number}",
            boot="b",
            kind="mode",
            detail=f"shared -> local: {cause}",
            at=at,
        )
        for number, cause in enumerate(causes)
    )
    assert [(line.pods, line.did) for line in pod_lines(read_facts().pod_events)] == [
        (f"{lost} pods", "lost Redis and use local limits: connection refused")
    ]


@pytest.mark.django_db(transaction=True)
def test_a_pod_cannot_fill_the_table_with_its_own_breakers(production):

    names = [f"made-up-{number}" for number in range(500)]
    put_server("web-1", breakers=[breaker(name, "open", local=True) for name in names])
    assert Event.objects.filter(kind="breaker").count() == 10


def test_the_state_of_the_fleet_does_not_depend_on_pods_own_breakers():
    plain = build(facts(), History(), FirstSeen()).breakers[0]
    noted = build(replace(facts(), pod_events=OUTAGE), History(), FirstSeen()).breakers[0]
    assert (plain.since, plain.why) == (noted.since, noted.why)
