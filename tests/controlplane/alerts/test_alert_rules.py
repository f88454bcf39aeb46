"""Each alert rule fires when it should and not when it should not. No database, no clock."""

import re
from dataclasses import replace

import pytest
from msgspec import structs

from controlplane.alerts.lifecycle import AlertEvent, AlertState, advance
from controlplane.alerts.people.rule_words import RULE_CHOICES, RULES_TO_MUTE, sentence_of
from controlplane.alerts.rules.every import RULES, timing_of
from controlplane.alerts.rules.rule import Finding, Subject
from controlplane.alerts.rules.texts import past
from controlplane.alerts.state.evaluate import FirstSeen, evaluate
from controlplane.fleet.call_figures import CallFigures, SlotFigures
from controlplane.fleet.live import FleetFigures, TenantFigures
from controlplane.publishing.unknown_revisions import UnknownRevision
from controlplane.status.facts import (
    Dependency,
    Facts,
    Observing,
    PodLoad,
)
from controlplane.status.status import status_of
from tests.controlplane.alerts.alert_facts import (
    CLOSED,
    FULL,
    HOT,
    NOW,
    ONE_OF_TWO_LOCAL,
    OPEN,
    behind,
    facts,
    figures,
    override,
    pod,
    quota_end,
    slow,
)
from tests.controlplane.alerts.lock_alert_cases import LOCK_CASES
from tests.controlplane.alerts.store_alert_cases import LOCAL, STORE_CASES
from tests.controlplane.alerts.traffic_alert_cases import TRAFFIC_CASES

#: Texts without a verb in the present, or about a moment to come.
SAME_IN_THE_PAST = re.compile(
    "heartbeat|in a drill|fallback|pressure|unhealthy|failed|went|rejected|shed|Overdue|expires|ends|was"
)
#: Of each rule: facts for which it is true, the text then, and facts for which it is only just false.
CASES: list[tuple[tuple[str, str], Facts, str, Facts]] = [
    (
        ("429", "critical"),
        figures(requests_per_s=100, refused_per_s=5, tenants=[TenantFigures("acme", 60, 4)]),
        "5 % of requests are refused. 5 of 100/s. Most are from acme. More than 0.5 % is a warning, more"
        " than 2 % is critical.",
        figures(requests_per_s=100, refused_per_s=2),
    ),
    (
        ("429", "critical"),
        facts(
            figures=FleetFigures(
                gateways=1,
                requests_per_s=100,
                refused_per_s=15,
                refused_by_reason={"suspended": 10.0},
                tenants=[TenantFigures("initech", 10, 10), TenantFigures("acme", 60, 4)],
            ),
            suspended=frozenset({"initech"}),
        ),
        "5 % of requests are refused. 5 of 100/s. Most are from acme. Besides, 10/s of suspended tenants are"
        " refused on purpose. More than 0.5 % is a warning, more than 2 % is critical.",
        figures(requests_per_s=100, refused_per_s=90, refused_by_reason={"suspended": 90.0}),
    ),
    (
        ("429", "warning"),
        figures(requests_per_s=1000, refused_per_s=6),
        "0.6 % of requests are refused. 6 of 1,000/s. More than 0.5 % is a warning, more than 2 % is"
        " critical.",
        figures(requests_per_s=1000, refused_per_s=5),
    ),
    (
        ("ahead", "critical"),
        facts(ahead="Redis has revision 1.9"),
        "Edits are not published: Postgres was restored. Redis has revision 1.9, which Postgres does not"
        " have. Start a new epoch.",
        facts(),
    ),
    (
        ("divided", "warning"),
        # A pod that probes refuses nearly every call, as an open breaker does.
        facts(
            *(pod("web-1", OPEN), pod("web-2", replace(OPEN, state="half_open")), pod("web-3")),
            pod("web-4", state="offline"),
        ),
        "web-3 lets calls to payments-api pass while its breaker is open. web-3: closed. A pod that uses"
        " Redis applies the state of the fleet within 10 s.",
        facts(pod("web-1", OPEN), pod("web-3", mode="drill")),
    ),
    (
        ("divided", "warning"),
        facts(
            pod("web-1"),
            *(pod(f"web-{n}", replace(OPEN, local=True), mode="local") for n in range(2, 7)),
        ),
        "5 pods refuse calls to payments-api while its breaker is closed. web-2: open, by its own breaker,"
        " web-3: open, by its own breaker, web-4: open, by its own breaker, and 2 more. A pod that uses Redis"
        " applies the state of the fleet within 10 s.",
        # Without a pod that uses Redis, each has its own breaker, and none is the fleet's.
        facts(
            pod("web-1", replace(CLOSED, local=True), mode="local"),
            pod("web-2", replace(OPEN, local=True), mode="local"),
        ),
    ),
    (
        ("drill", "warning"),
        facts(pod(mode="drill"), pod("web-2")),
        "1 pod in a drill. It simulates a slow or unreachable Redis until the drill ends.",
        facts(pod(mode="ramping"), pod("web-2")),
    ),
    (
        ("duplicated", "warning"),
        facts(duplicated=("web-1",)),
        "Two processes report as web-1. Each process counts as a pod, but the figures of one of the two are"
        " missing.",
        facts(),
    ),
    (
        ("frozen", "warning"),
        figures(frozen=True, frozen_silent=6, frozen_expected=20, frozen_until=NOW + 60),
        "Many pods went silent at once. 6 of 20 pods are silent. The gateway probably lost contact with them,"
        " so none is marked offline until 03:13 UTC on 20 November at the latest. If they really stopped, an"
        " operator can mark them offline on the Pods page.",
        figures(frozen=False),
    ),
    (
        ("override", "warning"),
        facts(override=override("forced_closed")),
        "payments-api is forced closed. It cannot open during the override. Check that the dependency bears"
        " the load.",
        facts(override=override("forced_closed", expires_at=NOW)),
    ),
    (
        ("lag", "critical"),
        behind(31),
        "web-1 has old configuration. 31 s behind. This pod does not have edits made since then.",
        behind(30),
    ),
    (
        ("lag", "warning"),
        behind(11),
        "web-1 has old configuration. 11 s behind. This pod does not have edits made since then.",
        behind(10),
    ),
    (
        ("local", "critical"),
        facts(pod(mode="local"), pod("web-2", mode="local")),
        "Redis is unreachable from every pod. Limits are approximate: limits with a local share allow 1/2"
        " of their value, and limits that fail open allow every call."
        " Breakers work from each pod\u2019s own counters.",
        ONE_OF_TWO_LOCAL,
    ),
    (
        ("local", "warning"),
        ONE_OF_TWO_LOCAL,
        "1 pod on local fallback. Limits are approximate: limits with a local share allow 1/2 of"
        " their value, and limits that fail open allow every call."
        " Breakers work from each pod\u2019s own counters.",
        facts(pod(mode="ramping"), pod("web-2")),
    ),
    (
        ("near", "warning"),
        facts(pod(view=replace(CLOSED, failures=9))),
        "payments-api is near its threshold. 9 of 40 calls failed; the breaker opens at 50 %.",
        facts(pod(view=replace(CLOSED, failures=8))),
    ),
    (
        ("open", "critical"),
        facts(pod(view=OPEN)),
        "payments-api is open. 31 of 40 calls failed, opens at 50 %. Callers get: Order queue.",
        facts(pod(view=replace(OPEN, state="half_open"))),
    ),
    (
        ("overdue", "critical"),
        quota_end(NOW - 31),
        "Overdue: quota requests of acme ends. It was due at 03:12 UTC on 20 November. Check that the worker"
        " is running.",
        quota_end(NOW - 30),
    ),
    (
        ("p99", "critical"),
        slow(7_000),
        "Redis p99 is 7.0 ms. A decision waits at most 5 ms: pods decide some calls locally.",
        slow(5_000),
    ),
    (
        ("p99", "warning"),
        slow(1_100),
        "Redis p99 is 1.1 ms. Usual is below 1 ms. Above 5 ms, pods decide some calls locally.",
        slow(1_000),
    ),
    (
        ("rejected", "critical"),
        facts(pod(config_status="rejected"), pod("web-2", config_status="rejected")),
        "2 pods rejected the configuration. They keep the last valid configuration. The error is in the"
        " pod\u2019s row.",
        facts(),
    ),
    (
        ("schedules", "critical"),
        facts(schedules_failed=2),
        "2 scheduled changes failed. Nothing was changed. Make the change by hand, or schedule it again.",
        facts(schedules_failed=0),
    ),
    (
        ("silent", "warning"),
        facts(pod(state="unknown", last_seen=NOW - 40), pod("web-2")),
        "No heartbeat from web-1. It may have stopped, or may be cut off from the control plane and still"
        " decide calls.",
        facts(pod(state="late"), pod("web-2", state="gone")),
    ),
    (
        ("new-pods", "warning"),
        figures(new_pods_refused=3),
        "New pods are refused. 3 heartbeats within a minute, because a token brought too many new names."
        " These pods decide with Redis, but are not displayed.",
        figures(new_pods_refused=0),
    ),
    (
        ("writes-refused", "warning"),
        figures(writes_refused={"gateway-1": 3}),
        "Postgres refuses what gateway gateway-1 writes. 3 values within ten minutes. The gateway dropped"
        " them: figures or rows of pods can be missing or old.",
        figures(writes_refused={}),
    ),
    (
        ("unknown-revision", "critical"),
        facts(epoch=1, revision=4, unknown_revisions=(UnknownRevision("web-2", 1, 9),)),
        "web-2 reports a revision that Postgres never made. web-2 reports 1.9; the newest is 1.4. Edits are"
        " still published. Either its token is misused, or Postgres was restored.",
        facts(epoch=1, revision=4),
    ),
    (
        ("soon", "warning"),
        quota_end(NOW + 60),
        "Quota requests of acme ends. Automatically, at 03:13 UTC on 20 November.",
        facts(),
    ),
    (
        ("uncounted", "warning"),
        figures(uncounted=2, live_servers=10),
        "Figures are incomplete: a gateway has just started. 2 of 10 pods are missing from the rates until"
        " their second heartbeat, a few seconds from now.",
        figures(uncounted=1, live_servers=10),
    ),
    (
        ("pressure", "critical"),
        facts(*(pod(f"web-{n}", load=HOT if n < 3 else PodLoad()) for n in range(5))),
        "3 pods under pressure. web-0: 94 calls wait. 3 pods unready.",
        facts(*(pod(f"web-{n}", load=HOT if n < 2 else PodLoad()) for n in range(4))),
    ),
    (
        ("pressure", "warning"),
        facts(*(pod(f"web-{n}", load=PodLoad() if n else HOT) for n in range(2))),
        "web-0 under pressure. web-0: 94 calls wait. 1 pod unready.",
        facts(pod(load=PodLoad(pressure=650)), pod("web-2", state="offline", load=HOT)),
    ),
    (
        ("shed", "critical"),
        figures(requests_per_s=100, refused_by_reason={"shed": 10.5}),
        "Pods shed 10.5 % of requests. 10.5/s. They answer 503 with Retry-After, to the lowest tiers first."
        " More than 1 % is a warning, more than 10 % is critical.",
        figures(requests_per_s=100, refused_by_reason={"shed": 10.0}),
    ),
    (
        ("shed", "warning"),
        figures(requests_per_s=100, refused_by_reason={"shed": 1.5}),
        "Pods shed 1.5 % of requests. 1.5/s. They answer 503 with Retry-After, to the lowest tiers first."
        " More than 1 % is a warning, more than 10 % is critical.",
        figures(requests_per_s=100, refused_by_reason={"shed": 1.0, "quota": 30.0}),
    ),
    (
        ("unhealthy", "warning"),
        facts(pod(load=PodLoad(waiting=1001, late=1001, errors_per_s=10.5, cpu=901))),
        "web-1 unhealthy. web-1: 1,001 calls wait, p95 of a route is 100 % of its SLA, 10 errors/s, CPU is at"
        " 90 %; serves all traffic: it neither sheds nor asks to be unready.",
        # A route has no SLA: a p95 of minutes says nothing.
        facts(
            pod(load=PodLoad(waiting=1000, late=1000, errors_per_s=10.0, cpu=900)),
            pod("web-2", load=PodLoad(p95_ms=200_000)),
        ),
    ),
    (
        ("observing", "warning"),
        facts(
            pod(load=PodLoad(observed_per_s=2.5)),
            pod("web-2", load=PodLoad(observed_per_s=1.0)),
            pod("web-3", state="offline", load=PodLoad(observed_per_s=9.0)),
            pod_protection={"shedding": {}},
            observing=(Observing(part="shedding", until=NOW + 60, by="ada", reason="Watch first"),),
        ),
        "Shedding is in trial mode. It refuses nothing until 03:13 UTC on 20 November, by ada: \u201cWatch"
        " first\u201d. It would have refused 3.5 requests/s.",
        facts(
            pod_protection={"shedding": {}},
            observing=(
                Observing(part="shedding", until=NOW),
                # No dependency has one.
                Observing(part="bulkhead", until=NOW + 60),
            ),
        ),
    ),
    (
        ("bulkhead", "warning"),
        figures(protection={"payments-api": FULL}),
        "The bulkhead of payments-api is full. Calls refused: standard 3.0/s, 17 of 17 slots in use. Breakers"
        " do not count them.",
        figures(protection={"payments-api": CallFigures(tiers=(SlotFigures("standard", 17, 17, 9, 9),))}),
    ),
    (
        ("retry-budget", "warning"),
        figures(
            protection={"payments-api": CallFigures(first_calls_per_s=20, retries_per_s=2, no_budget_per_s=4)}
        ),
        "The retry budget of payments-api is spent. 4.0 failed calls/s are not repeated; 2.0 retries/s are"
        " made for 20.0 calls/s.",
        figures(protection={"payments-api": CallFigures(first_calls_per_s=20, retries_per_s=2)}),
    ),
    *LOCK_CASES,
    *STORE_CASES,
    *TRAFFIC_CASES,
]


def test_calls_that_may_be_discarded_are_no_full_bulkhead() -> None:
    """``discard`` means that refusals of this tier are expected: an alert about them is noise."""
    when_full = ["queue", "abort", "discard"]
    refusing = CallFigures(tiers=(SlotFigures("optional", 7, 7, full_per_s=5.0),))

    def alerts(policies: list[str], calls: CallFigures) -> bool:
        some = figures(protection={"payments-api": calls})
        protected = replace(some.dependencies[0], protection={"bulkhead": {"when_full": policies}})
        return ("bulkhead", "warning") in found(replace(some, dependencies=(protected,)))

    assert not alerts(when_full, refusing)
    assert alerts(["queue", "abort", "abort"], refusing)
    assert alerts(when_full, FULL)


def found(some: Facts) -> dict[tuple[str, str], Finding]:
    """What fires: rule key and severity -> finding."""
    return {(one.key.partition(":")[0], one.severity): one for one in evaluate(status_of(some))}


@pytest.mark.parametrize(("rule", "fires", "text", "quiet"), CASES, ids=[f"{k}-{s}" for (k, s), *_ in CASES])
def test_a_rule_fires_when_its_test_is_true_and_only_then(
    rule: tuple[str, str], fires: Facts, text: str, quiet: Facts
) -> None:
    finding = found(fires)[rule]
    assert f"{finding.text}. {finding.detail}" == text
    assert rule not in found(quiet)


@pytest.mark.parametrize(("rule", "fires", "_text", "_quiet"), CASES)
def test_the_text_of_a_rule_has_a_past_tense(
    rule: tuple[str, str], fires: Facts, _text: str, _quiet: Facts
) -> None:
    """ "No gateway reports" stood in the present among alerts that are over."""
    text = found(fires)[rule].text
    assert past(text) != text or SAME_IN_THE_PAST.search(text), text


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, *_ in CASES} == {
        (rule.key, severity) for rule in RULES for severity in rule.severities
    }


def test_a_quiet_fleet_has_no_alerts() -> None:
    assert evaluate(status_of(facts())) == []


def test_critical_alerts_come_first_then_the_order_of_the_rules() -> None:
    bad = facts(
        pod(view=OPEN, mode="local"),
        pod("web-2", view=OPEN),
        ahead="Redis has revision 1.9",
        duplicated=("web-2",),
        dependencies=(Dependency(name="zebra"), Dependency(name="payments-api"), Dependency(name="alpha")),
        figures=FleetFigures(requests_per_s=10, refused_per_s=9, frozen=True, gateways=1),
    )
    bad = replace(
        bad,
        servers=tuple(
            structs.replace(one, breakers=dict.fromkeys(("zebra", "alpha"), OPEN)) for one in bad.servers
        ),
    )
    keys = [finding.key for finding in evaluate(status_of(bad))]
    assert keys == ["429", "ahead", "open:alpha", "open:zebra", "duplicated", "frozen", "local"]


def test_pods_on_local_fallback_are_critical_by_number_and_by_share() -> None:
    def severity(local: int, live: int) -> str:
        pods = [pod(f"web-{n}", mode="local" if n < local else "shared") for n in range(live)]
        [one] = [each for each in evaluate(status_of(facts(*pods))) if each.key == "local"]
        return one.severity

    assert [severity(local, 20) for local in (1, 3, 4)] == ["warning", "warning", "critical"]
    assert [severity(local, 4) for local in (1, 2, 3)] == ["warning", "warning", "critical"]
    assert severity(1, 1) == "critical"


def test_the_thresholds_of_redis_p99_follow_the_tuning() -> None:
    patient = replace(slow(7_000), store_deadline_us=20_000)
    [one] = evaluate(status_of(patient))
    assert (one.key, one.severity) == ("p99", "warning")
    assert evaluate(status_of(replace(slow(4_000), store_deadline_us=20_000))) == []


def test_only_the_highest_level_of_an_alert_fires() -> None:
    assert [one.key for one in evaluate(status_of(facts(*LOCAL)))] == ["local", "all-local"]
    assert [one.key for one in evaluate(status_of(ONE_OF_TWO_LOCAL))] == ["local"]


def test_a_dependency_may_name_its_own_runbook_and_an_override_has_one_for_all() -> None:
    dependency = Dependency(name="payments-api", runbook="ledger-db")
    one = found(facts(pod(view=OPEN), dependencies=(dependency,)))["open", "critical"]
    assert (one.runbook, one.subject) == ("ledger-db", Subject(kind="breaker", name="payments-api"))
    held = replace(dependency, override=override("disabled"))
    assert found(facts(dependencies=(held,)))["override", "warning"].runbook == "breaker-held-by-hand"


@pytest.mark.parametrize(
    ("some", "rule", "since"),
    [
        (facts(pod(view=OPEN)), ("open", "critical"), NOW - 20),
        (facts(override=override("disabled")), ("override", "warning"), NOW - 9),
        (ONE_OF_TWO_LOCAL, ("local", "warning"), NOW - 60),
        (behind(11), ("lag", "warning"), NOW - 11),
        (facts(pod(state="unknown", last_seen=NOW - 40)), ("silent", "warning"), NOW - 40),
        (quota_end(NOW - 31), ("overdue", "critical"), NOW - 31),
    ],
)
def test_when_an_alert_began_is_read_from_the_status_where_that_says_it(
    some: Facts, rule: tuple[str, str], since: float
) -> None:
    [dated] = FirstSeen().dated([found(some)[rule]], NOW)
    assert dated.since == since


def test_every_pod_is_local_since_the_last_one_that_was_not_left() -> None:
    """The pods became local at different times, long before the only one that used Redis stopped."""
    old = (pod(mode="local", mode_since=NOW - 3_600), pod("web-2", mode="local", mode_since=NOW - 60))
    rule, timing = ("all-local", "critical"), timing_of("all-local")
    assert rule not in found(facts(*old, pod("web-3")))
    alert = found(facts(*old, pod("web-3", state="gone")))[rule]
    first, news = advance(None, alert, timing, NOW)
    assert (first and first.state, news) == (AlertState.PENDING, None)
    assert advance(first, alert, timing, NOW + 9)[1] is None
    assert advance(first, alert, timing, NOW + 10)[1] is AlertEvent.FIRED


def test_otherwise_the_observer_remembers_it_for_as_long_as_the_alert_fires() -> None:
    seen, findings = FirstSeen(), evaluate(status_of(slow(7_000)))
    assert [one.since for one in seen.dated(findings, NOW)] == [NOW]
    assert [one.since for one in seen.dated(findings, NOW + 30)] == [NOW]
    assert [one.since for one in seen.peek(findings, NOW + 31)] == [NOW]
    seen.dated([], NOW + 32)
    assert [one.since for one in seen.peek(findings, NOW + 33)] == [NOW + 33], "peeking remembers nothing"
    assert [one.since for one in seen.dated(findings, NOW + 34)] == [NOW + 34]


def test_a_warning_of_a_slow_redis_needs_a_minute_and_a_critical_one_does_not() -> None:
    seen, high = FirstSeen(), evaluate(status_of(slow(1_100)))
    assert seen.dated(high, NOW) == seen.dated(high, NOW + 59) == ()
    assert [one.since for one in seen.dated(high, NOW + 60)] == [NOW]
    assert len(FirstSeen().dated(evaluate(status_of(slow(7_000))), NOW)) == 1


def test_a_list_of_rules_names_each_once_in_its_sentence() -> None:
    named = [(key, words) for _, rules in RULE_CHOICES for key, words in rules]
    assert sorted(key for key, _ in named) == list(RULES_TO_MUTE)
    assert all(words == sentence_of(key) and words[0].isupper() for key, words in named)
    assert all(rules for _, rules in RULE_CHOICES), "a group is empty"
    assert sentence_of("no-such-rule") == "no-such-rule"
