"""The output of ``fuseboard explain``: one structure, as text and as JSON."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from fuseboard.admission.budget_inspection import KnownBudget
from fuseboard.admission.inspection import Expected, Inspection
from fuseboard.contract.budget_limits import BudgetLimit
from fuseboard.contract.limits import EVERY_SERVICE
from fuseboard.contract.policy import Limit
from fuseboard.contract.shares import allowed_alone, divides_what_is_left, reserved_calls
from fuseboard.contract.words import ConfigSource, FailurePolicy, Mode
from fuseboard.decision import LimitStatus
from fuseboard.explain.explained_budgets import ExplainedBudget, explained_budgets
from fuseboard.explain.found_configuration import FoundConfiguration
from fuseboard.subject import Costs, Subject


class ExplainedLimit(Struct, frozen=True, kw_only=True):
    #: The limit in words, with what is left.
    limit: str
    name: str
    binds: bool
    #: Why it does not apply to this call.
    why_not: str = ""
    cost: int = 0
    remaining: int | None = None
    shadow: bool = False
    #: The part that this pod allows while Redis cannot be asked.
    alone: str = ""


class ExplainedBreaker(Struct, frozen=True, kw_only=True):
    state: str
    generation: int = 0
    cause: str = ""
    #: Seconds in this state, and seconds until an open breaker may probe.
    since_s: float = 0.0
    opens_for_s: float = 0.0
    probes_under_way: int = 0
    #: The outcomes of the fleet in the breaker's window.
    window_s: int = 0
    calls: int = 0
    failures: int = 0
    slow: int = 0
    consecutive_failures: int = 0
    #: Seconds for which the vendor asked not to be called.
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
    #: In the order in which they decide.
    budgets: tuple[ExplainedBudget, ...] = ()
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
        if (override := self.override) is not None:
            ends = f"ends in {override.ends_in_s:.0f} s"
            lines.append(f"  override       {override.mode} by {override.actor}: {override.reason} ({ends})")
        if (breaker := self.breaker) is not None:
            lines += [f"  breaker        {line}" for line in _breaker_lines(breaker)]
        for limit in self.limits:
            shadow = " (shadow: counts, never refuses)" if limit.shadow else ""
            binds = f"costs {limit.cost}" if limit.binds else f"does not apply: {limit.why_not}"
            lines.append(f"  limit          {limit.limit}; {binds}{shadow}")
            lines.append(f"    without Redis  {limit.alone}")
        if not self.limits:
            lines.append("  limit          none")
        lines += [f"  budget         {budget.text()}" for budget in self.budgets]
        lines.append(f"  next decision  {self.decision}")
        return "\n".join([*lines, *(f"  note           {note}" for note in self.notes)])


def _breaker_lines(breaker: ExplainedBreaker) -> list[str]:
    cause = f", cause: {breaker.cause}" if breaker.cause else ""
    lines = [f"{breaker.state} for {breaker.since_s:.0f} s, generation {breaker.generation}{cause}"]
    if breaker.opens_for_s:
        lines.append(f"may probe in {breaker.opens_for_s:.1f} s")
    if breaker.probes_under_way:
        lines.append(f"{breaker.probes_under_way} probes in progress")
    if breaker.window_s:
        lines.append(
            f"last {breaker.window_s} s: {breaker.calls} calls, {breaker.failures} failures, "
            f"{breaker.slow} slow; {breaker.consecutive_failures} failures in a row"
        )
    if breaker.cooling_down_s:
        lines.append(f"the vendor asked for no calls for another {breaker.cooling_down_s:.1f} s")
    return lines


class Explained(NamedTuple):
    """The call or request in question, as the configuration describes it."""

    about: str
    facts: tuple[str, ...]
    #: The limits that could apply.
    limits: tuple[Limit, ...]
    subject: Subject
    costs: Costs
    dependency: str = ""


def explanation(
    found: FoundConfiguration,
    inside: Inspection,
    call: Explained,
    expected: Expected,
    budgets: Iterable[KnownBudget] = (),
) -> Explanation:
    """Everything about one kind of call, except its breaker."""
    decision = expected.decision
    known = {status.name: status for status in decision.limits if status.remaining is not None}
    notes = found.notes
    if inside.mode is Mode.LOCAL:
        notes = ("Redis does not answer: pods decide by their own shares, which only they know", *notes)
    head = found.snapshot.head
    return Explanation(
        about=call.about,
        environment=found.environment,
        epoch=head.epoch,
        revision=head.revision,
        source=found.snapshot.source,
        mode=inside.mode,
        mode_cause=inside.mode_cause,
        facts=call.facts,
        limits=tuple(
            _explain_limit(limit, call, expected.costs, known.get(limit.name), found)
            for limit in call.limits
            if not isinstance(limit, BudgetLimit)
        ),
        budgets=explained_budgets(budgets, found.clock.now_us()),
        notes=notes,
        allowed=decision.allowed,
        decision=replace(decision, server="this command").explain(),
        reason=str(decision.reason or ""),
        rule=decision.rule,
        retry_after_ms=decision.retry_after_ms,
    )


def waiting(wait_ms: int) -> tuple[str, ...]:
    """How long a caller waits that does not say so, as a fact."""
    return (f"waits          up to {wait_ms:,} ms, unless the caller sets wait_s",) if wait_ms else ()


def _explain_limit(
    limit: Limit,
    call: Explained,
    costs: dict[str, int],
    status: LimitStatus | None,
    found: FoundConfiguration,
) -> ExplainedLimit:
    status = status or LimitStatus.of(limit)
    binds = limit.name in costs
    return ExplainedLimit(
        limit=str(status),
        name=limit.name,
        binds=binds,
        why_not="" if binds else _why_not(limit, call),
        cost=costs.get(limit.name, 0),
        remaining=status.remaining,
        shadow=limit.shadow,
        alone=_without_redis(limit, found.live_servers),
    )


def _without_redis(limit: Limit, live_servers: int) -> str:
    if divides_what_is_left(limit):
        pods = f"{live_servers} pods" if live_servers else "all pods"
        return f"this pod's share of what Redis last said is left; {pods} divide it"
    if limit.failure_policy is FailurePolicy.RESERVED:
        whole = reserved_calls(limit)
        return f"this pod's share of the reserved {whole:,} of {limit.limit:,}; its page shows how much"
    words = allowed_alone(limit, servers=max(1, live_servers), share=None).words
    if limit.failure_policy is not FailurePolicy.LOCAL_SHARE:
        return words
    return words + (f", one of {live_servers} pods" if live_servers else ", if it is the only pod")


def _why_not(limit: Limit, call: Explained) -> str:
    if limit.dependency != call.dependency:
        return f"it is for calls to {limit.dependency}" if limit.dependency else "it is for requests"
    if limit.measure not in {measure for measure, amount in call.costs if amount > 0}:
        return f"it counts {limit.measure}, which this call does not cost"
    missing = [dimension.value for dimension in limit.per if not call.subject.value(dimension)]
    if missing:
        return f"it counts by {' and '.join(missing)}: pass --{missing[0].replace('_', '-')}"
    if limit.service not in ("", EVERY_SERVICE):
        return f"it is for service {limit.service}"
    return f"no pattern of {', '.join(limit.endpoints)} matches {call.subject.endpoint or 'no endpoint'}"
