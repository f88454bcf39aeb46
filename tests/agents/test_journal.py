"""Decisions without Redis are reported later: all of them, once, and without refusing other calls."""

import asyncio
import json
import os
import sys
from pathlib import Path
from time import time

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.contract import keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.policy import Policy, Tuning
from fuseboard.contract.words import FailurePolicy, Mode, Period
from fuseboard.runtime import Runtime
from fuseboard.settings import AgentSettings
from fuseboard.without_redis.journal import Journal
from fuseboard.without_redis.offline_counts import OfflineCounts
from tests.agents.servers import POLICY, REQUESTS, Server, configured, give, running
from tests.waiting import eventually

QUOTA = keys.tenant_quota("production", "acme", "requests")
TOTALS, TOLD = keys.offline_totals(QUOTA), keys.offline_told(QUOTA)


def with_quota(failure_policy: FailurePolicy, **fields: int) -> Policy:
    quota = msgspec.structs.replace(REQUESTS, failure_policy=failure_policy, **fields)
    tier = msgspec.structs.replace(POLICY.tiers[0], quotas=(quota,))
    return msgspec.structs.replace(POLICY, tiers=(tier, POLICY.tiers[1]))


def journal_of(server: Server, directory: Path) -> Journal:
    counts = server.admission.redis_fallback.limits.offline
    journal = Journal(directory, environment="production", service="shop", counts=counts)
    server.admission.redis_fallback.drain.journal = journal
    return journal


async def ask(server: Server, calls: int) -> int:
    decisions = await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(calls)))
    return sum(decision.allowed for decision in decisions)


def total(client: redis.Redis) -> int:
    return int(client.hget(TOTALS, "quota:requests") or 0)


async def outage(server: Server, valkey: Valkey, calls: int) -> int:
    valkey.stop()
    await eventually(lambda: server.admission.mode is Mode.LOCAL)
    admitted = await ask(server, calls)
    valkey.start()
    return admitted


async def test_calls_of_an_outage_are_in_the_totals_before_the_ramp(valkey: Valkey, tmp_path: Path):
    async with running(valkey.url, configuration=configured(with_quota(FailurePolicy.FAIL_OPEN))) as server:
        journal_of(server, tmp_path)
        assert await outage(server, valkey, 500) == 500
        await eventually(lambda: server.admission.mode is Mode.RAMPING)
        with redis.Redis.from_url(valkey.url) as client:
            assert total(client) == 500
            # Nobody is refused for it: the whole burst is there.
            assert client.exists(QUOTA) == 0
        await eventually(lambda: server.admission.mode is Mode.SHARED)
        assert await ask(server, 20) == 20
        await eventually(lambda: not list(tmp_path.glob("*.journal")))


async def test_a_spent_share_is_charged_before_the_ramp(valkey: Valkey, tmp_path: Path):
    policy = with_quota(FailurePolicy.LOCAL_SHARE, window_ms=3_600_000)
    async with running(valkey.url, configuration=configured(policy)) as server:
        assert await outage(server, valkey, 50) == 20
        await eventually(lambda: server.admission.mode is Mode.SHARED)
        assert await ask(server, 50) == 0  # all of it is spent, wherever it was
        with redis.Redis.from_url(valkey.url) as client:
            assert total(client) == 20


async def test_a_segment_reported_twice_counts_once(limits: redis.Redis, redis_url: str):
    policy = with_quota(FailurePolicy.LOCAL_SHARE, window_ms=3_600_000)
    async with running(redis_url, configuration=configured(policy)) as server:
        quota = server.admission.configuration.snapshot.quotas_of("acme").quotas[0]
        demand = Demand((LimitRef(quota, QUOTA),), (1,))
        for _ in range(7):
            assert server.admission.redis_fallback.limits.take(demand, 1.0) is None
        segment = server.admission.redis_fallback.limits.offline.close()
        assert segment is not None
        for _ in range(3):
            assert await server.admission.redis_fallback.drain._report(segment)
        assert total(limits) == 7
        assert limits.smembers(TOLD) == {segment.name.encode()}
        assert 0 < limits.ttl(TOLD) <= 12 * 86_400
        assert await ask(server, 50) == 13


SCRIPT = """
import asyncio, sys
import fuseboard
async def main():
    agent = fuseboard.Agent(settings=fuseboard.AgentSettings(
        redis_url="redis://127.0.0.1:1/0", state_dir=sys.argv[1], bootstrap_file=sys.argv[2]))
    await agent.start()
    for _ in range(321):
        assert (await agent.admit_request("acme")).allowed
    while not list(agent.settings.state_dir.glob("*.journal")):
        await asyncio.sleep(0.01)
    print("written", flush=True)
    await asyncio.sleep(60)
from pathlib import Path
sys.argv[1:] = [Path(argument) for argument in sys.argv[1:]]
asyncio.run(main())
"""


async def test_a_server_that_is_killed_is_counted_by_the_next_on_its_disk(
    limits: redis.Redis, redis_url: str, tmp_path: Path
):
    bootstrap = tmp_path / "bootstrap.json"
    policy = with_quota(FailurePolicy.FAIL_OPEN)
    bootstrap.write_bytes(b'{"policy":' + msgspec.json.encode(policy) + b"}")
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, str(tmp_path), str(bootstrap), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert killed.stdout is not None
        assert await killed.stdout.readline() == b"written\n"
        async with running(redis_url, configuration=configured(policy)) as server:
            journal = journal_of(server, tmp_path)
            journal._prefix = "production@default"
            await server.admission.redis_fallback.drain.begin(orphans=True)
            assert total(limits) == 0  # it lives, and tells what it has itself
            killed.kill()
            await killed.wait()
            await server.admission.redis_fallback.drain.begin(orphans=True)
            assert total(limits) == 321
            assert server.admission.redis_fallback.drain.adopted == 1
            await eventually(lambda: not list(tmp_path.glob("*.journal")))
    finally:
        if killed.returncode is None:
            killed.kill()
            await killed.wait()


class Written:
    """A journal without a server."""

    def __init__(self, directory: Path) -> None:
        self.counts = OfflineCounts()
        self.journal = Journal(directory, environment="production", service="shop", counts=self.counts)

    def write(self, amounts: dict[str, int]) -> Path:
        changed = {key.encode(): amount for key, amount in amounts.items()}
        for key, amount in changed.items():
            self.counts.segment.totals[key] = self.counts.segment.totals.get(key, 0) + amount
        number = next(self.journal._numbers)
        number = next(self.journal._numbers)
        self.journal._write(number, self.counts.segment.name, changed, dict(self.counts.segment.totals))
        return self.journal._path(self.counts.segment.name)


async def test_what_a_pod_that_ended_spent_of_a_budget_is_charged_by_the_next_on_its_disk(
    limits: redis.Redis, redis_url: str, tmp_path: Path
):
    """Once, and only of the period that is now. Other limits have only totals: their calls are long over."""
    key = keys.account_budget("production", "openai", "daily")
    began_us, ends_us = period_around(int(time() * 1_000_000), Period.DAY, "UTC")
    today, day_s = began_us // 1_000_000, (ends_us - began_us) // 1_000_000
    limits.set(key, f"{began_us} 5")
    left = Written(tmp_path)
    left.write(
        {
            f"{key}@{today}+{day_s}": 30,
            f"{key}@{today - day_s}+{day_s}": 1_000,
            f"{key}@0+0": 1_000,
            f"{QUOTA}@{today}+{day_s}": 40,
        }
    )
    left.journal.finish()
    async with running(redis_url) as server:
        journal_of(server, tmp_path)
        for _ in range(2):
            await server.admission.redis_fallback.drain.begin(orphans=True)
        assert server.admission.redis_fallback.drain.adopted == 1
        assert limits.get(key) == f"{began_us} 35".encode()
        assert limits.hget(keys.offline_totals(key), "budget:daily") == b"2030"
        assert (limits.get(QUOTA), total(limits)) == (None, 40)


def test_what_calls_cost_less_is_on_disk_when_a_pod_ends(tmp_path: Path):
    left, ref = Written(tmp_path), LimitRef(REQUESTS, QUOTA)
    demand = Demand((ref,), (60,))
    left.counts.note(demand, 1.0)
    left.journal.flush_soon()
    left.counts.correct(ref, -50, 1.0)
    left.journal.finish()
    assert adopted_from(tmp_path) == {f"{QUOTA}@0+0": 10}


def adopted_from(directory: Path) -> dict[str, int]:
    other = Journal(directory, environment="production", service="shop", counts=OfflineCounts())
    return {key.decode(): n for segment in other._find_orphans() for key, n in segment.totals.items()}


@pytest.mark.parametrize("lowered", [True, False])
def test_a_line_that_a_slow_disk_writes_after_the_whole_file_counts_once(tmp_path: Path, lowered: bool):
    """The whole file is written when a call cost less, and when the file is full."""
    late = Written(tmp_path)
    path = late.write({QUOTA: 1})
    if not lowered:
        late.journal.most_bytes = path.stat().st_size + 10
    name, totals = late.counts.segment.name, late.counts.segment.totals
    number = next(late.journal._numbers)
    totals[QUOTA.encode()] += 5
    late.counts.lowered, late.counts.changed = lowered, {QUOTA.encode(): 2}
    totals[QUOTA.encode()] += 2
    late.journal.finish()
    late.journal.most_bytes *= 2
    late.journal._write(number, name, {QUOTA.encode(): 5}, dict(totals))
    assert adopted_from(tmp_path) == {QUOTA: 8}


def test_the_last_line_is_on_disk_when_the_whole_file_is_too_large(tmp_path: Path):
    left = Written(tmp_path)
    path = left.write({QUOTA: 5})
    left.counts.segment.totals |= {b"%d" % number: 1 for number in range(100)}
    left.journal.most_bytes = path.stat().st_size + 100
    left.counts.lowered, left.counts.changed = True, {QUOTA.encode(): 2}
    left.journal.finish()
    assert adopted_from(tmp_path) == {QUOTA: 7}


def test_a_torn_or_damaged_line_costs_itself_and_nothing_else(tmp_path: Path):
    written = Written(tmp_path)
    path = written.write({QUOTA: 5})
    with path.open("ab") as file:
        file.write(b'\n00000000 {"' + QUOTA.encode() + b'":1000}\n12345678 {"fb1:pro')
    written.write({QUOTA: 7})
    written.journal.finish()
    assert adopted_from(tmp_path) == {QUOTA: 12}


@pytest.mark.parametrize("length", range(0, 120, 7))
def test_a_file_that_was_cut_short_says_less_and_never_more(tmp_path: Path, length: int):
    written = Written(tmp_path)
    path = written.write({QUOTA: 5})
    written.journal.finish()
    path.write_bytes(path.read_bytes()[:length])
    assert adopted_from(tmp_path) in ({}, {QUOTA: 5})


def test_the_files_of_a_living_pod_are_not_adopted(tmp_path: Path):
    written = Written(tmp_path)
    written.write({QUOTA: 5})
    assert adopted_from(tmp_path) == {}
    written.journal.finish()
    assert adopted_from(tmp_path) == {QUOTA: 5}


def test_a_file_is_never_larger_than_its_bound_and_loses_nothing_for_it(tmp_path: Path):
    written = Written(tmp_path)
    written.journal.most_bytes = 2_000
    for _ in range(100):
        path = written.write({QUOTA: 1})
        assert path.stat().st_size <= 2_000
    written.journal.finish()
    assert adopted_from(tmp_path) == {QUOTA: 100}


def test_a_disk_that_takes_nothing_is_only_counted(tmp_path: Path):
    written = Written(tmp_path / "file" / "below a file")
    (tmp_path / "file").write_text("in the way")
    written.write({QUOTA: 5})
    written.write({QUOTA: 5})
    assert written.journal.failures == 2
    assert written.counts.segment.totals == {QUOTA.encode(): 10}


def test_a_file_older_than_redis_remembers_is_deleted_and_not_counted(tmp_path: Path):
    written = Written(tmp_path)
    path = written.write({QUOTA: 5})
    written.journal.finish()
    os.utime(path, (0, 0))
    assert adopted_from(tmp_path) == {}
    assert not path.exists()


def test_totals_are_bounded_and_what_does_not_fit_is_counted_as_that():
    counts = OfflineCounts()
    counts.most_keys = 3
    for n in range(5):
        counts.note(Demand((LimitRef(REQUESTS, f"fb1:production:{{t:{n}}}:quota:requests"),), (2,)), 0.0)
    assert (len(counts.segment.totals), counts.uncounted) == (3, 4)
    assert json.dumps(sorted(counts.segment.totals.values())) == "[2, 2, 2]"


async def test_the_fleets_tuning_says_how_much_is_kept(tmp_path: Path):
    runtime = Runtime(
        AgentSettings(
            environment="production",
            service="shop",
            server="pod-1",
            redis_url="redis://127.0.0.1:1/0",
            state_dir=tmp_path,
        )
    )
    journal, counts = (
        runtime.admission.redis_fallback.drain.journal,
        runtime.admission.redis_fallback.limits.offline,
    )
    assert journal is not None
    assert (journal.most_bytes, counts.most_keys) == (8 * 1024 * 1024, 50_000)
    tuned = msgspec.structs.replace(POLICY, tuning=Tuning(journal_bytes=65_536, journal_keys=1_000))
    give(runtime.configuration, tuned, revision=8)
    assert (journal.most_bytes, counts.most_keys) == (65_536, 1_000)
