"""Texts about the fields of a limit, and the fields that the form of a template shows.

What a value may be is in ``fuseboard.contract.limit_fields``.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from fuseboard.contract.limit_fields import FIELDS, LimitField, allowed_values, scope
from fuseboard.contract.words import Algorithm, Dimension, FailurePolicy, Period


@dataclass(frozen=True, kw_only=True)
class Words:
    label: str
    #: One sentence, for the API and the documentation.
    help: str
    #: The meaning of the default: ``no warning``. A form accepts an empty input for it.
    usual: str = ""
    #: Labels of the choices, where a form shows them.
    choices: Mapping[str, str] = field(default_factory=dict)
    #: Whether the form of a template shows it. The editor of a limit shows every field.
    in_template_form: bool = False
    #: Help under the input of a form.
    hint: str = ""


WORDS: dict[str, Words] = {
    "limit": Words(label="Limit", help="Calls per window; 0 refuses every call.", in_template_form=True),
    "window_s": Words(
        label="Window, seconds",
        help="Length of the window. For concurrency, how long one call may hold a slot.",
        in_template_form=True,
    ),
    "burst": Words(
        label="Burst",
        help="Calls that may be made at once.",
        usual="as many as the limit",
        in_template_form=True,
    ),
    "algorithm": Words(
        label="Algorithm",
        help="How calls are counted.",
        choices={
            "token_bucket": "Token bucket",
            "sliding_window": "Sliding window, strict",
            "fixed_window": "Calendar window",
            "concurrency": "Concurrency",
        },
        in_template_form=True,
        hint="Under full load, a strict sliding window admits 91 % of the limit.",
    ),
    "failure_policy": Words(
        label="Without Redis",
        help=(
            "What pods do while Redis is down. A new quota gets fail_open, a new limit of callers without a"
            " tenant local_share, a new vendor limit reserved."
        ),
        hint=(
            "Allow: no bound; pods report the calls later. Local share: each pod allows limit / live pods."
            " Reserved share: pods divide a part that Redis never grants."
        ),
        choices={
            "fail_open": "Allow",
            "fail_closed": "Refuse",
            "local_share": "Local share",
            "reserved": "Reserved share",
        },
        in_template_form=True,
    ),
    "shadow": Words(
        label="Over the limit",
        help="Decide and count, but never refuse.",
        choices={"no": "Refuse", "yes": "Only count (shadow)"},
        in_template_form=True,
    ),
    "period": Words(
        label="Calendar period",
        help="Calendar period of a fixed window, required there; empty removes it.",
        usual="None",
        choices={"hour": "Hour", "day": "Day", "week": "Week", "month": "Month"},
        in_template_form=True,
    ),
    "time_zone": Words(label="Time zone", help="Time zone in which a period begins, like Europe/Berlin."),
    "measure": Words(
        label="Unit to count", help="What is counted: calls, or another cost that callers state, like tokens."
    ),
    "per": Words(label="Count separately per", help="Count separately for each value of these."),
    "endpoints": Words(
        label="Endpoints",
        help="Count only endpoints that match one of these patterns, in which * is any text and GET includes"
        " HEAD; empty for all.",
    ),
    "dependency": Words(
        label="Dependency", help="Count calls to this dependency; empty for requests to the service itself."
    ),
    "warn_percent": Words(
        label="Warn at, percent",
        help="Add a warning to decisions when this much of the limit is spent; 0 for never.",
        usual="no warning",
        in_template_form=True,
    ),
    "lease_above": Words(
        label="Use leases above, calls per second",
        help="Lease calls in advance to pods that make more calls per second; 0 for the usual threshold.",
        usual="the usual threshold",
    ),
    "reserved_percent": Words(
        label="Part usable without Redis, percent",
        help="For reserved limits: percent that pods may spend without Redis; -1 for the fleet default.",
        usual="the fleet default",
    ),
    "service": Words(
        label="Service",
        help=(
            "Count all requests to this service together, with and without a tenant; * for every service."
            " Empty for a limit that counts callers by per."
        ),
        hint="Counts all callers together; * for every service. Empty: each caller counts separately.",
    ),
}

#: The fields that the form of a template shows, in order.
IN_TEMPLATE_FORM: tuple[LimitField, ...] = tuple(each for each in FIELDS if WORDS[each.name].in_template_form)


class LimitValues(TypedDict, total=False):
    """The values an edit gives. ``None``, or a value left out, keeps the present one."""

    limit: int | None
    window_s: int | None
    burst: int | None
    algorithm: Algorithm | None
    failure_policy: FailurePolicy | None
    shadow: bool | None
    period: Period | str | None
    time_zone: str | None
    measure: str | None
    per: Collection[Dimension] | None
    endpoints: Sequence[str] | None
    warn_percent: int | None
    lease_above: int | None
    reserved_percent: int | None


class LimitOptions(LimitValues, total=False):
    #: The template that the limit follows from now on in everything that is not given with it.
    #: Left out, a limit keeps its template and overrides it with what is given. Empty to stop following.
    template: str | None


class SubjectLimitOptions(LimitOptions, total=False):
    service: str | None


class QuotaOptions(LimitOptions, total=False):
    dependency: str | None


def documentation() -> Iterator[str]:
    """The rows of the table in docs/limits.md."""
    yield "| field | value | default | of | |"
    yield "|---|---|---|---|---|"
    for each in FIELDS:
        words = WORDS[each.name]
        cells = (f"`{each.name}`", allowed_values(each), _default(each), scope(each) or "all", words.help)
        yield f"| {' | '.join(cells)} |"


def _default(described: LimitField) -> str:
    value = described.default
    if value is None:
        return "required"
    if isinstance(value, tuple):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value != "" else "empty"
