"""What the answer to a peek means for the real call, rule by rule."""

from fuseboard.admission.decisions import DecisionBuilder, Refusal
from fuseboard.batching.demand import LimitRef
from fuseboard.batching.question import Answer
from fuseboard.batching.standing_demand import StandingDemand, refusal_reason
from fuseboard.cli.explain.dry_run import Peeker
from fuseboard.cli.explain.explanation import ExplainedLimit, Explanation, conclude
from fuseboard.cli.found_configuration import Known
from fuseboard.contract.policy import Limit
from fuseboard.contract.shares import allowed_alone, reserved_calls
from fuseboard.contract.words import FailurePolicy, Mode, Reason
from fuseboard.decision import Decision, LimitStatus
from fuseboard.subject import Costs, Subject

#: No limit can have this name: its key counts nothing.
UNUSED = "(explain)"


def decide(
    known: Known,
    answers: DecisionBuilder,
    demand: StandingDemand,
    answer: Answer | None,
    *,
    usual: Reason = Reason.QUOTA,
    dependency: str = "",
) -> Decision:
    """What the answer to a peek means for the real call; without one, servers decide alone."""
    if (never := demand.never) is not None:
        refusal = Refusal(refusal_reason(never, usual), never.name)
        return answers.refuse(known.snapshot, refusal, demand.statuses(), dependency=dependency)
    if answer is None:
        return answers.allow(known.snapshot, demand.statuses(), dependency=dependency)
    limits = demand.statuses(answer.left[: len(demand.refs)]) if demand.refs else ()
    if not 0 < answer.blocked <= len(demand.refs):
        return answers.allow(known.snapshot, limits, dependency=dependency)
    limit = demand.refs[answer.blocked - 1].limit
    usual = Reason.QUOTA if limit.dependency else usual
    refusal = Refusal(refusal_reason(limit, usual), limit.name, answer.wait_us / 1_000_000)
    return answers.refuse(known.snapshot, refusal, limits, dependency=dependency)


def explanation(
    known: Known,
    peeker: Peeker,
    about: str,
    facts: tuple[str, ...],
    limits: tuple[Limit, ...],
    demand: StandingDemand,
    decision: Decision,
    subject: Subject,
    costs: Costs,
    *,
    dependency: str = "",
    checked: tuple[LimitStatus, ...] | None = None,
) -> Explanation:
    """All there is to say about one kind of call, without the breaker's part."""
    status = {limit.name: limit for limit in decision.limits if limit.remaining is not None}
    status |= {limit.name: limit for limit in checked or ()}
    charged = {ref.limit.name: cost for ref, cost in zip(demand.refs, demand.costs, strict=True)}
    explained = []
    for limit in limits:
        shown = status.get(limit.name) or _alone(limit).statuses()[0]
        binds = limit.name in charged
        explained.append(
            ExplainedLimit(
                limit=str(shown),
                name=limit.name,
                binds=binds,
                why_not="" if binds else _why_not(limit, subject, costs, dependency),
                cost=charged.get(limit.name, 0),
                remaining=shown.remaining,
                shadow=limit.shadow,
                alone=_without_redis(limit, known),
            )
        )
    head, health = known.snapshot.head, peeker.health
    local = health.mode is Mode.LOCAL
    notes = (
        ("Redis does not answer: servers decide by their own shares, which only they know",) if local else ()
    )
    return Explanation(
        about=about,
        environment=known.environment,
        epoch=head.epoch,
        revision=head.revision,
        source=known.snapshot.source,
        mode=health.mode,
        mode_cause=health.cause,
        facts=facts,
        limits=tuple(explained),
        notes=notes + known.notes,
        **conclude(decision),  # type: ignore[arg-type] # each of its own type
    )


def _alone(limit: Limit) -> StandingDemand:
    return StandingDemand((LimitRef(limit, ""),), (1,))


def _without_redis(limit: Limit, known: Known) -> str:
    if limit.failure_policy is FailurePolicy.RESERVED:
        whole = reserved_calls(limit)
        return f"this server's piece of {whole:,} of {limit.limit:,}; its page on the dashboard says how much"
    words = allowed_alone(limit, servers=max(1, known.live_servers), share=None).words
    if limit.failure_policy is FailurePolicy.LOCAL_SHARE:
        return words + (
            f", one of {known.live_servers} servers" if known.live_servers else ", were it the only server"
        )
    return words


def _why_not(limit: Limit, subject: Subject, costs: Costs, dependency: str) -> str:
    if limit.dependency != dependency:
        return f"it is for calls to {limit.dependency}" if limit.dependency else "it is for requests"
    if limit.measure not in {measure for measure, amount in costs if amount > 0}:
        return f"it counts {limit.measure}, which this call does not cost"
    missing = [dimension.value for dimension in limit.per if not subject.value(dimension)]
    if missing:
        return f"it counts by {' and '.join(missing)}: say --{missing[0].replace('_', '-')}"
    return f"no pattern of {', '.join(limit.endpoints)} matches {subject.endpoint or 'no endpoint'}"
