"""What a gateway keeps of heartbeats is bounded per pod, per token, and per environment (finding 5)."""

import gc
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import httpx
import pytest

from controlplane.embedded.postgres import Postgres
from controlplane.gateway.servers import fleet_bounds
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.fleet_bounds import Kept
from fuseboard.contract.load import MAX_CALL_LOADS
from fuseboard.contract.sync import (
    MAX_BODY_BYTES,
    SYNC_PATH,
    BreakerView,
    Counters,
    DependencyCounters,
    RuleCounters,
    StoreCounters,
    SyncRequest,
    TenantCounters,
    encode,
)
from fuseboard.contract.words import BreakerState, LoadLevel, Reason
from tests import migrated
from tests.controlplane.gateway.gateway_crowd import ANYONE, Crowd, named, pressed, protected, small
from tests.controlplane.gateway.manual_gateway import TOKEN, TurnedClock, beat
from tests.controlplane.gateway.test_gateway_process import SEED, answers, manage
from tests.memory import most_memory
from tests.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[3]
#: What docker-compose.yml gives the gateway.
CONTAINER_BYTES = 512 * 1024 * 1024


def large(server: str, *, number: int = 0, **fields: object) -> SyncRequest:
    """A heartbeat that is nearly as long as the gateway takes; no name is like that of another pod."""
    rules = tuple(RuleCounters(rule=f"{'r' * 30}-{server}-{n}", asked=number + 1) for n in range(20))
    counters = Counters(
        requests=number + 1,
        dependencies=tuple(
            DependencyCounters(dependency=f"{server}-{n}", ok=number + 1, slow=number) for n in range(200)
        ),
        tenants=tuple(
            TenantCounters(tenant=f"{'t' * 100}-{server}-{n}", allowed=number + 1, rules=rules)
            for n in range(100)
        ),
        rules=rules,
    )
    return beat(server, counters=counters, **fields)


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def fleet(clock: TurnedClock) -> Fleet:
    return Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)


def send(fleet: Fleet, clock: TurnedClock, servers: int, *, token: str) -> None:
    for number in range(6):
        for server in range(servers):
            fleet.absorb(large(f"{token}-{server}", number=number), token=token)
        fleet.refresh_rates(fleet.servers.values())
        clock.turn(2.0)


def test_finding_5_one_pod_keeps_a_bounded_part_of_its_heartbeats(fleet: Fleet, clock: TurnedClock):
    assert len(encode(large("sel1-0"))) > 0.5 * MAX_BODY_BYTES
    send(fleet, clock, 1, token="sel1")
    server = fleet.servers["sel1-0"]
    assert 5 <= len(server.track._points) <= 6
    assert server.track.size <= 6 * fleet_bounds.ORDINARY.point_bytes
    # What matters most is still there.
    assert server.track.newest.requests == 6
    assert server.track.newest.dependencies
    assert fleet.kept.cut_beats == 6
    assert fleet.sums.totals.milli["requests", ""] > 0


def test_wanted_tenants_are_answered_and_not_kept(fleet: Fleet):
    fleet.absorb(beat("pod-1", want=("acme",)))
    assert fleet.servers["pod-1"].beat.want == ()


def test_finding_5_a_token_and_an_environment_are_bounded(fleet: Fleet, clock: TurnedClock):
    fleet.kept = Kept(token_bytes=4_000_000, environment_bytes=6_000_000)
    send(fleet, clock, 60, token="greedy")
    greedy = fleet.kept.bytes
    # Sparse pods, after the bound was reached: each has a point of at most a quarter of a kilobyte.
    assert 4_000_000 < greedy < 5_500_000
    # The next token is not affected by the first one.
    send(fleet, clock, 3, token="modest")
    assert fleet.servers["modest-0"].track.newest.dependencies
    # The environment is full.
    send(fleet, clock, 60, token="third")
    assert fleet.kept.bytes < 7_500_000
    assert len(fleet.servers["third-59"].track.newest.dependencies) < 30
    assert fleet.servers["third-59"].track.newest.requests == 6


def test_what_was_left_out_before_is_no_sudden_traffic(fleet: Fleet, clock: TurnedClock):
    """A dependency that is listed again has not made all its calls since the last heartbeat."""
    fleet.kept = Kept(token_bytes=0)
    fleet.absorb(beat("other"), token="sel1")
    fleet.absorb(large("pod-1", number=1_000_000), token="sel1")
    fleet.kept = Kept()
    for number in range(1_000_001, 1_000_004):
        clock.turn(2.0)
        fleet.absorb(large("pod-1", number=number), token="sel1")
    fleet.refresh_rates(fleet.servers.values())
    assert max(fleet.sums.totals.milli.values()) < 10_000


def test_what_a_pod_kept_is_free_again_when_it_is_forgotten(fleet: Fleet, clock: TurnedClock):
    send(fleet, clock, 5, token="sel1")
    assert fleet.kept.bytes > 100_000
    for number in range(5):
        fleet.hand_over(f"sel1-{number}")
    assert fleet.kept.bytes == 0
    assert not fleet.kept.is_full("sel1")


def invent(fleet: Fleet, clock: TurnedClock, token: str, servers: int) -> None:
    """Each pod of the token invents 30 tenants, and counts 10 calls of the same one."""
    for number in range(3):
        for server in range(servers):
            name = f"{token}-{server}"
            own = tuple(TenantCounters(tenant=f"{name}-{n}", allowed=number + 1) for n in range(30))
            same = TenantCounters(tenant="same", allowed=10 * number + 10)
            counters = Counters(requests=40 * number + 40, tenants=(same, *own))
            fleet.absorb(beat(name, sequence=number + 1, counters=counters), token=token)
            fleet.refresh_rates([fleet.servers[name]])
        clock.turn(2.0)


def test_finding_5_a_full_token_brings_no_new_names_into_the_figures(fleet: Fleet, clock: TurnedClock):
    """A heartbeat of a kilobyte brought 30 tenants, of which each took more memory than the heartbeat."""
    fleet.kept = Kept(token_bytes=4_000_000, environment_bytes=6_000_000)
    invent(fleet, clock, "greedy", 500)
    names = len(fleet.sums.totals.milli)
    assert 1_000 < names < 10_000
    assert fleet.kept.is_full("greedy")
    # All of them still count for names that are known.
    assert fleet.sums.totals.milli["tenant_requests", "same"] == 500 * 5_000
    assert fleet.sums.totals.milli["requests", ""] == 500 * 20_000
    # The next token is not affected by the first one.
    invent(fleet, clock, "modest", 10)
    assert len(fleet.sums.totals.milli) == names + 300
    for name in tuple(fleet.servers):
        fleet.hand_over(name)
    assert fleet.sums.totals.milli == {}
    assert fleet.kept.bytes == 0


def test_open_breakers_are_kept_in_a_full_environment(fleet: Fleet):
    fleet.kept = Kept(token_bytes=0)
    fleet.absorb(beat("pod-1"), token="sel1")
    closed = tuple(BreakerView(dependency=f"closed-{number}") for number in range(50))
    opened = BreakerView(dependency="opened", state=BreakerState.OPEN)
    fleet.absorb(beat("pod-1", breakers=(*closed, opened)), token="sel1")
    assert opened in fleet.servers["pod-1"].beat.breakers
    assert len(fleet.servers["pod-1"].beat.breakers) == fleet_bounds.SPARSE.breakers


def test_open_breakers_are_kept_although_the_totals_alone_are_too_long(fleet: Fleet):
    fleet.kept = Kept(token_bytes=0)
    fleet.absorb(beat("pod-1"), token="sel1")
    most = 2**53
    counters = Counters(
        requests=most,
        refused=dict.fromkeys(Reason, most),
        store=StoreCounters(asked=most, latency=(most,) * 32),
    )
    opened = BreakerView(dependency="opened", state=BreakerState.OPEN)
    fleet.absorb(beat("pod-1", counters=counters, breakers=(opened,)), token="sel1")
    server = fleet.servers["pod-1"]
    assert server.track.newest_size > fleet_bounds.SPARSE.point_bytes
    assert server.beat.breakers == (opened,)


def test_processes_under_the_name_of_a_pod_count_and_are_few_in_a_full_environment(
    fleet: Fleet, clock: TurnedClock
):
    fleet.absorb(beat("pod-1"), token="sel1")
    alone = fleet.kept.bytes
    for n in range(16):
        fleet.absorb(beat("pod-1", boot=f"{'b' * 60}-{n}", up_ms=10**9), token="sel1")
    assert fleet.kept.bytes - alone == 16 * 300
    fleet.absorb(beat("pod-2"), token="sel1")
    fleet.kept._token_bytes = 0
    for n in range(16):
        fleet.absorb(beat("pod-2", boot=f"{'b' * 60}-{n}", up_ms=10**9, counters=Counters()), token="sel1")
    rivals = fleet.servers["pod-2"].rivals_heard
    assert rivals is not None
    assert len(rivals) == 1


async def test_pods_that_left_free_what_a_gateway_kept_of_their_load_and_protection(clock: TurnedClock):
    crowd, pods = Crowd(clock), 2_000
    crowd.gateway.fleet("production").kept = Kept(token_bytes=2_000_000, environment_bytes=2_000_000)
    await crowd.send(1, 0)
    gc.collect()
    tracemalloc.start()
    try:
        await crowd.send(pods, 1)
        kept_now = crowd.left().keys()
        assert kept_now >= {"pods", "services with unready pods", "series of pods", "things of spans"}
        gc.collect()
        there = tracemalloc.get_traced_memory()[0]
        await crowd.leave(pods)
        # Names that were checked before are remembered: at most 200,000 of all pods.
        crowd.gateway.names._known.clear()
        gc.collect()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    sys.stderr.write(f"bytes per pod: {there // pods} present, {left // pods} after it left\n")
    assert crowd.left() == {}
    assert there < 9_000 * pods
    assert left < 0.25 * there


def test_a_crowded_environment_keeps_hardly_more_than_the_totals_of_a_pod(fleet: Fleet):
    fleet.kept = Kept(token_bytes=0, environment_bytes=0)
    fleet.absorb(small("pod-1"), token="sel1")
    fleet.absorb(small("pod-2"), token="sel1")
    server = fleet.servers["pod-2"]
    assert len(server.beat.breakers) == fleet_bounds.CROWDED.breakers
    assert server.beat.load is not None
    assert (server.beat.load.cause, server.beat.load.level) == ("", LoadLevel.SHED_HARD)
    assert server.calls.size <= 1
    assert server.track.newest.requests == 30
    assert fleet.kept.cut_beats == 1


def test_third_plane_l12_a_heartbeat_with_too_long_a_protection_counts_as_cut(fleet: Fleet):
    calls = protected("a-rather-long-name-of-a-dependency-of-a-service", 100)
    fleet.absorb(beat("pod-1", protection=calls), token="sel1")
    assert fleet.servers["pod-1"].calls.cut
    assert fleet.kept.cut_beats == 1
    fleet.absorb(beat("pod-1", protection=calls[:10]), token="sel1")
    assert fleet.kept.cut_beats == 1


#: Made-up pods, of which so many send heartbeats of a quarter of a megabyte, several times.
PODS, LARGE = 50_000, 600
#: What a gateway takes for Django, Postgres, and HTTP, before the first heartbeat: measured, rounded up.
IDLE_BYTES = 130 * 1024 * 1024
#: Pods of the crowd that come over HTTP.
OVER_HTTP = 5_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_thousand_made_up_pods_with_load_and_protection_fit_and_leave():
    """In a process of its own, without HTTP: 200,000 heartbeats of 10 KB over HTTP take half an hour."""
    command = [sys.executable, "-m", "tests.controlplane.gateway.gateway_crowd", str(PODS)]
    done = subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    each = (found["most"] - found["idle"]) / PODS
    figures = f"{each:.0f} bytes per pod, {found['most'] >> 20} MiB at most, idle {found['idle'] >> 20} MiB"
    sys.stderr.write(figures + "\n")
    assert found["left"] == {}
    assert IDLE_BYTES + PODS * each < CONTAINER_BYTES, figures


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_finding_5_large_heartbeats_of_made_up_pods_fit_into_the_container(redis_url: str, tmp_path: Path):
    """With the usual number of new names per minute, they need 10 minutes; this test has no such limit."""
    migrated.copy_into(tmp_path)
    postgres = Postgres(tmp_path, durable=False)
    postgres.start()
    variables = os.environ | {
        "DATABASE_URL": postgres.url,
        "FUSEBOARD_NEW_PODS_PER_MIN": "1000000",
        "FUSEBOARD_TOKEN_RATE_PER_S": "1000000",
        "FUSEBOARD_TOKEN_BURST": "1000000",
    }
    try:
        manage(variables, "shell", "--verbosity", "0", "-c", SEED)
        command = [sys.executable, "manage.py", "gateway", "--port", "0"]
        with subprocess.Popen(
            command, cwd=PROJECT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                assert process.stdout is not None
                found = re.search(r":(\d+)/", process.stdout.readline())
                assert found is not None
                attack(int(found[1]), process.pid)
                assert process.poll() is None
            finally:
                process.kill()
    finally:
        postgres.stop()


def attack(port: int, pid: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        wait_until(lambda: answers(client, "/readyz"))
    idle = most_memory(pid)
    for number in range(3):
        calls = protected(ANYONE, MAX_CALL_LOADS, number=number)
        together(port, range(LARGE), large(ANYONE, number=number, load=pressed(ANYONE), protection=calls))
    loud = most_memory(pid)
    together(port, range(LARGE, OVER_HTTP), small(ANYONE))
    full = most_memory(pid)
    found = ", ".join(
        f"{name} {most >> 20}" for name, most in (("idle", idle), ("loud", loud), ("full", full))
    )
    figures = f"MiB at most, {LARGE} loud pods of {OVER_HTTP}: {found}"
    sys.stderr.write(figures + "\n")
    assert idle < IDLE_BYTES, figures
    assert full < 0.75 * CONTAINER_BYTES, figures


def together(port: int, numbers: range, heartbeat: SyncRequest) -> None:
    """Send this heartbeat in the name of each pod, over four connections."""
    body = encode(heartbeat)
    failures: list[str] = []

    def run(first: int) -> None:
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for number in numbers[first::4]:
            connection.request("POST", SYNC_PATH, named(body, number), headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                failures.append(text.decode())
        connection.close()

    threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, (len(failures), failures[0])
