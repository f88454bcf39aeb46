from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.db import InterfaceError, OperationalError
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, may, require_role
from controlplane.alerts.rules.fleet import GENERAL_RUNBOOK
from controlplane.breakers import overrides
from controlplane.errors import InvalidEdit, NotFound
from controlplane.phrases import count
from controlplane.status.breakers import PHRASES
from dashboard.hub import hub
from dashboard.live.breakers import Breaker
from dashboard.live.overview import Live
from dashboard.reader import actor_of, check_owner
from dashboard.templatetags.dashboard_tags import seconds
from dashboard.views.breakers import without_postgres
from dashboard.views.breakers.breaker_selection import MAX_SELECTED
from dashboard.views.breakers.override_form import OverrideForm, as_long_as, end_of, longest_of
from dashboard.views.breakers.vendor_limits import vendor_context
from dashboard.views.page import HtmxHttpRequest, context_of, current_live, not_found, recent_live, show
from dashboard.views.runbooks.runbook_html import Drawing, draw_runbook
from dashboard.views.runbooks.runbook_texts import Page, Unreadable, find_runbook, permits, scene_of
from fuseboard.contract.words import OverrideMode, is_slug

_STATES = (
    ("", "All"),
    ("open", "Open"),
    ("half", "Half-open"),
    ("forced", "Overridden"),
    ("near", "Near threshold"),
    ("closed", "Closed"),
)
#: Actions that need an override in force.
_NEEDS_OVERRIDE = ("extend", "automatic")


@require_GET
@require_role("viewer")
def breakers(request: HtmxHttpRequest) -> HttpResponse:
    state = {"pinned": "forced"}.get(request.GET.get("state", ""), request.GET.get("state", ""))
    return show(request, "breakers", "breakers.html", states=_STATES, state=state, most_selected=MAX_SELECTED)


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def breaker(request: HtmxHttpRequest, name: str) -> HttpResponseBase:
    """The page, and its override form."""
    if request.method == "POST":
        return _override(request, name)
    if request.GET.get("range", "1h") != "1h":
        # The states of a longer time are on the page of the history: links from before lead there.
        return redirect(f"{reverse('breaker_history', args=[name])}?{request.GET.urlencode()}")
    # A link or a command of the palette names the action: the form is filled in, and nothing is done yet.
    return _page(request, name, wanted=request.GET.get("act", ""), lasts=request.GET.get("lasts", ""))


@require_POST
@require_role("viewer")
def breaker_preview(request: HtmxHttpRequest, name: str) -> HttpResponse:
    """Show in words what the form would do, and do nothing."""
    found = current_live(environment_in(request)).breaker(name)
    check_owner(request, "override_breaker", _owner(found))
    if found is None:
        return HttpResponse(status=204)
    context = {"preview": preview(found, request.POST)}
    return render(request, "dashboard/override_form.html#preview", context)


@require_GET
@require_role("viewer")
def breaker_runbook(request: HtmxHttpRequest, name: str) -> HttpResponse:
    """The runbook with its values, which the page reads again every 5 s."""
    live = recent_live(environment_in(request))
    found = live.breaker(name)
    if found is None:
        return HttpResponse(status=404)
    context = {"live": live, "breaker": found, **_runbook(request, found, live)}
    return render(request, "dashboard/breaker.html#runbook", context)


def _runbook(request: HtmxHttpRequest, found: Breaker, live: Live) -> dict[str, Any]:
    page = runbook_of(found)
    drawing = Drawing(
        scene=scene_of(live, found), permits=permits(request.user, environment_in(request), found)
    )
    return {
        "runbook": page,
        "runbook_html": draw_runbook(page.document, drawing),
        "writes_runbook": not found.dependency.runbook and may(request.user, "edit_runbook"),
    }


def _owner(found: Breaker | None) -> str:
    """Without a breaker there is no owner: only the role in the environment counts."""
    return found.dependency.owner if found is not None else ""


def _override(request: HtmxHttpRequest, name: str) -> HttpResponse:
    found = current_live(environment_in(request)).breaker(name)
    check_owner(request, "override_breaker", _owner(found))
    if found is None:
        return unknown_breaker(request, name)
    form = _form(found, request.POST)
    if not form.is_valid():
        return _page(request, name, form=form, status=422)
    if _changed_meanwhile(found, form):
        form.add_error(None, _conflict_text(found))
        return _page(request, name, form=form, status=409)
    try:
        try:
            said = _apply(request, name, form)
        except (OperationalError, InterfaceError):
            # Stopping calls must not wait for Postgres, which only makes the override durable.
            said = without_postgres.act(request, name, form)
    except (InvalidEdit, NotFound) as error:
        _add_errors(form, error)
        return _page(request, name, form=form, status=422)
    hub.nudge()
    if request.htmx:
        return _page(request, name, done=said)
    messages.success(request, said)
    return redirect("breaker", name)


def _apply(request: HtmxHttpRequest, name: str, form: OverrideForm) -> str:
    """Apply the form, and return what was done."""
    data = form.cleaned_data
    common: dict[str, Any] = {
        "environment": environment_in(request),
        "dependency": name,
        "reason": data["reason"],
        "actor": actor_of(request),
    }
    if data["act"] == "extend":
        # A page that was open before an upgrade does not send the field: then the ticket stays.
        ticket = data["ticket"] if "ticket" in form.data else None
        overrides.extend_override(expires_at=data["expires_at"], ticket=ticket, **common)
        return f"The override on {name} now ends at {data['expires_at']:%H:%M:%S} UTC."
    if form.sets_override:
        mode = OverrideMode(data["act"])
        overrides.override_breaker(mode=mode, expires_at=data["expires_at"], ticket=data["ticket"], **common)
        word = "open" if mode == OverrideMode.FORCED_OPEN else "closed"
        return f"{name} is forced {word} until {data['expires_at']:%H:%M:%S} UTC."
    if data["act"] == "automatic":
        overrides.end_override(**common)
        return f"The override on {name} has ended. The breaker decides automatically again."
    overrides.reset_breaker(**common)
    return f"{name} was reset: it is closed and its counters are cleared."


def _form(found: Breaker, data: Any = None, *, wanted: str = "", lasts: str = "") -> OverrideForm:
    held = found.override.mode if found.override is not None else ""
    act = wanted if wanted in dict(OverrideForm.ACTS) and (held or wanted not in _NEEDS_OVERRIDE) else ""
    usual = OverrideForm.USUAL_LASTS
    if act == "extend" and found.override is not None:
        usual = as_long_as(found.override, OverrideForm.lasts_of(act, held))
    offered = lasts.isdigit() and lasts in OverrideForm.lasts_of(act, held)
    initial = {"lasts": lasts if offered else usual, "act": act or None}
    if found.override is not None:
        initial["ticket"] = found.override.ticket
        if act == "extend":
            initial["reason"] = found.override.reason
    return OverrideForm(data, dependency=found.name, now=datetime.now(UTC), held=held, initial=initial)


def _changed_meanwhile(found: Breaker, form: OverrideForm) -> bool:
    """Whether another operator has changed the override since the form was displayed."""
    seen = form.cleaned_data.get("seen")
    return seen is not None and seen != (found.override.revision if found.override else 0)


def _conflict_text(found: Breaker) -> str:
    held = found.override
    if held is None:
        return f"The override on {found.name} ended while you were typing. Submit again to continue."
    state, until = found.face.word.lower(), datetime.fromtimestamp(held.expires_at, UTC)
    return (
        f"While you were typing, {held.actor} set {found.name} to {state} until {until:%H:%M} UTC: "
        f"\u201c{held.reason}\u201d. Submit again to replace that override."
    )


def _add_errors(form: OverrideForm, error: InvalidEdit | NotFound) -> None:
    if isinstance(error, NotFound):
        form.add_error(None, "This breaker has no override any more.")
        return
    for field, found in error.errors.items():
        shown = {"expires_at": "lasts", "mode": "act"}.get(field, field)
        form.add_error(shown if shown in form.fields else None, found)


def _page(
    request: HtmxHttpRequest,
    name: str,
    *,
    form: OverrideForm | None = None,
    wanted: str = "",
    lasts: str = "",
    status: int = 200,
    done: str = "",
) -> HttpResponse:
    context = context_of(request, "breaker", key=name)
    found: Breaker | None = context["breaker"]
    if found is None:
        return unknown_breaker(request, name)
    form = form or _form(found, wanted=wanted, lasts=lasts)
    context |= {
        "form": form,
        "done": done,
        "acts": [
            act for act in OverrideForm.ACTS if found.override is not None or act[0] not in _NEEDS_OVERRIDE
        ],
        "preview": preview(found, form.data if form.is_bound else form.initial),
        "ticket_hint": "An address, or a key such as OPS-4821."
        if settings.TICKET_URL
        else "An address, with https://",
    }
    if request.htmx and request.method == "POST":
        parts = ("override", "hero") if done else ("override",)
        drawn = (render_to_string(f"dashboard/breaker.html#{part}", context, request) for part in parts)
        return HttpResponse("".join(drawn), status=status)
    context |= _runbook(request, found, context["live"])
    context |= {"dependency_name": name, **vendor_context(request, context["live"], name, _owner(found))}
    return render(request, "dashboard/breaker.html", context, status=status)


def unknown_breaker(request: HtmxHttpRequest, name: str) -> HttpResponse:
    shown = name if is_slug(name) else "of that name"
    return not_found(request, "No such breaker", f"There is no dependency {shown}. It may have been removed.")


def runbook_of(found: Breaker) -> Page:
    slug = found.dependency.runbook or GENERAL_RUNBOOK
    try:
        page = find_runbook(slug)
    except Unreadable:
        page = find_runbook(GENERAL_RUNBOOK)
    return page or Page(slug, "none yet", "No runbook is registered for this dependency.")


@dataclass(frozen=True)
class Preview:
    lines: tuple[str, ...]
    button: str
    css: str = "human"
    warning: str = ""
    #: The error of the end that was typed; empty for none.
    problem: str = ""


def _failing(found: Breaker) -> str:
    """Why a breaker should not be forced closed; empty when nothing speaks against it."""
    if found.state != "closed":
        # Its window stopped when it tripped, so the figures of the trip are what counts.
        why = f": {found.why}" if found.why else ""
        return f"{found.name} is {PHRASES[found.state]}{why}."
    if not found.failures:
        return ""
    where = " on one pod" if found.alone else ""
    return f"{found.failures} of the last {found.calls} calls to {found.name}{where} failed."


def _span(found: Breaker, data: Any) -> tuple[str, str]:
    """The duration as the button names it, and what is wrong with it; both empty until one is chosen."""
    act, lasts = data.get("act", ""), data.get("lasts", "")
    held = found.override.mode if found.override is not None else ""
    if lasts not in OverrideForm.lasts_of(act, held):
        return "", ""  # The button must not name a duration that the form hides.
    end = end_of(data, datetime.now(UTC), longest=longest_of(act, held))
    if not isinstance(end, datetime):
        return "", end[1]
    if lasts == "until":
        return f" until {end:%Y-%m-%d %H:%M} UTC", ""
    if lasts == "minutes":
        return f" for {int(data['minutes'])} min", ""
    return f" for {dict(OverrideForm.LASTS)[lasts]}", ""


def _new_end(found: Breaker, data: Any) -> str:
    """When an extended override ends, and when it would have ended: a time is counted from now."""
    end = end_of(data, datetime.now(UTC))
    if found.override is None or not isinstance(end, datetime):
        return "for longer"
    before = datetime.fromtimestamp(found.override.expires_at, UTC)
    form = "%H:%M:%S" if end.date() == before.date() else "%-d %b %H:%M"
    return f"until {end:{form}} UTC instead of {before:{form}} UTC"


def preview(found: Breaker, data: Any) -> Preview | None:
    """Return what the change would affect, before it is made; ``None`` until the form says enough."""
    act = data.get("act", "")
    if act in _NEEDS_OVERRIDE and found.override is None:
        return None
    span, problem = _span(found, data)
    pods = count(found.live, "pod")
    load, fallback = f"{found.load:,.0f} calls/s", found.dependency.fallback
    if act == "forced_open":
        instead = (
            f"get the fallback: {fallback[:1].lower()}{fallback[1:]}." if fallback else "are refused at once."
        )
        lines: tuple[str, ...] = (
            f"{pods} stop calling {found.name} within about 2 s.",
            f"{load} {instead} There are no probes.",
            "When the override ends, the breaker probes, and closes if the probes succeed.",
        )
        return Preview(lines, f"Force open{span}", problem=problem)
    if act == "forced_closed":
        lines = (
            f"{pods} send every call to {found.name}, {load}.",
            "The breaker cannot open, even if calls fail.",
            f"Each caller waits up to {seconds(found.dependency.timeout_ms)}.",
        )
        return Preview(lines, f"Force closed{span}", "risk", _failing(found), problem)
    if act == "extend":
        lines = (
            f"{pods} keep the override on {found.name} {_new_end(found, data)}.",
            "Its mode stays the same, and the new reason replaces the old one.",
        )
        return Preview(lines, f"Extend{span}", problem=problem)
    if act == "automatic":
        after = "The breaker probes first." if found.face.kind == "forced" else "The breaker can open again."
        return Preview((f"The override on {found.name} ends now, on {pods}.", after), "End override")
    if act == "reset":
        return Preview(
            (f"{pods} close {found.name} and send every call, {load}.", "Their counters are cleared."),
            "Reset",
        )
    return None
