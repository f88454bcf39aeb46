"""Guarded channels of gRPC beside other interceptors, and faults of the application itself."""

import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuseboard import Agent, blocking
from fuseboard.contract.policy import BreakerPolicy
from fuseboard.decision import Permit
from tests.agents.alone import settings_with
from tests.waiting import wait_until

grpc = pytest.importorskip("grpc")

from fuseboard.integrations.grpc import CallRefused, GuardedInterceptor, async_interceptors  # noqa: E402
from tests.agents.grpc_vendor import KINDS, GrpcVendor, grpc_vendor, stub  # noqa: E402
from tests.agents.test_grpc import (  # noqa: E402
    agent,
    check_refused,
    ended,
    guarded,
    policy,
    read,
    sent,
    settings,
    worker,
)

__all__ = ["agent", "grpc_vendor", "settings", "worker"]


class Passing(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Passes each call on, and iterates over a streamed answer itself, as that of OpenTelemetry does."""

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(client_call_details, request)

    intercept_stream_unary = intercept_unary_unary

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        yield from continuation(client_call_details, request)

    intercept_stream_stream = intercept_unary_stream


class Raising(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        raise self.error

    intercept_unary_stream = intercept_unary_unary


class OwnAnswer(grpc.UnaryUnaryClientInterceptor):
    """Answers from a cache."""

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return SimpleNamespace(result=lambda: "kept")


@pytest.mark.parametrize("kind", KINDS)
def test_an_outer_interceptor_passes_a_refusal_on(tmp_path: Path, grpc_vendor: GrpcVendor, kind: str):
    breaker = BreakerPolicy(consecutive_failures=1, open_ms=60_000)
    settings = settings_with(tmp_path, policy(breaker=breaker))
    with blocking.Agent(settings=settings) as worker, guarded(worker, grpc_vendor) as channel:
        method = stub(grpc.intercept_channel(channel, Passing()), kind)
        with pytest.raises(grpc.RpcError):
            read(kind, method(sent(kind, "UNAVAILABLE")))
        wait_until(lambda: any(view.state == "open" for view in worker.views()))
        with pytest.raises(grpc.RpcError) as raised:
            read(kind, method(sent(kind, "ok")))
        check_refused(raised.value, grpc_vendor)
        if kind == "unary_unary":
            check_refused(method.future("ok").exception(), grpc_vendor)


def test_a_refusal_is_a_call_that_has_ended():
    refused = CallRefused("no room")
    called: list[object] = []
    refused.add_done_callback(called.append)
    assert called == [refused]
    assert refused.done()
    assert refused.exception() is refused
    assert not refused.add_callback(called.clear)
    assert not any((refused.cancel(), refused.cancelled(), refused.running(), refused.is_active()))
    assert refused.time_remaining() is None
    with pytest.raises(CallRefused, match="no room"):
        refused.result(timeout=1)
    assert refused.traceback() is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("asked", "outcome"), [("ok", "ok"), ("UNAVAILABLE", "failure")])
def test_the_iterator_of_an_inner_interceptor_is_watched(
    worker: blocking.Agent, grpc_vendor: GrpcVendor, kind: str, asked: str, outcome: str
):
    inner = grpc.intercept_channel(grpc.insecure_channel(grpc_vendor.target), Passing())
    with grpc.intercept_channel(inner, GuardedInterceptor(worker, dependency="vendor")) as channel:
        answer = stub(channel, kind)
        if outcome == "ok":
            assert read(kind, answer(sent(kind, asked))) == ["fine"]
        else:
            with pytest.raises(grpc.RpcError):
                read(kind, answer(sent(kind, asked)))
        wait_until(lambda: ended(worker), accept=lambda found: found == {outcome: 1})


def test_a_dropped_iterator_of_an_inner_interceptor_frees_its_slot(
    worker: blocking.Agent, grpc_vendor: GrpcVendor
):
    inner = grpc.intercept_channel(grpc.insecure_channel(grpc_vendor.target), Passing())
    with grpc.intercept_channel(inner, GuardedInterceptor(worker, dependency="vendor")) as channel:
        messages = stub(channel, "unary_stream")("hang 1")
        assert next(messages) == "0"
        del messages
        gc.collect()
        wait_until(lambda: ended(worker), accept=lambda found: found == {"ok": 1})
        assert grpc_vendor.ended.wait(30)


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
@pytest.mark.parametrize("error", [grpc.RpcError("no token"), TimeoutError("no token"), CallRefused("no")])
def test_what_an_inner_interceptor_of_a_thread_raises_is_its_own_fault(
    worker: blocking.Agent, grpc_vendor: GrpcVendor, kind: str, error: Exception
):
    inner = grpc.intercept_channel(grpc.insecure_channel(grpc_vendor.target), Raising(error))
    with grpc.intercept_channel(inner, GuardedInterceptor(worker, dependency="vendor")) as channel:
        with pytest.raises(type(error)) as raised:
            read(kind, stub(channel, kind)("ok"))
        assert raised.value is error
        wait_until(lambda: ended(worker), accept=lambda found: found == {"neutral": 1})


def test_an_answer_of_an_inner_interceptor_that_is_no_call_frees_its_slot(
    worker: blocking.Agent, grpc_vendor: GrpcVendor
):
    inner = grpc.intercept_channel(grpc.insecure_channel(grpc_vendor.target), OwnAnswer())
    with grpc.intercept_channel(inner, GuardedInterceptor(worker, dependency="vendor")) as channel:
        method = stub(channel, "unary_unary")
        assert method("ok") == method.future("ok").result() == "kept"
        wait_until(lambda: ended(worker), accept=lambda found: found == {"neutral": 2})


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_channel_is_no_failure_of_the_server(
    worker: blocking.Agent, grpc_vendor: GrpcVendor, kind: str
):
    channel = guarded(worker, grpc_vendor)
    channel.close()
    with pytest.raises(ValueError, match="closed"):
        read(kind, stub(channel, kind)(sent(kind, "ok")))
    wait_until(lambda: ended(worker), accept=lambda found: found == {"neutral": 1})


class Answering(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc] # the library has no types
    """Answers without a call, or breaks within one."""

    def __init__(self, *, calls: bool) -> None:
        self.calls = calls

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        answer = await continuation(client_call_details, request) if self.calls else None

        async def messages() -> AsyncIterator[str]:
            if answer is not None:
                async for message in answer:
                    yield message
                    raise KeyError("a bug of the application")

        return messages()


@pytest.mark.parametrize(("calls", "error"), [(False, AttributeError), (True, KeyError)])
async def test_an_inner_interceptor_of_a_loop_that_breaks_frees_its_slot(
    agent: Agent, grpc_vendor: GrpcVendor, calls: bool, error: type[Exception]
):
    interceptors = [*async_interceptors(agent, dependency="vendor"), Answering(calls=calls)]
    async with grpc.aio.insecure_channel(grpc_vendor.target, interceptors=interceptors) as channel:
        messages = stub(channel, "unary_stream")("hang 1")
        with pytest.raises(error):
            [one async for one in messages]
        assert ended(agent) == {"failure": 1}


# Faults of the application


def test_the_requests_of_a_thread_that_raise_are_its_own_fault(
    worker: blocking.Agent, grpc_vendor: GrpcVendor, monkeypatch: pytest.MonkeyPatch
):
    report, permits = worker.report, []

    def reported(permit: Permit, *given: Any, **more: Any) -> None:
        permits.append(permit)
        report(permit, *given, **more)

    monkeypatch.setattr(worker, "report", reported)

    def requests() -> Iterator[str]:
        yield "ok"
        raise KeyError("a bug of the application")

    with guarded(worker, grpc_vendor) as channel:
        with pytest.raises(grpc.RpcError):
            stub(channel, "stream_unary")(requests())
        wait_until(lambda: ended(worker), accept=lambda found: found == {"neutral": 1})
        # No failure of the dependency is listed.
        assert [permit.failure for permit in permits] == [None]


class Unfinished(grpc.RpcError):  # type: ignore[misc] # the library has no types
    """An error of an application, with methods that raise, and metadata that are no pairs."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def code(self) -> Any:
        return grpc.StatusCode[self.name]

    def details(self) -> str:
        raise AttributeError("no details yet")

    def trailing_metadata(self) -> Any:
        return {"grpc-retry-pushback-ms": "250"}


async def test_an_error_with_methods_that_raise_frees_its_slot(agent: Agent):
    for name in ("NOT_FOUND", "UNAVAILABLE"):
        with pytest.raises(Unfinished):
            async with agent.call("vendor"):
                raise Unfinished(name)
    assert ended(agent) == {"neutral": 1, "failure": 1}
