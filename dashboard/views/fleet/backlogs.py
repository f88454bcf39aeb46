"""Backlogs: the list, and one with its dead jobs and what operators do with them."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import redis
import structlog
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, may, require_role
from controlplane.backlogs.dead_jobs import MAX_LISTED, Changed, read_dead
from controlplane.backlogs.edits import delete_dead_jobs, return_dead_jobs
from controlplane.errors import InvalidEdit
from controlplane.phrases import count
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import SentNumberField, TextField
from dashboard.reader import check_owner
from dashboard.views.page import context_of, current_live, not_found, show
from fuseboard.contract.words import is_slug

log = structlog.get_logger(__name__)

_ACTS = {"return": return_dead_jobs, "delete": delete_dead_jobs}
#: A later time of Redis, in us, is no time of this calendar.
_LONGEST_US = 10**16
_DOWN = "Redis does not answer. Nothing is known to have changed. Try again when it is back."


@require_GET
@require_role("viewer")
def backlogs(request: HttpRequest) -> HttpResponse:
    return show(request, "backlogs", "backlogs.html")


class DeadJobsForm(EditForm):
    """Return or delete the dead jobs that the page has shown."""

    confirm = TextField(200)
    until = SentNumberField()

    def save(self) -> str:
        name, until, errors = self.known["dependency"], self.cleaned_data["until"], {}
        if self.act not in _ACTS:
            errors["act"] = ["Choose whether to return or to delete the dead jobs."]
        elif self.act == "delete" and self.cleaned_data["confirm"] != name:
            errors["confirm"] = [f"Type {name}: deleted jobs cannot be brought back."]
        if not 0 <= until < _LONGEST_US:
            errors["act"] = ["The page is outdated. Read the dead jobs below, and send the form again."]
        if errors:
            raise InvalidEdit(errors)
        # The time of Redis at which the page was read, in us.
        return _done_text(
            self.act, _ACTS[self.act](until=datetime.fromtimestamp(until / 1e6, UTC), **self.common)
        )


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def backlog(request: HttpRequest, name: str) -> HttpResponse:
    if request.method != "POST":
        return _page(request, name)
    found = current_live(environment_in(request)).breaker(name)
    check_owner(request, "change_dead_jobs", found.dependency.owner if found is not None else "")
    if found is None:
        return _unknown(request, name)
    form = DeadJobsForm(request, dependency=name)
    try:
        return run_edit(form, page=partial(_page, name=name), then=reverse("backlog", args=[name]))
    except redis.RedisError as error:
        log.warning("backlog.not_changed", dependency=name, error=str(error))
        return _page(request, name, typed=form.data, errors={"act": [_DOWN]}, status=503)


def _done_text(act: str, changed: Changed) -> str:
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


def _page(request: HttpRequest, name: str, *, status: int = 200, **extra: Any) -> HttpResponse:
    context: dict[str, Any] = context_of(request, "backlog", key=name, **extra)
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
        "most_listed": MAX_LISTED,
        "confirm_label": f"Type {name} to confirm",
    }
    return render(request, "dashboard/backlog.html", context, status=status)


def _unknown(request: HttpRequest, name: str) -> HttpResponse:
    shown = name if is_slug(name) else "of that name"
    return not_found(request, "No such backlog", f"There is no dependency {shown}. It may have been removed.")
