"""The alert rule about pods that contradict a breaker. Rules about its state are in ``fleet``."""

from typing import Any

from controlplane.alerts.rules.rule import EACH_BREAKER, Headline, Rule, Timing, WarningOnly
from controlplane.phrases import listed, name_or_count, they
from controlplane.status.breakers import PHRASES, REFUSING, BreakerStatus

#: Pods that the alert names.
_NAMED = 3
#: Pods report every few seconds: after each change of a breaker, some contradict it for up to 10 s.
_LASTING_S = 60.0


def _what_pods_do(breaker: BreakerStatus) -> str:
    pods = breaker.contradicting
    if breaker.effective in REFUSING:
        return f"{they(pods, 'lets', 'let')} calls to {breaker.name} pass"
    return f"{they(pods, 'refuses', 'refuse')} calls to {breaker.name}"


def _text(breaker: BreakerStatus) -> str:
    who, does = name_or_count(breaker.contradicting), _what_pods_do(breaker)
    return f"{who} {does} while its breaker is {PHRASES[breaker.effective]}"


def _detail(breaker: BreakerStatus) -> str:
    pods = breaker.contradicting
    seen = {one.server: one for one in breaker.seen_by}
    said = [
        f"{name}: {PHRASES[seen[name].effective]}{', by its own breaker' if seen[name].local else ''}"
        for name in pods[:_NAMED]
    ]
    more = f", and {len(pods) - _NAMED} more" if len(pods) > _NAMED else ""
    return f"{listed(said, _NAMED)}{more}. A pod that uses Redis applies the state of the fleet within 10 s."


BREAKER_RULES: tuple[Rule[Any], ...] = (
    Rule[BreakerStatus](
        key="divided",
        describes="pods let calls pass, or refuse them, against the breaker of the fleet",
        severity="warning",
        timing=Timing(level=2, fires_after_s=_LASTING_S, resolves_after_s=60),
        scope=EACH_BREAKER,
        test=lambda breaker: bool(breaker.contradicting),
        pods=lambda breaker: breaker.contradicting,
        text=_text,
        detail=_detail,
        warning=WarningOnly(
            headline=lambda breaker: Headline.of_pods(
                breaker.contradicting, "contradicts", "contradict", f"the breaker of {breaker.name}"
            ),
            weight=155,
            lasting_s=_LASTING_S,
        ),
        handled="A pod takes the state of the fleet with its next answer from Redis.",
        runbook="breaker-divided",
    ),
)
