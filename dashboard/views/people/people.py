"""People and their roles; and the page behind a single-use link."""

import json
from functools import partial
from hashlib import sha256
from typing import Any

from allauth.mfa.models import Authenticator
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from controlplane.accounts import logins, single_use_links
from controlplane.accounts import people as edits
from controlplane.accounts.models import Login, Role, User
from controlplane.accounts.owned_tokens import count_by_owner, tokens_of
from controlplane.accounts.permissions import environment_in, require
from controlplane.accounts.second_factors import unreadable_second_factors
from controlplane.change_requests.waiting import Waiting, cancel_lost, seen_by, waiting_of
from controlplane.errors import InvalidEdit, NotFound
from controlplane.fleet.models import Server
from controlplane.phrases import count
from controlplane.policies.models import Dependency, Environment
from controlplane.validation import check_reason
from dashboard.edit_form import EditForm, chosen_form, run_edit
from dashboard.forms import TextField
from dashboard.tables.table_files import rows_listed
from dashboard.undo import Saved
from dashboard.views.page import context_of, not_found
from fuseboard.contract.words import is_slug

_ROLES = tuple(Role.choices)
_CHANGED_SINCE = "Another person has changed these roles since. Nothing was undone."
#: Characters of a digest of roles.
_DIGEST = 32
#: Names that the form of roles suggests.
_MAX_SERVICES = 200


class PeopleForm(EditForm):
    """People belong to no environment."""

    @property
    def common(self) -> dict[str, Any]:
        return {name: value for name, value in super().common.items() if name != "environment"}


class InviteForm(PeopleForm):
    username = TextField(10_000)
    email = TextField(10_000)
    role = TextField()

    def save(self) -> HttpResponse:
        link = self.request.build_absolute_uri(edits.invite_person(**self.given))
        return _people(self.request, link=link, invited=self.cleaned_data["username"])


@require_http_methods(["GET", "POST"])
@require("manage_people")
def people(request: HttpRequest) -> HttpResponse:
    """All people, and the form to invite one."""
    return run_edit(InviteForm(request), page=_people)


def _people(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    with_factor = set(Authenticator.objects.filter(type="totp").values_list("user_id", flat=True))
    unreadable = unreadable_second_factors()
    tokens = count_by_owner()
    rows = [
        {
            "user": user,
            "tokens": tokens.get(user.username, 0),
            "factor": user.pk in with_factor,
            "unreadable": user.pk in unreadable,
            "needs_factor": user.is_active and logins.needs_second_factor(user),
            "elsewhere": [
                *((f"in {name}", role) for name, role in sorted(user.environment_roles.items())),
                *(
                    (f"for {service} in {name}", role)
                    for name, roles in sorted(user.service_roles.items())
                    for service, role in sorted(roles.items())
                ),
            ],
            # Has not logged in yet, in any way.
            "invited": user.is_active and user.last_login is None and not user.has_usable_password(),
        }
        for user in User.objects.order_by("username")[: rows_listed(request, 500)]
    ]
    context = context_of(request, "people", rows=rows, roles=_ROLES, **extra)
    return render(request, "dashboard/people.html", context, status=status)


class PersonForm(PeopleForm):
    """A button of the page of one person."""

    cancel = TextField()

    def save(self) -> str | Saved | HttpResponse:
        name = self.known["username"]
        match self.act:
            case "cancel":
                return f"Cancelled: {count(len(self._cancel_lost()), 'waiting change')} of {name}."
            case "off":
                with transaction.atomic():
                    edits.switch_person(active=False, **self.common)
                    after = self._after()
                return (
                    f"{name} is deactivated and logged out everywhere."
                    f" API tokens of {name} are revoked.{after}"
                )
            case "on":
                edits.switch_person(active=True, **self.common)
                return f"{name} can log in again. Revoked API tokens stay revoked."
            case "logout":
                return f"{name} is logged out of {count(edits.log_out_everywhere(**self.common), 'session')}."
            case "factor":
                edits.remove_second_factor(**self.common)
                return f"{name} now logs in without a second factor."
            case _:
                link = self.request.build_absolute_uri(edits.send_new_link(**self.common))
                return _person(self.request, name, link=link)

    def _cancel_lost(self) -> list[Waiting]:
        check_reason(self.cleaned_data["reason"])
        return cancel_lost(reader=self.request.user, **self.common)

    def _after(self) -> str:
        """The part of the message about waiting changes that the person may not make any more."""
        if self.cleaned_data["cancel"]:
            return f" Cancelled: {count(len(self._cancel_lost()), 'waiting change')}."
        waiting = seen_by(self.request.user, waiting_of(self.known["username"]))
        lost = [one for one in waiting if one.lost]
        return f" {count(len(lost), 'waiting change')} will fail: see below." if lost else ""


class RolesForm(PersonForm):
    role = TextField()
    #: The roles that Undo takes back. It changes nothing if another person has changed them since.
    instead_of = TextField(_DIGEST)

    def save(self) -> Saved:
        name = self.known["username"]
        typed = {slug: self.data.get(f"in-{slug}", "same") for slug in _environments()}
        there = {slug: "" if role == "none" else role for slug, role in typed.items() if role != "same"}
        with transaction.atomic():
            before = User.objects.select_for_update().get(username=name)
            expected = self.cleaned_data["instead_of"]
            if expected and expected != _digest(before):
                raise InvalidEdit({"instead_of": [_CHANGED_SINCE]})
            edits.change_roles(
                role=self.cleaned_data["role"],
                environment_roles=there,
                service_roles=self._service_roles(),
                **self.common,
            )
            after = self._after()
            # Another person may change them right after the commit.
            saved = _digest(User.objects.get(pk=before.pk))
        text = (
            f"The roles of {name} were changed. API tokens of {name} follow at once,"
            f" open pages within seconds.{after}"
        )
        # A cancelled change stays cancelled.
        undo = {} if self.cleaned_data["cancel"] else self._undo(before, saved)
        return Saved(text, at=reverse("person", args=[name]), undo=undo)

    def _undo(self, before: User, saved: str) -> dict[str, str | list[str]]:
        """The form that gives the person the roles of before. ``saved`` identifies those that it replaces."""
        rows = _stored_services(before) or [(environment_in(self.request), "", "")]
        places, services, roles = zip(*rows, strict=True)
        return {
            "act": "roles",
            "role": before.role,
            **{f"in-{slug}": _role_in(before, slug) for slug in _environments()},
            "service-environment": list(places),
            "service": list(services),
            "service-role": list(roles),
            "instead_of": saved,
            "reason": f"Undo of a change of the roles of {before.username}",
        }

    def _service_roles(self) -> dict[str, dict[str, str]] | None:
        """Environment -> service -> role; ``None`` from a page without these rows. *No role* removes a row.

        Raises ``InvalidEdit`` for a row that says only half: it would be lost.
        """
        rows = _typed_services(self.data)
        if rows is None:
            return None
        had = User.objects.get(username=self.known["username"]).service_roles
        found: dict[str, dict[str, str]] = {}
        for environment, service, role in rows:
            if role and not service:
                raise InvalidEdit({"service_roles": ["Enter the service of the role, or choose No role."]})
            if role:
                found.setdefault(environment, {})[service] = role
            elif service and service not in had.get(environment, {}):
                said = f"Choose a role for {service[:64]!r}, or leave it out."
                raise InvalidEdit({"service_roles": [said]})
        return found


_ACTS = {"roles": RolesForm} | dict.fromkeys(("cancel", "off", "on", "logout", "factor", "link"), PersonForm)


@require_http_methods(["GET", "POST"])
@require("manage_people")
def person(request: HttpRequest, name: str) -> HttpResponse:
    """One person: roles, sessions, and what to do when a password or second factor is lost."""
    if not User.objects.filter(username=name).exists():
        return not_found(request, "No such person", "There is no account with this name.")
    form = chosen_form(request, _ACTS, username=name)
    return run_edit(form, page=partial(_person, name=name), then=reverse("person", args=[name]))


#: Environment, service and role, as in a row of the form.
ServiceRow = tuple[str, str, str]


def _typed_services(typed: Any) -> list[ServiceRow] | None:
    """The rows as typed; ``None`` from a page without these rows."""
    if "service" not in typed:
        return None
    names = ("service-environment", "service", "service-role")
    rows = zip(*(typed.getlist(name) for name in names), strict=False)
    return [(environment, service.strip(), role) for environment, service, role in rows]


def _stored_services(user: User) -> list[ServiceRow]:
    """The rows that a person has now."""
    return [
        (environment, service, role)
        for environment, roles in sorted(user.service_roles.items())
        for service, role in sorted(roles.items())
    ]


def _service_rows(rows: list[ServiceRow]) -> list[dict[str, Any]]:
    return [
        {
            "ids": [f"f-service-{part}-{number}" for part in ("in", "name", "role")],
            "environment": environment,
            "service": service,
            "role": role,
        }
        for number, (environment, service, role) in enumerate(rows)
    ]


def _services() -> list[str]:
    """Names that may be meant: services of pods, and owners of dependencies."""
    pods = Server.objects.order_by("service").values_list("service", flat=True).distinct()[:_MAX_SERVICES]
    owners = Dependency.objects.order_by("owner").values_list("owner", flat=True).distinct()[:_MAX_SERVICES]
    return sorted(name for name in {*pods, *owners} if is_slug(name))


def _environments() -> list[str]:
    return list(Environment.objects.order_by("slug").values_list("slug", flat=True))


def _person(
    request: HttpRequest, name: str, *, typed: Any = None, status: int = 200, **extra: Any
) -> HttpResponse:
    user = User.objects.get(username=name)
    tokens = tokens_of(user)
    if typed and typed.get("instead_of"):
        # A refused Undo. Its roles are of before: Save would take back what another person has changed.
        typed = {"act": "roles"}
    act = typed.get("act", "") if typed else ""
    part = act if act in ("", "roles", "cancel") else "access"
    roles = typed if part == "roles" else {}
    services = _typed_services(roles) or [*_stored_services(user), (environment_in(request), "", "")]
    logins_now = Login.objects.filter(user=user, ended_at__isnull=True, expires_at__gt=timezone.now())
    context = context_of(
        request,
        "people",
        person=user,
        tokens=tokens,
        ends={"logins": logins_now.count(), "tokens": [owned for owned in tokens if owned.works]},
        roles=_ROLES,
        role=roles.get("role", user.role),
        environments=[(slug, roles.get(f"in-{slug}", _role_in(user, slug))) for slug in _environments()],
        services=_service_rows(services),
        service_names=_services(),
        places=[(slug, slug) for slug in _environments()],
        service_roles=(("", "No role"), *((word, word.capitalize()) for word in edits.OF_SERVICE)),
        logins=logins_now.order_by("-created_at")[: rows_listed(request, 20)],
        waiting=(waiting := seen_by(request.user, waiting_of(name))),
        lost=sum(bool(one.lost) for one in waiting),
        factor=Authenticator.objects.filter(user=user, type="totp").exists(),
        unreadable=user.pk in unreadable_second_factors(),
        needs_factor=logins.needs_second_factor(user),
        # The part of the page that has the button shows what was refused.
        refused={part: {"typed": typed, "errors": extra.get("errors")}},
        **extra,
    )
    return render(request, "dashboard/person.html", context, status=status)


def _digest(user: User) -> str:
    """Identify the roles that a person has now."""
    roles = [user.role, user.environment_roles, user.service_roles]
    return sha256(json.dumps(roles, sort_keys=True).encode()).hexdigest()[:_DIGEST]


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
            return redirect(reverse("login", query={"password": "saved"}))
    context = {"person": user, "errors": errors}
    return render(request, "dashboard/welcome.html", context, status=422 if errors else 200)
