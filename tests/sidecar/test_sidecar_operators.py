"""What people ask a sidecar: the state of its dependencies, and why a call would be refused."""

import asyncio
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import httpx
import msgspec
import pytest
import redis

from fuseboard import AgentSettings
from fuseboard.contract import keys
from fuseboard.contract.policy import Override
from fuseboard.contract.words import BreakerState, OverrideMode
from fuseboard.reporting.token import TokenSource
from fuseboard.sidecar import operators
from fuseboard.sidecar.app import Options, running
from tests.agents.servers import BREAKER, POLICY
from tests.sidecar.conftest import Beside, Client
from tests.waiting import PATIENCE_S, eventually

YEAR_3000_US = 32_503_680_000_000_000
TOKEN = Options(listen=("127.0.0.1", 0), token=TokenSource("secret", None))


async def dependencies(client: Client) -> dict[str, Any]:
    answer = await client.http.get("/v1/dependencies")
    assert answer.status_code == 200
    return {found["name"]: found for found in answer.json()}


async def explained(client: Client, **asked: Any) -> httpx.Response:
    return await client.http.post("/v1/explain", json=asked, headers={"authorization": "Bearer secret"})


async def test_dependencies_are_listed_whether_they_were_called_or_not(beside: Beside) -> None:
    async with beside(POLICY) as client:
        closed = {"name": "payments", "state": "closed", "generation": 0, "override": None}
        assert await dependencies(client) == {"payments": closed | {"retry_after_ms": 0}}
        await client.call("search")
        assert (await dependencies(client)).keys() == {"payments", "search"}
        posted = await client.http.post("/v1/dependencies", json={})
        assert (posted.status_code, posted.json()["detail"]) == (405, "use GET")
        assert posted.headers["allow"] == "GET"
        assert (await client.http.get("/v1/calls")).headers["allow"] == "POST"


async def test_an_open_breaker_says_when_it_may_probe(beside: Beside) -> None:
    async with beside(POLICY) as client:
        for _ in range(BREAKER.consecutive_failures):
            await client.report({"permit": (await client.call())["permit"], "status": 500})

        # Until the fleet's breaker is open, that of this sidecar refuses, for another time.
        await eventually(
            lambda: [view for view in client.agent.views() if view.dependency == "payments"],
            accept=lambda views: (views[0].state, views[0].local) == (BreakerState.OPEN, False),
        )
        found = (await dependencies(client))["payments"]
        assert (found["state"], found["generation"] > 0) == ("open", True)
        refused = await client.call()
        assert 0 < refused["retry_after_ms"] <= found["retry_after_ms"]


async def test_the_vendors_own_word_counts_while_the_breaker_is_closed(beside: Beside) -> None:
    async with beside(POLICY) as client:
        permit = (await client.call())["permit"]
        await client.report({"permit": permit, "status": 429, "retry_after": "30"})
        found = (await dependencies(client))["payments"]
        assert found["state"] == "closed"
        assert 0 < found["retry_after_ms"] <= 30_000


@pytest.mark.parametrize("mode", [OverrideMode.FORCED_OPEN, OverrideMode.FORCED_CLOSED])
async def test_an_override_is_named_and_refuses_if_it_is_forced_open(
    beside: Beside, mode: OverrideMode
) -> None:
    override = Override(mode=mode, revision=7, expires_at_us=YEAR_3000_US, reason="drill", actor="ada")
    payments = msgspec.structs.replace(POLICY.dependencies[0], override=override)
    async with beside(msgspec.structs.replace(POLICY, dependencies=(payments,))) as client:
        found = (await dependencies(client))["payments"]
        assert found["override"] == mode
        assert (found["retry_after_ms"] > 0) is (mode is OverrideMode.FORCED_OPEN)
        assert (await client.http.post("/v1/calls", json={"dependency": "payments"})).json()["allowed"] is (
            mode is not OverrideMode.FORCED_OPEN
        )


async def test_a_call_and_a_request_are_explained_and_nothing_is_charged(
    beside: Beside, limits: redis.Redis
) -> None:
    async with beside(POLICY, TOKEN) as client:
        call = (await explained(client, dependency="payments", tenant="acme")).json()
        assert call["text"].startswith("a call to 'payments'\n")
        assert "next decision" in call["text"]
        assert call["explanation"]["allowed"] is True
        request = (await explained(client, tenant="acme", subject={"endpoint": "GET /v1/orders"})).json()
        assert request["explanation"]["about"] == "a request of tenant 'acme'"
        assert [limit["remaining"] for limit in request["explanation"]["limits"]] == [20]
        assert limits.exists(keys.tenant_quota("production", "acme", "requests")) == 0


async def test_an_explanation_needs_a_token_whatever_else_does(beside: Beside) -> None:
    async with beside(POLICY) as client:
        refused = await explained(client, dependency="payments")
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:fuseboard:sidecar:explain")
        assert (await client.http.get("/v1/dependencies")).status_code == 200
    async with beside(POLICY, TOKEN) as client:
        assert (await client.http.post("/v1/explain", json={})).status_code == 401
        assert (await client.http.get("/v1/dependencies")).status_code == 401


async def test_an_explanation_of_what_cannot_be_is_refused(beside: Beside) -> None:
    async with beside(POLICY, TOKEN) as client:
        assert (await explained(client, dependency="not a name")).status_code == 400
        answer = await explained(client, tenant="acme", costs={"calls": 2})
        assert (answer.status_code, "use cost=" in answer.json()["detail"]) == (400, True)


async def test_five_explanations_are_given_in_a_second_and_at_once(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, go = 1000.0, Event()
    explain, threads = operators.explain, set[int]()

    async def slow(*arguments: Any, **options: Any) -> Any:
        threads.add(get_ident())
        await eventually(go.is_set)
        return await explain(*arguments, **options)

    monkeypatch.setattr(operators, "monotonic", lambda: now)
    monkeypatch.setattr(operators, "explain", slow)
    async with beside(POLICY, TOKEN) as client:
        under_way = [asyncio.create_task(explained(client, tenant="acme")) for _ in range(5)]
        await eventually(lambda: client.sidecar.operators.under_way == 5)
        now += 10
        busy = await explained(client, tenant="acme")
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
        go.set()
        assert [answer.status_code for answer in await asyncio.gather(*under_way)] == [200] * 5
        # Decisions do not wait for explanations.
        assert threads & {get_ident()} == set()
        assert [(await explained(client, tenant="acme")).status_code for _ in range(6)] == [200] * 5 + [503]
        now += 1
        assert (await explained(client, tenant="acme")).status_code == 200


async def test_a_person_who_leaves_makes_room(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(*arguments: Any, **options: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(operators, "explain", endless)
    async with beside(POLICY, TOKEN) as client:
        asked = asyncio.create_task(explained(client, tenant="acme"))
        await eventually(lambda: client.sidecar.operators.under_way == 1)
        asked.cancel()
        await eventually(lambda: client.sidecar.operators.under_way == 0)


async def test_without_any_configuration_nothing_is_explained(tmp_path: Path) -> None:
    settings = AgentSettings(redis_url="redis://127.0.0.1:1", server="shop-1", state_dir=tmp_path)
    async with running(settings, TOKEN) as started:
        base = f"http://127.0.0.1:{started.port}"
        async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S, trust_env=False) as http:
            headers = {"authorization": "Bearer secret"}
            answer = await http.post("/v1/explain", json={"tenant": "acme"}, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:fuseboard:sidecar:no-configuration")
