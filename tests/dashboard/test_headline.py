"""The headline of the overview: calm only while nothing is wrong, and exact only while limits are."""

from dataclasses import replace

import pytest
from headline_facts import NOW, OPEN, fleet, headline, lasting, others, picture, pod, said_by, with_figures

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.rules.every import RULES
from controlplane.alerts.rules.rule import Subject
from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.alerts.state.stored_alerts import StoredAlert
from controlplane.fleet.live import FleetFigures, StoreFigures
from controlplane.publishing.unknown_revisions import UnknownRevision
from controlplane.status.facts import (
    Dependency,
    Observing,
    PodLoad,
    ScheduledChange,
)
from dashboard.live.history import History
from dashboard.live.overview import build
from dashboard.live.verdict import WEIGHTS

ALONE = "limits with a local share allow 1/3 of their value, and limits that fail open allow every call"


PLANNED = ScheduledChange(key="schedule 3", title="Planned change: tenant initech", at=NOW + 60)
CONDITIONS = {
    "a silent pod": (fleet(*others(state="offline")), "web-3 is silent"),
    "a pod out of sight": (fleet(*others(state="unknown")), "web-3 is silent"),
    "a slow Redis": (
        fleet(figures=with_figures(store=StoreFigures(p99_us=47_000))),
        "Redis p99 is 47.0 ms, over its deadline",
    ),
    "decisions without Redis": (
        fleet(figures=with_figures(decided_locally_per_s=42.9)),
        "42.9 decisions/s are made locally",
    ),
    "a name of two processes": (fleet(duplicated=("web-2",)), "Two processes report as web-2"),
    "an invented revision": (
        fleet(unknown_revisions=(UnknownRevision("web-2", 1, 9),)),
        "web-2 reports an unknown revision",
    ),
    "an overdue change": (
        fleet(scheduled=(replace(PLANNED, at=NOW - 60),)),
        "Planned change: tenant initech is overdue",
    ),
    "an overdue end of a quota": (
        fleet(scheduled=(replace(PLANNED, at=NOW - 60, tenant="acme", quota="orders"),)),
        "The end of quota orders of acme is overdue",
    ),
    "refused configuration": (
        fleet(*others(config_status="rejected")),
        "web-3 rejected the configuration",
    ),
    "a drill": (fleet(*others(mode="drill")), "web-3 is in a drill"),
    "a ramp": (fleet(*others(mode="ramping")), "web-3 is ramping up after an outage of Redis"),
    "refused requests": (
        fleet(figures=with_figures(refused_per_s=37.0)),
        "37 % of requests are refused",
    ),
    "uncounted pods": (fleet(figures=with_figures(uncounted=2)), "The figures are incomplete"),
    "an open breaker": (fleet(*others(view=OPEN)), "payments-api is open"),
    "fallback": (fleet(*others(mode="local")), "1 pod uses local limits"),
    "lag": (
        fleet(*others(revision=6), revisions=((6, NOW - 60), (7, NOW - 50))),
        "web-3 has old configuration",
    ),
    "no gateway": (fleet(figures=FleetFigures()), "No gateway is reporting"),
    "no Postgres": (fleet(as_of=NOW - 30), "Postgres is unavailable"),
    "a failed schedule": (fleet(schedules_failed=1), "1 scheduled change failed"),
}


def test_all_healthy_is_said_of_a_fleet_in_which_nothing_is_wrong():
    live = picture(fleet())
    assert headline(live.facts) == ["All healthy."]
    assert live.verdict.pods == "3 of 3 pods use shared limits. Limits are exact."
    assert live.verdict.since is None


@pytest.mark.parametrize(("facts", "said"), CONDITIONS.values(), ids=CONDITIONS)
def test_no_active_condition_leaves_the_headline_calm(facts, said):
    """S1.2: it knew breakers, local fallback and lag only."""
    assert headline(facts) == [said]


def test_a_p99_within_the_deadline_is_not_called_over_it():
    """It read "Redis p99 is 1.2 ms, over its deadline" beside "budget 5 ms"."""
    live = lasting(fleet(figures=with_figures(store=StoreFigures(p99_us=1_200))), 60)
    assert said_by(live) == ["Redis p99 is 1.2 ms, higher than usual"]
    assert live.verdict.since is None, "no decision is delayed, so the fleet is not degraded"
    [tile] = (tile for tile in live.tiles if tile.key == "p99")
    assert (tile.over, tile.foot) == (True, "usually below 1 ms")
    over = lasting(fleet(figures=with_figures(store=StoreFigures(p99_us=7_000))), 0)
    assert said_by(over) == ["Redis p99 is 7.0 ms, over its deadline"]
    assert over.verdict.since == NOW
    assert [tile.foot for tile in over.tiles if tile.key == "p99"] == ["budget 5 ms"]


def test_a_p99_that_is_high_for_a_moment_leaves_the_fleet_healthy():
    """An idle laptop has 1.2 ms again and again: the warning must last for a minute."""
    slow = fleet(figures=with_figures(store=StoreFigures(p99_us=1_200)))
    live = lasting(slow, 50)
    assert (live.alerts, said_by(live), live.verdict.calm) == ((), [], "All healthy.")
    seen = FirstSeen()
    for second, p99_us in enumerate([1_200] * 40 + [900] + [1_200] * 40):
        one = with_figures(store=StoreFigures(p99_us=p99_us))
        assert build(fleet(now=NOW + second, as_of=NOW + second, figures=one), History(), seen).alerts == ()
    late = build(fleet(now=NOW + 90, as_of=NOW + 90, figures=slow.figures), History(), seen, observe=False)
    assert late.alerts == ()
    assert [one.key for one in lasting(slow, 60).alerts] == ["p99"]


def test_a_harmless_p99_does_not_date_a_redis_over_its_deadline():
    """ "Degraded for 10 h": a p99 that was 1.2 ms all day dated one that is 7 ms since now."""
    seen = FirstSeen()

    def after(seconds, p99_us):
        figures = with_figures(store=StoreFigures(p99_us=p99_us))
        return build(fleet(now=NOW + seconds, as_of=NOW + seconds, figures=figures), History(), seen)

    after(0, 1_200)
    assert after(36_000, 1_200).alerts[0].since == NOW
    over = after(36_001, 7_000)
    assert (over.alerts[0].since, over.verdict.since) == (NOW + 36_001, NOW + 36_001)
    again = after(36_030, 1_200)
    assert (again.alerts[0].since, again.verdict.since) == (NOW, None), "it was high all the time"


def test_levels_of_one_incident_have_one_beginning():
    seen = FirstSeen()
    for seconds, refused in ((0, 1.0), (600, 37.0)):
        figures = with_figures(refused_per_s=refused)
        live = build(fleet(now=NOW + seconds, as_of=NOW + seconds, figures=figures), History(), seen)
        assert live.alerts[0].severity == ("critical" if seconds else "warning")
        assert live.verdict.since == NOW


def test_a_p99_within_the_deadline_does_not_hide_decisions_without_redis():
    figures = with_figures(store=StoreFigures(p99_us=1_200), decided_locally_per_s=42.9)
    assert said_by(lasting(fleet(figures=figures), 60)) == [
        "42.9 decisions/s are made locally",
        "Redis p99 is 1.2 ms, higher than usual",
    ]


def test_a_planned_change_is_not_a_condition():
    assert headline(fleet(scheduled=(PLANNED,))) == ["All healthy."]


def test_every_alert_is_a_condition():
    """A new rule needs a sentence and a weight, unless it is about a breaker or about the future."""
    # The headline says by itself that Postgres or the gateways are away. No page sees that the worker is. The
    # load of a Redis server is on the page Servers, and what expires on the page Tokens.
    own = {"postgres-down", "gateway-away", "worker-away", "redis-ops", "outbox", "certificate", "token"}
    own |= {"audit-export", "open-share", "redis-node", "redis-nodes"}
    assert {rule.key for rule in RULES if rule.headline is None} >= {"open", "soon", "override"} | own
    weights = [*WEIGHTS.values(), *(rule.weight for rule in RULES if rule.headline is not None)]
    weights += [rule.warning.weight for rule in RULES if rule.warning is not None]
    assert min(weights) > 0
    assert len(set(weights)) == len(weights), "two conditions have one place"


def test_the_worst_comes_first_and_the_rest_is_counted():
    figures = with_figures(refused_per_s=37.0, store=StoreFigures(p99_us=47_000), uncounted=2)
    broken = fleet(
        pod(1, OPEN), pod(2, OPEN, config_status="rejected"), pod(3, state="offline"), figures=figures
    )
    verdict = picture(broken).verdict
    assert [s.subject for s in verdict.sentences] == ["payments-api", "37 % of requests", "web-2"]
    assert verdict.more == 3


def test_the_effect_on_customers_comes_before_its_cause_and_a_failed_change_before_a_trial():
    """S2-24: "1.9 % of checks fail" came before 16 % of refused requests."""
    store = StoreFigures(asked_per_s=100.0, timeouts_per_s=1.9)
    few = headline(fleet(figures=with_figures(refused_per_s=1.0, store=store)))
    assert few == ["1 % of requests are refused", "1.9 % of requests to Redis fail"]
    most = headline(fleet(*others(state="offline"), figures=with_figures(refused_per_s=16.0, store=store)))
    assert most == ["16 % of requests are refused", "web-3 is silent", "1.9 % of requests to Redis fail"]
    trial = {"pod_protection": {"shedding": {}}, "observing": (Observing(part="shedding", until=NOW + 60),)}
    found = headline(fleet(schedules_failed=1, **trial))
    assert found == ["1 scheduled change failed", "Shedding is in trial mode"]


def stored_alert(key, **fields):
    usual = {
        "id": 1,
        "key": key,
        "state": AlertState.FIRING,
        "severity": "critical",
        "level": 2,
        "text": "",
        "detail": "",
        "runbook": "",
        "subject": Subject(kind="servers"),
        "true_since": NOW - 300,
        "level_since": NOW - 300,
        "fired_at": NOW - 180,
    }
    return StoredAlert(**usual | fields)


def test_a_fleet_is_degraded_since_the_oldest_of_what_is_wrong():
    """S2-3: the last flap of a breaker dated it, though it had flapped, and Redis was slow, for longer."""
    slow = with_figures(store=StoreFigures(p99_us=47_000))
    seen = FirstSeen()
    build(fleet(now=NOW - 154, as_of=NOW - 154, figures=slow), History(), seen)
    both = fleet(*others(view=OPEN), figures=slow)
    assert build(both, History(), seen).verdict.since == NOW - 154
    flaps = {"open:payments-api": stored_alert("open:payments-api", true_since=NOW - 3_600)}
    assert build(both, History(), seen, stored=flaps).verdict.since == NOW - 3_600
    closed = fleet(*others(view=replace(OPEN, state="half_open")))
    assert build(closed, History(), FirstSeen(), stored=flaps).verdict.since == NOW - 3_600
    # One greedy tenant all day is no degraded fleet when a breaker opens.
    refused = replace(both, figures=with_figures(refused_per_s=1.0))
    day = {"429": stored_alert("429", severity="warning", true_since=NOW - 86_400)}
    assert build(refused, History(), FirstSeen(), stored=day).verdict.since == NOW - 20


def test_a_silent_pod_stays_in_the_denominator():
    """S1.2: "2 of 2 servers share limits" with one of three dead."""
    live = picture(fleet(*others(state="offline")))
    assert live.verdict.pods.startswith("2 of 3 pods use shared limits.")
    [tile] = (tile for tile in live.tiles if tile.key == "local")
    assert tile.unit == "of 3 pods"


def test_many_open_breakers_are_one_sentence():
    names = [f"vendor-{number}" for number in range(4)]
    one = pod(1, breakers=dict.fromkeys(names, OPEN))
    facts = replace(fleet(one), dependencies=tuple(Dependency(name=name) for name in names))
    assert headline(facts) == ["4 breakers are open"]


@pytest.mark.parametrize(
    ("servers", "figures", "why"),
    [
        (others(), {"decided_locally_per_s": 42.9}, "42.9 decisions/s are made locally"),
        (others(mode="ramping"), {}, "web-3 applies limits that still rise after an outage of Redis"),
        (others(mode="local"), {}, f"web-3 decides locally. There, {ALONE}"),
        (others(mode="drill"), {}, f"web-3 decides locally. There, {ALONE}"),
        (
            (pod(1), pod(2, mode="local"), pod(3, mode="drill")),
            {},
            f"2 pods decide locally. There, {ALONE}",
        ),
        # The mode is what decides, also beside a problem with the configuration.
        (
            others(mode="local", config_status="rejected"),
            {},
            f"web-3 decides locally. There, {ALONE}",
        ),
        (
            others(mode="ramping", config_status="rejected"),
            {},
            "web-3 applies limits that still rise after an outage of Redis",
        ),
        (others(state="offline"), {}, "web-3 is silent: its limits are unknown"),
        (others(), {"uncounted": 1}, "not every pod is measured"),
        # S3-12: one reason hid the others.
        (
            others(state="offline"),
            {"decided_locally_per_s": 0.2},
            "0.2 decisions/s are made locally; web-3 is silent: its limits are unknown",
        ),
        (
            (pod(1, mode="local"), pod(2, mode="ramping"), pod(3, state="offline")),
            {"decided_locally_per_s": 40.0},
            "web-2 applies limits that still rise after an outage of Redis; web-3 is silent: its limits are"
            f" unknown; web-1 decides locally. There, {ALONE}",
        ),
        # S2-13: a pod that was paused had no rate yet, and its answers from Redis were late.
        (others(redis_p99_us=500_000), {}, "web-3 waits too long for Redis"),
    ],
)
def test_exact_is_said_only_while_every_limit_is_decided_together(servers, figures, why):
    """S1.3: it was said during the ramp, and while every request was decided locally."""
    live = picture(fleet(*servers, figures=with_figures(**figures)))
    assert live.verdict.pods.endswith(f"Limits are approximate: {why}.")
    assert live.inexact == why
    feet = [tile.foot for tile in (*live.tiles, *live.server_tiles)]
    assert "limits are exact" not in feet


def test_a_pod_without_redis_counts_as_such_whatever_configuration_it_has():
    """A rejected or old configuration hid the mode: "0 of 3 pods" were on local fallback."""
    both = fleet(*others(mode="local", mode_since=NOW - 60, config_status="rejected"))
    live = picture(both)
    assert said_by(live) == ["web-3 rejected the configuration", "1 pod uses local limits"]
    [tile] = (tile for tile in live.tiles if tile.key == "local")
    assert (tile.value, tile.foot, tile.over) == ("1", "web-3", True)
    # Its row is among those that the filter of the tile shows, and among those of its own problem.
    assert [row.kinds for row in live.fleet.rows] == ["rejected local", "shared", "shared"]
    gone = picture(fleet(*others(state="offline", mode="local"))).fleet.rows
    assert gone[0].kinds == "silent"
    old = others(mode="ramping", revision=6)
    live = picture(fleet(*old, revisions=((6, NOW - 60), (7, NOW - 50))))
    assert said_by(live) == ["web-3 has old configuration", "web-3 is ramping up after an outage of Redis"]
    assert live.inexact == "web-3 applies limits that still rise after an outage of Redis"


def test_a_fleet_without_pods_says_so_once():
    """It read "No pod is reporting. No pod is reporting. No pod reports 1 breaker."."""
    verdict = picture(replace(fleet(), servers=())).verdict
    assert (verdict.calm, verdict.pods, verdict.breakers) == ("No pod is reporting.", "", "")
    away = picture(replace(fleet(as_of=NOW - 30), servers=())).verdict
    assert (away.pods, away.breakers) == ("No pod is reporting.", "")
    assert away.sentences[0].link == "/runbooks/postgres-away"


def test_a_pods_row_says_exact_only_while_its_limits_are():
    figures = with_figures(decided_locally_per_s=5.0)
    slow = (pod(1), pod(2, redis_p99_us=47_000), pod(3, mode="ramping"))
    assert [row.limits for row in picture(fleet(*slow, figures=figures)).fleet.rows] == [
        *("ramping up", "some local", "shared"),
    ]
    assert {row.limits for row in picture(fleet()).fleet.rows} == {"exact"}
    assert picture(fleet(*others(state="offline"))).fleet.rows[0].limits == "unknown"


def test_the_worst_of_the_pods_of_one_mode_come_first():
    """A pod with "some local" and the slowest Redis was the last of a list that said "worst first"."""
    pods = (
        *(pod(1), pod(2, redis_p99_us=47_000)),
        *(pod(3, load=PodLoad(level="shed")), pod(4, load=PodLoad(cpu=990))),
    )
    rows = picture(fleet(*pods)).fleet.rows
    assert [row.name for row in rows] == ["web-4", "web-3", "web-2", "web-1"]
    assert [row.late for row in rows] == [False, False, True, False]


def test_an_alert_that_fires_on_below_its_threshold_is_not_calm():
    """0.46 % are refused: below the threshold of 0.5 %, and above the 0.45 % at which an alert ends."""
    facts = fleet(figures=with_figures(requests_per_s=1_000.0, refused_per_s=4.6))
    stored = StoredAlert(
        id=1,
        key="429",
        state=AlertState.FIRING,
        severity="warning",
        level=1,
        text="",
        detail="",
        runbook="",
        subject=Subject(kind="tenants"),
        true_since=NOW - 300,
        level_since=NOW - 300,
        fired_at=NOW - 180,
    )
    assert [one.key for one in build(facts, History(), FirstSeen()).alerts] == []
    [shown] = build(facts, History(), FirstSeen(), stored={"429": stored}).alerts
    assert (shown.key, shown.severity) == ("429", "warning")


def test_without_a_gateway_no_tile_and_no_sentence_invents_a_figure():
    """Tiles said 0/s, "retries are off" and "no bulkhead is on", and the text that pods use shared limits."""
    live = picture(fleet(figures=FleetFigures(), figures_at=NOW - 15))
    for tile in (*live.tiles, *live.server_tiles):
        assert (tile.value, tile.unit, tile.foot, tile.over) == ("no data", "", "since 03:12:32", False)
    since = "no data since 03:12:32 UTC"
    assert live.calls == since
    assert live.verdict.pods == f"Pods, breakers and rates are as last known: {since}."
    assert live.verdict.breakers == ""
    assert live.verdict.since == NOW - 15
    # The page of the pods begins with the sentence of the overview.
    assert live.verdict.unheard == live.verdict.sentences[0]
    assert (live.fleet.attention, [row.limits for row in live.fleet.rows]) == (3, ["unknown"] * 3)


@pytest.mark.parametrize(
    ("facts", "until"),
    [
        (fleet(as_of=NOW - 30), NOW - 30),
        # Gateways had stopped long before Postgres did, or reported in its place for a while.
        (fleet(as_of=NOW - 30, figures=FleetFigures(), figures_at=NOW - 900), NOW - 900),
        (fleet(as_of=NOW - 30, figures_at=NOW - 15), NOW - 15),
        (fleet(as_of=NOW - 30, figures=FleetFigures()), None),
    ],
)
def test_without_postgres_rates_are_of_when_a_gateway_reported_last(facts, until):
    assert facts.current_until == until


@pytest.mark.parametrize(
    ("facts", "unheard"),
    [
        (fleet(as_of=NOW - 30), "Postgres"),
        # Gateways report pods and rates in its place.
        (fleet(as_of=NOW - 30, gateways_reporting=1), None),
        (fleet(), None),
    ],
)
def test_without_postgres_pods_are_as_known_only_if_no_gateway_reports_them(facts, unheard):
    live = picture(facts)
    found = live.verdict.unheard
    assert (found and found.subject) == unheard
    assert live.fleet.heard is (unheard is None)
    shared = next(tile for tile in live.server_tiles if tile.key == "shared")
    assert shared.value == ("3" if unheard is None else "no data")


def test_an_open_breaker_was_open_when_a_gateway_was_heard_last():
    silent = fleet(*others(view=OPEN), figures=FleetFigures(), figures_at=NOW - 15)
    assert headline(silent) == ["No gateway is reporting", "payments-api was open"]


def test_two_rules_with_the_same_words_are_one_sentence():
    """ "100 % of requests fail. 100 % of requests fail." hid that Redis was down."""
    store = StoreFigures(asked_per_s=100.0, timeouts_per_s=100.0, primaries=1, primaries_down=1)
    servers = [pod(number, mode="local") for number in (1, 2, 3)]
    said = headline(fleet(*servers, figures=with_figures(store=store)))
    assert said == ["Redis is down", "Every pod uses local limits", "100 % of requests to Redis fail"]


def test_pods_that_no_gateway_hears_are_not_called_silent():
    silent = [pod(number, state="unknown") for number in (1, 2, 3)]
    assert headline(fleet(*silent, figures=FleetFigures(), figures_at=NOW - 15)) == [
        "No gateway is reporting"
    ]
