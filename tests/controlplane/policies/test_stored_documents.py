"""What version 0.1.0 stored is still read: requests are applied, schedules run, drills end, replies repeat.

``tests/contract/compat/v0.1.0/stored.json`` has the rows as version 0.1.0 wrote them. Each test inserts
the rows of one kind into a database with the same configuration, as an upgrade would find them.
"""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import ApiToken, User
from controlplane.approvals.models import ChangeRequest, Rule
from controlplane.audit.actor import Actor
from controlplane.change_requests import decide, rebase
from controlplane.drills.models import Drill
from controlplane.policies.models import Change, Revision
from controlplane.schedules.due import run_due
from controlplane.schedules.models import Schedule
from tests.contract.compat.compare import RECORD
from tests.contract.compat.stored import FREE, REVIEWED, prepare, put_pods, put_row
from tests.controlplane.calling import send, token_of

STORED: dict[str, Any] = json.loads((RECORD / "stored.json").read_text())
REQUESTS = {row["action"]: row for row in STORED["approvals_changerequest"]}
#: Names of the record. The people of all other tests are in tests/people.py.
ALICE, BOB = (Actor(name=name, role="admin", origin="form") for name in ("alice", "bob"))
API = f"/api/v1/{REVIEWED}"


@pytest.fixture
def configured(transactional_db: Any, limits: redis.Redis) -> str:
    """The configuration that the recorded rows were made from."""
    prepare(REVIEWED)
    for name in ("alice", "bob"):
        User.objects.create_user(name, role="admin")
    return REVIEWED


@pytest.fixture
def pages(configured: str, client: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(settings, "SECURE_SSL_REDIRECT", False)
    client.force_login(User.objects.get(username="bob"))
    return client


def shows(pages: Client, path: str, *texts: str) -> None:
    """The page answers and displays all of this."""
    answer = pages.get(path)
    page = answer.content.decode()
    assert answer.status_code == 200, page
    assert [text for text in texts if text not in page] == [], path


def read(path: str) -> Any:
    answer = send(token_of("admin"), "GET", f"{API}/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def put_request(action: str) -> ChangeRequest:
    """A change request with its changes, which has not expired."""
    row = REQUESTS[action]
    later = timezone.now() + timedelta(days=1)
    dates = {"expires_at": later.isoformat()} | ({"due_at": later.isoformat()} if row["due_at"] else {})
    put_row("approvals_changerequest", row | dates)
    for change in STORED["approvals_proposedchange"]:
        if change["request_id"] == row["id"]:
            put_row("approvals_proposedchange", change)
    Rule.objects.create(environment=REVIEWED, needed=1)
    return ChangeRequest.objects.get(pk=row["id"])


@pytest.mark.parametrize("action", REQUESTS)
def test_a_change_request_is_displayed_approved_and_applied(pages: Client, action: str) -> None:
    row = put_request(action)
    shows(pages, "/requests", f"/requests/{row.pk}")
    shows(pages, f"/requests/{row.pk}", row.reason)
    document = read(f"requests/{row.pk}")
    assert (document["action"], document["changed"]) == (action, len(document["changes"]))
    proposed = {(change.kind, change.name): change.after for change in row.changes.all()}
    decide.approve(environment=REVIEWED, request=row.pk, expected_version=1, actor=BOB)
    applied = decide.apply(environment=REVIEWED, request=row.pk, actor=ALICE)
    assert applied.state == "applied"
    if applied.revision is not None:
        made = Change.objects.filter(revision__environment=REVIEWED, revision__number=applied.revision)
        assert {(change.kind, change.name): change.after for change in made} == proposed
        shows(pages, f"/revisions/{applied.revision}", row.reason)
        assert read(f"revisions/{applied.revision}")["action"] == action
    elif row.lowers_to is not None:
        assert Rule.objects.get(pk=REVIEWED).needed == row.lowers_to
    else:
        schedule = Schedule.objects.get(pk=applied.schedule)
        Schedule.objects.update(due_at=timezone.now() - timedelta(seconds=1))
        run_due()
        schedule.refresh_from_db()
        assert (schedule.state, schedule.error) == ("applied", "")


def test_a_change_request_is_rebased(configured: str) -> None:
    row = put_request("tenant_quota.set")
    again = rebase.rebase(environment=REVIEWED, request=row.pk, actor=ALICE)
    assert (again.pk, again.version, again.digest) == (row.pk, 2, row.digest)


def test_a_scheduled_change_is_displayed_and_made_when_it_is_due(pages: Client) -> None:
    (row,) = (row for row in STORED["schedules_schedule"] if row["environment"] == REVIEWED)
    put_row("schedules_schedule", row | {"due_at": (timezone.now() + timedelta(days=1)).isoformat()})
    shows(pages, "/schedules", row["title"], row["reason"])
    assert [each["document"] for each in read("schedules")["items"]] == [row["document"]]
    Schedule.objects.update(due_at=timezone.now() - timedelta(seconds=1))
    run_due()
    made = Schedule.objects.get()
    assert (made.state, made.error) == ("applied", "")
    assert read("tenants/acme")["tier"] == "free"
    shows(pages, "/schedules", row["title"])


def without_new_defaults(changes: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """The changes without fields whose default is another one today, and without what is empty then."""
    kept = {
        item: tuple(
            document
            and {
                name: value
                for name, value in document.items()
                if not name.endswith(("failure_policy", "slow_percent"))
            }
            for document in documents
        )
        for item, documents in changes.items()
    }
    return {item: (before, after) for item, (before, after) in kept.items() if before != after}


@pytest.mark.parametrize("number", [1, 2])
def test_a_revision_is_what_the_same_edit_makes_today(configured: str, number: int) -> None:
    (row,) = (
        row
        for row in STORED["policies_revision"]
        if (row["environment"], row["number"]) == (REVIEWED, number)
    )
    made = Revision.objects.get(environment=REVIEWED, number=number)
    # Defaults for new rows have changed since, so one file changes other fields than it did.
    same = row.keys() - {"id", "at", "reason", "changed"}
    assert {name: getattr(made, name) for name in same} == {name: row[name] for name in same}
    documents = {
        (each["kind"], each["name"]): (each["before"], each["after"])
        for each in STORED["policies_change"]
        if each["revision_id"] == row["id"]
    }
    changes = Change.objects.filter(revision=made)
    today = {(each.kind, each.name): (each.before, each.after) for each in changes}
    assert without_new_defaults(today) == without_new_defaults(documents)


def test_revisions_of_overrides_are_displayed_as_overrides(pages: Client) -> None:
    """Version 0.1.0 called it to hold and to release a breaker; rows of the audit keep these names."""
    for row in STORED["policies_revision"]:
        if row["action"] in ("breaker.held", "breaker.released"):
            put_row("policies_revision", row | {"environment": REVIEWED})
            shows(pages, f"/revisions/{row['number']}", row["reason"])
            assert read(f"revisions/{row['number']}")["action"] == row["action"]
    shows(pages, "/revisions", "maps")


def test_a_drill_is_displayed_in_todays_words_and_ended(pages: Client) -> None:
    put_pods(REVIEWED)
    now = timezone.now()
    for row in STORED["drills_drill"]:
        times = {"began_at": now.isoformat(), "ends_at": (now + timedelta(minutes=5)).isoformat()}
        put_row("drills_drill", row | times)
    shows(pages, "/drills", "2 pods", "50 % of 2 pods")
    assert [each["chosen"] for each in read("drills")] == ["50 % of 2 pods", "2 pods"]
    drill = Drill.objects.get(ended_at__isnull=True)
    answer = send(token_of("admin"), "POST", f"{API}/drills/{drill.pk}/end", {"reason": "seen enough of it"})
    assert (answer.status_code, answer.json()["chosen"]) == (200, "50 % of 2 pods")
    assert not Drill.objects.filter(ended_at__isnull=True).exists()


@pytest.mark.parametrize("key", STORED["requests"])
def test_a_repeated_request_gets_the_stored_reply(configured: str, key: str) -> None:
    if STORED["requests"][key]["path"].startswith(f"/api/v1/{FREE}/"):
        prepare(FREE)
    (row,) = (row for row in STORED["api_keptreply"] if row["key"] == key)
    asked, token = STORED["requests"][key], token_of("admin")
    caller = f"token:{ApiToken.objects.latest('pk').selector}"
    put_row("api_keptreply", row | {"caller": caller, "created_at": timezone.now().isoformat()})
    if "urn:fuseboard:change-request" in row["reply"]:
        expected = {"id": put_request("tenant_quota.set").pk, "state": "open"}
    else:
        # Times in answers have milliseconds.
        expected = json.loads(re.sub(r"(\.\d{3})\d+Z", r"\1Z", json.dumps(row["reply"])))
    revisions = Revision.objects.count()
    body = json.dumps(asked["body"], sort_keys=True)
    answer = send(token, asked["method"], asked["path"], body, **{"Idempotency-Key": key})
    assert answer.status_code == asked["status"], answer.content
    assert answer["Idempotency-Replayed"] == "true"
    assert answer.json() == answer.json() | expected
    assert Revision.objects.count() == revisions
