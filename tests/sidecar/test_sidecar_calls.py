"""Calls and requests of an application that asks the sidecar: what it gets, and what the agent counts."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from fuseboard import Agent, AgentSettings, Refused
from fuseboard.contract.policy import Dependency, Limit, Policy, Tier
from fuseboard.contract.protection import Bulkhead, CallProtection, LocalRate
from fuseboard.contract.sidecar import MAX_REPORTS, CallError
from fuseboard.contract.words import Algorithm, CallTier, Outcome, WhenFull
from fuseboard.serving.exchange import Answer, Request
from fuseboard.sidecar import permits
from fuseboard.sidecar.app import Options, running
from fuseboard.sidecar.permits import Kept
from tests.agents.alone import settings_with
from tests.agents.published import decides_by
from tests.agents.servers import BREAKER, PATIENT, POLICY
from tests.sidecar.conftest import Beside, Client
from tests.waiting import PATIENCE_S, eventually

VENDOR = Limit(name="calls", limit=2, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
TOKENS = Limit(
    name="tokens", limit=1_000, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW, measure="tokens"
)
SLOTS = Limit(name="at-once", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
#: One slot for each tier, and no queue.
FEW = Bulkhead(max_concurrent=3, when_full=(WhenFull.ABORT,) * 3)
TWO = Limit(name="requests", limit=2, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)


def policy(*vendor_limits: Limit, quotas: tuple[Limit, ...] = (), **dependency: Any) -> Policy:
    given = {"breaker": BREAKER, **dependency}
    payments = Dependency(name="payments", vendor_limits=vendor_limits, **given)
    return msgspec.structs.replace(
        POLICY,
        tiers=(Tier(name="free", quotas=quotas), Tier(name="unlimited")),
        dependencies=(payments,),
        tuning=PATIENT,
    )


def outcomes(client: Client) -> dict[str, int]:
    """The calls to payments that ended, by outcome, without zeros."""
    ended = client.agent.counters.outcomes()
    return {outcome: number for (name, outcome), number in ended.items() if name == "payments" and number}


async def ended_as(client: Client, expected: dict[str, int]) -> None:
    """Successes are counted with the next question to Redis."""
    await eventually(lambda: outcomes(client), accept=lambda found: found == expected)


async def test_an_allowed_call_has_a_permit_and_its_report_counts(beside: Beside) -> None:
    async with beside(policy(VENDOR)) as client:
        call = await client.call()
        assert (call["allowed"], call["state"], call["mode"], call["revision"]) == (
            True,
            "closed",
            "shared",
            7,
        )
        assert (call["timeout_ms"], call["expires_ms"]) == (30_000, 35_000)
        answer = await client.report({"permit": call["permit"], "status": 200, "elapsed_ms": 12})
        assert answer == {"accepted": 1, "unknown": [], "invalid": []}
        await ended_as(client, {"ok": 1})


async def test_a_refusal_is_200_with_an_answer_that_the_application_can_send_on(beside: Beside) -> None:
    async with beside(policy(VENDOR)) as client:
        await client.call()
        await client.call()
        refused = await client.call()
    assert (refused["allowed"], refused["reason"], refused["rule"]) == (False, "vendor_limit", "calls")
    assert refused["status"] == refused["problem"]["status"] == 503
    assert refused["retry_after_ms"] > 0
    headers = refused["headers"]
    assert headers["content-type"] == "application/problem+json"
    assert int(headers["retry-after"]) * 1000 >= refused["retry_after_ms"]


async def test_failures_that_are_reported_open_the_breaker(beside: Beside) -> None:
    async with beside(policy()) as client:
        for _ in range(BREAKER.consecutive_failures):
            await client.report({"permit": (await client.call())["permit"], "status": 503})
        refused = await eventually(client.call, accept=lambda call: not call["allowed"])
        assert refused["reason"] == "breaker_open"
        assert refused["rule"] == "payments"


async def test_a_429_stops_the_calls_for_as_long_as_the_vendor_says_and_60_s_at_most(beside: Beside) -> None:
    async with beside(policy()) as client:
        permit = (await client.call())["permit"]
        await client.report({"permit": permit, "status": 429, "retry_after": "1800"})
        refused = await eventually(client.call, accept=lambda call: not call["allowed"])
        assert refused["reason"] == "cooling_down"
        assert 0 < refused["retry_after_ms"] <= 60_000
        await ended_as(client, {"neutral": 1})


@pytest.mark.parametrize(
    ("error", "outcome"),
    {
        CallError.TIMEOUT: "failure",
        CallError.CONNECT: "failure",
        CallError.RESET: "failure",
        CallError.TLS: "neutral",
        CallError.DNS: "failure",
        CallError.PROTOCOL: "failure",
        CallError.CANCELLED: "neutral",
        CallError.LOCAL: "neutral",
    }.items(),
)
async def test_the_agent_judges_an_error(beside: Beside, error: CallError, outcome: str) -> None:
    async with beside(policy()) as client:
        await client.report({"permit": (await client.call())["permit"], "error": error})
        await ended_as(client, {outcome: 1})


async def test_an_outcome_is_taken_as_it_is_and_a_slow_success_is_slow(beside: Beside) -> None:
    async with beside(policy()) as client:
        await client.report(
            {"permit": (await client.call())["permit"], "outcome": "failure"},
            {"permit": (await client.call())["permit"], "status": 200, "elapsed_ms": 29_000},
        )
        await ended_as(client, {"failure": 1, "slow": 1})


async def test_reports_travel_with_the_next_call(beside: Beside) -> None:
    async with beside(policy(VENDOR)) as client:
        first = await client.call()
        second = await client.call(reports=[{"permit": first["permit"], "status": 200}])
        await ended_as(client, {"ok": 1})
        refused = await client.call(reports=[{"permit": second["permit"], "status": 500}])
        assert refused["allowed"] is False
        await ended_as(client, {"ok": 1, "failure": 1})


async def test_a_second_report_counts_nothing(beside: Beside) -> None:
    async with beside(policy()) as client:
        report = {"permit": (await client.call())["permit"], "status": 200}
        answer = await client.report(report, report, {"permit": "p-made-up", "status": 500})
        assert (answer["accepted"], answer["unknown"]) == (1, [report["permit"], "p-made-up"])
        await ended_as(client, {"ok": 1})
        assert client.sidecar.reports.unknown == 2


async def test_a_report_that_cannot_be_read_costs_no_other_report(beside: Beside) -> None:
    async with beside(policy()) as client:
        first, second = [(await client.call())["permit"] for _ in range(2)]
        answer = await client.report(
            {"permit": first, "status": 1_000}, {"permit": second, "status": 503}, {"permit": "p", "odd": 1}
        )
        assert (answer["accepted"], answer["unknown"]) == (1, [])
        assert [one["place"] for one in answer["invalid"]] == [0, 2]
        assert "status" in answer["invalid"][0]["detail"]
        await ended_as(client, {"failure": 1})
        # It may be corrected.
        assert (await client.report({"permit": first, "status": 503}))["accepted"] == 1
        assert client.sidecar.reports.invalid == 2


async def test_a_call_is_decided_whatever_is_reported_with_it(beside: Beside) -> None:
    async with beside(policy()) as client:
        permit = (await client.call())["permit"]
        reports = [{"permit": permit, "status": 503}, {"permit": "p", "status": "odd"}, 7]
        assert (await client.call(reports=reports))["allowed"] is True
        await ended_as(client, {"failure": 1})
        assert client.sidecar.reports.invalid == 2
        for wrong in ({"reports": 7}, {"reports": reports, "cost": 0}, {"cost": 0}):
            answer = await client.http.post("/v1/calls", json={"dependency": "payments", **wrong})
            assert answer.status_code == 400


@pytest.mark.parametrize("status", [599, 999])
async def test_what_vendors_send_is_judged_and_not_refused(beside: Beside, status: int) -> None:
    async with beside(policy()) as client:
        report = {"status": status, "retry_after": "x" * 5_000, "code": "y" * 5_000, "elapsed_ms": 1e12}
        answer = await client.report({"permit": (await client.call())["permit"], **report})
        assert (answer["accepted"], answer["invalid"]) == (1, [])
        await ended_as(client, {"failure": 1})


async def test_as_many_reports_as_the_page_says_fit_into_a_body(beside: Beside) -> None:
    async with beside(policy()) as client:
        permits = [(await client.call())["permit"] for _ in range(MAX_REPORTS)]
        reports = [
            {
                "permit": permit,
                "elapsed_ms": 1234.5678901234567,
                "status": 429,
                "retry_after": "30",
                "code": "rate_limit_exceeded",
                "settle": {"tokens": 123_456},
            }
            for permit in permits
        ]
        assert (await client.report(*reports))["accepted"] == MAX_REPORTS


async def test_a_defect_in_one_report_leaves_the_others(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with beside(policy()) as client:
        reports = [{"permit": (await client.call())["permit"], "status": status} for status in (429, 503)]

        def defect(*_: Any) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(client.sidecar.reports, "bounded", defect)
        answer = await client.report(reports[0] | {"settle": {"tokens": 1}}, reports[1])
        assert answer["accepted"] == 2
        await ended_as(client, {"neutral": 1, "failure": 1})


STREAM = {"first_part_ms": 20_000, "between_parts_ms": 7_000}


async def test_a_stream_is_bounded_by_its_parts_and_by_the_deadline_of_its_caller(beside: Beside) -> None:
    async with beside(policy(**STREAM)) as client:
        call = await client.call()
        assert (call["timeout_ms"], call["first_part_ms"], call["between_parts_ms"]) == (None, 20_000, 7_000)
        assert call["expires_ms"] == 600_000
        call = await client.call(deadline_ms=90_000)
        assert 80_000 < call["timeout_ms"] <= 90_000
        assert call["timeout_ms"] < call["expires_ms"] <= 95_000
    async with beside(policy()) as client:
        call = await client.call()
        assert (call["first_part_ms"], call["between_parts_ms"]) == (None, None)


async def test_a_stream_is_slow_if_its_first_part_is(beside: Beside) -> None:
    breaker = msgspec.structs.replace(BREAKER, slow_ms=600_000)
    async with beside(policy(breaker=breaker, timeout_ms=1_000, first_part_ms=20_000)) as client:
        for elapsed_ms in (19_000, 21_000):
            permit = (await client.call())["permit"]
            await client.report({"permit": permit, "status": 200, "elapsed_ms": elapsed_ms})
        await ended_as(client, {"ok": 1, "slow": 1})


async def test_a_permit_without_a_report_ends_as_neutral_and_frees_its_slot(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    protection = CallProtection(tier=CallTier.CRITICAL, bulkhead=FEW, local_rate=LocalRate(limit=1_000))
    async with beside(policy(protection=protection)) as client:
        lost = [await client.call(tier="critical") for _ in range(2)]
        taken = [call for call in lost if call["allowed"]]
        assert lost[-1]["reason"] == "bulkhead_full"
        now = permits.monotonic()
        monkeypatch.setattr(permits, "monotonic", lambda: now + taken[-1]["expires_ms"] / 1000 + 1)
        client.sidecar.sweep()
        assert client.sidecar.permits.expired == len(taken)
        await ended_as(client, {"neutral": len(taken)})
        assert (await client.call(tier="critical"))["allowed"] is True
        answer = await client.report({"permit": taken[0]["permit"], "status": 500})
        assert answer["unknown"] == [taken[0]["permit"]]


#: An application that is killed: it has its permits, and waits for vendors that do not answer.
KILLED = """
import http.client, json, sys
for _ in range(2):
    sidecar = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    sidecar.request("POST", "/v1/calls", '{"dependency": "payments"}', {"content-type": "application/json"})
    print(json.loads(sidecar.getresponse().read())["allowed"], flush=True)
sys.stdin.read()
"""


async def test_the_slots_of_a_killed_application_come_back(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = msgspec.structs.replace(SLOTS, limit=2)
    async with beside(policy(two)) as client:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", KILLED, str(client.running.port)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert [await process.stdout.readline() for _ in range(2)] == [b"True\n", b"True\n"]
            process.kill()
            await process.wait()
        await eventually(lambda: not any(map(len, client.running.connections)))
        # A connection that ends is no report: the vendor may still work on the call.
        assert (await client.call())["reason"] == "concurrency"
        assert len(client.sidecar.permits) == 2
        now = permits.monotonic()
        monkeypatch.setattr(permits, "monotonic", lambda: now + 60)
        await eventually(lambda: client.sidecar.permits.expired, accept=lambda expired: expired == 2)
        await ended_as(client, {"neutral": 2})
        await eventually(client.call, accept=lambda call: call["allowed"])


def test_the_oldest_makes_room_when_too_many_are_kept() -> None:
    ended: list[str] = []
    kept = Kept[str]("p", ended.append, most=2)
    first, second, third = (kept.keep(text, 60) for text in ("a", "b", "c"))
    assert (ended, kept.displaced, kept.take(first)) == (["a"], 1, None)
    assert (kept.take(second), kept.take(third), len(kept)) == ("b", "c", 0)


async def test_a_call_that_was_not_made_is_given_back(beside: Beside) -> None:
    async with beside(policy(VENDOR)) as client:
        for _ in range(5):
            # A refund goes to Redis with the next corrections.
            call = await eventually(client.call, accept=lambda call: call["allowed"])
            answer = await client.post("/v1/give-back", {"permit": call["permit"]})
            assert answer == {"accepted": 1, "unknown": [], "invalid": []}


async def test_a_call_whose_answer_was_not_sent_is_given_back(beside: Beside) -> None:
    async with beside(policy(VENDOR)) as client:
        headers = {"content-type": "application/json"}
        body = b'{"dependency": "payments"}'
        asked = Request(method="POST", path="/v1/calls", headers=headers, body=body)
        for _ in range(2):
            handled = client.sidecar.handle(asked)
            answer = handled if isinstance(handled, Answer) else await handled
            assert answer.unsent is not None
            answer.unsent()
        assert len(client.sidecar.permits) == 0
        await eventually(client.call, accept=lambda call: call["allowed"])


async def test_the_real_cost_corrects_the_estimate(beside: Beside) -> None:
    async with beside(policy(TOKENS)) as client:
        call = await client.call(costs={"tokens": 900})
        assert (await client.call(costs={"tokens": 900}))["allowed"] is False
        await client.report({"permit": call["permit"], "status": 200, "settle": {"tokens": 50}})

        async def again() -> Any:
            return await client.call(costs={"tokens": 900})

        assert (await eventually(again, accept=lambda call: call["allowed"]))["allowed"] is True


async def test_a_report_cannot_charge_more_than_a_call_can_have_cost(beside: Beside) -> None:
    async with beside(policy(TOKENS)) as client:
        call = await client.call(costs={"tokens": 1})
        await client.report({"permit": call["permit"], "status": 200, "settle": {"tokens": 10**12}})
        assert client.sidecar.reports.cut == 1


async def test_the_deadline_of_the_caller_bounds_the_call(beside: Beside) -> None:
    async with beside(policy()) as client:
        call = await client.call(deadline_ms=2_000)
        assert 0 < call["timeout_ms"] <= 2_000
        assert call["expires_ms"] <= 7_000


async def test_a_caller_that_leaves_does_not_wait_on(beside: Beside) -> None:
    async with beside(policy(msgspec.structs.replace(VENDOR, window_ms=20_000))) as client:
        await client.call()
        await client.call()
        waiting = asyncio.create_task(client.call(wait_ms=30_000))
        await eventually(lambda: client.sidecar.waiting == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await eventually(lambda: client.sidecar.waiting == 0)
        assert len(client.sidecar.permits) == 2


async def test_too_many_waiting_calls_get_no_decision(beside: Beside) -> None:
    async with beside(policy()) as client:
        client.sidecar.waiting = 1000
        answer = await client.http.post("/v1/calls", json={"dependency": "payments"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["type"] == "urn:fuseboard:sidecar:busy"
        assert "allowed" not in answer.json()
        client.sidecar.waiting = 0
        assert (await client.call())["allowed"] is True
        assert client.sidecar.busy == 1


class TestRequests:
    async def test_a_request_has_headers_and_the_third_is_refused(self, beside: Beside) -> None:
        async with beside(policy(quotas=(TWO,))) as client:
            first = await client.request()
            assert (first["allowed"], first["hold"]) == (True, None)
            assert first["headers"]["ratelimit-policy"] == '"requests";q=2;w=60'
            await client.request()
            refused = await client.request()
            assert (refused["status"], refused["reason"], refused["rule"]) == (429, "quota", "requests")
            assert refused["problem"]["violated-policies"] == ["requests"]

    async def test_a_check_says_what_would_be_decided_and_charges_nothing(self, beside: Beside) -> None:
        async with beside(policy(quotas=(TWO,))) as client:
            for _ in range(3):
                found = await client.post("/v1/check", {"tenant": "acme"})
                assert (found["would"], found["left"][0]["remaining"], found["revision"]) == ("allowed", 2, 7)
            assert client.agent.counters.requests == 0
            assert (await client.post("/v1/check", {"tenant": "acme", "cost": 3}))["would"] == "refused"
            for _ in range(2):
                assert (await client.request())["allowed"] is True
            found = await client.post("/v1/check", {"tenant": "acme"})
            assert (found["would"], found["reason"], found["rule"]) == ("refused", "quota", "requests")
            assert found["retry_after_ms"] > 0
            assert (await client.post("/v1/check", {"tenant": "late-payer"}))["reason"] == "suspended"
            answer = await client.http.post("/v1/check", json={})
            assert (answer.status_code, "pass a subject" in answer.json()["detail"]) == (400, True)

    async def test_a_suspended_tenant_gets_403(self, beside: Beside) -> None:
        async with beside(policy()) as client:
            refused = await client.request("late-payer")
            assert (refused["allowed"], refused["status"], refused["reason"]) == (False, 403, "suspended")

    async def test_a_request_that_ended_frees_its_slot(self, beside: Beside) -> None:
        async with beside(policy(quotas=(SLOTS,))) as client:
            first = await client.request()
            assert first["hold"]
            assert (await client.request())["reason"] == "concurrency"
            assert (await client.post("/v1/finish", {"hold": first["hold"]}))["accepted"] == 1
            await eventually(client.request, accept=lambda request: request["allowed"])
            assert (await client.post("/v1/finish", {"hold": first["hold"]}))["unknown"] == [first["hold"]]

    async def test_a_request_settles_its_costs_when_it_ends(self, beside: Beside) -> None:
        async with beside(policy(quotas=(TOKENS,))) as client:
            first = await client.request(costs={"tokens": 900})
            await client.post("/v1/finish", {"hold": first["hold"], "settle": {"tokens": 0}})

            async def again() -> Any:
                return await client.request(costs={"tokens": 900})

            await eventually(again, accept=lambda request: request["allowed"])

    async def test_a_caller_without_a_tenant_needs_a_subject(self, beside: Beside) -> None:
        async with beside(policy()) as client:
            assert (await client.request(None, subject={"ip": "203.0.113.7"}))["allowed"] is True
            answer = await client.http.post("/v1/requests", json={})
            assert (answer.status_code, answer.json()["type"]) == (400, "urn:fuseboard:sidecar:invalid")


async def test_a_refusal_names_the_trace_of_its_own_request(beside: Beside) -> None:
    async with beside(policy(msgspec.structs.replace(VENDOR, limit=1))) as client:
        await client.call()
        traces = [f"{number:032x}" for number in range(1, 9)]

        async def refused_in(trace: str) -> Any:
            headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"} if trace else {}
            return await client.post("/v1/calls", {"dependency": "payments"}, headers=headers)

        answers = await asyncio.gather(*(refused_in(trace) for trace in (*traces, "")))
        assert [answer["problem"].get("trace_id", "") for answer in answers] == [*traces, ""]
        # Nor has the next request on one of these connections.
        assert "trace_id" not in (await client.call())["problem"]


async def test_a_sidecar_and_a_pod_in_python_share_a_limit(
    beside: Beside, redis_url: str, tmp_path: Path
) -> None:
    async with beside(policy(msgspec.structs.replace(VENDOR, limit=10))) as client:
        settings = AgentSettings(redis_url=redis_url, server="shop-2", state_dir=tmp_path / "second")
        async with Agent(settings=settings) as pod:
            await eventually(decides_by(pod, 7))

            async def in_python() -> bool:
                try:
                    await pod.admit_call("payments")
                except Refused:
                    return False
                return True

            async def over_http() -> bool:
                allowed: bool = (await client.call())["allowed"]
                return allowed

            in_turn = [await ask() for ask in [in_python, over_http] * 4]
            at_once = await asyncio.gather(*(ask() for ask in [in_python, over_http] * 4))
        assert (all(in_turn), sum(at_once)) == (True, 2)


async def test_without_redis_the_sidecar_decides_with_the_share_of_its_pod(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, policy(VENDOR, quotas=(TWO,)))
    async with running(settings, Options(listen=("127.0.0.1", 0))) as started:
        base = f"http://127.0.0.1:{started.port}"
        async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S, trust_env=False) as http:
            client = Client(started, http)
            calls = [await client.call() for _ in range(3)]
            # There is nothing to free: it takes no room.
            requests = [await client.request() for _ in range(3)]
            assert [request["allowed"] for request in requests] == [True, True, False]
            assert len(client.sidecar.holds) == 0
    assert [call["allowed"] for call in calls] == [True, True, False]
    assert {call["mode"] for call in calls} == {"local"}


async def test_nothing_is_left_when_the_sidecar_stops(beside: Beside) -> None:
    async with beside(policy()) as client:
        await client.call()
        agent = client.agent
    assert agent.counters.outcomes()["payments", Outcome.NEUTRAL] == 1
