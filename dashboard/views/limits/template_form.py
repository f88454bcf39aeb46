"""The form of a limit template."""

from typing import Any

from django import forms

from controlplane.policies.limit_fields import IN_TEMPLATE_FORM, WORDS
from controlplane.validation import Problems
from dashboard.forms import ReasonField, WholeNumberField
from dashboard.words.limit_values import form_value
from fuseboard.contract.limit_fields import Choice, Flag, LimitField, Number


class TemplateForm(forms.Form):
    """The values of a template that people change by hand. Files and the API have all of them."""

    name = forms.CharField(max_length=64, required=False)
    title = forms.CharField(max_length=200, required=False)
    reason = ReasonField()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for each in IN_TEMPLATE_FORM:
            self.fields[each.name] = _form_field(each)

    @classmethod
    def initial_of(cls, row: Any) -> dict[str, str]:
        values = {each.name: form_value(each, getattr(row, each.name)) for each in IN_TEMPLATE_FORM}
        return {"name": row.name, "title": row.title, **values}

    @property
    def limit_fields(self) -> list[forms.BoundField]:
        return [self[each.name] for each in IN_TEMPLATE_FORM]

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        problems = Problems()
        if name:
            problems.slug("name", name)
        if problems.errors:
            raise forms.ValidationError(problems.errors["name"])
        return name

    def columns(self) -> dict[str, Any]:
        """Return column -> typed value, as edits take them. A field that was not sent is left out."""
        found = {each.name: self._column(each) for each in IN_TEMPLATE_FORM if each.name in self.data}
        return {name: value for name, value in found.items() if value is not None}

    def values(self) -> dict[str, Any]:
        """Return what was typed, as ``set_template`` takes it."""
        return {"title": self.cleaned_data["title"], **self.columns()}

    def _column(self, described: LimitField) -> Any:
        typed = self.cleaned_data.get(described.name)
        if isinstance(described, Flag):
            return {"yes": True, "no": False}.get(str(typed))
        return described.default if typed is None else typed


def _form_field(described: LimitField) -> forms.Field:
    words = WORDS[described.name]
    common: dict[str, Any] = {"label": words.label}
    match described:
        case Number():
            if words.usual:
                common |= {"required": False, "help_text": f"empty: {words.usual}"}
            unit = " of seconds" if described.unit == "seconds" else ""
            # A default below zero stands for a setting elsewhere. It is entered as nothing.
            return WholeNumberField(max(0, described.least), described.most, unit=unit, **common)
        case Choice() | Flag():
            choices = list(words.choices.items())
            if described.default == "":
                choices.insert(0, ("", words.usual.capitalize()))
            return forms.ChoiceField(
                choices=choices,
                required=described.default != "",
                initial=form_value(described, described.default),
                help_text=words.hint,
                **common,
            )
        case _:
            raise TypeError(f"{described.name}: no form shows a field of this kind yet")
