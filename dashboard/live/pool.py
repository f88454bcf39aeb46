"""Tells who uses up the limits of a dependency: we, the vendor, or another consumer; and when budgets end."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import redis
from django.db import InterfaceError, OperationalError
from redis.client import Pipeline

from controlplane.ledger.spenders import Spenders, read_spenders
from controlplane.phrases import amount_words, count, listed, moment, percent, span
from controlplane.policies.models import Kind
from controlplane.redis.read_many import ask_many
from controlplane.spending.budget_rows import Account
from controlplane.status.watched import Spent, VendorAnswers
from controlplane.suggestions.evidence import OTHERS_PERCENT, REFUSED_PERCENT
from controlplane.suggestions.reading import Learned
from dashboard.live.breakers import Breaker
from dashboard.live.overview import Live
from fuseboard.contract import keys

#: Dependencies that have limits of their own.
_OUTSIDE = (Kind.LLM, Kind.EXTERNAL)
#: A limit is nearly full from this part on.
_NEARLY_FULL = 0.8


@dataclass(frozen=True, kw_only=True)
class BudgetEnd:
    """A budget, or a limit with a calendar period, of the dependency or its account."""

    name: str
    spent: str
    limit: str
    share: str
    #: When it is spent, in words.
    ends: str
    #: Nothing is left of it, and it refuses calls.
    is_spent: bool


@dataclass(frozen=True, kw_only=True)
class Pool:
    #: It is a vendor, and not a part of the own system.
    is_outside: bool = True
    #: Calls in the bulkheads of all pods; ``None`` without bulkheads.
    in_flight: int | None = None
    #: The part of the calls that pods report as answered with 429, in words; empty for none.
    too_many: str = ""
    #: Why calls wait or stop, in words.
    stops: Sequence[str] = ()
    #: A server of Redis that has one of the stops did not answer.
    is_unread: bool = False
    budgets: Sequence[BudgetEnd] = ()
    #: ``None`` if calls to it cost nothing, or Postgres is unavailable.
    spenders: Spenders | None = None

    @property
    def has_content(self) -> bool:
        return bool(
            self.is_outside or self.too_many or self.stops or self.budgets or self.spenders is not None
        )


def verdict_of(learned: Learned, pool: Pool) -> str:
    """Whether limits here, the vendor, or others with the same key keep calls back.

    Stops and budgets are in Redis. The rest is what several pods prove, so that one pod that lies changes
    nothing.
    """
    spent = [one.name for one in pool.budgets if one.is_spent]
    if pool.stops:
        return f"The vendor: {' '.join(pool.stops)}"
    if spent:
        return f"We: nothing is left of {listed(spent)}."
    if found := _reported(learned):
        alone = " Only one pod makes calls, and no other one confirms it." if learned.is_one_pod else ""
        return f"{found}{alone}"
    if pool.is_unread:
        return "Unknown: Redis does not answer, and has the stops."
    if not learned.limits:
        return (
            "Not us: no limit of the vendor is configured here."
            " With one, pods report whether the vendor or another consumer keeps calls back."
        )
    return "No limit keeps many calls back."


def _reported(learned: Learned) -> str:
    others = [one for one in learned.limits if not one.is_slots]
    most = max(others, key=lambda one: one.others_share, default=None)
    if most is not None and most.others_share * 100 >= OTHERS_PERCENT:
        part = percent(most.others_share)
        return f"Another consumer: others with the same key use {part} of the limit {most.name}."
    if learned.refused_share * 100 > REFUSED_PERCENT:
        return f"The vendor: it refuses {percent(learned.refused_share)} of the calls."
    if learned.proven_blocked:
        full = [limit.name for limit in learned.limits if (limit.share or 0) >= _NEARLY_FULL]
        return f"We: limits here refuse calls{f', now {listed(full)}' if full else ''}."
    return ""


def pool_of(live: Live, breaker: Breaker | None) -> Pool:
    """One query about the account and one of the ledger, however many budgets and tenants there are."""
    if breaker is None:
        return Pool(is_outside=False)
    name, environment, facts = breaker.name, live.facts.environment, live.facts
    tiers = breaker.protected.tiers if breaker.protected is not None else ()
    spenders: Spenders | None = None
    accounts: list[str] = []
    try:
        rows = Account.objects.filter(environment=environment, pools__contains=[name])
        accounts = list(rows.values_list("name", flat=True))
        spenders = read_spenders(environment, name, datetime.fromtimestamp(facts.now, UTC))
    except (OperationalError, InterfaceError):
        pass
    stops, is_unread = _stops(environment, name, accounts)
    return Pool(
        is_outside=breaker.dependency.kind in _OUTSIDE,
        in_flight=sum(tier.active for tier in tiers) if tiers else None,
        too_many=_too_many(facts.watched.vendors.get(name)),
        stops=stops,
        is_unread=is_unread,
        budgets=[
            _budget(one, facts.now)
            for one in facts.watched.spent
            if not one.tenant and (one.dependency == name or one.account in accounts)
        ],
        spenders=spenders if spenders is not None and spenders.listed else None,
    )


def _too_many(answers: VendorAnswers | None) -> str:
    if answers is None or not answers.too_many:
        return ""
    return (
        f"Pods report 429 for {percent(answers.too_many / answers.calls)} of"
        f" {count(answers.calls, 'call', grouped=True)} in {answers.minutes} min."
    )


def _budget(one: Spent, now: float) -> BudgetEnd:
    is_over = one.spent >= one.limit
    if is_over and one.shadow:
        ends = "and it refuses nothing"
    elif is_over:
        ends = f"spent, for {span(one.ends - now)} more"
    elif one.gone_at is not None:
        ends = f"spent at {moment(one.gone_at)} if spending goes on like this"
    else:
        ends = f"its period ends at {moment(one.ends)}"
    return BudgetEnd(
        name=one.title or one.name,
        spent=amount_words(one.spent, one.measure),
        limit=amount_words(one.limit, one.measure),
        share=percent(one.share),
        ends=ends,
        is_spent=is_over and not one.shadow,
    )


def _stops(environment: str, dependency: str, accounts: Iterable[str]) -> tuple[list[str], bool]:
    """Why the vendor is not called, in words; and whether a server that has a stop did not answer."""
    cooldown = keys.cooldown(environment, dependency)
    named = {keys.account_stop(environment, account): account for account in accounts}

    def ask(pipeline: Pipeline, name: str) -> object:
        return pipeline.get(name) if name == cooldown else pipeline.hget(name, "until")

    try:
        answers = ask_many([cooldown, *named], ask)
    except redis.RedisError:
        return [], True
    found = []
    if (left := _left_s(answers[cooldown])) > 0:
        found.append(f"It asked for a pause of {span(left)} more.")
    for name, account in named.items():
        if (left := _left_s(answers[name])) > 0:
            found.append(f"Account {account} is stopped for {span(left)} more: the vendor does not serve it.")
    return found, any(isinstance(answer, redis.RedisError) for answer in answers.values())


def _left_s(stored: object) -> float:
    """Seconds until a stored moment in microseconds; 0 for what cannot be read."""
    try:
        return float(stored) / 1_000_000 - time.time()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0
