"""Undoes an edit right after it was made, and reports how many pods have applied it."""

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.editing import edits
from controlplane.editing.edits.revert import KeptUnit
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.one_at_a_time import StillRunning, alone
from controlplane.phrases import count
from controlplane.policies.models import Revision
from controlplane.status.read_facts import read_pods
from dashboard.hub import hub
from dashboard.live import tenant as tenants
from dashboard.reader import actor_of, check_reverts, one_at_a_time_as
from dashboard.undo import saved_at
from dashboard.views.page import bounded_text


@require_GET
@require_role("viewer")
def rollout(request: HttpRequest, number: int) -> HttpResponse:
    """How many pods have applied a revision, as a fragment that is asked for until all have."""
    row = Revision.objects.filter(environment=environment_in(request), number=number).first()
    if row is None:
        return HttpResponse(status=404)
    found = tenants.rollout(read_pods(environment_in(request)), number)
    return render(request, "dashboard/saved.html#rollout", {"rollout": found})


@require_POST
@require_role("viewer")
def undo(request: HttpRequest, number: int) -> HttpResponse:
    """Revert an edit, with a reason that says so. Values that another person changed since stay."""
    check = check_reverts(request, number)
    back = bounded_text(request.POST, "back", most=500)
    # Also without characters that browsers or ``urlsplit`` leave out: "/\t//evil.example" is no path.
    plain = back.isprintable() and "\\" not in back
    if not (plain and back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None)):
        back = reverse("overview")
    try:
        with alone(one_at_a_time_as(request)):
            made = edits.revert(
                environment=environment_in(request),
                number=number,
                reason=f"Undo of revision {number}",
                actor=actor_of(request),
                expected_revision=None,
                check=check,
            )
    except StillRunning:
        messages.error(request, "Nothing was undone: your earlier revert or replay still runs. Try again.")
        return redirect(back)
    except (InvalidEdit, EditConflict, NotFound) as error:
        messages.error(request, f"Nothing was undone. {error}")
        return redirect(back)
    except PermissionDenied as refused:
        messages.error(request, f"Nothing was undone. {refused}")
        return redirect("revert", number=number)
    hub.nudge()
    if not made.changes and not made.kept:
        messages.info(request, f"Nothing to do: revision {number} is already undone.")
        return redirect(back)
    if not made.changes:
        messages.error(request, f"Nothing was undone: {_kept_words(made.kept)}")
        return redirect("revert", number=number)
    if made.kept:
        rest = reverse("revert", args=[number])
        messages.warning(
            request,
            format_html(
                'Not everything was undone: {} <a class="link" href="{}">See what stays</a>',
                _kept_words(made.kept),
                rest,
            ),
        )
    return redirect(saved_at(back, made.revision))


def _kept_words(kept: list[KeptUnit]) -> str:
    """Say what stays, and why."""
    first = kept[0]
    thing = f"{first.kind} {first.name}"
    if first.revision:
        why = f"{first.by} changed {thing} in revision {first.revision}."
    elif first.template:
        why = f"{thing} follows template {first.template}."
    else:
        why = f"an earlier value of {thing} was temporary, and has ended."
    return f"{why} {count(len(kept), 'value')} stay{'s' if len(kept) == 1 else ''} as now."
