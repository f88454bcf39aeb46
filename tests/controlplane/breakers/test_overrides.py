from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from structlog.testing import capture_logs

from controlplane.audit.models import Entry
from controlplane.breakers.breakers_in_redis import APPLY_OVERRIDE
from controlplane.breakers.collect import collect_transitions
from controlplane.breakers.enforce import enforce
from controlplane.breakers.models import Override, StreamPosition, Transition
from controlplane.breakers.overrides import end_override, expire_overrides, override_breaker, reset_breaker
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.document import environment_of, policy_of
from controlplane.policies.models import Environment
from controlplane.publishing.models import OutboxEntry
from controlplane.repair.tasks import reconcile_environment, sweep_outbox
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import StoredBreaker, parse_breaker, parse_override
from fuseboard.contract.words import BreakerState, OverrideMode

KEYS = [
    make("production", "openai")
    for make in (
        keys.override,
        keys.breaker,
        keys.outcomes,
        keys.evidence,
        keys.transitions,
        keys.cooldown,
        keys.cooldown_claim,
    )
]
OVERRIDE, BREAKER, OUTCOMES, EVIDENCE, TRANSITIONS, COOLDOWN, CLAIM = KEYS
BYPASSES = [OverrideMode.FORCED_CLOSED, OverrideMode.METRICS_ONLY, OverrideMode.DISABLED]


def now_us(store: Any) -> int:
    seconds, micros = store.time()
    return seconds * 1_000_000 + micros


def breaker(store: Any) -> StoredBreaker:
    found = parse_breaker(store.get(BREAKER))
    assert found is not None
    return found


def apply(store: Any, what: str, revision: int, expires_in_us: int = 0) -> int:
    expires = now_us(store) + expires_in_us if expires_in_us else 0
    done, _ = APPLY_OVERRIDE.run(store, keys=KEYS, args=[what, revision, expires, "ada"])
    return done


def hold(ada: Any, mode: OverrideMode = OverrideMode.FORCED_OPEN, minutes: float = 10, **more: Any) -> int:
    return override_breaker(
        **{
            "environment": "production",
            "dependency": "openai",
            "mode": mode,
            "reason": "vendor is having an incident",
            "expires_at": timezone.now() + timedelta(minutes=minutes),
            "actor": ada,
        }
        | more
    )


# The script, against a real server


def test_forced_open_opens_the_breaker_until_the_override_expires(text_limits: Any) -> None:
    assert apply(text_limits, "forced_open", 5, 60_000_000) == 1
    override, found = parse_override(text_limits.get(OVERRIDE)), breaker(text_limits)
    assert override is not None
    assert (override.mode, override.revision) == (OverrideMode.FORCED_OPEN, 5)
    assert (found.state, found.cause, found.until_us) == (BreakerState.OPEN, "forced", override.expires_at_us)
    assert found.generation >= found.since_us > 0


@pytest.mark.parametrize("mode", BYPASSES)
def test_other_overrides_close_the_breaker_and_clear_its_counts(text_limits: Any, mode: str) -> None:
    text_limits.set(BREAKER, "open 41 99999999999999 5 3 0 consecutive")
    text_limits.set(OUTCOMES, "x")
    text_limits.hset(EVIDENCE, "pod-1", "1")
    assert apply(text_limits, mode, 5, 60_000_000) == 1
    found = breaker(text_limits)
    assert (found.state, found.attempt, found.until_us) == (BreakerState.CLOSED, 0, 0)
    assert found.generation > 41
    assert text_limits.exists(OUTCOMES, EVIDENCE) == 0


def test_a_repeated_override_changes_nothing(text_limits: Any) -> None:
    expires = now_us(text_limits) + 60_000_000
    for _ in range(3):
        APPLY_OVERRIDE.run(text_limits, keys=KEYS, args=["forced_open", 5, expires, "ada"])
    assert text_limits.xlen(TRANSITIONS) == 1
    for _ in range(3):
        apply(text_limits, "reset", 6)
    assert text_limits.xlen(TRANSITIONS) == 2


def test_an_older_revision_changes_nothing(text_limits: Any) -> None:
    assert apply(text_limits, "forced_open", 5, 60_000_000) == 1
    assert apply(text_limits, "end", 4) == 0
    assert apply(text_limits, "disabled", 4, 60_000_000) == 0
    assert apply(text_limits, "reset", 4) == 0
    assert parse_override(text_limits.get(OVERRIDE)).mode == OverrideMode.FORCED_OPEN


def test_a_late_message_cannot_restore_an_ended_override(text_limits: Any) -> None:
    apply(text_limits, "forced_open", 5, 60_000_000)
    assert apply(text_limits, "end", 6) == 1
    assert parse_override(text_limits.get(OVERRIDE)) is None
    assert apply(text_limits, "forced_open", 5, 60_000_000) == 0
    assert parse_override(text_limits.get(OVERRIDE)) is None


def test_ending_forced_open_early_starts_probing_at_once(text_limits: Any) -> None:
    apply(text_limits, "forced_open", 5, 60_000_000)
    generation = breaker(text_limits).generation
    apply(text_limits, "end", 6)
    found = breaker(text_limits)
    assert (found.state, found.generation) == (BreakerState.OPEN, generation)
    assert found.until_us <= now_us(text_limits)


@pytest.mark.parametrize("mode", BYPASSES)
def test_ending_any_other_override_closes_with_a_new_generation(text_limits: Any, mode: str) -> None:
    apply(text_limits, mode, 5, 60_000_000)
    generation = breaker(text_limits).generation
    text_limits.set(OUTCOMES, "x")
    apply(text_limits, "end", 6)
    assert breaker(text_limits).state == BreakerState.CLOSED
    assert breaker(text_limits).generation > generation
    assert bool(text_limits.exists(OUTCOMES)) == (mode == OverrideMode.METRICS_ONLY)


def test_transitions_after_the_expiry_are_kept(text_limits: Any) -> None:
    """The override expired, calls were made and the breaker tripped before the control plane noticed."""
    past = now_us(text_limits) - 1_000_000
    text_limits.set(OVERRIDE, f"forced_closed {past} 5")
    tripped = f"open {past + 10} {past + 90_000_000} {past + 10} 1 0 consecutive"
    text_limits.set(BREAKER, tripped)
    assert apply(text_limits, "end", 6) == 1
    assert text_limits.get(BREAKER) == tripped


def test_an_expired_override_is_not_applied(text_limits: Any) -> None:
    assert apply(text_limits, "forced_open", 5, -1_000_000) == 0
    assert text_limits.exists(*KEYS) == 0


@pytest.mark.parametrize("what", [*OverrideMode, "reset"])
@pytest.mark.parametrize(
    "rubbish",
    ["", "open", "open x", "open 99999999999999999999999 1 1 1 1 x", "\x00\xff", "closed -1 0 0 0 0 x"],
)
def test_invalid_values_in_the_keys_do_not_prevent_an_override(
    text_limits: Any, what: str, rubbish: str
) -> None:
    text_limits.mset(dict.fromkeys(KEYS, rubbish))
    assert apply(text_limits, what, 5, 0 if what == "reset" else 60_000_000) == 1
    assert breaker(text_limits).state == (BreakerState.OPEN if what == "forced_open" else BreakerState.CLOSED)


@pytest.mark.parametrize("what", [*OverrideMode, "reset"])
def test_keys_of_another_type_do_not_prevent_an_override(text_limits: Any, what: str) -> None:
    for key in KEYS:
        text_limits.sadd(key, "x")
    assert apply(text_limits, what, 5, 0 if what == "reset" else 60_000_000) == 1
    assert breaker(text_limits).generation > 0


# The functions people call


def test_an_override_is_in_redis_in_the_document_and_in_the_audit(
    production: str, text_limits: Any, ada: Any
) -> None:
    revision = hold(ada)
    assert parse_override(text_limits.get(OVERRIDE)).revision == revision
    [dependency] = policy_of(environment_of("production")).dependencies
    assert dependency.override is not None
    assert (dependency.override.actor, dependency.override.revision) == ("ada", revision)
    entry = Entry.objects.latest("id")
    assert (entry.action, entry.actor, entry.reason) == (
        "breaker.held",
        "ada",
        "vendor is having an incident",
    )


def test_a_second_override_replaces_the_first(production: str, text_limits: Any, ada: Any) -> None:
    hold(ada)
    revision = hold(ada, OverrideMode.FORCED_CLOSED)
    assert Override.objects.filter(ended_at__isnull=True).get().revision == revision
    assert parse_override(text_limits.get(OVERRIDE)).mode == OverrideMode.FORCED_CLOSED
    assert Entry.objects.latest("id").changes["override.mode"] == ("forced_open", "forced_closed")


def test_a_reset_closes_the_breaker_clears_it_and_reaches_the_pods(
    production: str, text_limits: Any, ada: Any
) -> None:
    hold(ada)
    revision = reset_breaker(
        environment="production", dependency="openai", reason="vendor says all clear", actor=ada
    )
    found = breaker(text_limits)
    assert (found.state, found.cause, found.attempt) == (BreakerState.CLOSED, "reset", 0)
    [dependency] = policy_of(environment_of("production")).dependencies
    assert (dependency.reset_revision, dependency.override) == (revision, None)
    assert not OutboxEntry.objects.filter(published_at__isnull=True).exists()


def test_ending_an_override_that_does_not_exist_is_an_error_and_makes_no_revision(
    production: str, ada: Any
) -> None:
    before = Environment.objects.get().revision
    with pytest.raises(NotFound):
        end_override(environment="production", dependency="openai", reason="nothing to end", actor=ada)
    assert Environment.objects.get().revision == before


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("reason", {"reason": "short"}),
        ("reason", {"reason": "       "}),
        ("reason", {"reason": "with a NUL \x00 in it"}),
        ("expires_at", {"minutes": -1}),
        ("expires_at", {"minutes": 24 * 60 + 1}),
        ("expires_at", {"mode": OverrideMode.FORCED_CLOSED, "minutes": 16}),
        ("mode", {"mode": "wide_open"}),
    ],
)
def test_an_override_without_a_reason_or_with_a_bad_expiry_names_the_field(
    production: str, ada: Any, field: str, changed: dict[str, Any]
) -> None:
    with pytest.raises(InvalidEdit) as invalid:
        hold(ada, **changed)
    assert list(invalid.value.errors) == [field]
    assert not Override.objects.exists()


def test_an_expired_override_ends_with_a_revision(production: str, text_limits: Any, ada: Any) -> None:
    hold(ada)
    Override.objects.update(
        created_at=timezone.now() - timedelta(minutes=2), expires_at=timezone.now() - timedelta(minutes=1)
    )
    before = Environment.objects.get().revision
    assert expire_overrides() == ["openai"]
    assert expire_overrides() == []
    override = Override.objects.get()
    assert override.ended_by == "fuseboard"
    assert Environment.objects.get().revision == before + 1
    assert parse_override(text_limits.get(OVERRIDE)) is None
    assert Entry.objects.latest("id").action == "override.expired"


def test_an_emptied_redis_gets_its_overrides_back(production: str, text_limits: Any, ada: Any) -> None:
    revision = hold(ada)
    text_limits.flushall()
    reconcile_environment("production")
    assert parse_override(text_limits.get(OVERRIDE)).revision == revision
    assert breaker(text_limits).state == BreakerState.OPEN
    assert enforce("production") == []


def test_an_override_that_postgres_does_not_have_is_removed(production: str, text_limits: Any) -> None:
    text_limits.set(OVERRIDE, f"disabled {now_us(text_limits) + 10**9} 1")
    assert enforce("production") == ["openai"]
    assert parse_override(text_limits.get(OVERRIDE)) is None


def test_a_reset_that_redis_missed_is_done_once_later(
    production: str, text_limits: Any, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_limits.set(BREAKER, "open 41 99999999999999 5 3 0 consecutive")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controlplane.breakers.overrides.enforce_promptly", lambda *_: None)
        reset_breaker(environment="production", dependency="openai", reason="vendor is well again", actor=ada)
    assert breaker(text_limits).state == BreakerState.OPEN
    sweep_outbox()
    assert breaker(text_limits).state == BreakerState.CLOSED
    assert text_limits.xrange(TRANSITIONS)[0][1]["actor"] == "ada"
    text_limits.set(BREAKER, "open 99999999999999 99999999999999 5 3 0 consecutive")
    sweep_outbox()
    assert breaker(text_limits).state == BreakerState.OPEN


# History


def test_transitions_are_stored_once(production: str, text_limits: Any, ada: Any) -> None:
    hold(ada)
    reset_breaker(environment="production", dependency="openai", reason="vendor is well again", actor=ada)
    assert collect_transitions("production") == 2
    StreamPosition.objects.all().delete()
    collect_transitions("production")
    rows = list(Transition.objects.order_by("generation").values_list("to_state", "cause", "actor"))
    assert rows == [("open", "forced_open", "ada"), ("closed", "reset", "ada")]


def test_each_transition_is_one_warning_in_the_log(production: str, text_limits: Any, ada: Any) -> None:
    hold(ada)
    reset_breaker(environment="production", dependency="openai", reason="vendor is well again", actor=ada)
    with capture_logs() as logs:
        collect_transitions("production")
        StreamPosition.objects.all().delete()
        collect_transitions("production")
    moved = [line for line in logs if line["event"] == "breaker.moved"]
    assert [(line["from_state"], line["to_state"], line["cause"], line["actor"]) for line in moved] == [
        ("missing", "open", "forced_open", "ada"),
        ("open", "closed", "reset", "ada"),
    ]
    assert {line["log_level"] for line in moved} == {"warning"}
    assert {line["dependency"] for line in moved} == {"openai"}


def test_a_stream_that_was_emptied_is_read_from_its_start(
    production: str, text_limits: Any, ada: Any
) -> None:
    hold(ada)
    collect_transitions("production")
    text_limits.delete(TRANSITIONS)
    text_limits.xadd(
        TRANSITIONS,
        {"generation": 7, "from": "open", "to": "half_open", "cause": "open_time_over", "at_us": 10**15},
        id="5-1",
    )
    assert collect_transitions("production") == 1
    assert Transition.objects.filter(generation=7, to_state="half_open").exists()


def test_a_trip_is_stored_with_its_figures(production: str, text_limits: Any) -> None:
    """An agent of version 0.1 records none, and figures that are no numbers are left out."""
    trip = {"generation": 7, "from": "closed", "to": "open", "cause": "consecutive", "at_us": 10**15}
    figures = {"calls": 9, "failures": 5, "slow": 0, "consecutive": 5, "threshold": 5}
    text_limits.xadd(TRANSITIONS, trip | figures)
    text_limits.xadd(TRANSITIONS, trip | {"generation": 8})
    text_limits.xadd(TRANSITIONS, trip | figures | {"generation": 9, "calls": "many"})
    assert collect_transitions("production") == 3
    rows = dict(Transition.objects.values_list("generation", "figures"))
    assert rows == {7: figures, 8: None, 9: None}


def test_invalid_stream_entries_are_skipped(production: str, text_limits: Any, ada: Any) -> None:
    text_limits.xadd(TRANSITIONS, {"generation": "x", "to": "open", "at_us": "1"})
    text_limits.xadd(TRANSITIONS, {"rubbish": "\x00"})
    text_limits.xadd(TRANSITIONS, {"generation": "9", "to": "open", "at_us": "9" * 18})
    odd = {
        "generation": "8",
        "from": "a\x00b",
        "to": "open",
        "cause": "x\u2028y",
        "at_us": "5",
        "server": "\x1b[2J",
    }
    text_limits.xadd(TRANSITIONS, odd)
    hold(ada)
    assert collect_transitions("production") == 2
    row = Transition.objects.get(generation=8)
    assert (row.from_state, row.cause, row.server) == ("a b", "x y", " [2J")
    text_limits.delete(TRANSITIONS)
    text_limits.set(TRANSITIONS, "not a stream")
    assert collect_transitions("production") == 0


def test_a_reset_also_ends_a_cooldown(text_limits):
    text_limits.set(COOLDOWN, "9999999999999999")
    text_limits.set(CLAIM, "9999999999999999 web-1")
    apply(text_limits, "reset", 5, 0)
    assert not text_limits.exists(COOLDOWN, CLAIM)
