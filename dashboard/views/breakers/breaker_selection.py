"""Open several breakers at once: one reason and one preview, and for each breaker a result of its own."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import structlog
from django import forms
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, may, may_for_some, require_role
from controlplane.breakers.overrides import override_breaker
from controlplane.breakers.tickets import LONGEST as TICKET_LONGEST
from controlplane.breakers.tickets import ticket_problem
from controlplane.errors import InvalidEdit, NotFound
from dashboard.forms import BoundedTextField, ReasonField
from dashboard.hub import hub
from dashboard.live.breakers import Breaker
from dashboard.live.overview import Live
from dashboard.reader import actor_of
from dashboard.views.breakers.override_form import OverrideForm
from dashboard.views.page import context_of, current_live, recent_live
from fuseboard.contract.words import OverrideMode, is_slug

log = structlog.get_logger(__name__)

#: Each breaker is one transaction, and the operator waits for all of them.
MAX_SELECTED = 50
#: Kinds of looks of breakers that block calls now.
_OPEN = ("open", "forced")
_LASTS = tuple(choice for choice in OverrideForm.LASTS if choice[0].isdigit())


class OpenSelectedForm(forms.Form):
    reason = ReasonField()
    lasts = forms.ChoiceField(choices=_LASTS, error_messages={"required": "Choose a duration."})
    ticket = BoundedTextField(TICKET_LONGEST, required=False)

    def clean_ticket(self) -> str:
        ticket: str = self.cleaned_data["ticket"]
        if wrong := ticket_problem(ticket):
            raise forms.ValidationError(wrong)
        return ticket


@dataclass(frozen=True)
class Result:
    name: str
    done: bool
    said: str


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def open_selected(request: HttpRequest) -> HttpResponse:
    """The selected breakers with a form, or what came of it for each of them."""
    if not may_for_some(request.user, "override_breaker", environment_in(request)):
        raise PermissionDenied("This needs the role operator.")
    asked = request.POST if request.method == "POST" else request.GET
    names = list(dict.fromkeys(name for name in asked.getlist("b")[: 4 * MAX_SELECTED] if is_slug(name)))
    context = context_of(request, "selection")
    # A sent form is compared with the breakers of now.
    live = (current_live if request.method == "POST" else recent_live)(environment_in(request))
    found = [breaker for name in names if (breaker := live.breaker(name)) is not None]
    chosen = [breaker for breaker in found if _may_open(request, breaker)]
    problem = ""
    if not names:
        problem = "Select at least one breaker."
    elif len(names) > MAX_SELECTED:
        problem = f"{len(names)} breakers are selected. Select at most {MAX_SELECTED}."
    form = OpenSelectedForm(
        request.POST if request.method == "POST" else None, initial={"lasts": OverrideForm.USUAL_LASTS}
    )
    status = 422 if problem else 200
    results: list[Result] = []
    if request.method == "POST" and not problem:
        if form.is_valid():
            results = _open(request, names, live, form.cleaned_data)
            status = 200 if all(result.done for result in results) else 409
        else:
            status = 422
    failed = [result.name for result in results if not result.done]
    context |= {
        "live": live,
        "form": form,
        "problem": problem,
        "chosen": chosen,
        "refused": [breaker for breaker in found if breaker not in chosen],
        "unknown": [name for name in names if live.breaker(name) is None],
        "stopping": [one.name for one in chosen if one.face.kind not in _OPEN],
        "open_already": [one.name for one in chosen if one.face.kind in _OPEN],
        "load": sum(breaker.load for breaker in chosen),
        "results": sorted(results, key=lambda result: result.done),
        "done": len(results) - len(failed),
        "again": f"{reverse('open_selected')}?{urlencode({'b': failed}, doseq=True)}" if failed else "",
        "lasts": _LASTS,
    }
    return render(request, "dashboard/selection.html", context, status=status)


def _may_open(request: HttpRequest, breaker: Breaker) -> bool:
    owner = breaker.dependency.owner
    return may(request.user, "override_breaker", environment_in(request), service=owner)


def _open(request: HttpRequest, names: list[str], live: Live, data: dict[str, Any]) -> list[Result]:
    expires_at = datetime.now(UTC) + timedelta(minutes=int(data["lasts"]))
    results = [_open_one(request, name, live.breaker(name), data, expires_at) for name in names]
    hub.nudge()
    failed = [result.name for result in results if not result.done]
    log.warning(
        "breakers.opened_together", actor=request.user.get_username(), count=len(names), failed=failed
    )
    return results


def _open_one(
    request: HttpRequest, name: str, found: Breaker | None, data: dict[str, Any], expires_at: datetime
) -> Result:
    if found is None:
        return Result(name, False, "There is no such dependency.")
    if not _may_open(request, found):
        return Result(name, False, "Not changed: your role does not cover this breaker.")
    if request.POST.get(f"seen-{name}", "0") != str(found.override.revision if found.override else 0):
        who = f"{found.override.actor} has changed it" if found.override else "its override has ended"
        return Result(name, False, f"Not changed: {who} since this page was loaded.")
    try:
        revision = override_breaker(
            environment=environment_in(request),
            dependency=name,
            mode=OverrideMode.FORCED_OPEN,
            reason=data["reason"],
            expires_at=expires_at,
            actor=actor_of(request, service=found.dependency.owner),
            ticket=data["ticket"],
        )
    except (InvalidEdit, NotFound) as error:
        return Result(name, False, f"Not changed: {error}")
    except (OperationalError, InterfaceError):
        return Result(
            name, False, "Not changed: Postgres is unavailable. Its own page can still force it open."
        )
    return Result(name, True, f"Forced open until {expires_at:%H:%M:%S} UTC, revision {revision}.")
