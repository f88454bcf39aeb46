"""Backlogs: the list, and one with its dead jobs and what operators do with them."""

from datetime import UTC, datetime
from typing import Any

import redis
import structlog
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, may, require_role
from controlplane.backlogs.dead_jobs import MOST_LISTED, Changed, read_dead
from controlplane.backlogs.edits import delete_dead_jobs, return_dead_jobs
from controlplane.errors import InvalidEdit, NotFound
from controlplane.phrases import count
from dashboard.hub import hub
from dashboard.reader import actor_of, check_owner
from dashboard.views.page import bounded_text, context_of, current_live, not_found, show
from fuseboard.contract.words import is_slug

log = structlog.get_logger(__name__)

_ACTS = {"return": return_dead_jobs, "delete": delete_dead_jobs}
_DOWN = "Redis does not answer. Nothing is known to have changed. Try again when it is back."


@require_GET
@require_role("viewer")
def backlogs(request: HttpRequest) -> HttpResponse:
    return show(request, "backlogs", "backlogs.html")


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def backlog(request: HttpRequest, name: str) -> HttpResponse:
    return _change(request, name) if request.method == "POST" else _page(request, name)


def _change(request: HttpRequest, name: str) -> HttpResponse:
    found = current_live(environment_in(request)).breaker(name)
    check_owner(request, "change_dead_jobs", found.dependency.owner if found is not None else "")
    if found is None:
        return _unknown(request, name)
    act = request.POST.get("act", "")
    errors: dict[str, list[str]] = {}
    if act not in _ACTS:
        errors["act"] = ["Choose whether to return or to delete the dead jobs."]
    elif act == "delete" and bounded_text(request.POST, "confirm").strip() != name:
        errors["confirm"] = [f"Type {name}: deleted jobs cannot be brought back."]
    until = _moment(request.POST.get("until", ""))
    if until is None:
        errors["act"] = ["The page is outdated. Read the dead jobs below, and send the form again."]
    if errors or until is None:
        return _page(request, name, act=act, errors=errors, status=422)
    try:
        changed = _ACTS[act](
            environment=environment_in(request),
            dependency=name,
            until=until,
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
        )
    except InvalidEdit as error:
        return _page(request, name, act=act, errors=error.errors, status=422)
    except NotFound:
        return _unknown(request, name)
    except redis.RedisError as error:
        log.warning("backlog.not_changed", dependency=name, error=str(error))
        return _page(request, name, act=act, errors={"act": [_DOWN]}, status=503)
    hub.nudge()
    messages.success(request, _said(act, changed))
    return redirect("backlog", name)


def _said(act: str, changed: Changed) -> str:
    jobs = count(changed.number, "dead job", grouped=True)
    done = "returned to the queue" if act == "return" else "deleted"
    words = [f"{jobs} {'was' if changed.number == 1 else 'were'} {done}."]
    if changed.full:
        words.append(f"The queue is full: {changed.left:,} stay dead.")
    if changed.unreadable:
        words.append(f"{changed.unreadable:,} could not be read, and were removed.")
    if changed.unknown:
        words.append("Redis did not answer for the others: reload the page to see what is left.")
    return " ".join(words)


def _moment(text: str) -> datetime | None:
    """The time of Redis at which the page was read, in us; ``None`` if it is none."""
    if not text.isdecimal() or len(text) > 16:
        return None
    return datetime.fromtimestamp(int(text) / 1e6, UTC)


def _page(
    request: HttpRequest,
    name: str,
    *,
    act: str = "",
    errors: dict[str, list[str]] | None = None,
    status: int = 200,
) -> HttpResponse:
    context: dict[str, Any] = context_of(request, "backlog", key=name)
    if context["breaker"] is None:
        return _unknown(request, name)
    try:
        context["dead"] = read_dead(environment_in(request), name)
    except redis.RedisError as error:
        log.warning("backlog.not_read", dependency=name, error=str(error))
        context["dead"] = None
    owner = context["breaker"].dependency.owner
    context |= {
        "may_change": may(request.user, "change_dead_jobs", environment_in(request), service=owner),
        "most_listed": MOST_LISTED,
        "act": act,
        "confirm_label": f"Type {name} to confirm",
        "errors": errors or {},
        "typed": request.POST,
    }
    return render(request, "dashboard/backlog.html", context, status=status)


def _unknown(request: HttpRequest, name: str) -> HttpResponse:
    shown = name if is_slug(name) else "of that name"
    return not_found(request, "No such backlog", f"There is no dependency {shown}. It may have been removed.")
