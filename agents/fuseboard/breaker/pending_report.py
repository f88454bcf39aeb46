"""Outcomes that a pod has not reported yet."""

from msgspec import Struct, field

from fuseboard.contract.words import Outcome

_PROBE_OUTCOMES = {Outcome.NEUTRAL: 0, Outcome.OK: 1, Outcome.SLOW: 2, Outcome.FAILURE: 2}


class PendingReport(Struct):
    """Outcomes of one generation that are not sent yet."""

    ok: int = 0
    failure: int = 0
    slow: int = 0
    #: Failures since the last success among them.
    tail: int = 0
    #: Milliseconds for which the vendor asked not to be called.
    cooldown_ms: int = 0
    #: Tokens of permits, each with its outcome, or with the us for which it is renewed.
    probes: list[tuple[str, int]] = field(default_factory=list)

    def add(self, outcome: Outcome, probe: str) -> None:
        """Count one call. ``probe`` is the token of a half-open permit."""
        if probe:
            self.probes.append((probe, _PROBE_OUTCOMES[outcome]))
        elif outcome is Outcome.OK:
            self.ok += 1
            self.tail = 0
        elif outcome is Outcome.FAILURE:
            self.failure += 1
            self.tail += 1
        elif outcome is Outcome.SLOW:
            self.slow += 1
