"""Tokens of pods and programs: made, rotated and revoked; their text is displayed once."""

from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts import tokens as edits
from controlplane.accounts.models import AgentToken, ApiToken, Role
from controlplane.accounts.owned_tokens import with_rights
from controlplane.accounts.permissions import environment_in, may, require
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.models import Environment
from dashboard.edit_form import EditForm, chosen_form, run_edit
from dashboard.forms import TextField
from dashboard.live.pod_page import ENDS_SOON
from dashboard.reader import actor_of
from dashboard.views.page import context_of

_DAYS = ("7", "30", "90", "365")
#: Hours for which the old token stays valid, and the words for them.
_OVERLAPS = (("1", "1 hour"), ("24", "1 day"), ("168", "1 week"))


class TokenForm(EditForm):
    missing = "This token has been revoked or replaced."
    missing_status = 409

    selector = TextField()


class CreateForm(EditForm):
    name = TextField(10_000)
    environment = TextField()
    days = TextField()
    service = TextField(10_000)
    name_prefix = TextField(10_000)
    role = TextField()

    def save(self) -> HttpResponse:
        typed, environment = self.cleaned_data, self.cleaned_data["environment"]
        if environment not in _environments(self.request) and (environment or not _everywhere(self.request)):
            raise InvalidEdit({"environment": ["Choose an environment you administer."]})
        common = self.common | {
            "name": typed["name"],
            "environment": environment,
            "expires_at": timezone.now() + timedelta(days=_number(typed["days"])),
            # A page that displays a token is the response to its form: reloading it would send it again.
            "only_name": True,
        }
        if self.act == "api":
            text = edits.create_api_token(role=typed["role"], **common)
        elif environment:
            pods = {name: typed[name] for name in ("service", "name_prefix")}
            text = edits.create_agent_token(**pods, **common)
        else:
            raise InvalidEdit(
                {"environment": ["Choose an environment: an agent token is valid in only one."]}
            )
        return _page(self.request, text=text, made=self.data.get("name", "")[:200])


class RotateForm(TokenForm):
    overlap = TextField()

    def save(self) -> HttpResponse:
        row = _may_touch(self.request, self.cleaned_data["selector"])
        lasted = row.expires_at - row.created_at
        text = edits.rotate_token(
            model=type(row),
            environments=[row.environment],
            selector=row.selector,
            overlap=timedelta(hours=min(168, _number(self.cleaned_data["overlap"]))),
            expires_at=timezone.now() + min(lasted, edits.LONGEST),
            reason=self.cleaned_data["reason"],
            actor=actor_of(self.request),
        )
        return _page(self.request, text=text, made=self.data.get("name", "")[:200])


class RevokeForm(TokenForm):
    def save(self) -> str:
        _may_touch(self.request, self.cleaned_data["selector"])
        edits.revoke_token(actor=actor_of(self.request), **self.cleaned_data)
        return "The token was revoked. Fuseboard refuses it from now on."


_ACTS = {"agent": CreateForm, "api": CreateForm, "rotate": RotateForm, "revoke": RevokeForm}


@require_http_methods(["GET", "POST"])
@require("manage_tokens")
def tokens(request: HttpRequest) -> HttpResponse:
    return run_edit(chosen_form(request, _ACTS), page=_page, then="tokens")


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
    # The row of an existing token shows what was typed there.
    creates = _ACTS.get(extra.get("typed", {}).get("act")) is CreateForm
    new = extra["typed"] if creates else {}
    # One form for each kind of token: the other one stays empty.
    kind = new["act"] if creates else ""
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

    agents = [described(row) for row in newest(AgentToken)]
    owned = with_rights(list(newest(ApiToken)))
    programs = [{**described(each.token), "owned": each} for each in owned]
    selector = extra.get("typed", {}).get("selector")
    working = {row["token"].selector for row in (*agents, *programs) if not row["dead"]}
    context = context_of(
        request,
        "tokens",
        agents=agents,
        programs=programs,
        # A token that ended meanwhile has no form, so its errors stand above the page.
        has_form=creates or selector in working,
        environments=environments,
        everywhere=[*environments, *([("", "All")] if _everywhere(request) else [])],
        new={kind: new},
        wrong={kind: extra.get("errors", {})},
        # The form creates a token for the environment of the page, unless a person chooses another.
        chosen=new["environment"] if "environment" in new else environment_in(request),
        roles=(*Role.choices, (ApiToken.METRICS, "Metrics only")),
        days=_DAYS,
        overlaps=_OVERLAPS,
        **extra,
    )
    return render(request, "dashboard/tokens.html", context, status=status)
