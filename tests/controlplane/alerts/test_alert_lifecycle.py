"""An alert fires once, is resolved once, and concludes nothing from missing figures. No database."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.alerts.lifecycle import (
    INTERVAL_S,
    LONGEST_PAUSE_S,
    NO_TRAFFIC_S,
    AlertEvent,
    AlertProgress,
    AlertState,
    advance,
)
from controlplane.alerts.rules.every import RULES, timing_of
from controlplane.alerts.rules.rule import Finding, Severity, Subject, Timing

TIMING = Timing(level=2, fires_after_s=20, resolves_after_s=30)


def finding(severity: Severity = "warning", **more: object) -> Finding:
    return Finding(
        key="lag",
        severity=severity,
        text="3 pods have old configuration",
        detail="",
        runbook="configuration-lag",
        subject=Subject(kind="servers"),
        **more,  # type: ignore[arg-type]
    )


class Story:
    """Evaluations one after the other, every 5 s unless a test says otherwise."""

    def __init__(self, timing: Timing = TIMING) -> None:
        self.timing, self.now = timing, 1_000.0
        self.known: AlertProgress | None = None
        self.news: list[AlertEvent] = []

    def see(
        self,
        found: Finding | None,
        *,
        after_s: float = INTERVAL_S,
        blind: bool = False,
        idle: bool = False,
    ) -> "Story":
        self.now += after_s
        self.known, news = advance(
            self.known, found, self.timing, self.now, blind=blind, idle=idle, passed_s=after_s
        )
        if self.known is not None and self.known.state is AlertState.RESOLVED:
            self.known = None
        if news is not None:
            self.news.append(news)
        return self

    def state(self) -> AlertState | None:
        return self.known.state if self.known else None


def test_an_alert_fires_when_it_lasted_and_is_resolved_when_it_stayed_away() -> None:
    story = Story()
    for _ in range(4):
        assert story.see(finding()).state() is AlertState.PENDING
    assert story.see(finding()).state() is AlertState.FIRING
    assert story.see(None).state() is AlertState.RECOVERING
    for _ in range(5):
        assert story.see(None).state() is AlertState.RECOVERING
    assert story.see(None).state() is None
    assert story.news == [AlertEvent.FIRED, AlertEvent.RESOLVED]


def test_a_condition_that_ends_early_never_fires() -> None:
    story = Story()
    story.see(finding()).see(finding()).see(None)
    assert story.known is None
    assert story.news == []


def test_a_condition_that_returns_is_the_same_alert() -> None:
    story = Story()
    for _ in range(6):
        story.see(finding())
    for _ in range(3):
        assert story.see(None).see(finding()).state() is AlertState.FIRING
    assert story.news == [AlertEvent.FIRED]
    assert story.known is not None
    assert story.known.true_since == 1_005.0


def test_a_beginning_that_the_status_shows_counts() -> None:
    assert Story().see(finding(since=900.0)).state() is AlertState.FIRING
    story = Story().see(finding(since=9_999.0))
    assert story.state() is AlertState.PENDING, "a pod's clock may be ahead"
    assert story.known is not None
    assert story.known.true_since == story.now


def test_a_warning_does_not_date_the_critical_level() -> None:
    harmless = finding(lasting_s=600.0)
    story = Story()
    for _ in range(30):
        story.see(harmless)
    assert story.state() is AlertState.PENDING
    assert story.see(finding("critical")).state() is AlertState.PENDING
    for _ in range(4):
        story.see(finding("critical"))
    assert story.state() is AlertState.FIRING
    assert story.news == [AlertEvent.FIRED]


def test_a_firing_warning_that_becomes_critical_is_news_once() -> None:
    story = Story(Timing(level=2, fires_after_s=0, resolves_after_s=30))
    for severity in ("warning", "critical", "critical", "warning", "warning", "critical"):
        story.see(finding("critical" if severity == "critical" else "warning"))
    assert story.news == [AlertEvent.FIRED, AlertEvent.WORSENED, AlertEvent.WORSENED]


def test_missing_figures_neither_fire_nor_resolve() -> None:
    pending = Story().see(finding())
    firing = Story()
    for _ in range(6):
        firing.see(finding())
    recovering = Story()
    for _ in range(6):
        recovering.see(finding())
    recovering.see(None)
    for story in (pending, firing, recovering):
        before, news = story.state(), list(story.news)
        for _ in range(100):
            story.see(None, blind=True)
        assert story.state() is before
        assert story.news == news
    assert pending.see(finding()).state() is AlertState.PENDING, "only 5 s were seen"
    assert recovering.see(None).state() is AlertState.RECOVERING


def fired() -> Story:
    story = Story()
    for _ in range(5):
        story.see(finding())
    assert story.state() is AlertState.FIRING
    return story


def test_without_traffic_an_alert_fires_on_for_ten_minutes_and_ends() -> None:
    story = fired()
    for _ in range(int(NO_TRAFFIC_S / INTERVAL_S)):
        assert story.see(None, idle=True).state() is AlertState.FIRING
    assert story.news == [AlertEvent.FIRED]
    assert story.see(None, idle=True).state() is None
    assert story.news == [AlertEvent.FIRED, AlertEvent.RESOLVED]


def test_when_traffic_returns_the_figures_decide_again() -> None:
    bad, good = fired(), fired()
    for story in (bad, good):
        for _ in range(100):
            story.see(None, idle=True)
    assert bad.see(finding()).state() is AlertState.FIRING
    for _ in range(100):
        assert bad.see(None, idle=True).state() is AlertState.FIRING, "the ten minutes begin again"
    assert bad.news == [AlertEvent.FIRED]
    assert good.see(None).state() is AlertState.RECOVERING
    # It has recovered with traffic: that it ends then does not make it doubtful.
    for _ in range(6):
        good.see(None, idle=True)
    assert good.news == [AlertEvent.FIRED, AlertEvent.RESOLVED]


def test_without_traffic_nothing_begins_and_what_is_pending_ends() -> None:
    assert Story().see(None, idle=True).known is None
    assert Story().see(finding()).see(None, idle=True).known is None


def test_time_without_evaluation_or_figures_is_no_time_without_traffic() -> None:
    story = fired().see(None, idle=True)
    story.see(None, idle=True, after_s=9_999)
    story.see(None, blind=True, after_s=10)
    for _ in range(int(NO_TRAFFIC_S / INTERVAL_S) - 1):
        assert story.see(None, idle=True).state() is AlertState.FIRING
    assert story.see(None, idle=True).state() is None


@pytest.mark.parametrize("pause_s", [LONGEST_PAUSE_S + 1, 86_400.0])
def test_time_without_evaluation_counts_for_nothing(pause_s: float) -> None:
    story = Story().see(finding()).see(finding(), after_s=pause_s)
    assert story.state() is AlertState.PENDING
    for _ in range(5):
        story.see(finding())
    assert story.state() is AlertState.FIRING
    story.see(None).see(None, after_s=pause_s)
    assert story.state() is AlertState.RECOVERING


_STEP = st.tuples(
    st.sampled_from(["true", "critical", "false", "blind", "idle"]),
    st.sampled_from([1.0, INTERVAL_S, LONGEST_PAUSE_S, 100.0]),
)


@given(st.lists(_STEP, max_size=80), st.integers(0, 60), st.integers(1, 60))
def test_fired_and_resolved_alternate_and_neither_comes_too_early(
    steps: list[tuple[str, float]], for_s: int, keep_s: int
) -> None:
    """The oracle counts only time between two looks that saw the same thing."""
    story = Story(Timing(level=2, fires_after_s=for_s, resolves_after_s=keep_s))
    true_s = false_s = idle_s = None
    for seen, after_s in steps:
        counted = after_s if after_s <= LONGEST_PAUSE_S else 0.0
        news = len(story.news)
        found = (
            finding("critical" if seen == "critical" else "warning") if seen in ("true", "critical") else None
        )
        firing = story.state() is AlertState.FIRING
        story.see(found, after_s=after_s, blind=seen == "blind", idle=seen == "idle")
        if seen == "blind":
            assert len(story.news) == news
            continue
        if found is not None:
            true_s, false_s, idle_s = (0.0 if true_s is None else true_s + counted), None, None
        elif seen == "idle" and firing:
            true_s, idle_s = None, 0.0 if idle_s is None else idle_s + counted
        else:
            idle_s = None
            false_s, true_s = (0.0 if false_s is None else false_s + counted), None
        added = story.news[news:]
        if AlertEvent.FIRED in added:
            assert true_s is not None
            assert true_s >= for_s
        if AlertEvent.RESOLVED in added:
            assert (false_s or 0.0) >= keep_s or (idle_s or 0.0) >= NO_TRAFFIC_S
        if story.known is None and found is not None:
            pytest.fail("a true condition has no alert")
    changes = [one for one in story.news if one is not AlertEvent.WORSENED]
    pairs, firing = divmod(len(changes), 2)
    assert changes == [AlertEvent.FIRED, AlertEvent.RESOLVED] * pairs + [AlertEvent.FIRED] * firing


def test_every_rule_has_a_timing() -> None:
    assert timing_of("open:payments-api") == timing_of("open")
    timings = [rule.timing for rule in RULES if rule.alerts]
    assert all(timing.fires_after_s >= 0 and timing.resolves_after_s > 0 for timing in timings)


def test_the_documentation_lists_the_rules_with_their_timings() -> None:
    expected = [
        f"| `{rule.key}` | {', '.join(rule.severities)} | {rule.timing.level} | {rule.timing.fires_after_s:g}"
        f" | {rule.timing.resolves_after_s:g} | "
        for rule in sorted(RULES, key=lambda rule: rule.key)
        if rule.alerts
    ]
    documented = (Path(__file__).resolve().parents[3] / "docs" / "alerts.md").read_text().splitlines()
    rows = [line for line in documented if line.startswith("| `")]
    assert [line for line, start in zip(rows, expected, strict=True) if not line.startswith(start)] == []


def test_every_rule_has_a_key_of_its_own_and_says_what_it_finds() -> None:
    assert len({rule.key for rule in RULES}) == len(RULES)
    assert len({rule.describes for rule in RULES}) == len(RULES)
