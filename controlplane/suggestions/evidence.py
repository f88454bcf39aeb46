"""Suggestions that follow from reports of pods about one limit of a vendor. Pure: no store is read."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from controlplane.fleet.stated_limits import (
    LATELY_S,
    PodSeen,
    agreed,
    applied,
    others_share,
    proven,
    refused_calls,
)
from controlplane.phrases import amount_words, count, percent, window_words
from controlplane.policies.limits import LimitColumns
from controlplane.suggestions.models import SuggestionKind
from fuseboard.contract.words import Algorithm

#: Smaller parts of calls, in percent, are noise: refused by the vendor, and used by others.
REFUSED_PERCENT = 1
OTHERS_PERCENT = 5
#: A followed number that is nearer to the configured one, in percent, may be a moment.
SLOTS_PERCENT = 90

#: The limits that refill: the headers of a vendor can be about them.
_REFILLED = (Algorithm.SLIDING_WINDOW, Algorithm.TOKEN_BUCKET)


@dataclass(frozen=True, kw_only=True)
class Found:
    kind: SuggestionKind
    number: int
    evidence: str


def suggested(limit: LimitColumns, pods: Collection[PodSeen], now: datetime) -> list[Found]:
    """Return what the reports suggest. One pod alone suggests nothing, whatever it reports."""
    if limit.shadow or limit.limit <= 0:
        return []
    if limit.algorithm == Algorithm.CONCURRENCY:
        # No answer states how many calls may be in progress, but the vendor refuses the others.
        return [*_slots(limit, pods, now)] or [*_refused(pods, now)]
    if limit.algorithm not in _REFILLED:
        return []
    return [*_stated(limit, pods, now), *_others(limit, pods, now)]


def _stated(limit: LimitColumns, pods: Collection[PodSeen], now: datetime) -> Iterable[Found]:
    stated = agreed(pods)
    if stated is not None and stated.is_proven:
        since = datetime.fromtimestamp(stated.since, UTC)
        words = (
            f"In {count(stated.answers, 'answer', grouped=True)} to {stated.pods} pods since"
            f" {_moment(since, now)} the vendor said {_rate(limit, stated.number)}."
            f" Configured: {_rate(limit, limit.limit)}."
        )
        if stated.number < limit.limit:
            yield Found(kind=SuggestionKind.LIMIT, number=stated.number, evidence=words)
            return
        blocked = [one.blocked for one in pods if one.blocked]
        if stated.number > limit.limit and (kept := proven(blocked)):
            part = percent(limit.limit / stated.number)
            words += (
                f" From {_lately(now)} limits of ours refused {count(kept, 'call', grouped=True)}"
                f" of {len(blocked)} pods. You use at most {part} of what you may."
            )
            yield Found(kind=SuggestionKind.TOO_LOW, number=stated.number, evidence=words)
    yield from _refused(pods, now)


def _slots(limit: LimitColumns, pods: Collection[PodSeen], now: datetime) -> Iterable[Found]:
    """Pods follow the vendor, and so have found how many calls at once it allows.

    Own machines refuse nothing, and their number follows the time of calls: it is not suggested.
    """
    number, (refused, sent) = applied(pods), refused_calls(pods)
    if not refused or not 0 < number * 100 <= limit.limit * SLOTS_PERCENT:
        return
    yield Found(
        kind=SuggestionKind.SLOTS,
        number=number,
        evidence=(
            f"From {_lately(now)} the vendor refused {refused:,} of {count(sent, 'call', grouped=True)}"
            f" ({percent(min(1.0, refused / sent))}). Pods follow it, and apply"
            f" {count(number, 'call', grouped=True)} at once. Configured: {limit.limit:,}."
        ),
    )


def _refused(pods: Collection[PodSeen], now: datetime) -> Iterable[Found]:
    """The vendor refuses calls, and no lower number explains it."""
    counted, sent = refused_calls(pods)
    if counted * 100 <= sent * REFUSED_PERCENT:
        return
    refused = sum(one.refused > 0 for one in pods)
    part = min(1.0, counted / sent)
    yield Found(
        kind=SuggestionKind.REFUSED,
        number=max(1, round(100 * part)),
        evidence=(
            f"From {_lately(now)} the vendor refused {counted:,} of {count(sent, 'call', grouped=True)}"
            f" ({percent(part)}) of {refused} pods, and stated no lower limit."
        ),
    )


def _others(limit: LimitColumns, pods: Collection[PodSeen], now: datetime) -> Iterable[Found]:
    """Others use the same key: the vendor has less left than our counter."""
    charged = [one.others for one in pods if one.others]
    part = others_share(pods, limit.limit, limit.window_s)
    if part * 100 < OTHERS_PERCENT:
        return
    may = limit.limit * LATELY_S / limit.window_s
    yield Found(
        kind=SuggestionKind.OTHERS,
        number=max(1, round(100 * part)),
        evidence=(
            f"From {_lately(now)} others used {proven(charged):,} of the {round(may):,}"
            f" {limit.measure.replace('_', ' ')} that this limit allows ({percent(part)}): the vendor had"
            f" that much less left than our counter, in answers to {len(charged)} pods."
        ),
    )


def _lately(now: datetime) -> str:
    return f"{now - timedelta(seconds=LATELY_S):%H:%M} to {now:%H:%M} UTC"


def _moment(at: datetime, now: datetime) -> str:
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%-d %B %H:%M} UTC"


def _rate(limit: LimitColumns, number: int) -> str:
    return f"{amount_words(number, limit.measure)} per {window_words(limit.window_s)}"
