"""Accounts at vendors: their pools, which stop and spend together."""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.editing import edits
from controlplane.errors import InvalidEdit
from controlplane.phrases import amount_words
from controlplane.policies.models import Dependency
from controlplane.spending.budget_rows import Account, Budget
from dashboard.edit_form import NOT_SENT, EditForm, VersionForm, chosen_form, run_edit
from dashboard.forms import LinesField, TextField, TextsField
from dashboard.views.page import find_named, names_of, not_found, show

_MANY_LINES = 8_000


class NewAccountForm(EditForm):
    name = TextField(200)
    pools, hosts = TextsField(), LinesField(_MANY_LINES)
    shown_at: ClassVar = {"account": "name"}

    def save(self) -> int:
        typed = self.cleaned_data
        if not typed["name"]:
            raise InvalidEdit({"name": ["Enter a name for the account, such as openai-main."]})
        revision = edits.set_account(
            account=typed["name"],
            pools=list(typed["pools"]),
            hosts=typed["hosts"],
            expected_version=0,
            **self.common,
        )
        # Only a name that was saved has an address.
        self.then = reverse("vendor_account", args=[typed["name"]])
        return revision


class ChangeForm(VersionForm):
    pools, hosts = TextsField(), LinesField(_MANY_LINES)

    def save(self) -> int:
        typed = self.cleaned_data
        return edits.set_account(pools=list(typed["pools"]), hosts=typed["hosts"], **self.common)


class RemoveForm(VersionForm):
    def save(self) -> int:
        self.then = reverse("vendor_accounts")
        return edits.remove_account(**self.common)


#: Button -> its form.
_ACTS = {"change": ChangeForm, "remove": RemoveForm}


@require_GET
@require_role("viewer")
def accounts(request: HttpRequest) -> HttpResponse:
    return _list(request)


@require_POST
@require("edit_quota")
def make_account(request: HttpRequest) -> HttpResponse:
    return run_edit(NewAccountForm(request), page=_list)


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def account(request: HttpRequest, name: str) -> HttpResponseBase:
    if request.method == "POST":
        return require("edit_quota")(_edit)(request, name)
    return _page(request, name=name)


def _edit(request: HttpRequest, name: str) -> HttpResponse:
    form = chosen_form(request, _ACTS, account=name)
    page = partial(_page, name=name, act=form.act)
    return run_edit(form, page=page, then=reverse("vendor_account", args=[name]))


def _list(request: HttpRequest, *, status: int = 200, **sent: Any) -> HttpResponse:
    environment = environment_in(request)
    rows = Account.objects.filter(environment=environment).order_by("name")
    budgets = _budgets_by_account(environment)
    chosen = _chosen(sent)
    return show(
        request,
        "vendor_accounts",
        "accounts.html",
        status=status,
        rows=[(row, budgets[row.name]) for row in rows],
        dependencies=_dependencies(environment, chosen),
        chosen=chosen,
        **{**NOT_SENT, **sent},
    )


def _page(request: HttpRequest, *, name: str, status: int = 200, **sent: Any) -> HttpResponse:
    environment = environment_in(request)
    row = find_named(Account.objects.filter(environment=environment), name)
    if row is None:
        return not_found(request, "No such account", "There is no account with this name.")
    chosen = _chosen(sent) if sent.get("act") == "change" else row.pools
    return show(
        request,
        "vendor_accounts",
        "account.html",
        status=status,
        row=row,
        budgets=_budgets_by_account(environment)[row.name],
        dependencies=_dependencies(environment, chosen),
        chosen=chosen,
        hosts="\n".join(row.hosts),
        **{**NOT_SENT, **sent},
    )


def _chosen(sent: Mapping[str, Any]) -> list[str]:
    """The pools that are ticked in a form that was refused."""
    typed = sent.get("typed")
    return typed.getlist("pools") if isinstance(typed, QueryDict) else []


def _dependencies(environment: str, chosen: list[str]) -> list[str]:
    """The choices of pools. A ticked one stays, also if its dependency was removed meanwhile."""
    return sorted({*names_of(Dependency, environment), *chosen})


def _budgets_by_account(environment: str) -> Mapping[str, list[tuple[str, str]]]:
    found: Mapping[str, list[tuple[str, str]]] = defaultdict(list)
    for row in Budget.objects.filter(environment=environment).exclude(account="").order_by("name"):
        found[row.account].append(
            (row.name, f"{amount_words(row.amount, row.measure, exact=True)} per {row.period}")
        )
    return found
