"""One pod: what it does now, and what it would allow alone."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from controlplane.accounts.permissions import environment_in, may, require, require_role
from controlplane.errors import InvalidEdit, NotFound
from controlplane.fleet import live
from controlplane.fleet.edits import forget_pod, lift_freeze
from controlplane.fleet.models import Server
from controlplane.shares.allowed_alone import piece_of, reported_piece, rules_alone
from controlplane.status.server_rows import server_of_row
from dashboard.hub import hub
from dashboard.live.pod_page import page_of_old_pod
from dashboard.reader import actor_of, check_owner
from dashboard.views.overview import servers_page
from dashboard.views.page import context_of, not_found


@require_GET
@require_role("viewer")
def server(request: HttpRequest, name: str) -> HttpResponse:
    return _page(request, name)


def _page(
    request: HttpRequest,
    name: str,
    *,
    errors: dict[str, list[str]] | None = None,
    status: int = 200,
) -> HttpResponse:
    row = live.server(environment_in(request), name)
    if row is None:
        return not_found(request, "No such pod", "It never reported, or not for more than a day.")
    context = context_of(request, "server", key=row.name)
    facts = context["live"].facts
    # As the gateways answer it: without a request yet, a pod is in no divisor and divides by all pods.
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
        "events": live.events(environment_in(request), row.name),
        "may_forget": may(request.user, "forget_pod", environment_in(request), service=row.service),
        "may_drill": may(request.user, "run_drills", environment_in(request)),
        "errors": errors or {},
        "typed": request.POST,
    }
    return render(request, "dashboard/server.html", context, status=status)


@require_POST
@require_role("viewer")
def forget(request: HttpRequest, name: str) -> HttpResponse:
    row = Server.objects.filter(environment=environment_in(request), name=name).first()
    check_owner(request, "forget_pod", row.service if row else "")
    reason = request.POST.get("reason", "")
    try:
        forget_pod(environment=environment_in(request), server=name, reason=reason, actor=actor_of(request))
    except InvalidEdit as error:
        return _page(request, name, errors=error.errors, status=422)
    except NotFound:
        return not_found(request, "No such pod", "It never reported, or was forgotten already.")
    hub.nudge()
    messages.success(request, f"{name} is forgotten. If it sends another heartbeat, it is displayed again.")
    return redirect("servers")


@require_POST
@require("lift_freeze")
def lift(request: HttpRequest) -> HttpResponse:
    try:
        lift_freeze(
            environment=environment_in(request),
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
        )
    except InvalidEdit as error:
        return servers_page(request, lift_errors=error.errors, status=422)
    except NotFound:
        messages.success(request, "Nothing to do: pods that stop are marked offline again.")
    else:
        hub.nudge()
        messages.success(request, "Silent pods are marked offline within a few seconds.")
    return redirect("servers")
