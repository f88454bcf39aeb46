"""Checks of one limit: its values one by one, and all of them together."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from controlplane.policies.limit_fields import LimitValues
from controlplane.policies.limits import MAX_BUCKET, columns_for
from controlplane.validation import Problems
from fuseboard.contract.limit_fields import (
    FIELDS,
    QUOTAS,
    Choice,
    Choices,
    Flag,
    LimitField,
    Name,
    Number,
    Patterns,
    TimeZone,
)
from fuseboard.contract.words import Algorithm, Dimension, Period

#: The longest time that a temporary quota can last.
_LONGEST = timedelta(days=400)


def given_columns(options: LimitValues) -> dict[str, Any]:
    """Return the columns that an edit gives, with lists as rows have them: words in a fixed order."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for field in FIELDS:
        value = given.get(field.name)
        if isinstance(field, Choices) and isinstance(value, Collection) and set(value) <= set(field.words):
            given[field.name] = [word.value for word in field.words if word in value]
        elif isinstance(field, Choices | Patterns) and isinstance(value, Collection):
            given[field.name] = [str(part) for part in value]
    return given


def check_new_limit(name: object, given: Mapping[str, Any], reason: object) -> None:
    """Raise ``InvalidEdit`` for everything that is wrong without looking at the database."""
    problems = Problems()
    problems.slug("quota", name)
    if not given:
        problems.add("limit", "Give a value of the limit.")
    _check_values(problems, given)
    problems.reason(reason)
    problems.settle()


def check_limit_columns(problems: Problems, given: Mapping[str, Any], *, whose: str) -> None:
    """Check columns of a limit in a plan: their names, and each value by itself."""
    known = {*columns_for(whose), "template", *(("expires_at",) if whose == QUOTAS else ())}
    for column in given.keys() - known:
        problems.add(column, f"A limit has no such field, only {', '.join(sorted(known))}.")
    # An empty one makes a temporary quota permanent.
    if given.get("expires_at", "") != "":
        problems.moment("expires_at", given["expires_at"])
    _check_values(problems, given)


def check_together(problems: Problems, columns: Mapping[str, Any], *, subject: bool) -> None:
    """Check columns against each other. ``columns`` must have all of them."""
    algorithm = columns["algorithm"]
    kind = str(algorithm).replace("_", " ")
    buckets = algorithm == Algorithm.TOKEN_BUCKET
    if not buckets and columns["burst"] != 1:
        problems.add("burst", f"Only a token bucket has a burst, and this is {kind}: enter 1.")
    if buckets and max(columns["limit"], columns["burst"]) * columns["window_s"] > MAX_BUCKET:
        problems.add("window_s", "Too long for so many calls in a token bucket: use a fixed window.")
    if algorithm == Algorithm.FIXED_WINDOW and not columns["period"]:
        problems.add("period", f"A fixed window needs one of: {', '.join(Period)}.")
    if algorithm != Algorithm.FIXED_WINDOW and columns["period"]:
        problems.add("period", f"Only a fixed window has a period, and this is {kind}: leave it empty.")
    if subject and columns["service"] and columns["per"]:
        problems.add("per", "All callers of the service share one counter: leave this empty, or the service.")
    if subject and not columns["service"] and not columns["per"]:
        by = ", ".join(Dimension)
        problems.add("per", f"Choose what to count by: {by}. To count all callers together, name a service.")


def wrong_end(ends: datetime, now: datetime) -> str:
    """Return what is wrong with the end of a temporary quota; empty if it is right."""
    if ends <= now:
        return "Choose a time in the future."
    return f"Choose a time in the next {_LONGEST.days} days." if ends - now > _LONGEST else ""


def _check_values(problems: Problems, given: Mapping[str, Any]) -> None:
    for field in FIELDS:
        if field.name in given:
            _check_value(problems, field, given[field.name])
    if given.get("template"):
        problems.slug("template", given["template"])


def _check_value(problems: Problems, field: LimitField, value: Any) -> None:
    match field:
        case Number():
            problems.whole(field.name, value, field.least, field.most)
        case Flag():
            problems.flag(field.name, value)
        case Choice():
            if value != "" or field.default:
                problems.choice(field.name, value, field.words)
        case Choices():
            for word in value:
                problems.choice(field.name, word, field.words)
        case Name():
            if (value or field.default) and value != (field.every or None):
                problems.slug(field.name, value)
        case TimeZone():
            check_time_zone(problems, field.name, value)
        case Patterns():
            _check_patterns(problems, field, value)


def _check_patterns(problems: Problems, field: Patterns, patterns: Sequence[str]) -> None:
    if len(patterns) > field.most:
        problems.add(field.name, f"Use at most {field.most} patterns.")
    for pattern in patterns:
        problems.text(field.name, pattern, field.longest)
        if pattern == "":
            problems.add(field.name, "A pattern must not be empty.")


def check_time_zone(problems: Problems, field: str, value: object) -> None:
    if not _is_time_zone(value):
        problems.add(field, "Use a name of the time zone database, like Europe/Berlin.")


def _is_time_zone(name: object) -> bool:
    if name == "UTC":  # valid for pods without a time zone database, too
        return True
    if not isinstance(name, str) or not 1 <= len(name) <= 64:
        return False
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
