"""The form of a tier, a tenant, a dependency or the environment: its inputs, and errors at them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controlplane.editing.plans.resolving import PREFIX
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.limits import full_columns
from dashboard.setting_controls import YES_NO, Control, Group
from dashboard.views.editor.quota_form import FIRST, limit_controls
from dashboard.words.entity_fields import LIMIT_WORD, NEW, OWN, OwnField
from dashboard.words.rate_words import ends_words

_NEW_HELP = {"tenant": "Optional. To change a quota of its tier, type in that quota above."}


def groups_of(
    kind: str,
    shown: Fields | None,
    *,
    data: Mapping[str, str] | None,
    errors: Mapping[str, Sequence[str]],
    choices: Mapping[str, Sequence[tuple[str, str]]],
    inherited: Mapping[str, Fields] | None = None,
    at: str = "",
) -> list[Group]:
    """The form, with what was typed where ``data`` is given, and errors at their controls.

    ``at`` is the name of the control that gets the focus.
    """

    def control(name: str, label: str, value: str, **more: Any) -> Control:
        typed = data[name] if data is not None and name in data else value
        wrong = errors.get(name, ())
        return Control(name=name, label=label, value=typed, errors=wrong, focus=name == at, **more)

    fields = shown or {}
    own = [_own_control(control, each, fields, choices) for each in OWN[kind]]
    found = [Group(title="Settings", help="", controls=own)]
    word = LIMIT_WORD[kind]
    prefix = PREFIX[kind]
    own_limits = limits_in(prefix, fields)
    # The end of a temporary quota is among the first.
    first = len(FIRST) + (kind == "tenant")
    for limit, columns in sorted({**(inherited or {}), **own_limits}.items()):
        controls = limit_controls(control, kind, f"limit.{limit}", full_columns(columns), choices)
        kept = _kept_choices(kind, columns)
        keep = control(f"keep.{limit}", f"Keep or remove {limit}", "keep", choices=kept)
        found.append(
            Group(
                title=f"{word.capitalize()} {limit}",
                help=_about(columns, fields.get("tier", "") if limit not in own_limits else ""),
                controls=controls[:first],
                more=[*controls[first:], *([keep] if limit in own_limits else [])],
            )
        )
    controls = limit_controls(control, kind, "new", full_columns(NEW[kind]), choices)
    name = control("new.name", "Name", "", longest=64, hint="such as requests")
    found.append(
        Group(
            title=f"Add a {word}",
            help="Optional" if shown is None else _NEW_HELP.get(kind, "Optional"),
            controls=[name, *controls[:first]],
            more=controls[first:],
        )
    )
    return found


def _about(columns: Fields, tier: str) -> str:
    """Return where the values of a limit come from, and when they end."""
    if tier:
        return f"of tier {tier}; a value that you type makes it a quota of this tenant"
    if columns.get("expires_at"):
        return f"temporary: {ends_words(columns)}"
    if not (follows := columns.get("template")):
        return ""
    override = f", except {', '.join(columns['own'])}" if columns["own"] else ""
    return f"follows template {follows}{override}; typed values override it"


def _kept_choices(kind: str, columns: Fields) -> list[tuple[str, str]]:
    """Return what can become of a limit besides other values."""
    found = [("keep", "Keep")]
    if columns.get("own"):
        found.append(("follow", f"Use every value of template {columns['template']}"))
    remove = "Remove (use the tier quota, if there is one)" if kind == "tenant" else "Remove"
    return [*found, ("remove", remove)]


def placed(
    kind: str,
    name: str,
    section: str,
    errors: Mapping[str, Sequence[str]],
    *,
    new_limit: str,
    new: bool = False,
) -> dict[str, list[str]]:
    """Return the errors of a plan by the controls of the form.

    ``new_limit`` is the limit that is added. The name of a ``new`` thing has a control.
    """
    prefix = PREFIX[kind]
    found: dict[str, list[str]] = {}
    for where, texts in errors.items():
        inner = where.removeprefix(f"{section}.{name}.") if section else where
        if new and where == f"{section}.{name}":
            inner = "name"
        if inner.startswith(f"{prefix}."):
            inner = inner.removeprefix(f"{prefix}.")
            limit, _, column = inner.rpartition(".")
            if inner == new_limit:
                inner = "new.name"
            else:
                inner = f"new.{column}" if limit == new_limit else f"limit.{limit}.{column}"
        elif inner not in ("name", "reason", "starts"):
            inner = f"own.{inner}"
        found.setdefault(inner, []).extend(texts)
    return found


def _own_control(
    control: Callable[..., Control],
    own: OwnField,
    fields: Fields,
    choices: Mapping[str, Sequence[tuple[str, str]]],
) -> Control:
    value = fields.get(own.name, own.default)
    if own.flag:
        return control(f"own.{own.name}", own.label, "yes" if value else "no", choices=YES_NO)
    more: dict[str, Any] = {"hint": own.hint, "longest": own.longest}
    if own.choices:
        more["choices"] = choices[own.choices]
    return control(f"own.{own.name}", own.label, "" if value is None else str(value), **more)
