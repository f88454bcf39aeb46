"""Who may log in and what they may do; and the page behind a single-use link."""

from typing import Any

from allauth.mfa.models import Authenticator
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from controlplane.accounts import logins, single_use_links
from controlplane.accounts import people as edits
from controlplane.accounts.models import Login, Role, User
from controlplane.accounts.owned_tokens import count_by_owner, tokens_of
from controlplane.accounts.permissions import require
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.models import Environment
from dashboard.reader import actor_of
from dashboard.table_files import rows_listed
from dashboard.views.page import context_of, not_found

_ROLES = tuple(Role.choices)


@require_http_methods(["GET", "POST"])
@require("manage_people")
def people(request: HttpRequest) -> HttpResponse:
    """All people, and the form to invite one."""
    if request.method != "POST":
        return _people(request)
    typed = request.POST
    name = typed.get("username", "").strip()
    try:
        link = edits.invite_person(
            username=name,
            email=typed.get("email", "").strip(),
            role=typed.get("role", ""),
            reason=typed.get("reason", ""),
            actor=actor_of(request),
        )
    except InvalidEdit as error:
        return _people(request, typed=typed, errors=error.errors, status=422)
    return _people(request, link=request.build_absolute_uri(link), invited=name)


def _people(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    with_factor = set(Authenticator.objects.filter(type="totp").values_list("user_id", flat=True))
    tokens = count_by_owner()
    rows = [
        {
            "user": user,
            "tokens": tokens.get(user.username, 0),
            "factor": user.pk in with_factor,
            "needs_factor": user.is_active and logins.needs_second_factor(user),
            "elsewhere": sorted(user.environment_roles.items()),
            # Has not logged in yet, in any way.
            "invited": user.is_active and user.last_login is None and not user.has_usable_password(),
        }
        for user in User.objects.order_by("username")[: rows_listed(request, 500)]
    ]
    context = context_of(request, "people", rows=rows, roles=_ROLES, **extra)
    return render(request, "dashboard/people.html", context, status=status)


@require_http_methods(["GET", "POST"])
@require("manage_people")
def person(request: HttpRequest, name: str) -> HttpResponseBase:
    """One person: roles, sessions, and what to do when a password or second factor is lost."""
    if not User.objects.filter(username=name).exists():
        return not_found(request, "No such person", "There is no account with this name.")
    if request.method != "POST":
        return _person(request, name)
    try:
        said, link = _act(request, name, request.POST.get("act", ""))
    except InvalidEdit as error:
        return _person(request, name, errors=error.errors, typed=request.POST, status=422)
    if link:
        return _person(request, name, link=request.build_absolute_uri(link))
    messages.success(request, said)
    return redirect("person", name)


def _act(request: HttpRequest, name: str, act: str) -> tuple[str, str]:
    """Apply the action; returns the message to display, and the link that was made, if any."""
    common: dict[str, Any] = {
        "username": name,
        "reason": request.POST.get("reason", ""),
        "actor": actor_of(request),
    }
    match act:
        case "roles":
            there = {
                slug: "" if request.POST[f"in-{slug}"] == "none" else request.POST[f"in-{slug}"]
                for slug in _environments()
                if request.POST.get(f"in-{slug}", "same") != "same"
            }
            edits.change_roles(role=request.POST.get("role", ""), environment_roles=there, **common)
            return (
                f"The roles of {name} were changed. API tokens of {name} follow at once,"
                " open pages within seconds.",
                "",
            )
        case "off":
            edits.switch_person(active=False, **common)
            return f"{name} is deactivated and logged out everywhere. API tokens of {name} are revoked.", ""
        case "on":
            edits.switch_person(active=True, **common)
            return f"{name} can log in again. Revoked API tokens stay revoked.", ""
        case "logout":
            count = edits.log_out_everywhere(**common)
            return f"{name} is logged out of {count} session{'' if count == 1 else 's'}.", ""
        case "factor":
            edits.remove_second_factor(**common)
            return f"{name} now logs in without a second factor.", ""
        case "link":
            return "", edits.send_new_link(**common)
    raise InvalidEdit({"act": ["Choose an action."]})


def _environments() -> list[str]:
    return list(Environment.objects.order_by("slug").values_list("slug", flat=True))


def _person(request: HttpRequest, name: str, *, status: int = 200, **extra: Any) -> HttpResponse:
    user = User.objects.get(username=name)
    tokens = tokens_of(user)
    logins_now = Login.objects.filter(user=user, ended_at__isnull=True, expires_at__gt=timezone.now())
    context = context_of(
        request,
        "people",
        person=user,
        tokens=tokens,
        ends={"logins": logins_now.count(), "tokens": [owned for owned in tokens if owned.works]},
        roles=_ROLES,
        environments=[(slug, _role_in(user, slug)) for slug in _environments()],
        logins=logins_now.order_by("-created_at")[: rows_listed(request, 20)],
        factor=Authenticator.objects.filter(user=user, type="totp").exists(),
        needs_factor=logins.needs_second_factor(user),
        **extra,
    )
    return render(request, "dashboard/person.html", context, status=status)


def _role_in(user: User, environment: str) -> str:
    """The value of the choice: ``same`` as the default role, ``none``, or a role."""
    return user.environment_roles.get(environment, "same") or "none"


@sensitive_post_parameters("password", "again")
@require_http_methods(["GET", "POST"])
def welcome(request: HttpRequest, link: str) -> HttpResponseBase:
    """Sets the password of the person for whom the link was made. Opening the link does not use it up."""
    user = single_use_links.person_of(link)
    if user is None:
        return render(request, "dashboard/welcome.html", status=404)
    errors: dict[str, list[str]] = {}
    if request.method == "POST":
        password = request.POST.get("password", "")
        try:
            if password != request.POST.get("again", ""):
                raise InvalidEdit({"again": ["The passwords do not match."]})
            address = request.META.get("REMOTE_ADDR", "")
            single_use_links.use_link(text=link, password=password, address=address)
        except InvalidEdit as error:
            errors = error.errors
        except NotFound:
            return render(request, "dashboard/welcome.html", status=404)
        else:
            return redirect("login")
    context = {"person": user, "errors": errors}
    return render(request, "dashboard/welcome.html", context, status=422 if errors else 200)
