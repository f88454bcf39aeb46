"""Guarded channels of gRPC, for threads and on an event loop, against a real server."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fuseboard
from fuseboard import Agent, Misconfigured, Refused, blocking
from fuseboard.contract.policy import BreakerPolicy, Dependency, Policy
from fuseboard.contract.protection import Bulkhead, CallProtection
from fuseboard.contract.words import Reason
from fuseboard.settings import AgentSettings
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY
from tests.agents.test_classification import flags
from tests.waiting import eventually, wait_until

grpc = pytest.importorskip("grpc")

from fuseboard.integrations.grpc import CallRefused, GuardedInterceptor, async_interceptors  # noqa: E402
from tests.agents.grpc_vendor import KINDS, GrpcVendor, grpc_vendor, stub  # noqa: E402

__all__ = ["grpc_vendor"]

#: The request, the status, the outcome, and the milliseconds for which the fleet does not call.
ENDS = [
    ("ok", "OK", "ok", 0),
    ("UNAVAILABLE", "UNAVAILABLE", "failure", 0),
    ("UNAVAILABLE pushback 60000", "UNAVAILABLE", "failure", 60_000),
    ("INTERNAL", "INTERNAL", "failure", 0),
    ("UNKNOWN", "UNKNOWN", "failure", 0),
    ("DATA_LOSS", "DATA_LOSS", "failure", 0),
    ("RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", "neutral", 1000),
    ("RESOURCE_EXHAUSTED pushback 60000", "RESOURCE_EXHAUSTED", "neutral", 60_000),
    ("RESOURCE_EXHAUSTED info 60000", "RESOURCE_EXHAUSTED", "neutral", 60_000),
    ("INVALID_ARGUMENT", "INVALID_ARGUMENT", "neutral", 0),
    ("NOT_FOUND", "NOT_FOUND", "neutral", 0),
    ("UNIMPLEMENTED", "UNIMPLEMENTED", "neutral", 0),
    ("UNAUTHENTICATED", "UNAUTHENTICATED", "neutral", 0),
    ("CANCELLED", "CANCELLED", "neutral", 0),
]
BREAKER = BreakerPolicy(consecutive_failures=1000)


def policy(**more: Any) -> Policy:
    dependency = Dependency(
        name="vendor",
        breaker=more.pop("breaker", BREAKER),
        protection=CallProtection(
            bulkhead=Bulkhead(max_concurrent=more.pop("slots", 50)),
            timeouts_ms=more.pop("timeouts_ms", (0, 0, 0)),
        ),
        **{"timeout_ms": 30_000, **more},
    )
    return msgspec.structs.replace(POLICY, dependencies=(dependency,))


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return settings_with(tmp_path, policy())


@pytest.fixture
def worker(settings: AgentSettings) -> Iterator[blocking.Agent]:
    with blocking.Agent(settings=settings) as agent:
        yield agent


@pytest.fixture
async def agent(settings: AgentSettings) -> AsyncIterator[Agent]:
    async with Agent(settings=settings) as agent:
        yield agent


def guarded(worker: blocking.Agent, vendor: GrpcVendor, **options: Any) -> Any:
    channel = grpc.insecure_channel(vendor.target)
    return grpc.intercept_channel(channel, GuardedInterceptor(worker, dependency="vendor", **options))


def guarded_async(agent: Agent, vendor: GrpcVendor, **options: Any) -> Any:
    interceptors = async_interceptors(agent, dependency="vendor", **options)
    return grpc.aio.insecure_channel(vendor.target, interceptors=interceptors)


def ended(agent: Agent | blocking.Agent) -> dict[str, int]:
    """The outcomes of the calls that have ended, and the calls that hold a slot, if any does."""
    found: dict[str, int] = {}
    for line in agent.metrics_text().splitlines():
        if line.startswith("fuseboard_calls_total{"):
            outcome = line.partition('outcome="')[2].partition('"')[0]
            if count := int(float(line.split()[-1])):
                found[outcome] = count
    if held := agent.resilience()["dependencies"]["vendor"]["in_flight"]:
        found["held"] = held
    return found


def refused_ms(refused: CallRefused) -> int:
    return refused.decision.retry_after_ms


def sent(kind: str, asked: str) -> Any:
    return iter(asked.split()) if KINDS[kind][0] else asked


async def read_async(kind: str, answer: Any) -> list[str]:
    return [one async for one in answer] if KINDS[kind][1] else [await answer]


def read(kind: str, answer: Any) -> list[str]:
    return list(answer) if KINDS[kind][1] else [answer]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("asked", "status", "outcome", "cooldown_ms"), ENDS)
def test_the_status_of_a_call_of_a_thread_is_its_outcome(
    worker: blocking.Agent,
    grpc_vendor: GrpcVendor,
    kind: str,
    asked: str,
    status: str,
    outcome: str,
    cooldown_ms: int,
):
    with guarded(worker, grpc_vendor) as channel:
        method = stub(channel, kind)
        if status == "OK":
            assert read(kind, method(sent(kind, asked))) == ["fine"]
        else:
            with pytest.raises(grpc.RpcError) as raised:
                read(kind, method(sent(kind, asked)))
            assert raised.value.code() is grpc.StatusCode[status]
            assert not isinstance(raised.value, Refused)
        wait_until(lambda: ended(worker), accept=lambda found: found == {outcome: 1})
        if cooldown_ms:
            with pytest.raises(CallRefused) as refused:
                read(kind, method(sent(kind, "ok")))
            assert 0 < refused_ms(refused.value) <= cooldown_ms
            assert grpc_vendor.calls == 1


@pytest.mark.both_loops
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("asked", "status", "outcome", "cooldown_ms"), ENDS)
async def test_the_status_of_a_call_of_a_loop_is_its_outcome(
    agent: Agent,
    grpc_vendor: GrpcVendor,
    kind: str,
    asked: str,
    status: str,
    outcome: str,
    cooldown_ms: int,
):
    async with guarded_async(agent, grpc_vendor) as channel:
        method = stub(channel, kind)
        if status == "OK":
            assert await read_async(kind, method(sent(kind, asked))) == ["fine"]
        elif status == "CANCELLED":
            # That of the server is an error here too, unlike one of the caller.
            with pytest.raises(grpc.aio.AioRpcError):
                await read_async(kind, method(sent(kind, asked)))
        else:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await read_async(kind, method(sent(kind, asked)))
            assert raised.value.code() is grpc.StatusCode[status]
        assert ended(agent) == {outcome: 1}
        if cooldown_ms:
            with pytest.raises(CallRefused) as refused:
                await read_async(kind, method(sent(kind, "ok")))
            assert 0 < refused_ms(refused.value) <= cooldown_ms
            assert grpc_vendor.calls == 1


# Streams


def test_a_stream_of_a_thread_that_fails_in_the_middle_is_a_failure(
    worker: blocking.Agent, grpc_vendor: GrpcVendor
):
    with guarded(worker, grpc_vendor) as channel:
        messages = stub(channel, "unary_stream")("fail 2 UNAVAILABLE")
        assert [next(messages), next(messages)] == ["0", "1"]
        with pytest.raises(grpc.RpcError):
            next(messages)
        wait_until(lambda: ended(worker), accept=lambda found: found == {"failure": 1})


async def test_a_stream_of_a_loop_that_fails_in_the_middle_is_a_failure(
    agent: Agent, grpc_vendor: GrpcVendor
):
    async with guarded_async(agent, grpc_vendor) as channel:
        messages = stub(channel, "unary_stream")("fail 2 UNAVAILABLE")
        assert [await messages.read(), await messages.read()] == ["0", "1"]
        with pytest.raises(grpc.aio.AioRpcError):
            await messages.read()
        assert ended(agent) == {"failure": 1}


@pytest.mark.parametrize(("asked", "outcome"), [("hang 1", "ok"), ("hang", "neutral")])
@pytest.mark.parametrize("leave", ["cancel", "drop"])
def test_a_stream_that_its_thread_leaves_frees_its_slot(
    worker: blocking.Agent, grpc_vendor: GrpcVendor, asked: str, outcome: str, leave: str
):
    with guarded(worker, grpc_vendor) as channel:
        messages = stub(channel, "unary_stream")(asked)
        if outcome == "ok":
            assert next(messages) == "0"
        assert ended(worker) == {"held": 1}
        wait_until(lambda: grpc_vendor.calls)
        if leave == "cancel":
            messages.cancel()
        del messages
        gc.collect()
        wait_until(lambda: ended(worker), accept=lambda found: found == {outcome: 1})
        assert grpc_vendor.ended.wait(30)


@pytest.mark.both_loops
@pytest.mark.parametrize(
    ("asked", "outcome", "leave"),
    [
        ("hang 1", "ok", "cancel"),
        ("hang", "neutral", "cancel"),
        ("hang 1", "ok", "cancelled task"),
        ("hang", "neutral", "cancelled task"),
    ],
)
async def test_a_stream_that_its_task_leaves_frees_its_slot(
    agent: Agent, grpc_vendor: GrpcVendor, asked: str, outcome: str, leave: str
):
    async with guarded_async(agent, grpc_vendor) as channel:
        began = asyncio.Event()

        async def reading() -> None:
            messages = stub(channel, "unary_stream")(asked)
            if outcome == "ok":
                assert await messages.read() == "0"
            await eventually(lambda: grpc_vendor.calls)
            assert ended(agent) == {"held": 1}
            began.set()
            if leave == "cancel":
                messages.cancel()
            elif leave == "cancelled task":
                await messages.read()

        task = asyncio.create_task(reading())
        await began.wait()
        if leave == "cancelled task":
            task.cancel()
        await asyncio.wait({task})
        await eventually(lambda: ended(agent), accept=lambda found: found == {outcome: 1})
        assert await asyncio.to_thread(grpc_vendor.ended.wait, 30)


@pytest.mark.parametrize(("asked", "outcome"), [("hang 1", "ok"), ("hang", "neutral")])
async def test_a_stream_that_a_loop_drops_ends_by_its_timeout_and_is_no_failure(
    tmp_path: Path, grpc_vendor: GrpcVendor, asked: str, outcome: str
):
    # grpc itself keeps a dropped call of a channel with interceptors.
    settings = settings_with(tmp_path, policy(timeout_ms=2_000))
    async with Agent(settings=settings) as agent, guarded_async(agent, grpc_vendor) as channel:
        messages = stub(channel, "unary_stream")(asked)
        if outcome == "ok":
            assert await messages.read() == "0"
        del messages
        await eventually(lambda: ended(agent), accept=lambda found: found == {outcome: 1})


# Calls of one message


def test_a_future_of_a_thread_is_reported_when_it_ends_and_when_it_is_cancelled(
    worker: blocking.Agent, grpc_vendor: GrpcVendor
):
    with guarded(worker, grpc_vendor) as channel:
        method = stub(channel, "unary_unary")
        assert method.future("ok").result() == "fine"
        assert method.future("UNAVAILABLE").exception().code() is grpc.StatusCode.UNAVAILABLE
        hanging = method.future("hang")
        wait_until(lambda: grpc_vendor.calls == 3)
        assert ended(worker)["held"] == 1
        hanging.cancel()
        wait_until(lambda: ended(worker), accept=lambda found: found == {"ok": 1, "failure": 1, "neutral": 1})


@pytest.mark.both_loops
async def test_a_cancelled_task_frees_the_slot_of_its_call(agent: Agent, grpc_vendor: GrpcVendor):
    async with guarded_async(agent, grpc_vendor) as channel:

        async def ask() -> str:
            return str(await stub(channel, "unary_unary")("hang"))

        task = asyncio.create_task(ask())
        await eventually(lambda: grpc_vendor.calls)
        assert ended(agent) == {"held": 1}
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        await eventually(lambda: ended(agent), accept=lambda found: found == {"neutral": 1})


# Timeouts


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_threads_have_the_timeout_of_the_dependency(
    tmp_path: Path, grpc_vendor: GrpcVendor, kind: str
):
    settings = settings_with(tmp_path, policy(timeout_ms=300))
    with blocking.Agent(settings=settings) as worker, guarded(worker, grpc_vendor) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            read(kind, stub(channel, kind)(sent(kind, "hang")))
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_until(lambda: ended(worker), accept=lambda found: found == {"failure": 1})


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_of_a_loop_have_the_timeout_of_the_dependency(
    tmp_path: Path, grpc_vendor: GrpcVendor, kind: str
):
    settings = settings_with(tmp_path, policy(timeout_ms=300))
    async with Agent(settings=settings) as agent, guarded_async(agent, grpc_vendor) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read_async(kind, stub(channel, kind)(sent(kind, "hang")))
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: ended(agent), accept=lambda found: found == {"failure": 1})


def test_the_deadline_of_the_caller_is_shorter_than_its_timeout_and_says_nothing(
    worker: blocking.Agent, grpc_vendor: GrpcVendor
):
    with guarded(worker, grpc_vendor) as channel:
        with fuseboard.deadline(0.3), pytest.raises(grpc.RpcError) as raised:
            stub(channel, "unary_unary")("hang", timeout=60)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_until(lambda: ended(worker), accept=lambda found: found == {"neutral": 1})


def test_the_tier_of_a_client_decides_its_timeout_and_a_timeout_of_a_call_wins(
    tmp_path: Path, grpc_vendor: GrpcVendor
):
    tiers = policy(timeout_ms=30_000, timeouts_ms=(0, 0, 5_000))
    with blocking.Agent(settings=settings_with(tmp_path, tiers)) as worker:
        for options, timeout_s in (({}, None), ({"tier": "optional"}, None), ({}, 100.0)):
            with guarded(worker, grpc_vendor, **options) as channel:
                stub(channel, "unary_unary")("ok", timeout=timeout_s)
    standard_s, optional_s, own_s = grpc_vendor.timeouts
    assert standard_s is not None
    assert optional_s is not None
    assert own_s is not None
    assert optional_s < 10 < standard_s < 40 < own_s


async def test_a_message_that_does_not_come_in_time_ends_a_stream_of_a_loop(
    tmp_path: Path, grpc_vendor: GrpcVendor
):
    bounds = policy(timeout_ms=100, first_part_ms=20_000, between_parts_ms=300)
    async with (
        Agent(settings=settings_with(tmp_path, bounds)) as agent,
        guarded_async(agent, grpc_vendor) as channel,
    ):
        messages = stub(channel, "unary_stream")("hang 2")
        assert [await messages.read(), await messages.read()] == ["0", "1"]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await messages.read()
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert ended(agent) == {"failure": 1}
        assert await asyncio.to_thread(grpc_vendor.ended.wait, 30)


# Refusals


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_breaker_refuses_calls_of_threads(tmp_path: Path, grpc_vendor: GrpcVendor, kind: str):
    breaker = BreakerPolicy(consecutive_failures=1, open_ms=60_000)
    settings = settings_with(tmp_path, policy(breaker=breaker))
    with blocking.Agent(settings=settings) as worker, guarded(worker, grpc_vendor) as channel:
        method = stub(channel, kind)
        with pytest.raises(grpc.RpcError):
            read(kind, method(sent(kind, "UNAVAILABLE")))
        wait_until(lambda: any(view.state == "open" for view in worker.views()))
        with pytest.raises(grpc.RpcError) as raised:
            read(kind, method(sent(kind, "ok")))
        check_refused(raised.value, grpc_vendor)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_open_breaker_refuses_calls_of_a_loop(tmp_path: Path, grpc_vendor: GrpcVendor, kind: str):
    breaker = BreakerPolicy(consecutive_failures=1, open_ms=60_000)
    settings = settings_with(tmp_path, policy(breaker=breaker))
    async with Agent(settings=settings) as agent, guarded_async(agent, grpc_vendor) as channel:
        method = stub(channel, kind)
        with pytest.raises(grpc.aio.AioRpcError):
            await read_async(kind, method(sent(kind, "UNAVAILABLE")))
        call = method(sent(kind, "ok"))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read_async(kind, call)
        check_refused(raised.value, grpc_vendor)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


def check_refused(error: Any, vendor: GrpcVendor) -> None:
    assert isinstance(error, CallRefused)
    assert isinstance(error, Refused)
    assert error.decision.reason is Reason.BREAKER_OPEN
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == str(error) == error.decision.explain()
    assert list(error.trailing_metadata()) == []
    assert vendor.calls == 1


def test_a_full_bulkhead_refuses_until_a_stream_ends(tmp_path: Path, grpc_vendor: GrpcVendor):
    settings = settings_with(tmp_path, policy(slots=1))
    with (
        blocking.Agent(settings=settings) as worker,
        guarded(worker, grpc_vendor, tier="critical", wait_s=0) as channel,
    ):
        method = stub(channel, "unary_stream")
        first = method("hang 1")
        assert next(first) == "0"
        second = method("ok")
        with pytest.raises(CallRefused):
            next(second)
        first.cancel()
        wait_until(lambda: "held" not in ended(worker))
        assert list(method("ok")) == ["fine"]


def test_an_agent_of_the_other_kind_and_an_unknown_option_are_refused(
    worker: blocking.Agent, settings: AgentSettings
):
    with pytest.raises(Misconfigured, match=r"fuseboard\.blocking"):
        GuardedInterceptor(Agent(settings=settings), dependency="vendor")  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match="event loop"):
        async_interceptors(worker, dependency="vendor")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="retry"):
        GuardedInterceptor(worker, dependency="vendor", retry=True)  # type: ignore[call-arg]


# Without an interceptor


async def test_a_block_judges_the_errors_of_grpc_by_their_status(agent: Agent, grpc_vendor: GrpcVendor):
    async with grpc.aio.insecure_channel(grpc_vendor.target) as channel:
        method = stub(channel, "unary_unary")
        for asked in ("NOT_FOUND", "UNAVAILABLE", "RESOURCE_EXHAUSTED info 60000"):
            with pytest.raises(grpc.aio.AioRpcError):
                async with agent.call("vendor"):
                    await method(asked)
        assert ended(agent) == {"neutral": 2, "failure": 1}
        with pytest.raises(Refused) as refused:
            await agent.admit_call("vendor")
        assert 1000 < refused.value.decision.retry_after_ms <= 60_000


@pytest.mark.parametrize(
    ("code", "details", "metadata", "says"),
    [
        ("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 4)", (), "D"),
        ("RESOURCE_EXHAUSTED", "gRPC message exceeds maximum size 4: 9", (), "D"),
        ("RESOURCE_EXHAUSTED", "Received message exceeds the maximum configured message size.", (), "D"),
        ("UNAVAILABLE", "", (("grpc-retry-pushback-ms", "-1"),), "T"),
        ("UNAVAILABLE", "", (("grpc-retry-pushback-ms", "soon"),), "T"),
        ("UNAVAILABLE", "", (("grpc-status-details-bin", b"\xff no status"),), "RT"),
        ("PERMISSION_DENIED", "", (), "A"),
        ("FAILED_PRECONDITION", "", (), ""),
        ("ABORTED", "", (), ""),
        ("UNKNOWN", "Exception iterating requests!", (), "A"),
    ],
)
def test_the_status_of_an_error_says(code: str, details: str, metadata: Any, says: str):
    error = grpc.aio.AioRpcError(
        grpc.StatusCode[code], grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details
    )
    assert flags(error) == says
    assert flags(grpc.RpcError()) == "TA"
