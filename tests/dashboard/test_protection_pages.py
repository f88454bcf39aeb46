"""What pages display of pods that protect themselves."""

from dataclasses import replace

import pytest

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.fleet.call_figures import CallFigures, SlotFigures
from controlplane.fleet.live import FleetFigures
from controlplane.policies.protection import CALL, changed
from controlplane.policies.sizing import slots_needed, suggested_rate
from controlplane.status.facts import Dependency, Facts, PodLoad, Server
from controlplane.validation import Problems
from dashboard.live.history import History
from dashboard.live.overview import build
from dashboard.live.pages import page_of
from dashboard.live.runbook_values import Scene, value_of
from dashboard.live.topics import Topic, fragments

NOW = 1_795_144_367.0
PROTECTED = changed(Problems(), {}, {"bulkhead": {}, "retry": {}}, CALL)
TIERS = (
    SlotFigures("critical", limit=50, active=12),
    SlotFigures("standard", limit=34, active=34, queued=20, full_per_s=2.5, timed_out_per_s=1.0),
    SlotFigures("optional", limit=16, active=16, queued=3),
)
CALLS = CallFigures(
    tiers=TIERS,
    callers=2,
    mean_ms=30_000.0,
    first_calls_per_s=4.0,
    retries_per_s=0.5,
    helped_per_s=0.25,
    no_budget_per_s=1.5,
    fallbacks_per_s=3.5,
    observed_per_s=0.0,
)
HOT = PodLoad(
    pressure=820, level="shed", cause="94 calls wait <b>", in_flight=40, waiting=94, cpu=910, unready=True
)


def facts(protection: dict[str, object] = PROTECTED, calls: CallFigures | None = CALLS) -> Facts:
    return Facts(
        now=NOW,
        as_of=NOW,
        epoch=1,
        revision=7,
        servers=(
            Server(name="web-1", last_seen=NOW, epoch=1, revision=7, load=HOT),
            Server(name="web-2", last_seen=NOW, epoch=1, revision=7, load=PodLoad()),
            Server(name="old", last_seen=NOW, epoch=1, revision=7),
        ),
        dependencies=(Dependency(name="payments-api", protection=protection),),
        figures=FleetFigures(gateways=1, protection={"payments-api": calls} if calls else {}),
    )


def drawn(page: str, some: Facts) -> dict[str, str]:
    live = build(some, History(), FirstSeen())
    context = page_of(Topic(page=page, role="viewer", key="payments-api"), live, History()).context
    return {one.target: one.html(context) for one in fragments(Topic(page=page, role="viewer"), context)}


@pytest.mark.django_db
def test_the_page_of_a_dependency_shows_each_tier_retries_and_fallbacks() -> None:
    html = drawn("breaker", facts())["protection"]
    text = " ".join(html.split())
    for words in ("12 / 50", "34 / 34", "20 / 60", "16 / 16", "2.5/s", "Standard", "2 pods report"):
        assert words in text, words
    assert "0.5/s for 4.0 first calls/s" in text or "0.5/s for 4 first calls/s" in text
    assert "1.5/s had no budget" in text
    assert "3.5/s used" in text


@pytest.mark.django_db
def test_fallbacks_that_no_pod_counts_are_not_0_per_second() -> None:
    """It read "orders are taken and charged later" beside "0/s used", while 29.9 calls/s were blocked."""
    none = replace(CALLS, fallbacks_per_s=0.0, fallback_failures_per_s=0.0)
    text = " ".join(drawn("breaker", facts(calls=none))["protection"].split())
    assert "the agent used none in the last 5 s. It does not count what the service does itself." in text
    assert "0/s used" not in text
    live = build(facts(calls=none), History(), FirstSeen())
    value = value_of("fallbacks", Scene(live=live, breaker=live.breaker("payments-api")))
    assert value == "none by the agent; those of the service itself are not counted"
    live = build(facts(), History(), FirstSeen())
    assert value_of("fallbacks", Scene(live=live, breaker=live.breaker("payments-api"))) == "3.5/s"


@pytest.mark.django_db
def test_it_suggests_sizes_from_the_present_latency() -> None:
    """50 slots, calls of 30 s, margin 0.8: 80 per minute."""
    assert suggested_rate(50, 30_000) == 80
    assert suggested_rate(0, 30_000) == suggested_rate(50, 0) == 0
    assert slots_needed(2.0, 30_000) == 60
    html = drawn("breaker", facts())["protection"]
    assert "50 slots of a pod suit a local rate of 80 per 60 s" in html
    assert "Calls need 60" in html
    assert (
        "suit a local rate" not in drawn("breaker", facts(calls=replace(CALLS, mean_ms=None)))["protection"]
    )


@pytest.mark.django_db
def test_it_shows_latency_waits_and_an_adaptive_queue_beside_its_prediction() -> None:
    measured = replace(CALLS, p95_ms=41_000.0, wait_p95_ms=80.0, queue_size=96, queue_predicted=25)
    text = " ".join(drawn("breaker", facts(calls=measured))["protection"].split())
    assert "In the last 5 to 10 s, calls took 30 s on average, p95 41 s; p95 of the wait" in text
    assert "for a slot 80 ms." in text
    assert "have 96 places: 23 calls wait, Little&#x27;s law predicts 25." in text
    # Pods of an older version report neither.
    old = drawn("breaker", facts())["protection"]
    assert "calls took" not in old
    assert "Little" not in old


@pytest.mark.django_db
def test_it_shows_what_services_do_wrong_with_slots() -> None:
    text = " ".join(
        drawn("breaker", facts(calls=replace(CALLS, reclaimed=3, nested=1_700)))["protection"].split()
    )
    assert "3 calls were never reported and lost their slots" in text
    assert "1,700 calls found no free slot while their own task had one" in text
    assert "Since these pods started" not in drawn("breaker", facts())["protection"]


@pytest.mark.django_db
def test_a_queue_is_highlighted_before_it_is_full() -> None:
    def hot(queued: int) -> bool:
        tiers = (SlotFigures("critical", limit=50, active=50, queued=queued),)
        return 'class="st-warn"' in drawn("breaker", facts(calls=replace(CALLS, tiers=tiers)))["protection"]

    # Two pods with 30 places each.
    assert (hot(48), hot(49)) == (False, True)


@pytest.mark.django_db
def test_it_says_so_when_nothing_protects_or_no_pod_reports() -> None:
    assert "No bulkhead" in drawn("breaker", facts({}))["protection"]
    quiet = drawn("breaker", facts(calls=None))["protection"]
    assert "0 pods report" in quiet
    assert "<table" not in quiet


def test_the_list_of_pods_shows_pressure_with_its_cause() -> None:
    html = drawn("servers", facts())
    rows = html["rows"]
    assert "pressure 0.82, unready" in rows
    assert "94 calls wait &lt;b&gt;" in rows
    assert rows.count("pressure") == 1


def test_the_headline_names_what_protects_itself() -> None:
    live = build(facts(), History(), FirstSeen())
    said = [" ".join((one.subject, one.join, one.verb)) for one in live.verdict.sentences]
    assert said[0] == "web-1 is under pressure"
    assert {alert.key.partition(":")[0] for alert in live.alerts} >= {
        "pressure",
        "bulkhead",
        "retry-budget",
        "unhealthy",
    }


@pytest.mark.django_db(transaction=True)
def test_the_page_of_a_pod_shows_its_load(log_in, production) -> None:
    from fleet_rows import put_server

    put_server(
        "web-1",
        load={
            "pressure": 820,
            "level": "shed",
            "cause": "94 calls wait",
            "cpu": 950,
            "waiting": 94,
            "slots": 50,
            "slots_in_use": 38,
            "queued": 9,
            "retries_per_s": 1.5,
        },
    )
    put_server("web-2")
    client = log_in("vera")
    page = " ".join(client.get("/servers/web-1").content.decode().split())
    for words in ("0.82", "sheds the lowest tiers", "94 calls wait", "95 %", "Unhealthy: CPU is at 95 %"):
        assert words in page, words
    assert "38 of 50 / 9" in page
    assert "1.5 retries/s" in page
    assert "In flight" not in client.get("/servers/web-2").content.decode()
