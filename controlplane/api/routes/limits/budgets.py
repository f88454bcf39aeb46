"""Accounts at vendors, and the budgets of accounts, dependencies, tiers and tenants."""

from django.http import HttpRequest, HttpResponse
from ninja import Path, Router

from controlplane.api.http.auth import needs
from controlplane.api.http.versions import RemovalInQuery, edit_arguments, find_version
from controlplane.api.schemas.budgets import (
    AccountIn,
    AccountOut,
    BudgetIn,
    BudgetName,
    BudgetOut,
    RaiseIn,
)
from controlplane.api.schemas.configuration_out import RevisionOut
from controlplane.api.schemas.edits_in import Environment, Slug
from controlplane.editing import edits
from controlplane.policies.document import environment_of

accounts = Router()
router = Router()
BudgetInPath = Path[BudgetName]


@accounts.get("", response=list[AccountOut])
def list_accounts(request: HttpRequest, environment: Environment) -> object:
    return environment_of(environment).accounts.order_by("name")


@accounts.get("/{account}", response=AccountOut)
def get_account(
    request: HttpRequest, response: HttpResponse, environment: Environment, account: Slug
) -> object:
    return find_version(response, environment_of(environment).accounts.all(), "account", name=account)


@accounts.put("/{account}", response=RevisionOut, auth=needs("edit_quota"))
def set_account(
    request: HttpRequest, environment: Environment, account: Slug, values: AccountIn
) -> RevisionOut:
    """Create an account, on version 0, or change one."""
    revision = edits.set_account(environment=environment, account=account, **edit_arguments(request, values))
    return RevisionOut(revision=revision)


@accounts.delete("/{account}", response=RevisionOut, auth=needs("edit_quota"))
def remove_account(
    request: HttpRequest, environment: Environment, account: Slug, removal: RemovalInQuery
) -> RevisionOut:
    """Delete an account that has no budget."""
    revision = edits.remove_account(
        environment=environment, account=account, **edit_arguments(request, removal)
    )
    return RevisionOut(revision=revision)


@router.get("", response=list[BudgetOut])
def list_budgets(request: HttpRequest, environment: Environment) -> object:
    return environment_of(environment).budgets.order_by("name")


@router.get("/{budget}", response=BudgetOut)
def get_budget(
    request: HttpRequest, response: HttpResponse, environment: Environment, budget: BudgetInPath
) -> object:
    return find_version(response, environment_of(environment).budgets.all(), "budget", name=budget)


@router.put("/{budget}", response=RevisionOut, auth=needs("edit_quota"))
def set_budget(
    request: HttpRequest, environment: Environment, budget: BudgetInPath, values: BudgetIn
) -> RevisionOut:
    """Create a budget, on version 0, or change one. Pods with an older agent enforce none."""
    revision = edits.set_budget(environment=environment, budget=budget, **edit_arguments(request, values))
    return RevisionOut(revision=revision)


@router.post("/{budget}/raise", response=RevisionOut, auth=needs("edit_quota"))
def raise_budget(
    request: HttpRequest, environment: Environment, budget: BudgetInPath, values: RaiseIn
) -> RevisionOut:
    """Raise a budget for some minutes. Then its amount applies again."""
    revision = edits.raise_budget(environment=environment, budget=budget, **edit_arguments(request, values))
    return RevisionOut(revision=revision)


@router.delete("/{budget}", response=RevisionOut, auth=needs("edit_quota"))
def remove_budget(
    request: HttpRequest, environment: Environment, budget: BudgetInPath, removal: RemovalInQuery
) -> RevisionOut:
    revision = edits.remove_budget(environment=environment, budget=budget, **edit_arguments(request, removal))
    return RevisionOut(revision=revision)
