"""The notes after edits that make no revision: each has an Undo that brings back what was there before."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from shown import text_of, undo_of

from controlplane.accounts.models import SavedView
from controlplane.drills.models import Drill
from controlplane.policies.models import Environment, Runbook
from controlplane.schedules.models import Schedule

pytestmark = pytest.mark.django_db(transaction=True)

WHY = "CHG-4821 vendor maintenance"
PLAN = "tenants: {acme-retail: {tier: free}}"


def saved(client: Any, address: str, typed: dict[str, str]) -> tuple[str, dict[str, Any], str]:
    """The text after the edit, what its Undo sends, and to where."""
    html = client.post(address, typed, follow=True).content.decode()
    to = html.partition('<form class="undo"')[2].partition('action="')[2].partition('"')[0]
    return text_of(html), undo_of(html), to


def test_a_drill_ends(log_in: Any) -> None:
    ada = log_in("ada")
    typed = {"act": "begin", "kind": "slow", "minutes": "5", "who": "servers", "servers": "web-1"}
    text, undo, to = saved(ada, "/drills", typed | {"reason": WHY})
    assert "Drill started on web-1." in text
    ada.post(to, undo)
    assert Drill.objects.get().ended_at is not None


def test_a_freeze_ends_or_becomes_the_one_before(log_in: Any) -> None:
    ada = log_in("ada")

    def freeze(days: int, reason: str) -> tuple[dict[str, Any], str]:
        until = (timezone.now() + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M")
        _, undo, to = saved(ada, "/edit-freeze", {"until": until, "reason": reason})
        return undo, to

    undo, to = freeze(1, WHY)
    ada.post(to, undo)
    assert Environment.objects.get().frozen_until is None
    freeze(1, WHY)
    before = Environment.objects.get()
    undo, to = freeze(9, "the week of Christmas")
    ada.post(to, undo)
    after = Environment.objects.get()
    assert (after.frozen_until, after.frozen_reason) == (before.frozen_until, WHY)
    _, undo, to = saved(ada, "/edit-freeze", {"act": "end", "reason": WHY})
    ada.post(to, undo)
    assert Environment.objects.get().frozen_until == before.frozen_until


@pytest.mark.parametrize(
    ("address", "typed"),
    [
        ("/schedules", {"act": "new", "due_at": "{}", "plan": PLAN}),
        ("/edit/tier?key=pro", {"act": "save", "starts": "{}", "own.priority": "9"}),
    ],
)
def test_a_scheduled_change_is_cancelled(log_in: Any, address: str, typed: dict[str, str]) -> None:
    ada = log_in("ada")
    at = (timezone.now() + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    base = str(Environment.objects.get().revision)
    sent = {name: value.format(at) if value == "{}" else value for name, value in typed.items()}
    text, undo, to = saved(ada, address, sent | {"base": base, "reason": WHY})
    assert "is scheduled for" in text
    assert Schedule.objects.get().state == "waiting"
    ada.post(to, undo)
    assert Schedule.objects.get().state == "cancelled"


def test_a_view_is_deleted_renamed_and_there_again(log_in: Any) -> None:
    olga = log_in("olga")
    typed = {"act": "save", "name": "Free", "address": "/tenants?tier=free", "shared": "on"}
    _, undo, to = saved(olga, "/views", typed)
    olga.post(to, undo)
    assert not SavedView.objects.exists()
    saved(olga, "/views", typed)
    view = str(SavedView.objects.get().pk)
    _, undo, to = saved(olga, "/views", {"act": "change", "view": view, "name": "Paid"})
    olga.post(to, undo)
    row = SavedView.objects.get()
    assert (row.name, row.shared) == ("Free", True)
    _, undo, to = saved(olga, "/views", {"act": "delete", "view": view})
    olga.post(to, undo)
    row = SavedView.objects.get()
    assert (row.name, row.shared, row.page, row.query) == ("Free", True, "tenants", {"tier": "free"})


def test_a_runbook_has_its_text_again(log_in: Any) -> None:
    ada = log_in("ada")
    slug = "payment-provider-timeouts"
    row = Runbook.objects.get(slug=slug)
    title, version = row.title, row.version
    typed = {"act": "save", "title": "Other", "body": row.body, "version": str(version), "reason": WHY}
    _, undo, to = saved(ada, f"/runbooks/{slug}/edit", typed)
    assert Runbook.objects.get(slug=slug).title == "Other"
    text, again, _ = saved(ada, to, undo)
    assert Runbook.objects.get(slug=slug).title == title
    assert f"The text of revision {version} is saved" in text
    assert not again
    new = typed | {"slug": "new-one", "version": "0", "title": "New"}
    _, undo, to = saved(ada, "/runbooks/new", new)
    assert Runbook.objects.filter(slug="new-one").exists()
    ada.post(to, undo)
    assert not Runbook.objects.filter(slug="new-one").exists()


def test_an_undo_leaves_what_another_person_has_changed_meanwhile(log_in: Any) -> None:
    ada = log_in("ada")
    slug = "payment-provider-timeouts"
    row = Runbook.objects.get(slug=slug)
    typed = {"act": "save", "body": row.body, "reason": WHY}
    address = f"/runbooks/{slug}/edit"
    _, undo, to = saved(ada, address, typed | {"title": "Mine", "version": str(row.version)})
    saved(log_in("bob"), address, typed | {"title": "Theirs", "version": str(row.version + 1)})
    assert log_in("ada").post(to, undo).status_code == 409
    assert Runbook.objects.get(slug=slug).title == "Theirs"
