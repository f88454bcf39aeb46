"""What only the page of one breaker displays: its past, as a timeline and as three plots."""

from dataclasses import dataclass, replace

from django.utils.safestring import SafeString

from controlplane.status.facts import Transition
from dashboard.live.breakers import Breaker
from dashboard.live.history import PLOTTED, History
from dashboard.live.overview import Live
from dashboard.live.pod_lines import own_transitions
from dashboard.live.tiles import number
from dashboard.live.timeline import RANGES, lanes, range_name, segments_of
from dashboard.plots import plot


@dataclass(frozen=True, kw_only=True)
class Plot:
    name: str
    value: str
    svg: SafeString
    keys: tuple[tuple[str, str], ...]
    #: The ends of the scale, and the time that it covers.
    top: str
    bottom: str
    span: str
    hot: bool = False


@dataclass(frozen=True, kw_only=True)
class BreakerHistory:
    picture: SafeString
    plots: tuple[Plot, ...]
    transitions: tuple[Transition, ...]


def past(live: Live, name: str, span: str, history: History) -> BreakerHistory | None:
    breaker = live.breaker(name)
    if breaker is None:
        return None
    own = [transition for transition in live.facts.transitions if transition.dependency == name]
    # To the next part of a minute, so that the picture is not sent again every second.
    step = 10 if span == "15m" else 60
    end = live.facts.now // step * step + step
    start = end - RANGES[span]
    overrides = [override for override in live.facts.overrides(name) if override.expires_at > start]
    found = segments_of(breaker, live.facts, start, end)
    moves = sorted([*own, *own_transitions(live.facts.pod_events, name)], key=lambda one: -one.at)
    changes = [c for c in live.facts.changes if c.at > start and c.revision is not None and c.target == name]
    return BreakerHistory(
        picture=lanes(found, overrides, changes[:6], start, end),
        plots=tuple(_plots(breaker, history, span)),
        transitions=tuple(_with_reasons(live, moves[:8])),
    )


def _with_reasons(live: Live, transitions: list[Transition]) -> list[Transition]:
    """Add to a person's transition the reason of their change just before it."""
    reasoned = []
    for transition in transitions:
        reason = next(
            (
                change.reason
                for change in live.facts.changes
                if transition.actor
                and change.actor == transition.actor
                and change.target == transition.dependency
                and -2 < transition.at - change.at < 10
            ),
            "",
        )
        reasoned.append(replace(transition, reason=reason))
    return reasoned


def _top(*values: float | None) -> float:
    """The top of the scale of these values."""
    return max((1.0, *(value for value in values if value is not None))) * 1.15


def _plots(breaker: Breaker, history: History, span: str) -> list[Plot]:
    calls, failures, refused, slow = (
        history.over(f"{what}:{breaker.name}", RANGES[span])
        for what in ("calls", "failures", "refused", "slow")
    )
    limit = breaker.threshold
    # Without a call there is no share that failed.
    ratio = [
        min(1.0, bad / sent) if bad is not None and sent else None
        for bad, sent in zip(failures, calls, strict=True)
    ]
    top, slow_top = _top(*calls, *refused), _top(*slow)
    traffic, span = breaker.traffic, f"last {range_name(span)}"
    now = traffic.failures_per_s / traffic.calls_per_s if traffic.calls_per_s else 0.0
    return [
        Plot(
            name="Failed calls, % of calls sent",
            value=f"{now * 100:.0f} %" if traffic.calls_per_s else "no calls",
            hot=now > limit,
            svg=plot(
                [("s2", ratio)], limit=limit, across=PLOTTED, label=f"Share of calls that failed, {span}"
            ),
            keys=(("k2", "failed"), ("kl", f"opens at {limit * 100:.0f} %")),
            top="100 %",
            bottom="0 %",
            span=span,
        ),
        Plot(
            name="Calls per second",
            value=f"{number(traffic.calls_per_s)}/s",
            svg=plot(
                [("s1", calls), ("s3", refused)],
                top=top,
                across=PLOTTED,
                label=f"Calls sent and blocked, {span}",
            ),
            keys=(("", "sent"), ("k3", "blocked")),
            top=f"{number(top)}/s",
            bottom="0/s",
            span=span,
        ),
        Plot(
            name="Slow calls per second",
            value=f"{number(traffic.slow_per_s)}/s",
            svg=plot([("s1", slow)], top=slow_top, across=PLOTTED, label=f"Slow calls per second, {span}"),
            keys=(("", "slow"),),
            top=f"{number(slow_top)}/s",
            bottom="0/s",
            span=span,
        ),
    ]
