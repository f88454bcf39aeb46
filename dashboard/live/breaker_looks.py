"""How a breaker's state looks and reads, everywhere: a hue, a shape and a word."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Face:
    """How a state looks and reads, everywhere."""

    kind: str
    css: str
    word: str
    #: In the headline: "search is probing".
    verb: str
    rank: int


FACES = {
    "open": Face(kind="open", css="st-open", word="Open", verb="open", rank=0),
    "half_open": Face(kind="half", css="st-half", word="Half-open", verb="probing", rank=1),
    "forced_open": Face(kind="forced", css="st-forced", word="Forced open", verb="held open", rank=2),
    "forced_closed": Face(kind="pinned", css="st-forced", word="Forced closed", verb="held closed", rank=3),
    "metrics_only": Face(kind="pinned", css="st-forced", word="Metrics only", verb="only watched", rank=4),
    "disabled": Face(kind="pinned", css="st-forced", word="Disabled", verb="switched off", rank=5),
    "closed": Face(kind="closed", css="st-closed", word="Closed", verb="closed", rank=6),
    "no_data": Face(kind="stale", css="st-stale", word="No data", verb="unknown", rank=7),
}
