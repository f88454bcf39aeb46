"""Every revision stores its changes, and any revision can be restored."""

from typing import Any

import pytest
from django.db import connection, transaction
from django.db.utils import ProgrammingError

from controlplane.breakers.models import Override
from controlplane.breakers.overrides import override_breaker
from controlplane.editing import edits
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.models import Dependency, Environment, Revision, Tenant, Tier
from controlplane.policies.state import read_state
from fuseboard.contract.words import OverrideMode

WHY: dict[str, Any] = {"environment": "production", "reason": "for a test"}


def quota(ada: Any, limit: int, tenant: str = "acme", **more: Any) -> int:
    return edits.set_tenant_quota(
        tenant=tenant,
        quota="requests",
        limit=limit,
        window_s=60,
        burst=10,
        expected_version=None,
        actor=ada,
        **WHY,
        **more,
    )


def back(ada: Any, to: int, expected: int | None = None) -> int:
    return edits.rollback(to_revision=to, expected_revision=expected, actor=ada, **WHY)


def head() -> int:
    return Environment.objects.get(pk="production").revision


def test_a_revision_stores_actor_reason_and_each_change(production: str, ada: Any) -> None:
    number = quota(ada, 250)
    kept = Revision.objects.get(environment="production", number=number)
    assert (kept.actor, kept.action, kept.target) == ("ada", "tenant_quota.set", "acme")
    [change] = kept.changes.all()
    assert (change.kind, change.name) == ("tenant", "acme")
    assert "quotas.requests.limit" not in change.before
    assert change.after["quotas.requests.limit"] == 250


def test_a_rollback_restores_everything_and_both_revisions_are_stored(
    production: str, ada: Any, hour: Any
) -> None:
    edits.create_tenant(tenant="gone", tier="free", title="Soon away", actor=ada, **WHY)
    quota(ada, 7, "gone", shadow=True, lease_above=5)
    edits.set_subject_limit(name="by-ip", limit=5, window_s=60, burst=5, per=["ip"], actor=ada, **WHY)
    then, number = read_state("production"), head()
    # Every kind of edit, each as a separate revision.
    quota(ada, 99)
    edits.remove_tenant(tenant="gone", actor=ada, **WHY)
    edits.create_tenant(tenant="new", tier="pro", actor=ada, **WHY)
    edits.create_tier(tier="gold", title="Gold", priority=70, actor=ada, **WHY)
    edits.change_tier(tenant="new", tier="gold", expected_version=None, actor=ada, **WHY)
    edits.set_default_tier(tier="gold", actor=ada, **WHY)
    edits.set_tuning(tuning={"ramp_ms": 9_000}, actor=ada, **WHY)
    edits.remove_subject_limit(name="by-ip", actor=ada, **WHY)
    edits.suspend_tenant(tenant="acme", actor=ada, **WHY)
    edits.create_dependency(dependency="search", kind="internal", actor=ada, **WHY)
    edits.set_breaker_policy(
        dependency="openai", breaker={"open_ms": 5_000}, expected_version=None, actor=ada, **WHY
    )
    override_breaker(dependency="openai", mode=OverrideMode.FORCED_OPEN, expires_at=hour, actor=ada, **WHY)
    changed, newest = read_state("production"), head()
    assert changed != then

    restored = back(ada, number, expected=newest)
    assert restored == newest + 1
    assert read_state("production") == then
    assert Revision.objects.get(number=restored).restores == number
    # An override is not configuration, so it stays.
    assert Override.objects.filter(ended_at__isnull=True).count() == 1
    back(ada, newest)
    assert read_state("production") == changed


def test_restored_things_get_new_versions_and_revisions(production: str, ada: Any) -> None:
    before, number = Tenant.objects.get(key="acme"), head()
    edits.remove_tenant(tenant="acme", actor=ada, **WHY)
    edits.create_tier(tier="gold", title="Gold", priority=70, actor=ada, **WHY)
    gold = head()
    back(ada, number)
    again = Tenant.objects.get(key="acme")
    assert (again.deleted, again.changed_revision) == (False, head())
    assert again.version > before.version + 1
    assert not Tier.objects.filter(name="gold").exists()
    back(ada, gold)
    assert Tier.objects.get(name="gold").version > 1


def test_a_conflict_names_a_removed_thing_as_removed(production: str, ada: Any) -> None:
    number = edits.create_tenant(tenant="globex", tier="free", actor=ada, **WHY)
    quota(ada, 7, "globex")
    quota(ada, 300)
    common: dict[str, Any] = {"tenant": "globex", "expected_version": None, "actor": ada, **WHY}
    removal = edits.remove_tenant(**common)
    with pytest.raises(EditConflict) as conflict:
        back(ada, 1, expected=number)
    assert conflict.value.changed["tenant globex"] == "removed"
    assert "quotas.requests.limit" in conflict.value.changed["tenant acme"]
    with pytest.raises(EditConflict) as conflict:
        edits.revert(number=removal, expected_revision=removal - 1, actor=ada, **WHY)
    assert conflict.value.changed == {"tenant globex": "removed"}


def test_a_restored_configuration_is_published(production: str, ada: Any, text_limits: Any) -> None:
    from tests.controlplane.publishing.test_publishing import record

    number = head()
    quota(ada, 250)
    edits.create_tenant(tenant="new", tier="pro", actor=ada, **WHY)
    assert record(text_limits, "new") is not None
    back(ada, number)
    assert record(text_limits, "new") is None
    assert record(text_limits, "acme").quotas == ()


def test_a_rollback_after_another_edit_is_a_conflict(production: str, ada: Any, hour: Any) -> None:
    number = quota(ada, 250)
    seen = quota(ada, 300)
    quota(ada, 350)
    with pytest.raises(EditConflict) as conflict:
        back(ada, number, expected=seen)
    assert conflict.value.current_version == seen + 1
    assert conflict.value.by == "ada"
    assert list(conflict.value.changed) == ["tenant acme"]
    assert head() == seen + 1
    # An override in between takes a revision, too, but changes nothing of the configuration.
    seen = head()
    override_breaker(dependency="openai", mode=OverrideMode.FORCED_OPEN, expires_at=hour, actor=ada, **WHY)
    assert back(ada, number, expected=seen) == seen + 2


def test_a_rollback_without_a_change_writes_nothing(production: str, ada: Any) -> None:
    number = quota(ada, 250)
    assert back(ada, number) == number
    assert head() == number


@pytest.mark.parametrize("to", [0, -1, 10_000])
def test_a_rollback_to_an_unknown_revision_is_refused(production: str, ada: Any, to: int) -> None:
    with pytest.raises(InvalidEdit):
        back(ada, to)


def test_a_rollback_that_removes_an_overridden_dependency_is_refused(
    production: str, ada: Any, hour: Any
) -> None:
    number = head()
    quota(ada, 250)
    edits.create_dependency(dependency="search", kind="internal", actor=ada, **WHY)
    override_breaker(dependency="search", mode=OverrideMode.FORCED_OPEN, expires_at=hour, actor=ada, **WHY)
    before, newest = read_state("production"), head()
    with pytest.raises(InvalidEdit, match="breaker of search has an override"):
        back(ada, number)
    assert (read_state("production"), head()) == (before, newest)
    assert Dependency.objects.filter(name="search").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM policies_change",
        "UPDATE policies_change SET after = NULL",
        "DELETE FROM policies_revision",
        "UPDATE policies_revision SET actor = 'nobody'",
    ],
)
def test_sql_cannot_change_the_history(production: str, statement: str) -> None:
    with pytest.raises(ProgrammingError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
