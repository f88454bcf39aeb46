"""The error budgets of dependencies and of quotas of tenants."""

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require
from controlplane.policies.models import Dependency
from controlplane.status.error_budgets import DAYS, TARGET_PERCENT, dependency_budgets, tenant_budgets
from dashboard.views.page import show


@require_GET
@require("view")
def error_budgets(request: HttpRequest) -> HttpResponse:
    environment, now = environment_in(request), timezone.now()
    lists = [
        ("dependencies", "Dependencies", dependency_budgets(environment, now)),
        ("quotas", "Quotas of tenants", tenant_budgets(environment, now)),
    ]
    # A dependency that is deleted has hours, but no page.
    linked = set(Dependency.objects.filter(environment=environment).values_list("name", flat=True))
    return show(
        request,
        "error_budgets",
        "error_budgets.html",
        lists=[(of, heading, budgets.lines) for of, heading, budgets in lists],
        linked=linked,
        spent=sum(budgets.spent for _, _, budgets in lists),
        days=DAYS,
        target=TARGET_PERCENT,
    )
