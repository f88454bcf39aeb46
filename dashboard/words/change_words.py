"""A change of one thing in words: one line per unit, with the values before and after.

Every page that shows a difference uses this: the previews of editors, revisions, reverts, imports and
change requests.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controlplane.phrases import amount_words
from controlplane.policies.descriptors import read_text
from controlplane.policies.fields import Fields, different, limits_in
from controlplane.policies.history import Changed
from controlplane.policies.limit_fields import WORDS
from controlplane.policies.limits import full_columns
from controlplane.policies.merge import RATE, units
from controlplane.policies.models import OPTIONAL_COLUMNS
from dashboard.words.descriptor_lines import difference_of_rules
from dashboard.words.limit_values import value_words
from dashboard.words.rate_words import limits_calls_at_once, rate_words
from dashboard.words.setting_lines import column_label, lower_first, setting_words, value_text
from fuseboard.contract.limit_fields import BY_NAME, Choices, Number, Patterns, TimeZone
from fuseboard.contract.words import Algorithm

_PREFIXES = ("quotas", "vendor_limits", "subject_limits")
#: Field -> its value where a revision leaves it out.
_LEFT_OUT = {"wait_ms": 0, **dict.fromkeys(OPTIONAL_COLUMNS, 0), "breaker.window_calls": 0, "parent": ""}


@dataclass(frozen=True)
class ChangeWords:
    """A changed unit: what it is, its value before and after. Empty where it did not exist."""

    name: str
    before: str
    after: str
    #: ``(+50 %)``, for a rate that rises or falls; ``(+67 %, burst -99 %)`` if its burst does otherwise.
    share: str = ""
    #: The fields, as the API and files call them.
    fields: str = ""
    #: Whether a number is smaller afterwards: pages mark it.
    shrinks: bool = False


#: Returns the quotas of a tier, as its tenants inherit them: name -> columns.
Tiers = Callable[[str], Mapping[str, Fields]]


def _no_tier(tier: str) -> Mapping[str, Fields]:
    return {}


def change_words(change: Changed, before: Tiers = _no_tier, after: Tiers = _no_tier) -> list[ChangeWords]:
    """Return the lines of a change.

    ``before`` and ``after`` know the tiers on each side: where a tenant has no quota of its own, the quota
    of its tier applies.
    """
    if change.kind == "template":
        return list(_template_lines(change.before or {}, change.after or {}))
    if change.kind == "descriptors":
        return list(_rule_lines(change.before or {}, change.after or {}))
    if change.kind != "tenant" or not change.before or not change.after:
        return list(_lines(change.before or {}, change.after or {}, {}, {}))
    had, has = (limits_in("quotas", fields).keys() for fields in (change.before, change.after))
    was_tier, now_tier = str(change.before["tier"]), str(change.after["tier"])
    moves = was_tier != now_tier
    was = _inherited(before, was_tier, own=had, others=has, moves=moves)
    now = _inherited(after, now_tier, own=has, others=had, moves=moves)
    was_of = {name: was_tier for name in was if name in has}
    now_of = {name: now_tier for name in now if name in had}
    return list(_lines({**_flat(was), **change.before}, {**_flat(now), **change.after}, was_of, now_of))


def _inherited(
    tiers: Tiers, tier: str, *, own: Collection[str], others: Collection[str], moves: bool
) -> Mapping[str, Fields]:
    """The quotas of the tier that apply where the tenant has its own on the other side; all, if it moves."""
    if not moves and set(others) <= set(own):
        return {}
    return {
        name: columns
        for name, columns in tiers(tier).items()
        if name not in own and (moves or name in others)
    }


def field_words(name: str, before: Any, after: Any) -> ChangeWords:
    """Return the words of one field of a thing that exists, where the rest of it is not known.

    ``name`` can end with `` of tier pro``: the field of a quota that a tenant inherits.
    """
    field, _, tier = name.partition(" of tier ")
    words = f"{setting_words(field)} (tier {tier})" if tier else setting_words(field)
    values = _value(field, before), _value(field, after)
    return ChangeWords(words, *values, fields=field, shrinks=_falls(before, after))


def words_of_fields(fields: Mapping[str, tuple[Any, Any]]) -> list[ChangeWords]:
    """Return the words of fields with their values before and after. A file of descriptors has a line for
    each rule that differs.
    """
    found: list[ChangeWords] = []
    for name, (before, after) in fields.items():
        files = ({"file": text} if text else {} for text in (before, after))
        rules = list(_rule_lines(*files)) if name == "file" else []
        found += rules or [field_words(name, before, after)]
    return found


def _flat(quotas: Mapping[str, Fields]) -> Fields:
    return {
        f"quotas.{name}.{column}": value for name, each in quotas.items() for column, value in each.items()
    }


def _lines(
    before: Fields, after: Fields, was_of: Mapping[str, str], now_of: Mapping[str, str]
) -> Iterator[ChangeWords]:
    """``was_of`` and ``now_of`` name the tier of quotas that are inherited."""
    changed = set(different(before, after))
    for unit, fields in units((before, after)).items():
        moved = [field for field in fields if field in changed]
        limit = _limit_of(unit, fields)
        if limit is None:
            for name in moved:
                falls = _falls(before.get(name), after.get(name))
                words = _value_in(name, before), _value_in(name, after)
                yield ChangeWords(setting_words(name), *words, fields=name, shrinks=falls)
            continue
        prefix, _, name = limit.partition(".")
        if not moved and name not in was_of.keys() | now_of.keys():
            continue
        was, now = _columns(prefix, name, before), _columns(prefix, name, after)
        notes = was_of.get(name, ""), now_of.get(name, "")
        if unit in (limit, f"{limit}:rate"):
            yield from _rate_lines(name, was, now, moved or [limit], notes)
        yield from _other_lines(f"{name}, ", was, now, moved)


def _template_lines(before: Fields, after: Fields) -> Iterator[ChangeWords]:
    moved = list(different(before, after))
    if "title" in moved:
        yield ChangeWords(
            setting_words("title"), _value_in("title", before), _value_in("title", after), fields="title"
        )
    if not RATE.isdisjoint(moved):
        yield from _rate_lines("Rate", before, after, moved, ("", ""))
    yield from _other_lines("", before, after, [column for column in moved if column != "title"])


def _rule_lines(before: Fields, after: Fields) -> Iterator[ChangeWords]:
    """The rules that differ between two files of descriptors."""
    old, new = (read_text(fields.get("file", "")).domain for fields in (before, after))
    found = difference_of_rules(old, new)
    for change in found.changes:
        yield ChangeWords(change.rule, change.before, change.after, fields="file")
    if found.is_reordered:
        yield ChangeWords("Order of rules", "", "changed", fields="file")
    elif before and after and not found.changes and before["file"] != after["file"]:
        yield ChangeWords("Text", "", "comments or spaces changed", fields="file")


def _rate_lines(
    name: str, was: Fields, now: Fields, moved: list[str], tiers: tuple[str, str]
) -> Iterator[ChangeWords]:
    old, new = (f" (tier {tier})" if tier else "" for tier in tiers)
    # The kind of a window that stays is no change.
    kind = not was or not now or full_columns(was)["algorithm"] != full_columns(now)["algorithm"]
    before = (rate_words(was, kind_of_window=kind) if was else "") + old
    # An equal rate from elsewhere is a change too: it follows the tier from now on, or no more.
    after = (rate_words(now, kind_of_window=kind) if now else "") + new
    if was and now and limits_calls_at_once(was) and limits_calls_at_once(now):
        yield from _slot_lines(name, was, now, moved)
    if before == after:
        return
    growth = _growth(was, now)
    fields = ", ".join(each for each in moved if each.rpartition(".")[2] in RATE) or moved[0]
    shrinks = any(percent < 0 for percent in growth)
    yield ChangeWords(name, before, after or "removed", _share(*growth), fields, shrinks)


def _slot_lines(name: str, was: Fields, now: Fields, moved: list[str]) -> Iterator[ChangeWords]:
    """How long calls at once may last: the rate in words does not include it."""
    for field in moved:
        if field.rpartition(".")[2] == "window_s":
            before, after = (column_words("window_s", each) for each in (was, now))
            falls = _falls(was["window_s"], now["window_s"])
            label = f"{name}, longest time of a call"
            yield ChangeWords(label, before, after, fields=field, shrinks=falls)


def _other_lines(start: str, was: Fields, now: Fields, moved: list[str]) -> Iterator[ChangeWords]:
    """Lines of a limit that exists afterwards, besides its rate."""
    if not now:
        return
    for name in moved:
        column = name.rpartition(".")[2]
        if column in RATE and column not in ("expires_at", "returns_to"):
            continue
        label = f"{start}{lower_first(column_label(column))}" if start else column_label(column)
        before = column_words(column, was) if was else ""
        falls = bool(was) and _falls(full_columns(was).get(column), full_columns(now).get(column))
        yield ChangeWords(label, before, column_words(column, now), fields=name, shrinks=falls)


def column_words(column: str, columns: Fields) -> str:
    value = full_columns(columns).get(column)
    if column == "expires_at":
        return f"{datetime.fromisoformat(value).astimezone(UTC):%-d %b %Y %H:%M} UTC" if value else "never"
    if column == "returns_to":
        return rate_words(value) if value else "none"
    described = BY_NAME.get(column)
    if described is None or isinstance(described, Choices | Patterns | TimeZone):
        return value_text("", value) if value not in (None, "", []) else "none"
    if isinstance(described, Number) or column in WORDS:
        return value_words(described, value) or "none"
    return value_text("", value)


def _value(name: str, value: Any) -> str:
    if value is None:
        return ""
    column = name.rpartition(".")[2]
    known = column in BY_NAME or column in ("expires_at", "returns_to")
    return column_words(column, {column: value}) if _is_limit(name) and known else value_text(name, value)


def _columns(prefix: str, name: str, fields: Fields) -> dict[str, Any]:
    return limits_in(prefix, fields).get(name, {})


def _growth(was: Fields, now: Fields) -> tuple[float, float]:
    """Return by how many percent the rate and the burst grow.

    Both are 0 for what cannot be compared: a rate and calls at once, or calls and tokens.
    """
    if not was or not now:
        return 0.0, 0.0
    old, new = full_columns(was), full_columns(now)
    at_once = limits_calls_at_once(was)
    if at_once != limits_calls_at_once(now) or old["measure"] != new["measure"]:
        return 0.0, 0.0
    rates = [float(each["limit"]) if at_once else _per_second(each) for each in (old, new)]
    are_buckets = old["algorithm"] == new["algorithm"] == Algorithm.TOKEN_BUCKET
    return _percent(*rates), _percent(old["burst"], new["burst"]) if are_buckets else 0.0


def _share(rate: float, burst: float) -> str:
    """``(+50 %)``; with the burst where it does not grow as the rate does."""
    words = [f"{round(rate):+d} %"] if round(rate) else []
    if round(burst) and round(burst) != round(rate):
        words.append(f"burst {round(burst):+d} %")
    return f"({', '.join(words)})" if words else ""


def _percent(old: float, new: float) -> float:
    return 100 * (new / old - 1) if old else 0.0


def _falls(before: Any, after: Any) -> bool:
    """Whether a number is smaller afterwards. A flag is no number."""
    numbers = [
        each for each in (before, after) if isinstance(each, int | float) and not isinstance(each, bool)
    ]
    return len(numbers) == 2 and numbers[1] < numbers[0]


def _per_second(columns: Fields) -> float:
    return float(columns["limit"]) / float(columns["window_s"])


def _limit_of(unit: str, fields: list[str]) -> str | None:
    """``quotas.requests`` for a unit of this limit; ``None`` for a unit of the thing itself."""
    return fields[0].rpartition(".")[0] if _is_limit(unit) else None


def _is_limit(name: str) -> bool:
    return name.partition(".")[0] in _PREFIXES


def _value_in(name: str, fields: Fields) -> str:
    if name == "raised_to" and name in fields and not fields[name]:
        return "none"
    if name in ("amount", "raised_to") and fields.get(name) and "measure" in fields:
        return amount_words(fields[name], fields["measure"], exact=True)
    if name in fields:
        return value_text(name, fields[name])
    if not fields:
        return ""
    if name.startswith("protection."):
        return "off"
    return value_text(name, _LEFT_OUT[name]) if name in _LEFT_OUT else ""
