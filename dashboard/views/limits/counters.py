"""Clears the counter of a limit."""

from collections.abc import Mapping

import redis
import structlog
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.errors import EditError, InvalidEdit, NotFound
from controlplane.policies.models import Dependency
from controlplane.spending.budget_rows import Budget
from controlplane.usage.clear_counter import DOWN, clear_counter
from dashboard.edit_form import EditForm, Errors, run_edit
from dashboard.forms import TextField
from dashboard.views.page import choices_of, show

log = structlog.get_logger(__name__)

#: Kind of a subject that a limit can count -> the label of its value.
BY = (("user", "User"), ("ip", "Address"), ("api_key", "API key"), ("endpoint", "Endpoint"))
_NAMED = ("tenant", "dependency", "limit", "budget")


class ClearForm(EditForm):
    limit = TextField(200)
    budget = TextField(200)
    tenant = TextField(200)
    dependency = TextField(200)
    user = TextField(200)
    ip = TextField(200)
    api_key = TextField(200)
    endpoint = TextField(200)

    def save(self) -> str:
        given = self.given
        counted = clear_counter(values={name: given.pop(name) for name, _ in BY}, **given)
        self.then = _address(given)
        said = f"The counter of {given['limit'] or given['budget']} is cleared."
        return said if counted else f"{said} It was empty already."

    def refuse(self, error: EditError) -> int:
        if isinstance(error, NotFound):
            error = InvalidEdit({"budget" if self.given["budget"] else "limit": [str(error)]})
        return super().refuse(error)


@never_cache
@require_http_methods(["GET", "POST"])
@require("clear_counter")
def clear(request: HttpRequest) -> HttpResponse:
    """A form; the caller is in the body of its POST, because addresses are logged."""
    if request.method != "POST":
        # A link from the row of a limit names it; an address of a caller is typed.
        return _page(request, typed={name: request.GET.get(name, "") for name in _NAMED})
    form = ClearForm(request)
    try:
        return run_edit(form, page=_page)
    except redis.RedisError as error:
        log.warning("counter.not_cleared", error=str(error))
        return _page(request, typed=form.data, errors={"limit": [DOWN]}, status=503)


def _page(
    request: HttpRequest,
    *,
    typed: Mapping[str, str],
    errors: Errors | None = None,
    status: int = 200,
) -> HttpResponse:
    environment = environment_in(request)
    budgets = choices_of(Budget, environment, "None: the limit")
    dependencies = choices_of(Dependency, environment, "Incoming requests")
    known = {
        "budget": typed.get("budget", "") if typed.get("budget") in dict(budgets) else "",
        "tenant": typed.get("tenant", ""),
        "dependency": typed.get("dependency", "") if typed.get("dependency") in dict(dependencies) else "",
    }
    return show(
        request,
        "limits",
        "clear_counter.html",
        status=status,
        errors=errors,
        typed=typed,
        by=[(name, label, typed.get(name, ""), (errors or {}).get(name)) for name, label in BY],
        budgets=_with_typed(budgets, typed.get("budget", "")),
        dependencies=_with_typed(dependencies, typed.get("dependency", "")),
        back=_address(known),
    )


def _with_typed(choices: list[tuple[str, str]], typed: str) -> list[tuple[str, str]]:
    """Keep a name that a link has and that is gone: the form would clear another counter."""
    return choices if typed in dict(choices) else [*choices, (typed, typed)]


def _address(named: Mapping[str, str]) -> str:
    """The page of what a counter belongs to."""
    if named.get("budget"):
        return reverse("money_budget", args=[named["budget"]])
    if named.get("tenant"):
        return reverse("tenant", query={"key": named["tenant"]})
    return reverse("breaker", args=[named["dependency"]]) if named.get("dependency") else reverse("limits")
