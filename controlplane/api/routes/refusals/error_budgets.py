"""The error budgets of dependencies and of quotas of tenants."""

from django.http import HttpRequest
from django.utils import timezone
from ninja import Router

from controlplane.api.schemas.edits_in import Environment, Match
from controlplane.api.schemas.error_budgets import BudgetsOfAll, ErrorBudgetsOut
from controlplane.policies.document import environment_of
from controlplane.status.error_budgets import ErrorBudgets, dependency_budgets, tenant_budgets

router = Router()


@router.get("", response=ErrorBudgetsOut)
def list_error_budgets(
    request: HttpRequest, environment: Environment, dependency: Match = "", tenant: Match = ""
) -> BudgetsOfAll:
    """How much of each error budget of the last 28 days is left, the most spent first, at most 50 of a kind.

    With `dependency` or `tenant`, only theirs. `spent` counts also those that are not listed.
    """
    slug, now, none = environment_of(environment).slug, timezone.now(), ErrorBudgets(lines=[], spent=0)
    of_dependencies, of_tenants = dependency or not tenant, tenant or not dependency
    return BudgetsOfAll(
        dependencies=dependency_budgets(slug, now, name=dependency) if of_dependencies else none,
        tenants=tenant_budgets(slug, now, name=tenant) if of_tenants else none,
    )
