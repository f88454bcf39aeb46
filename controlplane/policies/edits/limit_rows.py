"""Checking and writing one limit, whoever it belongs to."""

from collections.abc import Collection, Sequence
from typing import Any, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db.models import Manager

from controlplane.policies.errors import NotFound
from controlplane.policies.limits import (
    MAX_BUCKET,
    MAX_ENDPOINT,
    MAX_ENDPOINTS,
    MAX_WINDOW_S,
    OPTIONAL,
    LimitColumns,
    QuotaColumns,
)
from controlplane.policies.models import Dependency, SubjectLimit
from controlplane.policies.validation import Problems
from fuseboard.contract.words import MAX_LIMIT, Algorithm, Dimension, FailurePolicy, Period


class LimitOptions(TypedDict, total=False):
    """What a limit may be besides its three numbers; left out or ``None``, it stays as it is."""

    algorithm: Algorithm | None
    failure_policy: FailurePolicy | None
    shadow: bool | None
    #: Fixed windows only; an empty text takes it away.
    period: Period | str | None
    time_zone: str | None
    measure: str | None
    per: Collection[Dimension] | None
    endpoints: Sequence[str] | None
    warn_percent: int | None
    lease_above: int | None
    #: -1 for the fleet's usual.
    reserved_percent: int | None


class QuotaOptions(LimitOptions, total=False):
    #: The dependency whose calls it counts; an empty text for requests to the service itself.
    dependency: str | None


def given_columns(limit: int, window_s: int, burst: int, options: LimitOptions) -> dict[str, Any]:
    """Column -> new value, of those that were given."""
    given = {name: value for name, value in options.items() if value is not None}
    algorithm = given.get("algorithm")
    if algorithm is not None and algorithm != Algorithm.FIXED_WINDOW:
        given.setdefault("period", "")
    return {"limit": limit, "window_s": window_s, "burst": burst, **given}


#: Columns that hold several values.
LIST_COLUMNS = frozenset({"per", "endpoints"})
_NUMBERS = {"limit": (0, MAX_LIMIT), "window_s": (1, MAX_WINDOW_S), "burst": (1, MAX_LIMIT)}


def check_limit_columns(problems: Problems, given: dict[str, Any], *, quota: bool) -> None:
    """What can be seen to be wrong with some columns of a limit, each by itself."""
    known = _NUMBERS.keys() | OPTIONAL.keys()
    known = known | {"expires_at"} if quota else known - {"dependency"}
    for column in given.keys() - known:
        problems.add(column, "A limit has no such field.")
    for column, (least, most) in _NUMBERS.items():
        if column in given:
            problems.whole(column, given[column], least, most)
    if "expires_at" in given:
        problems.moment("expires_at", given["expires_at"])
    _check_options(problems, given)


def check_new_limit(name: object, given: dict[str, Any], reason: object) -> None:
    """Raise ``InvalidEdit`` for whatever can be seen to be wrong without the database."""
    problems = Problems()
    problems.slug("quota", name)
    problems.whole("limit", given["limit"], 0, MAX_LIMIT)
    problems.whole("window_s", given["window_s"], 1, MAX_WINDOW_S)
    problems.whole("burst", given["burst"], 1, MAX_LIMIT)
    _check_options(problems, given)
    problems.reason(reason)
    problems.settle()


def _check_options(problems: Problems, given: dict[str, Any]) -> None:
    for field, words in (("algorithm", Algorithm), ("failure_policy", FailurePolicy), ("period", Period)):
        if field in given and not (field == "period" and given[field] == ""):
            problems.choice(field, given[field], words)
    if "shadow" in given:
        problems.flag("shadow", given["shadow"])
    if "time_zone" in given and not _is_time_zone(given["time_zone"]):
        problems.add("time_zone", "Use a name of the time zone database, like Europe/Berlin.")
    if "measure" in given:
        problems.slug("measure", given["measure"])
    for value in given.get("per", ()):
        problems.choice("per", value, Dimension)
    if given.get("dependency"):
        problems.slug("dependency", given["dependency"])
    _check_endpoints(problems, given.get("endpoints", ()))
    problems.whole("warn_percent", given.get("warn_percent", 0), 0, 100)
    problems.whole("lease_above", given.get("lease_above", 0), 0, MAX_LIMIT)
    problems.whole("reserved_percent", given.get("reserved_percent", -1), -1, 100)


def _check_endpoints(problems: Problems, patterns: Sequence[str]) -> None:
    if len(patterns) > MAX_ENDPOINTS:
        problems.add("endpoints", f"Use at most {MAX_ENDPOINTS} patterns.")
    for pattern in patterns:
        problems.text("endpoints", pattern, MAX_ENDPOINT)
        if pattern == "":
            problems.add("endpoints", "A pattern must not be empty.")


def put_limit(
    rows: Manager[Any],
    name: str,
    given: dict[str, Any],
    *,
    environment: str,
    like: LimitColumns | None = None,
) -> None:
    """Change the limit of that name, or make it; a new one is ``like`` another where nothing is given."""
    row = rows.filter(name=name).first()
    if row is None:
        row = rows.model(name=name, **{rows.field.name: rows.instance})  # type: ignore[attr-defined]
        for column in OPTIONAL if like is not None else ():
            setattr(row, column, getattr(like, column))
    if "per" in given:
        given = given | {"per": [word.value for word in Dimension if word in given["per"]]}
    if "endpoints" in given:
        given = given | {"endpoints": list(given["endpoints"])}
    for column, value in given.items():
        setattr(row, column, value)
    _check_together(row, environment)
    row.save()


def _check_together(row: LimitColumns, environment: str) -> None:
    """Columns that contradict each other, or name what is not there."""
    problems = Problems()
    quota = isinstance(row, QuotaColumns)
    columns = {name: getattr(row, name) for name in (*_NUMBERS, *OPTIONAL) if hasattr(row, name)}
    check_together(problems, columns, subject=isinstance(row, SubjectLimit))
    if quota and columns["dependency"]:
        known = Dependency.objects.filter(environment_id=environment, name=columns["dependency"])
        if not known.exists():
            problems.add("dependency", f"There is no dependency {columns['dependency']!r}.")
    problems.settle()


def check_together(problems: Problems, columns: dict[str, Any], *, subject: bool) -> None:
    """Columns that contradict each other; all of them must be there."""
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
    if subject and not columns["per"]:
        problems.add("per", f"Say what to count by: {', '.join(Dimension)}.")


def remove_limit(rows: Manager[Any], name: str) -> None:
    removed, _ = rows.filter(name=name).delete()
    if not removed:
        raise NotFound("quota", name)


def _is_time_zone(name: object) -> bool:
    if name == "UTC":  # known to pods without a database of zones, too
        return True
    if not isinstance(name, str) or not 1 <= len(name) <= 64:
        return False
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
