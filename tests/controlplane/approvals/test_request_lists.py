"""Lists of change requests ask as many queries for many requests as for one."""

from datetime import timedelta
from typing import Any

from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.approvals import proposals, rules
from controlplane.approvals.models import Approval, ChangeRequest, ProposedChange
from controlplane.change_requests.conflicts import changed_since, with_conflict
from controlplane.editing import edits
from controlplane.policies.models import Environment
from tests.controlplane.calling import API, send, token_of
from tests.people import ADA, create_people

WHY: dict[str, Any] = {"environment": "production", "reason": "for a test", "actor": ADA}


def propose(kind: str = "tenant", name: str = "acme", *, removes: bool = False, **more: Any) -> ChangeRequest:
    """A request that changes one thing."""
    fields: dict[str, Any] = {"environment": "production", "persons": ["ada"]}
    row = ChangeRequest.objects.create(
        base=Environment.objects.get(pk="production").revision,
        action=f"{kind}.changed",
        reason="for a test",
        author="ada",
        expires_at=timezone.now() + timedelta(days=1),
        **fields | more,
    )
    ProposedChange.objects.create(request=row, kind=kind, name=name, before={}, after=None if removes else {})
    return row


def approve(row: ChangeRequest, *people: str, version: int = 1) -> None:
    for person in people:
        Approval.objects.create(request=row, version=version, person=person, actor=person)


def test_conflicts_of_many_requests_are_those_of_each(production: str) -> None:
    values = {"limit": 100, "window_s": 60, "burst": 20, "expected_version": 0}
    edits.set_template(template="spare", **values, **WHY)
    rows = {
        "same thing": propose(name="acme"),
        "same name of another kind": propose("budget", "acme"),
        "other thing": propose(name="globex"),
        "whole": propose(name="globex", whole=True),
        "template": propose("template", "default"),
        "removed tier": propose("tier", "free", removes=True),
        "removed tenant": propose("tenant", "globex", removes=True),
    }

    def conflicting(*more: ChangeRequest) -> set[str]:
        listed = [*rows.values(), *more]
        with CaptureQueriesContext(connection) as asked:
            found = with_conflict(listed)
        assert len(asked) == 1
        assert found == {row.pk for row in listed if changed_since(row).exists()}
        return {name for name, row in rows.items() if row.pk in found}

    assert conflicting() == set()
    edits.suspend_tenant(tenant="acme", **WHY)
    later = propose(name="acme")
    assert conflicting(later) == {"same thing", "whole", "template", "removed tier"}
    assert later.pk not in with_conflict([later])
    edits.remove_template(template="spare", expected_version=None, **WHY)
    assert conflicting(later) == set(rows)
    # Another environment changes nothing here.
    assert with_conflict([propose(name="acme", environment="staging")]) == set()
    assert with_conflict([]) == set()


def test_the_standing_of_many_requests_is_that_of_each(production: str) -> None:
    create_people("ada", "olga", "otto", "vera")
    rules.set_approvals(needed=2, **WHY)
    by_person, by_program = propose(), propose(persons=[])
    approve(by_person, "ada", "olga", "otto", "vera")
    approve(by_program, "olga")
    newer = propose(version=2)
    approve(newer, "olga", "otto")
    approve(newer, "otto", version=2)
    User.objects.filter(username="otto").update(is_active=False)
    found = proposals.standings([by_person, by_program, newer])
    assert found == {row.pk: proposals.standing(row) for row in (by_person, by_program, newer)}
    assert (found[by_person.pk].needed, found[by_person.pk].approvers) == (2, ("olga",))
    assert found[by_person.pk].lost == ("otto", "vera")
    assert (found[by_program.pk].needed, found[by_program.pk].missing) == (3, 2)
    assert (found[newer.pk].agreed, found[newer.pk].why_fewer) == (0, "otto may not approve any more.")
    assert proposals.standings([]) == {}


def test_the_api_lists_many_requests_with_as_many_queries_as_one(production: str) -> None:
    create_people("ada", "olga", "otto")
    rules.set_approvals(needed=1, **WHY)
    reader = token_of("viewer")

    def queries(listed: int) -> int:
        with CaptureQueriesContext(connection) as asked:
            answer = send(reader, "GET", f"{API}/requests").json()["items"]
        assert [(one["needed"], one["approvals"]) for one in answer] == [(1, 2)] * listed
        return len(asked)

    approve(propose(), "olga", "otto")
    # The first call also reads what a process keeps.
    queries(1)
    few = queries(1)
    for number in range(9):
        approve(propose(name=f"tenant-{number}"), "olga", "otto")
    assert queries(10) == few
