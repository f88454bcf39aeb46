"""One pod: what it does now, and what it would allow alone."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import SHOWN, require_role
from controlplane.fleet import live
from controlplane.fleet.models import Server
from controlplane.shares.allowed_alone import piece_of, rules_alone
from dashboard.views.page import context_of, not_found


@require_GET
@require_role("viewer")
def server(request: HttpRequest, name: str) -> HttpResponse:
    row = Server.objects.filter(environment=SHOWN, name=name[:64].replace("\x00", "")).first()
    if row is None:
        return not_found(request, "No such pod", "It never reported, or not for more than a day.")
    context = context_of(request, "server", key=row.name)
    facts = context["live"].facts
    context |= {
        "server": row,
        "live_row": next((seen for seen in context["live"].fleet.rows if seen.name == row.name), None),
        "rules": rules_alone(row, servers=facts.divisor),
        "piece": piece_of(row),
        "divisor": facts.divisor,
        "events": live.events(SHOWN, row.name),
    }
    return render(request, "dashboard/server.html", context)
