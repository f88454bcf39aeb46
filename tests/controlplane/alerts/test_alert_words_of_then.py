"""The words of an alert when it began and when it fired: they stay, while its text follows the figures."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.alerts.incidents.follow import retitle
from controlplane.alerts.lifecycle import AlertProgress, AlertState
from controlplane.alerts.models import Alert
from controlplane.alerts.rules.rule import Finding, Severity, Subject
from controlplane.alerts.state.progress import CAUSE_ARRIVES_S, fields_after
from tests.dashboard.test_incident_pages import incident

BEGAN = 1_700_000_000.0


def found(text: str, detail: str = "") -> Finding:
    return Finding(
        key="429",
        severity="warning",
        text=text,
        detail=detail,
        runbook="too-many-429s",
        subject=Subject(kind="tenants"),
    )


def after(row: Alert, state: AlertState, finding: Finding, later_s: float) -> dict[str, Any]:
    progress = AlertProgress(state=state, severity="warning", true_since=BEGAN, level_since=BEGAN)
    fields = fields_after(row, progress, finding, 1, BEGAN + later_s)
    for name, value in fields.items():
        setattr(row, name, value)
    return fields


def test_the_words_of_the_beginning_and_of_the_firing_stay() -> None:
    row = Alert(environment="production", key="429")
    after(row, AlertState.PENDING, found("9 % of requests are refused", "9 of 100/s."), 0)
    after(row, AlertState.FIRING, found("12 % of requests are refused", "12 of 100/s."), 120)
    after(row, AlertState.FIRING, found("2 % of requests are refused", "2 of 100/s."), 300)
    assert (row.text, row.detail) == ("2 % of requests are refused", "2 of 100/s.")
    assert (row.begun_text, row.begun_detail) == ("9 % of requests are refused", "9 of 100/s.")
    assert row.fired_text == "12 % of requests are refused"
    assert row.fired_at == datetime.fromtimestamp(BEGAN + 120, UTC)


def test_the_cause_of_a_beginning_may_arrive_some_seconds_later() -> None:
    row = Alert(environment="production", key="open:stripe")
    after(row, AlertState.FIRING, found("stripe is open", "Its cause is not known yet."), 0)
    after(row, AlertState.FIRING, found("stripe is open", "5 failures in a row."), 5)
    after(
        row,
        AlertState.FIRING,
        found("stripe is open", "5 failures in a row; 1 failed probe."),
        CAUSE_ARRIVES_S + 1,
    )
    assert row.begun_detail == "5 failures in a row."


def test_the_words_of_the_worst_severity_agree_with_it() -> None:
    """An incident was critical with the figure of a warning: "Redis p99 is 15.3 ms", critical above 20."""
    row = Alert(environment="production", key="p99")

    def evaluated(milliseconds: float, severity: Severity, later_s: float) -> None:
        finding = replace(found(f"Redis p99 is {milliseconds} ms"), severity=severity)
        progress = AlertProgress(
            state=AlertState.FIRING, severity=severity, true_since=BEGAN, level_since=BEGAN
        )
        for name, value in fields_after(row, progress, finding, 2, BEGAN + later_s).items():
            setattr(row, name, value)

    evaluated(12.3, "warning", 0)
    assert row.worst_text == "Redis p99 is 12.3 ms"
    evaluated(32.0, "critical", 60)
    evaluated(15.3, "warning", 120)
    evaluated(40.0, "critical", 180)
    assert (row.text, row.worst_text) == ("Redis p99 is 40.0 ms", "Redis p99 is 32.0 ms")


@pytest.mark.django_db
def test_an_incident_takes_the_worst_words_of_the_alert_that_named_it() -> None:
    """Its title kept the first figure."""
    opened = incident("p99", text="Redis p99 is 12.3 ms")
    row = Alert.objects.select_related("incident").get()
    row.worst_text = "Redis p99 is 32.0 ms"
    retitle(row, "a text of another alert")
    opened.refresh_from_db()
    assert opened.title == "Redis p99 is 12.3 ms"
    retitle(row, "Redis p99 is 12.3 ms")
    opened.refresh_from_db()
    assert opened.title == "Redis p99 is 32.0 ms"
