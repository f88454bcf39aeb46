"""Tokens of pods and programs: made, rotated and revoked; their text is displayed once."""

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts import tokens as edits
from controlplane.accounts.models import AgentToken, ApiToken, Role
from controlplane.accounts.owned_tokens import with_rights
from controlplane.accounts.permissions import environment_in, may, require
from controlplane.errors import InvalidEdit, NameTaken, NotFound
from controlplane.policies.models import Environment
from dashboard.live.pod_page import ENDS_SOON
from dashboard.reader import actor_of
from dashboard.views.page import context_of

_DAYS = (7, 30, 90, 365)
#: How long the old token stays valid -> hours.
_OVERLAPS = (("1 hour", 1), ("1 day", 24), ("1 week", 168))


@require_http_methods(["GET", "POST"])
@require("manage_tokens")
def tokens(request: HttpRequest) -> HttpResponseBase:
    if request.method != "POST":
        return _page(request)
    typed = request.POST
    try:
        match typed.get("act", ""):
            case "agent" | "api":
                return _page(request, text=_make(request, typed), made=typed.get("name", "")[:200])
            case "rotate":
                return _page(request, text=_rotate(request, typed), made=typed.get("name", "")[:200])
            case "revoke":
                selector = typed.get("selector", "")
                _may_touch(request, selector)
                reason = typed.get("reason", "")
                edits.revoke_token(selector=selector, reason=reason, actor=actor_of(request))
                messages.success(request, "The token was revoked. Gateways refuse it from now on.")
                return redirect("tokens")
    except InvalidEdit as error:
        return _page(request, typed=typed, errors=error.errors, status=422)
    except NameTaken as error:
        return _page(request, typed=typed, errors={"name": [str(error)]}, status=422)
    except NotFound:
        return _page(request, errors={"act": ["This token has been revoked or replaced."]}, status=409)
    return _page(request, errors={"act": ["Choose an action."]}, status=422)


def _make(request: HttpRequest, typed: QueryDict) -> str:
    environment = typed.get("environment", "")
    if environment not in _environments(request) and not (environment == "" and _everywhere(request)):
        raise InvalidEdit({"environment": ["Choose an environment you administer."]})
    common: dict[str, Any] = {
        "name": typed.get("name", "").strip(),
        "environment": environment,
        "expires_at": timezone.now() + timedelta(days=_number(typed.get("days", ""))),
        "reason": typed.get("reason", ""),
        "actor": actor_of(request),
        # A page that displays a token is the response to its form: reloading it would send the form again.
        "only_name": True,
    }
    if typed["act"] == "agent":
        if not environment:
            raise InvalidEdit(
                {"environment": ["Choose an environment: an agent token is valid in only one."]}
            )
        return edits.create_agent_token(
            service=typed.get("service", "").strip(),
            name_prefix=typed.get("name_prefix", "").strip(),
            **common,
        )
    return edits.create_api_token(role=typed.get("role", ""), **common)


def _rotate(request: HttpRequest, typed: QueryDict) -> str:
    row = _may_touch(request, typed.get("selector", ""))
    lasted = row.expires_at - row.created_at
    return edits.rotate_token(
        model=type(row),
        environments=[row.environment],
        selector=row.selector,
        overlap=timedelta(hours=min(168, _number(typed.get("overlap", "")))),
        expires_at=timezone.now() + min(lasted, edits.LONGEST),
        reason=typed.get("reason", ""),
        actor=actor_of(request),
    )


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise InvalidEdit({"act": ["Choose a duration."]})
    return int(text)


def _may_touch(request: HttpRequest, selector: str) -> AgentToken | ApiToken:
    """The token, if the reader administers its environment. Raises ``NotFound``."""
    row = edits.token_of(selector)
    if not may(request.user, "manage_tokens", row.environment):
        raise NotFound("token", selector)
    return row


def _everywhere(request: HttpRequest) -> bool:
    return may(request.user, "manage_tokens")


def _environments(request: HttpRequest) -> list[str]:
    slugs = Environment.objects.order_by("slug").values_list("slug", flat=True)
    return [slug for slug in slugs if may(request.user, "manage_tokens", slug)]


def _page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    environments = _environments(request)
    typed = extra.get("typed", {})
    visible = [*environments, *([""] if _everywhere(request) else [])]
    now = timezone.now()

    def newest(model: Any) -> Any:
        return model.objects.filter(environment__in=visible).order_by("-created_at")[:200]

    def described(row: AgentToken | ApiToken) -> dict[str, Any]:
        return {
            "token": row,
            "dead": row.revoked_at is not None or row.expires_at <= now,
            "soon": row.expires_at - now < ENDS_SOON,
        }

    owned = with_rights(list(newest(ApiToken)))

    context = context_of(
        request,
        "tokens",
        agents=[described(row) for row in newest(AgentToken)],
        programs=[{**described(each.token), "owned": each} for each in owned],
        environments=environments,
        # The form creates a token for the environment of the page, unless a person chooses another.
        chosen=typed["environment"] if "environment" in typed else environment_in(request),
        everywhere=_everywhere(request),
        roles=(*Role.choices, (ApiToken.METRICS, "Metrics only")),
        days=_DAYS,
        overlaps=_OVERLAPS,
        **extra,
    )
    return render(request, "dashboard/tokens.html", context, status=status)
