"""How a breaker's state looks and reads everywhere: a hue, a shape and a word."""

from dataclasses import dataclass

from controlplane.status.breakers import PHRASES


@dataclass(frozen=True, kw_only=True)
class BreakerLook:
    kind: str
    css: str
    word: str
    #: In a sentence: "search is probing".
    verb: str


#: By state or override mode, worst first.
FACES = {
    state: BreakerLook(kind=kind, css=css, word=word, verb=PHRASES[state])
    for state, (kind, css, word) in {
        "open": ("open", "st-open", "Open"),
        "half_open": ("half", "st-half", "Half-open"),
        "forced_open": ("forced", "st-forced", "Forced open"),
        "forced_closed": ("pinned", "st-forced", "Forced closed"),
        "metrics_only": ("pinned", "st-forced", "Metrics only"),
        "disabled": ("pinned", "st-forced", "Disabled"),
        "closed": ("closed", "st-closed", "Closed"),
        "no_data": ("stale", "st-stale", "No data"),
    }.items()
}
