"""Gateways as pages know them: whether pods and rates are of now, or as they were last known."""

from datetime import UTC, datetime

from controlplane.alerts.rules.thresholds import UNCOUNTED_SHARE
from controlplane.status.facts import PodFacts

NO_DATA = "no data"


def rates_known(facts: PodFacts) -> bool:
    """Whether the rates are those of the fleet: not without a gateway, and not while most pods of one that
    has just started are in no rate yet.
    """
    return facts.current and facts.figures.uncounted <= facts.figures.live_servers * UNCOUNTED_SHARE


def since_words(facts: PodFacts) -> str:
    """``since 00:06:21``, or why there is no data; empty while the rates are known."""
    if rates_known(facts):
        return ""
    if facts.current:
        return "a gateway has just started"
    return f"since {_clock(facts.current_until)}" if facts.current_until else "nothing reported within a day"


def no_data_words(facts: PodFacts) -> str:
    """``no data since 00:06:21 UTC``; empty while the rates are known."""
    words = since_words(facts)
    if words.startswith("since"):
        return f"{NO_DATA} {words} UTC"
    return f"{NO_DATA}: {words}" if words else ""


def last_known_words(at: float | None) -> str:
    """``last known at 00:06:20 UTC``."""
    return f"last known at {_clock(at)} UTC" if at else "not known"


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"
