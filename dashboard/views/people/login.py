"""The login page and the user's own account: allauth's views with our pages."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from allauth.account.views import LoginView
from allauth.mfa.adapter import get_adapter
from allauth.mfa.totp.internal.auth import SECRET_SESSION_KEY
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.accounts.models import Login as LoginRow
from controlplane.accounts.settings import PROVIDER
from dashboard.reader import reader_of
from dashboard.views.page import context_of


class Login(LoginView):  # type: ignore[misc]
    template_name = "dashboard/login.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context_data(**kwargs)
        provider = {"provider": PROVIDER, "provider_name": settings.OIDC_NAME} if settings.OIDC_NAME else {}
        given = self.request.GET
        return (
            context
            | provider
            | {"next": given.get("next", ""), "password_saved": given.get("password") == "saved"}
        )

    def form_invalid(self, form: Any) -> Any:
        response = super().form_invalid(form)
        response.status_code = 422
        return response


@require_GET
@login_required
def account(request: HttpRequest) -> HttpResponse:
    """The user's own account: second factor, password, sessions."""
    if request.user.pk is None:
        raise Http404  # Only the claims in the cookie are known, and nothing of the account can be read now.
    # Without a role here, or before a second factor, a person sees no frame: its links lead nowhere.
    framed = reader_of(request) is not None
    logins = LoginRow.objects.filter(user_id=request.user.pk, ended_at__isnull=True).order_by("-created_at")
    return render(
        request,
        "account/account.html",
        {
            **(context_of(request, "account") if framed else {}),
            "extended": f"dashboard/{'base' if framed else 'plain'}.html",
            "framed": framed,
            "logins": logins[:20],
            "has_password": request.user.has_usable_password(),
            "second_factor": get_adapter().is_mfa_enabled(request.user),
            "this": request.session.get("login", ""),
        },
    )


def if_readable(view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """A page of recovery codes, or the reason why they cannot be read: a company account logs in without."""

    @wraps(view)
    def page(request: HttpRequest) -> HttpResponse:
        try:
            return view(request)
        except ValidationError:
            return render(request, "mfa/recovery_codes/unreadable.html")

    return page


@require_GET
@login_required
def totp_picture(request: HttpRequest) -> HttpResponse:
    """The QR code of the secret that is being set up; an image with its own address, so that pages embed
    none.
    """
    secret = request.session.get(SECRET_SESSION_KEY)
    if not secret:
        raise Http404
    adapter = get_adapter()
    svg = adapter.build_totp_svg(adapter.build_totp_url(request.user, secret))
    return HttpResponse(svg, content_type="image/svg+xml")
