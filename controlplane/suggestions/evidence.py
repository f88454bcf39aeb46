"""Suggestions that follow from reports of pods about one limit of a vendor. Pure: no store is read."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from controlplane.fleet.stated_limits import PodSeen, agreed, without_the_worst
from controlplane.phrases import amount_words, count, percent
from controlplane.policies.limits import LimitColumns
from controlplane.suggestions.models import SuggestionKind
from fuseboard.contract.words import Algorithm

#: Fewer pods, or fewer answers or refusals, are no evidence.
MIN_PODS = 2
MIN_ANSWERS = 20
#: Pods count what became of their calls over this time.
LATELY_S = 600
#: Smaller parts of calls, in percent, are noise: refused by the vendor, and used by others.
REFUSED_PERCENT = 1
OTHERS_PERCENT = 5

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
        return [*_refused(pods, now)]
    if limit.algorithm not in _REFILLED:
        return []
    return [*_stated(limit, pods, now), *_others(limit, pods, now)]


def _stated(limit: LimitColumns, pods: Collection[PodSeen], now: datetime) -> Iterable[Found]:
    stated = agreed(pods)
    known = stated is not None and stated.pods >= MIN_PODS and stated.answers >= MIN_ANSWERS
    if stated is not None and known:
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
        if stated.number > limit.limit and len(blocked) >= MIN_PODS:
            kept = without_the_worst(blocked)
            if kept >= MIN_ANSWERS:
                part = percent(limit.limit / stated.number)
                words += (
                    f" From {_lately(now)} limits of ours refused {count(kept, 'call', grouped=True)}"
                    f" of {len(blocked)} pods. You use at most {part} of what you may."
                )
                yield Found(kind=SuggestionKind.TOO_LOW, number=stated.number, evidence=words)
    yield from _refused(pods, now)


def _refused(pods: Collection[PodSeen], now: datetime) -> Iterable[Found]:
    """The vendor refuses calls, and no lower number explains it."""
    refused, sent = _weighed(pods)
    counted = without_the_worst(refused)
    if len(refused) < MIN_PODS or counted < MIN_ANSWERS or counted * 100 <= sent * REFUSED_PERCENT:
        return
    part = min(1.0, counted / sent)
    yield Found(
        kind=SuggestionKind.REFUSED,
        number=max(1, round(100 * part)),
        evidence=(
            f"From {_lately(now)} the vendor refused {counted:,} of {count(sent, 'call', grouped=True)}"
            f" ({percent(part)}) of {len(refused)} pods, and stated no lower limit."
        ),
    )


def _weighed(pods: Collection[PodSeen]) -> tuple[list[int], int]:
    """The refused calls of each pod with any, and the calls of all pods.

    As in ``learn.lua`` of the agent, the calls of a pod count at most twice what the others make on average:
    one pod alone can neither invent refusals nor hide those of the others.
    """
    callers = [one for one in pods if one.sent]
    every = sum(one.sent for one in callers)
    refused, sent = [], 0
    for one in callers:
        most = 2 * (every - one.sent) // max(1, len(callers) - 1) if len(callers) > 1 else every
        kept = min(one.sent, most)
        sent += kept
        refused.append(min(one.refused, one.sent) * kept // one.sent)
    return [number for number in refused if number], sent


def _others(limit: LimitColumns, pods: Collection[PodSeen], now: datetime) -> Iterable[Found]:
    """Others use the same key: the vendor has less left than our counter."""
    charged = [one.others for one in pods if one.others]
    counted, may = without_the_worst(charged), limit.limit * LATELY_S / limit.window_s
    if len(charged) < MIN_PODS or counted < MIN_ANSWERS or counted * 100 < may * OTHERS_PERCENT:
        return
    part = min(1.0, counted / may)
    yield Found(
        kind=SuggestionKind.OTHERS,
        number=max(1, round(100 * part)),
        evidence=(
            f"From {_lately(now)} others used {counted:,} of the {round(may):,}"
            f" {limit.measure.replace('_', ' ')} that this limit allows ({percent(part)}): the vendor had"
            f" that much less left than our counter, in answers to {len(charged)} pods."
        ),
    )


def _lately(now: datetime) -> str:
    return f"{now - timedelta(seconds=LATELY_S):%H:%M} to {now:%H:%M} UTC"


def _moment(at: datetime, now: datetime) -> str:
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%-d %B %H:%M} UTC"


def _rate(limit: LimitColumns, number: int) -> str:
    return f"{amount_words(number, limit.measure)} per {limit.window_s:,} s"
