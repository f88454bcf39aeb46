"""The override form while Postgres is unavailable: protection works, the rest waits and says so."""

import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import redis
from django.db import OperationalError, connection
from hub_drawing import draw
from shown import text_of

from controlplane.breakers import override_in_gateways
from controlplane.fleet.status_client import GatewayStatus, StatusClient
from controlplane.status.facts import BreakerSeen
from controlplane.status.without_postgres import WithoutPostgres
from dashboard.hub import hub
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import parse_breaker, parse_override
from fuseboard.contract.words import BreakerState, OverrideMode

PAGE = "/breakers/payments-api"
REASON = {"reason": "the vendor burns, and so does Postgres"}
OVERRIDE = keys.override("production", "payments-api")
BREAKER = keys.breaker("production", "payments-api")


@pytest.fixture
def operator(log_in: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Logged in before Postgres became unavailable; the page displays what it last knew."""
    client = log_in("olga")
    assert client.get(PAGE).status_code == 200  # This also renews the claims in the session.
    monkeypatch.setattr(hub.of("production"), "facts", draw(monkeypatch).facts)
    # It remembers what it saw, and other tests have other stores.
    monkeypatch.setattr(hub, "without_postgres", WithoutPostgres())

    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    connection.close()
    monkeypatch.setattr(connection, "connect", refuse)
    yield client
    monkeypatch.undo()


def stored(limits: redis.Redis, key: str) -> str | None:
    text = limits.get(key)
    return text.decode() if isinstance(text, bytes) else None


def test_an_override_to_open_goes_through_redis(operator: Any, limits: redis.Redis) -> None:
    answer = operator.post(
        PAGE, REASON | {"act": "forced_open", "lasts": "240"}, headers={"HX-Request": "true"}
    )
    assert answer.status_code == 200
    assert "through Redis only" in answer.content.decode()
    held = parse_override(stored(limits, OVERRIDE))
    assert held is not None
    assert held.mode is OverrideMode.FORCED_OPEN
    breaker = parse_breaker(stored(limits, BREAKER))
    assert breaker is not None
    assert breaker.state is BreakerState.OPEN
    seconds, _ = limits.time()
    assert held.expires_at_us / 1_000_000 - seconds <= 30 * 60
    assert limits.xlen(keys.emergency("production")) == 1


def test_a_reset_needs_confirmation(operator: Any, limits: redis.Redis) -> None:
    first = operator.post(PAGE, REASON | {"act": "reset"})
    assert first.status_code == 422
    page = first.content.decode()
    assert "Type payments-api to reset the breaker anyway" in page
    # Visible, although the form otherwise displays this field only for Force closed.
    assert '<div class="field">\n  <label for="f-confirm">' in page
    assert REASON["reason"] in page
    assert stored(limits, BREAKER) is None
    second = operator.post(PAGE, REASON | {"act": "reset", "confirm": "payments-api"})
    assert second.status_code == 302
    breaker = parse_breaker(stored(limits, BREAKER))
    assert breaker is not None
    assert breaker.state is BreakerState.CLOSED


def test_other_actions_wait_and_nothing_typed_is_lost(operator: Any, limits: redis.Redis) -> None:
    closed = REASON | {"act": "forced_closed", "lasts": "5", "confirm": "payments-api"}
    answer = operator.post(PAGE, closed)
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "only Force open and Reset work" in page
    assert REASON["reason"] in page
    assert stored(limits, OVERRIDE) is None


def test_with_both_stores_down_the_page_reports_that_the_result_is_not_known(
    operator: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    def unavailable(**_: Any) -> None:
        raise redis.ConnectionError("refused")

    monkeypatch.setattr("controlplane.breakers.override_in_redis.force_open_without_postgres", unavailable)
    answer = operator.post(PAGE, REASON | {"act": "forced_open", "lasts": "15"})
    assert answer.status_code == 422
    assert "it is not known whether payments-api is forced open" in answer.content.decode()
    assert "FUSEBOARD_GATEWAY_URL is not set" in answer.content.decode()


def test_with_both_stores_down_gateways_force_it_open_from_memory(
    operator: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    def unavailable(**_: Any) -> None:
        raise redis.ConnectionError("refused")

    monkeypatch.setattr("controlplane.breakers.override_in_redis.force_open_without_postgres", unavailable)
    monkeypatch.setattr("controlplane.breakers.override_in_redis.reset_without_postgres", unavailable)
    settings.GATEWAY_URLS = ["http://one:1", "http://two:2"]
    sent: list[bytes] = []

    def post(url: str, body: bytes) -> str:
        sent.append(body)
        return "" if url == "http://one:1" else f"{url} does not answer"

    monkeypatch.setattr(override_in_gateways, "_post", post)
    answer = operator.post(
        PAGE, REASON | {"act": "forced_open", "lasts": "240"}, headers={"HX-Request": "true"}
    )
    assert answer.status_code == 200
    page = answer.content.decode()
    assert "in memory only" in page
    assert "1 of 2 gateways have the override" in page
    hold = msgspec.json.decode(sent[0], type=override_in_gateways.HandedOverride)
    assert (hold.dependency, hold.actor, hold.role) == ("payments-api", "olga", "operator")
    assert 14 * 60 < hold.expires_at_us / 1_000_000 - time.time() <= 15 * 60
    for act in ("reset", "forced_closed", "automatic"):
        refused = operator.post(PAGE, REASON | {"act": act, "lasts": "5", "confirm": "payments-api"})
        assert refused.status_code == 422
    assert len(sent) == 2


def gateways_report(monkeypatch: pytest.MonkeyPatch, *views: dict[str, Any], **held: Any) -> None:
    """Fake one gateway that hears one pod for each of the views."""
    row = {
        "service": "checkout",
        "zone": "",
        "agent_version": "1",
        "state": "online",
        "mode": "shared",
        "mode_since": time.time(),
        "mode_cause": "",
        "epoch": 1,
        "revision": 1,
        "config_status": "applied",
        "config_error": "",
        "config_source": "http",
        "started_at": time.time(),
        "last_seen_at": time.time(),
        "calls_per_s": 7.0,
        "redis_p99_us": None,
    }
    breakers = [[{"dependency": "payments-api", "state": "closed", **view}] for view in views]
    servers = {f"heard-{n}": {**row, "name": f"heard-{n}", "breakers": one} for n, one in enumerate(breakers)}
    status = GatewayStatus(servers, overrides=held, answered=1, asked=1)
    monkeypatch.setattr(StatusClient, "ask", lambda self, environment, fresh=False: status)


def test_gateways_count_which_pods_confirm_an_override(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = {"state": "open", "until": time.time() + 900}
    assert hub.of("production").facts is not None
    monkeypatch.setattr(
        hub.of("production"), "facts", replace(hub.of("production").facts, as_of=time.time() - 60)
    )
    gateways_report(monkeypatch, opened, opened, {})
    monkeypatch.setattr("dashboard.views.breakers.without_postgres.CONFIRM_S", 0.0)
    held = REASON | {"act": "forced_open", "lasts": "15"}
    answer = operator.post(PAGE, held, headers={"HX-Request": "true"})
    assert "2 of 3 pods have confirmed it so far" in answer.content.decode()
    page = operator.get(PAGE).content.decode()
    assert "pods and rates come live from 1 gateway" in text_of(page)
    # Pods only see that Redis says open; who and why is in the note there.
    assert "Forced open" in page
    assert "by olga" in page
    assert "Confirmed by 2 of 3" in text_of(page)
    gateways_report(monkeypatch, opened, opened, opened)
    answer = operator.post(PAGE, held, headers={"HX-Request": "true"})
    assert "3 of 3 pods have confirmed it." in answer.content.decode()
    assert "heard-2" in operator.get("/servers").content.decode()


def test_an_override_in_memory_is_displayed_with_actor_and_reason(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = {
        "id": f"{time.time_ns() // 1_000_000:013d}-0123456789abcdef",
        "dependency": "payments-api",
        "reason": "everything burns",
        "actor": "otto",
        "expires_at_us": int((time.time() + 600) * 1_000_000),
    }
    forced = {"override": "forced_open"}
    gateways_report(monkeypatch, forced, {}, **{"payments-api": hold})
    page = operator.get(PAGE).content.decode()
    assert "Forced open" in page
    assert "everything burns" in page
    assert "by otto" in page
    assert "Confirmed by 1 of 2" in text_of(page)
    reset = REASON | {"act": "reset", "confirm": "payments-api"}
    assert "Gateways force it open until" in operator.post(PAGE, reset).content.decode()
    # Another gateway restarted and lost the note: the page still displays what pods apply.
    gateways_report(monkeypatch, forced, forced)
    page = operator.get(PAGE).content.decode()
    assert "by unknown operator" in page
    assert "Confirmed by 2 of 2" in text_of(page)
    gateways_report(monkeypatch, {}, {})
    assert "by unknown operator" not in operator.get(PAGE).content.decode()


def test_the_runbooks_and_the_palette_open_without_postgres(operator: Any) -> None:
    """ "Postgres is unavailable" linked to a list that then was a 503."""
    page = operator.get("/runbooks")
    assert page.status_code == 200
    assert 'href="/runbooks/postgres-away"' in page.content.decode()
    page = operator.get("/runbooks/postgres-away")
    assert page.status_code == 200
    assert "This is the built-in text" in page.content.decode()
    own = operator.get("/runbooks/one-that-people-wrote")
    assert own.status_code == 503
    assert "This runbook cannot be read" in own.content.decode()
    entries = operator.get("/palette").json()["entries"]
    assert {"payments-api", "Runbooks", "web-1"} <= {entry["name"] for entry in entries}


def test_an_emergency_trip_reads_as_an_override_and_never_as_a_probe(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page read "29:10 until the next probe", and the list of overrides "none"."""
    held = REASON | {"act": "forced_open", "lasts": "15"}
    # No gateway reports: it is the note in Redis alone that says so.
    assert operator.post(PAGE, held, headers={"HX-Request": "true"}).status_code == 200
    assert hub.of("production").facts is not None
    opened = {"payments-api": BreakerSeen(state="open", generation=2, until=time.time() + 900)}
    reporting = tuple(
        msgspec.structs.replace(server, breakers=opened) for server in hub.of("production").facts.servers
    )
    monkeypatch.setattr(hub.of("production"), "facts", replace(hub.of("production").facts, servers=reporting))
    page = text_of(operator.get(PAGE).content.decode())
    assert "until the override ends" in page
    assert "Next probe" not in page
    assert "Forced open by olga" in page
    assert "1 active" in text_of(operator.get("/").content.decode())


def test_an_emergency_trip_stays_an_override_until_postgres_has_recorded_it(
    operator: Any, limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the return of Postgres and the record, the page took it for a trip."""
    held = REASON | {"act": "forced_open", "lasts": "15"}
    assert operator.post(PAGE, held, headers={"HX-Request": "true"}).status_code == 200
    known = hub.of("production").facts
    assert known is not None
    hub.without_postgres.facts(known)
    back = hub.without_postgres.until_recorded(known)
    override = back.dependencies[0].override
    assert override is not None
    assert (override.actor, override.mode) == ("olga", "forced_open")
    # The worker records it and removes the note.
    limits.delete(keys.emergency("production"))
    assert hub.without_postgres.until_recorded(known) is known
