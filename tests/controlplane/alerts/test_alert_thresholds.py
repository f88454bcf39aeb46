"""Each signal over its thresholds and back, from recorded figures: level, severity, and each message once.

The rules, the states, and the messages are those of the worker, in Postgres. Time is virtual.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.alerts import evaluator
from controlplane.alerts.evaluator import evaluate_environment
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Evaluation
from controlplane.alerts.rules.every import timing_of
from controlplane.fleet.call_figures import CallFigures, SlotFigures
from controlplane.fleet.live import DependencyFigures, FleetFigures, RuleFigures, StoreFigures
from controlplane.status.facts import Dependency, Facts, Transition
from controlplane.status.watched import RedisServer, Spent, VendorAnswers, Watched
from tests.controlplane.alerts.alert_facts import NOW, OPEN, facts, pod
from tests.controlplane.alerts.delivery.test_alert_deliveries import receiver

pytestmark = pytest.mark.django_db(transaction=True)

WARNING, CRITICAL = "warning", "critical"
STEP_S = 10.0


def measured(**figures: Any) -> Facts:
    return facts(figures=FleetFigures(**{"gateways": 1, "requests_per_s": 1_000.0, **figures}))


def redis(**store: Any) -> Facts:
    usual = {"asked_per_s": 1_000.0, "p99_us": 400, "primaries": 1}
    return measured(store=StoreFigures(**{**usual, **store}))


def local(number: int, *, of: int = 20) -> tuple[Any, ...]:
    return tuple(pod(f"web-{n}", mode="local" if n < number else "shared") for n in range(of))


def calls(**figures: Any) -> Facts:
    return measured(protection={"payments-api": CallFigures(**{"first_calls_per_s": 20, **figures})})


def full(refused_per_s: float, queued: int = 0) -> Facts:
    slots = SlotFigures("standard", 17, 17, queued, full_per_s=refused_per_s)
    dependency = Dependency(name="payments-api", protection={"bulkhead": {"queues": [2, 3, 5]}})
    return replace(calls(tiers=(slots,), callers=2), dependencies=(dependency,))


def behind(seconds: float, now: float) -> Facts:
    return facts(pod(revision=6), pod("web-2"), revisions=((6, now - 9_000), (7, now - seconds)))


def was_open(minutes: float, now: float) -> Facts:
    moved = [(now - 60, "open", "closed"), (now - 60 - minutes * 60, "closed", "open")]
    transitions = [
        Transition(dependency="payments-api", at=at, before=before, after=after, cause="ratio")
        for at, before, after in moved
    ]
    return facts(transitions=tuple(transitions) if minutes else ())


def spent(cents: int, now: float) -> Facts:
    one = Spent(
        tenant="acme",
        dependency="",
        name="cost",
        spent=cents,
        limit=1_000,
        measure="cents",
        shadow=False,
        ends=now + 900,
    )
    return facts(watched=Watched(spent=(one,)))


def answered(too_many: int) -> Facts:
    some = measured(dependencies={"payments-api": DependencyFigures(calls_per_s=3.0)})
    answers = VendorAnswers(minutes=7, calls=1_000, too_many=too_many)
    return replace(some, watched=Watched(vendors={"payments-api": answers}))


def hot(is_hot: int, now: float) -> Facts:
    leased = (8_500.0, now) if is_hot else ()
    return measured(rules=[RuleFigures("acme", "minute", 9_000.0, 0, 0, *leased)])


def busy(ops_per_s: float, late: int = 0) -> Facts:
    replicas = [
        RedisServer(address=f"10.0.1.{n}:6379", role="replica", lag_s=11 if n < late else 0) for n in range(5)
    ]
    primary = RedisServer(address="10.0.0.1:6379", ops_per_s=ops_per_s, capacity_ops=100_000)
    return facts(redis_servers=(primary, *replicas))


@dataclass(frozen=True, kw_only=True)
class Signal:
    """One row of the table. ``None`` for a severity that it does not have."""

    key: str
    #: A recorded figure, and the moment -> what an evaluation reads then.
    facts: Callable[[Any, float], Facts]
    healthy: Any
    #: It begins no alert, and ends none.
    nearly: Any = None
    warning: Any = None
    critical: Any = None
    level: int
    #: The figure itself says that it has lasted for long enough.
    dated: bool = False


SIGNALS = (
    Signal(
        key="p99",
        facts=lambda us, _: redis(p99_us=us),
        healthy=890,
        nearly=990,
        warning=3_000,
        critical=5_100,
        level=2,
    ),
    Signal(
        key="redis-ops:10.0.0.1:6379",
        facts=lambda ops, _: busy(ops),
        healthy=71_000,
        nearly=79_000,
        warning=85_000,
        critical=91_000,
        level=2,
    ),
    Signal(
        key="check-errors",
        facts=lambda errors, _: redis(errors_per_s=errors),
        healthy=0.089,
        nearly=0.099,
        warning=0.5,
        critical=1.1,
        level=1,
    ),
    Signal(
        key="check-failures",
        facts=lambda errors, _: redis(errors_per_s=errors),
        healthy=8.9,
        nearly=9.9,
        critical=11.0,
        level=2,
    ),
    Signal(
        key="429",
        facts=lambda refused, _: measured(refused_per_s=refused),
        healthy=4.4,
        nearly=4.9,
        warning=10.0,
        critical=21.0,
        level=1,
    ),
    Signal(
        key="local",
        facts=lambda number, _: facts(*local(number)),
        healthy=0,
        warning=3,
        critical=4,
        level=2,
    ),
    Signal(key="all-local", facts=lambda number, _: facts(*local(number)), healthy=19, critical=20, level=3),
    Signal(key="lag", facts=behind, healthy=9, warning=12, critical=31, level=1, dated=True),
    Signal(
        key="open:payments-api",
        facts=lambda is_open, _: facts(pod(view=OPEN)) if is_open else facts(),
        healthy=0,
        critical=1,
        level=2,
    ),
    Signal(
        key="open-share:payments-api",
        facts=was_open,
        healthy=5,
        nearly=5.9,
        warning=7,
        critical=31,
        level=2,
    ),
    Signal(key="bulkhead:payments-api", facts=lambda rate, _: full(rate), healthy=0.0, warning=3.0, level=1),
    Signal(
        key="bulkhead-queue:payments-api",
        facts=lambda queued, _: full(0.0, queued),
        healthy=14,
        nearly=16,
        warning=17,
        level=1,
    ),
    Signal(
        key="retry-budget:payments-api",
        facts=lambda rate, _: calls(no_budget_per_s=rate),
        healthy=0.0,
        warning=4.0,
        level=1,
    ),
    Signal(
        key="vendor-429:payments-api",
        facts=lambda answers, _: answered(answers),
        healthy=9,
        nearly=10,
        warning=11,
        critical=101,
        level=1,
    ),
    Signal(key="hot-key:acme/minute", facts=hot, healthy=0, warning=1, level=2),
    Signal(key="quota:acme/cost", facts=spent, healthy=799, warning=800, critical=1_000, level=1),
    Signal(
        key="redis-node:10.0.1.0:6379",
        facts=lambda late, _: busy(0, late),
        healthy=0,
        warning=1,
        level=1,
    ),
    Signal(key="redis-nodes", facts=lambda late, _: busy(0, late), healthy=3, critical=4, level=2),
    Signal(
        key="redis-down",
        facts=lambda down, _: replace(redis(primaries_down=down), servers=local(20 * down)),
        healthy=0,
        critical=1,
        level=3,
    ),
    Signal(
        key="unlimited",
        facts=lambda shadows, _: facts(unlimited=bool(shadows)),
        healthy=0,
        critical=1,
        level=3,
    ),
)


class Recording:
    """Plays figures to the evaluator, at a time of its own."""

    def __init__(self, signal: Signal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.signal, self.now, self._figure = signal, NOW, signal.healthy
        self._patch = monkeypatch
        monkeypatch.setattr(evaluator, "read_facts", self._facts)

    def _facts(self, environment: str) -> Facts:
        return replace(
            self.signal.facts(self._figure, self.now), environment=environment, now=self.now, as_of=self.now
        )

    def see(self, figure: Any) -> "Recording":
        """The figure changes."""
        self._figure = figure
        return self._evaluate()

    def pass_s(self, seconds: float) -> "Recording":
        """The figure lasts, and the worker evaluates all the time."""
        ends = self.now + seconds
        while self.now < ends:
            self.now = min(self.now + STEP_S, ends)
            self._evaluate()
        return self

    def _evaluate(self) -> "Recording":
        self._patch.setattr(evaluator, "_NOW", f"SELECT {self.now!r}::float8")
        evaluate_environment("production")
        Evaluation.objects.update(at=datetime.fromtimestamp(self.now, UTC))
        return self

    @property
    def state(self) -> tuple[str, str] | None:
        """Of the alert that is not resolved."""
        row = Alert.objects.filter(key=self.signal.key).exclude(state="resolved").first()
        return (row.state, row.severity) if row is not None else None

    @property
    def messages(self) -> list[str]:
        sent = Delivery.objects.filter(alert__key=self.signal.key)
        sent.update(state=DeliveryState.SENT, attempts=1)
        return list(sent.order_by("alert", "place").values_list("kind", flat=True))


@pytest.fixture
def levels(production: str) -> Iterator[None]:
    receiver(least_level=1)
    yield
    Evaluation.objects.all().delete()


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.key.partition(":")[0])
def test_a_signal_over_its_threshold_and_back_is_each_message_once(
    signal: Signal, levels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing, played = timing_of(signal.key), Recording(signal, monkeypatch)
    first, severity = (signal.warning, WARNING) if signal.warning is not None else (signal.critical, CRITICAL)
    assert played.see(signal.healthy).pass_s(20).state is None
    if signal.nearly is not None:
        assert played.see(signal.nearly).pass_s(20).state is None
    played.see(first)
    if timing.fires_after_s and not signal.dated:
        assert played.pass_s(timing.fires_after_s - 1).state == ("pending", severity)
        # It begins again: what lasted before does not count.
        assert played.see(signal.healthy).state is None
        assert played.see(first).pass_s(timing.fires_after_s - 1).state == ("pending", severity)
        assert played.messages == []
        played.pass_s(1)
    assert played.state == ("firing", severity)
    # An alert that another one may explain waits for that.
    assert played.pass_s(20).messages == ["fired"]
    # Below the threshold for too short a time: the same alert, and no news.
    assert played.see(signal.healthy).pass_s(timing.resolves_after_s - 1).state == ("recovering", severity)
    assert played.see(first).state == ("firing", severity)
    expected = ["fired"]
    if severity == WARNING and signal.critical is not None:
        assert played.see(signal.critical).pass_s(20).state == ("firing", CRITICAL)
        assert played.see(signal.warning).pass_s(20).state == ("firing", WARNING)
        expected.append("worsened")
    assert played.messages == expected
    if signal.nearly is not None:
        # Below the threshold, but not below what ends the alert.
        assert played.see(signal.nearly).pass_s(2 * timing.resolves_after_s).state == ("firing", severity)
    played.see(signal.healthy).pass_s(timing.resolves_after_s - 1)
    assert played.messages == expected
    assert played.pass_s(1).state is None
    assert played.pass_s(20).messages == [*expected, "resolved"]
    [row] = Alert.objects.filter(key=signal.key)
    assert (row.level, row.resolved_why) == (signal.level, "cleared")
    assert row.level == timing.level


def test_a_lag_is_handled_automatically_before_a_person_hears_of_it(
    levels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    [lag] = [signal for signal in SIGNALS if signal.key == "lag"]
    played = Recording(lag, monkeypatch).see(lag.warning)
    assert played.messages == []
    assert Evaluation.objects.get().measured["refresh"]["times"] == 1
    played.pass_s(20)
    [message] = Delivery.objects.filter(alert__key="lag")
    assert "The configuration was sent to them again at" in message.document["data"]["detail"]


def test_every_signal_that_was_asked_for_is_driven() -> None:
    """Redis, checks, refusals, pods, configuration, breakers, protection, budgets: see docs/alerts.md."""
    assert {signal.key.partition(":")[0] for signal in SIGNALS} == {
        *("429", "all-local", "bulkhead", "bulkhead-queue", "check-errors", "check-failures", "hot-key"),
        *("lag", "local", "open", "open-share", "p99", "quota", "redis-down", "redis-node", "redis-nodes"),
        *("redis-ops", "retry-budget", "unlimited", "vendor-429"),
    }
