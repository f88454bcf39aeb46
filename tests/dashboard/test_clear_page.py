"""Clearing a counter has one name on every page, and looks like what it is: it cannot be undone."""

from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.errors import OTHERS_EDIT
from tests.controlplane.repricing.books import WHY, someone_corrects
from tests.dashboard.shown import text_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_button_that_clears_a_counter_is_red_and_has_one_name(log_in: Any, production: str) -> None:
    client = log_in("olga")
    form = client.get("/limits/clear?tenant=acme-retail&limit=requests").content.decode()
    assert '<button class="btn risk big" type="submit">Clear counter</button>' in form
    assert "0.1.0" not in text_of(form.partition("<main")[2]), "no pod of this version runs any more"
    assert "Clear counter of requests" in text_of(client.get("/tenant?key=acme-retail").content.decode())
    assert ">Clear counter</a>" in client.get("/limits").content.decode()


def test_the_form_says_what_each_field_is_for_and_leads_back(log_in: Any, production: str) -> None:
    """ "empty: of a budget" was a riddle, and names of budgets and dependencies were typed."""
    client = log_in("olga")
    html = client.get("/limits/clear?dependency=payments-api&limit=contract").content.decode()
    assert '<option value="payments-api" selected>payments-api</option>' in html
    assert '<option value="">Incoming requests</option>' in html
    assert '<option value="" selected>None: the limit</option>' in html
    assert "empty: of a" not in html
    assert '<a class="btn big" href="/breakers/payments-api">Discard</a>' in html
    html = client.get("/limits/clear?tenant=acme-retail&limit=requests").content.decode()
    assert '<a class="btn big" href="/tenant?key=acme-retail">Discard</a>' in html
    for gone in ("a/b", "no such"):
        html = client.get("/limits/clear", {"budget": gone, "dependency": gone}).content.decode()
        assert '<a class="btn big" href="/limits">Discard</a>' in html, gone


def test_a_clear_that_waits_for_another_edit_is_refused_in_words(log_in: Any, production: str) -> None:
    """It was the page of a Postgres that is lost, and not known whether the counter was cleared."""
    owner = {"dependency": "payments-api"}
    edits.set_budget(budget="calls", amount=5, period="day", expected_version=0, **owner, **WHY)
    client = log_in("olga")
    with someone_corrects():
        answer = client.post("/limits/clear", {"budget": "calls", "reason": "ticket 4711"})
    assert answer.status_code == 409
    assert OTHERS_EDIT in text_of(answer.content.decode())
