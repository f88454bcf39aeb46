"""The token of the first pod, made on the overview of an empty control plane and displayed there once."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import require
from controlplane.accounts.tokens import create_agent_token
from dashboard.edit_form import EditForm, run_edit
from dashboard.views.page import show

NAME = "first pod"
_VALID = timedelta(days=90)


class FirstTokenForm(EditForm):
    reason = None

    def save(self) -> HttpResponse:
        text = create_agent_token(
            name=NAME,
            expires_at=timezone.now() + _VALID,
            reason="Made by the first steps on the overview.",
            # A page that displays a token is the response to its form: reloading it would send it again.
            only_name=True,
            **self.common,
        )
        return _overview(self.request, made_token=text, token_name=NAME, token_days=_VALID.days)


@require_http_methods(["GET", "POST"])
@require("manage_tokens")
def first_token(request: HttpRequest) -> HttpResponse:
    """Reading it again leads to the overview, which no longer knows the token."""
    if request.method == "GET":
        return redirect("overview")
    return run_edit(FirstTokenForm(request), page=_overview)


def _overview(request: HttpRequest, **extra: object) -> HttpResponse:
    return show(request, "overview", "overview.html", **extra)  # type: ignore[arg-type]
