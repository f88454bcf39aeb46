"""A pod of another service has the same user of Redis, and can neither read an answer nor make one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import redis
from asgiref.sync import sync_to_async

from controlplane.repair import tasks
from fuseboard import Agent, AgentSettings
from fuseboard.contract import keys
from fuseboard.contract.sync import decode_response
from fuseboard.integrations.idempotency import Kept, request_of
from fuseboard.primitives.idempotency import Found
from tests.agents.gateways import gateway_running
from tests.agents.shop import Shop, client_of, order
from tests.controlplane.gateway.manual_gateway import beat, known_tokens, post, ready_gateway
from tests.controlplane.redis.test_redis_acl import agent_url, control_url, guarded, profile, server  # noqa: F401 - fixtures

SECRET = b"the card ends with 4242"
EVIL = msgspec.msgpack.encode(Kept(201, [("location", "https://evil.example")], b"evil"))


@asynccontextmanager
async def pod(redis_url: str, service: str) -> AsyncIterator[Agent]:
    """A pod with the keys that a gateway gives to a token that is bound to its service."""
    real = ready_gateway()
    real.tokens.replace({name: replace(token, service=service) for name, token in known_tokens().items()})
    with gateway_running() as gateway:
        gateway.seal_keys = decode_response((await post(real, beat(service=service))).content).seal_keys
        settings = AgentSettings(
            redis_url=redis_url, url=gateway.url, token="fb_test", service=service, server=f"{service}-1"
        )
        async with Agent(settings=settings) as agent:
            yield agent


async def begin(agent: Agent, key: str) -> Found:
    """What the service finds that knows the whole request of another one."""
    request = request_of(
        caller="acme",
        method="POST",
        path="/orders",
        key=key,
        query=b"",
        content_type="text/plain",
        body=b"one book",
    )
    return await asyncio.wrap_future(agent.idempotency.submit(request, 60.0, 3_600.0))


async def paid(_: Any) -> tuple[int, bytes]:
    return 201, SECRET


async def test_another_service_can_neither_read_an_answer_nor_plant_one(
    transactional_db: Any,
    agent_url: str,  # noqa: F811
    control_url: str,  # noqa: F811
    thread_connections: None,
) -> None:
    await sync_to_async(tasks.keep_redis_ready)()
    shop = Shop()
    shop.handler = paid
    async with (
        pod(agent_url, "payments") as payments,
        pod(agent_url, "newsletter") as newsletter,
        client_of(shop, payments) as client,
    ):
        assert (await order(client)).content == SECRET
        found = await begin(newsletter, "order-1")
        assert (found.word, found.answer) == ("done", b"")
        with redis.Redis.from_url(agent_url) as attacker:
            record = attacker.hgetall(keys.idempotency("production", "acme", "POST", "/orders", "order-1"))
        assert record[b"sealed"][:1] == b"e", "encrypted"
        assert not any(b"4242" in value for value in record.values())
        assert (await order(client)).content == SECRET, "and it is still repeated"
        # It answers before the request comes.
        planted = await begin(newsletter, "order-2")
        assert planted.run is not None
        assert await asyncio.wrap_future(newsletter.idempotency.thread.submit(planted.run.done(EVIL)))
        answer = await order(client, **{"idempotency-key": "order-2"})
        assert (answer.status_code, b"evil" in answer.content, shop.runs) == (409, False, 1)
