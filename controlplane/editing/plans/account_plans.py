"""Accounts and budgets of a plan: what becomes of each, and what cannot be true of all."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from controlplane.editing.plans.plan import Plan
from controlplane.policies import descriptors
from controlplane.policies.fields import Fields
from controlplane.policies.history import Changed
from controlplane.policies.state import State, names_of, parents_of
from controlplane.spending.budget_fields import (
    BUDGET_FIELDS,
    NEW_ACCOUNT,
    NEW_BUDGET,
    wrong_budget,
    wrong_together,
)
from controlplane.spending.budget_rows import OWNERS
from controlplane.spending.model_checks import wrong_names

#: Reports a field, and what is wrong with it.
Report = Callable[[str, str], None]


def planned_account(
    given: Fields, now: Fields | None, dependencies: Collection[str], report: Report
) -> Fields:
    fields = {**NEW_ACCOUNT, **(now or {}), **given}
    for pool in fields["pools"]:
        if pool not in dependencies:
            report("pools", f"There is no dependency {pool!r}.")
    return fields


def planned_budget(
    name: str,
    given: Fields,
    now: Fields | None,
    known: Mapping[str, Collection[str]],
    at: datetime,
    report: Report,
) -> Fields:
    """``known`` has the names that a budget can belong to, by kind."""
    fields = {**NEW_BUDGET, **(now or {}), **given}
    for field, message in wrong_budget(name, fields, now, at):
        report(field, message)
    for owner in OWNERS:
        if fields[owner] and owner in known and fields[owner] not in known[owner]:
            report(owner, f"There is no {owner} {fields[owner]!r}.")
    return {field: fields[field] for field in BUDGET_FIELDS if field in fields}


def tenant_names(
    environment: str, plan: Plan, state: State, wanted: Mapping[tuple[str, str], Any]
) -> set[str]:
    """Return the tenants that budgets of the plan can belong to: those of the plan come before its budgets.

    A plan can have thousands of budgets, so their tenants are read at once.
    """
    budgets = (thing for thing in plan.things if thing[0] == "budget")
    fields = ((state.get(thing) or {}) | plan.things[thing] for thing in budgets)
    named = {one.get("tenant", "") for one in fields}
    return names_of(wanted, "tenant") | parents_of(environment, named - {""}).keys()


def still_used(
    left: Mapping[tuple[str, str], Any], removed: Collection[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and message for each removed thing that an account or a budget still refers to."""
    for (kind, name), fields in left.items():
        if not fields or kind not in ("account", "budget"):
            continue
        for pool in fields["pools"] if kind == "account" else ():
            if ("dependency", pool) in removed:
                yield "dependency", pool, f"It is still a pool of account {name}."
        for owner in OWNERS if kind == "budget" else ():
            if fields[owner] and (owner, fields[owner]) in removed:
                yield owner, fields[owner], f"Budget {name} still belongs to it."


def misfits(changes: Sequence[Changed], state: State) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and message for what would contradict itself among accounts, budgets, models, and
    domains of descriptors.

    The changes were checked before, but against an earlier state.
    """
    changed = {(change.kind, change.name): change.after for change in changes}
    after = {**state, **changed}
    yield from still_used(after, [thing for thing, fields in after.items() if fields is None])
    for kind, name, _, message in wrong_together(after, changed):
        yield kind, name, message
    for name, _, message in wrong_names(after, changed):
        yield "model", name, message
    for name, message in descriptors.wrong_together(after, changed):
        yield "descriptors", name, message
    for change in changes:
        fields = (change.after or {}) if change.kind == "budget" else {}
        for owner in OWNERS:
            if (named := fields.get(owner)) and not after.get((owner, named)):
                yield "budget", change.name, f"There is no {owner} {named!r}."
