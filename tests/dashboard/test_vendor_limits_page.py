"""*Vendor limits* on the page of a dependency."""

import re
from html import unescape
from typing import Any

import pytest
from django.db import OperationalError
from rows_everywhere import put_suggestions
from shown import text_of

from controlplane.fleet.models import Server
from controlplane.policies.models import Dependency, Environment, VendorLimit
from controlplane.suggestions.edits import look_for_suggestions
from controlplane.suggestions.models import Suggestion

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "/breakers/payments-api/limits"


def page(log_in: Any, name: str = "ada", address: str = ADDRESS) -> str:
    return str(log_in(name).get(address).content.decode())


def test_it_names_what_is_used_by_whom_in_one_row(log_in: Any) -> None:
    put_suggestions()
    text = text_of(page(log_in))
    assert "400 calls in 10 min: 18 refused by the vendor, 6 by limits here" in text
    assert "contract 0 of 700 900 calls per min 700 600 2 of 2 pods 40 2,400" in text
    assert text in text_of(page(log_in, address="/breakers/payments-api"))


def test_a_limit_that_follows_the_time_of_calls_shows_it(log_in: Any) -> None:
    put_suggestions()
    Environment.objects.update(tuning={"vendor_floor_percent": 10})
    for pod in Server.objects.exclude(seen=[]):
        pod.seen = [[*pod.seen[0], 3_100, 2_000]]
        pod.save()
    assert "900 calls per min 700 calls take 3,100 ms, at best 2,000 ms 600" in text_of(page(log_in))


def test_the_lowest_time_is_shown_while_no_call_ends(log_in: Any) -> None:
    put_suggestions()
    for pod in Server.objects.exclude(seen=[]):
        pod.seen = [[*pod.seen[0], 0, 2_000]]
        pod.save()
    text = text_of(page(log_in))
    assert "900 calls per min 700 at best 2,000 ms 600" in text


def test_a_shadow_does_not_follow(log_in: Any) -> None:
    put_suggestions()
    Environment.objects.update(tuning={"vendor_floor_percent": 10})
    for pod in Server.objects.exclude(seen=[]):
        pod.seen = [[*pod.seen[0][:3], 0, *pod.seen[0][4:]]]
        pod.save()
    assert "900 calls per min as configured 600" in text_of(page(log_in))
    VendorLimit.objects.update(shadow=True)
    assert "900 calls per min off 600" in text_of(page(log_in))


def test_slots_that_follow_the_vendor_can_be_adopted(log_in: Any) -> None:
    put_suggestions()
    VendorLimit.objects.update(algorithm="concurrency")
    # What is known of a rate says nothing of calls at once.
    assert "The vendor allows less" not in text_of(page(log_in))
    for pod in Server.objects.exclude(seen=[]):
        pod.seen[0][8] = 12
        pod.save()
    look_for_suggestions()
    html = page(log_in)
    assert "The vendor allows fewer calls at once than the limit \u201ccontract\u201d." in text_of(html)
    (form,) = re.findall(r'href="(/edit/dependency[?][^"]*limit.contract.limit=700[^"]*)"', html)
    assert "700" in log_in("ada").get(unescape(form)).content.decode()


def test_a_suggestion_has_its_evidence_and_buttons(log_in: Any) -> None:
    put_suggestions()
    html = page(log_in)
    text = text_of(html)
    assert "The vendor allows less than the limit \u201ccontract\u201d. In 1,000 answers to 2 pods" in text
    assert "Use 600 Follow Not this one" in text
    assert "/edit/environment?own.tuning.vendor_floor_percent=10" in html
    assert "The batch of the partner ends in May." in text
    form = log_in("ada").get("/edit/environment?own.tuning.vendor_floor_percent=10").content.decode()
    assert "Follow vendors down to" in text_of(form)


def test_follow_is_not_offered_where_limits_follow(log_in: Any) -> None:
    put_suggestions()
    Environment.objects.update(tuning={"vendor_floor_percent": 10})
    assert "Use 600 Not this one" in text_of(page(log_in))


def test_a_viewer_reads_and_cannot_change(log_in: Any) -> None:
    put_suggestions()
    text = text_of(page(log_in, "vera"))
    assert "The vendor allows less" in text
    assert "Use 600" not in text
    assert "Not this one" not in text


def test_without_a_limit_it_is_hidden_for_what_is_no_vendor(log_in: Any) -> None:
    Dependency.objects.update(kind="database")
    assert 'id="vendor" aria-labelledby="h-vl" hidden' in " ".join(page(log_in).split())


def test_an_unknown_dependency_has_none(log_in: Any) -> None:
    assert log_in("ada").get("/breakers/none/limits").status_code == 404


def test_without_postgres_the_rest_of_the_page_stays(log_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> None:
        raise OperationalError("no connection")

    monkeypatch.setattr("dashboard.live.vendor_limits.read_learned", down)
    assert "Postgres is unavailable" in text_of(page(log_in, address="/breakers/payments-api"))


def test_a_suggestion_is_declined_with_a_reason_once(log_in: Any) -> None:
    put_suggestions()
    client, address = log_in("ada"), "/breakers/payments-api/suggestions/contract/limit"
    assert client.post(address, {"reason": "no"}).status_code == 422
    assert client.post(address, {"reason": "The vendor raises it on Monday."}).status_code == 302
    assert Suggestion.objects.get(kind="limit").declined_reason == "The vendor raises it on Monday."
    assert client.get(address).status_code == 404
