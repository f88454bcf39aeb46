"""Receivers of alerts: added, tested, and removed; a secret is displayed once."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
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
from dashboard.edit_form import EditForm, chosen_form, run_edit
from dashboard.forms import SentNumberField, TextField
from dashboard.tables.table_files import rows_listed
from dashboard.undo import Saved
from dashboard.views.page import context_of

_DELIVERIES = 50
_LEVELS = (
    ("1", "All levels"),
    ("2", "2 and 3: on call"),
    ("3", "3: at once"),
)
_SEVERITIES = (("warning", "Warning and critical"), ("critical", "Critical only"))


class AddForm(EditForm):
    name = TextField(64)
    url = TextField(edits.MAX_URL)
    least_level = SentNumberField(0)
    least_severity = TextField()
    weekly = forms.BooleanField(required=False)

    def save(self) -> Saved | HttpResponse:
        row, secret = edits.add_receiver(**self.given)
        if secret:
            return _page(self.request, secret=secret, made=row.name)
        text = f"Receiver {row.name} was added. Test it."
        return Saved(text, at=reverse("receivers"), undo=_button("remove", row.name))


class ChangeForm(EditForm):
    """A button in the row of a receiver."""

    name = TextField(64)

    def save(self) -> Saved | HttpResponse:
        name = self.cleaned_data["name"]
        match self.act:
            case "secret":
                return _page(self.request, secret=edits.change_secret(**self.given), made=name)
            case "remove":
                edits.remove_receiver(**self.given)
                # Its address and its secret are gone.
                return Saved(f"Receiver {name} was removed.")
            case "enable":
                edits.enable_receiver(**self.given)
                return Saved(f"Receiver {name} gets messages again.")
            case act:
                edits.set_weekly(weekly=act == "weekly", **self.given)
                gets = "gets" if act == "weekly" else "does not get"
                undo = _button("no-weekly" if act == "weekly" else "weekly", name)
                return Saved(
                    f"Receiver {name} {gets} the weekly summary.", at=reverse("receivers"), undo=undo
                )


def _button(act: str, name: str) -> dict[str, str]:
    return {"act": act, "name": name, "reason": f"Undo of an edit of receiver {name}"}


class TestForm(EditForm):
    name = TextField(64)
    reason = None

    def save(self) -> str:
        edits.test_receiver(**self.given)
        return f"A test to {self.cleaned_data['name']} waits for the worker. Reload to see its result."


_ACTS = {"add": AddForm, "test": TestForm} | dict.fromkeys(
    ("secret", "remove", "enable", "weekly", "no-weekly"), ChangeForm
)


@require_http_methods(["GET", "POST"])
@require("manage_receivers")
def receivers(request: HttpRequest) -> HttpResponse:
    return run_edit(chosen_form(request, _ACTS), page=_page, then="receivers")


def _page(
    request: HttpRequest, *, typed: Mapping[str, str] = {}, status: int = 200, **extra: Any
) -> HttpResponse:
    context = context_of(request, "receivers", typed=typed, **extra)
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
                "warning": warnings.get(row.pk, "") if row.url else "",
                # It cannot be decrypted.
                "unreadable": not row.url,
            }
            for row in rows
        ],
        "services": dict.fromkeys(SERVICES.values()),
        "deliveries": sent.order_by("-created_at")[: rows_listed(request, _DELIVERIES)],
        "levels": _LEVELS,
        "level": typed.get("least_level", "2"),
        "severity": typed.get("least_severity", "warning"),
        "url_hint": (
            "https:// for a signed webhook, or a service of the list below."
            " A public address, or one in FUSEBOARD_WEBHOOK_NETWORKS."
        ),
        "severities": _SEVERITIES,
        "now": timezone.now(),
    }
    return render(request, "dashboard/receivers.html", context, status=status)
