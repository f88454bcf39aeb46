"""Where edits need approval, no author and no path bypasses the approval."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone
from prometheus_client import REGISTRY

from controlplane import metrics  # noqa: F401 - registers what it collects
from controlplane.accounts.models import User
from controlplane.accounts.tokens import create_api_token
from controlplane.approvals import rules
from controlplane.approvals.models import Approval, ChangeRequest
from controlplane.approvals.proposals import Proposed
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.breakers.overrides import end_override, expire_overrides, override_breaker, reset_breaker
from controlplane.change_requests import decide, rebase
from controlplane.editing import edits, plans
from controlplane.editing.edits import TenantChange, TenantFilter
from controlplane.editing.edits.expiry import expire_quotas
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.models import Environment, Revision, TenantQuota
from controlplane.policies.state import read_state
from controlplane.publishing.snapshot import take_snapshot
from controlplane.schedules.due import run_due
from controlplane.schedules.edits import schedule_change
from controlplane.schedules.models import Schedule
from controlplane.spending.model_checks import rewritten
from fuseboard.contract.words import OverrideMode
from tests.controlplane.editing.test_protection_edits import SETTINGS
from tests.people import ADA, OLGA, OTTO, SEED, create_people, create_person

WHY: dict[str, Any] = {"environment": "production", "reason": "for a test"}
NUMBERS: dict[str, Any] = {"limit": 50, "window_s": 60, "burst": 5}


PRICE = {"input": 2_500_000, "output": 10_000_000}


@pytest.fixture
def guarded(production: str) -> str:
    """Production, where one other person must approve: olga or otto."""
    create_people("ada", "olga", "otto")
    edits.set_tenant_quota(tenant="acme", quota="own", expected_version=None, actor=ADA, **NUMBERS, **WHY)
    edits.set_vendor_limit(
        dependency="openai",
        name="contract",
        expected_version=None,
        actor=ADA,
        **NUMBERS | {"burst": 1},
        **WHY,
    )
    edits.set_subject_limit(name="addresses", per=["ip"], actor=ADA, **NUMBERS, **WHY)
    edits.suspend_tenant(tenant="acme", actor=ADA, **WHY)
    edits.create_tenant(tenant="other", tier="free", actor=ADA, **WHY)
    edits.set_template(template="spare", expected_version=None, actor=ADA, **NUMBERS, **WHY)
    prices = {"2099-01-01": PRICE}
    edits.set_model(model="gpt-5.2", prices=prices, expected_version=None, actor=ADA, **WHY)
    for account in ("openai-main", "unused"):
        edits.set_account(account=account, expected_version=None, actor=ADA, **WHY)
    edits.set_budget(budget="month", actor=ADA, **BUDGET, **BY_VERSION, **WHY)
    edits.set_descriptors(domain="edge", file=EDGE, actor=ADA, **BY_VERSION, **WHY)
    rules.set_approvals(needed=1, actor=ADA, **WHY)
    return production


def head() -> int:
    return Environment.objects.get(pk="production").revision


def quota(limit: int = 250, *, actor: Actor = ADA, **more: Any) -> ChangeRequest:
    numbers = {**NUMBERS, "limit": limit, **more}
    with pytest.raises(Proposed) as proposed:
        edits.set_tenant_quota(
            tenant="acme", quota="requests", expected_version=None, actor=actor, **numbers, **WHY
        )
    return proposed.value.request


def approve(row: ChangeRequest, actor: Actor = OLGA, version: int | None = None) -> ChangeRequest:
    return decide.approve(
        environment="production", request=row.pk, expected_version=version or row.version, actor=actor
    )


def apply(row: ChangeRequest, actor: Actor = ADA) -> ChangeRequest:
    return decide.apply(environment="production", request=row.pk, actor=actor)


BY_VERSION: dict[str, Any] = {"expected_version": None}
#: A file of one domain.
EDGE = "domain: edge\ndescriptors:\n- {key: tenant, means: tenant}\n"
BUDGET: dict[str, Any] = {"account": "openai-main", "amount": 50_000_000, "period": "month"}
#: Every function of ``edits`` that changes the configuration of an existing environment.
EDITS: dict[str, dict[str, Any]] = {
    "bulk_edit": {
        "filter": TenantFilter(tier="pro"),
        "change": TenantChange(suspended=False),
        "expected_revision": None,
    },
    "change_tier": {"tenant": "acme", "tier": "free", **BY_VERSION},
    "create_dependency": {"dependency": "maps", "kind": "external"},
    "create_tenant": {"tenant": "new", "tier": "free"},
    "create_tier": {"tier": "gold", "title": "Gold", "priority": 80},
    "describe_dependency": {
        "dependency": "openai",
        "title": "OpenAI",
        "owner": "",
        "fallback_note": "",
        "runbook": None,
        **BY_VERSION,
    },
    "move_tenant": {"tenant": "other", "parent": "acme", **BY_VERSION},
    "raise_budget": {"budget": "month", "amount": 60_000_000, "minutes": 60, **BY_VERSION},
    "remove_account": {"account": "unused", **BY_VERSION},
    "remove_budget": {"budget": "month", **BY_VERSION},
    "remove_descriptors": {"domain": "edge", **BY_VERSION},
    "remove_model": {"model": "gpt-5.2", **BY_VERSION},
    "remove_price": {"model": "gpt-5.2", "starts_at": "2099-01-01", **BY_VERSION},
    "remove_subject_limit": {"name": "addresses"},
    "remove_entity": {"kind": "dependency", "name": "openai"},
    "remove_template": {"template": "spare", **BY_VERSION},
    "remove_tenant": {"tenant": "acme"},
    "remove_tenant_quota": {"tenant": "acme", "quota": "own", **BY_VERSION},
    "remove_tier_quota": {"tier": "free", "quota": "requests", **BY_VERSION},
    "remove_vendor_limit": {"dependency": "openai", "name": "contract", **BY_VERSION},
    "resume_tenant": {"tenant": "acme"},
    "revert": {"number": 5, "expected_revision": None},
    "rollback": {"to_revision": 4, "expected_revision": None},
    "set_account": {"account": "unused", "hosts": ["api.openai.com"], **BY_VERSION},
    "set_breaker_policy": {"dependency": "openai", "breaker": {"probes": 2}, **BY_VERSION},
    "set_budget": {"budget": "month", "amount": 70_000_000, **BY_VERSION},
    "set_dependency": {"dependency": "openai", "settings": SETTINGS, **BY_VERSION},
    "set_default_tier": {"tier": "free"},
    "set_descriptors": {"domain": "edge", "file": f"{EDGE}- key: path\n", **BY_VERSION},
    "set_model": {"model": "gpt-5.2", "aliases": ["large"], **BY_VERSION},
    "set_price": {"model": "gpt-5.2", "starts_at": "2026-01-01", "price": PRICE, **BY_VERSION},
    "set_pod_protection": {"protection": {"retries_per_s": 5}},
    "set_protection": {"dependency": "openai", "protection": {"retry": None}, **BY_VERSION},
    "set_subject_limit": {"name": "keys", "per": ["api_key"], **NUMBERS},
    "set_template": {"template": "usual", "limit": 50, "window_s": 60, "burst": 5, **BY_VERSION},
    "set_tenant_quota": {"tenant": "acme", "quota": "requests", **NUMBERS, **BY_VERSION},
    "set_tier_quota": {"tier": "free", "quota": "requests", **NUMBERS, **BY_VERSION},
    "set_tuning": {"tuning": {"ramp_ms": 5000}},
    "set_vendor_limit": {"dependency": "openai", "name": "second", **NUMBERS, "burst": 1, **BY_VERSION},
    "suspend_tenant": {"tenant": "other"},
}
#: Functions without an environment or for a new one. ``save_edit`` takes one object, see test_edit_entity.
OTHERS = {"create_environment", "save_edit", "TenantChange", "TenantFilter", "EntityEdit"}
#: Pods do not need runbooks, and all environments share them. A bulk edit for later is only a plan.
OTHERS |= {"save_runbook", "restore_runbook", "use_shipped_runbook", "keep_edited_runbook"}
OTHERS |= {"remove_runbook", "scheduled_bulk_edit"}
#: A plan for all bulkheads with the old division, which ``apply_plan`` writes.
OTHERS |= {"share_idle_slots"}


def test_the_table_has_every_edit() -> None:
    writing = {name for name in edits.__all__ if not name.startswith(("preview_", "check_"))}
    assert writing - OTHERS == EDITS.keys()


def test_every_edit_becomes_a_request_and_after_approval_a_revision(guarded: str) -> None:
    for name, given in EDITS.items():
        before, state = head(), read_state("production")
        with pytest.raises(Proposed) as proposed:
            getattr(edits, name)(actor=ADA, **given, **WHY)
        row = proposed.value.request
        assert (head(), read_state("production")) == (before, state), name
        assert not Entry.objects.filter(environment="production", revision__gt=before).exists(), name
        with pytest.raises(InvalidEdit, match="1 more approval"):
            apply(row)
        with transaction.atomic():
            approve(row)
            row = apply(row)
            made = Revision.objects.get(environment="production", number=head())
            assert (row.revision, made.actor, made.action) == (before + 1, "ada", row.action), name
            assert made.changed == row.changed > 0, name
            assert read_state("production") != state, name
            said = Entry.objects.get(action="change_request.applied", revision=made.number)
            assert (said.after["author"], said.after["approved_by"]) == ("ada", "olga"), name
            transaction.set_rollback(True)


def test_a_plan_and_a_copy_need_approval_too(guarded: str) -> None:
    before = head()
    plan = plans.plan_from_document({"tenants": {"acme": {"tier": "enterprise"}}})
    with pytest.raises(Proposed) as proposed:
        plans.apply_plan(plan=plan, expected_revision=None, actor=ADA, **WHY)
    edits.create_environment(environment="staging", reason="for a test", actor=ADA)
    with pytest.raises(Proposed):
        plans.copy_configuration(source="staging", actor=ADA, **WHY)
    assert head() == before
    row = proposed.value.request
    approve(row)
    apply(row)
    assert read_state("production")["tenant", "acme"]["tier"] == "enterprise"


def test_overrides_and_ends_of_quotas_need_no_approval(guarded: str, hour: Any) -> None:
    TenantQuota.objects.filter(name="own").update(expires_at=timezone.now())
    before = head()
    held: dict[str, Any] = {"dependency": "openai", "actor": OLGA, **WHY}
    override_breaker(mode=OverrideMode.FORCED_OPEN, expires_at=hour, **held)
    end_override(**held)
    reset_breaker(**held)
    expire_overrides()
    assert expire_quotas() == [("production", "acme", "own")]
    assert head() == before + 4
    assert not ChangeRequest.objects.exists()


def test_a_person_cannot_approve_a_request_they_made_or_changed(guarded: str) -> None:
    row = quota()
    with pytest.raises(decide.NotYours):
        approve(row, ADA)
    with pytest.raises(decide.NotYours):
        decide.reject(request=row.pk, actor=ADA, **WHY)
    # With their token, of any role.
    with pytest.raises(decide.NotYours):
        approve(row, Actor(name="token ci", role="admin", origin="api", person="ada"))
    with pytest.raises(decide.NotYours, match="has no owner"):
        approve(row, Actor(name="token ci", role="admin", origin="api"))
    # Another account with the same address is the same person.
    User.objects.filter(username="ada").update(email="Ada@example.com")
    User.objects.create_user("ada2", email="ada@example.com", role="operator")
    with pytest.raises(decide.NotYours):
        approve(row, Actor(name="ada2", role="operator", origin="form"))
    # A person who lost the role, or was deactivated.
    User.objects.filter(username="otto").update(role="viewer")
    User.objects.filter(username="olga").update(is_active=False)
    for actor in (OTTO, OLGA):
        with pytest.raises(decide.NotYours):
            approve(row, actor)
    assert not Approval.objects.exists()


def test_a_request_of_a_program_needs_one_approval_more(guarded: str) -> None:
    soon = timezone.now() + timedelta(hours=1)
    create_api_token(name="ci", role="admin", expires_at=soon, actor=SEED, reason=WHY["reason"])
    row = quota(actor=Actor(name="token ci", role="admin", origin="api"))
    assert row.persons == []
    assert approve(row, OLGA).state == "open"
    User.objects.filter(username="olga").update(email="olga@example.com")
    User.objects.create_user("olga2", role="operator", email="Olga@example.com")
    for actor in (OLGA, Actor(name="olga2", role="operator", origin="form")):
        with pytest.raises(InvalidEdit, match="already"):
            approve(row, actor)
    assert approve(row, OTTO).state == "approved"
    # The approval of a person who may no longer approve does not count.
    User.objects.filter(username="otto").update(is_active=False)
    with pytest.raises(InvalidEdit, match="1 more"):
        apply(row)


def test_a_rebase_resets_the_approvals(guarded: str) -> None:
    row = quota(250)
    approve(row)
    other = quota(251, burst=9)
    approve(other)
    apply(other)
    with pytest.raises(EditConflict) as conflict:
        apply(row)
    assert (conflict.value.by, list(conflict.value.changed)) == ("ada", ["tenant acme"])
    newer = rebase.rebase(environment="production", request=row.pk, actor=OTTO)
    assert (newer.pk, newer.version, newer.state, newer.persons) == (row.pk, 2, "open", ["ada", "otto"])
    assert newer.changes.get().before["quotas.requests.limit"] == 251
    with pytest.raises(EditConflict):
        approve(newer, version=1)
    with pytest.raises(decide.NotYours):
        approve(newer, OTTO)
    approve(newer)
    apply(newer)
    fields = read_state("production")["tenant", "acme"]
    assert fields["quotas.requests.limit"] == 250


def test_a_price_that_has_begun_since_it_was_proposed_stays(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Proposed) as proposed:
        edits.set_model(
            model="gpt-5.2", prices={"2099-01-01": PRICE | {"input": 1}}, actor=ADA, **BY_VERSION, **WHY
        )
    row = proposed.value.request
    approve(row)
    later = datetime(2099, 1, 2, tzinfo=UTC)
    monkeypatch.setattr(decide, "rewritten", lambda old, new, now: rewritten(old, new, later))
    with pytest.raises(InvalidEdit, match="This price has begun"):
        apply(row)
    with pytest.raises(InvalidEdit, match="This price has begun"):
        rebase.rebase(environment="production", request=row.pk, actor=OTTO)
    monkeypatch.undo()
    assert apply(row).state == "applied"


def test_a_row_changed_without_an_edit_is_a_conflict(guarded: str) -> None:
    row = quota()
    approve(row)
    TenantQuota.objects.filter(name="own").update(limit=1)
    with pytest.raises(InvalidEdit, match="has changed: rebase"):
        apply(row)


def test_requests_for_different_things_do_not_conflict(guarded: str) -> None:
    row = quota()
    with pytest.raises(Proposed) as proposed:
        edits.create_tenant(tenant="new", tier="free", actor=ADA, **WHY)
    for each in (proposed.value.request, row):
        approve(each)
        apply(each)
    with pytest.raises(Proposed) as proposed:
        edits.rollback(to_revision=4, expected_revision=None, actor=ADA, **WHY)
    whole, small = proposed.value.request, quota(7)
    for each in (whole, small):
        approve(each)
    apply(small)
    with pytest.raises(EditConflict):
        apply(whole)


def test_requests_that_contradict_each_other_are_not_both_applied(guarded: str) -> None:
    """Each was valid when it was made. Together, they made a configuration that no pod gets."""

    def request(make: Any, **given: Any) -> ChangeRequest:
        with pytest.raises(Proposed) as proposed:
            make(expected_version=None, actor=ADA, **given, **WHY)
        return approve(proposed.value.request)

    day: dict[str, Any] = {"amount": 1, "period": "day"}
    first, second = (
        [
            request(edits.set_account, account=f"{name}-account", pools=["openai"]),
            request(edits.set_budget, budget=f"{name}-acme", tenant="acme", instead_of="usual", **day),
            request(edits.set_model, model=f"{name}-model", aliases=["large"]),
        ]
        for name in ("first", "second")
    )
    late = request(edits.set_budget, budget="late", account="unused", **day)
    leaving = request(edits.set_budget, budget="leaving", tenant="other", **day)
    removals = request(edits.remove_account, account="unused"), request(edits.remove_tenant, tenant="other")
    for row in first:
        apply(row)
    for row, message in zip(second, ("already a pool", "already that budget", "already a name"), strict=True):
        with pytest.raises(InvalidEdit, match=message):
            apply(row)
    for row in removals:
        apply(row)
    with pytest.raises(InvalidEdit, match="There is no account 'unused'"):
        apply(late)
    with pytest.raises(InvalidEdit, match="There is no tenant 'other'"):
        apply(leaving)
    assert take_snapshot("production", since=None).head.revision == head()


def test_fewer_approvals_need_approval_and_more_need_enough_people(guarded: str) -> None:
    with pytest.raises(InvalidEdit, match="there are 3"):
        rules.set_approvals(needed=3, actor=ADA, **WHY)
    assert rules.set_approvals(needed=2, actor=ADA, **WHY) == 2
    with pytest.raises(Proposed) as proposed:
        rules.set_approvals(needed=0, actor=ADA, **WHY)
    row = proposed.value.request
    waiting = quota()
    approve(row, OLGA)
    with pytest.raises(InvalidEdit, match="1 more"):
        apply(row)
    approve(row, OTTO)
    apply(row)
    assert edits.resume_tenant(tenant="acme", actor=ADA, **WHY) == head()
    assert ChangeRequest.objects.get(pk=waiting.pk).state == "approved"
    said = Entry.objects.filter(action="approvals.set").order_by("-id")[0]
    assert (said.before, said.after) == ({"needed": 2}, {"needed": 0})


def test_a_scheduled_change_is_applied_as_it_was_approved(guarded: str) -> None:
    document = {"tenants": {"acme": {"tier": "free"}}}
    due_at = timezone.now() + timedelta(hours=1)
    rows = []
    for minutes in range(2):
        due_at += timedelta(minutes=minutes)
        with pytest.raises(Proposed) as proposed:
            schedule_change(due_at=due_at, document=document, actor=ADA, **WHY)
        rows.append(proposed.value.request)
    assert not Schedule.objects.exists()
    for row in rows:
        approve(row)
        apply(row)
    first, second = Schedule.objects.order_by("pk")
    Schedule.objects.filter(pk=first.pk).update(due_at=timezone.now())
    before = head()
    run_due()
    assert (head(), Schedule.objects.get(pk=first.pk).revision) == (before + 1, before + 1)
    # The other one finds a different configuration than was approved, so it needs a new approval.
    other = quota(9)
    approve(other)
    apply(other)
    with pytest.raises(Proposed) as proposed:
        edits.change_tier(tenant="acme", tier="pro", expected_version=None, actor=ADA, **WHY)
    approve(proposed.value.request)
    apply(proposed.value.request)
    Schedule.objects.filter(pk=second.pk).update(due_at=timezone.now())
    run_due()
    second.refresh_from_db()
    assert (second.state, second.error) == ("proposed", "")
    assert ChangeRequest.objects.get(state="open").pk == second.request


def test_a_command_on_the_server_sets_the_number_without_approval(guarded: str) -> None:
    row = quota()
    labels = {"environment": "production", "state": "open"}
    assert REGISTRY.get_sample_value("fuseboard_change_requests", labels) == 1
    call_command("set_approvals", "production", "0", "--reason", "The other approvers have left")
    said = Entry.objects.filter(action="approvals.set").latest("id")
    assert (said.actor, said.origin, said.after) == ("command line", "command", {"needed": 0})
    # A pending request needs no approval any more. An admin still has to apply it.
    assert apply(row).revision == head()


def test_a_change_scheduled_before_approvals_needs_one_when_it_is_due(production: str) -> None:
    create_people("ada", "olga")
    create_person("bob", username="fuseboard")
    schedule_change(
        due_at=timezone.now() + timedelta(hours=1),
        document={"tenants": {"acme": {"tier": "free"}}},
        # A name that could be mistaken for the control plane itself.
        actor=Actor(name="fuseboard", role="admin", origin="form"),
        **WHY,
    )
    rules.set_approvals(needed=1, actor=ADA, **WHY)
    Schedule.objects.update(due_at=timezone.now())
    before = head()
    run_due()
    assert (head(), ChangeRequest.objects.get().state) == (before, "open")


def test_a_rejected_withdrawn_or_expired_request_is_final(guarded: str) -> None:
    rejected, withdrawn, expired = quota(1), quota(2), quota(3)
    decide.reject(request=rejected.pk, actor=OLGA, **WHY)
    with pytest.raises(decide.NotYours):
        decide.withdraw(request=withdrawn.pk, actor=OLGA, **WHY)
    decide.withdraw(request=withdrawn.pk, actor=ADA, **WHY)
    ChangeRequest.objects.filter(pk=expired.pk).update(expires_at=timezone.now())
    assert decide.expire_requests() == 1
    states = ChangeRequest.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == ["rejected", "withdrawn", "expired"]
    for row in (rejected, withdrawn, expired):
        for act in (lambda row=row: approve(row), lambda row=row: apply(row)):
            with pytest.raises(InvalidEdit, match="already"):
                act()


def test_two_concurrent_applies_make_one_revision(guarded: str) -> None:
    row = quota()
    before, ready = head(), threading.Barrier(8)
    results: list[str] = []

    def work(act: Any, actor: Actor) -> None:
        try:
            ready.wait(20)
            act(row, actor)
            results.append("done")
        except (InvalidEdit, EditConflict) as error:
            results.append(str(error))
        finally:
            connection.close()

    def at_once(*acts: tuple[Any, Actor]) -> list[str]:
        results.clear()
        threads = [threading.Thread(target=work, args=act) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return sorted(results)

    found = at_once(*[(approve, OLGA)] * 8)
    assert (found.count("done"), len(found), Approval.objects.count()) == (1, 8, 1)
    found = at_once(*[(apply, ADA)] * 8)
    assert (found.count("done"), len(found), head()) == (1, 8, before + 1)
