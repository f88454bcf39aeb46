"""Checking and writing one limit, whoever it belongs to."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db.models import Manager

from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.limits import (
    ALONE,
    MAX_BUCKET,
    MAX_ENDPOINT,
    MAX_ENDPOINTS,
    MAX_WINDOW_S,
    OPTIONAL,
    VALUES,
    LimitColumns,
    QuotaColumns,
    columns_of,
    followed,
    full_columns,
    own_columns,
    plain_columns,
)
from controlplane.policies.models import Dependency, SubjectLimit, Template
from controlplane.validation import Problems
from fuseboard.contract.words import MAX_LIMIT, Algorithm, Dimension, FailurePolicy, Period


class LimitValues(TypedDict, total=False):
    """What a limit may be; left out or ``None``, it stays as it is. A new one needs the first two."""

    limit: int | None
    window_s: int | None
    burst: int | None
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


class LimitOptions(LimitValues, total=False):
    #: Name of the template it follows from now on in all that is not given beside it. Without it, a
    #: limit that follows one goes on, and has what is given of its own; an empty text ends that.
    template: str | None


class QuotaOptions(LimitOptions, total=False):
    #: The dependency whose calls it counts; an empty text for requests to the service itself.
    dependency: str | None


def given_columns(options: LimitValues) -> dict[str, Any]:
    """Column -> new value, of those that were given."""
    given = {name: value for name, value in options.items() if value is not None}
    algorithm = given.get("algorithm")
    if algorithm is not None and algorithm != Algorithm.FIXED_WINDOW:
        given.setdefault("period", "")
    return given


#: Columns that hold several values.
LIST_COLUMNS = frozenset({"per", "endpoints"})
_NUMBERS = {"limit": (0, MAX_LIMIT), "window_s": (1, MAX_WINDOW_S), "burst": (1, MAX_LIMIT)}


def check_limit_columns(problems: Problems, given: dict[str, Any], *, quota: bool) -> None:
    """What can be seen to be wrong with some columns of a limit, each by itself."""
    known = {*VALUES, "template"}
    known = known | {"expires_at", "dependency"} if quota else known
    for column in given.keys() - known:
        problems.add(column, f"A limit has no such field, only {', '.join(sorted(known))}.")
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
    for column, (least, most) in _NUMBERS.items():
        if column in given:
            problems.whole(column, given[column], least, most)
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
    for field in ("dependency", "template"):
        if given.get(field):
            problems.slug(field, given[field])
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
    like: Mapping[str, Any] | None = None,
) -> None:
    """Change the limit of that name, or make it; a new one is ``like`` this where nothing is given."""
    row = rows.filter(name=name).first()
    present = columns_of(row) if row is not None else {}
    if row is None:
        row = rows.model(name=name, **{rows.field.name: rows.instance})  # type: ignore[attr-defined]
    if "per" in given:
        given = given | {"per": [word.value for word in Dimension if word in given["per"]]}
    if "endpoints" in given:
        given = given | {"endpoints": list(given["endpoints"])}
    usual = {name: value for name, value in (like or {}).items() if name in OPTIONAL}
    columns = given_over(present, given, usual=usual, template=_template(environment, present, given))
    for column, value in full_columns(columns).items():
        # A vendor's limit has a dependency as its owner.
        if column != "dependency" or isinstance(row, QuotaColumns):
            setattr(row, column, value)
    _check_together(row, environment)
    row.save()


def given_over(
    present: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    usual: Mapping[str, Any],
    template: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The columns of a limit when ``given`` is given of it; one that is not ``present`` is as ``usual``.

    ``template`` is the one it follows then. Raises ``InvalidEdit`` when something is missing.
    """
    columns = {**(present or usual), **given}
    if template is None:
        problems = Problems()
        for needed in ("limit", "window_s"):
            if needed not in columns:
                problems.add(needed, "A new limit needs this.")
        problems.settle()
        return plain_columns(columns | ALONE)
    kept = () if given.get("template") else present.get("own", ())
    return followed({**columns, "own": own_columns([*kept, *given])}, template)


def _template(environment: str, present: dict[str, Any], given: dict[str, Any]) -> dict[str, Any] | None:
    name = given.get("template", present.get("template", ""))
    if not name:
        return None
    row = Template.objects.filter(environment_id=environment, name=name).first()
    if row is None:
        raise InvalidEdit({"template": [f"There is no template {name!r}."]})
    return columns_of(row)


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
