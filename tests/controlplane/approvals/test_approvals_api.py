"""Change requests through the API: an edit that needs approval gets 202 and the address of its request."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounts import tokens
from controlplane.approvals import rules
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.actor import Actor
from controlplane.policies.models import Revision
from tests.controlplane.calling import API, problem, send
from tests.people import ADA, OLGA, VERA, create_people

WHY = {"reason": "for a test"}
QUOTA = {"limit": 50, "window_s": 60, "burst": 5, "expected_version": 1, **WHY}


def token(owner: Actor, role: str = "admin") -> str:
    """A token that ``owner`` created on the page of tokens, so it is theirs."""
    return tokens.create_api_token(
        name=f"of {owner.name}",
        role=role,
        expires_at=timezone.now() + timedelta(hours=1),
        reason="for a test",
        actor=owner,
    )


@pytest.fixture
def guarded(production: str) -> str:
    create_people("ada", "olga", "vera")
    rules.set_approvals(environment=production, needed=1, reason="for a test", actor=ADA)
    return production


def test_an_edit_that_needs_approval_gets_202_and_is_applied_once(guarded: str) -> None:
    mine, theirs = token(ADA), token(OLGA, "operator")
    assert send(mine, "GET", f"{API}/approvals").json() == {"needed": 1, "approvers": ["ada", "olga"]}
    key = {"Idempotency-Key": "one"}
    answers = [send(mine, "PUT", f"{API}/tenants/acme/quotas/requests", QUOTA, **key) for _ in range(2)]
    for answer in answers:
        assert (answer.status_code, answer["Content-Type"]) == (202, "application/json")
        assert (answer.json()["state"], answer.json()["needed"], answer.json()["approvals"]) == ("open", 1, 0)
    assert answers[0]["Location"] == answers[1]["Location"]
    assert answers[1]["Idempotency-Replayed"] == "true"
    where = answers[0]["Location"]
    [change] = send(theirs, "GET", where).json()["changes"]
    assert change["after"]["quotas.requests.limit"] == 50
    assert "needs 1 more approval" in problem(send(mine, "POST", f"{where}/apply"), 422)["detail"]
    seen = {"expected_version": 1, "note": "as agreed"}
    assert "Another person" in problem(send(mine, "POST", f"{where}/approve", seen), 403)["detail"]
    problem(send(theirs, "POST", f"{where}/approve", {"expected_version": 2}), 409)
    assert send(theirs, "POST", f"{where}/approve", seen).json()["state"] == "approved"
    # An approver does not edit, and a request is applied only once.
    problem(send(theirs, "POST", f"{where}/apply"), 403)
    done = send(mine, "POST", f"{where}/apply").json()
    problem(send(mine, "POST", f"{where}/apply"), 422)
    made = Revision.objects.get(environment="production", number=done["revision"])
    assert (made.actor, made.action) == ("token of ada", "tenant_quota.set")
    [by] = send(mine, "GET", where).json()["approved_by"]
    assert (by["actor"], by["note"]) == ("token of olga", "as agreed")
    assert send(mine, "GET", f"{API}/tenants/acme").json()["quotas"][0]["limit"] == 50


def test_every_write_of_the_configuration_gets_202(guarded: str) -> None:
    mine, before = token(ADA), Revision.objects.count()
    later = (timezone.now() + timedelta(hours=1)).isoformat(timespec="seconds")
    document = {"tenants": {"acme": {"tier": "free"}}}
    writes: list[tuple[str, str, Any]] = [
        ("PUT", "configuration/default-tier", {"tier": "free", **WHY}),
        ("PATCH", "tenants/acme", {"suspended": True, "expected_version": 1, **WHY}),
        ("POST", "tenants", {"key": "new", "tier": "free", **WHY}),
        ("POST", "tiers", {"name": "gold", **WHY}),
        ("POST", "apply?reason=for+a+test&expected_revision=3", "tenants: {acme: {tier: free}}"),
        ("POST", "rollback", {"to_revision": 1, "expected_revision": 3, **WHY}),
        (
            "POST",
            "bulk",
            {"filter": {"tier": "pro"}, "change": {"suspended": True}, "expected_revision": 3, **WHY},
        ),
        ("POST", "schedules", {"due_at": later, "document": document, **WHY}),
        ("PUT", "approvals", {"needed": 0, **WHY}),
    ]
    for method, path, body in writes:
        answer = send(mine, method, f"{API}/{path}", body)
        assert answer.status_code == 202, (path, answer.content)
        assert send(mine, "GET", answer["Location"]).status_code == 200, path
    assert (Revision.objects.count(), ChangeRequest.objects.count()) == (before, len(writes))
    for more in ({"suspended": True}, {"parent": ""}):
        both = {"tier": "free", "expected_version": 1, **more, **WHY}
        assert "separately" in problem(send(mine, "PATCH", f"{API}/tenants/acme", both), 422)["detail"]
    page = send(mine, "GET", f"{API}/requests?state=open&limit=4").json()
    assert len(page["items"]) == 4
    assert len(send(mine, "GET", f"{API}/requests?before={page['next']}").json()["items"]) == 5


def test_the_person_who_rotates_a_token_owns_the_new_one(guarded: str) -> None:
    olga = token(OLGA, "operator")
    answer = send(token(ADA), "PUT", f"{API}/tenants/acme/quotas/requests", QUOTA)
    body = {"expires_in_s": 3600, "overlap_s": 60, **WHY}
    stolen = send(token(ADA), "POST", f"{API}/api-tokens/{olga[3:19]}/rotate", body).json()["token"]
    approve = f"{answer['Location']}/approve"
    problem(send(stolen, "POST", approve, {"expected_version": 1}), 403)
    # A token has no more rights than its owner.
    problem(send(token(VERA, "operator"), "POST", approve, {"expected_version": 1}), 403)
    assert send(olga, "POST", approve, {"expected_version": 1}).status_code == 200
