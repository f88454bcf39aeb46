"""One pod: what it does now, and what it would allow alone."""

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from controlplane.accounts.permissions import environment_in, may, require, require_role
from controlplane.errors import NotFound
from controlplane.fleet import live
from controlplane.fleet.edits import forget_pod, lift_freeze
from controlplane.fleet.models import Server
from controlplane.shares.allowed_alone import piece_of, reported_piece, rules_alone
from controlplane.status.server_rows import server_of_row
from dashboard.edit_form import EditForm, run_edit
from dashboard.live.pod_lines import event_rows
from dashboard.live.pod_page import page_of_old_pod
from dashboard.reader import check_owner
from dashboard.views.fleet.overview import servers_page
from dashboard.views.page import context_of, not_found


@require_GET
@require_role("viewer")
def server(request: HttpRequest, name: str) -> HttpResponse:
    return _page(request, name)


def _page(request: HttpRequest, name: str, *, status: int = 200, **extra: Any) -> HttpResponse:
    row = live.server(environment_in(request), name)
    if row is None:
        return not_found(request, "No such pod", "It never reported, or not for more than a day.")
    context = context_of(request, "server", key=row.name, **extra)
    facts = context["live"].facts
    # Gateways answer a pod without a request so: it is in no divisor, and divides by all pods.
    divisor = facts.divisor if row.spending else max(facts.divisor, live.present(environment_in(request)))
    piece, reported = piece_of(row), reported_piece(row)
    # A gateway of an older version does not store what the pod says, and not the token either.
    seen = reported if row.token else piece
    if context["pod"] is None:
        context["pod"] = page_of_old_pod(context["live"], server_of_row(row))
    context |= {
        "server": row,
        "rules": rules_alone(row, servers=divisor, share=seen),
        "piece": seen,
        "granted": piece,
        "divisor": divisor,
        "events": event_rows(live.events(environment_in(request), row.name)),
        "may_forget": may(request.user, "forget_pod", environment_in(request), service=row.service),
        "may_drill": may(request.user, "run_drills", environment_in(request)),
    }
    return render(request, "dashboard/server.html", context, status=status)


class ForgetForm(EditForm):
    def save(self) -> str:
        forget_pod(**self.given)
        return f"{self.known['server']} is forgotten. If it sends another heartbeat, it is displayed again."


@require_POST
@require_role("viewer")
def forget(request: HttpRequest, name: str) -> HttpResponse:
    row = Server.objects.filter(environment=environment_in(request), name=name).first()
    check_owner(request, "forget_pod", row.service if row else "")
    if row is None:
        return not_found(request, "No such pod", "It never reported, or was forgotten already.")
    return run_edit(ForgetForm(request, server=name), page=partial(_page, name=name), then="servers")


class LiftForm(EditForm):
    def save(self) -> str:
        try:
            lift_freeze(**self.given)
        except NotFound:
            return "Nothing to do: pods that stop are marked offline again."
        return "Silent pods are marked offline within a few seconds."


@require_POST
@require("lift_freeze")
def lift(request: HttpRequest) -> HttpResponse:
    return run_edit(LiftForm(request), page=servers_page, then="servers")
