"""Accounts at vendors: their pools, which stop and spend together."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.editing import edits
from controlplane.errors import EditConflict, EditError, InvalidEdit
from controlplane.spending.budget_rows import Account, Budget
from dashboard.edit_form import EditForm, chosen_form, run_edit
from dashboard.forms import SentNumberField, TextField
from dashboard.views.page import context_of, not_found
from dashboard.words.rate_words import amount_words

_MANY_LINES = 8_000


class NewAccountForm(EditForm):
    name = TextField(200)
    pools, hosts = TextField(_MANY_LINES), TextField(_MANY_LINES)

    def save(self) -> int:
        typed = self.cleaned_data
        if not typed["name"]:
            raise InvalidEdit({"name": ["Enter a name for the account, such as openai-main."]})
        revision = edits.set_account(
            account=typed["name"],
            pools=_lines(typed["pools"]),
            hosts=_lines(typed["hosts"]),
            expected_version=0,
            **self.common,
        )
        # Only a name that was saved has an address.
        self.then = reverse("vendor_account", args=[typed["name"]])
        return revision

    def refuse(self, error: EditError) -> int:
        if isinstance(error, InvalidEdit):
            error = InvalidEdit(
                {"name" if field == "account" else field: texts for field, texts in error.errors.items()}
            )
        return super().refuse(error)


class ChangeForm(EditForm):
    pools, hosts = TextField(_MANY_LINES), TextField(_MANY_LINES)
    version = SentNumberField()

    def save(self) -> int:
        return edits.set_account(
            pools=_lines(self.cleaned_data["pools"]),
            hosts=_lines(self.cleaned_data["hosts"]),
            expected_version=self.cleaned_data["version"],
            **self.common,
        )


class RemoveForm(EditForm):
    version = SentNumberField()

    def save(self) -> int:
        self.then = reverse("vendor_accounts")
        return edits.remove_account(expected_version=self.cleaned_data["version"], **self.common)


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
    def page(request: HttpRequest, **extra: Any) -> HttpResponse:
        return _page(request, name=name, act=request.POST.get("act", ""), **extra)

    form = chosen_form(request, _ACTS, account=name)
    return run_edit(form, page=page, then=reverse("vendor_account", args=[name]))


def _list(
    request: HttpRequest,
    *,
    typed: Mapping[str, Any] | None = None,
    errors: Mapping[str, Any] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    environment = environment_in(request)
    rows = Account.objects.filter(environment=environment).order_by("name")
    budgets = _budgets_by_account(environment)
    context = context_of(
        request,
        "vendor_accounts",
        rows=[(row, budgets[row.name]) for row in rows],
        typed=typed or {},
        errors=errors or {},
        conflict=conflict,
    )
    return render(request, "dashboard/accounts.html", context, status=status)


def _page(
    request: HttpRequest,
    *,
    name: str,
    act: str = "",
    typed: Mapping[str, Any] | None = None,
    errors: Mapping[str, Any] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    environment = environment_in(request)
    rows = Account.objects.filter(environment=environment, name=name[:64].replace("\x00", ""))
    if (row := rows.first()) is None:
        return not_found(request, "No such account", "There is no account with this name.")
    context = context_of(
        request,
        "vendor_accounts",
        row=row,
        budgets=_budgets_by_account(environment)[row.name],
        pools="\n".join(row.pools),
        hosts="\n".join(row.hosts),
        act=act,
        typed=typed or {},
        errors=errors or {},
        conflict=conflict,
    )
    return render(request, "dashboard/account.html", context, status=status)


def _budgets_by_account(environment: str) -> Mapping[str, list[tuple[str, str]]]:
    found: Mapping[str, list[tuple[str, str]]] = defaultdict(list)
    for row in Budget.objects.filter(environment=environment).exclude(account="").order_by("name"):
        found[row.account].append((row.name, f"{amount_words(row.amount, row.measure)} per {row.period}"))
    return found


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
