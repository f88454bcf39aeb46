"""Runbooks are written on a page: preview, conflicts, revisions, and the text of a new release."""

from html import unescape
from typing import Any

import pytest
from fleet_rows import put_server

from controlplane.accounts.models import User
from controlplane.audit.models import Entry
from controlplane.editing.edits import runbooks
from controlplane.policies import runbook_texts
from controlplane.policies.models import Runbook, RunbookRevision
from controlplane.runbooks.shipped import Text, shipped
from dashboard.views.runbooks.text_difference import MAX_LINES, difference_of
from tests.controlplane.accounts.permission_lists import RUNBOOK
from tests.dashboard.test_incident_pages import text

pytestmark = pytest.mark.django_db(transaction=True)
BOOK = "/runbooks/redis-slow"


def typed(words: str, version: int = 0, **more: str) -> dict[str, str]:
    body = RUNBOOK.replace("Wait.", words).replace("\n", "\r\n")
    return {"title": "Slow", "body": body, "version": str(version), "reason": "for a test"} | more


def test_an_admin_edits_a_runbook_and_everyone_reads_it(log_in: Any) -> None:
    ada = log_in("ada")
    form = text(ada, f"{BOOK}/edit")
    assert "## Escalation" in form
    assert 'name="version" value="0"' in form
    answer = ada.post(f"{BOOK}/edit", typed("Look at **it**."))
    assert (answer.status_code, answer["location"]) == (302, BOOK)
    page = text(log_in("vera"), BOOK)
    assert "Look at <strong>it</strong>." in page
    assert "by ada on" in page
    assert f'href="{BOOK}/edit"' not in page
    assert Entry.objects.get(action="runbook.replaced", target_name="redis-slow").actor == "ada"
    assert "edited" in text(log_in("vera"), "/runbooks")


def test_the_preview_draws_what_is_typed_and_names_what_is_wrong(log_in: Any) -> None:
    put_server("web-1")
    ada = log_in("ada")
    page = text(ada, "/runbooks/new")
    assert 'hx-post="/runbooks/new/preview"' in page
    asked = typed('See {{ value "pods_live" }}.\n\n```action reset-breaker\n```\n\n<script>x</script>')
    preview = ada.post("/runbooks/new/preview", asked).content.decode()
    assert 'data-value="pods_live"' in preview
    assert '<span class="btn big">Reset</span>' in preview, "a click must not leave the form"
    assert "&lt;script&gt;" in preview
    assert "<form" not in preview
    wrong = ada.post("/runbooks/new/preview", {"title": "x", "body": "```action drop\n```"})
    assert "There is no action drop." in wrong.content.decode()
    assert "Add the section ## Impact." in wrong.content.decode()
    assert not Runbook.objects.filter(slug="new").exists()


def test_a_wrong_text_is_refused_and_kept_in_the_form(log_in: Any) -> None:
    ada = log_in("ada")
    answer = ada.post(f"{BOOK}/edit", {"title": "T", "body": "Mine.", "version": "0", "reason": "for a test"})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert "Add the section ## Symptoms." in page
    assert "Mine." in page
    assert ada.post(f"{BOOK}/edit", typed("x", reason="no")).status_code == 422
    assert ada.post(f"{BOOK}/edit", typed("x") | {"version": "x"}).status_code == 422
    assert ada.post(f"{BOOK}/edit", typed("Only looked at.", act="preview")).status_code == 200
    assert not Runbook.objects.filter(slug="redis-slow").exists()


def test_the_second_editor_sees_both_texts_and_decides(log_in: Any) -> None:
    bob = log_in("bob")
    User.objects.filter(username="bob").update(role="admin")
    bob.post(f"{BOOK}/edit", typed("Bob was first."))
    ada = log_in("ada")
    answer = ada.post(f"{BOOK}/edit", typed("Ada was second."))
    page = unescape(answer.content.decode())
    assert answer.status_code == 409
    assert "bob changed this runbook while you were editing" in page
    assert "<del>Bob was first.</del>" in page
    assert "<ins>Ada was second.</ins>" in page
    assert 'name="version" value="1"' in page
    assert ada.post(f"{BOOK}/edit", typed("Ada was second.", 1)).status_code == 302
    assert [row.by for row in RunbookRevision.objects.filter(runbook="redis-slow").order_by("number")] == [
        "",
        "bob",
        "ada",
    ]


def test_a_new_runbook_is_written_for_a_dependency_and_chosen(log_in: Any) -> None:
    ada = log_in("ada")
    answer = ada.post("/runbooks/new", typed("Ask Maps.", slug="maps"))
    assert answer["location"] == "/runbooks/maps"
    assert ada.post("/runbooks/new", typed("Again.", slug="maps")).status_code == 422
    assert ada.post("/runbooks/new", typed("Odd.", slug="a b")).status_code == 422
    form = text(ada, "/edit/dependency?key=search")
    assert '<option value="maps">Slow</option>' in form
    assert '<option value="hot-key">' in form, "a shipped one can be chosen too"
    saved = {"base": _base(form), "own.runbook": "hot-key", "reason": "for a test"}
    named = {part.split('"')[0] for part in form.split('name="')[1:] if "runbook" in part.split('"')[0]}
    assert len(named) == 1
    saved[named.pop()] = saved.pop("own.runbook")
    assert ada.post("/edit/dependency?key=search", saved).status_code == 302
    page = text(ada, "/breakers/search")
    assert shipped()["hot-key"].title in page
    assert 'href="/breakers/search"' in text(ada, "/runbooks/hot-key")


def test_revisions_are_compared_and_restored(log_in: Any) -> None:
    ada = log_in("ada")
    for version, words in enumerate(("First.", "Second.")):
        ada.post(f"{BOOK}/edit", typed(words, version))
    page = text(ada, f"{BOOK}/revisions?revision=2")
    assert "<del>First.</del>" in page
    assert "<ins>Second.</ins>" in page
    assert "Restore revision" not in page, "it is the present one"
    page = text(ada, f"{BOOK}/revisions?revision=1")
    assert "Restore revision 1" in page
    for odd in ("x", "9" * 30, "-1", "77"):
        assert log_in("vera").get(f"{BOOK}/revisions?revision={odd}").status_code == 200
    ada = log_in("ada")
    act = {"act": "restore", "number": "1", "reason": "for a test"}
    late = ada.post(f"{BOOK}/change", act | {"version": "1"})
    assert late.status_code == 409
    assert "ada changed this runbook" in late.content.decode()
    assert ada.post(f"{BOOK}/change", act | {"version": "2"})["location"] == BOOK
    assert "First." in text(ada, BOOK)
    assert (
        ada.post(f"{BOOK}/change", {"act": "none", "version": "3", "reason": "for a test"}).status_code == 422
    )


def test_a_new_text_of_the_release_is_offered_and_nothing_is_replaced(
    log_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = log_in("ada")
    ada.post(f"{BOOK}/edit", typed("Ours."))
    theirs = Text("Redis is slow", RUNBOOK.replace("Wait.", "Theirs."))
    for module in (runbooks, runbook_texts):
        monkeypatch.setattr(module, "shipped", lambda: shipped() | {"redis-slow": theirs})
    page = text(ada, BOOK)
    assert "The release has a new text of this runbook" in page
    assert "Ours." in page
    assert "the release has a new text" in text(ada, "/runbooks")
    page = text(ada, f"{BOOK}/revisions")
    assert "What the release changed since the text was edited" in page
    assert "<ins>Theirs.</ins>" in page
    act = {"version": "1", "reason": "for a test"}
    ada.post(f"{BOOK}/change", act | {"act": "keep"})
    assert "The release has a new text" not in text(ada, BOOK)
    ada.post(f"{BOOK}/change", act | {"act": "use"})
    assert "Theirs." in text(ada, BOOK)


def test_an_own_runbook_is_removed(log_in: Any) -> None:
    ada = log_in("ada")
    ada.post("/runbooks/new", typed("Ask Maps.", slug="maps"))
    assert "Remove maps" in text(ada, "/runbooks/maps/revisions")
    gone = ada.post("/runbooks/maps/change", {"act": "remove", "version": "1", "reason": "for a test"})
    assert gone["location"] == "/runbooks"
    assert ada.get("/runbooks/maps").status_code == 404
    used = text(ada, "/runbooks/payment-provider-timeouts/revisions")
    assert "Remove payment" not in used


def test_an_operator_reads_revisions_and_edits_nothing(log_in: Any) -> None:
    olga = log_in("olga")
    assert olga.get(f"{BOOK}/edit").status_code == 403
    assert olga.post(f"{BOOK}/change", {"act": "use", "version": "0"}).status_code == 403
    assert "never edited" in text(olga, f"{BOOK}/revisions")
    assert "New runbook" not in text(olga, "/runbooks")


def test_two_texts_are_compared_line_by_line() -> None:
    before = "\n".join(f"line {number}" for number in range(30))
    found = difference_of(before, before.replace("line 3\n", "").replace("line 20", "line twenty"))
    kinds = [line.kind for line in found.lines]
    assert (found.added, found.removed) == (1, 2)
    assert kinds.count("gap") == 1
    assert kinds.count("same") == 12, "three lines on each side"
    assert difference_of("a", "a").lines == ()
    assert difference_of("x\n" * MAX_LINES, "y").too_long


def _base(form: str) -> str:
    return form.partition('name="base" value="')[2].partition('"')[0]
