"""Drills: see what pods do without Redis, before it is needed."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.drills.edits import LONGEST_MINUTES, Chosen, begin_drill, end_drill, under_way
from controlplane.drills.models import Drill
from controlplane.errors import InvalidEdit, NotFound
from dashboard.forms import whole
from dashboard.hub import hub
from dashboard.reader import actor_of
from dashboard.views.page import context_of, text_parameter

_PAST = 20
#: Who takes part in a drill.
_CHOICES = (("servers", "Selected pods"), ("percent", "Percent of the fleet"), ("service", "One service"))


@require_http_methods(["GET", "POST"])
@require("run_drills")
def drills(request: HttpRequest) -> HttpResponseBase:
    return _act(request) if request.method == "POST" else _page(request)


def _act(request: HttpRequest) -> HttpResponse:
    typed = request.POST
    common: dict[str, Any] = {
        "environment": environment_in(request),
        "reason": typed.get("reason", ""),
        "actor": actor_of(request),
    }
    try:
        if typed.get("act") == "end":
            drill = end_drill(drill=whole(typed.get("drill", ""), "drill"), **common)
            said = f"The drill on {drill.chosen} has ended; its pods stop with their next heartbeat."
        else:
            drill = begin_drill(
                kind=typed.get("kind", ""),
                minutes=whole(typed.get("minutes", ""), "minutes"),
                chosen=_chosen(request),
                **common,
            )
            count = len(drill.servers)
            said = f"Drill started on {drill.servers[0] if count == 1 else f'{count} pods'}."
    except InvalidEdit as error:
        return _page(request, errors=error.errors, status=422)
    except NotFound as missing:
        return _page(request, errors={"drill": [str(missing)]}, status=404)
    hub.nudge()
    messages.success(request, said)
    return redirect("drills")


def _chosen(request: HttpRequest) -> Chosen:
    typed = request.POST
    if typed.get("who") == "service":
        return Chosen(service=typed.get("service", ""))
    if typed.get("who") == "percent":
        return Chosen(percent=whole(typed.get("percent", ""), "percent"))
    return Chosen(servers=typed.getlist("servers"))


def _page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = context_of(request, "drills", **extra)
    modes = {server.name: server.mode for server in context["live"].facts.servers}
    going = list(under_way(environment_in(request)))
    rows = [server for server in context["live"].facts.servers if server.live]
    context |= {
        "going": [(drill, sum(modes.get(name) == "drill" for name in drill.servers)) for drill in going],
        "past": Drill.objects.filter(environment=environment_in(request))
        .exclude(pk__in=[drill.pk for drill in going])
        .order_by("-pk")[:_PAST],
        "servers": sorted(rows, key=lambda server: server.name)[:500],
        "services": sorted({server.service for server in rows if server.service}),
        "longest": LONGEST_MINUTES,
        "typed": request.POST,
        "choices": _CHOICES,
        "who": request.POST.get("who") if request.POST.get("who") in dict(_CHOICES) else "servers",
        # The page of a pod leads here with its name.
        "picked": {*request.POST.getlist("servers"), text_parameter(request, "pod")},
        "at": timezone.now(),
    }
    return render(request, "dashboard/drills.html", context, status=status)
