"""Texts of runbooks: edited, in conflict, restored, and beside the text of a new release."""

from dataclasses import replace
from typing import Any

import pytest

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.edits import runbooks
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies import runbook_texts
from controlplane.policies.models import Dependency, Runbook, RunbookRevision
from controlplane.policies.runbook_texts import Origin, is_runbook, known_runbook, runbook_choices
from controlplane.runbooks.shipped import Text, shipped
from tests.controlplane.accounts.permission_lists import RUNBOOK
from tests.controlplane.calling import problem

pytestmark = pytest.mark.django_db(transaction=True)
WHY: dict[str, Any] = {"reason": "for a test"}
SLUG = "redis-slow"


@pytest.fixture
def by(ada: Any) -> dict[str, Any]:
    return {**WHY, "actor": ada}


def body(words: str) -> str:
    return RUNBOOK.replace("Wait.", words)


def save(by: dict[str, Any], words: str, *, slug: str = SLUG, expected: int | None = None) -> int:
    return edits.save_runbook(runbook=slug, title="Slow", body=body(words), expected_version=expected, **by)


def release(monkeypatch: pytest.MonkeyPatch, words: str) -> Text:
    """The release ships another text of the runbook."""
    text = Text("Redis is slow", body(words))
    for module in (runbooks, runbook_texts):
        monkeypatch.setattr(module, "shipped", lambda: shipped() | {SLUG: text})
    return text


def test_an_edit_replaces_the_shipped_text_and_keeps_it_as_a_revision(by: dict[str, Any]) -> None:
    assert save(by, "Look.", expected=0) == 1
    known = known_runbook(SLUG)
    assert known is not None
    assert (known.origin, known.version, known.text.title) == (Origin.EDITED, 1, "Slow")
    assert known.new_default is None
    before, now = RunbookRevision.objects.filter(runbook=SLUG).order_by("number")
    assert (before.number, before.shipped, before.by) == (0, True, "")
    assert before.body == shipped()[SLUG].body
    assert (now.number, now.shipped, now.by, now.reason) == (1, False, "ada", "for a test")
    entry = Entry.objects.get(action="runbook.replaced")
    assert (entry.target_name, entry.actor, entry.after["version"]) == (SLUG, "ada", 1)
    assert not Entry.objects.filter(action__startswith="sql.").exists()


def test_the_second_of_two_editors_is_refused_and_learns_what_changed(by: dict[str, Any], ada: Any) -> None:
    save(by | {"actor": replace(ada, name="olga")}, "Olga was first.", expected=0)
    with pytest.raises(EditConflict) as refused:
        save(by, "Ada was second.", expected=0)
    assert (refused.value.current_version, refused.value.by) == (1, "olga")
    assert "Olga was first." in refused.value.changed["body"]
    save(by, "Ada was second.", expected=1)
    assert [row.by for row in RunbookRevision.objects.order_by("number")] == ["", "olga", "ada"]


def test_two_people_cannot_create_the_same_runbook(by: dict[str, Any]) -> None:
    assert save(by, "First.", slug="maps", expected=0) == 1
    with pytest.raises(EditConflict):
        save(by, "Second.", slug="maps", expected=0)
    assert Entry.objects.filter(action="runbook.created").count() == 1
    with pytest.raises(NotFound):
        save(by, "Third.", slug="removed-meanwhile", expected=4)


def test_the_same_text_again_makes_no_revision(by: dict[str, Any]) -> None:
    text = shipped()[SLUG]
    assert edits.save_runbook(runbook=SLUG, title=text.title, body=text.body, **by) == 0
    assert save(by, "Look.") == save(by, "Look.") == 1
    windows = body("Look.").replace("\n", "\r\n")
    assert edits.save_runbook(runbook=SLUG, title="Slow", body=f"# Slow\r\n\r\n{windows}", **by) == 1
    assert RunbookRevision.objects.count() == 2


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"body": "Wait."}, "body", "Add the section ## Impact."),
        ({"body": body('{{ value "nothing" }}')}, "body", "There is no value nothing."),
        ({"body": body("```action drop\n```")}, "body", "There is no action drop."),
        ({"body": "x" * 100_001}, "body", "at most 100,000 characters"),
        ({"title": " "}, "title", "Enter a title."),
        ({"title": "Slow\x07"}, "title", "control characters"),
        ({"runbook": "new"}, "runbook", "Choose another name"),
        ({"runbook": "a b"}, "runbook", "Use 1 to 64 letters"),
        ({"reason": "x"}, "reason", "Say why"),
    ],
)
def test_a_wrong_text_is_refused_and_nothing_is_stored(
    by: dict[str, Any], given: dict[str, Any], field: str, message: str
) -> None:
    whole = {"runbook": SLUG, "title": "Slow", "body": RUNBOOK, **by, **given}
    with pytest.raises(InvalidEdit) as refused:
        edits.save_runbook(**whole)
    assert message in " ".join(refused.value.errors[field])
    assert not Runbook.objects.exists()
    assert not RunbookRevision.objects.exists()


def test_an_edited_text_stays_when_a_release_ships_another_one(
    by: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(by, "Ours.")
    theirs = release(monkeypatch, "Theirs.")
    known = known_runbook(SLUG)
    assert known is not None
    assert known.text.body == body("Ours.").strip() + "\n"
    assert known.new_default == theirs
    assert known.compared == shipped()[SLUG], "what the release changed can be shown"
    edits.keep_edited_runbook(runbook=SLUG, expected_version=1, **by)
    known = known_runbook(SLUG)
    assert known is not None
    assert (known.new_default, known.default, known.version) == (None, theirs, 1)
    assert edits.use_shipped_runbook(runbook=SLUG, expected_version=1, **by) == 2
    known = known_runbook(SLUG)
    assert known is not None
    assert (known.origin, known.text) == (Origin.SHIPPED, theirs)
    newest = release(monkeypatch, "Newer.")
    known = known_runbook(SLUG)
    assert known is not None
    assert known.text == newest, "it applies later releases again"


def test_a_runbook_that_only_a_dependency_uses_applies_the_text_of_each_release(
    production: str, by: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = {"environment": "production", "dependency": "openai", "title": "", "owner": ""}
    version = Dependency.objects.get(name="openai").version
    edits.describe_dependency(**describe, fallback_note="", runbook=SLUG, expected_version=version, **by)
    assert Dependency.objects.get(name="openai").runbook_id == SLUG
    theirs = release(monkeypatch, "Theirs.")
    known = known_runbook(SLUG)
    assert known is not None
    assert (known.text, known.origin, known.version) == (theirs, Origin.SHIPPED, 0)
    assert not Entry.objects.filter(action__startswith="sql.").exists()


def test_every_shipped_runbook_and_every_own_one_can_be_chosen(by: dict[str, Any]) -> None:
    save(by, "Look.", slug="maps")
    slugs = [slug for slug, _ in runbook_choices()]
    assert set(slugs) == {*shipped(), "maps"}
    assert is_runbook("maps")
    assert is_runbook(SLUG)
    assert not is_runbook("none")


def test_an_earlier_text_is_restored_as_a_new_revision(by: dict[str, Any]) -> None:
    save(by, "First.")
    save(by, "Second.")
    with pytest.raises(InvalidEdit, match="this text already"):
        edits.restore_runbook(runbook=SLUG, number=2, expected_version=2, **by)
    assert edits.restore_runbook(runbook=SLUG, number=1, expected_version=2, **by) == 3
    known = known_runbook(SLUG)
    assert known is not None
    assert "First." in known.text.body
    assert edits.restore_runbook(runbook=SLUG, number=0, expected_version=3, **by) == 4
    known = known_runbook(SLUG)
    assert known is not None
    assert known.origin is Origin.SHIPPED, "the text of the release: later releases apply too"
    with pytest.raises(NotFound):
        edits.restore_runbook(runbook=SLUG, number=99, expected_version=4, **by)
    RunbookRevision.objects.filter(number=1).update(body="Nothing.")
    with pytest.raises(InvalidEdit, match="Add the section"):
        edits.restore_runbook(runbook=SLUG, number=1, expected_version=4, **by)


def test_old_revisions_go_so_that_a_runbook_stays_small(
    by: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runbooks, "KEPT_REVISIONS", 3)
    for number in range(5):
        save(by, f"Text {number}.")
    assert list(RunbookRevision.objects.order_by("number").values_list("number", flat=True)) == [3, 4, 5]
    monkeypatch.setattr(runbooks, "MAX_RUNBOOKS", 1)
    with pytest.raises(InvalidEdit, match="Remove one first"):
        save(by, "Look.", slug="maps")


def test_an_own_runbook_is_removed_when_no_dependency_uses_it(production: str, by: dict[str, Any]) -> None:
    save(by, "Look.", slug="maps")
    row = Dependency.objects.get(name="openai")
    text = {"title": "", "owner": "", "fallback_note": "", "environment": "production", **by}
    edits.describe_dependency(dependency="openai", runbook="maps", expected_version=row.version, **text)
    with pytest.raises(InvalidEdit, match="Choose another runbook for openai in production first"):
        edits.remove_runbook(runbook="maps", expected_version=1, **by)
    edits.describe_dependency(dependency="openai", runbook=None, expected_version=row.version + 1, **text)
    edits.remove_runbook(runbook="maps", expected_version=1, **by)
    assert known_runbook("maps") is None
    assert not RunbookRevision.objects.exists()
    assert "Look." in Entry.objects.get(action="runbook.removed").before["body"]
    with pytest.raises(InvalidEdit, match="A built-in runbook stays"):
        edits.remove_runbook(runbook=SLUG, expected_version=0, **by)


def test_one_that_was_written_before_revisions_were_kept_loses_nothing(by: dict[str, Any]) -> None:
    Runbook.objects.create(slug=SLUG, title="Old", body="Old text.")
    save(by, "New.", expected=0)
    assert RunbookRevision.objects.get(number=0).body == "Old text."


def test_the_api_edits_compares_and_restores(call: Any) -> None:
    path = f"/api/v1/runbooks/{SLUG}"
    found = call("viewer", "GET", path)
    assert (found["ETag"], found.json()["origin"]) == ('"0"', "shipped")
    assert len(call("viewer", "GET", "/api/v1/runbooks").json()) >= len(shipped())
    text = {"title": "Slow", "body": body("Look."), **WHY}
    saved = call("admin", "PUT", path, text, HTTP_IF_MATCH='"0"')
    assert (saved.json(), saved["ETag"]) == ({"done": True}, '"1"')
    problem(call("admin", "PUT", path, text | {"body": body("Late."), "expected_version": 0}), 409)
    wrong = problem(call("admin", "PUT", path, text | {"body": "Wait."}), 422)
    assert any("Add the section ## Impact." in error["message"] for error in wrong["errors"])
    assert call("admin", "PUT", path, text | {"body": body("Any version.")})["ETag"] == '"2"'
    numbers = [row["number"] for row in call("viewer", "GET", f"{path}/revisions").json()]
    assert numbers == [2, 1, 0]
    assert "Look." in call("viewer", "GET", f"{path}/revisions/1").json()["body"]
    problem(call("viewer", "GET", f"{path}/revisions/77"), 404)
    problem(call("admin", "POST", f"{path}/restore", {"number": 1, **WHY}), 428)
    edit = {"expected_version": 2, **WHY}
    assert call("admin", "POST", f"{path}/keep", edit).status_code == 200
    assert call("admin", "POST", f"{path}/restore", edit | {"number": 1}).json() == {"version": 3}
    edit["expected_version"] = 3
    assert call("admin", "POST", f"{path}/use-shipped", edit).json() == {"version": 4}
    problem(call("admin", "DELETE", f"{path}?reason=for+a+test&expected_version=4"), 422)
