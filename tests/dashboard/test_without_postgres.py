"""The override form while Postgres is away: what protects is done, the rest waits and says so."""

import time
from typing import Any

import msgspec
import pytest
import redis
from django.db import OperationalError, connection

from controlplane.breakers import handed
from dashboard.hub import hub
from dashboard.live.reading import read_facts
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import parse_breaker, parse_override
from fuseboard.contract.words import BreakerState, OverrideMode

PAGE = "/breakers/payments-api"
REASON = {"reason": "the vendor burns, and so does Postgres"}
OVERRIDE = keys.override("production", "payments-api")
BREAKER = keys.breaker("production", "payments-api")


@pytest.fixture
def operator(log_in: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Logged in before Postgres went away; the page shows what it last knew."""
    client = log_in("olga")
    assert client.get(PAGE).status_code == 200  # which also renews the claims in the session
    monkeypatch.setattr(hub, "facts", read_facts())

    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    connection.close()
    monkeypatch.setattr(connection, "connect", refuse)
    yield client
    monkeypatch.undo()


def stored(limits: redis.Redis, key: str) -> str | None:
    text = limits.get(key)
    return text.decode() if isinstance(text, bytes) else None


def test_a_hold_open_is_done_through_redis_and_says_so(operator: Any, limits: redis.Redis) -> None:
    answer = operator.post(
        PAGE, REASON | {"act": "forced_open", "lasts": "240"}, headers={"HX-Request": "true"}
    )
    assert answer.status_code == 200
    assert "through Redis alone" in answer.content.decode()
    held = parse_override(stored(limits, OVERRIDE))
    assert held is not None
    assert held.mode is OverrideMode.FORCED_OPEN
    breaker = parse_breaker(stored(limits, BREAKER))
    assert breaker is not None
    assert breaker.state is BreakerState.OPEN
    seconds, _ = limits.time()
    assert held.expires_at_us / 1_000_000 - seconds <= 30 * 60
    assert limits.xlen(keys.emergency("production")) == 1


def test_a_reset_asks_twice(operator: Any, limits: redis.Redis) -> None:
    first = operator.post(PAGE, REASON | {"act": "reset"})
    assert first.status_code == 422
    page = first.content.decode()
    assert "Type payments-api to reset it all the same" in page
    assert REASON["reason"] in page
    assert stored(limits, BREAKER) is None
    second = operator.post(PAGE, REASON | {"act": "reset", "confirm": "payments-api"})
    assert second.status_code == 302
    breaker = parse_breaker(stored(limits, BREAKER))
    assert breaker is not None
    assert breaker.state is BreakerState.CLOSED


def test_what_is_not_urgent_waits_and_nothing_typed_is_lost(operator: Any, limits: redis.Redis) -> None:
    closed = REASON | {"act": "forced_closed", "lasts": "5", "confirm": "payments-api"}
    answer = operator.post(PAGE, closed)
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "only Open and Reset work" in page
    assert REASON["reason"] in page
    assert stored(limits, OVERRIDE) is None


def test_with_both_stores_away_it_says_that_nothing_was_done(
    operator: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    def gone(**_: Any) -> None:
        raise redis.ConnectionError("refused")

    monkeypatch.setattr("controlplane.breakers.emergency.hold_open_without_postgres", gone)
    answer = operator.post(PAGE, REASON | {"act": "forced_open", "lasts": "15"})
    assert answer.status_code == 422
    assert "nothing was done" in answer.content.decode()
    assert "FUSEBOARD_GATEWAY_URL names no gateway" in answer.content.decode()


def test_with_both_stores_away_gateways_hold_it_in_memory_and_nothing_else_works(
    operator: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    def gone(**_: Any) -> None:
        raise redis.ConnectionError("refused")

    monkeypatch.setattr("controlplane.breakers.emergency.hold_open_without_postgres", gone)
    monkeypatch.setattr("controlplane.breakers.emergency.reset_without_postgres", gone)
    settings.GATEWAY_URLS = ["http://one:1", "http://two:2"]
    sent: list[bytes] = []

    def post(url: str, body: bytes) -> str:
        sent.append(body)
        return "" if url == "http://one:1" else f"{url} does not answer"

    monkeypatch.setattr(handed, "_post", post)
    answer = operator.post(
        PAGE, REASON | {"act": "forced_open", "lasts": "240"}, headers={"HX-Request": "true"}
    )
    assert answer.status_code == 200
    page = answer.content.decode()
    assert "in memory only" in page
    assert "1 of 2 gateways took it" in page
    hold = msgspec.json.decode(sent[0], type=handed.HandedHold)
    assert (hold.dependency, hold.actor, hold.role) == ("payments-api", "olga", "operator")
    assert 14 * 60 < hold.expires_at_us / 1_000_000 - time.time() <= 15 * 60
    for act in ("reset", "forced_closed", "automatic"):
        refused = operator.post(PAGE, REASON | {"act": act, "lasts": "5", "confirm": "payments-api"})
        assert refused.status_code == 422
    assert len(sent) == 2
