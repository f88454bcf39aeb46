"""The page of alerts: what fires, who works on it, and what fired in the past."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import check, environment_in, require
from controlplane.alerts.people.acknowledge import acknowledge_alert, release_alert
from controlplane.alerts.people.mute_edits import end_mute
from controlplane.alerts.people.routing import warnings
from controlplane.alerts.state.stored_alerts import past_alerts, stored
from controlplane.errors import InvalidEdit
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import TextField, WholeField, whole
from dashboard.live.alert_cards import CARDS_OF_PAGE, AlertCards
from dashboard.tables.list_filters import PERIODS, given_filters, having, in_period
from dashboard.tables.table_files import rows_drawn
from dashboard.views.alerts.mutes import ENDED_ALREADY, ended_text
from dashboard.views.page import context_of, text_parameter

_ROWS = 50
_SEVERITIES = ("critical", "warning")
#: No resolved alert is older.
_PERIODS = (*PERIODS[:-1], ("", "Last 90 days"))


#: A number of an alert, as Postgres has them.
_LARGEST = 2**63 - 1
_NOTE = TextField(500)


def _note_of(data: Mapping[str, Any], number: object) -> str:
    try:
        note: str = _NOTE.clean(data.get(f"note-{number}") or data.get("note", ""))
    except ValidationError as error:
        raise InvalidEdit({"note": error.messages}) from None
    return note


def _back(request: HttpRequest) -> str:
    """The page whose card was used, if it is not this one: the overview, or the number of an alert."""
    came = request.POST.get("from", "")
    if came == "overview":
        return came
    return reverse("alert", args=[whole(came, "alert", (1, _LARGEST))]) if came else ""


class AcknowledgeForm(EditForm):
    acknowledge = TextField()
    reason = None

    def save(self) -> str:
        number, _, seen = self.cleaned_data["acknowledge"].partition(" ")
        # Every card has a field, in one form: no markup of the socket contains a token.
        note = _note_of(self.data, number)
        self.then = _back(self.request)
        row = acknowledge_alert(number=whole(number, "alert"), seen=seen, note=note, **self.common)
        return f"Acknowledged: {row.text}."


class ReleaseForm(EditForm):
    release = WholeField()
    reason = None

    def save(self) -> str:
        number, self.then = self.cleaned_data["release"], _back(self.request)
        note = _note_of(self.data, number)
        return f"Acknowledgement withdrawn: {release_alert(number=number, note=note, **self.common).text}."


class EndMuteForm(EditForm):
    missing = ENDED_ALREADY

    end_mute = TextField()
    end_period = TextField()
    reason = None

    def save(self) -> str:
        check(self.request.user, "mute_alerts", environment_in(self.request), service="")
        self.then, only_period = _back(self.request), "end_period" in self.data
        row = end_mute(
            number=whole(self.cleaned_data["end_period" if only_period else "end_mute"], "mute"),
            only_period=only_period,
            reason="Ended on the Alerts page",
            **self.common,
        )
        return ended_text(row)


#: Name of a button -> its form.
_BUTTONS = {"end_mute": EndMuteForm, "end_period": EndMuteForm, "release": ReleaseForm}


@require_http_methods(["GET", "POST"])
@require("view")
def alerts(request: HttpRequest) -> HttpResponse:
    form = next((_BUTTONS[name] for name in _BUTTONS if name in request.POST), AcknowledgeForm)(request)
    # The filter stays.
    return run_edit(form, page=_page, then=request.get_full_path(), needs="acknowledge_alert")


def _more_open(request: HttpRequest, cards: AlertCards) -> dict[str, Any]:
    """The open alerts beyond those that are live, if the reader asked for them."""
    asked = text_parameter(request, "open")
    if not asked.isdecimal() or not cards.not_live:
        return {}
    shown = Paginator(cards.not_live, CARDS_OF_PAGE).get_page(asked)
    return {
        "more_open": shown.object_list,
        "more_before": shown.previous_page_number() if shown.has_previous() else None,
        "more_after": shown.next_page_number() if shown.has_next() else None,
    }


def _page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = context_of(request, "alerts", **extra)
    filters = given_filters(request, "q", "period", "severity")
    rows = in_period(past_alerts(environment_in(request)), filters, "resolved_at")
    rows = having(rows, filters.get("q", ""), ("text", "detail", "acknowledged_by", "key"))
    if filters.get("severity") in _SEVERITIES:
        rows = rows.filter(severity=filters["severity"])
    pages = Paginator(rows, rows_drawn(request, _ROWS))
    shown = pages.get_page(text_parameter(request, "page"))
    typed: Mapping[str, Any] = extra.get("typed", {})
    context |= _more_open(request, context["live"].alert_cards) | {
        "unsaved_note": next((text for name, text in typed.items() if name.startswith("note") and text), ""),
        "warnings": warnings(environment_in(request)),
        "past": [stored(row) for row in shown.object_list],
        "count": pages.count,
        "filters": filters,
        "periods": _PERIODS,
        "span": dict(_PERIODS).get(filters.get("period", ""), _PERIODS[-1][1]),
        "severities": (("", "Any severity"), *((name, name.capitalize()) for name in _SEVERITIES)),
        "previous": shown.previous_page_number() if shown.has_previous() else None,
        "next": shown.next_page_number() if shown.has_next() else None,
    }
    return render(request, "dashboard/alerts.html", context, status=status)
