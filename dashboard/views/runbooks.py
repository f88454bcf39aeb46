from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import require_role
from dashboard.runbooks import every_runbook, find_runbook
from dashboard.views.page import context_of, not_found, show


@require_GET
@require_role("viewer")
def runbooks(request: HttpRequest) -> HttpResponse:
    return show(request, "runbooks", "runbooks.html", books=every_runbook())


@require_GET
@require_role("viewer")
def runbook(request: HttpRequest, slug: str) -> HttpResponse:
    found = find_runbook(slug)
    if found is None:
        return not_found(
            request, "No such runbook", "Runbooks are loaded from docs/runbooks when the fleet is set up."
        )
    context = context_of(request, "runbooks", runbook=found)
    dependencies = context["live"].facts.dependencies
    context["used_by"] = [dependency.name for dependency in dependencies if dependency.runbook == slug]
    return render(request, "dashboard/runbook.html", context)
