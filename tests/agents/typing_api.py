"""What a type checker makes of the agent's surface. Checked by mypy, never run.

``reveal`` names the type it must see; a line that must be an error carries the error it is, and
mypy's ``warn_unused_ignores`` says when it no longer is one.
"""

from collections.abc import Mapping
from typing import assert_type

import httpx
import openai

import fuseboard
from fuseboard import Agent, Decision, Outcome, Permit, Subject, blocking
from fuseboard.decision import LimitStatus
from fuseboard.integrations.asgi import App, FuseboardMiddleware, Scope, subject_of
from fuseboard.integrations.httpx import BlockingGuardedTransport, GuardedTransport
from fuseboard.llm import Usage
from fuseboard.llm.httpx import BlockingLlmTransport, LlmTransport


async def asynchronous(agent: Agent, app: App) -> None:
    decision = await agent.admit_request(
        "acme", 2, costs={"tokens": 500}, subject=Subject(user="ada"), wait_s=0.5
    )
    assert_type(decision, Decision)
    assert_type(decision.limits, tuple[LimitStatus, ...])
    async with agent.request("acme") as allowed:
        assert_type(allowed, Decision)
    async with agent.call("llm", tenant="acme", costs={"tokens": 900}, spend_quota=True) as permit:
        assert_type(permit, Permit)
        permit.settle("tokens", 120)
    agent.report(permit, Outcome.OK, 0.1, cooldown_ms=1000)
    agent.settle(decision, "tokens", 3)
    agent.give_back(decision)
    agent.give_back(permit)
    agent.finish(decision)

    @agent.guard("payments-api")
    async def charge(amount: int, *, currency: str) -> bool:
        return amount > 0 and currency != ""

    @agent.limit(lambda order: str(order["tenant"]), cost=lambda order: int(order["items"]))
    async def place(order: Mapping[str, str | int]) -> str:
        return str(order)

    # Decorated functions keep their arguments and what they return.
    assert_type(await charge(5, currency="EUR"), bool)
    assert_type(await place({"tenant": "acme", "items": 2}), str)
    await charge("5", currency="EUR")  # type: ignore[arg-type]
    await charge(5)  # type: ignore[call-arg]

    await agent.admit_request(7)  # type: ignore[arg-type]
    await agent.admit_request("acme", 1.5)  # type: ignore[arg-type]
    await agent.admit_request("acme", subject="ada")  # type: ignore[arg-type]

    def tenant_of(scope: Scope) -> str | None:
        return str(scope["path"])

    FuseboardMiddleware(app, agent, tenant_of, subject=subject_of, legacy_headers=True)
    httpx.AsyncClient(transport=GuardedTransport(agent, dependency="payments-api", tenant="acme"))
    httpx.Client(transport=GuardedTransport(agent, dependency="payments-api"))  # type: ignore[arg-type]


def in_threads() -> None:
    agent = fuseboard.blocking.from_env()
    assert_type(agent, blocking.Agent)
    assert_type(agent.admit_request("acme", 2, costs={"tokens": 500}, wait_s=1), Decision)
    with agent.request("acme") as allowed:
        assert_type(allowed, Decision)
    with agent.call("payments-api", wait_s=1) as permit:
        assert_type(permit, Permit)

    @agent.guard("payments-api", neutral=(LookupError,))
    def charge(amount: int) -> bool:
        return amount > 0

    assert_type(charge(5), bool)
    charge("5")  # type: ignore[arg-type]
    httpx.Client(transport=BlockingGuardedTransport(agent, dependency="payments-api"))
    BlockingGuardedTransport(fuseboard.from_env(), dependency="x")  # type: ignore[arg-type]


async def models(agent: Agent) -> None:
    client = fuseboard.guard(openai.AsyncOpenAI(), agent, add_usage=False, tier="optional")
    assert_type(client, openai.AsyncOpenAI)
    with fuseboard.tenant("acme"):
        await client.models.list()
    httpx.AsyncClient(transport=LlmTransport(agent, wait_s=1.0))
    httpx.Client(transport=BlockingLlmTransport(blocking.from_env(), dependency="llm"))
    fuseboard.guard(openai.AsyncOpenAI(), agent, tenant=lambda: None)
    fuseboard.guard(openai.AsyncOpenAI(), agent, tenant=7)  # type: ignore[arg-type]
    async with agent.call("llm", tenant="acme", costs={"tokens": 9}, spend_costs=True) as permit:
        permit.settle_all(Usage(fresh=3))
        permit.settle_all({"tokens": 3})
    agent.charge("llm", Usage(fresh=3, output=4), tenant="acme", batch=True)
    blocking.from_env().charge("llm", {"tokens": "3"})  # type: ignore[dict-item]
