"""Scheduled changes, temporary quotas, and those that failed."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.approvals.models import PENDING, ChangeRequest
from controlplane.editing.plans import PlanErrors, plan_from_document, read_plan
from controlplane.editing.plans.schema import SECTIONS
from controlplane.errors import InvalidEdit
from controlplane.phrases import count
from controlplane.policies.models import Tenant, TenantQuota
from controlplane.schedules.authors import authors_of, why_not_theirs_now
from controlplane.schedules.edits import acknowledge_failure, cancel_schedule, check_due, schedule_change
from controlplane.schedules.models import Schedule
from controlplane.validation import Problems
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import MomentField, SentNumberField, TextField
from dashboard.tables.table_files import rows_listed
from dashboard.undo import Saved
from dashboard.views.history.schedule_form import saved_schedule
from dashboard.views.history.tabs import change_tabs
from dashboard.views.page import context_of
from dashboard.words.labels import planned_words

_MAX_ROWS = 200
#: An example of a change, for a tenant that exists.
_EXAMPLE = "tenants:\n  {}:\n    quotas:\n      requests: {{limit: 5000, window_s: 60, burst: 500}}"
#: Listed things of one scheduled change; the others are counted.
_THINGS_SHOWN = 3
#: Listed values of one thing: a tenant may have many quotas.
_VALUES_SHOWN = 12


@dataclass(frozen=True)
class Row:
    """A scheduled change, and what it changes."""

    schedule: Schedule
    #: Each thing and its new values.
    things: tuple[tuple[str, str], ...]
    more: int
    #: Why its author may not make it any more; empty if they may.
    lost: str


def _rows(schedules: list[Schedule]) -> list[Row]:
    authors = authors_of(schedules)
    approved = {row.schedule: row for row in ChangeRequest.objects.filter(schedule__in=authors)}
    return [
        _row(one, why_not_theirs_now(one.environment, authors[one.pk], approved.get(one.pk)))
        for one in schedules
    ]


def _row(schedule: Schedule, lost: str) -> Row:
    try:
        found = plan_from_document(schedule.document).things
    except PlanErrors:  # a plan of an earlier version, which fails when it is due
        return Row(schedule, (), 0, lost)
    shown = list(found.items())[:_THINGS_SHOWN]
    things = tuple((f"{kind} {name}", _values(fields)) for (kind, name), fields in shown)
    return Row(schedule, things, len(found) - len(shown), lost)


def _values(fields: dict[str, Any]) -> str:
    """Every new value in words; a removed quota or tenant has none."""
    words = planned_words({name: value for name, value in fields.items() if value is not None})
    words += [f"no {name.partition('.')[2] or name}" for name, value in fields.items() if value is None]
    hidden = len(words) - _VALUES_SHOWN
    more = [f"and {count(hidden, 'more value')}"] if hidden > 0 else []
    return ", ".join(words[:_VALUES_SHOWN] + more)


class NewForm(EditForm):
    due_at = MomentField()
    plan = TextField()

    def clean_due_at(self) -> datetime | None:
        """Checked here too: a plan that cannot be read would hide what is wrong with the time."""
        due_at: datetime | None = self.cleaned_data["due_at"]
        if due_at is not None:
            problems = Problems()
            check_due(problems, due_at)
            if problems.errors:
                raise forms.ValidationError(problems.errors["due_at"])
        return due_at

    def clean_plan(self) -> dict[str, Any]:
        try:
            return _document(self.cleaned_data["plan"])
        except PlanErrors as errors:
            raise forms.ValidationError([str(error) for error in errors.found]) from errors

    def save(self) -> Saved:
        typed = self.cleaned_data
        try:
            made = schedule_change(due_at=typed["due_at"], document=typed["plan"], **self.common)
        except PlanErrors as errors:
            raise InvalidEdit({"plan": [str(error) for error in errors.found]}) from errors
        return saved_schedule(made, made.title)


class ScheduleForm(EditForm):
    """A button in the row of a schedule."""

    schedule = SentNumberField()

    def save(self) -> str:
        if self.cleaned_data["schedule"] < 0:
            raise InvalidEdit({"schedule": ["Choose a change from the list."]})
        if self.act == "cancel":
            return f"{cancel_schedule(**self.given).title} is cancelled."
        return f"Acknowledged: {acknowledge_failure(**self.given).title}."


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def schedules(request: HttpRequest) -> HttpResponse:
    form = NewForm(request) if request.POST.get("act") == "new" else ScheduleForm(request)
    return run_edit(form, page=_page, then="schedules", needs="edit_quota")


def _document(text: str) -> dict[str, Any]:
    """The typed plan, as plain data."""
    plan = read_plan(text)
    # Written for one environment, it is refused in any other, as in an import.
    document: dict[str, Any] = {"environment": plan.environment} if plan.environment else {}
    names = {kind: section for section, kind in SECTIONS.items()}
    for (kind, name), fields in plan.things.items():
        nested = _nested(fields)
        if kind == "environment":
            document |= nested
        else:
            document.setdefault(names[kind], {})[name] = nested
    plan_from_document(document)
    return document


def _nested(fields: dict[str, Any]) -> dict[str, Any]:
    """Flat fields as a plan has them: ``quotas.requests.limit`` becomes three levels."""
    found: dict[str, Any] = {}
    for field, value in fields.items():
        head, _, rest = field.partition(".")
        name, _, column = rest.rpartition(".")
        if not rest:
            found[head] = value
        elif not name:
            found.setdefault(head, {})[rest] = value
        else:
            found.setdefault(head, {}).setdefault(name, {})[column] = value
    return found


def _pending(environment: str) -> QuerySet[ChangeRequest, int]:
    pending = ChangeRequest.objects.filter(environment=environment, state__in=PENDING)
    return pending.values_list("pk", flat=True)


def _page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    rows, most = Schedule.objects.filter(environment=environment_in(request)), rows_listed(request, _MAX_ROWS)
    ending = TenantQuota.objects.filter(tenant__environment=environment_in(request), expires_at__isnull=False)
    tenant = Tenant.objects.filter(environment=environment_in(request), deleted=False).order_by("key").first()
    context = context_of(
        request,
        "schedules",
        tabs=change_tabs(request, "schedules"),
        example=_EXAMPLE.format(tenant.key if tenant is not None else "a-tenant"),
        waiting=_rows(list(rows.filter(state="waiting").order_by("due_at")[:most])),
        proposed=rows.filter(state="proposed", request__in=_pending(environment_in(request))).order_by(
            "due_at"
        ),
        failures=rows.filter(state="failed", seen=False).order_by("-due_at")[:_MAX_ROWS],
        ending=ending.select_related("tenant__tier").order_by("expires_at")[:most],
        past=rows.exclude(state="waiting").order_by("-ended_at")[: rows_listed(request, 20)],
        planned=[text for field in ("plan", "document") for text in extra.get("errors", {}).get(field, ())],
        **extra,
    )
    return render(request, "dashboard/schedules.html", context, status=status)
