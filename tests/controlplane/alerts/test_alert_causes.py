"""One cause is one message, and an alert that flaps is one message until it is stable."""

from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from controlplane.alerts.evaluator import forget
from controlplane.alerts.lifecycle import AlertEvent, AlertState
from controlplane.alerts.models import Alert, Delivery
from controlplane.alerts.notify import notify
from controlplane.alerts.people.mute_edits import MuteValues, add_mute
from controlplane.alerts.people.route_edits import RouteValues, put_route
from controlplane.alerts.people.routing import DEFAULT
from controlplane.alerts.rules.every import RULES, timing_of
from controlplane.alerts.rules.rule import rule_of
from controlplane.alerts.state import causes as causes_of
from controlplane.alerts.state.causes import EXPLAINS, LATEST_S, REMAINS_S, WAIT_S, Causes, by_cause, cause_of
from controlplane.alerts.state.flapping import MAX_CHANGES, QUIET_S
from controlplane.alerts.state.stored_alerts import stored_alerts
from tests.controlplane.alerts.delivery.test_alert_deliveries import alert, receiver
from tests.controlplane.alerts.test_alert_evaluator import ADA, evaluate, let_pass, measure

ROOT = Path(__file__).resolve().parents[3]
MONDAY = datetime(2026, 5, 4, 22, tzinfo=UTC)
needs_postgres = pytest.mark.django_db


def about(key: str, *, after_s: float = 0, **fields: Any) -> Alert:
    usual = {
        "environment": "production",
        "level": timing_of(key).level,
        "severity": "warning",
        "state": AlertState.FIRING,
        "true_since": MONDAY + timedelta(seconds=after_s),
        "subject_kind": "servers",
    }
    return Alert(key=key, **(usual | fields))


@pytest.mark.parametrize(
    ("cause", "child", "explained"),
    [
        (about("local"), about("p99"), True),
        (about("p99"), about("local"), False),
        (about("local", severity="critical"), about("p99", severity="critical"), True),
        (about("local"), about("p99", severity="critical"), False),
        (about("local", after_s=LATEST_S), about("p99"), True),
        (about("local", after_s=LATEST_S + 1), about("p99"), False),
        (about("local", after_s=-9_999), about("p99"), True),
        (about("local", state=AlertState.RESOLVED), about("p99"), False),
        (about("local", state=AlertState.PENDING), about("p99"), True),
        (about("local", environment="staging"), about("p99"), False),
        (about("local"), about("p99", level=3), False),
        (about("open:openai", subject_name="openai"), about("near:openai", subject_name="openai"), True),
        (about("open:openai", subject_name="openai"), about("near:stripe", subject_name="stripe"), False),
        (about("pressure", pods=["web-1"]), about("unhealthy", pods=["web-1"]), True),
        (about("pressure", pods=["web-1"]), about("unhealthy", pods=["db-7"]), False),
        (about("pressure", pods=["web-1"]), about("unhealthy", pods=["db-7", "web-1"]), False),
        # More pods than a row names.
        (about("pressure", pods=["web-1"]), about("unhealthy"), False),
        (about("pressure"), about("unhealthy", pods=["db-7"]), True),
        (about("frozen"), about("silent", pods=["db-7"], severity="warning"), True),
        (about("local", pods=["web-1"]), about("p99"), True),
        # Only this source.
        (about("redis-down"), about("blind:redis"), True),
        (about("redis-down"), about("blind:series"), False),
        (about("blind:redis"), about("blind:budgets"), True),
        (about("blind:tokens"), about("blind:budgets"), False),
        (about("blind:budgets"), about("blind:redis"), False),
    ],
)
def test_an_alert_is_explained_by_its_cause_only(cause: Alert, child: Alert, explained: bool) -> None:
    assert (cause_of(child, [child, cause]) is cause) is explained


REDIS_DOWN = (
    about("redis-down", severity="critical", after_s=12),
    about("all-local", severity="critical", after_s=9, pods=["web-1", "web-2"]),
    about("local", severity="critical", pods=["web-1", "web-2"]),
    about("blind:redis", severity="critical"),
    about("blind:budgets", severity="critical"),
    about("check-failures", severity="critical"),
    about("check-errors", severity="critical"),
    # It was slow for an hour before.
    about("p99", severity="critical", after_s=-3_600),
)


def keys_by_cause(*alerts: Alert) -> dict[str, set[str]]:
    return {one.key: {other.key for other in follow} for one, follow in by_cause(alerts)}


def test_a_redis_that_is_down_is_one_cause_with_all_that_follows_from_it() -> None:
    """S2-8: four critical alerts had the same three lines."""
    others = (about("429"), about("open:stripe", severity="critical", subject_name="stripe"))
    near = (about("near:stripe", subject_name="stripe"), about("near:openai", subject_name="openai"))
    found = keys_by_cause(*REDIS_DOWN, *others, *near)
    assert found == {
        "redis-down": {one.key for one in REDIS_DOWN} - {"redis-down"},
        "429": set(),
        "open:stripe": {"near:stripe"},
        "near:openai": set(),
    }
    assert len(by_cause(REDIS_DOWN)) == 1


def test_many_alerts_of_one_cause_are_one_card_and_none_is_lost() -> None:
    names = [f"vendor-{number}" for number in range(200)]
    opened = [about(f"open:{name}", severity="critical", subject_name=name) for name in names]
    rest = [about(f"{rule}:{name}", subject_name=name) for name in names for rule in ("near", "bulkhead")]
    found = by_cause([*REDIS_DOWN, *opened, *rest])
    assert len(found) == 1 + len(opened)
    assert sum(1 + len(follow) for _, follow in found) == len(REDIS_DOWN) + len(opened) + len(rest)


def slowly_by_cause(alerts: list[Alert]) -> list[tuple[Alert, tuple[Alert, ...]]]:
    """Each alert is compared with all others."""
    causes = {one.key: cause_of(one, causes_of._not_over(one, alerts), latest_s=inf) for one in alerts}
    found: dict[str, list[Alert]] = {}
    for one in alerts:
        root, passed = one, {one.key}
        while (above := causes[root.key]) is not None and above.key not in passed:
            root = above
            passed.add(root.key)
        found.setdefault(root.key, [])
        if root is not one:
            found[root.key].append(one)
    return [(one, tuple(found[one.key])) for one in alerts if one.key in found]


@given(st.randoms(use_true_random=False))
def test_only_possible_causes_are_compared_and_none_is_missed(chance: Random) -> None:
    names = ("stripe", "openai", "redis", "budgets", "")
    keys = [rule.key for rule in RULES] + [f"{rule.key}:{name}" for rule in RULES for name in names]
    alerts = [
        about(
            key,
            after_s=chance.randrange(3),
            severity=chance.choice(("warning", "critical")),
            state=chance.choice((AlertState.FIRING, AlertState.RECOVERING)),
            subject_name=chance.choice((key.partition(":")[2], "stripe")),
            pods=chance.choice(([], ["web-1"], ["web-1", "web-2"])),
        )
        for key in chance.sample(keys, 60)
    ]
    assert by_cause(alerts) == slowly_by_cause(alerts)
    causes = Causes(alerts)
    assert [causes.of(one) for one in alerts] == [cause_of(one, alerts) for one in alerts]


def test_a_thousand_alerts_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    explains = causes_of._explains
    monkeypatch.setattr(causes_of, "_explains", lambda *pair: compared.append(pair) or explains(*pair))
    names = [f"vendor-{number}" for number in range(500)]
    alerts = [
        *REDIS_DOWN,
        *(about(f"{rule}:{one}", subject_name=one) for one in names for rule in ("open", "near")),
    ]
    found = by_cause(alerts)
    assert len(found) == 1 + len(names)
    assert len(compared) < 5 * len(alerts)


def test_an_alert_that_fires_is_not_hidden_behind_one_that_recovers() -> None:
    late = about("redis-down", severity="critical", state=AlertState.RECOVERING)
    assert keys_by_cause(late, about("local", severity="critical")) == {"redis-down": set(), "local": set()}
    both = (late, about("local", severity="critical", state=AlertState.RECOVERING))
    assert keys_by_cause(*both) == {"redis-down": {"local"}}


def test_the_causes_are_rules_and_documented() -> None:
    rules = {rule.key for rule in RULES}
    assert rules >= {rule_of(cause) for cause in EXPLAINS}
    assert rules >= {rule_of(child) for children in EXPLAINS.values() for child in children}
    text = (ROOT / "docs" / "alerts.md").read_text()
    for cause, children in EXPLAINS.items():
        assert f"* `{cause}` explains {', '.join(f'`{child}`' for child in children)}" in text


def round_at(at: datetime) -> list[tuple[str, str]]:
    """One evaluation of what is open, and what is sent by it."""
    before = set(Delivery.objects.values_list("pk", flat=True))
    rows = list(Alert.objects.exclude(state=AlertState.RESOLVED).select_related("cause"))
    notify("production", rows, at.timestamp())
    sent = Delivery.objects.exclude(pk__in=before).order_by("created_at")
    return [(one.alert.key, one.kind) for one in sent if one.alert is not None]


def open_alert(key: str, at: datetime, **fields: Any) -> Alert:
    return alert(key, true_since=at, fired_at=at, level_since=at, level=2, **fields)


@needs_postgres
def test_a_cause_is_one_message_whatever_comes_first(production: str) -> None:
    receiver()
    now = timezone.now()
    open_alert("p99", now)
    assert round_at(now) == [], "its cause may come"
    cause = open_alert("redis-down", now + timedelta(seconds=10))
    assert round_at(now + timedelta(seconds=10)) == [("redis-down", "fired")]
    assert Delivery.objects.get().document["data"]["explains"] == ["p99 fires"]
    assert round_at(now + timedelta(seconds=300)) == []
    assert stored_alerts("production")["p99"].because == "redis-down fires"
    Alert.objects.filter(pk=cause.pk).update(
        state=AlertState.RESOLVED, resolved_at=now + timedelta(seconds=300)
    )
    assert round_at(now + timedelta(seconds=300 + REMAINS_S - 1)) == []
    assert round_at(now + timedelta(seconds=300 + REMAINS_S)) == [("p99", "fired")]
    assert Alert.objects.get(key="p99").cause is None


def frozen_and_uncounted(*, frozen: bool, after_s: float = 0) -> list[tuple[str, AlertEvent]]:
    """One evaluation: a gateway holds the state of many pods, whose figures are missing."""
    let_pass(after_s)
    measure(0.0, frozen=frozen, uncounted=100)
    return evaluate()


@needs_postgres
def test_an_alert_is_not_sent_by_the_evaluation_that_resolves_its_cause(production: str) -> None:
    receiver(least_level=1)
    assert frozen_and_uncounted(frozen=True) == []
    assert frozen_and_uncounted(frozen=True, after_s=10) == [("frozen", AlertEvent.FIRED)]
    assert frozen_and_uncounted(frozen=True, after_s=20) == [("uncounted", AlertEvent.FIRED)]
    frozen_and_uncounted(frozen=True, after_s=60)
    frozen_and_uncounted(frozen=False)
    Delivery.objects.update(state="sent", attempts=1)
    assert frozen_and_uncounted(frozen=False, after_s=30) == [("frozen", AlertEvent.RESOLVED)]
    fired, resolved = Delivery.objects.order_by("created_at")
    # The cause fired before what it explains.
    assert (fired.kind, fired.document["data"]["explains"]) == ("fired", [])
    text = "Figures are incomplete: a gateway has just started"
    assert (resolved.kind, resolved.document["data"]["explains"]) == ("resolved", [text])
    frozen_and_uncounted(frozen=False, after_s=REMAINS_S - 10)
    assert Delivery.objects.count() == 2
    frozen_and_uncounted(frozen=False, after_s=10)
    assert Delivery.objects.exclude(pk__in=(fired.pk, resolved.pk)).get().alert == Alert.objects.get(
        key="uncounted"
    )


@needs_postgres
def test_without_a_cause_an_alert_waits_a_moment_and_is_sent(production: str) -> None:
    receiver()
    now = timezone.now()
    open_alert("p99", now)
    assert round_at(now + timedelta(seconds=WAIT_S - 1)) == []
    assert round_at(now + timedelta(seconds=WAIT_S)) == [("p99", "fired")]
    open_alert("redis-down", now + timedelta(seconds=20))
    assert round_at(now + timedelta(seconds=20)) == [("redis-down", "fired")], "both are known"


@needs_postgres
def test_a_pending_cause_holds_a_message_back_until_it_fires_or_ends(production: str) -> None:
    receiver()
    now = timezone.now()
    open_alert("p99", now)
    pending = open_alert("redis-down", now, state=AlertState.PENDING)
    assert round_at(now + timedelta(seconds=60)) == []
    assert Alert.objects.get(key="p99").cause is None
    pending.delete()
    assert round_at(now + timedelta(seconds=65)) == [("p99", "fired")]


@needs_postgres
def test_an_explained_alert_that_becomes_worse_than_its_cause_is_sent(production: str) -> None:
    receiver()
    now = timezone.now()
    open_alert("redis-down", now, severity="warning")
    row = open_alert("p99", now, severity="warning")
    assert round_at(now) == [("redis-down", "fired")]
    Alert.objects.filter(pk=row.pk).update(severity="critical")
    assert round_at(now + timedelta(seconds=30)) == [("p99", "fired")]


@needs_postgres
def test_a_muted_cause_still_explains(production: str) -> None:
    receiver()
    now = timezone.now()
    add_mute(
        environment="production", values=MuteValues(rule="redis-down"), reason="Redis is replaced", actor=ADA
    )
    open_alert("redis-down", now)
    open_alert("p99", now)
    assert round_at(now + timedelta(seconds=60)) == []
    assert Alert.objects.get(key="p99").cause is not None


@needs_postgres
def test_a_cause_that_a_mute_of_pods_hides_explains_nothing(production: str) -> None:
    receiver()
    now = timezone.now()
    add_mute(environment="production", values=MuteValues(pod="dev-1"), reason="dev-1 is tested", actor=ADA)
    open_alert("local", now, pods=["dev-1"])
    open_alert("p99", now)
    assert round_at(now + timedelta(seconds=60)) == [("p99", "fired")]


def kinds() -> list[str]:
    return list(Delivery.objects.order_by("created_at").values_list("kind", flat=True))


def turn(refused_per_s: float, *, after_s: float) -> list[AlertEvent]:
    measure(refused_per_s)
    evaluate()
    let_pass(after_s)
    Alert.objects.exclude(flapping_since=None).update(changes=_earlier(after_s))
    measure(refused_per_s)
    return [news for _, news in evaluate()]


def _earlier(seconds: float) -> list[float]:
    row = Alert.objects.exclude(flapping_since=None).first()
    return [at - seconds for at in row.changes] if row is not None else []


def flap(refused_per_s: float = 5.0) -> None:
    """Fires and ends until it is due a fifth time."""
    for _ in range(MAX_CHANGES // 2):
        assert turn(refused_per_s, after_s=120) == [AlertEvent.FIRED]
        Delivery.objects.update(state="sent", attempts=1)
        assert turn(0.0, after_s=300) == [AlertEvent.RESOLVED]
    assert turn(refused_per_s, after_s=120) == [AlertEvent.FIRED]
    Delivery.objects.update(state="sent", attempts=1)


@needs_postgres
def test_an_alert_that_flaps_is_one_message_until_it_is_resolved(production: str) -> None:
    receiver(least_level=1)
    flap()
    usual = ["fired", "resolved"] * (MAX_CHANGES // 2)
    assert kinds() == [*usual, "flapping"]
    assert stored_alerts("production")["429"].flapping_since is not None
    for _ in range(3):
        assert turn(0.0, after_s=QUIET_S - 100) == [], "the usual time does not resolve it"
        for refused_per_s in (5.0, 1.0, 5.0):
            turn(refused_per_s, after_s=60)
    assert kinds() == [*usual, "flapping"]
    assert turn(0.0, after_s=QUIET_S) == [AlertEvent.RESOLVED]
    assert kinds() == [*usual, "flapping", "resolved"]
    assert turn(5.0, after_s=120) == [AlertEvent.FIRED]
    assert kinds()[-1] == "fired", "it was stable"


@needs_postgres
def test_the_first_critical_turn_of_an_alert_that_flaps_is_sent_and_escalates(production: str) -> None:
    receiver(least_level=1), receiver("boss", least_level=1, least_severity="critical")
    values = RouteValues(receivers=("pager", "boss"), escalations=((10, ("boss",)),))
    put_route(
        environment="production", name=DEFAULT, values=values, place=None, reason="who is on call", actor=ADA
    )
    flap(1.0)
    Alert.objects.update(escalations=[])
    for refused_per_s in (5.0, 1.0, 5.0, 1.0, 5.0):
        turn(refused_per_s, after_s=30)
    last = Delivery.objects.order_by("created_at", "receiver__name").exclude(kind="resolved")
    assert [(one.kind, one.receiver.name) for one in last][-3:] == [
        ("flapping", "pager"),
        ("fired", "boss"),
        ("worsened", "pager"),
    ]
    row = Alert.objects.exclude(state=AlertState.RESOLVED).get()
    assert [names for _, names in row.escalations] == [["boss"]]
    turn(5.0, after_s=QUIET_S)
    assert kinds()[-2:] == ["stable", "stable"]


@needs_postgres
def test_an_alert_that_flapped_and_fires_on_is_stable(production: str) -> None:
    receiver(least_level=1)
    flap()
    assert turn(5.0, after_s=QUIET_S - 60) == []
    assert kinds()[-1] == "flapping"
    turn(5.0, after_s=60)
    assert kinds()[-1] == "stable"
    turn(5.0, after_s=3_000)
    assert kinds()[-1] == "stable"
    row = Alert.objects.exclude(state=AlertState.RESOLVED).get()
    assert (row.flapping_since, row.changes) == (None, [])


@needs_postgres
def test_an_old_cause_is_forgotten_and_what_it_explained_is_not(production: str) -> None:
    receiver()
    now = timezone.now()
    cause = open_alert("redis-down", now)
    open_alert("p99", now)
    round_at(now)
    Alert.objects.filter(pk=cause.pk).update(state=AlertState.RESOLVED, resolved_at=now - timedelta(days=91))
    assert forget() == 1
    assert (Alert.objects.get().key, Alert.objects.get().cause_id) == ("p99", None)
    assert not Delivery.objects.exists()
