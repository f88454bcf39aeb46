"""The figures of the quota form: what is, what was typed, and what somebody else saved meanwhile."""

from dataclasses import dataclass
from typing import Any

from controlplane.errors import EditConflict
from dashboard.forms import QuotaForm
from dashboard.live.tenant import QuotaRow


@dataclass(frozen=True, kw_only=True)
class Field:
    name: str
    label: str
    unit: str
    now: str
    value: str
    errors: list[str]


def quota_fields(form: QuotaForm, current: QuotaRow) -> list[Field]:
    shown = [
        ("limit", "Limit", f" per {current.window}", current.limit),
        ("window_s", "Window, seconds", "", current.window_s),
        ("burst", "Burst", " at once", current.burst),
    ]
    found = [
        _field(form, name, label, now=f"{now:,}", unit=unit, value=str(now))
        for name, label, unit, now in shown
        if name != "burst" or current.buckets
    ]
    if current.reserved:
        usual = current.reserved_percent < 0
        value = "" if usual else str(current.reserved_percent)
        now = "the fleet\u2019s usual" if usual else f"{value} %"
        label = "Spent without Redis, percent"
        found.append(_field(form, "reserved_percent", label, now=now, unit="; empty: the usual", value=value))
    return found


def _field(form: QuotaForm, name: str, label: str, *, now: str, unit: str, value: str) -> Field:
    return Field(
        name=name,
        label=label,
        unit=unit,
        now=now,
        value=str(form.data.get(name, "")) if form.is_bound else value,
        errors=[str(error) for error in form.errors.get(name, ())],
    )


def conflict_of(conflict: EditConflict, form: QuotaForm | None, current: QuotaRow | None) -> dict[str, Any]:
    """Theirs beside what was typed, for the quota in the form."""
    rows = []
    if form is not None and current is not None:
        for name, label, now in (
            ("limit", "Limit", current.limit),
            ("window_s", "Window, seconds", current.window_s),
            ("burst", "Burst", current.burst),
            ("reserved_percent", "Spent without Redis, percent", current.reserved_percent),
        ):
            typed = form.cleaned_data.get(name)
            if typed is not None and typed != now:
                rows.append((label, f"{now:,}", f"{typed:,}"))
    return {"by": conflict.by, "rows": rows}
