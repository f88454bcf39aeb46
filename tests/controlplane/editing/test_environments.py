"""A second environment: a separate line of revisions, created as a copy of another one."""

from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.plans import copy_configuration
from controlplane.policies.models import Environment
from controlplane.policies.state import read_state
from controlplane.spending.models import Budget
from fuseboard.contract import keys
from fuseboard.contract.policy import decode_policy

WHY: dict[str, Any] = {"reason": "for a test of staging"}


def plain(environment: str) -> dict[Any, Any]:
    """The configuration without the name of the environment."""
    return {
        (kind, "" if kind == "environment" else name): f
        for (kind, name), f in read_state(environment).items()
    }


def test_a_copied_environment_starts_equal_and_changes_independently(
    production: str, ada: Any, text_limits: Any
) -> None:
    edits.set_tuning(environment="production", tuning={"ramp_ms": 9_000}, actor=ada, **WHY)
    edits.create_tier(environment="production", tier="gold", title="", priority=70, actor=ada, **WHY)
    edits.set_default_tier(environment="production", tier="gold", actor=ada, **WHY)
    call_command("create_environment", "staging", "--like", "production", "--tenants", verbosity=0)
    assert plain("staging") == plain("production")
    head = text_limits.hgetall(keys.config_head("staging"))
    assert head["revision"] == "2"
    policy = decode_policy(head["policy"].encode())
    assert (policy.environment, policy.default_tier) == ("staging", "gold")

    before = Environment.objects.get(pk="production").revision
    edits.suspend_tenant(environment="staging", tenant="acme", actor=ada, **WHY)
    edits.rollback(environment="staging", to_revision=1, expected_revision=3, actor=ada, **WHY)
    assert Environment.objects.get(pk="production").revision == before
    assert ("tenant", "acme") not in read_state("staging")
    assert ("tenant", "acme") in read_state("production")


def test_a_copy_keeps_the_tenants_unless_they_are_copied_too(production: str, ada: Any) -> None:
    edits.create_environment(environment="staging", actor=ada, **WHY)
    edits.create_tenant(environment="staging", tenant="own", tier="free", actor=ada, **WHY)
    copy: dict[str, Any] = {"source": "production", "environment": "staging", "actor": ada, **WHY}
    revision = copy_configuration(**copy)
    assert ("dependency", "openai") in read_state("staging")
    assert ("tenant", "own") in read_state("staging")
    assert copy_configuration(**copy) == revision, "twice changes nothing"


def test_a_copy_without_tenants_leaves_out_their_budgets_and_keeps_those_of_its_own(
    production: str, ada: Any
) -> None:
    def budget(environment: str, name: str, **given: Any) -> None:
        edits.set_budget(
            environment=environment, budget=name, amount=5, period="day", expected_version=0, actor=ada,
            **given, **WHY,
        )  # fmt: skip

    budget("production", "acme-day", tenant="acme")
    budget("production", "pro-day", tier="pro")
    edits.raise_budget(
        environment="production", budget="pro-day", amount=9, minutes=60, expected_version=None,
        actor=ada, **WHY,
    )  # fmt: skip
    edits.create_environment(environment="staging", actor=ada, **WHY)
    edits.create_tenant(environment="staging", tenant="own", tier="free", actor=ada, **WHY)
    budget("staging", "own-day", tenant="own")
    budget("staging", "free-day", tier="free")
    copy: dict[str, Any] = {"source": "production", "environment": "staging", "actor": ada, **WHY}
    copy_configuration(**copy)
    rows = Budget.objects.filter(environment="staging").order_by("name")
    assert list(rows.values_list("name", "raised_to")) == [("own-day", None), ("pro-day", None)]
    copy_configuration(**copy, with_tenants=True)
    assert list(rows.values_list("name", "tenant")) == [("acme-day", "acme"), ("pro-day", "")]


def test_an_unknown_source_environment_is_an_error(production: str) -> None:
    with pytest.raises(CommandError, match="There is no environment 'nowhere'"):
        call_command("create_environment", "staging", "--like", "nowhere")


def test_creating_an_environment_is_not_recorded_as_sql(production: str, ada: Any) -> None:
    edits.create_environment(environment="staging", actor=ada, **WHY)
    assert not Entry.objects.filter(origin="sql").exists()
