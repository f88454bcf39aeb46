"""What takes effect later looks at the rights of its author at that time."""

import io
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.accounts import people, tokens
from controlplane.accounts.models import ApiToken, Ticket, User
from controlplane.alerts.incidents.share import make_link
from controlplane.alerts.models import Incident
from controlplane.approvals import rules
from controlplane.approvals.authors import why_not_theirs
from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.proposals import Proposed
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.breakers.models import Override
from controlplane.breakers.overrides import expire_overrides, override_breaker
from controlplane.change_requests import decide
from controlplane.change_requests.rebase import rebase
from controlplane.change_requests.waiting import cancel_lost, seen_by, waiting_of
from controlplane.editing import edits
from controlplane.editing.plans import drafting
from controlplane.errors import InvalidEdit
from controlplane.policies.drafts import Draft
from controlplane.policies.models import Environment, TenantQuota
from controlplane.schedules.due import run_due
from controlplane.schedules.edits import schedule_change
from controlplane.schedules.models import Schedule
from fuseboard.contract.words import OverrideMode
from tests.controlplane.calling import API, problem, send
from tests.people import ADA, BOB, OLGA, OTTO, SEED, create_people

WHY: dict[str, Any] = {"reason": "for a test"}
HERE: dict[str, Any] = {"environment": "production", **WHY}
DOCUMENT = {"tenants": {"acme": {"tier": "free"}}}


@pytest.fixture
def team(production: str) -> str:
    create_people("ada", "bob", "olga", "otto", "vera", "mallory")
    return production


def head() -> int:
    return Environment.objects.get(pk="production").revision


def scheduled(actor: Actor = ADA) -> Schedule:
    return schedule_change(due_at=timezone.now() + timedelta(hours=1), document=DOCUMENT, actor=actor, **HERE)


def come_due(row: Schedule) -> Schedule:
    Schedule.objects.filter(pk=row.pk).update(due_at=timezone.now() - timedelta(seconds=1))
    run_due()
    row.refresh_from_db()
    return row


def deactivate(name: str = "ada", **more: Any) -> None:
    people.switch_person(username=name, active=False, actor=BOB, **WHY, **more)


def make(name: str, role: str, **there: str) -> None:
    people.change_roles(username=name, role=role, environment_roles=there, actor=BOB, **WHY)


def delete_account() -> None:
    User.objects.filter(username="ada").delete()


LOST = {
    "deactivated": (deactivate, "ada scheduled it, and is deactivated now."),
    "deactivated with SQL": (
        lambda: User.objects.filter(username="ada").update(is_active=False),
        "ada scheduled it, and is deactivated now.",
    ),
    "operator": (
        lambda: make("ada", "operator"),
        "ada scheduled it, and does not have the role admin any more.",
    ),
    "shut out there": (
        lambda: make("ada", "admin", production=""),
        "ada scheduled it, and does not have the role admin any more.",
    ),
    "deleted": (delete_account, "ada scheduled it, and this account does not exist any more."),
}


@pytest.mark.parametrize("how", LOST)
def test_a_scheduled_change_fails_with_an_alert_when_its_author_has_lost_the_rights(
    team: str, how: str
) -> None:
    row, (lose, said) = scheduled(), LOST[how]
    lose()
    before = head()
    come_due(row)
    assert (row.state, head()) == ("failed", before)
    assert row.error == f"{said} Nothing was changed. Another admin has to schedule it again."
    assert Entry.objects.filter(action="schedule.failed").count() == 1
    run_due()
    assert Entry.objects.filter(action="schedule.failed").count() == 1, "it is not tried again"


def test_a_scheduled_change_is_made_while_its_author_is_still_an_admin_there(team: str) -> None:
    row = scheduled()
    make("ada", "viewer", production="admin")
    assert come_due(row).state == "applied"


def test_a_person_who_is_an_admin_again_when_it_is_due_makes_the_change(team: str) -> None:
    row = scheduled()
    deactivate()
    people.switch_person(username="ada", active=True, actor=BOB, **WHY)
    assert come_due(row).state == "applied"


def test_a_change_that_a_command_scheduled_needs_no_account(team: str) -> None:
    assert come_due(scheduled(SEED)).state == "applied"


def token(owner: Actor | None, *, role: str = "admin") -> str:
    actor = owner or Actor(name="command line", role="admin", origin="command")
    soon = timezone.now() + timedelta(hours=2)
    return tokens.create_api_token(name="pipeline", role=role, expires_at=soon, actor=actor, **WHY)


def scheduled_with(text: str) -> Schedule:
    # Each schedule has another time: two identical schedules are refused.
    due_at = (timezone.now() + timedelta(hours=1, minutes=Schedule.objects.count())).isoformat(
        timespec="seconds"
    )
    made = send(text, "POST", f"{API}/schedules", {"due_at": due_at, "document": DOCUMENT, **WHY})
    assert made.status_code == 201, made.content
    return Schedule.objects.get(pk=made.json()["id"])


def expire_token() -> None:
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))


@pytest.mark.parametrize(
    ("owner", "lose", "said"),
    [
        (ADA, deactivate, "token pipeline scheduled it, and is revoked now."),
        (ADA, lambda: make("ada", "operator"), "does not have the role admin any more."),
        (
            ADA,
            lambda: User.objects.filter(username="ada").update(is_active=False),
            "its owner, ada, cannot log in any more.",
        ),
        (None, expire_token, "token pipeline scheduled it, and has expired, and no person owns it."),
        (None, lambda: ApiToken.objects.update(revoked_at=timezone.now()), "is revoked now."),
    ],
)
def test_a_change_that_a_token_scheduled_needs_the_rights_of_the_token(
    team: str, owner: Actor | None, lose: Any, said: str
) -> None:
    row = scheduled_with(token(owner))
    lose()
    assert come_due(row).state == "failed"
    assert said in row.error


@pytest.mark.parametrize("lose", [expire_token, bool])
def test_after_the_time_of_a_token_the_rights_of_its_owner_count(team: str, lose: Any) -> None:
    row = scheduled_with(token(ADA))
    lose()
    assert come_due(row).state == "applied"


def proposed(actor: Actor = ADA) -> ChangeRequest:
    with pytest.raises(Proposed) as waits:
        edits.change_tier(tenant="acme", tier="free", expected_version=None, actor=actor, **HERE)
    return waits.value.request


def approve(row: ChangeRequest, actor: Actor = OLGA) -> None:
    row.refresh_from_db()
    decide.approve(environment="production", request=row.pk, expected_version=row.version, actor=actor)


@pytest.fixture
def guarded(team: str) -> str:
    rules.set_approvals(needed=1, actor=ADA, **HERE)
    return team


@pytest.mark.parametrize("lose", [deactivate, lambda: make("ada", "operator")])
def test_a_request_of_an_author_without_the_rights_is_neither_approved_nor_applied(
    guarded: str, lose: Any
) -> None:
    row, late = proposed(), proposed()
    approve(row)
    lose()
    before = head()
    for act in (
        lambda: decide.apply(environment="production", request=row.pk, actor=BOB),
        lambda: approve(late),
    ):
        with pytest.raises(InvalidEdit, match=r"ada made this request, and .* Another admin can rebase it"):
            act()
    assert head() == before
    rebase(environment="production", request=row.pk, actor=BOB)
    approve(row)
    decide.apply(environment="production", request=row.pk, actor=BOB)
    assert head() == before + 1


def program_of(owner: Actor) -> Actor:
    token(owner)
    row = ApiToken.objects.get()
    return Actor(name="token pipeline", role="admin", origin="api", person=owner.name, token=row.selector)


def revoke_token() -> None:
    ApiToken.objects.update(revoked_at=timezone.now())


def test_the_owner_of_a_token_is_no_author_after_another_person_rebased_its_request(guarded: str) -> None:
    """The owner has never looked at what the token proposed."""
    row = proposed(actor=program_of(ADA))
    rebase(environment="production", request=row.pk, actor=BOB)
    revoke_token()
    row.refresh_from_db()
    assert why_not_theirs(row) == "", "bob rebased it"
    make("bob", "operator")
    with pytest.raises(InvalidEdit, match=r"token pipeline made this request, and is revoked now\. bob re"):
        approve(row)
    assert "ada" not in why_not_theirs(row)


def test_a_request_that_a_token_rebased_needs_the_rights_of_the_token(guarded: str) -> None:
    row = proposed()
    rebase(environment="production", request=row.pk, actor=program_of(BOB))
    make("ada", "operator")
    row.refresh_from_db()
    assert why_not_theirs(row) == ""
    revoke_token()
    assert why_not_theirs(row).endswith("token pipeline rebased it, and is revoked now.")


@pytest.mark.parametrize("rebased_by", [ADA, BOB])
def test_a_request_of_a_token_needs_a_person_when_its_owner_is_deactivated(
    guarded: str, rebased_by: Actor
) -> None:
    row = proposed(actor=program_of(ADA))
    rebase(environment="production", request=row.pk, actor=rebased_by)
    row.refresh_from_db()
    revoke_token()
    assert why_not_theirs(row) == "", "a person who rebased it has looked at it"
    deactivate()
    assert bool(why_not_theirs(row)) == (rebased_by == ADA)


def test_a_program_without_an_owner_does_not_take_a_request_over(guarded: str) -> None:
    """Fewer people approve the request of a person than that of a program."""
    row = proposed()
    rebase(environment="production", request=row.pk, actor=SEED)
    deactivate()
    row.refresh_from_db()
    assert why_not_theirs(row) == "ada made this request, and is deactivated now."


def test_a_request_is_not_applied_when_an_approver_may_not_approve_any_more(guarded: str) -> None:
    row = proposed()
    approve(row)
    deactivate("olga")
    with pytest.raises(InvalidEdit, match=r"It needs 1 more approval\. olga may not approve any more\."):
        decide.apply(environment="production", request=row.pk, actor=ADA)
    approve(row, OTTO)
    decide.apply(environment="production", request=row.pk, actor=ADA)


def test_a_request_for_fewer_approvals_needs_an_author_who_may_set_them(guarded: str) -> None:
    with pytest.raises(Proposed) as waits:
        rules.set_approvals(needed=0, actor=ADA, **HERE)
    row = waits.value.request
    approve(row)
    make("ada", "operator")
    with pytest.raises(InvalidEdit, match="set the number of approvals again"):
        decide.apply(environment="production", request=row.pk, actor=BOB)


@pytest.mark.parametrize(
    ("who", "said", "state"),
    [
        ("ada", "ada made this request, and is deactivated now.", "failed"),
        ("olga", "olga may not approve any more.", "proposed"),
    ],
)
def test_an_approved_scheduled_change_needs_its_author_and_its_approvers(
    guarded: str, who: str, said: str, state: str
) -> None:
    with pytest.raises(Proposed) as waits:
        scheduled()
    request = waits.value.request
    approve(request)
    decide.apply(environment="production", request=request.pk, actor=BOB)
    row = Schedule.objects.get()
    deactivate(who)
    before = head()
    assert come_due(row).state == state
    assert said in row.error
    assert head() == before


def test_a_file_that_a_worker_applies_later_needs_the_rights_of_the_admin(
    team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "AT_ONCE_BYTES", 0)
    file = io.BytesIO(b"tenant,tier\nnew-one,free\n")
    draft = drafting.upload(environment="production", filename="c.csv", stream=file, prune=False, actor=ADA)
    drafting.work_drafts()
    drafting.order(draft=draft.pk, actor=ADA, **WHY)
    make("ada", "operator")
    before = head()
    drafting.work_drafts()
    draft = Draft.objects.get(pk=draft.pk)
    assert (draft.state, head()) == ("refused", before)
    assert "ada applied the file, and does not have the role admin any more." in draft.errors[0][2]


def test_what_ends_something_temporary_ends_without_its_author(team: str, hour: datetime) -> None:
    numbers: dict[str, Any] = {"limit": 9, "window_s": 60, "burst": 5, "expected_version": None}
    edits.set_tenant_quota(tenant="acme", quota="requests", expires_at=hour, actor=ADA, **numbers, **HERE)
    until = timezone.now() + timedelta(minutes=5)
    override_breaker(dependency="openai", mode=OverrideMode.FORCED_OPEN, expires_at=until, actor=ADA, **HERE)
    deactivate()
    Override.objects.update(expires_at=timezone.now())
    TenantQuota.objects.update(expires_at=timezone.now())
    assert expire_overrides() == ["openai"]
    run_due()
    assert not TenantQuota.objects.exists()


def test_a_password_link_of_a_person_who_is_not_an_admin_any_more_is_not_valid(team: str) -> None:
    User.objects.filter(username="vera").delete()
    path = people.invite_person(username="vera", role="admin", actor=ADA, **WHY)
    other = people.send_new_link(username="otto", actor=BOB, **WHY)
    assert Client().get(path, secure=True).status_code == 200
    make("ada", "operator")
    typed = {"password": "a password of some length 7", "again": "a password of some length 7"}
    assert Client().get(path, secure=True).status_code == 404
    assert Client().post(path, typed, secure=True).status_code == 404
    assert not User.objects.get(username="vera").has_usable_password()
    assert Client().get(other, secure=True).status_code == 200
    # Another admin replaces it.
    assert (
        Client().get(people.send_new_link(username="vera", actor=BOB, **WHY), secure=True).status_code == 200
    )


def test_a_shared_report_ends_with_the_rights_of_the_person_who_shared_it(team: str) -> None:
    now = timezone.now()
    fields = {"cause": "open:x", "title": "x is open", "level": 2, "severity": "critical"}
    row = Incident.objects.create(environment=team, started_at=now, opened_at=now, **fields)
    path = make_link(environment=team, number=row.pk, days=3, actor=OLGA)
    assert Client().get(path, secure=True).status_code == 200
    make("olga", "viewer")
    assert Client().get(path, secure=True).status_code == 404


def test_waiting_changes_of_a_person_are_listed_and_cancelled(guarded: str) -> None:
    edits.create_environment(environment="staging", actor=SEED, **WHY)
    request = proposed()
    rules.put_needed(environment="production", needed=0, actor=BOB, **WHY)
    mine, by_token, other = scheduled(), scheduled_with(token(ADA)), scheduled(BOB)
    people.send_new_link(username="vera", actor=ADA, **WHY)
    found = waiting_of("ada")
    assert {(one.kind, one.number) for one in found} == {
        ("schedule", mine.pk),
        ("schedule", by_token.pk),
        ("change_request", request.pk),
        ("link", 0),
    }
    assert not any(one.lost for one in found)
    [title] = [one.title for one in found if one.kind == "change_request"]
    assert title == f"{request.pk}, change the tier, acme"
    bob = User.objects.get(username="bob")
    assert cancel_lost(username="ada", reader=bob, actor=BOB, **WHY) == [], "ada may still make all of them"
    deactivate()
    assert all(one.lost for one in waiting_of("ada"))
    # A closed environment is neither displayed nor edited.
    bob.environment_roles = {"production": ""}
    assert [one.kind for one in seen_by(bob, waiting_of("ada"))] == ["link"]
    assert [one.kind for one in cancel_lost(username="ada", reader=bob, actor=BOB, **WHY)] == ["link"]
    assert not Ticket.objects.filter(used_at=None).exists()
    link = Entry.objects.get(action="user.link_ended")
    assert (link.actor, link.target_name, link.after, link.reason) == (
        "bob",
        "vera",
        {"made_by": "ada"},
        WHY["reason"],
    )
    bob.environment_roles = {}
    done = cancel_lost(username="ada", reader=bob, actor=BOB, **WHY)
    assert sorted(one.kind for one in done) == ["change_request", "schedule", "schedule"]
    assert waiting_of("ada") == []
    states = {row.pk: row.state for row in Schedule.objects.all()}
    assert states == {mine.pk: "cancelled", by_token.pk: "cancelled", other.pk: "waiting"}
    request.refresh_from_db()
    assert (request.state, request.ended_by) == ("withdrawn", "bob")
    ended = Entry.objects.filter(action__in=("schedule.cancelled", "change_request.withdrawn"))
    assert {entry.actor for entry in ended} == {"bob"}


def test_waiting_changes_are_found_with_as_many_queries_for_many_as_for_one(team: str) -> None:
    """Changes of other tokens are not read, and those of the person are read together."""
    texts = token(ADA), token(BOB)
    for person in ("vera", "otto", "olga"):
        people.send_new_link(username=person, actor=BOB, **WHY)

    def queries() -> tuple[int, int]:
        with CaptureQueriesContext(connection) as asked:
            found = waiting_of("ada")
        return len(asked), len(found)

    for text in texts:
        scheduled_with(text)
    scheduled()
    few, listed = queries()
    assert listed == 2
    for text in texts:
        for _ in range(5):
            scheduled_with(text)
    people.send_new_link(username="mallory", actor=BOB, **WHY)
    scheduled()
    assert queries() == (few, 2 + 5 + 1)


def test_the_api_lists_and_cancels_what_a_person_may_not_make_any_more(team: str) -> None:
    row, text = scheduled(), token(BOB)
    [listed] = send(text, "GET", "/api/v1/people/ada/waiting").json()
    assert (listed["kind"], listed["number"], listed["lost"]) == ("schedule", row.pk, "")
    problem(send(text, "GET", "/api/v1/people/no-person/waiting"), 404)
    # The new role still permits it.
    body = {"role": "admin", "cancel_waiting": True, **WHY}
    assert send(text, "PUT", "/api/v1/people/ada/roles", body).status_code == 200
    row.refresh_from_db()
    assert row.state == "waiting"
    assert send(text, "PUT", "/api/v1/people/ada/active", {"active": False, **WHY}).status_code == 200
    [listed] = send(text, "GET", "/api/v1/people/ada/waiting").json()
    assert listed["lost"] == "ada scheduled it, and is deactivated now."
    again = {"active": False, "cancel_waiting": True, **WHY}
    assert send(text, "PUT", "/api/v1/people/ada/active", again).status_code == 200
    row.refresh_from_db()
    assert (row.state, row.ended_by) == ("cancelled", "token pipeline")
