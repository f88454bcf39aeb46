"""The ticket of an override, as a link wherever the override is displayed; and the warning before its end."""

from datetime import UTC, datetime, timedelta

import pytest
from hub_drawing import draw
from test_incidents import CLOSED, NOW, picture
from test_override_form import PATH, TRIP, holds

from controlplane.audit.models import Entry
from controlplane.breakers.models import Override as Row
from controlplane.breakers.overrides import override_breaker
from controlplane.breakers.tickets import ticket_problem, ticket_url, ticket_words
from controlplane.status.facts import Override
from fuseboard.contract.words import OverrideMode
from tests.people import OLGA

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = "https://tickets.example.com/browse/OPS-4821"
LINK = f'<a href="{ADDRESS}" target="_blank" rel="noopener noreferrer"'


@pytest.fixture
def tracker(settings):
    settings.TICKET_URL = "https://tickets.example.com/browse/{key}"


def test_a_ticket_is_a_link_on_the_breaker_page_the_overview_and_the_audit(log_in, production):
    client = log_in("olga")
    assert client.post(PATH, TRIP | {"ticket": ADDRESS}).status_code == 302
    for page in (PATH, "/", "/audit"):
        assert LINK in client.get(page).content.decode(), page
    assert "tickets.example.com OPS-4821</a>" in client.get(PATH).content.decode()


def test_the_search_of_the_audit_finds_a_ticket(log_in, production):
    client = log_in("olga")
    client.post(PATH, TRIP | {"ticket": ADDRESS})
    assert LINK in client.get("/audit?q=OPS-4821").content.decode()
    assert LINK not in client.get("/audit?q=OPS-9999").content.decode()


def test_a_key_becomes_a_link_by_the_configured_address(log_in, production, tracker):
    client = log_in("olga")
    client.post(PATH, TRIP | {"ticket": "OPS-4821"})
    page = client.get(PATH).content.decode()
    assert LINK in page
    assert ">OPS-4821</a>" in page
    assert Entry.objects.get(action="breaker.held").after["override.ticket"] == "OPS-4821"


@pytest.mark.parametrize(
    "ticket",
    [
        "javascript:alert(1)",
        "ftp://tickets.example.com/1",
        "https://",
        "https://tickets.example.com/a b",
        "https://someone@evil.example.com/OPS-1",
        "https://tickets.example.com:999999/",
        "//tickets.example.com",
        "OPS-4821",
        "see the channel",
    ],
)
def test_what_is_not_a_ticket_is_refused_beside_its_field(log_in, production, ticket):
    answer = log_in("olga").post(PATH, TRIP | {"ticket": ticket})
    assert answer.status_code == 422
    assert answer.context["form"].errors["ticket"]
    assert holds() == []


def test_a_stored_text_that_is_not_an_address_never_becomes_a_link(settings):
    settings.TICKET_URL = ""
    assert ticket_url("javascript:alert(1)") == ""
    assert ticket_url("OPS-4821") == ""
    assert ticket_problem("OPS-4821").startswith("Enter the address")
    assert ticket_words("OPS-4821") == "OPS-4821"


def test_a_key_without_a_configured_address_is_shown_as_text(log_in, production, settings):
    settings.TICKET_URL = "https://tickets.example.com/{key}"
    client = log_in("olga")
    client.post(PATH, TRIP | {"ticket": "#4821"})
    settings.TICKET_URL = ""
    assert '<span class="quiet">ticket #4821</span>' in client.get(PATH).content.decode()


def test_an_extension_keeps_the_ticket_of_a_page_that_does_not_send_it(log_in, production):
    client = log_in("olga")
    client.post(PATH, TRIP | {"ticket": ADDRESS})
    client.post(PATH, {"act": "extend", "reason": "The vendor needs longer", "lasts": "60"})
    [override] = holds()
    assert override.ticket == ADDRESS
    client.post(PATH, {"act": "extend", "reason": "The vendor needs longer", "lasts": "60", "ticket": ""})
    [override] = holds()
    assert override.ticket == ""


def test_the_extension_form_begins_with_the_reason_and_the_ticket(log_in, production):
    client = log_in("olga")
    client.post(PATH, TRIP | {"ticket": ADDRESS})
    form = client.get(f"{PATH}?act=extend").context["form"]
    assert (form["reason"].value(), form["ticket"].value()) == (TRIP["reason"], ADDRESS)


@pytest.mark.parametrize(
    ("lasts_s", "left_s", "warned"),
    [(3600, 301, False), (3600, 299, True), (300, 200, False), (300, 149, True)],
)
def test_an_override_is_announced_5_minutes_before_its_end_or_in_the_last_half(lasts_s, left_s, warned):
    override = Override(
        mode="forced_open",
        reason="vendor is down",
        actor="olga",
        made_at=NOW + left_s - lasts_s,
        expires_at=NOW + left_s,
        revision=3,
    )
    assert bool(picture(view=CLOSED, override=override).ending) is warned


def test_every_page_warns_before_an_override_ends_with_a_link_to_extend(log_in, production, monkeypatch):
    override_breaker(
        environment="production",
        dependency="payments-api",
        mode=OverrideMode.FORCED_OPEN,
        reason="CHG-4821 vendor maintenance",
        expires_at=datetime.now(UTC) + timedelta(minutes=4),
        actor=OLGA,
    )
    Row.objects.update(created_at=datetime.now(UTC) - timedelta(minutes=30))
    draw(monkeypatch)
    for user, may in (("olga", True), ("vera", False)):
        client = log_in(user)
        for page in ("/", PATH, "/tenants"):
            text = client.get(page).content.decode()
            assert 'id="ending-payments-api"' in text, page
            extend = text[text.index('id="ending-payments-api"') :].partition("</p>")[0]
            assert ("act=extend" in extend) is may
