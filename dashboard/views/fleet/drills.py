"""Drills: see what pods do without Redis, before it is needed."""

from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.alerts.rules.texts import allowed_alone
from controlplane.drills.edits import LONGEST_MINUTES, Chosen, begin_drill, end_drill, under_way
from controlplane.drills.models import Drill
from controlplane.status.read_facts import read_pods
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import TextField, TextsField, WholeField, whole
from dashboard.undo import Saved
from dashboard.views.page import context_of, text_parameter

_PAST = 20
#: The pods that take part in a drill.
_CHOICES = (("servers", "Selected pods"), ("percent", "Percent of the fleet"), ("service", "One service"))


class BeginForm(EditForm):
    kind = TextField()
    minutes = WholeField(bounds=(1, LONGEST_MINUTES))
    who = TextField()
    service = TextField()
    percent = TextField()
    servers = TextsField()

    def save(self) -> Saved:
        kind, minutes = self.cleaned_data["kind"], self.cleaned_data["minutes"]
        row = begin_drill(kind=kind, minutes=minutes, chosen=self._chosen(), **self.common)
        names = row.servers
        text = f"Drill started on {names[0] if len(names) == 1 else f'{len(names)} pods'}."
        undo = {"act": "end", "drill": str(row.pk), "reason": "Undo of a drill"}
        return Saved(text, at=reverse("drills"), undo=undo)

    def _chosen(self) -> Chosen:
        match self.cleaned_data["who"]:
            case "service":
                return Chosen(service=self.cleaned_data["service"])
            case "percent":
                return Chosen(percent=whole(self.cleaned_data["percent"], "percent", (1, 100)))
        return Chosen(servers=self.cleaned_data["servers"])


class EndForm(EditForm):
    missing = "This drill has already ended."

    drill = WholeField()

    def save(self) -> str:
        chosen = end_drill(**self.given).chosen
        return f"The drill on {chosen} has ended; its pods stop with their next heartbeat."


@require_http_methods(["GET", "POST"])
@require("run_drills")
def drills(request: HttpRequest) -> HttpResponse:
    form = EndForm(request) if request.POST.get("act") == "end" else BeginForm(request)
    return run_edit(form, page=_page, then="drills")


def _page(
    request: HttpRequest, *, typed: QueryDict | None = None, status: int = 200, **extra: Any
) -> HttpResponse:
    typed = QueryDict() if typed is None else typed
    facts = read_pods(environment_in(request))
    context = context_of(request, "drills", here=facts, typed=typed, **extra)
    modes = {server.name: server.mode for server in facts.servers}
    going = list(under_way(environment_in(request)))
    rows = facts.live_servers
    context |= {
        "allowed_alone": allowed_alone(facts.divisor),
        "going": [(drill, sum(modes.get(name) == "drill" for name in drill.servers)) for drill in going],
        "past": Drill.objects.filter(environment=environment_in(request))
        .exclude(pk__in=[drill.pk for drill in going])
        .order_by("-pk")[:_PAST],
        "servers": sorted(rows, key=lambda server: server.name)[:500],
        "services": sorted({server.service for server in rows if server.service}),
        "longest": LONGEST_MINUTES,
        "minutes": typed.get("minutes", "5"),
        "choices": _CHOICES,
        "who": typed.get("who") if typed.get("who") in dict(_CHOICES) else "servers",
        # The page of a pod leads here with its name.
        "picked": {*typed.getlist("servers"), text_parameter(request, "pod")},
        "at": timezone.now(),
    }
    return render(request, "dashboard/drills.html", context, status=status)
