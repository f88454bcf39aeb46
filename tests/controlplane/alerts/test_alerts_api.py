"""Alerts by API: listed, acknowledged and given back."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert
from tests.controlplane.calling import API, problem, send, token_of

pytestmark = pytest.mark.django_db(transaction=True)


def alert(key: str, state: AlertState = AlertState.FIRING) -> Alert:
    began = timezone.now() - timedelta(minutes=5)
    return Alert.objects.create(
        environment="production",
        key=key,
        level=2,
        severity="critical",
        worst="critical",
        state=state,
        true_since=began,
        level_since=began,
        fired_at=began,
        resolved_at=timezone.now() if state is AlertState.RESOLVED else None,
        text=f"{key} fires",
        runbook="redis-unreachable",
        subject_kind="servers",
    )


def test_open_and_resolved_alerts_are_listed_apart(production: str) -> None:
    token = token_of("viewer")
    alert("local"), alert("p99", AlertState.RESOLVED)
    assert [row["key"] for row in send(token, "GET", f"{API}/alerts").json()] == ["local"]
    assert [row["key"] for row in send(token, "GET", f"{API}/alerts?state=resolved").json()] == ["p99"]
    problem(send(token, "GET", f"{API}/alerts?state=any"), 422)


def test_an_operator_acknowledges_and_gives_back(production: str) -> None:
    token, row = token_of("operator"), alert("local")
    taken = send(token, "POST", f"{API}/alerts/{row.pk}/acknowledge", {"note": "Called the vendor"}).json()
    assert (taken["note"], bool(taken["acknowledged_by"])) == ("Called the vendor", True)
    problem(send(token, "POST", f"{API}/alerts/{row.pk}/acknowledge", {}), 422)
    free = send(token, "POST", f"{API}/alerts/{row.pk}/release", {}).json()
    assert (free["acknowledged_by"], free["acknowledged_at"]) == ("", None)
    problem(send(token, "POST", f"{API}/alerts/{row.pk}/release", {}), 422)
    problem(send(token, "POST", f"{API}/alerts/{row.pk}/acknowledge", {"note": "x" * 501}), 422)


def test_an_acknowledgement_says_what_its_person_has_read(production: str) -> None:
    token, row = token_of("operator"), alert("local")
    path = f"{API}/alerts/{row.pk}/acknowledge"
    said = problem(send(token, "POST", path, {"severity": "warning"}), 422)
    assert "has just become critical" in str(said)
    problem(send(token, "POST", path, {"severity": "worst"}), 422)
    assert send(token, "POST", path, {"severity": "critical"}).json()["acknowledged_by"]


def test_an_answer_says_that_the_alert_is_muted(production: str) -> None:
    token, row = token_of("operator"), alert("local")
    mute = {"rule": "local", "minutes": 30, "reason": "the vendor maintains its database"}
    number = send(token, "POST", f"{API}/mutes", mute).json()["id"]
    for act in ("acknowledge", "release"):
        answer = send(token, "POST", f"{API}/alerts/{row.pk}/{act}", {}).json()
        assert answer["muted"]["mute"] == number


def test_an_acknowledged_alert_names_who_gets_it_next(production: str) -> None:
    token, row = token_of("operator"), alert("local")
    Alert.objects.update(escalations=[[1_777_900_331.0, ["boss"]]])
    taken = send(token, "POST", f"{API}/alerts/{row.pk}/acknowledge", {"note": "Called the vendor"}).json()
    assert taken["escalations"] == [{"at": "2026-05-04T13:12:11Z", "receivers": ["boss"]}]
    assert send(token, "GET", f"{API}/alerts").json()[0]["escalations"] == taken["escalations"]
