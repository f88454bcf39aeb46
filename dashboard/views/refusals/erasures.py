"""Erases what is stored about one caller."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import require
from controlplane.erasure import erase
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import TextField
from dashboard.views.page import show

KINDS = (("ip", "Address"), ("user", "Login"), ("api_key", "API key"), ("tenant", "Tenant"))


class EraseForm(EditForm):
    kind = TextField()
    value = TextField(200)

    def save(self) -> str:
        return f"Erased {erase(**self.given).words}."


@never_cache
@require_http_methods(["GET", "POST"])
@require("erase")
def erase_caller(request: HttpRequest) -> HttpResponse:
    """A form; the caller is in the body of its POST, because addresses are logged."""
    return run_edit(EraseForm(request), page=_page, then="erase")


def _page(request: HttpRequest, **extra: Any) -> HttpResponse:
    return show(request, "refusals", "erase.html", kinds=KINDS, **extra)
