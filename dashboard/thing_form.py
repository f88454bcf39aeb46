"""The form of a tier, a tenant, a dependency or the environment: its inputs, and what was typed in them.

What a value may be is checked by the plan that the typed values become.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.editing.plans.resolving import PREFIX
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.limits import SUBJECT_DEFAULTS, VENDOR_DEFAULTS, full_columns
from controlplane.policies.merge import RATE
from controlplane.policies.models import MAX_MS, Kind
from dashboard.forms import whole
from dashboard.limit_controls import FIRST, ends_typed, limit_controls
from dashboard.moments import WRONG, moment_of
from dashboard.rate_words import ends_words
from dashboard.setting_controls import YES_NO, Control, Group, range_words
from fuseboard.contract.limit_fields import (
    BY_NAME,
    FIELDS,
    NUMBERS,
    Choices,
    Flag,
    LimitField,
    Number,
    Patterns,
)
from fuseboard.contract.policy import MAX_WAIT_MS, Tuning
from fuseboard.contract.words import Algorithm, FailurePolicy

_LIMIT_WORD = {
    "tier": "quota",
    "tenant": "quota",
    "dependency": "vendor limit",
    "environment": "limit of callers without a tenant",
}
#: Kind -> the columns that the form of a new limit starts with.
NEW: dict[str, Fields] = {
    "tier": {},
    "tenant": {},
    "dependency": VENDOR_DEFAULTS,
    "environment": SUBJECT_DEFAULTS,
}
_NEW_HELP = {
    "tenant": "leave the name empty to add none; to change a quota of its tier, type in that quota above"
}


@dataclass(frozen=True, kw_only=True)
class OwnField:
    """A field of the thing itself. ``choices`` is the name of a list that the page passes."""

    name: str
    label: str
    hint: str = ""
    choices: str = ""
    longest: int = 0
    flag: bool = False
    #: Only in the form of a new thing.
    new_only: bool = False
    default: Any = ""


_TITLE = OwnField(name="title", label="Title", longest=200)
_WAIT = OwnField(
    name="wait_ms",
    label="Callers wait for a refusal that ends, ms",
    hint=f"0 to {MAX_WAIT_MS:,}",
    default=0,
)
OWN: dict[str, tuple[OwnField, ...]] = {
    "tier": (
        _TITLE,
        OwnField(
            name="priority",
            label="Priority",
            hint="0 to 100; an overloaded pod sheds the lowest first",
            default=50,
        ),
        _WAIT,
    ),
    "tenant": (
        OwnField(name="tier", label="Tier", choices="tiers"),
        _TITLE,
        OwnField(name="parent", label="Parent tenant", hint="empty: none", longest=200),
        OwnField(name="suspended", label="Suspended: every request is refused", flag=True, default=False),
    ),
    "dependency": (
        OwnField(name="kind", label="Kind", choices="kinds", new_only=True),
        _TITLE,
        OwnField(name="owner", label="Owner", longest=200),
        OwnField(name="runbook", label="Runbook", choices="runbooks", default=None),
        OwnField(
            name="fallback_note",
            label="What callers do while it is open",
            longest=500,
            hint="at most 500 characters",
            new_only=True,
        ),
        OwnField(
            name="timeout_ms",
            label="Timeout of a call, ms",
            hint=range_words(1, MAX_MS),
            default=10_000,
            new_only=True,
        ),
    ),
    "environment": (
        OwnField(name="default_tier", label="Tier of unregistered tenants", choices="tiers"),
        *(
            OwnField(
                name=f"tuning.{name}",
                label=name.replace("_us", ", us").replace("_ms", ", ms").replace("_", " ").capitalize(),
                default=getattr(Tuning(), name),
            )
            for name in Tuning.__struct_fields__
        ),
    ),
}


@dataclass
class Typed:
    """What was typed and differs from what the page showed."""

    #: In the form of a plan of one thing.
    fields: dict[str, Any] = field(default_factory=dict)
    #: Names of limits to remove.
    removed: list[str] = field(default_factory=list)
    #: Control -> what is wrong.
    errors: dict[str, list[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.fields or self.removed)

    def drop(self, units: Collection[str]) -> None:
        """Leave out what was typed for these units: the values of another person are taken."""
        for unit in units:
            whole_limit, _, column = unit.partition(":")
            prefix, _, name = whole_limit.partition(".")
            limits = self.fields.get(prefix)
            if name in self.removed and prefix in PREFIX.values():
                self.removed.remove(name)
            if not name or not isinstance(limits, dict):
                self.fields.pop(prefix, None)
            elif not column:
                limits.pop(name, None)
            else:
                for each in RATE if column == "rate" else (column,):
                    limits.get(name, {}).pop(each, None)
            if isinstance(limits, dict):
                left = {key: value for key, value in limits.items() if value != {}}
                self.fields = {**self.fields, prefix: left} if left else _without(self.fields, prefix)


def _without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def typed_in(
    kind: str, data: Mapping[str, str], shown: Fields | None, inherited: Mapping[str, Fields] | None = None
) -> Typed:
    """Read the form. ``shown`` is the thing as the page showed it; ``None`` for a new one.

    ``inherited`` has the quotas of its tier that a tenant has no own values for.
    """
    typed = Typed()
    for own in OWN[kind]:
        name = f"own.{own.name}"
        if name in data:
            value = _read(typed, name, lambda: _own_value(own, data[name]))  # noqa: B023 - called at once
            if value is not _WRONG and (shown is None or value != shown.get(own.name, own.default)):
                _put_own(typed, own.name, value)
    prefix = PREFIX[kind]
    limits: dict[str, Any] = {}
    for limit, columns in limits_in(prefix, shown or {}).items():
        keep = data.get(f"keep.{limit}")
        if keep == "remove":
            typed.removed.append(limit)
            continue
        found = _changed_columns(typed, f"limit.{limit}", data, full_columns(columns))
        if keep == "follow" and columns.get("own"):
            # A template that is given again replaces the values that override it.
            found = {"template": columns["template"]} | found
        if found:
            limits[limit] = found
    for limit, columns in (inherited or {}).items():
        if found := _changed_columns(typed, f"limit.{limit}", data, full_columns(columns)):
            # It becomes a quota of the tenant, which needs all its numbers, unless a template has them.
            numbers = {name: columns[name] for name in NUMBERS if name in columns}
            limits[limit] = found if found.get("template") else numbers | found
    if new := data.get("new.name", "").strip():
        if new in limits_in(prefix, shown or {}) or new in (inherited or {}):
            typed.errors["new.name"] = [f"A {_LIMIT_WORD[kind]} with this name already exists."]
        # Without a template, everything that the form shows is sent: the defaults of a file are others.
        follows = bool(data.get("new.template"))
        start = full_columns(NEW[kind]) if follows else dict.fromkeys(BY_NAME)
        limits[new] = _changed_columns(typed, "new", data, start)
        if not follows:
            for column in ("limit", "window_s"):
                if column not in limits[new]:
                    typed.errors.setdefault(f"new.{column}", ["Enter a whole number."])
    if limits:
        typed.fields[prefix] = limits
    return typed


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
    own = [
        _own_control(control, each, fields, choices)
        for each in OWN[kind]
        if shown is None or not each.new_only
    ]
    found = [Group(title="Settings", help="", controls=own)]
    word = _LIMIT_WORD[kind]
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
            help=_NEW_HELP.get(kind, "leave the name empty to add none"),
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


def placed(kind: str, name: str, section: str, errors: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the errors of a plan by the controls of the form."""
    prefix = PREFIX[kind]
    found: dict[str, list[str]] = {}
    for where, texts in errors.items():
        inner = where.removeprefix(f"{section}.{name}.") if section else where
        if inner.startswith(f"{prefix}."):
            limit, _, column = inner.removeprefix(f"{prefix}.").rpartition(".")
            inner = f"limit.{limit}.{column}"
        elif inner not in ("name", "reason", "starts"):
            inner = f"own.{inner}"
        found.setdefault(inner, []).extend(texts)
    return found


_WRONG: Any = object()


def _read(typed: Typed, name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except InvalidEdit as error:
        typed.errors[name] = [text for texts in error.errors.values() for text in texts]
        return _WRONG


def _own_value(own: OwnField, text: str) -> Any:
    if own.flag:
        return _flag(text)
    if own.default is None:
        return text or None
    return whole(text, own.name) if isinstance(own.default, int) else text.strip()


def _put_own(typed: Typed, name: str, value: Any) -> None:
    group, _, inner = name.partition(".")
    if inner:
        typed.fields.setdefault(group, {})[inner] = value
    else:
        typed.fields[name] = "" if value is None else value


def _changed_columns(typed: Typed, name: str, data: Mapping[str, str], present: Fields) -> dict[str, Any]:
    """Return the typed columns of a limit that differ from those shown and that it can have."""
    algorithm = data.get(f"{name}.algorithm") or present["algorithm"] or Algorithm.TOKEN_BUCKET
    policy = data.get(f"{name}.failure_policy") or present["failure_policy"] or FailurePolicy.FAIL_OPEN
    found: dict[str, Any] = {}
    for each in FIELDS:
        control = f"{name}.{each.name}"
        if control not in data or not each.applies_to(algorithm, policy):
            continue
        value = _read(typed, control, lambda: _column_value(each, data[control]))  # noqa: B023 - called at once
        if value is not _WRONG and value != present.get(each.name):
            found[each.name] = value
    if algorithm != Algorithm.TOKEN_BUCKET and present.get("burst") not in (None, 1):
        found["burst"] = 1
    if (ends := data.get(f"{name}.expires_at", "")) != ends_typed(present) and f"{name}.expires_at" in data:
        value = _read(typed, f"{name}.expires_at", lambda: _moment(ends))
        if value is not _WRONG:
            found["expires_at"] = value
    was = present.get("template") or ""
    template = data.get(f"{name}.template", was)
    if template != was:
        found["template"] = template
    return found


def _moment(text: str) -> str:
    """Return a typed time as plans have it; an empty one stands for no end."""
    try:
        return moment_of(text).isoformat() if text.strip() else ""
    except ValueError:
        raise InvalidEdit({"expires_at": [WRONG]}) from None


def _flag(text: str) -> bool:
    """Return whether a flag is on. A wrong word must not turn a limit or a tenant on."""
    if text not in ("yes", "no"):
        raise InvalidEdit({"flag": ["Choose one of the values."]})
    return text == "yes"


def _column_value(described: LimitField, text: str) -> Any:
    text = text.strip()
    match described:
        case Number():
            if not text and described.default is not None:
                return described.default
            return whole(text, described.name)
        case Flag():
            return _flag(text)
        case Choices():
            return [word for word in text.replace(",", " ").split() if word]
        case Patterns():
            return [line.strip() for line in text.splitlines() if line.strip()]
        case _:
            return text or described.default


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


def choices_of_kinds() -> list[tuple[str, str]]:
    return [(str(value), str(label)) for value, label in Kind.choices]
