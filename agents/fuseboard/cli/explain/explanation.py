"""What ``fuseboard explain`` says: one structure, as text and as JSON."""

from msgspec import Struct, field

from fuseboard.contract.words import ConfigSource, Mode
from fuseboard.decision import Decision


class ExplainedLimit(Struct, frozen=True, kw_only=True):
    #: The limit as a sentence says it, with what is left.
    limit: str
    name: str
    binds: bool
    #: Why it does not bind this call.
    why_not: str = ""
    cost: int = 0
    remaining: int | None = None
    shadow: bool = False
    #: What this server allows of it while Redis cannot be asked.
    alone: str = ""


class ExplainedBreaker(Struct, frozen=True, kw_only=True):
    state: str
    generation: int = 0
    cause: str = ""
    #: Seconds since it is in this state, and until an open one may probe.
    since_s: float = 0.0
    opens_for_s: float = 0.0
    probes_under_way: int = 0
    #: Outcomes of the fleet in the breaker's window.
    window_s: int = 0
    calls: int = 0
    failures: int = 0
    slow: int = 0
    consecutive_failures: int = 0
    #: Seconds for which the vendor asked to be left alone.
    cooling_down_s: float = 0.0


class ExplainedOverride(Struct, frozen=True, kw_only=True):
    mode: str
    reason: str
    actor: str
    ends_in_s: float


class Explanation(Struct, frozen=True, kw_only=True):
    about: str
    environment: str
    epoch: int
    revision: int
    source: ConfigSource
    mode: Mode
    mode_cause: str
    #: Facts about the tenant or the dependency.
    facts: tuple[str, ...]
    limits: tuple[ExplainedLimit, ...]
    allowed: bool
    decision: str
    reason: str = ""
    rule: str = ""
    retry_after_ms: int = 0
    breaker: ExplainedBreaker | None = None
    override: ExplainedOverride | None = None
    notes: tuple[str, ...] = field(default=())

    def text(self) -> str:
        lines = [
            self.about,
            f"  configuration  {self.environment}, epoch {self.epoch}, revision {self.revision}, "
            f"from {self.source}",
            f"  mode           {self.mode} ({self.mode_cause})",
            *(f"  {fact}" for fact in self.facts),
        ]
        if (held := self.override) is not None:
            ends = f"ends in {held.ends_in_s:.0f} s"
            lines.append(f"  override       {held.mode} by {held.actor}: {held.reason} ({ends})")
        if (breaker := self.breaker) is not None:
            lines += [f"  breaker        {line}" for line in _breaker_lines(breaker)]
        for limit in self.limits:
            shadow = " (shadow: counts, never refuses)" if limit.shadow else ""
            binds = f"costs {limit.cost}" if limit.binds else f"does not bind: {limit.why_not}"
            lines.append(f"  limit          {limit.limit}; {binds}{shadow}")
            lines.append(f"    without Redis  {limit.alone}")
        if not self.limits:
            lines.append("  limit          none")
        lines.append(f"  next decision  {self.decision}")
        return "\n".join([*lines, *(f"  note           {note}" for note in self.notes)])


def _breaker_lines(breaker: ExplainedBreaker) -> list[str]:
    cause = f", because: {breaker.cause}" if breaker.cause else ""
    lines = [f"{breaker.state} for {breaker.since_s:.0f} s, generation {breaker.generation}{cause}"]
    if breaker.opens_for_s:
        lines.append(f"may probe in {breaker.opens_for_s:.1f} s")
    if breaker.probes_under_way:
        lines.append(f"{breaker.probes_under_way} probes under way")
    if breaker.window_s:
        lines.append(
            f"last {breaker.window_s} s: {breaker.calls} calls, {breaker.failures} failures, "
            f"{breaker.slow} slow; {breaker.consecutive_failures} failures in a row"
        )
    if breaker.cooling_down_s:
        lines.append(f"the vendor asked for quiet for another {breaker.cooling_down_s:.1f} s")
    return lines


def conclude(decision: Decision) -> dict[str, str | bool | int]:
    """The fields of an explanation that a decision fills."""
    return {
        "allowed": decision.allowed,
        "decision": decision.explain(),
        "reason": str(decision.reason or ""),
        "rule": decision.rule,
        "retry_after_ms": decision.retry_after_ms,
    }
