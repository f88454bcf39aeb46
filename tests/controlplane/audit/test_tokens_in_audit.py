"""The audit names the token that was used and its owner; token names are unique."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from controlplane.accounts import tokens
from controlplane.accounts.models import AgentToken, ApiToken, User
from controlplane.approvals import rules
from controlplane.audit.chain import verify
from controlplane.audit.export import export
from controlplane.audit.models import Entry
from controlplane.schedules.due import apply_due
from controlplane.schedules.models import Schedule
from tests.controlplane.calling import API, problem, send
from tests.people import ADA, BOB, OLGA, create_people
from tests.squashed import earlier_files

WHY = {"reason": "for a test"}
TAMPER = {
    "token": "UPDATE audit_entry SET token = 'another' WHERE owner = 'ada'",
    "owner": "UPDATE audit_entry SET owner = 'bob' WHERE owner = 'ada'",
}
QUOTA = {"limit": 50, "window_s": 60, "burst": 5, "expected_version": 1, **WHY}


def token(owner: Any = ADA, *, role: str = "admin", name: str = "pipeline") -> str:
    return tokens.create_api_token(
        name=name, role=role, expires_at=timezone.now() + timedelta(hours=1), actor=owner, **WHY
    )


@pytest.fixture
def admins(production: str) -> None:
    create_people("ada", "bob", "olga")


def test_finding_12_an_entry_names_the_selector_and_the_owner_of_the_token(admins: None) -> None:
    of_ada, of_bob = token(), token(BOB)
    for text, limit in ((of_ada, 50), (of_bob, 60)):
        version = {"expected_version": 1 if text == of_ada else 2}
        body = QUOTA | {"limit": limit} | version
        assert send(text, "PUT", f"{API}/tenants/acme/quotas/requests", body).status_code == 200
    newest = list(Entry.objects.filter(action="tenant_quota.set").order_by("id"))
    assert [(entry.actor, entry.token, entry.owner) for entry in newest] == [
        ("token pipeline", of_ada.split("_")[1], "ada"),
        ("token pipeline", of_bob.split("_")[1], "bob"),
    ]
    [found] = send(of_bob, "GET", f"{API}/audit?owner=bob&kind=tenant").json()["items"]
    assert (found["token"], found["owner"]) == (of_bob.split("_")[1], "bob")
    [found] = send(of_bob, "GET", f"{API}/audit?token={of_ada.split('_')[1]}&kind=tenant").json()["items"]
    assert found["owner"] == "ada"
    exported = [json.loads(line) for line in "".join(export(Entry.objects.all(), "jsonl")).splitlines()]
    assert {row["owner"] for row in exported} == {"", "ada", "bob"}
    assert verify()[1] == []


def test_finding_12_entries_of_before_keep_their_hashes(admins: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM audit_entry WHERE token = '' AND owner = ''")
        assert cursor.fetchone()[0] == Entry.objects.count() > 0
    before = dict(Entry.objects.values_list("pk", "hash"))
    send(token(), "PUT", f"{API}/tenants/acme/quotas/requests", QUOTA)
    with earlier_files():
        call_command("migrate", "audit", "0004", verbosity=0)
    assert {pk: seal for pk, seal in _hashes().items() if pk in before} == before
    call_command("migrate", "audit", verbosity=0)
    good, broken = verify()
    # Going back drops the two columns, so what they held is gone, and the chain says so.
    assert len(broken) == 1
    assert good


def _hashes() -> dict[int, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, hash FROM audit_entry")
        return dict(cursor.fetchall())


@pytest.mark.parametrize("column", TAMPER)
def test_finding_12_the_chain_covers_token_and_owner(admins: None, column: str) -> None:
    send(token(), "PUT", f"{API}/tenants/acme/quotas/requests", QUOTA)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_entry DISABLE TRIGGER USER")
        cursor.execute(TAMPER[column])
        cursor.execute("ALTER TABLE audit_entry ENABLE TRIGGER USER")
        cursor.execute("ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER pgtrigger_append_only_a6b88")
        cursor.execute("ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER pgtrigger_never_emptied_6c9ae")
    assert ["was changed" in each.why for each in verify()[1]] == [True]


def test_finding_12_a_change_that_applies_later_names_the_token_too(admins: None) -> None:
    text = token()
    due = timezone.now() + timedelta(hours=1)
    document = {"tenants": {"acme": {"tier": "free"}}}
    body = {"due_at": due.isoformat(timespec="seconds"), "document": document, **WHY}
    assert send(text, "POST", f"{API}/schedules", body).status_code == 201
    Schedule.objects.update(due_at=timezone.now())
    assert apply_due() == 1
    assert Entry.objects.get(action="schedule.applied").owner == "ada"

    rules.set_approvals(environment="production", needed=1, reason="for a test", actor=ADA)
    where = send(text, "PUT", f"{API}/tenants/acme/quotas/requests", QUOTA | {"expected_version": 2})[
        "Location"
    ]
    of_olga = token(OLGA, role="operator")
    assert send(of_olga, "POST", f"{where}/approve", {"expected_version": 1}).status_code == 200
    assert send(token(BOB), "POST", f"{where}/apply").status_code == 200
    made = Entry.objects.get(action="tenant_quota.set")
    assert (made.actor, made.owner) == ("token pipeline", "ada")
    assert Entry.objects.get(action="change_request.applied").owner == "bob"
    assert Entry.objects.get(action="change_request.approved").owner == "olga"


def test_finding_12_the_page_names_the_owner_of_a_token(admins: None, settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = False
    text = token(BOB)
    send(text, "PUT", f"{API}/tenants/acme/quotas/requests", QUOTA)
    browser = Client()
    browser.force_login(User.objects.get(username="ada"))
    assert f"{text.split('_')[1]} of bob" in browser.get("/audit").content.decode()
    assert "of bob" in browser.get("/audit?q=bob").content.decode()


@pytest.mark.parametrize(("path", "model"), [("api-tokens", ApiToken), ("agent-tokens", AgentToken)])
def test_finding_12_a_second_valid_token_of_one_name_is_refused(
    admins: None, path: str, model: type[ApiToken] | type[AgentToken]
) -> None:
    text = token(name="maker")
    body = {"name": "pods", "expires_in_s": 3600, **WHY} | ({"scope": "read"} if model is ApiToken else {})
    assert send(text, "POST", f"{API}/{path}", body).status_code == 201
    refusal = problem(send(text, "POST", f"{API}/{path}", body), 409)
    assert refusal["type"] == "urn:fuseboard:problem:name-taken"
    assert "in environment production: rotate it, revoke it, or choose another" in refusal["detail"]
    first = model._default_manager.get(name="pods")
    assert send(text, "DELETE", f"{API}/{path}/{first.selector}?reason=for+a+test").status_code == 200
    assert send(text, "POST", f"{API}/{path}", body).status_code == 201


def test_finding_12_tokens_that_share_a_name_already_keep_working(admins: None) -> None:
    one, two = token(), token()
    assert [send(text, "GET", f"{API}/tiers").status_code for text in (one, two)] == [200, 200]
    body = {"expires_in_s": 3600, "overlap_s": 60, **WHY}
    answer = send(one, "POST", f"{API}/api-tokens/{two.split('_')[1]}/rotate", body)
    assert answer.status_code == 201
