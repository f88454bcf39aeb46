"""The page of routes: who gets an alert, and the warning when no receiver does."""

import re
from typing import Any

import pytest

from controlplane.alerts.models import Route
from controlplane.alerts.people.mute_edits import MuteValues, add_mute
from controlplane.audit.actor import Actor
from tests.controlplane.alerts.delivery.test_alert_deliveries import receiver
from tests.dashboard.shown import undo_of
from tests.dashboard.test_alerts_page import alert, text

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/alerts/routes"
NEW = {
    "act": "put",
    "name": "payments",
    "owner": "payments",
    "least_level": "2",
    "least_severity": "warning",
    "zone": "Europe/Berlin",
    "begins": "09:00",
    "ends": "17:30",
    "days": ["0", "4"],
    "receivers": ["chat"],
    "reason": "the team has a chat",
}


def test_an_admin_adds_changes_and_removes_a_route(log_in: Any) -> None:
    receiver("chat")
    ada = log_in("ada")
    page = ada.post(PATH, NEW, follow=True).content.decode()
    assert "Route payments was saved." in page
    assert "Mon, Fri 09:00\u201317:30 Europe/Berlin" in page
    page = ada.get(f"{PATH}?edit=payments").content.decode()
    assert "Change route payments" in page
    assert 'value="4" checked' in page
    ada.post(PATH, NEW | {"owner": "search", "place": "1"}, follow=True)
    assert Route.objects.get().owner == "search"
    page = ada.get(f"{PATH}?edit=default").content.decode()
    assert 'name="owner"' not in page, "the default matches everything"
    ada.post(PATH, {"act": "put", "name": "default", "receivers": ["chat"], "reason": NEW["reason"]})
    assert Route.objects.get(name="default").steps == [[0, ["chat"]]]
    ada.post(PATH, {"act": "remove", "name": "payments", "reason": NEW["reason"]})
    assert list(Route.objects.values_list("name", flat=True)) == ["default"]


def test_the_form_of_a_route_asks_when_who_and_how(log_in: Any) -> None:
    page = log_in("ada").get(PATH).content.decode()
    parts = [
        "name",
        "place",
        "When: ",
        "least_level",
        "owner",
        "begins",
        "zone",
        "days",
        "Who: ",
        "How: ",
        "after_0",
    ]
    found = [page.index(part if part.endswith(" ") else f'name="{part}"') for part in parts]
    assert found == sorted(found)
    default = log_in("ada").get(f"{PATH}?edit=default").content.decode()
    assert "When: " not in default, "the default matches every alert at all times"


def test_the_notice_of_an_edit_waits_for_a_page_that_a_person_reads(log_in: Any) -> None:
    receiver("chat")
    ada = log_in("ada")
    ada.post(PATH, NEW)
    for unread in ("/favicon.ico", f"{PATH}?csv=h-r", "/alerts/999999"):
        ada.get(unread)
    assert "Route payments was saved." in ada.get(PATH).content.decode()
    assert "Route payments was saved." not in ada.get(PATH).content.decode()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("name", "My Route", "Use 1 to 64 letters, digits"),
        ("zone", "Mars", "name of a time zone"),
        ("days", [""], "Choose days from"),
        ("days", ["12"], "Choose days from"),
        ("begins", "9", "two different times"),
        ("receivers", [], "Choose one receiver or more"),
        ("place", "first", "Enter a whole number from 1 to 50."),
        ("place", "7", "from 1 to 1"),
        ("reason", "", "Say why"),
    ],
)
def test_wrong_input_is_explained_and_kept(log_in: Any, field: str, value: Any, says: str) -> None:
    receiver("chat")
    answer = log_in("ada").post(PATH, NEW | {field: value})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert says in page
    assert 'name="owner" value="payments"' in page
    # It was level 1 after any error, and the next save notified people of everything.
    assert '<option value="2" selected>' in page
    assert '<option value="1" selected>' not in page
    assert not Route.objects.exists()


def test_from_an_alert_to_its_receivers(log_in: Any) -> None:
    alert()
    olga = log_in("olga")
    page = text(olga)
    assert "No person is notified: an admin can add a receiver." in page, "she may not open receivers"
    linked = 'No person is notified: <a class="link" href="/alerts/receivers">add a receiver</a>.'
    assert linked in text(log_in("ada"))
    link = "/alerts/routes?rule=open&amp;severity=critical&amp;dependency=payments-api"
    assert link in page
    link = link.replace("&amp;", "&")
    assert "No receiver gets it." in olga.get(link).content.decode()
    receiver("chat")
    page = olga.get(link).content.decode()
    assert "Gets it at once." in page
    assert "No receiver gets it." not in page
    assert "No person is notified" not in text(olga)
    # Rules are sentences, and not their keys alone.
    assert re.search(r'<option value="blind">[^<]+ [^<]+</option>', page)
    assert ">blind</option>" not in page
    assert olga.get(f"{PATH}?rule=none").status_code == 422
    # Of a mute that is repeated, the period at this time is looked for.
    add_mute(
        environment="production",
        values=MuteValues(rule="open", weekly=True),
        reason=NEW["reason"],
        actor=Actor(name="ada", role="admin", origin="dashboard"),
    )
    assert olga.get(f"{PATH}?rule=open&at=2999-12-31T23:59").status_code == 200
    for at in ("soon", "9999-12-31T23:59", "0001-01-01T00:00"):
        assert olga.get(f"{PATH}?rule=open&at={at}").status_code == 422


def test_an_operator_reads_routes_and_changes_none(log_in: Any) -> None:
    receiver("chat")
    olga = log_in("olga")
    page = olga.get(PATH).content.decode()
    assert "every receiver" in page
    assert 'name="act"' not in page
    assert olga.post(PATH, NEW).status_code == 403
    assert log_in("vera").get(PATH).status_code == 403


def test_an_edit_of_a_route_is_undone(log_in: Any) -> None:
    receiver("chat")
    receiver("boss")
    ada = log_in("ada")
    page = ada.post(PATH, NEW | {"after_0": "15", "to_0": ["boss", "chat"]}, follow=True).content.decode()
    assert undo_of(page)["act"] == "remove"
    assert Route.objects.get().steps == [[0, ["chat"]], [15, ["boss", "chat"]]]
    page = ada.get(f"{PATH}?edit=payments").content.decode()
    assert 'name="to_0" value="boss" checked' in page
    page = ada.post(PATH, NEW | {"owner": "search", "days": ["6"]}, follow=True).content.decode()
    ada.post(PATH, undo_of(page))
    row = Route.objects.get()
    assert (row.owner, row.days, row.zone) == ("payments", [0, 4], "Europe/Berlin")
    assert row.steps == [[0, ["chat"]], [15, ["boss", "chat"]]]
    page = ada.post(PATH, {"act": "remove", "name": "payments", "reason": NEW["reason"]}, follow=True)
    ada.post(PATH, undo_of(page.content.decode()))
    assert Route.objects.get().steps == row.steps


def test_an_undo_replaces_no_later_edit(log_in: Any) -> None:
    """It brought back the values of before, over what another person had saved meanwhile."""
    receiver("chat")
    ada, bob = log_in("ada"), log_in("ada")
    added = undo_of(ada.post(PATH, NEW, follow=True).content.decode())
    changed = undo_of(ada.post(PATH, NEW | {"owner": "search"}, follow=True).content.decode())
    bob.post(PATH, NEW | {"owner": "billing"})
    for undo in (added, changed):
        answer = ada.post(PATH, undo)
        assert answer.status_code == 409
        assert "ada changed this route meanwhile. Nothing was saved." in answer.content.decode()
        assert Route.objects.get().owner == "billing"
    removed = ada.post(PATH, {"act": "remove", "name": "payments", "reason": NEW["reason"]}, follow=True)
    bob.post(PATH, NEW | {"owner": "search"})
    assert ada.post(PATH, undo_of(removed.content.decode())).status_code == 409
    assert Route.objects.get().owner == "search"


@pytest.mark.parametrize("wrong", [{"owner": "x" * 201}, {"zone": "x" * 65}, {"begins": "09:000"}])
def test_a_text_that_is_too_long_is_refused_and_not_cut(log_in: Any, wrong: dict[str, str]) -> None:
    receiver("chat")
    answer = log_in("ada").post(PATH, NEW | wrong)
    assert answer.status_code == 422
    assert "Use at most" in answer.content.decode()
    assert not Route.objects.exists()
