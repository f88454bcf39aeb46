"""Overrides while Postgres and Redis are both down: sent to gateways, served to pods, and stored later."""

import asyncio
import json
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.breakers import override_in_gateways
from controlplane.breakers.models import Override
from controlplane.breakers.override_in_gateways import PATH, HandedOverride, hand_over, signature
from controlplane.breakers.override_in_redis import adopt_handed
from controlplane.breakers.overrides import end_override, override_breaker, reset_breaker
from controlplane.errors import InvalidEdit
from controlplane.gateway.clock import Clock
from controlplane.gateway.postgres.loading import Reading
from fuseboard.configuration.checked_config import check_config
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.policy import decode_policy, encode_policy, hash_of
from fuseboard.contract.sync import NO_POLICY, Applied, decode_response
from fuseboard.contract.words import ConfigSource, OverrideMode
from tests.controlplane.gateway.manual_gateway import (
    NOON,
    TurnedClock,
    beat,
    client,
    known_tokens,
    loaded,
    policy,
    post,
    ready_gateway,
)
from tests.controlplane.gateway.test_heartbeat_texts import BAD

REASON = "vendor is down, and so is everything"


def hold(now: float, *, seconds: float = 600, **fields: Any) -> HandedOverride:
    usual = {
        "id": f"{int(now * 1000):013d}-0123456789abcdef",
        "environment": "production",
        "dependency": "llm",
        "reason": REASON,
        "expires_at_us": int((now + seconds) * 1_000_000),
        "actor": "olga",
        "role": "operator",
        "origin": "form",
    }
    return HandedOverride(**{**usual, **fields})


async def send(gateway: Any, body: bytes, *, authorization: str | None = None) -> Any:
    async with client(gateway) as http:
        said = signature(body) if authorization is None else authorization
        return await http.post(PATH, content=body, headers={"authorization": said})


async def synced(gateway: Any, applied: Applied | None = None) -> Any:
    return decode_response((await post(gateway, beat(applied=applied or Applied()))).content)


@pytest.mark.parametrize("field", ["reason", "actor", "role", "address"])
async def test_texts_of_an_override_are_cleaned_as_those_of_a_heartbeat(field: str) -> None:
    """Signed by a web process, but not always of this release."""
    clock = TurnedClock()
    body = msgspec.json.encode(hold(clock.wall(), address="10.0.0.1")).decode()
    for number, (name, bad) in enumerate(BAD.items()):
        gateway = ready_gateway(clock)
        document = json.loads(body) | {field: "<the text>", "id": f"{int(NOON * 1000):013d}-{number:016x}"}
        answer = await send(gateway, json.dumps(document).replace("<the text>", bad).encode())
        if name in ("half of a pair", "10,000 characters"):
            assert answer.status_code in (400, 413, 422), name
            assert not gateway.handed_overrides.waiting
            continue
        assert answer.status_code == 200, (name, answer.text)
        [kept] = gateway.handed_overrides.waiting
        lines = (field, name) == ("reason", "line break")
        assert getattr(kept, field) == ("a\nb" if lines else "a b"), name


@pytest.mark.parametrize("field", ["environment", "dependency", "id"])
async def test_names_of_an_override_are_refused_with_an_odd_character(field: str) -> None:
    clock = TurnedClock()
    body = json.loads(msgspec.json.encode(hold(clock.wall()))) | {field: "<the text>"}
    for name, bad in BAD.items():
        gateway = ready_gateway(clock)
        answer = await send(gateway, json.dumps(body).replace("<the text>", bad).encode())
        assert answer.status_code in (400, 413, 422), name


async def test_an_override_is_served_beside_the_document_until_it_expires() -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    before = await synced(gateway)
    assert before.held == {}
    known = Applied(epoch=before.head.epoch, revision=before.head.revision, hash=before.head.hash)

    answer = await send(gateway, msgspec.json.encode(hold(clock.wall())))
    assert answer.status_code == 200, answer.text

    held = await synced(gateway, known)
    assert (held.head, held.policy) == (before.head, NO_POLICY)
    override = held.held["llm"]
    assert (override.mode, override.actor, override.reason) == (OverrideMode.FORCED_OPEN, "olga", REASON)
    assert override.expires_at_us == int((clock.wall() + 600) * 1_000_000)

    clock.turn(601)
    gateway.handed_overrides.serve(gateway.configurations.values())
    assert (await synced(gateway, known)).held == {}


async def beats(gateway: Any, pod: Configuration) -> None:
    answer = await synced(gateway, pod.applied)
    document, source = bytes(answer.policy), ConfigSource.HTTP
    pod.apply(
        check_config(environment="production", head=answer.head, document=document, tenants={}, source=source)
    )
    pod.apply_overrides(answer.held)


async def test_a_pod_applies_it_and_drops_it() -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    pod = Configuration(environment="production")
    seen = []
    pod.listen(lambda snapshot: seen.append(snapshot.dependency("llm").override is not None))

    await beats(gateway, pod)
    await send(gateway, msgspec.json.encode(hold(clock.wall())))
    await beats(gateway, pod)
    assert pod.snapshot.dependency("llm").override.mode is OverrideMode.FORCED_OPEN
    assert pod.document == policy()
    await beats(gateway, pod)
    clock.turn(601)
    gateway.handed_overrides.serve(gateway.configurations.values())
    await beats(gateway, pod)
    assert pod.snapshot.dependency("llm").override is None
    assert seen == [False, True, False]


async def test_a_pod_with_a_newer_revision_than_its_gateway_applies_it_too() -> None:
    """Redis sent it a revision that the gateway could not read any more."""
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    pod = Configuration(environment="production")
    await beats(gateway, pod)
    timeout_ms = 1_234
    (dependency,) = decode_policy(policy()).dependencies
    document = encode_policy(
        msgspec.structs.replace(
            decode_policy(policy()),
            dependencies=(msgspec.structs.replace(dependency, timeout_ms=timeout_ms),),
        )
    )
    head = msgspec.structs.replace(
        pod.snapshot.head, revision=pod.snapshot.head.revision + 1, hash=hash_of(document)
    )
    newer = check_config(
        environment="production", head=head, document=document, tenants={}, source=ConfigSource.REDIS
    )
    assert pod.apply(newer)

    await send(gateway, msgspec.json.encode(hold(clock.wall())))
    await beats(gateway, pod)
    found = pod.snapshot.dependency("llm")
    assert (found.override.actor, found.timeout_ms, pod.snapshot.head) == ("olga", timeout_ms, head)


async def test_an_override_outlives_a_newer_document() -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    pod = Configuration(environment="production")
    await send(gateway, msgspec.json.encode(hold(clock.wall())))
    await beats(gateway, pod)
    head = msgspec.structs.replace(pod.snapshot.head, revision=pod.snapshot.head.revision + 1)
    same = check_config(
        environment="production", head=head, document=policy(), tenants={}, source=ConfigSource.REDIS
    )
    assert pod.apply(same)
    assert pod.snapshot.dependency("llm").override.actor == "olga"
    pod.apply_overrides({})
    assert pod.snapshot.dependency("llm").override is None


@pytest.mark.parametrize("authorization", ["", "Bearer x", "Fuseboard-HMAC " + "0" * 64])
async def test_an_unsigned_body_is_401_and_changes_nothing(authorization: str) -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    body = msgspec.json.encode(hold(clock.wall()))
    assert (await send(gateway, body, authorization=authorization)).status_code == 401
    other = signature(body, secret="the key of another control plane")
    assert (await send(gateway, body, authorization=other)).status_code == 401
    changed = body.replace(b'"llm"', b'"gpt"')
    assert (await send(gateway, changed, authorization=signature(body))).status_code == 401
    assert gateway.handed_overrides.waiting == []


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"dependency": "unknown"}, "dependency"),
        ({"dependency": "No Slug"}, "dependency"),
        ({"reason": ""}, "reason"),
        ({"id": "1"}, "id"),
        ({"origin": "nowhere"}, "origin"),
        ({"mode": "forced_closed"}, ""),
        ({"expires_at_us": int(NOON * 1_000_000)}, "expires_at_us"),
        ({"expires_at_us": True}, "expires_at_us"),
    ],
)
async def test_a_body_with_other_values_is_422(fields: dict[str, Any], where: str) -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    body = msgspec.json.encode({**msgspec.to_builtins(hold(clock.wall())), **fields})
    answer = await send(gateway, body)
    assert answer.status_code == 422, answer.text
    assert answer.json().get("field", "") == where
    assert gateway.handed_overrides.waiting == []


async def test_large_bodies_other_methods_and_broken_json_are_refused() -> None:
    gateway = ready_gateway()
    assert (await send(gateway, b" " * 8_193)).status_code == 413
    assert (await send(gateway, b"{")).status_code == 400
    async with client(gateway) as http:
        assert (await http.get(PATH)).status_code == 405
        assert (await http.post(PATH, headers={"content-type": "text/plain"})).status_code == 415


async def test_a_longer_override_ends_after_fifteen_minutes() -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    await send(gateway, msgspec.json.encode(hold(clock.wall(), seconds=3600)))
    assert (await synced(gateway)).held["llm"].expires_at_us == int((clock.wall() + 900) * 1_000_000)


async def test_an_adopted_override_is_not_accepted_again() -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    body = msgspec.json.encode(hold(clock.wall()))
    await send(gateway, body)
    (waiting,) = gateway.handed_overrides.waiting
    newer = {"production": loaded(revision=43, whole=False, tenants={})}
    gateway.take(
        Reading(tokens=known_tokens(), loaded=newer, servers=[], unreadable={}, adopted=(waiting.id,))
    )
    assert (await synced(gateway)).held == {}
    assert (await send(gateway, body)).status_code == 200
    assert gateway.handed_overrides.waiting == []
    assert (await synced(gateway)).held == {}


async def test_a_newer_configuration_without_it_does_not_end_it() -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    await send(gateway, msgspec.json.encode(hold(clock.wall())))
    newer = {"production": loaded(revision=43, whole=False, tenants={})}
    gateway.take(Reading(tokens=known_tokens(), loaded=newer, servers=[], unreadable={}))
    answer = await synced(gateway)
    assert answer.head.revision == 43
    assert answer.held["llm"].mode is OverrideMode.FORCED_OPEN


# Told to Postgres


def test_it_is_adopted_once_with_its_original_time(production: str, ada: Any) -> None:
    held = hold(time.time() - 60, dependency="openai")
    assert adopt_handed([held]) == [held.id]
    assert adopt_handed([held]) == [held.id]
    override = Override.objects.get()
    assert (override.mode, override.actor, override.reason) == ("forced_open", "olga", REASON)
    assert override.expires_at_us == held.expires_at_us
    entry = Entry.objects.get(action="breaker.held")
    assert (entry.after["made_without"], entry.actor) == ("postgres and redis", "olga")
    assert entry.after["made_at"] < timezone.now().isoformat()
    end_override(environment="production", dependency="openai", reason="all is well again", actor=ada)
    assert adopt_handed([held]) == [held.id]
    assert Override.objects.get().ended_at is not None


def test_an_expired_override_is_audited_and_not_applied(production: str) -> None:
    held = hold(time.time() - 600, seconds=60, dependency="openai")
    assert adopt_handed([held]) == [held.id]
    assert not Override.objects.exists()
    assert Entry.objects.filter(action="breaker.held").count() == 1


def test_a_newer_override_in_postgres_stays(production: str, ada: Any) -> None:
    override_breaker(
        environment="production",
        dependency="openai",
        mode=OverrideMode.METRICS_ONLY,
        reason="made after the other one",
        expires_at=timezone.now() + timedelta(minutes=5),
        actor=ada,
    )
    adopt_handed([hold(time.time() - 60, dependency="openai")])
    assert Override.objects.get(ended_at__isnull=True).mode == OverrideMode.METRICS_ONLY
    assert Entry.objects.latest("id").after["superseded"] is True


def test_a_reset_made_before_postgres_knew_the_override_stays(production: str, ada: Any) -> None:
    reset_breaker(environment=production, dependency="openai", reason="all is well again", actor=ada)
    adopt_handed([hold(time.time() - 60, dependency="openai")])
    assert not Override.objects.exists()
    assert Entry.objects.latest("id").after["superseded"] is True


def test_an_override_of_a_deleted_dependency_blocks_nothing(production: str) -> None:
    known = hold(time.time() - 60, dependency="openai")
    gone = hold(time.time() - 61, dependency="gone")
    assert adopt_handed([gone, known]) == [gone.id, known.id]
    assert Override.objects.count() == 1


# Handed over


class _Gateway(BaseHTTPRequestHandler):
    gateway: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = asyncio.run(send(self.gateway, body, authorization=self.headers["Authorization"]))
        self.send_response(answer.status_code)
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def gateway_url() -> Any:
    gateway = ready_gateway(Clock())
    handler = type("Handler", (_Gateway,), {"gateway": gateway})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", gateway
        server.shutdown()
        thread.join()


def give(ada: Any, *, minutes: float = 10) -> tuple[int, int]:
    return hand_over(
        environment="production",
        dependency="llm",
        reason=REASON,
        expires_at=timezone.now() + timedelta(minutes=minutes),
        actor=ada,
    )


def test_it_is_sent_to_every_gateway_that_answers(gateway_url: Any, ada: Any, settings: Any) -> None:
    url, gateway = gateway_url
    settings.GATEWAY_URLS = [url, "http://127.0.0.1:1"]
    assert give(ada) == (1, 2)
    (waiting,) = gateway.handed_overrides.waiting
    assert (waiting.dependency, waiting.actor, waiting.reason) == ("llm", "ada", REASON)


def test_it_reports_why_no_gateway_accepted_it(gateway_url: Any, ada: Any, settings: Any) -> None:
    url, gateway = gateway_url
    gateway.ready = False
    settings.GATEWAY_URLS = [url, "http://127.0.0.1:1"]
    with pytest.raises(
        override_in_gateways.NotHanded, match=r"answers 503.*; http://127.0.0.1:1 does not answer"
    ):
        give(ada)
    settings.GATEWAY_URLS = []
    with pytest.raises(override_in_gateways.NotHanded, match="FUSEBOARD_GATEWAY_URL"):
        give(ada)


def test_more_than_fifteen_minutes_are_refused(ada: Any) -> None:
    with pytest.raises(InvalidEdit) as refused:
        give(ada, minutes=16)
    assert "expires_at" in refused.value.errors
