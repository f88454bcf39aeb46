"""The schema of a plan, and its flat fields. Each entity is checked by itself, without the database."""

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from controlplane.editing.plans.plan import Errors
from controlplane.editing.plans.yaml_reading import Lines
from controlplane.editing.rows.limit_checks import check_limit_columns, check_time_zone
from controlplane.policies.fields import Fields
from controlplane.policies.limits import VALUES
from controlplane.policies.models import BREAKER_RANGES, MAX_MS, OPTIONAL_COLUMNS, Kind
from controlplane.policies.protection import CALL, PROTECTION, Shape, check_patch
from controlplane.spending.budget_fields import (
    check_amount,
    check_at_100,
    check_instead_of,
    check_names,
    check_period,
    check_until,
)
from controlplane.spending.fields import check_aliases, check_price, read_start, start_text
from controlplane.validation import Problems
from fuseboard.contract.descriptor_file import MAX_FILE
from fuseboard.contract.limit_fields import CALLERS, LISTS, QUOTAS
from fuseboard.contract.policy import MAX_WAIT_MS, Tuning
from fuseboard.contract.words import is_slug

#: Section -> kind of its entities.
SECTIONS = {
    "templates": "template",
    "tiers": "tier",
    "dependencies": "dependency",
    "models": "model",
    "accounts": "account",
    "budgets": "budget",
    "descriptors": "descriptors",
    "tenants": "tenant",
}

Check = Callable[[Problems, str, Any], None]


def _text(longest: int, *, lines: bool = False) -> Check:
    return lambda problems, field, value: problems.text(field, value, longest, lines=lines)


def _whole(least: int, most: int) -> Check:
    return lambda problems, field, value: problems.whole(field, value, least, most)


def _slug(problems: Problems, field: str, value: Any) -> None:
    problems.slug(field, value)


def _flag(problems: Problems, field: str, value: Any) -> None:
    problems.flag(field, value)


def _kind(problems: Problems, field: str, value: Any) -> None:
    if value not in Kind.values:
        problems.add(field, f"Choose one of: {', '.join(Kind.values)}.")


def _optional_slug(problems: Problems, field: str, value: Any) -> None:
    if value != "":
        problems.slug(field, value)


def _optional_subject(problems: Problems, field: str, value: Any) -> None:
    if value != "":
        problems.subject(field, value)


def _file(problems: Problems, field: str, value: Any) -> None:
    """Check a text that is read for itself."""
    if not isinstance(value, str) or len(value) > MAX_FILE:
        problems.add(field, f"Enter a text of at most {MAX_FILE:,} characters.")


_FIELDS: dict[str, dict[str, Check]] = {
    "tenant": {"tier": _slug, "title": _text(200), "suspended": _flag, "parent": _optional_subject},
    "template": {"title": _text(200)},
    "tier": {"title": _text(200), "priority": _whole(0, 100), "wait_ms": _whole(0, MAX_WAIT_MS)},
    "dependency": {
        "kind": _kind,
        "title": _text(200),
        "owner": _text(200),
        "fallback_note": _text(500, lines=True),
        "timeout_ms": _whole(1, MAX_MS),
        "wait_ms": _whole(0, MAX_WAIT_MS),
        **{column: _whole(0, most) for column, most in OPTIONAL_COLUMNS.items()},
        "runbook": _optional_slug,
    },
    "model": {"pool": _optional_slug},
    "account": {},
    "budget": {
        **dict.fromkeys(("account", "dependency", "tier"), _optional_slug),
        "tenant": _optional_subject,
        "amount": check_amount,
        "measure": _slug,
        "period": check_period,
        "time_zone": check_time_zone,
        "instead_of": check_instead_of,
        "warn_percent": _whole(0, 100),
        "at_100": check_at_100,
        "raised_to": check_amount,
        "raised_until": check_until,
    },
    "descriptors": {"file": _file},
}
#: Section -> whose limits it has, as in ``limit_fields``.
_WHOSE = {"quotas": QUOTAS, "subject_limits": CALLERS}
#: The section of named things below a thing of this kind.
_BELOW = {
    "template": "",
    "tenant": "quotas",
    "tier": "quotas",
    "dependency": "vendor_limits",
    "model": "prices",
    "account": "",
    "budget": "",
    "descriptors": "",
}
#: Groups of fields that only things of this kind have.
_GROUPS = {"dependency": ("breaker", PROTECTION), "model": ("aliases",), "account": ("hosts", "pools")}


@lru_cache
def _fields_of(kind: str) -> str:
    more = sorted(VALUES) if kind == "template" else [_BELOW[kind]] if _BELOW[kind] else []
    return ", ".join([*_FIELDS[kind], *_GROUPS.get(kind, ()), *more])


@lru_cache(maxsize=4_096)
def _checked(kind: str, field: str, _type: type, value: str | int) -> tuple[str, ...]:
    problems = Problems()
    _FIELDS[kind][field](problems, field, value)
    return tuple(problems.errors.get(field, ()))


def _field_errors(kind: str, field: str, of: type, value: Any) -> tuple[str, ...]:
    """Check a value once. The same few tiers and flags are in every row."""
    return _checked(kind, field, of, value) if isinstance(value, str | int) else ("Enter one value.",)


def tuning_errors(tuning: Mapping[str, Any], unknown: str) -> dict[str, str]:
    """Return setting -> what is wrong with it."""
    found = {}
    for field, value in tuning.items():
        if field not in Tuning.__struct_fields__:
            found[field] = unknown
            continue
        try:
            msgspec.convert({field: value}, Tuning)
        except msgspec.ValidationError as error:
            found[field] = str(error).partition(" - at ")[0]
    return found


class Reading:
    """Converts one entity of a plan to flat fields."""

    def __init__(self, errors: Errors, where: str, lines: Lines, line: int) -> None:
        self._errors, self._where, self._lines, self._line = errors, where, lines, line
        self.fields: Fields = {}

    def entity(self, kind: str, name: str, value: Any) -> Fields:
        problems = Problems()
        check = {"tenant": problems.subject, "descriptors": problems.domain}.get(kind, problems.slug)
        check("name", name)
        self._say(problems, ())
        if not isinstance(value, Mapping):
            self.error((), "Enter its fields, such as tier: pro.")
            return self.fields
        checks = _FIELDS[kind]
        if kind == "template":
            self._values({field: given for field, given in value.items() if field not in checks})
            value = {field: given for field, given in value.items() if field in checks}
        for field, given in value.items():
            if field == _BELOW[kind]:
                (self._prices if kind == "model" else self.limits)(field, given)
            elif field == "aliases" and kind == "model":
                self._aliases(given)
            elif kind == "account" and field in _GROUPS[kind]:
                problems = Problems()
                check_names(problems, field, given)
                self._say(problems, ())
                self.fields[field] = given
            elif field == "breaker" and kind == "dependency":
                self._breaker(given)
            elif field == PROTECTION and kind == "dependency":
                self.protection(given, CALL)
            elif field in checks:
                for message in _field_errors(kind, field, type(given), given):
                    self.error((field,), message)
                self.fields[field] = _in_utc(given) if field == "raised_until" else given
            else:
                self.error((field,), f"A {kind} has no such field, only {_fields_of(kind)}.")
        return self.fields

    def limits(self, prefix: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            self.error((prefix,), "Enter each limit with its name; {} for none.")
            return
        for name, columns in value.items():
            if not is_slug(name):
                self.error((prefix, name), "Use 1 to 64 letters, digits, dots, dashes or underscores.")
            elif not isinstance(columns, Mapping):
                self.error((prefix, name), "Enter its fields: limit, window_s, burst and so on.")
            else:
                self._limit(prefix, name, columns)

    def tuning(self, value: Any) -> None:
        if not isinstance(value, Mapping):
            self.error((), "Enter each setting with its name.")
            return
        known = Tuning.__struct_fields__
        for field, message in tuning_errors(
            value, f"There is no such setting, only {', '.join(known)}."
        ).items():
            self.error((field,), message)
        self.fields |= {f"tuning.{field}": given for field, given in value.items() if field in known}

    def protection(self, value: Any, shape: Shape) -> None:
        """Keep the change as it is: what it results in depends on the present protection."""
        problems = Problems()
        check_patch(problems, value, shape)
        for field, found in problems.errors.items():
            path = tuple(field.split(".")) if shape is CALL else tuple(field.split(".")[1:])
            self.error(path, " ".join(found))
        self.fields[PROTECTION] = value

    def _breaker(self, value: Any) -> None:
        if not isinstance(value, Mapping):
            self.error(("breaker",), "Enter each setting with its name.")
            return
        for column, given in value.items():
            if column not in BREAKER_RANGES:
                self.error(("breaker", column), "A breaker has no such setting.")
                continue
            problems = Problems()
            problems.whole(column, given, *BREAKER_RANGES[column])
            self._say(problems, ("breaker",))
            self.fields[f"breaker.{column}"] = given

    def _values(self, columns: Mapping[str, Any]) -> None:
        """Read the values of a template: the columns of a limit without an owner."""
        if "template" in columns:
            self.error(("template",), "A template cannot follow another template.")
        for column, message in _limit_errors(_frozen(columns), ""):
            self.error((column,), message)
        self.fields |= columns

    def _limit(self, prefix: str, name: str, columns: Mapping[str, Any]) -> None:
        for column, message in _limit_errors(_frozen(columns), _WHOSE.get(prefix, "")):
            self.error((prefix, name, column), message)
        for column, value in columns.items():
            given = _in_utc(value) if column == "expires_at" else value
            self.fields[sys.intern(f"{prefix}.{name}.{column}")] = given
        # A limit without fields would get lost among flat fields.
        if not columns:
            self.error((prefix, name), "Enter its fields: limit, window_s, burst and so on.")

    def _aliases(self, value: Any) -> None:
        problems = Problems()
        check_aliases(problems, value)
        self._say(problems, ())
        self.fields["aliases"] = value

    def _prices(self, prefix: str, value: Any) -> None:
        """Read prices by the text of their start, which is stored in one form."""
        if not isinstance(value, Mapping):
            self.error((prefix,), "Enter each price with its start; {} for none.")
            return
        for start, columns in value.items():
            problems = Problems()
            try:
                name = start_text(read_start(start))
            except ValueError as error:
                self.error((prefix, str(start), "starts_at"), str(error))
                continue
            if not isinstance(columns, Mapping) or not columns:
                self.error((prefix, start), "Enter its fields: input, output and so on.")
                continue
            check_price(problems, dict(columns))
            self._say(problems, (prefix, start))
            self.fields |= {f"{prefix}.{name}.{column}": given for column, given in columns.items()}

    def _say(self, problems: Problems, path: tuple[str, ...]) -> None:
        for field, found in problems.errors.items():
            self.error((*path, field) if field != "name" else path, " ".join(found))

    def error(self, path: tuple[str, ...], message: str) -> None:
        line = next(
            (self._lines[path[:size]] for size in range(len(path), 0, -1) if path[:size] in self._lines),
            self._line,
        )
        self._errors.add(line, ".".join((self._where, *path)), message)


def _in_utc(moment: Any) -> Any:
    """Return a time as rows have it: history compares texts. A wrong one stays, and is an error already."""
    try:
        return datetime.fromisoformat(moment).astimezone(UTC).isoformat()
    except (TypeError, ValueError, OverflowError):
        return moment


def _frozen(columns: Mapping[str, Any]) -> tuple[tuple[str, str, Any], ...]:
    """Return columns as the key of a cache, each with its type: True equals 1, and only 1 is a number."""
    found = []
    for column, value in columns.items():
        key: Any = value
        if isinstance(value, list):
            key = tuple(map(str, value))
        elif not isinstance(value, str | int):
            # A mapping in place of a word is wrong, whatever is in it.
            key = repr(value)
        found.append((column, type(value).__name__, key))
    return tuple(found)


@lru_cache(maxsize=4_096)
def _limit_errors(columns: tuple[tuple[str, str, Any], ...], whose: str) -> tuple[tuple[str, str], ...]:
    """Check a limit once. Most tenants of a file have the same few limits."""
    problems = Problems()
    given = {}
    for name, _, value in columns:
        if isinstance(value, tuple) != (name in LISTS):
            problems.add(name, "Enter a list." if name in LISTS else "Enter one value.")
        else:
            given[name] = list(value) if name in LISTS else value
    check_limit_columns(problems, given, whose=whose)
    return tuple((field, " ".join(found)) for field, found in problems.errors.items())
