"""A budget of 10 dollars an hour: refused at 100 %, alerts at 80 and 100 %; the next hour ends both."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controlplane.alerts.lifecycle import AlertEvent
from controlplane.alerts.models import Alert
from controlplane.editing import edits
from controlplane.status import read_watched
from fuseboard import AgentSettings, blocking
from fuseboard.contract import keys
from fuseboard.contract.words import Algorithm, Period
from tests.controlplane.alerts.test_alert_evaluator import evaluate, let_pass, measure
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)


def zone() -> str:
    """One in which the present hour does not end during the test."""
    return "UTC" if 5 <= datetime.now(UTC).minute < 55 else "Asia/Kolkata"


@pytest.fixture
def agent(production: str, limits: Any, redis_url: str, tmp_path: Path) -> Iterator[blocking.Agent]:
    """A pod that has the budget of acme."""
    edits.set_tenant_quota(
        environment=production,
        tenant="acme",
        quota="spend",
        expected_version=None,
        reason="10 dollars an hour",
        actor=ADA,
        limit=1_000,
        measure="cents",
        algorithm=Algorithm.FIXED_WINDOW,
        period=Period.HOUR,
        time_zone=zone(),
        window_s=3_600,
    )
    with blocking.Agent(
        settings=AgentSettings(redis_url=redis_url, server="web-1", state_dir=tmp_path)
    ) as pod:
        yield pod


def spend(agent: blocking.Agent, cents: int) -> str:
    """Empty, or the limit that refuses."""
    decision = agent.admit_request("acme", costs={"cents": cents})
    return "" if decision.allowed else decision.rule


def state() -> tuple[str, str] | None:
    row = Alert.objects.filter(key="quota:acme/spend").exclude(state="resolved").first()
    return (row.state, row.severity) if row is not None else None


def test_a_budget_warns_at_80_percent_refuses_at_100_and_both_end_with_its_hour(
    agent: blocking.Agent, production: str, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_watched, "READ_AGAIN_S", 0.0)
    measure(0.0)
    assert spend(agent, 799) == ""
    assert evaluate() == []
    assert state() is None
    assert spend(agent, 1) == ""
    evaluate()
    let_pass(60)
    assert evaluate() == [("quota:acme/spend", AlertEvent.FIRED)]
    assert state() == ("firing", "warning")
    assert spend(agent, 200) == "", "a warning refuses nothing"
    assert evaluate() == [("quota:acme/spend", AlertEvent.WORSENED)]
    assert spend(agent, 1) == "spend"
    assert evaluate() == []
    key = keys.tenant_quota(production, "acme", "spend")
    assert int(limits.get(key).split()[1]) == 1_000
    limits.delete(key)  # it expires with its hour
    assert spend(agent, 100) == ""
    assert evaluate() == []
    assert state() == ("recovering", "critical")
    let_pass(120)
    assert evaluate() == [("quota:acme/spend", AlertEvent.RESOLVED)]
    [row] = Alert.objects.filter(key="quota:acme/spend")
    assert (row.level, row.runbook) == (1, "too-many-429s")
