"""Mutes by API: planned, previewed, listed, and ended."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.controlplane.alerts.test_alerts_api import alert
from tests.controlplane.calling import API, problem, send, token_of

pytestmark = pytest.mark.django_db(transaction=True)
WHY = {"reason": "the vendor maintains its database"}


def test_an_operator_previews_mutes_and_ends(production: str) -> None:
    token, row = token_of("operator"), alert("local")
    found = send(token, "POST", f"{API}/mutes/preview", {"rule": "local"}).json()
    assert ([one["id"] for one in found["open"]], found["past"]) == ([row.pk], 0)
    made = send(token, "POST", f"{API}/mutes", {"rule": "local", "minutes": 30, **WHY})
    assert made.status_code == 201
    [listed] = send(token, "GET", f"{API}/mutes").json()
    assert listed == made.json()
    [shown] = send(token, "GET", f"{API}/alerts").json()
    assert shown["muted"] == {
        "mute": listed["id"],
        "by": listed["by"],
        "reason": WHY["reason"],
        "until": listed["ends_at"],
        "weekly": False,
    }
    assert send(token, "POST", f"{API}/mutes/{listed['id']}/end", WHY).status_code == 200
    assert send(token, "GET", f"{API}/mutes").json() == []
    assert send(token, "GET", f"{API}/alerts").json()[0]["muted"] is None
    problem(send(token, "POST", f"{API}/mutes/{listed['id']}/end", WHY), 404)


def test_one_period_of_a_weekly_mute_is_ended(production: str) -> None:
    token = token_of("operator")
    alert("local")
    made = send(token, "POST", f"{API}/mutes", {"rule": "local", "weekly": True, **WHY}).json()
    assert send(token, "GET", f"{API}/alerts").json()[0]["muted"]["weekly"] is True
    path = f"{API}/mutes/{made['id']}/end"
    ended = send(token, "POST", path, {"only_period": True, **WHY}).json()
    assert (ended["active_until"], ended["skipped_until"]) == (None, made["ends_at"])
    assert send(token, "GET", f"{API}/alerts").json()[0]["muted"] is None
    assert [row["id"] for row in send(token, "GET", f"{API}/mutes").json()] == [made["id"]]
    problem(send(token, "POST", path, {"only_period": True, **WHY}), 422)
    assert send(token, "POST", path, WHY).status_code == 200
    assert send(token, "GET", f"{API}/mutes").json() == []


def test_a_maintenance_window_is_planned(production: str) -> None:
    token = token_of("operator")
    starts = (timezone.now() + timedelta(days=2)).isoformat()
    values = {"pod": "web-*", "starts_at": starts, "minutes": 90, "weekly": True, **WHY}
    made = send(token, "POST", f"{API}/mutes", values).json()
    assert (made["weekly"], made["active_until"]) == (True, None)
    problem(send(token, "POST", f"{API}/mutes", {**WHY}), 422)
    problem(send(token, "POST", f"{API}/mutes", {"rule": "lag", "minutes": "60", **WHY}), 422)
