"""The page of the weekly summary: its lines, where they lead, and what it shows without a summary."""

from datetime import date
from typing import Any

from shown import text_of

from controlplane.alerts.models import Delivery, Receiver
from controlplane.policies.models import Tier
from controlplane.weekly.models import WeeklySummary

LINE = {
    "name": "requests of tier pro",
    "found": "900 of 10,000 refused, 9 %",
    "suggestion": "Raise it to at least 150.",
    "opens": "tier",
    "key": "pro",
    "limit": "requests",
    "size": 150,
}
SECTION = {"title": "Limits that are too low", "known": "Of some tenants.", "nothing": "Nothing.", "more": 3}
PLAIN = {"suggestion": "", "limit": "", "size": None}


def summarized(begins: date, *lines: dict[str, Any]) -> None:
    sections = [SECTION | {"lines": list(lines)}]
    WeeklySummary.objects.create(environment="production", begins=begins, sections=sections)


def test_a_suggestion_leads_to_the_editor_with_the_size_filled_in(log_in: Any, production: str) -> None:
    tier = Tier.objects.filter(environment=production, quotas__name="requests").order_by("name")[0].name
    summarized(date(2026, 5, 4), LINE | {"key": tier})
    client = log_in("ada")
    page = client.get("/weekly-summary").content.decode()
    assert "900 of 10,000 refused, 9 %" in text_of(page)
    assert "3 more are not listed." in text_of(page)
    address = f"/edit/tier?key={tier}&amp;limit.requests.limit=150&amp;at=limit.requests.limit"
    assert f'href="{address}"' in page
    editor = client.get(address.replace("&amp;", "&")).content.decode()
    assert 'name="limit.requests.limit" value="150"' in editor


def test_things_lead_to_their_pages_and_a_caller_without_a_name_to_none(log_in: Any, production: str) -> None:
    things = (("tenant", "acme-retail"), ("tenant", ""), ("breaker", "payments-api"), ("alerts", "local"))
    lines = [{"name": key or "a caller", "found": "x", "opens": opens, "key": key} for opens, key in things]
    summarized(date(2026, 5, 4), *(line | PLAIN for line in lines))
    page = log_in("vera").get("/weekly-summary").content.decode()
    assert 'href="/tenant?key=acme-retail"' in page
    assert 'href="/breakers/payments-api"' in page
    assert "a caller" in text_of(page)


def test_weeks_are_selected_by_their_monday(log_in: Any, production: str) -> None:
    client = log_in("vera")
    empty = text_of(client.get("/weekly-summary").content.decode())
    assert "No week is summarized yet." in empty
    assert "makes the summary of last week within an hour" in empty
    assert "manage.py" not in empty
    assert client.get("/weekly-summary.md").status_code == 404
    summarized(date(2026, 4, 27))
    summarized(date(2026, 5, 4), LINE)
    assert "Nothing." in text_of(client.get("/weekly-summary?week=2026-04-27").content.decode())
    for wrong in ("2026-04-20", "may"):
        assert client.get(f"/weekly-summary?week={wrong}").status_code == 404
    answer = client.get("/weekly-summary.md?week=2026-05-04")
    assert answer["Content-Type"] == "text/markdown; charset=utf-8"
    assert "- **requests of tier pro**: 900 of 10,000 refused, 9 %. Raise it" in answer.content.decode()


def test_an_admin_previews_and_sends_it_and_a_viewer_cannot(log_in: Any, production: str) -> None:
    summarized(date(2026, 5, 4), LINE)
    ada = log_in("ada")
    assert "There is no receiver that can get it" in text_of(ada.get("/weekly-summary").content.decode())
    url = "https://hooks.example.com/x"
    Receiver.objects.create(environment=production, name="team", url=url, weekly=True)
    page = text_of(ada.get("/weekly-summary").content.decode())
    assert "Each Monday to team." in page
    assert "Week of 2026-05-04 in production" in page
    sent = ada.post("/weekly-summary?week=2026-05-04", {"receiver": "team"}, follow=True)
    assert "waits for the worker" in text_of(sent.content.decode())
    assert Delivery.objects.get().kind == "weekly"
    assert ada.post("/weekly-summary", {"receiver": "gone"}).status_code == 404
    vera = log_in("vera")
    assert "Send now" not in vera.get("/weekly-summary").content.decode()
    assert vera.post("/weekly-summary", {"receiver": "team"}).status_code == 403


def test_a_receiver_is_added_for_it_and_stopped(log_in: Any, production: str) -> None:
    ada, path = log_in("ada"), "/alerts/receivers"
    typed = {"name": "team", "url": "https://hooks.example.com/x", "least_level": "3", "weekly": "on"}
    why = {"least_severity": "critical", "reason": "the team reads it"}
    assert ada.post(path, {"act": "add", **typed, **why}).status_code == 200
    assert Receiver.objects.get().weekly
    ada.post(path, {"act": "no-weekly", "name": "team", **why})
    assert not Receiver.objects.get().weekly
    ada.post(path, {"act": "weekly", "name": "team", **why})
    assert Receiver.objects.get().weekly
