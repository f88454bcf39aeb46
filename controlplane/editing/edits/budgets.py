"""Edits of accounts and budgets."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from controlplane.audit.actor import FUSEBOARD, Actor
from controlplane.editing.edits.edit_entity import EntityEdit, put_edit, remove_entity, save_call
from controlplane.editing.revise import revise
from controlplane.editing.rows.write_changes import write_changes
from controlplane.errors import InvalidEdit
from controlplane.policies.history import Changed
from controlplane.policies.state import read_budgets
from controlplane.spending.budget_fields import NOT_RAISED
from controlplane.spending.budget_rows import Budget

#: The most raised budgets that end with one revision.
_AT_ONCE = 1_000


def set_account(
    *,
    environment: str,
    account: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    hosts: list[str] | None = None,
    pools: list[str] | None = None,
) -> int:
    """Create an account, on version 0, or change one. What is ``None`` stays."""
    edit = put_edit(environment, "account", account, expected_version, {"hosts": hosts, "pools": pools})
    return save_call(edit, reason=reason, actor=actor)


def remove_account(
    *, environment: str, account: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    """Remove an account that no budget belongs to."""
    return remove_entity(
        environment=environment,
        kind="account",
        name=account,
        version=expected_version,
        reason=reason,
        actor=actor,
    )


def set_budget(
    *,
    environment: str,
    budget: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    **given: Any,
) -> int:
    """Create a budget, on version 0, or change one. What is ``None`` or left out stays.

    ``given`` has the fields of ``controlplane.spending.budget_fields.BUDGET_FIELDS``.
    """
    typed = {field: _text(value) for field, value in given.items()}
    edit = put_edit(environment, "budget", budget, expected_version, typed)
    return save_call(edit, reason=reason, actor=actor)


def raise_budget(
    *,
    environment: str,
    budget: str,
    amount: int,
    minutes: int,
    expected_version: int | None,
    reason: str,
    actor: Actor,
) -> int:
    """Raise a budget for some minutes. Then its amount applies again.

    Raises ``InvalidEdit`` for an ``amount`` that is not more than that of the budget.
    """
    if amount <= 0:
        raise InvalidEdit({"amount": ["Enter an amount of more than 0."]})
    until = timezone.now().replace(microsecond=0) + timedelta(minutes=minutes)
    typed = {"raised_to": amount, "raised_until": until.astimezone(UTC).isoformat()}
    edit = EntityEdit(environment, "budget", budget, typed=typed, version=expected_version)
    try:
        return save_call(edit, reason=reason, actor=actor, action="budget.raised")
    except InvalidEdit as error:
        given = {"raised_to": "amount", "raised_until": "minutes"}
        raise InvalidEdit({given.get(field, field): said for field, said in error.errors.items()}) from error


def remove_budget(
    *, environment: str, budget: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    return remove_entity(
        environment=environment,
        kind="budget",
        name=budget,
        version=expected_version,
        reason=reason,
        actor=actor,
    )


def lower_raised_budgets() -> list[tuple[str, str]]:
    """End the raised amounts whose time is over. Return environment and budget of each."""
    ended: list[tuple[str, str]] = []
    over = Budget.objects.filter(raised_until__lte=timezone.now())
    for environment in sorted(set(over.values_list("environment_id", flat=True))):
        with (
            suppress(_AlreadyEnded),
            revise(
                environment=environment,
                actor=FUSEBOARD,
                reason="The time of the raised budget is over.",
                needs_approval=False,
            ) as revision,
        ):
            # Read under the revision's lock: an edit may have ended or prolonged them.
            due = over.filter(environment=environment).order_by("name")
            names = list(due.values_list("name", flat=True)[:_AT_ONCE])
            if not names:
                raise _AlreadyEnded
            state = read_budgets(environment)
            changes = []
            for name in names:
                before = state["budget", name]
                changes.append(Changed("budget", name, before, before | NOT_RAISED))
            for change in changes:
                revision.audit_change("budget.lowered", change)
            write_changes(revision, changes)
            ended += [(environment, name) for name in names]
    return ended


class _AlreadyEnded(Exception):
    pass


def _text(value: Any) -> Any:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
