"""Fields of forms: label, control, hint and error are drawn in one place, ``dashboard/field.html``.

``reason_field``, ``text_field`` and ``select_field`` draw the usual controls; ``field`` is a block
around any other one. A builtin library: no template has to load it.
"""

from collections.abc import Iterable
from typing import Any

from django import template
from django.template import Context
from django.template.loader import render_to_string
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from controlplane.validation import LONGEST_REASON, LONGEST_SLUG, REASON_RULE, SLUG_RULE

register = template.Library()


@register.inclusion_tag("dashboard/field.html")
def reason_field(
    control_id: str = "f-reason",
    label: str = "Reason (recorded in the audit log)",
    *,
    value: object = "",
    errors: Iterable[str] = (),
    required: bool = True,
) -> dict[str, Any]:
    """Why something is done. The edit functions check it; its rule stands beside it before it is wrong."""
    found = list(errors or ())
    hint = REASON_RULE if required else ""
    attributes = {"required": required, "maxlength": LONGEST_REASON, **_described(control_id, hint, found)}
    control = format_html(
        '<textarea id="{}" name="reason"{}>{}</textarea>', control_id, _attributes(attributes), _text(value)
    )
    return _field(control_id, label, control, hint=hint, errors=found)


@register.inclusion_tag("dashboard/field.html", takes_context=True)
def reason_of(context: Context, act: str, control_id: str) -> dict[str, Any]:
    """The reason of one button, on a page with several: what was typed with another one is not shown."""
    if context.get("act") != act:
        return reason_field(control_id)
    value, errors = (context[name].get("reason") for name in ("typed", "errors"))
    return reason_field(control_id, value=value, errors=errors)


@register.inclusion_tag("dashboard/edit_buttons.html", takes_context=True)
def edit_buttons(
    context: Context,
    saves: str,
    proposes: str = "Propose change",
    *,
    act: str = "",
    css: str = "primary big",
    discard: str = "",
    hint: object = True,
) -> dict[str, Any]:
    """The button that saves, or proposes where edits need approval; and the way back, ``discard``.

    ``hint``: how many approvals the edit needs.
    """
    return {
        "frame": context.get("frame"),
        "saves": saves,
        "proposes": proposes,
        "act": act,
        "css": css,
        "discard": discard,
        "hint": hint,
    }


@register.inclusion_tag("dashboard/field.html")
def text_field(
    control_id: str,
    label: str,
    *,
    name: str,
    value: object = "",
    hint: str = "",
    errors: Iterable[str] = (),
    css: str = "",
    **attributes: Any,
) -> dict[str, Any]:
    """An ``input``; ``attributes`` are its own, as in HTML."""
    found = list(errors or ())
    given = {
        "id": control_id,
        "type": attributes.pop("type", "text"),
        "name": name,
        "value": _text(value),
        "autofocus": bool(attributes.pop("autofocus", False)),
    }
    control = format_html(
        "<input{}>", _attributes({**given, **attributes, **_described(control_id, hint, found)})
    )
    return _field(control_id, label, control, hint=hint, errors=found, css=css)


@register.inclusion_tag("dashboard/field.html")
def name_field(control_id: str, label: str = "Name", *, name: str = "name", **options: Any) -> dict[str, Any]:
    """The name of a new entity. Its rule stands beside it before it is wrong."""
    given = {"maxlength": LONGEST_SLUG, "autocomplete": "off", "hint": SLUG_RULE, **options}
    return text_field(control_id, label, name=name, **given)


@register.inclusion_tag("dashboard/field.html")
def moment_field(control_id: str, label: str, *, name: str, **options: Any) -> dict[str, Any]:
    """A date and a time of day, in UTC."""
    return text_field(control_id, label, name=name, type="datetime-local", **options)


@register.inclusion_tag("dashboard/field.html")
def number_field(control_id: str, label: str, *, name: str, **options: Any) -> dict[str, Any]:
    """A number, typed as text: a browser's number field drops what it does not understand."""
    return text_field(control_id, label, name=name, inputmode="numeric", autocomplete="off", **options)


@register.inclusion_tag("dashboard/field.html")
def usd_field(control_id: str, label: str, *, name: str, **options: Any) -> dict[str, Any]:
    """An amount of USD, with decimals."""
    return text_field(control_id, label, name=name, inputmode="decimal", autocomplete="off", **options)


@register.inclusion_tag("dashboard/field.html")
def password_field(control_id: str, label: str, *, name: str, **options: Any) -> dict[str, Any]:
    """A password to be chosen, which browsers offer to keep."""
    given = {"type": "password", "autocomplete": "new-password", "required": True, **options}
    return text_field(control_id, label, name=name, **given)


@register.inclusion_tag("dashboard/field.html")
def select_field(
    control_id: str,
    label: str,
    *,
    name: str,
    choices: Iterable[Any],
    value: object = "",
    hint: str = "",
    errors: Iterable[str] = (),
    css: str = "",
    **attributes: Any,
) -> dict[str, Any]:
    """A ``select``; see ``options`` for its choices."""
    found = list(errors or ())
    control = format_html(
        "<select{}>{}</select>",
        _attributes({"id": control_id, "name": name, **attributes, **_described(control_id, hint, found)}),
        options(choices, value),
    )
    return _field(control_id, label, control, hint=hint, errors=found, css=css)


@register.simple_block_tag(end_name="endfield")
def field(
    content: str,
    control_id: str,
    label: str,
    *,
    hint: str = "",
    errors: Iterable[str] = (),
    css: str = "",
) -> str:
    """The block is the control, whose id is ``control_id``. It is tied to its hint and its error here."""
    found = list(errors or ())
    # Django draws some of these attributes itself.
    opening = content.partition(">")[0]
    ties = {name: value for name, value in _described(control_id, hint, found).items() if name not in opening}
    at = format_html('id="{}"', control_id)
    # Safe: the block is a part of a template, whose variables have been escaped.
    control = mark_safe(content.strip().replace(at, at + _attributes(ties), 1))  # noqa: S308
    drawn = render_to_string(
        "dashboard/field.html", _field(control_id, label, control, hint=hint, errors=found, css=css)
    )
    return mark_safe(drawn)  # noqa: S308


@register.simple_tag
def group_ties(group_id: str, errors: Iterable[str] = ()) -> SafeString:
    """Attributes of a ``fieldset`` that tie it to its error, which ``group_error`` draws at its end."""
    return _attributes({"aria-describedby": f"{group_id}_error"} if errors else {})


@register.simple_tag
def group_error(group_id: str, errors: Iterable[str] = ()) -> SafeString:
    found = " ".join(map(str, errors or ()))
    return format_html('<p class="err" id="{}_error">{}</p>', group_id, found) if found else SafeString()


@register.simple_tag
def options(choices: Iterable[Any], value: object = "") -> SafeString:
    """The choices of a ``select``: a value, a value and its word, or a group and its choices."""
    pairs = [choice if isinstance(choice, tuple) else (choice, choice) for choice in choices]
    return format_html_join(
        "",
        "{}",
        (
            (_group(key, word, value) if isinstance(word, tuple) else _option(key, word, value),)
            for key, word in pairs
        ),
    )


def _option(key: Any, word: Any, value: object) -> SafeString:
    return format_html('<option value="{}"{}>{}</option>', key, _selected(key == value), word)


def _group(label: str, choices: tuple[Any, ...], value: object) -> SafeString:
    return format_html('<optgroup label="{}">{}</optgroup>', label, options(choices, value))


def _field(
    control_id: str,
    label: str,
    control: SafeString,
    *,
    errors: list[str],
    hint: str = "",
    css: str = "",
) -> dict[str, Any]:
    return {"id": control_id, "label": label, "control": control, "hint": hint, "errors": errors, "css": css}


def _described(control_id: str, hint: str, errors: list[str]) -> dict[str, Any]:
    """Attributes that tie a control to its hint and its error, for those who do not see them beside it."""
    parts = [f"{control_id}_{part}" for part, shown in (("hint", hint), ("error", errors)) if shown]
    found: dict[str, Any] = {"aria-describedby": " ".join(parts)} if parts else {}
    return found | ({"aria-invalid": "true", "autofocus": True} if errors else {})


def _attributes(given: dict[str, Any]) -> SafeString:
    """In the order given; ``True`` is an attribute without a value, ``False`` is none."""
    valued = ((name, value) for name, value in given.items() if not isinstance(value, bool))
    flags = ((name,) for name, value in given.items() if value is True)
    return format_html_join("", ' {}="{}"', valued) + format_html_join("", " {}", flags)


def _selected(yes: bool) -> SafeString:
    return SafeString(" selected" if yes else "")


def _text(value: object) -> str:
    return "" if value is None else str(value)
