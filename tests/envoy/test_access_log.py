"""Outcomes from Envoy's access log: how each is judged, and what hostile bytes can do."""

import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fuseboard import Agent, AgentSettings, Outcome
from fuseboard.contract import keys
from fuseboard.contract.policy import BreakerPolicy
from fuseboard.decision import Parts, Permit
from fuseboard.envoy import access_log
from fuseboard.envoy import otlp_pb2 as pb
from fuseboard.envoy.access_log import (
    MAX_ATTEMPTS,
    MAX_ATTRIBUTES,
    MAX_EXPORT,
    MAX_MESSAGES,
    MAX_NODES,
    AccessLog,
    Nodes,
)
from fuseboard.envoy.asks import InvalidMessage
from fuseboard.testing import FakeAgent
from tests.agents.limit_kinds import window
from tests.agents.published import decides_by, publish
from tests.agents.servers import PATIENT, POLICY
from tests.waiting import eventually

OK, FAILURE, NEUTRAL = Outcome.OK, Outcome.FAILURE, Outcome.NEUTRAL
#: The attributes that Envoy 1.40 sent of a good answer. The tests with a real Envoy see the same attributes.
GOOD = {
    "code": "200",
    "flags": "-",
    "duration_ms": "6",
    "attempts": "1",
    "retry_after": "-",
    "grpc_status": "- -",
    "grpc_message": "- -",
    "pushback_ms": "- -",
}


def record(permit: str | bytes, **changes: str | bytes) -> pb.LogRecord:
    known: dict[str, str | bytes] = {"permit": permit, **GOOD, **changes}
    texts = {name: text.encode() if isinstance(text, str) else text for name, text in known.items()}
    values = [
        pb.KeyValue(key=name.encode(), value=pb.AnyValue(string_value=text)) for name, text in texts.items()
    ]
    return pb.LogRecord(attributes=values)


def resource_of(node: str, *records: pb.LogRecord) -> pb.ResourceLogs:
    named = pb.KeyValue(key=b"node_name", value=pb.AnyValue(string_value=node.encode()))
    return pb.ResourceLogs(
        resource=pb.Resource(attributes=[named]), scope_logs=[pb.ScopeLogs(log_records=records)]
    )


def export(*records: pb.LogRecord, node: str = "edge-1") -> bytes:
    return pb.ExportLogsServiceRequest(resource_logs=[resource_of(node, *records)]).SerializeToString()


class Reported(FakeAgent):
    """An agent that keeps what it was told of each permit."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Outcome | str, str | None, float | None, int]] = []
        self.again = 0

    def report(
        self, permit: Permit, outcome: Outcome, elapsed_s: float | None = None, *, cooldown_ms: int = 0
    ) -> None:
        kind = permit.failure[0] if permit.failure else None
        self.told.append((outcome, kind, elapsed_s, cooldown_ms))

    def give_back(self, taken: object) -> None:
        self.told.append(("given back", None, None, 0))

    def charge_again(self, permit: Permit, times: int) -> None:
        self.again += times


class Log:
    """An access log in front of an agent that keeps what it is told."""

    def __init__(self) -> None:
        self.agent, self.permits = Reported(), dict[str, Permit]()
        self.log = AccessLog(self.agent, take=lambda name: self.permits.pop(name, None))  # type: ignore[arg-type]

    def permit(self, name: str = "p1") -> Permit:
        permit = self.permits[name] = self.agent.permit_unasked("payments")
        permit.reported = False
        return permit

    def told(self, **changes: str | bytes) -> tuple[Outcome | str, str | None, float | None, int]:
        self.permit()
        self.agent.told.clear()
        assert self.log.export(export(record("p1", **changes))) == b""
        (told,) = self.agent.told
        return told


#: The records up to the odd header are of Envoy 1.40: what the upstream did, or which cluster was asked.
JUDGED = {
    "a good answer": ({}, (OK, None, 0.006, 0)),
    "a mistake of the caller": ({"code": "404"}, (NEUTRAL, None, None, 0)),
    "a broken upstream": ({"code": "500"}, (FAILURE, "HTTP 500", None, 0)),
    "a limit of the upstream": ({"code": "429", "retry_after": "7"}, (NEUTRAL, "HTTP 429", None, 7_000)),
    "a limit without a time": ({"code": "429"}, (NEUTRAL, "HTTP 429", None, 1_000)),
    "a long pause": ({"code": "429", "retry_after": "3000"}, (NEUTRAL, "HTTP 429", None, 60_000)),
    "closed": ({"code": "503", "flags": "UC"}, (FAILURE, "connection_lost", None, 0)),
    "late": ({"code": "504", "flags": "UT", "duration_ms": "303"}, (FAILURE, "timeout", None, 0)),
    "late, in its answer": ({"code": "200", "flags": "UT"}, (NEUTRAL, None, None, 0)),
    "closed, in its answer": ({"code": "200", "flags": "UC"}, (NEUTRAL, None, None, 0)),
    "reset, in its answer": ({"code": "200", "flags": "UR"}, (NEUTRAL, None, None, 0)),
    "reset by Envoy, in its answer": ({"code": "200", "flags": "LR"}, (NEUTRAL, None, None, 0)),
    "an error, closed within": ({"code": "500", "flags": "UC"}, (FAILURE, "connection_lost", None, 0)),
    "no HTTP": ({"code": "502", "flags": "UPE"}, (FAILURE, "protocol_error", None, 0)),
    "broken off": ({"code": "200", "flags": "UPE"}, (NEUTRAL, None, None, 0)),
    "not reached": ({"code": "503", "flags": "UF"}, (FAILURE, "connection_failed", None, 0)),
    "no host": ({"code": "503", "flags": "UH"}, (FAILURE, "no_healthy_upstream", None, 0)),
    "Envoy is full": ({"code": "503", "flags": "UO"}, ("given back", None, None, 0)),
    "full at the second": ({"code": "503", "flags": "URX,UO", "attempts": "2"}, (NEUTRAL, None, None, 0)),
    "refused by the limits": ({"code": "429", "flags": "RL", "attempts": "0"}, ("given back", None, None, 0)),
    "the client left": ({"code": "0", "flags": "DC"}, (NEUTRAL, None, None, 0)),
    "the client left early": ({"code": "0", "flags": "DC", "attempts": "0"}, ("given back", None, None, 0)),
    "three attempts": ({"code": "500", "flags": "URX", "attempts": "3"}, (FAILURE, "HTTP 500", None, 0)),
    "a limit, three times": (
        {"code": "429", "flags": "URX", "attempts": "3", "retry_after": "7"},
        (NEUTRAL, "HTTP 429", None, 7_000),
    ),
    "not reached, three times": (
        {"code": "503", "flags": "URX,UF", "attempts": "3"},
        (FAILURE, "connection_failed", None, 0),
    ),
    "good at the second attempt": ({"attempts": "2"}, (OK, None, None, 0)),
    "an odd header": ({"retry_after": b"\xff\xfe", "code": "429"}, (NEUTRAL, "HTTP 429", None, 1_000)),
    "gRPC, good": ({"grpc_status": "- 0"}, (OK, None, 0.006, 0)),
    "gRPC, unavailable": ({"grpc_status": "14 -"}, (FAILURE, "UNAVAILABLE", None, 0)),
    "gRPC, a mistake of the caller": ({"grpc_status": "5"}, (NEUTRAL, None, None, 0)),
    "gRPC, a limit of the upstream": ({"grpc_status": "8"}, (NEUTRAL, "RESOURCE_EXHAUSTED", None, 1_000)),
    "gRPC, a limit, three times": (
        {"grpc_status": "8 -", "flags": "URX", "attempts": "3"},
        (NEUTRAL, "RESOURCE_EXHAUSTED", None, 1_000),
    ),
    "gRPC, unavailable, three times": (
        {"grpc_status": "14 -", "flags": "URX", "attempts": "3"},
        (FAILURE, "UNAVAILABLE", None, 0),
    ),
    "gRPC, a message that never fits": (
        {"grpc_status": "- 8", "grpc_message": "- SERVER: Received message larger than max (5 vs. 4)"},
        (NEUTRAL, None, None, 0),
    ),
    "gRPC, a message that never fits, from .NET": (
        {"grpc_status": "8", "grpc_message": "Received message exceeds the maximum configured message size."},
        (NEUTRAL, None, None, 0),
    ),
    "gRPC, no credentials": ({"grpc_status": "16"}, (NEUTRAL, "UNAUTHENTICATED", None, 0)),
    "gRPC, an unknown status": ({"grpc_status": "77"}, (FAILURE, "UNKNOWN", None, 0)),
    "gRPC, closed": (
        {"flags": "UC", "grpc_status": "14", "duration_ms": "-"},
        (FAILURE, "connection_lost", None, 0),
    ),
    "gRPC, a wait": (
        {"grpc_status": "8", "pushback_ms": "- 2500"},
        (NEUTRAL, "RESOURCE_EXHAUSTED", None, 2_500),
    ),
    "gRPC, a long wait": (
        {"grpc_status": "8", "pushback_ms": "120000 -"},
        (NEUTRAL, "RESOURCE_EXHAUSTED", None, 60_000),
    ),
    "gRPC, an odd wait": (
        {"grpc_status": "8", "pushback_ms": b"\xff -"},
        (NEUTRAL, "RESOURCE_EXHAUSTED", None, 1_000),
    ),
    "a fault that Envoy injects": ({"code": "503", "flags": "FI"}, (NEUTRAL, None, None, 0)),
    "nothing but a permit": (dict.fromkeys(GOOD, ""), (NEUTRAL, None, None, 0)),
    "no more attempts": ({"code": "0", "flags": "URX"}, (FAILURE, "retries_exhausted", None, 0)),
    "reset here": ({"code": "503", "flags": "LR"}, (FAILURE, "local_reset", None, 0)),
    "reset there": ({"code": "503", "flags": "UR"}, (FAILURE, "upstream_reset", None, 0)),
    "no address": ({"code": "503", "flags": "DF"}, (FAILURE, "dns_failure", None, 0)),
    "an injected delay": ({"code": "200", "flags": "DI"}, (NEUTRAL, None, None, 0)),
    "the limits failed": ({"code": "500", "flags": "RLSE"}, (NEUTRAL, None, None, 0)),
    "not authorized": ({"code": "403", "flags": "UAEX"}, (NEUTRAL, None, None, 0)),
    "a number without an end": ({"duration_ms": "9" * 5_000}, (OK, None, None, 0)),
    "a header without an end": (
        {"code": "429", "retry_after": "7" + " " * 100 + "x"},
        (NEUTRAL, "HTTP 429", None, 7_000),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JUDGED)
def test_flags_are_judged_first_and_then_the_status(case: str):
    changes, told = JUDGED[case]
    assert Log().told(**changes) == told


def test_a_permit_counts_once_and_an_unknown_one_never():
    one = Log()
    one.permit()
    body = export(record("p1"), record("p1", code="500"), record("p2"), record("-"), record(""))
    one.log.export(body)
    assert [outcome for outcome, *_ in one.agent.told] == [OK]
    assert (one.log.outcomes, one.log.unknown) == (1, 2)


def test_all_dependencies_of_a_request_get_its_outcome():
    one = Log()
    one.permit("p1")
    one.permit("p2")
    one.log.export(export(record("p1,p2", code="500")))
    assert [outcome for outcome, *_ in one.agent.told] == [FAILURE, FAILURE]


@pytest.mark.parametrize(
    ("attempts", "flags", "again"),
    [
        ("1", "-", 0),
        ("3", "URX", 2),
        ("3", "UO", 1),
        ("0", "RL", 0),
        ("-", "-", 0),
        ("9" * 9, "-", MAX_ATTEMPTS - 1),
    ],
)
def test_each_attempt_after_the_first_is_charged(attempts: str, flags: str, again: int):
    one = Log()
    one.told(attempts=attempts, flags=flags)
    assert one.agent.again == one.log.repeated == again


def test_the_time_of_a_stream_is_not_that_of_its_first_part():
    one = Log()
    permit = one.permit()
    permit.parts = Parts(first_s=1.0, between_s=1.0)
    one.log.export(export(record("p1", duration_ms="90000")))
    assert one.agent.told == [(OK, None, None, 0)]


def test_the_node_of_envoy_is_the_witness():
    one = Log()
    first, second, third = (one.permit(f"p{number}") for number in (1, 2, 3))
    one.log.export(export(record("p1"), node="edge-1"))
    one.log.export(export(record("p2"), node="edge-2"))
    one.log.export(export(record("p3"), node=""))
    assert first.witness.startswith("envoy-")
    assert second.witness.startswith("envoy-")
    assert first.witness != second.witness
    assert third.witness == ""
    assert len(first.witness) == len("envoy-") + 12
    assert len(one.log.nodes) == 2


def test_nodes_are_bounded_and_quiet_ones_make_room(monkeypatch: pytest.MonkeyPatch):
    now = 1_000.0
    monkeypatch.setattr(access_log, "monotonic", lambda: now)
    nodes = Nodes()
    names = {nodes.witness(b"edge-%d" % number) for number in range(MAX_NODES)}
    assert (len(names), len(nodes)) == (MAX_NODES, MAX_NODES)
    now += 599.0
    assert nodes.witness(b"edge-0") in names  # heard again
    assert nodes.witness(b"new") == ""
    assert (nodes.beyond, len(nodes)) == (1, MAX_NODES)
    now += 2.0
    assert nodes.witness(b"new").startswith("envoy-")
    assert (nodes.beyond, len(nodes)) == (1, MAX_NODES)
    assert nodes.witness(b"edge-0") in names
    assert nodes.witness(b"edge-2") in names


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\xff", b"\x00" * (MAX_EXPORT + 1)])
def test_bytes_that_are_no_export_are_refused(body: bytes):
    one = Log()
    with pytest.raises(InvalidMessage):
        one.log.export(body)
    assert one.log.invalid == 1


@pytest.mark.parametrize("scopes", [False, True])
def test_an_export_is_read_up_to_its_bound(scopes: bool):
    one = Log()
    empty = [pb.ScopeLogs()] * (MAX_MESSAGES + 7)
    resources = [pb.ResourceLogs(scope_logs=empty)] if scopes else [pb.ResourceLogs()] * (MAX_MESSAGES + 7)
    body = pb.ExportLogsServiceRequest(resource_logs=resources).SerializeToString()
    assert one.log.export(body) == b""
    assert one.log.cut == 1
    one.permit()
    one.log.export(body + export(record("p1")))
    assert (one.log.cut, one.log.outcomes) == (2, 0)


def test_a_message_is_read_up_to_its_bound():
    one = Log()
    one.permit()
    far = pb.LogRecord(attributes=[pb.KeyValue(key=b"x")] * MAX_ATTRIBUTES)
    far.attributes.extend(record("p1").attributes)
    one.log.export(export(far))
    assert one.agent.told == []


def test_a_defect_costs_no_other_outcome(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    one = Log()
    one.permit("p1")
    one.permit("p2")

    def broken(permit: Permit, times: int) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(one.agent, "charge_again", broken)
    one.log.export(export(record("p1", attempts="3"), record("p2")))
    assert [outcome for outcome, *_ in one.agent.told] == [NEUTRAL, OK]
    assert "envoy.defect" in caplog.text


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(body: bytes):
    one = Log()
    one.permit()
    try:
        assert one.log.export(body) == b""
    except InvalidMessage:
        assert one.log.invalid == 1


TEXTS = st.one_of(st.sampled_from([b"-", b"", b"0", b"503", b"UF,URX", b"RL", b"p1"]), st.binary(max_size=30))


@given(st.dictionaries(st.sampled_from(["permit", *GOOD]), TEXTS), st.binary(max_size=20))
def test_any_attributes_end_the_permit_at_most_once(texts: dict[str, bytes], node: bytes):
    one = Log()
    one.permit()
    named = pb.KeyValue(key=b"node_name", value=pb.AnyValue(string_value=node))
    logged = record(texts.pop("permit", b"p1"), **texts)
    body = pb.ExportLogsServiceRequest(
        resource_logs=[
            pb.ResourceLogs(
                resource=pb.Resource(attributes=[named]), scope_logs=[pb.ScopeLogs(log_records=[logged])]
            )
        ]
    ).SerializeToString()
    one.log.export(body)
    one.log.export(body)
    assert len(one.agent.told) == one.log.outcomes == ("p1" not in one.permits)


def test_mutated_exports_never_break_it():
    """Bits of good exports are turned, and parts cut out: a seed makes them."""
    chance = random.Random(40)
    one = Log()
    for _ in range(3_000):
        one.permit()
        body = bytearray(export(record("p1", code="500", attempts="2"), record("p9")))
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(body))
            if chance.random() < 0.8:
                body[at] ^= 1 << chance.randrange(8)
            else:
                del body[at : at + chance.randint(1, 9)]
        with suppress(InvalidMessage):
            one.log.export(bytes(body))
    assert one.log.outcomes
    assert one.log.invalid
    assert len(one.log.nodes) <= MAX_NODES


# With an agent and Redis


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[Agent]:
    breaker = BreakerPolicy(consecutive_failures=3, minimum_servers=2, open_ms=60_000)
    limit = window(100, 3600, "calls")
    payments = replace(POLICY.dependencies[0], breaker=breaker, vendor_limits=(limit,))
    publish(limits, replace(POLICY, dependencies=(payments,), tuning=PATIENT), revision=1)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        await eventually(decides_by(agent, 1))
        yield agent


class Serving:
    """One process that decides the calls of several Envoys."""

    def __init__(self, agent: Agent, limits: redis.Redis) -> None:
        self.agent, self._limits, self.permits = agent, limits, dict[str, Permit]()
        self.log = AccessLog(agent, take=lambda name: self.permits.pop(name, None))

    async def call(self, node: str, **changes: str) -> None:
        self.permits["p"] = await self.agent.admit_call("payments")
        self.log.export(export(record("p", **changes), node=node))

    def state(self) -> str:
        text = self._limits.get(keys.breaker("production", "payments"))
        assert text is not None
        return text.decode().split(" ")[0]


async def test_failures_of_one_envoy_do_not_stop_the_others(agent: Agent, limits: redis.Redis):
    one = Serving(agent, limits)
    await one.call("edge-1")
    await one.call("edge-2")
    for _ in range(6):
        await one.call("edge-1", code="503", flags="UF")
    await eventually(lambda: limits.hlen(keys.evidence("production", "payments")) == 2)
    await one.call("edge-2")
    assert one.state() == "closed"
    for _ in range(3):
        await one.call("edge-2", code="503", flags="UF")
    await eventually(lambda: one.state() == "open")


async def test_attempts_and_refusals_of_the_limits_change_what_is_left(agent: Agent, limits: redis.Redis):
    one = Serving(agent, limits)

    async def left() -> int | None:
        permit = await agent.admit_call("payments")
        agent.give_back(permit)
        return permit.decision.limits[0].remaining

    await one.call("edge-1", attempts="4")  # 4 calls
    await one.call("edge-1", attempts="0", flags="RL", code="429")  # none
    await eventually(left, "three attempts more are charged", accept=lambda remaining: remaining == 95)
