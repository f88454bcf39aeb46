"""What Envoy asked pods for: from their heartbeats through gateways and Postgres to the API."""

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from controlplane.api.routes.fleet import descriptor_figures as routes
from controlplane.erasure import erase
from controlplane.fleet.descriptor_figures import STEP_S, STEPS, asked_lately
from controlplane.gateway.postgres.flush import Flusher
from controlplane.gateway.process import Gateway
from controlplane.gateway.servers import descriptor_figures
from controlplane.gateway.servers.descriptor_figures import DescriptorFigures
from fuseboard.contract.descriptor_tallies import (
    DescriptorTally,
    RuleTally,
    UnmatchedTally,
    known_rules,
)
from fuseboard.contract.descriptors import DescriptorDomain, DescriptorRule
from fuseboard.contract.policy import Limit
from fuseboard.contract.sync import encode
from tests.controlplane.calling import API, send, token_of
from tests.controlplane.gateway.manual_gateway import (
    NOON,
    TurnedClock,
    beat,
    configuration,
    policy,
    post,
    ready_gateway,
)
from tests.controlplane.series.test_tenant_hours import obey
from tests.people import ADA

LIMIT = Limit(name="rate_limit", limit=10, window_ms=60_000)
EDGE = DescriptorDomain(
    domain="edge",
    rules=(
        DescriptorRule(key="tenant", then=(DescriptorRule(key="path", value="/v1/*", limit=LIMIT),)),
        DescriptorRule(key="ip", limit=LIMIT),
    ),
)
KNOWN = known_rules([EDGE])
PATH = "tenant > path=/v1/*"


def tally(number: int, *rows: Any, left_out: int = 0) -> DescriptorTally:
    return DescriptorTally(
        number=number,
        rules=tuple(row for row in rows if isinstance(row, RuleTally)),
        unmatched=tuple(row for row in rows if isinstance(row, UnmatchedTally)),
        left_out=left_out,
    )


def gateway_with_rules(clock: TurnedClock, name: str = "g1") -> Gateway:
    gateway = ready_gateway(clock, gateway=name)
    gateway.configurations["production"] = configuration(document=policy(descriptors=(EDGE,)))
    return gateway


async def report(gateway: Gateway, pod: str, *tallies: DescriptorTally | None, **fields: Any) -> None:
    for one in tallies:
        answer = await post(gateway, encode(beat(pod, descriptors=one, **fields)))
        assert answer.status_code == 200


async def write(gateway: Gateway, clock: TurnedClock) -> None:
    clock.turn(descriptor_figures.AGAIN_S)
    flusher = Flusher(gateway.fleets, gateway.settings, gateway.counts, clock)
    await flusher.write(with_figures=True)
    await flusher.disconnect()


def documents(kept: DescriptorFigures) -> dict[str, Any]:
    """All that are due."""
    found: dict[str, Any] = {}
    while part := kept.due(float("inf")):
        found |= dict(part)
    return found


def document(kept: DescriptorFigures) -> dict[str, Any]:
    return documents(kept)["edge"]


@pytest.mark.usefixtures("token", "thread_connections")
async def test_the_figures_of_all_pods_and_gateways_are_read_together(database: Any) -> None:
    clock = TurnedClock()
    first, second = gateway_with_rules(clock, "g1"), gateway_with_rules(clock, "g2")
    unmatched = UnmatchedTally("edge", "tenant > method", 3, ("acme > GET", "globex > GET"))
    await report(first, "pod-1", tally(1, RuleTally("edge", PATH, 10, 4, 1), unmatched))
    await report(first, "pod-2", tally(1, RuleTally("edge", PATH, 5)), None)
    await report(
        second,
        "pod-3",
        tally(
            7,
            RuleTally("edge", "ip", 2, 2),
            UnmatchedTally("edge", "tenant > method", 4, ("acme > GET", "umbrella > POST", "x > PUT")),
            UnmatchedTally("egde", "ip", 1),
        ),
    )
    for gateway in (first, second):
        await write(gateway, clock)
    found = await sync_to_async(asked_lately)("production", clock.wall())
    assert found.since == int(clock.wall()) // STEP_S * STEP_S - (STEPS - 1) * STEP_S
    edge, misspelled = found.domains
    assert {rule: (one.asked, one.refused, one.shadow) for rule, one in edge.rules.items()} == {
        PATH: (15, 4, 1),
        "ip": (2, 2, 0),
    }
    assert [(one.keys, one.asked) for one in edge.unmatched] == [("tenant > method", 7)]
    assert edge.unmatched[0].examples == ("acme > GET", "globex > GET", "umbrella > POST")
    assert (edge.unmatched_total, misspelled.domain, misspelled.unmatched_total) == (7, "egde", 1)
    assert found.of("edge") is edge
    assert found.of("other").rules == {}
    assert (await sync_to_async(asked_lately)("staging", clock.wall())).domains == ()


@pytest.mark.usefixtures("token", "thread_connections")
async def test_they_are_those_of_the_last_quarter_of_an_hour(database: Any) -> None:
    clock = TurnedClock()
    gateway = gateway_with_rules(clock)
    await report(gateway, "pod-1", tally(1, RuleTally("edge", PATH, 1)))
    clock.turn(15 * 60)
    await report(gateway, "pod-1", tally(2, RuleTally("edge", PATH, 20)))
    await write(gateway, clock)
    found = await sync_to_async(asked_lately)("production", clock.wall())
    assert found.of("edge").rules[PATH].asked == 21
    clock.turn(STEP_S)
    found = await sync_to_async(asked_lately)("production", clock.wall())
    assert found.of("edge").rules[PATH].asked == 20
    await report(gateway, "pod-1", tally(3, RuleTally("edge", PATH, 300)))
    await write(gateway, clock)
    found = await sync_to_async(asked_lately)("production", clock.wall())
    assert found.of("edge").rules[PATH].asked == 320


async def test_a_tally_that_is_repeated_counts_once() -> None:
    gateway = gateway_with_rules(TurnedClock())
    kept = gateway.fleet("production").sums.descriptors
    one = tally(1, RuleTally("edge", PATH, 10), left_out=2)
    await report(gateway, "pod-1", one, one, tally(2, RuleTally("edge", PATH, 1)), one)
    assert document(kept)["steps"][0][1]["rules"] == {PATH: [11, 0, 0]}
    assert kept.left_out == 2
    # Another process begins again.
    await report(gateway, "pod-1", one, boot="boot-0002", up_ms=1)
    assert document(kept)["steps"][0][1]["rules"] == {PATH: [21, 0, 0]}
    # The process that it replaced comes late.
    await report(gateway, "pod-1", tally(3, RuleTally("edge", PATH, 100)))
    assert kept.due(float("inf")) == []


async def test_a_pod_that_invents_counts_changes_little() -> None:
    """A pod and its token are not trusted with the figures of the fleet."""
    gateway = gateway_with_rules(TurnedClock())
    kept = gateway.fleet("production").sums.descriptors
    most = 2**31 - 1
    await report(
        gateway, "honest", tally(1, RuleTally("edge", PATH, 10), UnmatchedTally("edge", "method", 9))
    )
    for number in range(1, 30):
        rows = [
            *(RuleTally("edge", f"invented-{number}-{n}", most, most, most) for n in range(199)),
            *(UnmatchedTally(f"domain-{number}-{n}", "x" * 200, most, ("y" * 40,) * 3) for n in range(50)),
            *(UnmatchedTally("edge", f"keys-{number}-{n}", most, ("y" * 40,) * 3) for n in range(50)),
        ]
        await report(gateway, "hostile", tally(number, *rows, RuleTally("edge", "ip", most, most, most)))
    found = documents(kept)
    assert set(found) == {"edge", *(f"domain-1-{n}" for n in range(5))}
    ((_, step),) = found["edge"]["steps"]
    assert step["rules"][PATH] == [10, 0, 0]
    assert set(step["rules"]) == {PATH, "ip"}
    assert max(step["rules"]["ip"]) <= 29 * descriptor_figures.MAX_COUNT
    assert len(step["unmatched"]) <= descriptor_figures.MAX_LISTS
    assert any(keys == "method" for keys, _, _ in step["unmatched"])
    assert len(encode(found)) < 200_000
    assert kept.left_out > most


async def test_many_pods_bring_a_bounded_number_of_unknown_domains() -> None:
    kept = DescriptorFigures()
    for number in range(20):
        rows = [UnmatchedTally(f"domain-{number}-{n}", "ip", 1) for n in range(9)]
        kept.record(beat(f"pod-{number}", descriptors=tally(1, *rows)), KNOWN, NOON)
    assert len(documents(kept)) == descriptor_figures.MAX_UNKNOWN
    assert kept.left_out == 20 * 9 - descriptor_figures.MAX_UNKNOWN
    # There is always room for those of the configuration, and later for others.
    kept.record(beat("late", descriptors=tally(1, UnmatchedTally("edge", "ip", 1))), KNOWN, NOON)
    assert document(kept)["steps"]
    later = NOON + STEPS * STEP_S
    kept.record(beat("later", descriptors=tally(1, UnmatchedTally("egde", "ip", 1))), KNOWN, later)
    assert set(documents(kept)) == {"egde"}


@pytest.mark.parametrize(
    "rows",
    [
        {"rules": [["edge", "x" * 201, 1]]},
        {"rules": [["edge", PATH, -1]]},
        {"rules": [["", PATH, 1]]},
        {"rules": [["edge", PATH, 1]] * 201},
        {"unmatched": [["edge", "x", 1, ["y" * 41]]]},
        {"unmatched": [["edge", "x", 1, ["y"] * 4]]},
        {"unmatched": [["e" * 101, "x", 1]]},
    ],
)
async def test_a_tally_that_is_too_large_is_refused(rows: dict[str, Any]) -> None:
    gateway = gateway_with_rules(TurnedClock())
    body = encode(beat("pod-1")).decode().removesuffix("}")
    answer = await post(gateway, f'{body},"descriptors":{encode({"number": 1} | rows).decode()}}}'.encode())
    assert answer.status_code in (400, 422)


def test_a_row_is_written_again_if_postgres_refused_it() -> None:
    kept = DescriptorFigures()
    kept.record(beat("pod-1", descriptors=tally(1, RuleTally("edge", "ip", 1))), KNOWN, NOON)
    assert [name for name, _ in kept.due(10.0)] == ["edge"]
    assert kept.due(20.0) == []
    kept.put_back(["edge", "other"])
    assert kept.due(10.0 + descriptor_figures.AGAIN_S - 1) == []
    assert [name for name, _ in kept.due(20.0)] == ["edge"]
    kept.forget("edge")
    kept.put_back(["edge"])
    assert kept.due(30.0) == []


def test_a_step_names_the_pods_that_answered_most_and_no_more_than_a_bound() -> None:
    kept = DescriptorFigures()
    most = descriptor_figures.MAX_LISTED
    for number in range(3 * most):
        rule = RuleTally("edge", "ip", 1_000 if number < 2 else 1)
        unmatched = UnmatchedTally("edge", "x", 5) if number == 1 else UnmatchedTally("edge", "x", 0)
        kept.record(beat(f"pod-{number}", descriptors=tally(1, rule, unmatched)), KNOWN, NOON)
    pods = document(kept)["steps"][0][1]["pods"]
    assert len(pods) <= most
    assert [pod for pod, _ in pods[:2]] == ["pod-1", "pod-0"]
    assert 1_000 < pods[0][1] <= 1_005


def test_each_pod_of_a_large_fleet_is_counted_from_all_its_heartbeats() -> None:
    kept = DescriptorFigures()
    for number in range(1, 4):
        for pod in range(5 * descriptor_figures.MAX_LISTED):
            rule = RuleTally("edge", "ip", 100)
            kept.record(beat(f"pod-{pod}", descriptors=tally(number, rule)), KNOWN, NOON)
    step = document(kept)["steps"][0][1]
    assert [asked for _, asked in step["pods"]] == [300] * descriptor_figures.MAX_LISTED
    assert step["pods_total"] == 5 * descriptor_figures.MAX_LISTED


@pytest.mark.parametrize("kind", ["tenant", "user", "ip", "api_key"])
@pytest.mark.usefixtures("token", "thread_connections")
async def test_no_example_names_a_caller_that_was_erased(database: Any, kind: str) -> None:
    clock = TurnedClock()
    gateway = gateway_with_rules(clock)
    rule, unmatched = RuleTally("edge", "ip", 1), UnmatchedTally("calls", "who", 3, ("anna",))
    await report(gateway, "pod-1", tally(1, rule, unmatched))
    await write(gateway, clock)
    await sync_to_async(erase)(
        environment="production", kind=kind, value="anna", reason="ticket 12", actor=ADA
    )
    assert (await sync_to_async(asked_lately)("production", clock.wall())).domains == ()
    await obey(gateway, database)
    await write(gateway, clock)
    calls, edge = (await sync_to_async(asked_lately)("production", clock.wall())).domains
    assert (calls.unmatched[0].asked, calls.unmatched[0].examples) == (3, ())
    assert edge.rules["ip"].asked == 1


@pytest.mark.usefixtures("token", "thread_connections")
async def test_the_api_has_the_figures_and_the_pods(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = TurnedClock()
    monkeypatch.setattr(routes, "time", clock.wall)
    gateway = gateway_with_rules(clock)
    unmatched = UnmatchedTally("edge", "x", 1, ("y",))
    await report(gateway, "pod-1", tally(1, RuleTally("edge", "ip", 3, 1), unmatched))
    await report(gateway, "pod-2")
    await write(gateway, clock)
    token = await sync_to_async(token_of)("viewer")
    answer = await sync_to_async(send)(token, "GET", f"{API}/descriptor-figures")
    assert answer.status_code == 200
    assert answer.json()["domains"] == [
        {
            "domain": "edge",
            "rules": [{"rule": "ip", "asked": 3, "refused": 1, "shadow": 0}],
            "unmatched": [{"keys": "x", "asked": 1, "examples": ["y"]}],
            "unmatched_total": 1,
        }
    ]
    (pod,) = answer.json()["pods"]
    assert pod.pop("started_at")
    assert pod == {"name": "pod-1", "service": "checkout", "state": "online", "revision": 0, "asked": 4}
    assert answer.json()["pods_total"] == 1
