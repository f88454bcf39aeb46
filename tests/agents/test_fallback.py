"""Decisions when Redis is killed, frozen, wiped, or answers garbage."""

import asyncio
import os
import signal
import struct
from collections.abc import Iterator
from time import monotonic

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.configuration.server_clock import lease_clock
from fuseboard.contract.policy import Policy
from fuseboard.contract.shares import ShareLease
from fuseboard.contract.words import BreakerState, FailurePolicy, Mode, Outcome, Reason
from fuseboard.errors import Refused
from tests.agents.servers import (
    CALLS,
    PATIENT,
    POLICY,
    REQUESTS,
    SHORT_DEADLINE,
    SHORT_US,
    TUNING,
    Server,
    configured,
    running,
)
from tests.waiting import eventually


def with_failure_policy(failure_policy: FailurePolicy) -> Policy:
    quota = msgspec.structs.replace(REQUESTS, failure_policy=failure_policy)
    tier = msgspec.structs.replace(POLICY.tiers[0], quotas=(quota,))
    return msgspec.structs.replace(POLICY, tiers=(tier, POLICY.tiers[1]))


async def allowed(server: Server, calls: int, tenant: str = "acme") -> int:
    decisions = await asyncio.gather(*(server.admission.admit_request(tenant) for _ in range(calls)))
    return sum(decision.allowed for decision in decisions)


@pytest.fixture
def frozen(valkey: Valkey) -> Iterator[Valkey]:
    """A server that can be stopped in the middle of whatever it does, and is woken in the end."""
    yield valkey
    if valkey.process is not None and valkey.process.poll() is None:
        valkey.process.send_signal(signal.SIGCONT)


class TestKilled:
    async def test_every_server_spends_its_share_and_says_why(self, valkey: Valkey):
        async with running(valkey.url, configuration=configured(live_servers=4)) as server:
            valkey.stop()
            await eventually(lambda: server.admission.mode is Mode.LOCAL)
            assert "refused" in server.admission.mode_cause.lower()
            assert await allowed(server, 50) == 5  # a burst of 20 over four servers
            decision = await server.admission.admit_request("acme")
            assert (decision.mode, decision.reason) == (Mode.LOCAL, Reason.QUOTA)

    async def test_it_comes_back_by_a_ramp(self, valkey: Valkey):
        async with running(valkey.url) as server:
            valkey.stop()
            await eventually(lambda: server.admission.mode is Mode.LOCAL)
            seen = [server.admission.mode]
            valkey.start()
            while seen[-1] is not Mode.SHARED:
                await asyncio.sleep(0.005)
                if server.admission.mode is not seen[-1]:
                    seen.append(server.admission.mode)
            assert seen == [Mode.LOCAL, Mode.RAMPING, Mode.SHARED]
            assert await allowed(server, 30, "someone new") == 20

    async def test_a_server_that_never_reached_redis_decides_all_the_same(self, valkey: Valkey):
        valkey.stop()
        async with running(valkey.url, connected=False) as server:
            assert await allowed(server, 30) == 20
            await eventually(lambda: server.admission.mode_cause.startswith("never reached"))
            valkey.start()
            await eventually(lambda: server.admission.mode is Mode.SHARED)

    async def test_a_server_that_starts_beside_a_frozen_redis_says_why(self, frozen: Valkey):
        assert frozen.process is not None
        frozen.process.send_signal(signal.SIGSTOP)
        async with running(frozen.url, connected=False) as server:
            cause = "never reached: TimeoutError"
            await eventually(lambda: server.admission.mode_cause == cause)

    async def test_a_dropped_connection_is_no_outage(self, valkey: Valkey):
        async with running(valkey.url) as server:
            with redis.Redis.from_url(valkey.url) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await eventually(lambda: not server.admission.health.usable)
            await eventually(lambda: server.admission.health.usable)
            assert server.admission.mode is Mode.SHARED

    @pytest.mark.parametrize(
        ("failure_policy", "admitted", "reason"),
        [
            (FailurePolicy.FAIL_OPEN, 50, None),
            (FailurePolicy.FAIL_CLOSED, 0, Reason.STORE_UNAVAILABLE),
            (FailurePolicy.LOCAL_SHARE, 20, Reason.QUOTA),
            (FailurePolicy.RESERVED, 2, Reason.QUOTA),
        ],
    )
    async def test_failure_policies(
        self, valkey: Valkey, failure_policy: FailurePolicy, admitted: int, reason: Reason | None
    ):
        configuration = configured(with_failure_policy(failure_policy))
        async with running(valkey.url, configuration=configuration) as server:
            valkey.stop()
            await eventually(lambda: server.admission.mode is Mode.LOCAL)
            lease = ShareLease(level=0, place=0, terms=1, remaining_ms=60_000)
            server.admission.redis_fallback.share.take(lease, asked=lease_clock())
            assert await allowed(server, 50) == admitted
            assert (await server.admission.admit_request("acme")).reason is reason


class TestBreakerWithoutRedis:
    async def test_an_open_breaker_stays_open(self, valkey: Valkey):
        async with running(valkey.url) as server:
            for _ in range(4):
                server.admission.report(await server.admission.admit_call("payments"), Outcome.FAILURE)
            await eventually(lambda: server.admission.breaker_views()[0].state is BreakerState.OPEN)
            valkey.stop()
            await eventually(lambda: server.admission.mode is Mode.LOCAL)
            with pytest.raises(Refused) as caught:
                await server.admission.admit_call("payments")
            assert caught.value.decision.reason is Reason.BREAKER_OPEN
            view = server.admission.breaker_views()[0]
            assert (view.state, view.local) == (BreakerState.OPEN, True)

    async def test_a_server_trips_and_probes_alone(self, valkey: Valkey):
        valkey.stop()
        async with running(valkey.url, connected=False) as server:
            for _ in range(4):
                server.admission.report(await server.admission.admit_call("payments"), Outcome.FAILURE)
            with pytest.raises(Refused):
                await server.admission.admit_call("payments")
            # The minute passes at once. A short one could pass before the breaker is seen open.
            server.admission.calls.breakers["payments"].local.until = monotonic()
            probe = await server.admission.admit_call("payments")
            with pytest.raises(Refused):  # one at a time
                await server.admission.admit_call("payments")
            server.admission.report(probe, Outcome.OK)
            server.admission.report(await server.admission.admit_call("payments"), Outcome.OK)
            assert server.admission.breaker_views()[0].state is BreakerState.CLOSED


class TestFrozen:
    async def test_callers_are_decided_locally_and_soon_without_waiting(self, frozen: Valkey):
        async with running(frozen.url, configuration=configured(SHORT_DEADLINE)) as server:
            frozen.process.send_signal(signal.SIGSTOP)
            waits = []
            loop = asyncio.get_running_loop()
            while server.admission.mode is not Mode.LOCAL:
                begun = loop.time()
                await server.admission.admit_request("acme")
                waits.append(loop.time() - begun)
            assert "timeouts" in server.admission.mode_cause
            # The fifth miss switched it; one that this process was late for itself is not counted.
            assert 5 <= len(waits) <= 15
            asked = server.counters.store_timeouts
            await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(1000)))
            assert server.counters.store_timeouts == asked

    async def test_a_pod_with_few_calls_gives_up_a_redis_that_answers_nothing(self, frozen: Valkey):
        """It asked for each call again, so that the first page said that it uses shared limits."""
        tuning = msgspec.structs.replace(
            TUNING, store_deadline_us=SHORT_US, store_timeouts=10_000, failure_window_ms=1_000
        )
        policy = msgspec.structs.replace(POLICY, tuning=tuning)
        async with running(frozen.url, configuration=configured(policy)) as server:
            await server.admission.admit_request("acme")
            frozen.process.send_signal(signal.SIGSTOP)
            # One question of many calls is one miss of Redis, however long it had nothing to answer.
            await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(50)))
            assert server.admission.mode is Mode.SHARED
            begun = monotonic()

            async def is_local() -> bool:
                await server.admission.admit_request("acme")
                return server.admission.mode is Mode.LOCAL

            await eventually(is_local, every_s=0.1)
            assert monotonic() - begun > 0.9
            assert "no answer for" in server.admission.mode_cause

    async def test_a_redis_that_answers_now_and_then_is_not_silent(self, frozen: Valkey):
        tuning = msgspec.structs.replace(
            TUNING, store_deadline_us=SHORT_US, store_timeouts=10_000, failure_window_ms=1_000
        )
        policy = msgspec.structs.replace(POLICY, tuning=tuning)
        async with running(frozen.url, configuration=configured(policy)) as server:
            counted, begun = server.counters, monotonic()
            while monotonic() < begun + 1.5 or counted.store_timeouts < 10:
                frozen.process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, frozen.process.pid, os.WSTOPPED)  # noqa: ASYNC222 - at once
                await server.admission.admit_request("acme")
                frozen.process.send_signal(signal.SIGCONT)
                before = counted.store_answers

                async def is_answered(before: int = before) -> bool:
                    await server.admission.admit_request("acme")
                    return counted.store_answers > before

                await eventually(is_answered)
            assert server.admission.mode is Mode.SHARED

    async def test_an_answer_after_the_deadline_charges_nothing(self, frozen: Valkey):
        async with running(frozen.url, configuration=configured(SHORT_DEADLINE)) as server:
            with redis.Redis.from_url(frozen.url) as client:

                async def counted() -> bytes | None:
                    """A pause of the machine makes the first answers late too, and these charge nothing."""
                    await server.admission.admit_request("acme")
                    return next(iter(client.keys("fb1:production:{t:*")), None)

                key = await eventually(counted)
                frozen.process.send_signal(signal.SIGSTOP)
                for _ in range(3):
                    await server.admission.admit_request("acme")
                frozen.process.send_signal(signal.SIGCONT)
                us = struct.unpack(">dddd", client.get(key))[0]
                seconds, micros = client.time()
        spent_calls = (us - (seconds * 1_000_000 + micros)) / 1_000_000
        assert spent_calls <= 1.0  # a call takes one second of this quota

    async def test_callers_behind_a_question_under_way_wait_no_longer_than_it(self, frozen: Valkey):
        async with running(frozen.url, configuration=configured(SHORT_DEADLINE)) as server:
            frozen.process.send_signal(signal.SIGSTOP)
            first = asyncio.ensure_future(server.admission.admit_request("acme"))
            await asyncio.sleep(0.03)
            second = asyncio.ensure_future(server.admission.admit_request("acme"))
            await asyncio.gather(first, second)
            assert server.counters.store_timeouts == 2

    async def test_a_decision_that_the_pod_makes_alone_says_so_also_while_its_mode_is_shared(
        self, frozen: Valkey
    ):
        """It said "in mode shared", although Redis had not answered."""
        tuning = msgspec.structs.replace(PATIENT, store_deadline_us=SHORT_US)
        one = msgspec.structs.replace(CALLS, limit=1, window_ms=60_000)
        payments = msgspec.structs.replace(POLICY.dependencies[0], vendor_limits=(one,))
        policy = msgspec.structs.replace(POLICY, dependencies=(payments,), tuning=tuning)
        async with running(frozen.url, configuration=configured(policy)) as server:
            frozen.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, frozen.process.pid, os.WSTOPPED)  # noqa: ASYNC222 - at once
            decisions = [await server.admission.admit_request("acme", cost) for cost in (20, 20)]
            decisions.append((await server.admission.admit_call("payments")).decision)
            with pytest.raises(Refused) as caught:
                await server.admission.admit_call("payments")
            decisions.append(caught.value.decision)
            assert server.admission.mode is Mode.SHARED
            assert [decision.allowed for decision in decisions] == [True, False, True, False]
            assert {decision.mode for decision in decisions} == {Mode.LOCAL}
            assert "in mode local" in decisions[0].explain()
            assert "in mode local" in str(caught.value)


class Nonsense(asyncio.Protocol):
    """Friendly until the first decision is asked."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        written = self.answer * data.count(b"EVALSHA")
        written += b"+OK\r\n" * (data.count(b"SCRIPT") + data.count(b"SETNAME"))
        if data.endswith(b"TIME\r\n"):
            written += b"*2\r\n$1\r\n1\r\n$1\r\n1\r\n"
        self.transport.write(written)


class TestNonsense:
    """A server that speaks, but not like Redis."""

    @pytest.mark.parametrize(
        "answer",
        [
            b"-ERR " + b"x" * 10_000 + b"\r\n",
            b"-LOADING Redis is loading the dataset in memory\r\n",
            b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
            b"$5\r\nhello\r\n",
            b"*0\r\n",
            b"*4\r\n:0\r\n:0\r\n:0\r\n:0\r\n",
            b"*1\r\n*1\r\n*1\r\n$-1\r\n",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"$-1\r\n:1\r\n:2\r\n",
            b"$9999999999999\r\n",
        ],
    )
    async def test_decisions_go_on(self, answer: bytes):
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: Nonsense(answer), "127.0.0.1") as listener:
            port = listener.sockets[0].getsockname()[1]
            async with running(
                f"redis://127.0.0.1:{port}", configuration=configured(SHORT_DEADLINE)
            ) as server:
                assert await allowed(server, 30) == 20
                for _ in range(5):
                    await server.admission.admit_request("acme")
                permit = await server.admission.admit_call("payments")
                server.admission.report(permit, Outcome.OK)


async def test_a_busy_loop_does_not_blame_redis(limits: redis.Redis, redis_url: str):
    tuning = msgspec.structs.replace(POLICY.tuning, store_deadline_us=25_000, store_timeouts=1)
    policy = msgspec.structs.replace(POLICY, tuning=tuning)
    async with running(redis_url, configuration=configured(policy)) as server:
        hog = os.times  # any work that holds the loop

        async def redis_decides() -> bool:
            before = server.counters.local_decisions
            asking = asyncio.ensure_future(server.admission.admit_request("big enough"))
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            until_when = loop.time() + 0.06
            while loop.time() < until_when:
                hog()
            await asking
            return server.counters.local_decisions == before

        # A pause of the machine costs single decisions. If the loop were to blame, it would cost all.
        for _ in range(10):
            await eventually(redis_decides)


async def test_a_server_with_an_invalid_time_is_probed_again():
    """Whatever it answers, the task that brings Redis back goes on."""
    loop = asyncio.get_running_loop()
    times = [b"*2\r\n*1\r\n:1\r\n$3\r\nabc\r\n", b"*2\r\n$3\r\n1.5\r\n$3\r\nNaN\r\n", b"*2\r\n$-1\r\n$-1\r\n"]

    class Confused(Nonsense):
        def data_received(self, data: bytes) -> None:
            if data.endswith(b"TIME\r\n") and times:
                self.transport.write(times.pop())
            else:
                super().data_received(data)

    async with await loop.create_server(lambda: Confused(b""), "127.0.0.1") as listener:
        port = listener.sockets[0].getsockname()[1]
        async with running(f"redis://127.0.0.1:{port}", connected=False) as server:
            await eventually(lambda: server.admission.mode_cause.startswith("answers, but"))
            assert times == []


async def test_connections_that_keep_breaking_are_not_made_in_a_storm(limits: redis.Redis, redis_url: str):
    tuning = msgspec.structs.replace(POLICY.tuning, probe_interval_ms=2000)
    policy = msgspec.structs.replace(POLICY, tuning=tuning)
    async with running(redis_url, configuration=configured(policy)):
        before = limits.info("stats")["total_connections_received"]
        for _ in range(50):
            limits.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.02)
        assert limits.info("stats")["total_connections_received"] - before <= 6


async def test_a_busy_loop_does_not_hide_a_redis_that_is_gone(valkey: Valkey):
    tuning = msgspec.structs.replace(POLICY.tuning, store_deadline_us=SHORT_US, store_timeouts=5)
    policy = msgspec.structs.replace(POLICY, tuning=tuning)
    async with running(valkey.url, configuration=configured(policy)) as server:
        assert valkey.process is not None
        valkey.process.send_signal(signal.SIGSTOP)
        try:
            loop = asyncio.get_running_loop()
            for _ in range(1_000):
                asking = asyncio.ensure_future(server.admission.admit_request("big enough"))
                await asyncio.sleep(0)
                until_when = loop.time() + 0.02
                while loop.time() < until_when:
                    os.times()
                await asking
                if server.admission.mode is Mode.LOCAL:
                    break
            assert server.admission.mode is Mode.LOCAL
        finally:
            valkey.process.send_signal(signal.SIGCONT)
