"""Decisions as answers of Envoy's rate limit service."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, inf
from time import time

from msgspec.structs import replace

from fuseboard.contract.budgets import AtSpent
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.descriptors import Headers, Verdict
from fuseboard.contract.limits import Limit
from fuseboard.contract.words import Algorithm, Period
from fuseboard.decision import Decision, LimitStatus
from fuseboard.envoy import rls_pb2 as pb
from fuseboard.envoy.asks import UNLIMITED, Asked, unit, without_figures
from fuseboard.integrations.problem import limit_headers, refusal

_OK, _OVER_LIMIT = pb.RateLimitResponse.OK, pb.RateLimitResponse.OVER_LIMIT
_Status = pb.RateLimitResponse.DescriptorStatus

#: Envoy writes the length itself.
_LENGTH = frozenset({"content-length"})
#: Headers of limits. Those of a vendor are not for the callers of Envoy.
_LIMITS = frozenset({"ratelimit", "ratelimit-policy"})

#: The answer to a request that could not be decided.
ALLOWED = pb.RateLimitResponse(overall_code=_OK).SerializeToString()

#: The end of the present period of calendar limits, in seconds of Unix time.
_ends: dict[tuple[Period, str], float] = {}


def allowed(
    asked: Asked, parts: Mapping[int, Decision], permits: Sequence[str], decisions: Sequence[Decision]
) -> bytes:
    """``parts`` are the decisions by the places of descriptors, ``permits`` the ids for the access log.

    ``decisions`` have the limits of callers that were asked.
    """
    message = asked.message
    for place, part in parts.items():
        _write(message.statuses[place], asked, place, part)
    if permits:
        names = ",".join(permits)
        # The access log finds the first to choose requests. A second filter replaces it, but not the other.
        message.dynamic_metadata["permit"] = names
        message.dynamic_metadata[f"permit.{asked.domain}"] = names
    if asked.headers is not Headers.OFF:
        # The message has those of an earlier decision.
        del message.response_headers_to_add[:]
        _add(message, _legacy(asked, message) if asked.headers is Headers.LEGACY else _headers(decisions))
    return message.SerializeToString()


def refused(asked: Asked, parts: Mapping[int, Decision], decision: Decision) -> bytes:
    """``decision`` refuses the request. Headers and body are those of the middlewares."""
    _, headers, body = refusal(decision)
    left_out = _LENGTH | _LIMITS if decision.dependency else _LENGTH
    message = without_figures(asked.matches)
    message.overall_code, message.raw_body = _OVER_LIMIT, body
    for place, part in parts.items():
        _write(message.statuses[place], asked, place, part)
    _add(message, [header for header in headers if header[0] not in left_out])
    if asked.headers is Headers.LEGACY:
        _add(message, _legacy(asked, message))
    return message.SerializeToString()


def _add(message: pb.RateLimitResponse, headers: Iterable[tuple[str, str]]) -> None:
    for name, value in headers:
        message.response_headers_to_add.add(key=name, value=value)


def _headers(decisions: Sequence[Decision]) -> list[tuple[str, str]]:
    """The headers of the middlewares. A limit with several counters is listed once, with the least left.

    Descriptors with other values have other counters, and so have rules with the same keys and no name. A
    limit that was checked and then charged has two figures, too.
    """
    if not decisions:
        return []
    limits: dict[tuple[object, ...], LimitStatus] = {}
    for limit in (limit for decision in decisions for limit in decision.limits):
        key = limit.name, limit.limit, limit.window_ms, limit.algorithm, limit.measure, limit.shadow
        if key not in limits or _left(limit) < _left(limits[key]):
            limits[key] = limit
    return limit_headers(replace(decisions[-1], limits=tuple(limits.values())))


def _left(limit: LimitStatus) -> float:
    """A limit of which nothing is known counts as the one with the most left."""
    return inf if limit.remaining is None else limit.remaining


def _legacy(asked: Asked, message: pb.RateLimitResponse) -> list[tuple[str, str]]:
    """The headers of envoyproxy/ratelimit: of the limit that refused, or else has the least left."""
    shown = [
        status
        for status, limit in zip(message.statuses, asked.limits, strict=True)
        if status.HasField("current_limit") and (limit is None or not limit.shadow)
    ]
    if not shown:
        return []
    tightest = min(shown, key=lambda status: (status.code != _OVER_LIMIT, status.limit_remaining))
    return [
        ("ratelimit-limit", str(tightest.current_limit.requests_per_unit)),
        ("ratelimit-remaining", str(tightest.limit_remaining)),
        ("ratelimit-reset", str(tightest.duration_until_reset.seconds)),
    ]


def _write(status: _Status, asked: Asked, place: int, part: Decision) -> None:
    """Write the figures of one descriptor. The status may have those of an earlier decision."""
    match, limit = asked.matches[place], asked.limits[place]
    shown = None
    if match.verdict is not Verdict.CALL:
        shown = _own(limit, part) if limit is not None else _nearest(part)
    if shown is None:
        status.Clear()
    else:
        if limit is None or not status.HasField("current_limit"):
            rule = match.rule
            _write_limit(status, shown, shown.name if limit is None or rule is None else rule.name)
        # The scripts count one call for a limit of 0 in shadow mode.
        status.limit_remaining = min(max(0, shown.remaining or 0), shown.limit, UNLIMITED)
        status.duration_until_reset.seconds = _reset_s(shown, limit)
    status.code = _OK if part.allowed else _OVER_LIMIT
    if part.retry_after_ms:
        status.duration_until_reset.seconds = ceil(part.retry_after_ms / 1000)


def _write_limit(status: _Status, shown: LimitStatus, name: str) -> None:
    """A window that is no unit of Envoy, and a budget above its figures, have no limit in their answers."""
    number = unit(shown.window_ms, shown.period)
    if number == pb.UNKNOWN_UNIT or shown.limit > UNLIMITED:
        status.ClearField("current_limit")
        return
    current = status.current_limit
    current.requests_per_unit, current.unit, current.name = shown.limit, number, name


def _own(limit: Limit, part: Decision) -> LimitStatus | None:
    if part.limits:
        return part.limits[0] if part.limits[0].remaining is not None or not part.allowed else None
    # A refusal that this pod remembers has no figures, and nothing is left.
    return None if part.allowed else LimitStatus.of(limit)


def _nearest(part: Decision) -> LimitStatus | None:
    """The limit that refused, or else the one with the smallest part left, of those that can refuse."""
    known = [limit for limit in part.limits if not limit.shadow and limit.at_spent in _REFUSING]
    if not part.allowed:
        return next((limit for limit in known if limit.name == part.rule), None)
    left = [limit for limit in known if limit.remaining is not None and limit.algorithm is not _SLOTS]
    return min(left, key=lambda limit: (limit.remaining or 0) / max(1, limit.limit), default=None)


_SLOTS = Algorithm.CONCURRENCY
#: The ``at_spent`` of limits that refuse: those that are no budget have ``None``.
_REFUSING = (None, AtSpent.STOP)


def _reset_s(shown: LimitStatus, limit: Limit | None) -> int:
    """Until all of the limit is left again, at most."""
    if shown.period is not None:
        return _period_left_s(shown.period, shown.time_zone)
    if shown.algorithm is Algorithm.TOKEN_BUCKET and limit is not None and limit.limit:
        spent = max(0, limit.burst - max(0, shown.remaining or 0))
        return ceil(spent * limit.window_ms / limit.limit / 1000)
    return ceil(shown.window_ms / 1000)


def _period_left_s(period: Period, time_zone: str) -> int:
    now = time()
    end = _ends.get((period, time_zone), 0.0)
    if end <= now:
        end = period_around(int(now * 1_000_000), period, time_zone)[1] / 1_000_000
        _ends[period, time_zone] = end
    return ceil(end - now)
