"""Alert rules: what is in force, and a form that changes one, with what the change would mean."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.alerts.people.rule_edits import (
    LONGEST_FOR_S,
    LONGEST_KEEP_S,
    LONGEST_NOTE,
    MIN_CLEAR_PERCENT,
    PAST_DAYS,
    RuleInForce,
    RuleValues,
    preview_rule,
    rules_in_force,
    set_rule,
)
from controlplane.alerts.people.rule_words import sentence_of
from controlplane.errors import EditConflict
from dashboard.edit_form import EditForm, Errors, chosen_form, run_edit
from dashboard.forms import TextField, WholeField
from dashboard.undo import Saved
from dashboard.views.page import context_of

_LEVELS = (("1", "1: handled automatically"), ("2", "2: people on call"))
_CONFLICT = "{by} changed this rule meanwhile. The list has the new values. Save again to replace them."
_NO_NUMBER = "Enter a number, such as 2 or 0.5, or leave it empty for the default."
#: The characters of a typed number.
_LONGEST_NUMBER = 20
_FIELDS = ("warning", "critical", "clear_percent", "for_s", "keep_s", "level")


class NumberField(forms.Field):
    """A finite number, or ``None`` for the default."""

    def to_python(self, value: str | None) -> float | None:
        if not (text := (value or "").strip()):
            return None
        try:
            number = float(text) if len(text) <= _LONGEST_NUMBER else float("nan")
        except ValueError:
            number = float("nan")
        if not isfinite(number):
            raise forms.ValidationError(_NO_NUMBER)
        return number


class VersionedForm(EditForm):
    """Without a version, the edit replaces what another person saved. An empty one is no version."""

    rule = TextField(64)
    version = WholeField(required=False)

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request)
        self.fields["version"].required = "version" in self.data

    def set_values(self, values: RuleValues, text: str) -> Saved:
        """Save the rule. The Undo of its notice replaces these values, and no later ones."""
        rule, version = self.cleaned_data["rule"], self.cleaned_data["version"]
        before = next((row for row in rules_in_force(environment_in(self.request)) if row.key == rule), None)
        made = set_rule(rule=rule, values=values, expected_version=version, **self.common)
        if before is None or before.version == made.version:
            return Saved(text)
        shown = _form(None, before)
        undo = {name: shown[name] for name in (*_FIELDS, "note")}
        undo |= {"act": "save", "rule": rule, "version": str(made.version)}
        undo |= {"enabled": "on"} if shown["enabled"] else {}
        return Saved(
            text, at=reverse("alert_rules"), undo=undo | {"reason": f"Undo of an edit of rule {rule}"}
        )


class RuleForm(VersionedForm):
    warning = NumberField(required=False)
    critical = NumberField(required=False)
    clear_percent = WholeField(required=False, bounds=(MIN_CLEAR_PERCENT, 100))
    for_s = WholeField(required=False, bounds=(0, LONGEST_FOR_S))
    keep_s = WholeField(required=False, bounds=(0, LONGEST_KEEP_S))
    level = WholeField(required=False)
    enabled = forms.BooleanField(required=False)
    note = TextField(LONGEST_NOTE)

    @property
    def values(self) -> RuleValues:
        return RuleValues(**{name: self.cleaned_data[name] for name in (*_FIELDS, "enabled", "note")})


class PreviewForm(RuleForm):
    needs_reason = False

    def save(self) -> HttpResponse:
        environment, rule = environment_in(self.request), self.cleaned_data["rule"]
        preview = preview_rule(environment=environment, rule=rule, values=self.values)
        return _page(self.request, typed=self.data, preview=preview)


class SaveForm(RuleForm):
    def save(self) -> Saved:
        rule = sentence_of(self.cleaned_data["rule"])
        text = f"Rule \u201c{rule}\u201d was saved. The next evaluation applies it."
        return self.set_values(self.values, text)


class ResetForm(VersionedForm):
    def save(self) -> Saved:
        rule = sentence_of(self.cleaned_data["rule"])
        text = f"Rule \u201c{rule}\u201d follows its defaults again. The next evaluation applies it."
        return self.set_values(RuleValues(), text)


_ACTS = {"preview": PreviewForm, "save": SaveForm, "reset": ResetForm}


@require_http_methods(["GET", "POST"])
@require("view")
def alert_rules(request: HttpRequest) -> HttpResponse:
    return run_edit(chosen_form(request, _ACTS), page=_page, then="alert_rules", needs="change_alert_rules")


def _page(
    request: HttpRequest,
    *,
    typed: Mapping[str, str] | None = None,
    preview: Any = None,
    errors: Errors | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    environment = environment_in(request)
    rows = rules_in_force(environment)
    if conflict is not None:
        errors = {"version": [_CONFLICT.format(by=conflict.by or "Another person")]}
    context = context_of(request, "alert_rules", errors=errors)
    chosen = typed.get("rule") if typed else request.GET.get("edit")
    row = next((row for row in rows if row.key == chosen), None)
    context |= {
        "rows": rows,
        "row": row,
        "form": _form(typed, row) if row is not None else None,
        # After a conflict, the person has seen what is in force.
        "version": typed.get("version") if typed and conflict is None else None,
        "preview": preview,
        "past_days": PAST_DAYS,
        "levels": _LEVELS,
        "changes_rules": may(request.user, "change_alert_rules", environment),
    }
    return render(request, "dashboard/alert_rules.html", context, status=status)


def _form(typed: Mapping[str, str] | None, row: RuleInForce) -> dict[str, Any]:
    """The typed values, or those in force. The default is the hint of each field."""
    timing, threshold = row.settings.timing, row.settings.threshold
    default = row.default
    form: dict[str, Any] = {
        "warning": "" if threshold.warning is None else f"{threshold.warning * threshold.scale:.10g}",
        "critical": "" if threshold.critical is None else f"{threshold.critical * threshold.scale:.10g}",
        "clear_percent": str(threshold.clear_percent),
        "for_s": f"{timing.fires_after_s:.10g}",
        "keep_s": f"{timing.resolves_after_s:.10g}",
        "level": str(timing.level),
        "enabled": row.settings.enabled,
        "note": row.settings.note,
        "usual_clear": f"Default: {default.threshold.clear_percent} %",
        "usual_for": f"Default: {default.timing.fires_after_s:.10g} s",
        "usual_keep": f"Default: {default.timing.resolves_after_s:.10g} s",
        "usual_level": f"Default: {default.timing.level}",
        "usual_warning": f"Default: {default.threshold.shown('warning')}",
        "usual_critical": f"Default: {default.threshold.shown('critical')}",
    }
    if typed:
        form |= {name: typed.get(name, "") for name in (*_FIELDS, "note", "reason")}
        form["enabled"] = typed.get("enabled") == "on"
    return form
