"""The history of one breaker: its states, transitions and failed calls, and the changes of its dependency."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from django.db import InterfaceError, OperationalError
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require_role
from dashboard.live.timeline import RANGE_NAMES, RANGES
from dashboard.views.breakers.breakers import unknown_breaker
from dashboard.views.history.change_log import Wanted, changes_of
from dashboard.views.history.logged import LoggedChange
from dashboard.views.page import HtmxHttpRequest, context_of

#: Changes that are listed, and how far back they reach.
_MAX_CHANGES = 12
_CHANGES_OF = timedelta(days=30)


@require_GET
@require_role("viewer")
def breaker_history(request: HtmxHttpRequest, name: str) -> HttpResponse:
    span = request.GET.get("range", "1h")
    span = span if span in RANGES else "1h"
    context = context_of(request, "breaker_history", key=name, span=span)
    if context["breaker"] is None:
        return unknown_breaker(request, name)
    context |= {
        "ranges": list(RANGE_NAMES.items()),
        "range_name": RANGE_NAMES[span],
        "changed": _changed(environment_in(request), name),
    }
    return render(request, "dashboard/breaker_history.html", context)


def _changed(environment: str, name: str) -> list[LoggedChange] | None:
    """The newest edits and overrides; ``None`` while Postgres, which has them, is unavailable."""
    now = datetime.now(UTC)
    start = now - _CHANGES_OF
    wanted = Wanted(environment=environment, start=start, end=now, until=now, most=_MAX_CHANGES, thing=name)
    try:
        found = [change for kind in ("edit", "override") for change in changes_of(replace(wanted, kind=kind))]
    except (OperationalError, InterfaceError):
        return None
    return sorted(found, key=lambda change: change.at, reverse=True)[:_MAX_CHANGES]
