"""Who made a change: a person has an icon and a link, and what is no person is plain text, on every page."""

import re
from typing import Any

import pytest

from controlplane.audit.actor import FUSEBOARD, Actor
from controlplane.editing import edits
from tests.dashboard.shown import text_of
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)

WHY = "asked for by sales"
SEED = Actor(name="demo", role="admin", origin="command")
TOKEN = Actor(name="token of ci", role="admin", origin="api", person="ada", token="ab12")
LEFT = Actor(name="unknown-name", role="admin", origin="form")
PAGES = ("/changes", "/revisions", "/audit", "/breakers/payments-api/history")


def linked(page: str) -> set[str]:
    """The names with the icon and the link of a person."""
    found = re.findall(r'<a class="link with hum st-forced"[^>]*>(.*?)</a>', page, re.DOTALL)
    return {text_of(one).strip() for one in found}


@pytest.fixture
def changed(production: str) -> None:
    for number, actor in enumerate((ADA, SEED, TOKEN, LEFT, FUSEBOARD), start=1):
        edits.set_vendor_limit(
            environment=production,
            dependency="payments-api",
            name="contract",
            limit=100 * number,
            window_s=60,
            expected_version=None,
            reason=WHY,
            actor=actor,
        )


@pytest.mark.parametrize("path", PAGES)
def test_only_a_name_that_people_lists_is_a_person(log_in: Any, changed: None, path: str) -> None:
    """The actor that filled the demo had the link of a person in Changes, and was plain text in Audit."""
    page = log_in("ada").get(path).content.decode()
    assert linked(page) == {"ada"}
    for name in ("demo", "token of ci", "unknown-name", "fuseboard"):
        assert name in text_of(page)


def test_the_filters_of_the_audit_decide_as_the_rows_do(log_in: Any, changed: None) -> None:
    client = log_in("ada")
    people = text_of(client.get("/audit?by=people&q=sales").content.decode())
    programs = text_of(client.get("/audit?by=programs&q=sales").content.decode())
    for name in ("demo", "token of ci", "unknown-name"):
        assert name not in people
        assert name in programs
    assert linked(client.get("/audit?by=people&q=sales").content.decode()) == {"ada"}
    assert not linked(client.get("/audit?by=programs&q=sales").content.decode())
