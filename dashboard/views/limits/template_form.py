"""The form of a limit template."""

from typing import Any

from django import forms

from controlplane.policies.limit_fields import IN_TEMPLATE_FORM, WORDS
from controlplane.validation import Problems
from dashboard.forms import BoundedTextField, ReasonField, WholeNumberField
from dashboard.words.limit_values import form_value
from fuseboard.contract.limit_fields import Choice, Flag, LimitField, Number
from fuseboard.contract.words import Algorithm

_NAMELESS = "Enter a name, such as partner."


class TemplateForm(forms.Form):
    """The form has only the values that people change by hand. Files and the API have all values."""

    name = BoundedTextField(64, required=False, error_messages={"required": _NAMELESS})
    title = BoundedTextField(200, required=False)
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
        """Return column -> typed value, for an edit. A field that was not sent is left out."""
        found = {each.name: self._column(each) for each in IN_TEMPLATE_FORM if each.name in self.data}
        if "burst" in found and self.cleaned_data.get("burst") is None:
            found["burst"] = self._burst(found)
        return {name: value for name, value in found.items() if value is not None}

    def _burst(self, columns: dict[str, Any]) -> int:
        """An empty burst is as large as the limit. Only a token bucket has one."""
        is_bucket = self.cleaned_data.get("algorithm") in ("", None, Algorithm.TOKEN_BUCKET)
        return max(1, columns.get("limit") or 1) if is_bucket else 1

    def values(self) -> dict[str, Any]:
        """Return the values that were typed, for ``set_template``."""
        return {"title": self.cleaned_data["title"], **self.columns()}

    def _column(self, field: LimitField) -> Any:
        typed = self.cleaned_data.get(field.name)
        if isinstance(field, Flag):
            return {"yes": True, "no": False}.get(str(typed))
        return field.default if typed is None else typed


def _form_field(field: LimitField) -> forms.Field:
    words = WORDS[field.name]
    common: dict[str, Any] = {"label": words.label}
    match field:
        case Number():
            if words.usual:
                common |= {"required": False, "help_text": f"empty: {words.usual}"}
            unit = " of seconds" if field.unit == "seconds" else ""
            # A negative value means "use the setting elsewhere". A person leaves the input empty for it, so
            # the input accepts 0 or more.
            return WholeNumberField(max(0, field.least), field.most, unit=unit, **common)
        case Choice() | Flag():
            choices = list(words.choices.items())
            if field.default == "":
                choices.insert(0, ("", words.usual.capitalize()))
            return forms.ChoiceField(
                choices=choices,
                required=field.default != "",
                initial=form_value(field, field.default),
                help_text=words.hint,
                **common,
            )
        case _:
            raise TypeError(f"{field.name}: no form shows a field of this kind yet")
