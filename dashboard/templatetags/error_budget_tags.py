"""The error budget of one dependency or tenant, at the end of its page."""

from typing import Any

from django import template
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from controlplane.accounts.permissions import environment_in
from controlplane.status.error_budgets import DAYS, TARGET_PERCENT, dependency_budgets, tenant_budgets

register = template.Library()


@register.inclusion_tag("dashboard/error_budget.html", takes_context=True)
def error_budget(context: template.Context, *, dependency: str = "", tenant: str = "") -> dict[str, Any]:
    """Nothing while Postgres is down: the rest of the page works without it."""
    environment, now = environment_in(context["request"]), timezone.now()
    try:
        budgets = (
            dependency_budgets(environment, now, name=dependency)
            if dependency
            else tenant_budgets(environment, now, name=tenant)
        )
    except (OperationalError, InterfaceError):
        return {"unknown": True}
    return {
        "budgets": budgets.lines,
        "linked": [dependency],
        "days": DAYS,
        "target": TARGET_PERCENT,
        "heading": "Error budget",
        "id": "eb",
    }
