"""One admin is not two persons: access that one account gave to another counts for 30 days."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from controlplane.accounts import given_access, people, tokens
from controlplane.accounts.models import User
from controlplane.approvals import rules
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.errors import InvalidEdit
from tests.controlplane.calling import API, problem, send
from tests.people import ADA, BOB, OLGA, create_people, create_person

WHY = {"reason": "for a test"}
QUOTA = {"limit": 50, "window_s": 60, "burst": 5, "expected_version": 1, **WHY}
SERVER = Actor(name="command line", role="admin", origin="command")


def token(owner: Actor, role: str = "admin") -> str:
    return tokens.create_api_token(
        name=f"of {owner.name}",
        role=role,
        expires_at=timezone.now() + timedelta(hours=1),
        actor=owner,
        **WHY,
    )


@pytest.fixture
def guarded(production: str) -> None:
    create_people("ada", "bob", "olga")
    rules.set_approvals(environment=production, needed=1, actor=ADA, **WHY)


def propose(author: Actor = ADA) -> str:
    answer = send(token(author), "PUT", f"{API}/tenants/acme/quotas/requests", QUOTA)
    assert answer.status_code == 202, answer.content
    return str(answer["Location"])


def approve(where: str, person: Actor) -> Any:
    return send(token(person, "operator"), "POST", f"{where}/approve", {"expected_version": 1})


def refused(where: str, person: Actor) -> str:
    return str(problem(approve(where, person), 403)["detail"])


def days_ago(days: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_entry DISABLE TRIGGER pgtrigger_append_only_a6b88")
        cursor.execute("UPDATE audit_entry SET at = at - make_interval(days => %s)", [days])
        cursor.execute("ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER pgtrigger_append_only_a6b88")


def invite(name: str, actor: Actor, role: str = "operator") -> Actor:
    people.invite_person(username=name, role=role, actor=actor, **WHY)
    return Actor(name=name, role=role, origin="form")


def relink(actor: Actor) -> None:
    people.send_new_link(username="olga", actor=actor, **WHY)


def remove_factor(actor: Actor) -> None:
    people.remove_second_factor(username="olga", actor=actor, **WHY)


def promote(actor: Actor) -> None:
    people.change_roles(username="olga", role="viewer", environment_roles={}, actor=SERVER, **WHY)
    people.change_roles(
        username="olga", role="viewer", environment_roles={"production": "operator"}, actor=actor, **WHY
    )


def reactivate(actor: Actor) -> None:
    people.switch_person(username="olga", active=False, actor=SERVER, **WHY)
    people.switch_person(username="olga", active=True, actor=actor, **WHY)


GIVES = [relink, remove_factor, promote, reactivate]


def test_finding_7_an_invited_person_cannot_approve_requests_of_the_inviter(guarded: None) -> None:
    mallory = invite("mallory", ADA)
    where = propose()
    said = refused(where, mallory)
    until = (timezone.now() + timedelta(days=30)).date().isoformat()
    assert "ada invited mallory on" in said
    assert f"Until {until}" in said
    assert said.startswith("Another person has to approve it")
    assert approve(where, OLGA).status_code == 200


@pytest.mark.parametrize("give", GIVES)
def test_finding_7_a_person_to_whom_the_author_gave_access_cannot_approve(
    guarded: None, give: Callable[[Actor], None]
) -> None:
    give(ADA)
    where = propose()
    assert "ada " in refused(where, OLGA)
    days_ago(31)
    assert approve(where, OLGA).status_code == 200


@pytest.mark.parametrize("give", GIVES)
def test_access_that_the_server_gave_counts_for_no_person(
    guarded: None, give: Callable[[Actor], None]
) -> None:
    give(SERVER)
    assert approve(propose(), OLGA).status_code == 200


@pytest.mark.parametrize("give", GIVES)
def test_access_that_another_admin_gave_does_not_count(guarded: None, give: Callable[[Actor], None]) -> None:
    give(BOB)
    assert approve(propose(), OLGA).status_code == 200


def test_finding_7_a_token_gives_access_in_the_name_of_its_owner(guarded: None) -> None:
    body = {"username": "mallory", "role": "operator", **WHY}
    assert send(token(ADA), "POST", "/api/v1/people", body).status_code == 201
    mallory = Actor(name="mallory", role="operator", origin="form")
    assert "ada invited mallory" in refused(propose(), mallory)


def test_finding_7_the_inviter_cannot_approve_requests_of_the_invited(guarded: None) -> None:
    mallory = invite("mallory", ADA, "admin")
    where = propose(mallory)
    assert "ada invited mallory" in refused(where, ADA)
    assert approve(where, BOB).status_code == 200


def test_finding_7_access_through_a_third_account_counts(guarded: None) -> None:
    first = invite("first", ADA, "admin")
    second = invite("second", first)
    where = propose()
    assert "ada invited first" in refused(where, second)
    days_ago(31)
    assert approve(where, second).status_code == 200


def test_access_that_came_after_the_account_was_given_does_not_count(guarded: None) -> None:
    second = invite("second", OLGA)
    relink(ADA)
    assert approve(propose(), second).status_code == 200


def test_a_lower_role_gives_no_access(guarded: None) -> None:
    people.change_roles(username="bob", role="operator", environment_roles={}, actor=ADA, **WHY)
    assert approve(propose(), BOB).status_code == 200


def test_finding_7_two_approvals_come_from_two_persons(production: str) -> None:
    create_people("ada", "bob", "olga")
    create_person("otto", role="operator")
    rules.set_approvals(environment=production, needed=2, actor=ADA, **WHY)
    mallory = invite("mallory", BOB)
    where = propose()
    assert approve(where, BOB).json()["state"] == "open"
    assert "bob invited mallory" in refused(where, mallory)
    assert approve(where, OLGA).json()["state"] == "approved"


def test_approvals_are_not_required_from_accounts_that_count_as_one(production: str) -> None:
    create_person("ada")
    invite("mallory", ADA)
    with pytest.raises(InvalidEdit, match="there are 1 in production"):
        rules.set_approvals(environment=production, needed=1, actor=ADA, **WHY)
    create_person("bob")
    assert rules.set_approvals(environment=production, needed=1, actor=ADA, **WHY) == 1


def test_approvals_can_be_required_when_one_admin_invited_all_others(production: str) -> None:
    create_person("ada")
    for name in ("bob", "carol"):
        invite(name, ADA, "admin")
    assert given_access.between("bob", ["carol"]) is None
    assert sorted(given_access.different_people(["ada", "bob", "carol"])) == ["bob", "carol"]
    assert rules.set_approvals(environment=production, needed=1, actor=ADA, **WHY) == 1


def gave(giver: str, to: str, *, day: int) -> None:
    """An entry as of this day of the last 30 days."""
    entry = Entry.objects.create(
        actor=giver, role="admin", origin="form", action="user.link_made", target_kind="user", target_name=to
    )
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_entry DISABLE TRIGGER pgtrigger_append_only_a6b88")
        cursor.execute(
            "UPDATE audit_entry SET at = now() - make_interval(days => %s) WHERE id = %s",
            [29 - day, entry.pk],
        )
        cursor.execute("ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER pgtrigger_append_only_a6b88")


@pytest.mark.parametrize("through", [("a", "b"), ("b", "a")])
def test_access_in_order_counts_although_another_way_is_not_in_order(
    production: str, through: tuple[str, str]
) -> None:
    """m gave c access, then c a, then a p. c also gave b access, but before m had given c any."""
    late, early = through
    gave("c", early, day=2)
    gave("m", "c", day=10)
    gave("c", late, day=18)
    gave("b", "p", day=19)
    gave("a", "p", day=20)
    found = given_access.between("p", ["m"])
    assert found is not None
    assert (found.giver, found.to) == ("m", "c")


def test_an_entry_from_before_owners_were_recorded_counts_for_the_owners_of_the_token(guarded: None) -> None:
    token(ADA)
    Entry.objects.create(
        actor="token of ada",
        role="admin",
        origin="api",
        action="user.link_made",
        target_kind="user",
        target_name="olga",
    )
    found = given_access.between("olga", ["bob", "ada"])
    assert found is not None
    assert found.giver == "ada"


def test_finding_7_the_page_says_why_there_is_no_button(guarded: None, settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = False
    relink(ADA)
    propose()
    number = ChangeRequest.objects.get().pk
    browser, another = Client(), Client()
    browser.force_login(User.objects.get(username="olga"))
    another.force_login(User.objects.get(username="bob"))
    page = browser.get(f"/requests/{number}").content.decode()
    assert "ada created a password link for olga on" in page
    assert 'value="approve"' not in page
    assert 'value="approve"' in another.get(f"/requests/{number}").content.decode()
    answer = browser.post(f"/requests/{number}", {"act": "approve", "version": "1"})
    assert answer.status_code == 403
    assert "ada created a password link for olga on" in answer.content.decode()
