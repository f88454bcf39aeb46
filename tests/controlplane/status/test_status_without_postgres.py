"""Which override is in force while Postgres is unavailable: a note, what pods apply, or what was known."""

import time
from dataclasses import replace
from typing import Any

import pytest
import redis

from controlplane.breakers import override_in_redis
from controlplane.fleet.status_client import GatewayStatus
from controlplane.status.facts import BreakerSeen, Dependency, Facts, Override
from controlplane.status.without_postgres import (
    CONFIRMED_S,
    RETRY_NOTES_S,
    UNKNOWN_ACTOR,
    Note,
    WithoutPostgres,
    from_note,
    from_servers,
    last_known,
)

NOW = 1_795_144_367.0
KNOWN = Override(
    mode="forced_open", reason="CHG-1", actor="olga", expires_at=NOW + 600, made_at=NOW - 60, revision=7
)
NOTE = Note(
    what="forced_open",
    in_redis=True,
    reason="everything burns",
    actor="otto",
    made_at=NOW - 5,
    expires_at=NOW + 60,
)
CLOSED = BreakerSeen(state="closed")
FORCED = BreakerSeen(state="closed", override="forced_open", since=NOW - 9, until=NOW + 30)


def test_a_note_of_an_override_says_who_and_why_until_it_expires() -> None:
    found = from_note(NOTE, KNOWN, NOW)
    assert found is not None
    assert (found.actor, found.reason, found.made_at, found.revision) == ("otto", NOTE.reason, NOW - 5, 7)
    assert from_note(NOTE, KNOWN, NOW + 60) is None
    assert from_note(None, KNOWN, NOW) is None


def test_what_pods_apply_is_the_known_override_or_one_of_an_unknown_operator() -> None:
    assert from_servers([FORCED, CLOSED], KNOWN, NOW) is KNOWN
    unknown = from_servers([FORCED, CLOSED], None, NOW)
    assert unknown is not None
    assert (unknown.mode, unknown.actor) == ("forced_open", UNKNOWN_ACTOR)
    assert (unknown.made_at, unknown.expires_at) == (NOW - 9, NOW + 30)
    assert from_servers([CLOSED], KNOWN, NOW) is None


def test_what_was_known_counts_while_no_pod_can_contradict_it() -> None:
    assert last_known([], KNOWN, NOW) is KNOWN
    assert last_known([CLOSED], KNOWN, NOW) is None
    assert last_known([CLOSED], KNOWN, KNOWN.made_at + CONFIRMED_S - 1) is KNOWN


def test_notes_are_remembered_while_redis_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.GATEWAY_URLS = []
    note = {"what": "forced_open", "reason": "r", "actor": "a", "id": "5-0", "expires_at_us": 1}
    asked: list[str] = []

    def noted(environment: str) -> dict[str, dict[str, Any]]:
        asked.append(environment)
        if len(asked) > 1:
            raise redis.ConnectionError("refused")
        return {"payments-api": note}

    monkeypatch.setattr(override_in_redis, "noted", noted)
    monotonic = [1_000.0]
    monkeypatch.setattr("controlplane.status.without_postgres.time.monotonic", lambda: monotonic[0])
    status = WithoutPostgres()
    known = Facts(now=NOW, dependencies=(Dependency(name="payments-api"),))
    for _ in range(3):
        status.facts(known)
    assert status._notes["production"]["payments-api"].actor == "a"
    assert len(asked) == 2, "Redis is left alone after it did not answer"
    monotonic[0] += RETRY_NOTES_S
    status.facts(known)
    assert len(asked) == 3


def test_a_remembered_note_of_an_earlier_outage_does_not_count(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    made_at = time.time()
    note = {
        "what": "forced_open",
        "reason": "r",
        "actor": "otto",
        "id": f"{int(made_at * 1000)}-0",
        "expires_at_us": int((made_at + 1_800) * 1_000_000),
    }
    answers: list[dict[str, dict[str, Any]]] = [{"payments-api": note}]

    def noted(_: str) -> dict[str, dict[str, Any]]:
        if not answers:
            raise redis.ConnectionError("refused")
        return answers.pop()

    monkeypatch.setattr(override_in_redis, "noted", noted)
    status = WithoutPostgres()
    monkeypatch.setattr(status.gateways, "ask", lambda *_, **__: GatewayStatus(answered=1))
    known = Facts(now=NOW, as_of=made_at - 5, dependencies=(Dependency(name="payments-api"),))

    def actor(known: Facts) -> str | None:
        override = status.facts(known).dependencies[0].override
        return override.actor if override is not None else None

    assert [actor(known), actor(known)] == ["otto", "otto"], "Redis stopped answering during the outage"
    since = replace(known, as_of=made_at + 60)
    assert actor(since) is None, "Postgres was back, and knows of no override"
