"""A gateway for tests: the clock is set by hand, and a heartbeat takes one line."""

import itertools
from hashlib import sha256
from typing import Any

import httpx
import msgspec

from controlplane.gateway.answers.configuration import Configuration, Loaded
from controlplane.gateway.app import GatewayApp
from controlplane.gateway.clock import Clock
from controlplane.gateway.process import Gateway
from controlplane.gateway.settings import GatewaySettings
from controlplane.gateway.wire.tokens import Token
from fuseboard.contract.policy import (
    ConfigHead,
    Dependency,
    Policy,
    TenantRecord,
    Tier,
    encode_policy,
    encode_tenant,
    hash_of,
)
from fuseboard.contract.sync import SYNC_PATH, Counters, SyncRequest

TOKEN = "fb_sel1_s3cret_with_underscores"
NOON = 1_800_000_000.0

_sequences = itertools.count(1)


class TurnedClock(Clock):
    """Stands still until ``turn``."""

    def __init__(self) -> None:
        self.now = 1_000.0
        super().__init__(monotonic=lambda: self.now, wall=lambda: NOON + self.now)

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def turn(self, seconds: float) -> None:
        self.now += seconds


def beat(server: str = "pod-1", **fields: Any) -> SyncRequest:
    """A heartbeat with the next sequence number."""
    usual = {
        "environment": "production",
        "service": "checkout",
        "boot": "boot-0001",
        "sequence": next(_sequences),
        "agent_version": "0.1.0",
        "up_ms": 3_600_000,
        "counters": Counters(requests=1),
    }
    return SyncRequest(server=server, **{**usual, **fields})


def policy(**fields: Any) -> bytes:
    usual = {
        "environment": "production",
        "default_tier": "free",
        "tiers": (Tier(name="free"), Tier(name="pro")),
        "dependencies": (Dependency(name="llm"),),
    }
    return encode_policy(Policy(**{**usual, **fields}))


def loaded(
    revision: int = 42,
    *,
    epoch: int = 1,
    tenants: dict[str, str | None] | None = None,
    whole: bool = True,
    document: bytes | None = None,
) -> Loaded:
    """A state of Postgres; ``tenants`` maps names to tiers."""
    document = policy() if document is None else document
    named = {"acme": "pro", "umbrella": "free"} if tenants is None else tenants
    records = {name: encode_tenant(TenantRecord(tier=tier)) if tier else None for name, tier in named.items()}
    head = ConfigHead(epoch=epoch, revision=revision, hash=hash_of(document))
    return Loaded(head=head, policy=document, tenants=records, whole=whole)


def configuration(**fields: Any) -> Configuration:
    held = Configuration("production")
    held.take(loaded(**fields))
    return held


def known_tokens() -> dict[str, Token]:
    digest = sha256(TOKEN.split("_", 2)[2].encode()).digest()
    return {"sel1": Token("sel1", digest, "production", NOON + 100_000)}


def ready_gateway(clock: Clock | None = None, **settings: Any) -> Gateway:
    """A gateway that has its configuration, and never uses Postgres."""
    gateway = Gateway(GatewaySettings(**settings), clock or TurnedClock())
    gateway.configurations["production"] = configuration()
    gateway.tokens.replace(known_tokens())
    gateway.ready = True
    gateway.start = lambda: None  # type: ignore[method-assign]
    return gateway


def client(gateway: Gateway) -> httpx.AsyncClient:
    """Sends requests to the gateway in this process, with a valid token."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=GatewayApp(gateway)),  # type: ignore[arg-type]
        base_url="http://gateway",
        headers={"authorization": f"Bearer {TOKEN}", "content-type": "application/json"},
    )


async def post(
    gateway: Gateway, body: SyncRequest | bytes | dict[str, Any], **options: Any
) -> httpx.Response:
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    async with client(gateway) as http:
        return await http.post(SYNC_PATH, content=content, **options)
