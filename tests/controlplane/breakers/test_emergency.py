import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.breakers.enforce import enforce
from controlplane.breakers.models import Override
from controlplane.breakers.override_in_redis import (
    force_open_without_postgres,
    noted,
    reset_without_postgres,
)
from controlplane.breakers.overrides import override_breaker
from controlplane.errors import InvalidEdit
from controlplane.policies.models import Dependency
from controlplane.repair.tasks import reconcile_environment
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import parse_breaker, parse_override
from fuseboard.contract.keys import emergency
from fuseboard.contract.words import BreakerState, OverrideMode

OVERRIDE = keys.override("production", "openai")
BREAKER = keys.breaker("production", "openai")


@pytest.fixture
def postgres_down(production: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that makes Postgres available again."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    connection.close()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "connect", refuse)
        yield patch.undo


def trip(ada: Any, minutes: float = 20, reason: str = "vendor is down, Postgres too") -> None:
    force_open_without_postgres(
        environment="production",
        dependency="openai",
        reason=reason,
        expires_at=timezone.now() + timedelta(minutes=minutes),
        actor=ada,
    )


def test_an_override_without_postgres_keeps_its_ticket(postgres_down: Any, ada: Any) -> None:
    ticket = "https://tickets.example.com/browse/OPS-4821"
    force_open_without_postgres(
        environment="production",
        dependency="openai",
        reason="The vendor is down",
        expires_at=timezone.now() + timedelta(minutes=10),
        actor=ada,
        ticket=ticket,
    )
    with pytest.raises(InvalidEdit):
        force_open_without_postgres(
            environment="production",
            dependency="openai",
            reason="The vendor is down",
            expires_at=timezone.now() + timedelta(minutes=10),
            actor=ada,
            ticket="javascript:alert(1)",
        )
    postgres_down()
    reconcile_environment("production")
    assert Override.objects.get().ticket == ticket
    assert Entry.objects.get(action="breaker.held").after["override.ticket"] == ticket


def test_a_breaker_is_forced_open_at_once_and_the_override_is_stored_later(
    postgres_down: Any, text_limits: Any, ada: Any
) -> None:
    trip(ada)
    held = parse_override(text_limits.get(OVERRIDE))
    assert held is not None
    assert held.mode == OverrideMode.FORCED_OPEN
    assert parse_breaker(text_limits.get(BREAKER)).state == BreakerState.OPEN
    postgres_down()
    reconcile_environment("production")
    override = Override.objects.get()
    assert (override.actor, override.reason) == ("ada", "vendor is down, Postgres too")
    assert override.expires_at_us == held.expires_at_us
    assert parse_override(text_limits.get(OVERRIDE)).revision == override.revision
    entry = Entry.objects.latest("id")
    assert (entry.action, entry.after["made_without"]) == ("breaker.held", "postgres")
    assert text_limits.xlen(emergency("production")) == 0


def test_a_reset_closes_the_breaker_at_once_and_reaches_the_pods_later(
    postgres_down: Any, text_limits: Any, ada: Any
) -> None:
    text_limits.set(BREAKER, "open 41 99999999999999 5 3 0 consecutive")
    reset_without_postgres(
        environment="production", dependency="openai", reason="vendor is well again", actor=ada
    )
    assert parse_breaker(text_limits.get(BREAKER)).state == BreakerState.CLOSED
    postgres_down()
    enforce("production")
    assert Dependency.objects.get().reset_revision == Entry.objects.latest("id").revision


def test_a_note_is_adopted_once(postgres_down: Any, text_limits: Any, ada: Any) -> None:
    trip(ada)
    [(entry_id, fields)] = text_limits.xrange(emergency("production"))
    postgres_down()
    enforce("production")
    text_limits.delete(emergency("production"))
    # As if the process died between the commit and the removal of the note.
    text_limits.xadd(emergency("production"), fields, id=entry_id)
    before = Entry.objects.count()
    enforce("production")
    assert Entry.objects.count() == before
    assert Override.objects.count() == 1


def test_an_older_note_does_not_undo_a_newer_override(postgres_down: Any, text_limits: Any, ada: Any) -> None:
    trip(ada)
    postgres_down()
    newer = override_breaker(
        environment="production",
        dependency="openai",
        mode=OverrideMode.METRICS_ONLY,
        reason="only watching from now on",
        expires_at=timezone.now() + timedelta(hours=1),
        actor=ada,
    )
    reconcile_environment("production")
    assert Override.objects.get(ended_at__isnull=True).revision == newer
    assert parse_override(text_limits.get(OVERRIDE)).mode == OverrideMode.METRICS_ONLY
    assert Entry.objects.latest("id").after["superseded"] is True


def test_an_unreadable_note_is_dropped_and_the_others_are_adopted(
    production: str, text_limits: Any, ada: Any
) -> None:
    text_limits.xadd(emergency("production"), {"note": "{"})
    text_limits.xadd(emergency("production"), {"other": "thing"})
    enforce("production")
    assert text_limits.xlen(emergency("production")) == 0
    text_limits.set(emergency("production"), "not a stream")
    enforce("production")


@pytest.mark.parametrize("bad", ["\x00", "\ud800", "\u2028", "\u202e"])
def test_a_note_with_an_odd_character_is_adopted_and_displayed_without_it(
    postgres_down: Any, text_limits: Any, ada: Any, bad: str
) -> None:
    trip(ada)
    [(entry, fields)] = text_limits.xrange(emergency("production"))
    note = json.loads(fields["note"]) | {"reason": f"the vendor\nis{bad}down"}
    text_limits.xdel(emergency("production"), entry)
    text_limits.xadd(emergency("production"), {"note": json.dumps(note)})
    assert noted("production")["openai"]["reason"] == "the vendor\nis down"
    postgres_down()
    reconcile_environment("production")
    assert Override.objects.get().reason == "the vendor\nis down"


@pytest.mark.parametrize(
    ("field", "changed"), [("reason", {"reason": "short"}), ("expires_at", {"minutes": 31})]
)
def test_an_override_without_postgres_lasts_30_minutes_and_needs_a_reason(
    postgres_down: Any, ada: Any, field: str, changed: dict[str, Any]
) -> None:
    with pytest.raises(InvalidEdit) as invalid:
        trip(ada, **changed)
    assert list(invalid.value.errors) == [field]


def test_a_reset_after_an_override_stays_a_reset_when_both_are_adopted(
    postgres_down: Any, text_limits: Any, ada: Any
) -> None:
    trip(ada)
    reset_without_postgres(
        environment="production", dependency="openai", reason="the vendor is back, Postgres not", actor=ada
    )
    postgres_down()
    reconcile_environment("production")
    assert not Override.objects.filter(ended_at__isnull=True).exists()
    assert Dependency.objects.get(name="openai").reset_revision > Override.objects.get().revision
    assert parse_override(text_limits.get(OVERRIDE)) is None
    assert parse_breaker(text_limits.get(BREAKER)).state == BreakerState.CLOSED


def test_pods_are_notified_to_ask_redis_again(postgres_down: Any, text_limits: Any, ada: Any) -> None:
    with text_limits.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(keys.breaker_channel("production"))
        assert heard.get_message(timeout=20) is None  # the confirmation, which is ignored
        trip(ada)
        message = heard.get_message(timeout=20)
    generation = parse_breaker(text_limits.get(BREAKER)).generation
    assert message["data"] == f"openai {generation} 0"
    postgres_down()
