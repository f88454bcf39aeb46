"""The figure and the turns of an alert: kept over its whole episode, and bounded."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from controlplane.alerts import evaluator
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert
from controlplane.alerts.state.measured_points import (
    MAX_ALERTS,
    MAX_POINTS,
    MAX_TURNS,
    STEP_S,
    Point,
    Turn,
    drawn_first,
    figures_of,
    with_point,
    with_turn,
)
from controlplane.alerts.state.stored_alerts import open_alerts
from controlplane.fleet.models import Figures
from controlplane.status.status import status_of
from tests.controlplane.alerts.alert_facts import facts, figures, pod
from tests.controlplane.alerts.test_alert_evaluator import evaluate, let_pass, measure


@given(st.lists(st.floats(1.0, 4_000.0), max_size=400))
def test_points_are_bounded_and_cover_the_whole_episode(pauses: list[float]) -> None:
    points: list[Point] = []
    at = 1_000_000.0
    for number, pause in enumerate([0.0, *pauses]):
        at += pause
        points = with_point(points, at, number) or points
        assert len(points) <= MAX_POINTS
        assert points[0][0] == 1_000_000.0
        assert [one for one, _ in points] == sorted({one for one, _ in points})
    # The newest is never older than the step of so long an episode.
    assert at - points[-1][0] <= max(STEP_S, 2.1 * (at - 1_000_000.0) / MAX_POINTS)


def test_turns_keep_the_beginning_and_the_newest() -> None:
    turns: list[Turn] = []
    for at in range(1_000):
        turns = with_turn(turns, at, "firing" if at % 2 else "recovering")
    assert len(turns) == MAX_TURNS
    assert (turns[0][0], turns[-1][0]) == (0, 999)


def test_only_so_many_alerts_get_points_the_critical_ones_first() -> None:
    mild = [Alert(key=f"quota:{number}", severity="warning") for number in range(100)]
    found = drawn_first([*mild, Alert(key="429", severity="critical")])
    assert (found[0].key, len(found)) == ("429", MAX_ALERTS)


def test_a_figure_is_measured_also_below_its_threshold() -> None:
    calm = status_of(figures(requests_per_s=100, refused_per_s=0.1))
    assert figures_of(calm, {"429"}) == {"429": pytest.approx(0.001)}
    assert figures_of(calm, {"open:stripe", "no-such-rule"}) == {}
    alone = status_of(facts(pod(mode="local")))
    assert figures_of(alone, {"local"}) == {"local": 1.0}, "its value is endless, which cannot be drawn"


@pytest.mark.django_db
def test_an_alert_keeps_its_figure_and_its_turns_until_it_is_resolved(production: str) -> None:
    measure(5.0)
    evaluate()
    let_pass(120)
    evaluate()
    measure(0.1)
    evaluate()
    let_pass(300)
    evaluate()
    row = Alert.objects.get()
    assert row.state == AlertState.RESOLVED
    assert [state for _, state in row.turns] == ["pending", "firing", "recovering", "resolved"]
    assert [at for at, _ in row.turns] == sorted(at for at, _ in row.turns)
    # The test turns the clocks of rows, not those of points: others come only if 10 s pass.
    assert row.points[0][1] == pytest.approx(0.05)


@pytest.mark.django_db
def test_pages_do_not_read_the_points_each_second(production: str) -> None:
    measure(5.0)
    evaluate()
    [row] = open_alerts(production)
    assert {"points", "turns"} <= row.get_deferred_fields()


def stored_429(**fields: Any) -> Alert:
    at = timezone.now()
    usual: dict[str, Any] = {
        **{"environment": "production", "key": "429", "level": 1, "severity": "warning", "worst": "warning"},
        **{"state": AlertState.FIRING, "true_since": at, "level_since": at, "fired_at": at},
    }
    return Alert.objects.create(**usual | fields)


@pytest.mark.django_db
def test_an_evaluation_appends_a_point_every_ten_seconds_in_one_statement(production: str) -> None:
    row, start = stored_429(), 1_000_000.0
    for step in range(3):
        status = status_of(figures(requests_per_s=100, refused_per_s=1.0 + step))
        with CaptureQueriesContext(connection) as queries:
            evaluator._measure(status, [row], start + 10 * step)
            evaluator._measure(status, [row], start + 10 * step + 5)
        written = [one["sql"] for one in queries if one["sql"].startswith("UPDATE")]
        assert len(written) == 1, [one["sql"][:80] for one in queries]
    row.refresh_from_db()
    assert row.points == [[start + 10 * step, pytest.approx(0.01 + 0.01 * step)] for step in range(3)]
    for step in range(3, 400):
        evaluator._measure(status, [row], start + 10 * step)
        assert len(row.points) <= MAX_POINTS
    row.refresh_from_db()
    assert row.points[0][0] == start
    assert start + 3_990 - row.points[-1][0] < 8 * STEP_S


@pytest.mark.django_db
def test_what_is_not_measured_is_no_point(production: str) -> None:
    at = timezone.now()
    status = status_of(figures(requests_per_s=0.5, refused_per_s=0.0))
    rows = [stored_429(blind_since=at), Alert(key="429", severity="warning", idle_since=at)]
    evaluator._measure(status, rows, 1_000_000.0)
    assert [row.points for row in rows] == [[], []]


@pytest.mark.django_db
def test_an_evaluation_without_traffic_or_figures_appends_nothing(production: str) -> None:
    measure(5.0)
    evaluate()
    let_pass(120)
    evaluate()
    minute_ago = [[timezone.now().timestamp() - 60, 0.05]]
    Alert.objects.update(points=minute_ago)
    # Too little traffic to say anything.
    measure(0.0, requests_per_s=0.5)
    evaluate()
    Figures.objects.all().delete()
    evaluate()
    assert Alert.objects.get(key="429").points == minute_ago
    measure(5.0)
    evaluate()
    assert len(Alert.objects.get(key="429").points) == 2
