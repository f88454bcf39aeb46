import os
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections

from controlplane.audit.actor import Actor
from controlplane.gateway.postgres.connections import conninfo
from controlplane.gateway.process import Gateway
from controlplane.gateway.settings import GatewaySettings
from tests import database as filled
from tests.contract.compat.processes import serving
from tests.contract.compat.release import ROOT
from tests.contract.compat.served import ControlPlane
from tests.controlplane.calling import agent_token, send, token_of
from tests.controlplane.gateway.manual_gateway import TOKEN
from tests.controlplane.web_process import database_url
from tests.people import ADA, SEED
from tests.waiting import eventually


@pytest.fixture
def ada() -> Actor:
    return ADA


@pytest.fixture
def hour() -> datetime:
    """An hour from now."""
    return datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def production(transactional_db: Any, limits: redis.Redis) -> str:
    """An environment with the default tiers, a tenant and a dependency, published."""
    filled.fill("control_plane", _production, limits)
    return "production"


def _production() -> None:
    from controlplane.editing import edits
    from controlplane.policies.protection_presets import preset_of_kind

    common: dict[str, Any] = {"environment": "production", "reason": "for a test", "actor": SEED}
    edits.create_environment(**common)
    edits.create_tenant(tenant="acme", tier="pro", **common)
    protection = preset_of_kind("llm", timeout_ms=30_000)
    edits.create_dependency(dependency="openai", kind="llm", protection=protection, **common)


@pytest.fixture
def text_limits(redis_url: str, limits: redis.Redis) -> Iterator[Any]:
    """The same server as ``limits``, with text responses."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def call(production: str) -> Any:
    """Calls the API with the token of a role: ``call("admin", "GET", path, body)``."""
    tokens: dict[str, str] = {}

    def call(role: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
        if role not in tokens:
            tokens[role] = token_of(role)
        return send(tokens[role], method, path, body, **headers)

    return call


@pytest.fixture
def plane(transactional_db: Any, limits: redis.Redis, tmp_path: Path) -> Iterator[ControlPlane]:
    """Web and gateway as processes, over an environment with the usual tiers."""
    from django.core.management import call_command

    call_command("create_environment", "production")
    tokens = token_of("admin"), agent_token()
    environment = os.environ | {"DATABASE_URL": database_url(), "FUSEBOARD_DATA_DIR": str(tmp_path)}
    with (
        serving(ROOT, environment, tmp_path / "logs") as (web, gateway),
        ControlPlane(web, gateway, *tokens, settings.SECRET_KEY, database_url()) as plane,
    ):
        yield plane


@pytest.fixture
def token(production: str) -> Any:
    """The token that ``tests.controlplane.gateway.manual_gateway`` sends, for this environment."""
    from controlplane.accounts.models import AgentToken

    return AgentToken.objects.create(
        name="pods",
        selector="sel1",
        digest=sha256(TOKEN.split("_", 2)[2].encode()).hexdigest(),
        environment=production,
        expires_at=datetime.now(UTC) + timedelta(days=1),
    )


@pytest.fixture
async def gateway(token: Any, thread_connections: None) -> AsyncIterator[Gateway]:
    """A gateway as ``manage.py gateway`` runs it, on this test's event loop."""
    # A pause of the machine is no outage of Postgres.
    started = Gateway(GatewaySettings(gateway="test", flush_timeout_s=30.0))
    started.start()
    await eventually(lambda: started.ready)
    yield started
    await started.stop()


@pytest.fixture
async def thread_connections() -> AsyncIterator[None]:
    """Closes the connections of the thread in which ``sync_to_async`` runs Django.

    All tests of a process share that thread. A connection that stays open makes a later test fail
    that has no database: Django looks whether it is still usable.
    """
    yield
    await sync_to_async(connections.close_all)()


@pytest.fixture
async def database(token: Any) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(conninfo("test"), autocommit=True) as connection:
        yield connection
