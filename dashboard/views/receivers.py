"""Receivers of alerts: added, tested, and removed; a secret is displayed once."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.alerts.delivery import receivers as edits
from controlplane.alerts.delivery.apprise.services import (
    PAGERS,
    SERVICES,
    is_webhook,
    scheme_of,
    service_name,
)
from controlplane.alerts.models import Delivery, Receiver
from controlplane.alerts.people.untested_receivers import untested_receivers
from controlplane.errors import InvalidEdit, NameTaken, NotFound
from dashboard.reader import actor_of
from dashboard.table_files import rows_listed
from dashboard.views.page import bounded_text, context_of

_DELIVERIES = 50
_LEVELS = (
    (1, "All levels"),
    (2, "2 and 3: on call"),
    (3, "3: at once"),
)
_SEVERITIES = (("warning", "Warning and critical"), ("critical", "Critical only"))


@require_http_methods(["GET", "POST"])
@require("manage_receivers")
def receivers(request: HttpRequest) -> HttpResponseBase:
    if request.method != "POST":
        return _page(request)
    try:
        return _act(request)
    except InvalidEdit as error:
        return _page(request, errors=error.errors, typed=request.POST, status=422)
    except NameTaken as error:
        return _page(request, errors={"name": [str(error)]}, typed=request.POST, status=422)
    except NotFound as missing:
        return _page(request, errors={"act": [str(missing)]}, status=404)


def _act(request: HttpRequest) -> HttpResponse:
    typed = request.POST
    name, reason = bounded_text(typed, "name", most=64).strip(), typed.get("reason", "")
    common: dict[str, Any] = {
        "environment": environment_in(request),
        "name": name,
        "actor": actor_of(request),
    }
    match typed.get("act", ""):
        case "add":
            row, secret = edits.add_receiver(
                url=typed.get("url", "").strip(),
                least_level=_level(typed.get("least_level", "")),
                least_severity=typed.get("least_severity", ""),
                weekly=typed.get("weekly") == "on",
                reason=reason,
                **common,
            )
            if secret:
                return _page(request, secret=secret, made=row.name)
            messages.success(request, f"Receiver {row.name} was added. Test it.")
        case "secret":
            return _page(request, secret=edits.change_secret(reason=reason, **common), made=name)
        case "remove":
            edits.remove_receiver(reason=reason, **common)
            messages.success(request, f"Receiver {name} was removed.")
        case "enable":
            edits.enable_receiver(reason=reason, **common)
            messages.success(request, f"Receiver {name} gets news again.")
        case "weekly" | "no-weekly" as act:
            edits.set_weekly(weekly=act == "weekly", reason=reason, **common)
            gets = "gets" if act == "weekly" else "does not get"
            messages.success(request, f"Receiver {name} {gets} the weekly summary.")
        case "test":
            edits.test_receiver(**common)
            messages.success(request, f"A test to {name} waits for the worker. Reload to see its result.")
        case _:
            raise InvalidEdit({"act": ["Choose an action."]})
    return redirect("receivers")


def _level(text: str) -> int:
    return int(text) if text in ("1", "2", "3") else 0


def _page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = context_of(request, "receivers", **extra)
    rows = Receiver.objects.filter(environment=environment_in(request)).order_by("name")
    sent = Delivery.objects.filter(receiver__environment=environment_in(request)).select_related(
        "receiver", "alert"
    )
    warnings = untested_receivers(environment_in(request))
    context |= {
        "rows": [
            {
                "row": row,
                "service": service_name(row.url),
                "address": edits.address_of(row),
                "signs": is_webhook(row.url),
                "pager": scheme_of(row.url) in PAGERS,
                "warning": warnings.get(row.pk, ""),
            }
            for row in rows
        ],
        "services": dict.fromkeys(SERVICES.values()),
        "deliveries": sent.order_by("-created_at")[: rows_listed(request, _DELIVERIES)],
        "levels": _LEVELS,
        "level": _level(request.POST.get("least_level", "")) or 2,
        "severity": request.POST.get("least_severity", "warning"),
        "url_hint": (
            "https:// for a signed webhook, or a service of the list below."
            " A public address, or one in FUSEBOARD_WEBHOOK_NETWORKS."
        ),
        "severities": _SEVERITIES,
        "now": timezone.now(),
    }
    return render(request, "dashboard/receivers.html", context, status=status)
