"""Postgres refuses one value: the others are written, and an alert says so. The value is forgotten."""

import statistics
import time
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone
from psycopg import errors

from controlplane.fleet import live
from controlplane.fleet.models import Figures, Server
from controlplane.gateway.counts import Counts, RefusedWrites
from controlplane.gateway.postgres.coordination import Coordination
from controlplane.gateway.postgres.keep_trying import KeepTrying
from controlplane.gateway.postgres.series_frames import SeriesWriter
from controlplane.gateway.process import Gateway
from controlplane.status.read_servers import read_servers
from fuseboard.contract.failures import DependencyFailures, FailedCall
from fuseboard.contract.refusal_samples import RefusalSample
from fuseboard.contract.sync import Counters, RuleCounters
from fuseboard.contract.words import Reason
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat
from tests.waiting import eventually

#: What no heartbeat can bring: the texts of each are cleaned before.
NUL = "secret\x00value"


def failing(dependency: str, number: int = 1) -> DependencyFailures:
    calls = (FailedCall(number=number, kind="timeout"),)
    return DependencyFailures(dependency=dependency, kinds={"timeout": number}, last=calls)


def counting(number: int, rule: str) -> Counters:
    return Counters(requests=number, rules=(RuleCounters(rule=rule, asked=number, refused=1),))


async def ages(database: psycopg.AsyncConnection) -> dict[str, float]:
    rows = await database.execute(
        "SELECT name, extract(epoch FROM now() - last_seen_at)::float8 FROM fleet_server"
    )
    return dict(await rows.fetchall())


async def test_one_environment_with_bad_values_delays_no_pod_and_no_figure_of_another(
    gateway: Gateway, database: psycopg.AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    # The environment with the bad values is written first.
    bad, good = gateway.fleet("a-staging"), gateway.fleet("production")
    gateway.fleets.clear()
    gateway.fleets.update({"a-staging": bad, "production": good})
    until, number = time.monotonic() + 8, 0
    oldest: list[float] = []
    while time.monotonic() < until:
        number += 1
        same = {"environment": "a-staging", "up_ms": 5_000, "service": "shop"}
        bad.absorb(
            beat(
                "evil",
                boot=f"{NUL}boot",
                counters=counting(number, NUL),
                **same,
                failures=(failing("ledger-db", number), failing("search", number)),
            )
        )
        bad.absorb(
            beat("harmless", counters=counting(number, "fine"), failures=(failing("email", number),), **same)
        )
        good.absorb(
            beat("pod-1", up_ms=5_000, counters=counting(number, "fine"), failures=(failing("llm", number),))
        )
        gateway.hurry()
        turn = gateway.counts.flushes
        await eventually(lambda turn=turn: gateway.counts.flushes > turn)
        if number > 3:
            found = await ages(database)
            oldest.append(max(found[name] for name in ("pod-1", "harmless")))
    # The machine may pause in a few turns. Rows that wait for the bad value are old in most.
    assert statistics.median(oldest) < 5, oldest
    refused = gateway.counts.refused_writes.total
    assert {what for _, what in refused} >= {"figures", "failed calls"}
    assert {environment for environment, _ in refused} == {"a-staging"}
    assert gateway.counts.flush_failures == 0
    stored = await database.execute("SELECT environment, dependency FROM fleet_failedcalls ORDER BY 1, 2")
    assert await stored.fetchall() == [("a-staging", "email"), ("production", "llm")]
    figures = await sync_to_async(live.figures)("a-staging")
    assert figures.requests_per_s > 0
    assert figures.writes_refused == {"test": pytest.approx(sum(refused.values()), rel=0.5)}
    assert not (await sync_to_async(live.figures)("production")).writes_refused
    assert "gateway.write_refused" in caplog.text
    assert "secret" not in caplog.text, "a log has no value of a pod"
    assert caplog.text.count("gateway.write_refused") < 10, "at most one line per minute for each kind"


async def test_it_ends_when_the_bad_value_is_gone(
    gateway: Gateway, database: psycopg.AsyncConnection
) -> None:
    """What was refused is dropped: it does not come back as something to write."""
    fleet = gateway.fleet("production")
    fleet.absorb(beat("evil", boot=f"{NUL}boot", up_ms=5_000, failures=(failing("ledger-db"),)))
    gateway.hurry()
    refused = gateway.counts.refused_writes
    await eventually(lambda: refused.total["production", "failed calls"])
    flushed = gateway.counts.flushes
    await eventually(lambda: gateway.counts.flushes > flushed + 5)
    assert refused.total["production", "failed calls"] == 1
    # Once for each state of a pod that sends no more: online, late, silent.
    assert refused.total["production", "pods"] <= 3
    fleet.absorb(beat("evil", boot="boot-0002", up_ms=1_000, failures=(failing("ledger-db"),)))
    gateway.hurry()
    query = "SELECT document FROM fleet_failedcalls WHERE dependency = 'ledger-db'"

    async def stored() -> Any:
        return await (await database.execute(query)).fetchone()

    assert (await eventually(stored))[0]["calls"][0][1] == "evil"


async def test_a_part_that_is_refused_stops_no_other_part_of_a_look(token: Any, gateway: Gateway) -> None:
    coordination: Coordination = gateway.coordination
    seen: list[str] = []
    for name in ("orders", "peers", "drills", "shares", "refusal_keys", "refusals"):

        async def look(_: Any, name: str = name) -> None:
            seen.append(name)
            raise errors.UntranslatableCharacter("secret")

        setattr(getattr(coordination, name), "look", look)  # noqa: B010 - methods of six classes
    await coordination.look()
    assert seen[-6:] == ["orders", "peers", "drills", "shares", "refusal_keys", "refusals"]
    assert gateway.counts.refused_writes.lately("production", gateway.clock.monotonic()) >= 6


async def test_a_sample_that_is_refused_stops_no_other(
    gateway: Gateway, database: psycopg.AsyncConnection
) -> None:
    rows, clock = gateway.coordination.refusals, TurnedClock()
    gateway.coordination.run  # noqa: B018 - it also looks, once per second
    rows.log._clock = clock
    samples = [RefusalSample(rule=rule, reason=Reason.QUOTA) for rule in ("good", NUL, "also-good")]
    for number, one in enumerate(samples):
        rows.log.record(beat(f"pod-{number}", refusals=(one,)))
    clock.turn(3_600)

    async def stored() -> Any:
        return await (await database.execute("SELECT rule FROM refusals_refusalsample ORDER BY 1")).fetchall()

    await eventually(stored, accept=lambda found: found == [("also-good",), ("good",)])
    assert gateway.counts.refused_writes.total["production", "refusal samples"] == 1


async def test_the_history_of_one_environment_does_not_wait_for_another(
    gateway: Gateway, database: psycopg.AsyncConnection
) -> None:
    for environment, rule in (("a-staging", NUL), ("production", "fine")):
        for number in (1, 2):
            gateway.fleet(environment).absorb(
                beat(environment=environment, up_ms=5_000, counters=counting(number, rule))
            )
    # The writer of the gateway has nothing to write: it would count its refusals too.
    writer = SeriesWriter(dict(gateway.fleets), gateway.settings, gateway.counts, gateway.clock)
    gateway.fleets.clear()
    await writer.collect()
    await writer.write(before=float("inf"))
    found = await (await database.execute("SELECT DISTINCT environment FROM series_entity")).fetchall()
    assert ("production",) in found
    assert gateway.counts.refused_writes.total["a-staging", "history"] == 1
    await writer.write(before=float("inf"))
    assert gateway.counts.refused_writes.total["a-staging", "history"] == 1, "it is not tried again"
    await writer.disconnect()


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (errors.UntranslatableCharacter("x"), False),
        (errors.NumericValueOutOfRange("x"), False),
        (errors.CheckViolation("x"), False),
        (errors.ProgramLimitExceeded("x"), False),
        (errors.AdminShutdown("x"), True),
        (errors.UndefinedTable("x"), True),
        (errors.QueryCanceled("x"), True),
        (TimeoutError(), True),
        (OSError("x"), True),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_a_refused_value_is_not_an_outage(error: Exception, outage: bool) -> None:
    failures, refused, dropped = [], [], []
    keep = KeepTrying(
        "test",
        failed="a",
        recovered="b",
        count_failure=lambda: failures.append(1),
        count_refusal=refused.append,
    )

    async def disconnect() -> None:
        dropped.append(1)

    keep.disconnect = disconnect  # type: ignore[method-assign]

    async def work() -> None:
        raise error

    assert not await keep.attempt(work())
    assert (bool(failures), bool(dropped), bool(refused)) == (outage, outage, not outage)


def test_refused_values_are_counted_for_ten_minutes_and_for_their_environment() -> None:
    found = RefusedWrites()
    found.add("pods", ValueError(), 100.0, environment="staging", name="pod-1")
    found.add("peers", ValueError(), 200.0)
    assert (found.lately("staging", 300.0), found.lately("production", 300.0)) == (2, 1)
    assert (found.lately("staging", 750.0), found.lately("staging", 900.0)) == (1, 0)
    assert Counts().refused_writes.lately("production", 0.0) == 0


# Rows of pods that are old


def put_pod(seen: datetime) -> None:
    """A pod whose last heartbeat the gateway ``one`` received then."""
    Server.objects.create(
        environment="production",
        name="pod-1",
        boot="b" * 8,
        service="shop",
        agent_version="1",
        state="online",
        mode="shared",
        mode_since=seen,
        config_status="applied",
        config_source="http",
        started_at=seen,
        last_seen_at=seen,
        due_at=seen + timedelta(seconds=6.5),
        gateway="one",
    )


@pytest.mark.parametrize(("age_s", "state"), [(4, "online"), (20, "online"), (146, "unknown")])
@pytest.mark.parametrize("skew_s", [0, -3_600, 3_600])
def test_a_pod_of_a_gateway_that_stores_nothing_is_not_online(
    production: str, age_s: float, state: str, skew_s: float, call: Any
) -> None:
    """The clock of the gateway does not matter: only what passed since its last heartbeat does."""
    now, skew = timezone.now(), timedelta(seconds=skew_s)
    seen = now - timedelta(seconds=age_s) + skew
    put_pod(seen)
    Figures.objects.create(
        environment=production, gateway="one", at=now, document={"wall": (now + skew).timestamp()}
    )
    (row,), (status,) = live.servers(production), read_servers(production)
    assert (row.state, status.state) == (state, state)
    assert call("viewer", "GET", "/api/v1/production/servers/pod-1").json()["state"] == state
    assert call("viewer", "GET", "/api/v1/production/servers").json()[0]["state"] == state


def test_pods_of_a_gateway_of_an_earlier_version_keep_their_state(production: str) -> None:
    seen = timezone.now() - timedelta(seconds=500)
    put_pod(seen)
    Figures.objects.create(environment=production, gateway="one", at=timezone.now(), document={})
    assert [row.state for row in live.servers(production)] == ["online"]


@pytest.mark.parametrize(("woke_ago_s", "state"), [(1, "online"), (10, "online"), (30, "unknown")])
def test_a_gateway_that_was_stopped_gives_each_pod_the_usual_time_again(
    production: str, woke_ago_s: int, state: str
) -> None:
    """Pages said "2 pods are silent" until their next heartbeats."""
    now = timezone.now()
    seen = now - timedelta(seconds=60)
    put_pod(seen)
    woke = (now - timedelta(seconds=woke_ago_s)).timestamp()
    Figures.objects.create(
        environment=production, gateway="one", at=now, document={"wall": now.timestamp(), "woke": woke}
    )
    assert [row.state for row in live.servers(production)] == [state]
