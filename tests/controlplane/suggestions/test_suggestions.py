"""Suggestions are stored, declined with a reason, and come back when they change by 10 %."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.errors import InvalidEdit, NotFound
from controlplane.suggestions.edits import decline_suggestion, look_for_suggestions, present_suggestions
from controlplane.suggestions.models import Suggestion
from controlplane.suggestions.tasks import look
from tests.controlplane.calling import API, problem, send, token_of
from tests.controlplane.suggestions.vendor_rows import LIMIT, report, set_limit, suggest, version
from tests.people import ADA

WHY = "The vendor raises it on Monday."
pytestmark = pytest.mark.usefixtures("production")


def present() -> list[tuple[str, int, bool]]:
    return [(row.kind, row.number, row.is_declined) for row in present_suggestions("production", "openai")]


def decline(**values: Any) -> Suggestion:
    given = {"environment": "production", "dependency": "openai", "limit": "rate", "kind": "limit"}
    return decline_suggestion(**given | {"reason": WHY, "actor": ADA} | values)


def test_the_worker_suggests_the_number_that_pods_agree_on() -> None:
    set_limit()
    report()
    look()
    assert present() == [("limit", 600, False)]
    row = Suggestion.objects.get()
    assert row.evidence.startswith("In 300 answers to 3 pods since ")
    look()
    assert Suggestion.objects.get().first_at == row.first_at


def test_a_limit_that_was_changed_is_not_suggested_again() -> None:
    set_limit()
    suggest()
    set_limit(600)
    assert present() == []
    look()
    assert present() == []


def test_a_declined_suggestion_comes_back_when_its_number_changes_by_10_percent() -> None:
    set_limit()
    suggest()
    decline()
    for said, declined in ((600, True), (550, True), (540, False), (650, True), (660, False)):
        suggest(said)
        assert present() == [("limit", said, declined)], said
    entry = Entry.objects.get(action="suggestion.declined")
    assert (entry.actor, entry.target_name, entry.reason) == ("ada", "openai", WHY)
    assert entry.after["number"] == 600


def test_a_suggestion_is_declined_once_and_with_a_reason() -> None:
    set_limit()
    with pytest.raises(NotFound):
        decline()
    suggest()
    with pytest.raises(InvalidEdit, match="reason"):
        decline(reason="no")
    with pytest.raises(InvalidEdit, match="kind"):
        decline(kind="other")
    decline()
    with pytest.raises(InvalidEdit, match="declined already"):
        decline()


def test_a_suggestion_ends_an_hour_after_its_evidence_and_with_its_limit() -> None:
    set_limit()
    suggest()
    report(0)
    look_for_suggestions(timezone.now() + timedelta(minutes=59))
    assert present() == [("limit", 600, False)]
    look_for_suggestions(timezone.now() + timedelta(minutes=61))
    assert present() == []
    suggest()
    edits.remove_vendor_limit(**LIMIT, expected_version=version(), reason="not needed any more", actor=ADA)
    look_for_suggestions()
    assert not Suggestion.objects.exists()


def test_a_declined_suggestion_is_remembered_while_nothing_is_reported() -> None:
    set_limit()
    suggest()
    decline()
    report(0)
    look_for_suggestions(timezone.now() + timedelta(days=2))
    suggest()
    assert present() == [("limit", 600, True)]


def test_one_that_came_back_ends_an_hour_after_its_evidence_too() -> None:
    set_limit()
    suggest()
    decline()
    suggest(500)
    assert present() == [("limit", 500, False)]
    Suggestion.objects.update(last_at=timezone.now() - timedelta(minutes=61))
    report(0)
    look()
    assert present() == []
    # The number that was declined is still remembered.
    suggest()
    assert present() == [("limit", 600, True)]


def test_the_api_reads_and_declines() -> None:
    set_limit()
    suggest()
    token = token_of("admin")
    address = f"{API}/dependencies/openai/learned"
    found = send(token, "GET", address).json()
    assert (found["sent"], found["floor_percent"]) == (600, 0)
    [limit] = found["limits"]
    assert (limit["configured"], limit["stated"], limit["stated_by"], limit["left"]) == (900, 600, 3, 40)
    assert (limit["spent"], limit["followed"]) == (0, None)
    [suggestion] = found["suggestions"]
    assert (suggestion["kind"], suggestion["number"], suggestion["declined"]) == ("limit", 600, None)
    body = {"limit": "rate", "kind": "limit", "reason": WHY}
    declined = send(token, "POST", f"{address}/decline", body).json()["declined"]
    assert (declined["number"], declined["reason"]) == (600, WHY)
    assert problem(send(token, "POST", f"{address}/decline", body), 422)
    assert problem(send(token, "GET", f"{API}/dependencies/maps/learned"), 404)


def test_pods_that_follow_show_the_number_that_two_of_them_apply() -> None:
    set_limit()
    report(0, followed=500)
    token = token_of("viewer")
    [limit] = send(token, "GET", f"{API}/dependencies/openai/learned").json()["limits"]
    assert limit["followed"] == 500
    report(0, followed=1, pods=1)
    [limit] = send(token, "GET", f"{API}/dependencies/openai/learned").json()["limits"]
    assert limit["followed"] == 500
