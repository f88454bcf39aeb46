"""Rules for Envoy that name a dependency: its limits and its breaker decide, and a permit goes out."""

import json
from typing import Any

import msgspec
import pytest

from fuseboard.contract.limits import Limit
from fuseboard.contract.models import Model
from fuseboard.contract.policy import MAX_WAIT_MS, Policy
from fuseboard.contract.words import Outcome
from fuseboard.envoy import rls_pb2 as pb
from tests.agents.limit_kinds import window
from tests.agents.servers import BREAKER, POLICY
from tests.envoy.conftest import Answering, policy_of
from tests.envoy.messages import OK, OVER, codes, descriptor, headers, request
from tests.envoy.test_rate_limit_service import FILE, RULES
from tests.waiting import eventually


def called(*vendor_limits: Limit, **changes: Any) -> Policy:
    """The rules, with these limits of the dependency."""
    payments = msgspec.structs.replace(POLICY.dependencies[0], vendor_limits=vendor_limits, **changes)
    return msgspec.structs.replace(RULES, dependencies=(payments,))


async def test_a_call_gets_a_permit_and_its_breaker_refuses(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        call = request(descriptor(("to", "x")))
        answer = await envoy.ask(call)
        assert codes(answer) == (OK, [OK])
        permit = envoy.sidecar.permits.take(answer.dynamic_metadata["permit"])
        assert permit is not None
        envoy.agent.report(permit, Outcome.FAILURE)
        for _ in range(BREAKER.consecutive_failures - 1):
            envoy.agent.report(await envoy.agent.admit_call("payments"), Outcome.FAILURE)

        async def ask() -> pb.RateLimitResponse:
            return await envoy.ask(call)

        refused = await eventually(ask, accept=lambda one: one.overall_code == OVER)
        assert json.loads(refused.raw_body)["status"] == 503
        assert not refused.statuses[0].HasField("current_limit")
        assert refused.statuses[0].duration_until_reset.seconds > 0
        assert set(headers(refused)) == {"retry-after", "content-type"}, "no limit of the vendor"
        assert "permit" not in refused.dynamic_metadata


async def test_the_permit_of_a_call_is_given_back_if_a_limit_refuses(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        await envoy.ask(request(descriptor(("path", "/a")), hits=3))
        both = request(descriptor(("path", "/a")), descriptor(("to", "x")))
        refused = await envoy.ask(both)
        assert codes(refused) == (OVER, [OVER, OK])
        assert len(envoy.sidecar.permits) == 0
        two = await envoy.ask(request(descriptor(("to", "x")), descriptor(("tenant", "acme"), ("to", "x"))))
        names = two.dynamic_metadata["permit"].split(",")
        assert [envoy.sidecar.permits.take(name) is not None for name in names] == [True, True]


async def test_hits_of_a_call_are_calls_or_costs(answering: Answering) -> None:
    tokens = window(100, 3_600, "tokens", measure="tokens")
    policy = called(window(10, 3_600, "calls"), tokens)
    # The rule names the dependency, whatever a model of the same name belongs to.
    policy = msgspec.structs.replace(policy, models=(Model(name="payments", pool="other"),))
    async with answering(policy) as envoy:

        async def left() -> list[int | None]:
            permit = await envoy.agent.admit_call("payments", costs={"tokens": 1})
            envoy.agent.give_back(permit)
            return [limit.remaining for limit in permit.decision.limits]

        await envoy.ask(request(descriptor(("to", "x"), hits=3)))
        await envoy.ask(request(descriptor(("tokens_before", "x"), hits=40)))
        refused = await envoy.ask(request(descriptor(("tokens_before", "x"), hits=61)))
        assert codes(refused) == (OVER, [OVER])
        assert not refused.statuses[0].HasField("current_limit"), "that of a vendor is not shown"
        await eventually(left, accept=lambda found: found == [10 - 3 - 1 - 1, 100 - 40 - 1])
        # A charge after the work is no call.
        await envoy.ask(request(descriptor(("tokens_to", "x"), hits=50)))
        await eventually(left, accept=lambda found: found == [10 - 3 - 1 - 1, 100 - 40 - 50 - 1])


@pytest.mark.parametrize("charge", ["before", "after"])
async def test_tokens_of_a_call_are_those_of_its_tenant(answering: Answering, charge: str) -> None:
    file = FILE.replace(
        "        measure: tokens\n        charge: after\n",
        f"        measure: tokens\n        charge: {charge}\n",
    )
    async with answering(policy_of(file, policy=RULES)) as envoy:
        call = request(descriptor(("tenant", "acme"), ("tokens_to", "x"), hits=10))
        assert codes(await envoy.ask(call)) == (OK, [OK])
        check = request(descriptor(("tokens_of", "acme"), hits=0))

        async def checked() -> pb.RateLimitResponse:
            return await envoy.ask(check)

        await eventually(checked, accept=lambda one: one.overall_code == OVER)
        assert codes(await envoy.ask(call))[0] == (OVER if charge == "before" else OK)


async def test_envoy_waits_for_no_call(answering: Answering) -> None:
    policy = called(window(1, 20), wait_ms=MAX_WAIT_MS)
    async with answering(policy) as envoy:
        answers = [await envoy.ask(request(descriptor(("to", "x")))) for _ in range(2)]
        assert [answer.overall_code for answer in answers] == [OK, OVER]


async def test_a_call_that_a_limit_refuses_leaves_the_limits_of_its_vendor_as_they_were(
    answering: Answering,
) -> None:
    async with answering(called(window(10, 3_600, "calls"))) as envoy:
        await envoy.ask(request(descriptor(("path", "/a")), hits=3))
        assert codes(await envoy.ask(request(descriptor(("path", "/a")), descriptor(("to", "x")))))[0] == OVER

        async def left() -> int | None:
            permit = await envoy.agent.admit_call("payments")
            envoy.agent.give_back(permit)
            return permit.decision.limits[0].remaining

        await eventually(left, accept=lambda found: found == 9)
