"""What a change of one thing means, in words: one line per unit, with the values before and after."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.policies.fields import Fields, different, limits_in
from controlplane.policies.history import Changed
from controlplane.policies.limit_fields import WORDS
from controlplane.policies.limits import full_columns
from controlplane.policies.merge import RATE, units
from dashboard.limit_forms import value_words
from dashboard.rate_words import rate_words
from dashboard.setting_lines import said, setting_words
from fuseboard.contract.limit_fields import BY_NAME, Choices, Number, Patterns, TimeZone

_PREFIXES = ("quotas", "vendor_limits", "subject_limits")


@dataclass(frozen=True)
class ChangeWords:
    """A changed unit: what it is, its value before and after. Empty where it did not exist."""

    name: str
    before: str
    after: str
    #: ``(+50 %)``, for a rate that rises or falls.
    share: str = ""


def change_words(change: Changed) -> list[ChangeWords]:
    return list(_lines(change.before or {}, change.after or {}))


def _lines(before: Fields, after: Fields) -> Iterator[ChangeWords]:
    changed = set(different(before, after))
    for unit, fields in units((before, after)).items():
        if not changed.intersection(fields):
            continue
        limit = _limit_of(unit, fields)
        if limit is None:
            for field in [field for field in fields if field in changed]:
                yield ChangeWords(_label(field), _said(field, before), _said(field, after))
        elif unit in (limit, f"{limit}:rate"):
            yield _rate_line(limit, before, after)
            yield from _other_lines(limit, [field for field in fields if field in changed], before, after)
        else:
            yield from _other_lines(limit, fields, before, after)


def _rate_line(limit: str, before: Fields, after: Fields) -> ChangeWords:
    was, now = _columns(limit, before), _columns(limit, after)
    share = ""
    if was and now and _per_second(was):
        percent = round(100 * (_per_second(now) / _per_second(was) - 1))
        share = f"({percent:+d} %)" if percent else ""
    name = limit.partition(".")[2]
    return ChangeWords(name, rate_words(was) if was else "", rate_words(now) if now else "removed", share)


def _other_lines(limit: str, fields: list[str], before: Fields, after: Fields) -> Iterator[ChangeWords]:
    """Lines of a limit that exists afterwards, besides its rate."""
    was, now = _columns(limit, before), _columns(limit, after)
    if not now:
        return
    for field in fields:
        column = field.rpartition(".")[2]
        if column == "own" or (column in RATE and column != "expires_at"):
            continue
        name = f"{limit.partition('.')[2]}, {column_label(column).lower()}"
        yield ChangeWords(name, column_words(column, was) if was else "", column_words(column, now))


def column_label(column: str) -> str:
    return WORDS[column].label if column in WORDS else {"expires_at": "Ends"}.get(column, column.capitalize())


def column_words(column: str, columns: Fields) -> str:
    value = full_columns(columns).get(column)
    described = BY_NAME.get(column)
    if described is None or isinstance(described, Choices | Patterns | TimeZone):
        return said("", value) if value not in (None, "", []) else "none"
    if isinstance(described, Number) or column in WORDS:
        return value_words(described, value) or "none"
    return said("", value)


def _columns(limit: str, fields: Fields) -> dict[str, Any]:
    prefix, _, name = limit.partition(".")
    return limits_in(prefix, fields).get(name, {})


def _per_second(columns: Fields) -> float:
    return float(columns["limit"]) / float(columns["window_s"])


def _limit_of(unit: str, fields: list[str]) -> str | None:
    """``quotas.requests`` for a unit of this limit; ``None`` for a unit of the thing itself."""
    prefix = unit.partition(".")[0]
    return fields[0].rpartition(".")[0] if prefix in _PREFIXES else None


def _label(field: str) -> str:
    words = setting_words(field)
    return words[:1].upper() + words[1:]


def _said(field: str, fields: Fields) -> str:
    return said(field, fields[field]) if field in fields else ""
