"""The typed values in the editor of a tier, a tenant, a dependency or the environment.

Only what differs from what the page showed is read. What a value may be is checked by the plan that the
typed values become.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.editing.plans.resolving import PREFIX
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.limits import OPTIONAL, columns_for, full_columns
from controlplane.policies.merge import RATE
from dashboard.forms import lines_of, moment, whole, whole_words
from dashboard.views.editor.quota_form import ends_typed
from dashboard.words.entity_fields import LIMIT_WORD, NEW, OWN, OwnField
from dashboard.words.limit_values import bounds_of
from fuseboard.contract.limit_fields import (
    BY_NAME,
    FIELDS,
    QUOTAS,
    Choices,
    Flag,
    LimitField,
    Number,
    Patterns,
)
from fuseboard.contract.words import Algorithm, FailurePolicy


@dataclass
class Typed:
    """The typed values that differ from those that the page showed."""

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
            elif isinstance(columns := limits.get(name), dict):
                for each in RATE if column == "rate" else (column,):
                    columns.pop(each, None)
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
            # It becomes a quota of the tenant, with all that the form showed, unless a template has it.
            limits[limit] = found if found.get("template") else _every_column(columns) | found
    if new := data.get("new.name", "").strip():
        if new in limits_in(prefix, shown or {}) or new in (inherited or {}):
            typed.errors["new.name"] = [f"A {LIMIT_WORD[kind]} with this name already exists."]
        # Without a template, everything that the form shows is sent: the defaults of a file are others.
        follows = bool(data.get("new.template"))
        start = full_columns(NEW[kind]) if follows else dict.fromkeys(BY_NAME)
        limits[new] = _changed_columns(typed, "new", data, start)
        if not follows:
            for column in ("limit", "window_s"):
                if column not in limits[new]:
                    typed.errors.setdefault(f"new.{column}", [whole_words(*bounds_of(column))])
    elif any(data.get(f"new.{column}", "").strip() for column in _TYPED_FIRST):
        # Without its name, what was typed would be lost without a sign.
        typed.errors["new.name"] = [f"Enter a name for the {LIMIT_WORD[kind]}, such as requests."]
    if limits:
        typed.fields[prefix] = limits
    return typed


_WRONG: Any = object()
#: Columns of a new limit that are empty until a person types them.
_TYPED_FIRST = ("limit", "window_s", "burst")
#: Columns that say what a limit counts.
_COUNTED = ("measure", "per", "endpoints")


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
    return whole(text, own.name, own.bounds) if isinstance(own.default, int) else text.strip()


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
    was = present.get("template") or ""
    template = data.get(f"{name}.template", was)
    if algorithm == Algorithm.TOKEN_BUCKET and data.get(f"{name}.burst", "-").strip() == "":
        if template and template != was:
            # The burst is that of the template.
            found.pop("burst", None)
        else:
            # With one call at a time, a pod refuses nearly every pair of calls at the same moment.
            found["burst"] = max(1, found.get("limit", present.get("limit")) or 1)
    if algorithm != Algorithm.TOKEN_BUCKET and present.get("burst") not in (None, 1):
        found["burst"] = 1
    if algorithm != Algorithm.FIXED_WINDOW and present.get("period"):
        found["period"] = ""
    if (ends := data.get(f"{name}.expires_at", "")) != ends_typed(present) and f"{name}.expires_at" in data:
        value = _read(typed, f"{name}.expires_at", lambda: _moment(ends))
        if value is not _WRONG:
            found["expires_at"] = value
    if template != was:
        if template:
            # The measure belongs to the limit, and the form shows it beside the template.
            own = (name for name in _COUNTED if not was or name in present["own"])
            kept = {
                name: present[name] for name in own if present.get(name, OPTIONAL[name]) != OPTIONAL[name]
            }
            found = kept | found
        found["template"] = template
    return found


def _every_column(columns: Fields) -> dict[str, Any]:
    return {name: value for name, value in full_columns(columns).items() if name in columns_for(QUOTAS)}


def _moment(text: str) -> str:
    """Return a typed time as plans have it; an empty one stands for no end."""
    return moment(text, "expires_at").isoformat() if text.strip() else ""


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
            return whole(text, described.name, bounds_of(described.name))
        case Flag():
            return _flag(text)
        case Choices():
            return [word for word in text.replace(",", " ").split() if word]
        case Patterns():
            return lines_of(text)
        case _:
            return text or described.default
