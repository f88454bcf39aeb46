"""The inputs of the quota form, and what another person saved in the meantime."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controlplane.errors import EditConflict
from controlplane.policies.limit_fields import WORDS
from dashboard.limit_forms import QuotaForm, form_value, value_words
from dashboard.live.tenant import QuotaRow
from fuseboard.contract.limit_fields import LimitField, Number


@dataclass(frozen=True, kw_only=True)
class Field:
    name: str
    label: str
    hint: str
    value: str
    #: Value and label; empty for a number.
    choices: Iterable[tuple[str, str]]
    errors: list[str]


def quota_fields(form: QuotaForm, current: QuotaRow) -> list[Field]:
    """Return the inputs that make sense for this quota."""
    algorithm, policy = current.columns["algorithm"], current.columns["failure_policy"]
    return [_field(form, each, current) for each in form.described if each.applies_to(algorithm, policy)]


def _field(form: QuotaForm, described: LimitField, current: QuotaRow) -> Field:
    name, words = described.name, WORDS[described.name]
    present = current.columns[name]
    numeric = isinstance(described, Number)
    typed = form.data.get(name, "") if form.is_bound else form_value(described, present)
    return Field(
        name=name,
        label=words.label,
        hint=_hint(described, current) if numeric else "",
        value=str(typed) if numeric or typed else form_value(described, present),
        choices=() if numeric else words.choices.items(),
        errors=[str(error) for error in form.errors.get(name, ())],
    )


def _hint(described: LimitField, current: QuotaRow) -> str:
    now = value_words(described, current.columns[described.name])
    units = {"limit": f" per {current.window}", "window_s": " s", "burst": " at once"}
    usual = WORDS[described.name].usual
    return f"now {now}{units.get(described.name, '')}{f'; empty: {usual}' if usual else ''}"


def conflict_of(conflict: EditConflict, form: QuotaForm | None, current: QuotaRow | None) -> dict[str, Any]:
    """Return their values beside the typed ones, for the quota in the form."""
    rows = []
    if form is not None and current is not None:
        typed = form.columns()
        for each in form.described:
            now = current.columns[each.name]
            if typed.get(each.name, now) != now:
                rows.append(
                    (WORDS[each.name].label, value_words(each, now), value_words(each, typed[each.name]))
                )
    return {"by": conflict.by, "rows": rows}
